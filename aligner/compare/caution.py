"""What a reader should know besides the verdicts: other circumstances, incomplete dumps, NaN on both sides."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import numpy as np

from aligner.compare.casts import Cast
from aligner.compare.growth import unexplained
from aligner.compare.layers import Pairing
from aligner.compare.mixup import captured_from
from aligner.compare.net import Net, is_input
from aligner.compare.notes import together
from aligner.compare.reading import Reading
from aligner.devices import CONV, EXACT, MATMUL
from aligner.dtypes import DTYPES
from aligner.record import Phase, Scalar, display

if TYPE_CHECKING:
    from aligner.dump.reader import Dump

EXACTLY = {
    ("torch", "tf32"): "torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False",
    ("torch", "hf32"): "torch.npu.matmul.allow_hf32 = torch.npu.conv.allow_hf32 = False",
    ("mindspore", "tf32"): "mindspore.device_context.gpu.op_precision.conv_allow_tf32(False), matmul_allow_tf32(False)",
    (
        "mindspore",
        "hf32",
    ): "mindspore.device_context.ascend.op_precision.conv_allow_hf32(False), matmul_allow_hf32(False)",
}
"""What has a framework compute float32 as float32, by the type that it shortens it to."""

Caution = tuple[str, Mapping[str, Scalar]]

HARMLESS = ("mindtorch-shim", "weights-changed")
"""Notes of how a framework was brought to run, which are no reason to doubt a value: the capture has told them.
Changed weights are told of where they are found to matter (aligner.compare.moved)."""

HALF = "float16"
NEAR = 0.5 * 65504
"""Values of this size may overflow with other data."""
HIDING = 65504.0
"""What is larger and yet right hides something: the fill of a mask."""

_STATE_MATTERS = frozenset(
    {"BatchNorm", "InstanceNorm", "Dropout", "RReLU", "MultiheadAttention", "LSTM", "GRU", "RNN"}
)


def cautions(
    reference: Dump,
    port: Dump,
    nets: tuple[Net, Net],
    pairing: Pairing,
    readings: Sequence[Reading],
    forced: bool = False,
    casts: Sequence[Cast] = (),
) -> Iterator[Caution]:
    """All warnings of a comparison; a forced pass has judged each place by the precision it computes in."""
    for side, dump in (("reference", reference), ("port", port)):
        if not dump.complete:
            yield "dump-incomplete", {"side": side, "path": str(dump.path)}
        for note in together(dump.notes):
            if note.message not in HARMLESS:
                yield note.message, {**note.facts, "layer": display(note.layer), "side": side}
    for message, facts in _circumstances(reference, port):
        if not (forced and message == "amp-differs"):
            yield message, facts
    for side, net, dump in zip(("reference", "port"), nets, (reference, port)):
        if not net.weighed and any(reading.over for reading in readings):
            yield "weights-not-compared", {"side": side, "path": str(dump.path)}
    yield from _states(nets, pairing)
    yield from unexplained(readings)
    yield from _values(readings)
    yield from _near_overflow(readings, {cast.layer for cast in casts if cast.port.dtype == HALF})


def _circumstances(reference: Dump, port: Dump) -> Iterator[Caution]:
    ours, theirs = reference.header, port.header
    for name, message in (("training", "training-differs"), ("amp", "amp-differs"), ("dropout", "dropout-differs")):
        if name in ours and name in theirs and ours[name] != theirs[name]:
            said = ("off" if value is None else str(value) for value in (ours[name], theirs[name]))
            yield message, dict(zip(("reference", "port"), said))
    yield from _arithmetic(ours, theirs)
    if theirs.get("forced") is True and not captured_from(port, reference):
        yield "forced-other-reference", {"reference": str(reference.path), "made": str(theirs.get("reference"))}
    steps = set(reference.steps), set(port.steps)
    if steps[0] != steps[1]:
        yield "steps-differ", {"reference": len(steps[0]), "port": len(steps[1])}


def _arithmetic(reference: Mapping[str, Any], port: Mapping[str, Any]) -> Iterator[Caution]:
    """Devices that multiply float32 in a shorter type: about 1e-3 of a layer's scale is theirs, and no mistake."""
    for side, header in (("reference", reference), ("port", port)):
        short = {name: str(header[name]) for name in (MATMUL, CONV) if header.get(name) not in (None, EXACT)}
        if short:
            word = next(iter(short.values()))
            message = "short-matmul-conv" if len(short) == 2 else "short-matmul" if MATMUL in short else "short-conv"
            framework = str(header.get("framework"))
            change = EXACTLY.get((framework, word), "")
            yield message, {"side": side, "type": word, "device": str(header.get("device")), "change": change}
    precision = port.get("precision_mode")
    if precision not in (None, "", "must_keep_origin_dtype", "origin", "force_fp32"):
        yield "precision-mode", {"mode": str(precision)}


