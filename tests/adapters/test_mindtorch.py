"""The adapter for both packages called `mindtorch`: the shipped contract, and what only they have."""

from __future__ import annotations

from contextlib import contextmanager
from importlib.util import find_spec

import numpy as np
import pytest

if find_spec("mindtorch") is None:
    pytest.skip("no mindtorch is installed", allow_module_level=True)

from aligner_hooks.mindtorch_ import make_adapter

ADAPTER = make_adapter()

import mindspore  # noqa: E402 - after the shim, which the adapter has put in
from aligner_hooks.mindtorch_.package import OPENI, package  # noqa: E402 - as above

import aligner  # noqa: E402 - as above
from aligner import registry  # noqa: E402 - as above
from aligner.dump.reader import open_dump  # noqa: E402 - as above
from aligner.errors import AdapterError  # noqa: E402 - as above
from aligner.findings import MOVED  # noqa: E402 - as above
from aligner.testing import AdapterContract, Box, Point  # noqa: E402 - as above

# Small operations one after the other: waiting for each costs less than handing it to other threads.
mindspore.set_context(pynative_synchronize=True)
torch, nn = package().torch, package().nn
F = nn.functional
IS_OPENI = package().maker == OPENI


class SGD(torch.optim.Optimizer):
    """mindnlp's own has no kernel for a CPU."""

    def __init__(self, parameters, lr, momentum):
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    def step(self, gradients):
        for group in self.param_groups:
            for parameter, gradient in zip(group["params"], gradients):
                kept = self.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))
                kept.copy_(kept * group["momentum"] + torch.tensor(gradient, device=parameter.device))
                parameter.copy_(parameter - kept * group["lr"])


class Head(nn.Module):
    def forward(self, pair, items, *, named, record, data, nothing, flag):
        y, x = pair
        return {"sum": y + x, "parts": [y, x], "pair": (y, None), "record": record, "data": data, "flag": flag}


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.shared = nn.Linear(4, 4)
        self.again = self.shared
        self.head = Head()

    def forward(self, x, *, scale=None):
        y = self.body(x)
        y = self.again(self.shared(y))
        named = {"left": x, "deep": [y, None]}
        return self.head((y, x), [y], named=named, record=Point(x, y), data=Box(x, 3), nothing=None, flag=7)


class Bad(nn.Module):
    def forward(self, x):
        raise ValueError("broken layer")


