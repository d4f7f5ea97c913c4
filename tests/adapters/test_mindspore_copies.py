"""Copies of MindSpore's layers with other settings or in another precision, and how such layers are spelled."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")

from aligner_hooks.mindspore_ import MindSporeAdapter, operations  # noqa: E402 - only where MindSpore is installed
from mindspore import Parameter, Tensor, mint, nn, ops  # noqa: E402 - likewise

from aligner.testing import Recorder  # noqa: E402 - stands with the imports it belongs to

ADAPTER = MindSporeAdapter()


def tensor(*shape: int, seed: int = 0) -> Tensor:
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def values(value: Any) -> Any:
    return ADAPTER.to_numpy(value).copy()


def apart(found: Any, wanted: Any) -> float:
    """Relative L2 of two tensors."""
    found, wanted = values(found).astype(np.float64), values(wanted).astype(np.float64)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


class Scaled(nn.Cell):
    """A norm as users write their own: its settings are plain attributes."""

    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = Parameter(tensor(4, seed=1), name="weight")
        self.drop = ops.Dropout(keep_prob=0.5)

    def construct(self, x):
        return x * ops.rsqrt((x * x).mean(-1, keep_dims=True) + self.eps) * self.weight


class Mixed(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, pad_mode="pad", padding=1, has_bias=True)
        self.bn = nn.BatchNorm2d(4, eps=1e-3)
        self.head = nn.SequentialCell(nn.Dense(4, 4), nn.LayerNorm((4,)), nn.GELU())

    def construct(self, x):
        return self.head(self.bn(self.conv(x)).mean((2, 3)))


def mixed(level: str) -> nn.Cell:
    """The same weights whatever the level."""
    net = Mixed()
    for parameter in ADAPTER.parameters(net):
        array = np.random.default_rng(len(parameter.name)).uniform(0.2, 1.2, parameter.shape).astype(np.float32)
        ADAPTER.load(parameter, array, "float32")
    if level == "to_float":
        return net.to_float(mindspore.float16)
    return mindspore.amp.auto_mixed_precision(net, level) if level else net


def layer_inputs() -> dict[str, Tensor]:
    """What each layer of `Mixed` may be given."""
    rows = tensor(2, 4)
    return {"": tensor(2, 3, 6, 6), "conv": tensor(2, 3, 6, 6), "bn": tensor(2, 4, 5, 5), "head": rows} | {
        f"head.{n}": rows for n in range(3)
    }


class TestMixedPrecision:
    @pytest.mark.parametrize("level", ["O1", "O2", "O3", "auto", "to_float"])
    def test_a_copy_computes_in_float32_whatever_the_net_was_made_to_do(self, level):
        plain, net = mixed(""), mixed(level)
        wanted, layers = dict(ADAPTER.layers(plain)), dict(ADAPTER.layers(net))
        assert list(layers) == list(wanted)
        for path, x in layer_inputs().items():
            short = layers[path](x)
            copy: Any = ADAPTER.respecified(layers[path], {}, "float32")
            assert ADAPTER.spec(copy) == ADAPTER.spec(wanted[path])
            assert [p.name for p in ADAPTER.parameters(copy)] == [p.name for p in ADAPTER.parameters(wanted[path])]
            for given in (x, x.astype(mindspore.float16)):
                found = copy(given)
                assert ADAPTER.dtype(found) == "float32"
                assert apart(found, wanted[path](given.astype(mindspore.float32))) < 2e-7, path
            assert ADAPTER.dtype(layers[path](x)) == ADAPTER.dtype(short)
            np.testing.assert_array_equal(values(layers[path](x)), values(short))  # the original computes as before

    @pytest.mark.parametrize("level", ["O2", "O3", "auto"])
    def test_a_plain_copy_computes_as_short_as_the_original(self, level):
        net = mixed(level)
        for path, layer in ADAPTER.layers(net):
            x = layer_inputs()[path]
            copy: Any = ADAPTER.respecified(layer, {})
            found, wanted = copy(x), layer(x)
            assert ADAPTER.dtype(found) == ADAPTER.dtype(wanted)
            np.testing.assert_array_equal(values(found), values(wanted))

    def test_a_copy_with_other_settings_keeps_the_casts(self):
        layer = nn.Dense(4, 4).to_float(mindspore.float16)
        x = tensor(3, 4)
        assert ADAPTER.dtype(ADAPTER.respecified(layer, {"bias": False})(x)) == "float16"
        assert ADAPTER.dtype(ADAPTER.respecified(layer, {"bias": False}, "float32")(x)) == "float32"

    def test_a_second_net_cast_by_o1_has_layers_of_mindspores_too(self):
        """MindSpore makes its classes anew for it, under another module."""
        for _ in range(2):
            net = mixed("O1")
            assert ADAPTER.spec(net.conv) == ADAPTER.spec(mixed("").conv)
            assert ADAPTER.type_name(net.conv) == "mindspore.nn.Conv2d"
            assert ADAPTER.type_name(net) == f"{__name__}.Mixed"
            line = mindspore.amp.auto_mixed_precision(nn.SequentialCell(nn.Conv1d(2, 3, 3)), "O1")
            assert [p.shape for p in ADAPTER.parameters(line)] == [(3, 2, 3)]

    def test_wrappers_inside_a_layer_are_put_around_the_copys_parts(self):
        net = nn.SequentialCell(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))
        net = mindspore.amp.auto_mixed_precision(net, "O2")
        layer: Any = dict(ADAPTER.layers(net))["0"]
        copy: Any = ADAPTER.respecified(layer, {"norm_first": True})
        wanted = [type(cell).__name__ for _, cell in layer.cells_and_names()]
        assert "_OutputTo16" in wanted
        assert [type(cell).__name__ for _, cell in copy.cells_and_names()] == wanted
        assert ADAPTER.dtype(copy(tensor(2, 3, 8))) == ADAPTER.dtype(layer(tensor(2, 3, 8)))
        long: Any = ADAPTER.respecified(layer, {"norm_first": True}, "float32")
        assert ADAPTER.dtype(long(tensor(2, 3, 8))) == "float32"

    @pytest.mark.parametrize("level", ["auto", "O3", "to_float"])
    def test_inside_a_net_that_casts_a_copy_computes_in_float32(self, level):
        """Trials may run where the net runs: what the net makes of operators around must not reach the copy."""
        net, rows, found = mixed(level), tensor(2, 4), []
        copy: Any = ADAPTER.respecified(mixed("").head[0], {}, "float32")
        layer = dict(ADAPTER.layers(net))["head.1"]
        handle = ADAPTER.observe(layer, lambda *_: found.append(copy(rows)), lambda *_: None)
        net(tensor(2, 3, 6, 6))
        handle.remove()
        assert apart(found[0], mixed("").head[0](rows)) < 2e-7

    @pytest.mark.parametrize("level", ["", "O1", "O2", "O3", "auto", "to_float"])
    @pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
    def test_a_net_is_cast_as_a_whole(self, level, dtype):
        net = mixed(level)
        ADAPTER.cast(net, dtype)
        assert {p.dtype for p in ADAPTER.parameters(net)} == {dtype}
        if dtype != "float64":  # MindSpore has no float64 kernel of a convolution on CPU
            assert ADAPTER.dtype(net(tensor(2, 3, 6, 6))) == dtype
        rows = ADAPTER.from_numpy(values(tensor(2, 4)).astype(dtype), dtype)
        assert ADAPTER.dtype(dict(ADAPTER.layers(net))["head.0"](rows)) == dtype

    def test_only_known_types_are_cast_to(self):
        with pytest.raises(ValueError, match="cannot be put into int8; known are float64, "):
            ADAPTER.cast(nn.Dense(2, 2), "int8")


class TestCopies:
    def test_it_has_no_hooks_of_anybody(self):
        net, seen = nn.SequentialCell(nn.Dense(4, 4), nn.ReLU()), []
        net.hook_count = 3  # the user's own, whatever it is called
        net[0].register_forward_hook(lambda *_: seen.append("user"))
        net[0].register_backward_hook(lambda *_: None)
        with Recorder(ADAPTER).attach(net) as recorder:
            copy: Any = ADAPTER.respecified(net, {})
            copy(tensor(2, 4))
        assert copy.hook_count == 3
        assert seen == []
        assert recorder.events == []
        net(tensor(2, 4))
        assert seen == ["user"]

    def test_it_goes_when_it_is_no_longer_used(self):
        """Many trials are made, of layers with many weights: none waits for the garbage collector."""
        gc.disable()
        try:
            for layer, changes in ((nn.Dense(4, 4), {"bias": False}), (mixed(""), {}), (nn.ELU(), {"alpha": 0.5})):
                for dtype in (None, "float32"):
                    copy: Any = ADAPTER.respecified(layer, changes, dtype)
                    gone = weakref.ref(copy)
                    del copy
                    assert gone() is None
        finally:
            gc.enable()

    def test_a_copy_of_a_copy_is_one_of_its_own(self):
        layer = nn.LayerNorm((4,)).to_float(mindspore.float16)
        first: Any = ADAPTER.respecified(layer, {}, "float32")
        second: Any = ADAPTER.respecified(first, {})
        x = tensor(3, 4).astype(mindspore.float16)
        wanted = values(first(x))
        ADAPTER.load(next(iter(ADAPTER.parameters(first))), np.full(4, 7, np.float32), "float32")
        del first
        np.testing.assert_array_equal(values(second(x)), wanted)

    def test_primitives_are_copied_as_they_are_now(self):
        layer = Scaled()
        silenced = ADAPTER.silence_dropout(layer)
        copy: Any = ADAPTER.respecified(layer, {})
        assert copy.drop.keep_prob == 1.0
        silenced.remove()

    def test_tied_weights_stay_tied(self):
        net = nn.SequentialCell(nn.Dense(4, 4), nn.Dense(4, 4))
        net[1].weight = net[0].weight
        copy: Any = ADAPTER.respecified(net, {})
        assert copy[0].weight is copy[1].weight
        assert copy[0].weight is not net[0].weight

    def test_a_layer_of_the_users_gets_the_attribute(self):
        layer, x = Scaled(), tensor(3, 4)
        copy: Any = ADAPTER.respecified(layer, {"eps": 0.5})
        assert ADAPTER.spec(copy).attributes["eps"] == 0.5
        np.testing.assert_array_equal(values(copy(x)), values(Scaled(0.5)(x)))
        assert layer.eps == 1e-6

    def test_a_layer_of_the_users_may_be_called_like_one_of_the_vocabulary(self):
        class Pad(nn.Cell):
            def __init__(self):
                super().__init__()
                self.width = 1

            def construct(self, x):
                return ops.pad(x, (self.width, self.width))

        copy: Any = ADAPTER.respecified(Pad(), {"width": 2})
        assert copy(tensor(2, 3)).shape == (2, 7)

    def test_a_subclass_that_computes_as_its_base_is_made_as_that(self):
        class Three(nn.Conv2d):
            def __init__(self, channels):
                super().__init__(channels, channels, 3, pad_mode="pad", padding=1, has_bias=True)

        layer, x = Three(4), tensor(2, 4, 6, 6)
        copy: Any = ADAPTER.respecified(layer, {"stride": (2, 2)})
        np.testing.assert_allclose(values(copy(x)), values(layer(x))[:, :, ::2, ::2], rtol=1e-5, atol=1e-6)
        assert ADAPTER.expression(layer) == "nn.Conv2d(4, 4, 3, has_bias=True, pad_mode='pad', padding=1)"

    def test_modes_and_frozen_weights_are_taken_over(self):
        layer = nn.BatchNorm2d(4)
        layer.set_train()
        layer.gamma.requires_grad = False
        copy: Any = ADAPTER.respecified(layer, {"eps": 0.5})
        assert copy.training
        assert not copy.gamma.requires_grad
        assert copy.beta.requires_grad
        x = tensor(3, 4, 2, 2)
        copy(x)
        assert np.any(values(copy.moving_mean))
        assert not np.any(values(layer.moving_mean))

    def test_short_weights_stay_short(self):
        layer = nn.Dense(4, 4, dtype=mindspore.float16)
        copy: Any = ADAPTER.respecified(layer, {"bias": False})
        assert ADAPTER.dtype(copy.weight) == "float16"
        np.testing.assert_array_equal(values(copy.weight), values(layer.weight))

    def test_no_random_numbers_of_the_users_are_drawn(self):
        np.random.seed(3)
        before = np.random.get_state()[1].copy()
        for layer in (nn.LSTM(3, 4), nn.Dense(3, 4), nn.MultiheadAttention(4, 2)):
            np.random.seed(3)
            ADAPTER.respecified(layer, {"bias": False})
            ADAPTER.expression(layer)
            np.testing.assert_array_equal(np.random.get_state()[1], before)

    def test_a_layer_norm_over_more_axes_runs(self):
        """MindSpore's operator takes no negative first axis but -1."""
        layer = nn.LayerNorm((3, 4), begin_norm_axis=-1, begin_params_axis=-2, epsilon=1e-5)
        copy: Any = ADAPTER.respecified(layer, {"normalized_shape": (3, 4)})
        x = tensor(2, 3, 4)
        wanted = nn.LayerNorm((3, 4), begin_norm_axis=1, begin_params_axis=1, epsilon=1e-5)(x)
        np.testing.assert_allclose(values(copy(x)), values(wanted), rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize(
        ("make", "changes", "reason"),
        [
            (lambda: nn.Conv2d(3, 4, 3), {"padding_mode": "reflect"}, "pads with zeros only"),
            (lambda: nn.Conv2d(3, 4, 3), {"colour": 1}, "Conv2d has no setting colour; its settings: in_channels"),
            (lambda: nn.Conv2d(4, 4, 3), {"groups": 2}, "weight would have the shape (4, 2, 3, 3)"),
            (lambda: nn.Conv1d(3, 4, 3), {"padding": ((0, 2),)}, "nn.Conv1d cannot be made with these settings"),
            (lambda: nn.MaxPool2d(2), {"padding": ((0, 1), (0, 1))}, "pads both ends of an axis alike"),
            (lambda: nn.LayerNorm((4,)), {"affine": False}, "nn.LayerNorm cannot be made with these settings"),
            (lambda: nn.ReflectionPad2d(1), {"mode": "circular"}, "nn.ReflectionPad2d cannot be made"),
            (
                lambda: nn.Conv2dTranspose(3, 4, 3, 2, "valid"),
                {"output_padding": (1, 1)},
                "cannot add more rows at the end",
            ),
            (lambda: nn.PReLU(), {"num_parameters": 4}, "weight would have the shape (4,) and not (1,)"),
        ],
    )
    def test_what_cannot_be_is_refused_with_the_reason(self, make, changes, reason):
        layer = make()
        with pytest.raises(ValueError) as error:
            ADAPTER.respecified(layer, changes)
        assert reason in str(error.value)

    def test_what_cannot_be_copied_says_so(self):
        layer = Scaled()
        layer.lock = (tensor(1) for _ in ())  # a generator
        with pytest.raises(ValueError, match="Scaled cannot be copied: TypeError: cannot pickle"):
            ADAPTER.respecified(layer, {})


class TestSpelling:
    @pytest.mark.parametrize(
        ("make", "text"),
        [
            (lambda: nn.Conv2d(3, 8, 3, has_bias=True), "nn.Conv2d(3, 8, 3, has_bias=True)"),
            (
                lambda: nn.Conv2d(3, 8, (3, 5), (2, 1), "pad", (1, 1, 2, 2), has_bias=True),
                "nn.Conv2d(3, 8, (3, 5), stride=(2, 1), has_bias=True, pad_mode='pad', padding=(1, 1, 2, 2))",
            ),
            (lambda: nn.LayerNorm((4,), epsilon=1e-5), "nn.LayerNorm((4,), epsilon=1e-05)"),
            (lambda: nn.BatchNorm2d(4, momentum=0.99), "nn.BatchNorm2d(4, momentum=0.99)"),
            (lambda: nn.Dropout(0.9), "nn.Dropout(p=0.1)"),
            (lambda: nn.GELU(approximate=False), "nn.GELU(approximate=False)"),
            (lambda: mint.nn.GELU(), "mint.nn.GELU()"),
            (lambda: nn.MaxPool2d(2, 2), "nn.MaxPool2d(kernel_size=2, stride=2)"),
            (lambda: nn.Dense(3, 4).to_float(mindspore.float16), "nn.Dense(3, 4).to_float(ms.float16)"),
            (lambda: nn.SequentialCell(nn.Dense(3, 4), nn.ReLU()), "nn.SequentialCell(nn.Dense(3, 4), nn.ReLU())"),
            (lambda: nn.CellDict({"a": nn.ReLU()}), "nn.CellDict({'a': nn.ReLU()})"),
            (
                lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, activation=ops.relu), 3),
                "nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, activation=ops.relu), 3)",
            ),
        ],
    )
    def test_it_is_as_short_as_a_person_would_write_it(self, make, text):
        layer = make()
        names: dict[str, Any] = {}
        exec(ADAPTER.preamble(), names)
        assert ADAPTER.expression(layer) == text
        assert ADAPTER.spec(eval(ADAPTER.expression(layer), names)) == ADAPTER.spec(layer)

    def test_what_has_no_name_is_not_spelled(self):
        class Mine(nn.ReLU):
            def construct(self, x):
                return x

        with pytest.raises(ValueError, match="Mine is not a layer of MindSpore's"):
            ADAPTER.expression(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 1, norm=Mine()))
        with pytest.raises(ValueError, match="Scaled is not a layer of MindSpore's"):
            ADAPTER.expression(nn.SequentialCell(nn.ReLU(), Scaled()))


