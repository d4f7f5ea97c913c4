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
@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (added_in_half, "attention-fill-fp16-overflow"),
        (added_twice, "attention-fill-fp16-overflow"),
        (filled, "attention-mask-fill-1e4"),
    ],
)
def test_a_fill_makes_nan_of_a_query_that_sees_nothing(tmp_path, code, cause, softmax):
    result = answer(tmp_path, *attentions(code, softmax=softmax), mask(blind=True))
    origin, found = first_cause(result)
    assert (result.outcome, origin.where) == ("diverged", "glue")
    assert (found.id, found.confirmed) == (cause, True)


@pytest.mark.parametrize("softmax", [False, True], ids=["function", "layer"])
def test_another_fill_is_nobodys_mistake_where_every_query_sees_something(tmp_path, softmax):
    result = answer(tmp_path, *attentions(filled, softmax=softmax), mask(blind=False))
    assert (result.outcome, result.origins, result.suspects) == ("aligned", (), ())


@pytest.mark.parametrize("softmax", [False, True], ids=["function", "layer"])
@pytest.mark.parametrize(
    ("size", "cause"), [(300.0, "attention-softmax-fp16-overflow"), (10.0, "attention-in-short-float")]
)
def test_scores_in_float16(tmp_path, size, cause, softmax):
    origin, found = first_cause(answer(tmp_path, *attentions(multiplied_in_half, softmax=softmax, size=size)))
    assert (origin.where, found.id) == ("glue", cause)
    assert found.facts["dtype"] == "float16"


def test_products_of_rounded_values_are_the_devices_choice(tmp_path):
    _, found = first_cause(answer(tmp_path, *attentions(rounded_first)))
    assert (found.id, found.facts["dtype"]) == ("ascend-matmul-precision-mode", "bfloat16")


@pytest.mark.parametrize(("fill", "wanted"), [(-1e9, "what the softmax gives"), (-INF, "NaN")])
def test_zeros_for_a_query_that_sees_nothing(tmp_path, fill, wanted):
    def zeros(q, k, seen):
        return torch.where(seen.any(-1, keepdim=True), scored(q, k, seen, -INF).softmax(-1), torch.zeros(()))

    net, port, x = attentions(zeros, lambda q, k, seen: scored(q, k, seen, fill).softmax(-1))
    for each in (net, port):
        each.softmax = nn.Identity()
    _, found = first_cause(answer(tmp_path, net, port, x, mask(blind=True)))
    assert found.id == "flash-attention-fully-masked-row"
    assert (found.facts["reference_value"], found.facts["port_value"]) == (wanted, "zeros")


def tables(places, kind):
    """Cosines and sines for places and heads of eight channels."""
    at, frequencies = torch.arange(float(places)), 10000.0 ** (-torch.arange(0, 8, 2) / 8)
    if kind == "angles":
        at, frequencies = at.bfloat16(), frequencies.bfloat16()
    if kind == "places":
        at = at.bfloat16().float()
    angles = torch.outer(at, frequencies).repeat(1, 2)
    made = angles.cos(), angles.sin()
    return [(table.half() if kind == "tables" else table).float() for table in made]


class Rotary(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = [kind]

    def forward(self, x):
        return tables(x.shape[1], self.kind[0])


class Dot(nn.Module):
    def forward(self, q, k, v):
        return nn.functional.scaled_dot_product_attention(q, k, v)


class Turned(nn.Module):
    """Attention with rotary embeddings, the tables or the products in a layer of their own if asked for."""

    def __init__(self, kind, apart=""):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(32, 32) for _ in range(4))
        self.tables = Rotary(kind) if apart == "tables" else None
        self.dot = Dot() if apart == "products" else None
        self.kind = [kind]

    def forward(self, x):
        q, k, v = (layer(x).view(2, -1, 4, 8).transpose(1, 2) for layer in (self.q, self.k, self.v))
        cos, sin = tables(x.shape[1], self.kind[0]) if self.tables is None else self.tables(x)
        q, k = (y * cos + torch.cat([-y[..., 4:], y[..., :4]], -1) * sin for y in (q, k))
        made = (self.dot or nn.functional.scaled_dot_product_attention)(q, k, v)
        return self.o(made.transpose(1, 2).reshape(x.shape))


@pytest.mark.parametrize(
    ("apart", "kind", "told"),
    [
        ("", "angles", "angles, sines and cosines"),
        ("", "tables", "sines and cosines"),
        ("tables", "places", "the places"),
        ("products", "angles", "angles, sines and cosines"),
    ],
)
def test_rotary_embeddings_in_a_short_type(tmp_path, apart, kind, told):
    torch.manual_seed(0)
    net = Turned("", apart)
    port = copy.deepcopy(net)
    port.kind = [kind]
    if port.tables is not None:
        port.tables.kind = [kind]
    _, found = first_cause(answer(tmp_path, net, port, torch.randn(2, 300, 32)))
    assert (found.id, found.confirmed) == ("rotary-precision", True)
    assert (found.facts["setting"], found.facts["dtype"]) == (told, "float16" if kind == "tables" else "bfloat16")
