"""CT preprocessing, its presets and its cache."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from radweave.core.config import override
from radweave.core.errors import InputError
from radweave.data.cache import ct as ct_cache
from radweave.data.cache.arrays import TRIES
from radweave.data.cache.ct import CtCache
from radweave.data.ct import (
    CT2REP,
    CT_CLIP,
    PRESETS,
    REG2RG,
    CtPreprocessing,
    covered,
    crop_box,
    crop_or_pad,
    preprocess,
    resize_linear,
    to_unit,
)
from radweave.io.volumes import Geometry, Volume
from tests.image_files import edit, thorax_hu, write_series


def volume(hu: np.ndarray, spacing_mm: tuple[float, float, float] = (2.0, 1.5, 1.25)) -> Volume:
    geometry = Geometry(spacing_mm[::-1], (0.0, 0.0, 0.0), (1, 0, 0, 0, 1, 0, 0, 0, 1))
    return Volume(hu.astype(np.int16), spacing_mm, geometry, "nifti", ())


@pytest.mark.parametrize(("name", "size"), [("ct-clip", (240, 480, 480)), ("ct2rep", (240, 480, 480)),
                                            ("reg2rg", (64, 256, 256))])  # fmt: skip
def test_presets_give_the_published_shape_and_range(name: str, size: tuple[int, int, int]) -> None:
    hu = preprocess(volume(thorax_hu()), PRESETS[name])
    unit = to_unit(hu, PRESETS[name])
    assert hu.shape == size
    assert hu.dtype == np.int16
    assert (float(unit.min()), float(unit.max())) == (-1.0, pytest.approx(1.0, abs=0.5))
    assert unit.dtype == np.float32


def test_windows_are_the_published_formulas() -> None:
    hu = np.array([-2000, -1000, -400, 0, 200, 1000, 3000], dtype=np.int16)
    np.testing.assert_allclose(to_unit(np.clip(hu, -1000, 1000), CT_CLIP), np.clip(hu, -1000, 1000) / 1000, atol=1e-6)
    for options in (CT2REP, REG2RG):
        expected = (np.clip(hu, -1000, 200) + 400) / 600
        np.testing.assert_allclose(to_unit(np.clip(hu, -1000, 200), options), expected, atol=1e-6)


@pytest.mark.parametrize("size", [(12, 30, 36), (48, 90, 20), (24, 40, 48), (1, 1, 1)])
def test_resize_equals_scipy(size: tuple[int, int, int]) -> None:
    """Against scipy's first-order spline with half-voxel centres."""
    hu = thorax_hu()
    factors = [new / old for new, old in zip(size, hu.shape, strict=True)]
    expected = ndimage.zoom(hu.astype(float), factors, order=1, mode="nearest", grid_mode=True)
    assert expected.shape == size
    # Rounding to whole HU is half; float32 in between adds far less.
    np.testing.assert_allclose(resize_linear(hu, size), expected, atol=0.51)


def test_resampling_keeps_positions() -> None:
    hu = preprocess(volume(thorax_hu()), CtPreprocessing(spacing_mm=(1.0, 1.0, 1.0)))
    assert hu.shape == (48, 60, 60)
    # The interpolated volume has the same mean, but for its edges, which are air with a noise of 8 HU.
    assert float(hu.mean()) == pytest.approx(float(thorax_hu().mean()), abs=4)
    assert abs(int(hu[24, 30, 30]) - int(thorax_hu()[12, 20, 24])) < 40
    assert hu[0, 0, 0] < -900


def test_crops() -> None:
    hu = np.full((10, 20, 30), -1000, dtype=np.int16)
    hu[3:7, 5:15, 8:22] = 40
    hu[0, 0, 29] = -300
    foreground = CtPreprocessing(crop="foreground")
    assert crop_box(hu, foreground) == (slice(0, 7), slice(0, 15), slice(8, 30))
    body = crop_box(hu, CtPreprocessing(crop="body"))
    # The part is side on every second voxel, so the box may be one voxel off.
    for side, (low, high) in zip(body, ((3, 7), (5, 15), (8, 22)), strict=True):
        assert abs(side.start - low) <= 1
        assert abs(side.stop - high) <= 1
    assert preprocess(volume(np.full((4, 4, 4), -1000)), foreground).shape == (4, 4, 4)


def test_crop_or_pad_is_centred() -> None:
    hu = np.arange(27, dtype=np.int16).reshape(3, 3, 3)
    padded = crop_or_pad(hu, (5, 1, 4), -7)
    assert padded.shape == (5, 1, 4)
    np.testing.assert_array_equal(padded[1:4, 0, :3], hu[:, 1, :])
    assert (padded[0] == -7).all()
    assert (padded[:, :, 3] == -7).all()


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="window_hu"):
        CtPreprocessing(window_hu=(200, -1000))
    with pytest.raises(InputError, match="has no field 'windw'"):
        override(CT_CLIP, ["windw=3"])
    assert override(CT_CLIP, ["window_hu=[-1000,200]"]) == CT2REP


@pytest.mark.parametrize("depth", ["int16", "uint8"])
def test_cache(tmp_path: Path, depth: ct_cache.Depth, monkeypatch: pytest.MonkeyPatch) -> None:
    write_series(tmp_path / "s")
    options = CtPreprocessing(size=(16, 32, 32), fit="resize", window_hu=(-1000, 200))
    cache = CtCache(tmp_path / "cache", options, depth=depth)
    first = cache.get(tmp_path / "s")
    assert isinstance(first, np.memmap)
    assert first.dtype.name == depth
    monkeypatch.setattr(ct_cache, "read_volume", lambda path: pytest.fail("read again"))
    second = cache.get(tmp_path / "s")
    np.testing.assert_array_equal(first, second)
    monkeypatch.undo()
    exact = to_unit(preprocess(ct_cache.read_volume(tmp_path / "s"), options), options)
    # A window of 1200 HU in 256 steps is off by half a step at most.
    np.testing.assert_allclose(cache.unit(first), exact, atol=1.01 / 255 if depth == "uint8" else 1e-6)


