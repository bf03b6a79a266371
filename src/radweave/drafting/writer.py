"""Drafts by expected utility, from the drafting store of a run, the evidence for a study, and the options."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from radweave.core.evidence import (
    DraftEvidence,
    OwnReports,
    RecalledEvidence,
    RecalledText,
    SentenceEvidence,
    UtilityEvidence,
)
from radweave.core.study import NO_SECTION, SECTIONS, has_both_sections, split_sections, without_headings
from radweave.drafting.calibration import RunCalibration, stated_log_odds
from radweave.drafting.candidates import (
    Candidate,
    CandidatePool,
    Sentence,
    SentenceKind,
    SentenceLabels,
    affirmed_classes,
    candidate_options,
    clean_sentence,
    compose,
    distinct,
    keeps_places,
    names_device,
    utilities,
    utility_options,
    without_contradictions,
)
from radweave.drafting.changes import Change, ChangeUtility, ComparisonPool
from radweave.drafting.choice import (
    NEAREST,
    Choice,
    Doubles,
    ExpectedUtility,
    NearbyUtility,
    asserted_classes,
    nearest_rows,
    prepared,
    shares,
)
from radweave.drafting.places import PlacedSentences, PlaceUtility
from radweave.drafting.prior import UpdatedStudy
from radweave.drafting.smoothers import Changes, Evidence, Floats
from radweave.drafting.store import DraftingStore
from radweave.labels import NO_FINDING, Labeler, get_labeler
from radweave.labels.comparisons import MARK
from radweave.labels.contradictions import DEVICES, claims_of
from radweave.labels.places import get_place_labeler
from radweave.labels.text import split_sentences
from radweave.metrics.ngrams import ReportStatistics
from radweave.metrics.pairwise import MAX_ORDER, BleuPoint, PairwiseWording, WordingWeights
from radweave.nn.decoding import ExpectedUtilityConfig

# Composites of more findings, for one study. Candidates are made before any study, so that a composite states two
# findings at most: of three there would be too many. Further findings are added to the draft one after the other.


class FindingSentences:
    """The sentences of composites that state one finding, and drafts with one of them more.

    Args:
        candidates: as ``build_candidates`` makes them; without composites there is nothing to add.
        consistent: a sentence that calls the organ normal gives way to a finding.
    """

    def __init__(self, candidates: Sequence[Candidate], labeler: Labeler, *, consistent: bool) -> None:
        self.labels, self.consistent = SentenceLabels(labeler), consistent
        groups = (
            tuple(sentence for sentence in candidate.sentences if sentence.kind == "finding")
            for candidate in candidates
        )
        stated = [group for group in dict.fromkeys(groups) if group]
        self.labels.read(sentence.text for group in stated for sentence in group)
        self.sentences: Mapping[str, list[tuple[Sentence, ...]]] = defaultdict(list)
        for group in stated:
            names = frozenset().union(*(self.labels.affirmed(sentence.text) for sentence in group))
            if len(names) == 1:
                self.sentences[min(names)].append(group)

    def variants(self, draft: Choice, names: Iterable[str], barred: NDArray[np.bool_]) -> Iterator[Candidate]:
        """The draft with one finding more, for each of the classes ``names`` that it does not state.

        ``barred`` (J,) are reports of the study's own patient, which lend no sentence.
        """
        self.labels.read(sentence.text for sentence in draft.candidate.sentences)
        for name in names:
            if name in draft.asserted:
                continue
            for group in self.sentences.get(name, ()):
                if not any(barred[sentence.row] for sentence in group):
                    made = compose(draft.candidate, group, self.labels, consistent=self.consistent)
                    if made.sentences:
                        yield made


# The report of the patient's prior study, brought up to date.


MOST_NEW = 2
"""New findings that a prior's report takes where ``further_findings`` has no more, as in a composite."""
MOST_CHARACTERS = 5000
"""A longer report of a prior is no draft."""
REFERS_BACK = re.compile(r"\W*(?:it|its|they|their|this|that|these|those|he|she|his|her|patient)\b", re.IGNORECASE)
"""Begins a sentence that says something of another one, or of the patient."""
NUMBERS_ADVICE_MESSAGES = re.compile(
    r"\d|\b(?:dr|md|mrn|(?:recommend|advis|follow[- ]?up|discuss|communicat|convey|notif|inform|telephon|phon|paged?"
    r"|call|sign(?:ed|ature)|dictat|transcri|addend|accession|electronic)\w*)\b",
    re.IGNORECASE,
)
"""Numbers, advice, and messages to people."""


