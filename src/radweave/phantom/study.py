"""Phantom studies from ``(seed, index)``: patient, visit, images, report and ground truth; and their data sets."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field
from scipy import ndimage

from radweave.core.config import Config
from radweave.core.errors import InputError
from radweave.core.storage import sha256_bytes
from radweave.core.study import FindingBox, ImageRef, Modality, Split, Study, View
from radweave.data.boxes import box_of_mask
from radweave.data.dataset import Dataset, DatasetCard, DatasetWriter
from radweave.phantom.anatomy import Anatomy, Floats, draw_anatomy
from radweave.phantom.ct import Scan, Voxels, make_ct_scene, scan_noise
from radweave.phantom.ct_report import WrittenScan, write_ct_report
from radweave.phantom.findings import Finding, Prevalence, Turnover, draw_findings, next_visit
from radweave.phantom.lesions import make_scene
from radweave.phantom.report import WrittenReport, write_report
from radweave.phantom.xray import Exposure, Projection, Projector, develop

# Visits of five patients in eight studies; a patient's studies stand together. Random access needs no counting.
_BLOCK_VISITS = (1, 1, 1, 2, 3)
_BLOCK = sum(_BLOCK_VISITS)
# Splits of ten patients in a row: 7, 1 and 2 of ten. Patients are drawn alike, so a fixed pattern is a random split.
_SPLITS: tuple[Split, ...] = ("train", "test", "train", "val", "train", "train", "train", "test", "train", "train")


class PhantomOptions(Config):
    """Options of phantom studies.

    ``prevalence``: "long-tail" as in clinical sets, "balanced", or "normal" for a reference pool. ``turnover``: how
    much changes between a patient's studies. ``image_size`` in pixels; ``lateral_share`` of the upright studies have a
    lateral view. A volume has ``slices`` of ``volume_size`` squared over 288 x 360 x 360 mm. ``masks`` draws finding
    masks and finding-free twins as well; ``boxes`` marks each finding on the images, with
    the sentence of the report.
    """

    prevalence: Prevalence = "long-tail"
    turnover: Turnover = "low"
    image_size: int = Field(default=256, ge=32, le=2048)
    lateral_share: float = Field(default=0.5, ge=0, le=1)
    target: Literal["findings", "impression", "findings+impression"] = "findings"
    volume_size: int = Field(default=96, ge=16, le=512)
    slices: int = Field(default=48, ge=8, le=512)
    masks: bool = False
    boxes: bool = False


@dataclass(slots=True)
class PhantomImage:
    """One image of a study, its finding-free twin, and a mask per finding of the study.

    Pixels are (rows, columns) uint8 for a radiograph, (z, y, x) int16 in HU for a volume, whose ``affine`` takes
    (x, y, z) indices to NIfTI's millimetres. Twin and masks exist if the options request them.
    """

    ref: ImageRef
    pixels: NDArray[np.uint8] | NDArray[np.int16]
    affine: NDArray[np.float64] | None = None
    twin: NDArray[np.uint8] | NDArray[np.int16] | None = None
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
    """Patient and visit of a study."""

    patient: int
    visit: int


def slot_of(seed: int, index: int) -> Slot:
    block, visit = divmod(index, _BLOCK)
    order = np.random.default_rng([seed, 1, block]).permutation(len(_BLOCK_VISITS))
    for k, which in enumerate(order):
        visits = _BLOCK_VISITS[int(which)]
        if visit < visits:
            return Slot(block * len(_BLOCK_VISITS) + k, visit)
        visit -= visits
    raise AssertionError("a block holds all its visits")


def split_of(patient: int) -> Split:
    return _SPLITS[patient % len(_SPLITS)]


def study_name(slot: Slot) -> tuple[str, str]:
    """Ids of the patient and the study."""
    patient = f"p{slot.patient:06d}"
    return patient, f"{patient}_v{slot.visit + 1}"


def course_of(
    seed: int, slot: Slot, prevalence: Prevalence, modality: Modality = "xray", turnover: Turnover = "low"
) -> tuple[Anatomy, tuple[Finding, ...]]:
    """The patient's build, and the findings at a visit. The build is the same for both modalities."""
    stream = 3 if modality == "xray" else 6
    anatomy = draw_anatomy(np.random.default_rng([seed, 2, slot.patient]))
    findings = draw_findings(np.random.default_rng([seed, stream, slot.patient, 0]), anatomy, prevalence, modality)
    for visit in range(1, slot.visit + 1):
        rng = np.random.default_rng([seed, stream, slot.patient, visit])
        findings = next_visit(rng, findings, anatomy, prevalence, modality, turnover)
    return anatomy, findings


