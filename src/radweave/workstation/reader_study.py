"""Reader study: studies are read with and without their draft, by chance, and compared.

    radweave serve RUN --reader-study

Each drafted study comes into one of two arms, in random blocks of four whose order follows from the workstation's
secret. Without draft a reader begins with an empty report; draft, findings, evidence and maps are hidden until the
report is signed. Compared are reading time, the words between the model's draft and the signed text, and the agreement
of findings with the reference report where the data set has one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import sqlalchemy as sa

from radweave.labels import Labeler
from radweave.metrics.statistics import cluster_index
from radweave.workstation import drafts, log
from radweave.workstation.database import WITH, WITHOUT, arms, now, signoffs, studies, users
from radweave.workstation.learning import LEAST, Figure, patient_of, resampled, stated_in

ASSIGNED: Final = "arm assigned"
BLIND: Final = "This study is read without its draft: draft and evidence are shown when the report is signed."
_BLOCK: Final = (WITH, WITH, WITHOUT, WITHOUT)


def assign(connection: sa.Connection, study: str, secret: bytes) -> None:
    """Assign an arm to a study that was just drafted, and hide the draft in the arm without; an arm does not change."""
    arm = arm_of(connection, study)
    if arm is None:
        number = int(connection.execute(sa.select(sa.func.count()).select_from(arms)).scalar_one())
        block = list(_BLOCK)
        random.Random(f"{secret.hex()}/{number // len(block)}").shuffle(block)
        arm = block[number % len(block)]
        connection.execute(arms.insert().values(study_id=study, arm=arm))
        log.append(connection, ASSIGNED, study=study, details={"arm": arm})
    if arm == WITHOUT:
        version = connection.execute(sa.select(studies.c.version).where(studies.c.id == study)).scalar_one()
        drafts.write(connection, study, version + 1, "", [])
        connection.execute(studies.update().where(studies.c.id == study).values(version=version + 1, changed=now()))


def arm_of(connection: sa.Connection, study: str) -> str | None:
    """Arm of a study; None outside of a reader study."""
    return connection.execute(sa.select(arms.c.arm).where(arms.c.study_id == study)).scalar()


def hides_draft(connection: sa.Connection, study: str) -> bool:
    """True if the draft of a study is hidden: it is read without, and not signed."""
    query = sa.select(studies.c.state).join(arms, arms.c.study_id == studies.c.id)
    state = connection.execute(query.where(studies.c.id == study, arms.c.arm == WITHOUT)).scalar()
    return state is not None and state != "signed"


@dataclass(frozen=True, slots=True)
class Reading:
    """A signed study of a reader study.

    ``words`` is the edit distance between the model's draft, seen or hidden, and the signed text. ``agreement`` are
    findings that signed text and reference state both, and each alone; None without a reference.
    """

    study: str
    patient: str | None
    reader: str
    arm: str
    seconds: float
    words: int
    agreement: tuple[int, int, int] | None


Reference = Callable[[str | None], str | None]


def readings(connection: sa.Connection, labeler: Labeler, reference: Reference) -> list[Reading]:
    """All signed studies with an arm, in the order of signing; altered reports are left out.

    Args:
        reference: gives the reference report of a study of the data set, by its id there, or None.
    """
    query = (
        sa.select(signoffs, arms.c.arm, studies.c.dataset_study, users.c.name)
        .join(arms, arms.c.study_id == signoffs.c.study_id)
        .join(studies, studies.c.id == signoffs.c.study_id)
        .join(users, users.c.id == signoffs.c.user_id)
        .order_by(signoffs.c.time, signoffs.c.study_id)
    )
    signed = []
    for row in connection.execute(query).all():
        try:
            drafts.check_signed(connection, row.study_id)
        except drafts.AlteredError:
            continue
        texts = _texts(connection, row)
        report = reference(row.dataset_study)
        words = row.edit_distance_words if row.arm == WITH else drafts.edit_distance(*(text.split() for text in texts))
        signed.append(
            Reading(
                row.study_id, patient_of(connection, row.study_id), row.name, row.arm, row.seconds, words,
                None if report is None else _agreement(labeler, texts[1], report),
            )
        )  # fmt: skip
    return signed


def _texts(connection: sa.Connection, row: sa.Row[Any]) -> tuple[str, str]:
    """The model's draft, which the arm without has one version below its empty one, and the signed text."""
    drafted = drafts.drafted_version(connection, row.study_id) - (row.arm == WITHOUT)
    return drafts.text_of(connection, row.study_id, drafted), drafts.text_of(connection, row.study_id, row.version)


