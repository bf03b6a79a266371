"""DiffVP: deltas, Noisy-OR, prompt order and the reference pool against the paper's equations and rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from radweave.core.batch import Batch
from radweave.core.errors import InputError
from radweave.core.ontology import CLASSES
from radweave.data.dataset import Dataset
from radweave.engine.restore import Run, restore
from radweave.engine.train import train
from radweave.inference.predictor import Predictor
from radweave.methods import load_method, resolve
from radweave.methods.diffvp import PRESETS
from radweave.methods.diffvp import model as diffvp
from radweave.methods.diffvp.diagnosis import best_thresholds
from radweave.methods.diffvp.difference import (
    DifferenceConfig,
    GlobalDelta,
    PixelDifference,
    PromptGenerator,
    SemanticDifference,
    importance_weights,
    local_delta,
    token_importance,
    top_share,
)
from radweave.methods.diffvp.model import ClassHeadConfig, DiffvpModel, Forward
from radweave.methods.diffvp.pool import STUDY_DRAW, PoolConfig, ReferencePool, choose_references, pixels_of, step_key
from radweave.methods.diffvp.resampling import ResamplerConfig, cell_positions
from radweave.methods.experiment import BuildContext
from radweave.methods.model import required
from radweave.methods.stage import set_train_mode
from radweave.nn.connector import ViewTokens
from radweave.nn.heads import NEGATIVE, POSITIVE, UNCERTAIN, UncertainPolicy, are_normal, first_logit, noisy_or_logits
from radweave.nn.language_model import DecodingConfig
from radweave.nn.memory.bank import Bank, patient_code
from radweave.nn.text_pretraining import DiagnosisTextConfig, noisy_findings
from radweave.nn.vision import InputSize, tokens_of
from tests.toys import TOY_OVERRIDES, TOY_SIZES

OVERRIDES = (*TOY_OVERRIDES, *TOY_SIZES["diffvp"], "stages.report.epochs=1", "data.priors=true")
CT18 = CLASSES["ct18"]


@pytest.fixture(scope="module")
def run_folder(toy_ct_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose pool is built; its weights have hardly learned."""
    return train("diffvp", toy_ct_dataset.path, tmp_path_factory.mktemp("diffvp") / "run", overrides=OVERRIDES)


@pytest.fixture
def run(run_folder: Path) -> Run:
    return restore(run_folder)


@pytest.fixture
def model(run: Run) -> DiffvpModel:
    assert isinstance(run.model, DiffvpModel)
    return run.model


def scans(ids: Sequence[str], *, size: tuple[int, int, int] = (8, 16, 16), seed: int = 0) -> Batch:
    """Studies of random scans; the patient of study ``a1`` is ``a``."""
    generator = torch.Generator().manual_seed(seed)
    count = len(ids)
    return Batch(
        study_ids=list(ids),
        patient_ids=[study_id[0] for study_id in ids],
        volume=torch.rand(count, 1, *size, generator=generator),
        view_mask=torch.ones(count, 1, dtype=torch.bool),
        view_ids=torch.zeros(count, 1, dtype=torch.long),
        input_ids=torch.randint(5, 50, (count, 7), generator=generator),
        labels=torch.randint(5, 50, (count, 7), generator=generator),
        class_labels=torch.randint(0, 4, (count, 18), generator=generator),
    )


def bank_of(values: Tensor, names: Sequence[str]) -> Bank:
    """References of one view each; the patient of study ``x1`` is ``x``."""
    rows = tuple({"study_id": name, "patient": patient_code(name[0]), "normal": True} for name in names)
    ones = torch.ones(len(names), 1, dtype=torch.bool)
    return Bank({"values": values, "view_mask": ones, "view_ids": ones.long() * 0}, rows)


# The equations


def attend(query: Tensor, source: Tensor, layer: Any, heads: int) -> Tensor:
    """Multi-head attention of one query over source rows, number by number."""
    dim = len(query)
    q = layer.query.weight @ query + layer.query.bias
    keys = [layer.key.weight @ row + layer.key.bias for row in source]
    values = [layer.value.weight @ row + layer.value.bias for row in source]
    size = dim // heads
    read = torch.zeros(dim, dtype=query.dtype)
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        scores = [math.exp(float(q[part] @ key[part]) / math.sqrt(size)) for key in keys]
        for score, value in zip(scores, values, strict=True):
            read[part] += score / sum(scores) * value[part]
    return layer.out.weight @ read + layer.out.bias


def layer_norm(x: Tensor, norm: Any) -> Tensor:
    mean = sum(x.tolist()) / len(x)
    variance = sum((value - mean) ** 2 for value in x.tolist()) / len(x)
    return (x - mean) / math.sqrt(variance + norm.eps) * norm.weight + norm.bias


@torch.no_grad()
def test_the_global_delta_is_equation_4() -> None:
    torch.manual_seed(0)
    delta = GlobalDelta(8, 2, dropout=0.0, ffn_ratio=2.0, segments=True).double()
    assert delta.segments is not None
    target, reference = torch.randn(3, 5, 8).double(), torch.randn(3, 5, 8).double()
    result = delta(target, reference)
    layer = delta.layer
    for study in range(3):
        source = [delta.query]
        source += [row + delta.segments.weight[0] for row in target[study]]
        source += [row + delta.segments.weight[1] for row in reference[study]]
        state = delta.query + attend(delta.query, torch.stack(source), layer.cross_attention, heads=2)
        state = layer_norm(state, layer.cross_norm)
        hidden = layer.ffn[0].weight @ state + layer.ffn[0].bias
        hidden = torch.tensor([0.5 * h * (1 + math.erf(h / math.sqrt(2))) for h in hidden.tolist()]).double()
        expected = layer_norm(state + layer.ffn[3].weight @ hidden + layer.ffn[3].bias, layer.ffn_norm)
        assert torch.allclose(result[study], expected, atol=1e-6)


