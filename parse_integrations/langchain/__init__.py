"""PARSE as a LangChain chat model, with callbacks that say what was accepted."""

from __future__ import annotations

try:
    import langchain_core  # noqa: F401 - only to say what to install
except ImportError as error:
    raise ImportError(
        "parse_integrations.langchain needs langchain-core: pip install 'parse-llm[langchain]'"
    ) from error

from parse_integrations.langchain.callbacks import (
    ParseStatsCallbackHandler,
    ParseTotals,
    get_parse_stats_callback,
)
from parse_integrations.langchain.chat import ChatParse
from parse_integrations.tool_formats import ToolFormat

__all__ = [
    "ChatParse",
    "ParseStatsCallbackHandler",
    "ParseTotals",
    "ToolFormat",
    "get_parse_stats_callback",
]
