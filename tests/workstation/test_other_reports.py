"""PDF, FHIR, HL7 and text: they parse, they say what the report says, and nothing in it breaks out of its field."""

from __future__ import annotations

import base64
import json
import logging
from pathlib import Path
from typing import Any, get_args

import hl7
import pytest
from fhir.resources.bundle import Bundle
from fhir.resources.R4B.bundle import Bundle as BundleR4

from radweave.core.errors import InputError
from radweave.core.study import RESEARCH_ONLY, LabelState
from radweave.workstation.finished import CAUTION, Finding, FinishedReport, Section, SectionKind, spoken_name
from radweave.workstation.formats import FORMATS
from radweave.workstation.hl7 import escaped
from radweave.workstation.identity import read_identities
from radweave.workstation.pdf import BOX, _fonts, _Pen
from tests.image_files import CANARY
from tests.workstation.reports import ADDED, FINDINGS, IMPRESSION, SIGNED, added, dicom_image, finished, identity

HOSTILE = "a|b^c~d\\e&f\rOBX|9|TX|evil\nnext \x0b end \\F\\ \\.br\\"


def resources(name: str, report: FinishedReport) -> dict[str, list[dict[str, Any]]]:
    """Resources of a bundle by type, after the validator of its release has read it."""
    data = FORMATS[name].bytes_of(report)
    (BundleR4 if name == "fhir" else Bundle).model_validate_json(data)
    entries: dict[str, list[dict[str, Any]]] = {}
    for entry in json.loads(data)["entry"]:
        assert entry["fullUrl"] == f"urn:uuid:{entry['resource']['id']}"
        entries.setdefault(entry["resource"]["resourceType"], []).append(entry["resource"])
    return entries


@pytest.mark.parametrize("name", ["fhir", "fhir-r5"])
def test_a_bundle_is_valid_and_consistent(name: str) -> None:
    entries = resources(name, finished())
    (report,), (study,), (patient,) = (entries[kind] for kind in ("DiagnosticReport", "ImagingStudy", "Patient"))
    assert report["status"] == "preliminary"
    assert report["code"]["coding"][0]["code"] == "18748-4"
    assert report["subject"]["reference"] == f"urn:uuid:{patient['id']}"
    assert report["study" if name == "fhir-r5" else "imagingStudy"][0]["reference"] == f"urn:uuid:{study['id']}"
    assert study["identifier"][0]["value"] == f"urn:oid:{identity().study_instance_uid}"
    assert study["series"][0]["instance"][0]["uid"] == identity().sop_instance_uid
    pdf, text = (base64.b64decode(form["data"]) for form in report["presentedForm"])
    assert pdf.startswith(b"%PDF-")
    assert FINDINGS in text.decode()
    named = {row["reference"] for row in report["result"]}
    assert named == {f"urn:uuid:{row['id']}" for row in entries["Observation"]}
    assert [row["valueQuantity"]["value"] for row in entries["Observation"]] == [0.91, 0.62]
    assert [row["interpretation"][0]["coding"][0]["code"] for row in entries["Observation"]] == ["POS", "NEG"]
    assert "snomed" not in json.dumps(entries)


@pytest.mark.parametrize("name", ["fhir", "fhir-r5"])
def test_a_signed_bundle_names_its_signer(name: str) -> None:
    entries = resources(name, finished(signature=SIGNED))
    assert entries["DiagnosticReport"][0]["status"] == "final"
    assert entries["Practitioner"][0]["name"][0]["family"] == "Weber"
    assert all(row["status"] == "final" for row in entries["Observation"])


@pytest.mark.parametrize("name", ["fhir", "fhir-r5"])
def test_a_final_bundle_is_the_same_report_as_its_draft(name: str) -> None:
    (draft,), (signed,) = (
        resources(name, finished(**changes))["DiagnosticReport"] for changes in ({}, {"signature": SIGNED})
    )
    assert draft["identifier"] == signed["identifier"]
    assert draft["id"] != signed["id"]
    assert (draft["issued"], signed["issued"]) == ("2026-03-04T05:06:07+00:00", "2026-03-05T08:09:10+00:00")
    (nobodys,) = resources(name, finished(sources=()))["DiagnosticReport"]
    (others,) = resources(name, finished(sources=(), text="Clear."))["DiagnosticReport"]
    assert nobodys["identifier"] != others["identifier"], "files of one name are not one study"


