"""Who asks: a bearer token of a program, or the cookie of a browser's session, which then needs its CSRF token too."""

from __future__ import annotations

import hmac
import json
import secrets
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Annotated, Any, Final
from urllib.parse import SplitResult, urlsplit

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radweave.core.errors import InputError
from radweave.core.study import RESEARCH_ONLY
from radweave.workstation import log, store, users
from radweave.workstation.connections import Proxies, address_of, patient, peer_of
from radweave.workstation.database import folded
from radweave.workstation.disk import NoRoomError, Places, Room
from radweave.workstation.events import Metrics, say, say_failure
from radweave.workstation.settings import LOOPBACK, Limits, Settings
from radweave.workstation.station import Station
from radweave.workstation.users import User

# What every request and every response goes through: limits, headers, one line in the log, no traceback to anyone.


UPLOAD: Final = "/api/v1/studies"
SAFE: Final = ("GET", "HEAD", "OPTIONS")
PROBES: Final = ("/healthz", "/readyz", "/metrics")
HSTS: Final = (b"strict-transport-security", b"max-age=31536000")
_USUAL: Final = {"http": ":80", "https": ":443"}
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
    "x-research-only": RESEARCH_ONLY,
}

_DIGITS: Final = 18
"""Of a length that is stated; none that is allowed has more."""
_OWN: Final = (b"cache-control",)
"""What a response may say itself."""


class Guard:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics, room: Room) -> None:
        self._app, self._settings, self._metrics, self._room = app, settings, metrics, room
        self._proxies = Proxies(settings.behind_proxy)
        self._asking: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status = time.monotonic(), 0
        scope, is_passed_on = self._proxies.seen_through(scope)

        async def guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = {name for name, _ in message.get("headers", ()) if name in _OWN}
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in own]
                if self._settings.tls_cert is not None:
                    extra.append(HSTS)
                message["headers"] = [*message.get("headers", ()), *extra]
            await send(message)

        try:
            with self._one_of(scope) as has_place:
                refused = _refusal(scope, self._settings, is_passed_on=is_passed_on)
                if refused is None and (scope["method"], scope["path"]) == ("POST", UPLOAD):
                    refused = await run_in_threadpool(self._full, scope)
                if not has_place:
                    await _answer(guarded, 503, "too many requests of one client at once")
                elif refused is not None:
                    await _answer(guarded, *refused)
                else:
                    await self._app(scope, self._patient(scope, receive), guarded)
        except Exception as error:
            say_failure("request-failed", error, method=_method(scope), route=_route(scope))
            if not status:
                await _answer(guarded, 500, "the server failed; its log has the place")
        finally:
            self._metrics.request(_method(scope), _route(scope), status)
            took = round(1000 * (time.monotonic() - begun), 1)
            say("request", method=_method(scope), route=_route(scope), status=status, milliseconds=took)

    @contextmanager
    def _one_of(self, scope: Scope) -> Iterator[bool]:
        """Count a request of a client; False where it has as many as it may. Probes are never refused."""
        client = peer_of(scope["client"][0]) if scope.get("client") else ""
        self._asking[client] += 1
        try:
            yield self._asking[client] <= self._settings.limits.connections_of_one or scope["path"] in PROBES
        finally:
            self._asking[client] -= 1
            if not self._asking[client]:
                del self._asking[client]

    def _full(self, scope: Scope) -> tuple[int, str] | None:
        """Refuse files that will not fit before they are sent."""
        try:
            self._room.refuse(int(_header(scope, b"content-length") or 0))
        except NoRoomError:
            return 507, "the workstation has no room for so many bytes more"
        return None

    def _patient(self, scope: Scope, receive: Receive) -> Receive:
        return _counted(scope, patient(receive, self._settings.body_s), self._settings.limits)


def _method(scope: Scope) -> str:
    """A method that there is: what a client calls it goes nowhere."""
    method = str(scope["method"])
    return method if method in (*SAFE, "POST", "PATCH", "PUT", "DELETE") else "OTHER"


def _route(scope: Scope) -> str:
    """The pattern of a path, for the path itself may say anything."""
    found = getattr(scope.get("route"), "path", None)
    return "unknown" if found is None else str(found)


def _header(scope: Scope, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)


