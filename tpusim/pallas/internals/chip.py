"""The uses of JAX internals that make code which asks for the TPU at hand see the simulated chip.

Checked with jax 0.10.2 (Python 3.11) and 0.12.0.1 (Python 3.13), which differ in where ``tpu_info`` lives.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import jax
from jax.experimental.xla_metadata import set_xla_metadata

from tpusim.pallas.internals.versions import PrivateModule

_tpu_info = PrivateModule("jax._src.tpu_info", "jax._src.pallas.mosaic.tpu_info")  # 0.12, 0.10
_mosaic_core = PrivateModule("jax._src.pallas.mosaic.core")

_KINDS = {"v4": "TPU v4", "v5e": "TPU v5e", "v5p": "TPU v5p", "v6e": "TPU v6e", "v7x": "TPU7x"}
_KINDS |= {"8i": "TPU8i", "8t": "TPU8t"}
"""What JAX calls the chips."""


@contextmanager
def simulated_chip(chip: str, cores_per_device: int) -> Iterator[None]:
    """Within it, code that asks JAX for the kind of TPU (``get_tpu_info``, ``emit_pipeline``) is told ``chip``.

    What JAX traces within is kept apart from what it traces without and for other chips.  A chip of the user's own,
    which JAX has no name for, changes nothing.
    """
    if chip not in _KINDS:
        yield
        return
    device = jax.sharding.AbstractDevice(_KINDS[chip], cores_per_device, "tpu")
    with (
        set_xla_metadata(tpusim_chip=f"{chip} {cores_per_device}"),  # part of the key of JAX's traces
        _replaced_where_it_is(_tpu_info, "get_device_kind", lambda: _KINDS[chip]),
        _replaced_where_it_is(_tpu_info, "get_num_device_cores", lambda: cores_per_device),
        _replaced_where_it_is(_mosaic_core, "jax", _JaxWithDevice(device)),  # meshes of "all cores of the device"
    ):
        _forget_chip()
        try:
            yield
        finally:
            _forget_chip()


def _forget_chip() -> None:
    """JAX keeps what it has once said of the chip."""
    if _tpu_info.has("get_tpu_info"):
        _tpu_info.get_tpu_info.cache_clear()


def _replaced_where_it_is(module: PrivateModule, name: str, value: Any) -> AbstractContextManager[None]:
    """Most programs never ask, so a jax that has it elsewhere is no obstacle."""
    return replaced(module.module(), name, value) if module.has(name) else nullcontext()


class _JaxWithDevice:
    """The module ``jax``, but with one TPU for a device."""

    def __init__(self, device: Any) -> None:
        self._device = device

    def devices(self) -> list[Any]:
        """The simulated device."""
        return [self._device]

    def __getattr__(self, name: str) -> Any:
        return getattr(jax, name)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Another value for an attribute of JAX, put back at the end."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
