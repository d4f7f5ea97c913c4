"""Layers of PyTorch against what a careless port makes of the same input: the mistake is named and proved."""

from __future__ import annotations

import time

import numpy as np
import pytest

from aligner.explain.catalogue import sentences
from aligner.explain.patterns import suspects
from tests.unit.explain.cases import case

torch = pytest.importorskip("torch", reason="the right values are PyTorch's")
nn, F = torch.nn, torch.nn.functional


def draw(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def plain(value):
    return value.detach().numpy() if isinstance(value, torch.Tensor) else np.asarray(value, np.float32)


def tell(kind, settings, x, expected, actual, layer=None, port=None, **more):
    """All suspects of a wrong layer; `layer` has the reference's parameters."""
    state = layer if isinstance(layer, dict) else (layer.state_dict() if layer is not None else {})
    wrong = case(
        kind,
        settings,
        port,
        expected=plain(expected),
        actual=plain(actual),
        inputs=[plain(v) if isinstance(v, torch.Tensor) else v for v in (x if isinstance(x, list) else [x])],
        parameters={role: plain(v) for role, v in state.items() if v.ndim},
        **more,
    )
    found = list(suspects(wrong))
    for suspect in found:
        for language in ("en", "zh"):
            for text in sentences(suspect.cause, suspect.facts, language):
                assert "<" not in text.replace("|x| <", ""), f"{suspect.cause}: {text}"
        assert sentences(suspect.cause, suspect.facts, "en")[0] != suspect.cause
    return found


def proved(*args, **more):
    """The first suspect, which must be proved."""
    found = tell(*args, **more)
    assert found
    assert found[0].error is not None
    assert found[0].error < 2e-6
    return found[0]


def ready(layer):
    """Parameters and running statistics that show."""
    rng = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=rng) + 0.5)
    for name, buffer in layer.named_buffers():
        if buffer.ndim:
            drawn = torch.rand(buffer.shape, generator=rng)
            buffer.copy_(drawn + 0.01 if "var" in name else drawn - 0.5)
    return layer.eval()


X = draw(3, 10, 16) * torch.rand(3, 10, 1, generator=torch.Generator().manual_seed(1)) + 0.2
IMAGE = draw(2, 8, 12, 12)

OTHER_FUNCTIONS = {
    "gelu-approximate-default": lambda v: F.gelu(v, approximate="tanh"),
    "quick-gelu-vs-gelu": lambda v: v * torch.sigmoid(1.702 * v),
    "activation-missing": lambda v: v,
}


@pytest.mark.parametrize("cause", OTHER_FUNCTIONS)
def test_another_function_than_gelu(cause):
    assert proved("GELU", {"approximate": "none"}, X, F.gelu(X), OTHER_FUNCTIONS[cause](X)).cause == cause


@pytest.mark.parametrize(
    ("function", "made"),
    [
        ("ReLU", F.relu),
        ("SiLU", F.silu),
        ("Mish", F.mish),
        ("Hardswish", F.hardswish),
        ("SELU", F.selu),
        ("Softplus", F.softplus),
        ("Tanh", torch.tanh),
        ("Sigmoid", torch.sigmoid),
        ("LeakyReLU(0.3)", lambda v: F.leaky_relu(v, 0.3)),
        ("ELU(2)", lambda v: F.elu(v, 2.0)),
        ("x * sigmoid(1.5 * x)", lambda v: v * torch.sigmoid(1.5 * v)),
    ],
)
def test_the_other_function_is_named(function, made):
    found = proved("GELU", {"approximate": "none"}, X, F.gelu(X), made(X))
    assert (found.cause, found.facts["function"]) == ("activation-other", function)


def test_slopes_and_formulas_of_other_frameworks():
    slope = proved("LeakyReLU", {"negative_slope": 0.01}, X, F.leaky_relu(X), F.leaky_relu(X, 0.2), port={})
    yolo = proved("LeakyReLU", {"negative_slope": 0.1}, X, F.leaky_relu(X, 0.1), F.leaky_relu(X, 0.3), port={})
    hard = proved("Hardsigmoid", {}, 3 * X, F.hardsigmoid(3 * X), (0.6 * X + 0.5).clamp(0, 1))
    swish = proved("Hardswish", {}, X, F.hardswish(X), F.silu(X))
    assert [s.cause for s in (slope, yolo, hard, swish)] == [
        "leakyrelu-slope-default",
        "leakyrelu-yolo-0.1",
        "hardsigmoid-keras-formula",
        "hardswish-vs-swish",
    ]


