"""The layers of a net and their paths, in any package whose modules are torch's or like them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Optional

# How deep layers are looked for in plain lists of lists; a deeper nesting is data, not layers.
_PLAIN_DEPTH = 3


@dataclass(frozen=True, eq=False)
class Place:
    """A layer where it stands. `path` is the canonical one, `raw` the one torch prints in a state_dict.

    `module` is what is called and observed, `content` the layer itself: they differ where a wrapper (torch.compile,
    data parallel) stands around it. `registered` is false for a layer in a plain list or dict, which the package does
    not know of.
    """

    path: str
    raw: str
    module: Any
    content: Any
    registered: bool = True


class Layers:
    """The layers of one package's nets: `nn` is where its classes are, `tensor` is the class of its tensors.

    `wrapped(module)` is the name under which a wrapper that has no place in a port holds the layer, or "".
    `parametrized(module)` says whether weights of a layer are computed by modules of its own. Layers of the classes
    `scripted` live outside of Python: they are not looked into.

    Modules are instances of `module`, or else of `nn.Module`. A package whose nets are looked through in another way
    overrides `children` and `modules`.
    """

    def __init__(
        self,
        nn: Any,
        tensor: Any,
        wrapped: Callable[[Any], str],
        parametrized: Callable[[Any], bool],
        scripted: tuple[type, ...] = (),
        module: Any = None,
    ) -> None:
        self.nn = nn
        self.module = nn.Module if module is None else module
        self.parametrized = parametrized
        self.scripted = scripted
        self._tensor = tensor
        self._wrapped = wrapped
        self._own: Optional[frozenset[str]] = None

    # What a package may do otherwise.

    def children(self, module: Any) -> Mapping[str, Any]:
        """What stands inside a module, by name."""
        found: Mapping[str, Any] = module._modules
        return found

    def modules(self, model: Any) -> Iterator[Any]:
        """All modules that the package knows of."""
        found: Iterator[Any] = model.modules()
        return found

    # How it works.

    def walk(self, model: Any) -> Iterator[Place]:
        """Every layer once, parents before children, in the order they are defined."""
        registered = {id(module) for module in self.modules(model)}
        return self._walk("", "", model, True, registered, set())

    def _walk(
        self, path: str, raw: str, module: Any, is_registered: bool, registered: set[int], seen: set[int]
    ) -> Iterator[Place]:
        inside, content = self._unwrap(module)
        raw = join(raw, inside) if inside else raw
        if id(content) in seen:
            return
        seen.add(id(content))
        yield Place(path, raw, module, content, is_registered)
        for name, child in self.children(content).items():
            # What computes a weight from others (weight_norm) is part of the layer, not a layer of the net.
            if isinstance(child, self.module) and not (name == "parametrizations" and self.parametrized(content)):
                yield from self._walk(join(path, name), join(raw, name), child, is_registered, registered, seen)
        for name, child in self._plain(content, self.module):
            if id(child) not in registered:
                registered.update(id(inner) for inner in self.modules(child))
                yield from self._walk(join(path, name), join(raw, name), child, False, registered, seen)

    def unwrapped(self, module: Any) -> Any:
        """The layer inside the wrappers that have no place in a port, or the layer itself."""
        return self._unwrap(module)[1]

    def _unwrap(self, module: Any) -> tuple[str, Any]:
        """The path through such wrappers, and what stands inside them."""
        inside = ""
        while True:
            name = self._wrapped(module)
            if not name:
                return inside, module
            inside, module = join(inside, name), module._modules[name]

    def plain_parameters(self, model: Any, module: Any) -> Iterator[tuple[str, Any]]:
        """Parameters in plain attributes of a layer that no layer of the net has registered.

        A plain list of registered ones (an LSTM's own _flat_weights) is only another way to reach them.
        """
        found = list(self._plain(module, self.nn.Parameter))
        if found:
            registered = {id(owned) for inner in self.modules(model) for owned in inner._parameters.values()}
            yield from ((name, parameter) for name, parameter in found if id(parameter) not in registered)

    def plain_tensors(self, module: Any) -> Iterator[Any]:
        """Tensors in plain attributes of a layer, which no state_dict knows of."""
        yield from (tensor for _, tensor in self._plain(module, self._tensor))

    def plain_tensor_names(self, module: Any) -> set[str]:
        """The plain attributes in which such tensors stand, alone or in a list."""
        return {name.partition(".")[0] for name, _ in self._plain(module, self._tensor)}

    def _plain(self, module: Any, wanted: Any) -> Iterator[tuple[str, Any]]:
        """What stands in a layer's plain attributes: directly, or in lists, tuples and dicts."""
        if isinstance(module, self.scripted):
            return  # its attributes live in C++, and looking at one can run code
        for name, value in vars(module).items():
            if name not in self.own_attributes():
                yield from _search(name, value, wanted, 0)

    def own_attributes(self) -> frozenset[str]:
        """The attributes every module has, which hold the package's own tables."""
        if self._own is None:
            self._own = frozenset(vars(self.nn.Module()))
        return self._own

    def set_training(self, model: Any, training: bool) -> None:
        """Put the net into a mode, layers in plain lists included."""
        model.train(training)
        for place in self.walk(model):
            if not place.registered:
                place.module.train(training)


def _search(name: str, value: Any, wanted: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, wanted):
        yield name, value
    elif depth < _PLAIN_DEPTH and isinstance(value, (list, tuple, dict)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            # Most containers hold numbers or words: decide before a path is made.
            if isinstance(item, (wanted, list, tuple, dict)):
                yield from _search(f"{name}.{key}", item, wanted, depth + 1)


def join(path: str, name: str) -> str:
    """The path of what is called `name` inside `path`."""
    return f"{path}.{name}" if path else name
