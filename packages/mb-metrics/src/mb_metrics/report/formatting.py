"""Formatting of numbers and times for the report page and the terminal."""

import math
import time

_MOST_TICKS = 5


def short(value: float | None) -> str:
    """Format a number with about four digits: 2.345, 12.3 k, 3e-5; "?" for None."""
    if value is None:
        return "?"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    size = abs(value)
    if size >= 1e15 or 0 < size < 1e-4:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    for limit, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e4, " k")):
        if size >= limit:
            return f"{_trimmed(value / (1e3 if unit == ' k' else limit), 3)}{unit}"
    return _trimmed(value, 4)


def _trimmed(value: float, digits: int) -> str:
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def duration(seconds: float | None) -> str:
    """Format a time span: 0.25 s, 42 s, 3 min 5 s, 2 h 10 min, 3 d 4 h; "?" for None."""
    if seconds is None or not math.isfinite(seconds):
        return "?"
    if seconds < 10:
        return f"{_trimmed(seconds, 3)} s"
    whole = round(seconds)
    for size, unit, smaller, name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {name}" if rest else "")
    return f"{whole} s"


def compact(value: float) -> str:
    """Format a number with three or four digits and without spaces: 2.346, 12.3k, 1.2e-05."""
    if math.isfinite(value) and 0 < abs(value) < 1e-3:
        return f"{value:.1e}"
    return short(value).replace(" ", "")


def clock_span(seconds: float) -> str:
    """Format a time span in few characters: 250ms, 4.2s, 3m05s, 2h10m, 4d04h."""
    if not math.isfinite(seconds):
        return "?"
    if 0 < seconds < 1:
        return f"{1000 * seconds:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s" if 0 < seconds < 10 else f"{seconds:.0f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours < 24 else f"{hours // 24}d{hours % 24:02}h"


def percent(fraction: float | None) -> str:
    """Format a fraction as a percentage: 97.3 %; "?" for None."""
    if fraction is None:
        return "?"
    return f"{100 * fraction:.1f} %"


def clock(seconds: float) -> str:
    """Format a time in local time, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def ticks(low: float, high: float) -> list[float]:
    """Return round numbers from `low` to `high`, at most about five: steps of 1, 2 or 5 times a power of ten."""
    span = high - low
    if not (math.isfinite(span) and span > 0):
        return [low]
    size = 10 ** math.floor(math.log10(span / _MOST_TICKS))
    step = next((size * factor for factor in (1, 2, 5) if span / (size * factor) <= _MOST_TICKS), size * 10)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


_TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


def time_ticks(seconds: float) -> list[float]:
    """Return round times from 0 to `seconds`, at most about five: whole minutes, hours or days."""
    if seconds < 5:
        return ticks(0.0, seconds)
    step = next((step for step in _TIME_STEPS if seconds / step <= _MOST_TICKS), 0)
    if not step:
        return [86400 * days for days in ticks(0.0, seconds / 86400)]
    return [float(step * number) for number in range(int(seconds / step + 1e-9) + 1)]


def edge_class(position: float) -> str:
    """Return the class attribute of a label at a position from 0 to 1 that would extend beyond the edge."""
    return ' class="first"' if position < 0.03 else ' class="last"' if position > 0.97 else ""
