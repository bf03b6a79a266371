"""Looking for the priors of studies that came in, beside the thread that sorts them, for no longer than stated."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from radweave.base.errors import InputError
from radweave.hospital.asking import Archive, Asked, Count, NotAnsweredError
from radweave.hospital.find_prior import find_prior
from radweave.hospital.identity import Identity, read_identities
from radweave.hospital.plan import Priors, Query
from radweave.hospital.prior import Prior
from radweave.serve.events import say, say_failure

AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class _Looking:
    end: float
    answer: Future[Prior]
    prior: Prior | None = None


class Seeker:
    """Asks the archives one after the other; what one has is laid below ``folder`` until ``forget``."""

    def __init__(self, archives: Sequence[tuple[Query, Archive]], folder: Path, count: Count) -> None:
        self._archives, self._folder, self._count = archives, folder, count
        self._looking: dict[str, _Looking] = {}
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="priors")
        self._is_stopped = False
        shutil.rmtree(folder, ignore_errors=True)

    def look_for(self, name: str, files: Sequence[Path]) -> Prior | None:
        """What came of looking for the prior of a study; None while it is looked for. ``name`` is the study's own."""
        if name not in self._looking:
            wait = max(query.priors.wait_s for query, _ in self._archives if query.priors is not None)
            end = time.monotonic() + wait
            self._looking[name] = _Looking(end, self._threads.submit(self._ask, name, tuple(files), end))
        looking = self._looking[name]
        if looking.prior is not None:
            return looking.prior
        if not looking.answer.done() and time.monotonic() < looking.end:
            return None
        prior = Prior("late") if not looking.answer.done() else looking.answer.result()
        looking.answer.cancel()
        self._looking[name] = replace(looking, prior=prior)
        self._count(f"priors_{prior.outcome}", 1)
        return prior

    def forget(self, name: str) -> None:
        """Remove what was found; what comes later is removed when it is there."""
        looking = self._looking.pop(name, None)
        if looking is not None:
            looking.answer.add_done_callback(lambda _: shutil.rmtree(self._folder / name, ignore_errors=True))

    def stop(self) -> None:
        self._is_stopped = True
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _ask(self, name: str, files: Sequence[Path], end: float) -> Prior:
        try:
            sources, _ = read_identities(list(files))
        except InputError:  # no report could be made of it, and whose prior it were nobody knows
            return Prior("none")
        outcome = Prior("none")
        for query, archive in self._archives:
            if query.priors is None or not sources:
                continue
            asked = Asked(end, query.most, lambda: self._is_stopped)
            found = self._one(archive, sources[0], query.priors, self._folder / name / query.name, asked)
            if found.outcome == "found":
                return found
            # Who reads the draft must know of the worst that came of it.
            outcome = found if found.outcome != "none" else outcome
        return outcome

    def _one(self, archive: Archive, study: Identity, plan: Priors, folder: Path, asked: Asked) -> Prior:
        try:
            return find_prior(archive, study, plan, folder, asked, self._count)
        except NotAnsweredError:
            say("prior-not-found")
        except Exception as error:  # one archive that answers nonsense must not keep a study
            say_failure("prior-failed", error)
        return Prior("late" if time.monotonic() >= asked.deadline else "failed")
