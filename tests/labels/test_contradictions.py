"""Sentences that cannot all be true: both sides of every rule, for radiographs and CT."""

from __future__ import annotations

import pytest

from radweave.labels.contradictions import COVERS, TOPICS, claims_of, contradictions, contradictions_of

TORN = [
    # a finding, and a sentence that takes it back
    ("There is right lower lobe airspace disease.", "The lungs are clear."),
    ("There is a left basilar opacity.", "Clear lungs."),
    ("Mild bibasilar atelectasis.", "Lungs are clear bilaterally."),
    ("A 5 mm nodule is seen in the left upper lobe.", "Both lungs are clear and expanded."),
    ("There is a nodular opacity overlying the anterior fifth rib.", "The lungs are clear."),
    ("Diffuse interstitial opacities.", "The lungs are grossly clear."),
    ("Mild pulmonary edema.", "No acute disease."),
    ("There is pneumonia of the lingula.", "No acute cardiopulmonary abnormality."),
    ("There is cardiomegaly.", "No acute cardiopulmonary findings."),
    ("There is an infiltrate.", "The lungs and pleural spaces show no acute abnormality."),
    ("Airspace disease in the right base.", "There is no focal consolidation."),
    ("Patchy infiltrate on the left.", "No focal airspace disease."),
    ("Left basilar atelectasis.", "No focal airspace consolidation."),
    ("There may be a small infiltrate.", "The lungs are clear."),
    ("Bandlike opacities are present.", "The lungs are free of focal airspace disease."),
    ("Small right pleural effusion.", "There is no pleural effusion or pneumothorax."),
    ("Blunting of the left costophrenic angle.", "No effusion."),
    ("There is a pleural effusion.", "Costophrenic angles are sharp."),
    ("There is a pleural effusion.", "The pleural spaces are clear."),
    ("Tiny left apical pneumothorax.", "No pneumothorax."),
    ("The heart is enlarged.", "Heart size normal."),
    ("Moderate cardiomegaly.", "The cardiomediastinal silhouette is within normal limits."),
    ("The cardiac silhouette is enlarged.", "Normal cardiac contour."),
    ("There is an enlarged cardiomediastinal silhouette.", "The heart is normal in size."),
    ("There is a moderate hiatal hernia.", "The mediastinum is unremarkable."),
    ("The mediastinum is widened.", "Mediastinal contours are normal."),
    ("Acute fracture of the left sixth rib.", "Bony structures are intact."),
    ("There is a rib fracture.", "No acute bony abnormality."),
    ("Degenerative changes of the spine.", "The osseous structures are unremarkable."),
    ("Pulmonary vascular congestion.", "The pulmonary vascularity is normal."),
    ("The lungs are hyperinflated.", "Normal lung volumes."),
    ("Calcified granuloma in the right lung.", "Normal chest."),
    ("Scoliosis is present.", "Unremarkable examination."),
    ("The PICC tip is in the SVC.", "No lines or tubes are seen."),
    ("There is airspace disease.", "The heart is enlarged, but the lungs are clear."),
    ("There is airspace disease.", "Although the heart is large, the lungs are clear."),
    ("There is airspace disease.", "The lungs are hyperexpanded but clear."),
    ("There is airspace disease.", "The lungs are clear except for a calcified granuloma."),
    ("There is airspace disease.", "No pneumonia, effusions, edema, pneumothorax, nodules or masses."),
    ("There is consolidation.", "No evidence of pneumonia."),
    ("There is pulmonary vascular congestion.", "The lungs are clear."),
    ("There is congestive heart failure.", "No pulmonary edema."),
    ("There is a density in the left lung base.", "The lungs are clear."),
    ("There is a compression deformity.", "The thoracic spine appears intact."),
    ("Low lung volumes.", "The lungs are well-aerated."),
    # CT
    ("Ground-glass opacities in both lower lobes.", "Aeration of both lungs is normal."),
    ("Centrilobular emphysema.", "Both lungs are clear."),
    ("There is bronchiectasis in the middle lobe.", "The lungs are clear."),
    ("There is a pericardial effusion.", "No pericardial effusion."),
    ("Enlarged lymph nodes in the mediastinum.", "There is no mediastinal lymphadenopathy."),
    ("Hiatal hernia.", "The esophagus is normal."),
    ("Hepatic steatosis.", "The upper abdominal organs are normal."),
    ("A nodule is seen in the left adrenal gland.", "The adrenal glands are normal."),
    ("A lytic lesion in T8.", "No lytic or destructive bone lesion."),
]
CONSISTENT = [
    ("There is a right lower lobe opacity.", "The left lung is clear."),
    ("There is an opacity.", "The left lung is clear."),
    ("There is a right lower lobe opacity.", "The lungs are otherwise clear."),
    ("There is a right lower lobe opacity.", "The remaining lungs are clear."),
    ("Calcified granuloma in the right upper lobe.", "No acute disease."),
    ("Stable scarring at the left apex.", "No acute cardiopulmonary abnormality."),
    ("Degenerative changes of the spine.", "No acute bony abnormality."),
    ("Degenerative changes of the spine.", "Bony structures are intact."),
    ("Old healed rib fracture.", "No acute bony abnormality."),
    ("Small left pleural effusion.", "No large pleural effusion."),
    ("There is cardiomegaly.", "The lungs are clear."),
    ("There is cardiomegaly.", "The mediastinum is unremarkable."),
    ("Tortuous aorta.", "Heart size normal."),
    ("The effusion has resolved.", "No pleural effusion."),
    ("The lungs are hyperinflated.", "The lungs are clear."),
    ("There is scarring at the left apex.", "No focal consolidation."),
    ("There is a consolidation.", "The lungs are normally inflated."),
    ("There is an effusion.", "The lungs are clear of focal airspace disease."),
    ("There is pneumonia.", "Heart size is within normal limits."),
    ("Stable cardiomediastinal silhouette.", "Heart size normal."),
    ("There is atelectasis.", "Consider a repeat if there is concern for pneumonia."),
    ("The PICC tip is in the SVC.", "Normal chest."),
    ("Calcified granuloma.", "The lungs are clear except for a calcified granuloma."),
    ("There is atelectasis.", "The lungs are clear apart from that."),
    ("There is a small nodule.", "A small nodule is seen, but the lungs are clear."),
    ("There is a compression deformity.", "No acute bony abnormality."),
    ("There is airspace disease.", "The heart is enlarged, but there is no pneumothorax."),
    ("Mild cardiomegaly.", "Frontal and lateral views of the chest show a normal mediastinum."),
    # CT
    ("Small nodule in the left thyroid lobe.", "No nodule in either lung."),
    ("Small pericardial effusion.", "No pleural effusion."),
    ("A cyst in the right kidney.", "The liver is normal."),
    ("Pleural effusion on the left.", "Heart size is normal."),
]


