"""The whole way in seconds: draw phantoms, train a model of a thousandth of a real one's size, draft, score."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

STUDIES = 20
IMAGE_SIZE_PX = 64
TRAINING = (
    "data.image_size=32",
    "data.max_tokens=40",
    "data.tokenizer.vocab_size=300",
    "data.keep_features=false",
    "decoding.max_new_tokens=24",
    "model.vision_encoder.start=nothing",
    "model.vision_encoder.embedding_size=8",
    "model.vision_encoder.hidden_sizes=[8,16]",
    "model.vision_encoder.depths=[1,1]",
    "model.language_model.hidden_size=32",
    "model.language_model.num_layers=2",
    "stages.eyes.epochs=0",
    "stages.report.epochs=1",
    "stages.report.batch_size=8",
    "stages.report.select=loss",
)


def run_self_test(times: dict[str, float], say: Callable[[str], None]) -> None:
    """Do all of it in a temporary folder; ``times`` gets the seconds of each step that passed."""
    with tempfile.TemporaryDirectory(prefix="radweave-doctor-") as name:
        _run(Path(name), lambda step: _timed(step, times, say))


def _run(folder: Path, timed: Callable[[str], AbstractContextManager[None]]) -> None:
    with timed("load"):
        import radweave
        from radweave.evaluation import Options
        from radweave.generate.predictor import Predictor  # noqa: F401  # what takes longest to import
        from radweave.phantom.dataset import write_phantom_dataset
        from radweave.phantom.study import PhantomOptions
        from radweave.runs.train import train
    with timed("draw"):
        options = PhantomOptions(image_size=IMAGE_SIZE_PX, prevalence="balanced")
        data = write_phantom_dataset(folder / "data", modality="xray", num_studies=STUDIES, seed=0, options=options)
    with timed("train"):
        run = train("baseline", data.path, folder / "run", overrides=TRAINING)
    with timed("draft"):
        study = next(study for study in data.studies("test") if study.report)
        # A model of this size and so few images: whether the image is familiar says nothing here.
        report = radweave.load(run).report([data.image_path(ref.path) for ref in study.images], force=True)
    with timed("score"):
        reference = {report.study_id: study.report or ""}
        scores = radweave.score({report.study_id: report.text or "-"}, reference, options=Options(meteor=False))
        assert scores.corpus["BLEU_1"].value is not None


@contextmanager
def _timed(step: str, times: dict[str, float], say: Callable[[str], None]) -> Iterator[None]:
    say(step)
    started = time.perf_counter()
    yield
    times[step] = round(time.perf_counter() - started, 2)
