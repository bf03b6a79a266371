"""Any vision model of transformers as a vision encoder: DINOv2, RAD-DINO, SigLIP, CLIP, ConvNeXt, BEiT, MAE and others;
and BiomedCLIP, or another ViT of timm, from a folder in the layout of open_clip.

    model.vision_encoder=transformers model.vision_encoder.path=FOLDER

The checkpoint's ``config.json`` states architecture and channels, its ``preprocessor_config.json`` the normalisation.
Only the vision tower of a model of images and texts is used.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from radweave.core.batch import VisionFeatures
from radweave.core.config import Config, checked
from radweave.core.errors import InputError
from radweave.core.foreign_files import has_open_clip_layout, one_line, open_clip_standardisation, open_clip_weights
from radweave.core.foreign_models import locate, model_class, read_model, read_shape
from radweave.core.json_files import read_json
from radweave.core.study import Modality
from radweave.nn.language_model import LoraSetting, NoLoraConfig, adapt
from radweave.nn.vision.pretrained import WHAT, pixel_statistics
from radweave.nn.vision.weights import load_named, read_weights

# The vision tower of an open_clip folder, put into a ViT of transformers.


TRUNK: Final = "visual.trunk."
_BLOCKS: Final = {
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    "attn.proj": "attention.o_proj",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}
_ENDS: Final = {
    "cls_token": "embeddings.cls_token",
    "pos_embed": "embeddings.position_embeddings",
    "patch_embed.proj.weight": "embeddings.patch_embeddings.projection.weight",
    "patch_embed.proj.bias": "embeddings.patch_embeddings.projection.bias",
    "norm.weight": "layernorm.weight",
    "norm.bias": "layernorm.bias",
}


def load_trunk(shape: Any, file: Path) -> nn.Module:
    """A ViT with the weights that ``file`` has for its vision tower; the text tower and the projection are left aside.

    Raises:
        InputError: if the file is damaged, or its tower is not of this shape.
    """
    from transformers import ViTModel

    backbone: nn.Module = ViTModel(shape, add_pooling_layer=False)
    trunk = {name.removeprefix(TRUNK): tensor for name, tensor in read_weights(file).items() if name.startswith(TRUNK)}
    load_named(backbone, _renamed(trunk), file)
    return backbone


def _renamed(trunk: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by the names of transformers; timm keeps queries, keys and values of a block in one tensor."""
    named: dict[str, Tensor] = {}
    for name, tensor in trunk.items():
        match = re.fullmatch(r"blocks\.(\d+)\.(.+)\.(weight|bias)", name)
        if match is None:
            named[_ENDS.get(name, name)] = tensor
        elif match[2] == "attn.qkv" and len(tensor) % 3 == 0:
            for part, third in zip("qkv", tensor.chunk(3), strict=True):
                named[f"layers.{match[1]}.attention.{part}_proj.{match[3]}"] = third
        else:
            named[f"layers.{match[1]}.{_BLOCKS.get(match[2], match[2])}.{match[3]}"] = tensor
    return named


# The vision tower of Qwen-VL, wrapped so that it takes images. The tower itself takes patches in an order of its own.
#
# Source: Wang et al., "Qwen2-VL", arXiv:2409.12191; Bai et al., "Qwen2.5-VL", arXiv:2502.13923. Patches have the order
# of transformers' image processor: squares of patches that become one token stand together. A still image is a
# video of ``temporal_patch_size`` equal frames. The tokens are those that its language model would get.


_CLASSES: Final = {
    "qwen2_vl_vision": ("qwen2_vl", "Qwen2VisionTransformerPretrainedModel"),
    "qwen2_5_vl_vision": ("qwen2_5_vl", "Qwen2_5_VisionTransformerPretrainedModel"),
    "qwen3_vl_vision": ("qwen3_vl", "Qwen3VLVisionModel"),
}


def tower_class(model_type: str) -> Any:
    """The class of a tower by the ``model_type`` of its configuration; None for any other model."""
    if model_type not in _CLASSES:
        return None
    family, name = _CLASSES[model_type]
    return getattr(import_module(f"transformers.models.{family}.modeling_{family}"), name)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Merged tokens (n, rows * columns, dim), row by row, named as transformers' models name their output."""

    last_hidden_state: Tensor


