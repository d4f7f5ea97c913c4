"""Ports in which neither names nor orders tell which layer is which, and layers around others are cut elsewhere."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there
from torch.nn import functional as F  # noqa: E402 - as above

import aligner  # noqa: E402 - as above
from aligner.compare.checks import OTHER_BORDER  # noqa: E402 - as above
from aligner.dump.reader import open_dump  # noqa: E402 - as above
from aligner.errors import ReplayError  # noqa: E402 - as above
from aligner.findings import CHECK  # noqa: E402 - as above
from tests.endtoend.pairs import compared, places, replayed, telling  # noqa: E402 - as above


class Residual(nn.Module):
    """The reference: its branch first, the shortcut behind it."""

    def __init__(self, width):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.down, self.down_bn = nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.down_bn(self.down(x)))


class Shortcut(nn.Module):
    """The port: the shortcut is built and run first."""

    def __init__(self, width, forgotten=False, eps=1e-5):
        super().__init__()
        self.proj, self.bn = nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width)
        self.a, self.a_bn = nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width, eps=eps)
        self.b, self.b_bn = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.forgotten = forgotten

    def forward(self, x):
        y = self.bn(self.proj(x))
        z = self.a_bn(self.a(x))
        z = self.b_bn(self.b(z if self.forgotten else F.relu(z)))
        return F.relu(y + z)


def stack(make, **wrong):
    return nn.Sequential(*(make(6, **(wrong if n == 1 else {})) for n in range(3)))


def test_a_shortcut_that_runs_first_is_known_by_what_is_made_of_it(tmp_path):
    result = compared(tmp_path, telling(stack(Residual)), stack(Shortcut), torch.randn(2, 6, 5, 5))
    pairs = {pair.reference: pair.port for pair in result.layers}
    assert result.aligned
    assert not result.origins
    assert not result.suspects
    assert {name: pairs[f"2.{name}"] for name in ("conv1", "bn1", "down", "down_bn")} == {
        "conv1": "2.a",
        "bn1": "2.a_bn",
        "down": "2.proj",
        "down_bn": "2.bn",
    }


class Stopping(nn.Module):
    """What the port's framework cannot do."""

    def forward(self, x):
        raise RuntimeError("not this way")


def test_a_port_that_stops_is_told_by_what_ran_before(tmp_path):
    net, port = nn.Sequential(stack(Residual), nn.Identity()), nn.Sequential(stack(Shortcut), Stopping())
    replay = replayed(tmp_path, telling(net), port, torch.randn(2, 6, 5, 5))
    with pytest.raises(RuntimeError, match="not this way"), replay.capture(tmp_path / "port.h5"):
        port(*replay.inputs(0))
    result = aligner.compare(tmp_path / "ref.h5", tmp_path / "port.h5")
    pairs = {pair.reference: pair.port for pair in result.layers}
    assert (pairs["0.1.conv1"], pairs["0.1.down"]) == ("0.1.a", "0.1.proj")
    assert not result.origins


class Stem(nn.Module):
    """A layer with its norm, and with its activation if that is not of the code around."""

    def __init__(self, inside):
        super().__init__()
        self.conv, self.norm, self.inside = nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6), inside

    def forward(self, x):
        x = self.norm(self.conv(x))
        return F.silu(x) if self.inside else x


class Masked(nn.Module):
    """What masks a value, and hands on one with its activation if that is not of the code around."""

    def __init__(self, inside):
        super().__init__()
        self.stem, self.next, self.inside = Stem(inside), nn.Conv2d(6, 6, 1), inside

    def forward(self, x):
        mask = x[:, :1] > 0
        x = self.stem(x)
        x = self.next((x if self.inside else F.silu(x)) * mask)
        return F.silu(x) if self.inside else x


class Ending(nn.Module):
    """A net with that, and what goes on with it."""

    def __init__(self, inside, end):
        super().__init__()
        self.body, self.inside, self.end = Masked(inside), inside, end

    def forward(self, x):
        x = self.body(x)
        x = x if self.inside else F.silu(x)
        return self.end(x * (x > 0.1))


def test_a_port_that_stops_is_right_in_what_stands_at_another_border(tmp_path):
    net, port = Ending(False, nn.Identity()), Ending(True, Stopping())
    replay = replayed(tmp_path, telling(net), port, torch.randn(2, 6, 5, 5))
    with pytest.raises(RuntimeError, match="not this way"), replay.capture(tmp_path / "port.h5"):
        port(*replay.inputs(0))
    with open_dump(tmp_path / "port.h5") as dump:
        checks = [facts for kind, facts in dump.findings if kind == CHECK]
    stem = next(one for one in checks if one["at"] == [0, "body.stem", 0, "output.0"])
    assert stem["reason"] == OTHER_BORDER
    assert not aligner.compare(tmp_path / "ref.h5", tmp_path / "port.h5").origins


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({"forgotten": True}, ("1", "glue", ("1.bn1", "1.conv2"))),
        ({"eps": 0.3}, ("1.bn1", "layer", None)),
    ],
    ids=["forgotten", "eps"],
)
def test_a_mistake_in_one_block_does_not_keep_the_others_from_being_known(tmp_path, wrong, place):
    result = compared(tmp_path, telling(stack(Residual)), stack(Shortcut, **wrong), torch.randn(2, 6, 5, 5))
    assert places(result) == [place]


