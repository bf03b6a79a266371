"""Vision Self-Equilibration (VSE): a contrastive loss that spreads the images of a batch, without labels.

Source: VDGen, Sec. 3.2, Eq. 3.

The paper contradicts itself here. It sets S_ii = -infinity and then has exp(S_ii) = 0 in the numerator, so the loss is
infinite for every input; and its prose (pull similar images together, push others apart) needs a positive that the
formula does not have. Three readings can be computed:

- ``self_in_denominator: false`` (default): S_ii stays in the numerator, the sum is over the others;
- ``self_in_denominator: true``: the sum is over all;
- ``two_views``: the positive is another augmentation of the same image, as in SimCLR, which is what the prose says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from radweave.core.config import Config, Ratio
from radweave.data.augmentation import AugmentationConfig, LightAugmentation
from radweave.nn.global_batch import gather_batch

Augment = Callable[[Tensor], Tensor]
"""Images (N, C, H, W) to other versions of themselves."""
EncodeAgain = Callable[[Augment], Tensor]
"""Mean visual features (B, D) of the batch's images after an augmentation."""


class SelfEquilibration(nn.Module):
    """Push the images of a batch apart; the loss is over the global batch where training is distributed.

        z_i = (W_1 h_i + b) / |W_1 h_i + b|,   S_ij = z_i . z_j / tau
        L = -1/B sum_i log( exp S_ii / sum_j exp S_ij ),   j over the others, or over all                     (Eq. 3)

    Notation: ``mean`` is their h^e, the mean over an image's tokens; W_1 leads into a higher dimension.
    Deviations: z has unit length, without which growing |z| alone lowers the loss for ever. S_ii is then 1 / tau for
    every sample: the numerator is a constant, and the gradient is that of the denominator, a uniformity loss. A batch
    of one has nothing to spread, its loss is 0.
    """

    def __init__(self, dim: int, expansion: float, temperature: float, *, self_in_denominator: bool) -> None:
        super().__init__()
        self.projection = nn.Linear(dim, int(dim * expansion))
        self.temperature = temperature
        self.self_in_denominator = self_in_denominator

    def project(self, mean: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch higher"]:
        """Unit vectors z."""
        return F.normalize(self.projection(mean).float(), dim=-1)

    def loss(self, mean: Float[Tensor, "batch dim"], encode_again: EncodeAgain) -> Float[Tensor, ""]:
        """Eq. 3; no second encoding is asked for."""
        z = gather_batch(self.project(mean))
        if len(z) == 1:
            return 0.0 * z.sum()
        scores = z @ z.T / self.temperature
        own = scores.diagonal()
        if not self.self_in_denominator:
            scores = scores.masked_fill(torch.eye(len(z), dtype=torch.bool, device=z.device), float("-inf"))
        return (scores.logsumexp(dim=1) - own).mean()


class TwoViewEquilibration(nn.Module):
    """Pull two augmentations of an image together and push the others apart (NT-Xent).

        L = -1/(2B) sum_i log( exp S_{i,p(i)} / sum_{j != i} exp S_ij ),   i over both versions of all images

    p(i) is the other version of image i. Source: Chen et al., "SimCLR", ICML 2020, Eq. 1; see the module for why.
    Deviations: SimCLR's projection is an MLP, here it is the paper's linear W_1 into a higher dimension. The first
    version is the batch as it comes, the second an augmentation of that.
    """

    def __init__(self, dim: int, expansion: float, temperature: float, augmentation: AugmentationConfig) -> None:
        super().__init__()
        self.projection = nn.Linear(dim, int(dim * expansion))
        self.temperature = temperature
        self.augmentation = augmentation

    def project(self, mean: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch higher"]:
        """Unit vectors z."""
        return F.normalize(self.projection(mean).float(), dim=-1)

    def loss(self, mean: Float[Tensor, "batch dim"], encode_again: EncodeAgain) -> Float[Tensor, ""]:
        """NT-Xent between ``mean`` and the features of the augmented images."""
        first = gather_batch(self.project(mean))
        second = gather_batch(self.project(encode_again(self._augment)))
        z = torch.cat([first, second])
        scores = (z @ z.T / self.temperature).masked_fill(
            torch.eye(len(z), dtype=torch.bool, device=z.device), float("-inf")
        )
        partner = torch.arange(len(z), device=z.device).roll(len(first))
        return F.cross_entropy(scores, partner)

    def _augment(self, pixel_values: Tensor) -> Tensor:
        # The step's seed decides while training; validation sees the same augmentation every time.
        seed = int(torch.randint(2**31, (1,))) if self.training else 0
        generator = torch.Generator().manual_seed(seed)
        return self.augmentation.apply(pixel_values, generator)


class NoEquilibration(nn.Module):
    """No VSE; asked for its loss it is 0."""

    def loss(self, mean: Float[Tensor, "batch dim"], encode_again: EncodeAgain) -> Float[Tensor, ""]:
        return mean.new_zeros(())


class SelfEquilibrationConfig(Config):
    """Eq. 3. ``expansion`` is how much wider z is than a visual token; the paper gives neither it nor tau.

    Without a positive, a small tau pushes each image away from its nearest neighbours, be they of like findings; at 1
    it pushes mostly away from the mean of the batch. The method's page has what was measured.
    """

    kind: Literal["self"] = "self"
    expansion: Ratio = 2.0
    temperature: float = Field(default=1.0, gt=0)
    self_in_denominator: bool = False

    def build(self, dim: int) -> SelfEquilibration:
        return SelfEquilibration(dim, self.expansion, self.temperature, self_in_denominator=self.self_in_denominator)


class TwoViewEquilibrationConfig(Config):
    """The prose's version: two augmentations of an image are each other's positive. tau is SimCLR's."""

    kind: Literal["two_views"] = "two_views"
    expansion: Ratio = 2.0
    temperature: float = Field(default=0.5, gt=0)
    augmentation: AugmentationConfig = LightAugmentation()

    def build(self, dim: int) -> TwoViewEquilibration:
        return TwoViewEquilibration(dim, self.expansion, self.temperature, self.augmentation)


class NoEquilibrationConfig(Config):
    """The row w/o VSE."""

    kind: Literal["none"] = "none"

    def build(self, dim: int) -> NoEquilibration:
        return NoEquilibration()


EquilibrationConfig = Annotated[
    SelfEquilibrationConfig | TwoViewEquilibrationConfig | NoEquilibrationConfig, Field(discriminator="kind")
]
