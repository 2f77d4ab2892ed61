"""Slices, numbering, links, routes and layouts; the layouts also against JAX itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpusim.errors import NotModelledError, OptionError
from tpusim.topology import (
    Slice,
    distance,
    hops,
    layout_summary,
    link,
    links,
    links_into,
    links_out_of,
    mesh_devices,
    route,
)

FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
SMALL = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")
CUBES = ("4x4x4", "4x4x8", "4x8x8")

SLICES = [
    *(Slice.parse(f"{chip}:{shape}") for chip in ("v5e", "v6e") for shape in FLAT),
    *(Slice.parse(f"{chip}:{shape}") for chip in ("v4", "v5p", "v7x") for shape in (*SMALL, *CUBES)),
    *(Slice.parse(f"{chip}:{shape}", cores="split") for chip in ("v4", "v5p") for shape in (*SMALL, "4x4x4")),
    Slice.parse("v7x:1x1x1"),
    Slice.parse("v5p:12x12x24"),
]
slices = st.sampled_from(SLICES)


@st.composite
def slice_and_devices(draw, count=2):
    on = draw(slices)
    return on, *(draw(st.integers(0, on.num_devices - 1)) for _ in range(count))


def exactly(text):
    return f"^{re.escape(text)}$"


def factorizations(total, axes):
    if axes == 1:
        yield (total,)
        return
    for first in range(1, total + 1):
        if total % first == 0:
            for rest in factorizations(total // first, axes - 1):
                yield (first, *rest)


# --- slices -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("on", SLICES, ids=str)
def test_a_slice_reads_as_it_is_written(on):
    assert Slice.parse(str(on), cores=on.cores) == on


@pytest.mark.parametrize(
    ("text", "cores", "chips", "devices", "wraps"),
    [
        ("v5e:1x1", "megacore", 1, 1, (False, False)),
        ("v5e:8x16", "megacore", 128, 128, (False, True)),
        ("v6e:16x16", "megacore", 256, 256, (True, True)),
        ("v5p:2x4x4", "megacore", 32, 32, (False, False, False)),
        ("v4:2x2x1", "split", 4, 8, (False, False, False)),
        ("v5p:4x4x8", "megacore", 128, 128, (True, True, True)),
        ("v7x:1x1x1", "megacore", 1, 2, (False, False, False)),
        ("v7x:4x4x4", "megacore", 64, 128, (True, True, True)),
        ("v5p:16x16x24", "megacore", 6144, 6144, (True, True, True)),
        ("v7x:4x4x576", "megacore", 9216, 18432, (True, True, True)),
    ],
)
def test_size_and_wraparound(text, cores, chips, devices, wraps):
    on = Slice.parse(text, cores=cores)
    assert (on.num_chips, on.num_devices, on.wraps) == (chips, devices, wraps)


FLAT_V5E = "Slices of v5e: 1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16."
DEEP_V5P = "Slices of v5p: 2x2x1, 2x2x2, 2x2x4, 2x4x4, or multiples of 4 on all three axes, up to 6,144 chips."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("v5e:4x2", f"v5e has no slice 4x2. Did you mean v5e:2x4? {FLAT_V5E}"),
        ("v5e:3x3", f"v5e has no slice 3x3. {FLAT_V5E}"),
        ("v5e:2x2x1", f"v5e has no slice 2x2x1. {FLAT_V5E}"),
        ("v5p:1x1x1", f"v5p has no slice 1x1x1. {DEEP_V5P}"),
        ("v5p:4x2x4", f"v5p has no slice 4x2x4. Did you mean v5p:2x4x4? {DEEP_V5P}"),
        ("v5p:4x4x6", f"v5p has no slice 4x4x6. {DEEP_V5P}"),
        ("v5p:16x20x28", f"v5p has no slice 16x20x28. {DEEP_V5P}"),
        ("v9:2x2", "No chip is called 'v9'; slices exist for v4, v5e, v5p, v6e, v7x."),
        ("v5e", "A slice is written chip:shape, as v5e:4x4 or v5p:2x2x1, not 'v5e'."),
        ("v5e:04x4", "A slice is written chip:shape, as v5e:4x4 or v5p:2x2x1, not 'v5e:04x4'."),
        ("v5e:4X4", "A slice is written chip:shape, as v5e:4x4 or v5p:2x2x1, not 'v5e:4X4'."),
    ],
)
def test_slices_that_do_not_exist(text, message):
    with pytest.raises(OptionError, match=exactly(message)):
        Slice.parse(text)


def test_chips_that_are_only_shown():
    message = (
        "Slices of 8t chips are not modelled: their network is not published in enough detail."
        " Slices exist for v4, v5e, v5p, v6e, v7x."
    )
    with pytest.raises(NotModelledError, match=exactly(message)):
        Slice.parse("8t:2x2")
    with pytest.raises(NotModelledError):
        Slice.smallest("8i", 4)


def test_cores():
    message = "cores='split' exists only on v4 and v5p, whose chips join two cores in one device; v7x does not."
    with pytest.raises(OptionError, match=exactly(message)):
        Slice.parse("v7x:2x2x1", cores="split")
    with pytest.raises(OptionError, match=exactly("cores is 'megacore' or 'split', not 'both'.")):
        Slice.parse("v4:2x2x1", cores="both")


@pytest.mark.parametrize(
    ("chip", "devices", "text"),
    [
        ("v5e", 1, "v5e:1x1"),
        ("v5e", 3, "v5e:2x2"),
        ("v5e", 9, "v5e:4x4"),
        ("v5e", 256, "v5e:16x16"),
        ("v5p", 1, "v5p:2x2x1"),
        ("v5p", 65, "v5p:4x4x8"),
        ("v5p", 512, "v5p:8x8x8"),
        ("v5p", 6144, "v5p:16x16x24"),
        ("v7x", 2, "v7x:1x1x1"),
        ("v7x", 3, "v7x:2x2x1"),
    ],
)
def test_the_smallest_slice(chip, devices, text):
    assert str(Slice.smallest(chip, devices)) == text


def test_the_smallest_slice_by_default_and_split():
    assert str(Slice.smallest()) == "v5e:2x2"
    assert Slice.smallest("v4", 8, cores="split").shape == (2, 2, 1)


def test_more_devices_than_any_slice_has():
    message = "The largest slice of v5e has 256 devices, 1,000 were asked for."
    with pytest.raises(OptionError, match=exactly(message)):
        Slice.smallest("v5e", 1000)


def test_x_is_fastest_and_the_core_innermost():
    assert [Slice.parse("v5e:2x4").coords(device)[:2] for device in range(4)] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert [Slice.parse("v7x:2x2x1").coords(device) for device in (1, 2, 7)] == [
        (0, 0, 0, 1),
        (1, 0, 0, 0),
        (1, 1, 0, 1),
    ]
    assert Slice.parse("v5p:2x2x2").coords(4) == (0, 0, 1, 0)


@given(slice_and_devices(1))
def test_coordinates_name_the_device(case):
    on, device = case
    assert on.device_at(on.coords(device)) == device
    assert on.chip_at(on.coords(device)[:3]) == on.chip_of(device)


def test_devices_that_do_not_exist():
    on = Slice.parse("v5e:2x4")
    with pytest.raises(OptionError, match=exactly("v5e:2x4 has devices 0 to 7, not 8.")):
        on.coords(8)
    message = "v5e:2x4 has no device at (2, 0): coordinates are (x, y[, z[, core]]) below (2, 4, 1, 1)."
    with pytest.raises(OptionError, match=exactly(message)):
        on.device_at((2, 0))
    with pytest.raises(OptionError):
        on.device_at((1,))
    with pytest.raises(OptionError):
        on.device_at((0, 0, 0, 0, 0))


# --- links ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on", SLICES, ids=str)
def test_links(on):
    every = list(links(on))
    edges = [
        (size if wraps else size - 1) * on.num_chips // size for size, wraps in zip(on.shape, on.wraps, strict=True)
    ]
    assert len(every) == 2 * sum(edges) + (2 * on.num_chips if on.has_die_links else 0)
    assert len({each.index for each in every}) == len(every)
    assert all(link(on, each.index) == each for each in every)
    for each in every:
        source, target = on.chip_at(each.source), on.chip_at(each.target)
        assert distance(on, source, target) == (each.kind == "ici")
        if each.kind == "ici":
            assert each.index in links_out_of(on, source)
            assert each.index in links_into(on, target)
    assert all(len(links_into(on, chip)) == len(links_out_of(on, chip)) for chip in range(on.num_chips))


def test_links_read_well():
    on = Slice.parse("v5e:4x4")
    assert str(link(on, route(on, 1, 2).links[0])) == "(1,0)->(2,0)"
    dies = Slice.parse("v7x:2x2x1")
    assert str(link(dies, route(dies, 2, 3).links[0])) == "(1,0,0) die 0->die 1"
    assert str(link(dies, route(dies, 3, 2).links[0])) == "(1,0,0) die 1->die 0"
    assert str(link(dies, route(dies, 1, 2).links[0])) == "(0,0,0)->(1,0,0)"


@pytest.mark.parametrize("index", [-1, 1, 64])
def test_links_that_do_not_exist(index):
    with pytest.raises(OptionError, match=exactly(f"v5e:4x4 has no link {index}.")):
        link(Slice.parse("v5e:4x4"), index)


# --- routes -----------------------------------------------------------------------------------------


@given(slice_and_devices(2))
def test_routes_are_connected_shortest_and_in_the_order_of_the_axes(case):
    on, a, b = case
    found = route(on, a, b)
    way = [link(on, index) for index in found.links]
    assert found.hops == len(way) == hops(on, a, b)
    places = [on.coords(a)[:3], *(each.target for each in way)]
    assert places[:-1] == [each.source for each in way]
    assert places[-1] == on.coords(b)[:3]
    if on.chip_of(a) != on.chip_of(b):
        assert found.hops == distance(on, on.chip_of(a), on.chip_of(b))
        assert all(each.kind == "ici" for each in way)
    assert [each.axis for each in way] == sorted(each.axis for each in way)
    assert len({(each.axis, each.direction) for each in way}) == len({each.axis for each in way})


@given(slice_and_devices(2))
def test_both_ways_are_equally_long(case):
    on, a, b = case
    there, back = route(on, a, b), route(on, b, a)
    assert there.hops == back.hops
    assert there.warns == back.warns


@given(slice_and_devices(3))
def test_no_detour_is_shorter(case):
    on, a, b, c = case
    assert hops(on, a, c) <= hops(on, a, b) + hops(on, b, c)


def test_ties_go_the_positive_way():
    on = Slice.parse("v5p:4x4x4")
    assert [str(link(on, index)) for index in route(on, 0, 2).links] == ["(0,0,0)->(1,0,0)", "(1,0,0)->(2,0,0)"]
    assert [str(link(on, index)) for index in route(on, 2, 0).links] == ["(2,0,0)->(3,0,0)", "(3,0,0)->(0,0,0)"]
    assert [str(link(on, index)) for index in route(on, 0, 3).links] == ["(0,0,0)->(3,0,0)"]


def test_devices_of_one_chip():
    split = Slice.parse("v5p:2x2x1", cores="split")
    assert route(split, 0, 1) == ((), 0, False)
    assert route(split, 1, 2).hops == 1
    dies = Slice.parse("v7x:2x2x1")
    assert route(dies, 0, 1).hops == 1
    assert route(dies, 0, 0) == ((), 0, False)
    assert route(dies, 0, 2).links == route(dies, 1, 3).links


@pytest.mark.parametrize(
    ("text", "target", "warns"),
    [
        ("v5e:4x4", 1, False),
        ("v5e:4x4", 2, False),
        ("v5e:4x4", 3, True),
        ("v5e:4x4", 5, False),
        ("v5e:4x4", 12, True),
        ("v5e:16x16", 13, True),
        ("v5e:16x16", 15, False),
        ("v6e:4x4", 3, False),
    ],
)
def test_the_power_of_two_rule_of_v5e(text, target, warns):
    assert route(Slice.parse(text), 0, target).warns is warns


def test_a_route_of_a_large_slice_needs_nothing_else_built():
    on = Slice.parse("v5p:16x16x24")
    assert route(on, 0, on.num_devices - 1).hops == 3
    assert route(on, 0, on.device_at((8, 8, 12))).hops == 28
    with pytest.raises(OptionError, match=exactly("v5p:16x16x24 has devices 0 to 6143, not 6144.")):
        route(on, 0, 6144)


# --- layouts ----------------------------------------------------------------------------------------


@given(slices, st.sampled_from(["auto", "ring", "row-major"]), st.data())
def test_layouts_are_permutations(on, layout, data):
    sizes = data.draw(st.sampled_from([f for axes in (1, 2, 3) for f in factorizations(on.num_devices, axes)]))
    try:
        devices = mesh_devices(on, sizes, layout)
    except OptionError:
        assert layout != "row-major"
        return
    assert sorted(devices) == list(range(on.num_devices))
    if layout == "ring":
        assert max(layout_summary(on, sizes, devices)) <= 1


@pytest.mark.parametrize("on", SLICES, ids=str)
def test_one_axis_is_a_ring_on_every_slice(on):
    devices = mesh_devices(on, (on.num_devices,), "ring")
    assert sorted(devices) == list(range(on.num_devices))
    assert layout_summary(on, (on.num_devices,), devices) <= (1,)


@pytest.mark.parametrize(
    ("text", "sizes", "summary"),
    [
        ("v5e:2x2", (4,), (1,)),
        ("v5e:2x4", (8,), (2,)),
        ("v5e:4x4", (16,), (1,)),
        ("v5e:4x4", (4, 4), (3, 3)),
        ("v5e:8x8", (64,), (14,)),
        ("v5e:16x16", (16, 16), (1, 1)),
        ("v5p:2x2x2", (8,), (1,)),
        ("v5p:4x4x4", (64,), (3,)),
        ("v7x:2x2x1", (8,), (1,)),
        ("v7x:2x2x4", (32,), (4,)),
        ("v5e:1x1", (1,), (0,)),
    ],
)
def test_hops_of_the_default_layout(text, sizes, summary):
    on = Slice.parse(text)
    assert layout_summary(on, sizes, mesh_devices(on, sizes)) == summary


def test_a_smaller_mesh_takes_the_first_devices_of_the_layout():
    on = Slice.parse("v5e:4x4")
    assert mesh_devices(on, (6,)) == mesh_devices(on, (16,))[:6] == (0, 1, 2, 3, 7, 6)
    assert mesh_devices(on, (2, 3)) == mesh_devices(on, (6,))
    assert mesh_devices(on, (2, 3), "row-major") == (0, 1, 2, 3, 4, 5)
    assert mesh_devices(on, (2,), "ring") == (0, 1)


def test_rings_along_several_axes():
    on = Slice.parse("v5p:4x4x4")
    for sizes in ((4, 16), (16, 4), (4, 4, 4), (4, 1, 16)):
        assert max(layout_summary(on, sizes, mesh_devices(on, sizes, "ring"))) == 1
    assert mesh_devices(Slice.parse("v7x:2x2x1"), (4, 2), "ring") == (0, 1, 2, 3, 6, 7, 4, 5)


def test_coordinates_as_a_layout():
    on = Slice.parse("v5e:2x2")
    assert mesh_devices(on, (3,), [(1, 1), (0, 1, 0), (0, 0, 0, 0)]) == (3, 2, 0)


@pytest.mark.parametrize(
    ("text", "sizes", "layout", "message"),
    [
        ("v5e:2x2", (), "auto", "A mesh has one or more axes, each of size 1 or more, not ()."),
        ("v5e:2x2", (2, 0), "auto", "A mesh has one or more axes, each of size 1 or more, not 2x0."),
        ("v5e:2x2", (2, 4), "auto", "A 2x4 mesh needs 8 devices, v5e:2x2 has 4."),
        (
            "v5e:2x2",
            (4,),
            "snake",
            "layout is one of auto, ring, row-major or a list of coordinates, not 'snake'.",
        ),
        (
            "v6e:4x4",
            (2, 8),
            "auto",
            "jax.make_mesh refuses a 2x8 mesh on v6e:4x4, so layout='auto' has no order for it;"
            " layout='row-major' takes the devices by number.",
        ),
        (
            "v5e:4x4",
            (2, 8),
            "ring",
            "layout='ring' finds no 2x8 mesh of rings on v5e:4x4: every mesh axis takes whole axes of the slice,"
            " several together or one that wraps or is 2 long; layout='auto' and 'row-major' allow longer hops.",
        ),
        (
            "v5e:4x4",
            (8,),
            "ring",
            "The first 8 devices of the ring of v5e:4x4 form no 8 mesh of rings with one hop between neighbours;"
            " a mesh of all 16 devices in one axis is a ring.",
        ),
        ("v5e:2x2", (2,), [(0, 0)], "layout has 1 coordinates, a 2 mesh needs 2."),
        (
            "v5e:2x2",
            (2,),
            [(0, 1), (0, 1)],
            "layout has the device at (0, 1) twice, at positions 0 and 1.",
        ),
        (
            "v5e:2x2",
            (1,),
            [(0, 2)],
            "v5e:2x2 has no device at (0, 2): coordinates are (x, y[, z[, core]]) below (2, 2, 1, 1).",
        ),
    ],
)
def test_layouts_that_do_not_exist(text, sizes, layout, message):
    with pytest.raises(OptionError, match=exactly(message)):
        mesh_devices(Slice.parse(text), sizes, layout)


def test_jax_makes_no_mesh_of_split_v4_cores():
    message = (
        "jax.make_mesh refuses a 8 mesh on v4:2x2x1 with cores='split', so layout='auto' has no order for it;"
        " layout='row-major' takes the devices by number."
    )
    with pytest.raises(OptionError, match=exactly(message)):
        mesh_devices(Slice.parse("v4:2x2x1", cores="split"), (8,))


# --- against JAX ------------------------------------------------------------------------------------

KINDS = {"v4": "TPU v4", "v5e": "TPU v5 lite", "v5p": "TPU v5p", "v6e": "TPU v6 lite", "v7x": "TPU7x"}


@dataclass(frozen=True)
class FakeTpu:
    """What ``jax.make_mesh`` looks at."""

    id: int
    device_kind: str
    coords: tuple[int, int, int]
    core_on_chip: int
    platform: str = "tpu"
    process_index: int = 0
    slice_index: int = 0


@pytest.mark.jax
@pytest.mark.parametrize("on", SLICES, ids=lambda on: f"{on}-{on.cores}")
def test_the_default_layout_is_that_of_make_mesh(on, monkeypatch):
    jax = pytest.importorskip("jax")
    sharding_impls = pytest.importorskip("jax._src.sharding_impls")
    monkeypatch.setattr(sharding_impls, "Mesh", lambda devices, *_, **__: devices)
    places = [on.coords(device) for device in range(on.num_devices)]
    fakes = [FakeTpu(at, KINDS[on.chip], place[:3], place[3]) for at, place in enumerate(places)]
    # before 0.12 make_mesh does not prefer the dies of v7x; its rings of small slices are the same
    knows_dies = jax.__version_info__ >= (0, 12) or on.chip != "v7x"
    for axes in (1, 2, 3):
        for sizes in factorizations(on.num_devices, axes):
            if axes > 1 and not knows_dies and on.num_devices > 32:
                continue
            try:
                expected = tuple(
                    device.id for device in jax.make_mesh(sizes, ("a", "b", "c")[:axes], devices=fakes).flat
                )
            except (NotImplementedError, AssertionError):
                with pytest.raises(OptionError, match=exactly_refused(on, sizes)):
                    mesh_devices(on, sizes)
            else:
                assert mesh_devices(on, sizes) == expected, sizes
                assert prod(sizes) == len(expected)


def exactly_refused(on, sizes):
    return "^" + re.escape(f"jax.make_mesh refuses a {'x'.join(map(str, sizes))} mesh on {on}")
