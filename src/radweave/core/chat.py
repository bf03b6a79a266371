"""A client of chat endpoints in OpenAI's form, as vLLM, SGLang, TGI, Ollama and clouds serve them.

chat = HttpChat("http://127.0.0.1:8000/v1", "medgemma", key_of(ENDPOINT_KEY))
answer = chat.ask([{"role": "user", "content": [text_part("Describe the image."), image_part(image)]}])

A request has messages, images as data URLs, and settings of the decoding: no id, no file name, no name of a user. It
goes to this machine alone unless ``allow_remote``, never to where a redirect points, and to this machine never through
a proxy. Errors quote neither the key nor what a server says, which may repeat the request.
Source: the Chat Completions API, https://platform.openai.com/docs/api-reference/chat.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from radweave.core.errors import InputError

if TYPE_CHECKING:
    from PIL import Image

LOGGER: Final = logging.getLogger(__name__)
Messages = Sequence[Mapping[str, object]]
"""Turns with ``role`` and ``content``, a text or a list of parts."""
ENDPOINT_KEY: Final = "RADWEAVE_ENDPOINT_KEY"
"""The environment variable with the key of an endpoint: it stands in no file and no message."""
_MOST_BYTES: Final = 4 << 20
_LONGEST_WAIT_S: Final = 600.0
"""Limit of a wait between tries, also of one that the server asks for."""
_RETRIED: Final = frozenset({408, 409, 425, 429})
_FINAL: Final = frozenset({401, 402, 403, 404, 405})
"""Statuses that no other study changes: no right, no money, no such model."""


class ChatFailedError(Exception):
    """The endpoint gave no answer; the message says why, without the key.

    ``is_final`` if no other request would get one. ``requests`` is the number of tries.
    """

    def __init__(self, problem: str, *, is_final: bool = False, requests: int = 1) -> None:
        super().__init__(problem)
        self.is_final = is_final
        self.requests = requests


class BudgetSpentError(InputError):
    """The requests or tokens that were allowed are spent."""


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """The text of an answer, its ``tokens`` (those of the prompt too; None where the server does not count them), the
    reason why it ended, and the number of ``requests`` that it took.
    """

    text: str
    tokens: int | None = None
    finish: str | None = None
    requests: int = 1


def text_part(text: str) -> dict[str, object]:
    """A part of a message that is text."""
    return {"type": "text", "text": text}


def image_part(image: Image.Image) -> dict[str, object]:
    """A part of a message that is an image: a PNG of the pixels alone, as a data URL."""
    buffer = io.BytesIO()
    plain = image.copy()
    plain.info = {}  # text, profile and EXIF data of a file may name a patient
    plain.save(buffer, format="PNG")
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def key_of(variable: str) -> str | None:
    """The key in an environment variable; None where there is none.

    Raises:
        InputError: for a key that no header can hold. It is not shown.
    """
    key = os.environ.get(variable, "").strip()
    if not all("!" <= character <= "~" for character in key):
        raise InputError("not a key: it holds blanks or characters beyond ASCII", field=variable)
    return key or None


def is_loopback(host: str) -> bool:
    """True for an address of this machine alone; other names than ``localhost`` may point anywhere."""
    with contextlib.suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def refuse_address(url: str, *, field: str, allow_remote: bool, option: str = "allow_remote=true") -> None:
    """Refuse an address that is none, holds a password, or is of another machine without ``allow_remote``.

    ``option`` is the way in which a user allows it.

    Raises:
        InputError: naming the field. The address is shown without what may be a secret.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host:
        raise InputError("not a web address", field=field, expected="http(s)://host/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        expected = "http(s)://host/v1, and the key in an environment variable"
        raise InputError("the address holds more than host and path", field=field, expected=expected)
    if not allow_remote and not is_loopback(host):
        raise InputError(
            "images and texts of patients would leave this machine",
            field=field,
            got=host,
            expected=f"an address of this machine (127.0.0.1), or {option}",
        )


class Budget:
    """The most requests and tokens of a job, shared by its threads; tokens are those that the server counts."""

    def __init__(self, requests: int | None = None, tokens: int | None = None) -> None:
        self.most_requests, self.most_tokens = requests, tokens
        self.requests = self.tokens = 0
        self._lock = threading.Lock()

    def take(self) -> None:
        """Count a request that is about to be sent.

        Raises:
            BudgetSpentError: if none is left.
        """
        with self._lock:
            for name, spent, most in (
                ("requests", self.requests, self.most_requests),
                ("tokens", self.tokens, self.most_tokens),
            ):
                if most is not None and spent >= most:
                    raise BudgetSpentError("the budget is spent", field=name, got=spent, expected=f"at most {most}")
            self.requests += 1

    def add(self, *, requests: int = 0, tokens: int | None) -> None:
        """Count tokens, and requests of an earlier process."""
        with self._lock:
            self.requests += requests
            self.tokens += tokens or 0


class Pause:
    """A time before which no thread sends a request: what a server asks of one holds for all."""

    def __init__(self) -> None:
        self._until = 0.0
        self._lock = threading.Lock()

    def ask(self, seconds: float) -> None:
        """Let nobody send for so long."""
        with self._lock:
            self._until = max(self._until, time.monotonic() + seconds)

    def wait(self) -> None:
        """Sleep until requests may be sent."""
        while (left := self._until - time.monotonic()) > 0:
            time.sleep(min(left, 1.0))


@dataclass(frozen=True, slots=True)
class _Response:
    """Status, the wait that the server asks for, and the body."""

    status: int
    retry_after_s: float | None
    body: bytes


@dataclass(frozen=True)
class HttpChat:
    """``POST {base_url}/chat/completions``.

    Attributes:
        base_url: for example "http://127.0.0.1:8000/v1".
        model: name the endpoint knows.
        key: sent as bearer token; None sends none.
        timeout_s: of a request, from its start to the end of the answer.
        retries: further tries after a 408, 409, 425, 429, 5xx, a broken connection, or an answer that is none.
        wait_s: before the first retry, doubled every time, less up to half at random; a Retry-After header goes before,
            and holds for all threads.
        allow_remote: send to other machines than this one.
        budget: counts requests and tokens.
    """

    base_url: str
    model: str
    key: str | None = field(default=None, repr=False)
    timeout_s: float = 120.0
    retries: int = 4
    wait_s: float = 1.0
    allow_remote: bool = False
    budget: Budget = field(default_factory=Budget, repr=False, compare=False)
    pause: Pause = field(default_factory=Pause, repr=False, compare=False)

    def __post_init__(self) -> None:
        refuse_address(self.base_url, field="endpoint", allow_remote=self.allow_remote)
        if not is_loopback(self.host):
            plain = "" if self.base_url.startswith("https:") else ", not encrypted"
            LOGGER.warning("data of patients leave this machine for %s%s (allow_remote=true)", self.host, plain)

    @property
    def host(self) -> str:
        """The machine that is asked."""
        return str(urlsplit(self.base_url).hostname)

    @property
    def name(self) -> str:
        return f"{self.model} at {self.host}"

    def complete(self, messages: Messages) -> str:
        """Ask at temperature 0 and return the answer's text.

        Raises:
            ChatFailedError: as ``ask``.
        """
        return self.ask(messages).text

    def body(self, messages: Messages, options: Mapping[str, object]) -> bytes:
        """The body of a request: the same for the same question, whoever asks it, and when."""
        return json.dumps({"model": self.model, "messages": messages, "temperature": 0, **options}).encode()

    def ask(self, messages: Messages, options: Mapping[str, object] | None = None) -> ChatAnswer:
        """Ask, at temperature 0 unless ``options`` of the request say otherwise.

        Raises:
            ChatFailedError: as ``send``.
            BudgetSpentError: as ``send``.
        """
        return self.send(self.body(messages, options or {}))

    def send(self, body: bytes) -> ChatAnswer:
        """Send a request that ``body`` made.

        Raises:
            ChatFailedError: after the last try, or at once for a refusal that another try will not change.
            BudgetSpentError: if no request is left.
        """
        wait = self.wait_s
        for attempt in range(self.retries + 1):
            self.pause.wait()
            self.budget.take()
            delay: float | None = None
            try:
                response = self._post(body)
                if response.status == 200:
                    return self._answer(response.body, attempt + 1)
                problem, delay = f"HTTP status {response.status}", response.retry_after_s
                if response.status not in _RETRIED and response.status < 500:
                    is_final = response.status in _FINAL or response.status < 400
                    raise ChatFailedError(problem, is_final=is_final, requests=attempt + 1)
            except _NoAnswerError as error:
                problem = str(error)
            except TimeoutError:
                problem = f"no answer within {self.timeout_s:g} s"
            except (OSError, HTTPException, UnicodeError) as error:  # the last of a name that is none
                problem = f"no connection: {type(error).__name__}"
            if attempt < self.retries:
                if delay is not None:
                    self.pause.ask(min(delay, _LONGEST_WAIT_S))
                else:
                    time.sleep(min(wait, _LONGEST_WAIT_S) * random.uniform(0.5, 1.0))  # of waits alone: no seed
                wait *= 2
        raise ChatFailedError(problem, requests=self.retries + 1)

    def _answer(self, body: bytes, requests: int) -> ChatAnswer:
        text, tokens, finish = _read_answer(body)
        self.budget.add(tokens=tokens)
        return ChatAnswer(text, tokens, finish, requests)

    def _post(self, body: bytes) -> _Response:
        headers = {"Content-Type": "application/json", "User-Agent": "radweave"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        connection, path = self._connection()
        with _deadline(connection, self.timeout_s):
            connection.connect()
            if not self.allow_remote and not is_loopback(str(connection.sock.getpeername()[0])):
                raise ConnectionError  # a name of this machine that leads elsewhere
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            if response.length is not None and response.length > _MOST_BYTES:
                raise _NoAnswerError("the answer is too long")
            data = response.read(_MOST_BYTES + 1)
            if len(data) > _MOST_BYTES:
                raise _NoAnswerError("the answer is too long")
            return _Response(response.status, _seconds(response.headers.get("Retry-After")), data)

    def _connection(self) -> tuple[HTTPConnection, str]:
        """A connection that is not open yet, and the path to ask for on it."""
        parts = urlsplit(self.base_url)
        path = parts.path.rstrip("/") + "/chat/completions"
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        proxy = None if is_loopback(self.host) or proxy_bypass(self.host) else getproxies().get(parts.scheme)
        if proxy is None:
            return kind(self.host, parts.port, timeout=self.timeout_s), path
        hop = urlsplit(proxy if "//" in proxy else f"//{proxy}")
        login = {}
        if hop.username:
            pair = base64.b64encode(f"{hop.username}:{hop.password or ''}".encode()).decode("ascii")
            login = {"Proxy-Authorization": f"Basic {pair}"}
        connection = kind(str(hop.hostname), hop.port or 80, timeout=self.timeout_s)
        if parts.scheme == "http" and not login:
            return connection, f"{parts.scheme}://{parts.netloc}{path}"
        # A tunnel also for plain HTTP with a log-in, so that this is a header of the tunnel alone.
        connection.set_tunnel(self.host, parts.port or (443 if parts.scheme == "https" else 80), login)
        return connection, path


class _NoAnswerError(Exception):
    """An answer that is none: another try may get one."""


@contextlib.contextmanager
def _deadline(connection: HTTPConnection, seconds: float) -> Iterator[None]:
    """Close a connection after so long, whatever comes over it, and at the end.

    A socket's own timeout is of one read: a server that sends a byte now and then would hold a thread for ever.

    Raises:
        TimeoutError: if the time is over.
    """
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    sockets: list[socket.socket] = []
    connect = connection.connect

    def remembered() -> None:
        connect()
        sockets.append(connection.sock)  # an answer that ends the connection takes it away from there
        if expired.is_set():
            raise TimeoutError

    connection.connect = remembered  # type: ignore[method-assign]
    timer = threading.Timer(seconds, expire)
    timer.daemon = True
    timer.start()
    try:
        yield
        if expired.is_set():
            raise TimeoutError
    except (OSError, HTTPException, _NoAnswerError):
        if expired.is_set():
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()
        connection.close()
        for sock in sockets:
            sock.close()


def _seconds(value: str | None) -> float | None:
    """A Retry-After header (RFC 9110, 10.2.3): seconds, or a date."""
    if value is None:
        return None
    if value.strip().isascii() and value.strip().isdecimal():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return None


def _read_answer(body: bytes) -> tuple[str, int | None, str | None]:
    """Text, tokens and reason of the end of an answer."""
    try:
        answer: Any = json.loads(body)
        choice = answer["choices"][0]
        text = choice["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        raise _NoAnswerError("the answer is not that of a chat endpoint") from None
    if not isinstance(text, str) or not text.strip():
        raise _NoAnswerError("the answer holds no text")
    usage = answer.get("usage")
    tokens = usage.get("total_tokens") if isinstance(usage, dict) else None
    finish = choice.get("finish_reason")
    return (
        text.encode("utf-8", "replace").decode("utf-8"),  # half a character is no text
        tokens if type(tokens) is int and 0 <= tokens < 1 << 40 else None,
        finish if isinstance(finish, str) and finish.isidentifier() and len(finish) < 40 else None,
    )
