"""What layers compute in is shown before any number, and short types on either side raise no false alarm."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")
mindspore = pytest.importorskip("mindspore")
from mindspore import amp, ops  # noqa: E402 - only after it is known to be there
from mindspore import nn as cells  # noqa: E402 - as above
from torch import nn  # noqa: E402 - as above

import aligner  # noqa: E402 - as above
from aligner import registry  # noqa: E402 - as above
from aligner.capture.session import Capture, Options  # noqa: E402 - as above


class Net(nn.Module):
    """A convolution with its norm, attention written by hand, and a softmax; `autocast` wraps it all."""

    def __init__(self, autocast=None):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.bn, self.relu = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()
        self.ln, self.query, self.head = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 5)
        self.softmax = nn.Softmax(-1)
        self.autocast = autocast

    def forward(self, x):
        with torch.autocast("cpu", self.autocast or torch.bfloat16, enabled=self.autocast is not None):
            y = self.relu(self.bn(self.conv(x))).flatten(2).transpose(1, 2)
            z = self.query(self.ln(y))
            y = y + torch.softmax(z @ z.transpose(1, 2) / 8**0.5, -1) @ z
            with torch.autocast("cpu", enabled=False):
                return self.softmax(self.head(y.float().mean(1)))


class Port(cells.Cell):
    def __init__(self):
        super().__init__()
        self.conv = cells.Conv2d(3, 8, 3, pad_mode="valid", has_bias=True)
        self.bn, self.relu, self.ln = cells.BatchNorm2d(8), cells.ReLU(), cells.LayerNorm((8,), epsilon=1e-5)
        self.query, self.head, self.softmax = cells.Dense(8, 8), cells.Dense(8, 5), cells.Softmax(-1)

    def construct(self, x):
        y = self.relu(self.bn(self.conv(x))).flatten(start_dim=2).swapaxes(1, 2)
        z = self.query(self.ln(y))
        y = y + ops.matmul(ops.softmax(ops.matmul(z, z.swapaxes(1, 2)) / 8**0.5, -1), z)
        return self.softmax(self.head(y.mean(1)))


def answer(folder, net, port, x):
    net.eval()
    port.set_train(False)
    with torch.no_grad(), Capture(registry.of(net), net, folder / "ref.h5", Options(force=True, operations=True)):
        net(*(x if isinstance(x, tuple) else (x,)))
    replay = aligner.replay(folder / "ref.h5", port)
    with replay.capture(folder / "port.h5", Options(force=True, operations=True)):
        port(*replay.inputs(0))
    return aligner.compare(folder / "ref.h5", folder / "port.h5")


def images():
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def at(level):
    return amp.auto_mixed_precision(Port(), level)


def casts(found):
    return {
        c.layer + (f" {c.part}" if c.part else ""): (c.reference.dtype, c.port.dtype, c.exception) for c in found.casts
    }


def quiet(found):
    return found.aligned and not found.origins and not found.suspects


SHORT = ("float32", "float16", "")
LONG = ("float32", "float32", "")
CAREFUL = ("float32", "float16", "careful")


@pytest.mark.parametrize(
    ("level", "layers"),
    [
        ("O0", {}),
        ("O2", {"conv": SHORT, "bn": LONG, "ln": LONG, "head": SHORT, "softmax": CAREFUL, " softmax": CAREFUL}),
        ("O3", {"conv": SHORT, "bn": CAREFUL, "ln": CAREFUL, "head": SHORT, "softmax": CAREFUL}),
        ("auto", {"conv": SHORT, "bn": LONG, "ln": LONG, "head": SHORT, "softmax": LONG, "": SHORT}),
    ],
)
def test_each_level_is_shown_as_it_computes(tmp_path, level, layers):
    found = answer(tmp_path, Net(), at(level), images())
    assert quiet(found)
    assert {layer: row for layer, row in casts(found).items() if layer in layers} == layers
    assert bool(found.casts) == bool(layers)


def test_a_norm_forced_to_float16_is_the_difference(tmp_path):
    port = at("O2")
    port._backbone.bn._backbone.to_float(mindspore.float16)
    found = answer(tmp_path, Net(), port, images())
    assert quiet(found)
    assert casts(found)["bn"] == CAREFUL
    assert casts(found)["ln"] == LONG


def test_a_layer_that_alone_is_in_float16_is_told_with_its_cast(tmp_path):
    port = Port()
    port.query.to_float(mindspore.float16)
    found = answer(tmp_path, Net(), port, images())
    assert casts(found)["query"] == ("float32", "float16", "other")
    assert (found.aligned, found.origins) == (True, ())
    (place,) = found.suspects
    assert (place.layer, place.causes[0].id, place.causes[0].confirmed) == ("query", "dtype-differs", True)
    assert place.cast == "float16"
    assert [message for message, _ in found.warnings] == ["short-by-cast"]


def test_a_mistake_in_such_a_layer_is_no_rounding(tmp_path):
    net = nn.Sequential(nn.Linear(8, 64), nn.LayerNorm(64))
    norm = cells.LayerNorm((64,), epsilon=2e-4).to_float(mindspore.float16)
    found = answer(tmp_path, net, cells.SequentialCell(cells.Dense(8, 64), norm), torch.randn(4, 8))
    (place,) = [*found.origins, *found.suspects]
    assert (place.layer, place.cast, place.causes[0].id) == ("1", "", "layernorm-eps-default")
    assert place.own_error < 2e-3  # float16 would explain as much


def test_casts_by_lists_of_the_users_are_meant(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MindSpore writes what it has made of the source
    found = answer(tmp_path, Net(), amp.custom_mixed_precision(Port(), white_list=[cells.Conv2d]), images())
    assert quiet(found)
    assert casts(found)["conv"][:2] == ("float32", "float16")


@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("level", ["O0", "O2", "O3", "auto"])
def test_a_reference_under_autocast_raises_no_alarm(tmp_path, autocast, level):
    found = answer(tmp_path, Net(autocast), at(level), images())
    assert quiet(found), (found.origins, found.suspects)
    assert found.reference["amp"] == "autocast"
    word = str(autocast).partition(".")[2]
    assert casts(found)["conv"][0] == word
    assert casts(found).get("head", ("float32",))[0] == "float32"  # where autocast is off again


def test_a_mistake_in_a_port_of_such_a_reference_is_found(tmp_path):
    port = at("O2")
    port._backbone.ln._backbone.layer_norm = ops.LayerNorm(begin_norm_axis=-1, begin_params_axis=-1, epsilon=0.5)
    found = answer(tmp_path, Net(torch.float16), port, images())
    assert [origin.layer for origin in found.origins] == ["ln"]


class Deep(nn.Module):
    def __init__(self, size):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.act, self.second, self.third = (
            nn.Linear(16, 32),
            nn.ReLU(),
            nn.Linear(32, 16),
            nn.Linear(16, 4),
        )
        with torch.no_grad():
            self.first.weight.mul_(size)

    def forward(self, x):
        y = self.second(self.act(self.first(x)))
        return self.third(y / (1 + y.abs().max()))


class DeepPort(cells.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.act, self.second, self.third = (
            cells.Dense(16, 32),
            cells.ReLU(),
            cells.Dense(32, 16),
            cells.Dense(16, 4),
        )

    def construct(self, x):
        y = self.second(self.act(self.first(x)))
        return self.third(y / (1 + y.abs().max()))


def deep(folder, size, level="O3"):
    x = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    return answer(folder, Deep(size), amp.auto_mixed_precision(DeepPort(), level), x)


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_an_overflow_is_told_at_the_layer_where_it_starts(tmp_path, level):
    found = deep(tmp_path, 2e5, level)
    assert (found.first.key.layer, found.first.outcome.value) == ("first", "nonfinite")
    (origin,) = found.origins
    assert origin.layer == "first"
    cause = origin.causes[0]
    assert (cause.id, cause.confirmed) == ("float16-overflow", True)
    assert float(cause.facts["largest"]) > 65504


def test_what_comes_near_an_overflow_is_a_caution(tmp_path):
    found = deep(tmp_path, 2e4)
    assert quiet(found)
    ((_, facts),) = [told for told in found.warnings if told[0] == "near-overflow"]
    assert facts["layer"] in ("first", "act")
    assert 32752 < float(facts["largest"]) < 65504


def test_small_values_raise_no_caution(tmp_path):
    assert [message for message, _ in deep(tmp_path, 1.0).warnings] == []


class Summing(nn.Module):
    """Squares are summed in the net's own code."""

    def __init__(self, size):
        super().__init__()
        torch.manual_seed(2)
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 4)
        with torch.no_grad():
            self.first.weight.mul_(size)

    def forward(self, x):
        y = torch.relu(self.first(x))
        return self.second(y / torch.sqrt((y * y).sum(-1, keepdim=True) + 1e-6))


