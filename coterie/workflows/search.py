"""Search: a query optimizer asks, retrievers read what is found, an extractor answers."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any, ClassVar

from coterie.prompts import check, fill
from coterie.rewards.qa import words
from coterie.tools.bm25 import Document
from coterie.tools.search import Hit, listed
from coterie.tools.tool import ToolError
from coterie.types import Grade, Metrics, Outcome, Task, Team, Turn, is_correct
from coterie.workflows.evidence import Evidence
from coterie.workflows.retrieval import Library
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
LETTERS = 600  # of a document that a retriever reads


@dataclass(frozen=True)
class Found:
    """What a query led to."""

    query: str
    documents: tuple[Document, ...]
    note: Turn
    failed: bool  # nothing answered

    @property
    def kept(self) -> bool:
        """Whether the note says more than NOTHING; that word may stand in a fact."""
        return NOTHING.fullmatch(self.note.text.strip().partition("\n")[0]) is None


@dataclass(frozen=True)
class Round:
    """What the optimizer said, and what came of it."""

    queries: Turn
    done: bool  # it said DONE, and no query
    found: list[Found]


@dataclass(frozen=True, kw_only=True)
class Search(Library):
    """Query optimizer → one retriever per query, at once → extractor. Queries are refined from what was found.

    When all is said: the optimizer earns the share of the still missing documents that its queries found; once none is
    missing, 1 for DONE and 0 for searching on. Compare its turns by round (`group_by: [task, role, turn]`): what can be
    found differs from round to round. A retriever earns up to 1 for keeping what helps, or 1 for NOTHING where nothing
    does; the extractor earns the grade.
    """

    judges_turns: ClassVar[bool] = True

    max_queries: int = 2  # queries per round, at most
    max_rounds: int = 2  # rounds, at most
    optimize: str = OPTIMIZE  # the query optimizer's prompt
    retrieve: str = RETRIEVE  # a retriever's prompt
    extract: str = EXTRACT  # the extractor's prompt

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.optimize, ["question", "notes", "most"], "optimize")
        check(self.retrieve, ["question", "query", "documents"], "retrieve")
        check(self.extract, ["question", "notes"], "extract")
        for name in ("max_queries", "max_rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: at least 1, not {getattr(self, name)}")

    @property
    def roles(self) -> tuple[str, ...]:
        return ("query_optimizer", "retriever", "extractor")

    async def run(self, task: Task, team: Team, world: Any) -> Outcome:
        rounds: list[Round] = []
        notes = ""
        while len(rounds) < self.max_rounds:
            asked = {"question": task.prompt, "notes": notes, "most": str(self.max_queries)}
            queries = await team.query_optimizer.say(fill(self.optimize, asked))
            lines = items(queries.text, self.max_queries)
            wanted = [query for query in lines if query.upper().strip(".") != "DONE"]
            found = await self._look_up(task, team, wanted)
            rounds.append(Round(queries, bool(lines) and not wanted, found))
            if not wanted:
                break
            notes += "".join(f"Notes on “{each.query}”:\n{each.note.text.strip()}\n\n" for each in found)
        answer = await team.extractor.say(fill(self.extract, {"question": task.prompt, "notes": notes}))

        async def judge(grade: Grade) -> Metrics:
            answer.reward = await grade(answer.text)
            own = {"extractor_grade": answer.reward, "final_success": float(is_correct(answer.reward))}
            return judged(rounds, Evidence.of(task)) | own

        looked = [each for one in rounds for each in one.found]
        said = {"total_iterations": float(len(rounds)), "queries": float(len(looked))}
        return Outcome(answer.text, said | {"search_failures": float(sum(f.failed for f in looked))}, judge=judge)

    async def _look_up(self, task: Task, team: Team, queries: list[str]) -> list[Found]:
        """All searches first: retrievers that spoke when their own search is done would speak in any order."""
        hits = await asyncio.gather(*map(self._search, queries))
        notes = await asyncio.gather(*(self._read(task, team, *pair) for pair in zip(queries, hits, strict=True)))
        every = zip(queries, hits, notes, strict=True)
        return [Found(q, tuple(hit.document for hit in some or []), note, some is None) for q, some, note in every]

    async def _search(self, query: str) -> list[Hit] | None:
        try:
            return await self.where.search(query, self.documents)
        except ToolError:  # a server that does not answer: the team goes on with what else it has
            return None

    async def _read(self, task: Task, team: Team, query: str, hits: list[Hit] | None) -> Turn:
        read = listed(hits or [], LETTERS) or "(none)"
        prompt = fill(self.retrieve, {"question": task.prompt, "query": query, "documents": read})
        return await team.retriever.say(prompt)


def judged(rounds: list[Round], evidence: Evidence) -> Metrics:
    documents: list[Document] = []
    before = 0.0
    rewards: list[float] = []
    for one in rounds:
        documents += [document for each in one.found for document in each.documents]
        recall = evidence.recall(documents)
        one.queries.reward = asked_well(one, before, recall)
        before = recall
        for each in one.found:
            each.note.reward = kept_well(each, evidence)
            rewards.append(each.note.reward)
    rate = {"retriever_success_rate": sum(rewards) / len(rewards)} if rewards else {}
    return {"query_optimizer_recall": before, **rate}


def asked_well(one: Round, before: float, after: float) -> float:
    """The share of what was missing that this round found. If nothing was missing, 1 for stopping.

    found before   it searches            it says DONE
    half           0 … 1 of the rest      0
    all            0                      1
    """
    return float(one.done) if before == 1 else (after - before) / (1 - before)


def kept_well(found: Found, evidence: Evidence) -> float:
    """1 for NOTHING where nothing helps. Where something does, 1 for keeping the answer if it stands there; else the
    share of the note's words that come from what helps."""
    helping = [document for document in found.documents if evidence.helps(document)]
    if not helping or not found.kept:
        return float(not helping and not found.kept)
    if any(evidence.answered_in(document.text) for document in helping):
        return float(evidence.answered_in(found.note.text))
    known = {word for document in helping for word in words(f"{document.title} {document.text}")}
    said = words(found.note.text)
    return sum(word in known for word in said) / len(said) if said else 0.0
