"""Causes in precision and at the edges of number ranges, from a net to the answer.

torch on both sides, so the mistake is the planted one and nothing else.
"""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there

import aligner  # noqa: E402 - as above
from aligner.capture.session import Options  # noqa: E402 - as above
from aligner.explain.catalogue import spoken  # noqa: E402 - as above
from aligner.explain.patterns.limits import grid  # noqa: E402 - as above

INF = float("inf")


def answer(folder, reference, port, *inputs):
    for net in (reference, port):
        net.eval()
    with torch.no_grad(), aligner.capture(reference, folder / "ref.h5"):
        reference(*inputs)
    replay = aligner.replay(folder / "ref.h5", port)
    with torch.no_grad(), replay.capture(folder / "port.h5", Options(force=True)):
        port(*replay.inputs(0))
    return aligner.compare(folder / "ref.h5", folder / "port.h5")


def first_cause(result):
    (origin,) = result.origins or result.suspects
    return origin, origin.causes[0]


class Attention(nn.Module):
    """Attention of four heads; `code` makes the shares of query, key and mask."""

    def __init__(self, code, softmax=False, size=1.0):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(32, 32) for _ in range(4))
        self.softmax = nn.Softmax(-1) if softmax else None
        self.code = [code]
        with torch.no_grad():
            self.q.weight.mul_(size)
            self.k.weight.mul_(size)

    def forward(self, x, seen=None):
        q, k, v = (layer(x).view(3, -1, 4, 8).transpose(1, 2) for layer in (self.q, self.k, self.v))
        scores = self.code[0](q, k, None if seen is None else seen[:, None, None])
        shares = scores.float().softmax(-1) if self.softmax is None else self.softmax(scores.float())
        return self.o((shares @ v).transpose(1, 2).reshape(x.shape))


def scored(q, k, seen, fill=-1e9):
    scores = q @ k.transpose(-1, -2) / 8**0.5
    return scores if seen is None else scores.masked_fill(~seen, fill)


def filled(q, k, seen):
    return scored(q, k, seen, -INF)


def added_in_half(q, k, seen):
    return scored(q, k, None).half() + (torch.where(seen, 0.0, -1e9)).half()


def added_twice(q, k, seen):
    least = torch.where(seen, 0.0, -65504.0).half()
    return scored(q, k, None).half() + least + least


def multiplied_in_half(q, k, seen):
    return q.half() @ k.half().transpose(-1, -2) / 8**0.5


def rounded_first(q, k, seen):
    return scored(q.bfloat16().float(), k.bfloat16().float(), seen)


def mask(blind):
    seen = torch.ones(3, 6, dtype=torch.bool)
    seen[1, 4:] = False
    seen[2, 0 if blind else 3 :] = False
    return seen


def attentions(code, reference=scored, **settings):
    torch.manual_seed(0)
    net = Attention(reference, **settings)
    port = copy.deepcopy(net)
    port.code = [code]
    return net, port, torch.randn(3, 6, 32)


@pytest.mark.parametrize("softmax", [False, True], ids=["function", "layer"])
@pytest.mark.parametrize("code", [added_in_half, added_twice, filled])
def test_a_fill_makes_nan_of_a_query_that_sees_nothing(tmp_path, code, softmax):
    result = answer(tmp_path, *attentions(code, softmax=softmax), mask(blind=True))
    origin = result.origins[0]
    assert (result.outcome, origin.where) == ("diverged", "glue")
    assert origin.edit is not None or not any(cause.confirmed for cause in origin.causes)


@pytest.mark.parametrize("softmax", [False, True], ids=["function", "layer"])
def test_another_fill_is_nobodys_mistake_where_every_query_sees_something(tmp_path, softmax):
    result = answer(tmp_path, *attentions(filled, softmax=softmax), mask(blind=False))
    assert (result.outcome, result.origins, result.suspects) == ("aligned", (), ())


