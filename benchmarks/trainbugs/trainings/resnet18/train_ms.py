"""Train a small ResNet-18 on a small picture set, in MindSpore (port of train_torch.py)."""
import numpy as np
import mindspore as ms
from mindspore import nn, ops
from mindspore.common.initializer import HeNormal
from mindspore.dataset import GeneratorDataset, transforms, vision

NUM_PICTURES = 512
NUM_CLASSES = 10
BATCH_SIZE = 16
EPOCHS = 2
LEARNING_RATE = 0.1
MOMENTUM = 0.9
WEIGHT_DECAY = 1e-4
LABEL_SMOOTHING = 0.1
WIDTHS = (16, 32, 64, 128)


# ---------------------------------------------------------------- data

def make_pictures(num_pictures=NUM_PICTURES, num_classes=NUM_CLASSES, seed=1234):
    """Pictures (N, 32, 32, 3) in uint8 and their classes: coloured stripes whose
    direction, width and colours depend on the class, shifted and with noise."""
    rng = np.random.RandomState(seed)
    angle = np.pi * np.arange(num_classes) / num_classes
    freq = 0.35 + 0.08 * (np.arange(num_classes) % 4)
    colour = rng.uniform(-1.0, 1.0, size=(num_classes, 3))
    labels = rng.randint(0, num_classes, size=num_pictures)
    phase = rng.uniform(0.0, 2.0 * np.pi, size=num_pictures)
    y, x = np.meshgrid(np.arange(32), np.arange(32), indexing="ij")
    pictures = np.empty((num_pictures, 32, 32, 3), dtype=np.uint8)
    for i, k in enumerate(labels):
        wave = np.sin(freq[k] * (x * np.cos(angle[k]) + y * np.sin(angle[k])) + phase[i])
        picture = 120.0 + 60.0 * wave[:, :, None] * colour[k] + rng.normal(0.0, 15.0, size=(32, 32, 3))
        pictures[i] = np.clip(picture, 0.0, 255.0).astype(np.uint8)
    return pictures, labels.astype(np.int32)


class PictureSource:
    """Random accessible source for GeneratorDataset."""

    def __init__(self, pictures, labels):
        self.pictures = pictures
        self.labels = labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.pictures[index], self.labels[index]


def create_dataset():
    pictures, labels = make_pictures()
    mean = tuple((pictures / 255.0).mean(axis=(0, 1, 2)).tolist())
    std = tuple((pictures / 255.0).std(axis=(0, 1, 2)).tolist())
    dataset = GeneratorDataset(PictureSource(pictures, labels), column_names=["image", "label"],
                               shuffle=False, num_parallel_workers=1)
    picture_transforms = [
        vision.Rescale(1.0 / 255.0, 0.0),
        vision.Normalize(mean=mean, std=std),
        vision.HWC2CHW(),
    ]
    dataset = dataset.map(picture_transforms, "image", num_parallel_workers=1)
    dataset = dataset.map(transforms.TypeCast(ms.int32), "label", num_parallel_workers=1)
    dataset = dataset.batch(BATCH_SIZE)
    return dataset


# ---------------------------------------------------------------- model

def conv7x7(in_planes, planes, stride=1):
    return nn.Conv2d(in_planes, planes, kernel_size=7, stride=stride, pad_mode="pad", padding=3,
                     has_bias=False, weight_init=HeNormal(mode="fan_out", nonlinearity="relu"))


def conv3x3(in_planes, planes, stride=1):
    return nn.Conv2d(in_planes, planes, kernel_size=3, stride=stride, pad_mode="pad", padding=1,
                     has_bias=False, weight_init=HeNormal(mode="fan_out", nonlinearity="relu"))


def conv1x1(in_planes, planes, stride=1):
    return nn.Conv2d(in_planes, planes, kernel_size=1, stride=stride, pad_mode="pad", padding=0,
                     has_bias=False, weight_init=HeNormal(mode="fan_out", nonlinearity="relu"))


def batch_norm(planes, gamma_init="ones"):
    # momentum 0.9 here is momentum 0.1 in PyTorch
    return nn.BatchNorm2d(planes, eps=1e-5, momentum=0.9, gamma_init=gamma_init)


