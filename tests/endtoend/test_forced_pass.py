"""What the forced pass finds in ports with known mistakes, and that it leaves the port as it was.

torch stands on both sides, so that every mistake is exactly the planted one; MindSpore's are in the samples and in
the corpus of port bugs.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there
from torch.nn import functional as F  # noqa: E402 - as above

import aligner  # noqa: E402 - as above
from aligner.capture.session import Options  # noqa: E402 - as above
from aligner.compare.checks import from_facts  # noqa: E402 - as above
from aligner.findings import CHECK  # noqa: E402 - as above


class Block(nn.Module):
    def __init__(self, width=8, eps=1e-5):
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=eps)
        self.up = nn.Linear(width, 2 * width)
        self.act = nn.GELU()
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


class Net(nn.Module):
    """A stem, three blocks, batch norm, a head on the mean."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.bn = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        x = self.bn(x.transpose(1, 2))
        return self.head(x.mean(2))


def reference(path, net=None, x=None, **options):
    torch.manual_seed(0)
    net = net or Net()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.2, 2)
    x = torch.randn(3, 5, 6) if x is None else x
    net.train(options.pop("training", False))
    with torch.no_grad(), aligner.capture(net, path):
        net(x)
    return net


def answer(tmp_path, port):
    """The comparison of a port with the reference in ref.h5, and the checks of its forced pass."""
    replay = aligner.replay(tmp_path / "ref.h5", port)
    with torch.no_grad(), replay.capture(tmp_path / "port.h5", Options(force=True)):
        port(*replay.inputs(0))
    with aligner.open(tmp_path / "port.h5") as dump:
        checks = [from_facts(facts) for kind, facts in dump.findings if kind == CHECK]
        assert dump.header["forced"] is True, dump.notes
    return aligner.compare(tmp_path / "ref.h5", tmp_path / "port.h5"), checks


def places(origins):
    return [(origin.layer, origin.where) for origin in origins]


def test_a_right_port_has_no_origin_and_every_place_is_checked(tmp_path):
    net = reference(tmp_path / "ref.h5")
    result, checks = answer(tmp_path, copy.deepcopy(net))
    assert result.aligned
    assert not result.origins
    assert not result.suspects
    assert {check.error for check in checks} == {0.0}, "the same framework makes the same bits"
    called = [m for m in net.modules() if not isinstance(m, nn.ModuleList)]
    assert len(checks) == 2 * len(called)


def test_two_mistakes_are_two_origins_and_the_second_does_not_hide_behind_the_first(tmp_path):
    port = copy.deepcopy(reference(tmp_path / "ref.h5"))
    port.blocks[0].norm.eps = 0.1
    port.blocks[2].act = nn.GELU(approximate="tanh")
    result, checks = answer(tmp_path, port)
    assert places(result.origins)[0] == ("blocks.0.norm", "layer")
    assert set(places(result.origins + result.suspects)) == {("blocks.0.norm", "layer"), ("blocks.2.act", "layer")}
    assert sum(check.fails for check in checks) == 2
    first = result.origins[0].causes[0]
    assert first.confirmed
    assert first.error_before > 1e-3
    assert first.error_after < 1e-6


class Forgetful(Block):
    def forward(self, x):
        return self.down(self.act(self.up(self.norm(x))))


def test_a_forgotten_residual_is_the_code_of_the_parent(tmp_path):
    net = reference(tmp_path / "ref.h5")
    port = copy.deepcopy(net)
    port.blocks[1].__class__ = Forgetful
    result, checks = answer(tmp_path, port)
    assert places(result.origins) == [("blocks.1", "glue")]
    assert result.origins[0].between == ("blocks.1.down", "")
    assert sum(check.suspicious for check in checks) == 1, "what follows is held to the reference"
    assert result.first.key.layer == "blocks.1"


