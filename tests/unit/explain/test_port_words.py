"""A port is told what to write in its own framework's words: MindSpore's, or torch's, which MindTorch's are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aligner.explain import port_words
from aligner.explain.attributes import suspects
from aligner.explain.case import TORCH
from aligner.explain.catalogue import catalogue, sentences, torch_words
from tests.unit.explain.cases import case

# Kind, the reference's settings, those that differ in the port, and how each framework writes the reference's.
WRITTEN = [
    ("LayerNorm", {"eps": 1e-5}, {"eps": 1e-7}, "nn.LayerNorm(..., epsilon=1e-05)", "nn.LayerNorm(..., eps=1e-05)"),
    ("Linear", {"bias": True}, {"bias": False}, "nn.Dense(..., has_bias=True)", "nn.Linear(..., bias=True)"),
    ("GELU", {"approximate": "none"}, {"approximate": "tanh"}, "nn.GELU(approximate=False)", None),
    ("LeakyReLU", {"negative_slope": 0.1}, {"negative_slope": 0.2}, "nn.LeakyReLU(alpha=0.1)", None),
    ("Softmax", {"dim": 1}, {"dim": -1}, "nn.Softmax(axis=1)", "nn.Softmax(dim=1)"),
    (
        "Conv2d",
        {"padding": ((1, 1), (2, 2))},
        {"padding": ((0, 0), (0, 0))},
        "nn.Conv2d(..., pad_mode='pad', padding=(1, 1, 2, 2))",
        "nn.Conv2d(..., padding=(1, 2))",
    ),
    (
        "ConvTranspose2d",
        {"padding": ((1, 1), (1, 1))},
        {"padding": ((0, 0), (0, 0))},
        "nn.Conv2dTranspose(..., pad_mode='pad', padding=1)",
        "nn.ConvTranspose2d(..., padding=1)",
    ),
]
MINDSPORES = ("MindSpore", "has_bias", "pad_mode", "epsilon", "nn.Dense", "ops.", "mint.", "embedding_table", "ms.")


@pytest.mark.parametrize(("kind", "wanted", "found", "mindspore", "torch"), WRITTEN, ids=[row[0] for row in WRITTEN])
def test_a_setting_is_written_in_the_ports_own_words(kind, wanted, found, mindspore, torch):
    wrong = case(kind, wanted, found)
    assert port_words.written(wrong, wrong.reference, wanted) == mindspore
    name, value = next(iter(wanted.items()))
    own = port_words.written(replace(wrong, words=TORCH), wrong.reference, wanted)
    assert own == (torch or f"nn.{kind}({name}={value!r})")


@pytest.mark.parametrize(("kind", "wanted", "found"), [row[:3] for row in WRITTEN], ids=[row[0] for row in WRITTEN])
def test_a_port_in_torchs_words_is_told_nothing_of_mindspores(kind, wanted, found):
    """nn.LayerNorm(..., epsilon=1e-05) is an error in MindTorch."""
    first, *_ = suspects(replace(case(kind, wanted, found), words=TORCH))
    for language in ("en", "zh"):
        told = sentences(first.cause, {**first.facts, "words": "torch"}, language)
        assert not [word for word in MINDSPORES if word in " ".join(told)], told
        assert "<" not in " ".join(told)


def test_parameters_have_torchs_names():
    wrong = case("LayerNorm", {"eps": 1e-5})
    assert port_words.parameter(wrong, "weight") == "gamma"
    assert port_words.parameter(replace(wrong, words=TORCH), "weight") == "weight"


def test_every_other_wording_is_of_a_known_cause_and_free_of_mindspore():
    known = catalogue()
    for entry in torch_words.entries(known):
        assert entry.id in known
        title = entry.title if entry.title != known[entry.id].title else ()  # MindSpore's tanh is that of MindTorch
        told = " ".join((*title, *entry.fix))
        assert not [word for word in MINDSPORES if word in told], entry.id


def test_no_cause_tells_a_port_in_torchs_words_to_write_what_torch_does_not_have():
    own = {entry.id: entry for entry in torch_words.entries(catalogue())}
    foreign = (
        *(word for word in MINDSPORES if word not in ("MindSpore", "ms.")),
        "set_train",
        "moving_",
        "Cell",
        "ms.T",
    )
    for cause, entry in catalogue().items():
        entry = own.get(cause, entry)
        for told in (*entry.title, *entry.evidence, *entry.fix):
            assert not [word for word in foreign if word in told], (cause, told)


def test_a_fact_that_is_not_known_leaves_the_common_wording():
    title, _, fix = sentences("layernorm-eps-default", {"words": "torch", "port_value": 1, "reference_value": 2}, "en")
    assert "<setting>" not in title
    assert fix.startswith("Write <written>")
