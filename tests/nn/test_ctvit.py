"""CT-ViT: a checkpoint with CT-CLIP's names beside a plain computation from the same tensors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from radweave.core.errors import InputError
from radweave.nn.vision import CtVitConfig

DIM, SLAB, SIDE, HEADS, HEAD, CODES = 12, 2, 4, 2, 6, 40
HIDDEN = int(4 * (2 / 3) * DIM)
SIZE = (3 * SLAB, 2 * SIDE, 3 * SIDE)
GRID = (3, 2, 3)
CONFIG = CtVitConfig(
    width=DIM, slab=SLAB, patch_size=SIDE, spatial_layers=2, temporal_layers=2, num_heads=HEADS, head_dim=HEAD,
    codebook_size=CODES,
)  # fmt: skip


def _published() -> dict[str, Tensor]:
    """An encoder by the published names, with what else lies in CT-CLIP's file."""
    torch.manual_seed(0)
    voxels = SLAB * SIDE * SIDE
    shapes: dict[str, tuple[int, ...]] = {
        "to_patch_emb.1.weight": (voxels,), "to_patch_emb.1.bias": (voxels,),
        "to_patch_emb.2.weight": (DIM, voxels), "to_patch_emb.2.bias": (DIM,),
        "to_patch_emb.3.weight": (DIM,), "to_patch_emb.3.bias": (DIM,),
        "spatial_rel_pos_bias.net.0.0.weight": (DIM, 2), "spatial_rel_pos_bias.net.0.0.bias": (DIM,),
        "spatial_rel_pos_bias.net.1.0.weight": (DIM, DIM), "spatial_rel_pos_bias.net.1.0.bias": (DIM,),
        "spatial_rel_pos_bias.net.2.weight": (HEADS, DIM), "spatial_rel_pos_bias.net.2.bias": (HEADS,),
        "vq._codebook.embed": (1, CODES, DIM), "to_pixels.0.weight": (voxels, DIM),
    }  # fmt: skip
    for part in ("enc_spatial_transformer", "enc_temporal_transformer", "dec_spatial_transformer"):
        shapes[f"{part}.norm_out.gamma"] = shapes[f"{part}.norm_out.beta"] = (DIM,)
        for layer in range(2):
            for name, shape in {
                "0.dsconv.weight": (DIM, 1, 3, 3, 3), "0.dsconv.bias": (DIM,), "1.norm.gamma": (DIM,),
                "1.norm.beta": (DIM,), "1.context_norm.gamma": (DIM,), "1.context_norm.beta": (DIM,),
                "1.null_kv": (HEADS, 0, HEAD), "1.to_q.weight": (HEADS * HEAD, DIM),
                "1.to_kv.weight": (2 * HEADS * HEAD, DIM), "1.q_scale": (HEAD,), "1.k_scale": (HEAD,),
                "1.to_out.weight": (DIM, HEADS * HEAD), "3.0.weight": (DIM,), "3.0.bias": (DIM,),
                "3.1.weight": (2 * HIDDEN, DIM), "3.4.weight": (DIM, HIDDEN),
            }.items():  # fmt: skip
                shapes[f"{part}.layers.{layer}.{name}"] = shape
    tensors = {name: torch.randn(shape) / max(1, shape[-1]) ** 0.5 for name, shape in shapes.items()}
    book = tensors["vq._codebook.embed"]
    tensors["vq._codebook.embed"] = book / book.norm(dim=-1, keepdim=True)
    tensors = {name: torch.zeros_like(t) if name.endswith("beta") else t for name, t in tensors.items()}
    whole = {f"visual_transformer.{name}": tensor for name, tensor in tensors.items()}
    return {**whole, "to_visual_latent.weight": torch.zeros(2, 2), "temperature": torch.tensor(1.0)}


PUBLISHED = _published()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ct") / "CT-CLIP_v2.pt"
    torch.save(PUBLISHED, path)
    return path


def _weight(name: str) -> Tensor:
    return PUBLISHED[f"visual_transformer.{name}"].double()


def _norm(x: Tensor, weight: str, bias: str | None = None) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * _weight(weight)
    return scaled if bias is None else scaled + _weight(bias)


def _leaky(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0.1 * x)


