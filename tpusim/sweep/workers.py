"""Where points are run: processes of this computer, or a Dask cluster.

Both take requests and give rows as they come.  A worker that dies takes the points it was at with it: they are tried
once more, and one whose worker dies again is a row that says so.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Protocol, Self

from tpusim.errors import MissingExtraError, OptionError
from tpusim.job import Status
from tpusim.sweep.row import Request, Row, evaluate, failed

_DIED = "the process that ran it died each time; out of memory?"
_CONNECT_S = 15


class Workers(Protocol):
    """A context manager whose ``run`` gives a row for each request, in any order."""

    def run(self, requests: Sequence[Request]) -> Iterator[Row]:
        """Run all of them."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None: ...


class LocalProcesses:
    """Processes of this computer; ``count`` defaults to its cores."""

    def __init__(self, count: int | None = None) -> None:
        self.count = count or os.cpu_count() or 1
        self._pool: ProcessPoolExecutor | None = None

    def run(self, requests: Sequence[Request]) -> Iterator[Row]:
        """Run all of them; those that were under way when a process died once more, each alone."""
        todo, suspects = deque(requests), deque[Request]()
        under_way: dict[Future[Row], Request] = {}
        while todo or under_way:
            while todo and len(under_way) < self.count:
                request = todo.popleft()
                under_way[self._submit(request)] = request
            done, _ = wait(under_way, return_when=FIRST_COMPLETED)
            for future in done:
                request = under_way.pop(future)
                try:
                    yield future.result()
                except BrokenProcessPool:  # all that its pool had under way come here, one of them the cause
                    suspects.append(request)
        for request in suspects:
            try:
                yield self._submit(request).result()
            except BrokenProcessPool:
                yield failed(request.point, Status.NOT_POSSIBLE, _DIED)

    def _submit(self, request: Request) -> Future[Row]:
        """A pool of which a process has died takes no more requests: then a new one does."""
        if self._pool is not None:
            try:
                return self._pool.submit(evaluate, request)
            except BrokenProcessPool:
                self._pool.shutdown()
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(self.count, context, initializer=_depend_on_the_parent)
        return self._pool.submit(evaluate, request)

    def __enter__(self) -> Self:
        """The workers themselves; processes start with the first request."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        """End all processes, at once where a sweep did not reach its end."""
        if self._pool is None:
            return
        if error is not None:
            for process in multiprocessing.active_children():
                process.terminate()
        self._pool.shutdown(cancel_futures=True)


def _depend_on_the_parent() -> None:
    """Leave interrupts to the parent, and end with it: a pool's processes hold its pipes open for each other."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class DaskCluster:
    """The workers of a Dask scheduler at ``tcp://host:port``, or ``tls://`` with the certificates of Dask's settings.

    Dask executes what its peers send: use it within a network you trust.  Raises ``OptionError`` where
    ``distributed`` is not installed, or nobody answers.
    """

    def __init__(self, address: str) -> None:
        if not address.startswith(("tcp://", "tls://")):
            raise OptionError(f"a scheduler's address is tcp://host:8786 or tls://host:8786, not {address!r}")
        if find_spec("distributed") is None:
            raise MissingExtraError("a Dask cluster needs distributed: pip install 'tpusim[cluster]'")
        import distributed

        self.address = address
        client: Any = distributed.Client
        make_security: Any = distributed.Security
        security = make_security(require_encryption=True) if address.startswith("tls://") else make_security()
        try:
            asyncio.run(_reach(address, security))
            self._client: Any = client(address, security=security, timeout=_CONNECT_S, set_as_default=False)
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            raise OptionError(f"no Dask scheduler at {address}: {error}") from None

    def run(self, requests: Sequence[Request]) -> Iterator[Row]:
        """Run all of them wherever there is room."""
        import distributed
        from distributed.scheduler import KilledWorker

        as_completed: Any = distributed.as_completed
        futures = {self._client.submit(evaluate, request, pure=False): request for request in requests}
        for future in as_completed(list(futures), loop=self._client.loop):
            try:
                row = future.result()
            except CancelledError:
                said = "went away; the rows so far are kept, the same command goes on"
                raise OptionError(f"the Dask scheduler at {self.address} {said}") from None
            except KilledWorker:
                row = failed(futures[future].point, Status.NOT_POSSIBLE, _DIED)
            yield row

    def __enter__(self) -> Self:
        """The cluster itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        """Leave the cluster; what was submitted and not run is taken back."""
        self._client.close()


async def _reach(address: str, security: Any) -> None:
    """Raise where nobody answers: a client that cannot connect would take another half minute to give up."""
    from distributed.comm.core import connect

    call: Any = connect
    comm = await call(address, timeout=_CONNECT_S, **security.get_connection_args("client"))
    comm.abort()
