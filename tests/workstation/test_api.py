"""The interface: from files to a signed report, and who may do what."""

from __future__ import annotations

import json

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from httpx2 import Response

from radweave.workstation.database import meta
from radweave.workstation.disk import ConcurrencyLimit
from radweave.workstation.settings import Limits, Settings
from radweave.workstation.station import Station
from tests.workstation.fake_workers import BOXES, CRASH, HANG, IMAGE, REFUSE, placing_worker
from tests.workstation.stations import NOTICE, ORIGIN, log_in, one_draft, running, upload, wait_for


def test_from_a_file_to_a_signed_report(client: TestClient) -> None:
    study = one_draft(client)
    assert study["draft"]["notice"].startswith(NOTICE)
    place = f"/api/v1/studies/{study['id']}"
    first, second = study["draft"]["sentences"]
    assert [first["flagged"], second["flagged"]] == [False, True]
    unseen = client.post(f"{place}/sign", json={"version": 1})
    assert (unseen.status_code, "not looked at" in unseen.text) == (409, True)
    edits = [
        {"op": "replace", "key": first["key"], "text": "The heart is large."},
        {"op": "insert", "after": second["key"], "text": "No effusion."},
    ]
    edited = client.patch(f"{place}/sentences", json={"version": 1, "edits": edits}).json()
    assert edited["text"] == "The heart is large. There is an opacity on the left. No effusion."
    assert [row["edited_by"] is not None for row in edited["sentences"]] == [True, False, True]
    assert edited["sentences"][0]["probability"] is None
    assert edited["notice"].startswith(NOTICE)
    assert client.post(f"{place}/looked", json={"version": 2, "sentences": [second["key"]]}).status_code == 200
    signed = client.post(f"{place}/sign", json={"version": 2, "seconds": 12.5}).json()["signature"]
    # One word replaced, two put in; one of two sentences is as the model wrote it.
    assert (signed["edit_distance_words"], signed["accepted_sentences"], signed["seconds"]) == (3, 1, 12.5)
    assert client.get(place).json()["state"] == "signed"
    repeated = client.post(f"{place}/sign", json={"version": 2})
    edited_late = client.patch(f"{place}/sentences", json={"version": 2, "edits": edits})
    assert (repeated.status_code, edited_late.status_code) == (409, 409)
    actions = [entry["action"] for entry in client.get(f"{place}/log").json()["entries"]]
    assert actions == ["submitted", "drafted", "opened", "edited", "looked", "signed"]
    assert client.get("/api/v1/log/check").json()["broken_at"] is None


def test_of_two_edits_of_one_version_the_second_is_refused(client: TestClient) -> None:
    study = one_draft(client)
    place = f"/api/v1/studies/{study['id']}/sentences"
    edit = {"version": 1, "edits": [{"op": "remove", "key": 0}]}
    assert client.patch(place, json=edit).status_code == 200
    late = client.patch(place, json=edit)
    assert (late.status_code, late.json()["error"]["expected"]) == (409, "2")
    undone = client.patch(place, json={"version": 2, "edits": [{"op": "restore", "version": 1}]}).json()
    assert undone["text"] == study["draft"]["text"]


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        ({"op": "replace", "key": 9, "text": "x"}, "no such sentence"),
        ({"op": "replace", "key": 0, "text": "x" * 2_001}, "too long"),
        ({"op": "restore", "version": 7}, "no such version"),
    ],
)
def test_a_refused_edit_changes_nothing(edit: dict[str, object], reason: str, client: TestClient) -> None:
    study = one_draft(client)
    place = f"/api/v1/studies/{study['id']}"
    answer = client.patch(f"{place}/sentences", json={"version": 1, "edits": [edit]})
    assert (answer.status_code, reason in answer.text) == (400, True)
    assert client.get(place).json()["draft"] == study["draft"]


