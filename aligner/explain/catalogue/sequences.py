"""What a table or a recurrent layer did otherwise, told from its numbers."""

from __future__ import annotations

from aligner.explain.catalogue.entry import Entry, Text

_LEFT: Text = ("Run so on the reference's input, {left} is left", "用标杆输入这样运行，剩余误差 {left}")

TABLES: tuple[Entry, ...] = ()

RECURRENT: tuple[Entry, ...] = ()

ENTRIES = TABLES + RECURRENT
