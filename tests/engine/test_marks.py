"""No draft has marks of de-identification unless they are asked for, whatever writes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from radweave.data.dataset import Dataset
from radweave.data.tokenizer import encode
from radweave.engine.drafts import EMPTY, MARKS_REMOVED
from radweave.engine.restore import restore
from radweave.inference.predictor import Predictor
from radweave.labels.comparisons import without_marks
from radweave.nn.decoding import OWN_DECODER, DecodingConfig, Prefixes, Written
from radweave.nn.language_model import CausalLanguageModel
from tests.command_line import radweave

MARKED = "The heart is normal. There is an XXXX opacity on the left. No effusion."


@pytest.mark.parametrize(
    ("text", "now"),
    [
        ("Lungs are clear. XXXX normal.", "Lungs are clear."),
        ("xxxx spine . no effusion .", "no effusion ."),
        ("Seen by Dr. ___. Heart normal.", "Heart normal."),
        ("Compared with [**2101-3-4**] it grew. Heart normal.", "Heart normal."),
        ("Lungs are clear.", "Lungs are clear."),
        ("A 3 x 4 cm mass, snake_case.", "A 3 x 4 cm mass, snake_case."),
        ("XXXX.", ""),
    ],
)
def test_sentences_with_marks_are_removed_whole(text: str, now: str) -> None:
    assert without_marks(text)[0] == now
    assert bool(without_marks(text)[1]) == (now != text)


@pytest.mark.parametrize("options", [[], ["num_beams=2"], ["do_sample=true"]])
def test_drafts_of_a_decoder_have_no_marks_unless_requested(
    toy_run: Path, toy_dataset: Dataset, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    run, options = restore(toy_run), [OWN_DECODER, *options]
    text = MARKED

    def write(self: CausalLanguageModel, batches: Iterator[Prefixes], decoding: DecodingConfig) -> Iterator[Written]:
        ids = encode(run.tokenizer, text)
        for one in batches:
            yield [ids] * len(one.embeds), [[0.0] * len(ids)] * len(one.embeds)

    monkeypatch.setattr(CausalLanguageModel, "write", write)
    image = [toy_dataset.image_path("images/1_0.png")]
    report = Predictor.of(run, decoding=options).report(image)
    assert report.text == "The heart is normal. No effusion."
    assert [row["text"] for row in report.evidence["sentences"]] == ["The heart is normal.", "No effusion."]
    assert report.evidence[MARKS_REMOVED] == ["There is an XXXX opacity on the left."]
    assert any("marks of de-identification" in warning for warning in report.warnings)
    unedited = Predictor.of(run, decoding=[*options, "deidentification_marks=keep"]).report(image)
    assert unedited.text == MARKED
    assert MARKS_REMOVED not in unedited.evidence
    text = "XXXX."
    nothing = Predictor.of(run, decoding=options).report(image)
    assert nothing.text == ""
    assert EMPTY in nothing.warnings


def test_a_file_of_drafts_is_scored_with_and_without(tmp_path: Path) -> None:
    rows = [{"study_id": f"s{n}", "ref": "The heart is normal. No effusion.", "hyp": MARKED} for n in range(3)]
    path = tmp_path / "drafts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    scores = []
    for options in ([], ["--without-marks"]):
        done = radweave("evaluate", path, "--json", "--no-meteor", "--resamples", "0", *options)
        scores.append(json.loads(done.stdout)["corpus"]["BLEU_4"]["value"])
    assert scores[0] < scores[1] == pytest.approx(1.0)
