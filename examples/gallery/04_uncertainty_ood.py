"""Uncertainty and out-of-distribution inputs.

A network that has seen the digits 0 to 4 only is shown 5 to 9. The average over samples is less sure of them than a
single network is.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import spikeslab as ss
from spikeslab.metrics import accuracy, detection, entropy, mutual_information
from spikeslab.training import Collect, TensorBatches, Training

# %%
# ## Known and foreign digits
torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
known, foreign = x[y < 5], x[y >= 5]
rows, held_out = train_test_split(range(len(known)), test_size=300, random_state=0)
train = TensorBatches(known[rows], y[y < 5][rows], batch_size=50, seed=0)

# %%
# ## Sample
#
# `Training` is a loop with callbacks; `Collect` keeps samples of the second half of the run. The lr goes in cycles,
# and a sample is taken at the end of each, where the lr is low.
model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 5))
weights = ss.select_weights(model, "*.weight")
prior = ss.SpikeSlab(weights, v0=0.02, v1=1 / (len(rows) * 1e-3), delta=0.2, rho=1.0)
epochs, samples = 100, 20
steps = epochs * len(train)
sampler = ss.SGHMC(
    model.parameters(),
    lr=ss.cyclical(0.1, cycle=steps // (2 * samples)),
    num_data=len(rows),
    temperature=0.1,
    prior=prior,
    weight_decay=1e-3,
    seed=0,
)
posterior = ss.Posterior(model, burn_in=steps // 2, thin=steps // (2 * samples))
Training(model, sampler, train, callbacks=[Collect(posterior)]).run(epochs=epochs)

# %%
# ## Scores
#
# `outputs` has what each sample predicts: (samples, inputs, classes). A score is good if it is higher for foreign
# digits; AUROC is the probability of that.
own = torch.stack(list(posterior.outputs(known[held_out])))
other = torch.stack(list(posterior.outputs(foreign)))
print(f"accuracy on known digits: {accuracy(own.mean(0), y[y < 5][held_out]):.3f}, {len(posterior)} samples")
scores = {
    "entropy of one sample": (entropy(own[-1]), entropy(other[-1])),
    "entropy of the average": (entropy(own.mean(0)), entropy(other.mean(0))),
    "mutual information": (mutual_information(own), mutual_information(other)),
}
for name, (score_own, score_other) in scores.items():
    result = detection(score_own, score_other)
    print(f"{name:22s} AUROC {result.auroc:.3f}  false alarms at 95 % found {result.fpr95:.3f}")

# %%
figure, panels = plt.subplots(1, 3, figsize=(9, 2.8), layout="constrained")
for axes, (name, (score_own, score_other)) in zip(panels, scores.items(), strict=True):
    edges = torch.linspace(0, float(torch.cat([score_own, score_other]).max()), 25).tolist()
    axes.hist(score_own.numpy(), edges, density=True, alpha=0.6, label="known: 0 to 4")
    axes.hist(score_other.numpy(), edges, density=True, alpha=0.6, label="foreign: 5 to 9")
    axes.set(xlabel="nats", title=name, yticks=[])
panels[0].legend()
plt.show()
