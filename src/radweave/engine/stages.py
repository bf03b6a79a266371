"""The stages of a run in order: memories, cached features and stages, training, validation; the part ``place``."""

from __future__ import annotations

import hashlib
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor, nn

from radweave.core.batch import Batch
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
from radweave.engine.drafts import Drafter
from radweave.engine.loop import Progress, StageTrainer, Watch
from radweave.engine.place import FOLDER as PLACE
from radweave.engine.place import PLACES, PlaceFacts, PlacePart, StudyTargets, batch_targets, calibrated, targets_of
from radweave.engine.plan import is_skipped
from radweave.engine.prepare import split_view
from radweave.engine.reinforcement import Editor, RewardObjective
from radweave.engine.restore import set_memories
from radweave.engine.reward_page import write_reward_page
from radweave.engine.rewards import Rewards, TrainingTexts
from radweave.labels import get_labeler
from radweave.labels.places import get_place_labeler
from radweave.methods.experiment import Experiment
from radweave.methods.model import LearnsTargets, ReportModel, TrainingView, device_of, encoder_name, named_parts
from radweave.methods.stage import REWARD, RewardStageConfig, StageConfig, build_optimizer, learning_rate, total_loss
from radweave.metrics.priors import prior_reports
from radweave.nn.connector import encode_views
from radweave.nn.memory.backends import stated_recalls
from radweave.nn.memory.bank import save_bank
from radweave.nn.place import PlaceHead, place_loss

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Patch tokens of a frozen encoder, computed once and memory-mapped:
#
# DATASET/.cache/features/KEY/tokens.npy (M, S, D) float32, index.json
#
# The key is a hash of the encoder's weights and record, the pixels, the code and the arithmetic. Touched files are
# verified before use, and damaged ones computed again.

LOGGER: Final = logging.getLogger(__name__)
TOKENS: Final = "tokens.npy"
BATCH = 32
MOST_VOXELS = 1 << 24
"""Voxels in a batch; large scans have smaller batches."""