def test_without_segments_the_global_delta_cannot_tell_which_scan_is_the_reference() -> None:
    torch.manual_seed(0)
    target, reference = torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    blind = GlobalDelta(8, 2, dropout=0.0, ffn_ratio=2.0, segments=False)
    assert torch.allclose(blind(target, reference), blind(reference, target), atol=1e-6)
    seeing = GlobalDelta(8, 2, dropout=0.0, ffn_ratio=2.0, segments=True)
    assert not torch.allclose(seeing(target, reference), seeing(reference, target), atol=1e-3)


def test_the_local_delta_is_equations_6_and_7() -> None:
    torch.manual_seed(0)
    target, reference = torch.randn(2, 6, 4).double(), torch.randn(2, 6, 4).double()
    result, weights = local_delta(target, reference), importance_weights(token_importance(target, reference))
    for study in range(2):
        squares = [
            sum((a - b) ** 2 for a, b in zip(*rows, strict=True))
            for rows in zip(target[study].tolist(), reference[study].tolist(), strict=True)
        ]
        expected = [0.0] * 4
        for number, square in enumerate(squares):
            weight = square / (sum(squares) + 1e-5)
            assert float(weights[study, number]) == pytest.approx(weight, rel=1e-12)
            for place in range(4):
                expected[place] += weight * float(target[study, number, place] - reference[study, number, place])
        assert result[study].tolist() == pytest.approx(expected, rel=1e-12)
        strongest = sorted(squares, reverse=True)[:2]
        share = float(top_share(token_importance(target, reference), top=2)[study])
        assert share == pytest.approx(sum(strongest) / sum(squares))


def test_equal_scans_have_no_local_delta_and_exchange_turns_its_sign() -> None:
    torch.manual_seed(0)
    target, reference = torch.randn(2, 32, 16), torch.randn(2, 32, 16)
    assert torch.equal(local_delta(target, target.clone()), torch.zeros(2, 16))
    assert torch.equal(local_delta(target, reference), -local_delta(reference, target))
    assert local_delta(target, reference).abs().max() > 0.1
    assert torch.equal(top_share(token_importance(target, target)), torch.zeros(2))


def unnormalised(flat: Tensor, norm: Any, number: int) -> Tensor:
    """Token ``number`` of an expanded prompt of width 6, as Eq. 8 has it."""
    return flat[6 * number : 6 * number + 6]


def normalised_by_layer(flat: Tensor, norm: Any, number: int) -> Tensor:
    return layer_norm(unnormalised(flat, norm, number), norm)


def normalised_by_studies(flat: Tensor, norm: Any, number: int) -> Tensor:
    """By the running statistics, channel by channel."""
    by = norm.norm
    rows = zip(flat, by.running_mean, by.running_var, by.weight, by.bias, strict=True)
    whole = [(x - mean) / math.sqrt(var + 1e-5) * weight + bias for x, mean, var, weight, bias in rows]
    return torch.stack(whole)[6 * number : 6 * number + 6]


@pytest.mark.parametrize(
    ("norm", "normalised"),
    [("none", unnormalised), ("layer", normalised_by_layer), ("studies", normalised_by_studies)],
)
@torch.no_grad()
def test_the_prompt_is_equation_8(norm: Any, normalised: Callable[[Tensor, Any, int], Tensor]) -> None:
    torch.manual_seed(0)
    difference = DifferenceConfig(prompt_tokens=3, num_heads=2, norm=norm).build(4, 6).double()
    assert isinstance(difference, SemanticDifference)
    for buffer in difference.generator.norm.buffers():
        buffer.add_(torch.rand(buffer.shape).to(buffer.dtype))
    difference.eval()
    target, reference = torch.randn(2, 5, 4).double(), torch.randn(2, 5, 4).double()
    prompt = difference(target, reference)
    assert prompt.shape == (2, 3, 6)
    assert difference.global_delta is not None
    both = [difference.global_delta(target, reference), local_delta(target, reference)]
    generator = difference.generator
    for study in range(2):
        state = torch.cat([delta[study] for delta in both])
        for layer in (generator.fuse[0], generator.fuse[2]):
            state = layer.weight @ state + layer.bias
            state = torch.tensor([0.5 * h * (1 + math.erf(h / math.sqrt(2))) for h in state.tolist()]).double()
        flat = generator.expand.weight @ state + generator.expand.bias
        for number in range(3):
            expected = normalised(flat, generator.norm, number)
            assert torch.allclose(prompt[study, number], expected, atol=1e-10)


def common_share(prompt: Tensor) -> float:
    """Share of the power of a prompt that all studies have in common."""
    return float(prompt.mean(0).square().sum() * len(prompt) / prompt.square().sum())


def test_paper_has_the_printed_prompt_and_head_and_other_presets_those_that_tell_studies_apart() -> None:
    models = {name: make().model for name, make in PRESETS.items()}
    forms = {name: (model.difference.norm, model.auxiliary_head.pooling) for name, model in models.items()}
    assert forms.pop("paper") == ("none", "mean")
    assert set(forms.values()) == {("studies", "noisy_or")}
    contrasts = {name: "contrast" in make().stages.latents.losses for name, make in PRESETS.items()}
    assert contrasts == dict.fromkeys(PRESETS, True) | {"paper": False}


@torch.no_grad()
def test_normalised_over_studies_the_prompt_has_nothing_in_common() -> None:
    torch.manual_seed(0)
    alike = torch.randn(1, 5, 8) + 0.01 * torch.randn(16, 5, 8), torch.randn(16, 5, 8)
    shares = {}
    for norm in ("none", "layer", "studies"):
        torch.manual_seed(1)
        difference = DifferenceConfig(kind="local", prompt_tokens=3, num_heads=2, norm=norm).build(8, 6)
        assert isinstance(difference, SemanticDifference)
        difference.generator.expand.bias.add_(1.0)
        shares[norm] = common_share(difference(*alike))
    assert shares["studies"] < 1e-6
    assert min(shares["none"], shares["layer"]) > 0.5


