"""IU X-Ray in its five forms: the same studies, texts and splits; what differs is listed here."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from radweave.core.errors import InputError
from radweave.core.study import LabelState, Study, View
from radweave.data.importers import ImportOptions, import_dataset
from radweave.data.importers.build import Evaluated
from radweave.data.importers.iu_formats import image_key
from radweave.data.importers.source import RawStudy, Source

XML = """<?xml version="1.0" encoding="utf-8"?>
<eCitation><uId id="CXR{number}"/><MedlineCitation><Article><Abstract>
<AbstractText Label="COMPARISON"/><AbstractText Label="INDICATION">Cough</AbstractText>
<AbstractText Label="FINDINGS">{findings}</AbstractText>
<AbstractText Label="IMPRESSION">Normal.</AbstractText>
</Abstract></Article></MedlineCitation><parentImage id="CXR{number}_1_IM-0001-1001"/></eCitation>"""


def imported(source: Path, out: Path, **options: object) -> dict[str, Study]:
    dataset = import_dataset(
        "iu-xray", source, out, options=ImportOptions.model_validate({"link": True, **options}), overwrite=True
    )
    return {study.study_id: study for study in dataset.studies()}


@pytest.fixture(scope="module")
def forms(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Study]]:
    """The shared studies, from each form, with R2Gen's split."""
    out = tmp_path_factory.mktemp("iu")
    source = shared_data / "iu_xray"
    files, images = source / "formats", source / "images"
    annotation = files / "r2gen_annotation.json"
    rexrank = out / "rexrank"
    rexrank.mkdir()
    for path in files.glob("rexrank*.json"):
        shutil.copyfile(path, rexrank / path.name)
    tables = {"images": images, "annotation": annotation}
    return {
        "manifest": imported(source, out / "a"),
        "openi": imported(files / "ecgen-radiology.tgz", out / "b", **tables),
        "kaggle": imported(files / "indiana_reports.csv", out / "c", **tables),
        "r2gen": imported(annotation, out / "d", images=images),
        "rexrank": imported(rexrank, out / "e", images=images),
    }


@pytest.mark.long
@pytest.mark.parametrize("form", ["openi", "kaggle", "r2gen"])
def test_the_forms_give_the_same_studies_texts_and_splits(forms: dict[str, dict[str, Study]], form: str) -> None:
    manifest, other = forms["manifest"], forms[form]
    assert other
    assert set(other) == set(manifest)
    for study_id, study in manifest.items():
        assert other[study_id].report == study.report
        assert other[study_id].split == study.split
        assert {image.sha256 for image in other[study_id].images} == {image.sha256 for image in study.images}


def test_rexrank_holds_validation_and_test_only(forms: dict[str, dict[str, Study]]) -> None:
    manifest, other = forms["manifest"], forms["rexrank"]
    assert set(other) == {study_id for study_id, study in manifest.items() if study.split != "train"}
    assert all((other[i].report, other[i].split) == (manifest[i].report, manifest[i].split) for i in other)


def test_known_differences_between_the_forms_are_listed(forms: dict[str, dict[str, Study]]) -> None:
    """Kaggle lost texts that a spreadsheet program read as formulas; R2Gen has findings alone; ReXrank's "None"
    stands both for the word and for a missing section."""
    manifest = forms["manifest"]

    def differing(form: str, section: str) -> list[tuple[str | None, str | None]]:
        pairs = [(getattr(other, section), getattr(manifest[i], section)) for i, other in forms[form].items()]
        return [pair for pair in pairs if pair[0] != pair[1]]

    for section in ("impression", "indication", "comparison"):
        assert differing("openi", section) == []
        assert all(text_of_form is None for text_of_form, _ in differing("r2gen", section))
    assert differing("kaggle", "impression") == differing("kaggle", "comparison") == []
    assert all(
        text_of_form is None and text.lstrip()[0] in "+-=@"
        for text_of_form, text in differing("kaggle", "indication")
        if text
    )
    assert differing("rexrank", "impression") == []
    others = [pair for section in ("indication", "comparison") for pair in differing("rexrank", section)]
    assert all(own is None and str(text).strip(" .").lower() == "none" for own, text in others)


