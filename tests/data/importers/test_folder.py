"""A plain folder with a table: columns by several names, several views, encodings, bad rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from radweave.core.errors import InputError
from radweave.core.study import View
from radweave.data.importers import ImportOptions, import_dataset


def write_images(folder: Path, *names: str) -> None:
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(number).integers(0, 256, (24, 20), np.uint8)
        Image.fromarray(noise).save(path)


def write_table(folder: Path, *lines: str, name: str = "reports.csv", encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_bytes("\n".join(lines).encode(encoding))
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    write_images(folder, "a.png", "b.png", "sub/c.png")
    return folder


def test_columns_views_and_splits_are_taken(source: Path, tmp_path: Path) -> None:
    write_table(
        source,
        "Study_ID,Patient_ID,Image,View,Findings,Impression,Indication,Split",
        's1,p1,a.png,PA,"Heart, lungs: clear.",Normal.,Cough,train',
        "s1,p1,b.png,Lateral,,,,",
        "s2,p2,sub/c.png,AP,Effusion.,,,validation",
    )
    dataset = import_dataset("folder", source, tmp_path / "out")
    first, second = dataset.studies()
    assert [(image.path, image.view) for image in first.images] == [
        ("images/a.png", View.PA),
        ("images/b.png", View.LATERAL),
    ]
    assert (first.report, first.indication, first.split) == ("Heart, lungs: clear.", "Cough", "train")
    assert (second.patient_id, second.split, second.images[0].path) == ("p2", "val", "images/sub/c.png")
    assert dataset.image_path("images/sub/c.png").read_bytes() == (source / "sub/c.png").read_bytes()
    assert [entry.file for entry in dataset.card.sources] == ["reports.csv"]


def test_several_images_in_one_cell_or_in_a_list(source: Path, tmp_path: Path) -> None:
    write_table(source, "images,views,report", "a.png|b.png,PA|LL,Clear.")
    from_cell = list(import_dataset("folder", source, tmp_path / "cell").studies())
    (source / "reports.csv").unlink()
    row = {"images": ["a.png", "b.png"], "views": ["PA", "LL"], "report": "Clear."}
    write_table(source, json.dumps(row), name="reports.jsonl")
    assert list(import_dataset("folder", source, tmp_path / "list").studies()) == from_cell
    assert [image.view for image in from_cell[0].images] == [View.PA, View.LATERAL]
    assert from_cell[0].study_id == "a"


def test_a_report_with_headings_is_taken_apart(source: Path, tmp_path: Path) -> None:
    write_table(
        source,
        "image,report",
        'a.png,"Indication: Cough. Findings: The lungs are clear. Impression: Normal."',
        "b.png,The lungs are clear. No effusion.",
    )
    first, second = import_dataset("folder", source, tmp_path / "out").studies()
    assert (first.report, first.impression, first.indication) == ("The lungs are clear.", "Normal.", "Cough.")
    assert (second.report, second.findings) == ("The lungs are clear. No effusion.", None)


def test_a_section_column_has_precedence_over_the_report(source: Path, tmp_path: Path) -> None:
    whole = '"Indication: Cough. Comparison: None. Findings: The lungs are clear. Impression: Normal."'
    write_table(
        source,
        "image,report,indication,technique",
        f"a.png,{whole},Fever.,PA.",
        f"b.png,{whole},,",
    )
    first, second = import_dataset("folder", source, tmp_path / "out").studies()
    assert (first.indication, first.comparison, first.technique) == ("Fever.", "None.", "PA.")
    assert (second.indication, second.comparison, second.technique) == ("Cough.", "None.", None)
    assert first.findings == second.findings == "The lungs are clear."


@pytest.mark.parametrize("names", ["{0},{1}", "{1},{0}"])
@pytest.mark.parametrize(
    ("column", "other", "field"),
    [
        ("report", "text", "report"),
        ("indication", "history", "indication"),
        ("study_id", "uid", "study_id"),
        ("patient_id", "subject_id", "patient_id"),
    ],
)
def test_the_canonical_column_name_has_precedence(
    source: Path, tmp_path: Path, names: str, column: str, other: str, field: str
) -> None:
    rest = "image" if column == "report" else "image,report"
    cells = "a.png" if column == "report" else "a.png,Clear."
    write_table(source, f"{rest},{names.format(column, other)}", f"{cells},{names.format('Mine', 'Another')}")
    (study,) = import_dataset("folder", source, tmp_path / "out").studies()
    assert getattr(study, field) == "Mine"


def write_volume(path: Path) -> None:
    import nibabel

    voxels = np.random.default_rng(0).integers(-1000, 400, (20, 20, 12)).astype(np.int16)
    nibabel.save(nibabel.Nifti1Image(voxels, np.diag([1.0, 1.0, 2.0, 1.0])), path)  # type: ignore[attr-defined]


def test_volumes_make_a_ct_set(source: Path, tmp_path: Path) -> None:
    write_volume(source / "v.nii.gz")
    (source / "a.png").rename(source / "picture.nii")
    write_table(source, "volume,report", "v.nii.gz,Nodule.", "picture.nii,Clear.")
    dataset = import_dataset("folder", source, tmp_path / "out")
    (study,) = dataset.studies()
    assert dataset.card.modality == "ct"
    assert (study.images[0].path, study.images[0].view) == ("images/v.nii.gz", View.AXIAL)
    assert dataset.card.left_out["no image"] == 1


def test_a_folder_of_slices_is_one_volume(shared_data: Path, tmp_path: Path) -> None:
    files = shared_data / "chest_ct" / "files"
    table = write_table(tmp_path, "volume,report", "whole_chest_64_dicom,Clear.")
    dataset = import_dataset("folder", table, tmp_path / "out", options=ImportOptions(images=files))
    (study,) = dataset.studies()
    slices = {path.name for path in dataset.image_path(study.images[0].path).iterdir()}
    assert slices == {path.name for path in (files / "whole_chest_64_dicom").iterdir()}


def test_the_view_of_a_dicom_header_is_taken_where_the_table_has_none(shared_data: Path, tmp_path: Path) -> None:
    folder = shared_data / "cxr_dicom" / "files"
    table = tmp_path / "reports.csv"
    write_table(tmp_path, "image,view,report", "RG1_J2KI.dcm,,Clear.", "RG3_RLE.dcm,lateral,Clear.")
    dataset = import_dataset("folder", table, tmp_path / "out", options=ImportOptions(images=folder, link=True))
    assert [study.images[0].view for study in dataset.studies()] == [View.PA, View.LATERAL]


def test_images_that_cannot_be_read_are_left_out(source: Path, tmp_path: Path) -> None:
    (source / "text.png").write_text("not an image")
    (source / "cut.png").write_bytes((source / "a.png").read_bytes()[:60])
    Image.fromarray(np.zeros((1, 30_000), np.uint8)).save(source / "wide.png")
    write_table(source, "image,report", *(f"{name}.png,Clear." for name in ("a", "text", "cut", "wide")))
    dataset = import_dataset("folder", source, tmp_path / "out")
    assert [study.study_id for study in dataset.studies()] == ["a"]
    assert dataset.card.left_out["no image"] == 3
    assert any("too large" in reason for reason in dataset.card.left_out)
    unread = import_dataset("folder", source, tmp_path / "fast", options=ImportOptions(verify=False))
    assert unread.card.counts["studies"] == 4


@pytest.mark.parametrize(
    ("encoding", "word"), [("latin-1", "Latin-1"), ("cp1252", "Windows-1252"), ("utf-16", "UTF-16")]
)
def test_other_encodings_are_read_and_noted(source: Path, tmp_path: Path, encoding: str, word: str) -> None:
    text = "Größe normal." if encoding != "cp1252" else "Größe \u201enormal\u201c."
    write_table(source, "image,report", f"a.png,{text}", encoding=encoding)
    dataset = import_dataset("folder", source, tmp_path / "out")
    assert next(iter(dataset.studies())).report == text
    assert any(word in note for note in dataset.card.notes)


def test_a_utf8_mark_is_no_part_of_the_first_column(source: Path, tmp_path: Path) -> None:
    write_table(source, "image,report", "a.png,Clear.", encoding="utf-8-sig")
    assert len(list(import_dataset("folder", source, tmp_path / "out").studies())) == 1


def test_bad_rows_are_counted_and_the_rest_goes_on(source: Path, tmp_path: Path) -> None:
    (source / "empty.png").write_bytes(b"")
    (tmp_path / "secret.png").write_bytes(b"x")
    (source / "link.png").symlink_to(tmp_path / "secret.png")
    write_table(
        source,
        "study_id,image,report,split",
        "good,a.png,Clear.,train",
        "missing,nowhere.png,Clear.,train",
        "empty,empty.png,Clear.,train",
        "outside,../secret.png,Clear.,train",
        "link,link.png,Clear.,train",
        "silent,b.png,,train",
        "notext,b.png,nan,train",
        "a/b,b.png,Clear.,train",
        "oddsplit,b.png,Clear.,holdout",
        ",b.png,Clear.,train",
        "half,nowhere.png|sub/c.png,Clear.,test",
    )
    dataset = import_dataset("folder", source, tmp_path / "out")
    assert [study.study_id for study in dataset.studies()] == ["good", "half"]
    assert dataset.card.left_out == {
        "image: file is empty": 1,
        "image: file is missing": 2,
        "image: path leads outside the source folder": 2,
        "no findings text": 2,
        "no image": 4,
        "no study id": 1,
        "study_id: an id must not hold path separators or control characters": 1,
        "unknown split (train, val or test; or --split 7:1:2)": 1,
    }
    listed = [json.loads(line) for line in (dataset.path / "left_out.jsonl").read_text().splitlines()]
    assert {row["study_id"] for row in listed} >= {"missing", "outside", "silent", "a/b", "oddsplit", "half"}
    assert not (dataset.path / "images" / "secret.png").exists()
    assert next(row["got"] for row in listed if row["study_id"] == "oddsplit") == "holdout"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["study_id,report", "a,Clear."], "field 'image': column is missing"),
        (["image,study_id", "a.png,a"], "field 'findings': column is missing"),
        (["image,image,report", "a.png,b.png,Clear."], "column comes twice"),
        (["image,report", "a.png,Clear, heart normal."], "line 2: row has more cells"),
        (["study_id,image,report", "a,a.png,Clear.", "a,b.png,Effusion."], "line 3: duplicate study id"),
        (["study_id,image,report", "a,a.png,Clear.", "a,a.png,Clear."], "line 3: duplicate study id"),
        (["image,report", 'a.png,"never closed'], "not a readable CSV file"),
        (["image,report"], "holds no row"),
        ([""], "no header"),
        (["image,report", "a.png,\0"], "NUL"),
    ],
)
def test_a_broken_table_is_refused_and_nothing_is_left(
    source: Path, tmp_path: Path, lines: list[str], message: str
) -> None:
    write_table(source, *lines)
    with pytest.raises(InputError, match=message):
        import_dataset("folder", source, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_nothing_usable_is_an_error_with_the_reasons(source: Path, tmp_path: Path) -> None:
    write_table(source, "image,report", "nowhere.png,Clear.")
    with pytest.raises(InputError, match=r"\(1 x no image; 1 x image: file is missing\)"):
        import_dataset("folder", source, tmp_path / "out")


def test_odd_text_is_stored_or_rejected(source: Path, tmp_path: Path) -> None:
    rows = [
        {"id": "script", "image": "a.png", "report": "<script>alert(1)</script> \u202e \x07 Clear."},
        {"id": "surrogate", "image": "a.png", "report": "broken \ud800 text"},
        {"id": "long", "image": "a.png", "report": "clear " * 200_000},
        {"id": "number", "image": "a.png", "report": 12},
        {"id": "list", "image": "a.png", "report": ["Clear."]},
        {"id": "nan", "image": "a.png", "report": float("nan")},
        {"id": "x" * 300, "image": "a.png", "report": "Clear."},
    ]
    write_table(source, *(json.dumps(row) for row in rows), name="reports.jsonl")
    dataset = import_dataset("folder", source, tmp_path / "out")
    texts = {study.study_id: study.report for study in dataset.studies()}
    assert texts == {"script": rows[0]["report"], "number": "12"}
    assert sum(dataset.card.left_out.values()) == 5


def test_keep_options_decide_about_incomplete_studies(source: Path, tmp_path: Path) -> None:
    write_table(source, "study_id,image,report", "both,a.png,Clear.", "text,,Clear.", "image,b.png,", "none,,")
    contents = {
        keep: [
            study.study_id
            for study in import_dataset(
                "folder", source, tmp_path / keep, options=ImportOptions.model_validate({"keep": keep})
            ).studies()
        ]
        for keep in ("complete", "text-only", "image-only", "all")
    }
    assert contents == {
        "complete": ["both"],
        "text-only": ["both", "text"],
        "image-only": ["both", "image"],
        "all": ["both", "text", "image", "none"],
    }


def test_a_ratio_split_keeps_patients_together_and_depends_on_the_seed_only(source: Path, tmp_path: Path) -> None:
    lines = [f"s{n},p{n // 2},a.png,Report {n}." for n in range(40)]
    write_table(source, "study_id,patient_id,image,report", *lines)

    def splits(seed: int, name: str) -> dict[str, str | None]:
        options = ImportOptions(split="7:1:2", seed=seed)
        studies = list(import_dataset("folder", source, tmp_path / name, options=options).studies())
        of_patient = {(study.patient_id, study.split) for study in studies}
        assert len(of_patient) == 20
        return {study.study_id: study.split for study in studies}

    first = splits(0, "a")
    counts = [list(first.values()).count(name) for name in ("train", "val", "test")]
    assert counts == [28, 4, 8]
    assert first == splits(0, "b")
    assert first != splits(1, "c")


def test_a_ratio_split_does_not_depend_on_the_process() -> None:
    """Sets of text have another order in each process unless PYTHONHASHSEED is set."""
    code = (
        "from radweave.data.importers.build import cut_patients\n"
        "print(sorted(cut_patients({f'p{n}' for n in range(50)}, [7, 1, 2], 0).items()))"
    )
    splits = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(splits) == 1
    assert "'test'" in splits.pop()


def test_the_same_source_gives_the_same_bytes(source: Path, tmp_path: Path) -> None:
    write_table(source, "image,report,split", "a.png,Clear.,train", "b.png,,test", "sub/c.png,Effusion.,test")
    folders = [import_dataset("folder", source, tmp_path / name).path for name in ("one", "two")]
    contents = [
        {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in folders
    ]
    assert contents[0] == contents[1]
    assert set(contents[0]) >= {"dataset.json", "manifest.jsonl", "left_out.jsonl", "images/a.png"}


def test_radiographs_and_volumes_do_not_mix(source: Path, tmp_path: Path) -> None:
    (source / "v.nii.gz").write_bytes(b"\x1f\x8b volume")
    write_table(source, "image,report", "a.png,Clear.", "v.nii.gz,Clear.")
    with pytest.raises(InputError, match="radiographs and volumes"):
        import_dataset("folder", source, tmp_path / "out")


def test_json_lines_may_lack_what_they_do_not_need(source: Path, tmp_path: Path) -> None:
    rows = [
        {"id": "a", "image": "a.png", "findings": "Clear."},
        {"id": "b", "images": ["b.png"], "report": "Effusion.", "split": "test"},
        {"id": "c"},
    ]
    write_table(source, *(json.dumps(row) for row in rows), name="reports.jsonl")
    dataset = import_dataset("folder", source, tmp_path / "out")
    assert {study.study_id: study.report for study in dataset.studies()} == {"a": "Clear.", "b": "Effusion."}
    write_table(source, '{"id": "c"}', name="reports.jsonl")
    with pytest.raises(InputError, match="field 'image': column is missing"):
        import_dataset("folder", source, tmp_path / "none")


def test_priors_follow_the_study_time(source: Path, tmp_path: Path) -> None:
    write_table(
        source,
        "study_id,patient_id,image,report,study_time",
        "late,p,a.png,Worse.,2024-05-17T08:30",
        "other,q,b.png,Clear.,2024-05-16",
        "early,p,sub/c.png,Clear.,2023-01-02",
        "undated,p,a.png,Clear.,",
    )
    studies = {study.study_id: study.prior for study in import_dataset("folder", source, tmp_path / "out").studies()}
    assert studies == {"late": "early", "early": None, "other": None, "undated": None}


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_other_delimiters_are_seen_in_the_header(source: Path, tmp_path: Path, delimiter: str) -> None:
    write_table(source, f"image{delimiter}report", f"a.png{delimiter}Clear, heart normal.")
    (study,) = import_dataset("folder", source, tmp_path / "out").studies()
    assert study.report == "Clear, heart normal."


def test_an_output_that_would_lose_data_is_refused(source: Path, tmp_path: Path) -> None:
    write_table(source, "image,report", "a.png,Clear.")
    before = sorted(path.name for path in source.rglob("*"))
    for out in (source, tmp_path, source / "reports.csv"):
        with pytest.raises(InputError, match="would replace what is imported"):
            import_dataset("folder", source / "reports.csv", out, overwrite=True)
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds no dataset\.json"):
        import_dataset("folder", source, tmp_path / "letters", overwrite=True)
    assert (tmp_path / "letters" / "mine.txt").read_text() == "mine"
    assert sorted(path.name for path in source.rglob("*")) == before


def test_two_tables_need_a_choice(source: Path, tmp_path: Path) -> None:
    for name in ("x.csv", "y.csv"):
        write_table(source, "image,report", "a.png,Clear.", name=name)
    with pytest.raises(InputError, match="which table"):
        import_dataset("folder", source, tmp_path / "out")
    assert import_dataset("folder", source / "x.csv", tmp_path / "out").card.counts["studies"] == 1


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [("split", "8:2", "no such split"), ("cleaning", "r2gen", "no such cleaning"), ("target", "summary", "target")],
)
def test_options_that_do_not_exist_name_those_that_do(
    source: Path, tmp_path: Path, field: str, value: str, message: str
) -> None:
    from radweave.data.importers import options_from

    write_table(source, "image,report", "a.png,Clear.")
    with pytest.raises(InputError, match=message):
        import_dataset("folder", source, tmp_path / "out", options=options_from(**{field: value}))


def test_an_unknown_kind_names_the_known_ones(source: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="iu-xray"):
        import_dataset("iu", source, tmp_path / "out")


def test_images_are_read_in_parallel_and_reported_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, calls = tmp_path / "source", list[tuple[int, int]]()
    write_images(folder, *(f"{number}.png" for number in range(70)))
    for number in (3, 40, 66):
        (folder / f"{number}.png").write_bytes(b"\x89PNG\r\n\x1a\n, and then nothing")
    rows = [f"p{number},{number}.png,Clear.,train" for number in range(70)]
    rows[5], rows[68] = "p5,gone.png,Clear.,train", "p68,68.png,,train"
    write_table(folder, "patient_id,image,report,split", *rows)
    for cores in (1, 7):
        monkeypatch.setattr("radweave.data.cache.arrays.usable_cores", lambda cores=cores: cores)
        options = ImportOptions(verify=True)
        import_dataset(
            "folder", folder, tmp_path / f"by {cores}", options=options, progress=lambda *counts: calls.append(counts)
        )
    left = [json.loads(line) for line in (tmp_path / "by 1" / "left_out.jsonl").read_text().splitlines()]
    assert [row["study_id"] for row in left if "image" not in row] == ["3", "gone", "40", "66", "68"]
    for file in ("manifest.jsonl", "dataset.json", "left_out.jsonl"):
        assert (tmp_path / "by 1" / file).read_bytes() == (tmp_path / "by 7" / file).read_bytes()
    assert calls == [(done, 70) for done in range(1, 71)] * 2


def test_a_ratio_does_not_read_the_split_column(source: Path, tmp_path: Path) -> None:
    write_table(source, "image,report,split", "a.png,Clear.,1", "b.png,Clear.,2", "sub/c.png,Clear.,3")
    dataset = import_dataset("folder", source, tmp_path / "out", options=ImportOptions(split="1:1:1"))
    assert dataset.card.left_out == {}
    assert sorted(study.split or "" for study in dataset.studies()) == ["test", "train", "val"]


def test_other_tables_of_the_folder_are_named(source: Path, tmp_path: Path) -> None:
    write_table(source, "image,report", "a.png,Clear.")
    (source / "notes.csv").write_text("a,b\n1,2\n")
    dataset = import_dataset("folder", source, tmp_path / "out")
    assert any("others in the folder are not read: 1" in note for note in dataset.card.notes)


def test_column_names_are_read_as_people_write_them(source: Path, tmp_path: Path) -> None:
    write_table(
        source,
        "File Name,Patient ID,Study,Findings,Reader",
        "a.png,p1,s1,Clear.,x",
        "b.png,p1,s1,,x",
        "sub/c.png,p2,s2,Effusion.,x",
    )
    dataset = import_dataset("folder", source, tmp_path / "out")
    assert [(study.study_id, study.patient_id, len(study.images)) for study in dataset.studies()] == [
        ("s1", "p1", 2),
        ("s2", "p2", 1),
    ]
    assert "columns that are not read: Reader" in dataset.card.notes


def test_a_missing_column_quotes_no_first_row(source: Path, tmp_path: Path) -> None:
    write_table(source, "picture,findings", "a.png,Clear.")
    with pytest.raises(InputError, match="got 2 others, expected one of image"):
        import_dataset("folder", source, tmp_path / "out")


def test_missing_images_are_looked_for_elsewhere(source: Path, tmp_path: Path) -> None:
    write_table(source, "image,findings", "nowhere/a.png,Clear.")
    with pytest.raises(InputError, match="--images FOLDER, if the images lie elsewhere"):
        import_dataset("folder", source, tmp_path / "out")
