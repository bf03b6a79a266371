"""Drafts of several runs together: the mean of their calibrated log-odds, and the reports of the first run.

The runs were trained on one data set and may be of several seeds or methods. Each reads a study as it was trained to.
The mean is calibrated anew on the validation split, and what prior studies say is learned there too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from radweave.core.batch import Batch
from radweave.core.errors import InputError
from radweave.core.study import Split
from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.data.examples import PreparedSplit
from radweave.data.loader import Example, StudyLoader
from radweave.data.tokenizer import decode
from radweave.drafting.calibration import RunCalibration
from radweave.drafting.candidates import affirmed_classes
from radweave.drafting.smoothers import Evidence, Floats
from radweave.engine.expected_utility import FOLDER, Drafting, Opened
from radweave.engine.prepare import prepare
from radweave.engine.restore import Run
from radweave.engine.save_drafting import Calibrated, learn_priors
from radweave.labels import get_labeler
from radweave.methods.model import device_of


@dataclass(frozen=True)
class Averaged(Opened):
    """The drafting folder of a run, with the mean log-odds (K,) of several runs by study in place of its scores."""

    log_odds: Mapping[str, Floats]

    def evidence_for(self, batch: Batch) -> list[Evidence]:
        """Evidence of the run for each study, with the mean log-odds as scores.

        Raises:
            InputError: for a study that the runs were not asked of.
        """
        for study in batch.study_ids:
            if study not in self.log_odds:
                raise InputError("a study that the averaged runs were not asked of", field="study_id")
        each = zip(super().evidence_for(batch), batch.study_ids, strict=True)
        return [replace(one, scores=self.log_odds[study]) for one, study in each]


def averaged_drafting(runs: Sequence[Run], dataset: Dataset) -> Drafting:
    """Drafting by the mean of several runs, for the test split of their data set.

    Raises:
        InputError: if a run was trained on other data or other classes, or has nothing to draft with.
    """
    first = runs[0]
    for run in runs:
        if run.card.dataset.fingerprint != dataset.fingerprint() or run.card.classes != first.card.classes:
            raise InputError("the runs are not of one data set and its classes", file=run.folder, field="dataset")
    opened = [Opened.of(run.folder / FOLDER, run.model) for run in runs]
    mean = {split: mean_log_odds(runs, opened, dataset, split) for split in SPLITS_READ}
    validation = prepared_split(first, dataset, "val")
    examples = [example for example in validation.examples if example.report and example.study_id in mean["val"]]
    labeler = get_labeler(first.experiment.data.label_set)
    truth = affirmed_classes([example.report or "" for example in examples], labeler)
    scores = np.stack([mean["val"][example.study_id] for example in examples])
    calibration = RunCalibration.fit("stack", "val", labeler.classes, scores, truth)
    calibrated = Calibrated(
        calibration, examples, scores, truth, lambda batch: np.stack([mean["val"][study] for study in batch.study_ids])
    )
    batches = partial(_batches, first)
    prior = learn_priors(calibrated, validation.priors, labeler, batches, lambda text: None)
    store = replace(opened[0].store, calibration=None, prior=prior)
    averaged = Averaged(first.model, store, opened[0].owners, opened[0].studies, mean["test"])
    return Drafting(
        first.folder, first.model, calibration, partial(decode, first.tokenizer), first.experiment.data.priors, averaged
    )


SPLITS_READ: tuple[Split, ...] = ("val", "test")


def prepared_split(run: Run, dataset: Dataset, split: Split) -> PreparedSplit:
    """A split as a run reads it."""
    data = run.experiment.data
    cache = build_cache(dataset, size=data.image_size, ct=data.ct)
    return prepare(dataset.aimed(data.target), split, run.experiment, run.tokenizer, cache, need_text=False)


def mean_log_odds(runs: Sequence[Run], opened: Sequence[Opened], dataset: Dataset, split: Split) -> dict[str, Floats]:
    """Study id -> mean of the runs' calibrated log-odds (K,), of the studies that all of them can read."""
    each: list[dict[str, Floats]] = []
    for run, own in zip(runs, opened, strict=True):
        assert run.drafting is not None, "a restored run has it"
        calibration, known = run.drafting.calibration, dict[str, Floats]()
        for batch in _batches(run, prepared_split(run, dataset, split).examples):
            scores = np.stack([one.scores for one in own.evidence_for(batch)])
            known |= dict(zip(batch.study_ids, calibration.log_odds(scores), strict=True))
        each.append(known)
    read_by_all = [study for study in each[0] if all(study in known for known in each)]
    return {study: np.mean([known[study] for known in each], axis=0) for study in read_by_all}


def _batches(run: Run, examples: Sequence[Example]) -> Iterator[Batch]:
    pad_id, device = int(run.tokenizer.pad_token_id), device_of(run.model)
    return (batch.to(device) for batch in StudyLoader(examples, 32, pad_id).epoch())
