"""Vision towers inside checkpoints of images and texts, each beside the checkpoint's own tower."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from radweave.core.errors import InputError
from radweave.nn.vision import AnyVisionConfig, InputSize, tokens_of
from tests.checkpoints import write_language_model

SIZE = 32
MEAN = STD = torch.full((3, 1, 1), 0.5)
"""Of a folder that says nothing: three channels take ImageNet's numbers, so the tests write their own."""


def _write(name: str, folder: Path) -> Any:
    model = write_language_model(name, folder)
    (folder / "preprocessor_config.json").write_text('{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}')
    return model


def _patches(image: Tensor, patch: int, merge: int) -> Tensor:
    """The numbers of (3, h, w), patch by patch: squares of patches row by row, and inside a square row by row."""
    side = image.shape[-1] // patch // merge
    rows = []
    for row, column, down, right in itertools.product(range(side), range(side), range(merge), range(merge)):
        top, left = (row * merge + down) * patch, (column * merge + right) * patch
        square = image[:, top : top + patch, left : left + patch]
        rows.append(torch.stack([square, square], dim=1).flatten())
    return torch.stack(rows)


def _own_pass(model: Any, image: Tensor) -> Tensor:
    """Tokens of one image (3, h, w) by the model's own tower."""
    model = getattr(model, "model", model)
    if hasattr(model, "vision_tower"):
        states = model.vision_tower(pixel_values=image[None]).last_hidden_state[0]
        return states[len(states) - 16 :]
    config = model.visual.config
    patches = _patches(image, config.patch_size, config.spatial_merge_size)
    side = image.shape[-1] // config.patch_size
    return model.visual(patches, grid_thw=torch.tensor([[1, side, side]])).pooler_output


TOWERS = ["gemma3 with images", "llava", "qwen2_vl", "qwen2_5_vl"]


@pytest.mark.parametrize("name", TOWERS)
def test_tokens_are_those_of_the_checkpoints_own_tower(name: str, tmp_path: Path) -> None:
    model = _write(name, tmp_path)
    size = SIZE if "qwen" not in name else 3 * SIZE
    encoder = AnyVisionConfig(path=str(tmp_path)).build(size).eval()
    pixels = torch.rand(2, 1, size, size)
    with torch.no_grad():
        features = encoder(pixels)
        own = torch.stack([_own_pass(model, (image.expand(3, -1, -1) - MEAN) / STD) for image in pixels])
    torch.testing.assert_close(features.tokens, own, atol=1e-5, rtol=1e-5)
    assert features.grid[0] * features.grid[1] == features.tokens.shape[1] == tokens_of(encoder, InputSize(size))
    encoder.architecture.save_pretrained(str(tmp_path / "run"))
    restored = AnyVisionConfig(path="gone/away").build(size, saved=tmp_path / "run").eval()
    restored.load_state_dict(encoder.state_dict(), strict=True)
    with torch.no_grad():
        torch.testing.assert_close(restored(pixels).tokens, features.tokens)


@pytest.mark.parametrize(
    "start", ["vision_tower.vision_model.", "model.vision_tower.", "model.vision_tower.vision_model."]
)
def test_names_of_other_versions_of_transformers_are_known(start: str, tmp_path: Path) -> None:
    _write("gemma3 with images", tmp_path)
    before = AnyVisionConfig(path=str(tmp_path)).build(SIZE)
    weights = load_file(tmp_path / "model.safetensors")
    renamed = {name.replace("vision_tower.", start): value for name, value in weights.items()}
    save_file(renamed, tmp_path / "model.safetensors", {"format": "pt"})
    after = AnyVisionConfig(path=str(tmp_path)).build(SIZE)
    torch.testing.assert_close(after.state_dict(), before.state_dict())


def test_a_size_that_is_no_whole_number_of_tokens_is_refused(tmp_path: Path) -> None:
    _write("qwen2_vl", tmp_path)
    with pytest.raises(InputError, match=r"data\.image_size.*not a multiple of 16 pixels"):
        AnyVisionConfig(path=str(tmp_path)).build(40)
    assert AnyVisionConfig(path=str(tmp_path)).image_size() is None
