"""No kernel beats its lower bound, whatever the slice, the size and the chip's numbers."""

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tpusim.bounds import Bound
from tpusim.job import Job, run_job

KERNELS = Path(__file__).parents[1] / "kernels"
ALONG_ONE_AXIS = [
    "ring_all_gather",
    "ring_all_gather_bidir",
    "ring_reduce_scatter",
    "right_permute",
    "all_to_all",
    "barrier",
    "all_reduce",
]
ALONG_TWO = ["torus_all_gather", "torus_all_reduce", "halo_exchange"]
SLICES = ["v5e:2x2", "v5e:2x4", "v5e:4x4", "v6e:4x4", "v5p:2x2x1", "v5p:2x2x2", "v4:2x2x4", "v7x:1x1x1", "v7x:2x2x1"]
RATES = {"ici.link_bandwidth": (1e9, 1e12), "hbm.bandwidth": (1e10, 1e13), "ici.hop_latency": (0, 1e-5),
         "ici.signal_latency": (0, 1e-5), "dma.start_latency_remote": (0, 1e-5)}  # fmt: skip


def ratio_of(name, **options):
    parameters = options.pop("parameters", {})
    outcome = run_job(Job(str(KERNELS / f"{name}.py"), {"checks": "none", "data": False, **options}, parameters))
    assert outcome.result is not None, outcome.problem
    assert isinstance(outcome.result.lower_bound, Bound)
    assert outcome.result.lower_bound.because
    return outcome.result.ratio


@st.composite
def chips(draw):
    names = draw(st.lists(st.sampled_from(sorted(RATES)), max_size=3, unique=True))
    return {name: draw(st.floats(*RATES[name])) for name in names}


@settings(max_examples=40)
@given(st.sampled_from(ALONG_ONE_AXIS), st.sampled_from(SLICES), st.integers(0, 6), chips())
@example("barrier", "v5e:4x4", 0, {})
@example("all_to_all", "v7x:2x2x1", 6, {})
def test_no_kernel_beats_its_bound(name, slice_, doublings, chip):
    assert ratio_of(name, slice=slice_, set=chip, parameters={"shape": (64 << doublings, 128)}) >= 1


@pytest.mark.parametrize("name", ALONG_TWO)
@pytest.mark.parametrize(("slice_", "mesh"), [("v5e:4x4", "x=4,y=4"), ("v6e:2x4", "x=2,y=4"), ("v5p:2x2x1", "x=2,y=2")])
def test_no_kernel_on_a_torus_beats_its_bound(name, slice_, mesh):
    assert ratio_of(name, slice=slice_, mesh=mesh) >= 1


def test_a_pod_with_wraparound_comes_close_to_its_bound():
    """Both ways round a ring of 16 whose links all carry data: nearly nothing but bandwidth."""
    assert (
        1 <= ratio_of("torus_all_gather", slice="v5e:16x16", mesh="x=16,y=16", parameters={"shape": (512, 128)}) < 1.6
    )
