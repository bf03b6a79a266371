"""Foreign model folders never run code, prompt, block, reach outside or exhaust the memory."""

from __future__ import annotations

import builtins
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import radweave
from radweave.core.errors import InputError, UnusableModelError
from radweave.core.foreign_models import read_shape
from radweave.core.foreign_tokenizers import refuse_endless_steps
from radweave.data.dataset import Dataset
from radweave.data.tokenizer import BpeTokenizerConfig, PretrainedTokenizerConfig, load_tokenizer, save_tokenizer
from radweave.engine.restore import restore
from radweave.engine.run_folder import hash_files
from radweave.engine.train import train
from radweave.inference.bulk import generate_files, generate_split, group_images
from radweave.inference.predictor import Predictor
from radweave.labels.trained import load_strictly
from radweave.nn.decoding import DecodingConfig
from radweave.nn.language_model import PretrainedLanguageModelConfig
from radweave.nn.prompt import PromptTemplate
from radweave.nn.text_encoder import PretrainedTextEncoderConfig
from radweave.nn.vision.pretrained import SwinConfig, ViTConfig
from radweave.nn.vision.weights import load_published
from tests.toys import TOY_OVERRIDES, TOY_REPORTS, TOY_SIZES, rewrite_card

SOURCE = Path(radweave.__file__).parent
SPECIAL: dict[str, Any] = {"vocab_size": 280, "bos_id": 1, "eos_id": 2, "pad_id": 0}
EVIL = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\nPath({here!r}, 'ran').touch()\n"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with its tokenizer, as transformers writes them. Copy it before a change."""
    folder = tmp_path_factory.mktemp("published") / "llama"
    tokenizer = BpeTokenizerConfig(vocab_size=300).build(list(TOY_REPORTS.values()))
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    LlamaForCausalLM(shape).save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    return folder


