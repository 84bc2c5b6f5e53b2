"""The small values that pass between the stages, and what a call returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from parse_engine.config import VerdictKind
from parse_engine.stats import CallStats

Message = dict[str, Any]
FinishReason = Literal["stop", "length"]
Source = Literal["accepted", "regenerated", "draft"]
# Writes the tool calls of a draft as the target would, given the answer of the draft model and
# whether it came to its end.
RewriteCalls = Callable[[str, bool], str]


@dataclass(frozen=True)
class Cut:
    """Where a prefix ends.

    Parameters
    ----------
    tokens : int
        Number of draft tokens in the prefix, from 1 to T.
    chars : int
        Number of characters of the draft's text in the prefix.
    """

    tokens: int
    chars: int


@dataclass(frozen=True)
class Draft:
    """What the draft model wrote, in the target's tokens.

    Parameters
    ----------
    ids : tuple of int
        T token ids of the target's tokenizer, without end-of-turn token.
    text : str
        The same as text.
    char_ends : tuple of (int or None)
        For each token the number of characters of ``text`` up to its end; None inside a character.
    complete : bool
        Whether the draft model ended by itself (or at a stop string), not at its token limit.
    logprobs : tuple of float, optional
        What the draft model gave each token, in nats, before temperature and the like. None where
        that is not known.
    stopped : bool
        Whether it ends at a stop string.
    """

    ids: tuple[int, ...]
    text: str
    char_ends: tuple[int | None, ...]
    complete: bool
    logprobs: tuple[float, ...] | None = None
    stopped: bool = False


@dataclass(frozen=True)
class DraftForm:
    """How the draft model is asked, where its family wants it otherwise than the target's.

    Parameters
    ----------
    messages : sequence of dict
        The same conversation, as the draft model's chat template takes it.
    tools : sequence of dict
        The tools that this template writes into the prompt.
    rewrite : callable, optional
        Takes the draft's answer and whether it came to its end; returns it with its tool calls as
        the target writes them.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    rewrite: RewriteCalls | None = None


@dataclass(frozen=True)
class Verdicts:
    """What the target thinks of each judged prefix of a draft, shortest prefix first.

    Parameters
    ----------
    ends : tuple of int
        Character offset into the draft at which each prefix ends.
    token_ends : tuple of int
        The same as token offset.
    p_correct : tuple of float, optional
        P(right label) / (P(right label) + P(wrong label)) after each prefix, in 0..1. None where
        the verdict needs no such question.
    mean_logprob, min_logprob, max_gap : tuple of float, optional
        The target's own view of the drafted tokens of each prefix, in nats: mean and minimum
        log-probability, and the largest distance from a drafted token to the target's best token.
        In layout ``quote`` as read in the judge's conversation. None where signals are switched
        off.
    accept_logprob : tuple of float, optional
        Log-probability, in nats, that token by token speculative sampling (arXiv 2211.17192) would
        keep the whole prefix: the sum over its tokens of log min(1, P(token | target) / P(token |
        draft model)). None likewise, and where the draft model's view is not known.
    labels : tuple of (str, str)
        The words whose probabilities are compared.
    verdict : tuple of float
        What the threshold is compared with, in 0..1.
    kind : {"p_correct", "accept_prob", "joint_prob", "min_prob", "mean_prob", "min_ratio", \
"calibrated"}
        Which number that is: see ``verdict`` in ParseConfig.
    """

    ends: tuple[int, ...]
    token_ends: tuple[int, ...]
    p_correct: tuple[float, ...] | None
    mean_logprob: tuple[float, ...] | None
    min_logprob: tuple[float, ...] | None
    max_gap: tuple[float, ...] | None
    accept_logprob: tuple[float, ...] | None
    labels: tuple[str, str]
    verdict: tuple[float, ...]
    kind: VerdictKind


@dataclass(frozen=True)
class Usage:
    """Tokens of one call, counted by the target's tokenizer."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class DraftProgress:
    """The draft model has written so many tokens. The text stays inside until it is verified."""

    tokens: int


@dataclass(frozen=True)
class Verified:
    """The target has judged the draft.

    Parameters
    ----------
    verdicts : Verdicts
        One verdict a prefix.
    accepted_tokens : int
        t*, the number of draft tokens that stay.
    drafted_tokens : int
        T, the length of the draft in the target's tokens.
    """

    verdicts: Verdicts
    accepted_tokens: int
    drafted_tokens: int


@dataclass(frozen=True)
class TextDelta:
    """A piece of the answer, never half a character.

    Parameters
    ----------
    text : str
        The new characters.
    source : {"accepted", "regenerated", "draft"}
        Verified draft text, text written by the target, or, in mode ``draft`` only, the draft.
    reasoning : bool
        Whether the piece belongs to the model's thinking and not to its answer.
    """

    text: str
    source: Source
    reasoning: bool = False


@dataclass(frozen=True)
class Generation:
    """The answer of one call.

    Parameters
    ----------
    text : str
        The answer, without reasoning and special tokens.
    reasoning : str
        What the model thought before it answered; empty for models that do not think aloud.
    finish_reason : {"stop", "length"}
        Whether the answer ended by itself (or at a stop string) or at ``max_new_tokens``.
    usage : Usage
        Token counts.
    stats : CallStats
        What PARSE did.
    verdicts : Verdicts or None
        One verdict a judged prefix; None where nothing was judged.
    token_ids : tuple of int
        The answer's token ids, reasoning included, end-of-turn token left out.
    draft_text, accepted_text, regenerated_text : str
        The whole draft, the part of it that stayed, and what the target wrote after it, as the
        models wrote them, reasoning included. Rejected draft text never is answer text. In mode
        ``draft`` the answer is the draft.
    """

    text: str
    reasoning: str
    finish_reason: FinishReason
    usage: Usage
    stats: CallStats
    verdicts: Verdicts | None
    token_ids: tuple[int, ...] = field(repr=False)
    draft_text: str = field(repr=False)
    accepted_text: str = field(repr=False)
    regenerated_text: str = field(repr=False)

    def _repr_html_(self) -> str:
        """Show in a notebook what was kept, rejected and rewritten."""
        from parse_engine.view import generation_html

        return generation_html(self)


Event = DraftProgress | Verified | TextDelta | Generation
