"""The demo: phantom radiographs, a trained run, reports on unseen studies, and one page of results."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader
from PIL import Image

from radweave.core.evidence import BY_UTILITY
from radweave.core.figures import BLUE, MARKERS, OTHERS, can_draw, new_figure, png
from radweave.core.json_files import read_jsonl, write_json
from radweave.core.map_kinds import kind_of
from radweave.core.replacing import record_kind
from radweave.core.storage import write_folder, write_text
from radweave.core.study import RESEARCH_ONLY, ImageRef, Report, Study
from radweave.data.dataset import Dataset
from radweave.data.loader import view_id
from radweave.drafting.candidates import affirmed_classes
from radweave.engine.restore import restore
from radweave.engine.run_folder import RunCard, StageFigures
from radweave.engine.stages import TrainingWatch
from radweave.engine.train import train
from radweave.inference.bulk import generate_split
from radweave.inference.explain.comparison import SIGNS, compare_texts
from radweave.inference.explain.maps import Panel, RadiographSubject, data_uri, grey_png, overlay_png
from radweave.inference.explain.page import FAIRLY_SURE, SURE
from radweave.inference.explain.support import Finding, find_support
from radweave.inference.predictor import Predictor
from radweave.io.images import read_radiograph
from radweave.labels import NO_FINDING, Labeler, get_labeler
from radweave.metrics import Evaluation, Options, evaluate_pairs, read_pairs
from radweave.metrics.catalogue import METRICS, SHORT_METRICS
from radweave.metrics.evaluate import MODEL, finding_f1, score_systems
from radweave.metrics.records import Estimate
from radweave.metrics.tables import reliability_plot
from radweave.nn.decoding import chosen_options
from radweave.phantom.study import PhantomOptions, draw_xray_study, slot_of, study_name, write_phantom_dataset

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """A system's name and its scores with intervals, by metric."""

    name: str
    scores: Mapping[str, Estimate]


def score_plot(rows: Sequence[ScoreRow], titles: Mapping[str, str]) -> bytes:
    """A panel per metric with a row per system: score and 95 % interval (PNG). The first row is the model."""
    figure = new_figure(9.5, 1.4 + 0.42 * len(rows) * math.ceil(len(titles) / 2))
    panels = figure.subplots(math.ceil(len(titles) / 2), 2, sharey=True, squeeze=False).flat
    for panel, (metric, title) in zip(panels, titles.items(), strict=False):
        for position, row in enumerate(rows):
            _plot_score(panel, position, row.scores[metric])
        panel.set_yticks(range(len(rows)), [row.name for row in rows])
        panel.set_xlabel(title)
        panel.set_xlim(left=0)
        panel.grid(axis="x", alpha=0.3)
    figure.axes[0].invert_yaxis()
    figure.supxlabel("dots: scores on the test studies; bars: 95 %, bootstrap over their patients", size=8)
    return png(figure)


def _plot_score(panel: Axes, position: int, score: Estimate) -> None:
    if score.value is None:
        return
    colour, marker = (
        (BLUE, "o") if position == 0 else (OTHERS[(position - 1) % len(OTHERS)], MARKERS[position % len(MARKERS)])
    )
    if score.bounds is not None:
        panel.hlines(position, *score.bounds, color=colour, linewidth=2.5)
        panel.plot(score.bounds, [position, position], "|", color=colour, markersize=9)
    panel.plot([score.value], [position], marker, color=colour, markersize=8, markeredgecolor="white", clip_on=False)


