"""Words for the fourteen CheXpert observations, written from the published description of the classes.

What belongs to which class follows Irvin et al. (AAAI 2019) and the behaviour of their labeler: infection counts as
pneumonia, collapse as atelectasis, vascular congestion as doubtful edema, scars and interstitial changes as opacity,
fibrosis as "Pleural Other". Its known false hits are left out: plate-like atelectasis and endplates are no support
devices, a rib's contour is no mediastinum.
"""

from __future__ import annotations

from radweave.core.ontology import LABEL_SETS
from radweave.core.study import LabelState
from radweave.labels.phrases import Lexicon, Structure, Terms

_LARGE = (
    "borderline enlarg*|large|prominen*",
    "enlarg*",
    "large|larger",
    "prominen*",
    "big|bigger",
    # "Increased density behind the heart" is none of these.
    "increase*|increasing in|of .. size|width|heart|cardiac|cardiothoracic|silhouette|mediastin*",
    "increase*|increasing heart|cardiac|cardiothoracic|cardiomediastinal|mediastinal|size",
    "is|are|was|were|has|have|be|been|appears|appear|not .. increased",
    "increased in? size",
    "greater|larger|bigger than normal|expected",
    "dilat*",
    "globular",
    "magnified",
    "abnormal*",
)

# At the limit is still within it; "borderline" alone is open, "borderline enlarged" is enlarged.
_AT_THE_LIMIT = ("upper limit|limits of? normal", "upper limit|limits for normal", "top|upper normal", "high normal")

_HEART = Structure(
    nouns=(
        "heart|hearts",
        "heart size|sizes|silhouette|silhouettes|contour|contours|shadow",
        "cardiac size|silhouette|silhouettes|contour|contours|shadow|outline|diameter",
        "cardiac and|, .. contour*|silhouette*|size",
        "cardiothoracic|cardio ratio|index",
        "size of the heart",
        "ventricular|atrial|ventricle|atrium size|enlarg*",
    ),
    abnormal=_LARGE,
    normal=_AT_THE_LIMIT,
    doubtful=("borderline",),
    unchanged=LabelState.UNCERTAIN,
)

_MEDIASTINUM = Structure(
    nouns=(
        "mediastinum|mediastina",
        "mediastinal contour*|silhouette*|structures|width|size|outline*|borders|shadow|xxxx",
        "mediastinal and|, .. contour*|silhouette*|structures",
        "cardiomediastin* silhouette*|contour*|structures|size|xxxx",
        "cardiomediastin* and|, .. contour*|silhouette*|structures",
        "cardiomediastinum",
        "cardio mediastinal silhouette*|contour*",
        "cardiac contour*",
    ),
    abnormal=(*_LARGE, "wid*", "full*", "convex*"),
    normal=_AT_THE_LIMIT,
    doubtful=("borderline",),
    unchanged=LabelState.UNCERTAIN,
)

# "Interstitial markings" alone are named when they are seen too well; "normal interstitium" is not a finding.
_INTERSTITIUM = Structure(
    nouns=("interstitium|interstitia", "interstitial .. marking|markings", "interstitial structures|architecture"),
    abnormal=(
        "prominen*",
        "accentuat*",
        "coars*",
        "thick*",
        "increas*",
        "abnormal*",
        "distort*",
        "nodular|reticular",
    ),
    unchanged=LabelState.POSITIVE,
    bare=LabelState.POSITIVE,
)

