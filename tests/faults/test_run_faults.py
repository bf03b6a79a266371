"""Faults of spec rows 22-28 and 34, as far as training and run folders meet them: one test per row."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

from radweave.core.errors import InputError
from radweave.data.dataset import Dataset
from radweave.engine.restore import restore
from radweave.engine.run_folder import hash_files, locked, read_card_alone
from radweave.engine.train import train
from radweave.inference.predictor import Predictor
from tests.image_files import write_dicom
from tests.toys import TOY_OVERRIDES, TOY_SIZES, rewrite_card, write_toy_dataset

OVERRIDES = [*TOY_OVERRIDES, *TOY_SIZES["baseline"], "stages.report.epochs=1"]


def test_row_10_a_doubtful_image_gets_no_report_unless_forced(toy_run: Path, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (256, 256)).astype(np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    predictor = Predictor.of(restore(toy_run))
    with pytest.raises(InputError, match=r"noise\.png: image integrity doubtful.*--force"):
        predictor.report([tmp_path / "noise.png"])
    report = predictor.report([tmp_path / "noise.png"], force=True)
    assert any("image integrity doubtful" in warning for warning in report.warnings)
    mirrored = write_dicom(tmp_path / "mirrored.dcm", ViewPosition="PA", PatientOrientation=["R", "F"])
    with pytest.raises(InputError, match=r"mirrored\.dcm: image integrity doubtful: .*mirrored or turned.*--force"):
        predictor.report([mirrored])


def _rehash(folder: Path) -> None:
    rewrite_card(folder, files=hash_files(folder))


def _drop_layer(folder: Path) -> None:
    weights = load_file(str(folder / "weights.safetensors"))
    weights.popitem()
    classes = json.dumps(read_card_alone(folder).classes)
    save_file(weights, str(folder / "weights.safetensors"), {"classes": classes})
    _rehash(folder)


def _smaller_vocabulary(folder: Path) -> None:
    path = folder / "tokenizer" / "tokenizer.json"
    data = json.loads(path.read_text())
    words = data["model"]["vocab"]
    last = max(words, key=words.get)
    data["model"]["merges"] = [merge for merge in data["model"]["merges"] if "".join(merge) != last]
    del words[last]
    path.write_text(json.dumps(data))
    _rehash(folder)


def _other_width(folder: Path) -> None:
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace("hidden_size: 32", "hidden_size: 64"))
    _rehash(folder)


@pytest.mark.parametrize("harm", [_drop_layer, _smaller_vocabulary, _other_width])
def test_row_22_weights_tokenizer_or_config_that_do_not_fit_are_refused(
    run: Path, harm: Callable[[Path], None]
) -> None:
    harm(run)
    with pytest.raises(InputError, match=r"weights\.safetensors.*do not fit"):
        restore(run)


@pytest.mark.parametrize("name", ["weights.safetensors", "config.yaml", "tokenizer/tokenizer.json"])
def test_row_22_a_missing_file_is_named(run: Path, name: str) -> None:
    (run / name).unlink()
    with pytest.raises(InputError, match=f"{Path(name).name}: file of the run is missing"):
        restore(run)


@pytest.mark.parametrize("name", ["weights.safetensors", "config.yaml", "tokenizer/tokenizer.json"])
def test_row_23_one_flipped_bit_is_found(run: Path, name: str) -> None:
    data = bytearray((run / name).read_bytes())
    data[len(data) // 2] ^= 1
    (run / name).write_bytes(data)
    with pytest.raises(InputError, match=f"{Path(name).name}.*SHA-256"):
        restore(run)


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "radweave-run"}', ""])
def test_row_22_a_damaged_run_card_is_refused(run: Path, text: str) -> None:
    (run / "run.json").write_text(text)
    with pytest.raises(InputError, match=r"run\.json"):
        restore(run)


def test_row_24_a_pickle_in_place_of_weights_is_never_opened(run: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    # A pickle that would create the marker if anything loaded it.
    payload = f"cposix\nsystem\n(S'touch {marker}'\ntR.".encode()
    (run / "weights.safetensors").write_bytes(payload)
    _rehash(run)
    with pytest.raises(InputError, match=r"weights\.safetensors"):
        restore(run)
    assert not marker.exists()


KILL_LOOP = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from radweave.core.errors import InputError
from radweave.engine.checkpoint import keep_newest, load_checkpoint, save_checkpoint

torch.set_num_threads(1)  # no thread pool that a fork would lose
folder, rounds = Path(sys.argv[1]), int(sys.argv[2])
model = torch.nn.Linear(400, 400)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(2, 400)).sum().backward()
optimizer.step()
random.seed(0)
step = 0
torch.nn.init.constant_(model.weight, 0)
save_checkpoint(folder / "step-00000000", model, optimizer, {"step": 0})
for _ in range(rounds):
    child = os.fork()
    if child == 0:
        while True:
            step += 1
            torch.nn.init.constant_(model.weight, step)
            save_checkpoint(folder / f"step-{step:08d}", model, optimizer, {"step": step})
            keep_newest(folder, 2)
    while not any(path.name > f"step-{step:08d}" for path in folder.glob("step-*")):
        time.sleep(0.001)
    time.sleep(0.05 * random.random())
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    newest = sorted(folder.glob("step-*"))[-1]
    state = load_checkpoint(newest, model, optimizer)
    assert model.weight.min().item() == model.weight.max().item() == state["step"], newest
    assert state["step"] > step
    step = state["step"]
print("rounds", rounds, "last step", step)
"""


