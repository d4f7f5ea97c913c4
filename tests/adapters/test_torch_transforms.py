"""A capture while the net runs inside torch's transforms, traces and odd tensors: noted, and the net's numbers stay."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there
from torch.utils.checkpoint import checkpoint  # noqa: E402 - as above

from aligner import registry  # noqa: E402 - as above
from aligner.capture.session import Capture, Options  # noqa: E402 - as above
from aligner.dump.reader import Dump  # noqa: E402 - as above

if not hasattr(torch, "func"):
    pytest.skip("these runs are written for torch 2.0 and later", allow_module_level=True)

# torch warns of much that is on its way in or out, and still met.
pytestmark = pytest.mark.filterwarnings("ignore")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.act, self.last = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.last(nn.functional.dropout(self.drop(self.act(self.first(x))), 0.5, self.training))


def make():
    torch.manual_seed(0)
    return Net().eval()


def weights(net, copies=0):
    found = {name: value.detach().clone() for name, value in net.named_parameters()}
    return {name: torch.stack([value] * copies) for name, value in found.items()} if copies else found


X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def loss(net):
    return lambda x: net(x).square().sum()


def dual(net):
    with torch.autograd.forward_ad.dual_level():
        made = net(torch.autograd.forward_ad.make_dual(X, torch.ones_like(X)))
        return torch.autograd.forward_ad.unpack_dual(made).tangent


def fake(net):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        made = net(mode.from_tensor(X))
    return torch.tensor(made.shape)


def on_meta(net):
    moved = {name: value.to("meta") for name, value in weights(net).items()}
    return torch.tensor(torch.func.functional_call(net, moved, (X.to("meta"),)).shape)


def counted(net):
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        return net(X)


func = torch.func
# Where tensors have no storage of their own.
UNREADABLE = {
    "grad": lambda net: func.grad(loss(net))(X),
    "vjp": lambda net: func.vjp(net, X)[1](torch.ones(3, 2))[0],
    "jvp": lambda net: func.jvp(net, (X,), (torch.ones_like(X),))[1],
    "jacrev": lambda net: func.jacrev(net)(X),
    "jacfwd": lambda net: func.jacfwd(net)(X),
    "hessian": lambda net: func.hessian(loss(net))(X[:1]),
    "vmap": lambda net: func.vmap(net)(X),
    "vmap of grad": lambda net: func.vmap(func.grad(loss(net)))(X),
    "grad by weights": lambda net: func.grad(lambda p: func.functional_call(net, p, (X,)).sum())(weights(net))[
        "first.weight"
    ],
    "vmap over weights": lambda net: func.vmap(lambda p: func.functional_call(net, p, (X,)))(weights(net, 2)),
    "fake": fake,
    "meta": on_meta,
}
READABLE = {
    "functional_call": lambda net: func.functional_call(net, weights(net), (X,)),
    "linearize": lambda net: func.linearize(net, X)[1](torch.ones_like(X)),
    "functionalize": lambda net: func.functionalize(net)(X),
    "dual numbers": dual,
    "jacobian": lambda net: torch.autograd.functional.jacobian(net, X),
    "checkpoint": lambda net: checkpoint(net, X.clone().requires_grad_(), use_reentrant=False),
    "flops": counted,
    "compiled": lambda net: torch.compile(net, backend="eager")(X),
}
NO_RUNS = {
    "export": lambda net: torch.export.export(net, (X,)).module()(X),
    "fx": lambda net: torch.fx.symbolic_trace(net)(X),
    "make_fx": lambda net: torch.fx.experimental.proxy_tensor.make_fx(net)(X)(X),
    "trace": lambda net: torch.jit.trace(net, X)(X),
    "script": lambda net: torch.jit.script(net)(X),
}
ALL = {**UNREADABLE, **READABLE, **NO_RUNS}


@pytest.mark.parametrize("listening", [{}, {"operations": True, "follow": True}], ids=["alone", "listening"])
@pytest.mark.parametrize("name", list(ALL))
def test_the_capture_goes_on_and_the_numbers_are_the_nets(tmp_path, name, listening):
    wanted, plain = ALL[name](make()), make()(X)
    net = make()
    with Capture(registry.load("torch"), net, tmp_path / "x.h5", Options(**listening)) as capture:
        first = net(X)
        made = ALL[name](net)
        last = net(X)
    assert torch.equal(made, wanted)
    assert torch.equal(first, plain)
    assert torch.equal(last, plain)
    with Dump(tmp_path / "x.h5") as dump:
        notes = {note.message for note in dump.notes}
        steps = {entry.key.step for entry in dump.entries if entry.key.phase.value == "forward"}
    assert notes <= {"value-unreadable"}
    assert ("value-unreadable" in notes) is (name in UNREADABLE)
    assert {0, capture.steps - 1} <= steps, "the run after it is recorded as well"


@pytest.mark.parametrize("name", [name for name in ALL if name not in NO_RUNS])
def test_dropout_is_silent_in_there_too(tmp_path, name):
    wanted, net = ALL[name](make()), make().train()
    with Capture(registry.load("torch"), net, tmp_path / "x.h5", Options(silence_dropout=True)):
        net(X)
        made = ALL[name](net)
    assert torch.allclose(made.float(), wanted.float(), atol=1e-6)


class Passing(nn.Module):
    def forward(self, x):
        return x


class Hostile(torch.Tensor):
    """A wrapper that raises what it likes when its values are asked for."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if "detach" in str(function):
            raise AttributeError("nobody looks into this")
        unwrapped = [arg.inner if isinstance(arg, Hostile) else arg for arg in args]
        return Hostile(function(*unwrapped, **(kwargs or {})))


