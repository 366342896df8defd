"""The answer for a person."""

from __future__ import annotations

from collections.abc import Iterator

from . import plan
from .answer import Answer
from .units import show_bytes, show_seconds


def as_text(answer: Answer) -> str:
    """A few sentences, most important first."""
    return "\n".join([*_verdict(answer), *_sizes(answer), *_often(answer)])


def _verdict(answer: Answer) -> Iterator[str]:
    fit = answer.fit
    if fit is None:
        yield "No write rate given (--rate, --measure or --save), so only what it would need:"
        return
    took = f"A save takes {show_seconds(fit.takes_s)}"
    usable = f"{show_seconds(fit.usable_s)} of the {show_seconds(fit.window_s)} window are usable"
    if fit.verdict == plan.FITS:
        yield f"It fits. {took}; {usable}."
    elif fit.verdict == plan.TIGHT:
        yield f"Barely, and not safely. {took}; only {usable}: a slower save on the day is cut."
    else:
        yield f"It does not fit. {took}; {usable}."


def _sizes(answer: Answer) -> Iterator[str]:
    if answer.bytes is not None:
        yield f"  checkpoint      {show_bytes(answer.bytes)}"
    if answer.measured is not None:
        m = answer.measured
        yield (
            f"  measured        {show_bytes(m.bytes_per_s)}/s: {show_bytes(m.bytes_written)} by "
            f"{m.writers} writers "
            f"in {show_seconds(m.took_s)}, flushed"
        )
    if answer.bytes_per_s is not None:
        nodes = f" ({answer.nodes} nodes at once, if the file system keeps up)" if answer.nodes > 1 else ""
        yield f"  write rate      {show_bytes(answer.bytes_per_s)}/s{nodes}"
    if answer.needed_bytes_per_s is not None:
        needed = show_bytes(answer.needed_bytes_per_s)
        yield f"  rate it needs   {needed}/s to be done in {show_seconds(answer.usable_s)}"


def _often(answer: Answer) -> Iterator[str]:
    if answer.rate is None:
        yield "  How often to save depends on how often you are preempted:"
        yield "  --observed 5/72h, or --cluster FILE."
        return
    rate = answer.rate
    if rate.count:
        seen = "" if rate.count == 1 else f", {rate.count} seen in {show_seconds(rate.span_s)}"
        yield f"  preempted       every {show_seconds(rate.life_s)} on average ({rate.source}{seen})"
    else:
        yield f"  preempted       not once in {show_seconds(rate.span_s)} ({rate.source}); taken as once"
    if answer.cost is None:
        return
    cost = answer.cost
    young = f"every {show_seconds(cost.interval_s)} (Young/Daly; Young alone {show_seconds(cost.young_s)})"
    if cost.noticed is None:
        yield f"  save            {young}: the notice is too short to wait for it"
        restart = f"restarts of {show_seconds(answer.restart_s)} included"
        yield f"  cost            {_share(answer, cost.periodic)}, {restart}"
        return
    yield f"  save            at the notice; {show_seconds(answer.restart_s)} of restart each time"
    yield f"  cost            {_share(answer, cost.noticed)}"
    yield f"  without notice  {young}: {_share(answer, cost.periodic)}"


def _share(answer: Answer, share: float) -> str:
    return f"{share:.2%} of the time{_money(answer, share)}"


def _money(answer: Answer, share: float) -> str:
    if answer.gpus is None or answer.micro_dollars_per_gpu_hour is None:
        return ""
    price = plan.micro_dollars_a_day(share, answer.gpus, answer.micro_dollars_per_gpu_hour)
    return f", {plan.show_dollars(price)} a day"
