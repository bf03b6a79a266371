"""evaluate, compare and label as a user types them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from radweave.cli import evaluation as verbs
from radweave.core.errors import InputError
from radweave.labels import CHEXPERT14, CT18
from radweave.metrics.commands import read_texts
from radweave.metrics.judge import DIMENSIONS
from tests.metrics.judge_server import prefers_b, serving

REPORTS = (
    "There is a small left pleural effusion. The heart is normal in size.",
    "Right lower lobe opacity may represent pneumonia. No pneumothorax.",
    "Calcified granuloma in the left upper lobe. The lungs are otherwise clear.",
    "Cardiomegaly is present without edema.",
)

app = typer.Typer(pretty_exceptions_enable=False)
app.command("evaluate")(verbs.evaluate)
app.command("compare")(verbs.compare)
app.command("label")(verbs.label)


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return str(result.stdout)


def write_pairs(path: Path, drop: int = 0, **more: Any) -> Path:
    """Pairs whose outputs miss the first ``drop`` words."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {"study_id": f"s{i}", "hyp": " ".join(text.split()[drop:]), "ref": text, "evidence": {"any": 1}, **more}
        for i, text in enumerate(REPORTS * 3)
    ]
    for number, row in enumerate(rows):
        row["study_id"] = f"s{number}"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_evaluate_json_has_what_is_promised(tmp_path: Path) -> None:
    pairs = write_pairs(tmp_path / "a.jsonl", drop=2)
    result = json.loads(run("evaluate", pairs, "--json", "--no-meteor", "--resamples", 50))
    assert result["protocol"]["name"] == "full"
    assert len(result["protocol"]["hash"]) == 16
    assert result["protocol"]["settings"]["reference"]["tokenizer"] == "ptb_like"
    names = {f"BLEU_{n}" for n in range(1, 5)} | {"ROUGE_1", "ROUGE_2", "ROUGE_L", "METEOR", "CIDEr"}
    assert names <= set(result["corpus"])
    low, high = result["corpus"]["BLEU_4"]["interval"]
    assert low <= result["corpus"]["BLEU_4"]["value"] <= high
    assert set(result["per_study"]) == {f"s{i}" for i in range(12)}
    assert names <= set(result["per_study"]["s0"])
    assert result["corpus"]["METEOR"] == {"value": None, "interval": None, "unavailable": "unavailable: not asked for"}
    assert {"constant_report", "nearest_neighbour", "shuffled_pairing", "train_copy"} <= set(result["floors"])
    assert "CIDEr-D" in result["definitions"]["CIDEr"]
    assert result["honesty"]["length_ratio"]["value"] < 1
    assert result["clinical"]["classes"] == list(CHEXPERT14)
    # The full-reference score stands beside a paper's.
    assert result["beside"]["protocol"]["name"] == "r2gen_mimic"
    paper = json.loads(run("evaluate", pairs, "--json", "--no-meteor", "--resamples", 0, "--protocol", "r2gen_iu_60"))
    assert paper["beside"]["protocol"]["name"] == "full"
    assert paper["beside"]["corpus"]["BLEU_4"]["value"] == result["corpus"]["BLEU_4"]["value"]


def test_labeler_is_chosen_by_modality(tmp_path: Path) -> None:
    scan = write_pairs(tmp_path / "ct.jsonl", modality="ct")
    result = json.loads(run("evaluate", scan, "--json", "--no-meteor", "--resamples", 0))
    assert result["clinical"]["classes"] == list(CT18)
    assert result["beside"]["protocol"]["name"] == "hf"
    with pytest.raises(InputError, match="several modalities"):
        run("evaluate", scan, write_pairs(tmp_path / "x.jsonl"), "--json", "--no-meteor", "--resamples", 0)
    with pytest.raises(InputError, match="modality"):
        run("evaluate", write_pairs(tmp_path / "mr.jsonl", modality="mr"), "--no-meteor")


