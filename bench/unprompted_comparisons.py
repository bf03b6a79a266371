"""What taking comparisons out does to reports that people wrote, and to drafts of a run.

    python bench/unprompted_comparisons.py SHARED_DATA [PREDICTIONS.jsonl ...]

Reads findings and impressions of IU X-Ray as if they were drafts without a prior. Counts the reports that compare
before and after, the sentences that were changed and left out, the class states that a change altered, and what the
sentences named that were left out. Of predictions it counts the drafts that compare and what was removed.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from radweave.core.study import LabelState
from radweave.labels import NO_FINDING, get_labeler
from radweave.labels.comparisons import compares_with_prior, remove_comparisons, whole_sentences


def main() -> None:
    labeler = get_labeler("chexpert14")
    texts = list(reports(Path(sys.argv[1])))
    results = [remove_comparisons(text, labeler) for text in texts]
    print(
        f"texts {len(texts)}, comparing {sum(map(compares_with_prior, texts))},"
        f" afterwards {sum(compares_with_prior(now) for now, _ in results)}, empty afterwards"
        f" {sum(not now for now, _ in results)}"
    )
    made = [edit for _, edits in results for edit in edits]
    left_out = [edit.was for edit in made if edit.now is None]
    changed = [(edit.was, edit.now) for edit in made if edit.now is not None]
    sentences = sum(1 for text in texts for _ in whole_sentences(text))
    print(f"sentences {sentences}, untouched {sentences - len(made)}, changed {len(changed)}, left out {len(left_out)}")
    shifts: Counter[str] = Counter()
    for was, now in changed:
        before, after = labeler.label([was, now])
        shifts.update(
            f"{mention.state.value} to {after[name].state.value}"
            for name, mention in before.items()
            if name != NO_FINDING and mention.state is not after[name].state
        )
    print(f"class states that changes altered: {sum(shifts.values())} {dict(shifts)}")
    named: Counter[str] = Counter()
    for mentions in labeler.label(left_out):
        states = {mention.state for name, mention in mentions.items() if name != NO_FINDING}
        told = (LabelState.POSITIVE, LabelState.UNCERTAIN, LabelState.NEGATIVE)
        named[next((state.value for state in told if state in states), "none")] += 1
    print(f"left out, by the strongest state in them: {dict(named)}")
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
