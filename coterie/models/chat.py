"""Chat templates: messages ↔ token ids. A continued conversation keeps the sampled ids, never re-tokenizes them."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from coterie.errors import ModelError
from coterie.types import Message

# Fallback chat template, for base models without one.
FALLBACK_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] | capitalize + ':\n' + message['content'] }}"
    "{{ eos_token if message['role'] == 'assistant' else '' }}{{ '\n\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:\n' }}{% endif %}"
)

# Control tokens that are kept in a reply's text: without them a tool call could not be recognized.
TOOL_CALL_TOKENS = ("<|python_tag|>", "<tool_call>", "</tool_call>")
TOOL = "tool"  # the role of messages with tool results
CACHED_PROMPTS = 1024


class Chat:
    """One model's chat template and end-of-turn tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, also_end: Iterable[int] = ()) -> None:
        """`also_end`: end tokens of the generation config, in addition to the template's and the eos token."""
        self.tokenizer = tokenizer
        self.end_ids = _end_ids(tokenizer, also_end)

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The prompt ids for a reply to `messages`, by the chat template.

        Templates may add text of their own: SmolLM2's adds a system message unless there is one.
        Without a template it is `User:`, the message, an empty line, then `Assistant:`.
        """
        return _prompt_ids(self.tokenizer, self._render(messages))

    def reply(self, text: str) -> tuple[int, ...]:
        """The ids of a reply that is given as text, to follow `prompt`; without an end token."""
        return _encode(self.tokenizer, _escape_control_tokens(self.tokenizer, text))

    @property
    def end_id(self) -> int:
        """The token that ends a reply: the template's, else the model's."""
        own = end_of_turn_id(self.tokenizer)
        return min(self.end_ids) if own is None else own

    def text(self, ids: Sequence[int], stops: Sequence[str] = ()) -> str:
        """The text of a reply up to the first stop string, without control tokens except those of tool calls."""
        ended = len(ids) > 0 and ids[-1] in self.end_ids
        return trim(decode(self.tokenizer, ids[:-1] if ended else ids), stops)

    def prompt_text(self, ids: Sequence[int]) -> str:
        """The text of a prompt as the model reads it, with all control tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def extend(
        self,
        earlier: Sequence[Message],
        prompt_ids: Sequence[int],
        response_ids: Sequence[int],
        reply: str,
        messages: Sequence[Message],
    ) -> tuple[int, ...] | None:
        """The next prompt of a conversation: the ids of the earlier prompt and of its reply, and a suffix.

            earlier        reply          messages
            [user]         "4"            [user, assistant "4", user]   →  prompt_ids + response_ids + suffix
            [user]         "4"            [user, assistant "5", user]   →  None: another reply
            [user]         "<think>…"     a template that drops earlier thoughts  →  None

        The suffix is the template's text from the end of the reply to the next generation prompt; it begins with the
        end-of-turn token unless that was sampled. None: the caller must render `messages` from scratch.
        """
        last: Message = {"role": "assistant", "content": reply}
        if list(messages[: len(earlier) + 1]) != [*earlier, last]:
            return None
        rest = _suffix(self._render(earlier), _escape_control_tokens(self.tokenizer, reply), self._render(messages))
        if rest is None:
            return None
        added = _encode(self.tokenizer, rest)
        if response_ids[-1:] and response_ids[-1] in self.end_ids:
            if added[:1] != (response_ids[-1],):
                return None  # its end token is not the template's
            added = added[1:]
        return (*prompt_ids, *response_ids, *added)

    @property
    def remarks(self) -> list[str]:
        """Warnings about this model's chat template."""
        remarks = []
        if not self.tokenizer.chat_template:
            shown = repr(render(self.tokenizer, [Message(role="user", content="…")]))
            remarks.append(f"has no chat template; a conversation is written as {shown}, which it may not have learned")
        elif not _supports_system(self.tokenizer):
            remarks.append("has a chat template without a system role; system texts go into the first user message")
        return remarks

    def _render(self, messages: Sequence[Message]) -> str:
        known = messages if _supports_system(self.tokenizer) else fold_system_messages(messages)
        escaped = [
            Message(role=self._role(m), content=_escape_control_tokens(self.tokenizer, m["content"])) for m in known
        ]
        return render(self.tokenizer, escaped)

    def _role(self, message: Message) -> str:
        """Tool results become user messages where the template does not support the tool role."""
        return "user" if message["role"] == TOOL and not _supports_tools(self.tokenizer) else message["role"]


