"""Verbs that can go on where they were stopped say how, and end with the signal's exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from radweave.base.stopping import StoppedError


@contextmanager
def resumable(advice: str) -> Iterator[None]:
    """Turn a stop into one line with ``advice`` on stderr, and into exit code 143 (SIGTERM) or 130 (SIGINT).

    Whatever stands behind ``&&`` in a shell is then not done. Of several ranks the first one speaks.
    """
    try:
        yield
    except StoppedError as stop:
        if os.environ.get("RANK", "0") == "0":
            print(f"{stop}; {advice}", file=sys.stderr)
        raise typer.Exit(stop.exit_code) from None
