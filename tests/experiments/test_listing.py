"""``radweave ablate --list``, and the methods' tables against the list of the papers' rows."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from radweave.cli import app
from radweave.core.errors import InputError
from radweave.experiments.ablate import (
    UNNAMED,
    all_methods,
    list_tables,
    listing_tables,
    published_rows,
    published_tables,
)
from radweave.methods import load_method
from radweave.methods.tables import Row, Table

MISSING: dict[str, dict[str, int]] = {
    "am_mrg": {},
    "dast": {},
    "diffrgennet": {},
    "diffvp": {},
    "vdgen": {},
}
"""Rows that are known to be missing: a row that comes must be taken out here, and a row that goes is a failure."""
BY_FIGURES = {"vdgen": {"CMCL", "METransformer", "M2TR", "XProNet", "KiUT", "R2GenCMN"}}
"""Names that the text lost, known by the figures that another source prints under them."""
PAPERS = {"diffrgennet": "000", "diffvp": "001", "vdgen": "002", "am_mrg": "003", "dast": "004"}


@pytest.mark.parametrize("method", published_tables())
def test_paper_rows_are_listed(method: str) -> None:
    missing = [row for row in published_rows(method) if not row.is_listed]
    assert dict(Counter(row.table for row in missing)) == MISSING[method], [row.place for row in missing]


@pytest.mark.parametrize("method", published_tables())
def test_printed_rows_are_of_the_paper(method: str) -> None:
    """A system that no paper of ours prints is a slip of the pen."""
    tables = load_method(method).TABLES
    for key in {key for table in published_tables()[method] for key in table.keys if key in tables}:
        names = {
            Row(name.partition(" = ")[2].strip() or name).slug
            for table in published_tables()[method]
            if key in table.keys
            for group in table.rows.values()
            for name in group
        }
        assert {row.label for row in tables[key].rows if row.printed and row.slug not in names} == set()


@pytest.mark.parametrize("method", published_tables())
def test_row_names_occur_in_the_papers(shared_data: Path, method: str) -> None:
    actual = list((shared_data.parent / "papers").glob(f"{PAPERS[method]}_*.txt"))
    if not actual:
        pytest.skip("the paper's text is not here")
    text = _letters(actual[0].read_text(encoding="utf-8"))
    names = {row.name for row in published_rows(method)}
    # Ours in words: marks of columns, the axis of a figure.
    own = {"+ global delta (w/o E)", "+ both (w/o E)", "Baseline (mean of five)", "Ours (mean of five)", "0 % (Ours)"}
    own |= {name for name in names if name.startswith(UNNAMED)} | BY_FIGURES.get(method, set())
    own |= {
        "Baseline (no delta)",
        "In-domain",
        "w/ Feature Difference",
        "w/o L2 distance + cosine",
        "w/o dot product + cosine",
    }
    assert {
        name for name in names - own if _letters(name) not in text and not name.endswith(("layer", "layers"))
    } == set()


def test_every_printed_row_of_vdgen_is_in_its_table(shared_data: Path) -> None:
    """A count of the paper's own lines: a list that drops a row with a lost name would say that none is missing."""
    found = list((shared_data.parent / "papers").glob(f"{PAPERS['vdgen']}_*.txt"))
    if not found:
        pytest.skip("the paper's text is not here")
    lines = re.findall(r"\t(20\d\d)((?:\t[^\t\n]*){7})$", found[0].read_text(encoding="utf-8"), re.MULTILINE)
    printed = [[float(cell) if cell else None for cell in _cells(values)] for _, values in lines]
    assert len(printed) == 14 + 13
    metrics = ("BLEU_1", "BLEU_2", "BLEU_3", "BLEU_4", "METEOR", "ROUGE_L", "CIDEr")
    rows = load_method("vdgen").TABLES["main"].rows
    ours = Counter(tuple(values.get(metric) for metric in metrics) for row in rows for values in row.paper.values())
    assert Counter(map(tuple, printed)) - ours == Counter()
    clinical = {"precision": "CE_P", "recall": "CE_R", "F1": "CE_F1"}
    shown = [tuple(values.get(metric) for metric in clinical.values()) for row in rows for values in row.paper.values()]
    assert sum(None not in values for values in shown) == 8


