"""Small data for every workflow, and the parts that go with each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from coterie.compat.rllm import rewards

CORPUS = [{"title": "Lima", "text": "Lima is the capital of Peru."}, {"title": "Quito", "text": "Quito is in Ecuador."}]
QA = {"question": "Capital of Peru?", "answer": "Lima", "supporting_facts": [["Lima", 0]], "context": []}
FIX = "--- a/calc.py\n+++ b/calc.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b\n+    return a + b\n"
CODE = {"text": "Add.", "code": "def add(a, b): return a + b", "test_list": ["assert add(1, 2) == 3"]}
ISSUE = {"issue": "add subtracts", "repository": "calc", "tests": "python -m unittest test_calc", "patch": FIX}
FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "test_calc.py": "import unittest, calc\nclass T(unittest.TestCase):\n    def test(self):\n        "
    "self.assertEqual(calc.add(1, 2), 3)\n",
}
SUM = {"question": "1 + 1?", "answer": "2"}
PROFILES = [
    {"role": role, "prompt": "Help.", "with_answer": role == "actor"} for role in ("reasoner", "actor", "judge")
]
AGENTS, RLLM = (Path(__file__).with_name(name) for name in ("agents.py", "rllm_workflow.py"))
REWARDS = Path(rewards.__file__)


def written(folder: Path) -> Path:
    """A row for every environment, a corpus and a project."""
    for name, row in (("qa", QA), ("code", CODE), ("issues", ISSUE), ("sums", SUM)):
        (folder / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    (folder / "corpus.jsonl").write_text("".join(json.dumps(each) + "\n" for each in CORPUS))
    (folder / "profile.json").write_text(json.dumps(PROFILES))
    (folder / "calc").mkdir()
    for name, text in FILES.items():
        (folder / "calc" / name).write_text(text)
    return folder


def split(folder: Path, file: str) -> dict[str, str]:
    return {"train": str(folder / file), "test": str(folder / file)}


def parts(name: str, data: Path) -> dict[str, Any]:
    """Workflow, environment, reward and credit that go together."""
    sums = {"env": {"name": "rows", **split(data, "sums.jsonl")}, "reward": "number", "credit": "team"}
    code = {"env": {"name": "mbpp", **split(data, "code.jsonl")}, "reward": "code", "credit": "own"}
    qa = {"env": {"name": "hotpotqa", **split(data, "qa.jsonl")}, "reward": "qa", "credit": "own"}
    retrieval = {"corpus": str(data / "corpus.jsonl")}
    known: dict[str, dict[str, Any]] = {
        "deepcoder": code | {"workflow": {"name": name, "max_refinement_iterations": 1}},
        "swe": {"env": {"name": "swe", **split(data, "issues.jsonl")}, "reward": "native", "credit": "own"},
        "math_tool": sums | {"credit": "own"},
        "search": qa | {"workflow": {"name": name, **retrieval}},
        "deep_research": qa | {"workflow": {"name": name, **retrieval}},
        "marft": sums | {"workflow": {"name": name, "profile_path": str(data / "profile.json")}},
        "agent_loop": {
            "env": {"name": "agent_rows", **split(data, "sums.jsonl")},
            "reward": "native",
            "workflow": {
                "name": name,
                "agent_class": f"{AGENTS}:Doubter",
                "env_class": f"{AGENTS}:Guess",
                "agent_args": {"greeting": "Guess."},
                "env_args": {"reward": 1.0},
                "max_steps": 2,
            },
        },
        "rllm": {
            "env": {"name": "agent_rows", **split(data, "sums.jsonl")},
            "reward": "native",
            "credit": "own",
            "workflow": {
                "name": name,
                "workflow_class": f"{RLLM}:SolverJudge",
                "agents": ["solver", "judge"],
                "functions": {"reward_function": f"{REWARDS}:math_reward_fn"},
                "objects": {"hints": f"{RLLM}:Hints"},
            },
        },
        "multi_turn": {
            "env": "hunt",
            "reward": "native",
            "workflow": {"name": name, "roles": ["guide", "walker"], "max_steps": 2},
        },
    }
    return {"workflow": {"name": name}} | known.get(name, sums)
