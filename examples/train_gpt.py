"""Train a small GPT on random tokens.

An ordinary training script.  ``triosim trace record examples/train_gpt.py`` records one iteration of it;
``python examples/train_gpt.py`` just trains.
"""

import argparse

import torch
import torch.nn.functional as F
from models import GPT, initialise


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--iterations", type=int, default=10)
    options = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = GPT(options.vocabulary, options.sequence, options.layers, options.width, options.heads)
    initialise(model, options.layers)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)

    for iteration in range(options.iterations):
        tokens = torch.randint(options.vocabulary, (options.batch_size, options.sequence + 1), device=device)
        scores = model(tokens[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"iteration {iteration}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
