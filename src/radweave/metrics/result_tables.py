"""Tables of an evaluation and of a comparison, from their JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from radweave.metrics.abnormal import FINDINGS
from radweave.metrics.catalogue import FURTHER_METRICS, METRICS, SHORT_METRICS, SUITES, SuiteName
from radweave.metrics.clinical import AVERAGES
from radweave.metrics.floors import floor_title
from radweave.metrics.summary import MEANING
from radweave.metrics.tables import DASH, TextTable, heads_table, number, score_cell

_GROUPS = {
    "all": "all",
    "without_no_finding": "without No Finding",
    "chexpert5": "CheXpert-5",
    "frequent": "5 positives or more",
}
CHANGED = ("new", "resolved", "worse", "better")
"""The changes of which precision and recall are shown."""
_PRF = ("precision", "recall", "f1")

Result = Mapping[str, Any]


def result_tables(runs: Mapping[str, Result]) -> list[TextTable]:
    """All tables of one or several runs (name -> evaluation JSON, optionally with ``beside``)."""
    tables = [*summary_tables(runs), language_table(runs)]
    for name, result in runs.items():
        suffix = f" - {name}" if len(runs) > 1 else ""
        if result["floors"]:
            tables.append(floor_table(result, suffix))
        if "priors" in result:
            tables.extend(prior_tables(result, suffix))
        if "sections" in result:
            tables.append(_by_section(result, suffix))
    tables.append(_honesty(runs))
    tables.extend(
        _abnormal(result, f" - {name}" if len(runs) > 1 else "")
        for name, result in runs.items()
        if "abnormal" in result and result["abnormal"]["studies"]
    )
    for name, result in runs.items():
        suffix = f" - {name}" if len(runs) > 1 else ""
        if "policies" in result["clinical"]:
            tables.extend([_clinical(result, suffix), _per_class(result, suffix)])
        if "heads" in result:
            tables.append(heads_table(result, suffix))
        if "long_tail" in result:
            tables.append(_long_tail(result, suffix))
        if "second_opinions" in result:
            tables.append(_second_opinions(result, suffix))
    return tables


def summary_tables(runs: Mapping[str, Result]) -> list[TextTable]:
    """Warnings, and the scores of the suite with interval, verdict and best floor."""
    return [*([_warnings(runs)] if any(result["warnings"] for result in runs.values()) else []), summary_table(runs)]


def summary_table(runs: Mapping[str, Result]) -> TextTable:
    """The scores of the suite: of one run in columns, of several with a column for each run."""
    summaries = {name: result["summary"]["rows"] for name, result in runs.items()}
    suite = next(iter(runs.values()))["summary"]["suite"]
    notes: dict[str, None] = {}
    for name, result in runs.items():
        prefix = f"{name}: " if len(runs) > 1 else ""
        notes[f"{prefix}{_studies(result)}"] = None
        if "abnormal" in result and any(row["metric"] == "CIDEr" for row in summaries[name]):
            notes[prefix + result["abnormal"]["note"]] = None
    notes |= dict.fromkeys(_missing_scores(summaries))
    notes[MEANING] = None
    if len(runs) > 1:
        columns = tuple(f"{name}: {_label(result['protocol'])}" for name, result in runs.items())
        cells = [[f"{score_cell(row)} {row['verdict'] or ''}".strip() for row in rows] for rows in summaries.values()]
        titles = [row["title"] for row in next(iter(summaries.values()))]
        # A run without labels or priors has fewer rows; all runs are scored with the same options.
        rows = tuple(zip(titles, *cells, strict=True))
        return TextTable(f"Scores, suite {suite}", ("score", *columns), rows, tuple(notes))
    (result,) = runs.values()
    rows = tuple(
        (
            row["title"],
            number(row["value"]),
            DASH if row["interval"] is None else f"[{row['interval'][0]:.3f}, {row['interval'][1]:.3f}]",
            row["verdict"] or DASH,
            DASH if row["floor"] is None else f"{number(row['floor'])} {floor_title(row['floor_name'])}",
        )
        for row in result["summary"]["rows"]
    )
    head = ("score", "value", "95 %", "verdict", "best floor")
    return TextTable(f"Scores, suite {suite}, protocol {_label(result['protocol'])}", head, rows, tuple(notes))


_NEEDS = "; needs "
"""Between the weights that one score lacks."""


def _missing_scores(summaries: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """A line for each reason why scores have no value; what several scores or all runs lack is named once."""
    runs_of: dict[str, list[str]] = {}
    for name, rows in summaries.items():
        titles: dict[str, list[str]] = {}
        for row in rows:
            if "unavailable" in row:
                first, *others = row["unavailable"].removeprefix("unavailable: ").split(_NEEDS)
                for reason in (first, *(f"needs {other}" for other in others)):
                    titles.setdefault(reason, []).append(row["title"])
        for reason, own in titles.items():
            runs_of.setdefault(f"{', '.join(own)}: {reason}", []).append(name)
    return [line if len(names) == len(summaries) else f"{', '.join(names)}: {line}" for line, names in runs_of.items()]


def _warnings(runs: Mapping[str, Result]) -> TextTable:
    sentences = [
        f"{name}: {sentence}" if len(runs) > 1 else sentence
        for name, result in runs.items()
        for sentence in result["warnings"]
    ]
    return TextTable("Mind", notes=tuple(sentences))


def _label(protocol: Mapping[str, Any]) -> str:
    return f"{protocol['name']} {protocol['language_hash'][:8]}"


def _ordered(names: set[str]) -> list[str]:
    """Keys in the order of the catalogue; others follow in the order of their names."""
    return [name for name in METRICS if name in names] + sorted(names - METRICS.keys())


def _row_label(metric: str) -> str:
    return (METRICS[metric].label if metric in METRICS else "") or metric


def language_table(runs: Mapping[str, Result]) -> TextTable:
    """Language scores with their intervals, a column for each run and protocol."""
    columns: list[tuple[str, Mapping[str, Any]]] = []
    notes: dict[str, None] = {}
    for name, result in runs.items():
        prefix = f"{name}: " if len(runs) > 1 else ""
        columns.append((prefix + _label(result["protocol"]), result["corpus"]))
        if "beside" in result:
            columns.append((prefix + _label(result["beside"]["protocol"]), result["beside"]["corpus"]))
            if result["corpus"]["METEOR"]["value"] is not None:
                notes["METEOR is computed for the first protocol only"] = None
            if as_given := [key for key in FURTHER_METRICS if key in result["corpus"]]:
                notes[f"of the texts as given, under no protocol: {', '.join(as_given)}"] = None
        notes[f"{prefix}{_studies(result)}"] = None
        if scored := _scored_text(result):
            notes[f"{prefix}{scored}"] = None
        for protocol in (result["protocol"], result.get("beside", result)["protocol"]):
            notes |= {f"{protocol['name']}: {text}": None for text in protocol["deviations"]}
        if "abnormal" in result:
            notes[prefix + result["abnormal"]["note"]] = None
        for metric, score in result["corpus"].items():
            if "unavailable" in score:
                notes[f"{prefix}{metric}: {score['unavailable']}"] = None
    rows = [
        (
            _row_label(metric),
            *(score_cell(corpus[metric]) if metric in corpus else DASH for _, corpus in columns),
        )
        for metric in _ordered({metric for _, corpus in columns for metric in corpus})
    ]
    return TextTable("Language", ("metric", *(head for head, _ in columns)), tuple(rows), tuple(notes))


def _studies(result: Result) -> str:
    resampling, texts = result["resampling"], result["texts"]
    text = f"{result['studies']} studies" + (f", target {result['target']}" if result["target"] else "")
    if result["drafts"].get("decoder"):
        text += f", drafts by {result['drafts']['decoder']}"
    if resampling["resamples"]:
        text += (
            f"; 95 % intervals, {resampling['resamples']} resamples by {resampling['unit']}, seed {resampling['seed']},"
            " document frequencies of CIDEr kept"
        )
    left_out = sum(result["left_out"].values())
    if left_out:
        text += f"; {left_out} lines left out"
    if texts["references_cut"] or texts["references_with_unknown_words"]:
        text += (
            f"; references cut: {texts['references_cut']}, with <unk>: {texts['references_with_unknown_words']}"
            f" of {texts['references']}"
        )
    return text


def _scored_text(result: Result) -> str | None:
    """The state of the scored drafts: as written, or edited; None for a file that does not say."""
    drafts = result["drafts"]
    if drafts["as_written"] is None:
        return None
    if drafts["as_written"]:
        return "drafts are scored as written"
    if not drafts["edited_reports"]:
        return "sentences could be taken out of drafts before scoring; none was"
    return (
        f"drafts are scored after removals from {drafts['edited_reports']} of {result['studies']}: comparisons in"
        f" {drafts['comparisons_removed']} sentences, {drafts['marks_removed']} sentences with marks of"
        " de-identification; published scores are of drafts as written"
    )


def floor_table(result: Result, suffix: str = "") -> TextTable:
    """The run beside baselines that do not read the image."""
    corpora = {"this run": {name: score["value"] for name, score in result["corpus"].items()}}
    findings = {"this run": _findings_f1(result["clinical"])}
    notes = []
    for name, floor in result["floors"].items():
        notes.append(f"{floor_title(name)}: {floor['source']}")
        if floor["corpus"] is not None:
            corpora[name] = floor["corpus"]
            findings[name] = floor["findings_f1"]
    rows = [
        (floor_title(name), *(number(corpus.get(metric)) for metric in SHORT_METRICS), number(findings[name], 3))
        for name, corpus in corpora.items()
    ]
    if "abnormal" in result:
        notes.append(result["abnormal"]["note"])
    title = f"Beside baselines that do not read the image{suffix}"
    return TextTable(title, (_label(result["protocol"]), *SHORT_METRICS, "findings F1"), tuple(rows), tuple(notes))


def prior_tables(result: Result, suffix: str = "") -> list[TextTable]:
    """Findings with and without a prior, and the changes from it, beside floors that copy the prior's report."""
    table = result["priors"]
    systems, studies, cells = table["systems"], table["studies"], table["cells"]
    rows = [
        (name, *(_f1_cell(scores["findings"][part]) for part in ("with_prior", "without_prior")))
        for name, scores in systems.items()
    ]
    head = tuple(f"F1, {number} studies {part.replace('_', ' ')}" for part, number in studies.items())
    notes = (
        "a prior's report is of an earlier study of the same patient: a reader has it, and may copy it",
        "findings F1: micro, uncertain is negative, No Finding left out",
    )
    split = TextTable(f"With and without a prior{suffix}", ("findings", *head), tuple(rows), notes)
    changes = [
        (
            name,
            *(
                _f1_cell(scores["changes"][change], measure)
                for change in CHANGED
                for measure in ("precision", "recall")
            ),
            _f1_cell(scores["changes"]["changed"]),
        )
        for name, scores in systems.items()
    ]
    columns = (*(f"{change} {letter}" for change in CHANGED for letter in ("P", "R")), "changed F1")
    counts = ", ".join(f"{change} {number}" for change, number in cells.items())
    meanings = (
        f"cells (study and finding) in the references: {counts}",
        "new: not in the prior's report; resolved: in it, and dropped; worse, better: as the sentences say; changed:"
        " cells whose state is not that of the prior's report",
    )
    return [split, TextTable(f"Change from the prior{suffix}", ("change", *columns), tuple(changes), meanings)]


