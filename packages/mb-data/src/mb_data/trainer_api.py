"""What the trainer imports from mb_data beyond its public names; they change with its version as those do."""

from typing import TYPE_CHECKING

from mb_schema import lazy as _lazy

if TYPE_CHECKING:
    from mb_data.chat.prompt import EvaluationTokenizer as EvaluationTokenizer
    from mb_data.chat.prompt import encode_prompt as encode_prompt
    from mb_data.chat.prompt import end_of_answer as end_of_answer
    from mb_data.cli import app as app
    from mb_data.cli.app import Workers as Workers
    from mb_data.cli.at import print_step as print_step
    from mb_data.cli.index import index as index
    from mb_data.cli.options import StepOptions as StepOptions
    from mb_data.data_checks import dataset_facts as dataset_facts
    from mb_data.data_checks import epoch_facts as epoch_facts
    from mb_data.data_checks import tokenizer_facts as tokenizer_facts
    from mb_data.data_checks import tokenizer_size as tokenizer_size
    from mb_data.data_checks import verify_dataset_files as verify_dataset_files
    from mb_data.finetuning.hub_config import ChatSFTPreprocessingConfig as ChatSFTPreprocessingConfig
    from mb_data.finetuning.hub_config import HFDatasetSourceConfig as HFDatasetSourceConfig
    from mb_data.finetuning.hub_config import (
        PromptCompletionSFTPreprocessingConfig as PromptCompletionSFTPreprocessingConfig,
    )
    from mb_data.loading.last_validation import keep_partial_sequence as keep_partial_sequence
    from mb_data.loading.last_validation import last_validation as last_validation
    from mb_data.loading.mapped_files import changed_data_files as changed_data_files
    from mb_data.loading.step_batch import find_step as find_step
    from mb_data.rules import PATH_FIELDS as PATH_FIELDS
    from mb_data.run_settings import validation_set_options as validation_set_options
    from mb_data.tokenizers.base import decode_stream as decode_stream
    from mb_data.tokenizers.loading import TOKENIZER_FILES as TOKENIZER_FILES
    from mb_data.tokenizers.loading import copy_tokenizer_files as copy_tokenizer_files
    from mb_data.tokenizers.saved_tokenizer import HUGGING_FACE as HUGGING_FACE
    from mb_data.tokenizers.saved_tokenizer import original_tokenizer_settings as original_tokenizer_settings
    from mb_data.tokenizers.saved_tokenizer import saved_tokenizer_file as saved_tokenizer_file

_HOMES, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
