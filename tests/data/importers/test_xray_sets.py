"""MIMIC-CXR, CheXpert Plus and ReXrank in the layouts they are published in, as small made-up copies."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from radweave.core.errors import InputError
from radweave.core.study import LabelState, View
from radweave.data.dataset import Dataset
from radweave.data.importers import ImportOptions, import_dataset
from radweave.data.importers.mimic_cxr import study_moment

OBSERVATIONS = (
    "Atelectasis,Cardiomegaly,Consolidation,Edema,Enlarged Cardiomediastinum,Fracture,Lung Lesion,Lung Opacity,"
    "No Finding,Pleural Effusion,Pleural Other,Pneumonia,Pneumothorax,Support Devices"
)
# Patient, study, images with views, date, time, split. The later study of the first patient has the smaller number.
STUDIES = [
    ("10000032", "59999999", [("d-1", "PA"), ("d-2", "LATERAL")], "21800506", "84556.875", "train"),
    ("10000032", "50000001", [("d-3", "AP")], "21800506", "213014.531", "train"),
    ("10000032", "55555555", [("d-4", "AP")], "21791231", "235959", "train"),
    ("10000764", "57375967", [("d-5", "")], "21321015", "083244.75", "test"),
    ("10000898", "50771383", [("d-6", "LL")], "21880307", "222203", "validate"),
]


def write_image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    value = sum(path.as_posix().encode()) % 251
    Image.fromarray(np.full((6, 6), value, np.uint8)).save(path)


def report(findings: str) -> str:
    return f" FINAL REPORT\n INDICATION:  Cough.\n\n FINDINGS:\n {findings}\n\n IMPRESSION:\n Done.\n"


@pytest.fixture
def mimic(tmp_path: Path) -> Path:
    root = tmp_path / "mimic"
    split, metadata, chexpert = [], [], []
    for patient, study, images, date, time, part in STUDIES:
        folder = root / "files" / f"p{patient[:2]}" / f"p{patient}"
        for dicom_id, view in images:
            split.append(f"{dicom_id},{study},{patient},{part}")
            metadata.append(f"{dicom_id},{patient},{study},CHEST,{view},2544,3056,{date},{time},CHEST,view,Erect")
            write_image(folder / f"s{study}" / f"{dicom_id}.jpg")
        (folder / f"s{study}.txt").write_text(report(f"Text of {study}."))
        chexpert.append(f"{patient},{study},,1.0,,0.0,,,,-1.0,,,,,,")
    (root / "mimic-cxr-2.0.0-split.csv").write_text("\n".join(["dicom_id,study_id,subject_id,split", *split]))
    header = (
        "dicom_id,subject_id,study_id,PerformedProcedureStepDescription,ViewPosition,Rows,Columns,StudyDate,StudyTime,"
        "ProcedureCodeSequence_CodeMeaning,ViewCodeSequence_CodeMeaning,PatientOrientationCodeSequence_CodeMeaning"
    )
    (root / "mimic-cxr-2.0.0-metadata.csv").write_text("\n".join([header, *metadata]))
    table = "\n".join([f"subject_id,study_id,{OBSERVATIONS}", *chexpert])
    (root / "mimic-cxr-2.0.0-chexpert.csv.gz").write_bytes(gzip.compress(table.encode()))
    (root / "mimic-cxr-2.0.0-negbio.csv").write_text(table.replace("-1.0", ""))
    return root


def imported(kind: str, source: Path, out: Path, **options: object) -> Dataset:
    return import_dataset(kind, source, out, options=ImportOptions.model_validate(options))


def test_mimic_studies_views_labels_and_sections(mimic: Path, tmp_path: Path) -> None:
    dataset = imported("mimic-cxr", mimic, tmp_path / "out")
    studies = {study.study_id: study for study in dataset.studies()}
    assert {i: study.split for i, study in studies.items()} == {
        "s55555555": "train",
        "s59999999": "train",
        "s50000001": "train",
        "s57375967": "test",
        "s50771383": "val",
    }
    first = studies["s59999999"]
    assert (first.patient_id, first.report, first.impression) == ("p10000032", "Text of 59999999.", "Done.")
    assert first.indication == "Cough."
    assert [image.view for image in first.images] == [View.PA, View.LATERAL]
    assert first.images[0].path == "images/p10/p10000032/s59999999/d-1.jpg"
    assert first.labels["chexpert14"]["Cardiomegaly"] is LabelState.POSITIVE
    assert first.labels["chexpert14"]["Edema"] is LabelState.NEGATIVE
    assert first.labels["chexpert14"]["Lung Opacity"] is LabelState.UNCERTAIN
    assert first.labels["chexpert14"]["Fracture"] is LabelState.BLANK
    assert first.labels["chexpert14-negbio"]["Lung Opacity"] is LabelState.BLANK
    assert studies["s57375967"].images[0].view is View.UNKNOWN
    assert {entry.file for entry in dataset.card.sources} == {
        "mimic-cxr-2.0.0-split.csv",
        "mimic-cxr-2.0.0-metadata.csv",
        "mimic-cxr-2.0.0-chexpert.csv.gz",
        "mimic-cxr-2.0.0-negbio.csv",
    }


def test_mimic_priors_follow_time_not_study_numbers(mimic: Path, tmp_path: Path) -> None:
    studies = {study.study_id: study for study in imported("mimic-cxr", mimic, tmp_path / "out").studies()}
    assert studies["s55555555"].prior is None
    assert studies["s59999999"].prior == "s55555555"
    # 21:30 comes after 08:45 of the same day, though its table cell has lost no zero and its number is smaller.
    assert studies["s50000001"].prior == "s59999999"
    assert studies["s57375967"].prior is None


def test_a_mimic_study_with_images_in_two_splits_gets_none(mimic: Path, tmp_path: Path) -> None:
    table = mimic / "mimic-cxr-2.0.0-split.csv"
    table.write_text(table.read_text().replace("d-2,59999999,10000032,train", "d-2,59999999,10000032,test"))
    left_out = imported("mimic-cxr", mimic, tmp_path / "out")
    assert left_out.card.left_out == {"not in the source's split": 1}
    assert "s59999999" not in {study.study_id for study in left_out.studies()}
    split_of = {
        study.study_id: study.split for study in imported("mimic-cxr", mimic, tmp_path / "all", keep="all").studies()
    }
    assert split_of["s59999999"] is None
    assert split_of["s50000001"] == "train"


def test_a_prior_that_is_left_out_is_skipped(mimic: Path, tmp_path: Path) -> None:
    (mimic / "files/p10/p10000032/s59999999.txt").write_text("FINAL REPORT\n INDICATION: None.\n")
    dataset = imported("mimic-cxr", mimic, tmp_path / "out")
    studies = {study.study_id: study for study in dataset.studies()}
    assert dataset.card.left_out == {"no findings text": 1}
    assert studies["s50000001"].prior == "s55555555"


@pytest.mark.parametrize(
    ("date", "time", "moment"),
    [
        ("21800506", "84556.875", "21800506084556.875000"),
        ("21800506", "213014.531", "21800506213014.531000"),
        ("21800506.0", "0", "21800506000000.000000"),
        ("21800506", "", "21800506000000.000000"),
        ("", "84556", None),
        ("2180-05-06", "84556", None),
    ],
)
def test_study_moments_regain_their_leading_zeros(date: str, time: str, moment: str | None) -> None:
    assert study_moment(date, time) == moment


def test_mimic_reports_are_read_from_the_archive_too(mimic: Path, tmp_path: Path) -> None:
    from_files = imported("mimic-cxr", mimic, tmp_path / "files").manifest_path.read_bytes()
    with zipfile.ZipFile(mimic / "mimic-cxr-reports.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(mimic.rglob("s*.txt")):
            archive.write(path, path.relative_to(mimic).as_posix())
            path.unlink()
    dataset = imported("mimic-cxr", mimic, tmp_path / "zip")
    assert dataset.manifest_path.read_bytes() == from_files
    assert "mimic-cxr-reports.zip" in {entry.file for entry in dataset.card.sources}


def test_one_bad_mimic_report_or_image_does_not_lose_the_rest(mimic: Path, tmp_path: Path) -> None:
    (mimic / "files/p10/p10000764/s57375967.txt").write_bytes(b"\xff\xfe broken \xff")
    (mimic / "files/p10/p10000898/s50771383/d-6.jpg").unlink()
    with (mimic / "files/p10/p10000032/s55555555.txt").open("wb") as file:
        file.truncate(2 << 20)
    dataset = imported("mimic-cxr", mimic, tmp_path / "out")
    assert [study.study_id for study in dataset.studies()] == ["s59999999", "s50000001"]
    assert dataset.card.left_out == {
        "image: file is missing": 1,
        "no image": 1,
        "report cannot be read (UnicodeDecodeError)": 1,
        "report cannot be read (ValueError)": 1,
    }


ENCRYPTED, PATCHED, METHOD, FLAGS = 0x1, 0x20, 10, 8
"""Flags of a member in the archive's list, and where its method and flags stand there (APPNOTE.TXT 4.3.12)."""


