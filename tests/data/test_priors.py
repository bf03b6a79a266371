"""The prior of a study: of the same patient beyond doubt, and earlier."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from radweave.core.same_patient import newest_first, same_name, why_no_prior


@dataclass(frozen=True)
class Header:
    patient_id: str = "4711"
    issuer_of_patient_id: str = "HOUSE"
    patient_name: str = "Weber^Jana"
    patient_birth_date: str = "19500102"
    patient_sex: str = "F"
    study_instance_uid: str = "1.2"
    study_date: str = "20240301"
    study_time: str = "101500"


NOW = Header()
BEFORE = Header(study_instance_uid="1.1", study_date="20220301")


def why(now: dict[str, Any] | None = None, most_years: float | None = None, **before: Any) -> str | None:
    return why_no_prior(replace(NOW, **(now or {})), replace(BEFORE, **before), most_years=most_years)


def test_an_earlier_study_of_the_same_patient_is_a_prior() -> None:
    assert why() is None
    assert why(most_years=2.1) is None
    assert why(study_date="20240301", study_time="1014") is None
    assert why(issuer_of_patient_id="", patient_sex="", patient_birth_date="") is None
    assert why({"patient_name": ""}, patient_name="Weber^Jana") is None
    assert why(patient_id="4711 ", patient_name="WEBER^JANA^MARIA") is None


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ({"study_instance_uid": "1.2"}, "same_study"),
        ({"patient_id": ""}, "no_patient_id"),
        ({"patient_id": "4712"}, "other_patient_id"),  # an equal name with another id
        ({"patient_id": "04711"}, "other_patient_id"),
        ({"issuer_of_patient_id": "OTHER"}, "other_issuer"),
        ({"patient_name": "Kowalski^Ewa"}, "other_name"),  # ids that were swapped
        ({"patient_name": "Weber^Johann"}, "other_name"),
        ({"patient_birth_date": "19500103"}, "other_birth_date"),  # an id that was given again
        ({"patient_sex": "M"}, "other_sex"),
        ({"patient_name": "", "patient_birth_date": ""}, "too_little_identity"),
        ({"patient_name": "ANONYMOUS", "patient_birth_date": ""}, "too_little_identity"),
        ({"study_date": ""}, "no_date"),
        ({"study_date": "20240230"}, "no_date"),
        ({"study_date": "20240302"}, "not_earlier"),
        ({"study_date": "20240301"}, "not_earlier"),
        ({"study_date": "20240301", "study_time": ""}, "not_earlier"),
        ({"study_date": "20240301", "study_time": "10"}, "not_earlier"),
        ({"study_date": "20240301", "study_time": "101501"}, "not_earlier"),
        ({"study_date": "20190101"}, "too_old"),
    ],
)
def test_another_patients_or_no_earlier_study_is_none(before: dict[str, Any], reason: str) -> None:
    assert why(most_years=5, **before) == reason


@pytest.mark.parametrize("nobody", ["", "0", "0000", "ANON1", "Unknown", "xxx", "--"])
def test_placeholder_ids_have_no_prior(nobody: str) -> None:
    assert why({"patient_id": nobody}, patient_id=nobody) == "no_patient_id"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Müller^Jörg", "MUELLER^JOERG", True),
        ("Müller^Jörg", "Muller^Jorg", True),
        ("Straße^A", "STRASSE^A", True),
        ("O'Neil^Ann", "ONEIL^ANN^^Dr.", True),
        ("Weber^Jana Maria", "Weber^Jana^Maria", True),
        ("Weber^Anna-Lena", "Weber^Anna Lena", True),
        ("Weber", "Weber^Jana", True),
        ("Weber^J", "Weber^Jana", False),  # an initial fits too many
        ("Weber^Jana Maria", "Weber^Jana Lena", False),
        ("Weber^Jana", "Schmidt^Jana", False),
        ("Weber^Jana", "Jana^Weber", False),
        ("Yamada^Tarou=山田^太郎", "YAMADA^TAROU", True),
        ("Yamada^Tarou=山田^太郎", "Yamada^Tarou=山本^太郎", False),
        ("=山田^太郎", "Yamada^Tarou", None),
        ("रमेश^क", "रमश^क", False),  # a vowel sign is no accent
        ("", "Weber^Jana", None),
        ("^^^", "Weber^Jana", None),
        ("Unknown^Trauma", "Unknown^Trauma", None),
    ],
)
def test_names_of_possibly_one_person(one: str, other: str, same: bool | None) -> None:
    assert same_name(one, other) is same
    assert same_name(other, one) is same


def test_the_newest_comes_first() -> None:
    each = [replace(BEFORE, study_date=day, study_time=hour) for day, hour in (("2", "1"), ("3", "0"), ("2", "2"))]
    assert [(one.study_date, one.study_time) for one in newest_first(each)] == [("3", "0"), ("2", "2"), ("2", "1")]
