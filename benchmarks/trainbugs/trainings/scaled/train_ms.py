"""Multi-label segmentation of synthetic tiles: GroupNorm encoder-decoder, deep supervision, SGD with Nesterov, static loss scale."""
import math

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import amp, nn, ops
from mindspore.dataset import vision

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


class Tiles:
    def __init__(self, images, masks, valid):
        self.images, self.masks, self.valid = images, masks, valid

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i], self.masks[i], self.valid[i]


def make_dataset(images, masks, valid):
    data = ds.GeneratorDataset(Tiles(images, masks, valid), ["image", "mask", "valid"], shuffle=False)
    data = data.map([
        vision.Rescale(1.0 / 255.0, 0.0),
        vision.Normalize(MEAN, STD, is_hwc=True),
        vision.HWC2CHW(),
    ], input_columns="image")
    return data.batch(BATCH, drop_remainder=False)


class ConvNormAct(nn.Cell):
    def __init__(self, cin, cout, stride=1, groups=4):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, stride=stride, pad_mode="pad", padding=1, has_bias=False)
        self.norm = nn.GroupNorm(groups, cout)

    def construct(self, x):
        return ops.relu(self.norm(self.conv(x)))


class SegNet(nn.Cell):
    def __init__(self):
        super().__init__()
        self.stem = nn.SequentialCell(ConvNormAct(3, 16), ConvNormAct(16, 16))
        self.down = nn.SequentialCell(ConvNormAct(16, 32, stride=2), ConvNormAct(32, 32))
        self.fuse = ConvNormAct(48, 16)
        self.head = nn.Conv2d(16, CLASSES, 1, pad_mode="valid", has_bias=True)
        self.aux_head = nn.Conv2d(32, CLASSES, 1, pad_mode="valid", has_bias=True)

    def construct(self, x):
        fine = self.stem(x)
        coarse = self.down(fine)
        up = ops.interpolate(coarse, size=fine.shape[-2:], mode="bilinear", align_corners=False)
        logits = self.head(self.fuse(ops.cat((fine, up), axis=1)))
        return logits, self.aux_head(coarse)


def masked_bce(logits, target, valid, pos_weight):
    total = ops.binary_cross_entropy_with_logits(
        logits, target, weight=valid, pos_weight=pos_weight, reduction="sum")
    return total / (valid.sum() * CLASSES)


def lr_list(base):
    lrs = []
    for step in range(TOTAL_STEPS):
        if step < WARMUP:
            factor = (step + 1) / WARMUP
        else:
            progress = (step - WARMUP) / (TOTAL_STEPS - WARMUP)
            factor = 0.5 * (1 + math.cos(math.pi * progress))
        lrs.append(base * factor)
    return lrs


def make_optimizer(net):
    decay, no_decay, heads = [], [], []
    for p in net.trainable_params():
        if p.name.startswith(("head", "aux_head")):
            heads.append(p)
        elif p.ndim == 1:
            no_decay.append(p)
        else:
            decay.append(p)
    return nn.SGD([
        {"params": decay, "weight_decay": WEIGHT_DECAY, "lr": lr_list(BASE_LR)},
        {"params": no_decay, "weight_decay": 0.0, "lr": lr_list(BASE_LR)},
        {"params": heads, "weight_decay": 0.0, "lr": lr_list(BASE_LR * HEAD_LR_FACTOR)},
    ], learning_rate=lr_list(BASE_LR), momentum=MOMENTUM, nesterov=True)


def mean_iou(logits, masks, valid):
    pred = (logits > 0) * valid
    truth = masks * valid
    inter = (pred * truth).sum((0, 2, 3))
    union = np.maximum(pred, truth).sum((0, 2, 3))
    return (inter / np.maximum(union, 1)).mean()


def train(net):
    images, masks, valid = make_tiles()
    dataset = make_dataset(images, masks, valid)
    pos_weight = ms.Tensor(class_pos_weight(masks, valid))
    optimizer = make_optimizer(net)
    scaler = amp.StaticLossScaler(LOSS_SCALE)

    def forward_fn(x, target, ok, aux_weight):
        logits, aux_logits = net(x)
        main_loss = masked_bce(logits, target, ok, pos_weight)
        small_target, small_ok = ops.max_pool2d(target, 2), ok[:, :, ::2, ::2]
        aux_loss = masked_bce(aux_logits, small_target, small_ok, pos_weight)
        loss = main_loss + aux_weight * aux_loss
        return scaler.scale(loss), loss, main_loss, aux_loss, logits

    # the groups reorder the parameters, so the gradients are asked for in the optimizer's order
    grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters, has_aux=True)

    def train_step(x, target, ok, aux_weight):
        (_, loss, main_loss, aux_loss, logits), grads = grad_fn(x, target, ok, aux_weight)
        grads = scaler.unscale(grads)
        grads = ops.clip_by_global_norm(grads, CLIP_NORM)
        optimizer(grads)
        return loss, main_loss, aux_loss, logits

    net.set_train()
    losses = []
    for epoch in range(EPOCHS):
        aux_weight = AUX_WEIGHT * 0.5 ** epoch  # deep supervision fades out
        for x, target, ok in dataset.create_tuple_iterator(num_epochs=1):
            loss, main_loss, aux_loss, logits = train_step(x, target, ok, aux_weight)
            losses.append(float(loss.asnumpy()))
            iou = mean_iou(logits.asnumpy(), target.asnumpy(), ok.asnumpy())
            print(f"step {len(losses) - 1:2d}  loss {losses[-1]:.6f}  main {float(main_loss.asnumpy()):.4f}  "
                  f"aux {float(aux_loss.asnumpy()):.4f}  iou {iou:.3f}")
    return losses


if __name__ == "__main__":
    ms.set_seed(SEED)
    train(SegNet())