class PriorReport:
    """Drafts that are the report of a prior study, brought up to date.

    The report comes from a hospital and may name people and dates. A sentence is taken over if a training report has
    it, word for word, or if it affirms or denies something in words of training reports alone. Numbers, advice,
    messages, and sentences that refer to another one are left out.

    Args:
        findings: the sentences that state new findings.
        candidates: those of the run, whose sentences may be taken over.
        words: of the training reports.
    """

    def __init__(self, findings: FindingSentences, candidates: Sequence[Candidate], words: Iterable[str]) -> None:
        self.findings, self.labels, self.words = findings, findings.labels, frozenset(words)
        self.sentences = {sentence.text for candidate in candidates for sentence in candidate.sentences}

    def taken(self, report: Candidate) -> Candidate | None:
        """The sentences of a report that are taken over; None where a part has none."""
        texts = [sentence.text for sentence in report.sentences]
        self.labels.read(texts)
        rows = zip(report.sentences, prepared(texts), strict=True)
        left = tuple(sentence for sentence, words in rows if self._is_taken(sentence.text, words))
        return _with_parts_of(report, left)

    def _is_taken(self, text: str, words: Sequence[str]) -> bool:
        if NUMBERS_ADVICE_MESSAGES.search(text) or REFERS_BACK.match(text):
            return False
        states = self.labels.affirmed(text) or self.labels.denied(text) or claims_of(text)
        return text in self.sentences or (bool(states) and self.words.issuperset(words))

    def updates(
        self, report: Candidate, gains: Mapping[str, float], barred: NDArray[np.bool_], most: int
    ) -> Iterator[Candidate]:
        """A report as it is; without sentences whose findings, affirmed or doubted, have a negative sum of gains; and
        with new findings of positive gain, at most so many, one more each time and the greatest first.

        Args:
            report: sentences that are taken over.
            gains: of stating each class.
            barred: (J,) reports of the study's own patient, which lend no sentence.
            most: number of new findings.
        """
        yield report
        self.labels.read(sentence.text for sentence in report.sentences)
        left = tuple(one for one in report.sentences if sum(gains.get(name, 0.0) for name in self._named(one)) >= 0)
        updated = _with_parts_of(report, left)
        if updated is None:
            return
        yield updated
        new = {name for name, gain in gains.items() if gain > 0} - self._stated(updated)
        for name in sorted(new, key=lambda name: (-gains[name], name)):
            groups = self.findings.sentences.get(name, ()) if most else ()
            allowed = [group for group in groups if not any(barred[sentence.row] for sentence in group)]
            made = (compose(updated, group, self.labels, consistent=self.findings.consistent) for group in allowed)
            better = next((one for one in made if self._stated(one) >= self._stated(updated) | {name}), None)
            if better is not None:
                updated, most = better, most - 1
                yield updated

    def _named(self, sentence: Sentence) -> frozenset[str]:
        """The findings that a sentence affirms, else those that it doubts."""
        return self.labels.affirmed(sentence.text) - {"uncertain"} or self.labels.doubted(sentence.text)

    def _stated(self, draft: Candidate) -> frozenset[str]:
        affirmed = (self.labels.affirmed(sentence.text) for sentence in draft.sentences)
        return frozenset[str]().union(*affirmed) - {"uncertain"}


def _with_parts_of(report: Candidate, sentences: tuple[Sentence, ...]) -> Candidate | None:
    """A report of these sentences; None where a part of the whole report has none."""
    whole = {sentence.part for sentence in sentences} == {sentence.part for sentence in report.sentences}
    return Candidate(sentences) if whole else None


