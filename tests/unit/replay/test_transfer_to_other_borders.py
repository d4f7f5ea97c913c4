"""Which parameter gets which, where a port is cut otherwise than its reference, in several ways at once."""

from __future__ import annotations

from random import Random

import pytest

from aligner.replay.items import Item, Slot
from aligner.replay.transfer import plan
from tests.unit.replay import recut
from tests.unit.replay.recut import linear, norm

SEEDS = 25


def _transformer(path, width, inner, names=("q_proj", "k_proj", "v_proj", "out_proj")):
    yield norm(f"{path}.norm1", width)
    yield from (linear(f"{path}.attn.{name}", width, width) for name in names)
    yield norm(f"{path}.norm2", width)
    yield from (linear(f"{path}.mlp.0", width, inner), linear(f"{path}.mlp.2", inner, width))


def _views():
    """Blocks of two attentions whose layers are all of one size, as those of the net around them are."""
    yield linear("embed", 32, 32)
    for number in range(2):
        for kind in ("self_attn", "cross_attn"):
            path = f"layers.{number}.{kind}"
            yield from (linear(f"{path}.{name}", 32, 32) for name in ("q_proj", "k_proj", "v_proj", "merge"))
            yield norm(f"{path}.norm", 32)
    yield from (linear("head.0", 32, 32), linear("head.2", 32, 8))


def _vision():
    yield linear("patches", 48, 32)
    for number in range(3):
        path = f"blocks.{number}"
        yield norm(f"{path}.norm1", 32)
        yield from (linear(f"{path}.attn.qkv", 32, 96), linear(f"{path}.attn.proj", 32, 32))
        yield norm(f"{path}.norm2", 32)
        yield from (linear(f"{path}.mlp.fc1", 32, 96), linear(f"{path}.mlp.fc2", 96, 32))
    yield from (norm("norm", 32), linear("head", 32, 10))


def _pair():
    """An encoder and a decoder with attention to it."""
    for number in range(2):
        yield from _transformer(f"encoder.{number}", 16, 48)
    for number in range(2):
        path = f"decoder.{number}"
        yield from _transformer(path, 16, 48)
        yield from (linear(f"{path}.cross.{name}", 16, 16) for name in ("query", "key", "value", "dense"))
        yield norm(f"{path}.norm3", 16)
    yield linear("logits", 16, 16)


def _structure():
    """A module whose keys and values are as large as two layers beside it."""
    yield from (norm("norm_s", 24), linear("into", 24, 24))
    yield from (linear("ipa.linear_q", 24, 24), linear("ipa.linear_kv", 24, 48), linear("ipa.out", 24, 24))
    yield from (norm("norm_ipa", 24), linear("transition.0", 24, 24), linear("transition.2", 24, 24), norm("last", 24))


NETS = {"views": _views, "vision": _vision, "pair": _pair, "structure": _structure}


def _found(transfer):
    return {
        (
            match.reference.slot,
            (match.reference.view.start, match.reference.view.stop) if match.reference.view.stop else None,
            match.port.slot,
            (match.port.view.start, match.port.view.stop) if match.port.view.stop else None,
        )
        for match in transfer.matches
    }


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("net", NETS)
def test_all_parameters_are_found(net, seed):
    reference = [*NETS[net]()]
    port = recut.port(reference, Random(f"{net}{seed}"))
    ours, theirs = recut.items(reference), recut.items(port)
    assert _found(plan(ours, theirs, {})) == recut.truth(port)
    turned = {(one, rows, other, own) for other, own, one, rows in recut.truth(port)}
    assert _found(plan(theirs, ours, {})) == turned


def _layer(path, kind, *roles):
    return [Item(Slot(path, role), (8,), f"{path}.{role}", kind, True) for role in roles]


def test_a_norm_that_takes_the_batchs_own_statistics_takes_nobody_elses_values():
    """Those that are left are no scales of the same size; and none has to be there."""
    reference, port = [], []
    for number in range(3):
        reference += _layer(f"layers.{number}.norm", "BatchNorm", "weight", "bias", "running_mean", "running_var")
        reference += _layer(f"layers.{number}.middle", "Bypass", "bypass_scale")
        reference += _layer(f"layers.{number}.end", "Bypass", "bypass_scale")
        port += _layer(f"stack.{number}.norm", "BatchNorm", "weight", "bias")
        port += _layer(f"stack.{number}", "Layer", "middle_scale", "scale")
    found = plan(reference, port, {})
    assert found.failing == ([], [])
    assert {item.role for item in found.left_reference} == {"running_mean", "running_var"}
    scales = [one for one in found.matches if one.reference.slot.role == "bypass_scale"]
    assert [one.port.slot.role for one in scales] == ["middle_scale", "scale"] * 3
