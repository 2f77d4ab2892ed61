"""tpu-inference: all-gather with matrix product, ragged paged and latent attention, mixture of experts, delta nets."""

from __future__ import annotations

import importlib
import types
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from published.case import Built, Case, Missing, normal, rng
from published.jax_ops import ragged_inputs
from published.wheel import install


def kernels(name: str) -> Any:
    """A module of the wheel."""
    install()
    try:
        return importlib.import_module(f"tpu_inference.kernels.{name}")
    except ImportError as error:
        raise Missing(f"tpu_inference.kernels.{name} cannot be imported: {error}") from error


def all_gather_matmul(mesh: Any) -> Built:
    """Rows gathered over four devices while they are multiplied."""
    import jax.numpy as jnp

    module = kernels("collectives.all_gather_matmul")
    x, y = normal(rng(), (128, 256), jnp.bfloat16), normal(rng(), (256, 512), jnp.bfloat16)
    fn = partial(module.all_gather_matmul, mesh=mesh, axis_name="x", bn=128, bk=128)
    return Built(fn, (x, y), x.astype(np.float32) @ y.astype(np.float32), tolerance=2e-2)


def ragged_v2(mesh: Any) -> Built:
    """Three sequences, two of them decoding, in pages of 16."""
    module = kernels("ragged_paged_attention.v2.kernel")
    arrays, keep = ragged_inputs(np.float32)
    fn = partial(module.ragged_paged_attention, num_kv_pages_per_block=4, num_queries_per_block=8, sm_scale=0.1,
                 vmem_limit_bytes=64 * 2**20)  # fmt: skip
    return Built(fn, arrays, module.ref_ragged_paged_attention(*arrays, sm_scale=0.1), keep=keep)


def kv_cache_update(mesh: Any) -> Built:
    """New keys and values into pages of a cache."""
    module = kernels("ragged_paged_attention.v2.ragged_kv_cache_update")
    new, cache = normal(rng(), (32, 4, 128)), normal(rng(), (8 * 16, 4, 128)) + 1
    slices = np.zeros((3, 8), np.int32)  # first slot of the cache, first new row, rows
    slices[:, :3] = [[5, 40, 100], [0, 11, 20], [11, 9, 12]]
    want = np.array(cache)
    for slot, row, count in slices[:, :3].T:
        want[slot : slot + count] = new[row : row + count]
    fn = partial(module.kv_cache_update, page_size=16, num_slices_per_block=4)
    return Built(fn, (new, slices, cache, np.array([3], np.int32)), want)


def _ragged_v3(name: str, suffix: str, head: int, dtype: str, sizes: Any, **options: Any) -> Built:
    import jax.numpy as jnp

    module = kernels(name)
    generator = rng()
    q_lens, kv_lens, page, pages = [1, 1, 18, 30], [40, 61, 33, 70], 16, 8
    tokens, heads, kv_heads, sequences = 64, 4, 2, 4
    dtype = jnp.dtype(dtype)
    q = normal(generator, (tokens, heads, head), dtype)
    k, v = (normal(generator, (tokens, kv_heads, head), dtype) for _ in range(2))
    shape = module.get_kv_cache_shape(sequences * pages, page, kv_heads, head, dtype)
    cache = normal(generator, shape, dtype)
    indices = generator.permutation(sequences * pages).astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(q_lens)]).astype(np.int32)
    arrays = (q, k, v, cache, np.array(kv_lens, np.int32), indices, starts, np.array([2, 2, 4], np.int32))
    want = getattr(module, f"ref_ragged_paged_attention{suffix}")(*map(jnp.asarray, arrays), sm_scale=0.1)
    fn = partial(getattr(module, f"ragged_paged_attention{suffix}"), sm_scale=0.1, **sizes, **options)

    def keep(results: Any) -> Any:
        return results[0][: sum(q_lens)], results[1]

    return Built(fn, arrays, want, tolerance=2e-2, keep=keep)


def ragged_v3(mesh: Any, dtype: str = "float32") -> Built:
    """Two sequences that decode and two of both kinds; the cache is updated as well."""
    sizes = {f"{case}_block_sizes": (16, 64, 8, 32) for case in "pm"} | {"d_block_sizes": (1, 64, 1, 32)}
    return _ragged_v3("ragged_paged_attention.v3.kernel", "", 128, dtype, sizes)


def ragged_v3_head_64(mesh: Any) -> Built:
    """The variant for heads of 64, where keys and values share a row."""
    sizes = {"num_kv_pages_per_block": 4, "num_queries_per_block": 8}
    return _ragged_v3("ragged_paged_attention.v3.kernel_hd64", "_hd64", 64, "float32", sizes)


