"""How fast the phantom draws, and whether each class can be seen: run by hand.

    python bench/bench_phantom.py speed
    python bench/bench_phantom.py auroc --modality xray --studies 1200

``auroc`` fits a logistic regression per class on simple features of drawn images and prints the area under the ROC
curve on patients it has not seen, against the truth (is the finding in the image), not against the report.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from radweave.core.ontology import CHEXPERT14, CT18
from radweave.phantom.study import PhantomOptions, draw_ct_study, draw_xray_study


def measure_speed() -> None:
    for name, draw, options in (
        ("radiographs 256 px", draw_xray_study, PhantomOptions()),
        ("radiographs 256 px, masks and twins", draw_xray_study, PhantomOptions(masks=True)),
        ("radiographs 512 px", draw_xray_study, PhantomOptions(image_size=512)),
        ("volumes 48 x 96 x 96", draw_ct_study, PhantomOptions()),
        ("volumes 48 x 96 x 96, masks and twins", draw_ct_study, PhantomOptions(masks=True)),
    ):
        start, images = time.process_time(), 0
        for index in range(40):
            images += len(draw(0, index, options).images)
        spent = time.process_time() - start
        print(f"{name}: {images / spent * 60:.0f} per minute and core")


def histograms(codes: np.ndarray, bins: int, grid: tuple[int, ...]) -> np.ndarray:
    """How often each code occurs in each cell of a grid over the image."""
    cells = [codes]
    for axis, parts in enumerate(grid):
        cells = [piece for cell in cells for piece in np.array_split(cell, parts, axis=axis)]
    return np.concatenate([np.bincount(cell.ravel(), minlength=bins) for cell in cells])


def features(image: np.ndarray, edges: np.ndarray, steps: np.ndarray, grid: tuple[int, ...]) -> np.ndarray:
    """Histograms of grey values and of differences of Gaussians at four scales, by cell and over all."""
    from scipy.ndimage import gaussian_filter

    codes = [(np.digitize(image, edges), len(edges) + 1)]
    smooth = np.clip(image, edges[0], edges[-1])
    for sigma in (0.8, 1.6, 3.2, 6.4):
        smoother = gaussian_filter(smooth, sigma)
        codes.append((np.digitize(smooth - smoother, steps), len(steps) + 1))
        smooth = smoother
    whole = tuple(1 for _ in grid)
    counts = [histograms(code, bins, cut) for code, bins in codes for cut in (whole, grid)]
    return np.sqrt(np.concatenate(counts)).astype(np.float32)


XRAY_EDGES, XRAY_STEPS = np.linspace(20, 245, 14), np.array([-25, -14, -8, -4, -1.5, 1.5, 4, 8, 14, 25.0])
CT_EDGES = np.array([-960, -900, -860, -800, -700, -500, -200, -50, 20, 80, 200, 450.0])
CT_STEPS = np.array([-250, -120, -50, -20, 20, 50, 120, 250, 400.0])


def example(modality: str, index: int, prevalence: str) -> tuple[np.ndarray, np.ndarray, int]:
    """Features, truth per class (is the finding in the image), and the patient."""
    options = PhantomOptions.model_validate({"prevalence": prevalence, "lateral_share": 0.0})
    if modality == "xray":
        study, classes = draw_xray_study(11, index, options), CHEXPERT14
        found = features(study.images[0].pixels.astype(np.float32), XRAY_EDGES, XRAY_STEPS, (6, 6))
    else:
        study, classes = draw_ct_study(11, index, options), CT18
        found = features(study.images[0].pixels.astype(np.float32), CT_EDGES, CT_STEPS, (3, 3, 4))
    there = {f.name for f in study.findings if f.visible}
    truth = np.array([c in there or (c == "No Finding" and not there - {"Support Devices"}) for c in classes])
    return found, truth, int(study.record.patient_id[1:])


def measure_auroc(modality: str, studies: int, prevalence: str) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    drawn = [example(modality, index, prevalence) for index in range(studies)]
    found, truth = np.stack([d[0] for d in drawn]), np.stack([d[1] for d in drawn])
    patients = np.array([d[2] for d in drawn])
    test = patients >= np.quantile(patients, 0.7)
    print(f"{(~test).sum()} train, {test.sum()} test, {found.shape[1]} features")
    areas = []
    for k, name in enumerate(CHEXPERT14 if modality == "xray" else CT18):
        model: Any = make_pipeline(StandardScaler(), LogisticRegression(C=0.03, max_iter=300))
        model.fit(found[~test], truth[~test, k])
        areas.append(roc_auc_score(truth[test, k], model.decision_function(found[test])))
        print(f"{name:36s} {areas[-1]:.3f}  ({truth[test, k].sum()} cases)")
    print(f"{'mean':36s} {np.mean(areas):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", default="speed", choices=("speed", "auroc"))
    parser.add_argument("--modality", choices=("xray", "ct"), default="xray")
    parser.add_argument("--studies", type=int, default=1200)
    parser.add_argument("--prevalence", default="balanced")
    args = parser.parse_args()
    if args.what == "speed":
        measure_speed()
    else:
        measure_auroc(args.modality, args.studies, args.prevalence)


if __name__ == "__main__":
    main()
