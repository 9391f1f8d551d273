"""From a draft's hidden rows to tokens: candidates, the lattice of DFlash2's selector, walks through it. In PyTorch."""

import torch
from dflash_equations import Draft
from torch import Tensor


def candidates(draft: Draft, hidden: Tensor, head: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Ids and logits [R, count], largest first, of rows [R, E]; a draft with a head of its own names its ids through d2t."""
    own = "d2t" in draft.weights
    values, ids = (hidden @ (draft["lm_head"] if own else head).T).topk(count)
    if own:
        ids = ids + draft.weights["d2t"][ids]
    values = values * draft.inner("output_multiplier", 1.0)
    cap = draft.inner("final_logit_softcapping") or 0.0
    return ids, torch.tanh(values / cap) * cap if cap > 0 else values


def lattice(draft: Draft, hidden: Tensor, ids: Tensor, values: Tensor, anchor: int) -> Tensor:
    """Scores [K, U, U], predecessor before candidate; hidden [K, E], ids and values [K, U]."""
    predecessors = torch.cat([torch.full_like(ids[:1], anchor), ids[:-1]])
    mixed = hidden @ draft["candidate_selector.hidden_projection"].T
    left = draft.weights["candidate_selector.predecessor_codebook"][predecessors] * mixed[:, None]
    right = draft.weights["candidate_selector.successor_codebook"][ids]
    return values[:, None] + torch.einsum("kpr,kcr->kpc", left, right)


def greedy(scores: Tensor) -> Tensor:
    """Columns [K] of the walk that takes the best candidate after each predecessor."""
    column, columns = torch.tensor(0), []
    for step in scores:
        column = step[column].argmax()
        columns.append(column)
    return torch.stack(columns)


def walked(scores: Tensor, columns: Tensor, temperature: float) -> Tensor:
    """[K, U]: the distribution that each step of a walk with these columns draws from."""
    rows = torch.cat([torch.zeros_like(columns[:1]), columns[:-1]])
    return (scores[torch.arange(len(rows)), rows] / temperature).softmax(-1)
