"""Phrases that drafts of several systems share with one reference, highlighted side by side.

Source: the figures of DAST (Fig. 3) and AM-MRG (Fig. 6), which colour matched phrases by hand. Here a phrase is
matched if its words, without case and punctuation, stand in the reference in the same order without a gap. As in
AM-MRG's Fig. 6, the reference tells what every system matches from what some do. Beneath each text stand its findings,
as in AM-MRG's Fig. 5, which lists them by hand; here a labeler reads them. The study's images may stand beside them, as
in AM-MRG's Fig. 6.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from radweave.core.errors import InputError
from radweave.core.ontology import NO_FINDING
from radweave.core.study import RESEARCH_ONLY, ImageRef, LabelState
from radweave.data.ct import CtPreprocessing, preprocess_spaced, to_bytes
from radweave.data.dataset import Dataset
from radweave.data.square import to_square
from radweave.labels.labeler import Labeler
from radweave.metrics.pairs import Pair

SHORTEST = 3
"""Words of the shortest phrase that counts; a shorter one counts if it is a whole sentence of both."""
SHOWN_PX = 320
"""Side of an image on the page."""
_WINDOW = CtPreprocessing(window_hu=(-1000, 200))
"""Of scans: from air to soft tissue."""
_WORD = re.compile(r"\w+(?:['-]\w+)*")
_SENTENCE_END = re.compile(r"[.!?]")
Mark = TypeVar("Mark")


@dataclass(frozen=True, slots=True)
class Passage:
    """A stretch of a text; ``phrase`` is the number of the reference's phrase that it matches, 0 for none."""

    text: str
    phrase: int = 0


@dataclass(frozen=True, slots=True)
class Matched:
    """A draft in passages.

    Attributes:
        share: share of its words that stand in matched phrases; None for a draft without words.
        words: numbers of the reference's words that its phrases match, from 0.
    """

    passages: tuple[Passage, ...]
    share: float | None
    words: frozenset[int]


@dataclass(frozen=True, slots=True)
class SharedPassage:
    """A stretch of a reference, and the names of the systems whose drafts match it."""

    text: str
    systems: tuple[str, ...] = ()


def matched_phrases(draft: str, reference: str, shortest: int = SHORTEST) -> Matched:
    """Mark the longest phrases of a draft that stand in the reference.

    Phrases are taken from the left, each as long as possible, and none crosses the end of a sentence. Equal phrases
    have equal numbers, from 1, in the order in which they stand in the reference.
    """
    words, known = _words(draft), _words(reference)
    starts: dict[str, list[int]] = {}
    for place, (word, *_) in enumerate(known):
        starts.setdefault(word, []).append(place)
    spans: list[tuple[int, int, int]] = []
    place = 0
    while place < len(words):
        at = max(
            starts.get(words[place][0], ()), key=lambda one: (_common(words, place, known, one), -one), default=None
        )
        length = 0 if at is None else _common(words, place, known, at)
        if at is not None and (
            length >= shortest or (_is_sentence(words, place, length) and _is_sentence(known, at, length))
        ):
            spans.append((place, place + length, at))
            place += length
        else:
            place += 1
    order = {where: number for number, where in enumerate(sorted({where for _, _, where in spans}), start=1)}
    marks = [(words[first][1], words[after - 1][2], order[where]) for first, after, where in spans]
    return Matched(
        tuple(Passage(*one) for one in _divided(draft, marks, 0)),
        sum(after - first for first, after, _ in spans) / len(words) if words else None,
        frozenset(where + step for first, after, where in spans for step in range(after - first)),
    )


def shared_phrases(reference: str, matched: Mapping[str, Matched]) -> tuple[SharedPassage, ...]:
    """Divide a reference by the systems that match it: name -> that system's draft, matched with this reference.

    A passage is a run of words that the same systems match, within one sentence.
    """
    words = [
        (word, tuple(name for name, draft in matched.items() if number in draft.words))
        for number, word in enumerate(_words(reference))
    ]
    runs = [
        (systems, [word for word, _ in run])
        for (_, systems), run in groupby(words, key=lambda one: (one[0][3], one[1]))
        if systems
    ]
    marks = [(run[0][1], run[-1][2], systems) for systems, run in runs]
    return tuple(SharedPassage(*one) for one in _divided(reference, marks, ()))


def _divided(text: str, marks: Iterable[tuple[int, int, Mark]], unmarked: Mark) -> list[tuple[str, Mark]]:
    """Cut a text at marked stretches: (first character, character after the last, mark), in order."""
    parts, end = [], 0
    for begin, stop, mark in marks:
        if begin > end:
            parts.append((text[end:begin], unmarked))
        parts.append((text[begin:stop], mark))
        end = stop
    if end < len(text):
        parts.append((text[end:], unmarked))
    return parts


def _words(text: str) -> list[tuple[str, int, int, int]]:
    """Word in lower case, its first and last character, and the number of its sentence."""
    ends = [match.start() for match in _SENTENCE_END.finditer(text)]
    numbered = []
    sentence = 0
    for match in _WORD.finditer(text):
        while sentence < len(ends) and ends[sentence] < match.start():
            sentence += 1
        numbered.append((match[0].lower(), match.start(), match.end(), sentence))
    return numbered


