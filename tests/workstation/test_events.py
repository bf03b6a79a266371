"""The server's own words: what failed and where, never what it said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from radweave.core.errors import InputError
from radweave.workstation.events import log_event, log_failure
from radweave.workstation.formats import format_for

CANARY = "Kanarienvogel"


def test_a_failure_is_logged_as_type_and_place(capfd: pytest.CaptureFixture[str]) -> None:
    try:
        format_for(Path("a"), CANARY)
    except InputError as error:
        log_failure("request-failed", error, route="/x")
    line = json.loads(capfd.readouterr().err)
    assert (line["event"], line["error"], line["route"]) == ("request-failed", "InputError", "/x")
    assert line["place"].startswith("formats.py:")
    assert CANARY not in str(line)


def test_unknown_event_fields_are_refused() -> None:
    with pytest.raises(AssertionError):
        log_event("drafted", name=CANARY)
