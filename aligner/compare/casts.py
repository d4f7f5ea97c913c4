"""The cast map: what each layer computes in, reference against port, known before any number is judged.

"BatchNorm in float16 here, float32 there" is often the whole answer. What is known comes from the captures
(aligner.capture.computed); a layer that nothing is known of computes in the type of what it makes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from aligner.dtypes import DTYPES
from aligner.errors import DumpError, Reason, because, form_of
from aligner.findings import CAST
from aligner.record import Phase, display

if TYPE_CHECKING:
    from aligner.compare.layers import Pairing
    from aligner.compare.net import Net
    from aligner.dump.reader import Dump

USUAL = "float32"

NORMS = ("BatchNorm", "LayerNorm", "GroupNorm", "InstanceNorm", "RMSNorm", "LocalResponseNorm")
KEPT_BY_O2 = ("BatchNorm", "LayerNorm")
PRODUCTS = ("Conv", "Linear", "Bilinear", "MultiheadAttention", "LSTM", "GRU", "RNN")
PLAIN = ("Conv", "Linear", "Bilinear")
CAREFUL_PARTS = ("softmax", "norm")
"""Operations in a layer's own code that are told of by themselves: short types are bad at them."""
DELICATE = (
    *("softmax", "norm", "mean", "sum", "var", "std", "sqrt", "exp", "log", "pow", "square", "prod"),
    *("entropy", "loss", "cdist"),
)
"""Words in the names of operations whose results in a short type may be far off: they add up, cancel or overflow."""
LEVELS = ("O1", "O2", "O3", "auto")
BY_OPERATOR = ("O1", "auto")
"""Levels that cast single operators; in recurrent layers they know none."""


class Computing(NamedTuple):
    """What one side's layer computes in, and by what that is known or done."""

    dtype: str
    by: str
    """What casts ("autocast", "to_float", "O1", "auto"), "measured" where only its operations tell, or "output" where
    only the type of what it makes is known."""


@dataclass(frozen=True)
class Cast:
    """A pair of layers of which one computes in a short type, or in another type than the other."""

    layer: str
    port_layer: str
    kind: str
    part: str
    """An operation in the layer's own code that this is about, or "" for the layer."""
    reference: Computing
    port: Computing
    exception: str = ""
    """Why it stands out: "careful" (a norm, a softmax, a loss in a short type on one side only), "left" (not cast, as
    the port's other layers of this nature are), "other" (cast, as they are not); "" for what is usual."""

    @property
    def differs(self) -> bool:
        """Whether the two sides compute in different types."""
        return self.reference.dtype != self.port.dtype


def cast_map(reference: Dump, port: Dump, nets: tuple[Net, Net], pairing: Pairing) -> tuple[Cast, ...]:
    """All pairs of layers that are not float32 on both sides, in the reference's order, and layers left in float32."""
    sides = _Known(reference, nets[0]), _Known(port, nets[1])
    found: list[Cast] = []
    seen = set()
    for pair in sorted(pairing.layers, key=lambda pair: sides[0].place(pair.reference)):
        if pair.reference in seen:
            continue
        seen.add(pair.reference)
        kind = nets[0].kind(pair.reference)
        paths = pair.reference, pair.port
        ways = [partial(_Known.layer, kind=kind)]
        ways += [partial(_Known.part, part=part) for part in CAREFUL_PARTS if not is_careful(kind)]
        for part, way in zip(("", *CAREFUL_PARTS), ways):
            one, other = (way(side, path) for side, path in zip(sides, paths))
            if one is not None or other is not None:
                one, other = one or sides[0].made(paths[0]), other or sides[1].made(paths[1])
            if one is not None and other is not None:
                found.append(Cast(*paths, kind, part, one, other))
    if not any(is_short(cast.reference.dtype) or is_short(cast.port.dtype) or cast.differs for cast in found):
        return ()
    level = _level(port)
    if not any(is_short(cast.port.dtype) for cast in found):  # the port casts nowhere: nothing of it stands out
        return tuple(found)
    products = [is_short(cast.port.dtype) for cast in found if _has_products(cast)]
    casts = level is not None or 2 * sum(products) > len(products)
    judged = (replace(cast, exception=_exception(cast, level, casts)) for cast in found)
    return tuple(
        c for c in judged if c.exception or c.differs or is_short(c.port.dtype) or (level and is_careful(c.kind))
    )


def lowered(dump: Dump) -> Mapping[str, str]:
    """Layers of which it is known that their code computes in a short type, and in which."""
    return {layer: dtype for layer, dtype in computing(dump).items() if is_short(dtype)}


def computing(dump: Dump) -> Mapping[str, str]:
    """What layers compute in, by their paths, as far as it was found out."""
    return {layer: told[0].dtype for layer, told in _told(dump).items()}


def switched(dump: Dump) -> Mapping[str, str]:
    """Layers that an AMP level or the user's lists cast on purpose, to which short type."""
    return {
        layer: told[0].dtype
        for layer, told in _told(dump).items()
        if told[0].by in BY_OPERATOR and is_short(told[0].dtype)
    }


def lowered_alone(reference: Dump, port: Dump) -> Callable[[str, str], Optional[str]]:
    """The short type that the code of the port's layer does anything in, where that of the reference's does nothing."""
    ours, theirs = _told(reference), _told(port)

    def shortest(told: Optional[Told]) -> Optional[str]:
        words = [word for word in (told[0].dtype, *told[1]) if is_short(word)] if told is not None else []
        return max(words, key=lambda word: DTYPES[word].eps or 0.0, default=None)

    return lambda layer, other: None if shortest(ours.get(layer)) else shortest(theirs.get(other))


