"""Where findings get lost on the way to a draft: micro F1 of the heads, of what was recalled, and of the draft.

    python bench/evidence_agreement.py RUN/predictions.jsonl [...]

What is compared with what: radweave/metrics/evidence.py.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from radweave.core.json_files import read_jsonl
from radweave.labels import get_labeler
from radweave.metrics.evidence import evidence_agreement


def figure(value: float | None) -> str:
    return "-    " if value is None else f"{value:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("predictions", type=Path, nargs="+")
    parser.add_argument("--labels", default="chexpert14", help="ct18 for CT")
    options = parser.parse_args()
    print("heads  recalled  draft | draft~heads  draft~recalled | findings a reference / draft")
    for path in options.predictions:
        found = evidence_agreement((row for _, row in read_jsonl(path)), get_labeler(options.labels))
        print(
            f"{figure(found.heads)}     {figure(found.recalled)}  {found.draft:.3f} |"
            f"       {figure(found.draft_heads)}           {figure(found.draft_recalled)} |"
            f" {found.per_reference:.2f} / {found.per_draft:.2f}  {path.parent.parent.name}/{path.parent.name}"
        )


if __name__ == "__main__":
    main()
