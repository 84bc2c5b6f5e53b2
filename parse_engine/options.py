"""The options of a call, and which of them are settings of the algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, TypedDict

from parse_engine.config import (
    AcceptRule,
    CutRule,
    JudgeLayout,
    Mode,
    ParseConfig,
    VerdictRule,
    VerifyOrder,
)
from parse_engine.errors import InvalidRequestError
from parse_engine.request import LogitsProcessors
from parse_engine.types import DraftForm

if TYPE_CHECKING:
    from parse_engine.calibration import Calibration


class CallOptions(TypedDict, total=False):
    """What every call takes beside the messages; None is the same as unset.

    ``tools`` to ``stop`` say how to write and default to the target's generation config.
    ``prompt`` is the prompt as it stands, instead of what the chat template makes of the messages;
    for a draft model of another family there is ``draft_form``.
    ``logits_processors`` restricts what may be written, by draft and target alike: a function that
    gets a Model and the number of tokens before its answer, and returns new logits processors, each
    called with all token ids so far, accepted ones among them, and the scores of the next token.
    ``draft_form`` is the conversation as the draft model wants it, where the two models differ.
    ``timeout`` is in seconds: a call that takes longer raises CallTimeoutError.
    The others are fields of ParseConfig and hold for this call only.
    """

    tools: Sequence[Mapping[str, Any]] | None
    max_new_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    seed: int | None
    stop: str | Sequence[str] | None
    logits_processors: LogitsProcessors | None
    prompt: str | None
    draft_form: DraftForm | None
    timeout: float | None
    verdict: VerdictRule | None
    threshold: float | None
    accept_rule: AcceptRule | None
    cut_at: CutRule | int | None
    calibration: Calibration | Mapping[str, Any] | str | PathLike[str] | None
    max_prefixes: int | None
    judge_layout: JudgeLayout | None
    verify_order: VerifyOrder | None
    signals: bool | None
    max_draft_tokens: int | None
    mode: Mode | None


WRITING = (
    *("tools", "max_new_tokens", "temperature", "top_p", "top_k", "seed", "stop"),
    *("logits_processors", "prompt", "draft_form", "timeout"),
)
WORDING = ("labels", "brief", "question")


def split_options(
    config: ParseConfig, options: Mapping[str, Any]
) -> tuple[dict[str, Any], ParseConfig]:
    """Separate how to write from the settings of the algorithm.

    Returns
    -------
    (dict, ParseConfig)
        All writing options, None where unset; and the config with this call's settings.

    Raises
    ------
    InvalidRequestError
        If an option is unknown, or belongs to the engine and not to a call.
    """
    known = (*WRITING, *(field.name for field in fields(config) if field.name not in WORDING))
    for name in options:
        if name in WORDING:
            raise InvalidRequestError(
                f"{name} cannot change from call to call.",
                "Make another Engine with ParseConfig; engines share loaded models.",
            )
        if name not in known:
            raise InvalidRequestError(
                f"There is no option {name!r}.", f"The options are: {', '.join(known)}."
            )
    settings = {
        name: value for name, value in options.items() if name not in WRITING and value is not None
    }
    return {name: options.get(name) for name in WRITING}, replace(config, **settings)
