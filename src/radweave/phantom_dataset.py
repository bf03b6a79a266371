"""Write phantom studies as a dataset folder."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from radweave.data.dataset import Dataset, DatasetCard, DatasetWriter
from radweave.errors import InputError
from radweave.phantom.study import PhantomOptions, PhantomStudy, draw_ct_study, draw_xray_study
from radweave.storage import sha256_bytes
from radweave.types import ImageRef, Modality

Progress = Callable[[int, int], None]


def write_phantom_dataset(
    out: Path,
    *,
    modality: Modality,
    num_studies: int,
    seed: int,
    options: PhantomOptions | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """Draw ``num_studies`` and write them to ``out``; 70 / 10 / 20 % of the patients to train, val and test.

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
        options={"seed": seed, **options.model_dump(mode="json")},
        notes=("Synthetic: no person is shown.",),
        licence="Apache-2.0",
    )
    with DatasetWriter(out, card, overwrite=overwrite) as writer:
        for index in range(num_studies):
            draw = draw_xray_study if modality == "xray" else draw_ct_study
            _add(writer, draw(seed, index, options))
            if progress is not None:
                progress(index + 1, num_studies)
    return Dataset.open(out)


def _add(writer: DatasetWriter, study: PhantomStudy) -> None:
    """Write a study's images, and its masks and twins if they were drawn; ``truth`` names the mask files."""
    refs: list[ImageRef] = []
    masks: list[list[str]] = [[] for _ in study.findings]
    for image in study.images:
        data = image_bytes(image.pixels, image.affine)
        _write(writer.folder / image.ref.path, data)
        refs.append(image.ref.model_copy(update={"sha256": sha256_bytes(data)}))
        stem, ending = image.ref.path.removeprefix("images/").split(".", 1)
        if image.twin is not None:
            _write(writer.folder / f"twins/{stem}.{ending}", image_bytes(image.twin, image.affine))
        for number, mask in enumerate(image.masks):
            path = f"masks/{stem}_{number}.{ending}"
            _write(writer.folder / path, image_bytes(mask.astype(np.uint8) * np.uint8(255), image.affine))
            masks[number].append(path)
    truth = tuple({**f, "masks": m} if m else f for f, m in zip(study.record.truth, masks, strict=True))
    writer.add(study.record.model_copy(update={"images": tuple(refs), "truth": truth}))


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