def test_the_work_list_is_searched_and_paged(client: TestClient) -> None:
    for name in ("left.png", "right.png", "100%.png"):
        upload(client, (name, IMAGE))
    names = [row["name"] for row in client.get("/api/v1/studies").json()["studies"]]
    assert names == ["100%.png", "right.png", "left.png"]
    result = client.get("/api/v1/studies", params={"search": "%"}).json()
    assert [row["name"] for row in result["studies"]] == ["100%.png"]
    page = client.get("/api/v1/studies", params={"offset": 1, "limit": 1}).json()
    assert (page["total"], [row["name"] for row in page["studies"]]) == (3, ["right.png"])


def test_a_repeated_request_counts_once(client: TestClient) -> None:
    key = {"Idempotency-Key": "one"}
    assert upload(client, ("a.png", IMAGE), headers=key).status_code == 202
    assert upload(client, ("a.png", IMAGE), headers=key).status_code == 409
    assert client.get("/api/v1/studies").json()["total"] == 1
    other = log_in(client, "r")
    assert upload(client, ("a.png", IMAGE), headers={**key, **other}).status_code == 202, "a key is of its user"


def test_a_full_queue_states_when_to_retry(settings: Settings) -> None:
    with running(settings.model_copy(update={"limits": Limits(waiting=1), "drain_s": 0.1})) as (client, _):
        (first,) = upload(client, ("a.png", HANG)).json()["studies"]
        full = upload(client, ("b.png", IMAGE))
        assert (full.status_code, full.headers["retry-after"]) == (503, "10")
        assert client.post(f"/api/v1/studies/{first}/cancel").status_code == 200
        assert upload(client, ("b.png", IMAGE)).status_code == 202


def test_a_reader_sees_its_own_studies_only(client: TestClient) -> None:
    mine = one_draft(client)["id"]
    reader = client.post("/api/v1/users", json={"name": "r", "password": "long enough words"}).json()["id"]
    token = client.post(f"/api/v1/users/{reader}/token").json()["token"]
    reference = {"Authorization": f"Bearer {token}"}
    assert client.get("/api/v1/studies", headers=reference).json()["total"] == 0
    assert client.get(f"/api/v1/studies/{mine}", headers=reference).status_code == 404
    own = upload(client, ("r.png", IMAGE), headers=reference).json()["studies"]
    assert len(own) == 1
    wait_for(client, own[0], "drafted")


def test_a_browser_logs_in_and_repeats_its_csrf_token(started: tuple[TestClient, Station]) -> None:
    client, station = started
    client.post("/api/v1/users", json={"name": "r", "password": "long enough words"})
    del client.headers["Authorization"]
    answer = client.post("/api/v1/session", json={"name": "r", "password": "long enough words"})
    cookie = answer.headers["set-cookie"].lower()
    assert all(word in cookie for word in ("httponly", "samesite=strict", "path=/"))
    assert upload(client, ("a.png", IMAGE)).status_code == 403
    assert upload(client, ("a.png", IMAGE), headers={"X-CSRF-Token": "guessed"}).status_code == 403
    csrf = {"X-CSRF-Token": answer.json()["csrf"]}
    assert upload(client, ("a.png", IMAGE), headers=csrf).status_code == 202
    assert upload(client, ("a.png", b"x"), headers={**csrf, "Origin": "http://evil.example"}).status_code == 403
    assert client.get("/api/v1/session").json()["user"] == "r"
    client.delete("/api/v1/session", headers=csrf)
    assert client.get("/api/v1/session").status_code == 401
    with station.database.reading() as connection:
        tables = [str(connection.execute(sa.select(table)).all()) for table in meta.sorted_tables]
    assert "long enough words" not in "".join(tables)


def test_too_many_logins_have_to_wait(client: TestClient) -> None:
    tries = [client.post("/api/v1/session", json={"token": "wrong"}) for _ in range(6)]
    assert [answer.status_code for answer in tries] == [401] * 5 + [429]
    assert 0 < int(tries[-1].headers["retry-after"]) <= 61


def test_one_address_has_a_limit_over_all_names(client: TestClient) -> None:
    tries = [client.post("/api/v1/session", json={"name": f"n{number}", "password": "wrong"}) for number in range(21)]
    assert [answer.status_code for answer in tries] == [401] * 20 + [429]


