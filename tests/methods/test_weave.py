"""weave: folds that hold, a stack in closed terms, sources that can be absent, drafts that do not depend on company."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from radweave.core.batch import Batch
from radweave.core.config import override
from radweave.core.errors import InputError
from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.data.loader import Example, collate
from radweave.drafting.calibration import PlattCalibration
from radweave.drafting.candidates import Candidate
from radweave.drafting.choice import Choice
from radweave.drafting.prior import PriorCalibration
from radweave.drafting.smoothers import Evidence
from radweave.drafting.writer import Proposals
from radweave.engine.prepare import prepare
from radweave.engine.restore import Run, restore
from radweave.engine.train import train
from radweave.inference.explain import explain_study
from radweave.inference.export import export
from radweave.inference.predictor import Predictor
from radweave.labels.comparisons import compares_with_prior
from radweave.methods import load_method, resolve
from radweave.methods.experiment import BuildContext
from radweave.methods.weave import SILENT
from radweave.methods.weave import stack as stack_module
from radweave.methods.weave.members import Folds, cross_fitted, mean_of_members, unbiased_members, votes_of
from radweave.methods.weave.model import KINDS, LEARNED, SOURCES, WeaveModel, equal_weights, score_sources
from radweave.methods.weave.stack import (
    EqualWeightsConfig,
    FittedStack,
    OutOfFold,
    Stack,
    StackConfig,
    as_log_odds,
    cross_fitted_log_odds,
    stacks_without,
)
from radweave.nn.decoding import DecodingConfig
from radweave.workstation.inference import PRIOR_UNREPORTED, InferenceModel
from tests.command_line import radweave
from tests.toys import TOY_CT_OVERRIDES, TOY_OVERRIDES, TOY_SIZES, write_followed_dataset

OVERRIDES = [*TOY_OVERRIDES, *TOY_SIZES["weave"], "stages.report.epochs=1"]


@pytest.fixture(scope="module")
def run(toy_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return restore(train("weave", toy_dataset.path, tmp_path_factory.mktemp("weave") / "run", overrides=OVERRIDES))


@pytest.fixture(scope="module")
def model(run: Run) -> WeaveModel:
    assert isinstance(run.model, WeaveModel)
    return run.model


@pytest.fixture(scope="module")
def followed_dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Patients who come twice; their second reports compare with the first."""
    return write_followed_dataset(tmp_path_factory.mktemp("followed") / "data")


