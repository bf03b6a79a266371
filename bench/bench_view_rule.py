"""How often the rule that tells frontal from lateral radiographs answers, and is right.

    python bench/bench_view_rule.py shared/data

The thresholds were set on IU X-Ray's studies with an odd number; those with an even one, and the radiographs of
covid_chestxray, are measured.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from radweave.core.study import View
from radweave.inference.pictures import guess_view


def images(data: Path) -> Iterator[tuple[str, View, Path]]:
    """(set, true view, file)."""
    for row in map(json.loads, (data / "iu_xray/manifest.jsonl").open()):
        part = "IU X-Ray, odd (thresholds)" if int(row["id"][3:]) % 2 else "IU X-Ray, even"
        for name, view in zip(row["images"], row["views"], strict=True):
            yield part, View(view.upper()), data / "iu_xray" / name
    for row in map(json.loads, (data / "covid_chestxray/manifest.jsonl").open()):
        for image in row["per_image"]:
            if image["modality"] == "X-ray":
                view = View.LATERAL if image["view"] == "L" else View.FRONTAL
                yield "covid_chestxray", view, data / "covid_chestxray" / image["image"]


def main(data: Path) -> None:
    counts: dict[str, Counter[tuple[View, View]]] = {}
    for part, view, path in images(data):
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("L"), dtype=np.float32) / 255
        counts.setdefault(part, Counter())[view, guess_view(pixels)] += 1
    for part, found in sorted(counts.items()):
        right = sum(count for (view, guess), count in found.items() if view == guess)
        silent = sum(count for (_, guess), count in found.items() if guess is View.UNKNOWN)
        total = found.total()
        print(f"{part}: {total} images, answers for {1 - silent / total:.1%}, right in {right / (total - silent):.1%}")
        for view in (View.FRONTAL, View.LATERAL):
            row = {guess.value: found[view, guess] for guess in (View.FRONTAL, View.LATERAL, View.UNKNOWN)}
            print(f"  {view.value}: {row}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
