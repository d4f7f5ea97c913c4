"""What dumps say besides values: each thing once, and what is no reason for doubt not at all."""

from __future__ import annotations

import numpy as np

from aligner.cli.compare import exit_code
from aligner.compare.comparison import compare
from aligner.compare.notes import together
from aligner.record import Note
from tests.unit.compare.memory_dump import Recorder

WHY = {"type": "Linear", "reason": "the graph does something"}


def test_layers_of_which_the_same_is_to_be_said_are_told_of_once():
    notes = [Note(f"blocks.{n}", "mindspore-untold", WHY) for n in range(9)]
    other = Note("fc", "mindspore-untold", {"type": "Linear", "reason": "something else"})
    first, second, third = together([notes[0], Note("", "mindtorch-auto-idle"), *notes[1:], other])
    assert (first.message, first.facts["count"]) == ("mindspore-untold-several", 9)
    assert str(first.facts["layers"]).startswith("blocks.0, blocks.1, ")
    assert str(first.facts["layers"]).endswith(", ...")
    assert second.message == "mindtorch-auto-idle"
    assert third == other


def test_the_shim_of_mindtorch_is_no_warning():
    """Every port of MindTorch 0.4.0 has it: with --strict none would ever be aligned."""

    def dump(*messages):
        net = Recorder("Net")
        net.call("", "Net", lambda x: x * 2, np.arange(6.0, dtype=np.float32))
        for message in messages:
            net.note("", message, version="0.4.0")
        return net.dump()

    shimmed = compare(dump(), dump("mindtorch-shim"))
    assert (list(shimmed.warnings), exit_code(shimmed, strict=True)) == ([], 0)
    assert exit_code(compare(dump(), dump("mindtorch-auto-idle")), strict=True) == 1