def test_evaluate_prints_and_writes_tables_of_several_runs(tmp_path: Path) -> None:
    first, second = write_pairs(tmp_path / "first.jsonl", drop=1), write_pairs(tmp_path / "second_run.jsonl", drop=4)
    out = tmp_path / "out"
    printed = run(
        "evaluate", first, second, "--no-meteor", "--resamples", 20, "--out", out, "--second-opinion", "--all"
    )
    assert "CIDEr (= CIDEr-D, as coco)" in printed
    assert "first: full" in printed
    record = json.loads((out / "evaluation.json").read_text(encoding="utf-8"))
    assert set(record["runs"]) == {"first", "second_run"}
    for opinion in record["runs"]["first"]["second_opinions"].values():
        assert abs(opinion["difference"]) < 1e-9
    markdown = (out / "tables.md").read_text(encoding="utf-8")
    assert "### Scores, suite papers" in markdown
    assert "first: full " in markdown
    assert "### On abnormal studies alone - first" in markdown
    assert "### Language" in markdown
    assert "| BLEU_4 |" in markdown
    latex = (out / "tables.tex").read_text(encoding="utf-8")
    assert r"BLEU\_4" in latex
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") > 3
    with pytest.raises(InputError, match="exists already"):
        run("evaluate", first, "--no-meteor", "--out", out)


def test_train_dataset_makes_floors_and_vocabulary(tmp_path: Path, toy_dataset: Any) -> None:
    pairs = write_pairs(tmp_path / "a.jsonl")
    options = ("--json", "--no-meteor", "--resamples", 0, "--protocol", "r2gen_iu_60", "--train", toy_dataset.path)
    result = json.loads(run("evaluate", pairs, *options))
    assert "training set" in result["floors"]["constant_report"]["source"]
    assert result["floors"]["train_copy"]["corpus"] is not None
    assert {"constant_findings", "constant_wording"} <= set(result["floors"])
    assert result["protocol"]["settings"]["vocabulary"]["size"] > 0
    assert result["texts"]["references_with_unknown_words"] > 0


def test_training_reports_of_evaluated_studies_are_refused(tmp_path: Path, toy_dataset: Any) -> None:
    """A floor that was chosen on what it is scored on is none."""
    study = next(iter(toy_dataset.studies("train")))
    leak = {"study_id": study.study_id, "hyp": "The lungs are clear.", "ref": study.report}
    (tmp_path / "a.jsonl").write_text(json.dumps(leak) + "\n")
    with pytest.raises(InputError, match="training split"):
        run("evaluate", tmp_path / "a.jsonl", "--no-meteor", "--train", toy_dataset.path)