@pytest.mark.parametrize(("finding", "denial"), TORN)
def test_contradicting_sentences_are_detected(finding: str, denial: str) -> None:
    assert contradictions_of(f"{finding} {denial}") == [(finding, denial)]
    assert contradictions_of(f"{denial} {finding}") == [(finding, denial)], "in either order"


@pytest.mark.parametrize(("finding", "other"), CONSISTENT)
def test_sentences_that_can_both_be_true(finding: str, other: str) -> None:
    assert contradictions_of(f"{finding} {other}") == []


@pytest.mark.parametrize(
    ("report", "held"),
    [
        ("The lungs are otherwise clear.", False),
        ("The heart is enlarged. The lungs are otherwise clear.", False),
        ("The lungs are otherwise clear. There is a small nodule.", False),
        ("There is a small nodule. The lungs are otherwise clear.", True),
        ("The lungs are hyperexpanded but otherwise clear.", True),
        ("Otherwise unremarkable.", False),
        ("There is a fracture. Otherwise unremarkable.", True),
    ],
)
def test_otherwise_needs_something_before_it(report: str, held: bool) -> None:
    assert (contradictions_of(report) == []) is held


def test_lungs_are_not_small_and_large() -> None:
    low, large = "Low lung volumes with atelectasis.", "The lungs are hyperexpanded."
    assert contradictions_of(f"{low} {large}") == [(large, low), (low, large)]
    assert contradictions_of("Low lung volumes. The lungs are hypoinflated.") == []
    assert contradictions_of("The left lung is hyperinflated. The right lung is hypoinflated.") == []


def test_a_sentence_can_take_itself_back() -> None:
    torn = "Lungs are clear airspace disease."
    assert contradictions_of(torn) == [(torn, torn)]
    assert contradictions_of("Lungs are clear of airspace disease.") == []
    assert contradictions_of("The lungs are clear aside from mild scarring.") == []
    assert contradictions_of("The lungs are hyperexpanded and clear.") == []


def test_a_denial_is_limited_to_its_own_side() -> None:
    assert contradictions_of("There is a left effusion. There is no right effusion.") == []
    assert contradictions_of("There is a left effusion. There is no left effusion.")
    assert contradictions_of("There are bilateral effusions. There is no left effusion.")


def test_both_parts_of_a_report_are_one_report() -> None:
    report = "FINDINGS: There is a left basilar opacity. IMPRESSION: No acute disease."
    assert contradictions_of(report) == [("There is a left basilar opacity.", "No acute disease.")]


def test_numbers_are_those_of_the_sentences() -> None:
    (result,) = contradictions(["Heart size normal.", "There is an effusion.", "No pneumothorax.", "No effusion."])
    assert (result.states, result.denies) == (1, 3)


def test_the_tables_name_known_topics() -> None:
    assert all(covered <= TOPICS.keys() for covered in COVERS.values())
    assert {claim.topic for claim in claims_of("no acute cardiopulmonary abnormality")} <= COVERS.keys()
