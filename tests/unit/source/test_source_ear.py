"""What is heard of code that people write, and that it computes what it computed."""

from __future__ import annotations

import functools
import importlib.util
import textwrap

import pytest

from aligner.registry import load
from aligner.source import ear

torch = pytest.importorskip("torch")

HEAD = """
import functools, math
import torch
from torch import nn
from torch.nn import functional as F

"""


def built(folder, text, name="net"):
    """A module out of a file of its own."""
    path = folder / f"{name}.py"
    path.write_text(HEAD + textwrap.dedent(text), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Told:
    """Keeps what it is told."""

    def __init__(self):
        self.names, self.handing, self.entering, self.coming, self.keeping = [], [], [], [], []

    def begun(self, name, args, kwargs, where):
        self.names.append((name, where[:2]))

    def handed(self, args, kwargs, where, to):
        self.handing.append((args, where[1], to))

    def kept(self, args, kwargs, where):
        self.keeping.append((args, where[1]))

    def entered(self, args, kwargs, where):
        self.entering.append((args, where[1]))

    def came(self, output, where, of):
        self.coming.append((output, where[1], of))


def heard(net, *inputs):
    """The names of what is heard, and what comes out; it is what came out before."""
    adapter, told = load("torch"), Told()
    with torch.no_grad():
        wanted = net(*inputs)
        handle = ear.listen(adapter, net, told)
        assert handle is not None
        try:
            found = net(*inputs)
        finally:
            handle.remove()
        assert torch.equal(wanted, found)
        assert torch.equal(wanted, net(*inputs))
    return told.names


def names(net, *inputs):
    return [name for name, _ in heard(net, *inputs)]


@pytest.fixture
def x():
    return torch.arange(24.0).reshape(2, 3, 4) - 7


def forward(body):
    """A net whose forward has this body."""
    return "class Net(nn.Module):\n    def forward(self, x):\n" + textwrap.indent(textwrap.dedent(body), " " * 8)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("return F.softmax(x, dim=-1)", "softmax"),
        ("return x.softmax(-1)", "softmax"),
        ("return torch.nn.functional.gelu(x)", "gelu"),
        ("return (x + 1) * -x / 2 - x ** 2", "add neg mul truediv pow sub"),
        ("return x @ x.mT", "mT matmul"),
        ("return x.transpose(1, 2)[..., 0]", "transpose getitem"),
        ("b, n, c = x.shape\nreturn x.reshape(b, n * c)", "reshape"),
        ("x = x.clone()\nx[:, 0] = x[:, 1]\nreturn x", "clone getitem setitem"),
        ("x = x.clone()\nx[:, 0] += 2\nreturn x", "clone getitem add setitem"),
        ("y = x * 1\ny += x\ny -= 1\nreturn y", "mul iadd isub"),
        ("a, b = x.chunk(2, dim=-1)\nreturn torch.cat((b, a), -1)", "chunk cat"),
        ("return torch.stack([y * 2 for y in x])", "unbind mul mul stack"),
        ("return sum(y * 2 for y in x)", "unbind mul add mul add"),
        ("one, other = x\nreturn one + other", "unbind add"),
        ("y = 0\nfor row in x:\n    y = y + row\nreturn y", "unbind add add"),
        ("y = torch.zeros(300)\nfor row in y:\n    x = x + row\nreturn x", "zeros " + 300 * "add "),
        ("return torch.where(x > 0, x, ~(x > 1) * x)", "gt gt invert mul where"),
        ("f = lambda y: y.abs()\nreturn f(x)", "abs"),
        ("def f(y, k=len(x.shape)):\n    return y * k\nreturn f(x)", "mul"),
        ("return x if x.sum() > 0 else -x", "sum gt"),
        ("return functools.partial(torch.clamp, min=0)(x)", "clamp"),
        ("return torch.zeros(2, 3, 4) + x", "zeros add"),
        ("return x * math.sqrt(x.shape[-1])", "mul"),
        ("s = slice(None, 2)\nreturn x[s, 1:][:, None]", "getitem getitem"),
        ("x: torch.Tensor = x + 1\nreturn x", "add"),
        ("if (y := x.mean()) is not None and -1 in (1, -1):\n    return x - y", "mean sub"),
        ("x = x.clone()\nx[0], y = x[1], 2\nreturn x * y", "clone getitem mul"),
        ("(x)\nassert x.dim() == 3, f'{x.sum()}'\nreturn x.exp()", "dim exp"),
        ("try:\n    return x.nothing()\nexcept AttributeError:\n    return x.relu()", "relu"),
        ("with torch.no_grad():\n    return x.relu()", "relu"),
        ("y = next(iter([x]))\nreturn y.relu()", "relu"),
    ],
)
def test_each_operation_is_heard_once_in_its_order(tmp_path, x, body, wanted):
    assert names(built(tmp_path, forward(body)).Net(), x) == wanted.split()


