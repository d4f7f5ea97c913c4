"""What cannot be captured is refused before a net has trained, and leaves no dump."""

from __future__ import annotations

import pytest

from aligner import registry
from aligner.capture.options import Options
from aligner.capture.progress import Progress
from aligner.capture.session import Capture
from aligner.capture.watch import Watch
from aligner.errors import CaptureError

torch = pytest.importorskip("torch", reason="it needs an adapter that runs")
from aligner_hooks.torch_ import TorchAdapter  # noqa: E402 - only after it is known to be there


class TellsOfNoTraining(TorchAdapter):
    """As an adapter that was written before there was such a thing."""

    def __getattribute__(self, name):
        if name in ("on_gradient", "updates", "optimizer", "trained"):
            raise AttributeError(name)
        return super().__getattribute__(name)


def test_a_capture_is_refused_before_there_is_a_dump(tmp_path):
    capture = Capture(TellsOfNoTraining(), torch.nn.Linear(2, 2), tmp_path / "a.h5", Options(gradients=True))
    with pytest.raises(CaptureError, match="does not tell of gradients"), capture:
        pytest.fail("it was entered")
    assert list(tmp_path.iterdir()) == []


def test_a_script_is_ended_before_its_net_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "load", lambda name: TellsOfNoTraining())
    ran = []
    net = torch.nn.Linear(2, 2)
    net.register_forward_hook(lambda *_: ran.append(1))
    watch = Watch(str(tmp_path / "a.h5"), lambda: Options(gradients=True), None, Progress(None))
    watch.on_import("torch")
    with pytest.raises(SystemExit) as ended:
        net(torch.ones(1, 2))
    watch.close()
    assert (ended.value.code, ran, watch.capture) == (0, [], None)
    assert "does not tell of gradients" in str(watch.failure)
    assert list(tmp_path.iterdir()) == []


def test_forward_passes_alone_are_captured(tmp_path):
    net = torch.nn.Linear(2, 2)
    with Capture(TellsOfNoTraining(), net, tmp_path / "a.h5", Options()) as capture:
        net(torch.ones(1, 2))
    assert capture.steps == 1
