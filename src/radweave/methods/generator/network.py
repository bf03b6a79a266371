"""A published model of images and texts as three parts, with its own processor and its own pass.

The parts hold transformers' own modules. The model as a whole is held beside them, so that every pass, with tiles,
positions and masks as the family has them, is transformers' own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from radweave.core.batch import VisionFeatures
from radweave.core.errors import InputError
from radweave.core.foreign_files import PROCESSORS, one_line
from radweave.core.foreign_models import (
    locate,
    model_of_shape,
    read_model,
    read_processor,
    read_shape,
    writes_about_images,
)
from radweave.core.json_files import read_json_object
from radweave.nn.decoding import refuse_too_long
from radweave.nn.pretrained import Precision, Quantization, quantization_config
from radweave.nn.prompt import Content, render_turn

WHAT: Final = "a model of images and texts"
_BY_TOKEN: Final = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "cross_attention_mask")
"""Inputs of a model that have a value for each token of the prompt; all others are about images."""
_KINDS: Final = ("token_type_ids", "mm_token_type_ids")
_WIDEST: Final = 4096
"""Pixels; a greater number in a processor's ``size`` is an area."""
DYNAMIC_SIDE: Final = 1024
"""Side in pixels of the images for a processor that takes them at any size."""


# The files of a checkpoint that a run keeps beside its weights.


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint without its weights: the configuration, and the files of the processor as they are."""

    config: Any
    files: Mapping[str, bytes]

    @property
    def num_hidden_layers(self) -> int:
        """Layers of the vision tower."""
        vision = self.config.vision_config
        return int(getattr(vision, "num_hidden_layers", None) or vision.depth)

    def save_pretrained(self, save_directory: str) -> None:
        """Write both, in a layout that ``load`` reads."""
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        self.config.save_pretrained(save_directory)


_KEPT: Final = (*PROCESSORS, "chat_template.jinja", "chat_template.json")
_TOKENS: Final = ("*token*.json", "vocab.*", "merges.txt", "*.model", "*.jinja", "video_preprocessor_config.json")


def _kept_files(folder: Path) -> dict[str, bytes]:
    paths = {path for pattern in (*_KEPT, *_TOKENS) for path in folder.glob(pattern) if path.is_file()}
    return {path.name: path.read_bytes() for path in sorted(paths)}


def files_of(processor: Any) -> dict[str, bytes]:
    """The files that a processor saves."""
    with tempfile.TemporaryDirectory() as folder:
        processor.save_pretrained(folder)
        return _kept_files(Path(folder))


# Parts. Each holds modules of the model under their own names; a name of several levels is joined by underscores.


class Members(nn.Module):
    """Modules and single weights of a model, by name."""

    def __init__(self, members: Mapping[str, nn.Module | nn.Parameter]) -> None:
        super().__init__()
        self.names = {name.replace(".", "_"): name for name in members}
        for name, member in members.items():
            setattr(self, name.replace(".", "_"), member)

    def put_back(self, model: nn.Module) -> None:
        """Set the modules in their places in the model: adapters may have replaced them here."""
        for own, name in self.names.items():
            above, _, last = name.rpartition(".")
            setattr(model.get_submodule(above), last, getattr(self, own))


class Projector(Members):
    """The projector, from the vision tower to the language model."""


class Words(nn.Module):
    """The language model with its head, as a causal language model reads and writes."""

    def __init__(self, text: Any, head: nn.Module) -> None:
        super().__init__()
        self.text: Any = text
        self.head = head

    @property
    def config(self) -> Any:
        """The configuration of the text part."""
        return self.text.config

    def get_input_embeddings(self) -> nn.Module:
        """The embeddings of words."""
        embeddings: nn.Module = self.text.get_input_embeddings()
        return embeddings

    def get_output_embeddings(self) -> nn.Module:
        """The head."""
        return self.head

    def gradient_checkpointing_enable(self) -> None:
        """Compute activations again in the backward pass."""
        self.text.gradient_checkpointing_enable()

    def gradient_checkpointing_disable(self) -> None:
        """Keep activations."""
        self.text.gradient_checkpointing_disable()

    def forward(self, *, logits_to_keep: int = 0, **inputs: Any) -> Logits:
        """The scores of the last ``logits_to_keep`` words, 0 for all."""
        hidden = self.text(**inputs).last_hidden_state
        return Logits(self.head(hidden[:, -logits_to_keep:]))


@dataclass(frozen=True, slots=True)
class Logits:
    """Scores (B, T, V), named as transformers' models name theirs."""

    logits: Tensor


