"""VDGen against plain loops over the paper's equations, and what its ablations switch off."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig as PeftConfig
from peft import PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from radweave.core.batch import Batch
from radweave.core.errors import InputError
from radweave.core.study import ImageRef, Study
from radweave.data.augmentation import LightAugmentation, NoAugmentation
from radweave.data.loader import Example, collate
from radweave.data.tokenizer import encode
from radweave.engine.distributed import Ranks
from radweave.methods import resolve
from radweave.methods.experiment import BuildContext
from radweave.methods.model import TrainingView
from radweave.methods.stage import apply_finetune, set_train_mode, total_loss
from radweave.methods.vdgen import ABLATIONS, VDGEN_PROMPT, paper, tiny
from radweave.methods.vdgen.distillation import (
    DiseaseDistillation,
    SentenceMemory,
    build_sentence_bank,
    mean_hidden_state,
    sentence_states,
)
from radweave.methods.vdgen.model import VdgenModel
from radweave.methods.vdgen.self_equilibration import (
    NoEquilibration,
    SelfEquilibration,
    SelfEquilibrationConfig,
    TwoViewEquilibration,
)
from radweave.nn.decoding import Prefixes, Written
from radweave.nn.language_model import CausalLanguageModel, LlamaConfig, LoraConfig, adapters_off, has_lora
from radweave.nn.memory.bank import Bank, patient_code
from radweave.nn.prompt import PromptTemplate, SentenceSplitter
from tests.methods.vdgen_job import READINGS, gradients, trained
from tests.toys import TOY_OVERRIDES, TOY_REPORTS, TOY_SIZES

# Sums of a few float32 terms in another order.
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def no_second_view(augment: object) -> Tensor:
    raise AssertionError("this reading needs no second view")


def random_means(count: int, dim: int = 6, seed: int = 0) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


# ----------------------------------------------------------------------------------------------- VSE, Eq. 3


def vse_oracle(h: Tensor, weight: Tensor, bias: Tensor, tau: float, denominator: str) -> float:
    """Eq. 3 by loops; ``denominator``: others, all, or the literal S_ii = -infinity."""
    z = []
    for row in h.tolist():
        raw = [
            sum(w * x for w, x in zip(ws, row, strict=True)) + b for ws, b in zip(weight.tolist(), bias, strict=True)
        ]
        length = math.sqrt(sum(float(value) ** 2 for value in raw))
        z.append([float(value) / length for value in raw])
    total = 0.0
    for i in range(len(z)):
        scores = [sum(a * b for a, b in zip(z[i], z[j], strict=True)) / tau for j in range(len(z))]
        own = scores[i]
        if denominator == "literal":
            own = scores[i] = -math.inf
        below = sum(math.exp(score) for j, score in enumerate(scores) if denominator != "others" or j != i)
        above = math.exp(own)
        total += math.inf if above == 0 else -math.log(above / below)
    return total / len(z)


@pytest.mark.parametrize("denominator", ["others", "all"])
@pytest.mark.parametrize("count", [2, 5])
def test_vse_equals_loops_over_equation_3(denominator: str, count: int) -> None:
    module = SelfEquilibrationConfig(temperature=0.3, self_in_denominator=denominator == "all").build(6)
    assert module.projection.weight.shape == (12, 6), "z lies in a higher dimension"
    h = random_means(count)
    expected = vse_oracle(h, module.projection.weight, module.projection.bias, 0.3, denominator)
    assert float(module.loss(h, no_second_view)) == pytest.approx(expected, abs=1e-5)


def test_the_literal_formula_is_infinite_for_every_input() -> None:
    module = SelfEquilibrationConfig().build(6)
    for seed in range(3):
        h = random_means(4, seed=seed)
        assert vse_oracle(h, module.projection.weight, module.projection.bias, 0.1, "literal") == math.inf


def identity_vse(dim: int, *, self_in_denominator: bool = False, temperature: float = 0.1) -> SelfEquilibration:
    """W_1 = 1, b = 0: z is the direction of h itself."""
    module = SelfEquilibration(dim, 1.0, temperature, self_in_denominator=self_in_denominator)
    nn.init.eye_(module.projection.weight)
    nn.init.zeros_(module.projection.bias)
    return module


@pytest.mark.parametrize("inside", [False, True])
def test_vse_is_highest_for_equal_images_and_lowest_for_spread_ones(inside: bool) -> None:
    """Closed forms: B equal vectors, and the corners of a simplex, which are as far apart as B vectors can be."""
    count, tau = 4, 0.1
    module = identity_vse(count, self_in_denominator=inside)
    equal = torch.ones(count, count)
    simplex = torch.eye(count) - 1 / count
    others = count - 1
    cosine = -1 / others
    low = others * math.exp(cosine / tau) + (math.exp(1 / tau) if inside else 0.0)
    assert float(module.loss(equal, no_second_view)) == pytest.approx(math.log(others + inside), abs=1e-5)
    assert float(module.loss(simplex, no_second_view)) == pytest.approx(math.log(low) - 1 / tau, abs=1e-5)
    for seed in range(5):
        value = float(module.loss(random_means(count, count, seed), no_second_view))
        assert math.log(low) - 1 / tau <= value <= math.log(others + inside) + 1e-5


@given(scale=st.floats(0.1, 100.0), seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_growing_z_alone_does_not_change_the_loss(scale: float, seed: int) -> None:
    module = identity_vse(5)
    h = random_means(4, 5, seed)
    torch.testing.assert_close(module.loss(scale * h, no_second_view), module.loss(h, no_second_view), **CLOSE)


def test_without_unit_length_the_loss_falls_for_ever() -> None:
    """Why z is normalised: S_ii is |z|^2 / tau, and scaling orthogonal vectors lowers the loss without bound."""
    losses = []
    for scale in (1.0, 2.0, 4.0):
        scores = (scale**2) * torch.eye(3)
        others = scores.masked_fill(torch.eye(3, dtype=torch.bool), float("-inf"))
        losses.append(float((others.logsumexp(1) - scores.diagonal()).mean()))
    assert losses[0] > losses[1] > losses[2]
    assert losses[1] - losses[2] == pytest.approx(12.0)


def test_both_readings_have_the_same_direction_and_another_strength() -> None:
    """They differ in S_ii alone, which is constant: gradients of each sample's term are parallel."""
    grads = []
    for inside in (False, True):
        module = identity_vse(5, self_in_denominator=inside)
        h = random_means(2, 5).requires_grad_()
        module.loss(h, no_second_view).backward()
        assert h.grad is not None
        grads.append(h.grad.flatten())
    cosine = float(torch.cosine_similarity(grads[0], grads[1], dim=0))
    assert cosine == pytest.approx(1.0, abs=1e-5)
    assert grads[1].norm() < grads[0].norm()


