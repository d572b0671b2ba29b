"""Runs in the sandbox: runs a project's tests by unittest or pytest, and detects if the project patches the runner.

Sent as source text to a Python that does not have Coterie installed. It imports all of unittest or pytest before the
project can be imported, and reports every test that passes, `tests/test_add.py::TestAdd.test_zero`, then `done`. The
project's code can find the pipe and forge reports; see `test_launcher`.
"""

import sys

STARTED = set(sys.modules)

import importlib  # noqa: E402
import inspect  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from types import FunctionType  # noqa: E402
from typing import Any  # noqa: E402

RUNNERS = ("builtins", "unittest", "pytest", "_pytest", "pluggy")
HERE = os.getcwd()  # the project; a test may change the directory
MOVED = "_pytest.legacypath"  # pytest itself assigns its functions elsewhere
Attribute = tuple[Any, str]  # a module or class, and a name in it
Tell = Callable[[list[str]], None]


def is_runner(module: str) -> bool:
    return module.partition(".")[0] in RUNNERS


def runner_attributes() -> Iterator[tuple[Attribute, Any]]:
    """All functions, classes and methods of the test runners."""
    for name, module in list(sys.modules.items()):
        if is_runner(name):
            classes = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == name]
            for owner in (module, *classes):
                for key, value in list(vars(owner).items()):
                    if callable(value) or isinstance(value, classmethod | staticmethod | property):
                        yield (owner, key), value


def code_of(value: Any) -> Any:
    """A function's code object, which can be replaced without replacing the function."""
    inner = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    return inner.__code__ if isinstance(inner, FunctionType) else None


class TamperCheck:
    """Finds attributes of the test runners that changed, except by an installed package, such as a plugin."""

    def __init__(self, installed: list[str]) -> None:
        self.installed = installed  # folders of packages
        self.before = {part: (value, code_of(value)) for part, value in runner_attributes()}
        self.modules = {name: module for name, module in sys.modules.items() if is_runner(name)}
        self.owners = {owner for owner, _ in self.before if isinstance(owner, type)}
        own = (value for (owner, _), (value, _) in self.before.items() if owner.__name__ != MOVED)
        self.values = {id(value) for value in own}  # `before` keeps them alive, so ids are unique
        self.changed: set[str] = set()

    def scan(self) -> None:
        """Compare the runners' attributes with those at the start."""
        self.changed |= {name for name, module in self.modules.items() if sys.modules.get(name) is not module}
        for (owner, name), (value, code) in self.before.items():
            now = vars(owner).get(name)
            if code_of(now) is not code if now is value else not self.is_installed(now):
                self.changed.add(f"{owner.__name__}.{name}")
        for owner in self.owners:  # a new special method would be called by Python itself
            for name, value in vars(owner).items():
                new = name.startswith("__") and isinstance(value, FunctionType) and (owner, name) not in self.before
                if new and not self.is_installed(value):
                    self.changed.add(f"{owner.__name__}.{name}")

    def is_installed(self, value: Any) -> bool:
        """True for a function from an installed package, but not for one moved from elsewhere in the runners."""
        code = code_of(value)
        file = os.path.abspath(code.co_filename) if code else ""
        packaged = any(file.startswith(folder + os.sep) for folder in self.installed)
        return id(value) not in self.values and packaged and os.path.isfile(file)


def test_ids(function: Any, owner: type | None, name: str, module: Any) -> list[str]:
    """The ids of a test: by its function, and by the class or module that has it under its name."""
    found: list[tuple[str | None, str]] = []
    plain = inspect.unwrap(getattr(getattr(function, "hypothesis", None), "inner_test", function))
    plain = getattr(plain, "__func__", plain)
    if isinstance(plain, FunctionType):
        found.append((plain.__code__.co_filename, plain.__qualname__))
    above = next((kind for kind in (owner.__mro__ if owner else ()) if name in vars(kind)), None)
    if above is not None:
        found.append((getattr(sys.modules.get(above.__module__), "__file__", None), f"{above.__qualname__}.{name}"))
    elif owner is None:
        found.append((getattr(module, "__file__", None), name))
    return [f"{os.path.relpath(file, HERE)}::{named}" for file, named in found if file]


def by_unittest(arguments: list[str], ready: Callable[[], TamperCheck], tell: Tell) -> tuple[bool, TamperCheck]:
    import unittest.async_case

    class Result(unittest.TextTestResult):
        def addSuccess(self, test: unittest.TestCase) -> None:
            super().addSuccess(test)
            name = getattr(test, "_testMethodName", "")
            tell(test_ids(getattr(test, name, None), type(test), name, None))

        def stopTest(self, test: unittest.TestCase) -> None:
            super().stopTest(test)
            watch.scan()

    class Runner(unittest.TextTestRunner):
        resultclass = Result  # type: ignore[assignment]

    watch = ready()
    ran = unittest.main(None, argv=["python -m unittest", *arguments], exit=False, testRunner=Runner).result
    return ran.wasSuccessful() and ran.testsRun > len(ran.skipped), watch


def by_pytest(arguments: list[str], ready: Callable[[], TamperCheck], tell: Tell) -> tuple[bool, TamperCheck]:
    import pytest
    from _pytest.config import default_plugins

    for plugin in default_plugins:
        importlib.import_module(f"_pytest.{plugin}")

    class Reports:
        def __init__(self) -> None:
            self.passed: set[str] = set()
            self.failed: set[str] = set()
            self.test_ids: dict[str, list[str]] = {}

        def pytest_itemcollected(self, item: Any) -> None:
            if isinstance(item, pytest.Function):
                name = item.originalname or item.name
                self.test_ids[item.nodeid] = test_ids(item.obj, item.cls, name, item.module)

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.when == "call" and report.passed:
                self.passed.add(report.nodeid)
            if report.failed:  # also for a subtest, whose test is reported as passed
                self.failed.add(report.nodeid)
            if report.when == "teardown":
                if report.nodeid in self.passed - self.failed:
                    tell(self.test_ids.get(report.nodeid, []))
                watch.scan()

    reports, watch = Reports(), ready()
    code = pytest.main(arguments, plugins=[reports])
    return code == 0 and bool(reports.passed), watch


def enter_project(installed: list[str]) -> TamperCheck:
    """Make the project importable, also where a module has the name of one that is already imported."""
    here = os.getcwd()
    watch = TamperCheck([folder for folder in installed if folder and folder != here])
    sys.path.insert(0, here)
    for name in set(sys.modules) - STARTED:
        top = name.partition(".")[0]
        own = os.path.isfile(f"{here}/{top}.py") or os.path.isfile(f"{here}/{top}/__init__.py")
        if own and top not in RUNNERS:
            del sys.modules[name]
    return watch


def main() -> None:
    pipe, request = int(sys.argv[1]), json.loads(sys.argv[2])
    os.set_inheritable(pipe, False)
    write = os.write

    def tell(lines: list[str]) -> None:
        rest = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
        while rest:
            rest = rest[write(pipe, rest) :]

    sys.path[:] = [*request["path"], *(folder for folder in sys.path if folder not in request["path"])]
    sys.argv[:] = [request["module"], *request["arguments"]]
    run = by_pytest if request["module"] == "pytest" else by_unittest
    passed, watch = run(request["arguments"], lambda: enter_project(request["path"]), tell)
    watch.scan()
    if watch.changed:
        print(f"the project changes its test runner: {', '.join(sorted(watch.changed)[:5])}", file=sys.stderr)
    if not passed or watch.changed:
        sys.exit(1)
    tell(["done"])


main()
