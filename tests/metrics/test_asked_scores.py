"""Scores of models that a user asks ``evaluate`` and ``compare`` for: values, rows, exit status, and where texts go."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from radweave.cli import evaluation as verbs
from radweave.core.errors import InputError
from radweave.metrics.catalogue import FURTHER_METRICS, METRICS
from radweave.metrics.radgraph import RadGraphReader
from radweave.metrics.result_tables import metric_title
from tests.metrics.judge_server import Reply, completion, serving
from tests.metrics.score_folders import (
    made_up_reports,
    write_bert,
    write_chexbert,
    write_roberta,
    write_srr,
    write_tagger,
)
from tests.radgraph_weights import write_radgraph

app = typer.Typer(pretty_exceptions_enable=False)
app.command("evaluate")(verbs.evaluate)
app.command("compare")(verbs.compare)
QUICK = ("--no-meteor", "--resamples", 20)


def invoked(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Random weights of every model that runs here."""
    home = tmp_path_factory.mktemp("weights")
    (home / "radcliq").mkdir()
    coefficients = {"radgraph": -2.0, "bertscore": -1.0, "sembscore": 0.5, "bleu_2": 3.0, "intercept": 4.0}
    (home / "radcliq" / "radcliq_v0.json").write_text(json.dumps(coefficients))
    return {
        "radgraph": write_radgraph(home / "radgraph"),
        "chexbert": write_chexbert(home / "chexbert"),
        "bertscore": write_roberta(home / "bertscore"),
        "radcliq": home / "radcliq",
        "rate-ner": write_tagger(home / "rate-ner"),
        "biolord": write_bert(home / "biolord"),
        "srr": write_srr(home / "srr"),
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Drafts of two systems for the same eight studies; the second ones are nearer to the references."""
    home, references = tmp_path_factory.mktemp("runs"), made_up_reports(8, seed=1, longest=12)
    others = made_up_reports(8, seed=2, longest=12)
    near = [f"{text} stable" if number % 2 else text for number, text in enumerate(references)]
    for name, drafts in (("a", others), ("b", near)):
        rows = zip(drafts, references, strict=True)
        lines = [
            json.dumps({"study_id": str(number), "hyp": hyp, "ref": ref}) for number, (hyp, ref) in enumerate(rows)
        ]
        (home / f"{name}.jsonl").write_text("\n".join(lines))
    return home / "a.jsonl", home / "b.jsonl"


def named(folders: dict[str, Path], *names: str) -> list[str]:
    return [part for name in names or folders for part in ("--weights", f"{name}={folders[name]}")]


OF_FOLDERS = tuple(key for key in FURTHER_METRICS if METRICS[key].weights and key not in ("GREEN", "CRIMSON"))


def test_compare_tests_every_score_of_named_weights(
    runs: tuple[Path, Path], folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [json.loads(invoked("evaluate", run, *QUICK, *named(folders), "--json").stdout)["corpus"] for run in runs]
    loaded: list[Path] = []
    read = RadGraphReader.__init__

    def counted(self: RadGraphReader, folder: Path, **settings: Any) -> None:
        loaded.append(folder)
        read(self, folder, **settings)

    monkeypatch.setattr(RadGraphReader, "__init__", counted)
    record = json.loads(invoked("compare", *runs, *QUICK, *named(folders), "--score", "temporal_F1", "--json").stdout)
    assert len(loaded) == 1, "both runs share a model"
    rows = {row["metric"]: row for row in record["comparisons"]}
    for key in OF_FOLDERS:
        a, b = (corpus[key]["value"] for corpus in values)
        assert (rows[key]["a"], rows[key]["b"]) == (pytest.approx(a), pytest.approx(b)), key
        assert rows[key]["difference"] == pytest.approx(b - a), key
        assert rows[key]["p_randomisation"] is not None, key
    assert "temporal_F1" in rows
    assert record["unavailable"] == {}
    assert rows["RadGraph_combined"]["difference"] > 0


@pytest.mark.parametrize("names", [("radgraph",), ("bertscore",), ("chexbert",), ("srr",), ("rate-ner", "biolord")])
def test_compare_shows_the_scores_of_named_weights(
    runs: tuple[Path, Path], folders: dict[str, Path], names: tuple[str, ...]
) -> None:
    printed = invoked("compare", *runs, *QUICK, *named(folders, *names)).stdout
    shown = {line.strip().split("  ")[0] for line in printed.splitlines() if line.startswith("  ")}
    for key in OF_FOLDERS:
        assert (metric_title(key) in shown) == (set(METRICS[key].weights) <= set(names)), key
    assert len(printed.splitlines()) <= 40


def test_compare_shows_the_scores_of_named_weights_over_seeds(
    runs: tuple[Path, Path], folders: dict[str, Path], tmp_path: Path
) -> None:
    for name, run in zip("ab", runs, strict=True):
        (tmp_path / name).mkdir()
        for seed in range(2):
            (tmp_path / name / f"{seed}.jsonl").write_text(
                run.read_text().replace('"hyp": "', f'"hyp": "{"clear " * seed}')
            )
    arguments = ("compare", "--seeds", tmp_path / "a", tmp_path / "b", "--no-meteor", "--suite", "rexrank")
    printed = invoked(*arguments, *named(folders, "chexbert")).stdout
    assert "  SembScore" in printed
    assert "needs RadGraph" in printed
    assert len(printed.splitlines()) <= 40


def test_compare_says_what_a_suite_lacks(runs: tuple[Path, Path], folders: dict[str, Path]) -> None:
    result = invoked("compare", *runs, *QUICK, "--suite", "rexrank", *named(folders, "bertscore"))
    assert result.exit_code == 0, "a suite asks for no weights by name"
    printed = " ".join(result.stdout.split())
    assert printed.count("--weights chexbert=FOLDER") == 1
    assert "RadGraph, 1/RadCliQ-v1: needs RadGraph: --weights radgraph=FOLDER" in printed
    assert "BERTScore" in printed
    assert len(result.stdout.splitlines()) <= 40
    whole = invoked("compare", *runs, *QUICK, "--suite", "rexrank", "--all").stdout
    assert "needs RadGraph" in " ".join(whole.split())


@pytest.mark.parametrize("verb", ["evaluate", "compare"])
def test_weights_and_scores_that_are_named_and_missing_end_with_an_error(
    verb: str, runs: tuple[Path, Path], folders: dict[str, Path], tmp_path: Path
) -> None:
    """The results are written all the same."""
    plain = (verb, *runs, *QUICK)
    file = "evaluation.json" if verb == "evaluate" else "comparison.json"
    for number, (asked, said) in enumerate(
        (
            (("--weights", f"chexbert={tmp_path / 'none'}"), "weights of chexbert: asked for and not there: "),
            (("--score", "RadCliQ_v1"), "RadCliQ_v1: asked for and not there: needs RadGraph"),
            (("--score", "GREEN"), "GREEN: asked for and not there: needs GREEN's language model"),
        )
    ):
        result = invoked(*plain, *asked, "--out", tmp_path / f"out{number}")
        assert result.exit_code == 2
        assert result.stderr.startswith(f"error: {said}"), result.stderr
        assert len(result.stderr.splitlines()) == 1
        assert "BLEU" in result.stdout
        assert (tmp_path / f"out{number}" / file).is_file()
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in folders["bertscore"].iterdir():
        if path.suffix != ".tsv":
            (bare / path.name).write_bytes(path.read_bytes())
    met = invoked(*plain, "--weights", f"bertscore={bare}")
    assert (met.exit_code, met.stderr) == (0, ""), "one score of the folder is there"
    assert "BERTScore_raw" in met.stdout or "not rescaled" in met.stdout
    unmet = invoked(*plain, "--weights", f"bertscore={bare}", "--score", "BERTScore", "--json")
    assert unmet.exit_code == 2
    assert "distilroberta-base.tsv" in unmet.stderr
    json.loads(unmet.stdout)


GREEN = "[Explanation]:\nx\n\n[Clinically Significant Errors]:\n(a) False report: 1. x\n\n[Matched Findings]:\n1. a\n"


def test_the_endpoint_counts_errors_of_both_runs_and_of_no_floor(runs: tuple[Path, Path]) -> None:
    def reply(_: int, __: dict[str, Any]) -> Reply:
        return 200, {}, completion(GREEN)

    with serving(reply) as server:
        options = ("--score", "GREEN", "--judge", server.url, "--judge-model", "m", "--judge-limit", 0, "--json")
        record = json.loads(invoked("compare", *runs, "--floors", *QUICK, *options).stdout)
        assert len(server.requests) == 16
    assert {row["run"] for row in record["comparisons"] if row["metric"] == "GREEN"} == {"b"}
    assert "judge" not in record


@pytest.mark.parametrize("verb", ["evaluate", "compare"])
def test_reports_leave_this_machine_only_where_that_is_said(
    verb: str,
    runs: tuple[Path, Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    far = ("--score", "GREEN", "--judge", "http://gpu-7.cluster.invalid/v1", "--judge-model", "m")
    plain = (verb, *runs, *QUICK, *far, "--out", tmp_path / "out")
    with pytest.raises(InputError, match=r"judge.*leave this machine .*gpu-7\.cluster\.invalid.*--allow-remote"):
        invoked(*plain)
    assert not (tmp_path / "out").exists()
    asked: list[str] = []

    def send(self: Any, body: bytes) -> Any:
        from radweave.core.chat import ChatAnswer

        asked.append(self.host)
        return ChatAnswer(GREEN)

    monkeypatch.setattr("radweave.core.chat.HttpChat.send", send)
    limit = ("--judge-limit", 0) if verb == "compare" else ()
    with caplog.at_level(logging.WARNING):
        assert invoked(*plain, "--allow-remote", *limit).exit_code == 0
    assert set(asked) == {"gpu-7.cluster.invalid"}
    said = [record.message for record in caplog.records if "leave this machine" in record.message]
    assert said == ["data of patients leave this machine for gpu-7.cluster.invalid, not encrypted (allow_remote=true)"]