class Inline(nn.Module):
    """The residual stream runs through one function: an error in it reaches every layer behind."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.scale = scale
        self.stem = nn.Linear(6, 8)
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(4))
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        x = self.stem(x) * self.scale
        for norm, layer in zip(self.norms, self.layers):
            x = x + layer(norm(x))
        return x


class Viewed(Inline):
    def forward(self, x):
        x = self.stem(x) * self.scale
        for norm, layer in zip(self.norms, self.layers):
            x = x + layer(norm(x.reshape(-1, 8))).reshape(x.shape)  # the layers never see x itself
        return x


@pytest.mark.parametrize("kind", [Inline, Viewed])
def test_an_error_that_a_residual_stream_carries_is_one_origin(tmp_path, kind):
    net = reference(tmp_path / "ref.h5", kind())
    port = copy.deepcopy(net)
    port.scale = 1.5
    result, _ = answer(tmp_path, port)
    assert places(result.origins) == [("", "glue")]
    assert result.origins[0].between == ("stem", "norms.0")


def test_layers_with_state_are_left_as_they_were(tmp_path):
    net = reference(tmp_path / "ref.h5", training=True)
    ports = [copy.deepcopy(Net()) for _ in range(2)]
    for port, forced in zip(ports, (True, False)):
        replay = aligner.replay(tmp_path / "ref.h5", port)
        with torch.no_grad(), replay.capture(tmp_path / f"port{forced}.h5", forced=forced):
            port(*replay.inputs(0))
    for one, other, trained in zip(*(p.state_dict().values() for p in ports), net.state_dict().values()):
        assert torch.equal(one, other), "the forced pass leaves no trace"
        assert torch.equal(one, trained), "and the free run learnt what the reference learnt"
    assert aligner.compare(tmp_path / "ref.h5", tmp_path / "portTrue.h5").aligned


def test_random_numbers_go_on_as_if_there_had_been_no_forced_pass(tmp_path):
    port = copy.deepcopy(reference(tmp_path / "ref.h5"))
    replay = aligner.replay(tmp_path / "ref.h5", port)
    drawn = []
    for forced in (True, False):
        torch.manual_seed(5)
        with torch.no_grad(), replay.capture(tmp_path / f"{forced}.h5", forced=forced):
            port(*replay.inputs(0))
        drawn.append(torch.rand(4))
    assert torch.equal(*drawn)


class Padded(Net):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, 8)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        x = self.bn(F.pad(x, (0, 0, 0, 1)).transpose(1, 2))  # one step too many
        return self.head(x.mean(2))


def test_a_value_of_another_shape_is_an_origin_and_what_follows_is_not(tmp_path):
    net = reference(tmp_path / "ref.h5")
    port = Padded()
    port.load_state_dict(net.state_dict())
    result, _ = answer(tmp_path, port.eval())
    assert places(result.origins) == [("", "glue")]
    assert result.origins[0].between == ("blocks.2", "bn")


class Particular(nn.Module):
    """Takes what it expects and nothing else."""

    def __init__(self, length):
        super().__init__()
        self.length = length
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        if x.shape[1] != self.length:
            raise ValueError("another length")
        return self.fc(x)


class Lengths(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.body = Particular(length)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.body(self.stem(x)[:, : self.body.length]).mean(1))


def test_a_layer_that_refuses_the_references_inputs_keeps_its_own(tmp_path):
    net = reference(tmp_path / "ref.h5", Lengths(4))
    port = Lengths(3)
    port.load_state_dict(net.state_dict())
    result, _ = answer(tmp_path, port.eval())
    assert result.outcome == "diverged"
    assert result.origins[0].layer == ""
    assert result.origins[0].where == "glue"


def test_a_net_whose_second_run_fails_keeps_its_free_run(tmp_path):
    class Once(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.ran = nn.Linear(6, 2), 0

        def forward(self, x):
            self.ran += 1
            if self.ran > 1:
                raise RuntimeError("only once")
            return self.fc(x)

    net = reference(tmp_path / "ref.h5", Once())
    port = copy.deepcopy(net)
    port.ran = 0
    replay = aligner.replay(tmp_path / "ref.h5", port)
    with torch.no_grad(), replay.capture(tmp_path / "port.h5"):
        port(*replay.inputs(0))
    result = aligner.compare(tmp_path / "ref.h5", tmp_path / "port.h5")
    assert result.aligned
    assert any(message == "forced-failed" or "only once" in str(facts) for message, facts in result.warnings)


def test_a_forced_pass_on_another_reference_is_not_believed(tmp_path):
    given, x = torch.randn(3, 5, 6), torch.randn(3, 5, 6)
    net = reference(tmp_path / "ref.h5", x=given)
    port = copy.deepcopy(net)
    port.blocks[0].norm.eps = 0.1
    answer(tmp_path, port)
    with torch.no_grad(), aligner.capture(net, tmp_path / "other.h5"):
        net(x)
    result = aligner.compare(tmp_path / "other.h5", tmp_path / "port.h5")
    assert result.mixup.message == "mixup-other-reference"  # it ran on other inputs
    assert (result.exit_code, result.checked, result.origins) == (3, 0, ())
    with torch.no_grad(), aligner.capture(net, tmp_path / "fewer.h5", layers="blocks*"):
        net(given)
    result = aligner.compare(tmp_path / "fewer.h5", tmp_path / "port.h5")
    assert result.mixup.message == "mixup-other-capture"
    assert result.origins
    assert all(origin.ratio is None for origin in result.origins)
    assert any(message == "forced-other-reference" for message, _ in result.warnings)


def test_a_port_in_half_precision_is_explained_by_rounding(tmp_path):
    net = reference(tmp_path / "ref.h5")

    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = copy.deepcopy(net).half()

        def forward(self, x):
            return self.net(x.half()).float()

    port = Half().eval()
    result, checks = answer(tmp_path, port)
    assert result.aligned
    assert not result.origins
    assert not result.suspects
    assert max(check.error for check in checks) > 1e-4, "it does round"
    port.net.blocks[1].norm.eps = 0.1
    result, _ = answer(tmp_path, port)
    assert places(result.origins) == [("blocks.1.norm", "layer")]


def test_the_kept_value_is_what_the_layer_made_of_the_references_inputs(tmp_path):
    net = reference(tmp_path / "ref.h5")
    port = copy.deepcopy(net)
    port.blocks[0].norm.eps = 0.1
    port.blocks[2].norm.eps = 0.1
    answer(tmp_path, port)
    with aligner.open(tmp_path / "ref.h5") as ref, aligner.open(tmp_path / "port.h5") as dump:
        given = torch.from_numpy(np.array(ref["blocks.2.norm"].input.load()))
        kept = {entry.key.layer: entry for entry in dump.entries if entry.key.phase.value == "forced"}
        assert set(kept) == {"blocks.0.norm", "blocks.2.norm"}
        with torch.no_grad():
            assert np.array_equal(kept["blocks.2.norm"].load(), port.blocks[2].norm(given).numpy())


class Attention(nn.Module):
    """One head; the mask says True where to look, or, `inverted`, where not to."""

    def __init__(self, inverted=False):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.inverted = inverted

    def forward(self, x, mask=None):
        scores = self.query(x) @ self.key(x).transpose(1, 2) / 8**0.5
        if mask is not None:
            scores = scores.masked_fill(mask if self.inverted else ~mask, float("-inf"))
        return scores.softmax(-1) @ self.value(x)


class Masked(nn.Module):
    def __init__(self, inverted=False, forgetful=False):
        super().__init__()
        self.stem, self.attention, self.head = nn.Linear(6, 8), Attention(inverted), nn.Linear(8, 2)
        self.forgetful = forgetful

    def forward(self, x):
        x = self.stem(x)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        mask = ~mask if self.attention.inverted else mask
        return self.head(self.attention(x) if self.forgetful else self.attention(x, mask=mask))


def test_a_mask_that_means_the_opposite_on_both_ends_is_no_mistake(tmp_path):
    net = reference(tmp_path / "ref.h5", Masked())
    port = Masked(inverted=True)
    port.load_state_dict(net.state_dict())
    result, checks = answer(tmp_path, port.eval())
    assert result.aligned
    assert not result.origins
    assert [check.reason for check in checks if check.reason] == ["other-form"]


def test_a_mistake_behind_such_a_mask_is_the_only_origin(tmp_path):
    net = reference(tmp_path / "ref.h5", Masked())
    port = Masked(inverted=True)
    port.load_state_dict(net.state_dict())
    port.head.forward = lambda x: F.linear(x, port.head.weight * 1.01, port.head.bias)
    result, _ = answer(tmp_path, port.eval())
    assert places(result.origins) == [("head", "layer")]


def test_a_mask_that_is_not_handed_over_is_the_doing_of_the_code_around(tmp_path):
    net = reference(tmp_path / "ref.h5", Masked())
    port = Masked(forgetful=True)
    port.load_state_dict(net.state_dict())
    result, _ = answer(tmp_path, port.eval())
    assert places(result.origins) == [("", "glue")]
    assert result.origins[0].between == ("stem", "attention")
    cause = result.origins[0].causes[0]
    assert cause.confirmed
    assert "mask-not-passed" in [cause.id for cause in result.origins[0].causes]


class Wide(nn.Module):
    """A convolution with its padding inside it or, `apart`, in a layer before it."""

    def __init__(self, apart=False, mode="reflect"):
        super().__init__()
        self.pad = nn.ReflectionPad2d(1) if mode == "reflect" else nn.ZeroPad2d(1)
        self.apart = apart
        self.conv = nn.Conv2d(3, 4, 3) if apart else nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")
        self.bn = nn.BatchNorm2d(4)

    def forward(self, x):
        return self.bn(self.conv(self.pad(x) if self.apart else x))


@pytest.mark.parametrize(("mode", "wanted"), [("reflect", []), ("zeros", [("", "glue")])])
def test_an_input_of_another_shape_is_judged_by_what_the_layer_makes_of_it(tmp_path, mode, wanted):
    net = reference(tmp_path / "ref.h5", Wide(), torch.randn(2, 3, 6, 6))
    port = Wide(apart=True, mode=mode)
    port.load_state_dict(net.state_dict())
    result, _ = answer(tmp_path, port.eval())
    assert places(result.origins) == wanted
    assert result.aligned is not bool(wanted)


class Rows(Net):
    """The batch norm is given rows, as one that takes two axes only must be."""

    def __init__(self, order=(0, 1, 2)):
        super().__init__()
        self.order = order

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        rows = self.bn(x.permute(self.order).reshape(-1, 8))
        return self.head(rows.reshape(len(x), -1, 8).mean(1))


def test_a_layer_that_is_handed_its_values_as_rows_is_right(tmp_path):
    reference(tmp_path / "ref.h5")
    found, checks = answer(tmp_path, Rows())
    assert found.aligned
    assert found.origins == found.suspects == ()
    assert {check.key.slot for check in checks if check.reason == "other-form"} == {"input.0", "output.0"}


def test_rows_that_were_read_off_in_another_order_are_the_doing_of_the_code_around(tmp_path):
    reference(tmp_path / "ref.h5")
    found, _ = answer(tmp_path, Rows((0, 2, 1)))
    assert places(found.origins)[0] == ("", "glue")
    assert found.origins[0].between == ("blocks.2", "bn")


def test_a_layer_that_is_off_by_less_than_rounding_may_be_is_found_by_a_trial(tmp_path):
    net = reference(tmp_path / "ref.h5")
    port = copy.deepcopy(net)
    port.blocks[1].norm.eps = 1.06e-5
    result, checks = answer(tmp_path, port)
    (check,) = [check for check in checks if check.fails]
    assert 1e-6 < check.error < 7e-6, "this is what the test is about"
    assert check.proved
    assert places(result.suspects) == [("blocks.1.norm", "layer")]
    assert result.suspects[0].causes[0].confirmed
    assert result.aligned


def test_one_layer_in_half_precision_is_the_origin_and_float32_is_the_proof(tmp_path):
    net = reference(tmp_path / "ref.h5")
    port = copy.deepcopy(net)
    port.blocks[1].up.forward = lambda x: F.linear(
        x.half().float(), port.blocks[1].up.weight.half().float(), port.blocks[1].up.bias
    )
    result, _ = answer(tmp_path, port)
    assert ("blocks.1.up", "layer") in places(result.origins + result.suspects)
    assert len(result.origins + result.suspects) == 1


def test_what_no_check_has_seen_is_never_called_rounding(tmp_path):
    net = reference(tmp_path / "ref.h5")
    port = copy.deepcopy(net)
    port.blocks[0].norm.eps = 0.1
    answer(tmp_path, port)
    replay = aligner.replay(tmp_path / "ref.h5", port)
    with torch.no_grad(), replay.capture(tmp_path / "port.h5", Options(force=True), forced=False):
        port(*replay.inputs(0))
    result = aligner.compare(tmp_path / "ref.h5", tmp_path / "port.h5")
    assert result.counts["rounding"] == 0
    assert places(result.origins)[0] == ("blocks.0.norm", "layer")


class Warming(nn.Linear):
    """Wrong the first time it runs, as a buffer is that should have been filled before."""

    runs = 0

    def forward(self, x):
        self.runs += 1
        return super().forward(x) * (0.5 if self.runs == 1 else 1.0)


def test_what_went_wrong_in_the_free_run_alone_is_not_called_rounding(tmp_path):
    reference(tmp_path / "ref.h5")
    port = Net()
    port.stem = Warming(6, 8)
    result, checks = answer(tmp_path, port)
    assert not any(check.fails for check in checks)
    assert (result.outcome, result.counts["rounding"]) == ("diverged", 0)
    assert places(result.origins) == [("stem", "layer")]
    assert ("right-when-held", {"layer": "stem"}) in result.warnings
