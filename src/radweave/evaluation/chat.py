"""An OpenAI-compatible chat endpoint over HTTP, for the judge."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage
from typing import IO, Any
from urllib.parse import urlsplit

from radweave.base.errors import InputError
from radweave.evaluation.judge import ChatFailedError, Messages

_MAX_ANSWER_BYTES = 4 << 20
_MAX_WAIT_S = 60.0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuse redirects: they would carry reports and key to another host."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


@dataclass(frozen=True)
class HttpChat:
    """``POST {base_url}/chat/completions``.

    Attributes:
        base_url: for example "http://127.0.0.1:8000/v1".
        model: name the endpoint knows.
        key: sent as bearer token; None sends none.
        timeout_s: per request.
        retries: further tries after a 408, 429, 5xx or broken connection.
        wait_s: before the first retry, doubled every time; a Retry-After header in seconds goes before.
    """

    base_url: str
    model: str
    key: str | None = None
    timeout_s: float = 120.0
    retries: int = 4
    wait_s: float = 1.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError("not a web address", field="judge", got=self.base_url, expected="http(s)://host/v1")
        if parts.username or parts.password:
            raise InputError("the address holds a password; give the key in RADWEAVE_JUDGE_KEY", field="judge")

    @property
    def name(self) -> str:
        return f"{self.model} at {urlsplit(self.base_url).hostname}"

    def complete(self, messages: Messages) -> str:
        """Ask at temperature 0 and return the answer's text.

        Raises:
            ChatFailedError: after the last try, or at once for a refusal that another try will not change.
        """
        body = json.dumps({"model": self.model, "messages": messages, "temperature": 0}).encode()
        wait = self.wait_s
        for remaining in range(self.retries, -1, -1):
            try:
                return _text_of(self._post(body))
            except urllib.error.HTTPError as error:
                problem, again = f"HTTP status {error.code}", error.code in (408, 429) or error.code >= 500
                wait = _retry_after(error, wait)
                error.close()
            except (TimeoutError, urllib.error.URLError, ConnectionError, HTTPException) as error:
                problem, again = f"no connection: {type(error).__name__}", True
            if not again or not remaining:
                raise ChatFailedError(problem)
            time.sleep(min(wait, _MAX_WAIT_S))
            wait *= 2
        raise AssertionError("the loop returns or raises")

    def _opener(self) -> urllib.request.OpenerDirector:
        # A server on this machine is never reached through a proxy.
        local = urlsplit(self.base_url).hostname in ("localhost", "127.0.0.1", "::1")
        proxies = [urllib.request.ProxyHandler({})] if local else []
        return urllib.request.build_opener(_NoRedirect, *proxies)

    def _post(self, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        url = self.base_url.rstrip("/") + "/chat/completions"
        request = urllib.request.Request(url, data=body, headers=headers, method="POST")
        with self._opener().open(request, timeout=self.timeout_s) as response:
            data: bytes = response.read(_MAX_ANSWER_BYTES + 1)
        if len(data) > _MAX_ANSWER_BYTES:
            raise ChatFailedError("the answer is too long")
        return data


def _retry_after(error: urllib.error.HTTPError, otherwise: float) -> float:
    value = error.headers.get("Retry-After", "") if error.headers else ""
    return float(value) if value.isdecimal() else otherwise


def _text_of(data: bytes) -> str:
    try:
        answer: Any = json.loads(data)
        text = answer["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        raise ChatFailedError("the answer is not that of a chat endpoint") from None
    if not isinstance(text, str):
        raise ChatFailedError("the answer holds no text")
    return text
