"""The page itself: everything in one HTML file, nothing loaded from elsewhere.

All of it can be read without scripts. One script, which the page's policy names by its hash, adds the viewer, opacity
and copying.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import numpy as np
from jinja2 import Environment, PackageLoader, Template
from numpy.typing import NDArray

from radweave.core.config import AIR_HU
from radweave.core.evidence import DraftEvidence
from radweave.core.map_kinds import KEY as MAP_KIND
from radweave.core.map_kinds import MapKind, kind_of
from radweave.core.study import RESEARCH_ONLY, LabelState, Report
from radweave.engine.drafts import COMPARISONS_REMOVED as COMPARISONS
from radweave.engine.run_folder import RunCard
from radweave.inference.explain.comparison import SIGNS, compare_texts
from radweave.inference.explain.maps import CHANGES as CHANGES_CAPTION
from radweave.inference.explain.maps import (
    LINE_AT,
    OTHERS,
    RAMP,
    RECALLED,
    Floats,
    Gallery,
    RadiographSubject,
    ScanSubject,
    Subject,
    draw,
    opacity,
)
from radweave.inference.explain.maps import SOURCES as SOURCES_CAPTION
from radweave.inference.explain.support import (
    CHANGES,
    STATE_WORDS,
    Finding,
    Recalled,
    Support,
    Verdict,
    added_cells,
    change_rows,
    find_support,
    source_rows,
)
from radweave.inference.explain.support import SOURCES as SOURCES
from radweave.io.viewer import LINEAR_EXACT, SCAN_PRESETS, WHOLE_RANGE, Read, Words, bundle, style
from radweave.labels import NO_FINDING, Labeler
from radweave.labels.comparisons import MARK, STATES, compares_with_prior

# Data of the viewer in a page: all grey levels of the images, or HU of the scan, and the maps over them.
#
# The values lie in the page deflated, so that a page with scripts has a window over what the file holds, not over the
# eight bits of a picture. A large image is halved until it has at most ``MOST_PIXELS``, a scan to ``MOST_VOXELS``; the
# image is then called "at 1/2 of its size".


MOST_PIXELS: Final = 1 << 21
MOST_VOXELS: Final = 1 << 22
_LEVELS: Final = 65_535


@dataclass(frozen=True, slots=True)
class Embedded:
    """``about`` is what the viewer reads, as JSON for a page; ``blocks`` are values by the id of their place."""

    about: str
    blocks: dict[str, str] = field(default_factory=dict)


def embed(
    subjects: Sequence[Subject], files: Sequence[str], maps: Mapping[str, Sequence[Floats]], kind: MapKind, method: str
) -> Embedded | None:
    """The images of a study, each called as its file, with maps that fit them; None where there is no image."""
    scan = next((subject for subject in subjects if isinstance(subject, ScanSubject)), None)
    blocks: dict[str, str] = {}
    facts = {name: {"name": name, "method": method, "note": kind.note} for name in maps}
    if scan is not None:
        known = scan.hu is not None
        voxels = scan.hu if scan.hu is not None else np.rint(scan.voxels * np.float32(255)).astype(np.int16)
        values, spacing = _fewer_voxels(voxels, scan.spacing_mm)
        blocks["words-scan"] = _packed(values.astype(np.int32) - AIR_HU)
        about = {**_NOTHING_STATED, "file": scan.title, "shape": list(values.shape), "spacing_mm": list(spacing),
                 "first": AIR_HU, "presets": _scan_presets(values, SCAN_PRESETS if known else ())}  # fmt: skip
        laid = {name: {**facts[name], **_steps(one[0], float(one[0].max()))} for name, one in maps.items()}
        return Embedded(_json({"scan": about, "maps": laid}), blocks)
    radiographs = [subject for subject in subjects if isinstance(subject, RadiographSubject)]
    if not radiographs:
        return None
    images = []
    for number, subject in enumerate(radiographs):
        read, halved = _fewer_pixels(subject.stored or stored_of(subject.pixels))
        blocks[f"words-{number}"] = _packed(read.words)
        if read.table is not None:
            blocks[f"table-{number}"] = _packed(read.table)
        file = files[number] if number < len(files) else subject.title
        called = f"{file}, at 1/{2**halved} of its size" if halved else file
        images.append({**read.about, "name": str(number), "file": called, "view": subject.view, "problem": None})
    grids = {name: {**facts[name], "grids": _grids(radiographs, values)} for name, values in maps.items()}
    return Embedded(_json({"images": images, "maps": grids}), blocks)


_NOTHING_STATED: Final[Mapping[str, Any]] = {
    "slope": 1.0,
    "intercept": 0.0,
    "padding": None,
    "inverted": False,
    "laterality": None,
    "orientation": [],
    "problem": None,
}


def stored_of(pixels: NDArray[np.float32]) -> Read:
    """The words of an image that came without a file: its grey values, 0 to 1, in as many levels as words have."""
    words = np.rint(pixels.clip(0.0, 1.0) * _LEVELS).astype(np.uint16)
    rows, columns = words.shape
    preset = {"name": WHOLE_RANGE, "function": LINEAR_EXACT, "center": 0.5, "width": 1.0}
    about = {**_NOTHING_STATED, "rows": rows, "columns": columns, "first": 0, "slope": 1 / _LEVELS, "pixel_ratio": 1.0,
             "presets": [preset]}  # fmt: skip
    return Read(words, about)


def _scan_presets(values: NDArray[np.int16], presets: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    low, high = float(values.min()), float(values.max())
    width = max(high - low, 1.0)
    named = [{**preset, "function": LINEAR_EXACT} for preset in presets]
    whole = {"name": WHOLE_RANGE, "function": LINEAR_EXACT, "center": low + width / 2, "width": width}
    # A scan that the model saw through a narrow window has nothing to show beyond it.
    return [*(one for one in named if one["center"] - one["width"] / 2 < high and low < one["center"]), whole]


def _fewer_pixels(read: Read) -> tuple[Read, int]:
    """An image with at most ``MOST_PIXELS``, and how often it was halved."""
    words, padding, halved = read.words, read.about["padding"], 0
    while words.size > MOST_PIXELS:
        words, halved = _half(words, padding), halved + 1
    rows, columns = words.shape
    return replace(read, words=words, about={**read.about, "rows": rows, "columns": columns}), halved


def _half(words: Words, padding: int | None) -> Words:
    """Means of two by two words; where one is padding, all are. The viewer's ``levels.js`` halves the same way."""
    rows, columns = words.shape
    even = np.pad(words, ((0, rows % 2), (0, columns % 2)), mode="edge").astype(np.uint32)
    four = even.reshape(even.shape[0] // 2, 2, even.shape[1] // 2, 2)
    means = (four.sum(axis=(1, 3)) + 2) >> 2
    if padding is not None:
        means[(four == padding).any(axis=(1, 3))] = padding
    halved: Words = means.astype(np.uint16)
    return halved


def _fewer_voxels(
    hu: NDArray[np.int16], spacing_mm: tuple[float, float, float]
) -> tuple[NDArray[np.int16], tuple[float, ...]]:
    """A scan with at most ``MOST_VOXELS``: halved along whichever axis has the most."""
    spacing = list(spacing_mm)
    while hu.size > MOST_VOXELS:
        axis = int(np.argmax(hu.shape))
        pairs = np.moveaxis(hu, axis, 0)[: hu.shape[axis] // 2 * 2]
        mean = (pairs[::2].astype(np.int32) + pairs[1::2]) // 2
        hu, spacing[axis] = np.moveaxis(mean, 0, axis).astype(np.int16), 2 * spacing[axis]
    return hu, tuple(spacing)


def _grids(subjects: Sequence[RadiographSubject], maps: Sequence[Floats]) -> list[dict[str, Any]]:
    """A map's values, 0 to 255 of its peak over all images, and what of each image they lie over."""
    peak = max(float(values.max()) for values in maps)
    pairs = enumerate(zip(subjects, maps, strict=True))
    return [
        {"image": str(number), "covers": [list(axis) for axis in subject.covers()], **_steps(values, peak)}
        for number, (subject, values) in pairs
    ]


def _steps(values: Floats, peak: float) -> dict[str, Any]:
    steps = np.rint(values * (255 / peak)) if peak > 0 else np.zeros_like(values)
    return {"shape": list(values.shape), "values": steps.astype(int).ravel().tolist()}


def _packed(words: NDArray[Any]) -> str:
    """Words, little-endian, row by row from the top: deflated, in base64."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(words, dtype="<u2").tobytes(), 6)).decode()


def _json(value: Any) -> str:
    """JSON that ends no element of the page, whatever is in it."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")


# Text of the page's copy buttons, marked as a draft of research software.


def draft_text(report: Report, banner: Sequence[str]) -> str:
    """The draft, with the notice below it: a text on a clipboard has lost its page."""
    return f"{report.text}\n\n{_below(report, banner)}"


def finding_text(finding: Finding, support: Support, report: Report, banner: Sequence[str]) -> str:
    """Evidence on a class, and the sentences that mention it."""
    lines = {line.number: "".join(text for text, _ in line.parts) for line in support.sentences}
    known = [] if finding.probability is None else [
        f"probability {finding.probability:.2f}, taken as there from {finding.threshold:.2f} on"
    ]  # fmt: skip
    known += [finding.experience] if finding.experience else []
    statement = (
        "not mentioned in the draft"
        if finding.state is LabelState.BLANK
        else f"{STATE_WORDS[finding.state]} in the draft"
    )
    known += [statement, *([finding.flag] if finding.flag else [])]
    quoted = [f'"{lines[number]}"' for number in (*finding.sentences, *finding.otherwise)]
    return "\n".join([f"{finding.name}: {'; '.join(known)}.", *quoted, "", _below(report, banner)])


def _below(report: Report, banner: Sequence[str]) -> str:
    warnings = "".join(f" {warning[0].upper()}{warning[1:]}." for warning in banner)
    return f"Draft by Radweave, study {report.study_id}. {report.notice}{warnings}"


SURE, FAIRLY_SURE = 0.8, 0.6
_SHOWN_ELSEWHERE = frozenset(
    {
        "sentences",
        "sentence_fit",
        "class_probabilities",
        "calibration",
        "attention_maps",
        "recalled",
        "views",
        COMPARISONS,
        MAP_KIND,
    }
)
_MOST_CHARS = 900
_MARKS = {
    Verdict.CONTRADICTED: ("contradicted", "✗"),
    Verdict.DISPUTED: ("disputed", "≠"),
    Verdict.UNSUPPORTED: ("unsupported", "○"),
    Verdict.UNCONFIRMED: ("none", "?"),
    Verdict.PARTLY: ("none", "◐"),
    Verdict.SUPPORTED: ("supported", "✓"),
    Verdict.NO_CLAIM: ("none", "–"),
}
"""Verdict -> class in the style sheet, and a sign, so that colour is not all that tells."""
_STATIC = Path(str(files("radweave.inference.explain"))) / "static"


@dataclass(frozen=True, slots=True)
class Explained:
    """Content of a page: the report with its evidence, its pictures in the maps' order, and the run behind it.

    ``banner`` holds the warnings about the run itself: they stand where the research notice stands. ``has_prior`` says
    whether the model was given the study before; None where that is not known.
    """

    report: Report
    card: RunCard
    labeler: Labeler
    subjects: tuple[Subject, ...]
    banner: tuple[str, ...] = ()
    has_prior: bool | None = None
    reference: str | None = None
    threshold: float | None = None


def render(explained: Explained) -> tuple[str, dict[str, bytes]]:
    """The HTML, and the PNG files beside it by name."""
    report = explained.report
    support = find_support(report, explained.labeler, threshold=explained.threshold)
    gallery = draw(explained.subjects, report.evidence, support, notices=(RESEARCH_ONLY, *explained.banner))
    sources, changes = source_rows(report.evidence), change_rows(report.evidence)
    cautions = [text for text in explained.banner if text in explained.card.cautions]
    banner = [text for text in explained.banner if text not in cautions]
    script = _script()
    html = _template().render(
        notice=RESEARCH_ONLY,
        banner=banner,
        cautions=cautions,
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        viewer_style=style(),
        viewed=_viewed(explained, gallery),
        kind=kind_of(report.evidence),
        comparison=compare_texts(report.text, explained.reference, explained.labeler) if explained.reference else None,
        differences=SIGNS,
        removed=_removed(report.evidence),
        invented=_invented(explained, support),
        copied=draft_text(report, explained.banner),
        copies={row.name: finding_text(row, support, report, explained.banner) for row in support.findings},
        sources_caption=SOURCES_CAPTION,
        changes_caption=CHANGES_CAPTION,
        about_recalled={kind: RECALLED[kind] for kind in _kinds(support) if kind in RECALLED},
        warnings=[warning for warning in report.warnings if warning not in explained.banner],
        report=report,
        card=explained.card,
        model_hash=explained.card.files.get("weights.safetensors", "")[:12],
        reference=explained.reference,
        labeler=f"{explained.labeler.name} {explained.labeler.version}",
        support=support,
        gallery=gallery,
        figures={figure.name: figure for figure in gallery.figures},
        findings=_rows(support),
        flags=[finding for finding in support.findings if finding.flag],
        counts=[(verdict, support.count(verdict)) for verdict in Verdict if support.count(verdict)],
        missing=_missing(support, gallery),
        groups=_groups(support),
        sources=sources,
        added=added_cells(sources[0], explained.card.sources),
        changes=changes,
        states=STATES,
        others=_others(report.evidence, shown={SOURCES: bool(sources[1]), CHANGES: bool(changes)}),
        has_marks=any(MARK.search(text) for case in support.recalled if (text := case.text))
        or bool(explained.reference and MARK.search(explained.reference)),
        marks=_MARKS,
        state_words=STATE_WORDS,
        no_finding=NO_FINDING,
        sure=SURE,
        fairly_sure=FAIRLY_SURE,
        ramp=[(share, colour, opacity(share)) for share, colour in RAMP],
        line_at=LINE_AT,
    )
    return html, gallery.files


@cache
def _template() -> Template:
    loader = PackageLoader("radweave", "templates")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_visible)
    return environment.get_template("explain.html.j2")


