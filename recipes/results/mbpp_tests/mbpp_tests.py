"""A coder and a tester solve MBPP together: only the description and the signature are shown, no test.

The coder writes several programs. The tester reads the same task, never a program, and writes asserts. All programs run
against all asserts in the sandbox, and the program that passes most of them is the answer.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from coterie.envs.code import CodeWorld, Mbpp, of_each
from coterie.prompts import chat_messages
from coterie.rewards.code.grader import Verdict, code_in, run_tests
from coterie.rewards.code.test_formats import read_tests
from coterie.types import Grade, Message, Metrics, Outcome, Split, Task, Team, Turn

CODE = "{question}\n\nGive the code in one ```python block."
TEST = (
    "{question}\n\nDo not write the function. Write up to four tests for it, each on a line of its own in the form\n"
    "assert {call} == expected_value\nwith literal values, in one ```python block."
)
MOST = 4  # asserts of a reply
TEST_SECONDS, SECONDS = 1.0, 3.0  # deadlines of one test and of all; a step waits for the last program that never ends
UNREADABLE, INVALID, VALID = -1.0, -0.5, 0.5


@dataclass(frozen=True)
class SignatureOnly(Mbpp):
    """MBPP whose prompt has the function's signature instead of a test."""

    prompt: str = "{question}"

    def tasks(self, split: Split) -> list[Task]:
        return [task for task in map(signature_only, super().tasks(split)) if task is not None]


