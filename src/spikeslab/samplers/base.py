"""Base of the samplers: groups, schedules, checks, noise, the prior and the state."""

from __future__ import annotations

import copy
import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeAlias, cast, overload

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim import Optimizer

from spikeslab.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    NonFiniteError,
    Phrase,
    StateError,
    check_count,
    check_number,
    mark,
    quote,
)
from spikeslab.functional.tensors import align, is_dense
from spikeslab.kernels.fused_update import FusedUpdate, load_kernels
from spikeslab.kernels.noise import Noise
from spikeslab.kernels.protocol import Move
from spikeslab.priors.base import Prior
from spikeslab.schedules import MAKERS, ScheduleLike, describe_schedule, evaluate, parse_call
from spikeslab.shards import Reduction, check_sharding, local, part_of, wrap
from spikeslab.states import describe
from spikeslab.weights import WeightHolder

Params: TypeAlias = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]
Group: TypeAlias = dict[str, Any]

SCHEDULED = ("lr", "temperature")
RANGES = {"lr": ">= 0", "temperature": ">= 0", "weight_decay": ">= 0"}
SWITCHES = {"fused": None, "foreach": True, "compile": False, "check_finite": True}
CHAIN, STEP, OF_WEIGHTS, PLACES = "chain", "step", "$of_weights", "places"
"""Keys of the chain's numbers in a saved group and of the step in a saved parameter; mark of tensors moved there, and
the numbers of the parameters that have them."""
INITIAL_LR = "initial_lr"
"""Key under which a torch LR scheduler keeps the lr that it begins with."""
NO_SETTINGS = {*SWITCHES, "capturable", "differentiable"}
"""Defaults of optimizers that change the result by no more than rounding."""
COMPILED_AS_TENSORS = ("lr", "momentum", "noise_std")


