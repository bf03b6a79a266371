"""Methods by name: those of this package by folder, those of other packages by entry point."""

from __future__ import annotations

import ast
import importlib
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

from radweave.core.errors import InputError
from radweave.methods.outside import load_outside_method, outside_methods, report_unusable, source_of


def _folders() -> dict[str, Path]:
    """Name -> file of every method of this package."""
    package = importlib.import_module("radweave.methods")
    return {file.parent.name: file for parent in package.__path__ for file in Path(parent).glob("*/__init__.py")}


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