@pytest.mark.skipif(not operations.supported(), reason="MindSpore tells of its operators from 2.10 on")
class TestOperations:
    @pytest.mark.parametrize(
        ("name", "word"),
        [("MatMulExt", "matmul"), ("TransposeExtView", "transpose"), ("Muls", "mul"), ("ReduceMean", "mean")],
    )
    def test_names_are_plain_words(self, name, word):
        assert operations.word(name) == word

    @pytest.mark.parametrize("level", ["", "O1", "O2", "O3", "auto"])
    def test_no_bit_changes_where_nets_cast(self, level):
        net, x, names = mixed(level), tensor(2, 3, 6, 6), []
        wanted = values(net(x))
        handle = ADAPTER.operations(names.append)
        found = values(net(x))
        handle.remove()
        np.testing.assert_array_equal(found, wanted)
        assert {"conv2d", "batchnorm", "matmul"} <= set(names)
        assert ("cast" in names) == bool(level)

    def test_a_mode_of_the_users_stays_in_place(self):
        class Counting(mindspore.utils.MsDispatchMode):
            def __init__(self):
                self.seen = []

            def __ms_dispatch__(self, func, args, kwargs=None):
                self.seen.append(func.name)
                return func(*args)

        x, names, counting = tensor(2, 2), [], Counting()
        handle = ADAPTER.operations(names.append)
        with counting:
            handle.remove()
            x * x
        assert len(counting.seen) == 1
        x + x
        assert names == []
        again = ADAPTER.operations(names.append)
        x + x
        again.remove()
        x + x
        assert names == ["add"]