class Scaled(nn.Module):
    """A block whose own parameter is called otherwise in the port, behind one whose shortcut runs first there."""

    def __init__(self, block, name):
        super().__init__()
        self.block, self.fc, self.name = block, nn.Conv2d(6, 6, 1), name
        self.register_parameter(name, nn.Parameter(torch.ones(6, 1, 1)))

    def forward(self, x):
        return self.fc(self.block(x)) * self.get_parameter(self.name)


def test_a_parameter_of_another_name_does_not_keep_layers_from_being_known(tmp_path):
    inputs = torch.randn(2, 6, 5, 5)
    ports = nn.Sequential(*(Scaled(Shortcut(6), "gamma") for _ in range(2)))
    net = nn.Sequential(*(Scaled(Residual(6), "layer_scale") for _ in range(2)))
    result = compared(tmp_path, telling(net), ports, inputs)
    assert result.aligned
    assert not result.origins


class Norms(nn.Module):
    """A row of layers and their norms; a port may have a norm too many, and layers of another name."""

    def __init__(self, prefix, more=None):
        super().__init__()
        self.row = [(f"{prefix}{n}", f"{prefix}n{n}" if n % 2 or n == more else None) for n in range(5)]
        for layer, norm in self.row:
            self.add_module(layer, nn.Linear(6, 6))
            if norm is not None:
                self.add_module(norm, nn.LayerNorm(6))

    def forward(self, x):
        for layer, norm in self.row:
            x = torch.tanh(self.get_submodule(layer)(x))
            x = x if norm is None else self.get_submodule(norm)(x)
        return x


def test_the_norm_that_is_too_many_is_the_one_that_is_left_over(tmp_path):
    with pytest.raises(ReplayError) as raised:
        replayed(tmp_path, telling(Norms("a")), Norms("b", more=2), torch.randn(4, 6))
    assert raised.value.facts["left_port"].split(", ") == ["bn2.weight [6]", "bn2.bias [6]"]


def test_what_comes_behind_a_norm_too_many_is_not_called_wrong(tmp_path):
    result = compared(tmp_path, telling(Norms("a")), Norms("b", more=2), torch.randn(4, 6), allow_missing=True)
    assert places(result) == [("", "glue", ("a2", "a3"))]


class Stage(nn.Module):
    """Blocks of (rows, columns, channels), or of (rows * columns, channels); what makes them fewer before or behind."""

    def __init__(self, first, last, flat, scale=1.0):
        super().__init__()
        self.first = nn.Linear(8, 4) if first else nn.Identity()
        self.block = nn.Linear(4, 4)
        self.last = nn.Linear(8, 4) if last else None
        self.flat, self.scale = flat, scale

    def forward(self, x):
        x = x if isinstance(self.first, nn.Identity) else self.first(fewer(x, self.flat))
        x = x + self.scale * self.block(x)
        return x if self.last is None else self.last(fewer(x, self.flat))


def fewer(x, flat):
    side = int(x.shape[1] ** 0.5) if flat else x.shape[1]
    x = x.reshape(len(x), side // 2, 2, side, 4)[:, :, :, ::2].permute(0, 1, 3, 2, 4)
    return x.reshape(len(x), -1, 8) if flat else x.reshape(len(x), side // 2, side // 2, 8)


class Stages(nn.Module):
    def __init__(self, before, flat, scale=1.0):
        super().__init__()
        ends = [(before and n > 0, not before and n < 2) for n in range(3)]
        self.layers = nn.ModuleList(Stage(*ends[n], flat, scale if n == 1 else 1.0) for n in range(3))
        self.flat, self.head = flat, nn.Linear(4, 3)

    def forward(self, x):
        x = x.flatten(1, 2) if self.flat else x
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1 if self.flat else (1, 2)))


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_stages_begin_and_end_elsewhere(tmp_path, before, flat):
    inputs = torch.randn(2, 8, 8, 4)
    result = compared(tmp_path, telling(Stages(before, False)), Stages(not before, flat), inputs)
    assert result.aligned
    assert not result.origins
    assert not result.suspects


