"""Findings in words, as token ids before a report: those that were found, or some about as unreliable to learn by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from radweave.base.config import Config, Prompt
from radweave.nn.supervision import UncertainPolicy, binary_targets
from radweave.nn.text_pretraining import TokenSlot, pad_rows


@dataclass(frozen=True, slots=True)
class DiagnosisText:
    """How findings are put in words, as token ids: ``intro``, then each class's name, or ``none``."""

    intro: tuple[int, ...]
    names: tuple[tuple[int, ...], ...]
    none: tuple[int, ...]

    def tokens(self, found: Bool[Tensor, "batch classes"]) -> TokenSlot:
        """The words for each study, in the order of the classes."""
        rows = []
        for study in found.tolist():
            named = [token for name, there in zip(self.names, study, strict=True) if there for token in name]
            rows.append([*self.intro, *(named or self.none)])
        return pad_rows(rows, found.device)


def noisy_findings(
    class_labels: Int[Tensor, "batch classes"],
    policy: UncertainPolicy,
    generator: torch.Generator,
    *,
    missed: float,
    wrong: float,
) -> Bool[Tensor, "batch classes"]:
    """The findings that labels state, as a classifier would have seen them: some missed, some not there.

    Each one stated is missed with probability ``missed``, each other put in with ``wrong``. An uncertain label counts
    as ``policy`` says, as for the classifier itself; one that is to be ignored is not stated.
    """
    targets, known = binary_targets(class_labels, policy)
    stated = (targets > 0) & known
    draw = torch.rand(class_labels.shape, generator=generator).to(class_labels.device)
    return torch.where(stated, draw >= missed, draw < wrong)


class DiagnosisTextConfig(Config):
    """How findings are put in words: ``intro``, then each name and a comma, or ``none`` where nothing is found."""

    intro: Prompt = ""
    none: Prompt = ""

    def build(self, encode: Callable[[str], Sequence[int]], classes: Sequence[str]) -> DiagnosisText:
        """Tokenise the words; names are written small."""
        intro, none = (tuple(encode(text)) if text else () for text in (self.intro, self.none))
        return DiagnosisText(intro, tuple(tuple(encode(f"{name.lower()},")) for name in classes), none)
