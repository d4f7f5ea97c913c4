"""What packages with torch's interface share, on a package of plain Python."""

from __future__ import annotations

from aligner_hooks.torchlike.calls import Calls
from aligner_hooks.torchlike.settings import plain_own


class Callable:
    def __call__(self, x):
        return self.forward(x)


class Module(Callable):
    """A module that inherits its call, as MindTorch 0.3's do from MindSpore's cells."""

    def __init__(self):
        self.training, self.scale = True, 2

    def forward(self, x):
        return self.scale * x


def test_a_call_that_is_inherited_is_told_of_and_put_back():
    calls, module, told = Calls(Module), Module(), []
    handle = calls.observe(module, lambda args, kwargs: told.append(args), lambda a, k, output: told.append(output))
    roots = calls.watch_roots(told.append)
    assert module(3) == 6
    assert told == [module, (3,), 6]
    handle.remove()
    assert "__call__" in vars(Module), "somebody is still told"
    roots.remove()
    assert "__call__" not in vars(Module)
    assert module(3) == 6
    assert len(told) == 3


def test_a_call_that_somebody_has_wrapped_since_stays_wrapped():
    calls, module = Calls(Module), Module()
    handle = calls.observe(module, lambda *_: None, lambda *_: None)
    ours = Module.__call__
    Module.__call__ = lambda self, x: ours(self, x) + 1
    try:
        handle.remove()
        assert module(3) == 7
    finally:
        del Module.__call__


def test_settings_of_a_users_layer_leave_out_what_every_module_has():
    assert plain_own(Module()) == {"scale": 2}
    assert plain_own(Module(), {"scale"}) == {"training": True}
