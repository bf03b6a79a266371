"""Phantom studies: a patient, a visit, its images, its report and its truth, all from ``(seed, index)``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from radweave.config import Config
from radweave.phantom.anatomy import Anatomy, draw_anatomy
from radweave.phantom.course import draw_findings, next_visit
from radweave.phantom.findings import Finding, Prevalence
from radweave.phantom.lesions import make_scene
from radweave.phantom.report import write_report
from radweave.phantom.xray import Exposure, Projection, Projector, develop
from radweave.types import ImageRef, Split, Study, View

# Visits of five patients in eight studies; a patient's studies stand together. Random access needs no counting.
_BLOCK_VISITS = (1, 1, 1, 2, 3)
_BLOCK = sum(_BLOCK_VISITS)
# Splits of ten patients in a row: 7, 1 and 2 of ten. Patients are drawn alike, so a fixed pattern is a random split.
_SPLITS: tuple[Split, ...] = ("train", "test", "train", "val", "train", "train", "train", "test", "train", "train")


class PhantomOptions(Config):
    """What to draw.

    ``prevalence``: "long-tail" as in clinical sets, "balanced", or "normal" for a reference pool. ``image_size`` in
    pixels; ``lateral_share`` of the upright studies have a lateral view; ``masks`` draws finding masks and twins.
    """

    prevalence: Prevalence = "long-tail"
    image_size: int = Field(default=256, ge=32, le=2048)
    lateral_share: float = Field(default=0.5, ge=0, le=1)
    target: Literal["findings", "impression", "findings+impression"] = "findings"
    masks: bool = False


@dataclass(slots=True)
class PhantomImage:
    """One image of a study: pixels (rows, columns) uint8, its finding-free twin, and a mask per finding."""

    ref: ImageRef
    pixels: NDArray[np.uint8]
    twin: NDArray[np.uint8] | None = None
    masks: list[NDArray[np.bool_]] = field(default_factory=list)


@dataclass(slots=True)
class PhantomStudy:
    """A study's record, its images, and the findings behind them (in the order of the masks)."""

    record: Study
    images: list[PhantomImage]
    findings: tuple[Finding, ...]
    anatomy: Anatomy


@dataclass(frozen=True, slots=True)
class Slot:
    """Whose visit an index is."""

    patient: int
    visit: int


def slot_of(seed: int, index: int) -> Slot:
    block, place = divmod(index, _BLOCK)
    order = np.random.default_rng([seed, 1, block]).permutation(len(_BLOCK_VISITS))
    for k, which in enumerate(order):
        visits = _BLOCK_VISITS[int(which)]
        if place < visits:
            return Slot(block * len(_BLOCK_VISITS) + k, place)
        place -= visits
    raise AssertionError("a block holds all its visits")


def split_of(patient: int) -> Split:
    return _SPLITS[patient % len(_SPLITS)]


def study_name(slot: Slot) -> tuple[str, str]:
    """Ids of the patient and the study."""
    patient = f"p{slot.patient:06d}"
    return patient, f"{patient}_v{slot.visit + 1}"


def course_of(seed: int, slot: Slot, prevalence: Prevalence) -> tuple[Anatomy, tuple[Finding, ...]]:
    """The patient's build, and the findings at a visit."""
    anatomy = draw_anatomy(np.random.default_rng([seed, 2, slot.patient]))
    findings = draw_findings(np.random.default_rng([seed, 3, slot.patient, 0]), anatomy, prevalence)
    for visit in range(1, slot.visit + 1):
        findings = next_visit(np.random.default_rng([seed, 3, slot.patient, visit]), findings, anatomy, prevalence)
    return anatomy, findings


def draw_xray_study(seed: int, index: int, options: PhantomOptions) -> PhantomStudy:
    """Draw study ``index``: frontal, often lateral, with its report. It depends on its arguments only."""
    slot = slot_of(seed, index)
    anatomy, findings = course_of(seed, slot, options.prevalence)
    rng = np.random.default_rng([seed, 4, slot.patient, slot.visit])
    bedridden = any(f.kind in ("endotracheal tube", "chest tube", "nasogastric tube") for f in findings)
    frontal: Projection = "AP" if rng.random() < (0.9 if bedridden else 0.15) else "PA"
    projections = [frontal]
    if frontal == "PA" and rng.random() < options.lateral_share:
        projections.append("LATERAL")
    patient_id, study_id = study_name(slot)
    images = []
    for projection in projections:
        exposure = draw_exposure(rng, projection, options.image_size)
        images.append(_take(anatomy, findings, exposure, f"images/{study_id}_{projection.lower()}.png", options.masks))
    written = write_report(
        findings, np.random.default_rng([seed, 5, slot.patient, slot.visit]), has_prior=slot.visit > 0
    )
    parts = {"findings": [written.findings], "impression": [written.impression]}
    report = " ".join(parts.get(options.target, [written.findings, written.impression]))
    record = Study(
        study_id=study_id,
        patient_id=patient_id,
        split=split_of(slot.patient),
        images=tuple(image.ref for image in images),
        report=report,
        findings=written.findings,
        impression=written.impression,
        indication=written.indication,
        comparison=written.comparison,
        prior=study_name(Slot(slot.patient, slot.visit - 1))[1] if slot.visit else None,
        labels={"chexpert14": written.labels},
        truth=tuple(finding.model_dump() for finding in findings),
    )
    return PhantomStudy(record, images, findings, anatomy)


def draw_exposure(rng: np.random.Generator, projection: Projection, size: int) -> Exposure:
    """Positioning and exposure of one radiograph; bedside (AP) ones are noisier and more turned."""
    bedside = projection == "AP"
    return Exposure(
        projection=projection,
        size=size,
        field_mm=float(rng.uniform(375, 405)) if projection != "LATERAL" else float(rng.uniform(360, 390)),
        turn_deg=float(rng.normal(0, 3.5 if bedside else 1.5)),
        shift_mm=(float(rng.normal(0, 6)), float(rng.normal(0, 6))),
        photons=float(np.exp(rng.normal(np.log(9_000 if bedside else 30_000), 0.25))),
        blur_px=float(rng.uniform(0.45, 0.7)) * size / 256,
        contrast=float(rng.uniform(0.92, 1.1)),
        brightness=float(rng.normal(0, 0.04)),
        seed=int(rng.integers(2**31)),
    )


def _take(anatomy: Anatomy, findings: tuple[Finding, ...], exposure: Exposure, path: str, masks: bool) -> PhantomImage:
    """Draw one image; with ``masks``, leave one finding out at a time to see what it changes."""
    projector = Projector(exposure)
    arms_up = exposure.projection == "LATERAL"
    clean = projector.depth(make_scene(anatomy, (), arms_up=arms_up))
    shown = [f for f in findings if f.visible]
    depth = projector.depth(make_scene(anatomy, shown, arms_up=arms_up)) if shown else clean
    spacing = round(exposure.field_mm / exposure.size, 4)
    ref = ImageRef(path=path, view=View(exposure.projection), spacing_mm=(spacing, spacing))
    image = PhantomImage(ref, develop(depth, exposure, clean))
    if masks:
        image.twin = develop(clean, exposure, clean)
        for finding in findings:
            rest = [f for f in shown if f is not finding]
            without = projector.depth(make_scene(anatomy, rest, arms_up=arms_up))
            image.masks.append(np.abs(depth - without) > MASK_DEPTH)
    return image


# A finding's mask is where it changes the optical depth by more than this: about 2 mm of soft tissue.
MASK_DEPTH = 0.04
