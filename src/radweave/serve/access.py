"""Who asks: a bearer token of a program, or the cookie of a browser's session, which then needs its CSRF token too."""

from __future__ import annotations

import hmac
import threading
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from radweave.base.errors import InputError
from radweave.serve import log, users
from radweave.serve.guard import SAFE, RateLimit
from radweave.serve.station import Station
from radweave.serve.users import User

COOKIE = "radweave_session"
CSRF_HEADER = "X-CSRF-Token"
router = APIRouter(prefix="/api/v1")
# A password costs 64 MiB and tens of milliseconds by design; many at once would cost the machine.
_passwords = threading.BoundedSemaphore(2)


def station(request: Request) -> Station:
    found: Station = request.app.state.station
    return found


Here = Annotated[Station, Depends(station)]


def current_user(request: Request, here: Here) -> User:
    """The user of a request; refused with 401 where there is none, with 403 where a form is not from our page."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    cookie = request.cookies.get(COOKIE)
    with here.database.reading() as connection:
        if scheme.lower() == "bearer":
            user = users.by_token(connection, token.strip())
        else:
            user = None if cookie is None else users.by_session(connection, cookie)
    if user is None:
        raise HTTPException(401, "log in, or send a token", {"WWW-Authenticate": "Bearer"})
    if user.csrf is not None and request.method not in SAFE:
        given = request.headers.get(CSRF_HEADER, "")
        if not hmac.compare_digest(given.encode(), user.csrf.encode()):
            raise HTTPException(403, f"the header {CSRF_HEADER} is missing or wrong")
    return user


Asking = Annotated[User, Depends(current_user)]


def admin(user: Asking) -> User:
    if not user.is_admin:
        raise HTTPException(403, "this needs the role admin")
    return user


Admin = Annotated[User, Depends(admin)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Login(_Body):
    """A name and a password, or a token."""

    name: str = Field(default="", max_length=100)
    password: str = Field(default="", max_length=users.LONGEST_PASSWORD)
    token: str = Field(default="", max_length=200)


class NewUser(_Body):
    """A user to be added; without a password only tokens let it in."""

    name: str = Field(max_length=100)
    role: str = "reader"
    password: str | None = Field(default=None, max_length=users.LONGEST_PASSWORD)


def refuse_many(request: Request, *keys: str) -> None:
    """Count a try of a password or a token; refused with 429 where it is one too many."""
    limit: RateLimit = request.app.state.logins
    wait = limit.wait(*keys)
    if wait:
        raise HTTPException(429, "too many tries to log in", {"Retry-After": str(wait)})


def one_password() -> threading.BoundedSemaphore:
    """What whoever hashes a password holds."""
    return _passwords


@router.post("/session", tags=["session"])
def log_in(given: Login, request: Request, response: Response, here: Here) -> dict[str, Any]:
    """Open a session for a browser: a strict cookie, and the CSRF token that changes must repeat."""
    client = request.client.host if request.client else "unknown"
    # A login by token has no name: all of them share one more count.
    refuse_many(request, f"client {client}", f"name {given.name}")
    with one_password(), here.database.reading() as connection:
        if given.token:
            user = users.by_token(connection, given.token)
        else:
            user = users.by_password(connection, given.name, given.password)
    with here.database.writing() as connection:
        if user is None:
            log.append(connection, "login refused")
        else:
            secret, csrf = users.open_session(connection, user, seconds=here.settings.session_s)
            log.append(connection, "login", user=user.id)
    if user is None:
        raise HTTPException(401, "unknown name, password or token")
    response.set_cookie(
        COOKIE, secret, max_age=int(here.settings.session_s), httponly=True, samesite="strict", path="/",
        secure=request.url.scheme == "https",
    )  # fmt: skip
    return {"user": user.name, "role": user.role, "csrf": csrf}


@router.get("/session", tags=["session"])
def who(user: Asking) -> dict[str, Any]:
    """Who is logged in, and a browser's CSRF token."""
    return {"id": user.id, "user": user.name, "role": user.role, "csrf": user.csrf}


@router.delete("/session", tags=["session"], status_code=204)
def log_out(request: Request, user: Asking, here: Here, response: Response) -> None:
    """End the browser's session."""
    with here.database.writing() as connection:
        users.close_session(connection, request.cookies.get(COOKIE, ""))
        log.append(connection, "logout", user=user.id)
    response.delete_cookie(COOKIE, path="/")


@router.get("/users", tags=["users"])
def list_users(user: Admin, here: Here) -> dict[str, Any]:
    """All users."""
    with here.database.reading() as connection:
        return {"users": users.all_users(connection)}


@router.post("/users", tags=["users"], status_code=201)
def add_user(given: NewUser, user: Admin, here: Here) -> dict[str, Any]:
    """Add a reader or another admin."""
    with here.database.writing() as connection:
        made = users.add_user(connection, given.name, role=given.role, password=given.password)
        log.append(connection, "user added", user=user.id, details={"user": made, "role": given.role})
    return {"id": made, "name": given.name, "role": given.role}


@router.post("/users/{number}/token", tags=["users"], status_code=201)
def add_token(number: int, user: Admin, here: Here) -> dict[str, Any]:
    """A token for a program of this user; it is shown once."""
    with here.database.writing() as connection:
        if number not in [row["id"] for row in users.all_users(connection)]:
            raise InputError("no such user", field="number", got=number)
        token = users.new_token(connection, number)
        log.append(connection, "token added", user=user.id, details={"user": number})
    return {"token": token}
