"""Drafts and their versions: what the model wrote, what readers make of it, and the signature.

Version 1 is the model's and stays; where images came later, another version is the model's too. Each edit makes a whole
new version and names the one it was made on; where another one came first it is refused, and nothing is lost. A
sentence keeps its key through all versions.

A warning belongs to the words: who writes those of a flagged sentence again, as they were, takes nobody's duty to look.
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
    looks,
    now,
    refusals,
    sentences,
    signoffs,
    studies,
    users,
)
from radweave.workstation.database import log as log_table
from radweave.workstation.finished import SectionKind, refuse_unsignable
from radweave.workstation.settings import Limits
from radweave.workstation.users import User, user_names

# What was signed: addenda to it, and the proof that the database still holds it as it was signed.
#
# A seal is a hash over all that goes out with a report: its text by sentences, findings, warnings, the model, the
# evidence, names of study and files, who signed and when. The seal of an addendum is over its text, its signature and
# the seal before it. Seals stand in the log, whose entries are chained; nothing leaves without being held against them.


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


EDITABLE = ("drafted", "edited")
REJECTED = "rejected"
Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class Replace(Record):
    """Other words for a sentence."""

    op: Literal["replace"]
    key: int
    text: Words


class Remove(Record):
    """A sentence less."""

    op: Literal["remove"]
    key: int


class Insert(Record):
    """A new sentence after the one named, or at the beginning of a section (of the findings, where none is named).

    ``recalled`` numbers the recalled case, from 1, in which it stands word for word.
    """

    op: Literal["insert"]
    after: int | None = None
    section: SectionKind | None = None
    text: Words
    recalled: int | None = None


class Restore(Record):
    """All sentences as they were in an older version: undo."""

    op: Literal["restore"]
    version: int


Edit = Annotated[Replace | Remove | Insert | Restore, Field(discriminator="op")]


def read(connection: sa.Connection, study: str, version: int, user: User | None = None) -> dict[str, Any]:
    """A version as JSON values, with the notice that every draft carries.

    ``looked_at`` says of each sentence whether ``user`` looked at it, or wrote other words than those of a warning;
    ``lookers`` who looked at it.

    Raises:
        InputError: if there is none.
    """
    draft = connection.execute(sa.select(drafts).where(drafts.c.study_id == study, drafts.c.version == version)).first()
    if draft is None:
        raise InputError("no such version", field="version")
    names, lookers = user_names(connection), _lookers(connection, study)
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
            for row in _rows(connection, study, version)
        ],
        "notice": RESEARCH_ONLY,
    }  # fmt: skip


def _lookers(connection: sa.Connection, study: str) -> dict[int, set[int]]:
    """Of each sentence that was looked at, by its key, by whom."""
    found: dict[int, set[int]] = {}
    for row in connection.execute(sa.select(looks).where(looks.c.study_id == study)):
        found.setdefault(row.key, set()).add(row.user_id)
    return found


def _origin(row: sa.Row[Any]) -> dict[str, Any]:
    """Where a sentence is from. What a reader wrote has no source but the reader, in older databases too."""
    made_by_hand = row.verdict == "edited" and row.origin.get("kind") != "recalled"
    return {"kind": "reader"} if made_by_hand else dict(row.origin)


def drafted_version(connection: sa.Connection, study: str) -> int:
    """The newest version that the model wrote."""
    asked = sa.select(sa.func.max(drafts.c.version)).where(drafts.c.study_id == study, drafts.c.author_id.is_(None))
    return int(connection.execute(asked).scalar() or 1)


def write(connection: sa.Connection, study: str, version: int, text: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Keep a version of the model's. Its sentences are new ones, whatever they say."""
    first = _next_key(connection, study)
    connection.execute(drafts.insert().values(study_id=study, version=version, text=text, created=now()))
    made = [
        {**row, "study_id": study, "version": version, "position": number, "key": first + number}
        for number, row in enumerate(rows)
    ]
    if made:
        connection.execute(sentences.insert(), made)