def test_a_batch_of_one_has_nothing_to_spread() -> None:
    for inside in (False, True):
        module = identity_vse(4, self_in_denominator=inside)
        h = random_means(1, 4).requires_grad_()
        loss = module.loss(h, no_second_view)
        loss.backward()
        assert float(loss) == 0.0
        assert h.grad is not None
        assert not h.grad.any()


@pytest.mark.parametrize("count", [1, 3])
def test_two_views_equal_loops_over_simclr(count: int) -> None:
    module = TwoViewEquilibration(6, 2.0, 0.2, NoAugmentation())
    first, second = random_means(count), random_means(count, seed=1)
    z = module.project(torch.cat([first, second])).tolist()
    total = 0.0
    for i in range(2 * count):
        scores = [math.exp(sum(a * b for a, b in zip(z[i], other, strict=True)) / 0.2) for other in z]
        partner = (i + count) % (2 * count)
        total -= math.log(scores[partner] / sum(score for j, score in enumerate(scores) if j != i))
    loss = module.loss(first, lambda augment: second)
    assert float(loss) == pytest.approx(total / (2 * count), abs=1e-5)


def test_the_second_view_depends_on_the_steps_seed_alone() -> None:
    module = TwoViewEquilibration(6, 2.0, 0.2, LightAugmentation())
    pixels = torch.rand(3, 1, 16, 16, generator=torch.Generator().manual_seed(0))

    def second_view(seed: int) -> Tensor:
        torch.manual_seed(seed)
        images: list[Tensor] = []

        def encode_again(augment: object) -> Tensor:
            images.append(augment(pixels))  # type: ignore[operator]
            return random_means(3)

        module.loss(random_means(3), encode_again)
        return images[0]

    assert torch.equal(second_view(1), second_view(1))
    assert not torch.equal(second_view(1), second_view(2))
    assert not torch.equal(second_view(1), pixels)
    module.eval()
    assert torch.equal(second_view(1), second_view(2)), "validation sees the same images every time"


