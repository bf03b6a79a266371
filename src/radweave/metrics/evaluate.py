"""Score a set of generated reports: one call, one result that says how it was made.

    evaluation = evaluate_pairs([Pair("s1", "lungs are clear .", ("the lungs are clear .",)), ...])
    evaluation.corpus["BLEU_4"].value

Every result holds the protocol with its hash, corpus scores with intervals, the scores of each study, the floors, the
honesty rows and the clinical table (``result``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from radweave.core.errors import InputError
from radweave.core.study import SECTIONS, without_headings
from radweave.labels import Labeler
from radweave.metrics.abnormal import (
    ABNORMAL_METRICS,
    AbnormalScores,
    abnormal_interval_name,
    abnormal_statistics,
    abnormal_studies,
)
from radweave.metrics.catalogue import CRG, MAIN_LANGUAGE_METRICS, METRICS, definitions
from radweave.metrics.clinical import (
    LabelledPairs,
    clinical_statistics,
    crg_statistic,
    label_pairs,
    pooled_statistics,
    states_of,
)
from radweave.metrics.floors import (
    FINDINGS,
    WORDING,
    Floor,
    best_candidate,
    build_floors,
    floor_title,
    shuffled_pairing,
)
from radweave.metrics.further import FurtherScores, Models, further_scores, requested_metrics, without_language_models
from radweave.metrics.grounding import NO_BOXES, box_statistics
from radweave.metrics.heads import head_table
from radweave.metrics.honesty import honesty_rows
from radweave.metrics.judge import endpoint
from radweave.metrics.language import ONE_STUDY_CIDER, language_and_floors, language_statistics, second_opinions
from radweave.metrics.laterality import read_sides
from radweave.metrics.long_tail import ClassFrequencies, long_tail_table
from radweave.metrics.pairs import Pair, check_pairs
from radweave.metrics.placement import place_labeler_of, placed_rows
from radweave.metrics.prepare import (
    PreparedTexts,
    are_parted,
    of_section,
    prepare,
    prepare_hypotheses,
    section_of,
    wholes,
)
from radweave.metrics.priors import (
    ELSE_COPY,
    ELSE_FLOOR,
    THIS_RUN,
    PriorFindings,
    else_prior,
    prior_interval_name,
    prior_statistics,
    prior_table,
    read_priors,
)
from radweave.metrics.protocols import EvalProtocol, ProtocolRecord, Vocabulary, get_protocol
from radweave.metrics.radfact import radfact_statistics
from radweave.metrics.records import (
    FINDING_F1,
    ClinicalKey,
    Estimate,
    FloorScores,
    Json,
    Resampling,
    Score,
    number_or_none,
)
from radweave.metrics.result import Evaluation, draft_edits, stated_target
from radweave.metrics.statistics import RESAMPLES, Interval, Statistic, Unavailable, bootstrap, cluster_index
from radweave.metrics.tables import (
    POLICY_NAMES,
    clinical_table,
    interval_name,
    placed_interval_name,
    placed_table,
    sided_interval_name,
    sided_table,
)


@dataclass(frozen=True, slots=True)
class Options:
    """Scores and resamples to compute, apart from the protocol.

    Attributes:
        meteor: start Java for METEOR if it is there; without Java the row says unavailable.
        scores: further metrics to compute (``catalogue.FURTHER_METRICS``).
        folders: local folders of models' weights by name (``weights.WEIGHTS``); their scores are computed as well.
        cache: folder that keeps what encoders have read; None keeps nothing.
        judge: OpenAI-compatible endpoint that GREEN, CRIMSON and RadFact ask where they are among the ``scores``;
            reports are sent there.
        judge_model: name of its model.
        allow_remote: let the endpoint be on another machine than this one.
        floors: score the baselines.
        second_opinions: let rouge-score and sacrebleu score the same texts.
        resamples: bootstrap resamples; 0 for no intervals.
        seed: of the resamples and of the shuffled and copied baselines.
    """

    meteor: bool = True
    scores: tuple[str, ...] = ()
    folders: Mapping[str, Path] = field(default_factory=dict)
    cache: Path | None = None
    judge: str = ""
    judge_model: str = ""
    allow_remote: bool = False
    floors: bool = True
    second_opinions: bool = False
    resamples: int = RESAMPLES
    seed: int = 0

    def models(self) -> Models:
        """The models of the folders, and the endpoint if one is named.

        Raises:
            InputError: for an endpoint that must not be asked, or whose model is not named.
        """
        chat = endpoint(self.judge, self.judge_model, allow_remote=self.allow_remote) if self.judge else None
        return Models(self.folders, cache=self.cache, chat=chat)

    def __post_init__(self) -> None:
        if self.resamples < 0:
            raise InputError("not a number of resamples", field="resamples", got=self.resamples, expected="0 or more")
        if self.seed < 0:
            raise InputError("not a seed", field="seed", got=self.seed, expected="0 or more")


def evaluate_pairs(
    pairs: Iterable[Pair],
    protocol: str | EvalProtocol = "full",
    *,
    labeler: Labeler | None = None,
    train_texts: Sequence[str] | None = None,
    frequencies: ClassFrequencies | None = None,
    options: Options | None = None,
    models: Models | None = None,
    left_out: Mapping[str, int] | None = None,
) -> Evaluation:
    """Score generated reports against their references.

    Reports of two parts (``Pair.target`` both) are scored as a whole without their headings, and by section.

    Args:
        pairs: one per study.
        protocol: name or record of the scoring protocol.
        labeler: reads findings for the clinical table and the honesty rows; None leaves both without findings.
        train_texts: reports of the *training* split, for the baselines and a protocol's vocabulary.
        frequencies: of the classes in the *training* split, for the scores of frequent and rare classes.
        options: what is computed beside.
        models: those of the options, where several sets of pairs share them.
        left_out: lines that were not usable, by reason, to stand in the result.

    Raises:
        InputError: for duplicate ids, a text that is none, an empty reference, or a protocol that needs Java where
            there is none.
    """
    options = options or Options()
    rules, checked = get_protocol(protocol), check_pairs(pairs)
    if models is None:
        models = options.models()
    if not are_parted(checked):
        return _evaluate(checked, rules, labeler, train_texts, frequencies, options, models, left_out or {})
    sections: dict[str, Evaluation] = {}
    scores, folders = without_language_models(options.scores, options.folders)
    of_sections = replace(options, scores=scores, folders=folders)
    for name in SECTIONS:
        if own := of_section(checked, name):
            section_texts = [own_text for text in train_texts or () if (own_text := section_of(text, name))]
            none = {"reference has no such section": len(checked) - len(own)} if len(own) < len(checked) else {}
            sections[name] = _evaluate(own, rules, labeler, section_texts or None, None, of_sections, models, none)
    texts = None if train_texts is None else [without_headings(text) for text in train_texts]
    whole = _evaluate(wholes(checked), rules, labeler, texts, frequencies, options, models, left_out or {})
    return replace(whole, sections=sections)


def _evaluate(
    checked: tuple[Pair, ...],
    rules: EvalProtocol,
    labeler: Labeler | None,
    train_texts: Sequence[str] | None,
    frequencies: ClassFrequencies | None,
    options: Options,
    models: Models,
    left_out: Mapping[str, int],
) -> Evaluation:
    """Scores of checked pairs, each a text without parts."""
    vocabulary, prepared = _prepared(checked, rules, train_texts)
    floors = build_floors(checked, rules, train_texts, options.seed, labeler) if options.floors else {}
    labelled = label_pairs(checked, labeler) if labeler else None
    of_abnormal = abnormal_studies(labelled) if labelled else None
    of_floors = {
        name: prepare_hypotheses(floor.texts, rules) for name, floor in floors.items() if floor.texts is not None
    }
    statistics, floor_scores, floors_on_abnormal = language_and_floors(prepared, of_floors, rules, of_abnormal)
    unavailable, versions = _add_meteor(statistics, prepared, options)
    clinical = clinical_statistics(labelled) if labelled else {}
    of_floors_clinical = _clinical_of_floors(floors, labelled, labeler)
    for name, scores in floors_on_abnormal.items():
        if of_abnormal is not None:
            on_these = abnormal_statistics({}, of_floors_clinical[name], of_abnormal)
            scores |= {key: statistic.corpus() for key, statistic in on_these.items()}
    requested = requested_metrics(options.scores, options.folders)
    if requested:
        further = _further(requested, checked, floors, labelled, labeler, models)
        statistics |= further.statistics[THIS_RUN]
        unavailable |= further.unavailable
        versions |= further.versions
        for name in floor_scores:
            own_scores = {key: statistic.corpus() for key, statistic in further.statistics[name].items()}
            floor_scores[name] = {**floor_scores[name], **own_scores}
    of_boxes = box_statistics(checked)
    statistics |= of_boxes
    if not of_boxes:
        unavailable |= {key: NO_BOXES for key in requested if "boxes" in METRICS[key].computed_by}
    sides = read_sides(checked)
    sided = pooled_statistics(sides.rows)
    places = place_labeler_of(labeler) if labeler else None
    placed = pooled_statistics(placed_rows(checked, places)) if places else {}
    patients = tuple(pair.patient_id for pair in checked)
    clusters = cluster_index(patients)
    named = {interval_name(key): statistic for key, statistic in clinical.items()}
    named.update({sided_interval_name(measure): statistic for measure, statistic in sided.items()})
    named.update({placed_interval_name(measure): statistic for measure, statistic in placed.items()})
    on_abnormal = {} if of_abnormal is None else abnormal_statistics(statistics, clinical, of_abnormal)
    named.update({abnormal_interval_name(key): statistic for key, statistic in on_abnormal.items()})
    priors, of_priors = _prior_statistics(checked, labelled, labeler, copies=options.floors)
    for system, own in of_priors.items():
        named.update({prior_interval_name(system, key): statistic for key, statistic in own.items()})
    intervals: dict[str, Interval] = {}
    if options.resamples:
        intervals = bootstrap({**statistics, **named}, clusters, resamples=options.resamples, seed=options.seed)
    long_tail, heads = None, None
    if labelled is not None:
        heads = head_table(checked, labelled, clusters, resamples=options.resamples, seed=options.seed)
    if labelled is not None and frequencies is not None:
        long_tail = long_tail_table(labelled, frequencies, clusters, resamples=options.resamples, seed=options.seed)
    return Evaluation(
        protocol=ProtocolRecord(rules, vocabulary, labelled.labeler if labelled else None, versions),
        study_ids=tuple(pair.study_id for pair in checked),
        patients=patients,
        statistics=statistics,
        clinical_statistics=clinical,
        sided_statistics=sided,
        prior_statistics=of_priors.get(THIS_RUN, {}),
        corpus=_corpus(statistics, intervals, unavailable),
        floors=_floor_table(floors, floor_scores, of_floors_clinical),
        abnormal=None
        if labelled is None or of_abnormal is None
        else AbnormalScores(
            int(of_abnormal.sum()),
            len(checked),
            labelled.reference_source,
            _abnormal_corpus(on_abnormal, intervals, unavailable),
            {name: _numbers(scores) for name, scores in floors_on_abnormal.items()},
        ),
        honesty=honesty_rows(checked, prepared, labelled, sides),
        clinical=clinical_table(labelled, clinical, intervals, rules) if labelled else None,
        sided=sided_table(sided, intervals),
        placed=placed_table(placed, intervals) if placed else None,
        priors=None if priors is None else prior_table(priors, of_priors, intervals),
        long_tail=long_tail,
        heads=heads,
        texts=prepared.effects,
        drafts=draft_edits(checked),
        target=stated_target(checked),
        resampling=Resampling(
            unit="study" if all(patient is None for patient in patients) else "patient",
            units=int(clusters.max()) + 1,
            resamples=options.resamples,
            seed=options.seed,
        ),
        definitions=definitions(rules.metrics) | {key: METRICS[key].definition for key in (*requested, *of_boxes)},
        left_out=dict(left_out),
        second_opinions=second_opinions(prepared, rules, statistics) if options.second_opinions else {},
    )


def _prior_statistics(
    pairs: Sequence[Pair], labelled: LabelledPairs | None, labeler: Labeler | None, *, copies: bool
) -> tuple[PriorFindings | None, dict[str, dict[str, Statistic]]]:
    """The findings of priors, and by system the statistics with them: of the drafts, and of ``copies``."""
    priors = None if labelled is None or labeler is None else read_priors(pairs, labelled, labeler)
    if priors is None or labelled is None:
        return None, {}
    systems = {THIS_RUN: prior_statistics([pair.hyp for pair in pairs], labelled.hyp, priors)}
    if copies:
        texts = else_prior(pairs)
        systems[ELSE_COPY] = prior_statistics(texts, states_of(texts, priors.labeler), priors)
    return priors, systems


def second_wording(
    pairs: Sequence[Pair], protocol: str, *, train_texts: Sequence[str] | None = None, options: Options
) -> Json:
    """The language scores, without METEOR, by another protocol than that of an evaluation of the same pairs."""
    rules = get_protocol(protocol)
    if are_parted(pairs):
        pairs = wholes(pairs)
        train_texts = None if train_texts is None else [without_headings(text) for text in train_texts]
    vocabulary, prepared = _prepared(pairs, rules, train_texts)
    statistics = language_statistics(prepared, rules)
    unavailable, versions = _add_meteor(statistics, prepared, replace(options, meteor=False))
    clusters = cluster_index([pair.patient_id for pair in pairs])
    intervals: dict[str, Interval] = {}
    if options.resamples:
        intervals = bootstrap(statistics, clusters, resamples=options.resamples, seed=options.seed)
    return {
        "protocol": ProtocolRecord(rules, vocabulary, None, versions).to_json(),
        "corpus": {name: score.to_json() for name, score in _corpus(statistics, intervals, unavailable).items()},
        "definitions": definitions(rules.metrics),
        "texts": prepared.effects.to_json(),
    }


def _prepared(
    pairs: Sequence[Pair], rules: EvalProtocol, train_texts: Sequence[str] | None
) -> tuple[Vocabulary | None, PreparedTexts]:
    """The texts by the protocol's rules, and its vocabulary where it has one."""
    vocabulary = Vocabulary.of(train_texts, rules) if train_texts else None
    return vocabulary, prepare(pairs, rules, vocabulary)


