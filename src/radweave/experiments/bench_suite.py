"""The sets of the benchmark, and for each a table with one row per method.

A method is a row of an ablation table (``radweave.experiments.ablate`` does the training), in its own preset and
without switches.
"""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from radweave.core.errors import InputError
from radweave.core.json_files import read_json
from radweave.core.study import Modality
from radweave.data.dataset import Dataset
from radweave.engine.estimate import part_sizes
from radweave.engine.restore import restore
from radweave.engine.run_folder import read_card_alone
from radweave.experiments.ablate import AblationRequest, overrides_for, run_parallel
from radweave.experiments.bench_drafts import ForeignDrafts, named_files, read_foreign
from radweave.experiments.bench_terms import OWN, passes
from radweave.experiments.one_run import REUSED, Task
from radweave.methods import load_method, method_names, resolve, usable_methods
from radweave.methods.experiment import Experiment
from radweave.methods.model import ReportModel
from radweave.methods.tables import Paper, Row, Table
from radweave.metrics.catalogue import METRICS
from radweave.nn.decoding import OWN_DECODER
from radweave.phantom.study import PhantomOptions

REFERENCE = "baseline"
JOINING = "weave"
"""A stack of heads and smoothers. Where it takes part, every other system is tested against it too."""
ENSEMBLED = "kernels"
"""The method whose log-odds are averaged with the baseline's, as a row of its own."""
UTILITY = "kind=expected_utility"
"""The option of decoding by which drafts are chosen instead of written: docs/drafting.md."""
PRIOR_ROWS: Mapping[str, str] = {
    "none": "told no prior",
    "report": "told the prior's report",
    "image": "told the prior's image",
    "both": "told the prior",
}
"""Value of ``expected_utility.prior`` -> name of the rows that draft with it."""
UNTOLD = f"{JOINING}, {PRIOR_ROWS['none']}"


@dataclass(frozen=True, slots=True)
class SetKind:
    """A place in the suite. ``phantom`` says how its data are drawn where none are given; None: they must be given.

    ``compatible`` is the scoring protocol that the papers on such data used.
    """

    title: str
    modality: Modality
    compatible: str
    studies: int = 0
    phantom: PhantomOptions | None = None


SETS: Mapping[str, SetKind] = {
    "xray": SetKind(
        "phantom radiographs",
        "xray",
        "r2gen_iu_60",
        600,
        PhantomOptions(prevalence="balanced", turnover="real", image_size=192),
    ),
    "ct": SetKind(
        "phantom CT",
        "ct",
        "hf",
        420,
        PhantomOptions(prevalence="balanced", turnover="real", volume_size=64, slices=32, masks=True),
    ),
    "iu": SetKind("IU X-Ray", "xray", "r2gen_iu_60"),
}
"""The suite. Phantoms are drawn with seed 0; the same options give the same files."""


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """The options of ``radweave bench``.

    ``data`` are dataset folders by set; a phantom set without one is drawn into ``out``. ``sets`` are those that are
    run, ``methods`` none for all. ``overrides`` are key=value, METHOD:key=value, SET:key=value or
    SET:METHOD:key=value; ``precision`` is that of every stage that trains. ``studies`` draws phantoms of another size.
    ``headline_seeds`` go to the sets of ``headline_sets`` and there to ``headline_methods``, none for all. A method
    whose preset drafts by utility, and that trains a decoder, has a row of its own decoder. With
    ``utility`` every run also drafts by expected utility, as a row of its own, and on data with priors once more for
    each of ``prior`` (``PRIOR_ROWS``) that its preset is not told. With ``ensemble``
    so many seeds of the baseline draft as one, and the baseline drafts together with the method without encoder
    (``ENSEMBLED``). With ``pace`` a short run measures what
    runs that were taken over leave open. With ``probe`` each method's first seed is probed. The summary page also goes
    to ``pages``. ``drafts`` are files of other programs, [SET:]NAME=FILE, each name a row beside the methods.
    """

    out: Path
    data: Mapping[str, Path] = field(default_factory=dict)
    sets: tuple[str, ...] = ("xray", "ct")
    methods: tuple[str, ...] = ()
    preset: str = "tiny"
    seeds: int = 3
    headline_seeds: int | None = None
    headline_sets: tuple[str, ...] = ("xray",)
    headline_methods: tuple[str, ...] = ()
    jobs: int = 1
    overrides: tuple[str, ...] = ()
    precision: str | None = None
    studies: Mapping[str, int] = field(default_factory=dict)
    reuse: tuple[Path, ...] = ()
    pages: Path | None = None
    meteor: bool = False
    train: bool = True
    utility: bool = True
    prior: tuple[str, ...] = ()
    ensemble: int = 0
    pace: bool = True
    probe: bool = True
    drafts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SuiteSet:
    """One set as it is run. ``unable`` are the methods that have no configuration for its images, with the reason.

    ``drafts`` are those of other programs, by the name of their row.
    """

    name: str
    kind: SetKind
    request: AblationRequest
    table: Table
    unable: Mapping[str, str]
    drafts: Mapping[str, tuple[ForeignDrafts, ...]] = field(default_factory=dict)


