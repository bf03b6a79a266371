"""Runs: from a method and overrides to a trained run folder, and back to a model that reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from radweave.config import from_yaml, override, to_yaml
from radweave.data.cache import PixelCache, build_cache
from radweave.data.dataset import Dataset
from radweave.data.examples import PreparedSplit, prepare_split, refuse_leaks
from radweave.data.loader import StudyLoader
from radweave.data.tokenizer import encode, load_tokenizer, save_tokenizer, tokenizer_fingerprint
from radweave.errors import InputError
from radweave.experiment import BuildContext, Experiment
from radweave.methods import load_method
from radweave.ontology import CLASSES
from radweave.run_folder import DatasetFacts, RunCard, hash_files, library_versions, locked, read_card, write_card
from radweave.serve.predictor import Predictor
from radweave.storage import refuse_existing, sha256_json, write_aside, write_folder, write_text
from radweave.train.checkpoint import load_weights, save_weights
from radweave.train.loop import StageTrainer, Watch, use_deterministic_kernels
from radweave.train.stage import StageConfig, total_loss
from radweave.types import Split

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

UNTRAINED = "the weights of this run were never trained: its text would be noise; give --untrained to see it anyway"


@dataclass(slots=True)
class TrainingWatch:
    """Callbacks for those who watch: cache building, and per stage the loop's own."""

    images: Callable[[int, int], None] | None = None
    stage: Callable[[str], Watch] = lambda name: Watch()
    note: Callable[[str], None] = lambda text: None


def resolve(method: str, preset: str, overrides: Sequence[str]) -> Experiment:
    """The experiment of a method's preset with overrides applied.

    Raises:
        InputError: for an unknown method, preset or field.
    """
    presets = load_method(method).PRESETS
    if preset not in presets:
        raise InputError("no such preset", field="preset", got=preset, expected=f"one of {', '.join(presets)}")
    experiment: Experiment = override(presets[preset](), list(overrides))
    return experiment


@dataclass(slots=True)
class _Training:
    """What one call of ``train`` holds on to."""

    experiment: Experiment
    dataset: Dataset
    folder: Path
    cache: PixelCache
    tokenizer: PreTrainedTokenizerBase
    classes: tuple[str, ...]
    model: nn.Module
    fingerprint: str
    watch: TrainingWatch
    splits: dict[Split, PreparedSplit] = field(default_factory=dict)


def train(
    method: str,
    dataset_path: Path,
    out: Path,
    *,
    preset: str = "tiny",
    overrides: Sequence[str] = (),
    overwrite: bool = False,
    resume: bool = False,
    watch: TrainingWatch | None = None,
) -> Path:
    """Train a method on a dataset folder and write a run folder.

    With ``resume`` an interrupted run of the same configuration and data goes on from its last checkpoint; a finished
    one is left as it is.

    Raises:
        InputError: for bad input, a leak between splits, an output that exists, or a checkpoint of another run.
        StoppedError: after SIGTERM, when a checkpoint was written.
    """
    watch = watch or TrainingWatch()
    experiment = resolve(method, preset, overrides)
    dataset = Dataset.open(dataset_path)
    refuse_leaks(dataset.studies())
    if resume:
        if (out / "run.json").is_file():
            read_card(out)
            return out
    else:
        _clear(out, overwrite=overwrite)
    with locked(out):
        use_deterministic_kernels()
        training = _prepare(experiment, dataset, out, resume=resume, watch=watch)
        steps, validation = _run_stages(training)
        card = _card(training, preset, tuple(overrides), steps, validation)
        with write_aside(out / "weights.safetensors") as partial:
            save_weights(training.model, partial)
        _save_shapes(training.model, out / "parts")
        write_card(out, card.model_copy(update={"files": hash_files(out)}))
    return out


def _save_shapes(model: nn.Module, folder: Path) -> None:
    """Keep the shape of each part that is a transformers model, so that the run restores without its checkpoint."""
    with write_folder(folder, overwrite=True) as partial:
        for name, part in model.named_children():
            architecture: Any = getattr(part, "architecture", None)
            if architecture is not None:
                architecture.save_pretrained(str(partial / name))


