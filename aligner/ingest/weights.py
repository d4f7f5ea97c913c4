"""Which layer's parameter a file `Parameter.layer1_0_bn1_gamma...` is, and which of them are inputs of the net."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

from aligner.ingest.kinds import FLAT_KERNELS, kind, role
from aligner.ingest.operations import Value
from aligner.ingest.scopes import plain

DECLARED = re.compile(r"^%para\d+_([^\s:]+): <(.*)$", re.MULTILINE)
REFERENCE = re.compile(r"ref_key=([^,>\s]{1,500})")
PLACEHOLDER = re.compile(r"args(\d{1,3})")
"""What amp calls the arguments of the net that it is around."""


@dataclass(frozen=True)
class Known:
    """A parameter as the net tells of it."""

    layer: str
    role: str
    name: str
    """MindSpore's own, dotted."""
    trainable: bool = True
    buffer: bool = False


@dataclass
class Weights:
    """The parameters with their values, and the net's inputs by their place; `unknown` are files that are neither."""

    parameters: list[tuple[Known, Value]] = field(default_factory=list)
    inputs: dict[int, Value] = field(default_factory=dict)
    """By their places among the arguments, where these can be told."""
    given: set[bytes] = field(default_factory=set)
    """The contents of all inputs."""
    unknown: list[str] = field(default_factory=list)


def declared(texts: Iterable[str]) -> Mapping[str, tuple[str, bool]]:
    """By the names in files' names: the dotted name of each parameter of the graphs, and whether it is a weight.

    The inputs of a net do not stand in the order of its arguments.
    """
    found: dict[str, tuple[str, bool]] = {}
    for text in texts:
        for match in DECLARED.finditer(text):
            key = REFERENCE.search(match[2])
            name = key[1] if key else match[1]
            found.setdefault(plain(name), (name, key is not None or "IsWeight: true" in match[2]))
    return found


def sort_out(
    files: Mapping[str, Value],
    classes: Mapping[str, str],
    said: Mapping[str, tuple[str, bool]],
    known: Sequence[Known],
    arguments: Sequence[str],
) -> Weights:
    """Give each file to a layer, or to the net's inputs.

    Args:
        files: by the names in their names.
        classes: the layers that ran, with their classes.
        said: what the graphs tell, as `declared` gives it.
        known: what the net tells, if it is at hand.
        arguments: the names of the net's arguments, if it is at hand.
    """
    found = Weights()
    by_name = {plain(one.name): one for one in known}
    loose: dict[str, Value] = {}
    for name, value in files.items():
        parameter = by_name.get(name)
        if parameter is None and not known:
            dotted, weight = said.get(name, ("", False))
            parameter = _named(dotted, classes) if weight else None if dotted else _guessed(name, classes)
        if parameter is None:
            loose[name] = value
        else:
            found.parameters.append((parameter, value))
    found.inputs = _inputs(loose, said, arguments)
    found.given = {value.content for value in loose.values()}
    found.unknown = [name for name, value in loose.items() if value not in found.inputs.values()]
    return found


def _named(dotted: str, classes: Mapping[str, str]) -> Known:
    layer, _, own = dotted.rpartition(".")
    return _parameter(layer, own, dotted, classes)


def _guessed(name: str, classes: Mapping[str, str]) -> Optional[Known]:
    """The layer whose path this name begins with, if it is one."""
    layers = [layer for layer in classes if name.startswith(f"{plain(layer)}_")]
    longest = max((len(layer) for layer in layers), default=0)
    fitting = [layer for layer in layers if len(layer) == longest]
    if len(fitting) != 1:
        return None
    own = name[longest + 1 :]
    return _parameter(fitting[0], own, f"{fitting[0]}.{own}", classes)


def _parameter(layer: str, own: str, name: str, classes: Mapping[str, str]) -> Known:
    word = kind(classes.get(layer, ""))
    canonical = role(word, own)
    return Known(layer, canonical, name, not own.startswith("moving_"), own.startswith("moving_"))


def _inputs(
    loose: Mapping[str, Value], said: Mapping[str, tuple[str, bool]], arguments: Sequence[str]
) -> dict[int, Value]:
    """The net's inputs by their places; those whose place cannot be told are left out."""
    order = [plain(name) for name in arguments] or [name for name, (_, weight) in said.items() if not weight]
    if not arguments and len(order) > 1:
        order = []  # graphs have them in another order
    found: dict[int, Value] = {}
    for name, value in loose.items():
        numbered = PLACEHOLDER.fullmatch(name)
        if name in order:
            found[order.index(name)] = value
        elif numbered:
            found[int(numbered[1])] = value
    return found


def canonical(parameter: Known, word: str, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape in torch's layout."""
    flat = word in FLAT_KERNELS and parameter.role == "weight" and len(shape) == 4 and shape[2] == 1
    return tuple(shape[:2]) + tuple(shape[3:]) if flat else tuple(shape)