def _undo(connection: sa.Connection, study: str, version: int) -> int | None:
    """The version that shows what stood there before ``version``; None for a draft of the model's own."""
    asked = sa.select(drafts.c.version, drafts.c.restores, drafts.c.author_id).where(drafts.c.study_id == study)
    rows = {row.version: row for row in connection.execute(asked)}
    while (older := rows[version].restores) is not None:
        version = older
    return None if rows[version].author_id is None else version - 1


def read_evidence(connection: sa.Connection, study: str) -> dict[str, Any] | None:
    """What the model gave with its draft; None where there is no draft."""
    row = connection.execute(sa.select(evidence).where(evidence.c.study_id == study)).first()
    if row is None:
        return None
    return {name: getattr(row, name) for name in ("evidence", "findings", "warnings", "model")}


def read_signature(connection: sa.Connection, study: str) -> dict[str, Any] | None:
    """Who signed a study, when, after how long and how many changes; None where nobody has."""
    row = connection.execute(sa.select(signoffs).where(signoffs.c.study_id == study)).first()
    if row is None:
        return None
    return {**row._asdict(), "time": row.time.isoformat(), "user": user_names(connection).get(row.user_id)}


def _rows(connection: sa.Connection, study: str, version: int) -> Sequence[sa.Row[Any]]:
    asked = sa.select(sentences).where(sentences.c.study_id == study, sentences.c.version == version)
    return connection.execute(asked.order_by(sentences.c.position)).all()


def edit(connection: sa.Connection, study: str, version: int, edits: Sequence[Edit], user: User, limits: Limits) -> int:
    """Make a new version of ``version``; return its number.

    Raises:
        ConflictError: if ``version`` is not the newest, or the study cannot be edited.
        InputError: for a sentence or version that is not there, or more or longer ones than ``limits`` has.
    """
    _take(connection, study, version, state="edited", version_after=version + 1)
    rows = [row._asdict() for row in _rows(connection, study, version)]
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


def _take(connection: sa.Connection, study: str, version: int, *, state: str, version_after: int) -> None:
    """Move a study on if it is as the caller takes it to be; from here to the commit nobody else can."""
    done = connection.execute(
        studies.update()
        .where(studies.c.id == study, studies.c.version == version, studies.c.state.in_(EDITABLE))
        .values(state=state, version=version_after, changed=now())
    )
    if done.rowcount:
        return
    found = connection.execute(sa.select(studies.c.state, studies.c.version).where(studies.c.id == study)).one()
    if found.state not in EDITABLE:
        raise ConflictError("cannot be changed", field="state", got=found.state, expected=" or ".join(EDITABLE))
    raise ConflictError("is not the newest", field="version", got=version, expected=found.version)


def _next_key(connection: sa.Connection, study: str) -> int:
    most = connection.execute(sa.select(sa.func.max(sentences.c.key)).where(sentences.c.study_id == study)).scalar()
    return 0 if most is None else int(most) + 1


def _applied(
    connection: sa.Connection, study: str, rows: list[dict[str, Any]], one: Edit, user: User, free: int
) -> tuple[list[dict[str, Any]], int]:
    """The sentences after one edit, and the next free key."""
    if isinstance(one, Restore):
        older = [row._asdict() for row in _rows(connection, study, one.version)]
        if connection.execute(
            sa.select(drafts.c.version).where(drafts.c.study_id == study, drafts.c.version == one.version)
        ).first() is None:  # fmt: skip
            raise InputError("no such version", field="edits", got=one.version)
        return older, free
    keys = [row["key"] for row in rows]
    if isinstance(one, Insert):
        written = _written(connection, study, free, one, user)
        if one.after is None:
            before = SECTIONS.index(written["section"])
            place = sum(SECTIONS.index(row["section"]) < before for row in rows)
        else:
            place = _place(keys, one.after) + 1
            if one.section not in (None, rows[place - 1]["section"]):
                raise InputError("stands in another section", field="after", expected=one.section)
            written["section"] = rows[place - 1]["section"]
        return [*rows[:place], written, *rows[place:]], free + 1
    place = _place(keys, one.key)
    if isinstance(one, Remove):
        return [*rows[:place], *rows[place + 1 :]], free
    if rows[place]["flagged"] and _same_words(rows[place]["text"]) == _same_words(one.text):
        return rows, free
    # What the model said of its own sentence, and where that was from, does not hold for another one.
    changed = {
        **rows[place], "text": one.text, "origin": {"kind": "reader"}, "edited_by": user.id, "probability": None,
        "confidence": None, "verdict": "edited", "flagged": False, "details": None,
        **_warned(connection, study, one.text),
    }  # fmt: skip
    return [*rows[:place], changed, *rows[place + 1 :]], free


