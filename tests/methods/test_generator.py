"""Published models of images and texts: every family trains, restores, and reads as transformers' own pass does."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from generators import FAMILIES, write_generator
from radweave.core.batch import Batch
from radweave.core.study import ImageRef, Study, View
from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset, DatasetCard, DatasetWriter
from radweave.data.loader import Example, collate
from radweave.data.tokenizer import encode, load_tokenizer
from radweave.engine.estimate import estimate, estimate_of
from radweave.engine.prepare import prepare
from radweave.engine.restore import restore
from radweave.engine.train import train
from radweave.inference.predictor import Predictor
from radweave.methods import resolve
from radweave.methods.experiment import BuildContext
from radweave.methods.generator.model import Forward, GeneratorModel
from radweave.methods.generator.network import Checkpoint, Query
from radweave.methods.generator.published import MEDGEMMA, QWEN, medgemma, qwen
from radweave.methods.stage import apply_finetune, build_optimizer, set_train_mode
from radweave.nn.decoding import DecodingConfig
from toys import TOY_REPORTS, toy_image

SIZE = 64
CLOSE = {"atol": 1e-5, "rtol": 1e-5}
SHORT = ("gemma3", "qwen2_5_vl")
"""Families of the short tests; the others take as long."""
MODES: dict[str, tuple[str, ...]] = {
    "zero-shot": (),
    "lora": (
        "model.vision_encoder.lora=lora",
        "model.language_model.lora={kind: lora, rank: 4, dropout: 0}",
        "stages.report.finetune={vision_encoder: lora, connector: full, language_model: lora}",
        "stages.report.max_steps=2",
    ),
    "full": (
        "stages.report.finetune={vision_encoder: full, connector: full, language_model: full}",
        "stages.report.max_steps=2",
        "model.language_model.lora=none",
    ),
}
PROMPT = "Write the radiology report of this chest X-ray."
BY_TOKEN = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "cross_attention_mask")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The checkpoint of each family."""
    place = tmp_path_factory.mktemp("generators")
    written = {name: place / name for name in FAMILIES}
    for name, folder in written.items():
        folder.mkdir()
        write_generator(name, folder)
    return written


def built(folder: Path) -> tuple[GeneratorModel, Any]:
    tokenizer = load_tokenizer(folder)
    experiment = resolve("generator", "tiny", [f"model.path={folder}", "model.dtype=float32", "data.priors=true"])
    model = experiment.model.build(BuildContext(tokenizer, SIZE))
    assert isinstance(model, GeneratorModel)
    return model.eval(), tokenizer


def example(tokenizer: Any, number: int, *, views: int = 1, told: str = "", prior: Example | None = None) -> Example:
    pixels = np.random.default_rng(number).integers(0, 255, (views, SIZE, SIZE)).astype(np.uint8)
    text = "There is an opacity on the left."
    return Example(
        study_id=f"s{number}",
        patient_id=f"p{number}",
        source=pixels,
        rows=tuple(range(views)),
        view_ids=tuple(range(1, views + 1)),
        token_ids=(*encode(tokenizer, text), int(tokenizer.eos_token_id)),
        report=text,
        context_ids=tuple(encode(tokenizer, told)),
        prior=prior,
    )


