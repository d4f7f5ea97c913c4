"""A port whose layers end elsewhere than the reference's is right; a mistake in it is one place all the same."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there
from torch.nn import functional as F  # noqa: E402 - as above

from tests.endtoend.pairs import compared, telling  # noqa: E402 - as above

NORM = {"eps": 0.1}


class Apart(nn.Module):
    """A norm, then its activation: two layers."""

    def __init__(self, eps=1e-5, act=True, residual=True):
        super().__init__()
        self.conv1, self.bn1, self.act1 = nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6, eps), nn.ReLU()
        self.conv2, self.act, self.residual = nn.Conv2d(6, 6, 3, padding=1), act, residual

    def forward(self, x):
        y = self.bn1(self.conv1(x))
        y = self.conv2(self.act1(y) if self.act else y)
        return x + y if self.residual else y


class NormAct(nn.BatchNorm2d):
    """Both in one, the activation as a layer inside."""

    def __init__(self, *given, act=True):
        super().__init__(*given)
        self.act = nn.ReLU() if act else nn.Identity()

    def forward(self, x):
        return self.act(F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps))


class Line(nn.BatchNorm2d):
    """Both in one, the activation as a line."""

    def __init__(self, *given, act=True):
        super().__init__(*given)
        self.act = act

    def forward(self, x):
        x = super().forward(x)
        return F.relu(x) if self.act else x


class Swish(nn.Module):
    """An activation of two layers' doing."""

    def __init__(self):
        super().__init__()
        self.sigmoid = nn.Sigmoid()

    def forward(self, x):
        return x * self.sigmoid(x)


class NormSilu(NormAct):
    """Both in one, the activation another one."""

    def __init__(self, *given, act=True):
        super().__init__(*given, act=act)
        self.act = nn.SiLU() if act else nn.Identity()


class Swishing(Apart):
    """A norm, then its activation, which is a layer around a layer."""

    def __init__(self, eps=1e-5, act=True, residual=True):
        super().__init__(eps, act, residual)
        self.act1 = Swish()


class Together(nn.Module):
    def __init__(self, norm, eps=1e-5, act=True, residual=True):
        super().__init__()
        self.conv1, self.bn1, self.conv2 = (
            nn.Conv2d(6, 6, 3, padding=1),
            norm(6, eps, act=act),
            nn.Conv2d(6, 6, 3, 1, 1),
        )
        self.residual = residual

    def forward(self, x):
        y = self.conv2(self.bn1(self.conv1(x)))
        return x + y if self.residual else y


class Branch(nn.Module):
    def __init__(self, inside, eps=1e-5, residual=True):
        super().__init__()
        self.norm, self.fc1, self.fc2 = nn.LayerNorm(6, eps), nn.Linear(6, 12), nn.Linear(12, 6)
        self.inside = inside and residual

    def forward(self, x):
        y = self.fc2(F.gelu(self.fc1(self.norm(x))))
        return x + y if self.inside else y


class Around(nn.Module):
    """The residual is added inside the blocks, or behind them; and the norm is called there, or here."""

    def __init__(self, inside, residual=True, **wrong):
        super().__init__()
        wrong = {"residual": residual, **wrong} if inside else wrong
        self.blocks = nn.ModuleList(Branch(inside, **(wrong if n == 0 else {})) for n in range(3))
        self.inside, self.lost = inside, not residual

    def forward(self, x):
        for number, block in enumerate(self.blocks):
            x = block(x) if self.inside or (self.lost and number == 0) else x + block(x)
        return x


class Mixing(nn.Module):
    """Takes (batch, height, width, channels), or, `flat`, (batch, height * width, channels)."""

    def __init__(self, flat, eps=1e-5, turned=False):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.LayerNorm(6, eps), nn.Linear(6, 6)
        self.flat, self.turned = flat, turned

    def forward(self, x):
        if not self.flat:
            return x + self.fc(self.norm(self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)))
        y = x.reshape(len(x), 6, 4, 5) if self.turned else x.transpose(1, 2).reshape(len(x), 6, 4, 5)
        return x + self.fc(self.norm(self.conv(y).flatten(2).transpose(1, 2)))


