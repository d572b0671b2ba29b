"""tokens.jsonl: the strings of the token ids that a run has used, so that a viewer needs no tokenizer.

A row has the strings of ids that were new in a step, by tokenizer: {"policies": ["solver"], "strings": {"318": " is"}}.
A token with only a part of a character is a list of its bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.files import append_line, complete_lines
from coterie.models.chat import Chat
from coterie.models.token_text import token_string
from coterie.types import Episode


class TokenStrings:
    """Writes tokens.jsonl."""

    def __init__(self, path: Path, chats: Mapping[str, Chat]) -> None:
        self.path, self.chats = path, chats
        self.known: dict[str, set[int]] = {policy: set() for policy in chats}
        for line in complete_lines(path):
            row = json.loads(line)
            for policy in row["policies"]:
                self.known.setdefault(policy, set()).update(map(int, row["strings"]))
        by_chat: dict[int, list[str]] = {}
        for policy, chat in chats.items():
            by_chat.setdefault(id(chat), []).append(policy)
        self.sharing = list(by_chat.values())  # groups of policies that share a tokenizer

    def add(self, episodes: Iterable[Episode]) -> None:
        """Append the strings of the responses' ids that are new."""
        used: dict[str, set[int]] = {}
        for turn in (turn for episode in episodes for turn in episode.turns):
            used.setdefault(turn.policy, set()).update(turn.response_ids)
        for policies in self.sharing:
            new = set().union(*(used.get(policy, set()) for policy in policies)) - self.known[policies[0]]
            if new:
                self._append(policies, sorted(new))

    def _append(self, policies: Sequence[str], ids: Sequence[int]) -> None:
        tokenizer = self.chats[policies[0]].tokenizer
        row: dict[str, Any] = {"policies": policies, "strings": {str(id): token_string(tokenizer, id) for id in ids}}
        append_line(self.path, json.dumps(row))
        for policy in policies:
            self.known[policy].update(ids)
