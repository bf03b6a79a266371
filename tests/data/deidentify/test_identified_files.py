"""Identifiers planted in every place of files of all kinds: none is left, and no pixel is another."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from pydicom import dcmread

from radweave.data.deidentify.folder import deidentify_file
from radweave.data.deidentify.key import Key
from tests.identified_files import PLACES, decoded, left, make

KEY = Key(b"k" * 32)


@pytest.mark.parametrize("files", [36, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_planted_identifier_survives_and_no_pixel_changes(tmp_path: Path, files: int) -> None:
    places: set[str] = set()
    planted = 0
    for number in range(files):
        made = make(tmp_path, number)
        before = left(made.path.read_bytes())
        assert before  # the search finds what is there
        planted += len(before)
        data = deidentify_file(made.path, KEY, burned_in=True).data  # some are secondary captures
        assert left(data) == [], (number, made.places)
        assert np.array_equal(decoded(dcmread(io.BytesIO(data))), made.pixels), (number, made.places)
        places |= set(made.places)
    assert len(places) >= len(PLACES) > 40
    assert planted > 15 * files
