"""A planner, gatherers with tools and a synthesizer learn to answer from articles, with citations.

python examples/deepresearch.py                  # two small steps on built-in rows, about two minutes on a laptop
coterie data prepare hotpotqa && python examples/deepresearch.py data/hotpotqa steps=50 tasks_per_step=8
"""

from __future__ import annotations

from pathlib import Path

from articles import rows
from prepared import data_and_changes

from coterie import AgentTrainer

# For a very small model: a few tokens per role, and prompts that show the form of a reply.
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
    data, changes = data_and_changes("hotpotqa", rows(), Path("runs/examples/deepresearch"))
    trainer = AgentTrainer(
        config=Path(__file__).parents[1] / "recipes" / "deepresearch.yaml",
        workflow_args={"corpus": data / "corpus.jsonl", "max_subqueries": 1, "max_turns": 2, **PROMPTS},
        train_dataset=data / "train.parquet",
        val_dataset=data / "test.parquet",
        overrides=[*SMALL, *changes],
    )
    trained = trainer.train()
    print(f"held out: F1 {trained.metrics['reward']:.2f}; the run is in {trained.folder}")
