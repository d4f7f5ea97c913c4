"""Parameters that are computed of several: what they come to, how they are taken apart, and damaged facts."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest

from aligner.compare.combined import FOLDED_BIAS, FOLDED_WEIGHT, NORMED, RAISED, Combined, Recipe

RNG = np.random.default_rng(0)

WEIGHT = Recipe(FOLDED_WEIGHT, (("weight", "c", "weight"), ("scale", "n", "weight"), ("variance", "n", "var")), 1e-3, 0)
ADDED = (("scale", "n", "weight"), ("shift", "n", "bias"), ("mean", "n", "mean"), ("variance", "n", "var"))
BIAS = Recipe(FOLDED_BIAS, ADDED, 1e-3, 0)
OWN_BIAS = Recipe(FOLDED_BIAS, (("bias", "c", "bias"), *ADDED), 1e-3, 0)
PLAIN = Recipe(FOLDED_BIAS, (("mean", "n", "mean"), ("variance", "n", "var")), 1e-3, 0)
PLAIN_WEIGHT = Recipe(FOLDED_WEIGHT, (("weight", "c", "weight"), ("variance", "n", "var")), 1e-3, 0)
LENGTH = Recipe(NORMED, (("length", "c", "g"), ("direction", "c", "v")), 0.0, 0)

MORE = Recipe(RAISED, (("base", "n", "weight"),), 1.0)


def shapes(recipe: Recipe) -> dict[str, tuple[int, ...]]:
    whole = {"weight": (4, 3, 2, 2), "direction": (4, 3), "length": (4, 1)}
    return {word: whole.get(word, (4,)) for word, *_ in recipe.parts}


def test_a_folded_norm_does_what_the_norm_does() -> None:
    weight, x = RNG.normal(size=(4, 3)), RNG.normal(size=(5, 3))
    scale, shift, mean, variance = RNG.normal(size=4), RNG.normal(size=4), RNG.normal(size=4), RNG.uniform(0.5, 2, 4)
    values = {"weight": weight, "scale": scale, "shift": shift, "mean": mean, "variance": variance}
    wanted = (x @ weight.T - mean) / np.sqrt(variance + 1e-3) * scale + shift
    folded = x @ WEIGHT.made(values).T + BIAS.made(values)
    assert np.allclose(folded, wanted, rtol=1e-12)
    with_bias = (x @ weight.T + 0.7 - mean) / np.sqrt(variance + 1e-3) * scale + shift
    assert np.allclose(x @ WEIGHT.made(values).T + OWN_BIAS.made({**values, "bias": np.full(4, 0.7)}), with_bias)


@pytest.mark.parametrize("recipe", [WEIGHT, BIAS, OWN_BIAS, PLAIN, PLAIN_WEIGHT, LENGTH, MORE])
def test_what_is_taken_apart_comes_to_the_same(recipe: Recipe) -> None:
    value = RNG.normal(size=recipe.shape(shapes(recipe)))
    parts = recipe.apart(value, shapes(recipe))
    assert {word: part.shape for word, part in parts.items()} == shapes(recipe)
    assert np.allclose(recipe.made(parts), value, rtol=1e-12)


@pytest.mark.parametrize(("one", "other"), [(WEIGHT, BIAS), (WEIGHT, OWN_BIAS), (PLAIN_WEIGHT, PLAIN)])
def test_both_recipes_of_a_norm_ask_for_the_same_of_it(one: Recipe, other: Recipe) -> None:
    """The two are loaded one after the other."""
    parts = [recipe.apart(RNG.normal(size=recipe.shape(shapes(recipe))), shapes(recipe)) for recipe in (one, other)]
    for word in parts[0].keys() & parts[1].keys():
        assert np.array_equal(parts[0][word], parts[1][word])


def test_a_row_of_zeros_has_a_direction_all_the_same() -> None:
    value = RNG.normal(size=(4, 3))
    value[1] = 0
    parts = LENGTH.apart(value, shapes(LENGTH))
    assert np.isfinite(LENGTH.made(parts)).all()
    assert np.allclose(LENGTH.made(parts), value)


@pytest.mark.parametrize(("axis", "over"), [(0, (1,)), (1, (0,)), (None, (0, 1))])
def test_a_length_for_each_place_of_an_axis(axis: Optional[int], over: tuple[int, ...]) -> None:
    length = RNG.uniform(1, 2, [1 if place in over else size for place, size in enumerate((4, 3))])
    made = Recipe(NORMED, LENGTH.parts, 0.0, axis).made({"length": length, "direction": RNG.normal(size=(4, 3))})
    assert np.allclose(np.linalg.norm(made, axis=None if axis is None else over[0], keepdims=True), length)


@pytest.mark.parametrize("recipe", [WEIGHT, BIAS, OWN_BIAS, LENGTH, MORE, Recipe(NORMED, LENGTH.parts, 0.0, None)])
def test_facts_are_read_as_they_were_written(recipe: Recipe) -> None:
    assert Recipe.parsed(recipe.facts()) == recipe


@pytest.mark.parametrize(
    "facts",
    [
        None,
        [],
        ["folded-weight", [], 0.0, 0],
        ["unheard-of", [["weight", "c", "weight"], ["variance", "n", "var"]], 0.0, 0],
        ["folded-weight", [["weight", "c", "weight"]], 0.0, 0],
        ["folded-weight", [["weight", "c", "weight"], ["variance", "n"]], 0.0, 0],
        ["folded-weight", [["weight", "c", "weight"], ["weight", "n", "var"], ["variance", "n", "var"]], 0.0, 0],
        ["folded-weight", [["weight", "c", "weight"], ["variance", "n", "var"]], float("nan"), 0],
        ["folded-weight", [["weight", "c", "weight"], ["variance", "n", "var"]], 0.0, -2],
        ["folded-weight", [["weight", "c", "weight"], ["variance", "n", "var"]], 0.0, True],
        [["folded-weight"], [["weight", "c", "weight"], ["variance", "n", "var"]], 0.0, 0],
    ],
)
def test_damaged_facts_are_no_recipe(facts: object) -> None:
    assert Recipe.parsed(facts) is None


@pytest.mark.parametrize("table", [None, 3, [], [[]], [3, None], [[3], [["a", "b"]]], [[["a", 1, []]], []]])
def test_a_damaged_header_tells_of_nothing(table: object) -> None:
    dump: Any = type("Nothing", (), {"find": None})()
    assert not Combined.of(0, {"combined": table}, dump).recipes
    assert not Combined.of(1, {"combined": table}, dump).recipes


def test_parts_that_do_not_fit_are_not_taken_together() -> None:
    assert WEIGHT.fits(shapes(WEIGHT))
    assert not WEIGHT.fits({**shapes(WEIGHT), "scale": (3,)})
    assert not BIAS.fits({**shapes(BIAS), "mean": (4, 1)})
    assert not LENGTH.fits({"length": (3, 1), "direction": (4, 3)})
    assert not Recipe(NORMED, LENGTH.parts, 0.0, 5).fits(shapes(LENGTH))
