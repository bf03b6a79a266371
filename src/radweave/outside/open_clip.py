"""Folders in the layout of open_clip whose images go through a plain vision transformer of timm, as BiomedCLIP's.

``open_clip_config.json`` says the architecture by timm's name for it, and how images were standardised; the weights of
both towers lie in one file. Sources: open_clip (github.com/mlfoundations/open_clip), its configuration of a ``timm``
tower; timm (github.com/huggingface/pytorch-image-models), the sizes behind the names.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, ValidationError

from radweave.base.config import Config, Pixels, first_problem
from radweave.base.errors import InputError
from radweave.base.json_files import read_json

SETTINGS: Final = "open_clip_config.json"
WEIGHTS: Final = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
"""Of two files with the same weights the first is read."""
_OTHERS: Final = ("model.safetensors", "model.safetensors.index.json")
_SIZES: Final = {"tiny": (192, 12, 3), "small": (384, 12, 6), "base": (768, 12, 12), "large": (1024, 24, 16)}
"""Width, layers and heads behind timm's names."""
_NAME: Final = re.compile(r"vit_(tiny|small|base|large)_patch(\d{1,3})_(\d{1,4})(?:\..*)?", re.ASCII)
_NORM_EPS: Final = 1e-6

Three = Annotated[tuple[float, ...], Field(min_length=3, max_length=3)]


class Standardisation(Config):
    """Mean and deviation per channel; where a folder is silent, open_clip's defaults hold, those of OpenAI's CLIP."""

    mean: Three = (0.48145466, 0.4578275, 0.40821073)
    std: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=3, max_length=3)] = (
        0.26862954,
        0.26130258,
        0.27577711,
    )


def has_open_clip_layout(folder: Path) -> bool:
    """Whether a folder is open_clip's: one that transformers can read as well is transformers'."""
    return (folder / SETTINGS).is_file() and not any((folder / name).is_file() for name in _OTHERS)


def open_clip_weights(folder: Path, *, what: str) -> Path:
    """The file with the weights.

    Raises:
        InputError: if there is none.
    """
    for name in WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    raise InputError(f"cannot load {what}: there are no weights", file=folder, expected=" or ".join(WEIGHTS))


def open_clip_shape(folder: Path) -> Any:
    """The architecture of the vision tower as a ViT of transformers.

    Raises:
        InputError: if it is not a plain vision transformer of timm.
    """
    from transformers import ViTConfig

    tower = _section(folder, "model_cfg").get("vision_cfg")
    tower = tower if isinstance(tower, dict) else {}
    name = tower.get("timm_model_name")
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise InputError(
            "the vision tower is of another architecture",
            file=folder / SETTINGS,
            field="model_cfg.vision_cfg.timm_model_name",
            got=name,
            expected="a plain vision transformer, as vit_base_patch16_224",
        )
    width, layers, heads = _SIZES[match[1]]
    try:
        sizes = _Sizes(image_size=tower.get("image_size", int(match[3])), patch_size=int(match[2]))
    except ValidationError as error:
        raise InputError(first_problem(error), file=folder / SETTINGS, field="model_cfg.vision_cfg") from None
    return ViTConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        layer_norm_eps=_NORM_EPS,
        **sizes.model_dump(),
    )


def open_clip_standardisation(folder: Path) -> Standardisation:
    """How the images were standardised.

    Raises:
        InputError: if what the folder says does not fit three channels.
    """
    given = _section(folder, "preprocess_cfg")
    try:
        return Standardisation.model_validate({name: given[name] for name in ("mean", "std") if name in given})
    except ValidationError as error:
        raise InputError(first_problem(error), file=folder / SETTINGS, field="preprocess_cfg") from None


class _Sizes(Config):
    image_size: Pixels
    patch_size: Pixels


def _section(folder: Path, name: str) -> dict[str, Any]:
    content = read_json(folder / SETTINGS)
    section = content.get(name) if isinstance(content, dict) else None
    return section if isinstance(section, dict) else {}
