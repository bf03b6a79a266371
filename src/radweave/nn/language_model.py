"""Causal language models behind one face: loss over a spliced prefix, and cached batched generation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from radweave.core.config import Config, Heads, Layers, Tokens, Width
from radweave.core.errors import InputError
from radweave.nn.decoding import DecodingConfig, Prefixes, Written, refuse_too_long, write, write_draws
from radweave.nn.global_batch import mean_over_batch
from radweave.nn.pretrained import Precision, Quantization, load_language_model

# LoRA adapters through peft.
#
# Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022.


MARK = "lora_"
"""Adapter parameters, and no others, have this in their name."""


class NoLoraConfig(Config):
    """No adapters."""

    kind: Literal["none"] = "none"

    def apply(self, model: nn.Module) -> nn.Module:
        return model


class LoraConfig(Config):
    """W + (alpha / rank) B A on the linear maps named ``targets``; None takes peft's choice for the architecture."""

    kind: Literal["lora"] = "lora"
    rank: Width = 16
    alpha: float = Field(default=16, gt=0)
    dropout: float = Field(default=0.1, ge=0, lt=1)
    targets: tuple[str, ...] | None = None

    def apply(self, model: nn.Module) -> nn.Module:
        """Put adapters into ``model``, in place; B starts at zero, so the output does not change.

        Adapters are float32 whatever the model is: steps of a small learning rate get lost in half precision.

        Raises:
            InputError: if no module has a target's name.
        """
        from peft import LoraConfig as PeftConfig
        from peft import inject_adapter_in_model

        config = PeftConfig(
            r=self.rank,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            target_modules=None if self.targets is None else list(self.targets),
        )
        try:
            adapted: nn.Module = inject_adapter_in_model(config, model)
        except ValueError as error:
            raise InputError(f"LoRA cannot be applied: {error}", field="lora.targets", got=self.targets) from None
        for name, parameter in adapted.named_parameters():
            if MARK in name and not parameter.is_meta:
                parameter.data = parameter.data.float()
        return adapted


LoraSetting = Annotated[NoLoraConfig | LoraConfig, Field(discriminator="kind")]


def adapt(network: nn.Module, lora: NoLoraConfig | LoraConfig) -> nn.Module:
    """Put adapters onto all linear maps of a network, or all convolutions where it has none, unless targets are named.

    Raises:
        InputError: if no module has a target's name.
    """
    if not isinstance(lora, LoraConfig) or lora.targets is not None:
        return lora.apply(network)
    maps = _named(network, nn.Linear) or _named(network, nn.Conv2d, nn.Conv3d)
    if not maps:
        raise InputError("LoRA cannot be applied: the part has no linear map", field="lora", expected="lora=none")
    return lora.model_copy(update={"targets": maps}).apply(network)


def _named(network: nn.Module, *kinds: type[nn.Module]) -> tuple[str, ...]:
    return tuple(name for name, part in network.named_modules() if isinstance(part, kinds))


def has_lora(model: nn.Module) -> bool:
    """Tell if a module holds adapters."""
    return any(MARK in name for name, _ in model.named_parameters())


