"""A configuration field that no code reads is a flag that does nothing: none may exist.

A search of the text, for records that no method builds and no run holds. It passes a dead field whose name another
record has too; the records of methods and runs are held to more by the contract tests, which record reads by class and
field.
"""

from __future__ import annotations

import re
from pathlib import Path

import radweave
from radweave.core.config import Config
from tests.every_module import import_all

SOURCE = Path(radweave.__file__).parent


def _all_configs(kind: type[Config]) -> set[type[Config]]:
    return {kind, *(deeper for child in kind.__subclasses__() for deeper in _all_configs(child))}


def test_every_field_of_every_record_is_read_somewhere() -> None:
    import_all()
    code = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    unread = [
        f"{config.__name__}.{name}"
        for config in _all_configs(Config)
        if config.__module__.startswith("radweave.")
        for name in config.model_fields
        # "kind" is read by pydantic's discriminator, "method" by whoever opens the file.
        if name not in ("kind", "method") and not re.search(rf"\.{name}\b(?!\s*=[^=])", code)
    ]
    assert unread == []