def checked_methods(methods: Sequence[str], field: str = "--methods") -> tuple[str, ...]:
    """The methods that option ``field`` asks for, or all; the reference first.

    Raises:
        InputError: for a name that is no method.
    """
    known = method_names()
    for name in methods:
        if name not in known:
            raise InputError("no such method", field=field, got=name, expected=", ".join(known))
    chosen = dict.fromkeys((REFERENCE, *(methods or usable_methods())))
    return tuple(chosen)


def check_sets(request: BenchRequest) -> None:
    """Refuse sets that are not there or have no data.

    Raises:
        InputError: naming the option.
    """
    for name in (*request.sets, *request.headline_sets):
        if name not in SETS:
            raise InputError("no such set", field="--sets", got=name, expected=", ".join(SETS))
    if request.ensemble == 1:
        raise InputError("an ensemble has several members", field="--ensemble", got=1, expected="2 or more")
    for read in request.prior:
        if read not in PRIOR_ROWS:
            raise InputError("not what a draft may be told", field="--prior", got=read, expected=", ".join(PRIOR_ROWS))
    if not request.sets:
        raise InputError("nothing to run", field="--sets", expected=", ".join(SETS))
    for name in request.sets:
        if SETS[name].phantom is None and name not in request.data:
            raise InputError("this set has no synthetic stand-in; its data must be given", field=f"--{name}")
    named_files(request.drafts, request.sets, SETS)  # refuses other forms


def plan_set(request: BenchRequest, name: str, dataset: Path) -> SuiteSet:
    """The ablation request and the table of one set.

    Raises:
        InputError: if no method can be run on it.
    """
    kind = SETS[name]
    overrides = [*_precisions(request, kind.modality), *overrides_of(name, request.overrides)]
    rows, unable = [], {}
    with_priors = any(study.prior is not None for study in Dataset.open(dataset).studies("test"))
    headline = checked_methods(request.headline_methods, "--headline-methods")
    for method in checked_methods(request.methods):
        preset = preset_for(method, request.preset, kind.modality, overrides)
        if preset is None:
            unable[method] = f"no preset '{request.preset}' of it reads {kind.modality}"
        else:
            rows.append(Row(method, method=method, preset=preset, headline=method in headline, paper=printed(method)))
            experiment = resolve(method, preset, ())
            decoding = experiment.decoding
            by_itself = decoding.kind == "expected_utility"
            label, preset_reads = (method if by_itself else f"{method}, by utility"), decoding.expected_utility.prior
            if by_itself and experiment.named_stages()[experiment.report_stage].epochs:
                own = Row(f"{method}, {OWN}", run_of=method, decoding=(OWN_DECODER,), headline=method in headline)
                rows.append(own)
            if request.utility and not by_itself:
                rows.append(Row(label, run_of=method, decoding=(UTILITY,), headline=method in headline))
            inputs = ("none", *(request.prior if request.utility else ())) if with_priors else ()
            for prior in dict.fromkeys(inputs):
                if prior != preset_reads:
                    options, title = (UTILITY, f"expected_utility.prior={prior}"), f"{label}, {PRIOR_ROWS[prior]}"
                    rows.append(Row(title, run_of=method, decoding=options, headline=method in headline))
    if request.utility and request.ensemble and REFERENCE not in unable:
        rows += _ensembles(request, {row.label for row in rows}, with_priors=with_priors)
    if not rows:
        raise InputError(f"no method can be run on this set: {unable}", field=f"--{name}")
    reference = REFERENCE if REFERENCE not in unable else rows[0].label
    table = Table(
        title=f"Methods on {kind.title}",
        rows=tuple(rows),
        reference=reference,
        metrics=tuple(name for name, metric in METRICS.items() if metric.in_benchmark and name != "CE_F1_macro_5"),
        note="every method in its own preset; what was equal and what was not is in the table of budgets",
    )
    ablation = AblationRequest(
        method=reference,
        dataset=dataset,
        table="bench",
        out=request.out / name,
        preset=request.preset,
        seeds=request.seeds,
        headline_seeds=request.headline_seeds if name in request.headline_sets else None,
        jobs=request.jobs,
        overrides=tuple(overrides),
        meteor=request.meteor,
        own_processes=True,
        reuse=request.reuse,
        probe=request.probe,
    )
    files = named_files(request.drafts, request.sets, SETS).get(name, {})
    drafts = read_foreign(files, Dataset.open(dataset), {row.label for row in rows} | set(unable))
    return SuiteSet(name, kind, ablation, table, unable, drafts)