def studies(tokenizer: Any) -> list[Example]:
    """One view; two views and an indication; a prior."""
    return [
        example(tokenizer, 0),
        example(tokenizer, 1, views=2, told="Indication: fall.\n"),
        example(tokenizer, 2, prior=example(tokenizer, 9)),
    ]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Studies of one view, of two, and with a prior, in each split."""
    place = tmp_path_factory.mktemp("studies")
    with DatasetWriter(place / "data", DatasetCard(name="toy", split_provenance="made up")) as writer:
        for number, split in enumerate(["train", "train", "val", "test"]):
            for kind, views in (("one", [View.PA]), ("two", [View.PA, View.LATERAL]), ("next", [View.PA])):
                name, side = f"{kind}{number}", "left" if number % 2 else "right"
                files = {
                    f"images/{name}{at}.png": toy_image(
                        place / f"{name}{at}.png", bright_side=side, seed=31 * number + 7 * len(kind) + at
                    )
                    for at in range(len(views))
                }
                study = Study(
                    study_id=name,
                    patient_id=f"p{number}" if kind != "two" else f"q{number}",
                    split=split,  # type: ignore[arg-type]
                    images=tuple(ImageRef(path=path, view=view) for path, view in zip(files, views, strict=True)),
                    report=TOY_REPORTS[side],
                    prior=f"one{number}" if kind == "next" else None,
                )
                writer.add(study, files)
    return Dataset.open(place / "data")


def own_logits(model: GeneratorModel, query: Query, ids: list[int]) -> torch.Tensor:
    """Scores of a report's words by transformers' own pass over its processor's own prompt.

    Texts of the study stand in front of the instruction, as ids.
    """
    processor, whole = model.network.processor, model.network.model
    text, images = query.shown + PROMPT, list(query.images)
    if processor.chat_template:
        content = [*({"type": "image", "image": one} for one in images), {"type": "text", "text": text}]
        read = processor.apply_chat_template(
            [[{"role": "user", "content": content}]],
            tokenize=True, return_dict=True, return_tensors="pt", add_generation_prompt=True,
        )  # fmt: skip
    else:
        read = processor(text=processor.image_token * len(images) + text, images=images, return_tensors="pt")
    inputs = {name: value for name, value in read.items() if name != "labels"}
    own = inputs["input_ids"][0].tolist()
    (first,) = processor.tokenizer.encode(PROMPT, add_special_tokens=False)[:1]
    place = max(at for at, word in enumerate(own) if word == first and PROMPT in processor.tokenizer.decode(own[at:]))
    kind = 1 if whole.config.model_type == "paligemma" else 0
    for name, value in inputs.items():
        if name not in BY_TOKEN:
            continue
        # The kind of text before the report, and of the report.
        told, report = torch.tensor([list(query.inserted)], dtype=torch.long), torch.tensor([ids])
        if name == "attention_mask":
            told, report = torch.ones_like(told), torch.ones_like(report)
        elif name == "cross_attention_mask":
            told, report = (value[:, -1:].expand(-1, part.shape[1], -1, -1) for part in (told, report))
        elif name != "input_ids":
            told, report = torch.zeros_like(told), torch.full_like(report, kind)
        inputs[name] = torch.cat([value[:, :place], told, value[:, place:], report], dim=1)
    with torch.no_grad():
        logits: torch.Tensor = whole(**inputs).logits[0, -len(ids) - 1 : -1].float()
    return logits


def check_a_run(
    family: str, mode: str, folder: Path, data: Dataset, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It trains two updates, restores with the checkpoint gone, reports twice alike, and reads as transformers does."""
    place = Path(shutil.copytree(folder, out / "checkpoint"))
    overrides = [
        f"model.path={place}", "model.dtype=float32", "data.priors=true", f"data.image_size={SIZE}",
        "decoding.max_new_tokens=6", "decoding.unprompted_comparisons=keep", *MODES[mode],
    ]  # fmt: skip
    monkeypatch.setattr("radweave.engine.train.near_copies", lambda *_: [])  # the same data set each time
    folder_of_run = train("generator", data.path, out / "run", overrides=overrides)
    shutil.rmtree(place)
    first, second = (restore(folder_of_run, device=torch.device("cpu")) for _ in range(2))
    assert first.card.is_trained
    assert first.card.trained_steps["report"] == (0 if mode == "zero-shot" else 2)
    size = first.experiment.data.image_size
    prepared = prepare(
        data, "test", first.experiment, first.tokenizer, build_cache(data, size=size), need_text=True
    ).examples
    texts = [
        [report.text for report in Predictor.of(run).reports(prepared, batch_size=batch)]
        for run, batch in ((first, 3), (second, 1))
    ]
    assert texts[0] == texts[1]
    model = first.model
    assert isinstance(model, GeneratorModel)
    for study in prepared:
        batch = collate([study], pad_id=int(first.tokenizer.pad_token_id))
        forward = Forward(model, batch)
        (query,) = forward.queries
        assert len(query.images) == (1 if study.study_id.startswith("one") else 2)
        ids = list(study.token_ids or ())
        with torch.no_grad():
            torch.testing.assert_close(forward.logits()[0], own_logits(model, query, ids), **CLOSE)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", SHORT[:1])