def test_cache_key_follows_content_and_options(tmp_path: Path) -> None:
    paths = write_series(tmp_path / "s")
    options = CtPreprocessing(size=(8, 8, 8), fit="resize")
    cache = CtCache(tmp_path / "cache", options)
    place = cache.path_of(tmp_path / "s")
    assert place != CtCache(tmp_path / "cache", options, depth="uint8").path_of(tmp_path / "s")
    other = options.model_copy(update={"crop": "body"})
    assert place != CtCache(tmp_path / "cache", other).path_of(tmp_path / "s")
    paths[0].rename(tmp_path / "s" / "renamed.dcm")
    assert place == cache.path_of(tmp_path / "s")
    edit(tmp_path / "s" / "renamed.dcm", RescaleIntercept=-1000)
    assert place != cache.path_of(tmp_path / "s")


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:200], lambda data: data[:-32], lambda data: data[:-40] + bytes([data[-40] ^ 1]) + data[-39:]],
    ids=["cut", "without its sum", "a bit changed"],
)
def test_a_damaged_cache_file_is_made_anew(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    write_series(tmp_path / "s")
    cache = CtCache(tmp_path / "cache", CtPreprocessing(size=(8, 8, 8), fit="resize"))
    whole = np.array(cache.get(tmp_path / "s"))
    place = cache.path_of(tmp_path / "s")
    place.write_bytes(damage(place.read_bytes()))
    np.testing.assert_array_equal(cache.get(tmp_path / "s"), whole)


def test_two_writers_leave_one_whole_file(tmp_path: Path) -> None:
    write_series(tmp_path / "s")
    cache = CtCache(tmp_path / "cache", CtPreprocessing(size=(8, 8, 8), fit="resize"))
    threads = [threading.Thread(target=cache.get, args=(tmp_path / "s",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    files = [name for _, _, names in os.walk(tmp_path / "cache") for name in names]
    assert files == [cache.path_of(tmp_path / "s").name]


@pytest.mark.parametrize("is_put_back", [False, True])
@pytest.mark.parametrize("times", [1, 2, 99])
def test_a_file_that_is_replaced_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, is_put_back: bool
) -> None:
    """No pixels lie under the hash of another file, and a file that is never at rest is refused."""
    plane = write_series(tmp_path / "s")[1]  # of three slices the one in the middle is seen
    first = plane.read_bytes()
    options = CtPreprocessing(size=(8, 8, 8), fit="resize")
    cache, prepare, replaced = CtCache(tmp_path / "cache", options), CtCache.prepare, [0]

    def while_replaced(self: CtCache, path: Path) -> NDArray[np.int16] | NDArray[np.uint8]:
        if replaced[0] == times:
            return prepare(self, path)
        replaced[0] += 1
        edit(plane, RescaleIntercept=-100 * replaced[0])
        scan = prepare(self, path)
        if is_put_back:
            plane.write_bytes(first)
        return scan

    with monkeypatch.context() as patch:
        patch.setattr(CtCache, "prepare", while_replaced)
        if times > TRIES:
            with pytest.raises(InputError, match="changes while it is read"):
                cache.get(tmp_path / "s")
            assert replaced == [TRIES]
            assert not list((tmp_path / "cache").rglob("*.npy"))
        else:
            np.testing.assert_array_equal(cache.get(tmp_path / "s"), cache.prepare(tmp_path / "s"))
    plane.write_bytes(first)
    np.testing.assert_array_equal(cache.get(tmp_path / "s"), cache.prepare(tmp_path / "s"))


def test_nothing_is_cached_of_a_scan_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.nii").write_text("no volume")
    with pytest.raises(InputError):
        CtCache(tmp_path / "cache", CT_CLIP).get(tmp_path / "a.nii")
    assert not list((tmp_path / "cache").rglob("*.npy"))


@pytest.mark.parametrize(
    "options",
    [
        CtPreprocessing(size=(30, 20, 80)),
        CtPreprocessing(spacing_mm=(1.0, 1.5, 1.0), size=(20, 60, 33)),
        CtPreprocessing(crop="foreground", size=(16, 32, 32), fit="resize"),
        CtPreprocessing(crop="body", spacing_mm=(2.0, 1.0, 2.0), size=(16, 50, 20)),
        CtPreprocessing(),
    ],
)
def test_the_covered_extent_matches_a_bright_block(options: CtPreprocessing) -> None:
    """A block is as far along what the model sees as it is along the covered part of the scan."""
    hu = np.full((24, 40, 48), -1000, np.int16)
    hu[2:22, 4:36, 6:40] = 0
    hu[10:13, 16:22, 30:36] = 900
    scan = volume(hu)
    scan_out = preprocess(scan, options)
    for axis, (start, extent) in enumerate(covered(scan, options)):
        others = tuple(other for other in range(3) if other != axis)
        before, after = (np.flatnonzero((values > 450).any(axis=others)).mean() + 0.5 for values in (hu, scan_out))
        share = (before / hu.shape[axis] - start) / extent
        assert after / scan_out.shape[axis] == pytest.approx(share, abs=1.0 / scan_out.shape[axis])
