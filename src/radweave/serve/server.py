"""From settings to a listening server."""

from __future__ import annotations

import logging

import uvicorn

from radweave.base.errors import printable
from radweave.base.study import RESEARCH_ONLY
from radweave.serve.app import create_app
from radweave.serve.events import JsonHandler
from radweave.serve.patience import protocol
from radweave.serve.settings import LOOPBACK, Settings
from radweave.serve.station import Station, alone

_MOST_CONNECTIONS = 256


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; what is being drafted then is finished first.

    Raises:
        InputError: as ``Station``, or if another server works on the same state.
    """
    with alone(settings):
        station = Station(settings)
        _greet(settings, station.token)
        listener(settings, station).run()


def listener(settings: Settings, station: Station) -> uvicorn.Server:
    """What listens, with the limits of connections; nothing runs yet."""
    logger = logging.getLogger("uvicorn")
    logger.handlers, logger.propagate = [JsonHandler(logging.WARNING)], False
    config = uvicorn.Config(
        create_app(station), host=settings.host, port=settings.port, log_config=None, access_log=False,
        server_header=False, limit_concurrency=_MOST_CONNECTIONS, timeout_keep_alive=10, ws="none",
        timeout_graceful_shutdown=int(settings.drain_s), proxy_headers=False, http=protocol(settings.head_s),
    )  # fmt: skip
    return uvicorn.Server(config)


def _greet(settings: Settings, token: str | None) -> None:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    place = f"http://{host}:{settings.port}/"
    print(f"workstation: {place}", flush=True)
    print(f"state: {printable(settings.state)}", flush=True)
    if token is not None:
        # Behind #, which no browser sends: the token stands in no request's line and in no log.
        print(f"first user, shown this once: {place}login#token={token}", flush=True)
    print(RESEARCH_ONLY, flush=True)
    if settings.host not in LOOPBACK:
        print(
            "WARNING: THIS SERVER LISTENS TO OTHER MACHINES, WITHOUT ENCRYPTION. Whoever is on the way reads images, "
            "reports and tokens. Put a proxy with TLS before it, or listen on 127.0.0.1.",
            flush=True,
        )  # fmt: skip
