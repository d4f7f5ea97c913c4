"""The torch adapter on the ways people really run nets: compiled, scripted, cast, checkpointed, copied, saved."""

from __future__ import annotations

import copy
import io
import os
import threading
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from aligner_hooks.torch_ import TorchAdapter  # noqa: E402 - as above
from torch import nn  # noqa: E402 - only after it is known to be there
from torch.utils.checkpoint import checkpoint  # noqa: E402 - as above

from aligner.testing import Recorder  # noqa: E402 - as above
from aligner.testing.supplies import equal_bits  # noqa: E402 - as above

if not hasattr(getattr(torch, "compiler", None), "set_stance"):
    pytest.skip("these runs are written for torch 2.6 and later", allow_module_level=True)

# TorchScript is on its way out of torch, and still met.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

LINE = [("before", ""), ("before", "0"), ("after", "0"), ("before", "1"), ("after", "1"), ("after", "")]


@pytest.fixture
def adapter():
    return TorchAdapter()


@pytest.fixture(autouse=True)
def torch_is_left_as_it_was():
    call, compile_ = vars(nn.Module)["__call__"], getattr(torch, "compile", None)
    switch = getattr(torch.backends, "mha", None)
    fused = switch and switch.get_fastpath_enabled()
    yield
    assert vars(nn.Module)["__call__"] is call
    assert getattr(torch, "compile", None) is compile_
    assert fused == (switch and switch.get_fastpath_enabled())


@pytest.fixture
def line():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()


@pytest.fixture
def x():
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def test_nothing_is_added_to_the_modules(adapter, line):
    before = {path: {name: copy.copy(value) for name, value in vars(m).items()} for path, m in line.named_modules()}
    with Recorder(adapter).attach(line):
        for path, module in line.named_modules():
            assert vars(module) == before[path]


def test_the_call_is_put_back_whoever_goes_first(adapter, line):
    call = vars(nn.Module)["__call__"]
    watcher = adapter.watch_roots(lambda model: None)
    observer = adapter.observe(line, lambda *_: None, lambda *_: None)
    assert vars(nn.Module)["__call__"] is not call
    watcher.remove()
    assert vars(nn.Module)["__call__"] is not call
    observer.remove()
    assert vars(nn.Module)["__call__"] is call


def test_somebody_elses_wrapper_around_ours_survives_and_works(adapter, line, x):
    original = vars(nn.Module)["__call__"]
    calls = []
    recorder = Recorder(adapter).attach(line)
    ours = vars(nn.Module)["__call__"]

    def theirs(self, *args, **kwargs):
        calls.append(self)
        return ours(self, *args, **kwargs)

    nn.Module.__call__ = theirs
    try:
        recorder.detach()
        assert vars(nn.Module)["__call__"] is theirs
        line(x)
        assert len(calls) == 3
        assert recorder.events == []
    finally:
        nn.Module.__call__ = original


def test_copies_are_not_taken_for_the_net_and_saving_works(adapter, line, x):
    with Recorder(adapter).attach(line) as recorder:
        copy.deepcopy(line)(x)
        buffer = io.BytesIO()
        torch.save(line, buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=False)(x)
        torch.jit.script(line)
    assert recorder.events == []


def test_the_users_own_hooks_stand_between(adapter, line, x):
    line[0].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    line[0].register_forward_hook(lambda module, args, output: output * 2)
    with Recorder(adapter).attach(line) as recorder:
        line(x)
    with torch.no_grad():
        handed_on = nn.functional.linear(x + 1, line[0].weight, line[0].bias) * 2
    assert np.array_equal(recorder.only("before", "0").values["input.0"], x.numpy())
    assert np.array_equal(recorder.only("after", "0").values["output.0"], handed_on.numpy())


def test_an_observer_removed_inside_the_run_is_told_no_more(adapter, line, x):
    told = []
    handle = adapter.observe(line[0], lambda *_: handle.remove(), lambda *_: told.append(1))
    line(x)
    assert told == []


