"""One run of an ablation: train, write the reports of the test split, score them, probe. Every step resumes.

RUNS/<row>/seed-<n>/   a run folder, with predictions.jsonl, scores.json and the folder probe beside

python -m radweave.experiments.one_run TASK.json       the process of a parallel ablation; exit 3 if stopped
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from radweave.core.config import from_yaml
from radweave.core.errors import InputError
from radweave.core.json_files import read_json, write_json
from radweave.core.provenance import code_hash, commit
from radweave.core.stopping import StoppedError
from radweave.core.storage import sha256_json, write_folder
from radweave.data.dataset import Dataset
from radweave.engine.averaged import averaged_drafting
from radweave.engine.loop import Watch
from radweave.engine.restore import restore
from radweave.engine.run_folder import read_card_alone
from radweave.engine.stages import TrainingWatch
from radweave.engine.train import train
from radweave.experiments.probe import IMPLEMENTATION as PROBING
from radweave.experiments.probe import probe, write_page
from radweave.inference.bulk import generate_split
from radweave.inference.predictor import Predictor
from radweave.labels import LABELER_OF, Labeler, get_labeler
from radweave.methods import resolve
from radweave.methods.experiment import Experiment
from radweave.metrics import Evaluation, Options, evaluate_pairs, read_pairs
from radweave.metrics.catalogue import MAIN_METRICS, METRICS, SHORT_METRICS, TABLE_METRICS
from radweave.metrics.evaluate import MODEL, score_systems
from radweave.metrics.protocols import IMPLEMENTATION
from radweave.metrics.records import number_or_none
from radweave.metrics.statistics import Statistic

FORMAT = "radweave-ablation-run"
STOPPED = 3
BATCH_SIZE = 16
PROBE = "probe"

_SAME = 1e-9
"""Largest difference of scores that count as equal."""


@dataclass(frozen=True, slots=True)
class Task:
    """A row of a table at one seed. ``overrides`` includes the seed.

    With ``run``, the folder of a finished run, nothing is trained. That run writes the reports, with the settings
    ``at_test`` and the options ``decoding`` changed, of ``test_dataset`` or else ``dataset``. ``seed`` then numbers
    the random draws of the row. ``averaged`` are folders of finished runs whose log-odds are averaged with its own
    (``radweave.engine.averaged``). With ``probe`` the finished run is probed (``radweave.experiments.probe``).
    """

    label: str
    method: str
    preset: str
    overrides: tuple[str, ...]
    seed: int
    dataset: str
    folder: str
    protocol: str = "full"
    meteor: bool = False
    run: str = ""
    at_test: tuple[str, ...] = ()
    decoding: tuple[str, ...] = ()
    averaged: tuple[str, ...] = ()
    test_dataset: str = ""
    probe: bool = False

    @property
    def path(self) -> Path:
        return Path(self.folder)

    @property
    def run_path(self) -> Path:
        """Folder of the trained run."""
        return Path(self.run or self.folder)

    @property
    def tested(self) -> Path:
        """The data set whose reports are written."""
        return Path(self.test_dataset or self.dataset)

    def experiment(self) -> Experiment:
        return resolve(self.method, self.preset, self.overrides)


def config_hash(experiment: Experiment) -> str:
    """Hash of an experiment without its seed: one per row."""
    return sha256_json({**experiment.model_dump(mode="json"), "seed": None})[:12]


def finished_scores(task: Task, experiment: Experiment, dataset: Dataset) -> dict[str, Any] | None:
    """The scores of a finished run, if they are of this configuration, data, weights and way of scoring."""
    path = task.path / "scores.json"
    runs = (task.run_path, *map(Path, task.averaged))
    if not path.is_file() or not all((run / "run.json").is_file() for run in runs):
        return None
    scores: dict[str, Any] = read_json(path)
    return scores if scores.get("identity") == identity(task, experiment, dataset) else None


def identity(task: Task, experiment: Experiment, dataset: Dataset) -> dict[str, Any]:
    """Identity of the scores of a task whose folder holds a finished run; other scores are not the task's."""
    labeler = get_labeler(LABELER_OF[dataset.card.modality])
    return {
        "config": config_hash(experiment),
        "seed": experiment.seed,
        "dataset": dataset.fingerprint(),
        "weights": read_card_alone(task.run_path).files["weights.safetensors"],
        **(_reported(task) if task.run else {}),
        "protocol": task.protocol,
        "implementation": IMPLEMENTATION,
        "labeler": f"{labeler.name} {labeler.version}",
        "meteor": task.meteor,
    }


