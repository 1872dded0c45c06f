"""Your own loop on digits.

Put a sampler where the optimizer was, choose the weights that shall become sparse, and keep samples: a small
convolutional network on scikit-learn's 8 x 8 digits loses nine tenths of its weights and gains a posterior.
"""

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spikeslab as ss
from spikeslab.metrics import accuracy, expected_calibration_error, negative_log_likelihood

# %%
# ## Data and network
#
# The first part is ordinary PyTorch.
torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(labels)
train, test = train_test_split(range(len(x)), test_size=500, random_state=0, stratify=labels)
loader = DataLoader(TensorDataset(x[train], y[train]), batch_size=100, shuffle=True, drop_last=True)

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(512, 64),
    nn.ReLU(),
    nn.Linear(64, 10),
)

# %%
# ## Prior, sampler, pruner, posterior
#
# The prior needs no numbers: its scales follow from N, lr and weight decay of the sampler and from the share of zeros
# of the pruner, by the rule of the [guide to the prior](../priors.md). The sparsity rises from a fifth to six tenths
# of the run; then the zeros are final: all samples share them, and what is left has the slab alone as its prior.
epochs = 20
steps = epochs * len(loader)
start, final = int(0.2 * steps), int(0.6 * steps)

weights = ss.select_weights(model, "*.weight")
prior = ss.SpikeSlab(weights, steps=steps)
sampler = ss.SGHMC(
    model.parameters(),
    lr=ss.cosine(0.05, steps, 0.005),
    num_data=len(train),
    temperature=1e-3,
    prior=prior,
    weight_decay=5e-4,
    seed=0,
)
pruner = ss.Pruner(weights, ss.cubic_sparsity(0.9, final, start), scope="global", freeze_at=final, prior=prior)
posterior = ss.Posterior(model, burn_in=int(0.75 * steps), thin=steps // 40)

# %%
# ## The loop
#
# The loss is the mean over the batch, as for SGD.
print(prior)
losses, shares = [], []
for _ in range(epochs):
    for xb, yb in loader:
        sampler.zero_grad()
        loss = F.cross_entropy(model(xb), yb)
        loss.backward()
        sampler.step()
        pruner.step()
        posterior.collect()
        losses.append(loss.item())
        shares.append(pruner.sparsity().sparse)

# %%
# ## What came out
#
# One row for the last weights, one for the average over the samples.
with torch.no_grad():
    last = model(x[test]).softmax(dim=1)
average = posterior.predict(x[test])
print(f"zeros in the network: {ss.measure_sparsity(weights, model).network:.1%}, samples: {len(posterior)}")
for name, probabilities in (("last weights", last), ("average", average)):
    print(
        f"{name:12s}  accuracy {accuracy(probabilities, y[test]):.3f}"
        f"  NLL {negative_log_likelihood(probabilities, y[test]):.3f}"
        f"  ECE {expected_calibration_error(probabilities, y[test]):.3f}"
    )

# %%
# The least certain test images, with the two classes that the average hesitates between.
figure = plt.figure(figsize=(9, 3.2), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=[1.2, 1])
axes = left.subplots()
axes.plot(losses, color="tab:gray", linewidth=0.7)
axes.set(xlabel="step", ylabel="loss of the batch", yscale="log")
twin = axes.twinx()
twin.plot(shares, color="tab:blue")
twin.set_ylabel("share of zeros", color="tab:blue")
for panel, index in zip(right.subplots(2, 4).flat, average.max(dim=1).values.argsort()[:8].tolist(), strict=True):
    first, second = average[index].topk(2).indices.tolist()
    panel.imshow(x[test][index, 0].numpy(), cmap="gray_r")
    panel.set_title(f"{first} or {second}? ({y[test][index]})", fontsize=8)
    panel.axis("off")
plt.show()
