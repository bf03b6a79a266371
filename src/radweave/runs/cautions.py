"""What is known of a run when its training has ended, and must not be overlooked: short training, collapse, floors."""

from __future__ import annotations

from itertools import islice

from radweave.evaluation import Options, Pair, evaluate_pairs
from radweave.runs.stages import Training

FEW_UPDATES = 200
"""Of the stage that writes reports: the tiny presets make three times as many on their demonstration."""
LEAST_STUDIES = 20
"""Of validation: among fewer, equal drafts and a floor's score say nothing."""
DRAFTED = 60
TRAINING_REPORTS = 500


def cautions_of(training: Training, updates: int) -> tuple[str, ...]:
    """Sentences about a trained model; none where it passes. ``updates`` are those of the stage that writes reports."""
    short = training.last_stage.losses and updates < FEW_UPDATES
    found = [f"barely trained: {updates} updates of the stage that writes reports"] if short else []
    return (*found, *_of_validation(training))


def _of_validation(training: Training) -> list[str]:
    """What the model's own drafts of some validation studies show, beside floors from training reports."""
    prepared = training.splits["val"]
    examples = [example for example in prepared.examples if example.study_id in prepared.references]
    if len(examples) < LEAST_STUDIES:
        return []
    step = -(-len(examples) // DRAFTED)
    drafts = list(training.drafter.drafts(examples[::step]))
    pairs = [
        Pair(
            draft.example.study_id,
            draft.text,
            (prepared.references[draft.example.study_id],),
            has_prior=draft.example.study_id in prepared.with_prior,
        )
        for draft in drafts
    ]
    own = (example.report for example in training.splits["train"].examples if example.report)
    texts = tuple(islice(own, TRAINING_REPORTS))
    found = evaluate_pairs(pairs, train_texts=texts, options=Options(meteor=False, resamples=0))
    # Its own decoding: what a run chooses by expected utility is another draft.
    return [f"drafts of {len(pairs)} validation studies: {sentence}" for sentence in found.warnings()]