def _refusal(scope: Scope, settings: Settings, *, is_passed_on: bool) -> tuple[int, str] | None:
    """Requests that another site makes a browser send, and bodies that say themselves that they are too large."""
    host = _header(scope, b"host") or ""
    if not _is_ours(scope, host, settings, is_passed_on=is_passed_on):
        return 400, "unknown host"
    origin = _header(scope, b"origin")
    if scope["method"] not in SAFE and origin is not None and not _is_same(origin, scope["scheme"], host):
        return 403, "a request from another site"
    stated = _header(scope, b"content-length") or "0"
    most = _most(scope, settings.limits)
    if not (stated.isascii() and stated.isdigit()) or len(stated) > _DIGITS or int(stated) > most:
        return 413, too_large(most)
    return None


def _is_ours(scope: Scope, host: str, settings: Settings, *, is_passed_on: bool) -> bool:
    """A name that is made to lead to this machine (DNS rebinding) is another name.

    A machine that probes calls the server by an address; that is no name.
    """
    if _place(f"//{host}").hostname in LOOPBACK:
        return True
    if settings.public_url is not None:
        public = _place(settings.public_url)
        if _plain(host, public.scheme) == _plain(public.netloc, public.scheme):
            return True
    if settings.host in LOOPBACK and not is_passed_on:
        return False
    return settings.public_url is None or scope["path"] in PROBES


def _is_same(origin: str, scheme: str, host: str) -> bool:
    """Whether an origin is this server. Over TLS that is seen here, a page without it is another site."""
    stated = _place(origin)
    is_scheme = stated.scheme == scheme if scheme == "https" else stated.scheme in _USUAL
    return is_scheme and _plain(stated.netloc, stated.scheme) == _plain(host, stated.scheme)


def _plain(host: str, scheme: str) -> str:
    return host.lower().removesuffix(_USUAL[scheme])


def _place(address: str) -> SplitResult:
    """An address in parts; one that is none has none."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


def _most(scope: Scope, limits: Limits) -> int:
    return limits.body_bytes if (scope["method"], scope["path"]) == ("POST", UPLOAD) else limits.json_bytes


def too_large(most: int) -> str:
    return f"the request is too large: at most {most} bytes"


def _counted(scope: Scope, receive: Receive, limits: Limits) -> Receive:
    """A body that does not say how large it is, or says it wrongly, is counted."""
    most, seen = _most(scope, limits), 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > most:
            raise HTTPException(413, too_large(most))
        return message

    return counted


async def _answer(send: Send, status: int, reason: str, *more: tuple[bytes, bytes]) -> None:
    body = json.dumps(error(reason)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *more]
    if status == 503:
        headers.append((b"retry-after", b"2"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def error(reason: str, **more: Any) -> dict[str, Any]:
    """What every refusal looks like."""
    return {"error": {"reason": reason, **{name: value for name, value in more.items() if value is not None}}}


class RateLimit:
    """At most so many failures in a minute for each key.

    A try is counted when it begins, so that many at once are no way around, and taken back where it succeeds. Keys are
    bounded in number: the one that was not counted for the longest time goes.
    """

    MOST_KEYS: Final = 10_000

    def __init__(self, *, seconds: float = 60.0) -> None:
        self._seconds = seconds
        self._times: OrderedDict[str, deque[float]] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, tries: Mapping[str, int]) -> int:
        """Count a try under all keys, each with the most that it may have.

        Returns:
            The seconds to wait where it is one too many for a key, and then it is counted under none; else 0.
        """
        now = time.monotonic()
        with self._lock:
            wait = max((self._left(key, most, now) for key, most in tries.items()), default=0)
            if wait:
                return wait
            for key in tries:
                self._times.setdefault(key, deque()).append(now)
                self._times.move_to_end(key)
            while len(self._times) > self.MOST_KEYS:
                self._times.popitem(last=False)
        return 0

    def succeed(self, *keys: str) -> None:
        """Take back the newest try of these keys: it was no failure."""
        with self._lock:
            for key in keys:
                times = self._times.get(key)
                if times:
                    times.pop()
                if times is not None and not times:
                    del self._times[key]

    def _left(self, key: str, most: int, now: float) -> int:
        times = self._times.get(key, deque())
        while times and times[0] <= now - self._seconds:
            times.popleft()
        if not times:
            self._times.pop(key, None)
        return 0 if len(times) < most else 1 + int(self._seconds - (now - times[0]))


def probes_only(app: ASGIApp) -> ASGIApp:
    """An application that answers the probes, and everything else with 503."""

    async def answered(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            await app(scope, receive, send)
        else:
            await _answer(send, 503, "too many connections", (b"connection", b"close"))

    return answered


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
    secret = store.read_secret(here.settings.state)
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
