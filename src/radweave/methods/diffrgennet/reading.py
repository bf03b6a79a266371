"""Input of the decoder, and the two kinds of decoder: cross-attention, or a causal language model with a prefix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from radweave.core.config import Config
from radweave.nn.decoding import Prefixes
from radweave.nn.encoder_decoder import BertDecoderConfig, CrossAttentionLanguageModel, PretrainedBertDecoderConfig
from radweave.nn.language_model import CausalLanguageModel, LlamaConfig, PretrainedLanguageModelConfig, mean_loss
from radweave.nn.prompt import PromptTemplate, Slot

SLOTS = ("memory", "diseases")


class PretrainedCausalConfig(PretrainedLanguageModelConfig):
    """A pretrained causal language model in place of the BERT decoder."""

    kind: Literal["pretrained_causal"] = "pretrained_causal"  # type: ignore[assignment]


DecoderConfig = Annotated[
    BertDecoderConfig | PretrainedBertDecoderConfig | LlamaConfig | PretrainedCausalConfig, Field(discriminator="kind")
]
Decoder = CrossAttentionLanguageModel | CausalLanguageModel


class MemoryBridge(nn.Module):
    """To the decoder's width, if that is not the shared one, with a learned mark: image, similar or difference."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.projection = nn.Identity() if dim == width else nn.Sequential(nn.Linear(dim, width), nn.LayerNorm(width))
        self.mark = nn.Embedding(3, width)
        nn.init.normal_(self.mark.weight, std=0.02)

    def forward(self, *parts: Tensor) -> list[Float[Tensor, "batch tokens width"]]:
        """F, similar and difference, each with its mark."""
        return [self.projection(part) + self.mark.weight[kind] for kind, part in enumerate(parts)]


class MemoryBridgeConfig(Config):
    """Nothing to choose."""

    def build(self, dim: int, width: int) -> MemoryBridge:
        return MemoryBridge(dim, width)


@dataclass(frozen=True, slots=True)
class Reading:
    """Input of the decoder: ``memory`` (B, M, H), a slot with one token for each disease (B, K, H), and the study's
    context, where there is any.
    """

    memory: Float[Tensor, "batch memory width"]
    memory_mask: Bool[Tensor, "batch memory"]
    diseases: Slot
    context: Slot | None = None

    def loss(
        self,
        decoder: Decoder,
        template: PromptTemplate,
        input_ids: Int[Tensor, "batch text"],
        labels: Int[Tensor, "batch text"],
        weights: Float[Tensor, "batch text"] | None = None,
    ) -> Float[Tensor, ""]:
        """Mean negative log-likelihood of the report, weighted where there are ``weights``."""
        return mean_loss(self.logits(decoder, template, input_ids, labels), labels, weights)

    def logits(
        self,
        decoder: Decoder,
        template: PromptTemplate,
        input_ids: Int[Tensor, "batch text"],
        labels: Int[Tensor, "batch text"],
    ) -> Float[Tensor, "batch text words"]:
        """Logits of each report token."""
        if isinstance(decoder, CrossAttentionLanguageModel):
            return decoder.logits(self.memory, self.memory_mask, *self._before(), input_ids, labels)
        return decoder.logits(*self._prefix(decoder, template), input_ids, labels)

    def prompts(self, decoder: Decoder, template: PromptTemplate) -> Prefixes:
        """Prefixes of the reports."""
        if isinstance(decoder, CrossAttentionLanguageModel):
            return decoder.prompts(self.memory, self.memory_mask, *self._before())
        return Prefixes(*self._prefix(decoder, template))

    def _before(self) -> Slot:
        """Tokens before the begin token of a decoder with cross-attention."""
        tokens, mask = self.diseases
        if self.context is None:
            return tokens, mask
        return torch.cat([self.context[0].to(tokens.dtype), tokens], dim=1), torch.cat([self.context[1], mask], dim=1)

    def _prefix(self, decoder: CausalLanguageModel, template: PromptTemplate) -> tuple[Tensor, Tensor]:
        slots = {"memory": (self.memory, self.memory_mask), "diseases": self.diseases}
        return template.splice(decoder.embed, slots, self.context)


def sine_positions(grid: tuple[int, ...], dim: int) -> Float[Tensor, "cells dim"]:
    """Fixed positions of the cells of a grid: sines and cosines of each axis in its share of the channels.

    Source: Vaswani et al., NeurIPS 2017, Sec. 3.5, for each axis of its own as in Carion et al. (DETR), ECCV 2020.
    """
    cells = torch.cartesian_prod(*(torch.arange(side).float() for side in grid)).reshape(-1, len(grid))
    share = dim // (2 * len(grid))
    rates = 100.0 ** (-torch.arange(share).float() / max(1, share))
    angles = (cells[:, :, None] * rates).flatten(1)
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)
    return torch.cat([waves, waves.new_zeros(len(waves), dim - waves.shape[1])], dim=1)
