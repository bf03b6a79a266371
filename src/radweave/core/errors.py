"""Errors of the user's input, printed by the command line as one line with exit code 2."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

_FACTS: Final = ("file", "line", "field", "got", "expected")


class InputError(ValueError):
    """Unusable input of a user: a file, a field, an option.

    The message is one line that names the file, the field, the value and the expected value where they apply. It holds
    no patient's name, id or date: ``got`` takes field names and shapes, never identifying values from a header.
    """

    def __init__(
        self,
        reason: str,
        *,
        file: Path | str | None = None,
        line: int | None = None,
        field: str | None = None,
        got: object = None,
        expected: object = None,
    ) -> None:
        self.reason = reason
        self.file = None if file is None else str(file)
        self.line = line
        self.field = field
        self.got = got
        self.expected = expected
        super().__init__(self._message())

    def _message(self) -> str:
        source = ""
        if self.file is not None:
            source = self.file + (f", line {self.line}" if self.line is not None else "")
        if self.field is not None:
            source += (", " if source else "") + f"field '{self.field}'"
        text = f"{source}: {self.reason}" if source else self.reason
        details = []
        if self.got is not None:
            details.append(f"got {self.got}")
        if self.expected is not None:
            details.append(f"expected {self.expected}")
        return printable(text + (f" ({', '.join(details)})" if details else ""))

    def at(self, **changes: object) -> InputError:
        """The same error with another ``file``, ``field``, ``got`` or ``expected``."""
        facts: dict[str, Any] = {name: getattr(self, name) for name in _FACTS}
        return InputError(self.reason, **facts | changes)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the fields, for errors of other processes."""
        fields = {name: getattr(self, name) for name in _FACTS}
        return (partial(type(self), **fields), (self.reason,))


class UnusableModelError(InputError):
    """An unusable model, which ends the job, since every study would fail."""


class CannotWriteError(InputError):
    """Failure to write a file or folder: no permission, a read-only file system, a full disk."""


def no_file(path: Path) -> str:
    """Reason why a path that is no file cannot be read."""
    if (path / "run.json").is_file():
        return "is a run folder, not a file of drafts; 'radweave generate' writes one"
    return "is a folder, not a file" if path.is_dir() else "file is missing"


def printable(text: object) -> str:
    """Untrusted text, such as a file name, as one line without control characters.

    Line breaks, escape and direction codes, and undecodable bytes become escapes such as ``\\x1b``.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
