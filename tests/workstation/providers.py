"""A provider of OpenID Connect in this process: discovery, keys that rotate, codes that count once, and its faults."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey

CLIENT, SECRET = "radweave", "the-secret-of-the-client"


class Provider:
    """``claims`` are of who logs in next; ``changed`` alters a token's claims, ``token`` makes it otherwise."""

    def __init__(self) -> None:
        self.url = ""
        self.about: dict[str, Any] = {}
        self.claims: dict[str, Any] = {"sub": "1", "preferred_username": "anna", "groups": ["readers"]}
        self.changed: Callable[[dict[str, Any]], dict[str, Any]] = dict
        self.token: Callable[[dict[str, Any]], str] | None = None
        self.is_down = False
        self.shared: list[OctKey] = []
        self.requests: list[str] = []
        self._codes: dict[str, dict[str, str]] = {}
        self.rotate()

    def rotate(self) -> None:
        """Sign with another key from now on; older ones are forgotten."""
        self.key = ECKey.generate_key("P-256", {"kid": hashlib.sha256(str(time.time_ns()).encode()).hexdigest()[:8]})

    def authorize(self, query: dict[str, str]) -> tuple[str, str]:
        """What a user's consent sends back: the code and the state."""
        assert query["response_type"] == "code"
        assert query["client_id"] == CLIENT
        assert query["code_challenge_method"] == "S256"
        code = f"code{len(self._codes)}"
        self._codes[code] = query
        return code, query["state"]

    def exchange(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        query = self._codes.pop(form.get("code", ""), None)
        stated = base64.b64decode(authorization.removeprefix("Basic ") or "").decode()
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        if (
            query is None
            or stated != f"{CLIENT}:{SECRET}"
            or base64.urlsafe_b64encode(digest).decode().rstrip("=") != query["code_challenge"]
            or form["redirect_uri"] != query["redirect_uri"]
        ):
            return 400, {"error": "invalid_grant"}
        now = int(time.time())
        claims = {"iss": self.url, "aud": CLIENT, "exp": now + 300, "iat": now, "nonce": query["nonce"], **self.claims}
        claims = {name: value for name, value in self.changed(claims).items() if value is not None}
        made = self.token(claims) if self.token else self.signed(claims)
        return 200, {"access_token": "at", "token_type": "Bearer", "id_token": made}

    def signed(self, claims: dict[str, Any], **header: Any) -> str:
        return str(jwt.encode({"alg": "ES256", "kid": self.key.kid, **header}, claims, self.key))

    def unsigned(self, claims: dict[str, Any]) -> str:
        parts = [{"alg": "none", "typ": "JWT"}, claims]
        return (
            ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."
        )

    def signed_with_the_public_key(self, claims: dict[str, Any]) -> str:
        """The old confusion: a public key taken for a shared secret."""
        shared = OctKey.import_key(json.dumps(self.key.as_dict(private=False)))
        return str(jwt.encode({"alg": "HS256", "kid": self.key.kid}, claims, shared, algorithms=["HS256"]))

    def signed_with_a_shared_secret(self, claims: dict[str, Any]) -> str:
        """A secret that the provider lists among its keys, as one that signs by the client's secret might."""
        self.shared = [OctKey.import_key(SECRET, {"kid": "shared"})]
        return str(jwt.encode({"alg": "HS256", "kid": "shared"}, claims, self.shared[0], algorithms=["HS256"]))

    def signed_by_another(self, claims: dict[str, Any]) -> str:
        other = ECKey.generate_key("P-256", {"kid": self.key.kid})
        return str(jwt.encode({"alg": "ES256", "kid": self.key.kid}, claims, other))

    def keys(self) -> Any:
        secrets = [key.as_dict(private=True) for key in self.shared]
        return {"keys": [*KeySet([self.key]).as_dict(private=False)["keys"], *secrets]}

    def metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.url, "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token", "jwks_uri": f"{self.url}/keys",
            "end_session_endpoint": f"{self.url}/logout", **self.about,
        }  # fmt: skip


@contextmanager
def provider() -> Iterator[Provider]:
    """A provider that answers."""
    made = Provider()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            made.requests.append(path)
            document = {"/.well-known/openid-configuration": made.metadata, "/keys": made.keys}.get(path)
            self._answer(503 if made.is_down or document is None else 200, {} if document is None else document())

        def do_POST(self) -> None:
            made.requests.append(self.path)
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            self._answer(*((503, {}) if made.is_down else made.exchange(form, self.headers.get("Authorization", ""))))

        def _answer(self, status: int, content: Any) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    made.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
