"""Does an image look like those that a run was trained on? Learned with each run, from its own training images alone.

    familiarity = fit_familiarity(squares, seed=0)        # squares of radiographs, or scans, as the model sees them
    familiarity.judge(square)                             # Judgement(score, verdict)
    save_familiarity(familiarity, folder); load_familiarity(folder)

A draft about a hand, or about a slice of a CT scan, would look like any other draft. So an image is described in some
700 numbers (``descriptor``), and two questions are asked of them (``model``): how far is it from the training images,
and does it look more like them or like strangers made for the purpose (``strangers``, ``scans``)?
"""

from radweave.data.ood.detector import (
    Familiarity,
    Judgement,
    TrainingPictures,
    Verdict,
    fit_familiarity,
    load_familiarity,
    save_familiarity,
)

__all__ = [
    "Familiarity",
    "Judgement",
    "TrainingPictures",
    "Verdict",
    "fit_familiarity",
    "load_familiarity",
    "save_familiarity",
]