def _add_meteor(
    statistics: dict[str, Statistic], prepared: PreparedTexts, options: Options
) -> tuple[dict[str, str], dict[str, str]]:
    """Add METEOR's statistics; return what is unavailable, with the reason, and the versions of programs used."""
    unavailable = {} if "CIDEr" in statistics else {"CIDEr": ONE_STUDY_CIDER, "CIDEr_plain": ONE_STUDY_CIDER}
    names = ("METEOR", "METEOR_segment_mean")
    if not options.meteor:
        return {**unavailable, **dict.fromkeys(names, "unavailable: not asked for")}, {}
    from radweave.metrics.meteor import meteor_statistics

    meteor = meteor_statistics(prepared.hyps, prepared.refs)
    if isinstance(meteor, Unavailable):
        return {**unavailable, **dict.fromkeys(names, f"unavailable: {meteor.reason}")}, {}
    statistics.update(meteor.statistics)
    return unavailable, {"meteor": meteor.version}


def _further(
    keys: Sequence[str],
    pairs: Sequence[Pair],
    floors: Mapping[str, Floor],
    labelled: LabelledPairs | None,
    labeler: Labeler | None,
    models: Models,
) -> FurtherScores:
    """The metrics ``keys`` of the run and of its floors, on the texts as they are given."""
    systems: dict[str, Sequence[str]] = {THIS_RUN: [pair.hyp for pair in pairs]}
    systems |= {name: floor.texts for name, floor in floors.items() if floor.texts is not None}
    result = further_scores(keys, systems, [pair.refs for pair in pairs], models)
    if CRG in keys and (labelled is None or labeler is None):
        result.unavailable[CRG] = "unavailable: needs a labeler"
    elif CRG in keys and labelled is not None and labeler is not None:
        for name, texts in systems.items():
            hyp = labelled.hyp if name == THIS_RUN else states_of(texts, labeler)
            result.statistics[name][CRG] = crg_statistic(replace(labelled, hyp=hyp))
    if radfact_keys := [key for key in keys if "radfact" in METRICS[key].computed_by]:
        try:
            statistics = radfact_statistics(pairs, models.radfact, labeler)
        except InputError as error:
            result.unavailable.update(dict.fromkeys(radfact_keys, f"unavailable: {error}"))
            return result
        result.statistics[THIS_RUN] |= {key: statistics[key] for key in radfact_keys if key in statistics}
        without = "unavailable: needs a labeler" if labeler is None else NO_BOXES
        result.unavailable.update({key: without for key in radfact_keys if key not in statistics})
        result.versions["radfact"] = models.radfact.version([(one.hyp, text) for one in pairs for text in one.refs])
    return result


