"""Everything that the environment may say, read in one place.

| variable | meaning | default |
| --- | --- | --- |
| EBBTIDE_GRACE_S | seconds between the signal and the kill | what the pod's spec says, else 30 |
| EBBTIDE_SIGNALS | signals that are a notice, comma separated | TERM; in Slurm TERM,USR1 |
| EBBTIDE_NOTICE_FILE | file whose appearance is a notice | /tmp/ebbtide/notice in Kubernetes, else none |
| EBBTIDE_KUBERNETES | 0: never ask the Kubernetes API | asked in a cluster when the node's name is known |
| EBBTIDE_NODE_NAME, NODE_NAME | this pod's node (downward API spec.nodeName) | none |
| EBBTIDE_POD_NAME, POD_NAME | this pod's name (downward API metadata.name) | the host name |
| EBBTIDE_JOURNAL | file that gets one JSON line per event as well | none |
| EBBTIDE_PORT | port at which rank 0 meets the others | 29517 |
| EBBTIDE_KEY | word that ranks of one job share | the job's id where a launcher gives one |
| EBBTIDE_QUIET | 1: say nothing on stderr | talk |
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from typing import NamedTuple

DEFAULT_GRACE_S = 30.0
"""What Kubernetes gives a pod that asks for nothing."""

WINDOW_S = 297.0
"""The longest grace a pod gets in Ebbtide's five-minute drain: 300 s less the margin before the kill."""

DEFAULT_PORT = 29517
DEFAULT_NOTICE_FILE = "/tmp/ebbtide/notice"


class SettingError(ValueError):
    """An environment variable holds something that cannot be meant; the message names it."""


class Place(NamedTuple):
    """Which rank this process is and where rank 0 can be met."""

    rank: int
    world: int
    local_rank: int
    address: str
    port: int
    key: str


def in_kubernetes(env: Mapping[str, str] = os.environ) -> bool:
    """Whether this process runs in a pod."""
    return bool(env.get("KUBERNETES_SERVICE_HOST"))


def grace_s(env: Mapping[str, str] = os.environ) -> float | None:
    """Seconds from the signal to the kill, None when nobody told us. Raises SettingError for nonsense."""
    text = env.get("EBBTIDE_GRACE_S")
    if not text:
        return None
    value = _number("EBBTIDE_GRACE_S", text)
    if value <= 0:
        raise SettingError(f"EBBTIDE_GRACE_S is {text!r}; it must be more than 0 seconds")
    return value


def notice_signals(env: Mapping[str, str] = os.environ) -> tuple[signal.Signals, ...]:
    """The signals that mean "you are being preempted". Raises SettingError for an unknown name."""
    text = env.get("EBBTIDE_SIGNALS") or ("TERM,USR1" if env.get("SLURM_JOB_ID") else "TERM")
    return tuple(signal_named(word) for word in text.split(",") if word.strip())


def signal_named(word: str) -> signal.Signals:
    """`TERM`, `SIGTERM` or `15`. Raises SettingError when there is no such signal."""
    name = word.strip().upper()
    try:
        return (
            signal.Signals(int(name)) if name.isdigit() else signal.Signals["SIG" + name.removeprefix("SIG")]
        )
    except (KeyError, ValueError):
        raise SettingError(f"{word!r} is no signal here; use a name such as TERM or USR1") from None


def notice_file(env: Mapping[str, str] = os.environ) -> str | None:
    """The file whose appearance is a notice."""
    return env.get("EBBTIDE_NOTICE_FILE") or (DEFAULT_NOTICE_FILE if in_kubernetes(env) else None)


def node_name(env: Mapping[str, str] = os.environ) -> str | None:
    """This pod's node, None when the manifest does not pass it on or the Kubernetes API is not to be
    asked."""
    if env.get("EBBTIDE_KUBERNETES") == "0" or not in_kubernetes(env):
        return None
    return env.get("EBBTIDE_NODE_NAME") or env.get("NODE_NAME") or None


def pod_name(env: Mapping[str, str] = os.environ) -> str | None:
    """This pod's own name: Kubernetes makes it the host name too."""
    return env.get("EBBTIDE_POD_NAME") or env.get("POD_NAME") or env.get("HOSTNAME") or None


def place(env: Mapping[str, str] = os.environ) -> Place:
    """This process among its peers, as torchrun, Kubernetes operators or Slurm tell it; alone when nobody
    does."""
    rank = _first(env, "RANK", "SLURM_PROCID", default="0")
    world = _first(env, "WORLD_SIZE", "SLURM_NTASKS", default="1")
    local = _first(env, "LOCAL_RANK", "SLURM_LOCALID", default="0")
    port = _first(env, "EBBTIDE_PORT", default=str(DEFAULT_PORT))
    key = next((env[k] for k in ("EBBTIDE_KEY", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID") if env.get(k)), "")
    return Place(
        rank=int(_number(*rank)),
        world=max(1, int(_number(*world))),
        local_rank=int(_number(*local)),
        address=env.get("MASTER_ADDR") or "127.0.0.1",
        port=int(_number(*port)),
        key=key,
    )


def running_under_torch() -> bool:
    """Whether torch.distributed is initialised in this process; torch is not imported to find out."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and bool(dist.is_available()) and bool(dist.is_initialized())


def _first(env: Mapping[str, str], *names: str, default: str) -> tuple[str, str]:
    for name in names:
        if env.get(name):
            return name, env[name]
    return names[0], default


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SettingError(f"{name} is {text!r}; it must be a number") from None
