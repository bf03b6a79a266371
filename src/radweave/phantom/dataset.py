"""Write phantom studies as a dataset folder."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from radweave.base.errors import InputError
from radweave.base.hashes import sha256_bytes
from radweave.base.study import ImageRef, Modality, Study
from radweave.data.dataset import Dataset, DatasetCard, DatasetWriter
from radweave.phantom.study import PhantomOptions, draw_ct_study, draw_xray_study

Progress = Callable[[int, int], None]
Rendered = tuple[Study, dict[str, bytes]]
"""A study as it stands in the manifest, and its files by their path in the folder."""

STUDIES_PER_PROCESS = 32
"""Fewer are not worth the start of a process."""


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

    ``jobs`` processes draw; the files are the same with any number of them. They are started anew, so that a script
    which asks for more than one keeps its own work under ``if __name__ == "__main__"``.

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
    """Draw a study: its images, and its masks and twins if they are wanted; ``truth`` names the mask files."""
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