@pytest.fixture
def checkpoint(published: Path, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    return Path(shutil.copytree(published, tmp_path / "checkpoint"))


def load_model(folder: Path) -> Any:
    return PretrainedLanguageModelConfig(path=str(folder)).build(**SPECIAL)


def change(path: Path, **fields: Any) -> None:
    """Set fields of a JSON file; None removes one."""
    content = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


def rehash(run: Path) -> None:
    rewrite_card(run, files=hash_files(run))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every question put to standard input; each is answered with yes."""
    questions: list[str] = []

    def answer(question: object = "") -> str:
        questions.append(str(question))
        return "yes"

    monkeypatch.setattr(builtins, "input", answer)
    return questions


def test_code_in_a_tokenizer_folder_is_never_run_or_prompted_for(
    toy_run: Path, tmp_path: Path, calls: list[str]
) -> None:
    run = Path(shutil.copytree(toy_run, tmp_path / "run"))
    (run / "tokenizer" / "evil.py").write_text(EVIL.format(here=str(tmp_path)) + "class E: pass\n")
    change(
        run / "tokenizer" / "tokenizer_config.json", auto_map={"AutoTokenizer": [None, "evil.E"]}, tokenizer_class=None
    )
    rehash(run)
    with pytest.raises(InputError, match=r"cannot load a tokenizer: it needs code.*never run"):
        restore(run)
    assert calls == []
    assert not list(tmp_path.rglob("ran"))


def test_code_in_a_model_folder_is_never_run_or_prompted_for(
    checkpoint: Path, tmp_path: Path, calls: list[str]
) -> None:
    names = "class C: pass\nclass M: pass\n"
    (checkpoint / "evil.py").write_text(EVIL.format(here=str(tmp_path)) + names)
    auto = {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M", "AutoModel": "evil.M"}
    change(checkpoint / "config.json", model_type="evil", auto_map=auto)
    readers: list[Callable[[], Any]] = [
        lambda: load_model(checkpoint),
        lambda: PretrainedTextEncoderConfig(path=str(checkpoint)).build(),
        lambda: SwinConfig(path=str(checkpoint)).build(32),
        lambda: ViTConfig(path=str(checkpoint)).build(32, saved=checkpoint),
    ]
    for read in readers:
        with pytest.raises(InputError, match=r"cannot load a .*: it needs code.*never run"):
            read()
    assert calls == []
    assert not list(tmp_path.rglob("ran"))


def test_foreign_models_are_loaded_by_one_module() -> None:
    calls = re.compile(
        r"\.(from_pretrained|from_config|from_json_file|for_model)\(|snapshot_download|hf_hub_download|torch\.hub"
        r"|\bAuto(Config|Model\w*|Tokenizer\w*|Processor|ImageProcessor)\b|apply_chat_template|trust_remote_code"
    )
    others = [
        f"{path.relative_to(SOURCE)}: {line.strip()}"
        for path in SOURCE.rglob("*.py")
        # Runs that come from a hub are ours, at one commit, and every file is checked as in any run folder.
        if path not in (SOURCE / "core" / "foreign_models.py", SOURCE / "inference" / "hub.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if calls.search(line)
    ]
    assert others == []
    text = (SOURCE / "core" / "foreign_models.py").read_text(encoding="utf-8")
    reads = text.count(".from_pretrained(")
    assert reads == text.count("local_files_only=True, trust_remote_code=False") + text.count(
        "local_files_only=True,\n            trust_remote_code=False"
    )
    assert text.count("trust_remote_code=False") == reads + text.count(".from_config(")


def test_external_references_of_a_configuration_are_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library may follow a name in a configuration with defaults of its own: the network is shut while it reads."""
    from huggingface_hub import hf_hub_download
    from transformers import AutoConfig

    calls: list[object] = []

    def resolve(host: object, *more: object, **options: object) -> list[object]:
        calls.append(host)
        raise OSError("no such host")

    def follows(*arguments: object, **options: object) -> None:
        hf_hub_download("somebody/another-model", "config.json", cache_dir=tmp_path / "cache")

    monkeypatch.setattr("socket.getaddrinfo", resolve)
    monkeypatch.setattr(AutoConfig, "from_pretrained", follows)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(InputError, match="cannot load a model"):
        read_shape(tmp_path / "model", what="a model")
    assert calls == []


@pytest.mark.parametrize("path", ["/no/such/folder", "./no/such", "~/no-such-folder-here", "a/b/c", "models/", ""])
def test_a_missing_folder_is_not_looked_for_on_a_network(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for: list[str] = []
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: asked_for.append(name))
    monkeypatch.setattr("transformers.utils.hub.hf_api", lambda *_, **__: asked_for.append(path))
    with pytest.raises(InputError, match=r"no such folder|config\.json is missing"):
        PretrainedLanguageModelConfig(path=path).build(**SPECIAL)
    assert asked_for == []


def test_a_missing_sibling_folder_is_not_a_hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weights").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: pytest.fail(f"asked for {name}"))
    with pytest.raises(InputError, match="weights/lama: cannot load a tokenizer: no such folder"):
        load_tokenizer("weights/lama")


def test_a_mistyped_folder_is_reported_and_not_requested_from_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights" / "llama").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda _, name, **__: pytest.fail(f"asked for {name}"))
    with pytest.raises(InputError, match=r"wieghts/lama: cannot load a tokenizer: no such folder.*weights/llama"):
        load_tokenizer("wieghts/lama")


def test_an_unresponsive_hub_is_queried_once_and_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []

    def silent(_: Any, name: str, *, timeout: float) -> None:
        calls.append(timeout)
        raise TimeoutError

    def download(name: str, *, local_files_only: bool = False, **_: Any) -> str:
        assert local_files_only, "the download tries again and again"
        raise FileNotFoundError

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", silent)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(InputError, match=r"someone/lama.*the hub did not give it"):
        load_tokenizer("someone/lama")
    assert len(calls) == 1
    assert calls[0] <= 5


def test_a_gated_model_names_the_access_procedure(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.errors import GatedRepoError

    def closed(*_: object, **__: object) -> None:
        raise GatedRepoError.__new__(GatedRepoError)

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: None)
    monkeypatch.setattr("huggingface_hub.snapshot_download", closed)
    with pytest.raises(InputError, match=r"accepted its terms.*hf auth login"):
        load_tokenizer("someone/gated")


def test_a_hub_name_is_downloaded_without_pickles_and_then_read_as_a_folder(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[tuple[str, bool]] = []

    def download(name: str, *, allow_patterns: list[str], local_files_only: bool = False, **_: Any) -> str:
        assert not any(pattern.endswith((".bin", ".py", "*")) for pattern in allow_patterns if pattern != "vocab.*")
        wanted.append((name, local_files_only))
        if local_files_only:
            raise FileNotFoundError
        return str(checkpoint)

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: None)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    tokenizer = PretrainedTokenizerConfig(path="someone/llama").build([])
    assert len(tokenizer) > 256
    assert wanted == [("someone/llama", True), ("someone/llama", False)]


def test_pickled_weights_are_not_opened(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    torch.save({}, checkpoint / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"no weights in safetensors \(got pytorch_model\.bin.*expected model\.safe"):
        load_model(checkpoint)


def test_a_link_out_of_the_folder_is_not_followed(checkpoint: Path, tmp_path: Path) -> None:
    shutil.move(checkpoint / "config.json", tmp_path / "elsewhere.json")
    (checkpoint / "config.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(InputError, match=r"config\.json: a link out of the folder"):
        load_model(checkpoint)


def test_the_links_of_the_hubs_own_cache_are_followed(checkpoint: Path, tmp_path: Path) -> None:
    cache = tmp_path / "models--someone--llama"
    (cache / "blobs").mkdir(parents=True)
    (cache / "snapshots" / "abc").mkdir(parents=True)
    for file in checkpoint.iterdir():
        shutil.move(file, cache / "blobs" / file.name)
        (cache / "snapshots" / "abc" / file.name).symlink_to(cache / "blobs" / file.name)
    assert load_model(cache / "snapshots" / "abc").width == 16


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 5000, '{"vocab_size": ' + "9" * 5000 + "}", "null", "[]"])
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
def test_json_that_is_nested_without_end_or_no_object_is_one_clear_error(
    checkpoint: Path, name: str, content: str
) -> None:
    (checkpoint / name).write_text(content)
    loaders: list[Callable[[], Any]] = [lambda: load_tokenizer(checkpoint)]
    if name == "config.json":
        part = PretrainedLanguageModelConfig(path="gone")
        loaders = [lambda: load_model(checkpoint), lambda: part.build(**SPECIAL, saved=checkpoint)]
    for load in loaders:
        with pytest.raises(InputError, match=rf"{name}: not (valid JSON|a JSON object)"):
            load()


PARTS: dict[str, Any] = {
    "normalizer": {
        "type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "b"}],
    },
    "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Isolated"},
    "post_processor": {
        "type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {"x": {"id": "x", "ids": [1], "tokens": ["x"]}},
    },
    "decoder": {"type": "ByteLevel"}, "padding": {"strategy": {"Fixed": 5}},
    "model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "a"]]},
}  # fmt: skip
"""The parts of a tokenizer.json that are looked at."""
OTHER_TYPES: list[Any] = [None, 5, True, "x", [], [5], [[]], [None], {}, {"type": []}, {"a": 5}, {"type": {}}]