class SummingPort(cells.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.second = cells.Dense(16, 32), cells.Dense(32, 4)

    def construct(self, x):
        y = ops.relu(self.first(x))
        return self.second(y / ops.sqrt((y * y).sum(-1, keepdims=True) + 1e-6))


def test_sums_that_overflow_between_layers_are_proved_by_the_same_code_in_float32(tmp_path):
    x = torch.randn(6, 16, generator=torch.Generator().manual_seed(0))
    found = answer(tmp_path, Summing(800.0), amp.auto_mixed_precision(SummingPort(), "O2"), x)
    (origin,) = found.origins
    assert (origin.layer, origin.where) == ("", "glue")
    assert [(cause.id, cause.confirmed) for cause in origin.causes] == [("short-float-operations", True)]
    assert "sum" in str(origin.causes[0].facts["operations"])
    assert quiet(answer(tmp_path, Summing(1.0), amp.auto_mixed_precision(SummingPort(), "O2"), x))


class ByHand(SummingPort):
    def construct(self, x):
        y = ops.relu(self.first(x))
        z = (y * y).astype(mindspore.float16).sum(-1, keepdims=True)
        return self.second(y / ops.sqrt(z.astype(mindspore.float32) + 1e-6))


def test_a_cast_in_the_code_is_told_with_what_is_computed_in_it(tmp_path):
    x = torch.randn(6, 16, generator=torch.Generator().manual_seed(0))
    found = answer(tmp_path, Summing(1.0), ByHand(), x)
    assert (found.aligned, found.origins) == (True, ())
    (place,) = found.suspects
    assert (place.where, place.cast) == ("glue", "float16")
    assert "short-float-operations" in [cause.id for cause in place.causes]


@contextmanager
def compiled():
    before = mindspore.get_context("mode")
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    try:
        yield
    finally:
        mindspore.set_context(mode=before)


def test_casts_in_the_code_of_a_compiled_net_are_heard_in_the_forced_pass(tmp_path):
    x = torch.randn(6, 16, generator=torch.Generator().manual_seed(0))
    with compiled():
        found = answer(tmp_path, Summing(1.0), ByHand(), x)
    assert (found.aligned, found.port["mode"]) == (True, "graph")
    assert [(place.cast, place.causes[0].id) for place in found.suspects] == [("float16", "code-edit")]


class Wound(SummingPort):
    def construct(self, x):
        y = ops.relu(self.first(x))
        return self.second(ops.sin(y * 3.0) * ops.cos(y) / ops.sqrt((y * y).sum(-1, keepdims=True) + 1e-6))


class Jitted(Wound):
    construct = mindspore.jit(Wound.construct)


def test_what_the_code_of_a_compiled_net_runs_is_heard_in_the_forced_pass(tmp_path):
    x = torch.randn(6, 16, generator=torch.Generator().manual_seed(0))
    (eager,) = answer(tmp_path, Summing(1.0), Wound(), x).origins
    told = {cause.id: cause.facts for cause in eager.causes}
    assert "sin" in str(told) or eager.edit is not None
    with compiled():
        (origin,) = answer(tmp_path, Summing(1.0), Wound(), x).origins
    assert {cause.id: cause.facts for cause in origin.causes} == told
    (origin,) = answer(tmp_path, Summing(1.0), Jitted(), x).origins
    assert [cause.id for cause in origin.causes] == [*told]


class Hiding(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.softmax, self.second = nn.Linear(16, 16), nn.Softmax(-1), nn.Linear(16, 4)

    def forward(self, x, seen):
        return self.second(self.softmax(self.first(x) + (1.0 - seen) * -1e9))


class HidingPort(cells.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.softmax, self.second = cells.Dense(16, 16), cells.Softmax(-1), cells.Dense(16, 4)

    def construct(self, x, seen):
        return self.second(self.softmax(self.first(x) + (1.0 - seen) * -1e9))


def test_a_mask_that_overflows_where_it_hides_nothing_is_proved(tmp_path):
    seen = torch.ones(16)
    seen[12:] = 0
    found = answer(tmp_path, Hiding(), amp.auto_mixed_precision(HidingPort(), "O2"), (torch.randn(5, 16), seen))
    (origin,) = found.origins
    assert (origin.layer, origin.between) == ("", ("first", "softmax"))
    assert (origin.causes[0].id, origin.causes[0].confirmed) == ("float16-overflow", True)


@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_large_numbers_are_rounded_more_where_they_cancel(tmp_path, autocast):
    class Large(Deep):
        def forward(self, x):
            with torch.autocast("cpu", autocast):
                return super().forward(x)

    x = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    assert quiet(answer(tmp_path, Large(400.0), DeepPort(), x))


class Filled(Hiding):
    """Most of what the softmax sees is hidden by a large number; `scale` is forgotten by a port."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x, seen):
        return self.second(self.softmax((self.first(x) * self.scale).masked_fill(seen == 0, -1e9)))


class FilledPort(HidingPort):
    def construct(self, x, seen):
        return self.second(self.softmax(self.first(x).astype(mindspore.float32).masked_fill(seen == 0, -1e9)))


def test_a_mask_hides_no_mistake_in_a_short_type(tmp_path):
    seen = (torch.rand(5, 16, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    port = FilledPort()
    for layer in (port.first, port.second):
        layer.to_float(mindspore.float16)
    found = answer(tmp_path, Filled(0.5), port, (torch.randn(5, 16), seen))
    assert [(o.layer, o.where) for o in found.origins] == [("", "glue")]


class Long(nn.Module):
    """A softmax of long rows, added up. A cast in the code of a float16 cell counts in a graph, and not eagerly."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.first, self.second = nn.Linear(16, 4096), nn.Linear(4096, 4)

    def forward(self, x):
        return self.second(torch.cumsum(torch.softmax(self.first(x), -1), -1))


class LongPort(cells.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.second = cells.Dense(16, 4096), cells.Dense(4096, 4)

    def construct(self, x):
        return self.second(ops.cumsum(ops.softmax(self.first(x), -1).astype(mindspore.float32), -1))


@pytest.mark.parametrize("mode", ["PYNATIVE_MODE", "GRAPH_MODE"])
def test_what_is_right_in_the_graph_alone_is_no_origin_of_it(tmp_path, mode):
    before = mindspore.get_context("mode")
    mindspore.set_context(mode=getattr(mindspore, mode))
    try:
        found = answer(tmp_path, Long(), amp.auto_mixed_precision(LongPort(), "O2"), torch.randn(5, 16))
    finally:
        mindspore.set_context(mode=before)
    warned = "wrong-when-eager" in [message for message, _ in found.warnings]
    assert (bool(found.origins), warned) == ((True, False) if mode == "PYNATIVE_MODE" else (False, True))


class Careful(nn.Module):
    """Its eps is far below the variance of what it norms: another one is proved by a trial, and by nothing else."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.fc, self.norm = nn.Linear(16, 16), nn.LayerNorm(16, eps=1e-12)

    def forward(self, x):
        return self.norm(self.fc(x))


class CarefulPort(cells.Cell):
    def __init__(self):
        super().__init__()
        self.fc, self.norm = cells.Dense(16, 16), cells.LayerNorm((16,), epsilon=2e-6)

    def construct(self, x):
        return self.norm(self.fc(x))


@pytest.mark.parametrize("mode", ["PYNATIVE_MODE", "GRAPH_MODE"])
def test_a_mistake_no_larger_than_rounding_is_in_the_graph_too(tmp_path, mode):
    """The graph's value is as far off as the eager one: it is not "right in the compiled graph"."""
    before = mindspore.get_context("mode")
    mindspore.set_context(mode=getattr(mindspore, mode))
    try:
        found = answer(tmp_path, Careful(), CarefulPort(), torch.randn(5, 16))
    finally:
        mindspore.set_context(mode=before)
    assert [message for message, _ in found.warnings] == ["below-tolerance"]
    assert [(place.layer, place.causes[0].confirmed) for place in found.suspects] == [("norm", True)]


def test_a_setting_whose_effect_the_references_rounding_hides_is_a_warning(tmp_path):
    port = Port()
    port.ln = cells.LayerNorm((8,), epsilon=1e-4)
    found = answer(tmp_path, Net(torch.bfloat16), port, images())
    assert quiet(found)
    ((_, facts),) = [told for told in found.warnings if told[0] == "setting-below-rounding"]
    assert (facts["layer"], facts["settings"], facts["type"]) == ("ln", "eps", "bfloat16")
