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
from radweave.workstation.database import ROLES, folded, locks, now, refuse_unclear, sessions, tokens, users

FIRST_USER = "admin"
SHORTEST_PASSWORD = 12
CLOCK_SET_BACK = timedelta(minutes=5)
"""Tolerance for sessions that began in the future because the clock was set back."""
LONGEST_PASSWORD = 1_000
_TOKEN_NAME = 16
"""Length of the prefix of a token's hash that names it."""
_hasher = PasswordHasher()
_enabled = users.c.disabled.is_(None)


@dataclass(frozen=True, slots=True)
class User:
    """The user of a request. ``csrf`` is set for browser sessions, whose changes must repeat it."""

    id: int
    name: str
    role: str
    csrf: str | None = None

    @property
    def is_admin(self) -> bool:
        return self.role == "admin"


def _secret() -> tuple[str, str]:
    """A new secret and its digest."""
    secret = secrets.token_urlsafe(32)
    return secret, sha256_bytes(secret.encode())


def first_token(connection: sa.Connection) -> str | None:
    """Create the first user and return its token; None if there are users."""
    if connection.execute(sa.select(sa.func.count()).select_from(users)).scalar_one():
        return None
    return new_token(connection, add_user(connection, FIRST_USER, role="admin", password=None))


def new_token(connection: sa.Connection, user_id: int) -> str:
    secret, digest = _secret()
    connection.execute(tokens.insert().values(secret=digest, user_id=user_id, created=now()))
    return secret


def add_user(
    connection: sa.Connection, name: str, *, role: str, password: str | None, subject: str | None = None
) -> int:
    """Add a user, who logs in by password, by token, or with the provider of its ``subject``.

    Raises:
        InputError: for an unclear, taken or look-alike name, an unknown role, or a password of an invalid length.
    """
    refuse_unclear(name)
    if role not in ROLES:
        raise InputError("no such role", field="role", expected=" or ".join(ROLES))
    password_hash = None if password is None else _hashed(password)
    if is_taken(connection, name):
        raise InputError("is taken, or looks like a taken one", field="name")
    row = {
        "name": name,
        "role": role,
        "password": password_hash,
        "created": now(),
        "folded": folded(name),
        "subject": subject,
    }
    made = connection.execute(users.insert().values(row))
    assert made.inserted_primary_key is not None
    return int(made.inserted_primary_key[0])


def is_taken(connection: sa.Connection, name: str) -> bool:
    """True if a user has this name or a look-alike one."""
    wanted = sa.or_(users.c.name == name, users.c.folded == folded(name))
    return connection.execute(sa.select(users.c.id).where(wanted)).first() is not None


def named(connection: sa.Connection, name: str) -> sa.Row[Any] | None:
    """The user with this name, else the one with a look-alike name."""
    exact = connection.execute(sa.select(users).where(users.c.name == name)).first()
    return exact or connection.execute(sa.select(users).where(users.c.folded == folded(name))).first()


def set_disabled(connection: sa.Connection, user_id: int, *, is_disabled: bool) -> None:
    """Disable a user, whose sessions and tokens end at once, or enable it.

    Raises:
        InputError: for an unknown user, and for the last local admin.
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


def is_password(connection: sa.Connection, user_id: int, password_hash: str | None) -> bool:
    """True if the password hash is unchanged and the user is enabled."""
    wanted = (users.c.id == user_id, users.c.password == password_hash, _enabled)
    return connection.execute(sa.select(users.c.id).where(*wanted)).first() is not None


def is_of_provider(connection: sa.Connection, user_id: int) -> bool:
    return connection.execute(sa.select(users.c.subject).where(users.c.id == user_id)).scalar() is not None


def end_all(connection: sa.Connection, user_id: int, *, keep: str = "") -> None:
    """End a user's tokens and sessions, except the session of the cookie ``keep``; without one, their locks too."""
    if not keep:
        _release_locks(connection, user_id)
    connection.execute(tokens.delete().where(tokens.c.user_id == user_id))
    _end_sessions(connection, user_id, keep=keep)


def _hashed(password: str) -> str:
    if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
        expected = f"{SHORTEST_PASSWORD} to {LONGEST_PASSWORD} characters"
        raise InputError("cannot be used", field="password", got=f"{len(password)} characters", expected=expected)
    return _hasher.hash(password)


