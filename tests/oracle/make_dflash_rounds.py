"""Makes tests/golden/dflash/tiny_*: speculative decoding of the embedded model, everything recomputed in each round.

    python tests/oracle/make_dflash_rounds.py [--target FOLDER] [--check FILE]

Needs torch and transformers. float32, eager attention, one thread, NVFP4 weights decoded to float32, no cache anywhere.

tiny_rounds.json (DFlash2, 7 drafts), tiny_mtp_rounds.json (MTP chain, 3 drafts), temperature 0. The first token comes from the
prompt; it is the first round's anchor. A round emits what it accepts and one more; the last round counts in full, past the
asked number; end marks are ignored. `target_gap` and `draft_gap` are the smallest lead of a chosen logit (of a score) over the
next one on the way: no test can ask for tokens from arithmetic that is less exact.

tiny_rows.npz: the draft's rows, candidates and greedy walk after three prompts, one of them longer than the draft's window, and
the tapped residuals of the last four positions.

With --check nothing is written: the file's prompts (JSON Lines, with the accepted counts of another implementation) are run
and compared. --target names another copy of the target, whose records those may be.
"""

import argparse
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dflash_equations as eq
import dflash_selection as selection
import numpy as np
import tokenizers
import torch
import transformers
from tiny_target import TINY, Mtp, Target, load_draft
from tokenizers import Tokenizer
from torch import Tensor

GOLDEN = Path(__file__).parents[1] / "golden" / "dflash"
COUNT = 48
MTP_DRAFTS = 3
PROMPTS = (
    'def count_words(path):\n    """Returns how often each word of a text file occurs."""\n',
    "import argparse\n\n\ndef main():\n    parser = argparse.ArgumentParser(",
    "<|im_start|>user\nWrite a function that reverses a list.<|im_end|>\n<|im_start|>assistant\n",
    "class Matrix:\n    def __init__(self, rows, columns):\n",
)
LONG = "\n\n".join(
    f"def scaled_area_{number}(width, height):\n    return {number} * width * height"
    for number in range(3, 40)
)
ROW_PROMPTS = (PROMPTS[0], PROMPTS[2], LONG)
Proposal = tuple[list[int], float]  # drafts, smallest lead
Proposer = Callable[[list[int]], Proposal]


def lead(scores: Tensor) -> float:
    """Smallest distance between the two largest numbers of any row."""
    best = scores.topk(2).values
    return float((best[:, 0] - best[:, 1]).min())


def along(scores: Tensor, columns: Tensor) -> Tensor:
    """[K, U] the rows of a lattice that a walk visits."""
    rows = torch.cat([torch.zeros_like(columns[:1]), columns[:-1]])
    return scores[torch.arange(len(rows)), rows]


@torch.no_grad()
def draft_block(draft: eq.Draft, target: Target, tokens: list[int]) -> dict[str, Tensor]:
    """What the draft makes of tokens whose last one is the anchor; taps come from all before it."""
    seen = target.see(tokens[:-1])
    place, last = torch.tensor([len(tokens) - 1]), torch.tensor(tokens[-1:])
    hidden = eq.blocks(draft, seen.taps, place, eq.embed(draft, target.table, last))[0]
    count = draft.inner("selector_top_k")
    ids, logits = selection.candidates(draft, hidden[1:], target.head, count)
    scores = selection.lattice(draft, hidden[1:], ids, logits, tokens[-1])
    columns = selection.greedy(scores)
    return {
        "taps": seen.taps[:, -4:],
        "hidden": hidden,
        "ids": ids,
        "logits": logits,
        "lattice": scores,
        "tokens": ids.gather(1, columns[:, None])[:, 0],
        "lead": torch.tensor(lead(along(scores, columns))),
    }


def dflash_proposer(draft: eq.Draft, target: Target) -> Proposer:
    def propose(tokens: list[int]) -> Proposal:
        block = draft_block(draft, target, tokens)
        return block["tokens"].tolist(), float(block["lead"])

    return propose


def mtp_proposer(head: Mtp, target: Target, drafts: int) -> Proposer:
    @torch.no_grad()
    def propose(tokens: list[int]) -> Proposal:
        hidden, following, leads = target.see(tokens[:-1]).hidden, tokens[1:], []
        for _ in range(drafts):
            made = head.rows(following, hidden)[-1:]
            logits = made @ target.head.T
            leads.append(lead(logits))
            following = [*following, int(logits.argmax())]
            hidden = torch.cat([hidden, made])
        return following[-drafts:], min(leads)

    return propose


