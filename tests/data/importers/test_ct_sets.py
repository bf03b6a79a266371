"""CT-RATE, RadGenome-ChestCT and CTRG-Chest in the layouts they are published in, as small made-up copies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from radweave.core.errors import InputError
from radweave.core.study import LabelState, View
from radweave.data.dataset import Dataset
from radweave.data.importers import ImportOptions, import_dataset
from radweave.metrics.protocols import clean

ABNORMALITIES = (
    "Medical material,Arterial wall calcification,Cardiomegaly,Pericardial effusion,"
    "Coronary artery wall calcification,Hiatal hernia,Lymphadenopathy,Emphysema,Atelectasis,Lung nodule,Lung opacity,"
    "Pulmonary fibrotic sequela,Pleural effusion,Mosaic attenuation pattern,Peribronchial thickening,Consolidation,"
    "Bronchiectasis,Interlobular septal thickening"
)
VOLUMES = ["train_1_a_1", "train_1_a_2", "train_1_b_1", "train_2_a_1", "train_3_a_1", "valid_1_a_1"]
# The second scan of patient 1 is older than the first; letters say nothing about time.
DATES = {"train_1_a": "20200301", "train_1_b": "20190101", "train_2_a": "20200101", "valid_1_a": ""}


def scan_of(volume: str) -> str:
    return volume.rsplit("_", 1)[0]


def write_volume(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(path.as_posix().encode())


@pytest.fixture
def ct_rate(tmp_path: Path) -> Path:
    root = tmp_path / "CT-RATE" / "dataset"
    for folder in ("radiology_text_reports", "metadata", "multi_abnormality_labels"):
        (root / folder).mkdir(parents=True)
    for part, names in (("train", VOLUMES[:5]), ("validation", VOLUMES[5:])):
        reports = ["VolumeName,ClinicalInformation_EN,Technique_EN,Findings_EN,Impressions_EN"]
        metadata = ["VolumeName,Manufacturer,XYSpacing,RescaleIntercept,RescaleSlope,NumberofSlices,ZSpacing,StudyDate"]
        labels = [f"VolumeName,{ABNORMALITIES}"]
        for name in names:
            reports.append(f'{name}.nii.gz,Cough,Without contrast,"Findings of {scan_of(name)}.",Impression.')
            date = DATES.get(scan_of(name), "20200101")
            metadata.append(f'{name}.nii.gz,Siemens,"[0.75, 0.7]",-1024,1,200,1.5,{date}')
            labels.append(f"{name}.nii.gz,1," + ",".join(["0"] * 17))
            split = name.split("_")[0]
            write_volume(root / split / "_".join(name.split("_")[:2]) / scan_of(name) / f"{name}.nii.gz")
        short = "train" if part == "train" else "valid"
        (root / "radiology_text_reports" / f"{part}_reports.csv").write_text("\n".join(reports))
        (root / "metadata" / f"{part}_metadata.csv").write_text("\n".join(metadata))
        (root / "multi_abnormality_labels" / f"{short}_predicted_labels.csv").write_text("\n".join(labels))
    (root / "metadata" / "no_chest_train.txt").write_text("train/train_3/train_3_a/train_3_a_1.nii.gz\n")
    return root


def imported(kind: str, source: Path, out: Path, **options: object) -> Dataset:
    return import_dataset(kind, source, out, options=ImportOptions.model_validate(options))


def test_ct_rate_volumes_reports_labels_and_geometry(ct_rate: Path, tmp_path: Path) -> None:
    dataset = imported("ct-rate", ct_rate, tmp_path / "out")
    studies = {study.study_id: study for study in dataset.studies()}
    assert set(studies) == set(VOLUMES) - {"train_3_a_1"}
    assert dataset.card.left_out == {"not a chest scan, by the set's own list": 1}
    assert dataset.card.modality == "ct"
    study = studies["train_1_a_2"]
    assert (study.patient_id, study.split, study.report) == ("train_1", "train", "Findings of train_1_a.")
    assert (study.indication, study.technique, study.impression) == ("Cough", "Without contrast", "Impression.")
    (image,) = study.images
    assert (image.path, image.view, image.modality) == ("images/train_1_a_2.nii.gz", View.AXIAL, "ct")
    assert image.spacing_mm == (1.5, 0.75, 0.7)
    assert study.labels["ct18"]["Medical material"] is LabelState.POSITIVE
    assert len(study.labels["ct18"]) == 18
    assert studies["valid_1_a_1"].split == "val"
    assert len(dataset.card.sources) == 7


def test_ct_rate_priors_follow_dates_and_skip_reconstructions(ct_rate: Path, tmp_path: Path) -> None:
    studies = {study.study_id: study for study in imported("ct-rate", ct_rate, tmp_path / "out").studies()}
    assert studies["train_1_b_1"].prior is None
    # Both reconstructions of the later scan have the older scan as prior, not each other.
    assert studies["train_1_a_1"].prior == "train_1_b_1"
    assert studies["train_1_a_2"].prior == "train_1_b_1"
    assert studies["valid_1_a_1"].prior is None


def test_the_corrected_volumes_go_before_the_first_release(ct_rate: Path, tmp_path: Path) -> None:
    fixed = ct_rate / "train_fixed" / "train_2" / "train_2_a" / "train_2_a_1.nii.gz"
    write_volume(fixed)
    dataset = imported("ct-rate", ct_rate, tmp_path / "out")
    assert dataset.image_path("images/train_2_a_1.nii.gz").read_bytes() == fixed.read_bytes()


def test_a_segmentation_never_takes_the_place_of_a_volume_that_is_not_here(ct_rate: Path, tmp_path: Path) -> None:
    """The newest release has segmentations under the volumes' names, in folders of the same shape."""
    next(ct_rate.rglob("train_2_a_1.nii.gz")).unlink()
    for name in ("train_2_a_1", "train_1_a_1"):
        patient, scan = "_".join(name.split("_")[:2]), scan_of(name)
        write_volume(ct_rate / "ts_seg" / "ts_total" / "train_fixed" / patient / scan / f"{name}.nii.gz")
    dataset = imported("ct-rate", ct_rate, tmp_path / "out")
    assert dataset.card.left_out["no image"] == 1
    assert b"ts_seg" not in dataset.image_path("images/train_1_a_1.nii.gz").read_bytes()


