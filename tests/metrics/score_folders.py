"""Small random checkpoints for scores, in the layouts in which they are published, and made-up reports."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    RobertaConfig,
    RobertaModel,
)

WORDS = (
    "the", "lungs", "are", "clear", "no", "pleural", "effusion", "left", "right", "heart", "is", "normal",
    "mild", "opacity", "in", "upper", "lobe", "new", "stable", "improved", "small", "large", "consolidation",
    "edema", "unchanged", "silhouette", "with", "and", "without", "pneumothorax", "worse", "basal", "seen",
    "is", "there",
)  # fmt: skip


def made_up_reports(number: int, seed: int = 0, longest: int = 30, *, capitals: bool = False) -> list[str]:
    """Reports of random words in random sentences; with ``capitals`` each begins with one and has a word more."""
    rng = random.Random(seed)
    reports = []
    for _ in range(number):
        words = [rng.choice(WORDS) for _ in range(rng.randint(1, longest))]
        words = [word + "." if rng.random() < 0.15 else word for word in words]
        if capitals:
            words = [part for word in words for part in ([word, "There", "is"] if word.endswith(".") else [word])]
        reports.append(" ".join([words[0].capitalize(), *words[1:]]))
    return reports


def write_bpe(folder: Path, texts: Sequence[str] = (), *, longest: int = 512) -> int:
    """A byte-level BPE tokenizer in RoBERTa's files; returns the number of its words."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts or made_up_reports(60, seed=9), trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer.model.save(str(folder))
    special = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "pad_token": "<pad>"}
    settings = {"tokenizer_class": "RobertaTokenizer", "model_max_length": longest, "unk_token": "<unk>", **special}
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "mask_token": "<mask>"}))
    return tokenizer.get_vocab_size()


def write_roberta(folder: Path, *, layers: int = 3, dim: int = 32, positions: int = 130, **saved: Any) -> Path:
    """A random RoBERTa with its tokenizer, and a baseline of bert-score beside it."""
    words = write_bpe(folder, longest=positions - 2)
    torch.manual_seed(0)
    shape = RobertaConfig(
        vocab_size=words, hidden_size=dim, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=2 * dim,
        max_position_embeddings=positions, pad_token_id=1, bos_token_id=0, eos_token_id=2, type_vocab_size=1,
        initializer_range=0.5,
    )  # fmt: skip
    RobertaModel(shape).save_pretrained(folder, **saved)
    rows = [f"{layer},0.{layer}1,0.{layer}2,0.{layer}3" for layer in range(layers + 1)]
    (folder / "distilroberta-base.tsv").write_text("\n".join(["LAYER,P,R,F", *rows]) + "\n")
    return folder


def write_vocabulary(folder: Path, words: Sequence[str] = ()) -> int:
    """A WordPiece vocabulary in BERT's files; returns the number of its words."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", ",", *letters, *(f"##{letter}" for letter in letters)]
    entries = list(dict.fromkeys([*pieces, *(words or WORDS)]))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(entries) + "\n")
    return len(entries)


def bert_shape(words: int, *, positions: int = 64, dim: int = 32, layers: int = 2) -> BertConfig:
    return BertConfig(
        vocab_size=words, hidden_size=dim, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=2 * dim,
        max_position_embeddings=positions, initializer_range=0.5,
    )  # fmt: skip


def write_chexbert(folder: Path, *, positions: int = 64) -> Path:
    """Random weights of CheXbert under the names of the published file."""
    shape = bert_shape(write_vocabulary(folder), positions=positions)
    shape.save_pretrained(folder)
    torch.manual_seed(1)
    state = {f"module.bert.{name}": value for name, value in BertModel(shape).state_dict().items()}
    for head in range(14):
        size = 4 if head < 13 else 2
        state[f"module.linear_heads.{head}.weight"] = torch.randn(size, shape.hidden_size)
        state[f"module.linear_heads.{head}.bias"] = torch.randn(size)
    torch.save({"model_state_dict": state}, folder / "chexbert.pth")
    return folder


KINDS = ("ABNORMALITY", "NON-ABNORMALITY", "DISEASE", "NON-DISEASE", "ANATOMY")


def write_tagger(folder: Path, *, kinds: Sequence[str] = KINDS, positions: int = 64) -> Path:
    """A random tagger of tokens with the labels of RaTE-NER."""
    words = write_vocabulary(folder)
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "model_max_length": 512})
    )
    shape = bert_shape(words, positions=positions)
    labels = ["O", *(f"{mark}-{kind}" for kind in kinds for mark in "BI")]
    shape.id2label, shape.label2id = dict(enumerate(labels)), {label: index for index, label in enumerate(labels)}
    torch.manual_seed(2)
    model = BertForTokenClassification(shape)
    with torch.no_grad():
        # Fewer of the kinds than of none of them.
        model.classifier.bias[0] += 2.0
    model.save_pretrained(folder)
    return folder


def write_bert(folder: Path, *, positions: int = 64) -> Path:
    """A random BERT with its tokenizer."""
    words = write_vocabulary(folder)
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "model_max_length": 512})
    )
    torch.manual_seed(3)
    BertModel(bert_shape(words, positions=positions)).save_pretrained(folder)
    return folder


def write_srr(
    folder: Path, *, classes: Sequence[str] = ("Edema (Present)", "Edema (Absent)", "Nodule (Present)")
) -> Path:
    """A random SRR-BERT with the mapping of its classes."""
    words = write_vocabulary(folder)
    shape = bert_shape(words)
    shape.num_labels = len(classes)
    torch.manual_seed(4)
    BertForSequenceClassification(shape).save_pretrained(folder)
    (folder / "leaves_mapping.json").write_text(json.dumps({name: index for index, name in enumerate(classes)}))
    return folder