def _place(keys: list[int], key: int) -> int:
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
    """What two texts share that differ in spaces, stops and capitals only."""
    return re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())


def _warned(connection: sa.Connection, study: str, text: str) -> dict[str, Any]:
    """The warning of a sentence of this study that has the same words, and why; nothing where there is none."""
    words = _same_words(text)
    for row in connection.execute(sa.select(sentences).where(sentences.c.study_id == study, sentences.c.flagged)):
        if _same_words(row.text) == words:
            return {"flagged": True, "verdict": row.verdict, "details": row.details}
    return {}


def _recalled(connection: sa.Connection, study: str, number: int, text: str) -> dict[str, Any]:
    """The origin of a sentence out of a recalled case, in which it must stand: no client says where words are from."""
    given = read_evidence(connection, study)
    cases = [] if given is None else given["evidence"].get("recalled") or []
    case = cases[number - 1] if 1 <= number <= len(cases) else {}
    if " ".join(text.split()) not in " ".join((case.get("text") or "").split()):
        raise InputError("does not stand in this recalled case", field="text")
    return {"kind": "recalled", "number": number, "study_id": case.get("study_id")}


def look(connection: sa.Connection, study: str, version: int, keys: Sequence[int], user: User) -> None:
    """Remember that a reader looked at sentences of the newest version. That another one did counts for the other one.

    Raises:
        ConflictError: if ``version`` is not the newest, or the study cannot be edited.
        InputError: for a sentence that is not there.
    """
    found = connection.execute(sa.select(studies.c.state).where(studies.c.id == study)).scalar_one()
    _take(connection, study, version, state=found, version_after=version)
    there = [row.key for row in _rows(connection, study, version)]
    for key in keys:
        _place(there, key)
    before = _lookers(connection, study)
    for key in dict.fromkeys(keys):
        if user.id not in before.get(key, ()):
            connection.execute(looks.insert().values(study_id=study, key=key, user_id=user.id))
    log.append(connection, "looked", user=user.id, study=study, details={"version": version, "keys": list(keys)})


def sign(connection: sa.Connection, study: str, version: int, seconds: float, user: User) -> dict[str, Any]:
    """Sign the newest version; return what was kept of it. ``seconds`` is the time that the reader spent.

    Raises:
        ConflictError: if ``version`` is not the newest, the study is signed, or there is a flagged sentence that this
            user has not looked at.
        InputError: if the report is empty, or an export would lose a sign of it.
    """
    _take(connection, study, version, state="signed", version_after=version)
    kept, first = _rows(connection, study, version), _rows(connection, study, drafted_version(connection, study))
    _refuse_unsignable(connection, study, version, kept)
    lookers = _lookers(connection, study)
    unseen = [row.key for row in kept if row.flagged and user.id not in lookers.get(row.key, ())]
    if unseen:
        raise ConflictError(
            "flagged sentences were not looked at by who signs", field="sentences", got=f"keys {unseen}"
        )
    before = {row.key: row.text for row in first}
    values = {
        "study_id": study, "user_id": user.id, "version": version, "time": now(), "seconds": seconds,
        "edit_distance_words": edit_distance(_words(first), _words(kept)),
        "accepted_sentences": sum(before.get(row.key) == row.text for row in kept),
        "draft_sentences": len(first),
    }  # fmt: skip
    connection.execute(signoffs.insert().values(values))
    counted = {name: value for name, value in values.items() if name not in ("study_id", "user_id", "time")}
    counted["text_sha256"] = sha256_bytes(whole_text([row._asdict() for row in kept]).encode())
    counted["sealed"] = seal(connection, study)
    log.append(connection, SIGNED, user=user.id, study=study, details=counted)
    signature = read_signature(connection, study)
    assert signature is not None
    return signature


