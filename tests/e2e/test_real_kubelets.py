"""The whole of it once: real kubelets, real containers, real signals, a volume that both machines reach."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.e2e import objects
from tests.e2e.processes import until
from tests.e2e.scene import WINDOW_S, Scene, join
from tests.e2e.story import orderly, story

STEPS = 150
GRACE_S = 300  # what the job asks for; it gets what fits the window
SAVED = re.compile(r"leaving: step (\d+) is saved")


@pytest.fixture(autouse=True)
def _the_service_answers(scene: Scene) -> Iterator[None]:
    """Whatever happens to preemptible nodes, what stands on the cluster's own answers every request."""
    before = scene.polled()["asked"]
    yield
    polled = until(lambda: found if (found := scene.polled())["asked"] > before else None, "it is asked")
    assert polled["failed"] == [], f"of {polled['asked']} requests"


def test_a_job_saves_and_its_replacement_goes_on(scene: Scene) -> None:
    """A7, C4, I2: SIGTERM, save, an empty node leaves before its machine is stopped; the work goes on."""
    with story(scene, "training") as told:
        first = told.start("train.py", str(STEPS), grace_s=GRACE_S)
        log = told.log_of(first)
        deadline = told.claim()
        told.ended()
        until(lambda: log.ended or None, "the log ends")
        lines = log.text().splitlines()
        log.stop()

        said = SAVED.search(lines[-1])
        assert said, lines
        saved = int(said[1])
        written = told.written()
        assert written[-1] == {**written[-1], "pod": first, "step": saved}, "it saved all that it did"

        went_at = told.node_went_at()
        assert went_at < deadline, "an empty node leaves at once"
        assert went_at < told.stopped_at(), "the Node goes while its machine still runs"
        for state in ("False", "Unknown"):
            assert told.watch.after(deadline - WINDOW_S, told.node["name"], state) is None, (
                "nobody sees it NotReady"
            )

        told.give_back_the_other()
        second = until(lambda: next(iter(told.pods_that_wrote()[1:]), None), "the replacement writes")
        assert scene.running_node()["host"] != told.node["host"]
        assert f"resumed after step {saved}" in scene.kubectl("logs", second)
        resumed = next(line for line in told.written() if line["pod"] == second)
        assert resumed["step"] == saved + 1
        told.completes()
        assert [line["step"] for line in told.written()] == list(range(STEPS)), "no step twice, none left out"
        assert orderly(told.written())


def test_a_pod_that_does_not_end_is_cut_off_before_its_node_goes(scene: Scene) -> None:
    """A8, C8: it ignores SIGTERM, and SIGKILL never comes. The machine is off first, then the Node goes; the
    volume never has two writers.
    """
    with story(scene, "stubborn") as told:
        first = told.start("stubborn.py", grace_s=GRACE_S)
        log = told.log_of(first)
        deadline = told.claim()
        until(lambda: "told to go, staying" in log.text() or None, "SIGTERM arrives")
        scene.lab.freeze(told.node["host"], "containerd")
        told.ended()
        went_at, stopped_at = told.node_went_at(), told.stopped_at()
        assert stopped_at >= deadline, "it had its time"
        assert stopped_at < went_at, "the Node object stands until nothing runs there any more"
        last = told.written()[-1]
        assert last["pod"] == first
        assert deadline - 1 < last["at"] < stopped_at, "it wrote until its machine was off"
        log.stop()

        told.give_back_the_other()
        told.completes()
        assert len(told.pods_that_wrote()) == 2
        assert orderly(told.written())
        most = max(len(hosts) for hosts in told.mounts.seen)
        assert most == 1, f"at once it was mounted at {told.mounts.seen}"


def test_a_machine_whose_kubelet_hangs_is_switched_off_before_its_work_is_given_to_another(
    scene: Scene,
) -> None:
    """A4: nobody tells that pod, and nobody may think that it has ended while its container writes."""
    with story(scene, "orphaned") as told:
        first = told.start("stubborn.py", grace_s=GRACE_S)
        scene.lab.freeze(told.node["host"], "kubelet")
        deadline = told.claim()
        told.ended()
        went_at, stopped_at = told.node_went_at(), told.stopped_at()
        assert stopped_at < went_at
        last = told.written()[-1]
        assert last["pod"] == first
        assert deadline - 1 < last["at"] < stopped_at, "it wrote until its machine was off"

        told.give_back_the_other()
        told.completes()
        assert orderly(told.written())


def test_a_machine_that_comes_back_from_the_dead_is_removed(scene: Scene) -> None:
    """C7: a kubelet of a node that the ledger calls removed registers again: that Node does not stay."""
    with story(scene, "zombie") as told:
        told.claim()
        told.ended()
        first_went_at = told.node_went_at()
        name = told.node["name"]
        join(scene, name, told.node["host"], {"ebbtide/node-uid": told.node["uid"]})
        try:
            came_at = until(lambda: told.watch.after(first_went_at, "ADDED", name), "it registers again")
            went_at = until(lambda: told.watch.after(came_at, "DELETED", name), "the Node goes")
            assert went_at - came_at < 30
            assert [each["uid"] for each in scene.nodes("RUNNING")] == [], "it counts for nothing"
        finally:
            scene.lab.call("delete", node_uid=f"by-hand-{name}", wipe="always")


def test_the_doctor_finds_no_problem(scene: Scene) -> None:
    """The cluster, its account and the programs, as an operator checks them before the first use."""
    findings = scene.doctor()
    assert [found for found in findings if found["result"] == "problem"] == []


def test_the_volume_is_the_one_that_ebbtide_made(scene: Scene) -> None:
    """The jobs' data lies where the storage program put it, and no pod names a path of its machine."""
    volume = scene.kubectl.one("persistentvolume", "demo-data")
    assert volume["spec"]["local"]["path"] == str(scene.volume_folder())
    assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
    assert "hostPath" not in str(objects.job("any", "image", [], gpus=1, grace_s=1))
