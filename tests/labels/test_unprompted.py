"""Comparisons are taken out of a draft: what stays is whole, says the same, and compares with nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radweave.base.study import LabelState
from radweave.labels import NO_FINDING, get_labeler
from radweave.labels.comparisons import compares_with_prior
from radweave.labels.unprompted import remove_comparisons
from radweave.phantom.report import write_report
from radweave.phantom.study import course_of, slot_of

LABELER = get_labeler("chexpert14")
BROKEN = re.compile(
    r"(?:^|[.;]\s*)(?:and|but|or|with|of|than|is|are|has|have)\b|\b(?:and|but|with|of|than|the|a|an|no|is|are|has|have|in)\s*[.;]"
    r"|,\s*[.,;]|\s{2}|\(\s*\)|\bno the\b|(?:^|\s)\.\s*\.",
    re.IGNORECASE,
)


def without(text: str) -> str:
    return remove_comparisons(text, LABELER)[0]


@pytest.mark.parametrize(
    ("draft", "wanted"),
    [
        # only the words that compare go
        ("Stable cardiomegaly.", "Cardiomegaly."),
        ("No new consolidation.", "No consolidation."),
        ("There is a stable calcified granuloma in the left lung.", "There is a calcified granuloma in the left lung."),
        ("Surgical clips are again seen.", "Surgical clips are seen."),
        ("Small left effusion, stable from prior.", "Small left effusion."),
        ("Left effusion, new since the prior study.", "Left effusion."),
        ("Small left effusion, larger than before.", "Small left effusion."),
        ("The heart is enlarged, but stable.", "The heart is enlarged."),
        ("Heart size is stable and within normal limits.", "Heart size is within normal limits."),
        ("Compared to the prior exam, there is a small effusion.", "There is a small effusion."),
        ("No change in the small right effusion.", "The small right effusion."),
        ("Interval development of a right effusion.", "A right effusion."),
        ("Right basilar airspace disease is unchanged.", "Right basilar airspace disease is seen."),
        ("The granulomas are stable compared to prior examination.", "The granulomas are seen."),
        ("The effusion has increased in size.", "The effusion is seen."),
        # what went is not there
        ("The left apical pneumothorax has resolved.", "The left apical pneumothorax is not seen."),
        ("Interval removal of the chest tube.", "No chest tube."),
        # words that would say something else of a class are not put there: the findings are said again
        ("Interval resolution of the effusion and edema.", "Edema, no effusion."),
        # one that only compares goes as a whole
        ("No interval change. The lungs are clear.", "The lungs are clear."),
        ("Heart size is unchanged. No effusion.", "No effusion."),
        ("Stable mediastinal contours.", ""),
        ("heart size is stable . no new effusion .", "no effusion ."),
        # a part between commas that only compares goes alone
        ("Heart size within normal limits, stable mediastinal contours.", "Heart size within normal limits."),
    ],
)  # fmt: skip
def test_what_becomes_of_a_comparison(draft: str, wanted: str) -> None:
    assert without(draft) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "The patient is hemodynamically stable.",
        "Recommend follow-up to document resolution.",
        "High-resolution CT may help.",
        "Calcified nodes from prior granulomatous disease.",
        "Status post previous sternotomy.",
        "No prior studies are available.",
        "Increased opacity on the left compared to the right.",
        "Persistent left superior vena cava.",
        "The renewed line is unstable.",
        "",
        "  odd   spacing , kept .",
    ],
)
def test_words_with_another_meaning_stay(text: str) -> None:
    assert remove_comparisons(text, LABELER) == (text, [])


def test_edits_say_what_was_there() -> None:
    _, edits = remove_comparisons("Stable cardiomegaly. No change. Clear lungs.", LABELER)
    assert [(edit.was, edit.now) for edit in edits] == [("Stable cardiomegaly.", "Cardiomegaly."), ("No change.", None)]


def check(text: str) -> None:
    now, edits = remove_comparisons(text, LABELER)
    assert not compares_with_prior(now)
    assert remove_comparisons(now, LABELER) == (now, [])
    assert not any(edit.now == "" for edit in edits)
    assert not BROKEN.search(" ".join(edit.now for edit in edits if edit.now)), edits


_FINDINGS = ("cardiomegaly", "left pleural effusion", "right apical pneumothorax", "bibasilar atelectasis", "granuloma")
_FRAMES = (
    "Stable {}.", "There is unchanged {}.", "{} is again noted.", "No new {}.", "{}, stable from prior.", "New {}.",
    "Interval increase in {}.", "Persistent {} since the prior exam.", "The {} has resolved.", "{}, stable contours.",
    "Compared to previous films, {} is larger.", "{} has worsened.", "Resolution of {}.", "Possible new {}.",
    "{}, which is unchanged in size and position.", "Worsening {} with improved air.", "{} without interval change.",
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(_FRAMES), st.sampled_from(_FINDINGS)), min_size=1, max_size=4))
def test_made_drafts_stay_whole(parts: list[tuple[str, str]]) -> None:
    check(" ".join(frame.format(finding)[:1].upper() + frame.format(finding)[1:] for frame, finding in parts))


_WORDS = (
    *(
        "stable",
        "unchanged",
        "new",
        "no",
        "change",
        "in",
        "the",
        "a",
        "prior",
        "study",
        "compared",
        "to",
        "since",
        "of",
    ),
    *("effusion", "heart", "size", "is", "has", "increased", "resolved", "again", "seen", ",", ".", "and", "with"),
    *("left", "interval", "previously", "of", "normal", "larger", "than", "before", ":", "(", ")", "XXXX"),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from(_WORDS),
        max_size=14,
    )
)
def test_any_words_at_all_never_compare_afterwards(words: list[str]) -> None:
    now, _ = remove_comparisons(" ".join(words), LABELER)
    assert not compares_with_prior(now)
    assert remove_comparisons(now, LABELER)[0] == now


def agrees(text: str) -> list[str]:
    """Classes whose state is another without the comparisons; what a comparison left open is not counted."""
    before, after = (LABELER.label([words])[0] for words in (text, without(text)))
    return [
        name
        for name, mention in before.items()
        if name != NO_FINDING
        and mention.state is not after[name].state
        and not (mention.state is LabelState.UNCERTAIN and after[name].state in (LabelState.NEGATIVE, LabelState.BLANK))
    ]


def test_phantom_reports_say_the_same_without_their_comparisons() -> None:
    compared = 0
    for index in range(100):
        slot = slot_of(3, index)
        _, findings = course_of(3, slot, "long-tail")
        text = write_report(findings, np.random.default_rng(index), has_prior=slot.visit > 0).findings
        compared += compares_with_prior(text)
        check(text)
        assert agrees(text) == []
    assert compared > 5


def test_real_reports_say_the_same_without_their_comparisons(shared_data: Path) -> None:
    texts = []
    with (shared_data / "iu_xray" / "manifest.jsonl").open() as lines:
        for line in lines:
            row = json.loads(line)
            texts += [row[name] for name in ("findings", "impression") if row[name] and compares_with_prior(row[name])]
    assert len(texts) > 1000
    # Every eighth, for time; bench/unprompted_comparisons.py goes through all.
    texts = texts[::8]
    changed = 0
    for text in texts:
        now, edits = remove_comparisons(text, LABELER)
        assert edits
        assert not compares_with_prior(now)
        assert remove_comparisons(now, LABELER)[0] == now
        changed += bool(agrees(text))
    # Where nothing fits, findings are said again or cut off with the comparison: fewer than one report in fifty.
    assert changed <= len(texts) / 50
