"""JSON interface under ``/api/v1``: work list, drafts, edits, signatures, priors, accounts and the template."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Annotated, Any, Final

import sqlalchemy as sa
from fastapi import APIRouter, HTTPException, Path, Query, Request
from fastapi.responses import PlainTextResponse, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile

from radweave.core.errors import InputError
from radweave.core.storage import sha256_bytes
from radweave.core.study import RESEARCH_ONLY, Report
from radweave.inference.explain.support import find_support
from radweave.io.sandbox import Sandbox
from radweave.labels import LABELER_OF, get_labeler
from radweave.workstation import drafts, learning, locks, log, outbox, reader_study, related, store, users, work_list
from radweave.workstation.access import (
    COOKIE,
    Admin,
    Body,
    CurrentStation,
    CurrentUser,
    login_limits,
    one_password,
    refuse_disabled,
    station_of,
)
from radweave.workstation.database import PRIORITIES, macros, now, templates
from radweave.workstation.drafts import SECTIONS, Edit
from radweave.workstation.formats import FORMATS, MAPS, MEDIA_TYPES
from radweave.workstation.reports import stored_report, with_images
from radweave.workstation.result import changes_from_prior, read_prior_states
from radweave.workstation.station import Station
from radweave.workstation.uploads import from_stream
from radweave.workstation.users import User, user_names

router = APIRouter(prefix="/api/v1")
probes = APIRouter()
Limit = Annotated[int, Query(ge=1, le=200)]
Offset = Annotated[int, Query(ge=0, le=1 << 31)]
Day = Annotated[str, Query(pattern=r"^\d{8}$")]
_SECONDS_OF_A_DAY = 86_400
_LONGEST_REASON = 500
OPENED = "opened"
AHEAD: Final = "fetched ahead"
"""Log entry of a draft or an image that a page fetched before its reader opened the study."""


class Edits(Body):
    """Edits of the version shown to the reader."""

    version: int
    edits: list[Edit] = Field(min_length=1, max_length=500)


class LookedAt(Body):
    """Keys of the sentences that the reader looked at."""

    version: int
    sentences: list[int] = Field(min_length=1, max_length=500)


class Signature(Body):
    """The version to sign. ``seconds`` is the reading time, by default since the study was first opened."""

    version: int
    seconds: float | None = Field(default=None, ge=0, le=_SECONDS_OF_A_DAY)


class Addendum(Body):
    """A text to add to a signed report. ``after`` is the number of addenda shown to the reader."""

    after: int = Field(ge=0)
    text: drafts.Words


class Rejection(Body):
    """The version to reject, and the reason."""

    version: int
    reason: drafts.Words = Field(max_length=_LONGEST_REASON)


class Reopening(Body):
    """The rejected version to reopen."""

    version: int


class LockRequest(Body):
    """The study to hold for editing. ``instead_of`` is the number of the holder shown, to take it over."""

    instead_of: int | None = None


class NewPriority(Body):
    """The priority of a study."""

    priority: work_list.Priority


class Anyway(Body):
    """The kind of refusal shown to the reader; another kind is not overridden."""

    refusal: str = Field(max_length=20)


def find_study(connection: sa.Connection, study: str, user: User) -> sa.Row[Any]:
    """A study visible to the user; else 404."""
    refuse_disabled(connection, user)
    row = store.find(connection, study, user)
    if row is None:
        raise HTTPException(404, "no such study")
    return row


@contextmanager
def visible_study(
    transaction: AbstractContextManager[sa.Connection], study: str, user: User
) -> Iterator[tuple[sa.Connection, sa.Row[Any]]]:
    """A transaction with a study visible to the user; else 404."""
    with transaction as connection:
        yield connection, find_study(connection, study, user)


@contextmanager
def held_study(station: Station, study: str, user: User) -> Iterator[sa.Connection]:
    """A transaction that changes a study visible to the user, who has it in hand or takes it; else 404 or 409."""
    with visible_study(station.database.writing(), study, user) as (connection, _):
        locks.acquire(connection, study, user, idle_s=station.settings.idle_s)
        yield connection


@router.post("/studies", tags=["studies"], status_code=202)
async def submit(request: Request, user: CurrentUser) -> dict[str, Any]:
    """Files of one or more studies, as the parts ``files`` of a form; a folder's files, or ZIP archives of them.

    ``one_study=true`` groups all of them into one study; ``priority`` is low, routine, high or stat, by default that of
    the headers. A request repeated with the same ``Idempotency-Key`` header counts once.
    """
    station = station_of(request)
    await run_in_threadpool(station.refuse_where_full)
    key = request.headers.get("idempotency-key")
    async with request.form(max_files=station.settings.limits.files, max_fields=16) as form:
        incoming = [
            from_stream(part.filename or "file", part.file)
            for part in form.getlist("files")
            if isinstance(part, UploadFile)
        ]
        one, priority = form.get("one_study") == "true", form.get("priority")
        if priority not in (None, *PRIORITIES):
            raise InputError("no such priority", field="priority", expected=", ".join(PRIORITIES))
        await run_in_threadpool(_refuse_disabled, station, user)  # sending files takes time
        ids = await run_in_threadpool(
            station.submit, incoming, owner=user.id, one_study=one, key=key, priority=priority
        )
    return {"studies": ids}


def _refuse_disabled(station: Station, user: User) -> None:
    with station.database.reading() as connection:
        refuse_disabled(connection, user)


@router.get("/studies", tags=["studies"])
def list_studies(
    user: CurrentUser,
    station: CurrentStation,
    state: work_list.State | None = None,
    search: Annotated[str | None, Query(max_length=200)] = None,
    priority: work_list.Priority | None = None,
    holder: work_list.Holder | None = None,
    modality: Annotated[str | None, Query(max_length=16)] = None,
    body_part: Annotated[str | None, Query(max_length=16)] = None,
    since: Day | None = None,
    until: Day | None = None,
    offset: Offset = 0,
    limit: Limit = 50,
    sort: work_list.Sort = "created",
    descending: bool = True,
) -> dict[str, Any]:
    """The work list, the newest first unless ``sort`` names another column; ``headers`` are those of the images.

    ``holder`` of a study is the reader who has it in hand, or null; as a filter it is own, others or nobody. ``since``
    and ``until`` are study dates (YYYYMMDD).
    """
    wanted = work_list.Wanted(state, search, priority, holder, modality, body_part, since, until)
    with station.database.reading() as connection:
        total, rows = work_list.page(
            station, connection, user, wanted, offset=offset, limit=limit, sort=sort, descending=descending
        )
        rows, counts = drafts.mark_overridden(connection, rows), store.counts(connection, user)
    return {"total": total, "offset": offset, "studies": rows, "counts": counts}


@router.get("/studies/next", tags=["studies"])
def list_next(
    user: CurrentUser,
    station: CurrentStation,
    skip: Annotated[list[str] | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=5)] = 1,
) -> dict[str, Any]:
    """The next studies to read: the most urgent first, of those the oldest, none in the hand of another reader.

    ``skip`` names studies that are not wanted, such as the one on the screen.
    """
    with station.database.reading() as connection:
        return {"studies": work_list.following(station, connection, user, skip or [], limit)}


@router.get("/studies/{study}", tags=["studies"])
def read(study: str, user: CurrentUser, station: CurrentStation, ahead: bool = False) -> dict[str, Any]:
    """A study with its newest draft: each sentence with its origin, probability and editor.

    ``holder`` is the reader who has it in hand, or null. ``altered_at`` is the log entry of the signature where the
    report differs from the signed one. ``ahead`` says that the reader has not opened the study yet, which the log
    records as that.
    """
    with visible_study(station.database.reading(), study, user) as (connection, row):
        answer = {**work_list.study_json(station, connection, row, user), "notice": RESEARCH_ONLY}
        answer.update(drafts.refusal_json(connection, row, user))
        if row.version == 0:
            return answer
        answer["draft"] = drafts.read(connection, study, row.version, user)
        answer["signature"] = drafts.read_signature(connection, study)
        answer["addenda"] = drafts.addenda_json(connection, study)
        answer["rejection"] = _rejection(connection, row, user)
        answer["altered_at"] = _altered_at(connection, study)
        evidence_row = drafts.read_evidence(connection, study)
        assert evidence_row is not None, "a draft has its evidence"
        shown = _shown_evidence(station, connection, study, evidence_row)
        answer.update({name: shown[name] for name in ("findings", "warnings", "model")})
    log.note_first(station.database, AHEAD if ahead else OPENED, user=user.id, study=study, version=row.version)
    return answer


def _shown_evidence(
    station: Station, connection: sa.Connection, study: str, evidence_row: dict[str, Any]
) -> dict[str, Any]:
    """The evidence as it may be shown: nothing of a draft that is hidden, and no names of files of hidden patients."""
    if reader_study.hides_draft(connection, study):
        return {**evidence_row, "evidence": {}, "findings": [], "warnings": [reader_study.BLIND]}
    return {**evidence_row, "warnings": work_list.without_files(station, connection, study, evidence_row["warnings"])}


def _refuse_hidden(connection: sa.Connection, study: str, version: int) -> None:
    """Refuse a version of the model that is hidden from the reader."""
    if version < drafts.drafted_version(connection, study) and reader_study.hides_draft(connection, study):
        raise HTTPException(404, "this version is hidden until the report is signed")


def _rejection(connection: sa.Connection, row: sa.Row[Any], user: User) -> dict[str, Any] | None:
    """Author and time of a rejection, and the permission of ``user`` to reopen it; None if not rejected."""
    entry = drafts.rejection(connection, row.id) if row.state == "rejected" else None
    if entry is None:
        return None
    name = user_names(connection).get(entry.user_id)
    return {"user": name, "time": entry.time.isoformat(), "may_reopen": user.is_admin or user.id == entry.user_id}


def _altered_at(connection: sa.Connection, study: str) -> int | None:
    """Number of the log entry that the stored report contradicts; None if it is as signed."""
    try:
        drafts.check_signed(connection, study)
    except drafts.AlteredError as error:
        return error.entry
    return None


@router.get("/studies/{study}/evidence", tags=["studies"])
def evidence(study: str, user: CurrentUser, station: CurrentStation) -> dict[str, Any]:
    """Evidence of the model for its draft: probabilities, recalled cases, maps."""
    with visible_study(station.database.reading(), study, user) as (connection, _):
        answer = drafts.read_evidence(connection, study)
        if answer is None:
            raise HTTPException(404, "there is no draft")
        answer = _shown_evidence(station, connection, study, answer)
    log.note_first(station.database, OPENED, user=user.id, study=study)
    return {**answer, "notice": RESEARCH_ONLY}


@router.get("/studies/{study}/report", tags=["studies"])
def report(
    study: str,
    user: CurrentUser,
    station: CurrentStation,
    format: Annotated[str, Query(pattern="^[a-z0-9-]{1,20}$")] = "pdf",
) -> Response:
    """The newest version as a file for other systems, with its addenda. 409 if it was rejected or altered.

    pdf, text, fhir, fhir-r5, hl7, sr-basic, sr-tid1500, pdf-dicom, map-dicom or box-dicom.
    """
    if station.settings.hide_patients:
        raise HTTPException(403, "a report names its patient, and this server hides patients")
    if format not in FORMATS:
        raise InputError("no such format", field="format", expected=", ".join(FORMATS))
    with visible_study(station.database.reading(), study, user) as (connection, row):
        if row.version == 0:
            raise HTTPException(404, "there is no draft")
        with _noting_altered(station, study, user):
            if reader_study.hides_draft(connection, study):
                reason = "is read without its draft: there is no report before it is signed"
                raise drafts.ConflictError(reason, field="state", got=row.state)
            stored = stored_report(connection, row, row.version)
    with station.report_slots.slot():
        data = FORMATS[format].bytes_of(with_images(stored, maps=format == MAPS))
    with station.database.writing() as connection:
        details = {"format": format, "version": row.version}
        log.append(connection, "report taken", user=user.id, study=study, details=details)
    name = f"report{FORMATS[format].suffix}"
    return Response(
        data,
        media_type=MEDIA_TYPES[FORMATS[format].suffix],
        headers={"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "private, no-store"},
    )


@router.get("/studies/{study}/sent", tags=["studies"])
def sent(study: str, user: CurrentUser, station: CurrentStation) -> list[dict[str, Any]]:
    """Reports of a study waiting to be sent or sent to archives, with their receipts."""
    with visible_study(station.database.reading(), study, user) as (connection, _):
        return outbox.of_study(connection, study)


@router.get("/studies/{study}/versions/{version}", tags=["studies"])
def read_version(study: str, version: int, user: CurrentUser, station: CurrentStation) -> dict[str, Any]:
    """An older version. Version 1 is the model's first draft, ``drafted`` its newest."""
    with visible_study(station.database.reading(), study, user) as (connection, _):
        _refuse_hidden(connection, study, version)
        draft = drafts.read(connection, study, version, user)
    log.note_first(station.database, OPENED, user=user.id, study=study, version=version)
    return draft


