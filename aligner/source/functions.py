"""A function of the user's, compiled again from its source with calls of an ear in it.

The source is what stands in the file now, or what a notebook keeps of a cell. If that is not what the function was
compiled of, or cannot be had, there is no such form of it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import CellType, CodeType, FunctionType
from typing import Any, Optional

from aligner.source.constants import constants
from aligner.source.rewriting import EAR, Telling
from aligner.source.written import Definition, changed, definitions, parsed, source


def told(function: FunctionType, ear: object, text: Optional[str] = None) -> Optional[FunctionType]:
    """The same function, but each operation in it goes through `ear`; None if its source is not known.

    With `text`, which stands for its file's, it does what is written there.
    """
    code = _code(function.__code__, function.__code__.co_filename, function.__qualname__, text)
    if code is None or EAR not in code.co_freevars:
        return code and function
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
    cells[EAR] = CellType(ear)
    if not cells.keys() >= set(code.co_freevars):
        return None
    closure = tuple(cells[name] for name in code.co_freevars)
    made = FunctionType(code, _scope(function, text), function.__name__, _defaults(function, text), closure)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__ = function.__qualname__
    return made


def differs(function: FunctionType, one: Optional[str], other: Optional[str]) -> bool:
    """Whether it does something else by one text of its file than by the other; None is the file's own."""
    code, file, name = function.__code__, function.__code__.co_filename, function.__qualname__
    if one == other:
        return False
    own, its = (_constants(source(file), text) for text in (one, other))
    used = {word for part in (code, *_within(code)) for word in part.co_names} | {*_default_names(function)}
    if any(repr(own.get(word)) != repr(its.get(word)) for word in used & {*own, *its}):
        return True
    return _code(code, file, name, one) is not _code(code, file, name, other)


def definition(function: FunctionType) -> Optional[Definition]:
    """Where it is written; None if that is not known."""
    code = function.__code__
    try:
        return _definition(code, code.co_filename, source(code.co_filename))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _scope(function: FunctionType, text: Optional[str]) -> dict[str, Any]:
    """The names around a function, with the constants of this text of its file."""
    others = _constants(source(function.__code__.co_filename), text)
    known = {name: value for name, value in others.items() if name in function.__globals__}
    return {**function.__globals__, **known} if known else function.__globals__


def _defaults(function: FunctionType, text: Optional[str]) -> Optional[tuple[Any, ...]]:
    """What is taken where nothing is given: of constants of the file those of this text."""
    others = _constants(source(function.__code__.co_filename), text)
    own = function.__defaults__
    if not others or not own:
        return own
    return tuple(others.get(name, value) for name, value in zip(_default_names(function), own))


def _default_names(function: FunctionType) -> list[str]:
    """What its defaults are called that are constants of the file; "" for the others."""
    file, count = function.__code__.co_filename, len(function.__defaults__ or ())
    node = _definition(function.__code__, file, source(file)) if count else None
    found = [one.id if isinstance(one, ast.Name) else "" for one in node.args.defaults] if node is not None else []
    return found if len(found) == count else [""] * count


@lru_cache(maxsize=64)
def _constants(own: str, text: Optional[str]) -> Mapping[str, Any]:
    """Constants that another text of a file has another value for."""
    if text is None or changed(own, text) is not None:  # that is inside a function
        return {}
    try:
        one, other = constants(own), constants(text)
    except SyntaxError:
        return {}
    both = ((name, one[name].value, other[name].value) for name in one.keys() & other.keys())
    return {name: new for name, known, new in both if repr(known) != repr(new)}


def around(wrapper: FunctionType, inner: FunctionType) -> Optional[FunctionType]:
    """A wrapper like this one around another function; None if it does not keep its function where it can be seen."""
    known = vars(wrapper)["__wrapped__"]
    cells = [CellType(inner) if _content(cell) is known else cell for cell in wrapper.__closure__ or ()]
    if all(new is old for new, old in zip(cells, wrapper.__closure__ or ())):
        return None
    made = FunctionType(wrapper.__code__, wrapper.__globals__, wrapper.__name__, wrapper.__defaults__, tuple(cells))
    made.__kwdefaults__, made.__qualname__, made.__module__ = (
        wrapper.__kwdefaults__,
        wrapper.__qualname__,
        wrapper.__module__,
    )
    vars(made).update({**vars(wrapper), "__wrapped__": inner})
    return made


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


def is_told(function: FunctionType) -> bool:
    """Whether it is such a form, or was made in one."""
    return EAR in function.__code__.co_freevars


def plain(function: FunctionType) -> Optional[FunctionType]:
    """The function as its author wrote it, where it was made in such a form; None if its code is not found."""
    if not is_told(function):
        return function
    code, file = function.__code__, function.__code__.co_filename
    known = dict(zip(code.co_freevars, function.__closure__ or ()))
    for one in _within(_whole(source(file), file)):
        alike = (one.co_name, one.co_firstlineno, one.co_varnames) == (
            code.co_name,
            code.co_firstlineno,
            code.co_varnames,
        )
        if alike and {*one.co_freevars} == known.keys() - {EAR}:
            return remade(function, one, tuple(known[name] for name in one.co_freevars))
    return None


def remade(function: FunctionType, code: CodeType, cells: tuple[CellType, ...]) -> FunctionType:
    """A function like this one, of other code or with other cells."""
    made = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, cells)
    made.__kwdefaults__, made.__qualname__ = function.__kwdefaults__, function.__qualname__
    made.__dict__.update(function.__dict__)
    return made


