"""What a draft may say: training reports, and reports composed of their sentences. Each sentence names its source.

A composite is a normal training report into which sentences that state findings are put. A sentence of the template
that denies one of them gives way to it. In reports of two parts a sentence stays in the part that it is from. Sentences
with de-identification marks are left out: no radiologist wrote them.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from radweave.base.parts import NO_PART, PARTS, is_parted, joined, parts_of
from radweave.base.study import LabelState
from radweave.evaluation.metrics.pairwise import PairwiseWording
from radweave.labels import NO_FINDING, Labeler
from radweave.labels.marks import MARK

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_MOST_WORDS, _FEWEST_WORDS = 14, 3
_SAME_WORDS = 0.8
"""Templates that share more than this part of their words count as one."""


_CLEAR_LUNGS = re.compile(
    r"\b(lungs?|lung fields?|airspaces?)\b.*\b(clear|normal|unremarkable)\b|\bclear lungs?\b", re.IGNORECASE
)
_BUT_FOR_THAT = re.compile("otherwise|remain", re.IGNORECASE)
_ALL_WELL = re.compile(
    r"\b(normal chest|no acute (cardiopulmonary|cardio-pulmonary|pulmonary|disease|findings?|abnormalit))",
    re.IGNORECASE,
)
_OF_THE_LUNGS = frozenset(
    {
        *("Lung Opacity", "Lung Lesion", "Edema", "Consolidation", "Pneumonia", "Atelectasis"),
        *("Lung opacity", "Lung nodule", "Emphysema", "Pulmonary fibrotic sequela", "Mosaic attenuation pattern"),
        *("Peribronchial thickening", "Bronchiectasis", "Interlobular septal thickening"),
        *("Infiltration", "Mass", "Nodule", "Fibrosis"),
    }
)
"""Classes of the label sets that clear lungs do not have."""


def denies_all(text: str, stated: frozenset[str]) -> bool:
    """Whether a sentence says that all is well where these classes are stated: labelers read no denial in it."""
    if stated & _OF_THE_LUNGS and _CLEAR_LUNGS.search(text) and not _BUT_FOR_THAT.search(text):
        return True
    return bool(stated) and _ALL_WELL.search(text) is not None


SentenceKind = Literal["report", "template", "finding", "comparison", "language_model"]


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence, what it is in its candidate, the training report (its number) that it was taken from, and the part of
    it, ``NO_PART`` of a report without headings.
    """

    text: str
    kind: SentenceKind
    row: int
    part: str = NO_PART


@dataclass(frozen=True, slots=True)
class Candidate:
    """A report that a draft may be."""

    sentences: tuple[Sentence, ...]

    @property
    def text(self) -> str:
        return joined((sentence.part, sentence.text) for sentence in self.sentences)

    @property
    def is_whole(self) -> bool:
        """Whether it is a training report as it stands, but for sentences that were left out."""
        return not self.is_composed

    @property
    def is_composed(self) -> bool:
        return any(sentence.kind != "report" for sentence in self.sentences)


@dataclass(frozen=True, slots=True)
class CandidateOptions:
    """How many templates, and how many sentences per finding; ``marks`` keeps de-identification marks.

    ``consistent``: no report in which one sentence affirms what another denies, and no composite that states a finding
    beside a sentence of the template that all is well.
    """

    num_templates: int = 30
    sentences_per_class: int = 3
    pairs: bool = True
    composites: bool = True
    consistent: bool = False
    marks: bool = False


def split_sentences(text: str) -> list[str]:
    """The sentences of a report, in order."""
    return [sentence.strip() for sentence in _SENTENCE_END.split(text) if sentence.strip()]


def sentences_by_part(text: str) -> list[tuple[str, str]]:
    """Part and text of each sentence of a report, in order, without headings."""
    parts = parts_of(text) if is_parted(text) else {NO_PART: text}
    return [(part, sentence) for part, said in parts.items() for sentence in split_sentences(said)]


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
    whole = _distinct(_usable(row, report, options, clean) for row, report in enumerate(reports))
    if not whole:
        raise ValueError("no training report has a sentence that a draft could use")
    labels = SentenceLabels(labeler)
    if options.composites or options.consistent:
        labels.read(sentence.text for candidate in whole for sentence in candidate.sentences)
    if options.consistent:
        # Where all contradict themselves, a draft still has to say something.
        whole = [candidate for candidate in whole if not contradicts_itself(candidate, labels)] or whole
    return [*whole, *(_composites(whole, labels, options) if options.composites else ())]


def contradicts_itself(candidate: Candidate, labels: SentenceLabels) -> bool:
    """Whether one sentence affirms a class that another denies."""
    texts = [sentence.text for sentence in candidate.sentences]
    return any(labels.affirmed(one) & labels.denied(other) for one in texts for other in texts if one is not other)


def _usable(row: int, report: str, options: CandidateOptions, clean: Callable[[str], str]) -> Candidate:
    """The sentences of a report that may be used; none where a part of it has none left."""
    all_of_it = sentences_by_part(report)
    texts = [(part, clean(text)) for part, text in all_of_it]
    kept = [(part, text) for part, text in texts if text and (options.marks or not MARK.search(text))]
    if {part for part, _ in kept} < {part for part, _ in all_of_it}:
        return Candidate(())
    return Candidate(tuple(Sentence(text, "report", row, part) for part, text in kept))


