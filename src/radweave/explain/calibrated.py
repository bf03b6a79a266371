"""What a draft's probabilities are worth, as its evidence says: calibrated on which studies, and from where on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from radweave.drafting.calibration import FEWEST_POSITIVES
from radweave.evaluation.statistics import wilson_interval

DEFAULT_THRESHOLD = 0.5
_SPLITS = {"train": "training", "val": "validation"}


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The calibration that came with a draft, or none; ``asked`` is a threshold that a reader gave for all classes."""

    split: str = ""
    studies: int = 0
    thresholds: Mapping[str, float] = field(default_factory=dict)
    alike: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    uncalibrated: Mapping[str, int] = field(default_factory=dict)
    asked: float | None = None

    @classmethod
    def of(cls, evidence: Mapping[str, Any], asked: float | None) -> Calibrated:
        """From a draft's evidence."""
        found = evidence.get("calibration")
        if not found:
            return cls(asked=asked)
        return cls(
            split=_SPLITS[found["split"]],
            studies=int(found["studies"]),
            thresholds=dict(found["thresholds"]),
            alike={name: (int(had), int(count)) for name, (had, count) in found["alike"].items()},
            uncalibrated=dict(found["uncalibrated"]),
            asked=asked,
        )

    def threshold(self, name: str) -> float:
        """From which probability on a class is taken to be there."""
        return self.asked if self.asked is not None else self.thresholds.get(name, DEFAULT_THRESHOLD)

    def experience(self, name: str) -> str | None:
        """How many of the studies that were given about this probability had the class, in words."""
        if name in self.alike:
            had, count = self.alike[name]
            low, high = wilson_interval(had, count) or (0.0, 1.0)
            return (
                f"of 100 such {self.split} studies {100 * had / count:.0f} had it"
                f" (95 %: {100 * low:.0f} to {100 * high:.0f}; {had} of {count} studies)"
            )
        if name in self.uncalibrated:
            return (
                f"not calibrated: {self.uncalibrated[name]} of {self.studies} {self.split} studies have it, and"
                f" {FEWEST_POSITIVES} with it and without it are needed"
            )
        return None