@lru_cache(maxsize=4096)
def _code(code: CodeType, file: str, name: str, text: Optional[str]) -> Optional[CodeType]:
    """Code of two files may be equal. A function that stands in another text as it does in its file is made once."""
    try:
        own = _definition(code, file, source(file))
        node = own if own is None or text is None else _counterpart(own, source(file), text)
        if own is None or node is None:
            return None
        if text is not None and node is own:
            return _code(code, file, name, None)
        return _compiled(node, code, _owner(name), source(file) if text is None else text)
    except (SyntaxError, ValueError, RecursionError):  # no Python, or nested too deeply for its compiler
        return None


@lru_cache(maxsize=4096)
def _definition(code: CodeType, file: str, text: str) -> Optional[Definition]:
    """The one definition of the file that makes this very code."""
    if not text:
        return None
    if not any(_is_same(code, one) for one in _within(_whole(text, file)) if one.co_name == code.co_name):
        return None
    found = [
        node
        for node in definitions(parsed(text))
        if getattr(node, "name", "<lambda>") == code.co_name
        and min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))]) == code.co_firstlineno
    ]
    return found[0] if len(found) == 1 else None


def _counterpart(own: Definition, text: str, other: str) -> Optional[Definition]:
    """What stands in another text in this definition's place; the very same where that is as it was.

    Raises:
        SyntaxError: it is no Python there.
    """
    part = changed(text, other)
    defined, others = map(definitions, (parsed(text), parsed(other)) if part is None else part)
    place = own.lineno, own.col_offset  # a tree that is not kept any more is made again
    number = next((n for n, one in enumerate(defined) if (one.lineno, one.col_offset) == place), None)
    if number is None:  # it stands outside of what was changed
        return own
    if len(others) != len(defined):
        return None
    node = others[number]
    same = own.lineno == node.lineno and _lines(text, own) == _lines(other, node)
    return own if same else node


@lru_cache(maxsize=64)
def _whole(text: str, file: str) -> CodeType:
    return compile(text, file, "exec", dont_inherit=True)


def _lines(text: str, node: Definition) -> Sequence[str]:
    """The lines on which a function stands."""
    return text.split("\n")[node.lineno - 1 : node.end_lineno]


def _is_same(one: CodeType, other: CodeType) -> bool:
    """Whether both are compiled of the same lines."""
    return all(
        getattr(one, part) == getattr(other, part)
        for part in ("co_firstlineno", "co_code", "co_names", "co_varnames", "co_freevars")
    )


def _owner(name: str) -> str:
    """The class in which a function of this name is written, for names like self.__own; "" where it is in none."""
    for part in reversed(name.split(".<locals>.")):
        names = part.split(".")
        if len(names) > 1:
            return names[-2]
    return ""


def _copied(node: Any) -> Any:
    """Several times faster than a deep copy: a tree holds each node once."""
    if isinstance(node, list):
        return [_copied(one) for one in node]
    if not isinstance(node, ast.AST):
        return node
    made = type(node).__new__(type(node))
    vars(made).update({name: _copied(part) for name, part in vars(node).items()})
    return made


@dataclass(frozen=True)
class _Statement:
    """One of a function's, by where it stands and what is written there."""

    file: str
    span: tuple[int, int, Optional[int], Optional[int]]
    lines: str
    node: Any = field(compare=False)


@lru_cache(maxsize=4096)
def _told(one: _Statement) -> Any:
    """A statement with the calls of the ear in it. An edit changes one of many, and the others are as they were."""
    return ast.fix_missing_locations(Telling(one.file).visit(_copied(one.node)))


def _statements(body: Sequence[Any], file: str, text: str) -> Iterator[_Statement]:
    lines = text.split("\n")
    for one in body:
        span = one.lineno, one.col_offset, one.end_lineno, one.end_col_offset
        yield _Statement(file, span, "\n".join(lines[one.lineno - 1 : one.end_lineno]), one)


def _compiled(own: Any, code: CodeType, owner: str, text: str) -> Optional[CodeType]:
    kind: Any = type(own)
    node = kind.__new__(kind)
    vars(node).update({**vars(own), "args": _copied(own.args)})
    node.args.defaults = [ast.copy_location(ast.Constant(None), one) for one in node.args.defaults]
    node.args.kw_defaults = [one and ast.copy_location(ast.Constant(None), one) for one in node.args.kw_defaults]
    for argument in ast.walk(node.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    if isinstance(node, ast.Lambda):
        node.body = ast.fix_missing_locations(Telling(code.co_filename).visit(_copied(own.body)))
    else:
        node.body = [_told(one) for one in _statements(own.body, code.co_filename, text)]
        node.decorator_list, node.returns = [], None
    factory: Any = ast.parse(f"def factory():\n class {owner}: pass" if owner else "def factory(): pass")
    function = factory.body[0]
    function.args.args = [ast.arg(name) for name in (EAR, *code.co_freevars) if name != "__class__"]
    # its own name and its class's stay as they were
    outside = {owner, code.co_name} - {"", "<lambda>", *code.co_freevars}
    if outside:
        function.body.insert(0, ast.Global(sorted(outside)))
    ast.fix_missing_locations(factory)
    made = ast.copy_location(ast.Expr(node), node) if isinstance(node, ast.Lambda) else node
    (function.body[-1] if owner else function).body[-1:] = [made]
    whole = compile(factory, code.co_filename, "exec", dont_inherit=True)
    return next((one for one in _within(whole) if one.co_name == code.co_name), None)


def _within(code: CodeType) -> Iterator[CodeType]:
    """All code in it, the outer before the inner."""
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _within(one)
