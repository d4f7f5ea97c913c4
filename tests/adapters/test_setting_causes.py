"""Careless ports of single layers, told from the two adapters' specs and proved on copies of the port's layer."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

pytest.importorskip("torch", reason="the reference's side")
pytest.importorskip("mindspore", reason="the port's side")

import mindspore as ms
import torch
from aligner_hooks.mindspore_ import MindSporeAdapter
from aligner_hooks.torch_ import TorchAdapter
from mindspore import nn as cells

from aligner.explain.case import distance
from aligner.explain.suspects import suspects
from tests.unit.explain.cases import case, value

REFERENCE, PORT = TorchAdapter(), MindSporeAdapter()
IMAGE, ROWS, STEPS = (2, 4, 9, 9), (3, 8), (3, 5, 4)
nn = torch.nn


def tall(layer):
    """A BatchNorm that has seen data, with a channel of little variance."""
    with torch.no_grad():
        layer.running_mean.copy_(torch.linspace(-1, 1, layer.num_features))
        layer.running_var.copy_(torch.tensor([1e-4, 0.5, 1.0, 2.0]))
    return layer


# What: the reference, the careless port, the input's shape and scale, the cause, and whether a trial must prove it.
CARELESS = {
    "layernorm eps": (nn.LayerNorm(8), cells.LayerNorm((8,)), ROWS, 1e-3, "layernorm-eps-default"),
    "batchnorm eps": (tall(nn.BatchNorm2d(4, eps=1e-3)), cells.BatchNorm2d(4), IMAGE, 1, "bn-eps-dropped"),
    "batch statistics": (
        tall(nn.BatchNorm2d(4)),
        cells.BatchNorm2d(4, use_batch_statistics=True),
        IMAGE,
        1,
        "bn-use-batch-statistics",
    ),
    "group count": (nn.GroupNorm(2, 4), cells.GroupNorm(4, 4), IMAGE, 1, "groupnorm-args-swapped"),
    "conv padding": (
        nn.Conv2d(4, 5, 3),
        cells.Conv2d(4, 5, 3, has_bias=True),
        IMAGE,
        1,
        "conv2d-pad-mode-same-default",
    ),
    "conv same with stride": (
        nn.Conv2d(4, 5, 3, 2, 1),
        cells.Conv2d(4, 5, 3, 2, has_bias=True),
        (2, 4, 8, 8),
        1,
        "conv2d-same-vs-pad-stride2",
    ),
    "conv bias": (
        nn.Conv2d(4, 5, 3, padding=1),
        cells.Conv2d(4, 5, 3, pad_mode="pad", padding=1),
        IMAGE,
        1,
        "conv2d-has-bias-default",
    ),
    "conv defaults": (nn.Conv2d(4, 5, 3), cells.Conv2d(4, 5, 3), IMAGE, 1, "settings-differ"),
    "conv dilation": (
        nn.Conv2d(4, 5, 3, padding=2, dilation=2, bias=False),
        cells.Conv2d(4, 5, 3, pad_mode="pad", padding=2),
        IMAGE,
        1,
        "conv2d-dilation-dropped",
    ),
    "transposed conv": (
        nn.ConvTranspose2d(4, 5, 3, 2, 1, 1, bias=False),
        cells.Conv2dTranspose(4, 5, 3, 2),
        IMAGE,
        1,
        "convtranspose-pad-mode-same-k3s2",
    ),
    "dense bias": (nn.Linear(8, 5), cells.Dense(8, 5, has_bias=False), ROWS, 1, "parameter-missing"),
    "max pool same": (
        nn.MaxPool2d(3, 2, 1),
        cells.MaxPool2d(3, 2, pad_mode="same"),
        (2, 4, 8, 8),
        1,
        "maxpool-pad-mode-same-stem",
    ),
    "pool stride": (nn.AvgPool2d(2), cells.AvgPool2d(2), IMAGE, 1, "pool-stride-default"),
    "pool ceil mode": (
        nn.MaxPool2d(2, 2, ceil_mode=True),
        cells.MaxPool2d(2, 2),
        IMAGE,
        1,
        "pool-ceil-mode-dropped",
    ),
    "pool padding counts": (
        nn.AvgPool2d(3, 1, 1, count_include_pad=False),
        cells.AvgPool2d(3, 1, pad_mode="pad", padding=1),
        IMAGE,
        1,
        "avgpool-count-include-pad",
    ),
    "gelu": (nn.GELU(), cells.GELU(), ROWS, 1, "gelu-approximate-default"),
    "gelu, the other way": (nn.GELU("tanh"), cells.GELU(False), ROWS, 1, "gelu-new-vs-erf"),
    "leaky slope": (nn.LeakyReLU(), cells.LeakyReLU(), ROWS, 1, "leakyrelu-slope-default"),
    "leaky slope of YOLO": (nn.LeakyReLU(0.1), cells.LeakyReLU(), ROWS, 1, "leakyrelu-yolo-0.1"),
    "softmax axis": (nn.Softmax(1), cells.Softmax(), STEPS, 1, "softmax-axis-default"),
    "log softmax axis": (nn.LogSoftmax(1), cells.LogSoftmax(), STEPS, 1, "logsoftmax-axis"),
    "elu alpha": (nn.ELU(0.5), cells.ELU(), ROWS, 1, "setting-differs"),
    "reflection": (
        nn.ReflectionPad2d(1),
        cells.Pad(((0, 0), (0, 0), (1, 1), (1, 1)), mode="SYMMETRIC"),
        IMAGE,
        1,
        "pad-symmetric-vs-reflect",
    ),
    "order of pads": (
        nn.ConstantPad2d((1, 2, 0, 3), 0.0),
        cells.Pad(((0, 0), (0, 0), (1, 2), (0, 3))),
        IMAGE,
        1,
        "pad-axis-order",
    ),
    "upsample mode": (
        nn.Upsample(scale_factor=2, mode="bilinear"),
        cells.Upsample(scale_factor=2.0, recompute_scale_factor=True),
        IMAGE,
        1,
        "upsample-mode-default-nearest",
    ),
    "align corners": (
        nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
        cells.Upsample(scale_factor=2.0, mode="bilinear", align_corners=False, recompute_scale_factor=True),
        IMAGE,
        1,
        "interpolate-align-corners",
    ),
    "batch first": (nn.LSTM(4, 5, batch_first=True), cells.LSTM(4, 5), STEPS, 1, "rnn-batch-first"),
    "norm first": (
        nn.TransformerEncoderLayer(4, 2, 8, norm_first=True),
        cells.TransformerEncoderLayer(4, 2, 8),
        STEPS,
        1,
        "encoder-layer-norm-first",
    ),
}


def weights(adapter, layer):
    return {p.role: value(adapter.read(p), slot=p.role) for p in adapter.parameters(layer) if p.layer == ""}


def given(adapter, layer, wanted):
    """The layer with the weights that it has room for, wherever in it they stand; MindSpore says dense1 for linear1."""
    for parameter in adapter.parameters(layer):
        held = wanted.get((parameter.layer.replace("dense", "linear"), parameter.role))
        if held is not None and held.shape == parameter.shape:
            adapter.load(parameter, held, "float32")


def first(result):
    return result[0] if isinstance(result, tuple) else result


@pytest.fixture(scope="module", params=sorted(CARELESS))
def careless(request):
    reference, port, shape, scale, cause = CARELESS[request.param]
    data = (np.random.default_rng(3).standard_normal(shape) * scale).astype(np.float32)
    wanted = {(p.layer, p.role): REFERENCE.read(p) for p in REFERENCE.parameters(reference)}
    given(PORT, port, wanted)
    reference.eval()
    port.set_train(False)
    with torch.no_grad():
        expected = first(reference(torch.from_numpy(data))).numpy()
    specs = REFERENCE.spec(reference), PORT.spec(port)
    found = case(
        specs[0].kind,
        specs[0].attributes,
        specs[1].attributes,
        port_kind=specs[1].kind,
        expected=expected,
        actual=first(port(ms.Tensor(data))).asnumpy(),
        inputs=[data],
        parameters=weights(REFERENCE, reference),
        port_parameters=weights(PORT, port),
    )
    return found, port, data, wanted, cause


def test_a_careless_port_is_told_from_its_settings(careless):
    found, _, _, _, cause = careless
    causes = [suspect.cause for suspect in suspects(found) if suspect.change]
    assert cause in causes


def test_the_change_it_asks_for_makes_the_layer_right(careless):
    found, port, data, wanted, cause = careless
    suspect = next(s for s in suspects(found) if s.cause == cause and s.change)
    assert distance(found.actual.load(), found.expected.load()) > 1e-4
    copy = PORT.respecified(port, suspect.change)
    if isinstance(port, cells.ELU):  # MindSpore builds such a one, and does not run it
        with pytest.raises(ValueError, match="alpha"):
            copy(ms.Tensor(data)).asnumpy()
        return
    for parameter in PORT.parameters(copy):
        if parameter.role in suspect.parameters:
            PORT.load(parameter, wanted[parameter.layer, parameter.role], "float32")
    after = distance(first(copy(ms.Tensor(data))).asnumpy(), found.expected.load())
    assert after < 5e-6


def test_what_it_says_to_write_is_a_layer_like_the_references(careless):
    found, _, _, _, cause = careless
    suspect = next(s for s in suspects(found) if s.cause == cause and s.change)
    assert "..." not in suspect.facts["port_value"]
    written = suspect.facts["written"]
    assert written.startswith("nn.")
    called = written.partition("(")[0].removeprefix("nn.")
    assert hasattr(cells, called), written
    known = inspect.signature(getattr(cells, called).__init__).parameters
    words = [word.partition("=")[0].strip() for word in _arguments(written)]
    if "args" not in known:
        assert set(words) <= set(known), written


def _arguments(written):
    """The keywords of a call with balanced brackets in its values."""
    inside, depth, current = written.partition("(")[2][:-1], 0, ""
    for letter in inside + ",":
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            if "=" in current:
                yield current
            current = ""
        else:
            current += letter