def _f1_cell(scores: Mapping[str, Any] | None, measure: str = "f1") -> str:
    """A measure with its interval, three digits; a dash where there is none."""
    value = None if scores is None else scores[measure]["value"]
    if scores is None or value is None:
        return DASH
    bounds = scores[measure]["interval"]
    return number(value, 3) + (f" [{bounds[0]:.3f}, {bounds[1]:.3f}]" if bounds else "")


def _by_section(result: Result, suffix: str) -> TextTable:
    """Language scores and findings of each section beside those of the whole report."""
    results: dict[str, Result] = {"whole": result, **result["sections"]}
    metrics = _ordered({metric for one in results.values() for metric in one["corpus"]})
    rows = [
        (
            _row_label(name),
            *(score_cell(one["corpus"][name]) if name in one["corpus"] else DASH for one in results.values()),
        )
        for name in metrics
        if "unavailable" not in result["corpus"].get(name, {})
    ]
    rows.append(("findings F1", *(number(_findings_f1(one["clinical"]), 3) for one in results.values())))
    notes = tuple(f"{name}: {_studies(one)}" for name, one in result["sections"].items())
    title = f"By section, headings left out{suffix}"
    return TextTable(title, (_label(result["protocol"]), *results), tuple(rows), notes)


def _abnormal(result: Result, suffix: str) -> TextTable:
    """Scores on the abnormal studies alone, beside those of all studies and of the floors."""
    abnormal = result["abnormal"]
    of_all = {**result["corpus"], FINDINGS: _findings_score(result["clinical"])}
    floors = {name: scores for name, scores in abnormal["floors"].items() if scores}
    rows = [
        (
            "findings F1" if metric == FINDINGS else _row_label(metric),
            score_cell(of_all[metric]),
            score_cell(score),
            *(number(scores.get(metric)) for scores in floors.values()),
        )
        for metric in _ordered(set(abnormal["corpus"]))
        if (score := abnormal["corpus"][metric])["value"] is not None
    ]
    head = (
        _label(result["protocol"]),
        f"all {abnormal['of']}",
        f"abnormal {abnormal['studies']}",
        *map(floor_title, floors),
    )
    return TextTable(f"On abnormal studies alone{suffix}", head, tuple(rows), (abnormal["note"],))


