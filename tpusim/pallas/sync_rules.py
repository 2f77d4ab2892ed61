"""Copies, semaphores and devices of a captured kernel: each equation one operation of the core."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from jax import tree_util

from tpusim.errors import DeviceIdError, SemaphoreKindError
from tpusim.findings import Finding, Kind
from tpusim.pallas import internals, ranges
from tpusim.pallas.block import Block, Value
from tpusim.pallas.lower import Lowering, Rule
from tpusim.pallas.symbols import SemaphoreSymbol
from tpusim.specs import SemaphoreType

_Emit = Callable[[Lowering, Block, Any, Sequence[Any]], None]
"""Lowers a copy's equation with these operands."""


def _dma_operands(lowering: Lowering, eqn: Any) -> tuple[Any, ...]:
    """Source, destination, its semaphore, the source's semaphore, device id."""
    leaves = [lowering.read(var) for var in eqn.invars]
    return tuple(eqn.params["tree"].unflatten(leaves))


def _for_each_choice(lowering: Lowering, block: Block, eqn: Any, operands: Sequence[Any], emit: _Emit) -> None:
    """Lower an equation once for each ref that its operands may be, as branches."""
    for place, operand in enumerate(operands):
        found = internals.choices(operand)
        if found is None:
            continue
        index, options = lowering.integer(block, found[0]), found[1]
        for number, option in enumerate(options):
            is_last = number == len(options) - 1
            lowering.emit("else:" if is_last else f"{'el' if number else ''}if {index} == {number}:")
            lowering.depth += 1
            known = dict(block.regions)
            _for_each_choice(lowering, block, eqn, [*operands[:place], option, *operands[place + 1 :]], emit)
            block.regions = known
            lowering.depth -= 1
        return
    emit(lowering, block, eqn, operands)


def _dma_start(lowering: Lowering, block: Block, eqn: Any) -> None:
    lowering.flush(block)
    _for_each_choice(lowering, block, eqn, _dma_operands(lowering, eqn), _start)


def _start(lowering: Lowering, block: Block, eqn: Any, operands: Sequence[Any]) -> None:
    src, dst, dst_sem, src_sem, device_id = operands
    _require_dma(lowering, block, dst_sem, eqn)
    source, source_region = lowering.region(block, src, eqn, reads=True)
    target, target_region = lowering.region(block, dst, eqn)
    source_region, target_region = (
        lowering.beside(block, dst, source_region, target_region, eqn),
        lowering.beside(block, src, target_region, source_region, eqn),
    )
    source_region, target_region = lowering.both_inside(block, (src, dst), (source_region, target_region), eqn)
    if device_id is None:
        device = None
    else:
        device = device_code(lowering, block, device_id, eqn)
        lowering.out.is_remote = True
    dst_buffer = f"buf[p{target.slot}]" if device is None else f"all_buf[{device}][p{target.slot}]"
    send = "None" if src_sem is None else lowering.semaphore(block, src_sem, eqn)
    receive = lowering.semaphore(block, dst_sem, eqn, device)
    site = lowering.site(eqn)
    priority, add = int(eqn.params.get("priority", 0)), bool(eqn.params.get("add", False))
    if priority > 1 or (priority and device is not None):
        lowering.emit(f"rt.unsupported('priority={priority} on this copy is not supported on TPU.', {site})")
    if add and not lowering.is_sparse:
        lowering.emit(f"rt.unsupported('add=True is not supported on a TensorCore.', {site})")
    if src_sem is not None and device is None:
        lowering.emit(f"rt.unsupported('a source semaphore on a local copy is not supported on a TensorCore.', {site})")
    if source_region != target_region:
        lowering.emit(
            f"if {source_region}.shape != {target_region}.shape: rt.different_shapes({source_region}, {target_region})"
        )
    extra = f", {priority}, {add}" if priority or add else ""
    lowering.emit(
        f"core.start(buf[p{source.slot}], {source_region}, {dst_buffer}, {target_region}, {send}, {receive}, "
        f"{site}{extra})"
    )


def _dma_wait(lowering: Lowering, block: Block, eqn: Any) -> None:
    lowering.flush(block)
    _for_each_choice(lowering, block, eqn, _dma_operands(lowering, eqn), _wait)


