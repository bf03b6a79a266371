"""Who asks: a bearer token of a program, or the cookie of a browser's session, which then needs its CSRF token too."""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from radweave.base.errors import InputError
from radweave.serve import log, patients, users
from radweave.serve.events import say
from radweave.serve.forwarded import address_of, peer_of
from radweave.serve.guard import SAFE, RateLimit
from radweave.serve.kept import Places
from radweave.serve.names import folded
from radweave.serve.station import Station
from radweave.serve.users import User

COOKIE = "radweave_session"
CSRF_HEADER = "X-CSRF-Token"
DEVICE = "radweave_device"
"""Cookie of a browser in which a user logged in before: others cannot lock the user out of it."""
_DEVICE_S = 180 * 86_400
_LOGGED = 300
"""Refused logins that the log takes in an hour; the others are counted in the next entry."""
_LOGGED_OF_ONE = 10
router = APIRouter(prefix="/api/v1")
# A password costs 64 MiB and tens of milliseconds by design; many at once would cost the machine.
_passwords = Places(2, most_waiting=20, wait_s=20.0)


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


def refuse_disabled(connection: Connection, user: User) -> None:
    """Refuse who was disabled since the request came, in the transaction of what it changes.

    Raises:
        HTTPException: 401.
    """
    if not users.is_enabled(connection, user.id):
        raise HTTPException(401, "log in, or send a token", {"WWW-Authenticate": "Bearer"})


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


class Disable(_Body):
    """True for a user that is not let in any more."""

    disabled: bool


class Tries:
    """What limits failures of logging in, and says of them what the log may hold."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._failures, self._entries = RateLimit(), RateLimit(seconds=3600)
        self._more, self._lock = 0, threading.Lock()

    def begin(self, keys: Mapping[str, int]) -> None:
        """Count a try.

        Raises:
            HTTPException: 429 where it is one too many.
        """
        wait = self._failures.begin(keys)
        if wait:
            raise HTTPException(429, "too many tries to log in", {"Retry-After": str(wait)})

    def succeed(self, keys: Iterable[str]) -> None:
        self._failures.succeed(*keys)

    def keys(self, client: str, name: str, device: str | None) -> dict[str, int]:
        """What a try is counted under, and how many failures each may have in a minute.

        A browser that the user logged in with before has a count of its own. Of all others an address has one for each
        name and one for all, and a name one for all addresses that takes many of them to fill.
        """
        if device is not None:
            return {f"device {device}": self.most}
        return {f"client {client}": 4 * self.most, f"{client} {name}": self.most, f"name {name}": 20 * self.most}

    def note(self, here: Station, client: str, user: int | None) -> None:
        """Log a login that was refused: the address, the user where there is one, never the name that was typed."""
        here.metrics.count("logins_refused")
        with self._lock:
            if self._entries.begin({"log": _LOGGED, f"log {client}": _LOGGED_OF_ONE}):
                self._more += 1
                return
            more, self._more = self._more, 0
        say("login-refused", client=client)
        details = {"address": client, "of_user": user, "not_logged_before": more}
        with here.database.writing() as connection:
            log.append(connection, "login refused", details={name: one for name, one in details.items() if one})


def tries(request: Request) -> Tries:
    found: Tries = request.app.state.tries
    return found


def client_of(request: Request) -> str:
    """The address of a client, as it is counted; nothing else that a request says comes into a log."""
    address = request.client.host if request.client else ""
    return peer_of(address) if address_of(address) is not None else "unknown"


def _signed(here: Station, user: int, password: str | None, nonce: str) -> str:
    secret = patients.read_secret(here.settings.state)
    return hmac.new(secret, f"device {user} {nonce} {password}".encode(), "sha256").hexdigest()


def _known_device(request: Request, here: Station, row: Any) -> str | None:
    """What a browser's own count is called; None where this user never logged in with it, or had another password."""
    nonce, _, signed = request.cookies.get(DEVICE, "").partition(".")
    if row is None or not hmac.compare_digest(signed.encode(), _signed(here, row.id, row.password, nonce).encode()):
        return None
    return nonce


def let_in(request: Request, response: Response, here: Station, connection: Connection, user: User) -> dict[str, Any]:
    """Open a session, and give the browser its cookies."""
    secret, csrf = users.open_session(connection, user, seconds=here.settings.session_s)
    log.append(connection, "login", user=user.id)
    nonce, row = secrets.token_urlsafe(16), users.named(connection, user.name)
    assert row is not None
    is_encrypted = request.url.scheme == "https"
    for name, value, seconds, path in (
        (COOKIE, secret, int(here.settings.session_s), "/"),
        (DEVICE, f"{nonce}.{_signed(here, user.id, row.password, nonce)}", _DEVICE_S, "/api/v1/session"),
    ):
        response.set_cookie(
            name, value, max_age=seconds, httponly=True, samesite="strict", path=path, secure=is_encrypted
        )
    return {"user": user.name, "role": user.role, "csrf": csrf}


