"""Kernel evidence: classical descriptors, smoothers over the training studies, and nothing that is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from radweave.base.batch import Batch, Generation
from radweave.base.config import Count
from radweave.base.errors import InputError
from radweave.contract.experiment import BuildContext, Experiment, ModelConfig, Stages, Without
from radweave.contract.model import ReportModel, Term, losses
from radweave.contract.stage import StageConfig
from radweave.data.tokenizer import encode
from radweave.drafting.smoothers import FINDINGS, Evidence, Smoothers
from radweave.memory.bank import ROWS, Bank, BankLayout, Column, Owners, patient_code, report_rows
from radweave.methods.kernels.looks import DIM, NUM_VIEWS, Described, Looks, LooksConfig, among, distances
from radweave.nn.decoding import DecodingConfig
from radweave.nn.supervision import POSITIVE

if TYPE_CHECKING:
    from radweave.contract.view import TrainingView

STUDIES = "studies"
"""Name of the bank: descriptors, findings and reports of training studies, and the inverses of the smoothers."""
FOR_MEANS = 1000
"""Studies that the mean images are made from."""
RECALLED = 3


@dataclass(frozen=True, slots=True)
class Studies:
    """The training studies in use: how they look, whose they are, and what was fitted to them."""

    described: Described
    smoothers: Smoothers
    owners: Owners
    rows: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, bank: Bank) -> Studies:
        """From the bank of a run."""
        tensors = bank.tensors
        described = Described(tensors["descriptors"].float().numpy(), tensors["present"].numpy().astype(bool))
        inverses = tensors["inverses"].double().numpy()
        labels = tensors["labels"].double().numpy()
        fitted = Smoothers(labels, tuple(inverses[:, number] for number in range(len(FINDINGS) + 1)))
        return cls(described, fitted, bank.owners(), bank.rows)


@dataclass(eq=False, repr=False, kw_only=True)
class KernelsModel(ReportModel):
    """p_c(x) = sum_j w_j(x) y_jc, with weights of kernel ridge smoothers over the J training studies, in closed form.

    Nothing is trained: the memory is the model. Its own decoder copies the training report with the greatest weight;
    ``decoding.kind=expected_utility``, the default of its presets, chooses among all of them and composites.

    Deviations: see docs/methods/kernels.md.
    """

    looks: Looks
    encode: Callable[[str], list[int]]
    classes: tuple[str, ...]
    max_studies: int
    studies: Studies | None = None
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
        ids, shown = [], []
        for said, barred in zip(self.testify(batch), self._barred(batch), strict=True):
            weights = np.where(barred, -np.inf, said.weights)
            best = [row for row in np.argsort(-weights, kind="stable")[:RECALLED].tolist() if np.isfinite(weights[row])]
            ids.append(self.encode(self._memory.rows[best[0]]["text"])[: decoding.max_new_tokens] if best else [])
            shown.append({"recalled": [self._shown(row, float(weights[row])) for row in best]})
        return Generation(token_ids=ids, intermediates=shown)

    def testify(self, batch: Batch) -> list[Evidence]:
        """What the training studies say of each study; never its own or its patient's.

        Raises:
            InputError: if the model has no memory.
        """
        memory, described = self._memory, self.looks.describe(batch)
        apart = distances(self.looks, described, memory.described)
        return [
            memory.smoothers.testify(findings, wording, barred)
            for findings, wording, barred in zip(apart.findings, apart.wording, self._barred(batch), strict=True)
        ]

    def left_out(self) -> list[Evidence]:
        """What the others say of each training study, made when the memory was."""
        assert self.fitted, "asked after the memories were built"
        return self.fitted

    @torch.no_grad()
    def build_memories(self, stage: str, training: TrainingView) -> dict[str, Bank]:
        """Describe the training studies and fit the smoothers to them."""
        training = training.spread(self.max_studies)
        self.looks.fit_means(training.spread(FOR_MEANS).batches(pixels=True))
        seen = Described.empty(len(training))
        rows: list[dict[str, Any]] = []
        for batch in training.batches(pixels=True):
            self.looks.read(batch, seen, len(rows))
            rows += report_rows(batch)
        self.looks.fit_scales(seen)
        apart = among(self.looks, seen)
        smoothers = Smoothers.fit(apart.findings, apart.wording, (training.class_states == POSITIVE).double().numpy())
        patients = np.array([patient_code(example.patient_id) for example in training.examples])
        self.fitted = [
            smoothers.testify(apart.findings[row], apart.wording[row], patients == patients[row])
            for row in range(len(rows))
        ]
        tensors = {
            "descriptors": torch.from_numpy(seen.vectors).half(),
            "present": torch.from_numpy(seen.present.astype(np.uint8)),
            "labels": torch.from_numpy(smoothers.labels.astype(np.uint8)),
            "inverses": torch.from_numpy(np.stack(smoothers.inverses, axis=1)).float(),
        }
        return {STUDIES: Bank(tensors, tuple(rows))}

    def memory_layouts(self) -> Mapping[str, BankLayout]:
        """The training studies, without which the method is nothing."""
        tensors = {
            "descriptors": Column("float", (NUM_VIEWS, DIM)),
            "present": Column("flag", (NUM_VIEWS,)),
            "labels": Column("flag", (len(self.classes),)),
            "inverses": Column("float", (len(FINDINGS) + 1, ROWS)),
        }
        return {STUDIES: BankLayout(tensors, texts=True)}

    def set_memories(self, banks: Mapping[str, Bank]) -> None:
        """Take the training studies."""
        self.studies = Studies.of(banks[STUDIES])

    @property
    def _memory(self) -> Studies:
        if self.studies is None:
            raise InputError("this method is its memory of training studies, and there is none", field="memories")
        return self.studies

    def _barred(self, batch: Batch) -> np.ndarray[Any, np.dtype[np.bool_]]:
        owners = self._memory.owners
        own = owners.of_queries(batch.study_ids, batch.patient_ids)
        return np.asarray(owners.barred(own, slice(0, len(owners))).numpy())

    def _shown(self, row: int, weight: float) -> dict[str, Any]:
        report = self._memory.rows[row]
        scores = {"weight": weight}
        return {"kind": "report", "study_id": report["study_id"], "text": report["text"], "scores": scores}


class KernelsModelConfig(ModelConfig):
    """Parts of the model. Of more than ``max_studies`` training studies so many are used, evenly spread: memory and
    time grow with their square.
    """

    looks: LooksConfig = LooksConfig()
    max_studies: Count = 4096

    @property
    def encoder(self) -> LooksConfig:
        """What reads the images."""
        return self.looks

    def without_memories(self) -> Without:
        """Impossible.

        Raises:
            InputError: always.
        """
        raise InputError("the method is its memory of training studies: nothing of it works without", field="--no-bank")

    def build(self, context: BuildContext) -> KernelsModel:
        return KernelsModel(
            looks=self.looks.build(),
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
