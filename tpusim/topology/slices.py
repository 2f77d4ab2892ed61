"""A slice: the chips of one run, what shape they have, and how their devices are numbered.

**Shapes.**  v5e and v6e are flat: eight shapes, and an axis wraps around only where it is 16 long.  v4,
v5p and v7x have three axes: a few small shapes without wraparound, then any shape whose axes are all
multiples of 4 (whole cubes of 4x4x4 chips), wrapped on every axis, up to the chips of the largest job.
Twisted tori are not modelled.

**Numbers.**  A device's number is its position in the order of coordinates with x fastest, then y, then
z, and the core of the chip innermost: ``number = ((z * Y + y) * X + x) * devices_per_chip + core``.  This
is the ``id`` order of ``jax.devices()`` on a slice with one host.  With several hosts ``jax.devices()``
sorts by host first and by id within the host; a slice here is one logical machine and has no hosts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Literal, NamedTuple

from tpusim.errors import NotModelledError, OptionError

Cores = Literal["megacore", "split"]
"""Whether the two cores of a v4 or v5p chip are one device or two."""


class _Rules(NamedTuple):
    """What a generation allows: shapes by name, or any multiple of 4 up to ``max_chips``."""

    shapes: tuple[tuple[int, ...], ...]
    max_chips: int = 0
    devices_per_chip: int = 1
    can_split: bool = False
    power_of_two_routes: bool = False


_FLAT = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_SMALL = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))
_RULES = {
    "v4": _Rules(_SMALL, 16 * 16 * 16, can_split=True),
    "v5e": _Rules(_FLAT, power_of_two_routes=True),
    "v5p": _Rules(_SMALL, 16 * 16 * 24, can_split=True),
    "v6e": _Rules(_FLAT),
    "v7x": _Rules(((1, 1, 1), *_SMALL), 9216, devices_per_chip=2),
}
_SHOWN_ONLY = ("8t", "8i")
_FLAT_WRAP = 16
_CUBE = 4

CHIPS = tuple(_RULES)
"""Names of the chips that can form a slice."""


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _check_chip(chip: str) -> _Rules:
    if chip in _SHOWN_ONLY:
        raise NotModelledError(
            f"Slices of {chip} chips are not modelled: their network is not published in enough detail."
            f" Slices exist for {', '.join(CHIPS)}."
        )
    if chip not in _RULES:
        raise OptionError(f"No chip is called {chip!r}; slices exist for {', '.join(CHIPS)}.")
    return _RULES[chip]


def _possible(chip: str, rules: _Rules) -> str:
    named = ", ".join(map(_text, rules.shapes))
    if not rules.max_chips:
        return f"Slices of {chip}: {named}."
    return f"Slices of {chip}: {named}, or multiples of {_CUBE} on all three axes, up to {rules.max_chips:,} chips."


def _is_whole_cubes(shape: tuple[int, ...], rules: _Rules) -> bool:
    return (
        rules.max_chips > 0
        and len(shape) == 3
        and all(size >= _CUBE and size % _CUBE == 0 for size in shape)
        and prod(shape) <= rules.max_chips
    )


@dataclass(frozen=True)
class Slice:
    """The chips of a run.

    ``chip`` is a name of :data:`CHIPS`, ``shape`` the number of chips along x, y (and z), ``cores``
    whether the two cores of a v4 or v5p chip are one device or two.  Raises ``OptionError`` for a shape
    the generation does not have, and ``NotModelledError`` for chips whose network is not modelled.
    """

    chip: str
    shape: tuple[int, ...]
    cores: Cores = "megacore"

    def __post_init__(self) -> None:
        """Raise what the class promises."""
        rules = _check_chip(self.chip)
        if self.shape not in rules.shapes and not _is_whole_cubes(self.shape, rules):
            turned = tuple(sorted(self.shape))
            hint = ""
            for shape in rules.shapes:
                if tuple(sorted(shape)) == turned:
                    hint = f" Did you mean {self.chip}:{_text(shape)}?"
            raise OptionError(f"{self.chip} has no slice {_text(self.shape)}.{hint} {_possible(self.chip, rules)}")
        if self.cores not in ("megacore", "split"):
            raise OptionError(f"cores is 'megacore' or 'split', not {self.cores!r}.")
        if self.cores == "split" and not rules.can_split:
            able = " and ".join(name for name, each in _RULES.items() if each.can_split)
            raise OptionError(
                f"cores='split' exists only on {able}, whose chips join two cores in one device; {self.chip} does not."
            )

    @classmethod
    @lru_cache(maxsize=64)
    def parse(cls, text: str, cores: Cores = "megacore") -> Slice:
        """The slice written as ``"v5e:4x4"``; raises ``OptionError`` for anything else."""
        match = re.fullmatch(r"([^:]+):([1-9]\d{0,5}(?:x[1-9]\d{0,5})*)", text)
        if match is None:
            raise OptionError(f"A slice is written chip:shape, as v5e:4x4 or v5p:2x2x1, not {text!r}.")
        return cls(match[1], tuple(map(int, match[2].split("x"))), cores)

    @classmethod
    def smallest(cls, chip: str = "v5e", devices: int = 4, cores: Cores = "megacore") -> Slice:
        """The slice with the fewest chips that has at least ``devices`` devices.

        Among equals the most compact one (the smallest longest axis), with x <= y <= z.  Raises
        ``OptionError`` where even the largest slice of the chip has fewer.
        """
        rules = _check_chip(chip)
        per_chip = 2 if cores == "split" else rules.devices_per_chip
        fitting = [shape for shape in _shapes(rules) if prod(shape) * per_chip >= devices]
        if not fitting:
            most = max(map(prod, _shapes(rules))) * per_chip
            raise OptionError(f"The largest slice of {chip} has {most:,} devices, {devices:,} were asked for.")
        return cls(chip, min(fitting, key=lambda shape: (prod(shape), max(shape), shape)), cores)

    @cached_property
    def num_chips(self) -> int:
        """Chips of the slice."""
        return prod(self.shape)

    @cached_property
    def devices_per_chip(self) -> int:
        """Devices a chip shows to JAX: 2 on v7x and with split cores, otherwise 1."""
        return 2 if self.cores == "split" else _RULES[self.chip].devices_per_chip

    @cached_property
    def num_devices(self) -> int:
        """Devices of the slice."""
        return self.num_chips * self.devices_per_chip

    @cached_property
    def wraps(self) -> tuple[bool, ...]:
        """For each axis of ``shape``, whether its last chip is linked to its first."""
        rules = _RULES[self.chip]
        if not rules.max_chips:
            return tuple(size == _FLAT_WRAP for size in self.shape)
        return (self.shape not in rules.shapes,) * len(self.shape)

    @cached_property
    def has_die_links(self) -> bool:
        """Whether the two devices of a chip are dies with a link between them (v7x)."""
        return _RULES[self.chip].devices_per_chip == 2

    @cached_property
    def has_power_of_two_routes(self) -> bool:
        """Whether JAX documents only offsets that are powers of two (v5e)."""
        return _RULES[self.chip].power_of_two_routes

    @cached_property
    def shape3(self) -> tuple[int, int, int]:
        """``shape`` with three axes."""
        x, y, z = (*self.shape, 1)[:3]
        return x, y, z

    def chip_of(self, device: int) -> int:
        """Number of the chip that a device is on."""
        return device // self.devices_per_chip

    def chip_coords(self, chip: int) -> tuple[int, int, int]:
        """``(x, y, z)`` of a chip; ``z`` is 0 on flat slices."""
        rest, x = divmod(chip, self.shape3[0])
        z, y = divmod(rest, self.shape3[1])
        return x, y, z

    def coords(self, device: int) -> tuple[int, int, int, int]:
        """``(x, y, z, core)`` of a device; raises ``OptionError`` for a number the slice does not have."""
        if not 0 <= device < self.num_devices:
            raise OptionError(f"{self} has devices 0 to {self.num_devices - 1}, not {device}.")
        chip, core = divmod(device, self.devices_per_chip)
        return (*self.chip_coords(chip), core)

    def device_at(self, coords: tuple[int, ...]) -> int:
        """Number of the device at ``(x, y[, z[, core]])``; what is left out is 0.

        Raises ``OptionError`` where the slice has no such place.
        """
        bounds = (*self.shape3, self.devices_per_chip)
        full = (*coords, 0, 0)[:4] if 2 <= len(coords) <= 4 else ()
        if len(full) != 4 or not all(0 <= at < bound for at, bound in zip(full, bounds, strict=True)):
            x, y, z, core = bounds
            raise OptionError(
                f"{self} has no device at {tuple(coords)}: coordinates are (x, y[, z[, core]])"
                f" below ({x}, {y}, {z}, {core})."
            )
        x, y, z, core = full
        return self._number(x, y, z) * self.devices_per_chip + core

    def _number(self, x: int, y: int, z: int) -> int:
        return (z * self.shape3[1] + y) * self.shape3[0] + x

    def chip_at(self, coords: tuple[int, int, int]) -> int:
        """Number of the chip at ``(x, y, z)``, which must lie on the slice."""
        return self._number(*coords)

    def __str__(self) -> str:
        """As :meth:`parse` reads it."""
        return f"{self.chip}:{_text(self.shape)}"


def _shapes(rules: _Rules) -> tuple[tuple[int, ...], ...]:
    """Every shape of a generation, axes of whole cubes in ascending order."""
    units = rules.max_chips // _CUBE**3
    cubes = tuple(
        (_CUBE * a, _CUBE * b, _CUBE * c)
        for a in range(1, units + 1)
        for b in range(a, units // a + 1)
        for c in range(b, units // (a * b) + 1)
    )
    return (*rules.shapes, *cubes)
