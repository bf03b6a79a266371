"""Results as tables: on the terminal, in Markdown, in LaTeX. The same cells everywhere.

Runs stand side by side only where they were scored by the same protocol hash; a column never mixes two.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from radweave.core.escaping import escaped, plain_console
from radweave.core.figures import BLUE, GREY, new_figure, png
from radweave.core.study import LabelState
from radweave.labels import NO_FINDING
from radweave.metrics.clinical import (
    AVERAGES,
    FEWEST_POSITIVES,
    POLICIES,
    LabelledPairs,
    class_scores,
    confusion_rows,
    frequent_columns,
    groups_of,
    is_positive,
)
from radweave.metrics.protocols import Average, EvalProtocol, UncertainPolicy
from radweave.metrics.records import (
    MEASURES,
    ClassGroup,
    ClinicalAverage,
    ClinicalKey,
    Estimate,
    Json,
    Measure,
    PrecisionRecall,
    number_or_none,
)
from radweave.metrics.statistics import Interval, Statistic, wilson_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import Console

DASH = "-"


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of strings, with notes below; without columns the notes stand alone.

    The first column is left-aligned, the others right-aligned.
    """

    title: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()


def number(value: Any, digits: int = 4) -> str:
    if value is None:
        return DASH
    if isinstance(value, float):
        return f"{value:.{digits}f}"
    return str(value)


# Columns that fit a terminal and a page that shows code; more runs than fit side by side come in several tables.
_MOST_COLUMNS = 100


def print_tables(tables: Sequence[TextTable]) -> None:
    """Print to standard output, as wide as the terminal but within 100 columns: a wider table comes in parts."""
    console = plain_console()
    width = min(console.width, _MOST_COLUMNS) if console.is_terminal else _MOST_COLUMNS
    _print(tables, plain_console(width=width), width)


def plain_text(tables: Sequence[TextTable], *, most_lines: int) -> str:
    """The tables as they are printed, without colours, in at most so many lines."""
    console = plain_console(width=_MOST_COLUMNS)
    console.file = io.StringIO()
    with console.capture() as capture:
        _print(tables, console, _MOST_COLUMNS)
    lines = [line.rstrip() for line in capture.get().strip("\n").splitlines()]
    if len(lines) > most_lines:
        lines = [*lines[: most_lines - 1], f"... {len(lines) - most_lines + 1} more lines"]
    return "\n".join(lines)


