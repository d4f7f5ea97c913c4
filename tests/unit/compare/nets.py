"""Small nets in numpy, written once for both sides: a port is the same net with other names, nesting or one change."""

from __future__ import annotations

import numpy as np

from tests.unit.compare.memory_dump import Recorder


def relu(x):
    return np.maximum(x, 0)


class Side:
    """Builds one side. `name` renames paths, `change` is {canonical path: function of its output}."""

    def __init__(self, rename=None, change=None, noise=0.0, header=None, seed=0, kinds=None):
        self.net = Recorder("Net", **(header or {}))
        self.rename, self.change, self.noise = rename or (lambda path: path), change or {}, noise
        self.weights = np.random.default_rng(seed)
        self.kinds = kinds or {}
        self._known = {}

    def _changed(self, path, function):
        def run(*values):
            result = function(*values)
            if path in self.change:
                result = self.change[path](result)
            if self.noise:
                wobble = np.sin(np.arange(np.size(result), dtype=np.float64)).reshape(np.shape(result))
                result = result * (1 + self.noise * wobble)
            return np.asarray(result, np.float32)

        return run

    def weight(self, path, shape):
        """The weight of a layer, the same on both sides whatever its name."""
        key = sum(map(ord, path)) * 1000 + sum(shape)
        return (np.random.default_rng(key).standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    def linear(self, path, x, width):
        w = self.weight(path, (x.shape[-1], width))
        name = self.rename(path)
        if name not in self._known:
            self._known[name] = True
            self.net.parameter(name, "Linear", "weight", self.change.get(f"{path}.weight", lambda w: w)(w))
        return self.net.call(name, self.kinds.get(path, "Linear"), self._changed(path, lambda v: v @ w), x)

    def norm(self, path, x):
        name = self.rename(path)
        if name not in self._known:
            self._known[name] = True
            self.net.parameter(name, "LayerNorm", "weight", np.ones(x.shape[-1], np.float32))

        def function(v):
            return (v - v.mean(-1, keepdims=True)) / np.sqrt(v.var(-1, keepdims=True) + 1e-5)

        return self.net.call(name, "LayerNorm", self._changed(path, function), x)

    def act(self, path, x, kind="ReLU"):
        name = self.rename(path)
        if name is None:  # written as a function
            return self._changed(path, relu)(x)
        return self.net.call(name, self.kinds.get(path, kind), self._changed(path, relu), x)

    def block(self, path, function, *inputs, kind="Block"):
        name = self.rename(path)
        if name is None:  # one level less
            return self._changed(path, function)(*inputs)
        return self.net.call(name, self.kinds.get(path, kind), self._changed(path, function), *inputs)


def sample(rows=8, width=16, seed=1):
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


def residual_net(side, blocks=3, x=None, wrapper=None, skip=None, glue=None):
    """x -> stem -> blocks of (fc1, act, fc2) + x, norm -> head. `glue(i, y, x)` is the block's own code."""
    glue = glue or (lambda i, y, x: y + x)
    x = sample() if x is None else x

    def one(i):
        def body(v):
            y = side.linear(f"blocks.{i}.fc1", v, 24)
            y = side.act(f"blocks.{i}.act", y)
            y = side.linear(f"blocks.{i}.fc2", y, v.shape[-1])
            y = glue(i, y, v)
            return side.norm(f"blocks.{i}.norm", y)

        return body

    def net(v):
        v = side.linear("stem", v, 16)
        for i in range(blocks):
            if i == skip:
                continue
            if wrapper:
                inner = one(i)
                v = side.net.call(
                    f"{wrapper}.{i}", "Wrapper", lambda u, i=i, f=inner: side.block(f"blocks.{i}", f, u), v
                )
            else:
                v = side.block(f"blocks.{i}", one(i), v)
        return side.linear("head", v, 5)

    side.block("", net, x, kind="Net")
    return side.net


def dump(**options):
    kept = {k: options.pop(k) for k in ("rename", "change", "noise", "header", "kinds") if k in options}
    return residual_net(Side(**kept), **options).dump()