class _Index(Record):
    """``index.json``: the encoder's grid, and shape, stamp and hash of the tokens."""

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
    """Open the cached features of the examples' images under this encoder, or compute them.

    ``folder`` is the data set's cache; ``identity`` identifies the images and their preparation. ``note`` gets a line
    if the cache is damaged or cannot be written.
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
    assert features is not None, "they were just written"
    return features


def _open(place: Path, rows: Sequence[int]) -> Features | None:
    """The features of these rows; None if they are missing or damaged."""
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
    encoder: nn.Module, source: Any, rows: Sequence[int], place: Path, progress: Callable[[int, int], None] | None
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


# Cached stages, which runs share: DATASET/.cache/stages/KEY/model.safetensors, state.json. The key (``_stage_key``) is
# a hash of everything that determines the weights.


def save_artefact(folder: Path, model: nn.Module, parts: tuple[str, ...], state: dict[str, Any]) -> None:
    """Write the weights of the named parts, whole or not at all; an unwritable folder is skipped."""
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
    """Load a cached stage into the model and return its state; None if it is missing or damaged."""
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


NUM_SAMPLES = 4
"""Validation studies with drafts after each epoch."""


class Sample(NamedTuple):
    """A draft, its reference, and the first image of the study (H, W) uint8; of a scan the middle slice."""

    draft: str
    report: str
    image: NDArray[np.uint8]


def with_samples(training: Training, name: str, watch: Watch) -> Watch:
    """The watch, with samples after each epoch of the last stage."""
    show = training.watch.samples
    if show is None or not training.ranks.is_first or name != list(training.experiment.named_stages())[-1]:
        return watch
    examples = training.splits["val"].of(training.last_stage.mixture).examples[:NUM_SAMPLES]
    first = [example.pixels[0] for example in examples]
    images = [one if one.ndim == 2 else one[len(one) // 2] for one in first]

    def epoch(number: int, figures: dict[str, float | None]) -> None:
        watch.epoch(number, figures)
        drafts = training.drafter.drafts(examples)
        pairs = zip(drafts, images, strict=True)
        show(name, number + 1, [Sample(one.text, one.example.report or "", image) for one, image in pairs])

    return replace(watch, epoch=epoch)


SHOWN = 3
"""Validation studies with drafts on the page of rewards."""


def shown_drafts(training: Training, stage: StageConfig) -> list[tuple[str, str]]:
    """Draft and report of a few validation studies, spread evenly over the split."""
    examples = [one for one in training.splits["val"].of(stage.mixture).examples if one.report]
    places = dict.fromkeys(place * len(examples) // SHOWN for place in range(SHOWN if examples else 0))
    chosen = [examples[place] for place in places]
    return [(draft.text, draft.example.report or "") for draft in training.drafter.drafts(chosen)]


def with_page(training: Training, name: str, watch: Watch) -> Watch:
    """The watch, with the page of rewards written after each epoch."""
    if not training.ranks.is_first:
        return watch

    def epoch(number: int, figures: dict[str, float | None]) -> None:
        watch.epoch(number, figures)
        write_reward_page(training.folder, name, training.experiment.method)

    return replace(watch, epoch=epoch)


Item = TypeVar("Item")


@dataclass(slots=True)
class TrainingWatch:
    """Callbacks of a training: progress of images and features, and a ``Watch`` per stage.

    ``began(folder)`` gets the training folder once. ``samples(stage, step, [Sample, ...])`` gets a few
    validation studies after each epoch of the last stage.
    """

    images: Callable[[int, int], None] | None = None
    features: Callable[[int, int], None] | None = None
    stage: Callable[[str], Watch] = lambda name: Watch()
    note: Callable[[str], None] = lambda text: None
    began: Callable[[Path], None] = lambda folder: None
    samples: Callable[[str, int, list[Sample]], None] | None = None


@dataclass(slots=True)
class Training:
    """The state of one training. ``banks`` has the hash of each bank built so far, on the first rank.

    ``open_other`` prepares the training split of another data set.
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
        """The drafter of the current model."""
        experiment = self.experiment
        # The candidates of expected utility do not exist before the end of training.
        decoding = experiment.decoding.model_copy(update={"kind": "likelihood"})
        return Drafter(self.model, self.tokenizer, decoding, experiment.data.modality, target=self.dataset.card.target)

    @property
    def pad_id(self) -> int:
        return int(self.tokenizer.pad_token_id)

    @property
    def last_stage(self) -> StageConfig:
        """The stage that writes reports."""
        return self.experiment.named_stages()[self.experiment.report_stage]

    def view(self, dataset: Dataset, prepared: PreparedSplit, **options: Any) -> TrainingView:
        """A training split as methods see it."""
        seed = self.experiment.seed
        return split_view(dataset, prepared, classes=self.classes, pad_id=self.pad_id, seed=seed, **options)


def run_stages(training: Training) -> tuple[dict[str, int], dict[str, Any]]:
    """Run all stages of the experiment; return updates and validation figures of each."""
    steps: dict[str, int] = {}
    validation: dict[str, Any] = {}
    stages = training.experiment.named_stages()
    for name, stage in stages.items():
        last = name == list(stages)[-1]
        progress = Progress()
        if not is_skipped(training.experiment, name, stage):
            features = _features(training, stage)
            _build_memories(training, name, features)
            with _cached(training, name, stage, keep=training.experiment.data.keep_stages and not last) as cached:
                if cached.progress is None:
                    cached.progress = _trainer(training, name, stage, features).run() if stage.learns else progress
            progress = cached.progress
        steps[name] = progress.step
        validation[name] = {"best_step": progress.best_step, "epochs": progress.history}
    return steps, validation


@dataclass(slots=True)
class _CachedStage:
    """The progress of a stage; None until it has run."""

    progress: Progress | None = None


