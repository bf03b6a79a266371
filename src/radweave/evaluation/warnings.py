"""What a reader must not overlook, in sentences: made from the floors, the honesty rows and the clinical table."""

from __future__ import annotations

from collections.abc import Mapping

from radweave.evaluation.honesty import Honesty, InventedRow
from radweave.evaluation.records import FloorScores, Score

# Where a row becomes a sentence. They are set so that a set of reports written by people stays silent.
_COLLAPSED_SHARE = 0.5
_FEW_DISTINCT = 0.1
_CONTRADICTED_SHARE = 0.25
_LEAST_COMPARABLE = 5
_INVENTED_SHARE = 0.5
_INVENTING_REPORTS_SHARE = 0.5
_NO_PRIOR_SHARE = 0.1
_LENGTH_RATIO = (0.5, 2.0)


def warnings(corpus: Mapping[str, Score], floors: Mapping[str, FloorScores], honesty: Honesty) -> list[str]:
    """Sentences about collapse, scores that a floor reaches, invention, swapped sides, made-up comparisons."""
    return [*_collapse(honesty), *_beaten_by_floors(corpus, floors), *_content(honesty)]


def _collapse(honesty: Honesty) -> list[str]:
    most, distinct = honesty.most_frequent_report_share, honesty.distinct_reports_share
    found = []
    if most.value > max(_COLLAPSED_SHARE, 2.0 * most.reference):
        found.append(f"collapsed: {most.value:.0%} of the studies got one and the same report")
    elif distinct.value < _FEW_DISTINCT * distinct.reference:
        found.append(
            f"nearly collapsed: {distinct.value:.1%} of the reports are distinct, {distinct.reference:.1%} of"
            " the references"
        )
    length = honesty.length_ratio.value
    if length is not None and not _LENGTH_RATIO[0] <= length <= _LENGTH_RATIO[1]:
        found.append(f"the reports are {length:.2f} times as long as the references")
    if honesty.empty_reports_share.value > 0:
        found.append(f"{honesty.empty_reports_share.value:.1%} of the reports are empty")
    return found


def _beaten_by_floors(corpus: Mapping[str, Score], floors: Mapping[str, FloorScores]) -> list[str]:
    found = []
    for name, floor in floors.items():
        reached = [metric for metric in ("BLEU_4", "ROUGE_L", "CIDEr") if _reaches(floor, corpus, metric)]
        if reached:
            found.append(f"no better than the baseline {name} in {', '.join(reached)}")
    return found


def _reaches(floor: FloorScores, corpus: Mapping[str, Score], metric: str) -> bool:
    """Whether the baseline's score is as high; not where either has none."""
    ours = corpus[metric].value if metric in corpus else None
    theirs = (floor.corpus or {}).get(metric)
    return ours is not None and theirs is not None and ours <= theirs


def _content(honesty: Honesty) -> list[str]:
    found = []
    invented = honesty.hallucinated_findings_per_report
    if isinstance(invented, InventedRow):
        share = invented.share_of_stated_findings
        if share is not None and share > _INVENTED_SHARE:
            found.append(f"{share:.0%} of the findings stated as present are not in the reference")
        if invented.share_of_reports > _INVENTING_REPORTS_SHARE:
            found.append(
                f"{invented.share_of_reports:.0%} of the reports state a finding that the reference does not have"
            )
    sides = honesty.left_right_contradiction_share
    if sides.value is not None and sides.comparable_reports >= _LEAST_COMPARABLE and sides.value > _CONTRADICTED_SHARE:
        found.append(
            f"left and right contradict the reference in {sides.value:.0%} of the reports that can be compared"
        )
    comparison = honesty.comparison_without_prior_share
    if comparison.value > _NO_PRIOR_SHARE:
        found.append(f"{comparison.value:.0%} of the reports compare with an earlier study where there is none")
    return found
