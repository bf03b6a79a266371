"""Texts that ``data import --scrub`` removes, and texts that stay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from radweave.cli.data import app
from radweave.core.errors import InputError
from radweave.data.dataset import Dataset
from radweave.data.deidentify.texts import Scrubber
from radweave.data.importers import ImportOptions, import_dataset
from tests.image_files import write_dicom

NAME, RECORD = "ZZCANARY^ANNA", "QX-778"


def scrubbed(text: str, *names: str, ids: tuple[str, ...] = ()) -> str:
    return Scrubber(names).study(ids, ())(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Seen on 2024-05-17 and 5/17/24.", "Seen on ___ and ___."),
        ("Compared with May 17, 2023 and 3 Jan 2022.", "Compared with ___ and ___."),
        ("Discussed with Dr. Jane B. Doe by phone.", "Discussed with ___ by phone."),
        ("Call 555-123-4567 or a.b@site.example.org.", "Call ___ or ___."),
        ("Accession AB1234567 noted.", "Accession ___ noted."),
    ],
)
def test_patterns_that_name_someone_are_marked(text: str, expected: str) -> None:
    assert scrubbed(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "A 3.2 x 1.5 cm nodule may be decreased 5 mm, marked 3 mm in March.",
        "T11-12 disc, 1/2 of the left lung. Levels 4-5. Volume of 450 mL.",
        "MR of the chest, DR Chest, XXXX and ___ stay. No change in 12 months.",
    ],
)
def test_ordinary_words_and_measures_stay(text: str) -> None:
    assert scrubbed(text, "Doe", "li") == text


@pytest.mark.parametrize(
    "text",
    [
        "19600412", "1960-04-12", "12/04/1960", "04/12/60", "12.4.1960", "12 April 1960", "April 12, 1960", "12-APR-60",
        "12apr1960", "april 1960", "04/1960", "12 04 1960", "1960 Apr 12", "the 12th of April", "Apr 12 '60",
        "1960_04_12", "12345678", "12-3456-78", "12 3456 78", "mrn12345678", "555-1234", "078-05-1120",
    ],
)  # fmt: skip
def test_dates_and_numbers_go_however_they_are_written(text: str) -> None:
    for around in ("{}", "Seen {}.", "compared ({}), stable", "DOB:{};"):
        done = scrubbed(around.format(text))
        assert not any(sign.isdigit() for sign in done), done
        assert done.startswith(around.split("{}")[0])


@pytest.mark.parametrize(
    "text",
    [
        "Between 2012-2019 unchanged; 2 to 3 cm, 3-4-5 ribs, ribs 4-5 and T4-T5, 100-150 mL, 10 20 30.",
        "A line in the left lung. Olive, limited, alignment; LINE TIP IN SVC. MAY BE 3 cm. may represent 1960s",
        "NG tube, AP and PA view, do an MRI, as in no other. XU-like opacity, li xu.",
        "Blood pressure 120/80, 1/2, 7/8 of the lung, 12.5 x 3.25 cm, 24/7.",
    ],
)
def test_the_words_of_medicine_stay_beside_short_names(text: str) -> None:
    assert scrubbed(text, "Li Xa", "An Do", "Ng Pa", "No As") == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Li Xu was seen. LI XU, Xu^Li.", "___ ___ was seen. ___ ___, ___^___."),
        ("XuLi and LIXU, lixu line.", "___ and ___, ___ line."),
        ("Mr Do; An Do came, Do, An.", "___; ___ ___ came, ___, ___."),
        ("SMITHJOHN, JohnSmith, jsmith, SmithJ; Smithson, John.", "___, ___, ___, ___; Smithson, ___."),
    ],
)
def test_short_and_joined_names_go(text: str, expected: str) -> None:
    assert scrubbed(text, "Li Xu", "An Do", "Smith John") == expected


def test_short_joined_and_dashed_words_of_a_header_go(tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "a.dcm", PatientName="Li^Xu", PatientID="12-34", ReferringPhysicianName="Smith^John")
    scrub = Scrubber().study((), [path])
    text = "Li Xu (1234, 12-34), XULI of SMITHJOHN; a line in the PA view of 34 mm."
    assert scrub(text) == "___ ___ (___, ___), ___ of ___; a line in the PA view of 34 mm."


@pytest.mark.slow
def test_real_reports_without_names_lose_only_titles(shared_data: Path) -> None:
    rows = map(json.loads, (shared_data / "iu_xray/manifest.jsonl").read_text(encoding="utf-8").splitlines())
    names = ("indication", "comparison", "findings", "impression")
    reports = [" ".join(row.get(name) or "" for name in names) for row in rows]
    scrubber = Scrubber(["Li Xu", "An Do", "Smith John"])
    study = scrubber.study((), ())
    changed = [text for text in reports if study(text) != text]
    assert len(reports) > 3000
    assert len(changed) <= 10  # those that name a doctor


def test_listed_names_and_own_ids_are_marked_in_any_case() -> None:
    text = "SMITH-JONES, smith and Jones; study cxr77 of p0012; Smithson."
    assert scrubbed(text, "Smith-Jones", ids=("CXR77", "p0012")) == "___-___, ___ and ___; study ___ of ___; Smithson."
    # Words of an id are ordinary words.
    assert scrubbed("Left lung of case 77.", ids=("left-lung-77a",)) == "Left lung of case 77."


@pytest.mark.parametrize("text", ["a" * 100_000, "1-" * 50_000, "A." * 50_000, "Dr " * 33_000, "+(111) " * 14_000])
def test_scrubbing_takes_linear_time(text: str) -> None:
    """Patterns that go back on themselves would take minutes here."""
    assert len(scrubbed(text)) <= len(text)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A radiograph whose header names a patient that the report names too."""
    folder = tmp_path / "source"
    folder.mkdir()
    write_dicom(folder / "a.dcm", PatientName=NAME, PatientID=RECORD)
    row = {"image": "a.dcm", "study_id": "s1", "patient_id": "p881", "findings": "Anna Zzcanary (P881, 778): clear."}
    row["indication"] = "Cough since 5/1/2020, says Kowalska."
    (folder / "data.jsonl").write_text(json.dumps(row) + "\n")
    return folder