def test_ct_rate_valid_as_test(ct_rate: Path, tmp_path: Path) -> None:
    dataset = imported("ct-rate", ct_rate, tmp_path / "out", split="valid-as-test")
    assert [study.study_id for study in dataset.studies("test")] == ["valid_1_a_1"]


def test_a_volume_that_is_not_here_is_counted(ct_rate: Path, tmp_path: Path) -> None:
    next(ct_rate.rglob("train_2_a_1.nii.gz")).unlink()
    assert imported("ct-rate", ct_rate, tmp_path / "out").card.left_out["no image"] == 1


def test_radgenome_regions(ct_rate: Path, tmp_path: Path) -> None:
    files = ct_rate / "radgenome_files"
    files.mkdir()
    rows = [
        "Volumename,Anatomy,Sentence",
        "train_1_a_1.nii.gz,lung,Clear lungs.",
        'train_1_a_1.nii.gz,heart,"Normal size, no effusion."',
        "train_1_a_1.nii.gz,lung,No nodule.",
        "train_1_a_1.nii.gz,,Somewhere else.",
    ]
    (files / "train_region_report.csv").write_text("\n".join(rows))
    (ct_rate / "radiology_text_reports" / "train_reports.csv").unlink()
    preprocessed = ct_rate / "train_preprocessed" / "train_1" / "train_1a" / "train_1_a_1.nii.gz"
    write_volume(preprocessed)
    write_volume(ct_rate / "train_region_mask" / "train_1" / "train_1_a_1.nii.gz")
    dataset = imported("radgenome-chestct", ct_rate, tmp_path / "out", split="train")
    study = next(iter(dataset.studies()))
    assert dataset.card.name == "radgenome-chestct"
    assert study.regions == {"lung": "Clear lungs. No nodule.", "heart": "Normal size, no effusion."}
    assert study.findings == "Clear lungs. No nodule. Normal size, no effusion. Somewhere else."
    assert dataset.image_path(study.images[0].path).read_bytes() == preprocessed.read_bytes()
    aimed = imported("radgenome-chestct", ct_rate, tmp_path / "regions", split="train", target="regions")
    assert [study.report for study in aimed.studies()] == [
        "The region 1 is heart: Normal size, no effusion. The region 2 is lung: Clear lungs. No nodule."
    ]
    assert aimed.card.left_out["no regions text"] > 0


