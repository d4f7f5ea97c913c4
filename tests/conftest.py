"""Golden files: what a report must look like, compared as text. And how many cases of a test run."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest

from tests import examples

GOLDEN = Path(__file__).parent / "golden"

FEW = 2
"""Cases of one test that run on every change; each case is a net that is captured, searched, mended and captured again.
"""

_SCRUBS = (
    (re.compile(r"aligner \d+\.\d+\.\d+\S*"), "aligner VERSION"),
    (re.compile(r"/\S*/pytest-\d+/\S*?/(?=[^/\s]+\.h5)"), "TMP/"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:+]+"), "TIME"),
)


def pytest_addoption(parser):
    parser.addoption("--accept", action="store_true", help="write the golden files anew from what the code says now")


def pytest_configure():
    """The same surroundings for all tests, and for the hundreds of commands that they start."""
    examples.listen()
    os.environ.pop("COLUMNS", None)  # reports are as wide as in a pipe; readline sets it for the processes of xdist
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each command would compile aligner anew
    if "PYTEST_XDIST_WORKER" in os.environ:  # each of them has one core
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_make_parametrize_id(val, argname):
    """Bytes name no test: a file made for one may hold the time, and the processes of xdist must agree on all names."""
    return argname if isinstance(val, bytes) else None


def pytest_collection_modifyitems(config, items):
    """Of a test of whole commands that has many cases, the first ones, unless its file was asked for or all are."""
    if os.environ.get("ALIGNER_LONG") or any(word.partition("::")[0].endswith(".py") for word in config.args):
        return
    met, left = Counter(), []
    for item in items:
        test = item.nodeid.partition("[")[0]
        met[test] += 1
        if met[test] > FEW and "/endtoend/" in str(item.path):
            left.append(item)
    config.hook.pytest_deselected(items=left)
    out = set(left)
    items[:] = [item for item in items if item not in out]


@pytest.fixture(autouse=True)
def causes_in_both_languages(request):
    """Whatever rule made a suspect in this test: a Chinese report of it has no English words."""
    examples.MADE.clear()
    yield
    if request.config.getoption("--accept") and examples.MADE:
        examples.accept()
    assert examples.judged() == []


@pytest.fixture
def golden(request):
    """Compare a text with its golden file; with --accept, write the file."""

    def check(name, text):
        for pattern, word in _SCRUBS:
            text = pattern.sub(word, text)
        path = GOLDEN / name
        if request.config.getoption("--accept"):
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{name} is new: look at the text, then run pytest --accept"
        assert text == path.read_text(encoding="utf-8"), f"{name} differs: if it is meant, run pytest --accept"

    return check
