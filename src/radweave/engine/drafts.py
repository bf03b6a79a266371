"""Drafts of a model: prepared studies in, text and evidence out. Validation and every predictor write through this."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from radweave.core.batch import Batch, Generation, VisionEncoder
from radweave.core.errors import InputError, UnusableModelError
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
from radweave.drafting.calibration import RunCalibration, Source
from radweave.drafting.smoothers import EmbeddedStudies, Evidence, Floats
from radweave.drafting.store import DraftingFacts, DraftingStore, load_drafting
from radweave.drafting.writer import UtilityDraft, UtilityWriter
from radweave.labels import LABELER_OF, get_labeler
from radweave.labels.comparisons import Edit, remove_comparisons, without_marks
from radweave.labels.contradictions import contradictions_of
from radweave.labels.labeler import Labeler, Mention
from radweave.methods.model import (
    Classifying,
    EvidenceSource,
    Proposing,
    ReportModel,
    device_of,
    generations,
    named_parts,
)
from radweave.nn.connector import encode_views
from radweave.nn.decoding import DecodingConfig, ExpectedUtilityConfig
from radweave.nn.heads import DenseHead
from radweave.nn.memory.bank import BankLayout, Column, Owners, load_bank

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# What a run drafts with by expected utility: made at the end of training, opened when it is asked for.


FOLDER = "drafting"
MOST_STUDIES = 4096
"""Training studies that a network's run drafts from, evenly spread: time and memory grow with their square."""


def evidence_kind(model: EvidenceSource) -> Source:
    return "stack" if model.scores_are_log_odds() else "model"


@torch.no_grad()
def embed(model: ReportModel, batch: Batch) -> Floats:
    """Mean of the encoder's tokens over all views (B, D).

    Raises:
        UnusableModelError: if a value is not finite.
    """
    return _finite(encode_views(model.encoder, batch).mean())


def knows_classes(model: ReportModel) -> bool:
    """Whether the model has heads that learned the classes: the method's own, or the dense head of its encoder."""
    return isinstance(model, Classifying) or _dense_head(model) is not None


def _dense_head(model: ReportModel) -> DenseHead | None:
    """The head of the stage ``encoder``, if that was trained."""
    head = named_parts(model).get("word_head")
    return head if isinstance(head, DenseHead) and bool(head.learned) else None


@torch.no_grad()
def class_scores(model: ReportModel, batch: Batch) -> Floats:
    """Mean log-odds (B, K) of the heads that learned the classes.

    Raises:
        UnusableModelError: if a value is not finite.
    """
    said = [model.class_logits(batch)] if isinstance(model, Classifying) else []
    head = _dense_head(model)
    if head is not None:
        views = encode_views(model.encoder, batch)
        said.append(head.class_logits(views.tokens, views.view_mask))
    return _finite(torch.stack(said).mean(0))


def width_of(model: ReportModel) -> int:
    """The width of its encoder's tokens."""
    encoder = model.encoder
    assert isinstance(encoder, VisionEncoder)
    return encoder.dim


def _finite(values: torch.Tensor) -> Floats:
    if not bool(values.isfinite().all()):
        raise UnusableModelError("what the model sees is not finite: its weights or its precision cannot be used")
    return np.asarray(values.double().cpu().numpy())


