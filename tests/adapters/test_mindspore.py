"""The MindSpore adapter: the contract suite, and what is MindSpore's own."""

from __future__ import annotations

import copy
import os
import runpy
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")

from aligner_hooks.mindspore_ import MindSporeAdapter, operations  # noqa: E402 - only where MindSpore is installed
from aligner_hooks.mindspore_.tensors import types  # noqa: E402 - likewise
from aligner_hooks.mindsporelike.modes import held  # noqa: E402 - likewise
from mindspore import Parameter, Tensor, nn, ops  # noqa: E402 - likewise
from mindspore.ops import dropout as imported_dropout  # noqa: E402 - likewise

from aligner.adapter import Adapter  # noqa: E402 - stands with the imports it belongs to
from aligner.dtypes import DTYPES, decode  # noqa: E402 - likewise
from aligner.errors import AdapterError  # noqa: E402 - likewise
from aligner.record import LayerSpec  # noqa: E402 - likewise
from aligner.testing import AdapterContract, Recorder  # noqa: E402 - likewise
from aligner.testing.supplies import same  # noqa: E402 - likewise
from tests.adapters.mindspore_nets import FACTORIES, Norm  # noqa: E402 - likewise


def supported() -> tuple[str, ...]:
    """The dtypes that this MindSpore has tensors of."""
    return tuple(word for word in DTYPES if word in types())


def instance_norms(n: int) -> list[Any]:
    """One of n dimensions, but for MindSpore 2.7, where making one fails."""
    try:
        return [getattr(nn, f"InstanceNorm{n}d")(2)]
    except AttributeError:
        return []


def spec_layers() -> list[Any]:
    """One of each class that the vocabulary has a word for."""
    plain = "ReLU ReLU6 LeakyReLU PReLU RReLU ELU CELU SeLU GELU SiLU Mish HSwish HSigmoid Hardtanh HShrink SoftShrink"
    more = "Softsign Sigmoid LogSigmoid Tanh Tanhshrink GLU Softmax Softmax2d LogSoftmax Softmin Flatten Identity LRN"
    found = [getattr(nn, name)() for name in (plain + " " + more).split()]
    for n in (1, 2, 3):
        found += [getattr(nn, f"Conv{n}d")(1, 2, 3), getattr(nn, f"Conv{n}dTranspose")(1, 2, 3)]
        found += [getattr(nn, f"{which}Pool{n}d")(2, 2) for which in ("Max", "Avg")]
        found += [getattr(nn, f"Adaptive{which}Pool{n}d")(2) for which in ("Max", "Avg")]
        found += [getattr(nn, f"BatchNorm{n}d")(2), *instance_norms(n)]
        found += [getattr(nn, f"Dropout{n}d")(), getattr(nn, f"ConstantPad{n}d")(1, 2.0)]
    recurrent = ("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell")
    found += [getattr(nn, name)(2, 3) for name in recurrent]
    layers = [nn.TransformerEncoderLayer(4, 2), nn.TransformerDecoderLayer(4, 2)]
    return [
        *found,
        *layers,
        nn.TransformerEncoder(layers[0], 1),
        nn.TransformerDecoder(layers[1], 1),
        nn.Transformer(4, 2, 1, 1, 4),
        nn.MultiheadAttention(4, 2),
        nn.Dense(2, 3),
        nn.BiDense(2, 3, 4),
        nn.Embedding(3, 4),
        nn.EmbeddingLookup(3, 4),
        nn.LayerNorm((4,)),
        nn.GroupNorm(2, 4),
        nn.Dropout(p=0.5),
        nn.Threshold(0.1, 1.0),
        nn.Unflatten(1, (2, 2)),
        nn.Upsample(size=(4, 4)),
        nn.PixelShuffle(2),
        nn.PixelUnshuffle(2),
        nn.Pad(((0, 0), (1, 1))),
        nn.ZeroPad2d(1),
        nn.ReflectionPad2d(1),
        nn.ReplicationPad2d(1),
        nn.Unfold([1, 2, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1]),
        nn.SequentialCell(nn.ReLU()),
        nn.CellList([nn.ReLU()]),
        nn.CellDict({"a": nn.ReLU()}),
    ]


