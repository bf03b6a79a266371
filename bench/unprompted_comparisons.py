"""What taking comparisons out does to reports that people wrote, and to drafts of a run.

    python bench/unprompted_comparisons.py SHARED_DATA [PREDICTIONS.jsonl ...]

Reads findings and impressions of IU X-Ray as if they were drafts without a prior. Counts the reports that compare
before and after, the sentences that were changed and dropped, and the reports in which a class has another state
afterwards (but for one that the comparison left open). Of predictions it counts the drafts that compare and what was
removed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from radweave.labels import NO_FINDING, get_labeler
from radweave.labels.comparisons import compares_with_prior
from radweave.labels.unprompted import remove_comparisons


def main() -> None:
    labeler = get_labeler("chexpert14")
    texts = list(reports(Path(sys.argv[1])))
    compared = [text for text in texts if compares_with_prior(text)]
    edits = [remove_comparisons(text, labeler) for text in compared]
    made = [edit for _, some in edits for edit in some]
    shifts: dict[str, int] = {}
    reports_changed = 0
    for text, (now, _) in zip(compared, edits, strict=True):
        before, after = labeler.label([text, now])
        found = [
            f"{mention.state.value} to {after[name].state.value}"
            for name, mention in before.items()
            if name != NO_FINDING and mention.state is not after[name].state
        ]
        for shift in found:
            shifts[shift] = shifts.get(shift, 0) + 1
        reports_changed += any(not shift.startswith("uncertain to") or shift.endswith("positive") for shift in found)
    print(
        f"texts {len(texts)}, comparing {len(compared)}, afterwards {sum(compares_with_prior(now) for now, _ in edits)}"
    )
    dropped = sum(edit.now is None for edit in made)
    print(f"sentences changed {len(made) - dropped}, dropped {dropped}")
    print(f"empty afterwards {sum(not now for now, _ in edits)}; class states that differ: {shifts}")
    print(f"texts in which another state differs than one left open: {reports_changed}")
    for path in sys.argv[2:]:
        rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
        removed = [len(row["evidence"].get("comparisons_removed", ())) for row in rows]
        still = sum(compares_with_prior(row["hyp"]) for row in rows)
        print(f"{path}: {len(rows)} drafts, {still} compare")
        print(f"  removed: {sum(removed)} sentences of {sum(count > 0 for count in removed)} drafts")


def reports(data: Path) -> Iterator[str]:
    with (data / "iu_xray" / "manifest.jsonl").open() as lines:
        for line in lines:
            row = json.loads(line)
            yield from (row[name] for name in ("findings", "impression") if row[name])


if __name__ == "__main__":
    main()
