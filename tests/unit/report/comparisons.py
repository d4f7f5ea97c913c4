"""Comparisons made by hand, one per kind of answer: what reports and notebooks are tested on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

from aligner.compare.casts import Cast, Computing
from aligner.compare.deviation import Deviation
from aligner.compare.mixup import Mixup
from aligner.compare.stop import Stop
from aligner.compare.verdict import Comparison, LayerPair, Origin, Outcome, Side, Verdict
from aligner.explain.suspect import Cause
from aligner.record import Key, LayerSpec, Phase

REFERENCE: dict[str, Any] = {
    "path": "ref.h5",
    "framework": "torch",
    "framework_version": "2.13.0",
    "device": "cpu",
    "mode": "pynative",
    "training": False,
    "model": "Net",
    "steps": 1,
    "complete": True,
}
PORT: dict[str, Any] = {
    **REFERENCE,
    "path": "port.h5",
    "framework": "mindspore",
    "framework_version": "2.10.0",
    "device": "CPU",
}
NETWORK = (
    ("conv1", "Conv2d", (1, 8, 16, 16)),
    ("bn1", "BatchNorm", (1, 8, 16, 16)),
    ("relu", "ReLU", (1, 8, 16, 16)),
    ("fc", "Linear", (1, 10)),
)


def deviation(error: float, **changes: Any) -> Deviation:
    """A deviation whose scaled error is `error`."""
    plain = Deviation(
        max_abs=error * 1.6,
        scaled=error,
        allclose=error * 0.9,
        rel_l2=error * 0.6,
        cosine=1.0 - error * error,
        mismatched=3 if error > 1e-3 else 0,
        total=2048,
        nan=(0, 0),
        inf=(0, 0),
        nonfinite=0,
        rms=0.7,
        worst=(0, 3, 1, 2),
        worst_values=(1.25, 1.25 + error * 1.6),
    )
    return replace(plain, **changes)


def verdict(
    layer: str,
    slot: str,
    order: int,
    error: Optional[float],
    outcome: Outcome = Outcome.ALIGNED,
    *,
    kind: str = "Conv2d",
    phase: Phase = Phase.FORWARD,
    shape: tuple[int, ...] = (1, 8, 16, 16),
    call: int = 0,
    **changes: Any,
) -> Verdict:
    """A pair whose two records stand under the same key."""
    key = Key(0, phase, layer, call, slot)
    side = Side(key, order, f"torch.nn.{kind}", "float32", shape)
    made = Verdict(key, kind, outcome, side, side, error, None if error is None else deviation(error))
    return replace(made, **changes)


def counts(verdicts: tuple[Verdict, ...]) -> dict[str, int]:
    """How often each outcome occurs, with zeros."""
    return {o.value: sum(1 for v in verdicts if v.outcome is o) for o in Outcome}


def comparison(verdicts: tuple[Verdict, ...], outcome: str = "diverged", **changes: Any) -> Comparison:
    """A comparison of these verdicts; the first that fails is the first divergence."""
    made = Comparison(
        reference=REFERENCE,
        port=PORT,
        tolerance=1e-3,
        rule="scaled",
        outcome=outcome,
        verdicts=verdicts,
        origins=(),
        layers=tuple(LayerPair(name, name, 1.0, "name") for name in ("", *(name for name, _, _ in NETWORK))),
        first=next((v for v in verdicts if v.outcome.fails), None),
        warnings=(),
        counts=counts(verdicts),
    )
    return replace(made, **changes)


def network(errors: tuple[float, ...], outcomes: tuple[Outcome, ...]) -> tuple[Verdict, ...]:
    """One verdict per input and output of NETWORK; the output's error goes into the next layer."""
    found = [verdict("", "input.0", 1, 0.0, kind="Net", shape=(1, 3, 16, 16))]
    before, was = 0.0, Outcome.ALIGNED
    for i, (name, kind, shape) in enumerate(NETWORK):
        follows = was if was in (Outcome.ALIGNED, Outcome.INHERITED) else Outcome.INHERITED
        found.append(verdict(name, "input.0", 2 * i + 2, before, follows, kind=kind))
        found.append(verdict(name, "output.0", 2 * i + 3, errors[i], outcomes[i], kind=kind, shape=shape))
        before, was = errors[i], outcomes[i]
    found.append(verdict("", "output.0", 10, before, was, kind="Net", shape=(1, 10)))
    return tuple(found)