class _TowerOutput(Exception):  # noqa: N818
    """Ends a pass behind the vision tower, with the tower's output."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output


class Tower(Members):
    """The vision tower. As an encoder it prepares images as the model's processor does, and returns patch tokens."""

    def __init__(self, members: Mapping[str, nn.Module | nn.Parameter], network: Network) -> None:
        super().__init__(members)
        vision = network.model.config.vision_config
        wide = [getattr(vision, name, None) for name in ("vision_output_dim", "embed_dim", "hidden_size")]
        self.dim = int(next(width for width in wide if width))
        self.channels = 3
        # As a whole it belongs to no part; the reference is no module of this one.
        self._network = (network,)

    @property
    def architecture(self) -> Checkpoint:
        """The checkpoint without its weights."""
        return self._network[0].checkpoint

    def count_tokens(self, image_size: int) -> int:
        """Tokens of a square image in the prompt: those behind the projector."""
        network = self._network[0]
        black = Image.new("RGB", (image_size, image_size))
        lengths = [network.inputs([Query((black,) * images, "")])["input_ids"].shape[1] for images in (1, 2)]
        return lengths[1] - lengths[0]

    def forward(self, pixel_values: Float[Tensor, "n c h w"]) -> VisionFeatures:
        """Encode images from 0 to 1; ``c`` is 1. Tokens of an image's tiles follow each other."""
        network = self._network[0]
        tokens = network.tower_tokens(pictures(pixel_values), pixel_values)
        tokens = tokens.reshape(len(pixel_values), -1, tokens.shape[-1])
        side = int(tokens.shape[1] ** 0.5)
        return VisionFeatures(tokens, (side, side) if side * side == tokens.shape[1] else (1, tokens.shape[1]))