def _findings_score(clinical: Mapping[str, Any]) -> Mapping[str, Any]:
    """Micro F1, uncertain as negative, No Finding left out where the labels have it."""
    groups = clinical.get("policies", {}).get("uncertain_as_negative", {}).get("groups", {})
    scores = groups.get("without_no_finding", groups.get("all"))
    return {"value": None} if scores is None else scores["micro"]["f1"]


def _findings_f1(clinical: Mapping[str, Any]) -> float | None:
    value: float | None = _findings_score(clinical)["value"]
    return value


def _honesty(runs: Mapping[str, Result]) -> TextTable:
    meanings: dict[str, str] = {}
    for result in runs.values():
        meanings.update({name: row["meaning"] for name, row in result["honesty"].items()})
    head = ["row"]
    for name in runs:
        head.extend([name, f"{name}: reference"] if len(runs) > 1 else ["generated", "reference"])
    rows = []
    for row_name in meanings:
        cells = [row_name]
        for result in runs.values():
            row = result["honesty"].get(row_name, {})
            cells.extend([number(row.get("value")), number(row.get("reference"))])
        rows.append(tuple(cells))
    notes = [f"{name}: {meaning}" for name, meaning in meanings.items()]
    for name, result in runs.items():
        sides = result["honesty"]["left_right_contradiction_share"]
        prefix = f"{name}: " if len(runs) > 1 else ""
        notes.append(f"{prefix}left/right could be compared in {sides['comparable_reports']} reports")
    return TextTable("Honesty", tuple(head), tuple(rows), tuple(notes))


