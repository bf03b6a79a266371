"""Train a method on a data set and write a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from radweave.core.config import to_yaml
from radweave.core.devices import default_device, keep_freed_pages
from radweave.core.ontology import CLASSES
from radweave.core.provenance import library_versions
from radweave.core.storage import sha256_json, write_aside, write_folder, write_text
from radweave.core.study import Split
from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.data.examples import PreparedSplit, no_usable_study, refuse_leaks, refuse_same_pixels
from radweave.data.leaks.images import near_copies
from radweave.data.loader import VIEW_KINDS
from radweave.data.ood import TrainingPictures, fit_ood, save_ood
from radweave.data.square import PREPROCESSING_VERSION
from radweave.data.tokenizer import save_tokenizer, tokenizer_fingerprint
from radweave.engine.checkpoint import refuse_checkpoints_of_others, save_weights, without_quantization
from radweave.engine.distributed import Parallel, Ranks, joined_ranks
from radweave.engine.lengthen import Lengthening, link_files
from radweave.engine.loop import use_deterministic_kernels
from radweave.engine.place import FOLDER as PLACE
from radweave.engine.place import save_place
from radweave.engine.plan import plan_training, refuse_misfit, refuse_placeless
from radweave.engine.prepare import _reasons, prepare
from radweave.engine.restore import restore, rows_of_memories
from radweave.engine.run_directory import FILE as STARTED
from radweave.engine.run_directory import (
    ResumedRun,
    Started,
    claimed,
    read_started,
    refuse_other_options,
    state_to_resume,
    training_folder,
    write_started,
)
from radweave.engine.run_folder import (
    DatasetFacts,
    RunCard,
    WarmStart,
    hash_files,
    keep_licences,
    read_card_alone,
    write_card,
)
from radweave.engine.save_drafting import save_for_drafting
from radweave.engine.stages import Training, TrainingWatch, run_stages, train_place, training_view
from radweave.engine.warm_start import StartRun
from radweave.methods import resolve
from radweave.methods.experiment import BuildContext, Experiment
from radweave.methods.model import EvidenceSource, ReportModel, Served, Shaped, Tokenizing, named_parts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FEW_UPDATES = 200
"""Of the stage that writes reports: the tiny presets make three times as many on their demonstration."""
LEAST_STUDIES = 20
"""Of validation: among fewer, equal drafts and the score of a floor are not significant."""
DRAFTED = 60
TRAINING_REPORTS = 500


def cautions_of(training: Training, updates: int) -> tuple[str, ...]:
    """Cautions about a trained model, after ``updates`` of the stage that writes reports."""
    short = training.last_stage.losses and updates < FEW_UPDATES
    cautions = [f"barely trained: {updates} updates of the stage that writes reports"] if short else []
    return (*cautions, *_validation_cautions(training))


def _validation_cautions(training: Training) -> list[str]:
    """Cautions from drafts of some validation studies, compared with floors of training reports."""
    prepared = training.splits["val"]
    examples = [example for example in prepared.examples if example.study_id in prepared.references]
    if len(examples) < LEAST_STUDIES or isinstance(training.model, Served):
        return []
    from radweave.metrics import Options, Pair, evaluate_pairs

    step = -(-len(examples) // DRAFTED)
    drafts = list(training.drafter.drafts(examples[::step]))
    pairs = [
        Pair(
            draft.example.study_id,
            draft.text,
            (prepared.references[draft.example.study_id],),
            has_prior=draft.example.study_id in prepared.with_prior,
        )
        for draft in drafts
    ]
    own = (example.report for example in training.splits["train"].examples if example.report)
    texts = tuple(islice(own, TRAINING_REPORTS))
    scores = evaluate_pairs(pairs, train_texts=texts, options=Options(meteor=False, resamples=0))
    # Drafts of the method's own decoding, not by expected utility.
    return [f"drafts of {len(pairs)} validation studies: {sentence}" for sentence in scores.warnings()]


def train(
    method: str,
    dataset_path: Path,
    out: Path,
    *,
    preset: str = "tiny",
    overrides: Sequence[str] = (),
    config: Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    parallel: Parallel = "ddp",
    watch: TrainingWatch | None = None,
    start: Path | None = None,
) -> Path:
    """Train a method on a dataset folder and write a run folder.

    With ``resume`` an interrupted run of the same configuration and data goes on from its last checkpoint. A finished
    one is unchanged, goes on where the configuration makes its last stage longer (``radweave.engine.lengthen``), or is
    given the part ``place`` where nothing else differs.
    ``start`` is a run whose weights the parts that fit start from (``radweave.engine.warm_start``). Under torchrun
    every process calls this; ``parallel`` replicates or shards the model, and the first process writes. ``config`` is a
    YAML file of differences from the preset; overrides come after it. With ``overwrite`` an older run stays until the
    new one is finished (``radweave.engine.run_directory``); with both, an interrupted one is resumed. A failed start
    leaves nothing behind.

    Raises:
        InputError: for bad input, a leak between splits, an output that exists, or a checkpoint of another run.
        StoppedError: after SIGTERM or SIGINT, when a checkpoint was written.
    """
    experiment = resolve(method, preset, overrides, config)
    dataset = Dataset.open(dataset_path, limit=experiment.data.limit).aimed(experiment.data.target)
    resumed = state_to_resume(out, experiment, dataset, overwrite=overwrite) if resume else ResumedRun("other")
    start_run = None if start is None else StartRun.open(start)
    if resumed.state == "finished":
        if start_run is not None:
            start_run.refuse_other(out)
        return out
    if resumed.state == "placed":
        started = Started(method, dataset_path, out, preset, tuple(overrides), config, start)
        return _add_place(experiment, dataset, started, watch or TrainingWatch())
    resume, longer = resumed.state == "unfinished", resumed.longer
    with joined_ranks() as ranks, ExitStack() as held:
        use_deterministic_kernels()
        keep_freed_pages()
        with ranks.first_goes_first():
            if ranks.is_first:
                replaces = overwrite or longer is not None
                place = held.enter_context(claimed(out, overwrite=replaces, resume=resume))
            folder = training_folder(out)
            shown = watch if watch is not None and ranks.is_first else TrainingWatch()
            training, warm_start = _prepare(experiment, dataset, folder, resumed, start_run, watch=shown, ranks=ranks)
            training.parallel = parallel
            if ranks.is_first:
                differences = _lengthened(out, folder, longer)
                write_started(
                    folder, Started(method, dataset_path, out, preset, tuple(overrides), config, start, differences)
                )
                place.began = True
                shown.began(folder)
        ranks.refuse_difference("experiment, data set or tokenizer", training.fingerprint)
        steps, validation = run_stages(training)
        if ranks.is_first:
            _save_parts(training, folder)
            card = _card(training, preset, tuple(overrides), steps, validation)
            card = card.model_copy(update={"warm_start": warm_start, "lengthened": differences})
            write_card(folder, card)
            for sentence in card.cautions:
                training.watch.note(f"mind: {sentence}")
            place.finish()
        ranks.wait()
    return out


def _add_place(experiment: Experiment, dataset: Dataset, started: Started, watch: TrainingWatch) -> Path:
    """Train the part ``place`` for a finished run, in a copy that replaces the run when it is whole.

    Other files of the copy are hard links where possible.
    """
    out = started.out
    with joined_ranks() as ranks:
        if ranks.is_first:
            use_deterministic_kernels()
            with claimed(out, overwrite=True, resume=False) as place:
                run = restore(out)
                refuse_placeless(experiment, run.model)
                data = experiment.data
                cache = build_cache(dataset, size=data.image_size, ct=data.ct, progress=watch.images, note=watch.note)
                facts = (cache, run.tokenizer, run.card.classes, run.model, "", watch)
                training = Training(experiment, dataset, out, *facts)
                for split in ("train", "val"):
                    training.splits[split] = _prepared(training, split)
                part = train_place(training)
                link_files(out.resolve(), place.folder)
                save_place(part, place.folder / PLACE)
                write_started(place.folder, started)
                write_text(place.folder / "config.yaml", to_yaml(experiment))
                files, overrides = hash_files(place.folder), started.overrides
                write_card(place.folder, run.card.model_copy(update={"files": files, "overrides": overrides}))
                place.began = True
                place.finish()
        ranks.wait()
    return out


def _lengthened(out: Path, folder: Path, longer: Lengthening | None) -> tuple[str, ...]:
    """Sentences on a lengthened run, with those of its earlier lengthenings."""
    if longer is not None:
        return (*read_card_alone(out).lengthened, *longer.differences)
    return read_started(out).lengthened if (folder / STARTED).is_file() else ()


def _save_parts(training: Training, folder: Path) -> None:
    """Write the files of the restored model; the card, written last, finishes the run."""
    with write_aside(folder / "weights.safetensors") as partial, without_quantization(training.model):
        save_weights(training.model, partial, training.classes)
    _save_shapes(training.model, folder / "parts")
    _save_ood(training, folder / "familiarity")
    save_for_drafting(training, training_view(training))
    if training.experiment.stages.place.is_on:
        save_place(train_place(training), folder / PLACE)
    keep_licences(training.experiment, folder / "licences")


def _save_shapes(model: ReportModel, folder: Path) -> None:
    """Save the shape of each transformers part, so that the run restores without its checkpoint."""
    with write_folder(folder, overwrite=True) as partial:
        for name, part in named_parts(model).items():
            if isinstance(part, Shaped) and part.architecture is not None:
                part.architecture.save_pretrained(str(partial / name))
            if isinstance(part, Tokenizing):
                part.tokenizer.save_pretrained(str(partial / name))


def _save_ood(training: Training, folder: Path) -> None:
    """Learn to tell images like the training images from others, and keep it with the run."""
    pictures = TrainingPictures(training.splits["train"].examples)
    test = fit_ood(pictures, seed=training.experiment.seed, patients=pictures.patients)
    if test.reason is not None:
        training.watch.note(f"the run will not tell images of another kind: {test.reason}")
    save_ood(test, folder)


def _prepare(
    experiment: Experiment,
    dataset: Dataset,
    out: Path,
    resumed: ResumedRun,
    start: StartRun | None,
    *,
    watch: TrainingWatch,
    ranks: Ranks,
) -> tuple[Training, WarmStart | None]:
    config_path = out / "config.yaml"
    is_started = (resumed.state == "unfinished" or not ranks.is_first) and config_path.is_file()
    if is_started:
        refuse_other_options(experiment, config_path)
    unproven = None if start is None else start.refuse_leak(dataset)
    plan = plan_training(experiment, dataset, learn_tokenizer=True)
    tokenizer = plan.tokenizer
    assert tokenizer is not None, "it was learned"
    fingerprint = _fingerprint(experiment, dataset, tokenizer, start)
    if resumed.longer is not None and ranks.is_first:
        assert resumed.before is not None, "it was read"
        before = _fingerprint(resumed.before, dataset, tokenizer, start)
        resumed.longer.bring_checkpoints(out, before, fingerprint)
        for sentence in resumed.longer.differences:
            watch.note(sentence)
    if not is_started:  # with a configuration the checkpoints of a lengthened run are there, all of them
        write_text(config_path, to_yaml(experiment))
    refuse_checkpoints_of_others(out / "checkpoints", fingerprint)
    data, classes = experiment.data, CLASSES[experiment.data.label_set]
    context = BuildContext(
        tokenizer,
        data.image_size,
        classes,
        seed=experiment.seed,
        volume_size=data.ct.size,
        priors=data.priors,
    )
    torch.manual_seed(experiment.seed)
    model = experiment.build(context)
    warm_start = None if start is None else start.take(model, experiment, tokenizer)
    model = model.to(default_device())
    if ranks.is_first:
        with write_folder(out / "tokenizer", overwrite=True) as partial:
            save_tokenizer(tokenizer, partial)
    # The first process reads the files, the others its cache.
    refuse_leaks(dataset)
    cache = build_cache(dataset, size=data.image_size, ct=data.ct, progress=watch.images, note=watch.note)
    refuse_same_pixels(dataset, cache)
    if ranks.is_first:
        for line in near_copies(dataset, cache):
            watch.note(line)
    # A resumed training with other pixels is refused.
    fingerprint = f"{fingerprint}-{cache.digest}"
    training = Training(experiment, dataset, out, cache, tokenizer, classes, model, fingerprint, watch, ranks=ranks)
    if experiment.stated_start is not None:
        watch.note(experiment.stated_start)
    for sentence in () if warm_start is None else _stated(warm_start, unproven):
        watch.note(sentence)
    training.open_other = lambda path: _open_other(experiment, tokenizer, path)
    for split in ("train", "val"):
        training.splits[split] = _prepared(training, split)
    return training, warm_start


def _fingerprint(
    experiment: Experiment, dataset: Dataset, tokenizer: PreTrainedTokenizerBase, start: StartRun | None
) -> str:
    """Hash of all that decides a training but for the pixels; checkpoints of another one are refused."""
    return sha256_json(
        {
            "experiment": experiment.model_dump(mode="json"),
            "dataset": dataset.fingerprint(),
            "tokenizer": tokenizer_fingerprint(tokenizer),
            "version": library_versions()["radweave"],
            **({"outside": outside} if (outside := experiment.outside_code()) else {}),
            **({} if start is None else {"start": start.weights_hash}),
        }
    )


def _stated(warm_start: WarmStart, unproven: str | None) -> list[str]:
    """Sentences on the parts that took their weights from a run, on those that did not, and on the data."""
    taken = ", ".join(warm_start.taken)
    return [
        f"weights of a run of {warm_start.method} on {warm_start.dataset}: taken for {taken}",
        *(f"not taken for {part}: {reason}" for part, reason in warm_start.left.items()),
        *([unproven] if unproven else []),
    ]


def _prepared(training: Training, split: Split) -> PreparedSplit:
    """A split of the training's data set, with studies of each mixed data set."""
    experiment, dataset = training.experiment, training.dataset
    prepared = prepare(dataset, split, experiment, training.tokenizer, training.cache, need_text=True)
    named = {name for stage in experiment.named_stages().values() for name in stage.mixture}
    if not prepared.examples or any(not prepared.of({name}).examples for name in named):
        raise no_usable_study(dataset, split)
    if prepared.left_out:
        training.watch.note(f"{split}: {len(prepared.left_out)} studies left out ({_reasons(prepared)})")
    return prepared


