"""What was signed: addenda to it, and the proof that the database still holds it as it was signed.

A seal is a hash over all that goes out with a report: its text by sentences, findings, warnings, the model, the
evidence, names of study and files, who signed and when. The seal of an addendum is over its text, its signature and
the seal before it. Seals stand in the log, whose entries are chained; nothing leaves without being held against them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import sqlalchemy as sa

from radweave.base.errors import InputError
from radweave.base.hashes import sha256_bytes, sha256_json
from radweave.hospital.finished import SectionKind
from radweave.hospital.signs import refuse_unsignable
from radweave.serve import log
from radweave.serve.schema import addenda, drafts, evidence, files, now, sentences, signoffs, studies, users
from radweave.serve.schema import log as log_table
from radweave.serve.users import User

SIGNED, ADDED = "signed", "addendum"
SECTIONS: tuple[SectionKind, ...] = get_args(SectionKind)
"""In the order in which a report has them."""

_OF_A_SENTENCE = (
    "position", "key", "section", "text", "origin", "confidence", "probability", "verdict", "flagged", "details",
)  # fmt: skip


class ConflictError(InputError):
    """The study is not as the request takes it to be: another version, another state, sentences not looked at."""


class AlteredError(ConflictError):
    """What the database holds is not what was signed. ``entry`` is the number of the log's entry that says so."""

    def __init__(self, entry: int) -> None:
        super().__init__("was altered: it is not what the log says was signed", field="report", got=f"entry {entry}")
        self.entry = entry

    def __reduce__(self) -> tuple[object, ...]:
        return AlteredError, (self.entry,)