class BasicBlock(nn.Cell):
    def __init__(self, in_planes, planes, stride=1, downsample=None):
        super().__init__()
        self.conv1 = conv3x3(in_planes, planes, stride)
        self.bn1 = batch_norm(planes)
        self.relu = nn.ReLU()
        self.conv2 = conv3x3(planes, planes)
        # zero-initialise the last BatchNorm of each block, so that it starts as an identity
        self.bn2 = batch_norm(planes, gamma_init="zeros")
        self.downsample = downsample

    def construct(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Cell):
    def __init__(self, layers, widths=WIDTHS, num_classes=NUM_CLASSES):
        super().__init__()
        self.in_planes = widths[0]
        self.conv1 = conv7x7(3, widths[0], stride=2)
        self.bn1 = batch_norm(widths[0])
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, pad_mode="pad", padding=1)
        self.layer1 = self._make_layer(widths[0], layers[0])
        self.layer2 = self._make_layer(widths[1], layers[1], stride=2)
        self.layer3 = self._make_layer(widths[2], layers[2], stride=2)
        self.layer4 = self._make_layer(widths[3], layers[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Dense(widths[3], num_classes)

    def _make_layer(self, planes, blocks, stride=1):
        downsample = None
        if stride != 1 or self.in_planes != planes:
            downsample = nn.SequentialCell(
                conv1x1(self.in_planes, planes, stride),
                batch_norm(planes),
            )
        layers = [BasicBlock(self.in_planes, planes, stride, downsample)]
        self.in_planes = planes
        for _ in range(1, blocks):
            layers.append(BasicBlock(planes, planes))
        return nn.SequentialCell(*layers)

    def construct(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.maxpool(x)
        x = self.layer1(x)
        x = self.layer2(x)
        x = self.layer3(x)
        x = self.layer4(x)
        x = self.avgpool(x)
        x = ops.flatten(x, start_dim=1)
        return self.fc(x)


def resnet18():
    return ResNet([2, 2, 2, 2])


# ---------------------------------------------------------------- training

def param_groups(net):
    """Decay the weights of convolutions and dense layers, not BatchNorm and biases."""
    decay, no_decay = [], []
    for param in net.trainable_params():
        if param.name.endswith((".gamma", ".beta", ".bias")):
            no_decay.append(param)
        else:
            decay.append(param)
    return [
        {"params": decay, "weight_decay": WEIGHT_DECAY},
        {"params": no_decay, "weight_decay": 0.0},
    ]


def main():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_device("CPU")
    ms.set_seed(0)

    train_dataset = create_dataset()
    steps_per_epoch = train_dataset.get_dataset_size()
    total_steps = EPOCHS * steps_per_epoch

    model = resnet18()
    loss_fn = nn.CrossEntropyLoss(label_smoothing=LABEL_SMOOTHING)
    # cosine over the steps: cosine_decay_lr only changes the rate at "epochs", so one step is one epoch here
    learning_rate = nn.cosine_decay_lr(min_lr=0.0, max_lr=LEARNING_RATE, total_step=total_steps,
                                       step_per_epoch=1, decay_epoch=total_steps)
    optimizer = nn.SGD(param_groups(model), learning_rate=learning_rate, momentum=MOMENTUM,
                       weight_decay=WEIGHT_DECAY)

    # 1. Define forward function
    def forward_fn(data, label):
        logits = model(data)
        loss = loss_fn(logits, label)
        return loss, logits

    # 2. Get gradient function
    grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters, has_aux=True)

    # 3. Define function of one-step training
    def train_step(data, label):
        (loss, _), grads = grad_fn(data, label)
        optimizer(grads)
        return loss

    step = 0
    model.set_train()
    for epoch in range(EPOCHS):
        for data, label in train_dataset.create_tuple_iterator():
            loss = train_step(data, label)
            step += 1
            print(f"epoch {epoch + 1} step {step:3d}/{total_steps} loss {float(loss.asnumpy()):.7f}")
    print("Done!")


if __name__ == "__main__":
    main()
