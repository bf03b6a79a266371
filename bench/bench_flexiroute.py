"""Routed co-attention: all heads and masks in one call against a loop over the masks.

    python bench/bench_flexiroute.py                    # times, one line per shape
    python bench/bench_flexiroute.py --masks-png OUT    # the masks of a 7 x 7 grid, orders 0 to 3, as a picture

Both sides hold the same weights. "loop" makes Q, K and V of one mask after the other, as Eq. 5 is written; "one call
with K, V" is the same batched over the masks; "RoutedCoAttention" is what the toolkit runs. Forward alone, and forward
with backward; the median of many calls.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from radweave.nn.flexiroute import RoutedCoAttention, span_masks

SHAPES = {
    "tiny: 2 views of 4 x 4, width 192": (16, 5, 2, (4, 4), 192, 4),
    "224 px: 1 view of 7 x 7, width 768": (16, 5, 1, (7, 7), 768, 8),
    "224 px: 2 views of 7 x 7, width 768": (4, 5, 2, (7, 7), 768, 8),
    "384 px: 2 views of 12 x 12, width 512": (4, 5, 2, (12, 12), 512, 8),
}
"""Batch, queries, views, grid, width, heads."""


def heads(x: Tensor, count: int) -> Tensor:
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def loop(layer: RoutedCoAttention, queries: Tensor, image: Tensor, spans: Tensor, alpha: Tensor) -> Tensor:
    """Eq. 5, one mask after the other."""
    width = queries.shape[-1]
    out = torch.zeros_like(queries)
    for mask in range(len(spans)):
        rows = slice(mask * width, (mask + 1) * width)
        q, k, v = (
            heads(x @ projection.weight[rows].T, layer.num_heads)
            for x, projection in ((queries, layer.query), (image, layer.key), (image, layer.value))
        )
        read = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=spans[mask])
        out = out + alpha[:, mask, None, None] * read.transpose(1, 2).flatten(2)
    return layer.out(out)


def batched(layer: RoutedCoAttention, queries: Tensor, image: Tensor, spans: Tensor, alpha: Tensor) -> Tensor:
    """All masks in one attention call, with K and V formed."""
    count = len(spans)
    q, k, v = (
        heads(projection(x), count * layer.num_heads)
        for x, projection in ((queries, layer.query), (image, layer.key), (image, layer.value))
    )
    mask = spans.repeat_interleave(layer.num_heads, 0)
    read = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    routed = (read.unflatten(1, (count, -1)) * alpha[:, :, None, None, None]).sum(1)
    return layer.out(routed.transpose(1, 2).flatten(2))


def milliseconds(call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - begin))
    return statistics.median(times)


def bench(name: str, num_masks: int, repeats: int) -> dict[str, object]:
    batch, count, views, grid, width, num_heads = SHAPES[name]
    torch.manual_seed(0)
    layer = RoutedCoAttention(width, num_heads, num_masks, projections="per_mask", mask="minus_infinity")
    spans = span_masks(grid, count, num_masks).repeat(1, 1, views)
    queries = torch.randn(batch, count, width)
    image = torch.randn(batch, spans.shape[-1], width, requires_grad=True)
    present = torch.ones(batch, spans.shape[-1], dtype=torch.bool)
    alpha = torch.rand(batch, num_masks).softmax(-1)
    calls: dict[str, Callable[[], Tensor]] = {
        "loop": lambda: loop(layer, queries, image, spans, alpha),
        "one call with K, V": lambda: batched(layer, queries, image, spans, alpha),
        "RoutedCoAttention": lambda: layer(queries, image, spans, present, alpha)[0],
    }
    with torch.no_grad():
        truth = calls["loop"]()
        apart = {key: float((call() - truth).abs().max()) for key, call in calls.items()}
        forward = {key: milliseconds(call, repeats) for key, call in calls.items()}
    both = {key: milliseconds(lambda call=call: call().sum().backward(), repeats) for key, call in calls.items()}
    return {
        "shape": name,
        "masks": num_masks,
        "largest_difference": max(apart.values()),
        "forward_ms": {key: round(value, 3) for key, value in forward.items()},
        "forward_backward_ms": {key: round(value, 3) for key, value in both.items()},
        "speedup": {
            "forward": round(forward["loop"] / forward["RoutedCoAttention"], 2),
            "forward_backward": round(both["loop"] / both["RoutedCoAttention"], 2),
        },
    }


def draw_masks(path: Path, side: int = 7, queries: int = 5, cell: int = 10) -> None:
    """One row per order, one column per query; white is in sight, the dot is the centre."""
    gap, left, top = 14, 70, 28
    size = side * cell
    sheet = Image.new("RGB", (left + 2 * (queries * (size + gap) + gap), top + 4 * (size + gap)), "white")
    draw = ImageDraw.Draw(sheet)
    for block, centers in enumerate(("cyclic", "spread")):
        masks = span_masks((side, side), queries, 4, centers)
        start = left + block * (queries * (size + gap) + gap)
        draw.text((start, 8), f"centres: {centers}; queries 1 to {queries}", fill="black")
        for order in range(4):
            y = top + order * (size + gap)
            if block == 0:
                draw.text((8, y + size // 2 - 6), f"order {order}", fill="black")
            for query in range(queries):
                x = start + query * (size + gap)
                for number, seen in enumerate(masks[order, query].tolist()):
                    row, column = divmod(number, side)
                    box = (x + column * cell, y + row * cell, x + (column + 1) * cell - 1, y + (row + 1) * cell - 1)
                    draw.rectangle(box, fill="#7fb3ff" if seen else "#303030", outline="#909090")
                narrow = span_masks((side, side), queries, 2, centers)[1, query].nonzero().flatten().tolist()
                centre = query % side**2 if centers == "cyclic" else (2 * query + 1) * side**2 // (2 * queries)
                assert centre in narrow
                row, column = divmod(centre, side)
                middle = (x + column * cell + cell // 2, y + row * cell + cell // 2)
                draw.ellipse((middle[0] - 2, middle[1] - 2, middle[0] + 2, middle[1] + 2), fill="#d00000")
    sheet.save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--masks", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--masks-png", type=Path)
    arguments = parser.parse_args()
    if arguments.masks_png is not None:
        draw_masks(arguments.masks_png)
        return
    for name in SHAPES:
        print(json.dumps(bench(name, arguments.masks, arguments.repeats)))


if __name__ == "__main__":
    main()
