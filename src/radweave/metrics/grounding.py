"""Boxes of drafts against the boxes of references, by label.

A drafted box is compared with the reference's boxes of the same label. ``box_IoU`` and ``box_pointing`` ask of every
reference's box how well it is covered, F1 at an IoU of .3 and .5 also of every drafted one if there is such a finding.

Sources: Bannur et al., "MAIRA-2", arXiv:2406.04449 (boxes of sentences); Zhang et al., "Top-down neural attention by
excitation backprop", ECCV 2016 (the pointing game).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from radweave.core.study import FindingBox
from radweave.data.boxes import contains_middle, overlap
from radweave.metrics.clinical import pooled_statistics
from radweave.metrics.pairs import Pair
from radweave.metrics.statistics import Statistic, mean_statistic

LEAST_IOU: Final = {"box_F1_30": 0.3, "box_F1_50": 0.5}
"""Metric -> the IoU from which on two boxes are the same."""
NO_BOXES: Final = "unavailable: no study has 'boxes' and 'ref_boxes'"


def box_statistics(pairs: Sequence[Pair]) -> dict[str, Statistic]:
    """The scores of boxes over the studies that state both; none where no study does.

    IoU and pointing are means over studies with a box in the reference, F1 is pooled over boxes.
    """
    if not any(pair.boxes is not None and pair.ref_boxes is not None for pair in pairs):
        return {}
    covered = np.full((2, len(pairs)), np.nan)
    counts = {key: np.zeros((len(pairs), 3)) for key in LEAST_IOU}
    for number, pair in enumerate(pairs):
        if pair.boxes is None or pair.ref_boxes is None:
            continue
        if pair.ref_boxes:
            covered[:, number] = np.mean([_cover(box, pair.boxes) for box in pair.ref_boxes], axis=0)
        for key, least in LEAST_IOU.items():
            hits = matched(pair.boxes, pair.ref_boxes, least)
            counts[key][number] = hits, len(pair.boxes) - hits, len(pair.ref_boxes) - hits
    means = {name: mean_statistic(values) for name, values in zip(("box_IoU", "box_pointing"), covered, strict=True)}
    return means | {key: pooled_statistics(rows)["f1"] for key, rows in counts.items()}


def _cover(true: FindingBox, drafted: Sequence[FindingBox]) -> tuple[float, float]:
    """The largest IoU of a reference's box with a drafted one of its label, and 1 if the middle of one lies in it."""
    own = [box.box for box in drafted if box.label == true.label]
    return (
        max((overlap(box, true.box) for box in own), default=0.0),
        float(any(contains_middle(true.box, box) for box in own)),
    )


def matched(drafted: Sequence[FindingBox], true: Sequence[FindingBox], least: float) -> int:
    """Pairs of boxes of one label with an IoU of at least ``least``, each box in one pair, the largest IoU first."""
    shares = [
        (overlap(one.box, other.box), row, column)
        for row, one in enumerate(drafted)
        for column, other in enumerate(true)
        if one.label == other.label
    ]
    rows: set[int] = set()
    columns: set[int] = set()
    for share, row, column in sorted(shares, reverse=True):
        if share >= least and row not in rows and column not in columns:
            rows.add(row)
            columns.add(column)
    return len(rows)
