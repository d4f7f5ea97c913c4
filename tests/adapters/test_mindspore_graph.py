"""Nets that MindSpore compiles: what is seen in the graph is what is seen eagerly, and the graph stays what it was."""

from __future__ import annotations

import contextlib
import copy
import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore", reason="MindSpore is not installed here")
from aligner_hooks.mindspore_ import MindSporeAdapter  # noqa: E402 - only after it is known to be there
from aligner_hooks.mindsporelike import compiler  # noqa: E402 - as above
from aligner_hooks.mindsporelike.graphs import graph as graphs  # noqa: E402 - as above
from mindspore import Tensor, nn, ops  # noqa: E402 - as above

from aligner.errors import AdapterError  # noqa: E402 - as above
from aligner.record import Array  # noqa: E402 - as above
from aligner.testing.nets import NETS  # noqa: E402 - as above
from aligner.testing.recorder import Recorder  # noqa: E402 - as above
from aligner.testing.supplies import equal_bits, same  # noqa: E402 - as above
from tests.adapters.mindspore_nets import FACTORIES  # noqa: E402 - as above

ADAPTER = MindSporeAdapter()
# "plain" has two parameters of one name, "raising" raises: MindSpore compiles neither, with or without us.
COMPILABLE = ["nested", "inplace", "norm", "layout", "dropout", "recurrent", "attention"]


def tensor(*shape: int, dtype: Any = None, seed: int = 0) -> Any:
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return Tensor(values, dtype or mindspore.float32)


def made(name: str, training: bool = False) -> tuple[Any, Any]:
    """One of the contract's nets, and an input for it."""
    net = FACTORIES[name]()
    ADAPTER.set_training(net, training)
    return net, tensor(*NETS[name].shape)


def seen(net: Any, mode: str, *args: Any, **kwargs: Any) -> Recorder:
    """The events of one run."""
    with Recorder(ADAPTER).attach(net) as recorder, ADAPTER.running(net, mode):
        net(*args, **kwargs)
    return recorder


def check_same(net: Any, *args: Any, **kwargs: Any) -> Recorder:
    """The graph tells the same as an eager run, computes the same as without us, and keeps nothing of us."""
    with ADAPTER.running(net, "graph"):
        own = Recorder(ADAPTER).arrays(net(*args, **kwargs))
    eager, graph = seen(net, "pynative", *args, **kwargs), seen(net, "graph", *args, **kwargs)
    check_equal(eager, graph)
    assert near(graph.events[-1].values, own)
    check_nothing_left(net)
    return graph


def near(left: Mapping[str, Array], right: Mapping[str, Array]) -> bool:
    """Bit by bit, but for the rounding of sums: on some processors MindSpore's kernels add up in the order that the
    place of a value in memory asks for, and a graph keeps its values elsewhere when they are looked at.
    """
    return left.keys() == right.keys() and all(
        equal_bits(left[slot], right[slot]) or np.allclose(left[slot], right[slot], rtol=0, atol=1e-6) for slot in left
    )


def check_equal(eager: Recorder, graph: Recorder) -> None:
    assert eager.places == graph.places
    for one, other in zip(eager.events, graph.events):
        assert near(one.values, other.values), one.place
        assert one.structure == other.structure, one.place


def check_nothing_left(net: Any) -> None:
    for _, cell in net.cells_and_names():
        assert not [name for name in vars(cell) if name.startswith("aligner") or name == "construct"]
    assert not graphs.GRAPHS.cells


@pytest.mark.parametrize("name", [name for name in COMPILABLE if name != "nested"])
@pytest.mark.parametrize("training", [False, True])
def test_the_nets_of_the_contract(name: str, training: bool) -> None:
    if training and name in ("dropout", "recurrent", "attention"):
        pytest.skip("draws random numbers in train mode")
    net, x = made(name, training)
    check_same(net, x)


def test_a_cell_that_gets_values_of_no_known_type_is_told_of_and_the_rest_is_seen() -> None:
    net, x = made("nested")
    eager, graph = seen(net, "pynative", x), seen(net, "graph", x)
    notes = {note.layer: note for note in ADAPTER.cautions(net) if note.message == "mindspore-untold"}
    if compiler.version() < (2, 10):  # it would wait for ever: the net is seen from outside
        assert graph.places == [("before", ""), ("after", "")]
        assert set(notes) == {path for path, _ in ADAPTER.layers(net)} - {""}
        return
    assert [place for place in eager.places if place[1] != "head"] == graph.places
    assert list(notes) == ["head"]
    assert "type" in str(notes["head"].facts["reason"])