def generate(target: Target, propose: Proposer, prompt: list[int], count: int) -> dict[str, Any]:
    """Greedy rounds until `count` tokens are there, the first token included."""
    first = target.see(prompt).logits[-1:]
    tokens, accepted, drafted = [*prompt, int(first.argmax())], [], []
    target_gap, draft_gap = lead(first), float("inf")
    while len(tokens) - len(prompt) < count:
        drafts, gap = propose(tokens)
        logits = target.see(tokens + drafts).logits[-len(drafts) - 1 :]
        wanted = logits.argmax(-1).tolist()
        agreed = [d == w for d, w in zip(drafts, wanted, strict=False)]
        kept = agreed.index(False) if False in agreed else len(drafts)
        target_gap, draft_gap = min(target_gap, lead(logits[: kept + 1])), min(draft_gap, gap)
        tokens += wanted[: kept + 1]
        accepted.append(kept)
        drafted.append(drafts)
    return {
        "tokens": tokens[len(prompt) :],
        "accepted": accepted,
        "drafts": drafted,
        "target_gap": target_gap,
        "draft_gap": draft_gap,
    }


def made_with() -> dict[str, str]:
    return {
        "command": "python tests/oracle/make_dflash_rounds.py",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "dtype": "float32",
        "attention": "eager",
    }


def write_rounds(name: str, target: Target, propose: Proposer, tokenizer: Tokenizer) -> None:
    cases = []
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt, add_special_tokens=False).ids
        cases.append(
            {"prompt": prompt, "prompt_token_ids": ids} | generate(target, propose, ids, COUNT)
        )
        print(name, cases[-1]["accepted"], cases[-1]["target_gap"], cases[-1]["draft_gap"])
    lines = ",\n".join(f" {json.dumps(case)}" for case in cases)
    head = json.dumps({"made_with": made_with(), "count": COUNT})[:-1]
    (GOLDEN / name).write_text(f'{head}, "cases": [\n{lines}\n]}}\n', encoding="utf-8")


def write_rows(target: Target, draft: eq.Draft, tokenizer: Tokenizer) -> None:
    arrays = {}
    for index, prompt in enumerate(ROW_PROMPTS):
        ids = tokenizer.encode(prompt, add_special_tokens=False).ids
        anchor = int(target.see(ids).logits[-1].argmax())
        block = draft_block(draft, target, [*ids, anchor])
        found = {"prompt": torch.tensor(ids), "anchor": torch.tensor(anchor)} | block
        print("rows", len(ids), block["tokens"].tolist(), float(block["lead"]))
        arrays |= {f"{name}_{index}": _narrow(value) for name, value in found.items()}
    np.savez_compressed(GOLDEN / "tiny_rows.npz", **arrays)


def _narrow(tensor: Tensor) -> np.ndarray:
    return tensor.numpy().astype(np.float32 if tensor.is_floating_point() else np.int32)


def check(target: Target, propose: Proposer, file: Path, count: int) -> None:
    for record in map(json.loads, file.read_text(encoding="utf-8").splitlines()[:count]):
        stored = record["reference_T0"]
        found = generate(target, propose, record["token_ids"], len(stored["tokens"]) // 2)
        rounds = len(found["accepted"])
        print(record["id"], "found", found["accepted"], "target gap", found["target_gap"])
        print(record["id"], "stored", stored["accepted_per_round"][:rounds])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, default=TINY / "target")
    parser.add_argument("--check", type=Path)
    parser.add_argument("--count", type=int, default=4, help="prompts of the file to check")
    args = parser.parse_args()
    torch.set_num_threads(1)
    draft = load_draft()
    target = Target(args.target, draft.target_layers)
    if args.check:
        check(target, dflash_proposer(draft, target), args.check, args.count)
        return
    tokenizer = Tokenizer.from_file(str(TINY / "target" / "tokenizer.json"))
    write_rows(target, draft, tokenizer)
    write_rounds("tiny_rounds.json", target, dflash_proposer(draft, target), tokenizer)
    chain = mtp_proposer(Mtp(target, args.target), target, MTP_DRAFTS)
    write_rounds("tiny_mtp_rounds.json", target, chain, tokenizer)


if __name__ == "__main__":
    main()