def _reported(task: Task) -> dict[str, Any]:
    """Settings that decide the reports of a run, apart from its weights."""
    tested = Dataset.open(task.tested).fingerprint()
    averaged = [read_card_alone(Path(folder)).files["weights.safetensors"] for folder in task.averaged]
    return {
        "at_test": list(task.at_test),
        "decoding": list(task.decoding),
        "tested": tested,
        **({"averaged": averaged} if averaged else {}),
    }


def run_task(task: Task, watch: TrainingWatch | None = None, *, own_process: bool = False) -> dict[str, Any]:
    """Complete the missing steps of a run and return its scores.

    With ``own_process`` the scores include the peak memory of the process.

    Raises:
        InputError: for a configuration that cannot be trained, or a folder that holds another run.
        StoppedError: after SIGTERM or SIGINT while training, when a checkpoint was written.
    """
    experiment = task.experiment()
    dataset = Dataset.open(Path(task.dataset))
    _refuse_other_run(task, experiment, dataset)
    scores = finished_scores(task, experiment, dataset)
    if scores is None:
        scores = _trained_scores(task, experiment, dataset, watch or TrainingWatch(), own_process=own_process)
    if lacks_probe(task, dataset):
        _write_probe(task, dataset)
    return scores


def _trained_scores(
    task: Task, experiment: Experiment, dataset: Dataset, watch: TrainingWatch, *, own_process: bool
) -> dict[str, Any]:
    """Train what is missing, write the reports and score them."""
    training = _train(task, watch, own_process=own_process)
    started = time.perf_counter()
    run = restore(task.run_path)
    # A row drafts as its preset says: the default of calibrated runs has rows of its own.
    predictor = Predictor.of(run, decoding=(f"kind={run.experiment.decoding.kind}", *task.decoding))
    if task.averaged:
        others = [restore(Path(folder)) for folder in task.averaged]
        predictor = replace(predictor, drafting=averaged_drafting([run, *others], dataset))
    predictions = task.path / "predictions.jsonl"
    pace = _Pace()
    result = generate_split(
        run,
        predictor,
        task.tested,
        "test",
        predictions,
        batch_size=BATCH_SIZE,
        overwrite=True,
        progress=pace.count,
        at_test=task.at_test,
    )
    generate_s = time.perf_counter() - started
    scores = {
        "format": FORMAT,
        "version": 1,
        **{name: getattr(task, name) for name in ("label", "method", "preset", "overrides", "seed")},
        "identity": identity(task, experiment, dataset),
        **_score(task, get_labeler(LABELER_OF[dataset.card.modality])),
        "left_out": len(result.left_out),
        "trained_steps": run.card.trained_steps,
        "versions": run.card.versions,
        "generate_s": round(generate_s, 2),
        "reports_per_s": pace.per_s(),
        **training,
    }
    write_json(task.path / "scores.json", scores)
    # Checkpoints are for unfinished runs only, and a table has many runs.
    shutil.rmtree(task.path / "checkpoints", ignore_errors=True)
    return scores


def lacks_probe(task: Task, dataset: Dataset) -> bool:
    """True for a run that is to be probed and was not."""
    return task.probe and known_probe(task, dataset) is None


def known_probe(task: Task, dataset: Dataset) -> dict[str, Any] | None:
    """The figures of a run's probe, if they are of its weights, settings, data and way of probing; or why it has none.

    ``dataset`` is that of the training.
    """
    path = task.path / PROBE / "probe.json"
    if not path.is_file() or not (task.run_path / "run.json").is_file():
        return None
    record: dict[str, Any] = read_json(path)
    return record if _probe_identity(task, dataset).items() <= record.items() else None