def _refuse_unsignable(connection: sa.Connection, study: str, version: int, rows: Sequence[sa.Row[Any]]) -> None:
    if not rows:
        raise InputError("the report is empty: there is nothing to sign", field="sentences")
    for number, row in enumerate(rows, start=1):
        refuse_unsignable(row.text, field=f"sentence {number}")
    text = sa.select(drafts.c.text).where(drafts.c.study_id == study, drafts.c.version == version)
    refuse_unsignable(connection.execute(text).scalar_one(), field="text")


def reject(connection: sa.Connection, study: str, version: int, reason: str, user: User) -> None:
    """Say that the newest version is no report, and why. The reason stands with the study, not in the log.

    Raises:
        ConflictError: if ``version`` is not the newest, or the study has no draft or is signed.
        InputError: for a reason that says nothing, or that holds signs which are not seen.
    """
    refuse_unsignable(reason, field="reason")
    _take(connection, study, version, state="rejected", version_after=version)
    connection.execute(studies.update().where(studies.c.id == study).values(reason=reason))
    log.append(connection, REJECTED, user=user.id, study=study, details={"version": version})


def rejection(connection: sa.Connection, study: str) -> sa.Row[Any] | None:
    """The log's entry of the last rejection: who and when. None where there was none."""
    asked = sa.select(log_table).where(log_table.c.study_id == study, log_table.c.action == REJECTED)
    return connection.execute(asked.order_by(log_table.c.number.desc()).limit(1)).first()


def reopen(connection: sa.Connection, study: str, version: int, user: User) -> None:
    """Take a rejection back: the draft is to be read again.

    Raises:
        ConflictError: if the study is not rejected, or not in this version.
        PermissionError: if somebody else rejected it, and ``user`` is no admin.
    """
    state = "edited" if version > drafted_version(connection, study) else "drafted"
    this = (studies.c.id == study, studies.c.state == "rejected", studies.c.version == version)
    done = connection.execute(studies.update().where(*this).values(state=state, reason=None, changed=now()))
    if not done.rowcount:
        row = connection.execute(sa.select(studies.c.state).where(studies.c.id == study)).one()
        raise ConflictError("cannot be reopened", field="state", got=row.state, expected="rejected, the newest version")
    entry = rejection(connection, study)
    if not user.is_admin and (entry is None or entry.user_id != user.id):
        raise PermissionError("only who rejected it or an admin takes it back")
    log.append(connection, "reopened", user=user.id, study=study, details={"version": version})


def _words(rows: Sequence[sa.Row[Any]]) -> list[str]:
    return [word for row in rows for word in row.text.split()]


def edit_distance(before: Sequence[str], after: Sequence[str]) -> int:
    """The fewest words put in, taken out or replaced that make ``after`` of ``before`` (Levenshtein)."""
    numbers: dict[str, int] = {}
    old, new = (np.array([numbers.setdefault(word, len(numbers)) for word in words]) for words in (before, after))
    steps = np.arange(len(after) + 1)
    costs = steps
    for row, word in enumerate(old, start=1):
        # Taken out, or kept or replaced; words put in come by the running minimum, a row at once.
        without = np.concatenate(([row], np.minimum(costs[1:] + 1, costs[:-1] + (new != word))))
        costs = np.minimum.accumulate(without - steps) + steps
    return int(costs[-1])


# Refused studies whose images can be shown, and their draft all the same, where a user with the right to it asks.
#
# POST /api/v1/studies/ID/anyway {"refusal": "unfamiliar"}
#
# What ``--force`` is to ``radweave generate``. A reader may ask where the images merely look unlike those of training; an
# admin also where the file names another part of the body, or its integrity is doubtful. Files that cannot be read, and
# images of several patients, are drafted on for nobody. The draft says so wherever it goes: in its warnings, which every
# export has, on its page and in the work list; the log has who asked.


ROLES: Final = {"unfamiliar": ("reader", "admin"), "body part": ("admin",), "integrity": ("admin",)}
"""Kind of a refusal -> who may ask for a draft all the same; nobody where a kind is not listed."""
ACTION: Final = "draft asked for although refused"