def test_compare_with_floors(tmp_path: Path) -> None:
    rows = [
        {
            "study_id": str(i),
            "hyp": text,
            "ref": text,
            "floors": {"constant_findings": "Mass.", "constant_wording": "No."},
        }
        for i, text in enumerate(["The lungs are clear.", "There is a large effusion.", "The heart is enlarged."])
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    record = json.loads(run("compare", tmp_path / "a.jsonl", "--floors", "--json", "--no-meteor", "--resamples", 20))
    named = {row["run"] for row in record["comparisons"]}
    assert named == {
        "floor: constant report, best for findings",
        "floor: constant report, best for wording",
        "floor: own reports, shuffled",
    }
    with pytest.raises(InputError, match="two runs"):
        run("compare", tmp_path / "a.jsonl")
    (tmp_path / "one.jsonl").write_text(json.dumps({"study_id": "1", "hyp": "Clear.", "ref": "Clear."}) + "\n")
    with pytest.raises(InputError, match="has no floor"):
        run("compare", tmp_path / "one.jsonl", "--floors", "--no-meteor")


def test_same_command_same_bytes(tmp_path: Path) -> None:
    pairs = write_pairs(tmp_path / "a.jsonl", drop=2)
    first, second = (run("evaluate", pairs, "--json", "--no-meteor", "--resamples", 50) for _ in range(2))
    assert first == second


def test_compare_runs(tmp_path: Path) -> None:
    a, b = write_pairs(tmp_path / "a.jsonl", drop=5), write_pairs(tmp_path / "b.jsonl", drop=0)
    record = json.loads(run("compare", a, b, "--json", "--no-meteor", "--resamples", 100, "--out", tmp_path / "out"))
    assert (record["kind"], record["baseline"], record["studies"]) == ("studies", "a", 12)
    bleu = next(row for row in record["comparisons"] if row["metric"] == "BLEU_4")
    assert bleu["run"] == "b"
    assert bleu["difference"] > 0
    assert bleu["p_randomisation"] == pytest.approx(1 / 101)
    assert record["resampling"]["tests"] == len(record["comparisons"])
    assert "judge" not in record
    assert "b against a" in run("compare", a, b, "--no-meteor", "--resamples", 20)
    c = write_pairs(tmp_path / "c.jsonl", drop=3)
    three = json.loads(run("compare", a, b, c, "--json", "--no-meteor", "--resamples", 20))
    assert {row["run"] for row in three["comparisons"]} == {"b", "c"}


def test_compare_over_seeds(tmp_path: Path) -> None:
    for seed in range(3):
        write_pairs(tmp_path / "base" / f"{seed}.jsonl", drop=4 + seed % 2)
        write_pairs(tmp_path / "ours" / f"run{seed}" / "predictions.jsonl", drop=seed % 2)
    record = json.loads(run("compare", "--seeds", tmp_path / "base", tmp_path / "ours", "--json", "--no-meteor"))
    assert (record["test"], record["std_ddof"]) == ("two-sided Welch t-test", 1)
    assert record["seeds"] == [["0.jsonl", "1.jsonl", "2.jsonl"], [f"run{i}/predictions.jsonl" for i in range(3)]]
    rouge = next(row for row in record["comparisons"] if row["metric"] == "ROUGE_L")
    assert rouge["difference"] > 0
    assert rouge["p"] < 0.05
    assert any(row["metric"] == "CE_micro_precision" for row in record["comparisons"])


def test_seeds_that_cannot_be_compared_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    for seed in range(2):
        write_pairs(tmp_path / "base" / f"{seed}.jsonl", drop=seed)
        write_pairs(tmp_path / "ours" / f"{seed}.jsonl", drop=seed + 1)
        write_pairs(tmp_path / "fewer" / f"{seed}.jsonl", drop=seed)
        write_pairs(tmp_path / "other" / f"{seed}.jsonl", drop=seed)
    lines = (tmp_path / "fewer" / "1.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "fewer" / "1.jsonl").write_text("".join(lines[:-1]))
    changed = (tmp_path / "other" / "1.jsonl").read_text().replace('"ref": "Cardiomegaly', '"ref": "Mild cardiomegaly')
    (tmp_path / "other" / "1.jsonl").write_text(changed)
    (tmp_path / "empty").mkdir()
    write_pairs(tmp_path / "one" / "0.jsonl")
    base, plain = tmp_path / "base", ("--no-meteor", "--out", tmp_path / "out")
    refused = {
        "not about the same studies": ("fewer", ()),
        "reference differs": ("other", ()),
        "holds no pairs file": ("empty", ()),
        "not a folder": ("nowhere", ()),
        "needs several seeds": ("one", ()),
        "not folders of seeds": ("ours", ("--judge", "http://127.0.0.1:1/v1", "--judge-model", "m")),
        "floors have no seeds": ("ours", ("--floors",)),
        "phrases are a page of single runs": ("ours", ("--phrases", 3)),
        "two folders": ("ours", (tmp_path / "one",)),
    }
    for reason, (folder, options) in refused.items():
        with pytest.raises(InputError, match=reason):
            run("compare", "--seeds", base, tmp_path / folder, *options, *plain)
    assert not (tmp_path / "out").exists()


def test_compare_with_a_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = write_pairs(tmp_path / "a.jsonl", drop=5), write_pairs(tmp_path / "b.jsonl")
    monkeypatch.setenv("RADWEAVE_JUDGE_KEY", "k")
    with serving(prefers_b) as server:
        options = ("--judge", server.url, "--judge-model", "m", "--judge-limit", 4, "--no-meteor", "--resamples", 20)
        record = json.loads(run("compare", a, b, "--json", *options))
        assert len(server.requests) == 4
        assert server.headers[0]["Authorization"] == "Bearer k"
        assert "Judge: b against a" in run("compare", a, b, *options)
    assert set(record["judge"]["b"]["dimensions"]) == set(DIMENSIONS)
    with pytest.raises(InputError, match="needs a model"):
        run("compare", a, b, "--judge", "http://127.0.0.1:1/v1", "--no-meteor", "--resamples", 20)


def test_label_writes_states_spans_and_the_known_csv_coding(tmp_path: Path) -> None:
    reports = tmp_path / "reports.jsonl"
    reports.write_text("".join(json.dumps({"id": f"r{i}", "report": t}) + "\n" for i, t in enumerate(REPORTS)))
    rows = [json.loads(line) for line in run("label", reports).splitlines()]
    assert [row["study_id"] for row in rows] == ["r0", "r1", "r2", "r3"]
    assert rows[0]["labels"]["Pleural Effusion"] == "positive"
    start, end = rows[0]["spans"]["Pleural Effusion"]
    assert "effusion" in REPORTS[0][start:end]
    out = tmp_path / "labels.csv"
    run("label", reports, "--out", out)
    lines = out.read_text(encoding="utf-8").splitlines()
    assert lines[0] == ",".join(["study_id", *CHEXPERT14])
    cells = dict(zip(lines[0].split(","), lines[4].split(","), strict=True))
    assert (cells["Cardiomegaly"], cells["Edema"], cells["Fracture"]) == ("1", "0", "")


def test_label_passes_over_further_views_of_a_study(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("study_id,findings\na,Effusion.\na,\na,Effusion.\nb,Clear.\na,Edema.\n")
    refused: list[InputError] = []
    rows = list(read_texts(tmp_path / "t.csv", refused=refused))
    assert rows == [("a", "Effusion."), ("b", "Clear.")]
    assert [error.reason for error in refused] == ["study id comes twice"]


def test_label_writes_places(tmp_path: Path) -> None:
    reports, out = tmp_path / "reports.jsonl", tmp_path / "places.jsonl"
    reports.write_text(json.dumps({"id": "a", "report": "No edema. Small left effusion."}) + "\n", encoding="utf-8")
    run("label", reports, "--places", "--out", out)
    (row,) = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    (effusion,) = row["places"].pop("Pleural Effusion")
    assert row["places"] == {}
    assert effusion["places"] == [{"side": "left", "zone": "pleura"}]
    assert (effusion["severity"], effusion["span"]) == ("mild", [21, 29])
    run("label", reports, "--places", "--out", out, "--overwrite")
    with pytest.raises(InputError, match="no places"):
        run("label", reports, "--places", "--out", tmp_path / "places.csv")


def test_label_reads_csv_with_quotes_and_breaks(tmp_path: Path) -> None:
    reports = tmp_path / "reports.csv"
    reports.write_text('Study,Notes,Report\nA,x,"Cardiomegaly,\nsevere."\nB,y,Clear lungs.\n', encoding="utf-8")
    out = tmp_path / "labels.jsonl"
    run("label", reports, "--out", out, "--ontology", "ct18")
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["study_id"] for row in rows] == ["A", "B"]
    assert rows[0]["labels"]["Cardiomegaly"] == "positive"
    run("label", reports, "--text", "Notes", "--out", out, "--overwrite")
    assert "positive" not in out.read_text(encoding="utf-8").split("No Finding")[0]


def test_any_table_format_and_column_names_score_as_json_lines(tmp_path: Path) -> None:
    pairs = write_pairs(tmp_path / "pairs.jsonl")
    plain = ("--json", "--no-meteor", "--resamples", 0)
    expected = json.loads(run("evaluate", pairs, *plain))["corpus"]
    rows = [json.loads(line) for line in pairs.read_text().splitlines()]
    renamed = [{"case": row["study_id"], "ours": row["hyp"], "theirs": row["ref"]} for row in rows]
    (tmp_path / "p.json").write_text(json.dumps(renamed))
    with (tmp_path / "p.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["case", "ours", "theirs"])
        writer.writeheader()
        writer.writerows(renamed)
    names = ("--study", "case", "--hyp", "ours", "--ref", "theirs")
    for name in ("p.json", "p.csv"):
        assert json.loads(run("evaluate", tmp_path / name, *plain, *names))["corpus"] == expected
    compared = json.loads(run("compare", tmp_path / "p.csv", tmp_path / "p.json", "--json", "--no-meteor", *names))
    assert {row["difference"] for row in compared["comparisons"]} <= {0.0, None}


def test_second_protocol_of_iu_xray_is_that_of_most_papers(tmp_path: Path) -> None:
    iu = write_pairs(tmp_path / "iu.jsonl", dataset="iu-xray")
    result = json.loads(run("evaluate", iu, "--json", "--no-meteor", "--resamples", 0))
    assert result["beside"]["protocol"]["name"] == "r2gen_iu_60"