@pytest.mark.parametrize("first", ["compiled first", "observed first"])
def test_a_compiled_net_is_seen_layer_by_layer(adapter, line, x, first):
    def backend(graph, inputs):
        compilations.append(graph)
        return graph.forward

    compilations = []
    compiled = torch.compile(line, backend=backend)
    if first == "compiled first":
        compiled(x)
    already = len(compilations)
    roots = []
    watcher = adapter.watch_roots(roots.append)
    try:
        with Recorder(adapter).attach(compiled) as recorder:
            out = compiled(x)
    finally:
        watcher.remove()
    assert recorder.places == LINE
    assert roots == [compiled]
    assert np.array_equal(out.detach().numpy(), line(x).detach().numpy())
    assert len(compilations) == already
    assert [note.message for note in adapter.cautions(compiled)] == ["torch-compiled"]
    assert [path for path, _ in adapter.layers(compiled)] == ["", "0", "1"]
    assert [p.name for p in adapter.parameters(compiled)] == ["_orig_mod.0.weight", "_orig_mod.0.bias"]
    assert adapter.type_name(compiled) == "torch.nn.Sequential"
    torch.compiler.reset()
    torch.compile(line, backend=backend)(x)
    assert len(compilations) == already + 1, "compiling must work again afterwards"


def test_a_net_compiled_in_place_is_seen(adapter, line, x):
    line.compile(backend="eager")
    line(x)
    with Recorder(adapter).attach(line) as recorder:
        line(x)
    assert recorder.places == LINE


def test_compiling_while_roots_are_watched_stands_aside(adapter, line, x):
    roots = []
    watcher = adapter.watch_roots(roots.append)
    try:
        whole = torch.compile(lambda value: line(value) * 2, backend="eager", fullgraph=True)
        whole(x)
    finally:
        watcher.remove()
    assert roots == [line]


@pytest.mark.parametrize("make", ["script", "trace"])
def test_a_scripted_net_is_seen_from_outside_and_told_of(adapter, line, x, make):
    scripted = torch.jit.script(line) if make == "script" else torch.jit.trace(line, x)
    with Recorder(adapter).attach(scripted) as recorder:
        out = scripted(x)
    assert recorder.places == [("before", ""), ("after", "")]
    assert np.array_equal(recorder.events[1].values["output.0"], out.detach().numpy())
    assert "torch-scripted" in [note.message for note in adapter.cautions(scripted)]
    assert adapter.spec(scripted).kind == "ScriptModule"
    assert [p.name for p in adapter.parameters(scripted)] == ["0.weight", "0.bias"]


def test_tracing_and_exporting_are_no_runs(adapter, line, x):
    roots = []
    watcher = adapter.watch_roots(roots.append)
    try:
        with Recorder(adapter).attach(line) as recorder:
            traced = torch.jit.trace(line, x, check_trace=False)
            torch.fx.symbolic_trace(line)
            torch.export.export(line, (x,))
    finally:
        watcher.remove()
    assert recorder.events == []
    assert roots == []
    assert "detach" not in str(traced.graph)


def test_functional_calls_and_inference_mode_are_runs(adapter, line, x):
    weights = {name: torch.zeros_like(value) for name, value in line.state_dict().items()}
    with Recorder(adapter).attach(line) as recorder:
        torch.func.functional_call(line, weights, (x,))
        with torch.inference_mode():
            out = line(x)
    assert recorder.places == LINE * 2
    assert not recorder.events[5].values["output.0"].any()
    assert np.array_equal(recorder.events[11].values["output.0"], out.numpy())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_autocast_is_seen_as_it_computes(adapter, line, x, dtype):
    def run():
        with torch.autocast("cpu", dtype=getattr(torch, dtype)):
            return line(x)

    wanted = run()
    with Recorder(adapter).attach(line) as recorder:
        out = run()
    assert adapter.dtype(out) == dtype
    assert torch.equal(out, wanted)
    assert equal_bits(recorder.only("after", "").values["output.0"], adapter.to_numpy(out))
    assert recorder.only("before", "0").values["input.0"].dtype == np.float32


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.a, self.b, self.reentrant = nn.Linear(4, 4), nn.Linear(4, 4), reentrant

    def forward(self, x):
        return self.b(checkpoint(self.a, x, use_reentrant=self.reentrant))


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputing_in_a_backward_pass_is_no_run(adapter, x, reentrant):
    net = Checkpointed(reentrant)
    roots = []
    watcher = adapter.watch_roots(roots.append)
    try:
        with Recorder(adapter).attach(net) as recorder:
            net(x.requires_grad_()).sum().backward()
    finally:
        watcher.remove()
    assert [path for when, path in recorder.places if when == "after"] == ["a", "b", ""]
    assert roots == [net]


def test_looking_on_does_not_change_a_fused_run(adapter):
    net = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        fused = net(x)
        with Recorder(adapter).attach(net) as recorder:
            observed = net(x)
    assert torch.equal(observed, fused)
    assert recorder.places == [("before", ""), ("after", "")]
    assert [note.message for note in adapter.cautions(net)] == ["torch-fused-attention"]


