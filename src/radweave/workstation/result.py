"""A draft with its evidence as stored and shown, and its comparison with the prior report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from radweave.core.evidence import DraftEvidence, SentencePlace, ViewEvidence
from radweave.core.ontology import modality_of
from radweave.core.study import LabelState, Modality, Report, Study
from radweave.data.boxes import is_box
from radweave.engine.drafts import ABOUT_SENTENCES, json_value
from radweave.inference.explain.support import (
    FLAGGED,
    STATE_WORDS,
    Claim,
    Finding,
    Sentence,
    Support,
    find_support,
    is_improbable,
)
from radweave.labels import NO_FINDING, Labeler
from radweave.labels.comparisons import words_of_change
from radweave.labels.places import places_name
from radweave.workstation.finished import model_facts, writable

if TYPE_CHECKING:
    from radweave.engine.run_folder import RunCard

_GIVEN = ("indication", "technique", "comparison")


@dataclass(frozen=True, slots=True)
class StudyContext:
    """Context of a study: its record in a data set, and the prior."""

    study: Study | None = None
    prior: Study | None = None

    def as_json(self, support: Support, prior_states: PriorStates) -> dict[str, Any]:
        """Given sections and the prior report as JSON values. The study's own report is never included."""
        sections = {name: getattr(self.study, name) for name in _GIVEN if getattr(self.study, name, None)}
        if self.prior is None:
            return sections
        report = self.prior.report
        rows = changes_from_prior(support, prior_states) if report else []
        return {**sections, "prior": {"study_id": self.prior.study_id, "report": report, "changes": rows}}


def result_of(report: Report, card: RunCard, labeler: Labeler, known: StudyContext) -> dict[str, Any]:
    """Sentences with their support, findings, evidence, warnings and model of a draft, as JSON values."""
    report = _storable(report)
    support = find_support(report, labeler)
    prior_states = read_prior_states(None if known.prior is None else known.prior.report, labeler)
    section = "impression" if card.dataset.target == "impression" else "findings"
    rows = [(row.get("section", section), row.get("source")) for row in report.evidence.get("sentences") or ()]
    rows += [(section, None)] * (len(support.sentences) - len(rows))
    views, modality = report.evidence.get("views") or [], modality_of(labeler.classes)
    return {
        "text": report.text,
        "sentences": [
            {
                "section": part,
                **_sentence(sentence, origin, support, prior_states, places_of(sentence, views, modality)),
            }
            for sentence, (part, origin) in zip(support.sentences, rows, strict=True)
        ],
        # A map of no class, such as a difference map, is no finding.
        "findings": [
            _finding(finding, support)
            for finding in support.findings
            if finding.name in labeler.classes or finding.probability is not None
        ],
        "evidence": json_value({**report.evidence, "study": known.as_json(support, prior_states)}),
        "warnings": list(report.warnings),
        "model": model_facts(card),
    }


def _storable(report: Report) -> Report:
    """A report with text that databases and files can store: a model may write NUL or half a surrogate pair."""
    about = {
        name: [{**row, "text": writable(str(row.get("text", "")))} for row in rows]
        for name in ABOUT_SENTENCES
        if (rows := report.evidence.get(name))
    }
    evidence: DraftEvidence = {**report.evidence, **cast(DraftEvidence, about)}
    return replace(report, text=writable(report.text), evidence=evidence)


def _finding(finding: Finding, support: Support) -> dict[str, Any]:
    return {
        "name": finding.name, "probability": finding.probability, "threshold": finding.threshold,
        "calibrated": finding.name in support.calibration.similar, "experience": finding.experience,
        "said": finding.state.value, "flag": finding.flag,
        "recalled": [
            {"number": case.number, "says": STATE_WORDS[case.says(finding.name)]} for case in support.recalled
        ],
    }  # fmt: skip


def places_of(sentence: Sentence, views: Sequence[ViewEvidence], modality: Modality) -> list[dict[str, Any]] | None:
    """Places of the findings that a sentence states; None of a run that checks none. A box names its image."""
    if sentence.places is None:
        return None
    states = [(claim.name, claim.state) for claim in sentence.claims]
    return [
        {
            **json_value(place),
            "named": places_name(place["sides"], place["zones"], modality),
            "improbable": is_improbable(place),
            "uncertain": (place["finding"], LabelState.UNCERTAIN) in states,
            "boxes": _boxes_on(place, views),
        }
        for place in sentence.places
    ]


def _boxes_on(place: SentencePlace, views: Sequence[ViewEvidence]) -> list[dict[str, Any]]:
    """Boxes with the ``image`` of their view, as ``views`` name it; none that does not lie on it."""
    return [
        {"image": views[view]["image"], "box": json_value(box)}
        for view, box in ((one["view"], one["box"]) for one in place["boxes"])
        if 0 <= view < len(views) and is_box(box, len(views[view]["covers"]))
    ]


