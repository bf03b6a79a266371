"""What only a database on a server of its own can do: go away and come back. ``make test-postgres`` runs it."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa

from radweave.core.errors import InputError
from radweave.workstation.database import Database
from radweave.workstation.settings import Settings
from tests.workstation.postgres import PostgresServer
from tests.workstation.stations import one_draft, running


def test_a_restarted_database_is_used_again(settings: Settings, postgres_server: PostgresServer) -> None:
    assert settings.database is not None
    with running(settings) as (client, _):
        one_draft(client)
        postgres_server.send_away(settings.database)
        one_draft(client)
        with pytest.raises(InputError, match="another server"):  # the lock went with its connection, and came back
            other = Database(settings.database)
            try:
                other.server_lock.acquire()
            finally:
                other.close()


def test_two_first_starts_at_once_make_one_database(postgres_server: PostgresServer) -> None:
    url = postgres_server.new_database()
    failed: list[BaseException] = []

    def start() -> None:
        try:
            Database(url).close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_a_wrong_database_password_is_not_shown(postgres_server: PostgresServer) -> None:
    url = postgres_server.new_database().replace("radweave@", "nobody:geheim@")
    with pytest.raises(InputError) as error:
        Database(url)
    assert "geheim" not in str(error.value)
    assert sa.make_url(url).password == "geheim"
