"""The exchange probe against plain loops, what it leaves of a run, and that it finds parts that are silent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from radweave.core.errors import InputError
from radweave.core.json_files import read_json
from radweave.data.dataset import Dataset
from radweave.engine.restore import restore
from radweave.engine.train import train
from radweave.experiments import probe as module
from radweave.experiments.probe import (
    EXCHANGES,
    FLOOR,
    Alone,
    Cost,
    Exchange,
    Spread,
    exchanged,
    probe,
    write_page,
)
from radweave.methods.model import DecoderInput, ForwardPass, Term
from radweave.metrics.evaluate import corpus_scores
from radweave.metrics.statistics import mean_statistic
from radweave.nn.prompt import Slot
from tests.command_line import radweave
from tests.experiments.probe_results import LOUD, MUTE, input_result, loss_result, probe_of
from tests.toys import TOY_OVERRIDES, TOY_SIZES

# ----------------------------------------------------------------------------------------------- exchanges


def random_slot(studies: int = 3, length: int = 4, width: int = 2, seed: int = 0) -> Slot:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(studies, length, generator=generator) < 0.7
    return torch.randn(studies, length, width, generator=generator), mask


def test_another_studys_input_is_that_of_the_row_before() -> None:
    tokens, mask = slot = random_slot()
    other, present = exchanged(slot, "another")
    for row in range(3):
        assert torch.equal(other[row], tokens[row - 1])
        assert torch.equal(present[row], mask[row - 1])


def test_none_has_no_token_and_keeps_the_places() -> None:
    tokens, mask = slot = random_slot()
    same, present = exchanged(slot, "none")
    assert torch.equal(same, tokens)
    assert not present.any()
    assert present.shape == mask.shape


def test_the_mean_counts_the_tokens_that_are_there() -> None:
    tokens, mask = slot = random_slot()
    mask[:, 3] = False
    mean, present = exchanged(slot, "mean")
    for place in range(4):
        there = [tokens[row, place].numpy() for row in range(3) if mask[row, place]]
        for row in range(3):
            assert bool(present[row, place]) == bool(there)
            if there:
                np.testing.assert_allclose(mean[row, place], np.mean(there, axis=0), rtol=1e-5)


@pytest.mark.parametrize("how", EXCHANGES)
def test_an_exchange_leaves_the_slot_as_it_is(how: Exchange) -> None:
    tokens, mask = slot = random_slot()
    before = tokens.clone(), mask.clone()
    exchanged(slot, how)
    assert torch.equal(tokens, before[0])
    assert torch.equal(mask, before[1])


def test_alone_leaves_one_input_of_the_study_or_of_another() -> None:
    tokens, mask = slot = random_slot()
    for another in (False, True):
        reader = Alone("memory", another)
        kept = reader("memory", slot)
        expected = exchanged(slot, "another") if another else slot
        assert torch.equal(kept[0], expected[0])
        assert torch.equal(kept[1], expected[1])
        withheld = reader("image", slot)
        assert not withheld[1].any()
        assert withheld[0].shape == tokens.shape
    assert mask.any()


# ----------------------------------------------------------------------------------------------- spread and cost


def test_the_spread_equals_numpy_over_batches_of_any_length() -> None:
    slots = [random_slot(3, 4, seed=1), random_slot(2, 6, seed=2), random_slot(4, 1, seed=3)]
    spread = Spread()
    for slot in slots:
        spread.add(slot)
    squares = differing = 0.0
    for place in range(6):
        there = np.array(
            [
                tokens[row, place].numpy()
                for tokens, mask in slots
                for row in range(len(tokens))
                if place < tokens.shape[1] and mask[row, place]
            ]
        )
        if len(there):
            squares += float((there.astype(np.float64) ** 2).sum())
            differing += float(((there - there.mean(0)) ** 2).sum())
    assert spread.share == pytest.approx(differing / squares, rel=1e-6)


def test_equal_inputs_have_no_spread_and_opposite_ones_nothing_else() -> None:
    tokens = torch.ones(4, 2, 3)
    everywhere = torch.ones(4, 2, dtype=torch.bool)
    equal, opposite, empty = Spread(), Spread(), Spread()
    equal.add((tokens, everywhere))
    opposite.add((tokens * torch.tensor([1.0, -1.0, 1.0, -1.0])[:, None, None], everywhere))
    empty.add((tokens, ~everywhere))
    assert equal.share == 0.0
    assert opposite.share == 1.0
    assert empty.share is None


def test_a_cost_has_the_interval_of_a_mean() -> None:
    """On many independent values the bootstrap is near the normal interval of the mean, here within a fifth of it."""
    values = np.random.default_rng(0).normal(0.3, 1.0, 400)
    cost = Cost.of(mean_statistic(values), np.arange(400))
    half = 1.96 * values.std() / 20
    assert cost.mean == pytest.approx(values.mean())
    assert cost.low == pytest.approx(values.mean() - half, abs=half / 5)
    assert cost.high == pytest.approx(values.mean() + half, abs=half / 5)


def test_the_interval_is_over_patients() -> None:
    """Twenty patients with one value each, stated twenty times, are twenty values and not four hundred."""
    values = np.random.default_rng(0).normal(0.0, 1.0, 20).repeat(20)
    patients = np.arange(20).repeat(20)
    by_patient, by_study = (Cost.of(mean_statistic(values), units) for units in (patients, np.arange(400)))

    def width(cost: Cost) -> float:
        assert cost.low is not None
        assert cost.high is not None
        return cost.high - cost.low

    assert width(by_patient) > 3 * width(by_study)


def test_one_patient_has_no_interval() -> None:
    cost = Cost.of(mean_statistic(np.array([0.5, 0.7])), np.array([0, 0]))
    assert (cost.mean, cost.low, cost.high) == (pytest.approx(0.6), None, None)
    assert str(cost) == "+0.6000"
    assert not input_result(cost=cost).carries


# ----------------------------------------------------------------------------------------------- what is silent


@pytest.mark.parametrize(
    ("cost", "carries"),
    [
        (Cost(FLOOR, 0.001, 0.02), True),
        (Cost(0.9 * FLOOR, 0.001, 0.02), False),
        (Cost(0.1, -0.01, 0.2), False),
        (Cost(0.1, 0.0, 0.2), False),
    ],
)
def test_an_input_speaks_at_the_floor_with_an_interval_above_nothing(cost: Cost, carries: bool) -> None:
    assert input_result(cost=cost).carries == carries


@pytest.mark.parametrize(
    ("gradient", "moved", "decoder", "acts"),
    [(0.01, 0.01, False, True), (0.009, 1.0, True, False), (0.5, 0.009, False, False), (0.5, 0.0, True, True)],
)
def test_a_loss_acts_if_it_is_heard_and_moves_the_input_or_the_decoder(
    gradient: float, moved: float, decoder: bool, acts: bool
) -> None:
    assert loss_result("x", gradient=gradient, moved=moved, decoder=decoder).acts == acts


def test_the_silent_parts_are_those_that_declare_no_reason() -> None:
    result = probe_of(
        (
            input_result("image", cost=LOUD),
            input_result("memory", cost=MUTE),
            input_result("similar", cost=MUTE, alone=LOUD),
            input_result("age", cost=MUTE, silent="seldom told"),
        ),
        (
            loss_result("report", gradient=0.9, moved=0.0, decoder=True),
            loss_result("contrast", gradient=0.1, moved=0.0),
            loss_result("spread", gradient=0.1, moved=0.0, silent="a regulariser"),
        ),
    )
    assert result.silent == ["input memory", "loss report.contrast"]
    assert [one.covered for one in result.inputs] == [False, False, True, False]
    assert result.to_json()["covered"] == ["input similar"]
    table = result.table()
    assert "| report | contrast | 0.100 | 0.000 | -0.0100 | **no** |" in table
    assert "| report | spread | 0.100 | 0.000 | -0.0100 | no: a regulariser |" in table
    after = "50% [40%, 60%] | 0.200 (-0.100 [-0.200, +0.000]) | 0.300 (-0.400 [-0.500, +0.100])"
    assert f"| image | 0.500 | +0.2000 [+0.1000, +0.3000] | +0.2000 | yes | +0.2000 | +0.2000 | {after} |" in table
    carries = [line.split(" | ")[4] for line in table.splitlines()[2:6]]
    assert carries == ["yes", "**no**", "covered", "no: seldom told"]


def test_the_table_and_the_page_say_what_is_expected_to_cover_an_input(tmp_path: Path) -> None:
    known: dict[str, Any] = {"covered_by": ("image", "text"), "because": "they tell <the same>"}
    result = probe_of(
        (
            input_result("image", cost=LOUD),
            input_result("similar", cost=MUTE, alone=LOUD, **known),
            input_result("memory", cost=MUTE, **known),
            input_result("old", cost=LOUD, **known),
        ),
        (),
    )
    expected = "expected to be covered by image and text: they tell <the same>"
    carries = [line.split(" | ")[4] for line in result.table().splitlines()[2:6]]
    assert carries == ["yes", f"covered; {expected}", f"**no**; {expected}", f"yes; {expected}"]
    assert result.silent == ["input memory"], "what costs nothing alone is not covered"
    text = write_page(result, tmp_path / "out").read_text()
    assert text.count("expected to be covered by image and text: they tell &lt;the same&gt;") == 3
    saved = read_json(tmp_path / "out" / "probe.json")["inputs"]
    assert [one["covered_by"] for one in saved] == [[], *[["image", "text"]] * 3]


def test_the_page_names_silent_parts_and_the_json_holds_all_figures(tmp_path: Path) -> None:
    result = probe_of(
        (input_result("image", cost=LOUD, part="<b>tokens</b>"), input_result("memory", cost=MUTE)),
        (loss_result("report", gradient=1.0, moved=0.2),),
    )
    page = write_page(result, tmp_path / "out")
    text = page.read_text()
    assert "<h2>Silent parts</h2>" in text
    assert "<b>input memory</b>" in text
    assert "<b>tokens</b>" not in text, "words of a method are no markup"
    assert "&lt;b&gt;tokens&lt;/b&gt;" in text
    assert (tmp_path / "out" / "probe.md").read_text() == result.table()
    saved = read_json(tmp_path / "out" / "probe.json")
    assert saved["silent"] == ["input memory"]
    assert saved["floor"] == FLOOR
    assert saved["inputs"][0]["costs"]["another"] == {"mean": 0.2, "low": 0.1, "high": 0.3}
    assert saved["inputs"][1]["drafts"]["f1_change"]["low"] == -0.2
    assert saved["inputs"][1]["drafts"]["cider_change"] == {"mean": -0.4, "low": -0.5, "high": 0.1}
    assert "40 to 60 %" in text
    assert "-0.400 [-0.500, +0.100]" in text
    assert saved["losses"][0]["moved"] == 0.2
    with pytest.raises(InputError):
        write_page(result, tmp_path / "out")
    speaking = replace(result, inputs=result.inputs[:1])
    assert "Every part acts" in write_page(speaking, tmp_path / "out", overwrite=True).read_text()


# ----------------------------------------------------------------------------------------------- of a run


@pytest.fixture(scope="module")
def vdgen_run(toy_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two losses beside the report's. Do not change it."""
    out = tmp_path_factory.mktemp("probed") / "run"
    overrides = [*TOY_OVERRIDES, *TOY_SIZES["vdgen"], "stages.report.epochs=2"]
    return train("vdgen", toy_dataset.path, out, overrides=overrides)


