"""Tiny tokenizers with the chat templates and special tokens of real model families.

They are made in process and need no download. Every text is encoded and decoded exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

TEMPLATES = Path(__file__).parent / "chat_templates"
LABEL_WORDS = ("Correct", "Incorrect", "Yes", "No", "True", "False")
# A leading space is part of a word, as in byte-level vocabularies of real models.
# Words come in the order of their merges: " return" before "return", or "re" would be taken first.
COMMON_WORDS = (
    " return",
    *("user", "assistant", "system", "model", "developer", "final", "message"),
    *(" so", " far", " the", " is", " a", " of", " and", " to", " answer", " in", " that", " it"),
    *("The", "def", "return", "print", " for", " if", "\n\n", " =", " +"),
)


@dataclass(frozen=True)
class Family:
    """The special tokens of a family of models.

    ``eos`` ends the assistant's turn. ``adds_bos`` says that the tokenizer itself puts ``bos``
    before a text, whatever the template does. ``marks`` are added tokens that are not special, as
    the marks of thinking are.
    """

    specials: tuple[str, ...]
    eos: str
    bos: str | None = None
    adds_bos: bool = False
    marks: tuple[str, ...] = ()


CHATML = Family(("<|endoftext|>", "<|im_start|>", "<|im_end|>"), "<|im_end|>")
THINKING = replace(CHATML, marks=("<think>", "</think>"))
GEMMA = Family(
    ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"), "<end_of_turn>", "<bos>", True
)
FAMILIES = {
    "chatml": CHATML,
    "smollm2": Family(CHATML.specials, "<|im_end|>", bos="<|im_start|>"),
    "qwen2.5": CHATML,
    "qwen3": THINKING,
    "qwen3_thinking": THINKING,
    "llama3": Family(
        (
            *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>"),
            *("<|end_header_id|>", "<|eot_id|>"),
        ),
        "<|eot_id|>",
        "<|begin_of_text|>",
        True,
    ),
    "llama2": Family(("<s>", "</s>"), "</s>", "<s>", True),
    "mistral": Family(("<s>", "</s>", "[INST]", "[/INST]"), "</s>", "<s>", True),
    "mistral_v7": Family(
        ("<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
        "</s>",
        "<s>",
        True,
    ),
    "gemma2": GEMMA,
    "gemma3": GEMMA,
    "phi3": Family(
        ("<s>", "<|endoftext|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"),
        "<|end|>",
        "<s>",
    ),
    "phi4": Family(
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_sep|>"), "<|im_end|>", "<|endoftext|>"
    ),
    "gpt_oss": Family(
        (
            *("<|startoftext|>", "<|endoftext|>", "<|start|>", "<|end|>", "<|message|>"),
            *("<|channel|>", "<|return|>", "<|call|>", "<|constrain|>"),
        ),
        "<|return|>",
        "<|startoftext|>",
    ),
    "deepseek": Family(
        ("<|begin|>", "<|end|>", "<|User|>", "<|Assistant|>"),
        "<|end|>",
        "<|begin|>",
        True,
        marks=("<think>", "</think>"),
    ),
}


def chat_tokenizer(
    template: str = "chatml",
    *,
    words: Iterable[str] = (*LABEL_WORDS, *COMMON_WORDS),
    sentencepiece: bool = False,
) -> PreTrainedTokenizerFast:
    """Build a tokenizer with a few hundred tokens and the chat template of a family.

    Parameters
    ----------
    template : str
        A key of ``FAMILIES`` and the name of a file in ``chat_templates``.
    words : iterable of str
        Texts that are one token each; every other text falls apart into bytes or short pieces.
        Other words make another vocabulary, for tests with two different tokenizers.
    sentencepiece : bool
        Mark spaces as SentencePiece does ("▁word", byte fallback) and not byte by byte (GPT-2).

    Returns
    -------
    PreTrainedTokenizerFast
        With ``chat_template`` set and the family's end of turn as ``eos_token``.
    """
    family = FAMILIES[template]
    words = tuple(words)
    core = _spaced(words) if sentencepiece else _byte_level(words)
    broken = [word for word in words if word.strip() and len(core.encode(word).ids) != 1]
    if broken:
        raise ValueError(f"an earlier word takes a part of {broken}: put them first")
    core.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in family.specials]
    )
    core.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in family.marks])
    if family.adds_bos and family.bos is not None:
        bos_id = core.token_to_id(family.bos)
        core.post_processor = processors.TemplateProcessing(
            single=f"{family.bos} $A", special_tokens=[(family.bos, bos_id)]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=family.bos,
        eos_token=family.eos,
        pad_token=family.specials[0],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = (TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8")
    return tokenizer


def _byte_level(words: Iterable[str]) -> Tokenizer:
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    # The splitter maps bytes to printable characters, the letters of this vocabulary.
    pieces = ["".join(piece for piece, _ in splitter.pre_tokenize_str(word)) for word in words]
    vocab, merges = _merge_chains(alphabet, pieces)
    core = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    core.pre_tokenizer = splitter
    core.decoder = decoders.ByteLevel()
    return core


def _spaced(words: Iterable[str]) -> Tokenizer:
    letters = ["▁", "\n", *(chr(code) for code in range(33, 127))]
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    texts = [word for word in words if word.strip()]
    # As in real vocabularies of this kind: with a space before it, and without.
    marked = [f"▁{text.strip()}" for text in texts] + [text.strip() for text in texts]
    vocab, merges = _merge_chains(["<unk>", *fallback, *letters], marked)
    core = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    core.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return core


def _merge_chains(
    alphabet: list[str], words: list[str]
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Make each word a token by merging it letter by letter from its start, first word first."""
    vocab = {letter: number for number, letter in enumerate(alphabet)}
    merges: list[tuple[str, str]] = []
    for word in words:
        for end in range(2, len(word) + 1):
            if word[:end] not in vocab:
                vocab[word[:end]] = len(vocab)
                merges.append((word[: end - 1], word[end - 1]))
    return vocab, merges
