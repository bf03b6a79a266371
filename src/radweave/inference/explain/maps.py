"""Attention maps and boxes over the pictures that they are about.

A map has one value per patch of the model's input. A radiograph was fitted into a square with black beside it, so a
map (h, w) covers the square and not the picture; a scan's map (d, h, w) covers the scan. Between the middles of the
patches values are linear, beyond the outermost middles they stay.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from radweave.core.evidence import DraftEvidence
from radweave.core.study import LabelState
from radweave.data.boxes import Window, box_in_window, is_box
from radweave.data.square import place_in_square
from radweave.inference.explain.support import Finding, Support
from radweave.labels import NO_FINDING

SHOWN_PX = 640
"""Longest side of a picture on the page. Smaller pictures are enlarged, so that a map over them is smooth."""

Floats = NDArray[np.float64]
_Plane = TypeVar("_Plane", Floats, NDArray[np.float32])


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture to show: ``grey`` (H, W) uint8 and over it ``heat`` (H, W) >= 0, in the unit of the map.

    ``box`` is marked on it: left, top, right and bottom in shares of the picture.
    """

    title: str
    grey: NDArray[np.uint8]
    heat: Floats | None = None
    box: tuple[float, float, float, float] | None = None


@dataclass(frozen=True, slots=True)
class RadiographSubject:
    """A radiograph: ``pixels`` (H, W) in [0, 1] as it was read, ``side`` of the square that the model saw."""

    title: str
    pixels: NDArray[np.float32]
    side: int

    @property
    def axes(self) -> int:
        """Number of axes of its maps."""
        return 2

    def panels(self) -> list[Panel]:
        return [Panel(self.title, shown(self.pixels))]

    def panels_with(self, weights: Floats) -> list[Panel]:
        """The picture with a map (h, w) of its square over it."""
        grey = shown(self.pixels)
        top, left, height, width = self._place()
        rows = (top + height * middles(grey.shape[0])) / self.side
        columns = (left + width * middles(grey.shape[1])) / self.side
        return [Panel(self.title, grey, between(weights, rows, columns))]

    def panels_at(self, box: Sequence[float]) -> list[Panel]:
        """The picture with a box (``PlaceBox``); none if the box is not on it."""
        if not is_box(box, self.axes):
            return []
        left, top, right, bottom = box
        return [Panel(self.title, shown(self.pixels), box=(left, top, right, bottom))]

    def share_beside(self, weights: Floats) -> float:
        """Share of a map that lies where there is no picture."""
        top, left, height, width = self._place()
        rows = overlap(weights.shape[0], top / self.side, (top + height) / self.side)
        columns = overlap(weights.shape[1], left / self.side, (left + width) / self.side)
        total = float(weights.sum())
        return 0.0 if total <= 0 else 1.0 - float(rows @ weights @ columns) / total

    def _place(self) -> tuple[int, int, int, int]:
        return place_in_square(self.pixels.shape[0], self.pixels.shape[1], self.side)


