"""What a method was given and what it cost: read from its runs, never worked out from what it should be.

Times count where they are whole: a run that went on after a stop, or took a stage from the data set's cache, has no
time of its own. What such a run did train is in the figures by stage.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radweave.ablate.reuse import REUSED
from radweave.base.json_files import read_json
from radweave.contract.experiment import Experiment
from radweave.contract.model import ReportModel
from radweave.estimate import part_sizes
from radweave.runs.folder import read_card_alone
from radweave.runs.restore import restore

FROM_CACHE = "is taken from the data set's cache"


@dataclass(frozen=True, slots=True)
class StageCost:
    """A stage over the seeds: passes over the training split and updates (of a kept stage too), which parts train how,
    the loss weights, and the median pace of the ``trained_by`` runs that trained it themselves; of a short run if none.
    """

    name: str
    batch_size: int
    updates: float
    passes: float
    trains: Mapping[str, str]
    losses: Mapping[str, float]
    studies_per_s: float | None
    trained_by: int


@dataclass(frozen=True, slots=True)
class MethodCost:
    """The costs of a method on a data set.

    ``parameters`` of the whole model; ``trainable`` those that train in some stage; ``trainable_report`` in the last.
    Bytes on disk of weights and of memories. ``train_s``, ``cpu_s``: mean over the ``whole`` runs that trained
    everything themselves; ``updates_s``: the updates of all stages by their median pace. ``peak_memory`` is the largest
    of the runs, ``reports_per_s`` and ``written_per_s`` are medians. ``seconds`` adds up all that was spent on these
    runs, here or before. None where nothing was measured.
    """

    runs: int
    reused: int
    whole: int
    parameters: int
    trainable: int
    trainable_report: int
    weight_bytes: int
    memory_bytes: int
    train_s: float | None
    cpu_s: float | None
    updates_s: float | None
    seconds: float
    threads: tuple[int, ...]
    peak_memory: int | None
    peak_device: int | None
    reports_per_s: float | None
    written_per_s: float | None
    stages: tuple[StageCost, ...]
    given: Mapping[str, str]
    seeds: tuple[int, ...]
    config: str
    code: tuple[str, ...]


def method_cost(folders: Sequence[Path], scores: Sequence[Mapping[str, Any]], pace: Path) -> MethodCost:
    """The costs over a method's finished runs, from their folders and ``scores.json``.

    ``pace`` is the folder of a short run, if there was one; it fills in what the runs leave open.
    """
    run = restore(folders[0])
    short = read_json(pace / "training.json") if (pace / "scores.json").is_file() else {}
    whole = [found for found in scores if _is_whole(found)]
    stages = tuple(_stage(name, run.experiment, folders, pace) for name in run.experiment.named_stages())
    trained = [run.experiment.named_stages()[stage.name].finetune for stage in stages if stage.updates > 0]
    return MethodCost(
        runs=len(folders),
        reused=sum((folder / REUSED).is_file() for folder in folders),
        whole=len(whole),
        parameters=sum(parameter.numel() for parameter in run.model.parameters()),
        trainable=_trainable(run.model, trained),
        trainable_report=_trainable(run.model, trained[-1:]),
        weight_bytes=(folders[0] / "weights.safetensors").stat().st_size,
        memory_bytes=sum(path.stat().st_size for path in (folders[0] / "memories").rglob("*") if path.is_file()),
        train_s=_mean([found["train_s"] for found in whole]),
        cpu_s=_mean([found.get("cpu_s") for found in whole]),
        updates_s=_updates_s(stages),
        seconds=sum((found["train_s"] or 0.0) + found["generate_s"] for found in scores),
        threads=tuple(sorted({found["threads"] for found in scores if found.get("threads")})),
        peak_memory=_largest("peak_memory_bytes", (*scores, short)),
        peak_device=_largest("peak_device_bytes", (*scores, short)),
        reports_per_s=_median([found.get("reports_per_s") for found in scores]),
        written_per_s=_median([found["studies"] / found["generate_s"] for found in scores if found["generate_s"]]),
        stages=stages,
        given=given(run.experiment),
        seeds=tuple(found["seed"] for found in scores),
        config=scores[0]["identity"]["config"],
        code=tuple(dict.fromkeys(found["code"] or "unknown" for found in scores)),
    )


def _updates_s(stages: Sequence[StageCost]) -> float | None:
    trained = [stage for stage in stages if stage.updates > 0]
    if any(stage.studies_per_s is None for stage in trained):
        return None
    return sum(stage.updates * stage.batch_size / stage.studies_per_s for stage in trained if stage.studies_per_s)


def given(experiment: Experiment) -> dict[str, str]:
    """What a configuration gives a method, by the names that the table of budgets uses."""
    data, decoding = experiment.data, experiment.decoding
    size = f"{data.image_size} px" if data.modality == "xray" else " x ".join(map(str, data.ct.size or ()))
    words, encoder = dict(experiment.model).get("language_model"), experiment.model.encoder
    return {
        "image": size,
        "views": str(data.max_views if data.modality == "xray" else 1),
        "tokenizer": f"{getattr(data.tokenizer, 'vocab_size', None) or data.tokenizer.kind} tokens",
        "longest report": f"{data.max_tokens} tokens",
        "augmentation": data.augmentation.kind,
        "earlier study": "yes" if data.priors else "no",
        "passes over the images": _passes(experiment),
        "precision": " and ".join(sorted({stage.precision for stage in experiment.named_stages().values()})),
        "decoding": f"{decoding.num_beams} beams, {decoding.max_new_tokens} tokens",
        "vision encoder": _shape(encoder, ("hidden_sizes", "dims", "embed_dim", "depths")),
        "decoder": _shape(words, ("num_layers", "hidden_size", "num_heads")),
    }


def _passes(experiment: Experiment) -> str:
    """Passes over the training studies that taught the encoder before reports, and those that taught reports."""
    stages = experiment.named_stages()
    encoder = next(name for name, record in experiment.model if record is experiment.model.encoder)
    before = [stage.epochs for name, stage in stages.items() if name != "report" and encoder in stage.trained]
    return f"{sum(before)} for the encoder, {stages['report'].epochs} for reports"


def _shape(record: Any, names: Sequence[str]) -> str:
    if record is None:
        return "-"
    facts = [f"{name} {getattr(record, name)}" for name in names if getattr(record, name, None) is not None]
    return ", ".join([str(getattr(record, "kind", type(record).__name__)), *facts])


def _is_whole(scores: Mapping[str, Any]) -> bool:
    kept = any(FROM_CACHE in note for note in scores["notes"])
    return scores["train_s"] is not None and not scores["resumed"] and not kept


def _stage(name: str, experiment: Experiment, folders: Sequence[Path], short: Path) -> StageCost:
    stage = experiment.named_stages()[name]
    paces = [pace for folder in folders if (pace := _pace(folder / "metrics.jsonl", name)) is not None]
    trained_by = len(paces)
    if not paces:
        found = _pace(short / "metrics.jsonl", name)
        paces = [] if found is None else [found]
    cards = [read_card_alone(folder) for folder in folders]
    return StageCost(
        name=name,
        batch_size=stage.batch_size,
        updates=statistics.fmean(card.trained_steps[name] for card in cards),
        passes=statistics.fmean(len(card.validation[name].epochs) for card in cards),
        trains=stage.trained,
        losses=stage.losses,
        studies_per_s=statistics.median(paces) if paces else None,
        trained_by=trained_by,
    )


def _pace(metrics: Path, stage: str) -> float | None:
    """Median studies a second over the updates of a stage; None if this run did not train it."""
    paces = []
    for line in metrics.read_text(encoding="utf-8").splitlines() if metrics.is_file() else ():
        row = json.loads(line)
        if row["stage"] == stage and "studies_per_s" in row:
            paces.append(row["studies_per_s"])
    return statistics.median(paces) if paces else None


def _trainable(model: ReportModel, stages: Sequence[dict[str, Any]]) -> int:
    """Parameters that train in at least one of the stages."""
    trained: set[int] = set()
    for finetune in stages:
        part_sizes(model, finetune)
        trained |= {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    return sum(parameter.numel() for parameter in model.parameters() if id(parameter) in trained)


def _largest(name: str, records: Sequence[Mapping[str, Any]]) -> int | None:
    return max((record[name] for record in records if record.get(name)), default=None)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
