"""The Swin transformer of Swin UNETR: a file with VoCo's names beside a plain computation from the same tensors."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from radweave.core.errors import InputError
from radweave.nn.vision import SwinUnetrConfig

WIDTH, WINDOW, HEADS = 4, 3, (2, 4)
CONFIG = SwinUnetrConfig(width=WIDTH, depths=(2, 2), num_heads=HEADS, window=WINDOW)
SIZE = (8, 16, 8)
"""Voxels (z, y, x): the first grid is wider than a window along each axis and no multiple of it, the second is not."""
PAIRS = {
    "repeated": ["000", "100", "010", "001", "101", "010", "001", "111"],
    "each": ["000", "100", "010", "001", "110", "101", "011", "111"],
}


def _published() -> dict[str, Tensor]:
    """The encoder by its published names, with what else lies in VoCo's file."""
    torch.manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {
        "swinViT.patch_embed.proj.weight": (WIDTH, 1, 2, 2, 2), "swinViT.patch_embed.proj.bias": (WIDTH,),
        "swinViT.layers3.0.downsample.norm.weight": (8,), "encoder1.layer.conv1.conv.weight": (WIDTH, 1, 3, 3, 3),
        "encoder10.layer.conv1.conv.weight": (2, 2, 3, 3, 3),
    }  # fmt: skip
    for stage, heads in enumerate(HEADS):
        dim, start = WIDTH * 2**stage, f"swinViT.layers{stage + 1}"
        for conv in ("conv1", "conv2"):
            shapes[f"{start}c.0.layer.{conv}.conv.weight"] = (dim, dim, 3, 3, 3)
        shapes[f"{start}.0.downsample.reduction.weight"] = (2 * dim, 8 * dim)
        shapes[f"{start}.0.downsample.norm.weight"] = shapes[f"{start}.0.downsample.norm.bias"] = (8 * dim,)
        for block in range(2):
            for name, shape in {
                "norm1.weight": (dim,), "norm1.bias": (dim,), "norm2.weight": (dim,), "norm2.bias": (dim,),
                "attn.relative_position_bias_table": ((2 * WINDOW - 1) ** 3, heads),
                "attn.relative_position_index": (WINDOW**3, WINDOW**3),
                "attn.qkv.weight": (3 * dim, dim), "attn.qkv.bias": (3 * dim,), "attn.proj.weight": (dim, dim),
                "attn.proj.bias": (dim,), "mlp.linear1.weight": (4 * dim, dim), "mlp.linear1.bias": (4 * dim,),
                "mlp.linear2.weight": (dim, 4 * dim), "mlp.linear2.bias": (dim,),
            }.items():  # fmt: skip
                shapes[f"{start}.0.blocks.{block}.{name}"] = shape
    return {name: torch.randn(shape) / max(1, shape[-1]) ** 0.5 for name, shape in shapes.items()}


PUBLISHED = _published()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("voco") / "VoCo_B_SSL_head.pt"
    torch.save({"state_dict": {f"module.{name}": value for name, value in PUBLISHED.items()}}, path)
    return path


@pytest.fixture(scope="module")
def scan() -> Tensor:
    torch.manual_seed(1)
    return torch.rand(SIZE)


def _weight(name: str) -> Tensor:
    return PUBLISHED[f"swinViT.{name}"].double()


def _norm(x: Tensor, name: str) -> Tensor:
    return _plain_norm(x) * _weight(f"{name}.weight") + _weight(f"{name}.bias")


