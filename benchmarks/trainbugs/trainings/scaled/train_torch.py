"""Multi-label segmentation of synthetic tiles: GroupNorm encoder-decoder, deep supervision, SGD with Nesterov, static loss scale."""
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

SEED = 7
NUM_TILES, SIZE, CLASSES = 36, 24, 3
BATCH, EPOCHS = 8, 2
STEPS_PER_EPOCH = math.ceil(NUM_TILES / BATCH)
TOTAL_STEPS = EPOCHS * STEPS_PER_EPOCH
WARMUP = 3
BASE_LR, HEAD_LR_FACTOR = 0.08, 2.0
MOMENTUM, WEIGHT_DECAY = 0.9, 2e-3
CLIP_NORM = 0.6
LOSS_SCALE = 128.0
AUX_WEIGHT = 0.4
MEAN, STD = (0.45, 0.40, 0.35), (0.22, 0.25, 0.20)


def make_tiles():
    """uint8 images (N, H, W, 3), label masks (N, C, H, W), and which pixels were annotated (N, 1, H, W)."""
    rng = np.random.RandomState(SEED)
    yy, xx = np.mgrid[0:SIZE, 0:SIZE]
    images = rng.normal((110, 100, 85), 30, (NUM_TILES, SIZE, SIZE, 3))
    masks = np.zeros((NUM_TILES, CLASSES, SIZE, SIZE), np.float32)
    valid = np.ones((NUM_TILES, 1, SIZE, SIZE), np.float32)
    for n in range(NUM_TILES):
        for c in range(CLASSES):
            for _ in range(rng.randint(1, 4 - c)):
                cy, cx = rng.randint(3, SIZE - 3, 2)
                radius = rng.uniform(2.0, 5.5 - c)
                masks[n, c][(yy - cy) ** 2 + (xx - cx) ** 2 <= radius ** 2] = 1.0
            images[n, :, :, c] += 60 * masks[n, c]
        cut = rng.randint(0, SIZE // 2)  # the annotators stopped before the right border
        if cut:
            valid[n, :, :, SIZE - cut:] = 0.0
    return np.clip(images, 0, 255).astype(np.uint8), masks, valid


def class_pos_weight(masks, valid):
    positive = (masks * valid).sum(axis=(0, 2, 3))
    negative = ((1 - masks) * valid).sum(axis=(0, 2, 3))
    return np.sqrt(negative / positive).astype(np.float32).reshape(CLASSES, 1, 1)


class Tiles(Dataset):
    def __init__(self, images, masks, valid):
        self.images, self.masks, self.valid = images, masks, valid

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        x = torch.from_numpy(self.images[i]).permute(2, 0, 1).float() / 255.0
        x = (x - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
        return x, torch.from_numpy(self.masks[i]), torch.from_numpy(self.valid[i])


class ConvNormAct(nn.Module):
    def __init__(self, cin, cout, stride=1, groups=4):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, stride=stride, padding=1, bias=False)
        self.norm = nn.GroupNorm(groups, cout)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))


class SegNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(ConvNormAct(3, 16), ConvNormAct(16, 16))
        self.down = nn.Sequential(ConvNormAct(16, 32, stride=2), ConvNormAct(32, 32))
        self.fuse = ConvNormAct(48, 16)
        self.head = nn.Conv2d(16, CLASSES, 1)
        self.aux_head = nn.Conv2d(32, CLASSES, 1)

    def forward(self, x):
        fine = self.stem(x)
        coarse = self.down(fine)
        up = F.interpolate(coarse, size=fine.shape[-2:], mode="bilinear", align_corners=False)
        logits = self.head(self.fuse(torch.cat([fine, up], dim=1)))
        return logits, self.aux_head(coarse)


def masked_bce(logits, target, valid, pos_weight):
    total = F.binary_cross_entropy_with_logits(
        logits, target, weight=valid, pos_weight=pos_weight, reduction="sum")
    return total / (valid.sum() * CLASSES)


def lr_factor(step):
    if step < WARMUP:
        return (step + 1) / WARMUP
    progress = (step - WARMUP) / (TOTAL_STEPS - WARMUP)
    return 0.5 * (1 + math.cos(math.pi * progress))


def make_optimizer(net):
    decay, no_decay, heads = [], [], []
    for name, p in net.named_parameters():
        if name.startswith(("head", "aux_head")):
            heads.append(p)
        elif p.ndim == 1:
            no_decay.append(p)
        else:
            decay.append(p)
    return torch.optim.SGD([
        {"params": decay, "weight_decay": WEIGHT_DECAY},
        {"params": no_decay, "weight_decay": 0.0},
        {"params": heads, "weight_decay": 0.0, "lr": BASE_LR * HEAD_LR_FACTOR},
    ], lr=BASE_LR, momentum=MOMENTUM, nesterov=True)


def mean_iou(logits, masks, valid):
    pred = (logits > 0).float() * valid
    truth = masks * valid
    inter = (pred * truth).sum((0, 2, 3))
    union = torch.maximum(pred, truth).sum((0, 2, 3))
    return (inter / union.clamp(min=1)).mean().item()


def train(net):
    images, masks, valid = make_tiles()
    loader = DataLoader(Tiles(images, masks, valid), batch_size=BATCH, shuffle=False)
    pos_weight = torch.from_numpy(class_pos_weight(masks, valid))
    optimizer = make_optimizer(net)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_factor)

    net.train()
    losses = []
    for epoch in range(EPOCHS):
        aux_weight = AUX_WEIGHT * 0.5 ** epoch  # deep supervision fades out
        for x, target, ok in loader:
            optimizer.zero_grad()
            logits, aux_logits = net(x)
            main_loss = masked_bce(logits, target, ok, pos_weight)
            small_target, small_ok = F.max_pool2d(target, 2), ok[:, :, ::2, ::2]
            aux_loss = masked_bce(aux_logits, small_target, small_ok, pos_weight)
            loss = main_loss + aux_weight * aux_loss

            (loss * LOSS_SCALE).backward()
            for p in net.parameters():
                p.grad.div_(LOSS_SCALE)
            nn.utils.clip_grad_norm_(net.parameters(), CLIP_NORM)
            optimizer.step()
            scheduler.step()

            losses.append(loss.item())
            print(f"step {len(losses) - 1:2d}  loss {losses[-1]:.6f}  main {main_loss.item():.4f}  "
                  f"aux {aux_loss.item():.4f}  iou {mean_iou(logits, target, ok):.3f}")
    return losses


if __name__ == "__main__":
    torch.manual_seed(SEED)
    train(SegNet())
