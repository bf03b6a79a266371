"""Vision Mamba: its numbers from published tensors token by token, its sizes, and checkpoints in the published layout.

The checkpoints are made here from the published names and shapes, not from the encoder's own: the tensors of
MambaXray-VL's files as its training code saves them, and of ARM's and Vim's.
"""

from __future__ import annotations

import math
import pickle
import sys
import types
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from radweave.core.batch import VisionEncoder
from radweave.core.config import override
from radweave.core.errors import InputError
from radweave.nn.vision.vim import (
    MAMBAXRAY_BASE,
    MAMBAXRAY_LARGE,
    VIM_BASE,
    VIM_SMALL,
    VIM_TINY,
    VimConfig,
    VimEncoder,
    scan_orders,
)

SIDE, PATCH = 4, 8
PIXELS = SIDE * PATCH
DIM, LAYERS, STATES, RANK = 32, 3, 4, 2
ARM = VimConfig(channels=3, patch_size=PATCH, hidden_size=DIM, num_layers=LAYERS, d_state=STATES)
VIM = ARM.model_copy(update={"block": "vim"})
BOTH = pytest.mark.parametrize("config", [ARM, VIM], ids=["arm", "vim"])
# float32 sums of a few hundred terms near 1, in another order.
TOLERANCE = 1e-5

Tensors = dict[str, Tensor]


def published(config: VimConfig, prefix: str = "") -> Tensors:
    """Random tensors by the published names, with the published shapes."""
    generator = torch.Generator().manual_seed(5)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    arm = config.block == "arm"
    inner, hidden = DIM * (1 if arm else 2), DIM * 4 * 2 // 3
    tensors = {
        "cls_token": random(1, 1, DIM),
        "pos_embed": random(1, SIDE**2 + 1, DIM),
        "patch_embed.proj.weight": 0.05 * random(DIM, 3, PATCH, PATCH),
        "patch_embed.proj.bias": random(DIM),
        "norm_f.weight": random(DIM),
    }
    norms = ("norm1", "norm2") if arm else ("norm",)
    for layer in range(LAYERS):
        one = {f"{norm}.weight": 1 + 0.2 * random(DIM) for norm in norms}
        if arm:
            one |= {f"{norm}.bias": 0.2 * random(DIM) for norm in norms}
            for name, rows, columns in (("w1", hidden, DIM), ("w2", hidden, DIM), ("w3", DIM, hidden)):
                one |= {f"mlp.{name}.weight": 0.2 * random(rows, columns), f"mlp.{name}.bias": 0.2 * random(rows)}
        one["mixer.in_proj.weight"] = 0.2 * random(2 * inner, DIM)
        one["mixer.out_proj.weight"] = 0.2 * random(DIM, inner)
        for end in ("", "_b", "_c", "_c_b") if arm else ("", "_b"):
            one[f"mixer.conv1d{end}.weight"] = 0.5 * random(inner, 1, 4)
            one[f"mixer.conv1d{end}.bias"] = 0.2 * random(inner)
            one[f"mixer.x_proj{end}.weight"] = 0.2 * random(RANK + 2 * STATES, inner)
            one[f"mixer.dt_proj{end}.weight"] = 0.5 * random(inner, RANK)
            one[f"mixer.dt_proj{end}.bias"] = 0.5 * random(inner)
            one[f"mixer.A{end}_log"] = 0.5 * random(inner, STATES)
            one[f"mixer.D{end}"] = random(inner)
        tensors |= {f"layers.{layer}.{name}": tensor for name, tensor in one.items()}
    if arm:
        tensors["norm_f.bias"] = random(DIM)
    return {prefix + name: tensor for name, tensor in tensors.items()}


def one_scan(xz: Tensor, t: Tensors, end: str) -> Tensor:
    """Mamba over one sequence (tokens, 2 E), token by token: convolution, step, state, gate (Gu and Dao, Alg. 2)."""
    x, z = xz.chunk(2, dim=1)
    state, outputs = torch.zeros(x.shape[1], STATES), []
    for token in range(len(x)):
        u = t[f"conv1d{end}.bias"].clone()
        for tap in range(4):
            if token - 3 + tap >= 0:
                u += t[f"conv1d{end}.weight"][:, 0, tap] * x[token - 3 + tap]
        u = u * torch.sigmoid(u)
        step, B, C = (t[f"x_proj{end}.weight"] @ u).split([RANK, STATES, STATES])
        delta = torch.log1p(torch.exp(t[f"dt_proj{end}.weight"] @ step + t[f"dt_proj{end}.bias"]))
        A = -torch.exp(t[f"A{end}_log"])
        state = torch.exp(delta[:, None] * A) * state + (delta * u)[:, None] * B[None, :]
        y = state @ C + t[f"D{end}"] * u
        outputs.append(y * z[token] * torch.sigmoid(z[token]))
    return torch.stack(outputs)


