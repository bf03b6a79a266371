"""Drafts and their versions: sentences of the model, edits, signatures, addenda, rejections and overridden refusals.

Version 1 is the model's and never changes; with later images the model writes another version. Each edit makes a whole
new version and names its base; an edit of an outdated version is refused. A sentence keeps its key through all
versions.

A warning belongs to the words: a sentence retyped with the words of a flagged one is flagged as well.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import numpy as np
import sqlalchemy as sa
from pydantic import Field, StringConstraints

from radweave.core.errors import InputError
from radweave.core.storage import sha256_bytes, sha256_json
from radweave.core.study import RESEARCH_ONLY, Record
from radweave.workstation import log
from radweave.workstation.database import (
    addenda,
    drafts,
    evidence,
    files,
    now,
    refusals,
    reviews,
    sentences,
    signoffs,
    studies,
    users,
)
from radweave.workstation.database import log as log_table
from radweave.workstation.finished import SectionKind, refuse_unsignable
from radweave.workstation.settings import Limits
from radweave.workstation.users import User, user_names

# Signed reports and their seals.
#
# A seal is a hash over all exported parts of a report: sentences, findings, warnings, model, evidence, names of study
# and files, signature. The seal of an addendum covers its text, its signature and the seal before it. Seals are stored
# in the hash-chained log, and every export is checked against them.

SIGNED, ADDED = "signed", "addendum"
SECTIONS: tuple[SectionKind, ...] = get_args(SectionKind)
"""Sections in the order of a report."""

_OF_A_SENTENCE = (
    "position", "key", "section", "text", "origin", "confidence", "probability", "verdict", "flagged", "details",
)  # fmt: skip


class ConflictError(InputError):
    """The request conflicts with the version, the state or the unreviewed sentences of the study."""


class AlteredError(ConflictError):
    """The stored report differs from the signed one. ``entry`` is the number of the log entry it contradicts."""

    def __init__(self, entry: int) -> None:
        super().__init__(
            "was altered: it differs from the signed report in the log", field="report", got=f"entry {entry}"
        )
        self.entry = entry

    def __reduce__(self) -> tuple[object, ...]:
        return AlteredError, (self.entry,)


def draft_row(connection: sa.Connection, study: str, version: int) -> sa.Row[Any] | None:
    """A version without its sentences; None if there is no such version."""
    this = (drafts.c.study_id == study, drafts.c.version == version)
    return connection.execute(sa.select(drafts).where(*this)).first()


def text_of(connection: sa.Connection, study: str, version: int) -> str:
    """The text of a version."""
    row = draft_row(connection, study, version)
    assert row is not None, "the version exists"
    return str(row.text)


def whole_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Sentences as one text, with headings if they are of more than one section."""
    parts = [(name, [row["text"] for row in rows if row["section"] == name]) for name in SECTIONS]
    sections = [(name, " ".join(texts)) for name, texts in parts if texts]
    if len(sections) == 1:
        return sections[0][1]
    return "\n\n".join(f"{name.upper()}: {text}" for name, text in sections)


def seal(connection: sa.Connection, study: str) -> str:
    """Seal of the signed report as it is stored now."""
    signature = signature_row(connection, study)
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
        # The state folder may be moved; the folder of one upload keeps its name.
        "files": [[*Path(row.path).parts[-2:], row.name] for row in connection.execute(lie)],
    }
    return sha256_json(held)


def _plain(row: sa.Row[Any]) -> list[Any]:
    return [value.isoformat() if hasattr(value, "isoformat") else value for value in row]


def signature_row(connection: sa.Connection, study: str) -> sa.Row[Any] | None:
    """The signature of a study with the name of its signer; None if unsigned."""
    query = sa.select(signoffs, users.c.name).join(users, users.c.id == signoffs.c.user_id)
    return connection.execute(query.where(signoffs.c.study_id == study)).first()


def addenda_of(connection: sa.Connection, study: str) -> Sequence[sa.Row[Any]]:
    """Addenda of a study in their order, each with the name of its signer."""
    query = sa.select(addenda, users.c.name).join(users, users.c.id == addenda.c.user_id)
    return connection.execute(query.where(addenda.c.study_id == study).order_by(addenda.c.number)).all()


