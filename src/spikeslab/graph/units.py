"""Units of a network that can go: channels, feed-forward units, heads, groups, channels of a residual stage.

A unit is a group of the dependency graph: with the parameters that write it at zero, every layer that reads it reads
zeros, whatever the input is, and compacting removes it. Units that the same parameters write form a family.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spikeslab.functional.groups import GroupPart
from spikeslab.graph.attention import PROJECTIONS
from spikeslab.graph.dependency import DependencyGraph
from spikeslab.graph.layers import CONVS, ChannelBias, is_transposed
from spikeslab.graph.recurrent import count_gates, suffixes
from spikeslab.graph.surgery import remove_dead_channels
from spikeslab.graph.tracing import ExampleInput, UntraceableError, copy_model, trace


@dataclass(frozen=True)
class UnitFamily:
    """Units that the same parameters write.

    Attributes:
        count: Number of units.
        gates: Slices whose joint norm says how important a unit is, and on which a prior acts: the scales of the
            normalisation behind it; without one its filters; of a head all of its weights.
        members: Slices that are zero if a unit is dead, the gates among them.
        multiple: Number of which the width that is left is to be a multiple; a unit may be several wide, as a head is.
    """

    count: int
    gates: tuple[GroupPart, ...]
    members: tuple[GroupPart, ...]
    multiple: int = 1

    def nearest(self, kept: int, least: int = 1) -> int:
        """Return the number of units nearest to ``kept``, but at least ``least``, whose width is a multiple.

        Of two equally near it is the smaller. It is also right to keep all units, and a family of fewer than a multiple
        keeps any number.

        >>> family = UnitFamily(20, (), (GroupPart("weight", 0, torch.arange(40).view(20, 2)),), multiple=8)
        >>> [family.nearest(kept) for kept in (1, 5, 6, 11, 17, 19)]
        [4, 4, 4, 12, 16, 20]
        """
        width = self.members[0].places.shape[1] if self.members else 1
        step = self.multiple // math.gcd(self.multiple, width)
        if step > self.count:
            return kept
        allowed = [count for count in range(step, self.count, step) if count >= least]
        return min([*allowed, self.count], key=lambda count: (abs(count - kept), count))

    def filters(self, tensors: Mapping[str, Tensor]) -> tuple[GroupPart, ...]:
        """Return the members that are matrices or filters, the first to write a unit before the others."""
        return tuple(part for part in self.members if tensors[part.name].ndim > 1)

    @property
    def names(self) -> list[str]:
        """Names of all parameters."""
        return list(dict.fromkeys(part.name for part in (*self.gates, *self.members)))


@dataclass(frozen=True)
class ChannelAxis:
    """Dimension of a parameter along which there are channels.

    Attributes:
        name: Name of the parameter.
        dim: The dimension.
        numbers: Number of the channel at each place.
        kind: ``"filter"``, ``"column"``, ``"scale"`` or ``"shift"``.
        layer: Name of the layer.
    """

    name: str
    dim: int
    numbers: Tensor
    kind: str
    layer: str


def find_units(model: nn.Module, example_input: ExampleInput) -> dict[str, UnitFamily]:
    """Return the families of units that can go, by the name of the first weight that writes them.

    >>> model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    >>> units = find_units(model, torch.zeros(2, 1, 8, 8))
    >>> {name: ([gate.name for gate in unit.gates], unit.names) for name, unit in units.items()}
    {'0.weight': (['1.weight'], ['1.weight', '0.weight', '0.bias', '1.bias'])}

    Args:
        model: Any module; it is not changed.
        example_input: An input of the model, or a tuple or mapping of its inputs; only the shape matters.

    Raises:
        UntraceableError: If the network has no faithful graph.
    """
    graph = DependencyGraph(trace(copy_model(model).eval(), example_input), assume_dead=True)
    slots = list(_find_slots(graph))
    norms = _find_norms(graph)
    roots = graph.groups.find_roots()
    kept = _find_kept(graph, roots)
    places: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for position, slot in enumerate(slots):
        for place, root in enumerate(roots[slot.numbers].tolist()):
            if not kept[root]:
                places[root][position].append(place)
    families: dict[tuple[tuple[int, int], ...], list[int]] = defaultdict(list)
    for root, found in places.items():
        if any(slots[position].kind == "filter" for position in found):
            written = ((p, len(rows)) for p, rows in sorted(found.items()) if slots[p].kind != "column")
            families[tuple(written)].append(root)
    units: dict[str, UnitFamily] = {}
    for key, members in families.items():
        parts = {}
        for position in places[members[0]]:
            index = [places[root].get(position, []) for root in members]
            if len({len(rows) for rows in index}) == 1:
                slot = slots[position]
                parts[position] = GroupPart(slot.name, slot.dim, torch.tensor(index))
        name = slots[key[0][0]].name
        units[name if name not in units else f"{name}[{len(units)}]"] = _make_family(slots, parts, norms, len(members))
    return units


def _make_family(slots: list[ChannelAxis], parts: dict[int, GroupPart], norms: set[str], count: int) -> UnitFamily:
    by_kind: dict[str, list[GroupPart]] = defaultdict(list)
    for position, part in parts.items():
        by_kind[slots[position].kind].append(part)
    gates = [
        part for position, part in parts.items() if slots[position].kind == "scale" and slots[position].layer in norms
    ]
    written = [*by_kind["filter"], *by_kind["scale"], *by_kind["shift"]]
    filters = [part for part in by_kind["filter"] if "bias" not in part.name.rpartition(".")[2]]
    if not gates and by_kind["column"] and any(part.places.shape[1] > 1 for part in filters):
        gates = [*filters, *by_kind["column"]]
        written += by_kind["column"]
    return UnitFamily(count, tuple(gates or filters), tuple(written))


def _find_slots(graph: DependencyGraph) -> Iterator[ChannelAxis]:
    """Yield the dimensions of parameters along which there are channels, in the order of execution."""
    for layer in graph.layers:
        rows = 1 if is_transposed(layer.module) else 0
        yield ChannelAxis(f"{layer.name}.weight", rows, layer.outputs.numbers, "filter", layer.name)
        if layer.module.bias is not None:
            yield ChannelAxis(f"{layer.name}.bias", 0, layer.outputs.numbers, "filter", layer.name)
        yield ChannelAxis(f"{layer.name}.weight", 1 - rows, layer.inputs.numbers, "column", layer.name)
    for cell in graph.recurrent:
        repeated = cell.outputs.numbers.repeat(count_gates(cell.module))
        for _, end in suffixes(cell.module):
            for key in ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if cell.module.bias else ())):
                yield ChannelAxis(f"{cell.name}.{key}{end}", 0, repeated, "filter", cell.name)
    for part in graph.channelwise:
        module, name = part.module, part.name
        if isinstance(module, nn.MultiheadAttention):
            heads = part.numbers.repeat_interleave(module.head_dim)
            thrice = heads.repeat(3)
            numbers = {"in_proj_weight": thrice, "in_proj_bias": thrice, **dict.fromkeys(PROJECTIONS, heads)}
            for key, own in numbers.items():
                if getattr(module, key) is not None:
                    yield ChannelAxis(f"{name}.{key}", 0, own, "filter", name)
        elif isinstance(module, (_BatchNorm, ChannelBias)):
            for key, _ in module.named_parameters():
                yield ChannelAxis(f"{name}.{key}", 0, part.numbers, "scale" if key == "weight" else "shift", name)
        else:
            for key, _ in module.named_parameters():
                yield ChannelAxis(f"{name}.{key}", 0, part.numbers, "filter", name)


def _find_kept(graph: DependencyGraph, roots: Tensor) -> Tensor:
    """Return for every root True if its channels stay: they are pinned, read by nothing, or not zero where they are."""
    kept, read = graph.groups.find_pinned(), torch.zeros(len(graph.groups), dtype=torch.bool)
    for layer in graph.readers:
        own = roots[layer.inputs.numbers]
        read[own] = True
        kept[own[layer.inputs.constants != 0]] = True
    for part in graph.channelwise:
        if isinstance(part.module, _BatchNorm) and not part.module.affine:
            kept[roots[part.numbers]] = True
    return kept | ~read


def _find_norms(graph: DependencyGraph) -> set[str]:
    """Return the batch normalisations that decide the scale of a layer's output, the last ones behind it."""
    traced, last = graph.traced, dict[fx.Node, str]()
    for node in traced.graph.nodes:
        if not isinstance(traced.module(node), _BatchNorm) or graph.layout(node) is None:
            continue
        source = node
        while not (isinstance(traced.module(source), (nn.Linear, *CONVS)) and _begins(graph, source)):
            sources = [other for other in source.all_input_nodes if graph.layouts.get(other) is not None]
            if len(sources) != 1:
                break
            (source,) = sources
        else:
            last[source] = str(node.target)
    return set(last.values())


