"""Downloads from the Hugging Face hub, each once, and what its cache knows without a connection.

The cache is the hub's own, so other programs share it: `snapshots/<commit>/<file>` links to
`blobs/<hash>`, whose name is the SHA-256 of a large file, and `refs/<branch>` has the commit that
the first download found.
"""

import contextlib
import hashlib
import logging
import pathlib
import re
import sys
from collections.abc import Iterator

from cls_jax.errors import UserError
from cls_jax.extras import check_extra
from cls_jax.io import describe_error, open_regular
from cls_jax.models.weights.backbones import BACKBONES, HUB, Download

WEIGHTS_FILE = "model.safetensors"
CARD = "README.md"
_SHA256 = re.compile("[0-9a-f]{64}")
_COMMIT = re.compile("[0-9a-f]{40}")
# The value "other" comes with a name.
_LICENSE = re.compile(r"^(license(?:_name)?):[ \t]*([\w.+-]+)", re.MULTILINE)
_MAX_CARD = 2**16  # Characters of a model card, whose metadata comes first.


def get_download(repository: str) -> Download:
    """Which file of a repository is meant. The branch main of those outside of the table."""
    row = BACKBONES.get(f"{HUB}{repository}")
    return row.origin if row and isinstance(row.origin, Download) else Download("main")


def find_cached(repository: str, name: str) -> pathlib.Path | None:
    """A file of a repository in the local cache, or None. Needs the extra, and no connection."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(repository, name, revision=get_download(repository).revision)
    except HFValidationError:  # No name of a repository.
        return None
    return pathlib.Path(found) if isinstance(found, str) else None


def find_commit(repository: str) -> str:
    """The commit of the weights in the cache, or "" without any."""
    path = find_cached(repository, WEIGHTS_FILE)
    commit = path.parent.name if path else ""
    return commit if _COMMIT.fullmatch(commit) else ""


def read_license(repository: str) -> str:
    """The license that the model card in the cache states, or "" if it is not known."""
    path = find_cached(repository, CARD)
    if path is None:
        return ""
    try:
        with open_regular(path) as file:
            card = file.read(_MAX_CARD).decode("utf-8", errors="replace")
    except OSError:
        return ""
    metadata = re.match(r"---\r?\n(.*?)\n---", card, re.DOTALL)
    entries = dict(_LICENSE.findall(metadata[1])) if metadata else {}
    return str(entries.get("license_name") or entries.get("license") or "")


def fetch_weights(repository: str) -> pathlib.Path:
    """The weights of a repository, from the cache or else downloaded with a progress bar.

    Files that say more come with them, where the repository has them. Raises a UserError if they
    can be had neither way, or differ from what the hub has.
    """
    check_extra("pretrained", f"{HUB}{repository:.100}")
    path = find_cached(repository, WEIGHTS_FILE)
    if path is None:
        from huggingface_hub import constants

        source = constants.ENDPOINT
        print(f"Downloading {HUB}{repository:.100} from {source}…", file=sys.stderr, flush=True)
        for name in ("config.json", CARD):
            _download(repository, name, is_optional=True)
        path = _download(repository, WEIGHTS_FILE)
    assert path is not None, "not optional"
    _verify(repository, path)
    return path


def _download(repository: str, name: str, is_optional: bool = False) -> pathlib.Path | None:
    """A downloaded file, or None if it is optional and the repository does not have it."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import RemoteEntryNotFoundError

    try:
        with _without_warnings():
            return pathlib.Path(
                hf_hub_download(repository, name, revision=get_download(repository).revision)
            )
    except Exception as error:  # The library and its network layers raise their own types.
        if is_optional and isinstance(error, RemoteEntryNotFoundError):
            return None
        raise UserError(_explain(repository, name, error)) from error


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Keeps the library from reporting each attempt to connect: one sentence follows the last."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _explain(repository: str, name: str, error: Exception) -> str:
    """Why a download failed, and what helps."""
    from huggingface_hub import constants, errors

    shown, page = f"{HUB}{repository:.100}", f"{constants.ENDPOINT}/{repository:.100}"
    revision = get_download(repository).revision
    folder = f"models--{repository.replace('/', '--'):.100}"
    other = f"copy the folder {folder} from another machine's cache to {constants.HF_HUB_CACHE}"
    # Subclasses come before their bases.
    if isinstance(error, errors.GatedRepoError):
        return (
            f"{shown} is only for those who have accepted its terms: accept them at {page}, then "
            "log in with hf auth login."
        )
    if isinstance(error, errors.RepositoryNotFoundError | errors.HFValidationError):
        return (
            f"The Hugging Face hub has no public repository {repository:.100}: check the name, or "
            "log in with hf auth login if it is private."
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{page} no longer has the commit {revision}: choose other weights."
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return (
            f"{page} has no {name}: choose a repository that has it, or download another file, "
            "and see cls-jax help pretrained."
        )
    if constants.HF_HUB_OFFLINE:
        return (
            f"{shown} has not been downloaded, and HF_HUB_OFFLINE forbids it: remove this variable "
            f"for the first use, or {other}."
        )
    if isinstance(error, errors.LocalEntryNotFoundError):
        return (
            f"{shown} has not been downloaded, and {constants.ENDPOINT} cannot be reached: connect "
            f"for the first use, or {other}."
        )
    return (
        f"Downloading {name} of {shown} failed ({describe_error(error)}): run the command again, "
        f"or {other}."
    )


def _verify(repository: str, path: pathlib.Path) -> None:
    """Raises a UserError if a file is not the one that the table, or the hub's entry, says it is.

    A cache without links, as on some Windows machines, has no such entry.
    """
    blob = path.resolve()
    entry = blob.name if _SHA256.fullmatch(blob.name) else ""
    expected = get_download(repository).sha256 or entry
    if not expected:
        return
    with open_regular(blob) as file:
        digest = hashlib.sha256()
        while block := file.read(2**20):
            digest.update(block)
    if digest.hexdigest() != expected:
        raise UserError(
            f"{blob} is damaged (its SHA-256 differs from the hub's): delete it and run the "
            "command again, which downloads it again."
        )
