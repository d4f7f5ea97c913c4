"""Nested values: the tensors inside tuples, lists, dicts, named tuples, dataclasses and keyword arguments.

`substitute` puts other tensors into the places of some, and leaves everything else as it is.

`flatten` takes a layer's arguments or result apart into tensors with slots and a structure (plain JSON) that
says how they were nested; `rebuild` puts such a value together again, so that a port can be called exactly as
the reference was. None and plain values keep their places in the structure. A value that stands inside itself is
opaque there: each of its tensors has one slot.

A structure is one of
  {"tensor": "input.0"}                  {"none": true}          {"value": 3}
  {"list": [...]} {"tuple": [...]}       {"dict": [[key, structure], ...]}
  {"object": "BaseModelOutput", "fields": [[name, structure], ...]}     named tuples and dataclasses
  {"opaque": "DynamicCache"}             anything else, and what it stands in itself: named, not looked into
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Optional, Union

IsTensor = Callable[[object], bool]
Tensors = list[tuple[str, object]]

MAX_DEPTH = 32


def flatten_arguments(
    args: tuple[object, ...], kwargs: Mapping[str, object], is_tensor: IsTensor, found: Tensors
) -> object:
    """Positional arguments are input.0, ...; keyword arguments input.<name>. Tensors are appended to `found`."""
    positional = [_flatten(value, f"input.{i}", is_tensor, found, ()) for i, value in enumerate(args)]
    named = [[name, _flatten(value, f"input.{name}", is_tensor, found, ())] for name, value in kwargs.items()]
    return {"args": positional, "kwargs": named} if named else {"args": positional}


def numbers(structure: Any) -> dict[str, Union[bool, int, float]]:
    """The plain numbers among the arguments of a call, by slot."""
    found: dict[str, Union[bool, int, float]] = {}

    def look(one: Any, slot: str) -> None:
        if isinstance(one.get("value"), (bool, int, float)):
            found[slot] = one["value"]
        for name, item in (*enumerate(one.get("list", one.get("tuple", ()))), *one.get("dict", one.get("fields", ()))):
            look(item, f"{slot}.{name}")

    for name, item in (*enumerate(structure.get("args", ())), *structure.get("kwargs", ())):
        look(item, f"input.{name}")
    return found


def flatten_result(value: object, is_tensor: IsTensor, found: Tensors) -> object:
    """A plain tuple or list is output.0, output.1, ...; everything else is output.0."""
    if type(value) in (tuple, list):
        items = [_flatten(item, f"output.{i}", is_tensor, found, (value,)) for i, item in enumerate(value)]  # type: ignore[arg-type, var-annotated]  # type() was asked
        return {type(value).__name__: items}
    return _flatten(value, "output.0", is_tensor, found, ())


def _flatten(value: Any, slot: str, is_tensor: IsTensor, found: Tensors, around: tuple[object, ...]) -> object:
    """`around` are the values that this one stands in, from the outermost on."""
    if is_tensor(value):
        found.append((slot, value))
        return {"tensor": slot}
    if value is None:
        return {"none": True}
    if isinstance(value, (bool, int, float, str)):
        return {"value": value}
    if len(around) >= MAX_DEPTH or any(value is outer for outer in around):
        return {"opaque": type(value).__name__}

    def inner(name: object, item: object) -> object:
        return _flatten(item, f"{slot}.{name}", is_tensor, found, (*around, value))

    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"object": type(value).__name__, "fields": [[n, inner(n, getattr(value, n))] for n in value._fields]}
    if isinstance(value, (tuple, list)):
        name = "tuple" if isinstance(value, tuple) else "list"
        return {name: [inner(i, item) for i, item in enumerate(value)]}
    if isinstance(value, Mapping):
        items = zip(_names(value), value.items())
        return {"dict": [[_plain_key(key), inner(name, item)] for name, (key, item) in items]}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in dataclasses.fields(value)]
        return {"object": type(value).__name__, "fields": [[n, inner(n, getattr(value, n, None))] for n in names]}
    return {"opaque": type(value).__name__}


def _names(keys: Iterable[object]) -> list[str]:
    """A name for each key, none twice: 1 and "1" are two keys."""
    names = [str(key) for key in keys]
    if len(set(names)) == len(names):
        return names
    return [f"{name}~{before}" if (before := names[:i].count(name)) else name for i, name in enumerate(names)]


def _plain_key(key: object) -> object:
    return key if isinstance(key, (str, int)) else str(key)


class Form:
    """A dict, named tuple or dataclass without what is in it, to make others of its type that hold other items."""

    def __init__(self, value: Any) -> None:
        self.plain = type(value) is dict
        """A dict as any other."""
        self._empty: Any = None
        with suppress(Exception):  # what cannot be copied comes back as a plain dict or tuple
            items: dict[object, object] = {name: None for name, _ in _fields(value)}
            self._empty = {} if self.plain else _refilled(value, items)

    def filled(self, items: Mapping[object, object]) -> object:
        """One with these items, by key or the field's name."""
        if self._empty is None:
            raise LookupError
        return _refilled(self._empty, items)