@dataclass(frozen=True, slots=True)
class ScanSubject:
    """A CT scan: ``voxels`` (z, y, x) in [0, 1] as the model saw them, z to the head, y to the back, x to the left.

    ``spacing_mm`` is (z, y, x), only its ratios matter. Slices are shown as radiologists look at them: from the feet,
    from the front, from the left, with the patient's right on the left side where it can be seen. ``covers`` is the
    part of the scan that the model saw, as ``ct.covered`` gives it.
    """

    title: str
    voxels: NDArray[np.float32]
    spacing_mm: tuple[float, float, float] = (1.0, 1.0, 1.0)
    covers: Window = ((0.0, 1.0),) * 3

    @property
    def axes(self) -> int:
        return 3

    def panels(self) -> list[Panel]:
        """The three slices through the middle."""
        return [self._slice(axis, self.voxels.shape[axis] // 2, None) for axis in range(3)]

    def panels_with(self, weights: Floats) -> list[Panel]:
        """The three slices through the peak of a map (d, h, w), with the map over them."""
        peak = np.unravel_index(int(weights.argmax()), weights.shape)
        return [
            self._slice(axis, int((peak[axis] + 0.5) / weights.shape[axis] * self.voxels.shape[axis]), weights)
            for axis in range(3)
        ]

    def panels_at(self, box: Sequence[float]) -> list[Panel]:
        """The three slices through the middle of a box of the scan, cut where the model's input ends."""
        inside = box_in_window(box, self.covers) if is_box(box, self.axes) else None
        if inside is None:
            return []
        low, high = np.array(inside[:3]), np.array(inside[3:])
        panels = []
        for axis, middle in enumerate((low + high) / 2):
            count = self.voxels.shape[axis]
            plane = self._slice(axis, min(count - 1, int(middle * count)), None)
            (top, left), (bottom, right) = np.delete(low, axis), np.delete(high, axis)
            if axis:
                top, bottom = 1 - bottom, 1 - top
            panels.append(replace(plane, box=(float(left), float(top), float(right), float(bottom))))
        return panels

    def share_beside(self, weights: Floats) -> float:
        return 0.0

    def _slice(self, axis: int, index: int, weights: Floats | None) -> Panel:
        name = ("axial", "coronal", "sagittal")[axis]
        height_mm, width_mm = (self.voxels.shape[other] * self.spacing_mm[other] for other in range(3) if other != axis)
        plane = np.take(self.voxels, index, axis=axis)
        grey = shown(_upright(plane, axis), aspect=height_mm / width_mm)
        title = f"{self.title}, {name} slice {index + 1} of {self.voxels.shape[axis]}"
        if weights is None:
            return Panel(title, grey)
        place = np.array([(index + 0.5) / self.voxels.shape[axis]])
        across = np.tensordot(between_weights(weights.shape[axis], place)[0], weights, axes=(0, axis))
        heat = between(_upright(across, axis), middles(grey.shape[0]), middles(grey.shape[1]))
        return Panel(title, grey, heat)


Subject = RadiographSubject | ScanSubject
"""A view or a scan: it can be shown, alone or with a map over it."""


def _upright(plane: _Plane, axis: int) -> _Plane:
    """Coronal and sagittal slices have the head on top; axial ones have the front there as they are."""
    return plane if axis == 0 else plane[::-1]


def shown(pixels: NDArray[np.float32], *, aspect: float | None = None) -> NDArray[np.uint8]:
    """Grey values, ``SHOWN_PX`` the longer side.

    ``aspect`` is height by width where pixels are not square: in slices, which are shown at half the size.
    """
    height, width = pixels.shape
    tall = height / width if aspect is None else aspect
    longest = SHOWN_PX if aspect is None else SHOWN_PX // 2
    size = (longest, max(1, round(longest * tall))) if tall <= 1 else (max(1, round(longest / tall)), longest)
    image = Image.fromarray(np.ascontiguousarray(pixels, dtype=np.float32))
    resized = np.asarray(image.resize(size, Image.Resampling.BILINEAR), dtype=np.float32)
    return np.rint(resized.clip(0.0, 1.0) * 255.0).astype(np.uint8)


def middles(count: int) -> Floats:
    """Middles of ``count`` pixels that share the range from 0 to 1."""
    return (np.arange(count) + 0.5) / count


def between(weights: Floats, rows: Floats, columns: Floats) -> Floats:
    """A map (h, w) read at ``rows`` x ``columns``, given as shares of its height and width."""
    values: Floats = between_weights(weights.shape[0], rows) @ weights @ between_weights(weights.shape[1], columns).T
    return values


def between_weights(cells: int, places: Floats) -> Floats:
    """Weights of ``cells`` at places in [0, 1]: (places, cells), each row sums to 1."""
    position = np.clip(places * cells - 0.5, 0.0, cells - 1.0)
    return np.maximum(0.0, 1.0 - np.abs(position[:, None] - np.arange(cells)))


def overlap(cells: int, start: float, end: float) -> Floats:
    """The share of each of ``cells`` equal parts of [0, 1] that lies in [start, end]."""
    low, high = np.arange(cells) / cells, (np.arange(cells) + 1) / cells
    covered: Floats = np.clip(np.minimum(high, end) - np.maximum(low, start), 0.0, None) * cells
    return covered


def smallest_half(maps: Sequence[Floats]) -> float:
    """The share of all patches that the strongest ones need to hold half of a map: 0.5 if it is even everywhere."""
    values = np.sort(np.concatenate([weights.ravel() for weights in maps]))[::-1]
    total = values.sum()
    if total <= 0:
        return 0.5
    held = np.concatenate([[0.0], values.cumsum()])
    # Within the patch that reaches half, in proportion, so that an even map gives one half exactly.
    return float(np.interp(total / 2, held, np.arange(held.size))) / values.size


# Maps in colours: blue to yellow, which eyes without red or green tell apart, and a line at half of the peak.
#
# No information is in colour alone: the line is visible in grey print, and the page gives the numbers.


RAMP = ((0.0, (20, 50, 130)), (0.5, (0, 160, 160)), (1.0, (250, 230, 60)))
"""Share of the peak -> red, green, blue; lightness grows all the way."""

MOST_OPAQUE = 0.6
LINE_AT = 0.5
_LINE = 255
_CAPTION_PX = 28
_LINE_PX = 17
_NARROWEST_PX = 460


def _palette() -> NDArray[np.uint8]:
    """Colours (256, 4) with opacity: 0 to 254 the ramp, 255 the line."""
    share = np.linspace(0.0, 1.0, _LINE)
    stops = [place for place, _ in RAMP]
    colours = np.zeros((256, 4))
    for channel in range(3):
        colours[:_LINE, channel] = np.interp(share, stops, [colour[channel] for _, colour in RAMP])
    colours[:_LINE, 3] = 255 * MOST_OPAQUE * np.minimum(1.0, 1.5 * share)
    colours[_LINE] = 255
    return np.rint(colours).astype(np.uint8)


PALETTE = _palette()


def opacity(share: float) -> float:
    """Opacity of the ramp at a share of the peak."""
    return round(MOST_OPAQUE * min(1.0, 1.5 * share), 3)


def overlay_indices(panel: Panel, peak: float) -> NDArray[np.uint8]:
    """Palette indices (H, W) of a panel's heat, from 0 to ``peak``."""
    assert panel.heat is not None
    share = np.clip(panel.heat / peak, 0.0, 1.0) if peak > 0 else np.zeros_like(panel.heat)
    indices = np.rint(share * (_LINE - 1)).astype(np.uint8)
    indices[_border(share >= LINE_AT)] = _LINE
    return indices


def _border(inside: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Pixels within, or right beside, a region whose neighbour above, below, left or right is on the other side."""
    border = np.zeros_like(inside)
    down, right = inside[1:] != inside[:-1], inside[:, 1:] != inside[:, :-1]
    border[1:] |= down
    border[:-1] |= down
    border[:, 1:] |= right
    border[:, :-1] |= right
    return border


def overlay_png(panel: Panel, peak: float) -> bytes:
    """The heat alone, as a PNG with transparency, to lie over the grey picture."""
    image = Image.fromarray(overlay_indices(panel, peak))
    image.putpalette(PALETTE[:, :3].tobytes())
    return _png(image, transparency=PALETTE[:, 3].tobytes())


def grey_png(panel: Panel) -> bytes:
    return _png(Image.fromarray(panel.grey))


def captioned(panel: Panel, caption: str, notices: Sequence[str], peak: float | None = None) -> Image.Image:
    """Picture and heat in red, green and blue, with a strip below that says what it is, so that it can leave the page.

    The strip holds ``caption``, the colours' range where there is heat, and the ``notices``.
    """
    rgb = np.repeat(panel.grey[..., None], 3, axis=2).astype(np.float64)
    if peak is not None:
        colours = PALETTE[overlay_indices(panel, peak)].astype(np.float64)
        opaque = colours[..., 3:] / 255
        rgb = rgb * (1 - opaque) + colours[..., :3] * opaque
    height, width = panel.grey.shape
    full = max(width, _NARROWEST_PX)
    small = ImageFont.load_default(12)
    lines = [line for notice in notices for line in _wrapped(notice, small, full - 12)]
    image = Image.new("RGB", (full, height + _CAPTION_PX + _LINE_PX * len(lines)))
    image.paste(Image.fromarray(np.rint(rgb).astype(np.uint8)), ((full - width) // 2, 0))
    draw = ImageDraw.Draw(image)
    draw.text((6, height + 5), caption, fill="white", font=ImageFont.load_default(14))
    for number, line in enumerate(lines):
        draw.text((6, height + _CAPTION_PX + _LINE_PX * number), line, fill=(255, 190, 190), font=small)
    if peak is not None:
        _legend(image, right=image.width - 6, top=height + 8)
    return image


def _wrapped(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> list[str]:
    """Lines of at most ``width`` pixels."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        lines[-1:] = [longer] if font.getlength(longer) <= width else [lines[-1], word]
    return lines


def _legend(image: Image.Image, *, right: int, top: int) -> None:
    """A bar of the colours over black, 0 on the left."""
    bar = PALETTE[np.linspace(0, _LINE - 1, 70).astype(int), :3]
    image.paste(Image.fromarray(np.broadcast_to(bar, (12, 70, 3)).copy()), (right - 100, top))
    draw = ImageDraw.Draw(image)
    small = ImageFont.load_default(11)
    draw.text((right - 110, top - 1), "0", fill="white", font=small)
    draw.text((right - 27, top - 1), "peak", fill="white", font=small)


def _png(image: Image.Image, **options: bytes) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", **options)
    return buffer.getvalue()


def data_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


# Choice of the maps, and their pictures.


FEWEST = 3
MOST_WITHOUT_REASON = 6
"""Maps that are shown where the evidence does not rank them."""
MOST_CUT = 12
"""Boxes of a scan that get slices of their own: the likeliest of every finding come first."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One picture of a figure: the grey picture by its id, the heat over it as a data URI, its title and file.

    ``boxes`` are those on it, each by its figure and as left, top, width and height in the picture's pixels.
    """

    picture: str
    heat: str | None
    title: str
    width: int
    height: int
    file: str
    boxes: tuple[tuple[BoxFigure, tuple[float, float, float, float]], ...] = ()


@dataclass(frozen=True, slots=True)
class BoxFigure:
    """A box by its number on the page, with the sentences and findings that it marks.

    ``view`` counts the pictures from 0, ``title`` is that of its picture, ``where`` says in words where on it the box
    lies, ``shown`` are the slices through its middle, of a scan.
    """

    number: int
    view: int
    box: tuple[float, ...]
    sentences: tuple[int, ...]
    findings: tuple[str, ...]
    title: str
    where: str
    shown: tuple[Shown, ...] = ()

    @property
    def label(self) -> str:
        """Its sentences, by number."""
        return ", ".join(map(str, self.sentences))


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
    outside: float
    peak: float
    patches: int
    shown: tuple[Shown, ...]


@dataclass(slots=True)
class Gallery:
    """All pictures of a page. A grey picture is held once, however many maps lie over it.

    ``files`` are the PNGs beside the page, each with the ``notices`` below it; ``notes`` say what could not be shown.
    ``boxes`` are those of the sentences' findings.
    """

    pictures: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    plain: list[Shown] = field(default_factory=list)
    figures: list[MapFigure] = field(default_factory=list)
    boxes: list[BoxFigure] = field(default_factory=list)
    notices: tuple[str, ...] = ()
    files: dict[str, bytes] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def boxes_of(self, sentence: int, finding: str) -> list[BoxFigure]:
        """The boxes of a finding of a sentence."""
        return [box for box in self.boxes if sentence in box.sentences and finding in box.findings]

    def embed(self, panel: Panel) -> Shown:
        """Take a panel's grey picture into the page."""
        height, width = panel.grey.shape
        key = "p" + sha256(panel.grey.tobytes() + bytes(f"{width}", "ascii")).hexdigest()[:12]
        if key not in self.pictures:
            self.pictures[key] = (data_uri(grey_png(panel)), width, height)
        return Shown(key, None, panel.title, width, height, "")

    def add(self, panel: Panel, stem: str, caption: str, peak: float | None = None) -> Shown:
        """Take a panel into the page and into the files."""
        name = f"{stem}.png"
        below = self.notices if caption == panel.title else (panel.title, *self.notices)
        self.files[name] = _png(captioned(panel, caption, below, peak))
        heat = None if peak is None else data_uri(overlay_png(panel, peak))
        return replace(self.embed(panel), heat=heat, file=name)


def draw(
    subjects: Sequence[Subject], evidence: DraftEvidence, support: Support, *, notices: tuple[str, ...]
) -> Gallery:
    """The plain pictures of a study, and its maps over them."""
    gallery = Gallery(notices=notices)
    panels = [panel for subject in subjects for panel in subject.panels()]
    gallery.plain = [gallery.add(panel, f"view_{number}", panel.title) for number, panel in enumerate(panels, start=1)]
    _draw_boxes(gallery, subjects, support)
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
    left = [name for name in maps if name not in {NO_FINDING, *(figure.name for figure in gallery.figures)}]
    if left:
        gallery.notes.append(f"Not shown, as neither probable nor in the draft: {', '.join(left)}.")
    return gallery


def _draw_boxes(gallery: Gallery, subjects: Sequence[Subject], support: Support) -> None:
    """The boxes of the sentences' findings, each once: on the plain picture of a radiograph, on slices of a scan."""
    marks: dict[tuple[int, tuple[float, ...]], list[tuple[int, int, str]]] = {}
    for line in support.sentences:
        for place in line.places or ():
            for rank, one in enumerate(place["boxes"]):
                marks.setdefault((one["view"], tuple(one["box"])), []).append((rank, line.number, place["finding"]))
    panels = {
        (view, box): subjects[view].panels_at(box) if 0 <= view < len(subjects) else []
        for view, box in sorted(marks, key=lambda mark: min(marks[mark])[0])
    }
    placed = [mark for mark, slices in panels.items() if slices]
    outside = len(marks) - len(placed)
    drawn = placed[: MOST_CUT if any(subject.axes == 3 for subject in subjects) else None]
    for number, (view, box) in enumerate((mark for mark in marks if mark in drawn), start=1):
        figure = BoxFigure(
            number=number,
            view=view,
            box=box,
            sentences=tuple(dict.fromkeys(sentence for _, sentence, _ in marks[view, box])),
            findings=tuple(dict.fromkeys(finding for _, _, finding in marks[view, box])),
            title=subjects[view].title,
            where=_where(box),
        )
        if subjects[view].axes == 2:
            gallery.plain[view] = _boxed(gallery.plain[view], figure, panels[view, box][0])
        else:
            shown = tuple(_boxed(gallery.embed(panel), figure, panel) for panel in panels[view, box])
            figure = replace(figure, shown=shown)
        gallery.boxes.append(figure)
    if outside:
        gallery.notes.append(f"{outside} of the boxes do not lie on the pictures and are not shown.")
    if len(drawn) < len(placed):
        gallery.notes.append(
            f"{len(placed) - len(drawn)} of the boxes, the less likely ones, are in evidence.json only."
        )


def _boxed(picture: Shown, figure: BoxFigure, panel: Panel) -> Shown:
    """The picture with one more box."""
    assert panel.box is not None
    left, top, right, bottom = panel.box
    width, height = picture.width, picture.height
    drawn = (left * width, top * height, (right - left) * width, (bottom - top) * height)
    return replace(picture, boxes=(*picture.boxes, (figure, drawn)))


def _where(box: Sequence[float]) -> str:
    """A box in words: shares of the radiograph, or of the scan in the patient's directions."""
    starts = ("left", "top") if len(box) == 4 else ("feet", "front", "patient's right")
    extents = zip(starts, box[: len(starts)], box[len(starts) :], strict=True)
    return ", ".join(f"{100 * low:.0f} to {100 * high:.0f} % from the {start}" for start, low, high in extents)


class Judged(Protocol):
    """Evidence on a class."""

    @property
    def probability(self) -> float | None: ...
    @property
    def threshold(self) -> float: ...
    @property
    def state(self) -> LabelState: ...


def choose(names: Sequence[str], findings: Mapping[str, Judged]) -> list[str]:
    """Classes whose maps are shown: the probable ones, those that the draft affirms or leaves open, or the first few.

    The most probable ones come first. "No Finding" is nowhere in a picture and has no map worth showing.
    """

    def probability(name: str) -> float:
        value = findings[name].probability
        return -1.0 if value is None else value

    ranked = sorted((name for name in names if name != NO_FINDING), key=probability, reverse=True)
    stated = (LabelState.POSITIVE, LabelState.UNCERTAIN)
    wanted = [
        name for name in ranked if probability(name) >= findings[name].threshold or findings[name].state in stated
    ]
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
    outside = sum(
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
        outside=outside / total if total > 0 else 0.0,
        peak=peak,
        patches=sum(weights.size for weights in maps),
        shown=shown,
    )


# Captions of figures other than maps: subject, unit and limits of each.
#
# Maps have their captions in ``core/map_kinds.py``, which methods name in their evidence.


RECALLED: Final[Mapping[str, str]] = {
    "report": "A report: the whole text that a study has in the training split. Its scores say how alike the"
    " images are, or how much it counted; not that this patient has what it says.",
    "sentence": "A sentence from a training report, chosen for this image or for one finding of it. Its scores"
    " say how near it is or how much it counted; not that it is true here.",
    "region": "A region: a cell of another patient's image, from where the activation of a finding was strongest"
    ' there. "activation" is a share of that image\'s own peak, "weight" the share of the memory\'s attention that'
    " it got. It is no place in the image of this study.",
    "image": 'An image that this one was compared with. "squared distance" adds up over the latent tokens and has'
    " no unit; a large one is no abnormality.",
    "volume": 'A scan that this one was compared with. "squared distance" adds up over the latent tokens and has'
    " no unit; a large one is no abnormality.",
}
"""Kind of a recalled case -> what it is. Of a kind that is not here the page says nothing."""

OTHERS: Final[Mapping[str, str]] = {
    "auxiliary_probabilities": "Probabilities, 0 to 1, of a second head that helps in training. Nothing is"
    " decided by them, and they are not calibrated.",
    "token_importance": "Squared distance of each latent token from the same token of the reference. No unit;"
    " tokens are no places in the image, their order means nothing.",
    "top_8_share": "Share, 0 to 1, of that distance which the eight farthest tokens hold: near 1 where few tokens"
    " differ.",
    "disease_states": "The most probable of four states of each class. It is decided by comparing the four, not"
    " by the thresholds above.",
    "routing": "Weights, 0 to 1, of the attention masks of each layer: how far around a place was looked, not where.",
    "fusion": "Share, 0 to 1, of each class in the fused token, and how much of the decoder's input is of"
    " classes, not of patches. It does not say that a class is there.",
    "familiarity": "How like the training images each view is: 0 is typical, lower is less typical; below the two"
    " thresholds it is doubted or refused. It does not say that a draft of a familiar image is right.",
    "expected_utility": "What the chosen draft is expected to score by wording and by findings, if the"
    ' probabilities above are right; "asserted" are the findings that it was made to state.',
    "contradictions": "Sentences of the draft that cannot all be true, by rules: what one states and another denies.",
    "marks_removed": "Sentences that were taken out because they held marks of de-identification.",
}
"""Key of evidence that has no table of its own -> what it is."""

SOURCES: Final = (
    "The probability that each source of evidence gives to a finding by itself, times (x) its weight where their"
    " log-odds are added up. Weights say how much a source counts, for all studies alike; a weight below 0 corrects"
    " another source. Neither says where in the image anything is, nor that a source is right here."
)
CHANGES: Final = (
    "Whether the report of the study before affirms a finding, and the probability, in percent, of what became of it"
    " since, from both studies. It is of the model's reading of both, and measures no size."
)
