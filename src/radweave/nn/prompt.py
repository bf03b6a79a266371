"""Prompts: text with named slots that are filled with embeddings.

template = PromptTemplate.parse("Human: <Img>{image}</Img> Generate a report.\\nAssistant:", encode, bos_id)
prefix, mask = template.splice(embed, {"image": (tokens, token_mask)})
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from radweave.core.errors import InputError
from radweave.io.sandbox import Sandbox

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PromptFormat = Literal["plain", "chat", "auto"]
"""``chat`` wraps a prompt in the tokenizer's chat template as a user's turn, ``auto`` where it has one."""
CONTEXT = "context"
"""The slot of a study's context, the text that it has beside its images; no template of a method has it."""
_CONTEXT_SLOT = f"{{{CONTEXT}}}"
Slot = tuple[Tensor, Tensor]
"""Embeddings (B, S, H) and a mask (B, S), True where a token is there."""


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """Pieces of a prompt in order: token ids, or the name of a slot.

    ``with_context`` are the same with one more slot, ``CONTEXT``: at the beginning of the user's turn in a chat
    template, else of the prompt. Models that get context use it.
    """

    pieces: tuple[tuple[int, ...] | str, ...]
    with_context: tuple[tuple[int, ...] | str, ...] = ()

    @classmethod
    def parse(
        cls,
        template: str,
        encode: Callable[[str], list[int]],
        *,
        slots: Sequence[str],
        bos_id: int | None,
        context: str | None = None,
    ) -> PromptTemplate:
        """Tokenise the text between ``{slot}`` marks.

        Args:
            template: the prompt.
            encode: text to token ids.
            slots: the names that must be in it.
            bos_id: the begin token, if it stands before the prompt.
            context: the prompt with the slot ``CONTEXT``, where that is not before everything.

        Raises:
            InputError: if the slots in the template are not exactly ``slots``, each once.
        """
        pieces = _pieces(template, encode, bos_id)
        names = [piece for piece in pieces if isinstance(piece, str)]
        if sorted(names) != sorted(slots):
            raise InputError("wrong slots in the prompt", field="prompt", got=names, expected=list(slots))
        return cls(pieces, _pieces(context or _CONTEXT_SLOT + template, encode, bos_id))

    @classmethod
    def for_tokenizer(
        cls, template: str, tokenizer: PreTrainedTokenizerBase, prompt_format: PromptFormat, *, slots: Sequence[str]
    ) -> PromptTemplate:
        """Parse a template for a tokenizer: after its begin token, or inside its chat template as a user's turn.

        Raises:
            InputError: for wrong slots, or a chat format where the tokenizer has no chat template or one that
                cannot be rendered.
        """
        bos_id, context = tokenizer.bos_token_id, None
        if prompt_format == "chat" or (prompt_format == "auto" and tokenizer.chat_template is not None):
            if tokenizer.chat_template is None:
                raise InputError(
                    "the tokenizer has no chat template", field="prompt_format", got="chat", expected="plain"
                )
            content = template.strip()
            template = render_turn(_chat_template(tokenizer), template, tokenizer.special_tokens_map)
            context = template.replace(content, _CONTEXT_SLOT + content, 1) if content in template else None
            bos_id = None  # the chat template brings its own

        def encode(text: str) -> list[int]:
            ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
            return ids

        return cls.parse(template, encode, slots=slots, bos_id=bos_id, context=context)

    def length(self, slots: Mapping[str, int], context: int = 0) -> int:
        """The tokens of a prompt whose slots have these numbers of tokens, after ``context`` tokens of context."""
        sizes = {**slots, CONTEXT: context}
        pieces = self.with_context if context else self.pieces
        return sum(sizes[piece] if isinstance(piece, str) else len(piece) for piece in pieces)

    def splice(
        self, embed: Callable[[Tensor], Tensor], slots: Mapping[str, Slot], context: Slot | None = None
    ) -> tuple[Float[Tensor, "batch prefix width"], Bool[Tensor, "batch prefix"]]:
        """Concatenate the pieces and move padding to the left, so that the prompt ends at the last column.

        Args:
            embed: token ids to embeddings.
            slots: the embeddings of each slot.
            context: that of each study, empty for some; None for a model without context.
        """
        first, _ = next(iter(slots.values()))
        batch, device = first.shape[0], first.device
        parts, masks = [], []
        slots = slots if context is None else {**slots, CONTEXT: context}
        for piece in self.pieces if context is None else self.with_context:
            if isinstance(piece, str):
                tokens, mask = slots[piece]
            else:
                ids = torch.tensor(piece, device=device)
                tokens = embed(ids)[None].expand(batch, -1, -1)
                mask = torch.ones(batch, len(piece), dtype=torch.bool, device=device)
            parts.append(tokens.to(first.dtype))
            masks.append(mask)
        return left_pad(torch.cat(parts, dim=1), torch.cat(masks, dim=1))


def _pieces(template: str, encode: Callable[[str], list[int]], bos_id: int | None) -> tuple[tuple[int, ...] | str, ...]:
    """Token ids of the text between ``{slot}`` marks, and the names of the slots."""
    pieces: list[tuple[int, ...] | str] = [] if bos_id is None else [(bos_id,)]
    for index, part in enumerate(re.split(r"\{(\w+)\}", template)):
        if index % 2:
            pieces.append(part)
        elif part:
            pieces.append(tuple(encode(part)))
    return tuple(pieces)


