"""Weights of another run to start from: ``radweave train METHOD DATA --from RUN``.

A part of the model takes its weights from the part of the same name in the run if all of them have the same names and
shapes there, and mean the same: what is shaped by the classes needs the run's classes, what is shaped by the vocabulary
its tokenizer. Adapters that only the new model has start as they are. Memories, calibration and the test of images are
made anew from the new training split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from radweave.core.errors import InputError
from radweave.core.ontology import CLASSES
from radweave.data.dataset import Dataset
from radweave.data.tokenizer import load_tokenizer
from radweave.engine.estimate import build_on_meta
from radweave.engine.expected_utility import FOLDER as DRAFTING
from radweave.engine.run_folder import RunCard, WarmStart, read_card, read_card_alone
from radweave.methods.experiment import Experiment
from radweave.methods.model import ReportModel, named_parts
from radweave.nn.language_model import MARK
from radweave.nn.memory.bank import load_bank

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WEIGHTS = "weights.safetensors"


@dataclass(frozen=True, slots=True)
class StartRun:
    """A finished run whose weights another training starts from; its files have been checked."""

    folder: Path
    card: RunCard

    @classmethod
    def open(cls, folder: Path) -> StartRun:
        """Open a run folder, or an export.

        Raises:
            InputError: if it is no finished run, or a file was changed.
        """
        return cls(folder, read_card(folder))

    @property
    def weights_hash(self) -> str:
        """SHA-256 of the weights."""
        return self.card.files[WEIGHTS]

    def refuse_other(self, run: Path) -> None:
        """Refuse a finished run that started from other weights.

        Raises:
            InputError: naming that run.
        """
        known = read_card_alone(run).warm_start
        if known is None or known.weights != self.weights_hash:
            raise InputError("the run did not start from these weights", file=run, field="--from", got=self.folder)

    def take(self, model: ReportModel, experiment: Experiment, tokenizer: PreTrainedTokenizerBase) -> WarmStart:
        """Copy the weights of the parts that fit into a model of the experiment.

        Raises:
            InputError: if no part fits, naming the reason of each.
        """
        from safetensors.torch import load_file

        stored = load_file(str(self.folder / WEIGHTS))
        own = model.state_dict()
        classes = CLASSES[experiment.data.label_set]
        by_class: frozenset[str] = frozenset()
        if self.card.classes != classes:
            by_class = _shaped_by_classes(experiment, len(classes), own, tokenizer)
        # The size of the vocabulary, by which tensors of words are known, if the run's words are others; else nothing.
        same_words = load_tokenizer(self.folder / "tokenizer").get_vocab() == tokenizer.get_vocab()
        other_words = frozenset[int]() if same_words else frozenset({len(tokenizer)})
        taken: dict[str, dict[str, Tensor]] = {}
        left: dict[str, str] = {}
        for part in named_parts(model):
            wanted = {name: value for name, value in own.items() if name.startswith(f"{part}.")}
            stored_part = {name: value for name, value in stored.items() if name.startswith(f"{part}.")}
            if not wanted:
                continue
            fitting, reason = _fitting(wanted, stored_part, by_class, other_words)
            if reason:
                left[part] = reason
            else:
                taken[part] = fitting
        if not taken:
            reasons = "; ".join(f"{part}: {reason}" for part, reason in left.items())
            raise InputError(
                "no part of this model takes weights of the run", file=self.folder, field="--from", got=reasons
            )
        with torch.no_grad():
            for fitting in taken.values():
                for name, value in fitting.items():
                    own[name].copy_(value)
        return WarmStart(
            weights=self.weights_hash,
            method=self.card.method,
            dataset=self.card.dataset.name,
            taken=tuple(taken),
            left=left,
        )

    def refuse_leak(self, dataset: Dataset) -> str | None:
        """Refuse a run that was trained on a validation or test study; a sentence where this cannot be known.

        A study is the same if its id is, and its report where the run holds reports.

        Raises:
            InputError: with the number of studies.
        """
        if dataset.fingerprint() == self.card.dataset.fingerprint:
            return None
        others = [study for study in dataset.studies() if study.split != "train"]
        names = [study.study_id for study in others]
        for bank_name in self.card.memories:
            place = self.folder / ("drafting/bank" if bank_name == DRAFTING else f"memories/{bank_name}")
            bank = load_bank(place)
            owners = bank.owners()
            texts: dict[int, str | None] = {}
            for number, row in zip(owners.study_of_row.tolist(), bank.rows, strict=True):
                texts.setdefault(number, row.get("text") if isinstance(row.get("text"), str) else None)
            shared = [
                study
                for study, number in zip(others, owners.studies_of(names).tolist(), strict=True)
                if number >= 0 and _same_text(texts[number], study.report)
            ]
            if shared:
                raise InputError(
                    "leak: the run was trained on studies of this data set's validation or test split",
                    file=self.folder,
                    field="--from",
                    got=f"{len(shared)} studies",
                    expected="none",
                )
        known = "its memories hold none of them" if self.card.memories else "it holds no memory to compare with"
        return (
            f"starts from weights of a run on another data set ({self.card.dataset.name}): nobody can tell from the run"
            f" alone that it was not trained on this data set's test studies; {known}"
        )


def _same_text(text: str | None, report: str | None) -> bool:
    return text is None or report is None or text.split() == report.split()


def _fitting(
    wanted: Mapping[str, Tensor],
    stored_part: Mapping[str, Tensor],
    by_class: frozenset[str],
    other_words: frozenset[int],
) -> tuple[dict[str, Tensor], str]:
    """Tensors for the names of a part, or the reason why it takes none."""
    if not stored_part:
        return {}, "the run has no such part"
    adapters = [name for name in stored_part if MARK in name]
    if adapters and adapters != [name for name in wanted if MARK in name]:
        return (
            {},
            "the run has adapters that this model lacks, so that the weights below them are not what it writes with",
        )
    stored = {_plain(name): value for name, value in stored_part.items()}
    fitting: dict[str, Tensor] = {}
    for name, value in wanted.items():
        # Of names that share memory one is stored.
        same = [other for other, tensor in wanted.items() if tensor.data_ptr() == value.data_ptr() and value.numel()]
        match = next((stored[plain] for plain in map(_plain, (name, *same)) if plain in stored), None)
        if match is None:
            if MARK in name:
                continue
            return {}, f"the run has no {name}"
        if match.is_floating_point() != value.is_floating_point():
            return {}, f"{name} is {value.dtype}, and {match.dtype} in the run"
        if match.shape != value.shape:
            return {}, f"{name} is {list(value.shape)}, and {list(match.shape)} in the run"
        if name in by_class:
            return {}, f"{name} is shaped by the classes, and the run has others"
        if other_words & set(value.shape):
            return {}, (
                f"{name} is shaped by the vocabulary, and the run has another tokenizer"
                " (data.tokenizer=pretrained data.tokenizer.path=RUN/tokenizer takes it over)"
            )
        fitting[name] = match
    names = set(map(_plain, wanted))
    extra = next((name for name in stored_part if _plain(name) not in names), None)
    return (fitting, "") if extra is None else ({}, f"this model has no {extra}")


def _plain(name: str) -> str:
    """The name of a weight without the mark of adapters beside it."""
    return name.replace(".base_layer.", ".")


def _shaped_by_classes(
    experiment: Experiment, classes: int, own: Mapping[str, Tensor], tokenizer: PreTrainedTokenizerBase
) -> frozenset[str]:
    """Names of the tensors whose shape follows from the number of classes: those that another number changes."""
    label_set = next(name for name, others in CLASSES.items() if len(others) != classes)
    data = experiment.data.model_copy(update={"label_set": label_set})
    other = build_on_meta(experiment.model_copy(update={"data": data}), tokenizer).state_dict()
    return frozenset(name for name, value in own.items() if name not in other or other[name].shape != value.shape)
