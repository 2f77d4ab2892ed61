"""The race judge against an oracle on random programs: no false alarm, and nothing missed."""

from __future__ import annotations

from hypothesis import event, given, settings
from race_oracle import explore, has_late_senders, observe, outside, programs, racing, reported

from tpusim.findings import Kind


@settings(max_examples=1500)
@given(program=programs())
def test_against_the_stall_rule(program):
    log, machine = observe(program)
    found = reported(machine, Kind.RACE)
    possible = racing(log, whole=True)
    assert found <= possible | {(b, a) for a, b in possible}
    so_far = racing(log, whole=False)
    assert so_far <= possible
    lifetimes = {where for where, _ in reported(machine, Kind.LIFETIME)}
    if so_far and not found | lifetimes:
        event("missed")
        assert has_late_senders(log)
    event("race" if found else "none")
    assert lifetimes <= outside(log, program)


@settings(max_examples=150)
@given(program=programs(most=8))
def test_against_every_interleaving(program):
    log, machine = observe(program)
    possible = explore(log)
    if possible is not None:
        by_rule = racing(log, whole=True)
        assert by_rule <= possible
        assert reported(machine, Kind.RACE) <= possible
