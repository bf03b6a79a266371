"""Interface of labelers: report texts in, one state per class out, with the words the state rests on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from radweave.core.ontology import NO_FINDING
from radweave.core.study import LabelState
from radweave.labels.text import split_sentences

READ_TOGETHER: Final = 4096


@dataclass(frozen=True, slots=True)
class Mention:
    """State of one class in a text.

    ``span`` is the character range [start, end) in the given text that the state rests on. It is None for a blank
    class, for a state that follows from other classes (No Finding), and from labelers that give no evidence.
    """

    state: LabelState
    span: tuple[int, int] | None = None


BLANK = Mention(LabelState.BLANK)


@runtime_checkable
class Labeler(Protocol):
    """Reads reports. ``name`` and ``version`` belong in the protocol of every score made with it."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def classes(self) -> tuple[str, ...]: ...

    def label(self, texts: Sequence[str]) -> list[dict[str, Mention]]:
        """One mapping class -> mention per text, in the texts' order, with every class present.

        A text's labels never depend on the other texts of the call.

        Raises:
            InputError: if an entry is not a string.
        """
        ...


def abnormal_sentences(labeler: Labeler, texts: Sequence[str]) -> Iterator[list[tuple[int, int]]]:
    """Ranges [start, end) of the sentences of each text that state a finding, surely or not; No Finding is none."""
    for text in texts:
        read, start, ranges = split_sentences(text), 0, []
        for sentence, mentions in zip(read, labeler.label(read), strict=True):
            start = text.index(sentence, start)
            stated = (mention.state for name, mention in mentions.items() if name != NO_FINDING)
            if any(state in (LabelState.POSITIVE, LabelState.UNCERTAIN) for state in stated):
                ranges.append((start, start + len(sentence)))
            start += len(sentence)
        yield ranges


def states(labeler: Labeler, texts: Sequence[str]) -> Iterator[dict[str, LabelState]]:
    """One mapping class -> state per text, in the texts' order; those of a block are in memory at a time.

    In a block each text is read once, however often it comes.
    """
    for start in range(0, len(texts), READ_TOGETHER):
        block = texts[start : start + READ_TOGETHER]
        different = list(dict.fromkeys(block))
        read = dict(zip(different, labeler.label(different), strict=True))
        for text in block:
            yield {name: mention.state for name, mention in read[text].items()}
