"""BERT as a decoder: it writes the report and reads the image through cross-attention.

Source: Rothe et al., "Leveraging pre-trained checkpoints for sequence generation tasks", TACL 2020: BERT with a causal
mask and new cross-attention layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from radweave.core.config import Config, Heads, Layers, Tokens, Width
from radweave.nn.decoding import DecodingConfig, Prefixes, Written, write, write_draws
from radweave.nn.language_model import Decoder, LoraSetting, NoLoraConfig, mean_loss
from radweave.nn.pretrained import Precision, load_language_model
from radweave.nn.prompt import left_pad


class CrossAttentionLanguageModel(Decoder):
    """A decoder that cross-attends to a memory of embeddings, such as visual tokens.

        report ~ LM([prefix; begin], memory)

    The memory has the decoder's width: a connector projects to it. The optional prefix holds prompt embeddings; the
    begin token always follows it, and its position predicts the first report token. Position ids count present tokens,
    so a row does not depend on its padding.

    ``untrained`` are the parameters that the checkpoint did not have (its cross-attention, as a rule): they train where
    only adapters do.
    """

    def __init__(
        self,
        model: Any,
        *,
        bos_id: int | None,
        eos_id: int,
        pad_id: int,
        token_dropout: float = 0.0,
        untrained: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(model, bos_id=bos_id, eos_id=eos_id, pad_id=pad_id, token_dropout=token_dropout)
        self._untrained = untrained

    @property
    def untrained(self) -> frozenset[str]:
        """Names of parameters that the checkpoint did not have; adapters around them do not change that."""
        names = (name for name, _ in self.named_parameters())
        return frozenset(n for n in names if n.removeprefix("model.").replace(".base_layer", "") in self._untrained)

    def loss(
        self,
        memory: Float[Tensor, "batch memory width"],
        memory_mask: Bool[Tensor, "batch memory"],
        prefix: Float[Tensor, "batch prefix width"] | None,
        prefix_mask: Bool[Tensor, "batch prefix"] | None,
        input_ids: Int[Tensor, "batch text"],
        labels: Int[Tensor, "batch text"],
        weights: Float[Tensor, "batch text"] | None = None,
    ) -> Float[Tensor, ""]:
        """Mean negative log-likelihood of the labels that are not -100, weighted where there are ``weights`` (B, T)."""
        return mean_loss(self.logits(memory, memory_mask, prefix, prefix_mask, input_ids, labels), labels, weights)

    def logits(
        self,
        memory: Float[Tensor, "batch memory width"],
        memory_mask: Bool[Tensor, "batch memory"],
        prefix: Float[Tensor, "batch prefix width"] | None,
        prefix_mask: Bool[Tensor, "batch prefix"] | None,
        input_ids: Int[Tensor, "batch text"],
        labels: Int[Tensor, "batch text"],
    ) -> Float[Tensor, "batch text words"]:
        """Logits of each report token.

        Args:
            memory: what the cross-attention reads.
            memory_mask: True where the memory has a token; a row without any reads one token of zeros.
            prefix: prompt embeddings, or None.
            prefix_mask: True where the prefix has a token; None where all are there.
            input_ids: the report's tokens, right-padded; they are shifted in here, not by the caller.
            labels: the same, -100 where no loss is taken.
            weights: of each label; None: all count alike.
        """
        return self.logits_after(self.prompts(memory, memory_mask, prefix, prefix_mask), input_ids, labels)

    def generate(
        self,
        memory: Float[Tensor, "batch memory width"],
        memory_mask: Bool[Tensor, "batch memory"],
        prefix: Float[Tensor, "batch prefix width"] | None,
        prefix_mask: Bool[Tensor, "batch prefix"] | None,
        decoding: DecodingConfig,
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Decode with a key-value cache; the memory's keys and values are computed once.

        Returns:
            Token ids per row, without end or padding, and the log-probability of each of those tokens.

        Raises:
            InputError: if prompt and report do not fit the decoder's positions.
        """
        return next(self.write(iter([self.prompts(memory, memory_mask, prefix, prefix_mask)]), decoding))

    def prompts(
        self,
        memory: Float[Tensor, "batch memory width"],
        memory_mask: Bool[Tensor, "batch memory"],
        prefix: Float[Tensor, "batch prefix width"] | None,
        prefix_mask: Bool[Tensor, "batch prefix"] | None,
    ) -> Prefixes:
        """The prompts of ``write``: prefix, begin token and memory."""
        begin = self._begin(prefix, prefix_mask, len(memory))
        # A study without any gets one token of zeros: a softmax over nothing is not a number.
        empty = ~memory_mask.any(1, keepdim=True)
        typed = memory.to(self.dtype).masked_fill(empty[:, :, None], 0.0)
        return Prefixes(*begin, typed, memory_mask | empty)

    def write(self, batches: Iterator[Prefixes], decoding: DecodingConfig) -> Iterator[Written]:
        """Reports for batches of prompts, in order: see ``radweave.nn.decoding.write``."""
        return write(self.model, batches, decoding, eos_id=self.eos_id, pad_id=self.pad_id)

    def write_draws(
        self, prompts: Sequence[Prefixes], decoding: DecodingConfig, draws: int, *, numbered_from: int | None = None
    ) -> list[list[list[int]]]:
        """Token ids of the likeliest report of each study, and then of ``draws`` drawn ones. No end, no padding.

        With ``numbered_from``, the number of the first study, each has random numbers of its own.
        """
        return write_draws(
            self.model, prompts, decoding, draws, eos_id=self.eos_id, pad_id=self.pad_id, numbered_from=numbered_from
        )

    def _begin(self, prefix: Tensor | None, mask: Tensor | None, batch: int) -> tuple[Tensor, Tensor]:
        """Prompt, left-padded, and the begin token."""
        device = self.model.get_input_embeddings().weight.device
        begin = self.embed(torch.full((batch, 1), self.bos_id, device=device))
        begin_mask = torch.ones(batch, 1, dtype=torch.bool, device=device)
        if prefix is None:
            return begin, begin_mask
        if mask is None:
            mask = torch.ones(prefix.shape[:2], dtype=torch.bool, device=device)
        return left_pad(torch.cat([prefix.to(self.dtype), begin], dim=1), torch.cat([mask, begin_mask], dim=1))


