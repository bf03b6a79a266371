"""The benchmark on the toy data: pages, failing methods, going on after a stop, and runs that are taken over or not."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.stats import ttest_ind

from radweave.core.errors import InputError
from radweave.core.json_files import read_json, write_json
from radweave.data.dataset import Dataset
from radweave.drafting.writer import PRIOR_UNUSED
from radweave.engine.restore import restore
from radweave.experiments.ablate import make_plan
from radweave.experiments.bench import BenchRequest, BenchResult, run_bench
from radweave.experiments.bench_pages import (
    PANELS,
    _common_cost,
    cost_plot,
    draw_again,
    publish,
    score_plot,
    write_pages,
)
from radweave.experiments.bench_results import (
    BEST_ELSE_PRIOR,
    BEST_OTHER_ELSE_PRIOR,
    DRAWS,
    OWN_ELSE_PRIOR,
    Contrast,
    Scoring,
    SystemScores,
    _against_each,
    best_untold,
    choice_table,
    compare,
    difference,
    duration,
    else_prior_runs,
    identical_drafts,
    joined_rows,
    metrics_to_test,
    read_run,
    read_terms,
    rows_of_same_decoding,
    score_system,
    set_results,
)
from radweave.experiments.bench_results import count as counted
from radweave.experiments.bench_suite import (
    JOINING,
    UNTOLD,
    UPDATES,
    UTILITY,
    check_sets,
    checked_methods,
    lacks_pace,
    overrides_of,
    pace_task,
    plan_set,
    preset_for,
    printed,
    settings_of,
)
from radweave.experiments.bench_tables import (
    comparison_tables,
    evidence_table,
    honesty_table,
    paper_table,
    prior_tables,
    probe_table,
    provenance,
    score_tables,
    short_comparison,
    short_table,
    training_time,
    trust_table,
)
from radweave.experiments.bench_terms import UNLEARNED, terms_of, unequal_terms
from radweave.experiments.one_run import (
    REUSED,
    Task,
    finished_scores,
    known_probe,
    lacks_probe,
    named_statistics,
    run_task,
    take_over,
)
from radweave.experiments.probe import probe
from radweave.labels import get_labeler
from radweave.methods import method_names, resolve
from radweave.methods.tables import Row, Table
from radweave.metrics.honesty import MissedRow
from radweave.metrics.pairs import Pair
from radweave.metrics.significance import holm
from radweave.metrics.statistics import cluster_index, resampled_weights
from radweave.metrics.tables import DASH
from radweave.phantom.study import PhantomOptions, write_phantom_dataset
from tests.toys import TOY_OVERRIDES, TOY_SIZES, rewrite_card, write_followed_dataset

pytestmark = pytest.mark.long

Finished = tuple[BenchRequest, BenchResult, list[str]]
"""A benchmark, its result and what it said."""

OVERRIDES = (
    *(option for option in TOY_OVERRIDES if not option.startswith("stages")),
    *(
        f"baseline:{option}"
        for option in (*TOY_SIZES["baseline"], "stages.report.epochs=2", "stages.report.select=loss")
    ),
    # One that cannot be built, and one that fails once it runs.
    "vdgen:model.no_such_part=1",
    "dast:data.label_set=ct18",
)


def request_for(dataset: Dataset, out: Path, **changes: object) -> BenchRequest:
    request = BenchRequest(
        out=out,
        data={"xray": dataset.path},
        sets=("xray",),
        methods=("baseline",),
        seeds=2,
        jobs=2,
        overrides=OVERRIDES,
    )
    return replace(request, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def finished(toy_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The baseline at two seeds beside a method that is refused and one that fails. Do not change it; copy it first."""
    request = request_for(toy_dataset, tmp_path_factory.mktemp("bench") / "out", methods=("vdgen", "dast"))
    messages: list[str] = []
    return request, run_bench(request, messages.append), messages


def tasks_of(request: BenchRequest, out: Path) -> list[Task]:
    suite = plan_set(replace(request, out=out), "xray", request.data["xray"])
    return [task for task in make_plan(suite.request, suite.table).tasks if task.method == "baseline" and not task.run]


def test_pages_have_the_measured_values(finished: Finished) -> None:
    request, result, _ = finished
    folder = request.out / "results"
    assert result.page == folder / "benchmark.md"
    names = {path.name for path in folder.iterdir()}
    pictures = {"benchmark_xray_scores.png", "benchmark_xray_cost.png", "benchmark_xray_probe_baseline.html"}
    assert names == {"benchmark.md", "benchmark.json", "benchmark_xray.md", *pictures}
    record = read_json(folder / "benchmark.json")["sets"]["xray"]
    scores = [read_json(request.out / "xray" / "runs" / "baseline" / f"seed-{n}" / "scores.json") for n in (0, 1)]
    actual = record["scores"]["full"]["baseline"]["ROUGE_L"]
    assert actual["values"] == pytest.approx([run["metrics"]["ROUGE_L"] for run in scores])
    assert actual["mean"] == pytest.approx(np.mean(actual["values"]))
    low, high = actual["interval"]
    assert low <= actual["mean"] <= high
    assert record["dataset"]["fingerprint"] == Dataset.open(request.data["xray"]).fingerprint()
    page = (folder / "benchmark_xray.md").read_text()
    cost = record["costs"]["baseline"]
    for text in (record["dataset"]["fingerprint"], cost["config"], scores[0]["code"], "protocol r2gen_iu_60"):
        assert text in page
    assert "floor: nearest training image" in page
    assert cost["parameters"] >= cost["trainable"] >= cost["trainable_report"] > 0
    assert cost["whole"] == cost["runs"] == 2
    assert cost["cpu_s"] > 0
    # Python with torch alone takes more than 100 MB.
    assert cost["peak_memory"] > 1e8
    assert not lacks_pace(result.sets["xray"].costs["baseline"])


def test_the_probe_of_the_first_seed_is_on_the_page(finished: Finished, toy_dataset: Dataset) -> None:
    request, result, _ = finished
    runs = request.out / "xray" / "runs"
    assert [path.parent.name for path in sorted(runs.glob("*/*/probe"))] == ["seed-0"], "drafts again are not probed"
    computed = json.loads(json.dumps(probe(restore(runs / "baseline" / "seed-0"), toy_dataset.path).to_json()))
    record = read_json(request.out / "results" / "benchmark.json")["sets"]["xray"]["probes"]
    assert {**record["baseline"], "seconds": 0} == {**computed, "seconds": 0}
    table = probe_table(result.sets["xray"].record)
    assert table is not None
    (row,) = table.rows
    cost = computed["inputs"][0]["costs"]["another"]
    assert computed["covered"] == [], "an only input has nothing that covers it"
    carries = "no" if "input image" in computed["silent"] else "yes"
    assert row[:4] == ("baseline", "image", f"{cost['mean']:+.4f} [{cost['low']:+.4f}, {cost['high']:+.4f}]", carries)
    assert row[4:6] == (f"{computed['f1']:.3f}", f"{computed['inputs'][0]['drafts']['f1']:.3f}")
    page = (request.out / "results" / "benchmark_xray.md").read_text()
    assert "### Probe" in page
    assert "Exchange probes: [baseline](benchmark_xray_probe_baseline.html)" in page
    copied = (request.out / "results" / "benchmark_xray_probe_baseline.html").read_text()
    assert copied == (runs / "baseline" / "seed-0" / "probe" / "index.html").read_text()


