"""Training studies that are remembered: by classical descriptors, and by the vectors that the members have of them.

kernels: smoothers over descriptors of the images (``radweave.methods.neighbours``), evidence and wording
recall: smoothers over the members' vectors, wording, and the nearest report

A member remembers the studies that it was trained on. What it remembers of a study of its own fold would be vectors of
another kind, so they are left out: training studies and new ones are asked of the same memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import nn

from radweave.core.batch import Batch
from radweave.core.config import Config
from radweave.drafting.smoothers import EmbeddedStudies, Evidence, Floats, Mask
from radweave.methods.descriptors import DescriptorExtractor, DescriptorsConfig
from radweave.methods.neighbours import DescribedStudies
from radweave.nn.memory.bank import Bank, Owners


class KernelSource(nn.Module):
    """Kernel smoothers over how studies look; the studies are in the bank. Without ``descriptors`` it is left out."""

    def __init__(self, descriptors: DescriptorExtractor | None) -> None:
        super().__init__()
        self.descriptors = descriptors

    @property
    def is_source(self) -> bool:
        return self.descriptors is not None

    def evidence_for(self, memory: Memory, batch: Batch, barred: Mask) -> list[Evidence]:
        """Evidence for each study of a batch without the ``barred`` rows (B, J); none where it is left out."""
        if self.descriptors is None or memory.described is None:
            return []
        return memory.described.evidence_for(self.descriptors, batch, barred)


class NoKernelsConfig(Config):
    """Leave the source out: scans have no descriptors."""

    kind: Literal["none"] = "none"

    def build(self) -> KernelSource:
        return KernelSource(None)


class KernelsConfig(Config):
    """Classical descriptors of radiographs."""

    kind: Literal["descriptors"] = "descriptors"
    descriptors: DescriptorsConfig = DescriptorsConfig()

    def build(self) -> KernelSource:
        return KernelSource(self.descriptors.build())


class RecallSource(nn.Module):
    """Smoothers over the members' vectors; they are fitted to the bank when it is read."""

    def __init__(self, *, remembers: bool) -> None:
        super().__init__()
        self.remembers = remembers


class NoRecallConfig(Config):
    """Remember no vectors."""

    kind: Literal["none"] = "none"

    def build(self) -> RecallSource:
        return RecallSource(remembers=False)


class RecallConfig(Config):
    """Smoothers over the members' vectors. They decide the wording, and give the nearest report."""

    kind: Literal["smoothers"] = "smoothers"

    def build(self) -> RecallSource:
        return RecallSource(remembers=True)


KernelsSetting = Annotated[NoKernelsConfig | KernelsConfig, Field(discriminator="kind")]
RecallSetting = Annotated[NoRecallConfig | RecallConfig, Field(discriminator="kind")]


@dataclass(frozen=True)
class MemberMemory:
    """A member's memory: its rows of the bank, and their vectors (J', D)."""

    rows: NDArray[np.int64]
    studies: EmbeddedStudies

    @classmethod
    def of(cls, member: int, vectors: Floats, labels: Floats, folds: NDArray[np.int64]) -> MemberMemory | None:
        """Of the rows of a bank that are not of the member's fold; None where fewer than two are."""
        rows = np.flatnonzero(folds != member)
        return cls(rows, EmbeddedStudies.fit(vectors[rows], labels[rows])) if len(rows) >= 2 else None

    def distances(self, vector: Floats) -> Floats:
        """Squared distances (J',) in units of the typical one."""
        studies = self.studies
        placed = (vector - studies.centre) / studies.spread
        return np.asarray(((studies.vectors - placed) ** 2).sum(axis=1) / studies.scale)


@dataclass(frozen=True)
class Memory:
    """The bank of a run as its sources read it: J training studies."""

    rows: tuple[dict[str, Any], ...]
    owners: Owners
    folds: NDArray[np.int64]
    described: DescribedStudies | None
    members: tuple[MemberMemory | None, ...]

    @classmethod
    def of(cls, bank: Bank, number: int) -> Memory:
        """Read a bank of ``number`` members' vectors."""
        tensors = bank.tensors
        folds = tensors["folds"].long().numpy()[:, 0]
        labels = tensors["labels"].double().numpy()
        members: list[MemberMemory | None] = [None] * number
        if "vectors" in tensors:
            vectors = tensors["vectors"].double().numpy()
            members = [MemberMemory.of(k, vectors[:, k], labels, folds) for k in range(number)]
        described = DescribedStudies.of(bank) if "descriptors" in tensors else None
        return cls(bank.rows, bank.owners(), folds, described, tuple(members))

    def recalled(self, vectors: Floats, votes: Floats, barred: Mask) -> Floats | None:
        """Weights (J,) of the reports for a study with vectors (K, D): mean of the members' smoothers by votes (K,)."""
        shares, counts = [], []
        for number in np.flatnonzero(votes):
            memory = self.members[number]
            if memory is not None:
                weights = np.zeros(len(self.rows))
                weights[memory.rows] = memory.studies.evidence_for(vectors[number], barred[memory.rows]).weights
                shares.append(weights)
                counts.append(votes[number])
        return np.asarray(np.average(shares, axis=0, weights=counts)) if shares else None

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
