"""The tables of a set: scores, tests, honesty rows, evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from radweave.experiments.ablate import PROBE_NOTE, exchanged_parts, progress_notes
from radweave.experiments.bench_results import (
    BEST_ELSE_PRIOR,
    BEST_OTHER_ELSE_PRIOR,
    OWN_ELSE_PRIOR,
    TESTED_FLOORS,
    SetResults,
    SystemScores,
    difference,
    duration,
    mean_std,
    megabytes,
    metrics_to_test,
    on_abnormal,
    percent,
    rate,
    share_of_normal,
    with_interval,
)
from radweave.experiments.bench_results import count as counted
from radweave.experiments.bench_suite import JOINING, MethodCost
from radweave.experiments.bench_terms import UNLEARNED, unequal_terms
from radweave.metrics import Evaluation
from radweave.metrics.catalogue import METRICS, TABLE_METRICS
from radweave.metrics.honesty import InventedRow, MissedRow
from radweave.metrics.result_tables import CHANGED
from radweave.metrics.tables import DASH, TextTable, number

_COLUMNS = [metric for metric in METRICS.values() if metric.in_benchmark]
# METEOR needs Java and has a table of its own.
LANGUAGE = tuple(metric.key for metric in _COLUMNS if metric.clinical is None and metric.key != "METEOR")
CLINICAL = {metric.key: metric.column for metric in _COLUMNS if metric.clinical is not None}
ON_ABNORMAL = {"CIDEr": "CIDEr (abnormal)", "CE_F1": "F1 (abnormal)"}
"""Metric -> its column on the abnormal studies alone, which stands beside CIDEr."""
FLOORS = {
    TESTED_FLOORS[0]: "a floor has no seeds; the report of the training study whose image is nearest in raw pixels",
    TESTED_FLOORS[1]: "a floor has no seeds; the one training report that has the best micro F1 on the training split,"
    " for every study",
    TESTED_FLOORS[2]: "a floor has no seeds; the one training report that is nearest in wording to all others, for"
    " every study",
    **dict.fromkeys(
        (BEST_ELSE_PRIOR, BEST_OTHER_ELSE_PRIOR),
        "where the patient has an earlier study, its report takes the place of the draft; p seeds: Welch's between"
        " trainings",
    ),
    OWN_ELSE_PRIOR: "each row against its own drafts with the prior's report in their place where there is one",
}
HONESTY = {
    "distinct_reports_share": "distinct reports",
    "most_frequent_report_share": "the most frequent one",
    "length_ratio": "length / reference",
    "empty_reports_share": "empty",
    "hallucinated_findings_per_report": "findings invented / report",
    "missed_findings_per_report": "findings missed / report",
    "comparison_without_prior_share": "compares with nothing",
    "left_right_contradiction_share": "left and right at odds",
}


def short_table(results: SetResults) -> TextTable:
    """The main table of a set: a line per method and floor."""
    rows = []
    for method, name in results.printed.items():
        system, costs = results.full[method], results.costs_of(method)
        cells = _short_cells(system)
        parameters = counted(sum(cost.parameters for cost in costs)) if costs else DASH
        distinct = percent(mean_honesty(system, "distinct_reports_share"))
        rows.append((name, str(len(system.evaluations)), *cells, distinct, parameters, training_time(costs)))
    for name, system in results.floors.items():
        rows.append(
            (
                f"floor: {name}",
                DASH,
                *_short_cells(system),
                percent(mean_honesty(system, "distinct_reports_share")),
                DASH,
                DASH,
            )
        )
    head = ("method", "seeds", "findings F1", "macro F1", "CIDEr", *ON_ABNORMAL.values(), "BLEU-4", "distinct")
    notes = (
        *provenance(results),
        "mean ± standard deviation over training seeds; [95 % over test studies, by patient]; protocol full",
        "findings F1: micro, uncertain is negative, No Finding left out; training: CPU time of all stages, one seed"
        " (wall: where that was not noted; updates: where no run trained all its stages in one go); of a row that"
        " averages several runs, all of these together",
    )
    notes += (
        *share_of_normal(results.full),
        *_same_drafts(results),
        *unequal_terms(results.terms, results.printed),
    )
    title = results.suite.kind.title
    return TextTable(f"{title[0].upper()}{title[1:]}", (*head, "parameters", "training"), tuple(rows), notes)


def _short_cells(system: SystemScores) -> tuple[str, ...]:
    cider = mean_std(system, "CIDEr"), *_abnormal_cells(system)
    return with_interval(system, "CE_F1"), mean_std(system, "CE_F1_macro"), *cider, mean_std(system, "BLEU_4")


def _abnormal_cells(system: SystemScores) -> tuple[str, ...]:
    return tuple(on_abnormal(system, metric) for metric in ON_ABNORMAL)


def _same_drafts(results: SetResults) -> tuple[str, ...]:
    """A sentence on utility drafts that two methods have in common."""
    shares = results.identical
    if not shares:
        return ()
    most = max(shares, key=lambda two: shares[two])
    least, largest = percent(min(shares.values())), percent(shares[most])
    return (
        f"utility drafts of two methods, told no prior, are word for word the same on {least} to {largest} of the"
        f" studies (first seed); most: {most[0]} and {most[1]}",
    )


def training_time(costs: Sequence[MethodCost]) -> str:
    """CPU time of the runs behind a draft, all stages; the wall time where that was not noted, or the updates alone."""
    for measure, kind in (("cpu_s", ""), ("train_s", " wall"), ("updates_s", " updates")):
        known = [seconds for cost in costs if (seconds := getattr(cost, measure)) is not None]
        if known and len(known) == len(costs):
            return duration(sum(known)) + kind
    return DASH


def provenance(results: SetResults) -> tuple[str, ...]:
    """Origin of the figures: data, studies, scoring, and missing runs."""
    card, record = results.dataset.card, results.record
    counts = ", ".join(f"{card.counts.get(f'studies_{split}', 0)} {split}" for split in ("train", "val", "test"))
    notes = [f"{card.name}: studies {counts}; data {record['dataset']['fingerprint'][:12]}"]
    notes += progress_notes(record)
    commits = {commit for row in record["rows"] for commit in row.get("commit", ()) if commit}
    notes += [f"trained at commit {', '.join(sorted(commits))}"] if commits else []
    for row in record["rows"]:
        notes += [f"refused: {row['label']}: {row['refused']}"] if row["refused"] else []
        notes += [f"failed: {row['label']}, seed {one['seed']}: {one['reason']}" for one in row["seeds"]["failed"]]
    notes += [f"not here: {method}: {reason}" for method, reason in results.suite.unable.items()]
    notes += [f"the same drafts, one row: {name}" for label, name in results.printed.items() if name != label]
    unlearned = [label for label, terms in results.terms.items() if terms["earlier study"].endswith(UNLEARNED)]
    if unlearned:
        notes.append(f"too few studies with a prior to learn from, drafts are as without: {', '.join(unlearned)}")
    for name, files in results.suite.drafts.items():
        notes += [f"{name}: drafts of another program: {file.stated()}" for file in files]
    return tuple(notes)


def score_tables(results: SetResults) -> list[TextTable]:
    """Language scores under both protocols, and clinical ones."""
    compatible = results.suite.kind.compatible
    protocols = {
        "full": (results.rows(results.full), results.floors),
        compatible: (results.rows(results.compatible), results.compatible_floors),
    }
    tables = []
    for name, (systems, floors) in protocols.items():
        first = next(iter(systems.values())).evaluations[0]
        rules = first.protocol.rules
        notes = [f"{rules.description}; protocol {name} {first.protocol.hash[:8]}"]
        notes += [f"deviation: {text}" for text in rules.deviations if "vocabulary" not in text]
        notes += (*share_of_normal(systems), *unequal_terms(results.terms, results.printed))
        language = _scores(f"Language, protocol {name}", systems, floors, LANGUAGE, LANGUAGE, notes)
        named = {**systems, **{f"floor: {floor}": system for floor, system in floors.items()}}
        rows = tuple((*row, *_abnormal_cells(named[row[0]])) for row in language.rows)
        tables.append(replace(language, columns=(*language.columns, *ON_ABNORMAL.values()), rows=rows))
    meteor = _meteor(results)
    if meteor is not None:
        tables.append(meteor)
    note = [
        "clinical efficacy: findings read by rules in draft and reference; uncertain is negative, No Finding left out"
    ]
    for name, system in results.full.items():
        table = system.evaluations[0].clinical
        if table is not None:
            note.append(
                f"{name}: macro F1 (5+) is over {len(table.frequent)} classes with 5 positives or more in the"
                f" references; its drafts (first seed) ever assert {len(table.asserted)} classes"
            )
    note += unequal_terms(results.terms, results.printed)
    tables.append(
        _scores("Findings", results.rows(results.full), results.floors, tuple(CLINICAL), tuple(CLINICAL.values()), note)
    )
    return tables


def _scores(
    title: str,
    systems: Mapping[str, SystemScores],
    floors: Mapping[str, SystemScores],
    metrics: Sequence[str],
    names: Sequence[str],
    notes: Sequence[str],
) -> TextTable:
    named = {**systems, **{f"floor: {name}": system for name, system in floors.items()}}
    rows = [(name, *(with_interval(system, metric) for metric in metrics)) for name, system in named.items()]
    return TextTable(title, ("method", *names), tuple(rows), tuple(notes))


def _meteor(results: SetResults) -> TextTable | None:
    rows = []
    for row in results.record["rows"]:
        metric = row["metrics"]["METEOR"]
        if metric["mean"] is not None:
            spread = "" if metric["std"] is None else f" ± {metric['std']:.3f}"
            rows.append((row["label"], f"{metric['mean']:.3f}{spread}"))
    if not rows:
        return None
    notes = unequal_terms(results.terms, (label for label, _ in rows))
    return TextTable("METEOR 1.5, protocol full", ("method", "METEOR"), tuple(rows), notes)


def comparison_tables(results: SetResults) -> list[TextTable]:
    """Differences to the reference method and to the floors."""
    metrics = metrics_to_test(results.full)
    methods = [name for name in results.full if name != results.reference]
    unequal = (*share_of_normal(results.full), *unequal_terms(results.terms, results.full))
    single = _tested_once(results)
    tables = []
    if results.to_reference:
        rows = [
            (name, *(difference(results.to_reference.get((name, metric))) for metric in metrics)) for name in methods
        ]
        notes: tuple[str, ...] = (
            "difference of means [95 % over studies]; p studies: resampled by patient, the same draw for both systems;"
            f" Holm: over all {len(results.to_reference)} cells; p seeds: Welch's test between trainings",
            "* a difference is taken to hold where Holm and seeds are both below 0.05",
        )
        notes += (*_untested(results), *single, *unequal)
        tables.append(TextTable(f"Difference to {results.reference}", ("method", *metrics), tuple(rows), notes))
    if results.to_joining:
        cells = results.to_joining
        rows = [
            (name, *(difference(cells.get((name, metric))) for metric in metrics))
            for name in results.full
            if name != JOINING
        ]
        notes = (
            f"below zero {JOINING} is ahead; Holm: over all {len(cells)} cells; p seeds: Welch's between trainings",
            *single,
            *unequal,
        )
        tables.append(TextTable(f"Difference to {JOINING}", ("method", *metrics), tuple(rows), notes))
    if results.to_same_decoding:
        cells = results.to_same_decoding
        compared = dict.fromkeys(name for name, _ in cells)
        rows = [(name, *(difference(cells.get((name, metric))) for metric in metrics)) for name in compared]
        notes = (
            f"of {results.reference} the row that also drafts by its own decoder, or by utility, and that is told as"
            f" much of the prior; Holm: over all {len(cells)} cells; p seeds: Welch's between trainings",
            *single,
            *unequal,
        )
        tables.append(
            TextTable(f"Difference to {results.reference}, {SAME_DECODING}", ("method", *metrics), tuple(rows), notes)
        )
    for floor, tested in results.to_floors.items():
        rows = [(name, *(difference(tested.get((name, metric))) for metric in metrics)) for name in results.full]
        notes = (FLOORS[floor], *_best_copies(results, floor), *single, *unequal)
        tables.append(TextTable(f"Difference to the {floor}", ("method", *metrics), tuple(rows), notes))
    return tables


SAME_DECODING = "same decoding and prior"
COMPARED = {"CE_F1": "findings F1", "new_R": "new R", "changed_F1": "changed F1"}
"""Metrics of the short table of differences, those of which the data have a value -> their names there."""


def short_comparison(results: SetResults) -> TextTable | None:
    """The differences of few metrics with Holm's correction alone; None where nothing is compared."""
    others = {
        results.reference: results.to_reference,
        f"{results.reference}, {SAME_DECODING}": results.to_same_decoding,
        JOINING: results.to_joining,
    }
    columns = {
        f"{name}, to {other}": (cells, metric)
        for metric, name in COMPARED.items()
        for other, cells in others.items()
        if any(known == metric for _, known in cells)
    }
    for floor in (BEST_ELSE_PRIOR, BEST_OTHER_ELSE_PRIOR, OWN_ELSE_PRIOR):
        if floor in results.to_floors:
            columns[f"{COMPARED['CE_F1']}, to the {floor}"] = (results.to_floors[floor], "CE_F1")
    if not columns:
        return None
    rows = [
        (name, *(difference(cells.get((label, metric)), ("Holm",)) for cells, metric in columns.values()))
        for label, name in results.printed.items()
    ]
    notes = (
        "difference of means [95 % over studies]; p after Holm's correction over all metrics and rows of one"
        " comparison; * it and p between trainings are below 0.05",
        *_tested_once(results),
        *unequal_terms(results.terms, results.printed),
    )
    return TextTable("Differences", ("method", *columns), tuple(rows), notes)