def _clinical(result: Result, suffix: str) -> TextTable:
    """Every average under both policies; the one that the protocol's source prints is marked with *."""
    clinical = result["clinical"]
    policies = list(clinical["policies"])
    marked = clinical["marked"]
    rows = []
    for group, averages in clinical["policies"][policies[0]]["groups"].items():
        for average in averages:
            cells = [f"{_GROUPS[group]} / {average}"]
            for policy in policies:
                scores = clinical["policies"][policy]["groups"][group][average]
                star = " *" if marked == {"average": average, "policy": policy, "group": group} else ""
                cells.extend(number(scores[measure]["value"], 3) for measure in ("precision", "recall"))
                cells.append(number(scores["f1"]["value"], 3) + star)
            rows.append(tuple(cells))
    sided = clinical["sided_findings"]
    rows.append(("findings with their side / micro", *(number(sided[m]["value"], 3) for m in _PRF), *(DASH,) * 3))
    if placed := clinical.get("placed_findings"):
        rows.append(
            ("findings with side and zone / micro", *(number(placed[m]["value"], 3) for m in _PRF), *(DASH,) * 3)
        )
    notes = [
        f"labels: {clinical['labeler']}; reference: {clinical['reference_labels']}",
        "left: uncertain counts as negative; right: uncertain counts as positive (u+)",
    ]
    frequent, asserted = clinical["frequent"], clinical["asserted"]
    notes.append(
        f"{frequent['number']} classes have {frequent['positives']} positives or more in the references:"
        f" {', '.join(frequent['classes']) or 'none'}"
    )
    notes.append(
        f"findings ever asserted: {asserted['number']} of {asserted['of']} classes"
        f" ({', '.join(asserted['classes']) or 'none'})"
    )
    if marked:
        scores = clinical["policies"][marked["policy"]]["groups"][marked["group"]][marked["average"]]
        notes.append(f"* what the protocol's source prints: F1 {score_cell(scores['f1'])}")
    head = ("classes / average", "P", "R", "F1", "P u+", "R u+", "F1 u+")
    return TextTable(f"Clinical efficacy{suffix}", head, tuple(rows), tuple(notes))


