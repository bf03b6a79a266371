"""The training report that stands in the prompt as an example: none, or that of DMSR's nearest study.

Source: the paper's Eq. 8. score = alpha cos(v, v_i) + (1 - alpha) cos(c, c_i), with v the mean visual feature and c the
disease logits. It is one inner product of the vectors [sqrt(alpha) v/|v|; sqrt(1 - alpha) c/|c|], so an exact index
over those finds the best study.

Raw logits of rare diseases are all far below zero, so that c points the same way for nearly every study and the cosine
tells little. ``standardised`` logits, (c - mean) / std per class over the bank, are an option; the paper has raw ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from radweave.core.batch import Batch
from radweave.core.config import Config, Tokens
from radweave.core.evidence import RecalledEvidence
from radweave.nn.memory.backends import BuildIndex, ExactIndexConfig, IndexConfig
from radweave.nn.memory.bank import Bank, BankLayout, Column, report_rows
from radweave.nn.memory.index import ExactIndex, Index

BANK = "exemplars"


@dataclass(frozen=True, slots=True)
class Exemplar:
    """A recalled report: whose it is, its similarities to the query, and their weighted sum."""

    visual: float
    disease: float
    combined: float
    study_id: str
    text: str

    def evidence(self) -> RecalledEvidence:
        """The report and its scores."""
        scores = {"visual": self.visual, "disease": self.disease, "combined": self.combined}
        return {"kind": "report", "study_id": self.study_id, "text": self.text, "scores": scores}


Banked = tuple[Batch, Float[Tensor, "batch dim"], Float[Tensor, "batch classes"]]
"""Training studies, their mean visual features and their disease logits."""


class NoRetrieval(nn.Module):
    """No example."""

    max_tokens = 0

    def banks(self, studies: Iterable[Banked]) -> dict[str, Bank]:
        return {}

    def layouts(self, dim: int, num_classes: int) -> dict[str, BankLayout]:
        return {}

    def remember(self, banks: Mapping[str, Bank]) -> None:
        """Nothing is kept."""

    def recall(
        self, visual: Tensor, logits: Tensor, study_ids: Sequence[str], patient_ids: Sequence[str]
    ) -> list[Exemplar | None]:
        return [None] * len(study_ids)


class Dmsr(nn.Module):
    """Dual-modal similarity retrieval over the training studies. Holds no weights; before a bank is given it recalls
    nothing.
    """

    def __init__(
        self, alpha: float, max_tokens: int, build_index: BuildIndex = ExactIndex, standardised: bool = False
    ) -> None:
        super().__init__()
        self.alpha = alpha
        self.max_tokens = max_tokens
        self.standardised = standardised
        self.bank: Bank | None = None
        self.scale: LogitScale | None = None
        self.build_index = build_index
        self.index: Index | None = None

    def banks(self, studies: Iterable[Banked]) -> dict[str, Bank]:
        """The bank of all training studies."""
        visual, logits, rows = [], [], []
        for batch, mean, disease in studies:
            visual.append(mean.cpu())
            logits.append(disease.cpu())
            rows += report_rows(batch)
        return {BANK: Bank({"visual": torch.cat(visual), "logits": torch.cat(logits)}, tuple(rows))}

    def layouts(self, dim: int, num_classes: int) -> dict[str, BankLayout]:
        """The bank it reads: visual features of width ``dim``, and logits."""
        tensors = {"visual": Column("float", (dim,)), "logits": Column("float", (num_classes,))}
        return {BANK: BankLayout(tensors, texts=True)}

    def remember(self, banks: Mapping[str, Bank]) -> None:
        """Index a bank with the tensors ``visual`` (N, D) and ``logits`` (N, K), and rows with a ``text``."""
        if BANK not in banks:
            return
        bank = banks[BANK]
        self.scale = LogitScale.of(bank.tensors["logits"]) if self.standardised else None
        vectors = composite(bank.tensors["visual"], self._compared(bank.tensors["logits"]), self.alpha)
        self.bank, self.index = bank, self.build_index(vectors, bank.owners())

    @torch.no_grad()
    def recall(
        self,
        visual: Float[Tensor, "batch dim"],
        logits: Float[Tensor, "batch classes"],
        study_ids: Sequence[str],
        patient_ids: Sequence[str],
    ) -> list[Exemplar | None]:
        """The best training study for each query, never its own study or patient; None where there is no other."""
        if self.bank is None or self.index is None:
            return [None] * len(study_ids)
        visual, logits = visual.cpu(), self._compared(logits.cpu())
        scores, rows = self.index.search(
            composite(visual, logits, self.alpha), 1, study_ids=study_ids, patient_ids=patient_ids
        )
        return [
            None if row < 0 else self._exemplar(visual[number], logits[number], row, score)
            for number, (row, score) in enumerate(zip(rows[:, 0].tolist(), scores[:, 0].tolist(), strict=True))
        ]

    def _compared(self, logits: Tensor) -> Tensor:
        return logits if self.scale is None else self.scale.standardise(logits)

    def _exemplar(self, visual: Tensor, logits: Tensor, row: int, score: float) -> Exemplar:
        assert self.bank is not None
        report = self.bank.rows[row]
        return Exemplar(
            study_id=report["study_id"],
            text=report["text"],
            visual=float(F.cosine_similarity(visual, self.bank.tensors["visual"][row], dim=0)),
            disease=float(F.cosine_similarity(logits, self._compared(self.bank.tensors["logits"][row]), dim=0)),
            combined=score,
        )


@dataclass(frozen=True, slots=True)
class LogitScale:
    """Mean and standard deviation of each class's logit over the bank (K), which holds training studies alone."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, logits: Float[Tensor, "rows classes"]) -> LogitScale:
        return cls(logits.mean(0), logits.std(0, correction=0))

    def standardise(self, logits: Float[Tensor, "*rows classes"]) -> Float[Tensor, "*rows classes"]:
        """(c - mean) / std; 0 for a class whose logit never varies."""
        return torch.where(self.std > 0, (logits - self.mean) / self.std, torch.zeros_like(logits))


def composite(
    visual: Float[Tensor, "rows dim"], logits: Float[Tensor, "rows classes"], alpha: float
) -> Float[Tensor, "rows both"]:
    """Vectors whose inner products are alpha cos(visual) + (1 - alpha) cos(logits) (Eq. 8)."""
    parts = (alpha**0.5 * F.normalize(visual.float(), dim=1), (1 - alpha) ** 0.5 * F.normalize(logits.float(), dim=1))
    return torch.cat(parts, dim=1)


class NoRetrievalConfig(Config):
    """No example in the prompt."""

    kind: Literal["none"] = "none"

    def build(self) -> NoRetrieval:
        return NoRetrieval()


class DmsrConfig(Config):
    """The nearest training study's report. ``alpha`` weighs images against diseases; the paper does not give it.

    ``max_tokens`` cuts the report that is put into the prompt. ``standardised`` compares logits in units of their
    spread over the training studies.
    """

    kind: Literal["dmsr"] = "dmsr"
    alpha: float = Field(default=0.5, ge=0, le=1)
    max_tokens: Tokens = 128
    standardised: bool = False
    index: IndexConfig = ExactIndexConfig()

    def build(self) -> Dmsr:
        return Dmsr(self.alpha, self.max_tokens, self.index.build(), self.standardised)


RetrievalConfig = Annotated[NoRetrievalConfig | DmsrConfig, Field(discriminator="kind")]