class StopText:
    """Detects stop strings in one row, id by id, at a constant cost per id."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.stops = tuple(stops)
        self._text_ids = _text_ids(tokenizer)
        # An id with text has at least one byte of it, so a stop string of n bytes is in the last n ids. Four more,
        # because the window may begin inside a character, or on a space that decoding drops.
        self._window: deque[int] = deque(maxlen=max((len(stop.encode()) for stop in stops), default=0) + 4)

    def feed(self, id: int) -> bool:
        """Append an id; True if the text now contains a stop string."""
        if id not in self._text_ids:
            return False
        self._window.append(id)
        tail = decode(self.tokenizer, self._window)
        return any(stop in tail for stop in self.stops)


def trim(text: str, stops: Sequence[str]) -> str:
    """`text` up to the first stop string."""
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]


def render(tokenizer: PreTrainedTokenizerBase, messages: Iterable[Message], generate: bool = True) -> str:
    """Render the chat template as text; `generate`: with the generation prompt."""
    template = template_of(tokenizer)
    plain: list[Any] = list(messages)
    options: dict[str, Any] = {"add_generation_prompt": generate, "tokenize": False}
    return str(tokenizer.apply_chat_template(plain, chat_template=template, **options))


def template_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """The chat template, or ours for models without one."""
    own: str | None = tokenizer.chat_template
    return own or _bos_prefix(tokenizer) + FALLBACK_TEMPLATE


def fold_system_messages(messages: Sequence[Message]) -> list[Message]:
    """For templates without a system role: prepend each system message to the user message that follows it.

    [system "Be brief.", user "1 + 1?", …]   →  [user "Be brief.\n\n1 + 1?", …]
    [system "Be brief.", assistant "2"]      →  [user "Be brief.", assistant "2"]
    """
    out: list[Message] = []
    pending: list[str] = []
    for message in messages:
        if message["role"] == "system":
            pending.append(message["content"])
        elif message["role"] == "user":
            out.append(Message(role="user", content="\n\n".join([*pending, message["content"]])))
            pending = []
        else:
            out += [Message(role="user", content="\n\n".join(pending))] if pending else []
            out.append(message)
            pending = []
    return [*out, Message(role="user", content="\n\n".join(pending))] if pending else out


def end_of_turn_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The control token that the chat template writes after a reply; None if it writes none."""
    reply = "Certainly."
    talk: list[Message] = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": reply}]
    rest = render(tokenizer, talk, generate=False).rpartition(reply)[2]
    first = _encode(tokenizer, rest.lstrip())[:1]
    return first[0] if first and first[0] in tokenizer.added_tokens_decoder else None


@lru_cache(maxsize=8)
def _supports_tools(tokenizer: PreTrainedTokenizerBase) -> bool:
    """True if the template renders messages of the role `tool`: some raise on it, some drop it."""
    talk: list[Message] = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Certainly."}]
    return _renders(tokenizer, [*talk, {"role": TOOL, "content": "The result is 4."}], "The result is 4.")


@lru_cache(maxsize=8)
def _supports_system(tokenizer: PreTrainedTokenizerBase) -> bool:
    """True if the template renders system messages: Gemma 2's raises on them."""
    talk: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    return _renders(tokenizer, talk, "Be brief.")


def _renders(tokenizer: PreTrainedTokenizerBase, talk: list[Message], text: str) -> bool:
    try:
        return text in render(tokenizer, talk)
    except TemplateError:
        return False


def _end_ids(tokenizer: PreTrainedTokenizerBase, also: Iterable[int]) -> frozenset[int]:
    hello: list[Message] = [{"role": "user", "content": "Hello"}]
    opening = render(tokenizer, hello).removeprefix(render(tokenizer, hello, generate=False))
    # Some GGUF files give the token that opens a turn as their eos.
    ends = {end_of_turn_id(tokenizer), tokenizer.eos_token_id, *also} - {None, *_encode(tokenizer, opening)}
    if not ends:
        raise ModelError(f"{tokenizer.name_or_path}: no end-of-turn token: no eos token, and none in the chat template")
    return frozenset(id for id in ends if id is not None)


@lru_cache(maxsize=8)  # Gemma has thousands of added tokens, and every request needs this
def _text_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    control = {id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(tokenizer.get_vocab().values()) - control | _tool_call_ids(tokenizer)


@lru_cache(maxsize=8)
def _tool_call_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    return frozenset(id for id, token in tokenizer.added_tokens_decoder.items() if token.content in TOOL_CALL_TOKENS)


def _bos_prefix(tokenizer: PreTrainedTokenizerBase) -> str:
    bos = tokenizer.bos_token_id
    adds_bos = bos is not None and _encode(tokenizer, "", special=True)[:1] == (bos,)
    return "{{ bos_token }}" if adds_bos else ""


def _suffix(before: str, reply: str, whole: str) -> str | None:
    # Many templates strip the white space of a reply; the sampled ids keep it.
    for text in (reply, reply.strip()):
        if whole.startswith(before + text):
            return whole[len(before) + len(text) :]
    return None


SEPARATOR = "\ufdd0"  # a Unicode noncharacter, which no text may contain


def _escape_control_tokens(tokenizer: PreTrainedTokenizerBase, content: str) -> str:
    """Split text that spells a control token, such as `<|im_end|>`, so that it is not encoded as one."""
    control = _control_pattern(tokenizer)
    content = content.replace(SEPARATOR, "")
    return control.sub(lambda found: found[0][0] + SEPARATOR + found[0][1:], content) if control else content


@lru_cache(maxsize=8)
def _control_pattern(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str] | None:
    tokens = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    # Longest first: one token's text may be a prefix of another's. A token of one character cannot be split.
    words = sorted((re.escape(token) for token in tokens if len(token) > 1), key=len, reverse=True)
    return re.compile("|".join(words)) if words else None


# Cached: the episodes of a task often have the same prompt, and encoding one takes up to a millisecond.
@lru_cache(maxsize=CACHED_PROMPTS)
def _prompt_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    return _encode(tokenizer, text)


def _encode(tokenizer: PreTrainedTokenizerBase, text: str, special: bool = False) -> tuple[int, ...]:
    parts = [tokenizer(part, add_special_tokens=special)["input_ids"] for part in text.split(SEPARATOR)]
    return tuple(id for part in parts for id in part)


def decode(tokenizer: PreTrainedTokenizerBase, ids: Iterable[int]) -> str:
    """The text of ids without control tokens, except those of tool calls."""
    kept = list(ids)
    calls = not _tool_call_ids(tokenizer).isdisjoint(kept)
    if calls:  # skip_special_tokens would also drop these
        kept = [id for id in kept if id in _text_ids(tokenizer)]
    return str(tokenizer.decode(kept, skip_special_tokens=not calls, clean_up_tokenization_spaces=False))
