"""The study before one over the interface: which it is, what changed since, and another choice."""

from __future__ import annotations

from typing import Annotated, Any, Final

import sqlalchemy as sa
from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from radweave.base.study import Report
from radweave.explain.support import find_support
from radweave.labels import LABELER_OF, get_labeler
from radweave.serve import drafts, linked, store
from radweave.serve.access import Asking, Here
from radweave.serve.api import find_study
from radweave.serve.since_prior import changes, said_before
from radweave.serve.station import Station

router = APIRouter(prefix="/api/v1", tags=["priors"])
BY_DATASET, BY_ARCHIVE = "data set", "archive"
_MOST: Final = 50


class Choice(BaseModel):
    """The study that is the prior; none, where ``prior`` is null."""

    model_config = ConfigDict(extra="forbid")
    prior: str | None = Field(max_length=32)


@router.get("/studies/{study}/prior")
def read_prior(study: str, user: Asking, here: Here) -> dict[str, Any]:
    """The patient's study before this one, how it was found, its text, and what changed since, read by rules.

    ``found_by`` is "headers", "hand", "archive" or "data set"; ``was_used`` whether the draft was made with it.
    """
    with here.database.reading() as connection:
        row = find_study(connection, study, user)
        return {"prior": _prior(here, connection, row), "may_choose": _may_choose(row)}


@router.get("/studies/{study}/priors")
def list_choices(
    study: str, user: Asking, here: Here, search: Annotated[str | None, Query(max_length=200)] = None
) -> dict[str, Any]:
    """Studies that may be chosen as the prior: of the same owner, the newest first."""
    with here.database.reading() as connection:
        row = find_study(connection, study, user)
        return {"studies": linked.choices(connection, row, search, _MOST) if _may_choose(row) else []}


@router.put("/studies/{study}/prior")
def choose_prior(study: str, given: Choice, user: Asking, here: Here) -> dict[str, Any]:
    """Choose the prior, or say that there is none. A draft that is there stays as it is."""
    with here.database.writing() as connection:
        row = find_study(connection, study, user)
        linked.choose(connection, row, given.prior, user)
        return {"prior": _prior(here, connection, row), "may_choose": True}


def _may_choose(row: sa.Row[Any]) -> bool:
    return row.dataset_study is None and row.state in linked.CHANGEABLE


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
        "was_used": linked.is_as_drafted(connection, row.id), "report": prior.report, "changes": [],
    }  # fmt: skip
    own = linked.prior_of(connection, row.id)
    if own is not None and prior.files == tuple(store.uploaded(connection, own.id)):
        text, is_signed = linked.text_of(connection, own)
        found |= {"id": own.id, "name": own.name, "is_signed": is_signed, "found_by": own.found_by, "report": text}
    if found["report"] and row.version:
        labeler = get_labeler(LABELER_OF[here.modality])
        drafted = drafts.read(connection, row.id, drafts.drafted_version(connection, row.id))["text"]
        now = find_support(Report(drafted, row.id), labeler)
        found["changes"] = changes(now, said_before(found["report"], labeler))
    return found
