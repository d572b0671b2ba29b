"""Laws of reasoning-gym's own scorers: what they evaluate runs in the sandbox, on answers of the task's grammar."""

from __future__ import annotations

import ast
import asyncio
import builtins
import inspect
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import reasoning_gym
from reasoning_gym.factory import DATASETS

from coterie.envs.base import TaskEnv, attach_reward
from coterie.envs.reasoning_gym import ReasoningGym
from coterie.rewards import reasoning_gym as native
from coterie.rewards.reasoning_gym_grammars import EVALUATING, LOOSE, is_in_grammar
from coterie.types import Task

ENTRIES = 3  # of each dataset


def scored(env: TaskEnv, answers: list[tuple[str, Task]]) -> list[float]:
    async def all_of_them() -> list[float]:
        return list(await asyncio.gather(*(env.grade(text, env.reference(task)) for text, task in answers)))

    return asyncio.run(all_of_them())


def made(dataset: str, **params: Any) -> TaskEnv:
    env = attach_reward(ReasoningGym(dataset, params, size=ENTRIES, test_size=1), "native", {}, 60.0)
    assert isinstance(env, TaskEnv)
    return env


@pytest.mark.parametrize("dataset", sorted(EVALUATING))
def test_a_reference_answer_scores_in_the_sandbox_what_the_library_gives(dataset: str) -> None:
    env = made(dataset)
    tasks = env.tasks("train")
    library = reasoning_gym.create_dataset(dataset)
    expected = [library.score_answer(task.answer, env.reference(task)) for task in tasks]
    assert scored(env, [(task.answer, task) for task in tasks]) == expected == [1.0] * ENTRIES


SECOND = {  # other ways to write a right answer, and what the library gives for them
    "binary_matrix": (lambda text: str([[int(item) for item in row.split()] for row in text.split("\n")]), 0.1),
    "countdown": (lambda text: f"({text})", 1.0),
    "intermediate_integration": (lambda text: text.replace(" + C", "") + " + 7", 1.0),
    "n_queens": (lambda text: str([row.split() for row in text.split("\n")]), 0.5),
    "polynomial_multiplication": (lambda text: f"0 + {text}", 1.0),
    "puzzle24": (lambda text: f"({text})", 1.0),
    "simple_integration": (lambda text: f"1*({text}) - 0.5", 1.0),
    "spiral_matrix": (lambda text: str([int(item) for item in text.split()]), 0.1),
    "string_insertion": (lambda text: str(list(text)), 0.1),
}


@pytest.mark.parametrize("dataset", sorted(EVALUATING))
def test_a_right_answer_in_another_form_is_evaluated(dataset: str) -> None:
    env = made(dataset)
    task = next(task for task in env.tasks("train") if "Integral" not in task.answer)
    write, expected = SECOND[dataset]
    assert scored(env, [(f"I think <answer>{write(task.answer)}</answer>", task)]) == [expected]


CANARY = "COTERIE_CANARY"


def attacks(reference: str, canary: Path) -> list[str]:
    return [
        f"__import__('os').system('touch {canary}')",
        f"[__import__('os').system('touch {canary}')]",
        f"[].__class__.__base__.__subclasses__()[0](open({str(canary)!r}, 'w'))",
        "[setattr(type(self),'score_answer',lambda *a,**k:1.0)]",
        f"({reference})*len('')+len('{'a' * 24}')",
        f"__import__('os').environ['{CANARY}']",
        f"__import__('os').environ.__setitem__('{CANARY}', 'gone') or 1",
        "[x for x in ().__class__.__bases__]",
        "lambda: 1",
        "(y := 24)",
        "f'{self}'",
        "sin.__globals__",
        "Integral(1, x)",
        "1_0 + 0x1f + 1e9",
        "9**9**9**9",
        "(" * 500 + "1" + ")" * 500,
        "-" * 900 + "1",
        "1+" * 499 + "1",
        "9" * 900,
        "\ud800",
        "١٢٣",
        "['A' 'B']",
        "[b'A']",
        "x(1)",
        "exp(x, evaluate=True)",
        "\0",
        "",
    ]


@pytest.mark.parametrize("dataset", sorted(EVALUATING))
def test_no_attack_runs_earns_or_changes_what_later_answers_earn(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CANARY, "alive")
    env, canary = made(dataset), tmp_path / "canary"
    task = env.tasks("train")[0]
    worth = scored(env, [(attack, task) for attack in attacks(task.answer, canary)])
    assert max(worth) <= 0.05
    assert not canary.exists() and os.environ[CANARY] == "alive"
    assert scored(env, [("nonsense", task), (task.answer, task)]) == [0.0, 1.0]


@pytest.mark.parametrize("dataset", sorted(EVALUATING))
def test_attacks_do_not_reach_the_scorer(dataset: str, tmp_path: Path) -> None:
    """All but those that are harmless numbers are outside of the grammar."""
    env = made(dataset)
    task = env.tasks("train")[0]
    seen = [text for text in attacks(task.answer, tmp_path) if is_in_grammar(dataset, text, env.reference(task))]
    assert all(text.strip("0123456789+") == "" for text in seen)


