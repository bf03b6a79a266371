"""Training studies that are remembered: smoothers over classical descriptors of the images, evidence and wording."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import nn

from radweave.core.batch import Batch
from radweave.core.config import Config
from radweave.drafting.smoothers import Evidence, Mask
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


KernelsSetting = Annotated[NoKernelsConfig | KernelsConfig, Field(discriminator="kind")]


@dataclass(frozen=True)
class Memory:
    """The bank of a run: J training studies."""

    rows: tuple[dict[str, Any], ...]
    owners: Owners
    folds: NDArray[np.int64]
    described: DescribedStudies | None

    @classmethod
    def of(cls, bank: Bank) -> Memory:
        """Read a bank."""
        described = DescribedStudies.of(bank) if "descriptors" in bank.tensors else None
        return cls(bank.rows, bank.owners(), bank.tensors["folds"].long().numpy()[:, 0], described)
