"""Do the images of a study look like those that the run was trained on? What is said of it, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from radweave.data.familiarity import Familiarity, Judgement, Verdict
from radweave.data.loader import Example
from radweave.generate.pictures import UnlikeError

EVIDENCE = "familiarity"
"""The key in a report's evidence."""
_UNLIKE = "does not look like the images that this run was trained on"


def judge(test: Familiarity | None, example: Example) -> list[Judgement]:
    """A judgement for each view, in the model's order; none where the run has no test, or one that judges nothing."""
    if test is None or test.reason is not None:
        return []
    return [test.judge(view) for view in example.pixels]


def evidence_of(test: Familiarity, judgements: Sequence[Judgement]) -> dict[str, Any]:
    """The scores with the thresholds they are held against, or why there are none."""
    if test.reason is not None:
        return {"not judged": test.reason}
    doubt, refuse = test.thresholds
    return {
        "scores": [judgement.score for judgement in judgements],
        "verdicts": [judgement.verdict.value for judgement in judgements],
        "typical": 0.0,
        "doubted below": round(doubt, 3),
        "refused below": round(refuse, 3),
        "refused wrongly": error_of(test),
    }


def error_of(test: Familiarity) -> str:
    """How often a test refuses an image of its run's own kind; empty where it was fitted before that was measured."""
    error, images = test.facts.get("wrongly_refused"), test.facts.get("held_out")
    if not isinstance(error, dict):
        return ""
    low, high = (100 * float(error[name]) for name in ("low", "high"))
    return f"{low:.1f} to {high:.1f} % of the images of its own kind (95 % interval, {images} training images unseen)"


def untested(test: Familiarity | None) -> str | None:
    """A warning where a run cannot tell images of another kind."""
    if test is not None and test.reason is None:
        return None
    why = "the run is older than the test" if test is None else test.reason
    return f"NOT TESTED whether images look like those of training ({why}): a hand would be drafted on as a chest is"


def is_unlike(evidence: Mapping[str, Any]) -> bool:
    """Whether a report's evidence says that a view of it would be refused where a file is given."""
    return Verdict.REFUSED.value in evidence.get(EVIDENCE, {}).get("verdicts", ())


def warnings_of(test: Familiarity | None, judgements: Sequence[Judgement], names: Sequence[str]) -> tuple[str, ...]:
    """A warning for each view that is not familiar, with its name."""
    if test is None:
        return ()
    return tuple(
        f"{name}: {_said(test, judgement)}"
        for name, judgement in zip(names, judgements, strict=False)
        if judgement.verdict is not Verdict.FAMILIAR
    )


def refuse_strangers(test: Familiarity | None, example: Example, names: Sequence[Any]) -> None:
    """A draft about a hand would look like any other draft.

    Raises:
        UnlikeError: naming the first view that is too far from the run's training images.
    """
    for name, judgement in zip(names, judge(test, example), strict=False):
        if judgement.verdict is Verdict.REFUSED:
            assert test is not None
            said = _said(test, judgement)
            raise UnlikeError(f"{said}; give --force (force=True) to report on it anyway", file=name)


def _said(test: Familiarity, judgement: Judgement) -> str:
    doubt, refuse = test.thresholds
    strength = "" if judgement.verdict is Verdict.REFUSED else " quite"
    text = _UNLIKE.replace("not look", f"not look{strength}")
    limit = f"refused below {refuse:.1f}" if judgement.verdict is Verdict.REFUSED else f"doubted below {doubt:.1f}"
    error = error_of(test)
    wrongly = f"; the test refuses {error} wrongly" if error and judgement.verdict is Verdict.REFUSED else ""
    return f"{text} (score {judgement.score:.1f}, {limit}{wrongly})"
