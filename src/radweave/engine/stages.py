"""The stages of a run, one after the other: memories, features, kept artefacts, training, validation."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from radweave.core.devices import default_device
from radweave.core.errors import CannotWriteError, InputError
from radweave.core.json_files import read_json, write_json
from radweave.core.provenance import arithmetic, code_hash, library_versions
from radweave.core.storage import one_at_a_time, sha256_file, sha256_folder, sha256_json, temporary_folder, write_folder
from radweave.core.study import Record, Split
from radweave.data.augmentation import NoAugmentation
from radweave.data.cache.arrays import open_rows, stamp, write_rows
from radweave.data.cache.images import PixelCache
from radweave.data.dataset import Dataset
from radweave.data.examples import PreparedSplit, refuse_shared_images
from radweave.data.loader import Example, Features, StudyLoader
from radweave.data.tokenizer import tokenizer_fingerprint
from radweave.engine.distributed import Parallel, Ranks
from radweave.engine.drafts import Drafter, set_memories
from radweave.engine.loop import Progress, StageTrainer, Watch, Writers, refuse_no_compiler
from radweave.methods.experiment import Experiment
from radweave.methods.model import (
    LearnsTargets,
    ReportModel,
    TrainingView,
    device_of,
    encoder_name,
    named_parts,
    refuse_unknown,
)
from radweave.methods.stage import StageConfig, apply_finetune, total_loss
from radweave.nn.decoding import DecodingConfig, refuse_uncompilable
from radweave.nn.memory.backends import stated_recalls
from radweave.nn.memory.bank import save_bank

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Frozen features once: the patch tokens of a frozen encoder, computed before the stage and memory-mapped.
#
# DATASET/.cache/features/KEY/tokens.npy (M, S, D) float32, index.json
#
# The key is a hash of the encoder's weights and record, the pixels, the code and the arithmetic; any change makes a new
# store. One that was touched is checked before it is used, and computed again where it is damaged.


LOGGER: Final = logging.getLogger(__name__)
TOKENS: Final = "tokens.npy"
BATCH = 32
MOST_VOXELS = 1 << 24
"""Of a batch; large scans go in smaller batches."""


class _Index(Record):
    """``index.json``: the encoder's grid, and what the file of tokens was when it was written."""

    grid: tuple[int, ...]
    shape: tuple[int, ...]
    stamp: str
    sha256: str


def weights_hash(module: nn.Module) -> str:
    """SHA-256 over names and values of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def build_features(
    encoder: nn.Module,
    examples: Sequence[Example],
    folder: Path,
    identity: dict[str, Any],
    progress: Callable[[int, int], None] | None = None,
    note: Callable[[str], None] = LOGGER.warning,
) -> Features:
    """Open the features of these examples' images under this encoder; compute them where there are none yet.

    ``folder`` is the data set's cache; ``identity`` says what the images are and how they were prepared. ``note`` is
    told in one line when kept ones could not be used, or none be kept.
    """
    rows = sorted({row for example in examples for row in example.rows})
    key = sha256_json({**identity, "weights": weights_hash(encoder), "rows": rows})[:16]
    place = folder / "features" / key
    features = _open(place, rows)
    if features is None:
        if place.exists():
            note("the features that were kept of the frozen encoder are damaged: they are computed again")
        try:
            _compute(encoder, examples[0].source, rows, place, progress)
        except CannotWriteError as error:
            note(f"features cannot be kept in the data set's cache ({error.reason}): they are for this command alone")
            place = temporary_folder("features") / key
            _compute(encoder, examples[0].source, rows, place, progress)
        features = _open(place, rows)
    assert features is not None, "what was just written is there"
    return features


def _open(place: Path, rows: Sequence[int]) -> Features | None:
    """The features of these rows; None where there are none that are whole."""
    try:
        index = _Index.model_validate(read_json(place / "index.json"))
    except (InputError, ValidationError, OSError, RecursionError):
        return None
    path = place / TOKENS
    tokens = open_rows(path, np.float32, index.shape)
    if tokens is None or len(tokens) != len(rows) or math.prod(index.grid) != index.shape[1]:
        return None
    if stamp(path) != index.stamp and sha256_file(path) != index.sha256:
        return None
    return Features(tokens, index.grid, {row: number for number, row in enumerate(rows)})


@torch.no_grad()
def _compute(
    encoder: nn.Module,
    source: Any,
    rows: Sequence[int],
    place: Path,
    progress: Callable[[int, int], None] | None,
) -> None:
    device = device_of(encoder)
    was_training = encoder.training
    encoder.eval()
    batch = max(1, min(BATCH, MOST_VOXELS // math.prod(source.shape[1:])))

    def encode(start: int) -> Any:
        pixels = torch.from_numpy(np.stack([source[row] for row in rows[start : start + batch]])).to(device)
        return encoder(pixels[:, None].float() / 255.0)

    with write_folder(place, overwrite=True) as partial:
        first = encode(0)
        shape = (len(rows), *first.tokens.shape[1:])
        with write_rows(partial / TOKENS, np.float32, shape) as give:
            for start in range(0, len(rows), batch):
                encoded = encode(start) if start else first
                give(encoded.tokens.float().cpu().numpy())
                if progress is not None:
                    progress(min(start + batch, len(rows)), len(rows))
        path = partial / TOKENS
        index = _Index(grid=tuple(first.grid), shape=shape, stamp=stamp(path), sha256=sha256_file(path))
        write_json(partial / "index.json", index.model_dump())
    encoder.train(was_training)


# Trained stages, kept: runs that share a stage train it once.
#
# DATASET/.cache/stages/KEY/model.safetensors  state.json
#
# The key (``radweave.engine.stages``) is a hash of all that decides what the stage gives.


def save_artefact(folder: Path, model: nn.Module, parts: tuple[str, ...], state: dict[str, Any]) -> None:
    """Write the weights of the named parts, whole or not at all. A folder that cannot be written is passed over."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors = {
        name: tensor.detach().cpu().clone().contiguous()
        for name, tensor in model.state_dict().items()
        if name.split(".", 1)[0] in parts
    }
    try:
        with write_folder(folder, overwrite=True) as partial:
            save_file(tensors, str(partial / "model.safetensors"))
            digest = sha256_file(partial / "model.safetensors")
            write_json(partial / "state.json", {**state, "parts": list(parts), "sha256": digest})
    except (CannotWriteError, SafetensorError):
        return


