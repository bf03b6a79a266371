"""How fast the phantom draws, and whether each class can be seen: run by hand.

    python bench/bench_phantom.py speed
    python bench/bench_phantom.py auroc --modality xray --studies 1600 --epochs 14

``auroc`` trains a small convolutional network on drawn images and prints, per class, the area under the ROC curve on
patients it has not seen, against the truth (is the finding in the image), not against the report.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

from radweave.phantom.findings import CHEXPERT14, CT18
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


def example(job: tuple[str, int, str, int]) -> tuple[np.ndarray, np.ndarray, int]:
    """Image scaled to 0..1, truth per class, and the patient."""
    modality, index, prevalence, size = job
    if modality == "xray":
        options = PhantomOptions.model_validate({"prevalence": prevalence, "image_size": size, "lateral_share": 0.0})
        study = draw_xray_study(11, index, options)
        image = study.images[0].pixels.astype(np.float32)[None] / 255
        classes = CHEXPERT14
    else:
        options = PhantomOptions.model_validate({"prevalence": prevalence})
        study = draw_ct_study(11, index, options)
        hu = study.images[0].pixels.astype(np.float32)
        windows = [np.clip((hu + 1000) / 1000, 0, 1), np.clip((hu + 160) / 400, 0, 1), np.clip((hu - 200) / 800, 0, 1)]
        image = np.stack(windows)
        classes = CT18
    there = {f.name for f in study.findings if f.visible}
    truth = np.array([float(c in there or (c == "No Finding" and not there - {"Support Devices"})) for c in classes])
    return image, truth, int(study.record.patient_id[1:])


def train_and_score(images: np.ndarray, truth: np.ndarray, test: np.ndarray, epochs: int) -> np.ndarray:
    """AUROC per class on the test part."""
    import torch
    from sklearn.metrics import roc_auc_score
    from torch import nn

    torch.manual_seed(0)
    torch.set_num_threads(1)
    flat = images.ndim == 4
    conv: Any = nn.Conv2d if flat else nn.Conv3d
    norm: Any = nn.BatchNorm2d if flat else nn.BatchNorm3d
    layers: list[nn.Module] = []
    width = images.shape[1]
    for out in (16, 32, 64, 96) if flat else (16, 32, 48):
        layers += [conv(width, out, 3, stride=2, padding=1), norm(out), nn.ReLU(), conv(out, out, 3, padding=1)]
        layers += [norm(out), nn.ReLU()]
        width = out
    pool: nn.Module = nn.AdaptiveMaxPool2d(4) if flat else nn.AdaptiveMaxPool3d((3, 4, 4))
    cells = 16 if flat else 48
    head = nn.Linear(width * cells, truth.shape[1])
    model = nn.Sequential(*layers, pool, nn.Flatten(), nn.Dropout(0.3), head)
    x, y = torch.from_numpy(images), torch.from_numpy(truth.astype(np.float32))
    train = torch.from_numpy(np.flatnonzero(~test))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.02)
    steps = epochs * (len(train) // 16)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for _ in range(epochs):
        order = train[torch.randperm(len(train))]
        for start in range(0, len(order) // 16 * 16, 16):
            rows = order[start : start + 16]
            loss = nn.functional.binary_cross_entropy_with_logits(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        scores = torch.cat([model(part) for part in x[test].split(32)]).numpy()
    return np.array(
        [
            roc_auc_score(truth[test][:, k], scores[:, k]) if 0 < truth[test][:, k].sum() < test.sum() else np.nan
            for k in range(truth.shape[1])
        ]
    )


def measure_auroc(modality: str, studies: int, epochs: int, size: int, prevalence: str) -> None:
    jobs = [(modality, i, prevalence, size) for i in range(studies)]
    with ProcessPoolExecutor(2) as pool:
        drawn = list(pool.map(example, jobs, chunksize=16))
    images, truth = np.stack([d[0] for d in drawn]), np.stack([d[1] for d in drawn])
    patients = np.array([d[2] for d in drawn])
    test = patients >= np.quantile(patients, 0.7)
    start = time.time()
    areas = train_and_score(images, truth, test, epochs)
    print(f"{(~test).sum()} train, {test.sum()} test, {time.time() - start:.0f} s")
    for name, area, cases in zip(CHEXPERT14 if modality == "xray" else CT18, areas, truth[test].sum(0), strict=True):
        print(f"{name:36s} {area:.3f}  ({cases:.0f} cases)")
    print(f"{'mean':36s} {np.nanmean(areas):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("speed", "auroc"))
    parser.add_argument("--modality", choices=("xray", "ct"), default="xray")
    parser.add_argument("--studies", type=int, default=1600)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--prevalence", default="balanced")
    args = parser.parse_args()
    if args.what == "speed":
        measure_speed()
    else:
        measure_auroc(args.modality, args.studies, args.epochs, args.size, args.prevalence)


if __name__ == "__main__":
    main()
