"""Candidates for drafts: training reports, and reports composed of their sentences. Each sentence names its source.

A composite is a normal training report into which sentences that state findings are put. A sentence of the template
that denies one of them gives way to it. In reports of two parts a sentence stays in the part that it is from. Sentences
with de-identification marks are left out: no radiologist wrote them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from radweave.core.study import NO_SECTION, SECTIONS, LabelState, join_sentences
from radweave.labels import NO_FINDING, Labeler
from radweave.labels.comparisons import MARK, remove_comparisons
from radweave.labels.contradictions import (
    claims_of,
    contradictions,
    states_something,
    takes_back,
    without_kind,
    without_place,
)
from radweave.labels.text import sentences_by_part
from radweave.metrics.pairwise import BleuPoint, PairwiseWording, WordingWeights
from radweave.metrics.prepare import prepare_hypotheses
from radweave.metrics.protocols import get_protocol
from radweave.nn.decoding import ExpectedUtilityConfig

_MOST_WORDS, _FEWEST_WORDS = 14, 3
_SAME_WORDS = 0.8
"""Templates that share more than this part of their words count as one."""

SentenceKind = Literal["report", "template", "finding", "comparison", "decoder", "recalled", "prior"]


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence, its role in the candidate, the row of its training report, and its section there, if any.

    ``study_id`` names the training study of one that a method recalled.
    """

    text: str
    kind: SentenceKind
    row: int
    part: str = NO_SECTION
    study_id: str | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A report that a draft may be."""

    sentences: tuple[Sentence, ...]

    @property
    def text(self) -> str:
        return join_sentences((sentence.part, sentence.text) for sentence in self.sentences)

    @property
    def is_composed(self) -> bool:
        """Tell if it is no training report, not even one without some of its sentences."""
        return any(sentence.kind != "report" for sentence in self.sentences)


@dataclass(frozen=True, slots=True)
class CandidateOptions:
    """Numbers of templates and of sentences per finding; ``marks`` keeps de-identification marks.

    ``consistent``: no report that contradicts itself (``radweave.labels.contradictions``); sentences that deny what
    another one states are left out of it.
    """

    num_templates: int = 30
    sentences_per_class: int = 3
    pairs: bool = True
    composites: bool = True
    consistent: bool = True
    marks: bool = False


def build_candidates(
    reports: Sequence[str],
    labeler: Labeler,
    *,
    options: CandidateOptions | None = None,
    clean: Callable[[str], str] = str.strip,
) -> list[Candidate]:
    """Distinct training reports, then composites. ``clean`` rewrites a sentence, or drops it by returning nothing.

    Raises:
        ValueError: if no report has a sentence that can be used.
    """
    options = options or CandidateOptions()
    whole = distinct(_usable(row, report, options, clean) for row, report in enumerate(reports))
    if not whole:
        raise ValueError("no training report has a sentence that a draft could use")
    labels = SentenceLabels(labeler)
    if options.consistent:
        # If all contradict themselves, all stay: a draft cannot be empty.
        whole = distinct(without_contradictions(candidate) for candidate in whole) or whole
    if options.composites:
        labels.read(sentence.text for candidate in whole for sentence in candidate.sentences)
    return [*whole, *(_composites(whole, labels, options) if options.composites else ())]


def without_contradictions(candidate: Candidate) -> Candidate:
    """The candidate without sentences that only deny what another one states; nothing where that does not make it
    consistent, or leaves a part of it empty.
    """
    remaining = candidate.sentences
    while conflicts := contradictions([sentence.text for sentence in remaining]):
        denying = {one.denies for one in conflicts if not states_something(remaining[one.denies].text)}
        if not denying:
            return Candidate(())
        remaining = tuple(sentence for number, sentence in enumerate(remaining) if number not in denying)
    whole = {sentence.part for sentence in remaining} == {sentence.part for sentence in candidate.sentences}
    return candidate if len(remaining) == len(candidate.sentences) else Candidate(remaining if whole else ())


def names_device(candidate: Candidate) -> bool:
    """Tell if a sentence affirms a device, a wire or a clip."""
    claims = (claim for sentence in candidate.sentences for claim in claims_of(sentence.text))
    return any(claim.topic == "devices" and not claim.denied for claim in claims)


def _usable(row: int, report: str, options: CandidateOptions, clean: Callable[[str], str]) -> Candidate:
    """The sentences of a report that may be used; none where a part of it has none left."""
    all_of_it = sentences_by_part(report)
    texts = [(part, clean(text)) for part, text in all_of_it]
    usable = [(part, text) for part, text in texts if text and (options.marks or not MARK.search(text))]
    if options.consistent:
        usable = list(dict.fromkeys(usable))  # sentences on several devices have become one and the same
    if {part for part, _ in usable} < {part for part, _ in all_of_it}:
        return Candidate(())
    return Candidate(tuple(Sentence(text, "report", row, part) for part, text in usable))


def distinct(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The first candidate of each text."""
    by_text: dict[str, Candidate] = {}
    for candidate in candidates:
        if candidate.sentences:
            by_text.setdefault(candidate.text, candidate)
    return list(by_text.values())


