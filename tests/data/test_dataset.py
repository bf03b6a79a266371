"""The dataset folder: schema, streaming, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pydantic import ValidationError

from radweave.core.errors import InputError
from radweave.core.study import ImageRef, Split, Study
from radweave.data.dataset import Dataset, DatasetCard, DatasetWriter
from radweave.data.examples import refuse_leaks
from tests.toys import write_toy_dataset


def test_studies_come_back_as_they_went_in(toy_dataset: Dataset) -> None:
    studies = list(toy_dataset.studies())
    assert len(studies) == 22
    assert toy_dataset.card.counts == {
        "images": 30,
        "studies": 22,
        "studies_test": 6,
        "studies_train": 12,
        "studies_val": 4,
    }
    assert [study.study_id for study in toy_dataset.studies("val")] == ["s012", "s013", "s014", "s015"]
    assert studies[0].images[1].view == "LATERAL"
    assert toy_dataset.image_path(studies[0].images[0].path).is_file()


def test_the_same_studies_give_the_same_bytes(toy_dataset: Dataset, tmp_path: Path) -> None:
    second = write_toy_dataset(tmp_path / "again", tmp_path / "sources")
    assert second.fingerprint() == toy_dataset.fingerprint()
    assert (second.path / "dataset.json").read_bytes() == (toy_dataset.path / "dataset.json").read_bytes()


def test_a_duplicate_id_is_refused_when_writing_and_leaves_nothing(tmp_path: Path) -> None:
    study = Study(study_id="a", patient_id="p")
    with (
        pytest.raises(InputError, match="comes twice"),
        DatasetWriter(tmp_path / "d", DatasetCard(name="x")) as writer,
    ):
        writer.add(study)
        writer.add(study)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["/etc/passwd", "../x.png", "a/../../x.png", "C:/x.png", "a\\b.png", ""])
def test_an_image_path_that_leaves_the_folder_is_refused(path: str) -> None:
    with pytest.raises(ValidationError, match="stay inside"):
        ImageRef(path=path)


@pytest.mark.parametrize("study_id", ["a/b", "..", "a\nb", ""])
def test_an_id_that_is_no_plain_name_is_refused(study_id: str) -> None:
    with pytest.raises(ValidationError):
        Study(study_id=study_id, patient_id="p")


def test_a_link_out_of_the_folder_is_refused(toy_dataset: Dataset, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(toy_dataset.path, copy)
    outside = tmp_path / "outside.png"
    shutil.copyfile(copy / "images/0_0.png", outside)
    (copy / "images/0_0.png").unlink()
    (copy / "images/0_0.png").symlink_to(outside)
    with pytest.raises(InputError, match="outside the dataset folder"):
        Dataset.open(copy).image_path("images/0_0.png")


def _with_line(source: Dataset, folder: Path, line: str) -> Dataset:
    shutil.copytree(source.path, folder)
    with (folder / "manifest.jsonl").open("a") as file:
        file.write(line + "\n")
    return Dataset.open(folder)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{oops", "line 23"),
        (json.dumps({"study_id": "x"}), "patient_id"),
        (json.dumps({"study_id": "x", "patient_id": "p", "colour": 1}), "colour"),
        (json.dumps({"study_id": "s000", "patient_id": "p"}), "comes twice"),
        (json.dumps({"study_id": "x", "patient_id": "p", "images": [{"path": "../../x.png"}]}), "stay inside"),
    ],
)
def test_a_bad_manifest_line_is_named(toy_dataset: Dataset, tmp_path: Path, line: str, words: str) -> None:
    dataset = _with_line(toy_dataset, tmp_path / "bad", line)
    with pytest.raises(InputError, match=words) as caught:
        list(dataset.studies())
    assert "line 23" in str(caught.value)


def test_a_folder_that_is_no_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"dataset\.json is missing"):
        Dataset.open(tmp_path)
    with pytest.raises(InputError, match="no such dataset folder"):
        Dataset.open(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("change", "kind"),
    [({"patient_id": "p000"}, "patient"), ({"images": [{"path": "images/0_0.png"}]}, "image")],
)
def test_a_planted_leak_between_splits_is_refused(
    toy_dataset: Dataset, tmp_path: Path, change: dict[str, object], kind: str
) -> None:
    line = json.dumps({"study_id": "leak", "patient_id": "p999", "split": "test"} | change)
    dataset = _with_line(toy_dataset, tmp_path / "leak", line)
    with pytest.raises(InputError, match=f"leak: 1 studies of 'test' and 'train' share a {kind}"):
        refuse_leaks(dataset)


def test_the_clean_dataset_passes(toy_dataset: Dataset) -> None:
    refuse_leaks(toy_dataset)


@pytest.mark.parametrize("same_patients", [True, False])
def test_missing_images_of_two_sets_are_different(tmp_path: Path, same_patients: bool) -> None:
    """A path says nothing beyond its own data set; within one it is one file, there or not."""

    def written(name: str, *splits: Split) -> Dataset:
        folder = tmp_path / name
        with DatasetWriter(folder, DatasetCard(name=name)) as writer:
            for split in splits:
                missing = (ImageRef(path="images/missing.png"),)
                patient = f"{name} {split}"
                writer.add(Study(study_id=patient, patient_id=patient, split=split, images=missing, report="A."))
        return Dataset.open(folder)

    refuse_leaks(written("one", "train"), written("other", "test"), same_patients=same_patients)
    with pytest.raises(InputError, match="share a image"):
        refuse_leaks(written("both", "train", "test"), same_patients=same_patients)