@torch.no_grad()
def test_a_training_batch_of_one_study_is_normalised_by_the_running_statistics() -> None:
    torch.manual_seed(0)
    difference = DifferenceConfig(prompt_tokens=3, num_heads=2, norm="studies").build(4, 6)
    several, one = torch.randn(2, 8, 5, 4), torch.randn(2, 1, 5, 4)
    difference(*several)
    trained = difference(*one)
    assert torch.equal(trained, difference.eval()(*one))


@pytest.mark.parametrize(("kind", "width"), [("both", 8), ("global", 4), ("local", 4), ("pixel", 8)])
def test_kinds_of_difference(kind: Any, width: int) -> None:
    difference = DifferenceConfig(kind=kind, prompt_tokens=3, num_heads=2).build(4, 6)
    assert isinstance(difference.generator, PromptGenerator)
    first = difference.generator.fuse[0]
    assert isinstance(first, torch.nn.Linear)
    assert first.in_features == width
    latents = torch.randn(2, 5, 4)
    prompt = difference(latents) if kind == "pixel" else difference(latents, torch.randn(2, 5, 4))
    assert prompt.shape == (2, 3, 6)
    assert (difference.global_delta is None) == (kind == "local")


def test_noisy_or_is_one_minus_the_product() -> None:
    torch.manual_seed(0)
    voxels = torch.randn(2, 7, 3).double() * 2 - 2
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[1, 4:] = False
    result = noisy_or_logits(voxels, mask).sigmoid()
    for study in range(2):
        for place in range(3):
            absent = 1.0
            for voxel in range(7):
                if mask[study, voxel]:
                    absent *= 1 - 1 / (1 + math.exp(-float(voxels[study, voxel, place])))
            assert float(result[study, place]) == pytest.approx(1 - absent, rel=1e-12)


def test_noisy_or_stays_finite_where_products_would_not() -> None:
    voxels = torch.stack([torch.full((9000,), value) for value in (-60.0, -9.0, 0.0, 60.0)], dim=1)[None]
    voxels.requires_grad_()
    logits = noisy_or_logits(voxels, torch.ones(1, 9000, dtype=torch.bool))
    assert torch.isfinite(logits).all()
    assert (logits[0, 1:] > logits[0, :-1]).all()
    # 9000 voxels of sigmoid(-9) each.
    assert float(logits[0, 1].detach().sigmoid()) == pytest.approx(1 - (1 - 1 / (1 + math.exp(9))) ** 9000, rel=1e-4)
    torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.tensor([[0.0, 1, 0, 1]])).backward()
    assert torch.isfinite(voxels.grad).all()  # type: ignore[arg-type]


@pytest.mark.parametrize("around", [-25.0, -15.0, -6.0, -1.0, 0.5, 8.0])
def test_noisy_or_and_its_gradient_are_exact_however_sure_the_voxels_are(around: float) -> None:
    """Against the formula in float64: logit = log(exp(s) - 1) with s = sum_v log(1 + exp(x_v))."""
    values = [around + 0.3 * number for number in range(-3, 4)]
    voxels = torch.tensor(values, dtype=torch.float64)[None, :, None].requires_grad_()
    logit = noisy_or_logits(voxels, torch.ones(1, 7, dtype=torch.bool))
    s = sum(math.log1p(math.exp(x)) for x in values)
    assert float(logit.detach()) == pytest.approx(math.log(math.expm1(s)), rel=1e-10, abs=1e-10)
    logit.sum().backward()
    assert voxels.grad is not None
    for result, x in zip(voxels.grad.flatten().tolist(), values, strict=True):
        # d logit / d s = 1 / (1 - exp(-s)), d s / d x = sigmoid(x).
        assert result == pytest.approx(1 / (1 + math.exp(-x)) / -math.expm1(-s), rel=1e-9)
    # In the type that trains: far from any finding the voxels share a gradient of 1, as one of them alone would have.
    single = torch.full((1, 7, 1), -25.0, requires_grad=True)
    noisy_or_logits(single, torch.ones(1, 7, dtype=torch.bool)).sum().backward()
    assert single.grad is not None
    assert single.grad.flatten().tolist() == pytest.approx([1 / 7] * 7, rel=1e-4)


@pytest.mark.parametrize("tokens", [1, 256, 4608, 26880])
def test_an_untrained_noisy_or_returns_its_prior_for_any_number_of_tokens(tokens: int) -> None:
    head = ClassHeadConfig(pooling="noisy_or", prior=0.07).build(4, 3, tokens)
    torch.nn.init.zeros_(head.linear.weight)
    assert head(torch.randn(2, tokens, 4)).sigmoid().flatten().tolist() == pytest.approx([0.07] * 6, rel=1e-3)
    assert 1 - (1 - 1 / (1 + math.exp(-first_logit(0.5, tokens)))) ** tokens == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize(("preset", "size"), [("tiny", (32, 64, 64)), ("tiny-xray", None)])
def test_the_first_logit_goes_by_the_tokens_that_the_encoder_gives(preset: str, size: Any) -> None:
    experiment = resolve("diffvp", preset, [])
    assert experiment.data.ct.size == size
    encoder = experiment.model.vision_encoder.build(experiment.data.image_size)
    space = size or (experiment.data.image_size,) * 2
    features = encoder.eval()(torch.zeros(1, 1, *space))
    assert tokens_of(encoder, InputSize(experiment.data.image_size, size)) == features.tokens.shape[1] > 1
    tokenizer = experiment.data.tokenizer.build(["There is an opacity."] * 4)
    context = BuildContext(tokenizer, experiment.data.image_size, CT18, volume_size=size)
    model = experiment.model.build(context)
    expected = first_logit(0.1, features.tokens.shape[1])
    assert model.diagnosis.head.linear.bias.tolist() == pytest.approx([expected] * 18)
    assert model.vision_head.linear.bias.tolist() == pytest.approx([expected] * 18)


