"""Text to tokens to samples: datasets, blends, samplers and tokenizers for Megatron trainers.

Tokenize two documents into Megatron's format and read the summary:

>>> import tempfile
>>> from pathlib import Path
>>> from mb_data import ByteTokenizer, build_indexed
>>> folder = Path(tempfile.mkdtemp())
>>> (folder / "one.txt").write_text("to be")
5
>>> (folder / "two.txt").write_text("or not")
6
>>> summary = build_indexed([folder], tokenizer=ByteTokenizer(), prefix=folder / "play")
>>> summary.documents, summary.tokens, summary.dtype
(2, 13, 'uint16')
"""

from typing import TYPE_CHECKING

from mb_schema import lazy as _lazy

if TYPE_CHECKING:
    from mb_data.batch_iterators import BatchIterators as BatchIterators
    from mb_data.batch_iterators import BatchSettings as BatchSettings
    from mb_data.batch_iterators import DataRanks as DataRanks
    from mb_data.batch_padding import BatchPadding as BatchPadding
    from mb_data.batch_padding import required_padding as required_padding
    from mb_data.blend import blend_from_path as blend_from_path
    from mb_data.blend import split_matrix as split_matrix
    from mb_data.bpe import train_bpe as train_bpe
    from mb_data.build import build_indexed as build_indexed
    from mb_data.config import GPTDatasetConfig as GPTDatasetConfig
    from mb_data.config import MockGPTDatasetConfig as MockGPTDatasetConfig
    from mb_data.config import TextCorpusConfig as TextCorpusConfig
    from mb_data.corpus import PreparedCorpus as PreparedCorpus
    from mb_data.corpus import TokenizedCorpus as TokenizedCorpus
    from mb_data.corpus import prepare_corpus as prepare_corpus
    from mb_data.corpus import tokenize_corpus as tokenize_corpus
    from mb_data.dataset_provider import DatasetBuildContext as DatasetBuildContext
    from mb_data.dataset_provider import DatasetProvider as DatasetProvider
    from mb_data.errors import BadDocumentError as BadDocumentError
    from mb_data.errors import BlendError as BlendError
    from mb_data.errors import DataError as DataError
    from mb_data.errors import DataPathError as DataPathError
    from mb_data.errors import IndexedFormatError as IndexedFormatError
    from mb_data.errors import NotEnoughSamplesError as NotEnoughSamplesError
    from mb_data.errors import NothingToIndexError as NothingToIndexError
    from mb_data.errors import TokenizerError as TokenizerError
    from mb_data.errors import UnknownStepError as UnknownStepError
    from mb_data.errors import ValidationDataError as ValidationDataError
    from mb_data.fim import FIMDataset as FIMDataset
    from mb_data.fim import FIMTransform as FIMTransform
    from mb_data.fim import find_fim_tokens as find_fim_tokens
    from mb_data.fim_build import build_fim_datasets as build_fim_datasets
    from mb_data.fim_config import FIMTextCorpusConfig as FIMTextCorpusConfig
    from mb_data.fim_config import GPTFIMDatasetConfig as GPTFIMDatasetConfig
    from mb_data.finetuning import FinetuningDataset as FinetuningDataset
    from mb_data.finetuning_build import build_finetuning_datasets as build_finetuning_datasets
    from mb_data.finetuning_config import FinetuningDatasetConfig as FinetuningDatasetConfig
    from mb_data.finetuning_config import PackedSequenceSpecs as PackedSequenceSpecs
    from mb_data.finetuning_config import SumsFinetuningConfig as SumsFinetuningConfig
    from mb_data.finetuning_samples import TokenizedSamples as TokenizedSamples
    from mb_data.finetuning_samples import tokenize_samples as tokenize_samples
    from mb_data.first_fit import PackIndex as PackIndex
    from mb_data.first_fit import first_fit_decreasing as first_fit_decreasing
    from mb_data.first_fit import pack_lengths as pack_lengths
    from mb_data.indexed import IndexedSummary as IndexedSummary
    from mb_data.indexed import IndexedWriter as IndexedWriter
    from mb_data.indexed import verify_prefix as verify_prefix
    from mb_data.loader_config import DataloaderConfig as DataloaderConfig
    from mb_data.loaders import build_data_iterator as build_data_iterator
    from mb_data.mcore import as_megatron as as_megatron
    from mb_data.mcore import build_gpt_datasets as build_gpt_datasets
    from mb_data.mimo_config import DrawnShapesConfig as DrawnShapesConfig
    from mb_data.packing import PackedDataset as PackedDataset
    from mb_data.reader import IndexedReader as IndexedReader
    from mb_data.reader import examine_prefix as examine_prefix
    from mb_data.rules import RULES as RULES
    from mb_data.rules import ConfigError as ConfigError
    from mb_data.run_data import RunData as RunData
    from mb_data.run_data import RunDatasets as RunDatasets
    from mb_data.run_data import RunLoaders as RunLoaders
    from mb_data.run_data import SampleSizes as SampleSizes
    from mb_data.run_data import build_run_datasets as build_run_datasets
    from mb_data.run_tokenizer import prepare_tokenizer as prepare_tokenizer
    from mb_data.sample_counts import SampleCounts as SampleCounts
    from mb_data.sample_counts import dataset_sample_counts as dataset_sample_counts
    from mb_data.sample_indices import IndexRequest as IndexRequest
    from mb_data.sample_indices import build_sample_indices as build_sample_indices
    from mb_data.samplers import BatchSampler as BatchSampler
    from mb_data.samplers import CyclicSampler as CyclicSampler
    from mb_data.samplers import SingleSampler as SingleSampler
    from mb_data.samplers import require_global_batch as require_global_batch
    from mb_data.saved_tokenizer import find_saved_tokenizer as find_saved_tokenizer
    from mb_data.saved_tokenizer import tokenizer_settings_of_weights as tokenizer_settings_of_weights
    from mb_data.span_corruption import SpanSizes as SpanSizes
    from mb_data.span_corruption import fit_span_sizes as fit_span_sizes
    from mb_data.stats import PrefixStats as PrefixStats
    from mb_data.stats import blend_stats as blend_stats
    from mb_data.synthetic_images import SyntheticImageDataset as SyntheticImageDataset
    from mb_data.t5 import T5Dataset as T5Dataset
    from mb_data.t5 import corrupt_spans as corrupt_spans
    from mb_data.t5_build import build_t5_datasets as build_t5_datasets
    from mb_data.t5_config import T5DatasetConfig as T5DatasetConfig
    from mb_data.t5_config import T5TextCorpusConfig as T5TextCorpusConfig
    from mb_data.tokenizer_config import TokenizerConfig as TokenizerConfig
    from mb_data.tokenizer_loading import load_saved_tokenizer as load_saved_tokenizer
    from mb_data.tokenizer_loading import load_tokenizer as load_tokenizer
    from mb_data.tokenizer_loading import save_tokenizer as save_tokenizer
    from mb_data.tokenizer_loading import with_sentinels as with_sentinels
    from mb_data.tokenizers import ByteTokenizer as ByteTokenizer
    from mb_data.tokenizers import ExtendedTokenizer as ExtendedTokenizer
    from mb_data.tokenizers import NullTokenizer as NullTokenizer
    from mb_data.tokenizers import SentinelTokenizer as SentinelTokenizer
    from mb_data.tokenizers import Tokenizer as Tokenizer
    from mb_data.validation_sets import ValidationBatches as ValidationBatches
    from mb_data.validation_sets import ValidationSetOptions as ValidationSetOptions
    from mb_schema.rules import Rule as Rule

