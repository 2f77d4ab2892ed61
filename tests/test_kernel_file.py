"""FILE: ``path.py[:name]``."""

import sys
import textwrap

import pytest

from tpusim.errors import OptionError
from tpusim.kernel_file import load_file

GOOD = """
    import tpusim

    def fn(x_ref, o_ref):
        pass

    kernel = tpusim.Kernel(fn, out_shape=lambda x: x)
    other = tpusim.Kernel(fn, out_shape=lambda x: x, name="second")

    def inputs(devices=4, *, seed=0, **more):
        return ()

    def reference(*arrays, devices=4):
        return arrays
"""


@pytest.fixture
def write(tmp_path):
    def write_file(text, name="mine.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    before = set(sys.modules)
    yield write_file
    for name in set(sys.modules) - before:
        del sys.modules[name]


def refused(spec, message):
    with pytest.raises(OptionError) as caught:
        load_file(str(spec))
    assert str(caught.value) == message


def test_a_file_gives_its_kernel_and_functions(write):
    path = write(GOOD)
    loaded = load_file(str(path))
    assert loaded.kernel.name == "fn"
    assert loaded.inputs() == ()
    assert loaded.reference is not None
    assert loaded.lower_bound is None
    assert loaded.path == path
    assert loaded.name == "kernel"


def test_a_name_after_a_colon_chooses_the_kernel(write):
    path = write(GOOD)
    assert load_file(f"{path}:other").kernel.name == "second"


def test_a_file_is_imported_once_under_its_own_name_and_again_when_it_changes(write):
    path = write(GOOD)
    first = load_file(str(path))
    assert load_file(f"{path}:other").inputs is first.inputs
    module = first.kernel.fn.__module__
    assert module.startswith("kernel_file_mine_")
    write(GOOD + "\n    changed = True\n")
    assert load_file(str(path)).kernel.fn.__module__ != module


def test_a_file_may_import_its_neighbour(write):
    write("VALUE = 7\n", "neighbour_of_mine.py")
    path = write(GOOD + "\n    from neighbour_of_mine import VALUE\n")
    before = list(sys.path)
    assert load_file(str(path)).kernel.fn.__globals__["VALUE"] == 7
    assert sys.path == before


def test_what_is_no_kernel_file_is_refused(write, tmp_path):
    refused(tmp_path / "none.py", f"{tmp_path}/none.py: no such file")
    refused("kernel.txt", "kernel.txt: a kernel file is a Python file, path.py or path.py:name")
    path = write(GOOD)
    refused(f"{path}:1a", f"{path}:1a: '1a' is no Python name")
    refused(f"{path}:missing", f"{path} has no 'missing'; kernels in it: kernel, other")
    path = write(GOOD + "\n    number = 3\n")
    refused(f"{path}:number", f"{path}: 'number' is neither a tpusim.Kernel nor a function but int")


def test_inputs_must_be_there_and_callable_without_arguments(write):
    path = write("import tpusim\nkernel = tpusim.Kernel(lambda: None, out_shape=None)\n")
    refused(path, f"{path} needs a function inputs(...) that makes the kernel's global arrays")
    path = write("import tpusim\nkernel = tpusim.Kernel(lambda: None, out_shape=None)\ndef inputs(devices): pass\n")
    refused(path, f"{path}: parameter 'devices' of inputs() needs a default")


def test_a_file_that_cannot_be_imported_says_why_and_leaves_nothing_behind(write):
    path = write("import no_such_module_anywhere\n")
    refused(path, f"{path} cannot be imported: ModuleNotFoundError: No module named 'no_such_module_anywhere'")
    path = write("def (:\n")
    refused(path, f"{path} cannot be imported: SyntaxError: invalid syntax (mine.py, line 1)")
    path = write("1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        load_file(str(path))
    assert not [name for name in sys.modules if name.startswith("kernel_file_mine_")]


def test_functions_that_are_no_kernel_are_refused(write):
    path = write(GOOD + "\n    from tpusim import fori_loop\n")
    refused(f"{path}:inputs", f"{path}: 'inputs' is no kernel; kernels in it: kernel, other")
    refused(f"{path}:reference", f"{path}: 'reference' is no kernel; kernels in it: kernel, other")
    refused(f"{path}:fori_loop", f"{path}: 'fori_loop' is no kernel; kernels in it: kernel, other")


def test_a_factory_makes_the_kernel_with_other_parameters(write):
    factory = """

    def make_kernel(bm=1, bn=2):
        return tpusim.Kernel(fn, out_shape=lambda x: x, name=f"blocks_{bm}_{bn}")
    """
    loaded = load_file(str(write(GOOD + factory)))
    assert loaded.parameters == {"make_kernel": ["bm", "bn"], "inputs": ["seed", "more"]}
    assert loaded.made({"bn": 8, "seed": 1}).name == "blocks_1_8"
    assert loaded.made({"seed": 1}) is loaded.kernel


def test_the_digest_is_of_the_content(write):
    first, same, other = write(GOOD), write(GOOD, "same.py"), write(GOOD + "\n    x = 1\n", "other.py")
    digests = [load_file(str(path)).digest for path in (first, same, other)]
    assert digests[0] == digests[1] != digests[2]