class Many(nn.Cell):
    """Keyword arguments, nested values, constants, a cell called twice, other dtypes, an empty tensor, numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Part()
        self.row = nn.SequentialCell(nn.Dense(4, 4), nn.ReLU())
        self.list = nn.CellList([nn.Dense(4, 4), nn.Dense(4, 4)])

    def construct(self, x: Any, scale: float = 2.0, *, flag: bool = True) -> Any:
        first, rest = self.part(self.row(x))
        second, rest = self.part(first, mask=first > 0, pair=(x, {"a": first}), flag=flag)
        for cell in self.list:
            second = cell(second)
        whole = (second.sum(), second[:, :0], second.astype(mindspore.int32), second.astype(mindspore.float16))
        return {"out": second * scale, "rest": [rest[0], second.astype(mindspore.bfloat16)], "whole": whole}


class Part(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(4, 4)
        self.none = Nothing()

    def construct(self, x: Any, mask: Any = None, *, pair: Any = None, flag: bool = False) -> Any:
        y = self.fc(x)
        if mask is not None:
            y = y * mask
        if pair is not None and flag:
            y = y + pair[0] + pair[1]["a"]
        return y, (self.none(x, None), y > 0)


class Nothing(nn.Cell):
    """Gets None, and hands on what it got."""

    def construct(self, x: Any, nothing: Any) -> Any:
        return x


@pytest.mark.parametrize("kwargs", [{}, {"scale": 3.0}, {"flag": False}])
def test_any_arguments_and_results(kwargs: Any) -> None:
    check_same(Many(), tensor(2, 4), **kwargs)


class Looping(nn.Cell):
    """A loop and a branch of which only the run knows how they go."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(4, 4)
        self.up, self.down = nn.ReLU(), nn.Tanh()

    def construct(self, x: Any, times: Any) -> Any:
        count = 0
        while count < times:
            x = self.fc(x)
            count = count + 1
        if x.sum() > 0:
            return self.up(x)
        return self.down(x)


@pytest.mark.parametrize("times", [0, 1, 3])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_control_flow(times: int, seed: int) -> None:
    net = Looping()
    graph = check_same(net, tensor(2, 4, seed=seed), Tensor(times, mindspore.int64))
    assert [path for when, path in graph.places if when == "after"].count("fc") == times


