"""The work list, drafts, edits and signatures as JSON, under ``/api/v1``. Every answer with a draft has the notice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated, Any, Final, Literal

import sqlalchemy as sa
from fastapi import APIRouter, HTTPException, Path, Query, Request
from fastapi.responses import PlainTextResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile

from radweave.core.errors import InputError
from radweave.core.storage import sha256_bytes
from radweave.core.study import RESEARCH_ONLY, Report
from radweave.inference.explain.support import find_support
from radweave.io.sandbox import Sandbox
from radweave.labels import LABELER_OF, get_labeler
from radweave.workstation import drafts, log, outbox, related, store, users
from radweave.workstation import drafts as anyway
from radweave.workstation import drafts as signed
from radweave.workstation.access import COOKIE, Admin, Asking, Here, one_password, refuse_disabled, station, tries
from radweave.workstation.database import now, templates
from radweave.workstation.drafts import SECTIONS, Edit
from radweave.workstation.formats import FORMATS, MAPS, MEDIA_TYPES
from radweave.workstation.reports import stored_report, with_images
from radweave.workstation.result import changes, said_before
from radweave.workstation.station import Station
from radweave.workstation.uploads import from_stream
from radweave.workstation.users import User, user_names

router = APIRouter(prefix="/api/v1")
probes = APIRouter()
State = Literal["waiting", "drafting", "drafted", "edited", "signed", "refused", "rejected"]
Limit = Annotated[int, Query(ge=1, le=200)]
Offset = Annotated[int, Query(ge=0, le=1 << 31)]
_SECONDS_OF_A_DAY = 86_400
_LONGEST_REASON = 500
OPENED = "opened"


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Edits(_Body):
    """Edits of the version that the reader saw."""

    version: int
    edits: list[Edit] = Field(min_length=1, max_length=500)


class Looked(_Body):
    """Sentences of the version that the reader looked at."""

    version: int
    sentences: list[int] = Field(min_length=1, max_length=500)


class Signature(_Body):
    """The version that is signed. ``seconds`` is the time spent on it, else that since it was first opened."""

    version: int
    seconds: float | None = Field(default=None, ge=0, le=_SECONDS_OF_A_DAY)


class Addendum(_Body):
    """A text for a signed report. ``after`` is the number of addenda that the reader saw."""

    after: int = Field(ge=0)
    text: drafts.Words


class Rejection(_Body):
    """Why the version is no report."""

    version: int
    reason: drafts.Words = Field(max_length=_LONGEST_REASON)


class Reopening(_Body):
    """The version that was rejected."""

    version: int


class Anyway(_Body):
    """The refusal that the reader saw, so that nobody confirms another one."""

    refusal: str = Field(max_length=20)


def find_study(connection: sa.Connection, study: str, user: User) -> sa.Row[Any]:
    """A study that this user may see; for all others there is none."""
    refuse_disabled(connection, user)
    found = store.find(connection, study, user)
    if found is None:
        raise HTTPException(404, "no such study")
    return found


@router.post("/studies", tags=["studies"], status_code=202)
async def submit(request: Request, user: Asking) -> dict[str, Any]:
    """Files of one or more studies, as the parts ``files`` of a form; a folder's files, or ZIP archives of them.

    ``one_study=true`` says that all of them are views of one study. The header ``Idempotency-Key`` makes a request that
    is sent twice count once.
    """
    here = station(request)
    await run_in_threadpool(here.refuse_where_full)
    key = request.headers.get("idempotency-key")
    async with request.form(max_files=here.settings.limits.files, max_fields=16) as form:
        incoming = [
            from_stream(part.filename or "file", part.file)
            for part in form.getlist("files")
            if isinstance(part, UploadFile)
        ]
        one = form.get("one_study") == "true"
        await run_in_threadpool(_refuse_disabled, here, user)  # sending files takes time
        ids = await run_in_threadpool(here.submit, incoming, owner=user.id, one_study=one, key=key)
    return {"studies": ids}


def _refuse_disabled(here: Station, user: User) -> None:
    with here.database.reading() as connection:
        refuse_disabled(connection, user)


@router.get("/studies", tags=["studies"])
def work_list(
    user: Asking,
    here: Here,
    state: State | None = None,
    search: Annotated[str | None, Query(max_length=200)] = None,
    offset: Offset = 0,
    limit: Limit = 50,
) -> dict[str, Any]:
    """The work list, the newest first."""
    with here.database.reading() as connection:
        total, found = store.work_list(connection, user, state=state, search=search, offset=offset, limit=limit)
        found, counts = anyway.mark(connection, found), store.counts(connection, user)
    return {"total": total, "offset": offset, "studies": found, "counts": counts}


@router.get("/studies/{study}", tags=["studies"])
def read(study: str, user: Asking, here: Here) -> dict[str, Any]:
    """A study with its newest draft: each sentence with its origin, its probability, who changed it.

    ``altered_at`` is the log's entry of what was signed, where this is not what was signed.
    """
    with here.database.reading() as connection:
        row = find_study(connection, study, user)
        answer = {**store.as_json(row), "files": store.file_names(connection, study), "notice": RESEARCH_ONLY}
        answer.update(anyway.anyway_json(connection, row, user))
        if row.version == 0:
            return answer
        answer["draft"] = drafts.read(connection, study, row.version, user)
        answer["signature"] = drafts.read_signature(connection, study)
        answer["addenda"] = signed.as_json(connection, study)
        answer["rejection"] = _rejection(connection, row, user)
        answer["altered_at"] = _altered_at(connection, study)
        given = drafts.read_evidence(connection, study)
        assert given is not None, "a draft has its evidence"
        answer.update({name: given[name] for name in ("findings", "warnings", "model")})
    log.note_first(here.database, OPENED, user=user.id, study=study, version=row.version)
    return answer


def _rejection(connection: sa.Connection, row: sa.Row[Any], user: User) -> dict[str, Any] | None:
    """Who rejected a draft and when, and whether this user may reopen it; None where it is not rejected."""
    entry = drafts.rejection(connection, row.id) if row.state == "rejected" else None
    if entry is None:
        return None
    name = user_names(connection).get(entry.user_id)
    return {"user": name, "time": entry.time.isoformat(), "may_reopen": user.is_admin or user.id == entry.user_id}


def _altered_at(connection: sa.Connection, study: str) -> int | None:
    """The log's entry of what was signed where the database holds something else; None where it is as it was signed."""
    try:
        signed.check(connection, study)
    except signed.AlteredError as error:
        return error.entry
    return None


