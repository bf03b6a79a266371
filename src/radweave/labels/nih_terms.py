"""The fourteen findings of the NIH chest X-ray sets, as a view on the CheXpert words.

Six classes mean the same in both sets and share their words. The rest are narrower, or not in CheXpert at all:

    NIH                  CheXpert observation that contains it
    Pneumonia            Pneumonia (which takes in every infection)
    Mass, Nodule         Lung Lesion
    Infiltration         Lung Opacity
    Pleural_Thickening   Pleural Other
    Fibrosis             Pleural Other (as their labeler counts it)
    Emphysema, Hernia    none; they only prevent No Finding
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from radweave.core.ontology import LABEL_SETS
from radweave.labels.chexpert_terms import LEXICON as CHEXPERT14_LEXICON
from radweave.labels.phrases import Lexicon, Terms

NIH14_TO_CHEXPERT14: Mapping[str, str | None] = MappingProxyType(
    {
        "Atelectasis": "Atelectasis",
        "Cardiomegaly": "Cardiomegaly",
        "Effusion": "Pleural Effusion",
        "Infiltration": "Lung Opacity",
        "Mass": "Lung Lesion",
        "Nodule": "Lung Lesion",
        "Pneumonia": "Pneumonia",
        "Pneumothorax": "Pneumothorax",
        "Consolidation": "Consolidation",
        "Edema": "Edema",
        "Emphysema": None,
        "Fibrosis": "Pleural Other",
        "Pleural_Thickening": "Pleural Other",
        "Hernia": None,
    }
)

_SHARED = (
    "Atelectasis",
    "Cardiomegaly",
    "Effusion",
    "Consolidation",
    "Edema",
)

_OWN = {
    "Pneumothorax": Terms(findings=(*CHEXPERT14_LEXICON.terms["Pneumothorax"].findings, "pleural air")),
    "Pneumonia": Terms(findings=("pneumonia*|bronchopneumonia*",)),
    "Infiltration": Terms(findings=("infiltrat*",)),
    "Mass": Terms(findings=("mass|masses|masslike",), look_alikes=("body mass", "fat|fatty mass")),
    "Nodule": Terms(findings=("nodule|nodules|nodularity|micronodul*|fibronodular",)),
    "Emphysema": Terms(
        findings=("emphysem*|bulla|bullae|bullous",), look_alikes=("subcutaneous|mediastinal .. emphysema",)
    ),
    "Fibrosis": Terms(findings=("fibrosis|fibrotic",), look_alikes=("cystic fibrosis",)),
    "Pleural_Thickening": Terms(
        findings=(
            "pleural .. thicken*|plaque*",
            "thicken* of|in the? .. pleura*|fissure*",
            "fissural|fissure|interlobar .. thicken*",
            "apical cap|caps|thickening",
        ),
    ),
    "Hernia": Terms(findings=("herni*",), look_alikes=("inguinal|umbilical|disc|disk herni*",)),
}

LEXICON = Lexicon(
    LABEL_SETS["nih14"],
    version="2",
    doubts=("suggestive of", "suggesting|suggests|suggest"),
    terms={name: CHEXPERT14_LEXICON.terms[NIH14_TO_CHEXPERT14[name] or name] for name in _SHARED} | _OWN,
)
