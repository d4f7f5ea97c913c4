"""Every test can fail: it asserts something, expects an error, or calls a helper of the tests that does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
CONTRACT = TESTS.parent / "aligner" / "testing"
EXPECTS = {"raises", "warns", "fail"}


def tree(path: Path) -> ast.Module:
    """The file's code."""
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(whole: ast.AST) -> Iterator[ast.FunctionDef]:
    """All functions, methods too."""
    return (node for node in ast.walk(whole) if isinstance(node, ast.FunctionDef))


@cache
def helpers() -> dict[str, list[ast.FunctionDef]]:
    """Functions of the tests by name."""
    found: dict[str, list[ast.FunctionDef]] = {}
    for path in (*TESTS.rglob("*.py"), *CONTRACT.glob("*.py")):
        for function in functions(tree(path)):
            found.setdefault(function.name, []).append(function)
    return found


def called(function: ast.FunctionDef) -> Iterator[str]:
    """Names of what it calls: functions, methods of its own class, and what is known to judge."""
    for node in ast.walk(function):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name):
            yield node.func.id
        elif isinstance(node.func, ast.Attribute):
            owner = node.func.value
            own = isinstance(owner, ast.Name) and owner.id in ("self", "pytest")
            above = isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "super"
            if own or above or node.func.attr.startswith("assert"):
                yield node.func.attr


def judges(function: ast.FunctionDef, seen: tuple[str, ...] = ()) -> bool:
    """Whether something in it can fail the test."""
    if any(isinstance(node, ast.Assert) for node in ast.walk(function)):
        return True
    for name in called(function):
        if name in EXPECTS or name.startswith("assert"):
            return True
        if name not in seen and any(judges(each, (*seen, name)) for each in helpers().get(name, ())):
            return True
    return False


@pytest.mark.parametrize("path", sorted(TESTS.rglob("test_*.py")), ids=lambda path: str(path.relative_to(TESTS)))
def test_every_test_can_fail(path: Path) -> None:
    tests = [function for function in functions(tree(path)) if function.name.startswith("test_")]
    assert [function.name for function in tests if not judges(function)] == []


def test_the_contract_of_adapters_can_fail() -> None:
    tests = [f for path in CONTRACT.glob("*.py") for f in functions(tree(path)) if f.name.startswith("test_")]
    assert len(tests) > 50
    assert [function.name for function in tests if not judges(function)] == []


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("assert f()", True),
        ("with pytest.raises(ValueError): f()", True),
        ("numpy.testing.assert_allclose(f(), 1)", True),
        ("f()", False),
        ("gaps.told('add')", False),  # a method of what is tested, although a helper of the tests is called so too
    ],
)
def test_this_test_can_fail(body: str, wanted: bool) -> None:
    (function,) = functions(ast.parse(f"def test_x():\n    {body}"))
    assert judges(function) is wanted
