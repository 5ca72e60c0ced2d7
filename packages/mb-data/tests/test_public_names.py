import pytest

import mb_data


def test_every_public_name_is_there():
    needs_extras = {
        "as_megatron",
        "build_fim_datasets",
        "build_gpt_datasets",
        "build_t5_datasets",
        "train_bpe",
    }
    assert all(getattr(mb_data, name) is not None for name in set(mb_data._HOMES) - needs_extras)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        mb_data.nothing  # noqa: B018
