"""Sentences that people read."""

from ebbtide.core import events
from tests.core.builders import NOW, after


def test_a_notice_says_why_and_until_when() -> None:
    event = events.preempted("standard order of cluster train", NOW, after(300))
    assert event.reason == "TogetherPreempted"
    assert event.at == NOW
    assert "standard order of cluster train" in event.message
    assert "within 300 s, at 2026-03-01T12:05:00Z at the latest" in event.message


def test_a_lost_host_says_when_it_was_last_seen() -> None:
    assert "2026-03-01T12:00:00Z" in events.lost(after(60), NOW).message
    assert "never seen" in events.lost(after(60), None).message


def test_a_late_notice_names_both_ends() -> None:
    message = events.late_notice(after(400), after(460), after(300)).message
    assert "until 2026-03-01T12:07:40Z" in message
    assert "deadline was 2026-03-01T12:05:00Z" in message


def test_a_long_list_of_pods_is_cut() -> None:
    assert events.grace_expired(("a", "b"), NOW).message.endswith(": a, b")
    assert events.grace_expired(tuple("abcdefgh"), NOW).message.endswith("a, b, c, d, e and 3 more")


def test_a_release_without_a_drain_names_no_deadline() -> None:
    assert events.scaled_down("the target was lowered", NOW, None).message == "the target was lowered"
    assert "2026-03-01T12:05:00Z" in events.scaled_down("the target was lowered", NOW, after(300)).message


def test_only_documented_older_names_have_aliases() -> None:
    assert set(events.ALIASES) <= set(events.Reason)
    assert set(events.ALIASES.values()) == {"TogetherNodeAdded", "TogetherPreemptionNotified"}


def test_joining_says_how_long_it_took() -> None:
    assert events.joined("preemptible", NOW, 42).message == "preemptible node joined 42 s after it was placed"
    assert "given up: boot failed" in events.failed("boot failed", NOW).message