@router.patch("/studies/{study}/sentences", tags=["drafts"])
def edit(study: str, body: Edits, user: CurrentUser, station: CurrentStation) -> dict[str, Any]:
    """Replace, remove or insert sentences, or restore an older version. 409 if another edit came first."""
    with held_study(station, study, user) as connection:
        for one in body.edits:
            if isinstance(one, drafts.Restore):
                _refuse_hidden(connection, study, one.version)
        version = drafts.edit(connection, study, body.version, body.edits, user, station.settings.limits)
        return drafts.read(connection, study, version, user)


@router.post("/studies/{study}/looked", tags=["drafts"])
def look(study: str, body: LookedAt, user: CurrentUser, station: CurrentStation) -> dict[str, Any]:
    """Record that this reader looked at sentences. Signing requires it for every flagged sentence."""
    with held_study(station, study, user) as connection:
        drafts.mark_reviewed(connection, study, body.version, body.sentences, user)
        return drafts.read(connection, study, body.version, user)


@router.post("/studies/{study}/sign", tags=["drafts"])
def sign(study: str, body: Signature, user: CurrentUser, station: CurrentStation) -> dict[str, Any]:
    """Sign the newest version. It ends the lock of the study.

    409 if another reader has the study in hand, the user has not looked at a flagged sentence (``got`` has the keys),
    or the study is signed or rejected; 400 if the report is empty, or holds invisible characters or ones that an export
    cannot carry.
    """
    with held_study(station, study, user) as connection:
        seconds = body.seconds
        if seconds is None:
            opened = log.first(connection, OPENED, user=user.id, study=study)
            seconds = 0.0 if opened is None else max(0.0, (now() - opened).total_seconds())
        signature = drafts.sign(connection, study, body.version, seconds, user)
        locks.release(connection, study)
    return {"signature": signature, "notice": RESEARCH_ONLY}


