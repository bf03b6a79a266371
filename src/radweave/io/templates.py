"""Chat templates of tokenizers, rendered in the sandbox by ``template_parse``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from functools import lru_cache
from typing import Any

from radweave.core.errors import InputError
from radweave.io.sandbox import Sandbox

TIMEOUT_S = 10.0
ADDRESS_SPACE_BYTES = 1 << 30
_PARSERS = "radweave.io.template_parse"


def render_turn(template: str, content: str, special_tokens: Mapping[str, Any]) -> str:
    """The prompt of one turn of the user, up to the beginning of the assistant's answer.

    Raises:
        InputError: if the template is broken, refuses the turn, or exceeds the limits of time or memory.
    """
    return _render(template, content, json.dumps(special_tokens, sort_keys=True, default=str))


@lru_cache(maxsize=64)  # a restored run builds its model twice, and a process may restore many runs
def _render(template: str, content: str, special_tokens: str) -> str:
    variables = {
        **json.loads(special_tokens),
        "messages": [{"role": "user", "content": content}],
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
