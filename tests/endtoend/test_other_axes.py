"""A port that works in another order of axes is right; a mistake in it is where it is made, and the order is none."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there
from torch.nn import functional as F  # noqa: E402 - as above

from tests.endtoend.pairs import compared, places, telling  # noqa: E402 - as above

WIDE = 6
TURNED = {"view-vs-transpose", "expression-differs", "axes-permuted"}


class Block(nn.Module):
    """Takes (batch, channels, height, width), or, `last`, (batch, height, width, channels)."""

    def __init__(self, last, residual=True, scale=1.0, turned=False):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(WIDE)), nn.Parameter(torch.zeros(WIDE))
        self.last, self.residual, self.scale, self.turned = last, residual, scale, turned
        self.build()

    def build(self):
        raise NotImplementedError

    def forward(self, x):
        y = x if self.last else x.permute(0, 2, 3, 1)
        y = self.made(y.flip(1) if self.turned else y) * self.scale
        y = y if self.last else y.permute(0, 3, 1, 2)
        return x + y if self.residual else y


class Around(Block):
    """A line, a layer, a line."""

    def build(self):
        self.fc = nn.Linear(WIDE, WIDE)

    def made(self, x):
        return F.gelu(self.fc(F.layer_norm(x, (WIDE,), self.weight, self.bias)))


class Through(Block):
    """Layers, and lines between them."""

    def build(self):
        self.conv, self.fc = nn.Conv2d(WIDE, WIDE, 3, padding=1, groups=WIDE), nn.Linear(WIDE, WIDE)

    def made(self, x):
        x = self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return self.fc(F.layer_norm(x, (WIDE,), self.weight, self.bias))


class Lines(Block):
    """Nothing but lines."""

    def build(self):
        pass

    def made(self, x):
        return F.gelu(F.layer_norm(x, (WIDE,), self.weight, self.bias))


class Net(nn.Module):
    """Three blocks, a mistake in one of them, or between the stem and them."""

    def __init__(self, block, last, at=1, unturned=False, **wrong):
        super().__init__()
        self.stem, self.norm, self.head = nn.Conv2d(3, WIDE, 1), nn.LayerNorm(WIDE), nn.Linear(WIDE, 4)
        self.blocks = nn.ModuleList(block(last, **(wrong if n == at else {})) for n in range(3))
        self.last, self.unturned = last, unturned

    def forward(self, x):
        x = self.stem(x)
        if self.last:
            x = x.reshape(len(x), *x.shape[2:], WIDE) if self.unturned else x.permute(0, 2, 3, 1)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x.mean((1, 2) if self.last else (2, 3))))


BLOCKS = [Around, Through, Lines]
MISTAKES = [{"residual": False}, {"scale": -2.0}]
LAST = {Around: "fc", Through: "fc"}


def result(tmp_path, block, back, **wrong):
    torch.manual_seed(1)
    return compared(tmp_path, telling(Net(block, back)), Net(block, not back, **wrong), torch.randn(2, 3, 4, 5))


@pytest.mark.parametrize("back", [False, True], ids=["last", "first"])
@pytest.mark.parametrize("block", BLOCKS)
def test_a_right_port_is_aligned_and_nothing_is_blamed(tmp_path, block, back):
    found = result(tmp_path, block, back)
    assert found.aligned
    assert not found.origins
    assert not found.suspects


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("wrong", MISTAKES, ids=["residual", "scale"])
@pytest.mark.parametrize("back", [False, True], ids=["last", "first"])
@pytest.mark.parametrize("block", BLOCKS)
def test_what_a_block_makes_wrong_is_its_doing_however_far_it_is_off(tmp_path, block, back, wrong, at):
    found = result(tmp_path, block, back, at=at, **wrong)
    here = f"blocks.{at}"
    place = (here, "glue", (f"{here}.{LAST[block]}", "")) if block in LAST else (here, "layer", None)
    assert places(found) == [place]
    assert not any(cause.confirmed and cause.id in TURNED for cause in found.origins[0].causes)


@pytest.mark.parametrize("back", [False, True], ids=["last", "first"])
@pytest.mark.parametrize("block", [Around, Through])
def test_a_forgotten_residual_is_known_in_the_other_order(tmp_path, block, back):
    found = result(tmp_path, block, back, residual=False)
    cause = found.origins[0].causes[0]
    assert cause.confirmed == (cause.id in ("code-edit", "setting-differs"))  # `residual`
    assert cause.confirmed or found.origins[0].line is not None or cause.id == "residual-missing"


class Given(nn.Module):
    """Hands the layer its values with the channels last, as that takes them, or, `forgotten`, as they are."""

    def __init__(self, forgotten=False):
        super().__init__()
        self.stem, self.mix, self.head = nn.Conv2d(3, WIDE, 1), Lines(True), nn.Linear(WIDE, 4)
        self.forgotten = forgotten

    def forward(self, x):
        x = self.stem(x)
        x = self.mix(x.transpose(2, 3) if self.forgotten else x.permute(0, 2, 3, 1))
        return self.head(x)


@pytest.mark.parametrize("shape", [(2, 3, 4, 6), (2, 3, 6, 6)])
def test_an_order_that_the_layer_does_not_take_is_the_mistake(tmp_path, shape):
    torch.manual_seed(1)
    net, port = Given(), Given(forgotten=True)
    found = compared(tmp_path, telling(net), port, torch.randn(*shape).transpose(2, 3))
    assert places(found)[0] == ("", "glue", ("stem", "mix"))
    assert found.origins[0].causes[0].confirmed


class Normed(nn.LayerNorm):
    """Of the channels, wherever they stand."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Mixing(nn.Module):
    """Convolutions of one by one behind such a norm, or, `last`, Dense layers behind a LayerNorm."""

    def __init__(self, last, eps=1e-5, approximate="none"):
        super().__init__()
        self.approximate = approximate
        if last:
            self.norm, self.fc1, self.fc2 = nn.LayerNorm(WIDE, eps), nn.Linear(WIDE, 12), nn.Linear(12, WIDE)
        else:
            self.norm, self.fc1, self.fc2 = Normed(WIDE, eps), nn.Conv2d(WIDE, 12, 1), nn.Conv2d(12, WIDE, 1)

    def forward(self, x):
        return x + self.fc2(F.gelu(self.fc1(self.norm(x)), approximate=self.approximate))