def draw_xray_study(seed: int, index: int, options: PhantomOptions) -> PhantomStudy:
    """Draw study ``index``: frontal, often lateral, with its report. It depends on its arguments only."""
    slot = slot_of(seed, index)
    anatomy, findings = course_of(seed, slot, options.prevalence, turnover=options.turnover)
    rng = np.random.default_rng([seed, 4, slot.patient, slot.visit])
    bedridden = any(f.kind in ("endotracheal tube", "chest tube", "nasogastric tube") for f in findings)
    frontal: Projection = "AP" if rng.random() < (0.9 if bedridden else 0.15) else "PA"
    projections = [frontal]
    if frontal == "PA" and rng.random() < options.lateral_share:
        projections.append("LATERAL")
    written = write_report(
        findings, np.random.default_rng([seed, 5, slot.patient, slot.visit]), has_prior=slot.visit > 0
    )
    _, study_id = study_name(slot)
    images = []
    for projection in projections:
        exposure = draw_exposure(rng, projection, options.image_size)
        images.append(
            _take(
                anatomy, findings, written.sentences, exposure, f"images/{study_id}_{projection.lower()}.png", options
            )
        )
    record = _record(options, slot, images, findings, written, "chexpert14", indication=written.indication)
    return PhantomStudy(record, images, findings, anatomy)


def _record(
    options: PhantomOptions,
    slot: Slot,
    images: Sequence[PhantomImage],
    findings: Sequence[Finding],
    written: WrittenReport | WrittenScan,
    label_set: str,
    **sections: Any,
) -> Study:
    patient_id, study_id = study_name(slot)
    return Study(
        study_id=study_id,
        patient_id=patient_id,
        split=split_of(slot.patient),
        images=tuple(image.ref for image in images),
        report=_target(options, written.findings, written.impression),
        findings=written.findings,
        impression=written.impression,
        comparison=written.comparison,
        prior=study_name(Slot(slot.patient, slot.visit - 1))[1] if slot.visit else None,
        labels={label_set: written.labels},
        truth=tuple(finding.model_dump() for finding in findings),
        **sections,
    )


def _target(options: PhantomOptions, findings: str, impression: str) -> str:
    """The training target by the options."""
    return {"findings": findings, "impression": impression}.get(options.target, f"{findings} {impression}")


def draw_ct_study(seed: int, index: int, options: PhantomOptions) -> PhantomStudy:
    """Draw study ``index``: a CT volume with its report by region. It depends on its arguments only."""
    slot = slot_of(seed, index)
    anatomy, findings = course_of(seed, slot, options.prevalence, "ct", options.turnover)
    rng = np.random.default_rng([seed, 7, slot.patient, slot.visit])
    n, slices = options.volume_size, options.slices
    scan = Scan(
        shape=(slices, n, n),
        spacing_mm=(288.0 / slices, 360.0 / n, 360.0 / n),
        center_mm=(-14.0 + float(rng.normal(0, 4)), 4.0 + float(rng.normal(0, 4)), float(rng.normal(0, 4))),
        noise_hu=float(rng.uniform(9, 20)),
        seed=int(rng.integers(2**31)),
    )
    written = write_ct_report(
        findings, np.random.default_rng([seed, 8, slot.patient, slot.visit]), has_prior=slot.visit > 0
    )
    _, study_id = study_name(slot)
    image = _scan(anatomy, findings, written.sentences, scan, f"images/{study_id}.nii.gz", options)
    record = _record(options, slot, [image], findings, written, "ct18", regions=written.regions)
    return PhantomStudy(record, [image], findings, anatomy)


def _scan(
    anatomy: Anatomy,
    findings: tuple[Finding, ...],
    sentences: Sequence[str],
    scan: Scan,
    path: str,
    options: PhantomOptions,
) -> PhantomImage:
    """Draw one volume; for masks and boxes it is drawn again without each finding."""
    voxels = Voxels(scan)
    shown = [f for f in findings if f.visible]
    clean = voxels.volume(make_ct_scene(anatomy, ())) if options.masks or not shown else None
    hu = voxels.volume(make_ct_scene(anatomy, shown)) if shown or clean is None else clean
    ref = ImageRef(path=path, modality="ct", view=View.AXIAL, spacing_mm=scan.spacing_mm)
    image = PhantomImage(ref, scan_noise(hu, scan), affine=scan.affine())
    if options.masks and clean is not None:
        image.twin = scan_noise(clean, scan)
    if options.masks or options.boxes:
        masks = finding_masks(findings, lambda some: voxels.volume(make_ct_scene(anatomy, some)), MASK_HU)
        middle = int(np.searchsorted(scan.coordinates()[2].reshape(-1), 0))
        _mark(image, findings, sentences, masks, middle, options)
    return image


