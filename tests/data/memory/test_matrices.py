"""Matrices in memory: every row arrives as it is, and what compiled loops could not take is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from paceline.data.memory import matrices
from paceline.data.memory.given import Given
from paceline.data.memory.matrices import Matrices, rows_of_matrix
from paceline.data.sources.files import Source
from paceline.data.sparse.batch import Batch
from paceline.errors import UsageError

SOURCE = Source("the data", None, "", None)


def read(*given: Given) -> tuple[np.ndarray[Any, Any], list[str]]:
    """The rows of all batches as a dense matrix, with labels and weights in front, and the problems of bad rows."""
    opened = Matrices(given[0], {"the data": iter(given)}, named_labels=False)
    found, problems = [], []
    for chunk in opened.chunks(SOURCE):
        parsed = opened.parse(chunk, 100)
        batch = parsed.batch
        dense = np.zeros((batch.num_rows, opened.features or int(batch.keys.max(initial=0)) + 1))
        for row in range(batch.num_rows):
            part = slice(batch.offsets[row], batch.offsets[row + 1])
            dense[row, batch.keys[part].astype(int)] = batch.values[part]
        weights = np.ones(batch.num_rows) if batch.weights is None else batch.weights
        found.append(np.column_stack([batch.labels, weights, dense]))
        problems += [f"{bad.row} {bad.column}: {bad.problem}" for bad in parsed.bad]
    return np.concatenate(found), problems


@given(
    rows=st.integers(1, 30), columns=st.integers(1, 8), chunk=st.integers(1, 40), seed=st.integers(0, 99),
    dtype=st.sampled_from(["float32", "float64", "int32", "bool"]), index=st.sampled_from(["int32", "int64"]),
)  # fmt: skip
def test_all_forms_of_a_matrix_give_the_same_rows(
    rows: int, columns: int, chunk: int, seed: int, dtype: str, index: str
) -> None:
    rng = np.random.default_rng(seed)
    dense = (rng.integers(-3, 4, (rows, columns)) * (rng.random((rows, columns)) < 0.5)).astype(dtype)
    labels, weights = rng.integers(0, 2, rows), rng.random(rows).astype(np.float32)
    csr = scipy.sparse.csr_matrix(dense)
    csr.indices, csr.indptr = csr.indices.astype(index), csr.indptr.astype(index)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(matrices, "CHUNK_NONZEROS", chunk)
        expected = np.column_stack([labels, weights, dense.astype(np.float64)])
        for given_rows in (dense, csr, csr.todense(), csr.tocoo(), scipy.sparse.csc_array(dense)):
            found, problems = read(Given(given_rows, labels, weights))
            assert not problems
            np.testing.assert_array_equal(found, expected)
        half = rows // 2
        both = [Given(csr[:half], labels[:half], weights[:half]), Given(csr[half:], labels[half:], weights[half:])]
        np.testing.assert_array_equal(read(*both)[0], expected)


def test_a_batch_keeps_its_fields() -> None:
    fields = np.array([0, 1], np.uint16)
    batch = Batch(np.ones(1, np.float32), np.array([0, 2]), np.array([3, 5], np.uint32), np.ones(2, np.float32),
                  None, fields)  # fmt: skip
    rows = rows_of_matrix(batch)
    assert rows.num_columns == 6
    np.testing.assert_array_equal(rows.between(0, 1).fields, fields)


def test_repeated_columns_add_up() -> None:
    csr = scipy.sparse.csr_matrix((np.array([1.0, 2.0]), np.array([1, 1]), np.array([0, 2])), shape=(1, 2))
    np.testing.assert_array_equal(read(Given(csr, [1]))[0], [[1, 1, 0, 3]])


def test_a_row_that_cannot_be_used_is_named() -> None:
    rows = np.array([[1.0, np.nan], [1.0, 1.0], [np.inf, 0.0]])
    found, problems = read(Given(rows, [0.0, 1.0, np.nan], [1.0, -1.0, 1.0]))
    assert len(found) == 0
    assert problems == [
        "1 column 1: `nan` is not a finite number",
        "2 the weights: the weight is `-1`",
        "3 the labels: no label",
    ]


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("kind", [np.matrix, np.ma.masked_array])
def test_subclasses_of_arrays_are_arrays(kind: Any) -> None:
    array = np.array([[1.0, 0, 2], [0, 0, 3]])
    assert read(Given(kind(array), [0, 1]))[0].tolist() == read(Given(array, [0, 1]))[0].tolist()


def broken(**parts: Any) -> Any:
    csr = scipy.sparse.csr_matrix(np.eye(3))
    for name, value in parts.items():
        setattr(csr, name, value)
    return csr


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        (broken(indices=np.array([0, 1, 7])), "column numbers from 0 to 7 in a matrix of 3 columns"),
        (broken(indices=np.array([0, -1, 2])), "column numbers from -1 to 2"),
        (broken(indptr=np.array([0, 2, 1, 3])), "offsets do not rise"),
        (broken(indptr=np.array([1, 1, 2, 3])), "offsets do not rise"),
        (broken(indptr=np.array([0, 3])), "`indptr` does not fit 3 rows"),
        (broken(indptr=np.array([0, 1, 2, 9])), "`indptr` does not fit 3 rows"),
        (broken(data=np.array(["a", "b", "c"])), "values of <U1"),
        (broken(indices=np.array([0.0, 1.0, 2.0])), "column numbers of float64"),
        (np.array([["a", "b"]] * 3), "the matrix holds <U1"),
        (np.zeros((3, 2), complex), "the matrix holds complex128"),
        (np.ma.masked_equal(np.eye(3), 0), "the rows have masked values"),
        (scipy.sparse.coo_array(np.ones(3)), "the matrix has the shape (3,)"),
        (broken(indices=np.zeros((3, 1), int)), "column numbers of (3, 1)"),
    ],
)
def test_a_broken_matrix_is_refused(matrix: Any, words: str) -> None:
    with pytest.raises(UsageError) as error:
        read(Given(matrix, [0, 1, 1]))
    assert words in error.value.message


FIELDS = np.array([0, 1, 0, 2], np.uint16)
BATCH = Batch.from_lists([0, 1, 1], [[3, 1, 3], [], [7]], [[1.0, 2.0, 1.0], [], [1.0]])._replace(fields=FIELDS)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"fields": FIELDS[:1]}, "(1,) fields of uint16 and (4,) keys"),
        ({"fields": np.zeros(0, np.uint16)}, "(0,) fields of uint16 and (4,) keys"),
        ({"fields": FIELDS.reshape(-1, 1)}, "(4, 1) fields"),
        ({"fields": np.array(1)}, "() fields"),
        ({"fields": FIELDS.astype(float)}, "fields of float64"),
        ({"fields": np.array([0, -1, 0, 2])}, "fields from -1 to 2"),
        ({"fields": np.array([0, 1, 0, 1 << 40])}, "fields from 0 to 1099511627776"),
        ({"fields": np.array([0, 1, 0, 1 << 16])}, "fields from 0 to 65536"),
        ({"keys": np.array([3, 1, -3, 7])}, "the key -3"),
        ({"keys": BATCH.keys.astype(float)}, "column numbers of float64"),
        ({"keys": BATCH.keys[:, None], "values": BATCH.values[:, None]}, "column numbers of (4, 1)"),
        ({"values": BATCH.values[:3]}, "(4,) keys and (3,) values"),
        ({"offsets": np.array([0, 3, 3, 3])}, "offsets do not rise from 0 to the number of nonzeros, 4"),
        ({"offsets": np.array([0, 3, 3, 9])}, "`offsets` does not fit 3 rows and 4 nonzeros"),
        ({"offsets": np.array([0, 4])}, "`offsets` does not fit 3 rows"),
        ({"offsets": np.array([0, 5, 3, 4])}, "offsets do not rise"),
    ],
)
def test_a_broken_batch_is_refused(parts: dict[str, Any], words: str) -> None:
    """Compiled loops would write to memory that is not theirs."""
    with pytest.raises(UsageError) as error:
        read(Given(BATCH._replace(**parts), BATCH.labels))
    assert words in error.value.message


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint64])
def test_fields_of_any_integer_type(dtype: type) -> None:
    batch = BATCH._replace(fields=FIELDS.astype(dtype))
    opened = Matrices(Given(batch), {"the data": iter([Given(batch, BATCH.labels)])}, named_labels=False)
    (chunk,) = opened.chunks(SOURCE)
    found = opened.parse(chunk, 1).batch
    assert found.fields is not None
    assert found.fields.dtype == np.uint16
    assert (found.keys.tolist(), found.fields.tolist()) == ([3, 1, 7], [0, 1, 2])


def one_row(key: int, dtype: type = np.uint32) -> Given:
    return Given(Batch(np.ones(1, np.float32), np.array([0, 1]), np.array([key], dtype), np.ones(1, np.float32)), [1])


def test_later_batches_may_have_larger_keys() -> None:
    rows = [one_row(7), one_row(50), one_row(2, np.int64)]
    opened = Matrices(rows[0], {"the data": iter(rows)}, named_labels=False)
    assert opened.features is None
    found = [opened.parse(chunk, 1).batch.keys for chunk in opened.chunks(SOURCE)]
    assert [keys.tolist() for keys in found] == [[7], [50], [2]]
    assert {keys.dtype for keys in found} == {np.dtype(np.uint32)}


def test_keys_of_64_bits_are_known_by_the_first_batch() -> None:
    """All blocks hold keys of one type, since frequent keys change their places."""
    large = one_row(1 << 40, np.uint64)
    opened = Matrices(large, {"the data": iter([large, one_row(7)])}, named_labels=False)
    assert {opened.parse(chunk, 1).batch.keys.dtype for chunk in opened.chunks(SOURCE)} == {np.dtype(np.uint64)}
    for first, later, words in (
        (one_row(7), large, "the key 1099511627776; keys must be below 4294967295"),
        (one_row(1 << 62, np.uint64), large, "the key 4611686018427387904; keys must be below"),
    ):
        with pytest.raises(UsageError, match=words):
            read(first, later)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (Given(np.eye(3), [0, 1, 1]), "a matrix has 3 columns, the first has 2"),
        (Given(np.eye(2)), "the rows have no labels"),
        (Given(np.eye(2), [0, 1], [1, 1]), "some batches have weights, and some have none"),
    ],
)
def test_batches_must_fit_each_other(second: Given, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read(Given(np.eye(2), [0, 1]), second)


def test_batches_with_keys_do_not_mix_with_matrices() -> None:
    with pytest.raises(UsageError, match="the first batch has keys, and another one columns"):
        read(one_row(7), Given(np.eye(8), [0] * 8))
