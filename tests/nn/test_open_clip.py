"""BiomedCLIP's layout: a folder as open_clip writes it, its numbers beside a plain computation from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from radweave.core.errors import InputError
from radweave.core.foreign_models import locate, read_shape
from radweave.nn.vision import AnyVisionConfig

SIZE, PATCH, WIDTH, LAYERS, HEADS = 32, 16, 192, 12, 3
MEAN, STD = [0.5, 0.4, 0.3], [0.25, 0.3, 0.35]
NAME = "vit_tiny_patch16_224"


def _tower() -> dict[str, Tensor]:
    """A trunk by timm's names, every tensor of another size of numbers so that a mix-up shows."""
    torch.manual_seed(0)
    tensors = {
        "cls_token": torch.randn(1, 1, WIDTH),
        "pos_embed": torch.randn(1, (SIZE // PATCH) ** 2 + 1, WIDTH),
        "patch_embed.proj.weight": torch.randn(WIDTH, 3, PATCH, PATCH) / 20,
        "patch_embed.proj.bias": torch.randn(WIDTH),
        "norm.weight": 1 + torch.randn(WIDTH) / 4,
        "norm.bias": torch.randn(WIDTH),
    }
    for layer in range(LAYERS):
        for name, outputs, inputs in (
            ("attn.qkv", 3 * WIDTH, WIDTH), ("attn.proj", WIDTH, WIDTH), ("mlp.fc1", 4 * WIDTH, WIDTH),
            ("mlp.fc2", WIDTH, 4 * WIDTH),
        ):  # fmt: skip
            tensors[f"blocks.{layer}.{name}.weight"] = torch.randn(outputs, inputs) / inputs**0.5
            tensors[f"blocks.{layer}.{name}.bias"] = torch.randn(outputs) / 4
        for name in ("norm1", "norm2"):
            tensors[f"blocks.{layer}.{name}.weight"] = 1 + torch.randn(WIDTH) / 4
            tensors[f"blocks.{layer}.{name}.bias"] = torch.randn(WIDTH) / 4
    return tensors


TOWER = _tower()


def _written(folder: Path, weights: str = "open_clip_model.safetensors", **tower: Any) -> Path:
    """A folder as open_clip puts it on a hub; ``tower`` changes the settings of the vision tower."""
    folder.mkdir()
    tensors = {f"visual.trunk.{name}": tensor for name, tensor in TOWER.items()}
    tensors |= {"visual.head.proj.weight": torch.zeros(8, WIDTH), "logit_scale": torch.tensor(4.0)}
    tensors |= {"text.transformer.embeddings.word_embeddings.weight": torch.zeros(10, 16)}
    if weights.endswith(".bin"):
        torch.save(tensors, folder / weights)
    else:
        save_file(tensors, folder / weights)
    settings = {"timm_model_name": NAME, "timm_pool": "", "timm_proj": "linear", "image_size": SIZE, **tower}
    content = {
        "model_cfg": {"embed_dim": 8, "vision_cfg": settings},
        "preprocess_cfg": {"mean": MEAN, "std": STD},
    }
    (folder / "open_clip_config.json").write_text(json.dumps(content))
    return folder


def _norm(x: Tensor, name: str) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    return scaled * TOWER[f"{name}.weight"].double() + TOWER[f"{name}.bias"].double()


def _linear(x: Tensor, name: str) -> Tensor:
    return x @ TOWER[f"{name}.weight"].double().T + TOWER[f"{name}.bias"].double()


def _plain_tokens(image: Tensor) -> Tensor:
    """The patch tokens (T, D) of one image (H, W), in float64 by the equations of a vision transformer."""
    pixels = torch.stack([(image.double() - mean) / std for mean, std in zip(MEAN, STD, strict=True)])
    patches = [
        pixels[:, top : top + PATCH, left : left + PATCH].flatten()
        for top in range(0, SIZE, PATCH)
        for left in range(0, SIZE, PATCH)
    ]
    kernel = TOWER["patch_embed.proj.weight"].double().flatten(1)
    tokens = torch.stack(patches) @ kernel.T + TOWER["patch_embed.proj.bias"].double()
    x = torch.cat([TOWER["cls_token"][0].double(), tokens]) + TOWER["pos_embed"][0].double()
    for layer in range(LAYERS):
        block = f"blocks.{layer}"
        qkv = _linear(_norm(x, f"{block}.norm1"), f"{block}.attn.qkv").view(-1, 3, HEADS, WIDTH // HEADS)
        heads = []
        for head in range(HEADS):
            queries, keys, values = qkv[:, 0, head], qkv[:, 1, head], qkv[:, 2, head]
            heads.append((queries @ keys.T / (WIDTH // HEADS) ** 0.5).softmax(-1) @ values)
        x = x + _linear(torch.cat(heads, -1), f"{block}.attn.proj")
        inner = _linear(_norm(x, f"{block}.norm2"), f"{block}.mlp.fc1")
        inner = inner * 0.5 * (1 + torch.erf(inner / 2**0.5))
        x = x + _linear(inner, f"{block}.mlp.fc2")
    return _norm(x, "norm")[1:]


@pytest.mark.parametrize("weights", ["open_clip_model.safetensors", "open_clip_pytorch_model.bin"])
def test_the_tokens_are_those_of_the_plain_computation(weights: str, tmp_path: Path) -> None:
    record = AnyVisionConfig(path=str(_written(tmp_path / "clip", weights)))
    encoder = record.build(SIZE).eval()
    image = torch.rand(SIZE, SIZE)
    with torch.no_grad():
        features = encoder(image[None, None])
    torch.testing.assert_close(features.tokens[0].double(), _plain_tokens(image), atol=1e-5, rtol=1e-5)
    assert (features.grid, encoder.dim, record.image_size()) == ((2, 2), WIDTH, SIZE)


def test_a_restored_run_does_not_read_the_folder(tmp_path: Path) -> None:
    encoder = AnyVisionConfig(path=str(_written(tmp_path / "clip"))).build(SIZE).eval()
    encoder.architecture.save_pretrained(str(tmp_path / "run"))
    restored = AnyVisionConfig(path=str(tmp_path / "gone")).build(SIZE, saved=tmp_path / "run").eval()
    restored.load_state_dict(encoder.state_dict(), strict=True)
    pixels = torch.rand(1, 1, SIZE, SIZE)
    torch.testing.assert_close(restored(pixels).tokens, encoder(pixels).tokens)


def test_its_shape_is_known_without_its_weights(tmp_path: Path) -> None:
    folder = _written(tmp_path / "clip", timm_model_name="vit_base_patch16_224", image_size=224)
    (folder / "open_clip_model.safetensors").unlink()
    shape = read_shape(folder, what="an encoder")
    assert (shape.hidden_size, shape.num_hidden_layers, shape.num_attention_heads, shape.patch_size) == (
        768,
        12,
        12,
        16,
    )
    with pytest.raises(InputError, match=r"no weights.*open_clip_model\.safetensors"):
        locate(folder, "weights", what="an encoder")


@pytest.mark.parametrize(
    ("tower", "words"),
    [
        ({"timm_model_name": "resnet50"}, ["timm_model_name", "resnet50"]),
        ({"timm_model_name": "vit_base_patch16_siglip_224"}, ["timm_model_name", "siglip"]),
        ({"timm_model_name": None}, ["timm_model_name", "vit_base_patch16_224"]),
        ({"image_size": [224, 224]}, ["vision_cfg", "image_size"]),
        ({"timm_model_name": "vit_small_patch16_224"}, ["another shape", "384"]),
    ],
)
def test_a_tower_of_another_kind_is_refused_by_name(tower: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        AnyVisionConfig(path=str(_written(tmp_path / "clip", **tower))).build(SIZE)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_folder_that_transformers_reads_is_not_taken_for_open_clips(tmp_path: Path) -> None:
    folder = _written(tmp_path / "clip")
    save_file({"weight": torch.zeros(1)}, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"config\.json is missing"):
        AnyVisionConfig(path=str(folder)).build(SIZE)


def test_numbers_of_images_that_fit_no_channels_are_refused(tmp_path: Path) -> None:
    folder = _written(tmp_path / "clip")
    content = json.loads((folder / "open_clip_config.json").read_text())
    content["preprocess_cfg"] = {"mean": [0.5], "std": [0.1, 0.1, 0]}
    (folder / "open_clip_config.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"open_clip_config\.json.*preprocess_cfg"):
        AnyVisionConfig(path=str(folder)).build(SIZE)