def test_silent_parts_are_named_in_the_table_of_probes() -> None:
    def one(name: str, mean: float, low: float | None, reason: str = "") -> dict[str, Any]:
        cost = {"mean": mean, "low": low, "high": None if low is None else mean + 0.01}
        return {"name": name, "silent": reason, "costs": {"another": cost}, "alone": {"mean": 0.03}, "drafts": None}

    some = [
        one("image", 0.2, 0.1),
        one("memory", 0.001, -0.1),
        one("similar", 0.002, -0.1),
        one("age", 0.0, None, "seldom told"),
    ]
    silent = ["input memory", "source cases -> similar", "loss report.contrast", "loss vision.spread"]
    rows = [
        {
            "label": "a",
            "probe": {
                "f1": 0.25,
                "inputs": some,
                "silent": silent,
                "covered": ["input similar"],
                "sources": [{**one("cases", 0.002, -0.1), "of": "similar"}],
            },
        },
        {"label": "kernels", "probe": {"refused": "it has no decoder"}},
        {"label": "c", "probe": None},
    ]
    table = probe_table({"rows": rows})
    assert table is not None
    tail = ("0.250", DASH, "report.contrast, vision.spread")
    assert table.rows == (
        ("a", "image", "+0.2000 [+0.1000, +0.2100]", "yes", *tail),
        ("a", "memory", "+0.0010 [-0.1000, +0.0110]", "no", *tail),
        ("a", "similar", "+0.0020 [-0.1000, +0.0120]", "covered (alone +0.0300)", *tail),
        ("a", "age", "+0.0000", "need not: seldom told", *tail),
        ("a", "cases -> similar", "+0.0020 [-0.1000, +0.0120]", "no", *tail),
    )
    assert "kernels: it has no decoder" in table.notes
    assert probe_table({"rows": rows[2:]}) is None


def test_a_method_without_a_decoder_is_probed_once_and_says_why_it_has_no_figures(
    toy_dataset: Dataset, tmp_path: Path
) -> None:
    overrides = (*TOY_SIZES["kernels"], "data.max_tokens=40")
    task = Task("kernels", "kernels", "tiny", overrides, 0, str(toy_dataset.path), str(tmp_path / "run"), probe=True)
    run_task(task)
    record = known_probe(task, toy_dataset)
    assert record is not None
    assert "no decoder" in record["refused"]
    assert not lacks_probe(task, toy_dataset)


def test_earlier_sets_stay_on_the_first_page(finished: Finished, tmp_path: Path) -> None:
    _, result, _ = finished
    facts = {"machine": "another one", "sessions": 1, "wall_s": 7200.0}
    write_pages(result.sets, tmp_path, facts)
    path = tmp_path / "benchmark.json"
    record = read_json(path)
    record["sets"]["ct"] = record["sets"].pop("xray")
    write_json(path, record)
    page = write_pages(result.sets, tmp_path, facts | {"machine": "this one"}).read_text()
    assert list(read_json(path)["sets"]) == ["ct", "xray"]
    assert page.count("Machine: another one.") == 1
    assert page.count("Machine: this one.") == 1
    assert "(benchmark_ct.md)" in page
    assert "(benchmark_xray.md)" in page
    write_json(path, record | {"version": 1})
    assert "benchmark_ct.md" not in write_pages(result.sets, tmp_path, facts).read_text()


def test_the_published_page_is_the_summary_alone(finished: Finished, tmp_path: Path) -> None:
    request, _, _ = finished
    page = publish(request.out / "results", tmp_path / "docs")
    (row,) = re.findall(
        r"### Differences: phantom radiographs\n.*?(\| baseline, by utility \|[^\n]*)", page.read_text(), re.S
    )
    assert re.search(r"[+-]\d\.\d{3} \[.*\]; p Holm ", row)
    names = {path.name for path in page.parent.iterdir()}
    assert names == {"benchmark.md", "benchmark_xray_scores.png", "benchmark_xray_cost.png"}
    text = page.read_text()
    assert "| baseline, by utility |" in text
    assert "benchmark_xray.md" not in text
    assert text.count("- NOT equal, drafts:") == 1, "below the first table of the set alone"
    assert "benchmark_xray.md" in (request.out / "results" / "benchmark.md").read_text()
    with pytest.raises(InputError, match=r"holds no benchmark\.json"):
        publish(tmp_path / "none", tmp_path / "docs")


def test_every_run_also_drafts_by_expected_utility(finished: Finished) -> None:
    """With the same weights, beside its own decoding; its costs are those of the run."""
    request, result, _ = finished
    results = result.sets["xray"]
    assert list(results.full) == ["baseline", "baseline, by utility"]
    assert list(results.costs) == ["baseline"]
    assert results.costs_of("baseline, by utility") == (results.costs["baseline"],)
    place = request.out / "xray" / "runs" / "baseline-by-utility" / "seed-0"
    assert not (place / "weights.safetensors").exists()
    rows = [json.loads(line) for line in (place / "predictions.jsonl").read_text().splitlines()]
    assert all("expected_utility" in row["evidence"] for row in rows)
    assert all(name in results.to_floors for name in ("nearest training image", "constant report, best for findings"))
    page = (request.out / "results" / "benchmark_xray.md").read_text()
    assert "Difference to the constant report, best for findings" in page
    alone = plan_set(replace(request, utility=False), "xray", request.data["xray"])
    assert [row.label for row in alone.table.rows] == ["baseline", "vdgen", "dast"]


def test_methods_that_fail_are_named_and_counted(finished: Finished) -> None:
    request, result, messages = finished
    assert result.failed == 2 * (1 + 2), "each with its own decoding and by expected utility"
    page = (request.out / "results" / "benchmark.md").read_text()
    assert "refused: vdgen" in page
    assert "no_such_part" in page
    assert "failed: dast, seed 1" in page
    assert "NOT COMPLETE: 4 of 8 runs, 4 failed, 0 to come" in page
    assert sum("FAILED" in line for line in messages) == 4


def test_a_row_whose_run_has_no_scores_of_its_own_stands_without_costs(finished: Finished, tmp_path: Path) -> None:
    """The run is trained, and its own drafts failed; those by utility did not."""
    _, result, _ = finished
    record = json.loads(json.dumps(result.sets["xray"].record))
    next(row for row in record["rows"] if row["label"] == "baseline")["seeds"]["finished"] = []
    results = set_results(result.sets["xray"].suite, record)
    assert list(results.full) == ["baseline, by utility"]
    assert results.costs_of("baseline, by utility") == ()
    assert results.terms["baseline, by utility"]["encoders"] == "1"
    assert short_table(results).rows[0][-2:] == (DASH, DASH)
    page = write_pages({"xray": results}, tmp_path / "pages", {"machine": "m", "sessions": 1, "wall_s": 1.0})
    assert "| baseline, by utility |" in page.read_text()


def test_texts_of_real_data_stay_beside_the_runs(finished: Finished) -> None:
    request, _, _ = finished
    assert "toy" in (request.data["xray"] / "dataset.json").read_text()
    sample = (request.out / "xray" / "benchmark_xray_samples.md").read_text()
    assert "**Reference.**" in sample
    pages = list((request.out / "results").glob("*.md"))
    assert sorted(page.name for page in pages) == ["benchmark.md", "benchmark_xray.md"]
    assert all("BLEU_4" in page.read_text() or "BLEU-4" in page.read_text() for page in pages)
    for page in pages:
        assert "There is an opacity" not in page.read_text()
        assert "**Reference.**" not in page.read_text()
        assert "_samples.md" not in page.read_text()


