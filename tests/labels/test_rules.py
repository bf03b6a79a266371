"""Worked examples of every rule, in sentences of our own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from radweave.core.errors import InputError
from radweave.core.study import LabelState
from radweave.labels import CHEXPERT14, CT18, NIH14, NO_FINDING, Labeler, get_labeler

POS, NEG, UNC, BLANK = LabelState.POSITIVE, LabelState.NEGATIVE, LabelState.UNCERTAIN, LabelState.BLANK


def states(text: str, name: str = "chexpert14") -> dict[str, LabelState]:
    """Every class that the text speaks of."""
    labels = get_labeler(name).label([text])[0]
    return {each: mention.state for each, mention in labels.items() if mention.state is not BLANK}


def abnormal(text: str, name: str = "chexpert14") -> dict[str, LabelState]:
    return {each: state for each, state in states(text, name).items() if each != NO_FINDING}


# Mention.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("There is a moderate right pleural effusion.", {"Pleural Effusion": POS}),
        ("Fluid in the left pleural space.", {"Pleural Effusion": POS}),
        ("Tiny apical pneumothorax on the left.", {"Pneumothorax": POS}),
        ("Bibasilar opacities.", {"Lung Opacity": POS}),
        ("Scarring of the lingula.", {"Lung Opacity": POS}),
        ("A spiculated nodule of the right apex.", {"Lung Lesion": POS}),
        ("Collapse of the left lower lobe.", {"Atelectasis": POS}),
        ("Interstitial edema.", {"Edema": POS}),
        ("Dense consolidation of the middle lobe.", {"Consolidation": POS}),
        ("Findings of pneumonia.", {"Pneumonia": POS}),
        ("Bilateral pleural plaques.", {"Pleural Other": POS}),
        ("Old fracture of the seventh rib.", {"Fracture": POS}),
        ("Dual-lead pacemaker and a PICC.", {"Support Devices": POS}),
        ("Cardiomegaly.", {"Cardiomegaly": POS}),
        ("The mediastinum is widened.", {"Enlarged Cardiomediastinum": POS}),
    ],
)
def test_a_mention_states_its_class(text: str, expected: dict[str, LabelState]) -> None:
    assert abnormal(text) == expected


@pytest.mark.parametrize(
    ("text", "effusion", "edema"),
    [
        ("Effusion: edema is not seen.", POS, NEG),
        ("No effusion: edema is seen.", NEG, POS),
        ("Effusion (edema is not seen).", POS, NEG),
        ("Effusion is seen and edema is not seen.", POS, NEG),
        ("Effusion and edema are not seen.", NEG, NEG),
        ("Effusion: edema is not excluded.", POS, UNC),
        ("Possible effusion, but there is edema.", UNC, POS),
    ],
)
def test_a_cue_reaches_up_to_a_colon_a_bracket_or_a_verb(text: str, effusion: LabelState, edema: LabelState) -> None:
    assert abnormal(text) == {"Pleural Effusion": effusion, "Edema": edema}


# Un-mention: words that look like a class and are not.
@pytest.mark.parametrize(
    "text",
    [
        "Moderate pericardial effusion.",
        "Plate-like change of the endplates.",
        "The trachea is midline.",
        "The contour of the ninth rib is irregular.",
        "Overlying ECG leads.",
    ],
)
def test_look_alikes_state_nothing(text: str) -> None:
    assert abnormal(text) == {}


@pytest.mark.parametrize(
    "text",
    [
        "No pleural effusion.",
        "Lungs without evidence of effusion.",
        "Negative for effusion.",
        "The lungs are free of effusion.",
        "The pleural spaces are clear of effusion.",
        "Resolution of the right effusion.",
        "The right effusion has resolved.",
        "The right effusion has completely cleared.",
        "An effusion is not seen.",
        "Effusion is no longer identified.",
        "Effusion was not observed.",
        "Pleural effusion: none.",
        "Costophrenic blunting rather than effusion.",
        "The film does not show an effusion.",
        "Neither effusion nor scarring.",
        "Absence of effusion.",
    ],
)
def test_negation(text: str) -> None:
    assert states(text)["Pleural Effusion"] is NEG


def test_removed_devices_are_negative() -> None:
    assert states("Interval removal of the left chest tube.")["Support Devices"] is NEG
    assert states("The chest tube was removed.")["Support Devices"] is NEG


@pytest.mark.parametrize(
    "text",
    [
        "Possible effusion.",
        "This may represent an effusion.",
        "Blunting, which could be due to effusion.",
        "Suspicious for effusion.",
        "Concern for a small effusion.",
        "Questionable effusion.",
        "Effusion versus thickening.",
        "Pleural thickening vs. effusion.",
        "Cannot exclude an effusion.",
        "Effusion cannot be excluded.",
        "A small effusion is not excluded.",
        "An effusion is suspected.",
        "No new effusion.",
        "Effusion is not well evaluated.",
        "Right effusion?",
        "Basal density (effusion?).",
    ],
)
def test_doubt(text: str) -> None:
    assert states(text)["Pleural Effusion"] is UNC


def test_negated_mentions_are_not_uncertain() -> None:
    assert states("No opacity to suggest possible pneumonia.")["Pneumonia"] is NEG


def test_alternatives_are_in_doubt() -> None:
    assert states("Scarring or atelectasis at the base.") == {"Lung Opacity": UNC, "Atelectasis": UNC}
    assert states("Atelectasis and scarring at the base.")["Atelectasis"] is POS


def test_last_two_of_a_list_joined_by_or_are_in_doubt() -> None:
    assert abnormal("Effusion, atelectasis, or pneumonia.") == {
        "Pleural Effusion": POS,
        "Atelectasis": UNC,
        "Pneumonia": UNC,
    }
    # A comma behind the "or" ends the choice.
    assert abnormal("Atelectasis or the like, effusion.") == {"Atelectasis": POS, "Pleural Effusion": POS}


def test_lists_are_negated_as_a_whole() -> None:
    # What "is seen" closes the list; it opens no statement of its own.
    sentence = "No consolidation, edema and pneumothorax is seen."
    assert abnormal(sentence) == dict.fromkeys(("Consolidation", "Edema", "Pneumothorax"), NEG)
    result = abnormal("No focal consolidation, effusion, or pneumothorax.")
    assert result == dict.fromkeys(["Consolidation", "Pleural Effusion", "Pneumothorax"], NEG)
    result = abnormal("Consolidation, effusion and pneumothorax are not seen.")
    assert result == dict.fromkeys(["Consolidation", "Pleural Effusion", "Pneumothorax"], NEG)


@pytest.mark.parametrize(
    "text",
    [
        "No pneumothorax, small effusion on the left.",
        "No pneumothorax, there is an effusion.",
        "No pneumothorax but an effusion.",
        "No pneumothorax; effusion on the left.",
        "No pneumothorax and the effusion is larger.",
        "No pneumothorax. Effusion on the left.",
        "No pneumothorax: effusion on the left.",
        "An effusion is present, pneumothorax is not seen.",
        "Effusion without pneumothorax.",
    ],
)
def test_negation_ends_with_its_clause(text: str) -> None:
    assert abnormal(text) == {"Pneumothorax": NEG, "Pleural Effusion": POS}


def test_no_change_denies_nothing() -> None:
    assert abnormal("No change in the effusion.") == {"Pleural Effusion": POS}
    assert abnormal("No significant interval change of the right effusion.") == {"Pleural Effusion": POS}


def test_absence_on_the_prior_study_is_not_absence() -> None:
    assert abnormal("A nodule, not seen on the prior study.") == {"Lung Lesion": POS}


def test_a_relative_clause_is_stepped_over() -> None:
    assert abnormal("The effusion, which was present in March, is not seen.") == {"Pleural Effusion": NEG}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The heart is enlarged.", POS),
        ("Enlarged cardiac silhouette.", POS),
        ("The heart is borderline enlarged.", POS),
        ("Heart size is normal.", NEG),
        ("Normal heart size and mediastinal contours.", NEG),
        ("The heart, hila and mediastinum are within normal limits.", NEG),
        ("The heart is not enlarged.", NEG),
        ("Heart size is at the upper limits of normal.", NEG),
        ("Heart size is borderline.", UNC),
        ("The heart is unchanged.", UNC),
        ("The heart is not normal.", POS),
        ("A pacing wire overlies the heart.", BLANK),
        ("The heart is normal and the aorta is enlarged.", NEG),
    ],
)
def test_structures_take_the_adjective_of_their_clause(text: str, expected: LabelState) -> None:
    assert states(text).get("Cardiomegaly", BLANK) is expected


def test_two_structures_in_one_sentence() -> None:
    result = abnormal("The heart is enlarged and the mediastinum is normal.")
    assert result == {"Cardiomegaly": POS, "Enlarged Cardiomediastinum": NEG}


def test_vascular_congestion_is_doubtful_edema() -> None:
    assert states("Pulmonary vascular congestion.")["Edema"] is UNC
    assert states("No vascular congestion.")["Edema"] is NEG


def test_heart_failure_makes_cardiomegaly_doubtful() -> None:
    assert states("Congestive heart failure.") == {"Edema": POS, "Cardiomegaly": UNC}
    assert "Cardiomegaly" not in states("No heart failure.")


# Aggregation.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("No effusion. Small effusion.", POS),
        ("Possible effusion. Small effusion.", POS),
        ("No effusion. Possible effusion.", UNC),
        ("No effusion. Possible effusion. Small effusion.", UNC),
    ],
)
def test_several_mentions_give_one_state(text: str, expected: LabelState) -> None:
    assert states(text)["Pleural Effusion"] is expected


def test_ct_mentions_take_the_strongest_state() -> None:
    assert states("No nodule. Possible nodule.", "ct18")["Lung nodule"] is UNC
    assert states("No nodule. Possible nodule. Nodules in both lungs.", "ct18")["Lung nodule"] is POS


# No Finding.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Normal chest.", POS),
        ("No effusion. Heart size normal.", POS),
        ("Right jugular catheter, no pneumothorax.", POS),
        ("Small effusion.", BLANK),
        ("Possible effusion.", BLANK),
        ("Emphysema.", BLANK),
        ("Calcified granuloma.", BLANK),
        ("Hiatal hernia.", BLANK),
        ("No emphysema.", POS),
        ("", POS),
    ],
)
def test_no_finding(text: str, expected: LabelState) -> None:
    assert get_labeler("chexpert14").label([text])[0][NO_FINDING].state is expected


# Sections, marks, sentences.
def test_request_sections_are_not_findings() -> None:
    text = "INDICATION: Rule out pneumonia. TECHNIQUE: Two views. FINDINGS: Small effusion. IMPRESSION: Effusion."
    assert abnormal(text) == {"Pleural Effusion": POS}
    assert abnormal("History: pneumonia. The lungs are clear.") == {}


def test_a_lone_comparison_header_hides_nothing() -> None:
    assert abnormal("Comparison: none available. Right effusion.") == {"Pleural Effusion": POS}


@pytest.mark.parametrize(
    "text",
    [
        "There is XXXX right effusion. No XXXX pneumothorax.",
        "Right effusion XXXX. XXXX. No pneumothorax or XXXX.",
        "Right ___ effusion. No pneumothorax.",
    ],
)
def test_deidentification_marks_do_no_harm(text: str) -> None:
    assert abnormal(text) == {"Pleural Effusion": POS, "Pneumothorax": NEG}


@pytest.mark.parametrize(
    "text",
    [
        "1. No pneumothorax.2. Right effusion of 1.5 cm.",
        "- No pneumothorax\n\n- Right effusion",
        "No pneumothorax\r\n\r\nRight effusion",
        'No pneumothorax " Right effusion',
        "• No pneumothorax • Right effusion",
    ],
)
def test_sentences_are_found_in_every_layout(text: str) -> None:
    assert abnormal(text) == {"Pneumothorax": NEG, "Pleural Effusion": POS}


# CT.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Pleural or pericardial effusion was not detected.", {"Pleural effusion": NEG, "Pericardial effusion": NEG}),
        ("Pericardial effusion-thickening was not observed.", {"Pericardial effusion": NEG}),
        ("Fluid of 6 mm was measured in the pericardial space.", {"Pericardial effusion": POS}),
        (
            "Calcified plaques are seen in the aortic arch and the coronary arteries.",
            {"Arterial wall calcification": POS, "Coronary artery wall calcification": POS},
        ),
        ("Calcified plaque of the LAD.", {"Coronary artery wall calcification": POS}),
        ("The aorta has a normal diameter.", {}),
        ("Heart contour and size are natural.", {"Cardiomegaly": NEG}),
        ("The cardiothoracic ratio has increased in favour of the heart.", {"Cardiomegaly": POS}),
        ("Millimetric lymph nodes in the mediastinum.", {"Lymphadenopathy": POS}),
        ("No lymph node of pathological size was detected.", {"Lymphadenopathy": NEG}),
        ("A hypodense nodule in the left thyroid lobe.", {}),
        ("A solid nodule in the left upper lobe.", {"Lung nodule": POS}),
        ("Patchy ground-glass areas in both lungs.", {"Lung opacity": POS}),
        ("Fibrotic density increases at both apices.", {"Pulmonary fibrotic sequela": POS}),
        ("Sequelae of fractures of the left ribs.", {}),
        ("Bronchial wall thickness increases.", {"Peribronchial thickening": POS}),
        ("Smooth thickening of the interlobular septa.", {"Interlobular septal thickening": POS}),
        ("Mosaic attenuation (small airway disease?).", {"Mosaic attenuation pattern": POS}),
        ("Density in the lower lobe (consolidation?).", {"Consolidation": UNC}),
        ("Sliding type hiatal hernia, port catheter.", {"Hiatal hernia": POS, "Medical material": POS}),
        ("Degenerative changes of the vertebral end plates.", {}),
        ("Subcutaneous emphysema of the left chest wall.", {}),
        ("Traction bronchiectasis; linear atelectasis.", {"Bronchiectasis": POS, "Atelectasis": POS}),
    ],
)
def test_ct_sentences(text: str, expected: dict[str, LabelState]) -> None:
    assert states(text, "ct18") == expected


def test_labelers_name_themselves_and_their_classes() -> None:
    for name, classes in (("chexpert14", CHEXPERT14), ("ct18", CT18), ("nih14", NIH14)):
        labeler = get_labeler(name)
        assert isinstance(labeler, Labeler)
        assert labeler.name == f"rule-based {name}"
        assert labeler.version
        assert labeler.classes == classes
        assert tuple(labeler.label([""])[0]) == classes


def test_unknown_names_and_values_are_refused() -> None:
    with pytest.raises(InputError, match="no labeler of this name"):
        get_labeler("chexpert")
    with pytest.raises(InputError, match="a list of reports"):
        get_labeler("ct18").label("No effusion.")
    with pytest.raises(InputError, match=r"texts\[1\].*got NoneType"):
        get_labeler("ct18").label(["No effusion.", None])  # type: ignore[list-item]


def test_importing_and_using_the_rules_stays_light() -> None:
    program = (
        "import sys; from radweave.labels import get_labeler; get_labeler('ct18').label(['No effusion.']); "
        "print([name for name in ('torch', 'transformers', 'scipy', 'sklearn', 'safetensors') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("No mass is found, and enlarged nodules can be seen.", {"Lung Lesion": POS}),
        ("No consolidation is seen, and small nodules are seen.", {"Consolidation": NEG, "Lung Lesion": POS}),
        ("The heart and large vessels are normal.", {"Cardiomegaly": NEG}),
        ("There is no longer evidence of edema.", {"Edema": NEG}),
        ("Opacities may represent atelectasis versus pneumonia.", {"Atelectasis": UNC, "Pneumonia": UNC}),
        ("Removal of the chest tube with persistent edema.", {"Support Devices": NEG, "Edema": POS}),
        ("No definite interstitial changes of edema.", {"Edema": NEG}),
        ("CT to exclude malignancy.", {"Lung Lesion": UNC}),
        ("Pneumonia is unlikely.", {"Pneumonia": UNC}),
        ("Lines and tubes: none. Pleura: no effusion.", {"Support Devices": NEG, "Pleural Effusion": NEG}),
        # What "with" brings is there, unless a list goes on behind it.
        ("No consolidation with development of edema.", {"Consolidation": NEG, "Edema": POS}),
        ("No consolidation with development of edema and effusion.", {"Edema": POS, "Pleural Effusion": POS}),
        (
            "No consolidation with development of edema or effusion.",
            {"Consolidation": NEG, "Edema": NEG, "Pleural Effusion": NEG},
        ),
        (
            "No consolidation with development of edema nor effusion.",
            {"Consolidation": NEG, "Edema": NEG, "Pleural Effusion": NEG},
        ),
        ("No pneumothorax with effusion.", {"Pneumothorax": NEG, "Pleural Effusion": NEG}),
    ],
)
def test_reach_of_cues(text: str, expected: dict[str, LabelState]) -> None:
    result = abnormal(text)
    assert {name: result.get(name, BLANK) for name in expected} == expected
