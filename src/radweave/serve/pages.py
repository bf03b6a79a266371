"""The pages: frames that scripts of ours fill over the interface. Nothing that a file or a user says is put in here.

Who is not logged in comes to the login; a study that is not theirs is not there. Frames, scripts and styles lie in the
package: nothing is loaded from elsewhere, and nothing stands inline, which the content security policy forbids.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, HTTPException, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.staticfiles import StaticFiles

from radweave import __version__
from radweave.base.study import RESEARCH_ONLY
from radweave.serve import store
from radweave.serve.access import Here, client_of, current_user, let_in, tries
from radweave.serve.openid import (
    BACK,
    NOT_BEGUN,
    TRY_S,
    NoProviderError,
    NoRoleError,
    RefusedError,
    end_access,
    user_of,
)
from radweave.serve.settings import Limits
from radweave.serve.station import Station
from radweave.serve.users import LONGEST_PASSWORD, SHORTEST_PASSWORD, User

router = APIRouter(include_in_schema=False)
_HOME = "/studies"
_TRY = "radweave_openid"


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
    return _page("login", here, user=None, has_provider=here.provider is not None)


@router.get("/login/openid")
def to_provider(request: Request, here: Here, next: Annotated[str, Query(max_length=200)] = "") -> Response:
    """To the provider, with what this browser must bring back."""
    if here.provider is None:
        raise HTTPException(404)
    try:
        url, kept = here.provider.begin(next)
    except NoProviderError:
        return _no_provider(here)
    answer = RedirectResponse(url, 303)
    _keep(answer, request, kept)
    return answer


@router.get(BACK)
def from_provider(
    request: Request,
    here: Here,
    state: Annotated[str, Query(max_length=200)] = "",
    code: Annotated[str, Query(max_length=4_000)] = "",
) -> Response:
    """Whom the provider sent back, let in or refused."""
    if here.provider is None:
        raise HTTPException(404)
    client, counted = client_of(request), tries(request)
    cookie = request.cookies.get(_TRY, "")
    if not here.provider.began(cookie, state):  # any site makes a browser ask for this: that is no try to log in
        return _page("problem", here, user=None, status=403, reason=f"You were not logged in: {NOT_BEGUN}.")
    # Nothing is guessed here: the count bounds what one client has the provider asked, apart from that of passwords.
    keys = {f"provider {client}": 4 * counted.most}
    claims: dict[str, Any] = {}
    try:
        counted.begin(keys)
        claims, wanted = here.provider.finish(cookie, state, code)
        with here.database.writing() as connection:
            user = user_of(connection, here.provider, claims)
            answer = _page("entered", here, user=None, wanted=wanted)
            let_in(request, answer, here, connection, user)
        counted.succeed(keys)
    except NoProviderError:
        counted.succeed(keys)
        answer = _no_provider(here)
    except RefusedError as error:
        if isinstance(error, NoRoleError):
            with here.database.writing() as connection:
                end_access(connection, here.provider, claims)
        counted.note(here, client, None)
        answer = _page("problem", here, user=None, status=403, reason=f"You were not logged in: {error}.")
    _keep(answer, request, "", seconds=0)
    return answer


def _no_provider(here: Station) -> HTMLResponse:
    reason = "The service that logs you in does not answer. With a name and a password of this server you can log in."
    return _page("problem", here, user=None, status=503, reason=reason)


def _keep(answer: Response, request: Request, kept: str, *, seconds: int = TRY_S) -> None:
    """A cookie that comes back with the provider's answer, which another site sends: so it is not strict."""
    answer.set_cookie(
        _TRY, kept, max_age=seconds, httponly=True, samesite="lax", path="/login/openid",
        secure=request.url.scheme == "https",
    )  # fmt: skip


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
