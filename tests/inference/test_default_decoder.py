"""What drafts by default: expected utility of a calibrated run, unless its own decoder is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import radweave
from radweave.core.errors import InputError
from radweave.core.evidence import BY_OWN_DECODER, BY_UTILITY, DraftEvidence, OwnReports
from radweave.core.json_files import read_json, read_jsonl
from radweave.core.map_kinds import OF_WORDS
from radweave.data.dataset import Dataset
from radweave.drafting.calibration import load_calibration
from radweave.engine import expected_utility
from radweave.engine.expected_utility import FOLDER, lacking
from radweave.engine.restore import Run, restore
from radweave.experiments.one_run import Task, run_task
from radweave.inference.export import export
from radweave.inference.predictor import Predictor
from radweave.methods.experiment import as_written
from radweave.methods.model import _maps
from radweave.nn.decoding import OWN_DECODER
from tests.command_line import radweave as command


@pytest.fixture(scope="module")
def run(toy_run: Path) -> Run:
    return restore(toy_run)


def kind_of(predictor: Predictor) -> str:
    return predictor.decoder["kind"]


def test_a_calibrated_run_drafts_by_expected_utility(toy_run: Path, toy_dataset: Dataset) -> None:
    image = toy_dataset.image_path("images/1_0.png")
    report, own = radweave.load(toy_run).report(image), radweave.load(toy_run, own_decoder=True).report(image)
    assert report.evidence["decoder"] == {"kind": BY_UTILITY}
    assert "expected_utility" in report.evidence
    assert own.evidence["decoder"] == {"kind": BY_OWN_DECODER, "set": [OWN_DECODER]}
    assert "expected_utility" not in own.evidence
    with pytest.raises(InputError, match=r"--own-decoder.*chosen twice"):
        radweave.load(toy_run, own_decoder=True, decoding=["kind=expected_utility"])


def _uncalibrated(run: Run) -> Run:
    assert run.drafting is not None
    calibration = run.drafting.calibration
    classes = {name: one.model_copy(update={"positives": 4}) for name, one in calibration.classes.items()}
    made = calibration.model_copy(update={"classes": classes})
    return replace(run, drafting=replace(run.drafting, calibration=made))


def _without_reports(run: Run) -> Run:
    assert run.drafting is not None
    return replace(run, drafting=replace(run.drafting, folder=Path("nowhere")))


def _scored_as_written(run: Run) -> Run:
    decoding = as_written(run.experiment.decoding)
    return replace(run, experiment=run.experiment.model_copy(update={"decoding": decoding}))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_uncalibrated, "the run is not calibrated: in 12 studies of split train no finding is frequent enough"),
        (_without_reports, "the run has no training reports to draft from"),
        (_scored_as_written, "the run's drafts are scored as the method wrote them"),
    ],
)
def test_another_run_drafts_with_its_own_decoder_and_says_why(
    run: Run, change: Callable[[Run], Run], reason: str
) -> None:
    changed = change(run)
    predictor = Predictor.of(changed)
    assert predictor.decoding.kind == "likelihood"
    assert predictor.drafts == f"drafts: own decoder ({reason})"
    assert f"Drafts: own decoder ({reason})" in repr(predictor)
    asked = Predictor.of(changed, decoding=["kind=expected_utility"])
    assert (kind_of(asked), asked.own_because) == (BY_UTILITY, "")


def test_what_was_chosen_at_training_stays(run: Run) -> None:
    chosen = replace(run, card=run.card.model_copy(update={"overrides": ("decoding.kind=likelihood",)}))
    predictor = Predictor.of(chosen)
    assert (kind_of(predictor), predictor.own_because) == (BY_OWN_DECODER, "")
    assert kind_of(Predictor.of(chosen, decoding=["kind=expected_utility"])) == BY_UTILITY


def test_the_command_line_says_what_drafted_and_evaluation_shows_both(
    toy_run: Path, toy_dataset: Dataset, tmp_path: Path
) -> None:
    generate = ("generate", toy_run, "--data", toy_dataset.path, "--split", "test")
    done = command(*generate, "--out", tmp_path / "utility.jsonl")
    assert "drafts: expected utility\n" in done.stderr
    done = command(*generate, "--own-decoder", "--set", "max_new_tokens=9", "--out", tmp_path / "own.jsonl")
    assert f"drafts: own decoder; set: max_new_tokens=9 {OWN_DECODER}\n" in done.stderr
    done = command("evaluate", tmp_path / "utility.jsonl", tmp_path / "own.jsonl", "--resamples", "0", "--no-meteor")
    assert "utility: 6 studies, target findings, drafts by expected utility" in done.stdout
    assert "own: 6 studies, target findings, drafts by own decoder" in done.stdout
    foreign = tmp_path / "foreign.jsonl"
    foreign.write_text(json.dumps({"study_id": "s", "hyp": "a", "ref": "a", "evidence": {"decoder": {"kind": "x"}}}))
    done = command("evaluate", foreign, "--resamples", "0", "--no-meteor")
    assert "drafts by" not in done.stdout


@pytest.mark.parametrize(("options", "kind"), [((), BY_OWN_DECODER), (("kind=expected_utility",), BY_UTILITY)])
def test_a_row_of_a_benchmark_drafts_as_it_says(
    toy_run: Path, toy_dataset: Dataset, tmp_path: Path, options: tuple[str, ...], kind: str
) -> None:
    """The default of calibrated runs would make two rows of a table equal."""
    card = restore(toy_run).card
    task = Task(
        label="row", method="baseline", preset="tiny", overrides=card.overrides, seed=0, run=str(toy_run),
        dataset=str(toy_dataset.path), folder=str(tmp_path / "row"), decoding=options,
    )  # fmt: skip
    run_task(task)
    kinds = {row["evidence"]["decoder"]["kind"] for _, row in read_jsonl(tmp_path / "row" / "predictions.jsonl")}
    assert kinds == {kind}


def test_maps_of_the_method_come_with_a_draft_by_utility(
    run: Run, toy_dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    maps: DraftEvidence = {"attention_maps": {"Edema": np.ones((1, 2, 2))}, "map_kind": "gradcam"}
    monkeypatch.setattr(
        expected_utility, "own_reports", lambda model, batch, *rest: [OwnReports(maps=maps)] * len(batch)
    )
    report = Predictor.of(run).report(toy_dataset.image_path("images/1_0.png"))
    assert report.evidence["attention_maps"] == {"Edema": [[[1.0, 1.0], [1.0, 1.0]]]}
    assert _maps({**maps, "recalled": []}) == maps
    assert _maps({**maps, "map_kind": OF_WORDS}) == {}, "the draft need not have those words"


# Exports.


def test_an_export_drafts_as_it_was_set_and_its_files_say_so(
    toy_run: Path, toy_dataset: Dataset, tmp_path: Path
) -> None:
    options = ("--own-decoder", "--set", "max_new_tokens=9")
    assert command("export", toy_run, tmp_path / "own", *options).returncode == 0
    card = read_json(tmp_path / "own" / "run.json")
    assert card["overrides"] == ["decoding.max_new_tokens=9", "decoding.kind=likelihood"]
    page = unescape((tmp_path / "own" / "README.md").read_text())
    assert "Drafts are made by own decoder; set for them: <code>max_new_tokens=9, kind=likelihood</code>." in page
    predictor = radweave.load(tmp_path / "own")
    assert (kind_of(predictor), predictor.decoding.max_new_tokens) == (BY_OWN_DECODER, 9)
    again = restore(export(tmp_path / "own", tmp_path / "again"))
    assert kind_of(Predictor.of(again)) == BY_OWN_DECODER, "an export of an export keeps the choice"
    plain = export(toy_run, tmp_path / "plain")
    assert read_json(plain / "run.json").get("overrides", []) == []
    assert "Drafts are made by expected utility." in (plain / "README.md").read_text()
    assert kind_of(radweave.load(plain)) == BY_UTILITY
    assert lacking(plain / FOLDER, load_calibration(plain, card["classes"])) is None
    bare = export(toy_run, tmp_path / "bare", bank=False)
    assert "Drafts are made by own decoder (the run has no training reports" in (bare / "README.md").read_text()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--set", "beams=3"], "num_beams"),
        (["--set", "num_beams=0"], "num_beams"),
        (["--no-bank", "--set", "kind=expected_utility"], "--no-bank leaves out"),
        (["--own-decoder", "--set", "kind=expected_utility"], "chosen twice"),
        (["--as", "merged", "--set", "num_beams=3"], "decoding options of their own"),
    ],
)
def test_options_that_an_export_cannot_have_are_refused(
    toy_run: Path, tmp_path: Path, options: list[str], says: str
) -> None:
    done: Any = command("export", toy_run, tmp_path / "out", *options)
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / "out").exists()
