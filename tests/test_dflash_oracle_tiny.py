"""The embedded draft behind the embedded target drafts what PyTorch drafts.

Oracle: tests/golden/dflash/tiny_rows.npz (tests/oracle/make_dflash_rounds.py: transformers' target with NVFP4 weights decoded
to float32, the draft by the equations, nothing cached). Three prompts, the last one longer than the draft's window. Also what
the records of whole rounds (tiny_rounds.json, tiny_mtp_rounds.json) say about themselves; engines are held against them
elsewhere. Not covered: ranks, compute types below float32.
"""

import json
from functools import cache, partial
from types import SimpleNamespace

import dflash_oracle_weights as dw
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_harness import relative

from onecat_jax import functional
from onecat_jax.config import EngineConfig
from onecat_jax.device_state import empty_state
from onecat_jax.models.dflash import DraftOptions, block
from onecat_jax.models.qwen3_5 import StepBatch
from onecat_jax.models.qwen3_5.forward import Capture, embed, forward_with
from onecat_jax.sampling.state import padding_row, stack_rows
from onecat_jax.speculation.config import SpeculativeConfig
from onecat_jax.speculation.dflash import DFlashDrafter
from onecat_jax.speculation.interface import Committed, DraftRows
from onecat_jax.speculation.params import EngineParams
from onecat_jax.speculation.setup import load_draft, open_draft

TOLERANCE = 1e-4
PROMPTS, WIDTH, PAGE, CAPACITY = 3, 224, 16, 1024
_SLOTS = np.array(
    [1, 0], np.int32
)  # a second, empty batch row: plain programs are never of one row


@cache
def pair() -> SimpleNamespace:
    """The embedded target and draft in float32 with their drafter, and their jitted passes."""
    model, target = functional.load("tiny", dtype="float32")
    asked = SpeculativeConfig(method="dflash")
    opened = open_draft(asked, "tiny", model.config)
    config = EngineConfig.from_arguments({"dtype": "float32"})
    params = EngineParams(target, load_draft(opened, config, model.placement, lambda *_: None))
    options = DraftOptions(
        opened.config, "float32", model.forward.policy, model.placement.shards, CAPACITY
    )
    drafter = DFlashDrafter(options, model.forward, model.vocab_size, opened.config.block_size - 1)
    return SimpleNamespace(
        model=model,
        params=params,
        drafter=drafter,
        feed=jax.jit(partial(_feed, drafter=drafter, options=model.forward)),
        rows=jax.jit(partial(_rows, drafter=drafter)),
        draft=jax.jit(drafter.draft),
    )


def _feed(params, state, batch, *, drafter, options):
    """One chunk of a prompt through the target and into the draft's window: the state and the taps."""
    passed = forward_with(params.target, state, batch, options, Capture(taps=drafter.taps))
    rows = Committed(
        tokens=batch.tokens,
        next_tokens=batch.tokens,
        hidden=passed.hidden,
        taps=passed.taps,
        start=batch.start,
        count=batch.count,
        slots=batch.slots,
        table=batch.table,
    )
    return drafter.commit(params, passed.state, rows), passed.taps


def _rows(params, state, tokens, position, *, drafter):
    """Hidden rows [B, Q, E] of blocks whose first row is a batch row's first token."""
    live = jnp.asarray([True, False])
    x = embed(params.target.embed, tokens, jnp.broadcast_to(live[:, None], tokens.shape))
    window = state.draft.window
    return block(params.draft, window, x, position, live, _SLOTS, drafter.options)[0]


