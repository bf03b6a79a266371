"""Wrong refusals and detected outliers of the out-of-distribution test, by the number of training images.

    python bench/ood_sizes.py SHARED_DATA [--sizes 10 30 60 150 1000] [--seeds 5] [--size 128]

The test learns from images of so many patients of IU X-Ray (or of so many phantoms), and is shown images of 300 other
patients (100 other phantoms), and pictures that are no chest: CT slices and body parts of SHARED_DATA, chests on their
side or upside down, noise, pictures with the spectrum of photographs, and drawn limbs that the test did not learn from.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from radweave.core.errors import InputError
from radweave.data.ood import fit_ood
from radweave.data.ood.descriptor import describe
from radweave.data.square import to_square
from radweave.io.images import read_radiograph
from radweave.phantom.anatomy import draw_anatomy
from radweave.phantom.findings import draw_findings
from radweave.phantom.lesions import make_scene
from radweave.phantom.xray import Exposure, Projector, develop

Pixels = NDArray[np.uint8]
HELD_OUT = 300


def square(file: Path, size: int) -> Pixels | None:
    try:
        return to_square(read_radiograph(file).pixels, size)
    except InputError:
        return None


def iu(data: Path, count: int, size: int) -> list[tuple[str, Pixels]]:
    """(study, picture), all views of the first studies; a study of IU X-Ray is a patient."""
    found = []
    for line in list((data / "iu_xray" / "manifest.jsonl").open())[:count]:
        row = json.loads(line)
        pictures = (square(data / "iu_xray" / name, size) for name in row["images"])
        found += [(row["id"], picture) for picture in pictures if picture is not None]
    return found


def phantom(seed: int, size: int) -> Pixels:
    random = np.random.default_rng([seed, 77])
    anatomy = draw_anatomy(random)
    scene, exposure = (
        make_scene(anatomy, draw_findings(random, anatomy, "long-tail", "xray")),
        Exposure("PA", seed=seed),
    )
    grey = develop(Projector(exposure).depth(scene), exposure)
    return to_square(grey.astype(np.float32) / 255, size)


def limb(random: np.random.Generator, size: int) -> Pixels:
    """A leg or a hand: cones of flesh with two-walled bones, joints between."""
    y, x = np.mgrid[0:size, 0:size] / size
    grey = np.zeros((size, size))
    count = int(random.choice([1, 2, 5]))
    for number in range(count):
        middle = (number + 0.5) / count + 0.05 * random.standard_normal() + random.uniform(-0.1, 0.1) * (y - 0.5)
        wide = random.uniform(0.25, 0.42) / count * (1.2 - 0.4 * y)
        top = random.uniform(0, 0.3)
        flesh = np.sqrt(np.clip(1 - ((x - middle) / wide) ** 2, 0, None)) * (y > top)
        bone = np.abs((x - middle) / wide)
        shaft = ((bone < 0.35) * 0.25 + ((bone > 0.25) & (bone < 0.38)) * 0.3) * (y > top + 0.03)
        grey = np.maximum(grey, 0.35 * flesh + shaft * (np.abs(np.sin(random.uniform(4, 12) * y)) > 0.08))
    grey = ndimage.gaussian_filter(grey, size / 128) + random.normal(0, 0.01, grey.shape)
    turned = np.rot90(grey, int(random.integers(4)))
    return np.asarray((turned / max(turned.max(), 0.1)).clip(0, 1) * 255).astype(np.uint8)


def outliers(data: Path, chests: list[Pixels], size: int) -> dict[str, list[Pixels]]:
    random = np.random.default_rng(5)
    found: dict[str, list[Pixels]] = {}

    def add(group: str, picture: Pixels | None) -> None:
        if picture is not None:
            found.setdefault(group, []).append(picture)

    for line in (data / "covid_chestxray" / "manifest.jsonl").open():
        for image in json.loads(line)["per_image"]:
            if image["modality"] == "CT":
                add("CT slices", square(data / "covid_chestxray" / image["image"], size))
    listed = json.loads((data / "cxr_dicom" / "expected.json").read_text())
    for entry in listed if isinstance(listed, list) else listed["files"]:
        if entry["category"] in ("mislabelled", "not_chest"):
            add("other body parts", square(data / "cxr_dicom" / entry["file"], size))
    for picture in chests[:100]:
        add("chests on their side", np.ascontiguousarray(np.rot90(picture, int(random.choice([1, 3])))))
        add("chests upside down", np.ascontiguousarray(picture[::-1]))
    for _ in range(100):
        add("noise", random.integers(0, 256, (size, size), dtype=np.uint8))
        waves = np.hypot(*np.meshgrid(np.fft.fftfreq(size), np.fft.fftfreq(size)))
        waves[0, 0] = 1
        photo = np.fft.ifft2(np.fft.fft2(random.standard_normal((size, size))) / waves ** random.uniform(0.9, 1.3)).real
        photo += photo.std() * (np.add.outer(np.arange(size), np.arange(size)) % size > random.uniform(0, size))
        add("like photographs", ((photo - photo.min()) / np.ptp(photo) * 255).astype(np.uint8))
        add("limbs", limb(random, size))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 30, 60, 150, 1000])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--size", type=int, default=128)
    options = parser.parse_args()
    most = max(options.sizes)
    rows = iu(options.data, min(most, 600) + HELD_OUT, options.size)
    names = list(dict.fromkeys(name for name, _ in rows))
    held = set(names[-HELD_OUT:])
    phantoms = [phantom(seed, options.size) for seed in range(min(most, 150) + 100)]
    sets = {
        "IU X-Ray": ([row for row in rows if row[0] not in held], [picture for name, picture in rows if name in held]),
        "phantoms": ([(str(n), picture) for n, picture in enumerate(phantoms[:-100])], phantoms[-100:]),
    }
    for name, (pool, own) in sets.items():
        groups = {"own, held out": own, **outliers(options.data, own, options.size)}
        tables = {group: np.stack([np.concatenate(describe(one)) for one in some]) for group, some in groups.items()}
        columns = " | ".join(f"{group} ({len(some)})" for group, some in groups.items())
        print(f"\n## {name}\n\n| training images | {columns} | stated: mean at most, 95 % |", flush=True)
        print(f"|---|{'---|' * (len(groups) + 1)}")
        for count in options.sizes:
            if count > len(pool):
                continue
            shares, stated = [], []
            for seed in range(options.seeds if count < 1000 else 1):
                drawn = np.random.default_rng([seed, count]).permutation(len(pool))[:count]
                test = fit_ood([pool[row][1] for row in drawn], seed=seed, patients=[pool[row][0] for row in drawn])
                if test.reason is not None:
                    print(f"| {count} | {test.reason} |")
                    continue
                shares.append([float((test.scores(table) < test.thresholds[1]).mean()) for table in tables.values()])
                stated.append(test.facts["wrongly_refused"])
            if not shares:
                continue
            each = zip(*shares, strict=True)
            cells = [f"{100 * np.mean(one):.1f} ({100 * min(one):.0f} to {100 * max(one):.0f})" for one in each]
            mean, low, high = (100 * np.mean([one[key] for one in stated]) for key in ("mean_at_most", "low", "high"))
            print(f"| {count} | {' | '.join(cells)} | {mean:.1f}, {low:.1f} to {high:.1f} |", flush=True)


if __name__ == "__main__":
    main()
