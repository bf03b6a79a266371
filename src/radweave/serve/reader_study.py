"""What a reader study asks of signed studies: how long each took, how much was changed, what was kept of the draft.

A study is its number of ours: no name of a file, a patient or a data set stands in the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import median

import sqlalchemy as sa

from radweave.base.csv_text import csv_line
from radweave.serve import signed as signed_reports
from radweave.serve.drafts import drafted_version
from radweave.serve.schema import evidence, sentences, signoffs, users


@dataclass(frozen=True, slots=True)
class SignedStudy:
    """A signature. ``seconds`` is the time for which the study was seen; sentences and words are counted.

    ``words_changed`` is the edit distance between the model's draft and what was signed; ``sentences_accepted`` are
    those of the draft that were signed as they were; ``sentences_flagged`` those that had to be looked at.
    """

    study: str
    reader: str
    signed: str
    seconds: float
    versions: int
    words_changed: int
    words_drafted: int
    sentences_drafted: int
    sentences_accepted: int
    sentences_signed: int
    sentences_flagged: int
    method: str
    weights: str


def signed_studies(connection: sa.Connection) -> list[SignedStudy]:
    """All that were signed, in the order in which they were.

    Raises:
        AlteredError: if one of them is not what was signed.
    """
    asked = sa.select(signoffs, users.c.name, evidence.c.model).join(users).join(
        evidence, evidence.c.study_id == signoffs.c.study_id
    )  # fmt: skip
    return [_row(connection, row) for row in connection.execute(asked.order_by(signoffs.c.time)).all()]


def _row(connection: sa.Connection, signed: sa.Row[tuple[object, ...]]) -> SignedStudy:
    signed_reports.check(connection, signed.study_id)
    wanted = sa.select(sentences.c.text, sentences.c.flagged).where(sentences.c.study_id == signed.study_id)
    first = drafted_version(connection, signed.study_id)
    drafted = connection.execute(wanted.where(sentences.c.version == first)).all()
    kept = connection.execute(wanted.where(sentences.c.version == signed.version)).all()
    return SignedStudy(
        study=signed.study_id,
        reader=signed.name,
        signed=signed.time.isoformat(timespec="seconds"),
        seconds=round(signed.seconds, 1),
        versions=signed.version,
        words_changed=signed.edit_distance_words,
        words_drafted=sum(len(row.text.split()) for row in drafted),
        sentences_drafted=signed.draft_sentences,
        sentences_accepted=signed.accepted_sentences,
        sentences_signed=len(kept),
        sentences_flagged=sum(row.flagged for row in drafted),
        method=str(signed.model.get("method")),
        weights=str(signed.model.get("weights") or ""),
    )


def as_csv(rows: Sequence[SignedStudy]) -> str:
    """A line for each study, the names of the columns first."""
    names = [field.name for field in fields(SignedStudy)]
    return "".join([csv_line(names), *(csv_line([str(getattr(row, name)) for name in names]) for row in rows)])


def as_table(rows: Sequence[SignedStudy]) -> str:
    """A line for each reader and one for all: how many, how long, how much was changed, how much was accepted."""
    if not rows:
        return "no study was signed yet"
    readers = {name: [row for row in rows if row.reader == name] for name in sorted({row.reader for row in rows})}
    lines = [_HEADS, *(_summary(name, own) for name, own in readers.items())]
    if len(readers) > 1:
        lines.append(_summary("all", rows))
    widths = [max(len(line[place]) for line in lines) for place in range(len(_HEADS))]
    return "\n".join(
        "  ".join(cell.ljust(width) if not place else cell.rjust(width) for place, (cell, width) in enumerate(pairs))
        for pairs in (zip(line, widths, strict=True) for line in lines)
    )


_HEADS = ("reader", "studies", "median s", "least s", "most s", "words changed", "per study", "sentences accepted")


def _summary(name: str, rows: Sequence[SignedStudy]) -> tuple[str, ...]:
    seconds = [row.seconds for row in rows]
    changed, words = sum(row.words_changed for row in rows), sum(row.words_drafted for row in rows)
    accepted, drafted = sum(row.sentences_accepted for row in rows), sum(row.sentences_drafted for row in rows)
    times = (median(seconds), min(seconds), max(seconds))
    return (
        name, str(len(rows)), *(f"{time:.0f}" for time in times), f"{changed} of {words}",
        f"{changed / len(rows):.1f}", f"{accepted} of {drafted} ({_percent(accepted, drafted)})",
    )  # fmt: skip


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "none"
