from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from ebbtide_workload import settings


def test_sigterm_is_the_notice_and_in_slurm_sigusr1_too() -> None:
    assert settings.notice_signals({}) == (signal.SIGTERM,)
    assert settings.notice_signals({"SLURM_JOB_ID": "7"}) == (signal.SIGTERM, signal.SIGUSR1)
    assert settings.notice_signals({"SLURM_JOB_ID": "7", "EBBTIDE_SIGNALS": "sigusr2, 15"}) == (
        signal.SIGUSR2,
        signal.SIGTERM,
    )


@pytest.mark.parametrize(
    ("env", "names"),
    [
        ({"EBBTIDE_SIGNALS": "TERMINATE"}, "TERMINATE"),
        ({"EBBTIDE_SIGNALS": "99"}, "99"),
    ],
)
def test_an_unknown_signal_is_named(env: dict[str, str], names: str) -> None:
    with pytest.raises(settings.SettingError, match=names):
        settings.notice_signals(env)


@pytest.mark.parametrize("text", ["soon", "0", "-3"])
def test_nonsense_for_the_grace_is_refused(text: str) -> None:
    with pytest.raises(settings.SettingError, match="EBBTIDE_GRACE_S"):
        settings.grace_s({"EBBTIDE_GRACE_S": text})


def test_the_grace_is_unknown_until_told() -> None:
    assert settings.grace_s({}) is None
    assert settings.grace_s({"EBBTIDE_GRACE_S": "297"}) == 297.0


def test_the_rank_is_found_with_torchrun_and_with_slurm() -> None:
    torchrun = {
        "RANK": "3",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "a",
        "TORCHELASTIC_RUN_ID": "j",
    }
    assert settings.place(torchrun) == (3, 8, 1, "a", settings.DEFAULT_PORT, "j")
    slurm = {
        "SLURM_PROCID": "2",
        "SLURM_NTASKS": "4",
        "SLURM_LOCALID": "0",
        "SLURM_JOB_ID": "9",
        "EBBTIDE_PORT": "5",
    }
    assert settings.place(slurm) == (2, 4, 0, "127.0.0.1", 5, "9")
    assert settings.place({})[:2] == (0, 1)


def test_the_cluster_is_asked_only_in_a_cluster_and_only_about_a_known_node() -> None:
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert settings.node_name({"NODE_NAME": "n"}) is None
    assert settings.node_name(pod) is None
    assert settings.node_name({**pod, "NODE_NAME": "n"}) == "n"
    assert settings.node_name({**pod, "NODE_NAME": "n", "EBBTIDE_KUBERNETES": "0"}) is None
    assert settings.notice_file({}) is None
    assert settings.notice_file(pod) == settings.DEFAULT_NOTICE_FILE


def test_every_variable_is_documented() -> None:
    package = Path(settings.__file__).parent
    used = {
        name
        for path in package.glob("*.py")
        for name in re.findall(r"\bEBBTIDE_[A-Z_]+\b", path.read_text(encoding="utf-8"))
    }
    used.discard("EBBTIDE_REHEARSAL_FILE")  # between a rehearsal and its job, not for people
    readme = (package.parents[1] / "README.md").read_text(encoding="utf-8")
    assert {name for name in used if name not in readme} == set()
    assert {name for name in used if name not in str(settings.__doc__)} == set()