class SentenceLabels:
    """The classes that sentences affirm, deny and doubt, each sentence read once."""

    def __init__(self, labeler: Labeler) -> None:
        self.labeler = labeler
        self.known: dict[str, tuple[frozenset[str], frozenset[str], frozenset[str]]] = {}

    def read(self, texts: Iterable[str]) -> None:
        """Read what has not been read yet, in one call."""
        new = [text for text in dict.fromkeys(texts) if text not in self.known]
        for text, mentions in zip(new, self.labeler.label(new), strict=True):
            of = {
                state: frozenset(
                    name for name, mention in mentions.items() if mention.state is state and name != NO_FINDING
                )
                for state in (LabelState.POSITIVE, LabelState.NEGATIVE, LabelState.UNCERTAIN)
            }
            uncertain = any(mention.state is LabelState.UNCERTAIN for mention in mentions.values())
            affirmed = of[LabelState.POSITIVE] if not uncertain else frozenset({*of[LabelState.POSITIVE], "uncertain"})
            self.known[text] = affirmed, of[LabelState.NEGATIVE], of[LabelState.UNCERTAIN]

    def affirmed(self, text: str) -> frozenset[str]:
        return self.known[text][0]

    def denied(self, text: str) -> frozenset[str]:
        return self.known[text][1]

    def doubted(self, text: str) -> frozenset[str]:
        return self.known[text][2]


def _composites(whole: Sequence[Candidate], labels: SentenceLabels, options: CandidateOptions) -> list[Candidate]:
    normal = [c for c in whole if not any(labels.affirmed(sentence.text) for sentence in c.sentences)]
    templates = _templates(normal, options.num_templates)
    stated = _finding_sentences(whole, labels, options.sentences_per_class)
    sets = [variant for variants in stated.values() for variant in variants]
    if options.pairs:
        sets += [one + other for one, other in itertools.combinations([each[0] for each in stated.values()], 2)]
    known = {candidate.text for candidate in whole}
    composed = distinct(
        compose(template, chosen, labels, consistent=options.consistent) for template in templates for chosen in sets
    )
    return [candidate for candidate in composed if candidate.text not in known]


def _templates(normal: Sequence[Candidate], most: int) -> list[Candidate]:
    """Normal reports that word the other normal ones best, no two of them alike."""
    if not normal:
        return []
    words = [candidate.text.lower().split() for candidate in normal]
    wording = PairwiseWording(words, words)
    central = np.concatenate([wording.rouge_l(slice(i, i + 256)).mean(axis=1) for i in range(0, len(words), 256)])
    chosen: list[int] = []
    for index in np.argsort(-central, kind="stable").tolist():
        if all(_shared(words[index], words[other]) <= _SAME_WORDS for other in chosen):
            chosen.append(index)
        if len(chosen) == most:
            break
    return [normal[index] for index in chosen]


def _shared(words: Sequence[str], others: Sequence[str]) -> float:
    return len({*words} & {*others}) / max(len({*words} | {*others}), 1)