def test_lines_are_those_of_the_file(tmp_path, x):
    module = built(tmp_path, forward("y = x * 2\n\nreturn (\n    y\n    .relu()\n)"))
    lines = (tmp_path / "net.py").read_text(encoding="utf-8").splitlines()
    told = heard(module.Net(), x)
    assert {file for _, (file, _) in told} == {str(tmp_path / "net.py")}
    assert [lines[line - 1].strip() for _, (_, line) in told] == ["y = x * 2", "y"]


CODE = """
def plain(x):
    return x.relu()

def shifted(by, *, twice=False):
    def inner(x):
        return x + by * (2 if twice else 1)
    return inner

def doubled(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) * 2
    return wrapper

class Caller:
    def __call__(self, x):
        return x.abs()

class Base(nn.Module):
    def forward(self, x):
        return self.__own(x) - 1

    def __own(self, x):
        return x.tanh()

    @staticmethod
    def still(x):
        return x.sigmoid()

    @classmethod
    def made(cls, x):
        return x.exp()

class Net(Base):
    def __init__(self):
        super().__init__()
        self.shift, self.caller = shifted(3, twice=True), Caller()
        self.inner = nn.Sequential(nn.ReLU(), nn.Linear(4, 4))

    @doubled
    def tail(self, x, scale=3.0, *, sign=-1):
        return x * scale * sign

    def pieces(self, x):
        for part in x:
            yield part.cos()

    @property
    def size(self):
        return len(self.inner)

    @torch.no_grad()
    def forward(self, x):
        x = super().forward(x)
        x = self.inner(x) + self.size
        x = plain(self.shift(x))
        x = self.still(self.made(x / 100))
        x = torch.stack(list(self.pieces(x)))
        return self.caller(self.tail(x, sign=-2))
"""


def test_functions_of_the_users_are_heard_inside(tmp_path, x):
    told = names(built(tmp_path, CODE).Net(), x)
    wanted = ["tanh", "sub", "add", "add", "relu", "truediv", "exp", "sigmoid", "unbind", "cos", "cos", "stack"]
    assert told == [*wanted, "mul", "mul", "mul", "abs"]


def test_what_goes_into_layers_and_leaves_functions_is_told_with_its_line(tmp_path, x):
    text = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.ReLU()

        def half(self, x):
            return x / 2

        def forward(self, x):
            y = self.half(x)
            z = self.act(
                y
            )
            return z, {"own": x}
    """
    net, told = built(tmp_path, text).Net(), Told()
    handle = ear.listen(load("torch"), net, told)
    net(x)
    handle.remove()
    lines = (tmp_path / "net.py").read_text(encoding="utf-8").splitlines()
    assert [lines[line - 1].strip() for _, line, _ in told.handing] == [
        "return x / 2",
        "z = self.act(",
        'return z, {"own": x}',
    ]
    assert torch.equal(told.handing[1][0][0], x / 2)
    half, made = told.coming
    assert half[2] is None
    assert torch.equal(half[0], x / 2)
    assert made[1:] == (told.handing[1][1], net.act)
    assert torch.equal(made[0], (x / 2).relu())


def test_what_is_put_into_lists_is_told(tmp_path, x):
    text = """
    class Net(nn.Module):
        def forward(self, x):
            kept, names = [], []
            kept.append(x / 2)
            names.append("half")
            return torch.cat(kept)
    """
    net, told = built(tmp_path, text).Net(), Told()
    handle = ear.listen(load("torch"), net, told)
    net(x)
    handle.remove()
    ((args, line),) = told.keeping
    assert torch.equal(args[0], x / 2)
    assert (tmp_path / "net.py").read_text(encoding="utf-8").splitlines()[line - 1].strip() == "kept.append(x / 2)"


def test_functions_and_classes_that_name_themselves(tmp_path, x):
    text = """
    def deep(x, times):
        return deep(x + 1, times - 1) if times else x

    def make():
        class Inner(nn.Module):
            def again(self, x, times=1):
                return Inner.again(self, -x, 0) if times else x

            def forward(self, x):
                return self.again(x) if super(Inner, self) else x
        return Inner()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = make()

        def __own(self, x):
            return x.abs()

        def forward(self, x):
            return deep(Net.__own(self, self.inner(x)), 2) if isinstance(self, Net) else x
    """
    assert names(built(tmp_path, text).Net(), x) == ["neg", "abs", "add", "add"]


def test_whatever_is_called_is_called(tmp_path, x):
    text = """
    import io, operator, types

    class Net(nn.Module):
        def forward(self, x):
            io.StringIO().write("out")
            types.SimpleNamespace(own=x).__init__()
            dict.fromkeys("ab"), "ab".join(["c"]), (lambda: 1)(), sorted([2, 1], key=lambda one: -one)
            types.FunctionType((lambda: 3).__code__, {})(), types.MethodType(len, "ab")()
            functools.lru_cache(lambda: 4)(), operator.attrgetter("shape")(x), operator.mul(2, 3)
            return functools.reduce(operator.add, [x, x])
    """
    assert names(built(tmp_path, text).Net(), x) == ["attrgetter", "reduce"]


def test_what_the_framework_wraps_around_a_function_stays_around_it(tmp_path, x):
    text = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        @torch.autocast("cpu", dtype=torch.bfloat16)
        def half(self, x):
            return self.inner(x) @ x.mT

        @torch.inference_mode()
        def forward(self, x):
            return self.half(x).float() * 2
    """
    net = built(tmp_path, text).Net()
    assert names(net, x) == ["mT", "matmul", "float", "mul"]
    assert net.half(x).dtype is torch.bfloat16


