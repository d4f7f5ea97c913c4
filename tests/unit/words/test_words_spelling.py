"""Operations as source: what is written does what the word says."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.words.spelling import bracketed, index_text, number_text, spelled, unshaped
from aligner.words.templates import MINDSPORE, NUMPY, TORCH

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402 - only after it is known to be there

MODULES = {"ops": "torch", "ms": "torch"}


def picked(x, y):
    return x.index_select(1, x.argmax(1)[0])


def likely(x, y):
    return F.nll_loss(x[0], x[0].argmin(1), ignore_index=2, reduction="sum")


def rows_filled(x, y):
    return x.masked_fill(x[:, :1, :1] > 0, 2.0)


CALLS = [
    ("softmax", ["x"], {"axis": 1}, lambda x, y: x.softmax(1)),
    ("sum", ["x"], {"axis": 2, "keepdims": True}, lambda x, y: x.sum(2, keepdim=True)),
    ("mean", ["x + y"], {"axis": 0, "keepdims": False}, lambda x, y: (x + y).mean(0)),
    ("max", ["x"], {"axis": 1, "keepdims": False}, lambda x, y: x.amax(1)),
    ("transpose", ["x"], {"perm": (0, 2, 1)}, lambda x, y: x.transpose(1, 2)),
    ("reshape", ["x"], {"shape": (6, 4)}, lambda x, y: x.reshape(6, 4)),
    ("cat", ["x", "y"], {"axis": 2}, lambda x, y: torch.cat((x, y), 2)),
    ("stack", ["x"], {"axis": 0}, lambda x, y: torch.stack((x,), 0)),
    ("getitem", ["x"], {"index": ((None, None, 1), (1, None, 1))}, lambda x, y: x[:, 1:]),
    ("sub", ["x", "2"], {}, lambda x, y: x - 2),
    ("square", ["x - y"], {}, lambda x, y: (x - y) ** 2),
    ("nonzero", ["x > y"], {}, lambda x, y: (x > y).nonzero()),
    ("neg", ["x - y"], {}, lambda x, y: y - x),
    ("rfft", ["x"], {"n": None, "axis": 1, "norm": "ortho"}, lambda x, y: torch.fft.rfft(x, dim=1, norm="ortho")),
    ("fft2", ["x"], {"s": (4, 6), "axis": (-2, -1), "norm": None}, lambda x, y: torch.fft.fft2(x, (4, 6))),
    ("gelu", ["x"], {"approximate": "tanh"}, lambda x, y: torch.nn.functional.gelu(x, approximate="tanh")),
    ("relu", ["x"], {}, lambda x, y: x.relu()),
    ("clamp", ["x"], {"min": 0.0, "max": None}, lambda x, y: x.clamp(min=0)),
    ("masked_fill", ["x", "y > 0"], {"value": float("-inf")}, lambda x, y: x.masked_fill(y > 0, float("-inf"))),
    ("repeat_interleave", ["x"], {"repeats": 2, "axis": 1}, lambda x, y: x.repeat_interleave(2, 1)),
    (
        "max_pool",
        ["x[None]"],
        {"kernel": 2, "stride": None, "pad": ((1, 1), (1, 1)), "dilation": 1, "ceil_mode": True},
        lambda x, y: torch.nn.functional.max_pool2d(x[None], 2, padding=1, ceil_mode=True),
    ),
    (
        "avg_pool",
        ["x[None]"],
        {"kernel": (2, 3), "stride": (1, 2), "pad": 1, "ceil_mode": False, "include_pad": False},
        lambda x, y: torch.nn.functional.avg_pool2d(x[None], (2, 3), (1, 2), 1, count_include_pad=False),
    ),
    (
        "pixel_shuffle",
        ["x.reshape(1, 4, 3, 2)"],
        {"r": 2},
        lambda x, y: torch.nn.functional.pixel_shuffle(x.reshape(1, 4, 3, 2), 2),
    ),
    (
        "pixel_unshuffle",
        ["x.reshape(1, 1, 4, 6)"],
        {"r": 2},
        lambda x, y: torch.nn.functional.pixel_unshuffle(x.reshape(1, 1, 4, 6), 2),
    ),
    ("prod", ["x"], {"axis": 1, "keepdims": True}, lambda x, y: x.prod(1, keepdim=True)),
    ("any", ["x > 1"], {"axis": 1, "keepdims": False}, lambda x, y: (x > 1).any(1)),
    ("all", ["x > -1"], {"axis": 2, "keepdims": False}, lambda x, y: (x > -1).all(2)),
    ("argmin", ["x"], {"axis": 1, "keepdims": True}, lambda x, y: x.argmin(1, keepdim=True)),
    ("cumprod", ["x"], {"axis": 1}, lambda x, y: x.cumprod(1)),
    ("index_select", ["x", "x.argmax(1)[0]"], {"axis": 1}, picked),
    (
        "segment_sum",
        ["x", "y[:, 0, 0].argsort()"],
        {"n": 3},
        lambda x, y: torch.zeros(3, 3, 4).index_add(0, y[:, 0, 0].argsort(), x),
    ),
    (
        "scatter",
        ["x", "y.argsort(1)", "y"],
        {"axis": 1, "reduction": "none", "value": None},
        lambda x, y: x.scatter(1, y.argsort(1), y),
    ),
    (
        "scatter",
        ["x", "y.argsort(2)", "y"],
        {"axis": 2, "reduction": "add", "value": None},
        lambda x, y: x.scatter_add(2, y.argsort(2), y),
    ),
    (
        "segment_max",
        ["x", "y[:, 0, 0].argsort()"],
        {"n": 2},
        lambda x, y: x[y[:, 0, 0].argsort()],
    ),
    (
        "segment_min",
        ["x", "y[:, 0, 0].argsort()"],
        {"n": 2},
        lambda x, y: x[y[:, 0, 0].argsort()],
    ),
    (
        "bucketize",
        ["x", "y[0, 0].sort()[0]"],
        {"right": True},
        lambda x, y: torch.bucketize(x, y[0, 0].sort()[0], right=True),
    ),
    ("cross", ["x", "y"], {"axis": 1}, lambda x, y: torch.cross(x, y, dim=1)),
    ("cdist", ["x", "y"], {"p": 2.0}, lambda x, y: torch.cdist(x, y)),
    ("diagonal", ["x"], {"offset": 1, "axis1": 1, "axis2": 2}, lambda x, y: x.diagonal(1, 1, 2)),
    ("inverse", ["x[:, :2, :2]"], {}, lambda x, y: torch.linalg.inv(x[:, :2, :2])),
    ("lerp", ["x", "y", "y * y"], {}, lambda x, y: torch.lerp(x, y, y * y)),
    *(
        (word, ["x * y"], {}, lambda x, y, word=word: getattr(torch, word)(x * y))
        for word in ("asinh", "atan", "cosh", "sinh", "erfc", "exp2", "frac", "trunc", "rad2deg", "isnan", "isfinite")
    ),
    *(
        (word, ["x.sigmoid()"], {}, lambda x, y, word=word: getattr(torch, word)(x.sigmoid()))
        for word in ("asin", "acos", "atanh", "log10", "lgamma", "deg2rad")
    ),
    ("acosh", ["x * x + 1"], {}, lambda x, y: (x * x + 1).acosh()),
    ("logaddexp", ["x", "y"], {}, lambda x, y: torch.logaddexp(x, y)),
    ("hypot", ["x", "y"], {}, lambda x, y: torch.hypot(x, y)),
    ("softsign", ["x"], {}, lambda x, y: F.softsign(x)),
    ("linspace", [], {"start": 0.5, "end": 2.0, "steps": 4}, lambda x, y: torch.linspace(0.5, 2, 4)),
    ("eye", [], {"n": 3}, lambda x, y: torch.eye(3)),
    ("celu", ["x"], {"alpha": 0.5}, lambda x, y: F.celu(x, 0.5)),
    ("cosine_similarity", ["x", "y"], {"axis": 2, "eps": 1e-8}, lambda x, y: F.cosine_similarity(x, y, 2)),
    ("adaptive_avg_pool", ["x"], {"size": (1, 2)}, lambda x, y: F.adaptive_avg_pool2d(x, (1, 2))),
    ("adaptive_max_pool", ["x"], {"size": (1, 2)}, lambda x, y: F.adaptive_max_pool2d(x, (1, 2))),
    ("mse_loss", ["x", "y"], {"reduction": "sum"}, lambda x, y: F.mse_loss(x, y, reduction="sum")),
    ("l1_loss", ["x", "y"], {"reduction": "mean"}, lambda x, y: F.l1_loss(x, y)),
    ("smooth_l1_loss", ["x", "y"], {"beta": 0.5, "reduction": "mean"}, lambda x, y: F.smooth_l1_loss(x, y, beta=0.5)),
    ("nll_loss", ["x[0]", "x[0].argmin(1)"], {"ignore_index": 2, "reduction": "sum"}, likely),
    (
        "cross_entropy",
        ["x[0]", "y[0].argmin(1)"],
        {"ignore_index": -100, "reduction": "mean", "label_smoothing": 0.1},
        lambda x, y: F.cross_entropy(x[0], y[0].argmin(1), label_smoothing=0.1),
    ),
    ("argsort", ["x.argsort(1)"], {"axis": 1, "descending": True}, lambda x, y: x.argsort(1).argsort(1, True)),
    ("div", ["x * 9", "y"], {"rounding_mode": "trunc"}, lambda x, y: torch.div(x * 9, y, rounding_mode="trunc")),
    (
        "addmm",
        ["x[:, :, :3]", "x", "y.swapaxes(1, 2)"],
        {"beta": 0.5, "alpha": 2},
        lambda x, y: torch.baddbmm(x[:, :, :3], x, y.mT, beta=0.5, alpha=2),
    ),
    (
        "index_add",
        ["x", "x.argmax(2)[0]", "y[:, :, :3]"],
        {"axis": 2},
        lambda x, y: x.index_add(2, x.argmax(2)[0], y[:, :, :3]),
    ),
    ("one_hot", ["x.argmin(1)"], {"n": 5}, lambda x, y: F.one_hot(x.argmin(1), 5)),
    (
        "layer_norm",
        ["x", "y[0, 0]", "x[0, 0]"],
        {"shape": (4,), "eps": 0.1},
        lambda x, y: F.layer_norm(x, (4,), y[0, 0], x[0, 0], 0.1),
    ),
    (
        "group_norm",
        ["x", "y[0, :, 0]", "x[0, :, 0]"],
        {"groups": 3, "eps": 0.1},
        lambda x, y: F.group_norm(x, 3, y[0, :, 0], x[0, :, 0], 0.1),
    ),
    (
        "unfold",
        ["x[None]"],
        {"kernel": 2, "dilation": 1, "pad": 1, "stride": 2},
        lambda x, y: F.unfold(x[None], 2, 1, 1, 2),
    ),
    (
        "grid_sample",
        ["x[None]", "y[None, 0, :, :2][None]"],
        {"mode": "bilinear", "pad_mode": "zeros", "align_corners": True},
        lambda x, y: F.grid_sample(x[None], y[None, 0, :, :2][None], align_corners=True),
    ),
    ("kl_div", ["x", "y.sigmoid()"], {"reduction": "sum"}, lambda x, y: F.kl_div(x, y.sigmoid(), reduction="sum")),
    (
        "binary_cross_entropy_with_logits",
        ["x", "y.sigmoid()"],
        {"reduction": "mean"},
        lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
    ),
    ("std", ["x"], {"axis": 1, "correction": 0, "keepdims": True}, lambda x, y: x.std(1, correction=0, keepdim=True)),
    ("elu", ["x"], {"alpha": 1.0}, lambda x, y: F.elu(x)),
    ("elu", ["x - y"], {"alpha": 2.0}, lambda x, y: F.elu(x - y, 2.0)),
    ("celu", ["x"], {"alpha": 2.0}, lambda x, y: F.celu(x, 2.0)),
    ("celu", ["x"], {"alpha": 1.0}, lambda x, y: F.celu(x)),
    ("leaky_relu", ["x"], {"slope": 1.0}, lambda x, y: F.leaky_relu(x, 1.0)),
    ("softplus", ["x"], {"beta": 1, "threshold": 20}, lambda x, y: F.softplus(x)),
    ("norm", ["x"], {"p": 2, "axis": -1, "keepdims": True}, lambda x, y: x.norm(dim=-1, keepdim=True)),
    ("norm", ["x"], {"p": 2, "axis": (1, 2), "keepdims": False}, lambda x, y: x.norm(dim=(1, 2))),
    ("normalize", ["x"], {"p": 2, "axis": (0, 1), "eps": 1e-12}, lambda x, y: F.normalize(x, dim=(0, 1))),
    ("roll", ["x"], {"shifts": 1, "axis": 1}, lambda x, y: x.roll(1, 1)),
    ("roll", ["x + y"], {"shifts": (-1, 2), "axis": (-1, 1)}, lambda x, y: (x + y).roll((-1, 2), (-1, 1))),
    ("pad", ["x"], {"pad": (1, 2), "mode": "reflect", "value": 0}, lambda x, y: F.pad(x, (1, 2), "reflect")),
    ("pad", ["x"], {"pad": (1, 2), "mode": "constant", "value": 2.0}, lambda x, y: F.pad(x, (1, 2), value=2.0)),
    ("interpolate", ["x"], {"size": (8,), "mode": "nearest", "align_corners": False}, lambda x, y: F.interpolate(x, 8)),
    (
        "cross_entropy",
        ["x", "y"],
        {"ignore_index": -100, "reduction": "sum", "label_smoothing": 0.0},
        lambda x, y: F.cross_entropy(x, y, reduction="sum"),
    ),
    ("masked_fill", ["x", "x[:, 0, 0] > 0"], {"value": 2.0, "rest": 2}, rows_filled),
    ("where", ["x[:, :, 0] > 0", "x", "y"], {"rest": 1}, lambda x, y: torch.where(x[:, :, :1] > 0, x, y)),
    ("addmm", ["x[:, :, :3]", "x", "y.swapaxes(1, 2)"], {"beta": 1, "alpha": 1}, lambda x, y: x[:, :, :3] + x @ y.mT),
]


@pytest.mark.parametrize(
    ("word", "operands", "given", "wanted"), CALLS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_torch_source_does_what_is_meant(word, operands, given, wanted):
    x, y = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    text = spelled(word, operands, given, {}, MODULES, "torch")
    assert torch.allclose(eval(text, {"torch": torch, "x": x, "y": y}), wanted(x, y), rtol=1e-6, equal_nan=True)


@pytest.mark.parametrize(
    ("word", "operands", "given", "wanted"), CALLS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_mindspore_source_does_what_is_meant_and_writes_into_nothing(word, operands, given, wanted):
    mindspore = pytest.importorskip("mindspore")
    sides = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    x, y = (mindspore.Tensor(side.numpy().copy()) for side in sides)
    text = spelled(word, operands, given, {}, {"ops": "ops", "ms": "mindspore"}, MINDSPORE)
    found = eval(text, {"ops": mindspore.ops, "mindspore": mindspore, "x": x, "y": y}).asnumpy()
    expected = wanted(*sides).numpy()
    assert (found.shape, found.dtype.kind) == (expected.shape, expected.dtype.kind)
    assert np.allclose(found, expected, atol=1e-5, equal_nan=True)
    assert all((one.asnumpy() == side.numpy()).all() for one, side in zip((x, y), sides))


@pytest.mark.parametrize(
    ("word", "operands", "given", "wanted"), CALLS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_mindspore_source_does_what_is_meant(word, operands, given, wanted):
    mindspore = pytest.importorskip("mindspore")
    numpy = pytest.importorskip("numpy")
    x, y = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    text = spelled(word, operands, given, {}, {"ops": "mindspore.ops", "ms": "mindspore"}, "mindspore")
    names = {"mindspore": mindspore, "x": mindspore.Tensor(x.numpy()), "y": mindspore.Tensor(y.numpy())}
    found = eval(text, names).asnumpy()
    numpy.testing.assert_allclose(found, wanted(x, y).numpy(), rtol=2e-4, atol=1e-6)


SORTED = [
    ("sort", {"axis": 1, "descending": True}, lambda x: x.sort(1, True)),
    ("topk", {"k": 2, "axis": 1, "largest": False}, lambda x: x.topk(2, 1, False)),
    ("max", {"axis": 2, "keepdims": False}, lambda x: x.max(2)),
    ("cummax", {"axis": 1}, lambda x: x.cummax(1)),
    ("cummin", {"axis": 1}, lambda x: x.cummin(1)),
]


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize(("word", "given", "wanted"), SORTED, ids=lambda value: value if isinstance(value, str) else "")
def test_values_and_where_they_are(word, given, wanted, part):
    mindspore = pytest.importorskip("mindspore")
    x = torch.randn(2, 5, 4)
    text = spelled(word, ["x"], given, {}, MODULES, "torch", part)
    other = spelled(word, ["x"], given, {}, {"ops": "mindspore.ops", "ms": "mindspore"}, "mindspore", part)
    assert torch.equal(eval(text, {"torch": torch, "x": x}), wanted(x)[part])
    found = eval(other, {"mindspore": mindspore, "x": mindspore.Tensor(x.numpy())})
    assert (found.asnumpy() == wanted(x)[part].numpy()).all()


@pytest.mark.parametrize("word", ["no_such_operation", "conv"])
def test_what_has_no_words_is_said(word):
    with pytest.raises(LookupError):
        spelled(word, ["x"], {"stride": 2}, {}, MODULES, "torch")


def test_a_pool_without_a_stride_has_its_kernels():
    given = {"kernel": 4, "stride": None, "pad": 0, "dilation": 1, "ceil_mode": False}
    texts = {"kernel": "self.patch", "stride": "None", "pad": "0"}
    said = spelled("max_pool", ["x"], given, texts, MODULES, "torch")
    assert said == "torch.nn.functional.max_pool2d(x, self.patch, 4)"


@pytest.mark.parametrize(
    ("side", "said"),
    [(NUMPY, "np.concatenate(([1.0], x), axis=0)"), (MINDSPORE, "np.cat((np.full((1,), 1.0), x), axis=0)")],
)
def test_a_number_beside_values_is_a_value(side, said):
    assert spelled("cat", ["1", "x"], {"axis": 0}, {}, {"ops": "np"}, side) == said


def test_small_words():
    assert index_text(((None, None, 1), (None, None, 1), (0, 2, 1))) == "..., 0:2"
    assert unshaped("x.reshape(2, -1)") == "x"
    assert unshaped("f(x.reshape(2))") == "f(x.reshape(2))"
    assert unshaped("x[0].unsqueeze(-1).reshape(x.shape[0], -1)") == "x[0]"
    assert unshaped("ops.reshape(x, (2, 3))") == "ops.reshape(x, (2, 3))"
    assert bracketed("a + b") == "(a + b)"
    assert bracketed("a[0]") == "a[0]"
    assert [number_text(value) for value in (2.0, 0.5, float("-inf"))] == ["2", "0.5", 'float("-inf")']


@pytest.mark.parametrize(
    ("side", "word", "said"),
    [
        (MINDSPORE, "sum", "x.sum()"),
        (MINDSPORE, "mean", "ops.mean(x)"),
        (TORCH, "mean", "x.mean()"),
        (MINDSPORE, "any", "x.any()"),
    ],
)
def test_all_axes_need_no_word(side, word, said):
    given = {"axis": None, "keepdims": False}
    assert spelled(word, ["x"], given, {}, {"ops": "ops", "ms": "ms"}, side) == said
    assert spelled(word, ["x"], {**given, "axis": (1,)}, {}, {"ops": "ops", "ms": "ms"}, side) != said
