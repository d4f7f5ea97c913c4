"""A wrong layer or operation by itself: a short program and an npz file that need the port's framework and numpy alone.

For the author of the layer, or of the framework: the layer is built, given the reference's inputs, and what it makes is
set against the reference's output. Dumps are not trusted, so what a program is made of is looked at before: names are
quoted, and of Python only calls of the framework's layer classes are written (aligner.programs.building). Before it
calls these, the program sees for itself that they are layer classes of the framework's own.
"""

from __future__ import annotations

import hashlib
import json
import keyword
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np

from aligner import messages
from aligner.dtypes import DTYPES
from aligner.errors import UsageError
from aligner.programs.building import Building, building
from aligner.programs.speech import SPEECHES, Speech
from aligner.record import Array, display
from aligner.words.homes import METHOD, OPERATOR, is_known

LIMIT = 1e-5
"""Relative L2 that a layer may be off by in float32; in a shorter type, its spacing at 1."""

_SHOWN = 200
"""Characters of a text that a comment shows."""
_ENTRY = re.compile(r"[\w.~-]{1,1000}")


@dataclass(frozen=True, eq=False)
class Tensor:
    """Numbers (short floats as float32), and the dtype they stand for."""

    numbers: Array
    dtype: str


@dataclass(frozen=True, eq=False)
class Repro:
    """One call of one layer of the port, with all that it takes to make it again. `layer` is the reference's path."""

    layer: str
    kind: str
    framework: str
    version: str
    python: Optional[str]
    """What builds the layer; None where it is a class of the user's."""
    reason: str
    """Why there is none."""
    arguments: Any
    """The structure of the call's arguments, and of what came out (aligner.structure)."""
    outputs: Any
    training: bool
    given: Mapping[str, Tensor]
    """By slot: the reference's values, in the dtype that the port's layer was given."""
    expected: Mapping[str, Tensor]
    """By slot: what the reference made; the dtype is that of what the port made."""
    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    """By the framework's own name inside the layer, in the dtype that the port has."""
    operation: str = ""
    """What is called instead, in code of the layer: "ops.erfinv", "Tensor.erfinv", "operator.mod"."""

    @property
    def name(self) -> str:
        """What it is called among others."""
        word = self.operation.rpartition(".")[2]
        return ".".join(filter(None, (self.layer, word))) if word else self.layer


def arrays(repro: Repro) -> dict[str, Array]:
    """What the npz file holds; `dtypes` names the types that numpy lacks."""
    groups = {"parameter.": repro.parameters, "expected.": repro.expected}
    found = {_given(slot): value for slot, value in repro.given.items()}
    found.update({prefix + _entry(name): value for prefix, group in groups.items() for name, value in group.items()})
    words = json.dumps({name: value.dtype for name, value in found.items()})
    return {"dtypes": np.array(words), **{name: value.numbers for name, value in found.items()}}


def _given(slot: str) -> str:
    """An input's name in the npz file: its slot."""
    return slot if slot.startswith("input.") and _ENTRY.fullmatch(slot) else f"input.{_entry(slot)}"


def _entry(name: str) -> str:
    """The name where a zip archive and numpy take it as it is, else one that stands for it."""
    return name if _ENTRY.fullmatch(name) else hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def built(repro: Repro) -> Optional[Building]:
    """How the layer is built, if the dump tells of nothing but layers of the framework's."""
    speech = SPEECHES.get(repro.framework)
    return None if speech is None or not repro.python else building(repro.python, speech.grammar)


