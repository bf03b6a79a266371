"""What every request and every response goes through: limits, headers, one line in the log, no traceback to anyone."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radweave.base.study import RESEARCH_ONLY
from radweave.serve.events import say, say_failure
from radweave.serve.forwarded import Proxies, peer_of
from radweave.serve.metrics import Metrics
from radweave.serve.patience import patient
from radweave.serve.room import NoRoomError, Room
from radweave.serve.settings import LOOPBACK, Limits, Settings

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
