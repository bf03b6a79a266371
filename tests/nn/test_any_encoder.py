"""Any vision model of transformers: twelve families as small checkpoints in the real layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from radweave.core.errors import InputError
from radweave.nn.language_model import LoraConfig, has_lora
from radweave.nn.vision import AnyVisionConfig
from tests.checkpoints import ENCODERS, MEAN, SIZE, STD, TEXT, write_encoder


def _own_pass(model: Any, pixels: Tensor) -> Tensor:
    """What the checkpoint's own vision model gives for the same image, (1, T, D)."""
    tower = getattr(model, "vision_model", model)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    options = {}
    if model.config.model_type == "vit_mae":
        tower.config.mask_ratio = model.embeddings.config.mask_ratio = 0.0
        options["noise"] = torch.arange(16).float()[None]
    states = tower(pixel_values=(pixels.expand(-1, 3, -1, -1) - mean) / std, **options).last_hidden_state
    return states.flatten(2).transpose(1, 2) if states.ndim == 4 else states


@pytest.mark.parametrize("name", ENCODERS)
def test_a_checkpoint_gives_its_own_numbers_in_grid_order(name: str, tmp_path: Path) -> None:
    model = write_encoder(name, tmp_path)
    encoder = AnyVisionConfig(path=str(tmp_path)).build(SIZE).eval()
    pixels = torch.rand(2, 1, SIZE, SIZE)
    with torch.no_grad():
        features, own = encoder(pixels), torch.cat([_own_pass(model, image[None]) for image in pixels])
    torch.testing.assert_close(features.tokens, own[:, ENCODERS[name][1] :], atol=1e-5, rtol=1e-5)
    assert features.grid[0] * features.grid[1] == features.tokens.shape[1]
    assert features.tokens.shape[2] == encoder.dim


@pytest.mark.parametrize("name", ENCODERS)
def test_a_restored_run_does_not_read_the_checkpoint(name: str, tmp_path: Path) -> None:
    write_encoder(name, tmp_path / "checkpoint")
    record = AnyVisionConfig(path=str(tmp_path / "checkpoint"))
    encoder = record.build(SIZE).eval()
    encoder.architecture.save_pretrained(str(tmp_path / "run"))
    record = AnyVisionConfig(path=str(tmp_path / "gone"))
    restored = record.build(SIZE, saved=tmp_path / "run").eval()
    restored.load_state_dict(encoder.state_dict(), strict=True)
    pixels = torch.rand(1, 1, SIZE, SIZE)
    torch.testing.assert_close(restored(pixels).tokens, encoder(pixels).tokens)


@pytest.mark.parametrize("name", ["dinov2", "clip", "vit", "siglip"])
def test_positions_are_stretched_to_another_size(name: str, tmp_path: Path) -> None:
    write_encoder(name, tmp_path)
    assert AnyVisionConfig(path=str(tmp_path)).build(48).eval()(torch.rand(1, 1, 48, 48)).grid == (6, 6)


def test_non_vision_models_and_wrong_input_shapes_are_refused(tmp_path: Path) -> None:
    transformers.LlamaModel(transformers.LlamaConfig(**{**TEXT, "hidden_size": 16})).save_pretrained(tmp_path / "words")
    with pytest.raises(InputError, match="not a vision model") as caught:
        AnyVisionConfig(path=str(tmp_path / "words")).build(SIZE)
    assert "llama" in str(caught.value)
    with pytest.raises(InputError, match="no such folder"):
        AnyVisionConfig(path=str(tmp_path / "none" / "there")).build(SIZE)
    write_encoder("vit", tmp_path / "vit")
    with pytest.raises(InputError, match=r"data\.image_size"):
        AnyVisionConfig(path=str(tmp_path / "vit")).build(4)


@pytest.mark.parametrize(
    "processor", [{"image_mean": [0.5]}, {"image_std": [0, 1, 1]}, {"image_mean": "x"}, {"image_std": [[1], [1], [1]]}]
)
def test_a_broken_preprocessor_is_refused_by_name(processor: dict[str, Any], tmp_path: Path) -> None:
    write_encoder("vit", tmp_path, **processor)
    with pytest.raises(InputError, match=r"preprocessor_config\.json"):
        AnyVisionConfig(path=str(tmp_path)).build(SIZE)


def test_images_that_were_not_standardised_are_left_alone(tmp_path: Path) -> None:
    write_encoder("vit", tmp_path, do_normalize=False)
    encoder = AnyVisionConfig(path=str(tmp_path)).build(SIZE)
    assert encoder.mean.tolist() == [[[[0.0]], [[0.0]], [[0.0]]]]
    assert encoder.std.tolist() == [[[[1.0]], [[1.0]], [[1.0]]]]


def test_adapters_go_onto_all_linear_maps_and_change_nothing_at_first(tmp_path: Path) -> None:
    write_encoder("dinov2", tmp_path)
    plain = AnyVisionConfig(path=str(tmp_path)).build(SIZE).eval()
    adapted = AnyVisionConfig(path=str(tmp_path), lora=LoraConfig(rank=2)).build(SIZE).eval()
    assert has_lora(adapted)
    pixels = torch.rand(1, 1, SIZE, SIZE)
    torch.testing.assert_close(adapted(pixels).tokens, plain(pixels).tokens)
