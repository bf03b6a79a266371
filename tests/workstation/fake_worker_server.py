"""``radweave serve`` with an inference process that needs no model, for tests that kill it. Its settings are JSON."""

from __future__ import annotations

import sys

if __name__ == "__main__":  # the inference process, which imports this too, needs nothing of it
    from functools import partial

    from radweave.workstation import app
    from radweave.workstation.settings import Settings
    from radweave.workstation.station import Station
    from tests.workstation.fake_workers import fake_worker

    app.Station = partial(Station, target=fake_worker)  # type: ignore[misc, assignment]
    app.run(Settings.model_validate_json(sys.argv[1]))
