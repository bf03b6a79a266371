"""Scores against errors of known kinds, planted in reports or counted by radiologists.

A planted error changes one statement of a report; drafts that are otherwise copies of their references show what a
score makes of it. Two changes are harmless: another order of sentences, and other words for the same. A score sees an
error only where it falls by more than for these.

ReXVal has radiologists' counts of errors in 200 candidate reports; a score that is worth something falls with them.

Source: Yu et al., "Evaluating progress in automatic chest X-ray radiology report generation", Patterns 4(9), 2023
(ReXVal, PhysioNet rexval-dataset 1.0.0).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from radweave.core.errors import InputError
from radweave.core.study import LabelState
from radweave.data.tables import read_table
from radweave.labels import NO_FINDING, Labeler
from radweave.labels.comparisons import compares_with_prior, whole_sentences
from radweave.metrics.pairs import Pair

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