def _per_class(result: Result, suffix: str) -> TextTable:
    policy = (result["clinical"]["marked"] or {"policy": "uncertain_as_negative"})["policy"]
    content = result["clinical"]["policies"][policy]
    rows = sorted(content["per_class"].items(), key=lambda item: -item[1]["support"])
    undefined = content["undefined"]["f1"]["number"]
    notes = [f"{policy.replace('_', ' ')}; {undefined} classes undefined (no positive on either side)"]
    columns = ("class", "P", "R", "F1", "reference", "generated")
    cells: Sequence[tuple[str, ...]] = [
        (
            name,
            number(scores["precision"], 3),
            number(scores["recall"], 3),
            number(scores["f1"], 3),
            str(scores["support"]),
            str(scores["predicted"]),
        )
        for name, scores in rows
    ]
    return TextTable(f"Findings by class{suffix}", columns, tuple(cells), tuple(notes))


def _long_tail(result: Result, suffix: str) -> TextTable:
    """Head, middle and tail, each followed by its classes."""
    table = result["long_tail"]
    training = table["training"]
    policy = (result["clinical"]["marked"] or {"policy": "uncertain_as_negative"})["policy"]
    content, per_class = table["policies"][policy], result["clinical"]["policies"][policy]["per_class"]
    rows = []
    for group, names in table["groups"].items():
        macro, micro = content[group]["macro"], content[group]["micro"]
        cells = [number(macro[measure]["value"], 3) for measure in ("precision", "recall")]
        rows.append((group, "", *cells, score_cell(macro["f1"]), score_cell(micro["f1"]), ""))
        for name in names:
            scores, count = per_class[name], training["classes"][name]
            shown = f"{count['positives']} ({100 * count['share']:.1f} %)"
            cells = [number(scores[measure], 3) for measure in _PRF]
            rows.append((f"  {name}", shown, *cells, "", str(scores["support"])))
    notes = (
        f"thirds of the classes by positives among {training['studies']} training studies ({training['labels']})",
        f"{policy.replace('_', ' ')}; a third's P, R and F1 are macro averages, 0/0 is 0 in them",
    )
    columns = ("class", "in training", "P", "R", "F1", "micro F1", "reference")
    return TextTable(f"Frequent and rare classes{suffix}", columns, tuple(rows), notes)


def _second_opinions(result: Result, suffix: str) -> TextTable:
    rows = []
    notes = []
    for name, opinion in result["second_opinions"].items():
        if "unavailable" in opinion:
            notes.append(f"{name}: {opinion['unavailable']}")
            continue
        cells = (number(opinion["ours"], 6), number(opinion["theirs"], 6), f"{opinion['difference']:+.1e}")
        rows.append((name, *cells))
    return TextTable(f"Second opinions{suffix}", ("metric", "ours", "theirs", "difference"), tuple(rows), tuple(notes))


# Tables of a comparison.


def comparison_tables(record: Mapping[str, Any]) -> list[TextTable]:
    """Tables of a comparison over studies (one per run) or over seeds, and of the judge."""
    if record["kind"] == "seeds":
        return [_seeds(record)]
    runs = list(dict.fromkeys(row["run"] for row in record["comparisons"]))
    return [*(_compared_studies(record, run) for run in runs), *_judges(record)]


