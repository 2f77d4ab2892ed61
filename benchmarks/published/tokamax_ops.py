"""tokamax: grouped matrix products; its gather and top-k run on SparseCores."""

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


CASES = [
    Case("gmm_v2", gmm_v2, slice="v6e:1x1", is_quick=True),
    Case("gmm_v2, float32", partial(gmm_v2, dtype="float32"), slice="v6e:1x1"),
    Case("tgmm_v2", tgmm_v2, slice="v6e:1x1"),
    Case("ragged_gather", ragged_gather, slice="v7x:1x1x1"),
    Case("topk", topk, slice="v7x:1x1x1"),
]