@router.post("/studies/{study}/addenda", tags=["drafts"], status_code=201)
def add(study: str, body: Addendum, user: CurrentUser, station: CurrentStation) -> dict[str, Any]:
    """Sign an addendum to a signed report, which itself does not change. 409 if another addendum came first.

    The report with its addendum is sent to the targets of the report.
    """
    most = station.settings.limits.draft_characters
    with (
        _noting_altered(station, study, user),
        visible_study(station.database.writing(), study, user) as (connection, _),
    ):
        drafts.add_addendum(connection, study, body.after, body.text, user, most=most)
        return {"addenda": drafts.addenda_json(connection, study), "notice": RESEARCH_ONLY}


@contextmanager
def _noting_altered(station: Station, study: str, user: User) -> Iterator[None]:
    """Log a refusal of a report that differs from the signed one."""
    try:
        yield
    except drafts.AlteredError as error:
        with station.database.writing() as connection:
            drafts.note_altered(connection, study, error, user=user.id)
        raise


@router.post("/studies/{study}/reject", tags=["drafts"])
def reject(study: str, body: Rejection, user: CurrentUser, station: CurrentStation) -> dict[str, Any]:
    """Reject the newest version with a reason. It is not exported, and archives that received it get a notice.

    409 if it is not the newest version, the study is signed, or another reader has it in hand.
    """
    with held_study(station, study, user) as connection:
        drafts.reject(connection, study, body.version, body.reason, user)
        locks.release(connection, study)
        return work_list.study_json(station, connection, find_study(connection, study, user), user)


