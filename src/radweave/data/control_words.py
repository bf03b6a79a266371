"""Words that language models take for commands: ends of texts, turns of a conversation, places of images.

In a report they are damage, or an attempt to steer. Training reads them as ordinary words (``data/tokenizer.py``), but
other programs that get the texts may not.
"""

from __future__ import annotations

import re
from typing import Final

_CONTROL: Final = re.compile(
    r"<\|[\w .:/-]{1,40}\|>|<｜[^<>\n]{1,40}｜>"
    r"|</?(?:s|pad|unk|bos|eos|cls|sep|mask|img|image|imagehere|sys|think|tool_call)>|<</?SYS>>"
    r"|<(?:start|end)_of_(?:turn|text|image)>|<end_of_utterance>|<(?:unused|extra_id_|reserved_\w{0,30}?)\d{1,4}>"
    r"|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|IMG|IMG_BREAK|IMG_END)\]"
    r"|\[(?:CLS|SEP|MASK|PAD|UNK|BOS|EOS)\]|<0x[0-9A-F]{2}>",
    re.IGNORECASE,
)


def has_control_word(text: str) -> bool:
    """Whether a text holds one, in the notations of the common families of models."""
    return _CONTROL.search(text) is not None
