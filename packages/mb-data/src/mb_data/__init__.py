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
    from mb_data.config import GPTDatasetConfig as GPTDatasetConfig
    from mb_data.config import MockGPTDatasetConfig as MockGPTDatasetConfig
    from mb_data.config import TextCorpusConfig as TextCorpusConfig
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
    from mb_data.errors import ValidationDataError as ValidationDataError
    from mb_data.fim.build import build_fim_datasets as build_fim_datasets
    from mb_data.fim.config import FIMTextCorpusConfig as FIMTextCorpusConfig
    from mb_data.fim.config import GPTFIMDatasetConfig as GPTFIMDatasetConfig
    from mb_data.fim.dataset import FIMDataset as FIMDataset
    from mb_data.fim.dataset import FIMTransform as FIMTransform
    from mb_data.fim.dataset import find_fim_tokens as find_fim_tokens
    from mb_data.finetuning.build import build_finetuning_datasets as build_finetuning_datasets
    from mb_data.finetuning.config import FinetuningDatasetConfig as FinetuningDatasetConfig
    from mb_data.finetuning.config import PackedSequenceSpecs as PackedSequenceSpecs
    from mb_data.finetuning.config import SumsFinetuningConfig as SumsFinetuningConfig
    from mb_data.finetuning.dataset import FinetuningDataset as FinetuningDataset
    from mb_data.finetuning.first_fit import PackIndex as PackIndex
    from mb_data.finetuning.first_fit import first_fit_decreasing as first_fit_decreasing
    from mb_data.finetuning.first_fit import pack_lengths as pack_lengths
    from mb_data.finetuning.packing import PackedDataset as PackedDataset
    from mb_data.finetuning.samples import TokenizedSamples as TokenizedSamples
    from mb_data.finetuning.samples import tokenize_samples as tokenize_samples
    from mb_data.loading.batch_iterators import BatchIterators as BatchIterators
    from mb_data.loading.batch_iterators import BatchSettings as BatchSettings
    from mb_data.loading.batch_iterators import DataRanks as DataRanks
    from mb_data.loading.batch_padding import BatchPadding as BatchPadding
    from mb_data.loading.batch_padding import required_padding as required_padding
    from mb_data.loading.config import DataloaderConfig as DataloaderConfig
    from mb_data.loading.loaders import build_data_iterator as build_data_iterator
    from mb_data.loading.samplers import BatchSampler as BatchSampler
    from mb_data.loading.samplers import CyclicSampler as CyclicSampler
    from mb_data.loading.samplers import SingleSampler as SingleSampler
    from mb_data.loading.samplers import require_global_batch as require_global_batch
    from mb_data.loading.validation_sets import ValidationBatches as ValidationBatches
    from mb_data.loading.validation_sets import ValidationSetOptions as ValidationSetOptions
    from mb_data.mcore import build_gpt_datasets as build_gpt_datasets
    from mb_data.megatron.blend import blend_from_path as blend_from_path
    from mb_data.megatron.blend import split_matrix as split_matrix
    from mb_data.megatron.sample_counts import SampleCounts as SampleCounts
    from mb_data.megatron.sample_counts import dataset_sample_counts as dataset_sample_counts
    from mb_data.megatron.sample_indices import IndexRequest as IndexRequest
    from mb_data.megatron.sample_indices import build_sample_indices as build_sample_indices
    from mb_data.megatron.tokenizer import as_megatron as as_megatron
    from mb_data.mimo.config import DrawnShapesConfig as DrawnShapesConfig
    from mb_data.mimo.synthetic_images import SyntheticImageDataset as SyntheticImageDataset
    from mb_data.rules import RULES as RULES
    from mb_data.rules import ConfigError as ConfigError
    from mb_data.run_data import RunData as RunData
    from mb_data.run_data import RunDatasets as RunDatasets
    from mb_data.run_data import RunLoaders as RunLoaders
    from mb_data.run_data import SampleSizes as SampleSizes
    from mb_data.run_data import build_run_datasets as build_run_datasets
    from mb_data.run_settings import run_batch_settings as run_batch_settings
    from mb_data.run_settings import run_sample_counts as run_sample_counts
    from mb_data.streaming.config import HuggingFaceStreamConfig as HuggingFaceStreamConfig
    from mb_data.t5.build import build_t5_datasets as build_t5_datasets
    from mb_data.t5.config import T5DatasetConfig as T5DatasetConfig
    from mb_data.t5.config import T5TextCorpusConfig as T5TextCorpusConfig
    from mb_data.t5.dataset import T5Dataset as T5Dataset
    from mb_data.t5.dataset import corrupt_spans as corrupt_spans
    from mb_data.t5.span_corruption import SpanSizes as SpanSizes
    from mb_data.t5.span_corruption import fit_span_sizes as fit_span_sizes
    from mb_data.text.build import PairReport as PairReport
    from mb_data.text.build import build_indexed as build_indexed
    from mb_data.text.build import build_pair as build_pair
    from mb_data.text.corpus import PreparedCorpus as PreparedCorpus
    from mb_data.text.corpus import TokenizedCorpus as TokenizedCorpus
    from mb_data.text.corpus import prepare_corpus as prepare_corpus
    from mb_data.text.corpus import tokenize_corpus as tokenize_corpus
    from mb_data.text.indexed import IndexedSummary as IndexedSummary
    from mb_data.text.indexed import IndexedWriter as IndexedWriter
    from mb_data.text.indexed import verify_prefix as verify_prefix
    from mb_data.text.reader import IndexedReader as IndexedReader
    from mb_data.text.reader import examine_prefix as examine_prefix
    from mb_data.text.selection import Selection as Selection
    from mb_data.text.shards.build import ShardedReport as ShardedReport
    from mb_data.text.shards.build import build_shards as build_shards
    from mb_data.text.shards.engines import select_engine as select_engine
    from mb_data.text.stats import PrefixStats as PrefixStats
    from mb_data.text.stats import blend_stats as blend_stats
    from mb_data.tokenizers.base import ByteTokenizer as ByteTokenizer
    from mb_data.tokenizers.base import ExtendedTokenizer as ExtendedTokenizer
    from mb_data.tokenizers.base import NullTokenizer as NullTokenizer
    from mb_data.tokenizers.base import SentinelTokenizer as SentinelTokenizer
    from mb_data.tokenizers.base import Tokenizer as Tokenizer
    from mb_data.tokenizers.bpe import train_bpe as train_bpe
    from mb_data.tokenizers.config import TokenizerConfig as TokenizerConfig
    from mb_data.tokenizers.loading import load_saved_tokenizer as load_saved_tokenizer
    from mb_data.tokenizers.loading import load_tokenizer as load_tokenizer
    from mb_data.tokenizers.loading import save_tokenizer as save_tokenizer
    from mb_data.tokenizers.loading import with_sentinels as with_sentinels
    from mb_data.tokenizers.run_tokenizer import prepare_tokenizer as prepare_tokenizer
    from mb_data.tokenizers.saved_tokenizer import find_saved_tokenizer as find_saved_tokenizer
    from mb_data.tokenizers.saved_tokenizer import (
        tokenizer_settings_of_weights as tokenizer_settings_of_weights,
    )
    from mb_schema.rules import Rule as Rule

_HOMES, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
