"""VMamba: its parts against plain loops, its sizes, and checkpoints in the published layout."""

from __future__ import annotations

import math
import sys
import types
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from radweave.core.batch import VisionEncoder
from radweave.core.config import Config, override
from radweave.core.errors import InputError
from radweave.nn.vision import VisionEncoderConfig, VMambaConfig
from radweave.nn.vision.vmamba import (
    NUM_DIRECTIONS,
    SS2D,
    VMAMBA_BASE,
    VMAMBA_SMALL,
    VMAMBA_TINY,
    VMambaEncoder,
    VSSBlock,
    cross_merge,
    cross_scan,
    drop_branch,
)

SMALLEST = VMambaConfig(channels=3, dims=(16, 24), depths=(1, 2), d_state=2, mlp_ratio=2.0, drop_path=0.2)
# float32 sums of a few hundred terms near 1, in another order.
TOLERANCE = 1e-5


def scan_orders(height: int, width: int) -> list[list[tuple[int, int]]]:
    """The four orders in which the grid is read, one cell at a time."""
    by_rows = [(row, column) for row in range(height) for column in range(width)]
    by_columns = [(row, column) for column in range(width) for row in range(height)]
    return [by_rows, by_columns, by_rows[::-1], by_columns[::-1]]


def test_cross_scan_reads_and_cross_merge_writes_in_four_orders() -> None:
    x = torch.randn(2, 3, 4, 5)
    sequences = cross_scan(x)
    y = torch.randn(sequences.shape)
    merged = torch.zeros(2, 3, 4, 5)
    for direction, order in enumerate(scan_orders(3, 4)):
        for token, (row, column) in enumerate(order):
            assert torch.equal(sequences[:, direction, token], x[:, row, column])
            merged[:, row, column] += y[:, direction, token]
    torch.testing.assert_close(cross_merge(y, 3, 4), merged, atol=1e-6, rtol=0)


def layer_norm(values: list[float], norm: nn.LayerNorm) -> list[float]:
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    scaled = [(value - mean) / math.sqrt(variance + norm.eps) for value in values]
    return [s * w + b for s, w, b in zip(scaled, norm.weight.tolist(), norm.bias.tolist(), strict=True)]


def matvec(matrix: Tensor, vector: list[float]) -> list[float]:
    return [sum(m * v for m, v in zip(row, vector, strict=True)) for row in matrix.tolist()]


def silu(value: float) -> float:
    return value / (1 + math.exp(-value))


@torch.no_grad()
def ss2d_by_loops(module: SS2D, z: Tensor) -> list[list[list[float]]]:
    """SS2D of one image (h, w, d), from the equations in its docstring, number by number."""
    height, width, _ = z.shape
    kernel = module.conv.weight.tolist()
    projected = [[matvec(module.in_proj.weight, z[r, c].tolist()) for c in range(width)] for r in range(height)]
    inner, states = len(projected[0][0]), module.d_state
    x = [[[0.0] * inner for _ in range(width)] for _ in range(height)]
    for r in range(height):
        for c in range(width):
            for e in range(inner):
                total = 0.0
                for i in range(3):
                    for j in range(3):
                        if 0 <= r + i - 1 < height and 0 <= c + j - 1 < width:
                            total += kernel[e][0][i][j] * projected[r + i - 1][c + j - 1][e]
                x[r][c][e] = silu(total)
    merged = [[[0.0] * inner for _ in range(width)] for _ in range(height)]
    A = (-module.A_log.exp()).view(NUM_DIRECTIONS, inner, states).tolist()
    D = module.D.view(NUM_DIRECTIONS, inner).tolist()
    for k, order in enumerate(scan_orders(height, width)):
        h = [[0.0] * states for _ in range(inner)]
        for r, c in order:
            u = x[r][c]
            mixed = matvec(module.token_proj[k], u)
            rank_part, B, C = (
                mixed[: module.rank],
                mixed[module.rank : module.rank + states],
                mixed[module.rank + states :],
            )
            raw = matvec(module.step_proj[k], rank_part)
            for e in range(inner):
                delta = math.log1p(math.exp(raw[e] + float(module.step_bias[k, e])))
                h[e] = [math.exp(delta * A[k][e][n]) * h[e][n] + delta * B[n] * u[e] for n in range(states)]
                merged[r][c][e] += sum(C[n] * h[e][n] for n in range(states)) + D[k][e] * u[e]
    return [
        [matvec(module.out_proj.weight, layer_norm(merged[r][c], module.out_norm)) for c in range(width)]
        for r in range(height)
    ]


