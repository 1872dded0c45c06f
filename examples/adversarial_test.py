"""How far do attacks get? FGSM and PGD against a network trained with SGD, one posterior sample, and their average.

The last row attacks the average through one of its samples, as is often done: such an attack does not aim at what is
defended, and can make it look more robust than it is.

python examples/adversarial_test.py --data-dir data                           # MNIST, 10 epochs
python examples/adversarial_test.py --data-dir data --limit 5000 --epochs 2   # a quick look
python examples/adversarial_test.py --data digits --epochs 30                 # scikit-learn's digits: no download
"""

import argparse
from functools import partial
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

import spikeslab as ss
from spikeslab.attacks import fgsm, of_model, of_posterior, pgd
from spikeslab.errors import check_count
from spikeslab.paper.demo import load_upscaled_digits
from spikeslab.paper.images import CNN, load_fashion, load_mnist
from spikeslab.report import plots
from spikeslab.report.figures import COLOURS, WIDTH, style
from spikeslab.report.tables import Column, Table
from spikeslab.training import Collect, TensorBatches, Training

ZETAS = (0.0, 0.05, 0.1, 0.2, 0.3)  # largest changes of a pixel in [0, 1]


def train(x: Tensor, y: Tensor, epochs: int, seed: int, temperature: float) -> ss.Posterior:
    """Ten samples of the second half of a run; at temperature 0 it is SGD with momentum, without a prior."""
    torch.manual_seed(seed)
    model = CNN().to(memory_format=torch.channels_last)
    prior = ss.SpikeSlab(ss.select_weights(model, "fc1.weight"), v0=0.5, v1=10.0) if temperature else None
    sampler = ss.SGHMC(
        model.parameters(), lr=0.05, num_data=len(x), temperature=temperature, weight_decay=5e-4, prior=prior, seed=seed
    )
    batches = TensorBatches(x, y, batch_size=100, seed=seed)
    steps = epochs * len(batches)
    thin = max(1, steps // 20)
    posterior = ss.Posterior(model, burn_in=max(0, steps - 10 * thin), thin=thin)
    Training(model, sampler, batches, callbacks=[Collect(posterior)]).run(epochs=epochs)
    return posterior


def draw(accuracies: dict[str, dict[str, list[float]]]) -> Figure:
    """Accuracy against the size of the attack, a panel for each kind."""
    with style():
        figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
        panels = figure.subplots(1, len(accuracies), sharey=True)
        for axes, (attack, curves) in zip(panels, accuracies.items(), strict=True):
            for (name, values), colour in zip(curves.items(), COLOURS, strict=False):
                axes.plot(ZETAS, values, "o-", color=colour, markersize=4, label=name)
            axes.set_title(attack)
            axes.set_xlabel("largest change of a pixel")
        panels[0].set(ylabel="accuracy", ylim=(-0.02, 1.02))
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def main() -> None:
    """Train, attack and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=("mnist", "fashion", "digits"), default="mnist")
    parser.add_argument("--data-dir", help="folder of data sets; by default SPIKESLAB_DATA, or else a download")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--limit", type=int, help="training images; by default all")
    parser.add_argument("--attacked", type=int, default=100, help="test images that are attacked")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/adversarial"), help="folder for the figure")
    options = parser.parse_args()
    try:
        check_count("--epochs", options.epochs)
        if options.limit is not None:
            check_count("--limit", options.limit)
        check_count("--attacked", options.attacked)
        if options.data == "digits":
            data = load_upscaled_digits()
        else:
            data = {"mnist": load_mnist, "fashion": load_fashion}[options.data](options.data_dir)
    except ValueError as error:
        parser.error(str(error))

    x, y = data.x_train[: options.limit] / 255, data.y_train[: options.limit]
    x_test, y_test = data.x_test[: options.attacked] / 255, data.y_test[: options.attacked]

    point = of_model(train(x, y, options.epochs, options.seed, temperature=0.0).model)
    posterior = train(x, y, options.epochs, options.seed, temperature=0.001)
    one, average = of_model(posterior.sample(-1)), of_posterior(posterior)
    # What is defended, and what the attack sees.
    pairs = {
        "point estimate": (point, point),
        "one sample": (one, one),
        f"average of {len(posterior)}": (average, average),
        f"average of {len(posterior)}, attacked through one": (average, one),
    }
    attacks = {"FGSM": fgsm, "PGD, 10 steps": partial(pgd, steps=10)}
    accuracies: dict[str, dict[str, list[float]]] = {attack: {} for attack in attacks}
    for attack, change in attacks.items():
        for name, (defended, seen) in pairs.items():
            predicted = [defended(change(seen, x_test, zeta, y_test)).argmax(1) for zeta in ZETAS]
            accuracies[attack][name] = [float((labels == y_test).float().mean()) for labels in predicted]

    columns = [Column("attack", "Attack"), Column("model", "Model"), *(Column(str(z), f"{z:g}", ".3f") for z in ZETAS)]
    rows = [
        {"attack": attack, "model": name, **dict(zip(map(str, ZETAS), values, strict=True))}
        for attack, curves in accuracies.items()
        for name, values in curves.items()
    ]
    print(Table(f"Accuracy on {len(y_test)} images by the largest change of a pixel", columns, rows).markdown())
    options.out.mkdir(parents=True, exist_ok=True)
    print(plots.save(draw(accuracies), options.out / "adversarial.png"))


if __name__ == "__main__":
    main()