@router.post("/studies/{study}/reopen", tags=["drafts"])
def reopen(study: str, body: Reopening, user: CurrentUser, station: CurrentStation) -> dict[str, Any]:
    """Reopen a rejected draft. Allowed to the author of the rejection and to admins."""
    with visible_study(station.database.writing(), study, user) as (connection, _):
        try:
            drafts.reopen(connection, study, body.version, user)
        except PermissionError as error:
            raise HTTPException(403, str(error)) from None
        return work_list.study_json(station, connection, find_study(connection, study, user), user)


@router.post("/studies/{study}/lock", tags=["studies"])
def lock(study: str, body: LockRequest, user: CurrentUser, station: CurrentStation) -> dict[str, Any]:
    """Hold a study for editing, or hold it longer.

    409 if another reader has it in hand (``got``); with ``instead_of`` it is taken over, which the log records.
    A lock ends with a signature, a rejection, a logout, or after a time without a request that holds or changes the
    study.
    """
    with visible_study(station.database.writing(), study, user) as (connection, row):
        if row.state not in drafts.EDITABLE:
            expected = " or ".join(drafts.EDITABLE)
            raise drafts.ConflictError("cannot be edited", field="state", got=row.state, expected=expected)
        locks.acquire(connection, study, user, idle_s=station.settings.idle_s, instead_of=body.instead_of)
        return {"holder": work_list.study_json(station, connection, row, user)["holder"]}