@cache
def _script() -> str:
    """The script of the page. No text in it ends its element."""
    script = f"\n{bundle('page.js', _STATIC)}\n"
    assert "</" not in script
    return script


def _viewed(explained: Explained, gallery: Gallery) -> Embedded | None:
    """Data of the viewer: the images as their files have them, and the maps of the figures."""
    evidence = explained.report.evidence
    names = [str(view.get("file", "")) for view in evidence.get("views") or ()]
    return embed(explained.subjects, names, gallery.maps, kind_of(evidence), explained.card.method)


def _removed(evidence: DraftEvidence) -> list[tuple[str, str | None]]:
    """Sentences that compared with a study that was not given, as they were and as they are."""
    rows = evidence.get(COMPARISONS)
    edits = rows if isinstance(rows, list) else []
    return [(str(row["was"]), row.get("now")) for row in edits if isinstance(row, Mapping) and row.get("was")]


def _invented(explained: Explained, support: Support) -> set[int]:
    """Sentences of the draft, by number, that still compare with a study that was not given."""
    if explained.has_prior is not False:
        return set()
    texts = {line.number: "".join(text for text, _ in line.parts) for line in support.sentences}
    return {number for number, text in texts.items() if compares_with_prior(text)}


def _kinds(support: Support) -> list[str]:
    return list(dict.fromkeys(case.kind for case in support.recalled))


