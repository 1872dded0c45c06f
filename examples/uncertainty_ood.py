"""Does the network know what it has not learned? Train on one image set, score another by the uncertainty about it.

python examples/uncertainty_ood.py --data-dir data                           # train on MNIST, score Fashion-MNIST
python examples/uncertainty_ood.py --data-dir data --data fashion            # the other way
python examples/uncertainty_ood.py --data-dir data --limit 5000 --epochs 2   # a quick look
python examples/uncertainty_ood.py --data digits --epochs 30                 # digits 0 to 4 against 5 to 9: no download
"""

import argparse
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

import spikeslab as ss
from spikeslab.errors import check_count
from spikeslab.metrics import accuracy, detection, entropy, mutual_information
from spikeslab.paper.demo import load_upscaled_digits
from spikeslab.paper.images import CNN, load_fashion, load_mnist
from spikeslab.report import plots
from spikeslab.report.tables import Column, Table
from spikeslab.training import Collect, TensorBatches, Training


def load(name: str, data_dir: str | None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, tuple[str, str]]:
    """Training images and labels, test images and labels, foreign images, and what the last two are."""
    if name == "digits":
        data = load_upscaled_digits()
        train, test = data.y_train < 5, data.y_test < 5
        names = ("digits 0 to 4", "digits 5 to 9")
        parts = (data.x_train[train], data.y_train[train], data.x_test[test], data.y_test[test], data.x_test[~test])
    else:
        mnist, fashion = load_mnist(data_dir), load_fashion(data_dir)
        own, foreign = (mnist, fashion) if name == "mnist" else (fashion, mnist)
        names = ("MNIST", "Fashion-MNIST") if name == "mnist" else ("Fashion-MNIST", "MNIST")
        parts = (own.x_train, own.y_train, own.x_test, own.y_test, foreign.x_test)
    x, y, x_test, y_test, x_foreign = parts
    return x / 255, y, x_test / 255, y_test, x_foreign / 255, names


def sample(x: Tensor, y: Tensor, epochs: int, seed: int) -> ss.Posterior:
    """Ten samples of the second half of a run."""
    torch.manual_seed(seed)
    model = CNN().to(memory_format=torch.channels_last)
    prior = ss.SpikeSlab(ss.select_weights(model, "fc1.weight"), v0=0.5, v1=10.0)
    sampler = ss.SGHMC(
        model.parameters(), lr=0.05, num_data=len(x), temperature=0.001, weight_decay=5e-4, prior=prior, seed=seed
    )
    batches = TensorBatches(x, y, batch_size=100, seed=seed)
    steps = epochs * len(batches)
    thin = max(1, steps // 20)
    posterior = ss.Posterior(model, burn_in=max(0, steps - 10 * thin), thin=thin)
    Training(model, sampler, batches, callbacks=[Collect(posterior)]).run(epochs=epochs)
    return posterior


def main() -> None:
    """Train, score and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=("mnist", "fashion", "digits"), default="mnist", help="what to train on")
    parser.add_argument("--data-dir", help="folder of data sets; by default SPIKESLAB_DATA, or else a download")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--limit", type=int, help="training images and images of each kind scored; by default all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/uncertainty"), help="folder for the figures")
    options = parser.parse_args()
    try:
        check_count("--epochs", options.epochs)
        if options.limit is not None:
            check_count("--limit", options.limit)
        x, y, x_test, y_test, x_foreign, names = load(options.data, options.data_dir)
    except ValueError as error:
        parser.error(str(error))

    posterior = sample(x[: options.limit], y[: options.limit], options.epochs, options.seed)
    # What each sample predicts: (samples, images, classes).
    own, foreign = (
        torch.stack(list(posterior.outputs(images[: options.limit], batch_size=1000))) for images in (x_test, x_foreign)
    )
    scores = {
        "entropy of one sample": (entropy(own[-1]), entropy(foreign[-1])),
        "entropy of the average": (entropy(own.mean(0)), entropy(foreign.mean(0))),
        "mutual information": (mutual_information(own), mutual_information(foreign)),
    }
    columns = [Column("score", "Score"), *(Column(key, key.upper(), ".3f") for key in ("auroc", "aupr", "fpr95"))]
    rows = [{"score": name, **asdict(detection(*pair))} for name, pair in scores.items()]
    print(f"Accuracy on {names[0]}: {accuracy(own.mean(0), y_test[: options.limit]):.4f}\n")
    print(Table(f"{names[1]} told from {names[0]}, {len(posterior)} samples", columns, rows).markdown())
    options.out.mkdir(parents=True, exist_ok=True)
    shown = {name: scores[name] for name in ("entropy of the average", "mutual information")}
    print(plots.save(plots.uncertainty_figure(shown, *names), options.out / "uncertainty.png"))
    print(plots.save(plots.detection_figure(scores), options.out / "detection.png"))


if __name__ == "__main__":
    main()
