"""Warnings about views that are out of distribution."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from radweave.data.ood.detector import Judgement, Verdict
from radweave.inference.predictor import warnings_of


def test_doubted_and_refused_views_are_named_in_warnings() -> None:
    test: Any = SimpleNamespace(thresholds=(-2.0, -4.0), facts={})
    judgements = [Judgement(score, verdict) for score, verdict in zip((0.0, -3.0, -5.0), _VERDICTS, strict=True)]
    warnings = warnings_of(test, judgements, ("a.png", "b.png", "c.png"))
    assert [line.split(":")[0] for line in warnings] == ["b.png", "c.png"]
    assert "not look quite" in warnings[0]
    assert "-3.0, doubted below -2.0" in warnings[0]
    assert "-5.0, refused below -4.0" in warnings[1]
    assert warnings_of(None, judgements, ("a.png",)) == ()


_VERDICTS = (Verdict.IN_DISTRIBUTION, Verdict.DOUBTED, Verdict.REFUSED)
