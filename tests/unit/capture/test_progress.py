"""The progress line: how far, how fast, how large in the end."""

from __future__ import annotations

import io

import numpy as np
import pytest

from aligner.capture import progress
from aligner.capture.progress import Progress, size
from aligner.capture.tally import Tally
from aligner.columns import width
from aligner.record import Key, Phase, Record


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_weights_written_before_the_run_do_not_count_into_its_speed_and_projection(clock):
    out = Terminal()
    shown = Progress(out)
    clock.now += 50  # the net was being built
    shown.begin(400_000_000)
    clock.now += 2
    shown.update(0, "conv1", 10, 100, 401_000_000)
    assert "10 of 100 layers, 401.0 MB (500.0 kB/s), about 410.0 MB in all" in out.getvalue()


def test_a_terminal_gets_one_line_and_a_file_a_line_each_ten_seconds(clock):
    live, log = Terminal(), io.StringIO()
    shown = [Progress(live), Progress(log)]
    for _ in range(30):
        clock.now += 1
        for one in shown:
            one.update(0, "conv1", 1, 2, 1000)
    assert live.getvalue().count("\r") == 30
    assert len(log.getvalue().splitlines()) == 3
    shown[0].clear()
    assert live.getvalue().endswith(" \r")


def test_quiet_is_quiet(clock, capfd):
    shown = Progress(None)
    clock.now += 50  # time enough for a line
    shown.update(0, "conv1", 1, 2, 3)
    shown.say("forced-told", checked=1, wrong=0, seconds="0.1")
    shown.clear()
    assert capfd.readouterr() == ("", "")


def test_there_would_be_a_line_if_it_were_not_quiet(clock):
    out = io.StringIO()
    shown = Progress(out)
    clock.now += 50
    shown.update(0, "conv1", 1, 2, 3)
    assert out.getvalue().count("\n") == 1


def test_a_chinese_line_keeps_to_the_columns_of_the_terminal(clock):
    """Wider than the terminal it would break, and the next one would not stand over it."""
    out = Terminal()
    shown = Progress(out, "zh")
    for layer in ("编码器.注意力.查询." * 6, "输出"):
        clock.now += 1
        shown.update(0, layer, 1, 2, 1000)
    first, second = (width(line) for line in out.getvalue().split("\r")[1:])
    assert 77 < first <= 79
    assert second == first, "the rest of the line before it is taken away"


@pytest.mark.parametrize(("count", "wanted"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2.5e12, "2.5 TB")])
def test_sizes(count, wanted):
    assert size(count) == wanted


def test_of_how_many_steps_is_told_where_it_is_known(clock):
    out = Terminal()
    shown = Progress(out)
    shown.steps = 4
    shown.begin(100_000)  # weights
    clock.now += 1
    shown.update(0, "conv1", 1, 2, 200_000)
    assert "step 1 of 4: 1 of 2 layers, 200.0 kB (100.0 kB/s), about 900.0 kB in all" in out.getvalue()
    shown.begin(300_000)
    clock.now += 1
    shown.update(1, "conv1", 1, 2, 400_000)
    assert "step 2 of 4: 1 of 2 layers, 400.0 kB (100.0 kB/s), about 900.0 kB in all" in out.getvalue()


@pytest.mark.parametrize("steps", [2, 1000])
def test_steps_of_a_training_are_like_the_last_that_was_measured(steps, monkeypatch):
    clock = iter(range(100, 200))
    monkeypatch.setattr("aligner.capture.tally.time.monotonic", lambda: next(clock))
    tally = Tally()
    sizes = {Phase.FORWARD: 100, Phase.BACKWARD: 50, Phase.GRADIENT: 10, Phase.UPDATE: 20}
    rows = [(0, Phase.PARAMETER, 7), (0, Phase.FORWARD, 3), *((n, *row) for n in (0, 1) for row in sizes.items())]
    for order, (step, phase, count) in enumerate(rows):
        array = np.full(count, order, np.float32)
        tally.write(Record(Key(step, phase, "a", 0, f"output.{order}"), order, "float32", array))
    found = tally.estimate(steps)
    assert (found.measured, found.weights, found.once, found.step) == (2, 28, 12, 720)
    assert (found.forward, found.backward, found.update) == (400, 240, 80)
    assert found.bytes == 28 + 12 + 720 * steps
    assert found.records == 6 + 4 * (steps - 1)
    assert found.seconds == 8 + 3 * (steps - 2)  # a second passes with each value


def test_an_estimate_counts_a_value_seen_twice_once():
    tally = Tally()
    for order, values in enumerate((np.ones(8, np.float32), np.ones(8, np.float32), np.zeros(8, np.float32))):
        tally.write(Record(Key(0, Phase.FORWARD, "a", 0, f"output.{order}"), order, "float32", values))
    assert (tally.records, tally.bytes_seen, tally.bytes_written) == (3, 96, 64)
