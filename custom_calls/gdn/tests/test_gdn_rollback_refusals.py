"""What verify and commit refuse and how they report. Oracle: the sentence a user reads."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gdn_rollback_cases import commit, commit_call, random_round, verify, verify_call
from gdn_rows_oracle import Geometry

from onecat_jax.custom_calls.dispatch import Policy, Target, reset_routes, routes
from onecat_jax.custom_calls.linear import Layer
from onecat_jax.errors import EngineError

on_cpu = pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="about the handlers that run on CPU"
)
NEGATIVE = np.array([-3, 1, 0], np.int32)


def plain_round(**changes):
    """Three rows of two, five slots a layer, layers 1 and 2 of 3."""
    return replace(random_round(Geometry(), [2, 1, 0], 2), **changes)


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


COMMIT = [
    ({"slots": ids(5, 1, 0)}, r"gdn commit: row 0 has slot 5, must be 0 \.\. 4"),
    ({"slots": ids(2, -1, 0)}, r"row 1 has slot -1, must be 0 \.\. 4"),
    ({"slots": ids(3, 3, 0)}, "rows 0 and 1 both have slot 3"),
    ({"count": ids(1, 3, 0)}, r"row 1 has count 3, must be 0 \.\. 2"),
    ({"count": ids(-1, 1, 0)}, r"row 0 has count -1, must be 0 \.\. 2"),
    ({"start": NEGATIVE}, "row 0 starts at -3"),
    ({"first_layer": 2}, r"layers 2 \.\. 3 are replayed, rows are kept of 0 \.\. 2"),
    ({"first_layer": -1}, r"layers -1 \.\. 0 are replayed, rows are kept of 0 \.\. 2"),
    ({"slots_per_layer": 4}, "there are 15 states, must be 3 layers of 4 slots"),
    ({"slots_per_layer": 0}, "there are 15 states, must be 3 layers of 0 slots"),
    ({"gates": np.zeros((3, 3, 2, 7), np.float32)}, r"must be \[3, 3, 2, 8\]"),
    ({"gates": np.zeros((2, 3, 2, 8), np.float32)}, r"are \[2, 3, 2, 8\], must be \[3, 3, 2, 8\]"),
    ({"windows": np.zeros((15, 2, 192), np.float32)}, r"windows are \[15, 2, 192\], must be"),
    ({"a_log": np.zeros((2, 3), np.float32)}, r"must be \[2, 4\], one is \[2, 3\]"),
    ({"conv": np.zeros((2, 4, 190), np.float32)}, r"conv is \[2, 4, 190\], must be \[L, W, 192\]"),
    ({"start": ids(1, 1)}, r"slots, start and count must be \[3\], one is \[2\]"),
]
VERIFY = [
    ({"slots": ids(10, 1, 0)}, r"gdn verify: row 0 has slot 15, must be 0 \.\. 14"),
    ({"slots": ids(3, 3, 0)}, "rows 0 and 1 both have slot 8"),
    ({"count": ids(1, 3, 0)}, r"row 1 has count 3, must be 0 \.\. 2"),
    ({"start": NEGATIVE}, "row 0 starts at -3"),
    ({"gates": np.zeros((3, 3, 2, 7), np.float32)}, r"are \[3, 2, 7\], must be \[3, 2, 8\]"),
    ({"windows": np.zeros((15, 2, 192), np.float32)}, r"windows are \[15, 2, 192\], must be"),
]


@on_cpu
@pytest.mark.parametrize(("changes", "message"), COMMIT)
def test_commit_refuses_bad_operands_with_their_numbers(changes, message):
    with pytest.raises(Exception, match=message):
        commit(plain_round(**changes))


@on_cpu
@pytest.mark.parametrize(("changes", "message"), VERIFY)
def test_verify_refuses_bad_operands_with_their_numbers(changes, message):
    with pytest.raises(Exception, match=message):
        verify(plain_round(**changes), 0)


@on_cpu
def test_verify_refuses_a_layer_outside_the_stack():
    with pytest.raises(Exception, match=r"layer 2 \* 1 \+ 0 = 2 is outside 0 \.\. 1"):
        verify(plain_round(qkv=np.zeros((4, 3, 2, 192), np.float32), gates=np.zeros((4, 3, 2, 8), np.float32),
                           slots=ids(1, 2, -9), slots_per_layer=1), 2)  # fmt: skip


@on_cpu
def test_an_empty_row_may_hold_any_slot():
    x = plain_round()
    far = replace(x, slots=ids(*x.slots[:2], 99))
    for found, want in zip(commit(far), commit(x), strict=True):
        assert np.array_equal(found, want, equal_nan=True)


def shapes(x):
    """Abstract operands of commit, and of verify on the stack's first layer."""
    arrays = (*x.kept, x.states, x.windows, x.slots, x.start, x.count, x.weights)
    of_layer = (x.qkv[1], x.gates[1], *arrays[2:])
    return jax.tree.map(jnp.asarray, (arrays, of_layer))


def trace(policy: Policy) -> None:
    kept, new = shapes(plain_round())
    jax.eval_shape(lambda *a: verify_call(*a, Layer(0), policy), *new)
    jax.eval_shape(lambda *a: commit_call(*a, 1, 5, policy), *kept)


@pytest.mark.parametrize(
    ("target", "route"), [(Target("cpu"), "cpu handler"), (Target("gpu", 70), "plain")]
)
def test_the_report_names_both_operators_and_their_route(target, route):
    reset_routes()
    trace(Policy(target=target))
    assert [(r.operator, r.route.name) for r in routes()] == [
        ("gdn verify", route),
        ("gdn commit", route),
    ]
    assert {r.descriptor for r in routes()} == {
        "2 rows of 2 x 32 and 4 x 16 heads, float32 with float32 windows"
    }


def test_strict_refuses_where_only_plain_is_left():
    with pytest.raises(EngineError, match="gdn verify has no fast route for 2 rows of 2 x 32"):
        trace(Policy(strict=True, target=Target("gpu", 70)))