@pytest.mark.long
def test_row_27_sigkill_while_checkpoints_are_written_leaves_the_newest_whole(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILL_LOOP, str(tmp_path), "20"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("rounds 20")


@pytest.mark.long
def test_row_28_a_full_disk_leaves_the_last_checkpoint_loadable(toy_dataset: Dataset, tmp_path: Path) -> None:
    out = tmp_path / "run"
    script = (
        "import sys; from radweave.cli import main; "
        "sys.argv = ['radweave', 'train', 'baseline', sys.argv[1], '--out', sys.argv[2], *sys.argv[3:]]; main()"
    )
    options = [*OVERRIDES, "stages.report.epochs=3", "stages.report.checkpoint_every=1"]
    command = [sys.executable, "-c", script, str(toy_dataset.path), str(out), *options]

    def limit() -> None:
        # A write past the limit fails like one on a full disk does, once the signal is ignored.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, 120_000))

    failed = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True)
    assert failed.returncode == 2, failed.stderr
    assert "cannot write" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert not list(out.rglob("*.partial"))
    done = subprocess.run([*command, "--resume"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert restore(out).card.trained_steps == {"encoder": 0, "vision": 0, "language": 0, "report": 9}


def test_row_32_unusable_studies_are_counted_and_the_rest_trains(tmp_path: Path) -> None:
    dataset = write_toy_dataset(tmp_path / "dataset", tmp_path / "sources")
    (dataset.path / "images/1_0.png").write_bytes(b"no image")
    (dataset.path / "images/2_0.png").unlink()
    lines = (dataset.path / "manifest.jsonl").read_text().splitlines()
    lines[4] = json.dumps(json.loads(lines[4]) | {"report": "  "})
    (dataset.path / "manifest.jsonl").write_text("\n".join(lines) + "\n")
    run = train("baseline", dataset.path, tmp_path / "run", overrides=OVERRIDES)
    assert restore(run).card.left_out == {"train": 3, "val": 0}


def test_row_34_a_second_writer_of_a_run_is_refused(toy_dataset: Dataset, tmp_path: Path) -> None:
    with locked(tmp_path / "run"), pytest.raises(InputError, match="another process"):
        train("baseline", toy_dataset.path, tmp_path / "run", overrides=OVERRIDES, resume=True)


def test_an_output_that_exists_is_refused_and_a_foreign_folder_is_never_cleared(
    toy_dataset: Dataset, tmp_path: Path
) -> None:
    (tmp_path / "letter.txt").write_text("dear all")
    with pytest.raises(InputError, match="--overwrite"):
        train("baseline", toy_dataset.path, tmp_path, overrides=OVERRIDES)
    with pytest.raises(InputError, match=r"holds no config\.yaml"):
        train("baseline", toy_dataset.path, tmp_path, overrides=OVERRIDES, overwrite=True)
    assert (tmp_path / "letter.txt").read_text() == "dear all"