class Dual(nn.Module):
    """Hands on two values, or, `whole`, both as one."""

    def __init__(self, whole, eps=1e-5, residual=True):
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(6, eps), nn.Conv2d(6, 6, 3, padding=1)
        self.whole, self.residual = whole, residual

    def forward(self, x):
        one, two = x.split((4, 2), 1) if self.whole else x
        y = self.conv(F.gelu(self.norm(x if self.whole else torch.cat(x, 1))))
        one, two = one + y[:, :4], two + y[:, 4:] if self.residual else y[:, 4:]
        return torch.cat((one, two), 1) if self.whole else (one, two)


class Duals(nn.Module):
    def __init__(self, whole, **wrong):
        super().__init__()
        self.stem, self.head, self.whole = nn.Conv2d(3, 6, 1), nn.Linear(6, 4), whole
        self.blocks = nn.Sequential(*(Dual(whole, **(wrong if n == 0 else {})) for n in range(3)))

    def forward(self, x):
        x = self.stem(x)
        x = self.blocks(x if self.whole else x.split((4, 2), 1))
        return self.head((x if self.whole else torch.cat(x, 1)).mean((2, 3)))


class Shuffled(nn.Module):
    """Shuffles its channels at its beginning, or at its end."""

    def __init__(self, first=False, last=False, eps=1e-5):
        super().__init__()
        self.conv, self.bn1 = nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6, eps)
        self.first, self.last = first, last

    def forward(self, x):
        one, two = (F.channel_shuffle(x, 2) if self.first else x).chunk(2, 1)
        y = F.relu(self.bn1(self.conv(two)))
        x = torch.cat((one, two + y), 1)
        return F.channel_shuffle(x, 2) if self.last else x


class Shuffles(nn.Module):
    """Nothing has the value between the blocks: it is whole before the shuffle here, and behind it there."""

    def __init__(self, behind, **wrong):
        super().__init__()
        kinds = [{"last": n < 3} if behind else {"first": n > 0} for n in range(4)]
        self.stem, self.head = nn.Conv2d(3, 12, 1), nn.Linear(12, 4)
        self.blocks = nn.Sequential(*(Shuffled(**kind, **(wrong if n == 0 else {})) for n, kind in enumerate(kinds)))

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Positioned(nn.Module):
    """Attention that looks at distances as well: one table for all of a batch, or one for each."""

    def __init__(self, each, eps=1e-5, distances=True):
        super().__init__()
        self.norm, self.qk, self.v = nn.LayerNorm(6, eps), nn.Linear(6, 12), nn.Linear(6, 6)
        self.distance, self.each, self.distances = nn.Linear(3, 1), each, distances
        places = torch.arange(7.0)
        table = places[:, None] - places
        self.register_buffer("table", torch.stack((table, table.abs(), table.square()), -1)[None] / 7)

    def forward(self, x):
        q, k = self.qk(y := self.norm(x)).chunk(2, -1)
        scores = q @ k.transpose(1, 2)
        far = self.distance(self.table.expand(len(x), -1, -1, -1) if self.each else self.table).squeeze(-1)
        weights = (scores + far if self.distances else scores).softmax(-1)
        return x + weights @ self.v(y)


def distances():
    places = torch.arange(7.0)
    table = places[:, None] - places
    return torch.stack((table, table.abs()), -1)[None] / 7


class Distances(nn.Module):
    """Makes of a table of its own what is added to the scores."""

    def __init__(self):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1, bias=False)
        self.register_buffer("table", distances())

    def forward(self):
        return 4 * torch.sigmoid(self.fc2(self.act(self.fc1(self.table))).squeeze(-1))


class Weighed(nn.Module):
    """Attention that hands its table to the layers that look at it, or has all of it in one layer."""

    def __init__(self, own, eps=1e-5):
        super().__init__()
        self.norm, self.qk, self.v = nn.LayerNorm(6, eps), nn.Linear(6, 12), nn.Linear(6, 6)
        self.far = Distances() if own else nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1, bias=False))
        self.register_buffer("table", None if own else distances())

    def forward(self, x):
        q, k = self.qk(y := self.norm(x)).chunk(2, -1)
        far = self.far() if self.table is None else 4 * torch.sigmoid(self.far(self.table).squeeze(-1))
        return x + (q @ k.transpose(1, 2) + far).softmax(-1) @ self.v(y)


