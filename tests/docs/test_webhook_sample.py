"""The signature check that the documentation hands out is right: it takes ours, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ebbtide.workers.webhook_sender import signature

SECRET, AT_S, BODY = "whsec_a", 1_767_323_045, b'{"id": "1"}'
Check = Callable[..., bool]


@pytest.fixture(scope="module")
def is_genuine() -> Check:
    page = (Path(__file__).parents[2] / "docs" / "webhooks.md").read_text(encoding="utf-8")
    (sample,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    made: dict[str, Any] = {}
    exec(compile(sample, "webhooks.md", "exec"), made)
    check: Check = made["is_genuine"]
    return check


def test_ours_is_taken(is_genuine: Check) -> None:
    header = signature(SECRET, AT_S, BODY)
    assert is_genuine(SECRET, header, BODY, now_s=AT_S + 300)


@pytest.mark.parametrize(
    ("secret", "header", "body", "later_s"),
    [
        ("whsec_b", signature(SECRET, AT_S, BODY), BODY, 0),
        (SECRET, signature(SECRET, AT_S, BODY), BODY + b" ", 0),
        (SECRET, signature(SECRET, AT_S, BODY), BODY, 301),
        (SECRET, signature(SECRET, AT_S, BODY), BODY, -301),
        (SECRET, signature(SECRET, AT_S, BODY).replace(f"t={AT_S}", f"t={AT_S + 1}"), BODY, 0),
        (SECRET, "", BODY, 0),
        (SECRET, "t=x,v1=y", BODY, 0),
        (SECRET, f"t={AT_S}", BODY, 0),
    ],
)
def test_nothing_else_is(is_genuine: Check, secret: str, header: str, body: bytes, later_s: int) -> None:
    assert not is_genuine(secret, header, body, now_s=AT_S + later_s)