@router.delete("/studies/{study}/lock", tags=["studies"], status_code=204)
def unlock(study: str, user: CurrentUser, station: CurrentStation) -> None:
    """Leave a study that one has in hand; else nothing changes."""
    with visible_study(station.database.writing(), study, user) as (connection, _):
        locks.release(connection, study, user)


@router.put("/studies/{study}/priority", tags=["studies"])
def set_priority(study: str, body: NewPriority, user: CurrentUser, station: CurrentStation) -> dict[str, Any]:
    """Set the priority of a study."""
    with visible_study(station.database.writing(), study, user) as (connection, _):
        store.set_priority(connection, study, body.priority, user)
    return {"id": study, "priority": body.priority}


@router.post("/studies/{study}/cancel", tags=["studies"])
def cancel(study: str, user: CurrentUser, station: CurrentStation) -> dict[str, Any]:
    """Remove a study from the queue, or discard the draft in progress."""
    with station.database.reading() as connection:
        row = find_study(connection, study, user)
    if not station.cancel(study, user):
        raise drafts.ConflictError("cannot be cancelled", field="state", got=row.state, expected="waiting or drafting")
    return {"id": study, "state": "refused", "reason": store.CANCELLED}


@router.post("/studies/{study}/anyway", tags=["studies"], status_code=202)
def draft_anyway(study: str, body: Anyway, user: CurrentUser, station: CurrentStation) -> dict[str, Any]:
    """Override a refusal and queue the study. 403 if the role does not suffice, 409 if it cannot be overridden."""
    with visible_study(station.database.writing(), study, user) as (connection, row):
        try:
            drafts.override_refusal(connection, row, body.refusal, user)
        except drafts.NotAllowedError as error:
            raise HTTPException(403, str(error)) from None
    station.inference.wake()
    return {"id": study, "state": "waiting"}


@router.get("/studies/{study}/log", tags=["log"])
def study_log(
    study: str, user: CurrentUser, station: CurrentStation, offset: Offset = 0, limit: Limit = 50
) -> dict[str, Any]:
    """Log entries of a study."""
    with visible_study(station.database.reading(), study, user) as (connection, _):
        return {"entries": log.entries(connection, study=study, offset=offset, limit=limit)}


@router.get("/log", tags=["log"])
def whole_log(
    user: Admin, station: CurrentStation, offset: Offset = 0, limit: Limit = 50, newest_first: bool = False
) -> dict[str, Any]:
    """The whole log."""
    with station.database.reading() as connection:
        entries = log.entries(connection, study=None, offset=offset, limit=limit, newest_first=newest_first)
    return {"entries": entries}


@router.get("/learning", tags=["log"])
def read_learning(user: Admin, station: CurrentStation) -> dict[str, Any]:
    """Figures of what readers change in drafts, each with its count and interval, and nothing of too few studies."""
    with station.report_slots.slot(), station.database.reading() as connection:
        return learning.read_figures(connection, station.signed_pairs)


