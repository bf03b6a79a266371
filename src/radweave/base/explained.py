"""A configuration as YAML that explains itself: what each component is, and the default of what differs from it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

WIDTH = 116


def explained_yaml(record: BaseModel) -> str:
    """YAML that reads back as the record. A comment above a component says what it is, one behind a value its default
    where the value is another one."""
    return "\n".join(_lines(record, "")) + "\n"


def _lines(record: BaseModel, indent: str) -> Iterator[str]:
    for name, field in type(record).model_fields.items():
        value = getattr(record, name)
        if isinstance(value, BaseModel):
            yield from _comment(type(value), indent)
            yield f"{indent}{name}:" + ("" if type(value).model_fields else " {}")
            yield from _lines(value, indent + "  ")
            continue
        text = _plain(record.model_dump(mode="json", include={name})[name])
        default = None if field.is_required() else _plain(_dumped(record, name, _default(field)))
        yield f"{indent}{name}: {text}" + (f"  # default {default}" if default not in (None, text) else "")


def _default(field: FieldInfo) -> Any:
    return field.get_default(call_default_factory=True, validated_data={})


def _dumped(record: BaseModel, name: str, default: Any) -> Any:
    return type(record).model_construct(**{name: default}).model_dump(mode="json", include={name})[name]


def _plain(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10**9, allow_unicode=True).removesuffix("...\n").strip()


def _comment(kind: type[BaseModel], indent: str) -> Iterator[str]:
    """The docstring of a record, without its markup."""
    text = textwrap.dedent((kind.__doc__ or "").strip()).replace("``", "'")
    for paragraph in text.split("\n\n"):
        yield from textwrap.wrap(
            " ".join(paragraph.split()), WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
        )