def test_nothing_is_done_twice(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    request, result, _ = finished
    monkeypatch.setattr(
        "radweave.experiments.ablate.run_parallel", lambda tasks, *rest: None if not tasks else pytest.fail("runs")
    )
    messages: list[str] = []
    without = run_bench(replace(request, methods=("baseline",), probe=False))
    assert probe_table(without.sets["xray"].record) is None
    repeated = run_bench(replace(request, methods=("baseline",)), messages.append)
    assert repeated.failed == 0
    assert probe_table(repeated.sets["xray"].record) == probe_table(result.sets["xray"].record)
    assert "xray: 4 of 4 runs are done already" in messages
    own, oracle = (actual.sets["xray"].full["baseline"].values for actual in (repeated, result))
    assert own == oracle
    assert len((request.out / "sessions.jsonl").read_text().splitlines()) == 3


def test_the_same_runs_are_taken_over(finished: Finished, tmp_path: Path, toy_dataset: Dataset) -> None:
    request, result, _ = finished
    tasks = tasks_of(request, tmp_path / "new")
    # The hash of the configuration is of another version; the configuration itself is the same.
    shutil.copytree(request.out / "xray" / "runs", tmp_path / "old")
    scores = tmp_path / "old" / "baseline" / "seed-0" / "scores.json"
    record = read_json(scores)
    write_json(scores, {**record, "identity": {**record["identity"], "config": "older"}})
    reused = take_over(tasks, toy_dataset, [tmp_path / "old"])
    assert (reused.taken, reused.refused) == (2, [])
    for task in tasks:
        assert finished_scores(task, task.experiment(), toy_dataset) is not None
        assert (task.path / REUSED).is_file()
        source = tmp_path / "old" / "baseline" / task.path.name
        assert (task.path / "weights.safetensors").read_bytes() == (source / "weights.safetensors").read_bytes()
        assert not lacks_probe(task, toy_dataset)
    first = tasks[0].path / "probe" / "probe.json"
    assert known_probe(tasks[0], toy_dataset) == read_json(first)
    for name in ("weights", "data", "at_test", "implementation"):
        whole = read_json(first)
        write_json(first, {**whole, name: "another"})
        assert lacks_probe(tasks[0], toy_dataset), f"a probe of another {name} is not the run's"
        write_json(first, whole)
    assert take_over(tasks, toy_dataset, [tmp_path / "old"]).taken == 0
    assert result.sets["xray"].costs["baseline"].reused == 0


@pytest.mark.parametrize("what", ["seed", "option", "weights", "data", "preprocessing", "card"])
def test_other_runs_are_not_taken_over(finished: Finished, tmp_path: Path, toy_dataset: Dataset, what: str) -> None:
    request, _, _ = finished
    shutil.copytree(request.out / "xray" / "runs" / "baseline" / "seed-0", tmp_path / "old" / "seed-0")
    task = tasks_of(request, tmp_path / "new")[0]
    run, card = tmp_path / "old" / "seed-0", tmp_path / "old" / "seed-0" / "run.json"
    dataset = toy_dataset
    if what == "seed":
        task = tasks_of(request, tmp_path / "new")[1]
    elif what == "option":
        task = replace(task, overrides=(*task.overrides, "stages.report.optimizer.learning_rate=0.5"))
    elif what == "weights":
        (run / "weights.safetensors").write_bytes(b"changed")
    elif what == "data":
        shutil.copytree(toy_dataset.path, tmp_path / "data")
        with (tmp_path / "data" / "manifest.jsonl").open("a") as file:
            file.write("\n")
        dataset = Dataset.open(tmp_path / "data")
    elif what == "preprocessing":
        rewrite_card(run, preprocessing=0)
    else:
        card.write_text("{}")
    reused = take_over([task], dataset, [tmp_path / "old"])
    assert reused.taken == 0
    assert not task.path.exists()
    reasons = {"option": "stages.report.optimizer.learning_rate", "weights": "SHA-256", "preprocessing": "images"}
    assert [reasons[what] in reason for reason in reused.refused] == [True] * (what in reasons)


def test_scores_of_other_predictions_do_not_come_along(
    finished: Finished, tmp_path: Path, toy_dataset: Dataset
) -> None:
    request, _, _ = finished
    shutil.copytree(request.out / "xray" / "runs" / "baseline" / "seed-0", tmp_path / "old" / "seed-0")
    path = tmp_path / "old" / "seed-0" / "predictions.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({**row, "hyp": row["ref"]}) + "\n" for row in rows))
    task = tasks_of(request, tmp_path / "new")[0]
    assert take_over([task], toy_dataset, [tmp_path / "old"]).taken == 1
    assert (task.path / "run.json").is_file()
    assert not (task.path / "scores.json").exists()


def test_the_interval_is_that_of_the_mean_over_seeds(finished: Finished, toy_dataset: Dataset) -> None:
    """Against a loop over resamples and seeds, and Holm's correction over all cells."""
    request, result, _ = finished
    patients = {study.study_id: study.patient_id for study in toy_dataset.studies()}
    scoring = Scoring("full", get_labeler("chexpert14"), (), patients)
    folders = [request.out / "xray" / "runs" / "baseline" / f"seed-{seed}" for seed in (0, 1)]
    runs = [read_run(folder, scoring) for folder in folders]
    system = score_system(runs, scoring)
    clusters = cluster_index(system.evaluations[0].patients)
    expected = []
    for weights in resampled_weights(clusters, DRAWS, 0):
        for draw in weights:
            seeds = [named_statistics(evaluation)["ROUGE_L"] for evaluation in system.evaluations]
            expected.append(np.mean([float(seed.value(draw @ seed.rows)) for seed in seeds]))
    np.testing.assert_allclose(system.draws["ROUGE_L"], expected, rtol=1e-12)
    assert system.interval("ROUGE_L") == pytest.approx(np.quantile(expected, [0.025, 0.975]))
    best = score_system([[replace(pair, hyp=pair.refs[0]) for pair in runs[0]]], scoring)
    tested = compare({"same": system, "best": best}, system, ("ROUGE_L",))
    assert tested["same", "ROUGE_L"].difference == 0
    assert tested["same", "ROUGE_L"].p_studies == 1
    assert tested["best", "ROUGE_L"].p_studies == pytest.approx(1 / (DRAWS + 1))
    assert tested["best", "ROUGE_L"].p_holm == pytest.approx(2 / (DRAWS + 1))
    assert tested["best", "ROUGE_L"].difference == pytest.approx(1 - (system.mean("ROUGE_L") or 0))
    # Too few studies to be sure of nothing: the loop above is what counts.
    assert result.sets["xray"].full["baseline"].draws["ROUGE_L"] == pytest.approx(expected)


def test_tables_name_what_is_unequal(finished: Finished) -> None:
    results = finished[1].sets["xray"]
    sentence = "NOT equal, drafts: own decoder: baseline; by utility: baseline, by utility"
    record = {"rows": [{"label": label, "metrics": {"METEOR": {"mean": 0.1, "std": None}}} for label in results.terms]}
    with_meteor = replace(results, record=record)
    differences = comparison_tables(results)
    assert differences
    paper = paper_table(replace(results, record={"rows": [{"label": "baseline", "paper": {"IU": {"CIDEr": 0.5}}}]}))
    assert paper is not None
    with_cider = (short_table(results), *score_tables(results)[:2], *differences, choice_table(results), paper)
    for table in with_cider:
        assert len([note for note in table.notes if note.startswith("CIDEr depends on the share")]) == 1, table.title
    for table in with_cider[:3]:
        for row in table.rows:
            cells = dict(zip(table.columns, row, strict=True))
            name = row[0].removeprefix("floor: ")
            system = {**results.floors, **results.full}[name]
            alone = [one.abnormal.corpus["CE_F1"].value for one in system.evaluations if one.abnormal]
            assert cells["F1 (abnormal)"] == f"{np.mean(alone):.3f}"  # type: ignore[arg-type]
            assert re.fullmatch(r"\d+\.\d{3}", cells["CIDEr (abnormal)"])
    others = (honesty_table(results), trust_table(results), evidence_table(results), choice_table(results))
    for table in (short_table(results), *score_tables(with_meteor), *differences, *others):
        assert sentence in table.notes, table.title
        assert not any("encoders" in note for note in table.notes)
    record = read_json(finished[0].out / "results" / "benchmark.json")["sets"]["xray"]
    assert record["terms"]["baseline, by utility"]["thresholds"] == "balanced"
    assert record["terms"]["baseline"]["thresholds"] == DASH
    with pytest.raises(InputError, match="terms of all its rows"):
        short_table(replace(results, terms={"baseline": results.terms["baseline"]}))


def test_drafts_that_two_methods_have_in_common_are_counted(finished: Finished) -> None:
    drafts = {"one": ["a b", "c", "d", "e"], "two": ["a  b", "c", "x", "x"], "three": ["x", "x", "x", "e"]}
    pairs = {
        name: [[Pair(f"s{place}", text, ("r",)) for place, text in enumerate(texts)]] for name, texts in drafts.items()
    }
    shares = identical_drafts(pairs, list(drafts))
    assert shares == {("one", "two"): 0.5, ("one", "three"): 0.25, ("two", "three"): 0.25}
    results = finished[1].sets["xray"]
    assert results.identical == {}, "one method by utility"
    (note,) = [
        note for note in short_table(replace(results, identical=shares)).notes if note.startswith("utility drafts")
    ]
    assert "the same on 25 % to 50 % of the studies (first seed); most: one and two" in note


def test_drafts_of_another_program_stand_beside_the_methods(finished: Finished, tmp_path: Path) -> None:
    """Two files of one name are two runs; they have floors, intervals and tests, and neither costs nor evidence."""
    request, result, _ = finished
    for number in (0, 1):
        lines = [f's{index:03d},"Opacity on the left, {number}."\n' for index in range(16, 22)]
        (tmp_path / f"{number}.csv").write_text("".join(["study_id,report\n", *lines]))
    drafts = tuple(f"maira | 2={tmp_path / f'{number}.csv'}" for number in (0, 1))
    suite = plan_set(replace(request, drafts=drafts), "xray", request.data["xray"])
    results = set_results(suite, result.sets["xray"].record)
    name, system = "maira | 2", results.full["maira | 2"]
    assert (len(system.evaluations), set(results.costs), set(results.folders)) == (
        2, {"baseline"}, {"baseline", "baseline, by utility"})  # fmt: skip
    assert system.evaluations[0].study_ids == results.full["baseline"].study_ids
    assert system.mean("BLEU_1") is not None
    assert results.to_reference[name, "CE_F1"].p_studies is not None
    assert all((name, "CE_F1") in tested for tested in results.to_floors.values())
    row = next(row for row in short_table(results).rows if row[0] == name)
    assert (row[1], row[-2:]) == ("2", (DASH, DASH))
    assert "[" in row[2], "an interval over studies"
    assert f"NOT equal, encoders: 1: baseline, baseline, by utility; unknown: {name}" in short_table(results).notes
    trust = next(row for row in trust_table(results).rows if row[0] == name)
    assert trust[1:3] == (DASH, DASH)
    page = write_pages({"xray": results}, tmp_path / "pages", {"machine": "m", "sessions": 1, "wall_s": 1.0})
    text = page.read_text()
    assert "maira \\| 2" in text
    assert "drafts of another program: 6 drafts, 0 of them empty" in text
    record = read_json(tmp_path / "pages" / "benchmark.json")["sets"]["xray"]
    assert [file["drafts"] for file in record["drafts"][name]] == [6, 6]
    sample = (request.out / "xray" / "benchmark_xray_samples.md").read_text()
    assert "Opacity on the left, 0." in sample
    assert str(tmp_path) not in text + sample
    assert cost_plot(record) == cost_plot(record | {"scores": {"full": {
        label: scores for label, scores in record["scores"]["full"].items() if label != name}}})  # fmt: skip
    write_pages(result.sets, tmp_path / "pages", {"machine": "m", "sessions": 1, "wall_s": 1.0})


def test_terms_are_those_of_the_row() -> None:
    weave, baseline = resolve("weave", "tiny", ()), resolve("baseline", "tiny", ())
    own, utility = terms_of(weave), terms_of(baseline, ("kind=expected_utility", "expected_utility.samples=3"))
    assert (own["encoders"], utility["encoders"]) == ("5", "1")
    assert own["thresholds"] == utility["thresholds"]
    assert utility["candidates"].startswith("3 drawn")
    alone = terms_of(baseline, (UTILITY,), evidence={"calibration": {"split": "val", "studies": 7}}, weighed=True)
    assert (alone["candidates"], alone["its own reports"]) == ("training reports alone", DASH)
    assert alone["calibrated on"] == "7 val studies"
    heard = {"own_reports": {"reports": 9}}
    assert terms_of(baseline, (UTILITY,), evidence=heard, weighed=True)["its own reports"] == "evidence of findings"
    both = terms_of(baseline, (UTILITY,), (baseline,), heard, weighed=True)
    assert both["its own reports"] == "no evidence of findings"
    assert terms_of(baseline, evidence=heard)["calibrated on"] == DASH
    assert terms_of(weave, unused=True)["earlier study"] == UNLEARNED
    untold = terms_of(weave, ("expected_utility.prior=none",))
    assert (own["earlier study"], untold["earlier study"]) == ("report and image", "no")
    unequal = unequal_terms({"weave": own, "baseline": utility, "again": utility}, ("weave", "baseline", "again"))
    assert "NOT equal, encoders: 5: weave; 1: baseline, again" in unequal
    assert not any("consistent" in sentence or "beams" in sentence for sentence in unequal)
    assert unequal_terms({"a": utility, "b": utility}, ("a", "b")) == ()


def test_rows_with_the_value_of_most_are_not_listed() -> None:
    own = {"weave": {"encoders": "5", "beams": "-"}} | {name: {"encoders": "1", "beams": "3"} for name in "abcd"}
    assert unequal_terms(own, own) == ("NOT equal, encoders: 5: weave; 1: the others",)
    own["e"] = {"encoders": "1", "beams": "1"}
    assert unequal_terms(own, own)[1] == "NOT equal, beams: 1: e; 3: the others that have one"
    few = {name: own[name] for name in ("weave", "a", "b", "c")}
    assert unequal_terms(few, few) == ("NOT equal, encoders: 5: weave; 1: a, b, c",)
    cooler = {name: {"temperature": "1.0" if name in "ab" else "0.7"} for name in "abcdefg"}
    assert unequal_terms(cooler, cooler) == ("NOT equal, temperature: 1.0: a, b; 0.7: the others",)
    cooler["g"] = {"temperature": "0.9"}
    assert unequal_terms(cooler, cooler) == ("NOT equal, temperature: 1.0: a, b; 0.9: g; 0.7: the others",)
    usual = {name: {"temperature": "0.7" if name == "a" else "1.0"} for name in "abcde"}
    assert unequal_terms(usual, usual) == ("NOT equal, temperature: 0.7: a; 1.0 by default",)


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("temperature=0.7", "temperature: 1.0 by default; 0.7: other"),
        ("num_beams=3", "beams: 1: one; 3: other"),
        ("unprompted_comparisons=keep", "unprompted_comparisons: remove by default; keep: other"),
        ("expected_utility.findings=3", "expected_utility.findings: 6.0 by default; 3.0: other"),
        ("expected_utility.own_wording=0.5", "expected_utility.own_wording: None by default; 0.5: other"),
        ("expected_utility.composites=false", "expected_utility.composites: True by default; False: other"),
    ],
)
def test_every_option_of_decoding_that_differs_is_named(option: str, named: str) -> None:
    baseline = resolve("baseline", "tiny", ())
    terms = {"one": terms_of(baseline, (UTILITY,)), "other": terms_of(baseline, (UTILITY, option))}
    assert unequal_terms(terms, terms) == (f"NOT equal, {named}",)
    own = {"one": terms_of(baseline), "other": terms_of(baseline, (option,))}
    acts = not option.startswith(("expected_utility", "temperature"))
    assert bool(unequal_terms(own, own)) == acts, "a greedy decoder has no utility and draws nothing"


