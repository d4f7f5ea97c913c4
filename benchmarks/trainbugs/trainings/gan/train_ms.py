"""A small DCGAN on 8x8 pictures of soft blobs and rings (MindSpore, PyNative)."""
import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops

N_IMAGES = 208
BATCH = 64
EPOCHS = 4
Z_DIM = 16
LR_G = 1e-3
LR_D = 4e-4
BETA1, BETA2 = 0.5, 0.999
WD_D = 1e-2
LR_DECAY = 0.7          # per epoch, both optimizers
MAX_NORM_D = 0.5
REAL_LABEL = 0.9        # one-sided label smoothing


def make_images(n, seed=7):
    """uint8 pictures (n, 8, 8), blobs of random centre and width, every third one a ring"""
    rng = np.random.RandomState(seed)
    yy, xx = np.mgrid[0:8, 0:8].astype(np.float32)
    images = np.zeros((n, 8, 8), np.float32)
    for i in range(n):
        cy, cx = rng.uniform(2.0, 5.0, 2)
        width = rng.uniform(0.8, 2.0)
        r2 = (yy - cy) ** 2 + (xx - cx) ** 2
        if i % 3 == 0:
            images[i] = np.exp(-(np.sqrt(r2) - 2.0) ** 2 / (0.5 * width))
        else:
            images[i] = np.exp(-r2 / (2 * width ** 2))
        images[i] += 0.05 * rng.rand(8, 8)
    return (np.clip(images, 0, 1) * 255).astype(np.uint8)


class Blobs:
    def __init__(self, n=N_IMAGES):
        self.images = make_images(n)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        x = self.images[i].astype(np.float32) / 127.5 - 1.0
        return (x[None],)


class Generator(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc = nn.Dense(Z_DIM, 32 * 2 * 2)
        self.bn1 = nn.BatchNorm2d(32, eps=0.8, momentum=0.9)
        self.up1 = nn.Conv2dTranspose(32, 16, 4, stride=2, pad_mode="pad", padding=1, has_bias=False)
        self.bn2 = nn.BatchNorm2d(16, eps=0.8, momentum=0.9)
        self.up2 = nn.Conv2dTranspose(16, 1, 4, stride=2, pad_mode="pad", padding=1, has_bias=True)

    def construct(self, z):
        x = self.fc(z).reshape(-1, 32, 2, 2)
        x = ops.relu(self.bn1(x))
        x = ops.relu(self.bn2(self.up1(x)))
        return ops.tanh(self.up2(x))


class Discriminator(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 4, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.conv2 = nn.Conv2d(16, 32, 4, stride=2, pad_mode="pad", padding=1, has_bias=False)
        self.bn = nn.BatchNorm2d(32, eps=1e-5, momentum=0.9)
        self.act = nn.LeakyReLU(0.2)
        self.head = nn.Dense(32 * 2 * 2, 1)

    def construct(self, x):
        x = self.act(self.conv1(x))
        x = self.act(self.bn(self.conv2(x)))
        return self.head(x.reshape(x.shape[0], -1))


def train(net_g, net_d):
    dataset = ds.GeneratorDataset(Blobs(), ["image"], shuffle=False)
    dataset = dataset.batch(BATCH, drop_remainder=True)
    criterion = nn.BCEWithLogitsLoss()

    steps_per_epoch = dataset.get_dataset_size()
    total_steps = EPOCHS * steps_per_epoch
    lr_d = nn.exponential_decay_lr(LR_D, LR_DECAY, total_steps, steps_per_epoch, 1, is_stair=True)
    lr_g = nn.exponential_decay_lr(LR_G, LR_DECAY, total_steps, steps_per_epoch, 1, is_stair=True)

    # given as a group, so that the decay reaches the norm's gamma and beta too, as in torch
    params_d = [{"params": net_d.trainable_params(), "weight_decay": WD_D}]
    params_g = net_g.trainable_params()
    opt_d = nn.Adam(params_d, learning_rate=lr_d, beta1=BETA1, beta2=BETA2)
    opt_g = nn.Adam(params_g, learning_rate=lr_g, beta1=BETA1, beta2=BETA2)

    noise_rng = np.random.RandomState(123)

    def noise(n):
        return ms.Tensor(noise_rng.randn(n, Z_DIM).astype(np.float32))

    def forward_d(real, z):
        fake = ops.stop_gradient(net_g(z))
        out_real = net_d(real)
        out_fake = net_d(fake)
        loss_real = criterion(out_real, ops.full_like(out_real, REAL_LABEL))
        loss_fake = criterion(out_fake, ops.zeros_like(out_fake))
        loss = 0.5 * (loss_real + loss_fake)
        return loss, out_real, out_fake

    def forward_g(z):
        fake = net_g(z)
        out = net_d(fake)
        return criterion(out, ops.ones_like(out))

    grad_d = ms.value_and_grad(forward_d, None, opt_d.parameters, has_aux=True)
    grad_g = ms.value_and_grad(forward_g, None, opt_g.parameters)

    def train_step(real):
        n = real.shape[0]
        # discriminator: real pictures against generated ones
        (loss_d, out_real, out_fake), grads = grad_d(real, noise(n))
        grads = ops.clip_by_global_norm(grads, MAX_NORM_D)
        opt_d(grads)
        # generator: fresh noise, against the discriminator just updated
        loss_g, grads = grad_g(noise(n))
        opt_g(grads)
        return loss_d, loss_g, out_real, out_fake

    net_g.set_train()
    net_d.set_train()
    history = []
    step = 0
    for epoch in range(EPOCHS):
        for (real,) in dataset.create_tuple_iterator(num_epochs=1):
            loss_d, loss_g, out_real, out_fake = train_step(real)
            print(f"epoch {epoch} step {step:2d}  loss_d {float(loss_d):.5f}  loss_g {float(loss_g):.5f}  "
                  f"D(real) {float(out_real.mean()):+.3f}  D(fake) {float(out_fake.mean()):+.3f}")
            history.append((float(loss_d), float(loss_g)))
            step += 1
    return history


def main():
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    ms.set_seed(0)
    net_g, net_d = Generator(), Discriminator()
    train(net_g, net_d)


if __name__ == "__main__":
    main()