def script(repro: Repro) -> str:
    """The program.

    Raises:
        UsageError: an argument or all results of the call are in no dump, or this framework's words are unknown here.
    """
    speech = SPEECHES.get(repro.framework)
    if speech is None:
        raise UsageError("repro-framework", framework=repro.framework, layer=display(repro.layer))
    made = list(_made(repro, speech))
    if not made:
        raise UsageError("repro-nothing", layer=display(repro.layer))
    parts = [
        f'"""{_heading(repro)}\n\nExit code 1: it is off by more than {limit(repro):.0e} (relative L2).\n"""\n',
        "import operator\nimport sys\nfrom pathlib import Path\n"
        if repro.operation.startswith(f"{OPERATOR}.")
        else "import sys\nfrom pathlib import Path\n",
        f"{speech.imports}\nimport numpy as np\n",
        'with np.load(Path(__file__).with_suffix(".npz")) as file:  # inputs, parameters, what the reference made',
        "    data = dict(file)\n",
        *(_building(repro, speech) if not repro.operation else ()),
        f"result = {_call(repro, speech)}",
        f"made = {{{', '.join(made)}}}\n",
        _JUDGING.format(limit=f"{limit(repro):.0e}"),
    ]
    return "\n".join(parts)


_JUDGING = """\
wrong = False
for name, found in made.items():
    wanted = data[f"expected.{{name}}"]
    wanted = wanted.astype(np.result_type(wanted, np.float64))
    if found.shape != wanted.shape:
        print(f"{{name}}: shape {{found.shape}}, the reference has {{wanted.shape}}")
        wrong = True
        continue
    apart = np.abs(found - wanted)
    relative = np.linalg.norm(apart) / (np.linalg.norm(wanted) or 1.0)
    at = np.unravel_index(np.argmax(apart), apart.shape)
    print(f"{{name}}: max abs {{apart.max():.1e}}, relative L2 {{relative:.1e}}")
    print(f"  worst at {{[int(i) for i in at]}}: reference {{wanted[at]:.9g}}, here {{found[at]:.9g}}")
    wrong = wrong or not relative <= {limit}
sys.exit(int(wrong))
"""


def limit(repro: Repro) -> float:
    """What rounding may do to this layer."""
    values = (*repro.given.values(), *repro.expected.values(), *repro.parameters.values())
    return max([LIMIT, *(DTYPES[v.dtype].eps or 0.0 for v in values if v.dtype in DTYPES)])


def _heading(repro: Repro) -> str:
    name, kind = _plain(display(repro.layer)), _plain(repro.kind)
    port = f"{_plain(repro.framework)} {_plain(repro.version)}".strip()
    return f"{name} ({kind}) of a port, by itself: how far is {port} off on the reference's inputs?"


def _building(repro: Repro, speech: Speech) -> Iterator[str]:
    """Lines that make `layer` and give it its values and mode."""
    known = built(repro)
    if known is None:
        why = _plain(str(messages.said(repro.reason, "en"))) or _REFUSED[bool(repro.python)]
        yield f"# Fill in how this layer is built: {why}."
        yield "layer = None"
        yield "if layer is None:"
        yield '    print("Fill in how `layer` is built: see the comment in this file.")'
        yield "    sys.exit(2)"
    else:
        yield _KNOWN.format(classes="".join(f"{name}, " for name in known.classes).rstrip(), base=speech.base)
        yield f"layer = {known.text}"
    short = {value.dtype for value in repro.parameters.values() if not DTYPES[value.dtype].exact} - {"float32"}
    if len(short) == 1:
        yield speech.short.format(dtype=short.pop())
    yield from speech.load
    yield speech.mode.format(repro.training) + "\n"


_REFUSED = ("the dump does not tell", "what the dump tells is more than layers of the framework's own, and left out")

_KNOWN = """\
for kind in ({classes}):  # nothing is called but layers of the framework's own
    package = {base}.__module__.partition(".")[0]
    if not (isinstance(kind, type) and issubclass(kind, {base}) and kind.__module__.partition(".")[0] == package):
        print(f"{{kind}} is no layer class of {{package}}: it is not called.")
        sys.exit(2)"""


def _call(repro: Repro, speech: Speech) -> str:
    """The layer, or the operation, with its arguments.

    Raises:
        UsageError: an argument is an object that no dump can give back.
    """
    words = _arguments(repro, speech)
    if not repro.operation:
        return f"layer({', '.join(words)})"
    if not is_known(repro.operation, repro.framework):
        raise UsageError("repro-opaque", layer=display(repro.layer), kind=_plain(repro.operation))
    home, _, word = repro.operation.rpartition(".")
    if home == METHOD and words:
        return f"{words[0]}.{word}({', '.join(words[1:])})"
    return f"{repro.operation}({', '.join(words)})"


