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
CLOCK_SET_BACK = timedelta(minutes=5)
"""By so much a clock may be set back without ending what began later than it says."""
LONGEST_PASSWORD = 1_000
_TOKEN_NAME = 16
"""Characters of a token's hash that name it."""
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
    kept = None if password is None else _hashed(password)
    if connection.execute(sa.select(users.c.id).where(users.c.name == name)).first():
        raise InputError("is taken", field="name")
    made = connection.execute(users.insert().values(name=name, role=role, password=kept, created=now()))
    assert made.inserted_primary_key is not None
    return int(made.inserted_primary_key[0])


def _hashed(password: str) -> str:
    if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
        expected = f"{SHORTEST_PASSWORD} to {LONGEST_PASSWORD} characters"
        raise InputError("cannot be used", field="password", got=f"{len(password)} characters", expected=expected)
    return _hasher.hash(password)


def set_password(connection: sa.Connection, user_id: int, password: str, *, keep: str = "") -> None:
    """Give a user another password, and end all its sessions but that of the cookie ``keep``.

    Raises:
        InputError: for a password that is too short or too long.
    """
    connection.execute(users.update().where(users.c.id == user_id).values(password=_hashed(password)))
    _end_sessions(connection, user_id, keep=keep)


def has_password(connection: sa.Connection, user_id: int) -> bool:
    return connection.execute(sa.select(users.c.password).where(users.c.id == user_id)).scalar() is not None


def _end_sessions(connection: sa.Connection, user_id: int, *, keep: str = "") -> None:
    ended = sessions.delete().where(sessions.c.user_id == user_id, sessions.c.secret != sha256_bytes(keep.encode()))
    connection.execute(ended)


def tokens_of(connection: sa.Connection, user_id: int) -> list[dict[str, Any]]:
    """A user's tokens: what each is called, which is the start of what is kept of it, and when it was made."""
    asked = sa.select(tokens.c.secret, tokens.c.created).where(tokens.c.user_id == user_id).order_by(tokens.c.created)
    return [{"id": row.secret[:_TOKEN_NAME], "created": row.created.isoformat()} for row in connection.execute(asked)]


def revoke_token(connection: sa.Connection, user_id: int, name: str, *, keep: str = "") -> bool:
    """Take a token back, with the sessions that may have been opened with it (but that of ``keep``); whether it was."""
    if len(name) != _TOKEN_NAME or not name.isalnum():
        return False
    wanted = (tokens.c.user_id == user_id, tokens.c.secret.startswith(name))
    if not connection.execute(tokens.delete().where(*wanted)).rowcount:
        return False
    _end_sessions(connection, user_id, keep=keep)
    return True


def user_names(connection: sa.Connection) -> dict[int | None, str]:
    """Number -> name, of all users."""
    return {row.id: row.name for row in connection.execute(sa.select(users.c.id, users.c.name))}


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
        .where(sessions.c.created < now() + CLOCK_SET_BACK)
    )
    row = connection.execute(asked).first()
    return None if row is None else User(row.id, row.name, row.role, row.csrf)


def close_session(connection: sa.Connection, secret: str) -> None:
    connection.execute(sessions.delete().where(sessions.c.secret == sha256_bytes(secret.encode())))
