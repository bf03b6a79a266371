"""CIDEr-D and plain CIDEr.

Source: Vedantam et al., "CIDEr", CVPR 2015. What coco's scorer and the report-generation papers print as "CIDEr" is
CIDEr-D: counts clipped to the reference's, and a Gaussian penalty on the difference in length with sigma 6. Plain
CIDEr has neither. Both are times 10, the mean over n = 1..4 and over the references. Document frequencies and the
number of documents come from the references of the evaluated set itself, so that a score belongs to the whole set and
a single study has none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from radweave.evaluation.metrics.ngrams import Ints, PairedCounts, PairedTexts

Floats = NDArray[np.float64]

MAX_ORDER = 4
_SIGMA = 6.0
DF_SOURCE = "references of the evaluated set"


def document_frequency(counts: PairedCounts, ref_owner: Ints) -> Ints:
    """In how many studies' references each n-gram occurs (num_grams,)."""
    studies = np.unique(ref_owner[counts.ref.text] * max(counts.ref.num_grams, 1) + counts.ref.gram)
    return np.bincount(studies % max(counts.ref.num_grams, 1), minlength=max(counts.ref.num_grams, 1))


def cider(
    texts: PairedTexts,
    counts: Sequence[PairedCounts],
    frequencies: Sequence[Ints] | None = None,
    num_documents: int | None = None,
) -> tuple[Floats, Floats]:
    """CIDEr-D and plain CIDEr of each study, two arrays (N,); the corpus score is their mean.

    Args:
        texts: N studies.
        counts: of order 1 to 4.
        frequencies: per order in how many documents each n-gram stands (num_grams,), where the studies are a part of
            an evaluated set; None if they are all of it.
        num_documents: the studies of the evaluated set; N without it.
    """
    num, num_refs = len(texts.hyps), len(texts.refs)
    owner = texts.ref_owner
    # coco takes the number of bigrams as the length of a text.
    hyp_length = np.bincount(counts[1].hyp.text, weights=counts[1].hyp.count, minlength=num)
    ref_length = np.bincount(counts[1].ref.text, weights=counts[1].ref.count, minlength=num_refs)
    penalty = np.exp(-((hyp_length[owner] - ref_length) ** 2) / (2.0 * _SIGMA**2))
    clipped_sum = np.zeros(num_refs)
    plain_sum = np.zeros(num_refs)
    for order, table in enumerate(counts[:MAX_ORDER]):
        frequency = document_frequency(table, owner) if frequencies is None else frequencies[order]
        idf = np.log(num_documents or num) - np.log(np.maximum(frequency, 1))
        hyp_norm = np.bincount(table.hyp.text, (table.hyp.count * idf[table.hyp.gram]) ** 2, num)
        ref_norm = np.bincount(table.ref.text, (table.ref.count * idf[table.ref.gram]) ** 2, num_refs)
        weight = idf[table.ref.gram] ** 2 * table.ref.count
        clipped = np.bincount(table.ref.text, weight * np.minimum(table.hyp_count_at_ref, table.ref.count), num_refs)
        plain = np.bincount(table.ref.text, weight * table.hyp_count_at_ref, num_refs)
        norm = np.sqrt(hyp_norm[owner]) * np.sqrt(ref_norm)
        norm = np.where(norm > 0, norm, 1.0)
        clipped_sum += clipped / norm
        plain_sum += plain / norm
    refs_per_study = np.bincount(owner, minlength=num)
    scale = 10.0 / (MAX_ORDER * refs_per_study)
    return (
        np.bincount(owner, clipped_sum * penalty, num) * scale,
        np.bincount(owner, plain_sum, num) * scale,
    )
