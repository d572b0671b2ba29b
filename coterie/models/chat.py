"""Messages ↔ token ids, such that a conversation that goes on keeps the very ids that were sampled."""

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

# For base models, which have no chat template of their own.
PLAIN = (
    "{% for message in messages %}{{ message['role'] | capitalize + ':\n' + message['content'] }}"
    "{{ eos_token if message['role'] == 'assistant' else '' }}{{ '\n\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:\n' }}{% endif %}"
)

# Control tokens that are part of what is said: without them nobody could tell that a tool is called.
CALLS = ("<|python_tag|>", "<tool_call>", "</tool_call>")
TOOL = "tool"  # the role of a message that says what tools returned


class Chat:
    """How one model's tokenizer writes a conversation, and how it says that a turn is over."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, also_end: Iterable[int] = ()) -> None:
        """`also_end`: ids at which the model's generation config ends a turn, beside the template's and the eos."""
        self.tokenizer = tokenizer
        self.end_ids = _end_ids(tokenizer, also_end)

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """What the model reads before it answers `messages`.

        Templates may add words of their own: SmolLM2's begins with a system message unless one is given.
        A tokenizer without a template writes `User:`, the message, an empty line, then `Assistant:`.
        """
        return _encode(self.tokenizer, self._written(messages))

    def text(self, ids: Sequence[int], stops: Sequence[str] = ()) -> str:
        """What was said, without control tokens but those of tool calls, and up to the first stop string."""
        ended = len(ids) > 0 and ids[-1] in self.end_ids
        return trim(_decode(self.tokenizer, ids[:-1] if ended else ids), stops)

    def extend(
        self,
        read: Sequence[Message],
        prompt_ids: Sequence[int],
        response_ids: Sequence[int],
        reply: str,
        messages: Sequence[Message],
    ) -> tuple[int, ...] | None:
        """The next prompt of a conversation, on top of the very ids that were read and sampled.

            read           reply          messages
            [user]         "4"            [user, assistant "4", user]   →  prompt_ids + response_ids + what follows
            [user]         "4"            [user, assistant "5", user]   →  None: not what was said
            [user]         "<think>…"     a template that drops earlier thoughts  →  None

        What follows is the template's text from the end of the reply to the next generation prompt; the end of
        turn is part of it only where it was not sampled. None: the caller renders all of `messages` afresh.
        """
        said: Message = {"role": "assistant", "content": reply}
        if list(messages[: len(read) + 1]) != [*read, said]:
            return None
        rest = _after(self._written(read), _as_letters(self.tokenizer, reply), self._written(messages))
        if rest is None:
            return None
        added = _encode(self.tokenizer, rest)
        if response_ids[-1:] and response_ids[-1] in self.end_ids:
            if added[:1] != (response_ids[-1],):
                return None  # it ended its turn in a way the template does not write
            added = added[1:]
        return (*prompt_ids, *response_ids, *added)

    @property
    def remarks(self) -> list[str]:
        """What a user may not expect of this model's template."""
        remarks = []
        if not self.tokenizer.chat_template:
            shown = repr(render(self.tokenizer, [Message(role="user", content="…")]))
            remarks.append(f"has no chat template; a conversation is written as {shown}, which it may not have learned")
        elif not _knows_system(self.tokenizer):
            remarks.append("has a chat template without a system role; system texts go into the first user message")
        return remarks

    def _written(self, messages: Sequence[Message]) -> str:
        known = messages if _knows_system(self.tokenizer) else without_system(messages)
        spelled = [Message(role=self._role(m), content=_as_letters(self.tokenizer, m["content"])) for m in known]
        return render(self.tokenizer, spelled)

    def _role(self, message: Message) -> str:
        """Where a template knows no tools, what one returned is the user's word."""
        return "user" if message["role"] == TOOL and not _knows_tools(self.tokenizer) else message["role"]


class StopText:
    """Watches one row for stop strings, an id at a time; its cost does not grow with the text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.stops = tuple(stops)
        self.ids: list[int] = []
        self._vocal = _vocal(tokenizer)
        # Each id that has text has at least one byte of it, so a stop string of n bytes lies in the last n ids;
        # four more, for the window may open inside a character or on a space that decoding drops.
        self._window: deque[int] = deque(maxlen=max((len(stop.encode()) for stop in stops), default=0) + 4)

    def feed(self, id: int) -> bool:
        """Whether a stop string has appeared in the text, now that `id` is part of it."""
        self.ids.append(id)
        if id not in self._vocal:
            return False
        self._window.append(id)
        tail = _decode(self.tokenizer, self._window)
        return any(stop in tail for stop in self.stops)

    @property
    def text(self) -> str:
        """The text so far, up to the first stop string."""
        return trim(_decode(self.tokenizer, self.ids), self.stops)


def trim(text: str, stops: Sequence[str]) -> str:
    """`text` up to where the first of the stop strings begins."""
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]


def render(tokenizer: PreTrainedTokenizerBase, messages: Iterable[Message], generate: bool = True) -> str:
    """The conversation as text, by the tokenizer's own template; `generate`: up to where the next reply begins."""
    template = tokenizer.chat_template or _lead(tokenizer) + PLAIN
    plain: list[Any] = list(messages)
    options: dict[str, Any] = {"add_generation_prompt": generate, "tokenize": False}
    return str(tokenizer.apply_chat_template(plain, chat_template=template, **options))


