"""The application: pages, routes, error responses, and the server with its background threads."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import resource
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Annotated, Any, Final

import uvicorn
from fastapi import APIRouter, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from sqlalchemy.exc import OperationalError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.staticfiles import StaticFiles

from radweave import __version__
from radweave.core.errors import CannotWriteError, InputError, printable
from radweave.core.study import RESEARCH_ONLY
from radweave.inference.predictor import PHANTOMS_ONLY
from radweave.workstation import access, api, images_api, store
from radweave.workstation.access import (
    CurrentStation,
    Guard,
    client_of,
    current_user,
    error,
    login_limits,
    open_session,
    probes_only,
)
from radweave.workstation.connections import Connections, Proxies, handshakes, protocol, tls_context
from radweave.workstation.disk import BusyError, NoRoomError
from radweave.workstation.drafts import ConflictError
from radweave.workstation.events import JsonHandler, log_failure
from radweave.workstation.openid import (
    BACK,
    NOT_BEGUN,
    TRY_S,
    NoProviderError,
    NoRoleError,
    RefusedError,
    end_access,
    user_of,
)
from radweave.workstation.settings import LOOPBACK, Limits, Settings
from radweave.workstation.station import KnownError, QueueFullError, Station, alone
from radweave.workstation.users import LONGEST_PASSWORD, SHORTEST_PASSWORD, User, by_token

# Pages: templates that scripts fill from the JSON interface, without text of files or users.
#
# Users who are not logged in are redirected to the login. Templates, scripts and styles are part of the package:
# nothing is loaded from elsewhere, and nothing is inline, which the content security policy forbids.

router = APIRouter(include_in_schema=False)
_HOME = "/studies"
_TRY = "radweave_openid"


@lru_cache(maxsize=1)
def _frames() -> Environment:
    loader = PackageLoader("radweave.workstation", "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _page(name: str, station: Station, *, user: User | None, status: int = 200, **values: Any) -> HTMLResponse:
    """A page with the notice, the user and the model."""
    text = _frames().get_template(f"{name}.html.j2").render(
        notice=RESEARCH_ONLY, user=user, model=station.model, version=__version__, page=name,
        try_out=station.settings.try_out, drafts=station.inference.drafts, **values,
    )  # fmt: skip
    return HTMLResponse(text, status)


def _browser_user(request: Request, station: Station) -> User | None:
    """The user of a browser session; pages accept no tokens of programs."""
    try:
        user = current_user(request, station)
    except HTTPException:
        return None
    return user if user.csrf is not None else None


def _to_login(request: Request) -> Response:
    """Redirect to the login, which returns to this page. Paths of pages need no quoting."""
    return RedirectResponse(f"/login?next={request.url.path}", 303)


@router.get("/")
def home() -> Response:
    return RedirectResponse(_HOME, 303)


@router.get("/login")
def login(request: Request, station: CurrentStation) -> Response:
    if _browser_user(request, station) is not None:
        return RedirectResponse(_HOME, 303)
    if station.settings.try_out:
        return _enter_to_try(request, station)
    return _page("login", station, user=None, has_provider=station.provider is not None)


def _enter_to_try(request: Request, station: Station) -> Response:
    """Log in without a password: the guard lets only this machine's own pages ask."""
    answer = _page("entered", station, user=None, wanted=_HOME)
    assert station.token is not None, "the state is new, so its first user is too"
    with station.database.writing() as connection:
        user = by_token(connection, station.token)
        assert user is not None, "nobody disables the only admin"
        open_session(request, answer, station, connection, user)
    return answer


@router.get("/login/openid")
def to_provider(
    request: Request, station: CurrentStation, next: Annotated[str, Query(max_length=200)] = ""
) -> Response:
    """Redirect to the provider, with a cookie that binds the login to this browser."""
    if station.provider is None:
        raise HTTPException(404)
    try:
        url, cookie = station.provider.begin(next)
    except NoProviderError:
        return _no_provider(station)
    answer = RedirectResponse(url, 303)
    _set_try_cookie(answer, request, cookie)
    return answer