def curve_plot(stages: Mapping[str, StageFigures]) -> bytes | None:
    """Validation loss per epoch, a panel for each trained stage (PNG); None without any."""
    shown = {name: history for name, history in stages.items() if history.epochs}
    if not shown:
        return None
    figure = new_figure(2.6 * max(len(shown), 2), 2.8)
    for panel, (name, history) in zip(figure.subplots(1, len(shown), squeeze=False).flat, shown.items(), strict=True):
        losses = [math.nan if row["loss"] is None else float(row["loss"]) for row in history.epochs]
        epochs = range(1, len(losses) + 1)
        panel.plot(epochs, losses, "o-", color=BLUE, markersize=4)
        for epoch, loss, row in zip(epochs, losses, history.epochs, strict=True):
            if row.get("step") == history.best_step:
                panel.plot(epoch, loss, "D", color=OTHERS[0], markersize=7, label="weights kept")
        panel.set_title(f"stage {name}", size=9)
        panel.set_xlabel("epoch")
        panel.locator_params(axis="x", integer=True)
        panel.grid(alpha=0.3)
    figure.axes[0].set_ylabel("validation loss (nats)")
    legends = [panel.get_legend_handles_labels() for panel in figure.axes]
    legend = next((legend for legend in legends if legend[0]), None)
    if legend is not None:
        figure.legend(*legend, loc="outside upper right", frameon=False)
    figure.supxlabel("one run with one seed: how much another would differ is not known", size=8)
    return png(figure)


FINDING_F1 = "finding F1, micro (0 to 1)"
PLOTTED = ("finding_f1", "CIDEr", "BLEU_4", "ROUGE_L")
STUDIES_SHOWN = 16
FINDINGS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class View:
    """One image of a study as data URIs: grey values, and the map over it if any; boxes are in its pixels, x y w h."""

    title: str
    grey: str
    heat: str | None
    width: int
    height: int
    boxes: tuple[tuple[str, tuple[float, ...]], ...]


def demo_page(
    dataset: Dataset,
    predictions: Path,
    evaluation: Evaluation,
    card: RunCard,
    *,
    banner: Sequence[str],
    image_size: int,
    seed: int,
    own: Path | None = None,
) -> str:
    """The page as HTML.

    ``banner`` holds the warnings of the run's predictor, ``own`` its own decoder's drafts; ``seed`` drew the phantoms.
    """
    labeler = get_labeler("chexpert14")
    all_rows = [row for _, row in read_jsonl(predictions)]
    rows, lead = all_rows[:STUDIES_SHOWN], next((row for row in all_rows if _states_a_finding(row, labeler)), None)
    studies = {study.study_id: study for study in dataset.studies("test")}
    systems = score_rows(predictions, own, labeler)
    titles = {"finding_f1": FINDING_F1, **{metric: METRICS[metric].axis for metric in SHORT_METRICS}}
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
        by_utility=bool(rows) and rows[0]["evidence"]["decoder"]["kind"] == BY_UTILITY,
        kind=kinds[0] if kinds else None,
        differences=SIGNS,
        sure=SURE,
        fairly_sure=FAIRLY_SURE,
        lead=None
        if lead is None
        else _study(dataset, _with_boxes(studies[lead["study_id"]], seed), lead, labeler, image_size),
        studies=[_study(dataset, studies[row["study_id"]], row, labeler, image_size) for row in rows],
    )


def _states_a_finding(row: Mapping[str, Any], labeler: Labeler) -> bool:
    """Tell if draft and reference affirm a finding in common."""
    draft, reference = affirmed_classes([row["hyp"], row["ref"]], labeler)
    return any(draft[k] and reference[k] for k, name in enumerate(labeler.classes) if name != NO_FINDING)


def _with_boxes(study: Study, seed: int) -> Study:
    """The same study, drawn again with boxes of its findings: for all studies that would take as long as the images."""
    index = next(index for index in itertools.count() if study_name(slot_of(seed, index))[1] == study.study_id)
    drawn = draw_xray_study(seed, index, PHANTOMS.model_copy(update={"boxes": True}))
    boxes = {image.ref.path: image.ref.boxes for image in drawn.images}
    images = tuple(image.model_copy(update={"boxes": boxes[image.path]}) for image in study.images)
    return study.model_copy(update={"images": images})


