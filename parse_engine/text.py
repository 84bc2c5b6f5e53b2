"""From token ids to text, piece by piece."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from parse_engine.regions import CALL_MARKS, HARMONY_MARKS, HARMONY_REGIONS, regions_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TextBuilder:
    """Decode token ids one by one into text that is never changed again.

    A character of several tokens appears when its last token does. Special tokens have no text,
    except those that mark regions (thinking, channels, tool calls).

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        The tokenizer of the ids.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        harmony = regions_of(tokenizer) is HARMONY_REGIONS
        marks = (*CALL_MARKS, *(HARMONY_MARKS if harmony else ()))
        added = tokenizer.added_tokens_decoder.items()
        silent = {i for i, token in added if token.special and token.content not in marks}
        self._silent = silent | set(tokenizer.all_special_ids) - {
            i for i, token in added if token.content in (*marks, "<think>", "</think>")
        }
        self._tokenizer = tokenizer
        self._window: list[int] = []  # the ids since the last but one character boundary
        self._shown = 0  # ids of the window whose text is out
        self._text: list[str] = []
        self._length = 0
        self.char_ends: list[int | None] = []

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._text)

    def push(self, token_id: int) -> str:
        """Add one token and return the text that became whole with it."""
        piece = ""
        if token_id not in self._silent:
            self._window.append(token_id)
            piece = self._new_text()
            if piece.endswith("\ufffd"):  # half a character, or a wrong byte: wait for more
                piece = ""
            elif piece:
                self._window = self._window[self._shown :]
                self._shown = len(self._window)
        whole = self._shown == len(self._window)
        self._add(piece)
        self.char_ends.append(self._length if whole else None)
        return piece

    def finish(self) -> str:
        """Return what is left at the end of the ids: bytes that never became a character."""
        piece = self._new_text() if self._shown < len(self._window) else ""
        self._shown = len(self._window)
        self._add(piece)
        return piece

    def _new_text(self) -> str:
        """Decode the window after the part that is out; its first ids are there for context."""
        before = self._decode(self._window[: self._shown])
        return self._decode(self._window)[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        text = self._tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def _add(self, piece: str) -> None:
        self._text.append(piece)
        self._length += len(piece)


def decode_all(
    tokenizer: PreTrainedTokenizerBase, ids: Iterable[int]
) -> tuple[str, tuple[int | None, ...]]:
    """Return the text of ids and, for each id, the number of characters up to its end (or None)."""
    builder = TextBuilder(tokenizer)
    for token_id in ids:
        builder.push(token_id)
    builder.finish()
    return builder.text, tuple(builder.char_ends)