def says_nothing(model: nn.Module) -> bool:
    """Tell if a module has adapters that all add exactly 0, as fresh ones do: without them it computes the same."""
    adapters = {name: value for name, value in model.named_parameters() if MARK in name}
    last = [value for name, value in adapters.items() if "lora_B" in name]
    # Adapters of another kind than a product B A begin otherwise.
    return 0 < len(last) == len(adapters) - len(last) and not any(bool(value.detach().any()) for value in last)


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """The model as it was before it got adapters; what trains, and how, is not touched."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    before = [layer.disable_adapters for layer in layers]
    # Not peft's enable_adapters: that freezes adapters and thaws all of them, and FSDP remembers who was frozen when it
    # first gathered them.
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer, was_off in zip(layers, before, strict=True):
            layer._disable_adapters = was_off


# The loss of every language model: the next token of a report, after a prefix of embeddings.


def position_ids(mask: Bool[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    """Count present tokens from 0; absent ones get 0."""
    return (mask.long().cumsum(dim=1) - 1).clamp(min=0)


def next_token_logits(
    model: Any,
    prefix: Float[Tensor, "batch prefix width"],
    prefix_mask: Bool[Tensor, "batch prefix"],
    text: Float[Tensor, "batch text width"],
    labels: Int[Tensor, "batch text"],
    inputs: Mapping[str, Any] | None = None,
) -> Float[Tensor, "batch text words"]:
    """Logits of each report token, given the prefix and the tokens before it.

    The prefix is left-padded and the report right-padded, so that they meet in one column: the last prefix position
    predicts the first report token, and ``labels`` are not shifted by the caller. Position ids count present tokens
    only, which makes a row independent of its padding.

    Args:
        model: a transformers model with a language model's head.
        prefix: embeddings before the report.
        prefix_mask: True where the prefix has a token.
        text: embeddings of the report's tokens.
        labels: the report's token ids, -100 where no loss is taken.
        inputs: further arguments of the forward pass, such as what cross-attention reads.
    """
    refuse_too_long(model.config, prefix.shape[1] + text.shape[1], "data.max_tokens")
    mask = torch.cat([prefix_mask, labels != -100], dim=1)
    logits = model(
        inputs_embeds=torch.cat([prefix, text], dim=1),
        attention_mask=mask.long(),
        position_ids=position_ids(mask),
        logits_to_keep=text.shape[1] + 1,
        use_cache=False,
        **(inputs or {}),
    ).logits[:, :-1]
    return cast(Tensor, logits.float())


def mean_loss(
    logits: Float[Tensor, "batch text words"],
    labels: Int[Tensor, "batch text"],
    weights: Float[Tensor, "batch text"] | None = None,
) -> Float[Tensor, ""]:
    """Mean negative log-likelihood of the labels that are not -100, over the global batch.

    With ``weights`` w it is sum w l / sum w.
    """
    flat = logits.flatten(0, 1), labels.flatten()
    if weights is None:
        total = F.cross_entropy(*flat, ignore_index=-100, reduction="sum")
        return mean_over_batch(total, (labels != -100).sum())
    apart = F.cross_entropy(*flat, ignore_index=-100, reduction="none")
    return mean_over_batch((weights.flatten() * apart).sum(), (weights * (labels != -100)).sum())


def study_nats(logits: Float[Tensor, "batch text words"], labels: Int[Tensor, "batch text"]) -> Float[Tensor, " batch"]:
    """Mean negative log-likelihood per token of each report; 0 for one without tokens."""
    nats = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100, reduction="none")
    return nats.sum(1) / (labels != -100).sum(1).clamp(min=1)


class Decoder(nn.Module):
    """A transformers model that writes, with the special ids of its tokenizer.

    ``token_dropout`` blanks that share of the report's input tokens while training, so that the next word must be read
    off the image rather than off the words before (Bowman et al., CoNLL 2016, Sec. 3.1).
    """

    def __init__(self, model: Any, *, bos_id: int | None, eos_id: int, pad_id: int, token_dropout: float = 0.0) -> None:
        super().__init__()
        self.model: Any = model
        self.bos_id = eos_id if bos_id is None else bos_id
        self.eos_id = eos_id
        self.pad_id = pad_id
        self.token_dropout = token_dropout

    @property
    def architecture(self) -> Any:
        """The model's transformers configuration."""
        return self.model.config

    @property
    def width(self) -> int:
        return int(self.model.get_input_embeddings().embedding_dim)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.model.get_input_embeddings().weight.dtype
        return dtype

    def embed(self, input_ids: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape width"]:
        """Word embeddings; positions are added inside the model."""
        out: Tensor = self.model.get_input_embeddings()(input_ids)
        return out

    def embed_text(self, input_ids: Int[Tensor, "batch text"]) -> Float[Tensor, "batch text width"]:
        """Word embeddings of a report; while training a share of ``token_dropout`` is zero, so that the next word must
        be read off something else.

        Source: Bowman et al., "Generating sentences from a continuous space", CoNLL 2016, Sec. 3.1 (word dropout).
        """
        text = self.embed(input_ids)
        if not (self.training and self.token_dropout):
            return text
        mask = torch.rand(text.shape[:2], device=text.device) >= self.token_dropout
        return text * mask[:, :, None]

    def logits_after(
        self, prompts: Prefixes, input_ids: Int[Tensor, "batch text"], labels: Int[Tensor, "batch text"]
    ) -> Float[Tensor, "batch text words"]:
        """Logits of each report token after its prompt, and the memory that cross-attention reads, if any.

        The last prompt position predicts the first report token, so ``labels`` are not shifted by the caller.
        """
        text, inputs = self.embed_text(input_ids), {}
        if prompts.memory is not None and prompts.memory_mask is not None:
            memory = prompts.memory.to(self.dtype)
            inputs = {"encoder_hidden_states": memory, "encoder_attention_mask": prompts.memory_mask.long()}
        return next_token_logits(self.model, prompts.embeds.to(self.dtype), prompts.mask, text, labels, inputs)


class CausalLanguageModel(Decoder):
    """A transformers causal language model that reads a prefix of embeddings.

    The prefix is left-padded and the report right-padded, so that prompt and report meet in one column; position
    ids count present tokens only, which makes a row independent of its padding.
    """

    def loss(
        self,
        prefix: Float[Tensor, "batch prefix width"],
        prefix_mask: Bool[Tensor, "batch prefix"],
        input_ids: Int[Tensor, "batch text"],
        labels: Int[Tensor, "batch text"],
        weights: Float[Tensor, "batch text"] | None = None,
    ) -> Float[Tensor, ""]:
        """Mean negative log-likelihood of the labels that are not -100, weighted where there are ``weights``."""
        return mean_loss(self.logits(prefix, prefix_mask, input_ids, labels), labels, weights)

    def logits(
        self,
        prefix: Float[Tensor, "batch prefix width"],
        prefix_mask: Bool[Tensor, "batch prefix"],
        input_ids: Int[Tensor, "batch text"],
        labels: Int[Tensor, "batch text"],
    ) -> Float[Tensor, "batch text words"]:
        """Logits of each report token."""
        return self.logits_after(Prefixes(prefix, prefix_mask), input_ids, labels)

    def text_loss(
        self,
        input_ids: Int[Tensor, "batch text"],
        labels: Int[Tensor, "batch text"],
        weights: Float[Tensor, "batch text"] | None = None,
    ) -> Float[Tensor, ""]:
        """Mean negative log-likelihood of reports without any image, after the begin token.

        Trained on it, a small language model is a pretrained one: "frozen" then means something at tiny sizes.
        """
        begin = torch.full_like(input_ids[:, :1], self.bos_id)
        prefix = self.embed(begin)
        mask = torch.ones(begin.shape, dtype=torch.bool, device=begin.device)
        return self.loss(prefix, mask, input_ids, labels, weights)

    def generate(
        self,
        prefix: Float[Tensor, "batch prefix width"],
        prefix_mask: Bool[Tensor, "batch prefix"],
        decoding: DecodingConfig,
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Decode with a key-value cache.

        Returns:
            Token ids per row, without end or padding, and the log-probability of each of those tokens.
        """
        return next(self.write(iter([Prefixes(prefix, prefix_mask)]), decoding))

    def write(self, batches: Iterator[Prefixes], decoding: DecodingConfig) -> Iterator[Written]:
        """Reports for batches of prompts, in order: see ``radweave.nn.decoding.write``."""
        prompts = (replace(one, embeds=one.embeds.to(self.dtype)) for one in batches)
        return write(self.model, prompts, decoding, eos_id=self.eos_id, pad_id=self.pad_id)

    def write_draws(
        self, prompts: Sequence[Prefixes], decoding: DecodingConfig, draws: int, *, numbered_from: int | None = None
    ) -> list[list[list[int]]]:
        """Token ids of the likeliest report of each study, and then of ``draws`` drawn ones. No end, no padding.

        With ``numbered_from``, the number of the first study, each has random numbers of its own.
        """
        typed = [replace(one, embeds=one.embeds.to(self.dtype)) for one in prompts]
        return write_draws(
            self.model, typed, decoding, draws, eos_id=self.eos_id, pad_id=self.pad_id, numbered_from=numbered_from
        )


class LlamaConfig(Config):
    """A Llama-type decoder built from nothing; its vocabulary is the tokenizer's.

    Weights start at 1 / sqrt(hidden_size) and words at ``embedding_std``, near the scale of visual tokens. With Llama's
    own 0.02, which suits widths of thousands, a small decoder takes longer to look at the image; see the method page.
    """

    kind: Literal["llama"] = "llama"
    hidden_size: Width = 256
    num_layers: Layers = 4
    num_heads: Heads = 4
    num_key_value_heads: Heads | None = None
    intermediate_size: Width | None = None
    max_positions: Tokens = 2048
    dropout: float = 0.0
    embedding_std: float = Field(default=0.5, gt=0)
    token_dropout: float = Field(default=0.0, ge=0, lt=1)
    lora: LoraSetting = NoLoraConfig()

    def build(
        self,
        *,
        vocab_size: int,
        bos_id: int | None,
        eos_id: int,
        pad_id: int,
        spare: int = 0,
        saved: Path | None = None,
    ) -> CausalLanguageModel:
        """Build with random weights; vocabulary and special ids are the tokenizer's. ``saved`` is not needed."""
        from transformers import LlamaConfig as HFConfig
        from transformers import LlamaForCausalLM

        config = HFConfig(
            vocab_size=vocab_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            num_key_value_heads=self.num_key_value_heads or self.num_heads,
            intermediate_size=self.intermediate_size or 4 * self.hidden_size,
            max_position_embeddings=self.max_positions,
            attention_dropout=self.dropout,
            bos_token_id=bos_id,
            eos_token_id=eos_id,
            pad_token_id=pad_id,
            tie_word_embeddings=False,
            initializer_range=self.hidden_size**-0.5,
        )
        llama = LlamaForCausalLM(config)
        nn.init.normal_(llama.get_input_embeddings().weight, std=self.embedding_std)
        model = self.lora.apply(llama)
        return CausalLanguageModel(model, bos_id=bos_id, eos_id=eos_id, pad_id=pad_id, token_dropout=self.token_dropout)


class PretrainedLanguageModelConfig(Config):
    """Any causal language model that transformers loads from a folder or hub name, or the text part of a larger one.

    Of a checkpoint of images and texts (MedGemma, LLaVA, Qwen-VL) only the weights of the text part are loaded.

    ``quantization`` loads the weights in 8 or 4 bits (extra ``quantization``); such weights cannot train, adapters on
    them can. ``gradient_checkpointing`` trades time for memory in training.
    """

    kind: Literal["pretrained"] = "pretrained"
    path: str
    dtype: Precision = "float32"
    quantization: Quantization = "none"
    gradient_checkpointing: bool = False
    token_dropout: float = Field(default=0.0, ge=0, lt=1)
    lora: LoraSetting = NoLoraConfig()

    def build(
        self,
        *,
        vocab_size: int,
        bos_id: int | None,
        eos_id: int,
        pad_id: int,
        spare: int = 0,
        saved: Path | None = None,
    ) -> CausalLanguageModel:
        """Load the weights; with ``saved`` only the shape, from the ``config.json`` kept in a run folder.

        Raises:
            InputError: if there is no such checkpoint, it is no causal language model, its vocabulary is smaller than
                the tokenizer's, or the quantisation asked for cannot run here.
        """
        model, _ = load_language_model(
            self.path,
            vocab_size=vocab_size - spare,
            dtype=self.dtype,
            saved=saved,
            quantization=self.quantization,
        )
        if self.gradient_checkpointing:
            model.gradient_checkpointing_enable()
        adapted = self.lora.apply(model)
        return CausalLanguageModel(
            adapted, bos_id=bos_id, eos_id=eos_id, pad_id=pad_id, token_dropout=self.token_dropout
        )


TINY_LLAMA = LlamaConfig(hidden_size=128, num_layers=2, num_heads=4, intermediate_size=256, token_dropout=0.2)
"""The decoder of the tiny presets: 0.6 million weights, the same for every method that has a causal one."""
SMALL_LLAMA = LlamaConfig(hidden_size=640, num_layers=10, num_heads=10, dropout=0.1)
"""The decoder of the small presets: about sixty million weights and the words."""

LanguageModelConfig = Annotated[LlamaConfig | PretrainedLanguageModelConfig, Field(discriminator="kind")]
