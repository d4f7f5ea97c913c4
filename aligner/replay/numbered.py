"""Lists of layers whose members are each other's by their numbers, in which values tell another number; and blocks of
which values would move some layers to another block.

A member that is given what the next one should be given is no sign that the two stand in each other's places, if not
all of the list find a place in it: a number in the code is wrong. So is what a block makes of a layer that is given the
same as those of other blocks (a style, a time), where another one's weights would do.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import NamedTuple


class _Place(NamedTuple):
    """A list, by its path, and a number in it."""

    path: str
    number: int


def crossing(prior: Mapping[str, str], pairs: Mapping[str, str], told: Set[str]) -> set[str]:
    """The port's layers whose counterparts in `pairs` leave a list, or its order, that `prior` keeps.

    `told` are layers for which values speak: a list all of whose members are told may be in another order, or stand in
    the place of another one of as many layers.
    """
    mine, theirs = _lists(prior), _lists(prior.values())
    found: set[str] = set()
    for one, other in _bound(prior, mine, theirs).items():
        alike = {path for path, members in theirs.items() if len(members) == len(theirs[other])}
        numbers = {path: place.number for path in mine[one] for place in _places(path) if place.path == one}
        wrong = {path for path, number in numbers.items() if not _stays(pairs.get(path, ""), {other}, alike, number)}
        inside = all(pairs.get(path) in theirs[other] for path in wrong)
        if wrong and not (inside and told >= numbers.keys()):
            found |= wrong
            found |= {
                path
                for path, counterpart in pairs.items()
                if path not in numbers and counterpart in theirs[other] and prior.get(path) not in theirs[other]
                if not any(len(mine[place.path]) == len(mine[one]) for place in _places(path) if place.path in mine)
            }
    return found


def torn(prior: Mapping[str, str], pairs: Mapping[str, str], alike: Set[str]) -> set[str]:
    """Those of the port's layers in `alike` whose counterparts in `pairs` lie in another block than `prior` has all of
    their block in, and the others of the block do not.
    """
    found: set[str] = set()
    for path in (path for path in alike if path in prior and pairs.get(path, prior[path]) != prior[path]):
        around = path.rpartition(".")[0]
        beside = [other for other in prior if around and other != path and other.startswith(f"{around}.")]
        block = _common([prior[path], *(prior[other] for other in beside)]) if beside else ""
        inside = [pairs.get(other, prior[other]).startswith(f"{block}.") for other in (path, *beside) if block]
        found |= {path} if inside and not inside[0] and all(inside[1:]) else set()
    return found


def _common(paths: Sequence[str]) -> str:
    """What they lie in."""
    parts = [path.split(".") for path in paths]
    same = itertools.takewhile(lambda each: len({*each}) == 1, zip(*parts))
    return ".".join(each[0] for each in same)


def _stays(counterpart: str, own: Collection[str], alike: Collection[str], number: int) -> bool:
    """Whether it has its number still, in its own list, or in one that is as long."""
    places = _places(counterpart)
    inside = [place.number for place in places if place.path in own]
    return number in (inside or [place.number for place in places if place.path in alike])


def _places(path: str) -> list[_Place]:
    parts = path.split(".")
    return [_Place(".".join(parts[:at]), int(part)) for at, part in enumerate(parts) if part.isdigit()]


def _lists(paths: Iterable[str]) -> dict[str, set[str]]:
    """By the path of each list the layers in it."""
    found: dict[str, set[str]] = {}
    for path in paths:
        for place in _places(path):
            found.setdefault(place.path, set()).add(path)
    return found


def _bound(prior: Mapping[str, str], mine: Mapping[str, set[str]], theirs: Mapping[str, set[str]]) -> Mapping[str, str]:
    """The port's lists of several members all of which are, with their numbers, all those of one list."""
    found = {}
    for one, paths in mine.items():
        pairs = [(place.number, _places(prior[path])) for path in paths for place in _places(path) if place.path == one]
        shared = set.intersection(*({p.path for p in others if p.number == number} for number, others in pairs))
        whole = sorted(path for path in shared if len(theirs[path]) == len(paths))
        if whole and len({number for number, _ in pairs}) > 1:
            found[one] = whole[0]
    return found