def _wait(lowering: Lowering, block: Block, eqn: Any, operands: Sequence[Any]) -> None:
    # A wait on the send leg carries source and destination swapped, so the semaphore and the bytes that
    # count stand in the same two places for both legs.
    _, dst, semaphore, _, _ = operands
    _require_dma(lowering, block, semaphore, eqn)
    size = lowering.nbytes(block, dst, eqn)
    which = lowering.semaphore(block, semaphore, eqn)
    arguments = f"{which}, {size}, {lowering.site(eqn)}"
    before, at = lowering.last_wait, len(lowering.lines)
    if before is not None and before[:2] == (at, lowering.depth):  # right after another wait: suspend once for both
        lowering.lines.pop()
        lowering.origins.pop()
        lowering.emit(f"if not core.wait_both({before[2]}, {arguments}): yield")
        lowering.last_wait = None
        return
    lowering.emit(f"if not core.wait({arguments}): yield")
    lowering.last_wait = (len(lowering.lines), lowering.depth, arguments)


def _require_dma(lowering: Lowering, block: Block, ref: Any, eqn: Any) -> None:
    symbol, _ = lowering.resolve(block, ref, eqn)
    if isinstance(symbol, SemaphoreSymbol) and symbol.kind is not SemaphoreType.DMA:
        raise SemaphoreKindError(
            Finding(
                Kind.SEMAPHORE_KIND,
                f"a copy needs a DMA semaphore; {symbol.name} is a {symbol.kind.value} semaphore",
                where=internals.where_of_equation(eqn),
            )
        )


def device_code(lowering: Lowering, block: Block, device_id: Any, eqn: Any) -> str:
    """An expression for the row-major mesh index a device id names; it is checked when it runs."""
    axes = lowering.axes
    is_logical = "LOGICAL" in str(eqn.params.get("device_id_type"))
    if isinstance(device_id, Mapping):
        parts = []
        for key, value in device_id.items():
            names = (key,) if isinstance(key, str) else tuple(key)
            if not any(name in axes for name in names) and lowering.integer(block, value) == "0":
                continue  # the one core of the kernel
            parts.append(f"({names!r}, {lowering.integer(block, value)})")
        name = lowering.fresh("d")
        lowering.emit(f"{name} = rt.named_device([{', '.join(parts)}])")
        return name
    if lowering.cores and not isinstance(device_id, Mapping):
        return _device_of_cores(lowering, block, device_id, eqn)
    if isinstance(device_id, tuple | list):
        coords = [lowering.integer(block, part) for part in device_id]
        if is_logical and len(coords) == 1:
            return _index(lowering, coords[0])
        if len(coords) != len(axes):
            raise DeviceIdError(
                Finding(
                    Kind.DEVICE_ID,
                    f"device_id has {len(coords)} coordinates; the mesh has {len(axes)} axes {tuple(axes)}",
                    where=internals.where_of_equation(eqn),
                )
            )
        if len(coords) == 1:
            return _index(lowering, coords[0])
        name = lowering.fresh("d")
        lowering.emit(f"{name} = rt.device(({', '.join(coords)},))")
        return name
    if len(axes) > 1 and not is_logical:
        raise DeviceIdError(
            Finding(
                Kind.DEVICE_ID,
                f"device_id is an int but the mesh has several axes {tuple(axes)}: use a tuple with one coordinate per "
                "axis, or a dict",
                where=internals.where_of_equation(eqn),
            )
        )
    return _index(lowering, lowering.integer(block, device_id))


def _device_of_cores(lowering: Lowering, block: Block, device_id: Any, eqn: Any) -> str:
    """Another device by its mesh coordinates, in a kernel on several cores: there it is the caller's own core."""
    axes = [axis for axis in lowering.axes if axis not in lowering.cores]
    coords = [lowering.integer(block, part) for part in device_id] if isinstance(device_id, tuple | list) else None
    if coords is None and (len(axes) == 1 or "LOGICAL" in str(eqn.params.get("device_id_type"))):
        parts = f"({tuple(axes)!r}, {lowering.integer(block, device_id)})"
    elif coords is not None and len(coords) == len(axes):
        parts = ", ".join(f"({(axis,)!r}, {code})" for axis, code in zip(axes, coords, strict=True))
    else:
        raise internals.not_modelled(f"a device_id of this form in a kernel on several cores (mesh axes {axes})", eqn)
    name = lowering.fresh("d")
    lowering.emit(f"{name} = rt.named_device([{parts}])")
    return name


