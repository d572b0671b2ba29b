"""An analyzer, an executor that writes Python, and a verifier learn to calculate.

python examples/math_tool.py                  # two small steps on built-in rows, about two minutes on a laptop
coterie data prepare gsm8k && python examples/math_tool.py data/gsm8k steps=50 tasks_per_step=8
"""

from __future__ import annotations

import operator
import random
from pathlib import Path

from prepared import data_and_changes

from coterie import AgentTrainer

# For a very small model: a few tokens per role, and prompts that show the form of a reply.
SMALL = [
    "steps=2",
    "tasks_per_step=2",
    "episodes_per_task=4",
    "eval.tasks=2",
    "sampling.temperature=0.5",
    *(f"roles.{role}.max_tokens={most}" for role, most in {"analyzer": 8, "executor": 32, "verifier": 6}.items()),
]
PROMPTS = {
    "analyze": "{question} {before}Is it an addition, a subtraction or a multiplication? Answer with one word.",
    "execute": "{question}\n\nAnswer with a ```python block that prints the result.\nHint: {plan}",
    "verify": "{question} Someone ran {program} and says {output}\nIs that right? Answer with yes or no.",
}
SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def rows(count: int = 40) -> list[dict[str, str]]:
    """Problems in the format of GSM8K."""
    draw = random.Random(0)
    found = []
    for _ in range(count):
        a, sign, b = draw.randint(20, 99), draw.choice(list(SIGNS)), draw.randint(2, 19)
        found.append({"question": f"What is {a} {sign} {b}?", "answer": f"#### {SIGNS[sign](a, b)}"})
    return found


if __name__ == "__main__":
    data, changes = data_and_changes("gsm8k", rows(), Path("runs/examples/gsm8k"))
    trainer = AgentTrainer(
        config=Path(__file__).parents[1] / "recipes" / "math_tool.yaml",
        workflow_args={"max_refinement_iterations": 1, **PROMPTS},
        train_dataset=data / "train.parquet",
        val_dataset=data / "test.parquet",
        overrides=[*SMALL, *changes],
    )
    trained = trainer.train()
    print(f"held out: {trained.metrics['reward']:.2f} right; the run is in {trained.folder}")
