"""Every training command with weights from elsewhere, as a page has it, on small checkpoints in published layouts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from radweave.data.dataset import Dataset
from radweave.methods import load_method, method_names
from radweave.nn.text_encoder import PretrainedTextEncoderConfig
from tests.command_line import radweave
from tests.docs.page_commands import PAGES, Command, commands
from tests.docs.published_layouts import CHECKPOINTS
from tests.toys import ROOT

WEIGHTS = "/weights/"
TRAINING = [command for page in PAGES for command in commands(page) if command.words[0] == "train"]
# Most stand on two pages; the second of two that say the same is not run again.
PAPER = list({frozenset(one.words): one for one in TRAINING if WEIGHTS in " ".join(one.words)}.values())


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the pages call ``/weights``."""
    folder = tmp_path_factory.mktemp("weights")
    for name, write in CHECKPOINTS.items():
        torch.manual_seed(0)
        write(folder / name)
    return folder


def _typed(command: Command, dataset: Path, weights: Path) -> Sequence[str]:
    method, _, *rest = command.words[1:]
    return ["train", method, str(dataset), *(word.replace(WEIGHTS, f"{weights}/") for word in rest), "--dry-run"]


@pytest.mark.parametrize("command", PAPER, ids=[command.place for command in PAPER])
def test_it_passes_a_dry_run(
    command: Command, weights: Path, toy_dataset: Dataset, toy_ct_dataset: Dataset, tmp_path: Path
) -> None:
    dataset = toy_ct_dataset if command.words[1] == "diffvp" else toy_dataset
    done = radweave(*_typed(command, dataset.path, weights))
    assert done.returncode == 0, done.stderr
    assert "stage report:" in done.stdout


def test_every_paper_preset_with_weights_has_its_command_on_the_page() -> None:
    """And it names every checkpoint that the preset has."""
    page = ROOT / "docs/pretrained.md"
    shown = {command.words[1]: command.words for command in reversed(commands(page)) if command.words[0] == "train"}
    for method in method_names():
        model = load_method(method).PRESETS["paper"]().model
        paths = {f"model.{name}.path" for name, record in model if getattr(record, "path", None) is not None}
        named = {word.partition("=")[0] for word in shown.get(method, ())}
        assert paths <= named, method


def test_a_pickle_is_turned_into_safetensors_as_the_page_says(tmp_path: Path) -> None:
    old, new = tmp_path / "downloaded", tmp_path / "bio-clinical-bert"
    CHECKPOINTS["bio-clinical-bert"](old)
    torch.save(AutoModel.from_pretrained(old).state_dict(), old / "pytorch_model.bin")
    (old / "model.safetensors").unlink()
    page = (ROOT / "docs/pretrained.md").read_text(encoding="utf-8")
    snippet = page.partition("```python\n")[2].partition("```")[0]
    exec(snippet.replace("/weights/downloaded", str(old)).replace("/weights/bio-clinical-bert", str(new)), {})
    assert AutoTokenizer.from_pretrained(new) is not None
    assert json.loads((new / "config.json").read_text())["model_type"] == "bert"
    encoder = PretrainedTextEncoderConfig(path=str(new)).build()
    assert encoder.model.config.hidden_size == 32
