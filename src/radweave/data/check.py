"""Check a dataset folder: schema, images, leaks between splits, and statistics of texts and labels.

A leak is a study, a patient or a picture in two splits. Ids are compared in a form that ignores spelling; a picture
also counts if it was saved anew, cut, moved, turned, mirrored or inverted.
Equal texts in two splits are no leak by themselves, since many normal reports are equal; they give a warning. Test
studies copied into train under other names are detected by their pictures.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from radweave.core.study import SPLITS, ImageRef, Study
from radweave.data.cache.arrays import in_order, one_by_one
from radweave.data.dataset import Dataset
from radweave.data.leaks.identity import comparable_id
from radweave.data.leaks.images import PAIRS, SAME_WEAKEST, ImageFacts, ImageIndex, inspect_image
from radweave.data.leaks.texts import TextIndex

# Control words of language models: ends of texts, turns of a conversation, placeholders of images.
#
# In a report they are damage, or an attempted prompt injection. Training reads them as ordinary words
# (``data/tokenizer.py``), but other programs that get the texts may not.

_CONTROL: Final = re.compile(
    r"<\|[\w .:/-]{1,40}\|>|<｜[^<>\n]{1,40}｜>"
    r"|</?(?:s|pad|unk|bos|eos|cls|sep|mask|img|image|imagehere|sys|think|tool_call)>|<</?SYS>>"
    r"|<(?:start|end)_of_(?:turn|text|image)>|<end_of_utterance>|<(?:unused|extra_id_|reserved_\w{0,30}?)\d{1,4}>"
    r"|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|IMG|IMG_BREAK|IMG_END)\]"
    r"|\[(?:CLS|SEP|MASK|PAD|UNK|BOS|EOS)\]|<0x[0-9A-F]{2}>",
    re.IGNORECASE,
)


# Chains of priors must lead back in time and end.

OF_ANOTHER_PATIENT = "prior is of another patient"
NOT_EARLIER = "prior is not earlier than the study"
IN_A_CIRCLE = "priors that are each other's prior"


@dataclass(frozen=True, slots=True)
class PriorFault:
    """A kind of fault and its studies, the later one first."""

    kind: str
    studies: tuple[int, ...]


def prior_faults(
    prior_of: Mapping[int, int], patient_of: Sequence[bytes], time_of: Sequence[str | None]
) -> Iterator[PriorFault]:
    """Faults of the priors of numbered studies.

    A study is compared with its nearest prior that has a time, so that an undated one in between hides nothing.
    """
    for study, prior in prior_of.items():
        if patient_of[prior] != patient_of[study]:
            yield PriorFault(OF_ANOTHER_PATIENT, (study,))
        dated = _nearest_dated(prior, prior_of, time_of)
        before, now = None if dated is None else time_of[dated], time_of[study]
        if dated is not None and before is not None and now is not None and before >= now:
            yield PriorFault(NOT_EARLIER, (study, dated))
    for circle in _circles(prior_of):
        yield PriorFault(IN_A_CIRCLE, circle)


def _nearest_dated(study: int, prior_of: Mapping[int, int], time_of: Sequence[str | None]) -> int | None:
    """The study, or its nearest prior that has a time."""
    visited: set[int] = set()
    current: int | None = study
    while current is not None and current not in visited:
        if time_of[current] is not None:
            return current
        visited.add(current)
        current = prior_of.get(current)
    return None


def _circles(prior_of: Mapping[int, int]) -> Iterator[tuple[int, ...]]:
    """Each circle once; every study is visited once, so that long chains stay cheap."""
    walked: set[int] = set()
    for start in prior_of:
        path: dict[int, None] = {}
        current: int | None = start
        while current is not None and current not in walked and current not in path:
            path[current] = None
            current = prior_of.get(current)
        if current is not None and current in path:
            steps = list(path)
            yield tuple(steps[steps.index(current) :])
        walked.update(path)


# Labels, scores and sentences of drafts are read by rules for English.

_ENGLISH: Final = frozenset({
    "the", "with", "there", "from", "this", "within", "without", "and", "not", "seen", "lungs", "lung", "heart",
    "clear", "left", "right", "both", "chest", "size", "small", "pulmonary", "unchanged", "abnormality", "disease",
    "findings", "evidence", "limits",
})  # fmt: skip
"""Words of English reports that are none in those of other languages with Latin letters."""
_WORD: Final = re.compile(r"[^\W\d_]+")
_LEAST_WORDS: Final = 8
_NOT_ENGLISH_SHARE: Final = 0.1
NOT_ENGLISH = "report without a common English word: findings, scores and drafts rest on rules for English"


def is_english(report: str) -> bool:
    """True if a report has a common English word, or too few words to tell."""
    words = _WORD.findall(report.lower())
    return len(words) < _LEAST_WORDS or not _ENGLISH.isdisjoint(words)


def is_telling(wrong: int, reports: int) -> bool:
    """True if more reports are not English than data sets in English have."""
    return wrong > _NOT_ENGLISH_SHARE * reports


def not_english(reports: Iterable[str | None]) -> int:
    """Number of the reports that are not English; 0 where it is not telling."""
    judged = [is_english(report) for report in reports if report]
    wrong = len(judged) - sum(judged)
    return wrong if is_telling(wrong, len(judged)) else 0


MOST_EXAMPLES = 10
LENGTH_BINS = (0, 1, 10, 20, 40, 60, 80, 100, 150, 200, 300)
"""First word count of each bin of the length histogram."""

LARGE_BYTES, JUDGED_STUDIES = 64 << 10, 16
"""Image files with a larger mean size are read in parallel; with smaller ones threads only wait for each other."""

Progress = Callable[[int, int], None]
_NO_SPLIT = "none"
DIFFERENT_FILES = "same picture in two splits, in different files"
TOO_ALIKE = "pictures of different patients are so alike that only copies saved anew can be told from them"


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault, its count, and the manifest lines of the first few (two lines for two studies).

    Lines stand in for ids, which may identify a patient.
    """

    kind: str
    count: int
    lines: tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class CheckReport:
    """Results: ``errors`` make the data set unusable, ``leaks`` its scores worthless, ``warnings`` are hints.

    ``labels`` maps label set -> class -> state -> studies; ``boxes`` maps label -> marked findings; ``lengths`` maps
    split -> first word count of a bin -> studies.
    """

    studies: Counter[str] = field(default_factory=Counter)
    patients: int = 0
    images: int = 0
    views: Counter[str] = field(default_factory=Counter)
    labels: dict[str, dict[str, Counter[str]]] = field(default_factory=dict)
    boxes: Counter[str] = field(default_factory=Counter)
    lengths: dict[str, Counter[int]] = field(default_factory=dict)
    errors: list[Fault] = field(default_factory=list)
    leaks: list[Fault] = field(default_factory=list)
    warnings: list[Fault] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """1 for a leak, else 2 for an error, else 0."""
        return 1 if self.leaks else 2 if self.errors else 0

    def to_json(self) -> dict[str, Any]:
        def plain(faults: list[Fault]) -> list[dict[str, Any]]:
            return [{"kind": f.kind, "count": f.count, "lines": [list(lines) for lines in f.lines]} for f in faults]

        return {
            "studies": dict(sorted(self.studies.items())),
            "patients": self.patients,
            "images": self.images,
            "views": dict(sorted(self.views.items())),
            "labels": {
                name: {finding: dict(sorted(states.items())) for finding, states in classes.items()}
                for name, classes in sorted(self.labels.items())
            },
            "boxes": dict(sorted(self.boxes.items())),
            "report_words": {
                split: {str(start): bins[start] for start in LENGTH_BINS if bins[start]}
                for split, bins in sorted(self.lengths.items())
            },
            "errors": plain(self.errors),
            "leaks": plain(self.leaks),
            "warnings": plain(self.warnings),
        }


