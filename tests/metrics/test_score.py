"""Scores and labels in one call: every way to give texts is the same texts, and what is no text is said to be none."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import radweave
from radweave.core.errors import InputError
from radweave.metrics import Options
from radweave.metrics.records import Score

HYPS = {"a": "lungs are clear .", "b": "there is a left effusion , and the heart is large ."}
REFS = {"a": "the lungs are clear .", "b": "left effusion and a large heart ."}
PLAIN = Options(meteor=False, floors=False, resamples=0)


def bleu(*inputs: Any, **named: Any) -> float:
    value = radweave.score(*inputs, options=PLAIN, **named).corpus["BLEU_2"].value
    assert value is not None
    return value


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_lists_mappings_and_files_score_alike(tmp_path: Path) -> None:
    expected = bleu(list(HYPS.values()), list(REFS.values()))
    assert 0 < expected < 1
    assert bleu(HYPS, {name: [REFS[name]] for name in ("b", "a")}) == expected, "ids pair them, not their order"
    pairs = [{"study_id": name, "hyp": HYPS[name], "ref": REFS[name]} for name in HYPS]
    cells = "".join(f'{name};"{HYPS[name]}";"{REFS[name]}"\n' for name in HYPS)
    both = [
        write(tmp_path / "p.jsonl", "".join(json.dumps(row) + "\n" for row in pairs)),
        write(tmp_path / "p.json", json.dumps(pairs)),
        write(tmp_path / "by_id.json", json.dumps({row["study_id"]: {**row, "study_id": "x"} for row in pairs})),
        write(tmp_path / "p.csv", "id;prediction;ground_truth\n" + cells),
    ]
    both[2].write_text(json.dumps({row["study_id"]: {"hyp": row["hyp"], "refs": [row["ref"]]} for row in pairs}))
    assert [bleu(path) for path in both] == [expected] * 4
    assert bleu(str(both[3])) == expected
    refs = write(tmp_path / "r.csv", "study_id,report\n" + "".join(f'{name},"{REFS[name]}"\n' for name in REFS))
    texts = write(tmp_path / "t.json", json.dumps(HYPS))
    assert bleu(HYPS, refs) == bleu(texts, refs) == bleu(both[0], both[1]) == expected


def test_fields_of_any_name(tmp_path: Path) -> None:
    from radweave.metrics.pairs import Fields

    path = write(
        tmp_path / "p.csv", "case,ours,theirs,ref\n" + "".join(f'{n},"{HYPS[n]}","{REFS[n]}",x\n' for n in HYPS)
    )
    named = Fields(study="case", hyp="ours", ref="theirs")
    assert bleu(path, fields=named) == bleu(HYPS, REFS)
    with pytest.raises(InputError, match=r"p\.csv, line 2: no field 'truth' \(got 4 other fields\)"):
        radweave.score(path, fields=Fields(study="case", hyp="ours", ref="truth"))


def test_a_score_is_printed_as_a_table_has_it() -> None:
    result = radweave.score(HYPS, REFS, options=Options(meteor=False, resamples=20)).corpus
    assert re.fullmatch(r"0\.\d{4} \[0\.\d{3}, 0\.\d{3}\]", str(result["BLEU_1"]))
    assert str(result["METEOR"]).startswith("none: ")
    assert str(Score(0.5)) == "0.5000"


@pytest.mark.parametrize(
    ("drafts", "references", "says"),
    [
        (3, ["x"], "drafts.*not texts.*got int"),
        (b"x", ["x"], "drafts.*not texts.*got bytes"),
        ([3], ["x"], "drafts.*not a text.*got int"),
        ([None], ["x"], "drafts.*not a text"),
        ([["a", "b"]], ["x"], "drafts.*not a text.*got tuple"),
        (["x"], ["a", "b"], "as many references.*got 2, expected 1"),
        (["x"], [""], "reference is empty"),
        (["x"], None, "references.*nothing to compare with"),
        ({"a": "x"}, {"b": "y"}, "study ids .* differ"),
        ({None: "x"}, {"a": "y"}, "not a study id"),
        ("nowhere.csv", ["x"], "nowhere.csv.*missing"),
        ([], [], "no pairs"),
    ],
)
def test_a_non_text_input_is_named(drafts: Any, references: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        radweave.score(drafts, references)


def test_labels_of_a_list_a_mapping_and_a_file(tmp_path: Path) -> None:
    text = "Small left effusion. No pneumothorax."
    states = radweave.label([text])[0]
    assert (states["Pleural Effusion"], states["Pneumothorax"], states["Edema"]) == ("positive", "negative", "blank")
    assert radweave.label({"s1": text}) == {"s1": states}
    assert radweave.label(write(tmp_path / "r.json", json.dumps({"s1": text}))) == {"s1": states}
    assert "Lung nodule" in radweave.label([text], ontology="ct18")[0]
    for wrong in (text, [3], 3, b"x"):
        with pytest.raises(InputError, match="texts"):
            radweave.label(wrong)  # type: ignore[call-overload]


def test_package_imports_fast_and_lists_its_names() -> None:
    script = (
        "import sys, radweave; assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
        "print(dir(radweave)); radweave.score; assert 'transformers' not in sys.modules\n"
        "try: radweave.scores\nexcept AttributeError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "'Dataset', '__version__', 'label', 'load', 'score'" in done.stdout
    assert "module 'radweave' has no attribute 'scores'" in done.stdout


def test_a_notebook_shows_scores_with_floors_and_the_notice() -> None:
    result = radweave.score(HYPS, REFS, options=Options(meteor=False, resamples=20))
    html = result._repr_html_()
    assert "BLEU_4" in html
    assert "one constant report" in html
    assert "not a medical device" in html
    assert all(sentence.replace("'", "&#x27;") in html for sentence in result.warnings())
