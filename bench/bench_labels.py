"""Reports per second of the rule-based labelers on one core: run by hand.

    OMP_NUM_THREADS=1 python bench/bench_labels.py [DATA]

With DATA, the reports are the findings sections of ``iu_xray/manifest.jsonl`` and the reports of
``ct_reports/labelled_reports.jsonl``; without, they are made up: six sentences of a radiograph's report. "First" is one
pass of a new labeler; reports repeat their sentences, and it remembers them. "No memory" reads every sentence afresh.
Time is processor time, best of three.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from radweave.core.ontology import LABEL_SETS
from radweave.labels.phrases import Lexicon, load_lexicon
from radweave.labels.rules import RuleLabeler

ROUNDS = 3
FRAMES = (
    "The heart is {} in size.",
    "No {} consolidation, effusion, or pneumothorax.",
    "The mediastinal contours are {}.",
    "There is a {} opacity of the left base.",
    "{} degenerative changes of the spine.",
    "Lungs are {} without evidence of pneumonia.",
    "A {} catheter ends at the cavoatrial junction.",
    "{} atelectasis or scarring of the lingula.",
)
WORDS = ("normal", "focal", "stable", "small", "mild", "clear", "large", "right-sided", "streaky", "unremarkable")


def made_up(count: int) -> list[str]:
    chance = random.Random(0)
    return [" ".join(chance.choice(FRAMES).format(chance.choice(WORDS)) for _ in range(6)) for _ in range(count)]


def read(path: Path, text: Callable[[Any], str | None]) -> list[str]:
    with path.open(encoding="utf-8") as lines:
        return [found for line in lines if (found := text(json.loads(line)))]


def rate(lexicon: Lexicon, texts: list[str], *, memory: bool) -> float:
    """Reports per second of processor time."""
    best = float("inf")
    for _ in range(ROUNDS):
        labeler = RuleLabeler(lexicon) if memory else RuleLabeler(lexicon, cached_sentences=0)
        labeler.label(texts[:20])
        start = time.process_time()
        labeler.label(texts)
        best = min(best, time.process_time() - start)
    return len(texts) / best


def main() -> None:
    sets = {"made-up radiograph reports": made_up(3000)}
    if len(sys.argv) > 1:
        data = Path(sys.argv[1])
        sets = {
            "IU X-Ray findings": read(data / "iu_xray" / "manifest.jsonl", lambda row: row["findings"]),
            "CT reports": read(data / "ct_reports" / "labelled_reports.jsonl", lambda row: row["report"]),
        }
    for title, texts in sets.items():
        words = sum(len(text.split()) for text in texts) / len(texts)
        print(f"{title}: {len(texts)}, {words:.0f} words each")
        for lexicon in map(load_lexicon, LABEL_SETS):
            first, bare = rate(lexicon, texts, memory=True), rate(lexicon, texts, memory=False)
            print(f"  {lexicon.name:12} first {first:8.0f}/s   no memory {bare:8.0f}/s")


if __name__ == "__main__":
    main()
