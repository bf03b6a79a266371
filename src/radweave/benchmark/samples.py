"""A few studies, what every method wrote for them, and what it rests on."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from radweave.base.json_files import read_jsonl
from radweave.base.study import Study
from radweave.benchmark.results import SetResults
from radweave.data.dataset import Dataset
from radweave.evaluation.evidence import stated
from radweave.labels import LABELER_OF, get_labeler

WITH_FINDINGS, WITHOUT = 3, 1
TOP_CLASSES = 3
MOST_RECALLED = 2
_TEXT, _RECALLED_TEXT = 900, 240
_SIDE_PX = 160


def sample_page(results: SetResults, picture: str | None) -> str:
    """Markdown: the studies with reference, nearest report, and per method draft, top classes and recalled texts.

    They are chosen by the references alone: with findings, spread evenly over the test split, and one without.
    """
    drafts = {method: _predictions(folders[0]) for method, folders in results.folders.items()}
    chosen = chosen_studies(results)
    seeds = ", ".join(f"{method} {folders[0].name}" for method, folders in results.folders.items())
    lines = [
        f"# Sample reports: {results.suite.kind.title}",
        "",
        "Research software, not a medical device. Chosen by the references alone, before any draft was looked at:"
        f" {WITH_FINDINGS} test studies with findings, spread evenly, and {WITHOUT} without. First seed of each:"
        f" {seeds}; data {results.record['dataset']['fingerprint'][:12]}.",
        "",
        *([f"![the studies' first images]({picture})", ""] if picture else []),
    ]
    for number, study_id in enumerate(chosen, start=1):
        rows = {method: found[study_id] for method, found in drafts.items() if study_id in found}
        lines += _study(number, study_id, rows)
    return "\n".join(lines)


def chosen_studies(results: SetResults) -> list[str]:
    """Ids of the sample studies."""
    folders = next(iter(results.folders.values()))
    rows = [row for row in _predictions(folders[0]).values() if row["ref"]]
    findings = stated([row["ref"] for row in rows], get_labeler(LABELER_OF[results.dataset.card.modality]))
    ids = [row["study_id"] for row in rows]
    some = [study_id for study_id, found in zip(ids, findings, strict=True) if found]
    none = [study_id for study_id, found in zip(ids, findings, strict=True) if not found]
    return _spread(some, WITH_FINDINGS) + _spread(none, WITHOUT)


def _spread(ids: Sequence[str], number: int) -> list[str]:
    return (
        [ids[(2 * place + 1) * len(ids) // (2 * number)] for place in range(number)]
        if len(ids) >= number
        else list(ids)
    )


def _predictions(folder: Path) -> dict[str, dict[str, Any]]:
    return {row["study_id"]: row for _, row in read_jsonl(folder / "predictions.jsonl")}


def _study(number: int, study_id: str, rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    some = next(iter(rows.values()))
    lines = [f"## {number}. Study {study_id}", "", f"**Reference.** {_plain(some['ref'])}", ""]
    nearest = some["floors"].get("nearest_neighbour")
    if nearest:
        lines += [f"**Report of the nearest training image.** {_plain(nearest)}", ""]
    for method, row in rows.items():
        lines += [f"**{method}.** {_plain(row['hyp']) or '(empty)'}", ""]
        lines += [f"- {text}" for text in _evidence(row["evidence"])] or ["- no evidence beyond word confidence"]
        lines.append("")
    return lines


def _evidence(evidence: Mapping[str, Any]) -> list[str]:
    lines = []
    values = evidence.get("class_probabilities") or {}
    if values:
        top = sorted(values.items(), key=lambda item: -item[1])[:TOP_CLASSES]
        lines.append("heads: " + ", ".join(f"{name} {value:.2f}" for name, value in top))
    recalled = list(evidence.get("recalled") or ())
    regions = [case for case in recalled if case["kind"] == "region"]
    for case in [case for case in recalled if case["kind"] != "region"][:MOST_RECALLED]:
        target = f" for {case['for']}" if case.get("for") else ""
        text = f": {_plain(case['text'], _RECALLED_TEXT)}" if case.get("text") else ""
        facts = ", ".join([*map(_score, case.get("scores", {}).items()), f"study {case['study_id']}"])
        lines.append(f"recalled {case['kind']}{target} ({facts}){text}")
    if regions:
        lines.append(f"recalled regions: {len(regions)}")
    maps = evidence.get("attention_maps") or {}
    if maps:
        lines.append(f"attention maps: {len(maps)} classes")
    return lines


def _score(item: tuple[str, Any]) -> str:
    name, value = item
    return f"{name} {value:.2f}" if isinstance(value, float) else f"{name} {value}"


def _plain(text: str, most: int = _TEXT) -> str:
    """One line that Markdown shows as it is."""
    line = " ".join(text.split())
    line = line if len(line) <= most else line[:most].rsplit(" ", 1)[0] + " ..."
    return line.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def sample_picture(results: SetResults) -> bytes | None:
    """The first radiograph of each sample study side by side, as a PNG; None for scans."""
    if results.dataset.card.modality != "xray":
        return None
    studies = {study.study_id: study for study in results.dataset.studies("test")}
    tiles = [_tile(results.dataset, studies[study_id]) for study_id in chosen_studies(results)]
    buffer = io.BytesIO()
    Image.fromarray(np.concatenate(tiles, axis=1)).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _tile(dataset: Dataset, study: Study) -> np.ndarray[Any, Any]:
    tile = Image.new("L", (_SIDE_PX, _SIDE_PX))
    with Image.open(dataset.image_path(study.images[0].path)) as image:
        grey = image.convert("L")
        grey.thumbnail((_SIDE_PX, _SIDE_PX))
        tile.paste(grey, ((_SIDE_PX - grey.width) // 2, (_SIDE_PX - grey.height) // 2))
    return np.asarray(tile)