def score_rows(predictions: Path, own: Path | None, labeler: Labeler) -> list[ScoreRow]:
    """Scores with intervals of the model, of its own decoder if the model drafts otherwise, and of the floors."""
    floors = score_systems(read_pairs(predictions).pairs, labeler)
    systems = {"the model" if own is None else "the model, by utility": floors.pop(MODEL)}
    if own is not None:
        options = Options(meteor=False, floors=False)
        systems["the model, own decoder"] = evaluate_pairs(read_pairs(own).pairs, labeler=labeler, options=options)
    systems |= {f"floor: {name}": scores for name, scores in floors.items()}
    return [
        ScoreRow(
            name,
            {"finding_f1": finding_f1(scores), **{metric: scores.corpus[metric].estimate for metric in SHORT_METRICS}},
        )
        for name, scores in systems.items()
    ]


def _plots(
    systems: Sequence[ScoreRow], titles: Mapping[str, str], evaluation: Evaluation, card: RunCard
) -> list[tuple[str, str, str]]:
    """Title, alternative text and data URI of each plot; empty without matplotlib."""
    if not can_draw():
        return []
    result = evaluation.to_json(per_study=False)
    reliable = reliability_plot(result) if "heads" in result else None
    plots = [
        ("Scores beside floors", "Scores of the model and the floors with intervals; the table below has the numbers",
         score_plot(systems, {name: titles[name] for name in PLOTTED})),
        ("What its probabilities are worth", "Share of test studies that had a finding against the probability that was"
         " given, with intervals, for all findings and by class", reliable),
        ("How training went", "Validation loss after each epoch of each stage", curve_plot(card.validation)),
    ]  # fmt: skip
    return [(title, words, data_uri(picture)) for title, words, picture in plots if picture is not None]


def _study(dataset: Dataset, study: Study, row: dict[str, Any], labeler: Labeler, image_size: int) -> dict[str, Any]:
    evidence = row["evidence"]
    name = _map_name(evidence)
    maps = (evidence.get("attention_maps") or {}).get(name) or []
    # Maps have the order of a model's views, frontal first.
    ordered = sorted(study.images, key=lambda ref: {1: 0, 2: 1, 0: 2}[view_id(ref.view)])
    return {
        "id": study.study_id,
        "views": [
            _view(dataset, ref, maps[position] if position < len(maps) else None, image_size)
            for position, ref in enumerate(ordered)
        ],
        "map": name,
        "sentences": evidence.get("sentences", []),
        "findings": _findings(row, labeler),
        "beside": compare_texts(row["hyp"], row["ref"], labeler),
        "nearest": row["floors"].get("nearest_neighbour", ""),
    }


def _map_name(evidence: Mapping[str, Any]) -> str | None:
    """The map of the most probable finding, or the only one."""
    maps = [name for name in evidence.get("attention_maps") or {} if name != NO_FINDING]
    probabilities = evidence.get("class_probabilities") or {}
    return max(maps, key=lambda name: probabilities.get(name, 0.0), default=None)


def _view(dataset: Dataset, ref: ImageRef, values: Any, image_size: int) -> View:
    radiograph = read_radiograph(dataset.image_path(ref.path), original_size_wh=ref.original_size_wh, doubts=False)
    subject = RadiographSubject(ref.view.value, radiograph.pixels, image_size)
    weights = None if values is None else np.asarray(values, dtype=np.float64)
    usable = weights is not None and weights.ndim == 2 and bool(np.isfinite(weights).all())
    (panel,) = subject.panels_with(weights) if usable and weights is not None else subject.panels()
    heat = data_uri(overlay_png(panel, float(panel.heat.max()))) if panel.heat is not None else None
    height, width = panel.grey.shape
    boxes = [(one.label, one.box) for one in ref.boxes]
    drawn = tuple(
        (name, (x0 * width, y0 * height, (x1 - x0) * width, (y1 - y0) * height)) for name, (x0, y0, x1, y1) in boxes
    )
    return View(ref.view.value, data_uri(_small(panel)), heat, width, height, drawn)


def _small(panel: Panel) -> bytes:
    """The grey image at half its size; the map keeps its own."""
    image = Image.open(io.BytesIO(grey_png(panel)))
    image.thumbnail((320, 320))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


