"""Who has a study in hand: one reader at a time, over requests, processes and both databases."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from radweave.workstation.database import Database, locks, now, studies
from radweave.workstation.settings import Settings
from radweave.workstation.station import Station
from radweave.workstation.store import NewStudy, add
from radweave.workstation.users import CLOCK_SET_BACK, add_user
from tests.workstation.fake_workers import IMAGE
from tests.workstation.stations import PASSWORD, running, wait_for

COUNT = 3


@pytest.fixture
def shared(settings: Settings, tmp_path: Path) -> Any:
    """A workstation with drafted studies of nobody, as (client, station, ids, headers of two readers)."""
    folder = tmp_path / "watched"
    folder.mkdir()
    with running(settings.model_copy(update={"watch": folder})) as (client, station):
        for number in range(COUNT):
            (folder / f"{number}.png").write_bytes(IMAGE)
        readers = []
        for name in ("ada", "ben"):
            number = client.post("/api/v1/users", json={"name": name, "password": PASSWORD}).json()["id"]
            token = client.post(f"/api/v1/users/{number}/token").json()["token"]
            readers.append({"Authorization": f"Bearer {token}"})
        ids: list[str] = []
        for _ in range(600):
            ids = [one["id"] for one in client.get("/api/v1/studies").json()["studies"]]
            if len(ids) == COUNT:
                break
            time.sleep(0.05)
        for study in ids:
            wait_for(client, study, "drafted")
        yield client, station, ids, readers


def change(client: TestClient, study: str, what: str, who: dict[str, str], version: int = 1) -> Any:
    bodies: dict[str, Any] = {
        "sentences": {"version": version, "edits": [{"op": "insert", "text": "The heart is large."}]},
        "looked": {"version": version, "sentences": [1]}, "sign": {"version": version},
        "reject": {"version": version, "reason": "No chest."}, "prior": {"prior": None}, "lock": {},
    }  # fmt: skip
    method = {"sentences": "PATCH", "prior": "PUT"}.get(what, "POST")
    return client.request(method, f"/api/v1/studies/{study}/{what}", json=bodies[what], headers=who)


def holder(client: TestClient, study: str, who: dict[str, str]) -> Any:
    listed = client.get("/api/v1/studies", headers=who).json()["studies"]
    found = client.get(f"/api/v1/studies/{study}", headers=who).json()["holder"]
    assert found == next(one for one in listed if one["id"] == study)["holder"]
    return found


@pytest.mark.parametrize("what", ["sentences", "looked", "sign", "reject", "prior", "lock"])
def test_a_change_without_the_lock_is_refused_and_reading_is_not(shared: Any, what: str) -> None:
    client, _, (study, *_), (ada, ben) = shared
    assert change(client, study, "lock", ada).json()["holder"]["is_own"] is True
    refused = change(client, study, what, ben)
    assert refused.status_code == 409
    assert refused.json()["error"]["reason"] == "another reader has this study in hand; take it over first"
    assert refused.json()["error"]["got"] == "ada"
    seen = client.get(f"/api/v1/studies/{study}", headers=ben).json()
    assert (seen["version"], seen["state"]) == (1, "drafted")
    assert (holder(client, study, ben)["user"], holder(client, study, ben)["is_own"]) == ("ada", False)


def test_a_change_takes_a_free_lock_and_a_signature_ends_it(shared: Any) -> None:
    client, _, (study, other, _), (ada, ben) = shared
    assert holder(client, study, ada) is None
    assert change(client, study, "sentences", ada).status_code == 200
    assert change(client, study, "sentences", ben, 2).status_code == 409
    assert change(client, study, "looked", ada, 2).status_code == 200
    assert change(client, study, "sign", ada, 2).status_code == 200
    assert holder(client, study, ben) is None
    assert change(client, study, "lock", ben).json()["error"]["field"] == "state", "what is signed is not edited"
    assert change(client, other, "reject", ada).status_code == 200
    assert holder(client, other, ben) is None


def test_taking_over_names_the_holder_and_is_logged(shared: Any) -> None:
    client, _, (study, *_), (ada, ben) = shared
    number = change(client, study, "lock", ada).json()["holder"]["user_id"]
    place = f"/api/v1/studies/{study}"
    assert client.post(f"{place}/lock", json={"instead_of": number + 7}, headers=ben).status_code == 409
    taken = client.post(f"{place}/lock", json={"instead_of": number}, headers=ben).json()["holder"]
    assert (taken["user"], taken["is_own"]) == ("ben", True)
    assert change(client, study, "sentences", ada).json()["error"]["got"] == "ben"
    entries = [entry for entry in client.get(f"{place}/log").json()["entries"] if entry["action"] == "lock taken over"]
    assert [(entry["user_name"], entry["details"]) for entry in entries] == [("ben", {"from": number})]


def test_leaving_frees_only_ones_own_lock(shared: Any) -> None:
    client, _, (study, *_), (ada, ben) = shared
    change(client, study, "lock", ada)
    assert client.delete(f"/api/v1/studies/{study}/lock", headers=ben).status_code == 204
    assert holder(client, study, ben)["user"] == "ada"
    assert client.delete(f"/api/v1/studies/{study}/lock", headers=ada).status_code == 204
    assert holder(client, study, ben) is None
    assert change(client, study, "sentences", ben).status_code == 200


@pytest.mark.parametrize("seen", [-timedelta(minutes=15, seconds=1), CLOCK_SET_BACK + timedelta(seconds=9)])
def test_an_idle_lock_ends_and_a_change_renews_it(shared: Any, seen: timedelta) -> None:
    client, station, (study, *_), (ada, ben) = shared
    change(client, study, "lock", ada)

    def last_seen(when: Any) -> None:
        with station.database.writing() as connection:
            connection.execute(locks.update().values(renewed=when))

    last_seen(now() - timedelta(minutes=14))
    assert change(client, study, "looked", ada).status_code == 200
    with station.database.reading() as connection:
        assert connection.execute(sa.select(locks.c.renewed)).scalar_one() > now() - timedelta(minutes=1)
    last_seen(now() + seen)
    assert holder(client, study, ben) is None
    assert change(client, study, "sentences", ben).status_code == 200
    assert holder(client, study, ada)["user"] == "ben"


@pytest.mark.parametrize("end", ["log out", "disable"])
def test_a_reader_who_is_gone_leaves_all_studies(started: tuple[TestClient, Station], end: str) -> None:
    client, station = started
    with station.database.writing() as connection:
        study = add(connection, NewStudy("a"), owner=None)
        connection.execute(studies.update().values(state="drafted"))
    number = client.post("/api/v1/users", json={"name": "ada", "password": PASSWORD}).json()["id"]
    admin = dict(client.headers)
    client.headers.pop("Authorization")
    csrf = {"X-CSRF-Token": client.post("/api/v1/session", json={"name": "ada", "password": PASSWORD}).json()["csrf"]}
    assert client.post(f"/api/v1/studies/{study}/lock", json={}, headers=csrf).status_code == 200
    if end == "log out":
        client.delete("/api/v1/session", headers=csrf)
    else:
        client.cookies.clear()
        client.patch(f"/api/v1/users/{number}", json={"disabled": True}, headers=admin)
    with station.database.reading() as connection:
        assert connection.execute(sa.select(locks)).all() == []


RACE = """
import sys
from radweave.workstation.database import Database
from radweave.workstation.locks import HeldError, acquire
from radweave.workstation.users import User

database, number = Database(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
won = 0
for study in sys.argv[3:]:
    try:
        with database.writing() as connection:
            acquire(connection, study, User(number, "x", "reader"), idle_s=900)
        won += 1
    except HeldError:
        pass
print(won)
"""


def test_of_two_processes_one_gets_each_lock(database: Database, url: str) -> None:
    with database.writing() as connection:
        ids = [add(connection, NewStudy(str(number)), owner=None) for number in range(40)]
        readers = [add_user(connection, name, role="reader", password=None) for name in ("ada", "ben")]
    asking = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, url, str(reader), *ids],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for reader in readers
    ]
    for one in asking:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in asking:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    won = [int(one.communicate(timeout=60)[0]) for one in asking]
    assert sum(won) == len(ids)
    with database.reading() as connection:
        found = connection.execute(sa.select(locks.c.user_id)).scalars().all()
    assert [found.count(reader) for reader in readers] == won