class Raising(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.bad = Bad()

    def forward(self, x):
        return self.bad(self.first(x))


class AddTwo(nn.Module):
    def forward(self, x):
        return x.add_(2)


class Inplace(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = AddTwo()

    def forward(self, x):
        y = self.first(x)
        y.add_(1)
        return self.second(y)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = [nn.Linear(4, 4), nn.Linear(4, 4)]
        self.table = {"a": nn.Linear(4, 4)}

    def forward(self, x):
        return self.table["a"](self.blocks[1](self.blocks[0](x)))


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.bn = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.bn(self.fc(x))


class Layout(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 3, 3)
        self.act = nn.PReLU()
        self.table = nn.Embedding(5, 2)

    def forward(self, x):
        return self.act(self.conv(x))


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return F.dropout(self.drop(self.fc(x)), 0.5, self.training)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        # OpenI's drops in eval mode too: test_recurrent_dropout_in_eval_mode_is_told_of.
        self.rnn = nn.LSTM(4, 4, num_layers=2, batch_first=True, dropout=0.0 if IS_OPENI else 0.5)

    def forward(self, x):
        return self.rnn(x)


class OneHead(nn.Module):
    """Attention in the user's own words, for mindnlp's MultiheadAttention does not run."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out_proj = nn.Linear(4, 12), nn.Linear(4, 4)

    def forward(self, x):
        q, k, v = (self.qkv(x)[..., i : i + 4] for i in (0, 4, 8))
        scores = torch.matmul(q, k.swapaxes(1, 2))
        return self.out_proj(torch.matmul(F.dropout(F.softmax(scores, -1), 0.5, self.training), v))


class Block(nn.Module):
    """What stands for a transformer layer where a package has none."""

    def __init__(self):
        super().__init__()
        self.self_attn = OneHead()
        self.linear1, self.linear2 = nn.Linear(4, 8), nn.Linear(8, 4)
        self.norm1, self.norm2 = nn.LayerNorm(4), nn.LayerNorm(4)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        x = self.norm1(x + self.dropout(self.self_attn(x)))
        return self.norm2(x + self.linear2(self.dropout(F.relu(self.linear1(x)))))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        if hasattr(nn, "TransformerEncoderLayer"):
            self.block = nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, dropout=0.5, batch_first=True)
        else:
            self.block = Block()

    def forward(self, x):
        return self.block(x)


MODELS = {
    "nested": Nested,
    "raising": Raising,
    "inplace": Inplace,
    "plain": Plain,
    "norm": Norm,
    "layout": Layout,
    "dropout": Dropping,
    "recurrent": Recurrent,
    "attention": Attention,
}


# Layers of mindnlp's that do not run on CPU, or not with other settings than their own.
REFUSED = (
    *("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "AvgPool1d", "MaxPool3d", "AvgPool3d", "AdaptiveAvgPool3d"),
    *("ConvTranspose3d", "ReflectionPad3d", "Bilinear", "Dropout3d", "ReLU6", "CELU", "SELU", "ELU", "Mish", "GRU"),
    *("Hardsigmoid", "Hardtanh", "Hardshrink", "Softshrink", "Softsign", "Tanhshrink", "Softmax2d", "Threshold"),
    *("LogSoftmax", "Softmin"),
)


def every_layer():
    """Layers of every class the vocabulary has a word for and this package has and runs."""
    return (layer for layer in made_layers() if IS_OPENI or type(layer).__name__ not in REFUSED)


def made_layers():
    for n in (1, 2, 3):
        yield getattr(nn, f"Conv{n}d")(2, 4, 3, padding=1)
        yield getattr(nn, f"Conv{n}d")(2, 4, 3, stride=2, padding=1, bias=False)
        yield getattr(nn, f"ConvTranspose{n}d")(2, 4, 3, stride=2)
        yield getattr(nn, f"BatchNorm{n}d")(4)
        yield getattr(nn, f"InstanceNorm{n}d")(4)
        yield getattr(nn, f"MaxPool{n}d")(2)
        yield getattr(nn, f"AvgPool{n}d")(2)
        yield getattr(nn, f"AdaptiveAvgPool{n}d")(1)
        for name in ("ConstantPad", "ReflectionPad", "ReplicationPad", "ZeroPad"):
            if hasattr(nn, f"{name}{n}d"):
                yield getattr(nn, f"{name}{n}d")(*((1, 0.5) if name == "ConstantPad" else (1,)))
    yield from (nn.Linear(2, 3), nn.Bilinear(2, 3, 4), nn.Embedding(5, 3), nn.LayerNorm(4), nn.GroupNorm(2, 4))
    yield from (nn.Dropout(), nn.Dropout2d(), nn.Dropout3d())
    for name in ("ReLU", "ReLU6", "LeakyReLU", "PReLU", "ELU", "CELU", "SELU", "GELU", "SiLU", "Mish"):
        yield getattr(nn, name)()
    for name in ("Hardswish", "Hardsigmoid", "Hardtanh", "Hardshrink", "Softshrink", "Softplus", "Softsign"):
        yield getattr(nn, name)()
    for name in ("Sigmoid", "LogSigmoid", "Tanh", "Tanhshrink", "GLU", "Softmax2d", "Flatten", "Identity"):
        yield getattr(nn, name)()
    yield from (nn.Threshold(0.1, 1), nn.Softmax(1), nn.LogSoftmax(1), nn.Softmin(1), nn.Unflatten(1, (2, 2)))
    yield from (nn.Upsample(scale_factor=2), nn.PixelShuffle(2), nn.Unfold(2))
    yield from (nn.LSTM(2, 3), nn.GRU(2, 3))
    if IS_OPENI:  # the others of mindnlp cannot be made
        yield from (nn.RNN(2, 3), nn.LSTMCell(2, 3), nn.GRUCell(2, 3), nn.RNNCell(2, 3))
    yield nn.MultiheadAttention(4, 2)
    if hasattr(nn, "TransformerEncoderLayer"):
        encoder, decoder = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.TransformerDecoderLayer(4, 2, 8)
        yield from (encoder, decoder, nn.TransformerEncoder(encoder, 1), nn.TransformerDecoder(decoder, 1))
    yield from (nn.Sequential(), nn.ModuleList(), nn.ModuleDict())


def batch_norm(
    input, running_mean=None, running_var=None, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5
):
    """What mindnlp's BatchNorm should compute: it hands its weights to its operator in the wrong order."""
    if weight is None:
        weight, bias = torch.ones(input.shape[1]), torch.zeros(input.shape[1])
    if running_mean is None:
        running_mean, running_var = torch.zeros(input.shape[1]), torch.ones(input.shape[1])
    return F.execute("batch_norm", input, weight, bias, running_mean, running_var, training, momentum, eps)[0]


class TestMindTorchContract(AdapterContract):
    @pytest.fixture(autouse=True)
    def without_the_bug_of_mindnlp(self, monkeypatch):
        if not IS_OPENI:
            monkeypatch.setattr(F, "batch_norm", batch_norm)

    dtypes = (
        *("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64", "bool", "complex64", "complex128"),
    )

    runs_in_threads = False  # MindSpore ends the process

    def make_adapter(self):
        return ADAPTER

    def make_net(self, name):
        return MODELS[name]()

    def gradients(self, net, x):
        weights = [parameter for parameter in net.parameters() if parameter.requires_grad]
        backward = mindspore.value_and_grad(lambda x: net(x).sum(), 0, weights)
        of_x, of_weights = backward(x)[1]
        return [of_x, *of_weights]

    updates_run = IS_OPENI

    def training(self, net):
        weights = [parameter for parameter in net.parameters() if parameter.requires_grad]
        optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9) if IS_OPENI else SGD(weights, 0.1, 0.9)
        run = mindspore.value_and_grad(lambda x: net(x).sum(), None, weights)
        return optimizer, lambda x: optimizer.step(run(x)[1])

    def spec_layers(self):
        return every_layer()

    def transposed(self, tensor):
        return tensor.t()

    def add_in_place(self, tensor, amount):
        tensor.add_(amount)

    @pytest.mark.skipif(not IS_OPENI, reason="mindnlp's dropout asks for random numbers that no seed repeats")
    def test_a_seed_repeats_the_random_numbers(self, adapter):
        super().test_a_seed_repeats_the_random_numbers(adapter)

    @pytest.mark.parametrize("name", ["dropout", "attention", *([] if IS_OPENI else ["recurrent"])])
    def test_dropout_is_silenced_in_train_mode_and_comes_back(self, adapter, name):
        super().test_dropout_is_silenced_in_train_mode_and_comes_back(adapter, name)


def test_it_is_told_which_of_the_two_is_here():
    net = nn.Linear(2, 2)
    facts = ADAPTER.environment(net)
    assert facts["mindtorch"] == package().maker
    assert ADAPTER.version().endswith("(mindnlp)") is not IS_OPENI
    assert ADAPTER.type_name(net) == f"{package().home}.Linear"
    assert registry.of(net).name == "mindtorch"
    assert not any(registry.load(name).is_model(net) for name in loadable() - {"mindtorch"})


def loadable():
    """The frameworks that are usable here; torch is not where mindnlp stands in its place."""
    found = set()
    for name in registry.available():
        try:
            registry.load(name)
        except AdapterError as error:
            assert error.message in ("torch-imitated", "adapter-broken")  # noqa: PT017 - any of the two
        else:
            found.add(name)
    return found


def test_what_its_own_hooks_are_refused_for_is_seen():
    """Keyword arguments, and a layer that another hook has replaced the output of."""
    told = []
    layer = nn.Linear(2, 2)
    own = layer.register_forward_hook(lambda module, inputs, output: output * 2)
    handle = ADAPTER.observe(layer, lambda args, kwargs: told.append(sorted(kwargs)), lambda a, k, o: told.append(o))
    try:
        output = layer(input=x_of([[1.0, 2.0]]))
    finally:
        handle.remove()
        own.remove()
    assert told[0] == ["input"]
    assert np.array_equal(ADAPTER.to_numpy(told[1]), ADAPTER.to_numpy(output))


def x_of(values):
    return ADAPTER.from_numpy(np.array(values, np.float32), "float32")


@contextmanager
def told_of(net):
    """What is told of each layer of the net while it runs: path, what goes in, what comes out."""
    told = []

    def values(*nested):
        for value in nested:
            if isinstance(value, tuple):
                yield from values(*value)
            elif ADAPTER.is_tensor(value):
                yield ADAPTER.to_numpy(value).copy()

    handles = [
        ADAPTER.observe(
            layer,
            lambda args, kwargs, path=path: told.append((path, list(values(*args, *kwargs.values())))),
            lambda args, kwargs, output, path=path: told.append((path, list(values(output)))),
        )
        for path, layer in ADAPTER.layers(net)
    ]
    try:
        yield told
    finally:
        for handle in handles:
            handle.remove()


@pytest.fixture
def graph_mode():
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    yield
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)