def test_probing_leaves_a_run_as_it_is(vdgen_run: Path, toy_dataset: Dataset) -> None:
    run = restore(vdgen_run)
    model = run.model

    def state() -> dict[str, Any]:
        tensors = {name: value.clone() for name, value in model.state_dict(keep_vars=False).items()}
        flags = {name: value.requires_grad for name, value in model.named_parameters()}
        modes = {name: (part.training, getattr(part, "track_running_stats", None)) for name, part in
                 model.named_modules()}  # fmt: skip
        return {"tensors": tensors, "flags": flags, "modes": modes, "reader": model.reader}

    before = state()
    calls: list[tuple[int, int]] = []
    result = probe(run, toy_dataset.path, progress=lambda done, total: calls.append((done, total)))
    after = state()
    assert all(torch.equal(value, after["tensors"][name]) for name, value in before["tensors"].items())
    assert {key: value for key, value in before.items() if key != "tensors"} == {
        key: value for key, value in after.items() if key != "tensors"
    }
    assert all(parameter.grad is None for parameter in model.parameters())
    total = calls[-1][1]
    assert calls == [(number, total) for number in range(1, total + 1)]
    assert result.studies == 6
    assert [one.name for one in result.inputs] == ["image"]
    assert {(one.stage, one.name) for one in result.losses} == {
        ("report", "report"),
        ("report", "vse"),
        ("report", "did"),
    }
    assert sum(one.gradient for one in result.losses) == pytest.approx(1.0)
    again = probe(run, toy_dataset.path)
    assert replace(again, seconds=0.0) == replace(result, seconds=0.0), "the same figures twice"