def _states(nets: tuple[Net, Net], pairing: Pairing) -> Iterator[Caution]:
    """Layers whose result depends on the mode, in train mode on one side and eval mode on the other."""
    other = []
    for pair in pairing.layers:
        one, two = nets[0].layers.get(pair.reference), nets[1].layers.get(pair.port)
        if one is not None and two is not None and one.training != two.training and one.spec.kind in _STATE_MATTERS:
            other.append((pair.reference, one.training))
    if other:
        first, training = other[0]
        mode = ("train", "eval") if training else ("eval", "train")
        yield "mode-differs", {"count": len(other), "layer": display(first), "reference": mode[0], "port": mode[1]}


def _values(readings: Sequence[Reading]) -> Iterator[Caution]:
    yield from _nothing(readings)
    both = [r for r in readings if r.deviation is not None and all(r.deviation.nan) and not r.deviation.nonfinite]
    both = [r for r in both if not r.void]
    if both:
        yield "nan-on-both", {"count": len(both), **_where(both[0])}
    kinds = [r for r in readings if r.deviation is not None and _exact(r) in ((True, False), (False, True))]
    if kinds:
        entry, other = kinds[0].pair.reference, kinds[0].pair.port
        types = {"reference": entry.dtype if entry else "", "port": other.dtype if other else ""}
        yield "dtype-class-differs", {"count": len(kinds), **_where(kinds[0]), **types}


def _nothing(readings: Sequence[Reading]) -> Iterator[Caution]:
    """Pairs that agree without saying anything: no finite number, no element, an output of zeros."""
    void = [r for r in readings if r.void]
    if void:
        yield "no-finite-value", {"count": len(void), **_where(void[0])}
    ran = [r for r in readings if r.deviation is not None and r.pair.key.phase is Phase.FORWARD]
    if ran and not any(r.deviation.total for r in ran if r.deviation is not None):
        yield "no-element", {"count": len(ran), **_where(ran[0])}
    out = [r for r in ran if not r.pair.key.layer and not is_input(r.pair.key.slot)]
    if out and all(_zero(reading) for reading in out):
        yield "output-zero", {"count": len(out), "slot": out[0].pair.key.slot}


def _zero(reading: Reading) -> bool:
    """Whether floating numbers are zero everywhere on both sides."""
    deviation = reading.deviation
    if deviation is None or deviation.exact or not deviation.finite:
        return False
    return deviation.rms == 0.0 and deviation.max_abs == 0.0


def _near_overflow(readings: Sequence[Reading], halves: Set[str]) -> Iterator[Caution]:
    """Values that hardly fit into float16, the largest of them by name; those that do not are told of as wrong."""
    found: list[tuple[float, Reading]] = []
    for reading in readings:
        entry, port, deviation = reading.pair.reference, reading.pair.port, reading.deviation
        if entry is None or port is None or deviation is None or reading.nonfinite or deviation.exact:
            continue
        short = port.dtype == HALF or (entry.key.layer in halves and not is_input(entry.key.slot))
        if not short or reading.covered or entry.key.phase is not Phase.FORWARD:
            continue
        if deviation.rms * math.sqrt(deviation.total) > NEAR:  # none can be larger than all of them together
            values = np.abs(entry.load())
            largest = float(values[np.isfinite(values)].max(initial=0.0))
            if NEAR < largest < HIDING:
                found.append((largest, reading))
    if found:
        largest, reading = max(found, key=lambda item: item[0])
        yield "near-overflow", {"count": len(found), "largest": f"{largest:.4g}", **_where(reading)}


def _exact(reading: Reading) -> tuple[bool, bool]:
    entry, other = reading.pair.reference, reading.pair.port
    return (entry is not None and DTYPES[entry.dtype].exact), (other is not None and DTYPES[other.dtype].exact)


def _where(reading: Reading) -> Mapping[str, Scalar]:
    key = reading.pair.key
    return {"layer": display(key.layer), "slot": key.slot}
