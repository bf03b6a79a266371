"""Verdicts of a run's out-of-distribution test per group of images: familiar, doubted, refused.

    python bench/ood_table.py IU_DATASET SHARED_DATA [--ct PHANTOM_CT_DATASET] [--size 128] [--seed 0]

IU_DATASET is the folder that ``radweave data import iu-xray`` made: the test learns from its training split and is
shown its validation and test splits, and the other radiographs, CT slices and body parts of SHARED_DATA. With ``--ct``
another one learns from a dataset of scans, and is shown its validation and test splits and SHARED_DATA's real scans.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from radweave.core.errors import InputError
from radweave.data.cache.images import build_cache
from radweave.data.ct import CtPreprocessing
from radweave.data.dataset import Dataset
from radweave.data.ood import OutOfDistribution, Verdict, fit_ood
from radweave.data.square import to_square
from radweave.inference.pictures import model_input, read_scan
from radweave.io.images import read_radiograph
from radweave.methods import resolve

Pixels = NDArray[np.uint8]


def split_pictures(dataset: Dataset, split: str, size: int, ct: CtPreprocessing | None = None) -> list[Pixels]:
    """Every readable image of a split, as a model sees it."""
    cache = build_cache(dataset, size=size, ct=ct)
    paths = [ref.path for study in dataset.studies(split) for ref in study.images]  # type: ignore[arg-type]
    return [np.asarray(cache.pixels[cache.rows[path]]) for path in paths if path in cache.rows]


def radiographs(data: Path) -> Iterator[tuple[str, Path]]:
    """(group, file) of the radiographs, slices and body parts that come from elsewhere."""
    for line in (data / "covid_chestxray" / "manifest.jsonl").open():
        for image in json.loads(line)["per_image"]:
            is_lateral = "lateral" if image["view"] == "L" else "frontal"
            kind = "CT slices" if image["modality"] == "CT" else f"radiographs, {is_lateral}"
            yield f"covid_chestxray: {kind}", data / "covid_chestxray" / image["image"]
    listed = json.loads((data / "cxr_dicom" / "expected.json").read_text())
    for entry in listed if isinstance(listed, list) else listed["files"]:
        if entry["category"] in ("chest", "mislabelled", "not_chest"):
            yield f"cxr_dicom: {entry['category']}", data / "cxr_dicom" / entry["file"]
    for file in sorted((data / "cxr_dicom" / "png").iterdir()):
        yield "cxr_dicom: NIH as PNG", file


def scans(data: Path) -> Iterator[tuple[str, Path]]:
    """(group, file) of the real scans."""
    for file in sorted((data / "chest_ct" / "files").iterdir()):
        if file.is_dir() or file.name.endswith((".nii.gz", ".nrrd")):
            yield ("chest_ct: abdomen" if file.name.startswith("abdomen") else "chest_ct: the others"), file


def show(test: OutOfDistribution, groups: Iterable[tuple[str, list[Pixels]]]) -> None:
    print("| group | images | familiar | doubted | refused | median score |\n|---|---|---|---|---|---|")
    for name, pictures in groups:
        judgements = [test.judge(picture) for picture in pictures]
        counts = [sum(judgement.verdict is verdict for judgement in judgements) for verdict in Verdict]
        median = np.median([judgement.score for judgement in judgements])
        print(f"| {name} | {len(pictures)} | {' | '.join(map(str, counts))} | {median:.2f} |")


def fitted(pictures: list[Pixels], seed: int) -> OutOfDistribution:
    start = time.perf_counter()
    test = fit_ood(pictures, seed=seed)
    print(f"\nfitted in {time.perf_counter() - start:.1f} s: {json.dumps(test.facts)}\n")
    return test


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("iu", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--ct", type=Path)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    iu = Dataset.open(options.iu)
    test = fitted(split_pictures(iu, "train", options.size), options.seed)
    found: dict[str, list[Pixels]] = {}
    for group, file in radiographs(options.data):
        try:
            found.setdefault(group, []).append(to_square(read_radiograph(file).pixels, options.size))
        except InputError as error:
            print(f"{group}: {file.name} cannot be read ({error.reason})")
    show(test, [*((f"IU X-Ray: {split}", split_pictures(iu, split, options.size)) for split in ("val", "test")), *found.items()])  # fmt: skip # noqa: E501
    if options.ct is None:
        return
    ct = resolve("baseline", "tiny-ct", ()).data.ct
    phantom = Dataset.open(options.ct)
    test = fitted(split_pictures(phantom, "train", 0, ct), options.seed)
    groups = {f"phantom CT: {split}": split_pictures(phantom, split, 0, ct) for split in ("val", "test")}
    for group, file in scans(options.data):
        try:
            scan = read_scan(file)
            groups.setdefault(group, []).append(model_input([scan], image_size=0, ct=ct)[0])
        except InputError as error:
            print(f"{group}: {file.name} cannot be read ({error.reason})")
            continue
        print(f"{file.name}: {'; '.join(scan.warnings) or 'no warning'}")
    show(test, groups.items())


if __name__ == "__main__":
    main()