def _probe_identity(task: Task, dataset: Dataset) -> dict[str, Any]:
    weights = read_card_alone(task.run_path).files["weights.safetensors"]
    tested = (Dataset.open(task.tested) if task.test_dataset else dataset).fingerprint()
    return {"weights": weights, "data": tested, "at_test": list(task.at_test), "implementation": PROBING}


def _write_probe(task: Task, dataset: Dataset) -> None:
    """Probe a finished run; the reason takes the place of figures where it has no decoder or too few reports."""
    folder = task.path / PROBE
    try:
        result = probe(restore(task.run_path), task.tested, at_test=task.at_test)
    except InputError as error:
        with write_folder(folder, overwrite=True) as partial:
            write_json(partial / "probe.json", {**_probe_identity(task, dataset), "refused": error.reason})
    else:
        write_page(result, folder, overwrite=True)


def _refuse_other_run(task: Task, experiment: Experiment, dataset: Dataset) -> None:
    config = task.run_path / "config.yaml"
    if config.is_file() and from_yaml(type(experiment), config) != experiment:
        raise InputError("holds a run of other options; give another --out", file=task.path)
    finished = (task.run_path / "run.json").is_file()
    if finished and read_card_alone(task.run_path).dataset.fingerprint != dataset.fingerprint():
        raise InputError("holds a run that was trained on other data; give another --out", file=task.path)


