"""Figures of what readers change: acceptance of drafts, time, changes by finding, and drift of the calibration.

Of each signed study the draft and the signed text are compared, by rules that read findings and their sides. Every
figure has its count and a 95 % interval (Wilson, or a bootstrap over patients), and none is given of fewer than
``LEAST`` studies. No figure is of one study, and no text, name or date of one is among them.

Readers saw the drafts before they signed: agreement with a draft is partly its own effect.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from radweave.core.study import LabelState, Modality
from radweave.labels import LABELER_OF, NO_FINDING, Labeler, Mention, get_labeler
from radweave.labels.text import split_sentences
from radweave.metrics.laterality import sided_findings
from radweave.metrics.statistics import RESAMPLES, Floats, Statistic, bootstrap, cluster_index, wilson_interval
from radweave.workstation import drafts
from radweave.workstation.database import WITHOUT, arms, evidence, patients, signoffs, studies

LEAST: Final = 10
"""Fewest studies of a figure."""
MOST: Final = 5_000
"""Most signed studies, the newest, that figures are made of."""
_POSITIVE: Final = LabelState.POSITIVE


@dataclass(frozen=True, slots=True)
class SignedPair:
    """A draft and its signed text, read by rules.

    ``month`` is that of the signature (YYYY-MM, UTC). ``drafted`` and ``signed`` are the findings that each text
    states; ``sided`` those that both put on a side, ``other_side`` those of them on the other one. ``probabilities``
    are the calibrated ones of the draft's findings. ``patient`` is None where unknown.
    """

    study: str
    patient: str | None
    reader: int
    month: str
    seconds: float
    words_changed: int
    sentences_drafted: int
    sentences_accepted: int
    weights: str
    drafted: frozenset[str]
    signed: frozenset[str]
    sided: frozenset[str]
    other_side: frozenset[str]
    probabilities: Mapping[str, float]


class SignedPairs:
    """The signed pairs of a workstation, each read once: what is signed does not change."""

    def __init__(self, modality: Modality) -> None:
        self._labeler = get_labeler(LABELER_OF[modality])
        self._read: dict[str, SignedPair | None] = {}
        self._lock = threading.Lock()

    def all(self, connection: sa.Connection) -> list[SignedPair]:
        """The newest ``MOST`` pairs, in the order of signing; those of altered reports are left out."""
        without = sa.select(arms.c.study_id).where(arms.c.arm == WITHOUT)  # of a reader study: the draft was hidden
        query = sa.select(signoffs.c.study_id).where(signoffs.c.study_id.not_in(without))
        newest = query.order_by(signoffs.c.time.desc(), signoffs.c.study_id).limit(MOST)
        with self._lock:
            ids = connection.execute(newest).scalars().all()
            for study in ids:
                if study not in self._read:
                    self._read[study] = _pair(connection, study, self._labeler)
            return [pair for study in reversed(ids) if (pair := self._read[study]) is not None]


def _pair(connection: sa.Connection, study: str, labeler: Labeler) -> SignedPair | None:
    """The pair of a signed study; None if the report was altered."""
    try:
        drafts.check_signed(connection, study)
    except drafts.AlteredError:
        return None
    signed_rows = (
        sa.select(signoffs, patients.c.patient, evidence.c.model, evidence.c.findings)
        .join(evidence, evidence.c.study_id == signoffs.c.study_id)
        .join(patients, patients.c.study_id == signoffs.c.study_id, isouter=True)
    )
    row = connection.execute(signed_rows.where(signoffs.c.study_id == study)).one()
    first = drafts.drafted_version(connection, study)
    before, after = (drafts.text_of(connection, study, version) for version in (first, row.version))
    drafted, signed = labeler.label([before, after])
    sides = [_sides(text, mentions) for text, mentions in ((before, drafted), (after, signed))]
    sided = sides[0].keys() & sides[1].keys()
    return SignedPair(
        row.study_id, row.patient, row.user_id, f"{row.time:%Y-%m}", row.seconds, row.edit_distance_words,
        row.draft_sentences, row.accepted_sentences, str(row.model.get("weights") or ""), stated_in(drafted),
        stated_in(signed), frozenset(sided), frozenset(name for name in sided if not sides[0][name] & sides[1][name]),
        {one["name"]: one["probability"] for one in row.findings
         if one.get("calibrated") and one["probability"] is not None and one["name"] in labeler.classes},
    )  # fmt: skip


def stated_in(mentions: Mapping[str, Mention]) -> frozenset[str]:
    """Findings that a labelled text states."""
    return frozenset(name for name, mention in mentions.items() if mention.state is _POSITIVE and name != NO_FINDING)


def _sides(text: str, mentions: Mapping[str, Mention]) -> dict[str, frozenset[str]]:
    """Stated finding -> the sides of its sentence, where that has one."""
    sides: dict[str, frozenset[str]] = {}
    start = 0
    for sentence in split_sentences(text):
        start = text.index(sentence, start)
        named = frozenset(side for own in sided_findings(sentence).values() for side in own)
        for name in stated_in(mentions):
            span = mentions[name].span
            if named and span is not None and start <= span[0] < start + len(sentence):
                sides[name] = named
        start += len(sentence)
    return sides


# Figures.


@dataclass(frozen=True, slots=True)
class Figure:
    """A value with its 95 % interval and the number of studies or cases it is of; None below ``LEAST`` studies."""

    value: float | None
    low: float | None
    high: float | None
    count: int
    of: int


def share(count: int, of: int) -> Figure | None:
    """A share of studies with Wilson's interval; None of too few."""
    if of < LEAST:
        return None
    bounds = wilson_interval(count, of)
    assert bounds is not None
    return Figure(count / of, *bounds, count, of)


