"""A corpus of damaged and contradictory checkpoints: how each is made, and what must be said about it.

    python tests/corpus.py FOLDER

writes all of them; tests/test_corpus.py reads them. Cases are named by what is wrong; the message holds what was found and what
is needed. A case shows itself in the headers (`info` refuses), in values (`check` finds it, and loading refuses), or only when
weights are put together (loading refuses).
"""

import shutil
import sys
from pathlib import Path

from corpus_case import make
from corpus_floats import FP8, NVFP4
from corpus_int4 import AWQ, COMPRESSED, QUARK
from corpus_records import FILES, RECORDS

GROUPS = {
    "FP8": FP8, "AWQ": AWQ, "Quark": QUARK, "INT4": COMPRESSED, "NVFP4": NVFP4, "record": RECORDS, "file": FILES
}  # fmt: skip
CASES = {
    f"{group}: {name}": case for group, cases in GROUPS.items() for name, case in cases.items()
}


def main(out: Path) -> None:
    """Writes every case into a folder of its name."""
    for name, case in CASES.items():
        folder = out / name.replace(":", "").replace(" ", "_")
        shutil.rmtree(folder, ignore_errors=True)
        make(case, folder)
        print(f"{folder}: {case.message}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
