"""Apply a protocol's text rules to pairs, and count what they did to the texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

from radweave.core.study import SECTIONS, split_sections, without_headings
from radweave.metrics.pairs import Pair, has_control, replace_control
from radweave.metrics.protocols import UNKNOWN_WORD, EvalProtocol, SideRule, Vocabulary, clean, ptb_like_tokens


@dataclass(slots=True)
class TextEffects:
    """Counts of the changes to the texts. Shares are of all texts of that side."""

    hypotheses: int = 0
    references: int = 0
    empty_hypotheses: int = 0
    texts_with_control_characters: int = 0
    references_cut: int = 0
    references_with_unknown_words: int = 0
    hypotheses_cut: int = 0
    mean_hypothesis_tokens: float = 0.0
    mean_reference_tokens: float = 0.0

    def to_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(slots=True)
class PreparedTexts:
    """Texts ready to split: one hypothesis and at least one reference per study, in the order of the pairs."""

    hyps: list[str]
    refs: list[list[str]]
    effects: TextEffects = field(default_factory=TextEffects)


def prepare(pairs: Sequence[Pair], protocol: EvalProtocol, vocabulary: Vocabulary | None = None) -> PreparedTexts:
    """Clean, tokenize, map rare words and cut, each side by its rule.

    Raises:
        InputError: if the protocol needs Java's tokenizer and it is not there.
    """
    effects = TextEffects(hypotheses=len(pairs))
    raw_hyps = [pair.hyp for pair in pairs]
    raw_refs = [ref for pair in pairs for ref in pair.refs]
    effects.references = len(raw_refs)
    effects.empty_hypotheses = sum(not text.strip() for text in raw_hyps)
    effects.texts_with_control_characters = sum(has_control(text) for text in (*raw_hyps, *raw_refs))
    hyps = _tokenized(raw_hyps, protocol.hypothesis)
    refs = _tokenized(raw_refs, protocol.reference)
    if vocabulary is not None:
        words = vocabulary.words
        refs = [" ".join(word if word in words else UNKNOWN_WORD for word in text.split()) for text in refs]
    hyps, effects.hypotheses_cut = _cut(hyps, protocol.hypothesis.max_tokens)
    refs, effects.references_cut = _cut(refs, protocol.reference.max_tokens)
    if vocabulary is not None:
        # After the cut: a word that is cut off reaches no score.
        effects.references_with_unknown_words = sum(UNKNOWN_WORD in text.split() for text in refs)
    effects.mean_hypothesis_tokens = sum(len(text.split()) for text in hyps) / max(len(hyps), 1)
    effects.mean_reference_tokens = sum(len(text.split()) for text in refs) / max(len(refs), 1)
    grouped = iter(refs)
    return PreparedTexts(hyps, [[next(grouped) for _ in pair.refs] for pair in pairs], effects)


def prepare_hypotheses(texts: Sequence[str], protocol: EvalProtocol) -> list[str]:
    """Apply the hypothesis rule alone, for baselines scored against the same references."""
    return _cut(_tokenized(texts, protocol.hypothesis), protocol.hypothesis.max_tokens)[0]


def _tokenized(texts: Sequence[str], rule: SideRule) -> list[str]:
    """Each text by the rule; texts that are equal are one, and are read once."""
    distinct = list(dict.fromkeys(texts))
    if rule.tokenizer == "ptb_coco":
        from radweave.metrics.meteor import ptb_tokenize

        split = ptb_tokenize([_cleaned(text, rule) for text in distinct])
    else:
        split = [_split(_cleaned(text, rule), rule) for text in distinct]
    tokens_of = dict(zip(distinct, split, strict=True))
    return [tokens_of[text] for text in texts]


def _cleaned(text: str, rule: SideRule) -> str:
    return clean(replace_control(text), rule.cleaner)


def _split(text: str, rule: SideRule) -> str:
    if rule.tokenizer == "ptb_like":
        return " ".join(ptb_like_tokens(text))
    return " ".join(text.split()) if rule.tokenizer == "words" else text


_SINGLE_BLANK = re.compile(" ")


def _cut(texts: list[str], max_tokens: int | None) -> tuple[list[str], int]:
    """Cut at single blanks, so that a leading blank counts as an (empty) token where the source counted it."""
    if max_tokens is None:
        return texts, 0
    cut = []
    number = 0
    for text in texts:
        tokens = _SINGLE_BLANK.split(text, maxsplit=max_tokens)
        is_longer = len(tokens) > max_tokens
        number += is_longer
        cut.append(" ".join(tokens[:max_tokens]) if is_longer else text)
    return cut, number


# Reports of two parts under headings (``target`` both), scored as a whole without headings, and by section.


BOTH = "both"


def are_parted(pairs: Sequence[Pair]) -> bool:
    """True where every pair says that its reports have two parts."""
    return all(pair.target == BOTH for pair in pairs)


def wholes(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """The pairs as one text each: two heading words that are always right would be worth something."""
    return tuple(
        replace(
            pair,
            hyp=without_headings(pair.hyp),
            refs=tuple(map(without_headings, pair.refs)),
            floors={name: without_headings(text) for name, text in pair.floors.items()},
            prior_report=None if pair.prior_report is None else without_headings(pair.prior_report),
        )
        for pair in pairs
    )


def section_of(text: str, name: str) -> str:
    """Text of a section; a text without headings is all findings."""
    return (split_sections(text) or {SECTIONS[0]: text}).get(name, "")


def of_section(pairs: Sequence[Pair], name: str) -> tuple[Pair, ...]:
    """The pairs in a section; a draft without it is empty there, and a study whose references lack it has no pair.

    Hand-set labels, probabilities and boxes belong to the study as a whole and are left out.
    """
    sections = (
        replace(
            pair,
            hyp=section_of(pair.hyp, name),
            refs=tuple(ref for ref in (section_of(text, name) for text in pair.refs) if ref.strip()),
            floors={floor: section_of(text, name) for floor, text in pair.floors.items()},
            prior_report=None if pair.prior_report is None else section_of(pair.prior_report, name),
            labels=None,
            probabilities=None,
            comparisons_removed=0,
            marks_removed=0,
            target=None,
            boxes=None,
            ref_boxes=None,
        )
        for pair in pairs
    )
    return tuple(pair for pair in sections if pair.refs)