@pytest.mark.parametrize("softmax", [False, True], ids=["function", "layer"])
@pytest.mark.parametrize("size", [300.0, 10.0])
def test_scores_in_float16(tmp_path, size, softmax):
    origin, found = first_cause(answer(tmp_path, *attentions(multiplied_in_half, softmax=softmax, size=size)))
    assert (origin.where, found.id) == ("glue", "code-edit")
    assert "half" not in origin.edit.hunks[0].after


def test_products_of_rounded_values(tmp_path):
    origin, _ = first_cause(answer(tmp_path, *attentions(rounded_first)))
    assert origin.edit is not None or not any(cause.confirmed for cause in origin.causes)


class Products(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, stride=2, groups=2)
        self.last = nn.Linear(8, 64)

    def forward(self, x):
        return self.last(self.second(self.first(x).relu()).relu().mean((2, 3)))


def on_device(layer, word):
    """The layer as a device computes it that rounds the operands of products."""

    def rounded(values):
        return torch.from_numpy(grid(values.detach().numpy(), word))

    def linear(x):
        return nn.functional.linear(rounded(x), rounded(layer.weight), layer.bias)

    def convolved(x):
        settings = layer.stride, layer.padding, layer.dilation, layer.groups
        return nn.functional.conv2d(rounded(x), rounded(layer.weight), layer.bias, *settings)

    layer.forward = linear if isinstance(layer, nn.Linear) else convolved


@pytest.mark.parametrize(("word", "told"), [("hf32", "hf32"), ("tf32", "tf32 or float16"), ("bfloat16", "bfloat16")])
def test_a_device_that_rounds_what_it_multiplies(tmp_path, word, told):
    torch.manual_seed(0)
    net = Products()
    port = copy.deepcopy(net)
    for layer in port.children():
        on_device(layer, word)
    result = answer(tmp_path, net, port, torch.randn(2, 3, 12, 12))
    found = {origin.layer: origin.causes[0] for origin in (*result.origins, *result.suspects)}
    assert {layer: cause.id for layer, cause in found.items()} == {
        "first": "ascend-hf32-conv-default",
        "second": "ascend-hf32-conv-default",
        "last": "ascend-matmul-precision-mode",
    }
    assert all(not cause.confirmed and spoken(cause.facts, "en")["dtype"] == told for cause in found.values())


class Code(nn.Module):
    """Two layers with code between them."""

    def __init__(self, code, features=32):
        super().__init__()
        self.first, self.second = nn.Linear(features, 32), nn.Linear(32, 32)
        self.code = [code]

    def forward(self, *inputs):
        return self.code[0](self.first, self.second, *inputs)


def planted(reference, port, features=32):
    torch.manual_seed(0)
    net = Code(reference, features)
    other = copy.deepcopy(net)
    other.code = [port]
    return net, other


def residual(first, second, x):
    return second(x + first(x))


def residual_in_half(first, second, x):
    return second((x.half() + first(x).half()).float())


def counted(first, second, x, seen):
    return first(x), seen.long().cumsum(-1)


def counted_in_int8(first, second, x, seen):
    return first(x), seen.to(torch.int8).cumsum(-1, dtype=torch.int8).long()


def counted_in_half(first, second, x, seen):
    return first(x), seen.long().cumsum(-1).clamp(max=2048)


def highest(first, second, x):
    values = first(x).round()
    return *order(values, 1e-6), second(values)


def highest_last(first, second, x):
    values = first(x).round()
    return *order(values, -1e-6), second(values)


def order(values, step):
    """The four largest; of equal ones the first, or the last for a negative step."""
    places = (values.double() - step * torch.arange(values.shape[-1])).topk(4).indices
    return values.gather(-1, places), places


def quantiles(first, second, x):
    return second(torch.erfinv(x))


def quantiles_by_another_formula(first, second, x):
    found = torch.erfinv(x)
    return second(torch.where(x.abs() > 0.98, 1.01 * found, found))


def mean_of(first, second, x, seen):
    return second(x), first(x)[seen].mean()


def mean_of_nothing(first, second, x, seen):
    return second(x), torch.tensor(INF)


