"""Tokens as strings, one by one. Runs store them, so that a viewer needs no tokenizer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from transformers import PreTrainedTokenizerBase

BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")  # a byte in vocabularies that fall back to bytes
INCOMPLETE = "\ufffd"  # the decoded form of an incomplete UTF-8 character
NO_TOKEN = ""  # of ids beyond the vocabulary, which padded embeddings have


def token_string(tokenizer: PreTrainedTokenizerBase, id: int) -> str | list[int]:
    """One token as text; as bytes if it is part of a character only, or of two."""
    token = tokenizer.convert_ids_to_tokens(id)
    if not isinstance(token, str):
        return NO_TOKEN
    if byte := BYTE_TOKEN.fullmatch(token):
        return [int(byte[1], 16)]
    # Decoded after another token: some tokenizers drop the space before the first one.
    anchor = _anchor(tokenizer)
    text = _decoded(tokenizer, [*anchor, id]).removeprefix(_decoded(tokenizer, anchor))
    if INCOMPLETE in text and all(character in _byte_of() for character in token):
        return [_byte_of()[character] for character in token]
    return text


def _decoded(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


@cache
def _anchor(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    return list(tokenizer("a", add_special_tokens=False)["input_ids"])


@cache
def _byte_of() -> dict[str, int]:
    """The character that stands for each byte in byte-level vocabularies: itself if printable, else one above 255."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
