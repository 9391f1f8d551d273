"""Options of the test session."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--heldout",
        metavar="PATH",
        default=None,
        help="JSON Lines file of held-out documents with recorded NLLs, for tests/test_heldout.py",
    )
    parser.addoption(
        "--heldout-bf16",
        metavar="FOLDER",
        default=None,
        help="the unquantised sibling of the embedded model, whose NLLs the same file records",
    )
