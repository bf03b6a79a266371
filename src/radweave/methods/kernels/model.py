"""Kernel evidence: classical descriptors, smoothers over the training studies, and nothing that is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from radweave.core.batch import Batch, Generation
from radweave.core.config import Count
from radweave.core.errors import InputError
from radweave.core.evidence import DraftEvidence, RecalledEvidence
from radweave.data.tokenizer import encode
from radweave.drafting.smoothers import Evidence
from radweave.methods.descriptors import DescriptorExtractor, DescriptorsConfig, ScanDescriptorsConfig
from radweave.methods.experiment import BuildContext, Experiment, ModelConfig, Stages, Without
from radweave.methods.model import ReportModel, Term, losses
from radweave.methods.neighbours import DescribedStudies, fit_neighbours, neighbour_columns
from radweave.methods.stage import StageConfig
from radweave.nn.decoding import DecodingConfig
from radweave.nn.memory.bank import Bank, BankLayout, Owners

if TYPE_CHECKING:
    from radweave.methods.model import TrainingView

STUDIES = "studies"
"""Name of the bank: descriptors, findings and reports of training studies, and the inverses of the smoothers."""
RECALLED = 3


@dataclass(eq=False, repr=False, kw_only=True)
class KernelsModel(ReportModel):
    """p_c(x) = sum_j w_j(x) y_jc, with weights of kernel ridge smoothers over the J training studies, in closed form.

    Nothing is trained: the memory is the model. Its own decoder copies the training report with the greatest weight;
    ``decoding.kind=expected_utility``, the default of its presets, chooses among all of them and composites.

    Deviations: see docs/methods/kernels.md.
    """

    descriptors: DescriptorExtractor
    encode: Callable[[str], list[int]]
    classes: tuple[str, ...]
    max_studies: int
    neighbours: DescribedStudies | None = None
    owners: Owners | None = None
    rows: tuple[dict[str, Any], ...] = ()
    fitted: list[Evidence] = field(default_factory=list)
    terms = cast(Mapping[str, Term[Any]], {})

    def loss(self, batch: Batch, terms: Sequence[str]) -> dict[str, Tensor]:
        """None: nothing is trained."""
        return losses(self.terms, self, terms)

    @torch.no_grad()
    def generate(self, batch: Batch, decoding: DecodingConfig) -> Generation:
        """Copy the report of the training study that speaks most for each study. Evidence: the three that do most.

        Raises:
            InputError: if the model has no memory.
        """
        ids: list[list[int]] = []
        shown: list[DraftEvidence] = []
        for evidence, barred in zip(self.evidence_for(batch), self._barred(batch), strict=True):
            weights = np.where(barred, -np.inf, evidence.weights)
            best = [row for row in np.argsort(-weights, kind="stable")[:RECALLED].tolist() if np.isfinite(weights[row])]
            ids.append(self.encode(self.rows[best[0]]["text"])[: decoding.max_new_tokens] if best else [])
            shown.append({"recalled": [self._shown(row, float(weights[row])) for row in best]})
        return Generation(token_ids=ids, intermediates=shown)

    def evidence_for(self, batch: Batch) -> list[Evidence]:
        """Evidence of the training studies for each study, never of its own patient.

        Raises:
            InputError: if the model has no memory.
        """
        barred = self._barred(batch)
        assert self.neighbours is not None
        return self.neighbours.evidence_for(self.descriptors, batch, barred)

    def scores_are_log_odds(self) -> bool:
        """No: scores are smoothed labels."""
        return False

    def left_out(self) -> list[Evidence]:
        """Evidence of the others for each training study, made with the memory."""
        assert self.fitted, "asked after the memories were built"
        return self.fitted

    @torch.no_grad()
    def build_memories(self, stage: str, training: TrainingView) -> dict[str, Bank]:
        """Describe the training studies and fit the smoothers to them."""
        fitted = fit_neighbours(self.descriptors, training.spread(self.max_studies))
        self.fitted = fitted.left_out
        return {STUDIES: Bank(fitted.tensors, fitted.rows)}

    def memory_layouts(self) -> Mapping[str, BankLayout]:
        """The training studies, without which the method is nothing."""
        return {STUDIES: BankLayout(neighbour_columns(len(self.classes), self.descriptors.num_views), texts=True)}

    def set_memories(self, banks: Mapping[str, Bank]) -> None:
        """Take the training studies."""
        bank = banks[STUDIES]
        self.neighbours, self.owners, self.rows = DescribedStudies.of(bank), bank.owners(), bank.rows

    def _barred(self, batch: Batch) -> np.ndarray[Any, np.dtype[np.bool_]]:
        owners = self.owners
        if owners is None:
            raise InputError("this method is its memory of training studies, and there is none", field="memories")
        own = owners.of_queries(batch.study_ids, batch.patient_ids)
        return np.asarray(owners.barred(own, slice(0, len(owners))).numpy())

    def _shown(self, row: int, weight: float) -> RecalledEvidence:
        report = self.rows[row]
        scores = {"weight": weight}
        return {"kind": "report", "study_id": report["study_id"], "text": report["text"], "scores": scores}


class KernelsModelConfig(ModelConfig):
    """Parts of the model. Of more than ``max_studies`` training studies so many are used, evenly spread: memory and
    time grow with their square.
    """

    descriptors: DescriptorsConfig | ScanDescriptorsConfig = Field(default=DescriptorsConfig(), discriminator="kind")
    max_studies: Count = 4096

    @property
    def encoder(self) -> DescriptorsConfig | ScanDescriptorsConfig:
        """Record of the part that reads the images."""
        return self.descriptors

    def without_memories(self) -> Without:
        """Impossible.

        Raises:
            InputError: always.
        """
        raise InputError("the method is its memory of training studies: nothing of it works without", field="--no-bank")

    def build(self, context: BuildContext) -> KernelsModel:
        return KernelsModel(
            descriptors=self.descriptors.build(),
            encode=partial(encode, context.tokenizer),
            classes=context.classes,
            max_studies=self.max_studies,
        )


class KernelsStages(Stages):
    """One, in which nothing trains: its memory is what the method is."""

    report: StageConfig = StageConfig(finetune={}, losses={}, epochs=0, augment=False, select="last")


class KernelsExperiment(Experiment):
    """The method with all its numbers."""

    method: Literal["kernels"] = "kernels"
    model: KernelsModelConfig
    stages: KernelsStages = KernelsStages()
