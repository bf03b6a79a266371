"""Texts and names in signs that every format can hold: words stay apart, nothing is turned around or breaks out."""

from __future__ import annotations

import json
import sys
import unicodedata

import hl7
import pytest

from radweave.core.errors import InputError
from radweave.workstation.finished import LONGEST_NAME, Flagged, Section, person_name, refuse_unsignable, writable
from radweave.workstation.formats import FORMATS
from radweave.workstation.hl7 import escaped
from radweave.workstation.pdf import _fonts, _Pen
from tests.workstation.reports import finished
from tests.workstation.test_dicom_reports import texts, written


@pytest.mark.parametrize(
    ("text", "retained"),
    [
        (" a\x00b\x1bc\nd\te\x9f \ud800", "abc\nd e"),
        ("5\u00a0cm\u2009wide", "5 cm wide"),
        ("one\rtwo\r\nthree\x0bfour\u2028five", "one\ntwo\nthree\nfour\nfive"),
        ("no \u202eeffusion\u202c \u2066left\u2069", "no effusion left"),
        ("end\ufffe.\ufdd0", "end."),
        ("Größe 山 \U0001f600", "Größe 山 \U0001f600"),
    ],
)
def test_word_separators_stay_and_unwritable_characters_go(text: str, retained: str) -> None:
    assert writable(text) == retained


def test_all_text_of_a_record_is_cleaned_for_writers() -> None:
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
    ("name", "retained"),
    [("Dr. Jana Weber", "Dr. Jana Weber"), ("Weber=Jana\\X^Y", "Weber Jana X Y"), ("W" * 100, "W" * LONGEST_NAME)],
)
def test_the_name_of_an_account_is_one_name(name: str, retained: str) -> None:
    assert person_name(name) == retained


def is_refused(text: str) -> bool:
    try:
        refuse_unsignable(text, field="text")
    except InputError:
        return True
    return False


def test_every_signable_character_is_in_every_format() -> None:
    """Over Unicode, all of where scripts and controls are, and samples: what is taken is written."""
    pen, taken = _Pen(*_fonts()), 0
    for sign in map(chr, (*range(0x3400), *range(0x3400, 0xF900, 97), *range(0xF900, 0x10000),
                          *range(0x10000, sys.maxunicode, 499), *range(0xE0000, 0xE0200))):  # fmt: skip
        text = f"a{sign}b"
        if not is_refused(text):
            taken += 1
            shown = " " if sign.isspace() else sign
            assert writable(text) in (f"a{shown}b", "a\nb"), hex(ord(sign))
            assert len(escaped(writable(text))) >= 3, hex(ord(sign))
            assert pen.drawable(writable(text).replace("\n", " ")) not in ("ab", "a", ""), hex(ord(sign))
        else:
            # Refused is what one of them drops, or what is blank by its shape.
            assert writable(text) == "ab", hex(ord(sign))
    assert taken > 10_000, "letters of every script, digits, marks and symbols"


@pytest.mark.parametrize("name", ["text", "fhir", "fhir-r5", "hl7", "sr-basic", "sr-tid1500"])
def test_words_of_every_script_are_in_every_format(name: str) -> None:
    words = "Größe e\u0301tude Καρδιά 心影增大 Сердце 5 × 3 ² \u05dc\u05d1 \U0001f600"
    refuse_unsignable(words, field="text")
    report = finished(text=words, sections=(Section("findings", words),))
    data = FORMATS[name].bytes_of(report).decode("utf-8", "replace")
    if name.startswith("fhir"):
        data = json.loads(data)["entry"][0]["resource"]["conclusion"]
    assert words in data
    assert unicodedata.normalize("NFC", words) != words, "no sign is another one, though it would look alike"


@pytest.mark.parametrize("text", ["", " \n\t", "...", "\u0301", "\u3000", "\u00a0"])
def test_a_text_without_words_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="empty"):
        refuse_unsignable(text, field="text")