def _agreement(labeler: Labeler, signed: str, reference: str) -> tuple[int, int, int]:
    own, expected = (stated_in(mentions) for mentions in labeler.label([signed, reference]))
    return len(own & expected), len(own - expected), len(expected - own)


# Figures.

Measure = Callable[[Sequence[Reading]], float]


def _seconds(rows: Sequence[Reading]) -> float:
    return float(np.median([row.seconds for row in rows])) if rows else float("nan")


def _words(rows: Sequence[Reading]) -> float:
    return float(np.median([row.words for row in rows])) if rows else float("nan")


def _f1(rows: Sequence[Reading]) -> float:
    both, own, expected = np.sum([row.agreement for row in rows if row.agreement is not None] or [(0, 0, 0)], axis=0)
    return float(2 * both / (2 * both + own + expected)) if both + own + expected else float("nan")


MEASURES: Final[Mapping[str, Measure]] = {"seconds": _seconds, "words": _words, "agreement": _f1}


def figures(rows: Sequence[Reading]) -> dict[str, Any]:
    """Arms and their differences (with less without) as JSON values, of all readers and of each.

    Medians of seconds and words, micro F1 of findings; intervals of 95 % by a bootstrap over patients. An arm of fewer
    than ``LEAST`` studies has no figures.
    """
    readers = sorted({row.reader for row in rows})
    return {
        "least": LEAST, **_compared(rows),
        "readers": [{"reader": name, **_compared([row for row in rows if row.reader == name])} for name in readers],
    }  # fmt: skip


def _compared(rows: Sequence[Reading]) -> dict[str, Any]:
    counts = {arm: sum(row.arm == arm for row in rows) for arm in (WITH, WITHOUT)}
    shown: dict[str, Any] = {"studies": counts}
    for name, measure in MEASURES.items():
        usable = [row for row in rows if name != "agreement" or row.agreement is not None]
        shown[name] = _measured(usable, measure)
    return shown


def _measured(rows: Sequence[Reading], measure: Measure) -> dict[str, Any]:
    """A measure of each arm, and its difference, over the same resamples."""
    own = {arm: [row for row in rows if row.arm == arm] for arm in (WITH, WITHOUT)}
    enough = [arm for arm in own if len(own[arm]) >= LEAST]
    figures: dict[str, Any] = dict.fromkeys((*own, "difference"))
    if not enough:
        return figures
    drawn: dict[str, list[float]] = {arm: [] for arm in enough}
    for chosen in resampled(cluster_index([row.patient for row in rows])):
        for arm in enough:
            drawn[arm].append(measure([rows[number] for number in chosen if rows[number].arm == arm]))
    for arm in enough:
        figures[arm] = _figure(measure(own[arm]), drawn[arm], len(own[arm]))
    if len(enough) == len(own):
        differences = [one - other for one, other in zip(drawn[WITH], drawn[WITHOUT], strict=True)]
        figures["difference"] = _figure(measure(own[WITH]) - measure(own[WITHOUT]), differences, len(rows))
    return figures


def _figure(value: float, drawn: Sequence[float], count: int) -> dict[str, Any] | None:
    """A figure with the interval of its resamples; None where it is undefined."""
    if np.isnan(value):
        return None
    low, high = np.nanquantile(drawn, (0.025, 0.975))
    figure: dict[str, Any] = asdict(Figure(value, float(low), float(high), count, count))
    return figure