def decorated(net):
    @mindspore.jit
    def compiled(x):
        return net(x)

    return compiled


@pytest.mark.skipif(not IS_OPENI, reason="mindnlp's runs layer by layer in GRAPH_MODE too, and cannot be compiled")
@pytest.mark.parametrize("jit", [False, True], ids=["GRAPH_MODE", "jit"])
def test_layers_in_a_compiled_graph_tell_what_they_tell_eagerly(jit, request):
    net, x = Attention().eval(), x_of(np.random.default_rng(0).standard_normal((1, 3, 4)))
    with told_of(net) as wanted:
        output = ADAPTER.to_numpy(net(x))
    roots = []
    watcher = ADAPTER.watch_roots(roots.append)
    if not jit:
        request.getfixturevalue("graph_mode")
    with told_of(net) as told:
        compiled = ADAPTER.to_numpy((decorated(net) if jit else net)(x))
    watcher.remove()
    assert roots == [net]
    assert [path for path, _ in told] == [path for path, _ in wanted]
    for (path, ours), (_, theirs) in zip(told, wanted):
        assert all(np.allclose(one, other, rtol=0, atol=1e-6) for one, other in zip(ours, theirs)), path
        assert len(ours) == len(theirs) > 0, path  # on some processors the order of sums depends on where values lie
    assert np.allclose(compiled, output, rtol=0, atol=1e-6)


