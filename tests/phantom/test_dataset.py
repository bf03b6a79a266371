"""The dataset folder a phantom is written to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from radweave.core.errors import InputError
from radweave.core.storage import sha256_file
from radweave.phantom import study as phantom_dataset
from radweave.phantom.study import PhantomOptions, draw_xray_study, write_phantom_dataset

SMALL = PhantomOptions(image_size=32)


def folder_hashes(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): sha256_file(p) for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.long
def test_same_seed_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_phantom_dataset(tmp_path / name, modality="xray", num_studies=9, seed=3, options=SMALL)
    assert folder_hashes(tmp_path / "a") == folder_hashes(tmp_path / "b")


@pytest.mark.long
def test_files_do_not_depend_on_the_number_of_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phantom_dataset, "STUDIES_PER_PROCESS", 3)
    for jobs in (1, 2):
        write_phantom_dataset(tmp_path / str(jobs), modality="xray", num_studies=7, seed=3, options=SMALL, jobs=jobs)
    assert folder_hashes(tmp_path / "1") == folder_hashes(tmp_path / "2")


def test_images_are_as_drawn_and_hashed(tmp_path: Path) -> None:
    dataset = write_phantom_dataset(tmp_path / "d", modality="xray", num_studies=3, seed=0, options=SMALL)
    for index, study in enumerate(dataset.studies()):
        drawn = draw_xray_study(0, index, SMALL)
        for ref, image in zip(study.images, drawn.images, strict=True):
            path = dataset.image_path(ref.path)
            assert sha256_file(path) == ref.sha256
            with Image.open(path) as file:
                assert file.mode == "L"
                np.testing.assert_array_equal(np.asarray(file), image.pixels)


@pytest.mark.long
def test_patients_stay_in_one_split_and_shares_hold(tmp_path: Path) -> None:
    dataset = write_phantom_dataset(
        tmp_path / "d", modality="xray", num_studies=80, seed=1, options=SMALL.model_copy(update={"lateral_share": 0.0})
    )
    splits: dict[str, set[str]] = {}
    for study in dataset.studies():
        splits.setdefault(study.patient_id, set()).add(str(study.split))
    assert all(len(s) == 1 for s in splits.values())
    share = {name: sum(s == {name} for s in splits.values()) / len(splits) for name in ("train", "val", "test")}
    assert share == {"train": 0.7, "val": 0.1, "test": 0.2}


@pytest.mark.parametrize(("studies", "seed"), [(0, 0), (5, -1)])
def test_numbers_out_of_range_are_refused(tmp_path: Path, studies: int, seed: int) -> None:
    with pytest.raises(InputError):
        write_phantom_dataset(tmp_path / "d", modality="xray", num_studies=studies, seed=seed)
    assert not (tmp_path / "d").exists()
