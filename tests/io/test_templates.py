"""Chat templates render in the limited process as transformers renders them in its own."""

from __future__ import annotations

import pytest

from radweave.data.tokenizer import BpeTokenizerConfig
from radweave.io.templates import render_turn

CONTENT = "{image} Say <what> you see\n & where."
# Each has one trait of published templates: trimmed blocks, JSON, loop control, namespaces, macros, generation marks.
TEMPLATES = (
    "{% for m in messages %}\n  {{ bos_token + '[INST] ' + m['content'].strip() + ' [/INST]' }}\n{% endfor %}",
    "{{ messages | tojson(indent=2) }}{{ tools is none }}{{ documents is none }}{{ pad_token }}",
    "{% for n in range(9) %}{% if n == 2 %}{% continue %}{% elif n == 5 %}{% break %}{% endif %}{{ n }}{% endfor %}",
    "{% set ns = namespace(found=false) %}{% for m in messages %}{% set ns.found = true %}{% endfor %}{{ ns.found }}",
    "{%- macro turn(m) -%}<|{{ m.role }}|>{{ m.content | trim }}{%- endmacro -%}{{ turn(messages[0]) }}",
    "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}"
    "{% if add_generation_prompt %}\n<|assistant|>{% endif %}",
    "{{ dict(a=1) | tojson }}{{ unknown }}{{ 'é' | upper }}{{ messages[0]['content'][:5] }}{{ eos_token }}",
)


@pytest.mark.parametrize("template", TEMPLATES)
def test_it_renders_as_transformers_does(template: str) -> None:
    tokenizer = BpeTokenizerConfig(vocab_size=300).build([])
    turn = [{"role": "user", "content": CONTENT}]
    expected = tokenizer.apply_chat_template(turn, chat_template=template, tokenize=False, add_generation_prompt=True)
    assert render_turn(template, CONTENT, tokenizer.special_tokens_map) == expected


def test_a_template_that_asks_for_the_day_always_gets_the_same() -> None:
    assert render_turn("{{ strftime_now('%d %b %Y') }}", CONTENT, {}) == "26 Jul 2024"
