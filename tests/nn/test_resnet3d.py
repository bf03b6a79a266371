"""The 3D ResNet: its block against plain loops, its layouts, and checkpoints with the published names."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from radweave.core.batch import VisionEncoder
from radweave.core.config import Config, override
from radweave.core.errors import InputError
from radweave.nn.vision import ResNet3dConfig, VisionEncoderConfig
from radweave.nn.vision.resnet3d import (
    MEDICALNET_18,
    MEDICALNET_34,
    PHANTOM_ENCODER_3D,
    R3D_18,
    Layout,
    ResidualBlock,
    ResNet3dEncoder,
    Shortcut,
)

WIDTHS = (4, 4, 8, 8)
# float32 sums of about a hundred terms near 1, in another order.
TOLERANCE = 1e-5

Volume = list[list[list[list[float]]]]


def conv_by_loops(x: Volume, weight: Volume, stride: int, dilation: int) -> Volume:
    """A 3D convolution of one volume (c, d, h, w), number by number; padded so that stride 1 keeps the size."""
    size, kernel = [len(x[0]), len(x[0][0]), len(x[0][0][0])], len(weight[0][0])
    pad = dilation * (kernel // 2)
    steps = [(i, j, k) for i in range(kernel) for j in range(kernel) for k in range(kernel)]

    def at(channels: Volume, z: int, r: int, c: int) -> float:
        total = 0.0
        for w, v in zip(channels, x, strict=True):
            for i, j, k in steps:
                place = (
                    z * stride + i * dilation - pad,
                    r * stride + j * dilation - pad,
                    c * stride + k * dilation - pad,
                )
                if all(0 <= p < s for p, s in zip(place, size, strict=True)):
                    total += w[i][j][k] * v[place[0]][place[1]][place[2]]  # type: ignore[index, operator]
        return total

    out = [math.ceil(s / stride) for s in size]
    return [
        [[[at(channels, z, r, c) for c in range(out[2])] for r in range(out[1])] for z in range(out[0])]  # type: ignore[arg-type]
        for channels in weight
    ]


def norm_by_formula(x: Tensor, norm: nn.BatchNorm3d) -> Tensor:
    parameters = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    mean, variance, weight, bias = (value.view(-1, 1, 1, 1) for value in parameters if value is not None)
    return (x - mean) / (variance + norm.eps).sqrt() * weight + bias


def scrambled(module: nn.Module) -> None:
    """Every weight and statistic random, so that none can be left out unseen."""
    generator = torch.Generator().manual_seed(3)
    for value in [*module.parameters(), *(b for n, b in module.named_buffers() if n.endswith("running_mean"))]:
        value.data.normal_(0, 0.3, generator=generator)
    for name, value in module.named_buffers():
        if name.endswith("running_var"):
            value.uniform_(0.5, 2.0, generator=generator)
    module.eval()


@torch.no_grad()
@pytest.mark.parametrize(
    ("depth", "shortcut", "stride", "dilation", "channels", "width"),
    [
        (18, "projection", 1, 1, 3, 3),
        (18, "projection", 2, 1, 2, 3),
        (34, "zeros", 2, 1, 2, 3),
        (18, "zeros", 1, 2, 2, 3),
        (50, "projection", 2, 1, 2, 1),
        (50, "projection", 1, 4, 4, 1),
    ],
)
def test_a_block_is_its_equations(
    depth: int, shortcut: Shortcut, stride: int, dilation: int, channels: int, width: int
) -> None:
    config = ResNet3dConfig(depth=depth, shortcut=shortcut)  # type: ignore[arg-type]
    block = config._block(channels, width, stride, dilation)
    scrambled(block)
    x = torch.randn(channels, 3, 4, 2, generator=torch.Generator().manual_seed(0))
    out, last = x, len(block.convolutions) - 1
    for index, (conv, norm) in enumerate(zip(block.convolutions, block.norms, strict=True)):
        strided = stride if index == (1 if depth == 50 else 0) else 1
        dilated = dilation if conv.kernel_size[0] == 3 else 1
        out = norm_by_formula(torch.tensor(conv_by_loops(out.tolist(), conv.weight.tolist(), strided, dilated)), norm)
        out = out.clamp(min=0) if index < last else out
    if isinstance(block.shortcut, nn.Identity):
        residual = x
    elif shortcut == "zeros":
        residual = torch.zeros_like(out)
        residual[:channels] = x[:, ::stride, ::stride, ::stride]
    else:
        conv, norm = block.shortcut
        residual = norm_by_formula(torch.tensor(conv_by_loops(x.tolist(), conv.weight.tolist(), stride, 1)), norm)
    torch.testing.assert_close(block(x[None])[0], (out + residual).clamp(min=0), atol=TOLERANCE, rtol=1e-4)


def test_the_published_models_have_their_published_size() -> None:
    def size(config: ResNet3dConfig) -> int:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in config.build(0).parameters())

    # torchvision states 33,371,472 for r3d_18 with its classifier of 400; Med3D and MONAI round to 0.1 million.
    assert size(R3D_18) == 33_371_472 - 400 * (512 + 1)
    assert round(size(ResNet3dConfig()) / 1e6, 1) == 33.2
    assert round(size(MEDICALNET_18) / 1e6, 1) == 33.0
    assert round(size(MEDICALNET_34) / 1e6, 1) == 63.3


@pytest.mark.parametrize(
    ("layout", "depth", "grid"),
    [
        ("hara", 18, (2, 1, 2)),  # depth / 16, height and width / 32
        ("medicalnet", 34, (4, 4, 6)),  # all by 8
        ("r3d", 18, (4, 2, 3)),  # depth by 8, height and width by 16
        ("hara", 50, (2, 1, 2)),
    ],
)
def test_tokens_fill_the_grid_of_each_layout(layout: Layout, depth: int, grid: tuple[int, int, int]) -> None:
    encoder = ResNet3dConfig(layout=layout, depth=depth, widths=WIDTHS).build(0).eval()  # type: ignore[arg-type]
    assert isinstance(encoder, VisionEncoder)
    assert encoder.dim == (32 if depth == 50 else 8)
    features = encoder(torch.rand(2, 1, 32, 32, 48))
    assert features.grid == grid
    assert features.tokens.shape == (2, math.prod(grid), encoder.dim)


def test_medicalnet_dilates_its_last_stages_where_hara_strides() -> None:
    def by_stage(layout: Layout) -> list[tuple[int, int, int]]:
        """Stride of the first convolution, dilation of the first and of the last one, per stage."""
        stages = ResNet3dConfig(layout=layout, widths=WIDTHS).build(0).stages
        ends = [(stage[0].convolutions[0], stage[-1].convolutions[-1]) for stage in stages]
        return [(first.stride[0], first.dilation[0], last.dilation[0]) for first, last in ends]

    assert by_stage("medicalnet") == [(1, 1, 1), (2, 1, 1), (1, 2, 2), (1, 4, 4)]
    assert by_stage("hara") == [(1, 1, 1), (2, 1, 1), (2, 1, 1), (2, 1, 1)]


def test_tokens_are_in_depth_row_column_order() -> None:
    encoder = ResNet3dConfig(layout="r3d", widths=WIDTHS).build(0).eval()
    volumes = torch.rand(1, 1, 16, 48, 64)
    x = encoder.stem((volumes - encoder.mean) / encoder.std)
    for stage in encoder.stages:
        x = stage(x)
    features = encoder(volumes)
    depth, rows, columns = features.grid
    assert features.grid == (2, 3, 4)
    for z in range(depth):
        for r in range(rows):
            for c in range(columns):
                assert torch.equal(features.tokens[0, (z * rows + r) * columns + c], x[0, :, z, r, c])


def test_gradients_reach_every_weight_and_evaluation_is_deterministic() -> None:
    torch.manual_seed(0)
    encoder = PHANTOM_ENCODER_3D.build(0)
    volumes = torch.rand(2, 1, 32, 32, 32)
    tokens = encoder(volumes).tokens
    (tokens * torch.randn(tokens.shape)).sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().max()) > 0, name
    encoder.eval()
    together = encoder(volumes).tokens
    assert torch.equal(encoder(volumes).tokens, together)
    torch.testing.assert_close(encoder(volumes[1:]).tokens[0], together[1], atol=TOLERANCE, rtol=0)


def packed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """As safetensors wants them: an encoder's own lie in memory with channels last."""
    return {name: value.contiguous() for name, value in weights.items()}


