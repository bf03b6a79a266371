"""The compose file and what lies beside it: pinned, without rights, and in words that the code knows."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any
from urllib.parse import urlsplit

import yaml
from fastapi.routing import APIRoute

import radweave
from radweave.workstation.api import probes
from radweave.workstation.hospital_plan import read_plan
from radweave.workstation.settings import Settings
from tests.docs.test_commands import parsed
from tests.toys import ROOT

DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PLAN = read_plan(DEPLOY / "plan.yaml")


def _mounts(service: dict[str, Any]) -> dict[str, list[str]]:
    """Place in the container -> where it is from, and how."""
    return {(parts := text.split(":"))[1]: [parts[0], *parts[2:]] for text in service["volumes"]}


def test_images_are_pinned_and_radweave_has_this_version() -> None:
    for service in SERVICES.values():
        assert re.fullmatch(r"[a-z0-9./-]+:\d+\.\d+\.\d+", service["image"])
    assert SERVICES["radweave"]["image"] == f"radweave:{radweave.__version__}"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert {"serve", "hospital"} <= set(SERVICES["radweave"]["build"]["args"]["EXTRAS"].split(",")) <= set(extras)
    assert (DEPLOY / SERVICES["radweave"]["build"]["context"] / "Dockerfile").is_file()


def test_every_service_runs_without_rights_on_a_root_that_it_cannot_write() -> None:
    for service in SERVICES.values():
        assert service["read_only"] is True
        assert int(service["user"].split(":")[0]) > 0
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["healthcheck"]["test"][0] == "CMD"
        assert not {"privileged", "cap_add", "environment", "env_file", "network_mode", "pid"} & set(service)
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert "USER 1000" in (ROOT / "Dockerfile").read_text("utf-8")
    assert "useradd --uid 1000" in (ROOT / "Dockerfile").read_text("utf-8")


def test_secrets_are_files_and_mounts_exist_or_are_documented() -> None:
    compose_text = (DEPLOY / "compose.yaml").read_text("utf-8").split("name: radweave")[0]
    sources = [source for service in SERVICES.values() for source, *_ in _mounts(service).values()]
    sources += [secret["file"] for secret in COMPOSE["secrets"].values()]
    for source in sources:
        made = source.removeprefix("./") in compose_text or source == "./run"
        assert (DEPLOY / source).exists() or made, source
    for service in SERVICES.values():
        for source, *how in _mounts(service).values():
            assert (how == ["ro"]) is not source.startswith("./data/"), source
        assert set(service.get("secrets", ())) <= set(COMPOSE["secrets"])
        assert set(service["networks"]) <= set(COMPOSE["networks"])
    ignored = (ROOT / ".gitignore").read_text("utf-8").splitlines()
    assert {"/deploy/secrets/", "/deploy/data/", "/deploy/run"} <= set(ignored)


def test_folders_belong_to_the_user_of_the_containers() -> None:
    compose_text = (DEPLOY / "compose.yaml").read_text("utf-8").split("name: radweave")[0]
    (inputs,) = re.findall(r"chown -R 1000:1000 (.+?);", compose_text)
    mounted = {source.split("/")[1] for service in SERVICES.values() for source, *_ in _mounts(service).values()}
    # A run's weights may be read by their owner alone: without this the workstation refuses its run.
    assert set(inputs.split()) == {name for name in mounted if not (DEPLOY / name).exists()} | {"secrets"}
    assert {service["user"] for service in SERVICES.values()} == {"1000:1000"}


def test_the_image_of_the_workstation_asks_itself_whether_it_answers() -> None:
    stages = re.split(r"^FROM ", (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " "), flags=re.M)[1:]
    named = {stage.splitlines()[0].rpartition(" AS ")[2]: stage for stage in stages}
    target = SERVICES["radweave"]["build"]["target"]
    assert named[target].startswith("verbs AS ")
    assert stages[-1].splitlines()[0] == "verbs", "without a target every verb"
    (check,) = re.findall(r"^HEALTHCHECK .*?CMD (\[.*\])$", named[target], re.M)
    health = json.loads(check)
    assert health == SERVICES["radweave"]["healthcheck"]["test"][1:]
    compile(health[-1], "healthcheck", "exec")
    assert f"EXPOSE {Settings.model_fields['port'].default}\n" in named[target]
    place = urlsplit(re.findall(r"http://[^']+", health[-1])[0])
    assert place.port == Settings.model_fields["port"].default
    assert place.path in {route.path for route in probes.routes if isinstance(route, APIRoute)}
    (start,) = re.findall(r"^CMD (\[.*\])$", named[target], re.M)
    assert parsed(tuple(json.loads(start)))[0] == "serve start"
    assert not re.search(r"^(USER|COPY|RUN|ADD)", named[target] + stages[-1], re.M), "nothing is changed as root"


def test_the_workstation_starts_with_existing_options_and_a_writable_state() -> None:
    service = SERVICES["radweave"]
    verb, values = parsed(tuple(service["command"]))
    assert verb == "serve start"
    places = _mounts(service)
    assert str(values["run"]) in places
    assert str(values["hospital"]) in places
    assert f"{values['run']}.workstation" in places, "the state lies beside the run"
    assert service["ports"] == [f"127.0.0.1:{values['port']}:{values['port']}"]
    assert f"127.0.0.1:{values['port']}/healthz" in service["healthcheck"]["test"][-1]


def test_plan_and_archive_know_each_other() -> None:
    archive = json.loads((DEPLOY / "archive" / "orthanc.json").read_text("utf-8"))
    assert PLAN.receive is not None
    own = archive["DicomModalities"]["radweave"]
    assert (own["AET"], own["Host"], own["Port"]) == (PLAN.receive.ae_title, "radweave", PLAN.receive.port)
    assert dict(PLAN.receive.peers) == {archive["DicomAet"]: "archive"}
    (target,) = PLAN.send
    assert target.web is not None
    assert target.web.url == f"http://archive:{archive['HttpPort']}{archive['DicomWeb']['Root'].rstrip('/')}"
    assert str(target.web.password_file).removeprefix("/run/secrets/") in SERVICES["radweave"]["secrets"]
    assert archive["AuthenticationEnabled"] is True
    assert archive["StorageDirectory"] in _mounts(SERVICES["archive"])
