"""Change of every score by one planted error a report: run by hand.

    OMP_NUM_THREADS=1 python bench/planted_errors.py [--studies 300] [--ct] [--weights NAME=FOLDER] [--rexval FOLDER]

The reports are phantoms' (findings section, first visits, seed 0), the drafts copies of them with one error. Where an
error cannot be planted, the report is left out; a cell is the score of the drafts less that of plain copies of the same
reports. Bold: the score falls by more than for the harmless changes. With ReXVal's folder, the agreement of every score
with radiologists' counts of errors follows. Scores of models need their weights.

Two changes are harmless: another order of sentences, and other words for the same.

Source: Yu et al., "Evaluating progress in automatic chest X-ray radiology report generation", Patterns 4(9), 2023
(ReXVal, PhysioNet rexval-dataset 1.0.0).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from radweave.core.errors import InputError
from radweave.core.study import LabelState
from radweave.data.tables import read_table
from radweave.labels import NO_FINDING, get_labeler
from radweave.labels.comparisons import compares_with_prior, whole_sentences
from radweave.labels.labeler import Labeler
from radweave.metrics import Evaluation, Options, Pair, evaluate_pairs
from radweave.metrics.catalogue import FURTHER_METRICS, METRICS
from radweave.metrics.weights import read_weights
from radweave.phantom.anatomy import draw_anatomy
from radweave.phantom.ct_report import write_ct_report
from radweave.phantom.findings import draw_findings
from radweave.phantom.report import write_report

Edit = Callable[[str, Labeler], str | None]
"""A report and a labeler -> the report with one error; None where it holds nothing to get wrong."""

_SIDES = {"left": "right", "right": "left"}
_GRADES = {
    "small": "large", "tiny": "large", "trace": "large", "large": "small", "mild": "severe", "minimal": "severe",
    "slight": "marked", "moderate": "minimal", "severe": "mild", "marked": "slight", "mildly": "severely",
    "slightly": "markedly", "moderately": "minimally", "severely": "mildly", "markedly": "slightly",
    "faint": "dense", "subtle": "extensive", "extensive": "subtle", "dense": "faint",
}  # fmt: skip
# Other words for the same: none of them changes a side, a degree, or what is affirmed and denied.
_SYNONYMS = {
    "pleural effusion": "pleural fluid",
    "pleural effusions": "pleural fluid",
    "cardiomegaly": "enlargement of the heart",
    "the heart is": "the cardiac silhouette is",
    "heart size is": "the size of the heart is",
    "pulmonary edema": "edema of the lungs",
    "unremarkable": "normal",
    "there is a": "a",
    "small": "little",
    "opacity": "opacification",
    "opacities": "opacifications",
}
_INVENTED = (
    ("Pneumothorax", "There is a moderate right pneumothorax."),
    ("Pleural Effusion", "There is a large left pleural effusion."),
    ("Lung Lesion", "There is a 3 cm mass in the right upper lung."),
    ("Pleural effusion", "There is a large left pleural effusion."),
    ("Lung nodule", "There is a 9 mm nodule in the right upper lobe."),
)


def _swapped(text: str, words: Mapping[str, str]) -> str | None:
    """The text with the first of these words replaced, in the case that it had."""
    match = re.search(rf"\b({'|'.join(sorted(words, key=len, reverse=True))})\b", text, re.IGNORECASE)
    if match is None:
        return None
    new = words[match[0].lower()]
    return text[: match.start()] + (new.capitalize() if match[0][0].isupper() else new) + text[match.end() :]


def _affirming(text: str, labeler: Labeler) -> list[int]:
    """The places of sentences that affirm a finding."""
    sentences = list(whole_sentences(text))
    return [
        place
        for place, mentions in enumerate(labeler.label(sentences))
        if any(one.state is LabelState.POSITIVE for name, one in mentions.items() if name != NO_FINDING)
    ]


def _negation(text: str, labeler: Labeler) -> str | None:
    """A denied finding is affirmed, else an affirmed one denied."""
    match = re.search(r"\b([Nn])o (?=\w)", text)
    if match is not None:
        return text[: match.start()] + ("There is " if match[1] == "N" else "") + text[match.end() :]
    places, sentences = _affirming(text, labeler), list(whole_sentences(text))
    if not places:
        return None
    body = re.sub(r"^there (?:is|are) (?:an? )?", "", sentences[places[0]], flags=re.IGNORECASE)
    sentences[places[0]] = f"No {body[:1].lower()}{body[1:]}"
    return " ".join(sentences)


def _side(text: str, labeler: Labeler) -> str | None:
    """The sides of a sentence are exchanged."""
    sentences = list(whole_sentences(text))
    for place, sentence in enumerate(sentences):
        sides = re.sub(
            r"\b(left|right)\b",
            lambda match: _SIDES[match[0].lower()].capitalize() if match[0][0].isupper() else _SIDES[match[0].lower()],
            sentence,
            flags=re.IGNORECASE,
        )
        if sides != sentence:
            return " ".join([*sentences[:place], sides, *sentences[place + 1 :]])
    return None


def _severity(text: str, labeler: Labeler) -> str | None:
    """A degree becomes the opposite one."""
    return _swapped(text, _GRADES)


def _omission(text: str, labeler: Labeler) -> str | None:
    """A sentence that affirms a finding is left out."""
    places, sentences = _affirming(text, labeler), list(whole_sentences(text))
    if not places or len(sentences) < 2:
        return None
    return " ".join(sentences[: places[0]] + sentences[places[0] + 1 :])


def _invention(text: str, labeler: Labeler) -> str | None:
    """A finding is added that the report does not affirm."""
    (mentions,) = labeler.label([text])
    for name, sentence in _INVENTED:
        if name in mentions and mentions[name].state is not LabelState.POSITIVE:
            return f"{text} {sentence}"
    return None


def _prior(text: str, labeler: Labeler) -> str | None:
    """A report that compares with nothing speaks of an earlier study."""
    return None if compares_with_prior(text) else f"{text} The findings have worsened since the prior study."


def _order(text: str, labeler: Labeler) -> str | None:
    """The sentences come the other way round."""
    sentences = list(whole_sentences(text))
    return " ".join(reversed(sentences)) if len(set(sentences)) > 1 else None


def _synonyms(text: str, labeler: Labeler) -> str | None:
    """Every phrase that has another word for the same is exchanged, as long as the labels stay."""
    changed = re.sub(
        rf"\b({'|'.join(sorted(_SYNONYMS, key=len, reverse=True))})\b",
        lambda match: (
            _SYNONYMS[match[0].lower()].capitalize() if match[0][0].isupper() else _SYNONYMS[match[0].lower()]
        ),
        text,
        flags=re.IGNORECASE,
    )
    return None if changed == text else changed


PLANTED: Mapping[str, Edit] = MappingProxyType(
    {
        "negation": _negation,
        "side": _side,
        "severity": _severity,
        "omission": _omission,
        "invention": _invention,
        "hallucinated prior": _prior,
    }
)
"""Errors by name: each changes one statement."""
HARMLESS: Mapping[str, Edit] = MappingProxyType({"order of sentences": _order, "synonyms": _synonyms})
"""Changes that leave the meaning, by name."""


def planted(reports: Mapping[str, str], edit: Edit, labeler: Labeler) -> list[Pair]:
    """The reports with the error, against themselves; those in which there is nothing to get wrong are left out."""
    drafts = {study: edit(text, labeler) for study, text in reports.items()}
    return [Pair(study, draft, (reports[study],)) for study, draft in drafts.items() if draft is not None]


# Radiologists' counts of errors.

CANDIDATES = ("radgraph", "bertscore", "s_emb", "bleu")
_REPORTS, _ERRORS = "50_samples_gt_and_candidates.csv", "6_valid_raters_per_rater_error_categories.csv"


@dataclass(frozen=True, slots=True)
class CountedErrors:
    """ReXVal: candidate reports with their references, and errors per report, mean over raters (N,)."""

    pairs: tuple[Pair, ...]
    errors: NDArray[np.float64]
    significant: NDArray[np.float64]


def read_rexval(folder: Path) -> CountedErrors:
    """Read ReXVal's published tables.

    Raises:
        InputError: if a table or a column is missing, a count is no number, or a candidate has no counts.
    """
    reports: dict[str, dict[str, str]] = {}
    for number, (_, row) in enumerate(read_table(folder / _REPORTS, needs=("gt_report", *CANDIDATES))):
        reports[str(number)] = row
    raters: set[str] = set()
    total: dict[tuple[str, str], float] = {}
    significant: dict[tuple[str, str], float] = {}
    needs = ("study_number", "candidate_type", "rater_index", "clinically_significant", "num_errors")
    for line, row in read_table(folder / _ERRORS, needs=needs):
        key = (row["study_number"].strip(), row["candidate_type"].strip())
        try:
            count = float(row["num_errors"])
        except ValueError:
            expected, got = "a number", row["num_errors"][:20]
            raise InputError(
                "no count", file=folder / _ERRORS, line=line, field="num_errors", got=got, expected=expected
            ) from None
        raters.add(row["rater_index"].strip())
        total[key] = total.get(key, 0.0) + count
        if row["clinically_significant"].strip().lower() in ("true", "1"):
            significant[key] = significant.get(key, 0.0) + count
    keys = [(number, candidate) for number in reports for candidate in CANDIDATES]
    missing = [key for key in keys if key not in total]
    if missing or not keys:
        got = f"{len(missing)} of {len(keys)} candidates without counts"
        raise InputError("counts are not of these reports", file=folder / _ERRORS, field="study_number", got=got)
    pairs = [Pair(f"{n} {name}", reports[n][name], (reports[n]["gt_report"],), patient_id=n) for n, name in keys]
    means = [np.array([counts.get(key, 0.0) for key in keys]) / len(raters) for counts in (total, significant)]
    return CountedErrors(tuple(pairs), *means)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Kendall's tau-b and Pearson's r of a score with counts of errors, with its sign turned: 1 is best."""

    tau: float
    pearson: float
    studies: int


