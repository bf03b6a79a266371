"""Tables of the papers and the names of their rows, which ``radweave ablate --list`` compares with the methods' tables.

``published_rows.toml`` is written from the papers, apart from the methods' own tables, so that a row dropped there is
noticed. A row is listed when the method's table has a row of that name, with numbers for that data set where the
paper's can be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from pydantic import ConfigDict

from radweave.core.config import from_package_toml

NO_NUMBERS = ""
"""Stands for the data set where the numbers are a picture or cannot be read."""


UNNAMED = "unnamed, "
"""Begins the name of a row whose own is lost in the text that was read."""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table of a paper.

    Attributes:
        name: as the paper has it.
        keys: keys of the method's ``TABLES`` that may hold its rows.
        rows: data set -> names of rows; "printed = label" where the method's table has another label.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    name: str
    keys: tuple[str, ...]
    rows: Mapping[str, tuple[str, ...]]


@cache
def published_tables() -> Mapping[str, tuple[PublishedTable, ...]]:
    """Method -> tables of its paper."""
    return from_package_toml(dict[str, tuple[PublishedTable, ...]], "radweave.experiments", "published_rows.toml")
