"""One wrong line that runs in every layer of a net: explained once, and told of all of them."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there

import aligner  # noqa: E402 - as above
from aligner.capture.session import Options  # noqa: E402 - as above
from aligner.report import text  # noqa: E402 - as above
from aligner.report.terminal import Terminal  # noqa: E402 - as above

DEPTH = 6


class Block(nn.Module):
    """A part of the width is scaled; what `strange` does no rule knows."""

    def __init__(self, width, factor, strange):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(width, 24), nn.LayerNorm(24), nn.Linear(24, width)
        self.factor, self.strange = factor, strange

    def forward(self, x):
        y = self.norm(self.up(x))
        if self.strange:
            y = y + torch.sinh(y.flip(-1)) * torch.cumsum(y, 1).roll(3, -1) / 7.3
        return x + self.down(y * self.factor)


class Net(nn.Module):
    def __init__(self, factor=1.0, strange=False, eps=1e-5):
        super().__init__()
        self.blocks = nn.ModuleList([Block(8 + 4 * (n > 3), factor, strange) for n in range(DEPTH)])
        self.wide = nn.Linear(8, 12)
        for block in self.blocks:
            block.norm.eps = eps

    def forward(self, x):
        for number, block in enumerate(self.blocks):
            x = block(self.wide(x) if number == 4 else x)
        return x


def answer(tmp_path, **wrong):
    torch.manual_seed(0)
    reference, port = Net(), Net(**wrong)
    port.load_state_dict(copy.deepcopy(reference.state_dict()))
    reference.eval(), port.eval()
    with torch.no_grad(), aligner.capture(reference, tmp_path / "ref.h5"):
        reference(torch.randn(3, 10, 8))
    replay = aligner.replay(tmp_path / "ref.h5", port)
    with torch.no_grad(), replay.capture(tmp_path / "port.h5", Options(force=True)):
        port(*replay.inputs(0))
    return aligner.compare(tmp_path / "ref.h5", tmp_path / "port.h5")


def shown_in(result, language):
    """The text report without its blanks."""
    return "".join("".join(text.report_lines(result, Terminal(100, language=language))).split())


def test_one_line_of_many_layers_is_one_change(tmp_path):
    result = answer(tmp_path, factor=0.7)
    assert [origin.layer for origin in result.origins] == [f"blocks.{n}" for n in range(DEPTH)]
    assert {origin.causes[0].id for origin in result.origins} == {"code-edit"}
    assert len({origin.edit.hunks for origin in result.origins}) == 1
    for language, said in (("en", f"same in {DEPTH - 1} more"), ("zh", str(DEPTH - 1))):
        assert said.replace(" ", "") in shown_in(result, language)


def test_settings_and_lines_are_told_besides(tmp_path):
    result = answer(tmp_path, factor=0.7, eps=1e-3)
    assert len([o for o in result.origins if o.where == "glue"]) == DEPTH
    norm = next(origin for origin in result.origins if origin.layer == "blocks.0.norm")
    assert norm.causes[0].change == {"eps": 1e-5}
    assert norm.causes[0].confirmed
