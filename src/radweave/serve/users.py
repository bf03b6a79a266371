"""Users, their passwords (Argon2), tokens for programs, and sessions for browsers."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from radweave.base.errors import InputError
from radweave.base.hashes import sha256_bytes
from radweave.serve.schema import ROLES, now, sessions, tokens, users

FIRST_USER = "admin"
SHORTEST_PASSWORD = 12
LONGEST_PASSWORD = 1_000
_hasher = PasswordHasher()


@dataclass(frozen=True, slots=True)
class User:
    """Who asks. ``csrf`` is set where a browser's session says so, which must then repeat it to change anything."""

    id: int
    name: str
    role: str
    csrf: str | None = None

    @property
    def is_admin(self) -> bool:
        return self.role == "admin"


def _secret() -> tuple[str, str]:
    """A new secret, and what is kept of it."""
    secret = secrets.token_urlsafe(32)
    return secret, sha256_bytes(secret.encode())


def first_token(connection: sa.Connection) -> str | None:
    """A token for the first user where there is none yet; it cannot be read again."""
    if connection.execute(sa.select(sa.func.count()).select_from(users)).scalar_one():
        return None
    return new_token(connection, add_user(connection, FIRST_USER, role="admin", password=None))


def new_token(connection: sa.Connection, user_id: int) -> str:
    secret, kept = _secret()
    connection.execute(tokens.insert().values(secret=kept, user_id=user_id, created=now()))
    return secret


def add_user(connection: sa.Connection, name: str, *, role: str, password: str | None) -> int:
    """Add a user; without a password only tokens let it in.

    Raises:
        InputError: for a name that is taken or empty, an unknown role, a password that is too short or too long.
    """
    if not name or len(name) > 100 or not name.isprintable():
        raise InputError("no name", field="name", expected="1 to 100 printable characters")
    if role not in ROLES:
        raise InputError("no such role", field="role", expected=" or ".join(ROLES))
    if password is not None and not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
        expected = f"{SHORTEST_PASSWORD} to {LONGEST_PASSWORD} characters"
        raise InputError("cannot be used", field="password", got=f"{len(password)} characters", expected=expected)
    if connection.execute(sa.select(users.c.id).where(users.c.name == name)).first():
        raise InputError("is taken", field="name")
    kept = None if password is None else _hasher.hash(password)
    made = connection.execute(users.insert().values(name=name, role=role, password=kept, created=now()))
    assert made.inserted_primary_key is not None
    return int(made.inserted_primary_key[0])


def all_users(connection: sa.Connection) -> list[dict[str, Any]]:
    asked = sa.select(users.c.id, users.c.name, users.c.role, users.c.created).order_by(users.c.id)
    return [
        {"id": row.id, "name": row.name, "role": row.role, "created": row.created.isoformat()}
        for row in connection.execute(asked)
    ]


@lru_cache(maxsize=1)
def _nobodys() -> str:
    return _hasher.hash(secrets.token_urlsafe(16))


def by_password(connection: sa.Connection, name: str, password: str) -> User | None:
    """The user with this password. An unknown name takes as long as a wrong password."""
    row = connection.execute(sa.select(users).where(users.c.name == name)).first()
    kept = row.password if row is not None and row.password is not None else _nobodys()
    try:
        _hasher.verify(kept, password[:LONGEST_PASSWORD])
    except (VerificationError, InvalidHashError):
        return None
    return None if row is None or row.password is None else User(row.id, row.name, row.role)


def by_token(connection: sa.Connection, secret: str) -> User | None:
    asked = sa.select(users).join(tokens).where(tokens.c.secret == sha256_bytes(secret.encode()))
    row = connection.execute(asked).first()
    return None if row is None else User(row.id, row.name, row.role)


def open_session(connection: sa.Connection, user: User, *, seconds: float) -> tuple[str, str]:
    """The secret of a new session's cookie, and what its forms must repeat."""
    secret, kept = _secret()
    csrf = secrets.token_urlsafe(32)
    connection.execute(sessions.delete().where(sessions.c.ends <= now()))
    connection.execute(
        sessions.insert().values(
            secret=kept, user_id=user.id, csrf=csrf, created=now(), ends=now() + timedelta(seconds=seconds)
        )
    )
    return secret, csrf


def by_session(connection: sa.Connection, secret: str) -> User | None:
    asked = (
        sa.select(users, sessions.c.csrf)
        .join(sessions)
        .where(sessions.c.secret == sha256_bytes(secret.encode()), sessions.c.ends > now())
    )
    row = connection.execute(asked).first()
    return None if row is None else User(row.id, row.name, row.role, row.csrf)


def close_session(connection: sa.Connection, secret: str) -> None:
    connection.execute(sessions.delete().where(sessions.c.secret == sha256_bytes(secret.encode())))
