"""What the code of a layer did on both sides, step by step, and where the port's leaves the reference's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional

from aligner.errors import DumpError, Reason, because, form_of
from aligner.explain.fork import fork
from aligner.explain.line import Fork
from aligner.explain.trail import Trail
from aligner.findings import CODE
from aligner.fingerprint import fingerprint
from aligner.record import display

if TYPE_CHECKING:
    from aligner.dump.reader import Dump, Entry


class Trails:
    """Those of a pair of dumps, read when they are asked for."""

    def __init__(self, reference: Dump, port: Dump) -> None:
        self._dumps = reference, port
        self._told: tuple[dict[tuple[str, object], Any], ...] = tuple(
            {(str(facts.get("layer")), facts.get("call", 0)): facts for kind, facts in dump.findings if kind == CODE}
            for dump in self._dumps
        )
        self._read: dict[tuple[int, str, int], Optional[Trail]] = {}

    def fork(
        self,
        layers: tuple[str, str],
        calls: Callable[[], tuple[int, int]],
        expected: Optional[Entry],
        actual: Optional[Entry],
        rounding: float,
    ) -> Optional[Fork]:
        """Where these calls of two layers, of reference and port, part that should have made `expected`."""
        numbers = calls()
        reference, port = self._trail(0, layers[0], numbers[0]), self._trail(1, layers[1], numbers[1])
        if reference is None or port is None or expected is None or actual is None:
            return None
        values = fingerprint(expected.load()), fingerprint(actual.load())
        return fork(reference, port, *values, rounding)

    def _trail(self, side: int, layer: str, call: int) -> Optional[Trail]:
        if (side, layer, call) not in self._read:
            self._read[side, layer, call] = self._parsed(side, layer, call)
        return self._read[side, layer, call]

    def _parsed(self, side: int, layer: str, call: int) -> Optional[Trail]:
        facts = self._told[side].get((layer, call))
        if facts is None:
            return None
        try:
            return Trail.parsed(facts)
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            reason = Reason("why-bad-steps", display(layer)[:80], form_of(error))
            raise DumpError("dump-bad", path=self._dumps[side].path, reason=because(reason)) from error
