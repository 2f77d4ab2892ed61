"""Calibration: hidden numbers come back from times, rows are checked, a written chip is one every command takes."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tpusim.calibrate.chip_file import write_chip
from tpusim.calibrate.fit import Observation, fit
from tpusim.calibrate.published import Calibrator, chips_in, difference, name_of
from tpusim.calibrate.rows import Measurements, Row, load_measurements, predict
from tpusim.calibrate.workloads import make
from tpusim.chips import Quantity, load_chip
from tpusim.cli import _app
from tpusim.errors import OptionError

MEASURED = Path("benchmarks/measured.toml")


def row(**changed: Any) -> Row:
    values = {
        "row": 1, "key": "a", "us": 10.0, "chip": "v5e", "slice": "v5e:1x1", "family": "copy", "grade": "B",
        "timing": "device", "source": "here", "use": "predict", "workload": "hbm_copy", "with": {"bytes_": 1 << 20},
    }  # fmt: skip
    return Row.model_validate({**values, **changed})


HIDDEN = {"dma.start_latency_hbm_to_vmem": 5.7e-7, "hbm.bandwidth": 6.9e11}


def observations(hidden: dict[str, float]) -> list[Observation]:
    """What a chip with hidden numbers would have measured, for copies of several sizes."""
    chip = load_chip("v5e")
    found = []
    for size in (1 << 12, 1 << 18, 1 << 23):
        prediction = predict(row(key=str(size), **{"with": {"bytes_": size}}))
        us = prediction.time_ps(chip.with_values(hidden)) / 1e6
        found.append(Observation(str(size), us, 0.01 * us, prediction.time_ps, prediction.used))
    return found


def test_a_fit_recovers_hidden_numbers() -> None:
    solution = fit(load_chip("v5e"), list(HIDDEN), observations(HIDDEN))
    for name, value in HIDDEN.items():
        found = solution.numbers[name]
        assert found.value == pytest.approx(value, rel=1e-3)
        assert found.low < value < found.high
    assert max(map(abs, solution.residuals_us.values())) < 1e-3
    assert solution.chip.hbm.bandwidth.number == pytest.approx(HIDDEN["hbm.bandwidth"], rel=1e-3)


def test_what_is_not_known_beside_a_number_widens_it() -> None:
    """Latency and issue show only as a sum: with a vague issue the latency is vaguer."""
    name = "dma.start_latency_hbm_to_vmem"
    narrow = fit(load_chip("v5e"), [name], observations({}))
    vague = load_chip("v5e").dma.issue.model_copy(update={"low": 1.0, "high": 500.0})
    wide = fit(load_chip("v5e"), [name], [
        Observation(o.name, o.us, o.sigma_us, o.time_ps, {**o.used, "dma.issue": vague}) for o in observations({})
    ])  # fmt: skip
    assert wide.numbers[name].low < narrow.numbers[name].low - 2e-7
    assert wide.numbers[name].value == pytest.approx(narrow.numbers[name].value)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["dma.issue"] * 4, r"^4 numbers \(dma\.issue, .*\) cannot follow from 3 times$"),
        (["ici.hop_latency"], r"^no time given depends on ici\.hop_latency$"),
    ],
)
def test_a_fit_needs_times_that_depend_on_its_numbers(names: list[str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        fit(load_chip("v5e"), names, observations({}))


def test_the_shipped_rows_are_whole() -> None:
    measured = load_measurements(MEASURED)
    scored = {one.row for one in measured.row}
    left = {number for group in measured.unscored for number in group.rows}
    assert not scored & left
    assert scored >= {1, 2, 3, 4, 5, 7, 8, 10, 11, 16, 25, 26, 30, 38, 39, 40, 45, 46, 47, 48, 50}
    assert {one.row for one in measured.row if one.use == "calibrate"} == {2, 4, 16, 25, 26, 30, 39, 45, 47}
    assert all(one.source in measured.sources for one in measured.row)
    subtracted = {one.less for one in measured.row}
    assert all(one.less or one.shown or one.key in subtracted for one in measured.row if one.timing == "wall")


def test_a_difference_takes_one_prediction_from_another() -> None:
    rows = {"a": row(), "b": row(key="b", us=25.0, less="a", **{"with": {"bytes_": 1 << 22}})}
    prediction, us = difference(rows["b"], rows)
    alone = [predict(each).time_ps(load_chip("v5e")) for each in (rows["b"], rows["a"])]
    assert (us, name_of(rows["b"])) == (15.0, "b - a")
    assert prediction.time_ps(load_chip("v5e")) == pytest.approx(alone[0] - alone[1])
    interval = prediction.interval()
    assert interval.low < prediction.time_ps(load_chip("v5e")) < interval.high


def test_many_blocks_of_rows_are_continued_from_two() -> None:
    """The time of all blocks, from one and two of them, is that of simulating all."""
    chip = load_chip("v5e")
    many = row(workload="matmul", **{"with": {"size": [1024, 256, 256], "tiles": [128, 128, 128]}})
    workload = make("matmul", **many.parameters)
    whole = workload.kernel.simulate(*workload.arrays, slice="v5e:1x1", mesh=1, data=False, checks="none")
    assert predict(many).time_ps(chip) == pytest.approx(int(whole.time), rel=2e-3)


def test_the_host_s_share_of_an_xla_operation_is_added() -> None:
    chip = load_chip("v7x")
    plain = row(chip="v7x", slice="v7x:1x1x1")
    inside = predict(plain.model_copy(update={"xla": "op"}))
    assert inside.time_ps(chip) - predict(plain).time_ps(chip) == pytest.approx(chip.xla.op_overhead.number * 1e12)
    assert "xla.op_overhead" in inside.used


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('us = -1\n', "row.0.us: Input should be greater than 0"),
        ('less = "z"\n', "a names row 'z', which is not there"),
        ('colour = 1\n', "row.0.colour: Extra inputs are not permitted"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused(tmp_path: Path, change: str, message: str) -> None:
    path = tmp_path / "rows.toml"
    text = "[[row]]\nrow = 1\nkey = 'a'\nchip = 'v5e'\nslice = 'v5e:1x1'\nfamily = 'x'\ngrade = 'B'\n"
    text += "timing = 'device'\nsource = 's'\nuse = 'predict'\nworkload = 'hbm_copy'\nwith = {bytes_ = 4096}\n"
    path.write_text(text + ("" if change.startswith("us") else "us = 1\n") + change)
    with pytest.raises(OptionError) as caught:
        load_measurements(path)
    assert str(caught.value) == f"{path}: {message}"


def test_an_unknown_workload_is_refused() -> None:
    with pytest.raises(OptionError, match=r"^there is no workload 'sort'\. Possible: matmul, .*all_gather$"):
        make("sort")


def small() -> Measurements:
    """Two copies of v5e, of which its HBM rate and start latency follow, and the compiler's line."""
    chip = load_chip("v5e").with_values(HIDDEN)
    rows = [row(key=key, **{"with": {"bytes_": size}}) for key, size in (("a", 1 << 14), ("b", 1 << 24))]
    timed = [one.model_copy(update={"us": predict(one).time_ps(chip) / 1e6}) for one in rows]
    return Measurements(
        row=tuple(timed),
        fit=({"chip": "v5e", "numbers": tuple(HIDDEN), "rows": ("a", "b")},),
        compiler=({"chip": "v5e", "direction": "vmem_to_hbm", "cycles": 450, "bytes_per_cycle": 500},),
        like=({"chip": "v4", "number": "hbm.bandwidth", "of": "v5e", "per": "hbm.nameplate_bandwidth"},),
    )


