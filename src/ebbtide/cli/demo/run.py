"""Setting the stage and telling the story beside a running system."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import replace
from pathlib import Path

from ebbtide.assembly import System
from ebbtide.cli import output
from ebbtide.cli.connection import Connection
from ebbtide.cli.demo.narrator import Narrator
from ebbtide.cli.demo.scene import Scene
from ebbtide.cli.demo.simulated import SimulatedScene
from ebbtide.cli.demo.stage import Interrupted, Stage, StoryFailed, Tenant
from ebbtide.cli.demo.story import play
from ebbtide.cli.server import DEMO_DRAIN_WINDOW_ON_KUBERNETES_S, DEMO_DRAIN_WINDOW_S
from ebbtide.client import Client
from ebbtide.errors import EbbtideError
from ebbtide.services.details import Role
from ebbtide.settings import Settings

KWOK = "kwok"
_WATCH_S = 20
_LENDER = ("story-tidal-labs", "Tidal Labs", "cyan")
_STANDARD = ("story-harbor-ai", "Harbor AI", "magenta")


def demo_settings(settings: Settings) -> Settings:
    """The settings that make a story of a minute. All of them are told before it begins."""
    kubernetes = settings.provider == KWOK
    return replace(
        settings,
        # Meanwhile a second control plane starts, and keeps the processors busy.
        drain_window_s=DEMO_DRAIN_WINDOW_ON_KUBERNETES_S if kubernetes else DEMO_DRAIN_WINDOW_S,
        cooldown_s=3,
        observe_every_s=1,
        fill_every_s=2,
        meter_every_s=2,
    )


async def tell_story(
    system: System, found: Connection, data: Path, asked_to_stop: threading.Event, *, watched: bool
) -> bool:
    """Play the story through the HTTP API and print it; answers whether every step happened.

    data: the data folder, for kubeconfigs. watched: there may be people who want to see it in a terminal
    """
    lender = await _tenant(system, found.url, *_LENDER)
    standard = await _tenant(system, found.url, *_STANDARD)
    operator = Client(found.url, found.key)
    settings = system.settings
    stage = Stage(operator, lender, standard, settings.drain_window_s, settings.cooldown_s, asked_to_stop)
    try:
        return await asyncio.to_thread(_tell, stage, settings, data, watched)
    finally:
        for client in (operator, lender.client, standard.client):
            client.close()


async def _tenant(system: System, url: str, slug: str, name: str, style: str) -> Tenant:
    issued = await system.first_key(Role.ADMIN, slug, name)
    return Tenant(name, issued.details.project_id, Client(url, issued.secret), style)


def _scene(stage: Stage, settings: Settings, data: Path, watched: bool) -> Scene:
    """Where it plays: in real clusters, where there are any."""
    if settings.provider == KWOK:
        from ebbtide.cli.demo.kubernetes import KubernetesScene

        return KubernetesScene(stage.lender.client, data, _WATCH_S if watched else 0)
    return SimulatedScene(stage.operator)


def _tell(stage: Stage, settings: Settings, data: Path, watched: bool) -> bool:
    with contextlib.closing(_scene(stage, settings, data, watched)) as scene:
        return _tell_on(stage, settings, scene)


def _tell_on(stage: Stage, settings: Settings, scene: Scene) -> bool:
    narrator = Narrator()
    usual = Settings()
    narrator.title(
        "One story, told by the public API",
        *scene.about,
        "The stage: region story-1, four hosts of 8 GPUs. So that it takes a minute or two:",
        f"drain window {settings.drain_window_s} s instead of {usual.drain_window_s} s, "
        f"rest of returned hosts {settings.cooldown_s} s instead of {usual.cooldown_s} s,",
        f"meter every {settings.meter_every_s} s instead of {usual.meter_every_s} s.",
    )
    try:
        play(stage, narrator, scene)
    except Interrupted:
        return False
    except StoryFailed as failed:
        output.complain(f"the story stopped at T+{narrator.since_begin_s():.0f} s: {failed.message}")
        return False
    except EbbtideError as error:
        output.complain(f"the story stopped at T+{narrator.since_begin_s():.0f} s, refused: {error.message}")
        return False
    narrator.title(f"That was it: every step checked against the API, in {narrator.since_begin_s():.0f} s.")
    return True
