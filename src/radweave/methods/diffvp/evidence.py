"""What was made of a batch before the decoder, as users see it."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from radweave.base.map_kinds import KEY as MAP_KIND
from radweave.methods.diffvp.difference import Comparison, importance_weights, top_share
from radweave.nn.views import ViewTokens


def difference_maps(views: ViewTokens, comparison: Comparison) -> Float[Tensor, "batch views cells"]:
    """The weights of Eq. 6 through the attention of the latents they weigh: sum_i w_i A_i, over the cells of all views.

    Where pixels were subtracted that is the attention of the latents of the subtracted scan; a view that the reference
    does not have was not compared, and its map is 0. A study's map sums to 1; where nothing differs it is 0.
    """
    attention, compared = comparison.reading.attention.float(), comparison.views
    maps = (importance_weights(comparison.importance())[:, :, None] * attention).sum(1)
    maps = maps.view(*compared.view_mask.shape, -1)
    return F.pad(maps, (0, 0, 0, views.view_mask.shape[1] - compared.view_mask.shape[1]))


def class_evidence(
    classes: tuple[str, ...], logits: Float[Tensor, " known"], auxiliary: Float[Tensor, " classes"]
) -> dict[str, Any]:
    """Probabilities of E and of the auxiliary head. Without E, which knows no class then, both are the latter's."""
    return {
        "class_probabilities": _named(classes, logits if len(logits) else auxiliary),
        "auxiliary_probabilities": _named(classes, auxiliary),
    }


def reference_evidence(views: ViewTokens, comparison: Comparison) -> list[dict[str, Any]]:
    """Per study what it was compared with and where the two differ; nothing is recalled where there is no reference."""
    reference = comparison.reference
    shown: list[dict[str, Any]] = [{"recalled": []} for _ in reference.drawn]
    if not bool(reference.there.any()):
        return shown
    importance = comparison.importance()
    maps, shares = difference_maps(views, comparison), top_share(importance)
    kind = "volume" if len(views.grid) == 3 else "image"
    for row in reference.there.nonzero().flatten().tolist():
        seen_map = maps[row][views.view_mask[row]].reshape(-1, *views.grid)
        scores = {"squared_distance": float(importance[row].sum())}
        shown[row] = {
            "token_importance": importance[row].tolist(),
            "top_8_share": float(shares[row]),
            "attention_maps": {"difference": seen_map.cpu().numpy()},
            MAP_KIND: "difference",
            "recalled": [
                {
                    "kind": kind,
                    "study_id": reference.drawn[row],
                    "scores": scores,
                    "is_prior": reference.is_prior[row],
                }
            ],
        }
    return shown


def _named(classes: tuple[str, ...], logits: Float[Tensor, " classes"]) -> dict[str, float]:
    return dict(zip(classes, logits.float().sigmoid().tolist(), strict=True))
