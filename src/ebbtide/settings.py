"""Every setting: its name, unit, default and what it is for. Read from the environment as EBBTIDE_<NAME>.

`docs/settings.md` lists the same table; a test compares the two.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import TypeVar

from ebbtide.core.drain import DrainPolicy
from ebbtide.errors import BadInput, StartupError

T = TypeVar("T", int, bool, str)

PREFIX = "EBBTIDE_"


def _setting(default: T, about: str, live: tuple[int, int] | bool = False) -> T:
    """live: whether it may change while processes run; for numbers, the least and the most that it may be."""
    # A dataclass field says that it is a Field; its instances hold the default's type.
    setting: T = field(default=default, metadata={"about": about, "live": live})
    return setting


@dataclass(frozen=True, slots=True)
class Settings:
    """How an Ebbtide server behaves. Spans end in `_s` and are whole seconds."""

    drain_window_s: int = _setting(300, "from notice to removal at the latest; the promise to tenants")
    kill_margin_s: int = _setting(3, "an obedient pod's grace ends this long before the deadline")
    late_notice_s: int = _setting(
        60, "grace given once if no SIGTERM could be sent because no worker was alive"
    )
    critical_reserve_s: int = _setting(
        30, "system-node-critical pods wait for the others until this long before the deadline"
    )
    release_margin_s: int = _setting(
        10, "a release stops asking politely this long before a pod's grace must begin"
    )
    detach_limit_s: int = _setting(
        60, "after the deadline, volume attachments are waited for this long, unbilled"
    )
    drain_look_every_s: int = _setting(5, "a draining node's pods are read anew at least this often")
    min_life_s: int = _setting(
        600, "soft minimum life: among equals, nodes older than this are taken first", live=(0, 604_800)
    )
    cooldown_s: int = _setting(
        120,
        "a host given back by standard demand is not lent to preemptible nodes for this long",
        live=(0, 86_400),
    )
    join_limit_s: int = _setting(900, "a node that has not joined by then is sent back", live=(30, 86_400))
    boot_failures_limit: int = _setting(
        3, "a host whose boots failed so often in a row is quarantined", live=(1, 100)
    )
    fill_backoff_s: int = _setting(
        60,
        "after a failed join, filling of that cluster pauses; doubles up to 16 times this",
        live=(1, 86_400),
    )
    max_joining: int = _setting(
        50, "preemptible nodes of one cluster that may be on their way in at once", live=(1, 100_000)
    )
    observe_every_s: int = _setting(20, "every cluster is looked at at least this often", live=(1, 3_600))
    lost_after_s: int = _setting(
        40, "a running node that was not seen healthy for this long is lost", live=(5, 86_400)
    )
    meter_every_s: int = _setting(60, "how often bills are advanced")
    leaks_every_s: int = _setting(
        60, "how often the provider's list is compared with the ledger", live=(1, 86_400)
    )
    retention_every_s: int = _setting(3600, "how often what is no longer needed is cleared away")
    event_window_s: int = _setting(
        259_200, "how far back lifecycle events and deleted nodes are shown (72 hours)"
    )
    retry_s: int = _setting(
        2, "first wait after a failed step; doubles up to `retry_limit_s`", live=(1, 3_600)
    )
    retry_limit_s: int = _setting(60, "longest wait between two tries of a step", live=(1, 86_400))
    fill_every_s: int = _setting(
        20, "a pool with unmet targets is planned again at least this often", live=(1, 3_600)
    )
    lease_s: int = _setting(60, "a worker that does not finish a visit within this loses it")
    preemptible_discount_percent: int = _setting(50, "what preemptible time costs less than standard time")
    event_aliases: bool = _setting(True, "show events under the documentation's older names, too")
    pod_events_limit: int = _setting(
        0, "pods of a draining node that get a Kubernetes event of their own, in their namespaces; 0: none"
    )
    audit_kept_days: int = _setting(
        0, "entries of the audit log are cleared away after so long; 0: never", live=(0, 36_500)
    )
    webhook_give_up_s: int = _setting(
        86_400, "an event that no webhook receiver takes is given up after this long", live=(60, 2_592_000)
    )
    webhook_private: bool = _setting(False, "webhooks may go to loopback and private addresses")
    rate_limit_per_s: int = _setting(
        100, "requests a second that one key may send; 0: no limit", live=(0, 1_000_000)
    )
    rate_limit_burst: int = _setting(500, "requests that a rested key may send at once", live=(1, 10_000_000))
    capacity_shown_gpus: int = _setting(
        64, "tenants who ask what is free are told of so many GPUs at most; operators see all"
    )
    history_days: int = _setting(30, "fill times and node lives are those of so many days")
    history_samples: int = _setting(
        20, "below so many that ended there is no figure, but `not enough history`"
    )
    max_body_bytes: int = _setting(1_048_576, "largest request body that is read")

    provider: str = _setting(
        "simulated", "where machines and control planes come from: `simulated`, `kwok` or `exec`"
    )
    kwok_clusters_limit: int = _setting(
        4, "provider `kwok`: control planes at most on this machine; each takes some 600 MB of memory"
    )
    exec_create: str = _setting("", "provider `exec`: the program that starts machines, or its command line")
    exec_status: str = _setting(
        "", "provider `exec`: the program that says what became of one; else create is asked"
    )
    exec_stop: str = _setting(
        "", "provider `exec`: the program that powers one off, confirmed; else delete does"
    )
    exec_delete: str = _setting("", "provider `exec`: the program that gives one back and wipes its host")
    exec_list: str = _setting("", "provider `exec`: the program that lists a pool's machines; not needed")
    exec_reboot: str = _setting("", "provider `exec`: the program that restarts one in place; not needed")
    exec_limit_s: int = _setting(30, "how long one run of these programs may take; then it is killed")
    exec_at_once: int = _setting(
        16, "so many of these programs that act may run at once, and so many that look"
    )
    volume_limit_tib: int = _setting(1_000, "largest volume that can be ordered, in TiB", live=(1, 1_000_000))
    storage: str = _setting(
        "simulated", "where volumes come from: `simulated`, `program` (your executables) or `none` (refused)"
    )
    storage_provision_program: str = _setting("", "the executable that makes and grows volumes")
    storage_delete_program: str = _setting("", "the executable that deletes volumes")
    storage_program_limit_s: int = _setting(30, "how long one run of a storage program may take")
    storage_template: str = _setting(
        "", "a YAML file: the PersistentVolume that shows a volume in its cluster (CSI, NFS); see storage.md"
    )
    remediation_approval: str = _setting(
        "", "modes of remediation that an operator approves when a tenant asks, comma-separated", live=True
    )
    restart_limit_s: int = _setting(
        900,
        "a machine that is restarted and not back by then has its host quarantined and is replaced",
        live=(30, 86_400),
    )

    @property
    def drain(self) -> DrainPolicy:
        return DrainPolicy(
            window_s=self.drain_window_s,
            kill_margin_s=self.kill_margin_s,
            late_notice_s=self.late_notice_s,
            critical_reserve_s=self.critical_reserve_s,
            release_margin_s=self.release_margin_s,
            detach_limit_s=self.detach_limit_s,
            resync_s=self.drain_look_every_s,
        )

    @property
    def makes_clusters(self) -> bool:
        """Whether clusters can be ordered here; else they are imported."""
        return self.provider != "exec"

    @property
    def restarts_machines(self) -> bool:
        """Whether machines can be restarted in place."""
        return self.provider != "exec" or bool(self.exec_reboot)

    @property
    def offers_volumes(self) -> bool:
        """Whether volumes can be ordered. Simulated ones are of no use to real machines."""
        return self.storage == "program" or (self.storage == "simulated" and self.provider != "exec")

    def retry_in_s(self, failures: int) -> int:
        """How long to wait before the next try, after so many failures in a row."""
        wait_s: int = self.retry_s * 2 ** min(failures, 16)
        return min(self.retry_limit_s, wait_s)


Value = int | bool | str


@dataclass(frozen=True, slots=True)
class Setting:
    """What is declared of one setting. least, most: None for what is no number, or needs a restart."""

    name: str
    default: Value
    about: str
    live: bool
    least: int | None = None
    most: int | None = None


def _declared() -> Iterator[Setting]:
    for one in fields(Settings):
        assert one.default is not MISSING
        live = one.metadata["live"]
        least, most = live if isinstance(live, tuple) else (None, None)
        yield Setting(one.name, one.default, one.metadata["about"], bool(live), least, most)


DECLARED: Mapping[str, Setting] = {one.name: one for one in _declared()}


class LiveSettings(Settings):
    """The settings of a running process: those that are live change under whoever holds them.

    So a value is read where it is needed, and not kept. base: what the process was started with.
    """

    __slots__ = ("base",)
    base: Settings

    def __init__(self, base: Settings, stored: Mapping[str, Value] | None = None) -> None:
        object.__setattr__(self, "base", base)
        for name in DECLARED:
            object.__setattr__(self, name, getattr(base, name))
        self.take(stored or {})

    def take(self, stored: Mapping[str, Value]) -> None:
        """Let these values apply from now on, and the base's where there is none.

        What another version stored, and this one does not take, is passed over.
        """
        for one in DECLARED.values():
            if one.live:
                value = stored.get(one.name, getattr(self.base, one.name))
                fits = one.name not in stored or _fits(one, value)
                object.__setattr__(self, one.name, value if fits else getattr(self.base, one.name))


def _fits(one: Setting, value: object) -> bool:
    try:
        check_value(one, value)
    except BadInput:
        return False
    return True


def check_value(one: Setting, value: object) -> Value:
    """A value that a setting may have. Raises BadInput saying what it may be."""
    if isinstance(one.default, bool):
        if isinstance(value, bool):
            return value
        raise BadInput(f"{one.name} must be true or false", param=one.name)
    if isinstance(one.default, str):
        if isinstance(value, str):
            return value.strip()
        raise BadInput(f"{one.name} must be a text", param=one.name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadInput(f"{one.name} must be a whole number", param=one.name)
    if one.least is not None and one.most is not None and not one.least <= value <= one.most:
        raise BadInput(f"{one.name} is between {one.least:,} and {one.most:,}, got {value:,}", param=one.name)
    return value


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings:
    """Settings from EBBTIDE_* variables. Raises StartupError naming the variable and what it should hold."""
    changes: dict[str, object] = {}
    for one in fields(Settings):
        assert one.default is not MISSING
        text = environment.get(variable(one.name))
        if text is not None:
            changes[one.name] = _read(variable(one.name), text, one.default)
    return replace(Settings(), **changes)  # type: ignore[arg-type]  # names and types come from the fields


def _read(name: str, text: str, default: object) -> object:
    if isinstance(default, bool):
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off"):
            return False
        raise StartupError(f"{name}={text!r}: write true or false")
    if isinstance(default, str):
        return text.strip()
    try:
        value = int(text)
    except ValueError:
        raise StartupError(f"{name}={text!r}: write a whole number") from None
    if value < 0:
        raise StartupError(f"{name}={text!r}: write a number of 0 or more")
    return value