def _print(tables: Sequence[TextTable], console: Console, width: int) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    for table in (part for whole in tables for part in in_parts(whole, width)):
        if table.columns:
            shown = Table(title=table.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
            for index, column in enumerate(table.columns):
                shown.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
            for row in table.rows:
                shown.add_row(*row)
            console.print(shown)
        else:
            console.print(table.title, style="bold")
        for note in table.notes:
            console.print(note, style="dim" if table.columns else "yellow")
        console.print()


_EDGES = 2
"""Blanks beside a cell, and beside the table."""


def in_parts(table: TextTable, width: int) -> list[TextTable]:
    """The table as it is where it fits ``width`` characters, else as several with some of its columns each.

    All begin with the first column; the notes stand below the last part. A column is never cut.
    """
    sizes = [max(map(len, column)) + _EDGES for column in zip(table.columns, *table.rows, strict=True)]
    if sum(sizes) + _EDGES <= width or len(sizes) < 3:
        return [table]
    groups: list[list[int]] = [[]]
    for place, size in enumerate(sizes[1:], start=1):
        if groups[-1] and _EDGES + sizes[0] + sum(sizes[other] for other in groups[-1]) + size > width:
            groups.append([])
        groups[-1].append(place)
    return [
        TextTable(
            f"{table.title} ({number} of {len(groups)})" if len(groups) > 1 else table.title,
            tuple(table.columns[place] for place in (0, *group)),
            tuple(tuple(row[place] for place in (0, *group)) for row in table.rows),
            table.notes if number == len(groups) else (),
        )
        for number, group in enumerate(groups, start=1)
    ]


def markdown_tables(tables: Sequence[TextTable]) -> str:
    parts = []
    for table in tables:
        parts.append(f"### {escaped(table.title)}\n")
        if table.columns:
            ruler = "| " + " | ".join(["---"] + ["---:"] * (len(table.columns) - 1)) + " |"
            head, *rows = (f"| {' | '.join(map(escaped, row))} |" for row in (table.columns, *table.rows))
            parts.append("\n".join((head, ruler, *rows)) + "\n")
        if table.notes:
            parts.append("\n".join(f"- {escaped(note)}" for note in table.notes) + "\n")
    return "\n".join(parts)


_LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


def latex_escape(text: str) -> str:
    return "".join(_LATEX_SPECIAL.get(character, character) for character in text)


def latex_tables(tables: Sequence[TextTable]) -> str:
    """Plain ``tabular`` environments that need no package."""
    return "\n\n".join(_latex_table(table) for table in tables) + "\n"


def _latex_table(table: TextTable) -> str:
    notes = [latex_escape(note) + r"\\" for note in table.notes]
    if not table.columns:
        return "\n".join([rf"\paragraph{{{latex_escape(table.title)}}}", *notes])
    rows = [" & ".join(latex_escape(cell) for cell in row) + r" \\" for row in (table.columns, *table.rows)]
    rows.insert(1, r"\hline")
    align = "l" + "r" * (len(table.columns) - 1)
    lines = [r"\begin{table}", rf"\caption{{{latex_escape(table.title)}}}", rf"\begin{{tabular}}{{{align}}}", r"\hline"]
    lines += [*rows, r"\hline", r"\end{tabular}", *([r"\par\footnotesize", *notes] if notes else []), r"\end{table}"]
    return "\n".join(lines)


def score_cell(score: Mapping[str, Any]) -> str:
    """``value [low, high]``, or a dash."""
    if score["value"] is None:
        return DASH
    bounds = score.get("interval")
    text = number(score["value"])
    return f"{text} [{bounds[0]:.3f}, {bounds[1]:.3f}]" if bounds else text


# The clinical table: all averages, both uncertain policies, every class, what is undefined.


PolicyName = Literal["uncertain_as_negative", "uncertain_as_positive"]
POLICY_NAMES: dict[UncertainPolicy, PolicyName] = {
    "negative": "uncertain_as_negative",
    "positive": "uncertain_as_positive",
}
StateCounts = Mapping[str, int]
Averages = Mapping[ClinicalAverage, PrecisionRecall]


@dataclass(frozen=True, slots=True)
class MarkedAverage:
    """The average that the protocol's source prints."""

    average: Average
    policy: PolicyName
    group: ClassGroup = "all"


@dataclass(frozen=True, slots=True)
class ClassScores:
    """One class: ``support`` positives of the reference, ``predicted`` of the report, ``both``; None where 0/0."""

    precision: float | None
    recall: float | None
    f1: float | None
    support: int
    predicted: int
    both: int


@dataclass(frozen=True, slots=True)
class PolicyTable:
    """All scores with uncertain counted one way."""

    groups: Mapping[ClassGroup, Averages]
    per_class: Mapping[str, ClassScores]

    def undefined(self, measure: Measure) -> tuple[str, ...]:
        """Classes without a positive on the side or sides that the measure asks for."""
        return tuple(name for name, scores in self.per_class.items() if getattr(scores, measure) is None)

    def to_json(self) -> Json:
        undefined = {measure: list(self.undefined(measure)) for measure in MEASURES}
        return {
            "groups": {group: averages_json(averages) for group, averages in self.groups.items()},
            "per_class": {name: asdict(scores) for name, scores in self.per_class.items()},
            "undefined": {measure: {"classes": names, "number": len(names)} for measure, names in undefined.items()},
        }


@dataclass(frozen=True, slots=True)
class ClinicalTable:
    """Everything about the label agreement of one set of reports; ``states`` counts them on each side."""

    labeler: str
    labeler_kind: Literal["rule-based", "trained or given"]
    reference_labels: str
    classes: tuple[str, ...]
    marked: MarkedAverage | None
    states: Mapping[Literal["generated", "reference"], StateCounts]
    policies: Mapping[PolicyName, PolicyTable]
    frequent: tuple[str, ...]

    @property
    def asserted(self) -> tuple[str, ...]:
        """The findings that any report asserts at all."""
        scores = self.policies["uncertain_as_negative"].per_class
        return tuple(name for name, one in scores.items() if one.predicted and name != NO_FINDING)

    def to_json(self) -> Json:
        return {
            "labeler": self.labeler,
            "labeler_kind": self.labeler_kind,
            "reference_labels": self.reference_labels,
            "classes": list(self.classes),
            "marked": None if self.marked is None else asdict(self.marked),
            "states": {side: dict(counts) for side, counts in self.states.items()},
            "frequent": {"positives": FEWEST_POSITIVES, "number": len(self.frequent), "classes": list(self.frequent)},
            "asserted": self._asserted_json(),
            "policies": {policy: table.to_json() for policy, table in self.policies.items()},
        }

    def _asserted_json(self) -> Json:
        findings = [name for name in self.classes if name != NO_FINDING]
        asserted = list(self.asserted)
        return {
            "classes": asserted,
            "number": len(asserted),
            "of": len(findings),
            "share": len(asserted) / len(findings),
        }


@dataclass(frozen=True, slots=True)
class SidedTable:
    """Agreement on (finding, side): what a swap of left and right changes although every label stays."""

    scores: PrecisionRecall
    meaning: str = "findings with a side, pooled over studies: a finding on the other side is a miss and an invention"

    def to_json(self) -> Json:
        return {**self.scores.to_json(), "meaning": self.meaning}


def averages_json(averages: Averages) -> Json:
    return {average: scores.to_json() for average, scores in averages.items()}


def clinical_table(
    labelled: LabelledPairs,
    statistics: Mapping[ClinicalKey, Statistic],
    intervals: Mapping[str, Interval],
    protocol: EvalProtocol,
) -> ClinicalTable:
    """The label agreement from its statistics and the intervals by name (``interval_name``)."""
    rule = protocol.clinical
    estimates = {
        key: Estimate.of(statistic, intervals.get(interval_name(key))) for key, statistic in statistics.items()
    }
    return ClinicalTable(
        labeler=labelled.labeler,
        labeler_kind="rule-based" if labelled.labeler.startswith("rule-based") else "trained or given",
        reference_labels=labelled.reference_source,
        classes=labelled.classes,
        marked=None if rule is None else MarkedAverage(rule.average, POLICY_NAMES[rule.uncertain]),
        states=_state_counts(labelled),
        frequent=tuple(labelled.classes[k] for k in frequent_columns(labelled)),
        policies={POLICY_NAMES[policy]: _policy(labelled, estimates, policy) for policy in POLICIES},
    )


def interval_name(key: ClinicalKey) -> str:
    """The name under which the interval of a clinical score is drawn beside those of the other metrics."""
    return f"CE/{key.name}"


def _state_counts(labelled: LabelledPairs) -> dict[Literal["generated", "reference"], StateCounts]:
    names = [LabelState.BLANK, LabelState.POSITIVE, LabelState.NEGATIVE, LabelState.UNCERTAIN]
    generated, reference = (
        {str(name): int((states == number).sum()) for number, name in enumerate(names)}
        for states in (labelled.hyp, labelled.ref)
    )
    return {"generated": generated, "reference": reference}


def _policy(labelled: LabelledPairs, estimates: Mapping[ClinicalKey, Estimate], policy: UncertainPolicy) -> PolicyTable:
    def scores(group: ClassGroup, average: ClinicalAverage) -> PrecisionRecall:
        return PrecisionRecall.of(lambda measure: estimates[ClinicalKey(policy, group, average, measure)])

    groups = {group: {average: scores(group, average) for average in AVERAGES} for group in groups_of(labelled)}
    return PolicyTable(groups, _clinical_per_class(labelled, policy))


def sided_table(statistics: Mapping[Measure, Statistic], intervals: Mapping[str, Interval]) -> SidedTable:
    """The agreement on sides from its statistics and the intervals by name (``sided_interval_name``)."""
    return SidedTable(PrecisionRecall.of(lambda m: Estimate.of(statistics[m], intervals.get(sided_interval_name(m)))))


def placed_table(statistics: Mapping[Measure, Statistic], intervals: Mapping[str, Interval]) -> SidedTable:
    """The agreement on (finding, side, zone), likewise (``placed_interval_name``)."""
    return SidedTable(
        PrecisionRecall.of(lambda m: Estimate.of(statistics[m], intervals.get(placed_interval_name(m)))),
        "findings with side and zone, as far as stated, pooled over studies: one elsewhere is a miss and an invention",
    )


def placed_interval_name(measure: Measure) -> str:
    return f"CE/placed/{measure}"


def sided_interval_name(measure: Measure) -> str:
    return f"CE/sided/{measure}"


def _clinical_per_class(labelled: LabelledPairs, policy: UncertainPolicy) -> dict[str, ClassScores]:
    sums = confusion_rows(is_positive(labelled.hyp, policy), is_positive(labelled.ref, policy)).sum(
        axis=0, dtype=np.float64
    )
    scores = class_scores(sums)
    width = len(labelled.classes)
    tp, fp, fn = sums[:width], sums[width : 2 * width], sums[2 * width :]
    return {
        name: ClassScores(
            precision=number_or_none(scores["precision"][i]),
            recall=number_or_none(scores["recall"][i]),
            f1=number_or_none(scores["f1"][i]),
            support=int(tp[i] + fn[i]),
            predicted=int(tp[i] + fp[i]),
            both=int(tp[i]),
        )
        for i, name in enumerate(labelled.classes)
    }


# Ranking and calibration of drafts' probabilities: table and plot.

_NOTICE = "Research software, not a medical device."
_SPLITS = {"train": "training", "val": "validation"}


def heads_table(result: Mapping[str, Any], suffix: str) -> TextTable:
    """Ranking and calibration by class; means and F1 stand below."""
    heads = result["heads"]
    rows = [
        (
            name,
            str(one["positives"]),
            _cell(one["auroc"]),
            _cell(one["average_precision"]),
            number(one["calibration_error"], 3) if one["calibrated"] else "not calibrated",
            number(one["threshold"], 3),
        )
        for name, one in heads["classes"].items()
    ]
    split = _SPLITS.get(heads["calibrated_on"] or "")
    notes = (
        f"micro average precision of findings {_cell(heads['micro_average_precision'])}",
        f"F1 at the thresholds: heads {number(heads['heads_f1'], 3)}, draft {number(heads['draft_f1'], 3)}: the draft"
        f" reaches {number(heads['draft_share_of_heads'], 2)} of it; macro over classes with 5 positives or more: heads"
        f" {number(heads['heads_macro_f1'], 3)}, draft {number(heads['draft_macro_f1'], 3)}",
        f"calibrated on the run's {split} split; expected calibration error over all calibrated findings"
        f" {number(heads['calibration_error'], 3)} (bins of equal count)"
        if split
        else "the probabilities are not calibrated",
        "classes with fewer than 5 positives or negatives have no AUROC, average precision or calibration error",
    )
    columns = ("class", "positives", "AUROC", "average precision", "calibration error", "threshold")
    return TextTable(f"Probabilities of the heads{suffix}", columns, tuple(rows), notes)


def _cell(estimate: Mapping[str, Any]) -> str:
    return DASH if estimate["value"] is None else score_cell(estimate)


def reliability_plot(result: Mapping[str, Any]) -> bytes | None:
    """Reliability curves of all findings and each class (PNG); None where nothing is calibrated."""
    heads = result["heads"]
    curves = {"all findings": heads["reliability"]}
    curves |= {name: one["reliability"] for name, one in heads["classes"].items() if one["reliability"]}
    curves = {name: bins for name, bins in curves.items() if bins}
    if not curves:
        return None
    across = min(4, len(curves))
    down = -(-len(curves) // across)
    figure = new_figure(3 * across, 3 * down + 0.4)
    panels = list(figure.subplots(down, across, squeeze=False).flat)
    for panel, (name, bins) in zip(panels, curves.items(), strict=False):
        _panel(panel, name, bins)
    for panel in panels[len(curves) :]:
        panel.set_axis_off()
    figure.supxlabel(
        "probability in the draft (0 to 1)\neach dot is a bin with its number of studies; bars: 95 % (Wilson); line:"
        f" where both are equal. {_NOTICE}",
        size=9,
    )
    figure.supylabel("share that had it, by the references (0 to 1)", size=9)
    return png(figure)


def _panel(panel: Axes, name: str, bins: Any) -> None:
    bars = [wilson_interval(round(one["seen"] * one["count"]), one["count"]) or (0.0, 1.0) for one in bins]
    end = min(1.05, max(0.1, *(one["said"] for one in bins), *(high for _, high in bars)) * 1.1)
    panel.plot([0, end], [0, end], color=GREY, linewidth=1)
    for one, (low, high) in zip(bins, bars, strict=True):
        panel.vlines(one["said"], low, high, color=BLUE, alpha=0.45, linewidth=2)
    panel.plot([one["said"] for one in bins], [one["seen"] for one in bins], "o-", color=BLUE, markersize=4)
    for one in bins:
        panel.annotate(str(one["count"]), (one["said"], one["seen"]), textcoords="offset points", xytext=(3, 4), size=6)
    panel.set_title(name, size=9)
    panel.set_xlim(0, end)
    panel.set_ylim(0, end)
    panel.tick_params(labelsize=7)