# ----------------------------------------------------------------------------------------------- DID, Eq. 4-6


def small_language_model(lora: bool = False, vocab_size: int = 30) -> CausalLanguageModel:
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=16, num_layers=2, num_heads=2, dropout=0.5, token_dropout=0.5)
    if lora:
        config = config.model_copy(update={"lora": LoraConfig(rank=4, alpha=4)})
    return config.build(vocab_size=vocab_size, bos_id=1, eos_id=2, pad_id=0)


def set_adapters(model: nn.Module, seed: int = 1) -> None:
    """Give the adapters values that matter; B starts at zero."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        if "lora_" in name:
            parameter.data = 0.5 * torch.randn(parameter.shape, generator=generator)


def test_did_equals_loops_over_equations_4_to_6(unchecked_shapes: None) -> None:
    module = DiseaseDistillation(6, 5, temperature=0.25)
    h, text = random_means(4), random_means(4, 5, seed=1)
    images = [(row / row.norm()).tolist() for row in h]
    words = [module.text_projection.weight @ row + module.text_projection.bias for row in text]
    texts = [(row / row.norm()).tolist() for row in words]
    dot = [[sum(a * b for a, b in zip(image, word, strict=True)) for word in texts] for image in images]
    v2t = t2v = 0.0
    for i in range(4):
        v2t -= math.log(math.exp(dot[i][i] / 0.25) / sum(math.exp(dot[i][j] / 0.25) for j in range(4))) / 4
        t2v -= math.log(math.exp(dot[i][i] / 0.25) / sum(math.exp(dot[j][i] / 0.25) for j in range(4))) / 4

    class Reader(nn.Module):
        """Stands for the language model."""

    import radweave.methods.vdgen.distillation as distillation

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distillation, "mean_hidden_state", lambda *arguments: text)
        loss = module.loss(h, Reader(), torch.zeros(4, 1), torch.zeros(4, 1))  # type: ignore[arg-type]
    assert float(loss) == pytest.approx((v2t + t2v) / 2, abs=1e-5)


def test_the_teacher_is_the_mean_over_the_reports_own_tokens() -> None:
    model = small_language_model().eval()
    texts = [[5, 6, 7, 2], [8, 9, 2]]
    ids = torch.tensor([[5, 6, 7, 2], [8, 9, 2, 0]])
    mask = torch.tensor([[True] * 4, [True, True, True, False]])
    states = mean_hidden_state(model, ids, mask)
    for row, text in enumerate(texts):
        alone = model.model(input_ids=torch.tensor([[1, *text]]), output_hidden_states=True).hidden_states[-1][0]
        own = [alone[place] for place in range(1, len(text))]  # without the begin and the end token
        torch.testing.assert_close(states[row], torch.stack(own).mean(0), **CLOSE)


def test_the_teacher_stands_still() -> None:
    """No gradient, no dropout, no adapters; and everything is afterwards as it was."""
    plain, adapted = small_language_model(), small_language_model(lora=True)
    set_adapters(adapted)
    apply_finetune(nn.ModuleDict({"language_model": adapted}), {"language_model": "lora"})
    adapted.train()
    ids = torch.tensor([[5, 6, 7]])
    mask = torch.ones_like(ids, dtype=torch.bool)
    trains = {name: parameter.requires_grad for name, parameter in adapted.named_parameters()}
    states = mean_hidden_state(adapted, ids, mask)
    assert not states.requires_grad
    torch.testing.assert_close(states, mean_hidden_state(plain.eval(), ids, mask), atol=0, rtol=0)
    assert adapted.training
    assert {name: parameter.requires_grad for name, parameter in adapted.named_parameters()} == trains
    adapted.eval()
    before = plain.model(input_ids=ids).logits
    assert (adapted.model(input_ids=ids).logits - before).abs().max() > 0.01, "adapters are on again"


def test_no_gradient_of_did_reaches_the_language_model() -> None:
    model = small_language_model(lora=True)
    module = DiseaseDistillation(6, 16, temperature=0.1)
    h = random_means(3).requires_grad_()
    ids = torch.tensor([[5, 6], [7, 8], [9, 10]])
    module.loss(h, model, ids, ids).backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert h.grad is not None
    assert module.text_projection.weight.grad is not None


# ----------------------------------------------------------------------------------------------- LoRA


def test_the_lora_path_equals_peft() -> None:
    """The logits of our spliced prompt and report equal those of peft's own model on the same embeddings."""
    actual = small_language_model(lora=True).eval()
    base = LlamaForCausalLM(actual.model.config).eval()
    state = {name.replace(".base_layer", ""): value for name, value in actual.model.state_dict().items()}
    base.load_state_dict({name: value for name, value in state.items() if "lora_" not in name})
    reference: PeftModel = get_peft_model(base, PeftConfig(r=4, lora_alpha=4, lora_dropout=0.1))
    set_adapters(actual.model)
    set_adapters(reference.base_model.model)
    reference.eval()
    prefix = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[5, 6, 7, 2], [8, 9, 10, 2]])
    logits = reference(inputs_embeds=torch.cat([prefix, actual.embed(ids)], 1)).logits
    left = actual.model(inputs_embeds=torch.cat([prefix, actual.embed(ids)], 1)).logits
    # The same operations in the same order; 1e-6 is float32's resolution at these sizes.
    torch.testing.assert_close(left, logits, atol=1e-6, rtol=0)
    expected = nn.functional.cross_entropy(logits[:, 2:-1].flatten(0, 1), ids.flatten())
    loss = actual.loss(prefix, torch.ones(2, 3, dtype=torch.bool), ids, ids)
    torch.testing.assert_close(loss, expected, atol=1e-6, rtol=0)


