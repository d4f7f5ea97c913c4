"""What a person walks in a notebook: a comparison's layer, its pairs of tensors, their worst elements.

    result["layer1.0.conv1"].output.worst(10)

A Comparison holds no open file; values are read from the two dumps by path each time they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple, Optional, overload

import numpy as np

from aligner import messages
from aligner.compare.deviation import Deviation
from aligner.compare.verdict import Comparison, Origin, Outcome, Side, Verdict
from aligner.errors import UsageError
from aligner.record import Array, Key, LayerSpec, Phase, display
from aligner.report import elements
from aligner.report.elements import Element
from aligner.report.figures import element, figure, index
from aligner.report.lines import pad, printable, width
from aligner.report.words import say


class UnknownLayerError(UsageError, KeyError):
    """A comparison has no such layer; a KeyError too, since that is what a mapping raises."""

    def __str__(self) -> str:
        return self.text(messages.language())  # KeyError's own would show the text in quotes


class Values(NamedTuple):
    """The selected part of a pair on both sides."""

    reference: Any
    port: Any
    difference: Any


class Worst(Sequence[Element]):
    """The elements that differ most, worst first; prints as a table."""

    def __init__(self, found: Sequence[Element], name: str) -> None:
        self._found = tuple(found)
        self.name = name

    def __len__(self) -> int:
        return len(self._found)

    @overload
    def __getitem__(self, at: int) -> Element: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Element]: ...
    def __getitem__(self, at: Any) -> Any:
        return self._found[at]

    def rows(self, language: str) -> list[list[str]]:
        """Titles, then one row of text for each element."""
        titles = [say(f"column-{name}", language) for name in ("index", "reference", "port", "difference", "error")]
        values = ((e, (e.reference, e.port, e.difference)) for e in self._found)
        return [titles, *([index(e.index), *map(_digits, numbers), figure(e.error)] for e, numbers in values)]

    def __repr__(self) -> str:
        rows = self.rows(messages.language())
        widths = [max(width(row[i]) for row in rows) for i in range(len(rows[0]))]
        return "\n".join("  ".join(pad(cell, widths[i], right=i > 0) for i, cell in enumerate(row)) for row in rows)

    def _repr_html_(self) -> str:
        from aligner.notebook.html import worst_html

        return worst_html(self)


def _digits(value: object) -> str:
    return element(value) if isinstance(value, float) else str(value)


class TensorPair:
    """One tensor of the reference and the port's counterpart; the arrays are read when asked for."""

    def __init__(self, comparison: Comparison, verdict: Verdict) -> None:
        self._comparison = comparison
        self.verdict = verdict

    @property
    def key(self) -> Key:
        """Where the value stood in the run."""
        return self.verdict.key

    @property
    def outcome(self) -> Outcome:
        """What is concluded about this pair."""
        return self.verdict.outcome

    @property
    def error(self) -> Optional[float]:
        """The figure that is set against the tolerance."""
        return self.verdict.error

    @property
    def deviation(self) -> Optional[Deviation]:
        """All measured figures; None where nothing could be measured."""
        return self.verdict.deviation

    @property
    def tolerance(self) -> float:
        """What the error is set against."""
        return self._comparison.tolerance

    @property
    def reference(self) -> Array:
        """The reference's values."""
        return self._load("reference", self.verdict.reference)

    @property
    def port(self) -> Array:
        """The port's values."""
        return self._load("port", self.verdict.port)

    @property
    def difference(self) -> Array:
        """port - reference, in float32 when neither is wider, else float64."""
        return elements.difference(*self._beside())

    def _beside(self) -> tuple[Array, Array]:
        """Both sides in one shape, where they were compared although their shapes differ by axes of size one."""
        reference, port = self.reference, self.port
        if self.verdict.deviation is None or np.shape(reference) == np.shape(port):
            return reference, port
        if np.size(reference) == np.size(port):
            return reference, np.reshape(port, np.shape(reference))
        wide, other = np.broadcast_arrays(reference, port)
        return wide, other

    def worst(self, count: int = 10) -> Worst:
        """The places that are worst by the comparison's rule."""
        return Worst(elements.worst(*self._beside(), count, self._comparison.rule), self.name)

    def __getitem__(self, at: Any) -> Values:
        reference, port = self.reference[at], self.port[at]
        return Values(reference, port, elements.difference(_array(reference), _array(port))[()])

    @property
    def name(self) -> str:
        """Layer and slot, as reports write them."""
        return f"{display(self.key.layer)} {self.key.slot}"

    def _load(self, which: str, side: Optional[Side]) -> Array:
        """Read one side's values.

        Raises:
            UsageError: this record stands in the other dump only.
            DumpError: the dump cannot be read any more.
        """
        from aligner.dump.reader import open_dump

        if side is None:
            raise UsageError("notebook-one-side", name=self.name)
        with open_dump(getattr(self._comparison, which)["path"]) as dump:
            entry = dump.find(side.key)
            if entry is None:
                raise UsageError("notebook-changed", path=dump.path, name=self.name)
            return entry.load()

    def __repr__(self) -> str:
        side = self.verdict.reference or self.verdict.port
        what = f"{side.dtype} {side.shape} " if side is not None else ""
        error = figure(self.error, self.tolerance)
        return f"<TensorPair {printable(self.name)} {what}{self.outcome.value}, error {error}>"

    def _repr_html_(self) -> str:
        from aligner.notebook.html import pair_html

        return pair_html(self)


def _array(value: Any) -> Array:
    import numpy as np

    return np.asarray(value)


