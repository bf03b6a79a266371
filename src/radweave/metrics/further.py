"""Scores of the texts as they are given, under no protocol: by words, or by models from folders that a user names.

    models = Models({"chexbert": Path("/models/chexbert")})
    further_scores(["SembScore"], {"": drafts}, references, models)

A score that cannot be computed costs its own row: the reason stands there, with what to get. Systems that are scored
together, a run and its floors, share what a model has read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from radweave.core.devices import default_device
from radweave.core.errors import InputError
from radweave.metrics.catalogue import FURTHER_METRICS, METRICS, Implementation
from radweave.metrics.clinical import average_statistics, confusion_rows
from radweave.metrics.language import sentence_bleu_2
from radweave.metrics.ngrams import owners_of
from radweave.metrics.statistics import Floats, Statistic, Unavailable, mean_statistic
from radweave.metrics.temporal import temporal_f1
from radweave.metrics.weights import WEIGHTS, WeightsName

if TYPE_CHECKING:
    from radweave.labels.srr import SrrBert
    from radweave.metrics.bertscore import BertScorer
    from radweave.metrics.error_counts import ErrorCounter
    from radweave.metrics.judge import Chat
    from radweave.metrics.radcliq import LinearModel
    from radweave.metrics.radgraph import RadGraphScorer
    from radweave.metrics.ratescore import RaTEScorer
    from radweave.metrics.sembscore import SembScorer

References = Sequence[Sequence[str]]
Pairs = list[tuple[str, str]]


class Models:
    """The models of a user's folders, each loaded when a score first needs it.

    Args:
        folders: by name (``weights.WEIGHTS``).
        cache: folder that keeps the states of encoders; None keeps none.
        chat: endpoint that GREEN, CRIMSON and RadFact ask; None for none.
    """

    def __init__(self, folders: Mapping[str, Path], *, cache: Path | None = None, chat: Chat | None = None) -> None:
        self._chat = chat
        self._folders = folders
        self._cache = cache
        self._device = default_device()
        self._bertscore: tuple[list[str], BertScorer] | None = None

    def missing(self, names: Sequence[WeightsName]) -> str:
        """Lines on those of the names that have no folder; empty if all have one."""
        return "; ".join(WEIGHTS[name].line for name in names if not self._has(name))

    def _has(self, name: WeightsName) -> bool:
        if name in ("green", "crimson") and self._chat is not None:
            return True
        return name in self._folders and name != "crimson"

    @cached_property
    def radcliq_v0(self) -> LinearModel | None:
        """RadCliQ-v0, where its coefficients are named."""
        from radweave.metrics.radcliq import read_version_0

        return read_version_0(self._folders["radcliq"]) if "radcliq" in self._folders else None

    @cached_property
    def radgraph(self) -> RadGraphScorer:
        from radweave.metrics.radgraph import RadGraphReader, RadGraphScorer

        return RadGraphScorer(RadGraphReader(self._folders["radgraph"], device=str(self._device)))

    @cached_property
    def sembscore(self) -> SembScorer:
        from radweave.metrics.sembscore import SembScorer

        return SembScorer(self._folders["chexbert"], device=self._device, cache=self._cache)

    @cached_property
    def ratescore(self) -> RaTEScorer:
        from radweave.metrics.ratescore import RaTEScorer

        folders = self._folders["rate-ner"], self._folders["biolord"]
        return RaTEScorer(*folders, device=self._device, cache=self._cache)

    @cached_property
    def green(self) -> ErrorCounter:
        from radweave.metrics.error_counts import ErrorCounter, LocalChat, green_prompt, green_score, read_prompt

        template = read_prompt(self._folders.get("green"))
        chat = self._chat or LocalChat(self._folders["green"], device=self._device)
        return ErrorCounter(chat, partial(green_prompt, template=template), green_score, template)

    @cached_property
    def crimson(self) -> ErrorCounter:
        from radweave.metrics.error_counts import ErrorCounter, crimson_prompt, crimson_score, read_prompt

        assert self._chat is not None, "missing() names the endpoint"
        template = read_prompt(self._folders.get("crimson"))
        return ErrorCounter(self._chat, partial(crimson_prompt, template=template), crimson_score, template)

    @cached_property
    def radfact(self) -> ErrorCounter:
        from radweave.metrics.error_counts import ErrorCounter
        from radweave.metrics.radfact import is_usable, radfact_prompt

        if self._chat is None:
            raise InputError("needs a language model at an endpoint: --judge URL --judge-model NAME")
        return ErrorCounter(self._chat, radfact_prompt, is_usable)

    @cached_property
    def srr(self) -> SrrBert:
        from radweave.labels.srr import SrrBert

        return SrrBert(self._folders["srr"], device=str(self._device))

    def bertscore(self, references: Sequence[str]) -> BertScorer:
        """The scorer with the IDF of these references."""
        from radweave.metrics.bertscore import BertScorer

        if self._bertscore is None or self._bertscore[0] != list(references):
            scorer = BertScorer(self._folders["bertscore"], references, device=self._device, cache=self._cache)
            self._bertscore = list(references), scorer
        return self._bertscore[1]


@dataclass(frozen=True, slots=True)
class PairedReports:
    """The drafts of one system with their references.

    Attributes:
        drafts: N texts.
        references: of each draft, one or several.
        pairs: each draft with each of its references, R in all.
        owner: (R,) the draft of each pair.
    """

    drafts: Sequence[str]
    references: References
    pairs: Pairs
    owner: NDArray[np.int64]

    @classmethod
    def of(cls, drafts: Sequence[str], references: References) -> PairedReports:
        pairs = [(draft, text) for draft, group in zip(drafts, references, strict=True) for text in group]
        return cls(drafts, references, pairs, owners_of(references))

    def best(self, values: Floats, *, lowest: bool = False) -> Floats:
        """The best value (N,) of each draft over its references, of one value per pair (R,)."""
        first = np.searchsorted(self.owner, np.arange(len(self.drafts)))
        return np.asarray((np.fmin if lowest else np.fmax).reduceat(values, first))


Values = Mapping[str, Floats | Statistic | Unavailable]


def _words(_: Models, reports: PairedReports) -> Values:
    drafts, references = (list(side) for side in zip(*reports.pairs, strict=True))
    return {
        "BLEU_2_sentence": reports.best(sentence_bleu_2(drafts, references)),
        "temporal_F1": temporal_f1(reports.drafts, reports.references),
    }


def _radgraph(models: Models, reports: PairedReports) -> Values:
    from radweave.metrics.radgraph import COMBINED, LEVELS

    scores = models.radgraph.score(reports.pairs)
    return {key: reports.best(scores[:, column]) for column, key in enumerate((*LEVELS, COMBINED))}


def _chexbert(models: Models, reports: PairedReports) -> Values:
    return {"SembScore": reports.best(models.sembscore.score(reports.pairs))}


def _bertscore(models: Models, reports: PairedReports) -> Values:
    scorer = models.bertscore([text for _, text in reports.pairs])
    plain, weighted = (scorer.score(reports.pairs, idf=idf) for idf in (False, True))
    values: dict[str, Floats | Unavailable] = {"BERTScore_raw": reports.best(plain.raw)}
    for key, scores in (("BERTScore", plain), ("BERTScore_idf", weighted)):
        values[key] = _NO_BASELINE if scores.rescaled is None else reports.best(scores.rescaled)
    return values


_NO_BASELINE = Unavailable("the folder has no baseline: rescale_baseline/en/distilroberta-base.tsv of bert-score")


def _radcliq(models: Models, reports: PairedReports) -> Values:
    from radweave.metrics.radcliq import VERSION_1

    scorer = models.bertscore([text for _, text in reports.pairs])
    drafts, references = (list(side) for side in zip(*reports.pairs, strict=True))
    inputs = [
        models.radgraph.score(reports.pairs)[:, -1],
        models.sembscore.score(reports.pairs),
        sentence_bleu_2(drafts, references),
    ]
    values: dict[str, Floats | Unavailable] = {}
    for key, idf in (("", False), ("_idf", True)):
        rescaled = scorer.score(reports.pairs, idf=idf).rescaled
        if rescaled is None:
            raise InputError(_NO_BASELINE.reason)
        table = np.stack([inputs[0], rescaled, *inputs[1:]], axis=1)
        version_1 = reports.best(VERSION_1.predict(table), lowest=True)
        values |= {f"RadCliQ_v1{key}": version_1, f"RadCliQ_v1{key}_inverse": version_1}
        try:
            if models.radcliq_v0 is not None:
                values[f"RadCliQ_v0{key}"] = reports.best(models.radcliq_v0.predict(table), lowest=True)
        except InputError as error:
            values[f"RadCliQ_v0{key}"] = Unavailable(str(error))
    return values


def _ratescore(models: Models, reports: PairedReports) -> Values:
    return {"RaTEScore": reports.best(models.ratescore.score(reports.pairs))}


def _green(models: Models, reports: PairedReports) -> Values:
    return {"GREEN": reports.best(models.green.score(reports.pairs).scores)}


def _crimson(models: Models, reports: PairedReports) -> Values:
    return {"CRIMSON": reports.best(models.crimson.score(reports.pairs).scores)}


def _srr(models: Models, reports: PairedReports) -> Values:
    """Support-weighted F1 over classes; of several references the classes of all count."""
    hyp = models.srr.states(reports.drafts)
    each = models.srr.states([text for _, text in reports.pairs])
    ref = np.zeros_like(hyp)
    np.logical_or.at(ref, reports.owner, each)
    return {"SRR_F1": average_statistics(confusion_rows(hyp, ref))["weighted", "f1"]}


_SCORERS: Mapping[Implementation, Callable[[Models, PairedReports], Values]] = {
    "words": _words,
    "radgraph": _radgraph,
    "chexbert": _chexbert,
    "bertscore": _bertscore,
    "radcliq": _radcliq,
    "ratescore": _ratescore,
    "green": _green,
    "crimson": _crimson,
    "srr": _srr,
}
_ASKED: tuple[Implementation, ...] = ("green", "crimson", "radfact")
"""Scores that ask a language model: about a run's whole reports, not about floors and sections."""
_VERSIONS: Mapping[Implementation, Callable[[Models, PairedReports], str]] = {
    "radgraph": lambda models, _: models.radgraph.version,
    "chexbert": lambda models, _: f"CheXbert {models.sembscore.version}",
    "ratescore": lambda models, _: models.ratescore.version,
    "green": lambda models, reports: models.green.version(reports.pairs),
    "crimson": lambda models, reports: models.crimson.version(reports.pairs),
    "bertscore": lambda models, reports: models.bertscore([text for _, text in reports.pairs]).version,
}


