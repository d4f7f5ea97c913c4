"""Train a small ResNet-18 on a small picture set, in PyTorch."""
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

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
    return pictures, labels.astype(np.int64)


class Normalize:
    """HWC uint8 picture -> CHW float tensor, scaled to [0, 1] and normalised per channel."""

    def __init__(self, mean, std):
        self.mean = torch.tensor(mean, dtype=torch.float32).view(3, 1, 1)
        self.std = torch.tensor(std, dtype=torch.float32).view(3, 1, 1)

    def __call__(self, picture):
        tensor = torch.from_numpy(picture).permute(2, 0, 1).float() / 255.0
        return (tensor - self.mean) / self.std


class PictureDataset(Dataset):
    def __init__(self, pictures, labels, transform=None):
        self.pictures = pictures
        self.labels = labels
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        picture = self.pictures[index]
        if self.transform is not None:
            picture = self.transform(picture)
        return picture, int(self.labels[index])


def create_dataloader():
    pictures, labels = make_pictures()
    mean = tuple((pictures / 255.0).mean(axis=(0, 1, 2)).tolist())
    std = tuple((pictures / 255.0).std(axis=(0, 1, 2)).tolist())
    dataset = PictureDataset(pictures, labels, transform=Normalize(mean, std))
    return DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=False)


# ---------------------------------------------------------------- model

class BasicBlock(nn.Module):
    def __init__(self, in_planes, planes, stride=1, downsample=None):
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, kernel_size=3, stride=1, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = downsample

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, layers, widths=WIDTHS, num_classes=NUM_CLASSES):
        super().__init__()
        self.in_planes = widths[0]
        self.conv1 = nn.Conv2d(3, widths[0], kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = self._make_layer(widths[0], layers[0])
        self.layer2 = self._make_layer(widths[1], layers[1], stride=2)
        self.layer3 = self._make_layer(widths[2], layers[2], stride=2)
        self.layer4 = self._make_layer(widths[3], layers[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(widths[3], num_classes)

        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(m, nn.BatchNorm2d):
                nn.init.constant_(m.weight, 1)
                nn.init.constant_(m.bias, 0)
        # zero-initialise the last BatchNorm of each block, so that it starts as an identity
        for m in self.modules():
            if isinstance(m, BasicBlock):
                nn.init.constant_(m.bn2.weight, 0)

    def _make_layer(self, planes, blocks, stride=1):
        downsample = None
        if stride != 1 or self.in_planes != planes:
            downsample = nn.Sequential(
                nn.Conv2d(self.in_planes, planes, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(planes),
            )
        layers = [BasicBlock(self.in_planes, planes, stride, downsample)]
        self.in_planes = planes
        for _ in range(1, blocks):
            layers.append(BasicBlock(planes, planes))
        return nn.Sequential(*layers)

    def forward(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.maxpool(x)
        x = self.layer1(x)
        x = self.layer2(x)
        x = self.layer3(x)
        x = self.layer4(x)
        x = self.avgpool(x)
        x = torch.flatten(x, 1)
        return self.fc(x)


def resnet18():
    return ResNet([2, 2, 2, 2])


# ---------------------------------------------------------------- training

def param_groups(model):
    """Decay the weights of convolutions and linear layers, not BatchNorm and biases."""
    decay, no_decay = [], []
    for param in model.parameters():
        if param.ndim > 1:
            decay.append(param)
        else:
            no_decay.append(param)
    return [
        {"params": decay, "weight_decay": WEIGHT_DECAY},
        {"params": no_decay, "weight_decay": 0.0},
    ]


def main():
    torch.manual_seed(0)
    device = "cpu"

    train_loader = create_dataloader()
    total_steps = EPOCHS * len(train_loader)

    model = resnet18().to(device)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=LABEL_SMOOTHING)
    optimizer = torch.optim.SGD(param_groups(model), lr=LEARNING_RATE, momentum=MOMENTUM)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total_steps)

    step = 0
    model.train()
    for epoch in range(EPOCHS):
        for pictures, labels in train_loader:
            pictures, labels = pictures.to(device), labels.to(device)

            logits = model(pictures)
            loss = loss_fn(logits, labels)

            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()

            step += 1
            print(f"epoch {epoch + 1} step {step:3d}/{total_steps} loss {loss.item():.7f}")
    print("Done!")


if __name__ == "__main__":
    main()
