"""Memory estimates of methods on torch's meta device, without weights, data or downloads."""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from radweave.core.foreign_models import make_shape, read_shape
from radweave.core.ontology import CLASSES
from radweave.methods import resolve
from radweave.methods.experiment import BuildContext, DataConfig, Experiment
from radweave.methods.model import Prompting, ReportModel, StudySize, named_parts
from radweave.methods.stage import RewardStageConfig, Trainability, apply_finetune
from radweave.nn.encoder_decoder import CrossAttentionLanguageModel, PretrainedBertDecoderConfig
from radweave.nn.language_model import MARK, CausalLanguageModel
from radweave.nn.pretrained import Quantization, text_shape
from radweave.nn.vision import InputSize, tokens_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Activations are counted, not derived from a formula: a pass with torch's fake tensors has real shapes, types and
# kernels, but no memory. This covers every architecture, mixed precision and adapters.

UNCOUNTABLE = (DataDependentOutputException, DynamicOutputShapeException)
"""Errors of passes whose shapes depend on values."""


def saved_bytes(part: nn.Module, run: Callable[[], Tensor], *, half: bool) -> int:
    """Bytes that autograd saves in ``run``, without weights and their views.

    Args:
        part: the module on the meta device, with ``requires_grad`` set.
        run: a forward pass of the part that makes its own inputs.
        half: mixed precision, as a stage with ``precision=bfloat16``.
    """
    storages: dict[int, Any] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage
        return tensor

    with FakeTensorMode():
        _give_fake_weights(part)
        own = {tensor.untyped_storage()._cdata for tensor in (*part.parameters(), *part.buffers())}
        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with hooks, torch.autocast("cpu", torch.bfloat16, enabled=half):
            end = run()
        total = sum(storage.nbytes() for key, storage in storages.items() if key not in own)
        del end
    return int(total)


def most_saved_bytes(part: nn.Module, run: Callable[[], Tensor], *, half: bool) -> int:
    """The peak of saved bytes: with gradient checkpointing the backward pass recomputes one layer at a time."""
    saved = saved_bytes(part, run, half=half)
    models: list[Any] = [module for module in part.modules() if hasattr(module, "gradient_checkpointing_disable")]
    # Not the model's own property, whose name changes between versions of transformers.
    whole = [model for model in models if any(getattr(one, "gradient_checkpointing", False) for one in model.modules())]
    if not whole:
        return saved
    shaped: Any = part
    config = shaped.architecture
    layers = getattr(config, "num_hidden_layers", None) or getattr(config, "depth", None) or sum(config.depths)
    for model in whole:
        model.gradient_checkpointing_disable()
    return saved + (saved_bytes(part, run, half=half) - saved) // int(layers)


def vision_pass(encoder: nn.Module, data: DataConfig, batch: int) -> Callable[[], Tensor]:
    """A pass of the vision encoder over a batch of studies with the most views."""
    volume = data.ct.size
    shape = (batch * data.max_views, 1, data.image_size, data.image_size) if volume is None else (batch, 1, *volume)

    def run() -> Tensor:
        tokens: Tensor = encoder(torch.zeros(shape)).tokens
        return tokens

    return run


def language_pass(
    part: CausalLanguageModel | CrossAttentionLanguageModel, batch: int, prompt: int, report: int
) -> Callable[[], Tensor]:
    """The loss of reports of full length after a differentiable prompt."""

    def run() -> Tensor:
        ids = torch.zeros(batch, report, dtype=torch.long)
        read = torch.zeros(batch, prompt, part.width, dtype=part.dtype, requires_grad=True)
        mask = torch.ones(batch, prompt, dtype=torch.bool)
        if isinstance(part, CausalLanguageModel):
            return part.loss(read, mask, ids, ids)
        return part.loss(read, mask, None, None, ids, ids)

    return run


