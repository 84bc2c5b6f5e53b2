"""The errors that PARSE raises: each says what was wrong, with the value, and what to do."""

from __future__ import annotations


class ParseError(Exception):
    """Base class of every error raised by ``parse_engine`` and ``parse_integrations``.

    Parameters
    ----------
    problem : str
        What was wrong, with the offending value.
    hint : str
        What the caller can do about it.
    """

    def __init__(self, problem: str, hint: str) -> None:
        self.problem = problem
        self.hint = hint
        super().__init__(f"{problem} {hint}")

    def __reduce__(self) -> tuple[type[ParseError], tuple[str, str]]:
        return type(self), (self.problem, self.hint)


class InvalidRequestError(ParseError, ValueError):
    """An argument of a call or a setting has a wrong type or value; no model was run."""


class ContextOverflowError(InvalidRequestError):
    """The prompt leaves no room for an answer in the target's context window."""


class CalibrationError(InvalidRequestError):
    """A calibration is damaged or made for something else, or the data cannot support its bound."""


class ModelNotFoundError(ParseError, OSError):
    """A model could not be found or downloaded."""


class UnsupportedModelError(ParseError):
    """A model was recognized as one that cannot be served correctly; the message says why."""


class VerificationError(ParseError):
    """The target's verdicts were not finite numbers, so nothing can be accepted by them."""


class DemoDownloadError(ParseError, OSError):
    """The demo pair could not be fetched or does not match its published checksum."""


class CallCancelledError(ParseError):
    """The caller went away: the models stop and the engine stays usable."""

    def __init__(
        self,
        problem: str = "The call was cancelled before it finished.",
        hint: str = "Call again to get an answer.",
    ) -> None:
        super().__init__(problem, hint)


class CallTimeoutError(ParseError, TimeoutError):
    """The answer was not finished in time; the models stop."""


class BoundWarning(UserWarning):
    """A draft was accepted that the calibration promises nothing about."""


class FallbackWarning(UserWarning):
    """A call was answered by the target alone although speculation was asked for."""