def scrambled(module: nn.Module) -> nn.Module:
    """Every weight random, so that none can be left out unseen."""
    generator = torch.Generator().manual_seed(3)
    for parameter in module.parameters():
        parameter.data.normal_(0, 0.5, generator=generator)
    return module.eval()


@pytest.mark.parametrize("d_state", [1, 3])
def test_ss2d_is_its_equations(d_state: int) -> None:
    module = SS2D(dim=6, d_state=d_state, ssm_ratio=1.5, scan="auto")
    scrambled(module)
    z = torch.randn(2, 3, 4, 6, generator=torch.Generator().manual_seed(0))
    out = module(z)
    for image in range(2):
        torch.testing.assert_close(out[image], torch.tensor(ss2d_by_loops(module, z[image])), atol=TOLERANCE, rtol=1e-4)


def test_a_block_is_its_equations() -> None:
    block = VSSBlock(dim=6, d_state=2, ssm_ratio=1.0, mlp_ratio=2.0, drop_path=0.3, scan="auto")
    scrambled(block)
    z = torch.randn(1, 2, 3, 6, generator=torch.Generator().manual_seed(0))
    normed = torch.tensor([[layer_norm(z[0, r, c].tolist(), block.scan_norm) for c in range(3)] for r in range(2)])
    middle = z[0] + torch.tensor(ss2d_by_loops(block.scan, normed))
    expected = torch.empty_like(middle)
    for r in range(2):
        for c in range(3):
            first, _, second = block.mlp
            hidden = matvec(first.weight, layer_norm(middle[r, c].tolist(), block.mlp_norm))
            hidden = [value + bias for value, bias in zip(hidden, first.bias.tolist(), strict=True)]
            hidden = [value * 0.5 * (1 + math.erf(value / math.sqrt(2))) for value in hidden]
            expected[r, c] = middle[r, c] + torch.tensor(matvec(second.weight, hidden)) + second.bias
    torch.testing.assert_close(block(z)[0], expected, atol=TOLERANCE, rtol=1e-4)


@pytest.mark.parametrize(
    ("config", "millions"), [(VMAMBA_TINY, 30), (VMAMBA_SMALL, 50), (VMAMBA_BASE, 89)], ids=["tiny", "small", "base"]
)
def test_the_published_models_have_their_published_size(config: VMambaConfig, millions: int) -> None:
    with torch.device("meta"):
        encoder = config.build(224)
    classifier = 1000 * (encoder.dim + 1)
    total = sum(parameter.numel() for parameter in encoder.parameters()) + classifier
    assert round(total / 1e6) == millions


@pytest.mark.parametrize(("size", "grid"), [((32, 32), (4, 4)), ((30, 50), (4, 7)), ((33, 16), (5, 2))])
def test_tokens_fill_the_grid(size: tuple[int, int], grid: tuple[int, int]) -> None:
    encoder = SMALLEST.build(32).eval()
    assert isinstance(encoder, VisionEncoder)
    features = encoder(torch.rand(2, 1, *size))
    assert features.grid == grid
    assert features.tokens.shape == (2, grid[0] * grid[1], encoder.dim)


def test_tokens_are_in_row_major_order() -> None:
    encoder = SMALLEST.build(64).eval()
    dark, bright = torch.zeros(1, 1, 64, 96), torch.zeros(1, 1, 64, 96)
    bright[:, :, :8, -8:] = 1.0
    difference = (encoder(bright).tokens - encoder(dark).tokens).norm(dim=-1)[0]
    rows, columns = encoder(dark).grid
    corners = difference[[0, columns - 1, (rows - 1) * columns, rows * columns - 1]]
    assert int(corners.argmax()) == 1


def test_grey_images_are_repeated_and_standardised() -> None:
    encoder = SMALLEST.build(32).eval()
    grey = torch.rand(1, 1, 32, 32)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    x = encoder.embedding((grey.permute(0, 2, 3, 1) - mean) / std)
    for stage in encoder.stages:
        x = stage(x)
    torch.testing.assert_close(encoder(grey).tokens, encoder.norm(x).flatten(1, 2), atol=1e-6, rtol=0)


def test_gradients_reach_every_weight_and_the_scans_back_ends_agree() -> None:
    torch.manual_seed(0)
    pixels = torch.rand(2, 1, 32, 32)
    encoder = SMALLEST.build(32).eval()
    weights = torch.randn(2, 16, encoder.dim)
    (encoder(pixels).tokens * weights).sum().backward()
    gradients = {name: parameter.grad for name, parameter in encoder.named_parameters()}
    assert all(gradient is not None and float(gradient.abs().max()) > 0 for gradient in gradients.values())
    looped = SMALLEST.model_copy(update={"scan": "loop"}).build(32).eval()
    looped.load_state_dict(encoder.state_dict())
    (looped(pixels).tokens * weights).sum().backward()
    for name, parameter in looped.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], atol=1e-4, rtol=1e-4)


