"""How fast the phantom draws, and whether each class can be seen: run by hand.

    python bench/bench_phantom.py speed
    python bench/bench_phantom.py auroc --modality xray --studies 2000 --epochs 16

``auroc`` trains a small convolutional network on drawn images and prints, per class, the area under the ROC curve on
patients it has not seen, against the truth (is the finding in the image), not against the report.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from radweave.phantom.findings import CHEXPERT14, CT18
from radweave.phantom.sheet import SOFT_WINDOW, windowed
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
    """Grey values (channels, ...) as uint8, truth per class, and the patient."""
    modality, index, prevalence, size = job
    if modality == "xray":
        options = PhantomOptions.model_validate({"prevalence": prevalence, "image_size": size, "lateral_share": 0.0})
        study = draw_xray_study(11, index, options)
        image, classes = study.images[0].pixels[None], CHEXPERT14
    else:
        study = draw_ct_study(11, index, PhantomOptions.model_validate({"prevalence": prevalence}))
        hu, classes = study.images[0].pixels, CT18
        image = np.stack([windowed(hu, window) for window in ((-650.0, 800.0), SOFT_WINDOW, (500.0, 700.0))])
    there = {f.name for f in study.findings if f.visible}
    truth = np.array([c in there or (c == "No Finding" and not there - {"Support Devices"}) for c in classes])
    return image, truth, int(study.record.patient_id[1:])


def small_network(channels: int, classes: int, *, flat: bool) -> Any:
    """Four convolutions, then the mean and the maximum of each feature over the image."""
    import torch
    from torch import nn

    conv: Any = nn.Conv2d if flat else nn.Conv3d
    norm: Any = nn.BatchNorm2d if flat else nn.BatchNorm3d
    mean: nn.Module = nn.AdaptiveAvgPool2d(1) if flat else nn.AdaptiveAvgPool3d(1)
    largest: nn.Module = nn.AdaptiveMaxPool2d(1) if flat else nn.AdaptiveMaxPool3d(1)
    widths = ((16, 2), (32, 2), (64, 2), (64, 1)) if flat else ((12, 2), (24, 2), (48, 2), (48, 1))

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers: list[nn.Module] = []
            width = channels
            for out, stride in widths:
                layers += [conv(width, out, 3, stride=stride, padding=1), norm(out), nn.ReLU()]
                width = out
            self.features = nn.Sequential(*layers)
            self.mean, self.largest = mean, largest
            self.head = nn.Linear(2 * width, classes)

        def forward(self, pixels: Any) -> Any:
            found = self.features(pixels.float() / 128 - 1)
            return self.head(torch.cat([self.mean(found).flatten(1), self.largest(found).flatten(1)], 1))

    torch.manual_seed(0)
    torch.set_num_threads(1)
    return Network()


def train_and_score(images: np.ndarray, truth: np.ndarray, test: np.ndarray, epochs: int) -> np.ndarray:
    """AUROC per class on the test part."""
    import torch
    from sklearn.metrics import roc_auc_score

    model = small_network(images.shape[1], truth.shape[1], flat=images.ndim == 4)
    x, y = torch.from_numpy(images), torch.from_numpy(truth.astype(np.float32))
    train = torch.from_numpy(np.flatnonzero(~test))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=epochs * (len(train) // 16))
    for _ in range(epochs):
        order = train[torch.randperm(len(train))]
        for start in range(0, len(order) // 16 * 16, 16):
            rows = order[start : start + 16]
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        scores = torch.cat([model(part) for part in x[test].split(16)]).numpy()
    return np.array([roc_auc_score(truth[test][:, k], scores[:, k]) for k in range(truth.shape[1])])


def measure_auroc(modality: str, studies: int, epochs: int, size: int, prevalence: str) -> None:
    drawn = [example((modality, i, prevalence, size)) for i in range(studies)]
    images, truth = np.stack([d[0] for d in drawn]), np.stack([d[1] for d in drawn])
    patients = np.array([d[2] for d in drawn])
    test = patients >= np.quantile(patients, 0.7)
    start = time.time()
    areas = train_and_score(images, truth, test, epochs)
    print(f"{(~test).sum()} train, {test.sum()} test, {time.time() - start:.0f} s")
    for name, area, cases in zip(CHEXPERT14 if modality == "xray" else CT18, areas, truth[test].sum(0), strict=True):
        print(f"{name:36s} {area:.3f}  ({cases} cases)")
    print(f"{'mean':36s} {areas.mean():.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("speed", "auroc"))
    parser.add_argument("--modality", choices=("xray", "ct"), default="xray")
    parser.add_argument("--studies", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--prevalence", default="balanced")
    args = parser.parse_args()
    if args.what == "speed":
        measure_speed()
    else:
        measure_auroc(args.modality, args.studies, args.epochs, args.size, args.prevalence)


if __name__ == "__main__":
    main()
