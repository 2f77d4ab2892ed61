"""Copies and semaphores of one device's kernel: what descriptors and semaphore operations ask of the core."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tpusim.backend import RawSite
from tpusim.descriptors import AsyncCopyDescriptor
from tpusim.errors import DescriptorError, NotModelledError, SemaphoreKindError
from tpusim.findings import Kind
from tpusim.machine.core import Core
from tpusim.machine.semaphores import Semaphore
from tpusim.native.operands import check_copy, static
from tpusim.native.places import Places
from tpusim.native.refs import BarrierRef, SemaphoreRef
from tpusim.specs import SemaphoreType
from tpusim.values import Scalar
from tpusim.values.scalars import late_scalar

if TYPE_CHECKING:
    from tpusim.native.simulate import Program


class DescriptorUse:
    """A line that makes descriptors, and whether any device ever used one of them."""

    __slots__ = ("is_used", "site")

    def __init__(self, site: RawSite) -> None:
        self.site = site
        self.is_used = False


class Transfers(Places):
    """The part of an executor that moves and waits."""

    __slots__ = (
        "_idle", "_piece", "buffers_of", "call", "core", "descriptor_uses", "machine", "one_axis_size", "semaphores_of",
        "suspend",
    )  # fmt: skip

    def __init__(self, program: Program, core: Core, suspend: Callable[[], object]) -> None:
        super().__init__(program, core.device)
        self.core = core
        self.machine = core.machine
        self.call = program.call
        self.buffers_of = program.call.buffers
        self.semaphores_of = program.call.semaphores
        self.descriptor_uses = program.descriptor_uses
        self.one_axis_size = program.one_axis_size
        self.suspend = suspend
        self._idle = self._piece = program.idle

    def end_piece(self) -> None:
        """From here on others can see what the core has done: pay what its work still owes."""
        piece, self._piece = self._piece, self._idle
        if piece.owed_ps:
            self.core.compute(piece.owed_ps, "load and store", self.program.pipeline.site)

    # -- copies ---------------------------------------------------------------------------------

    def made(self, descriptor: AsyncCopyDescriptor, site: RawSite) -> DescriptorUse:
        """Check a descriptor and remember its line until some device uses one made there."""
        src, dst, dst_sem, src_sem = descriptor.src_ref, descriptor.dst_ref, descriptor.dst_sem, descriptor.src_sem
        try:
            source, target = src.region, dst.region
            is_fit = (
                source.shape == target.shape
                and source.spec.dtype == target.spec.dtype
                and dst_sem.counts_bytes
                and (src_sem is None or src_sem.counts_bytes)
            )
        except AttributeError:  # something that is no ref
            is_fit = False
        if not is_fit:
            check_copy(src, dst, dst_sem, src_sem)
        # Not the site itself as the key: a code object hashes its whole bytecode, every time.
        key = (id(site[0]) << 24) + site[1]
        uses = self.descriptor_uses
        use = uses.get(key)
        if use is None:
            use = uses[key] = DescriptorUse(site)
        descriptor.use = use
        return use

    def start(self, descriptor: AsyncCopyDescriptor, priority: int, add: bool, site: RawSite) -> None:
        """Start its copy."""
        if self._piece is not self._idle:
            self.end_piece()
        (descriptor.use or self.made(descriptor, site)).is_used = True
        core = self.core
        src, dst, receive, send = descriptor.src_ref, descriptor.dst_ref, descriptor.dst_sem, descriptor.src_sem
        if send is None:
            buffers, semaphores, src_sem = core.buffers, core.semaphores, None
        else:
            device_id = descriptor.device_id
            target = device_id.value if type(device_id) is Scalar else device_id
            if type(target) is not int or not 0 <= target < self.one_axis_size:
                target = self.resolve_device(device_id)
            buffers, semaphores = self.buffers_of[target], self.semaphores_of[target]
            src_sem = core.semaphores[send.position][send.flat]
        if priority or add:
            self._check_start(priority, add, send is not None, site)
        source, dst_sem = core.buffers[src.position], semaphores[receive.position][receive.flat]
        if not source.alive:
            self.machine.report_gone(core, "copy from", src.region, site)
        if src_sem is not None and not src_sem.alive:
            self._report_gone(src_sem, site)
        if not dst_sem.alive and semaphores is core.semaphores:
            self._report_gone(dst_sem, site)
        core.start(
            source,
            src.region,
            buffers[dst.position],
            dst.region,
            src_sem,
            dst_sem,
            site,
            priority,
            add,
        )

    def _check_start(self, priority: Any, add: bool, remote: bool, site: RawSite) -> None:
        if isinstance(priority, bool) or not isinstance(priority, int) or priority < 0:
            raise DescriptorError(f"priority is 0 or 1, not {priority!r}")
        if priority > 1 or (priority and remote):
            what = "on a remote copy" if remote else "above 1"
            self.machine.note(
                Kind.UNSUPPORTED, f"priority={priority} {what} is not supported on TPU.", self.core.device, site
            )
        if add:
            self.machine.note(Kind.UNSUPPORTED, "add=True is not supported on a TensorCore.", self.core.device, site)

    def wait(self, descriptor: AsyncCopyDescriptor, site: RawSite) -> None:
        """Wait for both legs of a remote copy, or for a local one."""
        if self._piece is not self._idle:
            self.end_piece()
        if descriptor.src_sem is None:
            self.wait_recv(descriptor, site)
            return
        (descriptor.use or self.made(descriptor, site)).is_used = True
        send, receive, core = descriptor.src_sem, descriptor.dst_sem, self.core
        table = core.semaphores
        sent, received = table[send.position][send.flat], table[receive.position][receive.flat]
        if not sent.alive:
            self._report_gone(sent, site)
        if not received.alive:
            self._report_gone(received, site)
        if not core.wait_both(
            sent,
            descriptor.src_ref.region.nbytes,
            site,
            received,
            descriptor.dst_ref.region.nbytes,
            site,
        ):
            self.suspend()

    def wait_send(self, descriptor: AsyncCopyDescriptor, site: RawSite) -> None:
        """Wait until its source has been read."""
        if self._piece is not self._idle:
            self.end_piece()
        (descriptor.use or self.made(descriptor, site)).is_used = True
        ref = descriptor.src_sem
        semaphore = self.core.semaphores[ref.position][ref.flat]
        if not semaphore.alive:
            self._report_gone(semaphore, site)
        if not self.core.wait(semaphore, descriptor.src_ref.region.nbytes, site):
            self.suspend()

    def wait_recv(self, descriptor: AsyncCopyDescriptor, site: RawSite) -> None:
        """Wait until its destination has been written on this device."""
        if self._piece is not self._idle:
            self.end_piece()
        (descriptor.use or self.made(descriptor, site)).is_used = True
        ref = descriptor.dst_sem
        semaphore = self.core.semaphores[ref.position][ref.flat]
        if not semaphore.alive:
            self._report_gone(semaphore, site)
        if not self.core.wait(semaphore, descriptor.dst_ref.region.nbytes, site):
            self.suspend()

    # -- semaphores -----------------------------------------------------------------------------

    def _report_gone(self, semaphore: Semaphore, site: RawSite) -> None:
        self.machine.report_gone(self.core, "use of", semaphore, site)

    def _counter(self, ref: Any, device: int, verb: str, site: RawSite) -> Semaphore:
        if type(ref) is BarrierRef:
            return self.machine.barrier_semaphore(ref.collective_id, device)
        if type(ref) is not SemaphoreRef:
            raise SemaphoreKindError(f"semaphore_{verb} needs a semaphore, not {type(ref).__name__}")
        if ref.shape:
            raise SemaphoreKindError(
                f"semaphore_{verb} needs one semaphore; {ref.spec.name} is an array of shape {ref.shape}: pick one "
                "with .at[...]"
            )
        if ref.spec.kind is SemaphoreType.DMA and verb != "read":
            raise SemaphoreKindError(
                f"semaphore_{verb} on DMA semaphore {ref.spec.name}: use a descriptor's start and wait, or declare "
                "SemaphoreType.REGULAR"
            )
        semaphore = self.semaphores_of[device][ref.spec.position][ref.flat]
        if not semaphore.alive and device == self.core.device:
            self._report_gone(semaphore, site)
        return semaphore

    def semaphore_signal(self, sem: Any, inc: Any, device_id: Any, core_index: Any, site: RawSite) -> None:
        """Add to a semaphore."""
        if self._piece is not self._idle:
            self.end_piece()
        if core_index is not None and static(core_index, "core_index") != 0:
            raise NotModelledError("semaphore_signal(core_index=...): each device has one core here")
        device = self.core.device if device_id is None else self.resolve_device(device_id)
        amount = static(inc, "inc")
        if amount < 0:
            raise SemaphoreKindError(f"semaphore_signal adds a non-negative amount, not {amount}")
        self.core.signal(self._counter(sem, device, "signal", site), amount, site)

    def semaphore_wait(self, sem: Any, value: Any, site: RawSite) -> None:
        """Take from a semaphore."""
        if self._piece is not self._idle:
            self.end_piece()
        amount = static(value, "value")
        if amount < 0:
            raise SemaphoreKindError(f"semaphore_wait takes a non-negative value, not {amount}")
        if not self.core.wait(self._counter(sem, self.core.device, "wait", site), amount, site):
            self.suspend()

    def semaphore_read(self, sem: Any, site: RawSite) -> Scalar:
        """Its value now, in global time."""
        if self._piece is not self._idle:
            self.end_piece()
        if not self.core.join():
            self.suspend()
        semaphore = self._counter(sem, self.core.device, "read", site)
        return late_scalar(semaphore.value, lambda: self.core.peek(semaphore, site))

    def get_barrier_semaphore(self, site: RawSite) -> BarrierRef:
        """The barrier semaphore of the kernel's collective id."""
        if self._piece is not self._idle:
            self.end_piece()
        collective_id = self.program.kernel.collective_id
        if collective_id is None:
            self.machine.note(
                Kind.COLLECTIVE_ID,
                f"{self.program.kernel.name} uses the barrier semaphore and has no collective_id: give the kernel "
                "collective_id=0 (another number for each kernel that synchronises differently).",
                self.core.device,
                site,
                time_ps=self.core.now,
            )
        self.core.compute(self.machine.timing.barrier_ps, "barrier lookup", site)
        return BarrierRef(collective_id)
