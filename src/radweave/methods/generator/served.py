"""Reports of a model that another program serves: vLLM, SGLang, TGI, Ollama, or a cloud (``radweave.core.chat``).

A study is one question: its images as PNGs, the texts that the model is told, the instruction. Questions of several
studies are open at once; answers come back in the order of the studies. An answer can be kept in a file as it comes, by
the hash of its question, so that a job that is killed asks nothing twice. A study without an answer is named, and the
others go on.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from radweave.core.batch import Generation, VisionFeatures
from radweave.core.chat import (
    ENDPOINT_KEY,
    Budget,
    BudgetSpentError,
    ChatAnswer,
    ChatFailedError,
    HttpChat,
    image_part,
    key_of,
    refuse_address,
    text_part,
)
from radweave.core.config import Config
from radweave.core.errors import InputError, UnusableModelError
from radweave.core.evidence import DraftEvidence, ServedEvidence
from radweave.core.storage import sha256_bytes, writing
from radweave.methods.generator.network import Query
from radweave.nn.decoding import DecodingConfig, Prefixes, Written

_LONGEST_WORD: Final = 40
"""Characters per token of an answer from which on it cannot be the report that was asked for."""


class ServedConfig(Config):
    """Requests to the endpoint: the ``name`` that it knows the model by, and how it is asked.

    ``concurrency`` questions are open at once. A request ends after ``timeout_s`` and is tried ``retries`` more times,
    after ``wait_s`` that double. ``requests`` and ``tokens`` are the most that a job may spend. After
    ``give_up_after`` studies in a row without an answer the job ends; what was answered is kept.
    """

    name: str = Field(default="", max_length=200)
    concurrency: int = Field(default=8, ge=1, le=512)
    timeout_s: float = Field(default=120.0, gt=0, le=3600)
    retries: int = Field(default=5, ge=0, le=100)
    wait_s: float = Field(default=1.0, ge=0, le=600)
    requests: int | None = Field(default=None, ge=1, le=10**12)
    tokens: int | None = Field(default=None, ge=1, le=10**15)
    give_up_after: int = Field(default=20, ge=1, le=1_000_000)


class ServedSettings(ServedConfig):
    """The same with the address: what may be set anew for a run, since it changes no word of a report."""

    endpoint: str
    allow_remote: bool = False


class NoTower(nn.Module):
    """The place of the vision encoder in a model that runs elsewhere: one token of nothing for each image."""

    dim = 1
    channels = 1

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("nothing", torch.zeros(1))

    def forward(self, pixel_values: Float[Tensor, "n c h w"]) -> VisionFeatures:
        """A zero for each image."""
        return VisionFeatures(pixel_values.new_zeros(len(pixel_values), 1, 1), (1, 1))


# Answers that are kept.


class Answers:
    """Answers by the hash of their question, in files of a folder: a line each, written when the answer comes.

    FOLDER/<process>.jsonl   {"key", "text", "finish", "requests", "tokens"}, or {"key", "failed", "requests"}

    Every process has a file of its own, and reads those of others as it starts. Half a line of a killed one is skipped.
    A question that failed is asked again.
    """

    def __init__(self, folder: Path) -> None:
        self.requests = self.tokens = 0
        self._answers: dict[str, ChatAnswer] = {}
        self._path = folder / f"{uuid.uuid4().hex}.jsonl"
        self._lock = threading.Lock()
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.glob("*.jsonl")):
            for line in path.read_bytes().splitlines():
                self._read(line)

    def _read(self, line: bytes) -> None:
        try:
            row = json.loads(line)
            key, requests, tokens = str(row["key"]), int(row["requests"]), int(row.get("tokens") or 0)
            if "failed" not in row:
                self._answers[key] = ChatAnswer(str(row["text"]), row.get("tokens"), row.get("finish"), requests)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return
        self.requests += requests
        self.tokens += tokens

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: str) -> ChatAnswer | None:
        """The answer to a question, if it is here."""
        return self._answers.get(key)

    def add(self, key: str, answer: ChatAnswer) -> None:
        """Keep an answer."""
        fields = {"text": answer.text, "finish": answer.finish, "requests": answer.requests, "tokens": answer.tokens}
        self._append({"key": key, **fields})
        self._answers[key] = answer

    def add_failure(self, key: str, reason: str, requests: int) -> None:
        """Note the requests of a question without an answer."""
        self._append({"key": key, "failed": reason, "requests": requests})

    def _append(self, row: dict[str, object]) -> None:
        # One write, so that a process that is killed leaves whole lines but for the last.
        line = json.dumps(row).encode() + b"\n"
        with self._lock, writing(self._path):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)


# Questions and answers of a batch.


@dataclass(frozen=True, slots=True)
class ServedPrompts(Prefixes):
    """The questions of a batch; ``evidence`` gets a row for each study when its answer is there."""

    queries: tuple[Query, ...] = ()
    evidence: list[DraftEvidence] = field(default_factory=list)

    @classmethod
    def of(cls, queries: Sequence[Query]) -> ServedPrompts:
        """The questions of these studies."""
        count = len(queries)
        return cls(torch.zeros(count, 1, 1), torch.ones(count, 1, dtype=torch.bool), queries=tuple(queries))

    def finish(self, ids: list[list[int]], log_probs: list[list[float]]) -> Generation:
        """The reports with their evidence."""
        return Generation(token_ids=ids, intermediates=list(self.evidence))


class _Workers:
    """Threads that make calls; they do not keep a process from ending."""

    def __init__(self, count: int) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], ServedReport], Future[ServedReport]] | None] = (
            queue.SimpleQueue()
        )
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        return len(self._threads)

    def submit(self, call: Callable[[], ServedReport]) -> Future[ServedReport]:
        """Make a call when a thread is free."""
        future: Future[ServedReport] = Future()
        self._calls.put((call, future))
        return future

    def end(self, *, wait: bool = False) -> None:
        """Let the threads end after the calls that they are in, and ``wait`` for them; the other calls are dropped."""
        while not self._calls.empty():
            self._calls.get()
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads if wait else ():
            thread.join()

    def _work(self) -> None:
        while (job := self._calls.get()) is not None:
            call, future = job
            try:
                future.set_result(call())
            except BaseException as error:  # of whatever kind: the reader of the future raises it
                future.set_exception(error)


@dataclass(frozen=True, slots=True)
class ServedReport:
    """The text of a report, empty where there is none, and how it was come by."""

    text: str
    evidence: ServedEvidence


class ServedWriter(nn.Module):
    """The language model of an endpoint, as a part of a model: it writes a report for each question.

    Attributes:
        settings: address and options of the requests.
        instruction: of the user's turn.
        encode: a report's text to ids of the run's tokenizer, whose text they are again.
        decode: ids of texts of the study to text.
        eos_id: id that ends a report of a prior.
    """

    def __init__(
        self,
        settings: ServedSettings,
        instruction: str,
        encode: Callable[[str], list[int]],
        decode: Callable[[list[int]], str],
        eos_id: int,
    ) -> None:
        super().__init__()
        self.instruction, self.encode, self.decode, self.eos_id = instruction, encode, decode, eos_id
        self.answers: Answers | None = None
        self._failed_in_a_row = 0
        self._lock = threading.Lock()
        self.set(settings)

    def set(self, settings: ServedSettings) -> None:
        """Ask by these settings from now on.

        Raises:
            InputError: for an address that must not be asked, or no model.
        """
        refuse_address(settings.endpoint, field="model.endpoint", allow_remote=settings.allow_remote)
        if not settings.name:
            expected = "the name in its /v1/models"
            raise InputError("which model does it serve?", field="model.served.name", expected=expected)
        self.settings = settings
        self._chat: HttpChat | None = None
        self._budget = Budget(settings.requests, settings.tokens)

    def allow_remote(self, allowed: bool) -> None:
        """Let questions go to another machine, or refuse the first one that would."""
        self.settings = self.settings.model_copy(update={"allow_remote": allowed})
        self._chat = None

    def keep(self, folder: Path, share: int = 1) -> None:
        """Keep answers in a folder, and take those that are there; they count in the budget.

        Args:
            folder: of the job.
            share: number of processes that share what is left of the budget.
        """
        self.answers = answers = Answers(folder)
        left = [
            None if most is None else max(0, most - spent) // share
            for most, spent in (
                (self.settings.requests, answers.requests),
                (self.settings.tokens, answers.tokens),
            )
        ]
        self._budget, self._chat = Budget(*left), None

    @property
    def chat(self) -> HttpChat:
        """The client; its key is read at the first question."""
        if self._chat is None:
            settings = self.settings
            self._chat = HttpChat(
                settings.endpoint,
                settings.name,
                key_of(ENDPOINT_KEY),
                timeout_s=settings.timeout_s,
                retries=settings.retries,
                wait_s=settings.wait_s,
                allow_remote=settings.allow_remote,
                budget=self._budget,
            )
        return self._chat

    def write(self, batches: Iterator[Prefixes], decoding: DecodingConfig) -> Iterator[Written]:
        """Reports for batches of questions, in order. Later batches are read while answers are awaited.

        Raises:
            InputError: for options of decoding that the interface does not have, or if the budget is spent.
            UnusableModelError: if the endpoint refuses, or has given no answer for many studies in a row.
        """
        options = request_options(decoding)
        chat, workers = self.chat, _Workers(self.settings.concurrency)
        pending: deque[tuple[ServedPrompts, list[Future[ServedReport]]]] = deque()
        try:
            for prompts in batches:
                assert isinstance(prompts, ServedPrompts), "the model makes its questions"
                calls = [lambda query=query: self._report(chat, query, options) for query in prompts.queries]
                pending.append((prompts, [workers.submit(call) for call in calls]))
                # As many as keep every thread busy, and no more images in memory.
                while sum(not future.done() for _, futures in pending for future in futures) >= 2 * len(workers):
                    yield self._written(*pending.popleft())
            while pending:
                yield self._written(*pending.popleft())
        except BudgetSpentError:
            workers.end(wait=True)  # what is paid for is kept
            raise
        finally:
            workers.end()

    def _written(self, prompts: ServedPrompts, futures: Sequence[Future[ServedReport]]) -> Written:
        reports = [future.result() for future in futures]
        prompts.evidence.extend({"served": report.evidence} for report in reports)
        return [self.encode(report.text) for report in reports], [[] for _ in reports]

    def _report(self, chat: HttpChat, query: Query, options: dict[str, object]) -> ServedReport:
        """Ask one question, unless its answer is kept.

        Raises:
            InputError: as ``write``.
        """
        body = chat.body(self.messages(query), options)
        key = sha256_bytes(body)
        answer = None if self.answers is None else self.answers.get(key)
        if answer is None:
            try:
                answer = chat.send(body)
                if len(answer.text) > _LONGEST_WORD * int(str(options["max_tokens"])):
                    raise ChatFailedError("the answer is no report: it is too long", requests=answer.requests)
            except ChatFailedError as error:
                return self._no_report(key, error)
            if self.answers is not None:
                self.answers.add(key, answer)
        with self._lock:
            self._failed_in_a_row = 0
        evidence: ServedEvidence = {"model": self.settings.name, "requests": answer.requests}
        if answer.tokens is not None:
            evidence["tokens"] = answer.tokens
        if answer.finish is not None:
            evidence["finish"] = answer.finish
        return ServedReport(answer.text.strip(), evidence)

    def _no_report(self, key: str, error: ChatFailedError) -> ServedReport:
        if self.answers is not None:
            self.answers.add_failure(key, str(error), error.requests)
        with self._lock:
            self._failed_in_a_row += 1
            in_a_row = self._failed_in_a_row
        if error.is_final:
            raise UnusableModelError(
                f"the endpoint refuses: {error}",
                field="model.endpoint",
                expected=f"the model {self.settings.name} there, and a key in {ENDPOINT_KEY} where it asks for one",
            ) from None
        if in_a_row >= self.settings.give_up_after:
            raise UnusableModelError(
                f"the endpoint gave no answer for {in_a_row} studies in a row: {error}; what was answered is kept",
                field="model.endpoint",
            ) from None
        return ServedReport("", {"model": self.settings.name, "requests": error.requests, "failed": str(error)})

    def messages(self, query: Query) -> list[dict[str, object]]:
        """The turn of a study: its images, then which they are, what is told of it, and the instruction.

        Nothing else of a study is in it: no id, no file name, no date.
        """
        context = self.decode(list(query.inserted))
        text = "\n".join(part for part in (query.shown.strip(), context, self.instruction) if part)
        images = [image_part(image.convert("L")) for image in query.images]
        return [{"role": "user", "content": [*images, text_part(text)]}]


_DEFAULTS: Final = ("num_beams", "min_new_tokens", "repetition_penalty", "length_penalty", "no_repeat_ngram_size")


def request_options(decoding: DecodingConfig) -> dict[str, object]:
    """The options of decoding in a request.

    Raises:
        InputError: for one that endpoints do not have in common.
    """
    plain = DecodingConfig()
    for name in _DEFAULTS:
        if getattr(decoding, name) != getattr(plain, name):
            raise InputError(
                "a served model has no such option of decoding",
                field=f"decoding.{name}",
                got=getattr(decoding, name),
                expected=getattr(plain, name),
            )
    options: dict[str, object] = {"max_tokens": decoding.max_new_tokens, "seed": decoding.seed}
    if decoding.do_sample:
        options |= {"temperature": decoding.temperature, "top_p": decoding.top_p}
    return options
