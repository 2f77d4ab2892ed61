"""Where on the mesh and the grid a device is, and which device an id names."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from tpusim.declare import device_id_problem
from tpusim.errors import DeviceIdError, OptionError
from tpusim.native.operands import plain
from tpusim.values import Scalar

if TYPE_CHECKING:
    from tpusim.native.simulate import Program


class Places:
    """The part of an executor that knows its place."""

    __slots__ = ("_axis_index", "coords", "grid_index", "program")

    def __init__(self, program: Program, coords: tuple[int, ...]) -> None:
        self.program = program
        self.coords = coords
        self.grid_index: tuple[int, ...] = ()
        self._axis_index: dict[Any, Scalar] = {}

    def axis_index(self, axis: str | tuple[str, ...]) -> Scalar:
        """This device's coordinate, row-major over several axes."""
        found = self._axis_index.get(axis)
        if found is None:
            index = 0
            sizes = self.program.axis_sizes
            for name in self._axis_names(axis):
                index = index * sizes[name] + self.coords[list(sizes).index(name)]
            found = self._axis_index[axis] = Scalar(index)
        return found

    def axis_size(self, axis: str | tuple[str, ...]) -> int:
        """Number of devices along the axes."""
        return prod(self.program.axis_sizes[name] for name in self._axis_names(axis))

    def _axis_names(self, axis: str | tuple[str, ...]) -> tuple[str, ...]:
        names = (axis,) if isinstance(axis, str) else tuple(axis)
        for name in names:
            if name not in self.program.axis_sizes:
                raise OptionError(f"there is no mesh axis {name!r}; the kernel has {tuple(self.program.axis_sizes)}")
        return names

    def program_id(self, axis: int) -> Scalar:
        """This step's index along a grid axis."""
        self._check_grid_axis(axis)
        return Scalar(self.grid_index[axis])

    def num_programs(self, axis: int) -> int:
        """Steps along a grid axis."""
        self._check_grid_axis(axis)
        return self.program.declared.grid[axis]

    def _check_grid_axis(self, axis: int) -> None:
        if not 0 <= axis < len(self.program.declared.grid):
            raise OptionError(f"grid axis {axis} of a kernel with grid {self.program.declared.grid}")

    def resolve_device(self, device_id: Any) -> int:
        """The row-major mesh index a device id names; raises ``DeviceIdError``."""
        sizes = self.program.sizes
        parts = device_id if type(device_id) is tuple else (device_id,)
        index = 0
        if len(parts) == len(sizes):
            for part, size in zip(parts, sizes, strict=True):
                value = part.value if type(part) is Scalar else part
                if type(value) is not int or not 0 <= value < size:
                    break
                index = index * size + value
            else:
                return index
        return self._resolve_with_care(plain(device_id))

    def _resolve_with_care(self, device_id: Any) -> int:
        axis_sizes = self.program.axis_sizes
        problem = device_id_problem(device_id, axis_sizes)
        if problem is not None:
            raise DeviceIdError(problem)
        if not isinstance(device_id, dict):
            return self.resolve_device(device_id)
        coords = dict(zip(axis_sizes, self.coords, strict=True))
        for key, index in device_id.items():
            for name in reversed(key if isinstance(key, tuple) else (key,)):
                index, coords[name] = divmod(index, axis_sizes[name])
        return self.resolve_device(tuple(coords.values()))