def _finding_sentences(
    whole: Sequence[Candidate], labels: SentenceLabels, most: int
) -> Mapping[str, list[tuple[Sentence, ...]]]:
    """Per class what states it: short sentences that state it alone and are most like the others that do.

    In reports of two parts each is one of the findings and, where there is one, the best of the impressions.
    """
    parts = dict.fromkeys(sentence.part for candidate in whole for sentence in candidate.sentences)
    by_part = {part: _finding_sentences_of(part, whole, labels, most) for part in parts}
    if len(parts) == 1:
        return {
            name: [(one,) for one in sentences] for by_class in by_part.values() for name, sentences in by_class.items()
        }
    findings, impressions = (by_part.get(part, {}) for part in SECTIONS)
    return {name: [(one, *impressions.get(name, [])[:1]) for one in sentences] for name, sentences in findings.items()}


def _finding_sentences_of(
    part: str, whole: Sequence[Candidate], labels: SentenceLabels, most: int
) -> dict[str, list[Sentence]]:
    """Those of one part."""
    own_part = [[sentence for sentence in candidate.sentences if sentence.part == part] for candidate in whole]
    counts = Counter(sentence.text for sentences in own_part for sentence in sentences)
    first = {sentence.text: sentence for sentences in reversed(own_part) for sentence in sentences}
    short = [text for text in counts if _FEWEST_WORDS <= len(text.split()) <= _MOST_WORDS]
    by_class: dict[str, list[Sentence]] = {}
    for name in labels.labeler.classes:
        own = [text for text in short if labels.affirmed(text) == {name}]
        if not own:
            continue
        words = [text.lower().split() for text in own]
        likeness = PairwiseWording(words, words).rouge_l(slice(0, len(words)))
        central = likeness @ np.array([counts[text] for text in own], dtype=np.float32)
        best = [first[own[index]] for index in np.argsort(-central, kind="stable")[:most].tolist()]
        by_class[name] = [replace(s, kind="finding") for s in best]
    return by_class


def compose(
    template: Candidate, stated: Sequence[Sentence], labels: SentenceLabels, *, consistent: bool = False
) -> Candidate:
    """The template with the stated sentences: in place of what denies them, else before everything in their part.

    What denies them in the other part goes too; nothing is made where that part would be empty. Findings that a
    composite states already stay what they are. ``labels`` have read all of these sentences. ``consistent``: what calls
    the organ of a finding normal goes as well, and nothing is made that contradicts itself.
    """
    sentences = [replace(s, kind="template") if s.kind == "report" else s for s in template.sentences]
    parts = {sentence.part for sentence in sentences}

    def gives_way(old: Sentence, names: frozenset[str], others: Sequence[Sentence]) -> bool:
        denies = bool(labels.denied(old.text) & names)
        return denies or (
            consistent and not states_something(old.text) and any(takes_back(old.text, new.text) for new in others)
        )

    for new in reversed(stated):
        names = labels.affirmed(new.text)
        places = [i for i, old in enumerate(sentences) if old.part == new.part and gives_way(old, names, [new])]
        remaining = [old for i, old in enumerate(sentences) if i not in places]
        remaining.insert(places[0] if places else section_start(new.part, remaining), new)
        sentences = remaining
    if len(parts) > 1:
        names = frozenset().union(*(labels.affirmed(new.text) for new in stated))
        sentences = [old for old in sentences if old.kind == "finding" or not gives_way(old, names, stated)]
    made = Candidate(tuple(sentences) if {sentence.part for sentence in sentences} == parts else ())
    return without_contradictions(made) if consistent else made


def section_start(part: str, sentences: Sequence[Sentence]) -> int:
    """Index at which a part begins among the sentences of a report, or would."""
    order = (NO_SECTION, *SECTIONS)
    return next((i for i, one in enumerate(sentences) if order.index(one.part) >= order.index(part)), len(sentences))


# Candidates of a run, with the classes they state and the utilities of their words.


