"""The demo, small: every file it promises, and a page that stands alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from radweave.cli.demo import FINDINGS_SHOWN, METHOD, run_demo, score_rows
from radweave.engine.restore import restore
from radweave.inference.predictor import Predictor
from radweave.labels import get_labeler
from radweave.phantom.study import PhantomOptions, draw_xray_study, slot_of, study_name
from tests.toys import TOY_OVERRIDES, TOY_SIZES


def test_scores_of_both_ways_of_drafting_stand_beside_the_floors(tmp_path: Path) -> None:
    references = ["There is a large left pleural effusion.", "No pleural effusion.", "The heart is enlarged."]
    drafts, own = tmp_path / "predictions.jsonl", tmp_path / "own.jsonl"
    for path, written in ((drafts, references), (own, ["No pleural effusion."] * 3)):
        rows = [
            {"study_id": f"s{number}", "hyp": hyp, "ref": ref}
            for number, (hyp, ref) in enumerate(zip(written, references, strict=True))
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    labeler = get_labeler("chexpert14")
    by_utility, by_itself, *_ = score_rows(drafts, own, labeler)
    assert (by_utility.name, by_itself.name) == ("the model, by utility", "the model, own decoder")
    assert (by_utility.scores["finding_f1"].value, by_itself.scores["finding_f1"].value) == (1, 0)
    alone = score_rows(own, None, labeler)
    assert [row.name for row in alone if not row.name.startswith("floor: ")] == ["the model"]
    assert alone[0].scores["BLEU_4"] == by_itself.scores["BLEU_4"]


def boxes_of(card: str, seed: int) -> list[tuple[float, ...]]:
    """x, y, width and height in pixels of the boxes of a card's study, which is drawn again with them."""
    name = card.split("Draft, study ")[1].split("<")[0]
    index = next(index for index in range(1000) if study_name(slot_of(seed, index))[1] == name)
    drawn = draw_xray_study(seed, index, PhantomOptions(image_size=160, boxes=True))
    shares = [(one.box, image.pixels.shape) for image in drawn.images for one in image.ref.boxes]
    return [
        tuple(round(value, 1) for value in (x0 * width, y0 * height, (x1 - x0) * width, (y1 - y0) * height))
        for (x0, y0, x1, y1), (height, width) in shares
    ]


@pytest.mark.long
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
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)""", html), "the page needs no other file"
    assert "<script" not in html
    drafts = (page.parent / "predictions.jsonl").read_text().splitlines()
    led = "<h2>A finding, drafted</h2>" in html
    assert html.count('<article class="card">') == len(drafts) + led
    assert "one constant report" in html
    assert html.count('<li><svg class="bar"') == FINDINGS_SHOWN * (len(drafts) + led)
    headings = ("<h2>What to try</h2>", 'id="cautions"', 'id="studies"', "<h2>Plots</h2>", "<h2>Tables</h2>")
    places = [html.index(words) for words in headings]
    assert places == sorted(places), "what to try, a line on what the model cannot do, then drafts, plots and tables"
    assert not led or html.index("<article") < places[0]
    warned = html[html.index('<details class="alert" id="cautions">') : html.index("</details>")]
    assert "Barely trained" in warned
    assert f"{warned.count('<li>')} warning" in warned
    study = html[html.index("<article") : html.index("</article>")]
    order = [
        study.index(words) for words in ("<svg class", "<h3>Draft", "Most probable", "The draft, marked", "Reference")
    ]
    assert order == sorted(order)
    assert study.count("<image href") == 2 * study.count("<figure"), "each view with its map"
    boxes = re.findall(r'<rect class="box" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', html)
    assert [tuple(map(float, box)) for box in boxes] == (boxes_of(study, 3) if led else [])
    assert "<b>Does not show:</b> It is not the outline of a lesion, and of no class" in html
    scores = json.loads((page.parent / "evaluation.json").read_text())
    bleu = scores["corpus"]["BLEU_4"]
    assert f"{bleu['value']:.3f}<small>{bleu['interval'][0]:.3f} to {bleu['interval'][1]:.3f}</small>" in html
    assert len(re.findall(r"<td>[\d.]+<small>", html)) >= 5 * 4, "every score has its interval"
    plots = re.findall(r'<img src="data:image/png;base64,[^"]+" alt="([^"]+)"', html)
    assert len(plots) >= 2
    assert all(len(words) > 20 for words in plots)
    run = restore(page.parent / "run")
    report = Predictor.of(run).report([next((page.parent / "phantom" / "images").rglob("*.png"))])
    assert any("phantom" in warning for warning in report.warnings)
