"""RadGraph-F1: rewards by hand, and the reader on tiny random weights written to disk in the published layout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from radweave.cli.evaluation import evaluate
from radweave.core.errors import InputError
from radweave.metrics import Options, Pair, evaluate_pairs
from radweave.metrics.further import Models, further_scores
from radweave.metrics.radgraph import LEVELS, Entity, RadGraphReader, combined_f1, radgraph_f1, words_of
from tests.metrics import plain_scores
from tests.radgraph_weights import graph_of, write_radgraph

TEXTS = (
    "The lungs are clear.",
    "No pleural effusion, the heart is normal (mild opacity in the left).",
    "The lungs are clear no pleural effusion in the left opacity of the heart is mild in the right unheard lungs",
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_radgraph(tmp_path_factory.mktemp("weights") / "radgraph")


def test_rewards_by_hand() -> None:
    ref = {
        "1": Entity("Effusion", "OBS-DP", 0, 0, (("located_at", "2"), ("modify", "3"))),
        "2": Entity("left", "ANAT-DP", 1, 1),
        "3": Entity("lung", "ANAT-DP", 2, 2),
    }
    hyp = {
        "1": Entity("Effusion", "OBS-DP", 0, 0, (("located_at", "2"),)),
        "2": Entity("LEFT", "ANAT-DP", 1, 1),
    }
    # Simple and partial: Effusion of 2 and 3. Complete: the relation (words in lower case), of 2 and 4.
    assert radgraph_f1(hyp, ref) == pytest.approx((2 / 5, 2 / 5, 2 / 6))
    without = {"1": Entity("Effusion", "OBS-DP", 0, 0), "2": Entity("left", "ANAT-DP", 1, 1)}
    assert radgraph_f1(without, ref) == pytest.approx((4 / 5, 2 / 5, 2 / 6))
    assert radgraph_f1(ref, ref) == (1.0, 1.0, 1.0)
    # Combined: one of two and three entities, one of one and two relations.
    assert combined_f1(hyp, ref) == pytest.approx((2 / 5 + 0) / 2)
    assert combined_f1(without, ref) == pytest.approx((4 / 5 + 0) / 2)
    assert combined_f1(ref, ref) == 1.0
    assert combined_f1(without, without) == 0.5


def test_an_empty_graph_scores_nothing_even_against_another() -> None:
    one = {"1": Entity("clear", "OBS-DP", 0, 0)}
    assert radgraph_f1({}, one) == radgraph_f1(one, {}) == radgraph_f1({}, {}) == (0.0, 0.0, 0.0)


def test_rewards_of_published_annotations(shared_data: Path) -> None:
    """Expected: compute_reward of radgraph 0.1.18 on its own test annotations, the first against each."""
    rows = json.loads((shared_data / "eval_oracles" / "radgraph_processed_annotations.json").read_text())
    graphs = [graph_of(row["processed_annotations"]["radgraph_annotations"]["0"]) for row in rows]
    expected = [(1.0,) * 3, (0.0,) * 3, (0.32, 0.32, 8 / 27), (0.0,) * 3, (1 / 12, 1 / 12, 0.0)]
    assert [radgraph_f1(graphs[0], graph) for graph in graphs] == [pytest.approx(row) for row in expected]


def test_words() -> None:
    text = "5%, (no left-sided) effusion.\nHeart/lungs: 2.5 cm."
    first = "5% , ( no left-sided ) effusion . Heart / lungs : 2 . 5 cm ."
    assert words_of(text, "radgraph") == first.split()
    xl = "5 % , ( no left - sided ) effusion . Heart / lungs : 2 . 5 cm ."
    assert words_of(text, "radgraph-xl") == xl.split()


@pytest.mark.parametrize("text", TEXTS)
def test_the_reader_is_the_published_network(checkpoint: Path, text: str) -> None:
    graph = RadGraphReader(checkpoint).graph(text)
    entities, relations = plain_scores.read_graph(checkpoint, "radgraph", words_of(text, "radgraph"))
    assert [((entity.start, entity.end), entity.label) for entity in graph.values()] == entities
    own = [
        ((entity.start, entity.end), (graph[key].start, graph[key].end), name)
        for entity in graph.values()
        for name, key in entity.relations
    ]
    assert sorted(own) == sorted(relations)
    assert len(entities) > 2
    assert own


def test_statistics_and_the_rows_of_an_evaluation(checkpoint: Path) -> None:
    pairs = [Pair("a", TEXTS[0], (TEXTS[1],)), Pair("b", TEXTS[2], (TEXTS[2],)), Pair("c", "", (TEXTS[0],))]
    result = evaluate_pairs(
        pairs, options=Options(meteor=False, floors=False, resamples=20, folders={"radgraph": checkpoint})
    ).to_json()
    reader = RadGraphReader(checkpoint)
    first = radgraph_f1(reader.graph(TEXTS[0]), reader.graph(TEXTS[1]))
    for name, score in zip(LEVELS, first, strict=True):
        assert [result["per_study"][study][name] for study in "abc"] == pytest.approx([score, 1.0, 0.0])
        assert result["corpus"][name]["value"] == pytest.approx((score + 1) / 3)
        assert result["corpus"][name]["interval"] is not None
        assert name.removeprefix("RadGraph_") in result["definitions"][name]
    assert result["protocol"]["versions"]["radgraph"] == f"radgraph {reader.version}"


def unavailable(folder: Path) -> str:
    result = further_scores(["RadGraph_simple"], {"": ["a"]}, [["a"]], Models({"radgraph": folder}))
    return result.unavailable["RadGraph_simple"]


def test_missing_files_are_named(tmp_path: Path) -> None:
    assert "no folder" in unavailable(tmp_path / "none")
    folder = write_radgraph(tmp_path / "radgraph-xl", "radgraph-xl")
    assert RadGraphReader(folder).name == "radgraph-xl"
    (folder / "encoder" / "vocab.txt").rename(folder / "kept")
    assert "some/bert" in unavailable(folder)
    (folder / "kept").rename(folder / "encoder" / "vocab.txt")
    state = torch.load(folder / "weights.th", weights_only=True)
    torch.save({key: value for key, value in state.items() if "pruners" not in key}, folder / "weights.th")
    assert "pruner" in unavailable(folder)
    torch.save({"weights": Path("code")}, folder / "weights.th")
    assert "not a readable weights file" in unavailable(folder)


def test_labels_that_are_no_text_are_refused(tmp_path: Path) -> None:
    folder = write_radgraph(tmp_path)
    next((folder / "vocabulary").glob("*__ner_labels.txt")).write_bytes(b"\n\xff")
    with pytest.raises(InputError, match=r"ner_labels.txt: not a readable text file"):
        RadGraphReader(folder)


def test_the_command_says_unavailable(tmp_path: Path) -> None:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(evaluate)
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps({"study_id": f"s{i}", "hyp": t, "ref": t}) + "\n" for i, t in enumerate(TEXTS)))
    arguments = [str(pairs), "--no-meteor", "--resamples", "0", "--weights", f"radgraph={tmp_path / 'none'}"]
    printed = CliRunner().invoke(app, [*arguments, "--all"]).stdout
    assert "RadGraph_complete: unavailable: " in printed
    record = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert record["corpus"]["RadGraph_simple"]["value"] is None
    assert "no folder" in record["corpus"]["RadGraph_simple"]["unavailable"]