def test_words_of_the_header_and_of_the_list_leave_all_sections(source: Path, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("Maria Kowalska\n")
    options = ImportOptions(scrub=True, scrub_names=tmp_path / "names.txt", verify=False)
    dataset = import_dataset("folder", source, tmp_path / "out", options=options)
    (study,) = dataset.studies()
    assert study.findings == study.report == "___ ___ (___, ___): clear."
    assert study.indication == "Cough since ___, says ___."
    assert dataset.card.counts["scrubbed"] == 6
    # The card says that it was done, and holds no name.
    assert dataset.card.options["scrub"] is True
    assert "Kowalska" not in (dataset.path / "dataset.json").read_text()


def test_the_command_line_counts_and_says_that_others_may_remain(source: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["import", "folder", str(source), "--out", str(tmp_path / "out"), "--scrub"])
    assert result.exit_code == 0
    assert "scrubbed: 5 names, ids, dates and numbers of the texts; others may remain" in result.stdout
    plain = import_dataset("folder", source, tmp_path / "plain")
    assert "scrubbed" not in plain.card.counts
    assert [study.findings for study in Dataset.open(tmp_path / "plain").studies()] == [
        "Anna Zzcanary (P881, 778): clear."
    ]


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_a_list_that_cannot_be_read_is_refused_before_anything_is_written(
    source: Path, tmp_path: Path, content: bytes | None
) -> None:
    names = tmp_path / "names.txt"
    if content is not None:
        names.write_bytes(content)
    with pytest.raises(InputError, match="list of names"):
        import_dataset("folder", source, tmp_path / "out", options=ImportOptions(scrub=True, scrub_names=names))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("header", "written"),
    [*(("Grünwaldt^Zoë", one) for one in ("Grunwaldt", "Gruenwaldt", "Zoe")), ("Gruenwaldt^Zoe", "GRÜNWALDT")],
)
def test_a_name_is_known_with_and_without_the_marks_on_its_letters(tmp_path: Path, header: str, written: str) -> None:
    path = write_dicom(tmp_path / "1.dcm", SpecificCharacterSet="ISO_IR 192", PatientName=header)
    assert Scrubber().study([], [path])(f"Seen by {written} today.") == "Seen by ___ today."


@pytest.mark.parametrize("written", ["123/456/78", "123.456.78", "12/3456.78", "12 34 56 78", "1234_5678"])
def test_an_id_is_known_whatever_separates_its_parts(written: str) -> None:
    assert Scrubber().study(["12-3456-78"], [])(f"Film {written}: clear.") == "Film ___: clear."


@pytest.mark.parametrize(("identifier", "written"), [("00004711", "4711"), ("MRN0098231", "MRN/009/8231")])
def test_an_id_is_known_without_its_leading_zeros_and_with_letters(identifier: str, written: str) -> None:
    assert Scrubber().study([identifier], [])(f"Film {written}: clear.") == "Film ___: clear."


def test_east_asian_dates_are_removed() -> None:
    assert Scrubber().study([], [])("Film of 1960年4月12日 here.") == "Film of ___ here."


def test_numbers_beside_each_other_that_are_no_id_stay() -> None:
    text = "Ribs 4, 5 and 6; 10-15 mm at 12/34; 120 kV 5 mAs."
    assert Scrubber().study(["12-3456-78"], [])(text) == text
