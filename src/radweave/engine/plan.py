"""The plan of a training: the stages, parts and memory of an experiment on a data set, or the reason why it cannot run.

``train --dry-run`` prints a plan and ``train`` carries it out, so both refuse alike, before any image is read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from radweave.core.devices import default_device
from radweave.core.errors import InputError
from radweave.core.foreign_models import locate
from radweave.core.ontology import LABEL_SETS, sets_for
from radweave.core.study import Split
from radweave.data.cache.images import NAMES
from radweave.data.dataset import Dataset
from radweave.data.examples import refuse_empty_splits
from radweave.data.targets import ContextSections, refuse_target_in_context
from radweave.data.tokenizer import built_tokenizer
from radweave.engine.estimate import Estimate, PartSize, build_on_meta, estimate_of, part_sizes
from radweave.engine.loop import Writers, refuse_no_compiler
from radweave.engine.reinforcement import refuse_wordless
from radweave.engine.rewards import CHANGE, refuse_unusable_rewards
from radweave.methods.descriptors import DescriptorExtractor
from radweave.methods.experiment import Experiment
from radweave.methods.model import ReportModel, Served, Writes, device_of, named_parts, refuse_unknown
from radweave.methods.stage import REPORT, RewardStageConfig, StageConfig, apply_finetune
from radweave.metrics.priors import prior_reports
from radweave.nn.decoding import DecodingConfig, refuse_too_long, refuse_uncompilable
from radweave.nn.pretrained import quantization_config
from radweave.nn.vision import encoders_for
from radweave.nn.vision.weights import find_weights

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class StagePlan:
    """A stage: the most ``updates`` it makes, and the sizes of the parts with what trains."""

    name: str
    config: StageConfig
    updates: int
    parts: Mapping[str, PartSize]


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """An experiment that can train on a data set; ``model`` is on the meta device, without weights.

    ``tokenizer`` is None where a dry run has not learned it.
    """

    experiment: Experiment
    dataset: Dataset
    model: ReportModel
    tokenizer: PreTrainedTokenizerBase | None

    def stages(self) -> list[StagePlan]:
        """The stages in order."""
        origins = [study.origin for study in self.dataset.studies("train")]
        plans = []
        for name, stage in self.experiment.named_stages().items():
            studies = sum(1 for origin in origins if not stage.mixture or origin in stage.mixture)
            updates = stage.epochs * math.ceil(studies / stage.batch_size)
            updates = updates if stage.max_steps is None else min(updates, stage.max_steps)
            plans.append(StagePlan(name, stage, updates, part_sizes(self.model, stage.finetune)))
        return plans

    def memory(self) -> Estimate:
        """Memory of the last stage."""
        return estimate_of(self.experiment)


def plan_training(experiment: Experiment, dataset: Dataset, *, learn_tokenizer: bool) -> TrainingPlan:
    """Plan a training, without images and without weights.

    A tokenizer that is learned from the training split is written to the data set's cache; without ``learn_tokenizer``
    one of its size stands in.

    Raises:
        InputError: naming the field that makes the training impossible.
    """
    refuse_unfit(experiment, dataset)
    tokenizer = _tokenizer(experiment, dataset, learn=learn_tokenizer)
    model = build_on_meta(experiment, tokenizer)
    if not any(getattr(part, "path", None) for _, part in experiment.model):  # a checkpoint bounds its own part
        refuse_giant(model)
    refuse_no_quantization(experiment)
    refuse_impossible_stages(experiment, model)
    refuse_long_reports(experiment, model)
    refuse_unread_context(experiment, model)
    return TrainingPlan(experiment, dataset, model, tokenizer)


def _tokenizer(experiment: Experiment, dataset: Dataset, *, learn: bool) -> PreTrainedTokenizerBase | None:
    own, config = experiment.language_checkpoint, experiment.data.tokenizer
    if not learn and own is None and config.kind != "pretrained":
        return None
    # The training split only: no other text may shape the model's vocabulary.
    texts = [study.report or "" for study in dataset.studies("train")]
    context = ContextSections(experiment.data.input_sections)
    texts += [text for study in dataset.studies("train") if (text := context.of(study))]
    return built_tokenizer(config, texts, own=own, dataset=dataset.path) if learn else config.build(texts, own=own)


# Refusals by data set, splits and paths.


def refuse_unfit(experiment: Experiment, dataset: Dataset) -> None:
    """Refuse a data set, splits or paths of weights that make the training impossible, before images are read.

    Raises:
        InputError: naming the field and what was expected.
    """
    refuse_misfit(experiment, dataset)
    refuse_target_in_context(experiment.data.input_sections, dataset.card.target)
    refuse_missing_sections(experiment, dataset)
    refuse_empty_splits(dataset)
    refuse_unknown_sets(experiment, dataset)
    refuse_no_priors(experiment, dataset)
    refuse_missing_checkpoints(experiment)


def refuse_misfit(experiment: Experiment, dataset: Dataset) -> None:
    """Refuse a data set of another modality or with other labels than the experiment's.

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
    label_sets = {name for study in dataset.studies("train") for name in study.labels}
    if data.label_set not in label_sets:
        fitting = sorted(label_sets) or [fit.name for fit in sets_for(modality)]
        raise InputError(
            f"no study has labels of this set, which is for {NAMES[label_set.modality]}",
            file=dataset.path,
            field="data.label_set",
            got=data.label_set,
            expected=f"data.label_set={' or '.join(fitting)}",
        )