class Stack(nn.Module):
    """Three blocks, a mistake in the first, between a convolution and a head."""

    def __init__(self, make, last=False, flat=False, **wrong):
        super().__init__()
        self.stem, self.head, self.last, self.flat = nn.Conv2d(3, 6, 1), nn.Linear(6, 4), last, flat
        self.blocks = nn.Sequential(*(make(**(wrong if n == 0 else {})) for n in range(3)))

    def forward(self, x):
        x = self.stem(x)
        if not self.last:
            return self.head(self.blocks(x).mean((2, 3)))
        x = x.flatten(2).transpose(1, 2) if self.flat else x.permute(0, 2, 3, 1)
        return self.head(self.blocks(x).mean(1 if self.flat else (1, 2)))


def image(make, **given):
    return lambda **wrong: Stack(lambda **inner: make(**inner), **given, **wrong)


FORMS = {
    "apart": image(Apart),
    "act-inside": image(lambda **wrong: Together(NormAct, **wrong)),
    "act-as-line": image(lambda **wrong: Together(Line, **wrong)),
    "silu-inside": image(lambda **wrong: Together(NormSilu, **wrong)),
    "swish-apart": image(Swishing),
    "residual-inside": lambda **wrong: Around(True, **wrong),
    "residual-outside": lambda **wrong: Around(False, **wrong),
    "rows": image(lambda **wrong: Mixing(True, **wrong), last=True, flat=True),
    "squares": image(lambda **wrong: Mixing(False, **wrong), last=True),
    "in pieces": lambda **wrong: Duals(False, **wrong),
    "in one piece": lambda **wrong: Duals(True, **wrong),
    "shuffled behind": lambda **wrong: Shuffles(True, **wrong),
    "shuffled before": lambda **wrong: Shuffles(False, **wrong),
    "rows by distance": lambda **wrong: nn.Sequential(Positioned(True, **wrong), Positioned(True)),
    "rows by one distance": lambda **wrong: nn.Sequential(Positioned(False, **wrong), Positioned(False)),
    "rows by a table": lambda **wrong: nn.Sequential(Weighed(False, **wrong), Weighed(False)),
    "rows by an own table": lambda **wrong: nn.Sequential(Weighed(True, **wrong), Weighed(True)),
}

PAIRS = [
    ("apart", "act-inside"),
    ("apart", "act-as-line"),
    ("act-inside", "apart"),
    ("act-as-line", "apart"),
    ("act-as-line", "act-inside"),
    ("silu-inside", "swish-apart"),
    ("swish-apart", "silu-inside"),
    ("residual-inside", "residual-outside"),
    ("residual-outside", "residual-inside"),
    ("squares", "rows"),
    ("rows", "squares"),
    ("in pieces", "in one piece"),
    ("in one piece", "in pieces"),
    ("shuffled behind", "shuffled before"),
    ("shuffled before", "shuffled behind"),
    ("rows by distance", "rows by one distance"),
    ("rows by one distance", "rows by distance"),
    ("rows by a table", "rows by an own table"),
    ("rows by an own table", "rows by a table"),
]


def inputs(form):
    torch.manual_seed(1)
    return torch.randn(2, 7, 6) if form.startswith(("residual", "rows by")) else torch.randn(2, 3, 4, 5)


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_a_right_port_with_other_borders_is_aligned_and_nothing_is_blamed(tmp_path, one, other):
    result = compared(tmp_path, telling(FORMS[one]()), FORMS[other](), inputs(one))
    assert result.aligned
    assert not result.origins
    assert not result.suspects


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_a_wrong_setting_in_such_a_port_is_the_one_origin(tmp_path, one, other):
    result = compared(tmp_path, telling(FORMS[one]()), FORMS[other](**NORM), inputs(one))
    outcomes = {verdict.outcome.value for verdict in result.verdicts}
    assert [origin.layer for origin in result.origins] in (["blocks.0.bn1"], ["blocks.0.norm"], ["0.norm"])
    assert ("origin" in outcomes) is not (one in ("squares", "rows"))  # there its shape is not comparable


