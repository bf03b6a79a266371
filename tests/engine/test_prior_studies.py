"""Drafts that are told the patient's prior study, by a method that reads none itself; and every way to get it wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radweave.core.batch import Batch
from radweave.core.errors import InputError
from radweave.core.study import ImageRef, Report, Study, View
from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset, DatasetCard, DatasetWriter
from radweave.data.examples import PreparedSplit
from radweave.data.loader import Example
from radweave.drafting.prior import load_prior
from radweave.drafting.writer import PRIOR_UNUSED, Proposals
from radweave.engine.expected_utility import FOLDER, Opened
from radweave.engine.prepare import prepare
from radweave.engine.restore import Run, restore
from radweave.engine.stages import TrainingWatch
from radweave.engine.train import train
from radweave.inference.predictor import Predictor
from radweave.nn.decoding import OWN_DECODER
from tests.toys import TOY_OVERRIDES, TOY_SIZES, toy_image, write_followed_dataset

OVERRIDES = [*TOY_OVERRIDES, *TOY_SIZES["baseline"], "stages.report.epochs=1", "decoding.expected_utility.samples=1"]
UTILITY = "kind=expected_utility"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write_followed_dataset(tmp_path_factory.mktemp("followed") / "data")


@pytest.fixture(scope="module")
def run(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """It learned of priors from eight pairs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("radweave.engine.save_drafting.FEWEST", 5)
        return restore(train("baseline", dataset.path, tmp_path_factory.mktemp("run") / "run", overrides=OVERRIDES))


def prepared(run: Run, dataset: Dataset, split: Any = "test") -> PreparedSplit:
    cache = build_cache(dataset, size=run.experiment.data.image_size)
    return prepare(dataset, split, run.experiment, run.tokenizer, cache, need_text=False)


def reports(run: Run, examples: Sequence[Example], *options: str) -> list[Report]:
    """Drafts by expected utility; their evidence does not name the options, of which it shall not depend."""
    return list(replace(Predictor.of(run, decoding=[UTILITY, *options]), options=()).reports(examples))


def later(run: Run, dataset: Dataset) -> Example:
    return next(example for example in prepared(run, dataset).examples_with_priors if example.prior is not None)


@pytest.mark.parametrize("told", ["report", "image", "both"])
def test_a_draft_is_told_its_prior_and_one_without_a_prior_is_as_before(run: Run, dataset: Dataset, told: str) -> None:
    examples, option = prepared(run, dataset).examples_with_priors, f"expected_utility.prior={told}"
    untold, informed = reports(run, examples), reports(run, examples, option)
    for example, before, after in zip(examples, untold, informed, strict=True):
        if example.prior is None:
            assert (before.text, before.evidence, before.warnings) == (after.text, after.evidence, after.warnings)
        else:
            assert before.evidence["class_probabilities"] != after.evidence["class_probabilities"]
            assert "changes" not in before.evidence
            states = {row["before"] for row in after.evidence["changes"].values()}
            assert states <= ({"not known"} if told == "image" else {"affirmed", "not affirmed"})
        (alone,) = reports(run, [example], option)
        assert (alone.text, alone.evidence) == (after.text, after.evidence)


