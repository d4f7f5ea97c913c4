"""Gradients of four micro-batches are added up, clipped to a norm in all, and used in one update."""

import numpy as np
import torch
from torch import nn

MICRO_BATCH, ACCUMULATE, UPDATES = 8, 4, 8
CLIP_NORM = 0.5


def make_batches():
    rng = np.random.default_rng(11)
    words = rng.integers(0, 40, (MICRO_BATCH * ACCUMULATE * UPDATES, 12))
    labels = (words < 20).sum(1) // 3
    for start in range(0, len(words), MICRO_BATCH):
        yield words[start : start + MICRO_BATCH], labels[start : start + MICRO_BATCH]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.norm = nn.LayerNorm(16)
        self.fc1 = nn.Linear(16, 32)
        self.fc2 = nn.Linear(32, 5)

    def forward(self, words):
        x = self.norm(self.embedding(words)).mean(1)
        return self.fc2(torch.relu(self.fc1(x)))


def main():
    torch.manual_seed(3)
    net = Net()
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)

    net.train()
    optimizer.zero_grad()
    for number, (words, labels) in enumerate(make_batches(), 1):
        loss = loss_fn(net(torch.from_numpy(words)), torch.from_numpy(labels))
        (loss / ACCUMULATE).backward()
        if number % ACCUMULATE == 0:
            nn.utils.clip_grad_norm_(net.parameters(), CLIP_NORM)
            optimizer.step()
            optimizer.zero_grad()
            print(f"update {number // ACCUMULATE}  loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
