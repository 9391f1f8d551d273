"""Options of the test session, and four CPU devices for every test of tensor parallelism."""

import gc
from collections.abc import Iterator

import jax
import pytest

# Before any backend exists, which fixes the number. What doesn't ask for more runs on the first device.
jax.config.update("jax_num_cpu_devices", 4)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--heldout",
        metavar="PATH",
        default=None,
        help="JSON Lines file of held-out documents with recorded NLLs, for tests/test_heldout.py",
    )
    parser.addoption(
        "--prompts",
        metavar="PATH",
        default=None,
        help="JSON Lines file of prompts (token_ids), for tests/test_speculation_prompts.py",
    )
    parser.addoption(
        "--heldout-bf16",
        metavar="FOLDER",
        default=None,
        help="the unquantised sibling of the embedded model, whose NLLs the same file records",
    )


@pytest.fixture(autouse=True, scope="module")
def programs_are_let_go() -> Iterator[None]:
    """Frees what a module's tests compiled: each program takes memory maps, of which Linux gives a process 65,530."""
    yield
    jax.clear_caches()
    gc.collect()
