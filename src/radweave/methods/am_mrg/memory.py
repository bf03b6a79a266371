"""A bank and the Hopfield network that reads it: the V-Hopfield over regions, the R-Hopfield over reports (Eq. 6-7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from radweave.core.config import Config, Heads, Width
from radweave.methods.am_mrg.regions import RegionConfig
from radweave.methods.am_mrg.report_bank import ReportDrawConfig
from radweave.nn.hopfield import AttentionRuleConfig, Hopfield, Patterns, UpdateRuleConfig, strongest
from radweave.nn.memory.bank import Bank, BankLayout, Column, Owners
from radweave.nn.study_norm import MARKS, OverStudies, over_studies


@dataclass(frozen=True, slots=True)
class Recollection:
    """``tokens`` (B, T, H) for the language model; ``queries`` and ``askers`` say what was recalled, and by whom."""

    tokens: Float[Tensor, "batch tokens width"]
    queries: Tensor | None = None
    askers: Tensor | None = None


class HopfieldMemory(nn.Module):
    """f_i^* = Hopfield(f_i, X) for every disease token f_i (Eq. 6), in the language model's width.

    The bank is not part of the weights: it is a file of the run, read as it is, in chunks that are normalised on the
    way. A study never recalls patterns of its own patient; otherwise it would find its own report while it is trained.
    Until a bank is set the memory is empty and nothing is recalled.

    ``state_norm`` (of (B, K, d)) and ``output_norm`` (of (B, K, H)) stand before and after the network: ``StudyNorm``,
    or nothing.
    """

    tokens_per_class = 1

    def __init__(self, network: Hopfield, pattern_dim: int, state_norm: nn.Module, output_norm: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.state_norm, self.output_norm = state_norm, output_norm
        self.pattern_dim = pattern_dim
        self.patterns = Patterns(torch.zeros(0, pattern_dim))
        self.rows: tuple[dict[str, Any], ...] = ()
        self.owners = Owners((), ())

    def banks(self, name: str, build: Callable[[], Bank]) -> dict[str, Bank]:
        """The bank it will read, by name."""
        return {name: build()}

    def layouts(self, name: str, *, texts: bool, may_be_empty: bool) -> dict[str, BankLayout]:
        """Layout of that bank."""
        patterns = {"patterns": Column("float", (self.pattern_dim,))}
        return {name: BankLayout(patterns, texts=texts, may_be_empty=may_be_empty)}

    def remember(self, bank: Bank) -> None:
        """Take a bank with ``patterns`` (N, P)."""
        self.owners = bank.owners()
        values = bank.tensors["patterns"].reshape(len(bank), -1 if len(bank) else self.pattern_dim)
        self.patterns = Patterns(values, self.owners.patient_of_row, normalised=True)
        self.rows = bank.rows

    def forward(self, states: Float[Tensor, "batch classes dim"], patient_ids: Sequence[str]) -> Recollection:
        """Associate the disease tokens of each study with the bank."""
        held, device = self.patterns, states.device
        if held.values.device != device:
            owners = None if held.owners is None else held.owners.to(device)
            self.patterns = replace(held, values=held.values.to(device), owners=owners)
        askers = self.owners.patients_of(patient_ids).to(states.device).repeat_interleave(states.shape[1])
        recollection = self.network(self.state_norm(states).flatten(0, 1), self.patterns, askers)
        tokens = self.output_norm(recollection.output.unflatten(0, states.shape[:2]))
        return Recollection(tokens, recollection.queries, askers)

    def recalled(self, recollection: Recollection, classes: Sequence[str], top: int) -> list[list[dict[str, Any]]]:
        """Per study, for every class the ``top`` rows of the bank with the largest weight: row, class and weight."""
        assert recollection.queries is not None
        weights, rows = strongest(recollection.queries, self.patterns, top, recollection.askers)
        studies, width = len(recollection.tokens), weights.shape[1]
        weights, numbers = weights.view(studies, len(classes), width), rows.view(studies, len(classes), width)
        return [
            [
                {**self.rows[row], "for": name, "weight": weight}
                for name, class_weights, class_rows in zip(classes, study_weights, study_rows, strict=True)
                for weight, row in zip(class_weights, class_rows, strict=True)
                if weight > 0
            ]
            for study_weights, study_rows in zip(weights.tolist(), numbers.tolist(), strict=True)
        ]


class NoMemory(nn.Module):
    """Nothing is recalled: rows 1 to 3 of Table IV."""

    tokens_per_class = 0

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def banks(self, name: str, build: Callable[[], Bank]) -> dict[str, Bank]:
        return {}

    def layouts(self, name: str, *, texts: bool, may_be_empty: bool) -> dict[str, BankLayout]:
        return {}

    def remember(self, bank: Bank) -> None:
        """Pass over a bank that an earlier configuration left in the run."""

    def forward(self, states: Float[Tensor, "batch classes dim"], patient_ids: Sequence[str]) -> Recollection:
        return Recollection(states.new_zeros(len(states), 0, self.width))

    def recalled(self, recollection: Recollection, classes: Sequence[str], top: int) -> list[list[dict[str, Any]]]:
        return [[] for _ in range(len(recollection.tokens))]


Memory = HopfieldMemory | NoMemory


class NoVisualMemoryConfig(Config):
    """Without V-Hopfield. Activation maps are still shown as evidence: ``regions.cam`` says which."""

    kind: Literal["none"] = "none"
    regions: RegionConfig = RegionConfig()

    def build(self, num_classes: int, state_dim: int, pattern_dim: int, width: int) -> NoMemory:
        return NoMemory(width)


class VisualMemoryConfig(Config):
    """V-Hopfield over the regions that are mined from the training split.

    ``norm=studies`` normalises the disease tokens before the network, and what they recall, over studies.
    """

    kind: Literal["hopfield"] = "hopfield"
    num_heads: Heads = 6
    head_dim: Width = 1024
    update: UpdateRuleConfig = AttentionRuleConfig()
    norm: OverStudies = "none"
    regions: RegionConfig = RegionConfig()

    def build(self, num_classes: int, state_dim: int, pattern_dim: int, width: int) -> HopfieldMemory:
        return _memory(self, num_classes, state_dim, pattern_dim, width)


class NoReportMemoryConfig(Config):
    """Without R-Hopfield."""

    kind: Literal["none"] = "none"

    @property
    def reports(self) -> ReportDrawConfig:
        """Of no consequence."""
        return ReportDrawConfig()

    def build(self, num_classes: int, state_dim: int, pattern_dim: int, width: int) -> NoMemory:
        return NoMemory(width)


class ReportMemoryConfig(Config):
    """R-Hopfield over sentences or reports of the training split; ``norm`` as for ``VisualMemoryConfig``."""

    kind: Literal["hopfield"] = "hopfield"
    num_heads: Heads = 6
    head_dim: Width = 1024
    update: UpdateRuleConfig = AttentionRuleConfig()
    norm: OverStudies = "none"
    reports: ReportDrawConfig = ReportDrawConfig()

    def build(self, num_classes: int, state_dim: int, pattern_dim: int, width: int) -> HopfieldMemory:
        return _memory(self, num_classes, state_dim, pattern_dim, width)


def _memory(
    record: VisualMemoryConfig | ReportMemoryConfig, num_classes: int, state_dim: int, pattern_dim: int, width: int
) -> HopfieldMemory:
    rule, schedule = record.update.build()
    heads = {"num_heads": record.num_heads, "head_dim": record.head_dim}
    network = Hopfield(state_dim, pattern_dim, width, **heads, rule=rule, schedule=schedule)
    norms = over_studies(record.norm, num_classes, state_dim), over_studies(record.norm, num_classes, width, MARKS)
    return HopfieldMemory(network, pattern_dim, *norms)


VisualMemorySetting = Annotated[NoVisualMemoryConfig | VisualMemoryConfig, Field(discriminator="kind")]
ReportMemorySetting = Annotated[NoReportMemoryConfig | ReportMemoryConfig, Field(discriminator="kind")]
