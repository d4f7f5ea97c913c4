"""A capture while the net runs inside MindSpore's transforms: what cannot be seen is noted, the net's numbers stay."""

from __future__ import annotations

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")

from mindspore import Tensor, nn, ops  # noqa: E402 - only where MindSpore is installed

from aligner import registry  # noqa: E402 - likewise
from aligner.capture.session import Capture, Options  # noqa: E402 - likewise
from aligner.dump.reader import Dump  # noqa: E402 - likewise

X = Tensor(np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.act, self.last = nn.Dense(4, 4), nn.ReLU(), nn.Dense(4, 2)

    def construct(self, x):
        return self.last(self.act(self.first(x)))


TRANSFORMS = {
    "grad": lambda net: mindspore.grad(lambda x: net(x).sum())(X),
    "value_and_grad": lambda net: mindspore.value_and_grad(lambda x: net(x).sum(), 0, net.trainable_params())(X)[1][0],
    "vjp": lambda net: mindspore.vjp(net, X)[1](ops.ones((3, 2)))[0],
    "vmap": lambda net: mindspore.vmap(net)(X),
}


@pytest.mark.parametrize("listening", [{}, {"operations": True, "follow": True}], ids=["alone", "listening"])
@pytest.mark.parametrize("name", list(TRANSFORMS))
def test_the_capture_goes_on_and_the_numbers_are_the_nets(tmp_path, name, listening):
    net = Net()
    plain, wanted = net(X).asnumpy(), TRANSFORMS[name](net).asnumpy()
    with Capture(registry.load("mindspore"), net, tmp_path / "x.h5", Options(**listening)) as capture:
        first = net(X).asnumpy()
        made = TRANSFORMS[name](net).asnumpy()
        last = net(X).asnumpy()
    assert np.array_equal(made, wanted)
    assert np.array_equal(first, plain)
    assert np.array_equal(last, plain)
    with Dump(tmp_path / "x.h5") as dump:
        notes = {note.message for note in dump.notes}
        steps = {entry.key.step for entry in dump.entries if entry.key.phase.value == "forward"}
    assert notes == ({"mindspore-untold"} if name == "vmap" else set())
    assert {0, capture.steps - 1} <= steps, "the run after it is recorded as well"