# ----------------------------------------------------------------------------------------------- the model


def context() -> BuildContext:
    tokenizer = resolve("vdgen", "tiny", TOY_OVERRIDES).data.tokenizer.build(list(TOY_REPORTS.values()) * 4)
    return BuildContext(tokenizer, 32, ("Lung Opacity",))


def toy_model(*overrides: str) -> VdgenModel:
    experiment = resolve("vdgen", "tiny", [*TOY_OVERRIDES, *TOY_SIZES["vdgen"], *overrides])
    model = experiment.model.build(context())
    assert isinstance(model, VdgenModel)
    return model


def toy_example(where: BuildContext, index: int, report: str | None = None, patient: str | None = None) -> Example:
    pixels = np.random.default_rng(index).integers(0, 255, (1 + index % 2, 32, 32)).astype(np.uint8)
    text = report or list(TOY_REPORTS.values())[index % 2]
    return Example(
        study_id=f"s{index}",
        patient_id=patient or f"p{index}",
        source=pixels,
        rows=tuple(range(len(pixels))),
        view_ids=tuple(range(1, len(pixels) + 1)),
        token_ids=(*encode(where.tokenizer, text), int(where.tokenizer.eos_token_id)),
        report=text,
    )


def toy_batch(where: BuildContext, indices: Sequence[int] = (0, 1, 2)) -> Batch:
    return collate([toy_example(where, index) for index in indices], pad_id=int(where.tokenizer.pad_token_id))


def test_the_losses_read_the_mean_of_the_normalised_tokens() -> None:
    where, model = context(), toy_model("model.vision_norm=layer").eval()
    batch = toy_batch(where)
    assert batch.pixel_values is not None
    h = []
    for study, views in enumerate((1, 2, 1)):
        tokens = [model.vision_encoder(batch.pixel_values[study, view][None]).tokens[0] for view in range(views)]
        normed = [
            (token - token.mean()) / (token.var(unbiased=False) + 1e-5).sqrt() for token in torch.cat(tokens).unbind()
        ]
        h.append(torch.stack(normed).mean(0))
    torch.testing.assert_close(model.encode(batch).mean(), torch.stack(h), atol=1e-4, rtol=1e-4)


