"""An environment in siiRL's format, one instance per episode."""

from siirl.utils.reward_score.math_verify import compute_score


class MathEnv:
    """Says whether the last agent's answer is right; a right one ends the episode."""

    def __init__(self):
        self.tries = 0

    def reset(self):
        return None

    def step(self, actions, ground_truth):
        self.tries += 1
        answer = actions[-1].rpartition("\nactor: ")[2]  # an action is the whole conversation after its agent's reply
        reward = compute_score(answer, ground_truth)
        done = reward == 1.0
        verdict = "That is right." if done else f"Wrong, {self.tries} times now."
        return [f"{action}<|im_end|>\n<|im_start|>user\n{verdict}" for action in actions], reward, done
