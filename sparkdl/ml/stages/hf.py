"""Texts in DataFrame columns to token numbers and back, with fast tokenisers of Hugging Face."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from pyspark import keyword_only
from pyspark.ml import Transformer
from pyspark.ml.param import TypeConverters
from pyspark.ml.param.shared import HasInputCol, HasOutputCol, HasOutputCols
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sparkdl.data.columns import quoted, ragged_metadata, tensor_metadata
from sparkdl.data.schema import STRINGS, same_names
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.hf import tokens
from sparkdl.hf.tokens import INPUTS, Decoding, TokenEncoding
from sparkdl.ml.params.columns import HasErrorCol
from sparkdl.ml.params.converters import one_of
from sparkdl.ml.params.entries import HasEntries, ParamEntry, accessors, setter
from sparkdl.ml.persistence.stored import StoredStage
from sparkdl.ml.stages.forgiving import ERROR, ForgivingScorer
from sparkdl.ml.stages.rowwise import HandleInvalid, Settable, defined, find_field
from sparkdl.ml.stages.udf import has_arrow_udf, make_udf, readable
from sparkdl.nn.signature import check_outputs_order

_LENGTH = 512


class _Tokenizing(HasEntries, Transformer, HasInputCol, Settable, StoredStage):
    """What both stages hold: a ``tokenizer.json``."""

    json: str
    clean_up: bool  # of texts that tokens become

    _input_kwargs: dict[str, Any]

    setInputCol = setter(HasInputCol.inputCol)

    def _hold(self, tokenizer: Any) -> tokens.UserTokenizer | None:
        """Hold the tokeniser that the constructor was given, if any, and return what it says of itself."""
        self.json, self.clean_up = "", False
        if tokenizer is None:
            return None
        given = tokens.given(tokenizer)
        tokens.check(given.text)
        self.json, self.clean_up = given.text, given.clean_up
        return given

    def _set_given(self) -> None:
        values = {name: value for name, value in self._input_kwargs.items() if name != "tokenizer"}
        self._set(**{name: value for name, value in values.items() if value is not None})

    @property
    def tokenizer(self) -> Any:
        """Return the ``tokenizers.Tokenizer``; ``stage.tokenizer.save("tokenizer.json")`` writes it."""
        from sparkdl.hf.extra import need

        return need("tokenizers", type(self).__name__).Tokenizer.from_str(self._text())

    def _text(self) -> str:
        if not self.json:
            raise ConfigError(
                f"{type(self).__name__}: tokenizer is not set: expected the path of a tokenizer.json or of a "
                "folder with one, or a fast tokeniser"
            )
        return self.json

    def _stored(self) -> dict[str, Any]:
        return {"formatVersion": 1, "tokenizer": self._text(), "cleanUp": self.clean_up}

    def _restore(self, metadata: Mapping[str, Any], path: str) -> None:
        text = metadata.get("tokenizer")
        if not isinstance(text, str):
            raise ConfigError(f"path={path!r} holds no tokenizer.json", code="config-saved")
        tokens.check(text)
        self.json, self.clean_up = text, metadata.get("cleanUp") is True


class HFTokenizer(_Tokenizing, HandleInvalid, HasErrorCol, HasOutputCols):
    """Turns texts into token numbers with a fast tokeniser of Hugging Face.

    ::

        tokenizer = HFTokenizer(tokenizer="models/bert", inputCol="text", maxLength=128)
        columns = tokenizer.getOutputCols()
        model = TorchClassifier(module=bert, featuresCols=columns, labelCol="y")

    The output columns are ``array<int>``. Shape, dtype (int64) and padding are in their metadata, where
    :class:`sparkdl.Dataset`, estimators and models find them. With ``padding="batch"`` rows keep their
    length, and each batch is filled up to its longest row, in training and in a transform.

    The stage is saved with its ``tokenizer.json``; the executors need the package ``tokenizers`` alone.

    Args:
        tokenizer: path of a ``tokenizer.json`` or of a folder with one (on the driver), a fast tokeniser of
            ``transformers``, or one of ``tokenizers``.
        inputCol: column of texts.
        pairCol: column of second texts, for models of pairs.
        outputCols: columns for ``input_ids``, ``attention_mask`` and ``token_type_ids``, in this order; two
            or three. By default they have these names; which there are is the tokeniser's choice.
        maxLength: most tokens of a text; longer ones are cut off. By default that of the tokeniser's models,
            at most 512.
        padding: ``"batch"``, or ``"max_length"`` for rows of ``maxLength``.
        paddingSide: ``"right"`` or ``"left"``; with ``"max_length"``. By default the tokeniser's.
        truncationSide: the side at which longer texts are cut off; by default the tokeniser's.
        padToken: token that fills texts up; by default the tokeniser's.
        addSpecialTokens: whether to add the tokens that models expect, such as ``[CLS]``.
        splitSpecialTokens: whether special tokens that a text itself holds, such as the characters
            ``[SEP]``, are cut up as its words are; by default as the tokeniser does.
        handleInvalid: ``"error"``, ``"skip"`` or ``"keep"`` for rows with null.
        onError: ``"raise"``, or ``"column"``: rows that cannot be used have null outputs.
        errorCol: with ``onError="column"``, the column for the reasons.
    """

    pairCol = ParamEntry("pairCol", "column of second texts, for models of pairs", TypeConverters.toString)
    maxLength = ParamEntry("maxLength", "most tokens of a text", TypeConverters.toInt, _LENGTH)
    padding = ParamEntry(
        "padding",
        "'batch' to fill each batch up to its longest row, 'max_length' to fill all rows up to maxLength",
        one_of("padding", "batch", "max_length"),
        "batch",
    )
    paddingSide = ParamEntry(
        "paddingSide",
        "side at which rows are filled up to maxLength: 'right' or 'left'",
        one_of("paddingSide", "right", "left"),
        "right",
    )
    truncationSide = ParamEntry(
        "truncationSide",
        "side at which longer texts are cut off: 'right' or 'left'",
        one_of("truncationSide", "right", "left"),
        "right",
    )
    padToken = ParamEntry("padToken", "token that fills texts up", TypeConverters.toString)
    addSpecialTokens = ParamEntry(
        "addSpecialTokens",
        "whether to add the tokens that models expect, such as [CLS]",
        TypeConverters.toBoolean,
        True,
    )
    splitSpecialTokens = ParamEntry(
        "splitSpecialTokens",
        "whether special tokens that a text itself holds, such as the characters [SEP], are cut up as its "
        "words are",
        TypeConverters.toBoolean,
        False,
    )

    outputCols = ParamEntry.of(HasOutputCols.outputCols, list(INPUTS[:2]))

    getPairCol, setPairCol = accessors(pairCol)
    setOutputCols = setter(outputCols)
    getMaxLength, setMaxLength = accessors(maxLength)
    getPadding, setPadding = accessors(padding)
    getPaddingSide, setPaddingSide = accessors(paddingSide)
    getTruncationSide, setTruncationSide = accessors(truncationSide)
    getPadToken, setPadToken = accessors(padToken)
    getAddSpecialTokens, setAddSpecialTokens = accessors(addSpecialTokens)
    getSplitSpecialTokens, setSplitSpecialTokens = accessors(splitSpecialTokens)

    @keyword_only
    def __init__(
        self,
        *,
        tokenizer: Any = None,
        inputCol: str | None = None,
        pairCol: str | None = None,
        outputCols: list[str] | None = None,
        maxLength: int | None = None,
        padding: str = "batch",
        paddingSide: str | None = None,
        truncationSide: str | None = None,
        padToken: str | None = None,
        addSpecialTokens: bool = True,
        splitSpecialTokens: bool | None = None,
        handleInvalid: str = "error",
        onError: str = "raise",
        errorCol: str = "error",
    ) -> None:
        super().__init__()
        given = self._hold(tokenizer)
        if given is not None:
            self._setDefault(outputCols=list(given.inputs), paddingSide=given.padding_side)
            self._setDefault(truncationSide=given.truncation_side)
            self._setDefault(splitSpecialTokens=given.split_special_tokens)
            self._setDefault(maxLength=min(given.max_length or _LENGTH, _LENGTH))
            if given.pad_token is not None:
                self._setDefault(padToken=given.pad_token)
        self._set_given()

    @property
    def encoding(self) -> TokenEncoding:
        """What the tasks run; ``stage.encoding.tokens("a text")`` needs no Spark.

        Raises:
            ConfigError: if Params do not fit the tokeniser.
        """
        text, columns, length = self._text(), self.getOutputCols(), self.getMaxLength()
        if not 2 <= len(columns) <= len(INPUTS) or len(set(columns)) < len(columns):
            raise ConfigError(
                f"outputCols={columns}: expected two or three different names, for {', '.join(INPUTS)}"
            )
        check_outputs_order(columns, INPUTS)
        if length < 1:
            raise ConfigError(f"maxLength={length}: expected a positive number of tokens")
        pairs = self.isDefined(self.pairCol)
        special = tokens.special_tokens(text, pairs) if self.getAddSpecialTokens() else 0
        if length < special:
            raise ConfigError(
                f"maxLength={length}: expected at least {special}, for so many special tokens are added to "
                "each text; addSpecialTokens=False leaves them out"
            )
        token = self.getPadToken() if self.isDefined(self.padToken) else None
        if token is None or tokens.token_id(text, token) is None:
            found = "it has no padding token" if token is None else f"it has no token {token!r}"
            raise ConfigError(
                f"padToken: {found}; name one of its tokens, such as padToken='</s>': attention_mask hides it"
            )
        return TokenEncoding(
            text=text,
            names=INPUTS[: len(columns)],
            length=length,
            pad_token=token if self.getPadding() == "max_length" else None,
            padding_side=self.getPaddingSide(),
            truncation_side=self.getTruncationSide(),
            special_tokens=self.getAddSpecialTokens(),
            split_special_tokens=self.getSplitSpecialTokens(),
            pairs=pairs,
            keep=self.getHandleInvalid() == "keep",
            column=self.getInputCol() if self.isDefined(self.inputCol) else "",
        )

    def decoder(self, inputCol: str, outputCol: str) -> HFDecoder:
        """Return the stage that turns token numbers into texts."""
        stage = HFDecoder(inputCol=inputCol, outputCol=outputCol)
        stage.json, stage.clean_up = self._text(), self.clean_up
        return stage

    def _transform(self, dataset: DataFrame) -> DataFrame:
        defined(self, "inputCol")
        encoding = self.encoding
        inputs = [self.getInputCol(), *([self.getPairCol()] if encoding.pairs else [])]
        for param, name in zip(("inputCol", "pairCol"), inputs, strict=False):
            _check_text(dataset, param, name)
        errors = [self.getErrorCol()] if self.getOnError() == "column" else []
        added = [*self.getOutputCols(), *errors]
        if len(set(added)) < len(added):
            raise ConfigError(f"output columns {added}: expected different names")
        if errors and not has_arrow_udf():
            raise ConfigError("onError='column' needs Spark 4.1 or later; 'raise' works with this one")
        for name in added:
            _check_new(dataset, name)
        if self.getHandleInvalid() == "skip":
            for name in inputs:
                dataset = dataset.where(quoted(name).isNotNull())
        lists = T.ArrayType(T.IntegerType(), containsNull=False)
        returns = T.StructType([T.StructField(name, lists) for name in encoding.names])
        if errors:
            returns = returns.add(ERROR, T.StringType())
        column = f"sparkdl_{uuid.uuid4().hex}"
        udf = make_udf(ForgivingScorer(encoding) if errors else encoding, returns)
        found = readable(dataset, inputs[0]).select("*", udf(*map(quoted, inputs)).alias(column))
        results = [
            F.col(column).getField(field).alias(name, metadata=self._metadata(field))
            for field, name in zip(encoding.names, self.getOutputCols(), strict=True)
        ]
        results += [F.col(column).getField(ERROR).alias(name) for name in errors]
        return found.select("*", *results).drop(column)

    def _metadata(self, field: str) -> dict[str, Any]:
        if self.getPadding() == "max_length":
            return tensor_metadata((self.getMaxLength(),), "int64")
        number = tokens.token_id(self._text(), self.getPadToken()) or 0
        return ragged_metadata(number if field == INPUTS[0] else 0)


class HFDecoder(_Tokenizing, HasOutputCol):
    """Turns rows of token numbers, such as a model generates, into texts, as the tokeniser's ``decode`` does.

    Args:
        tokenizer: as of :class:`HFTokenizer`.
        inputCol: column of arrays of numbers; null stays null.
        outputCol: column of texts.
        skipSpecialTokens: whether special tokens, such as padding, are left out.
    """

    skipSpecialTokens = ParamEntry(
        "skipSpecialTokens",
        "whether special tokens, such as padding, are left out",
        TypeConverters.toBoolean,
        True,
    )

    setOutputCol = setter(HasOutputCol.outputCol)
    getSkipSpecialTokens, setSkipSpecialTokens = accessors(skipSpecialTokens)

    @keyword_only
    def __init__(
        self,
        *,
        tokenizer: Any = None,
        inputCol: str | None = None,
        outputCol: str | None = None,
        skipSpecialTokens: bool = True,
    ) -> None:
        super().__init__()
        self._hold(tokenizer)
        self._set_given()

    def _transform(self, dataset: DataFrame) -> DataFrame:
        defined(self, "inputCol", "outputCol")
        name = self.getInputCol()
        found = find_field(dataset, "inputCol", name).dataType
        if not isinstance(found, T.ArrayType) or not isinstance(found.elementType, T.NumericType):
            raise DataError(
                f"inputCol {name!r} has type {found.simpleString()}: expected an array of token numbers",
                code="data-type",
            )
        _check_new(dataset, self.getOutputCol())
        decoding = Decoding(self._text(), self.getSkipSpecialTokens(), self.clean_up)
        udf = make_udf(decoding, T.StringType())
        return readable(dataset, name).withColumn(self.getOutputCol(), udf(quoted(name)))


def _check_text(df: DataFrame, param: str, name: str) -> None:
    found = find_field(df, param, name).dataType
    if not isinstance(found, STRINGS):
        raise DataError(
            f"{param} {name!r} has type {found.simpleString()}: expected string", code="data-type"
        )


def _check_new(df: DataFrame, name: str) -> None:
    if same_names(df, name):
        raise DataError(f"output column {name!r} is in the DataFrame already; choose another name or drop it")