def _distinct(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The first candidate of each text."""
    by_text: dict[str, Candidate] = {}
    for candidate in candidates:
        if candidate.sentences:
            by_text.setdefault(candidate.text, candidate)
    return list(by_text.values())


class SentenceLabels:
    """The classes that sentences affirm and deny, each sentence read once."""

    def __init__(self, labeler: Labeler) -> None:
        self.labeler = labeler
        self.known: dict[str, tuple[frozenset[str], frozenset[str]]] = {}

    def read(self, texts: Iterable[str]) -> None:
        """Read what has not been read yet, in one call."""
        new = [text for text in dict.fromkeys(texts) if text not in self.known]
        for text, mentions in zip(new, self.labeler.label(new), strict=True):
            of = {
                state: frozenset(
                    name for name, mention in mentions.items() if mention.state is state and name != NO_FINDING
                )
                for state in (LabelState.POSITIVE, LabelState.NEGATIVE)
            }
            uncertain = any(mention.state is LabelState.UNCERTAIN for mention in mentions.values())
            affirmed = of[LabelState.POSITIVE] if not uncertain else frozenset({*of[LabelState.POSITIVE], "uncertain"})
            self.known[text] = affirmed, of[LabelState.NEGATIVE]

    def affirmed(self, text: str) -> frozenset[str]:
        return self.known[text][0]

    def denied(self, text: str) -> frozenset[str]:
        return self.known[text][1]


def _composites(whole: Sequence[Candidate], labels: SentenceLabels, options: CandidateOptions) -> list[Candidate]:
    normal = [c for c in whole if not any(labels.affirmed(sentence.text) for sentence in c.sentences)]
    templates = _templates(normal, options.num_templates)
    stated = _finding_sentences(whole, labels, options.sentences_per_class)
    sets = [said for variants in stated.values() for said in variants]
    if options.pairs:
        sets += [one + other for one, other in itertools.combinations([each[0] for each in stated.values()], 2)]
    known = {candidate.text for candidate in whole}
    composed = _distinct(
        compose(template, chosen, labels, consistent=options.consistent) for template in templates for chosen in sets
    )
    return [
        candidate
        for candidate in composed
        if candidate.text not in known and not (options.consistent and contradicts_itself(candidate, labels))
    ]


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
    found = {part: _finding_sentences_of(part, whole, labels, most) for part in parts}
    if len(parts) == 1:
        return {name: [(one,) for one in said] for said_of in found.values() for name, said in said_of.items()}
    findings, impressions = (found.get(part, {}) for part in PARTS)
    return {name: [(one, *impressions.get(name, [])[:1]) for one in said] for name, said in findings.items()}


def _finding_sentences_of(
    part: str, whole: Sequence[Candidate], labels: SentenceLabels, most: int
) -> dict[str, list[Sentence]]:
    """Those of one part."""
    own_part = [[sentence for sentence in candidate.sentences if sentence.part == part] for candidate in whole]
    counts = Counter(sentence.text for sentences in own_part for sentence in sentences)
    first = {sentence.text: sentence for sentences in reversed(own_part) for sentence in sentences}
    short = [text for text in counts if _FEWEST_WORDS <= len(text.split()) <= _MOST_WORDS]
    found: dict[str, list[Sentence]] = {}
    for name in labels.labeler.classes:
        own = [text for text in short if labels.affirmed(text) == {name}]
        if not own:
            continue
        words = [text.lower().split() for text in own]
        likeness = PairwiseWording(words, words).rouge_l(slice(0, len(words)))
        central = likeness @ np.array([counts[text] for text in own], dtype=np.float32)
        best = [first[own[index]] for index in np.argsort(-central, kind="stable")[:most].tolist()]
        found[name] = [replace(s, kind="finding") for s in best]
    return found


def compose(
    template: Candidate, stated: Sequence[Sentence], labels: SentenceLabels, *, consistent: bool = False
) -> Candidate:
    """The template with the stated sentences: in place of what denies them, else before everything in their part.

    What denies them in the other part goes too; nothing is made where that part would be empty. Findings that a
    composite states already stay what they are. ``labels`` have read all of these sentences.
    """
    sentences = [replace(s, kind="template") if s.kind == "report" else s for s in template.sentences]
    parts = {sentence.part for sentence in sentences}

    def gives_way(old: Sentence, names: frozenset[str]) -> bool:
        denies = bool(labels.denied(old.text) & names)
        return denies or (consistent and old.kind != "finding" and denies_all(old.text, names))

    for new in reversed(stated):
        names = labels.affirmed(new.text)
        places = [i for i, old in enumerate(sentences) if old.part == new.part and gives_way(old, names)]
        kept = [old for i, old in enumerate(sentences) if i not in places]
        kept.insert(places[0] if places else start_of(new.part, kept), new)
        sentences = kept
    if len(parts) > 1:
        names = frozenset().union(*(labels.affirmed(new.text) for new in stated))
        sentences = [old for old in sentences if old.kind == "finding" or not gives_way(old, names)]
    return Candidate(tuple(sentences) if {sentence.part for sentence in sentences} == parts else ())


def start_of(part: str, sentences: Sequence[Sentence]) -> int:
    """Where a part begins among the sentences of a report, or would."""
    order = (NO_PART, *PARTS)
    return next((i for i, one in enumerate(sentences) if order.index(one.part) >= order.index(part)), len(sentences))
