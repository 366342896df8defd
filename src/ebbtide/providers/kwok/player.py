"""The kwok process of one cluster: it plays the kubelets of all machines that are on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from ebbtide.kube.keeper import Kept
from ebbtide.providers.kwok.kubelet import LABEL_ON, ON
from ebbtide.providers.kwok.machines import Machine

STAGES = Path(__file__).with_name("stages.yaml")


class Player:
    """At most one kwok at a time.

    A machine is off for kwok when its Node has lost its label before kwok started, or when kwok was told so
    while it had nothing planned for the machine's pods, or when kwok is dead.
    """

    def __init__(self, program: Path, folder: Path) -> None:
        """folder: the control plane's; the log goes to `logs/kwok.log` in it."""
        self._program = program
        self._folder = folder
        self._kept: Kept | None = None

    @property
    def running(self) -> bool:
        return self._kept is not None and self._kept.exit_code is None

    async def start(
        self,
        kubeconfig: Path,
        silent_ones: Callable[[], list[Machine]],
        silence: Callable[[Machine], Awaitable[object]],
    ) -> None:
        """Take the label from the Nodes of machines that are silent, then play. Running already: nothing.

        silent_ones:  the machines of this cluster that have no running kubelet, as of now
        silence:      takes the label away; what it raises passes through, and nothing is started
        """
        if self.running:
            return
        silent: set[tuple[str, int]] = set()
        # One that is switched off while this waits for another must not be missed: nothing waits in between
        # the last look and the start.
        while left := [one for one in silent_ones() if (one.node_uid, one.boots) not in silent]:
            for machine in left:
                await silence(machine)
                silent.add((machine.node_uid, machine.boots))
        log = self._folder / "logs" / "kwok.log"
        if log.exists():
            log.replace(log.with_suffix(".log.1"))
        command: list[str | Path] = [
            self._program,
            f"--kubeconfig={kubeconfig}",
            f"--manage-nodes-with-label-selector={LABEL_ON}={ON}",
            "--node-lease-duration-seconds=0",  # its leases race its pods: see `Plane.beat`
            f"--config={STAGES}",
        ]
        with log.open("wb") as output:
            self._kept = Kept("kwok", command, output=output, folder=self._folder)

    async def kill(self) -> None:
        """End it at once; when this returns it plays nothing any more. Not running: nothing."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.kill()
            await kept.stop()
