"""What surrounds a kernel's code: the compiler's implicit barrier, and the place of an error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tpusim.errors import FindingError
from tpusim.findings import Finding, Where
from tpusim.machine.core import Core
from tpusim.machine.machine import Machine

IMPLICIT = "implicit"
"""The id of the compiler's own barrier."""


def entry_barrier(core: Core, site: Any, members: Sequence[int] | None = None, name: str = IMPLICIT) -> Iterator[None]:
    """The compiler's implicit barrier: all signal device 0, which waits for them and signals each.

    Yields where the core must be suspended.  ``members``: who takes part, if that is not every device of the machine.
    Its semaphores, like every barrier semaphore, outlive the call.
    """
    machine = core.machine
    everyone: Sequence[int] = range(len(machine.cores)) if members is None else members
    first, others = everyone[0], everyone[1:]  # of a range no list, which on a pod would be one on every device
    own = machine.barrier_semaphore(name, core.device)
    if core.device == first:
        if others and not core.wait(own, len(others), site):
            yield
        for peer in others:
            core.signal(machine.barrier_semaphore(name, peer), 1, site)
    else:
        core.signal(machine.barrier_semaphore(name, first), 1, site)
        if not core.wait(own, 1, site):
            yield


def placed(
    error: FindingError, machine: Machine, core: Core, where: Where | None, step: tuple[int, ...] = ()
) -> FindingError:
    """``error`` with device, time, grid step and the user's line, where it does not say them itself."""
    finding = error.finding
    if finding.where is not None and finding.device is not None:
        return error
    complete = Finding(
        finding.kind,
        f"{finding.message} (grid step {step})" if step and "grid step" not in finding.message else finding.message,
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
