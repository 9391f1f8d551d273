"""The examples of docs/functional.md run as they stand, in order, in one namespace; they hold their own assertions.

Not covered: the prose.
"""

import re
from pathlib import Path

DOCUMENT = Path(__file__).parent.parent / "docs" / "functional.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_examples_run(capsys):
    text = DOCUMENT.read_text(encoding="utf-8")
    namespace: dict = {"__name__": "example"}
    blocks = list(_BLOCK.finditer(text))
    for block in blocks:
        line = text[: block.start()].count("\n") + 1
        code = compile("\n" * line + block.group(1), str(DOCUMENT), "exec")
        exec(code, namespace)
    assert len(blocks) == 5
    assert namespace["traces"] == 1
    assert namespace["rollout"]._cache_size() == 1
    printed = capsys.readouterr().out
    assert "turn 0: reward" in printed
    assert "turn 1: reward" in printed
    assert namespace["group"].batch == 8