def _corpus(
    statistics: Mapping[str, Statistic], intervals: Mapping[str, Interval], unavailable: Mapping[str, str]
) -> dict[str, Score]:
    scores = {}
    for name, statistic in statistics.items():
        value = number_or_none(statistic.corpus())
        scores[name] = Score(value, intervals.get(name), None if value is not None else "undefined: no values")
    scores.update({name: Score(None, None, reason) for name, reason in unavailable.items()})
    return dict(sorted(scores.items()))


def _abnormal_corpus(
    statistics: Mapping[str, Statistic], intervals: Mapping[str, Interval], unavailable: Mapping[str, str]
) -> dict[str, Score]:
    """The scores on abnormal studies; one that has no value among all studies has none here, for the same reason."""
    named = {key: intervals[name] for key in statistics if (name := abnormal_interval_name(key)) in intervals}
    scores = _corpus(statistics, named, {key: unavailable[key] for key in ABNORMAL_METRICS if key in unavailable})
    none = "undefined: no reference is abnormal"
    return {
        key: replace(one, unavailable=none) if one.value is None and key in statistics else one
        for key, one in scores.items()
    }


def _numbers(scores: Mapping[str, float]) -> dict[str, float | None]:
    return {metric: number_or_none(value) for metric, value in scores.items()}


