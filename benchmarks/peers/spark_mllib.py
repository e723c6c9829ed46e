"""How fast is Spark MLlib's LogisticRegression on the same rows?  (called as described in rows.py)

The setting has `iterations`, `regularization` and `memory` of the Java process. Spark runs on the cores of this
machine (`local[*]`), with rows cached in memory. It is a batch solver (L-BFGS): each point of the curve is a separate
fit with that many iterations, each of which is a pass over the rows, plus one pass at the start. The first step is when
the rows are cached and the solver starts.
"""

from __future__ import annotations

import os
import time

import numpy as np
import pyspark
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.sql import SparkSession

from rows import answer, asked


def main() -> None:
    folder, setting = asked()
    cores = len(os.sched_getaffinity(0))
    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.driver.memory", setting["memory"])
        .config("spark.driver.maxResultSize", "0")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", str(folder))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    reader = spark.read.format("libsvm").option("numFeatures", setting["features"])
    train, test = (
        reader.load(str(folder / f"{split}.libsvm")).repartition(cores).cache() for split in ("train", "test")
    )
    num_rows, _ = train.count(), test.count()
    loss = MulticlassClassificationEvaluator(metricName="logLoss")
    first_step_at, began, curve = time.time(), time.perf_counter(), []
    for iterations in setting["iterations"]:
        solver = LogisticRegression(
            maxIter=iterations, regParam=setting["regularization"], standardization=False, tol=0.0
        )
        asked_at = time.perf_counter()
        model = solver.fit(train)
        seconds = time.perf_counter() - asked_at
        passes = len(model.summary.objectiveHistory)
        curve.append([passes * num_rows, seconds, loss.evaluate(model.transform(test))])
        if time.perf_counter() - began > setting["most_seconds"]:
            break
    rate = float(np.max([count / seconds for count, seconds, _ in curve]))
    answer(rows_per_second=rate, first_step_at=first_step_at, curve=curve, version=pyspark.__version__)
    spark.stop()


if __name__ == "__main__":
    main()