@contextmanager
def _cached(training: Training, name: str, stage: StageConfig, *, keep: bool) -> Iterator[_CachedStage]:
    """A stage from the data set's cache, or one to train within the block, then cached if ``keep``."""
    cached = _CachedStage()
    if not keep:
        yield cached
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
            cached.progress = Progress(**state["progress"])
        yield cached
        if state is None and ranks.is_first:
            assert cached.progress is not None, "it was trained in the block"
            facts = {"stage": name, "progress": cached.progress.as_dict()}
            save_artefact(folder, training.model, tuple(stage.trained), facts)


def _trainer(training: Training, name: str, stage: StageConfig, features: Features | None) -> StageTrainer:
    """The training loop of a stage."""
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
        abnormal_weight=stage.abnormal_weight,
        balance=stage.balance,
        workers=data.workers,
    )
    objective = _objective(training, stage) if isinstance(stage, RewardStageConfig) else None
    watch = with_samples(training, name, training.watch.stage(name))
    return StageTrainer(
        model=training.model,
        stage=stage,
        batches=loader,
        name=name,
        seed=training.experiment.seed,
        folder=training.folder,
        validate=lambda: validate(training, stage, features, None if objective is None else objective.rewards),
        fingerprint=training.fingerprint,
        watch=watch if objective is None else with_page(training, name, watch),
        ranks=training.ranks,
        parallel=training.parallel,
        objective=objective,
        drafts=None if objective is None else partial(shown_drafts, training, stage),
    )


def _objective(training: Training, stage: RewardStageConfig) -> RewardObjective:
    """The rewards of a stage, and how reports are drawn for them."""
    view = training.view(training.dataset, training.splits["train"].of(stage.mixture))
    labeler = get_labeler(training.experiment.data.label_set)
    texts = TrainingTexts.of(view, labeler, stage.radgraph_folder, str(device_of(training.model)), stage.break_even)
    rewards, editor = Rewards(stage.rewards, texts), Editor(labeler)
    priors = prior_reports(view.studies) if rewards.with_priors else {}
    return RewardObjective(stage, rewards, training.tokenizer, training.experiment.decoding, editor, priors)


def _features(training: Training, stage: StageConfig) -> Features | None:
    """Features of training and validation images, for a frozen encoder without augmentation."""
    data = training.experiment.data
    plain = not stage.augment or isinstance(data.augmentation, NoAugmentation)
    name = encoder_name(training.model)
    if not (data.keep_features and plain) or name in stage.trained or name not in _parts_read(training, stage):
        return None
    terms = training.model.terms
    if any(terms[term].images for term in stage.validated if term in terms):
        return None
    return frozen_features(training)


def frozen_features(training: Training) -> Features:
    """Tokens of training and validation images by the encoder as it is, from the data set's cache or made now."""
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
    """Build the method's memories before a stage, from the training split only.

    Raises:
        InputError: if a bank holds a row that is not of the training split.
    """
    allowed: set[str] = set()
    mixture = training.experiment.named_stages()[name].mixture

    def view_of(dataset: Dataset, prepared: PreparedSplit, origin: str | None = None) -> TrainingView:
        if origin is None:
            view = training.view(dataset, prepared, features=features, open_other=open_other)
        else:
            view = training.view(dataset, prepared, origin=origin)
        for study in dataset.studies("train"):
            if origin is not None or not mixture or study.origin in mixture:
                allowed.add(view.row_id(study.study_id))
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
    """The training split of the last stage."""
    return training.view(training.dataset, training.splits["train"].of(training.last_stage.mixture))


def _parts_read(training: Training, stage: StageConfig) -> set[str]:
    """Parts that the stage's losses read."""
    terms = training.model.terms
    return {part for term in stage.validated if term in terms for part in terms[term].reads}


def _stage_key(training: Training, name: str, stage: StageConfig) -> str:
    experiment = training.experiment
    read = _parts_read(training, stage)
    parts = named_parts(training.model)
    model = experiment.model.model_dump(mode="json")
    ranks = training.ranks
    # A stage of common terms is shared by all methods.
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
        # Weights and banks determine the influence of earlier stages and of local checkpoints.
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


