"""What the row form of GDN refuses and which route it takes. Oracle: the sentence a user reads."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gdn_rows_cases import call, random_batch, run
from gdn_rows_oracle import Geometry

from onecat_jax.custom_calls.dispatch import Policy, Target, reset_routes, routes
from onecat_jax.custom_calls.gdn import GDNDescriptor, GDNShape, plan
from onecat_jax.custom_calls.linear import Layer
from onecat_jax.errors import EngineError

on_cpu = pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="about the handler that runs on CPU"
)
SHAPE = GDNShape(4, 8, 128, 128)
CPU = Target("cpu")


def plain_batch(**changes):
    return replace(random_batch(Geometry(), [1, 1, 0], 1), **changes)


@on_cpu
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slots": np.array([15, 1, 0], np.int32)}, r"row 0 has slot 15, must be 0 \.\. 14"),
        ({"slots": np.array([6, -1, 0], np.int32)}, r"row 1 has slot -1, must be 0 \.\. 14"),
        ({"slots": np.array([6, 6, 0], np.int32)}, "rows 0 and 1 both have slot 6"),
        ({"count": np.array([1, 2, 0], np.int32)}, r"row 1 has count 2, must be 0 \.\. 1"),
        ({"count": np.array([-1, 1, 0], np.int32)}, r"row 0 has count -1, must be 0 \.\. 1"),
        ({"start": np.array([-3, 1, 0], np.int32)}, "row 0 starts at -3"),
        ({"layer": 3}, r"layer 3 \* 1 \+ 0 = 3 is outside 0 \.\. 2"),
        ({"gates": np.zeros((3, 1, 7), np.float32)}, r"gates are \[3, 1, 7\], must be \[3, 1, 8\]"),
        ({"windows": np.zeros((15, 2, 192), np.float32)}, r"windows are \[15, 2, 192\], must be"),
        ({"a_log": np.zeros((3, 3), np.float32)}, r"must be \[3, 4\], one is \[3, 3\]"),
        (
            {"conv": np.zeros((3, 4, 190), np.float32)},
            r"conv is \[3, 4, 190\], must be \[L, W, 192\]",
        ),
    ],
)
def test_bad_operands_are_refused_with_their_numbers(changes, message):
    with pytest.raises(Exception, match=message):
        run(plain_batch(**changes))


@on_cpu
def test_an_empty_row_may_hold_any_slot():
    assert np.isfinite(run(plain_batch(slots=np.array([6, 7, 99], np.int32)))[0]).all()


@on_cpu
def test_the_layer_is_index_times_mul_plus_add():
    x = plain_batch()
    by_number = run(x, layer=Layer(jnp.int32(2)))
    assert np.array_equal(by_number[0], run(x, layer=Layer(jnp.int32(0), 5, 2))[0])
    assert np.array_equal(by_number[0], run(x, layer=Layer(jnp.int32(1), 3, -1))[0])


@pytest.mark.parametrize(
    ("target", "change", "route", "reason"),
    [
        (CPU, {}, "cpu handler", ""),
        (Target("gpu", 70), {}, "plain", "it runs on CPU, the target is a GPU"),
        (CPU, {"rows": 17}, "library chunks", "it takes up to 16 rows, there are 17"),
        (
            CPU,
            {"shape": GDNShape(4, 8, 100, 128)},
            "plain",
            "multiples of 16 up to 256, one is 100",
        ),
        (
            CPU,
            {"shape": GDNShape(4, 8, 128, 512)},
            "plain",
            "multiples of 16 up to 256, one is 512",
        ),
        (CPU, {"width": 5}, "plain", "must have 2 to 4 taps, it has 5"),
        (CPU, {"window": "float8_e5m2"}, "plain", "windows must be float32, float16 or bfloat16"),
    ],
)
def test_the_route_says_why_faster_ones_declined(target, change, route, reason):
    descriptor = replace(GDNDescriptor(4, SHAPE, 4, "float32"), **change)
    found = plan(descriptor, Policy(target=target))
    assert found.name == route
    assert reason in found.explain()


HALF = {"window": "float16", "dtype": "float16"}
LONG = {**HALF, "rows": 17}


@pytest.mark.parametrize(
    ("target", "change", "route", "reason"),
    [
        (Target("gpu", 70), HALF, "gpu handler", ""),
        (Target("gpu", 90), {**HALF, "rows": 16}, "gpu handler", ""),
        (Target("gpu", 90), LONG, "sm_80 chunks", "it takes up to 16 rows, there are 17"),
        (Target("gpu", 70), LONG, "sm_70 chunks", "it needs compute capability 8.0 or later"),
        (Target("gpu", 75), LONG, "library chunks", "it needs compute capability 7.0 to 7.2"),
        (Target("gpu", 61), HALF, "plain", "it needs compute capability 7.0 or later"),
        (Target("gpu", 90), {}, "plain", "must be float16, they are float32 and float32"),
        (Target("gpu", 90), {"dtype": "float16"}, "plain", "they are float16 and float32"),
        (Target("gpu", 90), {**HALF, "width": 3}, "plain", "must have 4 taps, it has 3"),
        (
            Target("gpu", 90),
            {**HALF, "shape": GDNShape(4, 8, 64, 128)},
            "plain",
            "head dims must be 128, one is 64",
        ),
        (
            Target("gpu", 90),
            {**LONG, "shape": GDNShape(4, 8, 128, 256)},
            "library chunks",
            "head dims must be 128, one is 256",
        ),
        (CPU, HALF, "cpu handler", "it needs compute capability 7.0 or later, the target is cpu"),
    ],
)
def test_gpu_routes_say_why_faster_ones_declined(target, change, route, reason):
    descriptor = replace(GDNDescriptor(4, SHAPE, 4, "float32"), **change)
    found = plan(descriptor, Policy(target=target))
    assert found.name == route
    assert reason in found.explain()


@pytest.mark.parametrize("operator", ["gdn verify", "gdn commit"])
def test_rows_that_may_be_taken_back_have_no_kernel_for_long_inputs(operator):
    descriptor = replace(GDNDescriptor(17, SHAPE, 4, "float16"), dtype="float16")
    policy = Policy(target=Target("gpu", 90))
    assert plan(descriptor, policy, operator=operator).name == "library chunks"
    short = replace(descriptor, rows=16)
    assert plan(short, policy, operator=operator).name == "gpu handler"


def test_strict_refuses_short_rows_without_a_handler_but_not_chunks():
    policy = Policy(strict=True, target=Target("gpu", 70))
    assert plan(GDNDescriptor(64, SHAPE, 4, "float32"), policy).name == "library chunks"
    with pytest.raises(
        EngineError, match="gdn has no fast route for 4 rows of 4 x 128 and 8 x 128"
    ):
        plan(GDNDescriptor(4, SHAPE, 4, "float32"), policy)


@on_cpu
def test_the_report_names_the_route():
    reset_routes()
    x = plain_batch()
    arrays = (
        x.qkv,
        x.gates,
        x.states,
        x.windows,
        x.slots,
        x.start,
        x.count,
        x.conv,
        x.a_log,
        x.dt_bias,
    )
    jax.eval_shape(lambda *a: call(*a, Layer(0), Policy()), *map(jnp.asarray, arrays))
    (record,) = routes()
    assert (record.operator, record.route.name) == ("gdn", "cpu handler")
    assert record.descriptor == ("1 rows of 2 x 32 and 4 x 16 heads, float32 with float32 windows")