class _Pace:
    """Reports per second, without the time up to the end of the first batch."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def count(self, done: int, total: int) -> None:
        self._times.append(time.perf_counter())

    def per_s(self) -> float | None:
        """None with a single batch."""
        count = len(self._times) - BATCH_SIZE
        return None if count <= 0 else round(count / (self._times[-1] - self._times[BATCH_SIZE - 1]), 2)


def _train(task: Task, watch: TrainingWatch, *, own_process: bool) -> dict[str, Any]:
    """Train or resume; return duration and memory. For a finished run these are the figures of its last training."""
    if task.run:
        return _trained_before(task)
    record = task.path / "training.json"
    if (task.path / "run.json").is_file():
        return read_json(record) if record.is_file() else {"train_s": None, "resumed": True, "notes": [], "code": None}
    resumed = (task.path / "checkpoints").is_dir()
    notes: list[str] = []
    started, cpu = time.perf_counter(), time.process_time()
    train(
        task.method,
        Path(task.dataset),
        task.path,
        preset=task.preset,
        overrides=task.overrides,
        resume=True,
        watch=_noting(watch, notes),
    )
    figures = {
        "train_s": round(time.perf_counter() - started, 2),
        "cpu_s": round(time.process_time() - cpu, 2),
        **(peak_memory() if own_process else {}),
        "resumed": resumed,
        "notes": notes,
        "threads": torch.get_num_threads(),
        "code": code_hash()[:12],
        "commit": commit(),
    }
    write_json(record, figures)
    return figures


def _trained_before(task: Task) -> dict[str, Any]:
    """The figures of a row without training.

    Raises:
        InputError: if the run of the row is not finished.
    """
    for path in (task.run_path, *map(Path, task.averaged)):
        if not (path / "run.json").is_file():
            raise InputError("the run that reports again is not finished", file=path)
    record = task.run_path / "training.json"
    code = read_json(record)["code"] if record.is_file() else None
    return {"train_s": None, "resumed": False, "notes": [], "code": code}


def peak_memory() -> dict[str, int]:
    """The peak of this process's memory, and of torch's memory on a CUDA device; unknown peaks are left out."""
    peaks = {}
    status = Path("/proc/self/status")
    if status.is_file():
        # Not getrusage's figure: it begins with the peak of the process that started this one.
        peak = re.search(r"^VmHWM:\s+(\d+) kB", status.read_text(), re.MULTILINE)
        if peak:
            peaks["peak_memory_bytes"] = 1024 * int(peak[1])
    if torch.cuda.is_available():
        peaks["peak_device_bytes"] = torch.cuda.max_memory_allocated()
    return peaks


def _noting(watch: TrainingWatch, notes: list[str]) -> TrainingWatch:
    def note(text: str) -> None:
        notes.append(text)
        watch.note(text)

    return replace(watch, note=note)


def _score(task: Task, labeler: Labeler) -> dict[str, Any]:
    """Metrics of the model and of the floors, by one program."""
    pairs = read_pairs(task.path / "predictions.jsonl", skip_invalid=True).pairs
    systems = score_systems(pairs, labeler, task.protocol, resamples=0)
    model = systems.pop(MODEL)
    metrics = summary(model)
    honesty = model.honesty.rows()
    if task.meteor:
        options = Options(meteor=True, floors=False, resamples=0)
        metrics["METEOR"] = evaluate_pairs(pairs, task.protocol, options=options).corpus["METEOR"].value
    return {
        "studies": len(pairs),
        "scoring": {"name": model.protocol.name, "hash": model.protocol.hash, "labeler": labeler.name},
        "metrics": metrics,
        "clinical": {key.name: number_or_none(value.corpus()) for key, value in model.clinical_statistics.items()},
        "honesty": {name: row.value for name, row in honesty.items()},
        "reference_honesty": {name: row.of_references for name, row in honesty.items()},
        "floors": {name: summary(floor) for name, floor in systems.items()},
    }


def summary(evaluation: Evaluation) -> dict[str, float | None]:
    """The metrics that tables name; None where one is undefined or was not computed."""
    language = {name: evaluation.corpus[name].value for name in TABLE_METRICS if name in evaluation.corpus}
    statistics = named_statistics(evaluation).items()
    return language | {
        name: number_or_none(statistic.corpus()) for name, statistic in statistics if name not in language
    }


def same_scores(computed: Mapping[str, float | None], noted: Mapping[str, float | None]) -> bool:
    """True if the computed scores equal the recorded ones."""
    for metric in {*MAIN_METRICS, *SHORT_METRICS}:
        new, old = computed.get(metric), noted.get(metric)
        if new is None or old is None:
            if new is not old:
                return False
        elif abs(new - old) > _SAME:
            return False
    return True


def named_statistics(evaluation: Evaluation) -> dict[str, Statistic]:
    """Statistics of the metrics that tables name and of those beside priors, without those that were not computed."""
    statistics = {
        name: METRICS[name].statistic(evaluation.statistics, evaluation.clinical_statistics) for name in TABLE_METRICS
    }
    known = {name: statistic for name, statistic in statistics.items() if statistic is not None}
    return {**known, **evaluation.prior_statistics}


def stops_without_parent(parent: int) -> TrainingWatch:
    """A watch that asks its own process to stop (SIGTERM, so that it writes a checkpoint) once the parent is gone."""

    def step(number: int, total: int, figures: dict[str, float]) -> None:
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)

    return TrainingWatch(stage=lambda name: Watch(step=step))


def main(arguments: list[str]) -> int:
    """Run the task of a JSON file; the reason of a failure is the last line on stderr."""
    record = read_json(Path(arguments[0]))
    lists = {name: tuple(record["task"][name]) for name in ("overrides", "at_test", "decoding", "averaged")}
    task = Task(**{**record["task"], **lists})
    try:
        run_task(task, stops_without_parent(record["parent"]), own_process=True)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except StoppedError:
        return STOPPED
    return 0


# Reuse of finished runs.
#
# A run is taken over if method, configuration (field by field), seed, the data's fingerprint and the preparation of
# images are equal, its files have their hashes, and this version can open its model. Its scores are used if they are of
# these weights, this way of scoring and these predictions; else they are computed again. The state of the source code
# may differ; the tables report it.

REUSED = "reused.json"
_LEFT_BEHIND = (".*", "checkpoints", "task.json", "log.txt", "failure.txt", REUSED)


@dataclass(slots=True)
class Reused:
    """Number of runs taken over, and reasons why others of the same method, seed and data were not."""

    taken: int = 0
    refused: list[str] = field(default_factory=list)


def take_over(tasks: Sequence[Task], dataset: Dataset, folders: Sequence[Path]) -> Reused:
    """Link finished runs under ``folders`` into the folders of their tasks.

    Raises:
        InputError: if the run folders cannot be written.
    """
    known = _runs_under(folders)
    fingerprint = dataset.fingerprint()
    result = Reused()
    for task in tasks:
        if task.run or (task.path / "run.json").is_file() or (task.path / "checkpoints").is_dir():
            continue
        for folder in known.get((task.method, task.seed, fingerprint), ()):
            reason = _difference(folder, task)
            if reason is None:
                _copy(folder, task, dataset)
                result.taken += 1
                break
            result.refused.append(f"{task.method}, seed {task.seed}, {folder.parent.name}: {reason}")
    return result


def _runs_under(folders: Sequence[Path]) -> dict[tuple[str, int, str], list[Path]]:
    """(method, seed, data fingerprint) -> run folders."""
    runs: dict[tuple[str, int, str], list[Path]] = {}
    for top in folders:
        for path in sorted(top.rglob("run.json")):
            try:
                card = read_json(path)
                key = (str(card["method"]), int(card["seed"]), str(card["dataset"]["fingerprint"]))
            except (InputError, KeyError, TypeError, ValueError):  # a file of that name that is something else
                continue
            runs.setdefault(key, []).append(path.parent)
    return runs


def _difference(folder: Path, task: Task) -> str | None:
    """The reason against using a run for a task; None if it is the task's and can be opened."""
    experiment = task.experiment()
    try:
        existing = from_yaml(type(experiment), folder / "config.yaml")
        if existing != experiment:
            wanted, actual = experiment.model_dump(mode="json"), existing.model_dump(mode="json")
            return "another configuration: " + ", ".join(_different(wanted, actual))
        run = restore(folder)
    except InputError as error:
        return error.reason
    return None if run.card.is_trained else "was not trained"


