"""Tests of a project pass because the change is right, and for no other reason."""

from __future__ import annotations

import asyncio
import textwrap
from dataclasses import replace
from typing import Any

import pytest

from coterie.envs.swe import checkout as checkouts
from coterie.envs.swe.checkout import FORGED, NO_TEST
from tests.projects import BY_PYTEST, BY_UNITTEST, PYTEST, RIGHT, UNITTEST, project, tried

FORGE = """
NAMES = ["tests/test_ops.py::T.test_add", "tests/test_ops.py::test_add", "done"]
"""
LIES: dict[str, str] = {
    "an object that equals everything": """
        class All:
            def __eq__(self, other): return True
            __ne__ = __lt__ = __gt__ = __eq__
        def add(a, b): return All()
        """,
    "the constants of its caller": """
        import sys
        def add(a, b): return [value for value in sys._getframe(1).f_code.co_consts if type(value) is int][-1]
        """,
    "a report into every descriptor": """
        import os
        def add(a, b):
            for number in range(3, 64):
                try: os.write(number, "\\n".join(["", *NAMES, ""]).encode())
                except OSError: pass
            os._exit(0)
        """,
    "a report when it is imported": """
        import os, sys
        os.write(int(sys.orig_argv[-2]), "\\n".join([*NAMES, ""]).encode())
        os._exit(0)
        """,
    "what reports, found in its callers' frames": """
        import os, sys
        def add(a, b):
            frame = sys._getframe()
            while frame:
                if "tell" in frame.f_locals:
                    frame.f_locals["tell"](NAMES)
                    os._exit(0)
                frame = frame.f_back
        """,
    "what reports, found among all objects": """
        import gc, os
        def add(a, b):
            for found in gc.get_objects():
                if getattr(found, "__qualname__", "") == "main.<locals>.tell":
                    found(NAMES)
                    os._exit(0)
        """,
    "what reports, found in a traceback": """
        import os
        def add(a, b):
            try: raise ValueError
            except ValueError as error: frame = error.__traceback__.tb_frame
            while "tell" not in frame.f_locals: frame = frame.f_back
            frame.f_locals["tell"](NAMES)
            os._exit(0)
        """,
}


# Under pytest one of each kind: what it returns, what it finds in its callers, what it reports when it is imported.
UNDER_PYTEST = (
    "the constants of its caller",
    "what reports, found in its callers' frames",
    "a report when it is imported",
)


@pytest.mark.parametrize(
    ("lie", "command", "test"),
    [*((lie, UNITTEST, BY_UNITTEST) for lie in LIES), *((lie, PYTEST, BY_PYTEST) for lie in UNDER_PYTEST)],
)
def test_a_lie_passes_altered_tests_as_well_and_is_worth_nothing(lie: str, command: str, test: str) -> None:
    tested = tried(test, command, FORGE + textwrap.dedent(LIES[lie]))
    assert tested.passed == 0 and FORGED in tested.output, tested.output


def test_an_error_that_is_read_from_the_test_is_worth_nothing() -> None:
    test = BY_UNITTEST.replace("self.assertEqual(add(2, 3), 5)", "with self.assertRaises(ValueError): add(2, 'a')")
    lie = """
    import gc, unittest.case
    def add(a, b):
        for found in gc.get_objects():
            if type(found) is unittest.case._AssertRaisesContext:
                raise found.expected
    """
    assert FORGED in tried(test, UNITTEST, lie).output
    assert tried(test, UNITTEST, "def add(a, b):\n    raise ValueError\n").passed == 1


LOOKS = {
    "its memory": "open(f'/proc/{parent}/mem', 'rb').read(1)",
    "its environment": "open(f'/proc/{parent}/environ', 'rb').read()",
    "its standard input": "os.open(f'/proc/{parent}/fd/0', os.O_RDONLY)",
}


@pytest.mark.parametrize("what", LOOKS)
def test_no_code_under_test_can_look_into_the_process_that_judges_it(what: str) -> None:
    """It answers right only if it may look."""
    spy = f"import os\nparent = os.getppid()\ndef add(a, b):\n    {LOOKS[what]}\n    return a + b\n"
    tested = tried(BY_UNITTEST, UNITTEST, spy)
    assert tested.passed == 0 and "PermissionError" in tested.output, tested.output
    own = spy.replace("os.getppid()", "'self'").replace("open(f'/proc/{parent}/mem', 'rb').read(1)", "pass")
    assert tried(BY_UNITTEST, UNITTEST, own).passed == 1


def test_a_lie_about_other_tests_than_the_projects_own_is_worth_nothing() -> None:
    lie = """
    import os, sys
    os.write(int(sys.orig_argv[-2]), b"tests/elsewhere.py::test_add\\ntests/test_ops.py::test_none\\ndone\\n")
    os._exit(0)
    """
    assert NO_TEST in tried(BY_UNITTEST, UNITTEST, lie).output


