"""Chips: every number says where it comes from, and a wrong option says what would be right."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import tpusim.chips
from tpusim.chips import GROUPS, ChipSpec, Quantity, chip_names, load_chip, parse_set
from tpusim.errors import OptionError

ALL = chip_names()
SIMULATED = [name for name in ALL if load_chip(name).simulated]
V5E_KEYS = [key for key, quantity in load_chip("v5e").rows() if isinstance(quantity.value, float)]


def exactly(message: str) -> str:
    return f"^{re.escape(message)}$"


def test_names_are_the_shipped_files():
    files = {path.stem for path in Path(tpusim.chips.__file__).parent.glob("*.toml")}
    assert files == set(ALL)
    assert [load_chip(name).name for name in ALL] == list(ALL)
    assert SIMULATED == ["v4", "v5e", "v5p", "v6e", "v7x"]


@pytest.mark.parametrize("name", ALL)
def test_every_number_has_unit_source_and_confidence(name):
    for path, quantity in load_chip(name).rows():
        assert quantity.source, path
        assert quantity.confidence, path
        assert quantity.confidence not in ("override",), path
        if isinstance(quantity.value, float) and not isinstance(quantity.value, bool):
            assert quantity.unit, path


@pytest.mark.parametrize("name", ALL)
def test_every_estimate_has_its_reasoning(name):
    for path, quantity in load_chip(name).rows():
        if quantity.confidence == "estimate":
            assert len(quantity.note) > 20, path


@pytest.mark.parametrize("name", ALL)
def test_a_source_can_be_looked_up_by_others(name):
    text = Path(tpusim.chips.__file__).with_name(f"{name}.toml").read_text()
    assert "/work" not in text
    assert "chips.md" not in text


@pytest.mark.parametrize("name", SIMULATED)
def test_a_simulated_chip_lacks_no_number(name):
    assert [path for path, quantity in load_chip(name).rows() if quantity.value is None] == []


@pytest.mark.parametrize("name", SIMULATED)
def test_the_numbers_of_a_chip_agree_with_each_other(name):
    chip = load_chip(name)
    core, hbm, ici = chip.core, chip.hbm, chip.ici
    flops = core.mxu_flops_per_cycle.number * chip.clock_hz * core.tensorcores_per_chip.integer
    assert flops == pytest.approx(core.peak_bf16.number, rel=0.15 if name == "v7x" else 0.01)
    assert hbm.bandwidth.number * core.devices_per_chip.integer <= hbm.nameplate_bandwidth.number
    assert ici.link_bandwidth.number <= ici.nameplate_bandwidth.number
    assert ici.links.integer == 2 * chip.torus_dims
    assert chip.vmem.scoped_limit.integer <= chip.vmem.capacity.integer
    assert chip.tile(32) == (8, 128)
    assert core.mxu_size.shape[0] in (128, 256)


def test_devices_and_cores():
    assert {name: load_chip(name).cores_per_device for name in SIMULATED} == {
        "v4": 2,
        "v5e": 1,
        "v5p": 2,
        "v6e": 1,
        "v7x": 1,
    }
    v7x = load_chip("v7x")
    assert v7x.core.devices_per_chip.value == 2
    assert v7x.ici.die_to_die_bandwidth.number == pytest.approx(6 * v7x.ici.link_bandwidth.number)


@pytest.mark.parametrize(
    ("chip", "bits", "tile"),
    [
        ("v5e", 64, (8, 128)),
        ("v5e", 16, (8, 128)),
        ("v7x", 16, (16, 128)),
        ("v5e", 8, (32, 128)),
        ("v5e", 4, (64, 128)),
    ],
)
def test_tiles_by_element_width(chip, bits, tile):
    assert load_chip(chip).tile(bits) == tile


def test_rows_are_in_the_order_of_the_groups():
    groups = [path.partition(".")[0] for path, _ in load_chip("v7x").rows()]
    assert sorted(groups, key=GROUPS.index) == groups
    assert set(groups) == set(GROUPS)


def test_chips_are_frozen_hashable_and_shared():
    chip = load_chip("v5e")
    assert chip is load_chip("v5e")
    assert hash(chip) == hash(load_chip("v5e", {}))
    with pytest.raises(ValidationError):
        chip.name = "v6e"
    with pytest.raises(ValidationError):
        chip.ici.link_bandwidth.value = 1.0


def test_a_round_trip_through_its_own_fields_is_the_same_chip():
    chip = load_chip("v7x")
    assert ChipSpec.model_validate(chip.model_dump()) == chip


@given(key=st.sampled_from(V5E_KEYS), value=st.floats(min_value=1e-12, max_value=1e18))
def test_an_override_changes_one_value_and_says_so(key, value):
    plain, changed = dict(load_chip("v5e").rows()), dict(load_chip("v5e", {key: value}).rows())
    assert changed[key] == Quantity(value=value, unit=plain[key].unit, source="--set", confidence="override")
    assert {path: q for path, q in changed.items() if path != key} == {p: q for p, q in plain.items() if p != key}


def test_overrides_of_other_kinds():
    chip = load_chip("v5p", {"core.megacore": False, "tiles.bits_16": [16, 128], "semaphores.count": 8})
    assert chip.core.megacore.value is False
    assert chip.tile(16) == (16, 128)
    assert chip.semaphores.count.integer == 8


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "v5ee",
            "no chip 'v5ee'; did you mean 'v5e'? Possible: v4, v5e, v5p, v6e, v7x, 8i, 8t, or the path of a TOML file",
        ),
        (
            "v5",
            "no chip 'v5'; did you mean 'v5e'? Possible: v4, v5e, v5p, v6e, v7x, 8i, 8t, or the path of a TOML file",
        ),
        ("gpu", "no chip 'gpu'. Possible: v4, v5e, v5p, v6e, v7x, 8i, 8t, or the path of a TOML file"),
        ("nowhere/chip.toml", "cannot read nowhere/chip.toml: No such file or directory"),
    ],
)
def test_a_wrong_name(name, message):
    with pytest.raises(OptionError, match=exactly(message)):
        load_chip(name)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (
            "sync.waits",
            "chip v5e has no 'sync.waits'; did you mean 'sync.wait'? "
            "Possible: sync.wait, sync.signal, sync.read, sync.barrier_lookup",
        ),
        (
            "hop_latency",
            "chip v5e has no 'hop_latency'; did you mean 'ici.hop_latency'? "
            "Possible: a key of core, hbm, vmem, smem, semaphores, ici, dma, sparsecore, sync, xla, tiles",
        ),
        (
            "zzz",
            "chip v5e has no 'zzz'. Possible: a key of core, hbm, vmem, smem, semaphores, ici, dma, sparsecore, sync, "
            "xla, tiles",
        ),
        (
            "ici.die_to_die_bandwidth",
            "chip v5e has no 'ici.die_to_die_bandwidth'; did you mean 'ici.nameplate_bandwidth'? Possible: ici.links, "
            "ici.link_bandwidth, ici.nameplate_bandwidth, ici.hop_latency, ici.signal_latency, ici.wrap",
        ),
        ("simulated", "chip v5e has no 'simulated'. Possible: a key of core, hbm, vmem, smem, semaphores, ici, dma, "
         "sparsecore, sync, xla, tiles"),
    ],
)  # fmt: skip
def test_a_wrong_key(key, message):
    with pytest.raises(OptionError, match=exactly(message)):
        load_chip("v5e", {key: 1})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("ici.link_bandwidth", -1.0, "ici.link_bandwidth takes a number above 0 in B/s, not -1.0"),
        ("ici.link_bandwidth", 0, "ici.link_bandwidth takes a number above 0 in B/s, not 0"),
        ("ici.link_bandwidth", "fast", "ici.link_bandwidth takes a number above 0 in B/s, not 'fast'"),
        ("ici.link_bandwidth", True, "ici.link_bandwidth takes a number above 0 in B/s, not True"),
        ("ici.hop_latency", -1e-6, "ici.hop_latency takes a number, 0 or more in s, not -1e-06"),
        ("ici.hop_latency", float("inf"), "ici.hop_latency takes a number, 0 or more in s, not inf"),
        ("ici.hop_latency", float("nan"), "ici.hop_latency takes a number, 0 or more in s, not nan"),
        ("ici.links", 1.5, "ici.links takes a whole number above 0, not 1.5"),
        ("core.mxus", 0, "core.mxus takes a whole number above 0, not 0"),
        ("semaphores.count", -1, "semaphores.count takes a whole number, 0 or more, not -1"),
        ("tiles.bits_16", [16], "tiles.bits_16 takes a list of two whole numbers above 0, not [16]"),
        ("core.megacore", 1, "core.megacore takes true or false, not 1"),
        ("ici.wrap", 16, "ici.wrap takes a text, not 16"),
        ("tiles.bits_16", [16, 0], "tiles.bits_16 takes a list of two whole numbers above 0, not [16, 0]"),
        ("tiles.bits_16", [], "tiles.bits_16 takes a list of two whole numbers above 0, not []"),
    ],
)
def test_a_wrong_value(key, value, message):
    with pytest.raises(OptionError, match=exactly(message)):
        load_chip("v5e", {key: value})


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("ici.link_bandwidth=90e9", "ici.link_bandwidth", 90e9),
        (" ici.links = 6 ", "ici.links", 6),
        ("core.megacore=true", "core.megacore", True),
        ("tiles.bits_16=[16, 128]", "tiles.bits_16", [16, 128]),
        ('ici.wrap="a=b"', "ici.wrap", "a=b"),
    ],
)
def test_parse_set(text, key, value):
    assert parse_set(text) == (key, value)


@pytest.mark.parametrize("text", ["ici.links", "=3", "ici.links=", ""])
def test_parse_set_without_a_key_or_value(text):
    with pytest.raises(
        OptionError, match=exactly(f"--set takes KEY=VALUE such as ici.link_bandwidth=90e9, not {text!r}")
    ):
        parse_set(text)


@pytest.mark.parametrize("value", ["90 GB", "fast", "1\nother = 2", "__import__('os')", "[1"])
def test_parse_set_with_what_is_not_toml(value):
    message = f'--set a.b: {value!r} is not a TOML value (a number, true, false, a "text" in quotes, a [list])'
    with pytest.raises(OptionError, match=exactly(message)):
        parse_set(f"a.b={value}")


@given(st.text())
def test_parse_set_returns_or_raises_an_option_error(text):
    try:
        key, _ = parse_set(text)
    except OptionError as error:
        message = str(error)
    else:
        message = key
    assert message
    assert "\n" not in message


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    return file


def test_an_own_chip_holds_only_what_differs(tmp_path):
    file = write(
        tmp_path,
        """
        base = "v5e"
        description = "a v5e with fast links"

        [ici]
        link_bandwidth = 90e9
        hop_latency = { value = 1e-7, unit = "s", source = "my bench", confidence = "medium", low = 0.0, high = 1e-6 }
        """,
    )
    chip, base = load_chip(file), load_chip("v5e")
    assert chip.name == "mine"
    assert chip.ici.link_bandwidth == Quantity(value=90e9, unit="B/s", source=str(file), confidence="override")
    assert chip.ici.hop_latency.interval == (0.0, 1e-6)
    assert chip.core == base.core
    assert load_chip(str(file), {"ici.links": 2}).ici.links.integer == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "base = 'v9'",
            "FILE: no chip 'v9' to use as base. Possible: v4, v5e, v5p, v6e, v7x, 8i, 8t",
        ),
        (
            "base = 'v5e'\n[sync]\nwiat = 3",
            "FILE has an unknown entry 'sync.wiat'; did you mean 'wait'? Possible: wait, signal, read, barrier_lookup",
        ),
        ("base = 'v5e'\n[sync]\nwait = -3", "sync.wait takes a number, 0 or more in cycles, not -3"),
        (
            "base = 'v5e'\n[cores]\nclock = 3",
            "FILE has an unknown entry 'cores'; did you mean 'core'? Possible: name, description, device_kind, "
            "simulated, torus_dims, cost_table, has_flag_queues, core, hbm, vmem, smem, semaphores, ici, dma, "
            "sparsecore, sync, xla, tiles",
        ),
        ("base = 'v5e'\nsync = 3", "FILE: 'sync' is a table of fields, not 3"),
        (
            "base = 'v5e'\n[sync]\nwait = { value = 2024-01-01, unit = 'cycles', source = 'me', confidence = 'low' }",
            "FILE: sync.wait.value: a number, true, false, a text or a list of whole numbers",
        ),
        ("name = 'x'", "FILE: description: Field required"),
        (
            "base = 'v5e'\n[sync]\nwait = { value = 3, unit = 's', source = 'me', confidence = 'low' }",
            "FILE: sync: wait is in cycles, not in s",
        ),
        (
            "base = 'v5e'\n[sync]\nwait = { value = 3, unit = 'cycles', source = 'me', confidence = 'estimate' }",
            "FILE: sync.wait: an estimate needs its reasoning in note",
        ),
        (
            "base = 'v5e'\n[sync]\nwait = { value = 3, unit = 'cycles', source = 'me', confidence = 'low', high = 2 }",
            "FILE: sync.wait: 3 lies outside its interval 3.0 to 2.0",
        ),
        (
            "base = 'v5e'\n[sync]\nwait = { unit = 'cycles', source = 'me', confidence = 'low' }",
            "FILE: sync.wait: confidence 'unknown' and a missing value go together",
        ),
        (
            "base = 'v5e'\n[sync]\nwait = { unit = 'cycles', source = 'me', confidence = 'unknown' }",
            "FILE: a simulated chip needs a value for sync.wait",
        ),
    ],
)
def test_a_wrong_file(tmp_path, text, message):
    file = write(tmp_path, text)
    with pytest.raises(OptionError, match=exactly(message.replace("FILE", str(file)))):
        load_chip(file)


def test_a_file_that_is_not_toml(tmp_path):
    file = write(tmp_path, "base = v5e")
    with pytest.raises(OptionError, match=f"^{re.escape(str(file))} is not TOML: .*line 1"):
        load_chip(file)


def test_an_own_chip_may_do_without_a_base(tmp_path):
    own = Path(tpusim.chips.__file__).with_name("v7x.toml").read_text()
    chip = load_chip(write(tmp_path, own))
    assert chip == load_chip("v7x")


def test_quantities_read_well_and_convert():
    assert str(Quantity(value=90e9, unit="B/s", source="x", confidence="high")) == "9e+10 B/s"
    assert str(Quantity(value=(8, 128), unit="sublanes x lanes", source="x", confidence="high")) == (
        "8x128 sublanes x lanes"
    )
    assert str(Quantity(unit="s", source="x", confidence="unknown")) == "unknown"
    assert str(Quantity(value=4, unit="", source="x", confidence="high")) == "4"
    assert Quantity(value=1.6, unit="", source="x", confidence="high").integer == 2
    with pytest.raises(TypeError, match=r"^'text' \(x\) is not a number$"):
        _ = Quantity(value="text", unit="", source="x", confidence="high").number
    with pytest.raises(TypeError, match=r"^4 \(x\) is not a shape$"):
        _ = Quantity(value=4, unit="", source="x", confidence="high").shape
