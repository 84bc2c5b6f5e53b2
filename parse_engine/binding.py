"""Whether two models can give a verdict, and whether a calibration holds for them."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from parse_engine.backends.model import Model
from parse_engine.calibration import Binding, read_calibration
from parse_engine.config import ParseConfig
from parse_engine.errors import CalibrationError, InvalidRequestError
from parse_engine.labels import brief_for
from parse_engine.request import Sampling
from parse_engine.verify import Ability

FORBIDDEN = "The bound holds only for what it was measured on: calibrate again, or leave it out."


def bind(
    target: Model, draft: Model | None, able: Ability, config: ParseConfig, *, asks_judge: bool
) -> Binding:
    """Describe what verdicts depend on.

    Parameters
    ----------
    target, draft : Model
        The models; without a draft model its part is empty.
    able : Ability
        How the target judges.
    config : ParseConfig
        Layout and wording.
    asks_judge : bool
        Whether the verdict needs the judge; otherwise layout and wording do not count.
    """
    labels = able.judge.labels
    words = (labels.right, labels.wrong)
    wording = repr((words, labels.question, brief_for(words, config)))
    return Binding(
        target=target.name,
        draft=draft.name if draft else "",
        target_fingerprint=target.fingerprint,
        draft_fingerprint=draft.fingerprint if draft else "",
        backend=f"transformers on {target.network.device.type}",
        dtype=str(target.network.dtype).removeprefix("torch."),
        layout=able.layout(config.judge_layout) if asks_judge else None,
        wording=hashlib.sha256(wording.encode()).hexdigest()[:16] if asks_judge else None,
    )


def fit_verdict(config: ParseConfig, same_tokenizer: bool) -> ParseConfig:
    """Return the settings with a verdict that two models can give, where none was asked for."""
    unset = config.verdict is None and config.calibration is None
    if unset and config.acceptance.compares and not same_tokenizer:
        return replace(config, verdict="joint_prob")
    return config


def check_acceptance(
    config: ParseConfig, target: Model, draft: Model | None, able: Ability, same_tokenizer: bool
) -> None:
    """Refuse a verdict that these models cannot give, or a calibration that is not theirs.

    Raises
    ------
    InvalidRequestError, CalibrationError
        With what differs.
    """
    if config.acceptance.compares and not same_tokenizer:
        why = "there is no draft model" if draft is None else f"{draft.name} splits text otherwise"
        raise InvalidRequestError(
            f"The verdict {config.acceptance.kind} compares what {target.name} and the draft model "
            f"think of each token, but {why}.",
            'Choose verdict="joint_prob", which takes the target only, or a draft model with the '
            "target's tokenizer.",
        )
    check_calibration(config, target, draft, able)


def outside_bound(
    config: ParseConfig, tokens: int, sampling: Sampling, *, complete: bool
) -> str | None:
    """Say why the bound of a calibration does not hold for a draft; None where it does.

    Parameters
    ----------
    config : ParseConfig
        Its ``calibration`` counts; without one there is no bound to be outside of.
    tokens : int
        Length of the draft.
    sampling : Sampling
        How it was written.
    complete : bool
        Whether it came to an end, or was cut off by a limit.
    """
    if config.calibration is None:
        return None
    bound = read_calibration(config.calibration).bound
    if tokens > bound.max_new_tokens:
        return (
            f"the draft has {tokens} tokens, and the calibration is of drafts with at most "
            f"{bound.max_new_tokens}"
        )
    if not complete:
        return "a limit cut the draft off, and the calibration is of drafts that came to an end"
    tested = [one.temperature for one in bound.tested]
    if sampling.temperature not in tested:
        listed = " and ".join(f"{one:g}" for one in tested)
        return f"the temperature is {sampling.temperature:g}, and the calibration is of {listed}"
    for name in ("top_p", "top_k", "min_p") if sampling.temperature else ():
        here, there = getattr(sampling, name), getattr(bound, name)
        if here != there:
            return f"{name} is {here:g}, and the calibration is of {there:g}"
    return None


def check_calibration(
    config: ParseConfig, target: Model, draft: Model | None, able: Ability
) -> None:
    """Refuse a calibration that was made for something else; all is well without one.

    Raises
    ------
    CalibrationError
        With what differs.
    """
    if config.calibration is None:
        return
    made = read_calibration(config.calibration).binding
    here = bind(target, draft, able, config, asks_judge=config.acceptance.asks_judge)
    # name of what differs, then the two values that say so, then what the caller is shown
    settings = (
        'Set judge_layout="quote".' if made.layout == "quote" else "Leave judge_layout unset."
    )
    words = "Set labels, brief and question as they were for calibrate."
    facts = [
        ("backend", made.backend, here.backend, made.backend, here.backend, FORBIDDEN),
        ("dtype", made.dtype, here.dtype, made.dtype, here.dtype, FORBIDDEN),
        ("judge layout", made.layout, here.layout, made.layout, here.layout, settings),
        ("judge's wording", made.wording, here.wording, "another", "this one", words),
        (
            *("target", made.target_fingerprint, here.target_fingerprint),
            *(made.target, here.target, FORBIDDEN),
        ),
    ]
    if draft is not None:
        prints = made.draft_fingerprint, here.draft_fingerprint
        facts.append(("draft model", *prints, made.draft, here.draft, FORBIDDEN))
    for name, theirs, ours, shown_theirs, shown_ours, hint in facts:
        if theirs != ours:
            same = (
                " (of this name, but with other weights, dtype, tokenizer or chat template)"
                if shown_theirs == shown_ours
                else ""
            )
            raise CalibrationError(
                f"The calibration was made for another {name}: {shown_theirs}{same}, "
                f"not {shown_ours}.",
                hint,
            )