def places_in(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [above, *(place for key, one in inner for place in places_in(one, (*above, key)))]


def test_a_tokenizer_with_any_value_in_any_place_is_taken_or_refused_in_one_line(tmp_path: Path) -> None:
    path, messages = tmp_path / "tokenizer.json", []
    path.write_text("{}")
    places = [place for place in places_in(PARTS) if place]
    for place in places:
        for value in OTHER_TYPES:
            content = json.loads(json.dumps(PARTS))
            holder = content
            for key in place[:-1]:
                holder = holder[key]
            holder[place[-1]] = value
            try:
                refuse_endless_steps(content, path)
            except InputError as error:
                messages.append(str(error))
    assert 20 < len(messages) < len(places) * len(OTHER_TYPES)  # neither none nor all
    assert not any("\n" in line for line in messages)


@pytest.mark.parametrize("depth", [100, 400, 900])
def test_json_nested_less_deeply_than_python_can_read_is_one_clear_error_too(checkpoint: Path, depth: int) -> None:
    (checkpoint / "tokenizer.json").write_text('{"model":' * depth + "1" + "}" * depth)
    with pytest.raises(InputError, match="cannot load a tokenizer"):
        load_tokenizer(checkpoint)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_hidden_layers": 1_000_000}, "num_hidden_layers.*too many.*at most"),
        ({"hidden_size": 10**15}, "hidden_size.*too large"),
        ({"hidden_size": -(10**15)}, "hidden_size.*too large"),
        ({"sizes": [2**30, 2**30, 1]}, "sizes.*too large"),
        ({"sizes": {"inner": [-(2**30), -(2**31)]}}, "sizes.inner.*too large"),
        ({"hidden_size": 2**20, "head_dim": 8}, "weights do not belong to this configuration"),
        ({"attn_implementation": "someone/kernel"}, "attn_implementation.*code of others"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "quantization_config"),
        ({"transformers_weights": "../other.safetensors"}, "transformers_weights"),
    ],
)
def test_a_configuration_that_asks_for_too_much_is_refused(
    checkpoint: Path, fields: dict[str, Any], message: str
) -> None:
    change(checkpoint / "config.json", **fields)
    with pytest.raises(InputError, match=message):
        load_model(checkpoint)