def _positions(x: Tensor, layer: str) -> Tensor:
    """The convolution voxel by voxel, over (slab, row, column); tokens before the first slab are zeros."""
    kernel, bias = _weight(f"{layer}.0.dsconv.weight")[:, 0], _weight(f"{layer}.0.dsconv.bias")
    out = torch.zeros_like(x)
    for t in range(GRID[0]):
        for h in range(GRID[1]):
            for w in range(GRID[2]):
                total = bias.clone()
                for i in range(3):
                    for j in range(3):
                        for k in range(3):
                            at = (t + i - 2, h + j - 1, w + k - 1)
                            if all(0 <= place < edge for place, edge in zip(at, GRID, strict=True)):
                                total = total + kernel[:, i, j, k] * x[at]
                out[t, h, w] = total
    return out


def _attention(x: Tensor, layer: str, bias: Tensor | None) -> Tensor:
    """Of one row of tokens (T, D)."""
    queries = _norm(x, f"{layer}.1.norm.gamma") @ _weight(f"{layer}.1.to_q.weight").T
    both = x @ _weight(f"{layer}.1.to_kv.weight").T
    keys, values = both[:, : HEADS * HEAD], both[:, HEADS * HEAD :]
    heads = []
    for head in range(HEADS):
        part = slice(head * HEAD, (head + 1) * HEAD)
        q = queries[:, part] / queries[:, part].norm(dim=-1, keepdim=True) * _weight(f"{layer}.1.q_scale")
        k = keys[:, part] / keys[:, part].norm(dim=-1, keepdim=True) * _weight(f"{layer}.1.k_scale")
        scores = 8 * q @ k.T + (0 if bias is None else bias[head])
        heads.append(scores.softmax(-1) @ values[:, part])
    return torch.cat(heads, -1) @ _weight(f"{layer}.1.to_out.weight").T


def _feed_forward(x: Tensor, layer: str) -> Tensor:
    both = _norm(x, f"{layer}.3.0.weight", f"{layer}.3.0.bias") @ _weight(f"{layer}.3.1.weight").T
    value, gate = both[..., :HIDDEN], both[..., HIDDEN:]
    return value * (gate * 0.5 * (1 + torch.erf(gate / 2**0.5))) @ _weight(f"{layer}.3.4.weight").T


def _bias() -> Tensor:
    cells = [(h, w) for h in range(GRID[1]) for w in range(GRID[2])]
    bias = torch.zeros(HEADS, len(cells), len(cells), dtype=torch.float64)
    for i, one in enumerate(cells):
        for j, other in enumerate(cells):
            apart = torch.tensor([float(a - b) for a, b in zip(one, other, strict=True)]).double()
            x = apart.sign() * torch.log(apart.abs() + 1)
            for name in ("0.0", "1.0"):
                weight, shift = (_weight(f"spatial_rel_pos_bias.net.{name}.{end}") for end in ("weight", "bias"))
                x = _leaky(weight @ x + shift)
            bias[:, i, j] = _weight("spatial_rel_pos_bias.net.2.weight") @ x + _weight(
                "spatial_rel_pos_bias.net.2.bias"
            )
    return bias


def _plain_tokens(scan: Tensor) -> Tensor:
    """The tokens (slabs, rows, columns, D) of one scan (D, H, W) in [0, 1]."""
    voxels = 2 * scan.double() - 1
    x = torch.zeros(*GRID, DIM, dtype=torch.float64)
    for t in range(GRID[0]):
        for h in range(GRID[1]):
            for w in range(GRID[2]):
                patch = voxels[t * SLAB : (t + 1) * SLAB, h * SIDE : (h + 1) * SIDE, w * SIDE : (w + 1) * SIDE]
                flat = _norm(patch.flatten(), "to_patch_emb.1.weight", "to_patch_emb.1.bias")
                flat = _weight("to_patch_emb.2.weight") @ flat + _weight("to_patch_emb.2.bias")
                x[t, h, w] = _norm(flat, "to_patch_emb.3.weight", "to_patch_emb.3.bias")
    bias = _bias()
    for number in range(2):
        layer = f"enc_spatial_transformer.layers.{number}"
        x = x + _positions(x, layer)
        attended = torch.stack([_attention(slab.flatten(0, 1), layer, bias) for slab in x])
        x = x + attended.view_as(x)
        x = x + _feed_forward(x, layer)
    x = _norm(x, "enc_spatial_transformer.norm_out.gamma")
    # As published: the tokens lie in the order (row, column, slab) when they are taken for (slab, row, column).
    rows = x.permute(1, 2, 0, 3).reshape(-1, GRID[0], DIM)
    for number in range(2):
        layer = f"enc_temporal_transformer.layers.{number}"
        rows = rows + _positions(rows.reshape(*GRID, DIM), layer).reshape(rows.shape)
        rows = rows + torch.stack([_attention(row, layer, None) for row in rows])
        rows = rows + _feed_forward(rows, layer)
    rows = _norm(rows, "enc_temporal_transformer.norm_out.gamma")
    return rows.view(GRID[1], GRID[2], GRID[0], DIM).permute(2, 0, 1, 3)


