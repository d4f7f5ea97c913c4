"""The port of the demo: the same net in MindSpore, with one mistake in it."""

import mindspore as ms
from mindspore import nn


class Block(nn.Cell):
    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, pad_mode="pad", padding=1, has_bias=False)
        self.bn1 = nn.BatchNorm2d(channels, eps=eps)
        self.conv2 = nn.Conv2d(channels, channels, 3, pad_mode="pad", padding=1, has_bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(x + y)


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.SequentialCell(
            nn.Conv2d(3, 16, 3, pad_mode="pad", padding=1, has_bias=True), nn.BatchNorm2d(16), nn.ReLU()
        )
        self.blocks = nn.SequentialCell(Block(16), Block(16, eps=1e-2), Block(16))  # the mistake: PyTorch has 1e-5
        self.head = nn.Dense(16, 10)

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        x = self.blocks(self.stem(x))
        return self.head(x.mean((2, 3)))


def build() -> nn.Cell:
    return Net()