@dataclass(slots=True)
class _Tally:
    """Manifest lines by kind of fault."""

    counts: Counter[str] = field(default_factory=Counter)
    lines: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)

    def add(self, kind: str, *lines: int) -> None:
        self.counts[kind] += 1
        examples = self.lines.setdefault(kind, [])
        if len(examples) < MOST_EXAMPLES:
            examples.append(lines)

    def faults(self) -> list[Fault]:
        return [Fault(kind, count, tuple(self.lines[kind])) for kind, count in sorted(self.counts.items())]


# Digest of a patient, a file or a picture -> split -> its first line.
FirstLines = dict[bytes, dict[str, int]]


@dataclass(slots=True)
class _Check:
    """The state of one pass over the manifest. Studies are numbered by position; ids serve comparison only."""

    dataset: Dataset
    reads_images: bool
    report: CheckReport = field(default_factory=CheckReport)
    errors: _Tally = field(default_factory=_Tally)
    leaks: _Tally = field(default_factory=_Tally)
    warnings: _Tally = field(default_factory=_Tally)
    line_of: list[int] = field(default_factory=list)
    split_of: list[str] = field(default_factory=list)
    patient_of: list[bytes] = field(default_factory=list)
    time_of: list[str | None] = field(default_factory=list)
    position_of: dict[str, int] = field(default_factory=dict)
    patients: FirstLines = field(default_factory=lambda: defaultdict(dict))
    studies: FirstLines = field(default_factory=lambda: defaultdict(dict))
    files: FirstLines = field(default_factory=lambda: defaultdict(dict))
    voxels: FirstLines = field(default_factory=lambda: defaultdict(dict))
    headers: FirstLines = field(default_factory=lambda: defaultdict(dict))
    header_of_line: dict[int, str] = field(default_factory=dict)
    texts: TextIndex = field(default_factory=TextIndex)
    reports: int = 0
    not_english: list[int] = field(default_factory=list)
    pictures: ImageIndex = field(default_factory=ImageIndex)
    priors: list[tuple[int, str]] = field(default_factory=list)
    leaked_lines: set[tuple[int, int]] = field(default_factory=set)

    def inspect(self, study: Study) -> list[ImageFacts]:
        """Inspect the files of a study, without a change of state, so that threads may run it."""
        return [inspect_image(self.dataset, image, reads=self.reads_images) for image in study.images]

    def add(self, line: int, study: Study, facts: Sequence[ImageFacts]) -> None:
        split = study.split or _NO_SPLIT
        if not self._is_new(line, study.study_id, split):
            return
        position = len(self.line_of)
        self.position_of.setdefault(study.study_id, position)
        self.line_of.append(line)
        self.split_of.append(split)
        self.time_of.append(study.study_time)
        digest = _id_digest(study.patient_id)
        self.patient_of.append(digest)
        self._meet(self.patients[digest], split, line, "same patient in two splits")
        self._meet(self.studies[_id_digest(study.study_id)], split, line, "same study id in two splits")
        if study.report and study.report.strip():
            self.texts.add(position, study.report)
            self.reports += 1
            if not is_english(study.report):
                self.not_english.append(line)
        if study.prior is not None:
            self.priors.append((position, study.prior))
        self._describe(line, study, split)
        for image, file in zip(study.images, facts, strict=True):
            self._check_image(image, file, line, position, split)

    def _is_new(self, line: int, study_id: str, split: str) -> bool:
        """True if the id is new in its split; records an error if not."""
        first = self.position_of.get(study_id)
        if first is None:
            return True
        if self.split_of[first] == split:
            self.errors.add("schema: study id comes twice", self.line_of[first], line)
            return False
        return True

    def _leak(self, kind: str, first: int, second: int) -> None:
        self.leaks.add(kind, first, second)
        self.leaked_lines.add((first, second))

    def _meet(self, first_lines: dict[str, int], split: str, line: int, kind: str) -> None:
        """Record an item of a split; a leak if another split has it already."""
        if split in first_lines:
            return
        others = [first for other, first in first_lines.items() if other != _NO_SPLIT]
        first_lines[split] = line
        if split != _NO_SPLIT and others:
            self._leak(kind, others[0], line)

    def _describe(self, line: int, study: Study, split: str) -> None:
        report = self.report
        report.studies[split] += 1
        report.images += len(study.images)
        report.views.update(str(image.view) for image in study.images)
        report.boxes.update(box.label for image in study.images for box in image.boxes)
        for name, states in study.labels.items():
            classes = report.labels.setdefault(name, {})
            for finding, state in states.items():
                classes.setdefault(finding, Counter())[str(state)] += 1
        words = len((study.report or "").split())
        report.lengths.setdefault(split, Counter())[max(start for start in LENGTH_BINS if start <= words)] += 1
        for missing, kind in ((not study.images, "image"), (not words, "target text"), (not study.split, "split")):
            if missing:
                self.warnings.add(f"study without {kind}", line)
        texts = (study.report, study.findings, study.impression, study.indication, study.comparison, study.technique)
        if any(_CONTROL.search(text) for text in (*texts, *study.regions.values()) if text):
            self.warnings.add("text with a control word of a language model", line)

    def _check_image(self, image: ImageRef, facts: ImageFacts, line: int, position: int, split: str) -> None:
        if image.modality != self.dataset.card.modality:
            self.errors.add("image of another modality than the data set", line)
            return
        if facts.digest is not None:
            recorded = image.sha256
            if recorded is not None and facts.digest != recorded:
                self.errors.add("image bytes differ from the recorded hash", line)
            first_lines = self.files[bytes.fromhex(facts.digest)[:16]]
            is_new = not first_lines
            self._compare_content("image", first_lines, line, split, "same image in two splits")
            for doubt in facts.doubts:
                self.warnings.add(doubt, line)
            if is_new and facts.content is not None:  # pixels of an equal file are equal anyway
                first_lines = self.voxels[facts.content]
                self._compare_content("picture, in different files,", first_lines, line, split, DIFFERENT_FILES)
            self.pictures.add_signatures(position, split, facts.signatures)
            if facts.patient is not None:
                self._compare_headers(facts.patient, line, split)
        if facts.error is not None:
            self.errors.add(facts.error, line)

    def _compare_content(self, what: str, first_lines: dict[str, int], line: int, split: str, leak: str) -> None:
        """Warn of equal content within a split, and record a leak across splits."""
        first = first_lines.get(split)
        if first is not None:
            patient, other = (self.patient_of[bisect_left(self.line_of, each)] for each in (first, line))
            studies = "in two studies of a patient" if patient == other else "in studies of two patients"
            self.warnings.add(f"same {what} {'twice in a study' if first == line else studies}", first, line)
        self._meet(first_lines, split, line, leak)

    def _compare_headers(self, patient: str, line: int, split: str) -> None:
        """Images of one study must be of one patient; across splits, a de-identifier may have written equal ids."""
        if self.header_of_line.setdefault(line, patient) != patient:
            self.errors.add("images of different patients in one study, by their DICOM headers", line)
        first_lines = self.headers[patient.encode()]
        for other, first in first_lines.items():
            if split not in first_lines and _NO_SPLIT not in (split, other):
                self.warnings.add("same DICOM patient id in two splits", first, line)
        first_lines.setdefault(split, line)

    def finish(self) -> CheckReport:
        """Run the checks that need all studies: priors, pictures saved anew, texts."""
        self._check_priors()
        self._compare_pictures()
        self._compare_texts()
        if is_telling(len(self.not_english), self.reports):
            for line in self.not_english:
                self.warnings.add(NOT_ENGLISH, line)
        for split in SPLITS:
            if not self.report.studies[split]:
                self.warnings.add(f"no study in {split}")
        self.report.patients = len(self.patients)
        self.report.errors = self.errors.faults()
        self.report.leaks = self.leaks.faults()
        self.report.warnings = self.warnings.faults()
        return self.report

    def _compare_pictures(self) -> None:
        weakest = self.pictures.least_similarity(lambda position: self.patient_of[position])
        if weakest > SAME_WEAKEST and self.reads_images:
            self.warnings.add(TOO_ALIKE)
        for split, other in PAIRS:
            for pair in self.pictures.pairs_across(split, other, weakest=weakest):
                lines = self.line_of[pair.other], self.line_of[pair.item]
                if lines not in self.leaked_lines and lines[::-1] not in self.leaked_lines:
                    self._leak(", ".join((DIFFERENT_FILES, *pair.changes)), *lines)

    def _check_priors(self) -> None:
        prior_of: dict[int, int] = {}
        for position, name in self.priors:
            if name in self.position_of:
                prior_of[position] = self.position_of[name]
            else:
                self.errors.add("prior is not in the data set", self.line_of[position])
        for fault in prior_faults(prior_of, self.patient_of, self.time_of):
            self.errors.add(fault.kind, *(self.line_of[study] for study in fault.studies[:MOST_EXAMPLES]))

    def _compare_texts(self) -> None:
        """Warn of val and test studies with an equal or nearly equal text in train."""
        same: set[int] = set()
        near: set[int] = set()
        groups = self.texts.items
        for items in groups:
            same |= self._held_out_with_train(items, items)
        for first, second in self.texts.near_pairs():
            near |= self._held_out_with_train(groups[first], groups[second])
            near |= self._held_out_with_train(groups[second], groups[first])
        for position in sorted(same):
            self.warnings.add("text of a val or test study that also stands in train", self.line_of[position])
        for position in sorted(near - same):
            self.warnings.add("text of a val or test study that nearly stands in train", self.line_of[position])

    def _held_out_with_train(self, items: list[int], others: list[int]) -> set[int]:
        if not any(self.split_of[other] == "train" for other in others):
            return set()
        return {item for item in items if self.split_of[item] in ("val", "test")}


