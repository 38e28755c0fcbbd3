"""Train ResNet-50 on random images.

An ordinary training script.  ``triosim trace record examples/train_resnet50.py`` records one iteration of it;
``python examples/train_resnet50.py`` just trains.
"""

import argparse

import torch
import torch.nn as nn
from models import ResNet
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--iterations", type=int, default=10)
    options = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = ResNet().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

    count = options.batch_size * options.iterations
    images = TensorDataset(torch.randn(count, 3, options.image, options.image), torch.randint(1000, (count,)))
    model.train()
    for iteration, (image, label) in enumerate(DataLoader(images, options.batch_size, shuffle=True)):
        loss = criterion(model(image.to(device)), label.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"iteration {iteration}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
