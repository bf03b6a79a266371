"""Scores in plain loops, written from their published definitions and independent of the package's own code."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import linear
from transformers import BertConfig, BertModel, BertTokenizer, RobertaConfig, RobertaModel

from tests.radgraph_weights import LABELS, MAX_LENGTH, RELATIONS, SPAN_WIDTH, SPANS_PER_WORD

Span = tuple[int, int]


def sentence_bleu(draft: str, reference: str) -> float:
    """BLEU-2 of fast-bleu on CXR-Report-Metric's words."""
    hyp, ref = ([word for word in text.lower().replace(".", " .").split(" ") if word] for text in (draft, reference))
    product = 1.0
    for order in (1, 2):
        counts = [Counter(tuple(words[i : i + order]) for i in range(len(words) - order + 1)) for words in (hyp, ref)]
        matches, candidates = sum((counts[0] & counts[1]).values()), max(len(hyp) - order + 1, 1)
        if order == 1 and not matches:
            return 0.0
        product *= (matches or 0.1) / candidates
    return math.sqrt(product) * min(1.0, math.exp(1 - len(ref) / len(hyp)))


@torch.inference_mode()
def sembscores(folder: Path, drafts: Sequence[str], references: Sequence[str]) -> list[float]:
    """CXR-Report-Metric's: white space squeezed, 512 tokens at most, here 64, [CLS] of the last layer, cosine."""
    shape = BertConfig.from_pretrained(folder)
    model = BertModel(shape).eval()
    state = torch.load(folder / "chexbert.pth", weights_only=True)["model_state_dict"]
    own = {name.removeprefix("module.bert."): value for name, value in state.items() if ".bert." in name}
    model.load_state_dict(own)
    tokenizer = BertTokenizer(str(folder / "vocab.txt"), do_lower_case=True)
    scores = []
    for pair in zip(drafts, references, strict=True):
        vectors = []
        for text in pair:
            ids = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(re.sub(r"\s+", " ", text.strip())))[:62]
            ids = [tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]
            vectors.append(model(input_ids=torch.tensor([ids])).last_hidden_state[0, 0].double())
        scores.append(float(vectors[0] @ vectors[1] / (vectors[0].norm() * vectors[1].norm())))
    return scores


@torch.inference_mode()
def bertscores(folder: Path, drafts: Sequence[str], references: Sequence[str], *, idf: bool) -> list[float]:
    """Loops over tokens: two of three layers, a blank before RoBERTa's first word, rescaled."""
    shape = RobertaConfig.from_pretrained(folder, num_hidden_layers=2)
    model = RobertaModel.from_pretrained(folder, config=shape).eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def tokens(text: str) -> list[int]:
        text = re.sub(" +", " ", text).strip()
        ids = tokenizer.encode(f" {text}", add_special_tokens=False).ids[:126] if text else []
        return [0, *ids, 2]

    counts = Counter(token for text in references for token in set(tokens(text)))
    scores = []
    for draft, reference in zip(drafts, references, strict=True):
        states, weights = [], []
        for text in (draft, reference):
            ids = tokens(text)
            hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0].double()
            states.append(hidden / hidden.norm(dim=-1, keepdim=True))
            plain = [0.0 if token in (0, 2) else 1.0 for token in ids]
            weights.append([math.log((len(references) + 1) / (counts[token] + 1)) for token in ids] if idf else plain)
        cosines = states[0] @ states[1].T
        best = [[float(row.max()) for row in cosines], [float(column.max()) for column in cosines.T]]
        sums = [sum(own) for own in weights]
        f = 0.0
        if all(sums):
            both = zip(weights, best, strict=True)
            p, r = (sum(w * c for w, c in zip(own, cosine, strict=True)) / sum(own) for own, cosine in both)
            f = 2 * p * r / (p + r)
        scores.append((f - 0.23) / (1 - 0.23))
    return scores