@pytest.mark.skipif(not IS_OPENI, reason="mindnlp's cannot be compiled")
def test_a_compiled_function_reads_what_was_loaded_behind_its_back():
    """It keeps to the memory that a parameter had when it was compiled; a forced pass puts statistics back."""
    net, x = Norm().eval(), x_of([[1.0, 2.0, 3.0, 4.0]])
    compiled = decorated(net)
    before = ADAPTER.to_numpy(compiled(x)).copy()
    own = [(parameter, np.array(ADAPTER.read(parameter))) for parameter in ADAPTER.parameters(net)]
    for parameter, values in own:
        ADAPTER.load(parameter, values, parameter.dtype)
    kept = [mindspore.Tensor(np.full(4, 7e8, np.float32)) + 1 for _ in range(50)]  # where a freed one was
    assert np.array_equal(ADAPTER.to_numpy(compiled(x)), before)
    (mean,) = [parameter for parameter, _ in own if parameter.role == "running_mean"]
    ADAPTER.load(mean, np.array([1, 2, 3, 4], np.float32), "float32")
    assert np.array_equal(ADAPTER.to_numpy(compiled(x)), ADAPTER.to_numpy(net(x)))
    assert not np.array_equal(ADAPTER.to_numpy(compiled(x)), before)
    assert len(kept) == 50