def _give_fake_weights(part: nn.Module) -> None:
    """Replace weights and buffers by fake tensors; shared ones stay shared."""
    made: dict[int, Tensor] = {}

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            new = torch.empty(tensor.shape, dtype=tensor.dtype)
            made[id(tensor)] = nn.Parameter(new, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new
        return made[id(tensor)]

    for module in part.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    table[name] = fake(tensor)  # type: ignore[assignment]


# Shapes of published checkpoints that presets name, known without a download.

_BERT_BASE = {"model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
_LLAMA_2_7B = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}

PUBLISHED: dict[str, dict[str, Any]] = {
    "meta-llama/Llama-2-7b-hf": _LLAMA_2_7B,
    "meta-llama/Llama-2-7b-chat-hf": _LLAMA_2_7B,
    "microsoft/phi-4": {
        "model_type": "phi3",
        "vocab_size": 100352,
        "hidden_size": 5120,
        "intermediate_size": 17920,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "num_key_value_heads": 10,
        "max_position_embeddings": 16384,
        "tie_word_embeddings": False,
    },
    "emilyalsentzer/Bio_ClinicalBERT": {**_BERT_BASE, "vocab_size": 28996},
    "bert-base-uncased": {**_BERT_BASE, "vocab_size": 30522},
    "google-bert/bert-base-uncased": {**_BERT_BASE, "vocab_size": 30522},
    "microsoft/swin-base-patch4-window7-224": {
        "model_type": "swin",
        "image_size": 224,
        "num_channels": 3,
        "embed_dim": 128,
        "depths": [2, 2, 18, 2],
        "num_heads": [4, 8, 16, 32],
        "window_size": 7,
    },
    "google/vit-base-patch16-224-in21k": {
        "model_type": "vit",
        "image_size": 224,
        "patch_size": 16,
        "num_channels": 3,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    },
    "microsoft/resnet-101": {"model_type": "resnet", "num_channels": 3, "depths": [3, 4, 23, 3]},
}


WRITERS = CausalLanguageModel | CrossAttentionLanguageModel
GRADIENT_BYTES = 4
ADAMW_BYTES = 8
"""Two moments of four bytes per trained parameter."""
QUANTIZED_BYTES: Mapping[Quantization, float] = {"8bit": 1.0, "4bit": 0.5 + 4 / 64}
"""Bytes per weight of a linear map; at four bits with a float32 scale per block of 64 (Dettmers et al., 2023)."""


@dataclass(frozen=True, slots=True)
class PartSize:
    """A part of a model: its parameters, how many of them train, and the bytes of its weights."""

    parameters: int
    trainable: int
    weight_bytes: int

    @property
    def gradients(self) -> int:
        return self.trainable * GRADIENT_BYTES

    @property
    def optimizer(self) -> int:
        return self.trainable * ADAMW_BYTES


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes on each of ``ranks`` processes in the last stage of a method.

    ``saved`` is saved for the backward pass by the vision encoder and the language model, without the parts between.
    With several ranks the model is sharded as ``--parallel fsdp`` does it: each holds the whole weights once and its
    shard of weights, gradients and optimiser state, and has its share of the batch.
    """

    parts: dict[str, PartSize]
    batch_size: int
    tokens: int
    saved: dict[str, int]
    kv_cache: int
    ranks: int = 1

    @property
    def parameters(self) -> int:
        return sum(part.parameters for part in self.parts.values())

    @property
    def trainable(self) -> int:
        return sum(part.trainable for part in self.parts.values())

    @property
    def activations(self) -> int:
        return sum(self.saved.values())

    @property
    def weights(self) -> int:
        whole = sum(part.weight_bytes for part in self.parts.values())
        return whole if self.ranks == 1 else whole + self._shard(whole)

    @property
    def gradients(self) -> int:
        return self._shard(sum(part.gradients for part in self.parts.values()))

    @property
    def optimizer(self) -> int:
        return self._shard(sum(part.optimizer for part in self.parts.values()))

    @property
    def training(self) -> int:
        """The backward pass frees activations while gradients come: the greater of the two counts, not both."""
        return self.weights + self.optimizer + max(self.gradients, self.activations)

    @property
    def generation(self) -> int:
        return sum(part.weight_bytes for part in self.parts.values()) + self.kv_cache

    def _shard(self, total: int) -> int:
        return math.ceil(total / self.ranks)


def estimate(
    method: str, preset: str, overrides: Sequence[str] = (), *, prompt_tokens: int | None = None, ranks: int = 1
) -> Estimate:
    """Sizes of a method's parts and the memory its last stage needs.

    Args:
        method: the method.
        preset: its preset.
        overrides: changes to it.
        prompt_tokens: tokens before the report, those of the image among them; None for the most that the configuration
            allows.
        ranks: processes over which the model is sharded.

    Raises:
        InputError: for an unknown method, preset or field, or a checkpoint whose shape is not known here.
    """
    return estimate_of(resolve(method, preset, overrides), prompt_tokens=prompt_tokens, ranks=ranks)


def estimate_of(experiment: Experiment, *, prompt_tokens: int | None = None, ranks: int = 1) -> Estimate:
    """The same for an experiment.

    Raises:
        InputError: for a checkpoint whose shape is not known here.
    """
    model = build_on_meta(experiment)
    stage = list(experiment.named_stages().values())[-1]
    quantizations: dict[str, Quantization] = {
        name: getattr(record, "quantization", getattr(experiment.model, "quantization", "none"))
        for name, record in experiment.model
    }
    parts = part_sizes(model, stage.finetune, quantizations)
    if prompt_tokens is None:
        writes = any(isinstance(part, WRITERS) for part in named_parts(model).values())
        prompt_tokens = longest_prompt(model, experiment.data) if writes else 0
    tokens = prompt_tokens + experiment.data.max_tokens
    batch, cache = math.ceil(stage.batch_size / ranks), 0
    activations: dict[str, int] = {}
    model.train()
    for name, part in named_parts(model).items():
        if isinstance(part, WRITERS):
            samples = stage.samples if isinstance(stage, RewardStageConfig) else 0
            rows = stage.batch_size * max(experiment.decoding.num_beams, samples + 1)
            cache = kv_cache_bytes(part.architecture, rows, tokens, part.dtype.itemsize)
            if not stage.learns:
                continue
            run = language_pass(part, batch * max(1, samples), prompt_tokens, experiment.data.max_tokens)
        elif part is model.encoder and any(weight.requires_grad for weight in part.parameters()):
            run = vision_pass(part, experiment.data, batch)
        else:
            continue
        try:
            activations[name] = most_saved_bytes(part, run, half=stage.precision == "bfloat16")
        except UNCOUNTABLE:  # Qwen-VL's tower
            warnings.warn(
                f"the activations of {name} hang on numbers, not on shapes, and are not counted", stacklevel=2
            )
    return Estimate(parts, stage.batch_size, tokens, activations, cache, ranks)


def longest_prompt(model: ReportModel, data: DataConfig) -> int:
    """The most tokens that a model's decoder reads before a report: of a study with ``data.max_views`` views.

    A method that does not say (``Prompting``) is taken to read the tokens of all views, and its context.
    """
    views = 1 if data.ct.size else data.max_views
    tokens = tokens_of(model.encoder, InputSize(data.image_size, data.ct.size))
    context = data.input_tokens if data.input_sections else 0
    if isinstance(model, Prompting):
        return model.prompt_tokens(StudySize(views, tokens, context, prior=data.priors))
    return views * tokens + context


def build_on_meta(experiment: Experiment, tokenizer: PreTrainedTokenizerBase | None = None) -> ReportModel:
    """The model without any weights; ``tokenizer`` is its own, or one of its size stands in.

    Raises:
        InputError: for a checkpoint whose shape is not known here, or that does not fit.
    """
    words = tokenizer or _stand_in_tokenizer(getattr(experiment.data.tokenizer, "vocab_size", 0), experiment)
    with tempfile.TemporaryDirectory() as folder:
        for name, record in experiment.model:
            if getattr(record, "path", None) is not None:
                _write_shape(record, Path(folder) / name, words)
        experiment.model.write_shapes(Path(folder))
        classes = CLASSES[experiment.data.label_set]
        data = experiment.data
        context = BuildContext(
            words,
            data.image_size,
            classes,
            parts=Path(folder),
            volume_size=data.ct.size,
            priors=data.priors,
        )
        with torch.device("meta"):
            return experiment.build(context)


def part_sizes(
    model: ReportModel, finetune: Mapping[str, Trainability], quantizations: Mapping[str, Quantization] | None = None
) -> dict[str, PartSize]:
    """Sizes of the parts, with what trains as a stage would have it; parts without parameters are left out."""
    apply_finetune(model, finetune)
    sizes = {}
    for name, part in named_parts(model).items():
        parameters = list(part.parameters())
        if parameters:
            sizes[name] = PartSize(
                parameters=sum(p.numel() for p in parameters),
                trainable=sum(p.numel() for p in parameters if p.requires_grad),
                weight_bytes=_weight_bytes(part, (quantizations or {}).get(name, "none")),
            )
    return sizes


def _weight_bytes(part: Any, quantization: Quantization) -> int:
    """Bytes of the weights. Quantised are the linear maps, but not adapters, nor the one that gives the words."""
    total = sum(int(weight.numel() * weight.element_size()) for weight in part.parameters())
    if quantization == "none":
        return total
    head = part.model.get_output_embeddings() if isinstance(part, WRITERS) else None
    maps = [
        module.weight
        for name, module in part.named_modules()
        if isinstance(module, nn.Linear) and module is not head and MARK not in name
    ]
    saved = sum(weight.numel() * (weight.element_size() - QUANTIZED_BYTES[quantization]) for weight in maps)
    return int(total - saved)


def kv_cache_bytes(architecture: Any, rows: int, tokens: int, bytes_per_number: int) -> int:
    """A key and a value per layer, head, row and token. ``rows`` are studies times beams."""
    heads = getattr(architecture, "num_key_value_heads", None) or architecture.num_attention_heads
    head_dim = getattr(architecture, "head_dim", None) or architecture.hidden_size // architecture.num_attention_heads
    return int(2 * architecture.num_hidden_layers * heads * head_dim * rows * tokens * bytes_per_number)


def _texts(experiment: Experiment) -> list[str]:
    """The words of an experiment's prompts, and the names of its classes."""
    waiting: list[Any] = [experiment.model.model_dump()]
    texts = [name.lower() for name in CLASSES[experiment.data.label_set]]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, str) and " " in value:
            texts.append(value)
    return texts


