"""What every method promises. A new folder under methods/ is tested here without a line being added, except its sizes
in conftest's TOY_SIZES where those of its tiny preset take too long. ``more/seventh`` is such a folder elsewhere.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from radweave import methods
from radweave.core import map_kinds
from radweave.core.batch import Batch
from radweave.core.config import Config
from radweave.core.errors import InputError
from radweave.core.ontology import CLASSES
from radweave.core.storage import sha256_json
from radweave.core.study import Study
from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.data.loader import Example, collate
from radweave.data.tokenizer import encode
from radweave.engine.estimate import longest_prompt
from radweave.engine.loop import AveragedWeights
from radweave.engine.plan import refuse_unread_context
from radweave.engine.prepare import prepare
from radweave.engine.reinforcement import Drawn, Policy
from radweave.engine.restore import restore, set_memories
from radweave.engine.run_folder import hash_files
from radweave.engine.train import train
from radweave.inference.export import export, training_content
from radweave.inference.features import build_feature_bank
from radweave.inference.predictor import Predictor
from radweave.methods import load_method, method_names, method_summary, resolve
from radweave.methods.experiment import BuildContext, Experiment
from radweave.methods.model import (
    Classifying,
    Prompting,
    ReportModel,
    StudySize,
    TrainingView,
    encoder_name,
    named_parts,
    writes_own,
)
from radweave.methods.stage import apply_finetune, build_optimizer, set_train_mode, total_loss
from radweave.nn.connector import LinearConnectorConfig
from radweave.nn.decoding import OWN_DECODER, DecodingConfig, Prefixes, Written
from radweave.nn.encoder_decoder import CrossAttentionLanguageModel
from radweave.nn.heads import NEGATIVE, POSITIVE, UNCERTAIN, UNLABELED, UncertainPolicy
from radweave.nn.language_model import CausalLanguageModel
from radweave.nn.memory.bank import Bank, load_bank, save_bank, write_tensors
from radweave.nn.vision import InputSize, tokens_of
from tests.fake_device import standing_in
from tests.toys import TOY_CT_OVERRIDES, TOY_OVERRIDES, TOY_REPORTS, TOY_SIZES

SEVENTH = "seventh"
METHODS = [*method_names(), SEVENTH]


def sizes(method: str) -> list[str]:
    return [*TOY_OVERRIDES, *TOY_SIZES.get(method, ())]


@pytest.fixture(scope="module", params=METHODS)
def experiment(request: pytest.FixtureRequest) -> Iterator[Experiment]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == SEVENTH:
            patch.setattr(methods, "__path__", [*methods.__path__, str(Path(__file__).parent / "more")])
        yield resolve(request.param, "tiny", sizes(request.param))


@pytest.fixture(scope="module")
def context(experiment: Experiment) -> BuildContext:
    tokenizer = experiment.data.tokenizer.build(list(TOY_REPORTS.values()) * 4)
    data = experiment.data
    return BuildContext(tokenizer, data.image_size, CLASSES[data.label_set], volume_size=data.ct.size)


@pytest.fixture
def model(experiment: Experiment, context: BuildContext) -> ReportModel:
    torch.manual_seed(0)
    return experiment.model.build(context)


@pytest.fixture(scope="module")
def dataset(experiment: Experiment, request: pytest.FixtureRequest) -> Dataset:
    """The toy data set of what the method reads."""
    name = "toy_dataset" if experiment.data.modality == "xray" else "toy_ct_dataset"
    return request.getfixturevalue(name)


def example(context: BuildContext, index: int, *, views: int = 1) -> Example:
    """A study whose image decides its report. A model that reads CT gets one scan, however many views."""
    side = "left" if index % 2 else "right"
    size = (context.image_size, context.image_size) if context.volume_size is None else context.volume_size
    views = views if context.volume_size is None else 1
    pixels = np.random.default_rng(index).integers(0, 60, (views, *size))
    half = size[-1] // 2
    pixels[..., slice(0, half) if side == "left" else slice(half, None)] += 150
    tokenizer = context.tokenizer
    return Example(
        study_id=f"s{index}",
        patient_id=f"p{index}",
        source=pixels.astype(np.uint8),
        rows=tuple(range(views)),
        view_ids=tuple(range(1, views + 1)) if context.volume_size is None else (0,),
        token_ids=(*encode(tokenizer, TOY_REPORTS[side]), int(tokenizer.eos_token_id)),
        class_states=tuple((index + number) % 4 for number in range(len(context.classes))),
        report=TOY_REPORTS[side],
    )


def batch_of(context: BuildContext, *examples: Example) -> Batch:
    return collate(examples, pad_id=int(context.tokenizer.pad_token_id))


def test_the_method_is_described_and_has_all_presets(experiment: Experiment) -> None:
    module = load_method(experiment.method)
    assert method_summary(experiment.method).endswith(".")
    assert set(module.PRESETS) >= {"tiny", "small", "paper"}
    for preset in module.PRESETS.values():
        assert preset().method == experiment.method
    pages = (
        Path(__file__).parents[2] / "docs" / "methods" / f"{experiment.method}.md",
        Path(module.__file__).parent / "page.md",
    )
    assert any(page.is_file() for page in pages), "every method has its page"


@pytest.mark.long
def test_every_ablation_row_validates_and_builds(experiment: Experiment, context: BuildContext) -> None:
    ablations = load_method(experiment.method).ABLATIONS
    assert ablations["full"] == []
    for row, overrides in ablations.items():
        changed = resolve(experiment.method, "tiny", [*sizes(experiment.method), *overrides])
        plain, ablated = resolve(experiment.method, "tiny", []), resolve(experiment.method, "tiny", overrides)
        assert (row == "full") == (ablated == plain), row
        built = changed.model.build(context)
        batch = batch_of(context, example(context, 0), example(context, 1))
        for stage in changed.named_stages().values():
            terms = built.loss(batch, tuple(stage.losses))
            assert torch.isfinite(total_loss(terms, stage.losses)), row


def test_its_stages_name_parts_and_losses_that_it_has_and_its_encoder_is_one_of_them(
    experiment: Experiment, model: ReportModel
) -> None:
    assert isinstance(model, ReportModel)
    assert encoder_name(model) in named_parts(model)
    assert experiment.model.encoder in dict(experiment.model).values()
    for preset in load_method(experiment.method).PRESETS.values():
        for stage in preset().named_stages().values():
            assert set(stage.finetune) <= set(named_parts(model))
            assert set(stage.losses) <= set(model.terms)


def test_every_preset_and_every_row_chooses_its_epoch_by_the_report_loss_alone(experiment: Experiment) -> None:
    """Sums of different losses do not compare: rows of one table would choose by different figures."""
    module = load_method(experiment.method)
    changed = [resolve(experiment.method, "tiny", overrides) for overrides in module.ABLATIONS.values()]
    for chosen in (*(preset() for preset in module.PRESETS.values()), *changed):
        stage = list(chosen.named_stages().values())[-1]
        assert stage.selected_by == "report" or not stage.losses


def refuse_nothing_to_train(model: ReportModel) -> None:
    if not model.terms:
        assert not list(model.parameters()), "what no loss reaches is no parameter"
        pytest.skip("the method has nothing to train")


def roused(model: ReportModel) -> ReportModel:
    """The model with no weight at the zero that it may start from: behind that, wiring cannot be seen."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def remember(experiment: Experiment, model: ReportModel, context: BuildContext) -> None:
    """Fill all memories from six studies of one and of two views."""
    model.eval()
    view = view_of(context, [example(context, index, views=1 + index % 2) for index in range(6)])
    for stage in experiment.named_stages():
        torch.manual_seed(0)
        fill_memory(model, stage, view)


