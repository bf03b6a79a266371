"""ReXGradient-160K and sets with boxes in the layouts they are published in, as small made-up copies."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from radweave.core.errors import InputError
from radweave.core.study import LabelState, View
from radweave.data.check import check_dataset
from radweave.data.dataset import Dataset
from radweave.data.importers import ImportOptions, import_dataset
from radweave.data.mixing import mix_datasets
from tests.image_files import write_dicom


def write_image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(list(path.name.encode())).integers(0, 255, (16, 16), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def imported(kind: str, source: Path, out: Path, **options: object) -> Dataset:
    return import_dataset(kind, source, out, options=ImportOptions.model_validate(options))


def left_out(dataset: Dataset) -> dict[str, str]:
    lines = (dataset.path / "left_out.jsonl").read_text().splitlines()
    return {row["study_id"]: row["reason"] for row in map(json.loads, lines)}


def gradient_entry(
    root: Path, patient: str, study: str, date: str, views: list[str | None], **more: Any
) -> dict[str, Any]:
    paths = []
    for number, _ in enumerate(views):
        inside = f"deid_png/{patient}/A{study}/studies/{study}/series/1/instances/{study}-{number}.png"
        write_image(root / inside)
        paths.append(f"../{inside}")
    return {
        "PatientID": patient,
        "StudyInstanceUid": study,
        "AccessionNumber": f"A{study}",
        "StudyDate": date,
        "Indication": "Cough.",
        "Comparison": "None",
        "Findings": f"Findings of {study}.",
        "Impression": "None.",
        "ImagePath": paths,
        "ImageViewPosition": views,
        **more,
    }


@pytest.fixture
def rexgradient(tmp_path: Path) -> Path:
    root = tmp_path / "ReXGradient-160K"
    parts = {
        "train": {
            "pG1_s2": gradient_entry(root, "G1", "2", "20200301", ["PA", "LATERAL"]),
            "pG1_s1": gradient_entry(root, "G1", "1", "20190101", ["AP"]),
            "pG2_s3": gradient_entry(root, "G2", "3", "", [None]),
            "pG3_s4": gradient_entry(root, "G3", "4", "20200101", ["PA"]),
            "bad1": {"PatientID": "", "ImagePath": []},
            "bad2": gradient_entry(root, "G5", "5", "20200101", ["PA"], Findings=["no", "text"]),
            "bad3": gradient_entry(root, "G5", "6", "20200101", ["PA"], ImagePath="one.png"),
            "escape": gradient_entry(root, "G5", "7", "20200101", ["PA"], ImagePath=["/etc/hostname"]),
        },
        "valid": {"pG4_s8": gradient_entry(root, "G4", "8", "20200101", ["PA"])},
        "test": {"pG3_s9": gradient_entry(root, "G3", "9", "20210101", ["PA"])},
    }
    (root / "metadata").mkdir()
    for part, entries in parts.items():
        (root / "metadata" / f"{part}_metadata_view_position.json").write_text(json.dumps(entries))
    return root


@pytest.mark.parametrize("below", ["", "metadata"])
def test_rexgradient_studies_sections_and_priors(rexgradient: Path, tmp_path: Path, below: str) -> None:
    dataset = imported("rexgradient", rexgradient / below, tmp_path / "out")
    studies = {study.study_id: study for study in dataset.studies()}
    assert {name: study.split for name, study in studies.items()} == {
        "pG1_s1": "train",
        "pG1_s2": "train",
        "pG2_s3": "train",
        "pG4_s8": "val",
        "pG3_s9": "test",
    }
    later = studies["pG1_s2"]
    assert (later.patient_id, later.prior, later.report) == ("G1", "pG1_s1", "Findings of 2.")
    assert (later.indication, later.comparison, later.impression) == ("Cough.", None, None)
    assert [image.view for image in later.images] == [View.PA, View.LATERAL]
    assert later.images[0].path == "images/G1/A2/studies/2/series/1/instances/2-0.png"
    assert studies["pG2_s3"].images[0].view is View.UNKNOWN


def test_rexgradient_trains_on_no_patient_of_another_split_and_counts_bad_entries(
    rexgradient: Path, tmp_path: Path
) -> None:
    dataset = imported("rexgradient", rexgradient, tmp_path / "out")
    reasons = left_out(dataset)
    assert reasons["pG3_s4"] == "a training study of a patient of another split"
    assert reasons["bad1"] == "no PatientID"
    assert reasons["bad2"] == "Findings is no text"
    assert reasons["bad3"] == "ImagePath is no list of paths"
    assert reasons["escape"] == "no image"
    assert not check_dataset(dataset.path).leaks


def padchest_finding(sentence: object, labels: object, *, abnormal: bool = True) -> dict[str, Any]:
    return {
        "sentence_en": sentence,
        "sentence_es": "Una frase.",
        "abnormal": abnormal,
        "labels": labels,
        "locations": ["pleural"],
        "boxes": [[0.1, 0.2, 0.3, 0.4]],
        "extra_boxes": [],
        "progression": None,
    }


@pytest.fixture
def padchest_gr(tmp_path: Path) -> Path:
    root = tmp_path / "PadChest-GR"
    studies = {
        "11": ("P1", "train", "20150101"),
        "12": ("P1", "train", "20140101"),
        "21": ("P2", "validation", "20150101"),
        "31": ("P3", "test", "20150101"),
        "32": ("P3", "train", "20150101"),
        "41": ("P4", "train", "20150101"),
    }
    entries: list[object] = []
    for study in studies:
        write_image(root / "Padchest_GR_files" / "PadChest_GR" / f"{study}_a.png")
        findings = [
            padchest_finding(f"Nodule of {study}.", ["nodule", "granuloma"]),
            padchest_finding("No pleural effusion.", ["pleural effusion"], abnormal=False),
        ]
        entries.append({"StudyID": study, "ImageID": f"{study}_a.png", "PreviousStudyID": None, "findings": findings})
    entries[-1] = {"StudyID": "41", "ImageID": "41_a.png", "findings": [padchest_finding(None, ["nodule"])]}
    entries += [entries[0], {"ImageID": "x.png"}, "no entry", {"StudyID": "99", "ImageID": "y.png", "findings": []}]
    (root / "grounded_reports_20240819.json").write_text(json.dumps(entries))
    head = "StudyID,ImageID,label,split,PatientID,StudyDate_DICOM"
    rows = [f"{study},{study}_a.png,nodule,{split},{p},{date}" for study, (p, split, date) in studies.items()]
    (root / "master_table.csv").write_text("\r\n".join([head, *rows, *rows]))
    return root


def test_padchest_gr_sentences_labels_and_splits(padchest_gr: Path, tmp_path: Path) -> None:
    dataset = imported("padchest-gr", padchest_gr, tmp_path / "out")
    studies = {study.study_id: study for study in dataset.studies()}
    assert {name: study.split for name, study in studies.items()} == {
        "11": "train",
        "12": "train",
        "21": "val",
        "31": "test",
    }
    study = studies["11"]
    assert study.report == "Nodule of 11. No pleural effusion."
    assert study.labels["padchest-gr"] == {"nodule": LabelState.POSITIVE, "granuloma": LabelState.POSITIVE}
    assert (study.patient_id, study.prior) == ("P1", "12")
    assert (study.images[0].path, study.images[0].view) == ("images/11_a.png", View.FRONTAL)
    reasons = left_out(dataset)
    assert reasons["32"] == "a training study of a patient of another split"
    assert reasons["41"].startswith("a finding without a sentence")
    assert reasons["11"] == "a study of this id is there already"
    assert reasons["99"] == "not in the master table"
    assert dataset.card.left_out["an entry without StudyID"] == 2
    boxes = study.images[0].boxes
    assert [(each.label, each.box, each.sentence) for each in boxes] == [
        ("nodule", (0.1, 0.2, 0.3, 0.4), "Nodule of 11."),
        ("granuloma", (0.1, 0.2, 0.3, 0.4), "Nodule of 11."),
        ("pleural effusion", (0.1, 0.2, 0.3, 0.4), "No pleural effusion."),
    ]
    assert not check_dataset(dataset.path).leaks


@pytest.mark.parametrize(
    ("boxes", "reason"),
    [
        ([[0.3, 0.2, 0.1, 0.4]], "a box goes from its low to its high corner"),
        ([[0.1, 0.2, 0.1, 0.4]], "a box is not empty"),
        ([[0.1, 0.2, 1.3, 0.4]], "a box is in shares of the image, 0 to 1"),
        ([[0.1, 0.2, 0.3]], "a box has 4 numbers, of a volume 6"),
        ([7], "a box is a list of numbers"),
        (7, "a box is a list of numbers"),
    ],
)
def test_boxes_that_are_none_are_counted(padchest_gr: Path, tmp_path: Path, boxes: object, reason: str) -> None:
    reports = padchest_gr / "grounded_reports_20240819.json"
    entries = json.loads(reports.read_text())
    entries[1]["findings"] = [{**padchest_finding("Nodule.", ["nodule"]), "boxes": boxes}]
    reports.write_text(json.dumps(entries))
    dataset = imported("padchest-gr", padchest_gr, tmp_path / "out")
    (study,) = (study for study in dataset.studies() if study.study_id == "12")
    assert study.images[0].boxes == ()
    assert dataset.card.left_out[f"box: {reason}"] == 1


def test_boxes_survive_scrubbing_and_mixing(padchest_gr: Path, ms_cxr: Path, tmp_path: Path) -> None:
    reports = padchest_gr / "grounded_reports_20240819.json"
    reports.write_text(reports.read_text().replace("Nodule of 11.", "Nodule, seen by Dr. Miller."))
    first = imported("padchest-gr", padchest_gr, tmp_path / "gr", scrub=True)
    (study,) = (study for study in first.studies() if study.study_id == "11")
    assert study.images[0].boxes[0].sentence == "Nodule, seen by ___."
    second = imported("ms-cxr", ms_cxr, tmp_path / "ms")
    mixed = mix_datasets([first.path, second.path], tmp_path / "mixed")
    assert sum(len(image.boxes) for study in mixed.studies() for image in study.images) == (
        first.card.counts["boxes"] + second.card.counts["boxes"]
    )
    assert mixed.card.counts["boxes"] > 0


MS_HEAD = "category_name,label_text,path,x,y,w,h,image_width,image_height,dicom_id,subject_id,study_id"
MS_ROWS = [
    ("Pneumonia", "left lower lobe opacity", "p10/p10000032/s51/d-1", "train"),
    ("Pneumonia", "left lower lobe opacity", "p10/p10000032/s51/d-1", "train"),
    ("Pleural Effusion", "Small left effusion.", "p10/p10000032/s51/d-2", "train"),
    ("Edema", "mild edema", "p11/p11000000/s61/d-3", "val"),
    ("Edema", "moderate edema", "p12/p12000000/s71/d-4", "test"),
    ("Edema", "severe edema", "p12/p12000000/s72/d-5", "train"),
    ("Edema", "", "p13/p13000000/s81/d-6", "train"),
]


@pytest.fixture
def ms_cxr(tmp_path: Path) -> Path:
    root = tmp_path / "ms-cxr"
    lines = [f"{MS_HEAD},split"]
    for category, phrase, place, split in MS_ROWS:
        write_image(root / "files" / f"{place}.jpg")
        lines.append(f"{category},{phrase},files/{place}.jpg,1,2,3,4,16,16,{place[-3:]},1,2,{split}")
    lines.append("Edema,edema,somewhere/else.jpg,1,2,3,4,16,16,d,1,2,train")
    (root / "MS_CXR_Local_Alignment_v1.1.0.csv").write_text("\n".join(lines))
    return root


def test_ms_cxr_phrases_categories_and_splits(ms_cxr: Path, tmp_path: Path) -> None:
    dataset = imported("ms-cxr", ms_cxr, tmp_path / "out")
    studies = {study.study_id: study for study in dataset.studies()}
    assert {name: study.split for name, study in studies.items()} == {"s51": "train", "s61": "val", "s71": "test"}
    study = studies["s51"]
    assert study.patient_id == "p10000032", "as an import of MIMIC-CXR names it"
    assert study.report == "Left lower lobe opacity. Small left effusion."
    assert study.labels["ms-cxr"] == {"Pneumonia": LabelState.POSITIVE, "Pleural Effusion": LabelState.POSITIVE}
    assert [image.path for image in study.images] == [
        "images/p10/p10000032/s51/d-1.jpg",
        "images/p10/p10000032/s51/d-2.jpg",
    ]
    assert [(each.label, each.box, each.sentence) for each in study.images[0].boxes] == [
        ("Pneumonia", (1 / 16, 2 / 16, 4 / 16, 6 / 16), "Left lower lobe opacity.")
    ], "pixels are shares of the image, and a repeated row is one box"
    reasons = left_out(dataset)
    assert reasons["s72"] == "a training study of a patient of another split"
    assert reasons["line 8"] == "no phrase"
    assert reasons["line 9"] == "not a path of MIMIC-CXR"
    assert not check_dataset(dataset.path).leaks


def test_ms_cxr_boxes_without_the_size_of_the_image_are_counted(ms_cxr: Path, tmp_path: Path) -> None:
    table = ms_cxr / "MS_CXR_Local_Alignment_v1.1.0.csv"
    table.write_text(table.read_text().replace(",16,16,", ",,0,", 1).replace(",16,16,", ",0,16,", 1))
    dataset = imported("ms-cxr", ms_cxr, tmp_path / "out")
    assert dataset.card.left_out["box: no numbers in x, y, w, h, image_width, image_height"] == 1
    assert dataset.card.left_out["box: the image has no size"] == 1


def test_the_first_version_of_ms_cxr_has_no_split(ms_cxr: Path, tmp_path: Path) -> None:
    table = ms_cxr / "MS_CXR_Local_Alignment_v1.1.0.csv"
    lines = [line.rpartition(",")[0] for line in table.read_text().splitlines()]
    table.unlink()
    (ms_cxr / "MS_CXR_Local_Alignment_v1.0.0.csv").write_text("\n".join(lines))
    dataset = imported("ms-cxr", ms_cxr, tmp_path / "out")
    assert {study.split for study in dataset.studies()} == {None}
    cut = imported("ms-cxr", ms_cxr, tmp_path / "cut", split="1:0:1")
    assert {study.split for study in cut.studies()} == {"train", "test"}


REGIONS = {"right lung": (2, 2, 8, 12), "right lower lung zone": (2, 8, 8, 12), "left lung": (9, 2, 17, 12)}


def scene_graph(*attributes: tuple[str, str, int, list[str]]) -> dict[str, Any]:
    """A graph with one sentence per attribute: region, sentence, number, labels."""
    corners = [dict(zip(("x1", "y1", "x2", "y2"), box, strict=True)) for box in REGIONS.values()]
    return {
        "objects": [
            {"bbox_name": name, **{f"original_{key}": value for key, value in box.items()}, "x1": 0, "x2": 224}
            for name, box in zip(REGIONS, corners, strict=True)
        ],
        "attributes": [
            {"bbox_name": region, "phrases": [phrase], "phrase_IDs": [f"50|{number}"], "attributes": [labels]}
            for region, phrase, number, labels in attributes
        ],
    }


OPACITY = ["anatomicalfinding|yes|lung opacity", "severity|mild", "nlp|yes|abnormal"]
GRAPHS = {
    "d-1": scene_graph(
        ("left lung", "No effusion.", 9, ["anatomicalfinding|no|pleural effusion"]),
        ("right lung", "Opacity at the  right base.", 2, OPACITY),
        ("right lower lung zone", "Opacity at the  right base.", 2, OPACITY),
        ("mediastinum", "Wide mediastinum.", 3, ["anatomicalfinding|yes|enlarged mediastinum"]),
    ),
    "d-2": scene_graph(("left lung", "Clear.", 1, ["anatomicalfinding|no|lung opacity"])),
    "d-3": scene_graph(("left lung", "Hazy.", 1, OPACITY)),
    "d-4": {"attributes": [{"bbox_name": "left lung", "phrases": ["One."], "phrase_IDs": [], "attributes": []}]},
}


@pytest.fixture
def chest_imagenome(tmp_path: Path) -> Path:
    root = tmp_path / "chest-imagenome"
    splits = root / "silver_dataset" / "splits"
    splits.mkdir(parents=True)
    rows = {
        "train": ["10,51,d-1", "10,51,d-2", "11,61,d-3", "12,71,d-5"],
        "valid": ["13,81,d-3"],
        "test": ["14,91,d-4"],
    }
    for part, lines in rows.items():
        numbered = (f"{number},{line}" for number, line in enumerate(lines))
        (splits / f"{part}.csv").write_text("\n".join([",subject_id,study_id,dicom_id", *numbered]))
        for line in lines:
            patient, study, image = line.split(",")
            write_image(root / "files" / f"p{patient[:2]}" / f"p{patient}" / f"s{study}" / f"{image}.jpg")
    (splits / "images_to_avoid.csv").write_text("subject_id,study_id,dicom_id\n11,61,d-3\n")
    graphs = root / "silver_dataset" / "scene_graph"
    graphs.mkdir()
    for name, graph in GRAPHS.items():
        (graphs / f"{name}_SceneGraph.json").write_text(json.dumps(graph))
    return root


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_chest_imagenome_sentences_states_and_innermost_regions(
    chest_imagenome: Path, tmp_path: Path, form: str
) -> None:
    if form == "archive":
        silver = chest_imagenome / "silver_dataset"
        shutil.make_archive(str(silver / "scene_graph"), "zip", silver, "scene_graph")
        shutil.rmtree(silver / "scene_graph")
    dataset = imported("chest-imagenome", chest_imagenome, tmp_path / "out")
    studies = {study.study_id: study for study in dataset.studies()}
    assert {name: study.split for name, study in studies.items()} == {"s51": "train", "s81": "val"}
    study = studies["s51"]
    assert study.patient_id == "p10"
    assert study.report == "Clear. Opacity at the right base. Wide mediastinum. No effusion."
    assert study.labels["chest-imagenome"] == {
        "lung opacity": LabelState.POSITIVE,
        "pleural effusion": LabelState.NEGATIVE,
        "enlarged mediastinum": LabelState.POSITIVE,
    }
    boxes = {image.path[-7:]: image.boxes for image in study.images}
    assert boxes["d-2.jpg"] == ()
    assert [(each.label, each.box, each.sentence) for each in boxes["d-1.jpg"]] == [
        ("lung opacity", (2 / 16, 8 / 16, 8 / 16, 12 / 16), "Opacity at the right base.")
    ], "the lung around the zone gives no box, nor does a region that was not detected"
    (last,) = studies["s81"].images[0].boxes
    assert last.box[2] == 1, "a pixel that is counted from one is at the edge"
    reasons = left_out(dataset)
    assert reasons["s61"] == "a training study of the gold set"
    assert {"s71", "s91"} <= reasons.keys()
    assert dataset.card.left_out["image: its scene graph cannot be read"] == 2
    assert not check_dataset(dataset.path).leaks


def test_chest_imagenome_takes_sizes_from_the_metadata(chest_imagenome: Path, tmp_path: Path) -> None:
    (chest_imagenome / "mimic-cxr-2.0.0-metadata.csv").write_text("dicom_id,Rows,Columns\nd-1,24,32\nd-3,8,8\n")
    dataset = imported("chest-imagenome", chest_imagenome, tmp_path / "out")
    studies = {study.study_id: study for study in dataset.studies()}
    (box,) = (box for image in studies["s51"].images for box in image.boxes)
    assert box.box == (2 / 32, 8 / 24, 8 / 32, 12 / 24)
    assert dataset.card.left_out["box: a box is in shares of the image, 0 to 1"] == 1


def vindr_table(path: Path, head: str, *rows: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([head, *rows]))


@pytest.fixture
def vindr_cxr(tmp_path: Path) -> Path:
    root = tmp_path / "vindr-cxr"
    notes, classes = root / "annotations", "Nodule/Mass,Pleural effusion,No finding"
    votes = ["a,R1,1,1,0", "a,R2,1,0,0", "a,R3,0,0,0", "b,R1,0,0,1", "b,R2,0,0,1", "b,R3,0,0,1"]
    vindr_table(notes / "image_labels_train.csv", f"image_id,rad_id,{classes}", *votes)
    vindr_table(notes / "image_labels_test.csv", f"image_id,{classes}", "c,0,1,0")
    corners = "x_min,y_min,x_max,y_max"
    vindr_table(
        notes / "annotations_train.csv",
        f"image_id,rad_id,class_name,{corners}",
        "a,R1,Nodule/Mass,10,10,30,30",
        "a,R2,Nodule/Mass,14,10,34,30",
        "a,R2,Nodule/Mass,60,60,70,70",
        "a,R2,Nodule/Mass,5,5,5,9",
        "a,R1,Pleural effusion,1,1,9,9",
        "b,R1,No finding,,,,",
    )
    vindr_table(notes / "annotations_test.csv", f"image_id,class_name,{corners}", "c,Pleural effusion,0,32,32,64.5")
    for name in ("train/a", "train/b", "test/c"):
        path = root / f"{name}.dicom"
        path.parent.mkdir(exist_ok=True)
        write_dicom(path, np.random.default_rng(list(name.encode())).random((64, 128)))
    return root


def test_vindr_cxr_votes_and_boxes_of_several_readers(vindr_cxr: Path, tmp_path: Path) -> None:
    dataset = imported("vindr-cxr", vindr_cxr, tmp_path / "out", keep="image-only")
    studies = {study.study_id: study for study in dataset.studies()}
    assert {name: study.split for name, study in studies.items()} == {"a": "train", "b": "train", "c": "test"}
    assert studies["a"].labels["vindr-cxr"] == {
        "Nodule/Mass": LabelState.POSITIVE,
        "Pleural effusion": LabelState.UNCERTAIN,
        "No finding": LabelState.NEGATIVE,
    }
    assert [(each.label, each.box) for each in studies["a"].images[0].boxes] == [
        ("Nodule/Mass", (12 / 128, 10 / 64, 32 / 128, 30 / 64))
    ], "boxes that overlap are one"
    assert studies["b"].images[0].boxes == ()
    assert [each.box for each in studies["c"].images[0].boxes] == [(0.0, 0.5, 0.25, 1.0)]
    left = dataset.card.left_out
    assert left["box: a finding that most readers do not state"] == 1
    assert left["box: a box is not empty"] == 1
    assert left["box: a box is in shares of the image, 0 to 1"] == 1
    assert dataset.card.counts["boxes"] == 2


def test_vindr_cxr_without_images_or_with_other_labels(vindr_cxr: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no findings text"):
        imported("vindr-cxr", vindr_cxr, tmp_path / "complete")
    (vindr_cxr / "train" / "a.dicom").write_bytes(b"none")
    dataset = imported("vindr-cxr", vindr_cxr, tmp_path / "out", keep="image-only")
    assert dataset.card.left_out["box: the size of the image is not known"] == 1
    table = vindr_cxr / "annotations" / "image_labels_test.csv"
    table.write_text(table.read_text().replace("c,0,1,0", "c,0,maybe,0"))
    with pytest.raises(InputError, match=r"not a label.*maybe"):
        imported("vindr-cxr", vindr_cxr, tmp_path / "other")


@pytest.mark.parametrize(
    ("kind", "name", "content", "message"),
    [
        ("rexgradient", "other.json", "{}", "no ReXGradient metadata here"),
        ("rexgradient", "train_metadata_view_position.json", "[]", "not a ReXGradient file"),
        ("padchest-gr", "grounded_reports_20240819.json", "[]", r"expected master_table\.csv"),
        ("padchest-gr", "master_table.csv", "StudyID,PatientID,split\n", "expected grounded_reports"),
        ("ms-cxr", "other.csv", "a,b\n", "no MS-CXR table here"),
        ("ms-cxr", "MS_CXR_Local_Alignment_v1.1.0.csv", "path,split\nx,y\n", "category_name"),
        ("chest-imagenome", "other.csv", "a,b\n", "no Chest ImaGenome here"),
        ("vindr-cxr", "other.csv", "a,b\n", "no VinDr-CXR here"),
        ("vindr-cxr", "image_labels_train.csv", "rad_id\nR1\n", "image_id"),
    ],
)
def test_what_is_not_the_set_is_refused_and_nothing_is_written(
    tmp_path: Path, kind: str, name: str, content: str, message: str
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / name).write_text(content)
    with pytest.raises(InputError, match=message):
        imported(kind, source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
