"""RaTEScore: entities, sentences and the score against loops and against the package's own numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertForTokenClassification, BertModel, BertTokenizer

from radweave.core.errors import InputError
from radweave.metrics.further import Models, further_scores
from radweave.metrics.ratescore import KINDS, WEIGHTS, RaTEScorer, entity_spans, sentences
from tests.metrics.score_folders import made_up_reports, write_bert, write_tagger

DENIED = 0.8716553966489615
CPU = torch.device("cpu")
PACKAGE = {0: 0.93431688, 1: 0.90704675, 3: 0.96031223, 4: 0.936642, 5: 0.95952885, 9: 0.94386781}
"""Number of a pair -> its score by the package."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    home = tmp_path_factory.mktemp("weights")
    return write_tagger(home / "tagger", positions=512), write_bert(home / "encoder", positions=512)


@pytest.mark.parametrize(
    ("labels", "spans"),
    [
        ("[ B I O ]", [(1, 2, "X")]),
        ("[ B O B ]", [(1, 1, "X"), (3, 3, "X")]),
        ("[ B B I O ]", [(1, 1, "X"), (2, 3, "X")]),
        ("[ O I I O ]", []),
        ("[ I B I O ]", [(2, 3, "X")]),
        # The label after the text decides too whether the last entity ends.
        ("[ O B I ]I", [(2, 3, "X")]),
        # An entity that runs to the end is lost after one that ended without a gap.
        ("[ B B I ]I", [(1, 1, "X")]),
    ],
)
def test_labels_become_entities_as_in_the_package(labels: str, spans: list[tuple[int, int, str]]) -> None:
    marks = labels.split()
    full = [f"{mark[-1]}-X" if mark[-1] in "BI" else "O" for mark in marks]
    assert entity_spans(full, [mark[0] in "[]" for mark in marks]) == spans


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("There are no nodules. The chest is intact.", ["There are no nodules.", "The chest is intact."]),
        ("1. Mild edema.\n2. Clear, e.g. in the left base.", ["Mild edema.", "2. Clear, e.g. in the left base."]),
        ("the lungs are clear . no effusion .", ["the lungs are clear . no effusion ."]),
        ("Heart size is normal . The lungs are clear .", ["Heart size is normal .", "The lungs are clear ."]),
        ("Size is 3.5 cm. It is new.", ["Size is 3.5 cm.", "It is new."]),
        ("Views.Lungs clear; none: stable", ["Views.Lungs clear; none: stable"]),
        ("IMPRESSION:\n1. No disease.\n2. Stable.", ["IMPRESSION:", "1. No disease.", "2. Stable."]),
        ("", []),
        ("\n . ", []),
    ],
)  # fmt: skip
def test_sentences_are_those_of_medspacy(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@torch.inference_mode()
def plain_scores(folders: tuple[Path, Path], drafts: list[str], references: list[str]) -> list[float]:
    """Loops from the definition, on labels and states of one text at a time."""
    tagger, encoder = (
        BertForTokenClassification.from_pretrained(folders[0]).eval(),
        BertModel.from_pretrained(folders[1]).eval(),
    )
    tokenizer = BertTokenizer.from_pretrained(folders[0])
    states: dict[str, torch.Tensor] = {}

    def entities(text: str) -> list[tuple[str, torch.Tensor]]:
        read = []
        for part in sentences(text):
            encoded = tokenizer(part, truncation=True, max_length=512, return_tensors="pt")
            labels = [tagger.config.id2label[int(i)] for i in tagger(**encoded).logits[0].argmax(-1)]
            tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"][0])
            for first, last, kind in entity_spans(labels, [token in ("[CLS]", "[SEP]") for token in tokens]):
                name = tokenizer.convert_tokens_to_string(tokens[first : last + 1])
                if name not in states:
                    ids = tokenizer(name, truncation=True, max_length=30, return_tensors="pt")
                    state = encoder(**ids).last_hidden_state[0, 0]
                    states[name] = state / state.norm()
                read.append((kind, states[name]))
        return read

    def directed(own: list[tuple[str, torch.Tensor]], other: list[tuple[str, torch.Tensor]]) -> float:
        above = below = 0.0
        for kind, state in own:
            cosines = (torch.stack([vector for _, vector in other]) @ state).tolist()
            # Equal names give equal cosines up to rounding; the first counts.
            highest = max(cosines)
            best = next(i for i, cosine in enumerate(cosines) if cosine > highest - 1e-6)
            matched = other[best][0]
            weight = WEIGHTS[KINDS.index(kind), KINDS.index(matched)]
            denied = "ANATOMY" not in (kind, matched) and ("NON-" in kind) != ("NON-" in matched)
            above += cosines[best] * weight * (DENIED if denied else 1)
            below += weight
        return above / below

    scores = []
    for draft, reference in zip(drafts, references, strict=True):
        both = entities(draft), entities(reference)
        if not all(both):
            scores.append(0.5)
            continue
        precision, recall = directed(both[1], both[0]), directed(both[0], both[1])
        scores.append(2 * precision * recall / (precision + recall))
    return scores


def test_ratescore_is_that_of_its_definition(folders: tuple[Path, Path]) -> None:
    drafts, references = made_up_reports(50, seed=3), made_up_reports(50, seed=4)
    drafts[:4], references[6] = ["", "lungs", "Größe 心臓 – … heart", "the " * 520], drafts[6]
    expected = plain_scores(folders, drafts, references)
    actual = RaTEScorer(*folders, device=CPU).score(list(zip(drafts, references, strict=True)))
    assert actual == pytest.approx(expected, abs=1e-5)
    assert actual[0] == 0.5
    assert np.std(actual) > 0.01


def test_ratescore_of_the_package_on_the_same_weights(folders: tuple[Path, Path]) -> None:
    """Expected: RaTEScore 0.6.0 with medspaCy 1.3.1, of pairs where no two names of different kinds tie."""
    drafts, references = (made_up_reports(50, seed, longest, capitals=True) for seed, longest in ((1, 40), (2, 60)))
    actual = RaTEScorer(*folders, device=CPU).score([(drafts[i], references[i]) for i in PACKAGE])
    assert actual == pytest.approx(list(PACKAGE.values()), abs=1e-5)


def test_a_tagger_of_other_kinds_is_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    other = write_tagger(tmp_path / "other", kinds=("PERSON", "PLACE"))
    with pytest.raises(InputError, match=r"PERSON, PLACE.*ABNORMALITY"):
        RaTEScorer(other, folders[1], device=CPU)
    result = further_scores(["RaTEScore"], {"": ["a"]}, [["a"]], Models({"rate-ner": other, "biolord": folders[1]}))
    assert "not a tagger" in result.unavailable["RaTEScore"]


def test_labels_and_states_are_read_from_disk_again(folders: tuple[Path, Path], tmp_path: Path) -> None:
    pairs = list(zip(made_up_reports(5, seed=7), made_up_reports(5, seed=8), strict=True))
    first = RaTEScorer(*folders, device=CPU, cache=tmp_path).score(pairs)
    files = sorted(tmp_path.rglob("*.safetensors"))
    assert len(files) == 2
    assert RaTEScorer(*folders, device=CPU, cache=tmp_path).score(pairs).tolist() == first.tolist()
    assert sorted(tmp_path.rglob("*.safetensors")) == files
