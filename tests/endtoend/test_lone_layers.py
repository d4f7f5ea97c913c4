"""Layers with weights that one side alone has: told as such, once for all blocks."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there
from torch.nn import functional as F  # noqa: E402 - as above

from tests.endtoend.pairs import compared, telling  # noqa: E402 - as above


class Plain(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return F.relu(self.conv(x))


class Normed(Plain):
    def __init__(self, width):
        super().__init__(width)
        self.norm = nn.GroupNorm(2, width, eps=1e-3)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))


def net(block):
    return nn.Sequential(*(block(6) for _ in range(3)))


@pytest.fixture
def found(tmp_path):
    def compare(one, other):
        torch.manual_seed(1)
        port = telling(net(other))
        result = compared(tmp_path, telling(net(one)), port, torch.randn(2, 6, 5, 5), allow_missing=True)
        assert [origin.layer for origin in result.origins] == ["0", "1", "2"]
        return [origin.causes for origin in result.origins]

    return compare


def test_a_layer_that_the_port_lacks_is_named_and_spelled(found):
    for causes in found(Normed, Plain):
        assert (causes[0].id, causes[0].confirmed, causes[0].facts["called"]) == ("layer-left-out", False, "norm")
        assert causes[0].facts["written"].startswith("nn.GroupNorm(num_groups=2, num_channels=6, eps=0.001")


def test_a_layer_that_the_port_has_alone_is_named_and_left_out(found):
    for causes in found(Plain, Normed):
        assert (causes[0].id, causes[0].confirmed) == ("code-edit", True)
        assert ("layer-added", "norm") in [(cause.id, cause.facts.get("called")) for cause in causes]


class Before(nn.Module):
    """A block with its norm before the convolution, and a way round with or without a norm."""

    def __init__(self, width, names, shortcut_norm):
        super().__init__()
        self.names = names
        layers = [nn.Conv2d(width, width, 1), *([nn.BatchNorm2d(width)] if shortcut_norm else [])]
        self.add_module(names[2], nn.Sequential(*layers))
        self.add_module(names[0], nn.BatchNorm2d(width))
        self.add_module(names[1], nn.Conv2d(width, width, 3, padding=1))

    def forward(self, x):
        norm, conv, around = (getattr(self, name) for name in self.names)
        return around(x) + conv(F.relu(norm(x)))


class Row(nn.Module):
    def __init__(self, names, shortcut_norm, last):
        super().__init__()
        self.blocks = nn.Sequential(*(Before(6, names, shortcut_norm and place == 1) for place in range(3)))
        if last:
            self.last = nn.BatchNorm2d(6)

    def forward(self, x):
        return F.relu(self.last(self.blocks(x)) if hasattr(self, "last") else self.blocks(x))


def test_a_layer_more_and_one_less_do_not_push_the_others_along(tmp_path):
    torch.manual_seed(1)
    reference = telling(Row(("norm", "conv", "short"), False, True))
    port = telling(Row(("bn", "weighing", "down_sample"), True, False))
    port.blocks[1].down_sample[1].running_var.fill_(2.0)
    result = compared(tmp_path, reference, port, torch.randn(2, 6, 5, 5), allow_missing=True)
    pairs = {(found.reference, found.port) for found in result.layers}
    assert {(f"blocks.{place}.norm", f"blocks.{place}.bn") for place in range(3)} <= pairs
    assert [origin.causes[0].id for origin in result.origins] == ["layer-added", "layer-left-out"]


class Residual(nn.Module):
    def __init__(self, names):
        super().__init__()
        self.names = names
        self.add_module(names[0], nn.BatchNorm2d(6))
        self.add_module(names[1], nn.Conv2d(6, 6, 3, padding=1))

    def forward(self, x):
        norm, conv = (getattr(self, name) for name in self.names)
        return x + conv(F.relu(norm(x)))


class Ended(nn.Module):
    """A norm behind the blocks, or one in front of them that is given what the first norm in them is to be given."""

    def __init__(self, names, ended):
        super().__init__()
        self.stem = nn.Conv2d(6, 6, 1)
        if not ended:
            self.front = nn.BatchNorm2d(6)
        self.body = nn.Sequential(*(Residual(names) for _ in range(3)))
        if ended:
            self.last = nn.BatchNorm2d(6)
        self.head = nn.Conv2d(6, 2, 1)

    def forward(self, x):
        x = self.stem(x)
        x = self.last(self.body(x)) if hasattr(self, "last") else self.body(self.front(x))
        return self.head(F.relu(x))


def test_a_layer_more_that_is_given_what_another_is_to_be_given(tmp_path):
    port = telling(Ended(("bn", "weighing"), False))
    port.front.running_var.fill_(2.0)
    result = compared(
        tmp_path, telling(Ended(("norm", "conv"), True)), port, torch.randn(2, 6, 5, 5), allow_missing=True
    )
    pairs = {(found.reference, found.port) for found in result.layers}
    assert {(f"body.{place}.norm", f"body.{place}.bn") for place in range(3)} <= pairs
    told = {cause.id for origin in result.origins for cause in origin.causes}
    assert len(result.origins) == 2
    assert {"layer-added", "layer-left-out"} <= told


class Behind(Before):
    def forward(self, x):
        norm, conv, around = (getattr(self, name) for name in self.names)
        return around(x) + norm(conv(F.relu(x)))


def test_a_norm_that_stands_elsewhere_is_the_same_norm(tmp_path):
    torch.manual_seed(1)
    reference = telling(nn.Sequential(*(Before(6, ("norm", "conv", "short"), False) for _ in range(3))))
    port = telling(nn.Sequential(*(Behind(6, ("bn", "weighing", "down_sample"), False) for _ in range(3))))
    result = compared(tmp_path, reference, port, torch.randn(2, 6, 5, 5))
    pairs = {(found.reference, found.port) for found in result.layers}
    assert {(f"{place}.norm", f"{place}.bn") for place in range(3)} <= pairs


class Headed(nn.Module):
    """With heads for training alone, of which one is defined before the one that counts."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, 6)
        self.aux = nn.ModuleDict({"classifier": nn.Linear(6, 3), "other_head": nn.Linear(6, 3)})
        self.fc = nn.Linear(6, 3)

    def forward(self, x):
        x = self.stem(x).relu()
        if self.training:
            return self.fc(x), [head(x) for head in self.aux.values()]
        return self.fc(x)


class Headless(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, 6)
        self.classifier = nn.Linear(6, 3)

    def forward(self, x):
        return self.classifier(self.stem(x).relu())


def test_heads_that_never_ran_take_no_weights_from_the_head_that_did(tmp_path):
    port = telling(Headless())
    result = compared(tmp_path, telling(Headed()), port, torch.randn(2, 6), allow_missing=True)
    assert result.aligned
    assert not result.origins