def _ensembles(request: BenchRequest, known: Collection[str], *, with_priors: bool) -> list[Row]:
    """Rows that average finished runs of the baseline with each other, and with those of another method."""
    rows = []
    for prior in dict.fromkeys(("none", *(request.prior if with_priors else ()))):
        options = (UTILITY, f"expected_utility.prior={prior}")
        end = "" if prior == "none" else f", {PRIOR_ROWS[prior]}"
        label = f"{REFERENCE} with {request.ensemble} encoders, by utility{end}"
        rows.append(Row(label, run_of=REFERENCE, decoding=options, average_seeds=request.ensemble))
        if ENSEMBLED in known:
            label = f"{REFERENCE} and {ENSEMBLED}, by utility{end}"
            rows.append(Row(label, run_of=REFERENCE, decoding=options, average_with=(ENSEMBLED,)))
    return rows


def _precisions(request: BenchRequest, modality: Modality) -> list[str]:
    """``precision`` as overrides: for each method, of those stages of its preset that train."""
    if request.precision is None:
        return []
    return [
        f"{method}:stages.{name}.precision={request.precision}"
        for method in checked_methods(request.methods)
        if (preset := preset_for(method, request.preset, modality, ()))
        for name, stage in resolve(method, preset, ()).named_stages().items()
        if stage.epochs > 0
    ]


def overrides_of(name: str, overrides: Sequence[str]) -> list[str]:
    """The overrides that hold for a set: those for all, and those that begin with its name and a colon."""
    chosen = []
    for override in overrides:
        first, colon, rest = override.partition(":")
        if colon and first in SETS:
            chosen += [rest] if first == name else []
        else:
            chosen.append(override)
    return chosen


def preset_for(method: str, preset: str, modality: Modality, overrides: Sequence[str]) -> str | None:
    """The preset of a method that reads such images: ``preset`` itself, or the one for them ("tiny-ct"); else None."""
    presets = load_method(method).PRESETS
    for name in (preset, f"{preset}-{modality}"):
        if name not in presets:
            continue
        try:
            experiment = resolve(method, name, overrides_for(method, overrides))
        except InputError:
            # The ablation says what is wrong with it, in the table.
            experiment = presets[name]()
        if experiment.data.modality == modality:
            return name
    return None


def printed(method: str) -> Paper:
    """Numbers that papers print for the whole method: rows of any method's tables that train it without a switch."""
    papers: dict[str, dict[str, float]] = {}
    for owner, module in usable_methods().items():
        for table in getattr(module, "TABLES", {}).values():
            for row in table.rows:
                whole = row.ablation in (None, "full") and not (row.overrides or row.needs or row.printed or row.run_of)
                if whole and (row.method or owner) == method:
                    for source, values in row.paper.items():
                        # The first table's number stands: later ones, read off a figure, are rounded.
                        papers[source] = {**values, **papers.get(source, {})}
    return papers


# Settings and costs of a method, read from its runs.
#
# Only whole times count: a run that was resumed, or took a stage from the data set's cache, has no time of its own. The
# stages that such a run trained are in the figures by stage.


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
    runs, here or before. ``settings`` are those of ``settings_of``. None where nothing was measured.
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
    settings: Mapping[str, str]
    seeds: tuple[int, ...]
    config: str
    code: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"given" if name == "settings" else name: value for name, value in asdict(self).items()}


def method_cost(folders: Sequence[Path], scores: Sequence[Mapping[str, Any]], pace: Path) -> MethodCost:
    """The costs over a method's finished runs, from their folders and ``scores.json``.

    ``pace`` is the folder of a short run, if there was one; it fills in what the runs leave open.
    """
    run = restore(folders[0])
    short = read_json(pace / "training.json") if (pace / "scores.json").is_file() else {}
    whole = [record for record in scores if _is_whole(record)]
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
        train_s=_mean([record["train_s"] for record in whole]),
        cpu_s=_mean([record.get("cpu_s") for record in whole]),
        updates_s=_updates_s(stages),
        seconds=sum((record["train_s"] or 0.0) + record["generate_s"] for record in scores),
        threads=tuple(sorted({record["threads"] for record in scores if record.get("threads")})),
        peak_memory=_largest("peak_memory_bytes", (*scores, short)),
        peak_device=_largest("peak_device_bytes", (*scores, short)),
        reports_per_s=_median([record.get("reports_per_s") for record in scores]),
        written_per_s=_median([record["studies"] / record["generate_s"] for record in scores if record["generate_s"]]),
        stages=stages,
        settings=settings_of(run.experiment),
        seeds=tuple(record["seed"] for record in scores),
        config=scores[0]["identity"]["config"],
        code=tuple(dict.fromkeys(record["code"] or "unknown" for record in scores)),
    )


