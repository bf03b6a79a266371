"""Training studies as vectors of an encoder: the evidence of a method that has no better of its own."""

from __future__ import annotations

from dataclasses import dataclass

from radweave.drafting.smoothers import Evidence, Floats, Mask, Smoothers, squared_distances, typical


@dataclass(frozen=True, slots=True)
class EmbeddedStudies:
    """Embeddings (J, D) of the training studies, each dimension with mean 0 and deviation 1, and their smoothers."""

    vectors: Floats
    centre: Floats
    spread: Floats
    scale: float
    smoothers: Smoothers

    @classmethod
    def fit(cls, embeddings: Floats, labels: Floats) -> EmbeddedStudies:
        """From embeddings (J, D) and labels (J, K) of 0 and 1."""
        centre, spread = embeddings.mean(axis=0), embeddings.std(axis=0) + 1e-6
        vectors = (embeddings - centre) / spread
        distance = squared_distances(vectors, vectors)
        scale = typical(distance)
        smoothers = Smoothers.fit(distance / scale, distance / scale, labels)
        return cls(vectors, centre, spread, scale, smoothers)

    def testify(self, embedding: Floats, barred: Mask) -> Evidence:
        """What they say of a study with this embedding (D,)."""
        vector = (embedding - self.centre) / self.spread
        # Each study for itself: a product of many rows may round otherwise than that of one.
        distance = ((self.vectors - vector) ** 2).sum(axis=1) / self.scale
        return self.smoothers.testify(distance, distance, barred)