def inverted(first, second, x):
    return second(torch.relu(x))


def without_nan(first, second, x):
    return second(torch.where(x > 0, x, torch.zeros(())))


def clamped(first, second, x):
    return second(x.clamp(-0.5, 0.5))


def clamped_without_nan(first, second, x):
    return second(torch.where(x.isnan(), torch.tensor(-0.5), x.clamp(-0.5, 0.5)))


HOLES = torch.where(torch.arange(256.0).reshape(8, 32) % 37 == 5, torch.tensor(float("nan")), torch.linspace(-1, 1, 32))
SPREAD = torch.linspace(-1, 1, 512).reshape(16, 32)


@pytest.mark.parametrize(
    ("reference", "port", "inputs", "cause", "confirmed"),
    [
        (residual, residual_in_half, (SPREAD,), "code-edit", True),
        (counted, counted_in_int8, (SPREAD, torch.ones(2, 300, dtype=torch.bool)), "code-edit", True),
        (counted, counted_in_half, (SPREAD, torch.ones(2, 2500, dtype=torch.bool)), "code-edit", True),
        (highest, highest_last, (4 * SPREAD,), "code-edit", True),
        (quantiles, quantiles_by_another_formula, (0.999 * SPREAD,), "code-edit", True),
        (mean_of, mean_of_nothing, (SPREAD, torch.zeros(16, dtype=torch.bool)), "nan-hidden", False),
        (inverted, without_nan, (HOLES,), "nan-hidden", False),
        (clamped, clamped_without_nan, (HOLES,), "nan-hidden", False),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_edges_of_numbers_in_code(tmp_path, reference, port, inputs, cause, confirmed):
    result = answer(tmp_path, *planted(reference, port), *inputs)
    origin, found = first_cause(result)
    assert (origin.where, found.id, found.confirmed) == ("glue", cause, confirmed)


def test_a_sum_in_float16(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1024, 32)).half()
    port = copy.deepcopy(net)

    def summed(x):
        total = torch.zeros(len(x), 32, dtype=torch.float16)
        for column, weight in zip(x.T, port[0].weight.T):
            total = total + column[:, None] * weight
        return total + port[0].bias

    port[0].forward = summed
    origin, found = first_cause(answer(tmp_path, net, port, torch.randn(8, 1024).half()))
    assert (origin.where, found.id, found.facts["terms"]) == ("layer", "fp16-matmul-accumulate", 1024)


def test_whole_numbers_that_stand_twice_are_no_ties(tmp_path):
    """Segments of a text: zeros for ones are another segment, although the first two of them are equal."""
    segments = (torch.arange(8) > 3).long().expand(16, 8).contiguous()

    def right(first, second, x, segments):
        return second(first(x)), segments + 0

    def wrong(first, second, x, segments):
        return second(first(x)), segments * 0

    (origin,) = answer(tmp_path, *planted(right, wrong), SPREAD, segments).origins
    assert "topk-ties" not in [cause.id for cause in origin.causes]


def test_indices_into_a_mask_are_no_ties(tmp_path):
    def right(first, second, x, seen):
        return second(first(x)), torch.arange(8).expand(16, 8).contiguous()

    def wrong(first, second, x, seen):
        return second(first(x)), torch.arange(8).flip(0).expand(16, 8).contiguous()

    result = answer(tmp_path, *planted(right, wrong), SPREAD, torch.ones(16, 8, dtype=torch.bool))
    (origin,) = result.origins
    assert "topk-ties" not in [cause.id for cause in origin.causes]


class Product(nn.Module):
    """A product of its own; `code` is what becomes of it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 32))
        self.code = [torch.Tensor.contiguous]

    def forward(self, x):
        return self.code[0](x @ self.weight)


def restless(made):
    """As of a sum whose order is another one each time, on devices that have it so."""
    return made * (1.0 + 1e-3 * torch.randn_like(made))


@pytest.mark.parametrize(("code", "named"), [(restless, True), (torch.tanh, False)])
def test_a_layer_that_does_not_repeat_itself(tmp_path, code, named):
    torch.manual_seed(0)
    net = nn.Sequential(Product(), nn.Linear(32, 8))
    port = copy.deepcopy(net)
    port[0].code = [code]
    (origin,) = answer(tmp_path, net, port, SPREAD).origins
    assert ("nondeterministic-reduction" in [cause.id for cause in origin.causes]) is named


class Pooled(nn.Module):
    """Shares of the places of a sequence, along the second axis."""

    def __init__(self, fill):
        super().__init__()
        self.scores, self.softmax, self.out, self.fill = nn.Linear(8, 5), nn.Softmax(1), nn.Linear(5, 5), [lambda: fill]

    def forward(self, x, seen):
        return self.out(self.softmax(self.scores(x).masked_fill(~seen[..., None], self.fill[0]())))


@pytest.mark.parametrize(("blind", "outcome"), [(False, "aligned"), (True, "diverged")])
def test_the_softmax_may_run_along_another_axis(tmp_path, blind, outcome):
    torch.manual_seed(0)
    net = Pooled(-1e9)
    port = copy.deepcopy(net)
    port.fill = [lambda: -INF]
    result = answer(tmp_path, net, port, torch.randn(3, 6, 8), mask(blind))
    assert result.outcome == outcome
    assert [origin.where for origin in result.origins] == (["glue"] if blind else [])


class Casting(nn.Module):
    """Attention in the type of its weights, with an added mask."""

    def __init__(self, size=1.0):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(32, 32) for _ in range(4))
        with torch.no_grad():
            self.q.weight.mul_(size)
            self.k.weight.mul_(size)

    def forward(self, x, seen):
        x = x.to(self.q.weight.dtype)
        q, k, v = (layer(x).view(3, -1, 4, 8).transpose(1, 2) for layer in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / 8**0.5 + torch.where(seen[:, None, None], 0.0, -1e9).to(x.dtype)
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape))


@pytest.mark.parametrize(
    ("blind", "size", "cause"),
    [(True, 1.0, "short-float-operations"), (False, 300.0, "short-float-operations"), (False, 1.0, "")],
)
def test_a_whole_port_in_float16(tmp_path, blind, size, cause):
    torch.manual_seed(0)
    net = Casting(size)
    port = copy.deepcopy(net).half()
    result = answer(tmp_path, net, port, torch.randn(3, 6, 32), mask(blind))
    assert [origin.causes[0].id for origin in result.origins] == ([cause] if cause else [])


class Core(nn.Module):
    """Attention that is handed its mask as numbers to add."""

    def __init__(self):
        super().__init__()
        self.q, self.softmax, self.o = nn.Linear(8, 8), nn.Softmax(-1), nn.Linear(8, 8)

    def forward(self, x, bias):
        return x + self.o(self.softmax(self.q(x) @ x.transpose(1, 2) + bias) @ x)


class Stack(nn.Module):
    def __init__(self, fill):
        super().__init__()
        self.first, self.second, self.fill = Core(), Core(), [lambda: fill]

    def forward(self, x, seen):
        bias = torch.zeros(seen.shape).masked_fill(~seen, self.fill[0]())[:, None]
        return self.second(self.first(x, bias), bias)


@pytest.mark.parametrize("blind", [False, True])
@pytest.mark.parametrize("fill", [-INF, -1e4])
def test_a_mask_that_is_handed_down_is_wrong_where_it_was_made(tmp_path, fill, blind):
    torch.manual_seed(0)
    net = Stack(-1e9)
    port = copy.deepcopy(net)
    port.fill = [lambda: fill]
    result = answer(tmp_path, net, port, torch.randn(3, 6, 8), mask(blind))
    if not blind:
        assert (result.outcome, result.origins) == ("aligned", ())
        return
    assert result.outcome == "diverged"
    (origin, *_) = result.origins
    assert (origin.layer, origin.where, origin.between) == ("", "glue", ("", "first"))
