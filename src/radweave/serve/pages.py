"""The pages: frames that scripts of ours fill over the interface. Nothing that a file or a user says is put in here.

Who is not logged in comes to the login; a study that is not theirs is not there. Frames, scripts and styles lie in the
package: nothing is loaded from elsewhere, and nothing stands inline, which the content security policy forbids.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from fastapi import APIRouter, FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.staticfiles import StaticFiles

from radweave import __version__
from radweave.base.study import RESEARCH_ONLY
from radweave.serve import store
from radweave.serve.access import Here, current_user
from radweave.serve.settings import Limits
from radweave.serve.station import Station
from radweave.serve.users import LONGEST_PASSWORD, SHORTEST_PASSWORD, User

router = APIRouter(include_in_schema=False)
_HOME = "/studies"


@lru_cache(maxsize=1)
def _frames() -> Environment:
    loader = PackageLoader("radweave.serve", "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _page(name: str, here: Station, *, user: User | None, status: int = 200, **values: Any) -> HTMLResponse:
    """A frame with what all have: the notice, who looks at it, and what drafts here."""
    text = _frames().get_template(f"{name}.html.j2").render(
        notice=RESEARCH_ONLY, user=user, model=here.model, version=__version__, page=name, **values
    )  # fmt: skip
    return HTMLResponse(text, status)


def _looking(request: Request, here: Station) -> User | None:
    """Who is logged in with a browser: pages know no tokens of programs."""
    try:
        user = current_user(request, here)
    except HTTPException:
        return None
    return user if user.csrf is not None else None


def _to_login(request: Request) -> Response:
    """To the login, which comes back: our own paths hold nothing that needs to be quoted."""
    return RedirectResponse(f"/login?next={request.url.path}", 303)


@router.get("/")
def home() -> Response:
    return RedirectResponse(_HOME, 303)


@router.get("/login")
def login(request: Request, here: Here) -> Response:
    if _looking(request, here) is not None:
        return RedirectResponse(_HOME, 303)
    return _page("login", here, user=None)


@router.get("/studies")
def studies(request: Request, here: Here) -> Response:
    user = _looking(request, here)
    if user is None:
        return _to_login(request)
    limits: Limits = here.settings.limits
    return _page("studies", here, user=user, limits=limits, modality=here.modality)


@router.get("/studies/{study}")
def study(study: str, request: Request, here: Here) -> Response:
    user = _looking(request, here)
    if user is None:
        return _to_login(request)
    with here.database.reading() as connection:
        found = store.find(connection, study, user)
    if found is None:
        return _page("problem", here, user=user, status=404, reason="There is no such study, or it is not yours.")
    return _page("study", here, user=user, study=found.id, limits=here.settings.limits)


@router.get("/account")
def account(request: Request, here: Here) -> Response:
    user = _looking(request, here)
    if user is None:
        return _to_login(request)
    return _page("account", here, user=user, shortest=SHORTEST_PASSWORD, longest=LONGEST_PASSWORD)


@router.get("/log")
def log(request: Request, here: Here) -> Response:
    user = _looking(request, here)
    if user is None:
        return _to_login(request)
    if not user.is_admin:
        return _page("problem", here, user=user, status=403, reason="The log is for admins.")
    return _page("log", here, user=user)


def problem(request: Request, status: int, reason: str) -> HTMLResponse | None:
    """A refusal as a page, where a browser asked for one; None where a program did."""
    if request.url.path.startswith("/api/") or "text/html" not in request.headers.get("accept", ""):
        return None
    here: Station = request.app.state.station
    return _page("problem", here, user=_looking(request, here), status=status, reason=reason)


def add_pages(app: FastAPI) -> None:
    """The pages, and the files that they load."""
    app.include_router(router)
    app.mount(
        "/static", StaticFiles(packages=[("radweave.serve", "static"), ("radweave.viewer", "static")]), name="static"
    )