def archived(mimic: Path, method: int = zipfile.ZIP_DEFLATED) -> bytearray:
    """Move the reports into an archive; its bytes."""
    path = mimic / "mimic-cxr-reports.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        for report_path in sorted(mimic.rglob("s*.txt")):
            archive.write(report_path, report_path.relative_to(mimic).as_posix())
            report_path.unlink()
    return bytearray(path.read_bytes())


def listed(data: bytearray) -> int:
    """Offset of the list of members."""
    return data.index(b"PK\1\2")


def packed(data: bytearray) -> int:
    """Offset of the first member's compressed bytes."""
    return 30 + int.from_bytes(data[26:28], "little") + int.from_bytes(data[28:30], "little")


@pytest.mark.parametrize("damage", ["encrypted", "patched", "method", "deflate", "cut", "bzip2", "lzma"])
def test_one_bad_report_in_the_mimic_archive_does_not_lose_the_rest(mimic: Path, tmp_path: Path, damage: str) -> None:
    methods = {"bzip2": zipfile.ZIP_BZIP2, "lzma": zipfile.ZIP_LZMA}
    data = archived(mimic, methods.get(damage, zipfile.ZIP_DEFLATED))
    if damage in ("encrypted", "patched"):
        data[listed(data) + FLAGS] |= ENCRYPTED if damage == "encrypted" else PATCHED
    elif damage == "method":
        data[listed(data) + METHOD] = 97
    elif damage == "cut":
        data[packed(data)] = 0x03  # the last block, which ends nowhere
    else:
        data[packed(data) + 4 : packed(data) + 16] = b"\xff" * 12
    (mimic / "mimic-cxr-reports.zip").write_bytes(data)
    dataset = imported("mimic-cxr", mimic, tmp_path / "out")
    assert sum(count for reason, count in dataset.card.left_out.items() if reason.startswith("report cannot")) == 1
    assert len(list(dataset.studies())) == 4


