"""What a report may assume about where it is printed."""

from __future__ import annotations

import io

import pytest

from aligner.report.terminal import Terminal, terminal


class Screen(io.StringIO):
    def isatty(self):
        return True


class Ascii(io.StringIO):
    encoding = "ascii"


@pytest.mark.parametrize(
    ("stream", "environ", "color", "wanted"),
    [
        (io.StringIO(), {}, "auto", False),
        (Screen(), {}, "auto", True),
        (Screen(), {"NO_COLOR": "1"}, "auto", False),
        (Screen(), {"NO_COLOR": ""}, "auto", True),
        (Screen(), {"TERM": "dumb"}, "auto", False),
        (io.StringIO(), {"FORCE_COLOR": "1"}, "auto", True),
        (io.StringIO(), {"FORCE_COLOR": "0"}, "auto", False),
        (io.StringIO(), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, "auto", False),
        (io.StringIO(), {"NO_COLOR": "1"}, "always", True),
        (Screen(), {"FORCE_COLOR": "1"}, "never", False),
    ],
)
def test_color(stream, environ, color, wanted):
    assert terminal(stream, environ, color=color).color is wanted


@pytest.mark.parametrize(
    ("stream", "environ", "wanted"),
    [
        (io.StringIO(), {}, 60),
        (Screen(), {}, 60),
        (io.StringIO(), {"COLUMNS": "80"}, 80),
        (Screen(), {"COLUMNS": "200"}, 100),
        (Screen(), {"COLUMNS": "10"}, 40),
        (Screen(), {"COLUMNS": "wide"}, 60),
    ],
)
def test_width(stream, environ, wanted):
    assert terminal(stream, environ).width == wanted


def test_chinese_needs_a_stream_that_has_it():
    assert terminal(io.StringIO(), {}, "zh").language == "zh"
    assert terminal(Ascii(), {}, "zh").language == "en"


def test_paint():
    assert Terminal(color=True).paint("x", "bold", "red") == "\x1b[1;31mx\x1b[0m"
    assert Terminal(color=False).paint("x", "bold", "red") == "x"
