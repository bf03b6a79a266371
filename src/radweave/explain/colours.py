"""Maps in colours: blue to yellow, which eyes without red or green tell apart, and a line at half of the peak.

Nothing is told by colour alone: the line is there in grey print as well, and the page gives the numbers.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from radweave.explain.maps import Panel

RAMP = ((0.0, (20, 50, 130)), (0.5, (0, 160, 160)), (1.0, (250, 230, 60)))
"""Share of the peak -> red, green, blue; lightness grows all the way."""

MOST_OPAQUE = 0.6
LINE_AT = 0.5
_LINE = 255
_CAPTION_PX = 28
_LINE_PX = 17
_NARROWEST_PX = 460


def _palette() -> NDArray[np.uint8]:
    """Colours (256, 4) with opacity: 0 to 254 the ramp, 255 the line."""
    share = np.linspace(0.0, 1.0, _LINE)
    stops = [place for place, _ in RAMP]
    colours = np.zeros((256, 4))
    for channel in range(3):
        colours[:_LINE, channel] = np.interp(share, stops, [colour[channel] for _, colour in RAMP])
    colours[:_LINE, 3] = 255 * MOST_OPAQUE * np.minimum(1.0, 1.5 * share)
    colours[_LINE] = 255
    return np.rint(colours).astype(np.uint8)


PALETTE = _palette()


def opacity(share: float) -> float:
    """Opacity of the ramp at a share of the peak."""
    return round(MOST_OPAQUE * min(1.0, 1.5 * share), 3)


def overlay_indices(panel: Panel, peak: float) -> NDArray[np.uint8]:
    """Palette indices (H, W) of a panel's heat, from 0 to ``peak``."""
    assert panel.heat is not None
    share = np.clip(panel.heat / peak, 0.0, 1.0) if peak > 0 else np.zeros_like(panel.heat)
    indices = np.rint(share * (_LINE - 1)).astype(np.uint8)
    indices[_border(share >= LINE_AT)] = _LINE
    return indices


def _border(inside: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Pixels within, or right beside, a region whose neighbour above, below, left or right is on the other side."""
    border = np.zeros_like(inside)
    down, right = inside[1:] != inside[:-1], inside[:, 1:] != inside[:, :-1]
    border[1:] |= down
    border[:-1] |= down
    border[:, 1:] |= right
    border[:, :-1] |= right
    return border


def overlay_png(panel: Panel, peak: float) -> bytes:
    """The heat alone, as a PNG with transparency, to lie over the grey picture."""
    image = Image.fromarray(overlay_indices(panel, peak))
    image.putpalette(PALETTE[:, :3].tobytes())
    return _png(image, transparency=PALETTE[:, 3].tobytes())


def grey_png(panel: Panel) -> bytes:
    return _png(Image.fromarray(panel.grey))


def captioned_png(panel: Panel, caption: str, notices: Sequence[str], peak: float | None = None) -> bytes:
    """Picture and heat in one file that says below what it is, so that it can leave the page."""
    return _png(captioned(panel, caption, notices, peak))


def captioned(panel: Panel, caption: str, notices: Sequence[str], peak: float | None = None) -> Image.Image:
    """Picture and heat in red, green and blue, with a strip below that says what it is.

    The strip below holds ``caption``, the colours' range where there is heat, and the ``notices``.
    """
    rgb = np.repeat(panel.grey[..., None], 3, axis=2).astype(np.float64)
    if peak is not None:
        colours = PALETTE[overlay_indices(panel, peak)].astype(np.float64)
        opaque = colours[..., 3:] / 255
        rgb = rgb * (1 - opaque) + colours[..., :3] * opaque
    height, width = panel.grey.shape
    full = max(width, _NARROWEST_PX)
    small = ImageFont.load_default(12)
    lines = [line for notice in notices for line in _wrapped(notice, small, full - 12)]
    image = Image.new("RGB", (full, height + _CAPTION_PX + _LINE_PX * len(lines)))
    image.paste(Image.fromarray(np.rint(rgb).astype(np.uint8)), ((full - width) // 2, 0))
    draw = ImageDraw.Draw(image)
    draw.text((6, height + 5), caption, fill="white", font=ImageFont.load_default(14))
    for number, line in enumerate(lines):
        draw.text((6, height + _CAPTION_PX + _LINE_PX * number), line, fill=(255, 190, 190), font=small)
    if peak is not None:
        _legend(image, right=image.width - 6, top=height + 8)
    return image


def _wrapped(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> list[str]:
    """Lines of at most ``width`` pixels."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        lines[-1:] = [longer] if font.getlength(longer) <= width else [lines[-1], word]
    return lines


def _legend(image: Image.Image, *, right: int, top: int) -> None:
    """A bar of the colours over black, 0 on the left."""
    bar = PALETTE[np.linspace(0, _LINE - 1, 70).astype(int), :3]
    image.paste(Image.fromarray(np.broadcast_to(bar, (12, 70, 3)).copy()), (right - 100, top))
    draw = ImageDraw.Draw(image)
    small = ImageFont.load_default(11)
    draw.text((right - 110, top - 1), "0", fill="white", font=small)
    draw.text((right - 27, top - 1), "peak", fill="white", font=small)


def _png(image: Image.Image, **options: bytes) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True, **options)
    return buffer.getvalue()


def data_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()