def comparison_summary(record: Mapping[str, Any], suite: SuiteName) -> list[TextTable]:
    """A comparison by the scores of a suite. Clinical scores, those beside priors, and those of the texts as given,
    which were asked for, stay. Several runs share a table.

    Corrections are over all tests of the record, shown or not.
    """
    hidden = {key for key, metric in METRICS.items() if metric.clinical is None} - {*SUITES[suite], *FURTHER_METRICS}
    shown = [row for row in record["comparisons"] if row["metric"] not in hidden]
    short = {**record, "comparisons": shown}
    runs = list(dict.fromkeys(row.get("run") for row in shown))
    if record["kind"] == "seeds":
        return comparison_tables(short)
    if len(runs) < 2:
        return [_with_short_heads(short, runs[0]), *_judges(record)]
    cells = {(row["run"], row["metric"]): f"{_signed(row['difference'])} {_better(row)}" for row in shown}
    values = {row["metric"]: number(row["a"]) for row in shown}
    rows = [
        (metric_title(metric), value, *(cells.get((run, metric), DASH) for run in runs))
        for metric, value in values.items()
    ]
    notes = {note: None for run in runs for note in _compared_studies(short, run).notes}
    title = f"Differences to {record['baseline']}"
    return [
        TextTable(title, ("metric", record["baseline"], *runs), tuple(rows), tuple(notes)),
        *_judges(record),
    ]


def _with_short_heads(record: Mapping[str, Any], run: str) -> TextTable:
    """The table of one run, whose columns fit a screen however long the names are; without the uncorrected p."""
    table = _compared_studies(record, run)
    names = f"first: {record['baseline']}; second: {run}"
    columns = ("metric", "first", "second", *table.columns[3:])
    uncorrected = columns.index("p")
    rows = tuple((*row[:uncorrected], *row[uncorrected + 1 :]) for row in table.rows)
    return TextTable(table.title, (*columns[:uncorrected], *columns[uncorrected + 1 :]), rows, (names, *table.notes))


_TITLES = {
    "CE_sided_findings_F1": "findings F1, sides",
    "CE_with_prior_F1": "findings F1, prior",
    "new_R": "new, recall",
    "resolved_R": "resolved, recall",
    "changed_F1": "changes, F1",
}


def metric_title(key: str) -> str:
    """The title of a score as ``evaluate`` has it; the key of one without."""
    if key in METRICS:
        return METRICS[key].name
    average, _, measure = key.removeprefix("CE_").partition("_")
    short = {"precision": "P", "recall": "R"}.get(measure, measure)
    return f"all classes {short}, {average}" if average in AVERAGES else _TITLES.get(key, key)


_SIGNIFICANT = 0.05
VERDICTS = f"better, worse: Holm's p is below {_SIGNIFICANT}; level: no difference is shown"


def _better(row: Mapping[str, Any]) -> str:
    """The verdict on a difference; a dash where it was not tested."""
    p, difference = row["p_holm"], row["difference"]
    if p is None or difference is None:
        return DASH
    if p >= _SIGNIFICANT:
        return "level"
    if metric := METRICS.get(row["metric"]):
        first, second = (metric.rank(row[side] if side in row else row[f"{side}_mean"]) for side in ("a", "b"))
        difference = second - first
    return "better" if difference > 0 else "worse"


def _signed(value: float | None) -> str:
    return DASH if value is None else f"{value:+.4f}"


def _p(value: float | None) -> str:
    return DASH if value is None else f"{value:.2e}" if value < 0.001 else f"{value:.4f}"


