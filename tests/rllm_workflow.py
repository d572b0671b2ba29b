"""A workflow in the form of rLLM's: two solvers and a judge, whose steps have rewards of their own."""

from __future__ import annotations

import asyncio
from typing import Any

from coterie.rllm import Episode, RewardFunction, RolloutEngine, Step, Trajectory, Workflow


class Hints:
    """A tool that is an object."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hints)

    def hint(self) -> str:
        return "Be brief."


class SolverJudge(Workflow):
    """Solvers answer, a judge picks one."""

    def __init__(
        self,
        rollout_engine: RolloutEngine,
        reward_function: RewardFunction,
        hints: Hints,
        solvers: int = 2,
        **options: Any,
    ) -> None:
        super().__init__(rollout_engine, **options)
        self.reward_function, self.hints, self.solvers = reward_function, hints, solvers

    async def run(self, task: dict[str, Any], uid: str, **options: Any) -> Episode:
        self.reset(task, uid)
        asked = [{"role": "user", "content": f"{task['question']} {self.hints.hint()}"}]
        outputs = await asyncio.gather(
            *(self.rollout_engine.get_model_response(asked, agent_name="solver") for _ in range(self.solvers))
        )
        solved = [Step(chat_completions=asked, action=one.content, model_output=one) for one in outputs]
        for step in solved:
            step.reward = self.reward_function(task, step.action).reward
        shown = [{"role": "user", "content": " | ".join(str(step.action) for step in solved)}]
        judged = await self.rollout_engine.get_model_response(shown, agent_name="judge")
        result = self.reward_function(task, judged.content)
        verdict = Step(chat_completions=shown, action=judged.content, model_output=judged, reward=result.reward)
        paths = [Trajectory(name="solver", steps=[step]) for step in solved]
        paths.append(Trajectory(name="judge", steps=[verdict]))
        return Episode(uid, task, paths, is_correct=result.is_correct, metrics={"solvers": self.solvers})
