"""A recipe for ``spikeslab compress``: the network, its data, and nothing else.

    spikeslab compress recipe.py --sparsity 0.9 --epochs 30 --out out/compressed

As it stands it compresses a small network on handwritten digits, which come with scikit-learn, within a minute. Put
your own network and data into the functions; ``model``, ``train_data`` and ``val_data`` must be there, the rest may go.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from spikeslab.paper.demo import load_digits


def model() -> nn.Module:
    """Return the trained network, with the same weights at every call: any module, no changes needed.

    Yours would load a file:

        network = MyNetwork()
        network.load_state_dict(torch.load("my_network.pt", weights_only=True))
        return network
    """
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    for _ in range(15):
        for x, y in train_data():
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x), y).backward()
            optimizer.step()
    return network


def train_data() -> DataLoader[tuple[Tensor, ...]]:
    """Return batches to train on: a DataLoader, or anything else that can be iterated again.

    Pairs (x, y) need no loss: integer y are classes, floating-point y are a regression.
    """
    digits = load_digits()
    return DataLoader(TensorDataset(digits.x_train, digits.y_train), batch_size=64, shuffle=True)


def val_data() -> DataLoader[tuple[Tensor, ...]]:
    """Return batches that are not trained on, for the accuracy after every epoch."""
    digits = load_digits()
    return DataLoader(TensorDataset(digits.x_validation, digits.y_validation), batch_size=500)


def test_data() -> DataLoader[tuple[Tensor, ...]]:
    """Optional: batches that are looked at once, when all is done."""
    digits = load_digits()
    return DataLoader(TensorDataset(digits.x_test, digits.y_test), batch_size=500)


# Optional: the mean loss of a batch of any kind, for what is neither classes nor a regression.
#
# def loss(model, batch):
#     return nn.functional.cross_entropy(model(batch["image"]), batch["label"], label_smoothing=0.1)

# Optional: what networks are compared by, lower being better, if that is not the accuracy, the RMSE or your loss.
#
# def metric(model, batch):
#     return (model(batch["image"]).argmax(1) != batch["label"]).float().mean()

# Optional: a forward pass for inputs that the network does not take as they are, and the tensor in what it returns.
#
# def forward(model, x):
#     return model(x["image"], scale=x["scale"])
#
# def output(result):
#     return result["scores"]

# Optional: an input of the network for `spikeslab sparsity`, where batches are no pairs (x, y).
#
# def example_input():
#     return torch.zeros(64, 1, 8, 8)

# Optional: settings other than the defaults, such as the highest lr, the temperature or the prior.
#
# from spikeslab.compression import Settings
#
# settings = Settings(lr=0.02, temperature=1e-3, weight_decay=1e-3)
