"""The studies of a data set, as an experiment wants them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from radweave.core.errors import InputError
from radweave.core.foreign_models import locate
from radweave.core.ontology import LABEL_SETS, sets_for
from radweave.core.provenance import code_hash
from radweave.core.study import LabelState, Split
from radweave.data.cache.images import NAMES, PixelCache
from radweave.data.dataset import Dataset
from radweave.data.examples import PreparedSplit, prepare_split, refuse_empty_splits
from radweave.data.targets import ContextSections, refuse_target_in_context
from radweave.data.tokenizer import label_states, token_ids
from radweave.labels import get_labeler
from radweave.labels.labeler import states
from radweave.methods.descriptors import DescriptorExtractor
from radweave.methods.experiment import Experiment
from radweave.methods.model import ReportModel, named_parts
from radweave.nn.decoding import refuse_too_long
from radweave.nn.encoder_decoder import CrossAttentionLanguageModel
from radweave.nn.language_model import CausalLanguageModel
from radweave.nn.vision import encoders_for
from radweave.nn.vision.weights import find_weights

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def refuse_unfit(experiment: Experiment, dataset: Dataset) -> None:
    """Refuse, before anything large is read, what this data set, its splits and the paths of weights make impossible.

    Raises:
        InputError: naming the field and what was expected.
    """
    refuse_misfit(experiment, dataset)
    refuse_target_in_context(experiment.data.input_sections, dataset.card.target)
    refuse_missing_sections(experiment, dataset)
    refuse_empty_splits(dataset)
    refuse_unknown_sets(experiment, dataset)
    refuse_missing_checkpoints(experiment)


def refuse_misfit(experiment: Experiment, dataset: Dataset) -> None:
    """Refuse a data set that the experiment's encoder cannot read, or whose labels are others.

    Raises:
        InputError: naming the data set, the field, and the override that helps.
    """
    modality, data = dataset.card.modality, experiment.data
    encoder = experiment.model.encoder
    if encoder.reads != modality:
        raise InputError(
            f"the data set holds {NAMES[modality]}, the vision encoder reads {NAMES[encoder.reads]}",
            file=dataset.path,
            field=f"model.{next(name for name, record in experiment.model if record is encoder)}",
            got=encoder.kind,
            expected=_either(encoders_for(modality)),
        )
    label_set = LABEL_SETS[data.label_set]
    if label_set.modality == modality:
        return
    found = {name for study in dataset.studies("train") for name in study.labels}
    if data.label_set not in found:
        fitting = sorted(found) or [fit.name for fit in sets_for(modality)]
        raise InputError(
            f"no study has labels of this set, which is for {NAMES[label_set.modality]}",
            file=dataset.path,
            field="data.label_set",
            got=data.label_set,
            expected=f"data.label_set={' or '.join(fitting)}",
        )


def refuse_missing_sections(experiment: Experiment, dataset: Dataset) -> None:
    """Refuse a text to learn that no training study has the sections of, or a section to tell that none has.

    Raises:
        InputError: naming the field.
    """
    data = experiment.data
    wanted = (*data.input_sections, *(["report"] if data.target != "as_imported" else []))
    found = {name for study in dataset.studies("train") for name in wanted if getattr(study, name)}
    for name in wanted:
        if name not in found:
            is_text = name == "report"
            raise InputError(
                f"no training study has {'the sections of this text' if is_text else 'this section'}",
                file=dataset.path,
                field="data.target" if is_text else "data.input_sections",
                got=data.target if is_text else name,
            )


def refuse_untold(experiment: Experiment, model: ReportModel) -> None:
    """Refuse sections to tell where neither a language model nor smoothers over training studies read them.

    Raises:
        InputError: naming the field.
    """
    readers = CausalLanguageModel | CrossAttentionLanguageModel | DescriptorExtractor
    if experiment.data.input_sections and not any(isinstance(module, readers) for module in model.modules()):
        raise InputError(
            "this model reads images alone: nothing in it could be told anything",
            field="data.input_sections",
            got=list(experiment.data.input_sections),
            expected="data.input_sections=[]",
        )


def refuse_missing_checkpoints(experiment: Experiment) -> None:
    """Refuse a path to weights or to a tokenizer where there are none, without reading them.

    Raises:
        InputError: naming the field and what was expected there.
    """
    named = {f"model.{name}": record for name, record in experiment.model}
    for field, record in {**named, "data.tokenizer": experiment.data.tokenizer}.items():
        path = getattr(record, "path", None)
        if path is None:
            continue
        try:
            if getattr(record, "own_shape", False):
                find_weights(Path(path))
            else:
                locate(path, "tokenizer" if field == "data.tokenizer" else "weights", what=_named(field))
        except InputError as error:
            raise InputError(
                error.reason, file=error.file, field=f"{field}.path", got=error.got, expected=error.expected
            ) from None


def refuse_long_reports(experiment: Experiment, model: ReportModel) -> None:
    """Refuse reports that are longer than the language model's positions, whatever the prompt.

    Raises:
        InputError: naming the field that lets them be as long.
    """
    for part in named_parts(model).values():
        if isinstance(part, CausalLanguageModel | CrossAttentionLanguageModel):
            refuse_too_long(part.architecture, experiment.data.max_tokens, "data.max_tokens")
            refuse_too_long(part.architecture, experiment.decoding.max_new_tokens, "decoding.max_new_tokens")


def _named(field: str) -> str:
    """The part that a field is of, in words: "a language model"."""
    return f"a {field.rpartition('.')[2].replace('_', ' ')}"


def _either(names: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def refuse_unknown_sets(experiment: Experiment, dataset: Dataset) -> None:
    """Refuse a stage that asks for a data set that the mixture does not have in both splits it needs.

    Raises:
        InputError: naming the stage's field and the data sets there are.
    """
    splits: tuple[Split, ...] = ("train", "val")
    known = set.intersection(*({study.origin for study in dataset.studies(split)} for split in splits))
    for name, stage in experiment.named_stages().items():
        for asked in stage.mixture:
            if asked not in known:
                raise InputError(
                    "no such data set with training and validation studies",
                    field=f"stages.{name}.mixture",
                    got=asked,
                    expected=", ".join(sorted(filter(None, known))) or "a mixture, see 'radweave data mix'",
                )


def prepare(
    dataset: Dataset,
    split: Split | None,
    experiment: Experiment,
    tokenizer: PreTrainedTokenizerBase,
    cache: PixelCache,
    *,
    need_text: bool,
) -> PreparedSplit:
    """Examples of one split, or of all studies, as this experiment wants them: its text to learn, and what it tells."""
    data = experiment.data
    dataset = dataset.aimed(data.target)
    labeler, classes = get_labeler(data.label_set), LABEL_SETS[data.label_set].classes

    def label(texts: Sequence[str]) -> Iterable[Mapping[str, LabelState]]:
        by = (labeler.name, labeler.version, code_hash("radweave.labels"))
        return label_states(texts, partial(states, labeler), dataset.path, classes=classes, by=by)

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
    )


def _reasons(prepared: PreparedSplit) -> str:
    reasons = list(prepared.left_out.values())
    return ", ".join(f"{reason}: {reasons.count(reason)}" for reason in dict.fromkeys(reasons))
