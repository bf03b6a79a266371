"""Comparisons are taken out of a draft: what stays is whole, says the same, and compares with nothing."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radweave.core.study import LabelState
from radweave.labels import NO_FINDING, get_labeler
from radweave.labels.comparisons import compares_with_prior, is_broken, remove_comparisons
from radweave.phantom.report import write_report
from radweave.phantom.study import course_of, slot_of

LABELER = get_labeler("chexpert14")
BROKEN = re.compile(
    r"(?:^|[.;]\s*)(?:and|but|or|with|of|than|is|are|has|have)\b|\b(?:and|but|with|of|than|the|a|an|no|is|are|has|have|in)\s*[.;]"
    r"|,\s*[.,;]|\s{2}|\(\s*\)|\bno the\b|(?:^|\s)\.\s*\.",
    re.IGNORECASE,
)

UNCHANGED = {
    *("left", "right", "bilateral", "upper", "lower", "middle", "lobe", "base", "apical", "mm", "cm", "5", "8", "9"),
    *("no", "not", "without", "possible", "may", "effusion", "tube", "mass", "nodule"),
}


def without(text: str) -> str:
    return remove_comparisons(text, LABELER)[0]


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


@pytest.mark.parametrize(
    ("draft", "wanted"),
    [
        # an adjective before a finding
        ("Stable cardiomegaly.", "Cardiomegaly."),
        ("There is a stable calcified granuloma in the left lung.", "There is a calcified granuloma in the left lung."),
        ("Unchanged small left apical pneumothorax, 0.9 cm.", "Small left apical pneumothorax, 0.9 cm."),
        ("Stable mild cardiomegaly with new edema.", "Mild cardiomegaly with edema."),
        ("Persistent left basilar atelectasis.", "Left basilar atelectasis."),
        ("Continued elevation of the left hemidiaphragm.", "Elevation of the left hemidiaphragm."),
        ("Worsening right lower lobe consolidation.", "Right lower lobe consolidation."),
        ("Recurrent right pneumothorax.", "Right pneumothorax."),
        ("Possible new pneumonia.", "Possible pneumonia."),
        ("Stable-appearing chest tube.", "Chest tube."),
        ("There is a new opacity.", "There is an opacity."),
        ("There is an unchanged NG tube.", "There is an NG tube."),
        ("There is an unchanged PICC line.", "There is a PICC line."),
        ("Stable cardiomegaly without acute disease.", "Cardiomegaly without acute disease."),
        ("Stable normal heart size.", "Normal heart size."),
        ("Stable appearance of coronary stent.", "Coronary stent."),
        # what was seen again
        ("Surgical clips are again seen.", "Surgical clips are seen."),
        ("Again noted is a right upper lobe mass.", "Noted is a right upper lobe mass."),
        ("The heart is again mildly enlarged.", "The heart is mildly enlarged."),
        ("There is again a small right effusion.", "There is a small right effusion."),
        ("There is now a moderate left effusion.", "There is a moderate left effusion."),
        ("There is redemonstration of a calcified granuloma.", "There is a calcified granuloma."),
        ("Interval development of a right effusion.", "A right effusion."),
        ("There is interval placement of a right IJ catheter.", "There is a right IJ catheter."),
        # a phrase at either end
        ("Compared to the prior exam, there is a small effusion.", "There is a small effusion."),
        ("No pneumothorax compared to the prior study.", "No pneumothorax."),
        ("Small left effusion, stable from prior.", "Small left effusion."),
        ("Left effusion, new since the prior study.", "Left effusion."),
        ("Scattered right upper lobe scarring as before.", "Scattered right upper lobe scarring."),
        ("No pneumothorax, unchanged.", "No pneumothorax."),
        ("There is mild cardiomegaly, similar to prior exams.", "There is mild cardiomegaly."),
        ("Persistent 1.8 cm right midlung nodule.", "1.8 cm right midlung nodule."),
        ("Mild cardiomegaly unchanged from prior exam.", "Mild cardiomegaly."),
        ("The heart is enlarged, but stable.", "The heart is enlarged."),
        # a predicate beside another, or all that was said of a finding
        ("Heart size is stable and within normal limits.", "Heart size is within normal limits."),
        ("Right basilar airspace disease is unchanged.", "Right basilar airspace disease."),
        ("The granulomas are stable compared to prior examination.", "Granulomas."),
        ("Mild cardiomegaly is unchanged.", "Mild cardiomegaly."),
        ("Left subclavian ICD is unchanged in position.", "Left subclavian ICD."),
        ("heart is enlarged . stable cardiomegaly .", "heart is enlarged . cardiomegaly ."),
        ("No interval change. The lungs are clear.", "The lungs are clear."),
    ],
)  # fmt: skip
def test_words_that_compare_are_deleted(draft: str, wanted: str) -> None:
    assert without(draft) == wanted


@pytest.mark.parametrize(
    "sentence",
    [
        # present would become absent
        *("Partially resolved right effusion.", "Nearly resolved edema.", "The pneumothorax has almost resolved."),
        *("Near complete resolution of right effusion.", "Failure of resolution of right pneumonia."),
        *("No improvement in the right lower lobe pneumonia.", "Pneumonia has not resolved.", "No resolved edema."),
        *("The nodule was not seen on the prior study.", "There is a 9 mm nodule, not seen on prior exams."),
        *("No significant change in small right effusion.", "Effusion is no longer loculated."),
        *("No new or enlarging nodules.", "No new consolidation.", "No evidence of new or worsening pneumonia."),
        # absent would become present
        *("No longer seen is the left pleural effusion.", "No longer present: right pneumothorax."),
        *("There is no new, worsening, or progressive consolidation.", "Interval removal of ET tube and NG tube."),
        *("Right effusion resolved, left effusion unchanged.", "Resolution of right effusion and infiltrate."),
        *("Interval resolution of the effusion and edema.", "Resolving pneumonia."),
        *("The effusion has resolved but the pneumothorax persists.", "Resolved pneumothorax.", "NG tube was removed"
          " since the prior study."),
        *("Previously seen right pneumothorax.", "The prior right lower lobe pneumonia has cleared."),
        *("Improved mediastinal widening.", "The heart is no longer enlarged.", "Cardiomegaly was previously seen."),
        # it would say less, or something else
        *("A 1.9 x 1.8 cm density which has increased in size, suspicious for malignancy.", "Stable chest."),
        *("Nodule measuring 8 mm, previously 5 mm.", "Upper mediastinal mass on the right has increased."),
        *("Mediastinal shift, unchanged, is to the right.", "Tip of the catheter now in the SVC."),
        *("Compared to the prior radiograph, the effusion is larger.", "Compared to prior, lung volumes are lower."),
        *("Airspace disease, not significantly XXXX compared to prior.", "Increased opacity compared to prior."),
        *("The nodule is stable over time.", "Mild residual or recurrent pneumonia.", "Small but stable effusion."),
        *("Stable senescent mediastinal contour.", "There is stable marked cardiomegaly and mediastinal contour."),
        # what is left would be no sentence
        *("Heart size is unchanged.", "Stable mediastinal contours.", "Stable appearance of the chest."),
        *("Heart size within normal limits, stable mediastinal contours.", "Persistent and biapical opacities."),
        *("Status post interval removal of the right chest tube, with no pneumothorax.", "Unchanged from XXXX."),
        *("Mortise radiographically stable.", "XXXX are unchanged."),
        *("The lungs are clear, effusion is unchanged.", "Stable cardiomegaly and mediastinal contour."),
        # forms that are not deleted
        *("Left pleural effusion, worse than yesterday.", "The mass is bigger than it was.", "NG tube has been"
          " removed."),
        *("Pulmonary edema has cleared.", "Decreasing right upper lobe cavity.", "Little change in the opacities."),
        *("There is re-accumulation of the left effusion.", "There has been clearing of the right base opacity."),
        *("The previous opacity is gone.", "A wedge-shaped opacity has developed in the right upper lobe."),
        *("Similar-appearing left midlung scarring.", "The opacity at the left base is more confluent."),
        *("Continued clearance of edema.", "Tube removed in the interval.", "Nodule, not present on prior."),
        *("Edema has nearly vanished compared to prior.", "Effusion drained in the interval."),
        *("Nodule as seen 7 years ago.", "The opacity has evolved.", "Overall, not much has changed."),
    ],
)  # fmt: skip
def test_a_sentence_that_cannot_do_without_is_left_out(sentence: str) -> None:
    now, edits = remove_comparisons(f"Lungs are clear. {sentence}", LABELER)
    assert now == "Lungs are clear."
    assert [(edit.was, edit.now) for edit in edits] == [(sentence, None)]


@pytest.mark.parametrize(
    "text",
    [
        # advice compares with nothing yet
        *("Recommend following this process to resolution.", "If symptoms persist recommend repeat study."),
        *("Followup exam is suggested to confirm clearing or stability.", "Recommend follow-up to show resolution."),
        *("If there is no improvement consider CT for further evaluation.", "Interval followup to resolution is"
          " recommended.", "Comparison with prior films would be helpful to establish stability."),
        # the same words about something else
        *("The patient is hemodynamically stable.", "High-resolution CT may help.", "No evidence of recurrence."),
        *("Calcified nodes from prior granulomatous disease.", "Status post previous sternotomy.", "New York."),
        *("No prior studies are available.", "Increased opacity on the left compared to the right."),
        *("Persistent left superior vena cava.", "The renewed line is unstable.", "Right lung is smaller than left."),
        *("Effusions, worse on the left.", "Compared with the left, the right lung is smaller."),
        *("Chest Comparison: There is a 2.6 cm masslike density over the lingula.", "Well developed lungs."),
        *("Nodules are better seen on the lateral view.", "Diminished lung volumes, increased markings."),
        # what it is now, however old
        *("Old fracture on the left.", "Residual contrast in the colon.", "Healed fractures.", "Lungs remain clear."),
        *("Chronic blunting of the right angle.", "Long-standing elevation of the right hemidiaphragm."),
        *("Surgical removal of the left lung.", "Catheter continues into the right atrium."),
        *("", "  odd   spacing , kept ."),
    ],
)  # fmt: skip
def test_sentences_without_comparison_stay_unchanged(text: str) -> None:
    assert remove_comparisons(text, LABELER) == (text, [])


def test_edits_record_the_former_text() -> None:
    _, edits = remove_comparisons("Stable cardiomegaly. No change. Clear lungs.", LABELER)
    assert [(edit.was, edit.now) for edit in edits] == [("Stable cardiomegaly.", "Cardiomegaly."), ("No change.", None)]


def states(text: str) -> dict[str, LabelState]:
    return {name: mention.state for name, mention in LABELER.label([text])[0].items() if name != NO_FINDING}


def check(text: str) -> None:
    """Nothing compares any more, and every sentence that stayed lost words of comparison only."""
    now, edits = remove_comparisons(text, LABELER)
    assert not compares_with_prior(now)
    assert remove_comparisons(now, LABELER) == (now, [])
    for edit in edits:
        assert compares_with_prior(edit.was)
        if edit.now is None:
            continue
        assert edit.now[0].islower() <= edit.was[0].islower()
        assert edit.now.endswith(".") == edit.was.endswith(".")
        assert states(edit.now) == states(edit.was)
        assert not BROKEN.search(edit.now), edit
        assert not re.search(r"\b(?!xxxx)(\w+) \1\b", edit.now.lower()), edit
        left = iter(["a" if word == "an" else word for word in words(edit.was)])
        assert all(("a" if word == "an" else word) in left for word in words(edit.now)), edit
        gone = Counter(words(edit.was)) - Counter(words(edit.now))
        assert not gone.keys() & UNCHANGED, edit


_FINDINGS = (
    "cardiomegaly",
    "left pleural effusion",
    "right apical pneumothorax",
    "bibasilar atelectasis",
    "granuloma",
    "effusion and NG tube",
)
_FRAMES = (
    "Stable {}.", "There is unchanged {}.", "{} is again noted.", "No new {}.", "{}, stable from prior.", "New {}.",
    "Interval increase in {}.", "Persistent {} since the prior exam.", "The {} has resolved.", "{}, stable contours.",
    "Compared to previous films, {} is larger.", "{} has worsened.", "Resolution of {}.", "Possible new {}.",
    "{}, which is unchanged in size and position.", "Worsening {} with improved air.", "{} without interval change.",
    "Partially resolved {}.", "No new, stable or worsening {}.", "No longer seen is the {}.",
    "{} removed in the interval.",
    "If {} persists consider CT.", "Continued clearance of {}.", "{} has nearly vanished compared to prior.",
    "There is now {}, 8 mm, previously 5 mm.", "Old or recurrent {}.", "No improvement in the {}.", "{} as before.",
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


def test_phantom_reports_lose_comparisons_only() -> None:
    compared = 0
    for index in range(100):
        slot = slot_of(3, index)
        _, findings = course_of(3, slot, "long-tail")
        text = write_report(findings, np.random.default_rng(index), has_prior=slot.visit > 0).findings
        compared += compares_with_prior(text)
        check(text)
    assert compared > 5


def test_real_reports_lose_comparisons_only(shared_data: Path) -> None:
    texts = []
    with (shared_data / "iu_xray" / "manifest.jsonl").open() as lines:
        for line in lines:
            row = json.loads(line)
            texts += [row[name] for name in ("findings", "impression") if row[name] and compares_with_prior(row[name])]
    assert len(texts) > 1000
    # Every eighth, for time; bench/unprompted_comparisons.py goes through all.
    for text in texts[::8]:
        check(text)


@pytest.mark.parametrize(
    ("draft", "wanted"),
    [
        # what a semicolon joined stands alone, and ends
        ("Cardiomegaly is stable; edema has resolved.", "Cardiomegaly."),
        ("No acute change; stable cardiomegaly.", "Cardiomegaly."),
        ("Mild edema; stable.", "Mild edema."),
        ("There is still a small effusion.", "There is a small effusion."),
        ("A small effusion is still seen.", "A small effusion is seen."),
        ("Mild if any stable edema.", "Mild if any edema."),
    ],
)
def test_remaining_text_is_a_complete_sentence(draft: str, wanted: str) -> None:
    assert without(draft) == wanted


@pytest.mark.parametrize(
    "sentence",
    [
        # one adjective would reach over to another finding
        *("Stable small left and new right effusion.", "Old, unchanged fractures and new nodule."),
        *("Mild yet stable edema.", "New effusion if prior was normal.", "Apart from new left effusion, unchanged."),
        # compares in other words
        *("Lungs no worse.", "Worse.", "Same as before.", "No effusion anymore.", "Still no effusion."),
        *("Effusion has returned.", "Effusion is back.", "Pneumonia has recurred.", "Nodule has doubled."),
        *("Nodule has shrunk.", "Nodule is growing.", "The heart got bigger.", "The effusion is the same."),
        *("Failure to clear of the left opacity.", "Left opacity yet to clear.", "Effusion without alteration."),
    ],
)
def test_a_comparison_in_rare_words_is_left_out_whole(sentence: str) -> None:
    assert without(sentence) == ""


def test_words_of_comparison_with_another_sense_stay() -> None:
    assert without("At the same level of the spine, a fracture.") == "At the same level of the spine, a fracture."


@pytest.mark.parametrize("rest", ["Left.", "On the left.", "Right and left.", "The heart."])
def test_a_rest_that_only_names_a_side_or_a_structure_is_a_fragment(rest: str) -> None:
    assert is_broken(rest)
    assert not is_broken("The heart is normal.")
