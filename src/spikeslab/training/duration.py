"""Times for people."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Seconds in the two units that matter.

    >>> duration(12.34), duration(754), duration(9000)
    ('12.3 s', '12 min 34 s', '2 h 30 min')
    """
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
