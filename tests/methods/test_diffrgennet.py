"""The difference-aware method: its equations against plain loops, and what it promises."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from radweave.core.batch import Batch
from radweave.core.errors import InputError
from radweave.core.json_files import read_jsonl
from radweave.core.ontology import CHEXPERT14
from radweave.core.study import ImageRef, Study
from radweave.data.cache.images import PixelCache
from radweave.data.dataset import Dataset
from radweave.data.examples import prepare_split
from radweave.engine.restore import restore
from radweave.engine.train import train
from radweave.inference.predictor import Predictor
from radweave.methods import resolve
from radweave.methods.diffrgennet import ABLATIONS, PRESETS, TABLES
from radweave.methods.diffrgennet.difference import METRICS, Cases, FeatureDifference, NoDifference, distances
from radweave.methods.diffrgennet.diseases import DiseaseStates, adjusted_loss
from radweave.methods.diffrgennet.matching import Contrasted, Denominator, NegPosMatching, Outputs, neg_pos_loss
from radweave.methods.diffrgennet.model import DiffRGenNetModel, Forward
from radweave.methods.diffrgennet.reading import sine_positions
from radweave.methods.diffrgennet.retrieval import BANK, ImageRetrieval
from radweave.methods.experiment import BuildContext
from radweave.methods.stage import apply_finetune, build_optimizer, set_train_mode, total_loss
from radweave.nn.decoding import DecodingConfig
from radweave.nn.flexiroute import FlexiRoute
from radweave.phantom.study import PhantomOptions, write_phantom_dataset
from tests.methods.method_toys import View, batch_of, built, example, toy_context, with_memory
from tests.toys import TOY_OVERRIDES, TOY_REPORTS, TOY_SIZES, bench_program

GREEDY = DecodingConfig(max_new_tokens=10)
CAUSAL = (
    "model.language_model=llama",
    "model.language_model.hidden_size=32",
    "model.language_model.num_layers=2",
    "model.dim=24",
)


def toy_model(context: BuildContext, *overrides: str) -> DiffRGenNetModel:
    return built("diffrgennet", DiffRGenNetModel, context, overrides)


def test_distances_and_feature_difference_equal_equation_1() -> None:
    torch.manual_seed(0)
    image, cases = torch.randn(2, 4).double(), torch.randn(2, 3, 4).double()
    result = {scale: distances(image, cases, scale) for scale in ("sqrt_dim", "literal")}  # type: ignore[arg-type]
    for study in range(2):
        for case in range(3):
            z, e = image[study].tolist(), cases[study, case].tolist()
            l2 = math.sqrt(sum((a - b) ** 2 for a, b in zip(z, e, strict=True)))
            dot = sum(a * b for a, b in zip(z, e, strict=True))
            cosine = dot / math.sqrt(sum(a * a for a in z) * sum(b * b for b in e))
            for scale, length in (("sqrt_dim", 2.0), ("literal", 1.0)):
                wanted = torch.tensor([l2, cosine, dot / length]).double()
                # 1e-12 stands under the root, so that it has a gradient at 0.
                assert torch.allclose(result[scale][study, case], wanted, atol=1e-7)
    module = FeatureDifference(4, ("dot", "l2"), "literal", 8).double()
    chosen = result["literal"][..., [2, 0]]
    is_present = torch.ones(cases.shape[:2], dtype=torch.bool)
    assert torch.allclose(module(image, cases, is_present), module.mlp(chosen))
    absent = NoDifference(4).of(image, Cases(cases, is_present, ~is_present))
    assert (absent.tokens.shape, absent.present.shape, absent.is_prior.shape) == ((2, 0, 4), (2, 0), (2, 0))
    same = torch.ones(1, 4, requires_grad=True)
    distances(same, torch.ones(1, 1, 4)).sum().backward()  # type: ignore[no-untyped-call]
    assert same.grad is not None
    assert torch.isfinite(same.grad).all()


def test_change_features_are_normalised_over_present_cases_and_carry_the_way_a_case_differs() -> None:
    torch.manual_seed(0)
    image, cases = torch.randn(4, 5).double() + 3, torch.randn(4, 3, 5).double()
    is_present = torch.tensor([[True, True, True], [True, False, True], [False, False, False], [True, True, False]])
    module = FeatureDifference(6, METRICS, "sqrt_dim", 8, width=5, norm="batch", vector=True).double().train()
    tokens = module(image, cases, is_present)
    values = []
    for study, case in is_present.nonzero().tolist():
        z, e = image[study], cases[study, case]
        apart = torch.stack([(z - e).square().sum().sqrt(), z @ e / (z.norm() * e.norm()), z @ e / 5**0.5])
        values.append(torch.cat([apart, z / z.norm() - e / e.norm()]))

    def standardised(rows: Tensor) -> Tensor:
        return (rows - rows.mean(0)) / (rows.var(0, correction=0) + 1e-5).sqrt()

    torch.testing.assert_close(tokens[is_present], standardised(module.mlp(standardised(torch.stack(values)))))
    assert not tokens[~is_present].any()
    # A case alone has no variance of its own; in use the statistics are those of training.
    alone = torch.tensor([[True, False, False]])
    module.eval()
    in_use = module(image[:1], cases[:1], alone)
    module.train()
    torch.testing.assert_close(module(image[:1], cases[:1], alone), in_use)
    assert module(image[:1], cases[:1], ~alone & alone).shape == (1, 3, 6)


def loop_over_anchors(
    image: Tensor,
    report: Tensor,
    labels: Sequence[tuple[int, ...]],
    tau: float,
    which: str,
    differences: Tensor | None = None,
) -> float:
    """Eq. 8, both directions, number by number; difference features are negatives of every anchor."""
    apart = [] if differences is None else list(differences)
    total = 0.0
    for left, right in ((image.detach(), report.detach()), (report.detach(), image.detach())):
        terms = []
        for i in range(len(labels)):
            f = [float(torch.nn.functional.cosine_similarity(left[i], row, dim=0)) / tau for row in right]
            same_labels = [j == i or (labels[j] == labels[i] and min(labels[i]) >= 0) for j in range(len(labels))]
            if all(same_labels) and not apart:
                continue
            below = sum(math.exp(f[j]) for j in range(len(f)) if which == "all" or not same_labels[j])
            below += sum(math.exp(float(torch.nn.functional.cosine_similarity(left[i], d, dim=0)) / tau) for d in apart)
            ratios = [math.log(math.exp(f[p]) / below) for p in range(len(f)) if same_labels[p]]
            terms.append(-sum(ratios) / len(ratios))
        total += sum(terms) / len(terms) / 2
    return total


@pytest.mark.parametrize("denominator", get_args(Denominator))
def test_matching_equals_equation_8(denominator: Denominator) -> None:
    torch.manual_seed(0)
    image, report = torch.randn(6, 5).double(), torch.randn(6, 5).double()
    labels = [(0, 1), (1, 0), (0, 1), (-1, -1), (-1, -1), (0, 1)]
    loss = neg_pos_loss(image, report, torch.tensor(labels), 0.5, denominator)
    # The loss is computed in float32.
    assert abs(float(loss) - loop_over_anchors(image, report, labels, 0.5, denominator)) < 1e-5
    apart = torch.randn(6, 5).double()
    for some in (labels, [(0, 1)] * 6):
        loss = neg_pos_loss(image, report, torch.tensor(some), 0.5, denominator, apart)
        assert abs(float(loss) - loop_over_anchors(image, report, some, 0.5, denominator, apart)) < 1e-5


@pytest.mark.parametrize("over", get_args(Contrasted))
def test_matching_contrasts_the_outputs_of_aggregation_where_it_is_asked_to(over: Contrasted) -> None:
    torch.manual_seed(0)
    module = NegPosMatching(4, 3, 5, 0.5, "all", over)
    image, report, similar, difference = (torch.randn(6, size, requires_grad=True) for size in (4, 3, 4, 4))
    labels = [(0, 1), (1, 0), (0, 1), (-1, -1), (1, 1), (0, 1)]
    has_cases = torch.tensor([True, True, False, True, True, True])
    loss = module.loss(image, report, torch.tensor(labels), lambda: Outputs(similar, difference, has_cases))
    loss.backward()  # type: ignore[no-untyped-call]
    own = module.report(report)
    wanted = loop_over_anchors(module.image(image), own, labels, 0.5, "all")
    if module.outputs is None:
        assert over == "inputs"
        assert similar.grad is None
        assert difference.grad is None
    else:
        projected, apart = (module.outputs(one) * has_cases[:, None] for one in (similar, difference))
        wanted = (wanted + loop_over_anchors(projected, own, labels, 0.5, "all", apart)) / 2
        for one in (similar, difference):
            assert one.grad is not None
            assert (one.grad.abs().sum(1) > 0).tolist() == has_cases.tolist(), "a study without cases says nothing"
    assert abs(float(loss) - wanted) < 1e-5
    # A distance in this space is one of directions, as the loss is.
    torch.testing.assert_close(module.of_image(image), torch.nn.functional.normalize(module.image(image), dim=1))
    torch.testing.assert_close(module.of_report(report), torch.nn.functional.normalize(own, dim=1))


def test_a_batch_without_negatives_has_no_matching_loss_but_a_gradient() -> None:
    image = torch.randn(3, 4, requires_grad=True)
    loss = neg_pos_loss(image, torch.randn(3, 4), torch.zeros(3, 2, dtype=torch.long), 0.1, "negatives")
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0.0
    assert image.grad is not None
    assert (image.grad == 0).all()


def test_disease_loss_equals_equation_9() -> None:
    torch.manual_seed(0)
    logits, prior = torch.randn(3, 2, 4).double(), torch.tensor([0.2, 0.05]).double()
    labels = torch.tensor([[1, 0], [2, 1], [-1, 3]])
    losses = []
    for study in range(3):
        for disease in range(2):
            if labels[study, disease] < 0:
                continue
            values = [float(v) for v in logits[study, disease]]
            values[1] += math.log(float(prior[disease]))
            own = math.exp(values[int(labels[study, disease])])
            losses.append(-math.log(own / sum(math.exp(v) for v in values)))
    assert abs(float(adjusted_loss(logits, labels, prior.log())) - sum(losses) / len(losses)) < 1e-9


def test_the_class_prior_comes_from_the_training_split_and_adapts() -> None:
    states = torch.tensor([[1, 0, -1], [1, 1, -1], [0, 2, 0], [1, 3, 0]])
    module = DiseaseStates(4, 8, 3, "frequency", 1.0)
    module.set_prior(states)
    # Three of four, one of four, and none of two, which counts as a half.
    assert module.prior.tolist() == pytest.approx([0.75, 0.25, 0.25])
    assert module.log_prior.tolist() == pytest.approx([math.log(0.75), math.log(0.25), math.log(0.25)])
    module.adjustment = "relative"
    assert module.log_prior.tolist() == pytest.approx([0.0, math.log(1 / 3), math.log(1 / 3)])
    module.adjustment = "none"
    assert module.log_prior.tolist() == [0.0, 0.0, 0.0]
    module.adjustment = "adaptive"
    logits = torch.zeros(2, 3, 4)
    logits[0, 0, 1] = math.log(3)  # softmax of (0, log 3, 0, 0): 1/2
    module.train().loss(logits, torch.tensor([[1, 0, 2], [0, 0, -1]]))
    assert module.prior.tolist() == pytest.approx([0.99 * 0.75 + 0.01 * 0.5, 0.25, 0.25])
    module.eval().loss(logits, torch.tensor([[1, 0, 2], [0, 0, -1]]))
    assert module.prior[0] == pytest.approx(0.99 * 0.75 + 0.01 * 0.5), "validation changes nothing"


def test_prompts_show_predictions_after_training_and_labels_while_taught() -> None:
    module = DiseaseStates(4, 8, 3, "none", 1.0)
    logits = torch.eye(4)[[2, 0, 3]][None] * 5
    labels = torch.tensor([[1, 1, -1]])
    assert module.train().shown(logits, labels).tolist() == [[1, 1, 3]]
    assert module.eval().shown(logits, labels).tolist() == [[2, 0, 3]]
    tokens = module.prompt(torch.tensor([[2, 0, 3]]))
    assert torch.equal(tokens[0], torch.stack([module.prompts[0, 2], module.prompts[1, 0], module.prompts[2, 3]]))


def test_a_report_is_written_without_a_look_at_the_labels_even_of_a_model_left_in_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context = toy_context("diffrgennet")
    model = with_memory(toy_model(context), context, [example(context, index) for index in range(8)])
    model.diseases.train()
    model.diseases.taught = 1.0
    batch = batch_of(context, example(context, 50))
    read: list[Tensor] = []
    prompt = model.diseases.prompt
    monkeypatch.setattr(model.diseases, "prompt", lambda states: read.append(states) or prompt(states))
    model.generate(batch, GREEDY)
    with torch.no_grad():
        result = Forward(model, batch).study.logits.argmax(-1)
    assert torch.equal(read[0], result)
    assert batch.class_labels is not None
    assert not torch.equal(result, batch.class_labels), "the labels would have been other states"


def test_positions_tell_all_cells_apart() -> None:
    table = sine_positions((7, 7), 32)
    assert table.shape == (49, 32)
    assert float(torch.pdist(table).min()) > 0.05
    assert sine_positions((2, 3, 4), 32).shape == (24, 32)


def alphas(model: DiffRGenNetModel, value: Sequence[float]) -> None:
    """Make every router of two masks answer the same."""
    for routed in (model.aggregation.similar, model.aggregation.difference):
        assert isinstance(routed, FlexiRoute)
        for layer in routed.layers:
            last = layer.router.mlp[2]  # type: ignore[union-attr, index]
            with torch.no_grad():
                last.weight.zero_()  # type: ignore[union-attr, operator]
                last.bias.copy_(torch.tensor(value).log())  # type: ignore[union-attr, operator, arg-type]


@pytest.mark.parametrize("overrides", [(), CAUSAL])
def test_the_route_reaches_the_loss(overrides: Sequence[str]) -> None:
    context = toy_context("diffrgennet")
    model = toy_model(context, "model.aggregation.masks_per_layer=[2,2]", *overrides)
    with_memory(model, context, [example(context, index) for index in range(8)])
    batch = batch_of(context, example(context, 20), example(context, 21))
    losses = []
    for value in ((1.0, 1e-9), (0.5, 0.5), (1e-9, 1.0)):
        alphas(model, value)
        losses.append(float(model.loss(batch, ("report",))["report"]))
        shown = model.generate(batch, DecodingConfig(max_new_tokens=1)).intermediates[0]["routing"]
        assert [tuple(route) for route in shown["similar"]] == [pytest.approx(value, abs=1e-6)] * 2
    # Far above the rounding of float32.
    assert min(abs(losses[0] - losses[1]), abs(losses[1] - losses[2])) > 1e-6


def test_retrieval_is_exact_and_never_of_the_same_study_or_patient() -> None:
    context = toy_context("diffrgennet")
    examples = [example(context, index, patient=f"p{index // 2}") for index in range(10)]
    model = with_memory(toy_model(context), context, examples)
    retrieval = model.retrieval
    assert isinstance(retrieval, ImageRetrieval)
    recalled = retrieval.recall(batch_of(context, *examples), 8)
    raw = torch.cat([retrieval.embed(batch_of(context, one)) for one in examples]).double()
    unit = (raw - raw.mean(0)) / raw.std(0, correction=0).clamp(min=1e-6)
    for row, query in enumerate(examples):
        others = [i for i, other in enumerate(examples) if other.patient_id != query.patient_id]
        scores = {i: float(torch.nn.functional.cosine_similarity(unit[row], unit[i], dim=0)) for i in others}
        best = sorted(others, key=lambda i: -scores[i])[:3]
        assert [case.study_id for case in recalled.cases[row]] == [examples[i].study_id for i in best]
        assert [case.similarity for case in recalled.cases[row]] == pytest.approx([scores[i] for i in best], abs=1e-5)
        features = model.text_encoder.encode([examples[i].report for i in best])
        assert torch.allclose(recalled.text[row], features, atol=1e-6)


def test_the_embedding_of_the_retrieval_stays_while_the_encoder_trains() -> None:
    context = toy_context("diffrgennet")
    examples = [example(context, index) for index in range(6)]
    model = with_memory(toy_model(context), context, examples)
    stage = resolve("diffrgennet", "tiny", ["stages.report.finetune.vision_encoder=full"]).named_stages()["report"]
    apply_finetune(model, stage.finetune)
    set_train_mode(model, stage.finetune)
    batch = batch_of(context, *examples)
    assert isinstance(model.retrieval, ImageRetrieval)
    before = model.retrieval.recall(batch, 8)
    encoder = next(model.vision_encoder.parameters()).detach().clone()
    optimizer = build_optimizer(model, stage.optimizer)
    for _ in range(3):
        total_loss(model.loss(batch, tuple(stage.losses)), stage.losses).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    assert not torch.equal(encoder, next(model.vision_encoder.parameters()))
    after = model.retrieval.recall(batch, 8)
    assert before.cases == after.cases
    assert torch.equal(before.text, after.text)


def test_before_reports_are_learned_the_retrieval_takes_the_encoder_that_was_trained() -> None:
    context = toy_context("diffrgennet")
    model = toy_model(context)
    assert isinstance(model.retrieval, ImageRetrieval)
    with torch.no_grad():
        for value in (*model.vision_encoder.parameters(), *model.vision_encoder.buffers()):
            value.add_(1)

    def same() -> bool:
        own, trained = model.retrieval.encoder.state_dict(), model.vision_encoder.state_dict()  # type: ignore[union-attr]
        return all(torch.equal(own[name], value) for name, value in trained.items())

    view: Any = View(context, [example(context, index) for index in range(3)])
    model.build_memories("vision", view)
    assert not same()
    model.build_memories("report", view)
    assert same()


def test_training_and_inference_retrieve_by_the_same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    context = toy_context("diffrgennet")
    examples = [example(context, index) for index in range(8)]
    model = with_memory(toy_model(context), context, examples)
    assert isinstance(model.retrieval, ImageRetrieval)
    forward = []
    recall = model.retrieval.recall

    def spy(batch: Batch, text_dim: int) -> Any:
        forward.append(recall(batch, text_dim))
        return forward[-1]

    monkeypatch.setattr(model.retrieval, "recall", spy)
    batch = batch_of(context, *examples[:5])
    model.train().loss(batch, ("report", "disease", "matching"))
    model.eval().loss(batch, ("report", "disease", "matching"))
    model.generate(replace(batch, input_ids=None, labels=None, class_labels=None, reports=None), GREEDY)
    assert len(forward) == 3
    assert forward[0].cases == forward[1].cases == forward[2].cases
    assert all(len(cases) == 3 for cases in forward[0].cases)


@pytest.mark.parametrize("overrides", [(), CAUSAL])
def test_a_report_is_the_same_in_a_batch_of_1_5_and_21(overrides: Sequence[str]) -> None:
    """The file that the authors published works for batches of 1 and 21 only."""
    context = toy_context("diffrgennet")
    model = with_memory(toy_model(context, *overrides), context, [example(context, index) for index in range(9)])
    queries = [example(context, 30 + index, views=1 + index % 2) for index in range(21)]
    queries[3] = replace(queries[3], prior=example(context, 80, views=2))
    # What studies are told has its own length, or is nothing.
    lengths = (2, 30, 0, 7, *[0] * 17)
    queries = [replace(one, context_ids=tuple(range(5, 5 + n))) for one, n in zip(queries, lengths, strict=True)]
    together = model.generate(batch_of(context, *queries), GREEDY)
    five = model.generate(batch_of(context, *queries[:5]), GREEDY)
    for row, query in enumerate(queries[:5]):
        alone = model.generate(batch_of(context, query), GREEDY)
        assert alone.token_ids[0] == five.token_ids[row] == together.token_ids[row]
        left, right = alone.intermediates[0], together.intermediates[row]
        assert left["class_probabilities"] == pytest.approx(right["class_probabilities"], abs=1e-5)
        # One study has a prior: for the others that case is absent.
        for name, seen in left["attention_maps"].items():
            np.testing.assert_allclose(seen, right["attention_maps"][name], atol=1e-5)


def test_evidence_holds_cases_with_distances_routes_states_and_maps() -> None:
    context = toy_context("diffrgennet")
    model = with_memory(toy_model(context), context, [example(context, index) for index in range(8)])
    plain, later = example(context, 40, views=2), replace(example(context, 41), prior=example(context, 42))
    shown, with_prior = model.generate(batch_of(context, plain, later), GREEDY).intermediates
    assert [set(case["scores"]) for case in shown["recalled"]] == [{"similarity", "l2", "cosine", "dot"}] * 3
    assert [len(route) for route in shown["routing"]["difference"]] == [2, 3]
    for route in shown["routing"]["similar"] + shown["routing"]["difference"]:
        assert sum(route) == pytest.approx(1)
    assert set(shown["disease_states"].values()) <= {"blank", "positive", "negative", "uncertain"}
    assert shown["attention_maps"]["differences"].shape[0] == 2
    assert float(shown["attention_maps"]["similar reports"].sum()) == pytest.approx(1, abs=1e-5)
    assert with_prior["attention_maps"]["differences"].shape[0] == 1
    last = with_prior["recalled"][-1]
    assert (last["study_id"], last["text"], last["is_prior"]) == ("s42", TOY_REPORTS["right"], True)
    assert set(last["scores"]) == {"l2", "cosine", "dot"}
    assert not any("is_prior" in case for case in shown["recalled"])


def test_maps_have_the_rows_and_columns_of_the_image() -> None:
    context = toy_context("diffrgennet")
    model = with_memory(toy_model(context), context, [example(context, index) for index in range(8)])
    pixels = np.random.default_rng(40).integers(0, 255, (1, 32, 64)).astype(np.uint8)
    wide = replace(example(context, 40), source=pixels)
    (shown,) = model.generate(batch_of(context, wide), GREEDY).intermediates
    rows, columns = Forward(model, batch_of(context, wide)).image.views.grid
    assert rows < columns
    assert {result.shape for result in shown["attention_maps"].values()} == {(1, rows, columns)}


def test_a_prior_enters_both_passes_by_its_report_and_by_its_image() -> None:
    context = toy_context("diffrgennet")
    model = with_memory(toy_model(context), context, [example(context, index) for index in range(8)])
    study, prior = example(context, 50), example(context, 51)
    other_report = replace(prior, report=TOY_REPORTS["right"])
    other_image = replace(prior, source=example(context, 52).source)
    variants = [study, *(replace(study, prior=one) for one in (prior, other_report, other_image))]
    losses = [float(model.loss(batch_of(context, one), ("report",))["report"]) for one in variants]
    assert len({round(value, 6) for value in losses}) == 4
    with torch.no_grad():
        result = Forward(model, batch_of(context, variants[1])).study
        *others, shown = result.evidence(0, CHEXPERT14)["recalled"]
    assert len(others) == len(result.recalled.cases[0]) >= 1
    assert [shown["scores"][name] for name in METRICS] == pytest.approx(result.apart[0, -1].tolist())
    with torch.no_grad():
        model.cases.mark.weight[1] += 1.0
    marked = float(model.loss(batch_of(context, variants[1]), ("report",))["report"])
    assert abs(marked - losses[1]) > 1e-6, "a prior is told from other cases"
    assert float(model.loss(batch_of(context, study), ("report",))["report"]) == pytest.approx(losses[0], abs=1e-7)


@pytest.mark.parametrize(
    "overrides", [("model.difference.space=shared",), ("model.difference.space=matching",), ("model.matching=none",)]
)
@torch.no_grad()
def test_a_prior_is_the_mean_of_its_report_and_its_image_and_differences_are_to_unmarked_cases(
    overrides: Sequence[str],
) -> None:
    context = toy_context("diffrgennet")
    model = with_memory(toy_model(context, *overrides), context, [example(context, index) for index in range(8)]).eval()
    batch = batch_of(context, example(context, 49), replace(example(context, 50), prior=example(context, 51)))
    assert batch.priors is not None
    assert batch.priors.reports is not None
    forward = Forward(model, batch)
    report = model.cases(model.text_encoder.encode(batch.priors.reports)[:, None])[:, 0]
    image = Forward(model, batch.priors).image.mean
    tokens = forward.study.cases.tokens
    torch.testing.assert_close(tokens[1, -1:], (report + image) / 2)
    assert not forward.study.cases.present[0, -1]
    mean, present = forward.image.mean, forward.study.cases.present
    if overrides == ("model.difference.space=matching",):
        # In the space that matching aligns, the cases are compared by their reports alone, and the prior as above.
        assert isinstance(model.matching, NegPosMatching)
        tokens = model.matching.of_report(forward.recalled.text)
        report = model.matching.of_report(model.text_encoder.encode(batch.priors.reports))
        prior = (report + model.matching.of_image(image)) / 2
        tokens = torch.cat([tokens, torch.stack([torch.zeros_like(prior), prior])], dim=1)
        mean = model.matching.of_image(mean)
    torch.testing.assert_close(forward.study.changes.tokens, model.difference(mean, tokens, present))
    torch.testing.assert_close(forward.study.apart, distances(mean, tokens))
    assert float(forward.study.changes.tokens[present].std()) > 0


@torch.no_grad()
def test_tokens_about_cases_say_at_which_rank_a_case_was_retrieved_where_they_are_asked_to() -> None:
    context = toy_context("diffrgennet")
    for ranks in (False, True):
        cases = toy_model(context, f"model.cases.ranks={ranks}").cases
        marked = cases.marked(torch.zeros(1, 3, 32), torch.tensor([[False, False, False]]))
        assert (float(torch.pdist(marked[0]).min()) > 0.05) == ranks


def test_a_prior_is_of_the_same_patient_and_split_and_optional() -> None:
    def study(number: int, patient: str, prior: str | None, report: str | None = "Clear lungs.") -> Study:
        images = (ImageRef(path=f"images/{number}.png"),)
        return Study(study_id=f"s{number}", patient_id=patient, split="test", images=images, report=report, prior=prior)

    studies = [
        study(0, "a", "s1"),  # stands before its prior
        study(1, "a", None),
        study(2, "b", "s1"),  # of another patient
        study(3, "b", "elsewhere"),  # not in this split
        study(4, "c", "s5"),
        study(5, "c", None, report=None),  # without a report
    ]
    cache = PixelCache(np.zeros((6, 8, 8), np.uint8), {f"images/{number}.png": number for number in range(6)}, {})

    def priors(requested: bool) -> list[str | None]:
        prepared = prepare_split(
            studies,
            cache,
            encode=lambda texts: [[1]] * len(texts),
            end_id=2,
            max_views=1,
            max_tokens=4,
            label_set="chexpert14",
            classes=(),
            need_text=False,
            priors=requested,
        )
        return [one.prior.study_id if one.prior is not None else None for one in prepared.examples]

    assert priors(True) == ["s1", None, None, None, None, None]
    assert priors(False) == [None] * 6


def test_a_run_trains_restores_and_holds_no_report_of_another_split(toy_dataset: Dataset, tmp_path: Path) -> None:
    overrides = [*TOY_OVERRIDES, *TOY_SIZES["diffrgennet"], "stages.report.epochs=1", "data.priors=true"]
    folder = train("diffrgennet", toy_dataset.path, tmp_path / "run", overrides=overrides)
    rows = [row for _, row in read_jsonl(folder / "memories" / BANK / "rows.jsonl")]
    assert {row["study_id"] for row in rows} == {study.study_id for study in toy_dataset.studies("train")}
    model = restore(folder).model
    assert isinstance(model, DiffRGenNetModel)
    # "Lung Opacity" is positive in every study of the toy data, nothing else is; so its prior is the largest.
    assert int(model.diseases.prior.argmax()) == CHEXPERT14.index("Lung Opacity")
    image = toy_dataset.image_path("images/0_0.png")
    result = Predictor.of(restore(folder)).report([image], study_id="s000").evidence["recalled"]
    assert len(result) == 3
    assert "s000" not in [case["study_id"] for case in result]


@pytest.mark.long
def test_distances_grow_with_what_the_labels_of_study_and_case_differ_in(tmp_path: Path) -> None:
    options = PhantomOptions(prevalence="balanced", image_size=144)
    data = write_phantom_dataset(tmp_path / "data", modality="xray", num_studies=150, seed=0, options=options)
    overrides = [
        "stages.encoder.epochs=0",
        "stages.report.epochs=6",
        "stages.report.optimizer.warmup_steps=5",
        "model.language_model.hidden_size=32",
        "model.language_model.num_layers=1",
        "model.dim=64",
    ]
    run = restore(train("diffrgennet", data.path, tmp_path / "run", overrides=overrides))
    found, pairs = bench_program("diffrgennet_distances").correlations(run, data)
    assert pairs > 100
    # Cosine and product measure nearness.
    assert min(found["l2"], -found["cosine"], -found["dot"]) > 0.05


def test_the_paper_preset_has_the_published_numbers() -> None:
    paper = PRESETS["paper"]()
    stage = paper.stages.report
    assert (stage.optimizer.learning_rate, stage.optimizer.weight_decay) == (5e-5, 0.05)
    assert (stage.epochs, stage.batch_size, stage.losses["matching"]) == (10, 16, 0.1)
    assert paper.model.difference.kind == "distances"
    assert paper.model.difference.norm == "none", "Eq. 1 prints no normalisation"
    assert paper.model.aggregation.kind == "flexiroute"
    assert paper.model.aggregation.num_layers == 2


def test_every_table_row_is_a_row_that_exists() -> None:
    assert {"table2", "table3", "table4", "figure4"} <= set(TABLES)
    for table in TABLES.values():
        for row in table.rows:
            assert row.ablation is None or row.ablation in ABLATIONS, row.label


def test_masks_that_do_not_fit_the_layers_are_refused() -> None:
    with pytest.raises(InputError, match="masks_per_layer"):
        resolve("diffrgennet", "tiny", ["model.aggregation.masks_per_layer=[2,3,4]"])
    with pytest.raises(InputError, match="each once"):
        resolve("diffrgennet", "tiny", ["model.difference.metrics=[]"])
