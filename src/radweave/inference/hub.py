"""Runs on the Hugging Face hub: ``radweave push RUN owner/name`` and ``radweave.load("owner/name")``.

A push is an export (``radweave.inference.export``), by default without data of single training studies and into a
private repository. A run is opened at one commit: its files are downloaded to a folder named by the commit, as the card
``run.json`` names them, and are checked by their hashes when the run is restored. Nothing of a repository runs as code.
"""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from radweave.core.errors import InputError
from radweave.core.storage import write_folder
from radweave.engine.run_folder import read_card_alone
from radweave.inference.export import TrainingContent, export, training_content

LOGGER: Final = logging.getLogger(__name__)
_NAME = re.compile(r"[\w][\w.-]{0,95}/[\w][\w.-]{0,95}", re.ASCII)
_COMMIT = re.compile("[0-9a-f]{40}")
_REVISION = re.compile(r"[\w][\w./-]{0,199}", re.ASCII)
SUFFIXES = frozenset({".safetensors", ".json", ".jsonl", ".yaml", ".md", ".txt", ".model", ".jinja"})
"""Kinds of files of a run: data, none of which runs. Licence files below ``licences/`` have any suffix."""
_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Pushed:
    """The commit of a push, and the training data in it."""

    name: str
    commit: str
    content: TrainingContent


def is_hub_name(text: str) -> bool:
    """True for ``owner/name``, with or without ``@revision``, that is no path of this machine."""
    name = text.partition("@")[0]
    return bool(_NAME.fullmatch(name)) and not Path(text).exists() and not Path(name).parent.exists()


def push(
    run: Path,
    name: str,
    *,
    bank: bool = False,
    public: bool = False,
    scores: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Pushed:
    """Upload an export of a run to the hub; files of an earlier push are replaced in the new commit.

    The hub's own log-in is used (``hf auth login`` or HF_TOKEN).

    Args:
        run: run folder, or an export.
        name: ``owner/name``.
        bank: also upload training reports and memories, as ``radweave export`` does.
        public: create a public repository, or push to one.
        scores: ``evaluation.json`` of the test predictions, for the model card.
        say: gets progress in one line each.

    Raises:
        InputError: if the run cannot be exported, the repository is public without ``public``, or the hub refuses.
    """
    if not _NAME.fullmatch(name):
        raise InputError("not the name of a repository", field="NAME", got=name, expected="owner/name")
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory(prefix="radweave-push-") as temporary:
        folder = export(run, Path(temporary) / "export", bank=bank, scores=scores)
        content = training_content(folder)
        _refuse_code(folder)
        api = HfApi()
        with _named_errors(name):
            api.create_repo(name, private=not public, exist_ok=True)
            is_private = api.model_info(name, timeout=_TIMEOUT_S).private
        if not is_private and not public:
            raise InputError("the repository is public; --public pushes to it", field="NAME", got=name)
        say(f"uploading {sum(path.stat().st_size for path in folder.rglob('*') if path.is_file()) / 1e6:.1f} MB")
        method = read_card_alone(folder).method
        with _named_errors(name):
            commit = api.upload_folder(
                repo_id=name,
                folder_path=folder,
                commit_message=f"Radweave run of {method}",
                delete_patterns="*",  # a memory of an earlier push does not stay
            )
    return Pushed(name, str(commit.oid), content)


def _refuse_code(folder: Path) -> None:
    """Refuse a file that is no data, or that the card does not name."""
    files = {*read_card_alone(folder).files, "run.json"}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and not path.is_symlink():
            continue
        is_data = PurePosixPath(name).suffix in SUFFIXES or name.startswith("licences/")
        if name not in files or path.is_symlink() or not is_data:
            raise InputError("is no file of a run; nothing was uploaded", file=path.name)


def fetch_run(text: str, *, revision: str | None = None) -> Path:
    """The local folder of a run on the hub, at one commit; downloaded at the first call.

    Args:
        text: ``owner/name`` or ``owner/name@revision``.
        revision: commit, branch or tag. A commit that is here already needs no network. Without, the newest commit,
            which is logged.

    Raises:
        InputError: if the hub does not give it, or it is no run.
    """
    name, at, stated = text.partition("@")
    if at and revision is not None and stated != revision:
        raise InputError("two revisions", field="revision", got=f"{stated} and {revision}", expected="one")
    wanted = stated if at else revision
    if wanted is not None and not _REVISION.fullmatch(wanted):
        raise InputError("not a revision", field="revision", got=wanted, expected="a commit, branch or tag")
    from huggingface_hub import HfApi, constants

    place = Path(constants.HF_HOME) / "radweave" / name.replace("/", "--")
    api = HfApi()
    if wanted is not None and _COMMIT.fullmatch(wanted):
        commit = wanted
    else:
        with _named_errors(name):
            commit = str(api.model_info(name, revision=wanted, timeout=_TIMEOUT_S).sha)
        if not _COMMIT.fullmatch(commit):
            raise InputError("the hub names no commit", field="run", got=name)
        LOGGER.warning("%s is at commit %s; revision=%r opens the same weights again", name, commit, commit)
    folder = place / commit
    if not (folder / "run.json").is_file():
        with write_folder(folder, overwrite=True) as partial:
            _download(name, commit, partial)
    return folder


def _download(name: str, commit: str, folder: Path) -> None:
    """Download the card, then the files that it names."""
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as temporary:

        def get(file: str) -> None:
            with _named_errors(name):
                path = Path(
                    HfApi().hf_hub_download(name, file, revision=commit, local_dir=temporary, etag_timeout=_TIMEOUT_S)
                )
            target = folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)

        get("run.json")
        for file in read_card_alone(folder).files:
            get(file)


@contextmanager
def _named_errors(name: str) -> Iterator[None]:
    """Turn any error of the network client into one line; its messages name hosts, and may hold requests."""
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalTokenNotFoundError, RepositoryNotFoundError

    try:
        yield
    except InputError:
        raise
    except GatedRepoError:
        reason, expected = "the hub gives it only to those who accepted its terms", "its terms accepted on its page"
    except (RepositoryNotFoundError, LocalTokenNotFoundError):
        reason, expected = "the hub has no such repository for this log-in", "'hf auth login', and a name that exists"
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "none"
        reason, expected = f"the hub refused (HTTP status {status})", "a log-in that may do this, by 'hf auth login'"
    except Exception as error:  # the client's own types, which change between its versions
        reason, expected = f"the hub cannot be reached ({type(error).__name__})", "a network, or a commit that is here"
    else:
        return
    raise InputError(reason, field="repository", got=name, expected=expected)
