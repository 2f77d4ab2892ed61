"""``jax.experimental.pallas.ops.tpu``: attention, grouped and plain matrix products, all-gather, random bits."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from published.case import Built, Case, normal, rng


def flash_attention(mesh: Any, is_causal: bool = True) -> Built:
    """Two heads of 512 positions in blocks of 128."""
    from jax.experimental.pallas.ops.tpu import flash_attention as module

    q, k, v = (normal(rng(), (1, 2, 512, 128)) + i / 8 for i in range(3))
    sizes = module.BlockSizes.get_default(1, 2, 512, 512, 128)
    fn = partial(module.flash_attention, causal=is_causal, sm_scale=128**-0.5, block_sizes=sizes)
    want = module.mha_reference(q, k, v, None, causal=is_causal, sm_scale=128**-0.5)
    return Built(fn, (q, k, v), want)


def flash_attention_gradient(mesh: Any) -> Built:
    """The backward kernels too."""
    import jax
    from jax.experimental.pallas.ops.tpu import flash_attention as module

    arrays = [normal(rng(), (1, 1, 256, 128)) + i / 8 for i in range(3)]
    sizes = module.BlockSizes.get_default(1, 1, 256, 256, 128)

    def loss(attend: Any, *arrays: Any) -> Any:
        return (attend(*arrays) ** 2).sum()

    kernel = partial(module.flash_attention, causal=True, sm_scale=0.1, block_sizes=sizes)

    def reference(q: Any, k: Any, v: Any) -> Any:
        return module.mha_reference_no_custom_vjp(q, k, v, None, causal=True, sm_scale=0.1)

    want = jax.grad(partial(loss, reference), argnums=(0, 1, 2))(*arrays)
    return Built(jax.grad(partial(loss, kernel), argnums=(0, 1, 2)), arrays, want)


def paged_attention(mesh: Any) -> Built:
    """Four sequences of up to 128 positions, in pages of 16, four pages a block."""
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention as kernel
    from jax.experimental.pallas.ops.tpu.paged_attention.util import grouped_query_attention_reference

    generator = rng()
    batch, heads, kv_heads, page, pages = 4, 8, 2, 16, 8
    q = normal(generator, (batch, heads, 128))
    # the kernel rounds keys and values to bfloat16
    k, v = (normal(generator, (kv_heads, batch * pages, page, 128), jnp.bfloat16).astype(np.float32) for _ in range(2))
    lengths = np.array([5, 128, 77, 16], np.int32)
    indices = generator.permutation(batch * pages).reshape(batch, pages).astype(np.int32)
    whole = [jnp.swapaxes(jnp.asarray(x)[:, indices].reshape(kv_heads, batch, -1, 128), 0, 1) for x in (k, v)]
    want = grouped_query_attention_reference(q, *whole, lengths)
    return Built(partial(kernel, pages_per_compute_block=4), (q, k, v, lengths, indices), want)


def splash_attention(mesh: Any) -> Built:
    """Two heads of 512 positions with a causal mask, in blocks of 128."""
    import jax
    from jax.experimental.pallas.ops.tpu import splash_attention as module

    arrays = [normal(rng(), (2, 512, 128)) / 8 for _ in range(3)]
    mask = module.MultiHeadMask([module.CausalMask((512, 512))] * 2)
    sizes = module.BlockSizes(block_q=128, block_kv=128, block_kv_compute=128)
    kernel = module.make_splash_mha(mask=mask, head_shards=1, q_seq_shards=1, block_sizes=sizes)
    reference = jax.vmap(partial(_attention, np.tril(np.ones((512, 512), bool))))
    return Built(kernel, arrays, reference(*arrays))


def _attention(mask: Any, q: Any, k: Any, v: Any) -> Any:
    import jax
    import jax.numpy as jnp

    return jax.nn.softmax(jnp.where(mask, q @ k.T, -jnp.inf), axis=-1) @ v


def ragged_paged_attention(mesh: Any) -> Built:
    """Three sequences, two of them decoding, in pages of 16."""
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import (
        ragged_paged_attention as kernel,
    )
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ref_ragged_paged_attention as reference

    arrays, keep = ragged_inputs(np.float32)
    fn = partial(kernel, num_kv_pages_per_block=4, num_queries_per_block=8, vmem_limit_bytes=64 * 2**20, sm_scale=0.1)
    return Built(fn, arrays, reference(*arrays, sm_scale=0.1), keep=keep)


def ragged_inputs(dtype: Any) -> tuple[list[Any], Any]:
    """Operands of ragged paged attention, and the part of its result that has a query."""
    generator = rng()
    kv_lens, q_lens = [40, 61, 33], [1, 18, 1]
    q = normal(generator, (32, 4, 128), dtype)
    pages = normal(generator, (24, 16, 4, 128), dtype)
    indices = generator.permutation(24).reshape(3, 8).astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(q_lens)]).astype(np.int32)
    arrays = [q, pages, np.array(kv_lens, np.int32), indices, starts, np.array([3], np.int32)]
    return arrays, lambda out: out[: sum(q_lens)]


def _grouped(generator: np.random.Generator) -> tuple[Any, Any, Any]:
    return normal(generator, (512, 256)), normal(generator, (4, 256, 256)), np.array([100, 0, 300, 112], np.int32)


def gmm(mesh: Any) -> Built:
    """512 rows in four groups, one of them empty."""
    from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm as kernel

    left, right, sizes = _grouped(rng())
    groups = np.repeat(np.arange(4), sizes)
    return Built(kernel, (left, right, sizes), np.einsum("mk,mkn->mn", left, right[groups]), tolerance=1e-2)


def tgmm(mesh: Any) -> Built:
    """The transposed product: one matrix a group."""
    from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm as kernel

    left, _, sizes = _grouped(rng())
    right = normal(rng(), (512, 256)) + 1
    bounds = pairwise(np.concatenate([[0], np.cumsum(sizes)]))
    want = np.stack([left[a:b].T @ right[a:b] for a, b in bounds])
    return Built(kernel, (np.ascontiguousarray(left.T), right, sizes), want, tolerance=1e-2)


def all_gather(mesh: Any) -> Built:
    """Both ways round a ring of four."""
    from jax.experimental.pallas.ops.tpu.all_gather import all_gather as kernel

    x = normal(rng(), (4 * 16, 128))
    return Built(partial(kernel, mesh=mesh, axis_name="x"), (x,), x)


def matmul(mesh: Any) -> Built:
    """A product in blocks of 128."""
    from jax.experimental.pallas.ops.tpu.matmul import matmul as kernel

    x, y = normal(rng(), (256, 512)), normal(rng(), (512, 256))
    return Built(partial(kernel, block_shape=(128, 128), block_k=128), (x, y), x @ y, tolerance=1e-2)


def threefry(mesh: Any) -> Built:
    """The bits of JAX's own generator."""
    import jax
    from jax.experimental.pallas.ops.tpu.random.threefry import plthreefry_random_bits as kernel

    key = np.array([7, 11], np.uint32)
    want = jax.random.bits(jax.random.wrap_key_data(key, impl="threefry2x32"), (256, 1024), np.uint32)
    return Built(lambda key: kernel(key, 32, (256, 1024)), (key,), want)


