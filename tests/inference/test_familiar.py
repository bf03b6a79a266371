"""What is said of a view that does not quite look like those of training."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from radweave.data.ood.detector import Judgement, Verdict
from radweave.inference.predictor import warnings_of


def test_a_doubted_view_is_named_as_a_refused_one_is_and_a_familiar_one_is_not() -> None:
    test: Any = SimpleNamespace(thresholds=(-2.0, -4.0), facts={})
    judgements = [Judgement(score, verdict) for score, verdict in zip((0.0, -3.0, -5.0), _VERDICTS, strict=True)]
    said = warnings_of(test, judgements, ("a.png", "b.png", "c.png"))
    assert [line.split(":")[0] for line in said] == ["b.png", "c.png"]
    assert "not look quite" in said[0]
    assert "-3.0, doubted below -2.0" in said[0]
    assert "-5.0, refused below -4.0" in said[1]
    assert warnings_of(None, judgements, ("a.png",)) == ()


_VERDICTS = (Verdict.FAMILIAR, Verdict.DOUBTED, Verdict.REFUSED)