def agreement(scores: Sequence[float], errors: Sequence[float], *, higher_is_better: bool = True) -> Agreement | None:
    """The agreement of a score with counts of errors; None where either does not vary. NaN scores do not count."""
    from scipy.stats import kendalltau, pearsonr

    values, counts = np.asarray(scores, dtype=np.float64), np.asarray(errors, dtype=np.float64)
    known = ~np.isnan(values)
    values, counts = (values if higher_is_better else -values)[known], -counts[known]
    if len(values) < 3 or np.ptp(values) == 0 or np.ptp(counts) == 0:
        return None
    return Agreement(float(kendalltau(values, counts)[0]), float(pearsonr(values, counts)[0]), len(values))


# The table.

OPTIONS = Options(scores=FURTHER_METRICS, floors=False, resamples=0)
SHOWN = ("BLEU_4", "METEOR", "ROUGE_L", "CIDEr", "CE_F1", "CE_F1_macro")
SIDED = "findings with side F1"
HONESTY = {
    "comparison_without_prior_share": "compares without a prior",
    "left_right_contradiction_share": "sides contradict",
    "hallucinated_findings_per_report": "findings invented",
    "missed_findings_per_report": "findings missed",
}
"""Rows of honesty, which count faults: the larger, the worse."""


def phantom_reports(studies: int, *, ct: bool) -> dict[str, str]:
    """Findings sections of phantoms' first visits, without an image."""
    reports = {}
    for number in range(studies):
        rng = np.random.default_rng([0, number])
        findings = draw_findings(rng, draw_anatomy(rng), "long-tail", "ct" if ct else "xray")
        write = write_ct_report if ct else write_report
        reports[f"s{number}"] = write(findings, rng, has_prior=False).findings
    return reports


