"""What each of two processes does in test_vdgen.py: the gradients of its slice of a batch, added up.

python vdgen_job.py RANK SIZE OUT [OVERRIDE ...]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from radweave.core.batch import Slice
from radweave.data.loader import Example, collate
from radweave.data.tokenizer import encode
from radweave.engine.distributed import Ranks, joined_ranks, make_replica
from radweave.methods import resolve
from radweave.methods.experiment import BuildContext
from radweave.methods.stage import apply_finetune
from radweave.nn.global_batch import one_slice_of
from tests.toys import TOY_OVERRIDES, TOY_REPORTS, TOY_SIZES

TERMS = ("report", "vse", "did")
STUDIES = 5
# A norm over images needs the engine around it, see tests/train; the contrasts do not.
PLAIN = "model.vision_norm=layer"
# Each process would draw its own augmentation.
READINGS = {"self": ["model.vse=self"], "two_views": ["model.vse=two_views", "model.vse.augmentation=none"]}


def gradients(part: Slice | None, ranks: Ranks, overrides: list[str]) -> tuple[dict[str, float], nn.Module]:
    """The loss terms of a slice of the batch of five studies, and the model with the gradient of the whole batch."""
    experiment = resolve("vdgen", "tiny", [*TOY_OVERRIDES, *TOY_SIZES["vdgen"], PLAIN, *overrides])
    tokenizer = experiment.data.tokenizer.build(list(TOY_REPORTS.values()) * 4)
    model = experiment.model.build(BuildContext(tokenizer, 32))
    apply_finetune(model, experiment.stages.report.finetune)
    model.eval()  # dropout is the process's own
    examples = []
    for index in range(STUDIES):
        text = list(TOY_REPORTS.values())[index % 2]
        ids = (*encode(tokenizer, text), int(tokenizer.eos_token_id))
        pixels = np.random.default_rng(index).integers(0, 255, (1, 32, 32)).astype(np.uint8)
        examples.append(Example(f"s{index}", f"p{index}", pixels, (0,), (1,), ids, report=text))
    own = examples if part is None else examples[part.first : part.first + part.count]
    replica = make_replica(model, dict.fromkeys(TERMS, 1.0), ranks)
    with one_slice_of(part):
        loss, terms = replica.losses(collate(own, pad_id=int(tokenizer.pad_token_id)))
        replica.backward(loss, part)
    return {name: float(value) for name, value in terms.items()}, model


def trained(model: nn.Module) -> dict[str, Tensor]:
    """Gradients by name."""
    return {name: p.grad for name, p in model.named_parameters() if p.requires_grad and p.grad is not None}


def main(rank: int, size: int, out: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out / 'meet'}", rank=rank, world_size=size)
    part = Slice.of(STUDIES, rank, size)
    with joined_ranks() as ranks:
        for reading, overrides in READINGS.items():
            terms, model = gradients(part, ranks, overrides)
            torch.save({"terms": terms, "gradients": trained(model)}, out / f"{reading}{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