def _tested_once(results: SetResults) -> tuple[str, ...]:
    """The rows of one run, whose differences have no test between trainings."""
    alone = [name for name, system in results.full.items() if len(system.evaluations) == 1]
    return (f"no test between trainings, a star is by Holm alone: {', '.join(alone)}",) if alone else ()


def _best_copies(results: SetResults, *floors: str) -> tuple[str, ...]:
    """The methods behind these floors, all if none are named, and how they were chosen."""
    chosen = "the one with the best findings F1 on these very studies, so that the floor is high rather than low"
    best = results.best_else_prior
    return tuple(f"{floor}: {best[floor]}, {chosen}" for floor in floors or best if floor in best)


def _untested(results: SetResults) -> tuple[str, ...]:
    reference = results.full[results.reference].study_ids
    return tuple(
        f"not tested: {method}: its reports are of {len(system.study_ids)} studies, the reference's of {len(reference)}"
        for method, system in results.full.items()
        if system.study_ids != reference
    )


def prior_tables(results: SetResults) -> list[TextTable]:
    """Findings with and without a prior beside copies of the prior's reports, and the changes from the prior."""
    if not results.else_prior:
        return []
    methods, copies = results.rows(results.full), results.copies
    some = next(iter(results.full.values())).evaluations[0].priors
    assert some is not None
    parts = ("CE_with_prior_F1", "CE_without_prior_F1")
    rows = [
        (name, *(with_interval(system, metric) for metric in ("CE_F1", *parts))) for name, system in methods.items()
    ]
    copy = next(iter(copies.values()))
    rows.append(("floor: the prior's report", DASH, with_interval(copy, parts[0]), DASH))
    rows += [(f"floor: {name}, else the prior's report", with_interval(system, "CE_F1"), DASH, DASH)
             for name, system in copies.items()]  # fmt: skip
    head = ("findings F1", "all", *(f"{number} {part.replace('_', ' ')}" for part, number in some.studies.items()))
    notes = (
        "a prior's report is of an earlier study of the same patient, which a reader has; where a floor copies it, it"
        " has the F1 of the copy with a prior, and of the method without",
        *_best_copies(results),
        *unequal_terms(results.terms, results.printed),
    )
    columns = (*(f"{change}_{letter}" for change in CHANGED for letter in ("P", "R")), "changed_F1")
    systems = {**methods, "floor: the prior's report": copy}
    changes = [(name, *(with_interval(system, column) for column in columns)) for name, system in systems.items()]
    counts = ", ".join(f"{change} {number}" for change, number in some.cells.items())
    return [
        TextTable("With and without a prior", head, tuple(rows), notes),
        TextTable(
            "Change from the prior",
            ("method", *(column.replace("_", " ") for column in columns)),
            tuple(changes),
            (
                f"cells (study and finding) in the references: {counts}; docs/evaluation.md says what each means",
                *unequal_terms(results.terms, results.printed),
            ),
        ),
    ]


