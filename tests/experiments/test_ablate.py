"""Ablations on the toy dataset: two rows, two seeds, stopped and gone on with, failing, serial and parallel."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from radweave.cli import app
from radweave.core.errors import InputError
from radweave.core.json_files import read_json, read_jsonl
from radweave.data.dataset import Dataset
from radweave.experiments import ablate
from radweave.experiments import one_run as one_run_module
from radweave.experiments.ablate import AblationRequest, AblationWatch, exchange_costs, make_plan, run_ablation
from radweave.experiments.one_run import Task
from radweave.methods import baseline
from radweave.methods.tables import Row, Table
from radweave.metrics.significance import compare_seeds
from radweave.metrics.tables import DASH
from tests.toys import TOY_OVERRIDES, TOY_SIZES

OVERRIDES = (*TOY_OVERRIDES, *TOY_SIZES["baseline"], "stages.report.epochs=2", "stages.report.select=loss")
TABLE = Table(
    title="Toy",
    reference="full",
    rows=(
        Row("full", headline=True, paper={"IU": {"BLEU_4": 0.2}}),
        Row("views averaged", "views averaged", paper={"IU": {"BLEU_4": 0.15}}),
        Row("Linear + wide", overrides=("model.language_model.hidden_size=48",), method="baseline"),
        Row("broken", overrides=("model.no_such_part=1",)),
    ),
)


@pytest.fixture(autouse=True)
def _toy_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(baseline.TABLES, "toy", TABLE)


@pytest.fixture
def request_(toy_dataset: Dataset, tmp_path: Path) -> AblationRequest:
    rows = ("full", "views-averaged")
    return AblationRequest(
        "baseline", toy_dataset.path, "toy", tmp_path / "out", seeds=2, rows=rows, overrides=OVERRIDES
    )


@pytest.fixture(scope="module")
def finished(toy_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rows at two seeds. Do not change it; copy it first."""
    out = tmp_path_factory.mktemp("ablation") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(baseline.TABLES, "toy", TABLE)
        rows = ("full", "views-averaged")
        request = AblationRequest("baseline", toy_dataset.path, "toy", out, seeds=2, rows=rows, overrides=OVERRIDES)
        # The number of threads decides in which order floats are added; runs side by side get one each here.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        run_ablation(request)
        torch.set_num_threads(threads)
    return out


def without_times(record: Any) -> Any:
    """A record without wall times, threads and places."""
    times = ("train_s", "cpu_s", "generate_s", "reports_per_s", "threads", "resumed", "training_notes", "notes", "code")
    times += ("peak_memory_bytes", "peak_device_bytes")
    if isinstance(record, dict):
        return {key: without_times(value) for key, value in record.items() if key not in times}
    return [without_times(value) for value in record] if isinstance(record, list) else record