def validate(
    training: Training, stage: StageConfig, features: Features | None = None, rewards: Rewards | None = None
) -> dict[str, float]:
    """Means over the validation split of ``loss``, the weighted sum, and of every term; scores of generated reports if
    the stage selects by one, and their ``rewards`` where it rewards them.

    Ranks share whole batches, so that every study counts once and batches equal those of one process. The model is
    unchanged: figures of an epoch must not depend on other measurements.
    """
    prepared, ranks = training.splits["val"].of(stage.mixture), training.ranks
    loader = StudyLoader(prepared.examples, stage.batch_size, training.pad_id, features=features)
    device = device_of(training.model)
    own = []
    with _unchanged(training.model.eval()), torch.no_grad():
        for batch in loader.epoch(first_step=ranks.rank, stride=ranks.size):
            terms = training.model.loss(batch.to(device), stage.validated)
            weighed = {name: terms[name] for name in stage.losses}
            values = {**terms, "loss": total_loss(weighed, stage.losses)}
            own.append({name: float(value) * len(batch) for name, value in values.items()})
    batches = interleaved(ranks.gather(own))
    figures = {name: sum(batch[name] for batch in batches) / len(prepared.examples) for name in batches[0]}
    if rewards is not None or stage.selected_by not in (None, "loss", *stage.losses):
        from radweave.metrics.evaluate import corpus_scores

        some = training.drafter.drafts(prepared.examples[ranks.rank :: ranks.size])
        texts = interleaved(ranks.gather([(draft.example.study_id, draft.text) for draft in some]))
        figures |= ranks.from_first(corpus_scores(dict(texts), prepared.references) if ranks.is_first else {})
        if rewards is not None:
            priors = prior_reports(training.dataset.studies("val")) if rewards.with_priors else {}
            figures |= _rewarded(ranks, rewards, dict(texts), prepared.references, priors)
            if len(prepared.references) > 1 and figures["distinct"] * len(prepared.references) < 2:
                training.watch.note("the rewarded decoder writes one and the same report for every validation study")
    return figures


def _rewarded(
    ranks: Ranks,
    rewards: Rewards,
    drafts: Mapping[str, str],
    references: Mapping[str, str],
    priors: Mapping[str, str],
) -> dict[str, float]:
    """Mean rewards of drafts, and the share of drafts that are distinct; ``priors`` are reports of prior studies.

    The first rank reads the rewards for all: all must choose the same epoch, and a reward of another package may differ
    from rank to rank.
    """
    if not ranks.is_first:
        return dict(ranks.from_first(None))
    own = list(references)
    parts = rewards.parts(
        [drafts[name] for name in own], [references[name] for name in own], [priors.get(name) for name in own]
    )
    by_name = {f"{REWARD}_{name}": float(values.mean()) for name, values in parts.items()}
    distinct = len({drafts[name] for name in own}) / len(own)
    return dict(ranks.from_first({REWARD: float(rewards.total(parts).mean()), **by_name, "distinct": distinct}))


@contextmanager
def _unchanged(model: ReportModel) -> Iterator[None]:
    """Assert that no parameter and no buffer is written within the block."""

    def state() -> list[tuple[str, int, int]]:
        tensors = (*model.named_parameters(), *model.named_buffers())
        return [(name, id(tensor), tensor._version) for name, tensor in tensors]

    before = state()
    yield
    written = sorted({name for name, _, _ in {*before} ^ {*state()}})
    assert not written, f"validation has written {', '.join(written)}"


def interleaved(lists: Sequence[Sequence[Item]]) -> list[Item]:
    """The first item of every list, then the second of every list, and so on."""
    return [part[place] for place in range(max(map(len, lists))) for part in lists if place < len(part)]


# The part ``place``, after all stages.