@pytest.mark.parametrize("name", ["fhir", "fhir-r5"])
@pytest.mark.parametrize("missing", ["study_instance_uid", "series_instance_uid", "sop_instance_uid", "sop_class_uid"])
def test_a_bundle_of_images_without_a_uid_names_the_others(name: str, missing: str) -> None:
    entries = resources(name, finished(sources=(identity(**{missing: ""}),)))
    assert entries["Patient"][0]["identifier"][0]["value"] == CANARY
    (study,) = entries["ImagingStudy"]
    assert len(study["identifier"]) == (1 if missing == "study_instance_uid" else 2), "and the accession number"
    assert len(study.get("series", ())) == (missing == "study_instance_uid")
    assert '""' not in json.dumps(entries)
    assert 'urn:oid:"' not in json.dumps(entries)


@pytest.mark.parametrize("name", ["fhir", "fhir-r5"])
@pytest.mark.parametrize(
    ("dicom", "parts"),
    [
        ("Weber^Ann Marie^Jo^Dr.^Jr.", ("Weber", ["Ann", "Marie", "Jo"], ["Dr."], ["Jr."])),
        ("Weber^Ann^^^Jr.", ("Weber", ["Ann"], None, ["Jr."])),
        ("Weber^^^Prof. Dr.", ("Weber", None, ["Prof.", "Dr."], None)),
        ("^Ann", (None, ["Ann"], None, None)),
    ],
)
def test_each_part_of_a_name_has_its_own_field(
    name: str, dicom: str, parts: tuple[str | None, list[str] | None, list[str] | None, list[str] | None]
) -> None:
    entries = resources(name, finished(sources=(identity(patient_name=dicom),)))
    (human,) = entries["Patient"][0]["name"]
    assert tuple(human.get(field) for field in ("family", "given", "prefix", "suffix")) == parts


def test_every_reference_of_a_bundle_is_to_a_resource_in_it() -> None:
    def references(value: Any) -> list[str]:
        if isinstance(value, list):
            return [entries for one in value for entries in references(one)]
        if not isinstance(value, dict):
            return []
        own = [value["reference"]] if "reference" in value else []
        return own + [entries for one in value.values() for entries in references(one)]

    for name in ("fhir", "fhir-r5"):
        for changes in ({}, {"signature": SIGNED}, {"sources": ()}, {"findings": ()}):
            bundle = json.loads(FORMATS[name].bytes_of(finished(**changes)))
            urls = [entry["fullUrl"] for entry in bundle["entry"]]
            assert len(set(urls)) == len(urls)
            assert set(references(bundle)) <= set(urls)


@pytest.mark.parametrize("name", ["fhir", "fhir-r5"])
def test_a_bundle_of_images_without_a_patient_names_none(name: str) -> None:
    entries = resources(name, finished(sources=()))
    assert set(entries) == {"DiagnosticReport", "Device", "Observation"}
    assert "subject" not in entries["DiagnosticReport"][0]


@pytest.mark.parametrize("name", ["fhir", "fhir-r5", "hl7", "pdf", "text"])
def test_the_same_report_gives_the_same_bytes(name: str) -> None:
    assert FORMATS[name].bytes_of(finished()) == FORMATS[name].bytes_of(finished())


def test_a_message_parses_and_has_the_content_of_the_report() -> None:
    message = hl7.parse(FORMATS["hl7"].bytes_of(finished()).decode())
    assert str(message.segment("MSH")[9]) == "ORU^R01^ORU_R01"
    assert str(message.segment("MSH")[18]) == "UNICODE UTF-8"
    assert len(str(message.segment("MSH")[10])) == 20
    assert str(message.segment("PID")[3][0][0]) == CANARY
    assert (str(message.segment("PID")[5][0][0]), str(message.segment("PID")[5][0][1])) == (CANARY, "Ann")
    assert str(message.segment("OBR")[25]) == "P"
    rows = [(str(row[2]), str(row[5]), str(row[11])) for row in message.segments("OBX")]
    assert ("FT", IMPRESSION, "P") in rows
    assert [value for kind, value, _ in rows if kind == "NM"] == ["0.9100", "0.6200"]
    texts = [message.unescape(value) for kind, value, _ in rows if kind == "FT"]
    assert FINDINGS in texts


def test_a_signed_message_is_final_and_names_its_signer() -> None:
    message = hl7.parse(FORMATS["hl7"].bytes_of(finished(signature=SIGNED)).decode())
    assert str(message.segment("OBR")[25]) == "F"
    assert str(message.segment("OBR")[32]) == "&Weber&Jana&&&Dr."
    assert {str(row[11]) for row in message.segments("OBX")} == {"F"}


