"""A project with a mistake in it, and what changes to it are worth."""

from __future__ import annotations

import asyncio
import textwrap
from typing import Any

from coterie.envs.swe.checkout import Checkout, SuiteResult

UNITTEST, PYTEST = "python -m unittest tests.test_ops", "pytest -q tests/test_ops.py"
BY_UNITTEST = """\
from calc.ops import add
import unittest

class T(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(2, 3), 5)
"""
BY_PYTEST = "from calc.ops import add\n\ndef test_add():\n    assert add(2, 3) == 5\n"
RIGHT = "def add(a, b):\n    return a + b\n"


def project(test: str, command: str, **more: Any) -> Checkout:
    files = {"calc/ops.py": b"def add(a, b):\n    return a - b\n", "calc/__init__.py": b"", "tests/__init__.py": b""}
    return Checkout(files | {"tests/test_ops.py": test.encode()}, [command], **more)


def tried(test: str, command: str, change: str, **more: Any) -> SuiteResult:
    return asyncio.run(project(test, command, **more).test({"calc/ops.py": textwrap.dedent(change)}))
