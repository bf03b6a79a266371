"""A folder with small random weights of RadGraph, in the published layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertModel

from radweave.metrics.radgraph import Entity

VOCABULARY = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the lungs are clear no pleural effusion left right heart is normal . , opac ##ity ("
)
LABELS = ("OBS-DP", "ANAT-DP", "OBS-DA", "OBS-U")
RELATIONS = ("modify", "located_at", "suggestive_of")
HIDDEN, WIDTH_DIM, FEED, SPAN_WIDTH, SPANS_PER_WORD, MAX_LENGTH = 16, 5, 12, 4, 0.5, 12
SPAN_DIM = 2 * HIDDEN + WIDTH_DIM


def graph_of(annotation: Mapping[str, Any]) -> dict[str, Entity]:
    """The graph in the package's annotation format."""
    graph = {}
    for key, entity in annotation["entities"].items():
        facts = (entity[name] for name in ("tokens", "label", "start_ix", "end_ix"))
        graph[key] = Entity(*facts, tuple(map(tuple, entity["relations"])))
    return graph


def feed_forward_state(prefix: str, wide: int, form: str = "{prefix}0._module.") -> dict[str, tuple[int, ...]]:
    inner = form.format(prefix=prefix)
    return {
        f"{inner}_linear_layers.0.weight": (FEED, wide),
        f"{inner}_linear_layers.0.bias": (FEED,),
        f"{inner}_linear_layers.1.weight": (FEED, FEED),
        f"{inner}_linear_layers.1.bias": (FEED,),
    }


def checkpoint_shapes(name: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of what a published checkpoint holds beside its encoder."""
    ner, pruner = (
        f"_ner._ner_scorers.{name}__ner_labels.",
        f"_relation._mention_pruners.{name}__relation_labels._scorer.",
    )
    return {
        "_endpoint_span_extractor._span_width_embedding.weight": (SPAN_WIDTH, WIDTH_DIM),
        **feed_forward_state(ner, SPAN_DIM),
        f"{ner}1._module.weight": (len(LABELS), FEED),
        f"{ner}1._module.bias": (len(LABELS),),
        **feed_forward_state(pruner, SPAN_DIM),
        f"{pruner}1._module.weight": (1, FEED),
        f"{pruner}1._module.bias": (1,),
        **feed_forward_state(f"_relation._relation_feedforwards.{name}__relation_labels.", 3 * SPAN_DIM, "{prefix}"),
        f"_relation._relation_scorers.{name}__relation_labels.weight": (len(RELATIONS), FEED),
        f"_relation._relation_scorers.{name}__relation_labels.bias": (len(RELATIONS),),
        "_coref._distance_embedding.weight": (10, WIDTH_DIM),
    }


def write_radgraph(folder: Path, name: str = "radgraph") -> Path:
    """A folder with random weights, as ``radweave.metrics.radgraph`` describes it."""
    encoder = folder / "encoder"
    encoder.mkdir(parents=True)
    vocabulary = VOCABULARY.split()
    (encoder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    (encoder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    shape = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    shape.save_pretrained(encoder)
    (folder / "vocabulary").mkdir()
    (folder / "vocabulary" / f"{name}__ner_labels.txt").write_text("\n".join(("", *LABELS)) + "\n")
    (folder / "vocabulary" / f"{name}__relation_labels.txt").write_text("\n".join(RELATIONS) + "\n")
    bert = {"model_name": "some/bert", "max_length": MAX_LENGTH}
    model = {
        "embedder": {"token_embedders": {"bert": bert}},
        "modules": {"coref": {"coref_prop": 0}, "relation": {"spans_per_word": SPANS_PER_WORD}},
        "feature_size": WIDTH_DIM,
        "max_span_width": SPAN_WIDTH,
        "feedforward_params": {"num_layers": 2, "hidden_dims": FEED, "dropout": 0.4},
    }
    (folder / "config.json").write_text(json.dumps({"model": model}))
    generator = torch.Generator().manual_seed(0)
    prefix = "_embedder.token_embedder_bert._matched_embedder.transformer_model."
    shapes = {prefix + key: tuple(value.shape) for key, value in BertModel(shape).state_dict().items()}
    shapes |= checkpoint_shapes(name)
    torch.save(
        {key: 0.5 * torch.randn(size, generator=generator) for key, size in shapes.items()}, folder / "weights.th"
    )
    return folder
