"""The page itself: everything in one HTML file, nothing loaded from elsewhere.

All of it can be read without scripts. One script, which the page's policy names by its hash, adds the viewer, opacity
and copying.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, Template

from radweave.base.map_kinds import KEY as MAP_KIND
from radweave.base.map_kinds import kind_of
from radweave.base.study import RESEARCH_ONLY, LabelState, Report
from radweave.explain.beside import SIGNS, Beside, hold_beside
from radweave.explain.captions import CHANGES as CHANGES_CAPTION
from radweave.explain.captions import OTHERS, RECALLED
from radweave.explain.captions import SOURCES as SOURCES_CAPTION
from radweave.explain.colours import LINE_AT, RAMP, opacity
from radweave.explain.copied import draft_text, finding_text
from radweave.explain.embedded import Embedded, embed
from radweave.explain.figures import Gallery, draw
from radweave.explain.maps import Subject
from radweave.explain.sources import CHANGES, added_cells, change_rows, source_rows
from radweave.explain.sources import KEY as SOURCES
from radweave.explain.support import SAID, Finding, Recalled, Support, Verdict, find_support
from radweave.labels import NO_FINDING, Labeler
from radweave.labels.changes import STATES
from radweave.labels.comparisons import compares_with_prior
from radweave.labels.marks import MARK
from radweave.runs.comparisons import EVIDENCE as COMPARISONS
from radweave.runs.folder import RunCard
from radweave.viewer.script import bundle, style

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
_STATIC = Path(str(files("radweave.explain"))) / "static"


@dataclass(frozen=True, slots=True)
class Explained:
    """What a page is about: the report with its evidence, its pictures in the maps' order, and the run behind it.

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
        beside=_beside(explained),
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
        said=SAID,
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
    kept = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_visible)
    return kept.get_template("explain.html.j2")


@cache
def _script() -> str:
    """What the page does where scripts run. No text in it ends its element."""
    script = f"\n{bundle('page.js', _STATIC)}\n"
    assert "</" not in script
    return script


def _viewed(explained: Explained, gallery: Gallery) -> Embedded | None:
    """What the viewer shows: the images as their files have them, and the maps of the figures."""
    evidence = explained.report.evidence
    names = [str(view.get("file", "")) for view in evidence.get("views") or ()]
    return embed(explained.subjects, names, gallery.maps, kind_of(evidence), explained.card.method)


def _beside(explained: Explained) -> Beside | None:
    return hold_beside(explained.report.text, explained.reference, explained.labeler) if explained.reference else None


def _removed(evidence: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Sentences that compared with a study that was not given, as they were and as they are."""
    rows = evidence.get(COMPARISONS)
    found = rows if isinstance(rows, list) else []
    return [(str(row["was"]), row.get("now")) for row in found if isinstance(row, Mapping) and row.get("was")]


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
    known = [row for row in support.findings if row.probability is not None or row.said is not LabelState.BLANK]
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
        return row is None or row.said in stated or (row.probability or 0.0) >= row.threshold

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


def _others(evidence: Mapping[str, Any], *, shown: Mapping[str, bool]) -> list[tuple[str, str, str]]:
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
