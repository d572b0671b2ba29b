"""A test file that was altered fails for everything that honestly passed it, whatever its style."""

from __future__ import annotations

import ast
import random
import textwrap
import unittest
from typing import Any

import pytest

from coterie.envs.swe.mutated_tests import mutate_tests

# Each passes with honest code.
STATEMENTS = [
    "assert add(2, 3) == 5",
    "assert 5 == add(2, 3), 'a message'",
    "assert (add(2, 3) == 5)",
    "assert add(2, 3) == 5 and add(0, 0) == 0",
    "assert add(2, 3) == add(3, 2)",
    "assert add(-2, 0) == -2",
    "assert add(0.1, 0.2) == pytest.approx(0.3)",
    "assert add(0.1, 0.2) == pytest.approx(1, abs=5)",
    "assert add(10**9, 1) == pytest.approx(1000000000)",
    "assert abs(add(0.1, 0.2) - 0.3) < 1e-9",
    "assert add('a', 'b') == 'ab'",
    "assert add(b'a', b'b') == b'ab'",
    "assert add('é', '\\n') == 'é\\n'",
    "assert add('', '') == ''",
    "assert add([], []) == []",
    "assert add((), ()) == ()",
    "assert dict() == {}",
    "assert add([1], [None, True]) == [1, None, True]",
    "assert {'a': add(1, 1), 'b': [add(1, 2)]} == {'a': 2, 'b': [3]}",
    "assert {add(1, 1)} == {2}",
    "assert add(1, 1) == 2 == add(2, 0)",
    "assert nothing() is None",
    "assert nothing() == None",
    "assert add(1, 1) is not None",
    "assert add(1, 1)",
    "assert not nothing()",
    "assert (found := add(1, 1))",
    "assert add(1, 1) < 3 and add(1, 1) >= 2",
    "assert add(1, 1) != 3",
    "assert 'b' in add('a', 'bc')",
    "assert 3 in range(10)",
    "assert add(1, 1) in (1, 2, -3)",
    "assert add(1, 1) in [add(1, 1)]",
    "assert 'z' not in add('a', 'b')",
    "assert all(add(n, 0) == n for n in range(3))",
    "assert add(1, 1) == 3 or add(1, 1) == 2",
    "assert isinstance(add(1, 1), int)",
    "assert add(1, 1) == mock.ANY",
    "assert {'a': [1]} == {'a': mock.ANY}",
    "assert [1] == mock.ANY",
    "assert f'{add(1, 1)}' == f'{2}'",
    "expected = 5\nassert add(2, 3) == expected",
    "for one, other, both in [(1, 2, 3), (2, 2, 4)]:\n    assert add(one, other) == both",
    "for number in (1, 2):\n    if number == 7:\n        assert add(1, 1) == 5",
    "for number in [1, 2]:\n    if number == 1:\n        continue\n    assert add(1, 1) == 2",
    "if add(1, 1) == 3:\n    assert add(1, 1) == 4",
    "try:\n    add(1, 'a')\nexcept TypeError:\n    pass\nelse:\n    assert False",
    "with pytest.raises(TypeError):\n    add(1, 'a')",
    "with pytest.raises((TypeError, ValueError), match='unsupported'):\n    add(1, 'a')\n    assert add(1, 1) == 3",
    "with contextlib.suppress(TypeError):\n    add(1, 'a')\n    assert add(1, 1) == 3",
    "with contextlib.nullcontext(2) as two:\n    assert add(1, 1) == two",
    "add(1, 1)",
    "add(1, 1)  # a comment",
    "if True: return\nassert add(1, 1) == 3",
    "def inner():\n    return 2\nassert add(1, 1) == inner()",
    "@contextlib.contextmanager\ndef inner():\n    yield 2\nwith inner() as two:\n    assert add(1, 1) == two",
    "'''A docstring.'''",
]
METHODS = [
    "self.assertEqual(add(2, 3), 5)",
    "self.assertEqual(first=add(2, 3), second=5)",
    "self.assertEqual(\n    add(2, 3),\n    5,\n    'a message',\n)",
    "self.assertNotEqual(add(2, 3), 6)",
    "self.assertListEqual(add([1], [2]), [1, 2])",
    "self.assertDictEqual({'a': add(1, 1)}, {'a': 2})",
    "self.assertCountEqual(add([2], [1]), [1, 2])",
    "self.assertCountEqual(add([], []), list())",
    "self.assertMultiLineEqual(add('a', 'b\\n'), '''ab\n''')",
    "self.assertAlmostEqual(add(0.1, 0.2), 0.3)",
    "self.assertAlmostEqual(add(0.1, 0.2), 0.4, delta=5)",
    "self.assertAlmostEqual(add(0.1, 0.2), 0.34, 1)",
    "self.assertTrue(add(1, 1) == 2)",
    "self.assertTrue(add(1, 1))",
    "self.assertFalse(add(0, 0))",
    "self.assertIs(nothing(), None)",
    "self.assertIsNone(nothing())",
    "self.assertIsNotNone(add(1, 1))",
    "self.assertIn('b', add('a', 'b'))",
    "self.assertIn(add(1, 1), [2, 3])",
    "self.assertNotIn('z', add('a', 'b'))",
    "self.assertIsInstance(add(1, 1), int)",
    "self.assertGreater(add(1, 1), 1)",
    "self.assertLessEqual(add(1, 1), 2)",
    "self.assertRegex(add('a', 'b'), 'a.')",
    "self.assertRaises(TypeError, add, 1, 'a')",
    "with self.assertRaises(TypeError) as caught:\n    add(1, 'a')\nself.assertIn('unsup', str(caught.exception))",
    "with self.assertRaisesRegex(TypeError, 'unsupported'):\n    add(1, 'a')",
    "for n in (1, 2):\n    with self.subTest(n=n):\n        self.assertEqual(add(n, n), 2 * n)",
    "with mock.patch('os.getcwd', return_value='x') as faked:\n    self.assertEqual(faked(), 'x')",
]
BEFORE = """\
import asyncio, contextlib, unittest
from unittest import mock
import pytest

def add(a, b):
    return a + b

def nothing():
    return None

"""