def test_terms_name_descriptors_and_passes() -> None:
    baseline, kernels = resolve("baseline", "tiny", ()), resolve("kernels", "tiny", ())
    shorter = resolve("baseline", "tiny", ("stages.report.epochs=2",))
    terms = {
        "baseline": terms_of(baseline, (UTILITY,)),
        "shorter": terms_of(shorter, (UTILITY,)),
        "kernels": terms_of(kernels),
        "both": terms_of(baseline, (UTILITY,), (kernels,)),
        "weave": terms_of(resolve("weave", "tiny", ())),
        "scans": terms_of(resolve("weave", "tiny-ct", ())),
    }
    assert [one["encoders"] for one in terms.values()] == ["1", "1", "0", "1", "5", "5"]
    sentences = unequal_terms(terms, terms)
    assert "NOT equal, classical descriptors: no: baseline, shorter, scans; yes: kernels, both, weave" in sentences
    named = unequal_terms(terms, ("baseline", "shorter", "kernels", "both"))
    assert (
        "NOT equal, passes over the images: 14 for the encoder, 16 for reports: baseline, both;"
        " 14 for the encoder, 2 for reports: shorter" in named
    )


def test_rows_that_learned_nothing_of_priors_are_named(finished: Finished, tmp_path: Path) -> None:
    """Their drafts warn of it, and are those of the row that is told none."""
    _, result, _ = finished
    results, label = result.sets["xray"], "baseline, by utility"
    (first, *others) = results.folders[label]
    shutil.copytree(first, tmp_path / "seed-0")
    path = tmp_path / "seed-0" / "predictions.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[-1]["warnings"] = [PRIOR_UNUSED]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    terms = read_terms(results.suite, results.record, {label: (tmp_path / "seed-0", *others)})
    assert terms[label]["earlier study"] == UNLEARNED
    note = f"too few studies with a prior to learn from, drafts are as without: {label}"
    assert note in provenance(replace(results, terms=terms))
    assert note not in provenance(results)