@router.get(BACK)
def from_provider(
    request: Request,
    station: CurrentStation,
    state: Annotated[str, Query(max_length=200)] = "",
    code: Annotated[str, Query(max_length=4_000)] = "",
) -> Response:
    """Log in a user who returns from the provider, or refuse."""
    if station.provider is None:
        raise HTTPException(404)
    client, counted = client_of(request), login_limits(request)
    cookie = request.cookies.get(_TRY, "")
    if not station.provider.began(cookie, state):  # any site can send a browser here: no failed login
        return _page("problem", station, user=None, status=403, reason=f"You were not logged in: {NOT_BEGUN}.")
    # This count bounds the requests to the provider caused by one client; passwords have another.
    keys = {f"provider {client}": 4 * counted.most}
    claims: dict[str, Any] = {}
    try:
        counted.begin(keys)
        claims, wanted = station.provider.finish(cookie, state, code)
        with station.database.writing() as connection:
            user = user_of(connection, station.provider, claims)
            answer = _page("entered", station, user=None, wanted=wanted)
            open_session(request, answer, station, connection, user)
        counted.succeed(keys)
    except NoProviderError:
        counted.succeed(keys)
        answer = _no_provider(station)
    except RefusedError as error:
        if isinstance(error, NoRoleError):
            with station.database.writing() as connection:
                end_access(connection, station.provider, claims)
        counted.note(station, client, None)
        answer = _page("problem", station, user=None, status=403, reason=f"You were not logged in: {error}.")
    _set_try_cookie(answer, request, "", seconds=0)
    return answer


def _no_provider(station: Station) -> HTMLResponse:
    reason = "The service that logs you in does not answer. With a name and a password of this server you can log in."
    return _page("problem", station, user=None, status=503, reason=reason)


def _set_try_cookie(answer: Response, request: Request, value: str, *, seconds: int = TRY_S) -> None:
    """Set the cookie that comes back with the provider's redirect. It is lax, since another site sends it."""
    answer.set_cookie(
        _TRY, value, max_age=seconds, httponly=True, samesite="lax", path="/login/openid",
        secure=request.url.scheme == "https",
    )  # fmt: skip


@router.get("/studies")
def studies(request: Request, station: CurrentStation) -> Response:
    user = _browser_user(request, station)
    if user is None:
        return _to_login(request)
    limits: Limits = station.settings.limits
    return _page("studies", station, user=user, limits=limits, modality=station.modality, caution=_caution(station))


@router.get("/studies/{study}")
def study(study: str, request: Request, station: CurrentStation) -> Response:
    user = _browser_user(request, station)
    if user is None:
        return _to_login(request)
    with station.database.reading() as connection:
        row = store.find(connection, study, user)
    if row is None:
        return _page("problem", station, user=user, status=404, reason="There is no such study, or it is not yours.")
    return _page("study", station, user=user, study=row.id, limits=station.settings.limits)


@router.get("/account")
def account(request: Request, station: CurrentStation) -> Response:
    user = _browser_user(request, station)
    if user is None:
        return _to_login(request)
    return _page("account", station, user=user, shortest=SHORTEST_PASSWORD, longest=LONGEST_PASSWORD)


@router.get("/log")
def log(request: Request, station: CurrentStation) -> Response:
    return _page_for_admins("log", request, station, "The log is for admins.")


@router.get("/learning")
def learning(request: Request, station: CurrentStation) -> Response:
    return _page_for_admins("learning", request, station, "What readers change is for admins.")


def _page_for_admins(name: str, request: Request, station: Station, refusal: str) -> Response:
    user = _browser_user(request, station)
    if user is None:
        return _to_login(request)
    if not user.is_admin:
        return _page("problem", station, user=user, status=403, reason=refusal)
    return _page(name, station, user=user)


def problem_page(request: Request, status: int, reason: str) -> HTMLResponse | None:
    """A refusal as a page for browsers; None for programs."""
    if request.url.path.startswith("/api/") or "text/html" not in request.headers.get("accept", ""):
        return None
    station: Station = request.app.state.station
    return _page("problem", station, user=_browser_user(request, station), status=status, reason=reason)


RETRY_S = 10
BUSY_S = 2