@dataclass(slots=True)
class Drafting:
    """The drafting of a run; its folder is read when the first draft is asked for."""

    folder: Path
    model: ReportModel
    calibration: RunCalibration
    _opened: Opened | None = None
    _writers: dict[tuple[ExpectedUtilityConfig, bool], UtilityWriter] = field(default_factory=dict)

    def write(self, batch: Batch, decoding: DecodingConfig) -> Iterator[UtilityDraft]:
        """A draft for each study of a batch.

        Raises:
            InputError: if the run has nothing to draft with, or its files do not fit the model.
        """
        if self._opened is None:
            self._opened = Opened.of(self.folder, self.model)
            self._refuse_other_calibration(self._opened.store.facts)
        config, marks = decoding.expected_utility, decoding.deidentification_marks == "keep"
        if (config, marks) not in self._writers:
            self._writers[config, marks] = UtilityWriter(self._opened.store, self.calibration, config, marks=marks)
        writer, said = self._writers[config, marks], self._opened.evidence_for(batch)
        proposed: Sequence[Sequence[str]] = [()] * len(said)
        if config.written and isinstance(self.model, Proposing):
            proposed = self.model.propose(batch, said, decoding)
        each = zip(said, self._opened.barred(batch), proposed, strict=True)
        for testimony, own, texts in each:
            yield writer.write(testimony, own, texts)

    def classes(self, batch: Batch, decoding: DecodingConfig) -> list[dict[str, Any]]:
        """What the heads say of each study, calibrated; nothing where there are none, or the calibration does not hold.

        The scores are those that were calibrated: a method may note its own heads alone, or under another prompt.
        """
        if self.calibration.source != "heads" or not self.calibration.holds:
            return []
        config = decoding.expected_utility
        scores = class_scores(self.model, batch)
        return [self.calibration.evidence(row, config.thresholds, config.macro) for row in scores]

    def _refuse_other_calibration(self, facts: DraftingFacts) -> None:
        if facts.source != self.calibration.source or facts.classes != tuple(self.calibration.classes):
            raise InputError("not what the run's calibration was made for", file=self.folder, field="source")


@dataclass(frozen=True, slots=True)
class Opened:
    """A drafting folder with the model that it belongs to."""

    model: ReportModel
    store: DraftingStore
    owners: Owners
    studies: EmbeddedStudies | None

    @classmethod
    def of(cls, folder: Path, model: ReportModel) -> Opened:
        """Read the folder.

        Raises:
            InputError: if it is not there, or does not fit the model.
        """
        if not folder.is_dir():
            raise InputError(
                "this run has no reports to draft from: it was exported without them, or is older than they are",
                file=folder,
                field="decoding.kind",
                got="expected_utility",
                expected="decoding.kind=likelihood",
            )
        store = load_drafting(folder)
        source = store.facts.source
        own = evidence_kind(model) if isinstance(model, EvidenceSource) else None
        fits = source == own or (own is None and (source == "smoothers" or knows_classes(model)))
        embeddings = store.bank.tensors.get("embeddings")
        if not fits or (embeddings is None) != (own is not None):
            raise InputError("the folder does not fit this model", file=folder, field="source", got=source)
        studies = None
        if embeddings is not None:
            store.bank.refuse_misfit(FOLDER, BankLayout({"embeddings": Column("float", (width_of(model),))}))
            store.bank.refuse_non_finite(FOLDER)
            studies = EmbeddedStudies.fit(embeddings.double().numpy(), store.labels)
        return cls(model, store, store.bank.owners(), studies)

    def barred(self, batch: Batch) -> NDArray[np.bool_]:
        """The rows (B, J) of each study's own and its patient's."""
        own = self.owners.of_queries(batch.study_ids, batch.patient_ids)
        return np.asarray(self.owners.barred(own, slice(0, len(self.owners))).numpy())

    def evidence_for(self, batch: Batch) -> list[Evidence]:
        """What the training studies say of each study."""
        if isinstance(self.model, EvidenceSource):
            return self.model.evidence_for(batch)
        assert self.studies is not None
        said = [
            self.studies.evidence_for(row, barred)
            for row, barred in zip(embed(self.model, batch), self.barred(batch), strict=True)
        ]
        if self.store.facts.source == "heads":
            logits = class_scores(self.model, batch)
            said = [replace(one, scores=row) for one, row in zip(said, logits, strict=True)]
        return said


# A draft without the comparisons that nothing was given for, and what its evidence says of them.