# A method's own reports of one study, compared with the best draft of the training reports.


FURTHER = 0.5
"""Weight of a finding beside those of the chosen report, rare or not; see docs/drafting.md."""
NO_ROW = -1
"""The row of a sentence that is from no training report of the store."""
SHORTLIST = 64
"""Best candidates by the training reports that are compared by the method's own reports too."""


@dataclass(frozen=True, slots=True)
class OwnWording:
    """A method's own reports as reports that words are worth something for, beside the training reports.

    ``share`` is their part of the wording; ``texts`` are R reports as drafts have them, one as often as it was written.
    A report does not speak for itself.
    """

    texts: tuple[str, ...]
    share: float
    worth: Callable[[Sequence[str], Sequence[str]], NDArray[np.float32]]

    def __call__(self, texts: Sequence[str], wording: NDArray[np.float32]) -> NDArray[np.float32]:
        """The wording (M,) of texts by both, given that by the training reports."""
        others = np.ones((len(texts), len(self.texts)), dtype=np.float32)
        for row, text in enumerate(texts):
            if text in self.texts:
                others[row, self.texts.index(text)] = 0
        heard = others.sum(axis=1)
        own = (self.worth(texts, self.texts) * others).sum(axis=1) / np.maximum(heard, 1)
        return np.asarray((1 - self.share) * wording + self.share * np.where(heard > 0, own, wording), dtype=np.float32)


