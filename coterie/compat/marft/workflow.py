"""MARFT's workflow: agents speak in order, and each reads all earlier replies, for up to `horizon` rounds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.compat.marft.profiles import Profile, check_profiles, plain_prompt, read_profiles
from coterie.prompts import chat_messages, check, check_counts, fill
from coterie.types import Outcome, Task, Team
from coterie.workflows.verdict_parsing import verdict

PROMPT = "{question}\n\n{transcript}You are the {role}. It is your turn."


@dataclass(frozen=True)
class Marft:
    """Agents of a MARFT profile. The last reply of the agent with `with_answer` is the team's answer; with several of
    them, each one's reply is graded, and the team's reward is the mean.

    An agent without an answer that speaks last is a judge: it is not graded, and if its verdict is positive
    ("Verdict: correct"), the rounds end. The reference answer neither ends a round nor is shown to an agent.
    """

    agents: tuple[Profile, ...] = ()  # the agents, in the order in which they speak
    profile_path: Path | None = None  # a profile file of MARFT (JSON) instead of agents
    horizon: int = 1  # rounds, at most
    prompt: str = PROMPT  # the prompt of each agent; {transcript} is all earlier replies, by role

    def __post_init__(self) -> None:
        check(self.prompt, ["question", "transcript", "role"], "prompt")
        check_counts(self, "horizon")
        if (self.profile_path is None) == (not self.agents):
            raise ValueError("agents: give either agents or a profile_path")
        if self.profile_path is None:
            check_profiles(self.agents)
        else:
            object.__setattr__(self, "_read", read_profiles(self.profile_path))  # the dataclass is frozen

    @property
    def profiles(self) -> tuple[Profile, ...]:
        read: tuple[Profile, ...] = self.agents or getattr(self, "_read", ())
        return read

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(profile.role for profile in self.profiles)

    @property
    def has_judge(self) -> bool:
        return not self.profiles[-1].with_answer

    async def run(self, task: Task, team: Team, world: Any) -> Outcome:
        replies: list[tuple[str, str]] = []
        answers: dict[str, str] = {}
        rounds, accepted = 0, False
        while rounds < self.horizon and not accepted:
            for profile in self.profiles:
                text = await self._speak(task, team, profile, replies)
                replies.append((profile.role, text))
                if profile.with_answer:
                    answers[profile.role] = text
            rounds += 1
            accepted = self.has_judge and verdict(replies[-1][1]) is True
        answer = answers if len(answers) > 1 else next(iter(answers.values()))
        judged = {"accepted": float(accepted)} if self.has_judge else {}
        return Outcome(answer, {"rounds": float(rounds), **judged})

    async def _speak(self, task: Task, team: Team, profile: Profile, replies: list[tuple[str, str]]) -> str:
        transcript = "".join(f"{role}: {text.strip()}\n\n" for role, text in replies)
        values = {"question": task.prompt, "transcript": transcript, "role": profile.role}
        messages = chat_messages(fill(self.prompt, values), plain_prompt(profile.prompt) or None)
        return (await team[profile.role].say(messages)).text
