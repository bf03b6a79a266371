"""What goes wrong with the numbers of one file costs that file only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from radweave.base.errors import InputError


@contextmanager
def one_file(path: Path) -> Iterator[None]:
    """Turn arithmetic that fails on a file's values into a refusal of that file, and keep NumPy from printing.

    A header can hold any number: what overflows, or fits no array, is the file's fault and must not end a batch.

    Raises:
        InputError: for what the block raises itself, and for arithmetic and value errors in it.
    """
    try:
        with np.errstate(all="ignore"):
            yield
    except InputError:
        raise
    except (ArithmeticError, ValueError, IndexError, MemoryError) as error:
        raise InputError(f"its values cannot be used: {type(error).__name__}", file=path) from error