@torch.no_grad()
def test_the_resampler_standardises_places_and_masks_before_the_queries_read() -> None:
    torch.manual_seed(0)
    resampler = ResamplerConfig(num_latents=3, dim=8, num_layers=1, num_heads=2).build(5).double()
    tokens = torch.randn(2, 2, 6, 5).double() * 3 + 1
    mask = torch.tensor([[True, True], [True, False]])
    views = ViewTokens(tokens, mask, torch.tensor([[1, 2], [1, 0]]), (2, 3))
    resampler.calibrate([views])
    is_present = [tokens[study, view, cell] for study, view in ((0, 0), (0, 1), (1, 0)) for cell in range(6)]
    places = cell_positions((2, 3)).double()
    out = resampler(views)
    for study, present in ((0, [0, 1]), (1, [0])):
        source = []
        for view in present:
            for cell in range(6):
                row = []
                for channel in range(5):
                    values = [float(token[channel]) for token in is_present]
                    mean = sum(values) / len(values)
                    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
                    row.append((float(tokens[study, view, cell, channel]) - mean) / deviation)
                place = resampler.position.weight @ places[cell] + resampler.position.bias
                kind = resampler.view_embedding.weight[int(views.view_ids[study, view])]
                source.append(torch.tensor(row).double() + place + kind)
        expected = resampler.transformer(torch.stack(source)[None])
        assert torch.allclose(out.tokens[study], expected.tokens[0], atol=1e-8)
        assert torch.allclose(out.attention[study, :, : len(source)], expected.attention[0], atol=1e-8)
        assert float(out.attention[study, :, len(source) :].abs().sum()) == 0


def test_places_are_those_of_the_cells_middles() -> None:
    places = cell_positions((2, 4))
    assert places.shape == (8, 24)
    for row in range(2):
        for column in range(4):
            x, y = (column + 0.5) / 4 * 2 - 1, (row + 0.5) / 2 * 2 - 1
            for octave in range(4):
                for axis, place in ((0, 0.0), (1, y), (2, x)):
                    angle = math.pi * 2**octave * place
                    result = places[4 * row + column]
                    assert float(result[4 * axis + octave]) == pytest.approx(math.sin(angle), abs=1e-5)
                    assert float(result[12 + 4 * axis + octave]) == pytest.approx(math.cos(angle), abs=1e-5)
    # A volume of one slice is a plane.
    assert torch.equal(cell_positions((1, 2, 4)), places)


