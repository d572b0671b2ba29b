"""Laws of the five teams: what each role sees, when they stop, what everyone earns."""

from __future__ import annotations

import asyncio
import json
import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from coterie.config import ConfigError, load
from coterie.data.files import as_parquet
from coterie.data.r2egym import R2EGYM
from coterie.envs.base import attach_reward
from coterie.envs.code import Mbpp
from coterie.envs.dataset_env import Gsm8k, HotpotQa
from coterie.envs.swe.edits import EditError, diff_of, edited
from coterie.envs.swe.env import Swe as Projects
from coterie.rollout.collector import Collector
from coterie.sandbox import Sandbox, SandboxBroken, shared
from coterie.tools.search import Remote
from coterie.types import Env, Episode, Outcome, Task, Workflow
from coterie.workflows.deep_research import DeepResearch
from coterie.workflows.deepcoder import DeepCoder
from coterie.workflows.lockstep import Lockstep
from coterie.workflows.math_tool import MathTool
from coterie.workflows.search import Search
from coterie.workflows.swe import Swe
from coterie.workflows.verdict_parsing import items, verdict
from tests.hangs import HANG
from tests.runs import started
from tests.scripted import Scripted

Lines = dict[str, list[str]]


def play(workflow: Workflow, env: Env, lines: Lines, task: Task | None = None) -> tuple[Episode, Scripted]:
    """One episode with a team that says its lines, judged as a run judges it."""
    team, task = Scripted(lines), task or env.tasks("train")[0]
    collector = Collector(workflow, env, None, {}, 1, 60.0, None)  # type: ignore[arg-type]

    async def go() -> Episode:
        outcome = await workflow.run(task, team, env.open(task))
        episode = Episode("e", task, 0, turns=team.said())
        await collector.score(episode, outcome if isinstance(outcome, Outcome) else Outcome(outcome))
        return episode

    episode = asyncio.run(go())
    assert all(not agent.replies for agent in team._agents.values()), "a role was not asked for all that it had to say"
    return episode, team


def rewards(episode: Episode) -> dict[str, list[float | None]]:
    found: dict[str, list[float | None]] = {}
    for turn in episode.turns:
        found.setdefault(turn.role, []).append(None if turn.reward is None else round(turn.reward, 6))
    return found


def rows(path: Path, *listed: Mapping[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in listed))
    return path


# --- DeepCoder

RIGHT = "```python\ndef add(a, b):\n    return a + b\n```"
HALF = "```python\ndef add(a, b):\n    return a * b\n```"  # 2 * 2 is 2 + 2
WRONG = "```python\ndef add(a, b):\n    return None\n```"
SLOW = "```python\nwhile True: pass\n```"


@pytest.fixture
def code(tmp_path: Path) -> Env:
    row = {"text": "Add.", "code": RIGHT, "test_list": ["assert add(1, 2) == 3", "assert add(2, 2) == 4"]}
    return attach_reward(Mbpp(train=rows(tmp_path / "code.jsonl", row)), "code", {}, 10)


def test_a_program_that_is_right_at_once_needs_nobody_else(code: Env) -> None:
    episode, _ = play(DeepCoder(), code, {"generator": [RIGHT], "test_runner": [], "refiner": []})
    assert rewards(episode) == {"generator": [1.0]}
    assert episode.reward == 1.0 and episode.answer == RIGHT
    told = {"accuracy": 1, "generator_success": 1, "total_iterations": 0, "final_success": 1}
    assert episode.metrics == told | {"grader_timeouts": 0}


def test_the_test_runner_sees_the_failing_test_and_earns_what_the_refiner_gains(code: Env) -> None:
    lines = {"generator": [HALF], "test_runner": ["Use +."], "refiner": [RIGHT]}
    episode, team = play(DeepCoder(), code, lines)
    assert rewards(episode) == {"generator": [0.5], "test_runner": [0.5], "refiner": [1.0]}
    asked = team.test_runner.prompts[0][0]["content"]
    assert "assert add(1, 2) == 3" in asked.partition("tests passed")[2]
    assert "Use +." in team.refiner.prompts[0][0]["content"]
    told = {"refiner_success_rate": 1.0, "test_runner_success_rate": 1.0, "total_iterations": 1.0, "final_success": 1.0}
    assert told.items() <= episode.metrics.items() and episode.metrics["generator_success"] == 0


def test_half_of_the_tests_is_for_the_grader_alone(tmp_path: Path) -> None:
    tests = [f"assert add({n}, {n}) == {2 * n}" for n in (2, 0, 1, 3)]
    env = Mbpp(train=rows(tmp_path / "code.jsonl", {"text": "Add.", "code": RIGHT, "test_list": tests}))
    lines = {"generator": [WRONG], "test_runner": ["Use *."], "refiner": [HALF]}
    episode, team = play(DeepCoder(), attach_reward(env, "code", {}, 10), lines)
    asked = team.test_runner.prompts[0][0]["content"].partition("0 of 2 tests passed")[2]
    assert [test in asked for test in tests] == [True, True, False, False]
    # The refinement passes all that was shown, so nobody goes on; it is worth what it is by all tests.
    assert rewards(episode) == {"generator": [0.0], "test_runner": [0.5], "refiner": [0.5]}
    assert episode.reward == episode.metrics["final_success"] == 0


def test_a_refinement_that_makes_it_worse_costs_the_test_runner_and_the_best_program_counts(code: Env) -> None:
    lines = {"generator": [HALF], "test_runner": ["Hm.", "Hm!"], "refiner": [WRONG, HALF]}
    episode, _ = play(DeepCoder(max_refinement_iterations=2), code, lines)
    assert rewards(episode) == {"generator": [0.5], "test_runner": [-0.5, 0.0], "refiner": [0.0, 0.5]}
    assert episode.answer == HALF and episode.reward == 0.0
    assert episode.metrics["final_success"] == episode.metrics["refiner_success_rate"] == 0


def test_an_answer_without_a_program_passes_no_test_and_the_team_is_told(code: Env) -> None:
    lines = {"generator": ["I will not."], "test_runner": ["Write it."], "refiner": [RIGHT]}
    episode, team = play(DeepCoder(), code, lines)
    assert rewards(episode) == {"generator": [0.0], "test_runner": [1.0], "refiner": [1.0]}
    assert "there is no program" in team.test_runner.prompts[0][0]["content"]


