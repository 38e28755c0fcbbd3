"""Record the traces that lie beside this script: a training step of a small GPT and one of ResNet-50 on this CPU.

A step given as a function is recorded with ``triosim.record``: it is measured several times, and traced again with
another batch to learn which dimensions follow it.  (``triosim trace record train_gpt.py`` records a whole script.)
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from models import GPT, ResNet, initialise

import triosim

HERE = Path(__file__).resolve().parent


def training_step(model, optimizer):
    """Forward, loss, backward, update."""

    def step(inputs, labels):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs).flatten(0, -2), labels.flatten())
        loss.backward()
        optimizer.step()

    return step


def main():
    torch.manual_seed(0)

    gpt = GPT(vocabulary=8192, context=256, layers=4, width=256, heads=4)
    initialise(gpt, layers=4)
    step = training_step(gpt, torch.optim.AdamW(gpt.parameters(), lr=3e-4, foreach=True))
    tokens = torch.randint(8192, (8, 257))
    trace = triosim.record(step, tokens[:, :-1], tokens[:, 1:], workload="gpt-small", repeats=9)
    triosim.save(trace, HERE / "gpt-small-cpu.triosim")

    resnet = ResNet()
    step = training_step(resnet, torch.optim.SGD(resnet.parameters(), lr=0.1, momentum=0.9, foreach=True))
    images, labels = torch.randn(8, 3, 224, 224), torch.randint(1000, (8,))
    trace = triosim.record(step, images, labels, workload="resnet50", repeats=9)
    triosim.save(trace, HERE / "resnet50-cpu.triosim")


if __name__ == "__main__":
    main()
