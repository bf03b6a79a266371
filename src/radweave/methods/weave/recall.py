"""Sources that remember: training studies with the vectors that the members have of them.

recall: kernel ridge smoothers over the vectors, and how a report would be worded
cases: what the nearest studies had, and what it means to differ from them

A member remembers the studies that it was trained on. What it remembers of a study of its own fold would be vectors of
another kind, so they are left out: training studies and new ones are asked of the same memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import nn

from radweave.core.config import Config, Count
from radweave.drafting.smoothers import EmbeddedStudies, Evidence, Floats, Mask, squared_distances
from radweave.methods.descriptors import DescriptorExtractor, DescriptorsConfig
from radweave.methods.neighbours import DescribedStudies
from radweave.methods.weave.heads import NoSource, NoSourceConfig
from radweave.nn.memory.bank import Bank, Owners


@dataclass(frozen=True)
class MemberMemory:
    """A member's memory: its rows of the bank, vectors (J', D) and labels (J', C), and who they are of."""

    rows: NDArray[np.int64]
    studies: EmbeddedStudies
    labels: Floats
    patients: NDArray[np.int64]

    @classmethod
    def of(cls, member: int, vectors: Floats, labels: Floats, folds: Any, patients: Any) -> MemberMemory | None:
        """Of the rows of a bank that are not of the member's fold; None where fewer than two are."""
        rows = np.flatnonzero(folds != member)
        if len(rows) < 2:
            return None
        return cls(rows, EmbeddedStudies.fit(vectors[rows], labels[rows]), labels[rows], patients[rows])

    def nearest(self, vector: Floats, barred: Mask, most: int) -> NDArray[np.int64]:
        """The places among ``rows`` of the nearest studies that are not ``barred`` (J,), nearest first."""
        apart = np.where(barred[self.rows], np.inf, self.distances(vector))
        order = np.argsort(apart, kind="stable")[:most]
        return np.asarray(order[np.isfinite(apart[order])])

    def distances(self, vector: Floats) -> Floats:
        """Squared distances (J',) in units of the typical one."""
        studies = self.studies
        placed = (vector - studies.centre) / studies.spread
        return np.asarray(((studies.vectors - placed) ** 2).sum(axis=1) / studies.scale)

    def differences(self, vector: Floats, near: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Difference of a vector (D,) from the mean of these cases, and their mean labels (C,)."""
        studies = self.studies
        placed = (vector - studies.centre) / studies.spread
        return placed - studies.vectors[near].mean(axis=0), self.labels[near].mean(axis=0)


@dataclass(frozen=True)
class CaseDifferences:
    """y(x) = mean of the nearest cases' labels + A (x - mean of their vectors), with A (D, C) by ridge regression.

    A is fitted to the remembered studies themselves, each beside its nearest of other patients.
    """

    memory: MemberMemory
    number: int
    ridge: float

    @cached_property
    def effect(self) -> Floats:
        """A (D, C)."""
        vectors, labels, patients = self.memory.studies.vectors, self.memory.labels, self.memory.patients
        apart = squared_distances(vectors, vectors)
        apart[patients[:, None] == patients[None]] = np.inf
        order = np.argsort(apart, axis=1, kind="stable")[:, : self.number]
        finite = np.isfinite(np.take_along_axis(apart, order, axis=1)).astype(np.float64)
        share = finite / np.maximum(finite.sum(axis=1, keepdims=True), 1)
        known = finite.any(axis=1)
        moved = (vectors - np.einsum("jn,jnd->jd", share, vectors[order]))[known]
        changed = (labels - np.einsum("jn,jnc->jc", share, labels[order]))[known]
        size = moved.T @ moved
        penalty = self.ridge * max(float(np.trace(size)) / len(size), 1e-6)
        return np.asarray(np.linalg.solve(size + penalty * np.eye(len(size)), moved.T @ changed))

    def __call__(self, vector: Floats, barred: Mask) -> Floats:
        """Scores (C,)."""
        near = self.memory.nearest(vector, barred, self.number)
        if not len(near):
            return np.zeros(self.memory.labels.shape[1])
        moved, had = self.memory.differences(vector, near)
        return np.asarray(had + moved @ self.effect)


class RecallConfig(Config):
    """Smoothers over the members' vectors. Without ``is_source`` they decide the wording alone."""

    kind: Literal["smoothers"] = "smoothers"
    is_source: bool = True

    def build(self) -> RecallSource:
        return RecallSource(self)


class CasesConfig(Config):
    """So many of the nearest ``cases``; ``ridge`` in units of the mean square of the differences."""

    kind: Literal["differences"] = "differences"
    cases: Count = 16
    ridge: float = Field(default=10.0, gt=0)

    def build(self) -> CasesSource:
        return CasesSource(self)


class KernelsConfig(Config):
    """Classical descriptors of radiographs; scans have none."""

    kind: Literal["descriptors"] = "descriptors"
    descriptors: DescriptorsConfig = DescriptorsConfig()

    def build(self) -> KernelSource:
        return KernelSource(self.descriptors.build())


class KernelSource(nn.Module):
    """Kernel smoothers over how studies look; the studies are in the bank."""

    is_there = is_source = True

    def __init__(self, extractor: DescriptorExtractor) -> None:
        super().__init__()
        self.descriptors = extractor


class RecallSource(nn.Module):
    """Smoothers over the members' vectors; they are fitted to the bank when it is read."""

    is_there = True

    def __init__(self, config: RecallConfig) -> None:
        super().__init__()
        self.is_source = config.is_source


class CasesSource(nn.Module):
    """Differences from similar cases; what they mean is fitted to the bank when it is read."""

    is_there = is_source = True

    def __init__(self, config: CasesConfig) -> None:
        super().__init__()
        self.cases, self.ridge = config.cases, config.ridge


KernelsSetting = Annotated[NoSourceConfig | KernelsConfig, Field(discriminator="kind")]
RecallSetting = Annotated[NoSourceConfig | RecallConfig, Field(discriminator="kind")]
CasesSetting = Annotated[NoSourceConfig | CasesConfig, Field(discriminator="kind")]


@dataclass(frozen=True)
class Memory:
    """The bank of a run as its sources read it: J training studies."""

    rows: tuple[dict[str, Any], ...]
    owners: Owners
    folds: NDArray[np.int64]
    neighbours: DescribedStudies | None
    members: tuple[MemberMemory | None, ...]
    cases: tuple[CaseDifferences | None, ...]

    @classmethod
    def of(cls, bank: Bank, number: int, cases: CasesSource | NoSource) -> Memory:
        """Read a bank of ``number`` members' vectors."""
        owners, tensors = bank.owners(), bank.tensors
        folds = tensors["folds"].long().numpy()[:, 0]
        labels = tensors["labels"].double().numpy()
        members: list[MemberMemory | None] = [None] * number
        if "vectors" in tensors:
            vectors, patients = tensors["vectors"].double().numpy(), owners.patient_of_row.numpy()
            members = [MemberMemory.of(k, vectors[:, k], labels, folds, patients) for k in range(number)]
        compared = [
            CaseDifferences(memory, cases.cases, cases.ridge)
            if memory is not None and isinstance(cases, CasesSource)
            else None
            for memory in members
        ]
        neighbours = DescribedStudies.of(bank) if "descriptors" in tensors else None
        return cls(bank.rows, owners, folds, neighbours, tuple(members), tuple(compared))

    def recalled(self, vectors: Floats, votes: Floats, barred: Mask) -> Evidence | None:
        """Mean evidence of the members' smoothers for a study with vectors (K, D), by votes (K,)."""
        evidence, counts = [], []
        for number in np.flatnonzero(votes):
            memory = self.members[number]
            if memory is None:
                continue
            one = memory.studies.evidence_for(vectors[number], barred[memory.rows])
            weights = np.zeros(len(self.rows))
            weights[memory.rows] = one.weights
            evidence.append(Evidence(one.scores, weights))
            counts.append(votes[number])
        if not evidence:
            return None
        scores, shares = [one.scores for one in evidence], [one.weights for one in evidence]
        return Evidence(np.average(scores, axis=0, weights=counts), np.average(shares, axis=0, weights=counts))

    def compared(self, vectors: Floats, votes: Floats, barred: Mask) -> Floats | None:
        """Mean scores (C,) of the differences from similar cases, by votes (K,)."""
        members = [number for number in np.flatnonzero(votes) if self.cases[number] is not None]
        scores = [cases(vectors[number], barred) for number in members if (cases := self.cases[number]) is not None]
        return np.asarray(np.average(scores, axis=0, weights=votes[members])) if scores else None

    def nearest(self, vectors: Floats, members: Mask, barred: Mask) -> int | None:
        """The row of the study that is nearest on the mean over the members that are asked."""
        apart, spoke = np.zeros(len(self.rows)), False
        for number in np.flatnonzero(members):
            memory = self.members[number]
            if memory is not None:
                far = np.full(len(self.rows), np.inf if members.sum() == 1 else 1.0)
                far[memory.rows] = memory.distances(vectors[number])
                apart, spoke = apart + far, True
        apart[barred] = np.inf
        best = int(apart.argmin())
        return best if spoke and np.isfinite(apart[best]) else None
