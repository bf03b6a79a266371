"""Many clients at once on a server that is killed in the middle, and a look at what is there in the end.

Each client is a reader of its own and asks as the pages do: it uploads a file, polls the work list until it is drafted,
locks the study, reads draft, evidence, prior and pictures, fetches the pictures of the next study, edits, looks at what
is flagged and signs or leaves; where the server is away it sends the same request again. In the end each file must be
one study, drafted once, with every edit and signature that was answered, once. ``close`` has all readers sign at once.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

_AWAY = (OSError, HTTPException)
PATIENCE_S = 900.0
"""Longest wait for an answer or a draft, on a machine that has other work too."""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def until(ready: Callable[[], Any], seconds: float = 60) -> Any:
    """What ``ready`` gives, once it is true."""
    end = time.monotonic() + seconds
    while not (result := ready()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return result


class Killed:
    """A server in a process of its own that can be killed and started again. ``command`` starts it on ``port``."""

    def __init__(self, command: Sequence[str], port: int, place: Path) -> None:
        self.command, self.port, self._place = list(command), port, place
        self._starts = 0
        self.token = self._start()

    def _start(self) -> str:
        """Start it; the first user's token, where this is the first time."""
        self._starts += 1
        self.log = self._place / f"server{self._starts}.log"
        server_output = self._place / f"server{self._starts}.out"
        with self.log.open("wb") as errors, server_output.open("wb") as out:
            self.process = subprocess.Popen(self.command, stdout=out, stderr=errors)
        end = time.monotonic() + PATIENCE_S
        while not self._answers():
            assert self.process.poll() is None, self.log.read_text()[-2_000:]
            assert time.monotonic() < end, "the server does not start"
            time.sleep(0.05)
        result = re.search(r"token=(\S+)", server_output.read_text())
        return result[1] if result else self.token

    def _answers(self) -> bool:
        try:
            return request(self.port, "GET", "/healthz", "").status == 200
        except _AWAY:
            return False

    @property
    def worker(self) -> int | None:
        """The inference process."""
        pids = re.findall(r'"event": "worker-ready".*"pid": (\d+)', self.log.read_text())
        return int(pids[-1]) if pids else None

    def kill_worker(self) -> None:
        os.kill(until(lambda: self.worker, PATIENCE_S), signal.SIGKILL)

    def kill_and_start(self) -> None:
        self.process.kill()
        self.process.wait()
        self._start()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(60)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: Any