class Sampler(WeightHolder, Optimizer):
    """Torch optimizer whose steps are those of a Markov chain.

    Subclasses list their settings in ``defaults`` and ``_ranges`` and implement :meth:`_update`. ``lr`` and
    ``temperature`` of a group may be schedules; their current values are numbers in the group, as with torch's lr
    schedulers. The switches ``fused``, ``foreach``, ``compile`` and ``check_finite`` say how a step is computed: they
    too are in the groups, and ``load_state_dict`` leaves them as they are.

    Args:
        params: Parameters, named parameters or groups.
        defaults: Settings and switches of all groups that have no others.
        prior: Prior of the sparse weights, or ``None``.
        seed: Seed of the noise; ``None`` takes one from torch's global generator.

    Attributes:
        steps: Number of steps taken.
        prior: Prior of the sparse weights, or ``None``.
        noise: Source of the noise.
        drew_seed: True if no seed was given, so that a state brings its own.
    """

    _can_fuse: ClassVar[bool] = False
    _tensors: ClassVar[tuple[str, ...]] = ()
    """Names of the tensors in the state of a parameter."""
    _ranges: ClassVar[dict[str, str]] = RANGES
    """Interval of each number in a group, in the words of :func:`~spikeslab.errors.check_number`."""

    def __init__(self, params: Params, defaults: dict[str, Any], *, prior: Prior | None, seed: int | None) -> None:
        if prior is not None and not isinstance(prior, Prior):
            raise ArgumentTypeError("prior", "must be a prior such as SpikeSlab(...) or None", prior)
        if isinstance(params, Tensor):
            raise ArgumentTypeError(
                "params", "must be an iterable of parameters or groups", Phrase("got a single tensor")
            )
        self.prior = prior
        self.steps = 0
        self._schedules: list[dict[str, ScheduleLike]] = []
        self._checked: list[list[Any]] = []
        self._compiled: dict[Callable[..., None], Callable[..., None]] = {}
        super().__init__(params, {**SWITCHES, **defaults})
        self._attach_prior()
        self.drew_seed = seed is None
        seed = _default_seed() if seed is None else seed
        names = {
            self._name(i, k): p for i, group in enumerate(self.param_groups) for k, p in enumerate(group["params"])
        }
        fused, compiled = self.defaults["fused"], self.defaults["compile"]
        kernels = load_kernels(fused, compile=compiled, params=names)
        self._check_ranks(seed=seed, num_data=int(self.param_groups[0]["num_data"]))
        self.noise = Noise(seed, None if kernels is None else kernels.philox_numba, compile=compiled)
        self._fused = FusedUpdate(kernels, prior) if kernels is not None and self._can_fuse else None

    def add_param_group(self, param_group: Group) -> None:
        """Add a group, after a check of its settings and parameters."""
        group = {**self.defaults, **param_group}
        schedules = {name: group[name] for name in SCHEDULED if callable(group.get(name))}
        numbers = {name: evaluate(name, schedule, self.steps + 1, ">= 0") for name, schedule in schedules.items()}
        self._check_numbers({**group, **numbers})
        if group["fused"] is not self.defaults["fused"]:
            expectation = "must be the same in all groups"
            raise ArgumentValueError("fused", expectation, group["fused"], "give it to the sampler")
        super().add_param_group({**param_group, **numbers})
        ranks = self._find_ranks()
        error: Exception | None = None
        try:
            for index, param in enumerate(self.param_groups[-1]["params"]):
                _check_parameter(self._name(len(self.param_groups) - 1, index), param)
            self._check_sizes()
        except (TypeError, ValueError, StateError) as reason:  # raised once the other ranks know
            error = reason
        try:
            ranks.raise_together("params", error)
        except Exception:
            self.param_groups.pop()
            raise
        self._ranks = ranks
        self._schedules.append(schedules)
        self._checked.append(self._numbers(self.param_groups[-1]))

    def _find_ranks(self) -> Reduction:
        """Return the sums over the ranks that share the parameters; without them the last group is dropped."""
        try:
            return Reduction(param for group in self.param_groups for param in group["params"])
        except ValueError:
            self.param_groups.pop()
            raise

    def _numbers(self, group: Group) -> list[Any]:
        return [group["num_data"], *map(group.__getitem__, self._ranges)]

    def _check_numbers(self, group: Group, place: str = "{}") -> None:
        """Raise if a number of a group is out of range; ``place`` says where it stands, around its name."""
        for name, allowed in self._ranges.items():
            check_number(place.format(name), group[name], allowed)
        check_count(place.format("num_data"), group["num_data"])

    def _check_groups(self) -> None:
        """Raise if a number has been written into a group since the last step and is out of range."""
        for index, group in enumerate(self.param_groups):
            numbers = self._numbers(group)
            if numbers != self._checked[index]:
                self._check_numbers(group, f"param_groups[{index}]['{{}}']")
                self._check_sizes()
                self._checked[index] = numbers

    def _check_sizes(self) -> None:
        sizes = {group["num_data"] for group in self.param_groups}
        if self.prior is not None and len(sizes) > 1:
            got = Phrase(f"got {sorted(sizes)}")
            raise ArgumentValueError("num_data", "must be the same in all groups if there is a prior", got)

    def _check_ranks(self, **given: int) -> None:
        """Raise on all ranks that share sharded parameters if they were given different numbers."""
        for (name, value), same in zip(given.items(), self._ranks.agree(list(given.values())), strict=True):
            if not same:
                expectation = "must be the same on all ranks that share a sharded model"
                raise ArgumentValueError(name, expectation, Phrase(f"this rank got {value}"))

    def _attach_prior(self) -> None:
        """Check the weights of the prior, and tell it the settings of the group that holds the first of them."""
        if self.prior is None:
            return
        own = {id(param) for group in self.param_groups for param in group["params"]}
        missing = [name for name, weight in self.prior.weights.items() if id(weight) not in own]
        if missing:
            got = f"{quote(missing)} of the prior {'is' if len(missing) == 1 else 'are'} not"
            raise ArgumentValueError("prior", f"must be over weights among {mark('params')}", Phrase(got))
        first = next(iter(self.prior.weights.values()))
        for group, schedules in zip(self.param_groups, self._schedules, strict=True):
            if any(param is first for param in group["params"]):
                self.prior.attach(group["num_data"], schedules.get("lr", group["lr"]), group["weight_decay"])

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    # The noise must be drawn outside of a compiled graph; `compile=True` compiles the arithmetic alone.
    @_disable_dynamo  # torch.compiler.disable would import the whole compiler together with this package
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step of the chain, then let the prior adapt.

        Args:
            closure: Reevaluates the model and returns the loss; optional.

        Raises:
            NonFiniteError: If a gradient or weight is NaN or infinite; nothing has moved then. The fused update may
                notice a weight that was written through ``.data`` or numpy, behind torch's back, one step later.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._is_dry():
            self._allocate()
            return loss
        self._check_groups()
        step = self.steps + 1
        active = [self._active(index) for index in range(len(self.param_groups))]
        rest = active if self._fused is None else self._fused.gather(active, self._streams)
        self._check_finite(rest, step)
        if self.prior is not None:
            self.prior.check_ready()
            self.prior.observe(step, int(self.param_groups[0]["num_data"]))
        self._apply_schedules(step)
        self.noise.start(step)
        adapted = False
        if self._fused is not None:
            moves = [self._move(group) for group in self.param_groups]
            adapted = self._fused.run(self.param_groups, moves, self.state, self.noise.seed, step)
        for group, params in zip(self.param_groups, rest, strict=True):
            for bucket in _by_device_and_dtype(params):
                self._update(group, bucket, self._gradients(group, bucket))
        if self.prior is not None and not adapted:
            self.prior.update(step, int(self.param_groups[0]["num_data"]))
        for group in self.param_groups:
            self._end_step(group)
        self.steps = step
        return loss

    def _is_dry(self) -> bool:
        """Return True for a step at lr 0 with gradients that are exactly zero on an empty state.

        With such a step ``torch.distributed.checkpoint`` makes the tensors that it loads into. It is none of the chain.
        """
        if self.state or any(group["lr"] != 0.0 for group in self.param_groups):
            return False
        grads = [local(p.grad) for group in self.param_groups for p in group["params"] if p.grad is not None]
        return self._ranks.all(bool(grads) and not any(bool(grad.any()) for grad in grads))

    def _allocate(self) -> None:
        """Make the tensors of the state, of the parameters that have a gradient and of the prior."""
        for index in range(len(self.param_groups)):
            for name in self._tensors:
                self._state_tensors(self._active(index), name)
        if self.prior is not None:
            self.prior.allocate()

    @abstractmethod
    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor]) -> None:
        """Move ``params``, which share a device and a dtype, along ``grads``, the gradient of U/N."""

    def _move(self, group: Group) -> Move:
        """Return the numbers of the same move for the fused update, of a sampler that has one (``_can_fuse``)."""
        raise NotImplementedError

    def _end_step(self, group: Group) -> None:
        """Record what the next step needs to know of this one."""

    def retemper(self, temperature: float) -> None:
        """Move the chain to another temperature, as a swap of replicas does.

        Raises:
            ArgumentValueError: If a schedule sets the temperature, which would undo it.
        """
        temperature = check_number("temperature", temperature, ">= 0")
        if any("temperature" in schedules for schedules in self._schedules):
            raise ArgumentValueError(
                "temperature", "must be a number to be changed from outside", Phrase("got a schedule")
            )
        for group in self.param_groups:
            self._retemper_state(group, temperature)
            group["temperature"] = temperature

    def _retemper_state(self, group: Group, temperature: float) -> None:
        """Scale a group's state to its law at another temperature, for a sampler whose state has one."""

    @torch.no_grad()
    def penalty(self) -> float:
        """Return the part of U/N that the prior and weight decay add to the mean loss, up to a constant."""
        total = 0.0
        for group in self.param_groups:
            plain = [param for param in group["params"] if self.prior is None or param not in self.prior]
            if group["weight_decay"] and plain:
                squares = [float(local(param).double().square().sum()) for param in plain]
                total += 0.5 * group["weight_decay"] * self._ranks.total(plain, squares)
        return total if self.prior is None else total + self.prior.penalty(int(self.param_groups[0]["num_data"]))

    def _active(self, index: int) -> list[Tensor]:
        params = [param for param in self.param_groups[index]["params"] if param.grad is not None]
        if any(local(param.grad).is_sparse for param in params):
            got = Phrase("got a sparse gradient")
            raise ArgumentTypeError("params", "must have dense gradients", got, "set sparse=False in the embedding")
        return params

    def _apply_schedules(self, step: int) -> None:
        for index, (group, schedules) in enumerate(zip(self.param_groups, self._schedules, strict=True)):
            if "lr" in schedules and INITIAL_LR in group:
                got = Phrase("it has both")
                raise ArgumentValueError("lr", "must have a schedule or a torch LR scheduler", got, "use one of them")
            for name, schedule in schedules.items():
                group[name] = evaluate(name, schedule, step, ">= 0")
            if schedules:
                self._checked[index] = self._numbers(group)

    def _gradients(self, group: Group, params: list[Tensor]) -> list[Tensor]:
        """Return the gradient of U/N: loss, prior and, outside of it, weight decay. ``p.grad`` stays as it is.

        Of sharded parameters it is this rank's part.
        """
        grads = [local(cast(Tensor, param.grad)) for param in params]
        sparse = [i for i, param in enumerate(params) if self.prior is not None and param in self.prior]
        for i in sparse:
            grads[i] = grads[i].clone()
        if sparse and self.prior is not None:
            self.prior.add_gradient_([params[i] for i in sparse], [grads[i] for i in sparse], group["num_data"])
        inside = set(sparse)
        plain = [i for i in range(len(params)) if i not in inside]
        if group["weight_decay"] and plain:
            decayed = torch._foreach_add(
                [grads[i] for i in plain], [local(params[i]) for i in plain], alpha=group["weight_decay"]
            )
            for i, grad in zip(plain, decayed, strict=True):
                grads[i] = grad
        return grads

    @torch.no_grad()
    def energy_gradients(self) -> list[tuple[Group, Tensor, Tensor]]:
        """Return group, parameter and gradient of U/N, prior and weight decay included, of all that moves."""
        return [
            (group, param, gradient)
            for index, group in enumerate(self.param_groups)
            for bucket in _by_device_and_dtype(self._active(index))
            for param, gradient in zip(bucket, self._gradients(group, bucket), strict=True)
        ]

    def _streams(self) -> dict[int, int]:
        """Return the number of each parameter, which its noise depends on, by id."""
        params = (param for group in self.param_groups for param in group["params"])
        return {id(param): index for index, param in enumerate(params)}

    def _noises(self, params: list[Tensor], std: float) -> list[Tensor] | None:
        if std == 0.0:
            return None
        streams = self._streams()
        return self.noise.draw(params, [streams[id(param)] for param in params])

    def _state_tensors(self, params: list[Tensor], name: str) -> list[Tensor]:
        """Return the tensor ``name`` of each parameter's state, zero at first."""
        tensors = []
        for param in params:
            state, part = self.state[param], local(param)
            if name not in state:
                state[name] = wrap(torch.zeros_like(part, memory_format=torch.preserve_format), param)
            elif is_dense(part):  # a checkpoint keeps no memory format, and torch is slow if two differ
                aligned = align(local(state[name]), part)
                state[name] = state[name] if aligned is local(state[name]) else wrap(aligned, param)
            tensors.append(state[name])
        return tensors

    def _call(self, group: Group, function: Callable[..., None], *tensors: Any, **numbers: Any) -> None:
        """Call an update with the group's switches, compiled once for all values of what schedules change."""
        if group["compile"]:
            if function not in self._compiled:
                self._compiled[function] = torch.compile(function)
            function = self._compiled[function]
            # In double precision, as Python's numbers; a tensor without dimensions changes no other's dtype.
            names = [name for name in COMPILED_AS_TENSORS if name in numbers]
            numbers |= {name: torch.tensor(numbers[name], dtype=torch.float64) for name in names}
        parts = [None if of_params is None else [local(tensor) for tensor in of_params] for of_params in tensors]
        function(*parts, **numbers, foreach=group["foreach"])

    def _check_finite(self, rest: list[list[Tensor]], step: int) -> None:
        """Raise if a number is not finite, in the ``rest`` or among the parameters of the fused update."""
        checked = [group["check_finite"] for group in self.param_groups]
        if not any(checked):
            return
        # Cheap passes that say yes almost always; only if they do not is each number looked at.
        norms = [params for params, check in zip(rest, checked, strict=True) if check]
        if self._ranks.all((self._fused is None or self._fused.is_finite()) and _have_finite_norms(norms)):
            return
        places = [
            (what, index, position, local(tensor))
            for index, group in enumerate(self.param_groups)
            for position, param in enumerate(group["params"] if checked[index] else [])
            for what, tensor in (("weight", param), ("gradient", param.grad))
            if tensor is not None
        ]
        odd = (number for number, (*_, tensor) in enumerate(places) if not bool(tensor.isfinite().all()))
        found = self._ranks.first(next(odd, len(places)))  # all ranks name the same one
        if found < len(places):
            what, index, position, _ = places[found]
            raise NonFiniteError(
                f"the {what} of {self._name(index, position)} must be finite, but got NaN or Inf at step "
                f"{step}: try a lower lr, or look for the first layer whose output is not finite."
            )

    def _name(self, index: int, position: int) -> str:
        group = self.param_groups[index]
        param = group["params"][position]
        if self.prior is not None:
            for name, weight in self.prior.weights.items():
                if weight is param:
                    return name
        if "param_names" in group:
            return str(group["param_names"][position])
        return f"parameter {position} of group {index} (shape {tuple(param.shape)})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a chain that goes on by itself; copied together with the model, it moves the model's copy."""
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        # Hooks, and a step that a torch LR scheduler has wrapped, belong to this chain: torch drops them too.
        own = {k: v for k, v in self.__dict__.items() if k != "step" and not k.startswith("_optimizer_")}
        twin.__setstate__(copy.deepcopy(own, memo))
        return twin

    def settings_dict(self) -> dict[str, Any]:
        """Return the settings of the groups and the seed; one that differs between groups is a dict of theirs."""
        return {**describe_groups(self, self._schedules), "seed": self.noise.seed}

    def load_settings(self, settings: Mapping[str, Any]) -> None:
        """Set settings of the groups, numbers or schedules, and the seed."""
        settings = dict(settings)
        seed = int(settings.pop("seed", self.noise.seed))
        self._schedules = change_groups(self, settings, self._schedules)
        self.noise.seed = seed

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, and with it the step count, the noise and the prior's latents.

        The latents of a weight are among the tensors of its state, and the numbers are repeated as text in the first
        group: ``torch.distributed.checkpoint`` keeps nothing else.
        """
        state = super().state_dict()
        params = [param for group in self.param_groups for param in group["params"]]
        own: dict[int, dict[str, Any]] = {index: {} for index in range(len(params))}
        for index, of_param in state["state"].items():
            own[index].update(of_param)
        state["sampler"] = {
            "kind": type(self).__name__,
            "steps": self.steps,
            "noise": self.noise.state_dict(),
            # SGLD has no tensor of its own that would tell the state of another model.
            "shapes": [[list(param.shape) for param in group["params"]] for group in self.param_groups],
        }
        state["prior"] = None
        if self.prior is not None:
            streams = self._streams()
            places = [streams[id(weight)] for weight in self.prior.weights.values()]
            state["prior"], tensors = _split(self.prior.state_dict(), places)
            for name, of_weights in tensors.items():
                for place, tensor in zip(places, of_weights, strict=True):
                    own[place][name] = tensor
        for of_param in own.values():
            of_param[STEP] = torch.tensor(float(self.steps))
        state["state"] = own
        if not _has_tensors(state["prior"]):
            text = json.dumps({"sampler": state["sampler"], "prior": state["prior"]})
            state["param_groups"][0] = {**state["param_groups"][0], CHAIN: text}
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state and continue bit for bit; one of another sampler or model is refused and changes nothing."""
        state_dict = self._accept(state_dict)
        if self.prior is not None:
            self.prior.load_state_dict(state_dict["prior"])
        params = [param for group in self.param_groups for param in group["params"]]
        keys = [key for group in state_dict["param_groups"] for key in group["params"]]
        # torch would keep the tensors themselves, and the next step would change the state that was given.
        own = {
            key: {name: _copy(value, param) for name, value in state_dict["state"][key].items()}
            for key, param in zip(keys, params, strict=True)
            if state_dict["state"].get(key)
        }
        groups = [
            {name: value for name, value in group.items() if name != CHAIN} for group in state_dict["param_groups"]
        ]
        switches = [{name: group[name] for name in SWITCHES} for group in self.param_groups]
        super().load_state_dict({**state_dict, "state": own, "param_groups": groups})
        for group, of_group in zip(self.param_groups, switches, strict=True):
            group.update(of_group)
        self.steps = int(state_dict["sampler"]["steps"])
        self.noise.load_state_dict(state_dict["sampler"]["noise"])

    def _accept(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a state that fits, complete; all ranks that share sharded parameters must accept the same one."""
        error: Exception | None = None
        try:
            state = self._complete(state)
            self._check_state(state)
        except Exception as reason:  # raised once the other ranks know
            error = reason
        self._ranks.raise_together("state_dict", error)
        own = self.param_groups[0]["num_data"]
        num_data = int(state["param_groups"][0].get("num_data", own))
        seed, steps = int(state["sampler"]["noise"]["seed"]), int(state["sampler"]["steps"])
        self._check_ranks(seed=seed, steps=steps, num_data=num_data)
        return state

    def _complete(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a state with the numbers that stand in its first group, and with the prior's tensors in one place."""
        groups = state["param_groups"]
        if "sampler" not in state and groups and CHAIN in groups[0]:
            state = {**state, **json.loads(groups[0][CHAIN])}
        prior, tensors, moved = state.get("prior"), state["state"], {STEP}
        if prior is not None and self.prior is not None:
            keys = [key for group in groups for key in group["params"]]
            streams = self._streams()
            places = [streams[id(weight)] for weight in self.prior.weights.values()]
            of_weights = [tensors.get(keys[place], {}) if place < len(keys) else {} for place in places]
            prior, names = _join(prior, of_weights)
            moved |= names
        own = {key: {n: v for n, v in of_param.items() if n not in moved} for key, of_param in tensors.items()}
        return {**state, "prior": prior, "state": own}

    def _check_state(self, state: Mapping[str, Any]) -> None:
        kind = state.get("sampler", {}).get("kind")
        if kind != type(self).__name__:
            raise ArgumentValueError("state_dict", f"must hold the state of {type(self).__name__}", kind)
        if (state["prior"] is None) != (self.prior is None):
            own, got = ("with", "none") if state["prior"] is None else ("without", "one")
            raise ArgumentValueError("state_dict", f"must be of a sampler {own} a prior", Phrase(f"it has {got}"))
        if self.prior is not None:
            self.prior.check_state(state["prior"])
        self.noise.check_state(state["sampler"]["noise"])
        sizes = [len(group["params"]) for group in self.param_groups]
        saved = [len(group["params"]) for group in state["param_groups"]]
        if saved != sizes:
            raise ArgumentValueError("state_dict", f"must have groups of {sizes} parameters", saved)
        for index, group in enumerate(self.param_groups):
            for position, param in enumerate(group["params"]):
                shape = state["sampler"]["shapes"][index][position]
                if list(shape) != list(param.shape):
                    name = self._name(index, position)
                    expectation = f"must be of a model whose {name} has the shape {tuple(param.shape)}"
                    raise ArgumentValueError("state_dict", expectation, tuple(shape))


def _copy(value: Any, param: Tensor) -> Any:
    """Return a copy of a tensor of the state, sharded as its parameter."""
    return wrap(part_of(value, param).clone(), param) if isinstance(value, Tensor) else value


def read_latent(state: Mapping[str, Any], name: str) -> list[Tensor]:
    """Return a latent of the prior for each of its weights, from the state of a sampler; empty if it has none."""
    found = (state.get("prior") or {}).get(name)
    if isinstance(found, Mapping) and OF_WEIGHTS in found:
        of_params = {str(key): of_param for key, of_param in state["state"].items()}
        return [of_params[str(place)][found[OF_WEIGHTS]] for place in found[PLACES]]
    return found if isinstance(found, list) else []


def _split(
    state: Mapping[str, Any], places: Sequence[int], path: str = ""
) -> tuple[dict[str, Any], dict[str, list[Tensor]]]:
    """Return a prior's state with names in place of the lists that hold a tensor of each weight, and those lists."""
    rest: dict[str, Any] = {}
    tensors: dict[str, list[Tensor]] = {}
    for key, value in state.items():
        if isinstance(value, Mapping):
            rest[key], inner = _split(value, places, f"{path}{key}.")
            tensors |= inner
        elif isinstance(value, list) and len(value) == len(places) and all(isinstance(item, Tensor) for item in value):
            tensors[f"{path}{key}"] = value
            rest[key] = {OF_WEIGHTS: f"{path}{key}", PLACES: list(places)}
        else:
            rest[key] = value
    return rest, tensors


def _join(state: Mapping[str, Any], of_weights: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], set[str]]:
    """Return a prior's state with the tensors that :func:`_split` took out, and their names."""
    joined: dict[str, Any] = {}
    names: set[str] = set()
    for key, value in state.items():
        joined[key] = value
        if isinstance(value, Mapping) and OF_WEIGHTS in value:
            name = value[OF_WEIGHTS]
            if not all(name in of_weight for of_weight in of_weights):
                expectation = f"must hold {name} of all weights of the prior"
                raise ArgumentValueError("state_dict", expectation, Phrase("some have none"))
            joined[key] = [of_weight[name] for of_weight in of_weights]
            names.add(name)
        elif isinstance(value, Mapping):
            joined[key], inner = _join(value, of_weights)
            names |= inner
    return joined, names


