"""Radweave: from chest images to radiology reports, with evidence. Research software, not a medical device.

predictor = radweave.load("run")                    a trained run
predictor.report("chest.dcm")                       a draft with its evidence
radweave.score(drafts, references)                  scores with intervals and floors
radweave.label(["Small left effusion."])            findings of texts
radweave.Dataset("iu", split="train")               a dataset folder as a torch data set
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch

    from radweave.engine.studies import StudyDataset as Dataset
    from radweave.inference.predictor import Predictor
    from radweave.metrics.commands import label, score

__version__ = "1.0.0"
__all__ = ["Dataset", "__version__", "label", "load", "score"]
# Module of each name, imported at first use: 'import radweave' stays light.
_PLACES = {
    "Dataset": ("radweave.engine.studies", "StudyDataset"),
    "label": ("radweave.metrics.commands", "label"),
    "score": ("radweave.metrics.commands", "score"),
}


def load(
    run: Path | str,
    *,
    device: torch.device | str | None = None,
    untrained: bool = False,
    decoding: Sequence[str] = (),
    own_decoder: bool = False,
    revision: str | None = None,
    allow_remote: bool = False,
) -> Predictor:
    """Open a run folder for reporting: ``radweave.load(RUN).report("chest.dcm")``.

    Args:
        run: the run folder, an exported one, or the name of one on the Hugging Face hub ("owner/name").
        device: where the model runs: "cpu", "cuda", "cuda:1", "mps". Without, a CUDA device where there is one.
        untrained: let a run report whose weights were never trained; each report then says so.
        decoding: overrides of the run's decoding options, such as ``["num_beams=3"]``.
        own_decoder: draft by the method's own decoder. A calibrated run drafts by expected utility.
        revision: commit of a run on the hub, or "owner/name@commit"; without, the newest one, which is logged.
        allow_remote: let a run from the hub, or an exported one, send images to the server that it names on another
            machine; a run that was made here says so itself.

    Raises:
        InputError: if the run cannot be restored, or an option or the device does not exist.
    """
    from pathlib import Path

    from radweave.core.devices import parse_device
    from radweave.core.errors import InputError
    from radweave.engine.restore import restore
    from radweave.inference.predictor import Predictor
    from radweave.methods.model import Served
    from radweave.nn.decoding import chosen_options

    if not isinstance(run, (str, Path)):
        raise InputError("not a path", field="run", got=type(run).__name__, expected="the path of a run folder")
    if isinstance(decoding, str):
        raise InputError("not a list", field="decoding", got="one string", expected='such as ["num_beams=3"]')
    options = chosen_options(decoding, own_decoder=own_decoder)
    place = None if device is None else parse_device(str(device), field="device")
    folder, is_foreign = Path(run), False
    if isinstance(run, str) and not folder.exists():
        from radweave.inference.hub import fetch_run, is_hub_name

        is_foreign = is_hub_name(run)
        folder = fetch_run(run, revision=revision) if is_foreign else folder
    restored = restore(folder, device=place)
    if (is_foreign or allow_remote) and isinstance(restored.model, Served):
        restored.model.allow_remote(allow_remote)
    return Predictor.of(restored, untrained=untrained, decoding=options)


def __getattr__(name: str) -> Any:
    """Import what is asked for by its name."""
    if name not in _PLACES:
        raise AttributeError(f"module 'radweave' has no attribute '{name}'")
    from importlib import import_module

    module, attribute = _PLACES[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
