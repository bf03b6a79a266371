"""How each class presents: where, how large, how many, how sure a reader is of it, and whether it goes away.

Sizes in mm are what the image is drawn with: diameter of an opacity, node or nodule, thickness of a pleural or
pericardial layer, height of a fluid level above the costophrenic angle, rise of the dome in atelectasis, width of the
mediastinum, displacement of a rib.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from radweave.phantom.findings import Zone

_ZONES: dict[Zone, float] = {"upper": 0.35, "mid": 0.3, "lower": 0.35}
_LOW_ZONES: dict[Zone, float] = {"lower": 0.5, "mid": 0.25, "upper": 0.25}


@dataclass(frozen=True, slots=True)
class Habit:
    """Presentation of a class. Shares are chances; ``sizes_mm`` is for mild, moderate and severe ones."""

    sizes_mm: tuple[float, float, float] | None = None
    range_mm: dict[str, tuple[float, float]] = field(default_factory=dict)  # by kind, whatever the severity
    kinds: dict[str, float] = field(default_factory=lambda: {"typical": 1.0})
    zones: dict[Zone, float] = field(default_factory=lambda: {"none": 1.0})
    midline: bool = False
    bilateral: float = 0.0
    counts: tuple[int, int] = (1, 1)
    several: float = 0.0
    doubt: float = 0.0
    lasting: bool = False


_BOTH: dict[Zone, float] = {"diffuse": 1.0}

HABITS: dict[str, Habit] = {
    "Enlarged Cardiomediastinum": Habit(sizes_mm=(80, 93, 108), midline=True, lasting=True),
    "Cardiomegaly": Habit(midline=True, lasting=True),
    "Lung Lesion": Habit(
        range_mm={"mass": (34, 56), "nodule": (16, 30)},
        kinds={"mass": 0.35, "nodule": 0.65},
        zones=_ZONES,
        counts=(2, 4),
        several=0.35,
        doubt=0.1,
    ),
    "Lung Opacity": Habit(sizes_mm=(80, 98, 116), zones=_LOW_ZONES, bilateral=0.3),
    "Edema": Habit(zones={"perihilar": 1.0}, bilateral=1.0),
    "Consolidation": Habit(sizes_mm=(66, 82, 100), zones=_LOW_ZONES, doubt=0.1),
    "Pneumonia": Habit(sizes_mm=(72, 90, 110), zones=_LOW_ZONES, doubt=0.3),
    "Atelectasis": Habit(sizes_mm=(7, 14, 24), zones={"lower": 1.0}, bilateral=0.3, doubt=0.15),
    "Pneumothorax": Habit(sizes_mm=(13, 25, 45), zones={"upper": 1.0}),
    "Pleural Effusion": Habit(sizes_mm=(21, 48, 85), bilateral=0.35),
    "Pleural Other": Habit(sizes_mm=(6, 9, 12), kinds={"plaque": 0.4, "thickening": 0.6}, lasting=True),
    "Fracture": Habit(
        range_mm={"acute": (9, 13), "healing": (9, 13)},
        kinds={"acute": 0.6, "healing": 0.4},
        counts=(2, 3),
        several=0.6,
        lasting=True,
    ),
    "Arterial wall calcification": Habit(midline=True, lasting=True),
    "Pericardial effusion": Habit(sizes_mm=(8, 12, 17), midline=True),
    "Coronary artery wall calcification": Habit(midline=True, lasting=True),
    "Hiatal hernia": Habit(sizes_mm=(44, 56, 70), midline=True, lasting=True),
    "Lymphadenopathy": Habit(sizes_mm=(17, 22, 28), midline=True, counts=(3, 6), several=1.0, doubt=0.1),
    "Emphysema": Habit(zones=_BOTH, bilateral=1.0, lasting=True),
    "Lung nodule": Habit(
        range_mm={"nodule": (9, 28)}, kinds={"nodule": 1.0}, zones=_ZONES, counts=(2, 4), several=0.35, doubt=0.08
    ),
    "Lung opacity": Habit(sizes_mm=(44, 58, 74), zones=_LOW_ZONES, bilateral=0.3, doubt=0.08),
    "Pulmonary fibrotic sequela": Habit(sizes_mm=(18, 24, 30), zones={"upper": 0.5, "lower": 0.5}, lasting=True),
    "Pleural effusion": Habit(sizes_mm=(22, 38, 62), bilateral=0.35),
    "Mosaic attenuation pattern": Habit(zones=_BOTH, bilateral=1.0, lasting=True),
    "Peribronchial thickening": Habit(zones=_BOTH, bilateral=1.0),
    "Bronchiectasis": Habit(zones={"upper": 0.5, "lower": 0.5}, lasting=True),
    "Interlobular septal thickening": Habit(zones=_BOTH, bilateral=1.0),
}
