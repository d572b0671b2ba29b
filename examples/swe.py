"""An analyzer, a writer and a validator learn to repair small projects, whose tests run in the sandbox.

python examples/swe.py                  # two small steps on built-in projects, about two minutes on a laptop
coterie data prepare swe --source my_issues.jsonl && python examples/swe.py data/swe steps=50 tasks_per_step=8
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
    *(f"roles.{role}.max_tokens={most}" for role, most in {"analyzer": 12, "writer": 48, "validator": 8}.items()),
]
PROMPTS = {
    "analyze": "{issue}\n\nFiles:\n{tree}\n\nWhich file must be changed? Answer with its name.",
    "write": "half.py\n<<<<<<< SEARCH\n    return n * 2\n=======\n    return n / 2\n>>>>>>> REPLACE\n\n"
    "Write such a block for this file.\n{issue}\n{files}\n{before}",
    "validate": "{issue}\n{diff}\nIs this change right? Answer with one word: pass or fail.",
}
# The code of the project, the right code, a call and its result.
BUGS = {
    "add": ("a - b", "a + b", "add(2, 3)", 5),
    "multiply": ("a + b", "a * b", "multiply(2, 3)", 6),
    "larger": ("min(a, b)", "max(a, b)", "larger(2, 3)", 3),
    "is_same": ("a != b", "a == b", "is_same(2, 2)", True),
    "difference": ("a + b", "a - b", "difference(5, 3)", 2),
    "average": ("(a + b) / 3", "(a + b) / 2", "average(2, 4)", 3),
}
TEST = """import unittest

from {name} import {name}


class Test(unittest.TestCase):
    def test(self):
        self.assertEqual({call}, {result!r})
"""


def rows(folder: Path) -> list[dict[str, object]]:
    """One issue for each project; the project's files are written to a folder."""
    found: list[dict[str, object]] = []
    for name, (wrong, _, call, result) in BUGS.items():
        place = folder / name
        (place / "tests").mkdir(parents=True, exist_ok=True)
        (place / f"{name}.py").write_text(f"def {name}(a, b):\n    return {wrong}\n")
        (place / "tests" / "__init__.py").write_text("")
        (place / "tests" / f"test_{name}.py").write_text(TEST.format(name=name, call=call, result=result))
        issue = f"{call} should be {result!r}, but it is not. The function {name} is wrong."
        tests = [f"python -m unittest tests.test_{name}"]
        found.append({"issue": issue, "repository": str(place.resolve()), "tests": tests})
    return found


if __name__ == "__main__":
    data, changes = data_and_changes("swe", rows(Path("runs/examples/projects")), Path("runs/examples/swe"))
    trainer = AgentTrainer(
        config=Path(__file__).parents[1] / "recipes" / "swe.yaml",
        workflow_args={"max_refinement_iterations": 1, **PROMPTS},
        train_dataset=data / "train.parquet",
        val_dataset=data / "test.parquet",
        overrides=[*SMALL, *changes],
    )
    trained = trainer.train()
    print(f"held out: {trained.metrics['reward']:.2f} of issues closed; the run is in {trained.folder}")