def whole_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Sentences as one text: with headings where they are of more than one section."""
    parts = [(name, [row["text"] for row in rows if row["section"] == name]) for name in SECTIONS]
    said = [(name, " ".join(texts)) for name, texts in parts if texts]
    if len(said) == 1:
        return said[0][1]
    return "\n\n".join(f"{name.upper()}: {text}" for name, text in said)


def seal(connection: sa.Connection, study: str) -> str:
    """Of the signed report as the database holds it now."""
    signature = _signature(connection, study)
    assert signature is not None, "the study is signed"
    text = sa.select(drafts).where(drafts.c.study_id == study, drafts.c.version == signature.version)
    rows = sa.select(*(sentences.c[name] for name in _OF_A_SENTENCE)).where(
        sentences.c.study_id == study, sentences.c.version == signature.version
    )
    lie = sa.select(files.c.path, files.c.name).where(files.c.study_id == study).order_by(files.c.position)
    held = {
        "name": connection.execute(sa.select(studies.c.name).where(studies.c.id == study)).scalar(),
        "signature": _plain(signature),
        "draft": [_plain(row) for row in connection.execute(text)],
        "sentences": [_plain(row) for row in connection.execute(rows.order_by(sentences.c.position))],
        "evidence": [
            _plain(row) for row in connection.execute(sa.select(evidence).where(evidence.c.study_id == study))
        ],
        # The folder of all files may be moved, the folder of one upload keeps its name.
        "files": [[*Path(row.path).parts[-2:], row.name] for row in connection.execute(lie)],
    }
    return sha256_json(held)


def _plain(row: sa.Row[Any]) -> list[Any]:
    return [value.isoformat() if hasattr(value, "isoformat") else value for value in row]


def _signature(connection: sa.Connection, study: str) -> sa.Row[Any] | None:
    asked = sa.select(signoffs, users.c.name).join(users, users.c.id == signoffs.c.user_id)
    return connection.execute(asked.where(signoffs.c.study_id == study)).first()


def of_study(connection: sa.Connection, study: str) -> Sequence[sa.Row[Any]]:
    """The addenda of a study in their order, each with the name of who signed it."""
    asked = sa.select(addenda, users.c.name).join(users, users.c.id == addenda.c.user_id)
    return connection.execute(asked.where(addenda.c.study_id == study).order_by(addenda.c.number)).all()


def as_json(connection: sa.Connection, study: str) -> list[dict[str, Any]]:
    return [
        {"number": row.number, "text": row.text, "time": row.time.isoformat(), "user_id": row.user_id, "user": row.name}
        for row in of_study(connection, study)
    ]


def _added(row: sa.Row[Any], before: str) -> str:
    return sha256_json([before, *_plain(row)])


def add(connection: sa.Connection, study: str, after: int, text: str, user: User, *, most: int) -> None:
    """Sign an addendum to a signed report. ``after`` is the number of addenda that the reader saw.

    Raises:
        ConflictError: if the study is not signed, or there is another addendum meanwhile.
        AlteredError: if what it would be added to is not what was signed.
        InputError: for a text that cannot be signed, or of more than ``most`` characters.
    """
    refuse_unsignable(text, field="text")
    if len(text) > most:
        raise InputError("is too long", field="text", got=len(text), expected=f"at most {most} characters")
    state = connection.execute(sa.select(studies.c.state).where(studies.c.id == study)).scalar_one()
    if state != "signed":
        raise ConflictError("takes no addendum", field="state", got=state, expected="signed")
    before = check(connection, study)
    rows = of_study(connection, study)
    count = len(rows)
    if after == count - 1 and (rows[-1].user_id, rows[-1].text) == (user.id, text):
        return  # the same request again, whose answer was lost
    if after != count:
        raise ConflictError("there is another addendum", field="after", got=after, expected=count)
    values = {"study_id": study, "number": count + 1, "user_id": user.id, "time": now(), "text": text}
    connection.execute(addenda.insert().values(values))
    connection.execute(studies.update().where(studies.c.id == study).values(changed=now()))
    details = {"number": count + 1, "text_sha256": sha256_bytes(text.encode()),
               "sealed": _added(of_study(connection, study)[-1], before)}  # fmt: skip
    log.append(connection, ADDED, user=user.id, study=study, details=details)


def note_altered(connection: sa.Connection, study: str, error: AlteredError, *, user: int | None = None) -> None:
    """Say in the log that something was refused since it is not what was signed."""
    log.append(connection, "altered", user=user, study=study, details={"entry": error.entry})


def check(connection: sa.Connection, study: str) -> str:
    """Hold what is kept of a study against the log; the last seal, "" of a study that nobody signed.

    Raises:
        AlteredError: if it is not what was signed, or the log does not say that it was.
    """
    asked = sa.select(log_table).where(log_table.c.study_id == study, log_table.c.action.in_((SIGNED, ADDED)))
    entries = connection.execute(asked.order_by(log_table.c.number)).all()
    held = _signature(connection, study)
    asked_of = sa.select(studies.c.state, studies.c.version).where(studies.c.id == study)
    state, newest = connection.execute(asked_of).one_or_none() or (None, None)
    if not entries and held is None and state != "signed":
        return ""
    if not entries or entries[0].action != SIGNED:
        raise AlteredError(0)
    first, later, rows = entries[0], entries[1:], of_study(connection, study)
    for entry in entries:
        if not log.is_whole(entry):
            raise AlteredError(entry.number)
    # What is read of a study is its newest version: that must be the one that was signed.
    if state != "signed" or held is None or held.user_id != first.user_id or newest != held.version:
        raise AlteredError(first.number)
    if not _is_as_signed(connection, first, held):
        raise AlteredError(first.number)
    last = str(first.details.get("sealed", first.details["text_sha256"]))
    for entry, row in zip(later, rows, strict=False):
        last = _added(row, last)
        if entry.action != ADDED or entry.details.get("sealed") != last or row.user_id != entry.user_id:
            raise AlteredError(entry.number)
    if len(later) != len(rows):
        raise AlteredError(entries[min(len(later), len(rows) + 1)].number)
    return last


def _is_as_signed(connection: sa.Connection, entry: sa.Row[Any], held: sa.Row[Any]) -> bool:
    """Whether the seal fits; of what was signed before there were seals, the text and what was counted."""
    if "sealed" in entry.details:
        return bool(entry.details["sealed"] == seal(connection, entry.study_id))
    this = (sentences.c.study_id == entry.study_id, sentences.c.version == held.version)
    rows = connection.execute(sa.select(sentences).where(*this).order_by(sentences.c.position)).all()
    whole = whole_text([row._asdict() for row in rows])
    counted = all(entry.details[name] == getattr(held, name) for name in ("version", "seconds", "edit_distance_words"))
    draft = connection.execute(
        sa.select(drafts).where(drafts.c.study_id == entry.study_id, drafts.c.version == held.version)
    ).first()
    # The model's own text may have other headings; a reader's is made of the sentences.
    same = draft is not None and (draft.author_id is None or draft.text == whole)
    return counted and same and sha256_bytes(whole.encode()) == entry.details["text_sha256"]


def verify(connection: sa.Connection) -> log.Checked:
    """Look through the whole log, and hold everything that was signed against it."""
    found = log.verify(connection)
    if found.broken is not None:
        return found
    theirs = log_table.c.action.in_((SIGNED, ADDED))
    ids = {*connection.execute(sa.select(log_table.c.study_id).where(theirs)).scalars()}
    for table in (signoffs, addenda):
        ids.update(connection.execute(sa.select(table.c.study_id)).scalars())
    ids.update(connection.execute(sa.select(studies.c.id).where(studies.c.state == "signed")).scalars())
    altered = []
    for study in ids:
        try:
            check(connection, study)
        except AlteredError as error:
            altered.append(error.entry)
    return replace(found, altered=tuple(sorted(altered)))