def _latent(dtype: str) -> tuple[Any, Any, Any, Any]:
    import jax.numpy as jnp

    generator = rng()
    q_lens, kv_lens, page, pages, heads, latent, rope = [1, 1, 18, 30], [40, 61, 33, 70], 16, 8, 8, 128, 64
    tokens, dtype = sum(q_lens), jnp.dtype(dtype)
    module = kernels("mla.v1.kernel")
    arrays = (
        normal(generator, (tokens, heads, latent), jnp.bfloat16),
        normal(generator, (tokens, heads, rope), jnp.bfloat16),
        normal(generator, (tokens, latent), dtype),
        normal(generator, (tokens, rope), dtype),
        normal(generator, module.get_kv_cache_shape(4 * pages, page, latent + 128, dtype), dtype),
        np.array(kv_lens, np.int32),
        generator.permutation(4 * pages).astype(np.int32),
        np.concatenate([[0], np.cumsum(q_lens)]).astype(np.int32),
        np.array([2, 2, 4], np.int32),
    )
    rows = [arrays[6][i * pages + t // page] * page + t % page for i, count in enumerate(kv_lens) for t in range(count)]

    def keep(results: Any) -> Any:
        """Of the cache, what belongs to a sequence: whole words of four tokens are written."""
        return results[0], results[1].reshape(-1, latent + 128)[np.array(rows)]

    return module, arrays, keep, module.ref_mla_ragged_paged_attention(*map(jnp.asarray, arrays), sm_scale=0.1)


def mla_v1(mesh: Any) -> Built:
    """Latent attention of four sequences, bfloat16."""
    module, arrays, keep, want = _latent("bfloat16")
    fn = partial(module.mla_ragged_paged_attention, sm_scale=0.1, num_kv_pages_per_block=4, num_queries_per_block=8,
                 vmem_limit_bytes=64 * 2**20)  # fmt: skip
    return Built(fn, arrays, want, tolerance=3e-2, keep=keep)


def mla_v2(mesh: Any) -> Built:
    """The same with a cache of float8, heads first, decoding four sequences at once."""
    import jax.numpy as jnp

    _, arrays, keep, (out, cache) = _latent("float8_e4m3fn")
    module = kernels("mla.v2.kernel")

    def fn(q: Any, *rest: Any) -> Any:
        return module.mla_ragged_paged_attention(
            jnp.transpose(q, (1, 0, 2)), *rest, sm_scale=0.1, s_dtype=jnp.float32, decode_batch_size=4,
            num_kv_pages_per_block=4, num_queries_per_block=8, vmem_limit_bytes=64 * 2**20,
        )  # fmt: skip

    return Built(fn, arrays, (jnp.transpose(out, (1, 0, 2)), cache), 0.1, keep)  # probabilities in float8


def fused_moe(mesh: Any, module: Any = None) -> Built:
    """64 tokens to two of 16 experts on four devices: dispatch, two products, combine."""
    import jax.numpy as jnp

    module = module or kernels("fused_moe.v1.kernel")
    generator = rng()
    tokens, experts, hidden, inner, top = 64, 16, 256, 256, 2
    arrays = (
        normal(generator, (tokens, hidden), jnp.bfloat16),
        normal(generator, (experts, 2, hidden, inner)).astype(jnp.bfloat16) / 16,
        normal(generator, (experts, inner, hidden)).astype(jnp.bfloat16) / 16,
        np.stack([generator.permutation(experts) for _ in range(tokens)]).astype(np.float32).astype(jnp.bfloat16) / 2,
    )
    sizes = {"bt": 16, "bf": 256, "bd1": 256, "bd2": 256, "btc": 16, "bfc": 128, "bd1c": 256, "bd2c": 256}

    def fn(*arrays: Any) -> Any:
        return module.fused_ep_moe(mesh, *arrays, top, renormalize_topk_logits=True, **sizes)

    want = module.ref_moe(*map(jnp.asarray, arrays), top, renormalize_topk_logits=True)
    return Built(fn, arrays, want, tolerance=5e-2)


def fused_moe_inside(mesh: Any) -> Built:
    """The same with the one index held inside its buffer; the result does not depend on what is read there."""
    module = kernels("fused_moe.v1.kernel")
    source = Path(module.__file__).read_text()
    before = "sz = expert_sizes_x2_smem[bt_sem_id, 0, my_e_id]\n        local_sz"
    if source.count(before) != 1:
        raise Missing("fused_moe v1: its source is not the one that is known")
    held = types.ModuleType(module.__name__)
    code = source.replace(before, f"my_e_id = jnp.maximum(my_e_id, 0); {before}")  # the lines stay what they are
    exec(compile(code, module.__file__, "exec"), vars(held))
    return fused_moe(mesh, held)


def gdn(mesh: Any) -> Built:
    """Three sequences that decode and two prefills of a gated delta net."""
    import jax
    import jax.numpy as jnp

    module = kernels("gdn")
    reference = kernels("gdn.reference.ragged_gated_delta_rule_ref").ragged_gated_delta_rule
    generator = rng()
    decode, lengths, heads, size = 3, [9, 15], 2, 128
    counts = [1] * decode + lengths
    tokens, sequences = sum(counts), len(counts)
    q, k, v = (normal(generator, (tokens, heads, size), jnp.bfloat16) for _ in range(3))
    a, b = (normal(generator, (tokens, heads), jnp.bfloat16) for _ in range(2))
    log, state = normal(generator, (heads,)), normal(generator, (sequences, heads, size, size))
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    slots, has_state = np.arange(sequences, dtype=np.int32), np.ones(sequences, bool)
    mixed = np.concatenate([x.reshape(tokens, -1) for x in (q, k, v)], axis=-1).astype(np.float32)
    last, out = reference(
        jnp.asarray(mixed), b.astype(np.float32), a.astype(np.float32), jnp.asarray(state), log[None, None],
        np.zeros((1, 1, heads), np.float32), jnp.asarray(starts), jnp.asarray(slots),
        np.array([decode, sequences, sequences], np.int32), jnp.asarray(has_state),
        n_kq=heads, n_v=heads, d_k=size, d_v=size,
    )  # fmt: skip

    def fn(q: Any, k: Any, v: Any, starts: Any, a: Any, state: Any, slots: Any, b: Any, log: Any) -> Any:
        return module.fused_gdn(
            *(jax.nn.silu(x) for x in (q, k, v)), starts, a, state, slots, b=b,
            has_initial_state=jnp.asarray(has_state), distribution=jnp.array([decode, sequences], jnp.int32),
            use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, A_log=log, dt_bias=None, lower_bound=None,
        )  # fmt: skip

    arrays = (q, k, v, starts, a, state, slots, b, log)
    return Built(fn, arrays, (out.reshape(tokens, heads, size), last), tolerance=2e-2)


def gdn_v2(mesh: Any) -> Built:
    """Two prefills of 24 and 40 positions in chunks of 16, with convolved queries, keys and values side by side."""
    import jax.numpy as jnp

    kernel = kernels("gdn.v2.recurrent_scan_v2").recurrent_scan
    reference = kernels("gdn.reference.ragged_gated_delta_rule_ref").ragged_gated_delta_rule
    generator = rng()
    counts, decode, heads, size, chunk = [1, 1, 24, 40], 2, 2, 128, 16
    tokens, sequences = sum(counts), len(counts)
    mixed = normal(generator, (tokens + chunk, 3 * heads * size), jnp.bfloat16)
    a, b = (normal(generator, (tokens + chunk, heads), jnp.bfloat16) for _ in range(2))
    log, bias = normal(generator, (heads,)), normal(generator, (heads,))
    state = normal(generator, (sequences, heads, size, size))
    state[decode:] = 0
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    slots, distribution = np.arange(sequences, dtype=np.int32), np.array([decode, sequences, sequences], np.int32)
    sizes = {"n_kq": heads, "n_v": heads, "d_k": size, "d_v": size}
    last, out = reference(
        *(jnp.asarray(x[:tokens], jnp.float32) for x in (mixed, b, a)), jnp.asarray(state), log[None, None],
        bias[None, None], jnp.asarray(starts), jnp.asarray(slots), distribution, jnp.ones(sequences, bool), **sizes,
    )  # fmt: skip
    fn = partial(kernel, chunk_size=chunk, BT=chunk, use_qk_norm_in_gdn=True, **sizes)

    def keep(results: Any) -> Any:
        return results[0], results[1][:tokens]

    arrays = (mixed, b, a, state, log, bias, starts, slots, distribution)
    names = ("mixed_qkv", "b", "a", "recurrent_state", "A_log", "dt_bias", "query_start_loc", "state_indices",
             "distribution")  # fmt: skip
    return Built(lambda *values: fn(**dict(zip(names, values, strict=True))), arrays, (last, out), 5e-2, keep)


def quantized_matmul(mesh: Any) -> Built:
    """Weights of int8 with a scale a row."""
    import jax.numpy as jnp

    kernel = kernels("quantized_matmul.kernel").quantized_matmul_kernel
    blocks = kernels("quantized_matmul.tuned_block_sizes").TunedValue(64, 128, 256)
    generator = rng()
    x, weights = normal(generator, (128, 512), jnp.bfloat16), generator.integers(-127, 128, (256, 512)).astype(np.int8)
    scales = (generator.random(256) / 100).astype(np.float32)
    want = x.astype(np.float32) @ (weights * scales[:, None]).T
    return Built(partial(kernel, tuned_value=blocks), (x, weights, scales), want, tolerance=2e-2)


def flash_attention(mesh: Any) -> Built:
    """Two heads of 256 positions in blocks of 128."""
    module = kernels("flash_attention.kernel")
    q, k, v = (normal(rng(), (1, 2, 256, 128)) + i / 8 for i in range(3))
    want = module.mha_reference(q, k, v, None, causal=True, sm_scale=0.1)
    sizes = module.BlockSizes(128, 128, 128, 1)
    return Built(partial(module.flash_attention, causal=True, sm_scale=0.1, block_sizes=sizes), (q, k, v), want)


def ragged_gather_v2(mesh: Any) -> Built:
    """512 rows by index, on SparseCores, through a core_map over refs."""
    import jax.numpy as jnp

    kernel = kernels("sparse_core.ragged_gather_v2").ragged_gather_v2
    x, indices = normal(rng(), (512, 1024), jnp.bfloat16), rng().integers(0, 512, 512).astype(np.int32)
    return Built(kernel, (x, indices, np.array([0], np.int32), np.array([512], np.int32)), x[indices], tolerance=0)


def causal_conv1d(mesh: Any) -> Built:
    """Two sequences that decode and two prefills, four taps, with the state of each."""
    kernel = kernels("causal_conv1d.causal_conv1d").ragged_causal_conv1d
    generator = rng()
    counts, decode, taps, size = [1, 1, 30, 40], 2, 4, 256
    sequences, tokens = len(counts), sum(counts)
    x, state = normal(generator, (tokens, size)), normal(generator, (sequences, taps - 1, size))
    weights, bias = normal(generator, (size, 1, taps)), normal(generator, (size,))
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    rows = [np.concatenate([state[i], x[starts[i] : starts[i + 1]]]) for i in range(sequences)]
    windows = np.concatenate([np.lib.stride_tricks.sliding_window_view(part, taps, axis=0) for part in rows])
    want = (windows * weights[:, 0]).sum(-1) + bias, np.stack([part[1 - taps :] for part in rows])
    distribution = np.array([decode, decode, sequences], np.int32)
    arrays = (x, state, weights, bias, starts, np.arange(sequences, dtype=np.int32), distribution,
              np.ones(sequences, bool))  # fmt: skip
    return Built(partial(kernel, kernel_size=taps, tile_size=16), arrays, want)


RING, EXPERTS = {"x": 4}, {"data": 1, "model": 4}
CASES = [
    Case("all_gather_matmul", all_gather_matmul, RING, "v6e:2x2"),
    Case("ragged_paged_attention v2", ragged_v2, slice="v6e:1x1", is_quick=True),
    Case("kv_cache_update v2", kv_cache_update, slice="v6e:1x1", is_quick=True),
    Case("ragged_paged_attention v3", ragged_v3, slice="v6e:1x1"),
    Case("ragged_paged_attention v3, bfloat16", partial(ragged_v3, dtype="bfloat16"), slice="v6e:1x1"),
    Case("ragged_paged_attention v3, heads of 64", ragged_v3_head_64, slice="v6e:1x1"),
    Case("mla v1", mla_v1, slice="v6e:1x1"),
    Case(
        "mla v2", mla_v2, slice="v6e:1x1", findings=("race",),
        note="true, data unharmed: _fetch_bkv starts to read the cache for the next queries before _update_kv_cache "
        "writes the new tokens, and both take the whole word in which old and new tokens meet; what is written there "
        "of the old ones is what was there",
    ),
    Case(
        "fused_moe v1", fused_moe, EXPERTS, "v6e:2x2", findings=("out-of-bounds",),
        note="true: for its first two experts wait_a2a_gather_send loads the SMEM size of expert -2 and discards it; "
        "the TPU compiler accepts that, but no run goes on behind an access outside a buffer, whatever on_finding says",
    ),
    Case(
        "fused_moe v1, that index held at 0", fused_moe_inside, EXPERTS, "v6e:2x2", findings=("race",),
        note="true: before a slot of a2a_s_acc_x2_vmem is written again, nothing waits for the copies of "
        "start_a2a_gather that stay on the device (a2a_gather_sem, at the end), and the wait for those that leave it "
        "shares send_sems with the scatter of the next expert, whose bytes may satisfy it",
    ),
    Case("quantized_matmul", quantized_matmul, slice="v6e:1x1", is_quick=True),
    Case("flash_attention", flash_attention, slice="v6e:1x1", is_quick=True),
    Case("ragged_gather v2", ragged_gather_v2, slice="v7x:1x1x1"),
    Case("causal_conv1d", causal_conv1d, slice="v6e:1x1"),
    Case("gdn v1", gdn, slice="v6e:1x1"),
    Case(
        "gdn v2", gdn_v2, slice="v6e:1x1", findings=("race", "uninitialised"),
        note="true, data unharmed: where decoding and prefill share a tile of rows, both outputs of the pipeline write "
        "it, with the same rows in both (do_stitch); rows behind the last token stay unwritten",
    ),
]  # fmt: skip
