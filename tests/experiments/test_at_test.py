"""Rows that train nothing: a trained run reports again with other references, by other draws, or on other data."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from torch import nn

from radweave.core.errors import InputError
from radweave.core.json_files import read_json, read_jsonl
from radweave.core.storage import sha256_folder
from radweave.data.dataset import Dataset
from radweave.engine.restore import restore, vary
from radweave.experiments import one_run
from radweave.experiments.ablate import AblationRequest, make_plan, run_ablation
from radweave.inference.bulk import generate_split
from radweave.inference.predictor import Predictor
from radweave.methods.diffvp.model import DiffvpModel
from radweave.methods.diffvp.pool import PoolConfig
from radweave.methods.tables import Row, Table
from tests.toys import ROOT, TOY_OVERRIDES, TOY_SIZES

pytestmark = pytest.mark.long

OVERRIDES = (*TOY_OVERRIDES, *TOY_SIZES["diffvp"], "stages.report.epochs=1", "decoding.max_new_tokens=6")
TABLE = Table(
    title="At test time",
    reference="Ours",
    rows=(
        Row("1", run_of="Ours", at_test=("pool.size=1",)),
        Row("Ours", paper={"RAD": {"BLEU_4": 0.3}}),
        Row("pairings", run_of="Ours", draws=2),
        Row("elsewhere", run_of="Ours", needs={"dataset": "another data set"}),
        Row("another domain", run_of="Ours", at_test=("pool.domain_mix=0.5",), needs={"pool.other": "scans"}),
    ),
)


@pytest.fixture(scope="module")
def elsewhere(toy_ct_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same data set in another place."""
    folder = tmp_path_factory.mktemp("elsewhere") / "data"
    shutil.copytree(toy_ct_dataset.path, folder, ignore=shutil.ignore_patterns(".cache"))
    return folder