def one_password() -> AbstractContextManager[None]:
    """What whoever hashes a password holds; refused as busy where so many wait that threads for others would lack."""
    return _passwords.one()


@router.post("/session", tags=["session"])
def log_in(given: Login, request: Request, response: Response, here: Here) -> dict[str, Any]:
    """Open a session for a browser: a strict cookie, and the CSRF token that changes must repeat."""
    client, counted = client_of(request), tries(request)
    with here.database.reading() as connection:
        row = None if given.token else users.named(connection, given.name)
    # A login by token has no name: all of them share one more count.
    name = "" if given.token else folded(given.name)
    keys = counted.keys(client, name, _known_device(request, here, row))
    counted.begin(keys)
    try:
        with one_password(), here.database.reading() as connection:
            if given.token:
                user = users.by_token(connection, given.token)
            else:
                user = users.by_password(connection, given.name, given.password)
    except Exception:  # what nobody looked at, since the server is busy, is no failure of who asks
        counted.succeed(keys)
        raise
    if user is None:
        counted.note(here, client, None if row is None else row.id)
        raise HTTPException(401, "unknown name, password or token")
    counted.succeed(keys)
    with here.database.writing() as connection:
        # A password that was changed, and a token that was taken back, meanwhile let nobody in.
        if given.token:
            is_still = users.by_token(connection, given.token) is not None
        else:
            is_still = row is not None and users.is_password(connection, user.id, row.password)
        if not is_still:
            raise HTTPException(401, "unknown name, password or token")
        return let_in(request, response, here, connection, user)


@router.get("/session", tags=["session"])
def who(user: Asking) -> dict[str, Any]:
    """Who is logged in, and a browser's CSRF token."""
    return {"id": user.id, "user": user.name, "role": user.role, "csrf": user.csrf}


@router.delete("/session", tags=["session"], status_code=204)
def log_out(request: Request, user: Asking, here: Here) -> Response:
    """End the browser's session; a provider's user gets where to log out of the provider too."""
    with here.database.writing() as connection:
        users.close_session(connection, request.cookies.get(COOKIE, ""))
        log.append(connection, "logout", user=user.id)
        is_of_provider = users.is_of_provider(connection, user.id)
    end = None if here.provider is None or not is_of_provider else here.provider.end()
    answer = Response(status_code=204) if end is None else JSONResponse({"provider": end})
    answer.delete_cookie(COOKIE, path="/")
    return answer


@router.get("/users", tags=["users"])
def list_users(user: Admin, here: Here) -> dict[str, Any]:
    """All users."""
    with here.database.reading() as connection:
        return {"users": users.all_users(connection)}


@router.post("/users", tags=["users"], status_code=201)
def add_user(given: NewUser, user: Admin, here: Here) -> dict[str, Any]:
    """Add a reader or another admin."""
    with here.database.writing() as connection:
        refuse_disabled(connection, user)
        made = users.add_user(connection, given.name, role=given.role, password=given.password)
        log.append(connection, "user added", user=user.id, details={"user": made, "role": given.role})
    return {"id": made, "name": given.name, "role": given.role}


@router.patch("/users/{number}", tags=["users"], status_code=204)
def disable(number: int, given: Disable, user: Admin, here: Here) -> None:
    """Let a user in no more: its sessions and tokens end at once. Or let it in again."""
    with here.database.writing() as connection:
        refuse_disabled(connection, user)  # two admins at once
        users.set_disabled(connection, number, is_disabled=given.disabled)
        action = "user disabled" if given.disabled else "user enabled"
        log.append(connection, action, user=user.id, details={"user": number})


@router.post("/users/{number}/token", tags=["users"], status_code=201)
def add_token(number: int, user: Admin, here: Here) -> dict[str, Any]:
    """A token for a program of this user; it is shown once."""
    with here.database.writing() as connection:
        refuse_disabled(connection, user)
        if number not in [row["id"] for row in users.all_users(connection)]:
            raise InputError("no such user", field="number", got=number)
        if not users.is_enabled(connection, number):
            raise InputError("is disabled", field="number", got=number)
        token = users.new_token(connection, number)
        log.append(connection, "token added", user=user.id, details={"user": number})
    return {"token": token}