def _has_tensors(state: Any) -> bool:
    if isinstance(state, Mapping):
        return any(map(_has_tensors, state.values()))
    return any(map(_has_tensors, state)) if isinstance(state, list) else isinstance(state, Tensor)


def describe_groups(optimizer: Optimizer, schedules: Sequence[Mapping[str, ScheduleLike]] = ()) -> dict[str, Any]:
    """Return the type and the settings of any torch optimizer, with the lr from which a torch LR scheduler began.

    >>> describe_groups(torch.optim.SGD([torch.zeros(1)], lr=0.1))["lr"]
    0.1
    """
    found: dict[str, Any] = {"type": type(optimizer).__name__}
    for name in optimizer.defaults.keys() - NO_SETTINGS:
        values = []
        for index, group in enumerate(optimizer.param_groups):
            schedule = schedules[index].get(name) if schedules else None
            value = group.get(INITIAL_LR, group["lr"]) if name == "lr" else group.get(name)
            values.append(describe(value) if schedule is None else describe_schedule(schedule))
        same = all(value == values[0] for value in values)
        found[name] = values[0] if same else {f"group {index}": value for index, value in enumerate(values)}
    return found


def change_groups(
    optimizer: Optimizer, settings: Mapping[str, Any], schedules: Sequence[Mapping[str, ScheduleLike]] = ()
) -> list[dict[str, ScheduleLike]]:
    """Set settings in the form of :func:`describe_groups` in any torch optimizer, and return the new schedules.

    Where a torch LR scheduler has moved the lr, it moves in proportion.
    """
    changed = [dict(of_group) for of_group in schedules] or [{} for _ in optimizer.param_groups]
    present = describe_groups(optimizer, schedules)
    for name, value in settings.items():
        for index, group in enumerate(optimizer.param_groups):
            new, old = (v[f"group {index}"] if isinstance(v, dict) else v for v in (value, present[name]))
            if new == old:
                continue
            changed[index].pop(name, None)
            if isinstance(new, str) and name in SCHEDULED:
                changed[index][name] = parse_call(new, MAKERS)
            elif name == "lr" and INITIAL_LR in group:
                group["lr"] = group["lr"] * new / group[INITIAL_LR] if group[INITIAL_LR] else new
                group[INITIAL_LR] = new
            else:
                group[name] = tuple(new) if isinstance(new, list) else new
    return changed


