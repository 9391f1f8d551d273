"""What the attention handlers refuse and which route a call takes. Oracle: the sentence a user reads."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from attention_oracle import PLAIN, random_batch, run, write

from onecat_jax.custom_calls.dispatch import Policy, Target, reset_routes, routes
from onecat_jax.custom_calls.paged_attention import AttentionDescriptor, plan
from onecat_jax.errors import EngineError

on_cpu = pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="about the handlers that run on CPU"
)
CPU = Target("cpu")
HEADS = "norm, rotary embedding and key/value write"


def bad(name: str):
    """A batch with one number spoilt, and what the refusal says."""
    x = random_batch([20, 40], spare=0)
    if name == "page too large":
        x.table[1, 2] = 99
        return x, r"row 1 has page 99 at place 2, with first page 5 it must lie in 0 \.\. 13"
    if name == "negative page":
        x.table[0, 1] = -1
        return x, "row 0 has page -1 at place 1"
    if name == "too long":
        return replace(
            x, start=x.start + 40
        ), r"row 0 has tokens 59 \.\. 59, its table holds 0 \.\. 47"
    if name == "negative start":
        return replace(x, start=x.start - 100), r"row 0 has tokens -81 \.\. -81"
    if name == "count":
        return replace(x, count=x.count + 1), r"row 0 has count 2, must be 0 \.\. 1"
    return replace(
        x, first=300
    ), r"row 0 has page \d+ at place [01], with first page 300 it must lie in 0 \.\. 13"


NAMES = ("page too large", "negative page", "too long", "negative start", "count", "first page")


@on_cpu
@pytest.mark.parametrize("name", NAMES)
def test_bad_numbers_are_refused_by_both_handlers(name):
    x, message = bad(name)
    with pytest.raises(Exception, match="attention rows: " + message):
        run(x)
    new = np.zeros((2, 1, 2, 64), np.float32)
    with pytest.raises(Exception, match="key/value rows: " + message):
        write(x, new, new)


@on_cpu
def test_only_pages_that_a_call_touches_are_checked():
    x = random_batch([20, 40], spare=0)
    new = np.zeros((2, 1, 2, 64), np.float32)
    x.table[:, 0] = -1
    assert np.isfinite(run(x, window=4)).all()
    assert np.array_equal(write(x, new, new)[0][x.first + x.table[1, 2], 7], new[1, 0])
    with pytest.raises(Exception, match="row 0 has page -1 at place 0"):
        run(x, window=5)


@pytest.mark.parametrize("policy", [None, PLAIN], ids=["auto", "plain"])
def test_a_negative_window_is_refused(policy):
    with pytest.raises(EngineError, match="the attention window is -1, it must be 0 or more"):
        run(random_batch([20]), policy or Policy(), window=-1)


@on_cpu
def test_bad_shapes_are_refused():
    x = random_batch([20, 40])
    with pytest.raises(
        Exception, match=r"new rows are \[2, 1, 4, 32\], must be \[B, T, heads, 64\]"
    ):
        run(replace(x, q=x.q[..., :32]))
    with pytest.raises(Exception, match=r"the table is \[1, 6\], must be \[2, P\]"):
        run(replace(x, table=x.table[:1]))
    with pytest.raises(Exception, match=r"both must be \[X, S, J, D\]"):
        run(replace(x, v_pages=x.v_pages[1:]))
    new = np.zeros((2, 1, 3, 64), np.float32)
    with pytest.raises(Exception, match=r"k is \[2, 1, 3, 64\].*must be \[B, T, 2, D\]"):
        write(x, new, new)


@pytest.mark.parametrize(
    ("target", "change", "route", "reason"),
    [
        (CPU, {}, "cpu handler", ""),
        (Target("gpu", 70), {}, "sm_70 handler", "it needs compute capability 8.0 or later"),
        (Target("gpu", 90), {}, "sm_80 handler", ""),
        (Target("gpu", 75), {}, "plain", "it needs compute capability 7.0 to 7.2"),
        (Target("gpu", 89), {}, "plain", "it needs 130 KB of shared memory per block"),
        (Target("gpu", 90), {"dim": 64}, "plain", "the head dim must be 128 or 256, it is 64"),
        (Target("gpu", 90), {"page": 24}, "plain", "multiples of 16 tokens, they have 24"),
        (
            Target("gpu", 90),
            {"heads": 52},
            "plain",
            "up to 12 query heads per kv head, there are 13",
        ),
        (Target("gpu", 90), {"dtype": "float32"}, "plain", "new rows must be float16"),
        (Target("gpu", 90), {"cache": "bfloat16"}, "plain", "the cache must be one of float32"),
        (CPU, {"rows": 512}, "cpu handler", ""),
        (Target("gpu", 70), {"rows": 17}, "sm_70 handler", "capability 8.0 or later"),
        (
            Target("gpu", 90),
            {"rows": 17, "cache": "float32"},
            "library tiles",
            "the cache must be one of float16, float8",
        ),
        (CPU, {"dim": 72}, "plain", "must be a multiple of 16 up to 256, it is 72"),
        (
            CPU,
            {"heads": 130, "kv_heads": 2},
            "plain",
            "up to 64 query heads per kv head, there are 65",
        ),
        (CPU, {"cache": "int8"}, "plain", "the cache must be one of float32"),
        (CPU, {"dtype": "float8_e5m2"}, "plain", "new rows must be float32"),
    ],
)
def test_the_route_says_why_faster_ones_declined(target, change, route, reason):
    descriptor = replace(
        AttentionDescriptor(4, 8, 4, 256, 16, "float16", "float8_e4m3fn"), **change
    )
    found = plan("attention", descriptor, Policy(target=target))
    assert found.name == route
    assert reason in found.explain()


@pytest.mark.parametrize(
    ("operator", "target", "change", "route", "reason"),
    [
        ("key/value write", Target("gpu", 70), {}, "gpu handler", ""),
        ("key/value write", Target("gpu", 60), {}, "plain", "compute capability 7.0 or later"),
        (
            "key/value write",
            Target("gpu", 90),
            {"kv_heads": 1, "dim": 4},
            "plain",
            "a multiple of 8",
        ),
        ("key/value write", CPU, {}, "cpu handler", "compute capability 7.0 or later"),
        (HEADS, Target("gpu", 70), {}, "gpu handler", ""),
        (
            HEADS,
            Target("gpu", 90),
            {"dim": 64},
            "plain",
            "the head dim must be 128 or 256, it is 64",
        ),
        (HEADS, Target("gpu", 90), {"dtype": "bfloat16"}, "plain", "rows must be float16"),
        (HEADS, CPU, {}, "plain", "compute capability 7.0 or later"),
    ],
)
def test_writing_says_why_faster_routes_declined(operator, target, change, route, reason):
    descriptor = replace(
        AttentionDescriptor(4, 8, 4, 256, 16, "float16", "float8_e4m3fn"), **change
    )
    found = plan(operator, descriptor, Policy(target=target))
    assert found.name == route
    assert reason in found.explain()


def test_strict_refuses_short_rows_without_a_handler_but_not_tiles():
    policy = Policy(strict=True, target=Target("gpu", 70))
    descriptor = AttentionDescriptor(64, 8, 4, 64, 16, "float16", "float16")
    assert plan("attention", descriptor, policy).name == "library tiles"
    with pytest.raises(
        EngineError, match="attention has no fast route for 4 float16 rows of 8 over 4"
    ):
        plan("attention", replace(descriptor, rows=4), policy)


@on_cpu
def test_the_report_names_both_operators():
    reset_routes()
    x = random_batch([33], heads=(2, 1), dim=16, width=3)
    run(x)
    new = np.zeros((1, 3, 1, 16), np.float32)
    write(x, new, new)
    assert [(r.operator, r.route.name) for r in routes()] == [
        ("attention", "cpu handler"),
        ("key/value write", "cpu handler"),
    ]
