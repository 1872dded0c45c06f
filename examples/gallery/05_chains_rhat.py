"""Several chains and R-hat.

One chain cannot tell that it is stuck. Four chains that start apart can: R-hat compares their spread with the spread
inside each. Here they sample a small network on scikit-learn's breast cancer data.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn

import spikeslab as ss
from spikeslab.metrics import accuracy, negative_log_likelihood
from spikeslab.training import Collect, TensorBatches, Training

# %%
# ## Four chains
#
# The temperature is 1, the Bayes posterior. Each chain has its own start and its own noise.
columns, labels = load_breast_cancer(return_X_y=True)
x, y = torch.tensor(StandardScaler().fit_transform(columns), dtype=torch.float32), torch.tensor(labels)
rows, held_out = train_test_split(range(len(x)), test_size=0.3, random_state=0, stratify=labels)


def run_chain(seed: int, epochs: int = 300) -> ss.Posterior:
    """Return 100 samples of the last two thirds of a run."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(30, 8), nn.Tanh(), nn.Linear(8, 2))
    prior = ss.SpikeSlab(ss.select_weights(model, "0.weight"), v0=0.05, v1=1.0, delta=0.2)
    sampler = ss.SGHMC(
        model.parameters(), lr=0.1, num_data=len(rows), prior=prior, weight_decay=1 / len(rows), seed=seed
    )
    batches = TensorBatches(x[rows], y[rows], batch_size=50, seed=seed)
    steps = epochs * len(batches)
    posterior = ss.Posterior(model, burn_in=steps // 3, thin=2 * steps // 300)
    Training(model, sampler, batches, callbacks=[Collect(posterior)]).run(epochs=epochs)
    return posterior


chains = ss.Chains([run_chain(seed) for seed in range(4)])

# %%
# ## Do they agree?
#
# First what they predict, which is what counts: above 1.05 or so, run longer. Single weights need not agree, since
# hidden units can swap places.
for result in chains.convergence(x[held_out]):
    print(f"{result.name:16s} R-hat {result.rhat:.2f}, effective samples {result.ess_bulk:.0f} of {len(chains)}")

# %%
# ## What the average gains
average = chains.predict(x[held_out])
alone = [posterior.predict(x[held_out]) for posterior in chains.posteriors]
print("NLL of each chain:", ", ".join(f"{negative_log_likelihood(p, y[held_out]):.3f}" for p in alone))
print(f"NLL of all chains: {negative_log_likelihood(average, y[held_out]):.3f}")
print(f"accuracy of all chains: {accuracy(average, y[held_out]):.3f}")

# %%
# Left: the probability of "benign" of one doubtful patient along each chain. Right: a single weight, in which chains
# need not agree.
doubtful = int((average[:, 1] - 0.5).abs().argmin())
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
for number, posterior in enumerate(chains.posteriors):
    outputs = torch.stack(list(posterior.outputs(x[held_out][doubtful : doubtful + 1])))
    left.plot(outputs[:, 0, 1].numpy(), linewidth=0.8, label=f"chain {number}")
    right.plot([posterior.sample(k)[0].weight[0, 20].item() for k in range(len(posterior))], linewidth=0.8)
left.set(xlabel="sample", ylabel="probability of one patient", ylim=(0, 1))
right.set(xlabel="sample", ylabel="one weight")
left.legend(ncols=2, fontsize=8)
plt.show()
