"""Words for the eighteen abnormalities of chest CT reports (the classes of CT-RATE), in our own choice.

A class is positive when the report says that the abnormality is there. Conventions that the manual labels of such
reports follow: a lymph node counts when it is called enlarged, pathological or lymphadenopathy; nodules of the thyroid,
adrenals or breast are no lung nodules; plaques of the aorta and of the coronary arteries are different classes, and a
sentence can state both; sequelae, bands and scars count as fibrotic.
"""

from __future__ import annotations

from radweave.core.ontology import LABEL_SETS
from radweave.labels.phrases import Lexicon, Structure, Terms

_HEART = Structure(
    nouns=(
        "heart",
        "heart size|sizes|dimensions|contour|silhouette|shadow",
        "heart contour|contours ,|and? size",
        "cardiac size|dimensions|silhouette|shadow",
        "cardiothoracic|cardio index|ratio",
        "ctr|cti",
        "heart|cardiac chambers|cavities",
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

_CALCIFIED = ("calcif*", "atherom*", "atheroscl*", "arterioscl*", "plaque*", "sclero*")

_ARTERIES = Structure(
    nouns=(
        "aorta|aortic|aortas|supraaortic",
        "aortic arch|wall|walls|valve",
        "carotid|subclavian|iliac|renal|splenic|celiac|mesenteric|brachiocephalic|pulmonary|thoracic artery|arteries",
        "vascular structure|structures|wall|walls",
        "arterial wall|walls|structures|vessels",
        "great|main|major vessels",
    ),
    abnormal=_CALCIFIED,
    denied_by_normal=False,
)
_CORONARIES = Structure(
    nouns=("coronary|coronaries", "lad|rca|lmca|lcx|cx", "anterior descending", "circumflex"),
    abnormal=_CALCIFIED,
    denied_by_normal=False,
)

_LUNG = (
    "lung|lungs|pulmonary|pulmoner|intrapulmonary",
    "*pleura*|fissur*|lingul*|hemithora*",
    "upper|middle|lower lobe|lobes|zone|zones",
    "segment|segments",
)

# What has fluid, nodes and density of its own and is no part of lungs or pleura.
_ABDOMEN = (
    "abdom*|intraabdominal|pelvi*|retroperiton*|periton*|intraperiton*|mesenter*|omental|omentum|ascit*",
    "liver|hepat*|*hepatic|gallbladder|biliary|bile|pericholecystic|portal|*portal",
    "spleen|splenic|*splenic|subcapsular",
    "kidney|kidneys|renal|*renal|*nephric|surrenal|suprarenal|adrenal|adrenals|ureter*|bladder",
    "pancrea*|*pancreatic|lesser sac",
    "bowel|colon|*colic|*colonic|colonic|sigmoid|rectum|cecum|appendix|intestin*|jejun*|ile*|duoden*|gastr*|*gastric|stomach",
    "uter*|ovar*|prostat*|inguinal|umbilic*",
)
_BODY_WALL = (
    "subcutaneous|skin|cutaneous|muscle|muscles|muscular|fascia*",
    "fascial|facial|tissue|fatty plane|planes",
    "fat|fatty|adipose",
    "breast|breasts|mammar*|retroareolar|gynecomast*",
    "bone|bones|vertebra*|rib|ribs|sternum|scapul*|clavic*|shoulder|knee|joint",
)

_TERMS = {
    "Medical material": Terms(
        findings=(
            "catheter*",
            "port|ports",
            "lead|leads",
            "pacemaker*|icd|defibrillator*|electrode*",
            "stent|stents|stented",
            "prosthe*|implant*",
            "clip|clips|suture|sutures|wire|wires",
            "drain|drains",
            "tube|tubes|cannula*",
            "tracheostom*",
            "screw|screws|rod|rods",
            "metal|metallic|titanium|fixation|osteosynthesis|fixator|surgical .. plate|plates",
            "plate|plates and|, screw*",
            "medical|surgical|metallic|osteosynthesis|fixation|foreign material|materials|device|devices|body",
            "valve replacement|prosthesis",
            "metallic|mechanical valve",
            "artifact|artifacts of metal",
            "graft|grafts",
            "balloon",
        ),
        look_alikes=(
            "plate like",
            "end|skull|cranial|growth plate|plates",
            "bronchial tube|tubes",
            "contrast material",
            "omental|peritoneal implant*",
            "lead|leads to",
        ),
    ),
    "Arterial wall calcification": Terms(
        findings=("atherosclerotic|atheromatous change|changes", "atherosclerosis|arteriosclerosis"),
        elsewhere=("coronar*", "lad|rca|lmca"),
        home=("aort*", "arch", "vascular|arterial"),
        structures=(_ARTERIES,),
    ),
    "Cardiomegaly": Terms(
        findings=("cardiomegal*", "cardiac|heart enlargement", "enlargement of|in the? heart|cardiac"),
        structures=(_HEART,),
    ),
    "Pericardial effusion": Terms(
        findings=(
            "pericard* .. effusion*|fluid",
            "effusion*|fluid .. pericard*",
            "effusion* is|are|was|were .. in|within .. pericard*",
            "effusion*|fluid ... pericardial space|area|region|sac|cavity|recess|distance",
            "hemopericard*|hydropericard*",
        ),
    ),
    "Coronary artery wall calcification": Terms(structures=(_CORONARIES,)),
    "Hiatal hernia": Terms(
        findings=("hiatal|hiatus hernia*", "sliding type? .. hernia*", "esophageal|paraesophageal hernia*")
    ),
    "Lymphadenopathy": Terms(
        findings=(
            "lymphadenopath*|adenopath*|lymphadenomegal*",
            "lap|laps",
            "lymph|lymphatic node|nodes|nodule|nodules",
        ),
        look_alikes=("intrapulmonary|intraparenchymal|subpleural|perifissural .. lymph|lymphatic node|nodes",),
    ),
    "Emphysema": Terms(
        findings=("emphysem*",),
        look_alikes=("subcutaneous|mediastinal|cutaneous|tissue .. emphysema",),
    ),
    "Atelectasis": Terms(
        findings=("atelecta*", "collapse|collapsed"),
        look_alikes=("collapse fracture*", "compression collapse", "collapse* .. vertebra*", "vertebra* .. collapse*"),
    ),
    "Lung nodule": Terms(
        findings=(
            "nodule|nodules|micronodul*|nodulation*",
            "nodular lesion|lesions|formation|formations|structure|structures|appearance|appearances|shadow|shadows",
        ),
        look_alikes=("lymph nodul*", "schmorl nodul*"),
        home=_LUNG,
        elsewhere=(
            "thyroid*|thyroidal|isthmus",
            "adrenal|adrenals|surrenal|suprarenal",
            "breast|breasts|mammar*|retroareolar",
            "liver|hepatic|spleen|splenic|kidney|renal|pancrea*|omental|omentum|mesenter*|periton*",
            "vertebra*|rib|ribs|bone|schmorl",
            "mediastin* adipose|fat*",
            "skin|subcutaneous|axilla*",
        ),
    ),
    "Lung opacity": Terms(
        findings=(
            "ground|frosted glass",
            "groundglass",
            "ggo|ggos",
            "opacit*|opacif*",
            "infiltrat*",
            "density|densities area|areas? increase|increases|increased",
            "increase|increases|increased in? density|densities",
            "crazy paving",
            "patchy|hazy|fuzzy|cloudy|flocculent .. shadow|shadows",
        ),
        look_alikes=(
            "sequel*|fibrot*|linear|band*|pleuroparenchymal|pleural|atelecta* .. density|densities",
            "increase*|density|densities ... consistent|compatible|favor|favour|keeping|secondary|due|belonging"
            " ... sequel*|fibro*|scar*|atelecta*",
            "metallic|operative|postoperative|surgical|suture|stent|calcific .. density|densities",
            "fat|fatty .. infiltrat*|density|densities",
            "ground glass nodul*",
            "infiltrat* of|into the",
            "bone density",
        ),
        home=_LUNG,
        elsewhere=(
            *_ABDOMEN,
            *_BODY_WALL,
            "mediastinal",
            "thymus|thymic|thyroid*",
        ),
    ),
    "Pulmonary fibrotic sequela": Terms(
        findings=(
            "fibro*",
            "sequel*",
            "scar|scars|scarring",
            "parenchymal|parenchyma|pleuroparenchymal band|bands",
            "pleuroparenchymal .. densit*|thick*|change|changes|distortion|retraction",
        ),
        look_alikes=("fibroadenoma*|fibroid*|fibrolip*|fibroglandular", "fibrous"),
        home=_LUNG,
        elsewhere=(
            "rib|ribs|costa*|vertebra*|humer*|clavic*|scapul*|sternum|bone|bones",
            "lymph|lymphatic",
            "liver|hepat*|kidney|renal|spleen|splenic",
        ),
    ),
    "Pleural effusion": Terms(
        findings=(
            "effusion|effusions",
            "pleural or|and|, pericardial effusion*",
            "pleural fluid|liquid",
            "fluid|liquid .. pleura*|hemithora*",
            "fluid|liquid is|are|was|were .. in|within .. pleura*|hemithora*",
            "hydrothora*|hemothora*|hydropneumothora*|empyem*",
        ),
        look_alikes=("pericard* effusion*",),
        home=("pleura*|hemithora*|intrapleural|thora*",),
        elsewhere=(
            "pericard*",
            *_ABDOMEN,
            "mediastin*|shoulder|joint|scrot*",
            "subdiaphragm*|subphrenic|infradiaphragm*",
            "sinus|sinuses|paranasal|mastoid|ear|knee",
        ),
    ),
    "Mosaic attenuation pattern": Terms(findings=("mosaic",)),
    "Peribronchial thickening": Terms(
        findings=(
            "peribronch*|bronchial|bronchi|bronchus|bronchiolar|endobronchial|airway|airways .. thick*",
            "thick* .. bronch*|peribronch*",
            "peribronchial cuffing",
        ),
        look_alikes=("bronch* .. thickness is|are|was|were|of normal|natural|preserved",),
    ),
    "Consolidation": Terms(findings=("consolidat*",)),
    "Bronchiectasis": Terms(findings=("bronchiecta*|bronchiolectas*|bronchectas*",)),
    "Interlobular septal thickening": Terms(
        findings=(
            "septal|septa|septae .. thick*|prominen*",
            "interlobular|interlobar|intralobular .. thick*|prominen*",
            "thick*|prominen* .. septa|septal|septae|interlobular",
            "thick*|prominen* ... interlobular septa|septae",
        ),
    ),
}

LEXICON = Lexicon(LABEL_SETS["ct18"], version="2", terms=_TERMS)
