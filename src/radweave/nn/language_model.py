"""Causal language models behind one face: loss over a spliced prefix, and cached batched generation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from radweave.base.config import Config, Heads, Layers, Tokens, Width
from radweave.nn.decoding import DecodingConfig, Prefixes, Written, write, write_draws
from radweave.nn.lora import LoraSetting, NoLoraConfig
from radweave.nn.next_token import blank_tokens, next_token_loss
from radweave.nn.pretrained import Precision, Quantization, load_language_model

__all__ = [
    "CausalLanguageModel",
    "DecodingConfig",
    "LanguageModelConfig",
    "LlamaConfig",
    "PretrainedLanguageModelConfig",
]


class CausalLanguageModel(nn.Module):
    """A transformers causal language model that reads a prefix of embeddings.

    The prefix is left-padded and the report right-padded, so that prompt and report meet in one column; position
    ids count present tokens only, which makes a row independent of its padding.

    ``token_dropout`` blanks that share of the report's input tokens while training, so that the next word must be read
    off the image rather than off the words before (Bowman et al., CoNLL 2016, Sec. 3.1).
    """

    def __init__(self, model: Any, *, bos_id: int | None, eos_id: int, pad_id: int, token_dropout: float = 0.0) -> None:
        super().__init__()
        self.model: Any = model
        self.bos_id = eos_id if bos_id is None else bos_id
        self.token_dropout = token_dropout
        self.eos_id = eos_id
        self.pad_id = pad_id

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
        out: Tensor = self.model.get_input_embeddings()(input_ids)
        return out

    def loss(
        self,
        prefix: Float[Tensor, "batch prefix width"],
        prefix_mask: Bool[Tensor, "batch prefix"],
        input_ids: Int[Tensor, "batch text"],
        labels: Int[Tensor, "batch text"],
    ) -> Float[Tensor, ""]:
        """Mean negative log-likelihood of the labels that are not -100.

        The last prefix position predicts the first report token, so ``labels`` are not shifted by the caller.
        """
        text = self.embed(input_ids)
        if self.training and self.token_dropout:
            text = blank_tokens(text, self.token_dropout)
        return next_token_loss(self.model, prefix.to(self.dtype), prefix_mask, text, labels)

    def text_loss(self, input_ids: Int[Tensor, "batch text"], labels: Int[Tensor, "batch text"]) -> Float[Tensor, ""]:
        """Mean negative log-likelihood of reports without any image, after the begin token.

        Trained on it, a small language model is a pretrained one: "frozen" then means something at tiny sizes.
        """
        begin = torch.full_like(input_ids[:, :1], self.bos_id)
        prefix = self.embed(begin)
        mask = torch.ones(begin.shape, dtype=torch.bool, device=begin.device)
        return self.loss(prefix, mask, input_ids, labels)

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

    def write_draws(self, prompts: Sequence[Prefixes], decoding: DecodingConfig, draws: int) -> list[list[list[int]]]:
        """Token ids of the likeliest report of each study, and then of ``draws`` drawn ones. No end, no padding."""
        given = [replace(one, embeds=one.embeds.to(self.dtype)) for one in prompts]
        return write_draws(self.model, given, decoding, draws, eos_id=self.eos_id, pad_id=self.pad_id)


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
