"""Runs whose files were changed and whose hashes were made again: refused by what they say, or the draft says so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from radweave.core.errors import InputError
from radweave.core.foreign_files import refuse_hostile
from radweave.core.foreign_tokenizers import refuse_endless_steps, refuse_long_texts
from radweave.data.leaks.identity import comparable_id
from radweave.data.tokenizer import BpeTokenizerConfig, decode, encode
from radweave.engine.drafts import EMPTY
from radweave.engine.restore import restore
from radweave.engine.run_folder import hash_files, read_card_alone
from radweave.inference.predictor import Predictor
from radweave.nn.decoding import OWN_DECODER
from tests.toys import rewrite_card, toy_image


def _weights(run: Path, change: Callable[[Tensor], Tensor], **metadata: str) -> None:
    path = run / "weights.safetensors"
    with safe_open(str(path), "pt") as file:
        header = {**file.metadata(), **metadata}
    save_file({name: change(value) for name, value in load_file(str(path)).items()}, str(path), metadata=header)


KINDS = (torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float64)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_another_type_are_refused(kind: torch.dtype, run: Path) -> None:
    _weights(run, lambda value: value.to(kind) if value.is_floating_point() else value)
    rewrite_card(run, files=hash_files(run))
    with pytest.raises(InputError, match=r"weights\.safetensors.*weights do not fit this model.*expected F32"):
        restore(run)


def test_an_empty_draft_says_that_it_is_empty(run: Path, tmp_path: Path) -> None:
    _weights(run, torch.zeros_like)
    rewrite_card(run, files=hash_files(run))
    predictor = Predictor.of(restore(run), decoding=[OWN_DECODER])
    report = predictor.report([toy_image(tmp_path / "a.png", bright_side="left", seed=3)], force=True)
    assert report.text == ""
    assert EMPTY in report.warnings


def test_a_run_without_its_ood_detector_is_refused(run: Path) -> None:
    shutil.rmtree(run / "familiarity")
    rewrite = json.loads((run / "run.json").read_text())
    rewrite["files"] = hash_files(run)
    (run / "run.json").write_text(json.dumps(rewrite))
    with pytest.raises(InputError, match=r"files: familiarity/ is not among them"):
        restore(run)


def test_classes_and_modality_are_those_of_the_configuration(run: Path) -> None:
    card = read_card_alone(run)
    rewrite_card(run, dataset={**card.dataset.model_dump(mode="json"), "modality": "ct"})
    with pytest.raises(InputError, match=r"modality is not that of config\.yaml"):
        restore(run)
    turned = list(card.classes)[::-1]
    with safe_open(str(run / "weights.safetensors"), "pt") as file:
        names = [name for name, value in file.metadata().items() if json.loads(value) == list(card.classes)]
    assert names
    _weights(run, lambda value: value, **{name: json.dumps(turned) for name in names})
    rewrite_card(run, dataset=card.dataset.model_dump(mode="json"), classes=turned, files=hash_files(run))
    with pytest.raises(InputError, match=r"classes are not those of config\.yaml"):
        restore(run)


def test_a_card_bears_the_research_notice_and_no_other(run: Path) -> None:
    values = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**values, "notice": "approved for clinical use"}))
    with pytest.raises(InputError, match=r"run\.json.*notice"):
        read_card_alone(run)


def test_a_key_that_comes_twice_is_refused(run: Path) -> None:
    with (run / "config.yaml").open("a") as file:
        file.write("\nseed: 5\n")
    rewrite_card(run, files=hash_files(run))
    with pytest.raises(InputError, match=r"config\.yaml: not valid YAML: a key comes twice"):
        restore(run)


def test_a_prompt_without_end_is_refused(run: Path) -> None:
    text = (run / "config.yaml").read_text()
    assert "  prompt: " in text
    (run / "config.yaml").write_text(text.replace("  prompt: ", f"  prompt: '{'x ' * 6000}{{image}}' # ", 1))
    rewrite_card(run, files=hash_files(run))
    with pytest.raises(InputError, match=r"config\.yaml.*prompt.*at most 10000"):
        restore(run)


def _replace(pattern: dict[str, str], content: str, times: int = 1) -> list[dict[str, Any]]:
    return [{"type": "Replace", "pattern": pattern, "content": content}] * times


TOKENIZERS: dict[str, dict[str, Any]] = {
    "a text grows a hundredfold": {"normalizer": _replace({"String": "e"}, "e" * 100)[0]},
    "a text grows in steps": {"normalizer": {"type": "Sequence", "normalizers": _replace({"String": "e"}, "ee", 6)}},
    "an answer grows": {"decoder": {"type": "Sequence", "decoders": _replace({"Regex": "[a-z]"}, "eee", 4)}},
    "a pattern backtracks": {"decoder": _replace({"Regex": "(x+x+)+y"}, "e")[0]},
    "a pattern repeats a repeat": {"decoder": _replace({"Regex": "[a-z]+*"}, "e")[0]},
    "an unknown decoder": {"decoder": {"type": "Shell"}},
    "an unknown normalizer": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Shell"}]}},
    "an unknown pre-tokenizer": {"pre_tokenizer": {"type": "Shell"}},
    "an unknown post-processor": {"post_processor": {"type": "Shell"}},
    "no step": {"decoder": "ByteLevel"},
    "many steps": {"decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}] * 100}},
    "a long start": {"normalizer": {"type": "Prepend", "prepend": "x" * 100}},
    "a long template": {"post_processor": {"type": "TemplateProcessing", "single": [{}] * 1000, "pair": []}},
    "a long special token": {
        "post_processor": {"type": "TemplateProcessing", "special_tokens": {"<s>": {"ids": [1] * 1000}}}
    },
    "a long added token": {"added_tokens": [{"id": 1, "content": "z" * 5000}]},
    "many added tokens": {"added_tokens": [{"id": 1, "content": "z"}] * 10_001},
    "many special tokens": {
        "post_processor": {"type": "TemplateProcessing", "special_tokens": {f"<{n}>": {} for n in range(10_001)}}
    },
    "many words": {"model": {"type": "BPE", "vocab": {str(n): n for n in range(1_000_001)}}},
    "many merges": {"model": {"type": "BPE", "vocab": {}, "merges": [0] * 1_000_001}},
    "a tree of tokens": {"added_tokens": [[0] * 9_999] * 11},
    "a long word": {"model": {"type": "BPE", "vocab": {"z" * 5000: 1}}},
    "a giant padding": {"padding": {"strategy": {"Fixed": 2_000_000_000}}},
}


@pytest.mark.long
@pytest.mark.parametrize("what", TOKENIZERS)
def test_a_tokenizer_that_takes_for_ever_is_refused(what: str, run: Path) -> None:
    path = run / "tokenizer" / "tokenizer.json"
    content = json.loads(path.read_text())
    refuse_endless_steps(content, path)
    path.write_text(json.dumps({**content, **TOKENIZERS[what]}))
    rewrite_card(run, files=hash_files(run))
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        restore(run)


TOKEN_FILES: dict[str, Callable[[int], dict[str, Any]]] = {
    "special_tokens_map.json": lambda count: {"additional_special_tokens": [f"<{n}>" for n in range(count)]},
    "tokenizer_config.json": lambda count: {"additional_special_tokens": [f"<{n}>" for n in range(count)]},
    "tokenizer_config.json, by id": lambda count: {
        "added_tokens_decoder": {str(n): {"content": f"<{n}>", "special": True, "lstrip": False} for n in range(count)}
    },
    "tokenizer_config.json, by name": lambda count: {"extra_special_tokens": {f"t{n}": f"<{n}>" for n in range(count)}},
    "added_tokens.json": lambda count: {f"<{n}>": n for n in range(count)},
}


@pytest.mark.parametrize("what", TOKEN_FILES)
def test_very_many_tokens_are_refused_in_every_file_that_may_list_them(what: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    path = tmp_path / what.partition(",")[0]
    path.write_text(json.dumps(TOKEN_FILES[what](6_500)))
    refuse_hostile(tmp_path, "tokenizer", what="a tokenizer")
    for count in (10_001, 100_000):
        path.write_text(json.dumps(TOKEN_FILES[what](count)))
        with pytest.raises(InputError, match="too many tokens") as caught:
            refuse_hostile(tmp_path, "tokenizer", what="a tokenizer")
        assert caught.value.file == str(path)


@pytest.mark.parametrize("name", ["merges.txt", "vocab.txt", "tokenizer.model", "vocab.json", "tokenizer.json"])
def test_a_giant_file_of_a_tokenizer_is_refused_unread(name: str, tmp_path: Path) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(InputError, match="too large for a tokenizer"):
        refuse_hostile(tmp_path, "tokenizer", what="a tokenizer")


@pytest.mark.long
def test_a_vocabulary_of_a_million_words_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({str(n): n for n in range(1_000_001)}))
    with pytest.raises(InputError, match=r"vocab\.json: too many words"):
        refuse_hostile(tmp_path, "tokenizer", what="a tokenizer")


def test_published_tokenizers_are_let_through(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").touch()
    space = _replace({"String": " "}, "\u2581")[0]
    llama = {
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, space]},
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip"}]},
    }
    several = {"normalizer": {"type": "Sequence", "normalizers": _replace({"Regex": " {2,}"}, "\u2581")}}
    blanks = {"normalizer": _replace({"Regex": "\\s+"}, " ")[0], "pre_tokenizer": None}
    for content in (llama, several, blanks):
        refuse_endless_steps(content, tmp_path / "tokenizer.json")
    refuse_long_texts({"chat_template": "x" * 20_000, "eos_token": "</s>"}, tmp_path / "tokenizer.json")


def test_words_of_a_report_are_no_special_tokens() -> None:
    tokenizer = BpeTokenizerConfig(vocab_size=300).build(["No effusion. The heart is normal."] * 3)
    for text in ("No </s> effusion.", "<pad><s>", "No effusion."):
        ids = encode(tokenizer, text)
        assert not set(ids) & set(tokenizer.all_special_ids)
        assert decode(tokenizer, ids) == text
    assert encode(tokenizer, "No effusion.") == tokenizer.encode("No effusion.", add_special_tokens=False)


SAME = (
    ("Patient P12", "Patient  P12"), ("Patient P12", "Patient\tP12"), ("P12", "P\u034f12"), ("P12", "P12\ufe0f"),
    ("P12", "P\u316412"), ("Patient P12", "Patient\u2800P12"), ("P12a", "P12a\u0301"), ("PATIENT1", "PAT\u0130ENT1"),
    ("12", "12.0"), ("12", "12.00"), ("12", "'12"), ("12", '"12"'),
)  # fmt: skip


@pytest.mark.parametrize(("one", "other"), SAME)
def test_ids_of_one_patient_compare_as_one(one: str, other: str) -> None:
    assert comparable_id(one) == comparable_id(other)


@pytest.mark.parametrize(
    ("one", "other"), [("12", "120"), ("12", "1.2"), ("P1 2", "P12"), ("100", "1000"), ("a.b", "ab")]
)
def test_ids_of_two_patients_do_not(one: str, other: str) -> None:
    assert comparable_id(one) != comparable_id(other)


def test_a_bank_to_draft_from_with_a_value_that_is_not_finite_is_refused(run: Path, tmp_path: Path) -> None:
    path = run / "drafting" / "bank" / "bank.safetensors"
    tensors = load_file(str(path))
    tensors["embeddings"][2, 1] = torch.inf
    save_file(tensors, str(path))
    rewrite_card(run, files=hash_files(run))
    image = toy_image(tmp_path / "a.png", bright_side="left", seed=3)
    with pytest.raises(InputError, match=r"embeddings.*a value of the bank 'drafting' is not finite"):
        Predictor.of(restore(run), decoding=["kind=expected_utility"]).report([image])


def test_a_run_of_the_format_before_is_refused_in_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the version before wrote it: neither memories nor a calibration."""
    import radweave
    from tests.command_line import radweave as command

    values = json.loads((run / "run.json").read_text())
    files = {name: digest for name, digest in values["files"].items() if name != "calibration.json"}
    (run / "calibration.json").unlink()
    del values["memories"], values["without"]
    (run / "run.json").write_text(json.dumps({**values, "version": 2, "files": files}))
    with pytest.raises(InputError, match="train it again with this one"):
        radweave.load(run)
    done = command("generate", run, toy_image(tmp_path / "a.png", bright_side="left", seed=3))
    assert done.returncode == 2
    assert "train it again with this one" in done.stderr
    assert "Traceback" not in done.stderr
