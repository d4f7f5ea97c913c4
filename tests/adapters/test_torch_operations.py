"""Names of torch's operations, and the mode that hears of them beside other modes and threads."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")
from aligner_hooks.torch_ import TorchAdapter  # noqa: E402 - as above
from aligner_hooks.torch_.steps import STEPS  # noqa: E402 - as above
from torch import nn  # noqa: E402 - only after it is known to be there
from torch.nn import functional as F  # noqa: E402 - as above

if not hasattr(torch.overrides, "_push_mode"):
    pytest.skip("torch before 1.13 tells of no operations", allow_module_level=True)

ADAPTER = TorchAdapter()


def heard(run, *arguments):
    names = []
    handle = ADAPTER.operations(names.append)
    try:
        run(*arguments)
    finally:
        handle.remove()
    return names


def adds_in_place(x):
    x += 1
    x.add_(1)
    torch.add(x, x)
    1 + x


def looks(x):
    x.shape, x.dtype, x.device, x.size(), x.dim(), len(x), x.requires_grad, x.is_contiguous(), x.data
    str(x.stride())
    with torch.no_grad():
        bool(x.is_floating_point())


def attention(x):
    q, k, v = x.chunk(3, -1)
    weights = F.softmax(q @ k.transpose(-2, -1) / 2.0, dim=-1)
    return (weights @ v).permute(1, 0).reshape(-1)


CASES = [
    (adds_in_place, ["add"] * 4),
    (looks, []),
    (attention, ["chunk", "transpose", "matmul", "div", "softmax", "matmul", "permute", "reshape"]),
    (lambda x: 1 - x, ["sub"]),
    (lambda x: 2 / x, ["div"]),
    (lambda x: x // 2, ["floor_divide"]),
    (lambda x: x % 2, ["remainder"]),
    (lambda x: -x, ["neg"]),
    (lambda x: x**2, ["pow"]),
    (lambda x: x.T, ["transpose"]),
    (lambda x: x[0], ["getitem"]),
    (lambda x: x.masked_fill(x > 0, -1e4), ["gt", "masked_fill"]),
    (lambda x: ~(x == x), ["eq", "bitwise_not"]),
    (lambda x: torch.cat([x, x], 1), ["cat"]),
    (lambda x: torch.einsum("ij,kj->ik", x, x), ["einsum"]),
    (lambda x: F.gelu(x), ["gelu"]),
    (lambda x: F.layer_norm(x, (6,)), ["layer_norm"]),
    (lambda x: F.interpolate(x[None], scale_factor=2), ["getitem", "interpolate"]),
    (lambda x: x.to(torch.float16).float(), ["to", "float"]),
    (lambda x: x.is_floating_point(), []),
    (nn.Sequential(nn.Linear(6, 2), nn.ReLU()), ["linear", "relu"]),
]


@pytest.mark.parametrize(("run", "names"), CASES, ids=lambda value: " ".join(value) if type(value) is list else "")
def test_names_are_those_of_the_operation_however_it_is_written(run, names):
    assert heard(run, torch.randn(4, 6)) == names


def test_gradients_are_those_without():
    net, x = nn.Sequential(nn.Linear(6, 3), nn.LayerNorm(3)), torch.randn(4, 6)
    gradients = []
    for run in (lambda: net(x).square().sum().backward(), lambda: heard(lambda: net(x).square().sum().backward())):
        net.zero_grad(set_to_none=True)
        run()
        gradients.append([p.grad.clone() for p in net.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*gradients))


def test_a_mode_put_on_meanwhile_stays_when_we_leave():
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    seen, names = [], []
    handle = ADAPTER.operations(names.append)
    with Mode():
        handle.remove()
        torch.zeros(1) + 1
        assert len(seen) == 2
    torch.zeros(1) + 1
    assert (names, len(seen)) == ([], 2)
    assert torch.overrides._get_current_function_mode_stack() == []


def test_another_threads_operations_are_not_told():
    def run():
        thread = threading.Thread(target=lambda: torch.zeros(2) * 2)
        thread.start()
        thread.join()

    assert heard(run) == []


def test_removed_in_another_thread_it_is_silent_and_leaves_with_the_next():
    names = []
    handle = ADAPTER.operations(names.append)
    thread = threading.Thread(target=handle.remove)
    thread.start()
    thread.join()
    torch.zeros(2) * 2
    assert names == []
    assert heard(lambda: torch.zeros(2) * 2) == ["zeros", "mul"]
    assert names == []
    assert torch.overrides._get_current_function_mode_stack() == []


def test_what_it_is_told_with_may_raise():
    def stop(name):
        raise KeyError(name)

    handle = ADAPTER.operations(stop)
    try:
        with pytest.raises(KeyError, match="ones"):
            torch.ones(1)
    finally:
        handle.remove()
    assert torch.overrides._get_current_function_mode_stack() == []


@pytest.mark.parametrize(
    "equation",
    [
        "bclhn,bcshn,bhcls,bcshp->bclhp",
        "bclhn,bhcl,bclhp->bchpn",
        "bhnd,bhsd->bhns",
        "ij,jk->ki",
        "i,j->ij",
        "ij,ij->",
        "ij,jk->k",
        "ij,j->i",
    ],
)
def test_an_einsum_in_steps_is_what_torch_makes(equation):
    sizes = {letter: size for size, letter in enumerate("hcijbkdlnsp", 2)}
    values = [torch.randn([sizes[letter] for letter in one]) for one in equation.split("->")[0].split(",")]
    made = STEPS["einsum"](equation, *values)
    assert torch.allclose(made, torch.einsum(equation, *values), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("call", [("...ij,jk->...ik", 2), ("ii->i", 1), ("ij,jk", 2)])
def test_an_einsum_that_is_not_known_is_left(call):
    equation, count = call
    assert STEPS["einsum"](equation, *(torch.ones(2, 2) for _ in range(count))) is None


def test_functions_in_steps_are_what_torch_makes():
    q, k, v = (torch.randn(2, 3, 5, 4) for _ in range(3))
    mask = torch.rand(5, 5) > 0.3
    made = STEPS["scaled_dot_product_attention"](q, k, v, attn_mask=mask)
    assert torch.allclose(made, F.scaled_dot_product_attention(q, k, v, attn_mask=mask), atol=1e-6)
    assert torch.allclose(STEPS["normalize"](q, dim=-1), F.normalize(q, dim=-1), atol=1e-6)
    assert torch.allclose(STEPS["cosine_similarity"](q, k, dim=-1), F.cosine_similarity(q, k, dim=-1), atol=1e-6)
