"""Where findings get lost on the way to a draft: micro F1 of the heads, of the recalled report, and of the draft.

    python bench/evidence_agreement.py RUN/predictions.jsonl [...]

Findings are those the rule-based labeler reads as positive, No Finding left out; a head counts from a probability of
0.5 on. Against the reference: the heads, the first recalled report, the draft. And the draft against the heads and
against the recalled report: does it say what its evidence says? For methods whose evidence has these.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from radweave.labels import get_labeler
from radweave.ontology import CHEXPERT14
from radweave.storage import read_jsonl
from radweave.types import LabelState

FINDINGS = frozenset(CHEXPERT14) - {"No Finding"}


def stated(texts: Iterable[str]) -> list[set[str]]:
    """The findings that each text affirms."""
    labels = get_labeler("chexpert14").label(list(texts))
    return [{name for name in FINDINGS if label[name].state is LabelState.POSITIVE} for label in labels]


def probable(evidence: dict[str, Any]) -> set[str]:
    """The findings that the heads hold probable."""
    return {name for name, value in evidence.get("class_probabilities", {}).items() if value >= 0.5} & FINDINGS


def micro_f1(said: Sequence[set[str]], true: Sequence[set[str]]) -> float:
    both = sum(len(a & b) for a, b in zip(said, true, strict=True))
    return 2 * both / max(1, sum(map(len, said)) + sum(map(len, true)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("predictions", type=Path, nargs="+")
    print("heads  recalled  draft | draft~heads  draft~recalled | findings a reference / draft")
    for path in parser.parse_args().predictions:
        rows = [row for _, row in read_jsonl(path) if row["ref"]]
        true, draft = stated(row["ref"] for row in rows), stated(row["hyp"] for row in rows)
        heads = [probable(row["evidence"]) for row in rows]
        recalled = [next((case.get("text") for case in row["evidence"].get("recalled", ())), None) for row in rows]
        exemplar = stated(text or "" for text in recalled)
        counts = sum(map(len, true)) / len(rows), sum(map(len, draft)) / len(rows)
        print(
            f"{micro_f1(heads, true):.3f}     {micro_f1(exemplar, true):.3f}  {micro_f1(draft, true):.3f} |"
            f"       {micro_f1(draft, heads):.3f}           {micro_f1(draft, exemplar):.3f} |"
            f" {counts[0]:.2f} / {counts[1]:.2f}  {path.parent.parent.name}/{path.parent.name}"
        )


if __name__ == "__main__":
    main()
