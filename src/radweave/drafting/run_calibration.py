"""The calibration of a run, ``calibration.json``: what scores of its classes are worth as probabilities, and why.

It is made once, when training has ended: of a method's own heads on the validation split; of smoothers, whose studies
are the training studies, on the training split, each study without its patient's. The test split has no part in it.
Every draft of the run is written with it, whatever decodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, ValidationError, model_validator

from radweave.base.config import first_problem
from radweave.base.errors import InputError
from radweave.base.json_files import read_json_object, write_json
from radweave.base.study import Record
from radweave.drafting.balance import Balance, moved
from radweave.drafting.calibration import FEWEST_POSITIVES, Floats, PlattCalibration, pays_off_from
from radweave.evaluation.metrics.reliability import reliability
from radweave.labels import NO_FINDING

FILE = "calibration.json"
Source = Literal["model", "stack", "heads", "smoothers"]
LOG_ODDS: frozenset[Source] = frozenset({"stack", "heads"})
"""Sources whose scores are log-odds; the others' are about 0 to 1."""
Rule = Literal["pooled", "per_class", "balanced"]
Number = Field(allow_inf_nan=False)
FEWEST_ALIKE, MOST_BINS = 20, 10
"""Studies are told apart by probability into at most so many bins, each of at least so many studies."""


class Reliability(Record):
    """Of ``count`` studies with a mean probability of ``said``, ``low`` or more, the share ``seen`` had the finding."""

    said: float = Field(ge=0, le=1)
    seen: float = Field(ge=0, le=1)
    count: int = Field(ge=1)
    low: float = Field(ge=0, le=1)


class ClassCalibration(Record):
    """One class: its curve, from which probability on asserting it pays off, and what became of the studies.

    ``balanced`` and ``weight`` are those of ``radweave.drafting.balance``.
    """

    slope: float = Number
    offset: float = Number
    threshold: float = Field(ge=0, le=1)
    positives: int = Field(ge=0)
    balanced: float | None = Field(default=None, ge=0, le=1)
    weight: float = Field(default=1.0, ge=1, allow_inf_nan=False)
    reliability: tuple[Reliability, ...]


