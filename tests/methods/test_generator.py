"""Published models of images and texts: every family trains, restores, and reads as transformers' own pass does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers
from safetensors import safe_open
from torch import nn

from radweave.core.batch import Batch
from radweave.core.errors import InputError
from radweave.core.study import ImageRef, Study, View
from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset, DatasetCard, DatasetWriter
from radweave.data.loader import Example, collate
from radweave.data.tokenizer import decode as decode_ids
from radweave.data.tokenizer import encode, load_tokenizer
from radweave.engine.checkpoint import load_weights, refuse_other_shapes, save_weights, without_quantization
from radweave.engine.estimate import build_on_meta, estimate, estimate_of
from radweave.engine.plan import plan_training
from radweave.engine.prepare import prepare
from radweave.engine.restore import Run, restore
from radweave.engine.train import train
from radweave.inference.export import export_checkpoint
from radweave.inference.predictor import Predictor
from radweave.methods import resolve
from radweave.methods.experiment import BuildContext
from radweave.methods.generator.model import Forward, GeneratorModel
from radweave.methods.generator.network import Checkpoint, Query
from radweave.methods.generator.published import MEDGEMMA, QWEN, medgemma, qwen
from radweave.methods.model import own_reports, writes_own
from radweave.methods.stage import apply_finetune, build_optimizer, set_train_mode
from radweave.nn.decoding import DecodingConfig
from tests.checkpoints import write_language_model
from tests.command_line import file_size_limit, radweave
from tests.generators import FAMILIES, write_generator
from tests.toys import TOY_REPORTS, toy_image

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


def test_a_prior_is_no_input_where_studies_come_without() -> None:
    with_priors, without = (
        build_on_meta(resolve("generator", "tiny", [f"data.priors={told}"])) for told in ("true", "false")
    )
    assert with_priors.absent_inputs == frozenset()
    assert without.absent_inputs == {"prior"}


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
        # Not SmolVLM's own, which asks the part for videos.
        read = transformers.ProcessorMixin.apply_chat_template(
            processor,
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


@pytest.mark.long
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


@pytest.mark.parametrize("family", SHORT)
def test_its_own_reports_are_candidates_of_drafts_by_utility(family: str, folders: dict[str, Path]) -> None:
    """The likeliest report first, then draws; the same for a study alone and in a batch."""
    model, tokenizer = built(folders[family])
    batch = collate(studies(tokenizer), pad_id=int(tokenizer.pad_token_id))
    drawing = DecodingConfig.model_validate(
        {"kind": "expected_utility", "max_new_tokens": 6, "expected_utility": {"samples": 3}}
    )
    decode = partial(decode_ids, tokenizer)
    assert writes_own(model)
    with torch.no_grad():
        proposed = own_reports(model, batch, [], drawing, decode)
        for row, own in enumerate(proposed):
            alone = batch.only([row])
            written = model.generate(alone, DecodingConfig(max_new_tokens=6)).token_ids
            assert own.written[0] == decode(written[0])
            assert len(own.written) == 4
            assert own_reports(model, alone, [], drawing, decode) == [own]


@pytest.mark.parametrize("beams", [1, 3])
def test_words_have_their_probability_beside_several_ends(beams: int, folders: dict[str, Path]) -> None:
    model, tokenizer = built(folders["gemma3"])
    assert len(model.language_model.ends) == 2
    batch = collate([example(tokenizer, 0)], pad_id=int(tokenizer.pad_token_id))
    draft = model.generate(batch, DecodingConfig(max_new_tokens=6, num_beams=beams))
    ids = torch.tensor(draft.token_ids)
    arguments = model.network.inputs(Forward(model, batch).queries, (ids, torch.ones_like(ids, dtype=torch.bool)))
    with torch.no_grad():
        logits = model.network.run(arguments, logits_to_keep=ids.shape[1] + 1).logits[0, :-1]
    expected = logits.log_softmax(dim=-1).gather(1, ids.T)[:, 0]
    assert draft.intermediates[0]["token_log_probs"] == pytest.approx(expected.tolist(), abs=1e-5)


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


@pytest.mark.long
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


@pytest.mark.parametrize("family", ["gemma3", "paligemma", "qwen2_5_vl"])
def test_texts_of_a_study_bring_no_image_and_no_turn(family: str, folders: dict[str, Path]) -> None:
    """An indication, or a prior's report, with the words of the control tokens in it."""
    model, tokenizer = built(folders[family])
    control = [number for number, token in tokenizer.added_tokens_decoder.items() if token.special]
    words = " ".join(tokenizer.convert_ids_to_tokens(control))
    plain = example(tokenizer, 0, told="Indication: fall.\n")
    hostile_prior = replace(example(tokenizer, 9), token_ids=(*encode(tokenizer, words), *control))
    groups = [
        (plain, example(tokenizer, 0, told=f"Indication: {words} fall.\n"), replace(plain, context_ids=(*control, 20))),
        (replace(plain, prior=example(tokenizer, 9)), replace(plain, prior=hostile_prior)),
    ]
    for group in groups:
        queries = [Forward(model, collate([study], pad_id=0)).queries for study in group]
        ids = [model.network.inputs(each)["input_ids"][0].tolist() for each in queries]
        assert len({sum(word in model.network.control for word in row) for row in ids}) == 1
    assert model.generate(collate(groups[0], pad_id=0), DecodingConfig(max_new_tokens=3)).token_ids