def _clear(out: Path, *, overwrite: bool) -> None:
    refuse_existing(out, overwrite=overwrite)
    if out.exists() and any(out.iterdir()):
        if not ((out / "config.yaml").is_file() or (out / "run.json").is_file()):
            raise InputError("is not a run folder; it is not overwritten", file=out)
        with write_folder(out, overwrite=True):
            pass


def _prepare(experiment: Experiment, dataset: Dataset, out: Path, *, resume: bool, watch: TrainingWatch) -> _Training:
    config_path = out / "config.yaml"
    if resume and config_path.is_file():
        if from_yaml(type(experiment), config_path) != experiment:
            raise InputError("--resume needs the options the run was started with", file=config_path)
    else:
        write_text(config_path, to_yaml(experiment))
    cache = build_cache(dataset, size=experiment.data.image_size, progress=watch.images)
    # The tokenizer sees the training split only: nothing else may shape what the model can say.
    texts = (study.report or "" for study in dataset.studies("train"))
    tokenizer = experiment.data.tokenizer.build(texts)
    with write_folder(out / "tokenizer", overwrite=True) as partial:
        save_tokenizer(tokenizer, partial)
    classes = CLASSES[experiment.data.label_set]
    torch.manual_seed(experiment.seed)
    context = BuildContext(tokenizer=tokenizer, image_size=experiment.data.image_size, classes=classes)
    model: nn.Module = experiment.model.build(context)
    fingerprint = sha256_json(
        {
            "experiment": experiment.model_dump(mode="json"),
            "dataset": dataset.fingerprint(),
            "tokenizer": tokenizer_fingerprint(tokenizer),
            "version": library_versions()["radweave"],
        }
    )
    training = _Training(experiment, dataset, out, cache, tokenizer, classes, model, fingerprint, watch)
    for split in ("train", "val"):
        prepared = prepare(dataset, split, experiment, tokenizer, cache, need_text=True)
        if not prepared.examples:
            raise InputError(f"the data set has no usable study in split '{split}'", file=dataset.path)
        if prepared.left_out:
            watch.note(f"{split}: {len(prepared.left_out)} studies left out ({_reasons(prepared)})")
        training.splits[split] = prepared
    return training


def prepare(
    dataset: Dataset,
    split: Split,
    experiment: Experiment,
    tokenizer: PreTrainedTokenizerBase,
    cache: PixelCache,
    *,
    need_text: bool,
) -> PreparedSplit:
    """Examples of one split, as this experiment wants them."""
    data = experiment.data
    return prepare_split(
        dataset.studies(split),
        cache,
        encode=lambda text: encode(tokenizer, text),
        end_id=int(tokenizer.eos_token_id),
        max_views=data.max_views,
        max_tokens=data.max_tokens,
        label_set=data.label_set,
        classes=CLASSES[data.label_set],
        need_text=need_text,
    )


def _run_stages(training: _Training) -> tuple[dict[str, int], dict[str, Any]]:
    experiment = training.experiment
    steps: dict[str, int] = {}
    validation: dict[str, Any] = {}
    pad_id = int(training.tokenizer.pad_token_id)
    for name, stage in experiment.named_stages().items():
        loader = StudyLoader(
            training.splits["train"].examples,
            batch_size=stage.batch_size,
            pad_id=pad_id,
            seed=experiment.seed,
            shuffle=True,
            augmentation=experiment.data.augmentation,
            hidden_views=experiment.data.hidden_views,
        )
        trainer = StageTrainer(
            model=training.model,
            stage=stage,
            batches=loader,
            name=name,
            seed=experiment.seed,
            folder=training.folder,
            validate=lambda stage=stage: _validate(training, stage),  # type: ignore[misc]
            fingerprint=training.fingerprint,
            watch=training.watch.stage(name),
        )
        progress = trainer.run()
        steps[name] = progress.step
        validation[name] = {"best_step": progress.best_step, "epochs": progress.history}
    return steps, validation