class Proposals:
    """Chooses between a draft and a method's own reports for the same study, by the same expected utility.

    Words are worth what they are for the reports with the greatest weights, of the draft as of the others, and for the
    method's own (``OwnWording``). Sentences with de-identification marks are left out unless ``marks``. Where training
    reports have two parts, a text that lacks one is none. Where the study was compared with its prior, each change that
    a text states counts by its probability (``ChangeWorth``); elsewhere comparisons are left out. With ``consistent``
    nothing is taken that contradicts itself. ``counts`` (K,) is what stating a class counts, 0 for one that is no
    finding. ``bank`` has the same reports, where they have been counted already.
    """

    def __init__(
        self,
        reports: Sequence[str],
        labeler: Labeler,
        *,
        counts: Doubles,
        thresholds: Doubles,
        weights: WordingWeights,
        point: BleuPoint | None,
        beta: float,
        marks: bool,
        consistent: bool = False,
        places: bool = True,
        written: bool = True,
        bank: ReportStatistics | None = None,
    ) -> None:
        self.consistent, self.places, self.written = consistent, places, written
        self.labeler, self.counts, self.thresholds, self.beta, self.marks = labeler, counts, thresholds, beta, marks
        self.weights = WordingWeights(weights.cider, weights.rouge_l, weights.bleu if point is not None else 0.0)
        self.point, self.bank = point, bank or ReportStatistics.of(prepared(reports), MAX_ORDER)
        self.parts = set(SECTIONS) if all(map(has_both_sections, reports)) else {NO_SECTION}

    def choose(
        self,
        draft: Choice,
        own: OwnReports,
        probabilities: Doubles,
        weights: Doubles,
        barred: NDArray[np.bool_],
        changes: Changes | None = None,
        *,
        devices: bool = True,
        wording: OwnWording | None = None,
    ) -> Choice:
        """The best of a draft, of these reports, or of either with a recalled sentence.

        A decoder gets no prior: its comparisons are taken out, unless the study was compared with a prior, which gives
        probabilities of changes.

        Args:
            draft: the best of the training reports and composites.
            own: texts of the method itself.
            probabilities: (K,) of the classes.
            weights: (J,) of the training reports.
            barred: (J,) reports of the study's own patient.
            changes: those from the prior, where the study was compared with one.
            devices: the evidence supports a sentence on a device.
            wording: what the method's own reports say of words.
        """

        def better(draft: Choice, candidates: Iterable[Candidate]) -> Choice:
            supported = [one for one in candidates if devices or not names_device(one)]
            return self.best(draft, supported, probabilities, weights, barred, changes, wording=wording)

        chosen = better(draft, self.candidates(own, compares=changes is not None))
        sentences = [one for one in own.recalled if one.is_sentence]
        return better(chosen, self._with_sentence(chosen, sentences)) if sentences else chosen

    def best(
        self,
        draft: Choice,
        others: Sequence[Candidate],
        probabilities: Doubles,
        weights: Doubles,
        barred: NDArray[np.bool_],
        changes: Changes | None,
        *,
        further: bool = False,
        wording: OwnWording | None = None,
        place: PlaceUtility | None = None,
    ) -> Choice:
        """The best of a draft and of other candidates; the draft where none is better.

        ``further``: they state findings beside those of the draft, which count ``FURTHER``. ``place``: what the places
        that they state are worth.
        """
        if self.consistent:
            others = [candidate for candidate in map(without_contradictions, others) if candidate.sentences]
        candidates = distinct([draft.candidate, *others])
        if len(candidates) == 1:
            return draft
        texts = [candidate.text for candidate in candidates]
        rows = nearest_rows(weights, barred, NEAREST)
        words = self._utilities(texts, rows) @ shares(weights, barred, rows).astype(np.float32)
        words = words if wording is None else wording(texts, words)
        asserts = affirmed_classes(texts, self.labeler) * self.counts
        gains = self.beta * (asserts @ (probabilities - self.thresholds))
        compared: list[tuple[Change, ...]] = [()] * len(texts)
        change = np.zeros(len(texts))
        if changes is not None:
            utility = ChangeUtility(changes, self.labeler.classes, self.labeler)
            compared = utility.stated(texts)
            change = self.beta * utility(compared)
        counted = FURTHER * np.minimum(asserts, 1) if further else asserts
        paid = self.beta * (counted @ (probabilities - self.thresholds))
        placed = np.zeros(len(texts)) if place is None else place(texts)
        best = int((words + paid + change + placed).argmax())
        if best == 0:
            return draft
        return Choice(
            candidates[best],
            asserted_classes(self.labeler.classes, asserts[best]),
            float(words[best]),
            float(gains[best]),
            compared[best],
            float(change[best]),
            float(placed[best]),
        )

    def candidates(self, own: OwnReports, *, compares: bool) -> list[Candidate]:
        """A method's own reports as drafts may have them."""
        written = [self._candidate(text, "decoder", compares=compares) for text in own.written if self.written]
        recalled = [
            self._candidate(one.text, "recalled", one.study_id, compares=False)
            for one in own.recalled
            if not one.is_sentence
        ]
        return [one for one in (*written, *recalled) if one is not None]

    def of_prior(self, report: str) -> Candidate | None:
        """The report of a prior study, without comparisons; None where a part of it is missing or it is too long."""
        if len(report) > MOST_CHARACTERS:
            return None
        text = without_headings(report) if NO_SECTION in self.parts else report
        return self._candidate(text, "prior", compares=False)

    def own_wording(self, own: OwnReports, share: float) -> OwnWording | None:
        """The wording that its reports count in; None without a share or a report."""
        texts = tuple(
            made.text
            for text in (*own.written, *(one.text for one in own.recalled if not one.is_sentence))
            if (made := self._candidate(text, "decoder", compares=False)) is not None
        )
        return OwnWording(texts, share, self.between) if share and texts else None

    def _with_sentence(self, draft: Choice, recalled: Sequence[RecalledText]) -> Iterator[Candidate]:
        """The draft with one recalled sentence that states a class which the draft does not."""
        labels = SentenceLabels(self.labeler)
        labels.read(sentence.text for sentence in draft.candidate.sentences)
        part = draft.candidate.sentences[0].part
        for one in recalled:
            text = clean_sentence(one.text, self.labeler, compares=False, places=self.places)
            if not text or (MARK.search(text) and not self.marks):
                continue
            labels.read([text])
            if labels.affirmed(text) - {*draft.asserted, "uncertain"}:
                sentence = Sentence(text, "recalled", NO_ROW, part, one.study_id)
                made = compose(draft.candidate, (sentence,), labels, consistent=self.consistent)
                if made.sentences:
                    yield made

    def _candidate(
        self, text: str, kind: SentenceKind, study_id: str | None = None, *, compares: bool
    ) -> Candidate | None:
        sections = split_sections(text) if NO_SECTION not in self.parts else {NO_SECTION: text}
        cleaned = (
            (part, clean_sentence(sentence, self.labeler, compares=compares, places=self.places))
            for part, own in sections.items()
            for sentence in split_sentences(own)
        )
        sentences = tuple(
            Sentence(sentence, kind, NO_ROW, part, study_id)
            for part, sentence in (dict.fromkeys(cleaned) if self.consistent else cleaned)
            if sentence and (self.marks or not MARK.search(sentence))
        )
        return Candidate(sentences) if {sentence.part for sentence in sentences} == self.parts else None

    def _utilities(self, texts: Sequence[str], rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Utilities (M, N) of texts for reports of the bank."""
        return self._pairs(texts, [self.bank.words_of(row) for row in rows.tolist()])

    def between(self, texts: Sequence[str], reports: Sequence[str]) -> NDArray[np.float32]:
        """Utilities (M, N) of texts for other reports, words counted as in the bank."""
        return self._pairs(texts, [self.bank.encode(words) for words in prepared(reports)])

    def _pairs(self, texts: Sequence[str], reports: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        numbers = [self.bank.encode(words) for words in prepared(texts)]
        pairs = PairwiseWording.within(numbers, reports, self.bank)
        return np.concatenate([block for _, block in pairs.blocks(self.weights, self.point)])


MOST_IN_PAIRS = 4096
"""Training reports up to which all pairs with candidates are computed; of more, the nearest (``NearbyUtility``)."""
RECALLED = 3
"""Training reports that are shown with a draft: those with the greatest weights."""
NOTHING_LEFT = "no draft: every training report is of the study's own patient"
PRIOR_UNUSED = "the prior study was not used: too few studies that the run is calibrated on have one"


@dataclass(frozen=True, slots=True)
class UtilityDraft:
    """A draft, its evidence, and warnings."""

    text: str
    evidence: DraftEvidence
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StudyEvidence:
    """A study that a draft is written for: its classes' probabilities (K,), its evidence, the rows that are ``barred``.

    ``devices``: a sentence on a device is supported. ``wording``: what the method's own reports say of words.
    ``changes``: those from the prior study, where the draft is told of one.
    """

    probabilities: Floats
    evidence: Evidence
    barred: NDArray[np.bool_]
    devices: bool
    wording: OwnWording | None
    changes: Changes | None


class UtilityWriter:
    """Writes drafts from evidence over the reports of a store.

    Candidates and utilities that were made with other options than these are made again, which takes seconds.
    """

    def __init__(
        self,
        store: DraftingStore,
        calibration: RunCalibration,
        config: ExpectedUtilityConfig,
        *,
        marks: bool = False,
    ) -> None:
        facts = store.facts
        self.of_heads, self.prior, self.prior_input = calibration, store.prior, config.prior
        if config.own and store.calibration is not None:
            calibration = store.calibration
        fitted = facts.own_wording or 0.0
        self.own_wording = fitted if config.own_wording is None else config.own_wording
        self.rows = store.bank.rows
        self.calibration, self.rule, self.macro = calibration, config.thresholds, config.macro
        pool = CandidatePool(store.candidates, store.asserts)
        same = facts.candidates == candidate_options(config, marks=marks)
        if not same:
            pool = CandidatePool.build(store.texts, get_labeler(facts.label_set), config, marks=marks)
        # "No Finding" follows from the others: asserting it does not count.
        counts = np.minimum(calibration.weights(config.thresholds, config.macro), config.heaviest)
        self.counts = np.array([name != NO_FINDING for name in facts.classes]) * counts
        self.consistent = config.consistent
        self.thresholds = calibration.thresholds(config.thresholds, config.macro)
        self.further = config.further_findings if config.findings else 0
        weights = WordingWeights(config.cider, config.rouge_l, config.bleu)
        self.chooser = self._chooser(store, pool, config, weights, ready=same)
        self.devices = [k for k, name in enumerate(facts.classes) if name in DEVICES]
        named = np.array([config.consistent and names_device(candidate) for candidate in pool.candidates], dtype=bool)
        self.naming_device = named if named.any() else None
        self.labeler, self.place_reader = get_labeler(facts.label_set), get_place_labeler(facts.label_set)
        self.config, self.marks, self.point, self.weights = config, marks, facts.bleu_point, weights
        self.texts, self.candidates = store.texts, pool.candidates

    @cached_property
    def proposals(self) -> Proposals:
        return Proposals(
            self.texts,
            self.labeler,
            counts=self.counts,
            thresholds=self.thresholds,
            weights=self.weights,
            point=self.point,
            beta=self.config.findings,
            marks=self.marks,
            consistent=self.consistent,
            places=keeps_places(self.config),
            written=self.config.written,
            bank=self.chooser.bank if isinstance(self.chooser, NearbyUtility) else None,
        )

    @cached_property
    def comparisons(self) -> ComparisonPool:
        places = keeps_places(self.config)
        return ComparisonPool(self.texts, self.labeler, marks=self.marks, consistent=self.consistent, places=places)

    @cached_property
    def placed_sentences(self) -> PlacedSentences:
        return PlacedSentences(self.texts, self.labeler, self.place_reader, marks=self.marks)

    @cached_property
    def finding_sentences(self) -> FindingSentences:
        return FindingSentences(self.candidates, self.labeler, consistent=self.consistent)

    @cached_property
    def prior_report(self) -> PriorReport:
        words = (word for text in prepared(self.texts) for word in text)
        return PriorReport(self.finding_sentences, self.candidates, words)

    def _chooser(
        self,
        store: DraftingStore,
        pool: CandidatePool,
        config: ExpectedUtilityConfig,
        weights: WordingWeights,
        *,
        ready: bool,
    ) -> ExpectedUtility | NearbyUtility:
        """Among all pairs, or in a large bank among the nearest. ``ready``: the candidates are those of the store."""
        facts, asserts = store.facts, pool.asserts * self.counts
        if len(store.bank) > MOST_IN_PAIRS:
            return NearbyUtility(
                pool.candidates,
                asserts,
                store.texts,
                classes=facts.classes,
                thresholds=self.thresholds,
                weights=weights,
                point=facts.bleu_point,
                beta=config.findings,
            )
        wording = store.utilities if ready and facts.wording == utility_options(config) else None
        if wording is None:
            wording = utilities(pool.candidates, store.texts, config, facts.bleu_point)
        return ExpectedUtility(
            pool.candidates,
            asserts,
            wording,
            classes=facts.classes,
            thresholds=self.thresholds,
            beta=config.findings,
        )

    def write(self, evidence: Evidence, barred: NDArray[np.bool_], own: OwnReports | None = None) -> UtilityDraft:
        """The draft of a study whose own and whose patient's rows are ``barred`` (J,).

        ``own`` are texts of the method itself. The draft's evidence: calibrated probabilities, the source of each
        sentence, the terms of the expected utility, and the training reports with the greatest weights.
        """
        own = own or OwnReports()
        counts = self.stated(own)
        stated = stated_log_odds(counts, len(own.written)) if own.written else None
        probabilities = self.calibration(evidence.scores[None], None if stated is None else stated[None])[0]
        updated = self._updated(evidence, stated)
        moved = None if updated is None else (updated.probabilities, updated.thresholds(self.thresholds))
        shown: DraftEvidence = {
            **self.calibration.evidence(
                evidence.scores,
                self.rule,
                self.macro,
                stated=stated,
                updated=moved,
            ),
            **evidence.shown,
            "recalled": self._recalled(evidence, barred),
        }
        if updated is not None and moved is not None:
            # A class counts by its probability less its threshold, of which the writer has one for all studies.
            probabilities = moved[0] + self.thresholds - moved[1]
            shown = {**shown, "changes": updated.shown(self.calibration.classes)}
        if own.written:
            named = dict(zip(self.calibration.classes, counts.astype(int).tolist(), strict=True))
            shown["own_reports"] = {"reports": len(own.written), "state": named}
        study = StudyEvidence(
            probabilities,
            evidence,
            barred,
            devices=not self.consistent or bool((probabilities >= self.thresholds)[self.devices].any()),
            wording=self.proposals.own_wording(own, self.own_wording) if own else None,
            changes=None if updated is None else updated.changes,
        )
        choice = self._of_training(study)
        if choice is None:
            return UtilityDraft("", shown, (NOTHING_LEFT,))
        choice = self._add_findings(choice, study)
        if own:
            better = self.proposals.choose(
                choice,
                own,
                probabilities,
                evidence.weights,
                barred,
                study.changes,
                devices=study.devices,
                wording=study.wording,
            )
            choice = choice if better is choice else self._add_findings(better, study)
        choice = self._of_prior(choice, study)
        choice = self._add_places(self._add_changes(choice, study), study)
        unused = evidence.prior is not None and self.prior_input != "none" and self.prior is None
        evidence_shown: DraftEvidence = {**shown, **self._of(choice)}
        return UtilityDraft(choice.candidate.text, evidence_shown, (PRIOR_UNUSED,) if unused else ())

    def _updated(self, evidence: Evidence, stated: Floats | None) -> UpdatedStudy | None:
        """The study by its prior too; None without one, or where nothing was learned or can be read of it."""
        learned, read = self.prior, self.prior_input
        if evidence.prior is None or learned is None or read == "none":
            return None
        if read == "report" and (evidence.prior.reported < 0).all():
            return None
        own = self.calibration.log_odds(evidence.scores[None], None if stated is None else stated[None])[0]
        before = replace(evidence.prior, scores=self.of_heads.log_odds(evidence.prior.scores[None])[0])
        return UpdatedStudy.of(learned, read, own, before)

    def stated(self, own: OwnReports) -> Floats:
        """Number of written reports that state each class (K,)."""
        return np.asarray(affirmed_classes(own.written, self.labeler).sum(axis=0))

    def _of_training(self, study: StudyEvidence) -> Choice | None:
        """The best of the training reports and composites, by the method's own reports too where they speak."""
        refused = None if study.devices else self.naming_device
        most = 1 if study.wording is None else SHORTLIST
        best = self.chooser.best(most, study.probabilities, study.evidence.weights, study.barred, refused)
        if study.wording is None or not best:
            return next(iter(best), None)
        words = study.wording([one.candidate.text for one in best], np.array([one.wording for one in best]))
        chosen = int((words + np.array([one.findings for one in best])).argmax())
        return replace(best[chosen], wording=float(words[chosen]))

    def _add_findings(self, choice: Choice, study: StudyEvidence) -> Choice:
        """The draft with further findings that pay off, one after the other while that makes it better."""
        probabilities, evidence, barred = study.probabilities, study.evidence, study.barred
        gains = self.counts * (probabilities - self.thresholds)
        names = [name for name, gain in zip(self.calibration.classes, gains, strict=True) if gain > 0]
        if not self.further or {*names} <= {*choice.asserted}:
            return choice

        def better(choice: Choice) -> Choice:
            variants = list(self.finding_sentences.variants(choice, names, barred))
            return self.proposals.best(
                choice,
                variants,
                probabilities,
                evidence.weights,
                barred,
                study.changes,
                further=True,
                wording=study.wording,
            )

        return _improved(choice, better, self.further)

    def _of_prior(self, choice: Choice, study: StudyEvidence) -> Choice:
        """The draft, or the report of the study's prior where that is better, as it is or brought up to date."""
        prior = study.evidence.prior
        if prior is None or study.changes is None or self.prior_input == "image":
            return choice
        report = self.proposals.of_prior(prior.report)
        taken = None if report is None else self.prior_report.taken(report)
        if taken is None:
            return choice
        gains = self.counts * (study.probabilities - self.thresholds)
        named = dict(zip(self.calibration.classes, gains.tolist(), strict=True))
        updates = self.prior_report.updates(taken, named, study.barred, max(self.further, MOST_NEW))
        return self.proposals.best(
            choice,
            [one for one in updates if study.devices or not names_device(one)],
            study.probabilities,
            study.evidence.weights,
            study.barred,
            study.changes,
            wording=study.wording,
        )

    def _add_changes(self, choice: Choice, study: StudyEvidence) -> Choice:
        """The draft with sentences on changes from the prior, one after the other while that makes it better."""
        probabilities, evidence, barred = study.probabilities, study.evidence, study.barred
        changes, classes = study.changes, tuple(self.calibration.classes)
        if changes is None:
            return choice

        def better(choice: Choice) -> Choice:
            variants = list(self.comparisons.variants(choice.candidate, changes, classes, barred))
            return self.proposals.best(
                choice, variants, probabilities, evidence.weights, barred, changes, wording=study.wording
            )

        return _improved(choice, better, len(classes))

    def _add_places(self, choice: Choice, study: StudyEvidence) -> Choice:
        """The draft with the places of its findings, sentence after sentence while that makes it better."""
        evidence, barred, weight = study.evidence, study.barred, self.config.place * self.config.findings
        if not evidence.places or not weight:
            return choice
        likely = dict(zip(self.calibration.classes, study.probabilities.tolist(), strict=True))
        utility = PlaceUtility(evidence.places, likely, self.place_reader, weight)

        def better(choice: Choice) -> Choice:
            variants = list(self.placed_sentences.variants(choice.candidate, utility, barred))
            return self.proposals.best(
                choice,
                variants,
                study.probabilities,
                evidence.weights,
                barred,
                study.changes,
                wording=study.wording,
                place=utility,
            )

        return _improved(choice, better, len(choice.candidate.sentences))

    def _of(self, choice: Choice) -> DraftEvidence:
        sentences: list[SentenceEvidence] = [
            cast(
                SentenceEvidence,
                {
                    "text": sentence.text,
                    "source": {"kind": sentence.kind, "study_id": self._study_of(sentence)},
                    **({"section": sentence.part} if sentence.part else {}),
                },
            )
            for sentence in choice.candidate.sentences
        ]
        terms: dict[str, Any] = {"wording": choice.wording, "findings": choice.findings}
        if choice.compared:
            terms |= {"changes": choice.changes, "compared": [list(change) for change in choice.compared]}
        if choice.places:
            terms |= {"places": choice.places}
        utility = cast(UtilityEvidence, {**terms, "asserted": list(choice.asserted)})
        return {"sentences": sentences, "expected_utility": utility}

    def _study_of(self, sentence: Sentence) -> str | None:
        """The training study that a sentence is from; none of one that a decoder wrote."""
        return sentence.study_id if sentence.row == NO_ROW else str(self.rows[sentence.row]["study_id"])

    def _recalled(self, evidence: Evidence, barred: NDArray[np.bool_]) -> list[RecalledEvidence]:
        weights = np.where(barred, -np.inf, evidence.weights)
        best = [row for row in np.argsort(-weights, kind="stable")[:RECALLED].tolist() if np.isfinite(weights[row])]
        return [
            {
                "kind": "report",
                "study_id": self.rows[row]["study_id"],
                "text": self.rows[row]["text"],
                "scores": {"weight": float(weights[row])},
            }
            for row in best
        ]


def _improved(choice: Choice, better: Callable[[Choice], Choice], most: int) -> Choice:
    """Replace a draft by a better one, at most so many times, until it stays the same."""
    for _ in range(most):
        improved = better(choice)
        if improved is choice:
            break
        choice = improved
    return choice