def test_rows_with_the_same_drafts_are_printed_as_one(finished: Finished) -> None:
    one = [Pair("s1", "Clear.", ("Clear.",)), Pair("s2", "An effusion.", ("Clear.",))]
    other = [one[0], replace(one[1], hyp="Clear.")]
    rows = {"baseline": [one, other], "again": [one[::-1], other], "fewer": [one], "else": [other, one]}
    assert joined_rows(rows) == {"baseline": "baseline = again", "fewer": "fewer", "else": "else"}
    results = finished[1].sets["xray"]
    twice = replace(results, full={**results.full, "again": results.full["baseline"]}, printed={
        **results.printed, "baseline": "baseline = again"})  # fmt: skip
    for table in (short_table(twice), *score_tables(twice)):
        names = [row[0] for row in table.rows]
        assert table.title.startswith("METEOR") or "baseline = again" in names
        assert "again" not in names
    assert "the same drafts, one row: baseline = again" in short_table(twice).notes


@pytest.mark.parametrize(
    ("values", "mean", "std"),
    [((0.2, 0.4), 0.3, 0.02**0.5), ((0.2,), 0.2, None), ((0.2, None), None, None), ((None, None), None, None)],
)
def test_a_score_that_a_seed_lacks_has_no_mean(
    values: tuple[float | None, ...], mean: float | None, std: float | None
) -> None:
    system = SystemScores((), {"CIDEr": values}, {})
    assert system.mean("CIDEr") == (None if mean is None else pytest.approx(mean))
    assert system.std("CIDEr") == (None if std is None else pytest.approx(std))
    assert (system.mean("BLEU_4"), system.interval("CIDEr")) == (None, None)


def test_a_difference_holds_only_over_studies_and_seeds() -> None:
    tested = Contrast(0.1, 0.05, 0.15, 0.001, p_seeds=0.2, p_holm=0.01)
    assert not tested.holds
    assert replace(tested, p_seeds=0.01).holds
    assert not replace(tested, p_seeds=0.01, p_holm=0.06).holds
    assert replace(tested, p_seeds=None).holds
    assert difference(replace(tested, p_seeds=0.01)).endswith("*")
    assert difference(Contrast(-1e-9, None, None, None)) == "+0.000"


def test_it_goes_on_after_a_kill(toy_dataset: Dataset, tmp_path: Path) -> None:
    """SIGTERM to the command in the middle of a run; then the same to the end."""
    more = ("baseline:stages.report.epochs=30", "baseline:stages.report.checkpoint_every=5")
    overrides = [*OVERRIDES, *more, "baseline:stages.report.select=last"]
    out = tmp_path / "out"
    arguments = ["bench", str(out), "--xray", str(toy_dataset.path), "--sets", "xray", "--methods", "baseline"]
    command = [sys.executable, "-c", "from radweave.cli import main; main()", *arguments, "--seeds", "1", *overrides]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True, text=True)
    folder = out / "xray" / "runs" / "baseline" / "seed-0"
    until = time.monotonic() + 240
    while not list(folder.glob("checkpoints/report/step-*")):
        assert time.monotonic() < until
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    messages = process.communicate(timeout=240)[1]
    assert process.returncode == 128 + signal.SIGTERM
    assert "the same command goes on" in messages
    assert "--resume" in messages
    assert not (folder / "run.json").exists()
    request = request_for(toy_dataset, out, seeds=1, jobs=1, overrides=tuple(overrides))
    result = run_bench(request)
    cost = result.sets["xray"].costs["baseline"]
    assert (cost.runs, cost.whole, cost.cpu_s) == (1, 0, None)
    assert cost.updates_s is not None
    assert read_json(folder / "scores.json")["trained_steps"]["report"] == 60


def test_without_training_only_pages_are_written(toy_dataset: Dataset, tmp_path: Path) -> None:
    request = request_for(toy_dataset, tmp_path / "out", train=False)
    result = run_bench(request)
    assert result.failed == 0
    assert "no run is finished" in result.page.read_text()
    assert not (request.out / "xray" / "runs").exists()


def test_the_short_run_trains_every_stage_a_little(toy_dataset: Dataset, tmp_path: Path) -> None:
    task = tasks_of(request_for(toy_dataset, tmp_path), tmp_path)[0]
    experiment = pace_task(task, tmp_path / "pace").experiment()
    assert not experiment.data.keep_stages
    stages = experiment.named_stages()
    assert stages["report"].max_steps == UPDATES
    assert stages["report"].select == "last"
    assert stages["vision"].max_steps is None, "a stage of no epochs stays away"


def test_requests_that_cannot_be_planned(toy_dataset: Dataset, tmp_path: Path) -> None:
    request = request_for(toy_dataset, tmp_path / "out")
    for change, message in (
        ({"sets": ("nowhere",)}, "no such set"),
        ({"sets": ("iu",), "data": {}}, "must be given"),
        ({"methods": ("nobody",)}, "no such method"),
        ({"overrides": ("nobody:x=1",)}, "no such method"),
        ({"precision": "float7"}, "float7"),
        ({"headline_methods": ("nobody",)}, "--headline-methods"),
        ({"reuse": (tmp_path / "nowhere",)}, "no such folder"),
        ({"data": {"xray": tmp_path / "nowhere"}}, "no such dataset"),
        ({"drafts": (f"other={tmp_path / 'nowhere.csv'}",)}, "file is missing"),
    ):
        with pytest.raises(InputError, match=message):
            run_bench(replace(request, **change))  # type: ignore[arg-type]
    assert not (request.out / "xray").exists()


def test_a_phantom_of_another_turnover_is_refused(tmp_path: Path) -> None:
    """One that was drawn before is not mistaken for the set's."""
    options = PhantomOptions(image_size=32, lateral_share=0)
    write_phantom_dataset(tmp_path / "data" / "xray", modality="xray", num_studies=10, seed=0, options=options)
    with pytest.raises(InputError, match="another turnover"):
        run_bench(BenchRequest(tmp_path, sets=("xray",), studies={"xray": 10}, train=False))


