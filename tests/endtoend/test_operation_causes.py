"""Functions that do something else by the name they were given, from a net to the answer: torch on both sides."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there
from torch.nn import functional as F  # noqa: E402 - as above

import aligner  # noqa: E402 - as above
from aligner.capture.session import Options  # noqa: E402 - as above


class Net(nn.Module):
    """Layers by name, and what the code between them does."""

    def __init__(self, code, **layers):
        super().__init__()
        self.code = code
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs):
        return self.code(self, *inputs)


def compared(tmp_path, layers, inputs, reference, port, training=False):
    """The comparison of two nets that differ in their code alone."""
    one, other = (Net(code, **copy.deepcopy(layers)).train(training) for code in (reference, port))
    with torch.no_grad(), aligner.capture(one, tmp_path / "ref.h5"):
        one(*inputs)
    replay = aligner.replay(tmp_path / "ref.h5", other)
    with torch.no_grad(), replay.capture(tmp_path / "port.h5", Options(force=True)):
        other(*replay.inputs(0))
    return aligner.compare(tmp_path / "ref.h5", tmp_path / "port.h5")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def sampled(turned=False, **how):
    """A map read off at the places of a grid."""
    how.setdefault("align_corners", False)
    return lambda n, x, g: n.b(F.grid_sample(n.a(x), g.flip(-1) if turned else g, **how))


def warped(turned=False, corners=False):
    """The same with a grid made of six numbers."""

    def code(n, x):
        grid = F.affine_grid(n.t(x.mean((2, 3))).view(-1, 2, 3), x.shape, align_corners=corners)
        return n.b(F.grid_sample(x, grid.flip(-1) if turned else grid, align_corners=corners))

    return code


def kept(scaled):
    """Stochastic depth that drops the same samples each time."""

    def code(n, x):
        mask = (torch.rand(len(x), 1, 1, generator=torch.Generator().manual_seed(3)) < 0.7).float()
        return n.b(x + (n.a(x) * mask / 0.7 if scaled else n.a(x) * mask))

    return code


def put(added):
    """Rows put where indices say."""

    def code(n, x, i):
        index = i[:, :, None].expand(-1, -1, 8)
        empty = torch.zeros(4, 5, 8)
        return n.b(empty.scatter_add(1, index, n.a(x)) if added else empty.scatter(1, index, n.a(x)))

    return code


def seen(x, weight):
    return (x * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)


def related(n, x, w, one, other):
    relation = torch.tanh(one[:, :, None] - other[:, None])
    return (n.c(relation) * 0.3).mean(-1) @ (n.d(x) * w)[:, 0]


def over_all(n, x, w):
    target = n.a(x).mean(1)
    source = n.b(x).mean(1)
    relation = torch.tanh(target[:, :, None] - source[:, None])
    return (n.c(relation) * 0.3).mean(-1) @ (n.d(x) * w)[:, 0]


def first_seen(values):
    return torch.tensor(list(dict.fromkeys(values.reshape(-1).tolist())))


def spread(axis=0, unbiased=False):
    """The deviation over the batch as one more channel."""

    def code(n, x):
        h = n.a(x)
        number = h.std(axis, unbiased=unbiased).mean()
        return n.b(torch.cat([h, number.expand(len(h), 1, 8, 8)], 1))

    return code


def over(norm):
    return lambda n, x: n.b(n.a(x) / norm(n.a(x)))


def window_first(x):
    """Patches with the window before the channels."""
    return F.unfold(x, 3, padding=1).view(2, 4, 9, 64).transpose(1, 2).reshape(2, 36, 64)


def two(wide=8):
    return {"a": nn.Linear(wide, wide), "b": nn.Linear(wide, wide)}


def maps(last=None):
    return {"a": nn.Conv2d(3, 8, 3, padding=1), "b": last or nn.Conv2d(8, 4, 1)}


def words():
    return {"e": nn.Embedding(20, 8), "b": nn.Linear(8, 8)}


def rows():
    return (torch.randn(4, 6, 8),)


def pictures():
    return (torch.randn(4, 3, 8, 8),)


def tokens():
    return (torch.randint(0, 20, (4, 6)),)


def gridded():
    return torch.randn(2, 3, 8, 8), torch.rand(2, 8, 8, 2) * 2.2 - 1.1


EDIT, LINE, GUESS = "edit", "line", "guess"
"""What is told: the change that was run, no more than the very line, or what numbers hint at."""

CASES = {
    "xy": (maps, gridded, sampled(), sampled(True), EDIT),
    "xy-affine": (
        lambda: {"t": nn.Linear(3, 6), "b": nn.Conv2d(3, 4, 1)},
        pictures,
        warped(),
        warped(True),
        EDIT,
    ),
    "corners": (maps, gridded, sampled(align_corners=True), sampled(), EDIT),
    "border": (maps, gridded, sampled(padding_mode="border"), sampled(), EDIT),
    "nearest": (maps, gridded, sampled(), sampled(mode="nearest"), EDIT),
    "median": (
        two,
        rows,
        lambda n, x: n.b(n.a(x).median(1)[0]),
        lambda n, x: n.b(n.a(x).quantile(0.5, 1)),
        LINE,
    ),
    "median-of-all": (
        two,
        rows,
        over(lambda h: h.abs().median()),
        over(lambda h: h.abs().quantile(0.5)),
        LINE,
    ),
    "unique": (
        words,
        tokens,
        lambda n, i: n.b(n.e(torch.unique(i))),
        lambda n, i: n.b(n.e(first_seen(i))),
        GUESS,
    ),
    "quotient": (
        words,
        tokens,
        lambda n, i: n.b(n.e(torch.div(i - 10, 3, rounding_mode="trunc") + 10)),
        lambda n, i: n.b(n.e(torch.div(i - 10, 3, rounding_mode="floor") + 10)),
        EDIT,
    ),
    "quotient-of-floats": (
        two,
        rows,
        lambda n, x: n.b(torch.div(n.a(x) * 5, 2, rounding_mode="trunc")),
        lambda n, x: n.b(torch.div(n.a(x) * 5, 2, rounding_mode="floor")),
        EDIT,
    ),
    "remainder": (
        words,
        tokens,
        lambda n, i: n.b(n.e(torch.remainder(i - 10, 4) + 5)),
        lambda n, i: n.b(n.e(torch.fmod(i - 10, 4) + 5)),
        EDIT,
    ),
    "remainder-turned-round": (
        two,
        rows,
        lambda n, x: n.b(torch.fmod(n.a(x) * 5, 2)),
        lambda n, x: n.b(torch.remainder(n.a(x) * 5, 2)),
        LINE,
    ),
    "gather": (
        two,
        lambda: (torch.randn(6, 6, 8), torch.randint(0, 6, (6, 6))),
        lambda n, x, i: n.b(torch.gather(n.a(x), 1, i[:, :, None].expand(-1, -1, 8))),
        lambda n, x, i: n.b(n.a(x)[:, i[0]]),
        EDIT,
    ),
    "gather-shape": (
        two,
        lambda: (torch.randn(4, 8), torch.randint(0, 8, (4, 1))),
        lambda n, x, i: torch.gather(n.a(x), 1, i),
        lambda n, x, i: n.a(x)[:, i],
        EDIT,
    ),
    "scatter": (
        two,
        lambda: (torch.randn(4, 6, 8), torch.randint(0, 5, (4, 6))),
        put(True),
        put(False),
        EDIT,
    ),
    "scatter-rows": (
        two,
        lambda: (torch.randn(12, 8), torch.randint(0, 5, (12,))),
        lambda n, x, i: n.b(torch.zeros(5, 8).index_add(0, i, n.a(x))),
        lambda n, x, i: n.b(torch.zeros(5, 8).index_copy(0, i, n.a(x))),
        EDIT,
    ),
    "mean": (
        lambda: maps(nn.Linear(8, 4)),
        pictures,
        lambda n, x: n.b(n.a(x).mean((2, 3))),
        lambda n, x: n.b(F.pad(n.a(x).mean((1, 2)), (0, 0))),
        EDIT,
    ),
    "masked-means": (
        lambda: {name: nn.Linear(8, 8) for name in "abcd"},
        lambda: (torch.randn(3, 6, 5, 8), (torch.arange(6) < torch.tensor([[6], [4], [5]])).float()[..., None, None]),
        lambda n, x, w: related(n, x, w, seen(n.a(x), w), seen(n.b(x), w)),
        over_all,
        EDIT,
    ),
    "norm": (
        two,
        lambda: (torch.randn(6, 8),),
        over(torch.linalg.norm),
        over(lambda h: torch.linalg.matrix_norm(h, 2)),
        EDIT,
    ),
    "norm-alone": (
        two,
        lambda: (torch.randn(6, 8),),
        lambda n, x: n.a(x).abs().sum(),
        lambda n, x: torch.linalg.matrix_norm(n.a(x), 1),
        EDIT,
    ),
    "patches": (
        lambda: {"a": nn.Conv2d(3, 4, 3, padding=1), "b": nn.Linear(36, 8)},
        lambda: (torch.randn(2, 3, 8, 8),),
        lambda n, x: n.b(F.unfold(n.a(x), 3, padding=1).transpose(1, 2)),
        lambda n, x: n.b(window_first(n.a(x)).transpose(1, 2)),
        EDIT,
    ),
    "along-another-axis": (
        lambda: {"a": nn.Linear(8, 8), "c": nn.Conv1d(8, 8, 3, padding=1)},
        lambda: (torch.randn(4, 8, 8),),
        lambda n, x: n.c(n.a(x).transpose(1, 2)),
        lambda n, x: n.c(n.a(x)),
        EDIT,
    ),
    "deviation": (lambda: maps(nn.Conv2d(9, 4, 1)), pictures, spread(), spread(unbiased=True), EDIT),
    "deviation-axis": (lambda: maps(nn.Conv2d(9, 4, 1)), pictures, spread(), spread(1), EDIT),
}


@pytest.mark.parametrize("name", CASES)
def test_what_another_function_does_is_told(tmp_path, name):
    layers, inputs, reference, port, told = CASES[name]
    (origin,) = compared(tmp_path, layers(), inputs(), reference, port).origins
    assert origin.where == "glue"
    sure = origin.line is not None and origin.line.sure
    assert (EDIT if origin.edit else LINE if sure else GUESS) == told
    assert origin.causes[0].confirmed == (told == EDIT)


def test_samples_that_are_kept_in_training_and_not_scaled_up(tmp_path):
    answer = compared(tmp_path, two(), (torch.randn(8, 6, 8),), kept(True), kept(False), training=True)
    assert answer.origins[0].edit is not None
    assert answer.origins[0].causes[0].confirmed
