"""How far the rule-based labelers agree with real labels: per-class tables.

    python bench/labels_agreement.py DATA [--part develop|check|all]

DATA holds ``iu_xray/manifest.jsonl`` and ``ct_reports/labelled_reports.jsonl``. The rules were written with one half of
the reports in sight ("develop"); "check" is the other half. A report's half follows from the hash of its id.

Four comparisons:

* CheXpert's 14 observations against the published labeler's own output, which rests on the findings section. Beside the
  raw figures stand those after setting right the pairs of ``labels_readings.json``, where that output contradicts the
  text: it takes "No focal airspace consolidations." for a consolidation, endplates for support devices, and so on.
* the 14 NIH findings against manual labels, on findings and impression.
* the 18 CT abnormalities against manual labels.
* places: sides and zones of findings against the MeSH terms that the indexers of IU X-Ray gave the same report
  ("Opacity/lung/base/left"), where both name the finding.

A class without positive labels has no F1: it is shown as "-" and left out of the macro mean.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radweave.core.study import LabelState
from radweave.labels import get_labeler
from radweave.labels.places import get_place_labeler

READINGS = Path(__file__).with_name("labels_readings.json")
CHEXPERT_CODES = {
    1: LabelState.POSITIVE,
    0: LabelState.NEGATIVE,
    -1: LabelState.UNCERTAIN,
    None: LabelState.BLANK,
}
States = list[dict[str, LabelState]]


@dataclass(frozen=True, slots=True)
class Reports:
    """Reports with given labels. ``labels`` has one mapping class -> state per text."""

    ids: list[str]
    texts: list[str]
    labels: States


def in_part(identifier: str, part: str) -> bool:
    develop = hashlib.sha256(f"half-{identifier}".encode()).digest()[0] < 128
    return part == "all" or (part == "develop") == develop


def read(path: Path, part: str, text: Callable[[Any], str | None], labels: Callable[[Any], Any]) -> Reports:
    reports = Reports([], [], [])
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            given, content = labels(row), text(row)
            if given and content and in_part(row["id"], part):
                reports.ids.append(row["id"])
                reports.texts.append(content)
                reports.labels.append(given)
    return reports


def with_readings(reports: Reports) -> States:
    """The given labels with the pairs of ``labels_readings.json`` set right."""
    readings = json.loads(READINGS.read_text(encoding="utf-8"))["readings"]
    right = {
        (identifier, name): LabelState(state)
        for name, by_state in readings.items()
        for state, identifiers in by_state.items()
        for identifier in identifiers.split()
    }
    return [
        {name: right.get((identifier, name), state) for name, state in labels.items()}
        for identifier, labels in zip(reports.ids, reports.labels, strict=True)
    ]


def f1(given: Sequence[bool], found: Sequence[bool]) -> tuple[float, float, float] | None:
    """Precision, recall and F1; None without positive labels."""
    hits = sum(a and b for a, b in zip(given, found, strict=True))
    if not any(given):
        return None
    precision = hits / sum(found) if any(found) else 0.0
    recall = hits / sum(given)
    return precision, recall, 2 * hits / (sum(given) + sum(found))


def column(states: States, name: str, *wanted: LabelState) -> list[bool]:
    return [labels[name] in wanted for labels in states]


def mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known) / len(known):.3f} over {len(known)} classes"


def cell(value: float | None) -> str:
    return "     -" if value is None else f"{value:6.3f}"


def print_chexpert(reports: Reports) -> None:
    found = [{name: m.state for name, m in each.items()} for each in get_labeler("chexpert14").label(reports.texts)]
    set_right = with_readings(reports)
    changed = sum(a[name] != b[name] for a, b in zip(reports.labels, set_right, strict=True) for name in a)
    print(f"\nCheXpert, 14 observations: {len(reports.ids)} findings sections; {changed} labels set right by reading")
    print(f"{'':28}  positive   P      R      F1   |  F1 neg  F1 unc  same state | set right: F1  same state")
    raw, corrected, same_raw, same_corrected = [], [], [], []
    for name in get_labeler("chexpert14").classes:
        scores = {
            state: f1(column(reports.labels, name, state), column(found, name, state))
            for state in (LabelState.POSITIVE, LabelState.NEGATIVE, LabelState.UNCERTAIN)
        }
        positive = scores[LabelState.POSITIVE]
        again = f1(column(set_right, name, LabelState.POSITIVE), column(found, name, LabelState.POSITIVE))
        raw.append(positive and positive[2])
        corrected.append(again and again[2])
        pairs = list(zip(reports.labels, set_right, found, strict=True))
        same_raw.append(sum(a[name] is c[name] for a, _, c in pairs) / len(pairs))
        same_corrected.append(sum(b[name] is c[name] for _, b, c in pairs) / len(pairs))
        cells = " ".join(cell(value) for value in (positive or (None,) * 3))
        rest = " ".join(cell(each and each[2]) for each in list(scores.values())[1:])
        support = sum(column(reports.labels, name, LabelState.POSITIVE))
        same = f"{same_raw[-1]:10.3f} | {cell(corrected[-1])} {same_corrected[-1]:10.3f}"
        print(f"{name:28} {support:8d} {cells} | {rest} {same}")
    print(f"macro F1 {mean(raw)}; set right {mean(corrected)}")
    print(f"same state, mean over classes: {mean(same_raw)}; set right {mean(same_corrected)}")


def print_binary(title: str, labeler: str, reports: Reports) -> None:
    found = [{name: m.state for name, m in each.items()} for each in get_labeler(labeler).label(reports.texts)]
    print(f"\n{title}: {len(reports.ids)} reports")
    print(f"{'':36}  positive   P      R      F1   | uncertain counts: F1")
    strict, lenient = [], []
    for name in get_labeler(labeler).classes:
        given = column(reports.labels, name, LabelState.POSITIVE)
        positive = f1(given, column(found, name, LabelState.POSITIVE))
        either = f1(given, column(found, name, LabelState.POSITIVE, LabelState.UNCERTAIN))
        strict.append(positive and positive[2])
        lenient.append(either and either[2])
        cells = " ".join(cell(value) for value in (positive or (None,) * 3))
        print(f"{name:36} {sum(given):8d} {cells} | {cell(lenient[-1])}")
    print(f"macro F1 {mean(strict)}; uncertain counts: {mean(lenient)}")


def chexpert_labels(row: Mapping[str, Any]) -> dict[str, LabelState] | None:
    codes = row["labels_chexpert14_auto"]
    return codes and {name: CHEXPERT_CODES[code] for name, code in codes.items()}


def binary_labels(field: str) -> Callable[[Mapping[str, Any]], dict[str, LabelState] | None]:
    def labels(row: Mapping[str, Any]) -> dict[str, LabelState] | None:
        values = row[field]
        return values and {
            name: LabelState.POSITIVE if value == 1 else LabelState.BLANK for name, value in values.items()
        }

    return labels


MESH_CLASS = {
    **dict.fromkeys(("opacity", "airspace disease", "infiltrate", "density", "cicatrix"), "Lung Opacity"),
    **dict.fromkeys(("nodule", "mass"), "Lung Lesion"),
    **dict.fromkeys(("fractures, bone", "rib fractures"), "Fracture"),
    **{name.lower(): name for name in ("Consolidation", "Pneumonia", "Pneumothorax", "Pleural Effusion")},
    "pulmonary atelectasis": "Atelectasis",
    "pulmonary edema": "Edema",
}
MESH_SIDES: dict[str, frozenset[str]] = {
    "left": frozenset({"left"}),
    "right": frozenset({"right"}),
    "bilateral": frozenset({"left", "right"}),
    "lingula": frozenset({"left"}),
    "middle lobe": frozenset({"right"}),
}
MESH_ZONES = {
    **dict.fromkeys(("apex", "upper lobe"), "upper"),
    **dict.fromkeys(("middle lobe", "lingula"), "mid"),
    **dict.fromkeys(("base", "lower lobe", "retrocardiac"), "lower"),
    "hilum": "hilum",
}


def mesh_places(terms: Sequence[str]) -> dict[str, tuple[set[str], set[str]]]:
    """Class -> sides and zones of the MeSH terms of a report."""
    places: dict[str, tuple[set[str], set[str]]] = {}
    for term in terms:
        head, *details = (part.strip().lower() for part in term.split("/"))
        if head in MESH_CLASS:
            sides, zones = places.setdefault(MESH_CLASS[head], (set(), set()))
            for detail in details:
                sides |= MESH_SIDES.get(detail, frozenset())
                zones |= {MESH_ZONES[detail]} if detail in MESH_ZONES else set()
    return places


def print_places(manifest: Path, part: str, show: int) -> None:
    """Sides and zones of findings that the report and its MeSH terms have, where MeSH states some."""
    labeler = get_place_labeler("chexpert14")
    counts = {kind: [0, 0, 0] for kind in ("side", "zone")}  # both, in the reference, read
    same, opposite = Counter[str](), 0
    for line in manifest.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        text = " ".join(filter(None, (row["findings"], row["impression"])))
        if not text or not in_part(row["id"], part):
            continue
        located = labeler.label([text])[0]
        for name, (sides, zones) in mesh_places(row["mesh_major"]).items():
            read = {place for one in located[name] for place in one.places}
            given: Mapping[str, set[str]] = {"side": sides, "zone": zones}
            own: Mapping[str, set[str]] = {
                "side": {place.side for place in read if place.side},
                "zone": {place.zone for place in read if place.zone in set(MESH_ZONES.values())},
            }
            if not located[name]:
                continue
            opposite += bool(sides and own["side"] and not sides & own["side"])
            for kind, count in counts.items():
                if given[kind]:
                    count[0] += len(given[kind] & own[kind])
                    count[1] += len(given[kind])
                    count[2] += len(own[kind])
                    same[kind] += given[kind] == own[kind]
                    same[f"{kind}, all"] += 1
                    if show and given[kind] != own[kind]:
                        show -= 1
                        print(f"  {row['id']} {name}: {sorted(given[kind])} read {sorted(own[kind])}: {text}")
    print("\nIU X-Ray, places against MeSH terms")
    for kind, (both, reference, read_count) in counts.items():
        values = both / read_count, both / reference, 2 * both / (read_count + reference)
        cells = " ".join(cell(value) for value in values)
        print(f"{kind:10} {same[f'{kind}, all']:6d} findings, the same in {same[kind]:5d}  P R F1 {cells}")
    print(f"on the other side: {opposite}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Agreement of the rule-based labelers with real labels.")
    parser.add_argument("data", type=Path)
    parser.add_argument("--part", choices=("develop", "check", "all"), default="all")
    parser.add_argument("--places", action="store_true", help="places alone")
    parser.add_argument("--show", type=int, default=0, help="print this many places that differ")
    options = parser.parse_args()
    manifest = options.data / "iu_xray" / "manifest.jsonl"
    print_places(manifest, options.part, options.show)
    if options.places:
        return
    print_chexpert(read(manifest, options.part, lambda row: row["findings"], chexpert_labels))
    both = read(
        manifest,
        options.part,
        lambda row: " ".join(filter(None, (row["findings"], row["impression"]))),
        binary_labels("labels_nih14_manual"),
    )
    print_binary("NIH, 14 findings, manual", "nih14", both)
    ct_reports = options.data / "ct_reports" / "labelled_reports.jsonl"
    ct = read(ct_reports, options.part, lambda row: row["report"], binary_labels("labels"))
    print_binary("CT, 18 abnormalities, manual", "ct18", ct)


if __name__ == "__main__":
    main()
