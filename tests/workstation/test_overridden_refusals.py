"""Refused studies show their images and say why; who has the right to it gets a draft all the same, marked as such."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image, PngImagePlugin

from radweave.workstation import database, store
from radweave.workstation.database import refusals, studies
from radweave.workstation.settings import Settings
from radweave.workstation.station import Station
from tests.workstation.fake_workers import CRASH, REFUSE, refusing_worker
from tests.workstation.stations import PASSWORD, left_behind, running, upload, wait_for


def png(word: str) -> bytes:
    """A picture that can be shown, with a word in its file that says what becomes of it."""
    about = PngImagePlugin.PngInfo()
    about.add_text("about", word)
    held = io.BytesIO()
    grey = np.add.outer(np.arange(40), np.arange(60)).astype(np.uint8)
    Image.fromarray(grey).save(held, "PNG", pnginfo=about)
    return held.getvalue()


@pytest.fixture
def both(settings: Settings) -> Iterator[tuple[TestClient, Station]]:
    with running(settings, refusing_worker) as made:
        yield made


@pytest.fixture
def admin(both: tuple[TestClient, Station]) -> TestClient:
    return both[0]


def reader(client: TestClient, name: str) -> dict[str, str]:
    """The header of another reader."""
    made = client.post("/api/v1/users", json={"name": name, "password": PASSWORD}).json()["id"]
    return {"Authorization": f"Bearer {client.post(f'/api/v1/users/{made}/token').json()['token']}"}


def refused(client: TestClient, word: str, **more: Any) -> str:
    """A study that was refused."""
    (study,) = upload(client, ("film.png", png(word)), **more).json()["studies"]
    assert wait_for(client, study, "refused", "drafted")["state"] == "refused"
    return str(study)


def anyway(client: TestClient, study: str, kind: str, **more: Any) -> Any:
    return client.post(f"/api/v1/studies/{study}/anyway", json={"refusal": kind}, **more)


KINDS = {"unlike": "unfamiliar", "knee": "body part", "doubt": "integrity", "mixed": "mixture"}


@pytest.mark.parametrize("word", KINDS)
def test_a_refused_study_shows_its_images_and_says_why(word: str, admin: TestClient) -> None:
    study = refused(admin, word)
    result = admin.get(f"/api/v1/studies/{study}").json()
    assert result["reason"] == "film.png: not what it should be"
    assert result["refusal"]["kind"] == KINDS[word]
    assert result["refusal"]["may_draft"] is (word != "mixed")
    (image,) = admin.get(f"/api/v1/studies/{study}/images").json()["images"]
    assert "problem" not in image
    pixels = admin.get(f"/api/v1/studies/{study}/images/0/pixels")
    assert len(pixels.content) == 2 * 40 * 60


def test_images_of_a_refused_study_stay_after_a_restart(settings: Settings) -> None:
    with running(settings, refusing_worker) as (client, _):
        study, token = refused(client, "unlike"), client.headers["Authorization"]
    with running(settings, refusing_worker) as (client, _):
        client.headers["Authorization"] = token
        assert client.get(f"/api/v1/studies/{study}/images/0/pixels").status_code == 200


def test_unsafe_files_are_removed_and_never_drafted(settings: Settings) -> None:
    with running(settings) as (client, _):
        for data in (CRASH, REFUSE):
            (study,) = upload(client, ("film.png", data)).json()["studies"]
            wait_for(client, study, "refused")
            assert client.get(f"/api/v1/studies/{study}").json()["refusal"] is None
            assert client.get(f"/api/v1/studies/{study}/images").json()["images"] == []
            for kind in (*KINDS.values(), ""):
                assert anyway(client, study, kind).status_code == 409
        assert left_behind(settings) == []


def test_a_draft_with_an_overridden_refusal_is_marked_everywhere(admin: TestClient) -> None:
    study = refused(admin, "unlike")
    assert anyway(admin, study, "unfamiliar").status_code == 202
    result = wait_for(admin, study, "drafted")
    first, *others = result["warnings"]
    assert first.startswith("DRAFTED ALTHOUGH IT WAS REFUSED")
    assert first.endswith("film.png: not what it should be"), "a file's own name stays in the place where it was"
    assert others[0] == "one of the model's"
    assert result["refusal"] is None
    assert (result["drafted_anyway"]["kind"], result["drafted_anyway"]["by"]) == ("unfamiliar", "admin")
    (row,) = admin.get("/api/v1/studies").json()["studies"]
    assert row["drafted_anyway"] == "unfamiliar"
    entries = admin.get(f"/api/v1/studies/{study}/log").json()["entries"]
    (requested,) = [entry for entry in entries if entry["action"] == "draft asked for although refused"]
    assert requested["details"] == {"refusal": "unfamiliar"}
    for form in ("text", "fhir-r5"):
        text = admin.get(f"/api/v1/studies/{study}/report?format={form}").text
        assert "DRAFTED ALTHOUGH IT WAS REFUSED" in " ".join(text.split()), form


def test_a_study_that_was_never_refused_has_no_mark(admin: TestClient) -> None:
    (study,) = upload(admin, ("film.png", png("fine"))).json()["studies"]
    result = wait_for(admin, study, "drafted")
    assert (result["refusal"], result["drafted_anyway"]) == (None, None)
    assert result["warnings"] == ["one of the model's"]
    assert admin.get("/api/v1/studies").json()["studies"][0]["drafted_anyway"] is None
    assert anyway(admin, study, "unfamiliar").status_code == 409


@pytest.mark.parametrize(
    ("word", "of_reader", "of_admin"),
    [("unlike", 202, 202), ("knee", 403, 202), ("doubt", 403, 202), ("mixed", 409, 409)],
)
def test_roles_that_may_override_a_refusal(word: str, of_reader: int, of_admin: int, admin: TestClient) -> None:
    own, other = reader(admin, "own"), reader(admin, "other")
    (study,) = upload(admin, ("film.png", png(word)), headers=own).json()["studies"]
    wait_for(admin, study, "refused")
    assert anyway(admin, study, KINDS[word], headers=other).status_code == 404, "another's study is not there"
    assert anyway(admin, study, KINDS[word], headers={"Authorization": ""}).status_code == 401
    assert admin.get(f"/api/v1/studies/{study}", headers=own).json()["refusal"]["may_draft"] is (of_reader == 202)
    assert anyway(admin, study, KINDS[word], headers=own).status_code == of_reader
    if of_reader != 202:
        assert admin.get(f"/api/v1/studies/{study}").json()["state"] == "refused"
        assert anyway(admin, study, KINDS[word]).status_code == of_admin
    if of_admin == 202:
        wait_for(admin, study, "drafted")


def test_a_reader_may_override_for_a_study_without_an_owner(both: tuple[TestClient, Station]) -> None:
    admin, station = both
    study, own = refused(admin, "unlike"), reader(admin, "own")
    assert anyway(admin, study, "unfamiliar", headers=own).status_code == 404, "it is the admin's"
    with station.database.writing() as connection:
        connection.execute(studies.update().where(studies.c.id == study).values(owner_id=None))
    assert anyway(admin, study, "unfamiliar", headers=own).status_code == 202


def test_only_the_shown_refusal_is_overridden_and_only_once(admin: TestClient) -> None:
    study = refused(admin, "unlike")
    for kind in ("integrity", "body part", "", "everything"):
        assert anyway(admin, study, kind).status_code == 409, kind
    assert admin.post(f"/api/v1/studies/{study}/anyway", json={}).status_code == 422
    assert anyway(admin, study, "unfamiliar").status_code == 202
    wait_for(admin, study, "drafted")
    assert anyway(admin, study, "unfamiliar").status_code == 409


def test_a_cancelled_study_cannot_be_overridden_and_shows_no_images(both: tuple[TestClient, Station]) -> None:
    admin, station = both
    study = refused(admin, "unlike")
    with station.database.writing() as connection:
        connection.execute(refusals.update().values(asked_by=1, asked_at=database.now()))
        connection.execute(studies.update().values(state="drafting"))
    admin.post(f"/api/v1/studies/{study}/cancel")
    assert admin.get(f"/api/v1/studies/{study}").json()["reason"] == store.CANCELLED
    assert anyway(admin, study, "unfamiliar").status_code == 409
    assert admin.get(f"/api/v1/studies/{study}/images").json()["images"] == []


def test_an_override_does_not_cover_later_images(both: tuple[TestClient, Station]) -> None:
    from radweave.workstation import drafts as module

    admin, station = both
    study = refused(admin, "unlike")
    assert anyway(admin, study, "unfamiliar").status_code == 202
    wait_for(admin, study, "drafted")
    with station.database.writing() as connection:
        assert module.overridden_refusals(connection, [study]) == {study: "unfamiliar"}
        paths = [(path, "film.png") for path in map(type(station.settings.state), store.uploaded(connection, study))]
        assert store.add_images(connection, study, paths, 1)
        assert module.overridden_refusals(connection, [study]) == {}
    station.inference.wake()
    result = wait_for(admin, study, "drafted")
    while len(result["warnings"]) < 3:  # the state goes through "drafting" and back
        result = admin.get(f"/api/v1/studies/{study}").json()
    assert "images came after this draft" in result["warnings"][-1]
    assert result["drafted_anyway"]["kind"] == "unfamiliar", "the draft that is shown is still that one"