def test_every_shared_study_is_read(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "iu_xray"
    studies = imported(source, tmp_path / "out", keep="all")
    rows = [json.loads(line) for line in (source / "manifest.jsonl").read_text().splitlines()]
    assert list(studies) == [row["id"] for row in rows]
    for row in rows:
        study = studies[row["id"]]
        assert (study.findings, study.impression) == (row["findings"], row["impression"])
        assert [image.original_size_wh for image in study.images] == [
            tuple(size) if size else None for size in row["original_size_wh"]
        ]
    assert Counter(study.split for study in studies.values()) == Counter(row["r2gen_split"] for row in rows)


def test_studies_outside_the_lists_join_train_but_for_those_that_share_with_test(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "images").mkdir(parents=True)
    # The third is not in the lists, the fourth neither, and has the image of the test study under another name.
    for number, (split, pixel) in enumerate([("train", 10), ("test", 20), (None, 30), (None, 20)]):
        Image.fromarray(np.full((32, 32), pixel, np.uint8)).save(source / "images" / f"{number}.png")
        row = {
            "id": f"CXR{number}",
            "r2gen_split": split,
            "images": [f"images/{number}.png"],
            "findings": "The heart is enlarged.",
            "labels_chexpert14_auto": {"Edema": 1},
        }
        with (source / "manifest.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
    plain = imported(source, tmp_path / "plain")
    assert {name: study.split for name, study in plain.items()} == {"CXR0": "train", "CXR1": "test"}
    assert plain["CXR0"].labels["chexpert14"]["Edema"] is LabelState.POSITIVE
    more = imported(source, tmp_path / "more", extra_train=True, labels="read")
    assert {name: study.split for name, study in more.items()} == {"CXR0": "train", "CXR1": "test", "CXR2": "train"}
    assert not any(study.labels for study in more.values())
    card = json.loads((tmp_path / "more" / "dataset.json").read_text())
    assert card["left_out"] == {"not in the source's split, and has an image of validation or test": 1}
    assert "join train" in card["split_provenance"]
    assert "extra_train" not in json.loads((tmp_path / "plain" / "dataset.json").read_text())["options"]
    with pytest.raises(InputError, match="published split"):
        imported(source, tmp_path / "ratio", split="7:1:2", extra_train=True)
    assert not (tmp_path / "ratio").exists()


def test_a_further_study_of_a_test_patient_is_not_trained_on(tmp_path: Path) -> None:
    studies = [RawStudy("a", "p0", "test"), RawStudy("b", "p1", "train"), RawStudy("c", "p0"), RawStudy("d", "p1")]
    evaluated = Evaluated.of(Source("made", lambda _: iter(studies), tmp_path, (), "lists", needs_split=True))
    assert "of a patient of validation or test" in str(evaluated.shares_with(studies[2]))
    assert evaluated.shares_with(studies[3]) is None


def test_labels_views_and_sizes_of_a_shared_study(forms: dict[str, dict[str, Study]]) -> None:
    study = forms["manifest"]["CXR1"]
    assert study.labels["chexpert14"]["No Finding"] is LabelState.POSITIVE
    assert study.labels["chexpert14"]["Pneumonia"] is LabelState.BLANK
    assert study.labels["chexpert14"]["Edema"] is LabelState.NEGATIVE
    assert set(study.labels["nih14"].values()) == {LabelState.NEGATIVE}
    assert len(study.labels["nih14"]) == 14
    # The DICOM header calls both images PA; the collection calls the second one lateral.
    assert [image.view for image in study.images] == [View.PA, View.LATERAL]
    assert study.images[0].original_size_wh == (2828, 2320)


@pytest.mark.long
def test_a_ratio_split_covers_all_studies(shared_data: Path, tmp_path: Path) -> None:
    studies = imported(shared_data / "iu_xray", tmp_path / "out", split="7:1:2", target="findings+impression")
    counts = Counter(study.split for study in studies.values())
    total = sum(counts.values())
    assert [round(10 * counts[name] / total) for name in ("train", "val", "test")] == [7, 1, 2]
    assert all(study.report == f"{study.findings} {study.impression}" for study in list(studies.values())[:50])


def test_one_image_has_one_key_in_every_form() -> None:
    assert image_key("CXR1_1_IM-0001-3001") == image_key("1_IM-0001-3001.dcm.png") == ("1", "IM-0001-3001")
    assert image_key("images/64_IM-2218-2001.dcm.jpg") == ("64", "IM-2218-2001")
    assert image_key("0.png") is None


def openi_folder(root: Path) -> Path:
    """Open-i's download: XML files and PNG images."""
    (root / "ecgen-radiology").mkdir(parents=True)
    (root / "NLMCXR_png").mkdir()
    for number in (1, 2, 10):
        (root / "ecgen-radiology" / f"{number}.xml").write_text(XML.format(number=number, findings=f"Text {number}."))
        Image.fromarray(np.full((4, 4), number, np.uint8)).save(root / "NLMCXR_png" / f"CXR{number}_1_IM-0001-1001.png")
    return root


def test_an_openi_download_is_read_unchanged(tmp_path: Path) -> None:
    studies = imported(openi_folder(tmp_path / "openi"), tmp_path / "out", split="test")
    assert [(study.study_id, study.report, study.comparison) for study in studies.values()] == [
        ("CXR1", "Text 1.", None),
        ("CXR2", "Text 2.", None),
        ("CXR10", "Text 10.", None),
    ]
    assert {study.split for study in studies.values()} == {"test"}


def test_a_broken_xml_file_is_counted_and_the_rest_goes_on(tmp_path: Path) -> None:
    source = openi_folder(tmp_path / "openi")
    (source / "ecgen-radiology" / "2.xml").write_text("<eCitation><uId")
    out = tmp_path / "out"
    assert list(imported(source, out)) == ["CXR1", "CXR10"]
    left_out = json.loads((out / "dataset.json").read_text())["left_out"]
    assert sum(count for reason, count in left_out.items() if "not well-formed XML" in reason) == 1


def test_xml_that_defines_entities_is_not_expanded(tmp_path: Path) -> None:
    source = openi_folder(tmp_path / "openi")
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>' + XML.split("?>")[1]
    external = '<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/hostname">]>' + XML.split("?>")[1]
    (source / "ecgen-radiology" / "1.xml").write_text(bomb.format(number=1, findings="&b;"))
    (source / "ecgen-radiology" / "2.xml").write_text(external.format(number=2, findings="&f;"))
    (source / "ecgen-radiology" / "3.xml").write_text("<a>" * 5000 + "</a>" * 5000)
    out = tmp_path / "out"
    assert list(imported(source, out)) == ["CXR10"]
    assert json.loads((out / "dataset.json").read_text())["left_out"] == {
        "XML declares a document type or entities; refused": 2,
        "XML nests too deeply": 1,
    }


def tar_with(path: Path, *members: tarfile.TarInfo, data: bytes = b"") -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(data) if member.isreg() else None)
    return path


def member(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, link
    return info


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (member("../1.xml"), "leads out"),
        (member("/tmp/1.xml"), "leads out"),
        (member("1.xml", kind=tarfile.SYMTYPE, link="/etc/passwd"), "link or a device"),
        (member("1.xml", kind=tarfile.LNKTYPE, link="../x"), "link or a device"),
        (member("1.xml", kind=tarfile.CHRTYPE), "link or a device"),
    ],
)
def test_archives_that_lead_outside_are_refused(tmp_path: Path, entry: tarfile.TarInfo, message: str) -> None:
    archive = tar_with(tmp_path / "x.tgz", entry)
    with pytest.raises(InputError, match=message):
        imported(archive, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.tgz"]


def test_an_archive_bomb_is_refused_before_it_unpacks(tmp_path: Path) -> None:
    size = 5 << 20
    archive = tar_with(tmp_path / "x.tgz", member("1.xml", size), data=b" " * size)
    assert archive.stat().st_size < 20_000
    with pytest.raises(InputError, match="too large"):
        imported(archive, tmp_path / "out")


@pytest.mark.parametrize("content", [b"", b"not an archive", b"\x1f\x8b\x08\x00 broken"])
def test_a_damaged_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.tgz").write_bytes(content)
    with pytest.raises(InputError, match=r"archive|no study could be taken over"):
        imported(tmp_path / "x.tgz", tmp_path / "out")


def test_r2gen_images_are_taken_by_their_own_names_where_they_are(tmp_path: Path) -> None:
    annotation = {
        "train": [{"id": "CXR7_IM-1", "report": "Clear.", "image_path": ["CXR7_IM-1/0.png", "CXR7_IM-1/1.png"]}],
        "": [{"id": "CXR8_IM-2", "report": "Effusion.", "image_path": ["CXR8_IM-2/0.png"]}],
    }
    (tmp_path / "iu" / "images").mkdir(parents=True)
    (tmp_path / "iu" / "annotation.json").write_text(json.dumps(annotation))
    for name in ("CXR7_IM-1/0.png", "CXR7_IM-1/1.png", "CXR8_IM-2/0.png"):
        path = tmp_path / "iu" / "images" / name
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((4, 4), len(name), np.uint8)).save(path)
    studies = imported(tmp_path / "iu", tmp_path / "out")
    assert [(s.study_id, s.split, len(s.images)) for s in studies.values()] == [
        ("CXR7", "train", 2),
        ("CXR8", "test", 1),
    ]


