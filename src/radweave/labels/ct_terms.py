"""Words for the eighteen abnormalities of chest CT reports (the classes of CT-RATE), in our own choice.

A class is positive when the report says that the abnormality is there. Conventions that the manual labels of such
reports follow: a lymph node counts when it is called enlarged, pathological or lymphadenopathy; nodules of the thyroid,
adrenals or breast are no lung nodules; plaques of the aorta and of the coronary arteries are different classes, and a
sentence can state both; sequelae, bands and scars count as fibrotic.
"""

from __future__ import annotations

from radweave.labels.lexicon import Lexicon, Structure, Terms
from radweave.labels.ontology import CT18

_HEART = Structure(
    nouns=(
        "heart",
        "heart size|sizes|dimensions|contour|silhouette|shadow",
        "heart contour|contours ,|and? size",
        "cardiac size|dimensions|silhouette|shadow",
        "cardiothoracic|cardio index|ratio",
        "ctr|cti",
        "heart chambers|cavities",
    ),
    abnormal=(
        "enlarg*",
        "large|larger",
        "increas*",
        "wide|wider|widened",
        "dilat*",
        "above|over|exceeds .. normal",
        "in favor|favour of",
        "prominent",
        "high",
    ),
    doubtful=("upper limit|limits of? normal", "at|near the? upper limit|limits", "borderline"),
)

_NODES = Structure(
    nouns=(
        "lymph node|nodes|nodule|nodules",
        "lymphatic node|nodes",
        "node|nodes",
    ),
    abnormal=(
        "enlarg*",
        "patholog*",
        "increased in? size",
        "large|larger",
        "conglomerat*",
        "necrotic|metasta*",
        "suspicious",
    ),
)

_CALCIFIED = "calcif*|atherom*|atheroscl*|arterioscl*|plaque*"

_TERMS = {
    "Medical material": Terms(
        findings=(
            "catheter*",
            "port|ports",
            "pacemaker*|icd|defibrillator*|electrode*",
            "stent|stents|stented",
            "prosthe*|implant*",
            "clip|clips|suture|sutures|wire|wires",
            "drain|drains",
            "tube|tubes|cannula*",
            "tracheostom*",
            "screw|screws|plate|plates|rod|rods",
            "medical|surgical|metallic|osteosynthesis|fixation|foreign material|materials|device|devices|body",
            "valve replacement|prosthesis",
            "metallic|mechanical valve",
            "artifact|artifacts of metal",
            "graft|grafts",
            "balloon",
        ),
        look_alikes=("plate like", "tube of", "eustachian tube", "portal", "contrast material"),
    ),
    "Arterial wall calcification": Terms(
        findings=(
            f"{_CALCIFIED} .. aort*|arter*|arch|supraaortic|vascular|vessels|walls|wall",
            f"aort*|arter*|vascular|arch .. {_CALCIFIED}",
            f"aort* and|, .. coronary arter* .. {_CALCIFIED}",
            "atherosclero*|atheroma*",
        ),
        look_alikes=(
            f"{_CALCIFIED} in|of|on|at the? walls? of? the? coronary",
            f"coronary arter*|vessel* .. {_CALCIFIED}",
            f"coronary {_CALCIFIED}",
        ),
    ),
    "Cardiomegaly": Terms(
        findings=("cardiomegal*", "cardiac|heart enlargement", "enlargement of|in the? heart|cardiac"),
        structures=(_HEART,),
    ),
    "Pericardial effusion": Terms(
        findings=(
            "pericardial|pericardium .. effusion*|fluid",
            "effusion*|fluid .. pericardi*",
            "pericardial , pleural effusion*",
            "pericardial or|and pleural effusion*",
        ),
    ),
    "Coronary artery wall calcification": Terms(
        findings=(
            f"coronary .. {_CALCIFIED}",
            f"{_CALCIFIED} .. coronar*",
            f"{_CALCIFIED} .. aort* .. coronar*",
            f"{_CALCIFIED} .. aort* , .. coronar*",
        ),
    ),
    "Hiatal hernia": Terms(
        findings=("hiatal|hiatus hernia*", "sliding type? .. hernia*", "esophageal|paraesophageal hernia*")
    ),
    "Lymphadenopathy": Terms(
        findings=("lymphadenopath*|adenopath*|lymphadenomegal*", "lap|laps"),
        structures=(_NODES,),
    ),
    "Emphysema": Terms(
        findings=("emphysem*",),
        look_alikes=("subcutaneous|mediastinal|cutaneous|tissue .. emphysema",),
    ),
    "Atelectasis": Terms(findings=("atelecta*", "collapse|collapsed")),
    "Lung nodule": Terms(
        findings=("nodul*|micronodul*|nodulat*",),
        look_alikes=(
            "lymph nodul*",
            "thyroid .. nodul*",
            "nodul* .. thyroid|liver|spleen|kidney|adrenal|breast|gland",
            "adrenal|surrenal|hepatic|breast|splenic .. nodul*",
        ),
    ),
    "Lung opacity": Terms(
        findings=(
            "ground glass",
            "groundglass",
            "opacit*|opacif*",
            "infiltrat*",
            "density|densities .. increase|increases|areas",
            "increased|increase density|densities",
            "increase in density",
            "crazy paving",
        ),
        look_alikes=("infiltrat* of", "mesenteric .. density", "fatty infiltrat*"),
    ),
    "Pulmonary fibrotic sequela": Terms(
        findings=(
            "fibro*",
            "sequela|sequelae|sequelas|sequel",
            "scar|scars|scarring",
            "parenchymal band|bands",
            "honeycomb*",
            "reticular|reticulation*",
        ),
        look_alikes=("fibroadenoma*|fibroid*|fibrolip*", "sequela|sequelae .. fracture*"),
    ),
    "Pleural effusion": Terms(
        findings=(
            "pleural .. effusion*|fluid",
            "effusion*|fluid .. pleura*|hemithora*",
            "hydrothora*|hemothora*|hydropneumothora*|empyem*",
            "effusion|effusions",
        ),
        look_alikes=("pericardial effusion*", "pericardial fluid"),
    ),
    "Mosaic attenuation pattern": Terms(findings=("mosaic",)),
    "Peribronchial thickening": Terms(
        findings=(
            "peribronchial|bronchial|bronchi|bronchus|bronchiolar .. thicken*|thickness",
            "thicken*|thickness .. bronch*|peribronch*",
            "peribronchial cuffing",
        ),
    ),
    "Consolidation": Terms(findings=("consolidat*",)),
    "Bronchiectasis": Terms(findings=("bronchiecta*|bronchiolectas*|bronchectas*",)),
    "Interlobular septal thickening": Terms(
        findings=(
            "septal|septa|septum|septae .. thicken*|prominen*",
            "interlobular|interlobar|intralobular .. thicken*|prominen*",
            "thicken*|prominen* .. septa|septal|septum|septae|interlobular",
        ),
    ),
}

CT18_LEXICON = Lexicon(name="ct18", version="1", classes=CT18, terms=_TERMS)
