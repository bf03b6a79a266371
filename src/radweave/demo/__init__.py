"""The demo: phantom radiographs, a trained run, reports on unseen studies, and one page that shows it all."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from PIL import Image

from radweave.base.figures import BLUE, can_draw, new_figure, png
from radweave.base.json_files import write_json
from radweave.base.replacing import record_kind
from radweave.base.storage import write_folder, write_text
from radweave.base.study import RESEARCH_ONLY, Study
from radweave.data.dataset import Dataset
from radweave.evaluation import Evaluation, Options, evaluate_pairs, read_pairs
from radweave.evaluation.systems import finding_f1, score_systems
from radweave.generate.predictor import Predictor
from radweave.generate.split import generate_split
from radweave.labels import get_labeler
from radweave.phantom.dataset import write_phantom_dataset
from radweave.phantom.study import PhantomOptions
from radweave.runs.folder import RunCard
from radweave.runs.restore import restore
from radweave.runs.stages import TrainingWatch
from radweave.runs.train import train

METHOD, PRESET = "diffvp", "tiny-xray"
"""The method that names most findings in the benchmark (docs/results)."""
METRICS = ("BLEU_1", "BLEU_4", "ROUGE_L", "CIDEr")
STUDIES_SHOWN = 16
FINDINGS_SHOWN = 5
THUMBNAIL_PX = 192
IMAGE_SIZE_PX = 160
_OUTPUT = record_kind(
    "a demo", "evaluation.json", ("protocol", "corpus"), ("index.html", "predictions.jsonl", "phantom/*", "run/*")
)

Bar = Callable[[str], AbstractContextManager[Callable[[int, int], None] | None]]


@dataclass(frozen=True, slots=True)
class DemoWatch:
    """Who is told: a bar for counted work, and the training's watch."""

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
    """Make the phantom set, train on it, report on its test split, evaluate; return the path of ``index.html``.

    The folder holds ``phantom/`` (the dataset, drawn by ``jobs`` processes), ``run/`` (the model),
    ``predictions.jsonl``, ``evaluation.json`` and the page.

    Raises:
        InputError: if ``out`` exists and ``overwrite`` is not set.
    """
    watch = watch or DemoWatch()
    with write_folder(out, overwrite=overwrite, ours=_OUTPUT) as folder:
        with watch.bar("drawing phantom studies") as progress:
            dataset = write_phantom_dataset(
                folder / "phantom",
                modality="xray",
                num_studies=num_studies,
                seed=seed,
                options=PhantomOptions(image_size=IMAGE_SIZE_PX),
                progress=progress,
                jobs=jobs,
            )
        with watch.training() as training:
            options = [f"seed={seed}", *overrides]
            train(METHOD, dataset.path, folder / "run", preset=PRESET, overrides=options, watch=training)
        run = restore(folder / "run")
        with watch.bar("writing reports") as progress:
            generate_split(
                run, Predictor.of(run), dataset.path, "test", folder / "predictions.jsonl", progress=progress
            )
        watch.say("scoring")
        evaluation = _evaluate(folder / "predictions.jsonl")
        write_json(folder / "evaluation.json", evaluation.to_json())
        write_text(folder / "index.html", _page(dataset, folder / "predictions.jsonl", evaluation, run.card))
    return out / "index.html"


def _evaluate(predictions: Path) -> Evaluation:
    return evaluate_pairs(
        read_pairs(predictions).pairs, labeler=get_labeler("chexpert14"), options=Options(meteor=False)
    )


def _page(dataset: Dataset, predictions: Path, evaluation: Evaluation, card: RunCard) -> str:
    environment = Environment(loader=PackageLoader("radweave", "templates"), autoescape=True)
    rows = [json.loads(line) for line in islice(predictions.open(encoding="utf-8"), STUDIES_SHOWN)]
    studies = {study.study_id: study for study in dataset.studies("test")}
    return environment.get_template("demo.html.j2").render(
        notice=RESEARCH_ONLY,
        card=card,
        metrics=METRICS,
        scores=_score_rows(predictions),
        honesty=evaluation.honesty.rows(),
        warnings=evaluation.warnings(),
        num_test=len(evaluation.study_ids),
        curve=_curve(card),
        studies=[_study(dataset, studies[row["study_id"]], row) for row in rows],
    )


def _score_rows(predictions: Path) -> list[dict[str, Any]]:
    """Scores with intervals of the model and of the floors, all by the same program."""
    systems = score_systems(read_pairs(predictions).pairs, get_labeler("chexpert14"))
    return [
        {
            "name": name,
            "values": {metric: (scores.corpus[metric].value, scores.corpus[metric].interval) for metric in METRICS},
            "finding_f1": finding_f1(scores),
        }
        for name, scores in systems.items()
    ]


def _curve(card: RunCard) -> str | None:
    """Validation loss per epoch of the last stage, as the URI of a picture; None where figures cannot be drawn."""
    if not can_draw():
        return None
    stage, history = list(card.validation.items())[-1]
    losses = [math.nan if row["loss"] is None else row["loss"] for row in history.epochs]
    figure = new_figure(5, 2.6)
    panel = figure.subplots()
    panel.plot(range(1, len(losses) + 1), losses, "o-", color=BLUE)
    panel.set_xlabel(f"epoch of stage '{stage}'")
    panel.set_ylabel("validation loss (nats a token)")
    panel.grid(alpha=0.3)
    return _uri(png(figure))


def _study(dataset: Dataset, study: Study, row: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": study.study_id,
        "images": [(ref.view.value, _data_uri(dataset.image_path(ref.path))) for ref in study.images],
        "sentences": row["evidence"].get("sentences", []),
        "findings": _findings(row["evidence"]),
        "reference": row["ref"],
        "nearest": row["floors"].get("nearest_neighbour", ""),
    }


def _findings(evidence: dict[str, Any]) -> list[tuple[str, float]]:
    """The most probable classes of the method's classifier, if it has one; "No Finding" is not one to look for."""
    found = {name: p for name, p in evidence.get("class_probabilities", {}).items() if name != "No Finding"}
    return sorted(found.items(), key=lambda item: -item[1])[:FINDINGS_SHOWN]


def _data_uri(path: Path) -> str:
    with Image.open(path) as image:
        image.thumbnail((THUMBNAIL_PX, THUMBNAIL_PX))
        buffer = io.BytesIO()
        image.convert("L").save(buffer, format="PNG")
    return _uri(buffer.getvalue())


def _uri(picture: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(picture).decode()
