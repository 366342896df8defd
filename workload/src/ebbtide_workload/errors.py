"""What can go wrong among the ranks."""

from __future__ import annotations


class RanksApart(Exception):
    """The ranks could not act together: one is gone, too late, or rank 0 cannot be reached. Nothing was
    published."""
