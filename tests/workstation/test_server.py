"""What the command hands over and prints."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from radweave.core.errors import InputError
from radweave.workstation.app import _greet
from radweave.workstation.inference import InferenceModel, main
from radweave.workstation.settings import Limits, OpenId, Settings
from radweave.workstation.station import Station
from tests.command_line import radweave
from tests.toys import toy_image
from tests.workstation.stations import NOTICE, one_draft, running


def test_every_option_arrives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[Settings] = []
    monkeypatch.setattr("radweave.workstation.serve", started.append)
    run = tmp_path / "run"
    options = (
        "--data d --split val --watch w --host ::1 --port 7 --database sqlite:// --untrained"
        " --set num_beams=2 --own-decoder --queue 3 --upload-mib 2 --upload-files 4 --draft-seconds 5"
    )
    assert radweave("serve", run, *options.split()).returncode == 0
    assert started == [
        Settings(
            run=run, state=tmp_path / "run.workstation", data=Path("d"), split="val", watch=Path("w"), host="::1",
            port=7, database="sqlite://", untrained=True, study_s=5,
            decoding=("num_beams=2", "kind=likelihood"), limits=Limits(waiting=3, body_bytes=2 << 20, files=4),
        )
    ]  # fmt: skip


def test_every_option_for_many_users_arrives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[Settings] = []
    monkeypatch.setattr("radweave.workstation.serve", started.append)
    options = (
        "--storage-gib 1.5 --behind-proxy 10.0.0.1,fd00::/8 --public-url https://A.example/ --tls-cert c --tls-key k"
        " --oidc-issuer https://i --oidc-client-id id --oidc-secret-file s --oidc-claim a.b --oidc-readers r1,r2"
        " --oidc-admins a1"
    )
    done = radweave("serve", tmp_path / "run", *options.split())
    assert done.returncode == 0, done.stderr
    (result,) = started
    assert result.limits.state_bytes == 3 << 29
    assert (result.behind_proxy, result.public_url) == (("10.0.0.1/32", "fd00::/8"), "https://a.example")
    assert (result.tls_cert, result.tls_key) == (Path("c"), Path("k"))
    assert result.openid == OpenId(
        issuer="https://i", client_id="id", secret_file=Path("s"), claim="a.b", readers=("r1", "r2"), admins=("a1",)
    )


@pytest.mark.parametrize("option", ["--oidc-client-id", "--oidc-issuer"])
def test_half_a_provider_is_refused(option: str, tmp_path: Path) -> None:
    done = radweave("serve", tmp_path / "run", option, "https://i", "--oidc-readers", "r")
    assert (done.returncode, "--oidc-" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("started", "loud"),
    [
        ({"host": "127.0.0.1"}, False), ({"host": "0.0.0.0"}, True),
        ({"host": "0.0.0.0", "tls_cert": Path("c")}, False),
        ({"host": "0.0.0.0", "behind_proxy": ("10.0.0.1",)}, False),
    ],
)  # fmt: skip
def test_listening_to_other_machines_prints_a_warning(
    started: dict[str, Any], loud: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _greet(Settings(run=tmp_path, state=tmp_path, **started), "secret", caution="")
    output = capsys.readouterr().out
    assert ("WARNING: THIS SERVER LISTENS TO OTHER MACHINES" in output) is loud
    # Behind #, so that no browser sends it in a request's line.
    assert output.count("secret") == output.count("/login#token=secret\n") == 1
    assert NOTICE in output


def test_missing_files_are_refused_before_the_start(settings: Settings, tmp_path: Path) -> None:
    for changed, field in (({"watch": tmp_path / "none"}, "--watch"), ({"run": tmp_path / "none"}, None)):
        with pytest.raises(InputError) as error:
            Station(settings.model_copy(update=changed))
        assert field is None or error.value.field == field


def test_what_is_set_decides_drafts_and_stands_on_the_page(toy_run: Path, settings: Settings, tmp_path: Path) -> None:
    """By the process that holds the model, started as a workstation starts it."""
    chosen = settings.model_copy(update={"run": toy_run, "decoding": ("max_new_tokens=9", "kind=likelihood")})
    image = toy_image(tmp_path / "chest.png", bright_side="left", seed=0)
    with running(chosen, main) as (client, station):
        study = one_draft(client, image.read_bytes())["id"]
        shown = client.get(f"/api/v1/studies/{study}/evidence").json()
        evidence = shown["evidence"]
        (warning,) = [text for text in shown["warnings"] if "states no view" in text]
        assert "--view" not in warning
        assert evidence["decoder"] == {"kind": "own decoder", "set": list(chosen.decoding)}
        assert station.inference.drafts == "drafts: own decoder; set: max_new_tokens=9 kind=likelihood"
        assert "Drafts: own decoder; set: max_new_tokens=9 kind=likelihood." in client.get("/login").text
    default = InferenceModel(toy_run, None, untrained=False)
    assert default.predictor.drafts == "drafts: expected utility"


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("num_beams=0", "num_beams"),
        ("beams=3", "num_beams"),
        ("unprompted_comparisons=keep", "drafts for readers have another"),
        ("deidentification_marks=keep", "deidentification_marks=remove"),
    ],
)
def test_an_option_that_drafts_cannot_have_ends_the_start(toy_run: Path, option: str, says: str) -> None:
    done = radweave("serve", toy_run, "--try", "--port", "1", "--set", option)
    assert done.returncode == 2
    assert says in done.stderr


def test_a_port_in_use_is_refused_before_anything_is_said(toy_run: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = radweave("serve", toy_run, "--try", "--port", str(port))
    assert done.returncode == 2
    assert f"--port': is in use by another program; give another (got {port})" in done.stderr
    assert "workstation:" not in done.stdout
