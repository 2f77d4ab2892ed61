"""Mutants of a kernel file: by rule, one change of its text, where its syntax tree says that something stands.

A mutant keeps the file's other text, so that what is found in it points to the line that was changed.  What a
rule needs at run time (a device one further on, a copy of fewer bytes) is a helper at the end of the file.
"""

import ast
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

SEMAPHORES = re.compile(r"(sems?|credits?|private)$")
"""How semaphores are called in `kernels/`."""
REGULAR = re.compile(r"(credits?|private)$")
WAITS = ("wait", "wait_send", "wait_recv")
HELPERS = '''

def _beyond(device):
    """The device one further on than a target."""
    if isinstance(device, dict):
        return {axis: (at + 1) % tpusim.axis_size(axis) for axis, at in device.items()}
    return (device + 1) % tpusim.axis_size("x")


def _opposite(device):
    """The device as far from here as a target, the other way."""
    if isinstance(device, dict):
        sizes = {axis: tpusim.axis_size(axis) for axis in device}
        return {axis: (2 * tpusim.axis_index(axis) + sizes[axis] - at) % sizes[axis] for axis, at in device.items()}
    return (2 * tpusim.axis_index("x") + tpusim.axis_size("x") - device) % tpusim.axis_size("x")


def _fewer(copy):
    """A copy of half the bytes."""

    def half(ref):
        dim = next(dim for dim, size in enumerate(ref.shape) if size > 1)
        return ref.at[(slice(None),) * dim + (tpusim.ds(0, ref.shape[dim] // 2),)]

    if copy.src_sem is None:
        return tpusim.make_async_copy(half(copy.src_ref), half(copy.dst_ref), copy.dst_sem)
    refs = half(copy.src_ref), half(copy.dst_ref)
    return tpusim.make_async_remote_copy(*refs, copy.src_sem, copy.dst_sem, copy.device_id)


def _next(index, extent):
    """The index after one, round the end."""
    if isinstance(index, slice):
        return slice((index.start or 0) + 1, None if index.stop is None else index.stop + 1, index.step)
    if isinstance(index, tuple) or hasattr(index, "size") and hasattr(index, "stride"):
        raise TypeError("a slice made elsewhere is changed there")
    return (index + 1) % extent
'''


class Mutant(NamedTuple):
    """``text``: the whole file; ``line`` and ``was``: what was changed; ``into``: what stands there now."""

    rule: str
    line: int
    was: str
    into: str
    text: str
    calls: int = 2


class Edit(NamedTuple):
    """New text in place of that of a node."""

    node: ast.AST
    new: str