def _default_seed() -> int:
    """Return a seed from torch's global generator, so that ``torch.manual_seed`` fixes it."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if distributed and torch.distributed.get_world_size() > 1:
        expectation = "must be an integer when torch.distributed runs"
        hint = "the same on ranks that share a chain, another on ranks with a chain of their own"
        raise ArgumentValueError("seed", expectation, None, hint)
    return int(torch.randint(2**63 - 1, ()).item())


def _check_parameter(name: str, param: Tensor) -> None:
    check_sharding(name, param)
    if param.is_meta:
        got = Phrase(f"{name} is on the meta device")
        raise ArgumentValueError("params", "must have memory", got, "materialise the model before the sampler")
    if not param.is_floating_point():
        got = Phrase(f"{name} has dtype {param.dtype}")
        raise ArgumentTypeError("params", "must be real floating-point tensors", got)


def _have_finite_norms(groups: list[list[Tensor]]) -> bool:
    """Return True if the norms of all parameters and gradients are finite: then every number is."""
    norms = [
        norm
        for params in groups
        for bucket in _by_device_and_dtype(params)
        for norm in torch._foreach_norm([local(tensor) for p in bucket for tensor in (p, cast(Tensor, p.grad))])
    ]
    return not norms or bool(torch.stack([norm.to(norms[0].device, torch.float32) for norm in norms]).sum().isfinite())


def _by_device_and_dtype(params: list[Tensor]) -> list[list[Tensor]]:
    buckets: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for param in params:
        buckets.setdefault((param.device, param.dtype), []).append(param)
    return list(buckets.values())
