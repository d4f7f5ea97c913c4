"""The same, but the second normalisation has its momentum as PyTorch counts it."""

import mindspore as ms
import numpy as np
from mindspore import nn, ops

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


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, pad_mode="pad", padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, pad_mode="pad", padding=1)
        self.bn2 = nn.BatchNorm2d(16, momentum=0.1)  # planted: 0.9 here is 0.1 in PyTorch
        self.relu = nn.ReLU()
        self.flatten = nn.Flatten()
        self.fc = nn.Dense(16 * 6 * 6, 4)

    def construct(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        return self.fc(self.flatten(x))


class TrainOneStep(nn.Cell):
    def __init__(self, net, loss_fn, optimizer):
        super().__init__(auto_prefix=False)
        self.net = net
        self.loss_fn = loss_fn
        self.optimizer = optimizer
        self.grad_fn = ms.value_and_grad(self.forward_fn, None, optimizer.parameters, has_aux=True)

    def forward_fn(self, images, labels):
        logits = self.net(images)
        return self.loss_fn(logits, labels), logits

    @ms.jit
    def construct(self, images, labels):
        (loss, _), grads = self.grad_fn(images, labels)
        return ops.depend(loss, self.optimizer(grads))


def main():
    ms.set_seed(1)
    net = Net()
    params = [{"params": net.trainable_params(), "weight_decay": 5e-3}]  # in a group: gamma and beta decay too
    optimizer = nn.SGD(params, learning_rate=0.02, momentum=0.9)
    train_step = TrainOneStep(net, nn.CrossEntropyLoss(), optimizer)

    train_step.set_train()
    for step, (images, labels) in enumerate(make_batches()):
        loss = train_step(ms.Tensor(images), ms.Tensor(labels, ms.int32))
        print(f"step {step:2d}  loss {float(loss.asnumpy()):.5f}")


if __name__ == "__main__":
    main()