def test_a_checkpoint_trains_restores_and_reads_as_transformers_does(
    family: str,
    mode: str,
    folders: dict[str, Path],
    data: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_a_run(family, mode, folders[family], data, tmp_path, monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in SHORT[:1]])
def test_every_family_trains_restores_and_reads_as_transformers_does(
    family: str,
    mode: str,
    folders: dict[str, Path],
    data: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_a_run(family, mode, folders[family], data, tmp_path, monkeypatch)


@pytest.mark.parametrize("family", SHORT)
def test_a_study_reads_and_writes_alone_as_in_a_batch(family: str, folders: dict[str, Path]) -> None:
    model, tokenizer = built(folders[family])
    batch = collate(studies(tokenizer), pad_id=int(tokenizer.pad_token_id))
    brief = DecodingConfig(max_new_tokens=6)
    with torch.no_grad():
        together = Forward(model, batch).logits()
        written = model.generate(batch, brief).token_ids
        for row in range(len(batch)):
            alone = batch.only([row])
            torch.testing.assert_close(Forward(model, alone).logits()[0], together[row], **CLOSE)
            assert model.generate(alone, brief).token_ids == [written[row]]


SHRUNK: dict[str, Callable[[], tuple[Any, Any]]] = {
    "medgemma": lambda: medgemma(
        {
            "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 4096, "query_pre_attn_scalar": 16,
        },
        {
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
            "image_size": 112,
        },
    ),
    "qwen": lambda: qwen(
        {
            "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4,
            "num_key_value_heads": 2, "vocab_size": 4096,
            "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e6},
        },
        {
            "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64,
            "fullatt_block_indexes": [1],
        },
    ),
}  # fmt: skip


def kept_bytes(model: GeneratorModel, batch: Batch) -> int:
    """Bytes that a pass keeps for the backward pass, without weights."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    storages: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model.loss(batch, ("report",))["report"]
    total = sum(storage.nbytes() for place, storage in storages.items() if place not in own)
    loss.backward()
    return total


@pytest.mark.parametrize("name", SHRUNK)
def test_an_estimate_is_near_what_a_shrunk_copy_takes(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "parts" / "vision_encoder"
    Checkpoint(*SHRUNK[name]()).save_pretrained(str(folder))
    options = [
        f"model.path={folder}", "model.dtype=float32", "model.gradient_checkpointing=false", "data.image_size=112",
        "data.max_tokens=64", "stages.report.batch_size=4",
    ]  # fmt: skip
    experiment = resolve("generator", "lora", options)
    estimated = estimate_of(experiment)
    tokenizer = load_tokenizer(folder)
    model = experiment.model.build(BuildContext(tokenizer, 112, parts=tmp_path / "parts"))
    assert isinstance(model, GeneratorModel)
    full = tuple(range(20, 20 + 64))
    pixels = np.random.default_rng(0).integers(0, 255, (2, 112, 112)).astype(np.uint8)
    studies = [Example(f"s{row}", f"p{row}", pixels, (0, 1), (1, 2), full, report="text") for row in range(4)]
    stage = experiment.named_stages()["report"]
    apply_finetune(model, stage.finetune)
    set_train_mode(model, stage.finetune)
    optimizer = build_optimizer(model, stage.optimizer)
    activations = kept_bytes(model, collate(studies, pad_id=0))
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    gradients = sum(weight.grad.nbytes for weight in trained if weight.grad is not None)
    optimizer.step()
    moments = sum(value.nbytes for state in optimizer.state.values() for value in state.values() if value.ndim)
    weights = sum(weight.nbytes for weight in model.parameters())
    assert weights == estimated.weights
    assert estimated.activations == pytest.approx(activations, rel=0.1)
    assert estimated.training == pytest.approx(weights + moments + max(gradients, activations), rel=0.1)


@pytest.mark.parametrize(("name", "parameters"), [(MEDGEMMA, 4_300_079_472), (QWEN, 8_292_166_656)])
def test_published_shapes_have_the_published_number_of_parameters(name: str, parameters: int) -> None:
    """Those of the checkpoints' pages."""
    assert estimate("generator", "zero-shot", [f"model.path={name}"], prompt_tokens=1).parameters == parameters
