"""With the real torch: torchrun, torch.distributed, distributed checkpoints.

Needs torch and numpy; one test needs lightning.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from jobs import Job, Jobs

from ebbtide_workload.checkpoint import Checkpoints

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torch is not installed; the ring of framework tests installs it",
)

TRAIN = """
import torch, torch.distributed as dist
import torch.distributed.checkpoint as dcp
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = torch.nn.Linear(4, 4)
how = sys.argv[2]

def save(folder):
    time.sleep(float(sys.argv[3]))
    if how == "all":
        dcp.save({"model": model.state_dict(), "step": step}, checkpoint_id=folder)
    else:
        torch.save({"model": model.state_dict(), "step": step}, folder / "model.pt")

def load(folder):
    state = {"model": model.state_dict(), "step": 0}
    if how == "all":
        dcp.load(state, checkpoint_id=folder)
    else:
        state = torch.load(folder / "model.pt", weights_only=True)
    print("loaded step", state["step"], flush=True)

guard = Guard(sys.argv[1], writes=how)
for step in range(guard.resume(load), int(sys.argv[4])):
    total = torch.ones(1)
    dist.all_reduce(total)
    time.sleep(0.02)
    guard.step(step, save)
    if step % 10 == 5:
        print("trained", step, flush=True)
dist.barrier()
print("finished", flush=True)
"""


def torchrun(
    jobs: Jobs, script: Path, *args: str | int | Path, flags: tuple[str, ...] = (), grace: str = "60"
) -> Job:
    return jobs.ebb(
        *("run", "--grace", "60", "--"),
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *flags),
        script,
        *map(str, args),
    )


@pytest.mark.parametrize("how", ["rank0", "all"])
def test_torchrun_saves_in_the_window_and_resumes(tmp_path: Path, jobs: Jobs, how: str) -> None:
    script = jobs.script(TRAIN)
    job = torchrun(jobs, script, tmp_path / "ck", how, 1, 10**6)
    job.until("trained", times=2)
    job.signal()
    assert job.end() == 85, job.out
    newest = Checkpoints(tmp_path / "ck").newest()
    assert newest is not None
    again = torchrun(jobs, script, tmp_path / "ck", how, 0, newest.step + 4)
    assert again.end() == 0, again.out
    assert again.out.count(f"loaded step {newest.step}\n") == 2, again.out
    assert again.out.count("finished") == 2


def test_a_save_longer_than_the_launchers_own_limit_completes(tmp_path: Path, jobs: Jobs) -> None:
    """J1, with the launcher's limit set low by hand: its workers are told directly."""
    job = torchrun(
        jobs, jobs.script(TRAIN), tmp_path / "ck", "rank0", 6, 10**6, flags=("--shutdown-timeout=2",)
    )
    job.until("trained", times=2)
    job.signal()
    assert job.end() == 85, job.out
    assert "would kill its workers after" in job.out
    assert Checkpoints(tmp_path / "ck").newest() is not None


def test_the_launcher_reads_the_limit_that_we_give_it(tmp_path: Path, jobs: Jobs) -> None:
    job = torchrun(jobs, jobs.script(TRAIN), tmp_path / "ck", "rank0", 1, 10**6)
    job.until("trained", times=2)
    job.signal()
    assert job.end() == 85, job.out
    told = re.findall(r"telling (.*)", job.out)
    assert len(told) == 1, job.out
    assert "torch.distributed.run" in told[0]


DOC = Path(__file__).parents[2] / "docs" / "workloads" / "checkpoint.md"
LIGHTNING = """
import lightning, torch
from torch.utils.data import DataLoader, TensorDataset

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, number):
        time.sleep(0.02)
        if number % 10 == 5:
            print("trained", self.global_step, "pid", os.environ["RANK"], os.getpid(), "end", flush=True)
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

torch.distributed.init_process_group("gloo")
guard = Guard(sys.argv[1], writes="all")
found = []
print("first", guard.resume(found.append), flush=True)
trainer = lightning.Trainer(
    max_steps=int(sys.argv[2]), max_epochs=-1, callbacks=[Ebbtide(guard)], logger=False,
    enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu", devices=2,
)
data = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4)
trainer.fit(Model(), data, ckpt_path=str(found[0] / "state.ckpt") if found else None)
print("finished at", trainer.global_step, flush=True)
"""


@pytest.mark.skipif(
    importlib.util.find_spec("lightning") is None,
    reason="lightning is not installed; the ring of framework tests installs it",
)
def test_lightning_with_one_noticed_rank_saves_and_leaves_on_both(tmp_path: Path, jobs: Jobs) -> None:
    """J3 with the framework that it was reported for, and the callback as documented."""
    (callback,) = re.findall(r"```python\n(class Ebbtide.*?)```", DOC.read_text(encoding="utf-8"), re.DOTALL)
    head, body = LIGHTNING.split("class Model", 1)
    script = jobs.script(f"{head}{callback}\nclass Model{body}")
    job = torchrun(jobs, script, tmp_path / "ck", 10**6)
    job.until("pid 1 ", times=2)
    os.kill(int(re.findall(r"pid 1 (\d+) end", job.out)[0]), signal.SIGTERM)
    assert job.end() == 85, job.out
    assert job.out.count("is saved") == 2, job.out
    newest = Checkpoints(tmp_path / "ck").newest()
    assert newest is not None
    again = torchrun(jobs, script, tmp_path / "ck", newest.step + 4)
    assert again.end() == 0, again.out
    assert again.out.count(f"first {newest.step + 1}\n") == 2
    assert again.out.count(f"finished at {newest.step + 4}\n") == 2