def _plain_norm(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def _convolved(x: Tensor, name: str) -> Tensor:
    """A 3 x 3 x 3 convolution of (X, Y, Z, C), each channel standardised over the scan."""
    kernel = _weight(name)
    wide = torch.zeros(*(edge + 2 for edge in x.shape[:3]), x.shape[3], dtype=x.dtype)
    wide[1:-1, 1:-1, 1:-1] = x
    out = torch.zeros_like(x)
    for i, j, k in itertools.product(range(3), repeat=3):
        out += wide[i : i + x.shape[0], j : j + x.shape[1], k : k + x.shape[2]] @ kernel[:, :, i, j, k].T
    centred = out - out.mean((0, 1, 2))
    return centred / (centred.square().mean((0, 1, 2)) + 1e-5).sqrt()


def _leaky(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0.01 * x)


def _attention(x: Tensor, name: str, heads: int, *, shifted: bool) -> Tensor:
    """Every voxel of (X, Y, Z, C) looked at beside every other: which of them share a window, and how far apart."""
    grid = x.shape[:3]
    window = [min(WINDOW, edge) for edge in grid]
    shift = [WINDOW // 2 if shifted and edge > WINDOW else 0 for edge in grid]
    padded = [-(-edge // side) * side for edge, side in zip(grid, window, strict=True)]
    # A voxel at p of the padded grid stands at (p - shift) of the rolled one.
    inside: dict[tuple[int, ...], list[tuple[tuple[int, ...], tuple[bool, ...], int]]] = {}
    for place in itertools.product(*map(range, padded)):
        rolled = [(p - s) % edge for p, s, edge in zip(place, shift, padded, strict=True)]
        key = tuple(r // side for r, side in zip(rolled, window, strict=True))
        came_round = tuple(p < s for p, s in zip(place, shift, strict=True))
        number = 0
        for r, side in zip(rolled, window, strict=True):
            number = number * side + r % side
        inside.setdefault(key, []).append((place, came_round, number))
    whole = torch.zeros(*padded, x.shape[3], dtype=x.dtype)
    whole[: grid[0], : grid[1], : grid[2]] = x
    qkv = whole @ _weight(f"{name}.qkv.weight").T + _weight(f"{name}.qkv.bias")
    table, out = _weight(f"{name}.relative_position_bias_table"), torch.zeros_like(whole)
    for members in inside.values():
        rows = torch.stack([qkv[place] for place, _, _ in members]).chunk(3, dim=-1)
        bias = torch.zeros(heads, len(members), len(members), dtype=x.dtype)
        for (i, (_, round_i, at_i)), (j, (_, round_j, at_j)) in itertools.product(enumerate(members), repeat=2):
            # As published, numbers of a smaller window are taken for those of a whole one.
            one, other = (divmod(at, WINDOW * WINDOW) for at in (at_i, at_j))
            steps = [one[0] - other[0], one[1] // WINDOW - other[1] // WINDOW, one[1] % WINDOW - other[1] % WINDOW]
            row = 0
            for step in steps:
                row = row * (2 * WINDOW - 1) + step + WINDOW - 1
            bias[:, i, j] = table[row] - (0 if round_i == round_j else 100)
        mixed = []
        for head, (q, k, v) in enumerate(zip(*(part.chunk(heads, dim=-1) for part in rows), strict=True)):
            mixed.append((q @ k.T / q.shape[-1] ** 0.5 + bias[head]).softmax(-1) @ v)
        new = torch.cat(mixed, -1) @ _weight(f"{name}.proj.weight").T + _weight(f"{name}.proj.bias")
        for (place, _, _), value in zip(members, new, strict=True):
            out[place] = value
    return out[: grid[0], : grid[1], : grid[2]]


def _mlp(x: Tensor, name: str) -> Tensor:
    hidden = x @ _weight(f"{name}.linear1.weight").T + _weight(f"{name}.linear1.bias")
    hidden = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
    return hidden @ _weight(f"{name}.linear2.weight").T + _weight(f"{name}.linear2.bias")


def _plain_tokens(scan: Tensor, merging: str) -> Tensor:
    """Tokens (z, y, x, C) of a scan (z, y, x) from feet to head, front to back, right to left."""
    to_right_front_head = scan.double().permute(2, 1, 0).flip(0, 1)
    kernel = _weight("patch_embed.proj.weight")[:, 0]
    x = sum(
        to_right_front_head[i::2, j::2, k::2, None] * kernel[:, i, j, k]
        for i, j, k in itertools.product(range(2), repeat=3)
    ) + _weight("patch_embed.proj.bias")
    assert isinstance(x, Tensor)
    for stage, heads in enumerate(HEADS):
        start = f"layers{stage + 1}"
        inner = _leaky(_convolved(x, f"{start}c.0.layer.conv1.conv.weight"))
        x = _leaky(_convolved(inner, f"{start}c.0.layer.conv2.conv.weight") + x)
        for block in range(2):
            name = f"{start}.0.blocks.{block}"
            x = x + _attention(_norm(x, f"{name}.norm1"), f"{name}.attn", heads, shifted=block == 1)
            x = x + _mlp(_norm(x, f"{name}.norm2"), f"{name}.mlp")
        eight = torch.cat([x[int(i) :: 2, int(j) :: 2, int(k) :: 2] for i, j, k in PAIRS[merging]], -1)
        x = _norm(eight, f"{start}.0.downsample.norm") @ _weight(f"{start}.0.downsample.reduction.weight").T
    return _plain_norm(x).flip(0, 1).permute(2, 1, 0, 3)


@pytest.mark.parametrize("merging", ["repeated", "each"])
def test_tokens_are_those_of_the_plain_computation(merging: str, file: Path, scan: Tensor) -> None:
    encoder = CONFIG.model_copy(update={"path": str(file), "merging": merging}).build(0).eval()
    with torch.no_grad():
        features = encoder(torch.stack([scan, 1 - scan])[:, None])
    assert features.grid == (1, 2, 1)
    for tokens, plain in zip(features.tokens, (scan, 1 - scan), strict=True):
        torch.testing.assert_close(tokens.double(), _plain_tokens(plain, merging).flatten(0, 2), atol=1e-5, rtol=1e-5)
    assert sorted(name for name in encoder.left_aside if not name.endswith("position_index")) == [
        "encoder1.layer.conv1.conv.weight",
        "encoder10.layer.conv1.conv.weight",
        "swinViT.layers3.0.downsample.norm.weight",
    ]


@pytest.mark.parametrize(
    ("start", "hidden"),
    [
        ("swinViT.", "linear"),
        ("backbone.swinViT.", "linear"),
        ("module.", "fc"),
        ("encoder.", "linear"),
        ("", "linear"),
    ],
)
def test_weights_of_other_trainings_with_other_key_names_load(
    start: str, hidden: str, scan: Tensor, tmp_path: Path
) -> None:
    """VoCo's and SuPreM's, NVIDIA's, and MONAI's, which counts its stages twice."""
    named = {}
    for name, value in PUBLISHED.items():
        if name.startswith("swinViT.") and "layers3" not in name:
            inner = name.removeprefix("swinViT.").replace("mlp.linear", f"mlp.{hidden}")
            named[start + (inner.replace(".0.blocks", ".0.0.blocks") if start == "encoder." else inner)] = value
    torch.save({"model": named}, tmp_path / "weights.pt")
    encoder = CONFIG.model_copy(update={"path": str(tmp_path / "weights.pt")}).build(0).eval()
    with torch.no_grad():
        tokens = encoder(scan[None, None]).tokens[0].double()
    torch.testing.assert_close(tokens, _plain_tokens(scan, "repeated").flatten(0, 2), atol=1e-5, rtol=1e-5)


def test_a_restored_run_does_not_read_the_file(file: Path, scan: Tensor, tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"path": str(file)})
    encoder = config.build(0).eval()
    restored = config.model_copy(update={"path": "gone.pt"}).build(0, saved=tmp_path).eval()
    restored.load_state_dict(encoder.state_dict(), strict=True)
    torch.testing.assert_close(restored(scan[None, None]).tokens, encoder(scan[None, None]).tokens)


def test_misfitting_weights_are_named(file: Path, tmp_path: Path) -> None:
    def refused(**changes: object) -> str:
        with pytest.raises(InputError) as caught:
            CONFIG.model_copy(update={"path": str(file), **changes}).build(0)
        return str(caught.value)

    assert "'vision_encoder.width': the weights are of another size (got 8, expected 4)" in refused(
        width=8, num_heads=(2, 4)
    )
    assert "'vision_encoder.residual': the weights are of another size (got false, expected true)" in refused(
        residual=False
    )
    torch.save({"fc.weight": torch.zeros(1)}, tmp_path / "other.pt")
    assert "swinViT.patch_embed.proj.weight" in refused(path=str(tmp_path / "other.pt"))
    cut = {name: value for name, value in PUBLISHED.items() if name != "swinViT.layers2.0.blocks.1.attn.qkv.bias"}
    torch.save(cut, tmp_path / "cut.pt")
    assert "missing stages.1.blocks.1.attention.qkv.bias" in refused(path=str(tmp_path / "cut.pt"))
    with pytest.raises(InputError, match="multiples of 8"):
        CONFIG.build(0)(torch.zeros(1, 1, 8, 8, 12))
    with pytest.raises(InputError, match="takes volumes"):
        CONFIG.build(0)(torch.zeros(1, 1, 8, 8))
    for wrong in ({"num_heads": (2,)}, {"num_heads": (2, 3)}, {"depths": (1,) * 5, "num_heads": (1,) * 5}):
        with pytest.raises(ValidationError):
            SwinUnetrConfig(**{"width": WIDTH, "depths": (2, 2), **wrong})