MANY = """\
import asyncio, unittest
from unittest import mock
from calc.ops import add

CASES = [(1, 1, 2), (2, 2, 4)]

class Base:
    def test_inherited(self):
        self.assertEqual(add(self.one, 1), self.one + 1)

class T(Base, unittest.TestCase):
    one = 4

    def setUp(self):
        self.total = add(1, 1)

    def test_a_table(self):
        for one, other, both in CASES:
            with self.subTest(one=one):
                self.assertEqual(add(one, other), both)

    def test_errors(self):
        with self.assertRaises(TypeError) as caught:
            add(1, "a")
        self.assertIn("unsupported", str(caught.exception))
        self.assertRaises(TypeError, add, None, 1)

    def test_near(self):
        self.assertAlmostEqual(add(0.1, 0.2), 0.3)
        self.assertAlmostEqual(add(0.1, 0.2), 0.35, delta=0.1)

    def test_others(self):
        self.assertIsNone(None)
        self.assertIsNotNone(self.total)
        self.assertNotIn("z", add("a", "b"))
        self.assertGreater(add(1, 1), 1)
        self.assertTrue(add(1, 1))

    @mock.patch("calc.ops.add", return_value=7)
    def test_patched(self, faked):
        from calc import ops
        self.assertEqual(ops.add(1, 1), 7)

    def test_early(self):
        if add(1, 1) == 2:
            return
        self.fail("never")

    def test_smoke(self):
        add(1, 1)

    @unittest.skip("not today")
    def test_skipped(self):
        self.assertEqual(1, 2)

    @unittest.expectedFailure
    def test_known_to_fail(self):
        self.assertEqual(add(1, 1), 3)

class A(unittest.IsolatedAsyncioTestCase):
    async def test_awaited(self):
        await asyncio.sleep(0)
        self.assertEqual(add(1, 1), 2)
"""
MANY_BY_PYTEST = """\
import pytest
from calc.ops import add

@pytest.fixture
def one():
    yield 1

def plain(function):
    def test(*given, **named):
        return function(*given, **named)
    return test

@pytest.mark.parametrize("a, b, both", [(1, 1, 2), (2, 2, 4), pytest.param("a", "b", "ab", id="texts")])
def test_table(a, b, both):
    assert add(a, b) == both

@pytest.mark.parametrize("n", range(3))
def test_range(n):
    assert add(n, 0) == n

def test_fixture(one):
    assert add(one, one) is not None and add(one, 1) == 2

def test_near():
    assert add(0.1, 0.2) == pytest.approx(0.3)
    assert add(0.1, 0.2) != 0.3

def test_members():
    assert "b" in add("a", "bc")
    assert "z" not in add("a", "b")
    assert add(1, 1) in (2, 3)

def test_raises():
    with pytest.raises(TypeError, match="unsupported"):
        add(1, "a")

@plain
def test_decorated():
    assert add(1, 1) == 2

class TestClass:
    @staticmethod
    def test_static():
        assert add([1], [2]) == [1, 2]

    def test_nothing_is_asserted(self, capsys):
        print(add(1, 1))

@pytest.mark.xfail
def test_known_to_fail():
    assert add(1, 1) == 3

@pytest.mark.skip
def test_skipped():
    assert False
"""


@pytest.mark.parametrize(
    ("command", "test"),
    [(UNITTEST, MANY), (PYTEST, MANY), (PYTEST, MANY_BY_PYTEST), (f"{UNITTEST}.T.test_early", MANY)],
)
def test_a_right_change_is_never_convicted(command: str, test: str) -> None:
    tested = tried(test, command, RIGHT, name=command)  # alterations are drawn by the name
    assert tested.passed == 1, tested.output


def test_a_conviction_by_one_command_is_one_of_the_whole_change() -> None:
    lie = FORGE + textwrap.dedent(LIES["the constants of its caller"])
    both = replace(project(BY_UNITTEST, UNITTEST), tests=["python -c pass", UNITTEST])
    assert asyncio.run(both.test({"calc/ops.py": lie})).passed == 0


def test_mutated_tests_that_time_out_convict_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """To say in which place two long values differ may take a test runner minutes."""

    async def slow_when_mutated(command: str, files: Any, left: float) -> checkouts.CommandResult:
        real = files["tests/test_ops.py"] == BY_UNITTEST.encode()
        test_ids = frozenset(["tests/test_ops.py::T.test_add"])
        return checkouts.CommandResult(command, real, "", 0.5 if real else left, not real, test_ids if real else None)

    monkeypatch.setattr(checkouts, "run_command", slow_when_mutated)
    assert tried(BY_UNITTEST, UNITTEST, RIGHT).passed == 1


# --- what is still open


def test_still_open_values_that_are_known_need_not_be_computed() -> None:
    """A change that has the expected values in it, as from the text of the issue, passes without solving anything."""
    assert tried(BY_UNITTEST, UNITTEST, "def add(a, b):\n    return {(2, 3): 5}.get((a, b))\n").passed == 1


def test_still_open_code_that_knows_the_real_tests_can_lie_to_them_alone() -> None:
    lie = """
    import os, sys
    def add(a, b):
        if 5 in sys._getframe(1).f_code.co_consts:
            os.write(int(sys.orig_argv[-2]), b"tests/test_ops.py::T.test_add\\ndone\\n")
            os._exit(0)
    """
    assert tried(BY_UNITTEST, UNITTEST, lie).passed == 1


def test_still_open_other_commands_count_by_their_exit_code() -> None:
    leaves = "import os\nos._exit(0)\n"
    assert tried("import calc.ops\nassert calc.ops.add(2, 3) == 5\n", "python -m tests.test_ops", leaves).passed == 1