def test_image_paths_of_a_json_file_cannot_lead_outside(tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(b"secret")
    annotation = {
        "train": [
            {"id": "CXR1", "report": "Clear.", "image_path": ["../secret.png"]},
            {"id": "CXR2", "report": "Clear.", "image_path": [str(secret)]},
        ]
    }
    (tmp_path / "iu").mkdir()
    (tmp_path / "iu" / "annotation.json").write_text(json.dumps(annotation))
    with pytest.raises(InputError, match="no image"):
        imported(tmp_path / "iu", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["iu", "secret.png"]


def test_several_forms_in_one_folder_need_a_choice(shared_data: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"several forms"):
        imported(shared_data / "iu_xray" / "formats", tmp_path / "out")


def test_a_study_that_the_annotation_does_not_list_has_no_split(tmp_path: Path) -> None:
    listed = {"train": [2], "val": [], "test": [1]}
    annotation = {
        split: [{"id": f"CXR{number}_IM-1", "report": "Text.", "image_path": []} for number in numbers]
        for split, numbers in listed.items()
    }
    (tmp_path / "r2gen.json").write_text(json.dumps(annotation))
    studies = imported(openi_folder(tmp_path / "openi"), tmp_path / "out", annotation=tmp_path / "r2gen.json")
    assert {name: study.split for name, study in studies.items() if study.split} == {"CXR1": "test", "CXR2": "train"}