def test_a_net_that_was_compiled_before_and_goes_on_after(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = made("norm")
    with ADAPTER.running(net, "graph"):
        net(x)
        graphs = set(net.compile_cache)
        with Recorder(ADAPTER).attach(net) as first:
            net(x)
            net(x)
        assert len(first.events) == 2 * 6
        known = set(net.compile_cache)
        net(x)
        assert len(first.events) == 2 * 6
        if compiler.version() >= (2, 10):  # older ones compile anew
            assert set(net.compile_cache) == known, "the graph of before is found again"
    assert graphs < known


def test_what_an_observer_raises_goes_up_and_the_net_is_whole_again() -> None:
    class Stop(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stop

    net, x = made("norm")
    with ADAPTER.running(net, "graph"):
        clean = Recorder(ADAPTER).arrays(net(x))
        handle = ADAPTER.observe(net.fc, stop, lambda *_: None)
        with pytest.raises(Stop):
            net(x)
        handle.remove()
        assert same(clean, Recorder(ADAPTER).arrays(net(x)))
    check_nothing_left(net)


def test_what_the_net_itself_raises_goes_up_as_it_is() -> None:
    net, x = made("raising")
    with ADAPTER.running(net, "graph"), Recorder(ADAPTER).attach(net), pytest.raises(ValueError, match="broken layer"):
        net(x)
    check_nothing_left(net)
    assert not [note for note in ADAPTER.cautions(net) if note.message == "mindspore-untold"]


def test_taps_that_tell_nothing_are_refused_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    from aligner_hooks.mindsporelike.graphs import forms

    net, x = made("norm")
    monkeypatch.setattr(graphs.GRAPHS, "proved", False)
    monkeypatch.setattr(forms.Arrival, "_complete", lambda self: None)
    with ADAPTER.running(net, "graph"), Recorder(ADAPTER).attach(net), pytest.raises(AdapterError, match="0 of 2"):
        net(x)
    check_nothing_left(net)


def test_mixed_precision_in_a_graph() -> None:
    net, x = made("norm")
    net.to_float(mindspore.float16)
    eager, graph = seen(net, "pynative", x), seen(net, "graph", x)
    assert eager.places == graph.places
    for one, other in zip(eager.events, graph.events):  # MindSpore's float16 kernels differ from graph to eager
        for slot, value in one.values.items():
            np.testing.assert_allclose(value, other.values[slot], rtol=5e-3, atol=2e-3)
    # A graph casts before the cell's own code begins: what is seen is what it computes with.
    assert graph.only("before", "fc").values["input.0"].dtype == np.float16
    assert graph.only("after", "fc").values["output.0"].dtype == np.float16


def test_running_sets_the_mode_and_sets_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def mode() -> str:
        return str(ADAPTER.environment(None)["mode"])

    assert mode() == "pynative"
    with ADAPTER.running(None, "graph"):
        assert mode() == "graph"
        with ADAPTER.running(None):
            assert mode() == "pynative"
        with ADAPTER.running(None, None):
            assert mode() == "graph"
        assert mode() == "graph"
    assert mode() == "pynative"
    monkeypatch.setenv("MS_JIT", "0")
    with ADAPTER.running(None, "graph"):
        assert mode() == "graph"
    assert mode() == "pynative"


def test_a_function_that_is_compiled_runs_the_net_inside_a_loop() -> None:
    net, _ = made("norm")

    @mindspore.jit
    def twice(x: Any) -> Any:
        return net(net(x))

    x = tensor(8, 4)
    own = Recorder(ADAPTER).arrays(twice(x))
    with Recorder(ADAPTER).attach(net) as recorder:
        observed = Recorder(ADAPTER).arrays(twice(x))
    assert same(own, observed)
    one = [("before", ""), ("before", "fc"), ("after", "fc"), ("before", "bn"), ("after", "bn"), ("after", "")]
    assert recorder.places == one * 2
    assert same(recorder.events[5].values, {"output.0": recorder.events[6].values["input.0"]})
    assert ops.relu(x).shape == (8, 4)


@pytest.mark.parametrize("stops", [False, True], ids=["ends", "raises"])
def test_whoever_wants_to_know_is_told_around_a_compiled_run(stops: bool) -> None:
    """Also where an observer raises; the graph that proves that taps work, once in a process, is nobody's."""
    net, x = made("norm")
    told: list[str] = []

    def after(*_: object) -> None:
        told.append("layer")
        if stops:
            raise ValueError("stop")

    @mindspore.jit
    def compiled(x: Any) -> Any:
        return net(x)

    graphs.GRAPHS.proved = False
    around = ADAPTER.compiled_runs(lambda: told.append("before"), lambda: told.append("after"))
    observer = ADAPTER.observe(net, lambda *_: None, after)
    for _ in range(2):
        with pytest.raises(ValueError, match="stop") if stops else contextlib.nullcontext():
            compiled(x)
    around.remove()
    assert told == ["before", "layer", "after"] * 2
    with pytest.raises(ValueError, match="stop") if stops else contextlib.nullcontext():
        compiled(x)
    assert told[6:] == ["layer"]
    observer.remove()


class Predicting(nn.Cell):
    """What is compiled is a method of its own, which runs its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(4, 4)

    @mindspore.jit
    def predict(self, x: Any) -> Any:
        return ops.softmax(self.fc(x), -1)


def test_what_jit_makes_of_a_net_is_seen_as_the_net() -> None:
    """The function that `jit(net)` returns runs the net's construct: nobody calls the net."""
    net, x = made("norm")
    compiled, roots = mindspore.jit(net), []
    own = Recorder(ADAPTER).arrays(compiled(x))
    handle = ADAPTER.watch_roots(roots.append)
    with Recorder(ADAPTER).attach(net) as recorder:
        observed = Recorder(ADAPTER).arrays(compiled(x))
    predicting = Predicting()
    predicting.predict(x)
    handle.remove()
    assert same(own, observed)
    assert roots == [net, predicting]
    check_equal(seen(net, "pynative", x), recorder)
    check_nothing_left(net)


class Returning(nn.Cell):
    """A cache that may be missing, a number, and a counter that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(4, 4)
        self.loss = nn.MSELoss()
        self.count = mindspore.Parameter(Tensor(0, mindspore.int32), requires_grad=False)

    def construct(self, x: Any, *, cache: bool = False) -> Any:
        y = self.fc(x)
        ops.assign_add(self.count, Tensor(1, mindspore.int32))
        return y, ((y, x) if cache else None), self.loss(y, x), self.count


class Caching(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.CellList([Returning(), Returning()])

    def construct(self, x: Any, *, cache: bool = False) -> Any:
        kept: tuple[Any, ...] = ()
        for block in self.blocks:
            x, one, _, _ = block(x, cache=cache)
            kept = (*kept, one)
        return x, kept


@pytest.mark.parametrize("cache", [False, True])
def test_none_numbers_and_counters_that_cells_return(cache: bool) -> None:
    """None in an output of a cell of which anything is told after a branch makes MindSpore fail when it runs."""
    net, x = Caching(), tensor(2, 4)

    def run(mode: str) -> Recorder:
        for block in net.blocks:
            block.count.set_data(Tensor(5, mindspore.int32))
        return seen(net, mode, x, cache=cache)

    eager, graph = run("pynative"), run("graph")
    check_equal(eager, graph)
    assert graph.only("after", "blocks.1").values["output.3"] == 6


class Varying(nn.Cell):
    """Tensors of whose shapes the compiler knows nothing or a part, of many types, and one without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(4, 4)
        self.act = nn.Tanh()
        self.same = Same()

    def construct(self, x: Any) -> Any:
        x = self.act(self.fc(x))
        above = ops.masked_select(x, x > 0)
        kinds = (
            above > 0.5,
            above.astype(mindspore.bfloat16),
            above.astype(mindspore.int8),
            ops.masked_select(x, x > 9),
        )
        return self.same(x), self.same(kinds), self.same(x.sum())


class Same(nn.Cell):
    def construct(self, x: Any) -> Any:
        return x


def test_shapes_that_only_the_run_knows() -> None:
    net = Varying()
    net.set_inputs(Tensor(shape=[None, 4], dtype=mindspore.float32))
    check_same(net, tensor(2, 4))
    graph = check_same(net, tensor(2100, 4))  # more than a piece
    assert graph.only("after", "fc").values["output.0"].shape == (2100, 4)
    assert 1 < graph.events[-1].values["output.1.1"].size < 8400
    assert not [note for note in ADAPTER.cautions(net) if note.message == "mindspore-untold"]


def test_a_graph_that_does_not_run_with_taps_runs_without_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from aligner_hooks.mindsporelike.graphs import forms, taps

    def broken(_: Any) -> None:
        raise ValueError("no such kernel")

    net, x = made("norm")
    seen(made("norm")[0], "graph", x)  # the self-check has run
    monkeypatch.setattr(taps, "BEGIN", forms.operator(broken))
    graph = seen(net, "graph", x)
    assert graph.places == [("before", ""), ("after", "")]
    assert {note.layer for note in ADAPTER.cautions(net) if note.message == "mindspore-untold"} == {"fc", "bn"}


def test_values_are_shown_where_they_lie() -> None:
    """On this machine no copies are made: they would take as much memory as the dump."""
    from aligner_hooks.mindsporelike.graphs import native

    shown: list[Any] = []
    taps = native.operator(lambda array: shown.append((array.copy(), array.flags.owndata, array.flags.writeable)))
    assert taps is not None
    taps.add_prim_attr("side_effect_io", True)

    class Shows(nn.Cell):
        def construct(self, x: Any) -> Any:
            y = x * 2
            taps(y)
            taps(y.astype(mindspore.float16))
            return y

    with ADAPTER.running(None, "graph"):
        made = Shows()(tensor(2, 3)).asnumpy()
    assert [array.dtype for array, *_ in shown] == ["float32", "float16"]
    assert np.array_equal(shown[0][0], made)
    assert not any(own or writeable for _, own, writeable in shown)


@pytest.mark.parametrize("wrong", ["silent", "refused"])
def test_where_memory_cannot_be_shown_copies_are(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from aligner_hooks.mindsporelike.graphs import forms, native, taps

    if wrong == "silent":
        silent = native.operator(lambda array: None)
        monkeypatch.setattr(native, "operator", lambda receive: silent)
    else:
        monkeypatch.setenv(native.ALLOWED, "/nowhere")
        assert native.operator(lambda array: None) is None
    monkeypatch.setattr(taps, "BEGIN", forms.operator(forms.ARRIVAL.begin))
    monkeypatch.setattr(taps, "VALUE", forms.operator(forms.ARRIVAL.value))
    monkeypatch.setattr(graphs.GRAPHS, "proved", False)
    net, x = made("norm")
    check_same(net, x)
    assert taps.VALUE.func_type == "pyfunc"


class Routed(nn.Cell):
    """An expert that says besides how sure it is."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Dense(4, 4)

    def construct(self, x: Any) -> Any:
        sure = self.gate(x)
        return x * sure, {"sure": sure}


class Routing(nn.Cell):
    """Keeps what its experts say in a list: MindSpore makes Python put the dicts together while the graph runs."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.CellList([Routed(), Routed()])
        self.head = nn.Dense(4, 2)

    def construct(self, x: Any) -> Any:
        said = []
        for expert in self.experts:
            y, one = expert(x)
            x = x + y
            said.append(one)
        return self.head(x), said


def test_a_dict_that_python_puts_together_hides_its_own_cell_alone() -> None:
    """Nothing is told of twice: which cells cannot tell of theirs is found out while nobody listens."""
    net, x = Routing(), tensor(2, 4)
    with ADAPTER.running(net, "graph"):
        own = Recorder(ADAPTER).arrays(net(x))
    eager, graph = seen(net, "pynative", x), seen(net, "graph", x)
    untold = {note.layer for note in ADAPTER.cautions(net) if note.message == "mindspore-untold"}
    assert untold == {"experts.0", "experts.1"}
    told = [event for event in eager.events if event.place[1] not in untold]
    assert graph.places == [event.place for event in told]
    assert all(same(one.values, other.values) for one, other in zip(told, graph.events))
    assert same(graph.events[-1].values, own)
    check_nothing_left(net)
    assert seen(net, "graph", x).places == graph.places


def test_what_an_installed_package_says_is_compiled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """MindSpore leaves functions of installed packages to Python. Which are: those beside the standard library, say."""
    for name in ("mindspore.graph._parse.jit_fallback_modules.check_utils", "mindspore._extends.parse.parser"):
        with contextlib.suppress(ImportError):
            checker = importlib.import_module(name).third_party_checker
            break
    monkeypatch.setattr(checker, "python_builtin_dir", str(Path(compiler.__file__).parents[1]))
    monkeypatch.setenv("MS_JIT_MODULES", "mine")
    net, x = made("norm")
    check_same(net, x)
    assert not [note for note in ADAPTER.cautions(net) if note.message == "mindspore-untold"]
    assert os.environ["MS_JIT_MODULES"] == "mine"


def test_a_copy_made_while_a_net_is_observed_is_compiled_without_its_hooks() -> None:
    net, x = made("norm")
    with Recorder(ADAPTER).attach(net) as recorder, ADAPTER.running(net, "graph"):
        other = copy.deepcopy(net)
        third = copy.deepcopy(other)
        other.compile(x)
        net.compile(x)
        assert same(Recorder(ADAPTER).arrays(other(x)), Recorder(ADAPTER).arrays(net(x)))
    assert len(recorder.events) == 6
    with ADAPTER.running(third, "graph"):
        third(x)
    assert not [cell for _, cell in (*other.cells_and_names(), *third.cells_and_names()) if cell._forward_pre_hook]


def test_the_net_that_a_loop_of_mindspores_evaluates_is_the_root() -> None:
    net, x = made("norm")
    model = mindspore.Model(net, nn.MSELoss(), metrics={"mse"})
    data = mindspore.dataset.GeneratorDataset([(row, row) for row in tensor(8, 4).asnumpy()], ["x", "y"]).batch(8)
    roots: list[Any] = []
    handle = ADAPTER.watch_roots(roots.append)
    with ADAPTER.running(net, "graph"):
        model.eval(data, dataset_sink_mode=False)
        model.predict(x)
    handle.remove()
    assert roots == [net, net]


class Noting(nn.Cell):
    """Keeps something on itself that is no Parameter, as one does to look at it later."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(4, 4)
        self.step = 0

    def construct(self, x: Any) -> Any:
        self.step = self.step + 1
        return self.fc(x) * self.step


def test_a_graph_that_sets_an_attribute_is_seen_from_outside_and_runs_once() -> None:
    net, x = Noting(), tensor(2, 4)
    graph = seen(net, "graph", x)
    assert graph.places == [("before", ""), ("after", "")]
    assert net.step == 1
    (note,) = [note for note in ADAPTER.cautions(net) if note.message == "mindspore-untold"]
    assert note.layer == "fc"
    assert "(step)" in str(note.facts["reason"])


@pytest.mark.skipif(compiler.bytecode_context() is None, reason="this MindSpore does not compile from bytecode")
@pytest.mark.parametrize("mode", ["pynative", None])
def test_what_is_compiled_from_bytecode_is_told_of_like_python(mode: Any) -> None:
    net, x = made("norm")
    eager = seen(net, "pynative", x)
    kind = type(net)
    net.__class__ = type("Compiled", (kind,), {"construct": mindspore.jit(kind.construct, capture_mode="bytecode")})
    own = Recorder(ADAPTER).arrays(net(x))
    graph = seen(net, mode, x)
    check_equal(eager, graph)
    assert same(graph.events[-1].values, own)
    assert same(own, Recorder(ADAPTER).arrays(net(x)))