def test_tokens_are_normalised_per_channel_over_the_views_that_are_there() -> None:
    """In training by the batch's own statistics, against numpy; the decoder's projection reads what comes out."""
    where, model = context(), toy_model().train()
    model.vision_encoder.eval()  # it drops paths at random, in each pass others
    assert isinstance(model.connector.input_norm, nn.Identity)
    batch = toy_batch(where)
    with torch.no_grad():
        tokens = model.vision_encoder(batch.pixel_values[batch.view_mask]).tokens  # type: ignore[index]
    flat = tokens.flatten(0, 1).double().numpy()
    expected = (flat - flat.mean(0)) / np.sqrt(flat.var(0) + 1e-5)
    views = model.encode(batch)
    actual = views.tokens[views.view_mask].flatten(0, 1).detach().double().numpy()
    np.testing.assert_allclose(actual, expected, atol=1e-3)


@pytest.mark.parametrize(("norm", "read"), [("none", True), ("batch", False)])
def test_the_decoder_reads_what_vse_and_did_scale(norm: str, read: bool) -> None:
    """Scaling the normalised tokens' channels changes the decoder's input, unless a second norm takes it out again."""
    where, model = context(), toy_model(f"model.connector.input_norm={norm}").train()
    model.vision_encoder.eval()  # the same paths are dropped in both passes: none
    batch = toy_batch(where)
    seen: list[Tensor] = []

    def keep(name: str, slot: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        seen.append(slot[0].detach())
        return slot

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad(), model.reading_by(keep):
        model.report_nats(batch)
        model.vision_norm.norm.weight.mul_(0.5 + torch.rand(model.vision_norm.norm.weight.shape, generator=generator))
        model.report_nats(batch)
    change = float((seen[1] - seen[0]).norm() / seen[0].norm())
    assert (change > 0.05) == read, change
    assert read or change < 0.01


@pytest.mark.parametrize("term", ["vse", "did"])
def test_vse_and_did_train_the_encoder_in_tiny(term: str) -> None:
    where, model = context(), toy_model()
    finetune = tiny().stages.report.finetune
    apply_finetune(model, finetune)
    set_train_mode(model, finetune)
    model.loss(toy_batch(where), (term,))[term].backward()
    slopes = [parameter.grad for parameter in model.vision_encoder.parameters()]
    assert any(slope is not None and bool(slope.any()) for slope in slopes)
    assert all(parameter.grad is None for parameter in model.language_model.parameters())


def test_absent_views_are_zero_whatever_their_tokens_are() -> None:
    where, model = context(), toy_model().eval()
    views = model.encode(toy_batch(where))
    assert not views.view_mask.all()
    result = model.normed(replace(views, tokens=torch.randn_like(views.tokens)))
    assert (result.tokens[~views.view_mask] == 0).all()
    assert (result.tokens[views.view_mask] != 0).any()


def test_all_losses_together_are_the_sum_of_equation_8() -> None:
    where, model = context(), toy_model().eval()
    stage = resolve("vdgen", "tiny", ABLATIONS["equal weights"]).stages.report  # type: ignore[attr-defined]
    assert stage.losses == paper().stages.report.losses == {"report": 1.0, "vse": 1.0, "did": 1.0}
    batch = toy_batch(where)
    with torch.no_grad():
        together = model.loss(batch, tuple(stage.losses))
        alone = {term: model.loss(batch, (term,))[term] for term in stage.losses}
    assert float(total_loss(together, stage.losses)) == pytest.approx(sum(map(float, alone.values())), abs=1e-5)


@pytest.mark.parametrize(("row", "term"), [("w/o VSE", "vse"), ("w/o DID", "did")])
def test_a_row_without_a_loss_trains_as_if_the_loss_had_no_weight(row: str, term: str) -> None:
    where = context()
    full, ablated = toy_model(), toy_model(*ABLATIONS[row])
    finetune = tiny().stages.report.finetune
    for model in (full, ablated):
        apply_finetune(model, finetune)
        set_train_mode(model, finetune)
        torch.manual_seed(0)
        terms = model.loss(toy_batch(where), ("report", "vse", "did"))
        if model is ablated:
            assert float(terms[term]) == 0.0
        total_loss(terms, {"report": 1.0, "vse": 1.0, "did": 1.0} | ({term: 0.0} if model is full else {})).backward()
    grads = dict(full.named_parameters())
    for name, parameter in ablated.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(parameter.grad, grads[name].grad, atol=1e-6, rtol=1e-5)
    assert not any(True for _ in getattr(ablated, term).parameters())


def test_without_lora_the_language_model_stays_as_it_is() -> None:
    (override,) = ABLATIONS["w/o LoRA"]
    assert override == "stages.report.finetune.language_model=frozen"
    model = toy_model()
    assert has_lora(model.language_model)
    experiment = resolve("vdgen", "tiny", [override])
    apply_finetune(model, experiment.stages.report.finetune)
    assert not any(parameter.requires_grad for parameter in model.language_model.parameters())


@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_the_teacher_is_a_language_model_that_was_trained_without_its_adapters(preset: str) -> None:
    """With its adapters it would be one half of a pair: off, nobody has trained what is left."""
    model, where = toy_model(), context()
    finetune = resolve("vdgen", preset, []).stages.language.finetune
    start = {name: value.clone() for name, value in model.language_model.state_dict().items()}
    apply_finetune(model, finetune)
    set_train_mode(model, finetune)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        model.loss(toy_batch(where), ("text_in_context",))["text_in_context"].backward()
        optimizer.step()
    moved = {name for name, value in model.language_model.state_dict().items() if not torch.equal(value, start[name])}
    assert moved
    assert not [name for name in moved if "lora_" in name]
    # As it writes now, so it teaches later, when its adapters have learned too.
    batch, language_model = toy_batch(where), model.eval().language_model
    assert batch.input_ids is not None
    assert batch.labels is not None
    before = language_model.text_loss(batch.input_ids, batch.labels)
    set_adapters(language_model)
    assert not torch.allclose(language_model.text_loss(batch.input_ids, batch.labels), before)
    with adapters_off(language_model):
        assert torch.equal(language_model.text_loss(batch.input_ids, batch.labels), before)


def test_rows_of_the_ablation_switch_one_thing() -> None:
    assert isinstance(toy_model(*ABLATIONS["w/o VSE"]).vse, NoEquilibration)
    literal = toy_model(*ABLATIONS["VSE: own similarity in the denominator"]).vse
    assert isinstance(literal, SelfEquilibration)
    assert literal.self_in_denominator
    assert isinstance(toy_model(*ABLATIONS["VSE: two views"]).vse, TwoViewEquilibration)


def test_two_views_encode_an_augmented_batch_and_refuse_features() -> None:
    where, model = context(), toy_model("model.vse=two_views").eval()
    batch = toy_batch(where)
    second_view: list[Tensor] = []
    model.vision_encoder.register_forward_pre_hook(lambda module, inputs: second_view.append(inputs[0]))
    model.loss(batch, ("vse",))
    first, second = second_view
    assert first.shape == second.shape
    assert not torch.equal(first, second)
    batch.vision_tokens = model.vision_encoder(first).tokens.new_zeros(3, 2, 16, 16)
    batch.pixel_values, batch.vision_grid = None, (4, 4)
    with pytest.raises(InputError, match="pixels"):
        model.loss(batch, ("vse",))


def test_the_papers_numbers_and_prompt() -> None:
    experiment = paper()
    lora = experiment.model.language_model.lora
    assert isinstance(lora, LoraConfig)
    assert (lora.rank, lora.alpha) == (16, 16)
    assert experiment.model.vision_encoder.kind == "swin"
    assert (experiment.data.image_size, experiment.stages.report.batch_size) == (224, 16)
    assert experiment.stages.report.optimizer.learning_rate == 1e-4
    assert experiment.decoding.max_new_tokens == 100
    template = PromptTemplate.parse(VDGEN_PROMPT, lambda text: [ord(c) for c in text], slots=("image",), bos_id=None)
    text = "".join(piece if isinstance(piece, str) else "".join(map(chr, piece)) for piece in template.pieces)
    assert text.replace("image", "X", 1) == (
        "Human: <img> X </img> Generate a comprehensive and detailed diagnosis report for this chest X-ray image."
        "\nAssistant:"
    )


@pytest.mark.slow  # the gradients of every method over two processes are in tests/engine/test_distributed.py
def test_two_processes_equal_one(tmp_path: Path) -> None:
    """Contrasts see the global batch: two processes with 2 and 3 studies have the gradients of one with 5."""
    folder = Path(__file__).parent
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(folder / "vdgen_job.py")]
    jobs = [subprocess.Popen([*command, str(rank), "2", str(tmp_path)], env=environment) for rank in range(2)]
    expected = {reading: gradients(None, Ranks(), overrides) for reading, overrides in READINGS.items()}
    assert [job.wait(timeout=300) for job in jobs] == [0, 0]
    for reading, (terms, model) in expected.items():
        for rank in range(2):
            result = torch.load(tmp_path / f"{reading}{rank}.pt", weights_only=True)
            for name in ("vse", "did"):  # of the global batch, on every rank
                assert result["terms"][name] == pytest.approx(terms[name], abs=1e-5), (
                    "of the global batch, on every rank"
                )
            assert set(result["gradients"]) == set(trained(model))
            for name, gradient in trained(model).items():
                torch.testing.assert_close(result["gradients"][name], gradient, atol=2e-5, rtol=1e-4)


