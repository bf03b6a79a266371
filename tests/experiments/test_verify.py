"""``radweave bench --verify``: a run trained again has the scores of the table, and another one is told apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from radweave.core import provenance
from radweave.core.errors import InputError
from radweave.core.json_files import read_json, write_json
from radweave.data.dataset import Dataset
from radweave.experiments import verify as verify_module
from radweave.experiments.ablate import AblationRequest, run_ablation
from radweave.experiments.verify import TOLERANCE, Cell, Verified, find_cells, verify
from radweave.methods.tables import Row, Table
from radweave.metrics.catalogue import MAIN_METRICS
from tests.command_line import radweave
from tests.toys import TOY_SIZES

NAME = "xray/kernels/seed-0"


@pytest.fixture(scope="module")
def bench(toy_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A benchmark of one method and one of its runs, with a row that only drafts again."""
    out = tmp_path_factory.mktemp("bench")
    rows = (Row("kernels", method="kernels"), Row("by its own", run_of="kernels", decoding=("kind=likelihood",)))
    table = Table(title="one", rows=rows, reference="kernels", metrics=tuple(MAIN_METRICS), note="")
    request = AblationRequest(
        "kernels", toy_dataset.path, "bench", out / "xray", seeds=1, overrides=TOY_SIZES["kernels"]
    )
    assert not run_ablation(request, table=table).failed
    return out


@pytest.mark.long
def test_a_run_trained_again_has_the_same_scores_and_nothing_stays(bench: Path) -> None:
    before = sorted(path.relative_to(bench) for path in bench.rglob("*") if ".lock" not in path.name)
    lines: list[str] = []
    result = verify(bench, None, lines.append)
    assert lines == [f"{NAME}: trained again (--cell {NAME})"]
    assert result.cell.name == NAME
    assert any(value is not None for value in result.cell.scores.values())
    assert result.differences() == {}
    assert result.code == result.cell.code
    assert sorted(path.relative_to(bench) for path in bench.rglob("*") if ".lock" not in path.name) == before


def test_cells_are_the_trained_runs_and_others_are_refused(bench: Path, toy_dataset: Dataset, tmp_path: Path) -> None:
    assert list(find_cells(bench)) == [NAME]
    with pytest.raises(InputError, match=rf"--cell.*got xray/by-its-own/seed-0, expected {NAME}"):
        verify(bench, "xray/by-its-own/seed-0")
    with pytest.raises(InputError, match="holds no finished run"):
        find_cells(tmp_path)
    table = read_json(bench / "xray" / "table.json")
    write_json(tmp_path / "xray" / "table.json", {**table, "dataset": {**table["dataset"], "fingerprint": "0"}})
    (tmp_path / "xray" / "runs").symlink_to(bench / "xray" / "runs")
    with pytest.raises(InputError, match="not the data set of the table any more"):
        verify(tmp_path, NAME)


def test_scores_differ_beyond_the_tolerance_or_where_one_is_missing() -> None:
    cell = Cell("c", Path(), "d", {"a": 0.5, "b": 0.5, "c": None, "d": None}, None)
    result = Verified(cell, {"a": 0.5 + TOLERANCE / 2, "b": 0.5 + 2 * TOLERANCE, "c": None, "d": 0.0}, "x")
    assert set(result.differences()) == {"b", "d"}


def test_the_command_s_exit_code_says_if_they_differ(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cell = Cell(NAME, Path(), "d", {"BLEU_4": 0.5, "CIDEr": 1.25}, "old")
    same = Verified(cell, {"BLEU_4": 0.5, "CIDEr": 1.25}, "new")
    for result, code in ((same, 0), (replace(same, repeated={"BLEU_4": 0.5, "CIDEr": 1.0}), 1)):
        monkeypatch.setattr(verify_module, "verify", lambda out, name, say, result=result: result)
        done = radweave("bench", tmp_path, "--verify", "--cell", NAME)
        assert done.returncode == code
        assert "code of the table old, now new" in done.stdout
        assert ("1 of 2 scores differ" in done.stderr) == bool(code)
    assert radweave("bench", tmp_path, "--cell", NAME).returncode == 2


def test_runs_name_the_commit_of_their_code(bench: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (row, _) = read_json(bench / "xray" / "table.json")["rows"]
    assert row["commit"] == [provenance.commit()]
    answers = {"ls-files": "__init__.py", "status": "", "rev-parse": "0123456789ab"}
    monkeypatch.setattr(provenance, "_output", lambda *command: answers[command[3]])
    for status, commit in (("", "0123456789ab"), (" M a.py", "0123456789ab+")):
        answers["status"] = status
        assert provenance.commit.__wrapped__() == commit
    answers["ls-files"] = ""
    assert provenance.commit.__wrapped__() is None, "the checkout of somebody else"