@pytest.mark.parametrize("damage", ["name", "version"])
def test_a_mimic_archive_whose_list_cannot_be_read_is_refused_in_one_line(
    mimic: Path, tmp_path: Path, damage: str
) -> None:
    data = archived(mimic)
    if damage == "name":
        data[listed(data) + FLAGS + 1] |= 0x08  # "UTF-8"
        data[listed(data) + 46] = 0xFF
    else:
        data[listed(data) + 6] = 90
    (mimic / "mimic-cxr-reports.zip").write_bytes(data)
    with pytest.raises(InputError, match="not a readable archive"):
        imported("mimic-cxr", mimic, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "column"), [("mimic-cxr-2.0.0-split.csv", "split"), ("mimic-cxr-2.0.0-metadata.csv", "StudyTime")]
)
def test_a_mimic_table_without_a_column_is_refused(mimic: Path, tmp_path: Path, name: str, column: str) -> None:
    path = mimic / name
    path.write_text(path.read_text().replace(column, "other", 1))
    with pytest.raises(InputError, match=f"field '{column}': column is missing"):
        imported("mimic-cxr", mimic, tmp_path / "out")


def test_a_label_that_is_none_names_its_file_and_line(mimic: Path, tmp_path: Path) -> None:
    table = mimic / "mimic-cxr-2.0.0-negbio.csv"
    table.write_text(table.read_text().replace("1.0", "yes", 1))
    with pytest.raises(InputError, match=r"negbio\.csv, line 2, field 'Cardiomegaly': not a label"):
        imported("mimic-cxr", mimic, tmp_path / "out")


def test_a_cut_gzip_table_is_refused(mimic: Path, tmp_path: Path) -> None:
    table = mimic / "mimic-cxr-2.0.0-chexpert.csv.gz"
    table.write_bytes(table.read_bytes()[:-20])
    with pytest.raises(InputError, match="cannot be read"):
        imported("mimic-cxr", mimic, tmp_path / "out")


CHEXPERT_HEADER = (
    ",path_to_image,path_to_dcm,frontal_lateral,ap_pa,deid_patient_id,patient_report_date_order,report,"
    "section_narrative,section_clinical_history,section_history,section_comparison,section_technique,"
    "section_procedure_comments,section_findings,section_impression,section_end_of_impression,section_summary,"
    "section_accession_number,age,sex,race,ethnicity,interpreter_needed,insurance_type,recent_bmi,deceased,split"
)


def chexpert_row(number: int, path: str, lateral: str, position: str, order: int, findings: str, split: str) -> str:
    patient = path.split("/")[1]
    stem = path.removesuffix(".jpg")
    return (
        f"{number},{path},{stem}.dcm,{lateral},{position},{patient},{order},full,,Fever,,None.,,,{findings},Normal.,,,"
        f"1,50,Male,White,No,No,A,25,No,{split}"
    )