def aligned() -> Comparison:
    """Everything within tolerance."""
    return comparison(network((1.1e-7, 3.1e-7, 3.1e-7, 2.0e-7), (Outcome.ALIGNED,) * 4), "aligned")


def origin(**changes: Any) -> Origin:
    """A BatchNorm that is wrong by itself."""
    made = Origin(
        layer="bn1",
        port_layer="bn1",
        kind="BatchNorm",
        where="layer",
        step=0,
        phase="forward",
        call=0,
        slot="output.0",
        order=5,
        own_error=5.2e-3,
        input_error=1.1e-7,
        deviation=deviation(5.2e-3),
    )
    return replace(made, **changes)


def diverged(**changes: Any) -> Comparison:
    """A BatchNorm with another eps; all after it inherits."""
    after = Outcome.INHERITED
    verdicts = network((1.1e-7, 5.2e-3, 5.2e-3, 9.9e-3), (Outcome.ALIGNED, Outcome.ORIGIN, after, after))
    same = {"num_features": 8, "momentum": 0.1, "affine": True}
    specs = (LayerSpec("BatchNorm", {**same, "eps": 1e-5}), LayerSpec("BatchNorm", {**same, "eps": 1e-3}))
    return comparison(verdicts, **{"origins": (origin(),), "specs": {"bn1": specs}, **changes})


def glue() -> Comparison:
    """A forgotten residual in the code of the net itself."""
    made = origin(
        layer="", port_layer="", kind="Net", where="glue", between=("conv1", "bn1"), slot="input.0", seen="bn1"
    )
    return diverged(origins=(made,))


def wrong_weight() -> Comparison:
    """A weight that differs before anything runs."""
    weight = verdict("conv1", "weight", 0, 0.4, Outcome.ORIGIN, phase=Phase.PARAMETER)
    after = Outcome.INHERITED
    made = origin(
        layer="conv1", port_layer="conv1", kind="Conv2d", where="parameters", phase="parameter", slot="weight"
    )
    return comparison((weight, *network((0.3, 0.3, 0.3, 0.2), (after,) * 4)), origins=(replace(made, own_error=0.4),))


def other_inputs() -> Comparison:
    """Two nets that were run on different data."""
    wrong = verdict("", "input.0", 1, 1.7, Outcome.ORIGIN, kind="Net")
    made = origin(layer="", port_layer="", kind="Net", where="inputs", slot="input.0", own_error=1.7, input_error=None)
    return comparison((wrong,), "incomparable", origins=(made,))


def nonfinite() -> Comparison:
    """NaN that is born in the port."""
    bad = deviation(0.0, nan=(0, 12), nonfinite=12, mismatched=12)
    wrong = verdict("bn1", "output.0", 5, float("inf"), Outcome.NONFINITE, kind="BatchNorm", deviation=bad)
    return comparison(
        (verdict("conv1", "output.0", 3, 1e-7), wrong), origins=(origin(own_error=float("inf"), deviation=bad),)
    )


def other_shapes() -> Comparison:
    """A pair that cannot be compared by element."""
    made = verdict("fc", "output.0", 9, None, Outcome.INCOMPARABLE, kind="Linear", shape=(1, 10))
    assert made.port is not None
    return comparison((verdict("conv1", "output.0", 3, 1e-7), replace(made, port=replace(made.port, shape=(10, 1)))))


def unmatched() -> Comparison:
    """A layer that the port does not have, and pairs found by structure."""
    alone = verdict("dropout", "output.0", 8, None, Outcome.UNMATCHED, kind="Dropout", port=None)
    pairs = (
        LayerPair("", "", 1.0, "name"),
        LayerPair("conv1", "stem.0", 0.93, "structure"),
        LayerPair("bn1", "stem.1", 0.71, "structure"),
    )
    return comparison((verdict("conv1", "output.0", 3, 1e-7), alone), layers=pairs)


