"""Volumes of all formats, and their decompression."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import zlib
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import nrrd
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from radweave.core.errors import InputError
from radweave.io.dicom import DOUBTFUL
from radweave.io.volume_parse import (
    MAX_EMPTY_MEMBERS,
    MAX_PADDING_BYTES,
    GzipStream,
    bunzip_exactly,
    inflate_exactly,
    read_to_end,
)
from radweave.io.volumes import (
    Geometry,
    StoredVolume,
    chest_warnings,
    read_stored,
    read_volume,
    to_standard,
    value_warnings,
)
from tests.image_files import edit, thorax_hu, write_metaimage, write_series

SPACING = (1.25, 1.5, 2.0)
ORIGIN_LPS = np.array([-30.0, -40.0, -100.0])


def write_nifti(path: Path, hu: np.ndarray, affine_ras: np.ndarray | None = None, **header: object) -> Path:
    """``hu`` is (z, y, x); the default affine is that of ``write_series``, turned into RAS."""
    if affine_ras is None:
        affine_ras = np.diag([-SPACING[0], -SPACING[1], SPACING[2], 1.0])
        affine_ras[:3, 3] = ORIGIN_LPS * [-1, -1, 1]
    image = nib.Nifti1Image(np.ascontiguousarray(hu.T), affine_ras)
    for name, value in header.items():
        image.header[name] = value
    nib.save(image, path)
    return path


def test_all_formats_give_the_same_volume(tmp_path: Path) -> None:
    hu = thorax_hu()
    write_series(tmp_path / "series", hu)
    write_nifti(tmp_path / "a.nii.gz", hu)
    write_nifti(tmp_path / "b.nii", hu)
    header = {"space": "left-posterior-superior", "space directions": np.diag(SPACING), "space origin": ORIGIN_LPS}
    nrrd.write(str(tmp_path / "c.nrrd"), np.ascontiguousarray(hu.T), header)
    stated = {"offset": " ".join(str(v) for v in ORIGIN_LPS), "spacing": " ".join(str(v) for v in SPACING)}
    write_metaimage(tmp_path / "d.mha", hu, **stated)
    write_metaimage(tmp_path / "e.mha", hu, compressed=True, big_endian=True, **stated)
    write_metaimage(tmp_path / "f.mhd", hu, **stated)
    for name in ("series", "a.nii.gz", "b.nii", "c.nrrd", "d.mha", "e.mha", "f.mhd"):
        volume = read_volume(tmp_path / name)
        np.testing.assert_array_equal(volume.hu, hu, err_msg=name)
        assert volume.spacing_mm == pytest.approx((2.0, 1.5, 1.25)), name
        assert volume.geometry.origin_lps == pytest.approx(tuple(ORIGIN_LPS)), name
        assert volume.geometry.direction == pytest.approx((1, 0, 0, 0, 1, 0, 0, 0, 1)), name
        assert volume.warnings == (), name


@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u2", "i4", "f4", "f8"])
@pytest.mark.parametrize("big_endian", [True, False])
def test_types_and_byte_orders_of_metaimage(tmp_path: Path, kind: str, big_endian: bool) -> None:
    values = (np.arange(60).reshape(3, 4, 5) - (0 if kind[0] == "u" else 30)).astype(kind)
    path = write_metaimage(tmp_path / "a.mha", values, big_endian=big_endian)
    for order in ("BinaryDataByteOrderMSB", "ElementByteOrderMSB"):
        path.write_bytes(path.read_bytes().replace(b"BinaryDataByteOrderMSB", order.encode()))
        loaded = read_stored(path)
        np.testing.assert_array_equal(loaded.values, values)
        assert loaded.values.dtype == np.dtype(kind)
        assert loaded.source == "metaimage"


def test_metaimage_direction_is_by_axis(tmp_path: Path) -> None:
    """Three numbers of TransformMatrix are one axis: here x runs to the back, y to the head, z to the left."""
    hu = thorax_hu(6, 8, 10)
    path = write_metaimage(tmp_path / "a.mha", hu, matrix="0 1 0 0 0 1 1 0 0", offset="5 6 7", spacing="1 2 3")
    volume = read_stored(path)
    np.testing.assert_array_equal(volume.geometry.matrix(), [[0, 0, 1], [1, 0, 0], [0, 1, 0]])
    assert volume.geometry.spacing_xyz_mm == (1, 2, 3)
    assert volume.geometry.origin_lps == (5, 6, 7)
    turned = read_volume(path)
    np.testing.assert_array_equal(turned.hu, hu.transpose(1, 2, 0))
    assert turned.spacing_mm == (2, 1, 3)


@pytest.mark.parametrize(
    ("sform", "qform", "of_qform", "origin", "warning"),
    [
        (1, 0, 9.0, 7.0, None),
        (0, 1, 9.0, 9.0, None),
        (1, 1, 7.0, 7.0, None),
        (1, 1, 9.0, 7.0, "sform and qform disagree"),
        (0, 0, 9.0, 0.0, "states no orientation"),
    ],
)
def test_a_nifti_s_sform_goes_before_its_qform(
    tmp_path: Path, sform: int, qform: int, of_qform: float, origin: float, warning: str | None
) -> None:
    """A form that is not in use is not compared with the other one."""
    header, affine, values = nib.Nifti1Header(), np.diag([1.0, 1.5, 2.0, 1.0]), np.ascontiguousarray(thorax_hu().T)
    for place, code, write in ((of_qform, qform, header.set_qform), (7.0, sform, header.set_sform)):
        affine[2, 3] = place
        write(affine, code=code)
    nib.save(nib.Nifti1Image(values, None, header), tmp_path / "a.nii")
    volume = read_stored(tmp_path / "a.nii")
    assert volume.geometry.origin_lps[2] == origin
    assert [text for text in volume.warnings if warning is None or warning not in text] == []
    assert len(volume.warnings) == (warning is not None)


def test_a_metaimage_without_orientation_has_a_warning(tmp_path: Path) -> None:
    path = write_metaimage(tmp_path / "a.mha", thorax_hu(6, 8, 10))
    path.write_bytes(path.read_bytes().replace(b"TransformMatrix = 1 0 0 0 1 0 0 0 1\n", b""))
    assert any("no orientation" in text for text in read_volume(path).warnings)


def test_a_detached_metaimage_may_skip_a_header(tmp_path: Path) -> None:
    hu = thorax_hu(6, 8, 10)
    path = write_metaimage(tmp_path / "a.mhd", hu)
    raw = tmp_path / "a.raw"
    raw.write_bytes(b"notes" + raw.read_bytes())
    for skip in (5, -1):
        path.write_bytes(
            path.read_bytes().replace(b"ElementDataFile", f"HeaderSize = {skip}\nElementDataFile".encode())
        )
        np.testing.assert_array_equal(read_stored(path).values, hu)
        write_metaimage(path, hu)
        raw.write_bytes(b"notes" + raw.read_bytes())


def stored(values: np.ndarray, direction: np.ndarray, origin: np.ndarray, spacing: tuple[float, ...]) -> StoredVolume:
    geometry = Geometry((spacing[0], spacing[1], spacing[2]), tuple(origin), tuple(direction.reshape(-1)))  # type: ignore[arg-type]
    return StoredVolume(values, geometry, "nifti", None, ())


def world(volume_geometry: Geometry, index_xyz: np.ndarray) -> np.ndarray:
    columns = volume_geometry.matrix() * np.array(volume_geometry.spacing_xyz_mm)
    return np.asarray(columns @ index_xyz + np.array(volume_geometry.origin_lps))


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_orientation_keeps_voxel_positions(data: st.DataObject) -> None:
    """Permuted, mirrored and tilted axes, left-handed ones too: each value stays at its point in the patient."""
    order = data.draw(st.permutations([0, 1, 2]))
    signs = data.draw(st.tuples(*[st.sampled_from([-1.0, 1.0])] * 3))
    angle = data.draw(st.floats(-0.5, 0.5))
    tilt = np.array([[1, 0, 0], [0, np.cos(angle), -np.sin(angle)], [0, np.sin(angle), np.cos(angle)]])
    direction = tilt @ np.eye(3)[:, order] * np.array(signs)
    shape = (3, 4, 5)
    values = np.arange(60, dtype=np.int16).reshape(shape)
    spacing = (0.7, 1.3, 2.9)
    before = stored(values, direction, np.array([3.0, -7.0, 11.0]), spacing)
    after = to_standard(before, Path("x"))
    assert np.all(np.diag(after.geometry.matrix()) > 0.8)
    for x, y, z in itertools.product(*(range(n) for n in after.hu.shape[::-1])):
        point = world(after.geometry, np.array([x, y, z]))
        old = np.linalg.solve(
            before.geometry.matrix() * np.array(spacing), point - np.array(before.geometry.origin_lps)
        )
        i, j, k = np.rint(old).astype(int)
        np.testing.assert_allclose(old, [i, j, k], atol=1e-6)
        assert values[k, j, i] == after.hu[z, y, x]


def test_oblique_is_warned_about(tmp_path: Path) -> None:
    angle = np.radians(12)
    affine = np.diag([-1.0, -1.0, 1.0, 1.0])
    turn = np.eye(4)
    turn[1:3, 1:3] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    volume = read_volume(write_nifti(tmp_path / "a.nii", thorax_hu(), turn @ affine))
    assert any("oblique" in text and "12.0 degrees" in text for text in volume.warnings)


def nifti_with_scale(path: Path, stored: NDArray[np.int16], slope: float, intercept: float) -> Path:
    """Nibabel drops slope and intercept when it saves integers itself."""
    image = nib.Nifti1Image(np.ascontiguousarray(stored.T), np.eye(4))
    image.header["scl_slope"], image.header["scl_inter"] = slope, intercept
    image.header["vox_offset"], image.header["magic"] = 352, b"n+1"
    with path.open("wb") as file:
        image.header.write_to(file)
        file.write(np.asarray(image.dataobj).tobytes(order="F"))
    return path


def test_slope_and_intercept_of_nifti(tmp_path: Path) -> None:
    hu = thorax_hu()
    loaded = read_stored(nifti_with_scale(tmp_path / "a.nii", (hu + 1024).astype(np.int16), 1, -1024))
    np.testing.assert_array_equal(loaded.values, hu)
    assert loaded.values.dtype == np.int16
    halves = read_stored(nifti_with_scale(tmp_path / "b.nii", (2 * hu + 2048).astype(np.int16), 0.5, -1024))
    np.testing.assert_array_equal(halves.values, hu)
    plain = read_stored(nifti_with_scale(tmp_path / "c.nii", hu.astype(np.int16), 0, 0))
    np.testing.assert_array_equal(plain.values, hu)
    assert not any("scl_slope" in text for text in plain.warnings)


@pytest.mark.parametrize(
    ("slope", "intercept", "refusal"),
    [
        (1e-30, 0, "to 6.29e-28"),
        (1e-30, -1024, "-1024 to -1024"),
        (1e-5, 0, "to 0.00629"),
        (-1, 0, "slope"),
        (1e30, 0, "1e+30"),
    ],
)
def test_a_slope_without_hounsfield_units_is_refused(
    tmp_path: Path, slope: float, intercept: float, refusal: str
) -> None:
    with pytest.raises(InputError) as refused:
        read_volume(nifti_with_scale(tmp_path / "a.nii", thorax_hu().astype(np.int16), slope, intercept))
    assert refusal in str(refused.value)


@pytest.mark.parametrize(("slope", "intercept"), [(0, -1024), (float("nan"), 0)])
def test_an_unusable_scale_has_a_doubt(tmp_path: Path, slope: float, intercept: float) -> None:
    volume = read_volume(nifti_with_scale(tmp_path / "a.nii", thorax_hu().astype(np.int16), slope, intercept))
    (doubt,) = (text for text in volume.warnings if text.startswith(DOUBTFUL))
    assert f"{slope:g}" in doubt
    assert f"{intercept:g}" in doubt


def test_a_nifti_without_orientation_has_a_warning(tmp_path: Path) -> None:
    image = nib.Nifti1Image(np.ascontiguousarray(thorax_hu().T), None)
    image.header.set_zooms((1.0, 2.0, 3.0))
    nib.save(image, tmp_path / "a.nii")
    volume = read_volume(tmp_path / "a.nii")
    assert volume.spacing_mm == (3.0, 2.0, 1.0)
    assert any("no orientation" in text for text in volume.warnings)


def test_padding_outside_the_field_becomes_air(tmp_path: Path) -> None:
    hu = thorax_hu().astype(np.int16)
    hu[:, :3, :3] = -2000
    volume = read_volume(write_nifti(tmp_path / "a.nii", hu))
    assert volume.hu.min() == -1024
    assert read_stored(tmp_path / "a.nii").values.min() == -2000


@pytest.mark.parametrize("order", ["reversed", "shuffled"])
def test_the_order_of_files_does_not_matter(tmp_path: Path, order: str) -> None:
    hu = thorax_hu(12)
    paths = write_series(tmp_path / "s", hu)
    names = list(reversed(range(12))) if order == "reversed" else np.random.default_rng(0).permutation(12).tolist()
    for index, path in zip(names, paths, strict=True):
        edit(path, InstanceNumber=int(index) + 1)
        path.rename(tmp_path / "s" / f"{index:02d}.dcm")
    np.testing.assert_array_equal(read_volume(tmp_path / "s").hu, hu)


def test_a_series_from_head_to_feet(tmp_path: Path) -> None:
    """Columns pointing to the front make the normal point to the feet."""
    hu = thorax_hu(10)
    paths = write_series(tmp_path / "s", hu[:, ::-1])
    for path in paths:
        place = [float(v) for v in _tag(path, "ImagePositionPatient")]
        place[1] += 1.5 * (hu.shape[1] - 1)
        edit(path, ImageOrientationPatient=[1, 0, 0, 0, -1, 0], ImagePositionPatient=place)
    stored_volume = read_stored(tmp_path / "s")
    assert stored_volume.geometry.direction[8] == -1
    np.testing.assert_array_equal(read_volume(tmp_path / "s").hu, hu)


def _tag(path: Path, name: str) -> list[float]:
    from pydicom import dcmread

    return list(getattr(dcmread(path), name))


def test_slopes_may_differ_between_slices(tmp_path: Path) -> None:
    hu = thorax_hu(6)
    paths = write_series(tmp_path / "s", hu)
    edit(paths[2], RescaleIntercept=-924)
    volume = read_volume(tmp_path / "s")
    np.testing.assert_array_equal(volume.hu[2], hu[2] + 100)
    np.testing.assert_array_equal(volume.hu[3], hu[3])


@pytest.mark.parametrize(("shift", "word"), [(1024, "never"), (-1024, "twice")])
def test_wrong_hu_are_detected(shift: int, word: str) -> None:
    hu = thorax_hu().astype(np.int32)
    assert value_warnings(hu) == []
    assert any(word in text for text in value_warnings(hu + shift))
    padded = hu.copy()
    padded[:, :4, :4] = -2048
    assert value_warnings(padded) == []
    assert any(word in text for text in value_warnings(padded + shift))


def test_values_other_than_ct_have_warnings() -> None:
    labels = (thorax_hu() > -500).astype(np.uint8) * 3
    assert any("label map" in text for text in value_warnings(labels))
    assert any("no air" in text for text in value_warnings(np.random.default_rng(0).integers(0, 500, (9, 9, 9))))


def test_chest_warnings(tmp_path: Path) -> None:
    hu = thorax_hu(60)
    life_size = np.diag([-7.0, -7.0, 5.0, 1.0])
    belly = hu.copy()
    belly[(hu < -600) & (hu > -930)] = 50
    for name, values, word in (
        ("chest", hu, None),
        ("belly", belly, "not a chest"),
        ("crop", hu[:, 12:28, 10:38], "cropped"),
        ("short", hu[:10], "short"),
    ):
        warnings = chest_warnings(read_volume(write_nifti(tmp_path / f"{name}.nii", values, life_size)))
        assert [text.split(":")[0] for text in warnings] == ([word] if word else []), name


def test_a_scan_of_wide_voxels_is_not_judged(tmp_path: Path) -> None:
    belly = thorax_hu(60)
    belly[(belly < -600) & (belly > -930)] = 50
    for width, word in ((9.0, "not a chest"), (11.0, "not tested whether it shows a chest")):
        scan = read_volume(write_nifti(tmp_path / f"{width}.nii", belly, np.diag([-width, -width, 5.0, 1.0])))
        assert [text.split(":")[0] for text in chest_warnings(scan)] == [word]


def test_an_image_is_no_volume(tmp_path: Path) -> None:
    paths = write_series(tmp_path / "s")
    with pytest.raises(InputError, match="give the folder"):
        read_volume(paths[0])


@pytest.mark.parametrize("kind", ["a.mha", "a.nrrd", "a.nii.gz"])
def test_data_behind_compressed_voxels_is_doubted_except_padding(tmp_path: Path, kind: str) -> None:
    hu, path = thorax_hu().astype(np.int16), tmp_path / kind
    if kind == "a.mha":
        write_metaimage(path, hu, compressed=True)
    elif kind == "a.nrrd":
        nrrd.write(str(path), hu.T, {"encoding": "gzip", "spacings": [1.0, 1.0, 1.0]})
    else:
        write_nifti(path, hu)
    whole, plain = path.read_bytes(), read_volume(path)
    path.write_bytes(whole + bytes(300))
    assert read_volume(path).warnings == plain.warnings
    path.write_bytes(whole + b"more")
    assert [text for text in read_volume(path).warnings if text.startswith(DOUBTFUL)]


PACKERS: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes, int], tuple[bytes, int]]]] = {
    "zlib": (zlib.compress, inflate_exactly),
    "gzip": (gzip.compress, inflate_exactly),
    "bzip2": (bz2.compress, bunzip_exactly),
}


@pytest.mark.parametrize("kind", PACKERS)
@given(plain=st.binary(min_size=1, max_size=400))
def test_inflate_returns_the_requested_bytes(kind: str, plain: bytes) -> None:
    pack, unpack = PACKERS[kind]
    assert unpack(pack(plain), len(plain)) == (plain, 0)
    assert unpack(pack(plain) + bytes(9), len(plain)) == (plain, 0), "padding"
    assert unpack(pack(plain) + b"rest", len(plain)) == (plain, 4)
    for need, message in ((len(plain) + 1, "fewer"), (len(plain) - 1, "more")):
        with pytest.raises(InputError, match=message):
            unpack(pack(plain), need)


@pytest.mark.parametrize("kind", PACKERS)
def test_each_missing_byte_is_detected(kind: str) -> None:
    pack, unpack = PACKERS[kind]
    plain = bytes(range(256)) * 8
    packed = pack(plain)
    for length in range(len(packed)):
        with pytest.raises(InputError):
            unpack(packed[:length], len(plain))


def test_gzip_members_are_concatenated() -> None:
    packed = gzip.compress(b"abc") + gzip.compress(b"defg")
    assert inflate_exactly(packed, 7) == (b"abcdefg", 0)
    with pytest.raises(InputError, match="more"):
        inflate_exactly(packed, 5)
    with pytest.raises(InputError):
        inflate_exactly(packed[:-2], 7)


def test_a_decompression_bomb_is_refused() -> None:
    assert len(zlib.compress(bytes(1 << 22))) < 1 << 15
    with pytest.raises(InputError, match="more"):
        inflate_exactly(zlib.compress(bytes(1 << 22)), 1000)


def test_padding_is_read_up_to_a_cap() -> None:
    assert read_to_end(io.BytesIO(bytes(MAX_PADDING_BYTES))) == MAX_PADDING_BYTES
    with pytest.raises(InputError, match="more"):
        read_to_end(io.BytesIO(bytes(MAX_PADDING_BYTES + 1)))
    stream = io.BufferedReader(GzipStream(io.BytesIO(gzip.compress(bytes(500))[:-4])))
    assert stream.read(500) == bytes(500)
    with pytest.raises(InputError, match="truncated"):
        read_to_end(stream)


def test_empty_members_are_limited() -> None:
    """Each is 20 bytes of nothing: a file of 100 MB has five million of them."""
    empty, packed = gzip.compress(b""), gzip.compress(b"abcdefg")
    assert inflate_exactly(empty * MAX_EMPTY_MEMBERS + packed, 7) == (b"abcdefg", 0)
    for data in (empty * 200_000 + packed, packed + empty * 200_000):
        with pytest.raises(InputError, match="empty parts"):
            inflate_exactly(data, 7)


@given(st.binary(max_size=3000), st.integers(1, 900), st.data())
def test_gzip_stream_equals_the_standard_library(plain: bytes, part: int, draw: st.DataObject) -> None:
    packed = b"".join(gzip.compress(plain[at : at + part]) for at in range(0, len(plain), part)) or gzip.compress(b"")
    packed += bytes(draw.draw(st.sampled_from([0, 1, 12])))
    own, reference = io.BufferedReader(GzipStream(io.BytesIO(packed))), gzip.GzipFile(fileobj=io.BytesIO(packed))
    for _ in range(6):
        if draw.draw(st.booleans()):
            place = draw.draw(st.integers(0, len(plain)))
            own.seek(place)
            reference.seek(place)
        count = draw.draw(st.integers(0, 1200))
        assert own.read(count) == reference.read(count)
    assert own.read() == reference.read()