def test_an_encoder_with_padding_runs_unfused_and_unpacked_where_the_run_is_ours(adapter):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    net = nn.TransformerEncoder(layer, 2).eval()
    x, padding = torch.randn(2, 5, 8), torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 1]]).bool()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own nested tensors
        fused = net(x, src_key_padding_mask=padding)
    unfused = net(x, src_key_padding_mask=padding).detach()  # with gradients nothing is fused
    with adapter.running(net), Recorder(adapter).attach(net) as recorder:
        assert list(adapter.cautions(net)) == []
        observed = net(x, src_key_padding_mask=padding)
    assert torch.equal(observed, unfused)
    assert torch.allclose(observed[~padding], fused[~padding], atol=1e-5)
    assert ("after", "layers.1.linear2") in recorder.places


def test_weight_norm_belongs_to_its_layer(adapter, x):
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.ReLU())
    roots = []
    watcher = adapter.watch_roots(roots.append)
    try:
        _ = net[0].weight
        with Recorder(adapter).attach(net) as recorder:
            net(x)
    finally:
        watcher.remove()
    assert roots == [net]
    assert recorder.places == LINE
    roles = [p.role for p in adapter.parameters(net)]
    assert roles == ["bias", "parametrizations.weight.original0", "parametrizations.weight.original1"]
    assert adapter.spec(net[0]).kind == "Linear"


def test_data_parallel_has_the_paths_of_the_net_inside(adapter, line, x):
    net = nn.DataParallel(line)
    with Recorder(adapter).attach(net) as recorder:
        net(x)
    assert recorder.places == LINE
    assert [(p.layer, p.role, p.name) for p in adapter.parameters(net)] == [
        ("0", "weight", "module.0.weight"),
        ("0", "bias", "module.0.bias"),
    ]


def test_a_layer_called_module_keeps_its_name(adapter, line):
    net = nn.Module()
    net.module = line
    assert [path for path, _ in adapter.layers(net)] == ["", "module", "module.0", "module.1"]


def test_layers_hidden_in_plain_attributes(adapter):
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.known = nn.Linear(1, 1)
            self.several = [self.known, {"deep": (nn.Linear(1, 1), 3)}, "text", self]
            self.shapes = [[1, 2], [3, 4]]
            self.scales = [nn.Parameter(torch.ones(2))]

    net = Hidden()
    net.__dict__["aside"] = nn.Linear(1, 1)
    assert [path for path, _ in adapter.layers(net)] == ["", "known", "several.1.deep.0", "aside"]
    assert ("", "scales.0") in [(p.layer, p.role) for p in adapter.parameters(net)]
    told = {(note.layer, note.message) for note in adapter.cautions(net)}
    assert told == {
        ("several.1.deep.0", "torch-plain-container"),
        ("aside", "torch-plain-container"),
        ("", "torch-plain-parameter"),
    }


def test_tied_and_listed_parameters_stand_once_under_their_owner(adapter):
    net = nn.Module()
    net.embed, net.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
    net.head.weight = net.embed.weight
    net.extra = nn.ParameterList([nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(2))])
    net.register_buffer("mask", torch.ones(2), persistent=False)
    assert [(p.layer, p.role, p.trainable) for p in adapter.parameters(net)] == [
        ("", "mask", False),
        ("embed", "weight", True),
        ("extra", "0", True),
        ("extra", "1", True),
    ]


def test_a_lazy_layer_is_told_of_until_it_has_run(adapter, x):
    net = nn.Sequential(nn.LazyLinear(2))
    assert list(adapter.parameters(net)) == []
    assert [note.message for note in adapter.cautions(net)] == ["torch-lazy"]
    with Recorder(adapter).attach(net) as recorder:
        net(x)
    assert len(recorder.events) == 4
    assert [p.role for p in adapter.parameters(net)] == ["weight", "bias"]
    assert dict(adapter.spec(net[0]).attributes)["in_features"] == 4


@pytest.mark.parametrize("inference", [False, True])
def test_loading_respects_frozen_and_inference_parameters(adapter, inference):
    with torch.inference_mode(inference):
        layer = nn.Linear(2, 2).to(torch.bfloat16).requires_grad_(False)
    weight = next(iter(adapter.parameters(layer)))
    adapter.load(weight, np.full((2, 2), 1.5, np.float64), "float64")
    assert weight.dtype == "bfloat16"
    assert not weight.trainable
    assert (adapter.read(weight) == 0x3FC0).all()


