"""Access control: request guard, rate limits, and login by token or by session cookie with a CSRF token."""

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
from radweave.workstation.connections import Proxies, address_of, bounded_body, peer_of
from radweave.workstation.database import folded
from radweave.workstation.disk import ConcurrencyLimit, DiskSpace, NoRoomError
from radweave.workstation.events import Metrics, log_event, log_failure
from radweave.workstation.settings import LOOPBACK, Limits, Settings
from radweave.workstation.station import Station
from radweave.workstation.users import User

# Request guard: limits, security headers, one log line per request, no traceback to the client.

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
"""Most digits of a Content-Length; no allowed length has more."""
_OWN: Final = (b"cache-control",)
"""Headers that a response may override."""


class Guard:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics, disk: DiskSpace) -> None:
        self._app, self._settings, self._metrics, self._disk = app, settings, metrics, disk
        self._proxies = Proxies(settings.behind_proxy)
        self._open_requests: Counter[str] = Counter()

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
                    await self._app(scope, self._bounded(scope, receive), guarded)
        except Exception as error:
            log_failure("request-failed", error, method=_method(scope), route=_route(scope))
            if not status:
                await _answer(guarded, 500, "the server failed; its log has the place")
        finally:
            self._metrics.request(_method(scope), _route(scope), status)
            took = round(1000 * (time.monotonic() - begun), 1)
            if not self._settings.try_out:  # its user reads the greeting in the same terminal
                log_event("request", method=_method(scope), route=_route(scope), status=status, milliseconds=took)

    @contextmanager
    def _one_of(self, scope: Scope) -> Iterator[bool]:
        """Count a request of a client; yield False above the limit of requests at once. Probes are never refused."""
        client = peer_of(scope["client"][0]) if scope.get("client") else ""
        self._open_requests[client] += 1
        try:
            yield self._open_requests[client] <= self._settings.limits.connections_of_one or scope["path"] in PROBES
        finally:
            self._open_requests[client] -= 1
            if not self._open_requests[client]:
                del self._open_requests[client]

    def _full(self, scope: Scope) -> tuple[int, str] | None:
        """Refuse files that will not fit before they are sent."""
        try:
            self._disk.refuse(int(_header(scope, b"content-length") or 0))
        except NoRoomError:
            return 507, "the workstation has no room for these files"
        return None

    def _bounded(self, scope: Scope, receive: Receive) -> Receive:
        return _counted(scope, bounded_body(receive, self._settings.body_s), self._settings.limits)


def _method(scope: Scope) -> str:
    """The method if it is a known one: text of a client is not logged."""
    method = str(scope["method"])
    return method if method in (*SAFE, "POST", "PATCH", "PUT", "DELETE") else "OTHER"


def _route(scope: Scope) -> str:
    """The route's pattern: a path may hold any text and is not logged."""
    pattern = getattr(scope.get("route"), "path", None)
    return "unknown" if pattern is None else str(pattern)


def _header(scope: Scope, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)


def _refusal(scope: Scope, settings: Settings, *, is_passed_on: bool) -> tuple[int, str] | None:
    """Refuse cross-site requests and bodies whose stated length is too large."""
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
    """True for a host name of this server, which guards against DNS rebinding. Probes may use any address."""
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
    """True for an origin of this server. Over TLS a page without TLS is another site."""
    stated = _place(origin)
    is_scheme = stated.scheme == scheme if scheme == "https" else stated.scheme in _USUAL
    return is_scheme and _plain(stated.netloc, stated.scheme) == _plain(host, stated.scheme)


def _plain(host: str, scheme: str) -> str:
    return host.lower().removesuffix(_USUAL[scheme])


