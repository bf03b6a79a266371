"""What the methods' tables hold: rows that are run, that need weights, that are printed only, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radweave.ablate.plan import lacks
from radweave.ablate.published_rows import NO_NUMBERS, PUBLISHED, PublishedTable
from radweave.contract.tables import Row, Table
from radweave.evaluation.tables.formats import TextTable
from radweave.methods import load_method, method_names


@dataclass(frozen=True, slots=True)
class Published:
    """A row of a paper's table, and whether the method's tables have it."""

    table: str
    source: str
    name: str
    there: bool

    @property
    def place(self) -> str:
        return ", ".join(part for part in (self.table, self.source, self.name) if part)


def published_rows(method: str, tables: Mapping[str, Table] | None = None) -> tuple[Published, ...]:
    """Every row of every table of the method's paper; none for methods of our own."""
    if tables is None:
        tables = load_method(method).TABLES
    return tuple(row for table in PUBLISHED.get(method, ()) for row in _rows_of(table, tables))


def _rows_of(published: PublishedTable, tables: Mapping[str, Table]) -> Iterator[Published]:
    rows = [row for key in published.ours if key in tables for row in tables[key].rows]
    for source, names in published.rows.items():
        for name in names:
            printed, _, ours = (part.strip() for part in name.partition(" = "))
            slug = Row(ours or printed).slug
            there = any(row.slug == slug and (source == NO_NUMBERS or source in row.paper) for row in rows)
            yield Published(published.name, source, printed, there)


def list_tables(methods: Sequence[str]) -> dict[str, Any]:
    """The tables of methods as JSON: per table the names of its rows by kind, per method what its paper has besides.

    Raises:
        InputError: for an unknown method.
    """
    return {"format": "radweave-ablation-list", "version": 1, "methods": {name: _method(name) for name in methods}}


def _method(method: str) -> dict[str, Any]:
    tables: Mapping[str, Table] = getattr(load_method(method), "TABLES", {})
    published = published_rows(method, tables)
    return {
        "tables": {key: _table(key, table, method, published) for key, table in tables.items()},
        "published": len(published),
        "missing": [row.place for row in published if not row.there],
    }


def _table(key: str, table: Table, method: str, published: Sequence[Published]) -> dict[str, Any]:
    names = {each.name for each in PUBLISHED.get(method, ()) if key in each.ours}
    return {
        "title": table.title,
        "kind": table.kind,
        "published": sum(row.table in names for row in published),
        "run": [row.label for row in table.rows if not row.printed and not row.needs],
        "needs": {row.label: lacks(row) for row in table.rows if row.needs},
        "printed": [row.label for row in table.rows if row.printed],
        "missing": [row.place for row in published if row.table in names and not row.there],
    }


def listing_tables(record: Mapping[str, Any]) -> list[TextTable]:
    """The record as one table per method, with the weights that rows need and the missing rows as notes."""
    head = ("table", "kind", "rows of the paper", "run here", "need weights", "printed only", "missing", "title")
    shown = []
    for method, entry in record["methods"].items():
        rows, notes = [], []
        for key, table in entry["tables"].items():
            counts = (table["published"], *(len(table[part]) for part in ("run", "needs", "printed", "missing")))
            rows.append((key, table["kind"], *map(str, counts), table["title"]))
            notes += [f"{key}, {label}: {what}" for label, what in table["needs"].items()]
        notes += [f"missing: {place}" for place in _grouped(entry["missing"])]
        notes.append(f"{len(entry['missing'])} of {entry['published']} rows of the paper's tables are missing")
        shown.append(TextTable(method, head, tuple(rows), tuple(notes)))
    return shown


def _grouped(places: Sequence[str]) -> list[str]:
    """Rows of one table and data set as one line."""
    groups: dict[str, list[str]] = {}
    for place in places:
        table, _, name = place.rpartition(", ")
        groups.setdefault(table, []).append(name)
    return [f"{table}: {', '.join(names)}" for table, names in groups.items()]


def all_methods() -> list[str]:
    """The methods that have tables."""
    return [name for name in method_names() if getattr(load_method(name), "TABLES", {})]
