"""Ablation tables as records: which rows are trained, and what the paper printed for them.

A method's module holds ``TABLES: dict[str, Table]`` beside ``PRESETS`` and ``ABLATIONS``; ``radweave ablate`` runs one.
Those of a paper lie beside the module in ``tables.toml`` and are read by ``TABLES = read_tables(__name__)``:

    [table4]
    title = "Table 4: what each part adds"
    reference = "Baseline"

    [[table4.rows]]
    label = "Baseline"
    method = "baseline"
    headline = true
    paper."IU X-Ray" = { BLEU_4 = 0.165 }

    [[table4.rows]]
    label = "Yi-1.5-9B"
    overrides = ["model.language_model={kind: pretrained, path: PATH}"]
    needs = { "model.language_model.path" = "Yi-1.5-9B" }

    [[table4.rows]]
    label = "R2Gen"
    printed = true
    paper."IU X-Ray" = { BLEU_4 = 0.165 }
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pydantic import ConfigDict

from radweave.core.config import from_package_toml
from radweave.core.errors import InputError
from radweave.metrics.catalogue import TABLE_METRICS

Paper = Mapping[str, Mapping[str, float]]

TableKind = Literal["main", "ablation", "ours"]
"""Against other systems, what a paper's parts do, and tables that no paper prints."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table: a configuration that is trained over several seeds.

    Attributes:
        label: as the table prints it.
        ablation: key of the method's ``ABLATIONS``; None for the preset as it is.
        overrides: further overrides, applied after those of ``ablation``.
        method: another method that this row trains; None for the table's own.
        preset: another preset than the one the table is asked for, such as one that reads CT.
        headline: trained over the larger number of seeds (the full model, the baseline).
        paper: the paper's own numbers: data set -> metric of ``TABLE_METRICS`` -> value, on the scale of 0 to 1
            (CIDEr as printed).
        needs: weights without which the row is skipped: field -> what belongs there, such as
            ``{"model.text_encoder.path": "Bio_ClinicalBERT"}``. They come as ``ROW:field=PATH``, after the row's own
            overrides, which may change the part's kind with any path in its place.
        printed: a row of another system, which is not run: only the paper's numbers are shown.
        run_of: label of the row whose trained runs this one takes: nothing is trained, they report again.
        at_test: settings of those runs that are changed then (``key=value``, see ``radweave.engine.restore``). Such a
            row ``needs`` a setting, or ``dataset``: the folder of another data set to report on.
        decoding: options of decoding that are changed then (``kind=expected_utility``).
        average_seeds: drafts by the mean of so many seeds of ``run_of``, which is trained as often; one run.
        average_with: labels of trained rows whose run of the same seed is averaged with that of ``run_of``.
        draws: reports are written so often by the run of seed 0, with ``pairing_seed`` 0, 1, ...: the row's mean and
            deviation are over draws, and say nothing of other trainings.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    label: str
    ablation: str | None = None
    overrides: tuple[str, ...] = ()
    method: str | None = None
    preset: str | None = None
    headline: bool = False
    paper: Paper = field(default_factory=dict)
    needs: Mapping[str, str] = field(default_factory=dict)
    printed: bool = False
    run_of: str | None = None
    at_test: tuple[str, ...] = ()
    decoding: tuple[str, ...] = ()
    average_seeds: int = 0
    average_with: tuple[str, ...] = ()
    draws: int = 0

    def __post_init__(self) -> None:
        if not self.slug:
            raise InputError("a row's label needs a letter or digit", field="label", got=self.label)
        configured = self.ablation or self.overrides or self.method or self.preset
        if self.run_of is not None and (configured or self.printed):
            raise InputError("a row that takes another's runs has no configuration", field="run_of", got=self.label)
        reports_only = self.at_test or self.decoding or self.draws or self.average_seeds or self.average_with
        if self.run_of is None and reports_only:
            raise InputError("whose runs report?", field="run_of", got=self.label)
        if self.printed and (self.ablation or self.overrides or self.method or self.preset or self.needs):
            raise InputError("a printed row is not run and has no configuration", field="printed", got=self.label)
        if self.printed and not self.paper:
            raise InputError("a printed row needs the paper's numbers", field="paper", got=self.label)
        for name, values in self.paper.items():
            unknown = [metric for metric in values if metric not in TABLE_METRICS]
            if unknown:
                known = ", ".join(TABLE_METRICS)
                raise InputError(f"'{unknown[0]}' is no metric", field=f"paper.{name}", expected=known)

    @property
    def slug(self) -> str:
        """The label as a folder name."""
        text = self.label.lower().replace("w/o", "without").replace("w/", "with").replace("+", " plus ")
        return re.sub(r"[^a-z0-9.=]+", "-", text).strip("-.")


@dataclass(frozen=True, slots=True)
class Table:
    """The rows in the order of the paper, and which one the others are tested against.

    ``reference`` is the label of a row that is run. ``metrics`` are the columns; ``note`` says what a reader must
    know, such as how the paper's setting differs.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    title: str
    rows: tuple[Row, ...]
    reference: str
    metrics: tuple[str, ...] = ("BLEU_1", "BLEU_4", "METEOR", "ROUGE_L", "CIDEr", "CE_P", "CE_R", "CE_F1")
    note: str = ""
    kind: TableKind = "ablation"

    def __post_init__(self) -> None:
        labels = [row.label for row in self.rows]
        run = [row.label for row in self.rows if not row.printed]
        if self.reference not in run:
            raise InputError(
                "the reference is no row that is run", field="reference", got=self.reference, expected=", ".join(run)
            )
        for row in self.rows:
            if row.run_of is not None and not any(
                row.run_of == other.label and not other.run_of for other in self.rows
            ):
                raise InputError("there is no such row that is trained", field="run_of", got=row.run_of)
            trained = [other.label for other in self.rows if not (other.run_of or other.printed)]
            if unknown := [name for name in row.average_with if name not in trained]:
                raise InputError("there is no such row that is trained", field="average_with", got=unknown[0])
        if len({row.slug for row in self.rows}) < len(labels):
            raise InputError("two rows share a folder name", field="rows", got=", ".join(row.slug for row in self.rows))
        for metric in self.metrics:
            if metric not in TABLE_METRICS:
                raise InputError("no such metric", field="metrics", got=metric, expected=", ".join(TABLE_METRICS))

    def trained(self, row: Row) -> Row:
        """The row whose runs a row takes: itself, unless it names another."""
        return row if row.run_of is None else next(other for other in self.rows if other.label == row.run_of)


def read_tables(package: str) -> dict[str, Table]:
    """Tables of the method in this package, from its ``tables.toml``.

    Raises:
        InputError: if the file is missing or wrong; names the file and the field.
    """
    return from_package_toml(dict[str, Table], package, "tables.toml")


NO_PAPER = "a table of our own: no paper prints these rows"


def parts_table(method: str, ablations: Iterable[str], adds: str = "its parts add") -> Table:
    """A table of our own: the method as it is, and each of these ablations of it; ``full`` is the method."""
    rows = (Row(name, name) for name in ablations if name != "full")
    title = f"{method}: what {adds}"
    return Table(title, (Row("full", headline=True), *rows), reference="full", note=NO_PAPER, kind="ours")