@pytest.mark.parametrize("back", [False, True], ids=["last", "first"])
def test_an_eps_is_what_is_wrong_with_a_norm_in_the_other_order(tmp_path, back):
    found = result(tmp_path, Mixing, back, eps=0.1)
    assert places(found) == [("blocks.1.norm", "layer", None)]
    cause = found.origins[0].causes[0]
    assert cause.confirmed
    assert (cause.facts["setting"], cause.facts["reference_value"]) == ("eps", "1e-05")


@pytest.mark.parametrize("back", [False, True], ids=["last", "first"])
def test_a_small_mistake_in_a_line_is_no_rounding_in_the_other_order(tmp_path, back):
    found = result(tmp_path, Mixing, back, approximate="tanh")
    wrong = [*found.origins, *found.suspects]
    assert [(origin.layer, origin.between) for origin in wrong] == [("blocks.1", ("blocks.1.fc1", "blocks.1.fc2"))]
    assert wrong[0].causes[0].confirmed


class Columns(nn.Module):
    """Mixes along the columns of a square of pairs; the norm is before the axes are exchanged, or, `late`, behind."""

    def __init__(self, late, forgotten=""):
        super().__init__()
        self.norm, self.query, self.value = nn.LayerNorm(WIDE), nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)
        self.out = Out()
        self.late, self.forgotten = late, forgotten

    def forward(self, x):
        x = x if self.late else self.norm(x)
        x = x if self.forgotten == "before" else x.transpose(1, 2)
        x = self.norm(x) if self.late else x
        x = self.out(self.query(x), self.value(x))
        return x if self.forgotten == "after" else x.transpose(1, 2)


class Out(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(WIDE, WIDE)

    def forward(self, query, value):
        return self.fc((query @ query.transpose(-1, -2)).softmax(-1) @ value)


class Pairs(nn.Module):
    def __init__(self, late, **wrong):
        super().__init__()
        self.stem, self.mix, self.head = nn.Linear(3, WIDE), Columns(late, **wrong), nn.Linear(WIDE, 4)

    def forward(self, x):
        x = self.stem(x)
        return self.head(x + self.mix(x))


def of_pairs(tmp_path, back, **wrong):
    torch.manual_seed(1)
    return compared(tmp_path, telling(Pairs(back)), Pairs(not back, **wrong), torch.randn(2, 5, 5, 3))


@pytest.mark.parametrize("back", [False, True], ids=["early", "late"])
def test_axes_of_one_size_may_be_exchanged_before_a_norm_or_behind_it(tmp_path, back):
    found = of_pairs(tmp_path, back)
    assert found.aligned
    assert not found.origins
    assert not found.suspects


@pytest.mark.parametrize("forgotten", ["before", "after"])
@pytest.mark.parametrize("back", [False, True], ids=["early", "late"])
def test_axes_of_one_size_that_are_not_exchanged_are_the_mistake(tmp_path, back, forgotten):
    found = of_pairs(tmp_path, back, forgotten=forgotten)
    assert [origin.layer for origin in found.origins] == ["mix"]
    assert found.origins[0].where == "glue"


class Two(nn.Module):
    """Such a mix, and another one whose product is the other way round, or not."""

    def __init__(self, late, turned=False):
        super().__init__()
        self.stem, self.mix, self.head = nn.Linear(3, WIDE), Columns(late), nn.Linear(WIDE, 4)
        self.norm, self.turned = nn.LayerNorm(WIDE), turned

    def forward(self, x):
        x = self.stem(x)
        x = x + self.mix(x)
        one, other = x.sin().permute(0, 3, 1, 2), x.cos().permute(0, 3, 1, 2)
        pairs = other @ one.transpose(2, 3) if self.turned else one @ other.transpose(2, 3)
        return self.head(x * self.norm(pairs.permute(0, 2, 3, 1)))


@pytest.mark.parametrize("back", [False, True], ids=["early", "late"])
def test_what_is_right_in_one_layer_is_no_excuse_in_another(tmp_path, back):
    torch.manual_seed(1)
    found = compared(tmp_path, telling(Two(back)), Two(not back, turned=True), torch.randn(2, 5, 5, 3))
    assert [origin.layer for origin in found.origins] == [""]
    assert found.origins[0].between == ("mix", "norm")