def load_artefact(folder: Path, model: nn.Module) -> dict[str, Any] | None:
    """Put a kept stage into the model and return its state; None if there is none that is whole."""
    from safetensors.torch import load_file

    path = folder / "model.safetensors"
    try:
        state: dict[str, Any] = read_json(folder / "state.json")
        if sha256_file(path) != state["sha256"]:
            return None
        tensors: dict[str, Tensor] = load_file(str(path))
    except (InputError, OSError):
        return None
    own = model.state_dict()
    wanted = {name for name in own if name.split(".", 1)[0] in state["parts"]}
    if wanted != set(tensors) or any(own[name].shape != tensor.shape for name, tensor in tensors.items()):
        return None
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)
    return state


# Whether a run can compile the step of its decoding, and on which device it would: found out before it trains.


def refuse_uncompiled_decoding(decoding: DecodingConfig, model: ReportModel) -> None:
    """Refuse to compile a step of decoding on a machine, or for a language model, that it cannot be compiled for.

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
        raise InputError(error.reason, field="decoding.compile", got=error.got, expected=needed) from None


def computes_on(model: ReportModel) -> torch.device:
    """The device that a model computes on; that of a dry run has no numbers and would be put on the default one."""
    device = device_of(model)
    return default_device() if device.type == "meta" else device


# What the model writes of a few validation studies after each epoch, for those who watch a training.


NUM_SAMPLES = 4
"""Validation studies whose drafts are shown after each epoch."""


def with_samples(training: Training, name: str, watch: Watch) -> Watch:
    """After each epoch of the stage that writes reports, show some to those who watch."""
    show = training.watch.samples
    if show is None or not training.ranks.is_first or name != list(training.experiment.named_stages())[-1]:
        return watch
    examples = training.splits["val"].of(training.last_stage.mixture).examples[:NUM_SAMPLES]

    def epoch(number: int, figures: dict[str, float | None]) -> None:
        watch.epoch(number, figures)
        drafts = [draft.text for draft in training.drafter.drafts(examples)]
        show(name, number + 1, [(draft, example.report or "") for draft, example in zip(drafts, examples, strict=True)])

    return replace(watch, epoch=epoch)


Item = TypeVar("Item")


@dataclass(slots=True)
class TrainingWatch:
    """Callbacks for those who watch: images and features computed, and per stage the loop's own.

    ``began(folder)`` is called once when training begins, with the folder in which it takes place.

    ``samples(stage, step, [(draft, report), ...])`` gets a few reports of the validation split after each epoch of the
    last stage.
    """

    images: Callable[[int, int], None] | None = None
    features: Callable[[int, int], None] | None = None
    stage: Callable[[str], Watch] = lambda name: Watch()
    note: Callable[[str], None] = lambda text: None
    began: Callable[[Path], None] = lambda folder: None
    samples: Callable[[str, int, list[tuple[str, str]]], None] | None = None


@dataclass(slots=True)
class Training:
    """What one training run holds on to. ``banks`` has the hash of each bank built so far, on the first rank.

    ``open_other`` reads the training split of another data set as this experiment reads its own.
    """

    experiment: Experiment
    dataset: Dataset
    folder: Path
    cache: PixelCache
    tokenizer: PreTrainedTokenizerBase
    classes: tuple[str, ...]
    model: ReportModel
    fingerprint: str
    watch: TrainingWatch
    splits: dict[Split, PreparedSplit] = field(default_factory=dict)
    banks: dict[str, str] = field(default_factory=dict)
    ranks: Ranks = field(default_factory=Ranks)
    parallel: Parallel = "ddp"
    open_other: Callable[[Path], tuple[Dataset, PreparedSplit]] | None = None

    @property
    def drafter(self) -> Drafter:
        """What writes reports with the model as it is now."""
        experiment = self.experiment
        # What a run drafts with by expected utility is made when training has ended.
        decoding = experiment.decoding.model_copy(update={"kind": "likelihood"})
        return Drafter(self.model, self.tokenizer, decoding, experiment.data.modality, target=self.dataset.card.target)

    @property
    def pad_id(self) -> int:
        return int(self.tokenizer.pad_token_id)

    @property
    def last_stage(self) -> StageConfig:
        """The stage that writes reports."""
        return list(self.experiment.named_stages().values())[-1]


def refuse_impossible_stages(experiment: Experiment, model: ReportModel) -> None:
    """Refuse stages that this model cannot run, and a step of decoding that cannot be compiled, before any stage runs.

    Raises:
        InputError: naming the field of the stage or of the decoding.
    """
    refuse_uncompiled_decoding(experiment.decoding, model)
    trained = {parameter: parameter.requires_grad for parameter in model.parameters()}
    for name, stage in experiment.named_stages().items():
        if _is_passed_over(experiment, name, stage):
            continue
        try:
            if stage.trained and not stage.losses:
                raise InputError("there is no loss to train by", field="losses", got="none")
            refuse_unknown("losses", tuple(stage.losses), model.terms)
            apply_finetune(model, stage.finetune)
            if stage.compiled != "nothing":
                refuse_no_compiler(computes_on(model))
        except InputError as error:
            field = f"stages.{name}.{error.field}"
            raise InputError(error.reason, field=field, got=error.got, expected=error.expected) from None
    for parameter, before in trained.items():
        parameter.requires_grad_(before)


def _is_passed_over(experiment: Experiment, name: str, stage: StageConfig) -> bool:
    """Whether the stage has nothing to do. The last one always runs: it is what a run is."""
    return (stage.epochs == 0 or stage.max_steps == 0) and name != list(experiment.named_stages())[-1]


def run_stages(training: Training) -> tuple[dict[str, int], dict[str, Any]]:
    """Run every stage of the experiment; return the updates done and the validation figures of each."""
    steps: dict[str, int] = {}
    validation: dict[str, Any] = {}
    stages = training.experiment.named_stages()
    for name, stage in stages.items():
        last = name == list(stages)[-1]
        progress = Progress()
        if not _is_passed_over(training.experiment, name, stage):
            features = _features(training, stage)
            _build_memories(training, name, features)
            with _kept(training, name, stage, keep=training.experiment.data.keep_stages and not last) as kept:
                if kept.progress is None:
                    kept.progress = _trainer(training, name, stage, features).run() if stage.losses else progress
            progress = kept.progress
        steps[name] = progress.step
        validation[name] = {"best_step": progress.best_step, "epochs": progress.history}
    return steps, validation


@dataclass(slots=True)
class _Kept:
    """What a stage has done; None until it has run."""

    progress: Progress | None = None


@contextmanager
def _kept(training: Training, name: str, stage: StageConfig, *, keep: bool) -> Iterator[_Kept]:
    """A stage as the data set's cache has it, or one to be trained within the block, which is kept if ``keep``."""
    kept = _Kept()
    if not keep:
        yield kept
        return
    folder = training.dataset.path / ".cache" / "stages" / _stage_key(training, name, stage)
    ranks = training.ranks
    with one_at_a_time(folder) if ranks.is_first else nullcontext():
        ranks.wait()
        state = load_artefact(folder, training.model)
        ranks.refuse_difference("kept stages", state is None)
        if state is not None:
            training.watch.note(f"stage '{name}' is taken from the data set's cache")
            training.model.eval()
            kept.progress = Progress(**state["progress"])
        yield kept
        if state is None and ranks.is_first:
            assert kept.progress is not None, "a stage that was not kept is trained"
            facts = {"stage": name, "progress": kept.progress.as_dict()}
            save_artefact(folder, training.model, tuple(stage.trained), facts)


