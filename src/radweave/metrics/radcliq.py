"""RadCliQ: a linear model of four scores that was fitted to radiologists' counts of errors; lower is better.

Source: Yu et al., "Evaluating Progress in Automatic Chest X-Ray Radiology Report Generation", Patterns 2023, with the
code of the CXR-Report-Metric repository. Its scores are, in this order: the combined RadGraph F1, BERTScore (rescaled
F), SembScore, and BLEU-2 of each study. Version 1 is

    RadCliQ-v1 = c + sum_k a_k (x_k - m_k) / s_k

One name has two numbers in use: the repository and ReXrank compute BERTScore without IDF, the RadEval package with IDF
over the references of the evaluated set. Both are computed, under two names. ReXrank and RadEval print 1 / mean.

The numbers of version 1 are those that RadEval 2.2.1 states for the repository's ``radcliq-v1.pkl``. Those of version 0
are published in pickles only, which are never read; a user who has them writes them to ``radcliq_v0.json`` as one
number for each score, on its own scale, and ``intercept``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from radweave.core.errors import InputError
from radweave.core.json_files import read_json_object

Floats = NDArray[np.float64]
INPUTS: Final = ("radgraph", "bertscore", "sembscore", "bleu_2")
"""Names of the four scores, in the order of the model."""


@dataclass(frozen=True, slots=True)
class LinearModel:
    """``intercept + values @ coefficients`` of the four scores on their own scales."""

    coefficients: tuple[float, ...]
    intercept: float

    @classmethod
    def of_standardised(
        cls, coefficients: tuple[float, ...], intercept: float, means: tuple[float, ...], scales: tuple[float, ...]
    ) -> LinearModel:
        """The model of scores that are first shifted by their means and divided by their scales."""
        own = tuple(weight / scale for weight, scale in zip(coefficients, scales, strict=True))
        return cls(own, intercept - sum(weight * mean for weight, mean in zip(own, means, strict=True)))

    def predict(self, values: Floats) -> Floats:
        """RadCliQ (M,) of M pairs from their scores (M, 4)."""
        return np.asarray(values @ np.array(self.coefficients) + self.intercept)


VERSION_1: Final = LinearModel.of_standardised(
    (-3.77083683e-01, -3.70300100e-01, -2.52616218e-01, 4.31504841e-12),
    2.46655256e-10,
    (0.53792312, 0.61757256, 0.76479421, 0.44738335),
    (0.30282584, 0.22430938, 0.25394391, 0.29892717),
)


def read_version_0(folder: Path) -> LinearModel:
    """The model of ``radcliq_v0.json``: a number for each of ``INPUTS`` and ``intercept``.

    Raises:
        InputError: for a file that is missing or holds other fields.
    """
    path = folder / "radcliq_v0.json" if folder.is_dir() else folder
    numbers = read_json_object(path)
    expected = (*INPUTS, "intercept")
    if set(numbers) != set(expected):
        got = ", ".join(sorted(numbers))
        raise InputError("not the coefficients of RadCliQ-v0", file=path, got=got, expected=", ".join(expected))
    for name in expected:
        if isinstance(numbers[name], bool) or not isinstance(numbers[name], (int, float)):
            raise InputError("not a number", file=path, field=name, got=type(numbers[name]).__name__)
    return LinearModel(tuple(float(numbers[name]) for name in INPUTS), float(numbers["intercept"]))
