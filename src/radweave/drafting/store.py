"""Files of a run for drafts by expected utility: reports of the training split, calibrations of it or of validation.

DRAFTING/bank/                   a bank (``radweave.nn.memory.bank``): reports, their labels, and embeddings if needed
DRAFTING/facts.json              classes, and the options it was made with
DRAFTING/candidates.jsonl        a candidate per line: its sentences, the rows they are from, the classes it states
DRAFTING/utilities.safetensors   (M, J) utilities of candidates for reports, of up to 4,096 reports
DRAFTING/calibration.json        the run's calibration together with the method's own reports, where it has heads
DRAFTING/prior.json              what a prior study says of each class, where enough studies have one
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from radweave.core.config import checked
from radweave.core.errors import InputError
from radweave.core.json_files import read_json_object, read_jsonl, write_json, write_jsonl
from radweave.core.storage import write_folder
from radweave.core.study import NO_SECTION, SECTIONS, Record
from radweave.drafting.calibration import FILE, RunCalibration, Source, load_calibration, save_calibration
from radweave.drafting.candidates import Candidate, Sentence, SentenceKind
from radweave.drafting.prior import PriorCalibration, load_prior, save_prior
from radweave.metrics.pairwise import BleuPoint
from radweave.nn.memory.bank import Bank, load_bank, save_bank

BANK, FACTS, CANDIDATES, UTILITIES = "bank", "facts.json", "candidates.jsonl", "utilities.safetensors"


class DraftingFacts(Record):
    """``facts.json``.

    ``source`` says where scores are from, see ``RunCalibration``.
    ``wording`` and ``candidates`` are the options that the stored candidates and utilities were made with.
    ``own_wording`` is the share of the method's own reports in the wording; None where it is not asked for any.
    """

    version: Literal[1] = 1
    classes: tuple[str, ...]
    label_set: str
    source: Source
    bleu_matches: tuple[float, ...] = ()
    bleu_candidates: tuple[float, ...] = ()
    bleu_reference: float = 0.0
    wording: dict[str, float]
    candidates: dict[str, bool]
    own_wording: float | None = Field(default=None, ge=0, lt=1)

    @property
    def bleu_point(self) -> BleuPoint | None:
        """The point around which corpus BLEU is linear."""
        return BleuPoint(self.bleu_matches, self.bleu_candidates, self.bleu_reference) if self.bleu_matches else None


@dataclass(frozen=True, slots=True)
class DraftingStore:
    """Everything at once. ``asserts`` (M, K) says what candidates state; ``utilities`` (M, J) may be absent, and so may
    ``calibration``, that of the heads together with the method's own reports, and ``prior``, that of prior studies.
    """

    bank: Bank
    facts: DraftingFacts
    candidates: Sequence[Candidate]
    asserts: NDArray[np.float64]
    utilities: NDArray[np.float32] | None = None
    calibration: RunCalibration | None = None
    prior: PriorCalibration | None = None

    @property
    def texts(self) -> list[str]:
        """The training reports."""
        return [str(row["text"]) for row in self.bank.rows]

    @property
    def labels(self) -> NDArray[np.float64]:
        """Findings of the training reports (J, K), 0 and 1."""
        return np.asarray(self.bank.tensors["labels"].double().numpy())


def save_drafting(store: DraftingStore, folder: Path) -> None:
    """Write the folder, whole or not at all."""
    from safetensors.numpy import save_file

    with write_folder(folder, overwrite=True) as partial:
        save_bank(store.bank, partial / BANK)
        write_json(partial / FACTS, store.facts.model_dump(mode="json"))
        write_jsonl(partial / CANDIDATES, _lines(store))
        if store.utilities is not None:
            save_file({"utilities": np.ascontiguousarray(store.utilities)}, str(partial / UTILITIES))
        if store.calibration is not None:
            save_calibration(store.calibration, partial)
        if store.prior is not None:
            save_prior(store.prior, partial)


def _lines(store: DraftingStore) -> list[dict[str, Any]]:
    return [
        {
            "sentences": [
                [sentence.text, sentence.kind, sentence.row, *([sentence.part] if sentence.part else [])]
                for sentence in candidate.sentences
            ],
            "asserts": np.flatnonzero(stated).tolist(),
        }
        for candidate, stated in zip(store.candidates, store.asserts, strict=True)
    ]


def load_drafting(folder: Path) -> DraftingStore:
    """Read the folder.

    Raises:
        InputError: if a file is missing or broken, or one does not belong to the others.
    """
    bank = load_bank(folder / BANK)
    facts = load_facts(folder)
    labels = bank.tensors.get("labels")
    if labels is None or labels.shape != (len(bank), len(facts.classes)):
        raise InputError("the bank does not have a label per class", file=folder / BANK, field="labels")
    if not all(isinstance(row.get("text"), str) for row in bank.rows):
        raise InputError("a row has no report", file=folder / BANK, field="text")
    path = folder / CANDIDATES
    lines = [_candidate(path, number, row, len(bank), len(facts.classes)) for number, row in read_jsonl(path)]
    if not lines:
        raise InputError("there is no candidate, so that no draft is possible", file=path)
    asserts = np.zeros((len(lines), len(facts.classes)))
    for number, (_, stated) in enumerate(lines):
        asserts[number, stated] = 1
    candidates = [candidate for candidate, _ in lines]
    worth = _utilities(folder / UTILITIES, len(lines), len(bank))
    calibration = load_calibration(folder, facts.classes) if (folder / FILE).is_file() else None
    prior = load_prior(folder, facts.classes)
    return DraftingStore(bank, facts, candidates, asserts, worth, calibration, prior)


def load_facts(folder: Path) -> DraftingFacts:
    """Read ``facts.json`` alone.

    Raises:
        InputError: if it is missing or broken.
    """
    return checked(DraftingFacts, read_json_object(folder / FACTS), file=folder / FACTS)


def _candidate(
    path: Path, line: int, row: Mapping[str, Any], num_rows: int, num_classes: int
) -> tuple[Candidate, list[int]]:
    kinds: dict[str, SentenceKind] = {"report": "report", "template": "template", "finding": "finding"}
    try:
        sentences = tuple(Sentence(text, kinds[kind], *rest) for text, kind, *rest in row["sentences"])
        stated = list(row["asserts"])
        whole = all(isinstance(s.text, str) and type(s.row) is int and 0 <= s.row < num_rows for s in sentences)
        whole = whole and all(s.part in (NO_SECTION, *SECTIONS) for s in sentences)
        whole = whole and all(type(number) is int and 0 <= number < num_classes for number in stated)
    except (KeyError, TypeError, ValueError):
        whole = False
    if not whole or not sentences:
        raise InputError("not a candidate of this bank", file=path, line=line)
    return Candidate(sentences), stated


def _utilities(path: Path, num_candidates: int, num_reports: int) -> NDArray[np.float32] | None:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if not path.is_file():
        return None
    try:
        utilities = load_file(str(path)).get("utilities")
    except SafetensorError as error:
        raise InputError(f"file of utilities is broken: {error}", file=path) from None
    if utilities is None or utilities.shape != (num_candidates, num_reports) or utilities.dtype != np.float32:
        raise InputError(
            "the utilities do not belong to these candidates and reports",
            file=path,
            got=None if utilities is None else list(utilities.shape),
            expected=[num_candidates, num_reports],
        )
    return np.asarray(utilities)


def labels_tensor(labels: NDArray[np.float64]) -> torch.Tensor:
    """Labels (J, K) of 0 and 1 as the bank keeps them."""
    return torch.from_numpy(labels.astype(np.uint8))
