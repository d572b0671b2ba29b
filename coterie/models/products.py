"""Matrix products in the layout that is fastest where they run."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

THIN = 96  # rows
FEW = 8  # rows that MKL likes to read one after the other
LANES = 16  # numbers that a core multiplies at once: 9 rows take it longer than 16
PARTS = 4  # of the weights, each for one thread


def thin(x: Tensor) -> bool:
    """Few rows on a CPU: there MKL takes half the time for the transposed product."""
    return x.shape[0] <= THIN and x.is_cpu


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` of x [T, in] without gradient; a thin result lies in memory as its transpose."""
    if not thin(x):
        return F.linear(x, weight, bias)
    columns = _columns(x)
    y = _in_parts(weight, columns) if _better_in_parts(x, weight) else torch.mm(weight, columns)
    y = y[:, : len(x)]
    return (y if bias is None else y.add_(bias[:, None])).t()


def _columns(x: Tensor) -> Tensor:
    """x [T, K] as [K, T or more], as MKL multiplies it fastest. A step of 2 rows takes a third of the time, of 8 half,
    of 31 two thirds."""
    if len(x) <= FEW:
        return x.contiguous().t()
    missing = -len(x) % LANES
    return F.pad(x.t(), (0, missing)) if 0 < missing < LANES // 2 else x.t()


def _better_in_parts(x: Tensor, weight: Tensor) -> bool:
    """MKL gives one row to one thread. Its threads get into each other's way from 49 rows on, and from 32 on where
    more goes in than comes out."""
    outs, width = weight.shape
    return outs % PARTS == 0 and (len(x) == 1 or len(x) > (31 if width > outs else 48))


def _in_parts(weight: Tensor, x: Tensor) -> Tensor:
    """weight [N, K] times x [K, T]: every thread has rows of the weight to itself."""
    parts = weight.view(PARTS, -1, weight.shape[1])
    return torch.bmm(parts, x.expand(PARTS, -1, -1)).view(len(weight), -1)


def like_product(x: Tensor) -> Tensor:
    """x [T, N] in the layout of a product, so that sums and factors meet in one order."""
    return x.t().contiguous().t() if thin(x) else x


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` with or without gradient, row by row in memory."""
    flat = x.reshape(-1, x.shape[-1])
    if torch.is_grad_enabled() or not thin(flat):
        return F.linear(x, weight, bias)
    return product(flat, weight, bias).contiguous().view(*x.shape[:-1], -1)


def logits_of(hidden: Tensor, head: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`; without gradient a thin result lies in memory as its transpose, as with `product`, and on CUDA
    it has full precision also where its factors have half: large logits need it."""
    if torch.is_grad_enabled():
        return F.linear(hidden, head, bias)
    if not hidden.is_cuda or hidden.dtype == torch.float32:
        return product(hidden, head, bias)
    return in_full(hidden, head, bias)


def in_full(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` of x [T, in] without gradient as full precision; on CUDA nothing is rounded to half before: what is to
    be added to many others, goes through a gate, or is large."""
    full = torch.promote_types(x.dtype, torch.float32)
    if not x.is_cuda or x.dtype == full:
        return F.linear(x, weight, bias).to(full)
    out = torch.mm(x, weight.t(), out_dtype=full)
    return out if bias is None else out.add_(bias)


def add_product(out: Tensor, x: Tensor, weight: Tensor, scale: float = 1.0) -> None:
    """out [T, N] += scale·x·weightᵀ in place, in the precision of `out`."""
    if out.dtype == x.dtype:
        out.addmm_(x, weight.t(), alpha=scale)
    elif x.is_cuda:
        torch.ops.aten.addmm.dtype_out(out, x, weight.t(), out.dtype, alpha=scale, out=out)
    else:
        out.add_(in_full(x, weight), alpha=scale)