@pytest.mark.parametrize("flat", [False, True])
def test_a_mistake_between_such_borders_is_one_origin(tmp_path, flat):
    inputs = torch.randn(2, 8, 8, 4)
    result = compared(tmp_path, telling(Stages(True, False)), Stages(False, flat, scale=0.5), inputs)
    assert len(result.origins) == 1
    assert result.origins[0].layer == "layers.2", "where the reference goes on: it has no value before"


class Sums(nn.Module):
    """Two sums, with Identities where their author has put them."""

    def __init__(self, around, residual=True):
        super().__init__()
        self.one, self.two, self.around, self.residual = nn.Linear(6, 6), nn.Linear(6, 6), around, residual
        if around:
            self.scale1, self.drop1, self.scale2, self.drop2 = (nn.Identity() for _ in range(4))
        else:
            self.path = nn.Identity()

    def forward(self, x):
        if self.around:
            x = self.scale1(x) + self.drop1(torch.tanh(self.one(x)))
            return self.scale2(x) + self.drop2(torch.tanh(self.two(x)))
        x = x + self.path(torch.tanh(self.one(x)))
        y = self.path(torch.tanh(self.two(x)))
        return x + y if self.residual else y


@pytest.mark.parametrize("around", [False, True])
def test_layers_that_only_pass_on_are_no_places(tmp_path, around):
    ports = [nn.Sequential(*(Sums(side) for _ in range(3))) for side in (around, not around)]
    result = compared(tmp_path, telling(ports[0]), ports[1], torch.randn(2, 5, 6))
    assert result.aligned
    assert not result.origins
    assert not result.suspects


def test_a_forgotten_sum_among_them_is_one_origin(tmp_path):
    net, port = (nn.Sequential(*(Sums(side, residual) for _ in range(1))) for side, residual in ((True, 1), (False, 0)))
    result = compared(tmp_path, telling(net), port, torch.randn(2, 5, 6))
    assert [origin.layer for origin in result.origins] == ["0"]
    assert result.origins[0].causes[0].id == "code-edit"


class Biased(nn.Module):
    """A bias for each distance, by a table of whole numbers that only the port keeps."""

    def __init__(self, kept, shift=0):
        super().__init__()
        self.bias, self.linear = nn.Parameter(torch.zeros(9)), nn.Linear(5, 5)
        places = (torch.arange(5)[:, None] - torch.arange(5)[None] + 4 + shift).clamp(0, 8)
        if kept:
            self.table = nn.Parameter(F.one_hot(places, 9).float(), requires_grad=False)
        else:
            self.places = places

    def forward(self, x):
        bias = self.table @ self.bias if hasattr(self, "table") else self.bias[self.places]
        return self.linear(x + bias)


def test_a_table_that_the_port_has_worked_out_needs_no_counterpart(tmp_path):
    result = compared(tmp_path, telling(Biased(False)), Biased(True), torch.randn(2, 5, 5))
    assert result.aligned
    assert not result.origins


def test_and_it_shows_in_values_if_it_is_wrong(tmp_path):
    result = compared(tmp_path, telling(Biased(False)), Biased(True, shift=1), torch.randn(2, 5, 5))
    assert places(result) == [("", "glue", ("", "linear"))]


class Bias(nn.Module):
    """The same in a layer of its own, which the reference has not."""

    def __init__(self, shift=0):
        super().__init__()
        places = (torch.arange(5)[:, None] - torch.arange(5)[None] + 4 + shift).clamp(0, 8)
        self.bias = nn.Parameter(torch.zeros(9))
        self.table = nn.Parameter(F.one_hot(places, 9).float(), requires_grad=False)

    def forward(self):
        return self.table @ self.bias


class Attending(nn.Module):
    def __init__(self, apart, shift=0):
        super().__init__()
        self.q, self.out = nn.Linear(6, 6), nn.Linear(6, 6)
        if apart:
            self.relative = Bias(shift)
        else:
            self.bias = nn.Parameter(torch.zeros(9))
            self.register_buffer("places", torch.arange(5)[:, None] - torch.arange(5)[None] + 4)

    def forward(self, x):
        scores = self.q(x) @ x.transpose(1, 2) + (
            self.relative() if hasattr(self, "relative") else self.bias[self.places]
        )
        return self.out(scores.softmax(-1) @ x)


def test_a_layer_of_the_ports_own_with_right_weights_needs_no_counterpart(tmp_path):
    net, port = (nn.Sequential(*(Attending(apart) for _ in range(2))) for apart in (False, True))
    result = compared(tmp_path, telling(net), port, torch.randn(2, 5, 6))
    assert result.aligned
    assert not result.origins
    assert result.counts["unmatched"] == 0


