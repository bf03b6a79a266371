"""The start weights that the package brings: used only whole, by the encoder they belong to, and said of the run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from radweave.core.errors import InputError
from radweave.core.storage import sha256_file
from radweave.nn.vision.pretrained import PHANTOM_ENCODER, SHA256, WEIGHTS, load_start


def test_the_shipped_weights_fill_the_encoder_of_the_tiny_presets() -> None:
    assert sha256_file(WEIGHTS) == SHA256
    assert WEIGHTS.stat().st_size < 3_000_000
    state, shipped = PHANTOM_ENCODER.build(144).backbone.state_dict(), load_file(str(WEIGHTS))
    assert state.keys() == shipped.keys()
    assert all(torch.equal(state[name], value.to(state[name].dtype)) for name, value in shipped.items())
    fresh = PHANTOM_ENCODER.model_copy(update={"start": "nothing"}).build(144).backbone.state_dict()
    assert not torch.equal(fresh["embedder.embedder.convolution.weight"], state["embedder.embedder.convolution.weight"])


def test_an_encoder_of_other_sizes_is_refused_with_the_way_out() -> None:
    with pytest.raises(InputError, match=r"vision_encoder\.start.*another shape.*nothing"):
        PHANTOM_ENCODER.model_copy(update={"hidden_sizes": (8, 16, 32, 64)}).build(144)


def test_a_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "phantom_encoder.safetensors"
    save_file({name: value + 1 for name, value in load_file(str(WEIGHTS)).items()}, str(path))
    with pytest.raises(InputError, match="not those of this version"):
        load_start(PHANTOM_ENCODER.build(144).backbone, path)


def test_a_restored_run_does_not_read_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    PHANTOM_ENCODER.build(144).architecture.save_pretrained(str(tmp_path))
    monkeypatch.setattr("radweave.nn.vision.pretrained.load_start", lambda network: pytest.fail("read"))
    PHANTOM_ENCODER.build(144, saved=tmp_path)
    with torch.device("meta"):
        PHANTOM_ENCODER.build(144)
