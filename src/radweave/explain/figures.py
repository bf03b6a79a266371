"""Which maps are shown, and as what pictures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Protocol

import numpy as np

from radweave.base.study import LabelState
from radweave.explain.colours import captioned_png, data_uri, grey_png, overlay_png
from radweave.explain.maps import Floats, Panel, Subject, smallest_half
from radweave.explain.support import Finding, Support
from radweave.labels import NO_FINDING

FEWEST = 3
MOST_WITHOUT_REASON = 6
"""How many maps are shown where nothing says which of them matter."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One picture of a figure: the grey picture by its id, the heat over it as a data URI, its title and file."""

    picture: str
    heat: str | None
    title: str
    width: int
    height: int
    file: str


@dataclass(frozen=True, slots=True)
class MapFigure:
    """The map of one class over all pictures of the study.

    ``half`` is the share of all patches that hold half of the map, ``beside`` the share of the map that lies where
    there is no picture, ``peak`` its largest value, which the colours end at, ``patches`` how many there are.
    """

    name: str
    slug: str
    finding: Finding
    half: float
    beside: float
    peak: float
    patches: int
    shown: tuple[Shown, ...]


@dataclass(slots=True)
class Gallery:
    """All pictures of a page. A grey picture is held once, however many maps lie over it.

    ``maps`` are those of the figures as the method gave them; ``files`` are the PNGs beside the page, each with the
    ``notices`` below it; ``notes`` say what could not be shown.
    """

    pictures: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    plain: list[Shown] = field(default_factory=list)
    figures: list[MapFigure] = field(default_factory=list)
    maps: dict[str, list[Floats]] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    files: dict[str, bytes] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, panel: Panel, stem: str, caption: str, peak: float | None = None) -> Shown:
        """Take a panel into the page and into the files."""
        height, width = panel.grey.shape
        key = "p" + sha256(panel.grey.tobytes() + bytes(f"{width}", "ascii")).hexdigest()[:12]
        if key not in self.pictures:
            self.pictures[key] = (data_uri(grey_png(panel)), width, height)
        name = f"{stem}.png"
        below = self.notices if caption == panel.title else (panel.title, *self.notices)
        self.files[name] = captioned_png(panel, caption, below, peak)
        heat = None if peak is None else data_uri(overlay_png(panel, peak))
        return Shown(key, heat, panel.title, width, height, name)


def draw(
    subjects: Sequence[Subject], evidence: Mapping[str, Any], support: Support, *, notices: tuple[str, ...]
) -> Gallery:
    """The plain pictures of a study, and its maps over them."""
    gallery = Gallery(notices=notices)
    panels = [panel for subject in subjects for panel in subject.panels()]
    gallery.plain = [gallery.add(panel, f"view_{number}", panel.title) for number, panel in enumerate(panels, start=1)]
    maps = {}
    for name, values in (evidence.get("attention_maps") or {}).items():
        read = _read(values, subjects)
        if read is None:
            gallery.notes.append(f"The map of {name} does not fit the pictures and is not shown.")
        else:
            maps[name] = read
    slugs: set[str] = set()
    findings = {finding.name: finding for finding in support.findings}
    for name in choose(list(maps), findings):
        slug = _slug(name, slugs)
        gallery.figures.append(_figure(gallery, findings[name], slug, subjects, maps[name]))
        gallery.maps[name] = maps[name]
    left = [name for name in maps if name not in {NO_FINDING, *(figure.name for figure in gallery.figures)}]
    if left:
        gallery.notes.append(f"Not shown, as neither probable nor in the draft: {', '.join(left)}.")
    return gallery


class Judged(Protocol):
    """What is known of a class."""

    @property
    def probability(self) -> float | None: ...
    @property
    def threshold(self) -> float: ...
    @property
    def said(self) -> LabelState: ...


def choose(names: Sequence[str], findings: Mapping[str, Judged]) -> list[str]:
    """Classes whose maps are shown: the probable ones, those that the draft affirms or leaves open, or the first few.

    The most probable ones come first. "No Finding" is nowhere in a picture and has no map worth showing.
    """

    def probability(name: str) -> float:
        value = findings[name].probability
        return -1.0 if value is None else value

    ranked = sorted((name for name in names if name != NO_FINDING), key=probability, reverse=True)
    stated = (LabelState.POSITIVE, LabelState.UNCERTAIN)
    wanted = [name for name in ranked if probability(name) >= findings[name].threshold or findings[name].said in stated]
    known = any(probability(name) >= 0 for name in ranked)
    others = [name for name in ranked if name not in wanted]
    wanted += others[: max(0, (FEWEST if known else MOST_WITHOUT_REASON) - len(wanted))]
    return [name for name in ranked if name in wanted]


def _read(values: Any, subjects: Sequence[Subject]) -> list[Floats] | None:
    """One map per picture; None if this is no such thing. Rows for absent views at the end are left out."""
    try:
        stack = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    if stack.ndim < 1 or len(stack) < len(subjects):
        return None
    maps = list(stack[: len(subjects)])
    fits = all(weights.ndim == subject.axes for weights, subject in zip(maps, subjects, strict=True))
    usable = stack.size > 0 and bool(np.isfinite(stack).all()) and bool((stack >= 0).all())
    return maps if fits and usable else None


def _slug(name: str, taken: set[str]) -> str:
    """A name for ids and files; a number is added where two classes would have the same."""
    stem = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "map"
    slug, number = stem, 2
    while slug in taken:
        slug, number = f"{stem}_{number}", number + 1
    taken.add(slug)
    return slug


def _figure(
    gallery: Gallery, finding: Finding, slug: str, subjects: Sequence[Subject], maps: Sequence[Floats]
) -> MapFigure:
    peak = max(float(weights.max()) for weights in maps)
    total = sum(float(weights.sum()) for weights in maps)
    beside = sum(
        subject.share_beside(weights) * float(weights.sum()) for subject, weights in zip(subjects, maps, strict=True)
    )
    known = "" if finding.probability is None else f", probability {finding.probability:.2f}"
    panels = [panel for subject, weights in zip(subjects, maps, strict=True) for panel in subject.panels_with(weights)]
    shown = tuple(
        gallery.add(panel, f"map_{slug}_{number}", f"{finding.name}{known}", peak)
        for number, panel in enumerate(panels, start=1)
    )
    return MapFigure(
        name=finding.name,
        slug=slug,
        finding=finding,
        half=smallest_half(maps),
        beside=beside / total if total > 0 else 0.0,
        peak=peak,
        patches=sum(weights.size for weights in maps),
        shown=shown,
    )