def shortened(reference: Dump, port: Dump) -> Callable[[str, str], Shortened]:
    """What the code of a pair of layers does in a short type on the port's side alone: the type, delicate operations,
    and others where the reference's code does nothing in a short type; None where nothing is told of such.
    """
    ours, theirs = _told(reference), _told(port)

    def of(layer: str, other: str) -> Shortened:
        known = dict(ours[layer][1]) if layer in ours else {}
        mine = [name for dtype, names in known.items() if is_short(dtype) for name in names]
        for dtype, names in dict(theirs[other][1]).items() if other in theirs else ():
            if is_short(dtype):  # bfloat16 there does not overflow as float16 does here
                words = [word for word in DELICATE if not _holds(word, known.get(dtype, ()))]
                found = tuple(name for name in names if any(word in name for word in words))
                return dtype, found, () if mine else tuple(name for name in names if name not in found)
        return None

    return of


def _holds(word: str, names: Sequence[str]) -> bool:
    return any(word in name for name in names)


def is_careful(kind: str) -> bool:
    """Whether the layers of this kind are usually kept in float32."""
    return kind.startswith(NORMS) or kind in ("Softmax", "LogSoftmax", "Softmin") or kind.endswith("Loss")


def _exception(cast: Cast, level: Optional[str], casts: bool) -> str:
    """Why this pair stands out; `casts`: the port computes its products in a short type as a rule."""
    one, other = is_short(cast.reference.dtype), is_short(cast.port.dtype)
    if one != other and (cast.part or is_careful(cast.kind)):
        return "careful"
    if casts and not other and _has_products(cast) and not (level in BY_OPERATOR and not cast.kind.startswith(PLAIN)):
        return "left"
    return "other" if cast.differs and not casts and _has_products(cast) else ""


def _has_products(cast: Cast) -> bool:
    return not cast.part and cast.kind.startswith(PRODUCTS)


def is_short(dtype: str) -> bool:
    """Whether the type has fewer digits than float32."""
    known = DTYPES.get(dtype)
    return known is not None and known.eps is not None and known.eps > (DTYPES[USUAL].eps or 0.0)


def _level(port: Dump) -> Optional[str]:
    word = port.header.get("amp")
    return word if word in LEVELS else None


class _Known:
    """What one dump tells of its layers."""

    def __init__(self, dump: Dump, net: Net) -> None:
        self._net = net
        self._told = _told(dump)
        self._made: dict[str, str] = {}
        self._order: dict[str, int] = {}
        for entry in dump.entries:
            key = entry.key
            if key.phase is not Phase.FORWARD:
                continue
            self._order.setdefault(key.layer, entry.order)
            if not key.slot.startswith("input") and DTYPES[entry.dtype].eps is not None:
                self._made.setdefault(key.layer, entry.dtype)

    def place(self, layer: str) -> int:
        """Where it runs."""
        return self._order.get(layer, 0)

    def layer(self, path: str, kind: str) -> Optional[Computing]:
        """What this layer computes in; of a layer with others inside only if its own code multiplies."""
        told = self._told.get(path)
        inside = path in self._net.inner
        if told is not None:
            operations = [name for names in told[1].values() for name in names]
            multiplies = any(word in name for name in operations for word in ("matmul", "mm", "einsum", "conv"))
            return told[0] if not inside or kind.startswith(PRODUCTS) or multiplies else None
        return None if inside else self.made(path)

    def made(self, path: str) -> Optional[Computing]:
        """By the type of its output: all that is known where nothing was told."""
        made = self._made.get(path) if path not in self._told else None
        return None if made is None else Computing(made, "output")

    def part(self, path: str, part: str) -> Optional[Computing]:
        """What the layer's own code does such operations in: the shortest of their types."""
        told = self._told.get(path)
        if told is None:
            return None
        found = [dtype for dtype, names in told[1].items() if any(part in name for name in names)]
        found.sort(key=lambda dtype: -(DTYPES[dtype].eps or 0.0) if dtype in DTYPES else 0.0)
        return Computing(found[0], told[0].by) if found else None


Shortened = Optional[tuple[str, tuple[str, ...], tuple[str, ...]]]
Told = tuple[Computing, Mapping[str, Sequence[str]]]


def _told(dump: Dump) -> dict[str, Told]:
    found: dict[str, Told] = {}
    for kind, facts in dump.findings:
        if kind == CAST:
            layer, told = _from_facts(facts, dump)
            if layer not in found or (told[1] and not found[layer][1]):  # heard later, in a forced pass
                found[layer] = told
    return found


def _from_facts(facts: Mapping[str, Any], dump: Dump) -> tuple[str, Told]:
    """What a dump tells of one layer.

    Raises:
        DumpError: these are no such facts.
    """
    try:
        layer, dtype, by = str(facts["layer"]), str(facts["dtype"]), str(facts["by"])
        rows = {str(word): tuple(map(str, names)) for word, names in dict(facts.get("operations", {})).items()}
        return layer, (Computing(dtype, by), rows)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        where = display(str(facts.get("layer")))[:80]
        reason = Reason("why-bad-computing", where, form_of(error))
        raise DumpError("dump-bad", path=dump.path, reason=because(reason)) from error