def request(port: int, method: str, path: str, token: str, *, body: bytes | None = None, **headers: str) -> Answer:
    """One request on a connection of its own."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        headers_sent = {
            "Authorization": f"Bearer {token}",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        connection.request(method, path, body, headers_sent)
        answer = connection.getresponse()
        data = answer.read()
        isjson = "json" in (answer.getheader("content-type") or "")
        result = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, result, json.loads(data) if isjson and data else data)
    finally:
        connection.close()


def form(name: str, data: bytes) -> bytes:
    """A form with one file; its boundary is ``x``."""
    head = f'--bOuNd\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'
    return head.encode() + data + b"\r\n--bOuNd--\r\n"


FORM = "multipart/form-data; boundary=bOuNd"


@dataclass(frozen=True, slots=True)
class Closing:
    """Signatures of all readers at once: seconds from the first request to the last, and those to each answer."""

    spread_s: float
    answered_s: list[float]


@dataclass
class Load:
    """Clients, what they were answered, and how long that took."""

    server: Killed
    images: Sequence[bytes]
    poll_s: float = 1.0
    tokens: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    edits: dict[str, str] = field(default_factory=dict)
    signed: set[str] = field(default_factory=set)
    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    counts: Counter[str] = field(default_factory=Counter)
    failed: list[BaseException] = field(default_factory=list)
    _own: threading.local = field(default_factory=threading.local)

    def run(self, clients: int, seconds: float, meanwhile: Callable[[], None]) -> None:
        """All clients for so long; ``meanwhile`` runs beside them."""
        self.tokens = [self._add_reader(number) for number in range(clients)]
        self._end = time.monotonic() + seconds
        self._together([(number, partial(self._client, number)) for number in range(clients)], meanwhile)

    def close(self, clients: int) -> Closing:
        """All readers sign a study at the same moment, each twice, as from two windows, and leave it."""
        studies = [""] * clients
        start = threading.Barrier(2 * clients)
        sent: list[float] = []
        answers: list[tuple[str, int, float]] = []

        def prepare(number: int) -> None:
            name = f"e{number:03}.png"
            studies[number] = self._submit(name, self.images[number % len(self.images)])
            self._wait(studies[number])
            self._open(studies[number])
            self._edit(studies[number], f"Seen in {name}.")

        def sign(number: int) -> None:
            study = studies[number]
            start.wait(PATIENCE_S)
            begun = time.monotonic()
            sent.append(begun)
            status = self._change("sign", "POST", f"/studies/{study}/sign", {"version": 2, "seconds": 1}).status
            answers.append((study, status, time.monotonic() - begun))
            assert self.ask("leave", "DELETE", f"/studies/{study}/lock").status == 204

        self._together([(number, partial(prepare, number)) for number in range(clients)])
        self._together([(number, partial(sign, number)) for number in range(clients) for _ in range(2)])
        for study in studies:
            assert sorted(status for one, status, _ in answers if one == study) == [200, 409], answers
        self.signed.update(studies)
        return Closing(max(sent) - min(sent), [seconds for _, _, seconds in answers])

    def _together(
        self, tasks: Sequence[tuple[int, Callable[[], None]]], meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        """Do tasks at once, each as a reader; ``meanwhile`` runs beside them."""

        def guarded(number: int, task: Callable[[], None]) -> None:
            self._own.token = self.tokens[number]
            try:
                task()
            except BaseException as error:
                self.failed.append(error)

        threads = [threading.Thread(target=guarded, args=task) for task in tasks]
        for thread in threads:
            thread.start()
        meanwhile()
        for thread in threads:
            thread.join()
        if self.failed:
            raise self.failed[0]

    def _add_reader(self, number: int) -> str:
        """A reader who sees the studies of all, as its token."""
        user = self._change("user", "POST", "/users", {"name": f"reader {number}", "role": "admin"}).body["id"]
        return str(self.ask("token", "POST", f"/users/{user}/token").body["token"])

    def _client(self, number: int) -> None:
        turn = 0
        while time.monotonic() < self._end:
            name = f"c{number:03}-{turn:05}.png"
            study = self._submit(name, self.images[(number + turn) % len(self.images)])
            self._wait(study)
            self._open(study)
            self._work(study, f"Seen in {name}.", signs=turn % 2 == 0)
            turn += 1

    def ask(self, kind: str, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        """Ask until the server is there, and until its queue takes it."""
        end = time.monotonic() + PATIENCE_S
        while True:
            assert time.monotonic() < end, f"{kind}: no answer"
            begun = time.monotonic()
            try:
                token = getattr(self._own, "token", self.server.token)
                answer = request(self.server.port, method, f"/api/v1{path}", token, body=body, **headers)
            except _AWAY:
                self.counts["away"] += 1
                time.sleep(0.2)
                continue
            assert answer.status < 500 or answer.status == 503, (kind, answer)
            if answer.status == 503:
                self.counts["full"] += 1
                assert int(answer.headers["retry-after"]) > 0
                time.sleep(min(1.0, int(answer.headers["retry-after"])))
                continue
            self.times[kind].append(time.monotonic() - begun)
            return answer

    def _submit(self, name: str, data: bytes) -> str:
        headers = {"Content_Type": FORM, "Idempotency_Key": name}
        answer = self.ask("upload", "POST", "/studies", form(name, data), **headers)
        self.names.add(name)
        if answer.status == 409:  # the answer to the first time was lost with the server
            self.counts["known"] += 1
            (result,) = self.ask("search", "GET", f"/studies?search={name}").body["studies"]
            return str(result["id"])
        assert answer.status == 202, answer
        return str(answer.body["studies"][0])

    def _wait(self, study: str) -> None:
        begun = time.monotonic()
        while True:
            listed = self.ask("list", "GET", "/studies?offset=0&limit=50&sort=created&descending=true").body["studies"]
            states = {row["id"]: row["state"] for row in listed}
            # After many newer studies it is on another page.
            state = states.get(study) or self.ask("read", "GET", f"/studies/{study}").body["state"]
            if state == "drafted":
                self.times["draft"].append(time.monotonic() - begun)
                return
            assert state in ("waiting", "drafting"), state
            assert time.monotonic() < begun + PATIENCE_S, "no draft"
            time.sleep(self.poll_s)

    def _open(self, study: str) -> None:
        """Ask for what the page of a study asks for, and for the pictures of the next study."""
        self.ask("read", "GET", f"/studies/{study}")
        lock = self._change("lock", "POST", f"/studies/{study}/lock", {})
        assert lock.status == 200, lock
        for part in ("evidence", "prior"):
            assert self.ask(part, "GET", f"/studies/{study}/{part}").status == 200
        self._look(study)
        for row in self.ask("next", "GET", f"/studies/next?skip={study}").body["studies"]:
            assert row["id"] != study
            self._look(row["id"])

    def _look(self, study: str) -> None:
        """Fetch the pictures of a study."""
        for image in self.ask("images", "GET", f"/studies/{study}/images").body["images"]:
            if "problem" not in image:
                pixels = self.ask("pixels", "GET", f"/studies/{study}/images/{image['name']}/pixels")
                assert pixels.status == 200
                assert len(pixels.body) > 0

    def _work(self, study: str, text: str, *, signs: bool) -> None:
        self._edit(study, text)
        if signs:
            answer = self._change("sign", "POST", f"/studies/{study}/sign", {"version": 2, "seconds": 1})
            assert answer.status in (200, 409), answer
            self.signed.add(study)
        else:
            assert self.ask("leave", "DELETE", f"/studies/{study}/lock").status == 204

    def _edit(self, study: str, text: str) -> None:
        """Add a sentence, and look at what is flagged."""
        edit = {"version": 1, "edits": [{"op": "insert", "text": text}]}
        answer = self._change("edit", "PATCH", f"/studies/{study}/sentences", edit)
        assert answer.status in (200, 409), answer  # 409: kept, and the answer was lost
        self.edits[study] = text
        draft = self.ask("read", "GET", f"/studies/{study}").body["draft"]
        flagged = [row["key"] for row in draft["sentences"] if row["flagged"]]
        if flagged:
            self._change("look", "POST", f"/studies/{study}/looked", {"version": 2, "sentences": flagged})

    def _change(self, kind: str, method: str, path: str, headers_sent: Any) -> Answer:
        return self.ask(kind, method, path, json.dumps(headers_sent).encode(), Content_Type="application/json")

    def burst(self, clients: int, files: int, *, uploads: int) -> Counter[int]:
        """Archives of ``files`` images from all at once: the answers. What is taken must be there in the end."""
        answers: Counter[int] = Counter()

        def send(number: int) -> None:
            for turn in range(uploads):
                names = [f"b{number:03}-{turn:02}-{place:04}.png" for place in range(files)]
                packed = io.BytesIO()
                with zipfile.ZipFile(packed, "w") as archive:
                    for place, name in enumerate(names):
                        archive.writestr(name, self.images[place % len(self.images)])
                body = form("studies.zip", packed.getvalue())
                port, token = self.server.port, self.server.token
                answer = request(port, "POST", "/api/v1/studies", token, body=body, Content_Type=FORM)
                answers[answer.status] += 1
                assert answer.status != 503 or int(answer.headers["retry-after"]) > 0
                if answer.status == 202:
                    self.names.update(names)

        self._together([(number, partial(send, number)) for number in range(clients)])
        return answers

    def check(self) -> int:
        """How many studies there are: those that were sent, each once, drafted once, as it was left."""
        result = self._all()
        end = time.monotonic() + PATIENCE_S
        while any(row["state"] in ("waiting", "drafting") for row in result):
            assert time.monotonic() < end
            time.sleep(1.0)
            result = self._all()
        twice = [name for name, count in Counter(row["name"] for row in result).items() if count > 1]
        assert twice == [], twice
        assert {row["name"] for row in result} == self.names
        assert {row["state"] for row in result} <= {"drafted", "edited", "signed"}
        states = {row["id"]: row["state"] for row in result}
        for study in states:
            entries = self.ask("log", "GET", f"/studies/{study}/log").body["entries"]
            actions = Counter(entry["action"] for entry in entries)
            assert actions["drafted"] == 1, actions
            assert actions["edited"] == (study in self.edits), actions
            assert actions["signed"] == (study in self.signed), actions
            assert actions["lock taken over"] == 0, actions
        for study, text in self.edits.items():
            assert text in self.ask("read", "GET", f"/studies/{study}").body["draft"]["text"]
            assert states[study] == ("signed" if study in self.signed else "edited")
        assert self.ask("check", "GET", "/log/check").body["broken_at"] is None
        return len(result)

    def _all(self) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = []
        while True:
            page = self.ask("list", "GET", f"/studies?offset={len(result)}&limit=200").body
            result += page["studies"]
            if not page["studies"]:
                return result
