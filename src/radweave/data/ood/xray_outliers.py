"""Radiographs varied as by another device, and synthetic outliers: pictures unlike any chest radiograph.

Both are made from training images or drawn from simple shapes, so that no outside picture is needed. Varied images
count as in distribution, so that another hospital's are. An outlier is of one of ``KINDS``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from radweave.data.ood.descriptor import content, resized
from radweave.data.square import place_in_square

Bytes = NDArray[np.uint8]
Grey = NDArray[np.float64]
Random = np.random.Generator


def varied(square: Bytes, random: Random) -> Bytes:
    """The same radiograph with another field, tilt, gamma, sharpness, noise, window and border, within limits."""
    box = content(square)
    height, width = box.shape
    top, bottom = (random.uniform(0, 0.12, 2) * height).astype(int)
    left, right = (random.uniform(0, 0.12, 2) * width).astype(int)
    image = Image.fromarray(np.ascontiguousarray(box[top : height - bottom, left : width - right]))
    image = image.rotate(random.uniform(-8, 8), Image.Resampling.BILINEAR)
    image = image.resize((max(8, int(image.width * np.exp(random.uniform(-0.15, 0.15)))), max(8, image.height)))
    grey = (np.asarray(image, dtype=float) / 255) ** np.exp(random.uniform(-0.6, 0.6))
    sharpness = random.random()
    if sharpness < 0.4:
        grey = ndimage.gaussian_filter(grey, random.uniform(0.3, 1.0))
    elif sharpness < 0.7:
        grey += random.uniform(0.3, 1.0) * (grey - ndimage.gaussian_filter(grey, random.uniform(1.0, 6.0)))
    grey += random.normal(0, random.uniform(0, 0.015), grey.shape)
    low, high = random.uniform(-0.15, 0.15), random.uniform(0.8, 1.15)
    grey = low + (high - low) * grey
    if random.random() < 0.3:
        border = (random.uniform(0, 0.12, 4) * max(grey.shape)).astype(int)
        grey = np.pad(grey, ((border[0], border[1]), (border[2], border[3])))
    return _in_square(_bytes(grey), square.shape[0])


def make_outlier(kind: str, square: Bytes, other: Bytes, random: Random) -> Bytes:
    """An outlier of a kind, made from one training image, or two, or drawn."""
    side = square.shape[0]
    if kind in _DRAWN:
        return resized(_DRAWN[kind](random), side, side)
    return _in_square(_MADE[kind](content(square), content(other), random), side)


def _tiles(box: Bytes, other: Bytes, random: Random) -> Bytes:
    count = int(random.integers(2, 5))
    height, width = box.shape[0] // count, box.shape[1] // count
    tiles = box[: height * count, : width * count].reshape(count, height, count, width).swapaxes(1, 2)
    # Each tile leaves its place: a shuffle that changes nothing would be no outlier.
    order = np.roll(random.permutation(count * count), 1)
    moved = np.empty((count * count, height, width), dtype=np.uint8)
    moved[order] = tiles.reshape(-1, height, width)[np.roll(order, 1)]
    return moved.reshape(count, count, height, width).swapaxes(1, 2).reshape(height * count, width * count)


def _turned(box: Bytes, other: Bytes, random: Random) -> Bytes:
    return np.rot90(box, int(random.choice([1, 3])))


def _upside_down(box: Bytes, other: Bytes, random: Random) -> Bytes:
    return np.rot90(box, 2) if random.random() < 0.5 else box[::-1]


def _inverted(box: Bytes, other: Bytes, random: Random) -> Bytes:
    return 255 - box


def _detail(box: Bytes, other: Bytes, random: Random) -> Bytes:
    share = random.uniform(0.15, 0.4)
    height, width = (max(8, int(size * share)) for size in box.shape)
    top, left = random.integers(0, box.shape[0] - height + 1), random.integers(0, box.shape[1] - width + 1)
    part = box[top : top + height, left : left + width].astype(float)
    return _bytes((part - part.min()) / max(1.0, part.max() - part.min()))


def _flattened(box: Bytes, other: Bytes, random: Random) -> Bytes:
    """Two grey values with steep borders between them, as a CT scan cut from the front shows."""
    grey = ndimage.median_filter(box.astype(float) / 255, 3)
    levels = grey - ndimage.gaussian_filter(grey, box.shape[0] / 6)
    if random.random() < 0.5:
        levels = grey - np.quantile(grey, random.uniform(0.3, 0.6))
    low, high = random.uniform(0, 0.3), random.uniform(0.6, 1.0)
    steep = 1 / (1 + np.exp(-levels * random.uniform(20, 60)))
    return _bytes(low + (high - low) * steep + random.normal(0, 0.01, grey.shape))


def _two_panels(box: Bytes, other: Bytes, random: Random) -> Bytes:
    side = max(box.shape)
    if random.random() < 0.5:
        return np.hstack([resized(box, side, side // 2), resized(other, side, side // 2)])
    return np.vstack([resized(box, side // 2, side), resized(other, side // 2, side)])


_SIDE: Final = 128
_Y, _X = np.mgrid[0:_SIDE, 0:_SIDE] / (_SIDE - 1) * 2 - 1


def _ellipse(x: float, y: float, width: float, height: float, angle: float = 0.0) -> NDArray[np.bool_]:
    along = (_X - x) * np.cos(angle) + (_Y - y) * np.sin(angle)
    across = (_Y - y) * np.cos(angle) - (_X - x) * np.sin(angle)
    return np.asarray((along / width) ** 2 + (across / height) ** 2 < 1)


def _slice_of_ct(random: Random) -> Bytes:
    """A body across: an oval of one grey with a spine and ribs, and dark lungs with vessels, or organs."""
    grey = np.full((_SIDE, _SIDE), random.choice([0.0, 0.0, random.uniform(0, 0.35)]))
    wide = random.uniform(0.6, 1.0)
    high, tissue = wide * random.uniform(0.6, 0.85), random.uniform(0.45, 0.95)
    body = _ellipse(0, random.uniform(-0.05, 0.05), wide, high)
    grey[body] = tissue
    if random.random() < 0.6:
        grey[body & ~_ellipse(0, 0, wide * 0.93, high * 0.9)] = tissue * random.uniform(0.6, 0.95)
    if random.random() < 0.75:
        _draw_lungs(grey, body, wide, high, tissue, random)
    else:
        for _ in range(random.integers(3, 9)):
            x, y = random.uniform(-0.6, 0.6) * wide, random.uniform(-0.5, 0.5) * high
            along, across = random.uniform(0.05, 0.4) * wide, random.uniform(0.05, 0.3) * wide
            organ = _ellipse(x, y, along, across, random.uniform(0, 3))
            grey[organ & body] = tissue * random.uniform(0.6, 1.25)
    bone = min(1.0, tissue + random.uniform(0.05, 0.5))
    grey[_ellipse(0, high * 0.6, 0.12 * wide, 0.1 * wide)] = bone
    for angle in np.linspace(0, 2 * np.pi, random.integers(8, 20), endpoint=False):
        x, y = np.cos(angle) * wide * 0.85, np.sin(angle) * high * 0.85
        grey[_ellipse(x, y, 0.06 * wide, 0.025 * wide, angle + np.pi / 2)] = bone
    return _noisy(grey, random, blur=(0.3, 0.8), noise=(0.002, 0.03))


def _draw_lungs(grey: Grey, body: NDArray[np.bool_], wide: float, high: float, tissue: float, random: Random) -> None:
    air = random.uniform(0, 0.3)
    for side in (-1, 1):
        x, y = side * random.uniform(0.4, 0.5) * wide, random.uniform(-0.08, 0.08)
        along, across = random.uniform(0.28, 0.42) * wide, random.uniform(0.5, 0.75) * high
        lung = _ellipse(x, y, along, across, side * random.uniform(-0.3, 0.3))
        grey[lung & body] = air
    x, y = random.uniform(-0.1, 0.15) * wide, random.uniform(-0.25, 0.05) * wide
    grey[_ellipse(x, y, random.uniform(0.15, 0.4) * wide, random.uniform(0.2, 0.45) * high)] = tissue
    for _ in range(random.integers(10, 60)):
        x, y, thick = random.uniform(-0.8, 0.8) * wide, random.uniform(-0.6, 0.6) * high, random.uniform(0.008, 0.03)
        grey[_ellipse(x, y, thick, thick * random.uniform(0.5, 2)) & body] = tissue * random.uniform(0.7, 1.1)


def _limbs(random: Random) -> Bytes:
    """One to five long rounded shapes side by side, each with a bone in it and joints across: arm, leg, hand, foot."""
    background = random.choice([0.0, 0.0, 0.1, 1.0])
    grey = np.full((_SIDE, _SIDE), background)
    count = int(random.integers(1, 6))
    angle = random.uniform(-0.5, 0.5) + random.choice([0.0, 0.0, np.pi / 2])
    across, along = _X * np.cos(angle) + _Y * np.sin(angle), _Y * np.cos(angle) - _X * np.sin(angle)
    soft = random.uniform(0.25, 0.6)
    if background == 1.0:
        grey[np.abs(across) < random.uniform(0.4, 0.8)] = random.uniform(0, 0.15)
    for number in range(count):
        middle = (number - (count - 1) / 2) * random.uniform(0.25, 0.45) + 0.1 * np.sin(3 * along + number)
        width = random.uniform(0.1, 0.5) / np.sqrt(count)
        inside = along < random.uniform(0.3, 1.5)
        flesh = np.sqrt(np.clip(1 - ((across - middle) / width) ** 2, 0, None)) * inside
        grey = np.where(flesh > 0, np.maximum(grey * (background != 1.0), soft * flesh), grey)
        bone = np.clip(1 - ((across - middle) / (width * random.uniform(0.25, 0.6))) ** 2, 0, None) * inside
        if random.random() < 0.8:
            grey = grey + (bone > 0) * random.uniform(0.2, 0.5) * (1 - 0.5 * bone)
        for _ in range(random.integers(0, 3)):
            joint = np.abs(along - random.uniform(-0.9, 0.9)) < 0.03
            grey = grey - (joint & (bone > 0)) * random.uniform(0.1, 0.3)
    return _noisy(grey / max(1.0, float(np.quantile(grey, 0.995))), random, blur=(0.4, 1.5), noise=(0.01, 0.01))


def _outline(random: Random) -> Bytes:
    """A rounded shape with a bright rim and cloudy insides: a skull, a jaw, a pelvis, a phantom."""
    grey = np.full((_SIDE, _SIDE), random.choice([0.0, 0.05, 0.2]))
    wide, base = random.uniform(0.5, 1.0), random.uniform(0.3, 0.7)
    high = min(1.0, wide * random.uniform(0.5, 1.3))
    shape = _ellipse(0, 0, wide, high)
    grey[shape] = base
    grey[shape & ~_ellipse(0, 0, wide * 0.92, high * 0.92)] = min(1.0, base + 0.35)
    for _ in range(random.integers(4, 20)):
        x, y = random.uniform(-0.6, 0.6) * wide, random.uniform(-0.6, 0.6) * high
        cloud = _ellipse(x, y, random.uniform(0.04, 0.3), random.uniform(0.04, 0.3), random.uniform(0, 3))
        grey[cloud & shape] += random.uniform(-0.3, 0.3)
    grey = ndimage.gaussian_filter(grey, random.uniform(0.5, 2)) * (0.8 + 0.4 * clouds(random, (_SIDE, _SIDE), 2.0))
    return _noisy(grey, random, blur=(0, 0), noise=(0.01, 0.01))


def _texture(random: Random) -> Bytes:
    return _bytes(clouds(random, (_SIDE, _SIDE), random.uniform(0.5, 2.5)))


def _blank(random: Random) -> Bytes:
    """Nearly one grey, or a slope between two."""
    slope = random.uniform(-0.4, 0.4) * _X + random.uniform(-0.4, 0.4) * _Y
    return _noisy(random.uniform(0.05, 0.95) + random.choice([0.02, 1.0]) * slope, random, blur=(0, 0), noise=(0, 0.02))


def clouds(random: Random, shape: tuple[int, ...], steepness: float) -> Grey:
    """Noise in [0, 1] whose amplitude falls with the power ``steepness`` of the spatial frequency."""
    squares = sum(frequency**2 for frequency in np.meshgrid(*(np.fft.fftfreq(size) for size in shape), indexing="ij"))
    squares = np.asarray(squares)
    squares.flat[0] = 1.0
    spectrum = np.fft.fftn(random.standard_normal(shape)) * squares ** (-steepness / 2)
    values: Grey = np.fft.ifftn(spectrum).real
    return np.asarray((values - values.min()) / (values.max() - values.min()))


_MADE: Final[dict[str, Callable[[Bytes, Bytes, Random], Bytes]]] = {
    "tiles": _tiles,
    "turned": _turned,
    "upside down": _upside_down,
    "inverted": _inverted,
    "detail": _detail,
    "flattened": _flattened,
    "two panels": _two_panels,
}
_DRAWN: Final[dict[str, Callable[[Random], Bytes]]] = {
    "slice of ct": _slice_of_ct,
    "limbs": _limbs,
    "outline": _outline,
    "texture": _texture,
    "blank": _blank,
}
KINDS: Final = (*_MADE, *_DRAWN)


def _bytes(grey: Grey) -> Bytes:
    return (grey.clip(0, 1) * 255).astype(np.uint8)


def _noisy(grey: Grey, random: Random, *, blur: tuple[float, float], noise: tuple[float, float]) -> Bytes:
    blurred = ndimage.gaussian_filter(grey, random.uniform(*blur))
    return _bytes(blurred + random.normal(0, random.uniform(*noise), grey.shape))


def _in_square(pixels: Bytes, side: int) -> Bytes:
    """Fit into a square as ``to_square`` does."""
    top, left, height, width = place_in_square(pixels.shape[0], pixels.shape[1], side)
    square = np.zeros((side, side), dtype=np.uint8)
    square[top : top + height, left : left + width] = resized(pixels, height, width)
    return square
