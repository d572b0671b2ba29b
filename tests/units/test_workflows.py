"""Laws of how roles talk."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, ClassVar

import pytest

from coterie.envs.code import CodeWorld
from coterie.prompts import fill
from coterie.types import Message, Outcome, Task, Turn, Workflow
from coterie.workflows.chain import Chain
from coterie.workflows.debate import Debate
from coterie.workflows.mixture import Mixture
from coterie.workflows.orchestrate import Orchestrate
from coterie.workflows.refine import Refine
from coterie.workflows.single import Single
from coterie.workflows.summarize import Summarize
from coterie.workflows.vote import Vote, elect, majority
from tests.hangs import HANG
from tests.scripted import Scripted, ScriptedAgent

TASK = Task("t", "What is 2 + {2}?", "4")


def play(workflow: Workflow, lines: dict[str, list[str]]) -> tuple[Any, Scripted]:
    team = Scripted(lines)
    return asyncio.run(workflow.run(TASK, team, None)), team


ALL = [Single(), Vote(), Chain(), Debate(), Summarize(), Mixture(), Refine(), Orchestrate()]


@pytest.mark.parametrize("workflow", ALL, ids=lambda w: type(w).__name__)
def test_a_workflow_asks_every_role_it_names_and_no_other(workflow: Workflow) -> None:
    assert isinstance(workflow, Workflow)
    _, team = play(workflow, {role: ["4"] * 9 for role in workflow.roles})
    assert all(team[role].prompts for role in workflow.roles)


def test_a_lone_solver_hears_the_question_and_its_text_is_the_answer() -> None:
    answer, team = play(Single(prompt="Q: {question}", system="Be brief."), {"solver": [" It is\n4 "]})
    assert answer == " It is\n4 "
    assert team.solver.prompts == [
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Q: What is 2 + {2}?"}]
    ]


@pytest.mark.parametrize("kind", [Single, Debate])
def test_examples_are_earlier_turns_of_the_conversation(kind: type[Single | Debate]) -> None:
    workflow = kind(system="Add.", examples=(("1 + 1?", "2"), ("1 + 2?", "3")))
    _, team = play(workflow, {role: ["4", "4"] for role in workflow.roles})
    first = team[workflow.roles[0]].prompts[0]
    assert [message["content"] for message in first] == ["Add.", "1 + 1?", "2", "1 + 2?", "3", "What is 2 + {2}?"]
    assert [message["role"] for message in first] == ["system", *("user", "assistant") * 2, "user"]


def test_a_later_role_reads_what_earlier_ones_said() -> None:
    chain = Chain(
        roles=("reasoner", "critic", "actor"),
        prompts={"critic": "{reasoner} Right?", "actor": "{question} {reasoner} {critic} So?"},
        systems={"actor": "Answer."},
    )
    answer, team = play(chain, {"reasoner": ["{critic} adds"], "critic": ["yes"], "actor": ["4"]})
    assert answer == "4"
    assert team.critic.prompts == [[{"role": "user", "content": "{critic} adds Right?"}]]
    assert team.actor.prompts[0][0] == {"role": "system", "content": "Answer."}
    # What a role said is never read as a template.
    assert team.actor.prompts[0][1]["content"] == "What is 2 + {2}? {critic} adds yes So?"


def test_a_chain_of_any_names_has_prompts_of_its_own() -> None:
    chain = Chain(roles=("1st thinker", "über-prüfer", "actor"))
    _, team = play(chain, {"1st thinker": ["two and two"], "über-prüfer": ["fine"], "actor": ["4"]})
    asked = team.actor.prompts[0][0]["content"]
    assert "two and two" in asked and "fine" in asked and TASK.prompt in asked
    assert "{1st thinker}" not in asked


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Chain(prompts={"actor": "{reasonr}"}), r"prompts.actor: unknown field {reasonr}; .*{reasoner}"),
        (lambda: Chain(prompts={"reasoner": "{actor}"}), r"prompts.reasoner: unknown field {actor}"),
        (lambda: Chain(prompts={"writer": "x"}), r"prompts.writer: no such role; the chain is reasoner → actor"),
        (lambda: Chain(systems={"writer": "x"}), r"systems.writer: no such role"),
        (lambda: Chain(roles=("a", "a")), r"roles: must be distinct"),
        (lambda: Chain(roles=("question", "a")), r"none named question"),
        (lambda: Single(prompt="{task}"), r"prompt: unknown field {task}; it may use {question}, and {{task}}"),
        (lambda: Vote(prompt="{task}"), r"prompt: unknown field {task}"),
        (lambda: Vote(voters=0), r"voters: at least 1"),
        (lambda: Debate(prompt="{others}"), r"prompt: unknown field {others}"),
        (lambda: Debate(revise="{other}"), r"revise: unknown field {other}"),
        (lambda: Debate(roles=("a",)), r"roles: two or more"),
        (lambda: Debate(rounds=0), r"rounds: at least 1"),
        (lambda: Summarize(solvers=("summarizer",)), r"solvers: one or more distinct names"),
        (lambda: Summarize(summary="{answer}"), r"summary: unknown field {answer}"),
        (lambda: Mixture(proposers=()), r"proposers: one or more"),
        (lambda: Mixture(layers=0), r"layers: at least 1"),
        (lambda: Refine(max_rounds=0), r"max_rounds: at least 1"),
        (lambda: Refine(evaluate="{answers}"), r"evaluate: unknown field {answers}"),
        (lambda: Orchestrate(workers=("orchestrator",)), r"workers: one or more distinct names"),
        (lambda: Orchestrate(max_steps=0), r"max_steps: at least 1"),
    ],
)
def test_a_mistake_in_a_workflow_is_told_when_it_is_made(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_latex_in_a_prompt_stays_as_it_is() -> None:
    prompt = r"{question} Use \boxed{}, as in \boxed{\frac{1}{2}} or \boxed{{answer}}."
    assert Single(prompt=prompt).prompt == prompt
    assert fill(prompt, {"question": "Q"}) == r"Q Use \boxed{}, as in \boxed{\frac{1}{2}} or \boxed{answer}."


def test_a_debater_goes_on_in_one_conversation_and_reads_only_the_others() -> None:
    debate = Debate(roles=("ann", "bob"), rounds=3, revise="{others} Now?")
    answer, team = play(debate, {"ann": ["4", "5", "6"], "bob": ["7", "8", "9"]})
    assert answer == "6"
    first, second, third = team.ann.prompts
    assert [m["content"] for m in third] == [TASK.prompt, "4", "bob said:\n7 Now?", "5", "bob said:\n8 Now?"]
    assert [m["role"] for m in third] == ["user", "assistant", "user", "assistant", "user"]
    assert third[: len(second)] == second and second[: len(first)] == first


def test_debaters_of_one_round_speak_at_the_same_time() -> None:
    """Each waits until all are there: one after the other would wait for ever."""

    class Meets(ScriptedAgent):
        async def say(self, messages: str | Sequence[Message], **sampling: Any) -> Turn:
            await barrier.wait()
            return await super().say(messages, **sampling)

    team, barrier = Scripted({"ann": ["4"], "bob": ["4"]}, Meets), asyncio.Barrier(2)
    debate = Debate(roles=("ann", "bob"), rounds=1)
    assert asyncio.run(asyncio.wait_for(debate.run(TASK, team, None), HANG)) == "4"


def test_the_majority_answer_keeps_its_whole_text() -> None:
    answer, team = play(Vote(voters=3), {"solver": ["9", r"So \boxed{4}.", "It is 4.0"]})
    assert answer == r"So \boxed{4}."
    assert len(team.solver.prompts) == 3


def test_programs_vote_by_what_they_do() -> None:
    """The largest group of equal outputs wins, right or wrong; by the last number in the text, 2 would."""
    world = CodeWorld({"test_list": ["assert f(2) == 4", "assert f(3) == 9"]})
    right, same, wrong = ("def f(x):\n    return x * x", "def f(x):\n    return x ** 2", "def f(x):\n    return x + 7")
    programs = [f"```python\n{program}\n```" for program in (wrong, right, "def f(x):\n    return x - 2", same)]
    without = ["I cannot.", "I cannot.", "I cannot."]
    assert asyncio.run(elect([*without, *programs], world)) == programs[1]
    assert majority(programs) == programs[2]
    also_wrong = f"```python\n{wrong.replace('x + 7', '7 + x')}\n```"
    assert asyncio.run(elect([programs[1], programs[0], also_wrong], world)) == programs[0]


def test_equal_programs_run_once_and_vote_as_often_as_they_were_given() -> None:
    class Counts(CodeWorld):
        ran: ClassVar[list[str]] = []

        async def outputs(self, text: str) -> tuple[str, ...] | None:
            self.ran.append(text)
            return (text[-1],)

    world = Counts({"test_list": ["assert f(2) == 4"]})
    assert asyncio.run(elect(["a", "b", "c", "b", "a", "b"], world)) == "b"
    assert world.ran == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("answers", "winner"),
    [
        (["4", "5"], "4"),
        (["5", "4", "4.0"], "4"),
        (["1,000", "1000", "10"], "1,000"),
        (["Yes", "no", "yes "], "Yes"),
        ([r"\boxed{\frac{3}{2}}", r"\boxed{\frac{1}{2}}", r"\boxed{\frac{1}{2} }"], r"\boxed{\frac{1}{2}}"),
        ([r"\boxed{(1,2)}", r"\boxed{(3,2)}", r"\boxed{(3, 2)}"], r"\boxed{(3,2)}"),
        (["", "4"], ""),
    ],
)
def test_the_majority_is_counted_by_meaning_and_a_tie_goes_to_the_earliest(answers: list[str], winner: str) -> None:
    assert majority(answers) == winner


def test_a_summarizer_reads_every_answer_and_gives_the_teams() -> None:
    workflow = Summarize(solvers=("ann", "bob"), summary="{answers} So?", systems={"bob": "Be brief."})
    answer, team = play(workflow, {"ann": ["four"], "bob": ["4"], "summarizer": [r"\boxed{4}"]})
    assert answer == r"\boxed{4}"
    assert team.summarizer.prompts[0][0]["content"] == "Answer 1:\nfour\n\nAnswer 2:\n4 So?"
    assert team.bob.prompts[0][0] == {"role": "system", "content": "Be brief."}


def test_every_layer_of_a_mixture_reads_the_layer_before() -> None:
    workflow = Mixture(proposers=("ann", "bob"), layers=2, improve="{answers}")
    answer, team = play(workflow, {"ann": ["1", "3"], "bob": ["2", "4"], "aggregator": ["5"]})
    assert answer == "5"
    assert team.bob.prompts[1][0]["content"] == "Answer 1:\n1\n\nAnswer 2:\n2"
    assert team.aggregator.prompts[0][0]["content"] == "Answer 1:\n3\n\nAnswer 2:\n4"


def graded(outcome: Outcome) -> dict[str, float]:
    """The metrics after a grader that wants a 4."""

    async def grade(answer: str) -> float:
        return float("4" in answer)

    assert outcome.judge is not None
    return dict(outcome.metrics) | dict(asyncio.run(outcome.judge(grade)))


@pytest.mark.parametrize(
    ("answers", "verdicts", "rewards", "true"),
    [
        (["4"], ["Verdict: correct"], [1.0], [1.0]),
        (["5", "4"], ["Verdict: incorrect", "Correct."], [0.0, 1.0], [1.0, 1.0]),
        (["5", "6"], ["Verdict: incorrect", "Verdict: incorrect"], [0.0, 0.0], [1.0, 1.0]),
        (["5"], ["Verdict: correct"], [0.0], [0.0]),
        (["4", "4"], ["I cannot tell.", "Verdict: correct"], [1.0, 1.0], [0.0, 1.0]),
    ],
    ids=["right at once", "right after refinement", "never right", "accepted too soon", "malformed verdict"],
)
def test_an_evaluator_ends_the_loop_and_earns_for_being_right(
    answers: list[str], verdicts: list[str], rewards: list[float], true: list[float]
) -> None:
    outcome, team = play(Refine(max_rounds=2), {"optimizer": list(answers), "evaluator": list(verdicts)})
    metrics = graded(outcome)
    assert outcome.answer == answers[-1]
    assert [turn.reward for turn in team.optimizer.turns] == rewards
    assert [turn.reward for turn in team.evaluator.turns] == true
    assert metrics["total_iterations"] == len(answers) and metrics["final_success"] == rewards[-1]
    assert metrics["evaluator_accuracy"] == sum(true) / len(true)


def test_an_optimizer_goes_on_in_one_conversation_with_the_remarks() -> None:
    _, team = play(Refine(), {"optimizer": ["5", "4"], "evaluator": ["Too high. Verdict: wrong", "Correct"]})
    assert team.optimizer.prompts[1][:2] == [*team.optimizer.prompts[0], {"role": "assistant", "content": "5"}]
    assert "Too high." in team.optimizer.prompts[1][2]["content"]


def test_workers_share_the_steps_of_a_plan_and_the_orchestrator_answers() -> None:
    lines = {"orchestrator": ["1. two\n2. and two\n3. more", "4"], "ann": ["2", "0"], "bob": ["2"]}
    outcome, team = play(Orchestrate(workers=("ann", "bob")), lines)
    assert outcome.answer == "4" and outcome.metrics == {"steps": 3}
    assert "and two\n→ 2" in team.orchestrator.prompts[1][-1]["content"]
    assert "Done so far" not in team.ann.prompts[1][0]["content"]


def test_steps_in_sequence_know_what_came_before() -> None:
    lines = {"orchestrator": ["two\nand two", "4"], "worker": ["TWO", "4"]}
    _, team = play(Orchestrate(sequence=True, combine="{question} Sum up:\n{results}"), lines)
    assert "Done so far:\ntwo\n→ TWO" in team.worker.prompts[1][0]["content"]
    assert team.orchestrator.prompts[1][-1]["content"] == f"{TASK.prompt} Sum up:\ntwo\n→ TWO\n\nand two\n→ 4"


def test_a_plan_of_nothing_is_the_whole_task() -> None:
    outcome, team = play(Orchestrate(), {"orchestrator": [" ", "4"], "worker": ["4"]})
    assert TASK.prompt in team.worker.prompts[0][0]["content"] and outcome.metrics == {"steps": 1}


def test_workers_of_a_plan_work_at_the_same_time() -> None:
    class Meets(ScriptedAgent):
        async def say(self, messages: str | Sequence[Message], **sampling: Any) -> Turn:
            if self.role == "worker":
                await barrier.wait()
            return await super().say(messages, **sampling)

    team, barrier = Scripted({"orchestrator": ["a\nb", "4"], "worker": ["1", "2"]}, Meets), asyncio.Barrier(2)
    asyncio.run(asyncio.wait_for(Orchestrate().run(TASK, team, None), HANG))


def test_a_single_agents_run_can_be_evaluated_as_a_vote() -> None:
    """`coterie eval RUN workflow.name=vote`: the run's config names every option of `single`."""
    assert {f.name for f in fields(Single)} < {f.name for f in fields(Vote)}
    team = Scripted({"solver": ["5", "4", "4"]})
    examples = (("1 + 1?", "2"),)
    answer = asyncio.run(Vote(voters=3, examples=examples).run(Task("t", "2 + 2?", "4"), team, None))
    assert answer == "4" and [m["content"] for m in team.solver.prompts[0]] == ["1 + 1?", "2", "2 + 2?"]
