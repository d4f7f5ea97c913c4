"""What a call of the port's is run on again: the reference's values, by the plan of the forced pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Optional, Protocol, Union

from aligner.compare.checks import Check
from aligner.compare.net import CallId
from aligner.record import Array, Call, Key
from aligner.structure import Tensors

if TYPE_CHECKING:
    from aligner.dump.reader import Entry
    from aligner.mending.memory import Arguments


class Plan(Protocol):
    """Which of the port's values and calls stand for which of the reference's."""

    @property
    def entries(self) -> Mapping[Key, Entry]:
        """The reference's record by the port's address."""

    @property
    def calls(self) -> Mapping[CallId, CallId]:
        """The reference's call by the port's."""

    @property
    def layers(self) -> Mapping[str, str]:
        """The reference's layer by the port's."""

    @property
    def numbers(self) -> Mapping[tuple[int, CallId], Mapping[str, Union[bool, int, float]]]:
        """Plain numbers that the reference's call is given where the port's is given others, by step and slot."""

    @property
    def made(self) -> Callable[[CallId, Array], bool]:
        """Whether the reference's code makes a value inside of a call of its own."""

    @property
    def short(self) -> Optional[str]:
        """The short float type that the port usually computes in."""

    @property
    def lowered(self) -> Mapping[str, str]:
        """What layers of the reference compute in, where that is a short float type."""


class Ground(Protocol):
    """What a call of the port's is run on."""

    @property
    def plan(self) -> Plan:
        """The counterparts."""

    def layer(self, path: str) -> Optional[object]:
        """The port's layer."""

    def arguments(self, call: Call) -> tuple[tuple[object, ...], dict[str, object]]:
        """The reference's arguments of a call of the port's."""

    def is_given_objects(self, call: Call) -> bool:
        """Whether a call of the port's is given objects of the user's: what is in them was made elsewhere."""

    def off(self, check: Check, tensor: object) -> float:
        """How far a value is off that was made at a check's place."""

    def around(self, own: Call, parent: str) -> Call:
        """The call of the port's layer `parent` in which this one was made."""

    def before(self, call: Call) -> Mapping[str, int]:
        """How often each layer had run when this call began."""

    def takes(self, call: Call) -> bool:
        """Whether the port's layer makes of the reference's arguments what the reference's makes of them."""

    def others(self, call: Call, this: CallId, found: Tensors) -> Mapping[str, object]:
        """The reference's values for those of one call inside `call`."""


class UnderWay(Protocol):
    """A run of a call."""

    @property
    def call(self) -> Call:
        """Which one."""

    @property
    def arguments(self) -> Arguments:
        """What it is given."""

    def called(self, path: str, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A layer is called in it."""
