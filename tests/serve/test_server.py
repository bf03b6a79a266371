"""What the command hands over and prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from stations import NOTICE

from command_line import radweave
from radweave.base.errors import InputError
from radweave.serve.server import _greet
from radweave.serve.settings import Limits, Settings
from radweave.serve.station import Station


def test_every_option_arrives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[Settings] = []
    monkeypatch.setattr("radweave.serve.serve", given.append)
    run = tmp_path / "run"
    options = (
        "--data d --split val --watch w --host ::1 --port 7 --database sqlite:// --untrained"
        " --queue 3 --upload-mib 2 --upload-files 4 --draft-seconds 5"
    )
    assert radweave("serve", run, *options.split()).returncode == 0
    assert given == [
        Settings(
            run=run, state=tmp_path / "run.workstation", data=Path("d"), split="val", watch=Path("w"), host="::1",
            port=7, database="sqlite://", untrained=True, study_s=5,
            limits=Limits(waiting=3, body_bytes=2 << 20, files=4),
        )
    ]  # fmt: skip


@pytest.mark.parametrize(("host", "loud"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_other_machines_get_a_loud_word(
    host: str, loud: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _greet(Settings(run=tmp_path, state=tmp_path, host=host), "secret")
    said = capsys.readouterr().out
    assert ("WARNING: THIS SERVER LISTENS TO OTHER MACHINES" in said) is loud
    # Behind #, so that no browser sends it in a request's line.
    assert said.count("secret") == said.count("/login#token=secret\n") == 1
    assert NOTICE in said


def test_what_is_not_there_is_said_before_anything_runs(settings: Settings, tmp_path: Path) -> None:
    for changed, field in (({"watch": tmp_path / "none"}, "--watch"), ({"run": tmp_path / "none"}, None)):
        with pytest.raises(InputError) as error:
            Station(settings.model_copy(update=changed))
        assert field is None or error.value.field == field