def addenda_json(connection: sa.Connection, study: str) -> list[dict[str, Any]]:
    return [
        {"number": row.number, "text": row.text, "time": row.time.isoformat(), "user_id": row.user_id, "user": row.name}
        for row in addenda_of(connection, study)
    ]


def _added(row: sa.Row[Any], before: str) -> str:
    return sha256_json([before, *_plain(row)])


def add_addendum(connection: sa.Connection, study: str, after: int, text: str, user: User, *, most: int) -> None:
    """Sign an addendum to a signed report. ``after`` is the number of addenda shown to the reader.

    Raises:
        ConflictError: if the study is not signed, or has another addendum meanwhile.
        AlteredError: if the report differs from the signed one.
        InputError: for a text that cannot be signed, or of more than ``most`` characters.
    """
    refuse_unsignable(text, field="text")
    if len(text) > most:
        raise InputError("is too long", field="text", got=len(text), expected=f"at most {most} characters")
    state = connection.execute(sa.select(studies.c.state).where(studies.c.id == study)).scalar_one()
    if state != "signed":
        raise ConflictError("takes no addendum", field="state", got=state, expected="signed")
    before = check_signed(connection, study)
    rows = addenda_of(connection, study)
    count = len(rows)
    if after == count - 1 and (rows[-1].user_id, rows[-1].text) == (user.id, text):
        return  # a repeated request whose response was lost
    if after != count:
        raise ConflictError("there is another addendum", field="after", got=after, expected=count)
    values = {"study_id": study, "number": count + 1, "user_id": user.id, "time": now(), "text": text}
    connection.execute(addenda.insert().values(values))
    connection.execute(studies.update().where(studies.c.id == study).values(changed=now()))
    details = {"number": count + 1, "text_sha256": sha256_bytes(text.encode()),
               "sealed": _added(addenda_of(connection, study)[-1], before)}  # fmt: skip
    log.append(connection, ADDED, user=user.id, study=study, details=details)


def note_altered(connection: sa.Connection, study: str, error: AlteredError, *, user: int | None = None) -> None:
    """Log a refusal of a report that differs from the signed one."""
    log.append(connection, "altered", user=user, study=study, details={"entry": error.entry})


def check_signed(connection: sa.Connection, study: str) -> str:
    """Check a signed study against the log; return the last seal, or "" for an unsigned study.

    Raises:
        AlteredError: if the report differs from the signed one, or the log has no signature of it.
    """
    query = sa.select(log_table).where(log_table.c.study_id == study, log_table.c.action.in_((SIGNED, ADDED)))
    entries = connection.execute(query.order_by(log_table.c.number)).all()
    held = signature_row(connection, study)
    state_query = sa.select(studies.c.state, studies.c.version).where(studies.c.id == study)
    state, newest = connection.execute(state_query).one_or_none() or (None, None)
    if not entries and held is None and state != "signed":
        return ""
    if not entries or entries[0].action != SIGNED:
        raise AlteredError(0)
    first, later, rows = entries[0], entries[1:], addenda_of(connection, study)
    for entry in entries:
        if not log.is_whole(entry):
            raise AlteredError(entry.number)
    # Exports read the newest version: it must be the signed one.
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
    """True if the seal matches; for signatures older than seals, if text and counts match."""
    if "sealed" in entry.details:
        return bool(entry.details["sealed"] == seal(connection, entry.study_id))
    whole = whole_text([row._asdict() for row in rows_of(connection, entry.study_id, held.version)])
    counted = all(entry.details[name] == getattr(held, name) for name in ("version", "seconds", "edit_distance_words"))
    draft = draft_row(connection, entry.study_id, held.version)
    # The text of the model may have other headings; the text of a reader is joined from the sentences.
    same = draft is not None and (draft.author_id is None or draft.text == whole)
    return counted and same and sha256_bytes(whole.encode()) == entry.details["text_sha256"]


