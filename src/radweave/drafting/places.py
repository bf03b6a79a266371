"""Places of findings in drafts: what sentences say of them, checked against what the images say."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod

from radweave.core.evidence import FindingPlace, SentencePlace
from radweave.labels.places import Place, PlaceLabeler, merge_places


def place_probability(images: FindingPlace, places: Collection[Place]) -> float | None:
    """Probability that a finding lies in all of the stated sides and zones; None where none of them is known.

    Of several sides, and of several zones, the least probable counts; side and zone are taken as independent.
    """
    stated = (
        [images.sides[side] for side in _sides(places) if side in images.sides],
        [images.zones[zone] for zone in _zones(places) if zone in images.zones],
    )
    return prod(min(known) for known in stated if known) if any(stated) else None


def _sides(places: Collection[Place]) -> list[str]:
    return sorted({place.side for place in places if place.side is not None})


def _zones(places: Collection[Place]) -> list[str]:
    return sorted({place.zone for place in places if place.zone is not None})


def sentence_places(text: str, reader: PlaceLabeler, by_class: Mapping[str, FindingPlace]) -> list[SentencePlace]:
    """A row for each finding that a sentence states, in the order of the classes; ``by_class`` may lack any."""
    rows: list[SentencePlace] = []
    for name, located in reader.label([text])[0].items():
        if not located:
            continue
        places = merge_places(place for one in located for place in one.places)
        own = by_class.get(name, FindingPlace())
        rows.append(
            {
                "finding": name,
                "sides": _sides(places),
                "zones": _zones(places),
                "probability": place_probability(own, places),
                "probabilities": {**own.sides, **own.zones},
                "boxes": list(own.boxes),
            }
        )
    return rows