def ratio(pairs: Sequence[SignedPair], counts: Floats) -> Figure | None:
    """A ratio of sums over studies, ``counts`` (N, 2), with a bootstrap over patients; None of too few studies."""
    if (counts[:, 1] > 0).sum() < LEAST:
        return None
    statistic = Statistic(counts, lambda sums: sums[..., 0] / np.maximum(sums[..., 1], 1e-9), counts[:, 0])
    interval = bootstrap({"": statistic}, _clusters(pairs))[""]
    count, of = counts.sum(axis=0)
    return Figure(statistic.corpus(), interval.low, interval.high, int(count), int(of))


def median_of(pairs: Sequence[SignedPair], values: Sequence[float]) -> Figure | None:
    """A median over studies with a bootstrap over patients; None of too few studies."""
    if len(pairs) < LEAST:
        return None
    drawn = [np.median(np.asarray(values)[rows]) for rows in resampled(_clusters(pairs))]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Figure(float(np.median(values)), float(low), float(high), len(values), len(values))


def resampled(clusters: NDArray[np.int64], *, seed: int = 0) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of each resample of whole clusters (N,), with replacement."""
    generator = np.random.default_rng(seed)
    order = np.argsort(clusters, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(clusters[order])) + 1)
    for _ in range(RESAMPLES):
        drawn = generator.integers(len(members), size=len(members))
        yield np.concatenate([members[number] for number in drawn])


def _clusters(pairs: Sequence[SignedPair]) -> NDArray[np.int64]:
    return cluster_index([pair.patient for pair in pairs])


def patient_of(connection: sa.Connection, study: str) -> str | None:
    """Keyed digest of the patient of a study; None where unknown."""
    return connection.execute(sa.select(patients.c.patient).where(patients.c.study_id == study)).scalar()


def figures(pairs: Sequence[SignedPair], rejected: int) -> dict[str, Any]:
    """All figures as JSON values; ``rejected`` is the number of studies whose draft is rejected now."""
    months = sorted({pair.month for pair in pairs})
    by_month = {month: [pair for pair in pairs if pair.month == month] for month in months}
    return {
        "studies": len(pairs) if len(pairs) >= LEAST else None, "least": LEAST, "most": MOST,
        "readers": len({pair.reader for pair in pairs}) if len(pairs) >= LEAST else None,
        "acceptance": {
            **_acceptance(pairs), "rejected": _json(share(rejected, rejected + len(pairs))),
        },
        "seconds": _json(median_of(pairs, [pair.seconds for pair in pairs])),
        "findings": _by_finding(pairs),
        "months": [
            {
                "month": month, "studies": len(own), **_acceptance(own),
                "seconds": _json(median_of(own, [pair.seconds for pair in own])), **_calibration(own),
            }
            for month, own in by_month.items() if len(own) >= LEAST
        ],
    }  # fmt: skip


def _acceptance(pairs: Sequence[SignedPair]) -> dict[str, Any]:
    """Shares of drafts that were signed unchanged and edited, and of their sentences that were kept."""
    unchanged = sum(pair.words_changed == 0 for pair in pairs)
    sentences = np.array([[pair.sentences_accepted, pair.sentences_drafted] for pair in pairs], float).reshape(-1, 2)
    return {
        "unchanged": _json(share(unchanged, len(pairs))), "edited": _json(share(len(pairs) - unchanged, len(pairs))),
        "sentences_kept": _json(ratio(pairs, sentences)),
    }  # fmt: skip


def _by_finding(pairs: Sequence[SignedPair]) -> list[dict[str, Any]]:
    """Findings with what readers change of them, the most often changed first.

    ``invented`` is the share of drafts with the finding whose signed text does not state it, ``missed`` that of signed
    texts with it whose draft does not, ``other_side`` that of pairs which both give a side where it is the other one.
    """
    rows = []
    for name in sorted({name for pair in pairs for name in pair.drafted | pair.signed}):
        drafted = [pair for pair in pairs if name in pair.drafted]
        signed = [pair for pair in pairs if name in pair.signed]
        sided = [pair for pair in pairs if name in pair.sided]
        row = {
            "invented": share(sum(name not in pair.signed for pair in drafted), len(drafted)),
            "missed": share(sum(name not in pair.drafted for pair in signed), len(signed)),
            "other_side": share(sum(name in pair.other_side for pair in sided), len(sided)),
        }
        if any(row.values()):
            changes = sum(figure.count for figure in row.values() if figure is not None)
            rows.append((-changes, name, {key: _json(figure) for key, figure in row.items()}))
    return [{"name": name, **row} for _, name, row in sorted(rows, key=lambda row: row[:2])]


def _calibration(pairs: Sequence[SignedPair]) -> dict[str, Any]:
    """Mean drafted probability, share of findings that were signed, and their difference: 0 without drift."""
    known = [pair for pair in pairs if pair.probabilities]
    drafted = np.array([[sum(pair.probabilities.values()), len(pair.probabilities)] for pair in known], float)
    drafted = drafted.reshape(-1, 2)
    signed = np.array([sum(name in pair.signed for name in pair.probabilities) for pair in known], float)
    stated = np.stack([signed, drafted[:, 1]], axis=1) if known else drafted
    difference = np.stack([drafted[:, 0] - signed, drafted[:, 1]], axis=1) if known else drafted
    return {
        "probability": _json(ratio(known, drafted)), "signed": _json(ratio(known, stated)),
        "drift": _json(ratio(known, difference)),
    }  # fmt: skip


def _json(figure: Figure | None) -> dict[str, Any] | None:
    return None if figure is None else asdict(figure)


def read_figures(connection: sa.Connection, pairs: SignedPairs) -> dict[str, Any]:
    """All figures of a workstation."""
    rejected = sa.select(sa.func.count()).select_from(studies).where(studies.c.state == "rejected")
    return figures(pairs.all(connection), int(connection.execute(rejected).scalar_one()))
