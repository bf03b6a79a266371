"""The reports of the training studies whose images are most like the query's: none, or the N nearest.

Source: the paper's Sec. 2.1 and abstract ("retrieves similar reports through image search").
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn

from radweave.core.batch import Batch
from radweave.core.config import Config, Slots
from radweave.nn.connector import encode_views
from radweave.nn.memory.backends import BuildIndex, ExactIndexConfig, IndexConfig
from radweave.nn.memory.bank import Bank, BankLayout, Column, report_rows
from radweave.nn.memory.index import ExactIndex, Index
from radweave.nn.text_encoder import TextPart

BANK = "cases"


@dataclass(frozen=True, slots=True)
class Case:
    """A retrieved study: whose report, its text, and how alike the images are (cosine)."""

    similarity: float
    study_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Recalled:
    """The N cases of each query, best first: ``text`` features (B, N, T), zero where absent, and whose they are."""

    text: Float[Tensor, "batch cases text_dim"]
    present: Bool[Tensor, "batch cases"]
    cases: tuple[tuple[Case, ...], ...]


class NoRetrieval(nn.Module):
    """No report is retrieved: one place that is empty, so that what reads cases stays as it is."""

    num_cases = 1

    def banks(self, encoder: nn.Module, text_encoder: TextPart, studies: Iterable[Batch]) -> dict[str, Bank]:
        return {}

    def layouts(self, dim: int, text_dim: int) -> dict[str, BankLayout]:
        return {}

    def remember(self, banks: Mapping[str, Bank]) -> None:
        """Nothing is kept."""

    def recall(self, batch: Batch, text_dim: int) -> Recalled:
        source = batch.volume if batch.view_mask is None else batch.view_mask
        assert source is not None
        text = torch.zeros(len(batch), 1, text_dim, device=source.device)
        return Recalled(text, text.new_zeros(len(batch), 1).bool(), ((),) * len(batch))


class ImageRetrieval(nn.Module):
    """Nearest training images by a frozen embedding, and the features of their reports.

        z = (mean token of E_0 - mu) / sigma,   similarity = cos(z, z_i)

    E_0 is the vision encoder as it was before the report stage, kept as a part of its own: the encoder that trains
    would drift away from the vectors in the bank. mu and sigma are those of the bank, per channel; without them all
    chest images look alike. Training, validation and inference come through ``recall`` alike, and none of them gets
    the query's own study or patient. Before a bank is given nothing is recalled.
    """

    def __init__(self, encoder: nn.Module, num_cases: int, build_index: BuildIndex = ExactIndex) -> None:
        super().__init__()
        self.encoder = copy.deepcopy(encoder).requires_grad_(False).eval()
        self.num_cases = num_cases
        self.bank: Bank | None = None
        self.build_index = build_index
        self.index: Index | None = None
        self.center = self.scale = torch.zeros(0)

    def train(self, mode: bool = True) -> ImageRetrieval:
        """The embedding stays in evaluation mode."""
        super().train(mode)
        self.encoder.eval()
        return self

    def follow(self, encoder: nn.Module) -> None:
        """Take the encoder as it is now for the embedding."""
        self.encoder.load_state_dict(encoder.state_dict())

    def banks(self, encoder: nn.Module, text_encoder: TextPart, studies: Iterable[Batch]) -> dict[str, Bank]:
        """Take the encoder as it is now, and embed the training studies with it."""
        self.follow(encoder)
        visual, text, rows = [], [], []
        for batch in studies:
            assert batch.reports is not None
            visual.append(self.embed(batch).cpu())
            text.append(text_encoder.encode(batch.reports).float().cpu())
            rows += report_rows(batch)
        return {BANK: Bank({"visual": torch.cat(visual), "text": torch.cat(text)}, tuple(rows))}

    @torch.no_grad()
    def embed(self, batch: Batch) -> Float[Tensor, "batch dim"]:
        """Mean token of each study's images, in float32."""
        return encode_views(self.encoder, batch).mean().float()

    def layouts(self, dim: int, text_dim: int) -> dict[str, BankLayout]:
        """The bank it reads: embeddings of images (``dim``) and features of reports (``text_dim``)."""
        tensors = {"visual": Column("float", (dim,)), "text": Column("float", (text_dim,))}
        return {BANK: BankLayout(tensors, texts=True)}

    def remember(self, banks: Mapping[str, Bank]) -> None:
        """Index a bank with the tensors ``visual`` (N, D) and ``text`` (N, T), and rows with a ``text``."""
        if BANK not in banks:
            return
        bank = banks[BANK]
        visual = bank.tensors["visual"].double()
        self.center, self.scale = visual.mean(0), visual.std(0, correction=0).clamp(min=1e-6)
        self.bank, self.index = bank, self.build_index(self._unit(visual), bank.owners())

    def _unit(self, visual: Tensor) -> Tensor:
        return F.normalize((visual.double().cpu() - self.center) / self.scale, dim=1).float()

    @torch.no_grad()
    def recall(self, batch: Batch, text_dim: int) -> Recalled:
        """The cases of each study; fewer than N where the bank has no more of other patients."""
        device = next(self.encoder.parameters()).device
        text = torch.zeros(len(batch), self.num_cases, text_dim)
        present = torch.zeros(len(batch), self.num_cases, dtype=torch.bool)
        if self.bank is None or self.index is None:
            return Recalled(text.to(device), present.to(device), ((),) * len(batch))
        scores, rows = self.index.search(
            self._unit(self.embed(batch)),
            self.num_cases,
            study_ids=batch.study_ids,
            patient_ids=batch.patient_ids,
        )
        present = rows >= 0
        text[present] = self.bank.tensors["text"][rows[present]]
        return Recalled(text.to(device), present.to(device), self._cases(scores, rows))

    def _cases(self, scores: Tensor, rows: Tensor) -> tuple[tuple[Case, ...], ...]:
        assert self.bank is not None
        known: Sequence[dict[str, Any]] = self.bank.rows
        return tuple(
            tuple(
                Case(score, known[row]["study_id"], known[row]["text"])
                for row, score in zip(nearest, similar, strict=True)
                if row >= 0
            )
            for nearest, similar in zip(rows.tolist(), scores.tolist(), strict=True)
        )


class NoRetrievalConfig(Config):
    """Retrieve nothing; what is left compares a study with its prior, if that is given."""

    kind: Literal["none"] = "none"

    def build(self, encoder: nn.Module) -> NoRetrieval:
        return NoRetrieval()


class ImageRetrievalConfig(Config):
    """Image search. The paper does not say how many reports it retrieves."""

    kind: Literal["images"] = "images"
    num_cases: Slots = 5
    index: IndexConfig = ExactIndexConfig()

    def build(self, encoder: nn.Module) -> ImageRetrieval:
        return ImageRetrieval(encoder, self.num_cases, self.index.build())


RetrievalConfig = Annotated[NoRetrievalConfig | ImageRetrievalConfig, Field(discriminator="kind")]