def test_weights_are_not_read_from_elsewhere(checkpoint: Path, tmp_path: Path) -> None:
    shutil.move(checkpoint / "model.safetensors", tmp_path / "other.safetensors")
    index = {"metadata": {}, "weight_map": {"lm_head.weight": "../other.safetensors"}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"weight_map.*not a safetensors file of this folder"):
        load_model(checkpoint)


def test_adapters_that_name_another_model_are_refused(checkpoint: Path) -> None:
    (checkpoint / "adapter_config.json").write_text('{"base_model_name_or_path": "someone/else"}')
    with pytest.raises(InputError, match="adapters of another model"):
        load_model(checkpoint)


def chat_prompt(template: str) -> PromptTemplate:
    tokenizer = BpeTokenizerConfig(vocab_size=300).build([])
    tokenizer.chat_template = template
    return PromptTemplate.for_tokenizer("{image} Report.", tokenizer, "chat", slots=("image",))


HOSTILE_TEMPLATES = {
    "endless": "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}"
    "{% endfor %}{% endfor %}",
    "giant": "{{ 'A' * 4000000000 }}",
    "long": "{{ 'A' * 2000000 }}",
    "refusing": "{{ raise_exception('no') }}",
    "broken": "{% for",
    "escaping": "{{ messages.__class__.__mro__ }}{{ cycler.__init__.__globals__.os.system('true') }}",
}


