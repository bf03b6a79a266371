"""A BERT tokenizer in its published form, used to write reports."""

from __future__ import annotations

import json
from pathlib import Path

from radweave.data.tokenizer import decode, encode, load_tokenizer, save_tokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "the", "heart", "is", "norm", "##al"]


def test_cls_and_sep_begin_and_end_a_report_also_after_saving(tmp_path: Path) -> None:
    published, saved = tmp_path / "published", tmp_path / "saved"
    published.mkdir()
    (published / "vocab.txt").write_text("\n".join(WORDS))
    (published / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    first = load_tokenizer(published)
    save_tokenizer(first, saved)
    for tokenizer in (first, load_tokenizer(saved)):
        assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 2, 3)
        assert len(tokenizer) == len(WORDS)
        ids = encode(tokenizer, "The heart is normal.")
        assert ids == [6, 7, 8, 9, 10, 5]
        assert decode(tokenizer, ids) == "the heart is normal."