def honesty_table(results: SetResults) -> TextTable:
    """Rows on faults that n-gram scores do not show."""
    named = {**results.rows(results.full), **{f"floor: {name}": system for name, system in results.floors.items()}}
    rows = [(name, *(number(mean_honesty(system, key), 3) for key in HONESTY)) for name, system in named.items()]
    reference = results.record["reference_honesty"]
    rows.append(("references", *(number(reference.get(key), 3) for key in HONESTY)))
    notes = (
        "means over seeds; docs/evaluation.md says what each row means",
        *unequal_terms(results.terms, results.printed),
    )
    return TextTable("Honesty", ("method", *HONESTY.values()), tuple(rows), notes)


def trust_table(results: SetResults) -> TextTable:
    """Calibration error, and findings that drafts invent or miss."""
    rows = []
    for method, system in results.full.items():
        own = results.evidence.get(method)
        shares = [mean_of(system, read) for read in (_calibration_error, invented_share, missed_share)]
        follows = DASH if own is None else number(_share(own.figures["draft"], own.figures["heads"]), 2)
        rows.append((method, number(shares[0], 3), follows, *map(percent, shares[1:])))
    head = ("method", "calibration error", "draft / heads", "invented", "missed")
    notes = (
        "means over seeds; calibration error: of the probabilities that a draft is chosen by, all findings together,"
        " ten bins (none where a run's probabilities are not calibrated)",
        "invented: of the findings that drafts state, those that the reference does not have, not even as uncertain;"
        " missed: of those that references state, the ones that the draft does not have, not even as uncertain",
        *unequal_terms(results.terms, results.full),
    )
    return TextTable("Trust", head, tuple(rows), notes)


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if whole and part is not None else None


