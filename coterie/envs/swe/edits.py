"""Parse and apply a model's edits: search/replace blocks, or a unified diff.

EditError messages are part of prompts: models read them.
"""

from __future__ import annotations

import difflib
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from coterie.errors import did_you_mean

Files = Mapping[str, str]

SEARCH, BETWEEN, REPLACE = (re.compile(sign) for sign in (r"<{5,9} ?SEARCH", r"={5,9}", r">{5,9} ?REPLACE"))
# A date may follow a path after a tab. Possessive quantifiers, so that a mismatch does not backtrack.
HEADER = re.compile(r"^--- (?P<old>[^\t\n]++)(?:\t[^\n]*+)?\n\+\+\+ (?P<new>[^\t\n]++)(?:\t[^\n]*+)?\n", re.M)
HUNK = re.compile(r"^@@ -(?P<start>[0-9]++)(?:,[0-9]++)? \+[0-9]++(?:,[0-9]++)? @@")
DIGITS = 9  # of a line number, at most
MAX_CHANGES = 1000
NOWHERE = "/dev/null"
NO_NEWLINE = "\\ No newline at end of file"
FENCED_DIFF = re.compile(r"^```(?:diff|patch)?[ \t]*\n(?P<body>(?:diff --git|--- ).*?)^```", re.DOTALL | re.M)


class EditError(ValueError):
    """An edit that cannot be applied; the message is for the model that wrote it."""


@dataclass(frozen=True)
class Change:
    """Replace some lines of a file. An empty `old` makes a new file."""

    path: str
    old: str
    new: str
    near: int = 0  # the line number in a diff's hunk header


def edited(text: str, files: Files) -> dict[str, str]:
    """Apply the edits in a text and return all files; raises EditError.

    src/add.py                       or a unified diff:    --- a/src/add.py
    <<<<<<< SEARCH                                         +++ b/src/add.py
        return a - b                                       @@ -1,2 +1,2 @@
    =======                                                 def add(a, b):
        return a + b                                       -    return a - b
    >>>>>>> REPLACE                                        +    return a + b
    """
    changes = _blocks(text) or _diff(text)
    if not changes:
        raise EditError("there is neither a search/replace block nor a diff in it")
    if len(changes) > MAX_CHANGES:
        raise EditError(f"{len(changes)} changes; at most {MAX_CHANGES} are made at once")
    result = dict(files)
    for change in changes:
        result[change.path] = _applied(change, result)
    return result


def diff_of(before: Files, after: Files) -> str:
    """The changes as a unified diff, which `edited` can apply."""
    parts: list[str] = []
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) != after.get(path):
            old, new = (lines(side[path]) if path in side else [] for side in (before, after))
            source = f"a/{path}" if path in before else NOWHERE
            for line in difflib.unified_diff(old, new, source, f"b/{path}"):
                parts.append(line if line.endswith("\n") else f"{line}\n{NO_NEWLINE}\n")
    return "".join(parts)


def lines(text: str) -> list[str]:
    """Split into lines with their ends, as git does: only at newlines, not at form feeds or carriage returns."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _blocks(text: str) -> list[Change]:
    """Search/replace blocks. Line by line, which is linear in the length of the text."""
    changes: list[Change] = []
    path, parts = "", list[list[str]]()  # the search lines and the replacement, as read so far
    for line in lines(text):
        bare = line.rstrip()
        if SEARCH.fullmatch(bare):
            parts = [[]]
        elif len(parts) == 1 and BETWEEN.fullmatch(bare):
            parts.append([])
        elif len(parts) == 2 and REPLACE.match(bare):
            changes.append(Change(_clean(path), "".join(parts[0]), "".join(parts[1])))
            parts = []
        elif parts:
            parts[-1].append(line)
        elif not bare.startswith("```"):  # a fence may stand between the path and the block
            path = bare
    return changes


def _diff(text: str) -> list[Change]:
    fenced = FENCED_DIFF.findall(text)
    body = "\n".join(fenced) if fenced else text
    headers = list(HEADER.finditer(body))
    ends = [header.start() for header in headers[1:]] + [len(body)]
    changes: list[Change] = []
    for header, end in zip(headers, ends, strict=False):  # without headers there is one end too many
        if header["new"].strip() == NOWHERE:
            raise EditError(f"{header['old']}: a file cannot be removed")
        path = _clean(re.sub(r"^b/", "", header["new"].strip()))
        changes += _hunks(path, body[header.end() : end])
    return changes


def _hunks(path: str, body: str) -> list[Change]:
    changes: list[Change] = []
    old, new, near, inside, last = "", "", 0, False, " "
    for line in [*(each.removesuffix("\n") for each in lines(body)), "@@ -0 +0 @@"]:
        if found := HUNK.match(line):
            changes += [Change(path, old, new, near)] if inside else []
            if len(found["start"]) > DIGITS:
                raise EditError(f"{path}: no file has a line {found['start'][:DIGITS]}…")
            old, new, near, inside = "", "", int(found["start"]), True
        elif line == NO_NEWLINE:
            old = old.removesuffix("\n") if last in "- " else old
            new = new.removesuffix("\n") if last in "+ " else new
        elif inside and line[:1] in ("-", "+", " ", ""):
            last = line[:1] or " "
            old += f"{line[1:]}\n" if last in "- " else ""
            new += f"{line[1:]}\n" if last in "+ " else ""
        else:  # `diff --git`, `index`, and prose after the diff
            changes += [Change(path, old, new, near)] if inside else []
            inside = False
    return changes


def _applied(change: Change, files: Files) -> str:
    if not change.old.strip():
        if change.path in files and files[change.path].strip():
            raise EditError(f"{change.path}: there is such a file already, and the change does not say where")
        return change.new
    if change.path not in files:
        raise EditError(f"{change.path}: there is no such file{did_you_mean(change.path, files)}")
    text = files[change.path]
    for old, new in _spellings(change):
        places = [found.start() for found in re.finditer(re.escape(old), text)]
        places = [place for place in places if place == 0 or text[place - 1] == "\n"]
        if places:
            if len(places) > 1 and not change.near:
                raise EditError(f"{change.path}: the text to replace stands there {len(places)} times; give more of it")
            starts = [0, *(found.end() for found in re.finditer("\n", text))]
            place = min(places, key=lambda at: abs(bisect_right(starts, at) - change.near))
            return text[:place] + new + text[place + len(old) :]
    raise EditError(f"{change.path}: the text to replace does not stand there:\n{change.old[:300]}")


def _spellings(change: Change) -> list[tuple[str, str]]:
    """The change as written, and without trailing newlines, which models add or forget."""
    bare = (change.old.rstrip("\n"), change.new.rstrip("\n"))
    return [(change.old, change.new), bare]


def _clean(path: str) -> str:
    """Extract the path from its line: `**src/a.py**`, "File: src/a.py"."""
    bare = re.sub(r"^(?:#+ |file(?:name)?:|path:)\s*", "", path.strip().strip("`*"), flags=re.IGNORECASE).strip("`* :")
    if bare.startswith("/") or ".." in bare.split("/") or "\0" in bare or not PurePosixPath(bare).parts:
        raise EditError(f"{path.strip()[:100]!r} is no path within the project")
    return str(PurePosixPath(bare))