@pytest.mark.parametrize(
    ("one", "other", "wrong", "place"),
    [
        ("apart", "act-inside", {"act": False}, ("blocks.0", "glue", ("blocks.0.bn1", "blocks.0.conv2"))),
        ("act-as-line", "apart", {"act": False}, ("blocks.0.bn1", "layer", None)),
        ("apart", "act-as-line", {"residual": False}, ("blocks.0", "glue", ("blocks.0.conv2", ""))),
        ("residual-outside", "residual-inside", {"residual": False}, ("", "glue", ("blocks.0", "blocks.1"))),
        ("residual-inside", "residual-outside", {"residual": False}, ("blocks.0", "glue", ("blocks.0.fc2", ""))),
        ("squares", "rows", {"turned": True}, ("blocks.0", "glue", ("", "blocks.0.conv"))),
        ("in pieces", "in one piece", {"residual": False}, ("blocks.0", "glue", ("blocks.0.conv", ""))),
        ("in one piece", "in pieces", {"residual": False}, ("blocks.0", "glue", ("blocks.0.conv", ""))),
        ("rows by distance", "rows by one distance", {"distances": False}, ("0", "glue", ("0.v", ""))),
    ],
)
def test_a_forgotten_step_in_such_a_port_is_the_one_origin(tmp_path, one, other, wrong, place):
    result = compared(tmp_path, telling(FORMS[one]()), FORMS[other](**wrong), inputs(one))
    assert [(origin.layer, origin.where, origin.between) for origin in result.origins] == [place]


def test_a_mistake_below_the_tolerance_is_a_warning_in_another_order_of_axes_too(tmp_path):
    result = compared(tmp_path, telling(FORMS["squares"]()), FORMS["rows"](eps=1.5e-5), inputs("squares"))
    assert result.aligned
    assert not result.origins
    assert [origin.layer for origin in result.suspects] == ["blocks.0.norm"]


class Crossed(nn.Module):
    """Looks at what it works on first, and then at what it is told beside."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x, memory):
        x = x + torch.tanh(self.one(x))
        return x + self.three(torch.tanh(x) * self.two(memory))


class Remembering(nn.Module):
    """Hands its blocks a memory behind a norm, or before it."""

    def __init__(self, forgotten=False):
        super().__init__()
        self.memory, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)
        self.blocks, self.forgotten = nn.ModuleList(Crossed() for _ in range(2)), forgotten

    def forward(self, x):
        memory = self.memory(x)
        memory = memory if self.forgotten else self.norm(memory)
        for block in self.blocks:
            x = block(x, memory)
        return x


def test_a_wrong_argument_is_not_excused_by_what_is_made_of_the_other_one(tmp_path):
    torch.manual_seed(1)
    result = compared(tmp_path, telling(Remembering()), Remembering(forgotten=True), torch.randn(3, 5, 6))
    assert [(origin.layer, origin.where) for origin in result.origins] == [("", "glue")]
    assert result.origins[0].causes[0].confirmed


class Added(nn.Module):
    """What is added to it was made by a layer of its own, which the reference has as well."""

    def __init__(self, residual=True):
        super().__init__()
        self.inner = nn.Sequential(nn.Sequential(nn.Sequential(nn.Linear(6, 6), nn.Tanh()), nn.Linear(6, 6)))
        self.drop, self.residual = nn.Dropout(), residual

    def forward(self, x):
        y = self.drop(self.inner(x))
        return x + y if self.residual else y


def staged(residual=True):
    """Blocks in stages, so that a value is handed on over many borders before anything is made of it."""
    stages = [nn.Sequential(Added(False), *(Added(residual) for _ in range(n < 2))) for n in range(3)]
    return nn.Sequential(nn.Linear(6, 6), nn.Sequential(*stages), nn.Linear(6, 6))


def test_a_value_that_is_wrong_behind_many_borders_is_wrong_at_the_first(tmp_path):
    torch.manual_seed(1)
    result = compared(tmp_path, telling(staged()), staged(residual=False), torch.randn(3, 5, 6))
    blocks = ["1.0.1", "1.1.1"]
    assert [(origin.layer, origin.where) for origin in result.origins] == [(block, "glue") for block in blocks]
    assert {origin.causes[0].id for origin in result.origins} == {"code-edit"}