def scores_of(evaluation: Evaluation) -> dict[str, float]:
    """All scores of the catalogue that have a value, and F1 of findings with their side."""
    scores = {row.metric: row.score.value for row in evaluation.summary("all")}
    scores[SIDED] = evaluation.sided.scores.f1.value
    scores |= {title: evaluation.honesty.rows()[name].value for name, title in HONESTY.items()}
    return {name: value for name, value in scores.items() if value is not None}


def changes(pairs: Sequence[Pair], labeler: Labeler, options: Options) -> dict[str, float]:
    """Score of the drafts less that of plain copies of the references."""
    copies = [Pair(pair.study_id, pair.refs[0], pair.refs) for pair in pairs]
    own, plain = (scores_of(evaluate_pairs(each, labeler=labeler, options=options)) for each in (pairs, copies))
    return {name: own[name] - plain[name] for name in own if name in plain}


def print_table(rows: Mapping[str, tuple[int, Mapping[str, float]]]) -> None:
    shown = [*(name for name in SHOWN if all(name in row for _, row in rows.values())), SIDED]
    shown[-1:-1] = [name for name in METRICS if name not in SHOWN and METRICS[name].title and _is_shown(name, rows)]
    shown += HONESTY.values()
    harmless = {
        name: min(_worth(name, rows[each][1].get(name, 0.0)) for each in HARMLESS if each in rows) for name in shown
    }
    print("| change | reports |", " | ".join(METRICS[name].title if name in METRICS else name for name in shown), "|")
    print("|---|---:|" + "---:|" * len(shown))
    for error, (reports, row) in rows.items():
        cells = []
        for name in shown:
            value = row.get(name, 0.0)
            text = f"{value:+.3f}".replace("+0.000", "0").replace("-0.000", "0")
            seen = error in PLANTED and _worth(name, value) < harmless[name] - 5e-4
            cells.append(f"**{text}**" if seen else text)
        print(f"| {error} | {reports} |", " | ".join(cells), "|")


