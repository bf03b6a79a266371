"""Log in with a provider: OpenID Connect, authorization code with PKCE (RFC 7636), through Authlib.

    /login/openid -> the provider -> /login/openid/back?code&state -> a session as any other

The nonce and the PKCE verifier of a login are derived from its ``state`` with a secret of this process, so unfinished
logins take no memory. The state is stored in a signed cookie of the browser, and is accepted once.

A user is identified by issuer and subject, never by name: a name like that of a local user gets a suffix.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import secrets
import threading
import time
import unicodedata
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import sqlalchemy as sa

from radweave.core.errors import InputError
from radweave.core.extras import refuse_without
from radweave.workstation import log
from radweave.workstation.database import refuse_unclear
from radweave.workstation.database import users as table
from radweave.workstation.settings import LOOPBACK, OpenId, Settings
from radweave.workstation.users import User, add_user, end_all, is_taken

BACK: Final = "/login/openid/back"
TRY_S: Final = 600
SECRET: Final = "RADWEAVE_OIDC_SECRET"
NOT_BEGUN: Final = "this browser did not begin to log in here; begin again"
_ALGORITHMS: Final = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Asymmetric signatures only: ``none`` and shared secrets are refused."""
_LEEWAY_S: Final = 60
_ANSWER_S: Final = 10.0
_WAIT_S: Final = 0.5
_MOST_BYTES: Final = 1 << 20
_KEPT_S: Final = 3600.0
_AGAIN_S: Final = 10.0
"""Pause before another request to a provider that did not answer, or for newer keys."""
_MOST_USED: Final = 10_000
_AT_ONCE: Final = 4
_NEXT: Final = re.compile(r"/(studies|account|log)(/[0-9a-f]{1,64})?")


class NoProviderError(Exception):
    """The provider does not answer, or its answer cannot be used."""


class RefusedError(Exception):
    """A refused login; the message is shown to the user."""


class NoRoleError(RefusedError):
    """A user of the provider without a group that may log in."""