def test_costs_are_those_of_the_exchanged_input(toy_run: Path, toy_dataset: Dataset) -> None:
    """The cost of another study's, by hand: reports scored with rolled tokens in place of the connector's output."""
    run = restore(toy_run)
    result = probe(run, toy_dataset.path, drafts=False)
    assert result.f1 is None
    assert result.inputs[0].drafts is None
    examples: list[Any] = []
    real = module.encoded_batches

    def kept(model: Any, given: Any, pad_id: int) -> Iterator[Any]:
        examples.extend(given)
        return real(model, given, pad_id)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "encoded_batches", kept)
        probe(run, toy_dataset.path, drafts=False)
    (batch,) = real(run.model, examples, int(run.tokenizer.pad_token_id))
    with torch.no_grad():
        own = run.model.report_nats(batch)
        rolled = replace(
            batch,
            vision_tokens=batch.vision_tokens.roll(1, 0),  # type: ignore[union-attr]
            view_mask=batch.view_mask.roll(1, 0),  # type: ignore[union-attr]
            view_ids=batch.view_ids.roll(1, 0),  # type: ignore[union-attr]
        )
        other = run.model.report_nats(rolled)
    assert result.nats == pytest.approx(float(own.mean()), abs=1e-5)
    assert result.inputs[0].costs["another"].mean == pytest.approx(float((other - own).mean()), abs=1e-5)
    assert result.inputs[0].alone == result.inputs[0].costs["another"], "an only input is alone"
    assert not result.inputs[0].covered


