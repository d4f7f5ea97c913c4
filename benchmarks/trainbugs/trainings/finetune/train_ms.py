"""Fine-tune a small conv-stem ViT with MindSpore (PyNative, the train step compiled)."""
import math

import numpy as np
import mindspore as ms
import mindspore.dataset as ds
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import HeUniform, Normal, initializer
from mindspore.experimental import optim

NUM_CLASSES = 6
N_TRAIN, N_VAL, BATCH, EPOCHS, WARMUP = 44, 16, 8, 2, 3
LR, LAYER_DECAY, WEIGHT_DECAY, CLIP = 4e-3, 0.65, 0.3, 1.0
SMOOTHING, EMA_DECAY = 0.1, 0.9
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)
FROZEN = ("stem", "stage1")


def make_data(seed=7):
    rng = np.random.RandomState(seed)
    n = N_TRAIN + N_VAL
    labels = rng.randint(0, NUM_CLASSES, n)
    centres = rng.randint(60, 190, (NUM_CLASSES, 4, 4, 3)).repeat(4, axis=1).repeat(4, axis=2)
    images = np.clip(centres[labels] + rng.randint(-50, 51, (n, 16, 16, 3)), 0, 255).astype(np.uint8)
    return (images[:N_TRAIN], labels[:N_TRAIN]), (images[N_TRAIN:], labels[N_TRAIN:])


class Images:
    def __init__(self, images, labels):
        self.images, self.labels = images, labels.astype(np.int32)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        x = (self.images[i].astype(np.float32) / 255.0 - MEAN) / STD
        return x.transpose(2, 0, 1), self.labels[i]


def make_loaders():
    train, val = make_data()
    train_set = ds.GeneratorDataset(Images(*train), ["image", "label"], shuffle=False)
    val_set = ds.GeneratorDataset(Images(*val), ["image", "label"], shuffle=False)
    return train_set.batch(BATCH, drop_remainder=True), val_set.batch(BATCH)


class ConvStage(nn.Cell):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, stride=stride, pad_mode="pad", padding=1, has_bias=False,
                              weight_init=HeUniform(math.sqrt(5)))
        self.bn = nn.BatchNorm2d(cout, eps=1e-5, momentum=0.9)

    def construct(self, x):
        return ops.relu(self.bn(self.conv(x)))


class Attention(nn.Cell):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.qkv = nn.Dense(dim, 3 * dim)
        self.proj = nn.Dense(dim, dim)

    def construct(self, x):
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).transpose(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = ops.softmax(ops.matmul(q, k.swapaxes(-2, -1)) * self.scale, axis=-1)
        return self.proj(ops.matmul(attn, v).swapaxes(1, 2).reshape(b, n, c))


class Block(nn.Cell):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm((dim,), epsilon=1e-6)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm((dim,), epsilon=1e-6)
        self.fc1 = nn.Dense(dim, 2 * dim)
        self.act = nn.GELU(approximate=False)
        self.fc2 = nn.Dense(2 * dim, dim)

    def construct(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))


