"""SIGKILL at random moments of training: what is lost are the steps since the last checkpoint, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

KILL_LOOP = """
import json, os, random, signal, sys, time
from pathlib import Path
import torch
from torch import nn
from radweave.engine.loop import StageTrainer
from radweave.methods.stage import OptimizerConfig, StageConfig
from radweave.core.batch import Batch

torch.set_num_threads(1)  # no thread pool that a fork would lose


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.part = nn.Sequential(nn.Linear(4, 64), nn.BatchNorm1d(64), nn.Dropout(0.3), nn.Linear(64, 1))

    def loss(self, batch, terms=("fit",)):
        return {"fit": (self.part(batch.pixel_values) - batch.pixel_values.sum(1, keepdim=True)).square().mean()}


EPOCHS = 3 * int(sys.argv[2]) + 3  # 15 updates for each kill, which comes after some 6: none finds a finished run


class Batches:
    steps_per_epoch = 5

    def epoch(self, epoch=0, first_step=0):
        for step in range(first_step, 5):
            values = torch.randn(6, 4, generator=torch.Generator().manual_seed(5 * epoch + step))
            yield Batch(study_ids=["s"] * 6, patient_ids=["p"] * 6, pixel_values=values)


def train(folder):
    model = Line()
    stage = StageConfig(
        finetune={"part": "full"}, losses={"fit": 1.0}, optimizer=OptimizerConfig(learning_rate=0.01, warmup_steps=3),
        epochs=EPOCHS, checkpoint_every=2, select="last",
    )
    StageTrainer(
        model=model, stage=stage, batches=Batches(), name="line", seed=0, folder=folder,
        validate=lambda: {"loss": 0.0}, fingerprint="f",
    ).run()
    return model


def steps(folder):
    return max((int(path.name[5:]) for path in (folder / "checkpoints/line").glob("step-*")), default=0)


def logged(folder):
    # The last line may be half written.
    path = folder / "metrics.jsonl"
    lines = path.read_text().split("\\n")[:-1] if path.is_file() else []
    return json.loads(lines[-1])["step"] if lines else 0


root, rounds = Path(sys.argv[1]), int(sys.argv[2])
(root / "whole").mkdir(); (root / "killed").mkdir()
unbroken = train(root / "whole")
random.seed(0)
killed = reached = 0
for _ in range(rounds):
    child = os.fork()
    if child == 0:
        train(root / "killed")
        os._exit(0)
    # Not by the clock: on a busy machine a child would be killed before it began, or not at all.
    until = reached + random.randint(1, 6)
    while logged(root / "killed") < until:
        time.sleep(0.0005)
    time.sleep(random.uniform(0, 0.002))
    os.kill(child, signal.SIGKILL)
    killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert steps(root / "killed") >= reached, "a checkpoint was lost"
    reached = steps(root / "killed")
resumed = train(root / "killed")
for (name, one), other in zip(unbroken.state_dict().items(), resumed.state_dict().values(), strict=True):
    assert torch.equal(one, other), name
rows = [json.loads(line) for line in (root / "killed/metrics.jsonl").read_text().splitlines()]
assert [row["step"] for row in rows if "validation" not in row] == list(range(1, 5 * EPOCHS + 1))
left = [path.name for path in (root / "killed").rglob("*") if path.name.endswith((".partial", ".old"))]
assert not left, left
print("rounds", rounds, "killed", killed, "reached", reached)
"""


@pytest.mark.long
@pytest.mark.parametrize("rounds", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_a_repeatedly_killed_training_equals_an_uninterrupted_one(tmp_path: Path, rounds: int) -> None:
    done = subprocess.run([sys.executable, "-c", KILL_LOOP, str(tmp_path), str(rounds)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"rounds {rounds} killed {rounds} ")


@pytest.mark.parametrize("rounds", [pytest.param(20, marks=pytest.mark.slow)])
def test_commands_killed_at_random_moments_leave_nothing_and_end_equal(tmp_path: Path, rounds: int) -> None:
    script = Path(__file__).with_name("kill_rounds.py")
    command = [sys.executable, str(script), str(tmp_path / "rounds"), str(rounds), "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["killed"] == counts["equal"] == rounds
    assert counts["left after the next start"] == 0
    assert len([name for name in counts if " by SIG" in name]) == 10