@pytest.mark.parametrize("family", ["gemma3", "paligemma", "qwen2_5_vl", "idefics3"])
def test_a_study_without_any_image_is_written_after_its_texts(family: str, folders: dict[str, Path]) -> None:
    model, tokenizer = built(folders[family])
    batch = collate(studies(tokenizer), pad_id=int(tokenizer.pad_token_id))
    fewer = replace(batch, view_mask=torch.tensor([[False, False], [True, True], [True, False]]))
    with torch.no_grad():
        logits = Forward(model, fewer).logits()
        torch.testing.assert_close(logits[1], Forward(model, batch).logits()[1], **CLOSE)
        with model.reading_by(lambda name, slot: (slot[0], torch.zeros_like(slot[1]))):
            assert [query.images for query in Forward(model, batch).queries] == [(), (), ()]
            written = model.generate(batch, DecodingConfig(max_new_tokens=3)).token_ids
    assert torch.isfinite(logits).all()
    assert len(written) == 3


def _without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _no_processor(folder: Path) -> None:
    for name in ("processor_config.json", "preprocessor_config.json"):
        (folder / name).unlink()


def _template(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "chat_template.jinja").write_text(text) and None


def _settings(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "preprocessor_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


def _pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"weight": torch.zeros(1)}, folder / "pytorch_model.bin")


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "no processor": (_no_processor, "it has no processor"),
    "no tokenizer": (_without("tokenizer.json"), "cannot load a tokenizer"),
    "no weights": (_without("model.safetensors"), "no weights in safetensors"),
    "pickled weights": (_pickled, "a file that can hold code"),
    "a template without text": (
        _template("{% for m in messages %}<start_of_image>{% endfor %}"),
        "no place for images",
    ),
    "a broken template": (_template("{% for m in messages %}{{ m"), "no place for images"),
    "giant images": (_settings(size={"height": 100_000, "width": 100_000}), "an image of this size is not made"),
    "code beside it": (
        _settings(image_processor_type="Evil", auto_map={"AutoImageProcessor": "evil.Evil"}),
        "no such image processor",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_checkpoint_is_refused_before_images_are_read(
    fault: str, folders: dict[str, Path], toy_dataset: Dataset, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(folders["gemma3"], tmp_path / "checkpoint"))
    damage, reason = FAULTS[fault]
    damage(folder)
    with pytest.raises(InputError, match=reason) as error:
        options = [f"model.path={folder}", "data.image_size=64"]
        plan_training(resolve("generator", "tiny", options), toy_dataset, learn_tokenizer=False)
    assert "\n" not in str(error.value)


def test_a_checkpoint_of_text_alone_is_refused(toy_dataset: Dataset, tmp_path: Path) -> None:
    write_language_model("llama", tmp_path)
    experiment = resolve("generator", "tiny", [f"model.path={tmp_path}", "data.image_size=64"])
    with pytest.raises(InputError, match="not a model of images and texts"):
        plan_training(experiment, toy_dataset, learn_tokenizer=False)


def test_a_missing_shard_is_named(toy_dataset: Dataset, tmp_path: Path) -> None:
    write_generator("gemma3", tmp_path, shards="40KB")
    gone = sorted(tmp_path.glob("model-*.safetensors"))[1]
    gone.unlink()
    experiment = resolve("generator", "tiny", [f"model.path={tmp_path}", "data.image_size=64"])
    with pytest.raises(InputError, match=f"a part of the weights is missing: {gone.name}"):
        plan_training(experiment, toy_dataset, learn_tokenizer=False)


def test_a_checkpoint_without_a_chat_template_has_the_images_before_the_text(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(folders["llava"], tmp_path / "checkpoint"))
    (folder / "chat_template.jinja").unlink()
    model, _ = built(folder)
    assert model.network.prompt(2, "Text. " + PROMPT) == "<image><image>\nText. " + PROMPT


def test_a_prompt_longer_than_the_positions_is_refused(folders: dict[str, Path]) -> None:
    model, tokenizer = built(folders["gemma3"])
    batch = collate([example(tokenizer, 0, told="Indication: fall.\n" * 1000)], pad_id=0)
    with pytest.raises(InputError, match="longer than the language model's positions"):
        model.generate(batch, DecodingConfig(max_new_tokens=3))
    with pytest.raises(InputError, match="longer than the language model's positions"):
        Forward(model, batch).logits()


@pytest.mark.parametrize("family", ["gemma3", "qwen2_5_vl", "idefics3", "llava_next"])
def test_a_map_shows_where_a_report_hangs_on_the_image(family: str, folders: dict[str, Path]) -> None:
    """A token's part in the gradient, by small steps along its own embedding."""
    model, tokenizer = built(folders[family])
    model.maps = "gradients"
    batch = collate(studies(tokenizer), pad_id=int(tokenizer.pad_token_id))
    with torch.inference_mode():
        generation = model.generate(batch, DecodingConfig(max_new_tokens=4))
    views = [1, 2, 1]  # without the prior's
    for row, count in enumerate(views):
        maps = generation.intermediates[row]["attention_maps"]["report"]
        assert len(maps) == count
        assert maps.min() >= 0
        assert maps.max() == pytest.approx(1.0)
    query, ids = Forward(model, batch.only([0])).queries[0], generation.token_ids[0]
    (shown,) = model.network.gradients(query, ids)
    arguments = model.network.inputs([query], (torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.bool)))
    places = (arguments["input_ids"][0] == model.network.model.config.image_token_id).nonzero()[:, 0]
    strongest = int(shown.flatten().argmax())
    offset = len(places) - shown.numel() if family == "idefics3" else 0
    place = int(places[offset + strongest])

    def log_probability(factor: float) -> float:
        def scale(_: Any, inputs: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            embeds = options["inputs_embeds"].clone()
            embeds[0, place] *= factor
            return inputs, {**options, "inputs_embeds": embeds}

        handle = model.network.model.get_decoder().register_forward_pre_hook(scale, with_kwargs=True)
        with torch.no_grad():
            logits = model.network.model(**arguments).logits[0, -len(ids) - 1 : -1].double()
        handle.remove()
        return float(logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None]).sum())

    step = 1e-2
    slope = (log_probability(1 + step) - log_probability(1 - step)) / (2 * step)
    assert abs(slope) == pytest.approx(float(shown.max()), rel=0.05, abs=1e-4)


