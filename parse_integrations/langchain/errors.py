"""Errors of PARSE that are of LangChain's family too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from langchain_core import exceptions as langchain

from parse_engine import errors as parse


class ChatInvalidRequestError(parse.InvalidRequestError, langchain.ModelInvalidRequestError):
    """A message, tool or setting is wrong; no model was run."""


class ChatContextOverflowError(parse.ContextOverflowError, langchain.ContextOverflowError):
    """The conversation leaves no room for an answer in the context of the model."""


class ChatCalibrationError(parse.CalibrationError, langchain.ModelInvalidRequestError):
    """A calibration cannot be read, or is of something else."""


class ChatModelNotFoundError(parse.ModelNotFoundError, langchain.ModelNotFoundError):
    """A model could not be found or downloaded."""


class ChatUnsupportedModelError(parse.UnsupportedModelError, langchain.ModelInvalidRequestError):
    """A model that cannot be served correctly; the message says why."""


class ChatTimeoutError(parse.CallTimeoutError, langchain.ModelTimeoutError):
    """The answer was not finished in time; the models were stopped."""


FAMILY: dict[type[parse.ParseError], type[parse.ParseError]] = {
    parse.InvalidRequestError: ChatInvalidRequestError,
    parse.ContextOverflowError: ChatContextOverflowError,
    parse.CalibrationError: ChatCalibrationError,
    parse.ModelNotFoundError: ChatModelNotFoundError,
    parse.UnsupportedModelError: ChatUnsupportedModelError,
    parse.CallTimeoutError: ChatTimeoutError,
}


@contextmanager
def langchain_errors() -> Iterator[None]:
    """Raise errors of PARSE as what LangChain's retries and fallbacks look for.

    Yields
    ------
    None
    """
    try:
        yield
    except parse.ParseError as error:
        family = FAMILY.get(type(error))
        if family is None:
            raise
        raise family(error.problem, error.hint) from error
