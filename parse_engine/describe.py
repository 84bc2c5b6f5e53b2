"""What a model can do as a target, and why not more."""

from __future__ import annotations

from dataclasses import dataclass

from parse_engine.backends.check import find_ability
from parse_engine.backends.model import Model
from parse_engine.config import ParseConfig
from parse_engine.errors import UnsupportedModelError


@dataclass(frozen=True)
class Description:
    """A model in the role of the target, after the check that every load makes.

    Parameters
    ----------
    name, kind : str
        The model, and its type in transformers.
    context_window : int
        Positions that it was made for.
    path : {"packed", "fan_out"} or None
        How it judges; None where it cannot.
    layouts : tuple of str
        Judge layouts that are right for it, the better one first.
    labels : tuple of (str, str) or None
        The words whose probabilities the verdict compares.
    suffix_tokens, brief_tokens : int
        S, what each prefix costs; and B, paid once at load, 0 without one.
    why : str
        Why not in the best way (packed, with a brief), or not at all; empty where it is.
    """

    name: str
    kind: str
    context_window: int
    path: str | None
    layouts: tuple[str, ...]
    labels: tuple[str, str] | None
    suffix_tokens: int
    brief_tokens: int
    why: str


def describe(model: Model) -> Description:
    """Find out what a loaded model can do as a target.

    Parameters
    ----------
    model : Model
        The model.

    Returns
    -------
    Description
        Also for a model that cannot judge.
    """
    kind = model.network.config.model_type
    found = find_ability(model, ParseConfig())
    if isinstance(found, UnsupportedModelError):
        why = f"{found.problem} {found.hint}"
        return Description(model.name, kind, model.context_window, None, (), None, 0, 0, why)
    labels = found.judge.labels
    return Description(
        name=model.name,
        kind=kind,
        context_window=model.context_window,
        path=found.plan.path,
        layouts=("brief", "quote") if found.brief is not None else ("quote",),
        labels=(labels.right, labels.wrong),
        suffix_tokens=len(found.judge.suffix_ids),
        brief_tokens=found.brief.length if found.brief is not None else 0,
        why=found.plan.why,
    )
