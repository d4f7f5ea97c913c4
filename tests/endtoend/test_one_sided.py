"""What one side alone gives is told and not held against the port; what is wrong beside it is found as ever."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mindspore", reason="MindSpore is not installed in this environment")

import aligner as aligner_  # noqa: E402 - only after the frameworks are known to be there
from aligner.capture.session import Options  # noqa: E402 - as above
from aligner.report import json_, text  # noqa: E402 - as above
from aligner.report.terminal import Terminal  # noqa: E402 - as above
from tests.endtoend import one_sided_nets as nets  # noqa: E402 - as above

RIGHT = {
    "nothing aside": ("", "", {}, set()),
    "weights against None": ("tuple scores weights", "tuple scores none", {}, {"outputs-lacking", "one-sided"}),
    "weights against the output alone": ("tuple scores weights", "", {"alone": True}, {"outputs-lacking", "one-sided"}),
    "None against weights": ("tuple scores none", "tuple scores weights", {}, {"one-sided"}),
    "a cache against nothing": ("output scores cache", "", {}, {"outputs-lacking"}),
    "a class of tensors against nothing": ("output scores holder", "", {}, {"outputs-unseen"}),
    "nothing against a cache": ("", "tuple scores pasts", {}, set()),
    "an output with names against a tuple": ("output scores hidden", "tuple scores hidden", {}, set()),
    "names in another order": ("dict scores hidden", "output hidden scores", {}, set()),
    "the names say another order than the places": (
        "output hidden scores",
        "tuple scores hidden",
        {},
        {"outputs-order"},
    ),
    "a loss in front": ("tuple loss scores", "", {}, {"outputs-lacking"}),
    "a loss in front in the port": ("", "tuple loss scores", {}, {"one-sided"}),
    "a loss in front of two": ("output loss scores hidden", "tuple scores hidden", {}, {"outputs-lacking"}),
    "a tuple against its first item": ("tuple scores hidden", "", {}, {"outputs-lacking"}),
    "an embedding read as a table": ("", "", {"table": True}, set()),
    "dropout in the port as well": ("", "", {"drop": True}, set()),
}
WRONG = {
    "an activation": ("tuple scores weights", "", ("act",), ("blocks.0", "activation-missing")),
    "a projection": (
        "tuple scores weights",
        "tuple scores none",
        ("projection",),
        ("blocks.0.attention", "layer-skipped"),
    ),
    "a norm": ("output loss scores", "", ("norm",), ("blocks.0", "layer-skipped")),
    "a scale": ("tuple scores weights", "", ("scale",), ("blocks.0.attention", None)),
    "the rows of a table": ("tuple loss scores", "", ("rows",), ("", None)),
    "a loss": ("output loss scores hidden", "tuple loss scores", ("loss",), ("", None)),
}
ORDERS = {
    "of one shape": ("tuple hidden rows", "tuple rows hidden"),
    "of other shapes": ("tuple scores hidden", "tuple hidden scores"),
    "of which one is lacking": ("tuple scores hidden rows", "tuple rows hidden"),
    "names against places": ("output hidden rows", "tuple rows hidden"),
}


def telling(net):
    """Weights that hide nothing."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, value in net.named_parameters():
            value.normal_(1.0 if value.ndim == 1 and name.endswith("weight") else 0.0, 0.4)
    return net.eval()


@pytest.fixture
def compared(tmp_path):
    def call(ours, theirs, **port):
        ids = torch.arange(2 * nets.ROWS).reshape(2, nets.ROWS) % nets.WORDS
        net, other = telling(nets.Torch(ours)), nets.Spore(theirs, **port)
        with torch.no_grad(), aligner_.capture(net, tmp_path / "ref.h5"):
            net(ids)
        replay = aligner_.replay(tmp_path / "ref.h5", other)
        other.set_train(False)
        with replay.capture(tmp_path / "port.h5", Options()):
            other(*replay.inputs(0))
        return aligner_.compare(tmp_path / "ref.h5", tmp_path / "port.h5")

    return call


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_port_is_aligned_and_what_was_not_compared_is_told(compared, name):
    ours, theirs, port, told = RIGHT[name]
    result = compared(ours, theirs, **port)
    assert result.aligned, result
    assert not result.origins
    assert not result.suspects
    assert {message for message, _ in result.warnings} == told
    lines = text.report_lines(result, Terminal(300))
    assert len([line for line in lines if line]) == 5 + (len(told) + 1 if told else 0)
    assert ("does not give" in lines[0]) is ("outputs-lacking" in told)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_beside_it_is_the_one_origin(compared, name):
    ours, theirs, wrong, (layer, told) = WRONG[name]
    result = compared(ours, theirs, wrong=wrong, table="rows" in wrong)
    assert result.outcome == "diverged"
    assert [origin.layer for origin in result.origins] == [layer]
    assert not told or result.origins[0].edit is not None


@pytest.mark.parametrize("name", ORDERS)
def test_outputs_in_the_wrong_order_are_not_excused_by_what_they_hold(compared, name):
    result = compared(*ORDERS[name])
    assert result.outcome == "diverged"
    assert [(origin.layer, origin.where) for origin in result.origins] == [("", "glue")]


@pytest.mark.parametrize("theirs", ["tuple none", "tuple holder"])
def test_a_port_that_gives_none_of_the_outputs_is_not_called_aligned(compared, theirs):
    result = compared("", theirs)
    assert (result.outcome, result.exit_code, result.origins) == ("incomparable", 3, ())
    shown = text.report_lines(result, Terminal(100))
    assert shown[0].startswith("INCOMPARABLE  the port gives none of the reference's outputs")
    assert not [verdict for verdict in result.verdicts if verdict.fails]


def test_it_is_told_in_chinese_in_json_and_counts_with_strict(compared, tmp_path, warm):
    result = compared("tuple scores weights", "")
    document = json_.document(result)
    assert [(one["side"], one["layer"], one["slot"], one["records"]) for one in document["not_compared"]] == [
        ("reference", "blocks.0.attention", "output.1", 1),
        ("reference", "blocks.0", "output.1", 1),
        ("reference", "blocks.1.attention", "output.1", 1),
        ("reference", "blocks.1", "output.1", 1),
        ("reference", "", "output.1.0", 1),
        ("reference", "", "output.1.1", 1),
    ]
    assert document["paired"] == {"name": len(result.layers)}
    assert document["elsewhere"]["by_value"] + document["elsewhere"]["by_effect"] == document["counts"]["covered"]
    chinese = "\n".join(text.report_lines(result, Terminal(100, language="zh")))
    assert "待比对网络未给出 output.1.0, output.1.1" in chinese
    assert "未作比对（仅由标杆给出）：blocks.0.attention output.1" in chinese
    assert "未给出" in result._repr_html_() or "does not give" in result._repr_html_()
    plain, strict = (warm("compare", "ref.h5", "port.h5", "--json", *more) for more in ((), ("--strict",)))
    assert (plain.returncode, strict.returncode) == (0, 1)
    assert json.loads(plain.stdout)["outcome"] == "aligned"