@router.get("/reader-study", tags=["log"])
def read_reader_study(user: Admin, station: CurrentStation) -> dict[str, Any]:
    """Time, changed words and agreement with references of studies that were read with and without their draft."""
    with station.report_slots.slot(), station.database.reading() as connection:
        labeler = get_labeler(LABELER_OF[station.modality])
        return reader_study.figures(reader_study.readings(connection, labeler, station.reference))


@router.get("/status", tags=["studies"])
def status(user: CurrentUser, station: CurrentStation) -> dict[str, Any]:
    """Readiness and model; for admins also storage and the losses of inference processes, the newest first."""
    answer: dict[str, Any] = {"ready": station.inference.is_ready, "model": station.model}
    if user.is_admin:
        answer["storage"] = station.disk.figures()
        answer["problem"] = station.inference.problem
        answer["lost"] = [
            {"time": one.time.isoformat(), "reason": one.reason, "studies": one.studies}
            for one in reversed(station.inference.reasons)
        ]
    return answer


@router.get("/log/check", tags=["log"])
def check_log(user: Admin, station: CurrentStation) -> dict[str, Any]:
    """Check the hash chain of the log, and signed reports against it (``altered_at``)."""
    with station.database.reading() as connection:
        checked = drafts.verify(connection)
    return {
        "entries": checked.entries,
        "hash": checked.hash,
        "broken_at": checked.broken,
        "altered_at": list(checked.altered),
    }


@probes.get("/healthz", tags=["probes"])
async def health() -> dict[str, Any]:
    """Liveness. It needs no thread, since requests may occupy all of them."""
    return {"status": "ok"}


@probes.get("/readyz", tags=["probes"])
def ready(station: CurrentStation) -> dict[str, Any]:
    """Readiness: 503 while the model is loading, or the server stops."""
    _states(station)
    if not station.inference.is_ready:
        raise HTTPException(503, "stopping" if station.inference.is_stopping else "the model is not loaded")
    return {"status": "ready"}


@probes.get("/metrics", tags=["probes"])
def metrics(station: CurrentStation) -> PlainTextResponse:
    """Metrics for Prometheus."""
    text = station.metrics.text(_states(station), station.disk.figures(), ready=station.inference.is_ready)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


def _states(station: Station) -> dict[str, int]:
    try:
        with station.database.reading() as connection:
            return store.counts(connection)
    except sa.exc.SQLAlchemyError:
        raise InputError("the database does not answer") from None


# Accounts: passwords and revoked tokens.

TokenName = Annotated[str, Path(max_length=64)]


class NewPassword(Body):
    """Current and new password; users changing their own must give both."""

    old: str = Field(default="", max_length=users.LONGEST_PASSWORD)
    new: str = Field(max_length=users.LONGEST_PASSWORD)


@router.put("/users/{number}/password", tags=["users"], status_code=204)
def change_password(
    number: int, body: NewPassword, request: Request, user: CurrentUser, station: CurrentStation
) -> None:
    """Change one's own password, or as an admin another user's. The user's tokens and other sessions end."""
    _refuse_others(user, number)
    counted = login_limits(request)
    keys = {f"password {user.id}": counted.most}
    counted.begin(keys)
    with one_password(), station.database.writing() as connection:
        refuse_disabled(connection, user)
        if number not in users.user_names(connection):
            raise InputError("no such user", field="number", got=number)
        own = number == user.id
        is_asked = own and users.has_password(connection, number)
        if is_asked and users.by_password(connection, user.name, body.old) is None:
            raise InputError("is not the password", field="old")
        counted.succeed(keys)
        users.set_password(connection, number, body.new, keep=request.cookies.get(COOKIE, "") if own else "")
        log.append(connection, "password changed", user=user.id, details={"user": number})


@router.get("/users/{number}/tokens", tags=["users"])
def list_tokens(number: int, user: CurrentUser, station: CurrentStation) -> dict[str, Any]:
    """Names and times of a user's tokens. The tokens themselves are not stored."""
    _refuse_others(user, number)
    with station.database.reading() as connection:
        return {"tokens": users.tokens_of(connection, number)}


