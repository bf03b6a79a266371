"""From the studies of a split to examples that a loader can batch; unusable studies are listed with the reason."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from radweave.core.errors import InputError
from radweave.core.study import SPLITS, ImageRef, LabelState, Split, Study
from radweave.data.boxes import Window
from radweave.data.cache.arrays import checksum
from radweave.data.cache.images import PixelCache
from radweave.data.dataset import Dataset
from radweave.data.leaks.identity import comparable_id, hashes_of
from radweave.data.loader import Example, class_states, ordered_views, view_id


@dataclass(slots=True)
class PreparedSplit:
    """Examples of a split, reference texts, ids of studies with a prior, and left-out studies with the reason.

    ``priors`` has the prior of each study whose prior is an example of the same split and patient with a report.
    """

    examples: list[Example] = field(default_factory=list)
    references: dict[str, str] = field(default_factory=dict)
    with_prior: set[str] = field(default_factory=set)
    left_out: dict[str, str] = field(default_factory=dict)
    priors: dict[str, Example] = field(default_factory=dict)

    @property
    def examples_with_priors(self) -> list[Example]:
        """The examples, each with its prior."""
        return [replace(example, prior=self.priors.get(example.study_id)) for example in self.examples]

    def of(self, origins: Collection[str]) -> PreparedSplit:
        """The studies of these data sets of a mixture; all for no names."""
        if not origins:
            return self
        examples = [example for example in self.examples if example.origin in origins]
        ids = {example.study_id for example in examples}
        references = {study_id: text for study_id, text in self.references.items() if study_id in ids}
        priors = {study_id: prior for study_id, prior in self.priors.items() if study_id in ids}
        return PreparedSplit(examples, references, self.with_prior & ids, self.left_out, priors)


def prepare_split(
    studies: Iterable[Study],
    cache: PixelCache,
    *,
    encode: Callable[[Sequence[str]], Sequence[Sequence[int]]],
    end_id: int,
    max_views: int,
    max_tokens: int,
    label_set: str,
    classes: tuple[str, ...],
    need_text: bool,
    label: Callable[[Sequence[str]], Iterable[Mapping[str, LabelState]]] | None = None,
    priors: bool = False,
    context: Callable[[Study], str | None] = lambda study: None,
    max_context_tokens: int = 0,
    mark: Callable[[Sequence[str]], Iterable[Sequence[bool]]] | None = None,
    window: Callable[[ImageRef], Window] | None = None,
) -> PreparedSplit:
    """Tokenise reports and find each study's images in the cache.

    A study without a readable image is left out, and with ``need_text`` one without a report. Unreadable views are
    dropped while others remain. ``encode`` gives the token ids of all used reports, which are cut to fit ``max_tokens``
    with the end token. ``label`` extracts label states from the reports of studies without labels. With ``priors`` an
    example carries the patient's previous study, if it is in the split and has a report. ``context``
    gives the text that a model reads beside a study's images, or None for a model without context; it is cut after
    ``max_context_tokens``. ``mark`` gives for each used report which of its tokens stand in a sentence that states a
    finding. ``window`` gives the part of an image that its row of the cache covers.
    """
    prepared = PreparedSplit()
    prior_ids: dict[str, str] = {}
    used = list(_usable(studies, cache, prepared.left_out, max_views=max_views, need_text=need_text))
    ids = iter(encode([text for _, _, text in used if text]))
    marks = iter(() if mark is None else mark([text for _, _, text in used if text]))
    contexts = [context(study) for study, _, _ in used]
    context_ids = iter(encode([text for text in contexts if text is not None]))
    unlabeled = [text for study, _, text in used if text and label_set not in study.labels]
    labeled = iter(label(unlabeled) if label is not None and classes else ())
    for (study, chosen, text), context_text in zip(used, contexts, strict=True):
        labels: Mapping[str, LabelState] | None = study.labels.get(label_set)
        if labels is None and text:
            labels = next(labeled, None)
        prepared.examples.append(
            Example(
                study_id=study.study_id,
                patient_id=study.patient_id,
                source=cache.pixels,
                rows=tuple(cache.rows[ref.path] for ref in chosen),
                view_ids=tuple(view_id(ref.view) for ref in chosen),
                token_ids=(*next(ids)[: max_tokens - 1], end_id) if text else None,
                class_states=class_states(labels, classes) if classes and labels is not None else None,
                report=text or None,
                origin=study.origin,
                # The end token is in no sentence.
                abnormal=(*next(marks)[: max_tokens - 1], False) if text and mark is not None else None,
                context_ids=None if context_text is None else tuple(next(context_ids)[:max_context_tokens]),
                window=None if window is None else partial(_window_of, window, tuple(chosen)),
            )
        )
        if study.prior is not None:
            prepared.with_prior.add(study.study_id)
            prior_ids[study.study_id] = study.prior
        if text:
            prepared.references[study.study_id] = text
    prepared.priors = dict(_usable_priors(prepared.examples, prior_ids))
    if priors:
        prepared.examples = prepared.examples_with_priors
    return prepared


def _window_of(window: Callable[[ImageRef], Window], views: Sequence[ImageRef], number: int) -> Window:
    return window(views[number])


def _usable(
    studies: Iterable[Study], cache: PixelCache, left_out: dict[str, str], *, max_views: int, need_text: bool
) -> Iterator[tuple[Study, list[ImageRef], str]]:
    """Studies with their ordered views and report; ``left_out`` gets the reason for the others."""
    for study in studies:
        views = [ref for ref in study.images if ref.path in cache.rows]
        if not views:
            reasons = [cache.unreadable[ref.path] for ref in study.images if ref.path in cache.unreadable]
            left_out[study.study_id] = reasons[0] if reasons else "no image"
            continue
        text = (study.report or "").strip()
        if not text and need_text:
            left_out[study.study_id] = "the report is empty"
            continue
        yield study, ordered_views(views, max_views), text


def _usable_priors(examples: Sequence[Example], prior_ids: Mapping[str, str]) -> Iterator[tuple[str, Example]]:
    """Study ids with the prior of each, which must be an example of the same patient with a report."""
    known = {example.study_id: example for example in examples}
    for example in examples:
        prior = known.get(prior_ids.get(example.study_id, ""))
        if prior is not None and prior.patient_id == example.patient_id and prior.report is not None:
            yield example.study_id, prior


def refuse_empty_splits(dataset: Dataset) -> None:
    """Refuse a data set without a study for training or validation, before images are read.

    Raises:
        InputError: naming the split.
    """
    splits: tuple[Split, ...] = ("train", "val")
    for split in splits:
        if not any(study.images and (study.report or "").strip() for study in dataset.studies(split)):
            raise no_usable_study(dataset, split)


def no_usable_study(dataset: Dataset, split: Split) -> InputError:
    """The error for a split without a study that can be used."""
    has_splits = any(dataset.card.counts.get(f"studies_{name}") for name in SPLITS)
    advice = None if has_splits else "an import with --split 7:1:2"
    return InputError(f"the data set has no usable study in split '{split}'", file=dataset.path, expected=advice)


def refuse_leaks(dataset: Dataset, *others: Dataset, same_patients: bool = True) -> None:
    """Refuse data sets with a patient or an image file in two splits, taken together.

    Ids are compared by ``comparable_id``; without ``same_patients`` each data set has its own patients. Images are
    compared by their bytes on disk, regardless of the manifest's paths and hashes.

    Raises:
        InputError: naming how many patients or images are shared, and between which splits.
    """
    shared = _SplitOverlap()
    for number, one in enumerate((dataset, *others)):
        hashes = hashes_of(one, (ref.path for study in one.studies() if study.split for ref in study.images))
        people = "" if same_patients else f"{number} "
        for study in one.studies():
            if study.split is None:
                continue
            shared.add("patient", people + comparable_id(study.patient_id), study.split)
            for ref in study.images:
                shared.add("image", hashes.get(ref.path, f"{number} {ref.path}"), study.split)
    shared.refuse()


def refuse_same_pixels(dataset: Dataset, cache: PixelCache) -> None:
    """Refuse a data set with equal prepared pixels in two splits, regardless of files.

    Constant pictures are ignored.

    Raises:
        InputError: naming how many images are shared, and between which splits.
    """
    shared = _SplitOverlap()
    constant = {checksum(np.full(cache.pixels.shape[1:], grey, dtype=np.uint8)) for grey in range(256) if cache.sums}
    for study in dataset.studies():
        if study.split is None:
            continue
        for row in (cache.rows[ref.path] for ref in study.images if ref.path in cache.rows):
            picture = _picture(cache, row)
            if picture is not None and picture not in constant:
                shared.add("picture", picture, study.split)
    shared.refuse()


def _picture(cache: PixelCache, row: int) -> str | None:
    """Checksum of a row: cached for radiographs, computed for scans. None for a constant scan."""
    if cache.sums:
        return cache.sums[row]
    scan = np.asarray(cache.pixels[row])
    return checksum(scan) if scan.min() < scan.max() else None


@dataclass(slots=True)
class _SplitOverlap:
    """Patients and images in more than one split."""

    owners: dict[tuple[str, str], str] = field(default_factory=dict)
    counts: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def add(self, kind: str, key: str, split: str) -> None:
        first = self.owners.setdefault((kind, key), split)
        if first != split:
            left, right = sorted((first, split))
            self.counts[kind, left, right] = self.counts.get((kind, left, right), 0) + 1

    def refuse(self) -> None:
        """Raise InputError if there is any."""
        if self.counts:
            (kind, left, right), count = next(iter(self.counts.items()))
            raise InputError(
                f"leak: {count} studies of '{left}' and '{right}' share a {kind}; 'radweave data check' lists them",
                field="split",
            )


def refuse_shared_images(own: Dataset, other: Dataset, split: Split = "train") -> None:
    """Refuse another data set whose split has an image of this one's validation or test split.

    Raises:
        InputError: naming the other data set.
    """
    kept_apart = {ref.sha256 for name in ("val", "test") for study in own.studies(name) for ref in study.images}
    shared = {ref.sha256 for study in other.studies(split) for ref in study.images} & kept_apart - {None}
    if shared:
        reason = f"leak: {len(shared)} images of its split '{split}' are in this data set's validation or test split"
        raise InputError(reason, file=other.path)
