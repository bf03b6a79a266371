"""One folder per method. A new folder here is a new method; nothing else has to be edited.

Another package brings a method by an entry point (``radweave.methods.outside``). A method's ``__init__`` holds
``PRESETS`` (``tiny``, ``small``, ``paper``: experiments) and ``ABLATIONS`` (row of the paper's table -> overrides).
``radweave ablate`` runs its ``TABLES`` (name -> ``radweave.methods.tables.Table``), if it has some.
``radweave methods`` prints the docstring's first line.
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
from radweave.methods.outside import load_outside_method, outside_methods, report_unusable, source_of
from radweave.methods.renamed import rename_keys, rename_overrides

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from radweave.methods.experiment import Experiment


def _folders() -> dict[str, Path]:
    """Name -> file of every method of this package."""
    return {file.parent.name: file for parent in __path__ for file in Path(parent).glob("*/__init__.py")}


def method_names() -> list[str]:
    """Names of all methods, ours and those of other packages, without importing any."""
    own = _folders()
    return sorted([*own, *outside_methods(own)])


def method_summary(name: str) -> str:
    """First line of the method's docstring, read without importing it.

    Raises:
        InputError: if another package's method has no file that can be found.
    """
    own = _folders()
    file = own[name] if name in own else source_of(outside_methods(own)[name])
    return (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split("\n", 1)[0]


def load_method(name: str) -> ModuleType:
    """Import a method's module.

    Raises:
        InputError: if there is no such method, or another package's cannot be used.
    """
    own = _folders()
    if name in own:
        return importlib.import_module(f"radweave.methods.{name}")
    others = outside_methods(own)
    if name not in others:
        raise InputError("no such method", field="method", got=name, expected=f"one of {', '.join(method_names())}")
    return load_outside_method(others[name])


def outside_entry(name: str) -> EntryPoint | None:
    """The entry point of another package's method; None of one of ours."""
    return outside_methods(_folders()).get(name)


def usable_methods() -> dict[str, ModuleType]:
    """Every method that can be imported, by name; the log says in one line why another one cannot."""
    loaded = {}
    for name in method_names():
        try:
            loaded[name] = load_method(name)
        except InputError as error:
            report_unusable(str(error))
    return loaded


def all_fields() -> str:
    """The page that names every field of every method's experiment."""
    from radweave.methods.reference import reference

    return reference(
        {name: [type(make()) for make in module.PRESETS.values()] for name, module in usable_methods().items()}
    )


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
