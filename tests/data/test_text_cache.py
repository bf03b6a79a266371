"""Tokenizers and token ids that are kept beside the cache: the same as made anew, and made anew where they are not."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from radweave.core.errors import InputError
from radweave.core.study import LabelState
from radweave.data import tokenizer
from radweave.data import tokenizer as tokenizer_module
from radweave.data.tokenizer import (
    BpeTokenizerConfig,
    built_tokenizer,
    encode,
    label_states,
    token_ids,
    tokenizer_fingerprint,
)
from radweave.labels import get_labeler
from radweave.labels import labeler as labeler_room
from radweave.labels.labeler import states

CONFIG = BpeTokenizerConfig(vocab_size=300, min_frequency=1)
TEXTS = ["No effusion, 12 mm.", "Left <s> opacity </s> seen.", "", "Größe: 3 cm\n", "No effusion, 12 mm."]


@pytest.fixture(autouse=True)
def _any_number_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_module, "FEWEST", 1)
    monkeypatch.setattr(tokenizer, "_TEXTS_AT_A_TIME", 2)


def _forbidden(*_: object, **__: object) -> None:
    raise AssertionError("made again")


def test_ids_are_those_of_each_text_and_read_back_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A word that looks like a special token is a word."""
    made = CONFIG.build(TEXTS)
    wanted = [encode(made, text) for text in TEXTS]
    first = token_ids(TEXTS, made, tmp_path)
    monkeypatch.setattr(tokenizer_module, "encode_all", _forbidden)
    second = token_ids(TEXTS, made, tmp_path)
    assert list(first) == list(second) == wanted
    assert made.eos_token_id not in wanted[1]
    assert second[0][0] is second[4][0]


def test_other_texts_or_another_tokenizer_miss_the_cache(tmp_path: Path) -> None:
    made, other = CONFIG.build(TEXTS), CONFIG.build(["abc abd abe"])
    token_ids(TEXTS, made, tmp_path)
    cut_elsewhere = [TEXTS[0] + TEXTS[1][:4], TEXTS[1][4:], *TEXTS[2:]]
    for texts, by in ((TEXTS[::-1], made), (TEXTS, other), (["No effusion,", " 12 mm."], made), (cut_elsewhere, made)):
        assert list(token_ids(texts, by, tmp_path)) == [encode(by, text) for text in texts]
    assert len(list((tmp_path / ".cache").glob("ids-*.npy"))) == 5


@pytest.mark.parametrize("damage", [b"", b"\x93NUMPY nonsense", None])
def test_damaged_ids_are_made_again(tmp_path: Path, damage: bytes | None) -> None:
    made = CONFIG.build(TEXTS)
    wanted = list(token_ids(TEXTS, made, tmp_path))
    (place,) = (tmp_path / ".cache").glob("ids-*.npy")
    whole = place.read_bytes()
    place.write_bytes(whole[:-4] + b"\x01\x00\x00\x00" if damage is None else damage)
    assert list(token_ids(TEXTS, made, tmp_path)) == wanted
    assert place.read_bytes() == whole


def test_a_kept_tokenizer_is_the_trained_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = built_tokenizer(CONFIG, TEXTS, own=None, dataset=tmp_path)
    other = built_tokenizer(CONFIG, TEXTS[:2], own=None, dataset=tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(BpeTokenizerConfig, "_trained", _forbidden)
        cached = built_tokenizer(CONFIG, TEXTS, own=None, dataset=tmp_path)
    fingerprints = [tokenizer_fingerprint(one) for one in (trained, cached, CONFIG.build(TEXTS), other)]
    assert fingerprints[0] == fingerprints[1] == fingerprints[2] != fingerprints[3]
    assert encode(cached, TEXTS[1]) == encode(trained, TEXTS[1])
    for place in (tmp_path / ".cache").glob("bpe-*.json"):
        text = place.read_text()
        assert "<s>" in text
        place.write_text(text.replace("<s>", "<t>"))
    second = built_tokenizer(CONFIG, TEXTS, own=None, dataset=tmp_path)
    assert tokenizer_fingerprint(second) == fingerprints[0]
    with pytest.raises(InputError):
        built_tokenizer(CONFIG, TEXTS, own="a checkpoint with words of its own", dataset=tmp_path)


def test_a_read_only_data_set_caches_nothing(tmp_path: Path) -> None:
    made = CONFIG.build(TEXTS)
    (tmp_path / ".cache").write_text("a file where the folder would be")
    assert list(token_ids(TEXTS, made, tmp_path)) == [encode(made, text) for text in TEXTS]
    fingerprint = tokenizer_fingerprint(built_tokenizer(CONFIG, TEXTS, own=None, dataset=tmp_path))
    assert fingerprint == tokenizer_fingerprint(made)


def test_numbers_of_another_kind_are_no_ids(tmp_path: Path) -> None:
    made = CONFIG.build(TEXTS)
    wanted = list(token_ids(TEXTS, made, tmp_path))
    (place,) = (tmp_path / ".cache").glob("ids-*.npy")
    np.save(place, np.zeros((3, 3)))
    assert list(token_ids(TEXTS, made, tmp_path)) == wanted


def test_least_recently_used_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of other programs stay."""
    monkeypatch.setattr(tokenizer_module, "MAX_FILES", 2)
    made, cache = CONFIG.build(TEXTS), tmp_path / ".cache"
    cache.mkdir()
    (cache / "ids-mine.npy").write_bytes(b"")

    def ids(*texts: str) -> None:
        token_ids(texts, made, tmp_path)

    def age(by: int) -> None:
        for file in cache.glob("*"):
            os.utime(file, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns - by))

    ids("a")
    (first,) = set(cache.iterdir()) - {cache / "ids-mine.npy"}
    age(10**9)
    ids("b")
    age(10**9)
    ids("a")
    age(10**9)
    ids("c")
    assert first.exists()
    assert len(list(cache.iterdir())) == 3
    assert (cache / "ids-mine.npy").exists()
    for texts in (["x y z"], ["x y w"], ["x y v"]):
        built_tokenizer(CONFIG, texts, own=None, dataset=tmp_path)
    assert len(list(cache.glob("bpe-*"))) == 2


def test_states_are_those_of_each_text_and_read_back_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each text is read once a block; other words of the labeler, or damage, and all are read again."""
    monkeypatch.setattr(labeler_room, "READ_TOGETHER", 3)
    labeler = get_labeler("chexpert14")
    texts = ["No effusion.", "Edema is seen.", "No effusion.", "Possible edema.", "", "Edema is seen."]
    wanted = [{name: mention.state for name, mention in row.items()} for row in labeler.label(texts)]
    texts_read: list[list[str]] = []

    def read(block: Sequence[str]) -> Iterable[Mapping[str, LabelState]]:
        texts_read.append(list(block))
        return states(labeler, block)

    def states_by(*by: str) -> list[Mapping[str, LabelState]]:
        return list(label_states(texts, read, tmp_path, classes=labeler.classes, by=by))

    assert states_by("a") == states_by("a") == wanted
    assert texts_read == [texts]
    assert states_by("b") == wanted
    assert len(texts_read) == 2
    for place in (tmp_path / ".cache").glob("states-*.npy"):
        place.write_bytes(place.read_bytes()[:-4] + b"\x01\x01\x01\x01")
    assert states_by("a") == wanted
    assert len(texts_read) == 3
