"""The client of chat endpoints against servers on this machine that fail, stall, lie and lead elsewhere."""

from __future__ import annotations

import base64
import io
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import parse_headers
from typing import Any

import pytest
from PIL import Image, PngImagePlugin

from radweave.core.chat import (
    Budget,
    BudgetSpentError,
    ChatFailedError,
    HttpChat,
    _seconds,
    image_part,
    key_of,
    refuse_address,
    text_part,
)
from radweave.core.errors import InputError
from tests.metrics.judge_server import Reply, completion, serving

QUESTION = [{"role": "user", "content": "x"}]


def chat(url: str, **settings: Any) -> HttpChat:
    return HttpChat(url, "m", **{"wait_s": 0.0, "timeout_s": 5.0, "retries": 1, **settings})


@contextmanager
def speaking(speak: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that reads a request and then says what ``speak`` sends; yields its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.05)
    done = threading.Event()

    def one(connection: socket.socket) -> None:
        try:
            with connection.makefile("rb") as request:  # to its end: a close with bytes unread resets the connection
                request.read(int(parse_headers(request)["Content-Length"]) if request.readline() else 0)
            speak(connection)
        except OSError:
            pass
        finally:
            connection.close()

    def serve() -> None:
        while not done.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            threading.Thread(target=one, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        done.set()
        thread.join()
        listener.close()


OK = b"HTTP/1.1 200 OK\r\n"
WHOLE = completion("A report.")


def drip(head: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    """Say the head, then a piece every now and then, for ever."""

    def speak(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(piece)
            time.sleep(0.02)

    return speak


@pytest.mark.parametrize(
    ("speak", "message"),
    [
        (lambda sock: sock.sendall(OK + b"Content-Length: 15\r\n\r\n<html>hi</html>"), "not that of a chat endpoint"),
        (lambda sock: sock.sendall(OK + b"Content-Length: 99999\r\n\r\n" + WHOLE[:40]), "not that of a chat endpoint"),
        (lambda sock: sock.sendall(OK + b"Transfer-Encoding: chunked\r\n\r\nff\r\n" + WHOLE[:40]), "IncompleteRead"),
        (lambda sock: sock.sendall(OK + b"Content-Length: 99999999999\r\n\r\n"), "too long"),
        (lambda sock: sock.sendall(b"nonsense\r\n\r\n"), "BadStatusLine"),
        (lambda sock: sock.close(), "RemoteDisconnected"),
        (lambda sock: time.sleep(3), "no answer within 0.3 s"),
        (drip(OK, b"X-More: of the head\r\n"), "no answer within 0.3 s|HTTPException"),
        (drip(b"HTTP/1.1 2", b""), "no answer within 0.3 s"),
        (drip(OK + b"\r\n", b" "), "no answer within 0.3 s"),
    ],
    ids=["html", "truncated", "chunk", "long", "no-http", "closed", "silent", "headers", "status", "endless"],
)
def test_an_answer_that_is_none_is_one_line_in_time(speak: Callable[[socket.socket], None], message: str) -> None:
    started = time.monotonic()
    with speaking(speak) as url, pytest.raises(ChatFailedError, match=message) as failed:
        chat(url, timeout_s=0.3).ask(QUESTION)
    assert failed.value.requests == 2
    assert not failed.value.is_final
    assert time.monotonic() - started < 5


def test_a_name_that_no_machine_has_is_no_connection() -> None:
    for host in ("nowhere.invalid", "a" * 70):
        with pytest.raises(ChatFailedError, match="no connection"):
            chat(f"http://{host}/v1", allow_remote=True, retries=0).ask(QUESTION)


def test_an_endless_body_ends_at_its_limit() -> None:
    def speak(connection: socket.socket) -> None:
        connection.sendall(OK + b"\r\n")
        while True:
            connection.sendall(b" " * (1 << 20))

    with speaking(speak) as url, pytest.raises(ChatFailedError, match=r"too long|no answer"):
        chat(url, retries=0).ask(QUESTION)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_followed_nowhere(status: int) -> None:
    with serving(lambda *_: (200, {}, WHOLE)) as other:
        headers = {"Location": f"{other.url}/chat/completions"}
        with serving(lambda *_: (status, headers, b"")) as server:
            with pytest.raises(ChatFailedError, match=str(status)) as failed:
                chat(server.url, key="secret-key").ask(QUESTION)
            assert len(server.requests) == 1
        assert other.requests == []
    assert failed.value.is_final


def test_this_machine_is_reached_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(lambda *_: (200, {}, WHOLE)) as server, serving(lambda *_: (200, {}, WHOLE)) as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url.removesuffix("/v1"))
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert chat(server.url).complete(QUESTION) == "A report."
        assert chat(server.url.replace("127.0.0.1", "localhost")).complete(QUESTION) == "A report."
        assert (len(server.requests), len(proxy.requests)) == (2, 0)
        assert chat("http://far.invalid/v1", allow_remote=True).complete(QUESTION) == "A report."
        assert proxy.requests[0]["path"] == "http://far.invalid/v1/chat/completions"


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.7:8000/v1", "https://api.openai.com/v1", "http://127.0.0.1.example.org/v1", "http://127.1/v1",
        "http://localhost.example.org/v1", "http://[::ffff:10.0.0.7]/v1", "http://0.0.0.0:8000/v1",
        "http://127.0.0.1@example.org/v1", "http://example.org\\@127.0.0.1/v1",
    ],
)  # fmt: skip
def test_patients_data_stays_on_this_machine(url: str) -> None:
    with pytest.raises(InputError, match=r"leave this machine|more than host|not a web address"):
        HttpChat(url, "m")