class BertDecoderConfig(Config):
    """A BERT-type decoder built from nothing; its vocabulary is the tokenizer's.

    Weights start at 1 / sqrt(hidden_size): BERT's own 0.02 suits its width of 768.
    """

    kind: Literal["bert"] = "bert"
    hidden_size: Width = 256
    num_layers: Layers = 3
    num_heads: Heads = 4
    intermediate_size: Width | None = None
    max_positions: Tokens = 512
    dropout: float = Field(default=0.1, ge=0, lt=1)
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
    ) -> CrossAttentionLanguageModel:
        """Build with random weights; vocabulary and special ids are the tokenizer's. ``saved`` is not needed."""
        from transformers import BertConfig, BertLMHeadModel

        config = BertConfig(
            vocab_size=vocab_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            intermediate_size=self.intermediate_size or 4 * self.hidden_size,
            max_position_embeddings=self.max_positions,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
            pad_token_id=pad_id,
            bos_token_id=bos_id,
            eos_token_id=eos_id,
            initializer_range=self.hidden_size**-0.5,
            is_decoder=True,
            add_cross_attention=True,
        )
        model = self.lora.apply(BertLMHeadModel(config))
        return CrossAttentionLanguageModel(
            model, bos_id=bos_id, eos_id=eos_id, pad_id=pad_id, token_dropout=self.token_dropout
        )


class PretrainedBertDecoderConfig(Config):
    """A BERT checkpoint from a folder or hub name, used as a decoder.

    Published BERT checkpoints are encoders: their cross-attention is new then, a warning says so, and a stage must
    train it (``full``, or ``lora``, which trains new layers too). ``dropout`` None keeps the checkpoint's own.
    """

    kind: Literal["pretrained"] = "pretrained"
    path: str
    dtype: Precision = "float32"
    dropout: float | None = Field(default=None, ge=0, lt=1)
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
    ) -> CrossAttentionLanguageModel:
        """Load the weights; with ``saved`` only the shape, from the ``config.json`` kept in a run folder.

        Raises:
            InputError: if there is no such checkpoint, it is not a BERT, lacks weights other than cross-attention and
                the language model's head, or its vocabulary is smaller than the tokenizer's.
        """
        options: dict[str, Any] = {"is_decoder": True, "add_cross_attention": True}
        if self.dropout is not None:
            options |= {"hidden_dropout_prob": self.dropout, "attention_probs_dropout_prob": self.dropout}
        model, untrained = load_language_model(
            self.path,
            vocab_size=vocab_size - spare,
            dtype=self.dtype,
            saved=saved,
            model_type="bert",
            options=options,
            may_be_new=("crossattention", "cls.predictions"),
        )
        if self.gradient_checkpointing:
            model.gradient_checkpointing_enable()
        model = self.lora.apply(model)
        return CrossAttentionLanguageModel(
            model,
            bos_id=bos_id,
            eos_id=eos_id,
            pad_id=pad_id,
            token_dropout=self.token_dropout,
            untrained=untrained,
        )
