"""What is concluded about a pair of records, and about the two nets: plain data that reports print.

Nothing here holds an open file: a Comparison can be printed, stored and walked after its dumps are closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, Any, Optional

from aligner.compare.casts import Cast
from aligner.compare.deviation import Deviation
from aligner.compare.mixup import Mixup
from aligner.compare.place import Place
from aligner.compare.steps import Steps
from aligner.compare.stop import Stop
from aligner.compare.tolerance import Tolerance as Tolerance
from aligner.explain.edit import Edit
from aligner.explain.line import Fork
from aligner.explain.suspect import Cause
from aligner.record import Key, LayerSpec, Scalar, display

if TYPE_CHECKING:
    from aligner.compare.beginning import Beginning


class Outcome(Enum):
    """What became of a record; every record of both dumps gets one."""

    ALIGNED = "aligned"
    ROUNDING = "rounding"
    """Over tolerance, but no more than the precision explains."""
    ORIGIN = "origin"
    """Wrong by itself: what came in agrees, what goes out does not."""
    INHERITED = "inherited"
    """Wrong because something before it (or inside it) is."""
    NONFINITE = "nonfinite"
    """NaN or Inf on one side only."""
    COVERED = "covered"
    """Has no counterpart, or one in another form, but the value itself or its effect was compared elsewhere."""
    UNMATCHED = "unmatched"
    """Stands in one dump only."""
    NOT_RUN = "not_run"
    """Stands in one dump only, because the other net had stopped with an exception."""
    INCOMPARABLE = "incomparable"
    """Paired, but shapes or kinds of dtype rule out a comparison of values."""

    @property
    def fails(self) -> bool:
        """Whether this outcome makes the comparison diverged."""
        return self not in (Outcome.ALIGNED, Outcome.ROUNDING, Outcome.COVERED, Outcome.NOT_RUN)


@dataclass(frozen=True)
class Side:
    """What a report needs to know of one record of a pair."""

    key: Key
    order: int
    type: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Verdict:
    """The conclusion about one pair, or about a record that has none."""

    key: Key
    kind: str
    outcome: Outcome
    reference: Optional[Side]
    port: Optional[Side]
    error: Optional[float] = None
    """The figure of the chosen rule, to be set against the tolerance; inf where NaN or Inf stand apart."""
    deviation: Optional[Deviation] = None
    origin: Optional[int] = None
    """Index in Comparison.origins of what this one inherits from."""
    reason: str = ""
    """For unmatched, covered and incomparable: a message id of aligner.messages.compare, filled by `facts`."""
    facts: Mapping[str, Scalar] = field(default_factory=dict)
    ratio: Optional[float] = None
    """How many times the error is what rounding explains, where the reference measured that (`capture --truth`)."""
    allowed: bool = False
    """Unmatched, but the user said that this layer may be."""

    @property
    def fails(self) -> bool:
        """Whether this verdict alone makes the comparison diverged."""
        return self.outcome.fails and not self.allowed

    def __repr__(self) -> str:
        error = "" if self.error is None else f", error {self.error:.1e}"
        place = f"{display(self.key.layer)} {self.key.slot}"
        return f"<{place} ({self.kind}), step {self.key.step}, call {self.key.call}: {self.outcome.value}{error}>"


@dataclass(frozen=True)
class Origin:
    """A place that is wrong by itself. `where`: "layer", "glue", "parameters" or "inputs"; of a training step also
    "loss", "clip" (what is made of gradients before the optimizer gets them), "update" or "program" (what that does by
    itself behind an update); of a resumed run "data",
    "state" or "schedule".

    For glue, `layer` is the parent whose own code is wrong, and `between` the two layers it lies between ("" = the
    parent's own border). `input_error` is the largest error of what came in.
    """

    layer: str
    port_layer: str
    kind: str
    where: str
    step: int
    phase: str
    call: int
    slot: str
    order: int
    own_error: float
    input_error: Optional[float]
    deviation: Optional[Deviation]
    between: Optional[tuple[str, str]] = None
    seen: str = ""
    """The layer whose record `slot`, `call` and `order` are: of wrong code, one of those around it."""
    calls: int = 1
    """How many calls of this layer are wrong by themselves."""
    ratio: Optional[float] = None
    """How many times its own error is what rounding explains; None without a forced pass."""
    cast: str = ""
    """The short type that explains its error: this place computes in it, the reference does not."""
    number: Optional[tuple[str, Scalar, Scalar]] = None
    """A plain number that the layer is given where it should be another one: its slot, the reference's and the port's.
    """
    causes: tuple[Cause, ...] = ()
    """Why it is wrong, the likeliest first; those that a trial has proved before the others."""
    line: Optional[Fork] = None
    """The line of the port's own code that is not the reference's, where both were followed."""
    edit: Optional[Edit] = None
    """The change of that code which was run and came out right."""
    left: tuple[Key, ...] = ()
    """What this code makes wrong with that change as well."""
    left_line: Optional[Fork] = None
    """The line of these."""
    untried: tuple[str, ...] = ()
    """Rules that were not asked to the end, for all that is asked is bounded; "numbers": none was asked,
    "whole": of a value that is very large they saw a part."""
    owners: tuple[tuple[str, str], ...] = ()
    """Of an update, or of what is made of gradients before it: the parameters that are wrong, by layer and role."""
    of: int = 0
    """How many parameters an optimizer updates there."""
    steps: tuple[int, ...] = ()
    """The steps in which it is wrong."""
    like: str = ""
    """The layer whose explanation stands for this one: the same line of code, of which nothing was proved there."""
    place: Optional[Place] = field(default=None, repr=False, compare=False)
    """The records it was seen in."""
    others: tuple[Place, ...] = field(default=(), repr=False, compare=False)
    """Other values that the same code makes, and makes wrong, the worst first."""

    @property
    def measured(self) -> Optional[Key]:
        """The record that `own_error`, `ratio` and `deviation` are of: the worst, which need not be the first one."""
        return None if self.place is None else self.place.key or self.place.port

    @property
    def apart(self) -> bool:
        """Whether that is another record than the first one."""
        key = self.measured
        first = self.step, self.seen or self.layer, self.call, self.slot
        return key is not None and (key.step, key.layer, key.call, key.slot) != first

    def __repr__(self) -> str:
        return f"<origin {display(self.layer)} ({self.kind}), {self.where}: {self.slot}, error {self.own_error:.1e}>"


@dataclass(frozen=True)
class LayerPair:
    """A layer of the reference and the layer of the port it was paired with; how sure, and by what."""

    reference: str
    port: str
    confidence: float
    by: str
    """"name", "map", "structure" (type, shape and order), "replay" (the mapping the weights were loaded by) or "values"
    (what a run showed that the two are given)."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """The whole answer. `outcome` is "aligned", "diverged" or "incomparable"."""

    reference: Mapping[str, Any]
    """The reference dump's header, with "path"."""
    port: Mapping[str, Any]
    tolerance: float
    rule: str
    outcome: str
    verdicts: tuple[Verdict, ...]
    origins: tuple[Origin, ...]
    layers: tuple[LayerPair, ...]
    first: Optional[Verdict]
    """The first record in execution order that is over tolerance (inputs and parameters before layers); if there is
    none, the first that is unmatched."""
    warnings: tuple[tuple[str, Mapping[str, Scalar]], ...]
    """(message id, facts)"""
    counts: Mapping[str, int]
    specs: Mapping[str, tuple[LayerSpec, LayerSpec]] = field(default_factory=dict)
    """Settings on both sides of every origin's layer, by the reference's path: reports set them side by side."""
    unpaired: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """Layers that ran without a counterpart, of the reference and of the port."""
    suspects: tuple[Origin, ...] = ()
    """Places that are wrong by themselves, by far more than round-off, although nothing exceeds the tolerance there
    or behind; each has a warning as well."""
    checked: int = 0
    """Places that a forced pass judged one by one; 0: there was none, and origins are from the free run alone."""
    held: int = 0
    """Calls of the port that the forced pass held to the reference."""
    left: tuple[str, ...] = ()
    """Layers of the port that could not take the reference's values; they were left with their own."""
    mixup: Optional[Mixup] = None
    """How the dumps were mixed up, if so; the first of the warnings too. Where it is void, `outcome` is "incomparable"
    and there are no origins."""
    stops: tuple[Stop, ...] = ()
    """Nets that stopped with an exception, the reference first; then `outcome` is not "aligned"."""
    steps: Steps = field(default_factory=Steps)
    """The steps of a training that both sides have."""
    resumed: Optional[Beginning] = None
    """Where in the reference's training the port's, a resumed run, begins; steps count as the reference's."""
    casts: tuple[Cast, ...] = ()
    """What layers compute in, where that is not float32 on both sides; in the reference's order."""

    @property
    def aligned(self) -> bool:
        """Whether every record is within tolerance, explained or allowed."""
        return self.outcome == "aligned"

    @property
    def exit_code(self) -> int:
        """0 aligned, 1 diverged, 3 incomparable."""
        return {"aligned": 0, "diverged": 1}.get(self.outcome, 3)

    @property
    def pairs(self) -> tuple[Verdict, ...]:
        """The verdicts with a record on both sides."""
        return tuple(v for v in self.verdicts if v.reference is not None and v.port is not None)

    def check(self) -> Comparison:
        """Itself when aligned.

        Raises:
            DivergedError: it is not; the text is the first divergence.
        """
        if not self.aligned:
            raise DivergedError(self)
        return self

    def __repr__(self) -> str:
        return f"<Comparison {_summary(self)}>"

    def __getitem__(self, layer: str) -> Any:
        """What a notebook shows of one layer."""
        return import_module("aligner.notebook.views").layer_comparison(self, layer)

    def _repr_html_(self) -> str:
        return str(import_module("aligner.notebook.html").comparison_html(self))


class DivergedError(AssertionError):
    """The nets are not aligned: what `Comparison.check` raises, so that a test fails with the reason."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        super().__init__(_summary(comparison))


def _summary(comparison: Comparison) -> str:
    """One line: the outcome, how much was compared, and the first divergence."""
    paired = [v.error for v in comparison.pairs if v.error is not None]
    words = f"{comparison.outcome}, {len(paired)} pairs"
    if comparison.mixup is not None:
        words += f", {comparison.mixup.text()}"
    words += "".join(f", {stop.summary()}" for stop in comparison.stops)
    first = comparison.first
    if first is not None:
        error = "" if first.error is None else f" error {first.error:.1e}"
        at = f"{display(first.key.layer)} {first.key.slot}".replace("\n", " ")
        words += f", first: {at} ({first.kind}) {first.outcome.value}{error}"
    elif paired:
        words += f", largest error {max(paired):.1e}"
    return f"{words}, tolerance {comparison.tolerance:g}"