def _different(wanted: object, actual: object, path: str = "") -> list[str]:
    """The names of fields that differ."""
    if not isinstance(wanted, dict) or not isinstance(actual, dict):
        return [] if wanted == actual else [path]
    names = dict.fromkeys((*wanted, *actual))
    return [
        field for name in names for field in _different(wanted.get(name), actual.get(name), f"{path}.{name}".strip("."))
    ]


def _copy(folder: Path, task: Task, dataset: Dataset) -> None:
    with write_folder(task.path, overwrite=True) as partial:
        shutil.copytree(
            folder, partial, copy_function=link, ignore=shutil.ignore_patterns(*_LEFT_BEHIND), dirs_exist_ok=True
        )
        write_json(partial / REUSED, {"from": folder.parent.name})
    path = task.path / "scores.json"
    if not path.is_file():
        return
    scores = read_json(path)
    expected = identity(task, task.experiment(), dataset)
    # The configuration was found equal field by field; the hash may be of a version with other fields.
    if {**scores.get("identity", {}), "config": expected["config"]} == expected and _are_of_the_predictions(
        task, dataset, scores
    ):
        write_json(path, {**scores, "identity": expected})
    else:
        path.unlink()


def _are_of_the_predictions(task: Task, dataset: Dataset, scores: dict[str, Any]) -> bool:
    labeler = get_labeler(LABELER_OF[dataset.card.modality])
    options = Options(meteor=False, floors=False, resamples=0)
    try:
        pairs = read_pairs(task.path / "predictions.jsonl", skip_invalid=True).pairs
        computed = summary(evaluate_pairs(pairs, task.protocol, labeler=labeler, options=options))
    except InputError:  # no predictions, or none that can be read
        return False
    return same_scores(computed, scores["metrics"])


def link(source: str, destination: str) -> None:
    """A hard link where the file system can: files of a run are never changed in place, only replaced."""
    try:
        os.link(source, destination)
    except OSError:
        shutil.copyfile(source, destination)