class QwenTower(nn.Module):
    """Images (n, 3, h, w) to tokens of ``spatial_merge_size`` x ``spatial_merge_size`` patches."""

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.tower = tower

    @property
    def config(self) -> Any:
        """The tower's transformers configuration."""
        return self.tower.config

    def forward(self, pixel_values: Float[Tensor, "n c h w"]) -> Tokens:
        """Encode images.

        Raises:
            InputError: if a side is no multiple of a token's.
        """
        merge, patch = int(self.config.spatial_merge_size), int(self.config.patch_size)
        count, channels, *size = pixel_values.shape
        rows, columns = (_whole(side, merge * patch) for side in size)
        frames = pixel_values.unsqueeze(2).expand(-1, -1, int(self.config.temporal_patch_size), -1, -1)
        cells = frames.reshape(count, channels, -1, rows, merge, patch, columns, merge, patch)
        # A patch's numbers are (channel, frame, row, column); patches stand by token, then by their place in it.
        patches = cells.permute(0, 3, 6, 4, 7, 1, 2, 5, 8).flatten(5).flatten(0, 4)
        # Sizes stay on the CPU: the tower reads them as numbers, and orders its windows by them.
        with torch.device("cpu"):
            grids = torch.tensor([[1, rows * merge, columns * merge]]).expand(count, -1)
            places = _places(rows, columns, merge).repeat(count, 1).to(pixel_values.device)
            out = self.tower(patches, grid_thw=grids, position_ids=places).pooler_output
        return Tokens(out.reshape(count, rows * columns, -1))

    @property
    def dim(self) -> int:
        """Width of the merged tokens."""
        return int(getattr(self.config, "out_hidden_size", self.config.hidden_size))

    def count_tokens(self, image_size: int) -> int:
        """Tokens of a square image.

        Raises:
            InputError: if its side is no multiple of a token's.
        """
        return _whole(image_size, int(self.config.spatial_merge_size) * int(self.config.patch_size)) ** 2


def _whole(side: int, step: int) -> int:
    """Steps along a side.

    Raises:
        InputError: if they do not fill it.
    """
    if side % step:
        raise InputError(f"not a multiple of {step} pixels", field="data.image_size", got=side)
    return side // step


# SigLIP 2 in its NaFlex form, wrapped likewise: it takes the patches of an image of any size, and their rows and
# columns.
#
# Source: Tschannen et al., "SigLIP 2", arXiv:2502.14786, Sec. 2.4.2.


class NaflexTower(nn.Module):
    """Images (n, 3, h, w) to tokens of a patch each."""

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.tower = tower

    @property
    def config(self) -> Any:
        """The tower's transformers configuration."""
        return self.tower.config

    @property
    def dim(self) -> int:
        """Width of the tokens."""
        return int(self.config.hidden_size)

    def count_tokens(self, image_size: int) -> int:
        """Tokens of a square image.

        Raises:
            InputError: if its side is no multiple of a patch's.
        """
        return _whole(image_size, int(self.config.patch_size)) ** 2

    def forward(self, pixel_values: Float[Tensor, "n c h w"]) -> Tokens:
        """Encode images.

        Raises:
            InputError: if a side is no multiple of a patch's.
        """
        patch = int(self.config.patch_size)
        count, channels, *size = pixel_values.shape
        rows, columns = (_whole(side, patch) for side in size)
        cells = pixel_values.reshape(count, channels, rows, patch, columns, patch)
        # A patch's numbers are (row, column, channel); patches stand row by row.
        patches = cells.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        mask = torch.ones(count, rows * columns, dtype=torch.long, device=pixel_values.device)
        # Sizes stay on the CPU: the tower reads them as numbers.
        with torch.device("cpu"):
            shapes = torch.tensor([[rows, columns]]).expand(count, -1)
        out = self.tower(patches, pixel_attention_mask=mask, spatial_shapes=shapes)
        return Tokens(out.last_hidden_state)


_WRAPPERS: Final[dict[str, type[QwenTower | NaflexTower]]] = {
    **dict.fromkeys(_CLASSES, QwenTower),
    "siglip2_vision_model": NaflexTower,
}


def _places(rows: int, columns: int, merge: int) -> Tensor:
    """Row and column of every patch of an image, in the order in which they stand."""
    row, column = torch.meshgrid(torch.arange(rows * merge), torch.arange(columns * merge), indexing="ij")
    both = torch.stack([row, column], dim=-1).reshape(rows, merge, columns, merge, 2)
    return both.transpose(1, 2).reshape(-1, 2)


FIELD = "vision_encoder.path"
PREPROCESSOR = "preprocessor_config.json"
_TOWER_WEIGHTS = {r"^(?:model\.)?vision_tower\.(?:vision_model\.)?": "", r"^(?:model\.)?visual\.": ""}
"""Prefix of the vision tower's weights in checkpoints of images and texts, and its replacement."""