def _clinical_of_floors(
    floors: Mapping[str, Floor], labelled: LabelledPairs | None, labeler: Labeler | None
) -> dict[str, dict[ClinicalKey, Statistic]]:
    """The clinical statistics of each baseline that has texts; none without a labeler."""
    return {
        name: {}
        if labelled is None or labeler is None
        else clinical_statistics(replace(labelled, hyp=states_of(floor.texts, labeler)))
        for name, floor in floors.items()
        if floor.texts is not None
    }


def _floor_table(
    floors: Mapping[str, Floor],
    scores: Mapping[str, Mapping[str, float]],
    clinical_of: Mapping[str, Mapping[ClinicalKey, Statistic]],
) -> dict[str, FloorScores]:
    """Each baseline's corpus scores; METEOR is left out of them, it takes Java's time for every one."""
    table = {}
    for name, floor in floors.items():
        if floor.texts is None:
            table[name] = FloorScores(floor.source)
            continue
        clinical = clinical_of[name]
        findings = METRICS["CE_F1"].statistic({}, clinical)
        keys = {metric.key: metric.clinical_key(clinical) for metric in METRICS.values()}
        table[name] = FloorScores(
            floor.source,
            distinct_reports_share=len(set(floor.texts)) / len(floor.texts),
            corpus=_numbers(scores[name]),
            findings_f1=None if findings is None else number_or_none(findings.corpus()),
            clinical={
                metric: number_or_none(clinical[key].corpus()) for metric, key in keys.items() if key is not None
            },
        )
    return table


