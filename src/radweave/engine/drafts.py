"""Drafts of a model: text and evidence for prepared studies, in validation and in every predictor."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import torch

from radweave.core.batch import Batch, Generation
from radweave.core.evidence import Contradiction, DraftEvidence, EditedSentence, FindingPlace, SentenceEvidence
from radweave.core.ontology import NO_FINDING
from radweave.core.study import (
    NO_SECTION,
    SECTIONS,
    LabelState,
    Modality,
    join_sections,
    join_sentences,
    rows_by_section,
    split_sections,
)
from radweave.data.loader import Example, collate
from radweave.data.tokenizer import decode
from radweave.drafting.places import sentence_places
from radweave.drafting.writer import UtilityDraft
from radweave.engine.place import PlacePart, boxes_on_images
from radweave.labels import LABELER_OF, get_labeler
from radweave.labels.comparisons import Edit, remove_comparisons, without_marks
from radweave.labels.contradictions import contradictions_of
from radweave.labels.labeler import Labeler
from radweave.labels.text import split_sentences
from radweave.methods.model import ReportModel, device_of, generations
from radweave.nn.decoding import DecodingConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from radweave.engine.expected_utility import Drafting

COMPARISONS_REMOVED: Final = "comparisons_removed"
"""The key in a report's evidence: a list of {``was``, ``now``}, ``now`` null for a sentence that was left out."""
MARKS_REMOVED: Final = "marks_removed"
"""The key in a report's evidence: sentences with de-identification marks that were left out."""
CONTRADICTIONS: Final = "contradictions"
"""The key in a report's evidence: a list of {``states``, ``denies``}, ``states`` null where nothing else is stated."""
ABOUT_SENTENCES: Final[tuple[Literal["sentences"], Literal["sentence_fit"]]] = ("sentences", "sentence_fit")
"""Evidence whose rows are about a sentence, by its ``text``; in a draft of two parts each has its ``section``."""
EMPTY = "the draft is empty: the model wrote nothing, which says nothing about the study"


def without_comparisons(draft: UtilityDraft, modality: Modality) -> UtilityDraft:
    """Remove comparisons with a prior from a draft and its evidence, with a warning."""
    labeler = get_labeler(LABELER_OF[modality])
    rows = draft.evidence.get("sentences") or [{"text": draft.text}]
    parts = [remove_comparisons(str(row["text"]), labeler) for row in rows]
    edits = [edit for _, made in parts for edit in made]
    if not edits:
        return draft
    text = join_sentences(
        (str(row.get("section", NO_SECTION)), part) for row, (part, _) in zip(rows, parts, strict=True) if part
    )
    evidence = draft.evidence
    about = _edited_rows(evidence, lambda sentence: remove_comparisons(sentence, labeler)[0])
    taken: list[EditedSentence] = [{"was": edit.was, "now": edit.now} for edit in edits]
    evidence = {**evidence, **about, COMPARISONS_REMOVED: taken}
    return UtilityDraft(text, evidence, (*draft.warnings, _comparison_warning(edits, labeler)))


def _comparison_warning(edits: list[Edit], labeler: Labeler) -> str:
    """The number of edited sentences, of those left out, and of those with findings."""
    left_out = [edit.was for edit in edits if edit.now is None]
    stated = (LabelState.POSITIVE, LabelState.UNCERTAIN)
    with_findings = sum(
        any(name != NO_FINDING and mention.state in stated for name, mention in mentions.items())
        for mentions in labeler.label(left_out)
    )
    sentences = "a sentence" if len(edits) == 1 else f"{len(edits)} sentences"
    warning = f"{sentences} of the draft compared with an earlier study, and none was given: "
    if not left_out:
        return warning + "the comparison was taken out"
    named = f", {with_findings} of them with findings" if with_findings else ""
    return f"{warning}{len(left_out)} left out{named} (see {COMPARISONS_REMOVED} in the evidence)"


def without_marked_sentences(draft: UtilityDraft) -> UtilityDraft:
    """Remove sentences with de-identification marks from a draft and its evidence, with a warning."""
    text, removed = without_marks(draft.text)
    if not removed:
        return draft
    about = _edited_rows(draft.evidence, lambda sentence: without_marks(sentence)[0])
    sentences, were = ("a sentence", "was") if len(removed) == 1 else (f"{len(removed)} sentences", "were")
    warning = (
        f"{sentences} of the draft held marks of de-identification (XXXX, ___) and"
        f" {were} left out (see {MARKS_REMOVED} in the evidence)"
    )
    return UtilityDraft(text, {**draft.evidence, **about, MARKS_REMOVED: removed}, (*draft.warnings, warning))


