"""Prompt templates: slots, order, and padding that moves to the left."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from radweave.core.errors import InputError
from radweave.data.tokenizer import BpeTokenizerConfig
from radweave.nn.prompt import PromptFormat, PromptTemplate, left_pad


def encode(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def test_text_and_slots_come_in_the_order_of_the_template() -> None:
    template = PromptTemplate.parse("ab{image}c", encode, slots=("image",), bos_id=1)
    embed = torch.nn.Embedding(200, 4)
    image = torch.full((2, 3, 4), 7.0)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    prefix, prefix_mask = template.splice(embed, {"image": (image, mask)})
    ids = torch.tensor([1, ord("a"), ord("b")])
    torch.testing.assert_close(prefix[0], torch.cat([embed(ids), image[0], embed(torch.tensor([ord("c")]))]))
    # The second row lacks one image token: its padding stands on the left, its text still ends at the last column.
    assert prefix_mask.tolist() == [[True] * 7, [False] + [True] * 6]
    torch.testing.assert_close(prefix[1, 1:4], embed(ids))
    torch.testing.assert_close(prefix[1, -1], embed(torch.tensor(ord("c"))))
    assert prefix[1, 0].abs().sum() == 0


@pytest.mark.parametrize("template", ["no slot", "{image}{image}", "{picture}", "{image}{prior}"])
def test_a_template_with_the_wrong_slots_is_refused(template: str) -> None:
    with pytest.raises(InputError, match="slots in the prompt"):
        PromptTemplate.parse(template, encode, slots=("image",), bos_id=None)


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=4))
def test_left_padding_keeps_the_present_tokens_in_order(rows: list[list[bool]]) -> None:
    mask = torch.tensor(rows)
    if not mask.any():
        return
    embeds = torch.arange(mask.numel(), dtype=torch.float32).view(*mask.shape, 1) + 1
    packed, packed_mask = left_pad(embeds, mask)
    for row in range(len(rows)):
        assert packed[row, packed_mask[row], 0].tolist() == embeds[row, mask[row], 0].tolist()
        present = packed_mask[row].long()
        assert (present[1:] >= present[:-1]).all(), "padding stands on the left only"
    assert packed_mask.any(dim=0).all(), "no column is empty in every row"


@pytest.mark.parametrize(
    ("how", "template", "begins"),
    [
        ("plain", None, True), ("plain", "<turn>{{ messages[0].content }}", True), ("auto", None, True),
        ("auto", "<turn>{{ messages[0].content }}", False), ("chat", "<turn>{{ messages[0].content }}", False),
    ],
)  # fmt: skip
def test_the_begin_token_stands_before_a_prompt_and_never_before_a_chat_template(
    how: PromptFormat, template: str | None, begins: bool
) -> None:
    """A chat template brings its own. What is told of a study stands behind either beginning."""
    tokenizer = BpeTokenizerConfig(vocab_size=300).build(["Describe the turn."] * 4)
    tokenizer.chat_template = template
    result = PromptTemplate.for_tokenizer("See {image}", tokenizer, how, slots=("image",))
    for pieces in (result.pieces, result.with_context):
        words = [token for piece in pieces if not isinstance(piece, str) for token in piece]
        assert words.count(tokenizer.bos_token_id) == int(begins)
        assert tokenizer.decode(words, skip_special_tokens=True).startswith("See" if begins else "<turn>")
    assert [piece for piece in result.with_context if isinstance(piece, str)] == ["context", "image"]
