"""Finding a model on the hub or in its cache: the hub is asked once, and never for long."""

from __future__ import annotations

import logging
from pathlib import Path

from huggingface_hub import HfApi, constants, is_offline_mode, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RevisionResolutionError
from huggingface_hub.utils import httpx  # type: ignore[attr-defined]

from parse_engine.backends.source import WAYS_OUT
from parse_engine.errors import ModelNotFoundError

logger = logging.getLogger("parse_engine")


def find(
    repo: str, file: str, revision: str | None, *, local_files_only: bool
) -> tuple[str, str | None]:
    """Return what to load and its commit: the hub id, or a folder of the cache and no commit.

    Left alone, transformers asks an unreachable hub many times with growing pauses, and sends a
    model without safetensors to a conversion service. A commit is not asked about again, and for a
    folder there is no network call at all.

    Parameters
    ----------
    repo : str
        Hub id.
    file : str
        A file that the model cannot be without.
    revision : str, optional
        Branch, tag or commit.
    local_files_only : bool
        Make no network call.

    Raises
    ------
    ModelNotFoundError
        If neither the hub nor this machine has it.
    """
    api = HfApi()
    refusal: Exception | None = None
    try:
        if not (local_files_only or is_offline_mode()):
            try:
                # the only one of the two calls that takes a time limit
                api.model_info(repo, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
                return repo, api.resolve_revision(repo, revision=revision).resolved
            except (httpx.TransportError, HfHubHTTPError) as error:
                refusal = error
        commit = api.resolve_revision(repo, revision=revision, local_files_only=True).resolved
    except (RevisionResolutionError, HFValidationError) as error:
        raise _not_found(repo, revision, refusal, error) from refusal or error
    cached = try_to_load_from_cache(repo, file, revision=commit)
    if not isinstance(cached, str):
        raise _not_found(repo, revision, refusal) from refusal
    if refusal is not None:
        logger.warning("The hub did not give %s (%s): using its copy on disk.", repo, said(refusal))
    # the file may be in a folder of the model's folder
    return str(Path(cached).parents[file.count("/")]), None


def said(error: BaseException, limit: int = 300) -> str:
    """Return what an error says in one line that is not too long."""
    text = " ".join(str(error).split())
    shown = text if len(text) <= limit else text[:limit] + "..."
    return shown or type(error).__name__


def _not_found(
    repo: str, revision: str | None, refusal: Exception | None, error: Exception | None = None
) -> ModelNotFoundError:
    name = f"{repo} (revision {revision})" if revision else repo
    if isinstance(error, HFValidationError):
        problem = f"{name} is no file or folder, and no hub id: {said(error)}"
    elif refusal is None:
        problem = f"The model {name} is not on this machine, and the hub is not to be asked."
    elif isinstance(refusal, HfHubHTTPError):
        problem = f"The model {name} is not on this machine, and the hub says: {said(refusal)}"
    else:
        problem = (
            f"The model {name} is not on this machine, and the model hub could not be reached "
            f"({said(refusal)})."
        )
    login = isinstance(refusal, HfHubHTTPError) and refusal.response.status_code in (401, 403, 404)
    hint = "For a private or gated model log in with `hf auth login`. " if login else ""
    return ModelNotFoundError(problem, hint + WAYS_OUT)