def _edited_rows(evidence: DraftEvidence, edit: Callable[[str], str]) -> DraftEvidence:
    """Evidence about sentences with their edited texts; rows without any text left are dropped."""
    edited = {}
    for name in ABOUT_SENTENCES:
        if evidence.get(name):
            rows: list[dict[str, object]] = [{**row, "text": edit(row.get("text", ""))} for row in evidence[name]]
            edited[name] = [row for row in rows if row["text"]]
    return cast(DraftEvidence, edited)


def with_contradictions(draft: UtilityDraft) -> UtilityDraft:
    """Add sentences that cannot all be true to the evidence, with a warning."""
    rows: list[Contradiction] = [
        {"states": states, "denies": denies} for states, denies in contradictions_of(draft.text)
    ]
    if not rows:
        return draft
    pairs = "a sentence denies" if len(rows) == 1 else f"{len(rows)} times a sentence denies"
    warning = f"the draft contradicts itself: {pairs} what another one states (see {CONTRADICTIONS} in the evidence)"
    return UtilityDraft(draft.text, {**draft.evidence, CONTRADICTIONS: rows}, (*draft.warnings, warning))


def served_warnings(evidence: DraftEvidence) -> tuple[str, ...]:
    """Warnings of a draft from an endpoint: there is none, or it was cut."""
    served = evidence.get("served")
    if served is None:
        return ()
    if (reason := served.get("failed")) is not None:
        return (f"no draft: {reason}",)
    return (
        ("the draft was cut at its most tokens (decoding.max_new_tokens)",) if served.get("finish") == "length" else ()
    )


DIGITS = 4
"""Significant digits of a number, enough for attention maps at a third of the length."""


