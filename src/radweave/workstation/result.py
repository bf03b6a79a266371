"""A draft held against its evidence, as the store keeps it and the page shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from radweave.core.study import LabelState, Report, Study
from radweave.inference.explain.support import SAID, Claim, Sentence, Support
from radweave.labels import NO_FINDING, Labeler
from radweave.labels.comparisons import words_of_change
from radweave.workstation.finished import model_facts, writable

if TYPE_CHECKING:
    from radweave.engine.run_folder import RunCard
    from radweave.inference.explain.support import Claim, Finding, Sentence, Support
    from radweave.labels import Labeler

_GIVEN = ("indication", "technique", "comparison")


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a study beside its images: the study of a data set, and the patient's one before."""

    study: Study | None = None
    prior: Study | None = None

    def as_json(self, found: Support, before: Before) -> dict[str, Any]:
        """The sections that came with it, and the report of the study before. Its own report is never shown."""
        sections = {name: getattr(self.study, name) for name in _GIVEN if getattr(self.study, name, None)}
        if self.prior is None:
            return sections
        report = self.prior.report
        rows = changes(found, before) if report else []
        return {**sections, "prior": {"study_id": self.prior.study_id, "report": report, "changes": rows}}


def result_of(report: Report, card: RunCard, labeler: Labeler, known: Known) -> dict[str, Any]:
    """Sentences with what they rest on, findings with what that is worth, evidence, warnings, and what drafted it."""
    from radweave.engine.drafts import json_value
    from radweave.inference.explain.support import find_support

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
    from radweave.inference.explain.support import SAID

    return {
        "name": finding.name, "probability": finding.probability, "threshold": finding.threshold,
        "calibrated": finding.name in found.calibration.alike, "experience": finding.experience,
        "said": finding.state.value, "flag": finding.flag,
        "recalled": [{"number": case.number, "says": SAID[case.says(finding.name)]} for case in found.recalled],
    }  # fmt: skip


def _sentence(sentence: Sentence, origin: Any, found: Support, before: Before) -> dict[str, Any]:
    """A sentence with the probability of the least probable thing that it says.

    Flagged is what its evidence contradicts or does not agree with, and what does not fit the prior's report.
    """
    from radweave.inference.explain.support import FLAGGED

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
    from radweave.inference.explain.support import SAID

    return {
        "name": claim.name, "said": SAID[claim.state], "verdict": claim.verdict.value,
        "probability": probable.get(claim.name), "threshold": found.calibration.threshold(claim.name),
        "calibrated": claim.name in found.calibration.alike, "agree": list(claim.agree), "differ": list(claim.differ),
    }  # fmt: skip


# What a draft says beside the report of the patient's study before: what changed, and which words do not fit it.
#
# Both texts are read by the same rules. A change is what the two say; whether it is so, the images show.


_THERE = (LabelState.POSITIVE, LabelState.UNCERTAIN)
_GOES_ON = ("unchanged", "larger", "smaller")

Before = Mapping[str, LabelState]


def said_before(report: str | None, labeler: Labeler) -> Before:
    """What the report of the study before says of each class; nothing of a report that is not there."""
    if not report:
        return {}
    return {name: mention.state for name, mention in labeler.label([report])[0].items()}


def does_not_fit(sentence: Sentence, before: Before) -> list[str]:
    """Why a sentence does not fit the report before: it calls new what was there, or goes on with what was not."""
    if not before:
        return []
    said = words_of_change("".join(part for part, _ in sentence.parts))
    each = (_misfit(claim, said, before.get(claim.name, LabelState.BLANK)) for claim in sentence.claims)
    return [reason for reason in each if reason is not None]


def _misfit(claim: Claim, said: Sequence[str], before: LabelState) -> str | None:
    if claim.name == NO_FINDING:
        return None
    is_there = claim.state in _THERE
    # "No new effusion" leaves open whether the old one is there.
    if claim.state is LabelState.POSITIVE and "new" in said and before is LabelState.POSITIVE:
        return f"calls {claim.name} new, and the prior report affirms it"
    goes_on = [word for word in said if word in _GOES_ON]
    if is_there and goes_on and before in (LabelState.NEGATIVE, LabelState.BLANK):
        return f"calls {claim.name} {goes_on[0]}, and in the prior report it is {SAID[before]}"
    if "resolved" in said and before is LabelState.NEGATIVE:
        return f"calls {claim.name} resolved, and the prior report denies it"
    return None


def changes(found: Support, before: Before) -> list[dict[str, Any]]:
    """Of each class that one of both reports affirms or leaves open: what they say, and what that is as a change."""
    rows = []
    for finding in found.findings:
        then, now = before.get(finding.name, LabelState.BLANK), finding.state
        if finding.name == NO_FINDING or (then not in _THERE and now not in _THERE):
            continue
        lines = [found.sentences[number - 1] for number in finding.sentences]
        said = [word for line in lines for word in words_of_change("".join(part for part, _ in line.parts))]
        rows.append({"name": finding.name, "before": SAID[then], "now": SAID[now], "change": _change(then, now, said)})
    return rows


def _change(then: LabelState, now: LabelState, said: Sequence[str]) -> str:
    if then in _THERE and now in _THERE:
        return next((word for word in said if word in _GOES_ON), "still there")
    if then in _THERE:
        return "resolved" if now is LabelState.NEGATIVE else "not mentioned any more"
    return "new"