COMPARISONS_REMOVED = "comparisons_removed"
"""The key in a report's evidence: a list of {``was``, ``now``}, ``now`` null for a sentence that was left out."""
ABOUT_SENTENCES = ("sentences", "sentence_fit")
"""Evidence whose rows are about a sentence, by its ``text``; in a draft of two parts each has its ``section``."""


def take_out_comparisons(
    text: str, evidence: dict[str, Any], modality: Modality
) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """The draft, its evidence with sentences that read as the draft's, and a warning where something was taken out."""
    labeler = get_labeler(LABELER_OF[modality])
    rows = evidence.get("sentences") or [{"text": text}]
    parts = [remove_comparisons(str(row["text"]), labeler) for row in rows]
    edits = [edit for _, made in parts for edit in made]
    if not edits:
        return text, evidence, ()
    now = join_sentences(
        (str(row.get("section", NO_SECTION)), part) for row, (part, _) in zip(rows, parts, strict=True) if part
    )
    about = {name: _comparison_rows(evidence[name], labeler) for name in ABOUT_SENTENCES if evidence.get(name)}
    taken = [{"was": edit.was, "now": edit.now} for edit in edits]
    return now, {**evidence, **about, COMPARISONS_REMOVED: taken}, (_warning(edits, labeler),)


def _warning(edits: list[Edit], labeler: Labeler) -> str:
    """How many sentences compared, and how many of them are not in the draft, findings first of all."""
    left_out = [edit.was for edit in edits if edit.now is None]
    telling = sum(_names_a_finding(mentions) for mentions in labeler.label(left_out))
    sentences = "a sentence" if len(edits) == 1 else f"{len(edits)} sentences"
    warning = f"{sentences} of the draft compared with an earlier study, and none was given: "
    if not left_out:
        return warning + "the comparison was taken out"
    named = f", {telling} of them with findings" if telling else ""
    return f"{warning}{len(left_out)} left out{named} (see {COMPARISONS_REMOVED} in the evidence)"


def _names_a_finding(mentions: Mapping[str, Mention]) -> bool:
    stated = (LabelState.POSITIVE, LabelState.UNCERTAIN)
    return any(name != NO_FINDING and mention.state in stated for name, mention in mentions.items())


def _comparison_rows(rows: Any, labeler: Labeler) -> list[dict[str, Any]]:
    changed = [{**row, "text": remove_comparisons(str(row.get("text", "")), labeler)[0]} for row in rows]
    return [row for row in changed if row["text"]]


# A draft without de-identification marks, whatever wrote it, and what its evidence says of the sentences left out.


MARKS_REMOVED = "marks_removed"
"""The key in a report's evidence: the sentences that were left out."""


def take_out_marks(text: str, evidence: dict[str, Any]) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """The draft, its evidence with sentences that read as the draft's, and a warning where something was left out."""
    now, removed = without_marks(text)
    if not removed:
        return text, evidence, ()
    about = {name: _mark_rows(evidence[name]) for name in ABOUT_SENTENCES if evidence.get(name)}
    sentences = "a sentence" if len(removed) == 1 else f"{len(removed)} sentences"
    warning = (
        f"{sentences} of the draft held marks of de-identification (XXXX, ___) and"
        f" {'was' if len(removed) == 1 else 'were'} left out (see {MARKS_REMOVED} in the evidence)"
    )
    return now, {**evidence, **about, MARKS_REMOVED: removed}, (warning,)


def _mark_rows(rows: Any) -> list[dict[str, Any]]:
    changed = [{**row, "text": without_marks(str(row.get("text", "")))[0]} for row in rows]
    return [row for row in changed if row["text"]]


# What a model noted while it wrote, as values that JSON can hold.


DIGITS = 4
"""Significant digits of a number: a map of attention needs no more, and JSON stays a third of its length."""


