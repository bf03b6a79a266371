"""The same scores by other people's programs, where they are installed: rouge-score and sacrebleu.

They see exactly the texts and tokens our own code sees, so a difference beyond rounding is a fault on one side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from radweave.base.extras import missing, not_installed
from radweave.evaluation.prepare import PreparedTexts
from radweave.evaluation.protocols import EvalProtocol
from radweave.evaluation.records import Json
from radweave.evaluation.statistics import Statistic


@dataclass(frozen=True, slots=True)
class SecondOpinion:
    """A score by our code and by another program."""

    ours: float
    theirs: float

    @property
    def difference(self) -> float:
        return self.ours - self.theirs

    def to_json(self) -> Json:
        return {"ours": self.ours, "theirs": self.theirs, "difference": self.difference}


@dataclass(frozen=True, slots=True)
class NoOpinion:
    """Why a program says nothing."""

    unavailable: str

    def to_json(self) -> Json:
        return asdict(self)


Opinions = dict[str, SecondOpinion | NoOpinion]


def second_opinions(texts: PreparedTexts, protocol: EvalProtocol, statistics: Mapping[str, Statistic]) -> Opinions:
    """Metric and program -> both scores, or why the program has no opinion."""
    return {**_rouge(texts, protocol, statistics), **_sacrebleu(texts, protocol, statistics)}


def _rouge(texts: PreparedTexts, protocol: EvalProtocol, statistics: Mapping[str, Statistic]) -> Opinions:
    if "rouge_score" in missing("metrics"):
        return {"rouge-score": NoOpinion(not_installed("metrics", "it"))}
    from rouge_score.rouge_scorer import RougeScorer

    ours = {"rouge1": "ROUGE_1", "rouge2": "ROUGE_2", "rougeL": "ROUGE_L" if protocol.metrics == "hf" else "ROUGE_L_F1"}
    scorer = RougeScorer(list(ours), use_stemmer=False)
    sums = dict.fromkeys(ours, 0.0)
    for hyp, refs in zip(texts.hyps, texts.refs, strict=True):
        for name, score in scorer.score_multi(refs, hyp).items():
            sums[name] += score.fmeasure
    return {
        f"{ours[name]} (rouge-score)": SecondOpinion(statistics[ours[name]].corpus(), total / len(texts.hyps))
        for name, total in sums.items()
    }


def _sacrebleu(texts: PreparedTexts, protocol: EvalProtocol, statistics: Mapping[str, Statistic]) -> Opinions:
    """Corpus BLEU-4 on our tokens; sacrebleu has no add-one smoothing of order 1, so it has no opinion on HF's BLEU."""
    if "sacrebleu" in missing("metrics"):
        return {"sacrebleu": NoOpinion(not_installed("metrics", "it"))}
    if protocol.metrics == "hf":
        return {"sacrebleu": NoOpinion("it does not smooth as HF evaluate does")}
    from sacrebleu.metrics import BLEU

    most = max(len(group) for group in texts.refs)
    streams = [[group[i] if i < len(group) else None for group in texts.refs] for i in range(most)]
    score = BLEU(tokenize="none", smooth_method="none", force=True).corpus_score(texts.hyps, streams)
    return {"BLEU_4 (sacrebleu)": SecondOpinion(statistics["BLEU_4"].corpus(), score.score / 100.0)}