def _fields(value: Any) -> list[tuple[object, object]]:
    """What is in a mapping, named tuple or dataclass, by key or the field's name."""
    if isinstance(value, Mapping):
        return [(_plain_key(key), item) for key, item in value.items()]
    named = hasattr(value, "_fields")
    names = value._fields if named else [field.name for field in dataclasses.fields(value)]
    return [(name, getattr(value, name) if named else getattr(value, name, None)) for name in names]


def _refilled(value: Any, items: Mapping[Any, object]) -> object:
    """A copy with other items."""
    if isinstance(value, tuple):
        return tuple.__new__(type(value), items.values())
    made = _dict_like(value) if isinstance(value, dict) else copy.copy(value)
    for name, item in items.items():
        if isinstance(made, Mapping):
            made[name] = item  # type: ignore[index]  # one that cannot be written to raises
        else:
            object.__setattr__(made, name, item)
    return made


def _dict_like(value: dict[Any, object]) -> Any:
    """A copy of a dict of a type of its own, made without that type's code: its attributes may be its items."""
    made = type(value).__new__(type(value))
    dict.update(made, value)
    own = object.__getattribute__(value, "__dict__") if hasattr(type(value), "__dict__") else {}
    if own is value:
        object.__setattr__(made, "__dict__", made)
    else:
        object.__getattribute__(made, "__dict__").update(own)
    return made


def _copied(value: Mapping[Any, object]) -> Any:
    """A copy, also of a dict whose attributes are its items: before Python 3.11 it is asked for one that it has not."""
    try:
        return copy.copy(value)
    except Exception:  # whatever its own code raises
        if not isinstance(value, dict):
            raise
        return _dict_like(value)


def kept(args: tuple[object, ...], kwargs: Mapping[str, object], is_tensor: IsTensor) -> list[object]:
    """What a structure does not tell of arguments, in its order: opaque values, and the forms of those with names."""
    found: list[object] = []

    def look(value: object, around: tuple[object, ...]) -> None:
        told = _flatten(value, "", is_tensor, [], around)
        if not isinstance(told, dict) or not {"opaque", "fields", "dict", "list", "tuple"} & told.keys():
            return
        if "opaque" in told:
            found.append(value)
            return
        named = "fields" in told or "dict" in told
        found.extend([Form(value)] if named else [])
        for item in [item for _, item in _fields(value)] if named else value:  # type: ignore[attr-defined]  # a list
            look(item, (*around, value))

    for value in (*args, *kwargs.values()):
        if not is_tensor(value):
            look(value, ())
    return found