def _chat_template(tokenizer: PreTrainedTokenizerBase) -> str:
    """The template for plain conversations, where a tokenizer brings several."""
    template = tokenizer.chat_template
    chosen = template.get("default") if isinstance(template, dict) else template
    if not isinstance(chosen, str):
        raise InputError("the tokenizer's chat template is no text", field="chat_template", got=type(chosen).__name__)
    return chosen


def all_there(tokens: Float[Tensor, "batch tokens width"]) -> Slot:
    """Tokens as a slot in which none is absent."""
    return tokens, torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)


def nothing(like: Slot) -> Slot:
    """A slot without tokens, otherwise like this one."""
    return like[0][:, :0], like[1][:, :0]


def left_pad(
    embeds: Float[Tensor, "batch prefix width"], mask: Bool[Tensor, "batch prefix"]
) -> tuple[Float[Tensor, "batch kept width"], Bool[Tensor, "batch kept"]]:
    """Move absent positions to the left and zero them, keeping the order of those present.

    Columns absent in every row are dropped.
    """
    order = torch.argsort(mask.to(torch.int8), dim=1, stable=True)
    packed = torch.gather(embeds, 1, order[:, :, None].expand_as(embeds))
    packed_mask = torch.gather(mask, 1, order)
    width = int(mask.sum(dim=1).max())
    packed, packed_mask = packed[:, -width:], packed_mask[:, -width:]
    return packed.masked_fill(~packed_mask[:, :, None], 0.0), packed_mask


# Ends of sentences in a row of token ids.


_WORD_STARTS = ("Ġ", "▁", " ")
"""Marks of the space before a word, in byte-level and SentencePiece tokens."""


@dataclass(frozen=True, slots=True)
class SentenceSplitter:
    """Cuts token ids after a full stop that a new word follows, as reports are cut for their evidence.

    ``ends`` are the ids of tokens that end with a full stop, ``starts`` those that begin a word; ``decode`` gives the
    text of ids, ``encode`` the ids of a text without special tokens.
    """

    ends: frozenset[int]
    starts: frozenset[int]
    decode: Callable[[Sequence[int]], str]
    encode: Callable[[str], list[int]]

    @classmethod
    def for_tokenizer(cls, tokenizer: PreTrainedTokenizerBase) -> SentenceSplitter:
        """Look at every token of a vocabulary once."""
        tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        named = [(index, token) for index, token in enumerate(tokens) if token is not None]

        def decode(ids: Sequence[int]) -> str:
            text: str = tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
            return text.strip()

        def encode(text: str) -> list[int]:
            ids: list[int] = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
            return ids

        return cls(
            ends=frozenset(index for index, token in named if token.endswith(".")),
            starts=frozenset(index for index, token in named if token.startswith(_WORD_STARTS)),
            decode=decode,
            encode=encode,
        )

    def split(self, ids: Sequence[int]) -> list[tuple[int, ...]]:
        """The sentences of a report's token ids, in order; together they are all the ids."""
        sentences: list[tuple[int, ...]] = []
        start = 0
        for end in range(1, len(ids) + 1):
            if end == len(ids) or (ids[end - 1] in self.ends and ids[end] in self.starts):
                sentences.append(tuple(ids[start:end]))
                start = end
        return sentences


# Chat templates of tokenizers are programs: they are rendered in the sandbox, by ``template_parse``.

TIMEOUT_S = 10.0
ADDRESS_SPACE_BYTES = 1 << 30
_PARSERS = "radweave.io.template_parse"


Content = str | Sequence[Mapping[str, str]]
"""Content of a user's turn: text, or pieces in order, ``{"type": "image"}`` or ``{"type": "text", "text": ...}``."""


def render_turn(template: str, content: Content, special_tokens: Mapping[str, Any]) -> str:
    """The prompt of one turn of the user, up to the beginning of the assistant's answer.

    Raises:
        InputError: if the template is broken, refuses the turn, or exceeds the limits of time or memory.
    """
    return _render(template, json.dumps(content), json.dumps(special_tokens, sort_keys=True, default=str))


@lru_cache(maxsize=64)  # a restored run builds its model twice, and a process may restore many runs
def _render(template: str, content: str, special_tokens: str) -> str:
    variables = {
        **json.loads(special_tokens),
        "messages": [{"role": "user", "content": json.loads(content)}],
        "tools": None,
        "documents": None,
        "add_generation_prompt": True,
    }
    with closing(Sandbox(_PARSERS, size=1, address_space_bytes=ADDRESS_SPACE_BYTES)) as limited:
        try:
            header, _ = limited.call(
                "chat_template", {"template": template, "variables": variables}, timeout_s=TIMEOUT_S
            )
        except InputError as error:
            raise InputError(
                f"the tokenizer's chat template cannot be rendered: {error.reason}",
                field="chat_template",
                got=error.got,
                expected=error.expected,
            ) from None
    return str(header["text"])
