"""Inception v3 without its auxiliary classifier in MindSpore: the right port. compare_bounds.py plants mistakes."""

from __future__ import annotations

from mindspore import nn, ops


class Conv(nn.Cell):
    """Convolution, normalisation, ReLU."""

    def __init__(self, inputs, outputs, size, stride=1, padding=0):
        super().__init__()
        high, wide = padding if isinstance(padding, tuple) else (padding, padding)
        around = (high, high, wide, wide)
        self.conv = nn.Conv2d(inputs, outputs, size, stride, pad_mode="pad", padding=around, has_bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)

    def construct(self, x):
        return ops.relu(self.bn(self.conv(x)))


class MixedA(nn.Cell):
    def __init__(self, inputs, pooled):
        super().__init__()
        self.branch1 = Conv(inputs, 64, 1)
        self.branch5_1, self.branch5_2 = Conv(inputs, 48, 1), Conv(48, 64, 5, padding=2)
        self.branch3_1, self.branch3_2 = Conv(inputs, 64, 1), Conv(64, 96, 3, padding=1)
        self.branch3_3 = Conv(96, 96, 3, padding=1)
        self.branch_pool = Conv(inputs, pooled, 1)

    def construct(self, x):
        one = self.branch1(x)
        five = self.branch5_2(self.branch5_1(x))
        three = self.branch3_3(self.branch3_2(self.branch3_1(x)))
        pooled = self.branch_pool(ops.avg_pool2d(x, 3, stride=1, padding=1))
        return ops.cat([one, five, three, pooled], 1)


class MixedB(nn.Cell):
    def __init__(self, inputs):
        super().__init__()
        self.branch3 = Conv(inputs, 384, 3, 2)
        self.double_1, self.double_2 = Conv(inputs, 64, 1), Conv(64, 96, 3, padding=1)
        self.double_3 = Conv(96, 96, 3, 2)

    def construct(self, x):
        double = self.double_3(self.double_2(self.double_1(x)))
        return ops.cat([self.branch3(x), double, ops.max_pool2d(x, 3, stride=2)], 1)


class MixedC(nn.Cell):
    def __init__(self, inputs, inner):
        super().__init__()
        self.branch1 = Conv(inputs, 192, 1)
        self.branch7_1 = Conv(inputs, inner, 1)
        self.branch7_2 = Conv(inner, inner, (1, 7), padding=(0, 3))
        self.branch7_3 = Conv(inner, 192, (7, 1), padding=(3, 0))
        self.double_1 = Conv(inputs, inner, 1)
        self.double_2 = Conv(inner, inner, (7, 1), padding=(3, 0))
        self.double_3 = Conv(inner, inner, (1, 7), padding=(0, 3))
        self.double_4 = Conv(inner, inner, (7, 1), padding=(3, 0))
        self.double_5 = Conv(inner, 192, (1, 7), padding=(0, 3))
        self.branch_pool = Conv(inputs, 192, 1)

    def construct(self, x):
        seven = self.branch7_3(self.branch7_2(self.branch7_1(x)))
        double = self.double_5(self.double_4(self.double_3(self.double_2(self.double_1(x)))))
        pooled = self.branch_pool(ops.avg_pool2d(x, 3, stride=1, padding=1))
        return ops.cat([self.branch1(x), seven, double, pooled], 1)


class MixedD(nn.Cell):
    def __init__(self, inputs):
        super().__init__()
        self.branch3_1, self.branch3_2 = Conv(inputs, 192, 1), Conv(192, 320, 3, 2)
        self.branch7_1 = Conv(inputs, 192, 1)
        self.branch7_2 = Conv(192, 192, (1, 7), padding=(0, 3))
        self.branch7_3 = Conv(192, 192, (7, 1), padding=(3, 0))
        self.branch7_4 = Conv(192, 192, 3, 2)

    def construct(self, x):
        seven = self.branch7_4(self.branch7_3(self.branch7_2(self.branch7_1(x))))
        return ops.cat([self.branch3_2(self.branch3_1(x)), seven, ops.max_pool2d(x, 3, stride=2)], 1)


class MixedE(nn.Cell):
    def __init__(self, inputs):
        super().__init__()
        self.branch1 = Conv(inputs, 320, 1)
        self.branch3_1 = Conv(inputs, 384, 1)
        self.branch3_a, self.branch3_b = Conv(384, 384, (1, 3), padding=(0, 1)), Conv(384, 384, (3, 1), padding=(1, 0))
        self.double_1, self.double_2 = Conv(inputs, 448, 1), Conv(448, 384, 3, padding=1)
        self.double_a, self.double_b = Conv(384, 384, (1, 3), padding=(0, 1)), Conv(384, 384, (3, 1), padding=(1, 0))
        self.branch_pool = Conv(inputs, 192, 1)

    def construct(self, x):
        one, three, double = self.branch1(x), self.branch3_1(x), self.double_2(self.double_1(x))
        three = ops.cat([self.branch3_a(three), self.branch3_b(three)], 1)
        double = ops.cat([self.double_a(double), self.double_b(double)], 1)
        pooled = self.branch_pool(ops.avg_pool2d(x, 3, stride=1, padding=1))
        return ops.cat([one, three, double, pooled], 1)


class Inception3(nn.Cell):
    def __init__(self, classes=1000):
        super().__init__()
        self.stem1, self.stem2, self.stem3 = Conv(3, 32, 3, 2), Conv(32, 32, 3), Conv(32, 64, 3, padding=1)
        self.stem4, self.stem5 = Conv(64, 80, 1), Conv(80, 192, 3)
        self.maxpool = nn.MaxPool2d(3, 2)
        self.mixed5 = nn.SequentialCell(MixedA(192, 32), MixedA(256, 64), MixedA(288, 64))
        self.mixed6 = nn.SequentialCell(
            MixedB(288), MixedC(768, 128), MixedC(768, 160), MixedC(768, 160), MixedC(768, 192)
        )
        self.mixed7 = nn.SequentialCell(MixedD(768), MixedE(1280), MixedE(2048))
        self.fc = nn.Dense(2048, classes)

    def construct(self, x):
        x = self.maxpool(self.stem3(self.stem2(self.stem1(x))))
        x = self.maxpool(self.stem5(self.stem4(x)))
        x = self.mixed7(self.mixed6(self.mixed5(x)))
        return self.fc(x.mean((2, 3)))


def build():
    return Inception3()
