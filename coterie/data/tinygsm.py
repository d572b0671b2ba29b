"""TinyGSM: grade-school word problems whose answer is a Python program; its value becomes the reference."""

from __future__ import annotations

from functools import partial

from coterie.data.programs import run_programs
from coterie.data.row import Hub, Raw, Row, Source, missing_text, other_fields

CODE = "code"


def parse(raw: Raw, name: str, code: str = CODE) -> Row | str:
    wrong = missing_text(raw, "question", code)
    return wrong or Row(name, raw["question"].strip(), None, other_fields(raw, "question"))


def program_source(code: str) -> Source:
    """Rows in TinyGSM's format with the program in another column."""
    return Source(
        name="tinygsm",
        about="word problems whose answer is a program; its value becomes the answer",
        reward="number",
        parse=partial(parse, code=code),
        hubs=(Hub("TinyGSM/TinyGSM", None, {"train": "train"}),),
        unsplit=True,
        finish=partial(run_programs, column=code),
    )


TINYGSM = program_source(CODE)