def test_a_calibration_has_fits_compiler_lines_and_proportions() -> None:
    calibrator = Calibrator(small())
    assert chips_in(small()) == ["v5e", "v4"]
    found = calibrator.calibrate("v5e").numbers
    assert found["hbm.bandwidth"].number == pytest.approx(HIDDEN["hbm.bandwidth"], rel=1e-3)
    assert found["hbm.bandwidth"].confidence == "fitted"
    assert found["dma.start_latency_vmem_to_hbm"].number == pytest.approx(450 / 1.5e9)
    assert found["dma.rate_vmem_to_hbm"].number == pytest.approx(500 * 1.5e9)
    share = HIDDEN["hbm.bandwidth"] / 8.19e11
    assert calibrator.calibrate("v4").numbers["hbm.bandwidth"].number == pytest.approx(share * 1.228e12, rel=1e-3)
    with pytest.raises(OptionError, match=r"^nothing to calibrate v6e from\. Possible: v5e, v4$"):
        calibrator.calibrate("v6e")


def test_a_written_chip_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    quantity = Quantity(
        value=5e-7, low=4e-7, high=6e-7, unit="s", source='rows "a" \\ b', confidence="measured", note="n"
    )
    write_chip(path, "v5e", "a chip", {"ici.hop_latency": quantity})
    assert load_chip(path).ici.hop_latency == quantity
    assert load_chip(path).description == "a chip"
    assert tomllib.loads(path.read_text())["base"] == "v5e"


def test_the_command_writes_a_chip_that_run_takes(tmp_path: Path) -> None:
    runner = CliRunner()
    done = runner.invoke(_app(), ["calibrate", "--from", str(MEASURED), "--chip", "v5p", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    path = tmp_path / "v5p-calibrated.toml"
    assert "ici.link_bandwidth" in done.output
    chip = load_chip(path)
    assert chip.ici.link_bandwidth.number == pytest.approx(86.36e9, rel=2e-3)
    assert chip.ici.link_bandwidth.confidence == "fitted"
    arguments = ["run", "kernels/right_permute.py", "--slice", "v5p:2x2x1", "--chip", str(path), "--json", "-"]
    ran = runner.invoke(_app(), arguments)
    assert json.loads(ran.stdout)["chip"] == "v5p-calibrated"