def _sentence(
    sentence: Sentence, origin: Any, support: Support, prior_states: PriorStates, places: list[dict[str, Any]] | None
) -> dict[str, Any]:
    """A sentence with the lowest probability of its claims.

    It is flagged if its evidence contradicts or does not support it, or if it conflicts with the prior report.
    """
    probable = {finding.name: finding.probability for finding in support.findings}
    each = {claim.name: _probability(claim, probable) for claim in sentence.claims}
    known = {name: value for name, value in each.items() if value is not None}
    prior = conflicts_with_prior(sentence, prior_states)
    return {
        "text": "".join(part for part, _ in sentence.parts),
        "origin": origin if isinstance(origin, dict) else {"kind": "generated"},
        "confidence": sentence.confidence,
        "probability": min(known.values(), default=None),
        "verdict": sentence.verdict.value,
        "flagged": sentence.verdict in FLAGGED or bool(prior),
        "details": {
            "checked": list(sentence.checked),
            "not_checked": list(sentence.not_checked),
            "calibrated": all(name in support.calibration.similar for name in known) if known else None,
            "claims": [_claim(claim, support, probable) for claim in sentence.claims],
            "prior": prior,
            "verbatim": list(sentence.verbatim),
            **({} if places is None else {"places": places}),
        },
    }


def _probability(claim: Claim, probable: Mapping[str, float | None]) -> float | None:
    """Probability of a claim; None for uncertain claims and classes without one."""
    value = probable.get(claim.name)
    if value is None or claim.state not in (LabelState.POSITIVE, LabelState.NEGATIVE):
        return None
    return value if claim.state is LabelState.POSITIVE else 1 - value


def _claim(claim: Claim, support: Support, probable: Mapping[str, float | None]) -> dict[str, Any]:
    return {
        "name": claim.name, "said": STATE_WORDS[claim.state], "verdict": claim.verdict.value,
        "probability": probable.get(claim.name), "threshold": support.calibration.threshold(claim.name),
        "calibrated": claim.name in support.calibration.similar, "agree": list(claim.agree),
        "differ": list(claim.differ),
    }  # fmt: skip


# Comparison of a draft with the prior report. Both texts are labelled by the same rules; a change is one of the texts,
# not of the images.

_PRESENT = (LabelState.POSITIVE, LabelState.UNCERTAIN)
_PERSISTING = ("unchanged", "larger", "smaller")

PriorStates = Mapping[str, LabelState]


def read_prior_states(report: str | None, labeler: Labeler) -> PriorStates:
    """State of each class in the prior report; empty without a report."""
    if not report:
        return {}
    return {name: mention.state for name, mention in labeler.label([report])[0].items()}


def conflicts_with_prior(sentence: Sentence, prior_states: PriorStates) -> list[str]:
    """Conflicts of a sentence with the prior report: a present finding called new, or an absent one unchanged."""
    if not prior_states:
        return []
    words = words_of_change("".join(part for part, _ in sentence.parts))
    each = (_conflict(claim, words, prior_states.get(claim.name, LabelState.BLANK)) for claim in sentence.claims)
    return [reason for reason in each if reason is not None]


def _conflict(claim: Claim, words: Sequence[str], prior: LabelState) -> str | None:
    if claim.name == NO_FINDING:
        return None
    is_there = claim.state in _PRESENT
    # "No new effusion" leaves open whether the old one is there.
    if claim.state is LabelState.POSITIVE and "new" in words and prior is LabelState.POSITIVE:
        return f"calls {claim.name} new, and the prior report affirms it"
    goes_on = [word for word in words if word in _PERSISTING]
    if is_there and goes_on and prior in (LabelState.NEGATIVE, LabelState.BLANK):
        return f"calls {claim.name} {goes_on[0]}, and in the prior report it is {STATE_WORDS[prior]}"
    if "resolved" in words and prior is LabelState.NEGATIVE:
        return f"calls {claim.name} resolved, and the prior report denies it"
    return None


def changes_from_prior(support: Support, prior_states: PriorStates) -> list[dict[str, Any]]:
    """Change of each class from the prior report, for classes affirmed or uncertain in one of both reports."""
    rows = []
    for finding in support.findings:
        then, now = prior_states.get(finding.name, LabelState.BLANK), finding.state
        if finding.name == NO_FINDING or (then not in _PRESENT and now not in _PRESENT):
            continue
        lines = [support.sentences[number - 1] for number in finding.sentences]
        words = [word for line in lines for word in words_of_change("".join(part for part, _ in line.parts))]
        rows.append(
            {
                "name": finding.name,
                "before": STATE_WORDS[then],
                "now": STATE_WORDS[now],
                "change": _change(then, now, words),
            }
        )
    return rows


def _change(then: LabelState, now: LabelState, words: Sequence[str]) -> str:
    if then in _PRESENT and now in _PRESENT:
        return next((word for word in words if word in _PERSISTING), "still there")
    if then in _PRESENT:
        return "resolved" if now is LabelState.NEGATIVE else "not mentioned any more"
    return "new"