def mean_of(system: SystemScores, read: Callable[[Evaluation], float | None]) -> float | None:
    """Mean of a figure over the seeds' evaluations; None unless all have the figure."""
    known = [value for evaluation in system.evaluations if (value := read(evaluation)) is not None]
    return fmean(known) if len(known) == len(system.evaluations) else None


def _calibration_error(evaluation: Evaluation) -> float | None:
    return None if evaluation.heads is None else evaluation.heads.calibration_error


def invented_share(evaluation: Evaluation) -> float | None:
    """Share of the stated findings that the references do not have; None without any."""
    row = evaluation.honesty.hallucinated_findings_per_report
    return row.share_of_stated_findings if isinstance(row, InventedRow) else None


def missed_share(evaluation: Evaluation) -> float | None:
    """Share of the references' findings that the drafts do not have; None without any."""
    row = evaluation.honesty.missed_findings_per_report
    return row.share_of_written_findings if isinstance(row, MissedRow) else None


def mean_honesty(system: SystemScores, name: str) -> float | None:
    """Mean over the seeds of a row of ``HONESTY``."""
    return mean_of(system, lambda evaluation: evaluation.honesty.rows()[name].value)


def evidence_table(results: SetResults) -> TextTable:
    """Findings in the evidence beside those in the draft."""
    rows = []
    for method, evidence in results.evidence.items():
        figures = evidence.figures
        names = ("heads_ap", "heads", "recalled", "draft", "draft_heads", "draft_recalled")
        cells = [number(figures[name], 3) for name in names]
        cells.insert(4, number(_share(figures["draft"], figures["heads"]), 2))
        counts = f"{figures['per_reference']:.2f} / {figures['per_draft']:.2f}"
        kind = evidence.recalled_kind or DASH
        rows.append((method, *cells, counts, kind, ", ".join(evidence.kinds) or "none"))
    head = ("method", "heads AP", "heads", "recalled", "draft", "draft / heads", "draft ~ heads", "draft ~ recalled")
    notes = (
        "heads AP: micro average precision of the heads over all findings",
        "micro F1 of findings, mean over seeds: heads (from the run's thresholds on; from 0.5 where a draft has none),"
        " recalled text and draft against the reference; then how far the draft says what heads and recalled text say",
        "findings: a reference / a draft; evidence: what a report carries, drawn by 'radweave explain'",
        *unequal_terms(results.terms, results.evidence),
    )
    columns = (*head, "findings", "recalled is", "evidence")
    return TextTable("Evidence", columns, tuple(rows), notes)


