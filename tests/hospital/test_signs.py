"""Texts and names in signs that every format can hold: words stay apart, nothing is turned around or breaks out."""

from __future__ import annotations

import hl7
import pytest
from reports import finished
from test_dicom_reports import texts, written

from radweave.hospital.finished import Flagged, Section
from radweave.hospital.formats import FORMATS
from radweave.hospital.signs import LONGEST_NAME, person_name, writable


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (" a\x00b\x1bc\nd\te\x9f \ud800", "abc\nd e"),
        ("5\u00a0cm\u2009wide", "5 cm wide"),
        ("one\rtwo\r\nthree\x0bfour\u2028five", "one\ntwo\nthree\nfour\nfive"),
        ("no \u202eeffusion\u202c \u2066left\u2069", "no effusion left"),
        ("end\ufffe.\ufdd0", "end."),
        ("Größe 山 \U0001f600", "Größe 山 \U0001f600"),
    ],
)
def test_what_separates_words_stays_and_what_cannot_be_written_goes(text: str, kept: str) -> None:
    assert writable(text) == kept


def test_no_text_of_a_record_comes_to_a_writer_as_a_model_or_a_reader_wrote_it() -> None:
    raw, clean = "No\teffusion.\x0bLeft\u00a0lung \u202eclear\x07.", "No effusion.\nLeft lung clear."
    report = finished(
        text=raw,
        sections=(Section("findings", raw), Section("impression", "\t\x07")),
        flagged=(Flagged(raw, "contradicted"),),
        warnings=(raw,),
    )
    assert [(one.kind, one.text) for one in report.sections] == [("findings", clean)]
    assert (report.text, report.flagged[0].text, report.warnings) == (clean, clean, (clean,))
    for name in ("sr-basic", "sr-tid1500"):
        assert not any(set(text) & set("\t\x0b\x07\u202e") for text in texts(written(name, report)))
    rows = [str(row[5]) for row in hl7.parse(FORMATS["hl7"].bytes_of(report).decode()).segments("OBX")]
    assert r"No effusion.\.br\Left lung clear." in rows


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("Dr. Jana Weber", "Dr. Jana Weber"),
        ("Weber=Jana\\X^Y", "Weber Jana X Y"),
        ("W" * 100, "W" * LONGEST_NAME),
    ],
)
def test_the_name_of_an_account_is_one_name(name: str, kept: str) -> None:
    assert person_name(name) == kept
