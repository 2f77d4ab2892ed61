"""Deadlocks, leaks, races and lifetimes in every schedule, proven or refuted from the operations of one run.

Why one run is enough.  The operations of each agent (a core, a leg of a copy) are a fixed sequence.  A wait is
a threshold: it can go on once all that was ever added to its semaphore is at least the sum of what its one
waiter has waited for so far.  Semaphores are only added to, so nothing that one agent does can stop another:
whatever a core could do, it can still do after others have done more.  So two partial runs merge into one in
which every agent is as far as in either of them, and of all runs in which an access A has not ended there is a
greatest one, the *stalled run*: A never ends, everything else goes as far as it can.

 * B is not reached in the stalled run of A: then A ends before B begins, in every schedule.
 * B is reached in the stalled run of A, and A in that of B: the two runs merge into a state in which both have
   begun and neither has ended.  The accesses can overlap; if one of them writes what the other touches, it is
   a race, and "hold A until nothing else can move" is a schedule that shows it.

In the order of the run that was watched one access begins first, so one of the two questions has its answer.
What is stalled: a core at a load or store executes nothing further; a copy whose reader is stalled withholds
the last unit of both its semaphores, because what was written has been read; one whose writer is stalled, of
the receive semaphore.  Units of copies may come in any order.  Deadlock and what is left on a semaphore are the
same in every schedule, so the one run tells them.  The entry into a call is a write of all it owns: a core
stalled in front of its entry must keep every remote copy and signal to it from being started.  Nothing can
come after the exit, if nothing is left on any semaphore; the end of a `run_scoped` is a write of all it owned.
So is the exit for copies whose semaphores a call hands to a later one, in whatever it does not hand over too.
A semaphore of a `run_scoped` may be signalled, or count a copy, before its owner enters it, once the owner has left
every other scope that held semaphores: the counter may be the same one, but entering a scope does not reset it.

What it rests on is in `PREMISES`.  Two waiters on one semaphore are no sequence of thresholds; then each of them
is given all tokens, which misses no race and may invent some, so the answer is at best ``not-proven``.
So it is where a kernel reads the value of a semaphore for more than to print it, which may select what it does next,
and where other numbers in SMEM that nobody has written make it do something else (`unwritten`).

Limits.  The answer is for these inputs and this mesh.  Copies are divisible to the byte, although hardware moves
32 bytes at once.  A scalar in SMEM that only its core touches is not recorded.  XLA collectives, and what needs
a whole array, are taken to join their whole group; nothing else between kernels joins anything.  Addresses that
two calls may share because the compiler reuses memory are the compiler's business.

The argument was compared with an explorer that visits every state of random programs (`tests/proof_oracle.py`).

Cost.  Building is linear in events, 7 us each.  A question is asked for every access that a later one has to come
after without having waited for it itself: operations x (2 us + 0.6 ns x stalls) for each chunk of 4,096 stalls,
operations x stalls x 0.8 ns where there are thousands; memory is counters touched x 4,096 x 2 bytes
(`benchmarks/proof.py`).
"""

from tpusim.judges.proof.proof import PREMISES, Proof, prove
from tpusim.judges.proof.record import Recorder
from tpusim.judges.proof.witness import Names, ReplayRecorder, Witness, is_shown

__all__ = ["PREMISES", "Names", "Proof", "Recorder", "ReplayRecorder", "Witness", "is_shown", "prove"]
