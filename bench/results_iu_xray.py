"""Train the baseline on real IU X-Ray (R2Gen split, tiny preset), score val and test, and write docs/results.

    python bench/results_iu_xray.py ../shared/data/iu_xray [key=value ...]

``decoding.key=value`` is applied when reports are written, without training again. About twenty minutes on two cores.
The dataset, the run and the predictions stay in the checkout's ``runs/iu_xray``; a finished training is not repeated.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from pathlib import Path

from radweave.cli.options import training_watch
from radweave.core.storage import write_text
from radweave.core.study import Split
from radweave.data.importers import ImportOptions, import_dataset
from radweave.engine.restore import restore
from radweave.engine.run_folder import read_card
from radweave.engine.train import train
from radweave.inference.bulk import generate_split
from radweave.inference.predictor import Predictor
from radweave.labels import get_labeler
from radweave.metrics import read_pairs
from radweave.metrics.evaluate import finding_f1, score_systems

ROOT = Path(__file__).resolve().parent.parent
METRICS = ("BLEU_1", "BLEU_4", "ROUGE_L", "CIDEr")


def main() -> None:
    source = Path(sys.argv[1])
    overrides = [text for text in sys.argv[2:] if not text.startswith("decoding.")]
    decoding = [text.removeprefix("decoding.") for text in sys.argv[2:] if text.startswith("decoding.")]
    work = ROOT / "runs" / "iu_xray"
    if not (work / "data" / "dataset.json").is_file():
        import_dataset("iu-xray", source, work / "data", options=ImportOptions(target="findings"))
    started = time.perf_counter()
    finished = (work / "run" / "run.json").is_file()
    with training_watch() as watch:
        train("baseline", work / "data", work / "run", overrides=overrides, resume=True, watch=watch)
    seconds = None if finished else time.perf_counter() - started
    if seconds is not None:
        (work / "seconds.json").write_text(json.dumps(seconds))
    seconds = json.loads((work / "seconds.json").read_text())
    lines = _heading(work, seconds, decoding)
    run = restore(work / "run")
    for split in ("val", "test"):
        out = work / f"{split}.jsonl"
        generate_split(run, Predictor.of(run, decoding=decoding), work / "data", split, out, overwrite=True)
        lines += _table(out, split)
    target = ROOT / "docs" / "results" / "baseline_iu_xray.md"
    write_text(target, "\n".join(lines) + "\n")
    print(target.read_text())


def _heading(work: Path, seconds: float, decoding: list[str]) -> list[str]:
    card = read_card(work / "run")
    threads = os.environ.get("OMP_NUM_THREADS", os.cpu_count())
    best = {name: stage.best_step for name, stage in card.validation.items()}
    return [
        "# baseline, tiny, on IU X-Ray",
        "",
        "Made by `bench/results_iu_xray.py`. R2Gen split restricted to the studies at hand, target: findings,"
        " verbatim.",
        "Trained from random weights: no pre-trained part. Research software, not a medical device.",
        "",
        f"Training {seconds / 60:.1f} minutes on {platform.machine()}, {threads} threads, with reading of images; "
        f"{sum(card.trained_steps.values())} updates, best at {best}; seed {card.seed}; "
        f"dataset {card.dataset.fingerprint[:12]}; overrides {list(card.overrides) or 'none'}; "
        f"decoding {decoding or 'greedy'}.",
        "",
    ]


def _table(predictions: Path, split: Split) -> list[str]:
    pairs = read_pairs(predictions).pairs
    lines = []
    for protocol in ("full", "r2gen_iu"):
        lines += [f"## {split}, {len(pairs)} studies, protocol {protocol}", ""]
        lines += ["| system | " + " | ".join(METRICS) + " | finding F1 | distinct reports |"]
        lines += ["|---" * (len(METRICS) + 3) + "|"]
        for name, scores in score_systems(pairs, get_labeler("chexpert14"), protocol).items():
            cells = []
            for metric in METRICS:
                score = scores.corpus[metric]
                cells.append(f"{score.value:.3f} ({score.interval.low:.3f} to {score.interval.high:.3f})")
            distinct = scores.honesty.distinct_reports_share.value
            lines.append(f"| {name} | {' | '.join(cells)} | {finding_f1(scores).value or 0:.3f} | {distinct:.2f} |")
        lines.append("")
    return lines


if __name__ == "__main__":
    main()