def published_names(encoder: ResNet3dEncoder, source: str) -> dict[str, Tensor]:
    """The encoder's weights with the names of MedicalNet's or torchvision's files, a head included."""
    modules: dict[str, nn.Module] = {}
    video = source == "torchvision"
    modules["stem.0" if video else "conv1"] = encoder.stem[0]
    modules["stem.1" if video else "bn1"] = encoder.stem[1]
    for s, stage in enumerate(encoder.stages, start=1):
        for b, block in enumerate(stage):
            assert isinstance(block, ResidualBlock)
            for i, (conv, norm) in enumerate(zip(block.convolutions, block.norms, strict=True), start=1):
                modules[f"layer{s}.{b}.conv{i}" + (".0" if video else "")] = conv
                modules[f"layer{s}.{b}.conv{i}.1" if video else f"layer{s}.{b}.bn{i}"] = norm
            if isinstance(block.shortcut, nn.Sequential):
                modules[f"layer{s}.{b}.downsample.0"] = block.shortcut[0]
                modules[f"layer{s}.{b}.downsample.1"] = block.shortcut[1]
    modules["fc" if video else "conv_seg.0"] = nn.Linear(encoder.dim, 4)
    prefix = "" if video else "module."
    return {
        f"{prefix}{name}.{kind}": tensor.detach().clone()
        for name, module in modules.items()
        for kind, tensor in module.state_dict().items()
    }


