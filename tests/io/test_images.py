"""Radiographs from PNG and JPEG, and what all formats share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from radweave.core.errors import InputError
from radweave.core.study import View
from radweave.io.dicom import DOUBTFUL
from radweave.io.images import read_radiograph, sniff, undo_stretch
from tests.image_files import chest, write_dicom


def grey8() -> np.ndarray:
    return np.rint(chest() * 255).astype(np.uint8)


def saved(path: Path, array: np.ndarray, **options: object) -> Path:
    Image.fromarray(array).save(path, **options)
    return path


def test_png_keeps_its_grey_values(tmp_path: Path) -> None:
    radiograph = read_radiograph(saved(tmp_path / "a.png", grey8()))
    np.testing.assert_allclose(radiograph.pixels, grey8() / 255, atol=1e-7)
    assert radiograph.pixels.dtype == np.float32
    assert (radiograph.source, radiograph.view, radiograph.warnings) == ("png", View.UNKNOWN, ())


def test_all_grey_encodings_agree(tmp_path: Path) -> None:
    grey = grey8()
    plain = read_radiograph(saved(tmp_path / "l.png", grey)).pixels
    alpha = np.full_like(grey, 255)
    palette = Image.fromarray(grey).convert("P")
    palette.save(tmp_path / "p.png")
    for name, array in {
        "la": np.stack([grey, alpha], axis=2),
        "rgb": np.stack([grey] * 3, axis=2),
        "rgba": np.stack([grey, grey, grey, alpha], axis=2),
        "i16": grey.astype(np.uint16) * 257,
    }.items():
        shown = read_radiograph(saved(tmp_path / f"{name}.png", array))
        np.testing.assert_allclose(shown.pixels, plain, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(read_radiograph(tmp_path / "p.png").pixels, plain, atol=1e-6)


def test_twelve_bits_in_a_sixteen_bit_png_are_not_black(tmp_path: Path) -> None:
    radiograph = read_radiograph(saved(tmp_path / "a.png", np.rint(chest() * 4095).astype(np.uint16)))
    # The outer 0.1 % at each end are cut, which in this small noisy picture are up to 0.03 wide.
    np.testing.assert_allclose(radiograph.pixels, chest(), atol=0.04)
    assert any("stretched" in text for text in radiograph.warnings)


def test_jpeg(tmp_path: Path) -> None:
    radiograph = read_radiograph(saved(tmp_path / "a.jpg", grey8(), quality=95))
    assert radiograph.source == "jpeg"
    assert float(np.abs(radiograph.pixels - chest()).mean()) < 3 / 255  # quantisation of the encoder


def test_png_and_dicom_of_one_picture_agree(tmp_path: Path) -> None:
    png = read_radiograph(saved(tmp_path / "a.png", grey8())).pixels
    dicom = read_radiograph(write_dicom(tmp_path / "a.dcm", chest(), bits=8)).pixels
    np.testing.assert_allclose(png, dicom, atol=1e-6)


@pytest.mark.parametrize("name", ["image.dcm", "image.txt", "image"])
def test_kind_depends_on_content(tmp_path: Path, name: str) -> None:
    Image.fromarray(grey8()).save(tmp_path / name, "PNG")
    assert sniff(tmp_path / name) == "png"
    assert read_radiograph(tmp_path / name).source == "png"


def test_a_coloured_image_is_refused(tmp_path: Path) -> None:
    array = np.stack([grey8()] * 3, axis=2)
    array[10:20, 10:20] = [255, 0, 0]
    with pytest.raises(InputError, match="colour"):
        read_radiograph(saved(tmp_path / "a.png", array))


def test_exif_orientation_is_undone(tmp_path: Path) -> None:
    upright = grey8()
    for orientation, stored in {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.T,
        6: np.rot90(upright),
        7: upright[::-1, ::-1].T,
        8: np.rot90(upright, -1),
    }.items():
        exif = Image.Exif()
        exif[0x0112] = orientation
        path = saved(tmp_path / f"{orientation}.png", np.ascontiguousarray(stored), exif=exif)
        np.testing.assert_allclose(read_radiograph(path).pixels, upright / 255, atol=1e-6, err_msg=str(orientation))


def test_undo_stretch_restores_the_ratio(tmp_path: Path) -> None:
    image = chest(200, 100, noise=0)
    square = np.asarray(Image.fromarray(image.astype(np.float32)).resize((160, 160), Image.Resampling.BILINEAR))
    path = saved(tmp_path / "a.png", np.rint(np.clip(square, 0, 1) * 255).astype(np.uint8))
    radiograph = read_radiograph(path, original_size_wh=(1000, 2000))
    assert radiograph.pixels.shape == (160, 80)
    expected = np.asarray(Image.fromarray(image.astype(np.float32)).resize((80, 160), Image.Resampling.BILINEAR))
    # Two resamplings against one: a smooth image differs by little.
    assert float(np.abs(radiograph.pixels - expected).mean()) < 0.01
    wide = undo_stretch(radiograph.pixels, (300, 100), path)
    assert wide.shape == (53, 160)
    with pytest.raises(InputError, match="original_size_wh"):
        undo_stretch(radiograph.pixels, (0, 100), path)


def test_swapped_black_and_white_has_a_warning(tmp_path: Path) -> None:
    straight = read_radiograph(write_dicom(tmp_path / "a.dcm"))
    swapped = read_radiograph(write_dicom(tmp_path / "b.dcm", PhotometricInterpretation="MONOCHROME1"))
    assert straight.warnings == ()
    assert any("swapped" in text for text in swapped.warnings)


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "progressive.jpg"])
@pytest.mark.parametrize("more", [b"GIF89a and more", b"\xff\xd8\xff\xe0 another", b"\0" * 40 + b"x", b"x"])
def test_data_behind_an_image_is_doubted_except_padding(tmp_path: Path, name: str, more: bytes) -> None:
    path = saved(tmp_path / name, grey8(), **({"progressive": True} if "progressive" in name else {}))
    whole = path.read_bytes()
    plain = read_radiograph(path)
    path.write_bytes(whole + b"\0\0\r\n" * 100)
    assert read_radiograph(path).warnings == plain.warnings == ()
    path.write_bytes(whole + more)
    result = read_radiograph(path)
    (doubt,) = result.warnings
    assert doubt.startswith(DOUBTFUL)
    assert "behind the end of the image" in doubt
    np.testing.assert_array_equal(result.pixels, plain.pixels)