def _stand_in_tokenizer(size: int, experiment: Experiment) -> Any:
    """A tokenizer of this size that learned its words from the prompts: most words of a prompt are one token, as in a
    vocabulary learned from many texts. Where the language model brings its words, the size is 0 and theirs counts.
    """
    from radweave.data.tokenizer import BpeTokenizerConfig

    record = getattr(experiment.model, "language_model", None)
    size_of_words = size or int(getattr(_shape(record), "vocab_size", 300) if getattr(record, "path", None) else 300)
    texts = _texts(experiment)
    tokenizer = BpeTokenizerConfig(vocab_size=max(300, min(size_of_words, 2000))).build([*texts, *texts])
    tokenizer.add_tokens([f"<{number}>" for number in range(size - len(tokenizer))])
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    return tokenizer


def _shape(record: Any) -> Any:
    """The transformers configuration of a pretrained part."""
    if record.path in PUBLISHED:
        shape = dict(PUBLISHED[record.path])
        return make_shape(shape.pop("model_type"), **shape)
    config = read_shape(record.path, what="the shape of a checkpoint")
    return text_shape(config) if hasattr(record, "token_dropout") else config


def _write_shape(record: Any, folder: Path, tokenizer: Any) -> None:
    """Write the shape of a pretrained part as a run folder has it."""
    folder.mkdir()
    if getattr(record, "own_shape", False):
        return
    config = _shape(record)
    if isinstance(record, PretrainedBertDecoderConfig):
        config.is_decoder = config.add_cross_attention = True
    config.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
