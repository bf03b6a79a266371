"""Damaged image files of every format: refused, doubted or read as they were. ``make fuzz`` is the long form."""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radweave.core.errors import InputError
from radweave.io.inspect import inspect
from tests.damaged_files import ODD_WORDS, Format, damaged_copies, image_formats

CHECKSUMMED = ("PNG", "NIfTI .nii.gz")
"""Whole files under a checksum: no damage may change what is read."""


@pytest.fixture(scope="module")
def formats(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Format]:
    return image_formats(tmp_path_factory.mktemp("formats"))


@given(seed=st.integers(0, 2**32))
@settings(max_examples=12, deadline=None)
def test_a_damaged_image_never_ends_the_reader(
    formats: dict[str, Format], tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """``InputError`` alone may come out, NumPy says nothing, and ``inspect`` gives a record for each file."""
    folder = tmp_path_factory.mktemp("damaged")
    for name, form in formats.items():
        [data] = damaged_copies(form.whole.read_bytes(), random.Random(f"{seed} {name}"), 1)
        path = folder / form.whole.name
        path.write_bytes(data)
        message = ""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            [record] = inspect(path)
            try:
                form.look(path)
            except InputError as error:
                message = str(error)
        assert message.isprintable()
        assert record.accepted or record.reason


@pytest.mark.parametrize("name", CHECKSUMMED)
def test_damage_under_a_checksum_never_passes(formats: dict[str, Format], tmp_path: Path, name: str) -> None:
    form = formats[name]
    path, (truth, _) = tmp_path / form.whole.name, form.look(form.whole)
    for data in damaged_copies(form.whole.read_bytes(), random.Random(5), 100):
        path.write_bytes(data)
        try:
            result, doubted = form.look(path)
        except InputError:
            continue
        assert doubted or result == truth


def test_damage_is_reproducible_and_leaves_originals() -> None:
    whole = bytes(range(256)) * 4
    first, second = (list(damaged_copies(whole, random.Random(3), 200, is_text=True)) for _ in range(2))
    assert first == second
    assert sum(data != whole for data in first) > 150
    assert len(set(ODD_WORDS)) == len(ODD_WORDS)
