"""What the forced pass found at each place: how far a value is off that was made of nothing but right ones.

capture writes these beside the free run's records; compare takes its origins from them. All addresses are plain data.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Optional, TypeVar

from aligner.compare.deviation import Deviation
from aligner.errors import Reason, form_of
from aligner.record import Key, Phase, Scalar

Number = TypeVar("Number", int, float)

LIMIT = 7.0
"""What may be off by more than this many times what rounding explains is wrong by itself.

Measured on eleven nets: 1,089 clean places stay within 1, the smallest of 146 planted mistakes is at 56.
"""


@dataclass(frozen=True)
class Check:
    """One tensor of the forced pass. `key` is the reference's record, `port` the port's; layers are the reference's.

    `where` is "layer", "glue" or "inputs"; `owner` is the layer whose doing the value is (for glue the parent), and
    `between` for glue the last layer before it and the next one.
    """

    key: Key
    port: Key
    where: str
    owner: str
    between: Optional[tuple[str, str]]
    error: float
    """How far off the tensor is as a whole (Reading.severity)."""
    expected: float
    """What rounding explains of it."""
    deviation: Optional[Deviation] = None
    """In full where it is far off."""
    reason: str = ""
    """Why there is none: a message id of aligner.messages.compare, filled by `facts`."""
    facts: Mapping[str, Scalar] = dataclasses.field(default_factory=dict)
    isolated: bool = True
    """Made of right values only; else something that went in could not be replaced."""
    follows: bool = False
    """Off by just what an earlier value of the same code was off by: the same mistake, handed on."""
    kept: bool = False
    """The value is in the dump, by the port's address in the phase FORCED."""
    proved: bool = False
    """No more than rounding might explain, but a trial has shown that it is not rounding."""
    alone: Optional[float] = None
    """A layer that computes in a shorter type: the error of the same layer in float32."""
    cast: str = ""
    """The short type that this place computes in, where the reference does not and the port as a whole does not; all
    that is wrong is what this type rounds."""

    against: Optional[Key] = None
    """The reference's record that it was set against, where that is not `key`: the border lies elsewhere."""
    axes: Optional[tuple[int, ...]] = None
    """The order of the reference's axes in which the port has the value, where that is another one."""
    by_effect: bool = False
    """An argument whose form may be the port's own: what its layer makes of it tells whether it is right. No dump has
    this."""
    passed_on: Optional[Key] = None
    """The reference's record of an argument that the port's code hands this result on as, where that is another value
    than the reference's result: the port's layer ends elsewhere. No dump has this."""

    @property
    def ratio(self) -> float:
        """How many times the error is what rounding explains; never mind the tolerance."""
        if self.hidden and self.alone is not None:
            return self.alone / ROUNDING
        return self.error / self.expected if self.expected > 0 else math.inf

    @property
    def hidden(self) -> bool:
        """Wrong in float32, and hidden by the rounding of the shorter type that the port computes in."""
        return self.alone is not None and self.alone > LIMIT * ROUNDING

    @property
    def by_cast(self) -> bool:
        """Off by no more than the short type explains that this place was cast to, on purpose or not."""
        return bool(self.cast) and not self.hidden

    @property
    def rounding(self) -> float:
        """What rounding explains of the value that is looked into for causes."""
        return ROUNDING if self.hidden else self.expected

    @property
    def number(self) -> Optional[tuple[str, Scalar, Scalar]]:
        """The plain number that this stands for: its slot, the reference's and the port's."""
        told = self.reason == OTHER_NUMBER and {"slot", "reference", "port"} <= {*self.facts}
        return (str(self.facts["slot"]), self.facts["reference"], self.facts["port"]) if told else None

    @property
    def suspicious(self) -> bool:
        """More than rounding explains, whoever's doing it is."""
        return self.ratio > LIMIT or self.proved

    @property
    def fails(self) -> bool:
        """Wrong by itself."""
        return self.suspicious and self.isolated and not self.follows


PLACES = ("layer", "glue", "inputs")

ARGUMENT = "argument-missing"
"""The reason of a check whose value the port's code did not hand over at all."""

OTHER_CALL = "other-call"
"""The reason of a check whose value another call of the reference's layer is given, for which the port has none."""

OTHER_BORDER = "other-border"
"""The reason of a check of a value that is right, and not what the reference's layer of that name hands on."""

OTHER_FORM = "other-form"
"""The reason of a check of an argument that the two nets hand over in different forms, and mean the same by."""