def _common(
    words: Sequence[tuple[str, int, int, int]], place: int, known: Sequence[tuple[str, int, int, int]], at: int
) -> int:
    """Number of words from ``place`` and ``at`` on that are equal, each within its sentence."""
    length = 0
    while (
        place + length < len(words)
        and at + length < len(known)
        and words[place + length][0] == known[at + length][0]
        and words[place + length][3] == words[place][3]
        and known[at + length][3] == known[at][3]
    ):
        length += 1
    return length


def _is_sentence(words: Sequence[tuple[str, int, int, int]], place: int, length: int) -> bool:
    """True if the phrase is a whole sentence of its text."""
    sentence = words[place][3]
    before = place == 0 or words[place - 1][3] != sentence
    after = place + length == len(words) or words[place + length][3] != sentence
    return before and after


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings of a draft and its reference: affirmed by both, by the reference alone, by the draft alone."""

    matched: tuple[str, ...]
    missed: tuple[str, ...]
    invented: tuple[str, ...]

    @classmethod
    def of(cls, draft: Sequence[str], reference: Sequence[str]) -> Findings:
        """Compare what both affirm; the order of each is kept."""
        return cls(
            tuple(name for name in reference if name in draft),
            tuple(name for name in reference if name not in draft),
            tuple(name for name in draft if name not in reference),
        )


def affirmed(text: str, labeler: Labeler) -> tuple[str, ...]:
    """The findings that a text affirms, in the order of the labeler's classes."""
    (mentions,) = labeler.label([text])
    return tuple(
        name for name, mention in mentions.items() if mention.state is LabelState.POSITIVE and name != NO_FINDING
    )


@dataclass(frozen=True, slots=True)
class Picture:
    """An image of a study: its name on the page, and a PNG as a data URI, or nothing where it cannot be read."""

    title: str
    uri: str


def study_pictures(dataset: Dataset, study_ids: Collection[str]) -> dict[str, tuple[Picture, ...]]:
    """Study -> its radiographs, or of a scan the middle axial and coronal slices; studies that are not there are left
    out."""
    return {
        study.study_id: tuple(picture for ref in study.images for picture in _pictures(dataset, ref))
        for study in dataset.studies()
        if study.study_id in study_ids
    }


def _pictures(dataset: Dataset, ref: ImageRef) -> Iterator[Picture]:
    from radweave.io.images import read_radiograph
    from radweave.io.volumes import read_volume

    view = ref.view.value
    try:
        path = dataset.image_path(ref.path)
        if ref.modality == "xray":
            pixels = read_radiograph(path, original_size_wh=ref.original_size_wh, doubts=False).pixels
            yield Picture(view, _png_uri(pixels))
        else:
            hu, (z, y, x) = preprocess_spaced(read_volume(path), _WINDOW)
            slices = ("axial", hu[len(hu) // 2], y / x), ("coronal", hu[::-1, hu.shape[1] // 2], z / x)
            for name, plane, height in slices:
                pixels = np.divide(to_bytes(plane, _WINDOW), 255, dtype=np.float32)
                yield Picture(f"middle {name} slice", _png_uri(pixels, height))
    except InputError:
        yield Picture(f"{view}: cannot be read", "")


def _png_uri(pixels: NDArray[np.float32], height: float = 1.0) -> str:
    """A picture (H, W) in [0, 1] fitted into a square; ``height`` of a pixel by its width."""
    rows, columns = pixels.shape
    plane = Image.fromarray(np.ascontiguousarray(pixels)).resize((columns, max(1, round(rows * height))))
    buffer = io.BytesIO()
    Image.fromarray(to_square(np.asarray(plane), SHOWN_PX)).save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def phrases_page(
    systems: Mapping[str, Sequence[Pair]], studies: int, labeler: Labeler | None, images: Dataset | None = None
) -> str:
    """An HTML page with at most so many studies, spread evenly: the reference, and each system's draft beneath it.

    Phrases are marked in the drafts, and in the reference: those that every system matches, and those of some.

    Args:
        systems: name -> pairs, with the same references; studies are those of the first system.
        studies: at most so many studies.
        labeler: reads the findings beneath each text; None leaves them out.
        images: data set whose images of the studies are shown.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    first = next(iter(systems.values()))
    chosen = [first[number * len(first) // min(studies, len(first))] for number in range(min(studies, len(first)))]
    drafts = {name: {pair.study_id: pair.hyp for pair in pairs} for name, pairs in systems.items()}
    pictures = {} if images is None else study_pictures(images, {pair.study_id for pair in chosen})
    shown = []
    for pair in chosen:
        matched = {
            name: matched_phrases(texts[pair.study_id], pair.refs[0])
            for name, texts in drafts.items()
            if pair.study_id in texts
        }
        reference = shared_phrases(pair.refs[0], matched)
        findings: dict[str, Findings] = {}
        stated = () if labeler is None else affirmed(pair.refs[0], labeler)
        if labeler is not None:
            findings = {name: Findings.of(affirmed(drafts[name][pair.study_id], labeler), stated) for name in matched}
        texts = {"reference": reference, "drafts": matched, "stated": stated, "findings": findings}
        shown.append({"id": pair.study_id, "pictures": pictures.get(pair.study_id, ()), **texts})
    environment = Environment(
        loader=PackageLoader("radweave", "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("phrases.html.j2").render(
        studies=shown, number=len(first), shortest=SHORTEST, labelled=labeler is not None,
        with_images=images is not None, notice=RESEARCH_ONLY,
    )  # fmt: skip
