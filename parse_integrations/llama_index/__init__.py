"""PARSE as a LlamaIndex LLM, with an event that says what was accepted."""

from __future__ import annotations

try:
    import llama_index.core  # noqa: F401 - only to say what to install
except ImportError as error:
    raise ImportError(
        "parse_integrations.llama_index needs llama-index-core: "
        "pip install 'parse-llm[llama-index]'"
    ) from error

from parse_engine import CallTimeoutError
from parse_integrations.errors import AnswerError
from parse_integrations.llama_index.events import ParseVerificationEvent
from parse_integrations.llama_index.llm import ParseLLM
from parse_integrations.llama_index.settings import ParseMetadata
from parse_integrations.tool_formats import ToolFormat

__all__ = [
    "AnswerError",
    "CallTimeoutError",
    "ParseLLM",
    "ParseMetadata",
    "ParseVerificationEvent",
    "ToolFormat",
]