# ----------------------------------------------------------------------------------------------- evidence


def training_view(where: BuildContext, examples: Sequence[Example]) -> TrainingView:
    studies = tuple(
        Study(study_id=e.study_id, patient_id=e.patient_id, split="train", images=(ImageRef(path="a.png"),))
        for e in examples
    )
    return TrainingView(studies, tuple(examples), where.classes, int(where.tokenizer.pad_token_id), seed=0)


def test_a_sentence_said_twice_in_a_report_is_of_one_study() -> None:
    where, model = context(), toy_model().eval()
    once = toy_example(where, 0)
    assert once.token_ids is not None
    words = once.token_ids[:-1]
    twice = replace(once, token_ids=(*words * 3, once.token_ids[-1]))
    bank = build_sentence_bank(training_view(where, [twice]), model.language_model, model.sentences.splitter, 9)
    assert [row["studies"] for row in bank.rows] == [1] * len(bank.rows)
    assert len(bank.rows) >= 1


def test_the_sentence_bank_counts_sentences_of_the_training_reports() -> None:
    where, model = context(), toy_model().eval()
    view = training_view(where, [toy_example(where, index) for index in range(5)])
    bank = build_sentence_bank(view, model.language_model, model.sentences.splitter, max_sentences=4)
    counts = {row["text"]: row["studies"] for row in bank.rows}
    # Studies 0, 2, 4 have the left report of two sentences, 1 and 3 the right one of three.
    assert counts == {
        "There is an opacity on the left.": 3,
        "The heart is normal.": 3,
        "There is an opacity on the right.": 2,
        "The heart is enlarged.": 2,
    }
    assert [row["studies"] for row in bank.rows] == [3, 3, 2, 2], "the frequent first, and no more than asked for"
    assert bank.rows[2]["study_id"] == "s1"
    assert bank.rows[2]["patient"] == patient_code("p1")
    alone = sentence_states(
        model.language_model, [model.sentences.splitter.split(encode(where.tokenizer, " The heart is normal."))[0]]
    )
    torch.testing.assert_close(bank.tensors["states"][1], alone[0], **CLOSE)
    assert set(model.build_memories("report", view)) == {"sentences"}
    assert model.build_memories("vision", view) == {}
    assert toy_model("model.did=none").build_memories("report", view) == {}


