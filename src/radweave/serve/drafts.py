"""Drafts and their versions: what the model wrote, what readers make of it, and the signature.

Version 1 is the model's and stays; where images came later, another version is the model's too. Each edit makes a whole
new version and names the one it was made on; where another one came first it is refused, and nothing is lost. A
sentence keeps its key through all versions.

A warning belongs to the words: who writes those of a flagged sentence again, as they were, takes nobody's duty to look.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import sqlalchemy as sa
from pydantic import Field, StringConstraints

from radweave.base.errors import InputError
from radweave.base.hashes import sha256_bytes
from radweave.base.study import RESEARCH_ONLY, Record
from radweave.hospital.finished import SectionKind
from radweave.hospital.signs import refuse_unsignable
from radweave.serve import log, signed
from radweave.serve.schema import drafts, evidence, looks, now, sentences, signoffs, studies
from radweave.serve.schema import log as log_table
from radweave.serve.settings import Limits
from radweave.serve.signed import SECTIONS, ConflictError
from radweave.serve.users import User, user_names

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
    text = signed.whole_text(rows)
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
    counted["text_sha256"] = sha256_bytes(signed.whole_text([row._asdict() for row in kept]).encode())
    counted["sealed"] = signed.seal(connection, study)
    log.append(connection, signed.SIGNED, user=user.id, study=study, details=counted)
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