def rebuild(structure: Any, tensor: Callable[[str], object], objects: Optional[Iterator[object]] = None) -> object:
    """The value again, with `tensor(slot)` in the tensors' places and the next of the `objects` in those of opaque
    values; named tuples and dataclasses come back as tuples where there is no form of theirs.

    Raises:
        LookupError: at an opaque value for which there is none; the message is its class name.
    """
    if "tensor" in structure:
        return tensor(structure["tensor"])
    if "none" in structure:
        return None
    if "value" in structure:
        return structure["value"]
    if "list" in structure:
        return [rebuild(item, tensor, objects) for item in structure["list"]]
    if "tuple" in structure:
        return tuple(rebuild(item, tensor, objects) for item in structure["tuple"])
    known = next(objects, None) if objects is not None else None
    if "dict" in structure or "fields" in structure:
        items = {name: rebuild(item, tensor, objects) for name, item in structure.get("dict", structure.get("fields"))}
        if isinstance(known, Form):
            with suppress(Exception):  # a constructor's affair
                return known.filled(items)
        return items if "dict" in structure else tuple(items.values())
    if known is None:
        raise LookupError(str(structure.get("opaque", structure)))
    return known


def rebuild_arguments(
    structure: Any, tensor: Callable[[str], object], given: Iterable[object] = ()
) -> tuple[tuple[object, ...], dict[str, object]]:
    """The arguments of a call: what `flatten_arguments` took apart; `given` are its objects, None for what is lost."""
    objects = iter(given)
    args = tuple(rebuild(item, tensor, objects) for item in structure["args"])
    return args, {name: rebuild(item, tensor, objects) for name, item in structure.get("kwargs", [])}


def substitute_arguments(
    args: tuple[object, ...], kwargs: Mapping[str, object], others: Mapping[str, object]
) -> tuple[tuple[object, ...], Mapping[str, object]]:
    """The arguments with `others[slot]` in the places of these slots."""
    if not others:
        return args, kwargs
    given = tuple(_substitute(value, f"input.{i}", others, ()) for i, value in enumerate(args))
    return given, {name: _substitute(value, f"input.{name}", others, ()) for name, value in kwargs.items()}


def substitute_result(value: object, others: Mapping[str, object]) -> object:
    """The result with `others[slot]` in the places of these slots."""
    if not others:
        return value
    if type(value) in (tuple, list):
        made: Any = [] if type(value) is list else None
        around = ((value, made),)
        items = [_substitute(item, f"output.{i}", others, around) for i, item in enumerate(value)]  # type: ignore[arg-type, var-annotated]  # type() was asked
        if made is None:
            return tuple(items)
        made += items
        return made
    return _substitute(value, "output.0", others, ())


Around = tuple[tuple[object, Any], ...]
"""The values that one stands in, each with the copy that is being made of it (None: a tuple, made when it is over)."""


def _substitute(value: Any, slot: str, others: Mapping[str, object], around: Around) -> object:
    """The value itself where nothing inside it changes; else a copy of its own type, which holds itself where the
    value does."""
    if slot in others:
        return others[slot]
    for outer, copied in around:
        if value is outer and copied is not None:
            return copied
    if len(around) >= MAX_DEPTH or not any(name.startswith(f"{slot}.") for name in others):
        return value

    made: Any = type(value)
    changed: Any = None

    def inner(name: object, item: object) -> object:
        return _substitute(item, f"{slot}.{name}", others, (*around, (value, changed)))

    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return tuple.__new__(made, [inner(name, getattr(value, name)) for name in value._fields])
    if isinstance(value, tuple):
        return made(inner(i, item) for i, item in enumerate(value))
    if isinstance(value, list):
        changed = copy.copy(value)
        changed[:] = [inner(i, item) for i, item in enumerate(value)]
        return changed
    if isinstance(value, Mapping):
        changed = _copied(value)
        for name, (key, item) in zip(_names(value), value.items()):
            changed[key] = inner(name, item)
        return changed
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(changed, field.name, inner(field.name, getattr(value, field.name, None)))
        return changed
    return value
