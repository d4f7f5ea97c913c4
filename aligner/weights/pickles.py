"""Reads a pickle without running anything of it: there is no import and no call of what the file names.

A pickle is a program for a machine with a stack. This one knows the instructions of protocols 2 to 5 that plain data
need, and instead of calling what a file names it hands the name and the arguments to `make`, which knows a fixed list.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aligner.errors import Reason

LARGEST = 1 << 28
"""Bytes of a pickle that is read; tensors lie beside it."""


@dataclass(frozen=True)
class Global:
    """A class or function that the file names; never imported."""

    module: str
    name: str

    @property
    def path(self) -> str:
        """The dotted name."""
        return f"{self.module}.{self.name}"


Make = Callable[[Global, tuple[Any, ...]], Any]
"""What a named thing makes of its arguments."""

_MARK = object()

_NUMBERS: Mapping[int, str] = {ord("K"): "<B", ord("M"): "<H", ord("J"): "<i", ord("G"): ">d"}
_TEXTS: Mapping[int, tuple[str, str]] = {
    ord("X"): ("<I", "utf-8"),
    0x8C: ("<B", "utf-8"),
    0x8D: ("<Q", "utf-8"),
    ord("T"): ("<i", "latin-1"),
    ord("U"): ("<B", "latin-1"),
    ord("B"): ("<I", ""),
    ord("C"): ("<B", ""),
    0x8E: ("<Q", ""),
    0x96: ("<Q", ""),
}
"""Instruction -> how its length is written, and its encoding; "" for bytes."""
_LONGS: Mapping[int, str] = {0x8A: "<B", 0x8B: "<i"}
_PUTS: Mapping[int, str] = {ord("q"): "<B", ord("r"): "<I"}
_GETS: Mapping[int, str] = {ord("h"): "<B", ord("j"): "<I"}
_PLAIN: Mapping[int, Callable[[], Any]] = {
    ord("N"): lambda: None,
    0x88: lambda: True,
    0x89: lambda: False,
    ord("]"): list,
    ord(")"): tuple,
    ord("}"): dict,
    0x8F: list,
}
"""Instruction -> what it puts on the stack; a set is kept as a list."""
_TUPLES: Mapping[int, int] = {0x85: 1, 0x86: 2, 0x87: 3}


class Machine:
    """Runs one pickle. `check` refuses names that are not on the list; `persistent` knows what ids stand for."""

    def __init__(
        self, data: bytes, start: int, check: Callable[[Global], None], make: Make, persistent: Callable[[Any], Any]
    ) -> None:
        self._data = data
        self._at = start
        self._check, self._make, self._persistent = check, make, persistent
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._acts: Mapping[int, Callable[[], None]] = {
            ord("("): lambda: self._stack.append(_MARK),
            ord("0"): lambda: self._drop(),
            ord("1"): lambda: self._drop_marked(),
            ord("2"): lambda: self._stack.append(self._top()),
            ord("a"): lambda: self._extend([self._pop()]),
            ord("e"): lambda: self._extend(self._marked()),
            0x90: lambda: self._extend(self._marked()),
            ord("l"): lambda: self._stack.append(self._marked()),
            0x91: lambda: self._stack.append(self._marked()),
            ord("t"): lambda: self._stack.append(tuple(self._marked())),
            ord("d"): lambda: self._stack.append(_filled({}, self._marked())),
            ord("s"): lambda: self._set(reversed([self._pop(), self._pop()])),
            ord("u"): lambda: self._set(self._marked()),
            0x94: lambda: self._memo.__setitem__(len(self._memo), self._top()),
            0x93: lambda: self._name(reversed([self._pop(), self._pop()])),
            ord("c"): lambda: self._name([self._line(), self._line()]),
            ord("R"): lambda: self._call(self._pop()),
            0x81: lambda: self._call(self._pop()),
            0x92: lambda: self._call((self._pop(), self._pop())[1]),
            ord("b"): lambda: self._drop(),  # a state: none of what is made here has one
            ord("Q"): lambda: self._stack.append(self._persistent(self._pop())),
        }

    def run(self) -> tuple[Any, int]:
        """What the pickle holds, and where it ends.

        Raises:
            Reason: it is damaged, or names what is not on the list.
        """
        while True:
            code = self._bytes(1)[0]
            if code == ord("."):
                return self._pop(), self._at
            if code == 0x80:
                self._number("<B")
            elif code == 0x95:
                self._number("<Q")
            elif code in self._acts:
                self._acts[code]()
            else:
                self._stack.append(self._value(code)) if code not in _PUTS else self._put(_PUTS[code])

    def _value(self, code: int) -> Any:
        if code in _PLAIN:
            return _PLAIN[code]()
        if code in _NUMBERS:
            return self._number(_NUMBERS[code])
        if code in _TEXTS:
            size, encoding = _TEXTS[code]
            data = self._bytes(self._number(size))
            return data.decode(encoding, "replace") if encoding else data
        if code in _LONGS:
            return int.from_bytes(self._bytes(self._number(_LONGS[code])), "little", signed=True)
        if code in _TUPLES:
            return tuple(reversed([self._pop() for _ in range(_TUPLES[code])]))
        if code in _GETS:
            number = self._number(_GETS[code])
            if number in self._memo:
                return self._memo[number]
        raise Reason("why-pickle", f"0x{code:02x}", self._at - 1)

    def _bytes(self, size: int) -> bytes:
        if size < 0 or self._at + size > len(self._data):
            raise Reason("why-cut-short")
        self._at += size
        return self._data[self._at - size : self._at]

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._bytes(struct.calcsize(form)))[0]

    def _line(self) -> str:
        end = self._data.find(b"\n", self._at, self._at + 512)
        if end < 0:
            raise Reason("why-cut-short")
        return self._bytes(end + 1 - self._at)[:-1].decode("utf-8", "replace")

    def _top(self) -> Any:
        if not self._stack or self._stack[-1] is _MARK:
            raise Reason("why-pickle", "stack", self._at - 1)
        return self._stack[-1]

    def _pop(self) -> Any:
        self._top()
        return self._stack.pop()

    def _drop(self) -> None:
        if self._stack:
            self._stack.pop()

    def _drop_marked(self) -> None:
        self._marked()

    def _marked(self) -> list[Any]:
        for start in range(len(self._stack) - 1, -1, -1):
            if self._stack[start] is _MARK:
                items = self._stack[start + 1 :]
                del self._stack[start:]
                return items
        raise Reason("why-pickle", "mark", self._at - 1)

    def _put(self, form: str) -> None:
        self._memo[self._number(form)] = self._top()

    def _extend(self, items: list[Any]) -> None:
        top = self._top()
        if isinstance(top, list):
            top.extend(items)

    def _set(self, items: Any) -> None:
        top = self._top()
        if isinstance(top, dict):
            _filled(top, list(items))

    def _name(self, words: Any) -> None:
        module, name = words
        if not (isinstance(module, str) and isinstance(name, str)):
            raise Reason("why-pickle", "name", self._at - 1)
        found = Global(module, name)
        self._check(found)
        self._stack.append(found)

    def _call(self, arguments: Any) -> None:
        called = self._pop()
        if not isinstance(called, Global) or not isinstance(arguments, tuple):
            raise Reason("why-pickle", "call", self._at - 1)
        self._stack.append(self._make(called, arguments))


def _filled(table: dict[Any, Any], items: list[Any]) -> dict[Any, Any]:
    """With these keys and values in turn. Only plain keys are kept: to hash others may take forever."""
    if len(items) % 2:
        raise Reason("why-cut-short")
    for key, value in zip(items[::2], items[1::2]):
        if type(key) in (str, int, float, bool, bytes):
            table[key] = value
    return table