def test_weights_are_read_where_they_lie():
    """To look whether they have moved, they are read before each call: a copy of all took a third of a forward."""
    layer = nn.Linear(64, 64)
    (weight,) = [parameter for parameter in ADAPTER.parameters(layer) if parameter.role == "weight"]
    before = ADAPTER.read(weight).copy()
    assert np.shares_memory(ADAPTER.read(weight), ADAPTER.read(weight))
    ADAPTER.load(weight, before + 1, weight.dtype)
    assert np.array_equal(ADAPTER.read(weight), before + 1)


@pytest.mark.skipif(not IS_OPENI, reason="mindnlp's cannot be compiled")
@pytest.mark.parametrize("jit", [False, True], ids=["call", "jit"])
@pytest.mark.parametrize("mode", ["pynative", "graph"])
def test_weights_that_move_are_told_from_statistics_that_a_compiled_run_writes(mode, jit, request, tmp_path):
    """In GRAPH_MODE a compiled function tells of its layers on a thread of MindSpore's first, then on its caller's."""
    if mode == "graph":
        request.getfixturevalue("graph_mode")
    net, x = Norm().train(), x_of(np.random.default_rng(0).standard_normal((3, 4)))
    call = decorated(net) if jit else net
    with aligner.capture(net, tmp_path / "x.h5"):
        for _ in range(4):
            call(x)
        weight = next(parameter for parameter in ADAPTER.parameters(net) if parameter.layer == "fc")
        ADAPTER.load(weight, ADAPTER.read(weight) + 1, weight.dtype)
        call(x)
    with open_dump(tmp_path / "x.h5") as dump:
        found = [(facts["step"], facts["layers"]) for kind, facts in dump.findings if kind == MOVED]
    assert found == [(4, ["fc"])]


@pytest.mark.skipif(not IS_OPENI, reason="mindnlp's runs layer by layer in GRAPH_MODE too")
def test_a_run_of_ours_is_eager_where_the_program_is_in_graph_mode(graph_mode):
    layer, x = nn.Linear(2, 2), x_of([[1.0, 2.0]])
    handle = ADAPTER.intervene(layer, lambda args, kwargs: (args, kwargs), lambda args, kwargs, output: output * 2)
    try:
        with ADAPTER.running(layer):
            doubled = ADAPTER.to_numpy(layer(x))
        with pytest.raises(AdapterError) as error:  # what is compiled cannot be given other values
            layer(x)
    finally:
        handle.remove()
    assert error.value.message == "mindspore-graph-intervene"
    assert mindspore.get_context("mode") == mindspore.GRAPH_MODE
    assert np.allclose(doubled, 2 * ADAPTER.to_numpy(layer(x)))


@pytest.mark.skipif(IS_OPENI, reason="OpenI's can be compiled")
def test_what_cannot_be_compiled_is_refused():
    with pytest.raises(AdapterError) as error, ADAPTER.running(nn.Linear(2, 2), "graph"):
        pass
    assert error.value.message == "mindtorch-no-graph-mode"


@pytest.mark.skipif(IS_OPENI, reason="OpenI's autocast does nothing")
def test_the_autocast_of_mindnlp_is_told_of():
    net, said, told = Norm().eval(), [], []
    net.bn = nn.LayerNorm(4)
    handle = ADAPTER.computations(lambda word, dtype: told.append((word, dtype)))
    observers = [
        ADAPTER.observe(layer, lambda *_, layer=layer: said.append(ADAPTER.precision(net, layer)), lambda *_: None)
        for _, layer in ADAPTER.layers(net)
    ]
    with torch.autocast("cpu", dtype=torch.float16):
        net(x_of([[1.0, 2.0, 3.0, 4.0]]))
    for one in (handle, *observers):
        one.remove()
    assert said == [None, ("float16", "autocast"), None]
    assert [dtype for _, dtype in told] == ["float16", "float32"]


