"""Makes tests/golden/dflash from the equations in PyTorch, one file per case.

    python tests/oracle/make_dflash_goldens.py [CASE ...]

Needs torch; the tests read the files and don't. float64 throughout, stored as float32. versions.json records versions and, per
case, the margin by which the greedy walk is decided, as a part of the range of the scores: no test may depend on less.
"""

import json
import platform
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import dflash_equations as eq
import dflash_oracle_cases as cases
import dflash_oracle_weights as ow
import dflash_selection as selection
from dflash_oracle_cases import DraftCase

TEMPERATURE = 0.8
_PLAIN_TOP = 16  # candidates recorded for a draft without a selector


def wide(array: np.ndarray) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor.double() if tensor.is_floating_point() else tensor.long()


def draft_of(case: DraftCase) -> eq.Draft:
    return eq.Draft(case.config, {name: wide(w) for name, w in ow.weights(case).items()})


def packed(draft: eq.Draft, case: DraftCase) -> torch.Tensor:
    """Blocks [N, Q, E] of the training form.

    Raises:
      ValueError: a block differs from the same block drafted alone.
    """
    taps, anchors = wide(ow.taps(case)), torch.tensor(cases.ANCHORS)
    rows = eq.embed(draft, wide(ow.embeddings(case)), wide(ow.tokens(case))[anchors])
    together = eq.blocks(draft, taps, anchors, rows)
    for index, place in enumerate(cases.ANCHORS):
        alone = eq.blocks(
            draft, taps[:, :place], anchors[index : index + 1], rows[index : index + 1]
        )
        if not torch.allclose(alone[0], together[index], rtol=0, atol=1e-10):
            raise ValueError(f"{case.name}: the block at {place} isn't what it is alone")
    return together


def margin(scores: torch.Tensor, columns: torch.Tensor) -> float:
    """Smallest lead of the best candidate of a walk's rows, as a part of the scores' range."""
    rows = torch.cat([torch.zeros_like(columns[:1]), columns[:-1]])
    best = scores[torch.arange(len(rows)), rows].topk(2).values
    return float((best[:, 0] - best[:, 1]).min() / (scores.max() - scores.min()))


def run(case: DraftCase) -> tuple[ow.DraftGolden, float]:
    draft, taps = draft_of(case), wide(ow.taps(case))
    kv = eq.context(draft, taps)
    rows = eq.embed(draft, wide(ow.embeddings(case)), torch.tensor([ow.anchor(case)]))
    hidden = eq.blocks(draft, taps, torch.tensor([case.context]), rows)[0]
    top = draft.inner("selector_top_k") or _PLAIN_TOP
    ids, values = selection.candidates(draft, hidden[1:], wide(ow.head(case)), top)
    scores = values.new_zeros(0, top, top)
    columns, rows_of = torch.zeros(2, 0, dtype=torch.long), values.new_zeros(2, 0, top)
    tokens, lead = ids[:, 0], margin(values[:, None], torch.zeros(len(values), dtype=torch.long))
    if draft.inner("selector_rank"):
        scores = selection.lattice(draft, hidden[1:], ids, values, ow.anchor(case))
        best = selection.greedy(scores)
        columns = torch.stack([best, wide(ow.given_walk(case, len(best), top))])
        rows_of = torch.stack([selection.walked(scores, walk, TEMPERATURE) for walk in columns])
        tokens, lead = ids.gather(1, best[:, None])[:, 0], margin(scores, best)
    blocks = (
        packed(draft, case) if case.name in cases.PACKED else hidden.new_zeros(0, *hidden.shape)
    )
    found = ow.DraftGolden(
        keys=torch.stack([k for k, _ in kv]),
        values=torch.stack([v for _, v in kv]),
        hidden=hidden,
        ids=ids,
        logits=values,
        tokens=tokens,
        lattice=scores,
        choices=columns,
        probabilities=rows_of,
        packed=blocks,
    )
    return ow.DraftGolden(**{name: _narrow(value) for name, value in vars(found).items()}), lead


def _narrow(tensor: torch.Tensor) -> np.ndarray:
    return tensor.numpy().astype(np.float32 if tensor.is_floating_point() else np.int32)


def main() -> None:
    torch.set_num_threads(1)
    chosen = [cases.CASES_BY_NAME[name] for name in sys.argv[1:]] or list(cases.CASES)
    path = ow.GOLDEN / "versions.json"
    record = json.loads(path.read_text()) if path.exists() else {"cases": {}}
    for case in chosen:
        golden, lead = run(case)
        file = ow.GOLDEN / f"{case.name}.npz"
        np.savez_compressed(file, fingerprint=ow.fingerprint(case), **vars(golden))
        record["cases"][case.name] = {"margin": lead}
        print(case.name, f"margin {lead:.2e}", f"{file.stat().st_size} bytes", golden.tokens)
    made = {
        "command": "python tests/oracle/make_dflash_goldens.py",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "dtype": "float64",
    }
    ordered = {case.name: record["cases"][case.name] for case in cases.CASES}
    path.write_text(json.dumps(record | made | {"cases": ordered}, indent=1) + "\n")


if __name__ == "__main__":
    main()
