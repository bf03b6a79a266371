"""Frozen text encoders: report or sentence -> one vector."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from radweave.core.config import MAX_TOKENS, Config, Seed, Width
from radweave.core.errors import InputError
from radweave.core.foreign_models import model_of_shape, read_model, read_shape, read_tokenizer


class LsaTextEncoder(nn.Module):
    """Latent semantic analysis: hashed word n-grams, tf-idf, and their leading singular directions.

        z = V^T (log(1 + tf) * idf / |.|),   |z| = 1

    Deerwester et al., JASIS 1990. It is fitted, not trained: the stand-in for a clinical BERT where there are no
    weights. Two-word terms tell "no effusion" from "effusion".
    """

    def __init__(self, width: int, num_buckets: int, seed: int) -> None:
        super().__init__()
        self.width = width
        self.num_buckets = num_buckets
        self.seed = seed
        self.idf: Tensor
        self.projection: Tensor
        self.register_buffer("idf", torch.zeros(num_buckets))
        self.register_buffer("projection", torch.zeros(num_buckets, width))

    def fit(self, texts: Sequence[str]) -> None:
        """Take the statistics of the training texts.

        Raises:
            InputError: if the texts are too few for the width.
        """
        from scipy.sparse import csr_matrix
        from sklearn.utils.extmath import randomized_svd

        distinct = list(dict.fromkeys(texts))
        counts = self._counts(distinct)
        frequency = (counts > 0).sum(0)
        self.idf.copy_(torch.log((1 + len(distinct)) / (1 + frequency)) + 1)
        weighted = self._weighted(counts)
        rank = min(self.width, len(distinct), int((frequency > 0).sum()))
        if rank < 1:
            raise InputError("there is no text to fit the text encoder on", field="text_encoder")
        # The texts as they come, not the distinct ones, would let one frequent normal report fill the space.
        _, _, directions = randomized_svd(
            csr_matrix(weighted.numpy()), n_components=rank, random_state=self.seed, power_iteration_normalizer="QR"
        )
        self.projection.zero_()
        self.projection[:, :rank] = torch.from_numpy(directions.T.copy())

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> Float[Tensor, "batch width"]:
        """Unit vectors; 0 for a text without a known term."""
        weighted = self._weighted(self._counts(texts)).to(self.projection.device)
        return F.normalize(weighted @ self.projection, dim=1)

    def _counts(self, texts: Sequence[str]) -> Tensor:
        counts = torch.zeros(len(texts), self.num_buckets)
        for row, text in enumerate(texts):
            words = re.findall(r"[a-z0-9]+", text.lower())
            terms = words + [f"{a} {b}" for a, b in pairwise(words)]
            buckets = torch.tensor([zlib.crc32(term.encode()) % self.num_buckets for term in terms], dtype=torch.long)
            counts[row].index_add_(0, buckets, torch.ones(len(buckets)))
        return counts

    def _weighted(self, counts: Tensor) -> Tensor:
        return F.normalize(torch.log1p(counts) * self.idf.cpu(), dim=1)


class PretrainedTextEncoder(nn.Module):
    """A BERT-type encoder or a language model from a folder; the mean of its last hidden states over a text's words.

    Language models often have no padding token; their end token pads, and is masked.
    """

    def __init__(self, model: Any, tokenizer: Any, max_tokens: int) -> None:
        super().__init__()
        self.model: Any = model
        self.tokenizer = tokenizer
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        self.max_tokens = max_tokens
        self.requires_grad_(False)

    @property
    def architecture(self) -> Any:
        """The model's transformers configuration."""
        return self.model.config

    @property
    def width(self) -> int:
        return int(self.model.config.hidden_size)

    def fit(self, texts: Sequence[str]) -> None:
        """Nothing to do: the weights are given."""

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> Float[Tensor, "batch width"]:
        """Encode in evaluation mode, whatever mode the model is in."""
        was_training = self.model.training
        self.model.eval()
        device = next(self.model.parameters()).device
        inputs = self.tokenizer(
            list(texts),
            padding=True,
            padding_side="right",
            truncation=True,
            max_length=self.max_tokens,
            return_tensors="pt",
            split_special_tokens=True,
        ).to(device)
        hidden = self.model(**inputs).last_hidden_state
        self.model.train(was_training)
        weight = inputs["attention_mask"][:, :, None].to(hidden.dtype)
        out: Tensor = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1)
        return out


TextPart = LsaTextEncoder | PretrainedTextEncoder
"""Interface of text encoders. ``fit`` gets training texts only; a pretrained encoder ignores them."""


class LsaTextEncoderConfig(Config):
    """Fitted on the training reports; needs no weights."""

    kind: Literal["lsa"] = "lsa"
    width: Width = 64
    num_buckets: int = Field(default=4096, ge=1, le=1 << 20)
    seed: Seed = 0

    def build(self, saved: Path | None = None) -> LsaTextEncoder:
        return LsaTextEncoder(self.width, self.num_buckets, self.seed)


class PretrainedTextEncoderConfig(Config):
    """Any text model that transformers loads from a folder or hub name, with its own tokenizer."""

    kind: Literal["pretrained"] = "pretrained"
    path: str
    max_tokens: int = Field(default=256, ge=2, le=MAX_TOKENS)

    def build(self, saved: Path | None = None) -> PretrainedTextEncoder:
        """Load the weights; with ``saved`` only shape and tokenizer, as kept in a run folder.

        Raises:
            InputError: if there is no such checkpoint.
        """
        what = "a text encoder"
        if saved is not None:
            model = model_of_shape(read_shape(saved, what=what), "encoder", what=what, file=saved)
        else:
            # Only the words' last states are used, and many checkpoints come without a pooler.
            model, _ = read_model(self.path, "encoder", what=what, may_be_new=("pooler",))
        return PretrainedTextEncoder(model, read_tokenizer(saved or self.path, what=what), self.max_tokens)


TextEncoderConfig = Annotated[LsaTextEncoderConfig | PretrainedTextEncoderConfig, Field(discriminator="kind")]