@pytest.fixture
def chexpert(tmp_path: Path) -> Path:
    root = tmp_path / "chexpert"
    rows = [
        chexpert_row(0, "train/patient00001/study2/view1_frontal.jpg", "Frontal", "AP", 10, "Effusion.", "train"),
        chexpert_row(1, "train/patient00001/study1/view1_frontal.jpg", "Frontal", "PA", 9, "Clear.", "train"),
        chexpert_row(2, "train/patient00001/study1/view2_lateral.jpg", "Lateral", "", 9, "Clear.", "train"),
        chexpert_row(3, "train/patient00002/study1/view1_frontal.jpg", "Frontal", "AP", 1, "", "train"),
        chexpert_row(4, "valid/patient64541/study1/view1_frontal.jpg", "Frontal", "", 1, "Edema.", "valid"),
    ]
    for row in rows:
        write_image(root / "PNG" / row.split(",")[1].replace(".jpg", ".png"))
    (root / "df_chexpert_plus_240401.csv").write_text("\n".join([CHEXPERT_HEADER, *rows]))
    (root / "chexbert_labels").mkdir()
    label = {"path_to_image": "train/patient00001/study2/view1_frontal.jpg", "Pleural Effusion": 1.0, "Edema": None}
    (root / "chexbert_labels" / "findings_fixed.json").write_text(json.dumps(label) + "\n")
    return root


def test_chexpert_plus_groups_views_and_orders_by_date(chexpert: Path, tmp_path: Path) -> None:
    dataset = imported("chexpert-plus", chexpert, tmp_path / "out")
    studies = {study.study_id: study for study in dataset.studies()}
    assert list(studies) == ["patient00001_study1", "patient00001_study2", "patient64541_study1"]
    first, second, last = studies.values()
    assert [image.view for image in first.images] == [View.PA, View.LATERAL]
    assert first.images[0].path == "images/train/patient00001/study1/view1_frontal.png"
    # Report 10 comes after report 9, which a comparison of texts would get wrong.
    assert (first.prior, second.prior) == (None, "patient00001_study1")
    assert second.labels["chexpert14"]["Pleural Effusion"] is LabelState.POSITIVE
    assert second.labels["chexpert14"]["Edema"] is LabelState.BLANK
    assert (last.split, last.indication, last.images[0].view) == ("val", "Fever", View.FRONTAL)
    assert dataset.card.left_out == {"no findings text": 1}


def test_chexpert_plus_valid_as_test_carves_a_validation_part(chexpert: Path, tmp_path: Path) -> None:
    rows = (chexpert / "df_chexpert_plus_240401.csv").read_text().splitlines()
    for number in range(100, 140):
        path = f"train/patient{number:05d}/study1/view1_frontal.jpg"
        rows.append(chexpert_row(number, path, "Frontal", "AP", 1, "Clear.", "train"))
        write_image(chexpert / "PNG" / path.replace(".jpg", ".png"))
    (chexpert / "df_chexpert_plus_240401.csv").write_text("\n".join(rows))
    dataset = imported("chexpert-plus", chexpert, tmp_path / "out", split="valid-as-test")
    assert dataset.card.counts["studies_test"] == 1
    assert dataset.card.counts["studies_val"] == 2
    assert "5 % of the training patients" in dataset.card.split_provenance


LISTS = {
    "train": [{"id": "0", "image_path": ["train/patient00001/study2/view1_frontal.png"]}],
    "val": [{"id": "1", "image_path": "train/patient00001/study1/view1_frontal.png"}],
    "test": [
        {"id": "2", "image_path": ["valid/patient64541/study1/view1_frontal.png", "valid/patient64541/study1/b.png"]}
    ],
}