def _trainer(training: Training, name: str, stage: StageConfig, features: Features | None) -> StageTrainer:
    """The loop of a stage, over the training split."""
    data = training.experiment.data
    loader = StudyLoader(
        training.splits["train"].of(stage.mixture).examples,
        batch_size=stage.batch_size,
        pad_id=training.pad_id,
        seed=training.experiment.seed,
        shuffle=True,
        augmentation=data.augmentation if stage.augment else NoAugmentation(),
        hidden_views=data.hidden_views,
        dropped_views=data.dropped_views if stage.augment else 0.0,
        hidden_sections=data.hidden_sections,
        features=features,
        rank=training.ranks.rank,
        size=training.ranks.size,
        shares=stage.mixture,
        order=data.shuffle,
        workers=data.workers,
    )
    return StageTrainer(
        model=training.model,
        stage=stage,
        batches=loader,
        name=name,
        seed=training.experiment.seed,
        folder=training.folder,
        validate=lambda: validate(training, stage, features),
        fingerprint=training.fingerprint,
        watch=with_samples(training, name, training.watch.stage(name)),
        ranks=training.ranks,
        parallel=training.parallel,
    )


def _features(training: Training, stage: StageConfig) -> Features | None:
    """Features of the images of train and val, where the encoder is frozen and sees plain images."""
    data = training.experiment.data
    plain = not stage.augment or isinstance(data.augmentation, NoAugmentation)
    name = encoder_name(training.model)
    if not (data.keep_features and plain) or name in stage.trained or name not in _parts_read(training, stage):
        return None
    examples = [example for split in training.splits.values() for example in split.examples]
    identity = {
        "encoder": training.experiment.model.encoder.model_dump(mode="json"),
        "images": training.cache.digest,
        "code": code_hash(),
        "libraries": library_versions(),
        "arithmetic": arithmetic(),
    }
    folder = training.dataset.path / ".cache"
    encoder, watch = training.model.encoder, training.watch
    with one_at_a_time(folder / "features" / "all"):
        return build_features(encoder, examples, folder, identity, watch.features, watch.note)


