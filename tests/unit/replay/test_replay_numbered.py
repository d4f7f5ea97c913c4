"""Members of lists keep their numbers, if not all of a list find another place."""

from __future__ import annotations

from aligner.replay.numbered import crossing

PRIOR = {**{f"makers.{n}": f"nets.{n}" for n in range(3)}, "judge": "head"}


def test_a_number_that_is_one_off_in_a_loop_moves_no_layer():
    shifted = {"makers.0": "head", "makers.1": "nets.0", "makers.2": "nets.1", "judge": "nets.2"}
    assert crossing(PRIOR, shifted, {*PRIOR}) == {*PRIOR}


def test_a_list_that_is_wholly_in_another_order_is_in_that_order():
    turned = {"makers.0": "nets.2", "makers.1": "nets.1", "makers.2": "nets.0", "judge": "head"}
    assert crossing(PRIOR, turned, {*PRIOR}) == set()
    assert crossing(PRIOR, turned, {*PRIOR} - {"makers.2"}) == {"makers.0", "makers.2"}


def test_lists_may_stand_in_each_others_places():
    prior = {f"{one}.{n}": f"{other}.{n}" for one, other in (("a", "x"), ("b", "y")) for n in range(2)}
    turned = {f"{one}.{n}": f"{other}.{n}" for one, other in (("a", "y"), ("b", "x")) for n in range(2)}
    assert crossing(prior, turned, {*prior}) == set()


def test_layers_inside_the_members_of_a_list_may_change():
    prior = {f"blocks.{n}.{one}": f"layers.{n}.{other}" for one, other in (("q", "v"), ("k", "w")) for n in range(2)}
    turned = {f"blocks.{n}.{one}": f"layers.{n}.{other}" for one, other in (("q", "w"), ("k", "v")) for n in range(2)}
    assert crossing(prior, turned, set()) == set()


def test_numbers_that_count_otherwise_bind_nothing():
    prior = {"body.0": "steps.0", "body.1": "steps.3", "last": "head"}
    turned = {"body.0": "head", "body.1": "steps.0", "last": "steps.3"}
    assert crossing(prior, turned, {*prior}) == set()