@pytest.mark.parametrize("family", ["llava_next", "idefics3", "qwen2_5_vl", "internvl"])
def test_tiles_follow_the_film_without_its_margins(family: str, folders: dict[str, Path]) -> None:
    """A wide film in a square: as if its own shape had been given; alone and beside a square one."""
    model, tokenizer = built(folders[family])
    wide = np.zeros((1, SIZE, SIZE), dtype=np.uint8)
    wide[0, 16:48] = np.random.default_rng(3).integers(1, 255, (32, SIZE))
    study = replace(example(tokenizer, 0), source=wide)
    batch = collate([study, example(tokenizer, 1)], pad_id=int(tokenizer.pad_token_id))
    model.margins = "crop"
    forward = Forward(model, batch)
    assert [query.images[0].size for query in forward.queries] == [(SIZE, 32), (SIZE, SIZE)]
    with torch.no_grad():
        together = forward.logits()
        for row in (0, 1):
            alone = Forward(model, batch.only([row]))
            torch.testing.assert_close(alone.logits()[0], together[row], **CLOSE)
            ids = list(study.token_ids or ())
            torch.testing.assert_close(together[row], own_logits(model, alone.queries[0], ids), **CLOSE)


# Export to programs of published models.


def trained(family: str, folder: Path, data: Dataset, out: Path, *more: str) -> Path:
    """A run whose adapters and projector are far from where they started."""
    overrides = [
        f"model.path={folder}", "model.dtype=float32", "data.priors=true", f"data.image_size={SIZE}",
        "decoding.max_new_tokens=6", "decoding.unprompted_comparisons=keep", *MODES["lora"],
        "stages.report.optimizer.learning_rate=0.02", "stages.report.optimizer.warmup_steps=0",
        "model.vision_encoder.lora={kind: lora, rank: 2, alpha: 4, dropout: 0}", *more,
    ]  # fmt: skip
    return train("generator", data.path, out, overrides=overrides)