def test_a_final_message_is_the_same_report_as_its_draft_at_the_time_of_its_signature() -> None:
    draft, signed = (
        hl7.parse(FORMATS["hl7"].bytes_of(one).decode()) for one in (finished(), finished(signature=SIGNED))
    )
    for message in (draft, signed):
        assert str(message.segment("OBR")[3]) == str(message.segment("ORC")[3]) == str(draft.segment("OBR")[3])
    assert str(signed.segment("MSH")[10]) != str(draft.segment("MSH")[10])
    assert str(signed.segment("OBR")[22]) == str(signed.segment("MSH")[7]) == "20260305080910+0000"
    assert str(draft.segment("OBR")[22]) == "20260304050607+0000"
    other = finished(sources=(identity(study_instance_uid="1.2.3"),))
    another = hl7.parse(FORMATS["hl7"].bytes_of(other).decode())
    assert str(another.segment("OBR")[3]) != str(draft.segment("OBR")[3])


def test_no_two_observations_of_a_message_have_one_name() -> None:
    # HL7 2.5.1 Sec. 7.4.2.4: of rows with one identifier and one sub-identifier a receiver keeps the last.
    rows = hl7.parse(FORMATS["hl7"].bytes_of(finished()).decode()).segments("OBX")
    names = [(str(row[3]), str(row[4])) for row in rows]
    assert len(set(names)) == len(names)
    assert ("NOTE^Note^L", "2") in names


def test_a_message_without_patient_is_refused_and_without_study_shorter() -> None:
    with pytest.raises(InputError, match="names no patient") as caught:
        FORMATS["hl7"].bytes_of(finished(sources=(identity(patient_id=""),)))
    assert caught.value.field == "PatientID"
    data = FORMATS["hl7"].bytes_of(finished(sources=(identity(study_instance_uid="", sop_instance_uid=""),)))
    assert "113014" in FORMATS["hl7"].bytes_of(finished()).decode()
    assert "113014" not in data.decode()


def test_no_text_breaks_out_of_its_field() -> None:
    plain = FORMATS["hl7"].bytes_of(finished()).decode().count("\r")
    hostile = finished(
        sections=(Section("findings", HOSTILE), Section("impression", HOSTILE)),
        sources=(identity(patient_name="O|Neil^A&B~C", patient_id="1|2^3"),),
    )
    data = FORMATS["hl7"].bytes_of(hostile).decode()
    assert data.count("\r") == plain
    assert "\n" not in data
    message = hl7.parse(data)
    assert str(message.segment("PID")[3][0][0]) == r"1\F\2\S\3"
    assert str(message.segment("PID")[5][0][0]) == r"O\F\Neil"
    assert escaped("a\\") == "a\\E\\"
    assert escaped("one\ntwo") == r"one\.br\two"
    assert escaped("a\x1b[0m\x07b") == "a[0mb", "nor anything that a terminal obeys"


@pytest.mark.parametrize(
    ("charset", "name", "groups"),
    [
        ("ISO_IR 100", "Müller^Jörg", ["Müller^Jörg^^^^^^A"]),
        ("ISO_IR 144", "Люкceмбypг", ["Люкceмбypг^^^^^^^A"]),
        ("\\ISO 2022 IR 87", "Yamada^Tarou=山田^太郎=やまだ^たろう",
         ["Yamada^Tarou^^^^^^A", "山田^太郎^^^^^^I", "やまだ^たろう^^^^^^P"]),
        ("GB18030", "Wang^XiaoDong=王^小东", ["Wang^XiaoDong^^^^^^A", "王^小东^^^^^^I"]),
    ],
)  # fmt: skip
def test_a_message_has_names_of_every_script_and_its_character_set(
    tmp_path: Path, charset: str, name: str, groups: list[str]
) -> None:
    path = dicom_image(tmp_path / "a.dcm", SpecificCharacterSet=charset.split("\\"), PatientName=name)
    sources, _ = read_identities([path])
    data = FORMATS["hl7"].bytes_of(finished(sources=sources))
    segments = data.decode("utf-8").split("\r")
    assert segments[0].split("|")[17] == "UNICODE UTF-8"
    assert segments[1].split("|")[5].split("~") == groups
    # Who reads it in another character set sees wrong letters, and no field in another place.
    wrong = data.decode("latin-1").split("\r")
    assert [line.count("|") for line in wrong] == [line.count("|") for line in segments]
    path.write_bytes(path.read_bytes().replace(b"ISO_IR 1", b"ISO_IR 9"))
    if "ISO_IR 1" in charset:
        with pytest.raises(InputError, match="none that DICOM defines"):
            read_identities([path])


