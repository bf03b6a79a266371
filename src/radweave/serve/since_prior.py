"""What a draft says beside the report of the patient's study before: what changed, and which words do not fit it.

Both texts are read by the same rules. A change is what the two say; whether it is so, the images show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from radweave.base.study import LabelState
from radweave.explain.support import SAID, Claim, Sentence, Support
from radweave.labels import NO_FINDING, Labeler
from radweave.labels.comparisons import words_of_change

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
        then, now = before.get(finding.name, LabelState.BLANK), finding.said
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
