"""Optional packages by extra, and the command that installs them."""

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
"""Extra of pyproject.toml -> modules of its packages, in the same order."""


def missing(extra: str) -> tuple[str, ...]:
    """Modules of an extra that are not installed."""
    return tuple(name for name in EXTRAS[extra] if find_spec(name) is None)


def install_line(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install 'radweave[{extra}]'"


def not_installed(extra: str, what: str) -> str:
    """A sentence that names the missing package and how to install it; empty if the extra is installed."""
    modules = missing(extra)
    return f"{what} needs {modules[0]}, which is not installed: {install_line(extra)}" if modules else ""


def refuse_without(extra: str, what: str, *, field: str | None = None, got: object = None) -> None:
    """Refuse a feature without its extra.

    Args:
        extra: name of the extra.
        what: the feature, as the subject of the message.
        field: the option that requests it.
        got: the option's value.

    Raises:
        InputError: naming the first missing package and the command that installs the extra.
    """
    if sentence := not_installed(extra, what):
        raise InputError(sentence, field=field, got=got)
