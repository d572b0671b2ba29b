"""Laws of the teams that search: Search and DeepResearch."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from coterie.config import ConfigError, load
from coterie.envs.base import attach_reward
from coterie.envs.dataset_env import HotpotQa
from coterie.tools.search import Remote
from coterie.types import Env, Episode
from coterie.workflows.deep_research import DeepResearch
from coterie.workflows.lockstep import Lockstep
from coterie.workflows.search import Search
from tests.hangs import HANG
from tests.runs import started
from tests.scripted import Scripted
from tests.scripted_team import play, rewards, rows

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