def verify(connection: sa.Connection) -> log.Checked:
    """Verify the whole log, and all signed studies against it."""
    checked = log.verify(connection)
    if checked.broken is not None:
        return checked
    is_signing = log_table.c.action.in_((SIGNED, ADDED))
    ids = {*connection.execute(sa.select(log_table.c.study_id).where(is_signing)).scalars()}
    for table in (signoffs, addenda):
        ids.update(connection.execute(sa.select(table.c.study_id)).scalars())
    ids.update(connection.execute(sa.select(studies.c.id).where(studies.c.state == "signed")).scalars())
    altered = []
    for study in ids:
        try:
            check_signed(connection, study)
        except AlteredError as error:
            altered.append(error.entry)
    return replace(checked, altered=tuple(sorted(altered)))


EDITABLE = ("drafted", "edited")
REJECTED = "rejected"
Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class Replace(Record):
    """Replace the text of a sentence."""

    op: Literal["replace"]
    key: int
    text: Words


class Remove(Record):
    """Remove a sentence."""

    op: Literal["remove"]
    key: int


class Insert(Record):
    """Insert a sentence after ``after``, or at the beginning of ``section`` (by default the findings).

    ``recalled`` is the number, from 1, of the recalled case that contains it word for word.
    """

    op: Literal["insert"]
    after: int | None = None
    section: SectionKind | None = None
    text: Words
    recalled: int | None = None


class Restore(Record):
    """Restore all sentences of an older version (undo)."""

    op: Literal["restore"]
    version: int


Edit = Annotated[Replace | Remove | Insert | Restore, Field(discriminator="op")]


def read(connection: sa.Connection, study: str, version: int, user: User | None = None) -> dict[str, Any]:
    """A version as JSON values, with the notice that every draft carries.

    ``looked_at`` is true if ``user`` looked at the sentence, or wrote it and it is not flagged; ``lookers`` are the
    names of all who looked at it.

    Raises:
        InputError: if the version does not exist.
    """
    draft = draft_row(connection, study, version)
    if draft is None:
        raise InputError("no such version", field="version")
    names, lookers = user_names(connection), _reviewers(connection, study)
    who = None if user is None else user.id
    return {
        "version": version, "text": draft.text, "author": draft.author_id, "author_name": names.get(draft.author_id),
        "created": draft.created.isoformat(), "sha256": sha256_bytes(draft.text.encode()),
        "undo": _undo(connection, study, version), "drafted": drafted_version(connection, study),
        "sentences": [
            {
                "key": row.key, "section": row.section, "text": row.text, "origin": _origin(row),
                **{name: (row.details or {}).get(name, []) for name in ("checked", "not_checked")},
                "confidence": row.confidence, "probability": row.probability, "verdict": row.verdict,
                "flagged": row.flagged, "details": row.details or {},
                "looked_at": who is not None and (
                    (row.edited_by == who and not row.flagged) or who in lookers.get(row.key, ())
                ),
                "lookers": sorted(names[one] for one in lookers.get(row.key, ())),
                "edited_by": row.edited_by, "editor": names.get(row.edited_by),
            }
            for row in rows_of(connection, study, version)
        ],
        "notice": RESEARCH_ONLY,
    }  # fmt: skip


def _reviewers(connection: sa.Connection, study: str) -> dict[int, set[int]]:
    """Sentence key -> users who looked at it."""
    reviewers: dict[int, set[int]] = {}
    for row in connection.execute(sa.select(reviews).where(reviews.c.study_id == study)):
        reviewers.setdefault(row.key, set()).add(row.user_id)
    return reviewers


def _origin(row: sa.Row[Any]) -> dict[str, Any]:
    """Origin of a sentence; the reader for edited sentences, in older databases too."""
    made_by_hand = row.verdict == "edited" and row.origin.get("kind") != "recalled"
    return {"kind": "reader"} if made_by_hand else dict(row.origin)


