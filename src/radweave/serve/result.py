"""A draft held against its evidence, as the store keeps it and the page shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from radweave.base.study import LabelState, Report, Study
from radweave.hospital.model import model_facts
from radweave.hospital.signs import writable

if TYPE_CHECKING:
    from radweave.explain.support import Claim, Finding, Sentence, Support
    from radweave.labels import Labeler
    from radweave.runs.folder import RunCard
    from radweave.serve.since_prior import Before

_GIVEN = ("indication", "technique", "comparison")


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a study beside its images: the study of a data set, and the patient's one before."""

    study: Study | None = None
    prior: Study | None = None

    def as_json(self, found: Support, before: Before) -> dict[str, Any]:
        """The sections that came with it, and the report of the study before. Its own report is never shown."""
        from radweave.serve.since_prior import changes

        sections = {name: getattr(self.study, name) for name in _GIVEN if getattr(self.study, name, None)}
        if self.prior is None:
            return sections
        report = self.prior.report
        rows = changes(found, before) if report else []
        return {**sections, "prior": {"study_id": self.prior.study_id, "report": report, "changes": rows}}


def result_of(report: Report, card: RunCard, labeler: Labeler, known: Known) -> dict[str, Any]:
    """Sentences with what they rest on, findings with what that is worth, evidence, warnings, and what drafted it."""
    from radweave.explain.support import find_support
    from radweave.runs.evidence import json_value
    from radweave.serve.since_prior import said_before

    report = _storable(report)
    found = find_support(report, labeler)
    before = said_before(None if known.prior is None else known.prior.report, labeler)
    section = "impression" if card.dataset.target == "impression" else "findings"
    rows = [(row.get("section", section), row.get("source")) for row in report.evidence.get("sentences") or ()]
    rows += [(section, None)] * (len(found.sentences) - len(rows))
    return {
        "text": report.text,
        "sentences": [
            {"section": part, **_sentence(sentence, origin, found, before)}
            for sentence, (part, origin) in zip(found.sentences, rows, strict=True)
        ],
        # A map that is of no class, such as where two images differ, is looked at with the images; it is no finding.
        "findings": [
            _finding(finding, found)
            for finding in found.findings
            if finding.name in labeler.classes or finding.probability is not None
        ],
        "evidence": json_value({**report.evidence, "study": known.as_json(found, before)}),
        "warnings": list(report.warnings),
        "model": model_facts(card),
    }


def _storable(report: Report) -> Report:
    """A report whose text databases and files hold: a model may write NUL or half a sign."""
    evidence = dict(report.evidence)
    for name in ("sentences", "sentence_fit"):
        if evidence.get(name):
            evidence[name] = [{**row, "text": writable(str(row.get("text", "")))} for row in evidence[name]]
    return replace(report, text=writable(report.text), evidence=evidence)


def _finding(finding: Finding, found: Support) -> dict[str, Any]:
    from radweave.explain.support import SAID

    return {
        "name": finding.name, "probability": finding.probability, "threshold": finding.threshold,
        "calibrated": finding.name in found.calibration.alike, "experience": finding.experience,
        "said": finding.said.value, "flag": finding.flag,
        "recalled": [{"number": case.number, "says": SAID[case.says(finding.name)]} for case in found.recalled],
    }  # fmt: skip


def _sentence(sentence: Sentence, origin: Any, found: Support, before: Before) -> dict[str, Any]:
    """A sentence with the probability of the least probable thing that it says.

    Flagged is what its evidence contradicts or does not agree with, and what does not fit the prior's report.
    """
    from radweave.explain.support import FLAGGED
    from radweave.serve.since_prior import does_not_fit

    probable = {finding.name: finding.probability for finding in found.findings}
    each = {claim.name: _probability(claim, probable) for claim in sentence.claims}
    there = {name: value for name, value in each.items() if value is not None}
    prior = does_not_fit(sentence, before)
    return {
        "text": "".join(part for part, _ in sentence.parts),
        "origin": origin if isinstance(origin, dict) else {"kind": "generated"},
        "confidence": sentence.confidence,
        "probability": min(there.values(), default=None),
        "verdict": sentence.verdict.value,
        "flagged": sentence.verdict in FLAGGED or bool(prior),
        "details": {
            "checked": list(sentence.checked),
            "not_checked": list(sentence.not_checked),
            "calibrated": all(name in found.calibration.alike for name in there) if there else None,
            "claims": [_claim(claim, found, probable) for claim in sentence.claims],
            "prior": prior,
            "verbatim": list(sentence.verbatim),
        },
    }


def _probability(claim: Claim, probable: Mapping[str, float | None]) -> float | None:
    """Of what a claim says; None where it says nothing that has one."""
    there = probable.get(claim.name)
    if there is None or claim.state not in (LabelState.POSITIVE, LabelState.NEGATIVE):
        return None
    return there if claim.state is LabelState.POSITIVE else 1 - there


def _claim(claim: Claim, found: Support, probable: Mapping[str, float | None]) -> dict[str, Any]:
    from radweave.explain.support import SAID

    return {
        "name": claim.name, "said": SAID[claim.state], "verdict": claim.verdict.value,
        "probability": probable.get(claim.name), "threshold": found.calibration.threshold(claim.name),
        "calibrated": claim.name in found.calibration.alike, "agree": list(claim.agree), "differ": list(claim.differ),
    }  # fmt: skip
