"""What the compiler puts around a kernel's code: the implicit barrier, and copies of whole arrays into VMEM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tpusim.errors import FindingError
from tpusim.findings import Finding, Where
from tpusim.machine.core import Core
from tpusim.machine.machine import Machine
from tpusim.machine.memory import BufferSpec
from tpusim.machine.semaphores import SemaphoreSpec

IMPLICIT = "implicit"
"""The id of the compiler's own barrier."""

Suspend = Callable[[], object]


def entry_barrier(core: Core, suspend: Suspend, site: Any) -> None:
    """The compiler's implicit barrier: all signal device 0, which waits for them and signals each.

    Its semaphores, like every barrier semaphore, outlive the call.
    """
    machine = core.machine
    own = machine.barrier_semaphore(IMPLICIT, core.device)
    if core.device == 0:
        others = range(1, len(machine.cores))
        if not core.wait(own, len(others), site):
            suspend()
        for peer in others:
            core.signal(machine.barrier_semaphore(IMPLICIT, peer), 1, site)
    else:
        core.signal(machine.barrier_semaphore(IMPLICIT, 0), 1, site)
        if not core.wait(own, 1, site):
            suspend()


def move_windows(
    core: Core,
    suspend: Suspend,
    moves: Sequence[tuple[BufferSpec, BufferSpec]],
    semaphores: SemaphoreSpec | None,
    site: Any,
) -> None:
    """Copies between HBM and the windows of whole-array VMEM and SMEM arguments, all at once."""
    if semaphores is None:
        return
    started = []
    for slot, (src, dst) in enumerate(moves):
        semaphore = core.semaphores[semaphores.position][slot]
        core.start(core.buffers[src.position], src.whole, core.buffers[dst.position], dst.whole, None, semaphore, site)
        started.append((semaphore, dst.whole.nbytes))
    for semaphore, amount in started:
        if not core.wait(semaphore, amount, site):
            suspend()


def placed(error: FindingError, machine: Machine, core: Core, where: Where | None) -> FindingError:
    """``error`` with device, time and the user's line, where it does not say them itself."""
    finding = error.finding
    if finding.where is not None and finding.device is not None:
        return error
    complete = Finding(
        finding.kind,
        finding.message,
        device=finding.device or machine.coordinates(core.device),
        argument=finding.argument,
        where=finding.where or where,
        other=finding.other,
        time_ps=core.now if finding.time_ps is None else finding.time_ps,
    )
    if finding in machine.findings:
        machine.findings[machine.findings.index(finding)] = complete
    else:
        machine.findings.append(complete)
    return type(error)(complete, findings=machine.findings)
