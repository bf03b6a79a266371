"""The check names every planted fault and leak, and stays silent on a sound data set."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage
from typer.testing import CliRunner

from radweave.cli.data import app
from radweave.core.study import ImageRef, Study, View
from radweave.data.cache.arrays import in_order
from radweave.data.check import (
    IN_A_CIRCLE,
    NOT_EARLIER,
    NOT_ENGLISH,
    OF_ANOTHER_PATIENT,
    TOO_ALIKE,
    CheckReport,
    check_dataset,
    is_english,
    not_english,
    prior_faults,
)
from radweave.data.dataset import DatasetCard, DatasetWriter
from radweave.data.leaks.images import Copy, ImageIndex, descriptor, thumbnail
from radweave.data.leaks.texts import TextIndex, normalised
from radweave.phantom.study import PhantomOptions, write_phantom_dataset
from tests.image_files import write_dicom

Rows = list[dict[str, Any]]


def picture(seed: int, side: int = 64) -> NDArray[np.uint8]:
    """A smooth random picture, as unlike others as chests are."""
    coarse = np.random.default_rng(seed).integers(0, 256, (8, 8), np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC))


def png(pixels: NDArray[np.uint8], **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", **options)
    return buffer.getvalue()


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Six sound studies: four train, one val, one test; each with one picture of its own."""
    source = tmp_path / "source"
    source.mkdir()
    with DatasetWriter(tmp_path / "data", DatasetCard(name="x")) as writer:
        for number, split in enumerate(("train", "train", "train", "train", "val", "test")):
            file = source / f"{number}.png"
            file.write_bytes(png(picture(number)))
            image = ImageRef(path=f"images/{number}.png", view=View.PA, sha256=_sha(file.read_bytes()))
            study = Study.model_validate(
                {
                    "study_id": f"s{number}",
                    "patient_id": f"p{number}",
                    "split": split,
                    "images": [image.model_dump()],
                    "report": f"An opacity, number {number}, is in the zone {number * 7} beside marker {number * 3}.",
                    "labels": {"chexpert14": {"Edema": "positive" if number else "blank"}},
                }
            )
            writer.add(study, {image.path: file})
    return tmp_path / "data"


def _sha(data: bytes) -> str:
    from radweave.core.storage import sha256_bytes

    return sha256_bytes(data)


def rows_of(dataset: Path) -> Rows:
    return [json.loads(line) for line in (dataset / "manifest.jsonl").read_text().splitlines()]


def plant(dataset: Path, change: Callable[[Rows], None]) -> CheckReport:
    rows = rows_of(dataset)
    change(rows)
    (dataset / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return check_dataset(dataset)


def add_copy(rows: Rows, of: int, **changes: Any) -> None:
    rows.append({**rows[of], **changes})


def add_image(dataset: Path, name: str, data: bytes) -> dict[str, Any]:
    (dataset / "images" / name).write_bytes(data)
    return {"path": f"images/{name}", "view": "PA", "sha256": _sha(data)}


def kinds(faults: list[Any]) -> dict[str, int]:
    return {fault.kind: fault.count for fault in faults}


def test_a_sound_data_set_has_no_fault(dataset: Path) -> None:
    report = check_dataset(dataset)
    assert (report.errors, report.leaks, report.warnings) == ([], [], [])
    assert report.exit_code == 0
    assert report.to_json() == {
        "studies": {"test": 1, "train": 4, "val": 1},
        "patients": 6,
        "images": 6,
        "views": {"PA": 6},
        "labels": {"chexpert14": {"Edema": {"blank": 1, "positive": 5}}},
        "boxes": {},
        "report_words": {"test": {"10": 1}, "train": {"10": 4}, "val": {"10": 1}},
        "errors": [],
        "leaks": [],
        "warnings": [],
    }


def test_only_patients_in_two_splits_are_leaks(dataset: Path) -> None:
    def without_split(rows: Rows) -> None:
        rows[0].update(split=None, patient_id="p5")  # p5 is of test

    assert plant(dataset, without_split).leaks == []

    def of_another_split(rows: Rows) -> None:
        rows[1]["patient_id"] = "p5"

    assert kinds(plant(dataset, of_another_split).leaks) == {"same patient in two splits": 1}


def test_leak_same_study_id_in_two_splits(dataset: Path) -> None:
    other = add_image(dataset, "other.png", png(picture(50)))
    report = plant(dataset, lambda rows: add_copy(rows, 5, split="train", patient_id="px", images=[other], report="B."))
    assert kinds(report.leaks) == {"same study id in two splits": 1}
    assert report.leaks[0].lines == ((6, 7),)
    assert report.exit_code == 1


def test_leak_same_patient_in_two_splits(dataset: Path) -> None:
    report = plant(dataset, lambda rows: rows[5].update(patient_id="p0"))
    assert kinds(report.leaks) == {"same patient in two splits": 1}
    assert report.leaks[0].lines == ((1, 6),)


def test_leak_same_image_bytes_in_two_splits(dataset: Path) -> None:
    copy = add_image(dataset, "renamed.png", (dataset / "images" / "5.png").read_bytes())
    report = plant(dataset, lambda rows: rows[0].update(images=[copy]))
    assert kinds(report.leaks) == {"same image in two splits": 1}


def test_leak_test_studies_copied_into_train_under_other_names(dataset: Path) -> None:
    """A whole test study in train, with new ids, its picture saved anew at another size and as JPEG."""
    small = Image.fromarray(picture(5)).resize((48, 48))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=60)
    copy = add_image(dataset, "case_881.jpg", buffer.getvalue())
    report = plant(
        dataset,
        lambda rows: add_copy(rows, 5, study_id="new", patient_id="newer", split="train", images=[copy]),
    )
    assert kinds(report.leaks) == {"same picture in two splits, in different files": 1}
    assert report.leaks[0].lines == ((7, 6),)
    assert kinds(report.warnings)["text of a val or test study that also stands in train"] == 1


