"""The secret key, and the values derived from it.

    patient id, issuer  ->  pseudonym, shift of all dates in days
    UID                 ->  UID

Each is an HMAC-SHA-256 (FIPS 198-1) of the value under its own purpose, so that none reveals another.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import uuid
from pathlib import Path
from typing import Final

from radweave.core.errors import InputError

LEAST_BYTES: Final = 32
FIRST_DAYS: Final = 366
SPREAD_DAYS: Final = 3287
"""All dates of a patient move back by 366 to 3652 days: at least a year, never into the future."""


class Key:
    """A secret of at least ``LEAST_BYTES`` bytes, without a printable form."""

    def __init__(self, secret: bytes) -> None:
        assert len(secret) >= LEAST_BYTES
        self._secret = secret

    def __repr__(self) -> str:
        return "Key(...)"

    def as_hex(self) -> str:
        """Hexadecimal form, for the process that rewrites files."""
        return self._secret.hex()

    def _digest(self, purpose: str, *values: str) -> bytes:
        # A length before each value: ("a", "bc") and ("ab", "c") are two patients.
        text = "".join(f"{len(value)}:{value}" for value in (purpose, *values))
        return hmac.new(self._secret, text.encode("utf-8", "surrogatepass"), hashlib.sha256).digest()

    def pseudonym(self, *person: str) -> str:
        """Pseudonym of a patient."""
        return f"RW-{self._digest('pseudonym', *person).hex()[:16].upper()}"

    def days(self, *person: str) -> int:
        """Shift of all dates of a patient in days, below zero."""
        return -(FIRST_DAYS + int.from_bytes(self._digest("days", *person)[:8]) % SPREAD_DAYS)

    def uid(self, old: str) -> str:
        """Replacement of a UID, below 2.25 (PS3.5 B.2)."""
        return f"2.25.{uuid.UUID(bytes=self._digest('uid', old)[:16], version=4).int}"


def read_key(path: Path) -> Key:
    """Read a key from a file that only its owner may read.

    Raises:
        InputError: if there is none, others may read it, or it is too short.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            secret = file.read(1 << 16).strip()
    except OSError as error:
        raise InputError(f"the key cannot be read: {error.strerror}", file=path) from None
    if mode & 0o077:
        raise InputError("others may read the key", file=path, got=f"mode {mode:o}", expected="mode 600")
    if len(secret) < LEAST_BYTES:
        raise InputError("the key is too short", file=path, got=f"{len(secret)} bytes", expected=LEAST_BYTES)
    return Key(secret)


def write_key(path: Path) -> None:
    """Write a new key into a file of mode 600.

    Raises:
        InputError: if something is there already, or it cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise InputError(f"no key is made: {error.strerror}", file=path) from None
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{secrets.token_hex(LEAST_BYTES)}\n")