_INVISIBLE = dict.fromkeys(
    (*range(9), 11, *range(14, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)),
    "\N{REPLACEMENT CHARACTER}",
)
"""Control characters, and those that turn the direction of writing: a text must not look other than it reads."""


def _visible(value: Any) -> Any:
    return value.translate(_INVISIBLE) if isinstance(value, str) else value


def _rows(support: Support) -> list[Finding]:
    """Classes of which anything is known: the probable first, then by name as the label set has them."""
    known = [row for row in support.findings if row.probability is not None or row.state is not LabelState.BLANK]
    if all(row.probability is None for row in known):
        known = [row for row in known if row.name != NO_FINDING]
    return sorted(known, key=lambda row: -1.0 if row.probability is None else row.probability, reverse=True)


def _groups(support: Support) -> list[tuple[str | None, bool, list[Recalled]]]:
    """Recalled cases by the class they were recalled for, and whether that one is probable or in the draft."""
    findings = {row.name: row for row in support.findings}
    stated = (LabelState.POSITIVE, LabelState.UNCERTAIN)
    groups: dict[str | None, list[Recalled]] = {}
    for case in support.recalled:
        groups.setdefault(case.about, []).append(case)

    def matters(name: str | None) -> bool:
        row = findings.get(name) if name is not None else None
        return row is None or row.state in stated or (row.probability or 0.0) >= row.threshold

    return sorted(((name, matters(name), cases) for name, cases in groups.items()), key=lambda group: not group[1])