def test_the_sandbox_holds_where_the_grammar_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the grammar out of the way, evaluated text still reaches neither files, environment nor the next answer."""
    monkeypatch.setattr(native, "is_in_grammar", lambda *_: True)
    monkeypatch.setenv(CANARY, "alive")
    env, canary = made("spiral_matrix"), tmp_path / "canary"
    task = env.tasks("train")[0]
    wanted = task.answer.split()
    reads = f"[[{', '.join(wanted)}], __import__('os').environ['{CANARY}']][0]"
    worth = scored(env, [(text, task) for text in (reads, *attacks(task.answer, canary)[:4], "nonsense")])
    assert worth == [0.0] * 6
    assert not canary.exists() and os.environ[CANARY] == "alive"


@pytest.mark.parametrize(
    ("dataset", "wrong"),
    [
        ("coin_flip", ["0", "0.", "1e999999999", "1/0", "nan"]),
        ("complex_arithmetic", ["nan", "nanj", "inf-infj"]),
        ("game_of_life_halting", ["x", "0", "True or False"]),
        ("polynomial_equations", ["none", "nan", "x"]),
        ("puzzle24", ["1*2*3*4", "(1+1+1)*8"]),
        ("rubiks_cube", ["R999999999", "x"]),
    ],
)
def test_wrong_answers_that_a_library_scorer_accepts_earn_nothing(dataset: str, wrong: list[str]) -> None:
    env = made(dataset)
    task = env.tasks("train")[1]
    assert scored(env, [(text, task) for text in wrong]) == [0.0] * len(wrong)


@pytest.mark.parametrize("dataset", sorted(set(LOOSE) - {"rubiks_cube"}))
def test_a_stricter_check_lets_right_answers_through(dataset: str) -> None:
    env = made(dataset)
    tasks = env.tasks("train")
    assert scored(env, [(task.answer, task) for task in tasks]) == [1.0] * ENTRIES


# --- the list of evaluating scorers is complete ---

# All that scorers call outside of their library, as far as it was read. Something new in a later version is read first.
HARMLESS = {"collections", "copy", "datetime", "decimal", "enum", "fractions", "json", "magiccube", "math", "numpy"}
HARMLESS |= {"random", "re", "typing", "zss"}
NOT_HARMLESS = {"eval", "exec", "compile", "__import__", "open", "getattr", "setattr", "globals", "vars", "input"}
OWN_DATA = {"number_sorting": 'eval(entry["answer"])', "bitwise_arithmetic": "eval(problem)"}  # not the model's text


def reached(scorer: type) -> Iterator[Callable[..., Any]]:
    """The functions of the library that a scorer may call, by the names in its source."""
    seen, queue = set[Any](), [scorer.score_answer]  # type: ignore[attr-defined]
    while queue:
        function = queue.pop()
        if function in seen or "<locals>" in function.__qualname__ or "<string>" in function.__code__.co_filename:
            continue
        seen.add(function)
        yield function
        for found in (*named_in(function), *own_methods(function, scorer)):
            if (getattr(found, "__module__", None) or "").startswith("reasoning_gym"):
                parts = vars(found).values() if inspect.isclass(found) else [found]
                plain = (inspect.unwrap(getattr(part, "__func__", part)) for part in parts if callable(part))
                queue += [part for part in plain if inspect.isfunction(part)]


def tree(function: Callable[..., Any]) -> ast.Module:
    return ast.parse(textwrap.dedent(inspect.getsource(function)))


def own_methods(function: Callable[..., Any], scorer: type) -> Iterator[Any]:
    for node in ast.walk(tree(function)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            method = inspect.getattr_static(scorer, node.attr, None)
            yield getattr(method, "__func__", method)


def named_in(function: Callable[..., Any]) -> Iterator[Any]:
    """What the names and dotted names in a function's source stand for."""
    known = {**vars(builtins), **vars(sys.modules[function.__module__])}
    for node in ast.walk(tree(function)):
        if isinstance(node, ast.Name | ast.Attribute):
            first, *rest = ast.unparse(node).split(".")
            found = known.get(first)
            for name in rest:
                found = getattr(found, name, None)
            if callable(found):
                yield found


def suspicious(scorer: type) -> set[str]:
    """Names through which a scorer may evaluate text, or that nobody has read yet."""
    found = set()
    for function in reached(scorer):
        for named in named_in(function):
            place = (getattr(named, "__module__", None) or "builtins").partition(".")[0]
            name = getattr(named, "__name__", str(named))
            if place in ("builtins", "_io", "io") and name in NOT_HARMLESS:
                found.add(name)
            elif place not in HARMLESS | {"builtins", "reasoning_gym"}:
                found.add(f"{place}.{name}")
        if any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(tree(function))):
            found |= {ast.unparse(n) for n in ast.walk(tree(function)) if isinstance(n, ast.Import | ast.ImportFrom)}
    return found - {"import warnings"}


def test_every_scorer_that_evaluates_is_on_the_list() -> None:
    found = {name: suspicious(scorer) for name, (scorer, _) in DATASETS.items()}
    assert {name for name, calls in found.items() if calls} == set(EVALUATING) | set(OWN_DATA)


def test_scorers_that_evaluate_their_own_data_do_not_evaluate_the_answer() -> None:
    for name, call in OWN_DATA.items():
        assert suspicious(DATASETS[name][0]) == {"eval"}
        source = "\n".join(inspect.getsource(function) for function in reached(DATASETS[name][0]))
        assert source.count("eval(") == source.count(call) == 1
    assert 'verify_solution(entry["metadata"]["problem"], answer)' in inspect.getsource(
        DATASETS["bitwise_arithmetic"][0].score_answer
    )


def test_the_scan_notices_a_scorer_that_evaluates() -> None:
    class Evaluates(DATASETS["chain_sum"][0]):  # type: ignore[misc]
        def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
            return self.helper(answer)

        def helper(self, answer: str) -> float:
            return float(eval(answer))

    Evaluates.score_answer.__qualname__ = Evaluates.helper.__qualname__ = "Evaluates.method"
    Evaluates.helper.__module__ = "reasoning_gym.test"
    sys.modules["reasoning_gym.test"] = sys.modules[__name__]
    try:
        assert suspicious(Evaluates) == {"eval"}
    finally:
        del sys.modules["reasoning_gym.test"]
