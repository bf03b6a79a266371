"""Adapters for trained labelers, on tiny random weights written to disk in the published layout."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import BertConfig, RobertaConfig

from radweave.core.errors import InputError
from radweave.core.study import LabelState
from radweave.labels import CHEXPERT14, CT18, Labeler, get_labeler
from radweave.labels.chexbert import HEAD_SIZES, STATES, CheXbertNetwork
from radweave.labels.radbert18 import RadBertNetwork

TEXTS = ["Heart size normal. Small left effusion.", "no effusion", "consolidation " * 600]
WORDS = ["heart", "size", "normal", ".", "small", "left", "effusion", "no", "consolidation"]


def _randomise(network: torch.nn.Module, seed: int) -> None:
    """Weights far enough from zero that texts differ in their labels."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)


@pytest.fixture
def chexbert_folder(tmp_path: Path) -> Path:
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    network = CheXbertNetwork(config)
    _randomise(network, seed=0)
    state = {f"module.{name}": value for name, value in network.state_dict().items()}
    state["module.bert.embeddings.position_ids"] = torch.arange(64)[None]
    torch.save({"epoch": 3, "model_state_dict": state}, tmp_path / "chexbert.pth")
    return tmp_path


@pytest.fixture
def radbert_folder(tmp_path: Path) -> Path:
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    letters = sorted(set("".join(TEXTS).lower() + "HSeŌĠ"))
    vocabulary = {token: index for index, token in enumerate([*special, *letters])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    config = RobertaConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=66,
        type_vocab_size=1,
        pad_token_id=1,
    )
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    network = RadBertNetwork(config)
    _randomise(network, seed=1)
    save_file(
        {name: value.contiguous() for name, value in network.state_dict().items()}, tmp_path / "radbert.safetensors"
    )
    return tmp_path


def test_chexbert_reads_the_published_layout(chexbert_folder: Path) -> None:
    labeler = get_labeler("chexbert", weights=chexbert_folder)
    assert isinstance(labeler, Labeler)
    assert labeler.name == "CheXbert"
    assert labeler.classes == CHEXPERT14
    labels = labeler.label(TEXTS)
    assert [set(each) for each in labels] == [set(CHEXPERT14)] * 3
    assert len({mention.state for each in labels for mention in each.values()}) > 2


def test_chexbert_takes_the_first_token_and_the_largest_logit(chexbert_folder: Path) -> None:
    labeler = get_labeler("chexbert", weights=chexbert_folder)
    config = BertConfig.from_json_file(str(chexbert_folder / "config.json"))
    network = CheXbertNetwork(config)
    _randomise(network, seed=0)
    network.eval()
    vocabulary = (chexbert_folder / "vocab.txt").read_text().split()
    tokens = ["[CLS]", "no", "effusion", "[SEP]"]
    ids = torch.tensor([[vocabulary.index(token) for token in tokens]])
    with torch.no_grad():
        hidden = network.bert(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0, 0]
        expected = [STATES[int((head.weight @ hidden + head.bias).argmax())] for head in network.linear_heads]
    result = labeler.label(["no effusion"])[0]
    assert [result[name].state for name in CHEXPERT14] == expected


def test_chexbert_no_finding_has_two_states() -> None:
    assert HEAD_SIZES[CHEXPERT14.index("No Finding")] == 2
    assert STATES[:2] == (LabelState.BLANK, LabelState.POSITIVE)


def test_radbert_reads_safetensors_and_thresholds_at_one_half(radbert_folder: Path) -> None:
    labeler = get_labeler("radbert18", weights=radbert_folder)
    assert labeler.classes == CT18
    network = RadBertNetwork(RobertaConfig.from_json_file(str(radbert_folder / "config.json")))
    _randomise(network, seed=1)
    network.eval()
    vocabulary = json.loads((radbert_folder / "vocab.json").read_text())
    ids = torch.tensor([[vocabulary[token] for token in ["<s>", *"no", "Ġ", *"effusion", "</s>"]]])
    with torch.no_grad():
        chances = torch.sigmoid(network(ids, torch.ones_like(ids)))[0]
    result = labeler.label(["no effusion"])[0]
    assert [result[name].state is LabelState.POSITIVE for name in CT18] == (chances > 0.5).tolist()
    assert {mention.state for mention in result.values()} == {LabelState.POSITIVE, LabelState.BLANK}


@pytest.mark.parametrize(("name", "folder"), [("chexbert", "chexbert_folder"), ("radbert18", "radbert_folder")])
def test_labels_do_not_depend_on_batch_mates(name: str, folder: str, request: pytest.FixtureRequest) -> None:
    labeler = get_labeler(name, weights=request.getfixturevalue(folder))
    assert labeler.label(TEXTS) == [labeler.label([text])[0] for text in TEXTS]


@pytest.mark.parametrize(
    ("name", "folder", "file"),
    [
        ("chexbert", "chexbert_folder", "chexbert.pth"),
        ("chexbert", "chexbert_folder", "vocab.txt"),
        ("radbert18", "radbert_folder", "radbert.safetensors"),
        ("radbert18", "radbert_folder", "config.json"),
        ("radbert18", "radbert_folder", "merges.txt"),
    ],
)
def test_a_missing_file_is_named(name: str, folder: str, file: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(folder)
    (path / file).unlink()
    expected = "one file ending in" if file.startswith(("chexbert", "radbert")) else file
    with pytest.raises(InputError, match=expected):
        get_labeler(name, weights=path)


def test_weights_of_another_network_are_refused(chexbert_folder: Path, radbert_folder: Path) -> None:
    chexbert = chexbert_folder / "chexbert.pth"
    state = torch.load(chexbert, weights_only=True)["model_state_dict"]
    lost = state.pop("module.linear_heads.13.bias")
    torch.save({"model_state_dict": state}, chexbert)
    (chexbert_folder / "radbert.safetensors").unlink(missing_ok=True)
    with pytest.raises(InputError, match=r"linear_heads\.13\.bias"):
        get_labeler("chexbert", weights=chexbert_folder)
    state["module.linear_heads.13.bias"] = torch.zeros(len(lost) + 1)
    torch.save({"model_state_dict": state}, chexbert)
    with pytest.raises(InputError, match="another shape"):
        get_labeler("chexbert", weights=chexbert_folder)


class _Trap:
    """Writes a file when it is unpickled by a careless reader."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.marker),))


def test_a_pickle_with_code_is_refused_unopened(chexbert_folder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    torch.save({"model_state_dict": _Trap(marker)}, chexbert_folder / "chexbert.pth")
    with pytest.raises(InputError, match="not a readable weights file"):
        get_labeler("chexbert", weights=chexbert_folder)
    assert not marker.exists()


@pytest.mark.parametrize("content", [b"", b"not weights", b"\x80\x04."])
def test_broken_weights_are_refused(chexbert_folder: Path, content: bytes) -> None:
    (chexbert_folder / "chexbert.pth").write_bytes(content)
    with pytest.raises(InputError, match="not a readable weights file"):
        get_labeler("chexbert", weights=chexbert_folder)


def test_trained_labelers_ask_for_their_weights(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs its weights"):
        get_labeler("chexbert")
    with pytest.raises(InputError, match="no folder with the weights"):
        get_labeler("radbert18", weights=tmp_path / "absent")
