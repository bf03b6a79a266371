"""Scores of the texts as they are given, against plain loops from their published definitions."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from sklearn.metrics import f1_score
from transformers import BertForSequenceClassification, BertTokenizer
from typer.testing import CliRunner

from radweave.cli.evaluation import evaluate
from radweave.core.errors import InputError
from radweave.core.ontology import CHEXPERT14, CT18
from radweave.metrics import Options, Pair, evaluate_pairs
from radweave.metrics.catalogue import FURTHER_METRICS, METRICS
from radweave.metrics.clinical import LabelledPairs, crg_statistic
from radweave.metrics.encoders import PackedStates, TextEncoder, _by_words, equal_length_batches, read_encoder
from radweave.metrics.further import Models, further_scores
from radweave.metrics.language import sentence_bleu_2
from radweave.metrics.radcliq import VERSION_1
from radweave.metrics.temporal import change_words, temporal_f1
from radweave.metrics.weights import WEIGHTS, read_weights
from tests.metrics import plain_scores
from tests.metrics.score_folders import made_up_reports, write_chexbert, write_roberta, write_srr
from tests.radgraph_weights import write_radgraph

SCORED = Options(meteor=False, floors=False, resamples=0)
ODD = ["", "lungs", "the " * 300, "Größe 心臓 – …", "\n\t "]
"""An empty draft, one word, more words than an encoder takes, other scripts, blanks."""


def score_alone(key: str, drafts: list[str], references: list[str], **folders: Path) -> list[float]:
    """A metric of each study."""
    result = further_scores([key], {"": drafts}, [[text] for text in references], Models(folders))
    assert not result.unavailable
    return result.statistics[""][key].per_study.tolist()


def test_sentence_bleu_is_that_of_its_definition() -> None:
    drafts, references = made_up_reports(60, seed=1), made_up_reports(60, seed=2)
    drafts[:5], references[5] = ODD, drafts[5]
    expected = [plain_scores.sentence_bleu(*pair) for pair in zip(drafts, references, strict=True)]
    assert sentence_bleu_2(drafts, references) == pytest.approx(expected, abs=1e-12)
    # What fast-bleu 0.0.90 gives for these.
    assert sentence_bleu_2(["a b c d", "a c"], ["a b d c e", "b a"]) == pytest.approx(
        [0.44964084, 0.22360680], abs=1e-8
    )


def test_words_of_change() -> None:
    assert change_words("Un-changed effusion; WORSE opacity, stable.") == {"worse", "stable"}
    assert change_words("decreased/increased") == set()
    drafts = ["stable. new effusion", "no word of it", "worse", "", "stable"]
    references = [["stable"], ["none"], ["clear"], ["unchanged"], ["new", "stable"]]
    one_of_two = 2 * 0.5 / 1.5
    assert temporal_f1(drafts, references) == pytest.approx([one_of_two, 1.0, 1e-10, 0.0, one_of_two], abs=1e-9)


def test_clinically_relevant_gain_of_all_studies_together() -> None:
    rng = np.random.default_rng(0)
    hyp, ref = rng.integers(0, 4, (2, 30, len(CT18))).astype(np.int8)
    statistic = crg_statistic(LabelledPairs(CT18, hyp, ref, "", ""))
    tp, fp, fn = (int((a & b).sum()) for a, b in ((hyp == 1, ref == 1), (hyp == 1, ref != 1), (hyp != 1, ref == 1)))
    labels, positives = hyp.size, tp + fn
    weight, most = (labels - positives) / (2 * positives), (labels - positives) / 2
    assert statistic.corpus() == pytest.approx(most / (2 * most - (weight * tp - weight * fn - fp)))
    assert crg_statistic(LabelledPairs(CT18, ref, ref, "", "")).corpus() == pytest.approx(1)
    assert crg_statistic(LabelledPairs(CT18, ref * 0, ref, "", "")).corpus() == pytest.approx(1 / 3)
    assert math.isnan(crg_statistic(LabelledPairs(CT18, hyp, ref * 0, "", "")).corpus())
    everything = np.ones_like(ref)
    assert crg_statistic(LabelledPairs(CT18, everything, everything, "", "")).corpus() == 0
    # No Finding is no finding: only its column differs.
    empty = np.zeros((1, 14), dtype=np.int8)
    one = empty.copy()
    one[0, :2] = 1
    stated = one.copy()
    stated[0, -1] = 1
    assert crg_statistic(LabelledPairs(CHEXPERT14, stated, one, "", "")).corpus() == pytest.approx(1)


@pytest.fixture(scope="module")
def chexbert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chexbert(tmp_path_factory.mktemp("weights") / "chexbert")


def test_sembscore_is_that_of_its_definition(chexbert: Path) -> None:
    drafts, references = made_up_reports(50, seed=3), made_up_reports(50, seed=4, longest=60)
    drafts[:5], references[5] = ODD, drafts[5]
    expected = plain_scores.sembscores(chexbert, drafts, references)
    actual = score_alone("SembScore", drafts, references, chexbert=chexbert)
    assert actual == pytest.approx(expected, abs=1e-5)
    assert actual[5] == pytest.approx(1, abs=1e-6)
    assert np.std(expected) > 0.01
    # A text by itself scores as among others.
    assert score_alone("SembScore", drafts[9:10], references[9:10], chexbert=chexbert) == pytest.approx(
        actual[9:10], abs=1e-6
    )


def test_states_on_disk_are_taken_only_for_the_same_text_and_weights(chexbert: Path, tmp_path: Path) -> None:
    texts = made_up_reports(6, seed=5)
    cache = tmp_path / "states"

    def score(folder: Path) -> list[float]:
        models = Models({"chexbert": folder}, cache=cache)
        result = further_scores(["SembScore"], {"": texts[:3]}, [[text] for text in texts[3:]], models)
        return result.statistics[""]["SembScore"].per_study.tolist()

    first = score(chexbert)
    files = sorted(cache.rglob("*.safetensors"))
    assert len(files) == 1
    assert score(chexbert) == first
    other = write_chexbert(tmp_path / "other")
    state = torch.load(other / "chexbert.pth", weights_only=True)["model_state_dict"]
    torch.save({"model_state_dict": {name: value * 2 for name, value in state.items()}}, other / "chexbert.pth")
    assert score(other) != first
    files[0].write_bytes(b"damaged")
    assert score(chexbert) == pytest.approx(first, abs=1e-6)


def test_a_score_without_its_weights_says_what_to_get() -> None:
    pairs = [Pair("a", "lungs are clear", ("clear lungs",)), Pair("b", "stable", ("new effusion",))]
    options = Options(meteor=False, floors=False, resamples=0, scores=("SembScore", "temporal_F1", "CRG"))
    corpus = evaluate_pairs(pairs, options=options).corpus
    assert corpus["temporal_F1"].value == pytest.approx((1 + 0) / 2, abs=1e-9)
    assert corpus["CRG"].unavailable == "unavailable: needs a labeler"
    for words in ("--weights chexbert=FOLDER", "Stanford", "GB"):
        assert words in str(corpus["SembScore"].unavailable)
    assert "RadGraph_combined" not in corpus


def test_floors_have_the_further_scores_too(chexbert: Path) -> None:
    texts = made_up_reports(8, seed=6)
    pairs = [Pair(str(i), texts[i], (texts[i + 4],)) for i in range(4)]
    options = Options(meteor=False, resamples=20, folders={"chexbert": chexbert}, scores=("temporal_F1",))
    result = evaluate_pairs(pairs, options=options).to_json()
    floor = result["floors"]["shuffled_pairing"]["corpus"]
    assert {"SembScore", "temporal_F1", "BLEU_4"} <= set(floor)
    assert floor["SembScore"] != result["corpus"]["SembScore"]["value"]
    assert result["corpus"]["SembScore"]["interval"] is not None
    assert result["protocol"]["versions"]["chexbert"].startswith("CheXbert ")


def test_several_references_count_by_the_best(chexbert: Path) -> None:
    texts = made_up_reports(3, seed=7)
    models = Models({"chexbert": chexbert})
    both = further_scores(["SembScore", "BLEU_2_sentence"], {"": [texts[0]]}, [[texts[1], texts[2], texts[0]]], models)
    assert both.statistics[""]["SembScore"].corpus() == pytest.approx(1, abs=1e-6)
    assert both.statistics[""]["BLEU_2_sentence"].corpus() == pytest.approx(1)


def test_folders_are_named_one_by_one_or_in_a_file(tmp_path: Path) -> None:
    table = tmp_path / "weights.toml"
    table.write_text('chexbert = "here/chexbert"\nradgraph = "/models/radgraph"\n')
    named = read_weights(["labeler", str(table), "radgraph=b=c"])
    assert named.labeler == Path("labeler")
    assert named.folders == {"chexbert": tmp_path / "here/chexbert", "radgraph": Path("b=c")}
    with pytest.raises(InputError, match=r"radgrph.*radgraph, chexbert"):
        read_weights(["radgrph=x"])
    for wrong in ("chexbert = 1", "no table", 'other = "x"'):
        table.write_text(wrong)
        with pytest.raises(InputError, match=r"weights\.toml"):
            read_weights([str(table)])


def test_every_score_names_weights_that_are_described() -> None:
    named = {name for key in FURTHER_METRICS for name in METRICS[key].weights}
    assert named <= set(WEIGHTS)
    assert all(METRICS[key].definition and METRICS[key].title for key in FURTHER_METRICS if "RadGraph_" not in key)


def test_the_command_computes_the_scores_that_are_asked_for(tmp_path: Path, chexbert: Path) -> None:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(evaluate)
    pairs = tmp_path / "pairs.jsonl"
    texts = made_up_reports(4, seed=8)
    pairs.write_text(
        "".join(json.dumps({"study_id": f"s{i}", "hyp": text, "ref": text}) + "\n" for i, text in enumerate(texts))
    )
    options = ["--no-meteor", "--resamples", "0", "--weights", f"chexbert={chexbert}", "--score", "CRG", "--json"]
    result = CliRunner().invoke(app, [str(pairs), *options])
    record = json.loads(result.stdout)
    assert record["corpus"]["SembScore"]["value"] == pytest.approx(1, abs=1e-6)
    assert "CRG" in record["corpus"]
    assert "RadCliQ_v1" not in record["corpus"]
    wrong = CliRunner().invoke(app, [str(pairs), "--score", "CRGG"])
    assert isinstance(wrong.exception, InputError)
    assert "temporal_F1" in str(wrong.exception)


def test_batches_hold_texts_of_one_length() -> None:
    lengths = [3, 1, 3, 3, 0, 700]
    batches = list(equal_length_batches(lengths, most_tokens=6))
    assert sorted(index for batch in batches for index in batch) == list(range(6))
    assert all(len({lengths[index] for index in batch}) == 1 for batch in batches)
    assert [len(batch) for batch in batches] == [1, 1, 2, 1, 1]


@pytest.fixture(scope="module")
def roberta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_roberta(tmp_path_factory.mktemp("weights") / "roberta")


@pytest.mark.parametrize(("key", "idf"), [("BERTScore", False), ("BERTScore_idf", True)])
def test_bertscore_is_that_of_its_definition(roberta: Path, key: str, idf: bool) -> None:
    drafts, references = made_up_reports(50, seed=11), made_up_reports(50, seed=12, longest=60)
    drafts[:6], references[6] = [*ODD, "</s> lungs  are <s>"], drafts[6]
    expected = plain_scores.bertscores(roberta, drafts, references, idf=idf)
    actual = score_alone(key, drafts, references, bertscore=roberta)
    assert actual == pytest.approx(expected, abs=1e-5)
    assert actual[0] == pytest.approx(-0.23 / 0.77)
    assert actual[6] == pytest.approx(1, abs=1e-6)


PACKAGE = (
    (0.84544665, 0.85615122, 0.74275017, 0.79609764),
    (0.85043579, 0.83992535, 0.78975350, 0.81421888),
)


def test_bertscore_of_the_package_on_the_same_weights(roberta: Path) -> None:
    """Expected: bert-score 0.3.13 with transformers 4.57.1, without and with IDF."""
    drafts, references = made_up_reports(4, seed=21), made_up_reports(4, seed=22)
    assert score_alone("BERTScore", drafts, references, bertscore=roberta) == pytest.approx(PACKAGE[0], abs=1e-5)
    assert score_alone("BERTScore_idf", drafts, references, bertscore=roberta) == pytest.approx(PACKAGE[1], abs=1e-5)


def test_without_a_baseline_only_the_raw_score_is_there(roberta: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(roberta, tmp_path / "bare"))
    (folder / "distilroberta-base.tsv").unlink()
    texts = made_up_reports(4, seed=23)
    asked = ["BERTScore", "BERTScore_raw"]
    result = further_scores(asked, {"": texts[:2]}, [[text] for text in texts[2:]], Models({"bertscore": folder}))
    assert set(result.statistics[""]) == {"BERTScore_raw"}
    assert "distilroberta-base.tsv" in result.unavailable["BERTScore"]
    (folder / "distilroberta-base.tsv").write_text("LAYER,F\n0,0.1\n")
    result = further_scores(asked, {"": texts[:2]}, [[text] for text in texts[2:]], Models({"bertscore": folder}))
    assert "has no baseline of the layer" in result.unavailable["BERTScore_raw"]


@given(st.lists(st.text(st.sampled_from("abE's'll.,-1²Ö心 \n\u00a0\u3000<>/mk"), max_size=40), max_size=8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
def test_token_ids_by_words_are_those_of_whole_texts(roberta: Path, texts: list[str]) -> None:
    encoder = read_encoder(roberta, what="an encoder", device=torch.device("cpu"), max_tokens=9)
    texts = [*texts, *(f" {text.strip()}" for text in texts), " no </s> left", " a<mask> b", "", " ", " it's left."]
    backend = encoder.tokenizer.backend_tokenizer
    made = _by_words(backend, texts, 9)
    assert " it's left." in made
    assert not {" no </s> left", " a<mask> b", ""} & made.keys()
    own = [ids.tolist() for ids in encoder.token_ids(texts)]
    backend.enable_truncation(max_length=9)
    assert own == [encoding.ids for encoding in backend.encode_batch(texts)]


def test_identical_texts_are_encoded_once(roberta: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    directions = TextEncoder.directions

    def counted(self: TextEncoder, token_ids: list[NDArray[np.int64]]) -> PackedStates:
        seen.append(len(token_ids))
        return directions(self, token_ids)

    monkeypatch.setattr(TextEncoder, "directions", counted)
    texts = made_up_reports(2, seed=24)
    scores = score_alone("BERTScore", [texts[0]] * 10_000, [texts[1]] * 10_000, bertscore=roberta)
    assert sum(seen) == 2
    assert len(set(scores)) == 1


def test_radcliq_without_its_folders_and_of_several_references(roberta: Path, chexbert: Path, tmp_path: Path) -> None:
    radgraph = write_radgraph(tmp_path / "radgraph")
    folders = {"bertscore": roberta, "chexbert": chexbert, "radgraph": radgraph}
    drafts, references = made_up_reports(5, seed=31, longest=9), made_up_reports(5, seed=32, longest=9)
    keys = [key for key in FURTHER_METRICS if "RadCliQ" in key]
    groups = [[text] for text in references]
    result = further_scores(keys, {"": drafts}, groups, Models(folders))
    assert result.statistics[""]["RadCliQ_v1"].corpus() != result.statistics[""]["RadCliQ_v1_idf"].corpus()
    assert "--weights radcliq=" in result.unavailable["RadCliQ_v0"]
    lacks = further_scores(["RadCliQ_v1"], {"": drafts}, groups, Models({"chexbert": chexbert})).unavailable[
        "RadCliQ_v1"
    ]
    assert [name in lacks for name in ("radgraph=", "bertscore=", "chexbert=")] == [True, True, False]
    own = {"radgraph": -2.0, "bertscore": -1.0, "sembscore": 0.5, "bleu_2": 3.0, "intercept": 4.0}
    (tmp_path / "radcliq_v0.json").write_text(json.dumps({**own, "other": 1}))
    refused = further_scores(keys, {"": drafts}, groups, Models({**folders, "radcliq": tmp_path}))
    assert "not the coefficients" in refused.unavailable["RadCliQ_v0_idf"]
    assert "RadCliQ_v1" in refused.statistics[""]
    # Of two references the one with the lower RadCliQ counts.
    two_each = [[text, draft] for text, draft in zip(references, drafts, strict=True)]
    both = further_scores(keys, {"": drafts}, two_each, Models(folders))
    assert (both.statistics[""]["RadCliQ_v1"].per_study <= result.statistics[""]["RadCliQ_v1"].per_study).all()


def test_version_1_agrees_with_a_printed_row_of_the_repository() -> None:
    """A row of CXR-Report-Metric's output as printed to four digits, of a pair without a common RadGraph entity."""
    assert VERSION_1.predict(np.array([[0.0, -0.0917, 0.1329, 0.0943]]))[0] == pytest.approx(2.4692, abs=5e-4)


