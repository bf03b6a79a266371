"""The colours of maps, as eyes see them that lack a kind of cone."""

from __future__ import annotations

import re
from importlib.resources import files

import numpy as np
import pytest
from numpy.typing import NDArray

from radweave.core.figures import BLUE, GREY, OTHERS
from radweave.inference.explain.maps import _LINE, PALETTE

Colours = NDArray[np.float64]
STEPS = 16
NOTICED = 2.3
"""The least distance in CIELAB that is noticed, of colours beside each other (Mahy et al., 1994)."""
# Machado, Oliveira, Fernandes, "A physiologically-based model for simulation of color vision deficiency", IEEE TVCG
# 15(6), 2009: the matrices of severity 1.0, which are for linear RGB.
SIMULATED: dict[str, list[list[float]]] = {
    "usual": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
_XYZ_OF_RGB = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
_WHITE = (0.95047, 1.0, 1.08883)


def simulated(colours: Colours, vision: str) -> Colours:
    """CIELAB (N, 3) of sRGB colours (N, 3) from 0 to 1 for an eye."""
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    shown = np.clip(linear @ np.array(SIMULATED[vision]).T, 0, 1)
    xyz = shown @ np.array(_XYZ_OF_RGB).T / _WHITE
    roots = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    x, y, z = roots.T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=1)


def is_told_apart(colours: Colours, vision: str) -> bool:
    """Whether ``STEPS`` colours of a ramp grow lighter one by one, each noticeably other than the one before."""
    places = np.linspace(0, len(colours) - 1, STEPS).round().astype(int)
    steps = np.diff(simulated(colours[places], vision), axis=0)
    return bool((steps[:, 0] > 0).all() and (np.linalg.norm(steps, axis=1) >= NOTICED).all())


@pytest.mark.parametrize("vision", SIMULATED)
def test_map_colours_differ_for_every_colour_vision(vision: str) -> None:
    ramp = PALETTE[:_LINE, :3] / 255
    assert is_told_apart(ramp, vision)
    share = np.linspace(0, 1, 256)
    rainbow = np.stack([np.clip(1.5 - np.abs(4 * share - middle), 0, 1) for middle in (3, 2, 1)], axis=1)
    red_to_green = np.stack([1 - share, share, 0 * share], axis=1)
    assert not is_told_apart(rainbow, vision)
    assert not is_told_apart(red_to_green, vision)


def test_grey_is_grey_for_every_colour_vision() -> None:
    """The matrices themselves: a typing error in one would colour what has no colour."""
    grey = np.linspace(0, 1, 9)[:, None].repeat(3, axis=1)
    for vision in SIMULATED:
        np.testing.assert_allclose(simulated(grey, vision), simulated(grey, "usual"), atol=0.02)


PLOTTED = {"blue": BLUE, "grey": GREY, **dict(zip(("orange", "green", "pink", "yellow"), OTHERS, strict=True))}


def rgb(colour: str) -> list[float]:
    return [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]


@pytest.mark.parametrize("vision", SIMULATED)
def test_plot_colours_differ_for_every_colour_vision(vision: str) -> None:
    """They differ by their marks too; a pair that hardly differs would still mislead."""
    colours = simulated(np.array([rgb(colour) for colour in PLOTTED.values()]), vision)
    apart = np.linalg.norm(colours[:, None] - colours[None], axis=2)
    closest = np.unravel_index((apart + 1e3 * np.eye(len(colours))).argmin(), apart.shape)
    assert apart[closest] >= 4 * NOTICED, [list(PLOTTED)[place] for place in closest]
    red_and_green = simulated(np.array([rgb("#b02020"), rgb("#6f6a00")]), "deuteranopia")
    assert np.linalg.norm(red_and_green[0] - red_and_green[1]) < 4 * NOTICED, "the measure finds what is alike"


@pytest.mark.parametrize("vision", SIMULATED)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_comparison_marks_differ_from_plain_text_for_every_colour_vision(vision: str, theme: str) -> None:
    """What is opposite, invented and missed also bears a sign and a line of its own."""
    css = (files("radweave") / "templates" / "shared.css.j2").read_text()
    light, dark = css.split("@media screen", 1)
    own = light if theme == "light" else dark
    names = ("card", "opposite", "invented", "missed")
    result = [re.search(rf"--{name}: (#[0-9a-f]+)", own) for name in names]
    values = [match[1] for match in result if match]
    assert len(values) == len(names)
    full = [value if len(value) == 7 else "#" + "".join(2 * letter for letter in value[1:]) for value in values]
    lab = simulated(np.array([rgb(value) for value in full]), vision)
    apart = np.linalg.norm(lab[:, None] - lab[None], axis=2) + 1e3 * np.eye(len(lab))
    assert apart[0].min() >= 3 * NOTICED
    assert apart.min() >= NOTICED, [names[place] for place in np.unravel_index(apart.argmin(), apart.shape)]
