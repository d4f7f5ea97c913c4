"""Copies of layers with some settings changed.

A copy is made by copy.deepcopy, so that it is the layer in every respect that nobody thought of. Which of its
attributes a setting stands in is not known here: two fresh layers are built, one with the layer's settings and one with
the changed ones, and wherever these two differ, the copy is made to be like the second. So a transformer layer's eps
reaches the norms inside it, and a convolution's padding the table that its padding mode reads.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Optional, Protocol

from aligner.record import Attribute, LayerSpec
from aligner.vocabulary import settled
from aligner_hooks.torchlike.constructions import Constructions, is_recurrent
from aligner_hooks.torchlike.layers import Layers

# Said in two ways with one meaning (padding="same"): always as the changed settings say it.
_SAID_ANEW = ("padding", "_reversed_padding_repeated_twice")
# Tables of the weights themselves, which recurrent layers keep beside the registered ones.
_OF_WEIGHTS = ("_flat_weights", "_flat_weight_refs")
_STARTS = {"bias": 0.0, "running_mean": 0.0, "running_var": 1.0, "num_batches_tracked": 0.0}


class Values(Protocol):
    """What copying asks of a package's tensors."""

    def cast(self, model: Any, dtype: str) -> None:
        """Put all floating tensors of a net into this dtype."""

    def own(self, tensor: Any) -> Optional[Any]:
        """A tensor of its own with the same values, for one that copy.deepcopy must not be given; else None."""

    def full(self, like: Any, start: float, beside: Any) -> Any:
        """A tensor or parameter of that shape filled with a number; of the type and at the place of `beside`, if any.

        One that is no floating tensor keeps its type.
        """


