"""Generated images: the image matches its caption, and a sample depends on its index only."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mb_data import (
    ByteTokenizer,
    ConfigError,
    DatasetBuildContext,
    DrawnShapesConfig,
    NullTokenizer,
    SyntheticImageDataset,
    build_data_iterator,
)
from mb_data.errors import DatasetError
from mb_data.mimo.synthetic_images import (
    COLOURS,
    SIZES,
    ImageShape,
    Scene,
    all_captions,
    render_scene,
    sample_scene,
)

SECTION = DrawnShapesConfig(seq_length=80, num_workers=0)
indices = st.integers(0, 2**40)


def dataset(split=0, samples=100, config=SECTION):
    return SyntheticImageDataset(config, samples=samples, split=split, tokenizer=ByteTokenizer())


def scene_of(index):
    return sample_scene(np.random.default_rng(index))


def covered(image, colour):
    return (image == COLOURS[colour]).all(-1)


@given(index=indices)
@settings(max_examples=40, deadline=None)
def test_each_shape_matches_the_caption(index):
    scene = scene_of(index)
    image = render_scene(scene, side=96)
    assert scene.caption in ALL
    for shape in scene.shapes:
        if [other.colour for other in scene.shapes].count(shape.colour) == 1:
            rows, columns = covered(image, shape.colour).nonzero()
            assert abs(columns.mean() / 96 - shape.right) < 0.02
            assert (rows.max() - rows.min() + 1) / 96 > 1.6 * SIZES[shape.size][0]
            assert (columns.max() - columns.min() + 1) / 96 < 2.1 * SIZES[shape.size][1]


ALL = frozenset(all_captions())


@given(index=indices)
@settings(max_examples=40, deadline=None)
def test_the_relation_of_two_shapes_matches_the_caption(index):
    scene = scene_of(index)
    first, last = scene.shapes[0], scene.shapes[-1]
    between = {
        "above": last.down - first.down,
        "below": first.down - last.down,
        "left of": last.right - first.right,
        "right of": first.right - last.right,
    }
    for word, distance in between.items():
        if f" {word} a " in scene.caption:
            assert distance > first.radius + last.radius


def test_a_circle_is_round_a_square_full_and_a_triangle_pointed():
    shares = {}
    for kind in ("circle", "square", "triangle"):
        shape = ImageShape(size="large", colour="red", kind=kind, radius=0.4, right=0.5, down=0.5)
        image = render_scene(Scene(caption="", shapes=(shape,), background=255), side=200)
        rows, columns = covered(image, "red").nonzero()
        box = (rows.max() - rows.min() + 1) * (columns.max() - columns.min() + 1)
        shares[kind] = len(rows) / box
    assert shares == pytest.approx({"circle": np.pi / 4, "square": 1.0, "triangle": 0.5}, abs=0.02)


@given(index=st.integers(0, 99), split=st.integers(0, 2))
@settings(max_examples=20, deadline=None)
def test_a_sample_depends_on_its_index_alone(index, split):
    one, same = dataset(split)[index], dataset(split, samples=7)[index]
    assert one.keys() == same.keys() == {"images", "tokens", "labels", "loss_mask", "position_ids"}
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not torch.equal(one["images"], dataset((split + 1) % 3)[index]["images"])


def test_the_loss_is_on_the_caption_and_its_end():
    sample, caption = dataset()[3], dataset().scene(3).caption
    trained = sample["labels"][sample["loss_mask"].bool()].tolist()
    assert trained == [*caption.encode(), 256]
    assert sample["tokens"][:16].tolist() == [-200] * 16
    assert bytes(sample["tokens"][16 : 16 + len(caption)].tolist()).decode() == caption
    assert (sample["images"].shape, sample["images"].dtype) == ((3, 32, 32), torch.float32)
    assert -1 <= sample["images"].min() < sample["images"].max() <= 1


def test_the_longest_caption_fits_exactly():
    longest = max(map(len, ALL))
    shortest = DrawnShapesConfig(seq_length=16 + longest)
    assert all(each["loss_mask"].sum() > 20 for each in map(dataset(config=shortest).__getitem__, range(50)))
    with pytest.raises(DatasetError, match=f"Set at least {16 + longest}"):
        dataset(config=DrawnShapesConfig(seq_length=15 + longest))


@pytest.mark.parametrize("stop", [1, 5])
def test_reading_resumes_at_its_position(stop):
    def batches(consumed):
        return build_data_iterator(
            dataset(samples=24),
            config=SECTION,
            consumed_samples=consumed,
            micro_batch_size=2,
            data_parallel_rank=1,
            data_parallel_size=2,
        )

    complete, rest = [each["images"] for each in batches(0)], [each["images"] for each in batches(4 * stop)]
    assert len(complete) == 6
    assert torch.equal(torch.stack(complete[stop:]), torch.stack(rest))


def test_splits_that_are_not_requested_are_none():
    counts = DatasetBuildContext(train_samples=4, valid_samples=0, test_samples=2, tokenizer=ByteTokenizer())
    train, valid, test = SECTION.build_datasets(counts)
    assert (len(train), valid, len(test)) == (4, None, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"image_tokens": 0}, "image_tokens=0"), ({"image_token_id": 5}, "image_token_id=5")],
)
def test_an_invalid_section_is_rejected(changes, message):
    config = DrawnShapesConfig(seq_length=80, **changes)
    nothing = DatasetBuildContext(train_samples=1, valid_samples=0, test_samples=0)
    for act in (config.finalize, lambda: config.build_datasets(nothing), lambda: dataset(config=config)):
        with pytest.raises(ConfigError, match=message):
            act()


def test_captions_need_a_tokenizer_that_reads_words():
    with pytest.raises(DatasetError, match="no tokenizer"):
        SyntheticImageDataset(SECTION, samples=1, split=0, tokenizer=None)
    with pytest.raises(ValueError, match="is not a number"):
        SyntheticImageDataset(SECTION, samples=1, split=0, tokenizer=NullTokenizer(100))


def test_the_section_loads_without_torch_and_numpy():
    program = "import mb_data.mimo.config, sys; print({'torch', 'numpy'} & sys.modules.keys())"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "set()\n"
