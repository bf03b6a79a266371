"""What a page holds for its viewer: the values themselves, smaller where they are too many, and maps where they lie."""

from __future__ import annotations

import base64
import json
import zlib

import numpy as np
import pytest

from radweave.core.map_kinds import UNKNOWN
from radweave.data.square import covered_by_square
from radweave.inference.explain import page
from radweave.inference.explain.maps import RadiographSubject, ScanSubject
from radweave.inference.explain.page import Embedded, embed, stored_of
from radweave.io.viewer import Read


def words_of(result: Embedded, name: str) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(result.blocks[name])), "<u2")


def radiograph(pixels: np.ndarray, stored: Read | None = None) -> RadiographSubject:
    return RadiographSubject("View 1", pixels.astype(np.float32), 64, "PA", stored)


def shown(*subjects: RadiographSubject | ScanSubject, **maps: list[np.ndarray]) -> tuple[Embedded, dict[str, object]]:
    result = embed(subjects, ["</script><b>.png"], maps, UNKNOWN, "toy")
    assert result is not None
    assert "<" not in result.about, "JSON in a page must not end its element"
    return result, json.loads(result.about)


def test_all_grey_levels_of_a_file_are_embedded() -> None:
    words = np.arange(40 * 60, dtype=np.uint16).reshape(40, 60)
    read = Read(words, {**stored_of(words / 4095.0).about, "rows": 40, "columns": 60})
    result, about = shown(radiograph(np.zeros((40, 60)), read))
    np.testing.assert_array_equal(words_of(result, "words-0"), words.ravel())
    assert about["images"][0]["file"] == "</script><b>.png"
    assert (about["images"][0]["rows"], about["images"][0]["columns"]) == (40, 60)


def test_an_image_without_a_file_has_the_grey_values_that_were_read() -> None:
    pixels = np.linspace(0, 1, 32 * 48).reshape(32, 48)
    result, about = shown(radiograph(pixels))
    one = about["images"][0]
    values = (words_of(result, "words-0") + one["first"]) * one["slope"] + one["intercept"]
    np.testing.assert_allclose(values, pixels.ravel(), atol=1e-5)
    assert one["presets"][-1]["width"] == 1.0


def test_a_large_image_is_halved_with_its_padding_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_PIXELS", 16)
    words = np.array([[8, 10, 1, 1, 7], [10, 12, 1, 1, 7], [9, 9, 65535, 3, 5]], dtype=np.uint16)
    read = Read(words, {**stored_of(np.zeros((3, 5), np.float32)).about, "padding": 65535, "rows": 3, "columns": 5})
    monkeypatch.setattr(page, "MOST_PIXELS", 8)
    result, about = shown(radiograph(np.zeros((3, 5)), read))
    assert words_of(result, "words-0").reshape(2, 3).tolist() == [[10, 1, 7], [9, 65535, 5]]
    assert about["images"][0]["file"].endswith("at 1/2 of its size")
    assert (about["images"][0]["rows"], about["images"][0]["columns"]) == (2, 3)


def test_a_map_lies_over_the_square_that_the_model_saw() -> None:
    weights = np.zeros((4, 4))
    weights[1, 2] = 0.5
    _, about = shown(radiograph(np.zeros((50, 80))), Edema=[weights])
    (grid,) = about["maps"]["Edema"]["grids"]
    assert grid["covers"] == [list(axis) for axis in covered_by_square(50, 80, 64)]
    assert np.reshape(grid["values"], grid["shape"]).tolist()[1] == [0, 0, 255, 0]
    assert about["maps"]["Edema"]["note"] == UNKNOWN.note


def test_a_scan_has_its_hounsfield_units_and_windows() -> None:
    hu = np.random.default_rng(0).integers(-1000, 1000, (6, 8, 10)).astype(np.int16)
    scan = ScanSubject("CT", np.zeros(hu.shape, np.float32), (2.0, 1.0, 1.0), hu)
    result, about = shown(scan, Edema=[np.ones((2, 2, 2))])
    restored = words_of(result, "words-scan").astype(int) + about["scan"]["first"]
    np.testing.assert_array_equal(restored.reshape(about["scan"]["shape"]), hu)
    assert [preset["name"] for preset in about["scan"]["presets"]][:3] == ["lung", "mediastinum", "bone"]
    assert about["maps"]["Edema"]["shape"] == [2, 2, 2]


def test_a_large_scan_is_halved_along_its_longest_axis_and_keeps_its_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_VOXELS", 2 * 4 * 4)
    hu = np.arange(2 * 4 * 9, dtype=np.int16).reshape(2, 4, 9)
    _, about = shown(ScanSubject("CT", np.zeros(hu.shape, np.float32), (3.0, 1.0, 0.5), hu))
    assert about["scan"]["shape"] == [2, 4, 4]
    assert about["scan"]["spacing_mm"] == [3.0, 1.0, 1.0]


def test_no_image_no_viewer() -> None:
    assert embed([], [], {}, UNKNOWN, "toy") is None
