"""Settings of optimizers that differ: of which parameters, and what they are called in the port."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from aligner.explain.suspect import Suspect
from aligner.record import Attribute
from aligner.words.optimizers import EPS_FIRST

Owner = tuple[str, str]

NEUTRAL: Mapping[str, Attribute] = {
    **dict.fromkeys(("weight_decay", "momentum", "dampening"), 0.0),
    **dict.fromkeys(("nesterov", "amsgrad", "centered", "maximize", "decoupled", "grad_centralization"), False),
    "bias_correction": True,
    "loss_scale": 1.0,
}
"""What a setting is that an optimizer does not have."""

CAUSES: Mapping[str, str] = {
    "lr": "optimizer-learning-rate",
    "decoupled": "adam-weight-decay-l2-vs-decoupled",
    "bias_correction": "adamweightdecay-no-bias-correction",
    "weight_decay": "optimizer-weight-decay",
    "momentum": "optimizer-momentum",
    "dampening": "optimizer-dampening",
    "nesterov": "optimizer-nesterov",
    "beta1": "optimizer-betas",
    "beta2": "optimizer-betas",
    "eps": "optimizer-eps",
    "amsgrad": "optimizer-amsgrad",
    "alpha": "optimizer-alpha",
    "centered": "rmsprop-centered",
}
OTHER = "optimizer-setting"

OPTIMIZED = "optimized"
"""Whether an optimizer has the parameter at all, as if it were a setting."""

CLOSE = 1e-6
"""Settings that differ by no more than float32 makes of a number are the same."""


@dataclass(frozen=True)
class Difference:
    """A setting that is another one for these parameters."""

    setting: str
    reference: Attribute
    port: Attribute
    owners: tuple[Owner, ...]

    def suspect(self, total: int, names: Mapping[Owner, str], filtered: bool) -> Suspect:
        """As a cause; `filtered`: the port's framework leaves parameters of these names out by itself."""
        cause = "weight-decay-gamma-beta-filter" if filtered else CAUSES.get(self.setting, OTHER)
        shown = ", ".join(names.get(owner, ".".join(owner).lstrip(".")) for owner in self.owners[:SHOWN])
        return Suspect(
            cause,
            {
                "setting": self.setting,
                "reference_value": told(self.reference),
                "port_value": told(self.port),
                "count": len(self.owners),
                "total": total,
                "parameters": shown + (", ..." if len(self.owners) > SHOWN else ""),
            },
            {self.setting: self.reference},
            weight=0.9,
        )


SHOWN = 3
"""Parameters that are named."""


def told(value: Attribute) -> str:
    """A setting as people write it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def differences(
    reference: Mapping[Owner, Mapping[str, Attribute]],
    port: Mapping[Owner, Mapping[str, Attribute]],
    owners: Iterable[Owner],
) -> list[Difference]:
    """Those of parameters that both sides' optimizers update, by setting and values, the most parameters first."""
    found: dict[tuple[str, Attribute, Attribute], list[Owner]] = {}
    for owner in owners:
        ours, theirs = reference.get(owner), port.get(owner)
        if ours is None or theirs is None:
            continue
        for name in dict.fromkeys(name for name in (*ours, *theirs) if name != EPS_FIRST):
            one, other = (side.get(name, NEUTRAL.get(name)) for side in (ours, theirs))
            if one is not None and other is not None and not same(one, other) and not idle(name, ours, theirs):
                found.setdefault((name, one, other), []).append(owner)
    made = [Difference(*key, tuple(those)) for key, those in found.items()]
    return sorted(made, key=lambda one: (-len(one.owners), ORDER.index(one.setting) if one.setting in ORDER else 99))


ORDER: Sequence[str] = tuple(CAUSES)


def same(one: Attribute, other: Attribute) -> bool:
    """Whether two settings are one, to the rounding of float32."""
    if isinstance(one, bool) or isinstance(other, bool):
        return bool(one) == bool(other)
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return abs(one - other) <= CLOSE * max(abs(one), abs(other))
    return one == other


def idle(name: str, ours: Mapping[str, Attribute], theirs: Mapping[str, Attribute]) -> bool:
    """Whether a setting does nothing on either side, for want of another one."""
    needed = {"dampening": "momentum", "nesterov": "momentum", "decoupled": "weight_decay"}.get(name)
    if needed is None:
        return False
    return not any(_plain(side.get(needed)) for side in (ours, theirs))


def _plain(value: Optional[Attribute]) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