def test_subclasses_views_and_lazy_bits_are_read(adapter):
    class Contrary(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            raise RuntimeError(f"no {func.__name__}")

    values = torch.arange(6.0).reshape(2, 3)
    assert np.array_equal(adapter.to_numpy(values.as_subclass(Contrary)), values.numpy())
    grad = values.clone().requires_grad_()
    assert np.array_equal(adapter.to_numpy(grad * 2), 2 * values.numpy())
    assert np.array_equal(adapter.to_numpy(values.expand(2, 2, 3)), np.broadcast_to(values.numpy(), (2, 2, 3)))
    z = torch.tensor([1 + 2j, 3 - 4j])
    assert np.array_equal(adapter.to_numpy(z.conj()), z.numpy().conj())
    assert np.array_equal(adapter.to_numpy(z.conj().imag), -z.numpy().imag)
    shared = adapter.to_numpy(values)
    values[0, 0] = 7
    assert shared[0, 0] == 7, "no copy is made where none is needed"


def test_a_tensor_whose_memory_was_given_back_says_so(adapter):
    tensor = torch.ones(3)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="given back"):
        adapter.to_numpy(tensor)


def test_transforms_say_why_values_cannot_be_read(adapter, x):
    told = []

    def read(value):
        with pytest.raises(ValueError, match="torch cannot show") as error:
            adapter.to_numpy(value)
        told.append(str(error.value))
        return value.sum()

    torch.func.vmap(read)(x)
    torch.func.grad(read)(x)
    assert len(told) == 2


class Dropper(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 4, 2, dropout=0.5)
        self.rnn = nn.RNN(4, 4, 2, dropout=0.5)
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.5)
        self.alpha, self.channel = nn.AlphaDropout(0.5), nn.Dropout1d(0.5)
        self.path = DropPath()

    def forward(self, x):
        packed = nn.utils.rnn.pack_padded_sequence(x, [5, 4, 3])
        y = nn.utils.rnn.pad_packed_sequence(self.rnn(self.lstm(packed)[0])[0])[0]
        y = self.attention(y, y, y)[0] + self.attention(y, y, y, need_weights=False)[0]
        y = nn.functional.scaled_dot_product_attention(y, y, y, dropout_p=0.5 if self.training else 0.0)
        return self.path(self.channel(self.alpha(imported_dropout(y, 0.5, self.training))))


class DropPath(nn.Module):
    def forward(self, x):
        return x * torch.bernoulli(torch.full(x.shape[:1], 0.5))[:, None, None] if self.training else x


imported_dropout = nn.functional.dropout


def test_dropout_is_silenced_everywhere_also_when_the_script_calls_train(adapter):
    net, x = Dropper().train(), torch.randn(5, 3, 4)
    specs = [adapter.spec(layer) for _, layer in adapter.layers(net)]
    handle = adapter.silence_dropout(net)
    try:
        first = net(x)
        assert [adapter.spec(layer) for _, layer in adapter.layers(net)] == specs
        assert net.alpha.training
        assert not net.path.training
        assert torch.equal(first, net(x))
        net.lstm.train()
        assert torch.equal(first, net(x))
    finally:
        handle.remove()
    assert net.path.training
    assert not torch.equal(net(x), net(x))
    assert torch.allclose(first, net.eval()(x), atol=1e-6)


def test_two_silences_may_end_in_any_order(adapter, x):
    original, net = torch._VF.dropout, nn.Dropout().train()
    one, two = adapter.silence_dropout(net), adapter.silence_dropout(net)
    one.remove()
    assert torch.equal(net(x), x)
    two.remove()
    assert torch._VF.dropout is original
    assert not torch.equal(net(x), x)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_tells_nobody(adapter, line, x):
    roots = []
    watcher = adapter.watch_roots(roots.append)
    reading, writing = os.pipe()
    try:
        with Recorder(adapter).attach(line) as recorder:
            child = os.fork()
            if child == 0:  # what a worker that loads data does with a transform that is a module
                told = nn.Identity()(1) != 1 or roots or recorder.events
                os.write(writing, b"told" if told else b"quiet")
                os._exit(0)
            os.waitpid(child, 0)
            assert os.read(reading, 10) == b"quiet"
            line(x)
    finally:
        watcher.remove()
        os.close(reading)
        os.close(writing)
    assert recorder.places == LINE
    assert roots == [line]


def test_threads_are_told_apart(adapter):
    nets = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(4)]
    roots = []
    watcher = adapter.watch_roots(roots.append)
    try:
        threads = [threading.Thread(target=lambda net=net: [net(torch.ones(1, 4)) for _ in range(50)]) for net in nets]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        watcher.remove()
    assert len(roots) == 200
    assert all(root in nets for root in roots)


