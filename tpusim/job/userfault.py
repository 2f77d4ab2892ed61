"""Exceptions of the user's own code, shown without the frames of whoever called it."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from tpusim.errors import FindingError, InternalError, OptionError, TpuSimError
from tpusim.findings import Where, short_path

_OWN = Path(__file__).resolve().parents[1]
_LAST_FRAMES = 8


class UserCodeError(TpuSimError):
    """Something the user's file raised; the text is a traceback of the user's frames alone."""

    def __init__(self, text: str, *, is_interrupted: bool = False) -> None:
        super().__init__(text)
        self.is_interrupted = is_interrupted
        """Whether it was Ctrl-C."""


@contextmanager
def user_code(path: Path) -> Iterator[None]:
    """Turn what code of ``path`` raises into :class:`UserCodeError`.

    Findings pass, and so do wrong options, with the line of ``path`` that met them.  An exception that
    never touched the user's code is tpusim's own and passes too.  ``sys.exit()`` is an exception like others: its
    status would be taken for that of the run; so is Ctrl-C, which says where the code was.
    """
    try:
        yield
    except (FindingError, InternalError):
        raise
    except OptionError as error:
        frames = _frames(error.__traceback__, path)
        if not frames:
            raise
        place = Where(frames[-1].filename, frames[-1].lineno or 0)
        raise OptionError(f"{error}  [{place}]") from None
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # the boundary to code that may raise anything
        text = _text(error, path)
        if text is None:
            raise
        raise UserCodeError(text, is_interrupted=isinstance(error, KeyboardInterrupt)) from None


def _frames(frames: TracebackType | None, path: Path) -> list[traceback.FrameSummary]:
    own = path.resolve()
    libraries = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    found = []
    for frame in traceback.extract_tb(frames):
        file = Path(frame.filename)
        if not file.is_absolute() and not file.exists():
            continue  # <frozen importlib>, <string>
        file = file.resolve()
        if file != own and (file.is_relative_to(_OWN) or any(file.is_relative_to(folder) for folder in libraries)):
            continue
        found.append(frame)
    return found


def _text(error: BaseException, path: Path) -> str | None:
    frames = _frames(error.__traceback__, path)
    if not frames:
        return None
    lines = []
    if len(frames) > _LAST_FRAMES:
        lines.append(f"  ... {len(frames) - _LAST_FRAMES} frames ...")
    for frame in frames[-_LAST_FRAMES:]:
        lines.append(f"  {short_path(frame.filename)}:{frame.lineno} in {frame.name}")
        if frame.line:
            lines.append(f"    {frame.line}")
    what = "".join(traceback.format_exception_only(type(error), error)).rstrip()
    if isinstance(error, KeyboardInterrupt):
        what = "interrupted"
    return "\n".join([what, *lines])
