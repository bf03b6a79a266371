"""From settings to a listening server."""

from __future__ import annotations

import contextlib
import logging
import resource
from typing import Any, Final

import uvicorn

from radweave.base.errors import printable
from radweave.base.study import RESEARCH_ONLY
from radweave.serve.app import create_app
from radweave.serve.connections import Connections
from radweave.serve.encrypted import handshakes, tls_context
from radweave.serve.events import JsonHandler
from radweave.serve.forwarded import Proxies
from radweave.serve.guard import probes_only
from radweave.serve.patience import protocol
from radweave.serve.settings import LOOPBACK, Settings
from radweave.serve.station import Station, alone

_FILES: Final = 8_192
"""Open files and connections, where the system lets a process have so many."""


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; what is being drafted then is finished first.

    Raises:
        InputError: as ``Station``, or if another server works on the same state.
    """
    tls_context(settings.tls_cert, settings.tls_key)
    _raise_files()
    with alone(settings):
        station = Station(settings)
        _greet(settings, station.token)
        listener(settings, station).run()


def listener(settings: Settings, station: Station) -> uvicorn.Server:
    """What listens, with the limits of connections; nothing runs yet."""
    logger = logging.getLogger("uvicorn")
    logger.handlers, logger.propagate = [JsonHandler(logging.WARNING)], False
    limits, context = settings.limits, tls_context(settings.tls_cert, settings.tls_key)
    proxies = Proxies(settings.behind_proxy)
    connections = Connections(limits.connections, limits.connections_of_one, proxies, station.metrics.count)
    http: Any = protocol(settings.head_s, connections, probes_only)
    if context is not None:
        http = handshakes(http, context, settings.head_s, connections)
    config = uvicorn.Config(
        create_app(station), host=settings.host, port=settings.port, log_config=None, access_log=False,
        server_header=False, timeout_keep_alive=10, ws="none", loop="asyncio",
        timeout_graceful_shutdown=int(settings.drain_s), proxy_headers=False, http=http,
    )  # fmt: skip
    return uvicorn.Server(config)


def _raise_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _greet(settings: Settings, token: str | None) -> None:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scheme = "http" if settings.tls_cert is None else "https"
    place = f"{settings.public_url or f'{scheme}://{host}:{settings.port}'}/"
    print(f"workstation: {place}", flush=True)
    print(f"state: {printable(settings.state)}", flush=True)
    if token is not None:
        # Behind #, which no browser sends: the token stands in no request's line and in no log.
        print(f"first user, shown this once: {place}login#token={token}", flush=True)
    print(RESEARCH_ONLY, flush=True)
    if settings.host not in LOOPBACK and settings.tls_cert is None and not settings.behind_proxy:
        print(
            "WARNING: THIS SERVER LISTENS TO OTHER MACHINES, WITHOUT ENCRYPTION. Whoever is on the way reads images, "
            "reports and tokens. Give it --tls-cert and --tls-key, put a proxy with TLS before it (--behind-proxy), or "
            "listen on 127.0.0.1.",
            flush=True,
        )  # fmt: skip