def _validate(training: _Training, stage: StageConfig) -> dict[str, float]:
    """Mean loss over the validation split, and scores of generated reports where the stage selects by one."""
    prepared = training.splits["val"]
    loader = StudyLoader(prepared.examples, stage.batch_size, int(training.tokenizer.pad_token_id))
    total, count = 0.0, 0
    with torch.no_grad():
        for batch in loader.epoch():
            terms = training.model.loss(batch, tuple(stage.losses))  # type: ignore[operator]
            total += float(total_loss(terms, stage.losses)) * len(batch)
            count += len(batch)
    figures = {"loss": total / count}
    if stage.select not in ("loss", "last"):
        from radweave.evaluation.validation import corpus_scores

        predictor = _predictor(training.model, training.tokenizer, training.experiment)
        reports = {report.study_id: report.text for report in predictor.reports(prepared.examples)}
        figures |= corpus_scores(reports, prepared.references)
    return figures


def _reasons(prepared: PreparedSplit) -> str:
    reasons = list(prepared.left_out.values())
    return ", ".join(f"{reason}: {reasons.count(reason)}" for reason in dict.fromkeys(reasons))


def _card(
    training: _Training, preset: str, overrides: tuple[str, ...], steps: dict[str, int], validation: dict[str, Any]
) -> RunCard:
    card = training.dataset.card
    return RunCard(
        method=training.experiment.method,
        preset=preset,
        overrides=overrides,
        seed=training.experiment.seed,
        classes=training.classes,
        trained_steps=steps,
        validation=validation,
        left_out={split: len(prepared.left_out) for split, prepared in training.splits.items()},
        dataset=DatasetFacts(
            name=card.name,
            fingerprint=training.dataset.fingerprint(),
            modality=card.modality,
            target=card.target,
            cleaning=card.cleaning,
        ),
        versions=library_versions(),
        files={},
    )


@dataclass(frozen=True, slots=True)
class Run:
    """A restored run."""

    folder: Path
    card: RunCard
    experiment: Experiment
    tokenizer: PreTrainedTokenizerBase
    model: nn.Module

    def predictor(self, *, untrained: bool = False, decoding: Sequence[str] = ()) -> Predictor:
        """A predictor with the run's decoding options, or with some of them overridden."""
        warnings = []
        if not self.card.is_trained:
            warnings.append("UNTRAINED WEIGHTS: this text is noise")
        if self.card.dataset.name.startswith("phantom"):
            warnings.append("trained on synthetic phantom images only: a demonstration, not for real images")
        return _predictor(
            self.model,
            self.tokenizer,
            self.experiment,
            decoding=override(self.experiment.decoding, decoding),
            warnings=tuple(warnings),
            refusal=None if self.card.is_trained or untrained else UNTRAINED,
        )


def _predictor(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, experiment: Experiment, **options: Any
) -> Predictor:
    return Predictor(
        model=model,  # type: ignore[arg-type]
        tokenizer=tokenizer,
        image_size=experiment.data.image_size,
        max_views=experiment.data.max_views,
        **{"decoding": experiment.decoding, **options},
    )


def restore(folder: Path) -> Run:
    """Open a finished run folder; every file is checked against its hash.

    Raises:
        InputError: if a file is missing or was changed, or does not fit the model.
    """
    card = read_card(folder)
    experiment = from_yaml(type(load_method(card.method).PRESETS["tiny"]()), folder / "config.yaml")
    tokenizer = load_tokenizer(folder / "tokenizer")
    context = BuildContext(tokenizer, experiment.data.image_size, card.classes, parts=folder / "parts")
    model: nn.Module = experiment.model.build(context)
    load_weights(model, folder / "weights.safetensors")
    model.eval()
    return Run(folder=folder, card=card, experiment=experiment, tokenizer=tokenizer, model=model)


def load(run: Path | str, *, untrained: bool = False, decoding: Sequence[str] = ()) -> Predictor:
    """Open a run for reporting.

    Args:
        run: the run folder.
        untrained: let a run report whose weights were never trained; each report then says so.
        decoding: overrides of the run's decoding options, such as ``["num_beams=3"]``.

    Raises:
        InputError: if the run cannot be restored or an option does not exist.
    """
    return restore(Path(run)).predictor(untrained=untrained, decoding=decoding)