def refuse_missing_sections(experiment: Experiment, dataset: Dataset) -> None:
    """Refuse a target or a context section that no training study has.

    Raises:
        InputError: naming the field.
    """
    data = experiment.data
    wanted = (*data.input_sections, *(["report"] if data.target != "as_imported" else []))
    studies = dataset.studies("train") if wanted else ()
    present = {name for study in studies for name in wanted if getattr(study, name)}
    for name in wanted:
        if name not in present:
            is_text = name == "report"
            raise InputError(
                f"no training study has {'the sections of this text' if is_text else 'this section'}",
                file=dataset.path,
                field="data.target" if is_text else "data.input_sections",
                got=data.target if is_text else name,
            )


def refuse_missing_checkpoints(experiment: Experiment) -> None:
    """Refuse paths without weights or a tokenizer, without reading them.

    Raises:
        InputError: naming the field and what was expected there.
    """
    named = {f"model.{name}": record for name, record in experiment.model}
    for field, record in {"model": experiment.model, **named, "data.tokenizer": experiment.data.tokenizer}.items():
        path = getattr(record, "path", None)
        if path is None:
            continue
        try:
            if getattr(record, "own_shape", False):
                find_weights(Path(path))
            else:
                locate(path, "tokenizer" if field == "data.tokenizer" else "weights", what=_named(field))
        except InputError as error:
            raise error.at(field=f"{field}.path") from None


def refuse_unknown_sets(experiment: Experiment, dataset: Dataset) -> None:
    """Refuse a stage that mixes a data set which the training or validation split lacks.

    Raises:
        InputError: naming the stage's field and the known data sets.
    """
    splits: tuple[Split, ...] = ("train", "val")
    known = set.intersection(*({study.origin for study in dataset.studies(split)} for split in splits))
    for name, stage in experiment.named_stages().items():
        for origin in stage.mixture:
            if origin not in known:
                raise InputError(
                    "no such data set with training and validation studies",
                    field=f"stages.{name}.mixture",
                    got=origin,
                    expected=", ".join(sorted(filter(None, known))) or "a mixture, see 'radweave data mix'",
                )


def refuse_idle_epochs(experiment: Experiment) -> None:
    """Refuse epochs of a stage that has nothing to learn by, as of a method without training.

    A benchmark gives them to all of its methods.

    Raises:
        InputError: naming the field.
    """
    for name, stage in experiment.named_stages().items():
        if stage.epochs and not stage.learns:
            raise InputError(
                "this stage has no losses, so that nothing would train", field=f"stages.{name}.epochs",
                got=stage.epochs, expected=f"0, or stages.{name}.losses",
            )  # fmt: skip


def refuse_no_priors(experiment: Experiment, dataset: Dataset) -> None:
    """Refuse to reward changes where no training study has the report of its prior.

    Raises:
        InputError: naming the field of the reward.
    """
    rewarded = [
        name
        for name, stage in experiment.named_stages().items()
        if isinstance(stage, RewardStageConfig) and CHANGE in stage.rewards
    ]
    if rewarded and not prior_reports(dataset.studies("train")):
        reason = "no training study has a prior study with a report: there is no change to reward"
        raise InputError(reason, file=dataset.path, field=f"stages.{rewarded[0]}.rewards", got=CHANGE)


def _named(field: str) -> str:
    """The part of a field in words: "a language model"."""
    return f"a {field.rpartition('.')[2].replace('_', ' ')}"


