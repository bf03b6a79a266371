"""The demo, small: every file it promises, and a page that stands alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

from radweave.demo import FINDINGS_SHOWN, METHOD, run_demo
from radweave.generate.predictor import Predictor
from radweave.runs.restore import restore
from toys import TOY_OVERRIDES, TOY_SIZES


def test_the_demo_ends_with_a_self_contained_page(tmp_path: Path) -> None:
    small = [option for option in TOY_SIZES[METHOD] if not option.startswith(("data.ct", "model.vision_encoder"))]
    encoder = [
        "model.vision_encoder.start=nothing",
        "model.vision_encoder.embedding_size=8",
        "model.vision_encoder.hidden_sizes=[8,8,16,16]",
    ]
    overrides = [*TOY_OVERRIDES, *small, *encoder, "stages.report.epochs=2"]
    page = run_demo(tmp_path / "demo", num_studies=40, seed=3, overrides=overrides)
    assert page == tmp_path / "demo" / "index.html"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo"]
    names = {path.name for path in page.parent.iterdir()}
    assert names == {"phantom", "run", "predictions.jsonl", "evaluation.json", "index.html"}
    html = page.read_text()
    assert "not a medical device" in html
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", html), "the page needs no other file"
    assert "<script" not in html
    assert html.count("<article>") == len((page.parent / "predictions.jsonl").read_text().splitlines())
    assert "one constant report" in html
    assert html.count("<meter") == FINDINGS_SHOWN * html.count("<article>")
    scores = json.loads((page.parent / "evaluation.json").read_text())
    assert f"{scores['corpus']['BLEU_4']['value']:.3f}" in html
    run = restore(page.parent / "run")
    report = Predictor.of(run).report([next((page.parent / "phantom" / "images").rglob("*.png"))])
    assert any("phantom" in warning for warning in report.warnings)
