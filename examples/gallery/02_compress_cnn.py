"""Compress a CNN.

`compress` makes a trained network sparse in one call. Scattered zeros make its file small; without half of its channels
the network itself is smaller. Both are shown on scikit-learn's digits, beside magnitude pruning with the same budget.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import spikeslab as ss
from spikeslab.training import TensorBatches

# %%
# ## A trained network
#
# 30,000 weights, trained with SGD. `TensorBatches` cuts batches out of tensors; a `DataLoader` does as well.
torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(labels)
rows, held_out = train_test_split(range(len(x)), test_size=500, random_state=0, stratify=labels)
train = TensorBatches(x[rows], y[rows], batch_size=100)
validation = [(x[held_out], y[held_out])]

dense = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1, bias=False),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, padding=1, bias=False),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(512, 48),
    nn.ReLU(),
    nn.Linear(48, 10),
)
optimizer = torch.optim.SGD(dense.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
for epoch in range(8):
    for xb, yb in train.epoch(epoch):
        optimizer.zero_grad()
        F.cross_entropy(dense(xb), yb).backward()
        optimizer.step()

# %%
# ## Nine tenths of the weights
#
# `method="gmp"` is gradual magnitude pruning: compare with it on your own network before you choose.
found = {}
for method in ("a-sghmc-sa", "gmp"):
    result = ss.compress(dense, train, validation, sparsity=0.9, epochs=10, method=method, progress=False)
    found[method] = result
    numbers = {name: f"{evaluation['accuracy']:.3f}" for name, evaluation in result.evaluation.items()}
    print(f"{method:11s} {result.report['network']['nonzeros']:,} weights left, accuracy {numbers}")

# %%
# ## A small file
#
# A bit for each zero, and the values of the rest; `load_sparse` gives back a `state_dict`.
sizes = {"dense": sum(4 * tensor.numel() for tensor in dense.state_dict().values())}
with tempfile.TemporaryDirectory() as folder:
    for values in ("fp32", "fp16", "int8"):
        file = ss.save_sparse(found["a-sghmc-sa"].model, Path(folder) / f"{values}.safetensors", values)
        sizes[values] = file.stat().st_size
print({name: f"{size / 1000:.0f} KB" for name, size in sizes.items()})

# %%
# ## Half of the channels
#
# `compact` removes dead channels: the network that is left is an ordinary, smaller one.
narrow = ss.compress(dense, train, validation, structure="channels", sparsity=0.5, epochs=10, progress=False)
small = ss.compact(narrow.model, x[:1])
count = {name: sum(p.numel() for p in net.parameters()) for name, net in (("dense", dense), ("small", small.model))}
print(f"accuracy {narrow.evaluation['sparse']['accuracy']:.3f}, weights {count['dense']:,} -> {count['small']:,}")
print([tuple(layer.weight.shape) for layer in small.model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)])

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
bars = left.bar(["dense", "sparse\nfp32", "sparse\nfp16", "sparse\nint8"], [size / 1000 for size in sizes.values()])
left.bar_label(bars, fmt="%.0f")
left.set_ylabel("size of the file, KB")
result = found["a-sghmc-sa"]
kept = result.model[3].weight.detach().abs().flatten(1)
right.imshow(kept.numpy(), aspect="auto", cmap="gray_r", vmax=kept.max() / 2, interpolation="none")
right.set(xlabel="input channel and tap", ylabel="output channel", title="second convolution, size of its weights")
plt.show()