EPS = Cause(
    "layernorm-eps-default",
    True,
    {
        "setting": "eps",
        "reference_value": "1e-05",
        "port_value": "1e-07",
        "written": "nn.LayerNorm(..., epsilon=1e-05)",
    },
    4.7e-4,
    2.4e-7,
    {"eps": 1e-5},
)
RATIO = Cause("constant-ratio", False, {"ratio": "2", "inverse": "0.5", "left": "3.0e-04"}, 0.5, 3e-4)
SHIFT = Cause("constant-shift", False, {"shift": "1", "left": "0.49"}, 0.5, 0.49)
SIGN = Cause("sign-flipped", False, {"left": "0.1"}, 0.5, None)


def norms(count: int = 12, **changes: Any) -> tuple[Origin, ...]:
    """The same mistake in the norms of many blocks."""
    made = origin(kind="LayerNorm", ratio=1310.0, causes=(EPS,), input_error=0.2, **changes)
    paths = [f"blocks.{number // 2}.norm{number % 2 + 1}" for number in range(count)]
    return tuple(replace(made, layer=path, port_layer=path, order=n) for n, path in enumerate(paths))


def specs(origins: tuple[Origin, ...]) -> dict[str, tuple[LayerSpec, LayerSpec]]:
    """LayerNorms with two settings that differ."""
    same = {"affine": True}
    one, two = {**same, "eps": 1e-5, "bias": True}, {**same, "eps": 1e-7, "bias": False}
    return {o.layer: (LayerSpec("LayerNorm", one), LayerSpec("LayerNorm", two)) for o in origins}


def proved() -> Comparison:
    """One mistake in twelve layers, proved by trials."""
    return diverged(origins=norms(), specs=specs(norms()), checked=77)


def guessed() -> Comparison:
    """Wrong code between layers with causes that no trial proves, one of them refuted."""
    made = origin(
        layer="b",
        port_layer="b",
        kind="Block",
        where="glue",
        between=("b.a", "b.c"),
        slot="input.0",
        seen="b.c",
        ratio=3e7,
    )
    return diverged(origins=(replace(made, causes=(RATIO, SHIFT, SIGN)),), checked=77)


def unknown() -> Comparison:
    """A layer that is wrong although its settings are the reference's."""
    equal = LayerSpec("BatchNorm", {"eps": 1e-5})
    return diverged(origins=(origin(ratio=24.5),), specs={"bn1": (equal, equal)}, checked=9)


def below() -> Comparison:
    """Mistakes that exceed the tolerance nowhere."""
    found = norms(2, own_error=4.7e-4)
    warnings = tuple(("below-tolerance", {"layer": o.layer, "kind": o.kind, "error": "4.7e-04"}) for o in found)
    other = (("nan-on-both", {"count": 2, "layer": "fc", "slot": "output.0"}),)
    return replace(aligned(), suspects=found, specs=specs(found), warnings=(*warnings, *other), checked=77)


def grown() -> Comparison:
    """Rounding that grows to more than the tolerance with no layer to blame."""
    outcomes = (Outcome.ALIGNED, Outcome.ALIGNED, Outcome.ROUNDING, Outcome.ROUNDING)
    found = network((1e-7, 9e-4, 2e-3, 3e-3), outcomes)
    found = tuple(replace(v, outcome=Outcome.ROUNDING) if v.outcome is Outcome.INHERITED else v for v in found)
    return comparison(found, "aligned", checked=12)


def swapped() -> Comparison:
    """Dumps in the wrong order: nothing follows from their differences."""
    facts = {"reference": "port.h5", "port": "ref.h5"}
    found = tuple(
        replace(v, outcome=Outcome.INCOMPARABLE, reason="unjudged-mixup") if v.outcome.fails else v
        for v in diverged().verdicts
    )
    made = comparison(found, "incomparable", first=None, warnings=(("mixup-swapped", facts),))
    return replace(made, reference=PORT, port=REFERENCE, mixup=Mixup("mixup-swapped", facts, True))


def renewed() -> Comparison:
    """A reference that was made anew, on the same weights and inputs: judged, but that is said first."""
    facts = {"reference": "ref.h5", "port": "port.h5", "made": "ref.h5 (2026-01-02T03:04:05+00:00)"}
    mixup = Mixup("mixup-renewed", facts, False)
    return diverged(mixup=mixup, warnings=((mixup.message, facts),))


