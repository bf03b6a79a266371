"""A small load with every kill of the large one: bench/bench_serve.py runs it for minutes, with a model."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from radweave.workstation.settings import Limits, Settings
from tests.workstation.fake_workers import IMAGE
from tests.workstation.load import Killed, Load, free_port


@pytest.mark.slow  # four processes are started; make test-postgres runs it too
def test_kills_under_load_lose_and_duplicate_nothing(settings: Settings, tmp_path: Path) -> None:
    inputs = settings.model_copy(update={"port": free_port(), "limits": Limits(waiting=12)})
    command = [sys.executable, str(Path(__file__).with_name("fake_worker_server.py")), inputs.model_dump_json()]
    server = Killed(command, inputs.port, tmp_path)
    load = Load(server, [IMAGE], poll_s=0.05)

    def kill() -> None:
        server.kill_worker()
        time.sleep(0.3)
        server.kill_and_start()

    try:
        load.run(4, 1.0, kill)
        closing = load.close(4)
        assert len(closing.answered_s) == 8, "each study twice"
        answers = load.burst(4, 5, uploads=1)
        assert answers[202] + answers[503] == 4
        assert load.burst(1, 13, uploads=1) == {503: 1}, "more than may wait"
        assert load.check() >= 4 + 5 * answers[202]
        assert load.counts["away"] > 0
    finally:
        assert server.stop() in (-15, 143)
