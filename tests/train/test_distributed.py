"""Two processes do what one does: the same losses and weights, every study once, and a lost process is noticed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import distributed_job as job
from conftest import write_toy_dataset
from radweave.data.dataset import Dataset
from radweave.data.loader import Example, StudyLoader
from radweave.data.transforms import LightAugmentation
from radweave.errors import InputError
from radweave.runs import restore, train
from radweave.storage import read_json
from radweave.train.distributed import Ranks
from radweave.types import Batch, Slice

HERE = Path(__file__).parent

# float32 holds 7 digits; a sum over ranks adds in another order than one over a batch. One step differs by some 1e-7 of
# the largest gradient, and AdamW divides small gradients by their own size, so weights drift by a share of the learning
# rate (1e-2 here, 1e-3 in the runs) per step. A wrong weighting of slices shows at 1e-2.
LOSS_TOLERANCE = 2e-5
WEIGHT_TOLERANCE = 5e-4


def torchrun(*arguments: object, processes: int = 2) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    return [*launcher, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", *map(str, arguments)]


def environment() -> dict[str, str]:
    # Without the second one a restarted group may meet the store of the one that died.
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PYTHONPATH": str(HERE.parent),
    }


@pytest.fixture(scope="module")
def odd_dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """13 training studies, 3 to validate, 5 to test: nothing divides by two."""
    folder = tmp_path_factory.mktemp("odd")
    return write_toy_dataset(folder / "dataset", folder / "sources", counts=(13, 3, 5))


@pytest.fixture(scope="module")
def two_processes(odd_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the ranks of ``distributed_job.py`` have filled."""
    out = tmp_path_factory.mktemp("two")
    done = subprocess.run(
        torchrun(HERE / "distributed_job.py", out, odd_dataset.path), env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return out


@pytest.fixture(scope="module")
def one_process(odd_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same training in this process."""
    return train("baseline", odd_dataset.path, tmp_path_factory.mktemp("one") / "run", overrides=job.OVERRIDES)


def metrics(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "studies_per_s"} for row in rows]


def largest_difference(left: Path, right: Path) -> float:
    one, other = load_file(left / "weights.safetensors"), load_file(right / "weights.safetensors")
    assert one.keys() == other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_contrast_batch_norm_and_uneven_means_are_those_of_one_process(
    two_processes: Path, tmp_path: Path, parallel: str
) -> None:
    two = read_json(two_processes / "results.json")[f"fit {parallel}"]
    one = job.fit(tmp_path, Ranks(), "ddp")
    assert torch.tensor(one["losses"]).shape == (12, 5)
    assert torch.allclose(torch.tensor(two["losses"]), torch.tensor(one["losses"]), rtol=0, atol=LOSS_TOLERANCE)
    for name, weights in one["weights"].items():
        difference = (torch.tensor(two["weights"][name]).double() - torch.tensor(weights).double()).abs().max()
        assert difference < WEIGHT_TOLERANCE, name


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_run_of_two_processes_is_that_of_one(two_processes: Path, one_process: Path, parallel: str) -> None:
    run = two_processes / parallel
    ours, theirs = metrics(run), metrics(one_process)
    assert len(ours) == len(theirs) == 8
    for left, right in zip(ours, theirs, strict=True):
        figures = [row.pop("validation", {}) for row in (left, right)]
        for one, other in ((left, right), figures):
            assert one == pytest.approx(other, rel=LOSS_TOLERANCE)
    assert largest_difference(run, one_process) < WEIGHT_TOLERANCE
    # A checkpoint does not show how many processes wrote it.
    for checkpoint in ("best", "step-00000006"):
        files = [folder / "checkpoints" / "report" / checkpoint for folder in (run, one_process)]
        for name in ("model.safetensors", "optimizer.safetensors"):
            if (files[1] / name).exists():
                shapes = [{key: value.shape for key, value in load_file(file / name).items()} for file in files]
                assert shapes[0] == shapes[1]
    assert read_json(run / "run.json")["validation"].keys() == read_json(one_process / "run.json")["validation"].keys()
    assert restore(run).card.is_trained
