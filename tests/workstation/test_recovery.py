"""Ends in the middle: of the inference process, of the server. Every study is drafted once and no edit is lost."""

from __future__ import annotations

import os
import signal
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from radweave.core.errors import InputError
from radweave.workstation import drafts, store
from radweave.workstation.database import Database, studies
from radweave.workstation.find_prior import Prior
from radweave.workstation.inference import main
from radweave.workstation.settings import Limits, Settings
from radweave.workstation.station import Station, alone
from radweave.workstation.store import NewStudy
from tests.toys import toy_image
from tests.workstation.fake_workers import CRASH, HANG, IMAGE, drafted
from tests.workstation.load import until
from tests.workstation.stations import one_draft, running, upload, wait_for

BEFORE_ALL = datetime(2001, 1, 1, tzinfo=UTC)


def test_the_real_process_is_killed_and_every_study_drafted_once(settings: Settings, tmp_path: Path) -> None:
    images = [
        toy_image(tmp_path / f"{side}.png", bright_side=side, seed=seed).read_bytes()
        for seed, side in enumerate(("left", "right"))
    ]
    with running(settings, main) as (client, station):
        ids = upload(client, ("a.png", images[0]), ("b.png", images[1]), ("c.txt", b"no image")).json()["studies"]
        os.kill(until(lambda: station.inference.pid, 120), signal.SIGKILL)
        result = [wait_for(client, study, "drafted", "refused", seconds=240) for study in ids]
        assert [row["state"] for row in result] == ["drafted", "drafted", "refused"]
        for row in result[:2]:
            assert row["draft"]["text"] == " ".join(one["text"] for one in row["draft"]["sentences"])
            assert row["findings"]
            assert row["model"]["method"] == "baseline"
            # A map would lie over a square that holds the image, whichever its sides are.
            (view,) = client.get(f"/api/v1/studies/{row['id']}/evidence").json()["evidence"]["views"]
            (about,) = client.get(f"/api/v1/studies/{row['id']}/images").json()["images"]
            sides = [
                extent * side
                for (_, extent), side in zip(view["covers"], (about["rows"], about["columns"]), strict=True)
            ]
            assert view["image"] == 0
            assert sides == pytest.approx([max(about["rows"], about["columns"])] * 2, rel=0.05)
            actions = [entry["action"] for entry in client.get(f"/api/v1/studies/{row['id']}/log").json()["entries"]]
            assert actions.count("drafted") == 1
        assert str(settings.files) not in result[2]["reason"]
        assert client.get("/api/v1/log/check").json()["broken_at"] is None


def test_a_study_that_ends_the_process_is_refused_and_the_others_are_drafted(settings: Settings) -> None:
    with running(settings.model_copy(update={"tries": 2})) as (client, _):
        ids = upload(client, ("a.png", IMAGE), ("b.png", CRASH), ("c.png", IMAGE)).json()["studies"]
        result = [wait_for(client, study, "drafted", "refused") for study in ids]
        assert [row["state"] for row in result] == ["drafted", "refused", "drafted"]
        assert result[1]["reason"] == "the inference process ended"


def test_a_draft_above_the_time_limit_is_refused(settings: Settings) -> None:
    with running(settings.model_copy(update={"tries": 1, "study_s": 0.3})) as (client, _):
        (study,) = upload(client, ("a.png", HANG)).json()["studies"]
        assert "longer than" in wait_for(client, study, "refused")["reason"]
        one_draft(client)


def test_a_restarted_server_loses_and_duplicates_nothing(settings: Settings) -> None:
    with running(settings) as (client, station):
        study = one_draft(client)["id"]
        edits = [{"op": "insert", "text": "Seen."}]
        client.patch(f"/api/v1/studies/{study}/sentences", json={"version": 1, "edits": edits})
        token = dict(client.headers)["authorization"]
    database = Database(settings.url)
    with database.writing() as connection:  # as a server leaves it that was killed while it drafted
        image = settings.files / "upload" / "a.png"
        image.parent.mkdir()
        image.write_bytes(IMAGE)
        waiting = store.add(connection, NewStudy("a", ((image.absolute(), "a"),)), owner=None)
        assert [job.id for job in store.claim(connection, 8)] == [waiting]
    database.close()
    (settings.files / "orphan").mkdir()
    with running(settings) as (client, station):
        assert station.token is None
        client.headers["Authorization"] = token
        wait_for(client, waiting, "drafted")
        assert client.get(f"/api/v1/studies/{study}").json()["draft"]["text"].startswith("Seen.")
        assert client.get("/api/v1/studies").json()["total"] == 2
        assert not (settings.files / "orphan").exists()


def test_a_draft_is_kept_once_and_not_after_a_cancel(url: str) -> None:
    database = Database(url)
    with database.writing() as connection:
        first, second = (store.add(connection, NewStudy(name), owner=None) for name in "ab")
        store.claim(connection, 2)
        assert [store.finish(connection, first, drafted(first)) for _ in range(2)] == [True, False]
        assert store.refuse(connection, second, store.CANCELLED)
        assert not store.finish(connection, second, drafted(second))
    database.close()