def test_a_program_that_never_ends_is_reported_as_such(code: Env) -> None:
    lines = {"generator": [SLOW], "test_runner": ["It loops."], "refiner": [RIGHT]}
    episode, team = play(DeepCoder(), code, lines)
    assert "timeout" in team.test_runner.prompts[0][0]["content"].lower()
    assert episode.reward == 1.0


def test_a_sandbox_that_does_not_start_fails_the_episode_and_blames_no_program(
    code: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: Sandbox, *_: Any, **__: Any) -> Any:
        raise SandboxBroken("a sandbox did not start: no output on stderr")

    monkeypatch.setattr(Sandbox, "run", broken)
    with pytest.raises(SandboxBroken):
        play(DeepCoder(), code, {"generator": [RIGHT], "test_runner": [], "refiner": []})


def test_a_program_that_takes_the_memory_is_told_of_it(code: Env) -> None:
    greedy = script("def add(a, b):\n    return len(bytearray(4 << 30))")
    lines = {"generator": [greedy], "test_runner": ["Less."], "refiner": [RIGHT]}
    episode, team = play(DeepCoder(), code, lines)
    assert rewards(episode) == {"generator": [0.0], "test_runner": [1.0], "refiner": [1.0]}
    assert "memory" in team.test_runner.prompts[0][0]["content"].lower()


def test_deepcoder_says_which_environments_have_tests(tmp_path: Path) -> None:
    questions = Gsm8k(train=rows(tmp_path / "q.jsonl", {"question": "1 + 1?", "answer": "#### 2"}))
    with pytest.raises(ValueError, match="mbpp, humaneval or deepcoder"):
        play(DeepCoder(), attach_reward(questions, "number", {}, 10), {"generator": ["x"]})


# --- Math tool


@pytest.fixture
def sums(tmp_path: Path) -> Env:
    row = {"question": "20 + 22?", "answer": "#### 42"}
    return attach_reward(Gsm8k(train=rows(tmp_path / "sums.jsonl", row)), "math", {}, 20)


def script(text: str) -> str:
    return f"```python\n{text}\n```"


def test_the_verifier_alone_ends_it_even_when_it_is_wrong(sums: Env) -> None:
    lines = {"analyzer": ["Add."], "executor": [script("print(41)")], "verifier": ["Verdict: correct"]}
    episode, _ = play(MathTool(max_refinement_iterations=3), sums, lines)
    assert rewards(episode) == {"analyzer": [0.0], "executor": [0.0], "verifier": [0.0]}
    assert episode.metrics["accepted"] == 1 and episode.metrics["final_success"] == 0


def test_a_program_that_is_right_at_once_is_accepted_at_once(sums: Env) -> None:
    lines = {"analyzer": ["Add."], "executor": [script("print(20 + 22)")], "verifier": ["Verdict: correct"]}
    episode, team = play(MathTool(max_refinement_iterations=3), sums, lines)
    assert rewards(episode) == {"analyzer": [1.0], "executor": [1.0], "verifier": [1.0]}
    assert episode.reward == 1.0 and episode.metrics["total_iterations"] == 1
    assert "It printed:\n42" in team.verifier.prompts[0][0]["content"]


def test_a_right_answer_that_the_verifier_rejects_is_tried_again(sums: Env) -> None:
    lines = {
        "analyzer": ["Add.", "Subtract."],
        "executor": [script("print(20 + 22)"), script("print(20 - 22)")],
        "verifier": ["Verdict: incorrect", "Verdict: incorrect"],
    }
    episode, team = play(MathTool(max_refinement_iterations=2), sums, lines)
    assert rewards(episode) == {"analyzer": [1.0, 0.0], "executor": [1.0, 0.0], "verifier": [0.0, 1.0]}
    assert episode.answer == r"\boxed{-2}" and episode.reward == 0.0
    assert "print(20 + 22)" in team.analyzer.prompts[1][0]["content"]
    assert episode.metrics["executor_success"] == 1 and episode.metrics["verifier_accuracy"] == 0.5
    assert episode.metrics["analyzer_success_rate"] == 0.5


def test_a_second_program_can_be_right(sums: Env) -> None:
    lines = {
        "analyzer": ["Add.", "Add them."],
        "executor": [script("print(20 + '22')"), script("print('so:')\nprint(20 + 22)")],
        "verifier": ["Wrong, it crashed.", "Verdict: correct"],
    }
    episode, team = play(MathTool(), sums, lines)
    assert episode.reward == 1.0 and episode.answer == r"\boxed{42}"
    assert "TypeError" in team.verifier.prompts[0][0]["content"]
    assert rewards(episode)["verifier"] == [1.0, 1.0]
    assert episode.metrics["executor_ran"] == 0.5


def test_a_verdict_that_is_none_earns_nothing_and_ends_nothing(sums: Env) -> None:
    lines = {
        "analyzer": ["a", "b"],
        "executor": ["No code.", script("import time\ntime.sleep(9)")],
        "verifier": ["Hm.", "Verdict: incorrect"],
    }
    episode, team = play(MathTool(seconds=0.5), sums, lines)
    assert rewards(episode) == {"analyzer": [0.0, 0.0], "executor": [0.0, 0.0], "verifier": [0.0, 1.0]}
    assert "no program" in team.verifier.prompts[0][0]["content"]
    assert "Timeout" in team.verifier.prompts[1][0]["content"]
    assert episode.answer == "" and episode.metrics["total_iterations"] == 2


# --- Search and DeepResearch

CORPUS = [
    {"title": "Lima", "text": "Lima is the capital of Peru. Its mayor plays chess."},
    {"title": "Peru", "text": "Peru is a country in South America, known for Machu Picchu."},
    {"title": "Quito", "text": "Quito is the capital of Ecuador."},
]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return rows(tmp_path / "corpus.jsonl", *CORPUS)


@pytest.fixture
def articles(tmp_path: Path) -> Env:
    row = {
        "question": "What is the capital of the country with Machu Picchu?",
        "answer": "Lima",
        "supporting_facts": [["Peru", 0], ["Lima", 0]],
        "context": [],
    }
    return attach_reward(HotpotQa(train=rows(tmp_path / "hotpot.jsonl", row)), "qa", {}, 20)


