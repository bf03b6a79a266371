"""Chains of priors: a study's earlier one, whose earlier one, and so on. They must lead back in time and end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

OF_ANOTHER_PATIENT = "prior is of another patient"
NOT_EARLIER = "prior is not earlier than the study"
IN_A_CIRCLE = "priors that are each other's prior"


@dataclass(frozen=True, slots=True)
class PriorFault:
    """What is wrong, and the studies it concerns, the later one first."""

    kind: str
    studies: tuple[int, ...]


def prior_faults(
    prior_of: Mapping[int, int], patient_of: Sequence[bytes], time_of: Sequence[str | None]
) -> Iterator[PriorFault]:
    """Faults of the priors of studies that are known by their numbers.

    A study is compared with the nearest study before it that has a time: an undated one between two hides nothing.
    """
    for study, prior in prior_of.items():
        if patient_of[prior] != patient_of[study]:
            yield PriorFault(OF_ANOTHER_PATIENT, (study,))
        before = _dated(prior, prior_of, time_of)
        if before is not None and _not_earlier(time_of[before], time_of[study]):
            yield PriorFault(NOT_EARLIER, (study, before))
    for circle in _circles(prior_of):
        yield PriorFault(IN_A_CIRCLE, circle)


def _dated(study: int, prior_of: Mapping[int, int], time_of: Sequence[str | None]) -> int | None:
    """The study, or the nearest before it that has a time."""
    seen: set[int] = set()
    here: int | None = study
    while here is not None and here not in seen:
        if time_of[here] is not None:
            return here
        seen.add(here)
        here = prior_of.get(here)
    return None


def _not_earlier(before: str | None, now: str | None) -> bool:
    return before is not None and now is not None and before >= now


def _circles(prior_of: Mapping[int, int]) -> Iterator[tuple[int, ...]]:
    """Each circle once. Every study is walked over once, so that long chains stay cheap."""
    walked: set[int] = set()
    for start in prior_of:
        path: dict[int, None] = {}
        here: int | None = start
        while here is not None and here not in walked and here not in path:
            path[here] = None
            here = prior_of.get(here)
        if here is not None and here in path:
            steps = list(path)
            yield tuple(steps[steps.index(here) :])
        walked.update(path)