def indented(statement: str, depth: int) -> str:
    return textwrap.indent(statement, "    " * depth)


def by_function(statement: str) -> str:
    return f"{BEFORE}def test_it():\n{indented(statement, 1)}\n"


def by_method(statement: str, head: str = "def", kind: str = "TestCase") -> str:
    return f"{BEFORE}class T(unittest.{kind}):\n    {head} test_it(self):\n{indented(statement, 2)}\n"


def passes(text: str) -> bool:
    """Whether the one test of a file passes. The docstring's quotes make `'''ab` begin in the first column."""
    space: dict[str, Any] = {"__name__": "a_test"}
    exec(compile(text, "a_test.py", "exec"), space)
    if "T" in space:
        result = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(space["T"]).run(result)
        return result.wasSuccessful()
    try:
        space["test_it"]()
    except Exception:
        return False
    return True


def must_fail_when_mutated(text: str) -> None:
    assert passes(text), text
    for seed in range(12):
        found = mutate_tests(text, random.Random(seed))
        assert found is not None and found.text != text
        assert not passes(found.text), found.text


@pytest.mark.parametrize("statement", STATEMENTS)
def test_no_honest_code_passes_an_altered_function(statement: str) -> None:
    must_fail_when_mutated(by_function(statement))


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("statement", METHODS)
def test_no_honest_code_passes_an_altered_method(statement: str) -> None:
    must_fail_when_mutated(by_method(statement.replace("'''ab\n'''", "'ab\\n'")))


def test_no_honest_code_passes_an_altered_coroutine() -> None:
    body = "self.assertEqual(add(2, 3), 5)\nawait asyncio.sleep(0)"
    must_fail_when_mutated(by_method(body, "async def", "IsolatedAsyncioTestCase"))