class Source:
    """A kernel file's text and tree; ``functions``: the kernel ``name`` and what it calls in the file."""

    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self.bytes = text.encode()
        self.tree = ast.parse(text)
        self._starts = [0]
        for line in self.bytes.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        named = {n.name: n for n in ast.walk(self.tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        todo, found = [name], {}
        while todo:
            each = todo.pop()
            if each in named and each not in found:
                found[each] = named[each]
                todo += [n.id for body in named[each].body for n in ast.walk(body) if isinstance(n, ast.Name)]
        self.functions = list(found.values())
        kernel = found[name]
        self.parameters = {argument.arg for argument in kernel.args.args}
        self.nodes = sorted(
            {n for f in self.functions for body in f.body for n in ast.walk(body) if hasattr(n, "lineno")},
            key=lambda n: (n.lineno, n.col_offset),
        )
        self.blocks = [
            block
            for owner in (*self.functions, *self.nodes)
            for field in ("body", "orelse")
            if isinstance(block := getattr(owner, field, None), list) and block
        ]

    def span(self, node: ast.AST) -> tuple[int, int]:
        """First byte of a node, and the one after its last."""
        first = min([node, *getattr(node, "decorator_list", ())], key=lambda n: n.lineno)
        start = self._starts[first.lineno - 1] + first.col_offset - (first is not node)
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset

    def of(self, node: ast.AST) -> str:
        """A node's text."""
        start, end = self.span(node)
        return self.bytes[start:end].decode()

    def mutant(self, rule: str, *edits: Edit) -> Mutant:
        """The file with some nodes' texts replaced."""
        result = self.bytes
        for edit in sorted(edits, key=lambda edit: -self.span(edit.node)[0]):
            start, end = self.span(edit.node)
            result = result[:start] + edit.new.encode() + result[end:]
        first = min((edit.node for edit in edits), key=lambda node: node.lineno)
        at = next(edit for edit in edits if edit.node is first)
        uses_helper = re.search(r"\b_(beyond|opposite|fewer|next)\(", " ".join(edit.new for edit in edits))
        helpers = HELPERS if uses_helper else ""
        line = self.bytes.count(b"\n", 0, self.span(first)[0]) + 1
        return Mutant(rule, line, self.of(first), at.new, result.decode() + helpers)

    def calls(self, *names: str) -> list[ast.Call]:
        """Calls of functions and methods of these names, in the order of the text."""
        return [n for n in self.nodes if isinstance(n, ast.Call) and called(n) in names]


def called(call: ast.Call) -> str:
    """The last name of what is called."""
    return last_name(call.func)


def last_name(node: ast.AST) -> str:
    """``b`` of ``a.b``, ``b.at[...]`` and ``b[...]``."""
    if isinstance(node, ast.Subscript):
        return last_name(node.value.value if is_at(node) else node.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def is_at(node: ast.AST) -> bool:
    """Whether it is ``x.at[...]``."""
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "at"


def is_barrier(call: ast.Call) -> bool:
    """Whether a signal or wait is of a barrier semaphore."""
    return called(call).startswith("semaphore") and last_name(call.args[0]) in ("barrier", "semaphore")


def has(node: ast.AST, *names: str) -> bool:
    """Whether some call of these names stands in a node."""
    return any(isinstance(n, ast.Call) and called(n) in names for n in ast.walk(node))


def indices(node: ast.Subscript) -> list[ast.expr]:
    """The parts of an index."""
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


# -- the rules ----------------------------------------------------------------------------------------


def drop_wait(file: Source) -> Iterator[list[Edit]]:
    """A wait of a copy or a credit."""
    for call in file.calls(*WAITS, "semaphore_wait"):
        if not is_barrier(call):
            yield [Edit(call, "None")]


def drop_signal(file: Source) -> Iterator[list[Edit]]:
    """A signal that is no barrier's."""
    for call in file.calls("semaphore_signal"):
        if not is_barrier(call):
            yield [Edit(call, "None")]


def drop_barrier(file: Source) -> Iterator[list[Edit]]:
    """The wait, the signals, one signal of several, one handshake of several, or all of it."""
    signals = [call for call in file.calls("semaphore_signal") if is_barrier(call)]
    waits = [call for call in file.calls("semaphore_wait") if is_barrier(call)]
    for call in (*signals, *waits):
        yield [Edit(call, "None")]
    if signals:
        yield [Edit(call, "None") for call in (*signals, *waits)]
    if len(signals) == 2:
        for call in signals:
            yield [Edit(call, "None"), *(Edit(wait.args[1], "1") for wait in waits)]
    for loop in file.nodes:
        if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Tuple) and has(loop.iter, "get_barrier_semaphore"):
            for kept in loop.iter.elts:
                yield [Edit(loop.iter, f"({file.of(kept)},)")]


def drop_copy(file: Source) -> Iterator[list[Edit]]:
    """The start of a copy."""
    for call in file.calls("start"):
        yield [Edit(call, "None")]


def fewer_bytes(file: Source) -> Iterator[list[Edit]]:
    """A copy's wait for half of it; a count of one less."""
    for call in file.calls(*WAITS):
        yield [Edit(call.func.value, f"_fewer({file.of(call.func.value)})")]
    for call in file.calls("semaphore_wait"):
        if len(call.args) > 1 and file.of(call.args[1]) != "1":
            yield [Edit(call.args[1], f"{file.of(call.args[1])} - 1")]


def swap_slot(file: Source) -> Iterator[list[Edit]]:
    """The other one of two slots."""
    pairs: dict[str, str] = {}
    for node in file.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and "% 2" in file.of(node.value):
            one, other = (file.of(target) for target in node.targets[0].elts)
            pairs |= {one: other, other: one}
    for node in file.nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in pairs:
            yield [Edit(node, pairs[node.id])]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and file.of(node.right) in ("2", "SLOTS"):
            yield [Edit(node, f"({file.of(node.left)} + 1) % {file.of(node.right)}")]


def wrong_neighbour(file: Source) -> Iterator[list[Edit]]:
    """The device after a target, or opposite to it."""
    targets = [keyword.value for node in file.nodes if isinstance(node, ast.Call) for keyword in node.keywords
               if keyword.arg == "device_id"]  # fmt: skip
    targets += [call.args[4] for call in file.calls("make_async_remote_copy") if len(call.args) > 4]
    for target in targets:
        for helper in ("_beyond", "_opposite"):
            yield [Edit(target, f"{helper}({file.of(target)})")]


def share_semaphore(file: Source) -> Iterator[list[Edit]]:
    """One index of a semaphore always 0; one semaphore for both legs, or for a copy and another."""
    uses: dict[tuple[str, int], list[ast.expr]] = {}
    for node in file.nodes:
        if is_at(node) and SEMAPHORES.search(last_name(node)):
            for position, index in enumerate(indices(node)):
                uses.setdefault((file.of(node.value), position), []).append(index)
    for found in uses.values():
        if changed := [Edit(index, "0") for index in found if file.of(index) != "0"]:
            yield changed
    for call in file.calls("make_async_remote_copy"):
        send, receive = call.args[2:4]
        yield [Edit(send, file.of(receive))]
        yield [Edit(receive, file.of(send))]
    plain = [name for name in sorted(file.parameters) if name.endswith("sem")]
    for call in file.calls("make_async_copy"):
        for name in plain:
            if isinstance(call.args[2], ast.Name) and name != call.args[2].id:
                yield [Edit(call.args[2], name)]


def reuse_collective_id(file: Source) -> Iterator[list[Edit]]:
    """The barrier semaphore of the kernel's collective_id, which outlives a call, in place of one of its own."""
    inside = {id(n.value.value) for n in file.nodes if is_at(n)}
    uses: dict[str, list[Edit]] = {}
    for node in file.nodes:
        is_use = is_at(node) or (isinstance(node, ast.Name | ast.Attribute) and id(node) not in inside)
        if is_use and REGULAR.search(name := last_name(node)) and isinstance(node.ctx, ast.Load):
            uses.setdefault(name, []).append(Edit(node, "tpusim.get_barrier_semaphore()"))
    yield from uses.values()


def wait_before_start(file: Source) -> Iterator[list[Edit]]:
    """A wait moved in front of the start or signal before it."""
    for block in file.blocks:
        for number, statement in enumerate(block):
            if not has(statement, *WAITS, "semaphore_wait") or has(statement, "start", "semaphore_signal"):
                continue
            for other in reversed(block[:number]):
                if has(other, "start", "semaphore_signal"):
                    yield _moved(file, statement, other)
                    break


def late_wait(file: Source) -> Iterator[list[Edit]]:
    """A wait moved behind the statement after it, or to the end of its block: the source is overwritten before."""
    for block in file.blocks:
        for number, statement in enumerate(block[:-1]):
            if not isinstance(statement, ast.Expr | ast.For) or not has(statement, *WAITS, "semaphore_wait"):
                continue
            if has(statement, "start", "semaphore_signal"):
                continue
            for other in dict.fromkeys((block[number + 1], block[-1])):
                yield _moved(file, statement, other, before=False)
            sent = re.sub(r"\.wait\(\)", ".wait_send()", file.of(statement))
            if sent != file.of(statement) and file.calls("make_async_remote_copy"):
                received = file.of(statement).replace(".wait()", ".wait_recv()")
                yield [Edit(statement, received), _behind(file, block[-1], statement, sent)]


def early_signal(file: Source) -> Iterator[list[Edit]]:
    """A signal moved in front of the statement before it."""
    for block in file.blocks:
        for other, statement in pairwise(block):
            is_made = isinstance(other, ast.Assign)  # what is signalled, perhaps
            if has(statement, "semaphore_signal") and isinstance(statement, ast.Expr | ast.If) and not is_made:
                yield _moved(file, statement, other)


def off_by_one(file: Source) -> Iterator[list[Edit]]:
    """The next index of a buffer, round its end; a slice that begins one later or is one shorter."""
    for node in file.nodes:
        if isinstance(node, ast.Subscript) and not SEMAPHORES.search(last_name(node)):
            is_ref = isinstance(node.value, ast.Name) and node.value.id in file.parameters
            base = file.of(node.value.value) if is_at(node) else file.of(node.value)
            for position, index in enumerate(indices(node) if is_at(node) or is_ref else ()):
                if isinstance(index, ast.Slice):
                    low, high = (part and f"{file.of(part)} + 1" for part in (index.lower, index.upper))
                    if low or high:
                        yield [Edit(index, f"{low or 1}:{high or ''}")]
                elif not has(index, "ds") and file.of(index) != "...":
                    yield [Edit(index, f"_next({file.of(index)}, {base}.shape[{position}])")]
    for call in file.calls("ds"):
        yield [Edit(call.args[0], f"{file.of(call.args[0])} + 1")]
        yield [Edit(call.args[1], f"{file.of(call.args[1])} - 1")]


def _moved(file: Source, statement: ast.stmt, other: ast.stmt, *, before: bool = True) -> list[Edit]:
    """A statement in front of another of its block, or behind it."""
    text = file.of(statement)
    if before:
        return [Edit(other, f"{text}\n{' ' * other.col_offset}{file.of(other)}"), Edit(statement, "pass")]
    return [Edit(statement, "pass"), _behind(file, other, statement, text)]


def _behind(file: Source, other: ast.stmt, statement: ast.stmt, text: str) -> Edit:
    return Edit(other, f"{file.of(other)}\n{' ' * statement.col_offset}{text}")


RULES: dict[str, Callable[[Source], Iterator[list[Edit]]]] = {
    "drop wait": drop_wait,
    "drop signal": drop_signal,
    "drop barrier": drop_barrier,
    "drop copy": drop_copy,
    "wait for fewer bytes": fewer_bytes,
    "swap slot": swap_slot,
    "wrong neighbour": wrong_neighbour,
    "share a semaphore": share_semaphore,
    "reuse collective_id": reuse_collective_id,
    "wait before start": wait_before_start,
    "overwrite before wait": late_wait,
    "early signal": early_signal,
    "off by one": off_by_one,
}
ONE_MORE_CALL = "one more call"
UNCHANGED = "(unchanged)"


def mutants(text: str, name: str) -> dict[str, list[Mutant]]:
    """All mutants, by rule, of a file whose kernel is the function ``name``."""
    file = Source(text, name)
    found = {}
    for rule, edits in RULES.items():
        each = {mutant.text: mutant for edit in edits(file) for mutant in [file.mutant(rule, *edit)]}
        found[rule] = [mutant for mutant in each.values() if mutant.text != text]
    found[ONE_MORE_CALL] = [Mutant(ONE_MORE_CALL, 1, "2 calls", "3 calls", text, calls=3)]
    return found
