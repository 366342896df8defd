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
    unheard = events.late_notice(after(400), after(460), after(300), told=False).message
    assert "got no SIGTERM" in unheard


def test_a_long_list_of_pods_is_cut() -> None:
    assert events.pod_arrived(("a", "b"), NOW).message.split("; ")[0].endswith(": a, b")
    assert "a, b, c, d, e and 3 more;" in events.pod_arrived(tuple("abcdefgh"), NOW).message


def test_expired_grace_names_pod_container_and_seconds() -> None:
    """A15."""
    pods = [
        events.Overdue("lab/train-0", ("main", "logger"), 297),
        events.Overdue("lab/late", used_s=12),
        events.Overdue("lab/never"),
    ]
    assert events.grace_expired(pods, NOW).message == (
        "still there at the deadline and ended with the node: "
        "lab/train-0 (container main, logger) 297 s after SIGTERM, lab/late 12 s after SIGTERM, "
        "lab/never without SIGTERM"
    )


def test_an_overridden_budget_is_named_with_the_pods_that_it_would_have_kept() -> None:
    kept = {"lab/keep-all": ["lab/a", "lab/b"], "lab/also": ["lab/c"]}
    message = events.budget_overridden(kept, NOW).message
    assert "lab/also (lab/c), lab/keep-all (lab/a, lab/b)" in message


def test_a_release_without_a_drain_names_no_deadline() -> None:
    assert events.scaled_down("the target was lowered", NOW, None).message == "the target was lowered"
    assert "2026-03-01T12:05:00Z" in events.scaled_down("the target was lowered", NOW, after(300)).message


def test_only_documented_older_names_have_aliases() -> None:
    assert set(events.ALIASES) <= set(events.Reason)
    assert set(events.ALIASES.values()) == {"TogetherNodeAdded", "TogetherPreemptionNotified"}


def test_joining_says_how_long_it_took() -> None:
    assert events.joined("preemptible", NOW, 42).message == "preemptible node joined 42 s after it was placed"
    assert "given up: boot failed" in events.failed("boot failed", NOW).message
