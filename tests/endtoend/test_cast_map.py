"""What layers compute in is shown before any number, and short types on either side raise no false alarm."""

from __future__ import annotations

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
        net(x)
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
    (place,) = [*found.origins, *found.suspects]
    assert (place.layer, place.causes[0].id, place.causes[0].confirmed) == ("query", "dtype-differs", True)


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
