"""Frequent and rare classes: counted in the training split, cut into thirds, scored apart."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from radweave.cli import app
from radweave.core.errors import InputError
from radweave.core.study import LabelState, Study
from radweave.data.dataset import Dataset
from radweave.labels import CHEXPERT14, NO_FINDING, get_labeler
from radweave.metrics import Options, Pair, evaluate_pairs
from radweave.metrics.clinical import LabelledPairs
from radweave.metrics.long_tail import ClassFrequencies, class_frequencies, long_tail_table
from radweave.phantom.findings import XRAY_LONG_TAIL
from radweave.phantom.report import write_report
from radweave.phantom.study import PhantomOptions, course_of, slot_of

# Positives fall in the order of the classes: 130, 120, ... 10, and 140 for No Finding.
FALLING = ClassFrequencies(
    {name: 10 * (13 - i) for i, name in enumerate(CHEXPERT14[:13])} | {NO_FINDING: 140}, 200, "x"
)


def study(number: int, labels: dict[str, LabelState] | None, report: str = "No effusion.") -> Study:
    return Study(
        study_id=f"s{number}",
        patient_id=f"p{number}",
        split="train",
        report=report,
        labels={} if labels is None else {"chexpert14": labels},
    )


def test_thirds_are_ordered_by_frequency_without_no_finding() -> None:
    groups = FALLING.groups()
    assert groups == {"head": CHEXPERT14[:5], "middle": CHEXPERT14[5:9], "tail": CHEXPERT14[9:13]}
    shares = FALLING.to_json()["classes"]
    assert list(shares)[:2] == [NO_FINDING, CHEXPERT14[0]]
    assert shares[NO_FINDING] == {"positives": 140, "share": 0.7}


def test_positives_are_counted_once_per_study_from_labels_or_the_report() -> None:
    labeler = get_labeler("chexpert14")
    studies = [
        study(0, {"Edema": LabelState.POSITIVE, "Fracture": LabelState.UNCERTAIN}, "There is a pneumothorax."),
        study(1, {"Edema": LabelState.POSITIVE, "Pneumonia": LabelState.NEGATIVE}),
        study(2, None, "There is a large left pleural effusion. The heart is normal. Possible pneumonia."),
    ]
    counted = class_frequencies(studies, labeler)
    assert counted.studies == 3
    assert {name: count for name, count in counted.positives.items() if count} == {"Edema": 2, "Pleural Effusion": 1}
    assert counted.source.startswith("labels of 2 studies")


@pytest.mark.parametrize("split", ["test", "val", None])
def test_only_the_training_split_is_counted(split: str | None) -> None:
    labeler = get_labeler("chexpert14")
    leak = study(0, None).model_copy(update={"split": split})
    with pytest.raises(InputError, match="training split"):
        class_frequencies([study(1, None), leak], labeler)
    with pytest.raises(InputError, match="no training study"):
        class_frequencies([], labeler)


def test_scores_of_a_third_equal_loops_over_its_classes() -> None:
    draw = np.random.default_rng(3)
    hyp, ref = (draw.integers(0, 4, size=(40, 14)).astype(np.int8) for _ in range(2))
    labelled = LabelledPairs(CHEXPERT14, hyp, ref, "words 1", "test")
    table = long_tail_table(labelled, FALLING, np.arange(40), resamples=50, seed=0)
    for policy, positive in (("uncertain_as_negative", (1,)), ("uncertain_as_positive", (1, 3))):
        for group, names in FALLING.groups().items():
            f1s, pooled = [], np.zeros(3)
            for name in names:
                column = CHEXPERT14.index(name)
                tp = fp = fn = 0
                for predicted, true in zip(hyp[:, column], ref[:, column], strict=True):
                    tp += predicted in positive and true in positive
                    fp += predicted in positive and true not in positive
                    fn += predicted not in positive and true in positive
                f1s.append(2 * tp / (2 * tp + fp + fn))
                pooled += (tp, fp, fn)
            actual = table.policies[policy][group]
            assert actual["macro"].f1.value == pytest.approx(np.mean(f1s))
            assert actual["micro"].precision.value == pytest.approx(pooled[0] / (pooled[0] + pooled[1]))
            low, high = actual["macro"].f1.bounds
            assert low < actual["macro"].f1.value < high


def test_a_system_that_only_knows_the_head_shows_it() -> None:
    frequencies = ClassFrequencies(
        {name: 100 if name == "Pleural Effusion" else 5 for name in CHEXPERT14} | {"Fracture": 1}, 200, "x"
    )
    effusion, fracture = "There is a left pleural effusion.", "There is a rib fracture."
    pairs = [Pair(f"a{i}", effusion, (effusion,)) for i in range(3)]
    pairs += [Pair(f"b{i}", "The heart is normal.", (fracture,)) for i in range(3)]
    options = Options(meteor=False, floors=False, resamples=0)
    result = evaluate_pairs(
        pairs, labeler=get_labeler("chexpert14"), frequencies=frequencies, options=options
    ).to_json()
    groups = result["long_tail"]["policies"]["uncertain_as_negative"]
    assert groups["head"]["micro"]["recall"]["value"] == 1.0
    assert groups["tail"]["micro"]["recall"]["value"] == 0.0
    assert groups["head"]["micro"]["recall"]["interval"] is None
    drawn = Options(meteor=False, floors=False, resamples=20)
    evaluation = evaluate_pairs(
        pairs, labeler=get_labeler("chexpert14"), frequencies=frequencies, options=drawn
    ).long_tail
    assert evaluation.policies["uncertain_as_negative"]["head"]["micro"].recall.bounds == (1.0, 1.0)
    assert "long_tail" not in evaluate_pairs(pairs, labeler=get_labeler("chexpert14"), options=options).to_json()


def test_frequencies_of_another_label_set_are_refused() -> None:
    with pytest.raises(InputError, match="other classes"):
        evaluate_pairs(
            [Pair("a", "Clear lungs.", ("Clear lungs.",))],
            labeler=get_labeler("ct18"),
            frequencies=FALLING,
            options=Options(meteor=False, floors=False, resamples=0),
        )


def test_the_command_shows_the_thirds(toy_dataset: Dataset, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(
        "\n".join(
            json.dumps({"study_id": f"s{i}", "hyp": "There is an opacity on the left.", "ref": "There is an opacity."})
            for i in range(3)
        )
    )
    command = ["evaluate", str(pairs), "--no-meteor", "--resamples", "0", "--train-labels", str(toy_dataset.path)]
    shown = CliRunner().invoke(app, [*command, "--all"])
    assert shown.exit_code == 0, shown.output
    assert "Frequent and rare classes" in shown.output
    assert "12 (100.0 %)" in shown.output, "all twelve training studies of the toy set have an opacity"
    printed = CliRunner().invoke(app, [*command, "--json"])
    assert json.loads(printed.output)["long_tail"]["training"]["studies"] == 12
    assert isinstance(CliRunner().invoke(app, [*command, "--ontology", "none"]).exception, InputError)


def test_the_phantom_has_a_long_tail_by_default() -> None:
    """Its frequencies follow the table they are drawn from; "balanced" has no tail."""
    counts = {}
    for prevalence in ("long-tail", "balanced"):
        training = []
        for index in range(600):
            slot = slot_of(0, index)
            _, findings = course_of(0, slot, prevalence)  # type: ignore[arg-type]
            written = write_report(findings, np.random.default_rng(index), has_prior=slot.visit > 0)
            training.append(study(index, written.labels))
        counts[prevalence] = class_frequencies(training, get_labeler("chexpert14"))
    assert PhantomOptions().prevalence == "long-tail"
    tailed, balanced = counts["long-tail"], counts["balanced"]
    assert tailed.source == "labels of 600 studies"
    expected = sorted(XRAY_LONG_TAIL, key=lambda name: -XRAY_LONG_TAIL[name])
    groups = tailed.groups()
    assert set(groups["head"]) & set(expected[-4:]) == set()
    assert set(groups["tail"]) & set(expected[:5]) == set()

    def ratio(counted: ClassFrequencies) -> float:
        actual = counted.groups()
        head, tail = (sum(counted.positives[name] for name in actual[group]) for group in ("head", "tail"))
        return head / max(1, tail)

    assert ratio(tailed) > 3 * ratio(balanced)
