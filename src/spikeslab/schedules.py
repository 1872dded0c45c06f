r"""Schedules: pure functions of the step k, which counts from 1.

A schedule is any callable from int to float; those here also print, compare and check their settings. The paper's
epsilon and omega are :func:`polynomial`, its annealed temperature is :func:`geometric`, its sparse rate
:func:`exponential_sparsity`.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from spikeslab.errors import ArgumentValueError, check_count, check_number, mark
from spikeslab.states import describe

ScheduleLike: TypeAlias = Callable[[int], float]


@dataclass(frozen=True)
class Schedule:
    """Named function of the step, equal to another with the same name and settings.

    >>> polynomial(1.0, offset=1000, power=0.75)
    polynomial(scale=1.0, power=0.75, offset=1000.0)
    """

    name: str
    settings: tuple[tuple[str, object], ...]
    function: ScheduleLike = field(compare=False, repr=False)

    def __call__(self, step: int) -> float:
        """Return the value at ``step``, from 1 on."""
        return self.function(check_count("step", step))

    def __reduce__(self) -> tuple[Callable[..., Schedule], tuple[object, ...]]:
        """Pickle the call that makes the schedule: its function is a closure, which cannot be pickled."""
        return (_call, (self.name, self.settings)) if self.name in globals() else (Schedule, tuple(vars(self).values()))

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.settings)})"


def _call(name: str, settings: tuple[tuple[str, object], ...]) -> Schedule:
    schedule: Schedule = globals()[name](**dict(settings))
    return schedule


def describe_schedule(schedule: object) -> str:
    """Return a schedule, or an object that has one, as the call that makes it.

    A function of the user's own has no such call: its name and its values at some steps are returned.

    >>> describe_schedule(constant(0.1))
    'constant(value=0.1)'
    >>> describe_schedule(lambda step: 1 / step)
    'spikeslab.schedules.<lambda> (1, 0.1, 0.01, 0.001, 0.0001)'
    """
    text = str(describe(schedule))
    function: Any = getattr(schedule, "schedule", schedule)
    if "<" in text or not isinstance(function, Schedule | None):
        values: list[str] = []
        with suppress(Exception):  # a function need not be defined at all steps
            values.extend(f"{float(function(step)):g}" for step in (1, 10, 100, 1_000, 10_000))
        text += f" ({', '.join(values)})"
    return text


def evaluate(name: str, schedule: ScheduleLike, step: int, allowed: str) -> float:
    """Return the value of a schedule, or of a user's function, at ``step`` if it lies in ``allowed``.

    >>> evaluate("lr", lambda step: 1 / step, 4, ">= 0")
    0.25
    """
    value: Any = schedule(step)
    return check_number(name, value.item() if hasattr(value, "item") else value, allowed)  # of a tensor or an array


def parse_call(text: str, makers: Mapping[str, Callable[..., Any]]) -> Any:
    """Return the object that a call in the form of :func:`describe_schedule` makes; only ``makers`` are called.

    Raises:
        ArgumentValueError: If the text is no such call.
    """

    def make(node: ast.expr) -> Any:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
            return makers[node.func.id](**{str(word.arg): make(word.value) for word in node.keywords})
        return ast.literal_eval(node)

    try:
        return make(ast.parse(text, mode="eval").body)
    except (SyntaxError, KeyError, TypeError, ValueError) as error:
        expectation = "must be a call of one of the package's own functions to be made from its name"
        raise ArgumentValueError("schedule", expectation, text) from error


def _make(name: str, function: ScheduleLike, **settings: object) -> Schedule:
    return Schedule(name, tuple(settings.items()), function)


def constant(value: float) -> Schedule:
    """Return the same value at every step.

    >>> constant(0.1)(7)
    0.1
    """
    value = check_number("value", value, ">= 0")
    return _make("constant", lambda _: value, value=value)


def polynomial(scale: float, power: float = 1.0, offset: float = 0.0) -> Schedule:
    r"""Return :math:`A\,(k + B)^{-\alpha}`, the paper's epsilon (B = 0) and omega; SA clips an omega above 1.

    >>> polynomial(10.0, power=1.0, offset=99)(1)
    0.1
    """
    scale = check_number("scale", scale, ">= 0")
    power = check_number("power", power, "[0, 1]")
    offset = check_number("offset", offset, ">= 0")
    return _make("polynomial", lambda k: scale * (k + offset) ** -power, scale=scale, power=power, offset=offset)


def rising(total: float, steps: int) -> Schedule:
    r"""Return :math:`2 S k/(K(K + 1))`, a straight line from 0 that has the sum S over K steps, and stays at its end.

    >>> omega = rising(5.0, steps=4)
    >>> [omega(step) for step in (1, 2, 3, 4, 5)]
    [0.5, 1.0, 1.5, 2.0, 2.0]
    """
    total, steps = check_number("total", total, ">= 0"), check_count("steps", steps)
    slope = 2.0 * total / (steps * (steps + 1))
    return _make("rising", lambda k: slope * min(k, steps), total=total, steps=steps)


def geometric(initial: float, factor: float, every: int = 1) -> Schedule:
    r"""Return :math:`T_0 f^{\lfloor (k-1)/e \rfloor}`: per step with ``every=1``, per epoch with its number of steps.

    The paper multiplies the inverse temperature 1000 by 1.005 after each epoch of 50 steps:

    >>> annealed = geometric(1e-3, 1 / 1.005, every=50)
    >>> annealed(50) == 1e-3, annealed(51) == 1e-3 / 1.005
    (True, True)
    """
    initial = check_number("initial", initial, ">= 0")
    factor = check_number("factor", factor, "> 0")
    every = check_count("every", every)
    settings = {"initial": initial, "factor": factor, "every": every}
    return _make("geometric", lambda k: initial * factor ** ((k - 1) // every), **settings)


def multistep(initial: float, factor: float, milestones: Sequence[int]) -> Schedule:
    """Return ``initial``, multiplied by ``factor`` after each of the ``milestones``.

    >>> [multistep(1.0, 0.1, [2])(k) for k in (1, 2, 3)]
    [1.0, 1.0, 0.1]
    """
    initial = check_number("initial", initial, ">= 0")
    factor = check_number("factor", factor, "> 0")
    drops = tuple(sorted(check_count("milestones", step) for step in milestones))
    settings = {"initial": initial, "factor": factor, "milestones": drops}
    return _make("multistep", lambda k: initial * factor ** sum(k > step for step in drops), **settings)


def cosine(initial: float, total: int, final: float = 0.0, warmup: int = 0) -> Schedule:
    """Return a linear rise over ``warmup`` steps, then half a cosine from ``initial`` to ``final`` at step ``total``.

    >>> schedule = cosine(1.0, total=11, final=0.1)
    >>> schedule(1), round(schedule(6), 3), schedule(11), schedule(99)
    (1.0, 0.55, 0.1, 0.1)
    """
    initial = check_number("initial", initial, ">= 0")
    final = check_number("final", final, ">= 0")
    total = check_count("total", total)
    warmup = check_count("warmup", warmup, minimum=0)
    _check_below("warmup", warmup, total)

    def value(k: int) -> float:
        if k <= warmup:
            return initial * k / warmup
        if k >= total:
            return final
        done = (k - warmup - 1) / (total - warmup - 1)
        return final + 0.5 * (initial - final) * (1.0 + math.cos(math.pi * done))

    return _make("cosine", value, initial=initial, total=total, final=final, warmup=warmup)


def cyclical(initial: float, cycle: int) -> Schedule:
    r"""Return half a cosine that restarts every ``cycle`` steps: cyclical SG-MCMC (Zhang et al., ICLR 2020).

    >>> schedule = cyclical(1.0, cycle=10)
    >>> schedule(1), schedule(6), schedule(11)
    (1.0, 0.5, 1.0)
    """
    initial = check_number("initial", initial, ">= 0")
    cycle = check_count("cycle", cycle)

    def value(k: int) -> float:
        return 0.5 * initial * (1.0 + math.cos(math.pi * ((k - 1) % cycle) / cycle))

    return _make("cyclical", value, initial=initial, cycle=cycle)


def waves(initial: float, total: int, low: float, high: float, period: int) -> Schedule:
    r"""Return half a cosine from ``initial`` to ``low`` at step ``total``, then waves up to ``high`` and back.

    A chain with this lr is sampled in the troughs, at steps ``total + period``, ``total + 2 period``, ...: the crests
    carry it on without a jump (Garipov et al., NeurIPS 2018; Zhang et al., ICLR 2020, restart instead).

    >>> schedule = waves(1.0, total=11, low=0.1, high=0.5, period=4)
    >>> [round(schedule(k), 3) for k in (1, 11, 13, 15, 17, 19)]
    [1.0, 0.1, 0.5, 0.1, 0.5, 0.1]
    """
    low, high = check_number("low", low, ">= 0"), check_number("high", high, ">= 0")
    period = check_count("period", period)
    fall = cosine(initial, total, final=low)

    def value(k: int) -> float:
        if k <= total:
            return fall(k)
        return low + 0.5 * (high - low) * (1.0 - math.cos(2.0 * math.pi * ((k - total) % period) / period))

    return _make("waves", value, **dict(fall.settings[:2]), low=low, high=high, period=period)


def accumulate(schedule: ScheduleLike, every: int) -> Schedule:
    r"""Return :math:`\sum_{i=k-e+1}^{k} s_i` at every e-th step k and 0 between: the same sum in fewer, larger steps.

    >>> [accumulate(polynomial(1.0), every=2)(k) for k in (1, 2, 3, 4)] == [0.0, 1 + 1 / 2, 0.0, 1 / 3 + 1 / 4]
    True
    """
    every = check_count("every", every)

    def value(k: int) -> float:
        return 0.0 if k % every else math.fsum(schedule(step) for step in range(k - every + 1, k + 1))

    return _make("accumulate", value, schedule=schedule, every=every)


def exponential_sparsity(
    target: float, decay: float = 0.99, every: float = 50, total: int | None = None, start: int = 0
) -> Schedule:
    r"""Return the paper's sparse rate :math:`S(1 - D^{k/f})`: fast at first, slow near the target (algorithm 1).

    Steps k are counted from ``start``, where the rate is 0. It tends to S without reaching it. Given ``total``, it is
    divided by :math:`1 - D^{(\mathrm{total} - \mathrm{start})/f}`, so that it is exactly S from step ``total`` on.

    >>> round(exponential_sparsity(0.9)(50), 6)
    0.009
    >>> exponential_sparsity(0.9, total=1000)(1000)
    0.9
    """
    target = check_number("target", target, "[0, 1)")
    decay = check_number("decay", decay, "(0, 1)")
    every = check_number("every", every, "> 0")
    start = check_count("start", start, minimum=0)
    full = 1.0
    if total is not None:
        _check_below("start", start, check_count("total", total))
        full = -math.expm1(math.log(decay) * (total - start) / every)

    def value(k: int) -> float:
        if total is not None and k >= total:
            return target
        return target * -math.expm1(math.log(decay) * max(0, k - start) / every) / full

    settings = {"target": target, "decay": decay, "every": every, "total": total, "start": start}
    return _make("exponential_sparsity", value, **settings)


def cubic_sparsity(target: float, total: int, start: int = 0) -> Schedule:
    r"""Return :math:`S(1 - (1 - t)^3)` with t from 0 at ``start`` to 1 at ``total`` (Zhu and Gupta, 2017).

    >>> schedule = cubic_sparsity(0.8, total=100, start=20)
    >>> schedule(20), round(schedule(60), 6), schedule(100)
    (0.0, 0.7, 0.8)
    """
    target = check_number("target", target, "[0, 1)")
    total = check_count("total", total)
    start = check_count("start", start, minimum=0)
    _check_below("start", start, total)

    def value(k: int) -> float:
        if k >= total:
            return target
        return target * (1.0 - (1.0 - max(k - start, 0) / (total - start)) ** 3)

    return _make("cubic_sparsity", value, target=target, total=total, start=start)


def _check_below(name: str, value: int, total: int) -> None:
    if value >= total:
        raise ArgumentValueError(name, f"must be an integer below {mark('total', total)}", value)


MAKERS: dict[str, Callable[..., Schedule]] = {
    maker.__name__: maker
    for maker in (
        constant,
        polynomial,
        rising,
        geometric,
        multistep,
        cosine,
        cyclical,
        waves,
        accumulate,
        exponential_sparsity,
        cubic_sparsity,
    )
}
"""The schedules of this module by name."""