def test_a_source_is_exchanged_before_it_reads_the_image(toy_dataset: Dataset, tmp_path: Path) -> None:
    overrides = [*TOY_OVERRIDES, *TOY_SIZES["diffrgennet"], "stages.report.epochs=1"]
    run = restore(train("diffrgennet", toy_dataset.path, tmp_path / "run", overrides=overrides))
    model = run.model
    batches: list[Any] = []
    real = module.encoded_batches

    def kept(*given: Any) -> Iterator[Any]:
        batches.extend(real(*given))
        yield from batches

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "encoded_batches", kept)
        result = probe(run, toy_dataset.path)
    assert [one.title for one in result.sources] == ["cases -> similar", "changes -> difference"]
    changes = result.sources[1]
    assert changes.drafts is not None
    assert changes.spread is not None
    assert f"| {changes.title} | " in result.table()

    def nats(change: Any = None, reader: Any = None) -> Any:
        def source(name: str, slot: Slot) -> Slot:
            return change(*slot) if change is not None and name == "changes" else slot

        with torch.no_grad(), model.reading_by(reader, source):
            return torch.cat([model.report_nats(batch) for batch in batches])

    def rolled(tokens: Tensor, mask: Tensor) -> Slot:
        return tokens.roll(1, 0), mask.roll(1, 0)

    only = Alone("difference")
    by_hand = {
        "another": nats(rolled) - nats(),
        "none": nats(lambda tokens, mask: (0 * tokens, mask)) - nats(),
        "alone": nats(rolled, only) - nats(None, only),
    }
    assert changes.costs["another"].mean == pytest.approx(float(by_hand["another"].mean()), abs=1e-6)
    assert changes.costs["none"].mean == pytest.approx(float(by_hand["none"].mean()), abs=1e-6)
    assert changes.alone.mean == pytest.approx(float(by_hand["alone"].mean()), abs=1e-6)
    assert changes.alone.mean, "an untrained one is read too"
    text = write_page(result, tmp_path / "page").read_text()
    assert "changes -&gt; difference" in text
    assert "A row with an arrow is the source of an input" in text
    changed = replace(result, at_test=("pool.size=1", "noise=0.5"))
    note = "Not as the run was trained: "
    assert changed.table().startswith(f"{note}pool.size=1 noise=0.5\n")
    assert f"{note}<code>pool.size=1 noise=0.5</code>" in write_page(changed, tmp_path / "changed").read_text()
    assert note not in result.table() + text
    silent = replace(result, sources=(replace(changes, alone=MUTE, costs=dict.fromkeys(EXCHANGES, MUTE)),))
    assert "source changes -> difference" in silent.silent


