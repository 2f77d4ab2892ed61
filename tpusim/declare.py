"""What a kernel's declarations mean on one mesh: shards, memory spaces, scratch, grid.

Both ways to run a kernel, the simulated machine and real Pallas, read a :class:`Declared`, so defaults
and mistakes are the same on both.  Nothing here knows about either.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import CodeType
from typing import TYPE_CHECKING, Any, NoReturn, cast

from tpusim.backend import Backend, use
from tpusim.errors import OptionError
from tpusim.specs import (
    BlockSpec,
    MemoryRef,
    MemorySpace,
    SemaphoreArray,
    SemaphoreType,
    ShapeDtypeStruct,
)

if TYPE_CHECKING:
    from tpusim.program import Kernel

Dims = tuple[tuple[str, ...], ...]
"""Sharding of one array: for each dimension the mesh axes that split it."""


@dataclass(frozen=True)
class Declared:
    """One kernel on one mesh, for input arrays of known shapes."""

    in_shards: tuple[ShapeDtypeStruct, ...]
    """What one device gets of each input."""
    out_shards: tuple[ShapeDtypeStruct, ...]
    """What one device produces of each output."""
    out_globals: tuple[ShapeDtypeStruct, ...]
    """The outputs of all devices together."""
    in_specs: tuple[BlockSpec, ...]
    out_specs: tuple[BlockSpec, ...]
    """Memory space and blocks of each array; ``memory_space`` is never ``None``."""
    scratch: tuple[MemoryRef | SemaphoreArray, ...]
    grid: tuple[int, ...]
    shard_in: tuple[Dims, ...]
    shard_out: tuple[Dims, ...]
    single_output: bool
    """Whether ``out_shape`` was one ``ShapeDtypeStruct``: then the result is one array, not a tuple."""
    aliases: dict[int, int]
    """Input index to the output index that is the same buffer."""


def resolve(kernel: Kernel, global_shapes: Sequence[ShapeDtypeStruct], axis_sizes: Mapping[str, int]) -> Declared:
    """Fill in the defaults of ``kernel`` for GLOBAL input shapes on a mesh; checks all of it.

    Declarations that are functions are called with the input shards; ``axis_size`` works in them.
    Raises :class:`OptionError` for a declaration that cannot be right.
    """
    sizes = dict(axis_sizes)
    if tuple(sizes) != kernel.axes:
        raise OptionError(f"{kernel.name}: the mesh has axes {tuple(sizes)}, the kernel {kernel.axes}")
    say = _Complaints(str(kernel.name))
    shard_in = _shardings(say, "shard_in", kernel.shard_in, global_shapes, kernel.axes)
    in_shards = tuple(
        _shard_of(say, f"input {i}", shape, dims, sizes)
        for i, (shape, dims) in enumerate(zip(global_shapes, shard_in, strict=True))
    )

    def call(declaration: Any) -> Any:
        if not callable(declaration) or isinstance(declaration, MemorySpace | SemaphoreType):
            return declaration
        if not _takes(declaration, len(in_shards)):
            say.no(f"{_signature(declaration)} is declared, and the kernel was called with {len(in_shards)} arrays")
        with use(cast(Backend, _SizesOnly(sizes))):
            return declaration(*in_shards)

    out_shape = call(kernel.out_shape)
    single_output = isinstance(out_shape, ShapeDtypeStruct)
    out_shards = _out_shards(say, (out_shape,) if single_output else out_shape)
    shard_out = _shardings(say, "shard_out", kernel.shard_out, out_shards, kernel.axes)
    declared = Declared(
        in_shards=in_shards,
        out_shards=out_shards,
        out_globals=tuple(global_shape(s, dims, sizes) for s, dims in zip(out_shards, shard_out, strict=True)),
        in_specs=_specs(say, "in_specs", call(kernel.in_specs), len(in_shards)),
        out_specs=_specs(say, "out_specs", call(kernel.out_specs), len(out_shards)),
        scratch=_scratch(say, call(kernel.scratch_shapes)),
        grid=_grid(say, call(kernel.grid)),
        shard_in=shard_in,
        shard_out=shard_out,
        single_output=single_output,
        aliases=_aliases(say, kernel.input_output_aliases, in_shards, out_shards),
    )
    counts = (len(in_shards), len(out_shards), len(declared.scratch))
    if not _takes(kernel.fn, sum(counts)):
        say.no(
            f"{_signature(kernel.fn)} is called with {sum(counts)} refs: "
            "{} inputs, {} outputs, {} of scratch".format(*counts)
        )
    return declared


def axes_size(axis: str | tuple[str, ...], axis_sizes: Mapping[str, int]) -> int:
    """Number of devices along one mesh axis or several; raises :class:`OptionError` for an unknown one."""
    names = (axis,) if isinstance(axis, str) else axis
    for name in names:
        if name not in axis_sizes:
            raise OptionError(f"there is no mesh axis {name!r}; this mesh has {_mesh_text(axis_sizes)}")
    return prod(axis_sizes[name] for name in names)


def as_scratch(entry: Any) -> MemoryRef | SemaphoreArray:
    """A scratch declaration in full, of ``scratch_shapes`` or ``run_scoped``; raises :class:`OptionError`."""
    if isinstance(entry, SemaphoreType):
        return SemaphoreArray(entry, ())
    if isinstance(entry, MemoryRef) and entry.space not in (MemorySpace.VMEM, MemorySpace.SMEM):
        raise OptionError(
            f"{entry.space!r}({entry.shape}, {entry.dtype.name}): Pallas has scratch in VMEM and SMEM only; "
            "declare a buffer in HBM as one more output"
        )
    if not isinstance(entry, MemoryRef | SemaphoreArray):
        raise OptionError(f"scratch is a buffer such as VMEM((8, 128), 'float32') or a semaphore, not {entry!r}")
    return entry


def device_id_problem(device_id: Any, axis_sizes: Mapping[str, int]) -> str | None:
    """Why ``device_id`` cannot name a device of this mesh, or ``None``; looks only at known integers."""
    if isinstance(device_id, dict):
        parts = [(key if isinstance(key, tuple) else (key,), value) for key, value in device_id.items()]
        named = [name for names, _ in parts for name in names]
        for name in named:
            if name not in axis_sizes:
                return f"device id {device_id!r} names axis {name!r}; this mesh has {_mesh_text(axis_sizes)}."
            if named.count(name) > 1:
                return f"device id {device_id!r} names axis {name!r} twice."
    else:
        ids = device_id if isinstance(device_id, tuple) else (device_id,)
        if len(ids) != len(axis_sizes):
            return (
                f"Number of device ids must match the number of mesh axes, but got {len(ids)} ids "
                f"for a {len(axis_sizes)}D mesh. Give one coordinate for each of {tuple(axis_sizes)}, or a dict."
            )
        parts = [((name,), value) for name, value in zip(axis_sizes, ids, strict=True)]
    for names, value in parts:
        size = prod(axis_sizes[name] for name in names)
        if value is None or isinstance(value, bool | float | str | tuple | dict):
            return f"a device id holds integers, not {value!r}."
        if isinstance(value, int) and not 0 <= value < size:
            return f"device id {device_id!r} is outside the mesh {_mesh_text(axis_sizes)}."
    return None


def missing_collective_id(name: str) -> str:
    """What a kernel is told that takes the barrier semaphore without a ``collective_id``."""
    return (
        f"{name} uses the barrier semaphore and has no collective_id: give the kernel "
        "collective_id=0 (another number for each kernel that synchronises differently)."
    )


def unused_collective_id(name: str, collective_id: int) -> str:
    """What a kernel is told that has a ``collective_id`` and never takes the barrier semaphore."""
    return (
        f"{name} has collective_id={collective_id} and never calls get_barrier_semaphore(): "
        "the compiler refuses a collective_id that is not used; leave it out."
    )


def check_returned(name: str, returned: Any) -> None:
    """Raise :class:`OptionError` where a kernel's function returned something."""
    if returned is None:
        return
    text = "returns a value; a kernel returns None and writes its results to its refs"
    if inspect.isgenerator(returned) or inspect.iscoroutine(returned):
        returned.close()
        text = f"is a {type(returned).__name__}; waits block by themselves, without yield or await"
    raise OptionError(f"{name} {text}")


