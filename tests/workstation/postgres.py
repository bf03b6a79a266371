"""A PostgreSQL server for tests: Debian's binaries, its own folder and socket, no port, gone with the session."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

REQUEST_VARIABLE = "RADWEAVE_TEST_POSTGRES"
"""Set to anything, tests of the workstation have their databases on such a server; else they are SQLite's."""
_QUICK = "fsync=off", "synchronous_commit=off", "full_page_writes=off", "shared_buffers=16MB", "max_connections=60"


def find_binaries() -> Path:
    """The folder with ``initdb`` and ``postgres``, which Debian does not put on the path; the newest there is."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda at: int(at.parent.name), reverse=True)
    result = next((folder for folder in folders if (folder / "postgres").exists()), None)
    assert result is not None, (
        f"{REQUEST_VARIABLE} is set and there is no PostgreSQL (Debian: apt-get install postgresql)"
    )
    return result


def _who() -> dict[str, int | list[int]]:
    """As whom the server runs, which refuses to be root's."""
    if os.getuid() != 0:
        return {}
    try:
        entry = pwd.getpwnam("postgres")
    except KeyError:
        entry = pwd.getpwnam("nobody")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


@contextmanager
def server() -> Iterator[PostgresServer]:
    """A running server."""
    binaries, who = find_binaries(), _who()
    # Not below pytest's folder, which nobody else may enter; and the name of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="radweave-pg-", dir="/tmp") as name:
        folder = Path(name)
        if who:
            os.chown(folder, int(who["user"]), int(who["group"]))  # type: ignore[arg-type]
        log = (folder.parent / f"{folder.name}.log").open("w+b")
        try:
            made = [binaries / "initdb", "-D", folder / "data", "-U", "radweave", "-A", "trust", "-E", "UTF8"]
            subprocess.run(
                [*made, "--locale=C.UTF-8", "--no-sync"], check=True, stdout=log, stderr=log, cwd=folder, **who
            )
            options = [word for option in _QUICK for word in ("-c", option)]
            command = [binaries / "postgres", "-D", folder / "data", "-k", folder, "-c", "listen_addresses=", *options]
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, **who)
            try:
                result = PostgresServer(folder, process)
                result.wait()
                yield result
                result.close()
            finally:
                process.send_signal(signal.SIGINT)  # whoever is connected is sent away
                process.wait(30)
        finally:
            log.close()
            Path(log.name).unlink()


class PostgresServer:
    """Makes databases on a server that is only for tests."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self._folder, self._process = folder, process
        self._engine = sa.create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT")

    def url(self, name: str) -> str:
        return f"postgresql+psycopg://radweave@/{name}?host={self._folder}"

    def wait(self) -> None:
        end = time.monotonic() + 60
        while True:
            try:
                with self._engine.connect():
                    return
            except sa.exc.OperationalError:
                assert self._process.poll() is None, "PostgreSQL ended"
                assert time.monotonic() < end, "PostgreSQL does not start"
                time.sleep(0.05)

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = f"test_{uuid.uuid4().hex}"
        with self._engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        return self.url(name)

    def send_away(self, url: str) -> None:
        """End all connections to a database, as a server does that is started again."""
        name = sa.make_url(url).database
        with self._engine.connect() as connection:
            connection.exec_driver_sql(
                f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
            )

    def close(self) -> None:
        self._engine.dispose()