def trained() -> Comparison:
    """A training loop whose second step differs: the optimizers have changed the weights."""
    first = network((1.1e-7, 3.1e-7, 3.1e-7, 2.0e-7), (Outcome.ALIGNED,) * 4)
    moved = network((0.3, 0.3, 0.3, 0.2), (Outcome.INHERITED,) * 4)
    second = tuple(
        replace(v, key=v.key._replace(step=1), reason="unjudged-both" if v.outcome.fails else "") for v in moved
    )
    facts = {"step": 1, "records": 8, "count": 3, "layer": "conv1"}
    return comparison((*first, *second), warnings=(("weights-moved", facts),))


def empty() -> Comparison:
    """Everything that was compared is NaN on both sides."""
    nothing = deviation(0.0, nan=(2048, 2048), worst=None, worst_values=None)
    found = tuple(replace(v, error=None, deviation=nothing) for v in aligned().verdicts)
    facts = {"count": len(found), "layer": "(net)", "slot": "input.0"}
    return comparison(found, "aligned", warnings=(("no-finite-value", facts),))


HOSTILE = '<img src=x onerror="alert(1)"></script><script>alert(2)</script>\x1b[31m\u202e\'"模型.层'


def hostile() -> Comparison:
    """A layer whose name attacks a page and a terminal."""
    wrong = verdict(HOSTILE, "output.0", 5, 5.2e-3, Outcome.ORIGIN, kind=HOSTILE)
    specs = (LayerSpec(HOSTILE, {HOSTILE: HOSTILE}), LayerSpec("BatchNorm", {}))
    pairs = (LayerPair(HOSTILE, HOSTILE, 0.5, "structure"),)
    header = {**REFERENCE, "path": f"{HOSTILE}.h5", "model": HOSTILE}
    made = origin(layer=HOSTILE, port_layer=HOSTILE + "2", kind=HOSTILE)
    return comparison((wrong,), origins=(made,), specs={HOSTILE: specs}, layers=pairs, reference=header)


def cast(layer: str, kind: str, port: str, exception: str = "", part: str = "", by: str = "to_float") -> Cast:
    """A layer whose reference computes in float32."""
    computing = Computing("float32", "output"), Computing(port, by)
    return Cast(layer, layer, kind, part, *computing, exception)


def casts() -> Comparison:
    """An O2 port with norms in float16, a layer left in float32, and a softmax in float16 in its attention."""
    norms = [cast(f"layer{i}.bn", "BatchNorm", "float16", "careful") for i in range(6)]
    return replace(
        aligned(),
        port={**PORT, "amp": "O2"},
        casts=(
            cast("conv1", "Conv2d", "float16"),
            *norms,
            cast("bn1", "BatchNorm", "float32"),
            cast("relu", "ReLU", "float16"),
            cast("attn", "Attention", "float16", "careful", "softmax", "measured"),
            cast("out", "Softmax", "float16", "careful"),
            cast("fc", "Linear", "float32", "left"),
        ),
    )


def stopped() -> Comparison:
    """A port that raised, with a wrong layer before, and what it did not come to."""
    behind = [verdict(name, "output.0", n, None, Outcome.NOT_RUN, port=None) for n, name in ((7, "relu"), (9, "fc"))]
    behind = [replace(one, reason="not-run", facts={"side": "port"}) for one in behind]
    said, code = "For 'MatMul' the input dimensions must be equal", "x = self.fc(x)"
    stop = Stop("port", 0, "fc", "Linear", 0, "", "ValueError", said, "/home/a/net.py", 30, code, True, "fc")
    whole = diverged()
    return replace(comparison((*whole.verdicts[:8], *behind), origins=whole.origins), stops=(stop,))


SCENARIOS = {
    "aligned": aligned,
    "diverged": diverged,
    "glue": glue,
    "wrong_weight": wrong_weight,
    "other_inputs": other_inputs,
    "nonfinite": nonfinite,
    "other_shapes": other_shapes,
    "unmatched": unmatched,
    "proved": proved,
    "guessed": guessed,
    "unknown": unknown,
    "below": below,
    "grown": grown,
    "casts": casts,
    "swapped": swapped,
    "renewed": renewed,
    "trained": trained,
    "empty": empty,
    "stopped": stopped,
}