def pictures(pixels: Float[Tensor, "n c h w"]) -> list[Image.Image]:
    """Images from 0 to 1 as a processor takes them: eight bits, three equal channels. Black where there are no numbers
    but shapes.
    """
    if pixels.is_meta or isinstance(pixels, FakeTensor):
        return [Image.new("RGB", (pixels.shape[-1], pixels.shape[-2]))] * len(pixels)
    grey = (pixels[:, 0].detach().float().clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()
    return [Image.fromarray(np.repeat(one[:, :, None], 3, axis=2)) for one in grey]


def without_margins(picture: Image.Image) -> Image.Image:
    """The picture without the rows and columns at its edges that are black throughout; a black one as it is."""
    box = picture.getbbox()
    return picture if box is None else picture.crop(box)


def _collect(
    module: nn.Module, wanted: Mapping[int, str], default: str, name: str = ""
) -> Iterator[tuple[str, str, nn.Module | nn.Parameter]]:
    """Part, name and module of the largest modules that belong to one part, and of weights between them."""
    part = wanted.get(id(module), default)
    if not any(id(deeper) in wanted for deeper in module.modules() if deeper is not module):
        yield part, name, module
        return
    before = f"{name}." if name else ""
    for own, weight in module.named_parameters(recurse=False):
        yield part, before + own, weight
    for own, child in module.named_children():
        yield from _collect(child, wanted, part, before + own)


_MERGERS: Final = ("merger", "deepstack_merger_list")
"""Projectors inside of a vision tower, Qwen-VL's."""


# Prompts.


@dataclass(frozen=True, slots=True)
class Query:
    """The query of a study: images, a text that names them, and ids of text that is inserted after it."""

    images: tuple[Image.Image, ...]
    shown: str
    inserted: tuple[int, ...] = ()
    views: int = 0
    """The first so many images are the study's own, the others its prior's."""


@dataclass(frozen=True, slots=True)
class Family:
    """The facts that set a kind of model apart.

    ``first_position`` is that of the first token, ``report_kind`` the kind of a report's tokens. Studies of one pass
    have ``equally_many`` images where the absent ones of a study would change what is read of the others.
    """

    first_position: int = 0
    report_kind: int = 0
    equally_many: bool = False


_FAMILIES: Final[Mapping[str, Family]] = {
    "paligemma": Family(first_position=1, report_kind=1),
    "mllama": Family(equally_many=True),
}
"""PaliGemma counts positions from 1 and reads its prompt both ways; a report is read from left to right."""


@dataclass(eq=False)
class Network:
    """A model of transformers with its processor. ``ends`` are the ids that end an answer."""

    model: Any
    processor: Any
    checkpoint: Checkpoint
    instruction: str
    ends: tuple[int, ...]
    tower: nn.Module = field(init=False)
    family: Family = field(init=False)
    singles: list[tuple[nn.Module, str, Members, str]] = field(init=False, default_factory=list)
    """Weights between modules: module, name there, part, name in the part."""
    control: frozenset[int] = field(init=False)
    """Ids that are no text: a study's own text must not bring any."""

    def __post_init__(self) -> None:
        self.model.eval()
        self.tower = self.model.get_encoder(modality="image")
        self.family = _FAMILIES.get(self.model.config.model_type, Family())
        added = self.tokenizer.added_tokens_decoder
        values = self.model.config.to_dict().items()
        named = {
            value for name, value in values if isinstance(value, int) and name.endswith(("token_id", "token_index"))
        }
        self.control = frozenset(named | {number for number, token in added.items() if token.special})

    @property
    def tokenizer(self) -> Any:
        """The processor's tokenizer."""
        return self.processor.tokenizer

    def parts(self) -> tuple[Tower, Projector, Words]:
        """Vision tower, projector and language model; together they have every weight once."""
        text, head = self.model.get_decoder(), self.model.get_output_embeddings()
        wanted = {id(self.tower): "tower", id(text): "words", id(head): "words"}
        wanted |= {id(part): "projector" for name, part in self.tower.named_children() if name in _MERGERS}
        members: dict[str, dict[str, nn.Module | nn.Parameter]] = {"tower": {}, "projector": {}, "words": {}}
        for part, name, module in _collect(self.model, wanted, "projector"):
            members[part][name] = module
        projector = Projector(members["projector"])
        for own, name in projector.names.items():
            above, _, last = name.rpartition(".")
            if isinstance(getattr(projector, own), nn.Parameter):
                self.singles.append((self.model.get_submodule(above), last, projector, own))
        return Tower(members["tower"], self), projector, Words(text, head)

    # Texts.

    def prompt(self, images: int, text: str) -> str:
        """The prompt of so many images and a text, in the chat template where there is one."""
        template = self.processor.chat_template or self.tokenizer.chat_template
        token = str(self.processor.image_token)
        if not isinstance(template, str):
            return token * images + ("" if self.is_prefix_model else "\n" * bool(images)) + text
        pieces: list[Mapping[str, str]] = [{"type": "image"}] * images
        tried: list[Content] = [[*pieces, {"type": "text", "text": text}], (token + "\n") * images + text]
        for content in tried:
            try:
                turn = render_turn(template, content, self.tokenizer.special_tokens_map)
            except InputError:
                continue
            if turn.count(token) == images and self.instruction in turn:
                return turn
        raise InputError(
            "the chat template has no place for images and text", field="chat_template", expected=f"{images} images"
        )

    @property
    def is_prefix_model(self) -> bool:
        """True for a model that reads its prompt both ways and has no chat template."""
        return self.family.report_kind == 1

    def _read(self, queries: Sequence[Query]) -> dict[str, Tensor]:
        """The processor's output for studies that all have images, or none; padded on the left."""
        texts = [self.prompt(len(one.images), one.shown + self.instruction) for one in queries]
        bos = self.tokenizer.bos_token
        options: dict[str, Any] = {"return_tensors": "pt", "padding": True, "padding_side": "left"}
        if queries[0].images:
            if self.is_prefix_model or (bos is not None and texts[0].startswith(bos)):
                options["add_special_tokens"] = False
            try:
                read = self.processor(text=texts, images=[list(one.images) for one in queries], **options)
            except Exception as error:  # of a foreign configuration, of any type
                raise InputError(
                    f"the processor cannot prepare the images and the prompt: {one_line(error)}", field="model.path"
                ) from None
            return {name: value for name, value in read.items() if name != "labels"}
        if self.is_prefix_model:
            texts = [f"{bos}{text}\n" for text in texts]
        if bos is not None and texts[0].startswith(bos):
            options["add_special_tokens"] = False
        read = dict(self.tokenizer(texts, **options))
        if self.is_prefix_model:
            read["token_type_ids"] = torch.zeros_like(read["input_ids"])
        return read

    def _place(self, row: Sequence[int], prompt: str) -> int:
        """The number of tokens before the instruction, which texts of the study are inserted in front of."""
        after = self._ids_after(prompt[prompt.rfind(self.instruction) :] + "\n" * self.is_prefix_model)
        same = 0
        while same < min(len(after), len(row)) and row[-1 - same] == after[-1 - same]:
            same += 1
        return len(row) - same

    def _ids_after(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def inputs(
        self,
        queries: Sequence[Query],
        report: tuple[Int[Tensor, "batch text"], Bool[Tensor, "batch text"]] | None = None,
    ) -> dict[str, Tensor]:
        """Arguments of the model's pass over prompts, padded on the left, and reports, padded on the right.

        Args:
            queries: studies, which all have images, or none has.
            report: ids of their reports, and which of them are there.
        """
        read = self._read(queries)
        by_token = {name: read.pop(name) for name in _BY_TOKEN if name in read}
        present = by_token["attention_mask"].bool()
        rows: dict[str, list[Tensor]] = {name: [] for name in by_token}
        for number, one in enumerate(queries):
            own = {name: values[number][present[number]] for name, values in by_token.items()}
            inserted = torch.tensor([word for word in one.inserted if word not in self.control], dtype=torch.long)
            place = len(own["input_ids"])
            if len(inserted):
                text = self.prompt(len(one.images), one.shown + self.instruction)
                place = self._place(own["input_ids"].tolist(), text)
            for name, values in own.items():
                # Inserted words are of the kind of the last words.
                new = inserted if name == "input_ids" else values[-1:].expand(len(inserted), *values.shape[1:])
                rows[name].append(torch.cat([values[:place], new.to(values.dtype), values[place:]]))
        pads = {"input_ids": int(self.tokenizer.pad_token_id)}
        inputs = {name: _left_padded(values, pads.get(name, 0)) for name, values in rows.items()}
        if report is not None:
            inputs = {
                name: torch.cat([value, self._after(name, value, *report)], dim=1) for name, value in inputs.items()
            }
        if "image_grid_thw" not in read:  # these positions have three axes, and the model counts them
            count = inputs["attention_mask"].cumsum(dim=1) - 1
            inputs["position_ids"] = count.clamp(min=0) + self.family.first_position
        images = {name: value for name, value in read.items() if isinstance(value, Tensor)}
        return {**inputs, **{name: self._typed(value) for name, value in images.items()}}

    def _after(self, name: str, prompt: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        """The values of an input by token for the words of a report."""
        if name == "input_ids":
            return ids
        if name == "attention_mask":
            return mask.to(prompt.dtype)
        if name in _KINDS:
            return torch.full_like(ids, self.family.report_kind, dtype=prompt.dtype)
        return prompt[:, -1:].expand(-1, ids.shape[1], *prompt.shape[2:])

    def _dtype(self, value: Tensor) -> torch.dtype:
        dtype: torch.dtype = self.model.dtype if value.is_floating_point() else value.dtype
        return dtype

    def _typed(self, value: Tensor) -> Tensor:
        return value.to(self._dtype(value))

    # Passes.

    def set_singles(self) -> None:
        """Set the weights between modules in the model: a part that was moved or cut has other ones."""
        for parent, name, part, own in self.singles:
            parent._parameters[name] = getattr(part, own)

    def run(self, arguments: Mapping[str, Tensor], **options: Any) -> Any:
        """Run the whole model's own pass.

        Raises:
            InputError: if the processor does not fit the model.
        """
        self.set_singles()
        try:
            return self.model(**arguments, **options)
        except ValueError as error:
            raise InputError(f"the processor does not fit the model: {one_line(error)}", field="model.path") from None

    def logits(
        self, queries: Sequence[Query], ids: Int[Tensor, "batch text"], mask: Bool[Tensor, "batch text"]
    ) -> Float[Tensor, "batch text words"]:
        """Scores of each token of a report after the prompt of each query: its last token predicts the first.

        Raises:
            InputError: if a prompt and its report are longer than the model's positions.
        """
        out: Tensor | None = None
        for rows in _alike(queries, self.family.equally_many):
            some = self.inputs([queries[row] for row in rows], (ids[rows].cpu(), mask[rows].cpu()))
            refuse_too_long(self.model.get_decoder().config, some["input_ids"].shape[1], "data.max_tokens")
            arguments = {name: value.to(ids.device) for name, value in some.items()}
            scores: Tensor = self.run(arguments, logits_to_keep=ids.shape[1] + 1, use_cache=False).logits[:, :-1]
            if len(rows) == len(queries):
                return scores.float()
            out = scores.new_zeros(len(queries), *scores.shape[1:], dtype=torch.float32) if out is None else out
            out = out.index_copy(0, torch.tensor(rows, device=scores.device), scores.float())
        assert out is not None, "there is a study"
        return out

    def embed(self, input_ids: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape width"]:
        """Word embeddings, those of an image's places among them."""
        embeddings = self.model.get_input_embeddings()
        out: Tensor = embeddings(input_ids.clamp(max=embeddings.num_embeddings - 1))
        return out

    def tower_tokens(self, images: Sequence[Image.Image], like: Tensor) -> Float[Tensor, "*axes dim"]:
        """The tokens that the vision tower gives of images, before the projector, on the device of ``like``."""
        with unset_fake_temporarily():
            read = self._read([Query((image,), "") for image in images])
        read = {name: value for name, value in read.items() if name not in _BY_TOKEN and isinstance(value, Tensor)}
        if isinstance(like, FakeTensor):  # shapes alone
            inputs = {name: torch.empty(value.shape, dtype=self._dtype(value)) for name, value in read.items()}
        else:
            inputs = {name: self._typed(value).to(like.device) for name, value in read.items()}
        handle = self.tower.register_forward_hook(_stop)
        try:
            if hasattr(self.model, "get_image_features"):
                inputs.pop("batch_num_images", None)
                self.model.get_image_features(**inputs)
            else:
                self.tower(**inputs)
        except _TowerOutput as end:
            output = end.output
            tokens: Tensor = output[0] if isinstance(output, tuple) else output.last_hidden_state
            return tokens
        finally:
            handle.remove()
        raise AssertionError("a pass over images goes through the vision tower")

    def gradients(self, query: Query, words: Sequence[int]) -> list[Float[Tensor, "h w"]]:
        """Maps of a report's log-probability over each image, in the images' order; none for a family that does not
        put images among the words, or of an unknown layout.

            map = |sum_c G_c A_c|,  A the embeddings of an image's tokens, G = d log p(report) / dA

        Source: gradient times input, Shrikumar et al., arXiv:1605.01713. Deviation: at the input of the language model.
        """
        place = getattr(self.model.config, "image_token_id", None)
        if place is None or not words or not query.images:
            return []
        device = self.model.get_input_embeddings().weight.device
        leaves: list[Tensor] = []

        def begin(_: nn.Module, inputs: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            leaf = options["inputs_embeds"].detach().requires_grad_()
            leaves.append(leaf)
            torch.set_grad_enabled(True)  # from here on, so that nothing is kept of the vision tower
            return inputs, {**options, "inputs_embeds": leaf}

        with torch.inference_mode(False), torch.no_grad():
            ids = torch.tensor([list(words)])
            read = self.inputs([query], (ids, torch.ones_like(ids, dtype=torch.bool)))
            if "cross_attention_mask" in read:
                return []
            arguments = {name: value.to(device) for name, value in read.items()}
            handle = self.model.get_decoder().register_forward_pre_hook(begin, with_kwargs=True)
            try:
                logits = self.run(arguments, logits_to_keep=len(words) + 1, use_cache=False).logits[0, :-1].float()
            finally:
                handle.remove()
            total = logits.log_softmax(dim=-1).gather(1, ids[0, :, None].to(device)).sum()
            (gradient,) = torch.autograd.grad(total, leaves[0])
        heat = (gradient * leaves[0].detach())[0].float().sum(dim=-1).abs()
        values = heat[arguments["input_ids"][0] == place].cpu()
        return self._grids(values, len(query.images), read)

    def _grids(self, values: Float[Tensor, " tokens"], images: int, read: Mapping[str, Tensor]) -> list[Tensor]:
        """The values of all images' tokens as a grid for each: the whole image, or its overview among tiles."""
        if len(values) % images:
            return []
        each = values.reshape(images, -1)
        if "image_grid_thw" in read:
            merge = int(self.model.config.vision_config.spatial_merge_size)
            sizes = [(rows // merge, columns // merge) for _, rows, columns in read["image_grid_thw"].tolist()]
            return [row.reshape(size) for row, size in zip(each, sizes, strict=True)]
        names = ("image_seq_length", "image_seq_len", "num_image_tokens")
        stated = [getattr(self.processor, name, None) for name in names]
        stated.append(getattr(self.model.config, "image_seq_length", None))
        length = next((number for number in stated if isinstance(number, int)), each.shape[1])
        first = "llava" in self.model.config.model_type
        overview = each[:, :length] if first else each[:, -length:]
        side = int(overview.shape[1] ** 0.5)
        return [row.reshape(side, side) for row in overview] if side * side == overview.shape[1] else []


def _alike(queries: Sequence[Query], equally_many: bool) -> list[list[int]]:
    """Rows that a processor takes together: with images, without, or with equally many."""
    counts = [len(query.images) if equally_many else bool(query.images) for query in queries]
    return [[row for row, own in enumerate(counts) if own == count] for count in dict.fromkeys(counts)]


def _stop(module: nn.Module, inputs: Any, output: Any) -> None:
    raise _TowerOutput(output)


def _left_padded(rows: Sequence[Tensor], pad: int) -> Tensor:
    """Rows of several lengths as one tensor, padded on the left."""
    length = max(len(row) for row in rows)
    padded = rows[0].new_full((len(rows), length, *rows[0].shape[1:]), pad)
    for number, row in enumerate(rows):
        padded[number, length - len(row) :] = row
    return padded


# Loading.


def read_checkpoint(path: str | Path) -> Checkpoint:
    """The configuration of a checkpoint, which names all ends of an answer, and the files of its processor.

    Raises:
        InputError: if there is no such checkpoint, or it is of no model of images and texts.
    """
    folder = locate(path, "shape", what=WHAT)
    shape = read_shape(folder, what=WHAT)
    if not writes_about_images(shape):
        raise InputError(
            f"not {WHAT}",
            file=path,
            field="model.path",
            got=shape.model_type,
            expected="one that transformers opens for images and texts",
        )
    words = locate(path, "tokenizer", what=f"the tokenizer of {WHAT}")
    processors = locate(path, "processor", what=f"the processor of {WHAT}")
    shape.eos_token_id = list(_ends(folder, shape))
    return Checkpoint(shape, {**_kept_files(words), **_kept_files(processors)})


def load(
    path: str | Path, instruction: str, *, dtype: Precision, quantization: Quantization = "none", weights: bool = True
) -> Network:
    """Open a checkpoint; without ``weights`` one of random weights, as a run folder keeps it.

    Raises:
        InputError: if there is no such checkpoint, or it is of no model of images and texts, or broken.
    """
    from transformers import GenerationConfig

    checkpoint = read_checkpoint(path)
    shape, precision = checkpoint.config, getattr(torch, dtype)
    processor = read_processor(path, shape, what=f"the processor of {WHAT}")
    tokenizer = processor.tokenizer
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if weights:
        settings = quantization_config(quantization, dtype)
        model, _ = read_model(path, "image_text", what=WHAT, dtype=precision, shape=shape, quantization_config=settings)
    else:
        model = model_of_shape(shape, "image_text", what=WHAT, file=path, dtype=precision)
    # As a restored run has it: how a report is decoded is the experiment's to say, not the checkpoint's.
    model.generation_config = GenerationConfig()
    return Network(model, processor, checkpoint, instruction, tuple(shape.eos_token_id))


def _ends(folder: Path, shape: Any) -> tuple[int, ...]:
    """Ids that end an answer: those of the checkpoint's generation, and of its shape."""
    file = folder / "generation_config.json"
    generation = read_json_object(file) if file.is_file() else {}
    stated = [generation.get("eos_token_id"), getattr(shape, "eos_token_id", None)]
    ids = (number for one in stated for number in (one if isinstance(one, list) else [one]))
    return tuple(dict.fromkeys(int(number) for number in ids if isinstance(number, int)))


@lru_cache(maxsize=16)
def image_side(path: str) -> int:
    """Side in pixels of the squares that suit a checkpoint's processor: its own, twice that where it cuts tiles.

    Raises:
        InputError: if there is no such checkpoint, or no processor in it.
    """
    folder = locate(path, "processor", what=f"the processor of {WHAT}")
    settings: dict[str, Any] = {}
    for name in PROCESSORS:
        if (folder / name).is_file():
            content = read_json_object(folder / name)
            settings |= content.get("image_processor") or content
    size = settings.get("crop_size") or settings.get("size") or {}
    sides = (
        [size.get(name) for name in ("height", "shortest_edge", "longest_edge")] if isinstance(size, dict) else [size]
    )
    side = next((side for side in sides if isinstance(side, int)), DYNAMIC_SIDE)
    if side > _WIDEST or "merge_size" in settings:
        return DYNAMIC_SIDE
    cuts = any(settings.get(name) for name in ("image_grid_pinpoints", "crop_to_patches", "do_pan_and_scan"))
    return max(16, min(2048, 2 * side if cuts else side))
