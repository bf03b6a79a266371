"""Figure 3a of DiffVP: how the importance S_i = |I_i - I_r,i|^2 lies over the latent tokens, with and without delta.

    python bench/diffvp_importance.py DATASET OUT.json "with delta=RUN,RUN" "without=RUN_OF_THE_ROW_E_ALONE,RUN" \
      [--figure importance.png]

Every run is asked for the test split with its own encoder and resampler; a run without delta has no references, so all
runs get the same ones: normal studies of the training split, drawn by study as ``generate`` draws them. Each study's
importances are sorted and divided by their sum; the curve is their mean over the studies. 8 of 32 equal tokens hold
0.25, the paper says 0.45 with delta. Several runs of one name are seeds: a thin line each, and the name at the first.
Latents that look at the same places are alike: the mean cosine of the attention maps of a scan's latents is printed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.data.loader import collate
from radweave.engine.prepare import prepare
from radweave.engine.restore import Run, restore, view_of
from radweave.methods.diffvp.difference import TOP_TOKENS, token_importance, top_share
from radweave.methods.diffvp.model import DiffvpModel
from radweave.methods.diffvp.pool import STUDY_DRAW, PoolConfig, build_pool
from radweave.nn.connector import encode_views


@torch.no_grad()
def importances(run: Run, dataset: Dataset, batch_size: int = 16) -> tuple[Tensor, float]:
    """S_i of every test study (studies, latents), and the mean cosine of the attention maps of two latents."""
    model, data = run.model, run.experiment.data
    assert isinstance(model, DiffvpModel)
    pool = PoolConfig().build()
    pool.remember(build_pool(view_of(run, dataset, None, "train"), model.encoder, pool.config, pixels=False))
    cache = build_cache(dataset, size=data.image_size, ct=data.ct)
    examples = prepare(dataset, "test", run.experiment, run.tokenizer, cache, need_text=False).examples
    rows, cosines = [], []
    for start in range(0, len(examples), batch_size):
        batch = collate(examples[start : start + batch_size], pad_id=0)
        views = encode_views(model.encoder, batch)
        reference = pool.references(batch, views, STUDY_DRAW)
        target, compared = (model.resampler(side) for side in (views, reference.views))
        rows.append(token_importance(target.tokens, compared.tokens)[reference.present])
        maps = functional.normalize(target.attention.float(), dim=-1)
        number = maps.shape[1]
        cosines.append(((maps @ maps.transpose(1, 2)).sum((1, 2)) - number) / (number * (number - 1)))
    return torch.cat(rows), float(torch.cat(cosines).mean())


def curve(rows: Tensor) -> list[float]:
    """The mean share of the strongest token, the second, and so on."""
    shares: Tensor = (rows / rows.sum(1, keepdim=True)).sort(dim=1, descending=True).values.mean(0)
    return [round(value, 5) for value in shares.tolist()]


def draw(found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """The curves, a colour for each name."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 3.2), layout="constrained")
    axes = figure.add_subplot()
    longest = max(len(run["curve"]) for runs in found.values() for run in runs)
    for number, (name, runs) in enumerate(found.items()):
        for seed, run in enumerate(runs):
            share = sum(run["top_8"] for run in runs) / len(runs)
            label = f"{name}: the first {TOP_TOKENS} hold {share:.2f}" if not seed else None
            places = range(1, len(run["curve"]) + 1)
            axes.plot(places, run["curve"], color=f"C{number}", linewidth=1, marker=".", markersize=3, label=label)
    axes.axhline(1 / longest, color="0.6", linestyle=":", linewidth=1, label="equal tokens")
    axes.axvline(TOP_TOKENS + 0.5, color="0.6", linewidth=0.8)
    axes.set_xlabel("latent tokens, by importance")
    axes.set_ylabel("share of $|I - I_r|^2$")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", nargs="+", help="NAME=RUN[,RUN...]")
    parser.add_argument("--figure", type=Path, help="PNG file of the curves")
    options = parser.parse_args()
    dataset = Dataset.open(options.dataset)
    found: dict[str, list[dict[str, Any]]] = {}
    for entry in options.runs:
        name, _, folders = entry.partition("=")
        found[name] = []
        for folder in folders.split(","):
            rows, cosine = importances(restore(Path(folder)), dataset)
            share = round(float(top_share(rows, TOP_TOKENS).mean()), 4)
            print(f"{name}: {len(rows)} studies, the first {TOP_TOKENS} hold {share}, cosine {cosine:.3f}", flush=True)
            found[name].append({"studies": len(rows), "top_8": share, "cosine": cosine, "curve": curve(rows)})
    options.out.write_text(json.dumps({"dataset": dataset.fingerprint(), "runs": found}, indent=2) + "\n")
    if options.figure is not None:
        draw(found, options.figure)


if __name__ == "__main__":
    main()