def _place(address: str) -> SplitResult:
    """The parts of an address; empty parts where it is invalid."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


def _most(scope: Scope, limits: Limits) -> int:
    return limits.body_bytes if (scope["method"], scope["path"]) == ("POST", UPLOAD) else limits.json_bytes


def too_large(most: int) -> str:
    return f"the request is too large: at most {most} bytes"


def _counted(scope: Scope, receive: Receive, limits: Limits) -> Receive:
    """Count the bytes of a body whose length is not stated, or stated wrongly."""
    most, received = _most(scope, limits), 0

    async def counted() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > most:
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
    """JSON body of a refusal."""
    return {"error": {"reason": reason, **{name: value for name, value in more.items() if value is not None}}}


class RateLimit:
    """Limit of failures per key in a sliding window.

    An attempt is counted when it begins, so that parallel attempts do not evade the limit, and is removed when it
    succeeds. The number of keys is bounded; the least recently counted key is evicted.
    """

    MOST_KEYS: Final = 10_000

    def __init__(self, *, seconds: float = 60.0) -> None:
        self._seconds = seconds
        self._times: OrderedDict[str, deque[float]] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, tries: Mapping[str, int]) -> int:
        """Count an attempt under all keys, each with its limit.

        Returns:
            0, or the seconds to wait where a limit is reached; then the attempt is counted under no key.
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
        """Remove the newest attempt of these keys, which was no failure."""
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
    """An application that answers the probes, and all other requests with 503."""

    async def answered(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            await app(scope, receive, send)
        else:
            await _answer(send, 503, "too many connections", (b"connection", b"close"))

    return answered


COOKIE = "radweave_session"
CSRF_HEADER = "X-CSRF-Token"
DEVICE = "radweave_device"
"""Cookie of a browser that a user logged in with before: failures elsewhere do not lock it out."""
_DEVICE_S = 180 * 86_400
_LOGGED = 300
"""Refused logins logged per hour; the rest are counted in the next entry."""
_LOGGED_OF_ONE = 10
router = APIRouter(prefix="/api/v1")
# Hashing a password takes 64 MiB and tens of milliseconds by design: bound it.
_passwords = ConcurrencyLimit(2, most_waiting=20, wait_s=20.0)


def station_of(request: Request) -> Station:
    opened: Station = request.app.state.station
    return opened


CurrentStation = Annotated[Station, Depends(station_of)]


def current_user(request: Request, station: CurrentStation) -> User:
    """The user of a request; 401 without one, 403 without the CSRF token of the session."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    cookie = request.cookies.get(COOKIE)
    with station.database.reading() as connection:
        if scheme.lower() == "bearer":
            user = users.by_token(connection, token.strip())
        else:
            user = None if cookie is None else users.by_session(connection, cookie)
    if user is None:
        raise HTTPException(401, "log in, or send a token", {"WWW-Authenticate": "Bearer"})
    if user.csrf is not None and request.method not in SAFE:
        csrf = request.headers.get(CSRF_HEADER, "")
        if not hmac.compare_digest(csrf.encode(), user.csrf.encode()):
            raise HTTPException(403, f"the header {CSRF_HEADER} is missing or wrong")
    return user


CurrentUser = Annotated[User, Depends(current_user)]


def refuse_disabled(connection: Connection, user: User) -> None:
    """Refuse a user disabled since the request began, in the transaction of its change.

    Raises:
        HTTPException: 401.
    """
    if not users.is_enabled(connection, user.id):
        raise HTTPException(401, "log in, or send a token", {"WWW-Authenticate": "Bearer"})


def admin(user: CurrentUser) -> User:
    if not user.is_admin:
        raise HTTPException(403, "this needs the role admin")
    return user


Admin = Annotated[User, Depends(admin)]


class Body(BaseModel):
    """A JSON body without unknown fields."""

    model_config = ConfigDict(extra="forbid")


class Login(Body):
    """A name and a password, or a token."""

    name: str = Field(default="", max_length=100)
    password: str = Field(default="", max_length=users.LONGEST_PASSWORD)
    token: str = Field(default="", max_length=200)


class NewUser(Body):
    """A new user; without a password only tokens log it in."""

    name: str = Field(max_length=100)
    role: str = "reader"
    password: str | None = Field(default=None, max_length=users.LONGEST_PASSWORD)


class Disable(Body):
    """True to disable the user."""

    disabled: bool


class LoginLimits:
    """Limits of failed logins, and their log entries."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._failures, self._entries = RateLimit(), RateLimit(seconds=3600)
        self._more, self._lock = 0, threading.Lock()

    def begin(self, keys: Mapping[str, int]) -> None:
        """Count an attempt.

        Raises:
            HTTPException: 429 above the limit.
        """
        wait = self._failures.begin(keys)
        if wait:
            raise HTTPException(429, "too many failed logins", {"Retry-After": str(wait)})

    def succeed(self, keys: Iterable[str]) -> None:
        self._failures.succeed(*keys)

    def keys(self, client: str, name: str, device: str | None) -> dict[str, int]:
        """Keys of an attempt, each with its most failures per minute.

        A browser that the user logged in with before has its own key. All others share keys per address, per address
        and name, and per name over all addresses with a limit that takes many addresses to reach.
        """
        if device is not None:
            return {f"device {device}": self.most}
        return {f"client {client}": 4 * self.most, f"{client} {name}": self.most, f"name {name}": 20 * self.most}

    def note(self, station: Station, client: str, user: int | None) -> None:
        """Log a refused login: the address and the known user, never the typed name."""
        station.metrics.count("logins_refused")
        with self._lock:
            if self._entries.begin({"log": _LOGGED, f"log {client}": _LOGGED_OF_ONE}):
                self._more += 1
                return
            more, self._more = self._more, 0
        log_event("login-refused", client=client)
        details = {"address": client, "of_user": user, "not_logged_before": more}
        with station.database.writing() as connection:
            log.append(connection, "login refused", details={name: one for name, one in details.items() if one})


def login_limits(request: Request) -> LoginLimits:
    limits: LoginLimits = request.app.state.login_limits
    return limits


def client_of(request: Request) -> str:
    """The address under which a client is counted; no other text of a request is logged."""
    address = request.client.host if request.client else ""
    return peer_of(address) if address_of(address) is not None else "unknown"


def _signed(station: Station, user: int, password: str | None, nonce: str) -> str:
    secret = store.read_secret(station.settings.state)
    return hmac.new(secret, f"device {user} {nonce} {password}".encode(), "sha256").hexdigest()


def _known_device(request: Request, station: Station, row: Any) -> str | None:
    """Rate-limit key of a browser that this user logged in with, under the same password; else None."""
    nonce, _, signed = request.cookies.get(DEVICE, "").partition(".")
    if row is None or not hmac.compare_digest(signed.encode(), _signed(station, row.id, row.password, nonce).encode()):
        return None
    return nonce


def open_session(
    request: Request, response: Response, station: Station, connection: Connection, user: User
) -> dict[str, Any]:
    """Open a session and set the cookies of the browser."""
    secret, csrf = users.open_session(connection, user, seconds=station.settings.session_s)
    log.append(connection, "login", user=user.id)
    nonce, row = secrets.token_urlsafe(16), users.named(connection, user.name)
    assert row is not None
    is_encrypted = request.url.scheme == "https"
    for name, value, seconds, path in (
        (COOKIE, secret, int(station.settings.session_s), "/"),
        (DEVICE, f"{nonce}.{_signed(station, user.id, row.password, nonce)}", _DEVICE_S, "/api/v1/session"),
    ):
        response.set_cookie(
            name, value, max_age=seconds, httponly=True, samesite="strict", path=path, secure=is_encrypted
        )
    return {"user": user.name, "role": user.role, "csrf": csrf}


def one_password() -> AbstractContextManager[None]:
    """Slot for hashing one password; too many waiting requests are refused as busy, to leave threads for others."""
    return _passwords.slot()


@router.post("/session", tags=["session"])
def log_in(body: Login, request: Request, response: Response, station: CurrentStation) -> dict[str, Any]:
    """Open a session for a browser: a strict cookie, and the CSRF token that changes must repeat."""
    client, counted = client_of(request), login_limits(request)
    with station.database.reading() as connection:
        row = None if body.token else users.named(connection, body.name)
    # Logins by token have no name and share one key.
    name = "" if body.token else folded(body.name)
    keys = counted.keys(client, name, _known_device(request, station, row))
    counted.begin(keys)
    try:
        with one_password(), station.database.reading() as connection:
            if body.token:
                user = users.by_token(connection, body.token)
            else:
                user = users.by_password(connection, body.name, body.password)
    except Exception:  # an attempt refused because the server is busy is no failed login
        counted.succeed(keys)
        raise
    if user is None:
        counted.note(station, client, None if row is None else row.id)
        raise HTTPException(401, "unknown name, password or token")
    counted.succeed(keys)
    with station.database.writing() as connection:
        # The password may have been changed, or the token revoked, in the meantime.
        if body.token:
            is_still = users.by_token(connection, body.token) is not None
        else:
            is_still = row is not None and users.is_password(connection, user.id, row.password)
        if not is_still:
            raise HTTPException(401, "unknown name, password or token")
        return open_session(request, response, station, connection, user)


@router.get("/session", tags=["session"])
def read_session(user: CurrentUser) -> dict[str, Any]:
    """The user who is logged in, and the CSRF token of a browser."""
    return {"id": user.id, "user": user.name, "role": user.role, "csrf": user.csrf}


@router.delete("/session", tags=["session"], status_code=204)
def log_out(request: Request, user: CurrentUser, station: CurrentStation) -> Response:
    """End the session of the browser; return the logout address of the provider for its users."""
    with station.database.writing() as connection:
        users.close_session(connection, request.cookies.get(COOKIE, ""), user)
        log.append(connection, "logout", user=user.id)
        is_of_provider = users.is_of_provider(connection, user.id)
    end = None if station.provider is None or not is_of_provider else station.provider.end()
    answer = Response(status_code=204) if end is None else JSONResponse({"provider": end})
    answer.delete_cookie(COOKIE, path="/")
    return answer


@router.get("/users", tags=["users"])
def list_users(user: Admin, station: CurrentStation) -> dict[str, Any]:
    """All users."""
    with station.database.reading() as connection:
        return {"users": users.all_users(connection)}


@router.post("/users", tags=["users"], status_code=201)
def add_user(body: NewUser, user: Admin, station: CurrentStation) -> dict[str, Any]:
    """Add a reader or another admin."""
    with station.database.writing() as connection:
        refuse_disabled(connection, user)
        made = users.add_user(connection, body.name, role=body.role, password=body.password)
        log.append(connection, "user added", user=user.id, details={"user": made, "role": body.role})
    return {"id": made, "name": body.name, "role": body.role}


@router.patch("/users/{number}", tags=["users"], status_code=204)
def disable(number: int, body: Disable, user: Admin, station: CurrentStation) -> None:
    """Disable a user, whose sessions and tokens end at once, or enable it."""
    with station.database.writing() as connection:
        refuse_disabled(connection, user)  # two admins at once
        users.set_disabled(connection, number, is_disabled=body.disabled)
        action = "user disabled" if body.disabled else "user enabled"
        log.append(connection, action, user=user.id, details={"user": number})


@router.post("/users/{number}/token", tags=["users"], status_code=201)
def add_token(number: int, user: Admin, station: CurrentStation) -> dict[str, Any]:
    """A token for a program of this user; it is shown once."""
    with station.database.writing() as connection:
        refuse_disabled(connection, user)
        if number not in [row["id"] for row in users.all_users(connection)]:
            raise InputError("no such user", field="number", got=number)
        if not users.is_enabled(connection, number):
            raise InputError("is disabled", field="number", got=number)
        token = users.new_token(connection, number)
        log.append(connection, "token added", user=user.id, details={"user": number})
    return {"token": token}