_HOMES = {
    "BadDocumentError": "errors",
    "BatchIterators": "batch_iterators",
    "BatchPadding": "batch_padding",
    "BatchSampler": "samplers",
    "BatchSettings": "batch_iterators",
    "BlendError": "errors",
    "ByteTokenizer": "tokenizers",
    "ConfigError": "rules",
    "CyclicSampler": "samplers",
    "DataError": "errors",
    "DataPathError": "errors",
    "DataRanks": "batch_iterators",
    "DataloaderConfig": "loader_config",
    "DatasetBuildContext": "dataset_provider",
    "DatasetProvider": "dataset_provider",
    "DrawnShapesConfig": "mimo_config",
    "ExtendedTokenizer": "tokenizers",
    "FIMDataset": "fim",
    "FIMTextCorpusConfig": "fim_config",
    "FIMTransform": "fim",
    "FinetuningDataset": "finetuning",
    "FinetuningDatasetConfig": "finetuning_config",
    "GPTDatasetConfig": "config",
    "GPTFIMDatasetConfig": "fim_config",
    "IndexRequest": "sample_indices",
    "IndexedFormatError": "errors",
    "IndexedReader": "reader",
    "IndexedSummary": "indexed",
    "IndexedWriter": "indexed",
    "MockGPTDatasetConfig": "config",
    "NotEnoughSamplesError": "errors",
    "NothingToIndexError": "errors",
    "NullTokenizer": "tokenizers",
    "PackedDataset": "packing",
    "PackedSequenceSpecs": "finetuning_config",
    "PrefixStats": "stats",
    "PreparedCorpus": "corpus",
    "RULES": "rules",
    "Rule": "mb_schema.rules",
    "RunData": "run_data",
    "RunDatasets": "run_data",
    "RunLoaders": "run_data",
    "SampleCounts": "sample_counts",
    "SampleSizes": "run_data",
    "SentinelTokenizer": "tokenizers",
    "SingleSampler": "samplers",
    "SpanSizes": "span_corruption",
    "SumsFinetuningConfig": "finetuning_config",
    "SyntheticImageDataset": "synthetic_images",
    "T5Dataset": "t5",
    "T5DatasetConfig": "t5_config",
    "T5TextCorpusConfig": "t5_config",
    "TextCorpusConfig": "config",
    "TokenizedCorpus": "corpus",
    "TokenizedSamples": "finetuning_samples",
    "Tokenizer": "tokenizers",
    "TokenizerConfig": "tokenizer_config",
    "TokenizerError": "errors",
    "ValidationBatches": "validation_sets",
    "ValidationDataError": "errors",
    "ValidationSetOptions": "validation_sets",
    "as_megatron": "mcore",
    "blend_from_path": "blend",
    "blend_stats": "stats",
    "build_data_iterator": "loaders",
    "build_fim_datasets": "fim_build",
    "build_finetuning_datasets": "finetuning_build",
    "build_gpt_datasets": "mcore",
    "build_indexed": "build",
    "build_run_datasets": "run_data",
    "build_sample_indices": "sample_indices",
    "build_t5_datasets": "t5_build",
    "corrupt_spans": "t5",
    "dataset_sample_counts": "sample_counts",
    "examine_prefix": "reader",
    "find_fim_tokens": "fim",
    "find_saved_tokenizer": "saved_tokenizer",
    "PackIndex": "first_fit",
    "UnknownStepError": "errors",
    "first_fit_decreasing": "first_fit",
    "pack_lengths": "first_fit",
    "fit_span_sizes": "span_corruption",
    "load_saved_tokenizer": "tokenizer_loading",
    "load_tokenizer": "tokenizer_loading",
    "prepare_corpus": "corpus",
    "prepare_tokenizer": "run_tokenizer",
    "require_global_batch": "samplers",
    "required_padding": "batch_padding",
    "save_tokenizer": "tokenizer_loading",
    "split_matrix": "blend",
    "tokenize_corpus": "corpus",
    "tokenize_samples": "finetuning_samples",
    "tokenizer_settings_of_weights": "saved_tokenizer",
    "train_bpe": "bpe",
    "verify_prefix": "indexed",
    "with_sentinels": "tokenizer_loading",
}


def __getattr__(name: str) -> object:
    return _lazy.resolve(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return _lazy.public_names(globals(), _HOMES)
