"""A generator, a test runner and a refiner learn to write small functions.

python examples/deepcoder.py                  # two small steps on built-in rows, about two minutes on a laptop
coterie data prepare mbpp && python examples/deepcoder.py data/mbpp steps=50 tasks_per_step=8
"""

from __future__ import annotations

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
    *(f"roles.{role}.max_tokens={most}" for role, most in {"generator": 40, "test_runner": 12, "refiner": 40}.items()),
]
PROMPTS = {
    "prompt": "Write a Python function half(n) that returns half of a number.\n"
    "```python\ndef half(n):\n    return n / 2\n```\n\n{question}",
    "analyze": "```python\n{program}\n```\n{failures}\n\nWhat is wrong with this function? Say it in a few words.",
    "refine": "{question}\n\nThis is wrong ({analysis}):\n```python\n{program}\n```\nGive the right function.",
}
FUNCTIONS = {
    "add(a, b) that returns the sum of two numbers": ("return a + b", "add(1, 2) == 3", "add(5, 5) == 10"),
    "last(items) that returns the last item of a list": ("return items[-1]", "last([1, 2]) == 2", "last('ab') == 'b'"),
    "double(n) that returns twice a number": ("return 2 * n", "double(3) == 6", "double(0) == 0"),
    "is_even(n) that tells whether a number is even": ("return n % 2 == 0", "is_even(4)", "not is_even(3)"),
    "biggest(items) that returns the largest item": (
        "return max(items)",
        "biggest([1, 3, 2]) == 3",
        "biggest([5]) == 5",
    ),
    "count(text, sign) that counts a sign in a text": (
        "return text.count(sign)",
        "count('aab', 'a') == 2",
        "count('', 'a') == 0",
    ),
    "square(n) that returns a number times itself": ("return n * n", "square(3) == 9", "square(-2) == 4"),
    "reverse(text) that returns a text backwards": ("return text[::-1]", "reverse('ab') == 'ba'", "reverse('') == ''"),
}


def rows() -> list[dict[str, object]]:
    """Problems in the format of MBPP."""
    found: list[dict[str, object]] = []
    for about, (body, *tests) in FUNCTIONS.items():
        head = about.partition(" that")[0]
        asserts = [f"assert {test}" for test in tests]
        found.append(
            {"text": f"Write a Python function {about}.", "code": f"def {head}:\n    {body}", "test_list": asserts}
        )
    return found


if __name__ == "__main__":
    data, changes = data_and_changes("mbpp", rows(), Path("runs/examples/mbpp"))
    trainer = AgentTrainer(
        config=Path(__file__).parents[1] / "recipes" / "deepcoder.yaml",
        workflow="deepcoder",
        workflow_args={"max_refinement_iterations": 1, **PROMPTS},
        train_dataset=data / "train.parquet",
        val_dataset=data / "test.parquet",
        overrides=[*SMALL, *changes],
    )
    trained = trainer.train()
    print(f"held out: {trained.metrics['reward']:.2f} of programs pass all tests; the run is in {trained.folder}")
