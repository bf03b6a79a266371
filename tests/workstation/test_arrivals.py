"""Objects that came in lie in a folder for each study: two patients never in one, and nothing that fits no route."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from radweave.workstation.hospital import Arrivals
from radweave.workstation.hospital_plan import Route
from tests.workstation.hospitals import image

CHEST = Route(modality=("CR",), body_part=("CHEST", ""))


def sorted_into(folder: Path, *came: dict[str, Any]) -> tuple[list[int], Counter[str]]:
    """How many images each study has after a look at these objects, and what was counted."""
    place, counted = folder / "association", Counter[str]()
    place.mkdir()
    for number, tags in enumerate(came):
        image(place / f"{number}.dcm", **tags)
    routes = {"": (CHEST,)}
    Arrivals(routes, 60, folder, lambda files, name, prior: True, lambda name: counted.update([name])).run_once()
    assert not place.exists()
    return sorted(len(list(study.iterdir())) for study in (folder / "studies").iterdir()), counted


def test_two_patients_with_one_study_uid_make_two_studies(tmp_path: Path) -> None:
    came = [{"PatientID": patient, "StudyInstanceUID": "1.2.3"} for patient in ("A", "A", "B")]
    assert sorted_into(tmp_path, *came) == ([1, 2], Counter())


def test_objects_without_a_route_are_dropped_and_counted(tmp_path: Path) -> None:
    came = [{"StudyInstanceUID": "1.2.3", "BodyPartExamined": part} for part in ("CHEST", "HAND", "")]
    assert sorted_into(tmp_path, *came) == ([2], Counter(objects_not_routed=1))