def _open_other(
    experiment: Experiment, tokenizer: PreTrainedTokenizerBase, path: Path
) -> tuple[Dataset, PreparedSplit]:
    """The training split of another data set, prepared as this experiment's own."""
    dataset = Dataset.open(path).aimed(experiment.data.target)
    refuse_misfit(experiment, dataset)
    cache = build_cache(dataset, size=experiment.data.image_size, ct=experiment.data.ct)
    return dataset, prepare(dataset, "train", experiment, tokenizer, cache, need_text=True)


def _views(prepared: PreparedSplit) -> dict[str, int]:
    """Number of training images by kind of view."""
    kinds = [VIEW_KINDS[kind] for example in prepared.examples for kind in example.view_ids]
    return {name: kinds.count(name) for name in VIEW_KINDS}


def _card(
    training: Training, preset: str, overrides: tuple[str, ...], steps: dict[str, int], validation: dict[str, Any]
) -> RunCard:
    card, outside = training.dataset.card, training.experiment.outside_code().values()
    return RunCard(
        method=training.experiment.method,
        preset=preset,
        overrides=overrides,
        seed=training.experiment.seed,
        classes=training.classes,
        preprocessing=PREPROCESSING_VERSION,
        trained_steps=steps,
        # A witness drafts from what its memories were fitted to.
        fitted=not training.model.terms
        or (not training.last_stage.learns and training.experiment.writes_untrained)
        or (isinstance(training.model, EvidenceSource) and not training.last_stage.losses),
        starts_from=training.experiment.stated_start,
        validation=validation,
        left_out={split: len(prepared.left_out) for split, prepared in training.splits.items()},
        views=_views(training.splits["train"]),
        memories=rows_of_memories(training.folder),
        cautions=cautions_of(training, steps[training.experiment.report_stage]),
        sources={name: dict(figures) for name, figures in training.model.figures().items()},
        dataset=DatasetFacts(
            name=card.name,
            fingerprint=training.dataset.fingerprint(),
            modality=card.modality,
            target=card.target,
            cleaning=card.cleaning,
        ),
        versions={**library_versions(), **{code["package"]: code["version"] for code in outside if "package" in code}},
        files=hash_files(training.folder),
    )
