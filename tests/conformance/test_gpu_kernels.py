"""Kernels compile for a GPU, without one: Triton brings its own assembler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from paceline.torch.sparse import bits, factorization, linear, multinomial, segments, table
from paceline.torch.sparse.launch import Hot
from paceline.torch.sparse.losses import LossNumbers
from paceline.torch.sparse.rows import GpuRows, Runs
from paceline.torch.sparse.updates import RuleNumbers

RULE = RuleNumbers("fp32", "fp32", "fp32", "fp32")
TYPES = {
    "rows": GpuRows("*u8", "*fp32", "*fp32", "*i32", "*i64", "*i32", "*i32", "*fp32"),
    "runs": Runs("*i64", "*i32", "*i64", "*i64"),
    "hot": Hot("*i64", "*fp32", "*i64", "*fp32", "i32", "*fp32", "i32"),
    "rule": RULE, "factor_rule": RULE, "loss": LossNumbers("fp32", "fp32", "fp32"), "in_flight": "fp32",
    "per_row": "fp32", "owners": "*i32",
    **dict.fromkeys(("ends", "sizes", "order", "keys", "lengths", "words", "blocks"), "*i64"),
    **dict.fromkeys(("numbers", "losses", "class_weights", "out", "sums", "values", "moves"), "*fp32"),
}
# Some rows may be long: a loop over 1,000 chunks must not be unrolled.
ROWS = {"WEIGHTED": True, "ONES": False, "LISTED": 64, "CHUNKS": 1024}
TRAIN = ROWS | {"KIND": "adagrad", "HAS_L1": True, "HAS_L2": True, "NUMBERS": 13, "WORDS": 1, "RUNS": 4}
FACTORS = {"LOSS": "logistic", "WIDTH": 19, "FIRST": 2, "FACTORS": 16, "PADDED": 16}
CLASSES = {"WIDTH": 10, "CLASSES": 5, "PADDED": 8}
KERNELS = [
    (linear.train_linear, TRAIN | {"LOSS": "logistic", "WIDTH": 2, "PADDED": 16}),
    (factorization.train_factors, TRAIN | FACTORS | {"FACTOR_KIND": "row-wise", "FACTOR_L2": True, "COLUMNS": 16}),
    (multinomial.train_classes, TRAIN | CLASSES | {"COLUMNS": 16}),
    (linear.measure_linear, ROWS | {"SCORES": False, "LOSS": "huber", "KIND": "ftrl", "WIDTH": 2}),
    (factorization.measure_factors, ROWS | FACTORS | {"SCORES": False, "KIND": "ftrl"}),
    (multinomial.measure_classes, ROWS | CLASSES | {"SCORES": True, "KIND": "sgd"}),
    (bits.unpack_keys, {"WIDTH": 63, "KEYS": 1024}),
    (segments.note_lengths, {}),
    (segments.list_nonzeros, {"ONES": False, "LISTED": 64, "CHUNKS": 1024}),
    (segments.add_up, {"SECOND": True, "COLUMNS": 17, "PADDED": 32, "TILE": 64}),
    (table.update_group, {"KIND": "row-wise", "HAS_L1": False, "HAS_L2": True, "COLUMNS": 9, "PADDED": 16, "KEYS": 64}),
]
for kernel, known in KERNELS:
    signature = {name: "constexpr" if name in known else TYPES.get(name, "i32") for name in kernel.arg_names}
    constants = {(i,): known[name] for i, name in enumerate(kernel.arg_names) if name in known}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    print(kernel.__name__, len(made.asm["cubin"]))
"""


def test_all_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_DEFAULT_FP_FUSION": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr[-3000:]
    sizes = [int(line.split()[1]) for line in done.stdout.splitlines()]
    assert len(sizes) == 11
    assert min(sizes) > 1000
