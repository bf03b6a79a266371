"""Any vision model of transformers as a vision encoder: DINOv2, RAD-DINO, SigLIP, CLIP, ConvNeXt, BEiT, MAE and others;
and BiomedCLIP, or another ViT of timm, from a folder in the layout of open_clip.

    model.vision_encoder=transformers model.vision_encoder.path=FOLDER

The checkpoint says what it is: architecture and channels by its ``config.json``, normalisation by its
``preprocessor_config.json``. Of a model of images and texts the vision tower is taken.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import ValidationError
from torch import Tensor, nn

from radweave.base.batch import VisionFeatures
from radweave.base.config import Config, first_problem
from radweave.base.errors import InputError
from radweave.base.json_files import read_json
from radweave.base.study import Modality
from radweave.nn.lora import LoraSetting, NoLoraConfig, adapt
from radweave.nn.vision.open_clip import load_trunk
from radweave.nn.vision.pretrained import WHAT, pixel_statistics
from radweave.nn.vision.qwen_eyes import QwenEyes, tower_class
from radweave.outside.files import one_line
from radweave.outside.models import locate, model_class, read_model, read_shape
from radweave.outside.open_clip import (
    has_open_clip_layout,
    open_clip_standardisation,
    open_clip_weights,
)

FIELD = "vision_encoder.path"
PREPROCESSOR = "preprocessor_config.json"
_TOWER_WEIGHTS = {r"^(?:model\.)?vision_tower\.(?:vision_model\.)?": "", r"^(?:model\.)?visual\.": ""}
"""Where checkpoints of images and texts keep the weights of their vision tower, and their names there alone."""


class AnyVisionEncoder(nn.Module):
    """A vision model of transformers that returns patch tokens in row-major grid order.

    Grey images in [0, 1] are repeated to the model's channels and standardised with ``mean`` and ``std``, which are
    kept with the weights. What stands before the patches (a class token, registers) is dropped.
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

    def forward(self, pixel_values: Float[Tensor, "n c h w"]) -> VisionFeatures:
        """Encode images; ``c`` is 1 or the model's channels."""
        pixels = pixel_values.expand(-1, self.channels, -1, -1)
        states = self.backbone(pixel_values=(pixels - self.mean) / self.std, **self._options(pixels)).last_hidden_state
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
        """Rows and columns of the last tokens: of the patches, or of what a model that merges them has left."""
        if self._patch is not None:
            rows, columns = (side // patch for side, patch in zip(pixels.shape[-2:], self._patch, strict=True))
            if not tokens or rows * columns <= tokens:
                return rows, columns
        side = int(tokens**0.5)
        return side, side


class AnyVisionConfig(Config):
    """A vision model of transformers from the folder or hub name ``path``.

    Images come in at ``data.image_size``, which the model must take: its own size, or any multiple of its patches where
    its positions can be stretched. ``lora`` puts adapters on its linear maps, on all of them if it names no targets.
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
        wrap = QwenEyes if tower else _as_it_is
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
            shape, given = read_shape(self.path, what=WHAT), self._preprocessor()
        except InputError as error:
            raise InputError(
                error.reason, file=error.file, field=error.field or FIELD, got=error.got, expected=error.expected
            ) from None
        if tower_class(getattr(shape, "vision_config", shape).model_type):
            # Any size will do; what its processor calls one is how many pixels an image may have.
            return None
        for size in (given.get("crop_size"), given.get("size")):
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
        given = read_json(file) if file.is_file() else {}
        return given if isinstance(given, dict) else {}

    def _width(self, empty: AnyVisionEncoder) -> int:
        """The width of the tokens, by a pass without numbers, which also shows whether such images are taken."""
        size = empty.image_size
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
        given = {} if saved else self._preprocessor()
        file = Path(self.path) / PREPROCESSOR
        if given.get("do_normalize") is False:
            return [0.0] * channels, [1.0] * channels
        mean, std = given.get("image_mean"), given.get("image_std")
        if mean is None or std is None:
            return pixel_statistics(channels)
        try:
            numbers = _Statistics(mean=mean, std=std)
        except ValidationError as error:
            raise InputError(first_problem(error), file=file) from None
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
    """Leave out of a model's shape what reads its tokens and gives none."""
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
