"""An agent and an environment in the form of rLLM's."""

from __future__ import annotations

from typing import Any


class Doubter:
    """An agent in rLLM's form: it keeps the conversation."""

    def __init__(self, greeting: str) -> None:
        self.greeting = greeting

    def reset(self) -> None:
        self.chat_completions = [{"role": "system", "content": self.greeting}]

    def update_from_env(self, observation: Any, reward: float, done: bool, info: dict[str, Any]) -> None:
        self.chat_completions.append({"role": "user", "content": str(observation)})

    def update_from_model(self, response: str) -> str:
        self.chat_completions.append({"role": "assistant", "content": response})
        return response.strip()


class Guess:
    """An environment in rLLM's form: guess the answer within three steps."""

    def __init__(self, answer: str, reward: float) -> None:
        self.answer, self.reward = answer, reward

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> Guess:
        return cls(row["ground_truth"], row["reward"])

    def reset(self) -> tuple[str, dict[str, Any]]:
        return "Guess.", {}

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        right = action == self.answer
        return "Again.", self.reward if right else 0.0, right, {}
