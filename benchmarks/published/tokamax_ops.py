"""tokamax: grouped matrix products, rotations, a loss; its gather and top-k run on SparseCores."""

from __future__ import annotations

import importlib
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from published.case import Built, Case, Missing, normal, rng


def ops(name: str) -> Any:
    """A module of tokamax."""
    try:
        return importlib.import_module(f"tokamax._src.ops.{name}")
    except ImportError as error:
        raise Missing(f"tokamax._src.ops.{name} cannot be imported: {error}") from error


def gmm_v2(mesh: Any, dtype: str = "bfloat16") -> Built:
    """512 rows in four groups, one of them empty."""
    import jax.numpy as jnp

    kernel = ops("gmm_v2.gmm_v2").gmm_v2
    sizes = np.array([100, 0, 300, 112], np.int32)
    left, right = normal(rng(), (512, 256), jnp.dtype(dtype)), normal(rng(), (4, 256, 256), jnp.dtype(dtype))
    groups = np.repeat(np.arange(4), sizes)
    want = np.einsum("mk,mkn->mn", left.astype(np.float32), right.astype(np.float32)[groups])
    return Built(kernel, (left, right, sizes), want, tolerance=2e-2)


def tgmm_v2(mesh: Any) -> Built:
    """The transposed product: one matrix a group."""
    import jax.numpy as jnp

    kernel = ops("gmm_v2.tgmm_v2").tgmm_v2
    sizes = np.array([100, 0, 300, 112], np.int32)
    left, right = normal(rng(), (512, 256), jnp.bfloat16), normal(rng(), (512, 256), jnp.bfloat16) + 1
    bounds = pairwise(np.concatenate([[0], np.cumsum(sizes)]))
    want = np.stack([left[a:b].astype(np.float32).T @ right[a:b].astype(np.float32) for a, b in bounds])
    fn = partial(kernel, num_actual_groups=4, preferred_element_type=jnp.float32)
    return Built(fn, (left, right, sizes), want, tolerance=2e-2)


def ragged_gather(mesh: Any) -> Built:
    """Rows by index."""
    kernel = ops("ragged_gather.pallas_mosaic_tpu_kernel").ragged_gather_pallas
    x, indices = normal(rng(), (512, 256)), rng().integers(0, 512, 300).astype(np.int32)
    return Built(kernel, (x, indices, np.array([0], np.int32), np.array([300], np.int32)), x[indices])


def topk(mesh: Any) -> Built:
    """The 16 largest of 2,048 in each of 8 rows: their indices, which the kernel gives in no order."""
    import jax.numpy as jnp

    kernel = ops("topk.pallas_mosaic_tpu_kernel").sparsecore_topk
    scores = normal(rng(), (8, 2048))
    want = np.sort(np.argsort(-scores, axis=1, kind="stable")[:, :16].astype(np.int32), axis=1)
    return Built(lambda scores: jnp.sort(kernel(scores, k=16), axis=1), (scores,), want)


def router_topk(mesh: Any) -> Built:
    """The four best of 64 experts for each of 100 rows, the last block of them an edge."""
    import jax

    kernel = ops("router_topk.pallas_mosaic_tpu_kernel").select
    scores = normal(rng(), (100, 64))
    return Built(partial(kernel, topk=4, block_rows=32), (scores,), tuple(jax.lax.top_k(scores, 4)), tolerance=1e-6)


def rope(mesh: Any) -> Built:
    """The last 64 of 256 channels turned by the position of each token."""
    kernel = ops("deepseek_rope.pallas_mosaic_tpu_kernel").rope
    generator = rng()
    x, positions = normal(generator, (64, 4, 256)), generator.integers(0, 256, 64).astype(np.int32)
    angles = np.arange(256)[:, None] / 10000 ** (np.arange(32) / 32)
    cos, sin = (f(angles)[positions][:, None] for f in (np.cos, np.sin))
    table = np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    want, (even, odd) = x.copy(), (x[..., 192::2], x[..., 193::2])
    want[..., 192::2], want[..., 193::2] = even * cos - odd * sin, even * sin + odd * cos
    return Built(kernel, (x, positions, table), want)


def cross_entropy(mesh: Any, is_gradient: bool = False) -> Built:
    """The loss of 256 rows on 640 words, or its gradients, without the logits in memory."""
    import jax.numpy as jnp

    kernels, references = (ops(f"linear_softmax_cross_entropy_loss.{name}") for name in
                           ("pallas_mosaic_tpu_kernel", "reference"))  # fmt: skip
    generator, name = rng(), "linear_softmax_cross_entropy_loss"
    x, weights = normal(generator, (256, 512)), normal(generator, (512, 640)) / 16
    arrays: tuple[Any, ...] = (x, generator.integers(0, 640, 256).astype(np.int32), weights)
    want = getattr(references, f"{name}_fwd_reference")(*map(jnp.asarray, arrays))
    if is_gradient:
        arrays = (np.float32(1), np.asarray(want[1]), *arrays)
        want = getattr(references, f"{name}_bwd_reference")(*map(jnp.asarray, arrays))
    kernel = getattr(kernels, f"{name}_{'bwd' if is_gradient else 'fwd'}_pallas_mosaic_tpu")
    return Built(partial(kernel, b_block_size=128, h_block_size=128, v_block_size=256), arrays, want, tolerance=2e-2)


CASES = [
    Case("gmm_v2", gmm_v2, slice="v6e:1x1", is_quick=True),
    Case("gmm_v2, float32", partial(gmm_v2, dtype="float32"), slice="v6e:1x1"),
    Case("tgmm_v2", tgmm_v2, slice="v6e:1x1"),
    Case("ragged_gather", ragged_gather, slice="v7x:1x1x1"),
    Case("topk", topk, slice="v7x:1x1x1"),
    Case("router_topk", router_topk, slice="v6e:1x1", is_quick=True),
    Case("deepseek_rope", rope, slice="v6e:1x1", is_quick=True),
    Case("linear_softmax_cross_entropy_loss", cross_entropy, slice="v6e:1x1"),
    Case("linear_softmax_cross_entropy_loss, gradient", partial(cross_entropy, is_gradient=True), slice="v6e:1x1"),
]
