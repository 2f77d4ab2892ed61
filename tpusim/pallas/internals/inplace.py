"""The uses of JAX internals that running kernels in place needs; all others stand in ``internals``.

Checked with jax 0.10.2 (Python 3.11) and 0.12.0.1 (Python 3.13), which agree here.

Pallas looks its TPU interpreter up as an attribute of a module whenever a kernel is compiled for the CPU
with ``InterpretParams``; here that attribute becomes ours, and the setting that forces interpret mode holds
parameters that equal no others.  The setting is part of every key of JAX's caches, so a function compiled
before is compiled anew, and what is compiled here is found by nobody afterwards.  A kernel becomes one
primitive with one callback, which gets the buffers themselves: ``io_callback`` would put each operand on a
device first, from a thread that the device may be waiting for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from tpusim.errors import NotModelledError
from tpusim.findings import Where
from tpusim.pallas.internals.chip import replaced, simulated_chip
from tpusim.pallas.internals.jaxprs import where_of_function
from tpusim.pallas.internals.kernels import core_axes, lone_device
from tpusim.pallas.internals.versions import PrivateModule

_core = PrivateModule("jax._src.core")
_config = PrivateModule("jax._src.config")
_effects = PrivateModule("jax._src.effects")
_callback = PrivateModule("jax._src.callback")
_sharding_impls = PrivateModule("jax._src.sharding_impls")
_traceback_util = PrivateModule("jax._src.traceback_util")
_xla_bridge = PrivateModule("jax._src.xla_bridge")
_mlir = PrivateModule("jax._src.interpreters.mlir")
_pxla = PrivateModule("jax._src.interpreters.pxla")
_pallas_core = PrivateModule("jax._src.pallas.core")
_pallas_call = PrivateModule("jax._src.pallas.pallas_call")
_interpreter = PrivateModule("jax._src.pallas.mosaic.interpret.interpret_pallas_call")

RuntimeFailure = jax.errors.JaxRuntimeError


class _KernelEffect(_effects.type("Effect")):  # type: ignore[misc]
    """Kernels of a program run in its order; unlike ``io_callback`` they may stand in ``jax.checkpoint``."""

    def __str__(self) -> str:
        return "tpusim kernel"


@cache
def _kernel_effect() -> _KernelEffect:
    """The effect, once JAX knows it."""
    for allowed in (
        _effects.ordered_effects,
        _effects.shardable_ordered_effects,
        _effects.lowerable_effects,
        _effects.control_flow_allowed_effects,
        _effects.remat_allowed_effects,
        _effects.custom_derivatives_allowed_effects,
    ):
        allowed.add_type(_KernelEffect)
    return _KernelEffect()


@cache
def _hide_frames() -> None:
    """Our frames are as little the user's as JAX's own."""
    here = Path(__file__)
    for path in (here, here.parent.parent / "inplace.py", here.parent.parent / "meeting.py"):
        _traceback_util.register_exclusion(str(path))


@dataclass(frozen=True, kw_only=True)
class _InPlace(pltpu.InterpretParams):  # type: ignore[misc]
    """Parameters of interpret mode that equal no others."""

    token: object = field(default_factory=object)


class KernelEquation(NamedTuple):
    """A kernel call as its lowering sees it; stands for its equation, which knows no more."""

    params: dict[str, Any]
    where: Where | None

    @property
    def primitive(self) -> Any:
        """A ``pallas_call``, which is what all kernels are by then."""
        return _pallas_call.pallas_call_p

    @property
    def name(self) -> str:
        """The name of the call, or that of its function."""
        return str(self.params.get("name") or self.params["jaxpr"].debug_info.func_name)


Entry = Callable[..., tuple[Any, ...]]
"""A device enters a kernel: its place in the mesh, row-major, and its operands; gives its results."""

Intercept = Callable[[KernelEquation, dict[str, int]], Entry]
"""Called once for each kernel that is compiled, with the mesh it is in."""


@contextmanager
def kernels_in_place(intercept: Intercept, chip: str, cores_per_device: int) -> Iterator[object]:
    """Within it, each TPU kernel that runs on the CPU enters what ``intercept`` gives for it.

    Code that asks JAX for the kind of TPU is told ``chip``.  Gives the parameters that kernels see.
    """
    _hide_frames()
    mode = _config.pallas_tpu_interpret_mode_context_manager
    mine = _InPlace()
    is_foreign = False

    def interpret(*operands: Any, interpret_params: Any, **params: Any) -> list[Any]:
        nonlocal is_foreign
        is_foreign = is_foreign or interpret_params is not mine
        return _enter(intercept, operands, params)

    # A program that forces interpret mode itself may find kernels that it compiled before, under equal parameters.
    jax.clear_caches()
    with ExitStack() as stack:
        stack.callback(lambda: jax.clear_caches() if is_foreign else None)
        stack.enter_context(replaced(_interpreter.module(), "interpret_pallas_call", interpret))
        stack.enter_context(replaced(_pallas_core.module(), "get_interpret_effects", _call_effects))
        stack.enter_context(simulated_chip(chip, cores_per_device))
        everywhere = mode.get_global()
        stack.callback(mode.set_global, everywhere)
        mode.set_global(mine)  # for other threads of the program
        stack.enter_context(pltpu.force_tpu_interpret_mode(mine))
        yield mine


@contextmanager
def executions_end_with(check: Callable[[], None]) -> Iterator[None]:
    """Within it, a call of a compiled program that holds kernels waits for its end and then calls ``check``.

    Without it an error would show wherever the program next looks at a result.
    """
    execute = _pxla.ExecuteReplicated.__call__

    def call(self: Any, *operands: Any) -> Any:
        if _kernel_effect() not in self.ordered_effects:
            return execute(self, *operands)
        try:
            results = execute(self, *operands)
            jax.block_until_ready([value for value in results if isinstance(value, jax.Array)])
            jax.effects_barrier()
        except RuntimeFailure:
            check()
            raise
        check()
        return results

    with replaced(_pxla.ExecuteReplicated, "__call__", call):
        yield


# -- the kernel as one callback ------------------------------------------------------------------------


def _enter(intercept: Intercept, operands: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """What the compiled program has in place of a kernel."""
    sizes = {str(axis): int(size) for axis, size in _core.get_axis_env().axis_sizes.items()}
    index: Any = jax.numpy.int32(0)
    for axis, size in _core.get_axis_env().axis_sizes.items():
        index = index * size + jax.lax.axis_index(axis)
    if params["mesh"] is not None:  # from core_map or pl.kernel
        params = {**params, "jaxpr": _placed(params["jaxpr"], params["grid_mapping"], params["mesh"])}
    equation = KernelEquation(params, where_of_function(params["jaxpr"]))
    entry = intercept(equation, sizes or lone_device(core_axes(equation)))
    plain = [_interpreter.remove_memory_space_p.bind(_words(value)) for value in operands]
    types = tuple(_core.ShapedArray(aval.shape, aval.dtype) for aval in params["out_avals"])
    results: list[Any] = _kernel_primitive().bind(index, *plain, entry=entry, types=types)
    return results


def _placed(jaxpr: Any, mapping: Any, mesh: Any) -> Any:
    """``jaxpr`` with its operands in the mesh's memory space where it names none, as Pallas lowers it."""
    first, last = mapping.num_index_operands, mapping.num_index_operands + mapping.num_inputs + mapping.num_outputs
    renamed = {
        var: _core.Var(var.aval.update(memory_space=mesh.default_memory_space))
        for var in jaxpr.invars[first:last]
        if getattr(var.aval, "memory_space", None) is None and isinstance(var.aval.dtype, np.dtype)
    }

    def of(variables: Sequence[Any]) -> list[Any]:
        return [var if isinstance(var, _core.Literal) else renamed.get(var, var) for var in variables]

    eqns = [eqn.replace(invars=of(eqn.invars)) for eqn in jaxpr.eqns]
    return jaxpr.replace(invars=of(jaxpr.invars), eqns=eqns)


