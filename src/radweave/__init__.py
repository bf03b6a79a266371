"""Radweave: from chest images to radiology reports, with evidence. Research software, not a medical device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from radweave.generate.predictor import Predictor

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def load(run: Path | str, **options: Any) -> Predictor:
    """Open a run folder for reporting: ``radweave.load(RUN).report(["chest.dcm"])``.

    See ``radweave.runs.restore.load`` for the options.
    """
    from radweave.generate.predictor import load as load_run

    return load_run(run, **options)
