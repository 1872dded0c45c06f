"""Your own training loop on MNIST with another optimizer: SGHMC and a spike-and-slab prior in the place of SGD.

python examples/own_loop_mnist.py --data-dir data                           # 10 epochs: ten minutes on one core
python examples/own_loop_mnist.py --data-dir data --limit 5000 --epochs 2   # a quick look
python examples/own_loop_mnist.py --data digits --epochs 30                 # scikit-learn's digits: no download
"""

import argparse

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import spikeslab as ss
from spikeslab.errors import check_count
from spikeslab.metrics import accuracy, expected_calibration_error, negative_log_likelihood
from spikeslab.paper.demo import load_upscaled_digits
from spikeslab.paper.images import CNN, load_mnist


def main() -> None:
    """Train, sample and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=("mnist", "digits"), default="mnist")
    parser.add_argument("--data-dir", help="folder with MNIST/raw; by default SPIKESLAB_DATA, or else a download")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--limit", type=int, help="training and test images; by default all")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        check_count("--epochs", options.epochs)
        if options.limit is not None:
            check_count("--limit", options.limit)
        data = load_upscaled_digits() if options.data == "digits" else load_mnist(options.data_dir)
    except ValueError as error:
        parser.error(str(error))

    torch.manual_seed(options.seed)
    x, y = data.x_train[: options.limit] / 255, data.y_train[: options.limit]
    loader = DataLoader(TensorDataset(x, y), batch_size=100, shuffle=True)
    model = CNN().to(memory_format=torch.channels_last)  # any network; this format is the fast one on a CPU

    # Before: optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    prior = ss.SpikeSlab(ss.select_weights(model, "fc1.weight"), v0=0.5, v1=10.0)
    optimizer = ss.SGHMC(
        model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, num_data=len(x), temperature=0.001, prior=prior
    )
    steps = options.epochs * len(loader)
    thin = max(1, steps // 20)
    posterior = ss.Posterior(model, burn_in=max(0, steps - 10 * thin), thin=thin)  # ten samples of the second half

    for epoch in range(options.epochs):
        for xb, yb in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(xb), yb)
            loss.backward()
            optimizer.step()
            posterior.collect()
        print(f"epoch {epoch + 1}: loss of the last batch {loss.item():.3f}")

    x_test, y_test = data.x_test[: options.limit] / 255, data.y_test[: options.limit]
    model.eval()
    with torch.no_grad():
        last = F.softmax(torch.cat([model(part) for part in x_test.split(1000)]), dim=1)
    average = posterior.predict(x_test, batch_size=1000)
    for name, probabilities in (("last weights", last), (f"average of {len(posterior)} samples", average)):
        print(
            f"{name}: accuracy {accuracy(probabilities, y_test):.4f}, "
            f"NLL {negative_log_likelihood(probabilities, y_test):.4f}, "
            f"ECE {expected_calibration_error(probabilities, y_test):.4f}"
        )


if __name__ == "__main__":
    main()