def test_ctrg_annotation(tmp_path: Path) -> None:
    root = tmp_path / "ctrg"
    annotation = {
        "train": [{"id": 1, "finding": "Clear.", "impression": "Normal.", "image_path": ["1.nii.gz"]}],
        "val": [{"id": "2.nii.gz", "findings": "Nodule.", "image_path": []}, {"finding": "no id"}, "not an entry"],
    }
    for number in (1, 2):
        write_volume(root / "volumes" / f"{number}.nii.gz")
    (root / "annotation.json").write_text(json.dumps(annotation))
    dataset = imported("ctrg-chest", root, tmp_path / "out")
    assert [(study.study_id, study.split, study.report) for study in dataset.studies()] == [
        ("ctrg_1", "train", "Clear."),
        ("ctrg_2", "val", "Nodule."),
    ]
    assert dataset.card.left_out == {"an entry without id": 2}
    assert any("no test part" in note for note in dataset.card.notes)


REGIONS = {"1": {"lung": "Clear lungs.", "heart": " Normal size. ", "pleura": " "}, "2.nii.gz": {"lung": "Nodule."}}
WRITTEN = "The region 1 is heart: Normal size. The region 2 is lung: Clear lungs."


def ctrg(root: Path) -> Path:
    for number in (1, 2, 3):
        write_volume(root / "volumes" / f"{number}.nii.gz")
    entries = [{"id": number, "finding": "Clear.", "image_path": []} for number in (1, 2, 3)]
    (root / "annotation.json").write_text(json.dumps({"train": entries}))
    return root


@pytest.mark.parametrize("form", ["json", "csv"])
def test_ctrg_texts_by_region_are_a_target(tmp_path: Path, form: str) -> None:
    file = tmp_path / f"rewritten.{form}"
    if form == "json":
        file.write_text(json.dumps(REGIONS))
    else:
        rows = [f'{study},{region},"{text}"' for study, texts in REGIONS.items() for region, text in texts.items()]
        file.write_text("\n".join(["id,Anatomy,Sentence", *rows]))
    dataset = imported("ctrg-chest", ctrg(tmp_path / "ctrg"), tmp_path / "out", target="regions", annotation=file)
    assert [(study.study_id, study.report) for study in dataset.studies()] == [
        ("ctrg_1", WRITTEN),
        ("ctrg_2", "The region 1 is lung: Nodule."),
    ]
    assert dataset.card.left_out == {"no regions text": 1}
    assert (dataset.card.target, dataset.card.sources[-1].file) == ("regions", file.name)
    # Without the target they are kept beside the report.
    plain = imported("ctrg-chest", tmp_path / "ctrg", tmp_path / "plain", annotation=file)
    study = next(iter(plain.studies()))
    assert (study.report, study.regions) == ("Clear.", {"heart": "Normal size.", "lung": "Clear lungs."})
    assert next(study.report for study in plain.aimed("regions").studies()) == WRITTEN
    assert clean(WRITTEN, "region_prefix") == "Normal size. Clear lungs."


@pytest.mark.parametrize(
    ("content", "field", "got"),
    [
        (None, "annotation", "none"),
        ([], None, "list"),
        ({"1": "Clear."}, "regions", "str"),
        ({"1": {"lung": 3}}, "regions.lung", "int"),
    ],
)
def test_ctrg_texts_by_region_that_are_refused(tmp_path: Path, content: object, field: str | None, got: str) -> None:
    file = None
    if content is not None:
        file = tmp_path / "rewritten.json"
        file.write_text(json.dumps(content))
    with pytest.raises(InputError) as caught:
        imported("ctrg-chest", ctrg(tmp_path / "ctrg"), tmp_path / "out", target="regions", annotation=file)
    assert (caught.value.field, caught.value.got) == (field, got)
    assert not (tmp_path / "out").exists()


def test_a_report_table_without_its_columns_is_refused(ct_rate: Path, tmp_path: Path) -> None:
    table = ct_rate / "radiology_text_reports" / "train_reports.csv"
    table.write_text(table.read_text().replace("Findings_EN", "Findings", 1))
    with pytest.raises(InputError, match="field 'Findings_EN': column is missing"):
        imported("ct-rate", ct_rate, tmp_path / "out")
