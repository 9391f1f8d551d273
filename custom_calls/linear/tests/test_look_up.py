"""Rows of a table, as float32. Oracle: numpy's indexing, exactly."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.linear import look_up

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]


@pytest.mark.parametrize("backend", ["auto", "plain"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1,), (7,), (2, 3), (0,)])
def test_rows_are_those_of_the_table(dtype, shape, backend):
    rng = np.random.default_rng(1)
    table = rng.standard_normal((50, 24)).astype(dtype)
    ids = rng.integers(0, 50, shape, dtype=np.int32)
    found = jax.jit(lambda t, i: look_up(t, i, Policy(backend)))(jnp.asarray(table), ids)
    assert found.dtype == jnp.float32
    assert np.array_equal(found, table[ids].astype(np.float32))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="about the CPU handler")
@pytest.mark.parametrize("row", [-1, 50])
def test_a_row_outside_the_table_is_an_error(row):
    table = jnp.zeros((50, 24), jnp.bfloat16)
    with pytest.raises(Exception, match=f"row {row} is outside 0 .. 49"):
        jax.block_until_ready(look_up(table, jnp.array([3, row], jnp.int32)))
