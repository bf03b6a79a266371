"""The loss of every language model here: the next token of a report, after a prefix of embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from radweave.base.errors import InputError
from radweave.nn.global_batch import mean_over_batch


def position_ids(mask: Bool[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    """Count present tokens from 0; absent ones get 0."""
    return (mask.long().cumsum(dim=1) - 1).clamp(min=0)


def refuse_too_long(shape: Any, length: int, field: str) -> None:
    """Refuse a sequence with more tokens than a model has positions: it would fail, or write nonsense.

    Raises:
        InputError: naming the field that lets reports be as long.
    """
    most = getattr(shape, "max_position_embeddings", None)
    if isinstance(most, int) and length > most:
        raise InputError(
            "prompt and report are longer than the language model's positions",
            field=field,
            got=f"{length} tokens with the prompt",
            expected=f"at most {most}",
        )


def blank_tokens(embeds: Float[Tensor, "batch text width"], share: float) -> Float[Tensor, "batch text width"]:
    """Zero that share of the tokens' embeddings, so that the next word must be read off something else.

    Source: Bowman et al., "Generating sentences from a continuous space", CoNLL 2016, Sec. 3.1 (word dropout).
    """
    kept = torch.rand(embeds.shape[:2], device=embeds.device) >= share
    return embeds * kept[:, :, None]


def next_token_loss(
    model: Any,
    prefix: Float[Tensor, "batch prefix width"],
    prefix_mask: Bool[Tensor, "batch prefix"],
    text: Float[Tensor, "batch text width"],
    labels: Int[Tensor, "batch text"],
    inputs: Mapping[str, Any] | None = None,
) -> Float[Tensor, ""]:
    """Mean negative log-likelihood of the labels that are not -100.

    The prefix is left-padded and the report right-padded, so that they meet in one column: the last prefix position
    predicts the first report token, and ``labels`` are not shifted by the caller. Position ids count present tokens
    only, which makes a row independent of its padding.

    Args:
        model: a transformers model with a language model's head.
        prefix: embeddings before the report.
        prefix_mask: True where the prefix has a token.
        text: embeddings of the report's tokens.
        labels: the report's token ids, -100 where no loss is taken.
        inputs: further arguments of the forward pass, such as what cross-attention reads.
    """
    refuse_too_long(model.config, prefix.shape[1] + text.shape[1], "data.max_tokens")
    mask = torch.cat([prefix_mask, labels != -100], dim=1)
    logits = model(
        inputs_embeds=torch.cat([prefix, text], dim=1),
        attention_mask=mask.long(),
        position_ids=position_ids(mask),
        logits_to_keep=text.shape[1] + 1,
        use_cache=False,
        **(inputs or {}),
    ).logits[:, :-1]
    total = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
    return mean_over_batch(total, (labels != -100).sum())