def _worth(name: str, change: float) -> float:
    """The change, below zero for a worse score."""
    return METRICS[name].rank(change) if name in METRICS else -change if name in HONESTY.values() else change


def _is_shown(name: str, rows: Mapping[str, tuple[int, Mapping[str, float]]]) -> bool:
    further = METRICS[name].clinical is None and not METRICS[name].title.startswith(("BLEU-", "ROUGE-", "RadGraph_"))
    return further and all(name in row for _, row in rows.values())


def print_agreement(folder: Path, labeler: Labeler, options: Options) -> None:
    """Kendall's tau-b and Pearson's r of each score's studies with the counts of errors."""
    counted = read_rexval(folder)
    evaluation = evaluate_pairs(counted.pairs, labeler=labeler, options=options)
    print("\n| score | tau, significant errors | tau, all errors | r, all errors |\n|---|---:|---:|---:|")
    for name, metric in METRICS.items():
        statistic = metric.statistic(evaluation.statistics, evaluation.clinical_statistics)
        # Of the averages of findings only this one has a value of its own for each study.
        if statistic is None or (metric.clinical is not None and metric.clinical[0] != "example"):
            continue
        rank = metric.higher_is_better
        significant = agreement(statistic.per_study.tolist(), counted.significant.tolist(), higher_is_better=rank)
        every = agreement(statistic.per_study.tolist(), counted.errors.tolist(), higher_is_better=rank)
        if significant is not None and every is not None:
            print(f"| {name} | {significant.tau:.3f} | {every.tau:.3f} | {every.pearson:.3f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=300)
    parser.add_argument("--ct", action="store_true")
    parser.add_argument("--weights", action="append", default=[])
    parser.add_argument("--rexval", type=Path)
    arguments = parser.parse_args()
    options = replace(OPTIONS, folders=read_weights(arguments.weights).folders)
    labeler = get_labeler("ct18" if arguments.ct else "chexpert14")
    reports = phantom_reports(arguments.studies, ct=arguments.ct)
    rows = {}
    for name, edit in (PLANTED | HARMLESS).items():
        pairs = planted(reports, edit, labeler)
        if not pairs:
            continue
        rows[name] = len(pairs), changes(pairs, labeler, options)
    print_table(rows)
    if arguments.rexval is not None:
        print_agreement(arguments.rexval, get_labeler("chexpert14"), options)


if __name__ == "__main__":
    main()