@router.get("/studies/{study}/evidence", tags=["studies"])
def evidence(study: str, user: Asking, here: Here) -> dict[str, Any]:
    """All that the model gave with its draft: probabilities, recalled cases, maps."""
    with here.database.reading() as connection:
        find_study(connection, study, user)
        given = drafts.read_evidence(connection, study)
    if given is None:
        raise HTTPException(404, "there is no draft")
    log.note_first(here.database, OPENED, user=user.id, study=study)
    return {**given, "notice": RESEARCH_ONLY}


@router.get("/studies/{study}/report", tags=["studies"])
def report(
    study: str, user: Asking, here: Here, format: Annotated[str, Query(pattern="^[a-z0-9-]{1,20}$")] = "pdf"
) -> Response:
    """The newest version as other systems read it, with its addenda. 409 of what was rejected, or was altered.

    pdf, text, fhir, fhir-r5, hl7, sr-basic, sr-tid1500, pdf-dicom or map-dicom.
    """
    if format not in FORMATS:
        raise InputError("no such format", field="format", expected=", ".join(FORMATS))
    with here.database.reading() as connection:
        row = find_study(connection, study, user)
        if row.version == 0:
            raise HTTPException(404, "there is no draft")
        with _noting_altered(here, study, user):
            stored = stored_report(connection, row, row.version)
    with here.reports.one():
        data = FORMATS[format].bytes_of(with_images(stored, maps=format == MAPS))
    with here.database.writing() as connection:
        details = {"format": format, "version": row.version}
        log.append(connection, "report taken", user=user.id, study=study, details=details)
    name = f"report{FORMATS[format].suffix}"
    return Response(
        data,
        media_type=MEDIA_TYPES[FORMATS[format].suffix],
        headers={"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "private, no-store"},
    )


@router.get("/studies/{study}/sent", tags=["studies"])
def sent(study: str, user: Asking, here: Here) -> list[dict[str, Any]]:
    """What is to be sent of a study to archives, and what has been, with its receipt."""
    with here.database.reading() as connection:
        find_study(connection, study, user)
        return outbox.of_study(connection, study)


@router.get("/studies/{study}/versions/{version}", tags=["studies"])
def read_version(study: str, version: int, user: Asking, here: Here) -> dict[str, Any]:
    """An older draft; version 1 is the model's, and ``drafted`` its newest."""
    with here.database.reading() as connection:
        find_study(connection, study, user)
        found = drafts.read(connection, study, version, user)
    log.note_first(here.database, OPENED, user=user.id, study=study, version=version)
    return found


@router.patch("/studies/{study}/sentences", tags=["drafts"])
def edit(study: str, given: Edits, user: Asking, here: Here) -> dict[str, Any]:
    """Replace, remove, insert sentences, or restore an older version. 409 where another edit came first."""
    with here.database.writing() as connection:
        find_study(connection, study, user)
        version = drafts.edit(connection, study, given.version, given.edits, user, here.settings.limits)
        return drafts.read(connection, study, version, user)


@router.post("/studies/{study}/looked", tags=["drafts"])
def look(study: str, given: Looked, user: Asking, here: Here) -> dict[str, Any]:
    """Say that this reader looked at sentences; signing asks that of who signs, for every flagged one."""
    with here.database.writing() as connection:
        find_study(connection, study, user)
        drafts.look(connection, study, given.version, given.sentences, user)
        return drafts.read(connection, study, given.version, user)


@router.post("/studies/{study}/sign", tags=["drafts"])
def sign(study: str, given: Signature, user: Asking, here: Here) -> dict[str, Any]:
    """Sign the newest version.

    409 where who signs has not looked at a flagged sentence (``got`` has the keys), or it is signed or rejected; 400
    where it is empty, or holds signs that are not seen or that an export cannot carry.
    """
    with here.database.writing() as connection:
        find_study(connection, study, user)
        seconds = given.seconds
        if seconds is None:
            opened = log.first(connection, OPENED, user=user.id, study=study)
            seconds = 0.0 if opened is None else max(0.0, (now() - opened).total_seconds())
        kept = drafts.sign(connection, study, given.version, seconds, user)
    return {"signature": kept, "notice": RESEARCH_ONLY}


@router.post("/studies/{study}/addenda", tags=["drafts"], status_code=201)
def add(study: str, given: Addendum, user: Asking, here: Here) -> dict[str, Any]:
    """Sign an addendum to a signed report, whose own text stays. 409 where another addendum came first.

    It is sent, with the report, to where the report was sent.
    """
    most = here.settings.limits.draft_characters
    with _noting_altered(here, study, user), here.database.writing() as connection:
        find_study(connection, study, user)
        signed.add(connection, study, given.after, given.text, user, most=most)
        return {"addenda": signed.as_json(connection, study), "notice": RESEARCH_ONLY}


@contextmanager
def _noting_altered(here: Station, study: str, user: User) -> Iterator[None]:
    """Log a refusal of what is not what was signed."""
    try:
        yield
    except signed.AlteredError as error:
        with here.database.writing() as connection:
            signed.note_altered(connection, study, error, user=user.id)
        raise


@router.post("/studies/{study}/reject", tags=["drafts"])
def reject(study: str, given: Rejection, user: Asking, here: Here) -> dict[str, Any]:
    """Reject the newest version of a draft, with the reason. It is not exported; an archive that has it gets a notice.

    409 where it is not the newest version, or the study is signed.
    """
    with here.database.writing() as connection:
        find_study(connection, study, user)
        drafts.reject(connection, study, given.version, given.reason, user)
        return store.as_json(find_study(connection, study, user))


@router.post("/studies/{study}/reopen", tags=["drafts"])
def reopen(study: str, given: Reopening, user: Asking, here: Here) -> dict[str, Any]:
    """Take a rejection back: for who rejected the draft, and for admins."""
    with here.database.writing() as connection:
        find_study(connection, study, user)
        try:
            drafts.reopen(connection, study, given.version, user)
        except PermissionError as error:
            raise HTTPException(403, str(error)) from None
        return store.as_json(find_study(connection, study, user))


@router.post("/studies/{study}/cancel", tags=["studies"])
def cancel(study: str, user: Asking, here: Here) -> dict[str, Any]:
    """Take a study off the queue, or drop the draft that is being written."""
    with here.database.reading() as connection:
        row = find_study(connection, study, user)
    if not here.cancel(study, user):
        raise signed.ConflictError("cannot be cancelled", field="state", got=row.state, expected="waiting or drafting")
    return {"id": study, "state": "refused", "reason": store.CANCELLED}


@router.post("/studies/{study}/anyway", tags=["studies"], status_code=202)
def draft_anyway(study: str, given: Anyway, user: Asking, here: Here) -> dict[str, Any]:
    """Let a refused study wait for its draft all the same; 403 where the role does not reach, 409 where it cannot."""
    with here.database.writing() as connection:
        row = find_study(connection, study, user)
        try:
            anyway.ask(connection, row, given.refusal, user)
        except anyway.NotAllowedError as error:
            raise HTTPException(403, str(error)) from None
    here.inference.wake()
    return {"id": study, "state": "waiting"}


@router.get("/studies/{study}/log", tags=["log"])
def study_log(study: str, user: Asking, here: Here, offset: Offset = 0, limit: Limit = 50) -> dict[str, Any]:
    """Who did what with a study."""
    with here.database.reading() as connection:
        find_study(connection, study, user)
        return {"entries": log.entries(connection, study=study, offset=offset, limit=limit)}


@router.get("/log", tags=["log"])
def whole_log(
    user: Admin, here: Here, offset: Offset = 0, limit: Limit = 50, newest_first: bool = False
) -> dict[str, Any]:
    """The whole log."""
    with here.database.reading() as connection:
        found = log.entries(connection, study=None, offset=offset, limit=limit, newest_first=newest_first)
    return {"entries": found}


@router.get("/status", tags=["studies"])
def status(user: Asking, here: Here) -> dict[str, Any]:
    """Whether studies are drafted now; for an admin also why inference processes were lost, the newest first."""
    answer: dict[str, Any] = {"ready": here.inference.is_ready, "model": here.model}
    if user.is_admin:
        answer["storage"] = here.room.figures()
        answer["problem"] = here.inference.problem
        answer["lost"] = [
            {"time": one.time.isoformat(), "reason": one.reason, "studies": one.studies}
            for one in reversed(here.inference.reasons)
        ]
    return answer


@router.get("/log/check", tags=["log"])
def check_log(user: Admin, here: Here) -> dict[str, Any]:
    """Whether every entry holds the hash of the one before, and what was signed is as the log says (``altered_at``)."""
    found = here.check_log()
    return {"entries": found.entries, "hash": found.hash, "broken_at": found.broken, "altered_at": list(found.altered)}


@probes.get("/healthz", tags=["probes"])
async def health() -> dict[str, Any]:
    """Whether the server answers; without a thread, of which others may hold all."""
    return {"status": "ok"}


@probes.get("/readyz", tags=["probes"])
def ready(here: Here) -> dict[str, Any]:
    """Whether it drafts: 503 while the model is loaded, or the server stops."""
    _states(here)
    if not here.inference.is_ready:
        raise HTTPException(503, "stopping" if here.inference.is_stopping else "the model is not loaded")
    return {"status": "ready"}


@probes.get("/metrics", tags=["probes"])
def metrics(here: Here) -> PlainTextResponse:
    """Figures for Prometheus."""
    text = here.metrics.text(_states(here), here.room.figures(), ready=here.inference.is_ready)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


def _states(here: Station) -> dict[str, int]:
    try:
        with here.database.reading() as connection:
            return store.counts(connection)
    except sa.exc.SQLAlchemyError:
        raise InputError("the database does not answer") from None


# What users change of their own way in: passwords, and tokens that are taken back.


TokenName = Annotated[str, Path(max_length=64)]


class _AccountBody(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NewPassword(_AccountBody):
    """The password that there is (for one's own, where there is one), and the one to come."""

    old: str = Field(default="", max_length=users.LONGEST_PASSWORD)
    new: str = Field(max_length=users.LONGEST_PASSWORD)


@router.put("/users/{number}/password", tags=["users"], status_code=204)
def change_password(number: int, given: NewPassword, request: Request, user: Asking, here: Here) -> None:
    """Change one's own password, or as an admin another user's. All tokens and other sessions of that user end."""
    _refuse_others(user, number)
    counted = tries(request)
    keys = {f"password {user.id}": counted.most}
    counted.begin(keys)
    with one_password(), here.database.writing() as connection:
        refuse_disabled(connection, user)
        _there(users.user_names(connection), number)
        own = number == user.id
        is_asked = own and users.has_password(connection, number)
        if is_asked and users.by_password(connection, user.name, given.old) is None:
            raise InputError("is not the password", field="old")
        counted.succeed(keys)
        users.set_password(connection, number, given.new, keep=request.cookies.get(COOKIE, "") if own else "")
        log.append(connection, "password changed", user=user.id, details={"user": number})


@router.get("/users/{number}/tokens", tags=["users"])
def list_tokens(number: int, user: Asking, here: Here) -> dict[str, Any]:
    """The tokens of a user; of each its name and its time, for the token itself is not kept."""
    _refuse_others(user, number)
    with here.database.reading() as connection:
        return {"tokens": users.tokens_of(connection, number)}


@router.delete("/users/{number}/tokens/{token}", tags=["users"], status_code=204)
def revoke(number: int, token: TokenName, request: Request, user: Asking, here: Here) -> None:
    """Take a token back. All other sessions of that user end, for they may have been opened with it."""
    _refuse_others(user, number)
    keep = request.cookies.get(COOKIE, "") if number == user.id else ""
    with here.database.writing() as connection:
        refuse_disabled(connection, user)
        if not users.revoke_token(connection, number, token, keep=keep):
            raise HTTPException(404, "no such token")
        log.append(connection, "token revoked", user=user.id, details={"user": number})


def _refuse_others(user: User, number: int) -> None:
    if not user.is_admin and number != user.id:
        raise HTTPException(403, "this needs the role admin")


def _there(names: dict[int | None, str], number: int) -> None:
    if number not in names:
        raise InputError("no such user", field="number", got=number)


# The template of a report, over the interface: an admin loads one, and the editor offers its headings and texts.


LONGEST: Final = 256 << 10
"""Characters of a template; RadReport's have some ten thousand."""
_PARSE_S: Final = 10.0
_ONE: Final = 1


class Loaded(BaseModel):
    """A template as it came: HTML, of which nothing but text is kept."""

    model_config = ConfigDict(extra="forbid")
    html: str = Field(max_length=LONGEST)


@router.get("/template", tags=["template"])
def read_template(user: Asking, here: Here) -> dict[str, Any]:
    """The template, by sections: headings, and the text that each begins with; null where none was loaded."""
    with here.database.reading() as connection:
        row = connection.execute(sa.select(templates)).first()
    return {"template": None if row is None else {"title": row.title, "sha256": row.sha256, "sections": row.sections}}


@router.put("/template", tags=["template"])
def load(given: Loaded, user: Admin, here: Here) -> dict[str, Any]:
    """Read an MRRT template in place of the one that is there; say what of it was dropped. Nothing in it runs."""
    with closing(Sandbox("radweave.workstation.mrrt_parse", size=1)) as limited:
        found, _ = limited.call("template", {"html": given.html}, timeout_s=_PARSE_S)
    sections = [
        {"section": name, "lines": [{key: line[key] for key in ("heading", "text")} for line in lines]}
        for name in SECTIONS
        if (lines := [line for line in found["lines"] if line["section"] == name])
    ]
    digest = sha256_bytes(given.html.encode("utf-8", "surrogatepass"))
    values = {"id": _ONE, "title": found["title"], "sections": sections, "sha256": digest, "loaded": now()}
    with here.database.writing() as connection:
        refuse_disabled(connection, user)
        connection.execute(templates.delete())
        connection.execute(templates.insert().values(values))
        log.append(
            connection, "template loaded", user=user.id, details={"sha256": digest, "lines": len(found["lines"])}
        )
    kept = {"title": found["title"], "sha256": digest, "sections": sections}
    return {"template": kept, "dropped": found["dropped"], "left_out": found["left_out"]}


@router.delete("/template", status_code=204, tags=["template"])
def remove(user: Admin, here: Here) -> None:
    """Work without a template."""
    with here.database.writing() as connection:
        refuse_disabled(connection, user)
        if connection.execute(templates.delete()).rowcount:
            log.append(connection, "template removed", user=user.id)


# The study before one over the interface: which it is, what changed since, and another choice.


BY_DATASET, BY_ARCHIVE = "data set", "archive"
_MOST: Final = 50


class Choice(BaseModel):
    """The study that is the prior; none, where ``prior`` is null."""

    model_config = ConfigDict(extra="forbid")
    prior: str | None = Field(max_length=32)


@router.get("/studies/{study}/prior", tags=["priors"])
def read_prior(study: str, user: Asking, here: Here) -> dict[str, Any]:
    """The patient's study before this one, how it was found, its text, and what changed since, read by rules.

    ``found_by`` is "headers", "hand", "archive" or "data set"; ``was_used`` whether the draft was made with it.
    """
    with here.database.reading() as connection:
        row = find_study(connection, study, user)
        return {"prior": _prior(here, connection, row), "may_choose": _may_choose(row)}


@router.get("/studies/{study}/priors", tags=["priors"])
def list_choices(
    study: str, user: Asking, here: Here, search: Annotated[str | None, Query(max_length=200)] = None
) -> dict[str, Any]:
    """Studies that may be chosen as the prior: of the same owner, the newest first."""
    with here.database.reading() as connection:
        row = find_study(connection, study, user)
        return {"studies": related.choices(connection, row, search, _MOST) if _may_choose(row) else []}


@router.put("/studies/{study}/prior", tags=["priors"])
def choose_prior(study: str, given: Choice, user: Asking, here: Here) -> dict[str, Any]:
    """Choose the prior, or say that there is none. A draft that is there stays as it is."""
    with here.database.writing() as connection:
        row = find_study(connection, study, user)
        related.choose(connection, row, given.prior, user)
        return {"prior": _prior(here, connection, row), "may_choose": True}


def _may_choose(row: sa.Row[Any]) -> bool:
    return row.dataset_study is None and row.state in related.CHANGEABLE


def _prior(here: Station, connection: sa.Connection, row: sa.Row[Any]) -> dict[str, Any] | None:
    given = drafts.read_evidence(connection, row.id)
    used = ((given or {}).get("evidence", {}).get("study") or {}).get("prior") or {}
    if row.dataset_study is not None:
        if not used:
            return None
        more = {"id": None, "name": used["study_id"], "is_signed": True, "found_by": BY_DATASET, "days": None}
        return {**more, "was_used": True, "report": used["report"], "changes": used["changes"]}
    prior = store.prior_of(connection, row.id)
    if prior is None or not prior.files:
        return None
    found: dict[str, Any] = {
        "id": None, "name": "prior", "is_signed": True, "found_by": BY_ARCHIVE, "days": prior.days,
        "was_used": related.is_as_drafted(connection, row.id), "report": prior.report, "changes": [],
    }  # fmt: skip
    own = related.prior_of(connection, row.id)
    if own is not None and prior.files == tuple(store.uploaded(connection, own.id)):
        text, is_signed = related.text_of(connection, own)
        found |= {"id": own.id, "name": own.name, "is_signed": is_signed, "found_by": own.found_by, "report": text}
    if found["report"] and row.version:
        labeler = get_labeler(LABELER_OF[here.modality])
        drafted = drafts.read(connection, row.id, drafts.drafted_version(connection, row.id))["text"]
        now = find_support(Report(drafted, row.id), labeler)
        found["changes"] = changes(now, said_before(found["report"], labeler))
    return found
