"""A training step of ResNet-18 or ViT-S in PyTorch: torch_vision.py NAME MODE SECONDS THREADS.

The models are timm's. MODE is eager or compiled, with channels-last before it
for images and weights in that layout. 16 images of 224 x 224, 1000 classes, fused AdamW, gradients clipped by their norm, as
`gradus bench steps/resnet18` does.
"""

import sys

import timm
import torch
import torch.nn.functional as F

from measuring import peak_memory, rounds, tell

MODELS = {"resnet18": "resnet18", "vit-s": "vit_small_patch16_224"}
BATCH, SIDE, CLASSES = 16, 224, 1000


def main():
    name, mode, seconds, threads = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    layout = torch.channels_last if mode.startswith("channels-last") else torch.contiguous_format
    model = timm.create_model(MODELS[name.split("/")[1]]).train().to(memory_format=layout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    run = torch.compile(model) if mode.endswith("compiled") else model
    images = torch.randn(BATCH, 3, SIDE, SIDE).to(memory_format=layout)
    labels = torch.randint(CLASSES, (BATCH,))

    def step():
        loss = F.cross_entropy(run(images), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    tell(name, rounds(step, seconds), peak_memory_bytes=peak_memory())


main()
