"""Silenced dropout of torch is really inactive, however it is spelled, and nobody keeps anything of ours."""

from __future__ import annotations

import sys
import threading

import pytest

torch = pytest.importorskip("torch")
from aligner_hooks.torch_ import TorchAdapter  # noqa: E402 - as above
from torch import dropout as from_torch  # noqa: E402 - only after it is known to be there
from torch import feature_dropout as feature_from_torch  # noqa: E402 - as above
from torch import nn  # noqa: E402 - as above
from torch.nn import functional as F  # noqa: E402 - as above
from torch.nn.functional import dropout as from_functional  # noqa: E402 - as above
from torch.utils.checkpoint import checkpoint  # noqa: E402 - as above

has_modes = hasattr(torch.overrides, "_push_mode")
attention = getattr(F, "scaled_dot_product_attention", None)
pytestmark = pytest.mark.filterwarnings("ignore")  # old spellings warn

X = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0))
IMAGE = torch.randn(1, 64, 2, 2, generator=torch.Generator().manual_seed(1))
VOLUME = IMAGE[..., None]
LAZY = """
from torch import dropout as torchs
from torch.nn.functional import dropout
from torch.nn.functional import scaled_dot_product_attention as attention


def run(x):
    return dropout(x, 0.5), torchs(x, 0.5, True), attention(x, x, x, dropout_p=0.5)
"""


def layer(kind, *args, like=X, **settings):
    torch.manual_seed(0)
    made = kind(*args, **settings).train()
    return lambda: made(like)


def recurrent(kind):
    run = layer(kind, 4, 4, 2, dropout=0.5)
    return lambda: run()[0]


def packed():
    torch.manual_seed(0)
    made = nn.GRU(4, 4, 2, dropout=0.5).train()
    return lambda: made(nn.utils.rnn.pack_sequence([X[0], X[1][:3]]))[0].data


def of_attention(**settings):
    torch.manual_seed(0)
    made = nn.MultiheadAttention(4, 2, dropout=0.5).train()
    return lambda: made(X, X, X, **settings)[0]


SPELLINGS = {
    "nn.Dropout": layer(nn.Dropout, 0.5),
    "nn.Dropout inplace": lambda: nn.Dropout(0.5, inplace=True)(X.clone()),
    "nn.Dropout1d": layer(getattr(nn, "Dropout1d", nn.Dropout), 0.5),
    "nn.Dropout2d": layer(nn.Dropout2d, 0.5, like=IMAGE),
    "nn.Dropout3d": layer(nn.Dropout3d, 0.5, like=VOLUME),
    "nn.AlphaDropout": layer(nn.AlphaDropout, 0.5),
    "nn.FeatureAlphaDropout": layer(nn.FeatureAlphaDropout, 0.5, like=IMAGE),
    "F.dropout": lambda: F.dropout(X),
    "F.dropout positional": lambda: F.dropout(X, 0.5, True, False),
    "F.dropout inplace": lambda: F.dropout(X.clone(), 0.5, inplace=True),
    "F.dropout2d": lambda: F.dropout2d(IMAGE),
    "F.dropout3d": lambda: F.dropout3d(VOLUME),
    "F.alpha_dropout": lambda: F.alpha_dropout(X, training=True),
    "F.feature_alpha_dropout": lambda: F.feature_alpha_dropout(IMAGE, training=True),
    "from functional import": lambda: from_functional(X),
    "torch.dropout": lambda: torch.dropout(X, 0.5, True),
    "torch.dropout by name": lambda: torch.dropout(X, p=0.5, train=True),
    "torch.dropout_": lambda: torch.dropout_(X.clone(), 0.5, True),
    "torch.alpha_dropout": lambda: torch.alpha_dropout(X, 0.5, True),
    "torch.feature_dropout": lambda: torch.feature_dropout(IMAGE, 0.5, True),
    "torch.feature_alpha_dropout": lambda: torch.feature_alpha_dropout(IMAGE, 0.5, True),
    "nn.LSTM": recurrent(nn.LSTM),
    "nn.GRU": recurrent(nn.GRU),
    "nn.RNN": recurrent(nn.RNN),
    "packed": packed(),
    "nn.MultiheadAttention": of_attention(),
    "nn.MultiheadAttention without weights": of_attention(need_weights=False),
    "nn.TransformerEncoderLayer": layer(nn.TransformerEncoderLayer, 4, 2, 8, dropout=0.5),
}
# What only a mode reaches: names that somebody has imported of what is no Python function.
IMPORTED = {
    "from torch import": lambda: from_torch(X, 0.5, True),
    "from torch import feature": lambda: feature_from_torch(IMAGE, 0.5, True),
    "torch.native_dropout": lambda: torch.native_dropout(X, 0.5, True)[0],
    "torch.ops": lambda: torch.ops.aten.dropout(X, 0.5, True),
    "torch.ops default": lambda: torch.ops.aten.dropout.default(X, 0.5, True),
}
ATTENTION = {
    "F.attention": lambda: F.scaled_dot_product_attention(X, X, X, dropout_p=0.5),
    "F.attention positional": lambda: F.scaled_dot_product_attention(X, X, X, None, 0.5),
    "from functional import attention": lambda: attention(X, X, X, dropout_p=0.5),
}
if has_modes:
    SPELLINGS.update(IMPORTED)