def values_of(model: ReportModel, batch: Batch) -> dict[str, float]:
    """Every term by itself, with the same random numbers."""
    values = {}
    for term in model.terms:
        torch.manual_seed(0)
        with torch.no_grad():
            values[term] = float(model.loss(batch, (term,))[term])
    return values


BY_THRESHOLD = {("weave", "report"): {"dense", "tokens", "difference"}}
"""Parts of which a term reads what they assert, a yes or no (tests/methods/test_weave_leaks.py)."""
NO_GRADIENT = {
    **BY_THRESHOLD,
    ("am_mrg", "report"): {"heads"},
    ("diffvp", "report"): {"diagnosis"},
    ("vdgen", "did"): {"language_model"},
}
"""Parts that a term reads and does not train: by them a memory was made, findings are asserted, a teacher speaks."""


def test_the_gradient_of_each_term_reaches_exactly_the_parts_that_it_names(
    experiment: Experiment, model: ReportModel, context: BuildContext
) -> None:
    """Term by term, with all parts trained: a stage of another preset trains what this one leaves."""
    refuse_nothing_to_train(model)
    remember(experiment, roused(model), context)
    trained = {name for name, part in named_parts(model).items() if any(p.requires_grad for p in part.parameters())}
    batch = batch_of(context, example(context, 0, views=2), example(context, 1), example(context, 2))
    for name, term in model.train().terms.items():
        model.zero_grad(set_to_none=True)
        model.loss(batch, (name,))[name].backward()
        reached = {
            key.split(".")[0] for key, p in model.named_parameters() if p.grad is not None and bool(p.grad.any())
        }
        still = NO_GRADIENT.get((experiment.method, name), set())
        assert reached == trained & set(term.reads) - still, name


def test_gradients_reach_exactly_the_trainable_parts(
    experiment: Experiment, model: ReportModel, context: BuildContext
) -> None:
    refuse_nothing_to_train(model)
    for stage in experiment.named_stages().values():
        apply_finetune(model, stage.finetune)
        model.zero_grad(set_to_none=True)
        batch = batch_of(context, example(context, 0, views=2), example(context, 1))
        terms = model.loss(batch, tuple(stage.losses))
        total_loss(terms, stage.losses).backward()
        reached = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
        trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        assert reached == trainable
        assert trainable, "a stage trains something"


