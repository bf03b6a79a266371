"""The packages that only an extra brings: which they are, and the line that installs them. Everybody asks here."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType

from radweave.core.errors import InputError

EXTRAS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "metrics": ("rouge_score", "sacrebleu"),
        "meteor": ("pycocoevalcap",),
        "quantization": ("accelerate", "bitsandbytes"),
        "plots": ("matplotlib",),
        "tensorboard": ("tensorboard",),
        "wandb": ("wandb",),
        "ray": ("ray",),
        "faiss": ("faiss",),
        "serve": (
            "fastapi",
            "starlette",
            "uvicorn",
            "h11",
            "jinja2",
            "sqlalchemy",
            "argon2",
            "python_multipart",
            "cryptography",
        ),
        "oidc": ("authlib", "joserfc", "requests"),
        "postgres": ("psycopg",),
        "hospital": ("highdicom", "reportlab", "pynetdicom", "dicomweb_client", "requests"),
    }
)
"""Extra, as pyproject.toml has it -> the modules that its packages bring, in the same order."""


def missing(extra: str) -> tuple[str, ...]:
    """The modules of an extra that are not installed."""
    return tuple(name for name in EXTRAS[extra] if find_spec(name) is None)


def install_line(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install 'radweave[{extra}]'"


def not_installed(extra: str, what: str) -> str:
    """The sentence for something that cannot be had without an extra; an empty one where all of it is installed."""
    modules = missing(extra)
    return f"{what} needs {modules[0]}, which is not installed: {install_line(extra)}" if modules else ""


def refuse_without(extra: str, what: str, *, field: str | None = None, got: object = None) -> None:
    """Refuse what needs an extra, before anything else is done.

    Args:
        extra: its name.
        what: needs it, as the sentence begins.
        field: the option that asked for it.
        got: its value.

    Raises:
        InputError: naming the first package that is not installed, and the line that installs all.
    """
    sentence = not_installed(extra, what)
    if sentence:
        raise InputError(sentence, field=field, got=got)