def test_every_answer_has_the_headers(client: TestClient) -> None:
    for answer in (client.get("/healthz"), client.get("/nowhere"), client.get("/api/v1/log"), upload(client)):
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-research-only"].startswith(NOTICE)
        assert answer.headers["cache-control"] == "no-store"


def test_an_unknown_host_name_is_refused(client: TestClient) -> None:
    assert client.get("/healthz", headers={"Host": "evil.example"}).status_code == 400
    assert client.get("/healthz", headers={"Host": "localhost:1"}).status_code == 200


def test_probes_and_figures(client: TestClient) -> None:
    one_draft(client)
    assert client.get("/readyz").json() == {"status": "ready"}
    text = client.get("/metrics").text
    assert 'radweave_studies{state="drafted"} 1' in text
    assert "radweave_draft_seconds_count 1" in text
    assert 'radweave_requests_total{method="POST",route="/api/v1/studies",status="202"} 1' in text


def test_no_event_holds_text_of_users_or_files(client: TestClient, capfd: pytest.CaptureFixture[str]) -> None:
    canary = "Kanarienvogel"
    study = one_draft(client, IMAGE + canary.encode())["id"]
    upload(client, (f"{canary}.png", REFUSE), (f"{canary}/x.dcm", canary.encode()))
    edits = [{"op": "insert", "text": canary}]
    client.patch(f"/api/v1/studies/{study}/sentences", json={"version": 1, "edits": edits})
    client.patch(f"/api/v1/studies/{study}/sentences", json={"version": canary})
    client.get(f"/api/v1/studies/{canary}", params={"search": canary})
    client.request(canary.upper(), f"/{canary}")
    client.post("/api/v1/session", json={"name": canary, "password": canary})
    texts_by_section = capfd.readouterr()
    lines = [json.loads(line) for line in texts_by_section.err.splitlines()]
    assert {line["event"] for line in lines} >= {"request", "submitted", "drafted"}
    assert canary.lower() not in (texts_by_section.err + texts_by_section.out).lower()
    assert ORIGIN not in texts_by_section.err


def test_repeated_undo_goes_back_step_by_step(client: TestClient) -> None:
    study = one_draft(client)
    place = f"/api/v1/studies/{study['id']}/sentences"
    assert study["draft"]["undo"] is None

    def edited(observed: int, **edit: object) -> tuple[str, int | None]:
        draft = client.patch(place, json={"version": observed, "edits": [edit]}).json()
        return draft["sentences"][0]["text"], draft["undo"]

    assert edited(1, op="replace", key=0, text="One.") == ("One.", 1)
    assert edited(2, op="replace", key=0, text="Two.") == ("Two.", 2)
    assert edited(3, op="restore", version=2) == ("One.", 1)
    assert edited(4, op="restore", version=1) == ("The heart is normal.", None)
    assert edited(5, op="replace", key=0, text="Three.") == ("Three.", 5)


def test_sentences_are_grouped_in_sections_with_headings(client: TestClient) -> None:
    study = one_draft(client)
    place = f"/api/v1/studies/{study['id']}/sentences"
    edits = [
        {"op": "insert", "section": "impression", "text": "An opacity."},
        {"op": "insert", "section": "technique", "text": "One view."},
        {"op": "insert", "section": "findings", "text": "No effusion."},
    ]
    draft = client.patch(place, json={"version": 1, "edits": edits}).json()
    assert draft["text"] == (
        "TECHNIQUE: One view.\n\nFINDINGS: No effusion. The heart is normal. There is an opacity on the left.\n\n"
        "IMPRESSION: An opacity."
    )
    assert [row["editor"] for row in draft["sentences"]] == ["admin", "admin", None, None, "admin"]
    other = {"op": "insert", "after": 0, "section": "technique", "text": "x"}
    assert client.patch(place, json={"version": 2, "edits": [other]}).status_code == 400


