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


NO_AXIS = 0, 1
"""Size and stride of an axis that is not there: no index is inside."""


class Places:
    """The part of an executor that knows its place."""

    __slots__ = ("_axis_index", "device", "grid_index", "program")

    def __init__(self, program: Program, device: int) -> None:
        self.program = program
        self.device = device
        self.grid_index: tuple[int, ...] = ()
        self._axis_index: dict[Any, Scalar] = {}

    def axis_index(self, axis: str | tuple[str, ...]) -> Scalar:
        """This device's coordinate, row-major over several axes."""
        found = self._axis_index.get(axis)
        if found is None:
            index = 0
            for name in self._axis_names(axis):
                size, stride = self.program.axes[name]
                index = index * size + self.device // stride % size
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
        axes = self.program.axes
        if type(device_id) is dict:
            index = self.device
            for name, part in device_id.items():
                value = part.value if type(part) is Scalar else part
                size, stride = axes.get(name, NO_AXIS)
                if type(value) is not int or not 0 <= value < size:
                    return self._resolve_with_care(plain(device_id))
                index += (value - index // stride % size) * stride
            return index
        parts = device_id if type(device_id) is tuple else (device_id,)
        index = 0
        if len(parts) == len(axes):
            for part, (size, _) in zip(parts, axes.values(), strict=True):
                value = part.value if type(part) is Scalar else part
                if type(value) is not int or not 0 <= value < size:
                    break
                index = index * size + value
            else:
                return index
        return self._resolve_with_care(plain(device_id))

    def _resolve_with_care(self, device_id: Any) -> int:
        problem = device_id_problem(device_id, self.program.axis_sizes)
        if problem is not None:
            raise DeviceIdError(problem)
        if not isinstance(device_id, dict):
            return self.resolve_device(device_id)
        each: dict[str, int] = {}
        for key, index in device_id.items():
            for name in reversed(key if isinstance(key, tuple) else (key,)):
                index, each[name] = divmod(index, self.program.axis_sizes[name])
        return self.resolve_device(each)