def candidate_options(config: ExpectedUtilityConfig, *, marks: bool = False) -> dict[str, bool]:
    """The options that decide which candidates there are; with ``marks`` those with de-identification marks too."""
    options = {"composites": config.composites, "consistent": config.consistent, "marks": marks}
    keeps = keeps_places(config)
    return options | ({"places": keeps, "kinds_of_devices": keeps} if config.consistent else {})


def keeps_places(config: ExpectedUtilityConfig) -> bool:
    """Tell if findings keep the sides, lobes and sizes of the training reports, and devices their kinds."""
    return not config.consistent or config.unsupported_places == "keep"


def clean_sentence(text: str, labeler: Labeler, *, compares: bool, places: bool) -> str:
    """A sentence as a draft may have it: without comparisons unless ``compares``, and without a place or a kind of
    device unless ``places`` or where it only denies; empty where that cannot be had.
    """
    now = text if compares else remove_comparisons(text, labeler)[0]
    if places:
        return now
    now = without_kind(now, labeler, compares=compares) or ""
    claims = claims_of(now)
    if claims and all(claim.denied for claim in claims):
        return now
    return without_place(now, labeler) or ""


def utility_options(config: ExpectedUtilityConfig) -> dict[str, float]:
    """The options that decide utilities of words."""
    return {"cider": config.cider, "rouge_l": config.rouge_l, "bleu": config.bleu}


@dataclass(frozen=True, slots=True)
class CandidatePool:
    """Candidates, and the classes that each states (M, K)."""

    candidates: Sequence[Candidate]
    asserts: NDArray[np.float64]

    @classmethod
    def build(
        cls, reports: Sequence[str], labeler: Labeler, config: ExpectedUtilityConfig, *, marks: bool = False
    ) -> CandidatePool:
        """Training reports and composites, without comparisons: a draft has nothing to compare with.

        Raises:
            ValueError: if no report has a sentence that can be used.
        """
        options = CandidateOptions(composites=config.composites, consistent=config.consistent, marks=marks)
        clean = partial(clean_sentence, labeler=labeler, compares=False, places=keeps_places(config))
        candidates = build_candidates(reports, labeler, options=options, clean=clean)
        return cls(candidates, affirmed_classes([candidate.text for candidate in candidates], labeler))


def affirmed_classes(texts: Sequence[str], labeler: Labeler) -> NDArray[np.float64]:
    """Classes that texts affirm (N, K), 0 and 1; an uncertain mention affirms nothing."""
    read = labeler.label(texts)
    rows = [[mentions[name].state is LabelState.POSITIVE for name in labeler.classes] for mentions in read]
    return np.array(rows, dtype=np.float64).reshape(len(texts), len(labeler.classes))


def utilities(
    candidates: Sequence[Candidate], reports: Sequence[str], config: ExpectedUtilityConfig, point: BleuPoint | None
) -> NDArray[np.float32]:
    """Utilities of the words of candidates for reports (M, J). Without a point BLEU does not count."""
    weights = WordingWeights(config.cider, config.rouge_l, config.bleu if point is not None else 0.0)
    return np.concatenate([block for _, block in _wording(candidates, reports).blocks(weights, point)])


def bleu_point(candidates: Sequence[Candidate], reports: Sequence[str], neighbours: Sequence[int]) -> BleuPoint | None:
    """The point of a training set that drafts each report by that of its neighbour; None if no draft has one's words.

    ``neighbours`` (J,) are rows of the reports.
    """
    of_row = {
        candidate.sentences[0].row: number for number, candidate in enumerate(candidates) if not candidate.is_composed
    }
    pairs = [(of_row[near], row) for row, near in enumerate(neighbours) if near in of_row]
    return _wording(candidates, reports).bleu_point(np.array(pairs)) if pairs else None


def _wording(candidates: Sequence[Candidate], reports: Sequence[str]) -> PairwiseWording:
    protocol = get_protocol("full")
    words = [
        [text.split() for text in prepare_hypotheses(texts, protocol)]
        for texts in ([candidate.text for candidate in candidates], list(reports))
    ]
    return PairwiseWording(*words)