class RunCalibration(Record):
    """``source`` says what gives the scores: the model's own evidence (smoothed labels, or log-odds of a ``stack``),
    its heads, or smoothers on its embeddings.

    ``threshold`` is one for all findings, half of the best F1 over them. A class with fewer than five positives or
    negatives among the ``studies`` is not calibrated. ``holds`` is False in an export without a memory that the scores
    come from: none is calibrated there.
    """

    version: Literal[1] = 1
    source: Source
    split: Literal["train", "val"]
    studies: int = Field(ge=1)
    threshold: float = Field(ge=0, le=1)
    holds: bool = True
    classes: dict[str, ClassCalibration]

    @model_validator(mode="after")
    def _possible(self) -> RunCalibration:
        for name, one in self.classes.items():
            if one.positives > self.studies:
                raise ValueError(f"classes.{name}: more positives than studies")
            if self._is_enough(one) and not one.reliability:
                raise ValueError(f"classes.{name}: calibrated, and no study shows how well")
        return self

    @classmethod
    def fit(
        cls, source: Source, split: Literal["train", "val"], names: Sequence[str], scores: Floats, labels: Floats
    ) -> RunCalibration:
        """From scores (N, K) of studies that did not train what gave them, and their labels (N, K) of 0 and 1."""
        fit = PlattCalibration.of_log_odds if source in LOG_ODDS else PlattCalibration.fit
        curves = fit(scores, labels)
        said = curves(scores)
        counted = [name != NO_FINDING for name in names]
        positives = labels.sum(axis=0)
        enough = np.minimum(positives, len(labels) - positives) >= FEWEST_POSITIVES
        found = np.flatnonzero(counted)
        balance = Balance.fit(said[:, found], labels[:, found], enough[found])
        of_class = dict(zip(found.tolist(), zip(balance.thresholds, balance.weights, strict=True), strict=True))
        num_bins = max(1, min(MOST_BINS, len(scores) // FEWEST_ALIKE))
        return cls(
            source=source,
            split=split,
            studies=len(scores),
            threshold=pays_off_from(said[:, counted], labels[:, counted]),
            classes={
                name: ClassCalibration(
                    slope=float(curves.slope[k]),
                    offset=float(curves.offset[k]),
                    threshold=pays_off_from(said[:, [k]], labels[:, [k]]),
                    positives=int(positives[k]),
                    balanced=float(of_class[k][0]) if k in of_class else None,
                    weight=float(of_class[k][1]) if k in of_class else 1.0,
                    reliability=tuple(
                        Reliability(said=one.said, seen=one.seen, count=one.count, low=one.low)
                        for one in reliability(said[:, k], labels[:, k], num_bins=num_bins)
                    ),
                )
                for k, name in enumerate(names)
            },
        )

    def __call__(self, scores: Floats) -> Floats:
        """Probabilities (N, K); of a class that is not calibrated, its frequency."""
        known = self.classes.values()
        curves = PlattCalibration(np.array([one.slope for one in known]), np.array([one.offset for one in known]))
        return curves(scores)

    def thresholds(self, rule: Rule, macro: float = 1.0) -> Floats:
        """From which probability on asserting pays off, (K,): one for all findings, each its own, or between both.

        No Finding is no finding, and far more frequent: it has its own in either case. ``macro`` is what macro F1
        counts between both, beside what it was fitted for.
        """
        own = {name: rule == "per_class" or name == NO_FINDING for name in self.classes}
        fair = dict(zip(self.classes, self._between(macro)[0], strict=True))
        rest = fair if rule == "balanced" else dict.fromkeys(self.classes, self.threshold)
        return np.array([one.threshold if own[name] else rest[name] for name, one in self.classes.items()])

    def weights(self, rule: Rule, macro: float = 1.0) -> Floats:
        """What stating each class counts (K,) beside the others."""
        return self._between(macro)[1] if rule == "balanced" else np.ones(len(self.classes))

    def _between(self, macro: float) -> tuple[Floats, Floats]:
        """Thresholds and weights between both means (K,)."""
        known = self.classes.values()
        fair = np.array([self.threshold if one.balanced is None else one.balanced for one in known])
        weights = np.array([one.weight for one in known])
        return (fair, weights) if macro == 1 else moved(fair, weights, self.threshold, macro)

    def is_calibrated(self, name: str) -> bool:
        """Whether there were enough studies with the class and without."""
        return name in self.classes and self._is_enough(self.classes[name])

    def _is_enough(self, one: ClassCalibration) -> bool:
        return min(one.positives, self.studies - one.positives) >= FEWEST_POSITIVES

    def evidence(self, scores: Floats, rule: Rule, macro: float = 1.0) -> dict[str, Any]:
        """What a draft shows of one study's scores (K,).

        ``class_probabilities`` are calibrated but for the classes in ``calibration.uncalibrated``, of which the scores
        stand as they are. ``alike`` has for every other class how many of the calibration's studies that were given
        about the same probability had it, and how many those were.
        """
        calibrated = self(scores[None])[0]
        plain = np.clip(scores, 0, 1) if self.source not in LOG_ODDS else 1 / (1 + np.exp(-scores))
        shown = {
            name: float(calibrated[k] if self.is_calibrated(name) else plain[k]) for k, name in enumerate(self.classes)
        }
        return {
            "class_probabilities": shown,
            "calibration": {
                "split": self.split,
                "studies": self.studies,
                "thresholds": {
                    name: cut
                    for name, cut in zip(self.classes, self.thresholds(rule, macro).tolist(), strict=True)
                    if self.is_calibrated(name)
                },
                "alike": {name: self._alike(name, p) for name, p in shown.items() if self.is_calibrated(name)},
                "uncalibrated": {
                    name: one.positives for name, one in self.classes.items() if not self.is_calibrated(name)
                },
            },
        }

    def _alike(self, name: str, probability: float) -> list[int]:
        """How many of the studies with about this probability had the class, and how many they are."""
        bins = self.classes[name].reliability
        own = [one for one in bins if one.low <= probability] or [bins[0]]
        return [round(own[-1].seen * own[-1].count), own[-1].count]


def save_calibration(calibration: RunCalibration, folder: Path) -> None:
    """Write ``calibration.json`` into a run folder."""
    write_json(folder / FILE, calibration.model_dump(mode="json"))


def load_calibration(folder: Path, classes: Sequence[str]) -> RunCalibration:
    """Read it.

    Raises:
        InputError: if it is missing or broken, or of other classes.
    """
    try:
        calibration = RunCalibration.model_validate(read_json_object(folder / FILE))
    except ValidationError as error:
        raise InputError(first_problem(error), file=folder / FILE) from None
    if tuple(calibration.classes) != tuple(classes):
        raise InputError("not the classes of the run", file=folder / FILE, field="classes")
    return calibration