def test_a_term_reads_exactly_the_parts_it_names(
    experiment: Experiment, model: ReportModel, context: BuildContext
) -> None:
    """Kept stages rely on one half: a part that is not named must not change what a stage gives. The other half is that
    none is named for nothing: it changes the term, or the memory that the term reads.
    """
    remember(experiment, roused(model), context)
    batch = batch_of(context, example(context, 0, views=2), example(context, 1), example(context, 2))
    before = values_of(model, batch)
    assert {name for term in model.terms.values() for name in term.reads} <= set(named_parts(model))
    for name, part in named_parts(model).items():
        if not list(part.parameters()):
            continue
        saved = {key: value.clone() for key, value in part.state_dict().items()}
        with torch.no_grad():
            for parameter in part.parameters():
                parameter.add_(0.5 * torch.randn_like(parameter))
        after = values_of(model, batch)
        changed = {term for term in before if after[term] != before[term]}
        named = {term for term in model.terms if name in model.terms[term].reads}
        assert changed <= named, f"{name} is read"
        named -= {term for term in named if name in BY_THRESHOLD.get((experiment.method, term), ())}
        if not named <= changed:
            remember(experiment, model, context)
            repeated = values_of(model, batch)
            assert {term for term in named if repeated[term] != before[term]} == named, f"{name} is not read"
        part.load_state_dict(saved)
        if not named <= changed:
            remember(experiment, model, context)


def padded_more(batch: Batch) -> Batch:
    """The batch with one more place for a view and for what is told, and rubbish wherever nothing is."""
    longer = {}
    for name, rubbish in (
        ("pixel_values", 7.0),
        ("view_mask", 0),
        ("view_ids", 2),
        ("context_ids", 5),
        ("context_mask", 0),
    ):
        value = getattr(batch, name)
        if value is not None and (batch.volume is None or "view" not in name):
            longer[name] = torch.cat([value, torch.full_like(value[:, :1], rubbish)], dim=1)
    for name, mask, rubbish in (
        ("pixel_values", "view_mask", 7.0), ("view_ids", "view_mask", 2), ("context_ids", "context_mask", 5),
    ):  # fmt: skip
        if name in longer:
            longer[name][~longer[mask]] = rubbish
    assert batch.input_ids is not None
    assert batch.attention_mask is not None
    words = torch.where(batch.attention_mask.bool(), batch.input_ids, 5)
    return replace(batch, **longer, input_ids=words)


def leaves_of(value: Any, place: str = "") -> dict[str, Any]:
    """Evidence by its places; numbers as arrays."""
    if isinstance(value, dict):
        pairs = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        pairs = [(str(number), item) for number, item in enumerate(value)]
    else:
        is_number = isinstance(value, int | float | np.ndarray | np.generic)
        return {place: np.asarray(value, dtype=float) if is_number else value}
    return {key: leaf for name, item in pairs for key, leaf in leaves_of(item, f"{place}/{name}").items()}


def outputs(model: ReportModel, batch: Batch, decoding: DecodingConfig) -> dict[str, Any]:
    """Every term, the words that come first, and all evidence."""
    model.eval()
    drafts = model.generate(batch, decoding.model_copy(update={"max_new_tokens": 2, "num_beams": 1}))
    result = leaves_of({"terms": values_of(model, batch), "ids": drafts.token_ids, "evidence": drafts.intermediates})
    if isinstance(model, Classifying):
        with torch.no_grad():
            result["logits"] = model.class_logits(batch).double().numpy()
    return result


