"""Classes of error that were found in real reports, each with sentences of our own that do and do not show it.

``sentences_*.txt`` beside hold some hundred more, in which the errors were looked for.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from radweave.core.study import LabelState
from radweave.labels import get_labeler

POS, NEG, UNC, BLANK = LabelState.POSITIVE, LabelState.NEGATIVE, LabelState.UNCERTAIN, LabelState.BLANK

Sentences = tuple[tuple[str, LabelState], ...]

REMOVED_DEVICES: Sentences = (
    ("Interval removal of the tracheostomy tube.", NEG),
    ("Since the last film there has been removal of central line.", NEG),
    ("The patient has been extubated and the endotracheal tube has been removed.", NEG),
    ("The previously seen pigtail drain has been pulled.", NEG),
    ("Status post removal of the left chest tube.", NEG),
    ("The nasogastric tube is no longer present.", NEG),
    ("The endotracheal tube has been withdrawn by 2 cm.", POS),
    ("Interval removal of the endotracheal and nasogastric tubes and both chest drains.", NEG),
    ("The left subclavian line was taken out after the last exam.", NEG),
    ("Interval removal of the chest tube, a right PICC remains in the superior vena cava.", POS),
    ("The tracheostomy tube has been exchanged and ends above the carina.", POS),
    ("Median sternotomy wires are intact.", BLANK),
    ("Removal of the feeding tube, with a new catheter in the right jugular vein.", POS),
)

NORMAL_INTERSTITIUM: Sentences = (
    ("Normal pulmonary vasculature and interstitium.", NEG),
    ("The interstitium is unremarkable.", NEG),
    ("Pulmonary vascularity and interstitium are within normal limits.", NEG),
    ("Vessels and interstitial markings appear normal.", NEG),
    ("Interstitium and airways without abnormality.", NEG),
    ("Normal interstitial markings.", NEG),
    ("The interstitium is diffusely prominent.", POS),
    ("There is coarsening of the interstitium at both bases.", POS),
    ("The heart is normal and the interstitium is thickened.", POS),
    ("Increased interstitium in the lower lobes.", POS),
)

DENSITY_AT_A_PLACE: Sentences = (
    ("Increased density at the base.", POS),
    ("There is increased density in the right upper lobe.", POS),
    ("Density is increased at the left lung base.", POS),
    ("An increase in density is seen behind the heart.", POS),
    ("Small area of increased density in the lingula.", POS),
    ("No increased density at the lung bases.", NEG),
    ("Increased densities at both apices, as before.", POS),
    ("The density of the bones is decreased.", BLANK),
    ("Calcified density in the left hilum is an old node.", BLANK),
    ("Metallic densities project over the left shoulder.", BLANK),
    ("Bone density is low for age.", BLANK),
)

INTERSTITIAL_MARKING: Sentences = (
    ("Prominent interstitial marking on both sides.", POS),
    ("There is an increase in the interstitial marking.", POS),
    ("Diffusely coarse interstitial marking, as before.", POS),
    ("The interstitial marking is accentuated at the bases.", POS),
    ("Mildly increased interstitial markings.", POS),
    ("No abnormal interstitial marking.", NEG),
    ("The interstitial marking is normal.", NEG),
    ("Lung markings are normal.", BLANK),
    ("Bronchovascular marking is regular.", BLANK),
    ("Crowding of the bronchovascular markings from low volumes.", BLANK),
    ("Chronic appearing interstitial lung markings.", POS),
)

NODES_OF_PATHOLOGICAL_SIZE: Sentences = (
    ("No lymph node in pathological size was detected in the mediastinum.", NEG),
    ("There is no lymph node in pathological size and appearance.", NEG),
    ("Lymph nodes in pathological dimensions were not observed.", NEG),
    ("Mediastinal stations are without lymph nodes of pathological size.", NEG),
    ("Both axillae are free of lymph nodes of pathological size.", NEG),
    ("Millimetric lymph nodes that do not reach a pathological size.", POS),
    ("A lymph node in pathological size was detected at the right hilum.", POS),
    ("Several lymph nodes of pathological size in the subcarinal station.", POS),
    ("Upper paratracheal lymph nodes, the largest 14 mm in short axis.", POS),
    ("Bilateral hilar lymphadenopathy.", POS),
)

FLUID_OUTSIDE_THE_CHEST: Sentences = (
    ("A subcapsular effusion in the spleen.", BLANK),
    ("Free effusion between the bowel loops.", BLANK),
    ("Effusion around the gallbladder is noted.", BLANK),
    ("Minimal effusion in the pelvis.", BLANK),
    ("Perisplenic and perihepatic effusion.", BLANK),
    ("Effusion in the left shoulder joint.", BLANK),
    ("There is effusion in the lesser sac next to the pancreas.", BLANK),
    ("Effusion in the right pleural space and next to the liver.", POS),
    ("Bilateral effusion with compressive collapse.", POS),
    ("An effusion of 3 cm is present in the left hemithorax.", POS),
    ("No effusion in the abdomen.", BLANK),
)

DENSITY_IN_FAT: Sentences = (
    ("Increased density in the pericolonic fat.", BLANK),
    ("Density increase is observed in the fatty planes around the kidney.", BLANK),
    ("Soft tissue density in the anterior mediastinum is thymic.", BLANK),
    ("Stranding and increased density in the peripancreatic fat planes.", BLANK),
    ("Density increases in the subcutaneous adipose tissue of the back.", BLANK),
    ("Increased density in the colon wall and its surroundings.", BLANK),
    ("A density increase in the adrenal lodge.", BLANK),
    ("Increased density in the left lower lobe and in the abdominal fat.", POS),
    ("Nodular density increases in both lungs.", POS),
    ("Increased densities with ground glass character in the lingula.", POS),
    ("There is no density increase in the lung parenchyma.", NEG),
)

HEART_SIZE_INCREASED: Sentences = (
    ("Marked increase in heart size.", POS),
    ("There has been an interval increase in the size of the heart.", POS),
    ("The cardiac silhouette has increased in size.", POS),
    ("Heart size is increased.", POS),
    ("Mild increase of the cardiac silhouette.", POS),
    ("Cardiac size is greater than normal.", POS),
    ("No increase in heart size.", NEG),
    ("The size of the heart is not increased.", NEG),
    ("Heart size is normal, lung volumes have increased.", NEG),
    ("Increased density behind the heart.", BLANK),
    ("The heart is upper normal in size.", NEG),
)

CLASSES: dict[str, tuple[str, str, Sentences]] = {
    "removed devices": ("chexpert14", "Support Devices", REMOVED_DEVICES),
    "normal interstitium": ("chexpert14", "Lung Opacity", NORMAL_INTERSTITIUM),
    "density at a place": ("chexpert14", "Lung Opacity", DENSITY_AT_A_PLACE),
    "interstitial marking": ("chexpert14", "Lung Opacity", INTERSTITIAL_MARKING),
    "nodes of pathological size": ("ct18", "Lymphadenopathy", NODES_OF_PATHOLOGICAL_SIZE),
    "fluid outside the chest": ("ct18", "Pleural effusion", FLUID_OUTSIDE_THE_CHEST),
    "density in fat": ("ct18", "Lung opacity", DENSITY_IN_FAT),
    "heart size increased": ("chexpert14", "Cardiomegaly", HEART_SIZE_INCREASED),
}


@pytest.mark.parametrize("name", CLASSES)
def test_sentences_of_an_error_class(name: str) -> None:
    labeler, label, sentences = CLASSES[name]
    result = get_labeler(labeler).label([text for text, _ in sentences])
    wrong = {
        text: labels[label].state
        for (text, state), labels in zip(sentences, result, strict=True)
        if labels[label].state is not state
    }
    assert wrong == {}


STATES = {"P": POS, "N": NEG, "U": UNC, "B": BLANK}


@pytest.mark.parametrize(("labeler", "least"), [("chexpert14", 200), ("ct18", 100)])
def test_sentences_of_our_own(labeler: str, least: int) -> None:
    lines = (Path(__file__).parent / f"sentences_{labeler}.txt").read_text(encoding="utf-8").splitlines()[1:]
    parts = [line.partition(" => ") for line in lines]
    result = get_labeler(labeler).label([text for text, _, _ in parts])
    wrong = {
        (text, name): labels[name].state
        for (text, _, stated), labels in zip(parts, result, strict=True)
        for name, _, state in (each.partition("=") for each in stated.split("; "))
        if labels[name].state is not STATES[state]
    }
    assert wrong == {}
    assert len(lines) >= least
