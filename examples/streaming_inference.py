r"""Predict a stream: Structured Streaming reads rows, a trained model predicts them, a sink keeps each once.

    pip install 'sparkdl[examples]'
    python examples/streaming_inference.py --master 'local[2]'
    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:VERSION_OF_SPARK \
        examples/streaming_inference.py --kafka broker:9092 --topic digits --work hdfs:///digits --forever

Without a broker, the stream is a folder of JSON files with handwritten digits, which come with scikit-learn.
Messages of a topic have the same form: ``{"id": 7, "pixels": [0, 5, ...]}``, 64 numbers from 0 to 16.

Spark's checkpoint says what has been read, and the sink's log which of its files count: each row has exactly
one prediction, however often the program is killed and started again with the same ``--work``. It ends when
it has predicted what was there; with ``--forever`` it goes on as rows come.
"""

from __future__ import annotations

import argparse
import tempfile

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from sklearn.datasets import load_digits

from sparkdl import TorchClassifier, session
from sparkdl.ml import TorchClassificationModel

TO_TRAIN = 1_000  # rows of scikit-learn's table that train the model; the other 797 are streamed
STREAM = "id long, pixels array<double>"


def read_digits(spark: SparkSession) -> DataFrame:
    """Return handwritten digits as rows of id, pixels and label."""
    pixels, labels = load_digits(return_X_y=True)
    rows = [
        (number, row.tolist(), int(label))
        for number, (row, label) in enumerate(zip(pixels, labels, strict=True))
    ]
    return spark.createDataFrame(rows, f"{STREAM}, label int")


def preprocess(rows: DataFrame) -> DataFrame:
    """Bring pixels to a scale from 0 to 1."""
    return rows.withColumn("features", F.transform("pixels", lambda pixel: pixel / 16))


def exists(spark: SparkSession, path: str) -> bool:
    """Tell whether there is a folder, in any file system that Spark knows."""
    try:
        spark.read.format("binaryFile").load(path)
    except AnalysisException:
        return False
    return True


def prepare(spark: SparkSession, work: str, args: argparse.Namespace) -> TorchClassificationModel:
    """Return the model; the first time, write the files to stream, train it and save it."""
    model = f"{work}/model"
    if not exists(spark, model):  # saved last: with it, all is there
        digits = read_digits(spark)
        if not args.kafka:
            stream = digits.where(F.col("id") >= TO_TRAIN).select("id", "pixels")
            stream.repartition(args.files, "id").write.mode("overwrite").json(f"{work}/input")
        classifier = TorchClassifier(
            maxEpochs=args.epochs, batchSize=100, learningRate=3e-3, handleInvalid="skip", verbose=True
        )
        classifier.fit(preprocess(digits.where(F.col("id") < TO_TRAIN))).save(model)
    loaded: TorchClassificationModel = TorchClassificationModel.load(model)
    return loaded


def read_stream(spark: SparkSession, work: str, args: argparse.Namespace) -> DataFrame:
    """Return the stream of rows with id and pixels."""
    if not args.kafka:
        return spark.readStream.schema(STREAM).option("maxFilesPerTrigger", 1).json(f"{work}/input")
    messages = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", args.kafka)
        .option("subscribe", args.topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    return messages.select(F.from_json(F.col("value").cast("string"), STREAM).alias("row")).select("row.*")


def main() -> None:
    parser = argparse.ArgumentParser(description="Predict a stream of digits with Spark.")
    parser.add_argument("--master", help="Spark master; by default spark-submit's")
    parser.add_argument(
        "--work", help="folder or URL for model, checkpoint and predictions; by default a new one"
    )
    parser.add_argument("--kafka", help="brokers, as in host:port,host:port; by default files are streamed")
    parser.add_argument("--topic", default="digits")
    parser.add_argument(
        "--files", type=int, default=12, help="files to stream, one in each batch of the stream"
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--forever", action="store_true", help="wait for more rows instead of ending")
    args = parser.parse_args()

    spark = session.builder(args.master, app_name="streaming").getOrCreate()
    work = args.work or tempfile.mkdtemp(prefix="digits-")
    model = prepare(spark, work, args)
    predicted = model.transform(preprocess(read_stream(spark, work, args)))
    query = (
        predicted.select("id", "prediction")
        .writeStream.format("parquet")
        .option("path", f"{work}/predictions")
        .option("checkpointLocation", f"{work}/checkpoint")
        .trigger(**({"processingTime": "1 second"} if args.forever else {"availableNow": True}))
        .start()
    )
    query.awaitTermination()

    found = spark.read.parquet(f"{work}/predictions")
    rows, ids = found.count(), found.select("id").distinct().count()
    if not args.kafka:
        right = found.join(read_digits(spark), "id").where("prediction = label").count()
        print(f"test_accuracy={right / rows:.4f}")
    spark.stop()
    print(f"different_ids={ids}")
    print(f"rows={rows}")


if __name__ == "__main__":
    main()
