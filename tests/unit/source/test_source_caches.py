"""What the user's code keeps from call to call is made again where his code is run again."""

from __future__ import annotations

import functools
import importlib.util
import textwrap

import numpy as np
import pytest

from aligner.source.caches import Caches, unkept


def built(folder, text):
    path = folder / "tables.py"
    path.write_text("import functools\nimport numpy as np\n" + textwrap.dedent(text), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("tables", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def caches(*classes, layers=()):
    return Caches([*layers, *(kind() for kind in classes)], ("torch",), lambda value: isinstance(value, np.ndarray))


@pytest.mark.parametrize("empty", ["{}", "dict()", "functools.partial(dict)()"], ids=["braces", "dict", "another call"])
def test_a_dict_that_a_function_fills_is_empty_meanwhile(tmp_path, empty):
    module = built(
        tmp_path,
        f"""
        CACHE = {empty}

        def table(n):
            if n not in CACHE:
                CACHE[n] = np.arange(n)
            return CACHE[n]

        class Net:
            def forward(self):
                return table(3)
        """,
    )
    known = module.Net().forward()
    with caches(module.Net).emptied():
        assert (module.Net().forward() is known) is (empty.startswith("functools"))
        module.table(4)
    assert module.Net().forward() is known
    assert 4 not in module.CACHE or empty.startswith("functools")


def test_of_a_class_too_and_lists(tmp_path):
    module = built(
        tmp_path,
        """
        class Net:
            rows = []

            def forward(self):
                if not self.rows:
                    self.rows.append(np.arange(3))
                return self.rows[0]
        """,
    )
    known = module.Net().forward()
    with caches(module.Net).emptied():
        assert module.Net().forward() is not known
    assert module.Net().forward() is known


@pytest.mark.parametrize(
    "text",
    [
        "KNOWN = {}\ndef register(one):\n    KNOWN[one.__name__] = one\n    return one\n",
        "KNOWN = {}\nKNOWN['Net'] = np.arange(3)\n",
    ],
    ids=["what keeps classes", "what no function fills"],
)
def test_what_is_no_cache_stays(tmp_path, text):
    decorated = "@register\n" if "register" in text else ""
    module = built(tmp_path, f"{text}\n{decorated}class Net:\n    def forward(self):\n        return KNOWN\n")
    with caches(module.Net).emptied():
        assert "Net" in module.KNOWN


def test_what_a_function_runs_that_keeps_its_results():
    def plain(x):
        return x

    class Net:
        @functools.lru_cache(maxsize=4)  # noqa: B019  # that is what is asked about
        def table(self, n):
            return n

    net = Net()
    assert unkept(functools.lru_cache(maxsize=4)(plain)) is plain
    assert unkept(plain) is plain
    assert unkept(net.table)(3) == 3
    assert unkept(net.table).__self__ is net


LAYERS = """
class Base:
    def __init__(self):
        self.rows, self.plain, self.state = None, {}, np.zeros(2)
        self.found = {}
        self.mask = None

    def named(self, n):
        self.plain["n"] = n


class Net(Base):
    def forward(self, n):
        if n not in self.found:
            self.found[n] = np.arange(n)
        return self.found[n]


class Masked(Base):
    def __init__(self):
        super().__init__()
        self.mask = self.pair = None

    def forward(self, n):
        if self.mask is None:
            self.mask = np.arange(n)
            self.pair = (np.arange(n), np.arange(n))
        return self.mask
"""


@pytest.mark.parametrize("kind", ["Net", "Masked"])
def test_what_a_layer_begins_without_it_makes_again(tmp_path, kind):
    module = built(tmp_path, LAYERS)
    layer = getattr(module, kind)()
    known = layer.forward(3)
    with caches(layers=[layer]).emptied():
        assert layer.forward(3) is not known
        layer.forward(4)
    assert layer.forward(3) is known
    assert caches(layers=[layer]).filled


def test_what_a_layer_begins_with_it_keeps(tmp_path):
    module = built(tmp_path, LAYERS)
    layer = module.Masked()
    layer.named(3)
    state = layer.state
    with caches(layers=[layer]).emptied():
        assert layer.state is state
        assert layer.plain == {"n": 3}