def test_a_setting_that_the_port_has_is_changed_for_a_trial():
    own = {"approximate": "none"}
    found = proved("GELU", own, X, F.gelu(X), F.gelu(X, approximate="tanh"), port={"approximate": "tanh"})
    assert found.change == own
    assert not proved("GELU", own, X, F.gelu(X), F.gelu(X, approximate="tanh"), port={}).change


def test_a_class_of_the_references_own_tells_by_its_numbers_what_to_try():
    found = proved("GELU", {}, X, F.gelu(X), F.gelu(X, approximate="tanh"), port={"approximate": "tanh"})
    assert found.change == {"approximate": "none"}
    assert found.facts["reference_value"] == "'none'"


def test_an_activation_of_the_users_own_is_read_off_both_sides():
    assert proved("NewGELU", {}, X, F.gelu(X, approximate="tanh"), F.gelu(X)).cause == "gelu-new-vs-erf"


def test_softmaxes():
    scores = draw(2, 4, 6, 6)
    axis = proved("Softmax", {"dim": -1}, scores, scores.softmax(-1), scores.softmax(-2), port={"dim": -2})
    scale = proved("Softmax", {"dim": -1}, scores, scores.softmax(-1), (scores / 8).softmax(-1))
    log = proved("Softmax", {"dim": -1}, scores, scores.softmax(-1), scores.log_softmax(-1))
    own = proved("Attend", {}, scores, scores.softmax(-1), scores.softmax(1))
    assert (axis.cause, axis.change) == ("softmax-axis-default", {"dim": -1})
    assert (scale.cause, scale.facts["scale"]) == ("softmax-scale", "0.125 = 1/8")
    assert (log.cause, own.cause) == ("activation-other", "softmax-axis")


LN = {"normalized_shape": (16,), "eps": 1e-5, "affine": True}


def normed(x, weight, bias, divisor, mean=True):
    return (x - x.mean(-1, keepdim=True) if mean else x) / divisor * weight + bias


def test_layer_norms():
    layer = ready(nn.LayerNorm(16))
    w, b, right = layer.weight, layer.bias, layer(X)
    std, root = X.std(-1, keepdim=True), X.pow(2).mean(-1, keepdim=True).add(1e-5).sqrt()
    causes = {
        "layernorm-eps-default": F.layer_norm(X, (16,), w, b, 1e-7),
        "norm-divisor": normed(X, w, b, std + 1e-5),
        "norm-mean-kept": normed(X, w, b, root, mean=False),
        "norm-affine-differs": F.layer_norm(X, (16,), None, None, 1e-5),
    }
    for cause, made in causes.items():
        assert proved("LayerNorm", LN, X, right, made, layer, port={}).cause == cause
    near = F.layer_norm(X, (16,), w, b, 1e-6)
    assert proved("LayerNorm", LN, X, right, near, layer, port={**LN, "eps": 1e-6}).change == {"eps": 1e-5}


def test_eps_is_fitted_where_nobody_wrote_it():
    layer = ready(nn.LayerNorm(16))
    made = F.layer_norm(X, (16,), layer.weight, layer.bias, 3.3e-4)
    found = proved("LayerNorm", LN, X, layer(X), made, layer, port={})
    assert float(found.facts["port_value"]) == pytest.approx(3.3e-4, rel=1e-2)


