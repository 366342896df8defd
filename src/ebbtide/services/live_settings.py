"""Settings that change at run time: shown with where each value comes from, changed for every process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ebbtide.core import remediations as rules
from ebbtide.errors import BadInput
from ebbtide.services.access import require_operator
from ebbtide.services.audit import record
from ebbtide.services.details import Caller
from ebbtide.settings import DECLARED, LiveSettings, Setting, Settings, Value, check_value, variable
from ebbtide.store import clusters, pools, settings, visits
from ebbtide.store.db import Database, Tx
from ebbtide.store.settings import StoredSetting
from ebbtide.store.visits import Loop

# Whose visits are made due by a change: what rests until "then" should not rest until an old "then".
_WAKES = {
    Loop.FULFILLMENT: {"cooldown_s", "fill_backoff_s", "fill_every_s", "max_joining"},
    Loop.LEAKS: {"leaks_every_s"},
    Loop.OBSERVATION: {"observe_every_s", "lost_after_s"},
}


@dataclass(frozen=True, slots=True)
class SettingDetails:
    """source: `stored`, else `environment` (or a flag of this process), else `default`.

    environment: what this process was started with. stored: None where nothing is.
    """

    name: str
    variable: str
    about: str
    live: bool
    value: Value
    source: str
    default: Value
    environment: Value
    stored: Value | None
    least: int | None
    most: int | None
    changed_at: datetime | None
    changed_by: str | None


class SettingsService:
    """live: what everything in this process was given."""

    def __init__(self, db: Database, live: LiveSettings) -> None:
        self._db = db
        self._live = live

    async def list(self, caller: Caller) -> tuple[SettingDetails, ...]:
        """Every setting (operators); those that are live first."""
        require_operator(caller)
        async with self._db.read() as tx:
            stored = await settings.all_(tx)
        return self._details(stored)

    async def change(
        self, caller: Caller, values: Mapping[str, object], reset: Sequence[str] = ()
    ) -> tuple[SettingDetails, ...]:
        """Store values for all processes, and forget others (operators). All or nothing.

        Raises BadInput: a setting that there is not, one that needs a restart, a value that does not fit, or
        does not fit the others.
        """
        require_operator(caller)
        for name in (*values, *reset):
            _live(name)
        if twice := set(values) & set(reset):
            raise BadInput(f"{min(twice)} is set and reset at once; do one of them", param=min(twice))
        wanted = {name: check_value(DECLARED[name], value) for name, value in values.items()}

        async def work(tx: Tx) -> dict[str, StoredSetting]:
            await settings.lock(tx)
            before = await settings.all_(tx)
            now = {name: one.value for name, one in before.items() if name not in reset} | wanted
            _check_together(LiveSettings(self._live.base, now), {*wanted, *reset})
            changed = {name for name in (*wanted, *reset) if _of(before, name) != now.get(name)}
            for name in sorted(changed):
                await _store(tx, name, now.get(name), caller)
            if changed:
                told = {name: _of(before, name) for name in sorted(changed)}
                after = {name: now.get(name) for name in sorted(changed)}
                await record(tx, caller, "settings.update", "settings", before=told, after=after)
                await _wake(tx, changed)
            return await settings.all_(tx)

        stored = await self._db.run(work)
        self._take(stored)
        return self._details(stored)

    async def refresh(self) -> None:
        """Let what is stored apply in this process. Called at its start, and every few seconds."""
        async with self._db.read() as tx:
            stored = await settings.all_(tx)
        self._take(stored)

    def _take(self, stored: Mapping[str, StoredSetting]) -> None:
        self._live.take({name: one.value for name, one in stored.items()})

    def _details(self, stored: Mapping[str, StoredSetting]) -> tuple[SettingDetails, ...]:
        found = [_setting(one, self._live, stored.get(one.name)) for one in DECLARED.values()]
        return tuple(sorted(found, key=lambda one: not one.live))


def _setting(one: Setting, live: LiveSettings, stored: StoredSetting | None) -> SettingDetails:
    environment: Value = getattr(live.base, one.name)
    stored = stored if one.live else None
    source = "stored" if stored else "default" if environment == one.default else "environment"
    return SettingDetails(
        name=one.name,
        variable=variable(one.name),
        about=one.about,
        live=one.live,
        value=getattr(live, one.name),
        source=source,
        default=one.default,
        environment=environment,
        stored=stored.value if stored else None,
        least=one.least,
        most=one.most,
        changed_at=stored.changed_at if stored else None,
        changed_by=stored.changed_by if stored else None,
    )


def _live(name: str) -> None:
    one = DECLARED.get(name)
    if one is None:
        raise BadInput(f"there is no setting {name[:80]!r}; `ebbtide fleet settings` lists them", param=name)
    if not one.live:
        raise BadInput(
            f"{name} changes only with a restart: set {variable(name)} for every process. "
            f"`ebbtide fleet settings` lists what can change while they run.",
            param=name,
        )


def _check_together(settings: Settings, changed: set[str]) -> None:
    """Raise BadInput for values that are each good and do not go together, if any of them changed."""
    pairs = (
        ("retry_s", "retry_limit_s", "the longest wait is the first one at least"),
        ("observe_every_s", "lost_after_s", "nodes would be lost between two looks at them"),
    )
    for less, more, why in pairs:
        low, high = getattr(settings, less), getattr(settings, more)
        if low > high and changed & {less, more}:
            named = min(changed & {less, more})
            raise BadInput(
                f"{less} is {low} and {more} would be {high}: {why}"
                if named == more
                else f"{less} would be {low} and {more} is {high}: {why}",
                param=named,
            )
    if "remediation_approval" in changed:
        try:
            rules.read_modes(settings.remediation_approval)
        except BadInput as wrong:
            raise BadInput(wrong.message, param="remediation_approval") from None


def _of(stored: Mapping[str, StoredSetting], name: str) -> Value | None:
    found: Value | None = stored[name].value if name in stored else None
    return found


async def _store(tx: Tx, name: str, value: Value | None, caller: Caller) -> None:
    if value is None:
        await settings.drop(tx, name)
    else:
        await settings.put(tx, name, value, caller.key_id)


async def _wake(tx: Tx, changed: set[str]) -> None:
    names = [pool.name for pool in await pools.all_(tx)]
    for loop in (Loop.FULFILLMENT, Loop.LEAKS):
        if changed & _WAKES[loop]:
            await visits.hint(tx, loop, names)
    if changed & _WAKES[Loop.OBSERVATION]:
        await visits.wake_existing(tx, Loop.OBSERVATION, [row.id for row in await clusters.live(tx)])
