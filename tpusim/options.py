"""The run options: one set, same names in Python and on the command line."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import Any, Literal

from tpusim.chips import ChipSpec, load_chip
from tpusim.chips.profiles import COMPILER, compiler_profile
from tpusim.errors import OptionError
from tpusim.faults import Fault, parse_faults
from tpusim.machine.timing import Timing
from tpusim.machine.wiring import Ways
from tpusim.schedules import Schedule, check_schedule, make_schedule, split_token
from tpusim.topology import Layout, Slice, mesh_devices
from tpusim.units import PS_PER_US


@dataclass(frozen=True)
class RunOptions:
    """How to run a program on the simulated machine.

    ``slice``: ``"v5e:4x4"``; default the smallest v5e slice with enough devices for ``mesh``.
    ``mesh``: sizes of the kernel's axes, ``{"x": 4}``, ``"x=2,y=4"`` or one int.
    ``layout``: how the mesh lies on the slice: ``auto``, ``ring``, ``row-major`` or chip coordinates.
    ``cores``: ``megacore`` or ``split`` (v4, v5p).  ``seed``: of everything random in a run.
    ``set``: overrides of chip numbers, ``{"ici.link_bandwidth": 90e9}``.  ``chip``: an own TOML file, or
    a ``ChipSpec``, whose numbers are then not overridden, or ``compiler``: the slice's chip as the TPU compiler sees it
    (:mod:`tpusim.chips.profiles`).
    ``data``: carry array contents.  ``on_finding``: ``raise`` or ``record``.
    ``checks``: ``observed`` looks for races on the observed schedule; ``none`` does not and is faster, and
    reports only an access to what a copy has in flight at that very moment.
    ``schedule``: the order in which things happen that may happen in any order: ``default``, ``random`` (times drawn
    from ``seed`` within the chip's intervals), ``shuffle`` (any legal order, drawn from ``seed``), ``eager``, ``lazy``,
    ``newest``, ``split``, ``slow-device:(0,)``, ``slow-link:(0,0)-(1,0)``.  ``faults``: see :mod:`tpusim.faults`.
    ``replay``: the token of a finding, in place of both.
    ``compute``: ``default`` estimates compute cost from the shipped table; ``exact`` asks the TPU compiler (the
    ``tpu`` extra), piece by piece, and keeps its answers on disk.
    ``max_time``: simulated microseconds.  ``max_events``: events of the simulation, and operations of one core.
    """

    slice: str | Slice | None = None
    mesh: Mapping[str, int] | str | int | None = None
    layout: Layout = "auto"
    cores: Literal["megacore", "split"] = "megacore"
    seed: int = 0
    set: Mapping[str, Any] = field(default_factory=dict)
    chip: str | ChipSpec | None = None
    data: bool = True
    on_finding: Literal["raise", "record"] = "raise"
    checks: Literal["observed", "none"] = "observed"
    schedule: str = "default"
    faults: str | Sequence[str | Fault] = ()
    replay: str | None = None
    compute: Literal["default", "exact"] = "default"
    max_time: float | None = None
    max_events: int | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> RunOptions:
        """Checked options; raises ``OptionError`` for one that does not exist or cannot be."""
        known = {item.name for item in fields(cls)}
        for name in options:
            if name in known:
                continue
            close = difflib.get_close_matches(name, known, 1)
            hint = f" Did you mean {close[0]!r}?" if close else f" There are: {', '.join(sorted(known))}."
            raise OptionError(f"there is no run option {name!r}.{hint}")
        made = cls(**options)
        made._check()
        return made

    def _check(self) -> None:
        if self.on_finding not in ("raise", "record"):
            raise OptionError(f"on_finding is 'raise' or 'record', not {self.on_finding!r}")
        if self.checks not in ("observed", "none"):
            raise OptionError(f"checks is 'observed' or 'none', not {self.checks!r}")
        if self.compute not in ("default", "exact"):
            raise OptionError(f"compute is 'default' or 'exact', not {self.compute!r}")
        if self.cores not in ("megacore", "split"):
            raise OptionError(f"cores is 'megacore' or 'split', not {self.cores!r}")
        events, time = self.max_events, self.max_time
        if events is not None and (isinstance(events, bool) or not isinstance(events, int) or events < 1):
            raise OptionError(f"max_events is a positive integer, not {events!r}")
        if time is not None and (
            isinstance(time, bool) or not isinstance(time, int | float) or not 1e-6 <= time < float("inf")
        ):
            raise OptionError(f"max_time is a positive number of microseconds, at least 1e-6, not {time!r}")
        if not isinstance(self.data, bool):
            raise OptionError(f"data is True or False, not {self.data!r}")
        if not isinstance(self.set, Mapping):
            raise OptionError(f"set is a mapping such as {{'ici.link_bandwidth': 90e9}}, not {self.set!r}")
        if not isinstance(self.slice, str | Slice | None):
            raise OptionError(f"slice is a text such as 'v5e:4x4', not {self.slice!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise OptionError(f"seed is an integer, not {self.seed!r}")
        self._check_schedule()

    def _check_schedule(self) -> None:
        for name, value in (("schedule", self.schedule), ("replay", self.replay or "")):
            if not isinstance(value, str):
                raise OptionError(f"{name} is a text, not {value!r}")
        check_schedule(self.schedule)
        given = parse_faults(self.faults, self.seed)
        if self.replay is not None:
            split_token(self.replay)
            if self.schedule != "default" or given:
                raise OptionError("replay says schedule and faults itself: leave these two out")

    def steering(self, slice_: Slice) -> tuple[Schedule, tuple[Fault, ...]] | None:
        """The schedule and the faults of a run on a slice; ``None`` for the default schedule without faults."""
        schedule, faults = self.schedule, self.faults
        if self.replay is not None:
            schedule, faults = split_token(self.replay)
        if schedule == "default" and not faults:
            return None
        return make_schedule(schedule, self.seed, slice_), parse_faults(faults, self.seed)

    @property
    def max_ps(self) -> int | None:
        """``max_time`` in picoseconds."""
        return None if self.max_time is None else int(self.max_time * PS_PER_US)

    def chip_and_cores(self) -> tuple[str, int]:
        """The name of the chip, and the TensorCores that act as one device; v5e where no slice is given."""
        slice_ = self.slice if isinstance(self.slice, Slice) else Slice.parse(self.slice or "v5e:1x1", self.cores)
        chip = load_chip(slice_.chip)
        return chip.name, 1 if slice_.cores == "split" else chip.cores_per_device

    def chip_spec(self, name: str) -> ChipSpec:
        """The chip ``name``, or one's own, with the overrides."""
        if self.chip == COMPILER:
            return compiler_profile(name, dict(self.set))
        return self.chip if isinstance(self.chip, ChipSpec) else load_chip(self.chip or name, dict(self.set))

    def place(self, axes: Sequence[str], cores: Mapping[str, int] = MappingProxyType({})) -> Place:
        """The slice, chip and mesh for a program with these mesh axes; ``cores``: axes of the cores of each device."""
        wanted = self._mesh_sizes(axes)
        if self.slice is None:
            sizes = wanted or dict.fromkeys(axes, 1) | {axes[0]: 4}
            slice_ = Slice.smallest("v5e", prod(sizes.values()), self.cores)
            sizes = wanted or sizes
        else:
            slice_ = self.slice if isinstance(self.slice, Slice) else Slice.parse(self.slice, self.cores)
            sizes = wanted or _default_sizes(slice_, axes)
        chip = self.chip_spec(slice_.chip)
        devices = mesh_devices(slice_, tuple(sizes.values()), self.layout)
        if cores:
            sizes = {**sizes, **cores}
            devices = tuple(device for device in devices for _ in range(prod(cores.values())))
        return Place(slice_, chip, sizes, devices, self.layout, tuple(cores.values()))

    def _mesh_sizes(self, axes: Sequence[str]) -> dict[str, int] | None:
        mesh = self.mesh
        if mesh is None:
            return None
        if isinstance(mesh, int) and not isinstance(mesh, bool):
            mesh = {axes[0]: mesh} if len(axes) == 1 else {}
        elif isinstance(mesh, str):
            mesh = parse_mesh(mesh)
        if not isinstance(mesh, Mapping) or set(mesh) != set(axes):
            example = ",".join(f"{axis}=2" for axis in axes)
            raise OptionError(f"mesh needs a size for each axis of the kernel, such as {example!r}; got {self.mesh!r}")
        for axis, size in mesh.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise OptionError(f"mesh: axis {axis!r} needs a positive size, not {size!r}")
        return {axis: mesh[axis] for axis in axes}


def parse_mesh(text: str) -> dict[str, int]:
    """``"x=2,y=4"`` -> ``{"x": 2, "y": 4}``."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        axis, equals, size = part.partition("=")
        if not equals or not size.strip().isdecimal():
            raise OptionError(f"mesh: {part!r} is not of the form axis=size, as in 'x=2,y=4'")
        if axis.strip() in sizes:
            raise OptionError(f"mesh: {text!r} gives axis {axis.strip()!r} twice")
        sizes[axis.strip()] = int(size)
    return sizes


def _default_sizes(slice_: Slice, axes: Sequence[str]) -> dict[str, int]:
    """One axis takes every device of the slice, several take its axes in order."""
    if len(axes) == 1:
        return {axes[0]: slice_.num_devices}
    shape = list(slice_.shape)
    if slice_.devices_per_chip > 1:
        shape.append(slice_.devices_per_chip)
    if len(axes) > len(shape):
        raise OptionError(
            f"the kernel has {len(axes)} mesh axes and {slice_} has {len(shape)}: say mesh="
            f"{','.join(f'{axis}=...' for axis in axes)!r}"
        )
    while len(shape) > len(axes):
        last = shape.pop()
        shape[-1] *= last
    return dict(zip(axes, shape, strict=True))


@dataclass(frozen=True)
class Place:
    """Where a program runs: slice, chip, mesh axis sizes, and the slice's device at each mesh position.

    ``cores``: sizes of those last axes that are not devices but cores of one; each core has a position.
    """

    slice: Slice
    chip: ChipSpec
    axis_sizes: dict[str, int]
    devices: tuple[int, ...]
    layout: Layout
    cores: tuple[int, ...] = ()

    @cached_property
    def ways(self) -> Ways:
        """What is worked out once about copies between these devices, for all runs here."""
        return Ways(self.slice, self.devices, Timing(self.chip))