@pytest.fixture(scope="module")
def out(toy_ct_dataset: Dataset, elsewhere: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All rows that have what they need, and how often something was trained. Do not change it."""
    folder = tmp_path_factory.mktemp("at_test") / "out"
    trained: list[Path] = []
    real = one_run.train

    def counted(method: str, data: Path, to: Path, **options: Any) -> Path:
        trained.append(to)
        return real(method, data, to, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one_run, "train", counted)
        inputs = (*OVERRIDES, f"elsewhere:dataset={elsewhere}")
        request = AblationRequest("diffvp", toy_ct_dataset.path, "t", folder, seeds=1, overrides=inputs)
        assert run_ablation(request, table=TABLE).failed == 0
    assert [path.relative_to(folder).as_posix() for path in trained] == ["runs/ours/seed-0"]
    return folder


def drawn(predictions: Path) -> list[str | None]:
    """Which reference each study got."""
    rows = [row for _, row in read_jsonl(predictions)]
    return [next((r["study_id"] for r in row["evidence"]["recalled"]), None) for row in rows]


def test_one_run_reports_for_all_rows(out: Path, toy_ct_dataset: Dataset) -> None:
    record = read_json(out / "table.json")
    rows = {row["label"]: row for row in record["rows"]}
    assert record["runs"] == {"planned": 5, "finished": 5, "failed": 0}
    assert rows["1"]["folders"] == ["runs/1/seed-0"]
    assert rows["pairings"]["folders"] == ["runs/pairings/draw-0", "runs/pairings/draw-1"]
    assert "needs scans (another-domain:pool.other=PATH)" in rows["another domain"]["skipped"]
    train = {study.study_id for study in toy_ct_dataset.studies("train")}
    own, single, first, second = (
        drawn(out / "runs" / row / "predictions.jsonl")
        for row in ("ours/seed-0", "1/seed-0", "pairings/draw-0", "pairings/draw-1")
    )
    assert len(set(own)) > 1
    assert len(set(single)) == 1
    assert set(own) | set(single) | set(first) <= train
    # The run's own seed is 0, and so is the first draw's.
    assert first == own != second
    warnings = [row["warnings"][-1] for _, row in read_jsonl(out / "runs/1/seed-0/predictions.jsonl")]
    assert all(warning == "not as the run was trained: pool.size=1" for warning in warnings)


def test_draws_and_other_data_are_not_tested_against_trainings(out: Path) -> None:
    rows = {row["label"]: row for row in read_json(out / "table.json")["rows"]}
    for metric, actual in rows["Ours"]["metrics"].items():
        assert rows["pairings"]["metrics"][metric]["p"] is None
        assert rows["elsewhere"]["metrics"][metric]["difference"] is None
        assert rows["elsewhere"]["metrics"][metric]["mean"] == actual["mean"]
    assert rows["1"]["metrics"]["BLEU_4"]["difference"] is not None
    assert rows["pairings"]["metrics"]["BLEU_4"]["std"] is not None
    text = (out / "table.md").read_text()
    assert "1: nothing is trained, 'Ours' reports again with pool.size=1" in text
    assert "2 draws" in text


def test_rows_are_probed_under_their_settings(out: Path, toy_ct_dataset: Dataset, tmp_path: Path) -> None:
    runs = shutil.copytree(out / "runs", tmp_path / "runs")
    request = AblationRequest(
        "diffvp", toy_ct_dataset.path, "t", tmp_path / "out", seeds=1, overrides=OVERRIDES,
        rows=("1", "Ours", "pairings"), runs=runs, probe=True,
    )  # fmt: skip
    probes = {row["label"]: row["probe"] for row in run_ablation(request, table=TABLE).record["rows"]}
    assert {label: record["at_test"] for label, record in probes.items()} == {
        "1": ["pool.size=1"],
        "Ours": [],
        "pairings": ["pairing_seed=0"],
    }
    assert probes["1"]["nats"] != probes["Ours"]["nats"], "another reference"
    assert probes["pairings"]["nats"] == probes["Ours"]["nats"], "the run's own seed"
    assert not (runs / "pairings" / "draw-1" / "probe").exists()


def test_rows_without_settings_of_their_own_are_not_probed(out: Path, toy_ct_dataset: Dataset, elsewhere: Path) -> None:
    """Drafting by utility or averaging changes nothing that a probe reads."""
    utility = Row("by utility", run_of="Ours", decoding=("kind=expected_utility",))
    table = Table("t", (*TABLE.rows, utility), "Ours")
    overrides = (*OVERRIDES, f"elsewhere:dataset={elsewhere}")
    request = AblationRequest("diffvp", toy_ct_dataset.path, "t", out, seeds=2, overrides=overrides, probe=True)
    probed = {
        row.row.label: [(task.seed, task.tested, task.at_test) for task in row.tasks if task.probe]
        for row in make_plan(request, table).rows
    }
    data = toy_ct_dataset.path.resolve()
    assert probed == {
        "1": [(0, data, ("pool.size=1",))],
        "Ours": [(0, data, ())],
        "pairings": [(0, data, ("pairing_seed=0",))],
        "elsewhere": [(0, elsewhere.resolve(), ())],
        "another domain": [],
        "by utility": [],
    }


def test_finished_runs_are_not_repeated_unless_settings_change(
    out: Path, toy_ct_dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(table: Table) -> one_run.Task:
        request = AblationRequest("diffvp", toy_ct_dataset.path, "t", out, seeds=1, rows=("1",), overrides=OVERRIDES)
        planned = make_plan(request, table)
        assert [row.row.label for row in planned.rows] == ["1", "Ours"]
        assert [task.label for task in planned.tasks] == ["Ours", "1"]
        return planned.tasks[1]

    task = plan(TABLE)
    assert one_run.finished_scores(task, task.experiment(), toy_ct_dataset) is not None
    other = plan(Table("t", (Row("1", run_of="Ours", at_test=("pool.size=2",)), Row("Ours")), "Ours"))
    assert one_run.finished_scores(other, other.experiment(), toy_ct_dataset) is None


def test_settings_change_the_model_in_memory_alone(out: Path, toy_ct_dataset: Dataset, tmp_path: Path) -> None:
    folder = out / "runs" / "ours" / "seed-0"
    before = sha256_folder(folder / "memories")
    run = restore(folder)
    model = run.model
    assert isinstance(model, DiffvpModel)
    retained = model.pool.tensors["values"].clone()
    vary(run, toy_ct_dataset, ["noise=0.5"])
    assert model.pool.tensors["values"].shape == retained.shape
    assert not (model.pool.tensors["values"] - retained).abs().max() < 1e-3
    vary(run, toy_ct_dataset, ["split=test"])
    tested = {study.study_id for study in toy_ct_dataset.studies("test")}
    assert {row["study_id"] for row in model.pool.rows} <= tested
    to = tmp_path / "out.jsonl"
    generate_split(run, Predictor.of(run), toy_ct_dataset.path, "test", to, at_test=["split=test"])
    patients = {study.study_id: study.patient_id for study in toy_ct_dataset.studies("test")}
    for (_, row), reference in zip(read_jsonl(to), drawn(to), strict=True):
        assert reference is None or patients[reference] != patients[row["study_id"]]
    assert sha256_folder(folder / "memories") == before


def test_settings_that_cannot_change_at_test_time_are_refused(
    out: Path, toy_ct_dataset: Dataset, toy_dataset: Dataset, tmp_path: Path
) -> None:
    run = restore(out / "runs" / "ours" / "seed-0")
    with pytest.raises(InputError, match="no field 'size'"):
        vary(run, toy_ct_dataset, ["size=3"])
    with pytest.raises(InputError, match="from which one shall it be"):
        vary(run, toy_dataset, ["pool.size=3"])
    plain: Any = SimpleNamespace(model=nn.Linear(1, 1), card=SimpleNamespace(method="baseline"))
    with pytest.raises(InputError, match=r"nothing to set at test time.*baseline"):
        vary(plain, toy_ct_dataset, ["pool.size=3"])


def test_importance_without_delta_uses_the_same_references(
    out: Path, toy_ct_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figure 3a has a curve of a model that compares with nothing."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import diffvp_importance as figure

    # Of so few phantom scans none may be normal.
    monkeypatch.setattr(figure, "PoolConfig", lambda: PoolConfig(contamination=1.0))
    run = restore(out / "runs" / "ours" / "seed-0")
    rows, cosine = figure.importances(run, toy_ct_dataset)
    assert 0 < cosine < 1, "attention has no value below 0, and latents differ"
    assert rows.shape == (len(list(toy_ct_dataset.studies("test"))), 8)
    curve = figure.curve(rows)
    assert sum(curve) == pytest.approx(1, abs=1e-3)
    assert curve == sorted(curve, reverse=True)
    named = {"with": [{"top_8": 1.0, "curve": curve}] * 2, "without": [{"top_8": 1.0, "curve": curve}]}
    figure.draw(named, tmp_path / "importance.png")
    with Image.open(tmp_path / "importance.png") as picture:
        assert len(picture.convert("RGB").getcolors(1 << 20) or ()) > 3
    own = [row for _, row in read_jsonl(out / "runs/ours/seed-0/predictions.jsonl")]
    assert rows.flatten().tolist() == pytest.approx(
        [value for row in own for value in row["evidence"]["token_importance"]], rel=1e-3
    )
    # Nothing is asked of the part that compares.
    run.model.difference = nn.Identity()
    assert figure.importances(run, toy_ct_dataset)[0].tolist() == rows.tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"run_of": "b", "overrides": ("a=1",)}, "has no configuration"),
        ({"at_test": ("a=1",)}, "whose runs report"),
        ({"draws": 2}, "whose runs report"),
        ({"run_of": "c"}, "no such row that is trained"),
    ],
)
def test_a_row_at_test_time_is_checked(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Table("t", (Row("a", **change), Row("b")), "b")