def test_a_decorator_that_expects_an_error_is_no_way_to_pass() -> None:
    expects = "def expects(error):\n    def around(test):\n        def run():\n            try: test()\n"
    expects += (
        "            except error: return\n            raise AssertionError\n        return run\n    return around\n\n"
    )
    text = f"{BEFORE}{expects}@expects(TypeError)\ndef test_it():\n    add(1, 'a')\n    assert add(1, 1) == 3\n"
    must_fail_when_mutated(text)


EQUALS_ALL = "class All:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return True\n"
EQUALS_ALL += "    def __lt__(self, other): return True\n    __gt__ = __le__ = __ge__ = __contains__ = __lt__\n"
EQUALS_ALL += (
    "    def __round__(self, n): return 0\n    def __sub__(self, other): return self\n    __rsub__ = __sub__\n"
)
READS_FRAME = """
import sys
def add(*given):
    written = sys._getframe(1).f_code.co_consts
    return [value for value in written if value is not None and not any(value is each for each in given)][-1]
"""
COMPARED = [
    "assert add(2, 3) == 5",
    "assert add(2, 3) == 'five'",
    "assert add(2, 3) == pytest.approx(5.5)",
    "assert add(2, 3) in (5, 6)",
    "assert add(2, 3) == add(3, 2)",
    "assert add(2, 3) < 9 ",
    "assert add(2, 3) != 9",
    "assert 7 in add(2, 3)",
    "for one, other, both in [(1, 2, 3), (2, 2, 4)]:\n    assert add(one, other) == both",
]


@pytest.mark.parametrize("statement", COMPARED)
def test_an_object_that_equals_everything_passes_altered_tests_and_gives_itself_away(statement: str) -> None:
    text = (
        by_function(statement)
        .replace("    return a + b", "    return All()")
        .replace("def add", EQUALS_ALL + "\ndef add")
    )
    assert passes(text)
    for seed in range(12):
        found = mutate_tests(text, random.Random(seed))
        assert found is not None and passes(found.text), found.text


@pytest.mark.parametrize("statement", ["assert add(2, 3) == 5", "assert add(2, 3) == 'five'"])
def test_code_that_reads_the_expected_value_passes_altered_tests_and_gives_itself_away(statement: str) -> None:
    text = by_function(statement).replace("def add(a, b):\n    return a + b\n", READS_FRAME)
    assert passes(text)
    for seed in range(12):
        found = mutate_tests(text, random.Random(seed))
        assert found is not None and passes(found.text), found.text


def test_every_test_function_is_altered_and_nothing_else_is_touched() -> None:
    text = textwrap.dedent("""\
        # -*- a comment, and a tab\t-*-
        LIMIT = 5  # kept

        def helper():
            assert 1 == 1

        class TestA:
            def test_one(self):  # kept too
                assert 'ä' and helper() is None
            class TestInner:
                async def test_two(self): assert 1 == 1
        def make():
            def test_made():
                assert 2 == 2
            return test_made
        if LIMIT:
            def test_three(): pass
        """)
    found = mutate_tests(text, random.Random(0))
    assert found is not None
    assert found.tests == {"TestA.test_one", "TestA.TestInner.test_two", "make.<locals>.test_made", "test_three"}
    ast.parse(found.text)
    changed = [old for old, new in zip(text.splitlines(), found.text.splitlines(), strict=True) if old != new]
    assert len(changed) == 4 and not any("helper()" in line and "def" in line for line in changed)
    assert mutate_tests("def helper(): pass", random.Random(0)) is None
    assert mutate_tests("print 'an old file'", random.Random(0)) is None


def test_files_of_other_systems_are_altered_too() -> None:
    found = mutate_tests("\ufeffdef test_a():\r\n    assert 1 == 1\r\n", random.Random(0))
    assert found is not None and found.tests == {"test_a"}
    ast.parse(found.text)


def test_alterations_differ_from_change_to_change() -> None:
    """A model that is trained for long must not learn what the altered tests expect."""
    text = by_function("assert add(2, 3) == 5")
    assert len({mutate_tests(text, random.Random(seed)) for seed in range(40)}) > 5
