"""Numbers of things as people say them."""

from ebbtide.core.words import many


def test_one_is_one_and_the_others_are_many() -> None:
    assert [many(number, "pod") for number in (0, 1, 2, 1_200)] == ["0 pods", "1 pod", "2 pods", "1,200 pods"]
    assert many(2, "entry", "entries") == "2 entries"