def json_value(value: Any) -> Any:
    """Arrays and tensors become nested lists, floats are rounded to ``DIGITS`` digits, NaN and infinity become None.

    Raises:
        TypeError: for a value that is neither a number, a text, None, an array nor a container of these.
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

    def _decoded(self, generation: Generation, batch: Batch) -> list[UtilityDraft]:
        """What the method's own decoder wrote. While a run trains it has no calibration yet, and a method's own say."""
        classes = [] if self.drafting is None else self.drafting.classes(batch, self.decoding)
        each = zip(generation.token_ids, generation.intermediates, strict=True)
        written = [(decode(self.tokenizer, ids), self._evidence(ids, values)) for ids, values in each]
        return [
            UtilityDraft(text, {**evidence, **json_value(own)})
            for (text, evidence), own in zip(written, classes or [{}] * len(written), strict=True)
        ]

    def _chosen(self, batch: Batch) -> list[UtilityDraft]:
        """What has the highest expected utility under what the model sees."""
        assert self.drafting is not None, "a restored run has it"
        written = self.drafting.write(batch, self.decoding)
        return [UtilityDraft(one.text, json_value(one.evidence), one.warnings) for one in written]

    def _in_parts(self, one: UtilityDraft) -> UtilityDraft:
        """A draft of a run that writes two parts: its headings as we write them, its sentences without, by section."""
        parts = split_sections(one.text) if self.target == "both" else {}
        if not parts:
            return one
        rows = {name: rows_by_section(one.evidence[name]) for name in ABOUT_SENTENCES if one.evidence.get(name)}
        rows.setdefault("sentences", [{"text": text, "section": name} for name, text in parts.items()])
        return replace(one, text=join_sections(parts), evidence={**one.evidence, **rows})

    def _missing(self, text: str) -> tuple[str, ...]:
        """A warning where a draft of two parts lacks one."""
        if self.target != "both" or not text:
            return ()
        lacks = [name for name in SECTIONS if name not in split_sections(text)]
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


# The memories of a run: its banks, given to the model that reads them, and held to what card and model say of them.


def set_memories(model: ReportModel, folder: Path, *, named: Mapping[str, int] | None = None) -> None:
    """Give a model the banks of its run folder; ``named`` are those that a finished run says it has, with their rows.

    Raises:
        InputError: if a bank is broken, does not fit the model, is not as it was named, or one that the model cannot do
            without is not there.
    """
    places = sorted((folder / "memories").glob("[!.]*")) if (folder / "memories").is_dir() else []
    banks = {place.name: load_bank(place) for place in places}
    for name, bank in banks.items():
        if named is not None and named.get(name) != len(bank):
            raise InputError(
                f"the memory '{name}' has other rows than the run says",
                file=folder / "memories",
                got=len(bank),
                expected=named.get(name),
            )
    layouts = model.memory_layouts()
    for name in () if named is None else layouts:
        if name not in banks:
            raise InputError(
                f"the method reads its memory '{name}', and the folder lacks it", file=folder, field="memories"
            )
    if banks:
        try:
            for name, bank in banks.items():
                if name in layouts:
                    bank.refuse_misfit(name, layouts[name])
                if named is not None:  # one that was just made was looked at when it was saved
                    bank.refuse_non_finite(name)
            model.set_memories(banks)
        except (KeyError, RuntimeError) as error:  # a tensor or a field that the method reads is not there, or other
            raise InputError(f"the memories do not fit this model: {error}", file=folder / "memories") from None
        except InputError as error:
            where = folder / "memories"
            raise InputError(
                error.reason, file=where, field=error.field, got=error.got, expected=error.expected
            ) from None


def rows_of_memories(folder: Path) -> dict[str, int]:
    """The banks of a run folder, with what it drafts from, and how many rows each has."""
    places = {place.name: place for place in sorted((folder / "memories").glob("[!.]*"))}
    if (folder / "drafting" / "bank").is_dir():
        places["drafting"] = folder / "drafting" / "bank"
    return {name: len(load_bank(place)) for name, place in places.items()}
