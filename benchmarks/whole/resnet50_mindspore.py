"""ResNet-50 in MindSpore. `build_wrong` forgets one eps and one shortcut."""

from __future__ import annotations

from mindspore import nn

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))


def conv(inside: int, outside: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inside, outside, kernel, stride, pad_mode="pad", padding=kernel // 2)


class Bottleneck(nn.Cell):
    def __init__(self, inside: int, width: int, stride: int):
        super().__init__()
        self.conv1, self.bn1 = conv(inside, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = conv(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = conv(width, 4 * width, 1), nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU()
        self.downsample = None
        if stride != 1 or inside != 4 * width:
            self.downsample = nn.SequentialCell(conv(inside, 4 * width, 1, stride), nn.BatchNorm2d(4 * width))

    def construct(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        return self.relu(self.bn3(self.conv3(x)) + shortcut)


class Forgetful(Bottleneck):
    def construct(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        return self.relu(self.bn3(self.conv3(x)))


class ResNet(nn.Cell):
    def __init__(self, wrong: bool = False):
        super().__init__()
        self.conv1, self.bn1, self.relu = conv(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, pad_mode="pad", padding=1)
        inside = 64
        for number, (width, count, stride) in enumerate(STAGES, 1):
            blocks = []
            for index in range(count):
                kind = Forgetful if wrong and (number, index) == (3, 2) else Bottleneck
                blocks.append(kind(inside, width, stride if index == 0 else 1))
                inside = 4 * width
            setattr(self, f"layer{number}", nn.SequentialCell(*blocks))
        self.fc = nn.Dense(inside, 1000)
        if wrong:
            self.layer1[1].bn2 = nn.BatchNorm2d(64, eps=1e-2)

    def construct(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


def build():
    return ResNet()


def build_wrong():
    return ResNet(wrong=True)