def test_the_report_of_the_prior_reaches_the_draft(run: Run, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a candidate, where it is read."""
    example, read = later(run, dataset), list[str]()
    assert example.prior is not None
    of_prior = Proposals.of_prior
    monkeypatch.setattr(Proposals, "of_prior", lambda self, report: read.append(report) or of_prior(self, report))
    for told, expected in (("both", [example.prior.report]), ("report", [example.prior.report]), ("image", [])):
        read.clear()
        reports(run, [example], f"expected_utility.prior={told}")
        assert read == expected, told


def test_the_method_itself_reads_no_prior(run: Run, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Batch] = []
    evidence_for = Opened.evidence_for
    monkeypatch.setattr(Opened, "evidence_for", lambda self, batch: asked.append(batch) or evidence_for(self, batch))
    example = later(run, dataset)
    reports(run, [example], "expected_utility.prior=both")
    assert [(batch.study_ids, batch.priors) for batch in asked] == [
        ([example.study_id], None), ([example.prior.study_id], None)  # type: ignore[union-attr]
    ]  # fmt: skip
    asked.clear()
    reports(run, [example], "expected_utility.prior=report")
    assert len(asked) == 1, "the image of the prior is not looked at"
    predictor = Predictor.of(run, decoding=[OWN_DECODER])
    own = [next(iter(predictor.reports([one]))) for one in (example, replace(example, prior=None))]
    assert (own[0].text, own[0].evidence) == (own[1].text, own[1].evidence), "nor is its own decoder told"


def test_a_prior_of_another_patient_is_refused(run: Run, dataset: Dataset) -> None:
    example = later(run, dataset)
    assert example.prior is not None
    stranger = replace(example, prior=replace(example.prior, patient_id="p999"))
    with pytest.raises(InputError, match="another patient") as caught:
        reports(run, [stranger], "expected_utility.prior=both")
    assert "p999" not in str(caught.value)


def test_a_prior_s_own_prior_is_not_read(run: Run, dataset: Dataset) -> None:
    example = later(run, dataset)
    assert example.prior is not None
    chained = replace(example, prior=replace(example.prior, prior=replace(example, study_id="before")))
    one, other = (reports(run, [each], "expected_utility.prior=both")[0] for each in (example, chained))
    assert (one.text, one.evidence) == (other.text, other.evidence)


def test_a_prior_without_a_report_counts_by_its_image(run: Run, dataset: Dataset) -> None:
    example = later(run, dataset)
    assert example.prior is not None
    unread = replace(example, prior=replace(example.prior, report="", token_ids=(2,), class_states=None))
    by_image, both = (
        reports(run, [each], f"expected_utility.prior={told}")[0]
        for each, told in ((example, "image"), (unread, "both"))
    )
    assert by_image.evidence["class_probabilities"] == both.evidence["class_probabilities"]
    (nothing,), (untold,) = reports(run, [unread], "expected_utility.prior=report"), reports(run, [example])
    assert (nothing.text, nothing.evidence) == (untold.text, untold.evidence)


def test_a_run_that_learned_nothing_of_priors_says_so(dataset: Dataset, tmp_path: Path) -> None:
    notes: list[str] = []
    watch = TrainingWatch(note=notes.append)
    untaught = restore(train("baseline", dataset.path, tmp_path / "run", overrides=OVERRIDES, watch=watch))
    assert any("8 have one, 10 are needed" in note for note in notes)
    assert load_prior(untaught.folder / FOLDER, untaught.card.classes) is None
    example = later(untaught, dataset)
    (untold,), (told,) = reports(untaught, [example]), reports(untaught, [example], "expected_utility.prior=both")
    assert (told.text, told.evidence) == (untold.text, untold.evidence)
    assert PRIOR_UNUSED in told.warnings


def test_a_prior_of_another_split_or_without_an_image_or_report_is_none(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with DatasetWriter(folder, DatasetCard(name="torn", split_provenance="made up")) as writer:
        for name, split, report, prior in (
            ("train", "train", "Clear.", None),
            ("of_train", "test", "Clear.", "train"),
            ("silent", "test", None, None),
            ("of_silent", "test", "Clear.", "silent"),
            ("broken", "test", "Clear.", None),
            ("of_broken", "test", "Clear.", "broken"),
            ("good", "test", "Clear.", None),
            ("of_good", "test", "Clear.", "good"),
        ):
            picture = toy_image(tmp_path / f"{name}.png", bright_side="left", seed=len(name))
            if name == "broken":
                picture.write_bytes(b"no image")
            study = Study(
                study_id=name,
                patient_id="p1",
                split=split,  # type: ignore[arg-type]
                images=(ImageRef(path=f"images/{name}.png", view=View.PA),),
                report=report,
                prior=prior,
            )
            writer.add(study, {f"images/{name}.png": picture})
    assert set(prepared(run, Dataset.open(folder)).priors) == {"of_good"}


def test_what_a_run_learned_of_priors_is_of_training_or_validation(run: Run, dataset: Dataset) -> None:
    """Other reports and images of the test split change nothing of a run: its files are those of before."""
    learned = load_prior(run.folder / FOLDER, run.card.classes)
    assert learned is not None
    assert (learned.split, learned.pairs) == ("train", 8)
    assert run.drafting is not None
    assert run.drafting.calibration.split == learned.split
    assert np.isfinite([curve.own for curves in learned.curves.values() for curve in curves.values()]).all()
