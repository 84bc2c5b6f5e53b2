"""Engines that are loaded, one for each pair of models and way of loading them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from parse_engine import ParseConfig

if TYPE_CHECKING:
    from parse_engine import Engine

# Of the process and not of a chat model: so chat models can be copied, compared and pickled, and
# copies with other settings share what is loaded.
_engines: dict[str, Engine] = {}
_windows: dict[str, int] = {}  # context windows that were read without loading
_lock = threading.Lock()


def loaded(
    model: str, draft_model: str | None, loading: Mapping[str, Any], wording: Mapping[str, Any]
) -> Engine:
    """Return the engine of two models, loading them where they are not loaded.

    Parameters
    ----------
    model, draft_model : str
        Hub id, local folder or ``.gguf`` file.
    loading : mapping
        Loading settings of both, as ``Engine.from_pretrained`` takes them.
    wording : mapping
        The fields of ParseConfig that cannot be given to a single call.
    """
    from parse_engine import Engine

    key = _key(model, draft_model, loading, wording)
    with _lock:
        if key not in _engines:
            # Mode target: a target that cannot judge is refused when it is asked to, not before.
            config = ParseConfig(**wording, mode="target")
            _engines[key] = Engine.from_pretrained(
                target=model, draft=draft_model, config=config, **loading
            )
        return _engines[key]


def release(
    model: str, draft_model: str | None, loading: Mapping[str, Any], wording: Mapping[str, Any]
) -> None:
    """Forget an engine; its memory is free once no call uses it. Takes what ``loaded`` takes."""
    with _lock:
        _engines.pop(_key(model, draft_model, loading, wording), None)


def _key(model: str, draft_model: str | None, *settings: Mapping[str, Any]) -> str:
    named = [
        (name, str(value.to_dict() if hasattr(value, "to_dict") else value))
        for given in settings
        for name, value in sorted(given.items())
    ]
    return repr((model, draft_model, named))


def context_window(
    model: str, draft_model: str | None, loading: Mapping[str, Any], wording: Mapping[str, Any]
) -> int:
    """Return how many positions the target has, without loading it. Takes what ``loaded`` takes."""
    key = _key(model, draft_model, loading, wording)
    if key in _engines:
        return _engines[key].target.context_window
    if key not in _windows:
        from parse_engine.backends.loading import read_context_window, sources

        _windows[key] = read_context_window(sources(model, draft_model, cast(Any, loading))[0])
    return _windows[key]


def known_window(
    model: str, draft_model: str | None, loading: Mapping[str, Any], wording: Mapping[str, Any]
) -> int | None:
    """Return the same where it is known, and None where something would have to be read."""
    key = _key(model, draft_model, loading, wording)
    engine = _engines.get(key)
    return engine.target.context_window if engine else _windows.get(key)