@dataclass(frozen=True, slots=True)
class FurtherScores:
    """Scores of several systems.

    Attributes:
        statistics: system -> metric -> statistic.
        unavailable: metric -> the reason why it was not computed.
        versions: implementation -> what it used.
    """

    statistics: dict[str, dict[str, Statistic]]
    unavailable: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def without_language_models(
    scores: Sequence[str], folders: Mapping[str, Path]
) -> tuple[tuple[str, ...], dict[str, Path]]:
    """Scores and folders without those of scores that ask a language model."""
    return (
        tuple(key for key in scores if not set(_ASKED) & set(METRICS[key].computed_by)),
        {name: folder for name, folder in folders.items() if name not in _ASKED},
    )


def requested_metrics(scores: Sequence[str], folders: Mapping[str, Path]) -> tuple[str, ...]:
    """The further metrics to compute, in the order of tables: those named, and those whose folders are all named.

    Raises:
        InputError: for a key that no further metric has.
    """
    for key in scores:
        if key not in FURTHER_METRICS:
            expected = ", ".join(FURTHER_METRICS)
            raise InputError("no such score", field="score", got=key, expected=f"one of {expected}")
    return tuple(
        key
        for key in FURTHER_METRICS
        if key in scores or (METRICS[key].weights and all(name in folders for name in METRICS[key].weights))
    )


