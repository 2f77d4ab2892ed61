"""The rows of a sweep for other programs: CSV, Parquet, a plot."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tpusim.errors import MissingExtraError, OptionError
from tpusim.sweep.row import Row


def flat(row: Row) -> dict[str, Any]:
    """A row as columns: the point's names, then what was measured; lists and tables as JSON."""
    values = {f"param.{name}": _single(value) for name, value in row["point"].items()}
    return values | {name: _single(value) for name, value in row.items() if name != "point"}


def _single(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def check_table(path: str | Path) -> None:
    """Raises ``OptionError`` for a table that cannot be written, before a sweep rather than after it."""
    suffix = Path(path).suffix
    if suffix not in (".csv", ".parquet"):
        raise OptionError(f"a table is a .csv or a .parquet file, not {path}")
    if suffix == ".parquet" and find_spec("pyarrow") is None:
        raise MissingExtraError("a Parquet table needs pyarrow: pip install 'tpusim[sweep]', or name a .csv file")


def write_table(rows: Sequence[Row], path: str | Path) -> None:
    """Write ``.csv`` or ``.parquet``, whichever the name says; raises ``OptionError`` where it cannot."""
    check_table(path)
    columns = list({name: None for row in rows for name in flat(row)})
    table = [{name: flat(row).get(name) for name in columns} for row in rows]
    try:
        if Path(path).suffix == ".csv":
            with Path(path).open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, columns)
                writer.writeheader()
                writer.writerows(table)
            return
        import pyarrow
        import pyarrow.parquet

        arrays = {name: _column([row[name] for row in table]) for name in columns}
        pyarrow.parquet.write_table(pyarrow.table(arrays), str(path))
    except OSError as error:
        raise OptionError(f"cannot write {path}: {error.strerror or error}") from None


def _column(values: list[Any]) -> list[Any]:
    """One type a column: texts where the values of a name are of several."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1 or kinds == {int, float}:
        return [float(v) if kinds == {int, float} and v is not None else v for v in values]
    return [None if value is None else str(value) for value in values]