class TestMindSporeAdapter(AdapterContract):
    dtypes = supported()
    runs_in_threads = False  # MindSpore before 2.10 ends the process
    tells_operations = operations.supported()
    refused = ("ELU",)

    def make_adapter(self) -> Adapter:
        return MindSporeAdapter()

    def make_net(self, name: str) -> Any:
        return FACTORIES[name]()

    def installed(self) -> object:
        depth = operations._DispatchGuardStack.depth() if operations.supported() else 0
        return depth, mindspore.get_context("mode"), os.environ.get("MS_JIT"), os.environ.get("MS_JIT_MODULES")

    def gradients(self, net: Any, x: Any) -> Sequence[Any]:
        weights = list(net.trainable_params())
        run = mindspore.value_and_grad(lambda x: net(x).sum(), 0, weights)
        _, (of_x, of_weights) = run(x)
        return [of_x, *of_weights]

    def training(self, net: Any) -> tuple[Any, Any]:
        optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
        run = mindspore.value_and_grad(lambda x: net(x).sum(), None, optimizer.parameters)
        return optimizer, lambda x: optimizer(run(x)[1])

    def spec_layers(self) -> Iterable[Any]:
        return spec_layers()

    def transposed(self, tensor: Any) -> Any:
        if tensor.itemsize == 1 and "float8" in str(tensor.dtype).lower():
            # A view of float8 cannot be read on CPU: test_a_float8_view_says_why.
            array = MindSporeAdapter().to_numpy(tensor)
            return MindSporeAdapter().from_numpy(array.T, MindSporeAdapter().dtype(tensor))
        return tensor.T

    def test_a_seed_repeats_the_random_numbers(self, adapter: Adapter) -> None:
        """A cell draws the seed of its dropout when it is made: the nets are made anew."""
        runs = []
        for seed in (1, 1, 2):
            adapter.seed(seed)
            net = self.net(adapter, "dropout", training=True)
            runs.append(self.run(adapter, net, self.x(adapter, "dropout")))
        assert same(runs[0], runs[1])
        assert not same(runs[0], runs[2])

    def add_in_place(self, tensor: Any, amount: float) -> None:
        tensor[:] = tensor + amount

    def unreadable(self) -> Iterable[Any]:
        yield mindspore.COOTensor(Tensor([[0, 1]]), Tensor([1.0]), (2, 2))


ADAPTER = MindSporeAdapter()


def tensor(*shape: int, seed: int = 0) -> Tensor:
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def bits(value: Any) -> bytes:
    return ADAPTER.to_numpy(value).tobytes()


def tables(net: nn.Cell) -> list[Any]:
    """Every table of hooks in the net that is not empty."""
    found = [cell._forward_pre_hook for _, cell in net.cells_and_names()]
    found += [cell._forward_hook for _, cell in net.cells_and_names()]
    return [table for table in found if table]


@pytest.fixture
def graph_mode():
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    yield
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)


class Doubled(nn.Cell):
    """A cell with its own gradient: twice the true one."""

    def construct(self, x):
        return x * x

    def bprop(self, x, out, dout):
        return (4 * x * dout,)