def json_value(value: Any) -> Any:
    """The value as JSON: arrays as nested lists, floats of ``DIGITS`` digits, None for NaN and infinity.

    Raises:
        TypeError: for other types than numbers, texts, None, arrays and containers of these.
    """
    if isinstance(value, (str, bool, int)) or value is None:
        return value
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): json_value(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    if hasattr(value, "detach"):  # a tensor, which may be on a device and in half precision
        value = value.detach().cpu()
    if hasattr(value, "tolist"):
        return json_value(value.tolist())
    raise TypeError(f"evidence of type {type(value).__name__} cannot be shown")


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft of a study, with evidence as JSON values and warnings for readers."""

    example: Example
    text: str
    evidence: DraftEvidence
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Drafter:
    """A model with its tokenizer and decoding; ``target`` is the text that the run learned to write."""

    model: ReportModel
    tokenizer: PreTrainedTokenizerBase
    decoding: DecodingConfig
    modality: Modality
    drafting: Drafting | None = None
    target: str = "findings"
    place: PlacePart | None = None

    def drafts(self, examples: Iterable[Example], *, batch_size: int = 16) -> Iterator[Draft]:
        """Write drafts in batches, in order."""
        if self.drafting is not None and not (self.drafting.reads_priors or self.decoding.asks_prior):
            examples = (replace(example, prior=None) for example in examples)
        begun = deque[tuple[list[Example], Batch]]()
        batches = self._batches(examples, batch_size, begun)
        # Batches are streamed: the next one may be read before the last one is done.
        outputs: Iterator[Any] = (
            map(self._by_expected_utility, batches)
            if self.decoding.kind == "expected_utility"
            else generations(self.model, batches, self.decoding)
        )
        while True:
            with torch.inference_mode():
                output = next(outputs, None)
                if output is None:
                    return
                chunk, batch = begun.popleft()
                written = self._decoded(output, batch) if isinstance(output, Generation) else output
            places = batch.places or [{}] * len(chunk)
            for example, raw, own in zip(chunk, written, places, strict=True):
                draft = self._placed(self._edited(raw, example), example, own)
                yield Draft(example, draft.text, draft.evidence, draft.warnings)

    def _batches(
        self, examples: Iterable[Example], batch_size: int, begun: deque[tuple[list[Example], Batch]]
    ) -> Iterator[Batch]:
        """Batches in order, each appended to ``begun``."""
        stream, device, pad_id = iter(examples), device_of(self.model), int(self.tokenizer.pad_token_id)
        while chunk := list(islice(stream, batch_size)):
            batch = collate(chunk, pad_id=pad_id).to(device)
            if self.place is not None:
                batch.places = self.place(self.model.encoder, batch)
            begun.append((chunk, batch))
            yield batch

    def _decoded(self, generation: Generation, batch: Batch) -> list[UtilityDraft]:
        """Drafts of the method's own decoder, with calibrated classes once the run has a calibration."""
        classes = [] if self.drafting is None else self.drafting.classes(batch, self.decoding)
        each = zip(generation.token_ids, generation.intermediates, strict=True)
        written = [(decode(self.tokenizer, ids), self._evidence(ids, values)) for ids, values in each]
        return [
            UtilityDraft(text, {**evidence, **json_value(own)}, served_warnings(evidence))
            for (text, evidence), own in zip(written, classes or [{}] * len(written), strict=True)
        ]

    def _by_expected_utility(self, batch: Batch) -> list[UtilityDraft]:
        assert self.drafting is not None, "a restored run has it"
        written = self.drafting.write(batch, self.decoding)
        return [replace(draft, evidence=json_value(draft.evidence)) for draft in written]

    def _edited(self, raw: UtilityDraft, example: Example) -> UtilityDraft:
        """The draft with headings, without marks and unprompted comparisons, and with warnings."""
        draft = self._in_sections(raw)
        if self.decoding.deidentification_marks != "keep":
            draft = without_marked_sentences(draft)
        if example.prior is None and self.decoding.unprompted_comparisons != "keep":
            draft = without_comparisons(draft, self.modality)
        if self.target == "both" and draft.text:
            missing = [name for name in SECTIONS if name not in split_sections(draft.text)]
            warning = f"the draft has no {' and no '.join(missing)} under a heading"
            draft = replace(draft, warnings=(*draft.warnings, *([warning] if missing else [])))
        draft = with_contradictions(draft)
        # A raw draft with warnings states itself why it is empty.
        return draft if draft.text or raw.warnings else replace(draft, warnings=(*draft.warnings, EMPTY))

    def _placed(self, draft: UtilityDraft, example: Example, own: Mapping[str, FindingPlace]) -> UtilityDraft:
        """The draft with the places of the findings that each sentence states, where the run has a part for it."""
        if self.place is None:
            return draft
        window = None if example.window is None else cache(example.window)
        rows = draft.evidence.get("sentences") or [{"text": text} for text in split_sentences(draft.text)]
        placed: list[SentenceEvidence] = []
        for row in rows:
            places = sentence_places(row["text"], self.place.reader, own)
            for one in places:
                one["boxes"] = [] if window is None else list(boxes_on_images(one["boxes"], window))
            # Rounded as all evidence is, so that a study's is the same alone and in a batch.
            placed.append(cast(SentenceEvidence, {**row, "places": json_value(places)}))
        return replace(draft, evidence={**draft.evidence, "sentences": placed})

    def _in_sections(self, draft: UtilityDraft) -> UtilityDraft:
        """A draft of two parts with our headings in the text, and sentences by section in the evidence."""
        parts = split_sections(draft.text) if self.target == "both" else {}
        if not parts:
            return draft
        evidence = draft.evidence
        rows = {name: rows_by_section(evidence[name]) for name in ABOUT_SENTENCES if evidence.get(name)}
        rows.setdefault("sentences", [{"text": text, "section": name} for name, text in parts.items()])
        return replace(draft, text=join_sections(parts), evidence={**evidence, **cast(DraftEvidence, rows)})

    def _evidence(self, ids: list[int], values: DraftEvidence) -> DraftEvidence:
        """Intermediates as JSON values; token log-probabilities become a confidence per sentence."""
        shown = {name: json_value(value) for name, value in values.items() if name != "token_log_probs"}
        evidence = cast(DraftEvidence, shown)
        if "token_log_probs" in values:
            evidence["sentences"] = self._sentences(ids, values["token_log_probs"])
        return evidence

    def _sentences(self, ids: list[int], log_probs: list[float]) -> list[SentenceEvidence]:
        sentences: list[SentenceEvidence] = []
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
        """True for a full stop and a space at ``end``; a single decoded token lacks its space."""
        if not decode(self.tokenizer, ids[end - 1 : end]).endswith("."):
            return False
        before, after = (
            str(self.tokenizer.decode(ids[:stop], clean_up_tokenization_spaces=False)) for stop in (end, end + 1)
        )
        return after[len(before) :].startswith(" ")
