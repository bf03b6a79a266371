"""Cached 224 px studies against decoding their files every epoch: the ratio in one run.

    python bench/bench_loader.py [--studies 200]

Phantom studies as PNG of 512 px and as DICOM of the same pixels. Decoding goes the way the cache goes once: the limited
process, windowing, resizing to 224 px. The loader goes the way training goes: batches of 16 from the memory-mapped
array, without augmentation. Decoding and loading take turns, best of three.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import DigitalXRayImageStorageForPresentation, ExplicitVRLittleEndian, generate_uid

from radweave.data.cache.images import build_cache
from radweave.data.cache.squares import read_square
from radweave.data.dataset import Dataset
from radweave.data.examples import prepare_split
from radweave.data.loader import StudyLoader
from radweave.data.square import to_square
from radweave.io.images import read_radiograph
from radweave.phantom.study import PhantomOptions, write_phantom_dataset

SIZE = 224
ROUNDS = 3


def write_dicom(pixels: np.ndarray, path: Path) -> None:
    """The same picture as a 16-bit DX file."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = DigitalXRayImageStorageForPresentation
    meta.MediaStorageSOPInstanceUID = generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file = FileDataset(str(path), {}, file_meta=meta, preamble=bytes(128))
    file.SOPClassUID, file.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    file.Modality, file.PhotometricInterpretation, file.SamplesPerPixel = "DX", "MONOCHROME2", 1
    file.Rows, file.Columns = pixels.shape
    file.BitsAllocated, file.BitsStored, file.HighBit, file.PixelRepresentation = 16, 12, 11, 0
    file.WindowCenter, file.WindowWidth = 2048, 4096
    file.PixelData = (pixels.astype(np.uint16) * 16).tobytes()
    file.save_as(path, enforce_file_format=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=200)
    studies = parser.parse_args().studies
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = PhantomOptions(image_size=512)
        dataset = write_phantom_dataset(folder / "data", modality="xray", num_studies=studies, seed=0, options=options)
        measure(dataset, folder)


def measure(dataset: Dataset, folder: Path) -> None:
    refs = [ref for study in dataset.studies("train") for ref in study.images]
    dicoms = []
    for index, ref in enumerate(refs):
        dicoms.append(folder / f"{index}.dcm")
        write_dicom(np.asarray(Image.open(dataset.image_path(ref.path))), dicoms[-1])
    cache = build_cache(dataset, size=SIZE)
    prepared = prepare_split(
        dataset.studies("train"), cache, encode=lambda text: [5] * 40, end_id=2, max_views=2, max_tokens=64,
        label_set="chexpert14", classes=(), need_text=True,
    )  # fmt: skip
    loader = StudyLoader(prepared.examples, 16, 0, shuffle=True)
    best = {"PNG": float("inf"), "DICOM": float("inf"), "cached": float("inf")}
    for epoch in range(ROUNDS):
        started = time.perf_counter()
        for ref in refs:
            read_square(dataset, ref, SIZE)
        best["PNG"] = min(best["PNG"], time.perf_counter() - started)
        started = time.perf_counter()
        for path in dicoms:
            to_square(read_radiograph(path).pixels, SIZE)
        best["DICOM"] = min(best["DICOM"], time.perf_counter() - started)
        started = time.perf_counter()
        count = sum(len(batch) for batch in loader.epoch(epoch))
        best["cached"] = min(best["cached"], time.perf_counter() - started)
        assert count == len(prepared.examples)
    number = len(prepared.examples)
    print(
        f"{number} studies, {len(refs)} images, {os.cpu_count()} cores, {SIZE} px; studies per second, best of {ROUNDS}"
    )
    for kind, seconds in best.items():
        print(f"  {kind:7} {number / seconds:8.0f}   {seconds / best['cached']:6.1f} x the cached time")


if __name__ == "__main__":
    main()