def test_leak_between_test_and_val_counts_too(dataset: Path) -> None:
    copy = add_image(dataset, "anew.png", png(np.asarray(Image.fromarray(picture(4)).resize((80, 80)))))
    report = plant(dataset, lambda rows: rows[5].update(images=[copy]))
    assert report.exit_code == 1


def test_studies_without_a_split_are_no_leak(dataset: Path) -> None:
    copy = add_image(dataset, "renamed.png", (dataset / "images" / "5.png").read_bytes())
    report = plant(dataset, lambda rows: add_copy(rows, 5, study_id="s9", split=None, images=[copy]))
    assert report.leaks == []
    assert report.studies["none"] == 1


def test_recorded_hashes_reveal_leaks_without_reading_images(dataset: Path) -> None:
    copy = add_image(dataset, "renamed.png", (dataset / "images" / "5.png").read_bytes())
    plant(dataset, lambda rows: rows[0].update(images=[copy]))
    assert kinds(check_dataset(dataset, read_images=False).leaks) == {"same image in two splits": 1}


def test_the_same_words_in_two_splits_are_a_warning_only(dataset: Path) -> None:
    def change(rows: Rows) -> None:
        rows[5]["report"] = "The heart is normal in size and the lungs are clear, with no pleural effusion seen today."
        rows[0]["report"] = rows[5]["report"].upper().replace(",", "")
        rows[4]["report"] = rows[5]["report"].replace("today", "now")

    report = plant(dataset, change)
    assert report.leaks == []
    assert kinds(report.warnings) == {
        "text of a val or test study that also stands in train": 1,
        "text of a val or test study that nearly stands in train": 1,
        "the manifest was changed after it was written": 1,
    }


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"study_id": "a/b"}, "schema: study_id: an id must not hold path separators or control characters"),
        ({"split": "training"}, "schema: split: Input should be 'train', 'val' or 'test'"),
        ({"repport": "x"}, "schema: repport: Extra inputs are not permitted"),
        (
            {"images": [{"path": "../secret.png"}]},
            "schema: images.path: path must be relative and stay inside the dataset folder",
        ),
        ({"report": 3}, "schema: report: Input should be a valid string"),
        ({"study_id": "s1"}, "schema: study id comes twice"),
        ({"images": [{"path": "images/nowhere.png"}]}, "image is missing"),
        ({"images": [{"path": "images/0.png", "modality": "ct"}]}, "image of another modality than the data set"),
        ({"images": [{"path": "images/0.png", "sha256": "00" * 32}]}, "image bytes differ from the recorded hash"),
        ({"prior": "s99"}, "prior is not in the data set"),
        ({"prior": "s0"}, "schema: a study cannot be its own prior"),
    ],
)
def test_errors_are_named_with_their_line(dataset: Path, change: dict[str, Any], kind: str) -> None:
    report = plant(dataset, lambda rows: rows[0].update(change))
    assert kinds(report.errors) == {kind: 1}
    assert report.exit_code == 2
    assert report.errors[0].lines[0][-1] in (1, 2)


