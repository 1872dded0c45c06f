"""A regression with intervals.

A network predicts the progression of diabetes with an interval for each patient. The likelihood learns the noise, the
samples add what the network does not know, and the two are told apart.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn

import spikeslab as ss
from spikeslab.metrics import interval_coverage, root_mean_squared_error
from spikeslab.training import Collect, TensorBatches, Training

# %%
# ## Data
#
# Columns and target are standardised with the training rows.
columns, target = load_diabetes(return_X_y=True)
rows, held_out = train_test_split(range(len(target)), test_size=0.3, random_state=0)
scale_x, scale_y = StandardScaler().fit(columns[rows]), StandardScaler().fit(target[rows, None])
x = torch.tensor(scale_x.transform(columns), dtype=torch.float32)
y = torch.tensor(scale_y.transform(target[:, None]), dtype=torch.float32)

# %%
# ## Likelihood and sampler
#
# `GaussianLikelihood(prior)` is the mean squared error over 2 sigma squared; the prior learns sigma from the residuals.
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 1))
prior = ss.SpikeSlab(ss.select_weights(model, "*.weight"), v0=0.05, v1=1.0, delta=0.2)
likelihood = ss.GaussianLikelihood(prior)
sampler = ss.SGHMC(model.parameters(), lr=0.01, num_data=len(rows), prior=prior, weight_decay=1 / len(rows), seed=0)
posterior = ss.Posterior(model, burn_in=2000, thin=20, likelihood=likelihood)
Training(
    model,
    sampler,
    TensorBatches(x[rows], y[rows], batch_size=50, seed=0),
    loss=lambda network, batch: likelihood(network(batch[0]), batch[1]),
    callbacks=[Collect(posterior)],
).run(epochs=600)

# %%
# ## Intervals
#
# `predictive` splits the variance: the noise of the data, and the spread of the samples. A 90 % interval reaches
# 1.645 standard deviations to both sides.
prediction = posterior.predictive(x[held_out])
mean, std = prediction.mean, prediction.variance.sqrt()
low, high = mean - 1.645 * std, mean + 1.645 * std
print(f"samples {len(posterior)}, sigma {prior.sigma:.2f}")
print(f"RMSE {root_mean_squared_error(mean, y[held_out]):.3f} in units of the target's standard deviation")
covered = interval_coverage(mean, prediction.variance, y[held_out], level=0.9)
print(f"share of patients inside their 90 % interval: {covered:.2f}")
print(f"share of the variance that is the network's own: {(prediction.epistemic / prediction.variance).mean():.2f}")

# %%
order = np.argsort(mean[:, 0].numpy())
place = np.arange(len(order))
figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
axes.fill_between(place, low[order, 0].numpy(), high[order, 0].numpy(), alpha=0.25, label="90 % interval")
centre, spread = mean[order, 0].numpy(), 1.645 * prediction.epistemic.sqrt()[order, 0].numpy()
axes.fill_between(place, centre - spread, centre + spread, alpha=0.5, label="of it: the network's own")
axes.plot(place, centre, label="mean")
axes.plot(place, y[held_out][order, 0].numpy(), ".", color="black", label="held-out patients")
axes.set(xlabel="patients, by prediction", ylabel="progression, standardised")
axes.legend(ncols=4, fontsize=8)
plt.show()
