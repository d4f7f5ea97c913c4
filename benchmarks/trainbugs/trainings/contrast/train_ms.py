"""Contrastive pre-training (MoCo style) of a small conv encoder on synthetic images, MindSpore (PyNative)."""
import numpy as np
import mindspore as ms
from mindspore import nn, ops
from mindspore.dataset import GeneratorDataset

SEED = 7
NUM_SAMPLES = 140
IMAGE_SIZE = 16
BATCH_SIZE = 32
EPOCHS = 3
FEATURE_DIM = 32
QUEUE_SIZE = 128
TEMPERATURE = 0.2
EMA = 0.9
LR_MAX = 0.1
LR_MIN = 0.001
MOMENTUM = 0.9
WEIGHT_DECAY = 2e-3
CLIP_NORM = 0.5


def make_images(rng):
    """Each image is a sum of three Gaussian blobs, values from 0 to 1."""
    yy, xx = np.mgrid[0:IMAGE_SIZE, 0:IMAGE_SIZE].astype(np.float32)
    images = np.zeros((NUM_SAMPLES, IMAGE_SIZE, IMAGE_SIZE), np.float32)
    for image in images:
        for _ in range(3):
            cy, cx = rng.uniform(2, IMAGE_SIZE - 2, 2)
            width = rng.uniform(1.0, 3.0)
            image += rng.uniform(0.3, 1.0) * np.exp(-((yy - cy) ** 2 + (xx - cx) ** 2) / (2 * width ** 2))
    return np.clip(images, 0.0, 1.0)


def augment(images, rng):
    """Random shift, flip, contrast and noise."""
    out = np.empty_like(images)
    for i, image in enumerate(images):
        dy, dx = rng.randint(-2, 3, 2)
        view = np.roll(image, (dy, dx), axis=(0, 1))
        if rng.rand() < 0.5:
            view = view[:, ::-1]
        out[i] = view * rng.uniform(0.6, 1.4) + rng.normal(0.0, 0.05, view.shape)
    return out


class TwoViews:
    def __init__(self):
        rng = np.random.RandomState(SEED)
        images = make_images(rng)
        mean, std = images.mean(), images.std()
        view1 = (augment(images, rng) - mean) / std
        view2 = (augment(images, rng) - mean) / std
        self.view1 = view1[:, None].astype(np.float32)
        self.view2 = view2[:, None].astype(np.float32)

    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        return self.view1[index], self.view2[index]


class Encoder(nn.Cell):
    def __init__(self, feature_dim=FEATURE_DIM):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, pad_mode="pad", padding=1, has_bias=False)
        self.bn1 = nn.BatchNorm2d(8, momentum=0.9)
        self.conv2 = nn.Conv2d(8, 16, 3, pad_mode="pad", padding=1, has_bias=False)
        self.bn2 = nn.BatchNorm2d(16, momentum=0.9)
        self.conv3 = nn.Conv2d(16, 32, 3, pad_mode="pad", padding=1, has_bias=False)
        self.bn3 = nn.BatchNorm2d(32, momentum=0.9)
        self.pool = nn.MaxPool2d(kernel_size=2, stride=2)
        # projection head
        self.proj1 = nn.Dense(32, 64)
        self.proj2 = nn.Dense(64, feature_dim)
        self.normalize = ops.L2Normalize(axis=1)

    def construct(self, x):
        x = self.pool(ops.relu(self.bn1(self.conv1(x))))
        x = self.pool(ops.relu(self.bn2(self.conv2(x))))
        x = ops.relu(self.bn3(self.conv3(x))).mean(axis=(2, 3))
        x = self.proj2(ops.relu(self.proj1(x)))
        return self.normalize(x)


class MoCoWithLoss(nn.Cell):
    """Both encoders, the queue of negatives and the InfoNCE loss."""

    def __init__(self):
        super().__init__()
        self.encoder_q = Encoder()
        self.encoder_k = Encoder()
        for p_q, p_k in zip(self.encoder_q.get_parameters(), self.encoder_k.get_parameters()):
            p_k.set_data(p_q.value().copy())
            p_k.requires_grad = False
        queue = np.random.RandomState(SEED + 1).randn(QUEUE_SIZE, FEATURE_DIM).astype(np.float32)
        queue /= np.linalg.norm(queue, axis=1, keepdims=True)
        self.queue = ms.Parameter(ms.Tensor(queue), name="queue", requires_grad=False)
        # (parameter of the encoder, its moving average)
        self.pairs = [(p, self.encoder_k.parameters_dict()[p.name.replace("encoder_q", "encoder_k")])
                      for p in self.encoder_q.trainable_params()]

    def construct(self, view1, view2):
        q = self.encoder_q(view1)
        k = ops.stop_gradient(self.encoder_k(view2))
        l_pos = (q * k).sum(axis=1, keepdims=True)
        l_neg = ops.matmul(q, ops.stop_gradient(self.queue).T)
        logits = ops.cat((l_pos, l_neg), axis=1) / TEMPERATURE
        labels = ops.zeros((q.shape[0],), ms.int32)
        loss = ops.cross_entropy(logits, labels)
        return loss, ops.stop_gradient(loss), k

    def update_key_encoder(self):
        for p_q, p_k in self.pairs:
            ops.assign(p_k, EMA * p_k + (1.0 - EMA) * p_q)

    def enqueue(self, keys):
        ops.assign(self.queue, ops.cat((self.queue[keys.shape[0]:], keys), axis=0))


def build():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_seed(0)
    dataset = GeneratorDataset(TwoViews(), ["view1", "view2"], shuffle=False, num_parallel_workers=1)
    dataset = dataset.batch(BATCH_SIZE, drop_remainder=True)
    net = MoCoWithLoss()
    params = net.trainable_params()
    group_params = [{"params": [p for p in params if p.ndim > 1], "weight_decay": WEIGHT_DECAY},
                    {"params": [p for p in params if p.ndim == 1], "weight_decay": 0.0},
                    {"order_params": params}]
    total_steps = EPOCHS * (NUM_SAMPLES // BATCH_SIZE)
    lr = nn.CosineDecayLR(LR_MIN, LR_MAX, total_steps)
    optimizer = nn.SGD(group_params, learning_rate=lr, momentum=MOMENTUM, nesterov=True)
    return dataset, net, optimizer


def train(dataset, net, optimizer):
    # the first output of the net is differentiated, the others come back beside the gradients
    grad_fn = ms.grad(net, grad_position=None, weights=optimizer.parameters, has_aux=True)
    losses = []
    net.set_train(True)
    for epoch in range(EPOCHS):
        for view1, view2 in dataset.create_tuple_iterator():
            grads, (loss, keys) = grad_fn(view1, view2)
            grads = ops.clip_by_global_norm(grads, CLIP_NORM)
            optimizer(grads)
            net.update_key_encoder()
            net.enqueue(keys)
            losses.append(float(loss.asnumpy()))
            print(f"epoch {epoch} step {len(losses) - 1} loss {losses[-1]:.6f}")
    return losses


if __name__ == "__main__":
    train(*build())
