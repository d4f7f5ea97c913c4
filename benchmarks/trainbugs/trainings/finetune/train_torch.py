"""Fine-tune a small conv-stem ViT: the first stages frozen, layer-wise lr decay, AdamW, warm-up + cosine, EMA."""
import copy
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

NUM_CLASSES = 6
N_TRAIN, N_VAL, BATCH, EPOCHS, WARMUP = 44, 16, 8, 2, 3
LR, LAYER_DECAY, WEIGHT_DECAY, CLIP = 4e-3, 0.65, 0.3, 1.0
SMOOTHING, EMA_DECAY = 0.1, 0.9
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)


def make_data(seed=7):
    rng = np.random.RandomState(seed)
    n = N_TRAIN + N_VAL
    labels = rng.randint(0, NUM_CLASSES, n)
    centres = rng.randint(60, 190, (NUM_CLASSES, 4, 4, 3)).repeat(4, axis=1).repeat(4, axis=2)
    images = np.clip(centres[labels] + rng.randint(-50, 51, (n, 16, 16, 3)), 0, 255).astype(np.uint8)
    return (images[:N_TRAIN], labels[:N_TRAIN]), (images[N_TRAIN:], labels[N_TRAIN:])


class Images(Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        x = (self.images[i].astype(np.float32) / 255.0 - MEAN) / STD
        return torch.from_numpy(x.transpose(2, 0, 1).copy()), int(self.labels[i])


class ConvStage(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, stride=stride, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(cout)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        attn = (q @ k.transpose(-2, -1) * self.scale).softmax(-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(b, n, c))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.fc1 = nn.Linear(dim, 2 * dim)
        self.fc2 = nn.Linear(2 * dim, dim)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class ConvViT(nn.Module):
    def __init__(self, dim=32, depth=2, heads=4):
        super().__init__()
        self.stem = ConvStage(3, 12, 1)
        self.stage1 = ConvStage(12, 16, 2)
        self.stage2 = ConvStage(16, dim, 2)
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim) * 0.2)
        self.pos_embed = nn.Parameter(torch.randn(1, 17, dim) * 0.2)
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, NUM_CLASSES)

    def forward(self, x):
        with torch.no_grad():                      # the frozen part
            x = self.stage1(self.stem(x))
        x = self.stage2(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def freeze(model):
    for part in (model.stem, model.stage1):
        for p in part.parameters():
            p.requires_grad_(False)


def train_mode(model):
    model.train()
    model.stem.eval()                              # BatchNorm of the frozen part keeps its statistics
    model.stage1.eval()


def layer_id(name, depth):
    if name.startswith("blocks."):
        return 1 + int(name.split(".")[1])
    if name.startswith(("norm.", "head.")):
        return depth + 1
    return 0                                       # stage2, cls_token, pos_embed


def param_groups(model):
    depth, groups = len(model.blocks), {}
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        decay = p.ndim > 1 and name not in ("cls_token", "pos_embed")
        i = layer_id(name, depth)
        group = groups.setdefault((i, decay), {"params": [], "lr": LR * LAYER_DECAY ** (depth + 1 - i),
                                               "weight_decay": WEIGHT_DECAY if decay else 0.0})
        group["params"].append(p)
    return [groups[k] for k in sorted(groups)]


def lr_factor(step, total=EPOCHS * (N_TRAIN // BATCH)):
    if step < WARMUP:
        return (step + 1) / WARMUP
    progress = (step - WARMUP) / (total - WARMUP)
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


@torch.no_grad()
def update_ema(ema, model):
    for e, p in zip(ema.parameters(), model.parameters()):
        e.mul_(EMA_DECAY).add_(p, alpha=1 - EMA_DECAY)
    for e, b in zip(ema.buffers(), model.buffers()):
        e.copy_(b)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    logits, labels = zip(*[(model(x), y) for x, y in loader])
    logits, labels = torch.cat(logits), torch.cat(labels)
    return F.cross_entropy(logits, labels).item(), (logits.argmax(1) == labels).float().mean().item()


def finetune(model):
    train, val = make_data()
    loader = DataLoader(Images(*train), BATCH, shuffle=False, drop_last=True)
    val_loader = DataLoader(Images(*val), BATCH)
    freeze(model)
    ema = copy.deepcopy(model)
    criterion = nn.CrossEntropyLoss(label_smoothing=SMOOTHING)
    optimizer = torch.optim.AdamW(param_groups(model), lr=LR, betas=(0.9, 0.999), eps=1e-8)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_factor)
    params = [p for p in model.parameters() if p.requires_grad]
    losses = []
    for epoch in range(EPOCHS):
        train_mode(model)
        for x, y in loader:
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(params, CLIP)
            optimizer.step()
            scheduler.step()
            update_ema(ema, model)
            losses.append(loss.item())
            print(f"epoch {epoch} step {len(losses) - 1} loss {loss.item():.5f} norm {norm.item():.4f}")
        print("val loss/acc: net %.4f %.3f" % evaluate(model, val_loader), "ema %.4f %.3f" % evaluate(ema, val_loader))
    return losses


if __name__ == "__main__":
    torch.manual_seed(0)
    finetune(ConvViT())
