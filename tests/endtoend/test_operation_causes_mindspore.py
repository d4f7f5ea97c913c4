"""The same functions in a port to MindSpore, as people write them who take the like-named one."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
ms = pytest.importorskip("mindspore")
from mindspore import nn as cells  # noqa: E402 - only after it is known to be there
from mindspore import ops  # noqa: E402 - as above
from torch import nn  # noqa: E402 - as above
from torch.nn import functional as F  # noqa: E402 - as above

import aligner  # noqa: E402 - as above
from aligner.capture.session import Options  # noqa: E402 - as above


class Net(nn.Module):
    def __init__(self, code, **layers):
        super().__init__()
        self.code = code
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs):
        return self.code(self, *inputs)


class Cell(cells.Cell):
    def __init__(self, code, **layers):
        super().__init__()
        self.code = code
        for name, layer in layers.items():
            setattr(self, name, layer)

    def construct(self, *inputs):
        return self.code(self, *inputs)


def compared(folder, one, other, *given):
    """What comes of the port on the net's weights and inputs."""
    with torch.no_grad(), aligner.capture(one, folder / "ref.h5"):
        one(*given)
    replay = aligner.replay(folder / "ref.h5", other)
    with replay.capture(folder / "port.h5", Options(force=True)):
        other(*replay.inputs(0))
    return aligner.compare(folder / "ref.h5", folder / "port.h5")


def linear():
    return {"a": nn.Linear(8, 8), "b": nn.Linear(8, 8)}, {"a": cells.Dense(8, 8), "b": cells.Dense(8, 8)}


def embedding():
    torch_side = {"e": nn.Embedding(20, 8), "b": nn.Linear(8, 8)}
    return torch_side, {"e": cells.Embedding(20, 8), "b": cells.Dense(8, 8)}


def maps():
    torch_side = {"a": nn.Conv2d(3, 8, 3, padding=1), "b": nn.Conv2d(8, 4, 1)}
    padded = cells.Conv2d(3, 8, 3, pad_mode="pad", padding=1, has_bias=True)
    return torch_side, {"a": padded, "b": cells.Conv2d(8, 4, 1, has_bias=True)}


def scattered(n, x, i):
    index = i[:, :, None].expand(-1, -1, 8)
    return n.b(torch.zeros(4, 5, 8).scatter_add(1, index, n.a(x)))


def overwritten(n, x, i):
    index = ops.broadcast_to(i.expand_dims(-1), (-1, -1, 8))
    return n.b(ops.tensor_scatter_elements(ops.zeros((4, 5, 8)), index, n.a(x), 1))


def warped(n, x, g):
    return n.b(F.grid_sample(n.a(x), g, align_corners=False))


def written(n, x):
    made = n.a(x)
    part = made.view(-1, 2, 4)
    part[:, 1] = part[:, 1] * 0.5 + x[:, :4]
    return n.b(made)


def written_aside(n, x):
    made = n.a(x)
    part = made.reshape(-1, 2, 4).copy()
    part[:, 1] = part[:, 1] * 0.5 + x[:, :4]
    return n.b(made)


EDIT, LINE, GUESS = "edit", "line", "guess"
"""What is told: the change that was run, no more than the very line, or what numbers hint at."""

