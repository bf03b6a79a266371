"""The page itself: everything in one HTML file, nothing loaded from elsewhere.

All of it can be read without scripts. One script, which the page's policy names by its hash, adds opacity and copying.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, Template

from radweave.core.evidence import DraftEvidence, SentencePlace
from radweave.core.map_kinds import KEY as MAP_KIND
from radweave.core.map_kinds import kind_of
from radweave.core.ontology import modality_of
from radweave.core.study import RESEARCH_ONLY, LabelState, Modality, Report
from radweave.engine.drafts import COMPARISONS_REMOVED as COMPARISONS
from radweave.engine.run_folder import RunCard
from radweave.inference.explain.comparison import SIGNS, compare_texts
from radweave.inference.explain.maps import CHANGES as CHANGES_CAPTION
from radweave.inference.explain.maps import LINE_AT, OTHERS, RAMP, RECALLED, Gallery, Subject, draw, opacity
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
    too_large_words,
)
from radweave.inference.explain.support import SOURCES as SOURCES
from radweave.labels import NO_FINDING, Labeler
from radweave.labels.comparisons import MARK, STATES, compares_with_prior
from radweave.labels.places import places_name

# Text of the page's copy buttons, marked as a draft of research software.


def finding_text(finding: Finding, support: Support, report: Report, banner: Sequence[str]) -> str:
    """Evidence on a class, and the sentences that mention it."""
    lines = {line.number: "".join(text for text, _ in line.parts) for line in support.sentences}
    known = [] if finding.probability is None else [
        f"probability {finding.probability:.2f}, threshold {finding.threshold:.2f}"
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
    """The notice below a copied text: on a clipboard it has lost its page."""
    warnings = "".join(f" {warning[0].upper()}{warning[1:]}." for warning in banner)
    return f"Draft by Radweave, study {report.study_id}. {report.notice}{warnings}"


SURE, FAIRLY_SURE = 0.8, 0.6
_SHOWN_ELSEWHERE = {
    "sentences", "sentence_fit", "class_probabilities", "calibration", "attention_maps", "recalled", "views",
    COMPARISONS, MAP_KIND,
}  # fmt: skip
_MOST_CHARS = 900
_MARKS = {
    Verdict.CONTRADICTED: ("contradicted", "✗"),
    Verdict.MISPLACED: ("contradicted", "↔"),
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
        kind=kind_of(report.evidence),
        comparison=compare_texts(report.text, explained.reference, explained.labeler) if explained.reference else None,
        differences=SIGNS,
        removed=_removed(report.evidence),
        invented=_invented(explained, support),
        copied=f"{report.text}\n\n{_below(report, explained.banner)}",
        copies={row.name: finding_text(row, support, report, explained.banner) for row in support.findings},
        sources_caption=SOURCES_CAPTION,
        changes_caption=CHANGES_CAPTION,
        about_recalled={case.kind: RECALLED[case.kind] for case in support.recalled if case.kind in RECALLED},
        warnings=[warning for warning in report.warnings if warning not in explained.banner],
        report=report,
        card=explained.card,
        model_hash=explained.card.files.get("weights.safetensors", "")[:12],
        reference=explained.reference,
        labeler=f"{explained.labeler.name}, version {explained.labeler.version}",
        support=support,
        gallery=gallery,
        figures={figure.name: figure for figure in gallery.figures},
        place_words=lambda place: place_words(place, modality_of(explained.labeler.classes)),
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
    script = f"\n{(_STATIC / 'page.js').read_text(encoding='utf-8')}\n"
    assert "</" not in script
    return script


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


def place_words(place: SentencePlace, modality: Modality) -> str:
    """A row of a sentence's places in words: the place that it names with its probability, and what the images say."""
    named = places_name(place["sides"], place["zones"], modality)
    known = ", ".join(f"{name} {value:.2f}" for name, value in place["probabilities"].items())
    words = f"{named}, " if named else ""
    words += "place not checked" if place["probability"] is None else f"probability {place['probability']:.2f}"
    left_out = too_large_words(place.get("too_large", 0))
    return "; ".join(part for part in (words, f"by the images {known}" if known else "", left_out) if part)


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
