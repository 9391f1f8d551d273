"""DFlash drafts compute what an independent PyTorch transcription of the equations computes.

Oracle: tests/golden/dflash (tests/oracle/make_dflash_goldens.py, float64; versions.json says which packages made them and how
they compare with the public implementations). Twenty drafts, each unlike the others in one thing that a configuration can
say; some on two ranks. Tolerances are parts of the range of the numbers compared. Not covered: weight formats, compute
types below float32, the engine around the drafter, attention biases.
"""

import dflash_oracle_cases as cases
import dflash_oracle_weights as dw
import numpy as np
import pytest
from dflash_oracle_harness import Drafting, build, column_of, embedded_rows
from model_harness import relative

from onecat_jax.sampling import SamplingState
from onecat_jax.sampling.state import request_row, stack_rows
from onecat_jax.sampling_params import SamplingParams

TOLERANCE = 1e-4
TEMPERATURE = 0.8  # of the goldens' distributions


# All on one rank, most of them slow tests; on two those that differ in what ranks share out: heads, features, ids, rows of fc.
_TWO_RANKS = ("v1_mixed_layers", "v1_draft_vocab", "v2_taps3_groups", "v2_everything")
_OFTEN = ("v1_block16", "v1_mixed_layers", "v2_taps2", "v2_swa_window", "v2_everything")
_RUNS = [
    case if name in _OFTEN else pytest.param(case, marks=pytest.mark.slow)
    for name, case in ((case.name, (case, 1)) for case in cases.CASES)
]
_RUNS += [
    pytest.param(
        (cases.CASES_BY_NAME[name], 2), marks=() if name == "v2_everything" else pytest.mark.slow
    )
    for name in _TWO_RANKS
]


@pytest.fixture(scope="module", params=_RUNS, ids=lambda run: f"{run[0].name}-{run[1]}")
def drafting(request) -> Drafting:
    return build(*request.param)


@pytest.fixture
def case(drafting) -> cases.DraftCase:
    return drafting.case


@pytest.fixture
def golden(case) -> dw.DraftGolden:
    return dw.load_golden(case)


@pytest.fixture(scope="module")
def state(drafting):
    """After the context, in two pieces."""
    context = drafting.case.context
    return drafting.fed(dw.taps(drafting.case), [23, context - 23])


def sampling(temperature: float, seed: int = 5) -> SamplingState:
    params = SamplingParams(temperature=temperature)
    return stack_rows([request_row(params, (), seed=seed, prompt_length=0)], 2)


def span(x: np.ndarray) -> float:
    return float(x.max() - x.min())


def walked(scores: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """[K, U] distributions along a walk through a lattice [K, U, U], float64."""
    before = np.concatenate([[0], columns[:-1]])
    rows = scores[np.arange(len(before)), before].astype(np.float64) / TEMPERATURE
    rows = np.exp(rows - rows.max(axis=1, keepdims=True))
    return rows / rows.sum(axis=1, keepdims=True)


def test_context_keys_and_values_equal_the_oracle(case, golden, drafting, state):
    keys, values, first = drafting.context(state, case.context)
    for found, expected in ((keys, golden.keys), (values, golden.values)):
        assert relative(found, expected[:, first:], span(expected)) <= TOLERANCE


def test_rows_of_the_block_equal_the_oracle(case, golden, drafting, state):
    found = drafting.rows(state, embedded_rows(case, dw.anchor(case)), case.context)
    assert relative(found, golden.hidden, span(golden.hidden)) <= TOLERANCE


def test_the_lattice_equals_the_oracle(case, golden, drafting):
    if not golden.lattice.size:
        assert drafting.params.draft.selector is None
        return
    found = drafting.scores(golden.hidden[1:], golden.ids, golden.logits, dw.anchor(case))
    assert relative(found, golden.lattice, span(golden.lattice)) <= TOLERANCE


def test_greedy_drafts_are_the_oracle_walk(case, golden, drafting, state):
    drafts = drafting.draft(state, dw.anchor(case), case.context, sampling(0.0))
    assert drafts.tokens.tolist() == golden.tokens.tolist()
    assert drafts.count == len(golden.tokens)
    listed = golden.ids if golden.lattice.size else golden.ids[:, :1]
    assert drafts.ids.tolist() == listed.tolist()
    chosen = column_of(drafts.ids, drafts.tokens)
    assert np.exp(drafts.log_q).tolist() == np.eye(listed.shape[1])[chosen].tolist()


def test_drawn_drafts_keep_the_distribution_of_the_oracle_along_their_walk(
    case, golden, drafting, state
):
    paths = set()
    for seed in range(3):
        drafts = drafting.draft(state, dw.anchor(case), case.context, sampling(TEMPERATURE, seed))
        columns = column_of(drafts.ids, drafts.tokens)
        paths.add(tuple(columns))
        if golden.lattice.size:
            # Probabilities are exponentials of scores: an error of the scores is one of so many parts of a probability.
            expected = walked(golden.lattice, columns)
            slack = 3 * TOLERANCE * span(golden.lattice) / TEMPERATURE
            assert np.abs(np.exp(drafts.log_q) - expected).max() <= slack
        else:
            assert drafts.tokens.tolist() == golden.tokens.tolist()
            assert np.exp(drafts.log_q).tolist() == [[1.0]] * len(columns)
    assert len(paths) > 1 or not golden.lattice.size


@pytest.mark.parametrize("name", [case.name for case in cases.CASES])
def test_distributions_along_given_walks_are_the_stored_ones(name):
    """The formula that the test above asks for, against the oracle's."""
    golden = dw.load_golden(cases.CASES_BY_NAME[name])
    assert golden.choices.shape[1] == len(golden.lattice)
    for columns, expected in zip(golden.choices, golden.probabilities, strict=True):
        if golden.lattice.size:
            assert np.abs(walked(golden.lattice, columns) - expected).max() <= 1e-5


@pytest.mark.parametrize("name", cases.PACKED)
def test_blocks_of_the_packed_training_form_are_blocks_behind_their_contexts(name):
    case = cases.CASES_BY_NAME[name]
    golden, drafting, tokens = dw.load_golden(case), build(case, 1), dw.tokens(case)
    for place, expected in zip(cases.ANCHORS, golden.packed, strict=True):
        state = drafting.fed(dw.taps(case), [place])
        found = drafting.rows(state, embedded_rows(case, int(tokens[place])), place)
        assert relative(found, expected, span(golden.packed)) <= TOLERANCE


def test_the_goldens_agree_with_the_public_implementations():
    """What the script that compares them wrote: rows within float32 rotary angles, the same tokens."""
    compared = dw.load_versions()["compared_with"]
    assert len(compared["dflash"]["cases"]) >= 12
    for record in compared["dflash"]["cases"].values():
        assert record["rows"] <= 2e-6
        assert record["same_tokens"]
    assert all(record["rows"] <= 2e-6 for record in compared["speculators"]["cases"].values())


def test_walks_of_the_goldens_are_decided_by_more_than_rounding():
    margins = {name: entry["margin"] for name, entry in dw.load_versions()["cases"].items()}
    assert set(margins) == set(cases.CASES_BY_NAME)
    assert min(margins.values()) > 2 * TOLERANCE
