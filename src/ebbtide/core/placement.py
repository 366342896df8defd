"""Which fabric blocks new nodes of a cluster come from: near what it has, not breaking up large blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def choose_blocks(free: Mapping[str, int], count: int, held: Mapping[str, int]) -> dict[str, int]:
    """How many hosts to take from each fabric block; only blocks that give any, in the order of taking.

    free:  unoccupied hosts per block
    held:  hosts of the cluster per block
    count: hosts wanted; with fewer free, all of them are taken

    1. If the blocks where the cluster already has hosts have enough together, only those are considered.
    2. The smallest block that has enough alone, so that large blocks stay whole for those who need one.
    3. Without such a block, as few as possible: the largest ones, and for the rest the smallest that has
       enough.
    4. Of blocks alike, the one where the cluster has more, then by name.
    """
    left = {block: hosts for block, hosts in free.items() if hosts > 0}
    near = {block: hosts for block, hosts in left.items() if held.get(block, 0) > 0}
    if sum(near.values()) >= count:
        left = near
    chosen: dict[str, int] = {}
    while count > 0 and left:
        enough = [block for block, hosts in left.items() if hosts >= count]
        block = _smallest(enough, left, held) if enough else _largest(left, held)
        chosen[block] = min(count, left.pop(block))
        count -= chosen[block]
    return chosen


def _smallest(blocks: Iterable[str], free: Mapping[str, int], held: Mapping[str, int]) -> str:
    return min(blocks, key=lambda block: (free[block], -held.get(block, 0), block))


def _largest(free: Mapping[str, int], held: Mapping[str, int]) -> str:
    return min(free, key=lambda block: (-free[block], -held.get(block, 0), block))