def global_shape(shard: ShapeDtypeStruct, dims: Dims, axis_sizes: Mapping[str, int]) -> ShapeDtypeStruct:
    """The array of which every device holds one ``shard``."""
    sizes = [size * prod(axis_sizes[n] for n in names) for size, names in zip(shard.shape, dims, strict=True)]
    return ShapeDtypeStruct(sizes, shard.dtype)


def unwrapped(fn: Any) -> Any:
    """The function behind ``functools.partial`` and decorators."""
    while isinstance(fn, functools.partial) or hasattr(fn, "__wrapped__"):
        fn = fn.func if isinstance(fn, functools.partial) else fn.__wrapped__
    return fn


def code_of(fn: Any) -> CodeType | None:
    """The code that a call of ``fn`` runs: that of a function, or of the ``__call__`` of an object."""
    inner = unwrapped(fn)
    code = getattr(inner, "__code__", None)
    if code is None and callable(inner):
        code = getattr(type(inner).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None


def parameter_names(fn: Any) -> list[str]:
    """Names of the positional parameters of ``fn``; none where it does not say."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _takes(fn: Any, count: int) -> bool:
    """Whether ``fn`` can be called with ``count`` positional arguments, as far as one can tell."""
    try:
        inspect.signature(fn).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a function that does not say
        return True
    return True


def _signature(fn: Any) -> str:
    return f"{getattr(fn, '__name__', 'function')}{inspect.signature(fn)}"


class _SizesOnly:
    """The backend of declarations: knows how many devices an axis has, and nothing else."""

    def __init__(self, axis_sizes: Mapping[str, int]) -> None:
        self._axis_sizes = axis_sizes

    def axis_size(self, axis: str | tuple[str, ...]) -> int:
        return axes_size(axis, self._axis_sizes)

    def __getattr__(self, name: str) -> NoReturn:
        raise OptionError(f"{name}: a declaration may use axis_size only; it is the same on every device")


class _Complaints:
    """Raises errors that start with the kernel's name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def no(self, text: str) -> NoReturn:
        raise OptionError(f"{self._name}: {text}")


def _mesh_text(axis_sizes: Mapping[str, int]) -> str:
    return ",".join(f"{name}={size}" for name, size in axis_sizes.items())


def _shardings(
    say: _Complaints, option: str, value: Any, shapes: Sequence[ShapeDtypeStruct], axes: tuple[str, ...]
) -> tuple[Dims, ...]:
    if value is None:
        for i, shape in enumerate(shapes):
            if not shape.ndim:
                say.no(f"array {i} has no dimension to shard over {axes}; give {option}=((),) to replicate it")
        return tuple((axes, *((),) * (shape.ndim - 1)) for shape in shapes)
    if not isinstance(value, tuple | list):
        say.no(f"{option} must hold one tuple for each array, such as (('x', None),), not {value!r}")
    specs: Sequence[Any] = value
    if len(shapes) == 1 and specs and not all(isinstance(spec, tuple | list) for spec in specs):
        specs = (value,)  # the only array's sharding itself
    if len(specs) != len(shapes):
        say.no(f"{option} has {len(specs)} entries for {len(shapes)} arrays")
    return tuple(_dims(say, option, spec, shape, axes) for spec, shape in zip(specs, shapes, strict=True))


def _dims(say: _Complaints, option: str, spec: Any, shape: ShapeDtypeStruct, axes: tuple[str, ...]) -> Dims:
    if not isinstance(spec, tuple | list):
        say.no(f"{option} must hold one tuple for each array, such as ('x', None), not {spec!r}")
    if len(spec) > shape.ndim:
        say.no(f"{option} has {len(spec)} dimensions for an array of shape {shape.shape}")
    dims = tuple(() if s is None else (s,) if isinstance(s, str) else tuple(s) for s in spec)
    used = [name for names in dims for name in names]
    for name in used:
        if name not in axes:
            say.no(f"{option} names axis {name!r}; the kernel's axes are {axes}")
        if used.count(name) > 1:
            say.no(f"{option} uses axis {name!r} twice for one array")
    return dims + ((),) * (shape.ndim - len(dims))


def _shard_of(
    say: _Complaints, what: str, shape: ShapeDtypeStruct, dims: Dims, axis_sizes: Mapping[str, int]
) -> ShapeDtypeStruct:
    """What one device holds of a GLOBAL array."""
    local = []
    for dim, (size, names) in enumerate(zip(shape.shape, dims, strict=True)):
        parts = prod(axis_sizes[name] for name in names)
        if size % parts:
            over = ", ".join(f"{name}={axis_sizes[name]}" for name in names)
            say.no(f"dimension {dim} of {what} has size {size}, which does not divide over {over}")
        local.append(size // parts)
    return ShapeDtypeStruct(local, shape.dtype)


def _out_shards(say: _Complaints, value: Any) -> tuple[ShapeDtypeStruct, ...]:
    if not isinstance(value, tuple | list) or not all(isinstance(v, ShapeDtypeStruct) for v in value):
        say.no(f"out_shape must be a ShapeDtypeStruct or a tuple of them, not {value!r}")
    return tuple(value)


def _specs(say: _Complaints, option: str, value: Any, count: int) -> tuple[BlockSpec, ...]:
    if value is None or isinstance(value, MemorySpace | BlockSpec):
        value = (value,) * count  # one for all arrays
    if not isinstance(value, tuple | list):
        say.no(f"{option} must hold a memory space or BlockSpec for each array, not {value!r}")
    if len(value) != count:
        say.no(f"{option} has {len(value)} entries for {count} arrays")
    specs = []
    for entry in value:
        spec = BlockSpec(memory_space=entry) if entry is None or isinstance(entry, MemorySpace) else entry
        if not isinstance(spec, BlockSpec):
            say.no(f"{option} must hold a memory space or BlockSpec for each array, not {entry!r}")
        specs.append(replace(spec, memory_space=spec.memory_space or MemorySpace.VMEM))
    return tuple(specs)


def _scratch(say: _Complaints, value: Any) -> tuple[MemoryRef | SemaphoreArray, ...]:
    if not isinstance(value, tuple | list):
        say.no(f"scratch_shapes must be a tuple, not {value!r}")
    return tuple(as_scratch(entry) for entry in value)


def _grid(say: _Complaints, value: Any) -> tuple[int, ...]:
    grid = (value,) if isinstance(value, int) else value
    if not isinstance(grid, tuple | list) or not all(type(size) is int and size >= 0 for size in grid):
        say.no(f"grid must be a tuple of sizes, not {value!r}")
    return tuple(grid)


def _aliases(
    say: _Complaints,
    aliases: Mapping[int, int],
    in_shards: tuple[ShapeDtypeStruct, ...],
    out_shards: tuple[ShapeDtypeStruct, ...],
) -> dict[int, int]:
    for i, o in aliases.items():
        if not (0 <= i < len(in_shards) and 0 <= o < len(out_shards)):
            say.no(f"input_output_aliases {i}: {o}: there are {len(in_shards)} inputs and {len(out_shards)} outputs")
        if list(aliases.values()).count(o) > 1:
            say.no(f"input_output_aliases {i}: {o}: output {o} can be the buffer of one input only")
        if in_shards[i] != out_shards[o]:
            say.no(f"input_output_aliases {i}: {o}: {in_shards[i]} and {out_shards[o]} cannot be one buffer")
    return dict(aliases)