@torch.inference_mode()
def test_srr_bert_weights_classes_by_support(tmp_path: Path) -> None:
    folder = write_srr(tmp_path)
    drafts, references = made_up_reports(50, seed=41), made_up_reports(50, seed=42)
    drafts[:3] = ["", "lungs", "1. edema. 2. heart is normal."]
    result = further_scores(["SRR_F1"], {"": drafts}, [[text] for text in references], Models({"srr": folder}))
    model = BertForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = BertTokenizer.from_pretrained(folder)

    def classes(text: str) -> list[int]:
        parts = [
            part for part in re.split(r"(?<=[.!?])\s+", re.sub(r"(^|\s)\d+\.(?!\d)\s*", r"\1", text)) if part.strip()
        ]
        rows = [model(**tokenizer(part, return_tensors="pt")).logits[0] > 0 for part in parts]
        return torch.stack(rows).any(0).int().tolist() if rows else [0, 0, 0]

    hyp, ref = (np.array([classes(text) for text in side]) for side in (drafts, references))
    assert 0 < ref.mean() < 1
    expected = f1_score(ref, hyp, average="weighted", zero_division=0)
    assert result.statistics[""]["SRR_F1"].corpus() == pytest.approx(expected, abs=1e-9)
    (folder / "leaves_mapping.json").write_text('{"Edema": 0}')
    refused = further_scores(["SRR_F1"], {"": drafts}, [[text] for text in references], Models({"srr": folder}))
    assert "mapping does not fit" in refused.unavailable["SRR_F1"]