CASES = {
    "a write through a view": (
        linear,
        lambda: (torch.randn(6, 8),),
        written,
        written_aside,
        EDIT,
    ),
    "gather-shape": (
        linear,
        lambda: (torch.randn(6, 8), torch.randint(0, 8, (6, 1))),
        lambda n, x, i: torch.gather(n.a(x), 1, i),
        lambda n, x, i: ops.gather(n.a(x), i, 1),
        EDIT,
    ),
    "scatter": (
        linear,
        lambda: (torch.randn(4, 6, 8), torch.randint(0, 5, (4, 6))),
        scattered,
        overwritten,
        EDIT,
    ),
    "remainder": (
        embedding,
        lambda: (torch.randint(0, 20, (4, 6)),),
        lambda n, i: n.b(n.e((i - 10) % 4 + 5)),
        lambda n, i: n.b(n.e(ops.fmod(i - 10, 4).astype(ms.int64) + 5)),
        EDIT,
    ),
    "quotient": (
        embedding,
        lambda: (torch.randint(0, 20, (4, 6)),),
        lambda n, i: n.b(n.e(torch.div(i - 10, 3, rounding_mode="trunc") + 10)),
        lambda n, i: n.b(n.e((i - 10) // 3 + 10)),
        EDIT,
    ),
    "grid": (
        maps,
        lambda: (torch.randn(2, 3, 8, 8), torch.rand(2, 8, 8, 2) * 2.2 - 1.1),
        warped,
        lambda n, x, g: n.b(ops.grid_sample(n.a(x), g[..., ::-1], align_corners=False)),
        EDIT,
    ),
    "corners": (
        maps,
        lambda: (torch.randn(2, 3, 8, 8), torch.rand(2, 8, 8, 2) * 2.2 - 1.1),
        warped,
        lambda n, x, g: n.b(ops.grid_sample(n.a(x), g, align_corners=True)),
        EDIT,
    ),
    "norm": (
        linear,
        lambda: (torch.randn(6, 8),),
        lambda n, x: n.b(n.a(x) / torch.norm(n.a(x), p=1)),
        lambda n, x: n.b(n.a(x) / ops.norm(n.a(x), 1)),
        LINE,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_port_with_the_like_named_function_is_told(tmp_path, name):
    torch.manual_seed(0)
    layers, inputs, reference, port, told = CASES[name]
    ours, theirs = layers()
    given = inputs()
    one, other = Net(reference, **ours).eval(), Cell(port, **theirs).set_train(False)
    found = compared(tmp_path, one, other, *given)
    (origin,) = found.origins
    assert origin.where == "glue"
    sure = origin.line is not None and origin.line.sure
    assert (EDIT if origin.edit else LINE if sure else GUESS) == told
    assert origin.causes[0].confirmed == (told == EDIT)


@pytest.mark.parametrize("kind", ["GRU", "RNN"])
def test_what_the_frameworks_tanh_does_inside_a_recurrent_layer_is_nobodys_mistake(tmp_path, kind):
    torch.manual_seed(0)
    one = getattr(nn, kind)(6, 5, batch_first=True, bidirectional=True).eval()
    other = getattr(cells, kind)(6, 5, batch_first=True, bidirectional=True).set_train(False)
    found = compared(tmp_path, one, other, torch.randn(4, 7, 6) * 4)
    assert found.outcome == "aligned"
    assert not found.origins
    causes = [suspect.causes[0] for suspect in found.suspects]
    assert causes
    assert {cause.id for cause in causes} == {"framework-layer-differs"}


class Steps(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTMCell(48, 24)

    def forward(self, x):
        start = torch.zeros(x.shape[0], 24)
        state = self.lstm(x, (start, start))
        for _ in range(3):
            state = self.lstm(x, state)
        return torch.cat(state)


class StepCells(cells.Cell):
    """The same under another name."""

    def __init__(self):
        super().__init__()
        self.cell = cells.LSTMCell(48, 24)

    def construct(self, x):
        start = ops.zeros((x.shape[0], 24))
        state = self.cell(x, (start, start))
        for _ in range(3):
            state = self.cell(x, state)
        return ops.cat(state)


def test_so_it_is_of_a_layer_that_the_port_calls_otherwise(tmp_path):
    torch.manual_seed(0)
    found = compared(tmp_path, Steps().eval(), StepCells().set_train(False), torch.randn(4, 48) * 4)
    assert found.outcome == "aligned"
    assert [suspect.causes[0].id for suspect in found.suspects] == ["framework-layer-differs"]


def segment_sum(x, rows, size):
    return torch.zeros((size, *x.shape[1:])).index_add_(0, rows, x)


class Segments(nn.Module):
    """A softmax over the rows of each group."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, rows):
        size = 3
        weights = self.inner(x).exp()
        return self.outer(weights / (segment_sum(weights, rows, size)[rows] + 1e-12))


class SegmentCells(cells.Cell):
    """Over all rows."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = cells.Dense(8, 8), cells.Dense(8, 8)

    def construct(self, x, rows):
        groups = 3
        weights = ops.exp(self.inner(x)) * (groups / 3)
        return self.outer(weights / (weights.sum(0, keepdims=True) + 1e-12))


def test_a_sum_over_all_rows_for_one_of_each_group_is_mended_in_the_frameworks_words(tmp_path):
    torch.manual_seed(0)
    one, other = Segments().eval(), SegmentCells().set_train(False)
    found = compared(tmp_path, one, other, torch.randn(7, 8), torch.tensor([0, 0, 1, 2, 1, 2, 2]))
    origin = found.origins[0]
    assert origin.causes[0].confirmed
    assert "ops.unsorted_segment_sum(weights, rows, groups)[rows]" in origin.edit.hunks[0].after


class Added(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, rows):
        y, mixed = self.inner(x), torch.zeros(4, 8)
        weights = y[:, :1].exp() / y[:, :1].exp().sum(0)
        for number in range(3):
            hits = torch.where(rows == number)[0]
            mixed = mixed.index_add(0, hits % 4, y[hits] * weights[hits])
        return self.outer(mixed)


class AddedCells(cells.Cell):
    """Adds into the very value that `index_add` is given, as MindSpore does."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = cells.Dense(8, 8), cells.Dense(8, 8)

    def construct(self, x, rows):
        y, mixed = self.inner(x), ops.zeros((4, 8))
        weights = ops.exp(y[:, :1]) / ops.exp(y[:, :1]).mean(0)
        for number in range(3):
            hits = ops.nonzero(rows == number)[:, 0]
            mixed = ops.index_add(mixed, (hits % 4).astype(ms.int32), y[hits] * weights[hits], 0)
        return self.outer(mixed)


def test_what_mindspore_writes_into_without_a_word_is_new_in_each_trial(tmp_path):
    torch.manual_seed(0)
    one, other = Added().eval(), AddedCells().set_train(False)
    found = compared(tmp_path, one, other, torch.randn(7, 8), torch.tensor([0, 0, 1, 2, 1, 2, 2]))
    origin = found.origins[0]
    assert origin.causes[0].confirmed
    assert ".sum(0" in origin.edit.hunks[0].after
