"""Classify small synthetic images: convolution, batch normalisation, SGD with momentum and weight decay."""

import numpy as np
import torch
from torch import nn

BATCH, STEPS = 16, 12


def make_batches():
    rng = np.random.default_rng(7)
    labels = rng.integers(0, 4, BATCH * STEPS)
    images = rng.normal(0, 1.0, (len(labels), 1, 12, 12)).astype(np.float32)
    for image, label in zip(images, labels):  # a bright corner tells the class
        row, column = divmod(label, 2)
        image[0, 6 * row : 6 * row + 6, 6 * column : 6 * column + 6] += 1.0
    for start in range(0, len(labels), BATCH):
        yield images[start : start + BATCH], labels[start : start + BATCH]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU()
        self.fc = nn.Linear(16 * 6 * 6, 4)

    def forward(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        return self.fc(x.flatten(1))


def main():
    torch.manual_seed(1)
    net = Net()
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-3)

    net.train()
    for step, (images, labels) in enumerate(make_batches()):
        loss = loss_fn(net(torch.from_numpy(images)), torch.from_numpy(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step:2d}  loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
