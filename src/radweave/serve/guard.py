"""What every request and every response goes through: limits, headers, one line in the log, no traceback to anyone."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radweave.base.study import RESEARCH_ONLY
from radweave.serve.events import say, say_failure
from radweave.serve.metrics import Metrics
from radweave.serve.patience import patient
from radweave.serve.settings import LOOPBACK, Limits, Settings

UPLOAD: Final = "/api/v1/studies"
SAFE: Final = ("GET", "HEAD", "OPTIONS")
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

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status = time.monotonic(), 0

        async def guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = {name for name, _ in message.get("headers", ()) if name in _OWN}
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in own]
                message["headers"] = [*message.get("headers", ()), *extra]
            await send(message)

        refused = _refusal(scope, self._settings)
        try:
            if refused is not None:
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


def _refusal(scope: Scope, settings: Settings) -> tuple[int, str] | None:
    """Requests that another site makes a browser send, and bodies that say themselves that they are too large."""
    host = _header(scope, b"host") or ""
    # A name that is made to lead to this machine (DNS rebinding) is another name.
    if settings.host in LOOPBACK and _place(f"//{host}").hostname not in LOOPBACK:
        return 400, "unknown host"
    origin = _header(scope, b"origin")
    if scope["method"] not in SAFE and origin is not None and _place(origin).netloc != host:
        return 403, "a request from another site"
    stated = _header(scope, b"content-length") or "0"
    most = _most(scope, settings.limits)
    if not (stated.isascii() and stated.isdigit()) or len(stated) > _DIGITS or int(stated) > most:
        return 413, too_large(most)
    return None


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


async def _answer(send: Send, status: int, reason: str) -> None:
    body = json.dumps(error(reason)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def error(reason: str, **more: Any) -> dict[str, Any]:
    """What every refusal looks like."""
    return {"error": {"reason": reason, **{name: value for name, value in more.items() if value is not None}}}


class RateLimit:
    """At most so many tries in a minute for each key."""

    MOST_KEYS: Final = 10_000

    def __init__(self, tries: int, *, seconds: float = 60.0) -> None:
        self._tries, self._seconds = tries, seconds
        self._times: dict[str, deque[float]] = {}
        self._lock = threading.Lock()

    def wait(self, *keys: str) -> int:
        """Count a try under all keys; the seconds to wait where it is one too many, else 0."""
        now = time.monotonic()
        with self._lock:
            if len(self._times) > self.MOST_KEYS:
                self._times = {key: times for key, times in self._times.items() if times[-1] > now - self._seconds}
            waits = [self._left(key, now) for key in keys]
            if any(waits):
                return max(waits)
            for key in keys:
                self._times.setdefault(key, deque()).append(now)
        return 0

    def _left(self, key: str, now: float) -> int:
        times = self._times.get(key, deque())
        while times and times[0] <= now - self._seconds:
            times.popleft()
        if not times:
            self._times.pop(key, None)
        return 0 if len(times) < self._tries else 1 + int(self._seconds - (now - times[0]))