def test_sections_have_the_codes_that_the_standard_lists_for_them() -> None:
    rows = [str(row[3]) for row in hl7.parse(FORMATS["hl7"].bytes_of(finished()).decode()).segments("OBX")]
    assert "59776-5^Findings^LN" in rows
    assert "19005-8^Impressions^LN" in rows


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"signature": SIGNED}, {"sources": ()}, {"pictures": ()}, {"findings": ()}, {"warnings": (), "flagged": ()},
        {"pictures": finished().pictures * 5},
        {"sections": (Section("findings", "<para><b>broken & </i> <img src='x'/> markup " * 200),)},
        {"findings": tuple(Finding(f"Class {n}", 0.5, 0.5, LabelState.BLANK) for n in range(60))},
        {"sources": (identity(patient_name="Yamada^Tarou=山田^太郎", patient_birth_date="", patient_sex=""),)},
    ],
)  # fmt: skip
def test_pages_are_made_of_every_report(changes: dict[str, Any]) -> None:
    data = FORMATS["pdf"].bytes_of(finished(**changes))
    assert data.startswith(b"%PDF-")
    assert data.rstrip().endswith(b"%%EOF")
    assert CAUTION.encode() in data


def test_no_text_is_markup_of_the_page() -> None:
    line = _Pen(*_fonts()).line("<b>5 < 6</b> & <img src='x'/>")
    assert line.getPlainText() == "<b>5 < 6</b> & <img src='x'/>"


def test_signs_that_the_font_lacks_become_boxes_and_are_counted() -> None:
    pen = _Pen(*_fonts())
    assert pen.drawable("Jörg 山\u202e田") == f"Jörg {BOX}{BOX}"
    assert pen.missing == {"山", "田"}


def test_scripts_from_right_to_left_are_not_drawn_in_the_wrong_order() -> None:
    pen = _Pen(*_fonts())
    assert pen.drawable("קבא 12 باني") == f"{BOX * 3} 12 {BOX * 4}"
    assert len(pen.missing) == 7
    assert pen.drawable("Διονυσιος Люкc é") == "Διονυσιος Люкc é"


def test_text_has_the_status_first_and_names_no_patient() -> None:
    text = FORMATS["text"].bytes_of(finished()).decode()
    assert text.splitlines()[2].startswith("Preliminary:")
    assert text.index("FINDINGS\n") < text.index(IMPRESSION)
    assert RESEARCH_ONLY in text
    assert CANARY not in text
    assert (
        "Signed by Dr. Jana Weber, Institute of Radiology, 2026-03-05 08:09"
        in FORMATS["text"].bytes_of(finished(signature=SIGNED)).decode()
    )


@pytest.mark.parametrize("name", ["text", "hl7", "sr-basic", "sr-tid1500"])
def test_every_section_is_written(name: str) -> None:
    kinds: tuple[SectionKind, ...] = get_args(SectionKind)
    sections = tuple(Section(kind, f"Words of {kind}.") for kind in kinds)
    data = FORMATS[name].bytes_of(finished(text=" ".join(one.text for one in sections), sections=sections))
    places = [data.index(one.text.encode()) for one in sections]
    assert len(places) == 5
    assert places == sorted(places)


@pytest.mark.parametrize("name", FORMATS)
def test_an_empty_draft_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="the draft is empty"):
        FORMATS[name].bytes_of(finished(text="", sections=()))


@pytest.mark.parametrize("name", FORMATS)
def test_a_report_without_a_patient_is_refused_by_formats_that_need_one(name: str) -> None:
    report = finished(sources=())
    if FORMATS[name].needs_dicom:
        with pytest.raises(InputError, match="names no patient"):
            FORMATS[name].bytes_of(report)
    else:
        assert FORMATS[name].bytes_of(report)
    assert FORMATS[name].needs_dicom == (name not in ("pdf", "fhir", "fhir-r5", "text"))


