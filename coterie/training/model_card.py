"""The model card of an exported run: how its policies were trained, and what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from coterie import __version__
from coterie.config import Config
from coterie.config.settings import DEMO
from coterie.files import read_rows

DEMO_SOURCE = "HuggingFaceTB/SmolLM2-135M-Instruct"  # on the hub
MEASURED = ("eval/reward", "eval/accuracy", "eval/pass@k", "eval/tokens")


def model_card(run: Path, config: Config, saved: Path, folders: Mapping[str, str], merged: bool) -> str:
    """README.md of an export. Local paths are shortened to their last name."""
    head = {
        "library_name": "transformers" if merged else "peft",
        "pipeline_tag": "text-generation",
        "base_model": sorted({_source(config.policies[name].model) for name in folders}),
        "tags": ["coterie", "reinforcement-learning", "multi-agent", config.algorithm.name.rpartition(":")[2]],
    }
    lines = ["---", yaml.safe_dump(head, sort_keys=False).strip(), "---", "", f"# {config.name}", ""]
    lines += [*_policies(config, folders), "", *_training(config, saved), "", *_measured(run, config, int(saved.name))]
    return "\n".join([*lines, "", *_use(next(iter(folders.values())), merged), ""])


def _policies(config: Config, folders: Mapping[str, str]) -> Iterator[str]:
    yield f"A team of language models, trained with Coterie {__version__}: one folder per policy."
    yield ""
    yield "| folder | plays | trained from | adapter |"
    yield "|---|---|---|---|"
    for name, folder in folders.items():
        policy = config.policies[name]
        roles = ", ".join(role for role, own in config.roles.items() if name in own.policies)
        kind = f"LoRA, rank {policy.lora.rank}" if policy.lora is not None else "none, all weights"
        kind += ", frozen" if policy.frozen else ""
        yield f"| `{folder}` | {roles} | {_source(policy.model)} | {kind} |"


def _training(config: Config, saved: Path) -> Iterator[str]:
    yield "## Training"
    yield ""
    parts = {kind: getattr(config, kind).name for kind in ("workflow", "env", "reward", "algorithm", "credit")}
    yield from (f"- {kind}: {_last(name)}" for kind, name in parts.items())
    size = f"{config.tasks_per_step} tasks × {config.episodes_per_task} episodes"
    yield f"- {int(saved.name)} of {config.steps} steps, each with {size}; seed {config.seed}"
    rates = ", ".join(f"{name} {policy.lr:g}" for name, policy in config.policies.items() if not policy.frozen)
    yield f"- learning rate: {rates}"


def _measured(run: Path, config: Config, step: int) -> Iterator[str]:
    """Held-out evaluations that the run logged: the first, and the last one up to the checkpoint."""
    yield "## Measured"
    yield ""
    rows = [row for row in read_rows(run / "metrics.jsonl") if "eval/reward" in row and row["step"] <= step]
    if not rows:
        yield "The run logged no evaluation up to this checkpoint."
        return
    shown = [rows[0]] if len(rows) == 1 else [rows[0], rows[-1]]
    metrics = [name for name in MEASURED if any(name in row for row in shown)]
    how = "greedy" if config.eval.temperature == 0 else f"temperature {config.eval.temperature:g}"
    yield f"On {config.eval.tasks} held-out tasks at most, {how}, by the run itself:"
    yield ""
    yield f"| after step | {' | '.join(name.removeprefix('eval/') for name in metrics)} |"
    yield f"|{'---|' * (len(metrics) + 1)}"
    for row in shown:
        values = [f"{row[name]:.3g}" if name in row else "" for name in metrics]
        yield f"| {row['step']:.0f} | {' | '.join(values)} |"


def _use(folder: str, merged: bool) -> Iterator[str]:
    yield "## Use"
    yield ""
    load = "AutoModelForCausalLM" if merged else "AutoPeftModelForCausalLM"
    yield "```python"
    yield f"from {'transformers' if merged else 'peft'} import {load}"
    yield f'model = {load}.from_pretrained("{folder}")'
    yield "```"
    yield ""
    yield "The roles were trained on the prompts of their workflow; with other prompts they may do worse than measured."


def _source(model: str) -> str:
    """Where a base model came from: its name on the hub, or the last part of a local path."""
    return DEMO_SOURCE if model == DEMO else _last(model)


def _last(name: str) -> str:
    return Path(name).name if Path(name).is_absolute() else name
