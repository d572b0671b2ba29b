"""Laws of reading what roles decide."""

from __future__ import annotations

import pytest

from coterie.tools.bm25 import Document
from coterie.workflows.retrieval import Evidence
from coterie.workflows.search import Found, note_reward
from coterie.workflows.verdict_parsing import items, verdict
from tests.episodes import turn


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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("**Verdict**: `pass`", True),
        ("Verdict: \\boxed{correct}", True),
        ("Verdict: $\\boxed{\\text{incorrect}}$", False),
        ('The verdict is "wrong".', False),
        ("Verdict:\n\n> **Correct**", True),
        ("Verdict: [fail]", False),
        ("Correct. That is my verdict.\n\nThanks.", True),  # a sentence that ends states nothing
        ("No problems found. Looks right", None),
        ("Verdict: no obvious errors", None),
        ("No, it is 5.", False),
        ("No the sum is 5", False),
        ("Verdict: not correct", False),
        ("Verdict: \\frac{1}{2}", None),
    ],
)
def test_a_verdict_is_read_through_what_stands_around_it(text: str, says: bool | None) -> None:
    assert verdict(text) is says


@pytest.mark.parametrize(
    ("note", "kept"),
    [
        ("NOTHING", False),
        ("\n**Nothing.**\nThe documents are about fish.", False),
        ("Nothing Compares 2 U is from 1990.", True),
        ("Much Ado About Nothing", True),
        ("Lima.\nNOTHING else.", True),
    ],
)
def test_a_note_that_has_the_word_nothing_in_a_fact_is_kept(note: str, kept: bool) -> None:
    said = turn("retriever", [1], [2])
    said.text = note
    found = Found("plays", (Document("1", "Fish", "Cod."),), said, failed=False)
    assert found.has_facts is kept
    assert note_reward(found, Evidence(frozenset({"Plays"}), ("much ado",))) == float(not kept)
