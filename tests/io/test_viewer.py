"""The viewer's files: its arithmetic is Python's, what is vendored is what it was, no text becomes code."""

from __future__ import annotations

import json
import posixpath
import re
import shutil
import subprocess
from base64 import b64decode
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radweave.core.storage import sha256_file
from radweave.io import viewer
from tests.image_files import shown_bytes, write_dicom

STATION = Path(str(files("radweave.workstation"))) / "static"
PAGE = Path(str(files("radweave.inference.explain"))) / "static"
VENDORED = {
    "cornerstone.js": "2289cccbaa84a5e2dcbb028509f48d1ff343696dcd2f7eec47d31a9e1bc224b0",
    "LICENSES.txt": "3c72537e122ef09614a67ae81d0fb93ba9b3ada7e21343506d9a35a86e9b3b40",
}
_RUN = """
import { shownOf, valueOf } from MODULE;
const packed = (bytes) => Buffer.from(bytes).toString("base64");
const grey = (about, preset, inverted, word) => {
  if (word === about.padding) return 0;
  const shown = shownOf(valueOf(word, about), preset, null);
  const share = about.inverted === inverted ? shown : Math.fround(1 - shown);
  return Math.floor(Math.fround(Math.fround(share * 255) + 0.5));
};
const all = (one) => packed(Uint8Array.from({ length: 65536 }, (_, word) => grey(...one, word)));
console.log(JSON.stringify(CASES.map(all)));
"""


def run_in_node(name: str, script: str, folder: Path) -> list[Any]:
    """The lines that a script prints, as JSON values; ``MODULE`` in it is a module of the viewer."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node, to run the viewer's arithmetic")
    # The file is a module by its place in a page, not by its name.
    copied = folder / f"{name}.mjs"
    copied.write_text((STATION / "viewer" / f"{name}.js").read_text())
    (folder / "run.mjs").write_text(script.replace("MODULE", json.dumps(copied.as_uri())))
    done = subprocess.run([node, str(folder / "run.mjs")], capture_output=True, text=True, timeout=60, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def in_node(cases: list[Any], folder: Path) -> list[Any]:
    (greys,) = run_in_node("window", _RUN.replace("CASES", json.dumps(cases)), folder)
    return [np.frombuffer(b64decode(row), np.uint8) for row in greys]


def test_windows_equal_those_of_python(tmp_path: Path) -> None:
    """Every word of every kind of window, turned and not: the same grey to the last step."""
    kinds = [
        {"bits": 12, "WindowCenter": [2000, 1010.5, 3], "WindowWidth": [3000, 333.25, 1]},
        {"bits": 12, "PhotometricInterpretation": "MONOCHROME1", "RescaleSlope": 1.37, "RescaleIntercept": -100.25,
         "WindowCenter": 900.7, "WindowWidth": 1500.3},
        {"bits": 12, "WindowCenter": 1500, "WindowWidth": 2500, "VOILUTFunction": "LINEAR_EXACT"},
        {"bits": 10, "signed": True, "PixelPaddingValue": -512},
    ]  # fmt: skip
    read = [viewer.read_words(write_dicom(tmp_path / f"{number}.dcm", **kind)) for number, kind in enumerate(kinds)]
    cases = [(one.about, preset, turned) for one in read for preset in one.about["presets"] for turned in (False, True)]
    words = np.arange(65_536, dtype=np.uint16)
    greys = in_node([list(case) for case in cases], tmp_path)
    assert len(greys) == len(cases) >= 14
    for (about, preset, turned), result in zip(cases, greys, strict=True):
        expected = shown_bytes(words, about, preset, inverted=turned)
        np.testing.assert_array_equal(result, expected, err_msg=str((preset, turned)))
        assert len(np.unique(result)) > 1


@pytest.mark.parametrize("padding", [None, 5, 300])
@pytest.mark.parametrize("last", [65_533, 65_534, 65_535])
def test_no_grey_value_equals_padding(tmp_path: Path, last: int, padding: int | None) -> None:
    """Of an image that has as many levels as there are words the brightest is as bright as any."""
    values = np.arange(256 * 256).clip(0, last)
    if padding is not None:
        values[values == padding] = padding - 1
        values[1000:1040] = padding
    tags = {} if padding is None else {"PixelPaddingValue": padding}
    image = values.reshape(256, 256) / 65_535
    read = viewer.read_words(write_dicom(tmp_path / "wide.dcm", image, bits=16, **tags))
    is_padding = np.zeros(image.shape, bool) if padding is None else values.reshape(256, 256) == padding
    if padding is not None:
        np.testing.assert_array_equal(read.words == viewer.PADDING, is_padding)
    result = viewer.values_of(read.words, read.about)[~is_padding]
    np.testing.assert_allclose(result, values.reshape(256, 256)[~is_padding], atol=1.0)
    preset = {"function": "LINEAR_EXACT", "center": 32_768, "width": 65_536}
    shown = shown_bytes(read.words, read.about, preset)
    assert shown[~is_padding].max() == 255
    assert (shown[~is_padding & (values.reshape(256, 256) > 60_000)] > 200).all()


def test_a_sigmoid_equals_python_within_a_level(tmp_path: Path) -> None:
    kind = {"bits": 12, "WindowCenter": 1500, "WindowWidth": 2500, "VOILUTFunction": "SIGMOID"}
    read = viewer.read_words(write_dicom(tmp_path / "chest.dcm", **kind))
    greys = in_node([[read.about, read.about["presets"][0], False]], tmp_path)
    expected = shown_bytes(np.arange(65_536, dtype=np.uint16), read.about, read.about["presets"][0])
    assert np.abs(greys[0] - expected.astype(int)).max() <= 1


def test_vendored_files_have_their_hashes() -> None:
    folder = STATION / "vendor" / "cornerstone"
    assert {name: sha256_file(folder / name) for name in VENDORED} == VENDORED
    assert {path.name for path in folder.iterdir()} == {*VENDORED, "README.txt", "build"}


def _ours() -> list[Path]:
    """Modules of the viewer, and the script of the page of ``explain``."""
    result = [*(STATION / "viewer").glob("*.js"), *PAGE.glob("*.js")]
    assert len(result) >= 12
    return result


def test_no_script_evaluates_text() -> None:
    for path in _ours():
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")  # a name, not asked for
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "eval(",
            "new Function",
            "document.write",
            "http:",
            "https:",
        ):
            assert word not in text, (path.name, word)


def test_every_imported_module_exists() -> None:
    for path in _ours():
        root = next(root for root in (STATION, PAGE) if path.is_relative_to(root))
        for name in re.findall(r'(?:from|import) ?\(?"(\.[^"]+)"', path.read_text()):
            place = posixpath.normpath(posixpath.join(path.relative_to(root).parent.as_posix(), name))
            assert (root / place).is_file(), (path.name, name)


def test_colours_equal_those_of_explain() -> None:
    """A finding has the same colour on all pages of ours."""
    from radweave.inference.explain.maps import LINE_AT, RAMP

    text = (STATION / "viewer" / "colours.js").read_text()
    assert f"STOPS = {json.dumps([[stop, list(colour)] for stop, colour in RAMP])}".replace(".0,", ",") in text
    assert f"LINE_AT = {LINE_AT}" in text
    lightness = [0.2126 * red + 0.7152 * green + 0.0722 * blue for _, (red, green, blue) in RAMP]
    assert lightness == sorted(lightness)
