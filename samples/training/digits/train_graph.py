"""The function-style loop after it was moved from PyNative to graph: its step is compiled with `@ms.jit`."""

import tempfile
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.dataset import GeneratorDataset

BATCH, EPOCHS = 16, 5
SEGMENTS = ["0112345", "12", "01346", "01236", "1256", "02356", "023456", "012", "0123456", "012356"]


class Digits:
    """Seven-segment digits, shifted and noisy, 1x14x14."""

    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, 10, count).astype(np.int32)
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


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.features = nn.SequentialCell(
            nn.Conv2d(1, 8, 3, pad_mode="pad", padding=1, has_bias=True),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2, 2),
            nn.Conv2d(8, 16, 3, pad_mode="pad", padding=1, has_bias=True),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2, 2),
        )
        self.classifier = nn.SequentialCell(nn.Dense(16 * 3 * 3, 32), nn.ReLU(), nn.Dense(32, 10))

    def construct(self, x):
        return self.classifier(ops.flatten(self.features(x)))


def make_dataset(count, seed, batch):
    dataset = GeneratorDataset(Digits(count, seed), ["image", "label"], shuffle=False)
    return dataset.batch(batch, drop_remainder=False)


def train(net, dataset, loss_fn, optimizer):
    def forward_fn(images, labels):
        logits = net(images)
        return loss_fn(logits, labels), logits

    grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters, has_aux=True)

    @ms.jit
    def train_step(images, labels):
        (loss, _), grads = grad_fn(images, labels)
        optimizer(grads)
        return loss

    net.set_train()
    for batch, (images, labels) in enumerate(dataset.create_tuple_iterator(num_epochs=1)):
        loss = train_step(images, labels)
        print(f"  batch {batch}  loss {float(loss.asnumpy()):.5f}")


def test(net, dataset, count):
    net.set_train(False)
    right = 0
    for images, labels in dataset.create_tuple_iterator(num_epochs=1):
        right += int((net(images).argmax(1) == labels).sum().asnumpy())
    print(f"  accuracy {right / count:.3f}")


def main():
    ms.set_seed(4)
    train_data, test_data = make_dataset(88, 1, BATCH), make_dataset(40, 2, 20)
    net = Net()
    optimizer = nn.Adam(net.trainable_params(), learning_rate=1e-2)
    for epoch in range(EPOCHS):
        print(f"epoch {epoch}")
        train(net, train_data, nn.CrossEntropyLoss(), optimizer)
        test(net, test_data, 40)

    with tempfile.TemporaryDirectory() as folder:
        ms.save_checkpoint(net, str(Path(folder) / "digits.ckpt"))
        loaded = Net()
        ms.load_param_into_net(loaded, ms.load_checkpoint(str(Path(folder) / "digits.ckpt")))
    print("loaded")
    test(loaded, test_data, 40)


if __name__ == "__main__":
    main()