def transposed(sequence: Tensor) -> Tensor:
    """The patches column by column, the class token still in the middle; its own inverse on a square."""
    middle = SIDE**2 // 2
    patches = torch.cat([sequence[:middle], sequence[middle + 1 :]]).reshape(SIDE, SIDE, -1)
    turned = patches.transpose(0, 1).reshape(SIDE**2, -1)
    return torch.cat([turned[:middle], sequence[middle : middle + 1], turned[middle:]])


def mixed(h: Tensor, t: Tensors, *, arm: bool) -> Tensor:
    xz = h @ t["in_proj.weight"].T
    out = one_scan(xz, t, "") + one_scan(xz.flip(0), t, "_b").flip(0)
    if not arm:
        return out / 2 @ t["out_proj.weight"].T
    columns = transposed(xz)
    across = one_scan(columns, t, "_c") + one_scan(columns.flip(0), t, "_c_b").flip(0)
    return (out + transposed(across)) / 4 @ t["out_proj.weight"].T


def layer_norm(h: Tensor, t: Tensors, name: str) -> Tensor:
    centred = h - h.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt() * t[f"{name}.weight"] + t[f"{name}.bias"]


def rms_norm(h: Tensor, t: Tensors, name: str) -> Tensor:
    return h / (h.square().mean(1, keepdim=True) + 1e-5).sqrt() * t[f"{name}.weight"]


def reference(image: Tensor, t: Tensors, *, arm: bool) -> Tensor:
    """Patch tokens of one grey image (1, h, w) from the published tensors, in the published order of operations."""
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    pixels = (image.expand(3, -1, -1) - mean[:, None, None]) / std[:, None, None]
    kernel = t["patch_embed.proj.weight"].flatten(1)
    patches = []
    for row in range(SIDE):
        for column in range(SIDE):
            patch = pixels[:, row * PATCH : (row + 1) * PATCH, column * PATCH : (column + 1) * PATCH]
            patches.append(kernel @ patch.flatten() + t["patch_embed.proj.bias"])
    middle = SIDE**2 // 2
    h = torch.stack([*patches[:middle], t["cls_token"][0, 0], *patches[middle:]]) + t["pos_embed"][0]
    residual = torch.zeros_like(h)
    for layer in range(LAYERS):
        start = f"layers.{layer}."
        block = {name.removeprefix(start): tensor for name, tensor in t.items() if name.startswith(start)}
        mixer = {name.removeprefix("mixer."): tensor for name, tensor in block.items() if name.startswith("mixer.")}
        if arm:
            h = h + mixed(layer_norm(h, block, "norm1"), mixer, arm=True)
            n = layer_norm(h, block, "norm2")
            gate, value = (n @ block[f"mlp.{w}.weight"].T + block[f"mlp.{w}.bias"] for w in ("w1", "w2"))
            h = h + (gate * torch.sigmoid(gate) * value) @ block["mlp.w3.weight"].T + block["mlp.w3.bias"]
        else:  # add, then norm, then mix: the residual runs beside the states
            residual = residual + h
            h = mixed(rms_norm(residual, block, "norm"), mixer, arm=False)
    h = layer_norm(h, t, "norm_f") if arm else rms_norm(residual + h, t, "norm_f")
    return torch.cat([h[:middle], h[middle + 1 :]])


def written(config: VimConfig, path: Path, prefix: str = "") -> VimConfig:
    save_file(published(config, prefix), path)
    return override(config, [f"path={path}"])