def test_drop_path_draws_in_training_only_and_images_do_not_see_each_other() -> None:
    torch.manual_seed(0)
    encoder = SMALLEST.build(32)
    pixels = torch.rand(3, 1, 32, 32)
    encoder.eval()
    together = encoder(pixels).tokens
    assert torch.equal(encoder(pixels).tokens, together)
    for index in range(3):
        alone = encoder(pixels[index : index + 1]).tokens[0]
        torch.testing.assert_close(alone, together[index], atol=TOLERANCE, rtol=0)
    encoder.train()
    assert not torch.equal(encoder(pixels.repeat(8, 1, 1, 1)).tokens, encoder(pixels.repeat(8, 1, 1, 1)).tokens)


def test_a_dropped_branch_is_scaled_so_that_its_mean_stays() -> None:
    torch.manual_seed(0)
    retained = drop_branch(torch.ones(20_000, 1, 1, 4), 0.25)
    assert retained.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    # The mean of 20,000 draws of variance 1/3 has a standard deviation of 0.004.
    assert float(retained.mean()) == pytest.approx(1.0, abs=0.02)
    assert (retained.flatten(1).std(dim=1) == 0).all()


def published_names(encoder: VMambaEncoder, *, conv_projections: bool) -> dict[str, Tensor]:
    """The encoder's weights in the layout of the published files, a classifier of 5 classes included.

    Their 1 x 1 projections are stored as (out, in) or, in files of some versions, as (out, in, 1, 1).
    """
    modules: dict[str, nn.Module] = {
        "patch_embed.0": encoder.embedding[0].conv,
        "patch_embed.2": encoder.embedding[0].norm,
        "patch_embed.5": encoder.embedding[2].conv,
        "patch_embed.7": encoder.embedding[2].norm,
        "classifier.norm": encoder.norm,
        "classifier.head": nn.Linear(encoder.dim, 5),
    }
    tensors: dict[str, Tensor] = {}
    for s, stage in enumerate(encoder.stages):
        if s:
            modules[f"layers.{s - 1}.downsample.1"] = stage.downsample.conv
            modules[f"layers.{s - 1}.downsample.3"] = stage.downsample.norm
        for b, block in enumerate(stage.blocks):
            prefix = f"layers.{s}.blocks.{b}"
            modules[f"{prefix}.norm"] = block.scan_norm
            modules[f"{prefix}.norm2"] = block.mlp_norm
            modules[f"{prefix}.mlp.fc1"] = block.mlp[0]
            modules[f"{prefix}.mlp.fc2"] = block.mlp[2]
            modules[f"{prefix}.op.in_proj"] = block.scan.in_proj
            modules[f"{prefix}.op.conv2d"] = block.scan.conv
            modules[f"{prefix}.op.out_norm"] = block.scan.out_norm
            modules[f"{prefix}.op.out_proj"] = block.scan.out_proj
            tensors[f"{prefix}.op.x_proj_weight"] = block.scan.token_proj
            tensors[f"{prefix}.op.dt_projs_weight"] = block.scan.step_proj
            tensors[f"{prefix}.op.dt_projs_bias"] = block.scan.step_bias
            tensors[f"{prefix}.op.A_logs"] = block.scan.A_log
            tensors[f"{prefix}.op.Ds"] = block.scan.D
    for name, part in modules.items():
        for kind, parameter in part.named_parameters():
            tensors[f"{name}.{kind}"] = parameter
    result = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    if conv_projections:
        for name in result:
            if name.endswith(("in_proj.weight", "out_proj.weight", "fc1.weight", "fc2.weight")):
                result[name] = result[name][:, :, None, None]
    return result


@pytest.fixture
def encoder() -> VMambaEncoder:
    built = SMALLEST.build(32)
    scrambled(built)
    return built


@pytest.mark.parametrize("conv_projections", [False, True])
@pytest.mark.parametrize("kind", ["safetensors file", "folder", "torch file"])
def test_a_published_checkpoint_gives_the_same_features(
    encoder: VMambaEncoder, tmp_path: Path, kind: str, conv_projections: bool
) -> None:
    published = published_names(encoder, conv_projections=conv_projections)
    path = tmp_path / "model.safetensors"
    if kind == "torch file":
        path = tmp_path / "vssm_ckpt_epoch_237.pth"
        torch.save({"model": published, "epoch": 237, "max_accuracy": 83.9}, path)
    else:
        save_file(published, path)
    loaded = override(SMALLEST, [f"path={tmp_path if kind == 'folder' else path}"]).build(32).eval()
    pixels = torch.rand(1, 1, 32, 32)
    assert torch.equal(loaded(pixels).tokens, encoder(pixels).tokens)
    assert loaded.left_aside == ("classifier.head.bias", "classifier.head.weight")