def test_a_device_that_is_not_here_says_why(adapter):
    from aligner.errors import AdapterError

    for name in ("gpu", "ascend"):
        if name == "gpu" and torch.cuda.is_available():
            continue
        with pytest.raises(AdapterError, match=name) as error:
            adapter.device(name)
        assert error.value.message == "torch-device-absent"


def test_the_environment_is_that_of_the_net(adapter, line):
    facts = adapter.environment(line)
    assert (facts["device"], facts["mode"], facts["default_dtype"]) == ("cpu", "pynative", "float32")
    assert adapter.environment(nn.ReLU())["device"] == "cpu"
    assert all(finding.good for finding in adapter.doctor())


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.BatchNorm2d(8)
        self.act, self.pool, self.fc = nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Linear(8, 5)

    def forward(self, x):
        y = self.act(self.bn1(self.conv1(x)))
        y = self.act(self.bn2(self.conv2(y)) + y)
        return self.fc(torch.flatten(self.pool(y), 1))


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(6, 8)
        self.net = nn.Transformer(8, 2, 1, 1, 16, dropout=0.1, batch_first=True)
        self.rnn = nn.GRU(8, 5, bidirectional=True, batch_first=True)

    def forward(self, x):
        y = self.embed(x)
        causal = nn.Transformer.generate_square_subsequent_mask(y.shape[1])
        return self.rnn(self.net(y, y, tgt_mask=causal, tgt_is_causal=True))[0]


REAL = {"residual": (Residual, (4, 3, 8, 8)), "translator": (Translator, (3, 7, 6))}


@pytest.mark.parametrize("name", sorted(REAL))
def test_three_steps_of_training_are_bit_identical_with_and_without(adapter, name):
    make, shape = REAL[name]

    def train(observed):
        torch.manual_seed(0)
        net = make().train()
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        recorder = Recorder(adapter)
        if observed:
            recorder.attach(net)
        with recorder:
            for _ in range(3):
                optimizer.zero_grad()
                loss = net(torch.randn(shape)).square().mean()
                loss.backward()
                optimizer.step()
        assert bool(recorder.events) == observed
        return [loss.detach(), *net.state_dict().values(), *(p.grad for p in net.parameters())]

    without, observed = train(False), train(True)
    assert len(without) > 10
    assert all(torch.equal(one, other) for one, other in zip(without, observed))


@pytest.mark.parametrize("name", sorted(REAL))
def test_every_layer_that_runs_is_seen_in_eval_mode(adapter, name):
    make, shape = REAL[name]
    net = make().eval()
    ran = set()
    handles = [m.register_forward_hook(lambda m, a, o, path=path: ran.add(path)) for path, m in net.named_modules()]
    with Recorder(adapter).attach(net) as recorder, torch.no_grad():
        net(torch.randn(shape))
    for handle in handles:
        handle.remove()
    assert {path for _, path in recorder.places} == ran
    assert len(ran) > 6


def test_a_plain_list_of_registered_parameters_is_no_news(adapter):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.refs = []
            self.lstm, self.fc = nn.LSTM(3, 4), nn.Linear(4, 2)
            self.refs.append(self.fc.weight)

    net = Net()
    assert list(adapter.cautions(net)) == []
    assert ("fc", "weight") in {(p.layer, p.role) for p in adapter.parameters(net)}
    assert not any(p.role.startswith(("refs", "_flat")) for p in adapter.parameters(net))


def test_the_conv1d_of_transformers_is_a_linear(adapter):
    """GPT-2 keeps the weights of its linear layers transposed; a port has them as everybody else."""
    conv1d = type("Conv1D", (nn.Module,), {"__module__": "transformers.pytorch_utils"})
    layer = conv1d()
    layer.weight, layer.bias = nn.Parameter(torch.arange(6.0).reshape(2, 3)), nn.Parameter(torch.zeros(3))
    assert adapter.spec(layer) == adapter.spec(nn.Linear(2, 3))
    weight = next(p for p in adapter.parameters(layer) if p.role == "weight")
    assert (weight.shape, weight.trainable) == ((3, 2), True)
    assert adapter.read(weight).tolist() == [[0, 3], [1, 4], [2, 5]]
    adapter.load(weight, np.array([[1, 2], [3, 4], [5, 6]], np.float32), "float32")
    assert layer.weight.tolist() == [[1, 3, 5], [2, 4, 6]]


def test_buffers_are_told_from_parameters(adapter):
    net = nn.BatchNorm1d(2)
    net.register_buffer("table", torch.ones(3), persistent=False)
    assert {p.role for p in adapter.parameters(net) if p.buffer} == {
        "running_mean",
        "running_var",
        "num_batches_tracked",
        "table",
    }