@pytest.fixture(scope="module")
def followed(followed_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that has learned of priors from eight pairs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("radweave.engine.save_drafting.FEWEST", 5)
        out = tmp_path_factory.mktemp("followed") / "run"
        return restore(train("weave", followed_dataset.path, out, overrides=OVERRIDES))


def examples_of(run: Run, dataset: Dataset, split: Any = "train") -> list[Example]:
    cache = build_cache(dataset, size=run.experiment.data.image_size)
    return prepare(dataset, split, run.experiment, run.tokenizer, cache, need_text=False).examples_with_priors


def observed(**changes: Any) -> OutOfFold:
    """Twelve studies of six patients, two sources, three classes."""
    rng = np.random.default_rng(0)
    folds = np.repeat([0, 1, 0, 1, 1, 0], 2)
    values: dict[str, Any] = {
        "scores": rng.normal(size=(12, 2, 3)),
        "labels": (rng.random((12, 3)) < 0.5).astype(float),
        "folds": folds,
        "withheld": folds,
        "patients": [f"p{row // 2}" for row in range(12)],
    }
    return OutOfFold(**values | changes)


def test_folds_are_by_patient_and_seed_and_the_same_in_every_process() -> None:
    names = [f"p{number}" for number in range(400)]
    folds = Folds(4, seed=1)
    assert folds.of(names).tolist() == folds.of(names).tolist()
    assert folds.of(["p7", "p7", "p8"]).tolist()[:2] == [int(folds.of(["p7"]))] * 2
    assert Folds(4, seed=1).of(names[:8]).tolist() == [2, 1, 3, 3, 3, 2, 2, 3], "as any process finds them"
    assert Folds(4, seed=2).of(names).tolist() != folds.of(names).tolist()
    assert np.bincount(folds.of(names).numpy(), minlength=4).min() > 70


def test_a_member_never_sees_its_own_fold_in_training() -> None:
    batch = Batch([f"s{row}" for row in range(5)], [f"p{row}" for row in range(5)])
    queried: dict[int, list[str]] = {}

    def of(number: int, some: Batch) -> torch.Tensor:
        queried[number] = some.patient_ids
        return torch.zeros(())

    parts = [torch.nn.Linear(1, 1) for _ in range(3)]
    cross_fitted(batch, torch.tensor([0, 1, 2, 1, 0]), parts, of)
    assert queried == {0: ["p1", "p2", "p3"], 1: ["p0", "p2", "p4"], 2: ["p0", "p1", "p3", "p4"]}
    cross_fitted(batch, None, parts, of)
    assert all(len(names) == 5 for names in queried.values()), "validation studies are nobody's fold"


def test_a_member_that_sees_none_of_a_batch_gets_a_gradient_of_zero() -> None:
    parts = [torch.nn.Linear(1, 1) for _ in range(2)]
    batch = Batch(["s0"], ["p0"])
    cross_fitted(batch, torch.tensor([0]), parts, lambda number, some: parts[number].weight.sum()).backward()
    assert float(parts[0].weight.grad) == 0
    assert float(parts[1].weight.grad) == 1


def test_new_studies_query_all_members_and_training_patients_one() -> None:
    barred = np.array([[False, False, False], [False, True, False]])
    queried = unbiased_members(barred, torch.tensor([0, 2, 1]), 3)
    assert queried.tolist() == [[True, True, True], [False, False, True]]


def test_the_full_member_counts_as_much_as_those_of_the_folds_together() -> None:
    queried = torch.tensor([[True, True, True, True], [False, True, False, False]])
    counted = votes_of(queried, 3)
    assert counted.tolist() == [[1, 1, 1, 3], [0, 1, 0, 0]]
    logits = torch.tensor([3.0, 6.0, 9.0, 12.0])[:, None, None].expand(4, 2, 1)
    assert mean_of_members(logits, counted).flatten().tolist() == [9.0, 6.0]
    assert votes_of(queried[:, :3], 3).tolist() == [[1, 1, 1], [0, 1, 0]], "without one each member counts once"


@pytest.mark.long
def test_scores_of_a_training_study_do_not_depend_on_its_own_labels(
    run: Run, toy_dataset: Dataset, tmp_path: Path
) -> None:
    """Its members, their heads and what they remember never saw it: the same, bit for bit, whatever its labels say."""
    evidences = {}
    # All members share one norm of the gradient, which every label changes; it does not bind here.
    free = [f"stages.{name}.optimizer.max_grad_norm=1e9" for name in ("encoder", "sources")]
    for name, flipped in (("as it is", False), ("flipped", True)):
        folder = tmp_path / name
        changed = copied(toy_dataset, folder, flip_first=flipped)
        trained = restore(train("weave", folder, tmp_path / f"run {name}", overrides=[*OVERRIDES, *free]))
        example = examples_of(trained, changed)[0]
        assert isinstance(trained.model, WeaveModel)
        evidences[name] = raw_scores(trained.model, example)
    kernels = SOURCES.index("kernels")
    learned = [number for number in range(len(SOURCES)) if number != kernels]
    assert np.array_equal(evidences["as it is"][learned], evidences["flipped"][learned])
    assert evidences["as it is"][kernels] == pytest.approx(evidences["flipped"][kernels], abs=1e-9), (
        "left out in closed form"
    )


def raw_scores(model: WeaveModel, example: Example) -> np.ndarray[Any, Any]:
    assert model.memory is not None
    (one,) = score_sources(model, model.memory, collate([example], pad_id=0))
    return one.scores


def copied(dataset: Dataset, folder: Path, *, flip_first: bool) -> Dataset:
    """The data set anew, in which all findings of the first training patient are said the other way round if asked."""
    import shutil

    shutil.copytree(dataset.path, folder, ignore=shutil.ignore_patterns(".cache"))
    if flip_first:
        patient = next(iter(dataset.studies("train"))).patient_id
        path = folder / "manifest.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        other = {"positive": "negative", "negative": "positive", "uncertain": "positive", "blank": "positive"}
        for row in rows:
            if row.get("patient_id") == patient:
                for states in row["labels"].values():
                    states |= {name: other[state] for name, state in states.items()}
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Dataset.open(folder)


def test_a_planted_leak_is_refused() -> None:
    observed()
    with pytest.raises(InputError, match="trained on"):
        observed(withheld=np.roll(observed().folds, 1))
    with pytest.raises(InputError, match="training split alone"):
        observed(split="val")
    torn = observed().folds.copy()
    torn[1] = 1 - torn[1]
    with pytest.raises(InputError, match="two folds"):
        observed(folds=torn, withheld=torn)


def test_the_stack_refuses_a_fold_that_its_scores_are_not_of(
    run: Run, toy_dataset: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A fault in who is asked must not pass: here every member is asked of what it was trained on."""
    from radweave.methods.weave import model as evidence

    honest = evidence.withheld_of
    monkeypatch.setattr(evidence, "withheld_of", lambda queried: (honest(queried) + 1) % 2)
    with pytest.raises(InputError, match="trained on"):
        train("weave", toy_dataset.path, tmp_path / "run", overrides=OVERRIDES)
    assert not (tmp_path / "run" / "run.json").exists()


def test_source_weights_are_never_negative_and_equal_for_rare_classes() -> None:
    rng = np.random.default_rng(2)
    labels = (rng.random((400, 3)) < 0.3).astype(float)
    labels[:, 2] = 0
    labels[:3, 2] = 1
    log_odds = np.stack([labels * 2 - 1 + rng.normal(size=(400, 3)), -labels + rng.normal(size=(400, 3))], axis=1)
    weights = StackConfig(deviation=1.0).weights(log_odds, labels)
    assert weights[1, :2].tolist() == [0, 0]
    assert (weights[0, :2] > 0.5).all()
    assert weights[:, 2].tolist() == [0.5, 0.5], "three positives are too few"
    assert StackConfig(deviation=1e-4).weights(log_odds, labels) == pytest.approx(0.5, abs=1e-3), "drawn to equal ones"


def test_equal_weights_are_the_curve_of_the_mean() -> None:
    held = observed(labels=np.tile([[0.0], [1.0]], (6, 3)))
    stack = FittedStack.fit(held.scores, held.labels, ["log_odds", "log_odds"], EqualWeightsConfig())
    mean = stack.log_odds(held.scores).mean(axis=1)
    curve = PlattCalibration.of_log_odds(mean, held.labels)
    assert stack(held.scores) == pytest.approx(mean * curve.slope + curve.offset)


def test_smoothed_labels_become_log_odds_within_bounds() -> None:
    assert as_log_odds(np.array([-0.3, 0.5, 1.2]), "smoothed") == pytest.approx([np.log(0.002 / 0.998), 0, np.log(99)])
    assert as_log_odds(np.array([-3.0]), "log_odds").tolist() == [-3.0]


def test_a_study_s_stacked_score_is_of_a_stack_that_was_fitted_without_its_fold() -> None:
    held = observed()
    flipped = observed(labels=np.where(held.folds[:, None] == 0, 1 - held.labels, held.labels))
    kinds = ["log_odds", "smoothed"]
    one, other = (
        cross_fitted_log_odds(each, stacks_without(each, kinds, StackConfig()))  # type: ignore[arg-type]
        for each in (held, flipped)
    )
    assert np.array_equal(one[held.folds == 0], other[held.folds == 0])
    assert not np.array_equal(one[held.folds == 1], other[held.folds == 1])


def test_reports_weigh_the_same_where_no_source_words() -> None:
    assert equal_weights(np.array([False, False, True])).tolist() == [0.5, 0.5, 0.0]
    assert equal_weights(np.array([True])).tolist() == [0.0]


@pytest.mark.long
def test_evidence_and_drafts_do_not_depend_on_the_batch(run: Run, model: WeaveModel, toy_dataset: Dataset) -> None:
    examples = examples_of(run, toy_dataset, "val")[:4]
    together = collate(examples, pad_id=0)
    evidences = model.evidence_for(together)
    proposed = model.propose(together, evidences, run.experiment.decoding)
    for row, example in enumerate(examples):
        batch = collate([example], pad_id=0)
        (alone,) = model.evidence_for(batch)
        assert np.array_equal(alone.scores, evidences[row].scores)
        assert np.array_equal(alone.weights, evidences[row].weights)
        assert model.propose(batch, [alone], run.experiment.decoding) == [proposed[row]]
    reports = list(Predictor.of(run).reports(examples))
    for example, report in zip(examples, reports, strict=True):
        (alone_report,) = Predictor.of(run).reports([example])
        assert (alone_report.text, alone_report.evidence) == (report.text, report.evidence)


def test_weights_are_kept_in_the_run_and_shown_with_every_draft(
    run: Run, model: WeaveModel, toy_dataset: Dataset
) -> None:
    weights = load_file(run.folder / "weights.safetensors")
    assert weights["stack.weights"].shape == (len(SOURCES), len(model.classes))
    assert bool(weights["stack.fitted"])
    (report,) = Predictor.of(run).reports(examples_of(run, toy_dataset, "val")[:1])
    shown = report.evidence["sources"]
    assert list(shown) == list(model.classes)
    for number, name in enumerate(model.sources):
        assert shown[model.classes[0]][name]["weight"] == pytest.approx(
            float(weights["stack.weights"][number, 0]), rel=1e-3
        )
    assert report.evidence["calibration"]["split"] == "train"


@pytest.mark.parametrize("silent", SILENT)
def test_a_source_that_is_absent_has_no_part_in_the_stack(silent: str) -> None:
    experiment = resolve("weave", "tiny", [*OVERRIDES, SILENT[silent]])
    assert experiment.model.sources == tuple(name for name in SOURCES if name != silent)  # type: ignore[attr-defined]


def test_a_run_without_any_source_is_refused() -> None:
    with pytest.raises(InputError, match="no source is left"):
        resolve("weave", "tiny", [*OVERRIDES, *SILENT.values()])


def test_a_stage_that_trains_five_members_at_once_clips_their_gradients_together() -> None:
    """Five independent gradients have 2.2 times the norm of one."""
    one = resolve("dast", "tiny", []).stages.encoder.optimizer.max_grad_norm  # type: ignore[attr-defined]
    stages = resolve("weave", "tiny", []).stages
    assert (stages.encoder.optimizer.max_grad_norm, stages.sources.optimizer.max_grad_norm) == (2.2 * one, 2.2 * one)  # type: ignore[attr-defined]
    assert stages.report.optimizer.max_grad_norm == one  # type: ignore[attr-defined]


def test_the_full_member_trains_on_every_fold_and_serves_new_patients_only(model: WeaveModel) -> None:
    assert (len(model.encoder), model.folds.number) == (3, 2), "two folds, and a member more"
    trained_on: dict[int, list[str]] = {}

    def of(number: int, some: Batch) -> torch.Tensor:
        trained_on[number] = some.patient_ids
        return torch.zeros(())

    cross_fitted(Batch(["s0", "s1"], ["p0", "p1"]), torch.tensor([0, 1]), list(model.encoder.each), of)
    assert trained_on == {0: ["p1"], 1: ["p0"], 2: ["p0", "p1"]}
    barred = np.array([[False, False], [False, True]])
    queried = unbiased_members(barred, torch.tensor([0, 1]), len(model.encoder))
    assert queried.tolist() == [[True, True, True], [False, True, False]]


def test_scans_have_no_descriptors_and_the_preset_for_them_says_so() -> None:
    assert resolve("weave", "tiny-ct", []).model.sources == tuple(name for name in SOURCES if name != "kernels")  # type: ignore[attr-defined]
    scans = resolve("weave", "tiny-ct", [*TOY_CT_SIZES, "model.kernels=descriptors"])
    with pytest.raises(InputError, match="descriptors are of radiographs"):
        scans.model.build(toy_context(scans))


TOY_CT_SIZES = [
    option
    for option in (*TOY_CT_OVERRIDES, *TOY_SIZES["weave"], "stages.report.epochs=1")
    if not option.startswith("model.vision_encoder.") or option.split("=")[0].endswith((".widths", ".start"))
]


def toy_context(experiment: Any) -> BuildContext:
    from radweave.core.ontology import CLASSES

    tokenizer = experiment.data.tokenizer.build(["There is an opacity.", "No opacity."] * 4)
    data = experiment.data
    return BuildContext(tokenizer, data.image_size, CLASSES[data.label_set], volume_size=data.ct.size)


def test_a_run_on_scans_drafts(toy_ct_dataset: Dataset, tmp_path: Path) -> None:
    run = restore(
        train(
            "weave", toy_ct_dataset.path, tmp_path / "run", preset="tiny-ct", overrides=[*TOY_CT_SIZES, "data.limit=8"]
        )
    )
    images = [toy_ct_dataset.image_path(ref.path) for ref in next(iter(toy_ct_dataset.studies("test"))).images]
    report = Predictor.of(run).report(images)
    assert report.text
    assert "kernels" not in next(iter(report.evidence["sources"].values()))


def test_without_drawn_reports_a_language_model_proposes_its_likeliest(run: Run, toy_dataset: Dataset) -> None:
    model, decoding = run.model, run.experiment.decoding
    assert isinstance(model, WeaveModel)
    batch = collate(examples_of(run, toy_dataset, "test")[:2], pad_id=0)
    evidences = model.evidence_for(batch)
    several = model.propose(batch, evidences, decoding)
    for cache in ("static", "growing"):
        alone = override(decoding, [f"cache={cache}", "expected_utility.samples=0"])
        assert model.propose(batch, evidences, alone) == [row[:1] for row in several]


def test_drafts_by_utility_need_a_memory_to_draft_from() -> None:
    gone = [f"model.{name}=none" for name in ("memory", "kernels")]
    with pytest.raises(InputError, match=r"model\.memory is none"):
        resolve("weave", "tiny", gone)
    assert resolve("weave", "tiny", [*gone, "decoding.kind=likelihood"]).decoding.kind == "likelihood"


def test_an_export_without_studies_scores_by_its_parametric_sources(
    run: Run, toy_dataset: Dataset, tmp_path: Path
) -> None:
    bare = restore(export(run.folder, tmp_path / "bare", bank=False))
    (report,) = Predictor.of(bare).reports(examples_of(bare, toy_dataset, "test")[:1])
    for sources in report.evidence["sources"].values():
        assert {*sources} == {"dense", "tokens"}


def test_without_a_language_model_every_sentence_is_of_a_training_report(
    followed: Run, followed_dataset: Dataset
) -> None:
    first = examples_of(followed, followed_dataset, "val")[:1]
    (report,) = Predictor.of(followed, decoding=["expected_utility.written=false"]).reports(first)
    assert all(row["source"]["study_id"] for row in report.evidence["sentences"])


def test_a_study_with_a_prior_is_compared_and_without_it_is_as_if_there_were_none(
    followed: Run, followed_dataset: Dataset
) -> None:
    examples = examples_of(followed, followed_dataset, "test")
    later = next(example for example in examples if example.prior is not None)
    alone = replace(later, prior=None)
    (one,), (other,) = (Predictor.of(followed).reports([example]) for example in (later, alone))
    told_nothing = replace(Predictor.of(followed, decoding=["expected_utility.prior=none"]), options=())
    (untold,) = told_nothing.reports([later])
    states = {name: value for name, value in one.evidence["changes"]["Lung Opacity"].items() if name != "before"}
    assert sum(states.values()) == pytest.approx(1.0, abs=1e-3)  # type: ignore[arg-type]
    assert one.evidence["changes"]["Lung Opacity"]["before"] in ("affirmed", "not affirmed")
    assert one.evidence["sources"] == other.evidence["sources"], "its own evidence is the same"
    assert one.evidence["class_probabilities"] != other.evidence["class_probabilities"]
    assert "changes" not in other.evidence
    assert (untold.text, untold.evidence) == (other.text, other.evidence)
    together = list(Predictor.of(followed).reports(examples))
    for example, report in zip(examples, together, strict=True):
        (by_itself,) = Predictor.of(followed).reports([example])
        assert (by_itself.text, by_itself.evidence) == (report.text, report.evidence)


def test_comparisons_of_the_language_model_are_dropped_without_a_prior(
    followed: Run, followed_dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "The heart is normal. There is an opacity, which has increased since the prior study."
    held = list[str]()

    def best(self: Proposals, draft: Choice, others: Sequence[Candidate], *inputs: object, **more: object) -> Choice:
        held.extend(one.text for one in others)
        return draft

    monkeypatch.setattr(WeaveModel, "propose", lambda self, batch, evidences, decoding: [[text]] * len(evidences))
    monkeypatch.setattr(Proposals, "best", best)
    example = next(one for one in examples_of(followed, followed_dataset, "test") if one.prior is not None)

    def compares(*decoding: str) -> bool:
        held.clear()
        list(Predictor.of(followed, decoding=decoding).reports([example]))
        (evidences, *_) = held
        return compares_with_prior(evidences)

    assert compares()
    assert not compares("expected_utility.prior=none")


def test_a_milder_prior_gives_worse_now_and_no_prior_gives_no_change(
    followed: Run, followed_dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    classes = list(followed.card.classes)

    def states(self: PriorCalibration, *_: object) -> np.ndarray[Any, Any]:
        result = np.zeros((len(classes), 6))
        result[..., 0] = 1.0
        result[classes.index("Lung Opacity")] = [0.0, 0.0, 0.95, 0.05, 0.0, 0.0]
        return result

    monkeypatch.setattr(PriorCalibration, "states", states)
    later = next(one for one in examples_of(followed, followed_dataset, "test") if one.prior is not None)
    predictor = Predictor.of(followed, decoding=["expected_utility.findings=30"])
    (with_prior,) = predictor.reports([later])
    assert "larger than before" in with_prior.text
    assert with_prior.evidence["expected_utility"]["compared"] == [["Lung Opacity", "worse"]]
    (without,) = predictor.reports([replace(later, prior=None)])
    assert not compares_with_prior(without.text)
    assert "compared" not in without.evidence["expected_utility"]


def test_a_prior_of_another_patient_changes_nothing(followed: Run, followed_dataset: Dataset, tmp_path: Path) -> None:
    """The data set's way lets none through, and one that comes another way is refused."""
    torn = write_followed_dataset(tmp_path / "data", prior_of="another")
    own, others = (examples_of(followed, dataset, "test") for dataset in (followed_dataset, torn))
    assert any(example.prior is not None for example in own)
    assert all(example.prior is None for example in others)
    plain = [replace(example, prior=None) for example in own]
    drafts = [[report.text for report in Predictor.of(followed).reports(some)] for some in (plain, others)]
    assert drafts[0] == drafts[1]
    outsider = replace(plain[0], prior=replace(plain[-1], patient_id="p999"))
    with pytest.raises(InputError, match="another patient"):
        list(Predictor.of(followed).reports([outsider]))


def test_the_page_of_a_draft_shows_what_changed_and_what_each_source_adds(
    followed: Run, followed_dataset: Dataset, tmp_path: Path
) -> None:
    predictor, folder = Predictor.of(followed), followed_dataset.path
    later = explain_study(followed, predictor, folder, "s10_1", tmp_path / "later").read_text()
    first = explain_study(followed, predictor, folder, "s10_0", tmp_path / "first").read_text()
    assert "What changed since the prior" in later
    assert "What changed since the prior" not in first
    for state in ("new", "worse", "unchanged", "improved", "resolved"):
        assert f'<th scope="col">{state}</th>' in later
    assert '<th scope="row">adds</th>' in first


def test_inspect_shows_the_gain_of_each_source(followed: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(followed.card.sources) == set(SOURCES)
    for figures in followed.card.sources.values():
        assert 0 <= figures["together"] <= 1  # type: ignore[operator]
        assert 0 <= figures["together_without"] <= 1  # type: ignore[operator]
    done = radweave("inspect", followed.folder)
    assert "source kernels: " in done.stdout
    assert "run (weave, tiny, seed 0)" in done.stdout
    assert json.loads(radweave("inspect", "--json", followed.folder).stdout)[0]["sources"] == followed.card.sources


def test_the_gain_of_a_source_is_a_difference_of_precision_out_of_fold() -> None:
    """One source knows the first class, the other nothing: without the first all is lost, without the other nothing."""
    rng = np.random.default_rng(5)
    labels = (rng.random((200, 2)) < 0.3).astype(float)
    scores = np.stack([2 * labels + rng.normal(size=(200, 2)), rng.normal(size=(200, 2))], axis=1)
    folds = np.arange(200) % 2
    held = observed(
        scores=scores, labels=labels, folds=folds, withheld=folds, patients=[f"p{row}" for row in range(200)]
    )
    stack = Stack({"one": "log_odds", "other": "log_odds"}, ("one", "other"), 2)
    counted = np.ones(2, dtype=bool)
    _, stacks = stack.fit(held, StackConfig(), counted)
    stack.ask_what_each_adds(held, stacks, StackConfig(), counted)
    added = stack.added(("one", "other"))
    assert added["one"]["together"] == added["other"]["together"]
    assert added["one"]["together"] - added["one"]["together_without"] > 0.3  # type: ignore[operator]
    assert abs(added["other"]["together"] - added["other"]["together_without"]) < 0.05  # type: ignore[operator]
    only = FittedStack.fit(scores[folds == 1][:, :1], labels[folds == 1], ["log_odds"], StackConfig())
    rest = stacks[0].without(1, scores[folds == 1], labels[folds == 1], StackConfig())
    assert rest(scores[:, :1]) == pytest.approx(only(scores[:, :1])), "as if the other had never been there"


def test_no_study_is_scored_by_a_stack_fitted_on_its_label(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither with all sources nor without one of them: other labels in a fold change nothing that is said of it."""
    rng = np.random.default_rng(6)
    labels, folds = (rng.random((120, 2)) < 0.4).astype(float), np.arange(120) % 3
    scores = rng.normal(size=(120, 3, 2)) + labels[:, None] * np.array([2.0, 1.0, 0.0])[:, None]
    patients = [f"p{row}" for row in range(120)]
    counted = np.ones(2, dtype=bool)
    evidences: list[Any] = []
    real = stack_module._precisions

    def noted(log_odds: Any, *rest: Any) -> tuple[float, float]:
        evidences.append(log_odds)
        return real(log_odds, *rest)

    monkeypatch.setattr(stack_module, "_precisions", noted)

    def queried(of: Any) -> list[Any]:
        held = observed(scores=scores, labels=of, folds=folds, withheld=folds, patients=patients)
        evidences.clear()
        stacks = stack_module.stacks_without(held, ["log_odds"] * 3, StackConfig(deviation=1.0))
        stack_module.precisions_without(held, stacks, StackConfig(deviation=1.0), counted)
        return list(evidences)

    before = queried(labels)
    assert len(before) == 1 + 3
    for fold in range(3):
        own = folds == fold
        after = queried(np.where(own[:, None], 1 - labels, labels))
        for one, other in zip(before, after, strict=True):
            np.testing.assert_array_equal(one[own], other[own])
            assert np.abs(one[~own] - other[~own]).max() > 0.1


def test_the_language_model_is_optional_in_drafting(
    run: Run, toy_dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = examples_of(run, toy_dataset, "val")[0]
    queried: list[int] = []

    def propose(
        self: WeaveModel, batch: Batch, evidences: Sequence[Evidence], decoding: DecodingConfig
    ) -> list[list[str]]:
        queried.append(len(evidences))
        return [["The heart is normal."]] * len(evidences)

    monkeypatch.setattr(WeaveModel, "propose", propose)
    (plain,) = Predictor.of(run, decoding=["expected_utility.written=false"]).reports([example])
    assert not queried
    assert all(row["source"]["study_id"] for row in plain.evidence["sentences"])
    (_,) = Predictor.of(run).reports([example])
    assert queried == [1]


def test_kinds_are_known_for_every_source_and_every_ablation_row_silences_one() -> None:
    assert tuple(KINDS) == SOURCES
    assert set(SILENT) == set(SOURCES)
    assert set(LEARNED) < set(SOURCES)
    rows: Sequence[str] = list(load_method("weave").ABLATIONS)
    assert {f"{name} alone" for name in SILENT} | {f"w/o {name}" for name in SILENT} <= set(rows)
    assert {"w/o stack", "w/o drafting", "w/o language model", "told no prior"} <= set(rows)


def test_a_report_has_no_weight_for_its_own_study(run: Run, model: WeaveModel, toy_dataset: Dataset) -> None:
    example = examples_of(run, toy_dataset)[0]
    (own,) = model.evidence_for(collate([example], pad_id=0))
    assert own.weights[0] == 0
    (outsider,) = model.evidence_for(collate([replace(example, study_id="file", patient_id="file")], pad_id=0))
    assert outsider.weights[0] != 0


def test_a_prior_that_an_archive_had_is_compared_with_its_signed_report(
    followed: Run, followed_dataset: Dataset
) -> None:
    """The workstation's way to a model: files that came in, and those of the patient's study before."""
    inference = InferenceModel(followed.folder, None, untrained=False)
    inference.predictor = replace(inference.predictor, ood=None)
    now, then = (str(followed_dataset.path / f"images/10_{visit}.png") for visit in (1, 0))
    reports = ("There is an opacity on the left.", "The lungs are clear.", None)
    priors = [None, *({"files": [then], "report": report, "days": 9} for report in reports)]
    jobs = [{"id": f"j{n}", "files": [now], "dataset_study": None, "prior": prior} for n, prior in enumerate(priors)]
    answers = list(inference.answers(jobs))
    assert [answer["kind"] for answer in answers] == ["drafted"] * len(jobs)
    shown = [answer["evidence"].get("changes") for answer in answers]
    assert shown[0] is None
    evidences = [changes["Lung Opacity"] for changes in shown[1:]]
    assert [one["before"] for one in evidences[:2]] == ["affirmed", "not affirmed"]
    assert evidences[0] != evidences[1] != evidences[2] != evidences[0]
    assert [PRIOR_UNREPORTED in answer["warnings"] for answer in answers] == [False, False, False, True]