class NotAllowedError(Exception):
    """The role of who asks does not reach; the text says which does."""


def keep(connection: sa.Connection, study: str, kind: str | None, reason: str) -> bool:
    """Remember a refusal, of the kind that its images can be shown; whether it is of one."""
    forget(connection, study)
    if kind is not None:
        connection.execute(refusals.insert().values(study_id=study, kind=kind, reason=reason))
    return kind is not None


def forget(connection: sa.Connection, study: str) -> None:
    """Where a study's files go, nothing of their refusal stays."""
    connection.execute(refusals.delete().where(refusals.c.study_id == study))


def shows_images(connection: sa.Connection, study: str) -> bool:
    """Whether a refused study still shows its images."""
    return connection.execute(sa.select(refusals.c.kind).where(refusals.c.study_id == study)).first() is not None


def allowed(connection: sa.Connection, ids: Iterable[str]) -> dict[str, str]:
    """Study -> the kind of refusal that somebody set aside, and that is set aside for its next draft."""
    return {row.study_id: row.kind for row in connection.execute(_set_aside(ids)) if row.holds}


def _set_aside(ids: Iterable[str]) -> sa.Select[Any]:
    return sa.select(refusals).where(refusals.c.study_id.in_(list(ids)), refusals.c.asked_by.is_not(None))


def warning(connection: sa.Connection, study: str) -> tuple[str, ...]:
    """What stands first among the warnings of a draft that was refused before; a draft that was not ends its mark."""
    row = connection.execute(_set_aside([study])).first()
    if row is None or not row.holds:
        forget(connection, study)
        return ()
    return (f"DRAFTED ALTHOUGH IT WAS REFUSED, because a user asked for it: {row.reason}",)


def anyway_json(connection: sa.Connection, study: sa.Row[Any], user: User) -> dict[str, Any]:
    """Of a study: its refusal with what ``user`` may do about it, and who set one aside."""
    row = connection.execute(sa.select(refusals).where(refusals.c.study_id == study.id)).first()
    if row is None:
        return {"refusal": None, "drafted_anyway": None}
    who = user_names(connection).get(row.asked_by)
    told = None if row.asked_by is None else {"kind": row.kind, "by": who, "time": row.asked.isoformat()}
    roles = ROLES.get(row.kind, ())
    refusal = {"kind": row.kind, "may_draft": user.role in roles, "roles": list(roles)}
    return {"refusal": refusal if study.state == "refused" else None, "drafted_anyway": told}


def mark(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the work list, with which of them were refused and are drafted all the same."""
    marked = {row.study_id: row.kind for row in connection.execute(_set_aside(row["id"] for row in rows))}
    return [{**row, "drafted_anyway": marked.get(row["id"])} for row in rows]


def ask(connection: sa.Connection, study: sa.Row[Any], kind: str, user: User) -> None:
    """Let a refused study wait for its draft all the same; ``kind`` is the refusal that ``user`` saw.

    Raises:
        ConflictError: if it is not refused, for another reason, or for one that nobody sets aside.
        NotAllowedError: if the user's role does not reach.
    """
    row = connection.execute(sa.select(refusals).where(refusals.c.study_id == study.id)).first()
    if study.state != "refused" or row is None or row.kind not in ROLES:
        raise ConflictError("cannot be drafted all the same", field="state", got=study.state)
    if user.role not in ROLES[row.kind]:
        raise NotAllowedError(f"a study refused for its {row.kind} needs the role {' or '.join(ROLES[row.kind])}")
    if kind != row.kind:
        raise ConflictError("was refused for another reason", field="refusal", expected=row.kind)
    moved = connection.execute(
        studies.update()
        .where(studies.c.id == study.id, studies.c.state == "refused")
        .values(state="waiting", reason=None, tries=0, changed=now())
    )
    if not moved.rowcount:  # another request was faster
        raise ConflictError("cannot be drafted all the same", field="state")
    set_aside = {"asked_by": user.id, "asked": now(), "holds": True}
    connection.execute(refusals.update().where(refusals.c.study_id == study.id).values(set_aside))
    log.append(connection, ACTION, user=user.id, study=study.id, details={"refusal": row.kind})