@pytest.mark.parametrize("name", ["mambaxray", "dast"])
def test_chexpert_plus_by_the_lists_of_a_paper(chexpert: Path, tmp_path: Path, name: str) -> None:
    lists = tmp_path / "chexpert_annotation.json"
    lists.write_text(json.dumps({**LISTS, "test": [*LISTS["test"], {"image_path": ["train/patient9/study9/a.png"]}]}))
    dataset = imported("chexpert-plus", chexpert, tmp_path / "out", split=name, annotation=lists)
    assert {study.study_id: study.split for study in dataset.studies()} == {
        "patient00001_study1": "val",
        "patient00001_study2": "train",
        "patient64541_study1": "test",
    }
    card = dataset.card
    assert card.split_provenance.startswith(f"{name}: ")
    assert card.split_provenance.endswith("by the lists of chexpert_annotation.json")
    assert "chexpert_annotation.json" in {source.file for source in card.sources}
    assert "the lists have 1 / 1 / 2 studies where the paper states 40,463 / 5,780 / 11,562" in card.notes
    assert "1 listed studies are not in the table" in card.notes
    assert any(note.startswith("1 patients are in more than one split") for note in card.notes)
    table = tmp_path / "lists.csv"
    table.write_text("path_to_image,split\ntrain/patient00001/study2/view1_frontal.jpg,test\n")
    by_table = imported("chexpert-plus", chexpert, tmp_path / "table", split=name, annotation=table)
    # A study that no list names is left out.
    assert [(study.study_id, study.split) for study in by_table.studies()] == [("patient00001_study2", "test")]
    assert by_table.card.left_out["not in the source's split"] == 2


@pytest.mark.parametrize(
    ("split", "lists", "field", "got"),
    [
        ("dast", None, "annotation", "none"),
        ("source", LISTS, "split", "source"),
        ("dast", [], None, "list"),
        ("dast", {"train": 3}, None, "dict"),
        ("dast", {"train": [{"id": "1"}]}, "train[0].image_path", "NoneType"),
        ("dast", {"train": [{"image_path": [3]}]}, "train[0].image_path", "list"),
        ("dast", {"train": [{"image_path": ["a.png"]}]}, "path_to_image", "1 parts"),
        ("dast", {"holdout": LISTS["train"]}, "split", "holdout"),
        ("dast", {"train": LISTS["train"], "test": LISTS["train"]}, "path_to_image", "train and test"),
        ("dast", {"train": []}, None, None),
    ],
)
def test_chexpert_plus_lists_that_are_refused(
    chexpert: Path, tmp_path: Path, split: str, lists: object, field: str | None, got: str | None
) -> None:
    file = None
    if lists is not None:
        file = tmp_path / "lists.json"
        file.write_text(json.dumps(lists))
    with pytest.raises(InputError) as caught:
        imported("chexpert-plus", chexpert, tmp_path / "out", split=split, annotation=file)
    assert (caught.value.field, caught.value.got) == (field, got)
    assert not (tmp_path / "out").exists()


def test_split_of_a_paper_is_of_its_set_alone(mimic: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        imported("mimic-cxr", mimic, tmp_path / "out", split="mambaxray")
    assert (caught.value.field, caught.value.got) == ("split", "mambaxray")


def test_rexrank_entries_of_other_sets(tmp_path: Path) -> None:
    root = tmp_path / "rexrank"
    entry = {
        "key_image_path": "valid/patient64545/study1/view1_frontal.png",
        "image_path": ["valid/patient64545/study1/view1_frontal.png"],
        "frontal_lateral": ["Frontal"],
        "report": "Findings: Clear. Impression: Normal.",
        "section_findings": "Clear.",
        "section_impression": "Normal.",
        "context": "Age:82.0.Gender:F.Indication:nanComparison: None.",
        "split": "test",
    }
    write_image(root / entry["image_path"][0])  # type: ignore[arg-type]
    entries = {"patient64545_study1": entry, "patient1_study1": {"image_path": 3}}
    (root / "ReXRank_CheXpertPlus_valid.json").write_text(json.dumps(entries))
    dataset = imported("rexrank", root, tmp_path / "out")
    (study,) = dataset.studies()
    assert (study.study_id, study.patient_id, study.split) == ("patient64545_study1", "patient64545", "test")
    assert (study.report, study.indication, study.images[0].view) == ("Clear.", None, View.FRONTAL)
    assert dataset.card.left_out == {"not a ReXrank entry": 1}


def test_rexrank_paths_that_lead_outside_are_not_followed(tmp_path: Path) -> None:
    write_image(tmp_path / "secret.png")
    (tmp_path / "r").mkdir()
    entries = {
        name: {"image_path": [path], "section_findings": "Clear.", "split": "test"}
        for name, path in (("up", "../secret.png"), ("absolute", str(tmp_path / "secret.png")))
    }
    (tmp_path / "r" / "rexrank.json").write_text(json.dumps(entries))
    with pytest.raises(InputError, match="2 x no image"):
        imported("rexrank", tmp_path / "r", tmp_path / "out")


@pytest.mark.parametrize("kind", ["mimic-cxr", "chexpert-plus", "rexrank", "ct-rate", "ctrg-chest", "iu-xray"])
def test_an_empty_folder_is_none_of_the_sets(kind: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError):
        imported(kind, tmp_path / "empty", tmp_path / "out")
    assert not (tmp_path / "out").exists()
