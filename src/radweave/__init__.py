"""Radweave: from chest images to radiology reports, with evidence. Research software, not a medical device."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from radweave.generate.predictor import Predictor

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def load(run: Path | str, *, untrained: bool = False, decoding: Sequence[str] = ()) -> Predictor:
    """Open a run folder for reporting: ``radweave.load(RUN).report(["chest.dcm"])``.

    Args:
        run: the run folder, or an exported one.
        untrained: let a run report whose weights were never trained; each report then says so.
        decoding: overrides of the run's decoding options, such as ``["num_beams=3"]``.

    Raises:
        InputError: if the run cannot be restored or an option does not exist.
    """
    from pathlib import Path

    from radweave.generate.predictor import Predictor
    from radweave.runs.restore import restore

    return Predictor.of(restore(Path(run)), untrained=untrained, decoding=decoding)