@router.delete("/users/{number}/tokens/{token}", tags=["users"], status_code=204)
def revoke(number: int, token: TokenName, request: Request, user: CurrentUser, station: CurrentStation) -> None:
    """Revoke a token. All other sessions of the user end, since the token may have opened them."""
    _refuse_others(user, number)
    keep = request.cookies.get(COOKIE, "") if number == user.id else ""
    with station.database.writing() as connection:
        refuse_disabled(connection, user)
        if not users.revoke_token(connection, number, token, keep=keep):
            raise HTTPException(404, "no such token")
        log.append(connection, "token revoked", user=user.id, details={"user": number})


def _refuse_others(user: User, number: int) -> None:
    if not user.is_admin and number != user.id:
        raise HTTPException(403, "this needs the role admin")


# Report template: an admin loads one, and the editor offers its headings and texts.

LONGEST: Final = 256 << 10
"""Characters of a template; those of RadReport have about ten thousand."""
_PARSE_S: Final = 10.0
_ONE: Final = 1


class NewTemplate(Body):
    """An MRRT template in HTML, of which only text is kept."""

    html: str = Field(max_length=LONGEST)


@router.get("/template", tags=["template"])
def read_template(user: CurrentUser, station: CurrentStation) -> dict[str, Any]:
    """The template: headings and default texts by section; null if none is loaded."""
    with station.database.reading() as connection:
        row = connection.execute(sa.select(templates)).first()
    return {"template": None if row is None else {"title": row.title, "sha256": row.sha256, "sections": row.sections}}


@router.put("/template", tags=["template"])
def load(body: NewTemplate, user: Admin, station: CurrentStation) -> dict[str, Any]:
    """Load an MRRT template and return the elements dropped from it. Scripts in it are not run."""
    with closing(Sandbox("radweave.workstation.mrrt_parse", size=1)) as limited:
        template, _ = limited.call("template", {"html": body.html}, timeout_s=_PARSE_S)
    sections = [
        {"section": name, "lines": [{key: line[key] for key in ("heading", "text")} for line in lines]}
        for name in SECTIONS
        if (lines := [line for line in template["lines"] if line["section"] == name])
    ]
    digest = sha256_bytes(body.html.encode("utf-8", "surrogatepass"))
    values = {"id": _ONE, "title": template["title"], "sections": sections, "sha256": digest, "loaded": now()}
    with station.database.writing() as connection:
        refuse_disabled(connection, user)
        connection.execute(templates.delete())
        connection.execute(templates.insert().values(values))
        log.append(
            connection, "template loaded", user=user.id, details={"sha256": digest, "lines": len(template["lines"])}
        )
    loaded = {"title": template["title"], "sha256": digest, "sections": sections}
    return {"template": loaded, "dropped": template["dropped"], "left_out": template["left_out"]}


@router.delete("/template", status_code=204, tags=["template"])
def remove(user: Admin, station: CurrentStation) -> None:
    """Remove the template."""
    with station.database.writing() as connection:
        refuse_disabled(connection, user)
        if connection.execute(templates.delete()).rowcount:
            log.append(connection, "template removed", user=user.id)


# Macros: abbreviations that the editor expands, of each user and of the site.

_OF_SITE: Final = 0
_MOST_MACROS: Final = 500
Abbreviation = Annotated[str, Field(pattern=r"^[^\s\[\]]{1,30}$")]


class NewMacros(Body):
    """All macros of a user or of the site, as text by abbreviation."""

    macros: dict[Abbreviation, Annotated[drafts.Words, Field(max_length=2_000)]] = Field(max_length=_MOST_MACROS)


@router.get("/macros", tags=["macros"])
def read_macros(user: CurrentUser, station: CurrentStation) -> dict[str, Any]:
    """Texts by abbreviation: the user's ``own``, and those of the ``site``. One's own come first."""
    with station.database.reading() as connection:
        texts = {row.owner: row.texts for row in connection.execute(sa.select(macros))}
    return {"own": texts.get(user.id, {}), "site": texts.get(_OF_SITE, {})}


@router.put("/macros/own", tags=["macros"], status_code=204)
def keep_own_macros(body: NewMacros, user: CurrentUser, station: CurrentStation) -> None:
    """Replace one's own macros."""
    _keep_macros(station, user, user.id, body)


@router.put("/macros/site", tags=["macros"], status_code=204)
def keep_site_macros(body: NewMacros, user: Admin, station: CurrentStation) -> None:
    """Replace the macros of the site."""
    _keep_macros(station, user, _OF_SITE, body)