def _build_memories(training: Training, name: str, features: Features | None) -> None:
    """Let the method build its memories before a stage, from a view that holds the training split only.

    Raises:
        InputError: if a bank holds a row that is not of the training split.
    """
    allowed: set[str] = set()
    mixture = training.experiment.named_stages()[name].mixture

    def view_of(dataset: Dataset, prepared: PreparedSplit, origin: str | None = None) -> TrainingView:
        studies = {study.study_id: study for study in dataset.studies("train")}
        own = [study_id for study_id, study in studies.items() if not mixture or study.origin in mixture]
        view = TrainingView(
            studies=tuple(studies[example.study_id] for example in prepared.examples),
            examples=tuple(prepared.examples),
            classes=training.classes,
            pad_id=training.pad_id,
            seed=training.experiment.seed,
            features=features if origin is None else None,
            origin=origin,
            open_other=open_other if origin is None else None,
        )
        allowed.update(view.row_id(study_id) for study_id in (own if origin is None else studies))
        return view

    def open_other(path: Path) -> TrainingView:
        assert training.open_other is not None
        dataset, prepared = training.open_other(path)
        refuse_shared_images(training.dataset, dataset)
        return view_of(dataset, prepared, origin=dataset.card.name)

    training.model.eval()
    view = view_of(training.dataset, training.splits["train"].of(mixture))
    for part in training.experiment.named_stages()[name].trained:
        module = named_parts(training.model)[part]
        if isinstance(module, LearnsTargets):
            module.learn_targets((example.token_ids or () for example in view.examples), view.class_states)
    banks = training.model.build_memories(name, view)
    for bank_name, bank in banks.items():
        bank.refuse_others(bank_name, allowed)
        if training.ranks.is_first:
            save_bank(bank, training.folder / "memories" / bank_name)
            training.banks[bank_name] = sha256_folder(training.folder / "memories" / bank_name)
    training.ranks.wait()
    set_memories(training.model, training.folder)
    for line in stated_recalls(named_parts(training.model).values()):
        training.watch.note(line)


