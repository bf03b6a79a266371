"""The page of a stage that rewards drafts: all that is watched on it, and nothing loaded."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from radweave.engine.reward_page import POINTS, panels, write_reward_page

UPDATE = {"loss": 0.1, "reward": 0.5, "reward_findings": 0.25, "reward_likeliest": 0.4, "reward_edited": 0.7,
          "kl": 0.01, "entropy": 1.5, "length": 20.0, "distinct": 0.75, "constant": 0.0}  # fmt: skip
VALIDATION = {"loss": 0.0, "report": 0.6, "CIDEr": 0.9, "reward": 0.45, "reward_findings": 0.3, "distinct": 0.2}


def epoch(number: int, *drafts: str) -> dict[str, Any]:
    shown = [[draft, f"Report {place} <b>"] for place, draft in enumerate(drafts)]
    return {"stage": "reward", "step": 2 * number, "epoch": number - 1, "validation": VALIDATION, "drafts": shown}


def page(folder: Path, rows: list[dict[str, Any]]) -> str:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return write_reward_page(folder, "reward", "baseline").read_text()


def test_the_page_shows_every_figure_and_the_drafts_that_changed(tmp_path: Path) -> None:
    updates = [{"stage": "reward", "step": step, "epoch": 0, **UPDATE} for step in (1, 2)]
    other = {"stage": "report", "step": 9, "epoch": 0, "loss": 3.0}
    text = page(
        tmp_path,
        [other, *updates, epoch(1, "Heart & lungs.", "Clear."), epoch(2, "Heart & lungs.", ""), epoch(3, "Big.", "")],
    )
    titles = re.findall(r'<li class="card"><h2[^>]*>([^<]*)</h2>', text)
    assert [title.partition(",")[0].partition(":")[0] for title in titles] == [
        "Reward", "Reward", "Divergence from before the stage", "Entropy", "Length of samples", "Distinct",
        "Studies whose samples all have one reward", "Reward of edited samples", "Loss of the reports",
    ]  # fmt: skip
    assert "last: samples 0.500, likeliest 0.400, validation 0.450" in text
    assert "6 updates, 3 epochs" in text
    assert text.count("Report 0 &lt;b&gt;") == 1
    assert re.findall(r"<h3>(Draft [^<]*)</h3><p>([^<]*)</p>", text) == [
        ("Draft of epoch 1", "Heart &amp; lungs."), ("Draft since epoch 3", "Big."),
        ("Draft of epoch 1", "Clear."), ("Draft since epoch 2", "(empty)"),
    ]  # fmt: skip
    assert not re.search(r"https?:|src=|url\(|<script|@import", text), "nothing is loaded"
    assert "default-src 'none'" in text


def test_lines_are_means_of_neighbours_within_their_panel() -> None:
    rows = [{"step": step, "reward": step % 2, "kl": None} for step in range(1, 10 * POINTS + 1)]
    (panel,) = panels(rows, [])
    assert panel.samples == [(10 * number, 0.5) for number in range(1, POINTS + 1)]
    (panel,) = panels([{"step": 1, "reward": 0.2}, {"step": 4, "reward": 0.6}, {"step": 3, "reward": 0.4}], [])
    assert panel.places(panel.samples, 4) == [(80.0, 110.0), (320.0, 0.0), (240.0, 55.0)]
    (panel,) = panels([{"step": 1, "reward": 0.2}], [])
    assert panel.path(panel.samples, 1) == "M320.0 110.0", "one value has no range"


def test_a_stage_without_an_epoch_has_a_page(tmp_path: Path) -> None:
    text = page(tmp_path, [{"stage": "reward", "step": 1, "epoch": 0, **UPDATE}])
    assert "1 updates, 0 epochs" in text
    assert "Validation" not in text.partition("</style>")[2].partition("<ul")[2]
