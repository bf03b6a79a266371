"""The demo: phantom radiographs, a trained run, reports on unseen studies, and one page that shows it all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from radweave.base.json_files import write_json
from radweave.base.replacing import record_kind
from radweave.base.storage import write_folder, write_text
from radweave.demo.page import demo_page
from radweave.evaluation import Evaluation, Options, evaluate_pairs, read_pairs
from radweave.generate.predictor import Predictor
from radweave.generate.split import generate_split
from radweave.labels import get_labeler
from radweave.phantom.dataset import write_phantom_dataset
from radweave.phantom.study import PhantomOptions
from radweave.runs.restore import restore
from radweave.runs.stages import TrainingWatch
from radweave.runs.train import train

METHOD, PRESET = "diffvp", "tiny-xray"
"""The method that names most findings in the benchmark (docs/results)."""
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
        predictor = Predictor.of(run)
        with watch.bar("writing reports") as progress:
            generate_split(run, predictor, dataset.path, "test", folder / "predictions.jsonl", progress=progress)
        watch.say("scoring")
        evaluation = _evaluate(folder / "predictions.jsonl")
        write_json(folder / "evaluation.json", evaluation.to_json())
        watch.say("drawing the page")
        page = demo_page(
            dataset,
            folder / "predictions.jsonl",
            evaluation,
            run.card,
            banner=predictor.warnings,
            image_size=predictor.image_size,
        )
        write_text(folder / "index.html", page)
    return out / "index.html"


def _evaluate(predictions: Path) -> Evaluation:
    return evaluate_pairs(
        read_pairs(predictions).pairs, labeler=get_labeler("chexpert14"), options=Options(meteor=False)
    )
