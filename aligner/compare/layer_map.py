"""The user's map: which layer of the port stands for which of the reference; one file for capture and compare.

Lines `REF = PORT`, `#` begins a comment; or JSON, an object or a list of pairs. A name is a layer or a parameter, and a
layer stands for everything inside. `*` is one part of a name: what the first one of the left side was is put for the
first one of the right side, and so on: `encoder.layers.*.attn = blocks.*.attention`.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

from aligner.errors import Reason, UsageError, because, form_of
from aligner.record import display

LayerMap = Union[str, "os.PathLike[str]", Mapping[str, str]]

STAR = "*"


@dataclass(frozen=True)
class Rule:
    """One pair; `place` tells where it stands: " (map.txt:3)", "" for one that no file holds."""

    reference: str
    port: str
    place: str

    @property
    def parts(self) -> Sequence[str]:
        """The parts of the reference's name; none for the net itself."""
        return self.reference.split(".") if self.reference else []

    @property
    def stars(self) -> int:
        """How many parts it leaves open."""
        return list(self.parts).count(STAR)

    def pair(self, name: str) -> Optional[tuple[str, str]]:
        """The part of this name that the rule speaks of, and what stands for it in the port."""
        parts, whole = self.parts, name.split(".") if name else []
        if len(whole) < len(parts) or any(p not in (STAR, w) for p, w in zip(parts, whole)):
            return None
        open_parts = iter([w for p, w in zip(parts, whole) if p == STAR])
        filled = (next(open_parts) if part == STAR else part for part in self.port.split("."))
        return ".".join(whole[: len(parts)]), ".".join(filled)


def read_map(given: Optional[LayerMap]) -> Sequence[Rule]:
    """The rules of a mapping or a file.

    Raises:
        UsageError: the file is missing, or a line cannot be read.
    """
    if given is None:
        return ()
    if isinstance(given, Mapping):
        return [_rule(str(a), str(b), "") for a, b in given.items()]
    path = Path(given)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "why-not-text"
        raise UsageError("map-unreadable", path=str(path), reason=str(reason)) from error
    if text.lstrip()[:1] in ("{", "["):
        return _from_json(path, text)
    rules = []
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        if content:
            reference, equals, port = content.partition("=")
            if not equals:
                raise UsageError("map-line", path=str(path), line=number, text=content)
            rules.append(_rule(reference.strip(), port.strip(), f" ({path}:{number})"))
    return rules


def _from_json(path: Path, text: str) -> Sequence[Rule]:
    try:
        content: Any = json.loads(text)
        items = content.items() if isinstance(content, dict) else [(pair[0], pair[1]) for pair in content]
        pairs = dict(items)
    except json.JSONDecodeError as error:
        reason = because(Reason("why-no-json", error.lineno, error.colno))
        raise UsageError("map-json", path=str(path), reason=reason) from error
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        reason = because(Reason("why-other-form", form_of(error)))
        raise UsageError("map-json", path=str(path), reason=reason) from error
    if not all(isinstance(name, str) for pair in pairs.items() for name in pair):
        raise UsageError("map-json", path=str(path), reason="why-names-strings")
    return [_rule(a, b, f" ({path})") for a, b in pairs.items()]


def _rule(reference: str, port: str, place: str) -> Rule:
    one, other = ("" if name in ("(net)", ".") else name for name in (reference, port))
    rule = Rule(one, other, place)
    if rule.stars != rule.port.split(".").count(STAR):
        raise UsageError("map-stars", place=place, reference=reference, port=port)
    return rule


def resolved(rules: Sequence[Rule], reference: Iterable[str], port: Iterable[str]) -> Mapping[str, str]:
    """The pairs that the rules mean, without stars, for the names of both sides (layers and parameters).

    The more parts a rule names, the more it counts; of two alike the one without stars.

    Raises:
        UsageError: a name is on neither side, or a pattern fits nothing; says which names are close.
    """
    ours, theirs = _prefixes(reference), _prefixes(port)
    found: dict[str, tuple[int, str, Rule]] = {}
    for rule in rules:
        size = len(rule.parts)
        named = [rule.reference] if rule.reference in ours else []
        if rule.stars:
            named = [name for name in ours if _size(name) == size]
        pairs = [pair for pair in map(rule.pair, named) if pair is not None]
        if not pairs:
            raise _unknown(rule, rule.reference, "reference", ours)
        fitting = [pair for pair in pairs if pair[1] in theirs]
        if not fitting:
            raise _unknown(rule, rule.port, "port", theirs)
        for one, other in fitting:
            if one not in found or rule.stars <= found[one][0]:
                found[one] = rule.stars, other, rule
    taken: dict[str, str] = {}
    for one, (_, other, rule) in found.items():
        if taken.setdefault(other, one) != one:
            raise UsageError("map-twice", place=rule.place, port=display(other), one=display(taken[other]), other=one)
    return {one: other for one, (_, other, _) in found.items()}


def _prefixes(names: Iterable[str]) -> Mapping[str, None]:
    """All names and what stands before their dots."""
    found: dict[str, None] = {"": None}
    for name in names:
        parts = name.split(".")
        found.update(dict.fromkeys(".".join(parts[: n + 1]) for n in range(len(parts))))
    return found


def _size(name: str) -> int:
    return name.count(".") + 1 if name else 0


def _unknown(rule: Rule, name: str, side: str, names: Iterable[str]) -> UsageError:
    close = difflib.get_close_matches(name, list(names), n=3, cutoff=0.5)
    shown = ", ".join(display(path) for path in close) or "-"
    return UsageError(
        "map-nothing" if rule.stars else "map-unknown", place=rule.place, name=name, side=side, close=shown
    )


def check_free(path: str) -> None:
    """That no file is in the way of a map that is to be written: it may have been corrected by hand.

    Raises:
        UsageError: there is one.
    """
    if os.path.exists(path):
        raise UsageError("map-exists", path=path)


def write(path: str, lines: Sequence[tuple[str, str, str]], left: Sequence[str]) -> None:
    """Write pairs with what each rests on as a comment, and what is left over as comments alone.

    Raises:
        UsageError: there is such a file already (it may have been corrected by hand), or it cannot be written.
    """
    width = max((len(display(one)) + len(display(other)) for one, other, _ in lines), default=0)
    text = [HEAD]
    for one, other, why in lines:
        pair = f"{display(one)} = {display(other)}"
        text.append(f"{pair:{width + 3}}  # {why}")
    text += [f"# {line}" for line in left]
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write("\n".join(text) + "\n")
    except FileExistsError as error:
        raise UsageError("map-exists", path=path) from error
    except OSError as error:
        raise UsageError("map-unwritable", path=path, reason=str(error.strerror)) from error


HEAD = """\
# REFERENCE = PORT, with how sure it is (1.00: certain) and what it rests on. Correct what is wrong and give it back:
#   aligner capture PORT.py:build --from REF.h5 --map FILE -o PORT.h5     (compare then goes by it as well)
#   aligner compare REF.h5 PORT.h5 --map FILE
# A layer stands for everything inside; * is one part of a name: encoder.layers.* = blocks.*"""
