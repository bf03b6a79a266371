"""The one error a user's mistake raises. The command line prints it as one line and exits with 2."""

from __future__ import annotations

from pathlib import Path


class InputError(ValueError):
    """Something a user gave cannot be used: a file, a field, an option.

    The message names the file, the field, what was found and what was expected, as far as they apply. It never
    holds a patient's name, id or date: give field names and shapes in ``got``, not values from a header that
    could identify someone. It is one line, with control characters escaped.
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
        place = ""
        if self.file is not None:
            place = self.file + (f", line {self.line}" if self.line is not None else "")
        if self.field is not None:
            place += (", " if place else "") + f"field '{self.field}'"
        text = f"{place}: {self.reason}" if place else self.reason
        details = []
        if self.got is not None:
            details.append(f"got {self.got}")
        if self.expected is not None:
            details.append(f"expected {self.expected}")
        return printable(text + (f" ({', '.join(details)})" if details else ""))

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the fields when the error crosses a process border."""
        return (_rebuild, (type(self), self.reason, self.file, self.line, self.field, self.got, self.expected))


class UnusableModelError(InputError):
    """The model itself cannot be used, so that no other study would fare better: the job ends."""


class CannotWriteError(InputError):
    """A file or folder cannot be written: no permission, a read-only file system, a full disk."""


def _rebuild(
    kind: type[InputError],
    reason: str,
    file: str | None,
    line: int | None,
    field: str | None,
    got: object,
    expected: object,
) -> InputError:
    return kind(reason, file=file, line=line, field=field, got=got, expected=expected)


def printable(text: object) -> str:
    """Text from outside, a file name above all, as one line that a terminal shows as it is.

    Line breaks, escape and direction codes, and bytes that are no text become escapes such as ``\\x1b``.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
