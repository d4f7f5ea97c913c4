"""Where a net raised, as reports tell it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from aligner.record import display

if TYPE_CHECKING:
    from aligner.dump.reader import Dump

NOT_RUN = "not-run"
"""The reason of records that the other side does not have because it had stopped."""


@dataclass(frozen=True)
class Stop:
    """Where a net raised. `side` is "reference" or "port", `layer` that net's own path, and `after` what ended
    last inside it. `error` is empty where the program caught it and nothing is known of it.
    """

    side: str
    step: int
    layer: str
    kind: str
    call: int
    after: str
    error: str
    said: str
    file: str
    line: int
    text: str
    late: bool
    """Kernels run behind the code that calls them: the mistake may stand in a line before this one."""
    partner: Optional[str] = None
    """The other net's layer, if it has a counterpart."""

    def summary(self) -> str:
        """In a few English words."""
        return f"{self.side} stopped in {display(self.layer)}" + (f" with {self.error}" if self.error else "")


def stop_of(dump: Dump, side: str, partners: Mapping[str, str]) -> Optional[Stop]:
    """Where the net of that dump raised, or None; `partners` are the other net's layers by its own."""
    facts = dump.header.get("stopped")
    if not facts:
        return None
    path = str(facts.get("layer", ""))
    layer = dump.layers.get(path)

    def word(name: str) -> str:
        return str(facts.get(name) or "")

    return Stop(
        side=side,
        step=int(facts.get("step") or 0),
        layer=path,
        kind=layer.spec.kind if layer is not None else "",
        call=int(facts.get("call") or 0),
        after=word("after"),
        error=word("error"),
        said=word("said"),
        file=word("file"),
        line=int(facts.get("line") or 0),
        text=word("text"),
        late=facts.get("late") is True,
        partner=partners.get(path),
    )


def together(found: Sequence[Stop]) -> bool:
    """Whether both nets stopped, and in the same place."""
    if len(found) < 2:
        return False
    one, other = found
    return (one.step, one.call) == (other.step, other.call) and one.partner == other.layer