def differ(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Where two outputs differ by more than a sum of other order."""

    def same(left: Any, right: Any) -> bool:
        if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
            return left.shape == right.shape and bool(np.allclose(left, right, rtol=1e-4, atol=1e-5, equal_nan=True))
        return bool(np.all(left == right))

    return [key for key in one.keys() | other.keys() if not same(one.get(key), other.get(key))]


def test_present_inputs_change_the_result_and_absent_ones_do_not(
    experiment: Experiment, model: ReportModel, context: BuildContext
) -> None:
    """One study has two views and is told much, one has one view and is told less."""
    remember(experiment, roused(model), context)
    studies = [example(context, 1, views=2), example(context, 2), example(context, 4)]
    texts = ("Indication: fall and cough.\n", "Indication: fall.\n", "")
    batch = batch_of(context, *(with_context(context, study, text) for study, text in zip(studies, texts, strict=True)))
    before = outputs(model, batch, experiment.decoding)
    assert differ(before, outputs(model, padded_more(batch), experiment.decoding)) == []
    changes: dict[str, Any] = {}
    if batch.volume is not None:
        changes["volume"] = batch.volume.flip(-1)
    elif batch.pixel_values is not None:
        second, fewer, kinds = batch.pixel_values.clone(), batch.view_mask.clone(), batch.view_ids.clone()  # type: ignore[union-attr]
        second[0, 1] = second[0, 1].flip(-1)
        fewer[0, 1], kinds[0, 0] = False, 2
        changes |= {"pixel_values": second, "view_mask": fewer, "view_ids": kinds}
    if model.terms:
        for name in ("labels", "context_ids", "context_mask"):
            value = getattr(batch, name).clone()
            value[0, 0] = (value[0, 0] + 1) if name != "context_mask" else False
            changes[name] = value
    if {"disease", "diagnosis", "dense"} & set(model.terms):
        assert batch.class_labels is not None
        changes["class_labels"] = torch.where(batch.class_labels == POSITIVE, NEGATIVE, batch.class_labels)
    if {"contrastive", "matching"} & set(model.terms):
        changes["reports"] = [*batch.reports[1:], "No effusion."]  # type: ignore[index]
    terms, unread = values_of(model, batch), []
    for name, value in changes.items():
        changed = replace(batch, **{name: value})
        # Of a change that a term shows nothing has to be written.
        if values_of(model, changed) == terms and not differ(before, outputs(model, changed, experiment.decoding)):
            unread.append(name)
    assert unread == []


def test_an_uncertain_label_counts_as_the_option_says(experiment: Experiment, context: BuildContext) -> None:
    """Where the method has the option: as if the labels had said so themselves."""
    if "uncertain" not in type(experiment.model).model_fields:
        pytest.skip("the method has no such option")
    batch = batch_of(context, *(example(context, index) for index in range(4)))
    assert batch.class_labels is not None
    states: dict[UncertainPolicy, int] = {"positive": POSITIVE, "negative": NEGATIVE, "ignore": UNLABELED}

    def losses(policy: UncertainPolicy, labels: torch.Tensor) -> dict[str, float]:
        torch.manual_seed(0)
        model = experiment.model.model_copy(update={"uncertain": policy}).build(context).eval()
        result = {}
        for term in model.terms:
            torch.manual_seed(0)
            result[term] = float(model.loss(replace(batch, class_labels=labels), (term,))[term].detach())
        return result

    losses_by_policy = {policy: losses(policy, batch.class_labels) for policy in states}
    ruled = [
        term for term in losses_by_policy["positive"] if len({losses_by_policy[policy][term] for policy in states}) > 1
    ]
    assert {"disease", "diagnosis"} & set(losses_by_policy["positive"]) <= set(ruled) != set()
    for policy, state in states.items():
        stated_labels = batch.class_labels.masked_fill(batch.class_labels == UNCERTAIN, state)
        meant = losses("positive", stated_labels)
        for term in ruled:
            assert losses_by_policy[policy][term] == pytest.approx(meant[term], abs=1e-6), f"{policy}: {term}"


TWO_PARTS = "FINDINGS: No effusion. IMPRESSION: The heart is normal."


def with_context(context: BuildContext, study: Example, text: str) -> Example:
    """The study as its model is told of it; of "" it is told nothing."""
    return replace(study, context_ids=tuple(encode(context.tokenizer, text)))


def test_a_method_overfits_and_shows_its_evidence_and_context(
    experiment: Experiment, model: ReportModel, context: BuildContext
) -> None:
    """The first and the last study are one image: what it is told alone says that two parts are wanted."""
    refuse_nothing_to_train(model)
    tokens = (*encode(context.tokenizer, TWO_PARTS), int(context.tokenizer.eos_token_id))
    other = replace(example(context, 0), study_id="told", report=TWO_PARTS, token_ids=tokens)
    plain = (with_context(context, example(context, index), "") for index in range(2))
    batch = batch_of(context, *plain, with_context(context, other, "Indication: fall.\n"))
    stage = list(experiment.named_stages().values())[-1]
    apply_finetune(model, stage.finetune)
    optimizer = build_optimizer(model, stage.optimizer)
    for group in optimizer.param_groups:
        group["lr"] = 3e-3
    wanted = [TOY_REPORTS["right"], TOY_REPORTS["left"], TWO_PARTS]
    texts: list[str] = []
    for _ in range(10):
        model.train()
        for _ in range(30):
            loss = total_loss(model.loss(batch, tuple(stage.losses)), stage.losses)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        texts = [context.tokenizer.decode(ids) for ids in model.generate(batch, experiment.decoding).token_ids]
        if texts == wanted:
            break
    assert texts == wanted


def test_context_stands_in_the_prompt_only_where_a_study_has_it(
    experiment: Experiment, model: ReportModel, context: BuildContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is told nothing, and a study of which nothing is, have the prompt that they always had."""
    requested = resolve(experiment.method, "tiny", ["data.input_sections=[indication]"])
    refuse_unread_context(requested, model)
    with pytest.raises(InputError, match=r"field 'data.input_sections': this model reads images alone"):
        refuse_unread_context(requested, torch.nn.Linear(1, 1))  # type: ignore[arg-type]
    writer = named_parts(model.eval()).get("language_model")
    if writer is None:
        pytest.skip("nothing is written; what it makes of it: tests/methods/test_context_words.py")
    prompts: list[torch.Tensor] = []
    write = writer.write

    def watched(batches: Iterator[Prefixes], decoding: DecodingConfig) -> Iterator[Written]:
        def recording_prefixes() -> Iterator[Prefixes]:
            for one in batches:
                prompts.extend(one.embeds[row][one.mask[row]] for row in range(len(one)))
                yield one

        return write(recording_prefixes(), decoding)

    monkeypatch.setattr(writer, "write", watched)
    brief = experiment.decoding.model_copy(update={"max_new_tokens": 1, "num_beams": 1})
    study = example(context, 0)
    stated_labels = with_context(context, study, "Indication: fall.\n")
    assert stated_labels.context_ids
    for batch in ([study], [with_context(context, study, "")], [with_context(context, study, ""), stated_labels]):
        model.generate(batch_of(context, *batch), brief)
    plain, nothing, in_batch, more = prompts
    torch.testing.assert_close(nothing, plain)
    torch.testing.assert_close(in_batch, plain)
    assert len(more) == len(plain) + len(stated_labels.context_ids)
    words = writer.embed(torch.tensor(stated_labels.context_ids))
    places = [start for start in range(len(plain)) if torch.equal(more[start : start + len(words)], words)]
    assert places, "as tokens, one after the other"


def test_a_report_does_not_depend_on_batch_mates(
    experiment: Experiment, model: ReportModel, context: BuildContext
) -> None:
    model.eval()
    studies = [example(context, index, views=1 + index % 2) for index in range(16)]
    if not model.terms:  # its memory is all it has
        fill_memory(model, "report", view_of(context, studies))
    together = model.generate(batch_of(context, *studies), experiment.decoding)
    for index, study in enumerate(studies):
        alone = model.generate(batch_of(context, study), experiment.decoding)
        assert alone.token_ids[0] == together.token_ids[index]


@pytest.fixture(scope="module")
def run(experiment: Experiment, dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one epoch. Do not change it; copy it first."""
    out = tmp_path_factory.mktemp(experiment.method) / "run"
    return train(experiment.method, dataset.path, out, overrides=short(experiment))


def short(experiment: Experiment) -> list[str]:
    return [*sizes(experiment.method), "stages.report.epochs=1"]


def test_save_and_restore_give_the_identical_report(experiment: Experiment, dataset: Dataset, run: Path) -> None:
    first, second = restore(run), restore(run)
    assert first.experiment == resolve(experiment.method, "tiny", short(experiment))
    for (name, left), right in zip(first.model.state_dict().items(), second.model.state_dict().values(), strict=True):
        assert torch.equal(left, right), name
    images = [dataset.image_path(ref.path) for ref in next(iter(dataset.studies())).images]
    reports = [Predictor.of(restored).report(images) for restored in (first, second)]
    assert reports[0].text == reports[1].text
    assert reports[0].evidence == reports[1].evidence


def test_maps_say_of_which_kind_they_are(experiment: Experiment, dataset: Dataset, run: Path) -> None:
    """A page would else caption them as what they are not."""
    images = [dataset.image_path(ref.path) for ref in next(iter(dataset.studies())).images]
    restored = restore(run)
    for decoding in ([OWN_DECODER], ["kind=expected_utility"]):
        evidence = Predictor.of(restored, decoding=decoding).report(images).evidence
        assert (map_kinds.KEY in evidence) == ("attention_maps" in evidence)
        assert evidence.get(map_kinds.KEY, "difference") in map_kinds.KINDS


def test_features_come_of_every_encoder(dataset: Dataset, run: Path, tmp_path: Path) -> None:
    """That of kernels has no weights: its device was looked for among them, and a traceback came."""
    bank = build_feature_bank(restore(run), dataset.path, "val", tmp_path / "bank")
    assert len(bank) == len(list(dataset.studies("val")))
    assert torch.isfinite(bank.tensors["features"]).all()


def test_an_export_recalls_like_its_run_and_never_the_query_itself(dataset: Dataset, run: Path, tmp_path: Path) -> None:
    """On the training split, asked by its own ids, by its patient alone, by its study alone, and unknown."""
    first, second = restore(run), restore(export(run, tmp_path / "export"))
    names = {
        old: new
        for bank in sorted((run / "memories").glob("*"))
        for old, new in zip(
            load_bank(bank).study_ids, load_bank(tmp_path / "export" / "memories" / bank.name).study_ids, strict=True
        )
    }
    assert not set(names) & set(names.values()), "the rows were renamed"
    data = first.experiment.data
    cache = build_cache(dataset, size=data.image_size, ct=data.ct)
    examples = prepare(dataset, "train", first.experiment, first.tokenizer, cache, need_text=False).examples[:6]
    brief = ["max_new_tokens=3", "num_beams=1", f"kind={first.experiment.decoding.kind}"]
    for requested in (
        examples,
        [replace(example, study_id=f"other-{example.study_id}") for example in examples],
        [replace(example, patient_id=f"other-{example.patient_id}") for example in examples],
        [replace(example, study_id="file", patient_id="file") for example in examples],
    ):
        reports = [list(Predictor.of(restored, decoding=brief).reports(requested)) for restored in (first, second)]
        for example, query, actual, reference in zip(examples, requested, *reports, strict=True):
            assert renamed(actual.evidence, names) == reference.evidence
            assert actual.text == reference.text
            if query.patient_id == example.patient_id:
                assert example.study_id not in studies_in(actual.evidence)
                assert names.get(example.study_id) not in studies_in(reference.evidence)
    if names:
        assert studies_in(reference.evidence) <= set(names.values())
        assert studies_in(reference.evidence)


def renamed(value: Any, names: dict[str, str]) -> Any:
    """Evidence with the names that its studies have in the export."""
    if isinstance(value, dict):
        return {key: renamed(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [renamed(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value


def studies_in(value: Any) -> set[str]:
    """Every study that evidence names."""
    if isinstance(value, dict):
        own = {value["study_id"]} if isinstance(value.get("study_id"), str) else set()
        return own.union(*map(studies_in, value.values()))
    return set().union(*map(studies_in, value)) if isinstance(value, list) else set()


def test_an_unknown_method_is_answered_with_those_that_exist() -> None:
    with pytest.raises(InputError, match="baseline"):
        load_method("base")


def test_a_seventh_method_is_one_folder_of_sixty_lines() -> None:
    folder = Path(__file__).parent / "more" / SEVENTH
    assert len((folder / "__init__.py").read_text().splitlines()) <= 60
    assert {path.name for path in folder.iterdir() if path.is_file()} == {"__init__.py", "page.md"}


Read = set[tuple[type[Config], str]]
NEED_A_FAULT = {"StageConfig.max_skipped_steps", "RewardStageConfig.max_skipped_steps", "BpeTokenizerConfig.force"}
"""Read where a loss is not finite (tests/engine/test_loop.py), and where a tokenizer does not fit the language model
(tests/faults/test_outside_models.py)."""
NEED_A_SERVER = ("ServedConfig.", "GeneratorModelConfig.allow_remote", "GeneratorModelConfig.served")
"""Read where a served model is asked (tests/methods/test_served.py)."""


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Read:
    """The fields of records that code reads, with the record's class, as long as the test runs."""
    result: Read = set()

    def recorded(record: Config, name: str) -> Any:
        if name in type(record).__pydantic_fields__:
            result.add((type(record), name))
        return object.__getattribute__(record, name)

    monkeypatch.setattr(Config, "__getattribute__", recorded, raising=False)
    return result


def records_in(record: Config) -> Iterator[Config]:
    yield record
    for _, value in record:
        if isinstance(value, Config):
            yield from records_in(value)


def unread(kinds: Iterable[type[Config]], reads: Read) -> set[str]:
    """Fields of records that nothing has read. ``kind`` is read by pydantic when it chooses the record."""
    fields = {(kind, name) for kind in kinds for name in kind.model_fields if name != "kind"}
    return {f"{kind.__name__}.{name}" for kind, name in fields - reads}


def view_of(context: BuildContext, examples: Sequence[Example]) -> TrainingView:
    studies = tuple(Study(study_id=e.study_id, patient_id=e.patient_id, split="train") for e in examples)
    return TrainingView(studies, tuple(examples), context.classes, int(context.tokenizer.pad_token_id), seed=0)


def fill_memory(model: ReportModel, stage: str, view: TrainingView) -> None:
    with contextlib.suppress(InputError):  # a memory that this row cannot have
        model.set_memories(model.build_memories(stage, view))


def use(experiment: Experiment, context: BuildContext) -> None:
    """Build the model, compute every loss, fill the memories, write a report."""
    model = experiment.model.build(context)
    examples = [example(context, index) for index in range(6)]
    batch = batch_of(context, *examples[:3])
    for name, stage in experiment.named_stages().items():
        fill_memory(model.eval(), name, view_of(context, examples))
        model.train().loss(batch, tuple(stage.losses))
    model.eval().generate(batch, experiment.decoding.model_copy(update={"max_new_tokens": 4}))


def test_it_trains_remembers_and_writes_on_a_device_of_its_own(
    experiment: Experiment, context: BuildContext, tmp_path: Path
) -> None:
    """As on CUDA: a tensor that was left on the CPU, or one that NumPy reads where it lies, is an error there."""
    with standing_in() as device:
        model = experiment.model.build(context).to(device)
        examples = [example(context, index) for index in range(4)]
        batch = batch_of(context, *examples[:2])
        moved = batch.to(device)
        for name, stage in experiment.named_stages().items():
            with contextlib.suppress(InputError):  # a memory that so few studies cannot make
                for saved, bank in model.eval().build_memories(name, view_of(context, examples)).items():
                    save_bank(bank, tmp_path / name / "memories" / saved)
                set_memories(model, tmp_path / name)
            if not stage.losses:
                continue
            apply_finetune(model, stage.finetune)
            set_train_mode(model, stage.finetune)
            optimizer, average = build_optimizer(model, stage.optimizer), AveragedWeights(model, 0.9)
            for half in (False, True):
                with torch.autocast(device.type, torch.bfloat16, enabled=half):
                    loss = total_loss(model.loss(moved, tuple(stage.losses)), stage.losses)
                assert loss.device == device
                optimizer.zero_grad()
                loss.backward()
                gradients = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
                assert [key for key, value in gradients.items() if not torch.isfinite(value).all()] == []
                optimizer.step()
            average.update(0)
            with average.in_place():
                assert torch.isfinite(total_loss(model.loss(moved, tuple(stage.losses)), stage.losses))
        model.eval()
        brief = experiment.decoding.model_copy(update={"num_beams": 1, "max_new_tokens": 3})
        written = [
            model.generate(moved, brief.model_copy(update=changes)).token_ids
            for changes in ({}, {"num_beams": 2}, {"do_sample": True, "top_p": 0.9})
        ]
        # What it holds comes back as well, and writes the same.
        assert model.to("cpu").generate(batch, brief).token_ids == written[0]


@pytest.mark.long
def test_every_field_of_the_models_records_is_read(experiment: Experiment, context: BuildContext, reads: Read) -> None:
    """By class and field: a search for the field's name would pass a dead one that another record has too."""
    known: set[type[Config]] = set()
    for overrides in load_method(experiment.method).ABLATIONS.values():
        changed = resolve(experiment.method, "tiny", [*sizes(experiment.method), *overrides])
        kinds = {type(record) for record in records_in(changed.model)}
        if not kinds <= known or unread(kinds, reads):
            known |= kinds
            use(changed, context)
    left = {name for name in unread(known, reads) if not name.startswith(NEED_A_SERVER)}
    assert left == set()


@pytest.mark.long
def test_every_field_of_the_other_records_is_read_by_a_run(
    toy_dataset: Dataset, toy_ct_dataset: Dataset, tmp_path: Path, reads: Read
) -> None:
    """Of data, stages and decoding: by a run on radiographs and one on scans."""
    kinds: set[type[Config]] = set()
    for dataset, preset, overrides in (
        (
            toy_dataset,
            "tiny",
            [
                *sizes("baseline"),
                "stages.encoder.epochs=1",
                "stages.encoder.batch_size=4",
                "stages.reward.epochs=1",
                "stages.reward.batch_size=6",
                "stages.place.epochs=1",
            ],
        ),
        (toy_ct_dataset, "tiny-ct", TOY_CT_OVERRIDES),
    ):
        options = [*overrides, "stages.report.epochs=1", "data.keep_stages=false"]
        experiment = resolve("baseline", preset, options)
        for name, part in experiment:
            if isinstance(part, Config) and name != "model":
                kinds |= {type(record) for record in records_in(part)}
        run = restore(train("baseline", dataset.path, tmp_path / preset, preset=preset, overrides=options))
        images = [dataset.image_path(ref.path) for ref in next(iter(dataset.studies("test"))).images]
        for decoding in ([], ["num_beams=2"], ["do_sample=true"], ["kind=expected_utility"]):
            Predictor.of(run, decoding=[OWN_DECODER, *decoding]).report(images)
    assert unread(kinds, reads) == NEED_A_FAULT


def test_a_planted_dead_field_is_found(reads: Read) -> None:
    class Planted(LinearConnectorConfig):
        num_heads: int = 4  # others have a field of this name

    Planted().build(4, 8)
    assert unread([Planted], reads) == {"Planted.num_heads"}


def broken_bank(bank: Bank, tensor: str, how: str) -> Bank:
    """The bank with one fault that whoever makes the hashes again may leave in it."""
    values = bank.tensors[tensor]
    rows = bank.rows
    if how == "no rows":
        return Bank({name: other[:0] for name, other in bank.tensors.items()}, ())
    if how == "fewer rows":
        return Bank({name: other[:-1] for name, other in bank.tensors.items()}, rows[:-1])
    if how == "another type":
        values = values.to(torch.int64) if values.is_floating_point() else values.float()
    elif how == "wider":
        values = torch.cat([values, values[..., :1]], dim=-1)
    elif how == "flat":
        values = torch.zeros(len(rows))
    elif how == "not finite" and values.is_floating_point():
        values = values.clone()
        values[-1] = torch.nan
    elif how == "null rows":
        rows = tuple({**row, "text": None} for row in rows)
    tensors = {**bank.tensors, tensor: values}
    if how == "lacking":
        del tensors[tensor]
    return Bank(tensors, rows)


def test_a_run_whose_memories_were_left_out_is_refused(run: Path, tmp_path: Path) -> None:
    """Whether its card still names the memory or not, with all hashes made again."""
    card = json.loads((run / "run.json").read_text())
    named = dict(card.get("memories", {}))
    for name in sorted(path.name for path in (run / "memories").glob("*")):
        for stated_labels in (named, {other: rows for other, rows in named.items() if other != name}):
            copy = Path(shutil.copytree(run, tmp_path / f"{name}{len(stated_labels)}"))
            shutil.rmtree(copy / "memories" / name)
            (copy / "run.json").write_text(json.dumps({**card, "memories": stated_labels, "files": hash_files(copy)}))
            with pytest.raises(InputError, match=rf"names memory {name}|reads its memory '{name}'"):
                tamper(copy)
                restore(copy)


FAULTS = ("no rows", "fewer rows", "another type", "wider", "flat", "null rows", "lacking", "not finite")


def test_a_bank_that_does_not_fit_is_refused(run: Path, tmp_path: Path) -> None:
    """Every fault in every tensor of every bank, where hashes and card were made again."""
    model = restore(run).model
    for name, layout in model.memory_layouts().items():
        bank = load_bank(run / "memories" / name)
        for how, tensor in itertools.product(FAULTS if len(bank) else (), layout.tensors):
            if (how == "null rows" and not layout.texts) or (how == "no rows" and layout.may_be_empty):
                continue
            if how == "not finite" and not bank.tensors[tensor].is_floating_point():
                continue
            faulty = broken_bank(bank, tensor, how)
            save_bank(bank if how == "not finite" else faulty, tmp_path / "memories" / name)
            write_tensors(tmp_path / "memories" / name / "bank.safetensors", faulty.tensors)
            stated_labels = {name: len(bank if how == "fewer rows" else faulty)}
            others = {other: None for other in model.memory_layouts() if other != name}
            for other in others:
                save_bank(load_bank(run / "memories" / other), tmp_path / "memories" / other)
                stated_labels[other] = len(load_bank(run / "memories" / other))
            with pytest.raises(InputError, match=r"memories: .*(bank|memory) '|memories.*(bank|memory) '"):
                set_memories(model, tmp_path, named=stated_labels)


def tamper(folder: Path) -> None:
    """Give the card a digest that fits what it says, whatever that is."""
    values = json.loads((folder / "run.json").read_text())
    values.pop("digest")
    card = {**values, "digest": sha256_json(values)}
    (folder / "run.json").write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n")


def test_an_export_without_its_bank_says_so_or_is_refused(dataset: Dataset, run: Path, tmp_path: Path) -> None:
    """Whatever reads training studies is absent, in weights and configuration, and every draft says so."""
    out = tmp_path / "bare"
    method = restore(run)
    if method.card.method == "kernels":
        with pytest.raises(InputError, match="memory of training studies"):
            export(run, out, bank=False)
        assert not out.exists()
        return
    bare = restore(export(run, out, bank=False))
    assert not (out / "memories").exists()
    assert not (out / "drafting").exists()
    assert training_content(out).studies == 0
    assert "holds no report" in (out / "README.md").read_text()
    images = [dataset.image_path(ref.path) for ref in next(iter(dataset.studies())).images]
    report = Predictor.of(bare, decoding=["max_new_tokens=3", "num_beams=1"]).report(images)
    assert not report.evidence.get("recalled")
    reads = bool(method.model.memory_layouts())
    assert bool(bare.card.without) == reads
    assert any("exported without training reports" in warning for warning in report.warnings) == reads
    for lost in bare.card.without:
        assert lost in (out / "README.md").read_text()
    whole = export(run, tmp_path / "whole")
    assert f"holds {training_content(whole).reports} training reports of " in (whole / "README.md").read_text()
    repeated = export(out, tmp_path / "again")
    assert restore(repeated).card.without == bare.card.without, "an export of an export still says it"


def test_every_decoder_shows_calibrated_probabilities(dataset: Dataset, run: Path) -> None:
    """A method may note the probabilities of its own heads alone; those were not what was calibrated."""
    restored = restore(run)
    assert restored.drafting is not None
    if restored.drafting.calibration.source != "heads":
        return
    images = [dataset.image_path(ref.path) for ref in next(iter(dataset.studies())).images]
    shown = [
        Predictor.of(restored, decoding=options).report(images).evidence
        for options in (["kind=expected_utility"], ["kind=likelihood", "max_new_tokens=3", "num_beams=1"])
    ]
    chosen, decoded = ([evidence[name] for name in ("class_probabilities", "calibration")] for evidence in shown)
    assert decoded == chosen


def test_a_rewarded_report_has_the_probability_that_its_loss_reads(
    experiment: Experiment, context: BuildContext, model: ReportModel
) -> None:
    """The references as if they had been drawn, of two views and of one."""
    if not writes_own(model):
        assert experiment.method in ("kernels", SEVENTH)
        return
    studies = [example(context, index, views=1 + index % 2) for index in range(4)]
    view = view_of(context, studies)
    for stage in experiment.named_stages():
        model.set_memories(model.build_memories(stage, view))
    batch = batch_of(context, *studies[:3])
    words = [list(study.token_ids or ())[:-1] for study in studies[:3]]
    drawn = Drawn.of([*words, words[0]], [0, 1, 2, 0], model.language_model, 1000)  # type: ignore[attr-defined]
    model.eval()
    with torch.no_grad():
        log_probs = drawn.chosen(Policy(model, 1.0)(batch, drawn))
        nats = -(log_probs * drawn.mask).sum(1) / drawn.mask.sum(1)
        expected = model.report_nats(batch)
    torch.testing.assert_close(nats, expected[[0, 1, 2, 0]], atol=1e-5, rtol=1e-5)


def test_the_prompt_has_the_length_that_the_shape_says(
    experiment: Experiment, context: BuildContext, model: ReportModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the decoder is given before the report, once everything that may stand there stands there."""
    if not isinstance(model, Prompting):
        assert experiment.method in ("kernels", SEVENTH)
        return
    long = " ".join(TOY_REPORTS.values()) * 20
    studies = [replace(example(context, index, views=2), report=long, context_ids=(5, 6, 7)) for index in range(6)]
    view = view_of(context, studies)
    for stage in experiment.named_stages():
        model.set_memories(model.build_memories(stage, view))
    if experiment.method == "diffvp":  # every class is found
        model.diagnosis.thresholds.zero_()
    elif experiment.method == "weave":
        everything = torch.ones(2, len(context.classes), dtype=torch.bool)
        monkeypatch.setattr("radweave.methods.weave.model.WeaveModel.asserted", lambda *_: everything)
    given: list[int] = []

    logits_of = {decoder: decoder.logits for decoder in (CausalLanguageModel, CrossAttentionLanguageModel)}

    def counted(decoder: Any, *parts: torch.Tensor) -> torch.Tensor:
        # The prompt, or a memory and what stands before the words.
        prompts = parts[:1] if isinstance(decoder, CausalLanguageModel) else (parts[0], parts[2])
        given.append(sum(prompt.shape[1] for prompt in prompts))
        logits: torch.Tensor = logits_of[type(decoder)](decoder, *parts)
        return logits

    for decoder in logits_of:
        monkeypatch.setattr(decoder, "logits", counted)
    batch = batch_of(context, *studies[:2])
    if experiment.method == "generator":  # its prompts are read by transformers' own pass over the whole model

        def counted_whole(_: Any, __: Any, inputs: dict[str, Any]) -> None:
            given.append(inputs["inputs_embeds"].shape[1] - batch.input_ids.shape[1])

        model.language_model.model.text.register_forward_pre_hook(counted_whole, with_kwargs=True)
    with torch.no_grad():
        model.eval().loss(batch, ("report",))
    views = 2 if context.volume_size is None else 1
    tokens = tokens_of(model.encoder, InputSize(context.image_size, context.volume_size))
    size = StudySize(views, tokens, context=3)
    assert given == [model.prompt_tokens(size)]
    assert longest_prompt(model, experiment.data) == model.prompt_tokens(
        StudySize(1 if context.volume_size else experiment.data.max_views, tokens)
    )
