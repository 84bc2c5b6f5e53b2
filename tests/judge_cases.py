"""What the judge must be asked on each chat template, and ways to ask for it."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

from parse_engine.config import ParseConfig
from parse_engine.judge import Judge, QuotePrompt, choose_labels, make_judge, make_quote
from parse_engine.labels import brief_for
from tests.tiny_tokenizers import chat_tokenizer

QUESTION = "Correct so far?"
WORDS = ("Correct", "Incorrect")
BRIEF = brief_for(WORDS, ParseConfig())
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "You are terse."},
    {
        "role": "user",
        "content": [{"type": "text", "text": "Weather "}, {"type": "text", "text": "in Genève?"}],
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Genève"}}}],
    },
    {"role": "tool", "content": "18 °C"},
    {"role": "user", "content": "Thanks. And the time?"},
]
CHATML_END = "<|im_end|>\n<|im_start|>user\nCorrect so far?<|im_end|>\n<|im_start|>assistant\n"
GEMMA_END = (
    "<end_of_turn>\n<start_of_turn>user\nCorrect so far?<end_of_turn>\n<start_of_turn>model\n"
)
NO_THOUGHT = "<think>\n\n</think>\n\n"
# Family -> the suffix, what stands before the brief, what stands after it, hidden ids.
EXPECTED = {
    "chatml": (CHATML_END, "<|im_start|>system\n", "<|im_end|>\n", 0),
    "smollm2": (CHATML_END, "<|im_start|>system\n", "<|im_end|>\n", 0),
    "qwen2.5": (CHATML_END, "<|im_start|>system\n", "<|im_end|>\n", 0),
    "qwen3": (CHATML_END + NO_THOUGHT, "<|im_start|>system\n", "<|im_end|>\n", 0),
    "qwen3_thinking": (CHATML_END + NO_THOUGHT, "<|im_start|>system\n", "<|im_end|>\n", 0),
    "llama3": (
        "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nCorrect so far?"
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
        "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n",
        "<|eot_id|>",
        1,
    ),
    "llama2": (" </s>[INST] Correct so far? [/INST]", "<s>[INST] ", " [/INST]", 1),
    "mistral": ("</s>[INST] Correct so far?[/INST]", "<s>[INST] ", "[/INST]", 1),
    "mistral_v7": (
        "</s>[INST]Correct so far?[/INST]",
        "<s>[SYSTEM_PROMPT]",
        "[/SYSTEM_PROMPT]",
        1,
    ),
    "gemma2": (GEMMA_END, "<bos><start_of_turn>user\n", "<end_of_turn>\n", 1),
    "gemma3": (GEMMA_END, "<bos><start_of_turn>user\n", "<end_of_turn>\n", 1),
    "phi3": (
        "<|end|>\n<|user|>\nCorrect so far?<|end|>\n<|assistant|>\n",
        "<|system|>\n",
        "<|end|>\n",
        0,
    ),
    "phi4": (
        "<|im_end|><|im_start|>user<|im_sep|>Correct so far?<|im_end|>"
        "<|im_start|>assistant<|im_sep|>",
        "<|im_start|>system<|im_sep|>",
        "<|im_end|>",
        0,
    ),
    "gpt_oss": (
        "<|end|><|start|>user<|message|>Correct so far?<|end|>"
        "<|start|>assistant<|channel|>final<|message|>",
        "<|start|>developer<|message|># Instructions\n\n",
        "\n\n<|end|>",
        0,
    ),
    "deepseek": (
        "<|end|><|User|>Correct so far?<|Assistant|>" + NO_THOUGHT,
        "<|begin|>",
        "",
        1,
    ),
}
KWARGS = {"date_string": "26 Jul 2024"}  # read by llama3 alone


def judge_of(tokenizer: PreTrainedTokenizerBase, **settings: Any) -> Judge:
    return make_judge(tokenizer, ParseConfig(**settings), KWARGS)


def quote_of(
    tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]], **settings: Any
) -> QuotePrompt:
    config = ParseConfig(**settings)
    labels = choose_labels(tokenizer, config, KWARGS)
    return make_quote(tokenizer, labels, config, messages, KWARGS)


def with_template(template: str) -> PreTrainedTokenizerBase:
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = template
    return tokenizer