def unmet_requests(
    scores: Sequence[str], folders: Mapping[str, Path], unavailable: Mapping[str, str]
) -> dict[str, str]:
    """Scores and weights that were asked for by name, and the reasons why there is no value of them.

    Args:
        scores: keys that were named.
        folders: that were named; one of them is met by any value that needs it.
        unavailable: metric -> the reason.
    """
    unmet = {key: unavailable[key] for key in scores if key in unavailable}
    requested = requested_metrics(scores, folders)
    for name in folders:
        keys = [key for key in requested if name in METRICS[key].weights]
        if keys and all(key in unavailable for key in keys):
            unmet[f"weights of {name}"] = unavailable[keys[0]]
    return unmet


def further_scores(
    keys: Sequence[str], systems: Mapping[str, Sequence[str]], references: References, models: Models
) -> FurtherScores:
    """The metrics ``keys`` of several systems' drafts for the same references.

    Metrics that need labels or boxes are not among them (``clinical.crg_statistic``, ``radfact``).
    """
    result = FurtherScores({name: {} for name in systems})
    reports = {name: PairedReports.of(drafts, references) for name, drafts in systems.items()}
    for implementation, scorer in _SCORERS.items():
        own_keys = []
        for key in (key for key in keys if implementation in METRICS[key].computed_by):
            if lines := models.missing(METRICS[key].weights):
                result.unavailable[key] = f"unavailable: {lines}"
            else:
                own_keys.append(key)
        if not own_keys:
            continue
        scored = dict(list(reports.items())[:1]) if implementation in _ASKED else reports
        try:
            values = {name: scorer(models, own) for name, own in scored.items()}
        except InputError as error:
            result.unavailable.update(dict.fromkeys(own_keys, f"unavailable: {error}"))
            continue
        for name, own_values in values.items():
            for key in own_keys:
                value = own_values[key]
                if isinstance(value, Unavailable):
                    result.unavailable[key] = f"unavailable: {value.reason}"
                elif isinstance(value, Statistic):
                    result.statistics[name][key] = value
                else:
                    result.statistics[name][key] = _statistic(key, value)
        if implementation in _VERSIONS:
            result.versions[implementation] = _VERSIONS[implementation](models, next(iter(reports.values())))
    return result


def _statistic(key: str, values: Floats) -> Statistic:
    mean = mean_statistic(values)
    if not METRICS[key].is_reciprocal:
        return mean
    with np.errstate(divide="ignore"):
        return Statistic(mean.rows, lambda sums: 1.0 / mean.value(sums), 1.0 / values)