def test_the_suite() -> None:
    check_sets(BenchRequest(Path("out")))
    assert checked_methods(("dast",)) == ("baseline", "dast")
    assert checked_methods(())[0] == "baseline"
    settings = ["a=1", "baseline:b=2", "ct:c=3", "xray:dast:d=4", "ct:baseline:e=5", "model={kind: x}"]
    assert overrides_of("ct", settings) == ["a=1", "baseline:b=2", "c=3", "baseline:e=5", "model={kind: x}"]
    assert overrides_of("xray", settings) == ["a=1", "baseline:b=2", "dast:d=4", "model={kind: x}"]
    assert preset_for("baseline", "tiny", "xray", []) == "tiny"
    assert preset_for("baseline", "tiny", "ct", []) == "tiny-ct"
    assert preset_for("dast", "tiny", "ct", []) == "tiny-ct"
    assert preset_for("diffrgennet", "tiny", "ct", []) is None
    assert preset_for("baseline", "paper", "ct", []) is None
    assert printed("dast")["IU X-Ray"]["BLEU_4"] == 0.187
    assert printed("baseline")["IU X-Ray"]["BLEU_4"] == 0.161


def test_first_of_two_printed_numbers_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later tables round it. What only they print is added, and no row but that of the whole method counts."""
    from radweave.experiments import bench_suite

    tables = {
        "main": Table(title="1", reference="full", rows=(
            Row("full", paper={"IU": {"BLEU_4": 0.187}}), Row("other", "a switch", paper={"IU": {"METEOR": 0.9}}),
        )),
        "later": Table(title="2", reference="full", rows=(
            Row("full", paper={"IU": {"BLEU_4": 0.19, "CIDEr": 0.5}, "MIMIC": {"BLEU_4": 0.1}}),
            Row("set", overrides=("a=1",), paper={"IU": {"ROUGE_L": 0.9}}),
        )),
    }  # fmt: skip
    methods = {"one": SimpleNamespace(TABLES=tables), "two": SimpleNamespace(TABLES={})}
    monkeypatch.setattr(bench_suite, "usable_methods", lambda: methods)
    assert bench_suite.printed("one") == {"IU": {"BLEU_4": 0.187, "CIDEr": 0.5}, "MIMIC": {"BLEU_4": 0.1}}
    assert bench_suite.printed("two") == {}


def test_every_method_has_rows_that_are_told_the_prior_and_rows_that_are_not(
    toy_dataset: Dataset, tmp_path: Path
) -> None:
    followed = write_followed_dataset(tmp_path / "followed")
    utility = "baseline, by utility"
    weave = ["weave", "weave, own decoder"]
    told = [f"{utility}, told the prior", f"{utility}, told the prior's report"]
    expected = (
        (followed, True, ("both", "report"), [utility, *told, *weave, UNTOLD, "weave, told the prior's report"]),
        (followed, True, (), [utility, *weave, UNTOLD]),
        (followed, False, ("both",), [*weave, UNTOLD]),
        (toy_dataset, True, ("both",), [utility, *weave]),
    )
    for dataset, by_utility, prior, rows in expected:
        request = request_for(dataset, tmp_path, methods=("weave",), utility=by_utility, prior=prior, overrides=())
        suite = plan_set(request, "xray", dataset.path)
        assert [row.label for row in suite.table.rows] == ["baseline", *rows]
        assert suite.request.out == request.out / "xray"
        assert suite.name == "xray"
    rows = plan_set(
        request_for(toy_dataset, tmp_path, methods=("weave", "kernels"), overrides=()), "xray", toy_dataset.path
    )
    own = {row.label: row for row in rows.table.rows if row.label.endswith("own decoder")}
    assert list(own) == ["weave, own decoder"], "kernels trains no decoder"
    assert (own["weave, own decoder"].run_of, own["weave, own decoder"].decoding) == ("weave", ("kind=likelihood",))
    with pytest.raises(InputError, match="may be told"):
        run_bench(request_for(toy_dataset, tmp_path / "out", prior=("everything",)))


def test_finished_runs_are_averaged_as_rows_of_their_own(toy_dataset: Dataset, tmp_path: Path) -> None:
    request = request_for(
        toy_dataset, tmp_path / "out", methods=("kernels",), seeds=1, ensemble=2, pace=False, probe=False
    )
    results = run_bench(request).sets["xray"]
    several, both = "baseline with 2 encoders, by utility", "baseline and kernels, by utility"
    assert {label: len(folders) for label, folders in results.folders.items()} == {
        "baseline": 2, "baseline, by utility": 1, "kernels": 1, several: 1, both: 1
    }  # fmt: skip
    assert [results.terms[label]["encoders"] for label in ("baseline", several, both)] == ["1", "2", "1"]
    assert [results.terms[label]["classical descriptors"] for label in ("baseline", both)] == ["no", "yes"]
    assert any("NOT equal, encoders" in note for note in short_table(results).notes)
    one, other = results.costs["baseline"], results.costs["kernels"]
    assert (one.cpu_s or 0) > 0
    assert results.costs_of(several) == (one, one)
    assert results.costs_of(both) == (one, other)
    apart = replace(results, printed={label: label for label in results.full})
    cells = {row[0]: row[-2:] for row in short_table(apart).rows}
    assert cells[several] == (counted(2 * one.parameters), training_time((one, one)))
    assert cells[several][1] == duration(2 * (one.cpu_s or 0))
    assert cells[both][0] == counted(one.parameters + other.parameters)
    record = read_json(request.out / "results" / "benchmark.json")["sets"]["xray"]
    assert record["runs_behind"][several] == ["baseline", "baseline"]
    titled = _common_cost(record, ("baseline", several))
    assert titled is not None
    assert titled[1][several] == pytest.approx(2 * titled[1]["baseline"])
    spent = [read_json(run / "scores.json") for runs in results.folders.values() for run in runs]
    assert len(spent) == 6
    everything = sum((scores["train_s"] or 0) + scores["generate_s"] for scores in spent)
    assert record["made"]["runs_s"] == pytest.approx(everything)
    terms = results.terms
    assert [terms[label]["candidates"] for label in ("baseline, by utility", "kernels")] == [
        "1 drawn by the method, and what it recalls", "training reports alone"
    ]  # fmt: skip
    assert terms["kernels"]["its own reports"] == DASH
    assert terms[several]["its own reports"] == "no evidence of findings"
    assert [terms[label]["calibrated on"].split()[1] for label in ("kernels", both)] == ["train", "val"]
    (note,) = {note for table in comparison_tables(results) for note in table.notes if note.startswith("no test betw")}
    assert note.endswith(f": baseline, by utility, kernels, {several}, {both}")
    shown = [json.loads(line) for line in (results.folders[both][0] / "predictions.jsonl").read_text().splitlines()]
    assert all(row["evidence"]["calibration"]["split"] == "val" for row in shown)
    with pytest.raises(InputError, match="several members"):
        run_bench(replace(request, ensemble=1))


def test_a_row_that_is_told_the_prior_has_the_copy_of_its_untold_one() -> None:
    """They draft alike where there is no prior; where there is one, the copy takes the draft's place."""
    untold = [Pair("s1", "x", ("r",), prior_report="p"), Pair("s2", "y", ("r",))]
    told = [replace(untold[0], hyp="z"), untold[1]]
    assert joined_rows({"a": [untold], "b": [told]}) == {"a": "a", "b": "b"}
    assert joined_rows({"a": else_prior_runs([untold]), "b": else_prior_runs([told])}) == {"a": "a = b"}


