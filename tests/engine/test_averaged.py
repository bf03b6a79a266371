"""Drafts of several runs together: means of calibrated log-odds, each run reading studies in its own way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from radweave.core.errors import InputError
from radweave.data.dataset import Dataset
from radweave.data.loader import collate
from radweave.engine.averaged import averaged_drafting, mean_log_odds, prepared_split
from radweave.engine.expected_utility import FOLDER, Opened
from radweave.engine.restore import Run, restore
from radweave.engine.train import train
from radweave.inference.predictor import Predictor
from tests.toys import write_followed_dataset

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def runs(toy_run: Path, toy_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """Two methods on one data set, with images of two sizes."""
    out = tmp_path_factory.mktemp("kernels") / "run"
    return restore(toy_run), restore(
        train("kernels", toy_dataset.path, out, overrides=["model.descriptors.aligned=false"])
    )


def test_log_odds_are_calibrated_ones_of_each_run_and_then_their_mean(
    runs: tuple[Run, Run], toy_dataset: Dataset
) -> None:
    opened = [Opened.of(run.folder / FOLDER, run.model) for run in runs]
    mean = mean_log_odds(runs, opened, toy_dataset, "test")
    expected = []
    for run, own in zip(runs, opened, strict=True):
        example = prepared_split(run, toy_dataset, "test").examples[0]
        (evidence,) = own.evidence_for(collate([example], pad_id=0))
        assert run.drafting is not None
        expected.append(run.drafting.calibration.log_odds(evidence.scores[None])[0])
    assert not np.allclose(expected[0], expected[1])
    assert mean[example.study_id] == pytest.approx(np.mean(expected, axis=0))


def test_the_first_run_drafts_by_the_mean_alone_and_in_any_batch(runs: tuple[Run, Run], toy_dataset: Dataset) -> None:
    predictor = Predictor.of(runs[0], decoding=["kind=expected_utility"])
    averaged = replace(predictor, drafting=averaged_drafting(runs, toy_dataset))
    examples = prepared_split(runs[0], toy_dataset, "test").examples
    together, own = list(averaged.reports(examples)), list(predictor.reports(examples))
    assert any(one.evidence != other.evidence for one, other in zip(together, own, strict=True))
    for example, report in zip(examples, together, strict=True):
        assert report.text
        assert report.evidence["calibration"]["split"] == "val"
        (alone,) = averaged.reports([example])
        assert (alone.text, alone.evidence) == (report.text, report.evidence)


def test_other_studies_and_runs_of_other_data_are_refused(
    runs: tuple[Run, Run], toy_dataset: Dataset, tmp_path: Path
) -> None:
    averaged = replace(
        Predictor.of(runs[0], decoding=["kind=expected_utility"]), drafting=averaged_drafting(runs[:1], toy_dataset)
    )
    stranger = prepared_split(runs[0], toy_dataset, "train").examples[0]
    with pytest.raises(InputError, match="not asked of"):
        list(averaged.reports([stranger]))
    other = write_followed_dataset(tmp_path / "data")
    with pytest.raises(InputError, match="not of one data set"):
        averaged_drafting(runs, other)
