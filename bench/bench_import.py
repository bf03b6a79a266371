"""Time and peak memory of importing, reading and checking, for 100,000 studies. Run by hand.

    OMP_NUM_THREADS=1 python bench/bench_import.py [STUDIES] [IU_XRAY_FOLDER]

Every step runs in a process of its own, so that its peak memory is its own. The reports are made up: about 60 words,
a third of them a stock phrase, 14 labels, two images. The images of the 100,000 studies are not pictures; the check
runs with the hashes in the manifest. Decoding is measured on the real radiographs of the second argument.
"""

from __future__ import annotations

import csv
import hashlib
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CLASSES = tuple(f"Class {number}" for number in range(14))
STATES = ("positive", "negative", "uncertain", "blank")
NORMAL = "The heart is normal in size. The lungs are clear. There is no pleural effusion or pneumothorax. " * 3


def report(draw: random.Random) -> str:
    if draw.random() < 1 / 3:
        return NORMAL
    return ". ".join(" ".join(f"w{draw.randrange(2000)}" for _ in range(10)) for _ in range(6)) + "."


def make(folder: Path, studies: int) -> None:
    """A data set folder and a table for import, both of the given number of studies."""
    from radweave.core.study import ImageRef, LabelState, Study, View
    from radweave.data.dataset import DatasetCard, DatasetWriter

    draw = random.Random(0)
    (folder / "source" / "files").mkdir(parents=True)
    with (
        DatasetWriter(folder / "data", DatasetCard(name="bench")) as writer,
        (folder / "source" / "reports.csv").open("w", newline="") as table,
    ):
        rows = csv.writer(table)
        rows.writerow(["study_id", "patient_id", "image", "view", "findings", "split"])
        for number in range(studies):
            split = "test" if number % 10 == 0 else "train"
            text = report(draw)
            paths = [f"files/{number // 500}/{number}_{view}.png" for view in ("a", "b")]
            images = []
            for path in paths:
                content = path.encode()
                for root in (writer.folder, folder / "source"):
                    (root / path).parent.mkdir(parents=True, exist_ok=True)
                    (root / path).write_bytes(content)
                images.append(ImageRef(path=path, view=View.PA, sha256=hashlib.sha256(content).hexdigest()))
            labels = {"chexpert14": {name: LabelState(draw.choice(STATES)) for name in CLASSES}}
            study = Study(
                study_id=f"s{number}",
                patient_id=f"p{number // 2 if split == 'train' else number}x{split}",
                split="test" if split == "test" else "train",
                images=tuple(images),
                report=text,
                findings=text,
                labels=labels,
            )
            writer.add(study)
            rows.writerow([study.study_id, study.patient_id, "|".join(paths), "PA|LATERAL", text, split])


def step(name: str, folder: Path) -> None:
    """Run one step and print what it took."""
    from radweave.data.check import check_dataset
    from radweave.data.dataset import Dataset
    from radweave.data.importers import ImportOptions, import_dataset

    start, unit = time.perf_counter(), "studies"
    if name == "import":
        options = ImportOptions(verify=False, link=True)
        count = import_dataset("folder", folder / "source", folder / "imported", options=options).card.counts["studies"]
    elif name == "import with a ratio split":
        options = ImportOptions(verify=False, link=True, split="7:1:2")
        count = import_dataset("folder", folder / "source", folder / "ratio", options=options).card.counts["studies"]
    elif name == "read the manifest":
        count = sum(1 for _ in Dataset.open(folder / "data").studies())
    elif name == "check":
        count = sum(check_dataset(folder / "data", read_images=False).studies.values())
    elif name == "import IU X-Ray":
        count = import_dataset("iu-xray", Path(sys.argv[3]), folder / "iu").card.counts["studies"]
    else:
        count, unit = check_dataset(folder / "iu").images, "images"
    spent = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{name}: {count} {unit} in {spent:.1f} s, {count / spent:.0f} per second, peak {peak:.0f} MB", flush=True)


def main() -> None:
    studies = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    steps = ["read the manifest", "check", "import", "import with a ratio split"]
    iu = sys.argv[2] if len(sys.argv) > 2 else ""
    steps += ["import IU X-Ray", "check IU X-Ray, images decoded"] if iu else []
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), studies)
        for name in steps:
            subprocess.run([sys.executable, __file__, "--step", name, iu, folder], check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--step"]:
        step(sys.argv[2], Path(sys.argv[4]))
    else:
        main()