def _begins(graph: DependencyGraph, node: fx.Node) -> bool:
    return any(layer.name == str(node.target) for layer in graph.layers)


def find_removable(model: nn.Module, example_input: ExampleInput) -> tuple[dict[str, UnitFamily], list[str]]:
    """Return the families of which compacting removes a dead unit, and the names of those of which it cannot.

    It is tried in a copy. A family of one unit is in neither.

    Raises:
        UntraceableError: If the network has no faithful graph.
    """
    units = {name: family for name, family in find_units(model, example_input).items() if family.count > 1}
    trial = copy_model(model).eval()
    parameters = dict(trial.named_parameters())
    with torch.no_grad():
        for family in units.values():
            dead = torch.zeros(family.count, dtype=torch.bool)
            dead[-1] = True
            for part in family.members:
                part.zero_(parameters[part.name], dead)
    before = {name: parameter.shape for name, parameter in parameters.items()}
    try:
        smaller, _ = remove_dead_channels(copy.deepcopy(trial), example_input)
    except UntraceableError:
        return {}, list(units)
    after = {name: parameter.shape for name, parameter in smaller.named_parameters()}
    fixed = [name for name, family in units.items() if not _is_narrower(family, before, after)]
    return {name: family for name, family in units.items() if name not in fixed}, fixed


def _is_narrower(family: UnitFamily, before: Mapping[str, torch.Size], after: Mapping[str, torch.Size]) -> bool:
    return all(
        part.name not in after or after[part.name][part.dim] < before[part.name][part.dim] for part in family.members
    )
