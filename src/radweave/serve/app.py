"""The application: routes, what refusals look like, and the start and stop of all that runs beside them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from sqlalchemy.exc import OperationalError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from radweave import __version__
from radweave.base.errors import CannotWriteError, InputError
from radweave.base.study import RESEARCH_ONLY
from radweave.serve import access, accounts, api, images, pages, prior_api, template_api
from radweave.serve.events import say_failure
from radweave.serve.guard import Guard, error
from radweave.serve.kept import BusyError
from radweave.serve.room import NoRoomError
from radweave.serve.signed import ConflictError
from radweave.serve.station import KnownError, QueueFullError, Station

RETRY_S = 10
BUSY_S = 2


def create_app(station: Station) -> FastAPI:
    """The application of a workstation, which it starts and stops."""

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
        # Their pages load scripts from elsewhere.
        docs_url=None, redoc_url=None,
    )  # fmt: skip
    app.state.station = station
    app.state.tries = access.Tries(station.settings.logins)
    for part in (access, accounts, api, prior_api, template_api, images):
        app.include_router(part.router)
    app.include_router(api.probes)
    pages.add_pages(app)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(InputError, _input)
    app.add_exception_handler(QueueFullError, _full)
    app.add_exception_handler(BusyError, _busy)
    app.add_exception_handler(NoRoomError, _no_room)
    app.add_exception_handler(OperationalError, _away)
    app.add_middleware(Guard, settings=station.settings, metrics=station.metrics, room=station.room)
    return app


def _reply(status: int, content: object, headers: Mapping[str, str] | None = None) -> Response:
    # In ASCII, for what was sent may be named here, and need not be text.
    return Response(json.dumps(content), status, headers, "application/json")


async def _http(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    page = await run_in_threadpool(pages.problem, request, problem.status_code, str(problem.detail))
    if page is not None:
        return page
    return _reply(problem.status_code, error(str(problem.detail)), problem.headers)


async def _invalid(request: Request, problem: Exception) -> Response:
    """A body or a query of another form: which fields and why, without what was sent."""
    assert isinstance(problem, RequestValidationError)
    fields = [{"field": ".".join(map(str, row["loc"])), "reason": row["msg"]} for row in problem.errors()]
    return _reply(422, error("the request has not the form it must have", fields=fields))


async def _input(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, InputError)
    status = 409 if isinstance(problem, ConflictError | KnownError) else 400
    if isinstance(problem, CannotWriteError):
        return _reply(507, error("the server cannot keep the files"))
    got, expected = (None if value is None else str(value) for value in (problem.got, problem.expected))
    return _reply(status, error(problem.reason, field=problem.field, got=got, expected=expected))


async def _full(request: Request, problem: Exception) -> Response:
    return _reply(503, error("as many studies wait as may; try again later"), {"Retry-After": str(RETRY_S)})


async def _busy(request: Request, problem: Exception) -> Response:
    return _reply(503, error("the server is busy; try again"), {"Retry-After": str(BUSY_S)})


async def _no_room(request: Request, problem: Exception) -> Response:
    return _reply(507, error("the workstation has no room for more files; an admin must make some"))


async def _away(request: Request, problem: Exception) -> Response:
    say_failure("database-failed", problem)
    return _reply(503, error("the database does not answer; try again later"), {"Retry-After": str(RETRY_S)})