def test_queries_are_refined_from_what_was_found_and_earn_the_share_of_what_was_missing(
    articles: Env, corpus: Path
) -> None:
    lines = {
        "query_optimizer": ["1. Machu Picchu country", "capital of Peru"],
        "retriever": ["Machu Picchu is in Peru.", "Lima is the capital."],
        "extractor": ["<answer>Lima</answer>"],
    }
    episode, team = play(Search(corpus=corpus, documents=1), articles, lines)
    assert rewards(episode) == {"query_optimizer": [0.5, 1.0], "retriever": [1.0, 1.0], "extractor": [1.0]}
    assert "Machu Picchu is in Peru." in team.query_optimizer.prompts[1][0]["content"]
    assert "Lima is the capital of Peru" in team.retriever.prompts[1][0]["content"]
    assert episode.reward == episode.metrics["final_success"] == episode.metrics["query_optimizer_recall"] == 1
    assert episode.metrics["extractor_grade"] == 1.0


def test_a_retriever_earns_for_keeping_what_helps_and_for_leaving_out_what_does_not(
    articles: Env, corpus: Path
) -> None:
    lines = {
        "query_optimizer": ["Machu Picchu\nEcuador Quito\ncapital Peru Lima", "DONE"],
        "retriever": ["NOTHING", "NOTHING", "Its mayor plays chess."],
        "extractor": ["Quito"],
    }
    episode, _ = play(Search(corpus=corpus, documents=1, max_queries=3), articles, lines)
    assert rewards(episode)["retriever"] == [0.0, 1.0, 0.0]  # the third left the answer out
    assert episode.metrics["retriever_success_rate"] == pytest.approx(1 / 3)
    assert rewards(episode)["query_optimizer"] == [1.0, 1.0] and episode.reward == 0.0
    assert episode.metrics["extractor_grade"] == 0.0


BOTH, ONE = "Machu Picchu\ncapital of Peru", "Machu Picchu"
# What an optimizer says in two rounds, and what that earns.
TWO_ROUNDS = {
    "found all and stops": ([BOTH, "DONE"], [1.0, 1.0]),
    "found all and goes on": ([BOTH, "Peru again"], [1.0, 0.0]),
    "found all and says nothing": ([BOTH, "Well:"], [1.0, 0.0]),
    "found half and stops": ([ONE, "DONE."], [0.5, 0.0]),
    "found half, then the rest": ([ONE, "capital of Peru"], [0.5, 1.0]),
    "found half, then nothing": ([ONE, "Ecuador Quito"], [0.5, 0.0]),
}


def two_rounds(name: str, articles: Env, corpus: Path) -> Episode:
    said, _ = TWO_ROUNDS[name]
    notes = sum(len(text.splitlines()) for text in said if not text.startswith(("DONE", "Well")))
    lines = {"query_optimizer": list(said), "retriever": ["NOTHING"] * notes, "extractor": ["Lima"]}
    return play(Search(corpus=corpus, documents=1), articles, lines)[0]


@pytest.mark.parametrize("name", list(TWO_ROUNDS))
def test_an_optimizer_earns_for_finding_what_is_missing_and_for_stopping_when_nothing_is(
    name: str, articles: Env, corpus: Path
) -> None:
    assert rewards(two_rounds(name, articles, corpus))["query_optimizer"] == TWO_ROUNDS[name][1]


def test_stopping_in_time_is_never_held_against_what_was_found_before(articles: Env, corpus: Path) -> None:
    """As the recipe compares them: the second round with other second rounds."""
    config = load(Path(__file__).parents[2] / "recipes" / "search.yaml", [f"workflow.corpus={corpus}"])
    episodes = [two_rounds(name, articles, corpus) for name in TWO_ROUNDS]
    for number, episode in enumerate(episodes):
        episode.id, episode.repeat = f"t/{number}", number
    assert config.algorithm.instance.for_role("query_optimizer").group_by == ("task", "role", "turn")
    config.credit.instance.assign(episodes, {}, team_chain=False)
    config.algorithm.instance.compute_advantages(episodes, {})
    last = [[turn for turn in episode.turns if turn.role == "query_optimizer"][-1] for episode in episodes]
    good = {name for name, turn in zip(TWO_ROUNDS, last, strict=True) if float(turn.advantages[0]) > 0}
    assert good == {"found all and stops", "found half, then the rest"}


def test_an_optimizer_without_queries_finds_nothing(articles: Env, corpus: Path) -> None:
    lines = {"query_optimizer": ["Here are my queries:\n"], "retriever": [], "extractor": ["Lima?"]}
    episode, _ = play(Search(corpus=corpus), articles, lines)
    assert rewards(episode) == {"query_optimizer": [0.0], "extractor": [1.0]}
    assert episode.metrics["queries"] == 0


def test_retrievers_of_one_round_read_at_the_same_time(articles: Env, corpus: Path) -> None:
    from tests.scripted import ScriptedAgent

    class Meets(ScriptedAgent):
        async def say(self, messages: Any, **sampling: Any) -> Any:
            if self.role == "retriever":
                await barrier.wait()
            return await super().say(messages, **sampling)

    lines = {"query_optimizer": ["Peru\nLima"], "retriever": ["a", "b"], "extractor": ["c"]}
    team, barrier = Scripted(lines, Meets), asyncio.Barrier(2)
    work = Search(corpus=corpus, max_refinement_iterations=1).run(articles.tasks("train")[0], team, None)
    asyncio.run(asyncio.wait_for(work, HANG))