def signature_only(task: Task) -> Task | None:
    """The task with the signature of its reference program; None if that does not define what the tests call."""
    name = called_function(task.meta["tests"]["test_list"][0])
    functions = [
        node for node in ast.parse(task.answer).body if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    if not functions:
        return None
    call = f"{name}({', '.join(argument.arg for argument in functions[-1].args.args)})"
    text = task.prompt.partition("\nYour code must pass this test:")[0]
    question = f"{text}\nThe function is called as {call}."
    return replace(task, prompt=question, meta={**task.meta, "function": name, "call": call})


def called_function(source: str) -> str:
    """The function of a test, as in `assert set(f(1)) == {2}`: the innermost call of a name that is no builtin."""
    calls = [node.func.id for node in ast.walk(ast.parse(source.strip())) if _calls_a_name(node)]
    own = [name for name in calls if not hasattr(builtins, name)]
    return (own or calls or [""])[0]


def _calls_a_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


@dataclass(frozen=True)
class CoderTester:
    """`programs` replies of the coder and `calls` of the tester, all at once; the elected program is the answer.

    A program's reward is the fraction of the hidden tests that it passes. An assert that holds for the reference
    program gets 0.5, plus 0.5 times the fraction of this episode's wrong programs that it rejects; one that does not
    hold gets −0.5. With `margin` an assert gets what it does for the election: the fraction of right programs that
    pass it, the reference included, minus the fraction of wrong ones. A tester's reply gets the mean over its asserts,
    or −1 if it has none that can be read.
    """

    judges_turns: ClassVar[bool] = True
    needs_sandbox: ClassVar[bool] = True

    programs: int = 4
    calls: int = 2  # replies of the tester
    assert_reward: str = "valid"  # or margin
    select: str = "asserts"  # or clusters: of equal outputs on the calls of the asserts, whatever they expect
    conversation: bool = False  # the tester goes on in the coder's conversation, after its program
    roles: tuple[str, ...] = ("coder", "tester")

    async def run(self, task: Task, team: Team, world: Any) -> Outcome:
        assert isinstance(world, CodeWorld)
        code = chat_messages(CODE.replace("{question}", task.prompt))
        coded = await asyncio.gather(*(team.coder.say(code) for _ in range(self.programs)))
        tests = [self._request(task, code, coded[call % len(coded)]) for call in range(self.calls)]
        tested = await asyncio.gather(*(team.tester.say(test) for test in tests))
        found = [asserts_in(turn.text, task.meta["function"]) for turn in tested]
        pool = list(dict.fromkeys(source for sources in found for source in sources))
        verdicts = await of_each([turn.text for turn in coded], partial(check, pool=pool))
        chosen = coded[elect(verdicts, pool, self.select)]
        reward = margin_reward if self.assert_reward == "margin" else validity_reward
        score = partial(judge, task, world, coded, tested, found, pool, verdicts, chosen, reward)
        return Outcome(chosen.text, judge=score)

    def _request(self, task: Task, code: list[Message], program: Turn) -> list[Message]:
        request = chat_messages(TEST.replace("{question}", task.prompt).replace("{call}", task.meta["call"]))
        return [*code, Message(role="assistant", content=program.text), *request] if self.conversation else request


def asserts_in(text: str, function: str) -> list[str]:
    """The first few distinct asserts `function(literals) == literal` of a reply, in one spelling."""
    found: dict[str, None] = {}
    for line in (code_in(text) or text).splitlines():
        if line.strip().startswith("assert") and (source := _assert(line.strip(), function)) is not None:
            found[source] = None
    return list(found)[:MOST]


def _assert(line: str, function: str) -> str | None:
    try:
        (node,) = ast.parse(line).body
        match node:
            case ast.Assert(ast.Compare(ast.Call(ast.Name(name), arguments, []), [ast.Eq()], [expected])):
                for literal in (*arguments, expected):
                    ast.literal_eval(literal)
                return ast.unparse(node) if name == function else None
    except (SyntaxError, ValueError, RecursionError, MemoryError, TypeError):
        pass
    return None


async def check(text: str, pool: Sequence[str]) -> Verdict | None:
    """A program's results on the asserts, by its own process in the sandbox; None without a program or an assert."""
    program = code_in(text)
    if program is None or not pool:
        return None
    tests = read_tests({"test_list": list(pool)})
    return await run_tests(program, tests, test_seconds=TEST_SECONDS, seconds=SECONDS)


def passed(verdict: Verdict | None, pool: Sequence[str]) -> list[bool]:
    failed = {failure.test for failure in verdict.failures} if verdict else set(range(len(pool)))
    return [number not in failed and (verdict is not None and number in verdict.reached) for number in range(len(pool))]


def elect(verdicts: Sequence[Verdict | None], pool: Sequence[str], select: str = "asserts") -> int:
    """The place of the program with most asserts passed; ties go to the largest cluster of equal outputs, then to the
    earliest. With `clusters` only the clusters count."""
    votes = [sum(passed(verdict, pool)) if select == "asserts" else 0 for verdict in verdicts]
    signatures = [verdict.outputs(len(pool)) if verdict else () for verdict in verdicts]
    sizes = Counter(signature for signature, verdict in zip(signatures, verdicts, strict=True) if verdict is not None)
    return max(range(len(verdicts)), key=lambda place: (votes[place], sizes[signatures[place]], -place))


AssertReward = Callable[[bool, float, float], float]  # of an assert that holds, is accepted and rejects as often


def validity_reward(valid: bool, accepts: float, rejects: float) -> float:
    return VALID + 0.5 * rejects if valid else INVALID


def margin_reward(valid: bool, accepts: float, rejects: float) -> float:
    """The share of right programs that pass, minus that of wrong ones."""
    return accepts - (1 - rejects)


async def judge(
    task: Task,
    world: CodeWorld,
    coded: Sequence[Turn],
    tested: Sequence[Turn],
    found: Sequence[Sequence[str]],
    pool: Sequence[str],
    verdicts: Sequence[Verdict | None],
    chosen: Turn,
    assert_reward: AssertReward,
    grade: Grade,
) -> Metrics:
    """Reward every turn, and measure how valid and how sharp the asserts are."""
    test = partial(world.test, test_seconds=TEST_SECONDS, seconds=SECONDS)
    for turn, result in zip(coded, await of_each([turn.text for turn in coded], test), strict=True):
        turn.reward = result.score
    valid = dict(zip(pool, passed(await check(f"```python\n{task.answer}\n```", pool), pool), strict=True))
    rows = [(turn.reward == 1, passed(verdict, pool)) for turn, verdict in zip(coded, verdicts, strict=True)]
    right, wrong = ([row for is_right, row in rows if is_right is kind] for kind in (True, False))
    rejects = {
        source: sum(not row[number] for row in wrong) / len(wrong) if wrong else 0.0
        for number, source in enumerate(pool)
    }
    accepts = {
        source: (valid[source] + sum(row[number] for row in right)) / (1 + len(right))
        for number, source in enumerate(pool)
    }
    for turn, sources in zip(tested, found, strict=True):
        rewards = [assert_reward(valid[source], accepts[source], rejects[source]) for source in sources]
        turn.reward = sum(rewards) / len(rewards) if rewards else UNREADABLE
    metrics = {
        "coder_right": len(right) / len(rows),
        "any_right": float(bool(right)),
        "chosen_right": float(chosen.reward == 1),
        "clusters_right": float(rows[elect(verdicts, pool, "clusters")][0]),
        "asserts": float(len(pool)),
    }
    if pool:
        metrics["valid"] = sum(valid.values()) / len(pool)
    if any(valid.values()) and wrong:
        metrics["rejects"] = sum(rejects[source] for source in pool if valid[source]) / sum(valid.values())
    return metrics
