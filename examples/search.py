"""A query optimizer, retrievers and an extractor learn to answer from articles that they have to find.

python examples/search.py                  # two small steps on built-in rows, about two minutes on a laptop
coterie data prepare hotpotqa && python examples/search.py data/hotpotqa steps=50 tasks_per_step=8
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
    *(
        f"roles.{role}.max_tokens={most}"
        for role, most in {"query_optimizer": 16, "retriever": 16, "extractor": 8}.items()
    ),
]
PROMPTS = {
    "optimize": "{question}\n\n{notes}Write a few words to search for, on one line.",
    "retrieve": "{documents}\n\nWhich of these sentences helps to answer “{question}”? Copy it, or write: NOTHING",
    "extract": "{notes}\n{question}\nAnswer with one name.",
}

if __name__ == "__main__":
    data, changes = data_and_changes("hotpotqa", rows(), Path("runs/examples/search"))
    trainer = AgentTrainer(
        config=Path(__file__).parents[1] / "recipes" / "search.yaml",
        workflow_args={"corpus": data / "corpus.jsonl", "max_queries": 1, "max_refinement_iterations": 1, **PROMPTS},
        train_dataset=data / "train.parquet",
        val_dataset=data / "test.parquet",
        overrides=[*SMALL, *changes],
    )
    trained = trainer.train()
    print(f"held out: F1 {trained.metrics['reward']:.2f}; the run is in {trained.folder}")
