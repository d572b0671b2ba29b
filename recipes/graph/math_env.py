"""An environment in siiRL's format, one instance per episode."""

from coterie.rewards import make_grader

GRADE = make_grader("number", {}, 10.0)


class MathEnv:
    """Says whether the last agent's answer is right; a right one ends the episode."""

    def __init__(self):
        self.tries = 0

    def reset(self):
        return None

    async def step(self, actions, ground_truth):
        self.tries += 1
        answer = actions[-1].rpartition("\nactor: ")[2]  # an action is the whole conversation after its agent's reply
        reward = await GRADE(answer, ground_truth)
        done = reward == 1.0
        observation = "That is right. " if done else f"Wrong, {self.tries} times now. "
        return [observation for _ in actions], reward, done
