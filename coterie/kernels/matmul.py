"""Matrix products in the layout that is fastest where they run."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

THIN = 96  # rows
FEW = 4  # rows, for which MKL is the faster
PARTS = 4  # of the weights, so that every thread has some
ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def thin(x: Tensor) -> bool:
    """Few rows on a CPU: there the transposed product is faster."""
    return x.shape[0] <= THIN and x.is_cpu


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` of x [T, in] without gradient; a thin result lies in memory as its transpose."""
    if not x.is_cpu:
        return F.linear(x, weight, bias)
    if not thin(x):
        y = _times(x, weight)
        return y if bias is None else y.add_(bias)
    y = _few(weight, x) if len(x) <= FEW else _times(weight, x)
    return (y if bias is None else y.add_(bias[:, None])).t()


def _times(a: Tensor, b: Tensor) -> Tensor:
    """a [M, K] times bᵀ [K, N], by oneDNN, where PyTorch has it: it takes half to nine tenths of the time of MKL."""
    if not ONEDNN or a.dtype != torch.float32:
        return F.linear(a, b)
    out: Tensor = torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
    return out


def _few(weight: Tensor, x: Tensor) -> Tensor:
    """weight [N, K] times xᵀ [K, T] by MKL, which reads rows fastest one after the other, and leaves a single one to
    one thread unless the weights come in parts."""
    columns = x.contiguous().t()
    if len(x) != 1 or len(weight) % PARTS:
        return torch.mm(weight, columns)
    return torch.bmm(weight.view(PARTS, -1, len(columns)), columns.expand(PARTS, -1, -1)).view(len(weight), 1)


def like_product(x: Tensor) -> Tensor:
    """x [T, N] in the layout of a product, so that sums and factors meet in one order."""
    return x.t().contiguous().t() if thin(x) else x


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` with or without gradient, row by row in memory."""
    if torch.is_grad_enabled() or not x.is_cpu:
        return F.linear(x, weight, bias)
    return product(x.reshape(-1, x.shape[-1]), weight, bias).contiguous().view(*x.shape[:-1], len(weight))


def lm_head_logits(hidden: Tensor, head: Tensor, bias: Tensor | None = None) -> Tensor:
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
