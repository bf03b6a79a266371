"""Tables of the papers as data files: what is read, and refusals that name the file and the field."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from radweave.core.errors import InputError
from radweave.methods.tables import Row, Table, read_tables

TABLE = """
[main]
title = "Table 1"
reference = "Full"
metrics = ["BLEU_4"]

[[main.rows]]
label = "R2Gen"
printed = true
paper."IU X-Ray" = { BLEU_4 = 0.165 }

[[main.rows]]
label = "Full"
headline = true
"""


def written(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    """Name of a package that holds this text as its tables."""
    package = folder / "outside_tables"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "tables.toml").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "outside_tables", raising=False)
    return "outside_tables"


def test_file_is_read_as_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (Row("R2Gen", printed=True, paper={"IU X-Ray": {"BLEU_4": 0.165}}), Row("Full", headline=True))
    tables = read_tables(written(tmp_path, monkeypatch, TABLE))
    assert tables == {"main": Table("Table 1", rows, reference="Full", metrics=("BLEU_4",))}


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("BLEU_4 = 0.165", 'BLEU_4 = "0.165"', "main.rows.0.paper.IU X-Ray.BLEU_4"),
        ("BLEU_4 = 0.165", "BLEU_9 = 0.165", "main.rows.0"),
        ("printed = true", "prnted = true", "main.rows.0.prnted"),
        ('label = "Full"', 'lable = "Full"', "main.rows.1.label"),
        ('reference = "Full"', 'reference = "Half"', "main"),
        ('title = "Table 1"', "title = 1", "main.title"),
        ("[main]", "[main", "not readable as TOML"),
    ],
)
def test_wrong_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, field: str) -> None:
    package = written(tmp_path, monkeypatch, TABLE.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        read_tables(package)
    assert "tables.toml" in str(caught.value)
    assert field in str(caught.value)


def test_missing_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = written(tmp_path, monkeypatch, TABLE)
    (tmp_path / package / "tables.toml").unlink()
    with pytest.raises(InputError, match=r"tables\.toml"):
        read_tables(package)
