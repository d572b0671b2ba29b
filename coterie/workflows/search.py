"""Search: a query optimizer writes queries, retrievers take notes on the documents, an extractor answers."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any, ClassVar

from coterie.prompts import check, check_counts, fill
from coterie.rewards.qa import words
from coterie.tools.bm25 import Document
from coterie.tools.search import Hit, listed
from coterie.tools.tool import ToolError
from coterie.types import Grade, Metrics, Outcome, Task, Team, Turn, is_correct
from coterie.workflows.retrieval import Evidence, RetrievalOptions, is_done, new_evidence_reward
from coterie.workflows.verdict_parsing import items

OPTIMIZE = (
    "{question}\n\n{notes}Write up to {most} short search queries that would find what is still missing to answer "
    "this, one per line. If nothing is missing, write only: DONE"
)
RETRIEVE = (
    "{question}\n\nThese documents were found for “{query}”:\n\n{documents}\n\n"
    "Copy the facts that help to answer the question, briefly. If there are none, write only: NOTHING"
)
EXTRACT = "{question}\n\n{notes}Answer from these notes, in a few words, as <answer>your answer</answer>."
NOTHING = re.compile(r"[\W_]*nothing[\W_]*", re.IGNORECASE)
MAX_DOCUMENT = 600  # characters of a document in a retriever's prompt


@dataclass(frozen=True)
class Found:
    """A query, the documents it found and the retriever's note on them."""

    query: str
    documents: tuple[Document, ...]
    note: Turn
    failed: bool  # the search failed

    @property
    def has_facts(self) -> bool:
        """False if the note's first line is only NOTHING; that word may also occur in a fact."""
        return NOTHING.fullmatch(self.note.text.strip().partition("\n")[0]) is None


@dataclass(frozen=True)
class Round:
    """One round: the optimizer's turn, and the results of its queries."""

    queries: Turn
    done: bool  # the optimizer wrote DONE and no query
    found: list[Found]


@dataclass(frozen=True, kw_only=True)
class Search(RetrievalOptions):
    """Query optimizer → one retriever per query, concurrently → extractor. Queries are refined in rounds,
    at most `max_refinement_iterations` of them.

    Rewards, after the episode: the optimizer gets the fraction of the missing documents that its queries found; once
    none is missing, 1 for DONE and 0 for searching on. Compare its turns by round (`group_by: [task, role, turn]`),
    because what can be found differs between rounds. A retriever gets up to 1 for noting what helps, or 1 for NOTHING
    if nothing does; the extractor gets the grade.
    """

    judges_turns: ClassVar[bool] = True

    max_queries: int = 2  # queries per round, at most
    max_refinement_iterations: int = 2  # rounds of queries, at most
    optimize: str = OPTIMIZE  # the query optimizer's prompt
    retrieve: str = RETRIEVE  # a retriever's prompt
    extract: str = EXTRACT  # the extractor's prompt

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.optimize, ["question", "notes", "most"], "optimize")
        check(self.retrieve, ["question", "query", "documents"], "retrieve")
        check(self.extract, ["question", "notes"], "extract")
        check_counts(self, "max_queries", "max_refinement_iterations")

    @property
    def roles(self) -> tuple[str, ...]:
        return ("query_optimizer", "retriever", "extractor")

    async def run(self, task: Task, team: Team, world: Any) -> Outcome:
        rounds: list[Round] = []
        notes = ""
        while len(rounds) < self.max_refinement_iterations:
            values = {"question": task.prompt, "notes": notes, "most": str(self.max_queries)}
            queries = await team.query_optimizer.say(fill(self.optimize, values))
            lines = items(queries.text, self.max_queries)
            new = [query for query in lines if not is_done(query)]
            found = await self._look_up(task, team, new)
            rounds.append(Round(queries, bool(lines) and not new, found))
            if not new:
                break
            notes += "".join(f"Notes on “{each.query}”:\n{each.note.text.strip()}\n\n" for each in found)
        answer = await team.extractor.say(fill(self.extract, {"question": task.prompt, "notes": notes}))

        async def judge(grade: Grade) -> Metrics:
            answer.reward = await grade(answer.text)
            metrics = {"extractor_grade": answer.reward, "final_success": float(is_correct(answer.reward))}
            return assign_rewards(rounds, Evidence.of(task)) | metrics

        looked = [each for one in rounds for each in one.found]
        metrics = {"total_iterations": float(len(rounds)), "queries": float(len(looked))}
        return Outcome(answer.text, metrics | {"search_failures": float(sum(f.failed for f in looked))}, judge=judge)

    async def _look_up(self, task: Task, team: Team, queries: list[str]) -> list[Found]:
        """Search, then take notes. All searches end first, so that latency cannot change the order of sampling."""
        hits = await asyncio.gather(*map(self._search, queries))
        notes = await asyncio.gather(*(self._read(task, team, *pair) for pair in zip(queries, hits, strict=True)))
        every = zip(queries, hits, notes, strict=True)
        return [Found(q, tuple(hit.document for hit in some or []), note, some is None) for q, some, note in every]

    async def _search(self, query: str) -> list[Hit] | None:
        try:
            return await self.retriever.search(query, self.documents)
        except ToolError:  # the server failed: go on without its documents
            return None

    async def _read(self, task: Task, team: Team, query: str, hits: list[Hit] | None) -> Turn:
        read = listed(hits or [], MAX_DOCUMENT) or "(none)"
        prompt = fill(self.retrieve, {"question": task.prompt, "query": query, "documents": read})
        return await team.retriever.say(prompt)


def assign_rewards(rounds: list[Round], evidence: Evidence) -> Metrics:
    """Set the rewards of optimizer and retriever; returns their metrics."""
    documents: list[Document] = []
    before = 0.0
    rewards: list[float] = []
    for one in rounds:
        documents += [document for each in one.found for document in each.documents]
        recall = evidence.recall(documents)
        one.queries.reward = new_evidence_reward(one.done, before, recall)
        before = recall
        for each in one.found:
            each.note.reward = note_reward(each, evidence)
            rewards.append(each.note.reward)
    rate = {"retriever_success_rate": sum(rewards) / len(rewards)} if rewards else {}
    return {"query_optimizer_recall": before, **rate}


def note_reward(found: Found, evidence: Evidence) -> float:
    """If no document helps, 1 for NOTHING. Otherwise 1 for noting the answer if a document has it, else the fraction
    of the note's words that occur in helpful documents."""
    helping = [document for document in found.documents if evidence.helps(document)]
    if not helping or not found.has_facts:
        return float(not helping and not found.has_facts)
    if any(evidence.answered_in(document.text) for document in helping):
        return float(evidence.answered_in(found.note.text))
    known = {word for document in helping for word in words(f"{document.title} {document.text}")}
    noted = words(found.note.text)
    return sum(word in known for word in noted) / len(noted) if noted else 0.0
