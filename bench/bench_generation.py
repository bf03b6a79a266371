"""460 reports of the lengths of IU X-ray: written side by side, in fixed batches, and one by one; transformers beside.

    PYTHONPATH=src python bench/bench_generation.py --preset small --studies 460 --rounds 3
    PYTHONPATH=src python bench/bench_generation.py --studies 32 --rounds 1       # its smallest size

The language model of the baseline's preset with random weights, after prefixes of random embeddings, 60 and 120 tokens
in turn (one view or two). The end of each report is forced at a drawn length, and its first word names the study, in
the same way for all that write. Lengths are those of the 2,753 findings of IU X-ray in tokens of a vocabulary of 2,000,
cut at 96: their quantiles stand below. All ways take turns in one run. On a CPU seconds are the processor's, of one
thread; on a GPU those of the clock. ``int8`` is torch's dynamic quantisation of the linear maps (CPU alone); of random
weights it says other words, at the same lengths.
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from radweave.methods import resolve
from radweave.nn import decoding as slots
from radweave.nn.decoding import DecodingConfig, Prefixes
from radweave.nn.language_model import CausalLanguageModel

AT = (0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1)
TOKENS = (3, 17, 20, 25, 28, 32, 36, 39, 45, 52, 64, 75, 96)
MOST, WORDS, FIRST, END = 96, 2000, 10, 2


class Forced:
    """Scores under which study n says word FIRST + n first, and ends at its length."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)

    def name(self, module: nn.Module, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        """After a prefix was read: its last embedding begins with the study's number."""
        if kwargs.get("inputs_embeds") is not None:
            studies = kwargs["inputs_embeds"][:, -1, 0].float().round().long()
            out.logits[torch.arange(len(studies)), -1, FIRST + studies] = 1e4

    def end(self, scores: Tensor, histories: Sequence[Sequence[int]]) -> Tensor:
        """The end comes where it should, and nowhere else."""
        for row, ids in enumerate(histories):
            if ids:
                over = len(ids) >= self.lengths[ids[0] - FIRST]
                scores[row, END] = 2e4 if over else -1e4
        return scores

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """As transformers asks its processors of scores."""
        return self.end(scores, input_ids.tolist())


def prefixes(width: int, studies: int, batch: int, device: torch.device) -> list[Prefixes]:
    """Random prefixes in batches, padded on the left."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for start in range(0, studies, batch):
        numbers = range(start, min(start + batch, studies))
        sizes = [60 + 60 * (number % 2) for number in numbers]
        embeds = torch.randn(len(sizes), max(sizes), width, generator=generator)
        embeds[:, -1, 0] = torch.tensor([float(number) for number in numbers])
        mask = torch.arange(max(sizes)) >= max(sizes) - torch.tensor(sizes)[:, None]
        found.append(Prefixes((embeds * mask[:, :, None]).to(device), mask.to(device)))
    return found


def ours(model: CausalLanguageModel, streams: list[list[Prefixes]], decoding: DecodingConfig) -> list[list[int]]:
    """Each stream of batches written by itself."""
    return [row for stream in streams for ids, _ in model.write(iter(stream), decoding) for row in ids]


def theirs(model: Any, batches: list[Prefixes], forced: Forced) -> list[list[int]]:
    """Transformers' own ``generate``, batch by batch."""
    found = []
    for some in batches:
        out = model.generate(
            inputs_embeds=some.embeds, attention_mask=some.mask.long(), max_new_tokens=MOST, do_sample=False,
            eos_token_id=END, pad_token_id=0, logits_processor=[forced],
        )  # fmt: skip
        found += [row[: row.index(END)] if END in row else row for row in out.tolist()]
    return found


def int8(model: CausalLanguageModel) -> CausalLanguageModel:
    small = copy.deepcopy(model)
    small.model = torch.ao.quantization.quantize_dynamic(small.model, {nn.Linear}, dtype=torch.qint8)
    return small


def seconds(call: Callable[[], object], device: torch.device) -> float:
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    started = clock()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - started


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--studies", type=int, default=460)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--compile", default="", help="default or reduce-overhead: this way beside")
    parser.add_argument("--without-one-by-one", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)
    torch.manual_seed(0)
    record = resolve("baseline", options.preset, ()).model.language_model
    model = record.build(vocab_size=WORDS, bos_id=1, eos_id=END, pad_id=0).eval().to(device)
    drawn = np.random.default_rng(0).uniform(size=options.studies)
    forced = Forced(np.interp(drawn, AT, TOKENS).round().astype(int).tolist())
    process = slots.process_scores
    slots.process_scores = lambda scores, ids, *rest: forced.end(process(scores, ids, *rest), ids)
    batches = prefixes(model.width, options.studies, options.batch, device)
    single = prefixes(model.width, options.studies, 1, device)
    for batch, one in zip((row for some in batches for row in _rows(some)), single, strict=True):
        one.embeds.copy_(batch)
    decoding = DecodingConfig(max_new_tokens=MOST)
    ways: dict[str, tuple[CausalLanguageModel, Callable[[CausalLanguageModel], list[list[int]]]]] = {
        "transformers, batches": (model, lambda used: theirs(used.model, batches, forced)),
        "fixed batches": (model, lambda used: ours(used, [[some] for some in batches], decoding)),
        "continuous": (model, lambda used: ours(used, [batches], decoding)),
    }
    if not options.without_one_by_one:
        ways["transformers, one by one"] = (model, lambda used: theirs(used.model, single, forced))
        ways["one by one"] = (model, lambda used: ours(used, [[one] for one in single], decoding))
    if device.type == "cpu":
        ways["continuous, int8"] = (int8(model), lambda used: ours(used, [batches], decoding))
    if options.compile:
        compiled = decoding.model_copy(update={"compile": options.compile})
        ways[f"continuous, {options.compile}"] = (model, lambda used: ours(used, [batches], compiled))
    best, found = dict.fromkeys(ways, float("inf")), {}
    for used in {id(one): one for one, _ in ways.values()}.values():
        used.model.register_forward_hook(forced.name, with_kwargs=True)
    with torch.inference_mode():
        for turn in range(options.rounds + 1):  # the first warms up, compiles, and is compared
            for name, (used, write) in ways.items():
                taken = seconds(lambda write=write, used=used: found.__setitem__(name, write(used)), device)  # noqa: B023
                best[name] = min(best[name], taken) if turn else best[name]
    _print(best, found, forced, options, device)


def _rows(some: Prefixes) -> Iterator[Tensor]:
    for embeds, mask in zip(some.embeds, some.mask, strict=True):
        yield embeds[mask][None]


def _print(
    best: dict[str, float], found: dict[str, list[list[int]]], forced: Forced, options: Any, device: torch.device
) -> None:
    lengths = [len(ids) for ids in found["continuous"]]
    assert lengths == forced.lengths, "every report ends where it should"
    print(f"{device}, {options.preset}, {options.studies} studies, batches of {options.batch}, greedy,")
    print(f"{np.mean(lengths):.1f} tokens a report, the longest {max(lengths)}")
    print("| way | studies a second | times transformers in batches | reports as the continuous |")
    print("|---|---|---|---|")
    for name, taken in best.items():
        same = np.mean([a == b for a, b in zip(found[name], found["continuous"], strict=True)])
        ratio = best["transformers, batches"] / taken
        print(f"| {name} | {options.studies / taken:.1f} | {ratio:.2f} | {same:.1%} |")


if __name__ == "__main__":
    main()