def test_a_server_that_fails_is_counted_and_the_team_goes_on(articles: Env) -> None:
    class Broken(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_error(500)

        def log_message(self, *_: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Broken)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    lines = {"query_optimizer": ["Peru"], "retriever": ["NOTHING"], "extractor": ["Lima"]}
    search = Search(server=f"http://127.0.0.1:{server.server_port}", max_refinement_iterations=1)
    episode, team = play(search, articles, lines)
    server.shutdown()
    server.server_close()
    assert episode.metrics["search_failures"] == 1 and episode.reward == 1.0
    assert "(none)" in team.retriever.prompts[0][0]["content"]


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a retrieval server that takes a question and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_server_that_never_answers_is_given_up_and_the_team_goes_on(
    articles: Env, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.workflows.retrieval.retriever", lambda place: Remote(str(place), deadline=0.2))
    lines = {"query_optimizer": ["Peru", "DONE"], "retriever": ["NOTHING"], "extractor": ["Lima"]}
    episode, _ = play(Search(server=silent), articles, lines)
    assert rewards(episode) == {"query_optimizer": [0.0, 0.0], "retriever": [1.0], "extractor": [1.0]}
    assert episode.metrics["search_failures"] == 1 and episode.metrics["queries"] == 1


def test_tools_that_never_end_are_given_up_and_the_gatherer_is_told(
    articles: Env, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.workflows.retrieval.retriever", lambda place: Remote(str(place), deadline=0.8))
    endless = call("search", query="Peru") + call("python", code="while True: pass")
    lines = {"planner": ["Where?"], "gatherer": [endless, "I cannot say."], "synthesizer": ["<answer>Lima</answer>"]}
    episode, team = play(DeepResearch(server=silent, seconds=0.3), articles, lines)
    assert rewards(episode) == {"planner": [0.0], "gatherer": [0.0, 0.0], "synthesizer": [0.8]}
    heard = team.gatherer.prompts[1][-1]["content"]
    assert "Timeout: search took more than 0.3 s" in heard and heard.count("Timeout") == 2
    assert episode.metrics["tool_calls"] == 2 and episode.metrics["tool_failures"] >= 1


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_gatherers_use_their_tools_and_the_synthesizer_cites_what_they_saw(articles: Env, corpus: Path) -> None:
    lines = {
        "planner": ["- Where is Machu Picchu?\n- What is the capital?"],
        "gatherer": [
            call("python", code="import time; time.sleep(0.3)") + call("search", query="Machu Picchu"),
            call("open_document", title="Lima"),
            "In Peru.",
            "The capital is Lima.",
        ],
        "synthesizer": ["It lies in Peru [1], whose capital is Lima [2]. <answer>Lima</answer>"],
    }
    episode, team = play(DeepResearch(corpus=corpus, documents=1), articles, lines)
    assert rewards(episode) == {"planner": [1.0], "gatherer": [1.0] * 4, "synthesizer": [1.0]}
    assert "[2] Lima" in team.synthesizer.prompts[0][0]["content"]
    told = {
        "synthesizer_grade": 1.0,
        "citations": 2,
        "citations_valid": 1.0,
        "tool_calls": 3,
        "tool_failures": 0,
        "sources": 2,
    }
    assert told.items() <= episode.metrics.items()
    assert [message["role"] for message in team.gatherer.prompts[2]] == ["system", "user", "assistant", "tool"]
    assert "Machu Picchu" in team.gatherer.prompts[2][1]["content"], (
        "the first goes on first, however slow its tools are"
    )


def test_a_gatherer_that_fails_does_not_keep_the_others_waiting() -> None:
    async def leave(member: Any) -> str:
        with member:
            raise ZeroDivisionError

    async def stay(member: Any) -> str:
        with member:
            return (await member.say("go")).text + (await member.say("on")).text

    async def both() -> list[Any]:
        first, second = Lockstep(Scripted({"gatherer": ["a", "b"]}).gatherer, 2).members
        return await asyncio.wait_for(asyncio.gather(stay(first), leave(second), return_exceptions=True), HANG)

    said, error = asyncio.run(both())
    assert said == "ab" and isinstance(error, ZeroDivisionError)


def test_a_citation_of_nothing_costs_and_a_tool_that_fails_is_counted(articles: Env, corpus: Path) -> None:
    lines = {
        "planner": ["What is the capital?"],
        "gatherer": [call("open_document", title="Atlantis") + call("python", code="print(1/0)"), "I do not know."],
        "synthesizer": ["Lima [7]. <answer>Lima</answer>"],
    }
    episode, team = play(DeepResearch(corpus=corpus), articles, lines)
    assert rewards(episode) == {"planner": [0.0], "gatherer": [0.0, 0.0], "synthesizer": [0.8]}
    assert episode.metrics["tool_failures"] == 1 and episode.metrics["citations_valid"] == 0
    assert "ZeroDivisionError" in team.gatherer.prompts[1][-1]["content"]


def test_a_gatherer_that_still_wants_a_tool_at_the_end_has_found_nothing_out(articles: Env, corpus: Path) -> None:
    search = call("search", query="Machu Picchu")
    lines = {"planner": ["Where?"], "gatherer": [search, search], "synthesizer": ["Quito"]}
    episode, _ = play(DeepResearch(corpus=corpus, max_turns=2, documents=1), articles, lines)
    assert rewards(episode) == {"planner": [0.5], "gatherer": [0.5, 0.5], "synthesizer": [0.0]}


def test_a_gatherer_that_says_nothing_is_not_paid_for_a_citation(articles: Env, corpus: Path) -> None:
    lines = {"planner": ["Where?"], "gatherer": [call("search", query="Lima"), " "], "synthesizer": ["Lima [1]"]}
    episode, _ = play(DeepResearch(corpus=corpus, max_turns=2, documents=1), articles, lines)
    assert rewards(episode)["gatherer"] == [0.5, 0.5]


def test_a_gatherer_without_evidence_earns_nothing_even_for_the_right_answer(articles: Env, corpus: Path) -> None:
    lines = {
        "planner": ["Where?\nWhich capital?"],
        "gatherer": ["It is Lima.", call("search", query="Quito Ecuador"), "Surely Lima."],  # one guesses, one misreads
        "synthesizer": ["Lima [1]. <answer>Lima</answer>"],
    }
    episode, _ = play(DeepResearch(corpus=corpus, documents=1), articles, lines)
    assert rewards(episode) == {"planner": [0.0], "gatherer": [0.0] * 3, "synthesizer": [1.0]}


def test_a_citation_pays_only_who_saw_a_document_that_helps(articles: Env, corpus: Path) -> None:
    lines = {
        "planner": ["Where?\nWhich capital?"],
        "gatherer": [call("search", query="Machu Picchu"), call("search", query="Quito Ecuador"), "In Peru.", "Quito."],
        "synthesizer": ["Peru [1], not Ecuador [2]. <answer>Lima</answer>"],
    }
    episode, _ = play(DeepResearch(corpus=corpus, documents=1), articles, lines)
    assert rewards(episode)["gatherer"] == [1.0, 0.0, 1.0, 0.0]


def test_a_plan_of_nothing_leaves_the_synthesizer_alone(articles: Env, corpus: Path) -> None:
    lines = {"planner": [" \n"], "gatherer": [], "synthesizer": ["<answer>Lima</answer>"]}
    episode, _ = play(DeepResearch(corpus=corpus), articles, lines)
    assert rewards(episode) == {"planner": [0.0], "synthesizer": [0.8]}


def test_a_corpus_that_is_not_there_is_named(articles: Env) -> None:
    with pytest.raises(ValueError, match=r"nowhere.jsonl: no such file; give a jsonl file"):
        play(Search(corpus=Path("nowhere.jsonl")), articles, {"query_optimizer": ["Peru"]})


@pytest.mark.parametrize("name", ["search", "deep_research"])
def test_a_corpus_that_is_not_there_stops_a_run_before_a_model_is_looked_for(name: str, tmp_path: Path) -> None:
    roles = {"search": Search, "deep_research": DeepResearch}[name](server="http://x").roles
    tree = {
        "policies": {"all": {"model": str(tmp_path / "no model")}},
        "roles": dict.fromkeys(roles, "all"),
        "workflow": {"name": name, "corpus": str(tmp_path / "nowhere.jsonl")},
        "env": {"name": "hotpotqa", "train": str(tmp_path / "no.jsonl"), "test": str(tmp_path / "no.jsonl")},
        "reward": "qa",
        "algorithm": "grpo",
    }
    with pytest.raises(ConfigError, match=r"workflow.corpus: .*nowhere.jsonl: no such file; .*line \d+"):
        started(tree, tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "corpus: give one of corpus, server and search_tool"),
        ({"corpus": Path("a.jsonl"), "server": "http://x"}, "corpus: give one of corpus, server and search_tool"),
        ({"server": "localhost"}, "server: must begin with http"),
        ({"server": "http://x", "documents": 0}, "documents: at least 1"),
    ],
)
def test_a_team_that_searches_says_where_it_cannot(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Search(**options)


# --- SWE

BUGGY = "def add(a, b):\n    return a - b\n"
TEST = "import unittest\nfrom calc.ops import add\n\nclass T(unittest.TestCase):\n    def test_add(self):\n"
TEST += "        self.assertEqual(add(2, 3), 5)\n"
BLOCK = "calc/ops.py\n<<<<<<< SEARCH\n    return a - b\n=======\n    return {new}\n>>>>>>> REPLACE\n"
FIX, BAD_FIX = BLOCK.format(new="a + b"), BLOCK.format(new="b - a")


@pytest.fixture
def project(tmp_path: Path) -> Env:
    for path, text in {"calc/ops.py": BUGGY, "calc/__init__.py": "", "tests/test_ops.py": TEST}.items():
        (tmp_path / "calc" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "calc" / path).write_text(text)
    (tmp_path / "calc" / "tests" / "__init__.py").write_text("")
    tests = "python -m unittest tests.test_ops"
    row = {"issue": "add(2, 3) gives -1", "repository": "calc", "tests": tests}
    return Projects(train=rows(tmp_path / "issues.jsonl", row))


def test_a_fix_makes_the_projects_own_tests_pass_and_the_answer_is_a_diff(project: Env) -> None:
    lines = {"analyzer": ["Change calc/ops.py: use +."], "writer": [FIX], "validator": ["Verdict: pass"]}
    episode, team = play(Swe(), project, lines)
    assert rewards(episode) == {"analyzer": [1.0], "writer": [1.0], "validator": [1.0]}
    assert episode.reward == 1.0 and "+    return a + b" in episode.answer
    assert BUGGY in team.writer.prompts[0][0]["content"]
    assert "+    return a + b" in team.validator.prompts[0][0]["content"]
    assert episode.metrics["validator_accuracy"] == episode.metrics["final_success"] == 1


def test_a_validator_that_doubts_is_right_and_the_writer_tries_again(project: Env) -> None:
    lines = {
        "analyzer": ["calc/ops.py"],
        "writer": [BAD_FIX, FIX],
        "validator": ["The sign is wrong.\nVerdict: fail", "Verdict: pass"],
    }
    episode, team = play(Swe(), project, lines)
    assert rewards(episode) == {"analyzer": [1.0], "writer": [0.1, 1.0], "validator": [1.0, 1.0]}
    assert "The sign is wrong." in team.writer.prompts[1][0]["content"]
    assert episode.metrics["writer_success_rate"] == 0.5 and episode.metrics["total_iterations"] == 2


def test_a_validator_that_is_too_sure_earns_nothing(project: Env) -> None:
    lines = {"analyzer": ["Everything."], "writer": [BAD_FIX], "validator": ["Verdict: pass"]}
    episode, team = play(Swe(), project, lines)
    assert rewards(episode) == {"analyzer": [0.0], "writer": [0.1], "validator": [0.0]}
    assert "(no file was named)" in team.writer.prompts[0][0]["content"]
    assert episode.reward == 0.0


def test_a_change_that_cannot_be_made_is_explained_to_the_writer(project: Env) -> None:
    lines = {"analyzer": ["calc/ops.py"], "writer": ["Just fix it.", FIX], "validator": ["Verdict: pass"]}
    episode, team = play(Swe(), project, lines)
    assert rewards(episode)["writer"] == [0.0, 1.0]
    assert "neither a search/replace block nor a diff" in team.writer.prompts[1][0]["content"]
    assert episode.metrics["writer_applied"] == 0.5


@pytest.mark.parametrize("path", ["tests/test_ops.py", "unittest.py", "conftest.py", "unittest/__init__.py"])
def test_a_writer_may_not_touch_the_tests_nor_what_runs_them(project: Env, path: str) -> None:
    old = TEST if path == "tests/test_ops.py" else ""
    cheat = f"{path}\n<<<<<<< SEARCH\n{old}=======\nprint('Ran 1 test')\n>>>>>>> REPLACE"
    lines = {"analyzer": ["x"], "writer": [cheat], "validator": []}
    episode, _ = play(Swe(max_refinement_iterations=1), project, lines)
    assert rewards(episode)["writer"] == [0.0] and episode.answer == ""


def put_in(text: str) -> str:
    """A change that writes something above the function."""
    return f"calc/ops.py\n<<<<<<< SEARCH\ndef add(a, b):\n=======\n{text}\ndef add(a, b):\n>>>>>>> REPLACE"


TRICKS = {
    "leaves": "import os\nos._exit(0)",
    "boasts and leaves": "import os\nprint('Ran 1 test')\nprint('1 passed', flush=True)\nos._exit(0)",
    "asks to leave": "import sys\nsys.exit(0)",
    "asserts nothing": "import unittest\nunittest.TestCase.assertEqual = lambda *a: None",
    "asserts other code": "import unittest\nunittest.TestCase.assertEqual.__code__ = (lambda *a: None).__code__",
    "asserts through the back door": "import unittest\nunittest.TestCase.__getattribute__ = lambda s, n: print",
    "fails nowhere": "import unittest\nunittest.TestResult.addFailure = lambda *a: None",
    "is always a success": "import unittest\nunittest.TestResult.wasSuccessful = lambda s: True",
    "brings a unittest along": "import sys, unittest\nclass Easy(unittest.TestCase):\n    assertEqual = print\n"
    "mine = type(sys)('unittest')\nmine.__dict__.update(vars(unittest), TestCase=Easy)\nsys.modules['unittest'] = mine",
    "patches pytest": "import _pytest.python\n_pytest.python.Function.runtest = lambda s: None",
    "writes to every descriptor": "import os\nfor fd in range(3, 20):\n    try: os.write(fd, b'x' * 32)\n"
    "    except OSError: pass\nos._exit(0)",
}


UNITTEST, PYTEST = "python -m unittest tests.test_ops", "pytest -q tests/test_ops.py"
BY_PYTEST = ["boasts and leaves", "asserts nothing", "patches pytest"]


@pytest.mark.parametrize(
    ("trick", "runner"), [*((trick, UNITTEST) for trick in TRICKS), *((trick, PYTEST) for trick in BY_PYTEST)]
)
def test_no_change_passes_by_a_trick(project: Env, trick: str, runner: str) -> None:
    checkout = project.open(project.tasks("train")[0])
    first, second, rest = TEST.split("\n", 2)
    late = f"{second}\n{first}\n{rest}".encode()  # the project comes before unittest
    checkout = replace(checkout, tests=[runner], files={**checkout.files, "tests/test_ops.py": late})
    tested = asyncio.run(checkout.test(checkout.edited(put_in(TRICKS[trick]))))
    assert tested.passed == 0, tested.output


@pytest.mark.parametrize("command", ["python -m unittest", "python3 -W error -m unittest tests.test_ops", "pytest -q"])
def test_a_right_change_passes_however_the_tests_are_run(project: Env, command: str) -> None:
    checkout = replace(project.open(project.tasks("train")[0]), tests=[command])
    tested = asyncio.run(checkout.test(checkout.edited(FIX)))
    assert tested.passed == 1, tested.output


@pytest.mark.parametrize("path", ["argparse.py", "json/__init__.py", "src/json.py"])
def test_a_new_file_may_not_stand_before_pythons_own(project: Env, path: str) -> None:
    with pytest.raises(EditError, match=f"{path}: a new file may not have the name"):
        project.open(project.tasks("train")[0]).edited(f"{path}\n<<<<<<< SEARCH\n=======\nx = 1\n>>>>>>> REPLACE")


def test_a_project_may_call_its_own_modules_as_python_does(project: Env) -> None:
    checkout = project.open(project.tasks("train")[0])
    own = {"json.py": b"from calc.ops import add\n", "calc/types.py": b""}
    test = (
        b"import unittest, json\nclass T(unittest.TestCase):\n    def test(self):\n        assert json.add(2, 3) == 5\n"
    )
    named = replace(checkout, files={**checkout.files, **own, "tests/test_ops.py": test})
    tested = asyncio.run(named.test(named.edited(FIX + "\ncalc/copy.py\n<<<<<<< SEARCH\n=======\n>>>>>>> REPLACE")))
    assert tested.passed == 1, tested.output


def test_a_change_cannot_tell_pytest_to_leave_tests_out(project: Env) -> None:
    checkout = replace(project.open(project.tasks("train")[0]), tests=["pytest"])
    files = {**checkout.files, "tests/test_other.py": b"def test_other():\n    pass\n"}
    cheat = "pytest.ini\n<<<<<<< SEARCH\n=======\n[pytest]\naddopts = -k other\n>>>>>>> REPLACE"
    tried = replace(checkout, files=files)
    assert asyncio.run(tried.test(tried.edited(cheat))).passed == 0


LOOP = "calc/ops.py\n<<<<<<< SEARCH\n    return a - b\n=======\n    while True: pass\n>>>>>>> REPLACE"


def test_a_test_that_never_ends_takes_the_time_of_all_and_earns_nothing(project: Env) -> None:
    env = replace(project, seconds=3.0)  # type: ignore[type-var]
    checkout = replace(env.open(env.tasks("train")[0]), tests=["python -m unittest tests.test_ops"] * 50)
    tested = asyncio.run(checkout.test(checkout.edited(LOOP)))
    assert tested.passed == 0
    assert "(timeout)" in tested.output and "no time was left" in tested.output
    lines = {"analyzer": ["x"], "writer": [LOOP], "validator": ["Verdict: fail"]}
    episode, _ = play(Swe(max_refinement_iterations=1), env, lines)
    assert rewards(episode) == {"analyzer": [0.0], "writer": [0.1], "validator": [1.0]}
    assert episode.reward == 0.0 and episode.metrics["accuracy"] == 0.0


def test_a_change_is_tested_once_and_once_more_where_it_passes(project: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[str] = []
    run = shared().run

    async def counted(code: str, **given: Any) -> Any:
        jobs.append(code)
        return await run(code, **given)

    monkeypatch.setattr(shared(), "run", counted)
    lines = {"analyzer": ["calc/ops.py"], "writer": [BAD_FIX, FIX], "validator": ["Verdict: fail", "Verdict: pass"]}
    episode, _ = play(Swe(), project, lines)
    assert episode.reward == 1.0 and len(jobs) == 3, "the one that passes meets altered tests, too"


SWE_ROW = {"instance_id": "a-1", "repo": "a/b", "base_commit": "c", "problem_statement": "d", "patch": "e"}
SWE_ROW |= {"test_patch": "f", "FAIL_TO_PASS": '["g"]', "PASS_TO_PASS": "[]"}


def swe_tree(file: Path, model: Path, **changes: Any) -> dict[str, Any]:
    return {
        "policies": {"all": {"model": str(model)}},
        "roles": dict.fromkeys(Swe().roles, "all"),
        "workflow": "swe",
        "env": {"name": "swe", "train": str(file), "test": str(file)},
        "reward": "native",
        "algorithm": "grpo",
        "device": "cpu",
    } | changes


def test_the_time_of_tests_is_set_in_one_place(project: Env, tmp_path: Path) -> None:
    tree = swe_tree(tmp_path / "issues.jsonl", tmp_path / "no model", rollout={"score_deadline": 90})
    with pytest.raises(ConfigError, match=r"rollout.score_deadline: has no effect: env.seconds limits"):
        started(tree, tmp_path)


def test_tests_of_projects_are_not_cut_off_by_the_time_for_scoring(
    project: Env, tmp_path: Path, model_folder: Callable[[str], Path]
) -> None:
    run = started(swe_tree(tmp_path / "issues.jsonl", model_folder("llama")), tmp_path)
    assert run.collector.score_deadline is None


def test_a_verdict_that_is_none_earns_the_validator_nothing_and_accepts_nothing(project: Env) -> None:
    lines = {"analyzer": ["calc/ops.py"], "writer": [FIX, FIX], "validator": ["Hm.", "Who knows?"]}
    episode, _ = play(Swe(), project, lines)
    assert rewards(episode) == {"analyzer": [1.0], "writer": [1.0, 1.0], "validator": [0.0, 0.0]}
    assert episode.metrics["accepted"] == 0 and episode.metrics["validator_accuracy"] == 0


@pytest.mark.parametrize("command", ["no-such-program --all", "python -m unittest tests.no_such", "pytest nowhere.py"])
def test_a_test_command_that_cannot_run_passes_nothing(project: Env, command: str) -> None:
    task = project.tasks("train")[0]
    broken = replace(task, meta={**task.meta, "tests": [command]})
    lines = {"analyzer": ["calc/ops.py"], "writer": [FIX], "validator": ["Verdict: pass"]}
    episode, _ = play(Swe(max_refinement_iterations=1), project, lines, broken)
    assert rewards(episode) == {"analyzer": [0.1], "writer": [0.1], "validator": [0.0]} and episode.reward == 0.0


def test_a_file_is_named_by_its_whole_path(project: Env) -> None:
    checkout = project.open(project.tasks("train")[0])
    known = replace(checkout, files={**checkout.files, "ops.py": b"", "a.py": b"", "data.py": b""})
    named = Swe()._named("Look at `calc/ops.py`, then at data.py.", known)
    assert named == ["calc/ops.py", "data.py"], "neither ops.py nor a.py was named"


def test_a_change_that_closes_the_issue_and_breaks_something_else_closes_nothing(project: Env) -> None:
    checkout = project.open(project.tasks("train")[0])
    zero = TEST.replace("add(2, 3), 5", "add(0, 0), 0").encode()
    files = {**checkout.files, "tests/test_zero.py": zero}
    guarded = replace(checkout, files=files, guards=["python -m unittest tests.test_zero"])
    for change, passed in ((FIX, 1), (BLOCK.format(new="5"), 0)):
        tested = asyncio.run(guarded.test(guarded.edited(change)))
        assert tested.passed == passed and ("test_zero" in tested.output) is not bool(passed)


def test_rows_of_swe_bench_name_what_must_pass_and_what_must_go_on_passing(tmp_path: Path) -> None:
    odd = 'test_a.py::test_b[it\'s "0"]'
    listed = {"FAIL_TO_PASS": [odd], "PASS_TO_PASS": ["test_a.py::test_c", odd]}
    env = Projects(train=rows(tmp_path / "rows.jsonl", SWE_ROW | listed), repositories=tmp_path)
    (task,) = env.tasks("train")
    assert [shlex.split(command)[4:] for command in task.meta["tests"]] == [[odd]]
    assert [shlex.split(command)[4:] for command in task.meta["guards"]] == [["test_a.py::test_c", odd]]


def test_a_git_repository_is_read_at_its_commit_and_hidden_tests_are_put_in(tmp_path: Path) -> None:
    clone = tmp_path / "clones" / "us__calc"
    (clone / "calc").mkdir(parents=True)
    (clone / "calc" / "ops.py").write_text(BUGGY)
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(clone), *words], check=True, capture_output=True)
    head = subprocess.run(["git", "-C", str(clone), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    (clone / "calc" / "ops.py").write_text("broken later")
    row = {
        "instance_id": "us__calc-1",
        "repo": "us/calc",
        "base_commit": head.stdout.strip(),
        "problem_statement": "add subtracts",
        "patch": diff_of({"calc/ops.py": BUGGY}, {"calc/ops.py": BUGGY.replace("-", "+")}),
        "test_patch": diff_of(
            {}, {"test_new.py": "from calc.ops import add\n\ndef test_add():\n    assert add(1, 1) == 2\n"}
        ),
        "FAIL_TO_PASS": '["test_new.py::test_add"]',
        "PASS_TO_PASS": "[]",
    }
    env = Projects(train=rows(tmp_path / "swebench.jsonl", row), repositories=tmp_path / "clones")
    task = env.tasks("train")[0]
    assert list(env.open(task).texts) == ["calc/ops.py"]
    for answer, worth in ((task.answer, 1.0), ("", 0.0)):
        episode = Episode("e", task, 0, answer=answer)
        asyncio.run(env.score(episode))
        assert episode.reward == worth


R2E = {
    "repo_name": "sympy",
    "commit_hash": "abc",
    "docker_image": "namanjain12/sympy_final:abc",
    "problem_statement": "It is broken.",
    "expected_output_json": '{"TestA.test_b": "PASSED", "TestA.test_c": "FAILED"}',
    "prompt": "…",
}
OWN = {"issue": "add(2, 3) gives -1", "repository": "calc", "tests": "python -m unittest"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (R2E, "rows of r2egym run after `coterie data prepare r2egym --repositories PLACE`"),
        ({**OWN, "tests": [1]}, r"tests is \[1\]; it must list commands"),
        ({**OWN, "tests": []}, r"tests is \[\]; it must list commands"),
        ({"issue": "x", "repository": "y"}, "tests is null; it must list commands"),
        ({**OWN, "test_files": ["a.py"]}, r'test_files is \["a.py"\]; it must map paths to texts'),
        ({**OWN, "commit": 7}, "commit is 7, not text"),
        ({"issue": "x"}, "no field repository; it has issue"),
    ],
)
def test_a_row_that_cannot_be_run_is_told_with_its_file_and_number(
    row: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"issues.jsonl, row 2: {message}"):
        Projects(train=rows(tmp_path / "issues.jsonl", OWN, row)).tasks("train")


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("nowhere.jsonl", r"env.train: .*nowhere.jsonl: no such file \(.*yaml, line \d+\)"),
        ("swebench.jsonl", r"env.repositories: SWE-bench rows need a folder with clones .*yaml, line \d+\)"),
        ("prepared.parquet", r"env.train: .*prepared.parquet holds r2egym, whose rows run after `coterie data prepare"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_key_before_a_model_is_looked_for(
    file: str, message: str, tmp_path: Path
) -> None:
    rows(tmp_path / "swebench.jsonl", SWE_ROW)
    row = R2EGYM.parse(R2E, "")
    assert not isinstance(row, str)
    (tmp_path / "prepared.parquet").write_bytes(as_parquet("r2egym", [row]))
    with pytest.raises(ConfigError, match=message):
        started(swe_tree(tmp_path / file, tmp_path / "no model"), tmp_path)


def test_rows_of_r2e_gym_parse() -> None:
    row, parse = R2E, R2EGYM.parse
    parsed = parse(row, "")
    assert (
        not isinstance(parsed, str) and parsed.id == "sympy/abc" and parsed.meta["expected"]["TestA.test_b"] == "PASSED"
    )
    assert (
        parse(row | {"expected_output_json": "[]"}, "") == "expected_output_json is not an object of tests and outcomes"
    )
    assert parse(row | {"expected_output_json": '{"a": "FAILED"}'}, "") == "no test is expected to pass"


# --- how changes and verdicts are read

FILES = {"a.py": "one\ntwo\nthree\ntwo\n", "b/c.py": "x = 1"}


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("a.py\n<<<<<<< SEARCH\none\n=======\nONE\n>>>>>>> REPLACE", {"a.py": "ONE\ntwo\nthree\ntwo\n"}),
        (
            "**File: `a.py`**\n```python\n<<<<<<< SEARCH\none\n=======\n>>>>>>> REPLACE\n```",
            {"a.py": "two\nthree\ntwo\n"},
        ),
        ("./b/c.py\n<<<<<<< SEARCH\nx = 1\n=======\nx = 2\n>>>>>>> REPLACE", {"b/c.py": "x = 2"}),
        ("new.py\n<<<<<<< SEARCH\n=======\ny\n>>>>>>> REPLACE", {"new.py": "y\n"}),
        ("--- a/a.py\n+++ b/a.py\n@@ -3,2 +3,2 @@\n three\n-two\n+TWO\n", {"a.py": "one\ntwo\nthree\nTWO\n"}),
        ("Look:\n```diff\n--- a.py\n+++ a.py\n@@ -4 +4 @@\n-two\n+2\n```\nDone.", {"a.py": "one\ntwo\nthree\n2\n"}),
        ("--- /dev/null\n+++ b/d.py\n@@ -0,0 +1 @@\n+new\n", {"d.py": "new\n"}),
    ],
)
def test_a_change_is_made_where_it_says(text: str, changed: dict[str, str]) -> None:
    assert edited(text, FILES) == FILES | changed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", "neither a search/replace block nor a diff"),
        ("z.py\n<<<<<<< SEARCH\none\n=======\n1\n>>>>>>> REPLACE", "z.py: there is no such file"),
        ("a.py\n<<<<<<< SEARCH\nfour\n=======\n1\n>>>>>>> REPLACE", "does not stand there"),
        ("a.py\n<<<<<<< SEARCH\ntwo\n=======\n1\n>>>>>>> REPLACE", "stands there 2 times"),
        ("a.py\n<<<<<<< SEARCH\n=======\n1\n>>>>>>> REPLACE", "there is such a file already"),
        ("../a.py\n<<<<<<< SEARCH\none\n=======\n1\n>>>>>>> REPLACE", "no path within the project"),
        ("--- a/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n", "cannot be removed"),
    ],
)
def test_a_change_that_cannot_be_made_says_why(text: str, message: str) -> None:
    with pytest.raises(EditError, match=message):
        edited(text, FILES)