def philox(mesh: Any) -> Built:
    """The rounds of Philox 4x32 on counts, in blocks."""
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.tpu.random import philox as module

    key = np.array([7, 11], np.uint32)
    counts = jnp.arange(256 * 1024, dtype=jnp.uint32).reshape(256, 1024)
    high, low, _, _ = module.philox_4x32(0 * counts, counts, 0 * counts, 0 * counts, *key)
    return Built(lambda key: module.philox_random_bits(key, 32, (256, 1024)), (key,), high ^ low)


CASES = [
    Case("flash_attention", flash_attention, is_quick=True),
    Case("flash_attention, gradient", flash_attention_gradient),
    Case("paged_attention", paged_attention, is_quick=True),
    Case("splash_attention", splash_attention, is_quick=True),
    Case("ragged_paged_attention", ragged_paged_attention, slice="v6e:1x1", is_quick=True),
    Case("megablox gmm", gmm, is_quick=True),
    Case("megablox tgmm", tgmm, is_quick=True),
    Case(
        "all_gather",
        all_gather,
        {"x": 4},
        "v5e:2x2",
        is_quick=True,
        findings=("race",),
        note="true: the copies of all steps count on one semaphore, so the wait of one step may take the bytes of the "
        "next and forward a slot that has not come; right only where copies between two chips never overtake",
    ),
    Case("matmul", matmul, is_quick=True),
    Case("random threefry", threefry, is_quick=True),
    Case("random philox", philox, is_quick=True),
]