UNREAD = "unread"
"""The reason of a check of a value that is another one in a part alone of which nothing is made: `facts` have how many
elements that is."""

OTHER_SHAPE = "shapes-differ"
SAME_COUNT = "shapes-differ-same-count"
"""The reason of a check of values that cannot be set against each other one by one."""

OTHER_NUMBER = "number-differs"
"""The reason of a check that stands for a plain number which its call is given: `facts` have the number's slot."""

ROUNDING = 1e-6
"""Relative L2 that a float32 layer may add by itself (the worst clean one measured: 9.8e-7)."""


def in_float32(slot: str) -> str:
    """The slot of what a layer made in float32, though the port computes in a shorter type."""
    return f"{slot} in float32"


def to_facts(check: Check) -> dict[str, Any]:
    """Plain facts for a dump; what is as usual is left out."""
    facts: dict[str, Any] = {
        "at": [check.key.step, check.key.layer, check.key.call, check.key.slot],
        "where": check.where,
        "error": check.error,
        "expected": check.expected,
    }
    if check.port[2:] != check.key[2:]:
        facts["port"] = [check.port.layer, check.port.call, check.port.slot]
    if check.owner != check.key.layer:
        facts["owner"] = check.owner
    for name in ("between", "reason", "follows", "kept", "proved", "alone", "cast"):
        value = getattr(check, name)
        if value:
            facts[name] = value
    if not check.isolated:
        facts["isolated"] = False
    if check.against is not None:
        facts["against"] = [check.against.layer, check.against.call, check.against.slot]
    if check.axes is not None:
        facts["axes"] = list(check.axes)
    if check.facts:
        facts["facts"] = dict(check.facts)
    if check.deviation is not None and check.suspicious:
        facts["deviation"] = dataclasses.asdict(check.deviation)
    return facts


def from_facts(facts: Mapping[str, Any]) -> Check:
    """The check again.

    Raises:
        Reason: these are no facts of a check.
    """
    try:
        step, layer, call, slot = facts["at"]
        port = facts.get("port", [layer, call, slot])
        between, against = facts.get("between"), facts.get("against")
        return Check(
            Key(int(step), Phase.FORWARD, str(layer), int(call), str(slot)),
            Key(int(step), Phase.FORWARD, str(port[0]), int(port[1]), str(port[2])),
            PLACES[PLACES.index(facts["where"])],
            str(facts.get("owner", layer)),
            None if between is None else (str(between[0]), str(between[1])),
            float(facts["error"]),
            float(facts["expected"]),
            _deviation(facts.get("deviation")),
            str(facts.get("reason", "")),
            dict(facts.get("facts", {})),
            facts.get("isolated") is not False,
            facts.get("follows") is True,
            facts.get("kept") is True,
            facts.get("proved") is True,
            None if facts.get("alone") is None else float(facts["alone"]),
            str(facts.get("cast", "")),
            None
            if against is None
            else Key(int(step), Phase.FORWARD, str(against[0]), int(against[1]), str(against[2])),
            None if facts.get("axes") is None else tuple(map(int, facts["axes"])),
        )
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise Reason("why-bad-check", form_of(error)) from error


def _deviation(facts: Optional[Mapping[str, Any]]) -> Optional[Deviation]:
    if facts is None:
        return None
    worst, values = facts.get("worst"), facts.get("worst_values")
    return Deviation(
        max_abs=float(facts["max_abs"]),
        scaled=float(facts["scaled"]),
        allclose=float(facts["allclose"]),
        rel_l2=float(facts["rel_l2"]),
        cosine=float(facts["cosine"]),
        mismatched=int(facts["mismatched"]),
        total=int(facts["total"]),
        nan=_two(int, facts["nan"]),
        inf=_two(int, facts["inf"]),
        nonfinite=int(facts["nonfinite"]),
        rms=float(facts["rms"]),
        worst=None if worst is None else tuple(int(place) for place in worst),
        worst_values=None if values is None else _two(float, values),
        exact=facts.get("exact") is True,
    )


def _two(number: Callable[[Any], Number], pair: Any) -> tuple[Number, Number]:
    """A pair of numbers, the reference's and the port's."""
    one, other = pair
    return number(one), number(other)


def by_record(checks: Iterable[Check]) -> Mapping[Key, Check]:
    """The checks by the reference's record."""
    return {check.key: check for check in checks}