def create_app(station: Station) -> FastAPI:
    """The application, which starts and stops ``station``."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(station.start)
        try:
            yield
        finally:
            await run_in_threadpool(station.stop)

    app = FastAPI(
        title="Radweave workstation", version=__version__, description=RESEARCH_ONLY, lifespan=lifespan,
        openapi_url="/api/v1/openapi.json",
        # The documentation pages would load scripts from elsewhere.
        docs_url=None, redoc_url=None,
    )  # fmt: skip
    app.state.station = station
    app.state.login_limits = access.LoginLimits(station.settings.logins)
    for part in (access.router, api.router, images_api.router, api.probes):
        app.include_router(part)
    app.include_router(router)
    app.mount("/static", StaticFiles(packages=[("radweave.workstation", "static")]), name="static")
    app.add_exception_handler(StarletteHTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(InputError, _input)
    for kind in _UNAVAILABLE:
        app.add_exception_handler(kind, _unavailable)
    app.add_exception_handler(OperationalError, _away)
    app.add_middleware(Guard, settings=station.settings, metrics=station.metrics, disk=station.disk)
    return app


def _reply(status: int, content: object, headers: Mapping[str, str] | None = None) -> Response:
    # In ASCII: parts of a request are named here, and need not be valid text.
    return Response(json.dumps(content), status, headers, "application/json")


async def _http(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, StarletteHTTPException)
    page = await run_in_threadpool(problem_page, request, problem.status_code, str(problem.detail))
    if page is not None:
        return page
    return _reply(problem.status_code, error(str(problem.detail)), problem.headers)


async def _invalid(request: Request, problem: Exception) -> Response:
    """Fields and reasons of an invalid body or query, without the values sent."""
    assert isinstance(problem, RequestValidationError)
    fields = [{"field": ".".join(map(str, row["loc"])), "reason": row["msg"]} for row in problem.errors()]
    return _reply(422, error("the request is malformed", fields=fields))


async def _input(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, InputError)
    status = 409 if isinstance(problem, ConflictError | KnownError) else 400
    if isinstance(problem, CannotWriteError):
        return _reply(507, error("the server cannot store the files"))
    got, expected = (None if value is None else str(value) for value in (problem.got, problem.expected))
    return _reply(status, error(problem.reason, field=problem.field, got=got, expected=expected))


_UNAVAILABLE: Final[Mapping[type[Exception], tuple[int, str, int | None]]] = {
    QueueFullError: (503, "too many studies wait; try again later", RETRY_S),
    BusyError: (503, "the server is busy; try again", BUSY_S),
    NoRoomError: (507, "the workstation has no room for more files; an admin must free space", None),
}
"""Error -> status, reason, and seconds until a retry."""


async def _unavailable(request: Request, problem: Exception) -> Response:
    status, reason, retry_s = _UNAVAILABLE[type(problem)]
    return _reply(status, error(reason), None if retry_s is None else {"Retry-After": str(retry_s)})


async def _away(request: Request, problem: Exception) -> Response:
    log_failure("database-failed", problem)
    return _reply(503, error("the database does not answer; try again later"), {"Retry-After": str(RETRY_S)})


# Server.

_FILES: Final = 8_192
"""Limit of open files and connections to ask of the system."""


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; drafts in progress are finished first.

    Raises:
        InputError: as ``Station``, or if another server works on the same state or listens at the address.
    """
    tls_context(settings.tls_cert, settings.tls_key)
    _raise_files()
    with alone(settings):
        _refuse_taken_port(settings)
        station = Station(settings)
        _greet(settings, station.token, _caution(station))
        listener(settings, station).run()


def listener(settings: Settings, station: Station) -> uvicorn.Server:
    """The server with its connection limits, not started."""
    logger = logging.getLogger("uvicorn")
    logger.handlers, logger.propagate = [JsonHandler(logging.WARNING)], False
    limits, context = settings.limits, tls_context(settings.tls_cert, settings.tls_key)
    proxies = Proxies(settings.behind_proxy)
    connections = Connections(limits.connections, limits.connections_of_one, proxies, station.metrics.count)
    http: Any = protocol(settings.head_s, connections, probes_only)
    if context is not None:
        http = handshakes(http, context, settings.head_s, connections)
    config = uvicorn.Config(
        create_app(station), host=settings.host, port=settings.port, log_config=None, access_log=False,
        server_header=False, timeout_keep_alive=10, ws="none", loop="asyncio",
        timeout_graceful_shutdown=int(settings.drain_s), proxy_headers=False, http=http,
    )  # fmt: skip
    return uvicorn.Server(config)


def _raise_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _refuse_taken_port(settings: Settings) -> None:
    """Raise InputError if another program listens at the address, before anything is printed or loaded."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise InputError(
                    "is in use by another program; give another", field="--port", got=settings.port
                ) from None


def _caution(station: Station) -> str:
    """A line on the limits of a model of phantoms; empty for others."""
    return f"The model was {PHANTOMS_ONLY}." if station.is_synthetic else ""


def _greet(settings: Settings, token: str | None, caution: str) -> None:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scheme = "http" if settings.tls_cert is None else "https"
    place = f"{settings.public_url or f'{scheme}://{host}:{settings.port}'}/"
    print(f"workstation: {place}", flush=True)
    print(f"state: {printable(settings.state)}", flush=True)
    if settings.try_out:
        print("Without log-in, for this machine alone. Images and drafts are removed when it ends.", flush=True)
    elif token is not None:
        # Browsers do not send the part after #: the token appears in no request and no log.
        print(f"first user, shown this once: {place}login#token={token}", flush=True)
    print(RESEARCH_ONLY, flush=True)
    if caution:
        print(caution, flush=True)
    if settings.host not in LOOPBACK and settings.tls_cert is None and not settings.behind_proxy:
        print(
            "WARNING: THIS SERVER LISTENS TO OTHER MACHINES, WITHOUT ENCRYPTION. Whoever is on the way reads images, "
            "reports and tokens. Give it --tls-cert and --tls-key, put a proxy with TLS before it (--behind-proxy), or "
            "listen on 127.0.0.1.",
            flush=True,
        )  # fmt: skip