def _cells(text: str) -> list[str]:
    return [re.sub(r"[^0-9.]", "", cell) for cell in text.strip("\t").split("\t")]


def test_rows_without_a_name_count_and_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = list_tables(["vdgen"])["methods"]["vdgen"]
    assert len(entry["unnamed"]) == 10
    record = list_tables(["vdgen"])
    assert listing_tables(record)[0].notes[-2].endswith("are missing; the names of 10 cannot be read")
    table = load_method("vdgen").TABLES["main"]
    kept = tuple(row for row in table.rows if not row.label.startswith(UNNAMED))
    monkeypatch.setitem(load_method("vdgen").TABLES, "main", dataclasses.replace(table, rows=kept))
    assert list_tables(["vdgen"])["methods"]["vdgen"]["missing"] == entry["unnamed"]
    assert "names" not in listing_tables(list_tables(["dast"]))[0].notes[-2]


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def test_listing_separates_kinds_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    paper = {"MIMIC-CXR": {"CE_F1": 0.4}}
    table = Table(
        title="Table II",
        reference="AM-MRG",
        kind="main",
        rows=(
            Row("AM-MRG", paper=paper),
            Row("KiUT", printed=True, paper=paper),
            Row("CoFE", needs={"model.language_model.path": "CoFE's writer"}, paper=paper),
            Row("SILC", printed=True, paper={"IU X-Ray": {"CE_F1": 0.4}}),
        ),
    )
    monkeypatch.setattr(load_method("am_mrg"), "TABLES", {"main": table})
    record = list_tables(["am_mrg"])
    actual = record["methods"]["am_mrg"]["tables"]["main"]
    assert actual["run"] == ["AM-MRG"]
    assert actual["printed"] == ["KiUT", "SILC"]
    assert actual["needs"] == {"CoFE": "needs CoFE's writer (cofe:model.language_model.path=PATH)"}
    second = [place for place in actual["missing"] if place.startswith("Table II,")]
    # SILC has numbers of another data set only.
    assert [place.rpartition(", ")[2] for place in second] == ["R2Gen", "METransformer", "HERGen", "SILC", "OaD"]
    shown = listing_tables(record)[0]
    assert shown.rows[0][:6] == ("main", "main", str(actual["published"]), "1", "1", "2")
    assert any(note.startswith("missing: Table II, MIMIC-CXR: R2Gen, METransformer") for note in shown.notes)
    missing = len(record["methods"]["am_mrg"]["missing"])
    assert shown.notes[-2].startswith(f"{missing} of {record['methods']['am_mrg']['published']} rows")


def test_command_lists_without_dataset() -> None:
    result = CliRunner().invoke(app, ["ablate", "--list", "dast", "--json"])
    assert result.exit_code == 0
    record = json.loads(result.stdout)
    assert list(record["methods"]) == ["dast"]
    assert record["methods"]["dast"]["tables"]["table4"]["run"][0] == "Baseline"
    assert CliRunner().invoke(app, ["ablate", "--list", "dast"]).stdout.startswith("dast")
    assert set(published_tables()) < set(all_methods())
    assert isinstance(CliRunner().invoke(app, ["ablate", "--list", "nobody"]).exception, InputError)
    one = CliRunner().invoke(app, ["ablate", "--list", "dast", "--table", "table5"]).stdout
    assert "mean-pooling" in one
    assert "table4" not in one
    wrong = CliRunner().invoke(app, ["ablate", "--list", "dast", "--table", "nope"]).exception
    assert isinstance(wrong, InputError)
    assert wrong.field == "--table"
    for arguments, field in ((["dast"], "DATASET"), (["dast", "iu"], "--out")):
        error = CliRunner().invoke(app, ["ablate", *arguments]).exception
        assert isinstance(error, InputError)
        assert field in str(error)