@torch.inference_mode()
def read_graph(
    folder: Path, name: str, words: Sequence[str]
) -> tuple[list[tuple[Span, str]], list[tuple[Span, Span, str]]]:
    """Entities and relations of DyGIE++ by loops over the tensors of a folder of ``write_radgraph``."""
    state = torch.load(folder / "weights.th", weights_only=True)
    prefix = "_embedder.token_embedder_bert._matched_embedder.transformer_model."
    bert = BertModel(BertConfig.from_pretrained(folder / "encoder")).eval()
    bert.load_state_dict({key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)})
    tokenizer = BertTokenizer(str(folder / "encoder" / "vocab.txt"), do_lower_case=True)

    def feed(key: str, x: Tensor) -> Tensor:
        for layer in (0, 1):
            x = linear(
                x, state[f"{key}_linear_layers.{layer}.weight"], state[f"{key}_linear_layers.{layer}.bias"]
            ).relu()
        return x

    pieces = [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(word)) for word in words]
    flat = [piece for group in pieces for piece in group]
    room, hidden = MAX_LENGTH - 2, []
    for start in range(0, len(flat), room):
        ids = torch.tensor([[2, *flat[start : start + room], 3]])
        hidden.extend(bert(input_ids=ids).last_hidden_state[0, 1:-1])
    states, place = [], 0
    for group in pieces:
        states.append(torch.stack(hidden[place : place + len(group)]).mean(0))
        place += len(group)

    spans = [(i, j) for i in range(len(words)) for j in range(i, len(words)) if j - i < SPAN_WIDTH]
    widths = state["_endpoint_span_extractor._span_width_embedding.weight"]
    vectors = {(i, j): torch.cat([states[i], states[j], widths[j - i]]) for i, j in spans}
    ner, pruner = (
        f"_ner._ner_scorers.{name}__ner_labels.",
        f"_relation._mention_pruners.{name}__relation_labels._scorer.",
    )
    entities: list[tuple[Span, str]] = []
    mention = {}
    for span in spans:
        scores = linear(
            feed(f"{ner}0._module.", vectors[span]), state[f"{ner}1._module.weight"], state[f"{ner}1._module.bias"]
        )
        if scores.max() > 0:
            entities.append((span, LABELS[int(scores.argmax())]))
        head = (state[f"{pruner}1._module.weight"], state[f"{pruner}1._module.bias"])
        mention[span] = float(linear(feed(f"{pruner}0._module.", vectors[span]), *head))
    retained = sorted(sorted(spans, key=lambda span: -mention[span])[: math.ceil(len(words) * SPANS_PER_WORD)])
    known = {span for span, _ in entities}
    relations: list[tuple[Span, Span, str]] = []
    for a in retained:
        for b in retained:
            pair = torch.cat([vectors[a], vectors[b], vectors[a] * vectors[b]])
            head = f"_relation._relation_scorers.{name}__relation_labels."
            inner = feed(f"_relation._relation_feedforwards.{name}__relation_labels.", pair)
            scores = linear(inner, state[head + "weight"], state[head + "bias"]) + mention[a] + mention[b]
            if scores.max() > 0 and a in known and b in known:
                relations.append((a, b, RELATIONS[int(scores.argmax())]))
    return entities, relations


def annotation(folder: Path, name: str, text: str) -> dict[str, Any]:
    """``read_graph`` of a text in the form of RadGraph's files; a text without words has no entity."""
    words = re.sub(r"([/,:.!?()])", r" \1 ", text).split()
    if not words:
        return {"entities": {}}
    read, relations = read_graph(folder, name, words)
    keys = {span: str(number) for number, (span, _) in enumerate(read)}
    entities = {}
    for span, label in read:
        own = [[kind, keys[b]] for a, b, kind in relations if a == span]
        tokens = " ".join(words[span[0] : span[1] + 1])
        entities[keys[span]] = {
            "tokens": tokens, "label": label, "start_ix": span[0], "end_ix": span[1], "relations": own,
        }  # fmt: skip
    return {"entities": entities}