class LayerComparison:
    """One layer on both sides: its parameters, and the inputs and outputs of its calls."""

    def __init__(self, comparison: Comparison, path: str, verdicts: Sequence[Verdict]) -> None:
        self._comparison = comparison
        self.path = path
        self.pairs = [TensorPair(comparison, verdict) for verdict in verdicts]

    @property
    def kind(self) -> str:
        """The layer's type in the one vocabulary of all frameworks."""
        return self.pairs[0].verdict.kind

    @property
    def port_path(self) -> str:
        """The port's layer that stands for this one."""
        return next((p.port for p in self._comparison.layers if p.reference == self.path), self.path)

    @property
    def parameters(self) -> dict[str, TensorPair]:
        """Parameters and buffers by canonical name."""
        return {pair.key.slot: pair for pair in self.pairs if pair.key.phase is Phase.PARAMETER}

    @property
    def calls(self) -> list[LayerComparison]:
        """The calls one by one: the same view, narrowed to one call of one step."""
        found: dict[tuple[int, Phase, int], list[Verdict]] = {}
        for pair in self.pairs:
            if pair.key.phase is not Phase.PARAMETER:
                found.setdefault((pair.key.step, pair.key.phase, pair.key.call), []).append(pair.verdict)
        return [LayerComparison(self._comparison, self.path, verdicts) for verdicts in found.values()]

    @property
    def inputs(self) -> list[TensorPair]:
        """What goes into the first call."""
        return self._first_call("input")

    @property
    def outputs(self) -> list[TensorPair]:
        """What comes out of the first call."""
        return self._first_call("output")

    @property
    def input(self) -> TensorPair:
        """The first input of the first call.

        Raises:
            UsageError: the layer has no tensor among its inputs, or never ran.
        """
        return self._only("input", self.inputs)

    @property
    def output(self) -> TensorPair:
        """The first output of the first call.

        Raises:
            UsageError: the layer has no tensor among its outputs, or never ran.
        """
        return self._only("output", self.outputs)

    def _only(self, which: str, pairs: list[TensorPair]) -> TensorPair:
        if not pairs:
            raise UsageError("notebook-no-tensor", layer=display(self.path), which=which)
        return pairs[0]

    def _first_call(self, which: str) -> list[TensorPair]:
        own = [p for p in self.pairs if p.key.phase is Phase.FORWARD and p.key.slot.partition(".")[0] == which]
        return [p for p in own if (p.key.step, p.key.call) == (own[0].key.step, own[0].key.call)]

    @property
    def origin(self) -> Optional[Origin]:
        """What is wrong by itself in this layer, if anything is, be it below the tolerance."""
        places = (*self._comparison.origins, *self._comparison.suspects)
        return next((origin for origin in places if origin.layer == self.path), None)

    @property
    def settings(self) -> Optional[tuple[LayerSpec, LayerSpec]]:
        """The settings of both sides, where this layer is an origin."""
        return self._comparison.specs.get(self.path)

    @property
    def comparison(self) -> Comparison:
        """The comparison this layer belongs to."""
        return self._comparison

    @property
    def outcome(self) -> Outcome:
        """The outcome that matters most among this layer's records."""
        return min((pair.outcome for pair in self.pairs), key=_RANK.index)

    @property
    def error(self) -> Optional[float]:
        """The largest error among this layer's records."""
        return max((pair.error for pair in self.pairs if pair.error is not None), default=None)

    def __getitem__(self, slot: str) -> TensorPair:
        """By slot: "output.0", "weight".

        Raises:
            UnknownLayerError: the layer has no such record.
        """
        for pair in self.pairs:
            if pair.key.slot == slot:
                return pair
        known = ", ".join(dict.fromkeys(pair.key.slot for pair in self.pairs))
        raise UnknownLayerError("notebook-slot-unknown", layer=display(self.path), slot=slot, known=known)

    def __iter__(self) -> Iterator[TensorPair]:
        return iter(self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def __repr__(self) -> str:
        error = figure(self.error, self._comparison.tolerance)
        name = f"{printable(display(self.path))} ({printable(self.kind)})"
        return f"<LayerComparison {name} {self.outcome.value}, largest error {error}, {len(self.pairs)} pairs>"

    def _repr_html_(self) -> str:
        from aligner.notebook.html import layer_html

        return layer_html(self)


_RANK = (
    Outcome.ORIGIN,
    Outcome.NONFINITE,
    Outcome.INCOMPARABLE,
    Outcome.UNMATCHED,
    Outcome.INHERITED,
    Outcome.ROUNDING,
    Outcome.ALIGNED,
    Outcome.COVERED,
    Outcome.NOT_RUN,
)


def layer_comparison(comparison: Comparison, layer: str) -> LayerComparison:
    """The layer of that path: the reference's, else the port's counterpart of one.

    Raises:
        UnknownLayerError: neither side has it; names those that are near.
    """
    path = "" if layer == "(net)" else layer
    verdicts = [v for v in comparison.verdicts if v.key.layer == path]
    if not verdicts:
        verdicts = [v for v in comparison.verdicts if v.port is not None and v.port.key.layer == path]
        path = verdicts[0].key.layer if verdicts else path
    if verdicts:
        return LayerComparison(comparison, path, verdicts)
    known = [name for name in dict.fromkeys(v.key.layer for v in comparison.verdicts) if name]
    near = get_close_matches(layer, known, 3, 0.5)
    hint = messages.text("did-you-mean", "en", {"names": ", ".join(near)}) if near else ""
    raise UnknownLayerError("notebook-layer-unknown", layer=layer, count=len(known), hint=hint)
