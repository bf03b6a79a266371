"""The demo's page: pictures with drafts and evidence first, then plots, then tables. One file without scripts."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader
from PIL import Image

from radweave.base.figures import can_draw
from radweave.base.json_files import read_jsonl
from radweave.base.map_kinds import kind_of
from radweave.base.study import RESEARCH_ONLY, ImageRef, Report, Study
from radweave.data.dataset import Dataset
from radweave.data.loader import view_id
from radweave.data.reading.images import read_radiograph
from radweave.demo.plots import ScoreRow, curve_plot, score_plot
from radweave.evaluation import Evaluation, read_pairs
from radweave.evaluation.systems import MODEL, finding_f1, score_systems
from radweave.evaluation.tables.heads import reliability_plot
from radweave.explain.beside import SIGNS, hold_beside
from radweave.explain.colours import data_uri, grey_png, overlay_png
from radweave.explain.maps import Panel, RadiographSubject
from radweave.explain.support import Finding, find_support
from radweave.labels import NO_FINDING, Labeler, get_labeler
from radweave.runs.folder import RunCard

METRICS = {"BLEU_1": "BLEU-1 (0 to 1)", "BLEU_4": "BLEU-4 (0 to 1)", "ROUGE_L": "ROUGE-L (0 to 1)",
           "CIDEr": "CIDEr (0 to 10)"}  # fmt: skip
FINDING_F1 = "finding F1, micro (0 to 1)"
PLOTTED = ("finding_f1", "CIDEr", "BLEU_4", "ROUGE_L")
STUDIES_SHOWN = 16
FINDINGS_SHOWN = 5
SURE, FAIRLY_SURE = 0.8, 0.6


@dataclass(frozen=True, slots=True)
class View:
    """One image of a study as data URIs: grey, and the map over it where there is one."""

    title: str
    grey: str
    heat: str | None
    width: int
    height: int


def demo_page(
    dataset: Dataset,
    predictions: Path,
    evaluation: Evaluation,
    card: RunCard,
    *,
    banner: Sequence[str],
    image_size: int,
) -> str:
    """The page's HTML. ``banner`` has the warnings about the run, as every predictor of it gives them."""
    labeler = get_labeler("chexpert14")
    rows = [row for _, row in islice(read_jsonl(predictions), STUDIES_SHOWN)]
    studies = {study.study_id: study for study in dataset.studies("test")}
    systems = _score_rows(predictions, labeler)
    titles = {"finding_f1": FINDING_F1, **METRICS}
    environment = Environment(loader=PackageLoader("radweave", "templates"), autoescape=True, trim_blocks=True)
    kinds = [kind_of(row["evidence"]) for row in rows if row["evidence"].get("attention_maps")]
    return environment.get_template("demo.html.j2").render(
        notice=RESEARCH_ONLY,
        banner=[text for text in banner if text not in card.cautions],
        cautions=card.cautions,
        card=card,
        titles=titles,
        systems=systems,
        plots=_plots(systems, titles, evaluation, card),
        can_draw=can_draw(),
        honesty=evaluation.honesty.rows(),
        warnings=evaluation.warnings(),
        num_test=len(evaluation.study_ids),
        kind=kinds[0] if kinds else None,
        differences=SIGNS,
        sure=SURE,
        fairly_sure=FAIRLY_SURE,
        studies=[_study(dataset, studies[row["study_id"]], row, labeler, image_size) for row in rows],
    )


def _score_rows(predictions: Path, labeler: Labeler) -> list[ScoreRow]:
    """Scores with intervals of the model and of the floors, all by the same program."""
    systems = score_systems(read_pairs(predictions).pairs, labeler)
    return [
        ScoreRow(
            "the model" if name == MODEL else f"floor: {name}",
            {"finding_f1": finding_f1(scores), **{metric: scores.corpus[metric].estimate for metric in METRICS}},
        )
        for name, scores in systems.items()
    ]


def _plots(
    systems: Sequence[ScoreRow], titles: Mapping[str, str], evaluation: Evaluation, card: RunCard
) -> list[tuple[str, str, str]]:
    """Title, words for who does not see it, and data URI of each plot; none where figures cannot be drawn."""
    if not can_draw():
        return []
    result = evaluation.to_json(per_study=False)
    reliable = reliability_plot(result) if "heads" in result else None
    made = [
        ("Scores beside floors", "Scores of the model and the floors with intervals; the table below has the numbers",
         score_plot(systems, {name: titles[name] for name in PLOTTED})),
        ("What its probabilities are worth", "Share of test studies that had a finding against the probability that was"
         " given, with intervals, for all findings and by class", reliable),
        ("How training went", "Validation loss after each epoch of each stage", curve_plot(card.validation)),
    ]  # fmt: skip
    return [(title, words, data_uri(picture)) for title, words, picture in made if picture is not None]


def _study(dataset: Dataset, study: Study, row: dict[str, Any], labeler: Labeler, image_size: int) -> dict[str, Any]:
    evidence = row["evidence"]
    name = _shown_map(evidence)
    maps = (evidence.get("attention_maps") or {}).get(name) or []
    # Maps stand in the order in which models see views: those from the front first.
    placed = sorted(study.images, key=lambda ref: {1: 0, 2: 1, 0: 2}[view_id(ref.view)])
    return {
        "id": study.study_id,
        "views": [
            _view(dataset, ref, maps[place] if place < len(maps) else None, image_size)
            for place, ref in enumerate(placed)
        ],
        "map": name,
        "sentences": evidence.get("sentences", []),
        "findings": _findings(row, labeler),
        "beside": hold_beside(row["hyp"], row["ref"], labeler),
        "nearest": row["floors"].get("nearest_neighbour", ""),
    }


def _shown_map(evidence: Mapping[str, Any]) -> str | None:
    """The map of the most probable finding, or the only one that there is."""
    maps = [name for name in evidence.get("attention_maps") or {} if name != NO_FINDING]
    known = evidence.get("class_probabilities") or {}
    return max(maps, key=lambda name: known.get(name, 0.0), default=None)


def _view(dataset: Dataset, ref: ImageRef, values: Any, image_size: int) -> View:
    radiograph = read_radiograph(dataset.image_path(ref.path), original_size_wh=ref.original_size_wh, doubts=False)
    subject = RadiographSubject(ref.view.value, radiograph.pixels, image_size)
    weights = None if values is None else np.asarray(values, dtype=np.float64)
    usable = weights is not None and weights.ndim == 2 and bool(np.isfinite(weights).all())
    (panel,) = subject.panels_with(weights) if usable and weights is not None else subject.panels()
    heat = data_uri(overlay_png(panel, float(panel.heat.max()))) if panel.heat is not None else None
    height, width = panel.grey.shape
    return View(ref.view.value, data_uri(_small(panel)), heat, width, height)


def _small(panel: Panel) -> bytes:
    """The picture at half its size: the map over it keeps all of its."""
    image = Image.open(io.BytesIO(grey_png(panel)))
    image.thumbnail((320, 320))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _findings(row: Mapping[str, Any], labeler: Labeler) -> list[Finding]:
    """The most probable classes of the method's classifier, if it has one; "No Finding" is not one to look for."""
    support = find_support(Report(row["hyp"], row["study_id"], row["evidence"]), labeler)
    known = [found for found in support.findings if found.probability is not None and found.name != NO_FINDING]
    return sorted(known, key=lambda found: -(found.probability or 0.0))[:FINDINGS_SHOWN]