# Per pixel in air. Laterals pass through twice the tissue and are exposed for it.
_PHOTONS: dict[Projection, float] = {"PA": 30_000.0, "AP": 14_000.0, "LATERAL": 150_000.0}


def draw_exposure(rng: np.random.Generator, projection: Projection, size: int) -> Exposure:
    """Positioning and exposure of one radiograph; bedside (AP) ones are noisier and more turned."""
    bedside = projection == "AP"
    return Exposure(
        projection=projection,
        size=size,
        field_mm=float(rng.uniform(375, 405)) if projection != "LATERAL" else float(rng.uniform(360, 390)),
        turn_deg=float(rng.normal(0, 3.5 if bedside else 1.5)),
        shift_mm=(float(rng.normal(0, 6)), float(rng.normal(0, 6))),
        photons=float(np.exp(rng.normal(np.log(_PHOTONS[projection]), 0.25))),
        blur_px=float(rng.uniform(0.45, 0.7)) * size / 256,
        contrast=float(rng.uniform(0.92, 1.1)),
        brightness=float(rng.normal(0, 0.04)),
        seed=int(rng.integers(2**31)),
    )


def _take(
    anatomy: Anatomy,
    findings: tuple[Finding, ...],
    sentences: Sequence[str],
    exposure: Exposure,
    path: str,
    options: PhantomOptions,
) -> PhantomImage:
    """Draw one image; for masks and boxes it is drawn again without each finding."""
    projector = Projector(exposure)
    arms_up = exposure.projection == "LATERAL"
    clean = projector.depth(make_scene(anatomy, (), arms_up=arms_up))
    shown = [f for f in findings if f.visible]
    depth = projector.depth(make_scene(anatomy, shown, arms_up=arms_up)) if shown else clean
    spacing = round(exposure.field_mm / exposure.size, 4)
    ref = ImageRef(path=path, view=View(exposure.projection), spacing_mm=(spacing, spacing))
    image = PhantomImage(ref, develop(depth, exposure, clean))
    if options.masks:
        image.twin = develop(clean, exposure, clean)
    if options.masks or options.boxes:
        masks = finding_masks(
            findings, lambda some: projector.depth(make_scene(anatomy, some, arms_up=arms_up)), MASK_DEPTH
        )
        # A lateral view shows both sides in one place.
        spine = None if arms_up else round(float(projector.rays.project(np.zeros((1, 3)))[0, 1]) + 0.5)
        _mark(image, findings, sentences, masks, spine, options)
    return image


def _mark(
    image: PhantomImage,
    findings: Sequence[Finding],
    sentences: Sequence[str],
    masks: list[NDArray[np.bool_]],
    middle: int | None,
    options: PhantomOptions,
) -> None:
    """Add the masks to an image, and their boxes, as far as the options request them."""
    if options.boxes:
        marked = zip(findings, sentences, masks, strict=True)
        boxes = tuple(box for finding, text, mask in marked for box in _boxes(finding, text, mask, middle))
        image.ref = image.ref.model_copy(update={"boxes": boxes})
    if options.masks:
        image.masks = masks


def _boxes(finding: Finding, sentence: str, mask: NDArray[np.bool_], middle: int | None) -> Iterator[FindingBox]:
    """A box for each side of a finding on both, and for each of several lesions that lie apart.

    ``middle`` is the first column behind the patient's midline; None where the sides lie over each other.
    """
    parts = [mask]
    if finding.side == "bilateral" and middle is not None:
        columns = np.arange(mask.shape[-1])
        parts = [mask & (columns < middle), mask & (columns >= middle)]
    elif finding.count > 1:
        lesions, count = ndimage.label(mask, np.ones((3,) * mask.ndim))
        parts = [lesions == number for number in range(1, count + 1)] if count <= finding.count else [mask]
    for part in parts:
        box = box_of_mask(part)
        if box is not None:
            yield FindingBox(label=finding.name, box=box, sentence=sentence)


# A finding's mask is where it changes the optical depth by more than this: about 2 mm of soft tissue.
MASK_DEPTH = 0.04
# In a volume: by more than this, about twice the noise.
MASK_HU = 25.0


