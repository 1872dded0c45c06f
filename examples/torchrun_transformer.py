"""Sample a small sparse transformer whose weights are sharded over the ranks by FSDP2.

torchrun --nproc-per-node 2 examples/torchrun_transformer.py
python examples/torchrun_transformer.py                                        # the same chain on one process
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributed as dist

import spikeslab as ss
from spikeslab.errors import check_count
from spikeslab.parallel.distributed import Ranks

TOKENS, LENGTH, WIDTH, EXAMPLES = 16, 12, 32, 2048


class Transformer(nn.Module):
    """Encoder that says for each token whether it has occurred before."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.place = nn.Parameter(torch.randn(LENGTH, WIDTH) / WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (batch, 2, length)."""
        hidden = self.embed(tokens) + self.place
        for layer in self.layers:
            hidden = layer(hidden)
        logits: Tensor = self.head(hidden)
        return logits.transpose(1, 2).contiguous()  # FSDP2 warns of views


def main() -> None:
    """Train, prune, sample and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        check_count("--steps", options.steps, minimum=4)
    except ValueError as error:
        parser.error(str(error))

    if dist.is_torchelastic_launched():  # by torchrun
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    ranks = Ranks.create()
    torch.manual_seed(options.seed)
    x = torch.randint(TOKENS, (EXAMPLES, LENGTH))
    earlier = torch.ones(LENGTH, LENGTH).tril(-1).bool()
    y = ((x.unsqueeze(2) == x.unsqueeze(1)) & earlier).any(2).long()

    model = Transformer()  # the same on all ranks
    ranks.fully_shard(model, model.layers)
    weights = ss.select_weights(model, "layers.*.weight")
    prior = ss.SpikeSlab(weights, steps=options.steps)
    sampler = ss.SGHMC(model.parameters(), lr=0.05, num_data=EXAMPLES, temperature=1e-3, prior=prior, seed=options.seed)
    ready = options.steps * 2 // 3
    pruner = ss.Pruner(weights, ss.cubic_sparsity(0.5, total=ready), scope="global", freeze_at=ready, prior=prior)
    thin = max(1, (options.steps - ready) // 4)
    posterior = ss.Posterior(model, burn_in=ready, thin=thin, sampler=sampler)

    batches = torch.Generator().manual_seed(options.seed)
    for _ in range(options.steps):
        rows = ranks.shard(torch.randint(EXAMPLES, (64,), generator=batches))
        sampler.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        sampler.step()
        pruner.step()
        posterior.collect()

    sparsity = pruner.sparsity()  # all ranks count
    if ranks.is_writer:
        whole = Transformer()
        whole.load_state_dict(posterior.tensors(-1))
        accuracy = (whole.eval()(x).argmax(1) == y).float().mean()
        print(f"accuracy {accuracy:.3f}, sparsity {sparsity.sparse:.3f}, {len(posterior)} samples")
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
