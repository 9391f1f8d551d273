"""Arguments that can't work are refused while tracing, with what was found and what is needed; settings mean what they say.

Oracle: the messages; `sampling.request_row`, which the engine makes its rows with. Nothing here runs a model.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoints import SMALL, Style, stored_tensors
from functional_cases import small_checkpoint, tiny

from onecat_jax import SamplingParams, functional
from onecat_jax.errors import CheckpointError, EngineError, RequestError
from onecat_jax.functional import arguments
from onecat_jax.sampling import request_row, stack_rows
from onecat_jax.sampling_params import derived_seed

TOKENS, LENGTHS = np.ones((2, 8), np.int32), np.array([8, 3], np.int32)


@pytest.fixture(scope="module")
def model():
    return tiny()[0]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return functional.load(small_checkpoint(tmp_path_factory.mktemp("small")))


def greedy(model, rows=2):
    return functional.sampling(model, rows, SamplingParams(temperature=0.0))


def generate(tokens=TOKENS, lengths=LENGTHS, sampling=None, **arguments):
    model, params = tiny()
    sampling = greedy(model) if sampling is None else sampling
    arguments = {"max_new_tokens": 4} | arguments
    return functional.generate(model, params, tokens, lengths, sampling, **arguments)


BAD_CALLS = [
    ({"tokens": TOKENS.astype(np.float32)}, r"tokens is float32 \[2, 8\]; integers \[batch, width\]"),
    ({"tokens": TOKENS[0]}, r"tokens is int32 \[8\]; integers \[batch, width\] are needed"),
    ({"tokens": TOKENS[:, :0]}, r"tokens is int32 \[2, 0\]"),
    ({"tokens": "abc"}, "tokens is str, which JAX doesn't take for an array"),
    ({"tokens": [[2**40]]}, "tokens is list, which JAX doesn't take for an array: .* int32"),
    ({"sampling": SamplingParams()}, r"sampling is SamplingParams; .* functional.sampling\(model, 2"),
    ({"lengths": LENGTHS[:1]}, r"lengths is int32 \[1\]; integers \[2\] are needed"),
    ({"lengths": 3}, r"lengths is int32 \[\]; integers \[2\]"),
    ({"max_new_tokens": 0}, "max_new_tokens is 0; .* at least 1"),
    ({"max_new_tokens": 2.0}, "max_new_tokens is 2.0; it decides shapes: a Python int"),
    ({"max_new_tokens": 8190}, r"width 8 \+ max_new_tokens 8190 makes .* 8198 tokens; .* is 8192"),
    ({"limits": [1, 2, 3]}, r"limits is int32 \[3\]; integers \[2\]"),
    ({"kv_cache_dtype": "int4"}, "kv_cache_dtype is 'int4'; it must be one of auto, float32"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), BAD_CALLS, ids=[m[:24] for _, m in BAD_CALLS])
def test_a_wrong_argument_is_refused_with_what_is_needed(arguments, message):
    with pytest.raises(RequestError, match=message):
        generate(**arguments)


def test_it_is_refused_while_tracing():
    with pytest.raises(RequestError, match=r"tokens is float32 \[2, 8\]"):
        jax.jit(lambda tokens: generate(tokens)).lower(TOKENS.astype(np.float32))


def test_settings_of_another_batch_are_refused(model):
    with pytest.raises(RequestError, match=r"sampling has 3 rows, the sequences are 2"):
        generate(sampling=greedy(model, 3))


def test_a_state_refuses_what_it_has_no_rows_or_room_for(model):
    _, params = tiny()
    with pytest.raises(RequestError, match=r"max_length makes sequences of 8193 tokens; .* 8192"):
        functional.new_state(model, 2, 8193)
    with pytest.raises(RequestError, match="batch is 0"):
        functional.new_state(model, 0, 16)
    state = functional.new_state(model, 3, 16)
    with pytest.raises(RequestError, match=r"tokens is int32 \[2, 8\]; integers \[3, width\]"):
        functional.prefill(model, params, state, TOKENS, LENGTHS, greedy(model, 3))
    with pytest.raises(RequestError, match="n is 0"):
        functional.repeat(model, state, 0)
    with pytest.raises(RequestError, match=r"the width of tokens makes sequences of 9000 tokens"):
        functional.logprobs(model, params, np.ones((1, 9000), np.int32), [9])


def test_keys_and_values_are_stored_as_asked(model):
    for name, dtype in (("auto", "float32"), ("float16", "float16"), ("fp8_e4m3", "float8_e4m3fn")):
        state = functional.new_state(model, 1, 16, kv_cache_dtype=name)
        assert state.caches.kv.k.dtype.name == dtype


BAD_SETTINGS = [
    ({"params": SamplingParams(seed=1, stop="x")}, "stop is .*; there is no text here"),
    ({"params": SamplingParams(seed=1, n=2)}, "n is 2; repeat the prompt's row"),
    ({"params": SamplingParams(seed=1, logprobs=1)}, "logprobs is 1; .* always returned"),
    ({"params": SamplingParams(seed=1, prompt_logprobs=1)}, "prompt_logprobs is 1; .*functional.logprobs"),
    ({"params": [SamplingParams(seed=1)]}, "1 SamplingParams for 2 rows"),
    ({"params": SamplingParams()}, r"row 0 is sampled but has no seed \(2 rows of 2"),
    ({"params": SamplingParams(temperature=0.0), "temperature": jnp.ones(2)}, "has no seed"),
    ({"params": SamplingParams(seed=0, logit_bias={10**6: 1.0})}, "logit_bias names token 1000000"),
    ({"seed": 5}, "seed is 5; .* rows that shared a seed would share"),
    ({"seed": [1, 2, 3]}, r"seed is \[1, 2, 3\]"),
    ({"seed": np.ones(2)}, r"seed is float64 \[2\]"),
    ({"seed": jnp.ones((2, 3), jnp.uint32)}, r"seed is uint32 \[2, 3\]"),
    ({"seed": [1, 2], "temperature": jnp.ones(3)}, r"temperature is float32 \[3\]; float32 \[\] or \[2\]"),
    ({"seed": [1, 2], "top_k": jnp.ones(2)}, r"top_k is float32 \[2\]; int32"),
    ({"seed": [1, 2], "max_tokens": 3}, "unknown setting 'max_tokens'; known: temperature, top_k"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"), BAD_SETTINGS, ids=[m[:24] for _, m in BAD_SETTINGS]
)
def test_a_wrong_setting_is_refused(model, arguments, message):
    with pytest.raises(RequestError, match=message):
        functional.sampling(model, 2, **arguments)


def test_settings_are_the_engines_rows(model):
    params = [
        SamplingParams(temperature=0.4, top_k=-1, top_p=0.3, seed=-1 - 2**40, min_tokens=7),
        SamplingParams(min_p=0.2, seed=2**64 - 3, ignore_eos=True, stop_token_ids=[5]),
        SamplingParams(seed=0, presence_penalty=1.0, repetition_penalty=1.5, logit_bias={3: -1.0}),
    ]
    lengths = [3, 0, 2**31 - 5]
    found = functional.sampling(model, 3, params).after(jnp.array(lengths, jnp.int32))
    rows = [
        request_row(p, model.eos_ids, seed=p.seed, prompt_length=length)
        for p, length in zip(params, lengths, strict=True)
    ]
    jax.tree.map(np.testing.assert_array_equal, found, stack_rows(rows))


def test_arrays_replace_settings(model):
    base = SamplingParams(temperature=0.4, top_k=3, seed=1, min_tokens=2)
    found = functional.sampling(
        model, 2, base, top_k=jnp.array([-1, 7]), temperature=2, min_tokens=jnp.array([5, 0])
    ).rows
    assert found.top_k.tolist() == [0, 7]
    assert found.temperature.tolist() == [2.0, 2.0]
    assert found.min_position.tolist() == [5, 0]
    assert found.seed.tolist() == [[1, 0], [1, 0]]


@pytest.mark.parametrize("seeds", [[0, 2**32 + 7], [-1, -(2**33)], [derived_seed(9, 1), 2**64 - 1]])
def test_seeds_are_read_as_the_engine_reads_them(model, seeds):
    rows = [
        request_row(SamplingParams(), (), seed=seed, prompt_length=0).seed.tolist()
        for seed in seeds
    ]
    assert functional.sampling(model, 2, seed=seeds).rows.seed.tolist() == rows
    words = np.array(rows, np.uint32)
    assert functional.sampling(model, 2, seed=words).rows.seed.tolist() == rows
    assert functional.sampling(model, 2, seed=jnp.asarray(words)).rows.seed.tolist() == rows


def test_traced_32_bit_seeds_are_those_numbers(model):
    seeds = np.array([-3, 2**31 - 1], np.int32)
    traced = jax.jit(lambda s: functional.sampling(model, 2, seed=s))(seeds)
    host = functional.sampling(model, 2, seed=seeds.tolist())
    jax.tree.map(np.testing.assert_array_equal, traced, host)


def damaged(change):
    tensors = stored_tensors(SMALL, Style(naming="dense"))
    change(tensors)
    return tensors


BAD_WEIGHTS = [
    (lambda t: t.pop("model.norm.weight"), r"norm.weight is missing, needed \[64\]"),
    (lambda t: t.update({"model.foo": t["model.norm.weight"]}), "model.foo .* is unknown"),
    (
        lambda t: t.update({"lm_head.weight": t["lm_head.weight"][:90]}),
        r"lm_head.weight \(the given weights, BF16 \[90, 64\]\) has a wrong shape, needed \[96, 64\]",
    ),
    (
        lambda t: t.update({"model.norm.weight": np.ones(64)}),
        r"model.norm.weight .*F64 \[64\]\) has a wrong dtype, needed BF16, F16, F32",
    ),
    (
        lambda t: t.update({"model.norm.weight": np.ones(64, complex)}),
        r"model.norm.weight is complex128 \[64\]; no checkpoint holds such a dtype",
    ),
    (lambda t: t.update({"model.norm.weight": [1.0]}), "model.norm.weight is list; an array"),
    (lambda t: t.update({"norm.weight": t["model.norm.weight"]}), "both mean norm.weight"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), BAD_WEIGHTS, ids=[m[:24] for _, m in BAD_WEIGHTS])
def test_weights_that_dont_fit_are_refused_by_name(small, change, message):
    with pytest.raises(CheckpointError, match=message):
        functional.build_params(small[0], damaged(change))


def test_weights_of_another_format_are_refused(tmp_path):
    model, _ = functional.load(small_checkpoint(tmp_path, style=Style(naming="modelopt")))
    with pytest.raises(CheckpointError, match=r"is dense here and NVFP4 in the loaded model"):
        functional.build_params(model, stored_tensors(SMALL, Style(naming="dense")))


def test_weights_may_have_bare_names(small):
    model, params = small
    tensors = stored_tensors(SMALL, Style(naming="dense"))
    bare = {name.removeprefix("model."): value for name, value in tensors.items()}
    jax.tree.map(np.testing.assert_array_equal, functional.build_params(model, bare), params)


def test_load_refuses_what_the_engine_refuses():
    with pytest.raises(EngineError, match="dtype is 'int8'"):
        functional.load(dtype="int8")
    with pytest.raises(CheckpointError, match="doesn't exist"):
        functional.load("no/such/folder/at/all")


@pytest.mark.parametrize("params", [5, None, [5, 5], {"temperature": 1.0}], ids=str)
def test_what_is_no_sampling_params_is_refused(model, params):
    with pytest.raises(RequestError, match=r"params is .*; a SamplingParams or a list of them"):
        functional.sampling(model, 2, params, seed=[1, 2])


@pytest.mark.parametrize("dtype", [np.int64, np.uint32, np.uint64])
def test_integers_beyond_int32_are_clipped_not_wrapped(dtype):
    lengths = np.array([2**32 - 1 if dtype is np.uint32 else 2**32 + 1, 3], dtype)
    assert arguments.prompts(TOKENS, lengths)[1].tolist() == [8, 3]
    ids = np.full((2, 8), lengths[0], dtype)
    assert arguments.prompts(ids, lengths)[0].min() == 2**31 - 1