def training_view(training: Training) -> TrainingView:
    """The training split as the last stage's memories see it, and no other data set."""
    studies = {study.study_id: study for study in training.dataset.studies("train")}
    examples = training.splits["train"].of(training.last_stage.mixture).examples
    return TrainingView(
        studies=tuple(studies[example.study_id] for example in examples),
        examples=tuple(examples),
        classes=training.classes,
        pad_id=training.pad_id,
        seed=training.experiment.seed,
    )


def _parts_read(training: Training, stage: StageConfig) -> set[str]:
    """The parts that the stage's losses read."""
    terms = training.model.terms
    return {part for term in stage.losses if term in terms for part in terms[term].reads}


def _stage_key(training: Training, name: str, stage: StageConfig) -> str:
    experiment = training.experiment
    read = _parts_read(training, stage)
    parts = named_parts(training.model)
    model = experiment.model.model_dump(mode="json")
    ranks = training.ranks
    # A stage by terms that all methods have is the same stage in each of them.
    terms = [training.model.terms[name] for name in stage.losses if name in training.model.terms]
    common = bool(terms) and all(term.common for term in terms) and stage.selected_by in (None, "loss")
    own = {
        "method": experiment.method,
        "fields": {field: value for field, value in model.items() if field not in parts},
        "decoding": experiment.decoding.model_dump(mode="json"),
    }
    facts = {
        "own": None if common else own,
        "stage": {name: stage.model_dump(mode="json") | {"finetune": stage.trained}},
        "model": {field: value for field, value in model.items() if field in read},
        # What the parts and banks hold by now says all of the stages before, and of checkpoints on this disk.
        "weights": {part: weights_hash(child) for part, child in parts.items() if part in read},
        "banks": training.banks,
        "data": experiment.data.model_dump(mode="json", exclude={"keep_features", "keep_stages", "workers"}),
        "seed": experiment.seed,
        "dataset": training.dataset.fingerprint(),
        "images": training.cache.digest,
        "tokenizer": tokenizer_fingerprint(training.tokenizer),
        "classes": training.classes,
        "processes": {"count": ranks.size, "parallel": training.parallel if ranks.size > 1 else None},
        "code": code_hash(),
        "outside": experiment.outside_code(),
        "libraries": library_versions(),
        "arithmetic": arithmetic(),
    }
    return str(ranks.from_first(sha256_json(facts)[:16]))


def validate(training: Training, stage: StageConfig, features: Features | None = None) -> dict[str, float]:
    """Means over the validation split: ``loss``, the weighted sum, and every term by its name; and scores of generated
    reports where the stage selects by one.

    The ranks share the work by whole batches, so that every study counts once and in the company it has in one process.
    The model is looked at and not changed: figures of one epoch must not depend on whether another was measured.
    """
    prepared, ranks = training.splits["val"].of(stage.mixture), training.ranks
    loader = StudyLoader(prepared.examples, stage.batch_size, training.pad_id, features=features)
    device = device_of(training.model)
    own = []
    with _unchanged(training.model.eval()), torch.no_grad():
        for batch in loader.epoch(first_step=ranks.rank, stride=ranks.size):
            terms = training.model.loss(batch.to(device), tuple(stage.losses))
            values = {**terms, "loss": total_loss(terms, stage.losses)}
            own.append({name: float(value) * len(batch) for name, value in values.items()})
    batches = interleaved(ranks.gather(own))
    figures = {name: sum(batch[name] for batch in batches) / len(prepared.examples) for name in batches[0]}
    if stage.selected_by not in (None, "loss", *stage.losses):
        from radweave.metrics.evaluate import corpus_scores

        some = training.drafter.drafts(prepared.examples[ranks.rank :: ranks.size])
        texts = interleaved(ranks.gather([(draft.example.study_id, draft.text) for draft in some]))
        figures |= ranks.from_first(corpus_scores(dict(texts), prepared.references) if ranks.is_first else {})
    return figures


@contextmanager
def _unchanged(model: ReportModel) -> Iterator[None]:
    """Hold to it that no parameter and no buffer is written, not even with what it held."""

    def state() -> list[tuple[str, int, int]]:
        tensors = (*model.named_parameters(), *model.named_buffers())
        return [(name, id(tensor), tensor._version) for name, tensor in tensors]

    before = state()
    yield
    written = sorted({name for name, _, _ in {*before} ^ {*state()}})
    assert not written, f"validation has written {', '.join(written)}"


def interleaved(lists: Sequence[Sequence[Item]]) -> list[Item]:
    """Undo dealing out: the first of every list, then the second of every list, and so on."""
    return [part[place] for place in range(max(map(len, lists))) for part in lists if place < len(part)]