def test_concurrent_claims_never_get_the_same_study(url: str) -> None:
    database = Database(url)
    with database.writing() as connection:
        for number in range(40):
            store.add(connection, NewStudy(str(number)), owner=None)
    claimed: list[str] = []

    def claim() -> None:
        while True:
            with database.writing() as connection:
                jobs = store.claim(connection, 3)
            if not jobs:
                return
            claimed.extend(job.id for job in jobs)

    threads = [threading.Thread(target=claim) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(claimed) == len(set(claimed)) == 40
    database.close()


def test_a_second_server_on_one_state_is_refused(settings: Settings) -> None:
    with alone(settings), pytest.raises(InputError, match="another server"), alone(settings):
        pass


def test_a_second_server_on_one_database_is_refused(settings: Settings, tmp_path: Path) -> None:
    url = settings.database or f"sqlite:///{tmp_path / 'shared.db'}"
    first, second = (
        settings.model_copy(update={"database": url, "state": tmp_path / name, "drain_s": 0.1}) for name in "ab"
    )
    with running(first) as (client, _):
        (study,) = upload(client, ("a.png", HANG)).json()["studies"]
        wait_for(client, study, "drafting")
        with pytest.raises(InputError, match="another server"):
            Station(second)
        assert client.get(f"/api/v1/studies/{study}").json()["state"] == "drafting"
        client.post(f"/api/v1/studies/{study}/cancel")
    with running(second) as (_, station):
        assert station.token is None


def test_the_limit_of_waiting_studies_covers_concurrent_uploads(settings: Settings) -> None:
    with running(settings.model_copy(update={"limits": Limits(waiting=3), "drain_s": 0.1})) as (client, _):
        (study,) = upload(client, ("hang.png", HANG)).json()["studies"]
        wait_for(client, study, "drafting")
        answers: list[int] = []
        threads = [
            threading.Thread(target=lambda: answers.append(upload(client, ("a.png", IMAGE)).status_code))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(answers) == [202] * 2 + [503] * 6
        client.post(f"/api/v1/studies/{study}/cancel")


def _states(database: Database) -> dict[str, tuple[str, int]]:
    with database.reading() as connection:
        rows = connection.execute(sa.select(studies.c.name, studies.c.state, studies.c.tries)).all()
    return {row.name: (row.state, row.tries) for row in rows}


def test_a_retried_study_is_drafted_alone(url: str) -> None:
    """A study that ended a process may end the next one too: it must take no other with it."""
    database = Database(url)
    with database.writing() as connection:
        names = {store.add(connection, NewStudy(name), owner=None): name for name in "abcde"}

        def claimed() -> str:
            return "".join(sorted(names[job.id] for job in store.claim(connection, 8)))

        assert claimed() == "abcde"
        ids = {name: study for study, name in names.items()}
        assert store.give_back(connection, [ids["b"], ids["d"]], tries=3, reason="ended") == []
        names[store.add(connection, NewStudy("f"), owner=None)] = "f"
        names[store.add(connection, NewStudy("g"), owner=None)] = "g"
        assert [claimed() for _ in range(4)] == ["b", "d", "fg", ""]
        # One that is not the oldest does not go with the others either.
        names[store.add(connection, NewStudy("h"), owner=None)] = "h"
        assert store.give_back(connection, [ids["d"]], tries=3, reason="ended") == []
        connection.execute(studies.update().where(studies.c.name == "h").values(created=BEFORE_ALL))
        assert [claimed() for _ in range(3)] == ["h", "d", ""]
    database.close()


def test_the_end_of_a_server_does_not_count_as_an_attempt(url: str) -> None:
    database = Database(url)
    with database.writing() as connection:
        ids = [store.add(connection, NewStudy(name), owner=None) for name in "abc"]
        store.claim(connection, 2)
        store.give_back(connection, ids[:1], tries=3, reason="ended")
        store.claim(connection, 1)
    assert _states(database) == {"a": ("drafting", 2), "b": ("drafting", 1), "c": ("waiting", 0)}
    with database.writing() as connection:
        assert store.recover(connection) == 2
    assert _states(database) == {"a": ("waiting", 1), "b": ("waiting", 0), "c": ("waiting", 0)}
    with database.writing() as connection:
        connection.execute(studies.update().values(state="drafting", tries=0))  # as an older program left it
        assert store.recover(connection) == 3
    assert _states(database) == dict.fromkeys("abc", ("waiting", 0))
    database.close()


@pytest.mark.parametrize(("tries", "given_up"), [(2, False), (3, True), (4, True)])
def test_a_study_is_refused_after_its_last_attempt(url: str, tries: int, given_up: bool) -> None:
    database = Database(url)
    with database.writing() as connection:
        study = store.add(connection, NewStudy("a"), owner=None)
        store.claim(connection, 1)
        connection.execute(studies.update().values(tries=tries))
        assert store.give_back(connection, [study], tries=3, reason="it ended") == ([study] if given_up else [])
        assert store.reason_of(connection, study) == ("it ended" if given_up else "")
    assert _states(database) == {"a": ("refused" if given_up else "waiting", tries)}
    database.close()


@pytest.mark.parametrize(
    ("prior", "prior_warnings"),
    [
        (None, []),
        (Prior("none"), list(Prior("none").warnings)),
        (Prior("late"), list(Prior("late").warnings)),
        (Prior("failed"), list(Prior("failed").warnings)),
        (Prior("refused", reason="other_name"), list(Prior("refused", reason="other_name").warnings)),
    ],
)
def test_a_draft_carries_the_outcome_of_the_search_for_its_prior(
    url: str, prior: Prior | None, prior_warnings: list[str]
) -> None:
    assert bool(prior_warnings) == (prior is not None and prior.outcome in ("late", "failed", "refused"))
    database = Database(url)
    with database.writing() as connection:
        study = store.add(connection, NewStudy("a", prior=prior), owner=None)
        store.claim(connection, 1)
        store.finish(connection, study, {**drafted(study), "warnings": ["of the model"]})
        evidence = drafts.read_evidence(connection, study)
    assert evidence is not None
    assert evidence["warnings"] == ["of the model", *prior_warnings]
    database.close()
