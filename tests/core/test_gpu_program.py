"""bench/gpu.py without a GPU: the whole of it on the stand-in, and what it does when a part fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.toys import bench_program


@pytest.fixture
def program() -> Any:
    return bench_program("gpu")


def rows(out: Path) -> dict[str, Any]:
    return {part["name"]: part for part in json.loads((out / "gpu.json").read_text())["parts"]}


def test_a_failing_part_is_recorded_and_the_others_run(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(job: Any) -> dict[str, Any]:
        raise ZeroDivisionError("by nought")

    def misses(job: Any) -> dict[str, Any]:
        raise program.CheckError("too far", {"apart": 2.0})

    monkeypatch.setattr(program, "selective_scan_part", breaks)
    monkeypatch.setattr(program, "nearest", misses)
    monkeypatch.setattr(program, "train_part", lambda method: lambda job: {"method": method})
    for name in ("training_step", "writing", "contract_suite"):
        monkeypatch.setattr(program, name, lambda job: {"done": True})
    arguments = ["--device", "standin", "--smallest", "--methods", "kernels", "--out", str(tmp_path)]
    assert program.main(arguments) == 1
    result = rows(tmp_path)
    assert result["selective scan"]["failed"] == "ZeroDivisionError: by nought"
    assert result["nearest"] == result["nearest"] | {"failed": "too far", "figures": {"apart": 2.0}}
    assert result["train kernels"]["figures"] == {"method": "kernels"}
    assert [name for name, row in result.items() if row["failed"]] == ["selective scan", "nearest"]
    assert "too far" in (tmp_path / "gpu.md").read_text()


def test_parts_without_time_left_count_as_failures(program: Any, tmp_path: Path) -> None:
    arguments = ["--device", "standin", "--methods", "kernels", "--minutes", "0", "--out", str(tmp_path)]
    assert program.main(arguments) == 1
    assert all("not run" in row["failed"] for row in rows(tmp_path).values())


def test_distance_of_loss_curves(program: Any) -> None:
    assert program.apart({"report": [1.0, 2.0]}, {"report": [1.0, 2.0]}) == 0
    assert program.apart({"report": [1.0, 2.2]}, {"report": [1.0, 2.0]}) == pytest.approx(0.1)
    assert program.apart({"report": [1.0]}, {"report": [1.0, 2.0]}) == float("inf")
    assert program.apart({"report": [float("nan")]}, {"report": [1.0]}) == float("inf")


@pytest.mark.slow
def test_the_program_succeeds_on_the_stand_in_device(program: Any, tmp_path: Path) -> None:
    """All methods: each trains there and on the CPU, in both precisions, is restored there, writes and explains."""
    arguments = ["--device", "standin", "--minutes", "60", "--out", str(tmp_path)]
    assert program.main(arguments) == 0, {name: row["failed"] for name, row in rows(tmp_path).items()}