@pytest.mark.skipif(not IS_OPENI, reason="mindnlp's modules are no cells")
def test_casts_are_taken_back_and_copies_go_on_casting():
    net, x = Plain().eval(), x_of([[1.0, 2.0, 3.0, 4.0]])
    first = net.blocks[0]
    first.to_float(mindspore.float16)
    assert ADAPTER.precision(net, first) == ("float16", "to_float")
    assert ADAPTER.environment(net)["amp"] == "to_float"
    copy = ADAPTER.respecified(first, {})
    assert ADAPTER.precision(copy, copy) == ("float16", "to_float")
    assert ADAPTER.dtype(copy(x)) == "float16"
    wide = ADAPTER.respecified(first, {}, "float32")
    assert ADAPTER.precision(wide, wide) is None
    assert ADAPTER.dtype(wide(x)) == "float32"
    assert not {"fp16", "fp32", "bf16"} & set(ADAPTER.spec(net).attributes)
    recurrent = nn.LSTM(4, 4).to_float(mindspore.float16)  # with a cell of MindSpore's inside it
    layers = (recurrent, *(ADAPTER.respecified(recurrent, {}, dtype) for dtype in (None, "float32")))
    own, same, wide = (ADAPTER.to_numpy(layer(x[None])[0]) for layer in layers)
    assert np.array_equal(own, same)
    assert not np.array_equal(own, wide)


@pytest.mark.skipif(not IS_OPENI, reason="mindnlp's turns it off")
def test_recurrent_dropout_in_eval_mode_is_told_of():
    net = nn.LSTM(4, 4, num_layers=2, dropout=0.5).eval()
    (note,) = [note for note in ADAPTER.cautions(net) if note.message == "mindtorch-recurrent-dropout"]
    assert note.facts["p"] == 0.5
    x = x_of(np.ones((5, 2, 4)))
    assert not np.array_equal(ADAPTER.to_numpy(net(x)[0]), ADAPTER.to_numpy(net(x)[0])), (
        "it is mended: drop the caution"
    )
    handle = ADAPTER.silence_dropout(net)
    try:
        assert np.array_equal(ADAPTER.to_numpy(net(x)[0]), ADAPTER.to_numpy(net(x)[0]))
    finally:
        handle.remove()
    quiet = [nn.LSTM(4, 4, num_layers=2), nn.LSTM(4, 4)]
    assert not [note for net in quiet for note in ADAPTER.cautions(net) if note.message.endswith("recurrent-dropout")]


@pytest.mark.skipif(not IS_OPENI, reason="OpenI's keeps statistics among the parameters")
def test_what_torch_does_not_have_is_left_out():
    assert [p.role for p in ADAPTER.parameters(nn.BatchNorm2d(3, affine=False))] == [
        *("running_mean", "running_var", "num_batches_tracked")
    ]
    assert [p.role for p in ADAPTER.parameters(nn.BatchNorm2d(3, track_running_stats=False))] == ["weight", "bias"]
    roles = {p.role: p.buffer for p in ADAPTER.parameters(nn.BatchNorm2d(3))}
    assert [role for role, buffer in roles.items() if not buffer] == ["weight", "bias"]


def test_the_doctor_says_what_is_here():
    findings = {finding.message: finding for finding in ADAPTER.doctor()}
    assert findings["mindtorch-found"].facts["maker"] == package().maker
    assert findings["mindtorch-observed"].good
    assert ("mindtorch-batch-norm" in findings) is not IS_OPENI
    assert ("mindtorch-shim-put-in" in findings) is IS_OPENI
