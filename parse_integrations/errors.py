"""Errors of the adapters, beside those of the engine."""

from __future__ import annotations

from parse_engine import ParseError


class AnswerError(ParseError, ValueError):
    """The answer is not what was asked for: no object of the schema, or no tool call."""
