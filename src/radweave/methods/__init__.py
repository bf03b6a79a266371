"""One folder per method. A new folder here is a new method; nothing else has to be edited.

A folder elsewhere is a method too once its parent is in ``__path__``. A method's ``__init__`` holds ``PRESETS``
(``tiny``, ``small``, ``paper``: experiments) and ``ABLATIONS`` (row of the paper's table -> overrides). ``TABLES``
(name -> ``radweave.methods.tables.Table``) is what ``radweave ablate`` runs. The first line of its docstring is what
``radweave methods`` prints.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from radweave.core.config import fields_set, override, read_yaml
from radweave.core.errors import InputError
from radweave.methods.renamed import rename_keys, rename_overrides

if TYPE_CHECKING:
    from radweave.methods.experiment import Experiment


def _files() -> dict[str, Path]:
    """Name -> file of every method."""
    return {file.parent.name: file for room in __path__ for file in Path(room).glob("*/__init__.py")}


def method_names() -> list[str]:
    """Names of all methods, without importing any."""
    return sorted(_files())


def method_summary(name: str) -> str:
    """First line of the method's docstring, read without importing it."""
    source = _files()[name].read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").split("\n", 1)[0]


def load_method(name: str) -> ModuleType:
    """Import a method's module.

    Raises:
        InputError: if there is no such method.
    """
    if name not in method_names():
        raise InputError("no such method", field="method", got=name, expected=f"one of {', '.join(method_names())}")
    return importlib.import_module(f"radweave.methods.{name}")


def all_fields() -> str:
    """The page that names every field of every method's experiment."""
    from radweave.methods.reference import reference

    return reference({name: [type(make()) for make in load_method(name).PRESETS.values()] for name in method_names()})


def resolve(method: str, preset: str, overrides: Sequence[str], file: Path | None = None) -> Experiment:
    """The experiment of a method's preset with the changes of a YAML file and then overrides applied.

    What the user leaves open follows from the parts: a pretrained language model brings its tokenizer, and an encoder
    of kind ``transformers`` the size of its images.

    Raises:
        InputError: for an unknown method, preset or field, or a file that cannot be read.
    """
    presets = load_method(method).PRESETS
    if preset not in presets:
        raise InputError("no such preset", field="preset", got=preset, expected=f"one of {', '.join(presets)}")
    changes = {} if file is None else read_yaml(file)
    if changes.get("method", method) != method:
        raise InputError("of another method", file=file, field="method", got=changes["method"], expected=method)
    plain: Experiment = presets[preset]()
    if plain.had_former_keys():
        overrides, changes = rename_overrides(overrides), rename_keys(changes, note=True)
    try:
        changed = override(plain, list(overrides), changes)
    except InputError as error:
        if file is None:
            raise
        raise InputError(error.reason, file=file, field=error.field, expected=error.expected) from None
    return changed.fitted(plain, fields_set(overrides, changes))