def _keep_macros(station: Station, user: User, owner: int, body: NewMacros) -> None:
    with station.database.writing() as connection:
        refuse_disabled(connection, user)
        connection.execute(macros.delete().where(macros.c.owner == owner))
        connection.execute(macros.insert().values(owner=owner, texts=body.macros))
        details = {"of": "site" if owner == _OF_SITE else "user", "count": len(body.macros)}
        log.append(connection, "macros changed", user=user.id, details=details)


# The prior study, the changes from it, and its choice by a reader.

BY_DATASET, BY_ARCHIVE = "data set", "archive"
_MOST: Final = 50


class PriorChoice(Body):
    """The chosen prior, or null for none."""

    prior: str | None = Field(max_length=32)


@router.get("/studies/{study}/prior", tags=["priors"])
def read_prior(study: str, user: CurrentUser, station: CurrentStation) -> dict[str, Any]:
    """The prior study of the patient, its report, and the changes from it as read by rules.

    ``found_by`` is "headers", "hand", "archive" or "data set"; ``was_used`` is true if the draft was made with it.
    """
    with visible_study(station.database.reading(), study, user) as (connection, row):
        return {"prior": _prior(station, connection, row), "may_choose": _may_choose(row)}


@router.get("/studies/{study}/priors", tags=["priors"])
def list_choices(
    study: str, user: CurrentUser, station: CurrentStation, search: Annotated[str | None, Query(max_length=200)] = None
) -> dict[str, Any]:
    """Candidates for the prior: studies of the same owner, the newest first."""
    with visible_study(station.database.reading(), study, user) as (connection, row):
        candidates = related.choices(connection, row, search, _MOST) if _may_choose(row) else []
        return {
            "studies": [{**one, "name": work_list.study_name(station, one["id"], one["name"])} for one in candidates]
        }


@router.put("/studies/{study}/prior", tags=["priors"])
def choose_prior(study: str, body: PriorChoice, user: CurrentUser, station: CurrentStation) -> dict[str, Any]:
    """Choose the prior, or none. An existing draft does not change."""
    with visible_study(station.database.writing(), study, user) as (connection, row):
        locks.acquire(connection, study, user, idle_s=station.settings.idle_s)
        related.choose(connection, row, body.prior, user)
        return {"prior": _prior(station, connection, row), "may_choose": True}


def _may_choose(row: sa.Row[Any]) -> bool:
    return row.dataset_study is None and row.state in related.CHANGEABLE


def _prior(station: Station, connection: sa.Connection, row: sa.Row[Any]) -> dict[str, Any] | None:
    evidence_row = drafts.read_evidence(connection, row.id)
    used = ((evidence_row or {}).get("evidence", {}).get("study") or {}).get("prior") or {}
    if row.dataset_study is not None:
        if not used:
            return None
        more = {"id": None, "name": used["study_id"], "is_signed": True, "found_by": BY_DATASET, "days": None}
        changes = [] if reader_study.hides_draft(connection, row.id) else used["changes"]
        return {**more, "was_used": True, "report": used["report"], "changes": changes}
    prior = store.prior_of(connection, row.id)
    if prior is None or not prior.files:
        return None
    prior_json: dict[str, Any] = {
        "id": None, "name": "prior", "is_signed": True, "found_by": BY_ARCHIVE, "days": prior.days,
        "was_used": related.is_as_drafted(connection, row.id), "report": prior.report, "changes": [],
    }  # fmt: skip
    own = related.prior_of(connection, row.id)
    if own is not None and prior.files == tuple(store.uploaded(connection, own.id)):
        text, is_signed = related.text_of(connection, own)
        name = work_list.study_name(station, own.id, own.name)
        prior_json |= {"id": own.id, "name": name, "is_signed": is_signed, "found_by": own.found_by, "report": text}
    if prior_json["report"] and row.version and not reader_study.hides_draft(connection, row.id):
        labeler = get_labeler(LABELER_OF[station.modality])
        drafted = drafts.read(connection, row.id, drafts.drafted_version(connection, row.id))["text"]
        now = find_support(Report(drafted, row.id), labeler)
        prior_json["changes"] = changes_from_prior(now, read_prior_states(prior_json["report"], labeler))
    return prior_json
