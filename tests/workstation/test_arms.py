"""Studies read with and without their draft: nothing of a hidden draft is shown, and the arms are compared rightly."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from radweave.labels import LABELER_OF, get_labeler
from radweave.workstation.database import Database, arms
from radweave.workstation.learning import LEAST
from radweave.workstation.reader_study import BLIND, WITH, WITHOUT, Reading, assign, figures, readings
from radweave.workstation.settings import Settings
from radweave.workstation.station import Station
from radweave.workstation.store import NewStudy, add
from tests.command_line import radweave
from tests.workstation.fake_workers import worker_with_maps
from tests.workstation.stations import one_draft, running

FINDINGS = ("Lung / Opacity", "The heart is normal", "opacity on the left", "The lungs are clear", "t1")


def arm_of(station: Station, study: str) -> str:
    with station.database.reading() as connection:
        return str(connection.execute(sa.select(arms.c.arm).where(arms.c.study_id == study)).scalar_one())


@pytest.fixture
def studied(settings: Settings) -> Any:
    """A client, a station and four drafted studies by their arm."""
    with running(settings.model_copy(update={"reader_study": True}), worker_with_maps) as (client, station):
        ids: dict[str, list[str]] = {WITH: [], WITHOUT: []}
        for _ in range(4):
            study = str(one_draft(client)["id"])
            ids[arm_of(station, study)].append(study)
        yield client, station, ids


def test_a_block_has_as_many_of_each_arm_and_other_secrets_another_order(database: Database) -> None:
    orders = []
    for secret in (b"a", b"b", b"c"):
        with database.writing() as connection:
            connection.execute(arms.delete())
            for number in range(24):
                study = add(connection, NewStudy(str(number)), owner=None)
                assign(connection, study, secret)
                assign(connection, study, b"another")  # of later images: the arm stays
            orders.append(connection.execute(sa.select(arms.c.arm).order_by(sa.text("rowid"))).scalars().all()
                          if connection.dialect.name == "sqlite" else
                          connection.execute(sa.select(arms.c.arm)).scalars().all())  # fmt: skip
    for order in orders:
        assert all(Counter(order[start : start + 4]) == {WITH: 2, WITHOUT: 2} for start in range(0, 24, 4))
    assert len({tuple(order) for order in orders}) > 1


def test_nothing_of_a_hidden_draft_is_shown_before_it_is_signed(studied: Any) -> None:
    client, _, ids = studied
    assert (len(ids[WITH]), len(ids[WITHOUT])) == (2, 2)
    study = ids[WITHOUT][0]
    place = f"/api/v1/studies/{study}"
    seen = client.get(place).json()
    assert (seen["state"], seen["version"], seen["draft"]["sentences"], seen["warnings"]) == ("drafted", 2, [], [BLIND])
    hidden = [client.get(f"{place}{end}") for end in ("", "/evidence", "/images", "/prior", "/log", "/versions/2")]
    assert {answer.status_code for answer in hidden} == {200}
    refused = [
        client.get(f"{place}/versions/1"), client.get(f"{place}/maps/Lung / Opacity"), client.get(f"{place}/report"),
        client.patch(f"{place}/sentences", json={"version": 2, "edits": [{"op": "restore", "version": 1}]}),
    ]  # fmt: skip
    assert [answer.status_code for answer in refused] == [404, 404, 409, 404]
    text = "".join(answer.text for answer in (*hidden, *refused))
    assert [words for words in FINDINGS if words in text] == []
    shown = client.get(f"/api/v1/studies/{ids[WITH][0]}").text
    assert "The heart is normal" in shown
    assert "Lung / Opacity" in client.get(f"/api/v1/studies/{ids[WITH][0]}/images").text

    edits = [{"op": "insert", "text": "There is an opacity on the left."}]
    (own,) = client.patch(f"{place}/sentences", json={"version": 2, "edits": edits}).json()["sentences"]
    assert (own["flagged"], own["details"], own["verdict"]) == (False, {}, "edited"), "as it is in the hidden draft"
    assert client.post(f"{place}/sign", json={"version": 3, "seconds": 50}).status_code == 200
    assert client.get(f"{place}/versions/1").json()["text"].startswith("The heart is normal.")
    assert client.get(f"{place}/report?format=text").status_code == 200


def test_arms_are_compared_by_the_draft_that_was_hidden(studied: Any) -> None:
    client, station, ids = studied
    study, other = ids[WITHOUT][0], ids[WITH][0]
    edits = [{"op": "insert", "text": "The heart is large. There is an opacity on the left."}]
    client.patch(f"/api/v1/studies/{study}/sentences", json={"version": 2, "edits": edits})
    assert client.post(f"/api/v1/studies/{study}/sign", json={"version": 3, "seconds": 50}).status_code == 200
    client.post(f"/api/v1/studies/{other}/looked", json={"version": 1, "sentences": [1]})
    assert client.post(f"/api/v1/studies/{other}/sign", json={"version": 1, "seconds": 20}).status_code == 200
    with station.database.reading() as connection:
        labeler = get_labeler(LABELER_OF["xray"])
        rows = readings(connection, labeler, lambda name: "An opacity. A left pleural effusion.")
        assert [pair.study for pair in station.signed_pairs.all(connection)] == [other], "not a hidden one"
    assert [(row.arm, row.seconds, row.words) for row in rows] == [(WITHOUT, 50, 1), (WITH, 20, 0)]
    assert [row.agreement for row in rows] == [(1, 1, 1), (1, 0, 1)]
    shown = client.get("/api/v1/reader-study").json()
    assert shown["studies"] == {WITH: 1, WITHOUT: 1}
    assert shown["seconds"] == {WITH: None, WITHOUT: None, "difference": None}


def test_figures_of_arms_are_counted_by_hand() -> None:
    row = Reading("s", None, "ada", WITH, 20.0, 0, (1, 0, 1))
    rows = [replace(row, study=str(number)) for number in range(LEAST)]
    rows += [replace(row, study=f"w{number}", arm=WITHOUT, seconds=50.0 + number % 2, agreement=(1, 1, 1), words=9)
             for number in range(LEAST + 10)]  # fmt: skip
    rows += [replace(row, study="b", reader="ben", agreement=None)]
    shown = figures(rows)
    assert shown["studies"] == {WITH: LEAST + 1, WITHOUT: LEAST + 10}
    assert (shown["seconds"][WITH]["value"], shown["seconds"][WITH]["of"]) == (20, LEAST + 1)
    difference = shown["seconds"]["difference"]
    assert difference["value"] == pytest.approx(-30.5)
    assert -31 <= difference["low"] <= -30.5 <= difference["high"] <= -30
    assert shown["agreement"][WITH]["value"] == pytest.approx(2 / 3)
    assert shown["agreement"][WITHOUT]["value"] == pytest.approx(1 / 2)
    assert shown["agreement"]["difference"]["value"] == pytest.approx(1 / 6)
    assert shown["words"]["difference"]["value"] == -9
    ada, ben = shown["readers"]
    assert (ada["reader"], ada["seconds"][WITH]["of"]) == ("ada", LEAST)
    assert (ben["reader"], ben["seconds"][WITH]) == ("ben", None)


def test_it_goes_without_archives(toy_run: Path, tmp_path: Path) -> None:
    refused = radweave("serve", toy_run, "--reader-study", "--hospital", tmp_path / "plan.yaml")
    assert refused.returncode == 2
    assert "'--reader-study': goes without --hospital" in " ".join(refused.stderr.split())
    assert not toy_run.with_name("run.workstation").exists()