def _updates_s(stages: Sequence[StageCost]) -> float | None:
    trained = [stage for stage in stages if stage.updates > 0]
    if any(stage.studies_per_s is None for stage in trained):
        return None
    return sum(stage.updates * stage.batch_size / stage.studies_per_s for stage in trained if stage.studies_per_s)


def settings_of(experiment: Experiment) -> dict[str, str]:
    """Settings of a configuration by their names in the table of budgets."""
    data, decoding = experiment.data, experiment.decoding
    size = f"{data.image_size} px" if data.modality == "xray" else " x ".join(map(str, data.ct.size or ()))
    words, encoder = dict(experiment.model).get("language_model"), experiment.model.encoder
    return {
        "image": size,
        "views": str(data.max_views if data.modality == "xray" else 1),
        "tokenizer": f"{getattr(data.tokenizer, 'vocab_size', None) or data.tokenizer.kind} tokens",
        "longest report": f"{data.max_tokens} tokens",
        "augmentation": data.augmentation.kind,
        "earlier study": "yes" if experiment.reads_priors(decoding) else "no",
        "passes over the images": passes(experiment),
        "precision": " and ".join(sorted({stage.precision for stage in experiment.named_stages().values()})),
        "decoding": f"{decoding.num_beams} beams, {decoding.max_new_tokens} tokens",
        "vision encoder": _shape(encoder, ("hidden_sizes", "dims", "embed_dim", "depths")),
        "decoder": _shape(words, ("num_layers", "hidden_size", "num_heads")),
    }


def _shape(record: Any, names: Sequence[str]) -> str:
    if record is None:
        return "-"
    facts = [f"{name} {getattr(record, name)}" for name in names if getattr(record, name, None) is not None]
    return ", ".join([str(getattr(record, "kind", type(record).__name__)), *facts])


def _is_whole(scores: Mapping[str, Any]) -> bool:
    from_cache = any(FROM_CACHE in note for note in scores["notes"])
    return scores["train_s"] is not None and not scores["resumed"] and not from_cache


def _stage(name: str, experiment: Experiment, folders: Sequence[Path], short: Path) -> StageCost:
    stage = experiment.named_stages()[name]
    paces = [pace for folder in folders if (pace := _pace(folder / "metrics.jsonl", name)) is not None]
    trained_by = len(paces)
    if not paces:
        measured = _pace(short / "metrics.jsonl", name)
        paces = [] if measured is None else [measured]
    cards = [read_card_alone(folder) for folder in folders]
    return StageCost(
        name=name,
        batch_size=stage.batch_size,
        updates=statistics.fmean(card.trained_steps[name] for card in cards),
        passes=statistics.fmean(len(card.validation[name].after_updates()) for card in cards),
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


# Short runs that measure pace and memory.
#
# Runs that were taken over may have their first stages from a cache, or be from a version that did not note its memory.
# A short run without caches, in a process of its own, gives pace and memory; its weights are not used.


UPDATES = 25


def pace_folder(suite: SuiteSet, method: str) -> Path:
    return suite.request.out / "pace" / method


def lacks_pace(cost: MethodCost) -> bool:
    """True where the runs leave pace or memory unknown."""
    unknown = any(stage.studies_per_s is None for stage in cost.stages if stage.updates > 0)
    return unknown or (cost.peak_memory is None and cost.peak_device is None)


def measure_pace(
    suite: SuiteSet, tasks: Sequence[Task], costs: Mapping[str, MethodCost], say: Callable[[str], None]
) -> bool:
    """Do the short runs that are missing; return whether there is something new."""
    first = {task.label: task for task in reversed(tasks)}
    waiting = [
        pace_task(first[method], pace_folder(suite, method))
        for method, cost in costs.items()
        if method in first and lacks_pace(cost) and not (pace_folder(suite, method) / "scores.json").is_file()
    ]
    for task in waiting:
        # One left over from before would go on with its first updates done.
        shutil.rmtree(task.path, ignore_errors=True)
        say(f"{suite.name}: {task.label}: pace and memory, {UPDATES} updates a stage")
    run_parallel(
        waiting,
        1,
        lambda task, scores: None,
        lambda task, reason: say(f"{suite.name}: {task.label}: pace not measured: {reason}"),
    )
    return bool(waiting)


def pace_task(task: Task, folder: Path) -> Task:
    """The task, cut short and with nothing taken from caches of stages."""
    stages = [name for name, stage in task.experiment().named_stages().items() if stage.epochs and stage.max_steps != 0]
    short = [text for name in stages for text in (f"stages.{name}.max_steps={UPDATES}", f"stages.{name}.select=last")]
    overrides = (*task.overrides, "data.keep_stages=false", *short)
    return replace(task, overrides=overrides, folder=str(folder.resolve()), probe=False)
