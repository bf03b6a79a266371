"""The dual-stage disease-aware method: its equations against plain loops, and what it promises."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from radweave.core.errors import InputError
from radweave.core.json_files import read_jsonl
from radweave.core.ontology import CHEXPERT14
from radweave.data.dataset import Dataset
from radweave.data.tokenizer import encode
from radweave.engine.restore import restore
from radweave.engine.train import train
from radweave.inference.predictor import Predictor
from radweave.methods import resolve
from radweave.methods.dast import ABLATIONS, PRESETS, TABLES
from radweave.methods.dast.fusion import ConcatFusion, Dvaf, DvafConfig, MeanFusion, NoFusion
from radweave.methods.dast.model import DastModel, Forward
from radweave.methods.dast.retrieval import BANK, Dmsr, composite
from radweave.methods.experiment import BuildContext
from radweave.methods.stage import apply_finetune, build_optimizer, set_train_mode
from radweave.nn.connector import encode_views
from radweave.nn.decoding import DecodingConfig
from radweave.nn.memory.bank import Bank, patient_code
from tests.methods.method_toys import batch_of, built, example, toy_context, with_memory
from tests.toys import ROOT, TOY_OVERRIDES, TOY_REPORTS, TOY_SIZES

GREEDY = DecodingConfig(max_new_tokens=12)


def toy_model(context: BuildContext, *overrides: str) -> DastModel:
    return built("dast", DastModel, context, overrides)


def cosine(left: Tensor, right: Tensor) -> float:
    dot = sum(float(a) * float(b) for a, b in zip(left, right, strict=True))
    return dot / math.sqrt(sum(float(a) ** 2 for a in left) * sum(float(b) ** 2 for b in right))


def norm(x: Tensor) -> Tensor:
    return (x - x.mean()) / torch.sqrt(((x - x.mean()) ** 2).mean() + 1e-5)


def attend(layer: Any, query: Tensor, source: Tensor, present: Tensor) -> Tensor:
    """One query over the rows that are there, head by head."""
    width = len(query) // layer.num_heads
    read = []
    for head in range(layer.num_heads):
        part = slice(head * width, (head + 1) * width)
        weights = [
            math.exp(float(layer.query(query)[part] @ layer.key(row)[part]) / math.sqrt(width)) if is_present else 0.0
            for row, is_present in zip(source, present, strict=True)
        ]
        read.append(sum(w / sum(weights) * layer.value(row)[part] for w, row in zip(weights, source, strict=True)))
    out: Tensor = layer.out(torch.cat(read))
    return out


def test_dvaf_equals_equations_5_and_6() -> None:
    torch.manual_seed(0)
    dvaf = Dvaf(dim=6, num_heads=2, num_classes=3).double()
    diseases, patches = torch.randn(2, 3, 6).double(), torch.randn(2, 4, 6).double()
    mask = torch.tensor([[True] * 4, [True, False, True, False]])
    fused = dvaf(diseases, patches, mask)
    assert fused.gate is not None
    assert fused.shares is not None
    for study in range(2):
        is_present, everyone = mask[study], torch.ones(3, dtype=torch.bool)
        located = [norm(t + attend(dvaf.cross_attention, t, patches[study], is_present)) for t in diseases[study]]
        stacked = torch.stack(located)
        related = [norm(t + attend(dvaf.self_attention, t, stacked, everyone)) for t in located]
        weights = [math.exp(float(dvaf.pool.weight[0] @ t)) for t in related]
        disease = sum(w / sum(weights) * t for w, t in zip(weights, related, strict=True))
        visual = patches[study][is_present].sum(0) / int(is_present.sum())
        assert isinstance(disease, Tensor)
        for channel in range(6):
            score = float(dvaf.gate.weight[channel] @ torch.cat([visual, disease]) + dvaf.gate.bias[channel])
            gate = 1 / (1 + math.exp(-score))
            wanted = gate * float(disease[channel]) + (1 - gate) * float(visual[channel])
            # Float64 throughout: only the order of additions differs.
            assert abs(float(fused.tokens[study, 0, channel]) - wanted) < 1e-9
            assert abs(float(fused.gate[study, channel]) - gate) < 1e-9
        assert torch.allclose(fused.shares[study], torch.tensor(weights).double() / sum(weights), atol=1e-7)


def test_class_tokens_stand_beside_the_fused_token_and_are_normalised_over_studies() -> None:
    torch.manual_seed(0)
    dvaf = Dvaf(dim=6, num_heads=2, num_classes=3, class_tokens=True, norm="studies").double()
    diseases, patches = torch.randn(5, 3, 6).double(), torch.randn(5, 4, 6).double()
    mask = torch.ones(5, 4, dtype=torch.bool)
    marks, dvaf.norm = dvaf.norm, torch.nn.Identity()
    raw = dvaf(diseases, patches, mask)
    for study in range(5):
        located = [norm(t + attend(dvaf.cross_attention, t, patches[study], mask[study])) for t in diseases[study]]
        everyone, stacked = torch.ones(3, dtype=torch.bool), torch.stack(located)
        related = torch.stack([norm(t + attend(dvaf.self_attention, t, stacked, everyone)) for t in located])
        assert torch.allclose(raw.tokens[study, 1:], related, atol=1e-7)
    printed = Dvaf(dim=6, num_heads=2, num_classes=3).double()
    printed.load_state_dict(dvaf.state_dict())
    fused = printed(diseases, patches, mask).tokens
    assert fused.shape == (5, 1, 6)
    assert torch.equal(fused, raw.tokens[:, :1]), "the printed token is the first"
    assert (printed.appended(3), dvaf.appended(3)) == (1, 4)
    dvaf.norm = marks
    normalised = dvaf(diseases, patches, mask).tokens
    centred = raw.tokens - raw.tokens.mean(0)
    wanted = centred / (centred.square().mean(0) + 1e-5).sqrt() + dvaf.norm.norm.bias.view(4, 6)
    assert torch.allclose(normalised, wanted, atol=1e-9)


def test_published_presets_have_the_printed_fusion_and_retrieval() -> None:
    for name in ("paper", "paper-iu"):
        record = PRESETS[name]().model
        assert record.fusion == DvafConfig()
        assert (DvafConfig().class_tokens, DvafConfig().norm) == (False, "none")
        assert record.retrieval.kind == "dmsr"
        assert not record.retrieval.standardised
        assert PRESETS[name]().stages.report.single_input == 0
    for name in ("tiny", "tiny-ct", "small"):
        ours = PRESETS[name]()
        assert (ours.model.fusion.class_tokens, ours.model.fusion.norm) == (True, "studies"), name
        assert ours.model.retrieval.standardised
        assert ours.stages.disease.finetune["vision_encoder"] == "full"
        assert ours.stages.report.single_input > 0


def test_a_step_on_the_contrast_moves_what_the_decoder_reads_unless_the_encoder_is_frozen() -> None:
    context = toy_context("dast")
    batch = batch_of(context, *(example(context, index) for index in range(4)))
    moved = {}
    for how, overrides in (("full", ()), ("frozen", ABLATIONS["encoder frozen in stage 1"])):
        experiment = resolve("dast", "tiny", [*TOY_OVERRIDES, *TOY_SIZES["dast"], *overrides])
        assert experiment.stages.disease.finetune["vision_encoder"] == how  # type: ignore[attr-defined]
        model = toy_model(context, "model.retrieval=none", *overrides)
        model.text_encoder.fit(list(TOY_REPORTS.values()))
        apply_finetune(model, experiment.named_stages()["disease"].finetune)
        before, _ = Forward(model, batch).prefix
        model.loss(batch, ("contrastive",))["contrastive"].backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=0.01)
            after, _ = Forward(model, batch).prefix
        moved[how] = float((after - before).abs().max().detach())
    assert moved["full"] > 1e-3
    assert moved["frozen"] == 0


def test_the_other_fusions_of_table_5() -> None:
    torch.manual_seed(0)
    diseases, patches = torch.randn(1, 3, 4), torch.randn(1, 5, 4)
    mask = torch.tensor([[True, True, False, True, False]])
    assert NoFusion()(diseases, patches, mask).tokens.shape == (1, 0, 4)
    assert torch.equal(ConcatFusion()(diseases, patches, mask).tokens, diseases)
    visual = (patches[0, 0] + patches[0, 1] + patches[0, 3]) / 3
    disease = (diseases[0, 0] + diseases[0, 1] + diseases[0, 2]) / 3
    assert torch.allclose(MeanFusion()(diseases, patches, mask).tokens[0, 0], (visual + disease) / 2, atol=1e-6)


def test_patches_of_all_views_then_the_fused_token_are_projected_and_normalised() -> None:
    """Eq. 7 and the sentence after it."""
    context = toy_context("dast")
    model = toy_model(context, "model.connector.input_norm=none", "model.retrieval=none")
    batch = batch_of(context, example(context, 0, views=2), example(context, 1))
    views = encode_views(model.vision_encoder, batch)
    patches, mask = views.flat()
    fused = model.fusion(model.disease_tokens(patches, mask).tokens, patches, mask).tokens
    prefix, prefix_mask = Forward(model, batch).prefix
    connector = model.connector
    for study, kinds in enumerate(([1, 2], [1])):
        rows = [(views.tokens[study, view, s], kind) for view, kind in enumerate(kinds) for s in range(4)]
        rows += [(token, 0) for token in fused[study]]
        wanted = [norm(connector.projection(x) + connector.view_embedding.weight[kind]) for x, kind in rows]
        begin = model.language_model.embed(torch.tensor(int(context.tokenizer.bos_token_id)))
        got = prefix[study][prefix_mask[study]]
        assert len(got) == 1 + len(rows)
        assert torch.allclose(got, torch.stack([begin, *wanted]), atol=1e-5)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_the_composite_vectors_give_equation_8_as_one_inner_product(alpha: float) -> None:
    torch.manual_seed(1)
    visual, logits = torch.randn(6, 5), 4 * torch.randn(6, 3)
    vectors = composite(visual, logits, alpha)
    for left in range(6):
        for right in range(6):
            wanted = alpha * cosine(visual[left], visual[right]) + (1 - alpha) * cosine(logits[left], logits[right])
            assert abs(float(vectors[left] @ vectors[right]) - wanted) < 1e-5


def test_dmsr_recalls_the_best_study_that_is_not_the_query_or_of_its_patient() -> None:
    torch.manual_seed(2)
    count = 40
    visual, logits = torch.randn(count, 5), torch.randn(count, 3)
    patients = [f"p{index // 3}" for index in range(count)]
    rows = tuple(
        {"study_id": f"s{index}", "patient": patient_code(patients[index]), "text": f"text {index}"}
        for index in range(count)
    )
    retrieval = Dmsr(alpha=0.4, max_tokens=9)
    assert retrieval.recall(visual, logits, ["s0"] * count, ["p0"] * count) == [None] * count
    retrieval.remember({BANK: Bank({"visual": visual, "logits": logits}, rows)})
    study_ids = [f"s{index}" for index in range(count)]
    for number, result in enumerate(retrieval.recall(visual, logits, study_ids, patients)):
        scores = {
            other: 0.4 * cosine(visual[number], visual[other]) + 0.6 * cosine(logits[number], logits[other])
            for other in range(count)
            if patients[other] != patients[number]
        }
        best = max(scores, key=lambda other: scores[other])
        assert result is not None
        assert (result.study_id, result.text) == (f"s{best}", f"text {best}")
        assert result.combined == pytest.approx(0.4 * result.visual + 0.6 * result.disease, abs=1e-5)
        alone = retrieval.recall(visual[number : number + 1], logits[number : number + 1], [f"s{number}"], ["unknown"])
        assert alone[0] is not None
        assert alone[0].study_id != f"s{number}", "a study is barred also where its patient is not known"


def test_standardised_logits_are_compared_in_units_of_their_spread() -> None:
    torch.manual_seed(3)
    # Rare diseases: every logit is far below zero, and what differs between studies is little beside that.
    visual, logits = torch.randn(30, 5), torch.randn(30, 3) * torch.tensor([0.5, 1.0, 0.0]) - 6
    rows = tuple({"study_id": f"s{n}", "patient": patient_code(f"p{n}"), "text": f"text {n}"} for n in range(30))
    retrieval = Dmsr(alpha=0.3, max_tokens=9, standardised=True)
    retrieval.remember({BANK: Bank({"visual": visual, "logits": logits}, rows)})
    means = [sum(float(value) for value in logits[:, k]) / 30 for k in range(2)]
    spreads = [math.sqrt(sum((float(value) - means[k]) ** 2 for value in logits[:, k]) / 30) for k in range(2)]
    scaled = torch.tensor([[(float(row[k]) - means[k]) / spreads[k] for k in range(2)] + [0.0] for row in logits])
    names = [f"s{number}" for number in range(30)]
    for number, result in enumerate(retrieval.recall(visual, logits, names, ["someone"] * 30)):
        assert result is not None
        scores = [
            0.3 * cosine(visual[number], visual[other]) + 0.7 * cosine(scaled[number], scaled[other])
            for other in range(30)
        ]
        scores[number] = -2
        best = max(range(30), key=scores.__getitem__)
        assert result.study_id == f"s{best}"
        assert result.disease == pytest.approx(cosine(scaled[number], scaled[best]), abs=1e-4)
        assert result.combined == pytest.approx(scores[best], abs=1e-4)
    raw = Dmsr(alpha=0.3, max_tokens=9)
    raw.remember({BANK: Bank({"visual": visual, "logits": logits}, rows)})
    others = [item for item in raw.recall(visual, logits, names, ["someone"] * 30) if item is not None]
    assert min(item.disease for item in others) > 0.9, "raw ones say of every study that it is alike"


def test_a_study_without_recall_has_no_exemplar_in_its_prompt() -> None:
    """Its prompt is the one without retrieval; that of its batch mate holds the whole sentence."""
    context = toy_context("dast")
    sentence = "model.exemplar_prompt='The report of a similar one reads: {exemplar} .'"
    model = toy_model(context, sentence)
    # All the bank is of one patient: that patient's own study may recall none of it.
    memory = [example(context, index, patient="p0") for index in range(4, 8)]
    model = with_memory(model, context, memory)
    batch = batch_of(context, example(context, 0, patient="p0"), example(context, 1, patient="another"))
    prefix, mask = Forward(model, batch).prefix
    image = 4 + 15
    assert int(mask[0].sum()) == 1 + image, "no dangling words"
    text = model.generate(batch, GREEDY).intermediates[1]["recalled"][0]["text"]
    words = [
        *encode(context.tokenizer, "The report of a similar one reads: "),
        *encode(context.tokenizer, text),
        *encode(context.tokenizer, " ."),
    ]
    wanted = model.language_model.embed(torch.tensor(words))
    assert torch.equal(prefix[1][mask[1]][1 : 1 + len(words)], wanted)
    assert int(mask[1].sum()) == 1 + len(words) + image
    # The same while the language model learns to read its context: no report of another patient, no sentence.
    ids, is_present = model.prompts.exemplar_sentence(
        torch.tensor([[5, 6], [0, 0]]), torch.tensor([[True] * 2, [False] * 2])
    )
    assert is_present[0].all()
    assert not is_present[1].any()
    assert ids.shape == is_present.shape


def test_stage_one_is_binary_cross_entropy_plus_contrast() -> None:
    context = toy_context("dast")
    model = toy_model(context)
    batch = batch_of(context, *(example(context, index, views=1 + index % 2) for index in range(4)))
    assert batch.reports is not None
    model.text_encoder.fit(list(TOY_REPORTS.values()))
    terms = model.loss(batch, ("disease", "contrastive"))
    views = encode_views(model.vision_encoder, batch)
    logits = model.disease_tokens(*views.flat()).logits
    entropy = 0.0
    for study in range(4):
        for number in range(14):
            positive = (study + number) % 4 in (1, 3)  # uncertain counts as positive
            probability = 1 / (1 + math.exp(-float(logits[study, number])))
            entropy -= math.log(probability if positive else 1 - probability) / (4 * 14)
    assert float(terms["disease"]) == pytest.approx(entropy, rel=1e-5)
    images = model.alignment.projection(views.mean())
    texts = model.text_encoder.encode(batch.reports)
    sims = [[cosine(images[i], texts[j]) / 0.07 for j in range(4)] for i in range(4)]
    contrast = 0.0
    for i in range(4):
        contrast -= (sims[i][i] - math.log(sum(math.exp(s) for s in sims[i]))) / 8
        contrast -= (sims[i][i] - math.log(sum(math.exp(sims[j][i]) for j in range(4)))) / 8
    assert float(terms["contrastive"]) == pytest.approx(contrast, rel=1e-4)


@pytest.mark.parametrize(
    ("row", "appended", "has_exemplar"),
    [
        ("full", 15, True),
        ("DVAF as printed", 1, True),
        ("baseline", 0, False),
        ("DASTs + DVAF", 15, False),
        ("concatenation", 14, False),
        ("mean pooling", 1, False),
        ("DMSR alone", 0, True),
    ],
)
def test_each_ablation_row_fills_the_prompt_as_named(row: str, appended: int, has_exemplar: bool) -> None:
    context = toy_context("dast")
    model = toy_model(context, *ABLATIONS[row])
    memory = [example(context, index) for index in range(4, 8)]
    model = with_memory(model, context, memory)
    query = batch_of(context, example(context, 0, views=2))
    prefix, mask = Forward(model, query).prefix
    image = 2 * 4 + appended
    exemplar = 0
    if has_exemplar:
        (recalled,) = model.generate(query, GREEDY).intermediates[0]["recalled"]
        exemplar = len(encode(context.tokenizer, recalled["text"])) + len(encode(context.tokenizer, "\n"))
    assert int(mask.sum()) == 1 + image + exemplar
    assert prefix.shape[:2] == mask.shape


def test_the_exemplar_in_the_prompt_is_the_recalled_report_in_training_and_in_use() -> None:
    context = toy_context("dast")
    examples = [example(context, index) for index in range(6)]
    model = with_memory(toy_model(context), context, examples)
    batch = batch_of(context, *examples)
    evidence = model.generate(batch, GREEDY).intermediates
    in_use, mask = Forward(model, batch).prefix
    set_train_mode(model, PRESETS["tiny"]().stages.report.finetune)
    in_training, _ = Forward(model, batch).prefix
    for study in range(6):
        ids = encode(context.tokenizer, evidence[study]["recalled"][0]["text"])
        wanted = model.language_model.embed(torch.tensor(ids))
        assert torch.equal(in_use[study][mask[study]][1 : 1 + len(ids)], wanted)
        assert torch.equal(in_training[study][mask[study]][1 : 1 + len(ids)], wanted)
    cut, is_present = model.prompts.exemplar_ids([TOY_REPORTS["left"], None], 3)
    end = encode(context.tokenizer, "\n")
    assert cut[0].tolist() == [*encode(context.tokenizer, TOY_REPORTS["left"])[:3], *end]
    assert is_present.tolist() == [[True] * (3 + len(end)), [False] * (3 + len(end))]


def test_the_evidence_of_a_study() -> None:
    context = toy_context("dast")
    examples = [example(context, index, patient=f"p{index // 2}") for index in range(6)]
    model = with_memory(toy_model(context), context, examples)
    # A batch mate with two views pads the others; evidence is about a study's own views.
    batch = batch_of(context, *examples, example(context, 9, views=2))
    for number, shown in enumerate(model.generate(batch, GREEDY).intermediates):
        assert tuple(shown["class_probabilities"]) == CHEXPERT14
        assert all(0 < p < 1 for p in shown["class_probabilities"].values())
        for attention in shown["attention_maps"].values():
            assert attention.shape == (2 if number == 6 else 1, 2, 2)
            assert attention.min() >= 0
            assert attention.sum() == pytest.approx(1, abs=1e-5)
        (recalled,) = shown["recalled"]
        scores = recalled["scores"]
        assert recalled["kind"] == "report"
        assert recalled["text"] == TOY_REPORTS["left" if int(recalled["study_id"][1:]) % 2 else "right"]
        assert scores["combined"] == pytest.approx(0.5 * scores["visual"] + 0.5 * scores["disease"], abs=1e-5)
        if number < 6:
            assert int(recalled["study_id"][1:]) // 2 != number // 2, "never the own patient"
        assert sum(shown["fusion"]["class_shares"].values()) == pytest.approx(1, abs=1e-5)


def test_bank_and_query_are_vectors_of_one_kind() -> None:
    """The images of a study in the bank, under another name: nothing could be nearer."""
    context = toy_context("dast")
    examples = [example(context, index, views=1 + index % 2) for index in range(5)]
    model = with_memory(toy_model(context), context, examples)
    unknown_patients = [
        replace(one, study_id=f"new{one.study_id}", patient_id=f"new{one.patient_id}") for one in examples
    ]
    for own, shown in zip(
        examples, model.generate(batch_of(context, *unknown_patients), GREEDY).intermediates, strict=True
    ):
        (recalled,) = shown["recalled"]
        assert recalled["study_id"] == own.study_id
        # float32: other batches are summed in another order.
        assert recalled["scores"] == pytest.approx({"visual": 1, "disease": 1, "combined": 1}, abs=1e-4)


def test_a_report_with_memory_is_the_same_alone_and_in_a_batch() -> None:
    context = toy_context("dast")
    model = with_memory(toy_model(context), context, [example(context, index) for index in range(10, 30)])
    studies = [example(context, index, views=1 + index % 2) for index in range(8)]
    together = model.generate(batch_of(context, *studies), GREEDY)
    for index, study in enumerate(studies):
        alone = model.generate(batch_of(context, study), GREEDY)
        assert alone.token_ids[0] == together.token_ids[index]
        recalled = [g["recalled"][0]["study_id"] for g in (alone.intermediates[0], together.intermediates[index])]
        assert recalled[0] == recalled[1]


def test_stage_two_trains_fusion_and_connector_only_and_lowers_the_loss() -> None:
    """The frozen language model is steered by what is put before the report."""
    context = toy_context("dast")
    examples = [example(context, index) for index in range(4)]
    model = with_memory(toy_model(context), context, examples)
    stage = PRESETS["small"]().stages.report
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batch = batch_of(context, *examples)
    apply_finetune(model, stage.finetune)
    optimizer = build_optimizer(model, stage.optimizer)
    losses = []
    for _ in range(15):
        set_train_mode(model, stage.finetune)
        loss = model.loss(batch, ("report",))["report"]
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    changed = {name.split(".")[0] for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"fusion", "connector"}
    assert losses[-1] < losses[0]


def test_stages_train_what_the_paper_trains_and_tiny_its_language_model_too() -> None:
    for name, preset in PRESETS.items():
        own = {"language_model"} if name in ("tiny", "tiny-ct") else set()
        stages = preset().stages
        trained = {key: set(stage.trained) for key, stage in preset().named_stages().items()}
        assert trained["disease"] == {"disease_tokens", "alignment", "vision_encoder"}
        assert trained["report"] == {"fusion", "connector"} | own
        assert stages.disease.losses == {"disease": 1.0, "contrastive": 1.0}
    assert PRESETS["paper"]().stages.language.epochs == 0, "there the language model comes pretrained"


def test_the_tables_name_rows_that_exist_and_have_the_papers_numbers() -> None:
    assert {"main", "table4", "table5"} <= set(TABLES)
    for table in TABLES.values():
        for row in table.rows:
            assert row.ablation is None or row.ablation in ABLATIONS
            assert row.paper or table.kind == "ours", row.label
    main = {row.label: row for row in TABLES["main"].rows}
    assert len(main) == 25
    assert main["Ours"].paper["IU X-Ray"]["CIDEr"] == 0.634
    assert main["MambaXray"].paper["CheXpert Plus"]["CE_F1"] == 0.335
    assert "BLEU_1" not in main["DCL"].paper["MIMIC-CXR"]
    assert set(TABLES["table5"].rows[0].paper) == {"CheXpert Plus", "IU X-Ray"}


def test_a_language_model_is_pretrained_on_text_alone() -> None:
    context = toy_context("dast")
    model = toy_model(context)
    batch = batch_of(context, *(example(context, index) for index in range(4)))
    with_images = model.loss(batch, ("text_in_context",))["text_in_context"]
    assert torch.equal(with_images, model.loss(batch, ("text_in_context",))["text_in_context"]), "validation repeats"
    blank = replace(batch, pixel_values=torch.zeros_like(batch.pixel_values))  # type: ignore[arg-type]
    assert torch.equal(with_images, model.loss(blank, ("text_in_context",))["text_in_context"])


def test_a_run_banks_training_studies_only_and_restores_with_them(toy_dataset: Dataset, tmp_path: Path) -> None:
    overrides = [*TOY_OVERRIDES, *TOY_SIZES["dast"], "stages.report.epochs=1", "data.keep_stages=false"]
    run = train("dast", toy_dataset.path, tmp_path / "run", overrides=overrides)
    banked = [row for _, row in read_jsonl(run / "memories" / BANK / "rows.jsonl")]
    assert [row["study_id"] for row in banked] == [study.study_id for study in toy_dataset.studies("train")]
    assert all("patient_id" not in row for row in banked)
    report = Predictor.of(restore(run)).report([toy_dataset.image_path("images/0_0.png")])
    assert report.evidence["recalled"][0]["study_id"] in {row["study_id"] for row in banked}


def test_a_bank_with_a_test_study_is_refused(
    toy_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = DastModel.build_memories
    unknown_study = next(iter(toy_dataset.studies("test")))

    def leak(self: DastModel, stage: str, training: Any) -> dict[str, Bank]:
        banks = build(self, stage, training)
        return {
            name: Bank(bank.tensors, ({**bank.rows[0], "study_id": unknown_study.study_id}, *bank.rows[1:]))
            for name, bank in banks.items()
        }

    monkeypatch.setattr(DastModel, "build_memories", leak)
    overrides = [*TOY_OVERRIDES, *TOY_SIZES["dast"], "stages.report.epochs=1", "stages.language.epochs=0"]
    with pytest.raises(InputError, match="leak"):
        train("dast", toy_dataset.path, tmp_path / "run", overrides=overrides)


def test_target_on_iu_x_ray_is_findings_and_impression() -> None:
    paper, iu = PRESETS["paper"](), PRESETS["paper-iu"]()
    assert (paper.data.target, iu.data.target) == ("as_imported", "findings+impression")
    assert iu.model_dump(exclude={"data": {"target"}}) == paper.model_dump(exclude={"data": {"target"}})
    assert "findings + impression" in TABLES["main"].note


def test_shares_on_the_page_are_those_of_the_sizes() -> None:
    page = (ROOT / "docs/methods/dast.md").read_text(encoding="utf-8")
    sizes = {"mimic": 270_790, "chexpert": 40_463, "iu": 2_069}
    total = sum(sizes.values())
    assert f"sums to {total:,}" in page
    for name, size in sizes.items():
        assert f"{name} {size / total:.4f} ({size:,}" in page, name
    assert f"iu would be {sizes['iu'] / 480_000:.4f}" in page
