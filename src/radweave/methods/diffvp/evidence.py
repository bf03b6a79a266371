"""What was made of a batch before the decoder, and how it is shown to users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from radweave.methods.diffvp.difference import importance_weights, token_importance, top_share
from radweave.methods.diffvp.pool import Reference
from radweave.nn.query_transformer import QueryOutput
from radweave.nn.views import ViewTokens


@dataclass(frozen=True, slots=True)
class StudyReading:
    """The target's tokens and latents, E's logits, and with a reference what it was compared with and the prompt.

    ``residuals`` are the latents of a scan of differences, where pixels were subtracted.
    """

    views: ViewTokens
    latents: QueryOutput
    logits: Float[Tensor, "batch classes"] | None = None
    reference: Reference | None = None
    compared: Float[Tensor, "batch latents dim"] | None = None
    prompt: Float[Tensor, "batch tokens width"] | None = None
    residuals: Float[Tensor, "batch latents dim"] | None = None

    def importance(self) -> Float[Tensor, "batch latents"] | None:
        """S_i of every latent token; None without a reference."""
        if self.compared is None:
            return None
        target = self.latents.tokens if self.residuals is None else self.residuals
        return token_importance(target, self.compared).float()

    def difference_maps(self) -> Float[Tensor, "batch views cells"] | None:
        """The weights of Eq. 6 through the resampler's attention: sum_i w_i A_i, over the cells of all views.

        A study's map sums to 1; where nothing differs it is 0.
        """
        importance = self.importance()
        if importance is None:
            return None
        maps = (importance_weights(importance)[:, :, None] * self.latents.attention.float()).sum(1)
        batch, views = self.views.view_mask.shape
        return maps.view(batch, views, -1)

    def evidence(self, row: int, classes: tuple[str, ...], auxiliary: Tensor) -> dict[str, Any]:
        """One study's evidence. Without E the classes are the auxiliary head's."""
        logits = auxiliary if self.logits is None else self.logits
        shown: dict[str, Any] = {
            "class_probabilities": _named(classes, logits[row]),
            "auxiliary_probabilities": _named(classes, auxiliary[row]),
            "recalled": [],
        }
        importance, maps, reference = self.importance(), self.difference_maps(), self.reference
        if importance is None or maps is None or reference is None or not bool(reference.there[row]):
            return shown
        there = self.views.view_mask[row]
        shape = (-1, *self.views.grid)
        return shown | {
            "token_importance": importance[row].tolist(),
            "top_8_share": float(top_share(importance)[row]),
            "attention_maps": {"difference": maps[row][there].reshape(shape).cpu().numpy()},
            "recalled": [
                {
                    "kind": "volume" if len(self.views.grid) == 3 else "image",
                    "study_id": reference.drawn[row],
                    "scores": {"squared_distance": float(importance[row].sum())},
                    "is_prior": reference.is_prior[row],
                }
            ],
        }


def _named(classes: tuple[str, ...], logits: Float[Tensor, " classes"]) -> dict[str, float]:
    return dict(zip(classes, logits.float().sigmoid().tolist(), strict=True))
