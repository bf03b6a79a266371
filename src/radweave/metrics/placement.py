"""Findings with their place: agreement on (finding, side, zone).

A label set has no places, so a report that puts every finding in the wrong lobe keeps all its labels. Here an item is a
finding with a side and a zone, each as far as it is stated, read by ``radweave.labels.places``; findings without a
place are no items. Free fluid lies at the base: an effusion there is an effusion of the pleural space.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from radweave.core.ontology import LABEL_SETS
from radweave.labels import Labeler
from radweave.labels.places import HOMES, Located, PlaceLabeler, get_place_labeler
from radweave.metrics.pairs import Pair
from radweave.metrics.statistics import Floats

_AT_THE_BASE = frozenset({"lower", "costophrenic angle"})
Item = tuple[str, str | None, str | None]


def place_labeler_of(labeler: Labeler) -> PlaceLabeler | None:
    """The reader of places for the classes of a labeler; None where no rules read them."""
    names = (name for name, known in LABEL_SETS.items() if set(known.classes) == set(labeler.classes))
    return next(map(get_place_labeler, names), None)


def placed_items(located: Iterable[Located]) -> frozenset[Item]:
    """The items (finding, side, zone) of located findings."""
    items = set()
    for one in located:
        home = HOMES.get(one.name)
        for side, zone in one.places:
            is_fluid = home == "pleura" and "ffusion" in one.name and zone in _AT_THE_BASE
            items.add((one.name, side, home if is_fluid else zone))
    return frozenset(items)


def placed_rows(pairs: Sequence[Pair], labeler: PlaceLabeler) -> Floats:
    """True positives, false positives and misses (N, 3) of each pair; its references are taken together."""
    rows = np.zeros((len(pairs), 3))
    for row, pair in zip(rows, pairs, strict=True):
        hyp, *refs = (
            placed_items(one for located in read.values() for one in located)
            for read in labeler.label([pair.hyp, *pair.refs])
        )
        written = frozenset[Item]().union(*refs)
        row[:] = len(hyp & written), len(hyp - written), len(written - hyp)
    return rows
