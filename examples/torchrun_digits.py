"""Sample a sparse CNN on scikit-learn's digits, alone or on many processes.

python examples/torchrun_digits.py                                             # one process
torchrun --nproc-per-node 2 examples/torchrun_digits.py                        # one chain, its batches on two ranks
torchrun --nproc-per-node 2 examples/torchrun_digits.py --chains 2             # two chains
torchrun --nproc-per-node 4 examples/torchrun_digits.py --chains 2             # two chains of two ranks each
"""

import argparse

import torch
import torch.nn.functional as F
from torch import distributed as dist

import spikeslab as ss
from spikeslab.errors import check_count
from spikeslab.paper.demo import DigitsCNN, load_digits
from spikeslab.parallel.distributed import Ranks, gather_chains


def main() -> None:
    """Train, sample and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch-size", type=int, default=64, help="rows of a chain's batch, over all of its ranks")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        check_count("--chains", options.chains)
        check_count("--steps", options.steps, minimum=2)
        check_count("--batch-size", options.batch_size)
    except ValueError as error:
        parser.error(str(error))

    if dist.is_torchelastic_launched():  # by torchrun
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    ranks = Ranks.create(options.chains)
    data, seed = load_digits(), ranks.seed(options.seed)
    torch.manual_seed(seed)

    model = DigitsCNN()
    forward = ranks.data_parallel(model)  # for the forward pass; all else takes the model itself
    weights = ss.select_weights(model, "conv2.weight", "fc1.weight")
    prior = ss.SpikeSlab(weights, v0=0.005, v1=1.0, delta=0.1, b=1.0, rho=1.0)
    sampler = ss.SGHMC(
        model.parameters(), lr=0.05, num_data=len(data.x_train), temperature=0.01, prior=prior, seed=seed
    )
    ready = options.steps * 2 // 3
    pruner = ss.Pruner(weights, ss.cubic_sparsity(0.9, total=ready), network=model)
    posterior = ss.Posterior(model, burn_in=ready, thin=max(1, (options.steps - ready) // 8))

    batches = torch.Generator().manual_seed(seed)  # the same batches on all ranks of a chain
    for step in range(1, options.steps + 1):
        rows = ranks.shard(torch.randint(len(data.x_train), (options.batch_size,), generator=batches))
        sampler.zero_grad()
        F.cross_entropy(forward(data.x_train[rows]), data.y_train[rows]).backward()
        sampler.step()
        pruner.step()
        if step == ready:
            pruner.freeze()  # so that all samples share their zeros
        posterior.collect()
        if step % 500 == 0:
            ranks.check_same(model, sampler)

    ranks.check_same(model, sampler, pruner)
    posteriors = gather_chains(posterior, ranks)
    if posteriors is not None:  # on one process
        predictions = [p.predict(data.x_test) for p in posteriors]
        for name, probabilities in [
            *((f"chain {chain}", prediction) for chain, prediction in enumerate(predictions)),
            ("all", torch.stack(predictions).mean(0)),
        ]:
            accuracy = (probabilities.argmax(1) == data.y_test).float().mean()
            print(f"{name}: accuracy {accuracy:.3f}, NLL {F.nll_loss(probabilities.log(), data.y_test):.3f}")
        print(f"sparsity {pruner.sparsity().network:.3f}, {sum(map(len, posteriors))} samples")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
