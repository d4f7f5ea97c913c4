"""Weights that are several on one side and one on the other: a BatchNorm folded away, weight norm undone."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there
from torch.nn import functional as F  # noqa: E402 - as above

import aligner  # noqa: E402 - as above
from aligner.errors import ReplayError  # noqa: E402 - as above
from tests.endtoend import pairs  # noqa: E402 - as above


class Unit(nn.Module):
    """A convolution and its norm, or a convolution that is both."""

    def __init__(self, ins, outs, norm, bias, **settings):
        super().__init__()
        self.conv = nn.Conv2d(ins, outs, 3, padding=1, bias=bias or not norm, **settings)
        if norm:
            self.bn = nn.BatchNorm2d(outs, eps=1e-3)

    def forward(self, x):
        x = self.conv(x)
        return self.bn(x) if hasattr(self, "bn") else x


class Residual(nn.Module):
    """A net whose norms end in a sum, a ReLU, a pool and a vector; `first` is defined before the others."""

    def __init__(self, norm, bias=False, names=("stem", "one", "two", "across"), first=0):
        super().__init__()
        self.names = names
        for name in (names[first], *names[:first], *names[first + 1 :]):
            settings = {"groups": 4} if name == names[1] else {}
            setattr(self, name, Unit(3 if name == names[0] else 8, 8, norm, bias, **settings))
        self.fc = nn.Linear(8, 6, bias=bias or not norm)
        if norm:
            self.bn = nn.BatchNorm1d(6)
        self.relu, self.head = nn.ReLU(), nn.Linear(6, 4)

    def forward(self, x):
        stem, one, two, across = (getattr(self, name) for name in self.names)
        x = self.relu(stem(x))
        x = self.relu(two(F.relu(one(x))) + across(x))
        x = self.fc(x.mean((2, 3)))
        return self.head(self.relu(self.bn(x) if hasattr(self, "bn") else x))


RENAMED = ("first", "a", "b", "side")

FOLDS = {
    "norms": lambda: Residual(True),
    "norms and biases": lambda: Residual(True, True),
    "norms renamed": lambda: Residual(True, names=RENAMED),
    "norms in another order": lambda: Residual(True, names=RENAMED, first=3),
    "none in another order": lambda: Residual(False, names=RENAMED, first=3),
    "none": lambda: Residual(False),
    "none renamed": lambda: Residual(False, names=RENAMED),
}


def randomised(net):
    torch.manual_seed(0)
    for name, tensor in (*net.named_parameters(), *net.named_buffers()):
        if not tensor.is_floating_point():
            continue
        positive = name.endswith("running_var") or (tensor.ndim == 1 and name.endswith("weight"))
        with torch.no_grad():
            tensor.uniform_(0.5, 2.0) if positive else tensor.normal_(0.0, 0.3)


def compared(tmp_path, net, port, inputs, spoil=None):
    randomised(net)
    torch.manual_seed(1)
    return pairs.compared(tmp_path, net, port, inputs, spoil=spoil)


def pictures():
    torch.manual_seed(2)
    return torch.randn(2, 3, 6, 6)


def right(result):
    assert result.aligned
    assert not result.origins
    assert not result.counts["unmatched"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("norms", "none"),
        ("norms and biases", "none"),
        ("norms", "none renamed"),
        ("norms renamed", "none"),
        ("none", "norms"),
        ("none", "norms and biases"),
        ("none", "norms renamed"),
        ("none renamed", "norms"),
        ("norms", "none in another order"),
        ("none", "norms in another order"),
        ("norms in another order", "none"),
        ("none in another order", "norms"),
    ],
)
def test_a_norm_is_folded_into_the_layer_before_it(tmp_path, one, other):
    right(compared(tmp_path, FOLDS[one](), FOLDS[other](), pictures()))


def with_another_variance(port):
    """As if folded with a running variance that is wrong in one channel."""
    port.one.conv.weight[3] *= 1.3
    port.one.conv.bias[3] *= 1.3


def with_another_eps(port):
    """As if folded with an eps of 1e-5 where the variances are about 1."""
    port.one.conv.weight *= 1.0004
    port.one.conv.bias *= 1.0004


def with_another_bias(port):
    port.two.conv.bias[1] += 0.5


def with_another_norm(port):
    port.one.bn.running_var[2] = 3.0


@pytest.mark.parametrize(
    ("one", "other", "spoil", "wanted"),
    [
        (
            "norms",
            "none",
            with_another_variance,
            {("one.conv", "weight[bn]", "one.conv.weight"), ("one.conv", "bias[bn]", "one.conv.bias")},
        ),
        ("norms", "none", with_another_bias, {("two.conv", "bias[bn]", "two.conv.bias")}),
        ("none", "norms", with_another_norm, {("one.conv", "weight", "one.conv.weight[bn]")}),
    ],
    ids=["one variance", "one bias", "a variance beside a weight"],
)
def test_a_weight_that_is_folded_wrong_is_named(tmp_path, one, other, spoil, wanted):
    result = compared(tmp_path, FOLDS[one](), FOLDS[other](), pictures(), spoil)
    assert {origin.where for origin in result.origins} == {"parameters"}
    assert {(o.layer, o.slot, o.causes[0].facts["port_parameter"]) for o in result.origins} <= wanted
    assert {origin.causes[0].id for origin in result.origins} == {"parameter-differs"}


def test_an_eps_that_is_folded_wrong_is_no_more_than_it_is(tmp_path):
    """4 parts in 10000: beneath the tolerance for values, and told of by nothing that is no parameter."""
    result = compared(tmp_path, FOLDS["norms"](), FOLDS["none"](), pictures(), with_another_eps)
    assert {(origin.layer, origin.where) for origin in result.origins} <= {("one.conv", "parameters")}


@pytest.mark.parametrize(("one", "other"), [("norms", "none"), ("none", "norms")])
def test_a_setting_that_is_wrong_is_still_the_convolution_s(tmp_path, one, other):
    port = FOLDS[other]()
    port.two.conv.padding_mode = "circular"
    port.two.conv._reversed_padding_repeated_twice = [1, 1, 1, 1]
    result = compared(tmp_path, FOLDS[one](), port, pictures())
    assert [(o.layer, o.where, o.causes[0].facts["setting"]) for o in result.origins] == [
        ("two.conv", "layer", "padding_mode")
    ]


class Doubled(Residual):
    """One branch counts twice."""

    def forward(self, x):
        x = self.relu(self.stem(x))
        x = self.relu(self.two(F.relu(self.one(x))) * 2 + self.across(x))
        x = self.fc(x.mean((2, 3)))
        return self.head(self.relu(self.bn(x) if hasattr(self, "bn") else x))


@pytest.mark.parametrize("norms", [True, False])
def test_a_line_that_is_wrong_is_still_the_net_s(tmp_path, norms):
    result = compared(tmp_path, Residual(norms), Doubled(not norms), pictures())
    assert [(o.layer, o.where, o.causes[0].id) for o in result.origins] == [("", "glue", "code-edit")]


@pytest.mark.parametrize(("one", "other"), [("norms", "none"), ("none", "norms")])
def test_in_train_mode_nothing_is_folded(tmp_path, one, other):
    net = FOLDS[one]()
    with torch.no_grad(), aligner.capture(net.train(), tmp_path / "ref.h5"):
        net(pictures())
    with pytest.raises(ReplayError) as raised:
        aligner.replay(tmp_path / "ref.h5", FOLDS[other]())
    assert raised.value.message == "weights-folded-training"


def test_a_norm_that_was_forgotten_is_not_taken_for_a_folded_one(tmp_path):
    port = FOLDS["norms and biases"]()
    del port.one.bn
    with pytest.raises(ReplayError) as raised:
        compared(tmp_path, FOLDS["norms"](), port, pictures())
    assert raised.value.message.startswith("weights-left")


class Waves(nn.Module):
    """Convolutions with weights that are kept whole, or as a direction and a length."""

    def __init__(self, norm=lambda layer: layer):
        super().__init__()
        self.pre = norm(nn.Conv1d(3, 8, 3, padding=1))
        self.blocks = nn.ModuleList(norm(nn.Conv1d(8, 8, 3, padding=1)) for _ in range(2))
        self.up = norm(nn.ConvTranspose1d(8, 4, 4, 2, 1))
        self.post = norm(nn.Linear(4, 4))

    def forward(self, x):
        x = self.pre(x)
        for block in self.blocks:
            x = x + F.leaky_relu(block(x), 0.1)
        return self.post(self.up(x).transpose(1, 2))


class Wave(nn.Module):
    """A convolution whose author has written the norm himself."""

    def __init__(self, layer):
        super().__init__()
        self.v = nn.Parameter(layer.weight.detach().clone())
        self.g = nn.Parameter(torch.ones(len(layer.weight), *[1] * (layer.weight.ndim - 1)))
        self.bias = nn.Parameter(layer.bias.detach().clone())
        self.settings = {} if isinstance(layer, nn.Linear) else {"stride": layer.stride, "padding": layer.padding}
        self.function = {nn.Linear: F.linear, nn.Conv1d: F.conv1d}.get(type(layer), F.conv_transpose1d)

    def forward(self, x):
        weight = self.g * self.v / self.v.flatten(1).norm(dim=1).reshape(self.g.shape)
        return self.function(x, weight, self.bias, **self.settings)


NORMED = {
    "whole": Waves,
    "hooked": lambda: Waves(hooked),
    "parametrized": lambda: Waves(nn.utils.parametrizations.weight_norm),
    "of one length": lambda: Waves(lambda layer: nn.utils.parametrizations.weight_norm(layer, dim=None)),
    "of inputs": lambda: Waves(lambda layer: nn.utils.parametrizations.weight_norm(layer, dim=1)),
    "by hand": lambda: Waves(Wave),
}


def hooked(layer):
    with pytest.warns(FutureWarning):
        return nn.utils.weight_norm(layer)


def waves():
    torch.manual_seed(2)
    return torch.randn(2, 3, 10)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("hooked", "whole"),
        ("whole", "hooked"),
        ("parametrized", "whole"),
        ("whole", "parametrized"),
        ("of one length", "whole"),
        ("whole", "of one length"),
        ("of inputs", "whole"),
        ("whole", "of inputs"),
        ("by hand", "whole"),
        ("whole", "by hand"),
        ("hooked", "parametrized"),
        ("parametrized", "by hand"),
        ("of inputs", "parametrized"),
    ],
)
def test_a_weight_is_the_same_as_its_direction_and_length(tmp_path, one, other):
    right(compared(tmp_path, NORMED[one](), NORMED[other](), waves()))


def longer(port):
    port.blocks[1].weight[2] *= 1.5


def longer_apart(port):
    port.blocks[1].weight_g[2] *= 1.5


@pytest.mark.parametrize(("one", "other", "spoil"), [("hooked", "whole", longer), ("whole", "hooked", longer_apart)])
def test_a_length_that_is_wrong_in_one_channel_is_named(tmp_path, one, other, spoil):
    result = compared(tmp_path, NORMED[one](), NORMED[other](), waves(), spoil)
    assert [(o.layer, o.slot, o.where) for o in result.origins] == [("blocks.1", "weight", "parameters")]
    cause = result.origins[0].causes[0]
    assert (cause.id, cause.facts["first"]) == ("parameter-differs", "(2, 0, 0)")


class Kinds(nn.Module):
    """Norms behind every kind of layer that they are folded into, one without numbers of its own."""

    def __init__(self, norms):
        super().__init__()
        self.one, self.two = nn.Conv1d(3, 8, 3, bias=not norms), nn.ConvTranspose1d(8, 6, 2, 2, bias=not norms)
        self.three = nn.Conv2d(6, 4, (1, 3), bias=not norms)
        self.four = nn.Conv3d(4, 5, 1, bias=not norms)
        if norms:
            self.n1, self.n2 = nn.BatchNorm1d(8), nn.BatchNorm1d(6, affine=False)
            self.n3, self.n4 = nn.BatchNorm2d(4), nn.BatchNorm3d(5)
        self.norms = norms

    def forward(self, x):
        for index, name in enumerate(("one", "two", "three", "four")):
            x = x.unsqueeze(2) if index > 1 else x
            x = getattr(self, name)(x)
            x = F.relu(getattr(self, f"n{index + 1}")(x) if self.norms else x)
        return x


@pytest.mark.parametrize("norms", [True, False])
def test_norms_are_folded_into_layers_of_every_kind(tmp_path, norms):
    right(compared(tmp_path, Kinds(norms), Kinds(not norms), waves()))
