"""Label sets: classes in the order of their sources, modality, and labelers.

Two orders of the fourteen CheXpert observations are in use: the published labeler's files start with "No Finding" and
have "Lung Lesion" before "Lung Opacity"; the CheXbert heads end with "No Finding". Always match classes by name.

Sources: Irvin et al., "CheXpert", AAAI 2019 (14 observations; the five that its competition scored); Hamamci et al.,
CT-RATE / CT-CLIP, arXiv:2403.17834 (18 abnormalities); Wang et al., "ChestX-ray8", CVPR 2017, and its extension (14).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from radweave.core.study import Modality

NO_FINDING = "No Finding"

CHEXPERT14: tuple[str, ...] = (
    "Enlarged Cardiomediastinum", "Cardiomegaly", "Lung Opacity", "Lung Lesion", "Edema", "Consolidation", "Pneumonia",
    "Atelectasis", "Pneumothorax", "Pleural Effusion", "Pleural Other", "Fracture", "Support Devices", NO_FINDING,
)  # fmt: skip

CHEXPERT5: tuple[str, ...] = ("Cardiomegaly", "Edema", "Consolidation", "Atelectasis", "Pleural Effusion")

CT18: tuple[str, ...] = (
    "Medical material", "Arterial wall calcification", "Cardiomegaly", "Pericardial effusion",
    "Coronary artery wall calcification", "Hiatal hernia", "Lymphadenopathy", "Emphysema", "Atelectasis",
    "Lung nodule", "Lung opacity", "Pulmonary fibrotic sequela", "Pleural effusion", "Mosaic attenuation pattern",
    "Peribronchial thickening", "Consolidation", "Bronchiectasis", "Interlobular septal thickening",
)  # fmt: skip

NIH14: tuple[str, ...] = (
    "Atelectasis", "Cardiomegaly", "Effusion", "Infiltration", "Mass", "Nodule", "Pneumonia", "Pneumothorax",
    "Consolidation", "Edema", "Emphysema", "Fibrosis", "Pleural_Thickening", "Hernia",
)  # fmt: skip

LabelSetName = Literal["chexpert14", "ct18", "nih14"]


@dataclass(frozen=True, slots=True)
class LabelSet:
    """A label set.

    Attributes:
        name: its name in studies, experiments and on the command line.
        classes: in the order of its source.
        modality: the modality that shows its findings.
        network: labeler with published weights, a module of ``radweave.labels`` (``LABELER``).
    """

    name: LabelSetName
    classes: tuple[str, ...]
    modality: Modality
    network: str | None = None


LABEL_SETS: Mapping[LabelSetName, LabelSet] = MappingProxyType(
    {
        label_set.name: label_set
        for label_set in (
            LabelSet("chexpert14", CHEXPERT14, "xray", network="chexbert"),
            LabelSet("ct18", CT18, "ct", network="radbert18"),
            LabelSet("nih14", NIH14, "xray"),
        )
    }
)
"""By name; the first of a modality is its default."""
assert tuple(LABEL_SETS) == get_args(LabelSetName)

CLASSES: Mapping[str, tuple[str, ...]] = MappingProxyType({name: each.classes for name, each in LABEL_SETS.items()})
"""Label set's name -> its classes."""
NETWORKS: Mapping[str, LabelSet] = MappingProxyType(
    {each.network: each for each in LABEL_SETS.values() if each.network is not None}
)
"""Name of a labeler with weights -> its label set."""


def modality_of(classes: Sequence[str]) -> Modality:
    """Modality of the label set with these classes; "xray" for other classes."""
    return next((each.modality for each in LABEL_SETS.values() if each.classes == tuple(classes)), "xray")


def sets_for(modality: Modality) -> tuple[LabelSet, ...]:
    """Label sets of a modality, the default first."""
    return tuple(each for each in LABEL_SETS.values() if each.modality == modality)