def test_priors_make_floors_and_tables_of_change(tmp_path: Path) -> None:
    """Of four test studies two have a prior, whose reports are copied in place of the method's drafts."""
    followed = write_followed_dataset(tmp_path / "followed")
    request = request_for(followed, tmp_path / "out", methods=(), seeds=2, jobs=2, utility=False, pace=False)
    results = run_bench(replace(request, methods=("baseline",))).sets["xray"]
    folder = results.folders["baseline"][0]
    rows = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    reports = {study.study_id: study.report for study in followed.studies()}
    assert {row["study_id"]: row["prior_report"] for row in rows} == {
        f"s{patient}_{visit}": reports[f"s{patient}_0"] if visit else None for patient in (10, 11) for visit in (0, 1)
    }
    assert results.best_else_prior == {BEST_ELSE_PRIOR: "baseline"}
    copied = results.floors[BEST_ELSE_PRIOR]
    # Of an opacity that stays and one that is new, the copy names one.
    assert copied.values["CE_with_prior_F1"] == (pytest.approx(2 / 3),) * 2
    assert copied.values["new_R"] == copied.values["changed_F1"] == (0.0, 0.0)
    own = results.full["baseline"]
    assert copied.values["CE_without_prior_F1"] == own.values["CE_without_prior_F1"]
    assert own.study_ids == copied.study_ids
    # Each table says who is told of priors and who is not.
    twice = replace(results, terms={"baseline": results.terms["baseline"], "told": {"earlier study": "its report"}},
                    printed={"baseline": "baseline", "told": "told"}, full={"baseline": own, "told": own})  # fmt: skip
    for table in prior_tables(twice):
        assert "NOT equal, earlier study: no: baseline; its report: told" in table.notes, table.title
    (note,) = [note for note in prior_tables(results)[0].notes if note.startswith(BEST_ELSE_PRIOR)]
    assert note.endswith("on these very studies, so that the floor is high rather than low")
    assert results.to_floors[BEST_ELSE_PRIOR]["baseline", "new_R"].difference == own.mean("new_R")
    assert ("baseline", "changed_F1") in results.to_floors["nearest training image"]
    values = [system.values["ROUGE_L"] for system in (own, copied)]
    tested = results.to_floors[BEST_ELSE_PRIOR]["baseline", "ROUGE_L"]
    assert tested.p_seeds == pytest.approx(ttest_ind(*values, equal_var=False).pvalue), "it has the method's seeds"
    assert results.to_floors["nearest training image"]["baseline", "ROUGE_L"].p_seeds is None
    page = (request.out / "results" / "benchmark_xray.md").read_text()
    for text in ("With and without a prior", "Change from the prior", "floor: baseline, else the prior's report"):
        assert text in page
    published = publish(request.out / "results", tmp_path / "docs").read_text()
    for text in ("With and without a prior: ph", "Change from the prior: ph", "baseline, else the prior's report",
                 f"findings F1, to the {BEST_ELSE_PRIOR}", "worse P"):  # fmt: skip
        assert text in published
    joint = replace(results, printed_copies={"baseline": "baseline = baseline, told the prior"})
    shown = [row[0] for row in prior_tables(joint)[0].rows if "else" in row[0]]
    assert shown == ["floor: baseline = baseline, told the prior, else the prior's report"]
    own_copy = results.to_floors[OWN_ELSE_PRIOR]
    assert own_copy["baseline", "new_R"].difference == own.mean("new_R")
    assert {"new_R", "resolved_R", "changed_F1"} <= set(metrics_to_test(results.full))
    record = read_json(request.out / "results" / "benchmark.json")["sets"]["xray"]
    assert record["else_prior"]["baseline"]["new_R"]["values"] == [0.0, 0.0]
    assert best_untold(results.else_prior, {"baseline": {"earlier study": "yes"}}) == {}
    joined = {
        "baseline": copied,
        f"{JOINING}, told no prior": replace(copied, values={**copied.values, "CE_F1": (1.0,)}),
    }
    assert best_untold(joined, {row: {"earlier study": "no"} for row in joined}) == {
        BEST_ELSE_PRIOR: f"{JOINING}, told no prior", BEST_OTHER_ELSE_PRIOR: "baseline"
    }  # fmt: skip
    both = replace(
        results,
        to_floors={**results.to_floors, BEST_OTHER_ELSE_PRIOR: results.to_floors[BEST_ELSE_PRIOR]},
        best_else_prior={BEST_ELSE_PRIOR: f"{JOINING}, told no prior", BEST_OTHER_ELSE_PRIOR: "baseline"},
    )
    table = next(one for one in comparison_tables(both) if one.title == f"Difference to the {BEST_OTHER_ELSE_PRIOR}")
    assert any(note.startswith(f"{BEST_OTHER_ELSE_PRIOR}: baseline, ") for note in table.notes)
    short = short_comparison(both)
    assert short is not None
    assert f"findings F1, to the {BEST_OTHER_ELSE_PRIOR}" in short.columns
    assert len([note for note in prior_tables(both)[0].notes if ": baseline, the one" in note]) == 1
    # An older run without the prior's reports takes them from the data.
    (folder / "predictions.jsonl").write_text(
        "".join(json.dumps({key: row[key] for key in row if key != "prior_report"}) + "\n" for row in rows)
    )
    again = set_results(results.suite, results.record)
    assert again.else_prior["baseline"].values == results.else_prior["baseline"].values


