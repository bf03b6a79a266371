"""Which report of the training split stands in the prompt as an example: none, or that of DMSR's nearest study.

Source: the paper's Eq. 8. score = alpha cos(v, v_i) + (1 - alpha) cos(c, c_i), with v the mean visual feature and c the
disease logits. It is one inner product of the vectors [sqrt(alpha) v/|v|; sqrt(1 - alpha) c/|c|], so an exact index
over those finds the best study.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from radweave.base.batch import Batch
from radweave.base.config import Config, Tokens
from radweave.memory.backends import BuildIndex, ExactIndexConfig, IndexConfig
from radweave.memory.bank import Bank, report_rows
from radweave.memory.index import ExactIndex, Index
from radweave.methods.dast.prompts import Prompts
from radweave.nn.prompt import PromptTemplate

BANK = "exemplars"


@dataclass(frozen=True, slots=True)
class Exemplar:
    """A recalled report: whose it is, its similarities to the query, and their weighted sum."""

    visual: float
    disease: float
    combined: float
    study_id: str
    text: str

    def evidence(self) -> dict[str, Any]:
        scores = {"visual": self.visual, "disease": self.disease, "combined": self.combined}
        return {"kind": "report", "study_id": self.study_id, "text": self.text, "scores": scores}


Banked = tuple[Batch, Float[Tensor, "batch dim"], Float[Tensor, "batch classes"]]
"""Training studies, their mean visual features and their disease logits."""


class NoRetrieval(nn.Module):
    """No example."""

    max_tokens = 0

    def template(self, prompts: Prompts) -> PromptTemplate:
        return prompts.plain

    def banks(self, studies: Iterable[Banked]) -> dict[str, Bank]:
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

    def __init__(self, alpha: float, max_tokens: int, build_index: BuildIndex = ExactIndex) -> None:
        super().__init__()
        self.alpha = alpha
        self.max_tokens = max_tokens
        self.bank: Bank | None = None
        self.build_index = build_index
        self.index: Index | None = None

    def template(self, prompts: Prompts) -> PromptTemplate:
        """The prompt that says what the example is."""
        return prompts.with_exemplar

    def banks(self, studies: Iterable[Banked]) -> dict[str, Bank]:
        """The bank of all training studies."""
        visual, logits, rows = [], [], []
        for batch, mean, disease in studies:
            visual.append(mean.cpu())
            logits.append(disease.cpu())
            rows += report_rows(batch)
        return {BANK: Bank({"visual": torch.cat(visual), "logits": torch.cat(logits)}, tuple(rows))}

    def remember(self, banks: Mapping[str, Bank]) -> None:
        """Index a bank with the tensors ``visual`` (N, D) and ``logits`` (N, K), and rows with a ``text``."""
        if BANK not in banks:
            return
        bank = banks[BANK]
        vectors = composite(bank.tensors["visual"], bank.tensors["logits"], self.alpha)
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
        visual, logits = visual.cpu(), logits.cpu()
        scores, rows = self.index.search(
            composite(visual, logits, self.alpha), 1, study_ids=study_ids, patient_ids=patient_ids
        )
        return [
            None if row < 0 else self._exemplar(visual[number], logits[number], row, score)
            for number, (row, score) in enumerate(zip(rows[:, 0].tolist(), scores[:, 0].tolist(), strict=True))
        ]

    def _exemplar(self, visual: Tensor, logits: Tensor, row: int, score: float) -> Exemplar:
        assert self.bank is not None
        found = self.bank.rows[row]
        return Exemplar(
            study_id=found["study_id"],
            text=found["text"],
            visual=float(F.cosine_similarity(visual, self.bank.tensors["visual"][row], dim=0)),
            disease=float(F.cosine_similarity(logits, self.bank.tensors["logits"][row], dim=0)),
            combined=score,
        )


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

    ``max_tokens`` cuts the report that is put into the prompt.
    """

    kind: Literal["dmsr"] = "dmsr"
    alpha: float = Field(default=0.5, ge=0, le=1)
    max_tokens: Tokens = 128
    index: IndexConfig = ExactIndexConfig()

    def build(self) -> Dmsr:
        return Dmsr(self.alpha, self.max_tokens, self.index.build())


RetrievalConfig = Annotated[NoRetrievalConfig | DmsrConfig, Field(discriminator="kind")]
