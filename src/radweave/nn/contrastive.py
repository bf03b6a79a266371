"""Contrastive losses between two sets of embeddings, over the global batch when training is distributed."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from radweave.nn.global_batch import gather_batch

__all__ = ["gather_batch", "symmetric_info_nce"]


def symmetric_info_nce(
    left: Float[Tensor, "batch dim"], right: Float[Tensor, "batch dim"], temperature: float | Tensor
) -> Float[Tensor, ""]:
    """Mean of the two directions of InfoNCE; row i of one side belongs to row i of the other.

        l = -1/(2B) sum_i [log softmax_j(a_i . b_j / tau)_i + log softmax_j(b_i . a_j / tau)_i]

    Both sides are brought to unit length. Over several processes the batch is the global one.
    Source: van den Oord et al., arXiv:1807.03748, Eq. 4; Radford et al., CLIP, Fig. 3.
    """
    left = gather_batch(F.normalize(left.float(), dim=-1))
    right = gather_batch(F.normalize(right.float(), dim=-1))
    logits = left @ right.T / temperature
    target = torch.arange(len(left), device=left.device)
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