def test_what_is_raised_names_the_users_own_line(tmp_path, x):
    module = built(tmp_path, forward("y = x + 1\nreturn y.reshape(5, 5)"))
    handle = ear.listen(load("torch"), net := module.Net(), Told())
    with pytest.raises(RuntimeError, match="shape") as caught:
        net(x)
    handle.remove()
    lines = [entry.lineno for entry in caught.traceback if str(entry.path) == str(tmp_path / "net.py")]
    assert lines == [9 + HEAD.count("\n") - 6]


def test_equal_code_in_two_files_is_told_by_its_own_file(tmp_path, x):
    text = forward("return x.relu()")
    for name in ("one", "two"):
        told = heard(built(tmp_path, text, name).Net(), x)
        assert [file for _, (file, _) in told] == [str(tmp_path / f"{name}.py")]


def test_a_file_that_was_changed_after_its_import_is_not_read(tmp_path, x):
    module = built(tmp_path, forward("return x.relu()"))
    (tmp_path / "net.py").write_text(HEAD + forward("return x.tanh() + 1"), encoding="utf-8")
    assert ear.listen(load("torch"), module.Net(), Told()) is None


def test_code_without_source_is_not_heard():
    space = {"nn": torch.nn}
    exec(forward("return x.relu()"), space)
    assert ear.listen(load("torch"), space["Net"](), Told()) is None


def test_order_of_evaluation_is_kept(tmp_path, x):
    body = """
        seen = []
        def tell(name, value):
            seen.append(name)
            return value
        y = x.clone()
        tell("target", y)[tell("index", 0)] = tell("value", x[1])
        tell("target", y)[tell("index", 0)] += tell("value", 1)
        tell("left", y) + tell("right", y)
        tell("function", torch.add)(tell("first", y), *[tell("second", y)], **{"alpha": tell("third", 1)})
        self.seen = seen
        return y
    """
    net = built(tmp_path, forward(body)).Net()
    net(x)
    wanted = net.seen
    heard(net, x)
    assert net.seen == wanted


def test_a_method_that_the_user_put_on_the_net_itself_comes_back(tmp_path, x):
    net = built(tmp_path, forward("return x.relu()")).Net()
    own = net.forward = functools.partial(net.forward)
    adapter = load("torch")
    handle = ear.listen(adapter, net, Told())
    if handle is not None:
        handle.remove()
    assert net.forward is own


def test_numpy_is_heard_and_what_is_made_a_tensor_of_it(tmp_path):
    module = built(
        tmp_path,
        """
        import numpy as np

        def table(n):
            rows = np.arange(n, dtype=np.float32) + 0.5
            kept = []
            kept.append(np.repeat(rows, 2))
            return torch.from_numpy(kept[0] / n)

        class Net(nn.Module):
            def forward(self, x):
                return x * table(len(x) // 2)
        """,
    )
    wanted = ["arange", "add", "repeatinterleave", "truediv", "from_numpy", "mul"]
    assert names(module.Net(), torch.randn(6)) == wanted


def test_edited_code_that_comes_to_no_end_is_stopped(tmp_path, x, monkeypatch):
    monkeypatch.setattr(ear, "SECONDS", 0.5)
    module = built(tmp_path, forward("n = 5000\nwhile n > 0:\n    n -= 1\nreturn x + n"))
    file, net = str(tmp_path / "net.py"), module.Net()
    text = (tmp_path / "net.py").read_text(encoding="utf-8")
    for edited, ends in ((text, True), (text.replace("n > 0", "n > -1"), True), (text.replace("n > 0", "True"), False)):
        handle = ear.listen(load("torch"), net, Told(), {file: edited})
        try:
            if ends:
                net(x)
            else:
                with pytest.raises(ear.EndlessError, match=r"net\.py:\d+"):
                    net(x)
        finally:
            handle.remove()
    one = ear.Ear(load("torch"), {id(net)}, Told(), {file: text}, seconds=0.0)
    with pytest.raises(ear.EndlessError):
        one.form(net.forward)(x)
    monkeypatch.setattr(ear, "SECONDS", 0.0)
    assert "add" in names(net, x)  # code that is as it was may take as long as it likes


def test_a_function_that_keeps_what_it_returns_is_heard_once_and_keeps_it(tmp_path, x):
    module = built(
        tmp_path,
        """
        RUNS = []

        @functools.lru_cache(maxsize=4)
        def table(n):
            RUNS.append(n)
            return torch.arange(float(n))

        class Net(nn.Module):
            def forward(self, x):
                return x + table(4) + table(4) + table(4)
        """,
    )
    assert names(module.Net(), x) == ["arange", "add", "add", "add"]
    assert module.RUNS == [4, 4]  # once for the net alone, once for who listens
