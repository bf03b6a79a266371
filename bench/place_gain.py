"""Finished runs, given the part ``place``: sides, zones and boxes of test drafts, with and without it.

    radweave phantom --out data --studies 1200 --prevalence balanced --turnover real --image-size 192 --boxes
    python bench/place_gain.py data runs/placed runs/bench/xray/runs/baseline/seed-*

Each run is METHOD/seed-N, trained on these studies with or without their boxes. Its copy OUT/METHOD/seed-N gets the
part; what exists stays. ``decoder`` are the drafts of the run as it is, or its ``predictions.jsonl``,
``by utility`` those by expected utility without a place, ``places as they come`` with the places of the training
reports (``unsupported_places=keep``), ``with place`` with the part. The method itself is not asked for reports
(``own=false``). A sentence is comparable where it sides a finding that the reference sides too.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np

from radweave.engine.restore import restore
from radweave.engine.run_folder import read_card_alone
from radweave.engine.train import train
from radweave.inference.bulk import generate_split
from radweave.inference.predictor import Predictor
from radweave.labels import LABELER_OF, get_labeler
from radweave.metrics import Options, evaluate_pairs
from radweave.metrics.clinical import pooled_statistics
from radweave.metrics.grounding import box_statistics
from radweave.metrics.laterality import read_sides
from radweave.metrics.pairs import read_pairs
from radweave.metrics.placement import place_labeler_of, placed_rows
from radweave.metrics.records import FINDING_F1

UTILITY = ("kind=expected_utility", "expected_utility.own=false")
DRAFTS = {
    "decoder": ("kind=likelihood",),
    "by utility": (*UTILITY, "expected_utility.place=0"),
    "places as they come": (*UTILITY, "expected_utility.place=0", "expected_utility.unsupported_places=keep"),
    "with place": UTILITY,
}
COLUMNS = ("F1", "placed F1", "CIDEr", "comparable", "contradicted", "per 100", "IoU", "pointing", "box F1 .3")


def place(run: Path, data: Path, out: Path, options: list[str]) -> Path:
    """A copy of a run with the part."""
    card = read_card_alone(run)
    if not (out / "run.json").is_file():
        for name in (*card.files, "run.json"):
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(run / name, out / name)
    overrides = ["stages.place.epochs=100", *options]
    return train(card.method, data, out, config=run / "config.yaml", overrides=overrides, resume=True)


def scores(predictions: Path) -> dict[str, float]:
    pairs = read_pairs(predictions).pairs
    labeler = get_labeler(LABELER_OF[pairs[0].modality or "xray"])
    reader = place_labeler_of(labeler)
    assert reader is not None
    sides = read_sides(pairs)
    result = evaluate_pairs(pairs, labeler=labeler, options=Options(meteor=False, resamples=0))
    boxes = {name: one.corpus() for name, one in box_statistics(pairs).items()}
    clinical = result.clinical_statistics
    # Labels of CT have no class "No Finding" to leave out.
    key = FINDING_F1 if FINDING_F1 in clinical else FINDING_F1._replace(group="all")
    comparable, contradicted = sides.comparable_sentences, sides.contradicted_sentences
    return {
        "F1": clinical[key].corpus(),
        "placed F1": pooled_statistics(placed_rows(pairs, reader))["f1"].corpus(),
        "CIDEr": result.statistics["CIDEr"].corpus(),
        "comparable": comparable,
        "contradicted": contradicted,
        "per 100": 100 * contradicted / comparable if comparable else np.nan,
        "IoU": boxes.get("box_IoU", np.nan),
        "pointing": boxes.get("box_pointing", np.nan),
        "box F1 .3": boxes.get("box_F1_30", np.nan),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", type=Path, nargs="+", metavar="METHOD/seed-N")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    of_seeds: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    print(f"| method | drafts | seeds | {' | '.join(COLUMNS)} |\n|---|---|{'---:|' * (len(COLUMNS) + 1)}")
    for run in options.runs:
        restored = restore(place(run, options.data, options.out / run.parent.name / run.name, options.set))
        for name, decoding in DRAFTS.items():
            predictions = restored.folder / f"{name.replace(' ', '_')}.jsonl"
            if name == "decoder" and (run / "predictions.jsonl").is_file():
                predictions = run / "predictions.jsonl"
            if not predictions.is_file():
                predictor = Predictor.of(restored, decoding=decoding)
                generate_split(restored, predictor, options.data, "test", predictions)
            of_seeds[run.parent.name, name].append(scores(predictions))
    for (method, name), seeds in of_seeds.items():
        means = {column: float(np.mean([one[column] for one in seeds])) for column in COLUMNS}
        shown = " | ".join("-" if np.isnan(value) else f"{value:.3g}" for value in means.values())
        print(f"| {method} | {name} | {len(seeds)} | {shown} |")
        print(json.dumps({"method": method, "drafts": name, "seeds": seeds}))


if __name__ == "__main__":
    main()