# The model and the floors that came with its predictions, scored by the same program, side by side.


MODEL = "model"
FLOOR_NAMES = {name: floor_title(name) for name in ("constant", FINDINGS, WORDING, "nearest_neighbour")}
ELSE_ITS_OWN = floor_title(ELSE_FLOOR)


def floor_texts(pairs: Sequence[Pair]) -> dict[str, list[str]]:
    """The floors that have a report for every study, by name: those that came with the predictions, and the system's
    own reports with the prior's report wherever there is one.
    """
    texts = {
        name: [pair.floors[key] for pair in pairs]
        for key, name in FLOOR_NAMES.items()
        if all(key in pair.floors for pair in pairs)
    }
    if any(pair.prior_report is not None for pair in pairs):
        texts[ELSE_ITS_OWN] = else_prior(pairs)
    return texts


def floor_pairs(pairs: Sequence[Pair], seed: int = 0) -> dict[str, list[Pair]]:
    """The floors of a system as systems of their own (``floor_texts``), and its own reports given to other studies."""
    texts: dict[str, Sequence[str]] = {f"floor: {name}": own for name, own in floor_texts(pairs).items()}
    shuffled = shuffled_pairing(pairs, seed).texts
    if shuffled is not None:
        texts[f"floor: {floor_title('shuffled_pairing')}"] = shuffled
    return {
        name: [replace(pair, hyp=hyp, floors={}) for pair, hyp in zip(pairs, hyps, strict=True)]
        for name, hyps in texts.items()
    }