def test_kept_sentences_follow_a_language_model_that_has_trained_since() -> None:
    where, model = context(), toy_model().eval()
    sentence = model.sentences.splitter.split(encode(where.tokenizer, " The heart is normal."))[0]
    row = {"study_id": "s0", "patient": patient_code("p0"), "text": "The heart is normal."}
    states = sentence_states(model.language_model, [sentence, sentence[:2]])
    rows = tuple({**row, "token_ids": list(ids)} for ids in (sentence, sentence[:2]))
    memory, earlier = (
        SentenceMemory(Bank({"states": states}, rows)),
        SentenceMemory(Bank({"states": states}, (row, row))),
    )
    memory.follow(model.language_model)
    assert memory.states is states, "a language model that stood still asks for nothing"
    with torch.no_grad():
        for parameter in model.language_model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    now = sentence_states(model.language_model, [sentence, sentence[:2]])
    assert not torch.allclose(now, states, atol=0.1)
    for kept in (memory, earlier):
        kept.follow(model.language_model)
    torch.testing.assert_close(memory.states, now, **CLOSE)
    assert earlier.states is states, "a bank of an earlier version has no tokens"


def test_a_draft_shows_sentences_by_the_language_model_that_wrote_it() -> None:
    where, model = context(), toy_model().eval()
    model.set_memories(model.build_memories("report", training_view(where, [toy_example(where, 0)])))
    memory = model.sentences.memory
    assert memory is not None
    tokens = [row["token_ids"] for row in memory.rows]
    with torch.no_grad():
        for parameter in model.language_model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.generate(toy_batch(where), resolve("vdgen", "tiny", TOY_OVERRIDES).decoding)
    torch.testing.assert_close(memory.states, sentence_states(model.language_model, tokens), **CLOSE)