class WithBprop(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc = nn.Dense(4, 4)
        self.twice = Doubled()

    def construct(self, x):
        return self.twice(self.fc(x))


class TestOwnBprop:
    def test_it_is_observed_and_its_gradient_stays(self):
        net, x = WithBprop(), tensor(2, 4)
        run = mindspore.value_and_grad(lambda x: net(x).sum(), 0, list(net.trainable_params()))
        wanted, (wanted_x, wanted_weights) = run(x)
        with Recorder(ADAPTER).attach(net) as recorder:
            found, (found_x, found_weights) = run(x)
        assert bits(found) == bits(wanted)
        assert bits(found_x) == bits(wanted_x)
        assert [bits(g) for g in found_weights] == [bits(g) for g in wanted_weights]
        assert np.any(ADAPTER.to_numpy(found_x))
        seen = recorder.only("after", "twice").values["output.0"]
        given = recorder.only("before", "twice").values["input.0"]
        np.testing.assert_array_equal(seen, given * given)
        assert net.twice.has_bprop
        assert not tables(net)

    def test_without_gradients_too(self):
        net, x = WithBprop(), tensor(2, 4)
        wanted = net(x)
        with Recorder(ADAPTER).attach(net) as recorder:
            assert bits(net(x)) == bits(wanted)
        assert [place for place in recorder.places if place[1] == "twice"] == [("before", "twice"), ("after", "twice")]


class TestIntervention:
    """What is MindSpore's own about handing a cell other values; the contract suite has the rest."""

    def test_a_cell_with_its_own_bprop_runs_on_them(self):
        net, x, other = WithBprop(), tensor(3, 4), tensor(3, 4, seed=1)
        cells = dict(ADAPTER.layers(net))
        clean = bits(net(x))
        (path, cell) = next((path, cell) for path, cell in cells.items() if cell.has_bprop)
        handle = ADAPTER.intervene(cell, lambda args, kwargs: ((other,), kwargs), lambda args, kwargs, output: output)
        with Recorder(ADAPTER).attach(net) as recorder:
            changed = bits(net(x))
            run = mindspore.value_and_grad(lambda x: net(x).sum(), 0, None)
            run(x)
        handle.remove()
        assert changed != clean
        assert cell.has_bprop
        before = [event for event in recorder.events if event.place == ("before", path)]
        assert len(before) == 2  # with and without a gradient
        assert all(event.values["input.0"].tobytes() == bits(other) for event in before)
        assert bits(net(x)) == clean
        assert not tables(net)

    def test_the_users_hooks_stand_inside(self):
        cell, x = nn.ReLU(), tensor(3, 4)
        seen: list[str] = []

        def told(name: str, answer: Any = None) -> Any:
            return lambda *_: seen.append(name) or answer

        cell.register_forward_pre_hook(told("user in", (tensor(3, 4, seed=2),)))
        cell.register_forward_hook(told("user out"))
        first = ADAPTER.observe(cell, told("observer in"), told("observer out"))
        middle = ADAPTER.intervene(cell, told("given", ((x,), {})), told("made", x))
        last = ADAPTER.observe(cell, told("later observer in"), told("later observer out"))
        assert bits(cell(x)) == bits(x)
        for handle in (first, middle, last):
            handle.remove()
        ways_in, ways_out = ["later observer in", "observer in", "user in"], ["user out", "observer out"]
        assert seen == ["given", *ways_in, *ways_out, "later observer out", "made"]
        assert not [table for table in tables(cell) if len(table) > 1]

    def test_compiled_code_runs_without_them(self):
        net, x = PartlyCompiled(), tensor(3, 4)
        clean = bits(net(x))
        handles = [
            ADAPTER.intervene(layer, lambda args, kwargs: (args, kwargs), lambda args, kwargs, output: output)
            for _, layer in ADAPTER.layers(net)
        ]
        assert bits(net(x)) == clean
        for handle in handles:
            handle.remove()
        assert not tables(net)

    def test_a_tensor_is_overwritten_exactly_inside_a_cell_that_casts(self):
        net, x = nn.SequentialCell(nn.ReLU(), nn.ReLU()), tensor(3, 4)
        net.to_float(mindspore.float16)
        wanted = tensor(3, 4, seed=3).abs()
        handle = ADAPTER.observe(net[1], lambda args, kwargs: ADAPTER.overwrite(x, wanted), lambda *_: None)
        net(x)
        handle.remove()
        assert bits(x) == bits(wanted)


class TestRemoval:
    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize("others", ["none", "earlier", "later", "both"])
    def test_a_callback_may_remove_its_own_observation(self, when, others):
        net, x = nn.Dense(4, 4), tensor(2, 4)
        wanted, calls, handles = net(x), [], []
        foreign = []

        def register_foreign():
            foreign.append(net.register_forward_pre_hook(lambda cell, args: calls.append("pre") and None))
            foreign.append(net.register_forward_hook(lambda cell, args, out: calls.append("post") and None))

        def remove(*_):
            calls.append("ours")
            handles[0].remove()

        def nothing(*_):
            pass

        if others in ("earlier", "both"):
            register_foreign()
        pair = (remove, nothing) if when == "before" else (nothing, remove)
        handles.append(ADAPTER.observe(net, *pair))
        if others in ("later", "both"):
            register_foreign()
        try:
            for _ in range(3):
                assert bits(net(x)) == bits(wanted)
        finally:
            handles[0].remove()
        assert calls.count("ours") == 1
        assert calls.count("pre") == calls.count("post") == 3 * len(foreign) / 2
        for handle in foreign:
            handle.remove()
        ADAPTER.observe(net, nothing, nothing).remove()
        assert not tables(net)

    def test_a_copy_of_an_observed_net_is_not_observed(self):
        net, x = Norm(), tensor(8, 4)
        with Recorder(ADAPTER).attach(net) as recorder:
            twin = copy.deepcopy(net)
            wanted = twin(x)
            assert recorder.places == []
            net(x)
            assert len(recorder.places) == 6
        assert bits(twin(x)) == bits(wanted)

    def test_what_the_users_hooks_replace_is_what_is_seen(self):
        net, x = Norm(), tensor(8, 4)
        handle = net.fc.register_forward_hook(lambda cell, args, out: out + 1)
        with Recorder(ADAPTER).attach(net) as recorder:
            net(x)
        handle.remove()
        seen, given = recorder.only("after", "fc"), recorder.only("before", "bn")
        assert same(seen.values, {"output.0": given.values["input.0"]})


class Compiled(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inner = nn.Dense(4, 4)

    @mindspore.jit
    def construct(self, x):
        return self.inner(x) * 2


class PartlyCompiled(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = nn.Dense(4, 4)
        self.fast = Compiled()

    def construct(self, x):
        return self.fast(self.first(x))


class TestCompiledCode:
    def test_the_layers_inside_a_compiled_layer_are_seen(self):
        net, x = PartlyCompiled(), tensor(2, 4)
        own = net(x)
        with Recorder(ADAPTER).attach(net) as recorder:  # MindSpore has compiled it before
            observed = net(x)
        assert bits(observed) == bits(own) == bits(net(x))
        with Recorder(ADAPTER).attach(net) as again:
            assert bits(net(x)) == bits(observed)
        with Recorder(ADAPTER).attach(net) as eager, ADAPTER.running(net):
            net(x)
        assert [path for when, path in recorder.places if when == "after"] == ["first", "fast.inner", "fast", ""]
        assert recorder.places == again.places == eager.places
        assert all(same(one.values, other.values) for one, other in zip(recorder.events, again.events))
        assert not tables(net)

    def test_running_runs_it_eagerly(self, monkeypatch):
        net, x = PartlyCompiled(), tensor(2, 4)
        with Recorder(ADAPTER).attach(net) as recorder, ADAPTER.running(net):
            net(x)
        assert [path for when, path in recorder.places if when == "after"] == ["first", "fast.inner", "fast", ""]
        assert "MS_JIT" not in os.environ

    def test_who_observes_or_runs_waits_for_each_operator_and_leaves_the_programs_own_setting(self, capfd):
        net, x = nn.Dense(4, 4), tensor(2, 4)
        waits = []
        own = net(x)
        with Recorder(ADAPTER).attach(net):
            waits.append(mindspore.get_context("pynative_synchronize"))
            assert bits(net(x)) == bits(own)
        with ADAPTER.running(net):
            waits.append(mindspore.get_context("pynative_synchronize"))
            assert bits(net(x)) == bits(own)
        assert waits == [True, True]
        assert mindspore.get_context("pynative_synchronize") is False
        assert "pynative_synchronize" not in capfd.readouterr().err

    def test_hooks_are_back_after_compiled_code(self):
        net, x = PartlyCompiled(), tensor(2, 4)
        order = []
        own = net.first.register_forward_hook(lambda *_: order.append("user"))
        handle = ADAPTER.observe(net.first, lambda *_: order.append("before"), lambda *_: order.append("after"))
        for _ in range(2):
            net(x)
        handle.remove()
        own.remove()
        assert order == ["before", "user", "after"] * 2

    def test_a_net_in_a_compiled_training_step_is_told_of_and_seen_in_this_very_step(self):
        net, loss = PartlyCompiled(), nn.MSELoss()
        optimizer = nn.SGD(net.trainable_params(), 0.0)

        def forward(x):  # a lambda cannot be compiled here
            return loss(net(x), x)

        gradients = mindspore.value_and_grad(forward, None, optimizer.parameters)

        @mindspore.jit
        def step(x):
            value, found = gradients(x)
            return ops.depend(value, optimizer(found)), found

        x = tensor(2, 4)
        own = step(x)
        recorder = Recorder(ADAPTER)

        def on_root(model):
            told.append(model)
            if model is net and len(told) < 3:
                recorder.attach(net)

        told: list[Any] = []
        watcher = ADAPTER.watch_roots(on_root)
        with recorder:
            value, found = step(x)
        watcher.remove()
        assert told == [loss, net] or told == [net, loss]
        assert bits(value) == bits(own[0])
        assert [bits(one) for one in found] == [bits(one) for one in own[1]]
        assert [path for when, path in recorder.places if when == "after"] == ["first", "fast.inner", "fast", ""]
        with Recorder(ADAPTER).attach(net) as eager, ADAPTER.running(net):
            net(x)
        assert all(same(one.values, other.values) for one, other in zip(recorder.events, eager.events))
        assert bits(step(x)[0]) == bits(value)
        assert len(recorder.events) == len(eager.events), "nothing is told after the observation has ended"

    def test_compiled_functions_without_a_net_disturb_nothing(self):
        @mindspore.jit
        def twice(x):
            return x * 2

        net = nn.Dense(4, 4)
        assert watched(lambda: net(twice(tensor(2, 4)))) == [net]

    def test_graph_mode_of_training_loops_tells_of_the_net(self, graph_mode):
        net, x = nn.Dense(4, 4), tensor(2, 4)
        assert ADAPTER.environment(net)["mode"] == "graph"
        optimizer = nn.SGD(net.trainable_params(), 0.01)
        step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer)
        assert watched(lambda: net(x)) == [net]
        assert watched(lambda: step(x, x)) == [net]

    def test_graph_mode_without_compiling_is_eager(self, graph_mode, monkeypatch):
        monkeypatch.setenv("MS_JIT", "0")
        net, x = Norm(), tensor(8, 4)
        with Recorder(ADAPTER).attach(net) as recorder:
            net(x)
        assert len(recorder.places) == 6
        assert ADAPTER.environment(net)["mode"] == "pynative"

    def test_nobody_intervenes_in_a_compiled_net(self, graph_mode):
        net, x = nn.Dense(4, 4), tensor(2, 4)
        handle = ADAPTER.intervene(net, lambda args, kwargs: (args, kwargs), lambda args, kwargs, output: output)
        try:
            with pytest.raises(AdapterError, match="GRAPH_MODE"):
                net(x)
        finally:
            handle.remove()
        assert net(x).shape == (2, 4)


def watched(run: Any) -> list[Any]:
    roots: list[Any] = []
    handle = ADAPTER.watch_roots(roots.append)
    try:
        run()
    finally:
        handle.remove()
    return roots


class TestRootsOfTrainingLoops:
    def setup_method(self):
        self.net = Norm()
        self.loss = nn.MSELoss()
        self.optimizer = nn.SGD(self.net.trainable_params(), 0.01)
        self.x, self.y = tensor(8, 4), tensor(8, 4, seed=1)

    def test_a_hand_written_step(self):
        run = mindspore.value_and_grad(lambda x, y: self.loss(self.net(x), y), None, self.optimizer.parameters)

        def step():
            _, gradients = run(self.x, self.y)
            self.optimizer(gradients)

        assert watched(step) == [self.net, self.loss]

    def test_train_one_step_cell(self):
        step = nn.TrainOneStepCell(nn.WithLossCell(self.net, self.loss), self.optimizer).set_train()
        roots = watched(lambda: step(self.x, self.y))
        assert roots[:2] == [self.net, self.loss]
        assert set(roots) == {self.net, self.loss}

    def test_model_train_and_predict(self):
        model = mindspore.Model(self.net, self.loss, self.optimizer)
        data = mindspore.dataset.GeneratorDataset([(self.x.asnumpy(), self.y.asnumpy())], ["x", "y"], shuffle=False)
        roots = watched(lambda: model.train(1, data, dataset_sink_mode=False))
        assert set(roots) == {self.net, self.loss}
        assert watched(lambda: model.predict(self.x)) == [self.net]

    @pytest.mark.parametrize("level", ["O0", "O3"])
    def test_build_train_network(self, level):
        step = mindspore.amp.build_train_network(self.net, self.optimizer, self.loss, level=level)
        roots = watched(lambda: step(self.x, self.y))
        assert {"fc", "bn"} <= {path for path, _ in ADAPTER.layers(roots[0])}
        assert [dict(ADAPTER.layers(root))[""] for root in roots[:2]] == [self.net, self.loss]

    def test_the_step_gives_the_same_weights_watched_or_not(self):
        def weights():
            mindspore.set_seed(3)
            self.setup_method()
            step = nn.TrainOneStepCell(nn.WithLossCell(self.net, self.loss), self.optimizer).set_train()
            step(self.x, self.y)
            return [bits(p) for p in self.net.get_parameters()]

        clean, seen = weights(), []
        with Recorder(ADAPTER) as recorder:
            handle = ADAPTER.watch_roots(lambda root: seen.append(recorder.attach(root)))
            try:
                assert weights() == clean
            finally:
                handle.remove()
        assert seen
        assert recorder.events


class Mixed(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.head = nn.SequentialCell(nn.Dense(4, 4), nn.LayerNorm((4,)))

    def construct(self, x):
        return self.head(self.bn(self.conv(x)).mean((2, 3)))


class TestMixedPrecision:
    @pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3", "auto"])
    def test_names_settings_and_parameters_are_those_of_the_plain_net(self, level):
        plain = Mixed()
        net = mindspore.amp.auto_mixed_precision(Mixed(), level)
        x = tensor(2, 3, 8, 8)
        layers = dict(ADAPTER.layers(net))
        assert list(layers) == [path for path, _ in ADAPTER.layers(plain)]
        for path, layer in ADAPTER.layers(plain):
            assert ADAPTER.type_name(layers[path]) == ADAPTER.type_name(layer)
            assert ADAPTER.spec(layers[path]) == ADAPTER.spec(layer)
        names = [(p.name, p.layer, p.role, p.shape) for p in ADAPTER.parameters(net)]
        assert names == [(p.name, p.layer, p.role, p.shape) for p in ADAPTER.parameters(plain)]
        assert ADAPTER.environment(net)["amp"] == (None if level == "O0" else level)
        clean = net(x)
        with Recorder(ADAPTER).attach(net) as recorder:
            assert bits(net(x)) == bits(clean)
        assert {path for _, path in recorder.places} == set(layers)
        assert not tables(net)

    def test_casts_by_hand_are_told(self):
        net = Mixed()
        net.conv.to_float(mindspore.float16)
        assert ADAPTER.environment(net)["amp"] == "to_float"

    def test_a_part_that_the_user_calls_backbone_is_a_layer(self):
        class Detector(nn.Cell):
            def __init__(self):
                super().__init__()
                self._backbone = nn.Dense(4, 4)

            def construct(self, x):
                return self._backbone(x)

        net = Detector()
        assert [path for path, _ in ADAPTER.layers(net)] == ["", "_backbone"]
        assert [p.name for p in ADAPTER.parameters(net)] == ["_backbone.weight", "_backbone.bias"]


class Held(nn.Cell):
    """Parameters in every way a cell can hold them."""

    def __init__(self):
        super().__init__()
        self.scale = Parameter(tensor(3), name="s")
        self.tied = self.scale
        self.group = mindspore.ParameterTuple([Parameter(tensor(2), name="a"), Parameter(tensor(2), name="b")])
        self.plain = [Parameter(tensor(2), name="c")]
        self.frozen = Parameter(tensor(1), name="f", requires_grad=False)
        if hasattr(self, "register_buffer"):
            self.register_buffer("table", tensor(4))

    def construct(self, x):
        return x * self.scale


SAMPLES = Path(__file__).parents[2] / "samples"


def sample(name: str) -> tuple[nn.Cell, Tensor]:
    """The correct port of a sample and an input for it."""
    net = runpy.run_path(str(SAMPLES / name / "port.py"))["build"]()
    if name == "resnet18":
        return net, tensor(2, 3, 32, 32)
    return net, Tensor(np.arange(24).reshape(2, 12) % 9, mindspore.int32)


def total(value: Any) -> Any:
    """The sum of all floats in a net's result."""
    if isinstance(value, (dict, list, tuple)):
        values = value.values() if isinstance(value, dict) else value
        return sum(total(each) for each in values if each is not None)
    return value.sum()


class TestRealNets:
    """Numbers do not change when a net is observed, on nets people know."""

    @pytest.mark.parametrize("training", [False, True])
    @pytest.mark.parametrize("name", ["resnet18", "transformer", "lstm"])
    def test_outputs_and_gradients_are_bit_identical(self, name, training):
        net, x = sample(name)
        ADAPTER.set_training(net, training)
        run = mindspore.value_and_grad(lambda x: total(net(x)), None, list(net.trainable_params()))
        start = [(p, ADAPTER.read(p).copy()) for p in ADAPTER.parameters(net)]

        def everything():
            for parameter, values in start:
                ADAPTER.load(parameter, values, parameter.dtype)
            value, gradients = run(x)
            return [bits(value), *map(bits, gradients), *(bits(p.tensor) for p, _ in start)]

        silenced = ADAPTER.silence_dropout(net)
        try:
            clean = everything()
            with Recorder(ADAPTER).attach(net) as recorder:
                assert everything() == clean
        finally:
            silenced.remove()
        assert len(recorder.events) >= 10
        assert not tables(net)


class TestRecomputing:
    def test_the_cell_that_recomputes_is_no_layer(self):
        net, x = nn.SequentialCell(Norm(), nn.Dense(4, 2)), tensor(8, 4)
        names = [path for path, _ in ADAPTER.layers(net)]
        net[0].recompute()
        assert [path for path, _ in ADAPTER.layers(net)] == names
        run = mindspore.value_and_grad(lambda x: net(x).sum(), None, list(net.trainable_params()))
        clean = [bits(g) for g in run(x)[1]]
        with Recorder(ADAPTER).attach(net) as recorder:
            assert [bits(g) for g in run(x)[1]] == clean
        assert recorder.only("after", "0").values


class TestParameters:
    def table(self, net):
        return {(p.layer, p.role): p for p in ADAPTER.parameters(net)}

    def test_all_kinds_are_found_once(self):
        found = self.table(nn.SequentialCell(Held()))
        wanted = ["frozen", "group.0", "group.1", "plain.0", "scale", "table"]
        if not hasattr(nn.Cell, "register_buffer"):
            wanted.remove("table")
        assert sorted(role for _, role in found) == wanted
        assert {layer for layer, _ in found} == {"0"}
        assert not found["0", "frozen"].trainable
        assert [role for (_, role), p in found.items() if p.buffer] == wanted[5:]

    def test_a_buffer_can_be_loaded(self):
        if not hasattr(nn.Cell, "register_buffer"):
            pytest.skip("this MindSpore has no buffers")
        net = Held()
        parameter = self.table(net)["", "table"]
        ADAPTER.load(parameter, np.arange(4, dtype=np.float32), "float32")
        assert net.table.asnumpy().tolist() == [0, 1, 2, 3]

    @pytest.mark.parametrize("make", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d])
    def test_batch_norm(self, make):
        roles = {p.role: p for p in ADAPTER.parameters(make(3))}
        assert sorted(roles) == ["bias", "running_mean", "running_var", "weight"]
        assert {role for role, p in roles.items() if p.buffer} == {"running_mean", "running_var"}
        assert {p.layer for p in roles.values()} == {""}
        without = {p.role for p in ADAPTER.parameters(make(3, affine=False))}
        assert without == {"running_mean", "running_var"}

    def test_a_frozen_norm_keeps_its_weights(self):
        for frozen in (nn.BatchNorm2d(3), nn.BatchNorm2d(3, 1e-5, 0.9, True), nn.GroupNorm(1, 3)):
            for parameter in frozen.get_parameters():
                parameter.requires_grad = False
            assert {"weight", "bias"} <= {p.role for p in ADAPTER.parameters(frozen)}
            assert ADAPTER.spec(frozen).attributes["affine"] is True

    @pytest.mark.skipif(not instance_norms(2), reason="MindSpore 2.7 cannot make an InstanceNorm")
    def test_instance_norm_statistics_are_nobodys(self):
        assert {p.role for p in ADAPTER.parameters(nn.InstanceNorm2d(3))} == {"weight", "bias"}
        assert list(ADAPTER.parameters(nn.InstanceNorm2d(3, affine=False))) == []

    def test_parts_of_recurrent_layers_are_no_layers(self):
        net = nn.SequentialCell(nn.LSTM(2, 3, 2, bidirectional=True))
        assert [path for path, _ in ADAPTER.layers(net)] == ["", "0"]
        roles = {p.role for p in ADAPTER.parameters(net)}
        sides = [f"{kind}_l{n}{side}" for n in (0, 1) for side in ("", "_reverse") for kind in ("weight_ih", "bias_hh")]
        assert roles >= set(sides)
        assert len(roles) == 16

    def test_a_subclass_of_a_recurrent_layer_keeps_its_names(self):
        class Mine(nn.GRU):
            pass

        assert {p.role for p in ADAPTER.parameters(Mine(2, 3, has_bias=False))} == {"weight_ih_l0", "weight_hh_l0"}

    def test_half_precision_parameters_keep_their_type(self):
        for word, kind in (("float16", mindspore.float16), ("bfloat16", mindspore.bfloat16)):
            net = nn.Dense(2, 2, dtype=kind)
            weight = self.table(net)["", "weight"]
            values = np.array([[1.0, -2.5], [0.25, 3.0]], np.float32)
            ADAPTER.load(weight, values, "float32")
            assert weight.dtype == word
            assert net.weight.dtype == kind
            np.testing.assert_array_equal(decode(ADAPTER.read(weight), word), values)


class TestTensors:
    def test_types_without_a_place_in_the_dump_say_so(self):
        lazy = Parameter(mindspore.common.initializer.initializer("normal", (2, 2)), name="x")
        for odd in (mindspore.COOTensor(Tensor([[0, 1]]), Tensor([1.0]), (2, 2)), lazy if lazy.has_init else None):
            if odd is not None:
                with pytest.raises(ValueError):
                    ADAPTER.to_numpy(odd)

    def test_a_float8_view_says_why(self):
        if "float8_e4m3fn" not in supported():
            pytest.skip("this MindSpore has no float8")
        view = ADAPTER.from_numpy(np.arange(6, dtype=np.uint8).reshape(2, 3), "float8_e4m3fn").T
        with pytest.raises(ValueError, match="view of float8"):
            ADAPTER.to_numpy(view)

    def test_views_and_slices_are_read_right(self):
        base = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        value = Tensor(base)
        for found, wanted in (
            (value[:, 1], base[:, 1]),
            (value.transpose(2, 0, 1), base.transpose(2, 0, 1)),
            (value[1, ::2, 1:], base[1, ::2, 1:]),
            (value.astype(mindspore.bfloat16).swapaxes(0, 2), base.swapaxes(0, 2)),
            (ops.broadcast_to(value[:, :1], (2, 3, 4)), np.broadcast_to(base[:, :1], (2, 3, 4))),
        ):
            np.testing.assert_array_equal(decode(ADAPTER.to_numpy(found), ADAPTER.dtype(found)), wanted)

    @pytest.mark.parametrize("size", [32, 256])
    def test_an_unfinished_computation_is_waited_for(self, size):
        x = tensor(size, size)
        y = x
        for _ in range(20):
            y = ops.tanh(ops.matmul(y, x))
        first = ADAPTER.to_numpy(y).copy()
        assert first.any()
        np.testing.assert_array_equal(first, y.asnumpy())


class FunctionalDropout(nn.Cell):
    def __init__(self):
        super().__init__()
        self.primitive = ops.Dropout(keep_prob=0.5)

    def construct(self, x):
        y, _ = self.primitive(x)
        return imported_dropout(y, 0.5), ops.dropout2d(x.reshape(1, -1, 2, 2), 0.5)


class TestDropout:
    def test_functions_and_primitives_are_silenced_and_come_back(self):
        net, x = FunctionalDropout(), tensor(64, 4)
        globals_before = imported_dropout
        handle = ADAPTER.silence_dropout(net)
        try:
            y, z = net(x)
        finally:
            handle.remove()
        assert bits(y) == bits(x)
        assert bits(z) == bits(x)
        assert imported_dropout is globals_before
        y, z = net(x)
        assert bits(y) != bits(x)
        assert bits(z) != bits(x)

    def test_two_may_silence_the_functions_and_leave_in_any_order(self):
        net, x = FunctionalDropout(), tensor(64, 4)
        original = ops.dropout
        first, second = ADAPTER.silence_dropout(nn.ReLU()), ADAPTER.silence_dropout(nn.ReLU())
        kept = ops.dropout
        first.remove()
        assert bits(ops.dropout(x, 0.5)) == bits(x)
        second.remove()
        assert ops.dropout is imported_dropout is original
        assert bits(ops.dropout(x, 0.5)) != bits(x)
        assert bits(kept(x, 0.5)) != bits(x), "a copy somebody kept drops again"
        assert bits(net(x)[1]) != bits(x)


class TestCautions:
    def messages(self, net):
        return {(note.layer, note.message) for note in ADAPTER.cautions(net)}

    def test_construct_called_directly(self):
        class Direct(nn.Cell):
            def __init__(self):
                super().__init__()
                self.fc = nn.Dense(2, 2)

            def construct(self, x):
                return self.fc.construct(x)

        class Proper(nn.Dense):
            def construct(self, x):
                return super().construct(x)

        assert self.messages(Direct()) == {("", "mindspore-direct-construct")}
        assert self.messages(Proper(2, 2)) == set()

    def test_own_call(self):
        class Odd(nn.Cell):
            def __call__(self, x):
                return x

        assert self.messages(nn.SequentialCell(Odd())) == {("0", "mindspore-own-call")}

    def test_common_nets_need_none(self):
        for name in ("nested", "norm", "recurrent", "attention", "dropout"):
            assert self.messages(FACTORIES[name]()) == set()


class TestIndices:
    """Kernels that look at their indices on other threads end the program where one is out of range."""

    @pytest.mark.parametrize(
        "wrong",
        [
            lambda values, places: ops.gather_nd(values, places),
            lambda values, places: values[places[:, 0], places[:, 1]],
            lambda values, places: ops.scatter_nd(places, Tensor(np.ones(200, np.float32)), (200, 16)),
            lambda values, places: values.__setitem__((places[:, 0], places[:, 1]), 1.0),
        ],
        ids=["gather_nd", "items", "scatter_nd", "set items"],
    )
    def test_one_out_of_range_is_told_and_the_program_goes_on(self, wrong):
        values, places = Tensor(np.zeros((200, 16), np.float32)), np.zeros((200, 2), np.int64)
        with held("pynative"):
            for _ in range(8):  # of the first calls MindSpore learns on how many threads they are fastest
                wrong(values, Tensor(places))
            places[150] = [200, 3]
            with pytest.raises(IndexError, match=r"\(200, 3\) is outside of the shape \(200, 16\)"):
                wrong(values, Tensor(places))

    def test_one_below_zero_is_for_the_framework_to_understand(self):
        with held("pynative"):
            assert float(Tensor(np.arange(3, dtype=np.float32))[Tensor([-1])].asnumpy()[0]) == 2.0
            with pytest.raises(IndexError, match="GatherNd"):
                ops.gather_nd(Tensor(np.zeros((3, 2), np.float32)), Tensor(np.array([[-1, 0]])))


class TestSpec:
    def test_subclasses_that_compute_the_same_are_the_same_kind(self):
        class Named(nn.Conv2d):
            def __init__(self):
                super().__init__(1, 2, 3)

        class Other(nn.Conv2d):
            def construct(self, x):
                return super().construct(x) * 2

        assert ADAPTER.spec(Named()).kind == "Conv2d"
        assert ADAPTER.spec(Other(1, 2, 3)).kind == "Other"

    def test_settings_that_cannot_be_read_are_told(self):
        net = nn.SequentialCell(nn.Conv2d(1, 2, 3))
        del net[0].pad_mode
        assert ADAPTER.spec(net[0]).kind == "Conv2d"
        (note,) = ADAPTER.cautions(net)
        assert (note.layer, note.message) == ("0", "mindspore-spec-unread")
        assert "pad_mode" in str(note.facts["reason"])

    def test_a_dense_with_an_activation_is_no_linear(self):
        assert ADAPTER.spec(nn.Dense(2, 2, activation="relu")).kind == "Dense"

    def test_a_cell_of_the_users_shows_its_own_settings_only(self):
        class Scaled(nn.Cell):
            def __init__(self):
                super().__init__()
                self.factor, self.window, self.name = 2.5, [1, 2], "s"
                self.fc = nn.Dense(2, 2)
                self._hidden = 1

        net = Scaled().set_train()
        net.to_float(mindspore.float16)
        assert ADAPTER.spec(net) == LayerSpec("Scaled", {"factor": 2.5, "window": (1, 2), "name": "s"})

    def test_type_names_are_short_for_the_library(self):
        assert ADAPTER.type_name(nn.Conv2d(1, 1, 1)) == "mindspore.nn.Conv2d"
        assert ADAPTER.type_name(mindspore.mint.nn.Linear(1, 1)) in ("mindspore.nn.Linear", "mindspore.mint.nn.Linear")
        assert ADAPTER.type_name(Norm()).endswith("mindspore_nets.Norm")


class TestRuntime:
    def test_a_device_that_is_not_here_is_refused_with_a_reason(self):
        with pytest.raises(AdapterError, match="npu"):
            ADAPTER.device("npu")
        assert ADAPTER.environment(Norm())["device"] == "CPU"

    def test_optimizers_are_no_models(self):
        net = Norm()
        assert not ADAPTER.is_model(nn.SGD(net.trainable_params(), 0.1))

    def test_doctor_warns_of_numpy_2(self, monkeypatch):
        monkeypatch.setattr(np, "__version__", "2.1.0")
        (finding,) = [finding for finding in ADAPTER.doctor() if finding.message == "mindspore-numpy"]
        assert not finding.good
        assert ADAPTER.environment(Norm())["numpy_supported"] is False