def radgraph_combined(draft: Mapping[str, Any], reference: Mapping[str, Any]) -> float:
    """CXR-Report-Metric's: mean of the F1 of entities and of relations, each counted once, 0 without a match."""
    values = []
    for kind in ("entities", "relations"):
        sides = []
        for graph in (draft["entities"], reference["entities"]):
            found: list[object] = []
            for entity in graph.values():
                named = (entity["tokens"], entity["label"])
                if kind == "entities":
                    new: list[object] = [named]
                else:
                    new = [(named, (graph[k]["tokens"], graph[k]["label"]), word) for word, k in entity["relations"]]
                found.extend(one for one in new if one not in found)
            sides.append(found)
        common = sum(one in sides[1] for one in sides[0])
        precision = common / len(sides[0]) if sides[0] else 0.0
        recall = common / len(sides[1]) if sides[1] else 0.0
        values.append(2 * precision * recall / (precision + recall) if common else 0.0)
    return sum(values) / 2


def radcliq(
    inputs: Sequence[float],
    coefficients: Sequence[float],
    intercept: float,
    shifts: Sequence[float],
    scales: Sequence[float],
) -> float:
    """RadCliQ of one pair: a linear model of RadGraph, BERTScore, SembScore and BLEU-2, each shifted and scaled."""
    value = intercept
    for score, weight, shift, scale in zip(inputs, coefficients, shifts, scales, strict=True):
        value += weight * ((score - shift) / scale)
    return value


WORDS_OF_CHANGE = [
    "bigger", "change", "cleared", "constant", "decrease", "decreased", "decreasing", "elevated", "elevation",
    "enlarged", "enlargement", "enlarging", "expanded", "greater", "growing", "improved", "improvement", "improving",
    "increase", "increased", "increasing", "larger", "new", "persistence", "persistent", "persisting", "progression",
    "progressive", "reduced", "removal", "resolution", "resolved", "resolving", "smaller", "stability", "stable",
    "stably", "unchanged", "unfolded", "worse", "worsen", "worsened", "worsening", "unaltered",
]  # fmt: skip
"""Bannur et al., CVPR 2023, in the order in which Libra and RadEval list them."""


def temporal_f1(draft: str, references: Sequence[str]) -> float:
    """Libra's F1 of the words of change, as RadEval computes it from the words alone."""

    def found(text: str) -> list[str]:
        kept = ""
        for letter in text:
            if letter in "\n_-":
                kept += " "
            elif letter.isalnum() or letter.isspace() or letter in ".,:;()":
                kept += letter.lower()
        words = "".join(letter if letter.isalnum() else " " for letter in kept).split()
        return [word for word in WORDS_OF_CHANGE if word in words]

    own, other = found(draft), [word for word in WORDS_OF_CHANGE if any(word in found(text) for text in references)]
    tiny = 1e-10
    if not other:
        return tiny if own else 1.0
    common = sum(word in other for word in own)
    precision, recall = (common + tiny) / (len(own) + tiny), (common + tiny) / (len(other) + tiny)
    return 2 * precision * recall / (precision + recall + tiny)


def crg(drafts: Sequence[Mapping[str, str]], references: Sequence[Mapping[str, str]]) -> float:
    """CRG of all studies from the states of their classes: a cell found earns r, one missed costs r, one invented 1."""
    cells, positives = 0, 0
    for reference in references:
        for name, state in reference.items():
            if name != "No Finding":
                cells += 1
                positives += state == "positive"
    worth = (cells - positives) / (2 * positives)
    reached = 0.0
    for draft, reference in zip(drafts, references, strict=True):
        for name, state in reference.items():
            if name == "No Finding":
                continue
            if state == "positive":
                reached += worth if draft[name] == "positive" else -worth
            elif draft[name] == "positive":
                reached -= 1.0
    most = worth * positives
    return most / (2 * most - reached)
