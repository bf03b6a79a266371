"""The kinds of vision model that are downloaded most: each trains as an encoder, or is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import save_file

from radweave.core.errors import InputError
from radweave.data.dataset import Dataset
from radweave.engine.plan import plan_training
from radweave.methods import resolve
from radweave.nn.vision import AnyVisionConfig, InputSize, tokens_of
from tests.toys import TOY_OVERRIDES

SIZE = 64
_VIT = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "image_size": SIZE,
    "patch_size": 8, "num_channels": 3,
}  # fmt: skip
_TEXT = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 50,
    "max_position_embeddings": 16,
}  # fmt: skip
_STEPS = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
_SWIN = {"embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4, "image_size": SIZE, "patch_size": 4}
_NAFLEX = {**{name: value for name, value in _VIT.items() if name != "image_size"}, "num_patches": 64}


def _one(name: str, numbers: dict[str, Any], model: str = "Model") -> Callable[[], Any]:
    return lambda: getattr(transformers, f"{name}{model}")(getattr(transformers, f"{name}Config")(**numbers))


def _both(name: str, vision: dict[str, Any] = _VIT, text: dict[str, Any] = _TEXT) -> Callable[[], Any]:
    return _one(name, {"vision_config": dict(vision), "text_config": dict(text)})


# By downloads of their checkpoints: CLIP and SigLIP first, DINOv2 (RAD-DINO is one) and ViT, then the rest.
TRAINS: dict[str, Callable[[], Any]] = {
    "clip": _both("CLIP"),
    "siglip": _both("Siglip"),
    "siglip2 naflex": _both("Siglip2", _NAFLEX),
    "vit": _one("ViT", _VIT),
    "dinov2": _one("Dinov2", {**_VIT, "mlp_ratio": 2}),
    "dinov2 registers": _one("Dinov2WithRegisters", {**_VIT, "mlp_ratio": 2, "num_register_tokens": 4}),
    "dinov3": _one("DINOv3ViT", {**_VIT, "num_register_tokens": 4}),
    "dinov3 convnext": _one("DINOv3ConvNext", _STEPS),
    "resnet": _one("ResNet", {**_STEPS, "embedding_size": 8}),
    "convnext": _one("ConvNext", _STEPS),
    "convnextv2": _one("ConvNextV2", _STEPS),
    "swin": _one("Swin", _SWIN),
    "swinv2": _one("Swinv2", _SWIN),
    "deit": _one("DeiT", _VIT),
    "beit": _one("Beit", _VIT),
    "mae": _one("ViTMAE", _VIT),
    "ijepa": _one("IJepa", _VIT),
    "mobilenet": _one("MobileNetV2", {"image_size": SIZE, "depth_multiplier": 0.25}),
    "segformer": _one(
        "Segformer", {**_STEPS, "num_encoder_blocks": 4, "num_attention_heads": [1, 1, 2, 2], "image_size": SIZE}
    ),
    "pixtral": _one("PixtralVision", _VIT),
    "qwen3_vl": lambda: transformers.Qwen3VLVisionModel(
        transformers.Qwen3VLConfig(
            vision_config={
                "depth": 1, "hidden_size": 16, "num_heads": 2, "patch_size": 8, "out_hidden_size": 24,
                "intermediate_size": 16, "deepstack_visual_indexes": [0], "num_position_embeddings": 64,
            }
        ).vision_config
    ),
}  # fmt: skip
REFUSED: dict[str, tuple[dict[str, Any] | Callable[[], Any], str]] = {
    "blip": (
        _both("Blip", {**_VIT, "projection_dim": 16}, {**_TEXT, "encoder_hidden_size": 16}),
        "not a vision model",
    ),
    "timm": ({"model_type": "timm_wrapper", "architecture": "vit_base_patch16_224"}, "requires the timm library"),
    "video": (_one("VideoMAE", {**_VIT, "num_frames": 4}), "does not take images of this size"),
    "text": (_one("Bert", _TEXT), "not a vision model"),
}


def write(made: dict[str, Any] | Callable[[], Any], folder: Path) -> Any:
    if isinstance(made, dict):
        (folder / "config.json").write_text(json.dumps(made))
        save_file({"weight": torch.zeros(1)}, str(folder / "model.safetensors"))
        return None
    torch.manual_seed(0)
    model = made().eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("name", TRAINS)
def test_a_tower_trains_and_reads_each_image_by_itself(name: str, tmp_path: Path) -> None:
    write(TRAINS[name], tmp_path)
    encoder = AnyVisionConfig(path=str(tmp_path)).build(SIZE)
    pixels = torch.rand(2, 1, SIZE, SIZE)
    features = encoder.eval()(pixels)
    count = features.tokens.shape[1]
    assert features.tokens.shape == (2, count, encoder.dim)
    assert count == features.grid[0] * features.grid[1] == tokens_of(encoder, InputSize(SIZE))
    alone = encoder(pixels[1:]).tokens
    torch.testing.assert_close(alone[0], features.tokens[1], atol=1e-5, rtol=1e-5)
    optimizer = torch.optim.SGD([weight for weight in encoder.parameters() if weight.requires_grad], lr=0.1)
    before = features.tokens.detach().clone()
    features.tokens.square().mean().backward()
    optimizer.step()
    assert not torch.equal(encoder(pixels).tokens, before)


@pytest.mark.parametrize("name", REFUSED)
def test_another_tower_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    made, reason = REFUSED[name]
    write(made, tmp_path)
    with pytest.raises(InputError, match=reason) as error:
        AnyVisionConfig(path=str(tmp_path)).build(SIZE)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["siglip2 naflex", "qwen3_vl", "timm", "video"])
def test_a_dry_run_says_the_same(name: str, toy_dataset: Dataset, tmp_path: Path) -> None:
    made = TRAINS[name] if name in TRAINS else REFUSED[name][0]
    write(made, tmp_path)
    overrides = [
        *TOY_OVERRIDES, "model.vision_encoder=transformers", f"model.vision_encoder.path={tmp_path}",
        f"data.image_size={SIZE}",
    ]  # fmt: skip

    def plan() -> None:
        plan_training(resolve("baseline", "tiny", overrides), toy_dataset, learn_tokenizer=False)

    if name in TRAINS:
        plan()
        return
    with pytest.raises(InputError, match=REFUSED[name][1]):
        plan()


def test_naflex_tokens_are_those_of_its_own_processor(tmp_path: Path) -> None:
    model = write(TRAINS["siglip2 naflex"], tmp_path)
    encoder = AnyVisionConfig(path=str(tmp_path)).build(SIZE).eval()
    encoder.mean.fill_(0.5)
    encoder.std.fill_(0.5)
    grey = np.random.default_rng(0).integers(0, 255, (SIZE, SIZE)).astype(np.uint8)
    processor = transformers.Siglip2ImageProcessorPil(patch_size=8, max_num_patches=64)
    read = processor(Image.fromarray(grey).convert("RGB"), return_tensors="pt")
    assert read["spatial_shapes"].tolist() == [[8, 8]]
    with torch.no_grad():
        own = model.vision_model(**read).last_hidden_state
        tokens = encoder(torch.from_numpy(grey)[None, None].float() / 255).tokens
    torch.testing.assert_close(tokens, own, atol=1e-5, rtol=1e-5)
