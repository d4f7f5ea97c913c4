"""What rounding does to the reference itself: the reference once more in float64, or with everything rounded shorter.

Two runs for each: one in which every layer is held to the dump, for what a layer or the code around it does by itself,
and a free one, in which rounding grows on its way through the net. Only one number for each value and run is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.adapter import Adapter
from aligner.compare.expected import TRUTH
from aligner.compare.net import CallId
from aligner.dtypes import DTYPES, decode, encode
from aligner.dump.reader import Dump, open_dump
from aligner.errors import DumpError, Reason
from aligner.findings import EXPECTED
from aligner.record import Array, Key, Note, Phase
from aligner.replay.forced import ForcedPass
from aligner.replay.frames import Plan
from aligner.replay.freely import as_it_was

if TYPE_CHECKING:
    from aligner.capture.sink import Sink
    from aligner.compare.checks import Check


@dataclass(frozen=True)
class Expectation:
    """A reference whose rounding is to be known; what each field means stands at `Subject`."""

    adapter: Adapter
    model: Any
    run: Callable[[int], object]
    steps: Sequence[int]
    seed: Optional[int]
    silence_dropout: bool
    truth: bool
    shorter: Sequence[str]
    """Short float types that a port may compute in."""

    def measure(self, path: str, sink: Sink, order: int, seconds: float) -> None:
        """After the capture, while its dump is still open."""
        words = [TRUTH] * self.truth + list(self.shorter)
        for word in words:
            try:
                with open_dump(path) as dump:
                    for facts in self._measured(dump, word):
                        sink.finding(EXPECTED, facts)
            except DumpError:  # ours
                raise
            except Exception as error:  # the net's own: not every operation exists in every type
                facts = {"dtype": word, "error": f"{type(error).__name__}: {error}"[:300]}
                sink.note(Note("", "expectation-failed", facts))

    def _measured(self, dump: Dump, word: str) -> list[dict[str, Any]]:
        own, free = (self._pass(dump, word, held) for held in (True, False))
        return [
            {"by": word, "at": [key.step, key.layer, key.call, key.slot], "own": own[key], "free": free[key]}
            for key in own
            if key in free
        ]

    def _pass(self, dump: Dump, word: str, held: bool) -> dict[Key, float]:
        """How far each value of a run is off the dump's: in float64, or with everything rounded to `word`."""
        entries = {entry.key: entry for entry in dump.entries if entry.key.phase is Phase.FORWARD}
        calls = {CallId(call.layer, call.number): CallId(call.layer, call.number) for call in dump.calls}
        plan = Plan(entries, calls, given=word if word == TRUTH else None, held=held)
        forced = ForcedPass(self.adapter, self.model, plan)
        found: dict[Key, float] = {}
        with as_it_was(self.adapter, self.model, self.seed, self.silence_dropout, lambda: None), self._as(dump, word):
            for step in self.steps:
                if word == TRUTH:
                    forced.run(step, lambda step=step: self.run(step))  # type: ignore[misc]  # bound now
                    found.update((check.key, check.error) for check in forced.checks)
                else:
                    self._rounded(forced, step, word, dump, found)
        return found

    def _rounded(self, forced: ForcedPass, step: int, word: str, dump: Dump, found: dict[Key, float]) -> None:
        def change(array: Array, dtype: str) -> Array:
            return decode(encode(array, word), word)

        def told(check: Check, array: Array, dtype: str) -> None:
            entry = dump.find(check.key)
            if entry is not None and DTYPES[dtype].eps is not None:
                found[check.key] = _apart(change(decode(array, dtype), dtype), entry.load())

        forced.disturbed(step, lambda: self.run(step), change, told)

    @contextmanager
    def _as(self, dump: Dump, word: str) -> Iterator[None]:
        """The model in float64, or with its weights rounded; afterwards as it was, bit by bit."""
        parameters = [p for p in self.adapter.parameters(self.model) if DTYPES.get(p.dtype, _EXACT).eps is not None]
        kept = [(p, dump.find(Key(0, Phase.PARAMETER, p.layer, 0, p.role))) for p in parameters]
        types = {p.dtype for p in parameters}
        if any(entry is None for _, entry in kept) or len(types) > 1:
            raise Reason("why-weights-needed")
        native = next(iter(types), "float32")
        if word == TRUTH:
            self.adapter.cast(self.model, TRUTH)
        try:
            if word != TRUTH:
                for parameter, entry in kept:
                    if entry is not None:
                        rounded = decode(encode(entry.load(), word), word)
                        self.adapter.load(parameter, encode(rounded, parameter.dtype), parameter.dtype)
            yield
        finally:
            if word == TRUTH:
                self.adapter.cast(self.model, native)
            again = {(p.layer, p.role): p for p in self.adapter.parameters(self.model)}
            for parameter, entry in kept:
                if entry is not None:
                    self.adapter.load(again[parameter.layer, parameter.role], entry.raw(), entry.dtype)


_EXACT = DTYPES["bool"]


def _apart(found: Array, wanted: Array) -> float:
    """Relative L2; nothing is known where the rounded run left the finite numbers, or took another shape."""
    if found.shape != wanted.shape:
        return 0.0
    with np.errstate(all="ignore"):
        one, other = wanted.astype(np.float64), found.astype(np.float64)
        apart = float(np.linalg.norm(other - one)) / (float(np.linalg.norm(one)) or 1.0)
    return apart if np.isfinite(apart) else 0.0
