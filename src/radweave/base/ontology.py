"""Class names of the label sets, in the order their sources give them.

Two orders of the fourteen CheXpert observations are in use: the published labeler's files start with "No Finding" and
have "Lung Lesion" before "Lung Opacity"; the CheXbert heads end with "No Finding". Always match classes by name.

Sources: Irvin et al., "CheXpert", AAAI 2019 (14 observations; the five that its competition scored); Hamamci et al.,
CT-RATE / CT-CLIP, arXiv:2403.17834 (18 abnormalities); Wang et al., "ChestX-ray8", CVPR 2017, and its extension (14).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

NO_FINDING = "No Finding"

CHEXPERT14: tuple[str, ...] = (
    "Enlarged Cardiomediastinum",
    "Cardiomegaly",
    "Lung Opacity",
    "Lung Lesion",
    "Edema",
    "Consolidation",
    "Pneumonia",
    "Atelectasis",
    "Pneumothorax",
    "Pleural Effusion",
    "Pleural Other",
    "Fracture",
    "Support Devices",
    NO_FINDING,
)

CHEXPERT5: tuple[str, ...] = ("Cardiomegaly", "Edema", "Consolidation", "Atelectasis", "Pleural Effusion")

CT18: tuple[str, ...] = (
    "Medical material",
    "Arterial wall calcification",
    "Cardiomegaly",
    "Pericardial effusion",
    "Coronary artery wall calcification",
    "Hiatal hernia",
    "Lymphadenopathy",
    "Emphysema",
    "Atelectasis",
    "Lung nodule",
    "Lung opacity",
    "Pulmonary fibrotic sequela",
    "Pleural effusion",
    "Mosaic attenuation pattern",
    "Peribronchial thickening",
    "Consolidation",
    "Bronchiectasis",
    "Interlobular septal thickening",
)

NIH14: tuple[str, ...] = (
    "Atelectasis",
    "Cardiomegaly",
    "Effusion",
    "Infiltration",
    "Mass",
    "Nodule",
    "Pneumonia",
    "Pneumothorax",
    "Consolidation",
    "Edema",
    "Emphysema",
    "Fibrosis",
    "Pleural_Thickening",
    "Hernia",
)

CLASSES: Mapping[str, tuple[str, ...]] = MappingProxyType({"chexpert14": CHEXPERT14, "ct18": CT18, "nih14": NIH14})
"""Label set's name, as studies and the command line use it -> its classes."""
