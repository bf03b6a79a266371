"""Eight bits on a CPU: how fast the language models of the tiny and small presets read a prompt and write a report.

    PYTHONPATH=src python bench/bench_int8.py [KIND ...]

Weights are random; processor time of one thread, the best of five rounds in which the kinds take turns. Kinds that need
torchao are left out where it is not installed. ``compiled`` needs a C++ compiler.
"""

from __future__ import annotations

import copy
import sys
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from radweave.methods import resolve

PROMPT, NEW, ROUNDS = 64, 24, 5


def _dynamic(model: nn.Module) -> nn.Module:
    quantized: nn.Module = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    return quantized


def _torchao(model: nn.Module) -> nn.Module:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    quantize_(model, Int8DynamicActivationInt8WeightConfig())
    return model


def _compiled(model: Any) -> nn.Module:
    model = _torchao(model)
    model.forward = torch.compile(model.forward, dynamic=True)
    done: nn.Module = model
    return done


KINDS: dict[str, Callable[[Any], nn.Module]] = {
    "float32": lambda model: model,
    "bfloat16": lambda model: model.bfloat16(),
    "torch's dynamic int8": _dynamic,
    "torchao int8": _torchao,
    "torchao int8, compiled": _compiled,
}


def language_model(preset: str) -> Any:
    """The language model of a preset with random weights, in transformers' class."""
    record, words = resolve("baseline", preset, ()).model.language_model, 2000
    torch.manual_seed(0)
    return record.build(vocab_size=words, bos_id=1, eos_id=2, pad_id=0).model.eval()


def seconds(model: Any, rows: int) -> tuple[float, float]:
    """Processor seconds for the prompt, and for the report after it."""
    ids = torch.randint(3, 1999, (rows, PROMPT), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        start = time.process_time()
        out = model(input_ids=ids, use_cache=True)
        read = time.process_time()
        for _ in range(NEW):
            word = out.logits[:, -1:].argmax(-1)
            out = model(input_ids=word, past_key_values=out.past_key_values, use_cache=True)
    return read - start, time.process_time() - read


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    asked = sys.argv[1:] or [kind for kind in KINDS if "torchao" not in kind or find_spec("torchao")]
    print("| build | kind | batch | prompt, ms | report, ms | prompt, times | report, times |")
    print("|---|---|---|---|---|---|---|")
    for preset in ("tiny", "small"):
        whole = language_model(preset)
        models = {kind: KINDS[kind](copy.deepcopy(whole)) for kind in asked}
        for rows in (1, 8):
            best = dict.fromkeys(asked, (1e9, 1e9))
            for turn in range(ROUNDS + 1):  # the first one compiles and warms up
                for kind, model in models.items():
                    taken = seconds(model, rows)
                    if turn:
                        best[kind] = (min(best[kind][0], taken[0]), min(best[kind][1], taken[1]))
            plain = best[asked[0]]
            for kind, (read, wrote) in best.items():
                times = f"{plain[0] / read:.1f} | {plain[1] / wrote:.1f}"
                print(f"| {preset} | {kind} | {rows} | {read * 1e3:.1f} | {wrote * 1e3:.1f} | {times} |", flush=True)


if __name__ == "__main__":
    main()