@pytest.fixture(scope="module")
def scan() -> Tensor:
    torch.manual_seed(1)
    return torch.rand(SIZE)


def test_tokens_are_those_of_the_plain_computation(file: Path, scan: Tensor) -> None:
    encoder = CONFIG.model_copy(update={"path": str(file)}).build(0).eval()
    with torch.no_grad():
        features = encoder(torch.stack([scan, 1 - scan])[:, None])
    assert features.grid == GRID
    for tokens, plain in zip(features.tokens, (scan, 1 - scan), strict=True):
        torch.testing.assert_close(tokens.double(), _plain_tokens(plain).flatten(0, 2), atol=1e-5, rtol=1e-5)
    assert "temperature" in encoder.left_aside
    idle = [name for name in encoder.left_aside if ".enc_" in name]
    assert all(re.search("beta$|null_kv$|context_norm", name) for name in idle)


def test_codes_are_the_nearest_in_direction_and_pass_gradients(file: Path, scan: Tensor) -> None:
    encoder = CONFIG.model_copy(update={"path": str(file), "codes": True}).build(0).eval()
    tokens = encoder(scan[None, None]).tokens
    book = _weight("vq._codebook.embed")[0]
    for token, plain in zip(tokens[0].double(), _plain_tokens(scan).flatten(0, 2), strict=True):
        cosines = [float(plain @ code) for code in book]
        torch.testing.assert_close(token, book[cosines.index(max(cosines))], atol=1e-6, rtol=1e-6)
    tokens.sum().backward()
    assert encoder.patches[1].weight.grad.abs().sum() > 0


def test_a_restored_run_does_not_read_the_file(file: Path, scan: Tensor, tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"path": str(file), "codes": True})
    encoder = config.build(0).eval()
    restored = config.model_copy(update={"path": "gone.pt"}).build(0, saved=tmp_path).eval()
    restored.load_state_dict(encoder.state_dict(), strict=True)
    torch.testing.assert_close(restored(scan[None, None]).tokens, encoder(scan[None, None]).tokens)


def test_missing_misshaped_and_indivisible_weights_are_named(file: Path, tmp_path: Path) -> None:
    name = "visual_transformer.enc_spatial_transformer.layers.1.1.to_q.weight"
    torch.save({key: value for key, value in PUBLISHED.items() if key != name}, tmp_path / "cut.pt")
    with pytest.raises(InputError, match=r"missing within\.1\.attention\.queries\.weight"):
        CONFIG.model_copy(update={"path": str(tmp_path / "cut.pt")}).build(0)
    with pytest.raises(InputError, match="do not belong"):
        CONFIG.model_copy(update={"path": str(file), "spatial_layers": 1}).build(0)
    with pytest.raises(InputError, match=r"data\.ct\.size"):
        CONFIG.build(0)(torch.zeros(1, 1, 3, 8, 8))
    with pytest.raises(ValidationError, match="give its path"):
        CtVitConfig(codes=True)


def test_the_published_sizes_are_the_defaults() -> None:
    with torch.device("meta"):
        encoder = CtVitConfig().build(0)
    sizes = {name: tuple(weight.shape) for name, weight in encoder.named_parameters()}
    assert sizes["patches.1.weight"] == (512, 15 * 30 * 30)
    assert sizes["within.3.feed_forward.1.weight"] == (2 * 1365, 512)
    assert sizes["along.3.attention.keys_values.weight"] == (2 * 8 * 32, 512)