def logits_of(run: Run, data: Dataset, whole: Any) -> list[torch.Tensor]:
    """Scores of the test reports by a model that another program opened, of the run's own inputs."""
    size = run.experiment.data.image_size
    prepared = prepare(data, "test", run.experiment, run.tokenizer, build_cache(data, size=size), need_text=True)
    found = []
    for study in prepared.examples:
        batch = collate([study], pad_id=int(run.tokenizer.pad_token_id))
        assert batch.input_ids is not None
        assert batch.attention_mask is not None
        assert isinstance(run.model, GeneratorModel)
        report = (batch.input_ids, batch.attention_mask)
        arguments = run.model.network.inputs(Forward(run.model, batch).queries, report)
        with torch.no_grad():
            found.append(whole.eval()(**arguments).logits[0, -batch.input_ids.shape[1] - 1 :].float())
    return found


def texts_of(run: Run, data: Dataset) -> list[str]:
    size = run.experiment.data.image_size
    prepared = prepare(data, "test", run.experiment, run.tokenizer, build_cache(data, size=size), need_text=True)
    return [report.text for report in Predictor.of(run).reports(prepared.examples, batch_size=3)]


def files_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def names_of(folder: Path) -> dict[str, list[int]]:
    shapes = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(str(file), framework="pt") as weights:
            shapes |= {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118
    return shapes


SINGLE = ("llava_next", "llava_onevision")
"""Families with a weight between modules, that peft cannot save: their projector gets adapters."""


@pytest.mark.parametrize(
    "family", [name if name in SHORT[:1] else pytest.param(name, marks=pytest.mark.long) for name in FAMILIES]
)
def test_transformers_and_peft_open_an_export_and_compute_the_same(
    family: str, folders: dict[str, Path], data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radweave.engine.train.near_copies", lambda *_: [])
    base, opened = folders[family], transformers.AutoModelForImageTextToText.from_pretrained
    lora = ("model.connector.lora={kind: lora, dropout: 0}", "stages.report.finetune.connector=lora")
    folder = trained(family, base, data, tmp_path / "run", *(lora if family in SINGLE else ()))
    run = restore(folder, device=torch.device("cpu"))
    expected = logits_of(run, data, run.model.network.model)  # type: ignore[attr-defined]
    merged = export_checkpoint(folder, tmp_path / "merged", "merged")
    adapters = export_checkpoint(folder, tmp_path / "adapters", "adapters")
    adapted = peft.PeftModel.from_pretrained(opened(base), str(adapters))
    for found in (logits_of(run, data, opened(merged)), logits_of(run, data, adapted)):
        for own, other in zip(expected, found, strict=True):
            torch.testing.assert_close(own, other, **CLOSE)
    plain = logits_of(run, data, opened(base))
    differs = [float((own - other).abs().max()) for own, other in zip(expected, plain, strict=True)]
    assert min(differs) > 0.01, "the training changed nothing that would have to be exported"
    assert names_of(merged) == names_of(base)
    assert {file.name: file.read_bytes() for file in base.glob("*process*.json")} == {
        file.name: file.read_bytes() for file in merged.glob("*process*.json") if file.name != "preprocessing.json"
    }
    again = train(
        "generator", data.path, tmp_path / "again",
        overrides=[
            f"model.path={merged}", "model.dtype=float32", "data.priors=true", f"data.image_size={SIZE}",
            "decoding.max_new_tokens=6", "decoding.unprompted_comparisons=keep",
        ],
    )  # fmt: skip
    assert texts_of(restore(again, device=torch.device("cpu")), data) == texts_of(run, data)


@pytest.mark.long
def test_an_export_for_other_programs_is_data_alone_and_replaces_nothing(
    folders: dict[str, Path], data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radweave.engine.train.near_copies", lambda *_: [])
    folder = trained("gemma3", folders["gemma3"], data, tmp_path / "run", "model.language_model.lora.alpha=8")
    for form in ("merged", "adapters"):
        done = radweave("export", folder, tmp_path / form, "--as", form)
        assert done.returncode == 0, done.stderr
    own = {"README.md", "LICENSES.md", "preprocessing.json", "radweave.json"}
    assert files_below(tmp_path / "adapters") == {*own, "adapter_config.json", "adapter_model.safetensors"}
    assert {Path(name).suffix for name in files_below(tmp_path / "merged")} <= {
        ".json",
        ".safetensors",
        ".jinja",
        ".md",
    }
    settings = json.loads((tmp_path / "adapters/adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"]) in {(4, 8), (2, 4)}
    assert settings["base_model_name_or_path"] == "gemma3"
    assert settings["modules_to_save"] == ["model.multi_modal_projector"]
    for name in files_below(tmp_path):
        file = tmp_path / name
        if file.parent.name in ("merged", "adapters") and file.suffix in (".json", ".md"):
            assert str(tmp_path) not in file.read_text()
            assert str(folders["gemma3"]) not in file.read_text()
    card = json.loads((tmp_path / "merged/radweave.json").read_text())
    assert set(card["files"]) == files_below(tmp_path / "merged") - {"radweave.json"}
    assert "--overwrite" in radweave("export", folder, tmp_path / "merged", "--as", "merged").stderr
    first = files_below(tmp_path / "merged"), (tmp_path / "merged/model.safetensors").read_bytes()
    again = radweave("export", folder, tmp_path / "merged", "--as", "merged", "--overwrite")
    assert again.returncode == 0, again.stderr
    assert first == (files_below(tmp_path / "merged"), (tmp_path / "merged/model.safetensors").read_bytes())
    (tmp_path / "merged/mine.txt").write_text("mine")
    refused = radweave("export", folder, tmp_path / "merged", "--as", "merged", "--overwrite")
    assert refused.returncode == 2
    assert "mine.txt" in refused.stderr
    with file_size_limit(20_000):
        failed = radweave("export", folder, tmp_path / "cut", "--as", "merged")
    assert failed.returncode == 2
    assert "cannot write" in failed.stderr
    assert not [path for path in tmp_path.iterdir() if "cut" in path.name]


WHOLE = {
    "weights outside of any module": ["stages.report.finetune={connector: full, language_model: lora}"],
    "vision_encoder": ["stages.report.finetune={vision_encoder: full, language_model: lora}"],
    "language_model": ["stages.report.finetune={language_model: full}", "model.language_model.lora=none"],
    "no adapters": [
        "stages.report.finetune={connector: full}", "model.language_model.lora=none", "model.vision_encoder.lora=none",
    ],
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("case", WHOLE)
def test_adapters_alone_are_refused_where_they_are_not_the_model(
    case: str, folders: dict[str, Path], data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radweave.engine.train.near_copies", lambda *_: [])
    folder = trained("llava_next", folders["llava_next"], data, tmp_path / "run", *WHOLE[case])
    with pytest.raises(InputError, match=case) as error:
        export_checkpoint(folder, tmp_path / "out", "adapters")
    assert "--as merged" in str(error.value)
    assert not (tmp_path / "out").exists()
    assert export_checkpoint(folder, tmp_path / "out", "merged").is_dir()


def test_another_method_has_no_published_form(toy_run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no published model of images and texts"):
        export_checkpoint(toy_run, tmp_path / "out", "merged")
    assert not (tmp_path / "out").exists()


# Weights in 8 or 4 bits. What loads them is not installed here: a stand-in holds halves.


class Int8Params(nn.Parameter):
    """A weight of a class with the name of bitsandbytes' own."""


class Halves(nn.Module):
    """A linear map whose weight is stored in another shape and type than it has."""

    def __init__(self, whole: nn.Linear) -> None:
        super().__init__()
        self.weight = Int8Params((whole.weight.detach() * 2).to(torch.int8).flatten()[:, None], requires_grad=False)
        self.bias, self.rows = whole.bias, len(whole.weight)

    def floats(self) -> torch.Tensor:
        return self.weight.reshape(self.rows, -1).float() / 2


def test_a_run_in_eight_bits_is_saved_as_the_floats_that_it_restores_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peft.utils.integrations.dequantize_module_weight", Halves.floats)
    plain = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    with torch.no_grad():
        plain[0].weight.copy_(torch.arange(12).reshape(3, 4) / 2)
    halves = Halves(plain[0])
    model = nn.Sequential(halves, plain[1])
    with without_quantization(model):
        save_weights(model, tmp_path / "weights.safetensors")
    assert model[0] is halves
    empty = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    refuse_other_shapes(empty, tmp_path / "weights.safetensors")
    load_weights(empty, tmp_path / "weights.safetensors")
    for name, value in plain.state_dict().items():
        assert torch.equal(empty.state_dict()[name], value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the refusal of a machine without a CUDA device")
@pytest.mark.parametrize("quantization", ["8bit", "4bit"])
def test_eight_and_four_bits_are_refused_by_the_plan_and_estimated(
    quantization: str, folders: dict[str, Path], toy_dataset: Dataset
) -> None:
    options = [f"model.path={folders['gemma3']}", "data.image_size=64"]
    experiment = resolve("generator", "lora", [*options, f"model.quantization={quantization}"])
    with pytest.raises(InputError, match=r"'model\.quantization'.*needs a CUDA device"):
        plan_training(experiment, toy_dataset, learn_tokenizer=False)
    assert estimate_of(experiment).weights < estimate_of(resolve("generator", "lora", options)).weights