class Provider:
    """The provider of a workstation. Thread-safe; it is not contacted before the first login."""

    def __init__(self, settings: OpenId, public_url: str) -> None:
        """Check the settings.

        Raises:
            InputError: if they cannot be used, or the extra is not installed.
        """
        refuse_without("oidc", "a login by OpenID Connect", field="--oidc-issuer")
        for field, url in (("--oidc-issuer", settings.issuer), ("--public-url", public_url)):
            if not _is_safe(url):
                raise InputError("is not encrypted", field=field, got=url, expected="https://, or http:// on loopback")
        if not (settings.readers or settings.admins):
            raise InputError(
                "names no group that may log in", field="--oidc-readers", expected="groups that may log in"
            )
        self._settings, self._back = settings, f"{public_url}{BACK}"
        self.logged_out = f"{public_url}/login"
        self._client_secret = _client_secret(settings)
        self._secret = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._about: dict[str, Any] = {}
        self._keys: Any = None
        self._until = self._not_before = self._newer_from = 0.0
        self._used: OrderedDict[str, float] = OrderedDict()
        self._places = threading.BoundedSemaphore(_AT_ONCE)

    def begin(self, wanted: str) -> tuple[str, str]:
        """Begin a login: the provider's address, and the cookie of the browser. ``wanted`` is the page to return to.

        Raises:
            NoProviderError: if the provider does not answer.
        """
        state = secrets.token_urlsafe(32)
        page = wanted if _NEXT.fullmatch(wanted) else "/studies"
        payload = f"{state}.{int(time.monotonic())}.{base64.urlsafe_b64encode(page.encode()).decode().rstrip('=')}"
        about = self._metadata()
        with self._session() as session:
            url, _ = session.create_authorization_url(
                about["authorization_endpoint"], state=state, nonce=self._derived("nonce", state),
                code_verifier=self._derived("verifier", state),
            )  # fmt: skip
        return url, f"{payload}.{self._derived('cookie', payload)}"

    def began(self, cookie: str, state: str) -> bool:
        """True if this login began in the browser with this cookie, and not on another site."""
        payload, _, signed = cookie.rpartition(".")
        is_intact = hmac.compare_digest(signed.encode(), self._derived("cookie", payload).encode())
        return is_intact and hmac.compare_digest(state.encode(), payload.split(".")[0].encode())

    def finish(self, cookie: str, state: str, code: str) -> tuple[dict[str, Any], str]:
        """Finish a login: the claims of the user, and the page to return to.

        Raises:
            RefusedError: for a login of another browser, an old or used one, and an invalid token.
            NoProviderError: if the provider does not answer.
        """
        if not self.began(cookie, state):
            raise RefusedError(NOT_BEGUN)
        _, begun, page, _ = cookie.split(".")
        if time.monotonic() - int(begun) > TRY_S or not self._use(state):
            raise RefusedError("it took too long, or was used already; begin again")
        if not code:
            raise RefusedError("the provider did not let you in")
        claims = self._claims(state, code)
        return claims, base64.urlsafe_b64decode(page + "=" * (-len(page) % 4)).decode()

    def role(self, claims: Mapping[str, Any]) -> str:
        """Role of a user by its groups.

        Raises:
            RefusedError: if it has none.
        """
        groups = _groups(claims, self._settings.claim)
        for role, named in (("admin", self._settings.admins), ("reader", self._settings.readers)):
            if groups & set(named):
                return role
        raise NoRoleError("your account at the provider is in no group that may log in here")

    def subject(self, claims: Mapping[str, Any]) -> str:
        """Digest of issuer and subject."""
        return hashlib.sha256(f"{self._settings.issuer}\0{claims['sub']}".encode("utf-8", "surrogatepass")).hexdigest()

    def end(self) -> str | None:
        """Logout address of the provider; None if it states none."""
        place = self._about.get("end_session_endpoint")
        if not isinstance(place, str) or not _is_safe(place):
            return None
        more = {"client_id": self._settings.client_id, "post_logout_redirect_uri": self.logged_out}
        return f"{place}{'&' if '?' in place else '?'}{urlencode(more)}"

    def _use(self, state: str) -> bool:
        """Mark a state as used; False if it was used before."""
        with self._lock:
            end = time.monotonic() - TRY_S
            while self._used and next(iter(self._used.values())) < end:
                self._used.popitem(last=False)
            if state in self._used:
                return False
            if len(self._used) >= _MOST_USED:  # evict rather than refuse: the provider accepts a code once too
                self._used.popitem(last=False)
            self._used[state] = time.monotonic()
        return True

    def _derived(self, purpose: str, text: str) -> str:
        mac = hmac.new(self._secret, f"{purpose} {text}".encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(mac).decode().rstrip("=")

    @contextmanager
    def _one(self) -> Any:
        """Slot for a request to the provider, so that a slow provider does not occupy all threads."""
        if not self._places.acquire(timeout=_WAIT_S):
            raise NoProviderError
        try:
            yield
        finally:
            self._places.release()

    def _session(self) -> Any:
        from authlib.integrations.requests_client import OAuth2Session

        how = self._about.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        method = "client_secret_basic" if "client_secret_basic" in how else "client_secret_post"
        return OAuth2Session(
            self._settings.client_id, self._client_secret, redirect_uri=self._back, scope=self._settings.scopes,
            token_endpoint_auth_method="none" if self._client_secret is None else method, code_challenge_method="S256",
        )  # fmt: skip

    def _metadata(self) -> dict[str, Any]:
        """Metadata of the provider (OpenID Connect Discovery 1.0, 4.3), cached for a while."""
        with self._lock:
            now = time.monotonic()
            if self._about and now < self._until:
                return self._about
            if now < self._not_before:
                raise NoProviderError
            self._not_before = now + _AGAIN_S
        with self._one():
            about = _fetched(f"{self._settings.issuer.rstrip('/')}/.well-known/openid-configuration")
        if about.get("issuer") != self._settings.issuer:
            raise NoProviderError
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            if not isinstance(about.get(name), str) or not _is_safe(about[name]):
                raise NoProviderError
        with self._lock:
            self._about, self._until, self._not_before = about, time.monotonic() + _KEPT_S, 0.0
        return about

    def _key_set(self, about: Mapping[str, Any], *, newer: bool) -> Any:
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        with self._lock:
            now = time.monotonic()
            if self._keys is not None and (not newer or now < self._newer_from):
                return self._keys
            self._newer_from = now + _AGAIN_S
        try:
            keys = KeySet.import_key_set(_fetched(about["jwks_uri"]))  # type: ignore[arg-type]
        except (JoseError, ValueError, KeyError, TypeError):
            raise NoProviderError from None
        with self._lock:
            self._keys = keys
        return keys

    def _claims(self, state: str, code: str) -> dict[str, Any]:
        import requests
        from authlib.common.errors import AuthlibBaseError
        from authlib.oidc.core import CodeIDToken
        from joserfc import jwt
        from joserfc.errors import JoseError

        about = self._metadata()
        with self._one():
            try:
                with self._session() as session:
                    token = session.fetch_token(
                        about["token_endpoint"], code=code, code_verifier=self._derived("verifier", state),
                        grant_type="authorization_code", timeout=_ANSWER_S, allow_redirects=False,
                    )  # fmt: skip
            except requests.RequestException:
                raise NoProviderError from None
            except (AuthlibBaseError, ValueError, KeyError, TypeError):
                raise RefusedError("the provider did not confirm the login; begin again") from None
            text = token.get("id_token")
            if not isinstance(text, str) or len(text) > _MOST_BYTES:
                raise RefusedError("the provider did not say who logged in")
            for newer in (False, True):
                try:
                    decoded = jwt.decode(text, self._key_set(about, newer=newer), algorithms=_ALGORITHMS)
                    break
                except (JoseError, ValueError, KeyError, TypeError):  # the key may be newer than the cached ones
                    if newer:
                        raise RefusedError("the provider's signature does not hold") from None
        client = self._settings.client_id
        claims = CodeIDToken(
            decoded.claims, decoded.header,
            {"iss": {"essential": True, "value": self._settings.issuer}, "aud": {"essential": True, "value": client}},
            {"nonce": self._derived("nonce", state), "client_id": client, "access_token": token.get("access_token")},
        )  # fmt: skip
        try:
            claims.validate(leeway=_LEEWAY_S)
        except (JoseError, AuthlibBaseError, ValueError, TypeError):
            raise RefusedError("what the provider says is not of this login") from None
        if not isinstance(claims["sub"], str) or not 0 < len(claims["sub"]) <= 255:
            raise RefusedError("the provider did not say who logged in")
        return dict(claims)


def provider_of(settings: Settings) -> Provider | None:
    """The provider in the settings, or None.

    Raises:
        InputError: as ``Provider``, and without a public URL.
    """
    if settings.openid is None:
        return None
    if settings.public_url is None:
        raise InputError("is missing: the provider sends browsers back there", field="--public-url")
    return Provider(settings.openid, settings.public_url)


def user_of(connection: sa.Connection, provider: Provider, claims: Mapping[str, Any]) -> User:
    """The user of claims, created at its first login, with the role of its present groups.

    Raises:
        RefusedError: for a disabled user, or one without a group that may log in.
    """
    role, subject = provider.role(claims), provider.subject(claims)
    row = connection.execute(sa.select(table).where(table.c.subject == subject)).first()
    if row is None:
        name = _free_name(connection, claims, subject)
        made = add_user(connection, name, role=role, password=None, subject=subject)
        log.append(connection, "user added", user=made, details={"user": made, "role": role, "by": "provider"})
        return User(made, name, role)
    if row.disabled is not None:
        raise RefusedError("this user is disabled here")
    if row.role != role:
        connection.execute(table.update().where(table.c.id == row.id).values(role=role))
        log.append(connection, "role changed", user=row.id, details={"user": row.id, "role": role, "by": "provider"})
    return User(row.id, row.name, role)


def end_access(connection: sa.Connection, provider: Provider, claims: Mapping[str, Any]) -> None:
    """End the sessions and tokens of a user without a group that may log in."""
    row = connection.execute(sa.select(table.c.id).where(table.c.subject == provider.subject(claims))).first()
    if row is not None:
        end_all(connection, row.id)
        log.append(connection, "access ended", user=row.id, details={"user": row.id, "by": "provider"})


def _free_name(connection: sa.Connection, claims: Mapping[str, Any], subject: str) -> str:
    """Name of a new user: the provider's, with a suffix if it is taken or unclear."""
    stated = next((claims[name] for name in ("preferred_username", "name", "email") if claims.get(name)), "")
    name = " ".join(unicodedata.normalize("NFC", str(stated)).split())[:80]
    try:
        refuse_unclear(name)
    except InputError:
        name = "user"
    for candidate in (name, f"{name} ({subject[:6]})", f"user {subject[:16]}"):
        if candidate != "user" and not is_taken(connection, candidate):
            return candidate
    return f"user {subject}"


def _groups(claims: Mapping[str, Any], claim: str) -> set[str]:
    """The values of a claim; dots in the name lead into nested claims."""
    claimed: Any = claims.get(claim)
    if claimed is None:
        claimed = claims
        for part in claim.split("."):
            claimed = claimed.get(part) if isinstance(claimed, Mapping) else None
    values = claimed if isinstance(claimed, list) else [claimed]
    return {value for value in values if isinstance(value, str)}


def _client_secret(settings: OpenId) -> str | None:
    if settings.secret_file is None:
        return os.environ.get(SECRET) or None
    try:
        secret = settings.secret_file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        raise InputError("cannot be read", file=settings.secret_file, field="--oidc-secret-file") from None
    if not secret:
        raise InputError("is empty", file=settings.secret_file, field="--oidc-secret-file")
    return secret


def _is_safe(url: str) -> bool:
    """True for https, and for http on loopback."""
    try:
        parts = urlsplit(url)
        return parts.hostname is not None and (
            parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)
        )
    except ValueError:
        return False


def _fetched(url: str) -> dict[str, Any]:
    """A JSON object of the provider, bounded in bytes and time, without redirects.

    Raises:
        NoProviderError: if it cannot be fetched.
    """
    import requests

    end = time.monotonic() + _ANSWER_S
    data = b""
    try:
        with requests.get(url, timeout=_ANSWER_S, allow_redirects=False, stream=True) as answer:
            if answer.status_code != 200:
                raise NoProviderError
            for part in answer.iter_content(1 << 14):
                data += part
                if len(data) > _MOST_BYTES or time.monotonic() > end:
                    raise NoProviderError
        content = json.loads(data)
    except (requests.RequestException, ValueError):
        raise NoProviderError from None
    if not isinstance(content, dict):
        raise NoProviderError
    return content
