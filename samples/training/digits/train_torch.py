"""An MNIST-style loop on drawn digits: a Dataset and a DataLoader, two epochs, an evaluation, a checkpoint."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH, EPOCHS = 16, 5
SEGMENTS = ["0112345", "12", "01346", "01236", "1256", "02356", "023456", "012", "0123456", "012356"]


class Digits(Dataset):
    """Seven-segment digits, shifted and noisy, 1x14x14."""

    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, 10, count)
        self.images = np.stack([self.draw(label, rng) for label in self.labels])

    @staticmethod
    def draw(label, rng):
        image = rng.normal(0, 0.3, (14, 14))
        top, left = rng.integers(0, 4), rng.integers(0, 6)
        strokes = {"0": (0, 0, 1, 6), "1": (0, 5, 5, 1), "2": (5, 5, 5, 1), "3": (9, 0, 1, 6)}
        strokes.update({"4": (5, 0, 5, 1), "5": (0, 0, 5, 1), "6": (5, 0, 1, 6)})
        for segment in SEGMENTS[label]:
            y, x, height, width = strokes[segment]
            image[top + y : top + y + height, left + x : left + x + width] += 1.0
        return image[None].astype(np.float32)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Linear(16 * 3 * 3, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x):
        return self.classifier(torch.flatten(self.features(x), 1))


def train(net, loader, loss_fn, optimizer):
    net.train()
    for batch, (images, labels) in enumerate(loader):
        loss = loss_fn(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"  batch {batch}  loss {loss.item():.5f}")


def test(net, loader):
    net.eval()
    with torch.no_grad():
        right = sum((net(images).argmax(1) == labels).sum().item() for images, labels in loader)
    print(f"  accuracy {right / len(loader.dataset):.3f}")


def main():
    torch.manual_seed(4)
    train_loader = DataLoader(Digits(88, seed=1), batch_size=BATCH, shuffle=False)
    test_loader = DataLoader(Digits(40, seed=2), batch_size=20)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for epoch in range(EPOCHS):
        print(f"epoch {epoch}")
        train(net, train_loader, nn.CrossEntropyLoss(), optimizer)
        test(net, test_loader)

    with tempfile.TemporaryDirectory() as folder:
        torch.save(net.state_dict(), Path(folder) / "digits.pth")
        loaded = Net()
        loaded.load_state_dict(torch.load(Path(folder) / "digits.pth"))
    print("loaded")
    test(loaded, test_loader)


if __name__ == "__main__":
    main()
