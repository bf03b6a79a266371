"""How much memory a method needs, worked out on torch's meta device: no weights, no data, no download."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from radweave.base.ontology import CLASSES
from radweave.contract.experiment import BuildContext, Experiment
from radweave.contract.model import ReportModel, parts_of
from radweave.contract.stage import Trainability, apply_finetune
from radweave.estimate.published_shapes import PUBLISHED
from radweave.methods import resolve
from radweave.nn.encoder_decoder import CrossAttentionLanguageModel
from radweave.nn.language_model import CausalLanguageModel, PretrainedLanguageModelConfig
from radweave.outside.models import make_shape, read_shape

GRADIENT_BYTES = 4
ADAMW_BYTES = 8
"""Two moments of four bytes for each parameter that trains."""
ACTIVATION_BYTES = 34
"""Per token and unit of width in a layer, in half precision and without the attention matrix, which is never stored
(Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022, Eq. 1). Twice that in
float32."""


@dataclass(frozen=True, slots=True)
class PartSize:
    """A part of a model: its parameters, how many of them train, and the bytes of its weights."""

    parameters: int
    trainable: int
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes for the last stage of a method. ``activations`` are rough, and of the language model alone."""

    parts: dict[str, PartSize]
    batch_size: int
    tokens: int
    activations: int
    kv_cache: int

    @property
    def parameters(self) -> int:
        return sum(part.parameters for part in self.parts.values())

    @property
    def trainable(self) -> int:
        return sum(part.trainable for part in self.parts.values())

    @property
    def weights(self) -> int:
        return sum(part.weight_bytes for part in self.parts.values())

    @property
    def gradients(self) -> int:
        return self.trainable * GRADIENT_BYTES

    @property
    def optimizer(self) -> int:
        return self.trainable * ADAMW_BYTES

    @property
    def training(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations

    @property
    def generation(self) -> int:
        return self.weights + self.kv_cache


def estimate(method: str, preset: str, overrides: Sequence[str] = (), *, prompt_tokens: int = 128) -> Estimate:
    """Sizes of a method's parts and the memory its last stage needs.

    Args:
        method: the method.
        preset: its preset.
        overrides: changes to it.
        prompt_tokens: tokens before the report, those of the image among them.

    Raises:
        InputError: for an unknown method, preset or field, or a checkpoint whose shape is not known here.
    """
    return estimate_of(resolve(method, preset, overrides), prompt_tokens=prompt_tokens)


def estimate_of(experiment: Experiment, *, prompt_tokens: int = 128) -> Estimate:
    """The same for an experiment.

    Raises:
        InputError: for a checkpoint whose shape is not known here.
    """
    model = build_on_meta(experiment)
    stage = list(experiment.named_stages().values())[-1]
    parts = part_sizes(model, stage.finetune)
    tokens = prompt_tokens + experiment.data.max_tokens
    activations = cache = 0
    for name, part in parts_of(model).items():
        if isinstance(part, CausalLanguageModel | CrossAttentionLanguageModel):
            record = dict(experiment.model)[name]
            checkpointed = isinstance(record, PretrainedLanguageModelConfig) and record.gradient_checkpointing
            half = stage.precision == "bfloat16" or part.dtype != torch.float32
            activations = activation_bytes(part.architecture, stage.batch_size, tokens, half, checkpointed)
            rows = stage.batch_size * experiment.decoding.num_beams
            cache = kv_cache_bytes(part.architecture, rows, tokens, part.dtype.itemsize)
    return Estimate(parts, stage.batch_size, tokens, activations, cache)


def build_on_meta(experiment: Experiment) -> ReportModel:
    """The model without any weights."""
    tokenizer = _stand_in_tokenizer(getattr(experiment.data.tokenizer, "vocab_size", 0))
    with tempfile.TemporaryDirectory() as folder:
        for name, record in experiment.model:
            if getattr(record, "path", None) is not None:
                _write_shape(record, Path(folder) / name, tokenizer)
        classes = CLASSES[experiment.data.label_set]
        data = experiment.data
        context = BuildContext(tokenizer, data.image_size, classes, parts=Path(folder), volume_size=data.ct.size)
        with torch.device("meta"):
            return experiment.model.build(context)


def part_sizes(model: ReportModel, finetune: Mapping[str, Trainability]) -> dict[str, PartSize]:
    """Sizes of the parts, with what trains as a stage would have it; parts without parameters are left out."""
    apply_finetune(model, finetune)
    sizes = {}
    for name, part in parts_of(model).items():
        parameters = list(part.parameters())
        if parameters:
            sizes[name] = PartSize(
                parameters=sum(p.numel() for p in parameters),
                trainable=sum(p.numel() for p in parameters if p.requires_grad),
                weight_bytes=sum(p.numel() * p.element_size() for p in parameters),
            )
    return sizes


def lora_parameters(rank: int, shapes: Sequence[tuple[int, int]]) -> int:
    """Parameters of adapters on linear maps of these (inputs, outputs): rank times their sum, for each."""
    return sum(rank * (inputs + outputs) for inputs, outputs in shapes)


def kv_cache_bytes(architecture: Any, rows: int, tokens: int, bytes_per_number: int) -> int:
    """A key and a value per layer, head, row and token. ``rows`` are studies times beams."""
    heads = getattr(architecture, "num_key_value_heads", None) or architecture.num_attention_heads
    head_dim = getattr(architecture, "head_dim", None) or architecture.hidden_size // architecture.num_attention_heads
    return int(2 * architecture.num_hidden_layers * heads * head_dim * rows * tokens * bytes_per_number)


def activation_bytes(architecture: Any, batch_size: int, tokens: int, half: bool, checkpointed: bool) -> int:
    """What a decoder keeps for the backward pass; with checkpointing the input of each layer and one layer whole."""
    per_layer = batch_size * tokens * architecture.hidden_size
    layers = architecture.num_hidden_layers
    numbers = per_layer * (2 * layers + ACTIVATION_BYTES) if checkpointed else per_layer * layers * ACTIVATION_BYTES
    return int(numbers if half else 2 * numbers)


def _stand_in_tokenizer(size: int) -> Any:
    """A tokenizer of the right size: only its length and its special tokens matter here."""
    from radweave.data.tokenizer import BpeTokenizerConfig

    tokenizer = BpeTokenizerConfig(vocab_size=300).build([])
    tokenizer.add_tokens([f"<{number}>" for number in range(size - len(tokenizer))])
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    return tokenizer


def _write_shape(record: Any, folder: Path, tokenizer: Any) -> None:
    """What a run folder keeps of a pretrained part."""
    folder.mkdir()
    if getattr(record, "own_shape", False):
        return
    if record.path in PUBLISHED:
        shape = dict(PUBLISHED[record.path])
        config = make_shape(shape.pop("model_type"), **shape)
    else:
        config = read_shape(record.path, what="the shape of a checkpoint")
    if hasattr(record, "lora") and config.model_type == "bert":
        config.is_decoder = config.add_cross_attention = True
    config.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