def _findings(row: Mapping[str, Any], labeler: Labeler) -> list[Finding]:
    """The most probable classes of the method's classifier, without "No Finding"."""
    support = find_support(Report(row["hyp"], row["study_id"], row["evidence"]), labeler)
    findings = [each for each in support.findings if each.probability is not None and each.name != NO_FINDING]
    return sorted(findings, key=lambda each: -(each.probability or 0.0))[:FINDINGS_SHOWN]


METHOD, PRESET = "diffvp", "tiny-xray"
"""A published method, trained in minutes."""
PHANTOMS = PhantomOptions(image_size=160)
EPOCHS = {"encoder": 5, "report": 8}
"""Passes of a stage; the preset has 14 and 16. The encoder starts from weights that know phantoms."""
_FILES = ("index.html", "predictions.jsonl", "own.jsonl", "phantom/*", "run/*")
_OUTPUT = record_kind("a demo", "evaluation.json", ("protocol", "corpus"), _FILES)

Bar = Callable[[str], AbstractContextManager[Callable[[int, int], None] | None]]


@dataclass(frozen=True, slots=True)
class DemoWatch:
    """Progress output: a bar for counted work, the training's watch, and messages."""

    bar: Bar = lambda description: nullcontext()
    training: Callable[[], AbstractContextManager[TrainingWatch]] = lambda: nullcontext(TrainingWatch())
    say: Callable[[str], None] = lambda text: None


def run_demo(
    out: Path,
    *,
    num_studies: int,
    seed: int,
    overwrite: bool = False,
    overrides: Sequence[str] = (),
    watch: DemoWatch | None = None,
    jobs: int = 1,
) -> Path:
    """Write the phantom set, train on it, report on its test split, evaluate; return the path of ``index.html``.

    The folder holds ``phantom/`` (the dataset, drawn by ``jobs`` processes), ``run/`` (the model),
    ``predictions.jsonl``, ``own.jsonl`` with the drafts of the method's own decoder where those are by utility,
    ``evaluation.json`` and the page.

    Raises:
        InputError: if ``out`` exists and ``overwrite`` is not set.
    """
    watch = watch or DemoWatch()
    with write_folder(out, overwrite=overwrite, kind=_OUTPUT) as folder:
        with watch.bar("drawing phantom studies") as progress:
            dataset = write_phantom_dataset(
                folder / "phantom",
                modality="xray",
                num_studies=num_studies,
                seed=seed,
                options=PHANTOMS,
                progress=progress,
                jobs=jobs,
            )
        with watch.training() as training:
            passes = [f"stages.{name}.epochs={number}" for name, number in EPOCHS.items()]
            options = [f"seed={seed}", *passes, *overrides]
            train(METHOD, dataset.path, folder / "run", preset=PRESET, overrides=options, watch=training)
        run = restore(folder / "run")
        predictor = Predictor.of(run)
        drafts, own = folder / "predictions.jsonl", None
        with watch.bar("drafting") as progress:
            generate_split(run, predictor, dataset.path, "test", drafts, progress=progress)
        if predictor.decoding.kind == "expected_utility":
            own = folder / "own.jsonl"
            writer = Predictor.of(run, decoding=chosen_options((), own_decoder=True))
            with watch.bar("writing reports by the own decoder") as progress:
                generate_split(run, writer, dataset.path, "test", own, progress=progress)
        watch.say("scoring")
        pairs = read_pairs(drafts).pairs
        evaluation = evaluate_pairs(pairs, labeler=get_labeler("chexpert14"), options=Options(meteor=False))
        write_json(folder / "evaluation.json", evaluation.to_json())
        watch.say("drawing the page")
        page = demo_page(
            dataset,
            drafts,
            evaluation,
            run.card,
            banner=predictor.warnings,
            image_size=predictor.image_size,
            seed=seed,
            own=own,
        )
        write_text(folder / "index.html", page)
    return out / "index.html"
