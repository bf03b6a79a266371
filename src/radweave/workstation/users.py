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

from radweave.core.errors import InputError
from radweave.core.storage import sha256_bytes
from radweave.workstation.database import ROLES, folded, now, refuse_unclear, sessions, tokens, users

FIRST_USER = "admin"
SHORTEST_PASSWORD = 12
CLOCK_SET_BACK = timedelta(minutes=5)
"""By so much a clock may be set back without ending what began later than it says."""
LONGEST_PASSWORD = 1_000
_TOKEN_NAME = 16
"""Characters of a token's hash that name it."""
_hasher = PasswordHasher()
_enabled = users.c.disabled.is_(None)


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


def add_user(
    connection: sa.Connection, name: str, *, role: str, password: str | None, subject: str | None = None
) -> int:
    """Add a user; without a password only tokens, or the provider that knows its ``subject``, let it in.

    Raises:
        InputError: for a name that is unclear, taken or like one that is, an unknown role, a password that is too short
            or too long.
    """
    refuse_unclear(name)
    if role not in ROLES:
        raise InputError("no such role", field="role", expected=" or ".join(ROLES))
    kept = None if password is None else _hashed(password)
    if is_taken(connection, name):
        raise InputError("is taken, or looks like one that is", field="name")
    row = {"name": name, "role": role, "password": kept, "created": now(), "folded": folded(name), "subject": subject}
    made = connection.execute(users.insert().values(row))
    assert made.inserted_primary_key is not None
    return int(made.inserted_primary_key[0])


def is_taken(connection: sa.Connection, name: str) -> bool:
    """True where a user has this name, or one that looks like it."""
    wanted = sa.or_(users.c.name == name, users.c.folded == folded(name))
    return connection.execute(sa.select(users.c.id).where(wanted)).first() is not None


def named(connection: sa.Connection, name: str) -> sa.Row[Any] | None:
    """The user that a name means: the one that is called so, else the one whose name looks like it."""
    exact = connection.execute(sa.select(users).where(users.c.name == name)).first()
    return exact or connection.execute(sa.select(users).where(users.c.folded == folded(name))).first()


def set_disabled(connection: sa.Connection, user_id: int, *, is_disabled: bool) -> None:
    """Let a user in no more, or again. Who is disabled loses its sessions and tokens at once.

    Raises:
        InputError: for a user that is not there, and for the last admin that can log in here by itself.
    """
    if user_id not in user_names(connection):
        raise InputError("no such user", field="number", got=user_id)
    if is_disabled:
        admins = sa.select(users.c.id).where(
            users.c.role == "admin", users.c.disabled.is_(None), users.c.subject.is_(None), users.c.id != user_id
        )
        if connection.execute(admins).first() is None:
            raise InputError("is the last admin that can log in", field="number", got=user_id)
        end_all(connection, user_id)
    connection.execute(users.update().where(users.c.id == user_id).values(disabled=now() if is_disabled else None))


def is_enabled(connection: sa.Connection, user_id: int) -> bool:
    return connection.execute(sa.select(users.c.id).where(users.c.id == user_id, _enabled)).first() is not None


def is_password(connection: sa.Connection, user_id: int, kept: str | None) -> bool:
    """True where what is kept of a user's password is still the same, and the user is let in."""
    wanted = (users.c.id == user_id, users.c.password == kept, _enabled)
    return connection.execute(sa.select(users.c.id).where(*wanted)).first() is not None


def is_of_provider(connection: sa.Connection, user_id: int) -> bool:
    return connection.execute(sa.select(users.c.subject).where(users.c.id == user_id)).scalar() is not None


def end_all(connection: sa.Connection, user_id: int, *, keep: str = "") -> None:
    """End a user's tokens, and its sessions but that of the cookie ``keep``."""
    connection.execute(tokens.delete().where(tokens.c.user_id == user_id))
    _end_sessions(connection, user_id, keep=keep)


def _hashed(password: str) -> str:
    if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
        expected = f"{SHORTEST_PASSWORD} to {LONGEST_PASSWORD} characters"
        raise InputError("cannot be used", field="password", got=f"{len(password)} characters", expected=expected)
    return _hasher.hash(password)


def set_password(connection: sa.Connection, user_id: int, password: str, *, keep: str = "") -> None:
    """Give a user another password, and end all its tokens, and its sessions but that of the cookie ``keep``.

    Raises:
        InputError: for a password that is too short or too long, and for a user of a provider, which keeps its own.
    """
    kept = _hashed(password)
    local = (users.c.id == user_id, users.c.subject.is_(None))
    if not connection.execute(users.update().where(*local).values(password=kept)).rowcount:
        raise InputError("logs in with its provider, and has no password here", field="number", got=user_id)
    end_all(connection, user_id, keep=keep)


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
    return [
        {
            "id": row.id, "name": row.name, "role": row.role, "created": row.created.isoformat(),
            "disabled": row.disabled is not None, "is_of_provider": row.subject is not None,
        }
        for row in connection.execute(sa.select(users).order_by(users.c.id))
    ]  # fmt: skip


@lru_cache(maxsize=1)
def _nobodys() -> str:
    return _hasher.hash(secrets.token_urlsafe(16))


def by_password(connection: sa.Connection, name: str, password: str) -> User | None:
    """The user with this password. An unknown name, and one that is disabled, takes as long as a wrong password."""
    row = named(connection, name)
    kept = row.password if row is not None and row.password is not None else _nobodys()
    try:
        _hasher.verify(kept, password[:LONGEST_PASSWORD])
    except (VerificationError, InvalidHashError):
        return None
    if row is None or row.password is None or row.disabled is not None:
        return None
    return User(row.id, row.name, row.role)


def by_token(connection: sa.Connection, secret: str) -> User | None:
    asked = sa.select(users).join(tokens).where(tokens.c.secret == sha256_bytes(secret.encode()), _enabled)
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
        .where(sessions.c.secret == sha256_bytes(secret.encode()), sessions.c.ends > now(), _enabled)
        .where(sessions.c.created < now() + CLOCK_SET_BACK)
    )
    row = connection.execute(asked).first()
    return None if row is None else User(row.id, row.name, row.role, row.csrf)


def close_session(connection: sa.Connection, secret: str) -> None:
    connection.execute(sessions.delete().where(sessions.c.secret == sha256_bytes(secret.encode())))