def _index(lowering: Lowering, code: str) -> str:
    total = prod(lowering.axes.values())
    if ranges.within(ranges.of_code(code, lowering.limits), (0, total - 1)):
        return code
    name = lowering.fresh("d")
    lowering.emit(f"{name} = {code}")
    lowering.emit(f"if not 0 <= {name} < {total}: rt.bad_device({name})")
    return name


def _core_of_device(lowering: Lowering, block: Block, device: str | None, core: str, eqn: Any) -> str | None:
    """The mesh position of a device's core, by its row-major number among those that run the kernel."""
    if not lowering.cores:
        if core != "0":
            raise internals.not_modelled("semaphore_signal to another core of the device: the kernel has one", eqn)
        return device
    if len(lowering.cores) > 1:
        raise internals.not_modelled("core_index in a kernel on subcores; say device_id={axis: index}", eqn)
    lowering.out.is_remote = True
    name, total = lowering.fresh("d"), prod(lowering.cores.values())
    lowering.emit(f"if not 0 <= {core} < {total}: rt.bad_device('core_index ' + str({core}))")
    lowering.emit(f"{name} = rt.core_of({device or 'core.device'}, {core}, {total})")
    return name


def _semaphore_signal(lowering: Lowering, block: Block, eqn: Any) -> None:
    leaves = [lowering.read(var) for var in eqn.invars]
    ref, transforms, amount, device_id, core_index = tree_util.tree_unflatten(eqn.params["args_tree"], leaves)
    lowering.flush(block)
    device = None
    if device_id is not None:
        device = device_code(lowering, block, device_id, eqn)
        lowering.out.is_remote = True
    if core_index is not None:
        device = _core_of_device(lowering, block, device, lowering.integer(block, core_index), eqn)
    which = lowering.semaphore(block, internals.TransformedRef(ref, tuple(transforms)), eqn, device)
    lowering.emit(f"core.signal({which}, {lowering.integer(block, amount)}, {lowering.site(eqn)})")


def _semaphore_wait(lowering: Lowering, block: Block, eqn: Any) -> None:
    leaves = [lowering.read(var) for var in eqn.invars]
    ref, transforms, amount, decrement = tree_util.tree_unflatten(eqn.params["args_tree"], leaves)
    lowering.flush(block)
    which = lowering.semaphore(block, internals.TransformedRef(ref, tuple(transforms)), eqn)
    units, site = lowering.integer(block, amount), lowering.site(eqn)
    takes = decrement.code if isinstance(decrement, Value) else str(bool(decrement))
    lowering.emit(f"if not core.wait({which}, {units}, {site}): yield")
    if takes != "True":
        lowering.emit(f"{'' if takes == 'False' else f'if not {takes}: '}core.give_back({which}, {units}, {site})")


def _semaphore_read(lowering: Lowering, block: Block, eqn: Any) -> None:
    leaves = [lowering.read(var) for var in eqn.invars]
    ref, transforms = tree_util.tree_unflatten(eqn.params["args_tree"], leaves)
    lowering.flush(block)
    which = lowering.semaphore(block, internals.TransformedRef(ref, tuple(transforms)), eqn)
    lowering.emit("if not core.join(): yield")
    is_printed = block.is_only_used_by("debug_print", eqn.outvars[0])
    value = f"{which}.value" if is_printed else f"core.peek({which}, {lowering.site(eqn)})"
    lowering.bind_python(eqn.outvars[0], value)


def _get_barrier_semaphore(lowering: Lowering, block: Block, eqn: Any) -> None:
    lowering.out.uses_barrier = True
    tag = eqn.params.get("tag")
    lowering.emit(f"rt.barrier_lookup({tag!r}, {lowering.site(eqn)})")
    lowering.env[eqn.outvars[0]] = SemaphoreSymbol(-1, "barrier", (), SemaphoreType.BARRIER, tag)


RULES: dict[str, Rule] = {
    "dma_start": _dma_start,
    "dma_wait": _dma_wait,
    "semaphore_signal": _semaphore_signal,
    "semaphore_wait": _semaphore_wait,
    "semaphore_read": _semaphore_read,
    "get_barrier_semaphore": _get_barrier_semaphore,
}