def new_state():
    made = pair()
    options, draft = made.model.forward, made.drafter.options
    shape = options.local.cache_shape(pages=CAPACITY // PAGE + 1, page_size=PAGE, slots=2)
    return empty_state(
        made.model.placement,
        shape,
        kv_dtype=jnp.float32,
        window_dtype=jnp.float32,
        draft=draft.local.draft_shape(page_size=PAGE, max_len=CAPACITY, kv_dtype="float32"),
    )


def table() -> np.ndarray:
    pages = CAPACITY // PAGE
    return np.stack([np.arange(1, pages + 1), np.zeros(pages)]).astype(np.int32)


def beside_nothing(value: int) -> np.ndarray:
    return np.array([value, 0], np.int32)


@pytest.fixture(scope="module", params=range(PROMPTS))
def golden(request) -> SimpleNamespace:
    """Arrays of one prompt."""
    with np.load(dw.GOLDEN / "tiny_rows.npz") as stored:
        suffix = f"_{request.param}"
        named = {n.removesuffix(suffix): stored[n] for n in stored if n.endswith(suffix)}
    return SimpleNamespace(**named)


@pytest.fixture(scope="module")
def fed(golden):
    """The state after a prompt in chunks, and the residuals [A, T, E] of the tapped layers."""
    made, state, taps = pair(), new_state(), []
    for start in range(0, len(golden.prompt), WIDTH):
        chunk = golden.prompt[start : start + WIDTH]
        tokens = np.zeros((2, WIDTH), np.int32)
        tokens[0, : len(chunk)] = chunk
        counts = beside_nothing(len(chunk))
        batch = StepBatch(tokens, beside_nothing(start), counts, _SLOTS, table())
        state, found = made.feed(made.params, state, batch)
        taps.append(np.asarray(found[:, 0, : len(chunk)]))
    return state, np.concatenate(taps, axis=1)


def span(x: np.ndarray) -> float:
    return float(x.max() - x.min())


def test_tapped_residuals_of_the_target_equal_the_oracle(golden, fed):
    found = fed[1][:, -golden.taps.shape[1] :]
    for layer, expected in zip(found, golden.taps, strict=True):
        assert relative(layer, expected, span(expected)) <= TOLERANCE


def test_rows_behind_a_real_prompt_equal_the_oracle(golden, fed):
    made, mask = pair(), pair().drafter.options.config.mask_token_id
    tokens = np.full((2, len(golden.hidden)), mask, np.int32)
    tokens[0, 0] = golden.anchor
    position = beside_nothing(len(golden.prompt))
    found = made.rows(made.params, fed[0], tokens, position)[0]
    assert relative(found, golden.hidden, span(golden.hidden)) <= TOLERANCE


def test_greedy_drafts_behind_a_real_prompt_are_the_oracle_walk(golden, fed):
    made = pair()
    rows = DraftRows(
        token=beside_nothing(int(golden.anchor)),
        position=beside_nothing(len(golden.prompt)),
        wanted=beside_nothing(made.drafter.drafts),
        slots=_SLOTS,
        table=table(),
    )
    greedy = stack_rows([padding_row()] * 2)
    drafts, _ = made.draft(made.params, fed[0], rows, greedy, made.model.banned_mask())
    assert np.asarray(drafts.tokens[0]).tolist() == golden.tokens.tolist()
    assert np.sort(drafts.ids[0], axis=1).tolist() == np.sort(golden.ids, axis=1).tolist()


@pytest.mark.parametrize("name", ["tiny_rounds", "tiny_mtp_rounds"])
def test_recorded_rounds_account_for_every_token(name):
    """Drafts that were accepted are tokens, the next one wasn't; both drafters end in the target's own greedy text."""
    record = json.loads((dw.GOLDEN / f"{name}.json").read_text())
    for case in record["cases"]:
        at = 1  # the first token is the first round's anchor
        for drafts, accepted in zip(case["drafts"], case["accepted"], strict=True):
            emitted = case["tokens"][at : at + accepted + 1]
            assert emitted[:accepted] == drafts[:accepted]
            assert accepted == len(drafts) or emitted[accepted] != drafts[accepted]
            at += accepted + 1
        assert at == len(case["tokens"]) >= record["count"]


def test_both_records_are_of_the_same_greedy_text():
    texts = [
        [case["tokens"][:48] for case in json.loads((dw.GOLDEN / name).read_text())["cases"]]
        for name in ("tiny_rounds.json", "tiny_mtp_rounds.json")
    ]
    assert texts[0] == texts[1]
