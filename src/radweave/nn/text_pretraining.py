"""Text-only pretraining of a small language model that is to be frozen: it learns to read what stands in its prompt.

A large language model writes about what is in its context. A small one trained on reports alone has never seen a
context, so nothing that is later put there moves it. Here the context is made of text: another patient's report with
similar findings where the exemplar will stand, and where the image will stand the names of the findings and some of the
report's own words, shuffled and with wrong ones among them. No image is looked at.

Source: in the manner of Lewis et al., "BART", ACL 2020, Sec. 2.2 (token deletion, permutation).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from radweave.core.config import Config, Prompt
from radweave.data.tokenizer import encode
from radweave.nn.heads import POSITIVE, UNCERTAIN, UncertainPolicy, binary_targets
from radweave.nn.prompt import PromptTemplate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TokenSlot = tuple[Int[Tensor, "batch length"], Bool[Tensor, "batch length"]]
"""Token ids and where there are any."""


def hint_generator(training: bool) -> torch.Generator:
    """Randomness of the hints: fresh in training; always the same in validation, whose loss must not depend on when."""
    seed = int(torch.randint(2**31, (1,))) if training else 0
    return torch.Generator().manual_seed(seed)


def word_hints(
    labels: Int[Tensor, "batch text"], generator: torch.Generator, *, largest_share: float = 0.5, wrong: float = 0.15
) -> TokenSlot:
    """A share of each report's tokens, in random order; some stem from another report of the batch.

    The share is uniform in [0, ``largest_share``] per report; a token is exchanged with probability ``wrong``.
    """
    batch, length = labels.shape
    share = torch.rand(batch, 1, generator=generator) * largest_share
    exchanged = torch.rand(batch, length, generator=generator) < wrong
    shift = int(torch.randint(0, batch, (1,), generator=generator))
    source = torch.where(exchanged, labels.roll(shift, 0).cpu(), labels.cpu())
    chosen = (torch.rand(batch, length, generator=generator) < share) & (source != -100)
    order = torch.where(chosen, torch.rand(batch, length, generator=generator), 2.0).argsort(dim=1)
    ids, mask = source.gather(1, order), chosen.gather(1, order)
    width = max(1, int(mask.sum(1).max()))
    ids, mask = ids[:, :width].masked_fill(~mask[:, :width], 0), mask[:, :width]
    return ids.to(labels.device), mask.to(labels.device)


def finding_names(
    class_labels: Int[Tensor, "batch classes"],
    names: Sequence[Sequence[int]],
    generator: torch.Generator,
    *,
    missed: float = 0.15,
    wrong: float = 0.03,
) -> TokenSlot:
    """The names of each report's positive and uncertain classes, in random order.

    ``names`` holds the token ids of every class's name. A name is left out with probability ``missed``, and that of a
    class that is not stated put in with probability ``wrong``: what an image gives away is no more reliable.
    """
    rows = []
    for states in class_labels.tolist():
        draws = torch.rand(len(names), generator=generator).tolist()
        stated = [state in (POSITIVE, UNCERTAIN) for state in states]
        chosen = [number for number, draw in enumerate(draws) if draw >= missed and stated[number]]
        chosen += [number for number, draw in enumerate(draws) if draw < wrong and not stated[number]]
        order = torch.randperm(len(chosen), generator=generator).tolist()
        rows.append([token for place in order for token in names[chosen[place]]])
    return pad_rows(rows, class_labels.device)


def pad_rows(rows: Sequence[Sequence[int]], device: torch.device | None = None) -> TokenSlot:
    """Rows of token ids of different lengths as one slot, padded on the right; at least one column."""
    width = max(1, *(len(row) for row in rows))
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(row, dtype=torch.long)
        mask[number, : len(row)] = True
    return ids.to(device), mask.to(device)


def similar_reports(
    labels: Int[Tensor, "batch text"],
    class_labels: Int[Tensor, "batch classes"],
    patient_ids: Sequence[str],
    generator: torch.Generator,
) -> TokenSlot:
    """For each report, the report of the batch whose label states agree most, of another patient."""
    agreement = (class_labels[:, None] == class_labels[None]).sum(-1).float().cpu()
    agreement += 0.5 * torch.rand(agreement.shape, generator=generator)  # chance decides between equals
    for row, patient in enumerate(patient_ids):
        same = torch.tensor([patient == other for other in patient_ids])
        agreement[row] = agreement[row].masked_fill(same, float("-inf"))
    best, mates = agreement.max(1)
    ids = labels[mates.to(labels.device)]
    mask = (ids != -100) & torch.isfinite(best).to(labels.device)[:, None]
    return ids.masked_fill(~mask, 0), mask


class Around:
    """Words around a slot of text. They come and go with it, study by study: one that has nothing there is not told of
    it.
    """

    def __init__(self, before: Sequence[int], after: Sequence[int]) -> None:
        self._before, self._after = before, after

    @classmethod
    def parse(cls, prompt: str, tokenizer: PreTrainedTokenizerBase, slot: str) -> Around:
        """The words before and after ``{slot}``.

        Raises:
            InputError: if the prompt has not exactly this slot.
        """
        pieces = PromptTemplate.parse(prompt, lambda text: encode(tokenizer, text), slots=(slot,), bos_id=None).pieces
        place = pieces.index(slot)
        before, after = (
            [token for piece in part for token in piece if isinstance(token, int)]
            for part in (pieces[:place], pieces[place + 1 :])
        )
        return cls(before, after)

    def length(self, text: int) -> int:
        """The tokens of a text of so many with the words around it."""
        return len(self._before) + text + len(self._after) if text else 0

    def __call__(self, ids: Int[Tensor, "batch text"], mask: Bool[Tensor, "batch text"]) -> TokenSlot:
        """Texts with the words around them; a row without any token stays without."""
        has_words = mask.any(1, keepdim=True)
        before, after = (ids.new_tensor(words).expand(len(ids), -1) for words in (self._before, self._after))
        around = [has_words.expand(-1, words.shape[1]) for words in (before, after)]
        return torch.cat([before, ids, after], dim=1), torch.cat([around[0], mask, around[1]], dim=1)


# Findings in words, as token ids before a report: those that were found, or some about as unreliable to learn by.


@dataclass(frozen=True, slots=True)
class DiagnosisText:
    """Wording of findings as token ids: ``intro``, then the name of each class, or ``none``."""

    intro: tuple[int, ...]
    names: tuple[tuple[int, ...], ...]
    none: tuple[int, ...]

    @property
    def longest(self) -> int:
        """The most tokens of a study: those of one with every finding, or of one with none."""
        return len(self.intro) + max(sum(len(name) for name in self.names), len(self.none))

    def tokens(self, findings: Bool[Tensor, "batch classes"]) -> TokenSlot:
        """The words for each study, in the order of the classes."""
        rows = []
        for study in findings.tolist():
            named = [token for name, positive in zip(self.names, study, strict=True) if positive for token in name]
            rows.append([*self.intro, *(named or self.none)])
        return pad_rows(rows, findings.device)


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
    stated = binary_targets(class_labels, policy)[0] > 0
    draw = torch.rand(class_labels.shape, generator=generator).to(class_labels.device)
    return torch.where(stated, draw >= missed, draw < wrong)


class DiagnosisTextConfig(Config):
    """Wording of findings: ``intro``, then each name and a comma, or ``none`` for a study without a finding."""

    intro: Prompt = ""
    none: Prompt = ""

    def build(self, encode: Callable[[str], Sequence[int]], classes: Sequence[str]) -> DiagnosisText:
        """Tokenise the words; names are written small."""
        intro, none = (tuple(encode(text)) if text else () for text in (self.intro, self.none))
        return DiagnosisText(intro, tuple(tuple(encode(f"{name.lower()},")) for name in classes), none)
