"""Prune without training.

`prune_one_shot` makes a trained network sparse in seconds. It needs a few hundred inputs, no labels and no gradients:
every layer is regressed on itself, with zeros. Here it is compared with magnitude pruning on scikit-learn's digits.
"""

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import spikeslab as ss
from spikeslab.functional.patterns import Pattern, keep_largest
from spikeslab.training import TensorBatches

# %%
# ## A trained network
torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(labels)
rows, held_out = train_test_split(range(len(x)), test_size=500, random_state=0, stratify=labels)
train = TensorBatches(x[rows], y[rows], batch_size=100)

dense = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1, bias=False),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, padding=1, bias=False),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.MaxPool2d(4),
    nn.Flatten(),
    nn.Linear(128, 64),
    nn.ReLU(),
    nn.Linear(64, 10),
)
optimizer = torch.optim.SGD(dense.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
for epoch in range(8):
    for xb, yb in train.epoch(epoch):
        optimizer.zero_grad()
        F.cross_entropy(dense(xb), yb).backward()
        optimizer.step()
dense.eval()


def accuracy(network: nn.Module) -> float:
    """Return the accuracy on new images."""
    with torch.no_grad():
        return (network.eval()(x[held_out]).argmax(1) == y[held_out]).double().mean().item()


print(f"dense: accuracy {accuracy(dense):.3f}")

# %%
# ## Half of the weights
#
# The inputs are 600 training images. The first convolution has nine inputs and stays dense: with fewer than 64 inputs
# too few are left to make up for those that go. The error is the change of a layer's outputs.
inputs = [x[rows[:600]]]
half = ss.prune_one_shot(dense, inputs, sparsity=0.5, progress=False)
for fit in half.layers:
    print(f"{fit.name:9s} {fit.zeros:6,} of {fit.weights:6,} weights are zero, error {100 * fit.error:.2f} %")
print(f"stays dense: {half.dense}; accuracy {accuracy(half.model):.3f}")


# %%
# ## Against magnitude
#
# A solver is a function from dense weights (outputs, inputs), the Gram matrix of the inputs and the pattern to sparse
# weights. This one keeps the largest weights as they are.
def by_magnitude(weights: Tensor, gram: Tensor, pattern: Pattern) -> Tensor:
    """Return the weights without the smallest."""
    return weights * keep_largest(weights, pattern)


levels = (0.5, 0.7, 0.8)
solvers = {"regression": None, "magnitude": by_magnitude}
found = {name: [] for name in solvers}
for name, solver in solvers.items():
    for sparsity in levels:
        pruned = ss.prune_one_shot(dense, inputs, sparsity, solver=solver, progress=False)
        error = sum(fit.error for fit in pruned.layers) / len(pruned.layers)
        found[name].append((accuracy(pruned.model), error))
        print(f"{name:10s} {sparsity:.0%} zeros: accuracy {found[name][-1][0]:.3f}, mean error {100 * error:5.2f} %")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
percent = [100 * level for level in levels]
for name, numbers in found.items():
    left.plot(percent, [100 * share for share, _ in numbers], "o-", label=name)
    right.plot(percent, [100 * error for _, error in numbers], "o-", label=name)
left.axhline(100 * accuracy(dense), color="grey", linestyle=":", label="dense")
left.set(xlabel="zeros in every pruned layer, %", ylabel="accuracy on new images, %")
right.set(xlabel="zeros in every pruned layer, %", ylabel="change of a layer's outputs, %", yscale="log")
left.legend()
plt.show()