@pytest.mark.parametrize("name", HOSTILE_TEMPLATES)
def test_a_chat_template_that_loops_or_grows_without_end_is_one_clear_error(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radweave.nn.prompt.TIMEOUT_S", 1.0)
    with pytest.raises(InputError, match="field 'chat_template': the tokenizer's chat template cannot be rendered"):
        chat_prompt(HOSTILE_TEMPLATES[name])


def harm_weights(path: Path, harm: Callable[[torch.Tensor], torch.Tensor], names: str = "") -> None:
    tensors = load_file(str(path))
    changed = {n: harm(t) if n.startswith(names) and t.is_floating_point() else t for n, t in tensors.items()}
    with safe_open(str(path), framework="pt") as file:
        metadata = file.metadata()
    save_file(changed, str(path), metadata=metadata)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_weights_that_are_not_finite_are_refused_at_load(
    toy_run: Path, checkpoint: Path, tmp_path: Path, value: float
) -> None:
    run = Path(shutil.copytree(toy_run, tmp_path / "run"))

    def harm(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[-1] = value
        return tensor

    harm_weights(run / "weights.safetensors", harm, "language_model.model.lm_head")
    rehash(run)
    with pytest.raises(
        InputError, match=r"weights\.safetensors, field 'language_model\.model\.lm_head\.weight'.*finite"
    ):
        restore(run)
    harm_weights(checkpoint / "model.safetensors", harm, "lm_head")
    with pytest.raises(InputError, match=r"checkpoint, field 'lm_head\.weight'.*finite"):
        load_model(checkpoint)


def test_published_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    network = torch.nn.Linear(2, 2)
    save_file({"weight": torch.ones(2, 2), "bias": torch.tensor([0.0, float("nan")])}, str(tmp_path / "w.safetensors"))
    with pytest.raises(InputError, match=r"field 'bias'.*not finite"):
        load_published(network, tmp_path / "w.safetensors", str, ())
    with pytest.raises(InputError, match=r"field 'bias'.*not finite"):
        load_strictly(network, load_file(str(tmp_path / "w.safetensors")), tmp_path / "w.safetensors")


def test_a_checkpoint_does_not_say_how_reports_are_decoded(checkpoint: Path) -> None:
    prefix, mask = torch.randn(1, 3, 16), torch.ones(1, 3, dtype=torch.bool)
    options = DecodingConfig(max_new_tokens=8)
    first = load_model(checkpoint).eval().generate(prefix, mask, options)
    (checkpoint / "generation_config.json").write_text(json.dumps({"suppress_tokens": first[0][0], "top_k": 1}))
    assert load_model(checkpoint).eval().generate(prefix, mask, options) == first


@pytest.mark.parametrize("decoding", [(), ("num_beams=2",), ("do_sample=true",)])
def test_scores_that_are_not_finite_end_the_job(
    toy_run: Path, toy_dataset: Dataset, tmp_path: Path, decoding: tuple[str, ...]
) -> None:
    run = Path(shutil.copytree(toy_run, tmp_path / "run"))
    harm_weights(run / "weights.safetensors", lambda tensor: tensor * 1e15, "language_model")
    rehash(run)
    restored = restore(run)
    predictor = Predictor.of(restored, decoding=decoding)
    groups = group_images([toy_dataset.image_path("images/1_0.png")], one_study=True)
    with pytest.raises(UnusableModelError, match="scores are not finite"):
        list(generate_files(predictor, groups))
    with pytest.raises(UnusableModelError, match="scores are not finite"):
        generate_split(restored, predictor, toy_dataset.path, "test", tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


class ReachedError(Exception):
    """Building went on to where memory is taken."""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("hidden_size: 32", "hidden_size: 4096"),
        ("num_layers: 2", "num_layers: 64"),
        ("intermediate_size: 256", "intermediate_size: 30000"),
    ],
)
def test_a_configuration_larger_than_the_weights_takes_no_memory(
    toy_run: Path, tmp_path: Path, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(toy_run, tmp_path / "run"))
    text = (run / "config.yaml").read_text()
    assert old in text
    (run / "config.yaml").write_text(text.replace(old, new))
    rehash(run)

    def take(*_: Any) -> None:
        raise ReachedError

    monkeypatch.setattr("radweave.engine.restore.load_weights", take)
    with pytest.raises(InputError, match=r"weights\.safetensors.*weights do not fit this model"):
        restore(run)


def with_language_model(checkpoint: Path, *more: str) -> list[str]:
    """A toy baseline with this checkpoint, as a user would name it."""
    options = [option for option in (*TOY_OVERRIDES, *TOY_SIZES["baseline"]) if "language_model." not in option]
    language_model = f"model.language_model={{kind: pretrained, path: {checkpoint}}}"
    return [*options, "stages.report.epochs=1", "stages.report.max_steps=1", language_model, *more]


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    """A tiny GPT-2 with a tokenizer that was trained on other words."""
    tokenizer = BpeTokenizerConfig(vocab_size=320).build(["sphinx of black quartz judge my vow"] * 9)
    shape = GPT2Config(vocab_size=1000, n_embd=16, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    GPT2LMHeadModel(shape).save_pretrained(tmp_path / "gpt2")
    save_tokenizer(tokenizer, tmp_path / "gpt2")
    return tmp_path / "gpt2"


def test_a_pretrained_language_model_is_not_given_another_tokenizer(
    gpt2: Path, checkpoint: Path, toy_dataset: Dataset, tmp_path: Path
) -> None:
    for other in ((), (f"data.tokenizer={{kind: pretrained, path: {checkpoint}}}",)):
        with pytest.raises(InputError, match=r"gpt2, field 'data\.tokenizer': the tokenizer is not that.*force=true"):
            train("baseline", toy_dataset.path, tmp_path / "run", overrides=with_language_model(gpt2, *other))


def test_as_many_words_with_other_numbers_are_another_tokenizer(checkpoint: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(checkpoint, tmp_path / "other"))
    content = json.loads((other / "tokenizer.json").read_text())
    words = content["model"]["vocab"]
    words["a"], words["b"] = words["b"], words["a"]
    (other / "tokenizer.json").write_text(json.dumps(content))
    config = PretrainedTokenizerConfig(path=str(other))
    with pytest.raises(InputError, match="not that of this language model"):
        config.build([], own=str(checkpoint))
    assert config.build([], own=str(other)).get_vocab()["a"] == words["a"]


@pytest.mark.long
def test_a_pretrained_language_model_reads_with_its_own_tokenizer(
    gpt2: Path, toy_dataset: Dataset, tmp_path: Path
) -> None:
    shutil.copytree(gpt2, tmp_path / "copy")
    same = f"data.tokenizer={{kind: pretrained, path: {tmp_path / 'copy'}}}"
    words = load_tokenizer(gpt2).get_vocab()
    for number, choice in enumerate(("data.tokenizer=pretrained", same)):
        out = tmp_path / f"run{number}"
        train("baseline", toy_dataset.path, out, overrides=with_language_model(gpt2, choice))
        assert restore(out).tokenizer.get_vocab() == words
    forced = with_language_model(gpt2, "data.tokenizer.force=true")
    train("baseline", toy_dataset.path, tmp_path / "forced", overrides=forced)
    assert restore(tmp_path / "forced").tokenizer.get_vocab() != words


def test_a_language_model_from_nothing_brings_no_tokenizer(toy_dataset: Dataset, tmp_path: Path) -> None:
    options = [option for option in (*TOY_OVERRIDES, *TOY_SIZES["baseline"]) if "tokenizer" not in option]
    with pytest.raises(InputError, match=r"data\.tokenizer\.path.*brings no tokenizer"):
        train("baseline", toy_dataset.path, tmp_path / "run", overrides=[*options, "data.tokenizer=pretrained"])


def test_a_model_larger_than_the_memory_is_refused_before_it_is_built(toy_dataset: Dataset, tmp_path: Path) -> None:
    options = [*TOY_OVERRIDES, *TOY_SIZES["baseline"]]
    giant = ["model.language_model.hidden_size=65536", "model.language_model.num_layers=256"]
    with pytest.raises(InputError, match=r"does not fit into this machine's memory \(got .* GB"):
        train("baseline", toy_dataset.path, tmp_path / "run", overrides=[*options, *giant])