def probe_table(record: Mapping[str, Any]) -> TextTable | None:
    """The inputs of every method's decoder: cost of another study's, F1 after it; and losses that do not act."""
    probes = {row["label"]: row["probe"] for row in record["rows"] if row["probe"]}
    rows = []
    notes = [PROBE_NOTE, "F1: findings of the decoder's own greedy drafts, and of those after the exchange"]
    for method, probe in probes.items():
        if "refused" in probe:
            notes.append(f"{method}: {probe['refused']}")
            continue
        losses = [name.removeprefix("loss ") for name in probe["silent"] if name.startswith("loss ")]
        for name, one in exchanged_parts(probe):
            cost, drafts = one["costs"]["another"], one["drafts"]
            interval = "" if cost["low"] is None else f" [{cost['low']:+.4f}, {cost['high']:+.4f}]"
            f1 = (number(probe["f1"], 3), DASH if drafts is None else number(drafts["f1"], 3))
            cells = (f"{cost['mean']:+.4f}{interval}", _carries(name, one, probe), *f1)
            rows.append((method, name.partition(" ")[2], *cells, ", ".join(losses) or DASH))
    head = ("method", "input", "another study's", "carries", "F1", "F1 after", "losses that do not act")
    return TextTable("Probe", head, tuple(rows), tuple(notes)) if probes else None


