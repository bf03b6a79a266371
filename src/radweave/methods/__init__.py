"""One folder per method. A new folder here is a new method; nothing else has to be edited.

Another package brings a method by an entry point (``radweave.methods.outside``). A method's ``__init__`` holds
``PRESETS`` (``tiny``, ``small``, ``paper``: experiments) and ``ABLATIONS`` (row of the paper's table -> overrides).
``radweave ablate`` runs its ``TABLES`` (name -> ``radweave.methods.tables.Table``), if it has some.
``radweave methods`` prints the docstring's first line.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from radweave.core.config import fields_set, override, read_yaml
from radweave.core.errors import InputError
from radweave.methods.registry import load_method, method_names, method_summary, outside_entry, usable_methods
from radweave.methods.renamed import rename_keys, rename_overrides

__all__ = ["load_method", "method_names", "method_summary", "outside_entry", "resolve", "usable_methods"]

if TYPE_CHECKING:
    from radweave.methods.experiment import Experiment


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
