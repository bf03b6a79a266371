"""The start weights that the package brings: used only whole, by the encoder they belong to, and said of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from radweave.core.errors import InputError
from radweave.core.storage import sha256_file
from radweave.methods import resolve
from radweave.nn.vision.pretrained import PHANTOM_ENCODER, RADIOGRAPHS, SCANS, STATED, StartWeights
from radweave.nn.vision.resnet3d import PHANTOM_ENCODER_3D

ENCODERS = {"radiographs": (PHANTOM_ENCODER, RADIOGRAPHS), "scans": (PHANTOM_ENCODER_3D, SCANS)}
FIRST = {"radiographs": "embedder.embedder.convolution.weight", "scans": "stem.0.weight"}
SMALLER = {"radiographs": {"hidden_sizes": (8, 16, 32, 64)}, "scans": {"widths": (8, 8, 8, 8)}}


def network(config: Any, **options: Any) -> nn.Module:
    """The network that the start weights fill."""
    encoder = config.build(144, **options)
    return encoder.backbone if hasattr(encoder, "backbone") else encoder  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ENCODERS)
def test_the_shipped_weights_fill_the_encoder_of_the_tiny_presets(kind: str) -> None:
    config, weights = ENCODERS[kind]
    assert sha256_file(weights.path) == weights.sha256
    assert weights.path.stat().st_size < 3_000_000
    state, shipped = network(config).state_dict(), load_file(str(weights.path))
    assert state.keys() == shipped.keys()
    assert all(torch.equal(state[name], value.to(state[name].dtype)) for name, value in shipped.items())
    fresh = network(config.model_copy(update={"start": "nothing"})).state_dict()
    assert not torch.equal(fresh[FIRST[kind]], state[FIRST[kind]])


@pytest.mark.parametrize("kind", ENCODERS)
def test_an_encoder_of_other_sizes_is_refused_with_the_way_out(kind: str) -> None:
    config, _ = ENCODERS[kind]
    with pytest.raises(InputError, match=r"vision_encoder\.start.*another shape.*nothing"):
        config.model_copy(update=SMALLER[kind]).build(144)


def test_a_file_that_was_changed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "phantom_encoder.safetensors"
    save_file({name: value + 1 for name, value in load_file(str(RADIOGRAPHS.path)).items()}, str(path))
    monkeypatch.setattr(StartWeights, "path", path)
    with pytest.raises(InputError, match="not those of this version"):
        RADIOGRAPHS.load_into(network(PHANTOM_ENCODER))


@pytest.mark.parametrize("preset", ["tiny", "tiny-ct"])
def test_a_run_says_its_start_unless_the_user_brings_a_checkpoint(preset: str) -> None:
    assert resolve("baseline", preset, ()).stated_start == STATED
    assert resolve("baseline", preset, ["model.vision_encoder.path=mine"]).stated_start is None
    assert resolve("baseline", preset, ["model.vision_encoder.start=nothing"]).stated_start is None


@pytest.mark.parametrize("kind", ENCODERS)
def test_a_restored_run_does_not_read_them(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, _ = ENCODERS[kind]
    config.build(144).architecture.save_pretrained(str(tmp_path))
    monkeypatch.setattr(StartWeights, "load_into", lambda self, network: pytest.fail("read"))
    config.build(144, saved=tmp_path)
    with torch.device("meta"):
        config.build(144)
