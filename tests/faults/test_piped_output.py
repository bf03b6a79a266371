"""Notebooks and build servers ask for colours by the environment; what is printed into a file is a log all the same."""

from __future__ import annotations

import pytest

from radweave.cli import options
from radweave.core.escaping import plain_console
from radweave.metrics.tables import TextTable, print_tables


@pytest.mark.parametrize("option", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_a_pipe_gets_lines_without_control_codes(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(option, "1")
    monkeypatch.setattr(options, "console", plain_console(stderr=True))
    with options.bar("reading") as report:
        for done in range(1, 101):
            report(done, 100)
    print_tables([TextTable("Scores", ("metric", "value"), (("BLEU_4", "0.1"),))])
    printed = capsys.readouterr()
    assert printed.err.splitlines() == ["reading: 1 of 100 (1 %)", "reading: 100 of 100 (100 %)"]
    assert "BLEU_4" in printed.out
    assert "\x1b" not in printed.out
