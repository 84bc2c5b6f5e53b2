"""Where a model thinks and where it answers: the published marks, for transformers' parser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from transformers.utils.chat_parsing import ResponseParser

# How the two published formats mark what a model thinks, in the form of transformers' response
# parser. The white space around the marks belongs to the marks. The anchor says where in the
# prompt the answer begins: some templates open the thinking there.
THINK_REGIONS: dict[str, Any] = {
    "start_anchor_pattern": r"(?=<think>\s*\Z)",
    "fields": {
        "reasoning": {"open_pattern": r"\A\s*<think>\s*", "close_pattern": r"\s*</think>\s*"},
        "answer": {},
    },
}
HARMONY_REGIONS: dict[str, Any] = {
    "start_anchor_pattern": r"<\|start\|>assistant\Z",
    "fields": {
        "reasoning": {
            "open_pattern": r"(?:<\|start\|>assistant)?<\|channel\|>analysis<\|message\|>",
            "close": "<|end|>",
        },
        "final": {
            "open_pattern": r"(?:<\|start\|>assistant)?<\|channel\|>(?!analysis<)"
            r"[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>",
            "close": "<|end|>",
        },
        "answer": {},
    },
}
# Marks of tool calls: where they are special tokens they have a text all the same, for a call
# that lost its marks would be an answer.
CALL_MARKS = (
    *("<tool_call>", "</tool_call>", "<|python_tag|>"),
    *("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
)
HARMONY_MARKS = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>")


def regions_of(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any] | None:
    """Return how a model marks its thinking, read off its vocabulary; None if it does not think."""
    special = {token.content for token in tokenizer.added_tokens_decoder.values()}
    if {"<|channel|>", "<|message|>"} <= special:
        return HARMONY_REGIONS
    return THINK_REGIONS if "<think>" in special else None


def answer_parser(tokenizer: PreTrainedTokenizerBase, prompt_text: str) -> ResponseParser | None:
    """Return a parser that splits thinking from answer, in the state that the prompt left."""
    regions = regions_of(tokenizer)
    if regions is None:
        return None
    from transformers.utils.chat_parsing import ResponseParser

    return ResponseParser(regions, prefix="<think>" if opened_by(regions, prompt_text) else "")


def opened_by(regions: dict[str, Any] | None, prompt_text: str) -> bool:
    """Whether a prompt has opened the thinking of a model with these regions."""
    # only its end: what users and system say about the marks opens nothing
    return regions is THINK_REGIONS and prompt_text.rstrip().endswith("<think>")