@pytest.mark.parametrize(
    "after",
    [
        {"a.py": "one\n2\nthree\ntwo"},
        {"b/c.py": "x = 1\n", "e.py": "\n\n"},
        {"a.py": "\n"},
        {"a.py": "one\x0c1\ntwo\r\nthree\u2028\ntwo"},
    ],
)
def test_a_diff_gives_back_what_it_was_made_of(after: dict[str, str]) -> None:
    after = FILES | after
    assert edited(diff_of(FILES, after), FILES) == after


@pytest.mark.parametrize(
    "piece",
    ["a.py\n<<<<<<< SEARCH\n=======\n", "--- a\n+++ b\n", "```diff\n--- a\n", "@@ -1 +1 @@\n", "verdict ", "1."],
)
def test_no_text_takes_long_to_read(piece: str) -> None:
    started = time.thread_time()  # not the clock's: others may use this machine too
    text = piece * 20_000
    with pytest.raises(EditError):
        edited(text, FILES)
    verdict(text)
    items(text, 3)
    assert time.thread_time() - started < 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Fine.\nVerdict: CORRECT", True),
        ("verdict: correct at first\n**Verdict:** Incorrect.", False),
        ("Pass.", True),
        ("Wrong: 2 + 2 is 4", False),
        ("The answer is correct", None),
        ("Verdict: maybe", None),
        ("", None),
    ],
)
def test_a_verdict_is_the_last_one_stated_else_the_first_word(text: str, says: bool | None) -> None:
    assert verdict(text) is says


def test_a_list_is_read_without_its_marks() -> None:
    text = 'Sure, here:\n1. "one thing"\n2) two\n- **three**\n\n- three\nQuery 4: five'
    assert items(text, 9) == ["one thing", "two", "three", "five"]
    assert items(text, 2) == ["one thing", "two"]