def _carries(name: str, one: Mapping[str, Any], probe: Mapping[str, Any]) -> str:
    """Yes, covered by other inputs, no, or the reason why a part need not cost anything."""
    if one["silent"]:
        return f"need not: {one['silent']}"
    if name in probe["covered"]:
        return f"covered (alone {one['alone']['mean']:+.4f})"
    return "no" if name in probe["silent"] else "yes"


def cost_table(results: SetResults) -> TextTable:
    """Costs of the runs on this machine."""
    rows = []
    notes = [
        "training and CPU: mean over runs that trained all their stages in one go (whole / all); updates: their"
        " number by the median time of one, without validation, memories and kept features",
        "peak memory: the largest of the training processes; reports/s: batches of 16, after the first; written/s:"
        " studies / time from opening the run to the written file",
        "wall times are of a machine that does other work; runs side by side slow each other",
    ]
    for method, cost in results.costs.items():
        rows.append(
            (
                method,
                counted(cost.parameters),
                counted(cost.trainable),
                counted(cost.trainable_report),
                megabytes(cost.weight_bytes),
                megabytes(cost.memory_bytes) if cost.memory_bytes else DASH,
                duration(cost.train_s),
                duration(cost.cpu_s),
                duration(cost.updates_s),
                f"{cost.whole}/{cost.runs}",
                "/".join(map(str, cost.threads)) or DASH,
                megabytes(cost.peak_memory),
                *((megabytes(cost.peak_device),) if _on_device(results) else ()),
                rate(cost.reports_per_s),
                rate(cost.written_per_s),
            )
        )
    head = ("method", "parameters", "trainable", "in the last stage", "weights", "memories", "training", "CPU")
    device = ("peak on device",) if _on_device(results) else ()
    head = (*head, "updates", "whole", "threads", "peak memory", *device, "reports/s", "written/s")
    return TextTable("Costs", head, tuple(rows), tuple(notes))


def _on_device(results: SetResults) -> bool:
    return any(cost.peak_device for cost in results.costs.values())