class AnyVisionEncoder(nn.Module):
    """A vision model of transformers that returns patch tokens in row-major grid order.

    Grey images in [0, 1] are repeated to the model's channels and standardised with ``mean`` and ``std``, which are
    kept with the weights. Tokens before the patches (a class token, registers) are dropped.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, backbone: nn.Module, *, image_size: int, mean: list[float], std: list[float], dim: int = 0
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.dim = dim
        self.channels = len(mean)
        self.image_size = image_size
        config: Any = backbone.config
        self._patch = _patch_size(config)
        self._masks = config.model_type == "vit_mae"
        takes = inspect.signature(backbone.forward).parameters
        self._stretch = "interpolate_pos_encoding" in takes and image_size != getattr(config, "image_size", image_size)
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1))

    @property
    def architecture(self) -> Any:
        """The model's transformers configuration."""
        return self.backbone.config

    def count_tokens(self, image_size: int) -> int | None:
        """Tokens of a square image, for towers whose pass depends on numbers; None for others."""
        tower = self.backbone
        return tower.count_tokens(image_size) if isinstance(tower, (QwenTower, NaflexTower)) else None

    def forward(self, pixel_values: Float[Tensor, "n c h w"]) -> VisionFeatures:
        """Encode images; ``c`` is 1 or the model's channels."""
        pixels = pixel_values.expand(-1, self.channels, -1, -1)
        states = self.backbone(pixel_values=(pixels - self.mean) / self.std, **self._options(pixels)).last_hidden_state
        if states.ndim == 3 and len(states) != len(pixels):  # Pixtral's images stand in one row
            states = states.reshape(len(pixels), -1, states.shape[-1])
        if states.ndim == 4:
            return VisionFeatures(tokens=states.flatten(2).transpose(1, 2), grid=(states.shape[2], states.shape[3]))
        rows, columns = self._grid(pixels, states.shape[1])
        return VisionFeatures(tokens=states[:, states.shape[1] - rows * columns :], grid=(rows, columns))

    def _options(self, pixels: Tensor) -> dict[str, Any]:
        options: dict[str, Any] = {"interpolate_pos_encoding": True} if self._stretch else {}
        if self._masks:
            # A masked autoencoder shuffles its patches by noise; by rising numbers they keep their order.
            rows, columns = self._grid(pixels, 0)
            options["noise"] = torch.arange(rows * columns, device=pixels.device).float().expand(len(pixels), -1)
        return options

    def _grid(self, pixels: Tensor, tokens: int) -> tuple[int, int]:
        """Rows and columns of the output tokens, which are fewer than the patches where a model merges patches."""
        if self._patch is not None:
            rows, columns = (side // patch for side, patch in zip(pixels.shape[-2:], self._patch, strict=True))
            if not tokens or rows * columns <= tokens:
                return rows, columns
        side = int(tokens**0.5)
        return side, side


class AnyVisionConfig(Config):
    """A vision model of transformers from the folder or hub name ``path``.

    Images have the side ``data.image_size``: the model's own, or any multiple of its patch size where its positions can
    be interpolated. ``lora`` puts adapters on the linear maps that it names, or on all.
    """

    reads: ClassVar[Modality] = "xray"
    kind: Literal["transformers"] = "transformers"
    path: str
    gradient_checkpointing: bool = False
    lora: LoraSetting = NoLoraConfig()

    def build(self, image_size: int, *, saved: Path | None = None) -> AnyVisionEncoder:
        """Load the encoder; with ``saved`` only its shape, from the ``config.json`` kept in a run folder.

        Raises:
            InputError: if there is no such checkpoint, it is no vision model, or it does not take such images.
        """
        shape = read_shape(saved or self.path, what=WHAT)
        shape = getattr(shape, "vision_config", shape)
        tower = tower_class(shape.model_type)
        kind = tower or model_class(shape)
        if kind is None or (tower is None and kind.main_input_name != "pixel_values"):
            raise InputError(
                "not a vision model",
                file=self.path,
                field=FIELD,
                got=shape.model_type,
                expected="one that reads images",
            )
        _leave_out_heads(shape)
        poolable = "add_pooling_layer" in inspect.signature(kind).parameters
        options: dict[str, Any] = {"add_pooling_layer": False} if poolable else {}
        mean, std = self._statistics(shape, saved)
        wrap = _WRAPPERS.get(shape.model_type, _as_it_is)
        with torch.device("meta"):
            empty = wrap(kind(shape, **options))
            dim = self._width(AnyVisionEncoder(empty, image_size=image_size, mean=mean, std=std))
        if saved is not None:
            backbone = kind(shape, **options)
        elif has_open_clip_layout(folder := locate(self.path, "weights", what=WHAT)):
            backbone = load_trunk(shape, open_clip_weights(folder, what=WHAT))
        else:
            backbone, _ = read_model(self.path, kind, what=WHAT, shape=shape, key_mapping=_TOWER_WEIGHTS, **options)
        if self.gradient_checkpointing:
            backbone.gradient_checkpointing_enable()
        adapted = wrap(adapt(backbone, self.lora))
        return AnyVisionEncoder(adapted, image_size=image_size, mean=mean, std=std, dim=dim)

    def image_size(self) -> int | None:
        """The side in pixels of the images that the checkpoint was trained on, if it says so.

        Raises:
            InputError: if there is no such checkpoint.
        """
        try:
            shape, settings = read_shape(self.path, what=WHAT), self._preprocessor()
        except InputError as error:
            raise error.at(field=error.field or FIELD) from None
        most = settings.get("max_num_patches")
        if isinstance(most, int):
            return int(most**0.5) * int(getattr(shape, "vision_config", shape).patch_size)
        if tower_class(getattr(shape, "vision_config", shape).model_type):
            # The model takes any size; ``size`` in its processor is the largest number of pixels.
            return None
        for size in (settings.get("crop_size"), settings.get("size")):
            side = size.get("height", size.get("shortest_edge")) if isinstance(size, dict) else size
            if isinstance(side, int):
                return side
        side = getattr(getattr(shape, "vision_config", shape), "image_size", None)
        return side if isinstance(side, int) else None

    def _preprocessor(self) -> dict[str, Any]:
        folder = locate(self.path, "shape", what=WHAT)
        if has_open_clip_layout(folder):
            numbers = open_clip_standardisation(folder)
            return {"image_mean": numbers.mean, "image_std": numbers.std}
        file = folder / PREPROCESSOR
        settings = read_json(file) if file.is_file() else {}
        return settings if isinstance(settings, dict) else {}

    def _width(self, empty: AnyVisionEncoder) -> int:
        """Width of the tokens, by a pass on the meta device; the pass also tests the size of the images."""
        size, tower = empty.image_size, empty.backbone
        if isinstance(tower, (QwenTower, NaflexTower)):
            tower.count_tokens(size)
            return tower.dim
        try:
            features = empty.eval()(torch.zeros(1, 1, size, size))
        except (ValueError, RuntimeError) as error:
            raise InputError(
                f"the vision encoder does not take images of this size: {one_line(error)}",
                file=self.path,
                field="data.image_size",
                got=size,
                expected=f"{getattr(empty.architecture, 'image_size', 'its own size')}, or a multiple of its patches",
            ) from None
        return int(features.tokens.shape[-1])

    def _statistics(self, shape: Any, saved: Path | None) -> tuple[list[float], list[float]]:
        """Mean and standard deviation per channel that the checkpoint's images were standardised with."""
        channels = int(getattr(shape, "num_channels", 3))
        # A restored run has them among its weights.
        settings = {} if saved else self._preprocessor()
        file = Path(self.path) / PREPROCESSOR
        if settings.get("do_normalize") is False:
            return [0.0] * channels, [1.0] * channels
        mean, std = settings.get("image_mean"), settings.get("image_std")
        if mean is None or std is None:
            return pixel_statistics(channels)
        numbers = checked(_Statistics, {"mean": mean, "std": std}, file=file)
        if not len(numbers.mean) == len(numbers.std) == channels or min(numbers.std) <= 0:
            raise InputError(
                "image_mean and image_std do not fit the model", file=file, got=(mean, std), expected=f"{channels} each"
            )
        return list(numbers.mean), list(numbers.std)


class _Statistics(Config):
    mean: tuple[float, ...]
    std: tuple[float, ...]


def _as_it_is(model: nn.Module) -> nn.Module:
    return model


def _leave_out_heads(shape: Any) -> None:
    """Remove the heads from a model's shape: parts that read tokens and return none."""
    if shape.model_type == "vit_mae":
        shape.mask_ratio = 0.0
    if hasattr(shape, "vision_use_head"):
        shape.vision_use_head = False
    if hasattr(shape, "deepstack_visual_indexes"):
        shape.deepstack_visual_indexes = []


def _patch_size(config: Any) -> tuple[int, int] | None:
    size = getattr(config, "patch_size", None)
    if isinstance(size, (list, tuple)) and len(size) == 2:
        return int(size[0]), int(size[1])
    return (size, size) if isinstance(size, int) else None
