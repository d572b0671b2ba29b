"""One word per thing, and where the field has a word, that word: no name of these tables is left in its old meaning."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "coterie"

# Files of the package, as patterns of their paths: old → new.
FILES = {
    "again.py": "analysis/rescore.py",
    "*alone.py": "evaluation/single_agent_baseline.py",
    "given.py": "api_config.py",
    "*left_out.py": "algorithms/turn_filters.py",
    "*patience.py": "watchdog.py",
    "*finite.py": "rl/validate.py",
    "*alarm.py": "training/collapse.py",
    "algorithms/effect.py": "algorithms/option_conflicts.py",
    "algorithms/valued.py": "algorithms/ppo.py",
    "algorithms/chained.py": "algorithms/ppo.py",
    "algorithms/by_role.py": "algorithms/grpo.py",
    "algorithms/peers.py": "algorithms/grpo.py",
    "config/idle.py": "config/conflicts.py",
    "config/fits.py": "config/interfaces.py",
    "config/wanted.py": "config/type_names.py",
    "config/located.py": "config/settings.py",
    "config/strict.py": "config/reader.py",
    "engines/*asked.py": "models/base.py",
    "engines/*seats.py": "engines/native/slots.py",
    "engines/*beginnings.py": "engines/native/prefix_index.py",
    "engines/*steps.py": "engines/native/decode.py",
    "engines/*/graphs.py": "engines/native/cuda_graphs.py",
    "*/narrow*.py": "kernels/top_p_top_k.py",
    "*/thin.py": "kernels/skinny_gemm.py",
    "*/early.py": "kernels/pdl_launch.py",
    "*/either.py": "kernels/dispatch.py",
    "*/slopes.py": "kernels/training_ops_triton.py",
    "*/formulas.py": "kernels/training_ops.py",
    "*/part.py": "models/lora.py",
    "*/stacked.py": "models/lora_decode.py",
    "envs/*/hunt.py": "envs/worlds/treasure_hunt.py",
    "envs/known.py": "envs/dataset_env.py",
    "envs/bench.py": "envs/code.py",
    "*reading.py": "workflows/verdict_parsing.py",
    "workflows/ranks.py": "workflows/lockstep.py",
    "workflows/library.py": "workflows/retrieval.py",
    "sandbox/apart.py": "sandbox/unshare.py",
    "sandbox/bubble.py": "sandbox/bubblewrap.py",
    "sandbox/group.py": "sandbox/proc_usage.py",
    "rewards/*far.py": "rewards/code/remote_object.py",
    "rewards/*wire.py": "rewards/code/codec.py",
    "rewards/*line.py": "rewards/code/rpc.py",
    "rewards/*inside.py": "rewards/code/judge.py",
    "rewards/*child.py": "rewards/code/program_process.py",
    "*/cast.py": "compat/siirl/team.py",
    "*/sheet.py": "compat/siirl/config_draft.py",
    "*/draft.py": "compat/siirl/config_draft.py",
    "*/settle.py": "compat/siirl/parameters.py",
    "*/choose.py": "compat/siirl/parameters.py",
    "*sessions.py": "cli/run.py",
    "learners/torch.py": "learners/learner.py",
}
# Classes: old → new.
CLASSES = {
    "Asked": "AttentionParams",
    "Chained": "Ppo",
    "Chosen": "ChosenLogprobs",
    "Eager": "EagerDecoder",
    "Heard": "GradientStart",
    "Joined": "FusedLinear",
    "Kept": "KVShape",
    "Lesson": "FitJob",
    "Lift": "LoraDelta",
    "Noting": "RecordingLayout",
    "Peers": "group_advantages",
    "Seat": "Player",
    "Seats": "SlotScheduler",
    "Shares": "LoraMixer",
    "SideBySide": "ConcatenatedLora",
    "Tally": "FitMetrics",
    "Valued": "Ppo",
}
# Functions and methods: old → new.
FUNCTIONS = {
    "absent": "count_silent",
    "apart": "not_in_advantage",
    "blame": "accumulate_grad",
    "draw_key": "rng_key",
    "enough": "drop_failed",
    "fresh": "drop_stale",
    "hand_back": "scatter_to_turns",
    "impatient": "run_with_watchdog",
    "in_parts": "split_k",
    "keep_likely": "top_k_top_p",
    "learn": "training_step",
    "shadow": "critic_view",
    "turned": "apply_rope",
    "waits": "exponential_noise",
}
# Attributes, fields and parameters: old → new.
ATTRIBUTES = {
    "apart": "not_in_advantage",
    "earned": "credit",
    "gain": "confidence_weight",
    "gain_alpha": "confidence_alpha",
    "given": "trainable (inverted), or replayed turns",
    "heat": "temperature",
    "otherwise": "counterfactuals",
    "peers": "group_by",
    "repeated": "replayed",
}
# Variables: what they hold says more.
VARIABLES = {
    "asked": "requests, prompt, question",
    "heard": "messages, prompts",
    "letters": "characters",
    "made": "config, instance, built",
    "said": "replies, turns, text",
    "seats": "players, slots",
    "told": "messages, lines, reported",
    "wanted": "expected, requested",
    "worth": "rewards, values",
}
# Keys of a config: old → new.
KEYS = {
    "peers": "group_by",
    "gain": "confidence_weight",
    "gain_alpha": "confidence_alpha",
    "alarm": "collapse",
}
# Metrics, as they begin or are: old → new.
METRICS = {
    "alarm/": "collapse",
    "cut/": "truncated/",
    "dropped/cut": "dropped/truncated",
    "earned/": "credit/",
    "gap": "logprob_gap",
    "gap_max": "logprob_gap_max",
}
# Names that stand for one thing in the whole package.
ONCE = ("Turn", "Run", "Sample", "Episode", "Task", "Player", "is_right", "mean")
# What an engineer greps for, and finds in a docstring of the module that does it.
TERMS = (
    "CUDA graph", "KV cache", "collapse", "counterfactual", "did you mean", "event loop", "evict", "importance weight",
    "prefill", "prefix", "split-K", "use_all_traj", "value head", "watchdog",
)  # fmt: skip


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def at(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


@cache
def found(*kinds: type[ast.AST]) -> list[tuple[Path, ast.AST]]:
    return [(path, node) for path, tree in trees().items() for node in ast.walk(tree) if isinstance(node, kinds)]


@pytest.mark.parametrize("old", FILES)
def test_no_file_has_an_old_name(old: str) -> None:
    names = [path.relative_to(PACKAGE).as_posix() for path in trees()]
    assert [name for name in names if fnmatch(name, old)] == [], f"see {FILES[old]}"


def test_no_class_has_an_old_name() -> None:
    left = [f"{at(path, n)} {n.name} → {CLASSES[n.name]}" for path, n in found(ast.ClassDef) if n.name in CLASSES]  # type: ignore[attr-defined]
    assert left == []


def test_no_function_has_an_old_name() -> None:
    functions = [(path, n) for path, n in found(ast.FunctionDef, ast.AsyncFunctionDef) if n.name in FUNCTIONS]  # type: ignore[attr-defined]
    assert [f"{at(path, n)} {n.name} → {FUNCTIONS[n.name]}" for path, n in functions] == []  # type: ignore[attr-defined]


def test_no_attribute_field_or_parameter_has_an_old_name() -> None:
    left = [
        f"{at(path, node)} {name} → {ATTRIBUTES[name]}"
        for path, node in found(ast.Attribute, ast.AnnAssign, ast.arg)
        for name in names_of(node)
        if name in ATTRIBUTES
    ]
    assert left == []


def names_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id
    elif isinstance(node, ast.arg):
        yield node.arg


def test_no_variable_has_an_old_name() -> None:
    names = [(path, node) for path, node in found(ast.Name) if isinstance(node, ast.Name) and node.id in VARIABLES]
    stored = [(path, node) for path, node in names if isinstance(node.ctx, ast.Store)]
    left = [f"{at(path, n)} {n.id} → {VARIABLES[n.id]}" for path, n in stored if path.parent.name != "games"]  # letters
    assert left == []


def test_no_config_has_an_old_key() -> None:
    files = [*ROOT.glob("recipes/**/*.yaml"), *ROOT.glob("docs/*.md"), ROOT / "README.md"]
    left = [f"{path.relative_to(ROOT)}: {key} → {KEYS[key]}" for path in files for key in keys_in(path) if key in KEYS]
    assert left == []


def keys_in(path: Path) -> Iterator[str]:
    """Every key of a YAML file, or of the YAML in a page, in blocks and in the line."""
    text = path.read_text()
    yield from re.findall(r"(?:^|[{,`])\s*([a-z_]+): ", text, re.MULTILINE)
    if path.suffix == ".yaml" and "!Ref" not in text:
        yield from keys_of(yaml.safe_load(text))


def keys_of(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from keys_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_of(inner)


def test_no_metric_has_an_old_name() -> None:
    texts = [(path, n) for path, n in found(ast.Constant) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    left = [
        f"{at(path, n)} {n.value} → {new}"
        for path, n in texts
        for old, new in METRICS.items()
        if n.value == old or (old.endswith("/") and n.value.startswith(old))  # type: ignore[union-attr]
    ]
    assert left == []


@pytest.mark.parametrize("name", ONCE)
def test_a_name_stands_for_one_thing(name: str) -> None:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    places = [at(path, node) for path, node in found(*kinds) if node.name == name]  # type: ignore[attr-defined]
    top = [place for place, count in Counter(places).items() if count]
    assert len(top) <= 1, top


@pytest.mark.parametrize("term", TERMS)
def test_the_word_of_the_field_is_in_a_docstring(term: str) -> None:
    assert any(term.lower() in text for text in docstrings()), f"no docstring says {term}"


@cache
def docstrings() -> list[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [" ".join((ast.get_docstring(node) or "").split()).lower() for _, node in found(*kinds)]  # type: ignore[arg-type]


def test_a_page_names_only_files_that_are_there() -> None:
    pages = [*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for page in pages:
        named = re.findall(r"`((?:coterie|tests|recipes|examples|docs)/[\w/.]+?\.\w+)`", page.read_text())
        assert [name for name in named if not (ROOT / name).exists()] == [], page.name