def budget_tables(results: SetResults) -> list[TextTable]:
    """Settings equal for all methods, settings that differ, and the stages of each method."""
    settings = {method: cost.settings for method, cost in results.costs.items()}
    if not settings:
        return []
    names = list(next(iter(settings.values())))
    equal = [name for name in names if len({facts[name] for facts in settings.values()}) == 1]
    unequal = [name for name in names if name not in equal]
    some = next(iter(settings.values()))
    counts = results.dataset.card.counts
    notes = [
        f"equal for all: {counts.get('studies_train', 0)} training studies, the splits, seeds 0 to n - 1, "
        + ", ".join(f"{name} {some[name]}" for name in equal),
        "NOT equal: "
        + (", ".join(unequal) or "nothing of the above")
        + "; parameters, updates and time: see Costs and Stages",
    ]
    rows = [(method, *(facts[name] for name in unequal)) for method, facts in settings.items()]
    stages = []
    for method, cost in results.costs.items():
        for stage in cost.stages:
            if stage.updates == 0:
                continue
            losses = ", ".join(name if weight == 1 else f"{weight:g} {name}" for name, weight in stage.losses.items())
            trains = ", ".join(part if how == "full" else f"{part} ({how})" for part, how in stage.trains.items())
            measured = f"{stage.trained_by}/{cost.runs}" if stage.trained_by else "short run"
            pace = f"{rate(stage.studies_per_s)} ({measured})"
            stages.append(
                (
                    f"{method}: {stage.name}",
                    f"{stage.passes:g}",
                    f"{stage.updates:g}",
                    str(stage.batch_size),
                    pace,
                    losses,
                    trains,
                )
            )
    note = (
        "studies/s: median over the updates of the runs that trained the stage themselves (so many of all), or of a"
        " short run from nothing; wall time"
    )
    head = ("stage", "passes", "updates", "batch", "studies/s", "losses", "trains")
    return [
        TextTable("Budget", ("method", *unequal), tuple(rows), tuple(notes)),
        TextTable("Stages", head, tuple(stages), (note,)),
    ]


def paper_table(results: SetResults) -> TextTable | None:
    """Numbers that papers print for the methods: other data, other sizes."""
    papers = {row["label"]: row["paper"] for row in results.record["rows"] if row["paper"]}
    metrics = [
        name for name in TABLE_METRICS if any(name in values for paper in papers.values() for values in paper.values())
    ]
    rows = []
    for method, paper in papers.items():
        system = results.full.get(method)
        if system is not None:
            rows.append((f"{method}: here", *(mean_std(system, metric) for metric in metrics)))
        for source, values in paper.items():
            rows.append((f"{method}: paper, {source}", *(number(values.get(metric), 3) for metric in metrics)))
    if not papers:
        return None
    note = "the papers' lines are of other data, pretrained parts and sizes: they are not to be compared with ours"
    notes = (note, *(share_of_normal(results.full) if "CIDEr" in metrics else ()))
    return TextTable("What the papers print", ("line", *metrics), tuple(rows), notes)


def runs_table(results: SetResults) -> TextTable:
    """Configuration hash, seeds and code states behind every line."""
    rows = []
    for method, cost in results.costs.items():
        seeds = ", ".join(map(str, cost.seeds))
        rows.append((method, cost.config, seeds, str(cost.reused), ", ".join(cost.code), duration(cost.seconds)))
    notes = [f"data {results.record['dataset']['fingerprint']}"]
    for row in results.record["rows"]:
        if row["overrides"]:
            notes.append(f"{row['label']}: {' '.join(row['overrides'])}")
    if results.record["overrides"]:
        notes.append(f"overrides: {' '.join(results.record['overrides'])}")
    states = {code for cost in results.costs.values() for code in cost.code}
    if len(states) > 1:
        notes.append(f"MIND: the runs were trained by {len(states)} states of the source code")
    notes.append(f"versions: {', '.join(f'{name} {text}' for name, text in results.record['versions'].items())}")
    head = ("method", "config", "seeds", "taken over", "code", "training and writing, all runs")
    return TextTable("Runs", head, tuple(rows), tuple(notes))
