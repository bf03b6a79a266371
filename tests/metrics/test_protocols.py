"""Named protocols: what they do to the texts, and that a hash tells them apart."""

from __future__ import annotations

import pytest

from radweave.core.errors import InputError
from radweave.labels import get_labeler
from radweave.metrics import PROTOCOLS, Options, Pair, evaluate_pairs, get_protocol
from radweave.metrics.prepare import prepare
from radweave.metrics.protocols import ProtocolRecord, Vocabulary

PLAIN = Options(meteor=False, floors=False, resamples=0)
PAIRS = (
    Pair("a", "The heart is normal.", ("The heart is normal. No effusion.",)),
    Pair("b", "Small left effusion.", ("There is a small left pleural effusion.",)),
)
ASKED_FOR = {
    "full",
    "ws",
    "ws_lower",
    "dots",
    "ptb",
    "r2gen_iu",
    "r2gen_mimic",
    "r2gen_iu_60",
    "r2gen_mimic_100",
    "r2gengpt_mimic",
    "promptmrg",
    "hf",
    "vlm3d",
}


def test_every_protocol_has_its_own_hash() -> None:
    assert set(PROTOCOLS) >= ASKED_FOR
    assert len({ProtocolRecord(protocol).language_hash for protocol in PROTOCOLS.values()}) == len(PROTOCOLS)


def test_hash_depends_on_rules_vocabulary_and_labeler_but_not_on_the_name() -> None:
    protocol = get_protocol("r2gen_iu_60")
    renamed = protocol.model_copy(update={"name": "mine", "description": "same rules"})
    assert ProtocolRecord(renamed).hash == ProtocolRecord(protocol).hash
    vocabulary = Vocabulary(frozenset({"heart"}), 3)
    assert ProtocolRecord(protocol, vocabulary).language_hash != ProtocolRecord(protocol).language_hash
    labelled = ProtocolRecord(protocol, labeler="rule-based 1")
    assert labelled.hash != ProtocolRecord(protocol).hash
    assert labelled.language_hash == ProtocolRecord(protocol).language_hash


def test_unknown_protocol_names_the_others() -> None:
    with pytest.raises(InputError, match="did you mean 'r2gen_iu'"):
        get_protocol("r2gen_ui")


def test_default_never_cuts_a_reference() -> None:
    long = Pair("a", "normal", (" ".join(["word"] * 500),))
    full = prepare([long], get_protocol("full"))
    assert full.effects.references_cut == 0
    assert full.effects.mean_reference_tokens == 500
    cut = prepare([long], get_protocol("r2gen_iu_60"))
    assert cut.effects.references_cut == 1
    # The start symbol takes one of R2Gen's 60 places.
    assert len(cut.refs[0][0].split()) == 59


@pytest.mark.parametrize("name", ["r2gen_iu", "r2gen_mimic", "r2gen_iu_60", "r2gen_mimic_100"])
def test_clean_text_stays_as_it_is(name: str) -> None:
    """Outputs of these models are clean already; cleaning again must not add a blank, which ROUGE-L would count."""
    clean = "the heart is normal . no effusion ."
    prepared = prepare([Pair("a", clean, (clean,))], get_protocol(name))
    assert (prepared.hyps, prepared.refs) == ([clean], [[clean]])


def test_vocabulary_comes_from_training_reports_and_marks_rare_reference_words() -> None:
    protocol = get_protocol("r2gen_iu_60")
    vocabulary = Vocabulary.of(["The heart is normal."] * 3 + ["Rare granuloma."], protocol)
    assert vocabulary is not None
    assert vocabulary.words == {"the", "heart", "is", "normal", "."}
    prepared = prepare([Pair("a", "rare heart", ("The heart is rare.",))], protocol, vocabulary)
    assert prepared.refs == [["the heart is <unk> ."]]
    assert prepared.hyps == ["rare heart ."]
    assert prepared.effects.references_with_unknown_words == 1
    assert Vocabulary.of(["a"], get_protocol("full")) is None


def test_unknown_words_that_are_cut_off_are_not_counted() -> None:
    protocol = get_protocol("r2gen_iu_60")
    vocabulary = Vocabulary.of(["heart"] * 3, protocol)
    long = Pair("a", "heart", ("heart " * 59 + "rare",))
    prepared = prepare([long], protocol, vocabulary)
    assert prepared.effects.references_cut == 1
    assert prepared.effects.references_with_unknown_words == 0


def test_promptmrg_cuts_references_at_100_words_and_leaves_a_trailing_blank() -> None:
    prepared = prepare([Pair("a", "clear.", (" ".join(["word"] * 150),))], get_protocol("promptmrg"))
    assert len(prepared.refs[0][0].split(" ")) == 100
    assert prepared.hyps == ["clear . "]


def test_protocols_give_different_scores_for_the_same_texts() -> None:
    values = {name: evaluate_pairs(PAIRS, name, options=PLAIN).corpus["BLEU_1"].value for name in ("ws", "full", "hf")}
    assert len(set(values.values())) == 3


def test_result_carries_protocol_and_labeler() -> None:
    evaluation = evaluate_pairs(PAIRS, "promptmrg", labeler=get_labeler("chexpert14"), options=PLAIN)
    result = evaluation.to_json()
    assert result["protocol"]["name"] == "promptmrg"
    assert "rule-based" in result["protocol"]["settings"]["labeler"]
    assert result["protocol"]["settings"]["reference"]["max_tokens"] == 100
    assert result["clinical"]["marked"] == {"average": "example", "policy": "uncertain_as_negative", "group": "all"}