def set_password(connection: sa.Connection, user_id: int, password: str, *, keep: str = "") -> None:
    """Set a password, and end all tokens and sessions of the user, except the session of the cookie ``keep``.

    Raises:
        InputError: for a password of an invalid length, and for a user of a provider.
    """
    password_hash = _hashed(password)
    local = (users.c.id == user_id, users.c.subject.is_(None))
    if not connection.execute(users.update().where(*local).values(password=password_hash)).rowcount:
        raise InputError("logs in with its provider, and has no password here", field="number", got=user_id)
    end_all(connection, user_id, keep=keep)


def has_password(connection: sa.Connection, user_id: int) -> bool:
    return connection.execute(sa.select(users.c.password).where(users.c.id == user_id)).scalar() is not None


def _end_sessions(connection: sa.Connection, user_id: int, *, keep: str = "") -> None:
    ended = sessions.delete().where(sessions.c.user_id == user_id, sessions.c.secret != sha256_bytes(keep.encode()))
    connection.execute(ended)


def tokens_of(connection: sa.Connection, user_id: int) -> list[dict[str, Any]]:
    """Names (prefixes of the digests) and times of a user's tokens."""
    query = sa.select(tokens.c.secret, tokens.c.created).where(tokens.c.user_id == user_id).order_by(tokens.c.created)
    return [{"id": row.secret[:_TOKEN_NAME], "created": row.created.isoformat()} for row in connection.execute(query)]


def revoke_token(connection: sa.Connection, user_id: int, name: str, *, keep: str = "") -> bool:
    """Revoke a token and the sessions it may have opened, except that of ``keep``; False if it is unknown."""
    if len(name) != _TOKEN_NAME or not name.isalnum():
        return False
    wanted = (tokens.c.user_id == user_id, tokens.c.secret.startswith(name))
    if not connection.execute(tokens.delete().where(*wanted)).rowcount:
        return False
    _end_sessions(connection, user_id, keep=keep)
    return True


def user_names(connection: sa.Connection) -> dict[int | None, str]:
    """Number -> name of all users."""
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
def _dummy_hash() -> str:
    return _hasher.hash(secrets.token_urlsafe(16))


def by_password(connection: sa.Connection, name: str, password: str) -> User | None:
    """The user with this password. Unknown and disabled users take as long as a wrong password."""
    row = named(connection, name)
    password_hash = row.password if row is not None and row.password is not None else _dummy_hash()
    try:
        _hasher.verify(password_hash, password[:LONGEST_PASSWORD])
    except (VerificationError, InvalidHashError):
        return None
    if row is None or row.password is None or row.disabled is not None:
        return None
    return User(row.id, row.name, row.role)


def by_token(connection: sa.Connection, secret: str) -> User | None:
    query = sa.select(users).join(tokens).where(tokens.c.secret == sha256_bytes(secret.encode()), _enabled)
    row = connection.execute(query).first()
    return None if row is None else User(row.id, row.name, row.role)


def open_session(connection: sa.Connection, user: User, *, seconds: float) -> tuple[str, str]:
    """Open a session; return the secret of its cookie and its CSRF token."""
    secret, digest = _secret()
    csrf = secrets.token_urlsafe(32)
    connection.execute(sessions.delete().where(sessions.c.ends <= now()))
    connection.execute(
        sessions.insert().values(
            secret=digest, user_id=user.id, csrf=csrf, created=now(), ends=now() + timedelta(seconds=seconds)
        )
    )
    return secret, csrf


def by_session(connection: sa.Connection, secret: str) -> User | None:
    query = (
        sa.select(users, sessions.c.csrf)
        .join(sessions)
        .where(sessions.c.secret == sha256_bytes(secret.encode()), sessions.c.ends > now(), _enabled)
        .where(sessions.c.created < now() + CLOCK_SET_BACK)
    )
    row = connection.execute(query).first()
    return None if row is None else User(row.id, row.name, row.role, row.csrf)


def close_session(connection: sa.Connection, secret: str, user: User) -> None:
    """Log a user out, who leaves the studies in hand."""
    _release_locks(connection, user.id)
    connection.execute(sessions.delete().where(sessions.c.secret == sha256_bytes(secret.encode())))


def _release_locks(connection: sa.Connection, user_id: int) -> None:
    connection.execute(locks.delete().where(locks.c.user_id == user_id))