def _compared_studies(record: Mapping[str, Any], run: str) -> TextTable:
    rows = []
    notes: dict[str, None] = {}
    for row in record["comparisons"]:
        if row["run"] != run:
            continue
        interval = DASH if row["low"] is None else f"[{row['low']:+.3f}, {row['high']:+.3f}]"
        p_values = (_p(row[name]) for name in ("p_randomisation", "p_holm"))
        values = (number(row["a"]), number(row["b"]), _signed(row["difference"]))
        rows.append((metric_title(row["metric"]), *values, interval, *p_values, _better(row)))
    notes |= dict.fromkeys(_reasons(row for row in record["comparisons"] if row["run"] == run))
    resampling = record["resampling"]
    notes[
        f"protocol {_label(record['protocol'])}; {record['studies']} studies;"
        f" {resampling['resamples']} resamples, seed {resampling['seed']}; interval: paired bootstrap;"
        f" p: approximate randomisation, two-sided; Holm over {resampling['tests']} tests; {VERDICTS}"
    ] = None
    if resampling["tests"] >= _SIGNIFICANT * (resampling["resamples"] + 1):
        needed = math.ceil(resampling["tests"] / _SIGNIFICANT)
        notes[f"too few resamples for a verdict over {resampling['tests']} tests: give --resamples {needed}"] = None
    decoders = {name: record["drafts"].get(name) for name in (record["baseline"], run)}
    if len({decoder for decoder in decoders.values() if decoder}) > 1:
        notes["mind: " + "; ".join(f"{name} drafts by {decoder}" for name, decoder in decoders.items())] = None
    notes |= dict.fromkeys(_not_compared(record))
    head = ("metric", record["baseline"], run, "difference", "95 %", "p", "p Holm", "verdict")
    return TextTable(f"{run} against {record['baseline']}", head, tuple(rows), tuple(notes))


def _reasons(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Lines on undefined tests: the scores of each reason."""
    titles: dict[str, list[str]] = {}
    for row in rows:
        if row["note"]:
            titles.setdefault(row["note"], []).append(metric_title(row["metric"]))
    return [f"{', '.join(names)}: {reason}" for reason, names in titles.items()]


def _not_compared(record: Mapping[str, Any]) -> list[str]:
    """Lines on scores of the texts as given that have no value."""
    rows = [
        {"title": METRICS[key].name, "unavailable": reason} for key, reason in record.get("unavailable", {}).items()
    ]
    return _missing_scores({"": rows})


def _seeds(record: Mapping[str, Any]) -> TextTable:
    first, second = record["runs"]
    rows = [
        (
            metric_title(row["metric"]),
            f"{row['a_mean']:.4f} ± {row['a_std']:.4f}",
            f"{row['b_mean']:.4f} ± {row['b_std']:.4f}",
            _signed(row["difference"]),
            _p(row["p"]),
            _p(row["p_holm"]),
            _better(row),
        )
        for row in record["comparisons"]
    ]
    counts = " and ".join(str(len(group)) for group in record["seeds"])
    notes = [
        f"protocol {_label(record['protocol'])}; {record['studies']} studies;"
        f" {counts} seeds; {record['test']}; standard deviation with ddof {record['std_ddof']};"
        f" Holm over {record['tests']} tests; {VERDICTS}",
        "a test over seeds says nothing about other studies; compare two runs for that",
    ]
    notes.extend(_reasons(record["comparisons"]))
    notes.extend(_not_compared(record))
    return TextTable(
        f"{second} against {first} over seeds",
        ("metric", first, second, "difference", "p", "p Holm", "verdict"),
        tuple(rows),
        tuple(notes),
    )


def _judges(record: Mapping[str, Any]) -> list[TextTable]:
    return [_judge(record, run, summary) for run, summary in record.get("judge", {}).items()]


def _judge(record: Mapping[str, Any], run: str, summary: Mapping[str, Any]) -> TextTable:
    rows = []
    for name, row in summary["dimensions"].items():
        interval = DASH if row["interval"] is None else f"[{row['interval'][0]:.3f}, {row['interval'][1]:.3f}]"
        flips = (str(row["flipped_with_order"]),) if summary["both_orders"] else ()
        rows.append((name, number(row["b_win_rate"], 3), interval, _p(row["p"]), _p(row["p_holm"]), *flips))
    head = (
        "dimension",
        f"{run} wins",
        "95 % Wilson",
        "p sign test",
        "p Holm",
        *(("flipped",) if summary["both_orders"] else ()),
    )
    notes = (
        f"judge {summary['judge']}, prompt {summary['prompt_version']}, seed {summary['seed']}:"
        f" {summary['valid']} of {summary['asked']} answers valid; first report chosen in"
        f" {number(summary['first_slot_share'], 3)} of choices",
        f"evidence: {summary['evidence']['invalid_spans']} of {summary['evidence']['spans']} quoted spans do not stand"
        f" in their report, in {summary['evidence']['answers_with_invalid_spans']} answers",
    )
    return TextTable(f"Judge: {run} against {record['baseline']}", head, tuple(rows), notes)
