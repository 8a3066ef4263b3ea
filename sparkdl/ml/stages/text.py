"""Texts in DataFrame columns to rows of token numbers in DataFrame columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from pyspark import keyword_only
from pyspark.ml import Estimator, Model
from pyspark.ml.param import TypeConverters
from pyspark.ml.param.shared import HasInputCol, HasOutputCol
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sparkdl.data.columns import quoted, tensor_metadata
from sparkdl.data.schema import STRINGS, check_collation
from sparkdl.data.text import TextIndex, tokenize
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.ml.params.converters import one_of
from sparkdl.ml.params.entries import ParamEntry, accessors, setter
from sparkdl.ml.persistence.stored import StoredStage
from sparkdl.ml.stages.rowwise import HandleInvalid, Settable, add_column, defined, find_field


class _IndexParams(HasInputCol, HasOutputCol, HandleInvalid):
    """Params of the way from texts to token numbers, given a vocabulary."""

    maxLength = ParamEntry("maxLength", "tokens of each output row", TypeConverters.toInt, 128)
    pattern = ParamEntry(
        "pattern",
        "regular expression (Python's) of a token; not used where the input column holds tokens",
        TypeConverters.toString,
        r"\w+",
    )
    toLowercase = ParamEntry(
        "toLowercase",
        "whether to lower the case of texts; not used where the input column holds tokens",
        TypeConverters.toBoolean,
        True,
    )
    padding = ParamEntry(
        "padding",
        "end of short texts at which they are padded: 'start' or 'end'",
        one_of("padding", "start", "end"),
        "end",
    )
    truncation = ParamEntry(
        "truncation",
        "end of long texts that is cut off: 'start' or 'end'",
        one_of("truncation", "start", "end"),
        "end",
    )

    setInputCol = setter(HasInputCol.inputCol)
    setOutputCol = setter(HasOutputCol.outputCol)
    getMaxLength, setMaxLength = accessors(maxLength)
    getPattern, setPattern = accessors(pattern)
    getToLowercase, setToLowercase = accessors(toLowercase)
    getPadding, setPadding = accessors(padding)
    getTruncation, setTruncation = accessors(truncation)

    def _index(self, vocabulary: Sequence[str]) -> TextIndex:
        chosen: dict[str, Any] = {
            "vocabulary": tuple(vocabulary),
            "length": self.getMaxLength(),
            "pattern": self.getPattern(),
            "lowercase": self.getToLowercase(),
            "padding": self.getPadding(),
            "truncation": self.getTruncation(),
        }
        return TextIndex(**chosen)


class TextIndexer(Estimator["TextIndexerModel"], _IndexParams, Settable, StoredStage):
    r"""Learns a vocabulary; its model turns texts into rows of token numbers, all of one length.

    The input column holds texts, or arrays of tokens from any of Spark's transformers, such as
    ``RegexTokenizer`` or ``StopWordsRemover``. The output column is ``array<int>``; its length and dtype
    (int64, as ``nn.Embedding`` takes it) are in the column's metadata, where :class:`sparkdl.Dataset` finds
    them. Number 0 is padding, number 1 stands for tokens outside the vocabulary, and the others follow by
    falling count, equal counts in the order of the alphabet. Where a text holds the name of the padding token
    it has an unknown one; in an array this stands for padding.

    Null texts do not count in a fit; in a transform they are invalid (``handleInvalid``). A text without a
    token is all padding.

    Args:
        inputCol: column of texts or of arrays of tokens.
        outputCol: column of numbers.
        maxLength: tokens of each output row.
        maxSize: most tokens in the vocabulary, padding and unknown included: rows of the embedding.
        minCount: least number of times that a token of the vocabulary occurs.
        padToken: name of the padding token.
        unknownToken: name of the token that stands for all others.
        pattern: regular expression (Python's) of a token in a text; ``r"\S+"`` splits at white space.
        toLowercase: whether to lower the case of texts.
        padding: the end at which short texts are padded, ``"start"`` or ``"end"``.
        truncation: the end of long texts that is cut off, ``"start"`` or ``"end"``.
        handleInvalid: ``"error"``, ``"skip"`` or ``"keep"``.
    """

    maxSize = ParamEntry(
        "maxSize", "most tokens in the vocabulary, padding and unknown included", TypeConverters.toInt, 50_000
    )
    minCount = ParamEntry(
        "minCount", "least number of times that a token of the vocabulary occurs", TypeConverters.toInt, 1
    )
    padToken = ParamEntry("padToken", "name of the padding token", TypeConverters.toString, "<pad>")
    unknownToken = ParamEntry(
        "unknownToken", "name of the token that stands for all others", TypeConverters.toString, "<unk>"
    )

    getMaxSize, setMaxSize = accessors(maxSize)
    getMinCount, setMinCount = accessors(minCount)
    getPadToken, setPadToken = accessors(padToken)
    getUnknownToken, setUnknownToken = accessors(unknownToken)

    _input_kwargs: dict[str, Any]

    @keyword_only
    def __init__(
        self,
        *,
        inputCol: str | None = None,
        outputCol: str | None = None,
        maxLength: int = 128,
        maxSize: int = 50_000,
        minCount: int = 1,
        padToken: str = "<pad>",
        unknownToken: str = "<unk>",
        pattern: str = r"\w+",
        toLowercase: bool = True,
        padding: str = "end",
        truncation: str = "end",
        handleInvalid: str = "error",
    ) -> None:
        super().__init__()
        self._set(**self._input_kwargs)

    def _fit(self, dataset: DataFrame) -> TextIndexerModel:
        defined(self, "inputCol")
        special = (self.getPadToken(), self.getUnknownToken())
        self._index(special)  # what cannot work is said before the job
        if self.getMaxSize() <= len(special):
            raise ConfigError(
                f"maxSize={self.getMaxSize()}: expected more than padding and unknown, 2 tokens"
            )
        counts = (
            self._tokens(dataset)
            .groupBy("token")
            .count()
            .filter(F.col("token").isNotNull() & ~F.col("token").isin(*special))
            .filter(F.col("count") >= self.getMinCount())
            .orderBy(F.col("count").desc(), "token")
            .limit(self.getMaxSize() - len(special))
        )
        tokens = [row["token"] for row in counts.collect()]
        if not tokens:
            raise DataError(
                f"inputCol {self.getInputCol()!r} holds no token that occurs minCount={self.getMinCount()} "
                "times: there is no vocabulary to learn"
            )
        model = TextIndexerModel((*special, *tokens))
        model._resetUid(self.uid)
        return self._copyValues(model)

    def _tokens(self, df: DataFrame) -> DataFrame:
        """Return all tokens, one a row."""
        column, split = _text(self, df)
        if not split:
            pattern, lowercase = self.getPattern(), self.getToLowercase()

            def find(text: str | None) -> list[str]:
                return tokenize(text or "", pattern, lowercase)

            column = F.udf(find, T.ArrayType(T.StringType()), useArrow=False)(column)
        return df.select(F.explode(column).alias("token"))


class TextIndexerModel(Model, _IndexParams, StoredStage):
    """Turns texts into rows of token numbers, see :class:`TextIndexer`.

    Attributes:
        vocabulary: tokens by number, padding and unknown first.
    """

    def __init__(self, vocabulary: Sequence[str] = ()) -> None:
        super().__init__()
        self.vocabulary = tuple(vocabulary)

    @classmethod
    def from_vocabulary(cls, vocabulary: Sequence[str], **params: Any) -> Self:
        """Return a model with a vocabulary that was made elsewhere.

        Args:
            vocabulary: tokens by number; the first is padding, the second stands for all others.
            params: Params of :class:`TextIndexer` that a transform uses, such as ``inputCol``.

        Raises:
            ConfigError: if a token occurs twice or padding and unknown are missing.
        """
        model = cls(vocabulary)._set(**params)
        model._index(model.vocabulary)
        return model

    @property
    def index(self) -> TextIndex:
        """The model's function of one text, for use without Spark."""
        return self._index(self.vocabulary)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        defined(self, "inputCol")
        index = self.index
        column, _ = _text(self, dataset)
        numbers = T.ArrayType(T.IntegerType(), containsNull=False)
        metadata = tensor_metadata((index.length,), "int64")
        return add_column(self, dataset, index, [column], numbers, metadata)

    def _stored(self) -> dict[str, Any]:
        return {"formatVersion": 1, "vocabulary": list(self.vocabulary)}

    def _restore(self, metadata: Mapping[str, Any], path: str) -> None:
        vocabulary = metadata.get("vocabulary")
        if not isinstance(vocabulary, list) or not all(isinstance(token, str) for token in vocabulary):
            raise ConfigError(f"path={path!r} holds no vocabulary", code="config-saved")
        self.vocabulary = tuple(vocabulary)


def _text(stage: _IndexParams, df: DataFrame) -> tuple[Column, bool]:
    """Return the input column, and whether it holds tokens already."""
    name = stage.getInputCol()
    found = find_field(df, "inputCol", name).dataType
    split = isinstance(found, T.ArrayType)
    text = found.elementType if isinstance(found, T.ArrayType) else found
    if not isinstance(text, STRINGS):
        raise DataError(
            f"inputCol {name!r} has type {found.simpleString()}: expected string or array<string>"
        )
    if split:
        check_collation(text, f"inputCol {name!r}: its element")
    return quoted(name), split