def _missing(support: Support, gallery: Gallery) -> list[str]:
    """Kinds of evidence that the method does not give."""
    absent = {
        "class probabilities": all(finding.probability is None for finding in support.findings),
        "attention maps": not gallery.figures,
        "recalled cases": not support.recalled,
        "confidence of its wording": all(line.confidence is None for line in support.sentences),
    }
    return [name for name, is_absent in absent.items() if is_absent]


def _others(evidence: DraftEvidence, *, shown: Mapping[str, bool]) -> list[tuple[str, str, str]]:
    """Whatever else a method has to show: name, short text, what it is; ``shown`` says which tables the page has."""
    elsewhere = _SHOWN_ELSEWHERE | {name for name, is_shown in shown.items() if is_shown}
    rest = {name: value for name, value in evidence.items() if name not in elsewhere}
    return [(name.replace("_", " "), _brief(value), OTHERS.get(name, "")) for name, value in rest.items()]


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{str(name).replace('_', ' ')} {_brief(item)}" for name, item in value.items())[
            : 3 * _MOST_CHARS
        ]
    if isinstance(value, str):
        return value if len(value) <= _MOST_CHARS else value[:_MOST_CHARS] + " ..."
    shape = _shape(value)
    if len(shape) > 1:
        return f"an array of {' x '.join(map(str, shape))} numbers (in evidence.json)"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MOST_CHARS else text[:_MOST_CHARS] + " ... (all of it in evidence.json)"


def _shape(value: Any) -> tuple[int, ...]:
    """Shape of nested lists of numbers; () for anything else."""
    if not isinstance(value, list) or not value:
        return ()
    if all(isinstance(item, (int, float)) for item in value):
        return (len(value),)
    inner = {_shape(item) for item in value}
    only = inner.pop()
    return (len(value), *only) if not inner and only else ()