class Copies:
    """Copies of one package's layers. `kept(hook)` says which hooks of a layer are part of it (weight_norm)."""

    def __init__(
        self, layers: Layers, constructions: Constructions, values: Values, kept: Callable[[Any], bool]
    ) -> None:
        self._layers = layers
        self._constructions = constructions
        self._specs = constructions.specs
        self._values = values
        self._kept = kept

    def respecified(self, layer: Any, changes: Mapping[str, Attribute], dtype: Optional[str]) -> Any:
        """A copy of the layer with these settings, in this dtype.

        Raises:
            ValueError: it cannot be copied, or not with these settings; the text says why.
        """
        original = self._layers.unwrapped(layer)
        changed = self.copied(original)
        if changes:
            known = self._specs.read(original)
            wanted = _wanted(known, changes)
            if self._specs.known_class(original) is None:
                self._set_own(changed, changes)
            else:
                changed = self._changed(original, changed, wanted)
            found = self._specs.read(changed)
            if found != LayerSpec(known.kind, wanted):
                off = [
                    f"{word}={found.attributes.get(word)!r}"
                    for word in wanted
                    if found.attributes.get(word) != wanted[word]
                ]
                raise ValueError(f"no {known.kind} is made with these settings: it would have {', '.join(off)}")
        if dtype is not None:
            self._values.cast(changed, dtype)
        return changed

    def copied(self, layer: Any) -> Any:
        """A deep copy without hooks, but for those by which torch computes weights (weight_norm)."""
        memo: dict[int, Any] = {}
        for place in self._layers.walk(layer):
            if not isinstance(place.content, self._layers.scripted):
                memo.update(self.instead(place.content))
        try:
            return copy.deepcopy(layer, memo)
        except Exception as error:  # a layer of the user's own may hold anything, and copying it may raise anything
            raise ValueError(f"{self._specs.type_name(layer)} cannot be copied: {error}") from error

    def instead(self, module: Any) -> Iterator[tuple[int, Any]]:
        """What is to stand in the copy in place of hooks and of tensors that a graph holds, which cannot be copied."""
        for name, value in vars(module).items():
            if name.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called")) and isinstance(value, dict):
                kept = {number: hook for number, hook in value.items() if self._kept(hook)}
                yield id(value), type(value)(kept)
        own_tables = (*module._parameters.values(), *module._buffers.values())
        for tensor in (*self._layers.plain_tensors(module), *own_tables):
            own = None if tensor is None else self._values.own(tensor)
            if own is not None:
                yield id(tensor), own

    def _set_own(self, layer: Any, changes: Mapping[str, Attribute]) -> None:
        """Settings of a layer of the user's own are its plain attributes."""
        if isinstance(layer, self._layers.scripted):
            reason = "the settings of a scripted layer are compiled into it"
            raise ValueError(reason)  # noqa: TRY004 - the contract's word for all that cannot be changed
        for name, value in changes.items():
            if name not in vars(layer):
                raise ValueError(f"{self._specs.type_name(layer)} keeps no {name} that could be changed")
            vars(layer)[name] = (
                list(value) if isinstance(vars(layer)[name], list) and isinstance(value, tuple) else value
            )

    def _changed(self, original: Any, copied: Any, wanted: Mapping[str, Attribute]) -> Any:
        now: Any = self._constructions.built(original)
        then: Any = self._constructions.built(original, wanted)
        own: Any = self._specs.written(type(original))
        if type(now) is type(then) and issubclass(own, type(then)):
            self._follow(copied, now, then, self._specs.read(original).kind)
            return copied
        if next(original.parameters(), None) is not None or self._specs.known_class(original) is not own:
            raise ValueError(f"with these settings it would be a {type(then).__name__}, another class")
        return then.train(original.training)

    def _follow(self, layer: Any, now: Any, then: Any, kind: str) -> None:
        """Have `layer` differ from what it was as `then` differs from `now`."""
        table = vars(layer)
        for name, value in self._settings(then):
            if name in _SAID_ANEW or name not in vars(now) or _differ(vars(now)[name], value):
                layer._modules.pop(name, None)  # an activation given as a layer
                table[name] = value
        for kept, before, after in (
            (layer._parameters, now._parameters, then._parameters),
            (layer._buffers, now._buffers, then._buffers),
        ):
            for name in {**before, **after}:
                self._follow_tensor(layer, kept, name, before.get(name), after.get(name), kind)
                if name not in after:
                    kept.pop(name, None)
                elif after[name] is not None:
                    table.pop(name, None)  # what said in its place that there is none
        for name, child in then._modules.items():
            inner = layer._modules.get(name)
            if not isinstance(child, self._constructions.nn.Module):
                continue  # what the package computes with, and no layer: it has no settings
            if inner is None or now._modules.get(name) is None:
                raise ValueError(f"with these settings a {kind} has other layers inside it")
            self._follow(inner, now._modules[name], child, self._specs.read(inner).kind)
        if is_recurrent(type(layer)):
            _list_weights(layer)

    def _settings(self, layer: Any) -> Iterator[tuple[str, Any]]:
        """Attributes that are neither the package's own tables nor weights."""
        skipped = {*self._layers.own_attributes(), *_OF_WEIGHTS, *self._layers.plain_tensor_names(layer)}
        return ((name, value) for name, value in vars(layer).items() if name not in skipped)

    def _follow_tensor(self, layer: Any, kept: dict[str, Any], name: str, before: Any, after: Any, kind: str) -> None:
        """One parameter or buffer: taken away, or added with values that change nothing; another shape is refused."""
        if before is not None and after is not None:
            if before.shape != after.shape:
                shapes = f"{tuple(after.shape)} instead of {tuple(before.shape)}"
                raise ValueError(f"with these settings the {name} of a {kind} has shape {shapes}")
        elif before is not None:
            kept[name] = None
        elif after is not None:
            start = 0.0 if "bias" in name else _STARTS.get(name)
            if start is None and name == "weight" and kind.endswith("Norm"):
                start = 1.0
            if start is None:
                raise ValueError(f"with these settings a {kind} has weights that this one does not have: {name}")
            kept[name] = self._fresh(layer, after, start)

    def _fresh(self, layer: Any, like: Any, start: float) -> Any:
        """A tensor of that shape where the layer's other ones are, and of their type if it is a floating one."""
        beside = next((tensor for tensor in layer.parameters() if tensor.is_floating_point()), None)
        return self._values.full(like, start, beside)


def _wanted(known: LayerSpec, changes: Mapping[str, Attribute]) -> Mapping[str, Attribute]:
    strange = sorted(set(changes) - set(known.attributes))
    if strange:
        raise ValueError(f"{known.kind} has no setting {', '.join(strange)}")
    return settled(known.kind, {**known.attributes, **changes})


def _list_weights(layer: Any) -> None:
    """A recurrent layer's own list of its weights, which is what it computes with."""
    if hasattr(layer, "_init_flat_weights"):
        layer._init_flat_weights()
        return
    if not hasattr(layer, "_flat_weights_names"):
        return  # mindnlp's has lists of its own, of the tensors that it keeps
    layer._flat_weights = [getattr(layer, name, None) for name in layer._flat_weights_names]
    layer.flatten_parameters()


def _differ(one: Any, other: Any) -> bool:
    return type(one) is not type(other) or bool(one != other)