@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize("name", FORMATS)
def test_no_writer_prints_or_logs_the_patient(
    name: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    caplog.set_level(logging.DEBUG)
    fields = ("patient_name", "patient_id", "issuer_of_patient_id", "study_id", "accession_number", "study_description",
              "referring_physician_name", "deidentification_method")  # fmt: skip
    report = finished(sources=(identity(**dict.fromkeys(fields, CANARY)),), signature=SIGNED, predecessor=finished())
    assert FORMATS[name].bytes_of(report)
    printed = [caplog.text, *capfd.readouterr(), *(str(one.message) for one in recwarn), repr(report), str(report)]
    assert CANARY not in "".join(printed)


@pytest.mark.parametrize(
    ("name", "spoken"),
    [
        ("Weber^Jana^Maria^Dr.^Jr.", "Dr. Jana Maria Weber, Jr."),
        ("Weber", "Weber"),
        ("", ""),
        ("Yamada^Tarou=山田^太郎=", "Tarou Yamada (太郎 山田)"),
        ("=山田^太郎", "太郎 山田"),
    ],
)
def test_names_are_shown_in_reading_order(name: str, spoken: str) -> None:
    assert spoken_name(name) == spoken


def test_formats_without_extra_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radweave.core.extras.EXTRAS", {"hospital": ("no_such_package",)})
    for name, chosen in FORMATS.items():
        if chosen.needs_extra:
            with pytest.raises(InputError, match=r"no_such_package.*radweave\[hospital\]"):
                chosen.bytes_of(finished())
        else:
            assert chosen.bytes_of(finished()), name


@pytest.mark.parametrize("name", ["fhir", "fhir-r5"])
def test_a_bundle_with_addenda_is_the_same_report_appended(name: str) -> None:
    signed = finished(signature=SIGNED)
    (before,), (after,) = (resources(name, one)["DiagnosticReport"] for one in (signed, added(2, predecessor=signed)))
    assert (before["status"], after["status"]) == ("final", "appended")
    assert before["identifier"] == after["identifier"]
    assert before["id"] != after["id"]
    assert (before["conclusion"], "extension" in before) == (signed.text, False)
    assert after["conclusion"].startswith(f"{signed.text}\n\nAddendum 1, signed by Min Ahn")
    assert ADDED[1].text in after["conclusion"]
    (replaces,) = after["extension"]
    assert replaces["valueReference"]["identifier"]["value"] == f"urn:uuid:{before['id']}"
    assert after["issued"] == ADDED[1].signature.time.isoformat()
    entries = resources(name, added(2))
    assert [row["name"][0]["family"] for row in entries["Practitioner"]] == ["Weber", "Ahn", "Okoro"]
    named = [row["reference"] for row in entries["DiagnosticReport"][0]["resultsInterpreter"]]
    assert named == [f"urn:uuid:{row['id']}" for row in entries["Practitioner"]]
    assert all(row["status"] == "final" for row in entries["Observation"])


def test_a_message_with_addenda_is_a_correction_of_the_same_order() -> None:
    before, after = (hl7.parse(FORMATS["hl7"].bytes_of(one).decode()) for one in (finished(signature=SIGNED), added(2)))
    assert (str(before.segment("OBR")[25]), str(after.segment("OBR")[25])) == ("F", "C")
    assert {str(row[11]) for row in after.segments("OBX")} == {"C"}
    assert str(before.segment("OBR")[3]) == str(after.segment("OBR")[3])
    assert str(before.segment("MSH")[10]) != str(after.segment("MSH")[10])
    assert str(after.segment("OBR")[22]) == "20260307010000+0000"
    assert str(before.segment("OBR")[32]) == str(after.segment("OBR")[32]), "who signed the report stays"
    rows = [row for row in after.segments("OBX") if "55107-7" in str(row[3])]
    assert [str(row[4]) for row in rows] == ["1", "2"]
    assert [str(row[16]) for row in rows] == ["^Ahn^Min", "^Okoro^Ada^^^Dr."]
    assert str(rows[1][5]).endswith("\\.br\\Not seen in the CT \\F\\ of today.")
    unchanged = [str(row[5]) for row in before.segments("OBX") if str(row[3]).startswith(("59776-5", "19005-8"))]
    assert unchanged == [str(row[5]) for row in after.segments("OBX") if str(row[3]).startswith(("59776-5", "19005-8"))]


def test_text_and_pages_have_the_report_and_then_its_addenda() -> None:
    text = FORMATS["text"].bytes_of(added(2)).decode()
    places = [text.index(one) for one in ("With 2 addenda.", FINDINGS, IMPRESSION, "ADDENDUM 1", ADDED[0].text,
                                          "ADDENDUM 2", ADDED[1].text, "Written by")]  # fmt: skip
    assert places == sorted(places)
    assert "addend" not in FORMATS["text"].bytes_of(finished(signature=SIGNED)).decode().lower()
    pages = [FORMATS["pdf"].bytes_of(one) for one in (finished(signature=SIGNED), added(1), added(2))]
    assert len(set(pages)) == 3