def test_the_table_has_the_measured_values(finished: Path, toy_dataset: Dataset) -> None:
    record = read_json(finished / "table.json")
    assert record["runs"] == {"planned": 4, "finished": 4, "failed": 0}
    assert record["dataset"]["fingerprint"] == toy_dataset.fingerprint()
    constants = {"constant report, best for findings", "constant report, best for wording"}
    assert set(record["floors"]) == {"one constant report", "nearest training image", *constants}
    assert [row["label"] for row in record["rows"]] == ["full", "views averaged"]
    assert len({row["config"] for row in record["rows"]}) == 2
    scores = {
        row["label"]: [read_json(finished / folder / "scores.json") for folder in row["folders"]]
        for row in record["rows"]
    }
    for row in record["rows"]:
        runs = scores[row["label"]]
        assert [run["seed"] for run in runs] == row["seeds"]["finished"] == [0, 1]
        values = [run["metrics"]["BLEU_4"] for run in runs]
        metric = row["metrics"]["BLEU_4"]
        assert metric["mean"] == pytest.approx(sum(values) / 2)
        assert metric["std"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
        assert 0 < row["honesty"]["distinct_reports_share"] <= 1
        assert all(seconds > 0 for seconds in row["train_s"])
        assert not list((finished / row["folders"][0]).glob("checkpoints"))
    expected = compare_seeds(*([run["metrics"] for run in scores[label]] for label in ("full", "views averaged")))
    by_name = {item.metric: item for item in expected}
    assert record["rows"][1]["metrics"]["CIDEr"]["p"] == by_name["CIDEr"].p
    assert record["rows"][0]["metrics"]["CIDEr"]["p"] is None


def test_the_printed_table_has_floors_differences_and_the_paper(finished: Path) -> None:
    text = (finished / "table.md").read_text()
    assert "floor: nearest training image" in text
    assert "Difference to 'full'" in text
    assert "| views averaged: BLEU_4 |" in text
    assert "0.1500 | -0.0500" in text
    assert "NOT COMPLETE" not in text
    assert "drafts: own decoder, greedy\n" in text
    assert r"\begin{tabular}" in (finished / "table.tex").read_text()


def test_a_finished_run_is_not_done_again(
    finished: Path, request_: AblationRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(finished / "runs", request_.out / "runs")

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(one_run_module, "train", refuse)
    monkeypatch.setattr(one_run_module, "generate_split", refuse)
    record = run_ablation(request_).record
    assert without_times(record) == without_times(read_json(finished / "table.json"))
    # Scores that are not of these weights are made again; the training is not.
    scores = request_.out / "runs" / "full" / "seed-0" / "scores.json"
    changed = read_json(scores)
    changed["identity"]["weights"] = "other"
    scores.write_text(json.dumps(changed))
    result = run_ablation(request_)
    assert result.failed == 1
    assert "trained again" in result.record["rows"][0]["seeds"]["failed"][0]["reason"]


def test_exchange_costs_stand_beside_f1_and_are_measured_once(
    finished: Path, request_: AblationRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(finished / "runs", request_.out / "runs")
    monkeypatch.setattr("radweave.experiments.one_run.train", lambda *args, **keys: pytest.fail("trained again"))
    result = run_ablation(replace(request_, probe=True))
    assert result.failed == 0
    assert len(list((request_.out / "runs").glob("*/*/probe"))) == 2, "the first seed of each row"
    (table,) = (each for each in result.tables if "BLEU_4" in each.columns and "seeds" in each.columns)
    place = table.columns.index("CE_F1") + 1
    assert table.columns[place] == "exchange cost"
    cells = {row[0]: row[place] for row in table.rows}
    for row in result.record["rows"]:
        saved = read_json(request_.out / row["folders"][0] / "probe" / "probe.json")
        assert row["probe"] == saved
        mark = next((f" ({word})" for word in ("silent", "covered") if "input image" in saved[word]), "")
        assert cells[row["label"]] == f"image {saved['inputs'][0]['costs']['another']['mean']:+.4f}{mark}"
    assert cells["references"] == "-"
    monkeypatch.setattr("radweave.experiments.one_run.probe", lambda *args, **keys: pytest.fail("probed again"))
    again = run_ablation(replace(request_, probe=True))
    assert again.record == result.record
    assert "exchange cost" not in run_ablation(request_).tables[0].columns
    shutil.rmtree(request_.out / "runs" / "full" / "seed-0" / "probe")
    untrained = run_ablation(replace(request_, probe=True, train=False))
    assert [row["probe"] is None for row in untrained.record["rows"]] == [True, False]
    assert untrained.record["runs"] == result.record["runs"]


def test_silent_and_covered_inputs_are_marked_beside_f1() -> None:
    inputs = [
        {"name": name, "costs": {"another": {"mean": mean}}}
        for name, mean in (("image", 0.2), ("memory", 0.0), ("similar", 0.001))
    ]
    probe = {"inputs": inputs, "silent": ["input memory", "loss report.image"], "covered": ["input similar"]}
    assert exchange_costs(probe) == "image +0.2000, memory +0.0000 (silent), similar +0.0010 (covered)"
    source = {"name": "cases", "of": "similar", "costs": {"another": {"mean": 0.0}}}
    of_source = {**probe, "sources": [source], "silent": ["source cases -> similar"]}
    assert exchange_costs(of_source).endswith(", cases -> similar +0.0000 (silent)")
    assert exchange_costs({"refused": "no decoder"}) == exchange_costs(None) == "-"


def test_the_notes_say_what_wrote_the_drafts(request_: AblationRequest) -> None:
    utility = Row("by utility", run_of="full", decoding=("kind=expected_utility",))
    rows = (
        Row("full"),
        Row("three beams", overrides=("decoding.num_beams=3",)),
        Row("same", "views averaged"),
        Row("drawn", overrides=("decoding.do_sample=true",)),
        Row("broken", overrides=("model.no_such_part=1",)),
        utility,
    )

    def record(*rows: Row) -> dict[str, Any]:
        table = Table(title="Drafts", reference=rows[0].label, rows=rows)
        return ablate.ablation_record(make_plan(replace(request_, rows=()), table), {}, {})

    def notes(record: dict[str, Any]) -> list[str]:
        return [note for note in ablate.ablation_tables(record)[0].notes if note.startswith("drafts")]

    assert notes(record(rows[0], rows[2], rows[4])) == ["drafts: own decoder, greedy"]
    several = record(*rows)
    assert notes(several) == [
        "drafts: own decoder, greedy (full, same); own decoder, 3 beams (three beams);"
        " own decoder, sampled (drawn); by utility (by utility)"
    ]
    for row in several["rows"]:
        del row["drafts"]
    assert notes(several) == [], "a record of an earlier version"


def test_runs_of_another_table_are_taken_over(
    finished: Path, request_: AblationRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Under another row's name, and a row whose configuration differs stays to be trained."""
    shutil.copytree(finished / "runs" / "full", tmp_path / "old" / "ours")
    monkeypatch.setattr(one_run_module, "train", lambda *arguments, **options: pytest.fail("trained again"))
    messages: list[str] = []
    request = replace(request_, train=False, reuse=(tmp_path / "old",))
    record = run_ablation(request, AblationWatch(say=messages.append)).record
    assert messages[0] == "2 of 4 runs are taken over"
    assert "model.views" in "".join(line for line in messages if "not taken over" in line)
    assert record["runs"] == {"planned": 4, "finished": 2, "failed": 0}
    expected = read_json(finished / "table.json")["rows"][0]["metrics"]["CIDEr"]
    assert record["rows"][0]["metrics"]["CIDEr"] == expected
    with pytest.raises(InputError, match="no such folder"):
        run_ablation(replace(request, reuse=(tmp_path / "nowhere",)))


def without_judgement(path: Path) -> list[dict[str, Any]]:
    """Predictions without what was said of the images: toy images are judged in child processes alone."""
    rows = [row for _, row in read_jsonl(path)]
    for row in rows:
        del row["warnings"], row["evidence"]["familiarity"]
    return rows


@pytest.mark.long
def test_parallel_is_serial(finished: Path, request_: AblationRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    messages: list[str] = []
    result = run_ablation(replace(request_, seeds=1, jobs=2), AblationWatch(say=messages.append))
    assert result.failed == 0
    assert [line[:5] for line in messages] == ["[1/2]", "[2/2]"]
    for row in ("full", "views-averaged"):
        actual, serial = (folder / "runs" / row / "seed-0" for folder in (request_.out, finished))
        assert without_times(read_json(actual / "scores.json")) == without_times(read_json(serial / "scores.json"))
        assert without_judgement(actual / "predictions.jsonl") == without_judgement(serial / "predictions.jsonl")


def test_a_report_waits_for_its_own_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row "long" outlasts "short", whose reports are written beside it."""
    events: list[str] = []

    class Process:
        def __init__(self, task: Task) -> None:
            self.name, self.polls = task.label, 6 if task.label == "long" else 1

        def poll(self) -> int | None:
            self.polls -= 1
            if self.polls:
                return None
            events.append(f"end {self.name}")
            return 0

    def start(task: Task, slot: int, jobs: int) -> ablate._Child:
        events.append(f"start {task.label}")
        return ablate._Child(Process(task), task, slot, io.BytesIO())  # type: ignore[arg-type]

    monkeypatch.setattr(ablate, "Dataset", SimpleNamespace(open=lambda path: None))
    monkeypatch.setattr(ablate, "build_cache", lambda dataset, **options: None)
    monkeypatch.setattr(ablate, "_start", start)
    monkeypatch.setattr(ablate, "_tell", lambda child, done, failed: None)
    monkeypatch.setattr(ablate, "_POLL_S", 0.0)
    trained = [Task(name, "baseline", "tiny", (), 0, "data", name) for name in ("long", "short")]
    reports = [
        replace(trained[0], label="both", folder="both", run="short", averaged=("long",)),
        replace(trained[0], label="of long", folder="of long", run="long"),
        replace(trained[1], label="of short", folder="of short", run="short"),
    ]
    ablate.run_parallel([*trained, *reports], 2, lambda task, scores: None, lambda task, why: None)
    assert events[:4] == ["start long", "start short", "end short", "start of short"]
    assert events.index("end of short") < events.index("end long") < events.index("start both")
    assert {line for line in events if line.startswith("end")} == {f"end {task.label}" for task in (*trained, *reports)}


def test_a_row_that_fails_is_reported_and_the_others_go_on(finished: Path, request_: AblationRequest) -> None:
    shutil.copytree(finished / "runs", request_.out / "runs")
    (request_.out / "runs" / "full" / "seed-1" / "weights.safetensors").write_bytes(b"changed")
    (request_.out / "runs" / "full" / "seed-1" / "scores.json").unlink()
    messages: list[str] = []
    result = run_ablation(
        replace(request_, rows=("full", "views averaged", "broken")), AblationWatch(say=messages.append)
    )
    assert result.failed == 2
    rows = {row["label"]: row for row in result.record["rows"]}
    assert "no field 'no_such_part'" in rows["broken"]["refused"]
    assert rows["full"]["seeds"]["finished"] == [0]
    assert "was changed after training" in rows["full"]["seeds"]["failed"][0]["reason"]
    assert rows["views averaged"]["seeds"]["finished"] == [0, 1]
    assert rows["views averaged"]["metrics"]["BLEU_4"]["p"] is None
    text = (request_.out / "table.md").read_text()
    assert "NOT COMPLETE: 3 of 4 runs, 1 failed" in text
    assert "no_such_part" in text


@pytest.mark.long
def test_it_goes_on_after_a_kill(request_: AblationRequest) -> None:
    """SIGTERM to the command in the middle of a run of its own process; then the same to the end."""
    overrides = (
        *OVERRIDES,
        "stages.report.epochs=30",
        "stages.report.select=last",
        "stages.report.checkpoint_every=5",
    )
    # Another process knows the real tables only.
    request = replace(request_, table="parts", rows=("full",), seeds=1, jobs=2, overrides=overrides)
    arguments = ["ablate", "baseline", str(request.dataset), *overrides, "--table", "parts", "--rows", "full"]
    arguments += ["--seeds", "1", "--jobs", "2", "--out", str(request.out)]
    command = [sys.executable, "-c", "from radweave.cli import main; main()", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True, text=True)
    folder = request.out / "runs" / "full" / "seed-0"
    until = time.monotonic() + 120
    while not list(folder.glob("checkpoints/report/step-*")):
        assert time.monotonic() < until
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    messages = process.communicate(timeout=120)[1]
    assert process.returncode == 128 + signal.SIGTERM
    assert "the same command goes on" in messages
    assert "--resume" in messages
    assert not (folder / "run.json").exists()
    assert "NOT COMPLETE: 0 of 1" in (request.out / "table.md").read_text()
    record = run_ablation(replace(request, jobs=1)).record
    assert record["runs"]["finished"] == record["rows"][0]["resumed"] == 1
    assert read_json(folder / "scores.json")["trained_steps"]["report"] == 90


def test_a_run_without_its_parent_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda process, number: sent.append((process, number)))
    one_run_module.stops_without_parent(os.getppid()).stage("report").step(1, 2, {})
    assert sent == []
    one_run_module.stops_without_parent(os.getppid() + 1).stage("report").step(1, 2, {})
    assert sent == [(os.getpid(), signal.SIGTERM)]


@pytest.mark.parametrize("changes", [{"meteor": True}, {"protocol": "ws"}])
def test_scores_of_another_way_of_scoring_are_not_taken(
    finished: Path, request_: AblationRequest, toy_dataset: Dataset, changes: dict[str, Any]
) -> None:
    shutil.copytree(finished / "runs", request_.out / "runs")
    task = make_plan(request_).tasks[0]
    known, other = (
        one_run_module.finished_scores(one, one.experiment(), toy_dataset) for one in (task, replace(task, **changes))
    )
    assert known is not None
    assert other is None


def test_the_plan(request_: AblationRequest) -> None:
    own = ("baseline:model.language_model.num_layers=1", "vdgen:model.no_such=1")
    request = replace(request_, rows=("full", "linear-plus-wide"), headline_seeds=3, overrides=(*OVERRIDES, *own))
    plan = make_plan(request)
    order = [(task.label, task.seed) for task in plan.tasks]
    wide = "Linear + wide"
    assert order == [("full", 0), ("full", 1), (wide, 0), (wide, 1), ("full", 2)]
    model = plan.rows[1].tasks[1].experiment().model.language_model
    assert (model.hidden_size, model.num_layers) == (48, 1)
    assert plan.rows[1].tasks[1].experiment().seed == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"table": "none"}, "one of parts, told, toy"),
        ({"overrides": ("data.input_sections=[indication]",)}, "no training study has this section"),
        ({"overrides": ("data.target=impression",)}, "no training study has the sections of this text"),
        ({"rows": ("nobody",)}, "the table has no such row"),
        ({"overrides": ("model.no_such=1",)}, "no field 'no_such'"),
        ({"method": "nobody"}, "no such method"),
        ({"overrides": ("nobody:model.views=average",)}, "no such method"),
        ({"protocol": "nobody"}, "no protocol"),
        ({"seeds": 0}, "1 or more"),
    ],
)
def test_a_request_that_cannot_be_planned(request_: AblationRequest, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run_ablation(replace(request_, **change))
    assert not request_.out.exists()


def test_a_target_that_was_not_imported_is_planned(request_: AblationRequest, tmp_path: Path) -> None:
    """Sections decide, as in training: the toy studies have findings."""
    folder = tmp_path / "other"
    shutil.copytree(request_.dataset, folder)
    rows = [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]
    (folder / "manifest.jsonl").write_text("".join(f"{json.dumps({**row, 'report': None})}\n" for row in rows))
    card = json.loads((folder / "dataset.json").read_text())
    (folder / "dataset.json").write_text(json.dumps({**card, "target": "impression", "manifest_sha256": None}))
    plan = make_plan(replace(request_, dataset=folder, overrides=(*OVERRIDES, "data.target=findings")))
    assert [row.refused for row in plan.rows] == [None, None]


def test_rows_that_report_with_a_refused_run_are_refused(request_: AblationRequest) -> None:
    request = replace(request_, method="diffvp", table="references", overrides=("data.input_sections=[indication]",))
    with pytest.raises(InputError, match="no training study has this section"):
        make_plan(replace(request, rows=(), preset="tiny-xray"))


def test_a_folder_of_another_table_or_of_other_runs_is_refused(finished: Path, request_: AblationRequest) -> None:
    shutil.copytree(finished, request_.out)
    with pytest.raises(InputError, match="another ablation"):
        run_ablation(replace(request_, table="parts", rows=("full",)))
    (request_.out / "table.json").unlink()
    result = run_ablation(replace(request_, rows=("full",), seeds=1, overrides=(*OVERRIDES, "data.max_tokens=39")))
    assert "a run of other options" in result.record["rows"][0]["seeds"]["failed"][0]["reason"]
    assert "a run of other options" in (request_.out / "table.md").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reference": "nobody"}, "no row that is run"),
        ({"metrics": ("BLEU",)}, "no such metric"),
        ({"rows": (Row("b"), Row("a", printed=True, paper={"IU": {"BLEU_4": 0.1}}))}, "no row that is run"),
        ({"rows": (Row("a"), Row("A"))}, "share a folder name"),
    ],
)
def test_a_table_is_checked(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Table(**{"title": "", "rows": (Row("a"),), "reference": "a", **change})


@pytest.mark.parametrize("preset", ["tiny", "small", "paper"])
def test_every_methods_tables_can_be_planned(toy_dataset: Dataset, tmp_path: Path, preset: str) -> None:
    """Every row of every table of every method builds its configuration, with a place for the weights it needs."""
    from radweave.methods import load_method, method_names

    for method in method_names():
        for name, table in getattr(load_method(method), "TABLES", {}).items():
            if name == "toy":
                continue
            weights = tuple(f"{row.slug}:{field}=/weights" for row in table.rows for field in row.needs)
            request = AblationRequest(method, toy_dataset.path, name, tmp_path, preset=preset, overrides=weights)
            plan = make_plan(request)
            refused = {row.row.label: row.refused for row in plan.rows if row.refused}
            # The toy studies have no indication, which is said before anything is trained.
            assert list(refused) == (["told the indication"] if name == "told" else []), refused
            assert [row.row.label for row in plan.rows if row.skipped and not row.row.printed] == []


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("repeated", [False, True])
def test_test_time_row_has_the_seeds_of_both_rows(request_: AblationRequest, trained: bool, repeated: bool) -> None:
    """There is nothing to report again of a seed that is not trained."""
    table = Table(
        title="Again",
        reference="full",
        rows=(
            Row("full", headline=trained),
            Row("by utility", run_of="full", decoding=("kind=expected_utility",), headline=repeated),
        ),
    )
    plan = make_plan(replace(request_, rows=(), seeds=2, headline_seeds=3), table)
    seeds = {row.row.label: [task.seed for task in row.tasks] for row in plan.rows}
    assert len(seeds["full"]) == (3 if trained else 2)
    assert len(seeds["by utility"]) == (3 if trained and repeated else 2)
    assert {*seeds["by utility"]} <= {*seeds["full"]}


WRITER = "model.language_model"
WITH_WEIGHTS = Table(
    title="Writers",
    reference="full",
    rows=(
        Row("full", headline=True, paper={"IU": {"BLEU_4": 0.2}}),
        Row(
            "Writer-1.5", overrides=(f"{WRITER}={{kind: pretrained, path: PATH}}",), needs={f"{WRITER}.path": "Writer"}
        ),
        Row("Another system", printed=True, paper={"IU": {"BLEU_4": 0.1}}),
        Row("A third", printed=True, paper={"IU": {"CIDEr": 0.3}}),
    ),
)


def test_a_row_that_needs_weights_is_skipped_until_they_are_given(request_: AblationRequest) -> None:
    request = replace(request_, rows=(), seeds=1)
    rows = {row.row.label: row for row in make_plan(request, WITH_WEIGHTS).rows}
    assert rows["Writer-1.5"].skipped == f"needs Writer (writer-1.5:{WRITER}.path=PATH)"
    assert rows["Writer-1.5"].tasks == rows["Another system"].tasks == ()
    # Given for all rows it would stand for any row's weights.
    with pytest.raises(InputError, match="needs Writer"):
        make_plan(replace(request, rows=("Writer-1.5",), overrides=(f"{WRITER}.path=/w",)), WITH_WEIGHTS)
    changed_request = replace(request, overrides=(*OVERRIDES[:-2], f"writer-1.5:{WRITER}.path=/weights"))
    rows = {row.row.label: row for row in make_plan(changed_request, WITH_WEIGHTS).rows}
    assert rows["Writer-1.5"].tasks[0].experiment().model.language_model.path == "/weights"
    assert "/weights" not in str(rows["full"].tasks[0].experiment())


def test_a_printed_row_shows_the_papers_numbers_alone(request_: AblationRequest) -> None:
    messages: list[str] = []
    request = replace(request_, rows=(), train=False)
    result = run_ablation(request, AblationWatch(say=messages.append), WITH_WEIGHTS)
    assert result.failed == 0
    assert result.record["runs"]["planned"] == 2
    assert [line for line in messages if "skipped" in line] == [
        f"Writer-1.5: skipped: needs Writer (writer-1.5:{WRITER}.path=PATH)"
    ]
    scores, paper, runs = result.tables[0], result.tables[-2], result.tables[-1]
    assert "Another system" not in [row[0] for row in (*scores.rows, *runs.rows)]
    assert [row for row in paper.rows if row[0] == "Another system: BLEU_4"] == [
        ("Another system: BLEU_4", DASH, DASH, "0.1000", "-0.1000")
    ]
    assert [row[0] for row in paper.rows if row[0].startswith(("Writer", "A third"))] == ["A third: CIDEr"]
    assert "Writer-1.5: needs Writer" in "".join(runs.notes)


@pytest.mark.parametrize("change", [{"overrides": ("a=1",)}, {"ablation": "x"}, {"needs": {"a": "b"}}, {"paper": {}}])
def test_a_printed_row_is_not_run(change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="a printed row"):
        Row(**{"label": "a", "printed": True, "paper": {"IU": {"BLEU_4": 0.1}}, **change})


def test_verb_prints_and_exits(finished: Path, request_: AblationRequest) -> None:
    shutil.copytree(finished / "runs", request_.out / "runs")
    arguments = ["ablate", "baseline", str(request_.dataset), *OVERRIDES, "--table", "toy", "--seeds", "2"]
    arguments += ["--out", str(request_.out), "--rows", "full,views averaged"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    assert "Difference to 'full'" in result.stdout
    repeated = CliRunner().invoke(app, [*arguments[:-1], "full,broken", "--json"])
    assert repeated.exit_code == 1
    assert json.loads(repeated.stdout)["rows"][1]["refused"]