def test_norm_over_the_wrong_axis_of_a_square():
    layer, x = ready(nn.LayerNorm(16)), draw(2, 16, 16) * torch.rand(2, 1, 16) + 0.3
    made = (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt()
    assert (
        proved("LayerNorm", LN, x, layer(x), made * layer.weight + layer.bias, layer).cause
        == "layernorm-channels-first"
    )


def test_rms_norms():
    weight = torch.rand(16) + 0.5
    right = F.rms_norm(X, (16,), weight, 1e-6)
    layer = {"weight": weight}
    centred = proved("RMSNorm", {"eps": 1e-6}, X, right, F.layer_norm(X, (16,), weight, None, 1e-6), layer, port={})
    eps = proved(
        "LlamaRMSNorm",
        {},
        X * 0.01,
        F.rms_norm(X * 0.01, (16,), weight, 1e-6),
        F.rms_norm(X * 0.01, (16,), weight, 1e-5),
        layer,
    )
    gemma = proved("LlamaRMSNorm", {}, X, right, F.rms_norm(X, (16,), weight + 1, 1e-6), layer)
    assert centred.cause == "rmsnorm-written-as-layernorm"
    assert (eps.cause, eps.facts["port_value"], eps.facts["reference_value"]) == (
        "rmsnorm-eps-default",
        "1e-05",
        "1e-06",
    )
    assert (gemma.cause, gemma.facts["port_value"]) == ("norm-affine-differs", "* (1 + weight)")


def test_a_norm_by_the_sum_and_over_another_axis():
    """Pixel norms of people's own: no parameters, no settings."""
    right = IMAGE / (IMAGE.pow(2).mean(1, keepdim=True) + 1e-8).sqrt()
    summed = IMAGE / (IMAGE.pow(2).sum(1, keepdim=True) + 1e-8).sqrt()
    other = IMAGE / (IMAGE.pow(2).mean(2, keepdim=True) + 1e-8).sqrt()
    assert proved("PixelNorm", {}, IMAGE, right, summed).cause == "reduction-other"
    found = proved("PixelNorm", {}, IMAGE, right, other)
    assert (found.cause, found.facts["port_value"]) == ("reduction-axis", "axes=(2)")


def test_batch_norms():
    layer = ready(nn.BatchNorm2d(8))
    settings = {"num_features": 8, "eps": 1e-5, "momentum": 0.1, "affine": True, "track_running_stats": True}
    w, b, right = layer.weight, layer.bias, layer(IMAGE)
    batch = F.batch_norm(IMAGE, None, None, w, b, True, 0.1, 1e-5)
    eps = F.batch_norm(IMAGE, layer.running_mean, layer.running_var, w, b, False, 0.1, 1e-3)
    each = F.instance_norm(IMAGE, None, None, w, b, True, 0.1, 1e-5)
    assert proved("BatchNorm", settings, IMAGE, right, eps, layer, port={}).cause == "bn-eps-dropped"
    assert proved("BatchNorm", settings, IMAGE, right, batch, layer).cause == "bn-train-at-eval"
    assert proved("BatchNorm", settings, IMAGE, batch, right, layer).cause == "bn-train-flag-default"
    assert proved("BatchNorm", settings, IMAGE, right, each, layer).cause == "norm-axes"


def test_group_norms():
    layer = ready(nn.GroupNorm(4, 8))
    settings = {"num_groups": 4, "num_channels": 8, "eps": 1e-5, "affine": True}
    groups = F.group_norm(IMAGE, 2, layer.weight, layer.bias)
    found = proved("GroupNorm", settings, IMAGE, layer(IMAGE), groups, layer, port={**settings, "num_groups": 2})
    assert (found.cause, found.facts["port_value"], found.change) == ("groupnorm-args-swapped", "2", {"num_groups": 4})


def test_linear_layers():
    layer = ready(nn.Linear(16, 16))
    w, b, right = layer.weight, layer.bias, layer(X)
    short = F.linear(X.half().float(), w.half().float(), b)
    causes = {
        "bias-missing": right - b,
        "bias-twice": right + b,
        "dense-weight-transposed-square": F.linear(X, w.T, b),
        "scale-missing": F.linear(X, w / 2, b),
        "ascend-matmul-precision-mode": short,
    }
    for cause, made in causes.items():
        assert proved("Linear", {"bias": True}, X, right, made, layer).cause == cause


CONV = {
    "kernel_size": (3, 3),
    "stride": (1, 1),
    "padding": ((1, 1), (1, 1)),
    "dilation": (1, 1),
    "padding_mode": "zeros",
}


def test_convolutions():
    layer = ready(nn.Conv2d(8, 6, 3, padding=1))
    w, b, right = layer.weight - 0.9, layer.bias, None
    layer.weight.data = w
    right = layer(IMAGE)
    strided = {**CONV, "stride": (2, 2)}
    causes = {
        "bias-missing": (CONV, right, F.conv2d(IMAGE, w, None, 1, 1)),
        "conv2d-padding-mode-reflect": (CONV, right, F.conv2d(F.pad(IMAGE, (1, 1, 1, 1), mode="reflect"), w, b)),
        "conv-weight-hw-transposed": (CONV, right, F.conv2d(IMAGE, w.flip(2, 3), b, 1, 1)),
        "conv-padding": (strided, F.conv2d(IMAGE, w, b, 2, 1), F.conv2d(F.pad(IMAGE, (0, 1, 0, 1)), w, b, 2)),
        "conv-stride": (strided, F.conv2d(IMAGE, w, b, 2, 1), right),
        "conv2d-dilation-dropped": (
            {**CONV, "dilation": (2, 2), "padding": ((2, 2), (2, 2))},
            F.conv2d(IMAGE, w, b, 1, 2, 2),
            right,
        ),
    }
    for cause, (settings, wanted, made) in causes.items():
        assert proved("Conv2d", settings, IMAGE, wanted, made, layer).cause == cause


def test_a_depthwise_convolution_with_another_border():
    layer = ready(nn.Conv2d(8, 8, 3, padding=1, groups=8))
    made = F.conv2d(F.pad(IMAGE, (1, 1, 1, 1), mode="replicate"), layer.weight, layer.bias, groups=8)
    found = proved("Conv2d", {**CONV, "groups": 8}, IMAGE, layer(IMAGE), made, layer)
    assert (found.cause, found.facts["found"]) == ("conv2d-padding-mode-reflect", "replicate")


def test_a_causal_convolution_padded_on_both_sides():
    layer, x = ready(nn.Conv1d(8, 4, 3)), draw(2, 8, 20)
    settings = {"kernel_size": (3,), "stride": (1,), "padding": ((2, 0),), "dilation": (1,)}
    found = proved("Conv1d", settings, x, layer(F.pad(x, (2, 0))), layer(F.pad(x, (1, 1))), layer)
    assert found.cause == "causal-conv-padding"


POOL = {"kernel_size": (3, 3), "stride": (2, 2), "padding": ((1, 1), (1, 1)), "dilation": (1, 1)}


def test_poolings():
    low, odd = IMAGE - 1, draw(2, 8, 7, 7)
    best, mean = F.max_pool2d(low, 3, 2, 1), F.avg_pool2d(IMAGE, 3, 2, 1)
    same = F.max_pool2d(F.pad(low, (0, 1, 0, 1), value=-1e9), 3, 2)
    partial = {**POOL, "kernel_size": (2, 2), "padding": ((0, 0), (0, 0)), "ceil_mode": True}
    causes = [
        ("maxpool-zero-padding-before", "MaxPool2d", POOL, low, best, F.max_pool2d(F.pad(low, (1, 1, 1, 1)), 3, 2)),
        ("pool-padding", "MaxPool2d", POOL, low, best, same),
        ("pool-mean-or-max", "MaxPool2d", POOL, low, best, F.avg_pool2d(low, 3, 2, 1)),
        ("pool-stride-default", "MaxPool2d", POOL, low, best, F.max_pool2d(low, 3, 1, 1)),
        ("avgpool-count-include-pad", "AvgPool2d", {**POOL, "count_include_pad": True}, IMAGE, mean,
         F.avg_pool2d(IMAGE, 3, 2, 1, count_include_pad=False)),
        ("avgpool-ceil-mode-divisor", "AvgPool2d", {**partial, "count_include_pad": True}, odd,
         F.avg_pool2d(odd, 2, 2, 0, True), F.avg_pool2d(F.pad(odd, (0, 1, 0, 1)), 2)),
        ("adaptive-avgpool-nondivisible", "AdaptiveAvgPool2d", {"output_size": (3, 3)}, odd,
         F.adaptive_avg_pool2d(odd, 3), F.avg_pool2d(odd, 2, 2)),
        ("pool-mean-or-max", "AdaptiveAvgPool2d", {"output_size": (1, 1)}, odd,
         F.adaptive_avg_pool2d(odd, 1), F.adaptive_max_pool2d(odd, 1)),
    ]  # fmt: skip
    for cause, kind, settings, x, wanted, made in causes:
        assert proved(kind, settings, x, wanted, made).cause == cause


def test_resampling():
    x = draw(2, 3, 7, 7)

    def grown(**how):
        return F.interpolate(x, **how)

    two = {"scale_factor": 2.0, "align_corners": False}
    causes = [
        ("upsample-mode-default-nearest", "bilinear", grown(scale_factor=2, mode="bilinear"), grown(scale_factor=2)),
        ("interpolate-align-corners", "bilinear", grown(scale_factor=2, mode="bilinear", align_corners=True),
         grown(scale_factor=2, mode="bilinear")),
        ("upsample-grid", "nearest", grown(size=(10, 10)), grown(size=(10, 10), mode="nearest-exact")),
    ]  # fmt: skip
    for cause, mode, wanted, made in causes:
        assert proved("Upsample", {**two, "mode": mode}, x, wanted, made).cause == cause
    odd = {"scale_factor": 1.7, "mode": "bilinear", "align_corners": False}
    made = grown(size=(11, 11), mode="bilinear")
    found = proved("Upsample", odd, x, grown(scale_factor=1.7, mode="bilinear"), made)
    assert found.cause == "interpolate-scale-factor-rounding"


def test_a_tanh_of_another_framework_is_known_for_what_it_is():
    """MindSpore's is off by 1e-4 around 5: still a tanh in the place of a sigmoid."""
    x = draw(4, 500) * 3
    made = torch.tanh(x) - 9e-5 * x.sign() * ((x.abs() - 5).abs() < 0.5)
    assert tell("Sigmoid", {}, x, torch.sigmoid(x), made)[0].facts["function"] == "Tanh"


def test_a_bias_and_a_padding_forgotten_at_once():
    layer = ready(nn.Conv2d(8, 6, 3, 2, 1))
    made = F.conv2d(F.pad(IMAGE, (0, 1, 0, 1)), layer.weight, None, 2)
    found = tell("Conv2d", {**CONV, "stride": (2, 2)}, IMAGE, layer(IMAGE), made, layer)
    assert [s.cause for s in found if s.error is not None] == ["conv-padding", "bias-missing"]


def test_another_dtype_is_told():
    layer = ready(nn.Linear(16, 16))
    right = plain(layer(X))
    wrong = case("Linear", {"bias": True}, expected=right, actual=right.astype(np.float16), inputs=[plain(X)])
    first = next(iter(suspects(wrong)))
    assert (first.cause, first.facts["port_dtype"]) == ("dtype-differs", "float16")


KINDS = {
    "GELU": ({"approximate": "none"}, X, F.gelu(X), None),
    "Softmax": ({"dim": -1}, X, X.softmax(-1), None),
    "LayerNorm": (LN, X, None, nn.LayerNorm(16)),
    "Linear": ({"bias": True}, X, None, nn.Linear(16, 16)),
    "Conv2d": (CONV, IMAGE, None, nn.Conv2d(8, 6, 3, padding=1)),
    "MaxPool2d": (POOL, IMAGE, F.max_pool2d(IMAGE, 3, 2, 1), None),
    "Upsample": ({"scale_factor": 2.0, "mode": "nearest"}, IMAGE, F.interpolate(IMAGE, scale_factor=2), None),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("noise", ["unrelated", 1e-2, 1e-4, 2e-5, 1e-7])
def test_noise_is_no_mistake(kind, noise):
    settings, x, right, layer = KINDS[kind]
    if right is None:
        right = layer(x)
        right = right[0] if isinstance(right, tuple) else right
    for seed in range(3):
        other = draw(*right.shape, seed=seed + 5)
        made = other if noise == "unrelated" else right + noise * other
        assert [s for s in tell(kind, settings, x, right, made, layer) if s.error is not None] == []


def test_nothing_is_told_of_glue_and_of_a_missing_side():
    assert list(suspects(case("Linear", where="glue", expected=plain(X), actual=plain(-X)))) == []
    assert list(suspects(case("Linear", expected=plain(X), actual=None))) == []
    assert list(suspects(case("Linear", expected=np.zeros((0, 3)), actual=np.zeros((0, 3))))) == []


@pytest.mark.parametrize("kind", ["LayerNorm", "Conv2d", "GELU", "Unknown"])
def test_a_large_value_takes_no_time(kind):
    """About 4 MB; the figure leaves room for a busy machine."""
    if kind == "Conv2d":
        layer, x, settings = nn.Conv2d(16, 64, 3, padding=1), draw(4, 16, 64, 64), CONV
    else:
        layer, x = nn.LayerNorm(256), draw(16, 256, 256)
        settings = {"normalized_shape": (256,), "eps": 1e-5} if kind == "LayerNorm" else {}
    right = layer(x) if kind != "GELU" else F.gelu(x)
    made = draw(*right.shape, seed=9)
    started = time.process_time()
    assert not [s for s in tell(kind, settings, x, right, made, layer) if s.error is not None]
    assert time.process_time() - started < 3.0