def test_a_name_of_this_machine_that_leads_elsewhere_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hosts file or a resolver may give localhost any address."""

    class Elsewhere(socket.socket):
        def getpeername(self) -> Any:
            return ("192.0.2.1", 80)

    with serving(lambda *_: (200, {}, WHOLE)) as server:
        monkeypatch.setattr(socket, "socket", Elsewhere)
        with pytest.raises(ChatFailedError, match="no connection"):
            chat(server.url.replace("127.0.0.1", "localhost"), retries=0).ask(QUESTION)
        monkeypatch.undo()
        assert server.requests == []


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:80", "file:///etc/passwd", "http://user:pw@127.0.0.1/v1", "http://127.0.0.1/v1?key=secret",
            "http://127.0.0.1:99999/v1"],
)  # fmt: skip
def test_addresses_that_are_none_are_not_quoted(url: str) -> None:
    with pytest.raises(InputError) as refused:
        refuse_address(url, field="endpoint", allow_remote=True)
    assert "pw" not in str(refused.value)
    assert "secret" not in str(refused.value)


def test_the_key_is_in_one_header_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "secret-key\n")
    with serving(lambda *_: (200, {}, WHOLE)) as server:
        one = chat(server.url, key=key_of("SOME_KEY"))
        one.ask(QUESTION)
        assert server.headers[0]["Authorization"] == "Bearer secret-key"
        assert "secret" not in json.dumps(server.requests)
    assert "secret" not in repr(one)
    for status in (400, 401, 500):
        with serving(lambda *_, status=status: (status, {}, b"your key secret-key is bad")) as server:
            with pytest.raises(ChatFailedError) as failed:
                chat(server.url, key="secret-key", retries=0).ask(QUESTION)
            assert "secret" not in repr(failed.value)
    monkeypatch.setenv("SOME_KEY", "secret\nkey")
    with pytest.raises(InputError, match="not a key") as refused:
        key_of("SOME_KEY")
    assert "secret" not in str(refused.value)
    monkeypatch.delenv("SOME_KEY")
    assert key_of("SOME_KEY") is None


def test_an_image_is_its_pixels_alone() -> None:
    image = Image.new("L", (4, 3), 7)
    text = PngImagePlugin.PngInfo()
    text.add_text("PatientName", "Doe^Jane")
    file = io.BytesIO()
    image.save(file, format="PNG", pnginfo=text)
    opened = Image.open(file)
    opened.load()
    assert opened.info["PatientName"] == "Doe^Jane"
    part: Any = image_part(opened)
    head, _, data = part["image_url"]["url"].partition(",")
    sent = base64.b64decode(data)
    assert head == "data:image/png;base64"
    assert b"Doe" not in sent
    assert list(Image.open(io.BytesIO(sent)).getdata()) == [7] * 12
    assert text_part("t") == {"type": "text", "text": "t"}


def test_a_wait_that_the_server_asks_for_holds_for_every_thread() -> None:
    times: list[float] = []

    def busy(number: int, _: dict[str, Any]) -> Reply:
        times.append(time.monotonic())
        return (429, {"Retry-After": "1"}, b"") if number == 1 else (200, {}, WHOLE)

    with serving(busy) as server:
        one = chat(server.url)
        first = threading.Thread(target=one.ask, args=(QUESTION,))
        first.start()
        while not times:
            time.sleep(0.01)
        time.sleep(0.1)
        one.ask(QUESTION)
        first.join()
    assert len(times) == 3
    assert min(times[1:]) - times[0] >= 0.95
    assert _seconds("Thu, 01 Jan 1970 00:00:00 GMT") == 0
    assert (_seconds("7"), _seconds("soon"), _seconds(None)) == (7.0, None, None)


def test_waits_double_and_are_less_by_up_to_half(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("radweave.core.chat.time.sleep", waits.append)
    with serving(lambda *_: (503, {}, b"")) as server, pytest.raises(ChatFailedError, match="503"):
        chat(server.url, wait_s=2.0, retries=3).ask(QUESTION)
    slept = [wait for wait in waits if wait >= 1]
    assert len(slept) == 3
    assert all(full / 2 <= wait <= full for wait, full in zip(slept, (2, 4, 8), strict=True))


def test_a_budget_is_of_all_requests_and_of_the_tokens_that_the_server_counts() -> None:
    answer = json.dumps({**json.loads(WHOLE), "usage": {"total_tokens": 30}}).encode()
    with serving(lambda number, _: (200, {}, answer) if number > 1 else (500, {}, b"")) as server:
        one = chat(server.url, budget=Budget(requests=3))
        assert one.ask(QUESTION).requests == 2
        one.ask(QUESTION)
        with pytest.raises(BudgetSpentError, match=r"budget is spent .*got 3"):
            one.ask(QUESTION)
        assert len(server.requests) == 3
        two = chat(server.url, budget=Budget(tokens=50))
        assert [two.ask(QUESTION).tokens for _ in range(2)] == [30, 30]
        with pytest.raises(BudgetSpentError, match="tokens"):
            two.ask(QUESTION)


def test_half_a_character_in_an_answer_becomes_a_mark() -> None:
    with serving(lambda *_: (200, {}, completion("a \ud800 b"))) as server:
        assert chat(server.url).complete(QUESTION) == "a ? b"