_TERMS = {
    "Enlarged Cardiomediastinum": Terms(
        findings=(
            "mediastinal|mediastinum|cardiomediastinal widening|enlargement|prominence|fullness",
            "widened superior|upper? mediastin*",
        ),
        structures=(_MEDIASTINUM,),
    ),
    "Cardiomegaly": Terms(
        findings=("cardiomegal*", "cardiac|heart enlargement"),
        hints=("heart|cardiac|ventricular failure", "chf", "congestive failure"),
        structures=(_HEART,),
    ),
    "Lung Opacity": Terms(
        findings=(
            "opacit*|opacif*",
            "infiltrat*",
            "airspace|alveolar|interstitial disease|process|pattern|abnormalit*|disorder|densit*",
            "air space disease|process|abnormalit*|densit*",
            "interstitial .. prominence|thickening|coarsening",
            "increased|increase|increases in? density|densities",
            "density|densities is|are increased",
            "interstitial lung disease",
            "scar|scars|scarring|scarred",
            "prominen*|coarse*|increased|reticular .. interstitial",
            "reticular|reticulonodular|reticulation*",
            "bronchial|peribronchial|bronchovascular .. thicken*|cuff*",
            "parenchymal disease|abnormalit*",
        ),
        look_alikes=(
            "scar|scars|scarring of? skin",
            "pleural scar*",
            "bone|bony|osseous|metallic|calcified|calcific density|densities",
            "increased density of|in the .. bone|bones|vertebra*|rib|ribs|breast*",
        ),
        structures=(_INTERSTITIUM,),
    ),
    "Lung Lesion": Terms(
        findings=(
            "nodul*",
            "micronodul*",
            "mass|masses|masslike",
            "tumor*|tumour*|neoplas*|malignan*",
            "lung|pulmonary|parenchymal metasta*",
            "metasta* .. lung|lungs|pulmonary",
            "lung|pulmonary|parenchymal|cavitary|cavitating|cystic|focal lesion|lesions",
            "cavitary|cavitating|spiculated .. nodul*|mass|lesion|density|opacity",
            "carcinoma*|cancer",
        ),
        look_alikes=("nodul* aort*", "body mass", "calcified nodul*", "fat|fatty mass"),
    ),
    "Edema": Terms(
        findings=(
            "edema*|oedema*",
            "heart|cardiac|ventricular failure",
            "chf",
            "congestive failure",
        ),
        doubtful=(
            "vascular|venous|pulmonary|hilar|perihilar congestion",
            "congestion",
            "cephalization",
            "volume|fluid overload",
            "vascular prominence|redistribution",
        ),
        look_alikes=("soft tissue edema", "laryngeal edema", "subcutaneous edema"),
    ),
    "Consolidation": Terms(findings=("consolidat*",)),
    "Pneumonia": Terms(
        findings=(
            "pneumonia*|bronchopneumonia*",
            "infection|infections|infectious",
            "pneumonic",
        ),
    ),
    "Atelectasis": Terms(
        findings=(
            "atelecta*",
            "collapse|collapsed",
            "subsegmental|volume loss of the lobe",
        ),
        look_alikes=("vertebral .. collapse", "collapse of vertebral", "collapsed vertebra*"),
    ),
    "Pneumothorax": Terms(
        findings=("pneumothora*", "hydropneumothora*", "pneumo thorax", "ptx"),
    ),
    "Pleural Effusion": Terms(
        findings=(
            "effusion*",
            "pleural or|and|, pericardial effusion*",
            "pleural fluid",
            "hydrothora*|hemothora*|haemothora*|hydropneumothora*",
            "fluid .. pleural",
            "empyema*",
        ),
        look_alikes=("pericardial effusion*", "joint effusion*"),
    ),
    "Pleural Other": Terms(
        findings=(
            "pleural .. thicken*|scar*|plaque*|fibro*|calcif*|mass*|nodul*",
            "thicken*|scar* of the? .. pleura*",
            "pleuroparenchymal .. scar*",
            "pleuro parenchymal .. scar*",
            "fibrosis|fibrothora*",
            "thicken* of the .. fissure*",
        ),
    ),
    "Fracture": Terms(findings=("fracture*",)),
    "Support Devices": Terms(
        findings=(
            "catheter*",
            "tube|tubes|tubing",
            "line|lines",
            "picc|piccs",
            "pacemaker*|pacer|pacing|pacemaking",
            "port|ports|mediport*|portacath*|infusaport",
            "port a cath*",
            "valve|valves",
            "device|devices",
            "lead|leads",
            "electrode*",
            "hardware|arthroplast*",
            "screw|screws|rod|rods|plate|plates",
            "drain|drains|pigtail",
            "coil|coils",
            "shunt|shunts",
            "tracheostom*",
            "icd|aicd|defibrillator*|lvad|iabp",
            "balloon pump",
            "ett|ngt|ogt|dobhoff|ecmo|impella",
            "swan ganz",
            "cannula*",
            "markers",
            "equipment",
            "apparatus",
        ),
        look_alikes=(
            "midline",
            "kerley a|b|c line|lines",
            "plate like",
            "line of the",
            "line|lines xxxx",
            "pleural|fissure|joint|stripe|heart|lung|kerley|kerly|fat|septal|paraspinal|paratracheal|mid line|lines",
            "shunt vascularity",
            "ekg|ecg|monitor|monitoring|external|overlying|telemetry .. lead|leads",
        ),
    ),
}

# Signs of age and of breathing in - a tortuous aorta, spondylosis, hyperexpansion - leave "No Finding" alone, as they
# do in the published labeler.
_OTHER = (
    "emphysem*|hyperinflat*",
    "copd",
    "granulom*",
    "calcif*",
    "herni*",
    "degenerat*",
    "scolio*|dextroscolio*|levoscolio*|kypho*",
    "atheroscler*|arterioscler*|atheroma*",
    "aneurysm*",
    "deformit*",
    "osteopen*|osteoporo*|demineral*",
    "adenopath*|lymphadenopath*",
    "bulla*|bleb*|cyst*",
    "bronchiecta*",
    "fibronodular",
    "densit*",
    "blunt*",
    "elevat*|eventrat* .. diaphragm*|hemidiaphragm*",
    "pneumoperiton*|pneumomediastin*",
    "free air",
    "sarcoid*|tubercul*|histoplasm*",
    "sclero*",
    "pectus",
    "wedg*|compress*",
    "flatten* .. diaphragm*|hemidiaphragm*",
    "hilar|vascular|aortic|right|left .. prominence",
    "dish",
    "dislocat*",
    "situs inversus",
)

LEXICON = Lexicon(
    LABEL_SETS["chexpert14"],
    version="2",
    terms=_TERMS,
    other=_OTHER,
    other_look_alikes=("calcified|calcif* nodule that",),
    not_a_finding=frozenset({"Support Devices", "No Finding"}),
    doubt_beats_denial=True,
)
