"""Small ResNet on synthetic 16x16 images: SGD + Nesterov, warm-up + cosine, label smoothing."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

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
    labels = labels.astype(np.int64)
    return (images[:NUM_TRAIN], labels[:NUM_TRAIN]), (images[NUM_TRAIN:], labels[NUM_TRAIN:])


class ImageDataset(Dataset):
    def __init__(self, images, labels):
        self.images = images
        self.labels = labels
        self.mean = torch.tensor(MEAN).view(3, 1, 1)
        self.std = torch.tensor(STD).view(3, 1, 1)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        x = torch.from_numpy(self.images[i]).permute(2, 0, 1).float() / 255.0
        return (x - self.mean) / self.std, int(self.labels[i])


class BasicBlock(nn.Module):
    def __init__(self, in_ch, out_ch, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(in_ch, out_ch, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_ch)
        self.conv2 = nn.Conv2d(out_ch, out_ch, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_ch)
        self.downsample = None
        if stride != 1 or in_ch != out_ch:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_ch, out_ch, 1, stride=stride, bias=False),
                nn.BatchNorm2d(out_ch),
            )

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + identity)


class SmallResNet(nn.Module):
    def __init__(self, num_classes=NUM_CLASSES):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(BasicBlock(8, 8))
        self.layer2 = nn.Sequential(BasicBlock(8, 16, stride=2))
        self.layer3 = nn.Sequential(BasicBlock(16, 32, stride=2))
        self.fc = nn.Linear(32, num_classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        x = x.mean(dim=(2, 3))
        return self.fc(x)


@torch.no_grad()
def evaluate(net, loader):
    net.eval()
    correct, total, loss_sum = 0, 0, 0.0
    for x, y in loader:
        logits = net(x)
        loss_sum += F.cross_entropy(logits, y, reduction="sum").item()
        correct += (logits.argmax(1) == y).sum().item()
        total += len(y)
    return loss_sum / total, correct / total


def main():
    torch.manual_seed(0)
    (train_x, train_y), (val_x, val_y) = make_data()
    train_loader = DataLoader(ImageDataset(train_x, train_y), batch_size=BATCH_SIZE, shuffle=False)
    val_loader = DataLoader(ImageDataset(val_x, val_y), batch_size=BATCH_SIZE, shuffle=False)

    net = SmallResNet()
    criterion = nn.CrossEntropyLoss(label_smoothing=LABEL_SMOOTHING)

    decay = [p for p in net.parameters() if p.ndim > 1]
    no_decay = [p for p in net.parameters() if p.ndim <= 1]
    optimizer = torch.optim.SGD(
        [{"params": decay, "weight_decay": WEIGHT_DECAY},
         {"params": no_decay, "weight_decay": 0.0}],
        lr=BASE_LR, momentum=MOMENTUM, nesterov=True)

    total_steps = EPOCHS * len(train_loader)
    warmup = torch.optim.lr_scheduler.LinearLR(
        optimizer, start_factor=WARMUP_FACTOR, total_iters=WARMUP_STEPS)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total_steps - WARMUP_STEPS)
    scheduler = torch.optim.lr_scheduler.SequentialLR(
        optimizer, [warmup, cosine], milestones=[WARMUP_STEPS])

    losses = []
    for epoch in range(EPOCHS):
        net.train()
        for x, y in train_loader:
            lr = optimizer.param_groups[0]["lr"]
            logits = net(x)
            loss = criterion(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            acc = (logits.argmax(1) == y).float().mean().item()
            losses.append(loss.item())
            print(f"step {len(losses) - 1:2d}  lr {lr:.5f}  loss {loss.item():.6f}  acc {acc:.3f}")
        val_loss, val_acc = evaluate(net, val_loader)
        print(f"epoch {epoch}: val loss {val_loss:.4f}  val acc {val_acc:.3f}")
    return losses


if __name__ == "__main__":
    main()
