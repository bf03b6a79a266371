"""Out-of-distribution detection: an image that is unlike a run's training images. Fitted with each run, to those alone.

    detector = fit_ood(squares, seed=0)        # squares of radiographs, or scans, as the model reads them
    detector.judge(square)                     # Judgement(score, verdict)
    save_ood(detector, folder); load_ood(folder)

A draft about a hand, or about a slice of a CT scan, reads like any other draft. So an image is reduced to some 700
numbers (``descriptor``), and the detector scores its distance from the training images, and its likeness to them rather
than to synthetic outliers (``xray_outliers``, ``ct_outliers``).
"""

from radweave.data.ood.detector import (
    Judgement,
    OutOfDistribution,
    TrainingPictures,
    Verdict,
    fit_ood,
    load_ood,
    save_ood,
)

__all__ = [
    "Judgement",
    "OutOfDistribution",
    "TrainingPictures",
    "Verdict",
    "fit_ood",
    "load_ood",
    "save_ood",
]