@BOTH
def test_tokens_are_those_of_a_sequential_reference(config: VimConfig, tmp_path: Path) -> None:
    encoder = written(config, tmp_path / "model.safetensors").build(PIXELS).eval()
    images = torch.rand(2, 1, PIXELS, PIXELS, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features = encoder(images)
    assert features.grid == (SIDE, SIDE)
    for image in range(2):
        expected = reference(images[image], published(config), arm=config.block == "arm")
        assert expected.std() > 0.5
        torch.testing.assert_close(features.tokens[image], expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_a_direction_reads_every_token_once_and_the_class_token_stays_in_the_middle() -> None:
    orders = scan_orders(2, 3, 4, torch.device("cpu")).tolist()
    # Patches 0 1 2 / 3 4 5 with the class token (3) amid them are 0 1 2 [3] 4 5 6.
    assert orders[0] == [0, 1, 2, 3, 4, 5, 6]
    assert orders[2] == [0, 4, 1, 3, 5, 2, 6]
    assert orders[1] == orders[0][::-1]
    assert orders[3] == orders[2][::-1]
    assert scan_orders(2, 3, 2, torch.device("cpu")).tolist() == orders[:2]


# Ren et al., Table 1, and Zhu et al., Table 1, give these sizes with a classifier of 1000 classes.
@pytest.mark.parametrize(
    ("config", "millions"),
    [(MAMBAXRAY_BASE, 85), (MAMBAXRAY_LARGE, 297), (VIM_TINY, 7), (VIM_SMALL, 26), (VIM_BASE, 98)],
    ids=["mambaxray base", "mambaxray large", "vim tiny", "vim small", "vim base"],
)
def test_the_published_models_have_their_published_size(config: VimConfig, millions: int) -> None:
    with torch.device("meta"):
        encoder = config.build(224)
    assert isinstance(encoder, VisionEncoder)
    assert encoder.positions.shape == (1, 197, config.hidden_size)
    total = sum(parameter.numel() for parameter in encoder.parameters()) + 1000 * (encoder.dim + 1)
    assert total / 1e6 == pytest.approx(millions, abs=1)


@BOTH
def test_gradients_reach_every_weight_and_the_scans_back_ends_agree(config: VimConfig) -> None:
    torch.manual_seed(0)
    pixels = torch.rand(2, 1, PIXELS, PIXELS)
    encoder = config.build(PIXELS).eval()
    weights = torch.randn(2, SIDE**2, DIM)
    (encoder(pixels).tokens * weights).sum().backward()
    gradients = {name: parameter.grad for name, parameter in encoder.named_parameters()}
    assert all(gradient is not None and float(gradient.abs().max()) > 0 for gradient in gradients.values())
    looped = config.model_copy(update={"scan": "loop"}).build(PIXELS).eval()
    looped.load_state_dict(encoder.state_dict())
    (looped(pixels).tokens * weights).sum().backward()
    for name, parameter in looped.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], atol=1e-4, rtol=1e-4)


@BOTH
def test_a_gradient_is_the_difference_of_two_outputs(config: VimConfig, tmp_path: Path) -> None:
    encoder = written(config, tmp_path / "model.safetensors").build(PIXELS).eval().double()
    pixels = torch.rand(1, 1, PIXELS, PIXELS, dtype=torch.double)
    weights = torch.randn(1, SIDE**2, DIM, dtype=torch.double)
    name = "blocks.1.mixer.directions.1.step_bias"
    weight = dict(encoder.named_parameters())[name]
    (encoder(pixels).tokens * weights).sum().backward()
    assert weight.grad is not None
    with torch.no_grad():
        ends = []
        for move in (1e-6, -2e-6):
            weight[3] += move
            ends.append(float((encoder(pixels).tokens * weights).sum()))
    assert float(weight.grad[3]) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-4)


@BOTH
def test_drop_path_draws_in_training_only_and_images_do_not_see_each_other(config: VimConfig) -> None:
    torch.manual_seed(0)
    encoder = config.model_copy(update={"drop_path": 0.5}).build(PIXELS)
    assert [block.drop_path for block in encoder.blocks] == [0, 0, 0.25]
    pixels = torch.rand(3, 1, PIXELS, PIXELS)
    encoder.eval()
    together = encoder(pixels).tokens
    for index in range(3):
        torch.testing.assert_close(
            encoder(pixels[index : index + 1]).tokens[0], together[index], atol=TOLERANCE, rtol=0
        )
    encoder.train()
    assert not torch.equal(encoder(pixels.repeat(8, 1, 1, 1)).tokens, encoder(pixels.repeat(8, 1, 1, 1)).tokens)


@BOTH
def test_tokens_are_in_row_major_order(config: VimConfig) -> None:
    torch.manual_seed(0)
    encoder = config.build(PIXELS).eval()
    dark, bright = torch.zeros(1, 1, PIXELS, PIXELS), torch.zeros(1, 1, PIXELS, PIXELS)
    bright[:, :, :PATCH, -PATCH:] = 1.0
    difference = (encoder(bright).tokens - encoder(dark).tokens).norm(dim=-1)[0]
    assert int(difference.argmax()) == SIDE - 1


def others() -> Tensors:
    """What MambaXray-VL's contrastive files hold beside the vision encoder."""
    return {
        "text_encoder.embeddings.word_embeddings.weight": torch.zeros(3, 2),
        "vision_proj.weight": torch.zeros(2, DIM),
        "text_proj.bias": torch.zeros(2),
        "logit_scale": torch.tensor(2.66),
    }


