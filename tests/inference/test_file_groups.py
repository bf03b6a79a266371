"""Files become studies by their headers, and each is decoded once on the way to its report."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydicom.uid import generate_uid

from radweave.core.study import Report, View
from radweave.engine.restore import restore
from radweave.inference.bulk import FileGroup, generate_files, group_images
from radweave.inference.predictor import Predictor
from radweave.io.sandbox import Sandbox
from tests.image_files import chest, write_dicom
from tests.toys import toy_image


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the pixels of each file were decoded since."""
    counts: Counter[str] = Counter()
    call = Sandbox.call

    def counted(self: Sandbox, task: str, request: dict[str, Any], **options: Any) -> Any:
        if request.get("pixels", True):
            counts[Path(request["path"]).name] += 1
        return call(self, task, request, **options)

    monkeypatch.setattr(Sandbox, "call", counted)
    return counts


@pytest.fixture
def study(tmp_path: Path) -> list[Path]:
    """Two DICOM views of one study, one of another, and a PNG."""
    uids, rng = (generate_uid(), generate_uid()), np.random.default_rng(0)
    files = []
    for name, uid in (("a", uids[0]), ("b", uids[0]), ("c", uids[1])):
        image = chest(64, 64, noise=0.02) * rng.uniform(0.8, 1)
        files.append(write_dicom(tmp_path / f"{name}.dcm", image, StudyInstanceUID=uid))
    return [*files, toy_image(tmp_path / "d.png", bright_side="left", seed=1)]


def test_each_file_is_decoded_once_on_the_way_to_a_report(
    toy_run: Path, study: list[Path], decoded: Counter[str]
) -> None:
    groups = group_images(study, one_study=False)
    assert not decoded.keys() & {"a.dcm", "b.dcm", "c.dcm", "d.png"}
    assert [[path.name for path in group.images] for group in groups] == [["a.dcm", "b.dcm"], ["c.dcm"], ["d.png"]]
    results = list(generate_files(Predictor.of(restore(toy_run)), groups, force=True))
    assert all(isinstance(result, Report) for result in results)
    assert decoded == {"a.dcm": 1, "b.dcm": 1, "c.dcm": 1, "d.png": 1}


@pytest.mark.parametrize("views", [(), (View.FRONTAL, View.LATERAL, View.FRONTAL, View.FRONTAL)])
def test_a_view_whose_pixels_are_damaged_leaves_the_other_views_of_its_study(
    toy_run: Path, study: list[Path], views: tuple[View, ...]
) -> None:
    """Each file keeps the view that was stated for it."""
    predictor = Predictor.of(restore(toy_run))
    whole = list(generate_files(predictor, group_images(study[1:2], one_study=False, views=views[1:2]), force=True))
    write_dicom(study[0], np.full((64, 64), 0.5), StudyInstanceUID=study_uid(study[1]))
    groups = group_images(study, one_study=False, views=views)
    assert [len(group.images) for group in groups] == [2, 1, 1]
    refused, report, *others = generate_files(predictor, groups, force=True)
    assert isinstance(refused, FileGroup)
    assert "a.dcm" in str(refused.refused)
    assert isinstance(report, Report)
    assert isinstance(whole[0], Report)
    assert report.text == whole[0].text
    assert report.evidence["views"] == whole[0].evidence["views"]
    assert report.evidence["views"] == [{"file": "b.dcm", "view": "LATERAL" if views else "PA"}]
    assert all(isinstance(other, Report) for other in others)


def test_files_that_a_user_calls_one_study_are_reported_on_together_or_not_at_all(
    toy_run: Path, study: list[Path]
) -> None:
    study[3].write_bytes(b"\x89PNG\r\n\x1a\n no image")
    (group,) = group_images(study, one_study=True)
    (result,) = generate_files(Predictor.of(restore(toy_run)), [group], force=True)
    assert isinstance(result, FileGroup)
    assert "d.png" in str(result.refused)


def study_uid(path: Path) -> str:
    from pydicom import dcmread

    return str(dcmread(path).StudyInstanceUID)