def _either(names: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


# Refusals by the model, which may be on the meta device.


def refuse_giant(empty: nn.Module) -> None:
    """Refuse a model whose weights alone are more than this machine's memory.

    Raises:
        InputError: with both sizes.
    """
    needed = sum(weight.numel() * weight.element_size() for weight in empty.parameters())
    present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > present:
        raise InputError(
            "the model does not fit into this machine's memory",
            field="model",
            got=f"{needed / 1e9:,.0f} GB of weights",
            expected=f"at most {present / 1e9:,.0f} GB",
        )


def refuse_no_quantization(experiment: Experiment) -> None:
    """Refuse weights in 8 or 4 bits where they cannot be loaded.

    Raises:
        InputError: naming the field.
    """
    records = [("model", experiment.model), *((f"model.{name}", record) for name, record in experiment.model)]
    for name, record in records:
        try:
            quantization_config(getattr(record, "quantization", "none"), getattr(record, "dtype", "float32"))
        except InputError as error:
            raise error.at(field=f"{name}.quantization") from None


def refuse_placeless(experiment: Experiment, model: ReportModel) -> None:
    """Refuse the stage ``place`` for a model without tokens of the parts of an image.

    Raises:
        InputError: naming the field.
    """
    if not experiment.stages.place.is_on:
        return
    if isinstance(model, Served):
        without = "an endpoint shows none"
    elif isinstance(model.encoder, DescriptorExtractor):
        without = "descriptors are of a whole image"
    else:
        return
    reason = f"places are read from the tokens of an encoder, and {without}"
    raise InputError(reason, field="stages.place.epochs", expected="0")


def refuse_impossible_stages(experiment: Experiment, model: ReportModel) -> None:
    """Refuse stages that this model cannot run, and decoding that cannot be compiled.

    Raises:
        InputError: naming the field of the stage or of the decoding.
    """
    refuse_uncompiled_decoding(experiment.decoding, model)
    refuse_placeless(experiment, model)
    trained = {parameter: parameter.requires_grad for parameter in model.parameters()}
    for name, stage in experiment.named_stages().items():
        if is_skipped(experiment, name, stage):
            continue
        try:
            if isinstance(stage, RewardStageConfig):
                refuse_wordless(model)
                refuse_unusable_rewards(tuple(stage.rewards), stage.radgraph_folder)
            if stage.trained and not stage.learns:
                raise InputError("there is no loss to train by", field="losses", got="none")
            refuse_unknown("losses", stage.validated, model.terms)
            refuse_unknown("withheld", tuple(stage.withheld), model.inputs)
            apply_finetune(model, stage.finetune)
            refuse_unread_parts(stage, model)
            if stage.compiled != "nothing":
                refuse_no_compiler(computes_on(model))
        except InputError as error:
            raise error.at(field=f"stages.{name}.{error.field}") from None
    for parameter, before in trained.items():
        parameter.requires_grad_(before)


def refuse_unread_parts(stage: StageConfig, model: ReportModel) -> None:
    """Refuse a stage none of whose losses, or of whose rewarded reports, reads a part that trains.

    Raises:
        InputError: naming the parts that are read.
    """
    terms = (REPORT,) if isinstance(stage, RewardStageConfig) else tuple(stage.losses)
    read = dict.fromkeys(part for term in terms for part in model.terms[term].reads)
    if stage.trained and not read.keys() & stage.trained.keys():
        reason = "nothing that is computed in this stage reads a part that trains"
        raise InputError(reason, field="finetune", got=", ".join(stage.trained), expected=f"of {', '.join(read)}")


def is_skipped(experiment: Experiment, name: str, stage: StageConfig) -> bool:
    """True for a stage without updates; the one that writes reports always runs, since it makes the run."""
    return (stage.epochs == 0 or stage.max_steps == 0) and name != experiment.report_stage


def refuse_uncompiled_decoding(decoding: DecodingConfig, model: ReportModel) -> None:
    """Refuse compiled decoding that this machine or a language model does not support.

    Raises:
        InputError: for the field ``decoding.compile``.
    """
    writers = [part for part in named_parts(model).values() if isinstance(part, Writers)]
    if decoding.compile == "none" or not writers:
        return
    for writer in writers:
        refuse_uncompilable(writer.model, decoding)
    try:
        refuse_no_compiler(computes_on(model))
    except InputError as error:
        needed = "a C++ compiler, on a GPU Triton; or none"
        raise error.at(field="decoding.compile", expected=needed) from None


def computes_on(model: ReportModel) -> torch.device:
    """The device that a model computes on: the default one for a model on the meta device."""
    device = device_of(model)
    return default_device() if device.type == "meta" else device


def refuse_long_reports(experiment: Experiment, model: ReportModel) -> None:
    """Refuse reports longer than the positions of the language model.

    Raises:
        InputError: naming the field of their length.
    """
    for part in named_parts(model).values():
        if isinstance(part, Writers):
            refuse_too_long(part.architecture, experiment.data.max_tokens, "data.max_tokens")
            refuse_too_long(part.architecture, experiment.decoding.max_new_tokens, "decoding.max_new_tokens")


def refuse_unread_context(experiment: Experiment, model: ReportModel) -> None:
    """Refuse sections to tell where neither a language model nor smoothers over training studies read them.

    Raises:
        InputError: naming the field.
    """
    readers = Writers | DescriptorExtractor | Writes
    if experiment.data.input_sections and not any(isinstance(module, readers) for module in model.modules()):
        raise InputError(
            "this model reads images alone: nothing in it could be told anything",
            field="data.input_sections",
            got=list(experiment.data.input_sections),
            expected="data.input_sections=[]",
        )