def finding_masks(
    findings: Sequence[Finding], draw: Callable[[Sequence[Finding]], Floats], least: float
) -> list[NDArray[np.bool_]]:
    """Masks of the changes by each finding of more than ``least``; empty for resolved findings.

    A mask covers the difference between the images with and without the finding, and, where another finding hides it,
    the difference of the finding alone from the clean chest.
    """
    shown = [f for f in findings if f.visible]
    everything, clean = draw(shown), draw(())
    changed = np.abs(everything - clean) > least
    masks = []
    for finding in findings:
        if not finding.visible:
            masks.append(np.zeros_like(changed))
            continue
        missed = np.abs(everything - draw([f for f in shown if f is not finding])) > least
        alone = np.abs(draw([finding]) - clean) > least if len(shown) > 1 else missed
        masks.append(missed | (alone & changed))
    return masks


Progress = Callable[[int, int], None]
Rendered = tuple[Study, dict[str, bytes]]
"""A record of the manifest, and the study's files by their path in the folder."""
STUDIES_PER_PROCESS = 32
"""Least studies that justify the start of a process."""


def write_phantom_dataset(
    out: Path,
    *,
    modality: Modality,
    num_studies: int,
    seed: int,
    options: PhantomOptions | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    jobs: int = 1,
) -> Dataset:
    """Draw ``num_studies`` and write them to ``out``; 70 / 10 / 20 % of the patients to train, val and test.

    The files do not depend on the number ``jobs`` of processes. These are spawned, so that scripts with several of them
    need ``if __name__ == "__main__"``.

    Raises:
        InputError: if ``out`` exists and ``overwrite`` is not set, or a number is out of range.
    """
    if num_studies < 1:
        raise InputError("a data set needs a study", field="studies", got=num_studies, expected="1 or more")
    if seed < 0:
        raise InputError("a seed is not negative", field="seed", got=seed)
    options = options or PhantomOptions()
    card = DatasetCard(
        name=f"phantom-{modality}",
        modality=modality,
        target=options.target,
        split_provenance="by patient, 7 : 1 : 2 in a fixed pattern",
        # Phantoms are older than boxes: without them, a card is the same as before there were any.
        options={"seed": seed, **options.model_dump(mode="json", exclude=None if options.boxes else {"boxes"})},
        notes=("Synthetic: no person is shown.",),
        licence="Apache-2.0",
    )
    with DatasetWriter(out, card, overwrite=overwrite) as writer:
        render = partial(_render, modality, options, seed)
        for done, (study, files) in enumerate(_in_order(render, num_studies, jobs), start=1):
            for path, data in files.items():
                _write(writer.folder / path, data)
            writer.add(study)
            if progress is not None:
                progress(done, num_studies)
    return Dataset.open(out)


def _in_order(render: Callable[[int], Rendered], count: int, jobs: int) -> Iterator[Rendered]:
    jobs = min(jobs, count // STUDIES_PER_PROCESS)
    if jobs <= 1:
        yield from map(render, range(count))
        return
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
    try:
        yield from pool.map(render, range(count), chunksize=4)
    finally:
        pool.shutdown(cancel_futures=True)


def _render(modality: Modality, options: PhantomOptions, seed: int, index: int) -> Rendered:
    """Draw a study: images, and masks and twins if requested; ``truth`` names the mask files."""
    study = (draw_xray_study if modality == "xray" else draw_ct_study)(seed, index, options)
    files: dict[str, bytes] = {}
    refs: list[ImageRef] = []
    masks: list[list[str]] = [[] for _ in study.findings]
    for image in study.images:
        data = image_bytes(image.pixels, image.affine)
        files[image.ref.path] = data
        refs.append(image.ref.model_copy(update={"sha256": sha256_bytes(data)}))
        stem, ending = image.ref.path.removeprefix("images/").split(".", 1)
        if image.twin is not None:
            files[f"twins/{stem}.{ending}"] = image_bytes(image.twin, image.affine)
        for number, mask in enumerate(image.masks):
            path = f"masks/{stem}_{number}.{ending}"
            files[path] = image_bytes(mask.astype(np.uint8) * np.uint8(255), image.affine)
            masks[number].append(path)
    truth = tuple({**f, "masks": m} if m else f for f, m in zip(study.record.truth, masks, strict=True))
    return study.record.model_copy(update={"images": tuple(refs), "truth": truth}), files


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def image_bytes(pixels: NDArray[Any], affine: NDArray[np.float64] | None) -> bytes:
    """A PNG for a radiograph, a gzipped NIfTI for a volume (z, y, x); the same bytes for the same pixels."""
    if affine is None:
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, format="PNG")
        return buffer.getvalue()
    import nibabel as nib

    volume = nib.Nifti1Image(np.ascontiguousarray(pixels.transpose(2, 1, 0)), affine)
    volume.header.set_xyzt_units("mm")
    volume.set_qform(affine, code=1)
    volume.set_sform(affine, code=1)
    return gzip.compress(volume.to_bytes(), compresslevel=6, mtime=0)
