"""DeepResearch: a planner splits a question, gatherers search with tools, a synthesizer answers with citations."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from coterie.prompts import chat_messages, check, check_counts, fill
from coterie.tools import Conversation, Tool, converse, describe
from coterie.tools.bm25 import Document
from coterie.tools.python import python_tool
from coterie.tools.search import Hit, Local, Retriever, open_tool, search_tool
from coterie.types import Grade, Metrics, Outcome, Task, Team, Turn, is_correct
from coterie.workflows.lockstep import Lockstep, LockstepAgent
from coterie.workflows.retrieval import Evidence, RetrievalOptions, is_done, new_evidence_reward
from coterie.workflows.verdict_parsing import items

PLAN = (
    "{question}\n\n{before}Which facts must be looked up to answer this? "
    "Write up to {most} short questions, one per line."
)
BEFORE = "Found out so far:\n\n{findings}\n\nIf nothing is missing, write only: DONE\n\n"
GATHER = "The whole question: {question}\n\nFind out: {part}\n\nUse the tools, then say briefly what you found."
SYNTHESIZE = (
    "{question}\n\nWhat was found out:\n\n{findings}\n\nSources:\n\n{sources}\n\nAnswer the question from this in a "
    "sentence or two. After each fact cite its source by number, as [1]. End with <answer>the answer alone</answer>."
)
CITATION = re.compile(r"\[(\d{1,4})\]")
MAX_SOURCE = 600  # characters of a source in the synthesizer's prompt
CITATION_WEIGHT = 0.2  # in the synthesizer's reward


class RecordingRetriever:
    """Records the documents that one gatherer has seen."""

    def __init__(self, retriever: Retriever) -> None:
        self.retriever = retriever
        self.documents: dict[str, Document] = {}

    async def search(self, query: str, count: int) -> list[Hit]:
        hits = await self.retriever.search(query, count)
        self.documents |= {hit.document.id: hit.document for hit in hits}
        return hits

    def open(self, name: str) -> Document:
        assert isinstance(self.retriever, Local)
        document = self.retriever.open(name)
        self.documents[document.id] = document
        return document


@dataclass(frozen=True)
class Gathered:
    """The work of one gatherer."""

    part: str
    conversation: Conversation
    documents: dict[str, Document]


@dataclass(frozen=True)
class Plan:
    """One plan, and the work of its gatherers."""

    turn: Turn
    done: bool  # the planner wrote DONE and no question
    gathered: list[Gathered]


@dataclass(frozen=True, kw_only=True)
class DeepResearch(RetrievalOptions):
    """Planner → gatherers with search, open_document and python, concurrently → synthesizer with citations.

    Rewards, after the episode: a plan gets the fraction of the missing documents that its gatherers found; a gatherer
    gets 0.5 for retrieving one that helps and 0.5 for a finding with the answer, or whose helpful document was cited. A
    gatherer that retrieved none gets 0 even if it states the answer, so that it does not learn to guess. The
    synthesizer gets the grade, and a part for citing sources that exist.
    """

    judges_turns: ClassVar[bool] = True
    needs_sandbox: ClassVar[bool] = True

    max_refinement_iterations: int = 1  # plans, at most; later ones read the findings so far
    max_subqueries: int = 2  # questions of a plan, at most
    # more tools for gatherers, by name: path/to/file.py:function; if corpus, server and search_tool are all null,
    # gatherers have only these and python
    tools: dict[str, Callable[..., Any]] | None = None
    max_turns: int = 3  # turns of a gatherer, at most
    seconds: float = 20.0  # seconds for each tool call
    # path/to/file.py:function in place of the tool python, with a docstring: (code: str) → what it printed
    python_tool: Callable[..., Any] | None = None
    plan: str = PLAN  # the planner's prompt
    gather: str = GATHER  # a gatherer's prompt
    synthesize: str = SYNTHESIZE  # the synthesizer's prompt

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.plan, ["question", "before", "most"], "plan")
        check(self.gather, ["question", "part"], "gather")
        check(self.synthesize, ["question", "findings", "sources"], "synthesize")
        check_counts(self, "max_refinement_iterations", "max_subqueries", "max_turns")

    @property
    def roles(self) -> tuple[str, ...]:
        return ("planner", "gatherer", "synthesizer")

    @property
    def searches_optionally(self) -> bool:
        return self.tools is not None

    async def run(self, task: Task, team: Team, world: Any) -> Outcome:
        plans: list[Plan] = []
        while len(plans) < self.max_refinement_iterations and not (plans and not plans[-1].gathered):
            plans.append(await self._plan(task, team, findings_of(plans)))
        gathered = [each for plan in plans for each in plan.gathered]
        sources = list({name: document for each in gathered for name, document in each.documents.items()}.values())
        read = {"findings": findings_of(plans) or "(nothing)", "sources": numbered(sources)}
        report = await team.synthesizer.say(fill(self.synthesize, {"question": task.prompt} | read))

        async def judge(grade: Grade) -> Metrics:
            return assign_rewards(plans, report, Evidence.of(task), await grade(report.text))

        results = [result for each in gathered for result in each.conversation.results]
        failures = sum(result.startswith("Error:") for result in results)
        metrics = {"total_iterations": len(plans), "parts": len(gathered), "sources": len(sources)}
        return Outcome(report.text, metrics | {"tool_calls": len(results), "tool_failures": failures}, judge=judge)

    async def _plan(self, task: Task, team: Team, findings: str) -> Plan:
        """One plan and the answers to its questions; later plans read what was found out before."""
        before = fill(BEFORE, {"findings": findings}) if findings else ""
        values = {"question": task.prompt, "before": before, "most": str(self.max_subqueries)}
        turn = await team.planner.say(fill(self.plan, values))
        lines = items(turn.text, self.max_subqueries)
        parts = [line for line in lines if not is_done(line)]
        members = Lockstep(team.gatherer, len(parts)).members
        work = (self._gather(task, member, part) for member, part in zip(members, parts, strict=True))
        return Plan(turn, bool(lines) and not parts, list(await asyncio.gather(*work)))

    async def _gather(self, task: Task, member: LockstepAgent, part: str) -> Gathered:
        seen = RecordingRetriever(self.retriever)
        tools = self._tools(seen)
        messages = chat_messages(fill(self.gather, {"question": task.prompt, "part": part}), describe(tools))
        with member:
            conversation = await converse(member, messages, tools, self.max_turns, self.seconds)
        return Gathered(part, conversation, seen.documents)

    def _tools(self, seen: RecordingRetriever) -> list[Tool]:
        own = [Tool(function, name) for name, function in (self.tools or {}).items()]
        python = [python_tool(self.seconds)] if self.python_tool is None else [Tool(self.python_tool, "python")]
        if (self.corpus, self.server, self.search_tool) == (None, None, None):
            return [*own, *python]
        opened = [open_tool(seen)] if isinstance(seen.retriever, Local) else []  # a server only searches
        return [search_tool(seen, self.documents), *opened, *own, *python]


def findings_of(plans: list[Plan]) -> str:
    gathered = [each for plan in plans for each in plan.gathered]
    return "\n\n".join(f"{each.part}\n→ {each.conversation.text.strip()}" for each in gathered)


def numbered(sources: list[Document]) -> str:
    return "\n\n".join(f"[{n}] {each.title}\n{each.text[:MAX_SOURCE]}" for n, each in enumerate(sources, 1)) or "(none)"


def cited(text: str) -> list[int]:
    return [int(number) for number in CITATION.findall(text)]


def assign_rewards(plans: list[Plan], report: Turn, evidence: Evidence, score: float) -> Metrics:
    """Set the rewards of all roles, as `DeepResearch` describes them; `score` is the grade of the report."""
    gathered = [each for plan in plans for each in plan.gathered]
    sources = list({name: document for each in gathered for name, document in each.documents.items()}.values())
    numbers = cited(report.text)
    named = {sources[number - 1].id for number in numbers if 0 < number <= len(sources)}
    valid = sum(0 < number <= len(sources) for number in numbers) / len(numbers) if numbers else 0.0
    report.reward = (1 - CITATION_WEIGHT) * score + CITATION_WEIGHT * valid
    recall = judge_plans(plans, evidence)
    rewards = []
    for each in gathered:
        helping = {name for name, document in each.documents.items() if evidence.helps(document)}
        stated = each.conversation.answered and bool(each.conversation.text.strip())
        useful = stated and (evidence.answered_in(each.conversation.text) or bool(named & helping))
        rewards.append((0.5 + 0.5 * useful) if helping else 0.0)
        for turn in each.conversation.turns:  # all turns of a gatherer share its reward
            turn.reward = rewards[-1]
    rate = {"gatherer_success_rate": sum(reward == 1 for reward in rewards) / len(rewards)} if rewards else {}
    metrics = {"planner_recall": recall, "citations": float(len(numbers)), "citations_valid": valid}
    return {**metrics, **rate, "synthesizer_grade": score, "final_success": float(is_correct(score))}


def judge_plans(plans: list[Plan], evidence: Evidence) -> float:
    """Set the reward of each plan; returns the recall of all of them."""
    documents: list[Document] = []
    recall = 0.0
    for plan in plans:
        documents += [document for each in plan.gathered for document in each.documents.values()]
        before, recall = recall, evidence.recall(documents)
        plan.turn.reward = new_evidence_reward(plan.done, before, recall)
    return recall
