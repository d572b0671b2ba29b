"""A planner, gatherers with tools and a synthesizer learn to answer from articles, with citations.

python examples/deepresearch.py                  # two small steps, about two minutes on a laptop
python examples/deepresearch.py steps=50 tasks_per_step=8 episodes_per_task=8
"""

from __future__ import annotations

import sys
from pathlib import Path

from articles import rows
from prepared import prepared

from coterie import AgentTrainer

# For a very small model: a few tokens for each role, and prompts that show what is wanted.
SMALL = [
    "steps=2",
    "tasks_per_step=2",
    "episodes_per_task=4",
    "eval.tasks=2",
    "sampling.temperature=0.5",
    *(f"roles.{role}.max_tokens={most}" for role, most in {"planner": 16, "gatherer": 32, "synthesizer": 24}.items()),
]
PROMPTS = {
    "plan": "{question}\n\nWrite one short question that must be answered first.",
    "gather": 'To search, write: <tool_call>{"name": "search", "arguments": {"query": "Rome"}}</tool_call>\n'
    "Find out: {part} ({question})",
    "synthesize": "{sources}\n\n{question}\nAnswer with a name and the number of its source, as in: Rome [1]",
}

if __name__ == "__main__":
    data = prepared("hotpotqa", rows(), Path("runs/examples/deepresearch"))
    trainer = AgentTrainer(
        config=Path(__file__).parents[1] / "recipes" / "deepresearch.yaml",
        workflow_args={"corpus": data / "corpus.jsonl", "max_parts": 1, "max_turns": 2, **PROMPTS},
        train_dataset=data / "train.parquet",
        val_dataset=data / "test.parquet",
        overrides=[*SMALL, *sys.argv[1:]],
    )
    trained = trainer.train()
    print(f"held out: F1 {trained.metrics['reward']:.2f}; the run is in {trained.folder}")
