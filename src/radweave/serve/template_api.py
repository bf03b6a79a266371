"""The template of a report, over the interface: an admin loads one, and the editor offers its headings and texts."""

from __future__ import annotations

from contextlib import closing
from typing import Any, Final

import sqlalchemy as sa
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from radweave.base.hashes import sha256_bytes
from radweave.data.reading.sandbox import Sandbox
from radweave.serve import log
from radweave.serve.access import Admin, Asking, Here, refuse_disabled
from radweave.serve.schema import now, templates
from radweave.serve.signed import SECTIONS

router = APIRouter(prefix="/api/v1", tags=["template"])
LONGEST: Final = 256 << 10
"""Characters of a template; RadReport's have some ten thousand."""
_PARSE_S: Final = 10.0
_ONE: Final = 1


class Loaded(BaseModel):
    """A template as it came: HTML, of which nothing but text is kept."""

    model_config = ConfigDict(extra="forbid")
    html: str = Field(max_length=LONGEST)


@router.get("/template")
def read(user: Asking, here: Here) -> dict[str, Any]:
    """The template, by sections: headings, and the text that each begins with; null where none was loaded."""
    with here.database.reading() as connection:
        row = connection.execute(sa.select(templates)).first()
    return {"template": None if row is None else {"title": row.title, "sha256": row.sha256, "sections": row.sections}}


@router.put("/template")
def load(given: Loaded, user: Admin, here: Here) -> dict[str, Any]:
    """Read an MRRT template in place of the one that is there; say what of it was dropped. Nothing in it runs."""
    with closing(Sandbox("radweave.serve.mrrt_parse", size=1)) as limited:
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


@router.delete("/template", status_code=204)
def remove(user: Admin, here: Here) -> None:
    """Work without a template."""
    with here.database.writing() as connection:
        refuse_disabled(connection, user)
        if connection.execute(templates.delete()).rowcount:
            log.append(connection, "template removed", user=user.id)
