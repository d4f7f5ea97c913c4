"""Runs a net and notes what its layers compute in."""

from __future__ import annotations


def told(adapter, net, inputs):
    """What switches say of each layer while its call begins, and the types its operators run in."""
    switches, computed, stack = {}, {}, []
    handles = [adapter.computations(lambda word, made: computed.setdefault(stack[-1], {}).setdefault(made, word))]
    for path, layer in adapter.layers(net):

        def before(args, kwargs, path=path, layer=layer):
            stack.append(path)
            switches[path] = adapter.precision(net, layer)

        handles.append(adapter.observe(layer, before, lambda *_: stack.pop()))
    try:
        with adapter.running(net):
            net(inputs)
    finally:
        for handle in reversed(handles):
            handle.remove()
    return switches, {path: set(types) for path, types in computed.items()}