def test_the_prompt_has_the_order_of_equation_9(model: DiffvpModel, monkeypatch: pytest.MonkeyPatch) -> None:
    features: dict[str, Tensor] = {}

    def spy(prefix: Tensor, mask: Tensor, input_ids: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        features["prefix"], features["mask"] = prefix, mask
        return prefix.sum()

    monkeypatch.setattr(model.language_model, "loss", spy)
    batch = scans(["a1", "b1"])
    views = diffvp.encode_views(model.vision_encoder, batch)
    latents = model.resampler(views)
    study = Forward(model, batch, STUDY_DRAW)
    model.diagnosis.thresholds.fill_(0.5 * float(study.logits.detach().sigmoid().max()))  # type: ignore[operator, union-attr]
    model.loss(batch, ("report",))
    words, word_mask = model.diagnosis_text.tokens(model.diagnosis.findings(study.logits))  # type: ignore[operator]
    assert word_mask.any()
    embed = model.language_model.embed
    image = model.connector(latents.tokens, torch.zeros(2, dtype=torch.long))
    for row in range(2):
        begin = embed(torch.tensor([model.language_model.bos_id]))
        parts = [begin, study.comparison.prompt[row], image[row], embed(words[row][word_mask[row]])]
        expected = torch.cat(parts)
        assert torch.allclose(features["prefix"][row][features["mask"][row]], expected, atol=1e-5)


def test_the_losses_of_equation_11(model: DiffvpModel) -> None:
    batch = scans(["a1", "b1", "c1"])
    model.auxiliary_head.pooling = "mean"
    terms = model.loss(batch, ("report", "auxiliary"))
    tokens = model.resampler(diffvp.encode_views(model.vision_encoder, batch)).tokens
    logits = tokens.mean(1) @ model.auxiliary_head.linear.weight.T + model.auxiliary_head.linear.bias
    assert batch.class_labels is not None
    expected = 0.0
    for row, states in enumerate(batch.class_labels.tolist()):
        for place, state in enumerate(states):
            p = 1 / (1 + math.exp(-float(logits[row, place].detach())))
            expected -= math.log(p if state == 1 else 1 - p) / batch.class_labels.numel()
    assert float(terms["auxiliary"].detach()) == pytest.approx(expected, rel=1e-4)
    assert float(terms["report"].detach()) > 0


@pytest.mark.parametrize("pooling", ["mean", "noisy_or"])
def test_the_contrast_asks_what_a_study_has_and_the_next_has_not(model: DiffvpModel, pooling: Any) -> None:
    batch = scans(["a1", "b1", "c1"])
    model.auxiliary_head.pooling = pooling
    states = torch.tensor([[1, 1, 0, 3], [1, 0, 1, 1], [0, 2, 1, -1]])
    labels = torch.zeros(3, len(CT18), dtype=torch.long)
    labels[:, :4] = states
    value = float(model.loss(replace(batch, class_labels=labels), ("contrast",))["contrast"].detach())
    head = model.auxiliary_head.linear
    tokens = model.resampler(diffvp.encode_views(model.vision_encoder, batch)).tokens.detach()
    expected, counted = 0.0, 0
    for row, other in ((0, 1), (1, 2), (2, 0)):
        by_token = (tokens[row] - tokens[other]).double() @ head.weight.detach().double().T + head.bias.detach()
        mean, any_token = by_token.mean(0).sigmoid(), 1 - (1 - by_token.sigmoid()).prod(0)
        for place in range(len(CT18)):
            own, its = int(labels[row, place]), int(labels[other, place])
            if -1 in (own, its):
                continue
            p = float((mean if pooling == "mean" else any_token)[place])
            expected -= math.log(p if own == 1 and its != 1 else 1 - p)
            counted += 1
    assert counted == 3 * len(CT18) - 2
    assert value == pytest.approx(expected / counted, rel=1e-4)


# E


def test_findings_in_words() -> None:
    text = DiagnosisTextConfig(intro="found:", none="nothing").build(lambda words: [len(words)], ("Aa", "Bbb", "C"))
    ids, mask = text.tokens(torch.tensor([[True, False, True], [False, False, False]]))
    assert ids[0][mask[0]].tolist() == [6, 3, 2]
    assert ids[1][mask[1]].tolist() == [6, 7]


def test_findings_in_the_prompt_have_the_configured_error_rates() -> None:
    labels = torch.tensor([[1, 3, 0, 2]]).expand(4000, 4)
    for policy, uncertain in (("positive", 0.7), ("negative", 0.05), ("ignore", 0.05)):
        generator = torch.Generator().manual_seed(0)
        result = noisy_findings(labels, policy, generator, missed=0.3, wrong=0.05).float().mean(0)  # type: ignore[arg-type]
        assert result.tolist() == pytest.approx([0.7, uncertain, 0.05, 0.05], abs=0.03)


@torch.no_grad()
def test_a_context_of_text_names_uncertain_findings_as_the_policy_says(model: DiffvpModel) -> None:
    batch = scans(["a1", "b1", "c1", "d1"])
    given = required(batch.class_labels)

    def loss(policy: UncertainPolicy, labels: Tensor) -> float:
        model.eval().uncertain = policy
        return float(model.loss(replace(batch, class_labels=labels), ("text_in_context",))["text_in_context"])

    meant: dict[UncertainPolicy, int] = {"positive": POSITIVE, "negative": NEGATIVE, "ignore": NEGATIVE}
    found = {policy: loss(policy, given) for policy in meant}
    assert found == {policy: loss(policy, given.masked_fill(given == UNCERTAIN, meant[policy])) for policy in meant}
    assert found["positive"] != found["negative"]


def test_thresholds_take_uncertain_labels_as_the_loss_does(model: DiffvpModel, monkeypatch: pytest.MonkeyPatch) -> None:
    states = torch.tensor([[1, 1], [3, 2], [2, 1], [0, 3], [-1, -1]])
    predicted = torch.tensor([[0.9, 0.8], [0.6, 0.3], [0.2, 0.7], [0.1, 0.4], [0.95, 0.1]])

    class View:
        class_states = states

        def batches(self, *, pixels: bool) -> list[Batch]:
            return [scans(["a1"])]

    diagnosis = model.diagnosis
    monkeypatch.setattr(type(diagnosis), "logits", lambda self, batch, views: predicted.logit())
    diagnosis.thresholds = torch.zeros(2)  # type: ignore[union-attr]
    # A study that nobody labelled says nothing, however sure the classifier is of it.
    for policy, expected in (("positive", [0.6, 0.4]), ("negative", [0.9, 0.7]), ("ignore", [0.9, 0.7])):
        diagnosis.fit(View(), model.vision_encoder, policy)  # type: ignore[arg-type]
        assert diagnosis.thresholds.tolist() == pytest.approx(expected, abs=1e-6), policy  # type: ignore[union-attr]


@pytest.mark.long
def test_e_with_an_encoder_of_its_own_needs_the_images(toy_ct_dataset: Dataset, tmp_path: Path) -> None:
    own = "model.diagnosis.encoder={kind: resnet3d, layout: medicalnet, widths: [4, 4, 4, 4]}"
    with pytest.raises(InputError, match="keep_features"):
        train("diffvp", toy_ct_dataset.path, tmp_path / "no", overrides=[*OVERRIDES, own])
    out = train(
        "diffvp", toy_ct_dataset.path, tmp_path / "run", overrides=[*OVERRIDES, own, "data.keep_features=false"]
    )
    report = Predictor.of(restore(out)).report([next(iter((toy_ct_dataset.path / "images").iterdir()))])
    assert set(report.evidence["class_probabilities"]) == set(CT18)


def test_encoder_and_e_stay_frozen_while_reports_are_learned() -> None:
    for part in ("vision_encoder", "diagnosis"):
        with pytest.raises(InputError, match="must be frozen"):
            resolve("diffvp", "tiny", [f"stages.report.finetune.{part}=full"])


def test_thresholds_are_those_of_the_best_f1() -> None:
    torch.manual_seed(0)
    probabilities, positive = torch.rand(40, 4), torch.rand(40, 4) < 0.3
    probabilities[:, 0] = probabilities[:, 0] / 2 + positive[:, 0] / 2
    positive[:, 3] = False
    result = best_thresholds(probabilities, positive, torch.ones_like(positive))

    def f1(place: int, threshold: float) -> float:
        called = [float(p) >= threshold for p in probabilities[:, place]]
        hits = sum(c and bool(t) for c, t in zip(called, positive[:, place], strict=True))
        return 2 * hits / max(1, sum(called) + int(positive[:, place].sum()))

    for place in range(3):
        best = max(f1(place, float(p)) for p in probabilities[:, place])
        assert f1(place, float(result[place])) == pytest.approx(best)
    assert float(result[0]) >= 0.5
    assert float(result[3]) == 0.5


def test_of_equally_good_thresholds_the_largest_is_taken() -> None:
    # From 0.9 on one of two is found, and nothing else; from 0.3 on both, and two that are none: F1 is 2/3 twice.
    probabilities = torch.tensor([[0.9], [0.3], [0.5], [0.4]])
    positive = torch.tensor([[True], [True], [False], [False]])
    assert best_thresholds(probabilities, positive, torch.ones_like(positive)).tolist() == pytest.approx([0.9])


# The pool


def test_normal_is_no_class_positive_or_uncertain() -> None:
    classes = ("No Finding", "Edema", "Support Devices")
    states = torch.tensor([[1, 0, 0], [0, 2, 2], [1, 1, 0], [1, 3, 0], [1, 0, 1], [-1, -1, -1]])
    assert are_normal(states, classes).tolist() == [True, True, False, False, False, False]


def test_the_pool_has_the_configured_size_and_share_of_abnormal_studies() -> None:
    normal = torch.zeros(100, dtype=torch.bool)
    normal[::4] = True
    assert choose_references(normal, None, 0.0, seed=1) == list(range(0, 100, 4))
    some, more = (choose_references(normal, size, 0.0, seed=1) for size in (3, 10))
    assert len(some) == 3
    assert set(some) < set(more)
    assert all(normal[row] for row in more)
    assert choose_references(normal, 3, 0.0, seed=2) != some
    for share, bad in ((0.1, 2), (0.5, 12), (1.0, 25)):
        chosen = choose_references(normal, None, share, seed=1)
        assert len(chosen) == 25
        assert sum(not normal[row] for row in chosen) == bad
    with pytest.raises(InputError, match="no study of the training split is normal"):
        choose_references(torch.zeros(9, dtype=torch.bool), None, 0.0, seed=1)


def pool_of(*names: str, use_prior: bool = False) -> ReferencePool:
    pool = PoolConfig(use_prior=use_prior).build()
    pool.remember(bank_of(torch.arange(len(names)).float()[:, None, None, None].expand(-1, 1, 4, 2), names))
    return pool


def test_a_study_is_never_compared_with_itself_or_its_patient() -> None:
    pool = pool_of("a1", "a2", "b1", "c1")
    for key in range(60):
        drawn = pool.draw(["a3", "b1", "d1"], ["a", "b", "d"], key)
        assert drawn[0] in (2, 3)
        assert drawn[1] in (0, 1, 3)
    assert {pool.draw(["d1"], ["d"], key)[0] for key in range(60)} == {0, 1, 2, 3}
    assert pool_of("a1").draw(["a2"], ["a"], 0) == [None]


def test_draws_are_fresh_each_step_the_same_again_and_free_of_the_batch() -> None:
    pool = pool_of(*(f"{letter}1" for letter in "abcdefghijklmnop"))
    ids = [f"{letter}7" for letter in "qrstuvwxyz"]
    patients = [name[0] for name in ids]
    together = pool.draw(ids, patients, 5)
    assert pool.draw(ids, patients, 5) == together
    assert pool.draw(ids, patients, 6) != together
    assert [pool.draw([name], [name[0]], 5)[0] for name in ids] == together
    pool.seed.fill_(1)
    assert pool.draw(ids, patients, 5) != together
    torch.manual_seed(3)
    first = step_key()
    torch.manual_seed(3)
    assert step_key() == first != STUDY_DRAW


@pytest.mark.parametrize("seed", [0, 3, 41])
def test_pairings_are_those_of_the_runs_own_seed(
    model: DiffvpModel, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(model.resampler), "calibrate", lambda *views_read: None)
    monkeypatch.setattr(type(model.diagnosis), "fit", lambda *views_read: None)
    monkeypatch.setattr(type(model.difference), "banks", lambda *views_read: {})
    model.pool.seed.fill_(17)
    training: Any = SimpleNamespace(seed=seed, batches=lambda: iter(()))
    model.build_memories("latents", training)
    assert int(model.pool.seed) == 17
    model.build_memories("report", training)
    assert int(model.pool.seed) == seed


def test_training_draws_by_step_and_validation_by_study(model: DiffvpModel, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []
    draw = model.pool.draw

    def spy(study_ids: Sequence[str], patient_ids: Sequence[str], key: int) -> list[int | None]:
        keys.append(key)
        return draw(study_ids, patient_ids, key)

    monkeypatch.setattr(model.pool, "draw", spy)
    batch = scans(["a1", "b1"])
    for training, seed in ((False, 1), (False, 2), (True, 1), (True, 2), (True, 1)):
        model.train(training)
        torch.manual_seed(seed)
        model.loss(batch, ("report",))
    assert keys[:2] == [STUDY_DRAW, STUDY_DRAW]
    assert keys[2] == keys[4] not in (keys[3], STUDY_DRAW)


def keys_of(model: DiffvpModel, monkeypatch: pytest.MonkeyPatch, finetune: dict[str, Any], steps: int) -> list[int]:
    """The keys of the draws of so many steps of a stage that trains these parts."""
    keys: list[int] = []
    draw = model.pool.draw
    monkeypatch.setattr(model.pool, "draw", lambda ids, patients, key: keys.append(key) or draw(ids, patients, key))
    for step in range(steps):
        model.eval()
        set_train_mode(model, finetune)
        torch.manual_seed(step)
        model.loss(scans(["a1", "b1"]), ("report",))
    return keys


def test_which_parts_are_frozen_does_not_freeze_the_draws(model: DiffvpModel, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = keys_of(model, monkeypatch, {"connector": "full"}, 3)
    assert not model.resampler.training
    assert len({STUDY_DRAW, *keys}) == 4


def test_draws_stand_still_where_the_option_says_so(model: DiffvpModel, monkeypatch: pytest.MonkeyPatch) -> None:
    model.pool.config = model.pool.config.model_copy(update={"redraw": False})
    assert keys_of(model, monkeypatch, {"resampler": "full"}, 3) == [STUDY_DRAW] * 3


def test_without_a_reference_the_prompt_of_differences_is_left_out(model: DiffvpModel) -> None:
    batch = scans(["a1", "b1"])
    views = diffvp.encode_views(model.vision_encoder, batch)
    model.pool.remember(bank_of(views.tokens[:1], ["a9"]))
    model.diagnosis.thresholds.fill_(2.0)  # type: ignore[operator, union-attr]
    _, mask = Forward(model, batch, STUDY_DRAW).prefix
    assert int(mask[1].sum() - mask[0].sum()) == 2  # b1 has the reference's two prompt tokens, a1 has none
    shown = model.generate(batch, DecodingConfig(max_new_tokens=3)).intermediates
    assert shown[0]["recalled"] == []
    assert "attention_maps" not in shown[0]
    assert shown[1]["recalled"][0]["study_id"] == "a9"


def test_a_scan_compared_with_itself_differs_nowhere(model: DiffvpModel) -> None:
    batch = scans(["a1", "b1"])
    views = diffvp.encode_views(model.vision_encoder, batch)
    model.pool.remember(bank_of(views.tokens[:1], ["z1"]))
    shown = model.generate(batch, DecodingConfig(max_new_tokens=3)).intermediates
    assert shown[0]["token_importance"] == [0.0] * 8
    assert shown[0]["top_8_share"] == 0
    assert float(shown[0]["attention_maps"]["difference"].max()) == 0
    assert sum(shown[1]["token_importance"]) > 0
    assert float(shown[1]["attention_maps"]["difference"].sum()) == pytest.approx(1, abs=1e-3)
    assert shown[1]["attention_maps"]["difference"].shape == (1, 1, 2, 2)


def test_the_bank_holds_tokens_of_training_studies_and_the_run_keeps_it(
    run: Run, model: DiffvpModel, toy_ct_dataset: Dataset
) -> None:
    training = {study.study_id: study for study in toy_ct_dataset.studies("train")}
    assert model.pool.rows
    assert {row["study_id"] for row in model.pool.rows} <= set(training)
    assert model.pool.tensors["values"].shape[1:] == (1, 4, 8)
    for row in model.pool.rows:
        assert row["patient"] == patient_code(training[row["study_id"]].patient_id)
        assert set(row) == {"study_id", "patient", "normal"}
    assert not torch.equal(model.resampler.mean, torch.zeros(8))


def test_a_test_study_in_the_pool_is_refused(
    toy_ct_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown_study = next(study.study_id for study in toy_ct_dataset.studies("test"))
    build = diffvp.build_pool

    def leaking(*args: Any, **options: Any) -> Bank:
        bank = build(*args, **options)
        return Bank(bank.tensors, ({**bank.rows[0], "study_id": unknown_study}, *bank.rows[1:]))

    monkeypatch.setattr(diffvp, "build_pool", leaking)
    with pytest.raises(InputError, match=r"leak.*references"):
        train("diffvp", toy_ct_dataset.path, tmp_path / "run", overrides=OVERRIDES)


@pytest.mark.long
def test_the_own_prior_takes_the_place_of_the_draw(toy_ct_dataset: Dataset, tmp_path: Path) -> None:
    overrides = [*OVERRIDES, "model.pool.use_prior=true"]
    run = restore(train("diffvp", toy_ct_dataset.path, tmp_path / "run", overrides=overrides))
    model = run.model
    assert isinstance(model, DiffvpModel)
    batch = scans(["a2", "b1", "c2"])
    prior = scans(["a1", "c1"], seed=5)
    batch.priors, batch.prior_of = prior, (0, 2)
    shown = [row["recalled"][0] for row in model.generate(batch, DecodingConfig(max_new_tokens=3)).intermediates]
    assert [row["is_prior"] for row in shown] == [True, False, True]
    assert [shown[0]["study_id"], shown[2]["study_id"]] == ["a1", "c1"]
    # The patient's unchanged scan differs nowhere, and then the draft says nothing about a difference.
    batch.priors = replace(prior, volume=batch.volume[[0, 2]])  # type: ignore[index]
    unchanged = model.generate(batch, DecodingConfig(max_new_tokens=3)).intermediates
    assert sum(unchanged[0]["token_importance"]) == 0 == sum(unchanged[2]["token_importance"])
    assert sum(unchanged[1]["token_importance"]) > 0


@pytest.mark.long
def test_phantom_visits_are_compared_with_the_visit_before(toy_ct_dataset: Dataset, tmp_path: Path) -> None:
    from radweave.data.cache.images import build_cache
    from radweave.engine.prepare import prepare

    overrides = [*OVERRIDES, "model.pool.use_prior=true"]
    run = restore(train("diffvp", toy_ct_dataset.path, tmp_path / "run", overrides=overrides))
    data = run.experiment.data
    cache = build_cache(toy_ct_dataset, size=data.image_size, ct=data.ct)
    examples = prepare(toy_ct_dataset, "train", run.experiment, run.tokenizer, cache, need_text=False).examples
    priors = {study.study_id: study.prior for study in toy_ct_dataset.studies("train")}
    assert any(priors.values())
    for example, report in zip(examples, Predictor.of(run).reports(examples), strict=True):
        for row in report.evidence["recalled"]:
            assert row["is_prior"] == (priors[example.study_id] is not None)
            assert not row["is_prior"] or row["study_id"] == priors[example.study_id]


# Pixels, radiographs, tables


@pytest.mark.long
def test_pixels_are_subtracted_before_the_encoder(toy_ct_dataset: Dataset, tmp_path: Path) -> None:
    overrides = [*OVERRIDES, *load_method("diffvp").ABLATIONS["pixel difference"]]
    run = restore(train("diffvp", toy_ct_dataset.path, tmp_path / "run", overrides=overrides))
    model = run.model
    assert isinstance(model, DiffvpModel)
    assert model.pool.tensors["values"].shape[1:] == (1, 1, 8, 16, 16)
    batch = scans(["a1", "b1"])
    model.pool.remember(bank_of(pixels_of(batch).tokens[:1], ["z1"]))
    compared = Forward(model, batch, STUDY_DRAW).comparison
    assert batch.volume is not None
    expected = torch.stack([torch.full_like(batch.volume[0], 0.5), (batch.volume[1] - batch.volume[0] + 1) / 2])
    residuals = model.resampler(diffvp.encode_views(model.vision_encoder, replace(batch, volume=expected))).tokens
    assert torch.allclose(compared.target, residuals, atol=1e-5)
    assert compared.prompt.shape[1] == 2
    # The map weighs what the latents of the subtracted scan looked at, not what those of the target did.
    reading = model.resampler(diffvp.encode_views(model.vision_encoder, replace(batch, volume=expected)))
    weights = importance_weights(token_importance(reading.tokens, torch.zeros_like(reading.tokens)))
    shown = Forward(model, batch, STUDY_DRAW)
    result = shown.difference_maps()[:, 0]
    assert torch.allclose(result, (weights[:, :, None] * reading.attention).sum(1), atol=1e-5)
    assert not torch.allclose(result, (weights[:, :, None] * shown.latents.attention).sum(1), atol=1e-5)
    with pytest.raises(InputError, match="features were kept"):
        pixels_of(replace(batch, volume=None))


def test_pixels_are_subtracted_where_both_studies_have_the_view(unchecked_shapes: None) -> None:
    """Targets of three places for views, references of two, and every case of one there and the other not."""
    target = ViewTokens(torch.rand(3, 3, 5), torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0]]).bool(),
                        torch.tensor([[1, 2, 0], [1, 0, 0], [2, 1, 0]]), ())  # fmt: skip
    other = ViewTokens(torch.rand(3, 2, 5), torch.tensor([[1, 0], [1, 1], [0, 1]]).bool(), torch.ones(3, 2).long(), ())
    views_read: list[ViewTokens] = []

    def encode(views: ViewTokens) -> ViewTokens:
        views_read.append(views)
        raise LookupError

    fake: Any = SimpleNamespace(
        reference=lambda *, pixels: (target, SimpleNamespace(views=other)) if pixels else None, encode=encode
    )
    with pytest.raises(LookupError):
        PixelDifference.compare(None, fake)  # type: ignore[arg-type]
    (views,) = views_read
    assert views.view_mask.tolist() == [[True, False], [True, False], [False, True]]
    assert views.view_ids.tolist() == [[1, 2], [1, 0], [2, 1]]
    assert torch.allclose(views.tokens, (target.tokens[:, :2] - other.tokens + 1) / 2)


def test_it_runs_on_radiographs_of_one_and_two_views(toy_dataset: Dataset, tmp_path: Path) -> None:
    small = [override for override in TOY_SIZES["diffvp"] if "ct.size" not in override and "widths" not in override]
    encoder = ["start=nothing", "embedding_size=8", "hidden_sizes=[8,16]", "depths=[1,1]"]
    overrides = [*TOY_OVERRIDES, *small, *(f"model.vision_encoder.{part}" for part in encoder)]
    out = train(
        "diffvp",
        toy_dataset.path,
        tmp_path / "run",
        preset="tiny-xray",
        overrides=[*overrides, "stages.encoder.epochs=0", "stages.report.epochs=1"],
    )
    predictor = Predictor.of(restore(out))
    images = [toy_dataset.image_path(f"images/0_{view}.png") for view in (0, 1)]
    for count in (1, 2):
        report = predictor.report(images[:count])
        maps = torch.tensor(report.evidence["attention_maps"]["difference"])
        assert maps.shape[0] == count
        assert float(maps.sum()) == pytest.approx(1, abs=1e-3)
        assert report.evidence["recalled"][0]["kind"] == "image"


def test_the_papers_pool_holds_all_normal_studies() -> None:
    """1,787 of its training split: the bank is a file, not memory."""
    assert resolve("diffvp", "paper", []).model.pool == PoolConfig()
    assert PoolConfig().size is None


def test_every_row_of_the_tables_is_an_ablation() -> None:
    module = load_method("diffvp")
    assert set(module.TABLES) >= {"table3", "table4", "table5", "table6", "table7", "table10", "figure5b"}
    for table in module.TABLES.values():
        for row in table.rows:
            assert row.ablation is None or row.ablation in module.ABLATIONS
    rows = {row.label: row.paper["RadGenome-ChestCT"] for row in module.TABLES["table4"].rows}
    assert rows["Ours"]["CE_F1"] == 0.421
    assert rows["Baseline"]["BLEU_4"] == 0.3317


@pytest.mark.long
def test_references_of_another_data_set(toy_ct_dataset: Dataset, tmp_path: Path) -> None:
    from radweave.phantom.study import PhantomOptions, write_phantom_dataset

    options = PhantomOptions(volume_size=16, slices=8)
    other = write_phantom_dataset(tmp_path / "other", modality="ct", num_studies=40, seed=9, options=options)
    mixed = [*OVERRIDES, "model.pool.size=6", "model.pool.domain_mix=0.5"]
    with pytest.raises(InputError, match="which data set"):
        train("diffvp", toy_ct_dataset.path, tmp_path / "none", overrides=mixed)
    out = train("diffvp", toy_ct_dataset.path, tmp_path / "run", overrides=[*mixed, f"model.pool.other={other.path}"])
    model = restore(out).model
    assert isinstance(model, DiffvpModel)
    names = [row["study_id"] for row in model.pool.rows]
    oracle = {f"phantom-ct:{study.study_id}" for study in other.studies("train")}
    own = {study.study_id for study in toy_ct_dataset.studies("train")}
    assert len(names) == 6
    assert sum(name in oracle for name in names) == 3
    assert sum(name in own for name in names) == 3
    assert all(row["normal"] for row in model.pool.rows if row["study_id"] in oracle)


def test_another_data_set_with_an_image_of_the_test_split_is_refused(toy_ct_dataset: Dataset, tmp_path: Path) -> None:
    from radweave.data.dataset import DatasetWriter

    stolen = next(iter(toy_ct_dataset.studies("test")))
    with DatasetWriter(tmp_path / "other", toy_ct_dataset.card) as writer:
        paths = {ref.path: toy_ct_dataset.image_path(ref.path) for ref in stolen.images}
        writer.add(stolen.model_copy(update={"split": "train", "prior": None}), paths)
    overrides = [*OVERRIDES, "model.pool.domain_mix=0.5", f"model.pool.other={tmp_path / 'other'}"]
    with pytest.raises(InputError, match="leak: 1 images"):
        train("diffvp", toy_ct_dataset.path, tmp_path / "run", overrides=overrides)


def test_class_heads_skip_padded_tokens() -> None:
    torch.manual_seed(0)
    tokens, mask = torch.randn(2, 5, 4), torch.tensor([[True] * 5, [True, True, False, False, False]])
    for pooling in ("mean", "noisy_or"):
        head = ClassHeadConfig(pooling=pooling).build(4, 3, 5)  # type: ignore[arg-type]
        result, alone = head(tokens, mask), head(tokens[1:, :2])
        assert torch.allclose(result[1], alone[0], atol=1e-6)
        logits = tokens[1, :2] @ head.linear.weight.T + head.linear.bias
        expected = logits.mean(0).sigmoid() if pooling == "mean" else 1 - (1 - logits.sigmoid()).prod(0)
        assert torch.allclose(alone[0].sigmoid(), expected, atol=1e-6)