def same(loaded: VimEncoder, tensors: Tensors, config: VimConfig) -> None:
    image = torch.rand(1, PIXELS, PIXELS)
    expected = reference(image, tensors, arm=config.block == "arm")
    torch.testing.assert_close(loaded.eval()(image[None]).tokens[0], expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("kind", ["safetensors file", "folder", "torch file"])
def test_mambaxray_vl_files_give_their_vision_encoder(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {**published(ARM, "visual_encoder."), **others()}
    path = tmp_path / "checkpoint_epoch5_step100_loss0.5.pth"
    if kind == "torch file":
        # As its training saves it: with the settings in a dictionary class of lightning, which need not be there.
        with monkeypatch.context() as patch:
            settings = stand_in(patch, "lightning.fabric.utilities.data", "AttributeDict")
            hparams = settings(dataset="mimic_cxr", type="large", learning_rate=5e-5)
            torch.save({"model": tensors, "config": hparams, "epoch": 5, "step": 100}, path)
    else:
        path = path.with_suffix(".safetensors")
        save_file(tensors, path)
    loaded = override(ARM, [f"path={tmp_path if kind == 'folder' else path}"]).build(PIXELS)
    assert loaded.left_aside == tuple(sorted(others()))
    same(loaded, published(ARM), ARM)


@BOTH
def test_files_of_arm_and_vim_load_without_their_classifier(
    config: VimConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint.pth"
    head = {"head.weight": torch.zeros(7, DIM), "head.bias": torch.zeros(7)}
    with monkeypatch.context() as patch:
        settings = stand_in(patch, "argparse", "Namespace")
        torch.save({"model": {**published(config), **head}, "args": settings(lr=1e-3), "epoch": 299}, path)
    loaded = override(config, [f"path={path}"]).build(PIXELS)
    assert loaded.left_aside == ("head.bias", "head.weight")
    same(loaded, published(config), config)


def stand_in(patch: pytest.MonkeyPatch, module: str, name: str) -> type:
    """A class of settings under the name that a pickle gives it."""
    if module == "argparse":
        import argparse

        return argparse.Namespace
    made = type(name, (dict,), {"__module__": module, "__qualname__": name})
    whole = ""
    for part in module.split("."):
        whole = f"{whole}.{part}".lstrip(".")
        patch.setitem(sys.modules, whole, types.ModuleType(whole))
    setattr(sys.modules[module], name, made)
    assert pickle.loads(pickle.dumps(made(a=1))) == {"a": 1}
    return made


def test_missing_unexpected_and_misshapen_weights_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    config, tensors = override(ARM, [f"path={path}"]), published(ARM, "visual_encoder.")

    def refused(message: str, **changes: Tensor | None) -> None:
        changed = {**tensors, **{f"visual_encoder.{name}": value for name, value in changes.items()}}
        save_file({name: value for name, value in changed.items() if value is not None}, path)
        with pytest.raises(InputError, match=message):
            config.build(PIXELS)

    refused(r"missing blocks\.1\.mixer\.directions\.3\.D", **{"layers.1.mixer.D_c_b": None})
    refused(r"unexpected blocks\.0\.mixer\.gamma", **{"layers.0.mixer.gamma": torch.zeros(DIM)})
    refused(r"unexpected blocks\.0\.mixer\.conv1d_d\.weight", **{"layers.0.mixer.conv1d_d.weight": torch.zeros(2)})
    refused(r"unexpected dec_pos_embed", **{"dec_pos_embed": torch.zeros(2)})
    refused(r"'positions' has another shape.*\[1, 10, 32\].*\[1, 17, 32\]", pos_embed=torch.zeros(1, 10, DIM))
    infinite = torch.full((DIM,), math.inf)
    refused("not finite, or too great", **{"norm_f.weight": infinite})


def test_a_file_of_the_other_block_is_refused(tmp_path: Path) -> None:
    save_file(published(VIM), tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"unexpected blocks\.0\.norm\.weight"):
        override(ARM, [f"path={tmp_path}"]).build(PIXELS)


def test_images_of_another_size_and_volumes_are_refused() -> None:
    encoder = ARM.build(PIXELS)
    with pytest.raises(InputError, match=r"another size.*4 x 4 patches"):
        encoder(torch.rand(1, 1, PIXELS, 2 * PIXELS))
    with pytest.raises(InputError, match="another kind of encoder"):
        encoder(torch.rand(1, 1, 8, PIXELS, PIXELS))
    with pytest.raises(InputError, match="smaller than a patch"):
        ARM.build(PATCH - 1)


def test_half_precision_keeps_the_tokens(tmp_path: Path) -> None:
    encoder = written(ARM, tmp_path / "model.safetensors").build(PIXELS).eval()
    pixels = torch.rand(1, 1, PIXELS, PIXELS)
    with torch.no_grad():
        exact = encoder(pixels).tokens
        with torch.autocast("cpu", torch.bfloat16):
            half = encoder(pixels).tokens
    # Eight bits of mantissa through three blocks.
    assert float(F.cosine_similarity(exact.flatten(), half.float().flatten(), dim=0)) > 0.999