@pytest.mark.parametrize(
    ("source", "config"),
    [
        ("torchvision", ResNet3dConfig(layout="r3d", channels=3, widths=WIDTHS)),
        ("medicalnet", ResNet3dConfig(layout="medicalnet", shortcut="zeros", widths=WIDTHS)),
        ("medicalnet", ResNet3dConfig(layout="medicalnet", shortcut="zeros", depth=34, widths=WIDTHS)),
        ("medicalnet", ResNet3dConfig(layout="medicalnet", depth=50, widths=WIDTHS)),
    ],
    ids=["r3d_18", "resnet_18", "resnet_34", "resnet_50"],
)
def test_a_published_checkpoint_gives_the_same_features(source: str, config: ResNet3dConfig, tmp_path: Path) -> None:
    encoder = config.build(0)
    scrambled(encoder)
    published = published_names(encoder, source)
    torch.save({"state_dict": published, "epoch": 1} if source == "medicalnet" else published, tmp_path / "weights.pth")
    save_file(packed(published), tmp_path / "weights.safetensors")
    volumes = torch.rand(1, 1, 16, 16, 16)
    for name in ("weights.pth", "weights.safetensors"):
        loaded = override(config, [f"path={tmp_path / name}"]).build(0).eval()
        assert torch.equal(loaded(volumes).tokens, encoder(volumes).tokens)
        head = "fc" if source == "torchvision" else "conv_seg.0"
        assert loaded.left_aside == (f"{head}.bias", f"{head}.weight")


def test_files_without_batch_counters_load_in_place_of_the_shipped_start(tmp_path: Path) -> None:
    encoder = PHANTOM_ENCODER_3D.build(0)
    scrambled(encoder)
    published = {k: v for k, v in published_names(encoder, "medicalnet").items() if "num_batches" not in k}
    save_file(packed(published), tmp_path / "weights.safetensors")
    loaded = override(PHANTOM_ENCODER_3D, [f"path={tmp_path}"]).build(0)
    assert torch.equal(loaded.stem[0].weight, encoder.stem[0].weight)


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    encoder = ResNet3dConfig(layout="medicalnet", shortcut="zeros", widths=WIDTHS).build(0)
    path = tmp_path / "weights.safetensors"
    save_file(packed(published_names(encoder, "medicalnet")), path)
    overrides = [f"path={path}"]
    with pytest.raises(InputError, match=r"missing stages\.1\.0\.shortcut"):
        override(ResNet3dConfig(layout="medicalnet", widths=(4, 8, 8, 8)), overrides).build(0)
    with pytest.raises(InputError, match=r"missing stages\.0\.2"):
        override(ResNet3dConfig(layout="medicalnet", shortcut="zeros", depth=34, widths=WIDTHS), overrides).build(0)
    with pytest.raises(InputError, match=r"'stem\.0\.weight' has another shape"):
        override(ResNet3dConfig(layout="r3d", shortcut="zeros", widths=WIDTHS), overrides).build(0)


def test_a_restored_run_needs_no_checkpoint(tmp_path: Path) -> None:
    encoder = PHANTOM_ENCODER_3D.build(0)
    scrambled(encoder)
    folder = tmp_path / "vision_encoder"
    encoder.architecture.save_pretrained(str(folder))
    restored = override(PHANTOM_ENCODER_3D, [f"path={tmp_path / 'gone.pth'}"]).build(0, saved=folder).eval()
    restored.load_state_dict(encoder.state_dict())
    volumes = torch.rand(1, 1, 16, 16, 16)
    assert torch.equal(restored(volumes).tokens, encoder(volumes).tokens)


def test_it_is_chosen_by_its_kind_and_images_and_shrinking_widths_are_refused() -> None:
    class Part(Config):
        vision_encoder: VisionEncoderConfig = PHANTOM_ENCODER_3D

    assert override(Part(), ["vision_encoder=vit", "vision_encoder=resnet3d"]).vision_encoder == ResNet3dConfig()
    with pytest.raises(InputError, match="takes volumes"):
        PHANTOM_ENCODER_3D.build(0)(torch.rand(1, 1, 32, 32))
    with pytest.raises(InputError, match="must not shrink"):
        override(PHANTOM_ENCODER_3D, ["widths=[8, 16, 8, 8]", "shortcut=zeros"])