def score_systems(
    pairs: Sequence[Pair], labeler: Labeler, protocol: str = "full", *, resamples: int = 1000
) -> dict[str, Evaluation]:
    """Evaluate the generated reports, and each floor (``floor_texts``) as if it were the model."""
    systems = {MODEL: [pair.hyp for pair in pairs], **floor_texts(pairs)}
    options = Options(meteor=False, floors=False, resamples=resamples)
    return {
        name: evaluate_pairs(
            [replace(pair, hyp=hyp, floors={}) for pair, hyp in zip(pairs, hyps, strict=True)],
            protocol,
            labeler=labeler,
            options=options,
        )
        for name, hyps in systems.items()
    }


def finding_f1(evaluation: Evaluation) -> Estimate:
    """Micro F1 of the findings with its interval, No Finding left out, uncertain as negative; None for 0/0.

    The evaluation was made with a labeler.
    """
    assert evaluation.clinical is not None
    table = evaluation.clinical.policies[POLICY_NAMES[FINDING_F1.policy]]
    return table.groups[FINDING_F1.group][FINDING_F1.average].f1


# Scores used while training and for choosing, not for reporting: no intervals, no floors, protocol ``full``.


def corpus_scores(hyps: Mapping[str, str], refs: Mapping[str, str]) -> dict[str, float]:
    """Corpus BLEU-4, ROUGE-L and CIDEr of the reports, paired by study id."""
    statistics = corpus_statistics(hyps, refs)
    return {name: statistics[name].corpus() for name in MAIN_LANGUAGE_METRICS if name in statistics}


def corpus_statistics(hyps: Mapping[str, str], refs: Mapping[str, str]) -> dict[str, Statistic]:
    """BLEU, ROUGE and CIDEr of the reports, in the order of ``refs``."""
    protocol = get_protocol("full")
    pairs = [Pair(study_id=study_id, hyp=hyps[study_id], refs=(ref,)) for study_id, ref in refs.items()]
    return language_statistics(prepare(pairs, protocol), protocol)


def best_constant(candidates: Sequence[str], references: Sequence[str]) -> str:
    """The candidate with the highest BLEU-4 when it is given for every reference."""
    return best_candidate(candidates, references, get_protocol("full"))