class ConvViT(nn.Cell):
    def __init__(self, dim=32, depth=2, heads=4):
        super().__init__()
        self.stem = ConvStage(3, 12, 1)
        self.stage1 = ConvStage(12, 16, 2)
        self.stage2 = ConvStage(16, dim, 2)
        self.cls_token = Parameter(initializer(Normal(0.2), (1, 1, dim)), name="cls_token")
        self.pos_embed = Parameter(initializer(Normal(0.2), (1, 17, dim)), name="pos_embed")
        self.blocks = nn.CellList([Block(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm((dim,), epsilon=1e-6)
        self.head = nn.Dense(dim, NUM_CLASSES)

    def construct(self, x):
        x = self.stage1(self.stem(x))
        x = ops.stop_gradient(x)
        x = self.stage2(x)
        x = x.reshape(x.shape[0], x.shape[1], -1).swapaxes(1, 2)
        cls = ops.broadcast_to(self.cls_token, (x.shape[0], 1, x.shape[2]))
        x = ops.cat((cls, x), axis=1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class CrossEntropySmooth(nn.Cell):
    """Cross entropy with label smoothing: the smoothed mass is spread over all classes, the true one included."""

    def __init__(self, smoothing, num_classes):
        super().__init__()
        self.num_classes = num_classes
        self.off_value = smoothing / num_classes
        self.on_value = 1.0 - smoothing + self.off_value
        self.ce = nn.SoftmaxCrossEntropyWithLogits(reduction="mean")

    def construct(self, logits, label):
        target = ops.one_hot(label, self.num_classes, Tensor(self.on_value, ms.float32),
                             Tensor(self.off_value, ms.float32))
        return self.ce(logits, target)


def layer_id(name, depth):
    if name.startswith("blocks."):
        return 1 + int(name.split(".")[1])
    if name.startswith(("norm.", "head.")):
        return depth + 1
    return 0                                       # stage2, cls_token, pos_embed


def param_groups(net):
    depth, groups = len(net.blocks), {}
    for p in net.trainable_params():
        decay = p.ndim > 1 and p.name not in ("cls_token", "pos_embed")
        i = layer_id(p.name, depth)
        group = groups.setdefault((i, decay), {"params": [], "lr": LR * LAYER_DECAY ** (depth + 1 - i),
                                               "weight_decay": WEIGHT_DECAY if decay else 0.0})
        group["params"].append(p)
    return [groups[k] for k in sorted(groups)]


def lr_factor(step, total=EPOCHS * (N_TRAIN // BATCH)):
    if step < WARMUP:
        return (step + 1) / WARMUP
    progress = (step - WARMUP) / (total - WARMUP)
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


class Trainer:
    def __init__(self, net):
        self.net = net
        for part in FROZEN:
            for p in getattr(net, part).get_parameters():
                p.requires_grad = False
        self.train_loader, self.val_loader = make_loaders()
        self.ema = ConvViT()
        for e, p in zip(self.ema.get_parameters(), net.get_parameters()):
            ops.assign(e, p)                       # a real copy; load_param_into_net would share the tensors
        self.loss_fn = CrossEntropySmooth(SMOOTHING, NUM_CLASSES)
        groups = param_groups(net)
        self.base_lrs = [group["lr"] for group in groups]
        self.optimizer = optim.AdamW(groups, lr=LR, betas=(0.9, 0.999), eps=1e-8)
        self.params = ms.ParameterTuple(net.trainable_params())
        index = {p.name: i for i, p in enumerate(self.params)}
        self.order = [index[p.name] for p in self.optimizer.parameters]     # the groups change the order
        self.grad_fn = ms.value_and_grad(self.forward, None, self.params)
        self.step = 0
        self.losses = []

    def forward(self, image, label):
        return self.loss_fn(self.net(image), label)

    def train_mode(self):
        self.net.set_train(True)
        for part in FROZEN:                        # BatchNorm of the frozen part keeps its statistics
            getattr(self.net, part).set_train(False)

    def set_lr(self):
        factor = lr_factor(self.step)
        for group, base in zip(self.optimizer.param_groups, self.base_lrs):
            ops.assign(group["lr"], base * factor)

    @ms.jit
    def train_step(self, image, label):
        loss, grads = self.grad_fn(image, label)
        grads = ops.clip_by_global_norm(grads, CLIP)
        self.optimizer(tuple([grads[i] for i in self.order]))
        return loss

    def update_ema(self):
        for e, p in zip(self.ema.get_parameters(), self.net.get_parameters()):
            ops.assign(e, e * EMA_DECAY + p * (1 - EMA_DECAY) if p.requires_grad else p)

    def evaluate(self, net):
        net.set_train(False)
        logits, labels = zip(*[(net(x), y) for x, y in self.val_loader.create_tuple_iterator(num_epochs=1)])
        logits, labels = ops.cat(logits), ops.cat(labels)
        accuracy = (logits.argmax(1) == labels).astype(ms.float32).mean()
        return float(ops.cross_entropy(logits, labels)), float(accuracy)

    def fit(self):
        for epoch in range(EPOCHS):
            self.train_mode()
            for image, label in self.train_loader.create_tuple_iterator(num_epochs=1):
                self.set_lr()
                loss = self.train_step(image, label)
                self.update_ema()
                self.losses.append(float(loss))
                print(f"epoch {epoch} step {self.step} loss {self.losses[-1]:.5f}")
                self.step += 1
            print("val loss/acc: net %.4f %.3f" % self.evaluate(self.net), "ema %.4f %.3f" % self.evaluate(self.ema))
        return self.losses


if __name__ == "__main__":
    ms.set_seed(0)
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    Trainer(ConvViT()).fit()
