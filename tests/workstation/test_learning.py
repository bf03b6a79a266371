"""What operators see of readers' changes: right counts and intervals, nothing of too few, and nothing of a patient."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from radweave.metrics.statistics import wilson_interval
from radweave.workstation import learning
from radweave.workstation.database import evidence, log, signoffs
from radweave.workstation.learning import LEAST, SignedPair, figures
from radweave.workstation.station import Station
from tests.workstation.stations import log_in, one_draft
from tests.workstation.test_corrections import sign

PAIR = SignedPair(
    "s", None, 1, "2026-10", 60.0, 0, 2, 2, "w", frozenset({"Edema"}), frozenset({"Edema"}), frozenset(), frozenset(),
    {"Edema": 0.8, "Pneumonia": 0.2},
)  # fmt: skip


def pairs(count: int, **values: Any) -> list[SignedPair]:
    return [replace(PAIR, study=f"{values}{number}", **values) for number in range(count)]


def test_figures_are_counted_by_hand() -> None:
    edited = {"words_changed": 5, "sentences_accepted": 1, "seconds": 120.0}
    both = {"sided": frozenset({"Edema"})}
    given = [
        *pairs(10),
        *pairs(3, **edited, signed=frozenset()),  # invented
        *pairs(4, **edited, signed=frozenset({"Edema", "Fracture"}), **both),  # missed: Fracture
        *pairs(6, **edited, **both, other_side=frozenset({"Edema"})),
        *pairs(7, drafted=frozenset({"Fracture"}), signed=frozenset({"Fracture"})),
    ]
    shown = figures(given, rejected=10)
    low, high = wilson_interval(17, 30) or (0.0, 0.0)
    assert shown["acceptance"]["unchanged"] == {"value": 17 / 30, "low": low, "high": high, "count": 17, "of": 30}
    assert shown["acceptance"]["edited"]["count"] == 13
    assert shown["acceptance"]["rejected"]["value"] == pytest.approx(10 / 40)
    kept = shown["acceptance"]["sentences_kept"]
    assert (kept["count"], kept["of"], kept["value"]) == (47, 60, pytest.approx(47 / 60))
    assert kept["low"] < 47 / 60 < kept["high"]
    assert shown["seconds"]["value"] == 60
    assert shown["seconds"]["low"] <= 60 <= shown["seconds"]["high"] <= 120
    edema, fracture = shown["findings"]
    assert (edema["name"], edema["invented"]["count"], edema["invented"]["of"]) == ("Edema", 3, 23)
    assert (edema["other_side"]["count"], edema["other_side"]["of"]) == (6, 10)
    assert (edema["missed"]["count"], edema["missed"]["of"]) == (0, 20)
    assert (fracture["missed"]["count"], fracture["missed"]["of"]) == (4, 11)
    assert fracture["invented"] is None, "7 drafts are too few"
    assert fracture["other_side"] is None


def test_drift_is_drafted_probability_less_what_was_signed_by_month() -> None:
    calm = pairs(20)
    worse = [replace(pair, month="2026-11", signed=frozenset()) for pair in pairs(30, patient=None)]
    first, second = figures([*calm, *worse, *pairs(LEAST - 1, month="2026-12")], 0)["months"]
    assert (first["month"], first["studies"], second["month"], second["studies"]) == ("2026-10", 20, "2026-11", 30)
    assert first["probability"]["value"] == pytest.approx(0.5)
    assert first["signed"]["value"] == pytest.approx(0.5)
    assert first["drift"]["value"] == pytest.approx(0.0, abs=1e-12)
    assert second["drift"]["value"] == pytest.approx(0.5)
    assert second["drift"]["of"] == 60


def test_patients_are_resampled_whole() -> None:
    """Twenty studies of one patient say less than twenty of twenty."""
    alike = [replace(pair, words_changed=1, sentences_accepted=0) for pair in pairs(20)]
    many = [*(replace(pair, patient=str(number)) for number, pair in enumerate(alike)), *pairs(20)]
    one = [*(replace(pair, patient="same") for pair in alike), *pairs(20)]

    def width(given: list[SignedPair]) -> float:
        kept = figures(given, 0)["acceptance"]["sentences_kept"]
        return float(kept["high"] - kept["low"])

    assert width(one) > 1.5 * width(many)
    rows = list(learning.resampled(np.array([0, 1, 1, 2])))
    assert all((drawn == 1).sum() == (drawn == 2).sum() for drawn in rows)


def test_too_few_show_nothing() -> None:
    shown = figures(pairs(LEAST - 1), LEAST)
    assert (shown["studies"], shown["readers"], shown["seconds"]) == (None, None, None)
    assert (shown["findings"], shown["months"]) == ([], [])
    assert [shown["acceptance"][name] for name in ("unchanged", "edited", "sentences_kept")] == [None] * 3


def test_texts_are_read_with_findings_and_sides(started: tuple[TestClient, Station]) -> None:
    client, station = started
    study = str(one_draft(client)["id"])
    probable = [{"name": "Lung Opacity", "probability": 0.7, "calibrated": True},
                {"name": "Edema", "probability": 0.1, "calibrated": False},
                {"name": "no class", "probability": 0.1, "calibrated": True}]  # fmt: skip
    with station.database.writing() as connection:
        connection.execute(evidence.update().values(findings=probable))
    edits = [{"op": "replace", "key": 1, "text": "There is an opacity on the right. There is a left pleural effusion."}]
    assert client.patch(f"/api/v1/studies/{study}/sentences", json={"version": 1, "edits": edits}).status_code == 200
    assert client.post(f"/api/v1/studies/{study}/sign", json={"version": 2, "seconds": 31}).status_code == 200
    with station.database.reading() as connection:
        (pair,) = station.signed_pairs.all(connection)
    assert pair.drafted == {"Lung Opacity"}
    assert pair.signed == {"Lung Opacity", "Pleural Effusion"}
    assert (pair.sided, pair.other_side) == ({"Lung Opacity"}, {"Lung Opacity"})
    assert (dict(pair.probabilities), pair.seconds) == ({"Lung Opacity": 0.7}, 31)
    with station.database.writing() as connection:
        connection.execute(signoffs.update().values(edit_distance_words=0))
    with station.database.reading() as connection:
        assert learning.SignedPairs("xray").all(connection) == [], "an altered report is no evidence"


def test_the_page_is_for_admins_and_names_nobody(started: tuple[TestClient, Station]) -> None:
    client, station = started
    ids = []
    for number in range(LEAST):
        ids.append(str(one_draft(client)["id"]))
        if number == LEAST - 1:
            assert client.get("/api/v1/learning").json()["studies"] is None
        sign(client, ids[-1], *([f"Canary number {number}."] if number % 2 else []))
    answer = client.get("/api/v1/learning")
    shown = answer.json()
    assert (shown["studies"], shown["acceptance"]["unchanged"]["count"]) == (LEAST, LEAST // 2)
    assert shown["months"][0]["month"] == f"{datetime.now(UTC):%Y-%m}"
    for secret in ("Canary", "chest.png", *ids):
        assert secret not in json.dumps(shown)
    with station.database.reading() as connection:
        entries = connection.execute(sa.select(sa.func.count()).select_from(log)).scalar_one()
    assert client.get("/api/v1/learning").json() == shown, "the same every time"
    with station.database.reading() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(log)).scalar_one() == entries
    csrf = log_in(client, "reader")
    assert client.get("/api/v1/learning", headers=csrf).status_code == 403
    page = client.get("/learning", headers={"accept": "text/html"})
    assert (page.status_code, "for admins" in page.text) == (403, True)