def train_place(training: Training) -> PlacePart:
    """Train the part on the tokens of the frozen encoder; the epoch of the lowest validation loss stays.

    Raises:
        InputError: if the validation loss of no epoch is finite.
    """
    data, stage, features = training.experiment.data, training.experiment.stages.place, frozen_features(training)
    labeler, reader = get_labeler(data.label_set), get_place_labeler(data.label_set)
    targets = {
        split: targets_of(training.dataset.studies(split), training.splits[split], training.cache, labeler, reader)
        for split in ("train", "val")
    }
    seed = training.experiment.seed
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = PlaceHead(features.tokens.shape[2], len(features.grid), len(training.classes), len(PLACES), stage.hidden)
    part = PlacePart(head.to(device_of(training.model)), _facts_of_place(training, head, targets["train"]))
    loaders = {
        split: StudyLoader(
            training.splits[split].examples,
            stage.batch_size,
            training.pad_id,
            seed=seed,
            shuffle=split == "train",
            hidden_views=data.hidden_views if split == "train" else 0.0,
            features=features,
        )
        for split in ("train", "val")
    }
    encoder = training.model.encoder
    _standardise(head, features)
    watch = training.watch.stage(PLACE)
    total = stage.epochs * loaders["train"].steps_per_epoch
    watch.began(stage.epochs, loaders["train"].steps_per_epoch)
    optimizer, best = build_optimizer(head, stage.optimizer), (np.inf, head.state_dict())
    step = 0
    for epoch in range(stage.epochs):
        head.train()
        for batch in loaders["train"].epoch(epoch):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed * total + step)
                loss = _loss_of_place(head, encoder, batch, targets["train"])
            rate = learning_rate(step, total, stage.optimizer)
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(head.parameters(), stage.optimizer.max_grad_norm)
            optimizer.step()
            step += 1
        head.eval()
        with torch.no_grad():
            losses = [
                float(_loss_of_place(head, encoder, batch, targets["val"])) * len(batch)
                for batch in loaders["val"].epoch()
            ]
        figure = sum(losses) / len(training.splits["val"].examples)
        watch.epoch(epoch, {"loss": figure})
        if figure < best[0]:
            best = figure, {name: value.clone() for name, value in head.state_dict().items()}
    if not np.isfinite(best[0]):
        raise InputError(
            "the validation loss of no epoch is finite",
            field="stages.place.optimizer.learning_rate",
            got=stage.optimizer.learning_rate,
            expected="a lower one",
        )
    head.load_state_dict(best[1])
    return calibrated(part, encoder, loaders["val"].epoch(), targets["val"])


def _loss_of_place(head: PlaceHead, encoder: nn.Module, batch: Batch, targets: Mapping[str, StudyTargets]) -> Tensor:
    device = next(head.parameters()).device
    batch = batch.to(device)
    views = encode_views(encoder, batch)
    return place_loss(head(views), batch_targets(batch, targets), views)


def _standardise(head: PlaceHead, features: Features) -> None:
    """Set the mean and deviation of the tokens, by 512 images at most, evenly spread."""
    count = len(features.tokens)
    some = torch.from_numpy(np.array(features.tokens[:: -(-count // 512)])).flatten(0, 1)
    head.mean.copy_(some.mean(0))
    head.deviation.copy_(some.std(0) + 1e-3)


def _facts_of_place(training: Training, head: PlaceHead, targets: Mapping[str, StudyTargets]) -> PlaceFacts:
    """Sizes, and the number of training studies with a side, a zone and a box of each class."""
    classes = training.classes
    known = np.sum([~np.isnan(one.places) for one in targets.values()], axis=0)
    marked = Counter(number for one in targets.values() for number in {int(box[1]) for box in one.boxes})
    return PlaceFacts(
        classes=classes,
        dim=head.tokens.in_features,
        axes=head.axes,
        hidden=training.experiment.stages.place.hidden,
        dataset=training.dataset.fingerprint(),
        sides={name: int(known[number, 0]) for number, name in enumerate(classes) if known[number, 0]},
        zones={name: int(known[number, -1]) for number, name in enumerate(classes) if known[number, -1]},
        boxes={name: marked[number] for number, name in enumerate(classes) if marked[number]},
    )