def test_systems_are_tested_against_the_joining_method(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the row by utility in its place: the baseline's own reports are tested against it."""
    _, result, _ = finished
    with_utility = "baseline, by utility"
    for module in ("results", "tables"):
        monkeypatch.setattr(f"radweave.experiments.bench_{module}.JOINING", with_utility)
    results = set_results(result.sets["xray"].suite, result.sets["xray"].record)
    own, oracle = results.full[with_utility], results.full["baseline"]
    tested = results.to_joining["baseline", "ROUGE_L"]
    assert tested.difference == pytest.approx((oracle.mean("ROUGE_L") or 0) - (own.mean("ROUGE_L") or 0))
    values = [system.values["ROUGE_L"] for system in (oracle, own)]
    assert tested.p_seeds == pytest.approx(ttest_ind(*values, equal_var=False).pvalue)
    (table,) = [table for table in comparison_tables(results) if table.title == f"Difference to {with_utility}"]
    assert [row[0] for row in table.rows] == ["baseline"]
    assert not result.sets["xray"].to_joining, "no such method took part"


def test_rows_are_tested_against_the_reference_s_row_of_the_same_decoding(finished: Finished) -> None:
    rows = (Row("baseline"), Row("baseline, by utility", run_of="baseline"), Row("weave"), Row("weave, own"),
            Row("baseline and kernels", run_of="baseline", average_with=("kernels",)))  # fmt: skip
    own, utility = {"drafts": "own decoder", "earlier study": "no"}, {"drafts": "by utility", "earlier study": "no"}
    told = utility | {"earlier study": "its report"}
    terms = dict(zip((row.label for row in rows), (own, utility, told, own, utility), strict=True))
    suite: Any = SimpleNamespace(table=SimpleNamespace(reference="baseline", rows=rows))
    expected = {"weave, own": "baseline", "baseline and kernels": "baseline, by utility"}
    rows_of = partial(rows_of_same_decoding, suite)
    assert rows_of(terms, with_priors=True) == expected, "no row of the baseline is told the prior's report"
    assert rows_of(terms, with_priors=False) == expected | {"weave": "baseline, by utility"}, "no study has a prior"
    terms["weave"] = utility | {"earlier study": UNLEARNED}
    assert rows_of(terms, with_priors=True) == expected | {"weave": "baseline, by utility"}, "it was not used"
    results = finished[1].sets["xray"]
    assert not results.to_same_decoding, "the baseline alone took part"
    several = replace(results, to_same_decoding={("weave, own", "CE_F1"): Contrast(0.1, 0.01, 0.2, 0.004, 0.02, 0.03)})
    (table,) = [
        table
        for table in comparison_tables(several)
        if table.title == "Difference to baseline, same decoding and prior"
    ]
    assert table.rows[0][0] == "weave, own"
    assert "+0.100 [+0.010, +0.200]" in " ".join(table.rows[0])
    short = short_comparison(several)
    assert short is not None
    assert "findings F1, to baseline, same decoding and prior" in short.columns


def test_every_system_is_tested_against_its_own_counterpart(finished: Finished) -> None:
    full = finished[1].sets["xray"].full
    own, utility = full["baseline"], full["baseline, by utility"]
    tested = _against_each({"a": own, "b": utility, "c": own}, {"a": utility, "b": own})
    metrics = {metric for _, metric in tested}
    assert {name for name, _ in tested} == {"a", "b"}, "c has no counterpart"
    difference = (own.mean("ROUGE_L") or 0) - (utility.mean("ROUGE_L") or 0)
    assert difference
    assert tested["a", "ROUGE_L"].difference == pytest.approx(difference)
    assert tested["b", "ROUGE_L"].difference == pytest.approx(-difference)
    assert len(tested) == 2 * len(metrics)
    p = ttest_ind(own.values["ROUGE_L"], utility.values["ROUGE_L"], equal_var=False).pvalue
    assert tested["a", "ROUGE_L"].p_seeds == tested["b", "ROUGE_L"].p_seeds == pytest.approx(p)
    assert [one.p_holm for one in tested.values()] == holm([one.p_studies for one in tested.values()])


def test_trust_table_has_the_values_of_evaluations(finished: Finished) -> None:
    results = finished[1].sets["xray"]
    table = trust_table(results)
    by_utility = dict(zip(table.columns, next(row for row in table.rows if row[0].endswith("utility")), strict=True))
    each = results.full["baseline, by utility"].evaluations
    errors = [one.heads.calibration_error for one in each if one.heads is not None]
    assert by_utility["calibration error"] == f"{np.mean(errors):.3f}"
    missed = [one.honesty.rows()["missed_findings_per_report"] for one in each]
    shares = [row.share_of_written_findings for row in missed if isinstance(row, MissedRow)]
    assert by_utility["missed"] == f"{np.mean(shares):.0%}".replace("%", " %")
    assert next(row for row in table.rows if row[0] == "baseline")[1] == DASH, "its own reports come without"


def test_tiny_presets_have_equal_passes() -> None:
    for modality in ("xray", "ct"):
        actual = {
            method: settings_of(experiment)["passes over the images"]
            for method in method_names()
            if (preset := preset_for(method, "tiny", modality, []))  # type: ignore[arg-type]
            and (experiment := resolve(method, preset, [])).named_stages()["report"].losses  # kernels trains nothing
        }
        assert len(actual) >= 2
        # DAST's encoder learns in its second stage too.
        assert actual.pop("dast") == "22 for the encoder, 16 for reports"
        assert set(actual.values()) == {"14 for the encoder, 16 for reports"}, actual


def test_one_precision_for_every_stage_that_trains(toy_dataset: Dataset, tmp_path: Path) -> None:
    request = replace(request_for(toy_dataset, tmp_path / "out"), overrides=(), precision="bfloat16")
    stages = tasks_of(request, tmp_path / "out")[0].experiment().named_stages()
    assert {name: stage.precision for name, stage in stages.items() if stage.epochs} == {
        "encoder": "bfloat16",
        "report": "bfloat16",
    }
    assert stages["language"].precision == "float32"


def test_more_seeds_go_to_the_methods_named(toy_dataset: Dataset, tmp_path: Path) -> None:
    request = request_for(toy_dataset, tmp_path / "out", methods=("dast", "vdgen"))
    request = replace(request, seeds=1, headline_seeds=3, headline_methods=("baseline", "dast"), overrides=())
    suite = plan_set(request, "xray", request.data["xray"])
    assert {row.label: row.headline for row in suite.table.rows if not row.run_of} == {
        "baseline": True,
        "dast": True,
        "vdgen": False,
    }


def test_benchmark_without_plotting_extra_trains_nothing(
    toy_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radweave.core.extras.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"radweave\[plots\]"):
        run_bench(request_for(toy_dataset, tmp_path / "out", methods=("baseline",)), print)
    assert not (tmp_path / "out").exists()


def test_figures_are_the_same_bytes_each_time(finished: Finished, tmp_path: Path) -> None:
    request, _, _ = finished
    first = (request.out / "results" / "benchmark_xray_scores.png").read_bytes()
    record = json.loads((request.out / "results" / "benchmark.json").read_text())["sets"]["xray"]
    assert score_plot(record) == first
    with Image.open(io.BytesIO(first)) as picture:
        width, height = picture.size
        # Dots and bars are there: blue, and the colours of floors; those with one figure hide each other.
        colours = {colour for _, colour in picture.convert("RGB").getcolors(width * height)}
    assert {(0, 114, 178), (213, 94, 0)} <= colours


def plot_record(floors: int = 5) -> dict[str, Any]:
    """The record of a set with two methods and some floors, as ``benchmark.json`` has it."""

    def scores(value: float) -> dict[str, Any]:
        ends = [value - 0.1, value + 0.1]
        one = {"values": [value, value + 0.02], "mean": value + 0.01, "interval": ends}
        return dict.fromkeys(PANELS, one)

    names = [f"a floor with quite a long name, number {number} of those that are blind" for number in range(floors)]
    return {
        "title": "toy",
        "dataset": {"fingerprint": "0" * 64},
        "scores": {"full": {name: scores(0.5 - 0.05 * place) for place, name in enumerate(["one", "two", *names])}},
        "evidence": {"one": {}, "two": {}},
        "runs_behind": {"one": ["one"], "two": ["one"]},
        "costs": {"one": {"cpu_s": 60.0}},
    }


def drawn(monkeypatch: pytest.MonkeyPatch, draw: Callable[[], object]) -> Any:
    """The figure that a plot is made of."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    retained = []
    monkeypatch.setattr("radweave.experiments.bench_pages.png", lambda figure: retained.append(figure) or b"")
    draw()
    (figure,) = retained
    FigureCanvasAgg(figure).draw()
    return figure


@pytest.mark.parametrize("plot", [score_plot, cost_plot])
def test_nothing_of_a_plot_is_cut_off_and_every_axis_is_named(
    plot: Callable[[Any], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A legend of five floors was wider than its figure."""
    figure = drawn(monkeypatch, lambda: plot(plot_record()))
    width, height = figure.get_size_inches() * figure.dpi
    box = figure.get_tightbbox(figure.canvas.get_renderer())
    assert box.x0 >= -0.1
    assert box.y0 >= -0.1
    assert box.x1 * figure.dpi <= width + 1
    assert box.y1 * figure.dpi <= height + 1
    for panel in figure.axes:
        assert "(" in panel.get_xlabel(), "the unit or the range"
        assert panel.get_ylabel() or figure.axes[0].get_yticklabels()[0].get_text() == "one"
    assert "95 %" in figure.get_supxlabel()


def test_floors_are_rows_with_intervals_and_distinct_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    figure = drawn(monkeypatch, lambda: score_plot(plot_record(7)))
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(names) == 9
    assert sum(name.startswith("floor:") for name in names) == 7
    for panel in figure.axes:
        dots = [line for line in panel.get_lines() if line.get_marker() not in ("None", None)]
        styles = {(line.get_color(), line.get_marker()) for line in dots[2:]}
        assert len(styles) == 7
        bars = [item for item in panel.collections if item.get_linewidths()[0] == 3]
        assert len(bars) == 9, "an interval for every method and floor"


def test_pictures_are_drawn_again_from_the_record_alone(finished: Finished, tmp_path: Path) -> None:
    request, _, _ = finished
    shutil.copy(request.out / "results" / "benchmark.json", tmp_path / "benchmark.json")
    for path in draw_again(tmp_path):
        assert path.read_bytes() == (request.out / "results" / path.name).read_bytes()
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match=r"holds no benchmark\.json"):
        draw_again(tmp_path / "none")