if attention is not None:
    SPELLINGS.update(ATTENTION)


@pytest.fixture
def silence():
    adapter, handles = TorchAdapter(), []
    yield lambda model=None: handles.append(adapter.silence_dropout(model or nn.ReLU())) or handles[-1]
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("name", list(SPELLINGS))
def test_every_spelling_is_silent_and_comes_back(silence, name):
    run = SPELLINGS[name]
    assert not torch.equal(run(), run()), "it drops nothing"
    state = torch.get_rng_state()
    handle = silence()
    made = run()
    assert torch.equal(made, run())
    assert torch.equal(torch.get_rng_state(), state), "no random numbers are drawn"
    handle.remove()
    assert not torch.equal(run(), run())
    if "ropout" in name:
        assert any(torch.equal(made, given) for given in (X, IMAGE, VOLUME)), "what goes in comes out"


class Lazy(nn.Module):
    """Imports what it needs when it first runs."""

    def forward(self, x):
        import lazily_imported

        return lazily_imported.run(x)


@pytest.mark.skipif(attention is None, reason="a torch without this function")
def test_a_module_imported_in_a_forward_is_silent_and_keeps_nothing_of_ours(silence, tmp_path, monkeypatch):
    (tmp_path / "lazily_imported.py").write_text(LAZY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "lazily_imported", raising=False)
    net = Lazy().train()
    handle = silence(net)
    first, second = net(X), net(X)
    handle.remove()
    assert all(torch.equal(one, other) for one, other in zip(first, second))
    assert torch.equal(first[0], X)
    module = sys.modules["lazily_imported"]
    assert module.dropout is F.dropout is from_functional
    assert module.torchs is torch.dropout is from_torch
    assert module.attention is F.scaled_dot_product_attention is attention
    assert not any(torch.equal(one, other) for one, other in zip(net(X), net(X)))
    monkeypatch.delitem(sys.modules, "lazily_imported")


class Thinning(nn.Module):
    """Its name does not tell that it drops."""

    def forward(self, x):
        return F.dropout(x, 0.5, self.training)


def test_other_threads_are_silent_while_they_call_a_layer(silence):
    net, made = Thinning().train(), []
    handle = silence(net)
    thread = threading.Thread(target=lambda: made.extend((net(X), net(X), len(modes()))))
    thread.start()
    thread.join()
    handle.remove()
    assert torch.equal(made[0], X)
    assert torch.equal(made[1], X)
    assert made[2] == 0, "no mode stays in the thread"
    assert modes() == []


def modes():
    return torch.overrides._get_current_function_mode_stack() if has_modes else []


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_backward_pass_computes_again_is_silent(silence, reentrant):
    x, net = X.clone().requires_grad_(), Thinning().train()
    silence(net)
    made = checkpoint(lambda x: from_torch(net(x), 0.5, True) if has_modes else net(x), x, use_reentrant=reentrant)
    made = checkpoint(net, made, use_reentrant=reentrant)
    made.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))


@pytest.mark.skipif(not has_modes, reason="functions are replaced there")
def test_what_is_scripted_traced_or_exported_meanwhile_goes_on_dropping(silence):
    net = Thinning().train()
    handle = silence(net)
    made = [torch.jit.script(net), torch.jit.trace(net, X, check_trace=False)]
    if hasattr(torch, "export"):
        made.append(torch.export.export(net, (X,)).module())
    assert torch.equal(net(X), X)
    handle.remove()
    for one in made:
        assert not torch.equal(one(X), X)


@pytest.mark.skipif(not has_modes, reason="functions are replaced there")
def test_a_mode_of_somebody_elses_stays_where_it_is(silence):
    class Theirs(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    under, upon = Theirs(), Theirs()
    with under:
        handle = silence()
        with upon:
            assert torch.equal(F.dropout(X), X)
            handle.remove()
            assert modes() == [under, upon]
            assert not torch.equal(F.dropout(X), X)
    assert modes() == []
    with under:
        handle = silence()
    handle.remove()  # they have taken ours for theirs
    assert modes() == [under]
    torch.overrides._pop_mode()


def test_train_called_meanwhile_brings_nothing_back(silence):
    net = nn.Sequential(nn.Dropout(0.5), Thinning()).train()
    silence(net)
    net.eval()
    net.train()
    assert torch.equal(net(X), X)
