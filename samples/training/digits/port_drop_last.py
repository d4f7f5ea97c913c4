"""The object-style loop, but the last batch of an epoch, which is not full, is left out."""

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
    return dataset.batch(batch, drop_remainder=True)  # planted: drop_remainder=False


class Trainer:
    def __init__(self, net, loss_fn, optimizer):
        self.net = net
        self.step = nn.TrainOneStepCell(nn.WithLossCell(net, loss_fn), optimizer)

    def fit(self, dataset, test_data, epochs):
        for epoch in range(epochs):
            print(f"epoch {epoch}")
            self.step.set_train()
            for batch, (images, labels) in enumerate(dataset.create_tuple_iterator(num_epochs=1)):
                loss = self.step(images, labels)
                print(f"  batch {batch}  loss {float(loss.asnumpy()):.5f}")
            self.evaluate(test_data)

    def evaluate(self, dataset):
        self.net.set_train(False)
        right, count = 0, 0
        for batch in dataset.create_dict_iterator(num_epochs=1):
            right += int((self.net(batch["image"]).argmax(1) == batch["label"]).sum().asnumpy())
            count += len(batch["label"])
        print(f"  accuracy {right / count:.3f}")

    def save(self, path):
        ms.save_checkpoint(self.net, str(path))

    def load(self, path):
        ms.load_param_into_net(self.net, ms.load_checkpoint(str(path)))


def make_trainer():
    net = Net()
    return Trainer(net, nn.CrossEntropyLoss(), nn.Adam(net.trainable_params(), learning_rate=1e-2))


def main():
    ms.set_seed(4)
    train_data, test_data = make_dataset(88, 1, BATCH), make_dataset(40, 2, 20)
    trainer = make_trainer()
    trainer.fit(train_data, test_data, EPOCHS)

    with tempfile.TemporaryDirectory() as folder:
        trainer.save(Path(folder) / "digits.ckpt")
        loaded = make_trainer()
        loaded.load(Path(folder) / "digits.ckpt")
    print("loaded")
    loaded.evaluate(test_data)


if __name__ == "__main__":
    main()