def without_system(messages: Sequence[Message]) -> list[Message]:
    """The same for a template without a system role: each such text begins the user message that follows it.

    [system "Be brief.", user "1 + 1?", …]   →  [user "Be brief.\n\n1 + 1?", …]
    [system "Be brief.", assistant "2"]      →  [user "Be brief.", assistant "2"]
    """
    out: list[Message] = []
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "system":
            waiting.append(message["content"])
        elif message["role"] == "user":
            out.append(Message(role="user", content="\n\n".join([*waiting, message["content"]])))
            waiting = []
        else:
            out += [Message(role="user", content="\n\n".join(waiting))] if waiting else []
            out.append(message)
            waiting = []
    return [*out, Message(role="user", content="\n\n".join(waiting))] if waiting else out


def turn_end(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The control token that follows a reply in the chat template; None where the template writes none."""
    reply = "Certainly."
    talk: list[Message] = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": reply}]
    rest = render(tokenizer, talk, generate=False).rpartition(reply)[2]
    first = _encode(tokenizer, rest.lstrip())[:1]
    return first[0] if first and first[0] in tokenizer.added_tokens_decoder else None


@lru_cache(maxsize=8)
def _knows_tools(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the template shows a message of the role `tool`: some refuse it, some leave it out."""
    talk: list[Message] = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Certainly."}]
    return _shows(tokenizer, [*talk, {"role": TOOL, "content": "The result is 4."}], "The result is 4.")


@lru_cache(maxsize=8)
def _knows_system(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the template shows a system message: Gemma 2's refuses it."""
    talk: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    return _shows(tokenizer, talk, "Be brief.")


def _shows(tokenizer: PreTrainedTokenizerBase, talk: list[Message], text: str) -> bool:
    try:
        return text in render(tokenizer, talk)
    except TemplateError:
        return False


def _end_ids(tokenizer: PreTrainedTokenizerBase, also: Iterable[int]) -> frozenset[int]:
    hello: list[Message] = [{"role": "user", "content": "Hello"}]
    opening = render(tokenizer, hello).removeprefix(render(tokenizer, hello, generate=False))
    # Some GGUF files name the token that opens a turn as their eos.
    ends = {turn_end(tokenizer), tokenizer.eos_token_id, *also} - {None, *_encode(tokenizer, opening)}
    if not ends:
        raise ModelError(f"{tokenizer.name_or_path}: no token ends a turn: no eos, and none in the chat template")
    return frozenset(id for id in ends if id is not None)


@lru_cache(maxsize=8)  # Gemma has thousands of added tokens, and every request asks
def _vocal(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    control = {id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(tokenizer.get_vocab().values()) - control | _calls(tokenizer)


@lru_cache(maxsize=8)
def _calls(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    return frozenset(id for id, token in tokenizer.added_tokens_decoder.items() if token.content in CALLS)


def _lead(tokenizer: PreTrainedTokenizerBase) -> str:
    begins = tokenizer.bos_token_id is not None and _encode(tokenizer, "", special=True)[:1] == (
        tokenizer.bos_token_id,
    )
    return "{{ bos_token }}" if begins else ""


def _after(before: str, reply: str, whole: str) -> str | None:
    # Many templates strip a reply's white space; the ids keep what was sampled.
    for said in (reply, reply.strip()):
        if whole.startswith(before + said):
            return whole[len(before) + len(said) :]
    return None


CUT = "\ufdd0"  # a code point that no text may contain


def _as_letters(tokenizer: PreTrainedTokenizerBase, content: str) -> str:
    """A message that spells a control token, `<|im_end|>` say, must not become one: it is cut there for encoding."""
    control = _control(tokenizer)
    content = content.replace(CUT, "")
    return control.sub(lambda found: found[0][0] + CUT + found[0][1:], content) if control else content


@lru_cache(maxsize=8)
def _control(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str] | None:
    tokens = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    # Longest first: one token's text may begin another's. A token of one letter cannot be cut.
    words = sorted((re.escape(token) for token in tokens if len(token) > 1), key=len, reverse=True)
    return re.compile("|".join(words)) if words else None


def _encode(tokenizer: PreTrainedTokenizerBase, text: str, special: bool = False) -> tuple[int, ...]:
    parts = [tokenizer(part, add_special_tokens=special)["input_ids"] for part in text.split(CUT)]
    return tuple(id for part in parts for id in part)


def _decode(tokenizer: PreTrainedTokenizerBase, ids: Iterable[int]) -> str:
    said = list(ids)
    calls = not _calls(tokenizer).isdisjoint(said)
    if calls:  # which the tokenizer would drop with the other control tokens
        said = [id for id in said if id in _vocal(tokenizer)]
    return str(tokenizer.decode(said, skip_special_tokens=not calls, clean_up_tokenization_spaces=False))