def test_and_is_not_excused_where_it_is_wrong(tmp_path):
    net, port = (nn.Sequential(*(Attending(apart, apart) for _ in range(2))) for apart in (False, True))
    result = compared(tmp_path, telling(net), port, torch.randn(2, 5, 6))
    assert {origin.layer for origin in result.origins} == {"0", "1"}


class Norm2d(nn.LayerNorm):
    """Over channels that come second."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Depthwise(nn.Module):
    """Its norm takes channels that come second, or last."""

    def __init__(self, last, eps=1e-5, mistaken=False):
        super().__init__()
        self.conv = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.norm = nn.LayerNorm(6, eps=eps) if last else Norm2d(6, eps=eps)
        self.out, self.last, self.mistaken = nn.Conv2d(6, 6, 1), last, mistaken

    def forward(self, x):
        y = self.conv(x)
        if self.last:
            y = y.reshape(len(y), 5, 5, 6) if self.mistaken else y.permute(0, 2, 3, 1)
        y = self.norm(y)
        return x + self.out(y.permute(0, 3, 1, 2) if self.last else y)


@pytest.mark.parametrize("last", [False, True])
def test_a_setting_of_a_norm_of_other_axes_is_its_own_mistake(tmp_path, last):
    net = nn.Sequential(*(Depthwise(last) for _ in range(2)))
    port = nn.Sequential(Depthwise(not last), Depthwise(not last, eps=0.3))
    assert places(compared(tmp_path, telling(net), port, torch.randn(2, 6, 5, 5))) == [("1.norm", "layer", None)]


def test_axes_that_a_norm_mistakes_are_the_mistake_of_who_hands_them_over(tmp_path):
    net, port = nn.Sequential(Depthwise(False)), nn.Sequential(Depthwise(True, mistaken=True))
    result = compared(tmp_path, telling(net), port, torch.randn(2, 6, 5, 5))
    assert places(result) == [("0", "glue", ("0.conv", "0.norm"))]


class Pooled(nn.Module):
    """Blocks behind a stem, and a head that says which of two rows of layers was which."""

    def __init__(self, block, slope=0.1):
        super().__init__()
        self.stem, self.slope = nn.Conv2d(3, 6, 1), slope
        self.blocks, self.head = nn.Sequential(block(6), block(6)), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.blocks(F.leaky_relu(self.stem(x), self.slope)).mean((2, 3)))


class Plain(nn.Module):
    """A shortcut of the shape of the first convolution; behind it."""

    def __init__(self, width):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 3, padding=1)
        self.down = nn.Conv2d(width, width, 1)

    def forward(self, x):
        return F.relu(self.conv2(F.relu(self.conv1(x))) + self.down(x))


class Before(nn.Module):
    """The same, defined and run before it."""

    def __init__(self, width):
        super().__init__()
        self.short = nn.Conv2d(width, width, 1)
        self.a, self.b = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        y = self.short(x)
        return F.relu(y + self.b(F.relu(self.a(x))))


def test_behind_a_mistake_a_shortcut_that_runs_first_is_known_all_the_same(tmp_path):
    torch.manual_seed(4)
    port = Pooled(Before, slope=0.4)
    result = compared(tmp_path, telling(Pooled(Plain)), port, torch.randn(2, 3, 5, 5))
    assert places(result) == [("", "glue", ("stem", "blocks"))]


class Narrowing(nn.Module):
    """The only layers of their shape are the first convolution, which keeps the size, and the shortcut."""

    def __init__(self, first, bottom, width=6):
        super().__init__()
        self.first, self.bottom = first, bottom
        layers = [("a", 1, 1), ("b", 3, 2), ("c", 1, 1)]
        short = [("short", 1, 2)]
        for name, size, stride in short + layers if first else layers + short:
            inside = 4 if name in ("a", "short") else width
            conv = nn.Conv2d(inside, width, size, stride, size // 2, bias=False)
            self.add_module(bottom[name], nn.Sequential(conv, nn.BatchNorm2d(width)))

    def forward(self, x):
        a, b, c, short = (self.get_submodule(self.bottom[name]) for name in ("a", "b", "c", "short"))
        y = short(x) if self.first else None
        z = c(F.relu(b(F.relu(a(x)))))
        return F.relu(z + (short(x) if y is None else y))


def test_of_two_layers_alone_of_their_shape_neither_is_sure_by_the_other(tmp_path):
    names = {"a": "conv1", "b": "conv2", "c": "conv3", "short": "down"}
    net = telling(Narrowing(False, names))
    port = Narrowing(True, {"a": "fa", "b": "fb", "c": "fc", "short": "proj"})
    result = compared(tmp_path, net, port, torch.randn(2, 4, 8, 8))
    assert result.aligned
    assert not result.suspects
