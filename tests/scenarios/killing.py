"""Killing the process at a chosen point: at a call to the outside, or at a commit."""

from __future__ import annotations


class Killed(BaseException):
    """kill -9. Not an Exception, so that nothing in the code under test can hold it up."""