def drafted_version(connection: sa.Connection, study: str) -> int:
    """Number of the newest version by the model."""
    query = sa.select(sa.func.max(drafts.c.version)).where(drafts.c.study_id == study, drafts.c.author_id.is_(None))
    return int(connection.execute(query).scalar() or 1)


def write(connection: sa.Connection, study: str, version: int, text: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Store a version by the model. Its sentences get new keys."""
    first = _next_key(connection, study)
    connection.execute(drafts.insert().values(study_id=study, version=version, text=text, created=now()))
    made = [
        {**row, "study_id": study, "version": version, "position": number, "key": first + number}
        for number, row in enumerate(rows)
    ]
    if made:
        connection.execute(sentences.insert(), made)


def forget_places_on_scan(connection: sa.Connection, study: str) -> None:
    """Remove boxes and maps on the scan of an unsigned draft: with more slices, their shares of it are other places."""
    for row in connection.execute(sa.select(sentences).where(sentences.c.study_id == study)).all():
        places = [
            {**place, "boxes": [one for one in place["boxes"] if len(one["box"]) != 6]}
            for place in (row.details or {}).get("places") or ()
        ]
        if places:
            this = (sentences.c.study_id == study, sentences.c.version == row.version, sentences.c.key == row.key)
            connection.execute(sentences.update().where(*this).values(details={**row.details, "places": places}))
    held = read_evidence(connection, study)
    views = [] if held is None else held["evidence"].get("views") or []
    if held is not None and any(len(view.get("covers") or ()) == 3 for view in views):
        values = {"evidence": {**held["evidence"], "views": []}}
        connection.execute(evidence.update().where(evidence.c.study_id == study).values(values))


def _undo(connection: sa.Connection, study: str, version: int) -> int | None:
    """The version that undoes ``version``; None for a draft by the model."""
    query = sa.select(drafts.c.version, drafts.c.restores, drafts.c.author_id).where(drafts.c.study_id == study)
    rows = {row.version: row for row in connection.execute(query)}
    while (older := rows[version].restores) is not None:
        version = older
    return None if rows[version].author_id is None else version - 1


def read_evidence(connection: sa.Connection, study: str) -> dict[str, Any] | None:
    """Evidence of the model for its draft; None without a draft."""
    row = connection.execute(sa.select(evidence).where(evidence.c.study_id == study)).first()
    if row is None:
        return None
    return {name: getattr(row, name) for name in ("evidence", "findings", "warnings", "model")}


def read_signature(connection: sa.Connection, study: str) -> dict[str, Any] | None:
    """Signature of a study with its time and counts; None if unsigned."""
    row = connection.execute(sa.select(signoffs).where(signoffs.c.study_id == study)).first()
    if row is None:
        return None
    return {**row._asdict(), "time": row.time.isoformat(), "user": user_names(connection).get(row.user_id)}


def rows_of(connection: sa.Connection, study: str, version: int) -> Sequence[sa.Row[Any]]:
    """Sentences of a version in their order."""
    query = sa.select(sentences).where(sentences.c.study_id == study, sentences.c.version == version)
    return connection.execute(query.order_by(sentences.c.position)).all()


def edit(connection: sa.Connection, study: str, version: int, edits: Sequence[Edit], user: User, limits: Limits) -> int:
    """Make a new version of ``version``; return its number.

    Raises:
        ConflictError: if ``version`` is not the newest, or the study cannot be edited.
        InputError: for an unknown sentence or version, or above a limit.
    """
    _advance(connection, study, version, state="edited", version_after=version + 1)
    rows = [row._asdict() for row in rows_of(connection, study, version)]
    free = _next_key(connection, study)
    for number, one in enumerate(edits):
        if isinstance(one, Replace | Insert):
            refuse_unsignable(one.text, field=f"edits.{number}.text")
        rows, free = _applied(connection, study, rows, one, user, free)
    if len(rows) > limits.sentences:
        raise InputError("too many sentences", field="edits", got=len(rows), expected=f"at most {limits.sentences}")
    longest = max((len(row["text"]) for row in rows), default=0)
    if longest > limits.sentence_characters:
        raise InputError(
            "a sentence is too long", field="text", got=longest, expected=f"at most {limits.sentence_characters}"
        )
    text = whole_text(rows)
    if len(text) > limits.draft_characters:
        raise InputError("the draft is too long", got=len(text), expected=f"at most {limits.draft_characters}")
    values = {"study_id": study, "version": version + 1, "author_id": user.id, "text": text, "created": now()}
    older = edits[0].version if len(edits) == 1 and isinstance(edits[0], Restore) else None
    connection.execute(drafts.insert().values({**values, "restores": older}))
    for position, row in enumerate(rows):
        connection.execute(sentences.insert().values({**row, "version": version + 1, "position": position}))
    details = {"version": version + 1, "edits": [one.op for one in edits]}
    log.append(connection, "edited", user=user.id, study=study, details=details)
    return version + 1


def _advance(connection: sa.Connection, study: str, version: int, *, state: str, version_after: int) -> None:
    """Change the state of a study if it has the expected version and an editable state.

    Raises:
        ConflictError: if it has not. No other transaction can change it until the commit.
    """
    done = connection.execute(
        studies.update()
        .where(studies.c.id == study, studies.c.version == version, studies.c.state.in_(EDITABLE))
        .values(state=state, version=version_after, changed=now())
    )
    if done.rowcount:
        return
    row = connection.execute(sa.select(studies.c.state, studies.c.version).where(studies.c.id == study)).one()
    if row.state not in EDITABLE:
        raise ConflictError("cannot be changed", field="state", got=row.state, expected=" or ".join(EDITABLE))
    raise ConflictError("is not the newest", field="version", got=version, expected=row.version)


def _next_key(connection: sa.Connection, study: str) -> int:
    most = connection.execute(sa.select(sa.func.max(sentences.c.key)).where(sentences.c.study_id == study)).scalar()
    return 0 if most is None else int(most) + 1


def _applied(
    connection: sa.Connection, study: str, rows: list[dict[str, Any]], one: Edit, user: User, free: int
) -> tuple[list[dict[str, Any]], int]:
    """The sentences after one edit, and the next free key."""
    if isinstance(one, Restore):
        older = [row._asdict() for row in rows_of(connection, study, one.version)]
        if draft_row(connection, study, one.version) is None:
            raise InputError("no such version", field="edits", got=one.version)
        return older, free
    keys = [row["key"] for row in rows]
    if isinstance(one, Insert):
        written = _written(connection, study, free, one, user)
        if one.after is None:
            before = SECTIONS.index(written["section"])
            place = sum(SECTIONS.index(row["section"]) < before for row in rows)
        else:
            place = _position(keys, one.after) + 1
            if one.section not in (None, rows[place - 1]["section"]):
                raise InputError("is in another section", field="after", expected=one.section)
            written["section"] = rows[place - 1]["section"]
        return [*rows[:place], written, *rows[place:]], free + 1
    place = _position(keys, one.key)
    if isinstance(one, Remove):
        return [*rows[:place], *rows[place + 1 :]], free
    if rows[place]["flagged"] and _same_words(rows[place]["text"]) == _same_words(one.text):
        return rows, free
    # Confidence, origin and verdict of the model do not apply to the new text.
    changed = {
        **rows[place], "text": one.text, "origin": {"kind": "reader"}, "edited_by": user.id, "probability": None,
        "confidence": None, "verdict": "edited", "flagged": False, "details": None,
        **_warned(connection, study, one.text),
    }  # fmt: skip
    return [*rows[:place], changed, *rows[place + 1 :]], free


def _position(keys: list[int], key: int) -> int:
    if key not in keys:
        raise InputError("no such sentence", field="key", got=key)
    return keys.index(key)


def _written(connection: sa.Connection, study: str, key: int, one: Insert, user: User) -> dict[str, Any]:
    origin = {"kind": "reader"} if one.recalled is None else _recalled(connection, study, one.recalled, one.text)
    return {
        "study_id": study, "key": key, "section": one.section or "findings", "text": one.text,
        "details": None, "origin": origin, "confidence": None, "probability": None,
        "verdict": "edited", "flagged": False, "edited_by": user.id, **_warned(connection, study, one.text),
    }  # fmt: skip


def _same_words(text: str) -> list[str]:
    """Words of a text, equal for texts that differ in spaces, punctuation and case only."""
    return re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())


def _warned(connection: sa.Connection, study: str, text: str) -> dict[str, Any]:
    """Warning of a flagged sentence with the same words since the newest draft by the model; empty if there is none.

    Older drafts are of fewer images, or hidden from the reader.
    """
    words = _same_words(text)
    since = sentences.c.version >= drafted_version(connection, study)
    query = sa.select(sentences).where(sentences.c.study_id == study, sentences.c.flagged, since)
    for row in connection.execute(query):
        if _same_words(row.text) == words:
            return {"flagged": True, "verdict": row.verdict, "details": row.details}
    return {}


def _recalled(connection: sa.Connection, study: str, number: int, text: str) -> dict[str, Any]:
    """Origin of a sentence from a recalled case, which must contain it."""
    evidence_row = read_evidence(connection, study)
    cases = [] if evidence_row is None else evidence_row["evidence"].get("recalled") or []
    case = cases[number - 1] if 1 <= number <= len(cases) else {}
    if " ".join(text.split()) not in " ".join((case.get("text") or "").split()):
        raise InputError("is not in this recalled case", field="text")
    return {"kind": "recalled", "number": number, "study_id": case.get("study_id")}


def mark_reviewed(connection: sa.Connection, study: str, version: int, keys: Sequence[int], user: User) -> None:
    """Record that a reader looked at sentences of the newest version.

    Raises:
        ConflictError: if ``version`` is not the newest, or the study cannot be edited.
        InputError: for an unknown sentence.
    """
    state = connection.execute(sa.select(studies.c.state).where(studies.c.id == study)).scalar_one()
    _advance(connection, study, version, state=state, version_after=version)
    known = [row.key for row in rows_of(connection, study, version)]
    for key in keys:
        _position(known, key)
    before = _reviewers(connection, study)
    for key in dict.fromkeys(keys):
        if user.id not in before.get(key, ()):
            connection.execute(reviews.insert().values(study_id=study, key=key, user_id=user.id))
    log.append(connection, "looked", user=user.id, study=study, details={"version": version, "keys": list(keys)})


def sign(connection: sa.Connection, study: str, version: int, seconds: float, user: User) -> dict[str, Any]:
    """Sign the newest version; return the signature. ``seconds`` is the reading time.

    Raises:
        ConflictError: if ``version`` is not the newest, the study is signed, or there is a flagged sentence that this
            user has not looked at.
        InputError: if the report is empty, or holds characters that an export would lose.
    """
    _advance(connection, study, version, state="signed", version_after=version)
    rows, first = rows_of(connection, study, version), rows_of(connection, study, drafted_version(connection, study))
    _refuse_unsignable(connection, study, version, rows)
    lookers = _reviewers(connection, study)
    unseen = [row.key for row in rows if row.flagged and user.id not in lookers.get(row.key, ())]
    if unseen:
        raise ConflictError("the signer has not looked at flagged sentences", field="sentences", got=f"keys {unseen}")
    before = {row.key: row.text for row in first}
    values = {
        "study_id": study, "user_id": user.id, "version": version, "time": now(), "seconds": seconds,
        "edit_distance_words": edit_distance(_words(first), _words(rows)),
        "accepted_sentences": sum(before.get(row.key) == row.text for row in rows),
        "draft_sentences": len(first),
    }  # fmt: skip
    connection.execute(signoffs.insert().values(values))
    counted = {name: value for name, value in values.items() if name not in ("study_id", "user_id", "time")}
    counted["text_sha256"] = sha256_bytes(whole_text([row._asdict() for row in rows]).encode())
    counted["sealed"] = seal(connection, study)
    log.append(connection, SIGNED, user=user.id, study=study, details=counted)
    signature = read_signature(connection, study)
    assert signature is not None
    return signature


def _refuse_unsignable(connection: sa.Connection, study: str, version: int, rows: Sequence[sa.Row[Any]]) -> None:
    if not rows:
        raise InputError("the report is empty", field="sentences")
    for number, row in enumerate(rows, start=1):
        refuse_unsignable(row.text, field=f"sentence {number}")
    refuse_unsignable(text_of(connection, study, version), field="text")


def reject(connection: sa.Connection, study: str, version: int, reason: str, user: User) -> None:
    """Reject the newest version. The reason is stored with the study, not in the log.

    Raises:
        ConflictError: if ``version`` is not the newest, or the study has no draft or is signed.
        InputError: for an empty reason, or one with invisible characters.
    """
    refuse_unsignable(reason, field="reason")
    _advance(connection, study, version, state="rejected", version_after=version)
    connection.execute(studies.update().where(studies.c.id == study).values(reason=reason))
    log.append(connection, REJECTED, user=user.id, study=study, details={"version": version})


def rejection(connection: sa.Connection, study: str) -> sa.Row[Any] | None:
    """The log entry of the last rejection, or None."""
    query = sa.select(log_table).where(log_table.c.study_id == study, log_table.c.action == REJECTED)
    return connection.execute(query.order_by(log_table.c.number.desc()).limit(1)).first()


def reopen(connection: sa.Connection, study: str, version: int, user: User) -> None:
    """Reopen a rejected draft.

    Raises:
        ConflictError: if the study is not rejected in this version.
        PermissionError: if another user rejected it, and ``user`` is no admin.
    """
    state = "edited" if version > drafted_version(connection, study) else "drafted"
    this = (studies.c.id == study, studies.c.state == "rejected", studies.c.version == version)
    done = connection.execute(studies.update().where(*this).values(state=state, reason=None, changed=now()))
    if not done.rowcount:
        row = connection.execute(sa.select(studies.c.state).where(studies.c.id == study)).one()
        raise ConflictError("cannot be reopened", field="state", got=row.state, expected="rejected, the newest version")
    entry = rejection(connection, study)
    if not user.is_admin and (entry is None or entry.user_id != user.id):
        raise PermissionError("only its rejecter or an admin can reopen it")
    log.append(connection, "reopened", user=user.id, study=study, details={"version": version})


def _words(rows: Sequence[sa.Row[Any]]) -> list[str]:
    return [word for row in rows for word in row.text.split()]


def edit_distance(before: Sequence[str], after: Sequence[str]) -> int:
    """Levenshtein distance in words."""
    numbers: dict[str, int] = {}
    old, new = (np.array([numbers.setdefault(word, len(numbers)) for word in words]) for words in (before, after))
    steps = np.arange(len(after) + 1)
    costs = steps
    for row, word in enumerate(old, start=1):
        # Deletion, match or substitution; insertions by the running minimum, a row at once.
        without = np.concatenate(([row], np.minimum(costs[1:] + 1, costs[:-1] + (new != word))))
        costs = np.minimum.accumulate(without - steps) + steps
    return int(costs[-1])


# Overridden refusals: drafts of refused studies, as ``radweave generate --force`` makes them.
#
# POST /api/v1/studies/ID/anyway {"refusal": "unfamiliar"}
#
# A reader may override a refusal of out-of-distribution images; an admin also one for the body part or the integrity of
# a file. Unreadable files and images of several patients are never drafted. The draft carries a warning into every
# export, its page and the work list; the log names the user.

OVERRIDE_ROLES: Final = {"unfamiliar": ("reader", "admin"), "body part": ("admin",), "integrity": ("admin",)}
"""Kind of a refusal -> roles that may override it; kinds not listed cannot be overridden."""
OVERRIDDEN: Final = "draft asked for although refused"


class NotAllowedError(Exception):
    """The role of the user does not suffice; the text names one that does."""


def keep_refusal(connection: sa.Connection, study: str, kind: str | None, reason: str) -> bool:
    """Store a refusal whose images can be shown; return False for other refusals, which have no kind."""
    forget_refusal(connection, study)
    if kind is not None:
        connection.execute(refusals.insert().values(study_id=study, kind=kind, reason=reason))
    return kind is not None


def forget_refusal(connection: sa.Connection, study: str) -> None:
    """Remove the refusal of a study, for example with its files."""
    connection.execute(refusals.delete().where(refusals.c.study_id == study))


def shows_images(connection: sa.Connection, study: str) -> bool:
    """True if the images of a refused study can be shown."""
    return connection.execute(sa.select(refusals.c.kind).where(refusals.c.study_id == study)).first() is not None


def overridden_refusals(connection: sa.Connection, ids: Iterable[str]) -> dict[str, str]:
    """Study -> kind of its refusal, for refusals overridden for the next draft."""
    return {row.study_id: row.kind for row in connection.execute(_overridden(ids)) if row.holds}


def _overridden(ids: Iterable[str]) -> sa.Select[Any]:
    return sa.select(refusals).where(refusals.c.study_id.in_(list(ids)), refusals.c.asked_by.is_not(None))


def override_warning(connection: sa.Connection, study: str) -> tuple[str, ...]:
    """First warning of a draft whose refusal was overridden; else nothing, and a stored refusal is removed."""
    row = connection.execute(_overridden([study])).first()
    if row is None or not row.holds:
        forget_refusal(connection, study)
        return ()
    return (f"DRAFTED ALTHOUGH IT WAS REFUSED, because a user asked for it: {row.reason}",)


def refusal_json(connection: sa.Connection, study: sa.Row[Any], user: User) -> dict[str, Any]:
    """Refusal of a study with the permission of ``user``, and the override if there is one."""
    row = connection.execute(sa.select(refusals).where(refusals.c.study_id == study.id)).first()
    if row is None:
        return {"refusal": None, "drafted_anyway": None}
    who = user_names(connection).get(row.asked_by)
    drafted_anyway = None if row.asked_by is None else {"kind": row.kind, "by": who, "time": row.asked_at.isoformat()}
    roles = OVERRIDE_ROLES.get(row.kind, ())
    refusal = {"kind": row.kind, "may_draft": user.role in roles, "roles": list(roles)}
    return {"refusal": refusal if study.state == "refused" else None, "drafted_anyway": drafted_anyway}


def mark_overridden(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the work list, with the kind of an overridden refusal."""
    marked = {row.study_id: row.kind for row in connection.execute(_overridden(row["id"] for row in rows))}
    return [{**row, "drafted_anyway": marked.get(row["id"])} for row in rows]


def override_refusal(connection: sa.Connection, study: sa.Row[Any], kind: str, user: User) -> None:
    """Queue a refused study in spite of its refusal; ``kind`` is the refusal shown to ``user``.

    Raises:
        ConflictError: if it is not refused, for another reason, or for one that cannot be overridden.
        NotAllowedError: if the role of the user does not suffice.
    """
    row = connection.execute(sa.select(refusals).where(refusals.c.study_id == study.id)).first()
    if study.state != "refused" or row is None or row.kind not in OVERRIDE_ROLES:
        raise ConflictError("its refusal cannot be overridden", field="state", got=study.state)
    if user.role not in OVERRIDE_ROLES[row.kind]:
        raise NotAllowedError(
            f"a study refused for its {row.kind} needs the role {' or '.join(OVERRIDE_ROLES[row.kind])}"
        )
    if kind != row.kind:
        raise ConflictError("was refused for another reason", field="refusal", expected=row.kind)
    moved = connection.execute(
        studies.update()
        .where(studies.c.id == study.id, studies.c.state == "refused")
        .values(state="waiting", reason=None, tries=0, changed=now())
    )
    if not moved.rowcount:  # another request was faster
        raise ConflictError("its refusal cannot be overridden", field="state")
    set_aside = {"asked_by": user.id, "asked_at": now(), "holds": True}
    connection.execute(refusals.update().where(refusals.c.study_id == study.id).values(set_aside))
    log.append(connection, OVERRIDDEN, user=user.id, study=study.id, details={"refusal": row.kind})
