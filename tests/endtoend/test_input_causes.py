"""Two nets that were captured each on its own data: what the data differ in is told, in words and for programs."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there

import aligner  # noqa: E402 - as above
from aligner import cli  # noqa: E402 - as above


@pytest.fixture
def dumps(tmp_path):
    """The same net on a picture, and on the same picture as bytes with its channels last."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 4)).eval()
    picture = torch.rand(2, 3, 8, 8)
    for name, x in (("ref", picture), ("bytes", picture * 255), ("last", picture.permute(0, 2, 3, 1).contiguous())):
        with torch.no_grad(), aligner.capture(net, tmp_path / f"{name}.h5"):
            net(x)
    return tmp_path


@pytest.mark.parametrize(("port", "cause"), [("bytes", "totensor-scale-missing"), ("last", "hwc-chw-not-transposed")])
def test_the_difference_of_the_data_is_named(dumps, capsys, port, cause):
    paths = [str(dumps / "ref.h5"), str(dumps / f"{port}.h5")]
    assert cli.main(["compare", *paths]) == 3
    assert "confirmed" in capsys.readouterr().out
    assert cli.main(["compare", *paths, "--json"]) == 3
    (origin,) = json.loads(capsys.readouterr().out)["origins"]
    assert origin["where"] == "inputs"
    assert origin["causes"][0]["id"] == cause
    assert origin["causes"][0]["confirmed"]