def test_an_input_that_is_multiplied_by_nothing_is_found(
    toy_run: Path, toy_dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted part: the decoder gets zeros, whatever the image is."""
    real = ForwardPass.decoder_input

    def muted(self: Any, name: str, slot: Slot) -> Slot:
        return real(self, name, (0 * slot[0], torch.ones_like(slot[1])))

    monkeypatch.setattr(ForwardPass, "decoder_input", muted)
    run = restore(toy_run)
    result = probe(run, toy_dataset.path)
    (image,) = result.inputs
    assert image.costs["another"].mean == pytest.approx(0.0, abs=1e-6)
    assert image.drafts is not None
    assert image.drafts.changed == Cost(0.0, 0.0, 0.0)
    assert image.drafts.cider_change == Cost(0.0, 0.0, 0.0)
    assert "input image" in result.silent
    declared = {"image": DecoderInput("tokens", silent="the test says so")}
    monkeypatch.setattr(type(run.model), "inputs", declared)
    assert "input image" not in probe(run, toy_dataset.path, drafts=False).silent
    covered = DecoderInput("tokens", covered_by=("image", "gone"), because="known")
    monkeypatch.setattr(type(run.model), "inputs", {**declared, "memory": covered})
    found = {one.name: one.covered_by for one in probe(run, toy_dataset.path, drafts=False).inputs}
    assert found == {"image": (), "memory": ("image",)}, "by inputs that are there"
    monkeypatch.setattr(type(run.model), "inputs", declared)
    monkeypatch.setattr(type(run.model), "absent_inputs", frozenset({"image"}))
    assert probe(run, toy_dataset.path, drafts=False).inputs == (), "an absent input is not probed"


def test_changes_of_drafts_are_means_over_studies_with_intervals_over_patients(toy_run: Path) -> None:
    """Half of the drafts become another study's: the share, and CIDEr as the corpus scores have it."""
    run = restore(toy_run)
    references = ["The heart is enlarged.", "There is an effusion on the left.", "The lungs are clear.", "No change."]
    examples: Any = [SimpleNamespace(study_id=f"s{n}", report=text) for n, text in enumerate(references)]
    own = [*references[:3], "The heart is normal."]
    after = [references[1], references[0], *own[2:]]
    before, exchanged_drafts = (module._Scored.of(run, examples, texts) for texts in (own, after))
    drafts = before.compared(exchanged_drafts, np.array([0, 1, 2, 2]))
    ids = [one.study_id for one in examples]
    known = dict(zip(ids, references, strict=True))
    ciders = [corpus_scores(dict(zip(ids, texts, strict=True)), known)["CIDEr"] for texts in (own, after)]
    assert drafts.changed.mean == 0.5
    # Of three patients one may be drawn three times: all drafts change, or none.
    assert (drafts.changed.low, drafts.changed.high) == (0.0, 1.0)
    assert drafts.cider == pytest.approx(ciders[1])
    assert drafts.cider_change.mean == pytest.approx(ciders[1] - ciders[0])
    assert drafts.cider_change.low is not None
    assert drafts.cider_change.low < drafts.cider_change.mean < 0


def test_a_position_that_only_one_side_has_is_a_change() -> None:
    tokens = torch.tensor([[[1.0], [4.0]], [[3.0], [0.0]]])
    both, first = torch.tensor([[True, True], [True, True]]), torch.tensor([[True, False], [True, True]])
    spread = 1 + 1 + 4 + 4
    assert module._relative_change({"text": (tokens, both)}, {"text": (tokens, both)}) == 0
    gone = module._relative_change({"text": (tokens, both)}, {"text": (tokens[:, :1], both[:, :1])})
    assert gone == pytest.approx(((4 + 4) / spread) ** 0.5)
    # The second position's mean is that of the one study which has it, 0; the other study's becomes 4.
    come = module._relative_change({"text": (tokens, first)}, {"text": (tokens, both)})
    assert come == pytest.approx((16 / (1 + 1)) ** 0.5)


@pytest.mark.parametrize("where", ["its value", "what it reads"])
def test_a_loss_that_is_detached_is_found(
    vdgen_run: Path, toy_dataset: Dataset, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Without any gradient, or with one that reaches the loss's own projection alone: neither moves the input."""
    run = restore(vdgen_run)
    model: Any = run.model
    plain = probe(run, toy_dataset.path, drafts=False)
    assert {one.name: one.moved > 0 for one in plain.losses}["did"]

    def detached(forward: Any) -> Tensor:
        if where == "its value":
            return model.terms_before["did"].loss(forward).detach()  # type: ignore[no-any-return]
        batch = forward.batch
        return model.did.loss(  # type: ignore[no-any-return]
            forward.views.mean().detach(), model.language_model, batch.input_ids, batch.labels
        )

    model.terms_before = model.terms
    model.terms = {**model.terms, "did": Term(model.terms["did"].reads, detached)}
    result = probe(run, toy_dataset.path, drafts=False)
    (did,) = (one for one in result.losses if one.name == "did")
    assert did.moved == 0.0
    assert (did.gradient > 0) == (where == "what it reads")
    assert "loss report.did" in result.silent


def test_a_method_without_a_decoder_is_refused(toy_dataset: Dataset, tmp_path: Path) -> None:
    folder = train("kernels", toy_dataset.path, tmp_path / "run", overrides=TOY_SIZES["kernels"])
    with pytest.raises(InputError, match="no decoder") as error:
        probe(restore(folder), toy_dataset.path)
    assert "kernels" in str(error.value)
    done = radweave("probe", folder, toy_dataset.path)
    assert done.returncode == 2
    assert "no decoder" in done.stderr


def test_one_study_has_no_other(toy_run: Path, toy_dataset: Dataset) -> None:
    with pytest.raises(InputError, match="fewer than two studies"):
        probe(restore(toy_run), toy_dataset.path, studies=1)


def test_a_last_batch_of_one_study_joins_the_one_before(
    toy_run: Path, toy_dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = restore(toy_run)
    sizes: list[int] = []
    real = run.model.report_nats

    def counted(batch: Any) -> Tensor:
        sizes.append(len(batch))
        return real(batch)

    monkeypatch.setattr(run.model, "report_nats", counted)
    monkeypatch.setattr(module, "BATCH", 5)
    probe(run, toy_dataset.path, drafts=False)
    assert set(sizes) == {6}


def test_the_command_prints_tables_and_writes_a_page(toy_run: Path, toy_dataset: Dataset, tmp_path: Path) -> None:
    out = tmp_path / "page"
    done = radweave("probe", toy_run, toy_dataset.path, "--studies", "5", "--no-drafts", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "| image |" in done.stdout
    assert f"page: {out / 'index.html'}" in done.stdout
    saved = json.loads((out / "probe.json").read_text())
    assert (saved["method"], saved["split"], saved["studies"], saved["f1"]) == ("baseline", "test", 5, None)
    assert ("silent: " in done.stdout) == bool(saved["silent"])
    assert "not for clinical use" in done.stderr.lower() or "research" in done.stderr.lower()
    again = radweave("probe", toy_run, toy_dataset.path, "--studies", "5", "--no-drafts", "--out", out)
    assert again.returncode == 2
    unknown = radweave("probe", toy_run, toy_dataset.path, "--split", "holdout")
    assert unknown.returncode == 2
