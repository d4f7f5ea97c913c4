"""What an adapter's author supplies, and what the checks share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from aligner.adapter import Adapter
from aligner.dtypes import DTYPES
from aligner.record import Array
from aligner.testing.nets import NETS
from aligner.testing.recorder import Recorder


class Supplies:
    """Override the methods of the first half; the checks call nothing else of the framework."""

    #: Dtypes of which the framework can hold tensors here; leave one out only where it has none or cannot read it.
    dtypes: Sequence[str] = tuple(DTYPES)

    #: Whether the framework tells of the operations that run here.
    tells_operations: bool = True

    #: Whether nets may run in two threads at once.
    runs_in_threads: bool = True

    #: Whether the framework's own optimizers run here.
    updates_run: bool = True

    def make_adapter(self) -> Adapter:
        """The adapter under test."""
        raise NotImplementedError

    def make_net(self, name: str) -> Any:
        """A fresh net as aligner.testing.nets describes it."""
        raise NotImplementedError

    def gradients(self, net: Any, x: Any) -> Sequence[Any]:
        """Run `net` on `x` and return the gradients of the sum of its output: of `x`, then of each parameter."""
        raise NotImplementedError

    def training(self, net: Any) -> tuple[Any, Callable[[Any], object]]:
        """An SGD of lr 0.1 and momentum 0.9 for `net`, and what makes one update with it, as users do, on an input: of
        the gradients of the sum of the output. Only where the adapter tells of training."""
        raise NotImplementedError

    def spec_layers(self) -> Iterable[Any]:
        """Layers of every class that aligner.vocabulary has a word for, one or more of each."""
        raise NotImplementedError

    def transposed(self, tensor: Any) -> Any:
        """The transpose of a matrix without moving its values, where the framework has such views."""
        raise NotImplementedError

    def add_in_place(self, tensor: Any, amount: float) -> None:
        """Add to a tensor's values in place."""
        raise NotImplementedError

    def unreadable(self) -> Iterable[Any]:
        """Tensors that have no values to read (on a meta device, symbolic); none by default."""
        return ()

    # From here on: what the checks share.

    @pytest.fixture
    def adapter(self) -> Adapter:
        """The adapter, fresh for each check."""
        return self.make_adapter()

    def x(self, adapter: Adapter, name: str, seed: int = 0) -> Any:
        """An input for the net called `name`."""
        values = np.random.default_rng(seed).standard_normal(NETS[name].shape)
        return adapter.from_numpy(values.astype(np.float32), "float32")

    def run(self, adapter: Adapter, net: Any, x: Any) -> Mapping[str, Any]:
        """Run the net and return copies of its outputs by slot."""
        with adapter.running(net):
            return Recorder(adapter).arrays(net(x))

    def net(self, adapter: Adapter, name: str, training: bool = False) -> Any:
        """The net called `name` in train or eval mode."""
        net = self.make_net(name)
        adapter.set_training(net, training)
        return net


def same(left: Mapping[str, Array], right: Mapping[str, Array]) -> bool:
    """Whether two sets of arrays are equal bit by bit, NaN and negative zero included."""
    return left.keys() == right.keys() and all(equal_bits(left[slot], right[slot]) for slot in left)


def equal_bits(left: Array, right: Array) -> bool:
    """Whether two arrays agree in dtype, shape and every bit."""
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