def _arguments(repro: Repro, speech: Speech) -> list[str]:
    structure = repro.arguments
    if not isinstance(structure, Mapping) or "args" not in structure:
        raise UsageError("repro-opaque", layer=display(repro.layer), kind="?")
    words = [_value(item, repro, speech) for item in structure["args"]]
    for name, item in structure.get("kwargs", []):
        value = _value(item, repro, speech)
        plain = _is_name(name) and name.isascii()  # Python takes two spellings of a letter for one
        words.append(f"{name}={value}" if plain else f"**{{{name!r}: {value}}}")
    return words


def _value(structure: Any, repro: Repro, speech: Speech) -> str:
    """One argument as Python.

    Raises:
        UsageError: it is an object that no dump can give back.
    """
    if "tensor" in structure:
        return _tensor(structure["tensor"], repro, speech)
    if "none" in structure:
        return "None"
    if "value" in structure:
        value = structure["value"]
        if not (value is None or isinstance(value, (bool, int, float, str))):
            raise UsageError("repro-opaque", layer=display(repro.layer), kind=type(value).__name__)
        return f'float("{value}")' if isinstance(value, float) and not np.isfinite(value) else repr(value)
    if "list" in structure:
        return "[" + ", ".join(_value(item, repro, speech) for item in structure["list"]) + "]"
    if "dict" in structure:
        return "{" + ", ".join(f"{key!r}: {_value(item, repro, speech)}" for key, item in structure["dict"]) + "}"
    if "tuple" in structure or "fields" in structure:
        items = structure.get("tuple") or [item for _, item in structure.get("fields", ())]
        return "(" + "".join(f"{_value(item, repro, speech)}, " for item in items).rstrip() + ")"
    raise UsageError("repro-opaque", layer=display(repro.layer), kind=structure.get("opaque", "?"))


def _tensor(slot: str, repro: Repro, speech: Speech) -> str:
    value = repro.given.get(slot)
    if value is None:
        raise UsageError("repro-opaque", layer=display(repro.layer), kind=slot)
    made = speech.tensor.format(f"data[{_given(slot)!r}]")
    return (
        made if value.numbers.dtype.name == value.dtype else speech.cast.format(made, dtype=_word(value.dtype, speech))
    )


def _word(dtype: str, speech: Speech) -> str:
    return "bool_" if dtype == "bool" and speech.base == "nn.Cell" else dtype


def _made(repro: Repro, speech: Speech) -> Iterator[str]:
    """`"output.0": result[0].asnumpy()` for each output that the reference has."""
    for slot, place in _places(repro.outputs, "result"):
        if slot in repro.expected:
            if DTYPES[repro.expected[slot].dtype].decode is not None:
                place = speech.cast.format(place, dtype="float32")
            yield f"{_entry(slot)!r}: {speech.numbers.format(place)}"


def _places(structure: Any, place: str) -> Iterator[tuple[str, str]]:
    """Each output's slot, and the Python that reaches it."""
    if "tensor" in structure:
        yield structure["tensor"], place
    for word in ("list", "tuple"):
        for number, item in enumerate(structure.get(word, ())):
            yield from _places(item, f"{place}[{number}]")
    for key, item in structure.get("dict", ()):
        yield from _places(item, f"{place}[{key!r}]")
    for name, item in structure.get("fields", ()):
        if _is_name(name):
            yield from _places(item, f"{place}.{name}")


def _is_name(name: object) -> bool:
    """Whether it may stand in the program as a name; what Python itself has names with two underscores for may not."""
    return isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("__")


def _plain(text: str) -> str:
    """Text for a comment: nothing in it ends the line or the string."""
    shown = text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
    return "".join(c if c.isprintable() and c not in '\\"' else "?" for c in shown)