def check_dataset(path: Path, *, read_images: bool = True, progress: Progress | None = None) -> CheckReport:
    """Check a dataset folder. Memory grows by about 3 kB a study, and 5 to 10 kB for each image that is read.

    Args:
        read_images: hash and decode every image, large ones on all cores; else only check its existence and compare
            the recorded hashes.
        progress: called with the number of lines read so far, and of all.

    Raises:
        InputError: if the folder is no dataset folder at all; every other fault is reported.
    """
    dataset = Dataset.open(path)
    check = _Check(dataset, read_images)
    recorded = dataset.card.manifest_sha256
    if recorded is not None and dataset.manifest_path.is_file() and dataset.fingerprint() != recorded:
        check.warnings.add("the manifest was changed after it was written")
    total = 0 if progress is None else _lines(dataset.manifest_path)
    studies = _studies(dataset.manifest_path, check.errors)
    at_once = in_order if read_images and _are_large(dataset) else one_by_one
    for (line, study), facts in at_once(lambda numbered: check.inspect(numbered[1]), studies):
        check.add(line, study, facts)
        if progress is not None:
            progress(line, total)
    return check.finish()


def _are_large(dataset: Dataset) -> bool:
    """True if reading an image takes longer than a hand-over to a thread, by the files of the first studies."""
    if dataset.card.modality == "ct":
        return True
    first = islice(_studies(dataset.manifest_path, _Tally()), JUDGED_STUDIES)
    sizes = [0]
    for path in (dataset.path / image.path for _, study in first for image in study.images):
        with suppress(OSError, ValueError):
            sizes.append(path.stat().st_size)
    return sum(sizes) > LARGE_BYTES * len(sizes)


def _lines(manifest: Path) -> int:
    """Number of lines of the manifest; 0 without a file."""
    if not manifest.is_file():
        return 0
    with manifest.open("rb") as file:
        return sum(1 for _ in file)


def _studies(manifest: Path, errors: _Tally) -> Iterator[tuple[int, Study]]:
    """Studies with their line numbers; invalid lines are counted by their fault."""
    if not manifest.is_file():
        errors.add("schema: manifest.jsonl is missing")
        return
    with manifest.open("rb") as file:
        for line, raw in enumerate(file, start=1):
            if not raw.strip():
                continue
            try:
                yield line, Study.model_validate(json.loads(raw.decode("utf-8")))
            except ValidationError as error:
                problem = error.errors(include_url=False, include_input=False)[0]
                field = ".".join(part for part in problem["loc"] if isinstance(part, str))
                message = problem["msg"].removeprefix("Value error, ")
                errors.add(": ".join(part for part in ("schema", field, message) if part), line)
            except (ValueError, RecursionError):
                errors.add("schema: the line is not valid JSON", line)


def _id_digest(identifier: str) -> bytes:
    text = comparable_id(identifier).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).digest()