def nested(layout):
    return lambda: torch.nested.nested_tensor([X, X[:2]], layout=layout)


def freed():
    memory = X.clone()
    memory.untyped_storage().resize_(0)
    return memory


ODD = {
    "nested": nested(torch.strided),
    "jagged": nested(torch.jagged),
    "sparse": X.to_sparse,
    "csr": X.to_sparse_csr,
    "quantized": lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8),
    "hostile": lambda: Hostile(X),
    "freed": freed,
    "conjugate": lambda: torch.complex(X, X).conj(),
    "negative": lambda: torch.complex(X, X).conj().imag,
    "empty": lambda: X[:0],
    "mkldnn": X.to_mkldnn,
    "half complex": lambda: torch.complex(X, X).to(torch.complex32),
}
VALUES = {"conjugate", "negative", "empty", "mkldnn"}


class Odd(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.inner, self.kind = Passing(), kind

    def forward(self, x):
        value = self.inner(ODD[self.kind]())
        if self.kind not in ("freed", "quantized", "half complex"):
            value = self.inner(value * 2)
        return x + 1


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse CSR", "ignore:ComplexHalf")
@pytest.mark.parametrize("listening", [{}, {"operations": True, "follow": True}], ids=["alone", "listening"])
@pytest.mark.parametrize("kind", list(ODD))
def test_odd_tensors_inside_a_net_hurt_nobody(tmp_path, kind, listening):
    net = Odd(kind).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Capture(registry.load("torch"), net, tmp_path / "x.h5", Options(**listening)) as capture:
            for _ in range(2):
                assert torch.equal(net(X), X + 1)
    assert capture.steps == 2
    with Dump(tmp_path / "x.h5") as dump:
        notes = {note.message for note in dump.notes}
    assert bool(notes) is (kind not in VALUES)
    assert notes <= {"value-unreadable", "dtype-unknown"}


class Freeing(nn.Module):
    """As sharded training does: memory is given back and taken again."""

    def __init__(self):
        super().__init__()
        self.inner = Passing()

    def forward(self, x):
        kept = self.inner(x * 2)
        made = kept + 1
        size = kept.untyped_storage().nbytes()
        kept.untyped_storage().resize_(0)
        kept.untyped_storage().resize_(size)
        return torch.add(made, 1, out=self.inner(torch.empty(1)))


def test_memory_that_was_looked_at_can_be_given_back(tmp_path):
    net = Freeing().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of an `out` of another size
        with Capture(registry.load("torch"), net, tmp_path / "x.h5", Options(operations=True, follow=True)):
            assert torch.equal(net(X), X * 2 + 2)
