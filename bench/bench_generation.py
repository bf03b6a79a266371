"""Generation in batches of 16 against one by one, at the shape of the baseline's tiny preset.

Weights are untrained and reports forced to the same length, so that both ways decode the same number of tokens; the
ids must be the same. Prints the ratio, and what share of a step the network itself takes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from radweave.base.ontology import CLASSES
from radweave.contract.experiment import BuildContext
from radweave.data.loader import Example, collate
from radweave.data.tokenizer import BpeTokenizerConfig
from radweave.methods import resolve
from radweave.nn.decoding import DecodingConfig


def best_of(rounds: int, call: Callable[[], object]) -> float:
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--beams", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    experiment = resolve("baseline", options.preset, [])
    tokenizer = BpeTokenizerConfig(vocab_size=300).build(["There is no effusion."] * 3)
    tokenizer.add_tokens([f"<{number}>" for number in range(1200 - len(tokenizer))])
    torch.manual_seed(0)
    context = BuildContext(tokenizer, experiment.data.image_size, CLASSES["chexpert14"])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = experiment.model.build(context).to(device).eval()
    size = experiment.data.image_size
    pixels = np.random.default_rng(0).integers(0, 256, (16, size, size)).astype(np.uint8)
    studies = [Example(str(row), str(row), pixels, (row,), (1,)) for row in range(16)]
    decoding = DecodingConfig(num_beams=options.beams, max_new_tokens=options.tokens, min_new_tokens=options.tokens)

    def generate(chunk: list[Example]) -> list[list[int]]:
        batch = collate(chunk, pad_id=int(tokenizer.pad_token_id)).to(device)
        with torch.inference_mode():
            ids: list[list[int]] = model.generate(batch, decoding).token_ids
        return ids

    together = generate(studies)
    alone = [generate([study])[0] for study in studies]
    assert together == alone, "the same reports alone and in a batch"
    batched = best_of(options.rounds, lambda: generate(studies))
    single = best_of(options.rounds, lambda: [generate([study]) for study in studies])
    print(f"{device}, {options.threads} threads, 16 studies, {options.tokens} tokens each, {options.beams} beams")
    print(f"batch of 16: {16 / batched:.1f} studies/s   one by one: {16 / single:.1f} studies/s")
    print(f"ratio {single / batched:.2f}")


if __name__ == "__main__":
    main()
