"""Small ResNet on synthetic 16x16 images: SGD + Nesterov, warm-up + cosine, label smoothing."""
import math

import numpy as np
import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn, ops
from mindspore.dataset import vision

NUM_CLASSES = 5
NUM_TRAIN = 88
NUM_VAL = 40
BATCH_SIZE = 16
EPOCHS = 2
BASE_LR = 0.1
WARMUP_STEPS = 3
WARMUP_FACTOR = 0.1
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-3
LABEL_SMOOTHING = 0.1
MEAN = [0.485, 0.456, 0.406]
STD = [0.229, 0.224, 0.225]


def make_data(seed=2024):
    """uint8 images (N, H, W, C): one coarse colour pattern per class plus noise."""
    rng = np.random.RandomState(seed)
    patterns = rng.randint(40, 215, size=(NUM_CLASSES, 4, 4, 3))
    patterns = patterns.repeat(4, axis=1).repeat(4, axis=2)
    n = NUM_TRAIN + NUM_VAL
    labels = rng.randint(0, NUM_CLASSES, size=n)
    noise = rng.normal(0.0, 60.0, size=(n, 16, 16, 3))
    images = np.clip(patterns[labels] + noise, 0, 255).astype(np.uint8)
    labels = labels.astype(np.int32)
    return (images[:NUM_TRAIN], labels[:NUM_TRAIN]), (images[NUM_TRAIN:], labels[NUM_TRAIN:])


class ImageSource:
    def __init__(self, images, labels):
        self.images = images
        self.labels = labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i], self.labels[i]


def create_dataset(images, labels):
    dataset = ds.GeneratorDataset(ImageSource(images, labels), ["image", "label"], shuffle=False,
                                  num_parallel_workers=1)
    transforms = [
        vision.Rescale(1.0 / 255.0, 0.0),
        vision.Normalize(MEAN, STD, is_hwc=True),
        vision.HWC2CHW(),
    ]
    dataset = dataset.map(transforms, input_columns="image", num_parallel_workers=1)
    return dataset.batch(BATCH_SIZE, drop_remainder=False)


def conv3x3(in_ch, out_ch, stride=1):
    return nn.Conv2d(in_ch, out_ch, 3, stride=stride, pad_mode="pad", padding=1, has_bias=False)


def batch_norm(channels):
    return nn.BatchNorm2d(channels, eps=1e-5, momentum=0.9)


class BasicBlock(nn.Cell):
    def __init__(self, in_ch, out_ch, stride=1):
        super().__init__()
        self.conv1 = conv3x3(in_ch, out_ch, stride)
        self.bn1 = batch_norm(out_ch)
        self.conv2 = conv3x3(out_ch, out_ch)
        self.bn2 = batch_norm(out_ch)
        self.relu = nn.ReLU()
        self.downsample = None
        if stride != 1 or in_ch != out_ch:
            self.downsample = nn.SequentialCell([
                nn.Conv2d(in_ch, out_ch, 1, stride=stride, pad_mode="valid", has_bias=False),
                batch_norm(out_ch),
            ])

    def construct(self, x):
        identity = x
        if self.downsample is not None:
            identity = self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + identity)


class SmallResNet(nn.Cell):
    def __init__(self, num_classes=NUM_CLASSES):
        super().__init__()
        self.conv1 = conv3x3(3, 8)
        self.bn1 = batch_norm(8)
        self.relu = nn.ReLU()
        self.layer1 = nn.SequentialCell([BasicBlock(8, 8)])
        self.layer2 = nn.SequentialCell([BasicBlock(8, 16, stride=2)])
        self.layer3 = nn.SequentialCell([BasicBlock(16, 32, stride=2)])
        self.fc = nn.Dense(32, num_classes)

    def construct(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        x = ops.mean(x, (2, 3))
        return self.fc(x)


class CrossEntropySmooth(nn.Cell):
    """Cross entropy on smoothed one-hot labels (mean over the batch)."""

    def __init__(self, num_classes, smooth_factor=0.0):
        super().__init__()
        self.num_classes = num_classes
        self.on_value = ms.Tensor(1.0 - smooth_factor + smooth_factor / num_classes, ms.float32)
        self.off_value = ms.Tensor(smooth_factor / num_classes, ms.float32)
        self.ce = nn.SoftmaxCrossEntropyWithLogits(sparse=False, reduction="mean")

    def construct(self, logits, label):
        one_hot = ops.one_hot(label, self.num_classes, self.on_value, self.off_value)
        return self.ce(logits, one_hot)


def warmup_cosine_lr(total_steps):
    """One learning rate per optimizer step."""
    warmup = [BASE_LR * (WARMUP_FACTOR + (1.0 - WARMUP_FACTOR) * i / WARMUP_STEPS)
              for i in range(WARMUP_STEPS)]
    decay_steps = total_steps - WARMUP_STEPS
    cosine = [0.5 * BASE_LR * (1.0 + math.cos(math.pi * i / decay_steps)) for i in range(decay_steps)]
    return warmup + cosine


def param_groups(net):
    decay, no_decay = [], []
    for param in net.trainable_params():
        if param.ndim <= 1:
            no_decay.append(param)
        else:
            decay.append(param)
    return [
        {"params": decay, "weight_decay": WEIGHT_DECAY},
        {"params": no_decay, "weight_decay": 0.0},
    ]


def evaluate(net, dataset):
    net.set_train(False)
    correct, total, loss_sum = 0, 0, 0.0
    for x, y in dataset.create_tuple_iterator():
        logits = net(x)
        loss_sum += float(ops.cross_entropy(logits, y, reduction="sum").asnumpy())
        correct += int((logits.asnumpy().argmax(1) == y.asnumpy()).sum())
        total += len(y)
    return loss_sum / total, correct / total


def main():
    ms.set_seed(0)
    (train_x, train_y), (val_x, val_y) = make_data()
    train_set = create_dataset(train_x, train_y)
    val_set = create_dataset(val_x, val_y)
    steps_per_epoch = math.ceil(NUM_TRAIN / BATCH_SIZE)

    net = SmallResNet()
    loss_fn = CrossEntropySmooth(NUM_CLASSES, smooth_factor=LABEL_SMOOTHING)
    lr = warmup_cosine_lr(EPOCHS * steps_per_epoch)
    optimizer = nn.SGD(param_groups(net), learning_rate=lr, momentum=MOMENTUM,
                       weight_decay=WEIGHT_DECAY, nesterov=True)

    def forward_fn(x, y):
        logits = net(x)
        return loss_fn(logits, y), logits

    grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters, has_aux=True)

    @ms.jit
    def train_step(x, y):
        (loss, logits), grads = grad_fn(x, y)
        optimizer(grads)
        return loss, logits

    losses = []
    for epoch in range(EPOCHS):
        net.set_train(True)
        for x, y in train_set.create_tuple_iterator(num_epochs=1):
            loss, logits = train_step(x, y)
            acc = float((logits.asnumpy().argmax(1) == y.asnumpy()).mean())
            losses.append(float(loss.asnumpy()))
            print(f"step {len(losses) - 1:2d}  lr {lr[len(losses) - 1]:.5f}  "
                  f"loss {losses[-1]:.6f}  acc {acc:.3f}")
        val_loss, val_acc = evaluate(net, val_set)
        print(f"epoch {epoch}: val loss {val_loss:.4f}  val acc {val_acc:.3f}")
    return losses


if __name__ == "__main__":
    main()