def _words(value: Any) -> Any:
    """A typed random key as the integers it consists of; anything else as it is."""
    return jax.random.key_data(value) if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key) else value


def _call_effects(interpret: Any) -> set[Any]:
    """The effects of a kernel call with these parameters."""
    return {_kernel_effect()} if isinstance(interpret, pltpu.InterpretParams) else set()


def refused(equation: KernelEquation) -> str | None:
    """What cannot be done in place, if anything."""
    params = equation.params
    if not all(isinstance(aval.dtype, np.dtype) for aval in params["out_avals"]):
        return "in place, a kernel whose results are not all arrays"
    return None


_NOT_LOCAL = (
    "a kernel in a program over several devices that is not local to each of them: TPUs cannot partition a kernel "
    "either; call it within a shard_map over all axes of the mesh"
)


@cache
def _kernel_primitive() -> Any:
    """A kernel as one equation."""
    primitive = _core.Primitive("tpusim_kernel")
    primitive.multiple_results = True
    primitive.def_effectful_abstract_eval(_types)
    _mlir.register_lowering(primitive, _lower, cacheable=False)
    return primitive


def _types(*_: Any, entry: Entry, types: tuple[Any, ...]) -> tuple[list[Any], set[Any]]:
    return list(types), {_kernel_effect()}


def _lower(ctx: Any, *operands: Any, entry: Entry, types: tuple[Any, ...]) -> Any:
    context = ctx.module_context.axis_context
    if isinstance(context, _sharding_impls.SPMDAxisContext):
        is_local = context.manual_axes == frozenset(context.mesh.axis_names)
    else:
        is_local = getattr(context, "num_devices", 1) == 1
    if not is_local:
        raise NotModelledError(_NOT_LOCAL)
    sharding = _callback._callback_op_sharding(context, None, ctx.avals_out)
    results, token, _ = _callback.emit_python_callback(
        ctx,
        entry,
        ctx.tokens_in.get(_kernel_effect()),
        list(operands),
        ctx.avals_in,
        ctx.avals_out,
        has_side_effect=True,
        returns_token=True,
        sharding=sharding,
    )
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(_mlir.TokenSet({_kernel_effect(): token})))
    return results


# -- the devices of the host ---------------------------------------------------------------------------


class Host(NamedTuple):
    """What JAX runs on here."""

    platform: str
    devices: int


def host() -> Host:
    """JAX's default platform and its number of devices.

    Where JAX has not started yet and its environment says all, it does not start: a program may want to
    configure it first.
    """
    flag = re.search(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    if flag and os.environ.get("JAX_PLATFORMS") == "cpu" and not _xla_bridge.backends_are_initialized():
        return Host("cpu", int(flag[1]))
    return Host(jax.default_backend(), jax.device_count())


def size_of(axis_sizes: dict[str, int]) -> int:
    """Devices of a mesh."""
    return prod(axis_sizes.values())