def test_the_nearest_sentences_are_those_of_the_space_and_never_the_patients_own() -> None:
    where, model = context(), toy_model().eval()
    assert isinstance(model.did, DiseaseDistillation)
    states = torch.randn(6, 32, generator=torch.Generator().manual_seed(3))
    rows = tuple(
        {"study_id": f"t{row}", "patient": patient_code(f"q{row % 3}"), "text": f"sentence {row}."} for row in range(6)
    )
    memory = SentenceMemory(Bank({"states": states}, rows))
    batch = toy_batch(where, (0, 1))
    batch.patient_ids = ["q0", "somebody else"]
    mean = model.encode(batch).mean()
    result = memory.nearest(model.did, mean, batch, top_k=6)
    vectors = model.did.text_vectors(states)
    image = mean / mean.norm(dim=1, keepdim=True)
    for study, allowed in enumerate(([1, 2, 4, 5], range(6))):
        cosines = {f"t{row}": float(vectors[row] @ image[study]) for row in allowed}
        order = sorted(cosines, key=lambda name: -cosines[name])
        assert [row["study_id"] for row in result[study]] == order
        for row in result[study]:
            assert row["scores"]["image_similarity"] == pytest.approx(cosines[row["study_id"]], abs=1e-4)
            assert row["kind"] == "sentence"
            assert row["text"] == f"sentence {row['study_id'][1:]}."


def test_generation_says_how_each_sentence_fits() -> None:
    where, model = context(), toy_model().eval()
    decoding = resolve("vdgen", "tiny", TOY_OVERRIDES).decoding
    view = training_view(where, [toy_example(where, index) for index in range(5)])
    report = encode(where.tokenizer, TOY_REPORTS["right"])

    def write(batches: Iterator[Prefixes], options: object) -> Iterator[Written]:
        for one in batches:
            yield [list(report) for _ in one.embeds], [[-0.1] * len(report) for _ in one.embeds]

    model.language_model.write = write  # type: ignore[method-assign, assignment]
    model.set_memories(model.build_memories("report", view))
    batch = toy_batch(where)
    generation = model.generate(batch, decoding)
    assert isinstance(model.did, DiseaseDistillation)
    h = model.encode(batch).mean()
    for study, values in enumerate(generation.intermediates):
        assert [row["text"] for row in values["sentence_fit"]] == [
            "There is an opacity on the right.", "The heart is enlarged.", "No effusion.",
        ]  # fmt: skip
        ids = model.sentences.splitter.split(report)[1]
        vector = model.did.text_vectors(sentence_states(model.language_model, [ids]))[0]
        expected = float(vector @ (h[study] / h[study].norm()))
        assert values["sentence_fit"][1]["image_similarity"] == pytest.approx(expected, abs=1e-4)
    # Of the five sentences, study 0 brought two and study 1 three.
    assert [len(values["recalled"]) for values in generation.intermediates] == [3, 2, 5]
    without = toy_model("model.did=none").eval()
    assert "sentence_fit" not in without.generate(batch, decoding).intermediates[0]


def test_sentences_end_where_a_new_word_follows_a_full_stop() -> None:
    splitter = SentenceSplitter.for_tokenizer(context().tokenizer)
    text = "No effusion. The heart is 4.5 cm. No"
    ids = splitter.encode(text)
    parts = splitter.split(ids)
    assert [splitter.decode(part) for part in parts] == ["No effusion.", "The heart is 4.5 cm.", "No"]
    assert [token for part in parts for token in part] == ids
    assert splitter.split([]) == []
