"""Drafts of a model: prepared studies in, text and evidence out. Validation and every predictor write through this."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from radweave.base.batch import Batch, Generation
from radweave.base.parts import PARTS, parts_of, rows_by_part, whole
from radweave.base.study import Modality
from radweave.contract.model import ReportModel, device_of
from radweave.contract.writing import generations
from radweave.data.loader import Example, collate
from radweave.data.tokenizer import decode
from radweave.drafting.writer import Written
from radweave.labels.contradictions import contradictions_of
from radweave.nn.decoding import DecodingConfig
from radweave.runs.comparisons import ABOUT_SENTENCES, take_out_comparisons
from radweave.runs.drafting import Drafting
from radweave.runs.evidence import json_value
from radweave.runs.marks import take_out_marks

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EMPTY = "the draft is empty: the model wrote nothing, which says nothing about the study"


CONTRADICTIONS = "contradictions"
"""The key in a report's evidence: a list of {``states``, ``denies``}, ``states`` null where nothing else is stated."""


def _contradicting(text: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The sentences of a draft that cannot all be true, as evidence and as a warning; nothing where there are none."""
    found = [{"states": states, "denies": denies} for states, denies in contradictions_of(text)]
    if not found:
        return {}, ()
    pairs = "a sentence denies" if len(found) == 1 else f"{len(found)} times a sentence denies"
    warning = f"the draft contradicts itself: {pairs} what another one states (see {CONTRADICTIONS} in the evidence)"
    return {CONTRADICTIONS: found}, (warning,)


@dataclass(frozen=True, slots=True)
class Draft:
    """What a model wrote for a study, its evidence as values that JSON can hold, and what a reader must be told."""

    example: Example
    text: str
    evidence: dict[str, Any]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Drafter:
    """A model with what turns its output into text. ``target`` is what the run learned to write."""

    model: ReportModel
    tokenizer: PreTrainedTokenizerBase
    decoding: DecodingConfig
    modality: Modality
    drafting: Drafting | None = None
    target: str = "findings"

    def drafts(
        self, examples: Iterable[Example], *, batch_size: int = 16, progress: Callable[[int], None] | None = None
    ) -> Iterator[Draft]:
        """Write drafts in batches, in the order given. ``progress`` is told how many studies are done."""
        if not self.model.asks_priors():
            examples = (replace(example, prior=None) for example in examples)
        done, begun = 0, deque[tuple[list[Example], Batch]]()
        batches = self._batches(examples, batch_size, begun)
        # Batches stream through: the next one may be read before one is done.
        each: Iterator[Any] = (
            map(self._chosen, batches)
            if self.decoding.kind == "expected_utility"
            else generations(self.model, batches, self.decoding)
        )
        while True:
            with torch.inference_mode():
                found = next(each, None)
                if found is None:
                    return
                chunk, batch = begun.popleft()
                written = self._decoded(found, batch) if isinstance(found, Generation) else found
            done += len(chunk)
            if progress is not None:
                progress(done)
            for example, one in zip(chunk, map(self._in_parts, written), strict=True):
                unmarked, shown, marked = self._unmarked(one.text, one.evidence)
                said, kept, compared = self._unprompted(unmarked, shown, example)
                torn, against = _contradicting(said)
                warnings = (*one.warnings, *marked, *compared, *self._missing(said), *against)
                # One that says itself why there is no draft has said it.
                yield Draft(example, said, {**kept, **torn}, warnings if said or one.warnings else (*warnings, EMPTY))

    def _batches(
        self, examples: Iterable[Example], batch_size: int, begun: deque[tuple[list[Example], Batch]]
    ) -> Iterator[Batch]:
        """The batches in order; each is among those that are ``begun`` from then on."""
        stream, device, pad_id = iter(examples), device_of(self.model), int(self.tokenizer.pad_token_id)
        while chunk := list(islice(stream, batch_size)):
            begun.append((chunk, collate(chunk, pad_id=pad_id).to(device)))
            yield begun[-1][1]

    def _decoded(self, generation: Generation, batch: Batch) -> list[Written]:
        """What the method's own decoder wrote. While a run trains it has no calibration yet, and a method's own say."""
        classes = [] if self.drafting is None else self.drafting.classes(batch, self.decoding)
        each = zip(generation.token_ids, generation.intermediates, strict=True)
        written = [(decode(self.tokenizer, ids), self._evidence(ids, values)) for ids, values in each]
        return [
            Written(text, {**evidence, **json_value(own)})
            for (text, evidence), own in zip(written, classes or [{}] * len(written), strict=True)
        ]

    def _chosen(self, batch: Batch) -> list[Written]:
        """What has the highest expected utility under what the model sees."""
        assert self.drafting is not None, "a restored run has it"
        written = self.drafting.write(batch, self.decoding)
        return [Written(one.text, json_value(one.evidence), one.warnings) for one in written]

    def _in_parts(self, one: Written) -> Written:
        """A draft of a run that writes two parts: its headings as we write them, its sentences without, by section."""
        parts = parts_of(one.text) if self.target == "both" else {}
        if not parts:
            return one
        rows = {name: rows_by_part(one.evidence[name]) for name in ABOUT_SENTENCES if one.evidence.get(name)}
        rows.setdefault("sentences", [{"text": text, "section": name} for name, text in parts.items()])
        return replace(one, text=whole(parts), evidence={**one.evidence, **rows})

    def _missing(self, text: str) -> tuple[str, ...]:
        """A warning where a draft of two parts lacks one."""
        if self.target != "both" or not text:
            return ()
        lacks = [name for name in PARTS if name not in parts_of(text)]
        return (f"the draft has no {' and no '.join(lacks)} under a heading",) if lacks else ()

    def _unmarked(self, text: str, evidence: dict[str, Any]) -> tuple[str, dict[str, Any], tuple[str, ...]]:
        """No radiologist wrote a mark of de-identification: sentences that hold one are taken out."""
        if self.decoding.deidentification_marks == "keep":
            return text, evidence, ()
        return take_out_marks(text, evidence)

    def _unprompted(
        self, text: str, evidence: dict[str, Any], example: Example
    ) -> tuple[str, dict[str, Any], tuple[str, ...]]:
        """Without a prior there is nothing to compare with: the comparisons of the draft are taken out."""
        if example.prior is not None or self.decoding.unprompted_comparisons == "keep":
            return text, evidence, ()
        return take_out_comparisons(text, evidence, self.modality)

    def _evidence(self, ids: list[int], values: dict[str, Any]) -> dict[str, Any]:
        """Intermediates as JSON values; token log-probabilities become a confidence per sentence."""
        evidence = {name: json_value(value) for name, value in values.items() if name != "token_log_probs"}
        if "token_log_probs" in values:
            evidence["sentences"] = self._sentences(ids, values["token_log_probs"])
        return evidence

    def _sentences(self, ids: list[int], log_probs: list[float]) -> list[dict[str, Any]]:
        sentences: list[dict[str, Any]] = []
        start = 0
        for end in range(1, len(ids) + 1):
            if end == len(ids) or self._ends_sentence(ids, end):
                mean = sum(log_probs[start:end]) / (end - start)
                text = decode(self.tokenizer, ids[start:end])
                if text:
                    sentences.append({"text": text, "confidence": round(math.exp(min(0.0, mean)), 4)})
                start = end
        return sentences

    def _ends_sentence(self, ids: list[int], end: int) -> bool:
        """Whether a full stop and then a space come at ``end``; a token by itself does not show its space."""
        if not decode(self.tokenizer, ids[end - 1 : end]).endswith("."):
            return False
        before, after = (
            str(self.tokenizer.decode(ids[:stop], clean_up_tokenization_spaces=False)) for stop in (end, end + 1)
        )
        return after[len(before) :].startswith(" ")