def test_the_training_configuration_in_a_published_file_is_read_past(
    encoder: VMambaEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class CfgNode(dict):  # type: ignore[type-arg]
        pass

    CfgNode.__module__, CfgNode.__qualname__ = "yacs.config", "CfgNode"
    module = types.ModuleType("yacs.config")
    module.CfgNode = CfgNode  # type: ignore[attr-defined]
    path = tmp_path / "vssm.pth"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "yacs", types.ModuleType("yacs"))
        patch.setitem(sys.modules, "yacs.config", module)
        node = CfgNode(TYPE="vssm", DATA=CfgNode(IMG_SIZE=224))
        node.__dict__["immutable"] = True
        torch.save({"model": published_names(encoder, conv_projections=False), "config": node}, path)
    loaded = override(SMALLEST, [f"path={path}"]).build(32).eval()
    pixels = torch.rand(1, 1, 32, 32)
    assert torch.equal(loaded(pixels).tokens, encoder(pixels).tokens)


def test_a_missing_an_unexpected_and_a_misshapen_weight_are_refused(encoder: VMambaEncoder, tmp_path: Path) -> None:
    published = published_names(encoder, conv_projections=False)
    path = tmp_path / "model.safetensors"
    config = override(SMALLEST, [f"path={path}"])
    gone = dict(published)
    del gone["layers.1.blocks.1.op.Ds"]
    save_file(gone, path)
    with pytest.raises(InputError, match=r"missing stages\.1\.blocks\.1\.scan\.D"):
        config.build(32)
    save_file({**published, "layers.1.blocks.1.op.z_proj.weight": torch.zeros(2)}, path)
    with pytest.raises(InputError, match=r"unexpected stages\.1\.blocks\.1\.op\.z_proj\.weight"):
        config.build(32)
    save_file({**published, "layers.0.blocks.0.op.Ds": torch.zeros(3)}, path)
    with pytest.raises(InputError, match=r"'stages\.0\.blocks\.0\.scan\.D' has another shape"):
        config.build(32)


def test_files_that_hold_no_weights_are_refused(tmp_path: Path) -> None:
    def build(path: Path) -> None:
        override(SMALLEST, [f"path={path}"]).build(32)

    with pytest.raises(InputError, match="no such file or folder"):
        build(tmp_path / "none.pth")
    with pytest.raises(InputError, match="cannot tell which weights file"):
        build(tmp_path)
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(b"\xff" * 64)
    with pytest.raises(InputError, match="not a whole safetensors file"):
        build(damaged)
    empty = tmp_path / "empty.pth"
    torch.save({"model": {}}, empty)
    with pytest.raises(InputError, match="holds no tensors by name"):
        build(empty)


class _Runs:
    """Unpickled, it would write a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.write_text, (self.target, "ran"))


def test_code_in_a_torch_file_is_never_run(tmp_path: Path) -> None:
    path, target = tmp_path / "weights.pth", tmp_path / "ran.txt"
    torch.save({"model": _Runs(target)}, path)
    with pytest.raises(InputError, match="not a readable weights file"):
        override(SMALLEST, [f"path={path}"]).build(32)
    assert not target.exists()


def test_a_restored_run_needs_no_checkpoint(encoder: VMambaEncoder, tmp_path: Path) -> None:
    config = override(SMALLEST, [f"path={tmp_path / 'gone.safetensors'}"])
    folder = tmp_path / "parts" / "vision_encoder"
    encoder.architecture.save_pretrained(str(folder))
    assert (folder / "config.json").is_file()
    restored = config.build(32, saved=folder)
    restored.load_state_dict(encoder.state_dict())
    pixels = torch.rand(1, 1, 32, 32)
    assert torch.equal(restored.eval()(pixels).tokens, encoder(pixels).tokens)


def test_it_is_chosen_by_its_kind_and_volumes_and_uneven_stages_are_refused() -> None:
    class Part(Config):
        vision_encoder: VisionEncoderConfig = SMALLEST

    chosen = override(Part(), ["vision_encoder=resnet", "vision_encoder=vmamba"]).vision_encoder
    assert chosen == VMambaConfig()
    with pytest.raises(InputError, match="takes images"):
        SMALLEST.build(32)(torch.rand(1, 1, 4, 32, 32))
    with pytest.raises(InputError, match="one value per stage"):
        override(SMALLEST, ["depths=[1, 1, 1]"])
