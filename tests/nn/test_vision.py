"""Vision encoders: shapes, grid order, and checkpoints in the real format."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from radweave.core.batch import VisionEncoder
from radweave.core.errors import InputError
from radweave.nn.vision import VISION_RECORDS, ResNetConfig, SwinConfig, VisionRecord, ViTConfig

RESNET = ResNetConfig(embedding_size=8, hidden_sizes=(8, 16), depths=(1, 1), layer_type="basic", channels=3)
SWIN = SwinConfig(embed_dim=8, depths=(1, 1), num_heads=(1, 2), window_size=2, channels=3)
VIT = ViTConfig(patch_size=8, hidden_size=16, num_layers=1, num_heads=2, channels=3)


@pytest.mark.parametrize("config", [RESNET, SWIN, VIT], ids=["resnet", "swin", "vit"])
def test_tokens_fill_the_grid(config: ResNetConfig | SwinConfig | ViTConfig) -> None:
    encoder = config.build(32).eval()
    assert isinstance(encoder, VisionEncoder)
    features = encoder(torch.rand(2, 1, 32, 32))
    assert features.tokens.shape == (2, features.grid[0] * features.grid[1], encoder.dim)


@pytest.mark.parametrize("record", [one for one in VISION_RECORDS if not one.model_fields["path"].is_required()])
def test_every_encoder_is_one_to_a_method(record: type[VisionRecord]) -> None:
    """A method finds its encoder by what it can do."""
    with torch.device("meta"):
        assert isinstance(record().build(224), VisionEncoder)


def test_resnet_tokens_are_in_row_major_order() -> None:
    encoder = RESNET.build(64).eval()
    # A bright corner at the top right: of the corner tokens, that one changes most.
    dark, bright = torch.zeros(1, 1, 64, 64), torch.zeros(1, 1, 64, 64)
    bright[:, :, :8, -8:] = 1.0
    difference = (encoder(bright).tokens - encoder(dark).tokens).norm(dim=-1)[0]
    rows, columns = encoder(dark).grid
    corners = difference[[0, columns - 1, (rows - 1) * columns, rows * columns - 1]]
    assert int(corners.argmax()) == 1


@pytest.mark.parametrize("config", [RESNET, SWIN, VIT], ids=["resnet", "swin", "vit"])
def test_a_checkpoint_on_disk_gives_the_same_features(
    config: ResNetConfig | SwinConfig | ViTConfig, tmp_path: Path
) -> None:
    encoder = config.build(32).eval()
    encoder.backbone.save_pretrained(tmp_path)  # type: ignore[operator]
    loaded = type(config)(path=str(tmp_path)).build(32).eval()
    pixels = torch.rand(1, 1, 32, 32)
    torch.testing.assert_close(loaded(pixels).tokens, encoder(pixels).tokens, atol=0, rtol=0)


def test_a_missing_checkpoint_and_another_architecture_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot load a vision encoder"):
        SwinConfig(path=str(tmp_path / "none")).build(32)
    RESNET.build(32).backbone.save_pretrained(tmp_path)  # type: ignore[operator]
    with pytest.raises(InputError, match="another architecture"):
        SwinConfig(path=str(tmp_path)).build(32)