HOSTILE = {
    "bertscore": ("BERTScore_raw", write_roberta),
    "srr": ("SRR_F1", write_srr),
    "chexbert": ("SembScore", write_chexbert),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_folders_that_cannot_be_used_cost_their_row_alone(name: str, tmp_path: Path) -> None:
    key, write = HOSTILE[name]

    def reason(folder: Path) -> str:
        keys = ["temporal_F1", key]
        result = further_scores(keys, {"": ["stable", ""]}, [["stable"], ["clear"]], Models({name: folder}))
        assert set(result.statistics[""]) <= {"temporal_F1", key}
        assert "temporal_F1" in result.statistics[""]
        return result.unavailable.get(key, "")

    assert "no " in reason(tmp_path / "none")
    folder = write(tmp_path / "folder")
    assert reason(folder) == ""
    weights = next(path for path in (folder / "chexbert.pth", folder / "model.safetensors") if path.is_file())
    kept = weights.read_bytes()
    (folder / "config.json").rename(folder / "kept.json")
    (folder / "config.json").write_text(json.dumps({"model_type": "vit", "num_hidden_layers": 2}))
    assert reason(folder)
    (folder / "kept.json").rename(folder / "config.json")
    weights.write_bytes(kept[:200])
    assert reason(folder)
    weights.unlink()
    torch.save({"weights": Path("code")}, folder / "pytorch_model.bin")
    assert reason(folder)


@pytest.mark.parametrize("kind", ["bart", "clip", "funnel"])
def test_bertscore_is_of_encoders_alone(kind: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    models = Models({"bertscore": tmp_path})
    result = further_scores(["BERTScore_raw"], {"": ["stable"]}, [["clear"]], models)
    assert f"not a text encoder (got {kind}" in result.unavailable["BERTScore_raw"]


def test_weights_that_are_nan_are_refused_and_half_precision_is_read(tmp_path: Path) -> None:
    folder = write_roberta(tmp_path)
    texts = made_up_reports(6, seed=51)
    whole = score_alone("BERTScore", texts[:3], texts[3:], bertscore=folder)
    state = load_file(folder / "model.safetensors")
    save_file({name: value.half() for name, value in state.items()}, folder / "model.safetensors", {"format": "pt"})
    assert score_alone("BERTScore", texts[:3], texts[3:], bertscore=folder) == pytest.approx(whole, abs=5e-3)
    state["embeddings.word_embeddings.weight"][7, 0] = math.nan
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    models = Models({"bertscore": folder})
    result = further_scores(["BERTScore"], {"": texts[:3]}, [[text] for text in texts[3:]], models)
    assert "not finite" in result.unavailable["BERTScore"]