@pytest.mark.parametrize("op", [{"op": "replace", "key": 0}, {"op": "insert"}])
def test_a_blank_sentence_is_refused(op: dict[str, object], client: TestClient) -> None:
    place = f"/api/v1/studies/{one_draft(client)['id']}/sentences"
    assert client.patch(place, json={"version": 1, "edits": [{**op, "text": " \n\t"}]}).status_code == 422
    draft = client.patch(place, json={"version": 1, "edits": [{**op, "text": " The heart.\n"}]}).json()
    assert draft["sentences"][0]["text"] == "The heart."


def test_an_exported_report_contains_all_text(client: TestClient) -> None:
    place = f"/api/v1/studies/{one_draft(client)['id']}"
    texts_by_section = {
        name: f"Words of {name}." for name in ("indication", "technique", "comparison", "findings", "impression")
    }
    edits = [{"op": "insert", "section": name, "text": text} for name, text in texts_by_section.items()]
    assert client.patch(f"{place}/sentences", json={"version": 1, "edits": edits}).status_code == 200
    report = client.get(f"{place}/report", params={"format": "text"})
    assert report.status_code == 200, report.text
    for name, text in texts_by_section.items():
        assert f"{name.upper()}\n{text}" in report.text


def test_places_of_a_sentence_are_shown_and_exported_until_a_reader_writes_it_anew(settings: Settings) -> None:
    with running(settings, placing_worker) as (client, _):
        study = one_draft(client)
        _, _, row, open_row, _ = study["draft"]["sentences"]
        (place,) = row["details"]["places"]
        assert (place["named"], place["probability"]) == ("left upper zone", 0.8)
        assert place["boxes"] == [{"image": 0, "box": BOXES["xray"][0][0][1]}], "the study has one image"
        path = f"/api/v1/studies/{study['id']}"
        said = ("Place of Lung Opacity: left upper zone, probability 0.80",
                "Place of Pleural Effusion: right pleura, place not checked")  # fmt: skip
        text = client.get(f"{path}/report?format=text").text
        assert all(line in text for line in said)
        edit = {"op": "replace", "key": row["key"], "text": "There is an opacity."}
        edited = client.patch(f"{path}/sentences", json={"version": 1, "edits": [edit]}).json()
        assert "places" not in edited["sentences"][2]["details"]
        assert edited["sentences"][3]["details"] == open_row["details"]
        text = client.get(f"{path}/report?format=text").text
        assert said[0] not in text
        assert said[1] in text


def test_concurrent_exports_are_limited(started: tuple[TestClient, Station]) -> None:
    client, station = started
    place = f"/api/v1/studies/{one_draft(client)['id']}/report?format=text"
    station.report_slots = ConcurrencyLimit(1, most_waiting=0)
    with station.report_slots.slot():
        full = client.get(place)
    assert (full.status_code, full.headers["retry-after"]) == (503, "2")
    assert client.get(place).status_code == 200


def test_a_recalled_sentence_must_be_in_its_recalled_case(client: TestClient) -> None:
    study = one_draft(client)
    place = f"/api/v1/studies/{study['id']}/sentences"

    def insert(text: str, number: int) -> Response:
        edits = [{"op": "insert", "after": 1, "text": text, "recalled": number}]
        return client.patch(place, json={"version": 1, "edits": edits})

    for text, number in (("The lungs are dark.", 1), ("The lungs are clear.", 2), ("The lungs are clear.", 0)):
        assert insert(text, number).status_code == 400
    row = insert("The lungs are clear.", 1).json()["sentences"][-1]
    assert row["origin"] == {"kind": "recalled", "number": 1, "study_id": "t1"}


def test_admins_see_the_losses_of_inference_processes(settings: Settings) -> None:
    with running(settings.model_copy(update={"tries": 1})) as (client, _):
        (study,) = upload(client, ("a.png", CRASH)).json()["studies"]
        wait_for(client, study, "refused")
        result = client.get("/api/v1/status").json()
        assert [(row["reason"], row["studies"]) for row in result["lost"]] == [("the inference process ended", 1)]
        assert result["model"]["method"] == "baseline"
        log_in(client, "r")
        assert "lost" not in client.get("/api/v1/status").json()
