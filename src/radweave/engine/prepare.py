"""Prepare the studies of a data set for an experiment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from radweave.core.errors import InputError
from radweave.core.ontology import LABEL_SETS
from radweave.core.provenance import code_hash
from radweave.core.study import LabelState, Split
from radweave.data.cache.images import PixelCache, image_window
from radweave.data.dataset import Dataset
from radweave.data.examples import PreparedSplit, prepare_split
from radweave.data.targets import ContextSections
from radweave.data.tokenizer import label_states, token_ids
from radweave.labels import Labeler, get_labeler
from radweave.labels.labeler import abnormal_sentences, states
from radweave.methods.experiment import Experiment
from radweave.methods.model import TrainingView

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def prepare(
    dataset: Dataset,
    split: Split | None,
    experiment: Experiment,
    tokenizer: PreTrainedTokenizerBase,
    cache: PixelCache,
    *,
    need_text: bool,
) -> PreparedSplit:
    """Examples of one split, or of all studies, with the experiment's target and context."""
    data = experiment.data
    dataset = dataset.aimed(data.target)
    labeler, classes = get_labeler(data.label_set), LABEL_SETS[data.label_set].classes

    def label(texts: Sequence[str]) -> Iterable[Mapping[str, LabelState]]:
        by = (labeler.name, labeler.version, code_hash("radweave.labels"))
        return label_states(texts, partial(states, labeler), dataset.path, classes=classes, by=by)

    weighed = split == "train" and any(stage.abnormal_weight != 1 for stage in experiment.named_stages().values())
    return prepare_split(
        dataset.studies(split),
        cache,
        encode=lambda texts: token_ids(texts, tokenizer, dataset.path),
        end_id=int(tokenizer.eos_token_id),
        max_views=data.max_views if data.modality == "xray" else 1,
        max_tokens=data.max_tokens,
        label_set=data.label_set,
        classes=classes,
        need_text=need_text,
        label=label if data.label_unlabeled else None,
        priors=data.priors,
        context=ContextSections(data.input_sections).of,
        max_context_tokens=data.input_tokens,
        mark=partial(abnormal_tokens, tokenizer=tokenizer, labeler=labeler) if weighed else None,
        window=partial(image_window, dataset, size=data.image_size, ct=data.ct),
    )


def abnormal_tokens(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, labeler: Labeler) -> Iterator[list[bool]]:
    """Marks of the tokens of each text, without special tokens, that end in a sentence that states a finding.

    Raises:
        InputError: if the tokenizer cannot say which characters a token stands for.
    """
    if not tokenizer.is_fast:
        raise InputError("the tokenizer does not say where its tokens stand", field="abnormal_weight", expected="1")
    for text, ranges in zip(texts, abnormal_sentences(labeler, texts), strict=True):
        read = tokenizer(text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True)
        yield [any(first < end <= last for first, last in ranges) for _, end in read["offset_mapping"]]


def split_view(
    dataset: Dataset, prepared: PreparedSplit, *, classes: tuple[str, ...], pad_id: int, seed: int, **options: Any
) -> TrainingView:
    """A prepared split as methods see it; ``options`` are further fields of ``TrainingView``."""
    studies = {study.study_id: study for study in dataset.studies(options.get("split", "train"))}
    return TrainingView(
        studies=tuple(studies[example.study_id] for example in prepared.examples),
        examples=tuple(prepared.examples), classes=classes, pad_id=pad_id, seed=seed, **options,
    )  # fmt: skip


def _reasons(prepared: PreparedSplit) -> str:
    reasons = list(prepared.left_out.values())
    return ", ".join(f"{reason}: {reasons.count(reason)}" for reason in dict.fromkeys(reasons))