def test_unreadable_images_are_named(dataset: Path) -> None:
    (dataset / "images" / "0.png").write_bytes(b"")
    (dataset / "images" / "1.png").write_bytes((dataset / "images" / "1.png").read_bytes()[:50])
    (dataset / "images" / "2.png").write_text("no image")
    (dataset / "images" / "3.png").unlink()
    (dataset / "images" / "3.png").symlink_to(Path("/etc/hostname"))
    errors = kinds(check_dataset(dataset).errors)
    assert errors.pop("image bytes differ from the recorded hash") == 2
    assert errors.pop("image file is empty") == 1
    assert errors.pop("image lies outside the dataset folder") == 1
    assert sum(errors.values()) == 2


def test_images_that_look_damaged_are_warnings(dataset: Path) -> None:
    buffer = io.BytesIO()
    Image.fromarray(picture(0)).save(buffer, "JPEG", quality=95)
    data = buffer.getvalue()
    (dataset / "images/0.png").write_bytes(data[: len(data) // 2] + b"\xff\xd9")
    (dataset / "images/1.png").write_bytes(png(picture(1) // 32 * 32))
    result = {fault.kind: fault.count for fault in check_dataset(dataset).warnings}
    assert result["image integrity doubtful: the JPEG data ends before the image does"] == 1
    assert result["image integrity doubtful: it has only N grey levels"] == 1


def test_lines_that_are_no_json_are_counted_and_the_rest_is_checked(dataset: Path) -> None:
    path = dataset / "manifest.jsonl"
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([b"{broken", b"\xff\xfe", *lines, b"[" * 5000, b"[]", b"NaN"]))
    report = check_dataset(dataset)
    assert sum(report.studies.values()) == 6
    assert sum(fault.count for fault in report.errors) == 5
    assert report.exit_code == 2


def test_a_leak_is_not_hidden_by_an_error(dataset: Path) -> None:
    def change(rows: Rows) -> None:
        rows[5].update(patient_id="p0")
        rows[1].update(split="oops")

    assert plant(dataset, change).exit_code == 1


@pytest.mark.parametrize(
    ("patient", "study", "kind"),
    [
        ("p0", 0, "twice in a study"),
        ("p0", 1, "in two studies of a patient"),
        ("p1", 1, "in studies of two patients"),
    ],
)
@pytest.mark.parametrize("saved", ["as it is", "anew"])
def test_the_same_image_inside_one_split_is_a_warning(
    dataset: Path, patient: str, study: int, kind: str, saved: str
) -> None:
    data = (dataset / "images" / "0.png").read_bytes()
    if saved == "anew":
        with Image.open(io.BytesIO(data)) as image:
            data = png(np.asarray(image), compress_level=1)
    copy = add_image(dataset, "copy.png", data)

    def change(rows: Rows) -> None:
        rows[1]["patient_id"] = patient
        rows[study]["images"] = [*rows[study]["images"], copy]

    report = plant(dataset, change)
    assert (report.leaks, report.errors) == ([], [])
    what = "image" if saved == "as it is" else "picture, in different files,"
    (result,) = (fault for fault in report.warnings if fault.kind.startswith("same"))
    assert (result.kind, result.count, result.lines) == (f"same {what} {kind}", 1, ((1, study + 1),))


def test_priors_that_run_in_a_circle_are_an_error(dataset: Path) -> None:
    def change(rows: Rows) -> None:
        for number, prior in ((0, "s2"), (1, "s0"), (2, "s1"), (3, "s2")):
            rows[number].update(patient_id="p0", prior=prior)

    (fault,) = plant(dataset, change).errors
    assert (fault.kind, fault.count) == ("priors that are each other's prior", 1)
    assert sorted(fault.lines[0]) == [1, 2, 3]


def test_a_prior_behind_an_undated_one_must_be_earlier_too(dataset: Path) -> None:
    def change(rows: Rows) -> None:
        for number, prior, time in ((0, None, "2024"), (1, "s0", None), (2, "s1", "2023")):
            rows[number].update(patient_id="p0", prior=prior, study_time=time)

    (fault,) = plant(dataset, change).errors
    assert (fault.kind, fault.lines) == ("prior is not earlier than the study", ((3, 1),))


@pytest.mark.parametrize(
    "token", ["</s>", "<s>", "[INST]", "[/INST]", "<|im_end|>", "<<SYS>>", "<end_of_turn>", "[SEP]", "<image>", "<pad>"]
)
def test_control_words_of_language_models_in_texts_are_a_warning(dataset: Path, token: str) -> None:
    report = plant(dataset, lambda rows: rows[0].update(impression=f"No effusion.{token}Clear."))
    assert kinds(report.warnings)["text with a control word of a language model"] == 1
    assert token not in str(report.to_json())


def test_marks_in_texts_that_control_nothing_are_none(dataset: Path) -> None:
    texts = "Heart < 50 %. [see note] <5 mm> and (INST) [XXXX] <unreadable>"
    assert "text with a control word of a language model" not in kinds(
        plant(dataset, lambda rows: rows[0].update(findings=texts)).warnings
    )


def test_missing_splits_texts_and_images_are_warnings(dataset: Path) -> None:
    def change(rows: Rows) -> None:
        rows[5].update(split=None)
        rows[1].update(report=" ")
        rows[2].update(images=[])

    warnings = kinds(plant(dataset, change).warnings)
    warnings.pop("the manifest was changed after it was written")
    assert warnings == {
        "no study in test": 1,
        "study without image": 1,
        "study without split": 1,
        "study without target text": 1,
    }


def test_the_command_line_prints_json_and_exits_by_what_was_found(dataset: Path) -> None:
    sound = CliRunner().invoke(app, ["check", str(dataset), "--json"])
    assert sound.exit_code == 0
    assert json.loads(sound.stdout)["patients"] == 6
    plant(dataset, lambda rows: rows[5].update(patient_id="p0"))
    leaking = CliRunner().invoke(app, ["check", str(dataset)])
    assert leaking.exit_code == 1
    assert "same patient in two splits" in leaking.stdout
    # Ids may be a patient's; the table gives manifest lines.
    assert "p0" not in leaking.stdout
    plant(dataset, lambda rows: rows[5].update(patient_id="p5", split="oops"))
    assert CliRunner().invoke(app, ["check", str(dataset)]).exit_code == 2


def test_boxes_are_counted_by_label_and_a_bad_one_is_an_error(dataset: Path) -> None:
    box = {"label": "nodule", "box": [0.1, 0.2, 0.3, 0.4]}
    plant(dataset, lambda rows: rows[0]["images"][0].update(boxes=[box, box]))
    assert json.loads(CliRunner().invoke(app, ["check", str(dataset), "--json"]).stdout)["boxes"] == {"nodule": 2}
    assert "nodule" in CliRunner().invoke(app, ["check", str(dataset)]).stdout
    box["box"] = [0.3, 0.2, 0.1, 0.4]
    plant(dataset, lambda rows: rows[0]["images"][0].update(boxes=[box]))
    refused = CliRunner().invoke(app, ["check", str(dataset)])
    assert refused.exit_code == 2
    assert "low to its high corner" in " ".join(refused.stdout.split())


@pytest.mark.long
def test_the_shared_data_set_is_free_of_leaks(shared_data: Path, tmp_path: Path) -> None:
    from radweave.data.importers import ImportOptions, import_dataset

    out = tmp_path / "iu"
    import_dataset("iu-xray", shared_data / "iu_xray", out, options=ImportOptions(link=True))
    report = check_dataset(out, read_images=False)
    assert (report.leaks, report.errors) == ([], [])
    assert report.studies["test"] > 0


@pytest.mark.long
def test_phantom_scans_of_different_patients_are_no_copies_and_one_saved_anew_is(tmp_path: Path) -> None:
    """Averaged over their slices, half of them are nearer to another patient's than real copies have to be."""
    scans = write_phantom_dataset(tmp_path / "data", modality="ct", num_studies=60, seed=0, options=PhantomOptions())
    report = check_dataset(scans.path)
    assert (report.leaks, report.errors) == ([], [])
    assert TOO_ALIKE in kinds(report.warnings)
    rows = rows_of(scans.path)
    trained = next(row for row in rows if row["split"] == "train")
    name = trained["images"][0]["path"]
    volume = nib.load(scans.path / name)
    nib.save(nib.Nifti1Image(volume.get_fdata() + 1, volume.affine), scans.path / "images" / "anew.nii.gz")
    image = {**trained["images"][0], "path": "images/anew.nii.gz", "sha256": None}
    other = {**trained, "study_id": "anew", "patient_id": "anew", "split": "test", "images": [image], "prior": None}
    (scans.path / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, other]))
    assert kinds(check_dataset(scans.path).leaks) == {"same picture in two splits, in different files": 1}


def test_thumbnails_of_a_picture_saved_anew_agree_and_others_do_not() -> None:
    pixels = picture(1, 200).astype(np.float32) / 255
    darker = np.asarray(Image.fromarray(picture(1, 200)).resize((90, 110))).astype(np.float32) / 510 + 0.1
    index = ImageIndex()
    index.add(0, "train", pixels)
    index.add(1, "train", picture(2).astype(np.float32) / 255)
    index.add(2, "test", darker)
    index.add(3, "test", picture(3).astype(np.float32) / 255)
    index.add(4, "test", np.full((40, 40), 0.3, np.float32))
    assert list(index.pairs_across("test", "train")) == [Copy(2, 0, ())]
    assert not descriptor(thumbnail(np.full((40, 40), 0.3, np.float32))).any()


def test_near_texts_are_found_as_often_as_by_comparing_all_pairs() -> None:
    """Against a plain loop over word runs; MinHash estimates, so pairs close to the limit may differ."""
    random = np.random.default_rng(0)
    words = [f"word{n}" for n in range(300)]
    texts = [" ".join(random.choice(words, 60)) for _ in range(30)]
    changed = []
    for text, changes in zip(texts, [0, 1, 2, 4, 12, 30] * 5, strict=True):
        parts = text.split()
        for place in random.choice(60, changes, replace=False):
            parts[place] = "other"
        changed.append(" ".join(parts))
    index = TextIndex()
    for number, text in enumerate([*texts, *changed]):
        index.add(number, text)

    def runs(text: str) -> set[str]:
        parts = normalised(text).split()
        return {" ".join(parts[n : n + 5]) for n in range(len(parts) - 4)}

    result = {tuple(sorted((index.items[a][0], index.items[b][0]))) for a, b in index.near_pairs()}
    for number, (text, other) in enumerate(zip(texts, changed, strict=True)):
        a, b = runs(text), runs(other)
        likeness = len(a & b) / len(a | b)
        if 0.9 < likeness < 1:
            assert (number, number + 30) in result
        if likeness < 0.6 or likeness == 1:
            assert (number, number + 30) not in result
    assert all(second - first == 30 for first, second in result)


def ct_set(shared_data: Path, out: Path, *splits: str) -> Path:
    """The same chest as NRRD and as DICOM series, and an unlike volume."""
    files = shared_data / "chest_ct" / "files"
    names = ("whole_chest_64.nrrd", "whole_chest_64_dicom", "heart_aorta_contrast_crop.nii.gz")
    with DatasetWriter(out, DatasetCard(name="ct", modality="ct")) as writer:
        for name, split in zip(names, splits, strict=True):
            path = files / name
            members = (
                {f"images/{name}/{m.name}": m for m in path.iterdir()} if path.is_dir() else {f"images/{name}": path}
            )
            image = ImageRef(path=f"images/{name}", modality="ct", view=View.AXIAL)
            study = Study.model_validate(
                {"study_id": name, "patient_id": name, "split": split, "images": [image.model_dump()], "report": name}
            )
            writer.add(study, members)
    return out


def test_the_same_volume_in_another_format_is_a_leak(shared_data: Path, tmp_path: Path) -> None:
    report = check_dataset(ct_set(shared_data, tmp_path / "a", "train", "test", "test"))
    assert kinds(report.leaks) == {"same picture in two splits, in different files": 1}
    assert report.errors == []
    assert check_dataset(ct_set(shared_data, tmp_path / "b", "test", "test", "train")).leaks == []


def test_a_volume_that_cannot_be_read_is_an_error(shared_data: Path, tmp_path: Path) -> None:
    folder = ct_set(shared_data, tmp_path / "a", "train", "test", "test")
    (folder / "images" / "whole_chest_64.nrrd").write_text("no volume")
    report = check_dataset(folder)
    assert sum(fault.count for fault in report.errors) == 1


def test_images_of_two_patients_in_one_study_are_an_error(tmp_path: Path) -> None:
    files = [
        write_dicom(tmp_path / f"{number}.dcm", PatientID=patient) for number, patient in enumerate(("A", "B", "A"))
    ]
    for name, pair, errors in (("mixed", files[:2], 1), ("sound", files[::2], 0)):
        with DatasetWriter(tmp_path / name, DatasetCard(name="x")) as writer:
            images = tuple(ImageRef(path=f"images/{file.name}") for file in pair)
            study = Study(study_id="s", patient_id="p", split="train", images=images, report="Clear.")
            writer.add(study, {image.path: file for image, file in zip(images, pair, strict=True)})
        result = kinds(check_dataset(tmp_path / name).errors)
        assert result.get("images of different patients in one study, by their DICOM headers", 0) == errors


@pytest.mark.parametrize(
    ("times", "patient", "kind"),
    [
        (("2024", "2023"), "p0", "prior is not earlier than the study"),
        (("2024", "2024"), "p0", "prior is not earlier than the study"),
        (("2023", "2024"), "p1", "prior is of another patient"),
        (("2023", "2024"), "p0", None),
    ],
)
def test_priors_are_of_the_same_patient_and_earlier(
    dataset: Path, times: tuple[str, str], patient: str, kind: str | None
) -> None:
    def change(rows: Rows) -> None:
        rows[0]["study_time"] = times[0]
        rows[1].update(prior="s0", study_time=times[1], patient_id=patient)

    assert list(kinds(plant(dataset, change).errors)) == ([kind] if kind else [])


def test_pictures_that_differ_by_less_than_eight_bits_are_one(dataset: Path) -> None:
    """Of 16 bits each, one value apart in a hundred pixels."""
    deep = picture(9).astype(np.uint16) * 257 + 40
    other = deep.copy()
    other[20:30, 20:30] += 1
    files = [add_image(dataset, f"deep{number}.png", png(pixels)) for number, pixels in enumerate((deep, other))]

    def change(rows: Rows) -> None:
        for number, file in enumerate(files):
            rows[number]["images"] = [file]

    report = plant(dataset, change)
    assert (report.leaks, report.errors) == ([], [])
    assert kinds(report.warnings)["same picture, in different files, in studies of two patients"] == 1


def test_parallel_and_sequential_checks_agree(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(rows: Rows) -> None:
        for number, name in ((0, "1"), (4, "1"), (2, "gone")):
            rows[number]["images"][0]["path"] = f"images/{name}.png"
        rows[3]["images"][0]["sha256"] = "0" * 64

    plant(dataset, change)
    result, threads, called = [], [], []
    monkeypatch.setattr("radweave.data.check.in_order", lambda *inputs: called.append(1) or in_order(*inputs))
    for cores in (1, 7):
        monkeypatch.setattr("radweave.data.cache.arrays.usable_cores", lambda cores=cores: cores)
        monkeypatch.setattr("radweave.data.check.LARGE_BYTES", 1 << 20 if cores == 1 else 1)
        result.append(check_dataset(dataset).to_json())
        threads.append(len(called))
    assert result[0] == result[1]
    assert threads == [0, 1]
    assert result[0]["leaks"]
    assert len(result[0]["errors"]) >= 2


def test_an_image_of_another_modality_is_not_opened(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    monkeypatch.setattr("radweave.data.leaks.images.content_hash", opened.append)

    def change(rows: Rows) -> None:
        for row in rows:
            row["images"][0]["modality"] = "ct"

    report = plant(dataset, change)
    assert kinds(report.errors)["image of another modality than the data set"] == 6
    assert not opened


def test_import_check_and_cache_need_no_torch() -> None:
    code = (
        "import sys, radweave.data.importers, radweave.data.check, radweave.data.cache.images\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_pictures_are_paired_by_their_own_numbers_whatever_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """More pictures than fit one chunk, on either side, and a copy of each: also one that was mirrored."""
    rng = np.random.default_rng(0)
    pictures = [ndimage.zoom(rng.random((9, 7)), (12, 16), order=1).astype(np.float32) for _ in range(7)]
    numbers = [5, 0, 6, 2, 4]
    index = ImageIndex()
    for number, picture in enumerate(pictures):
        index.add(number, "train", picture)
    for number in numbers:
        index.add(10 + number, "test", pictures[number][:, ::-1] if number == 2 else pictures[number])
    monkeypatch.setattr("radweave.data.leaks.images._CHUNK", 2)
    result = {copy.item: (copy.other, "mirrored" in copy.changes) for copy in index.pairs_across("train", "test")}
    assert result == {number: (10 + number, number == 2) for number in numbers}


@pytest.mark.parametrize(
    ("patients", "times", "expected"),
    [
        ("aaa", "123", []),
        ("aba", "123", [(OF_ANOTHER_PATIENT, (1,)), (OF_ANOTHER_PATIENT, (2,))]),
        ("aab", "123", [(OF_ANOTHER_PATIENT, (2,))]),
        ("aaa", "122", [(NOT_EARLIER, (2, 1))]),
        ("aaa", "132", [(NOT_EARLIER, (2, 1))]),
        ("aaa", "2-2", [(NOT_EARLIER, (2, 0))]),
        ("aaa", "2-1", [(NOT_EARLIER, (2, 0))]),
        ("aaa", "1-2", []),
        ("aaa", "-1-", []),
        ("aaa", "---", []),
    ],
)
def test_priors_are_of_their_patient_and_earlier(
    patients: str, times: str, expected: list[tuple[str, tuple[int, ...]]]
) -> None:
    """Study 2 has prior 1, which has prior 0; - is no time, and an equal one is not earlier."""
    known = [None if time == "-" else time for time in times]
    faults = prior_faults({1: 0, 2: 1}, [patient.encode() for patient in patients], known)
    assert [(fault.kind, fault.studies) for fault in faults] == expected


@pytest.mark.parametrize(
    ("prior_of", "circles"), [({0: 1, 1: 2}, []), ({0: 0}, [(0,)]), ({3: 0, 0: 1, 1: 2, 2: 0}, [(0, 1, 2)])]
)
def test_a_circle_of_priors_is_named_once_without_those_that_lead_to_it(
    prior_of: dict[int, int], circles: list[tuple[int, ...]]
) -> None:
    faults = prior_faults(prior_of, [b"p"] * 4, [None] * 4)
    assert [fault.studies for fault in faults if fault.kind == IN_A_CIRCLE] == circles


@pytest.mark.parametrize(
    ("report", "english"),
    [
        ("The heart is normal in size. No focal consolidation.", True),
        ("No acute cardiopulmonary abnormality.", True),
        ("Silueta cardiaca de tama\u00f1o normal. No se observan infiltrados pulmonares.", False),
        ("Herz normal gro\u00df. Keine Pleuraerg\u00fcsse links oder rechts. Kein Pneumothorax.", False),
        ("Het hart is niet vergroot. De longen zijn helder, geen pleuravocht of pneumothorax.", False),
    ],
)
def test_reports_in_another_language_give_a_warning(report: str, english: bool, dataset: Path) -> None:
    manifest = dataset / "manifest.jsonl"
    rows = [{**json.loads(line), "report": report} for line in manifest.read_text().splitlines()]
    manifest.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert is_english(report) is english
    warnings = {fault.kind: fault for fault in check_dataset(dataset).warnings}
    assert (NOT_ENGLISH in warnings) is not english
    assert english or warnings[NOT_ENGLISH].count == len(rows)


def test_few_short_reports_are_no_sign_of_another_language() -> None:
    foreign = "Corazon de tama\u00f1o normal, sin derrame pleural ni neumotorax visible."
    assert not_english([foreign, *["The lungs are clear."] * 9, None, ""]) == 0
    assert not_english([foreign, foreign, *["The lungs are clear."] * 9]) == 2
