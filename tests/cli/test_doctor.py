"""The doctor says what an installation has, what is wrong with it, and that the whole way works."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import pytest

from radweave.cli.doctor import examine, lines
from radweave.core.extras import EXTRAS
from tests.command_line import radweave


def test_doctor_describes_the_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    done = radweave("doctor", "--no-self-test", "--json")
    assert done.returncode == 0, done.stdout
    report = json.loads(done.stdout)
    assert report["packages"]["torch"].startswith("2.")
    assert report["devices"][0].startswith("cpu")
    assert report["cores"] >= 1
    assert list(report["extras"]) == list(EXTRAS)
    assert all(free > 0 for free in report["disk_gb"].values())
    assert report["self_test_s"] is None
    monkeypatch.setattr("radweave.core.extras.find_spec", lambda name: None)
    text = radweave("doctor", "--no-self-test").stdout
    assert "extra ray: not installed (pip install 'radweave[ray]')" in text


def test_problems_give_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radweave.cli.doctor.requires", lambda name: ["numpy>=2", "no-such-package", "x; extra == 'y'"])
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=1e8))
    monkeypatch.setenv("RADWEAVE_DEVICE", "tpu")
    done = radweave("doctor")
    assert done.returncode == 1
    assert "PROBLEM: no-such-package is not installed: pip install no-such-package" in done.stdout
    assert "PROBLEM: x is" not in done.stdout, "what an extra needs is nobody's problem"
    assert "0.1 GB are free" in done.stdout
    assert "no such device" in done.stdout
    assert "self-test" not in done.stdout, "nothing is trained on an installation that lacks something"


def test_a_failing_self_test_names_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(times: dict[str, float], say: object) -> None:
        times["load"] = 1.0
        raise RuntimeError("no kernel")

    monkeypatch.setattr("radweave.cli.doctor.run_self_test", broken)
    health = examine()
    assert health.problems == ["self-test: stopped after ['load'] with RuntimeError: no kernel"]
    assert "self-test: load 1.0 s" in lines(health)


@pytest.mark.slow
def test_the_self_test_passes() -> None:
    printed: list[str] = []
    health = examine(say=printed.append)
    assert health.problems == []
    assert list(health.self_test_s or {}) == printed == ["load", "draw", "train", "draft", "score"]
