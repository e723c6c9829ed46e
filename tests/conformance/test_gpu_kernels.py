"""Kernels compile for a GPU, without one, because Triton brings its own assembler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import re, subprocess, tempfile
from pathlib import Path
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from paceline.torch.sparse import bits, factorization, linear, multinomial, segments, table
from paceline.torch.sparse.launch import Hot
from paceline.torch.sparse.losses import LossNumbers
from paceline.torch.sparse.rows import GpuRows, Runs
from paceline.torch.sparse.updates import RuleNumbers

TOOL = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
RULE = RuleNumbers("fp32", "fp32", "fp32", "fp32")
TYPES = {
    "rows": GpuRows("*u8", "*fp32", "*fp32", "*i32", "*i64", "*i32", "*i32", "*fp32"),
    "runs": Runs("*i64", "*i32", "*i64", "*i64"),
    "hot": Hot("*i64", "*fp32", "*i64", "*fp32", "i32", "*fp32", "i32"),
    "rule": RULE, "factor_rule": RULE, "loss": LossNumbers("fp32", "fp32", "fp32"), "owners": "*i32",
    **dict.fromkeys(("in_flight", "listed_in_flight", "per_row"), "fp32"),
    **dict.fromkeys(("ends", "sizes", "order", "keys", "lengths", "words", "blocks"), "*i64"),
    **dict.fromkeys(("numbers", "losses", "class_weights", "out", "sums", "values", "moves"), "*fp32"),
}
LONG = {"WEIGHTED": True, "ONES": False, "LISTED": 64, "ONE_CHUNK": False}
USUAL = {"WEIGHTED": False, "ONES": True, "LISTED": 32, "ONE_CHUNK": True}
TRAIN = {"HAS_L2": True, "NUMBERS": 13, "WORDS": 1, "RUNS": 1}
LINEAR = TRAIN | {"LOSS": "logistic", "PADDED": 16}
FACTORS = {"LOSS": "logistic", "WIDTH": 19, "FIRST": 2, "FACTORS": 16, "PADDED": 16}
OF_FACTORS = TRAIN | FACTORS | {"KIND": "adagrad", "FACTOR_KIND": "row-wise", "FACTOR_L2": True, "COLUMNS": 16}
CLASSES = {"WIDTH": 10, "CLASSES": 5, "PADDED": 8}
KERNELS = [
    *((linear.train_linear, USUAL | LINEAR | {"KIND": kind, "WIDTH": width, "WORDS": 4})
      for kind, width in (("sgd", 1), ("adagrad", 2), ("ftrl", 2))),
    (factorization.train_factors, USUAL | OF_FACTORS),
    (multinomial.train_classes, USUAL | TRAIN | CLASSES | {"KIND": "adagrad", "COLUMNS": 16}),
    (linear.measure_linear, USUAL | {"LOSS": "logistic", "SCORES": False, "KIND": "adagrad", "WIDTH": 2}),
    (factorization.measure_factors, USUAL | FACTORS | {"SCORES": False, "KIND": "adagrad"}),
    (multinomial.measure_classes, USUAL | CLASSES | {"SCORES": False, "KIND": "adagrad"}),
    (linear.train_linear, LONG | LINEAR | {"KIND": "adagrad", "WIDTH": 2}),
    (factorization.train_factors, LONG | OF_FACTORS),
    (multinomial.train_classes, LONG | TRAIN | CLASSES | {"KIND": "ftrl", "COLUMNS": 16}),
    (linear.measure_linear, LONG | {"SCORES": False, "LOSS": "huber", "KIND": "ftrl", "WIDTH": 2}),
    (factorization.measure_factors, LONG | FACTORS | {"SCORES": True, "KIND": "ftrl"}),
    (multinomial.measure_classes, LONG | CLASSES | {"SCORES": True, "KIND": "sgd"}),
    (bits.unpack_keys, {"WIDTH": 63, "KEYS": 1024}),
    (segments.note_lengths, {}),
    (segments.list_nonzeros, {"ONES": False, "LISTED": 64, "ONE_CHUNK": False}),
    (segments.add_up, {"SECOND": True, "COLUMNS": 17, "PADDED": 32, "TILE": 64}),
    (segments.add_up, {"SECOND": False, "COLUMNS": 1, "PADDED": 1, "TILE": 512}),
    (table.update_group, {"KIND": "row-wise", "HAS_L1": False, "HAS_L2": True, "COLUMNS": 9, "PADDED": 16, "KEYS": 64}),
    (table.update_group, {"KIND": "adagrad", "HAS_L1": True, "HAS_L2": False, "COLUMNS": 1, "PADDED": 1, "KEYS": 64}),
]
for kernel, known in KERNELS:
    assert known.keys() <= {*kernel.arg_names}, (kernel.__name__, known.keys() - {*kernel.arg_names})
    signature = {name: "constexpr" if name in known else TYPES.get(name, "i32") for name in kernel.arg_names}
    constants = {(i,): known[name] for i, name in enumerate(kernel.arg_names) if name in known}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    options = {"num_warps": 8 if kernel is linear.train_linear else 4}
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        used = subprocess.run([TOOL, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    stack = re.search(r"STACK:(\\d+)", used)[1]
    print(kernel.__name__, "usual" if known.keys() >= USUAL.keys() and known["ONES"] else "other", stack)
"""


def test_all_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_DEFAULT_FP_FUSION": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [line.split() for line in done.stdout.splitlines()]
    assert len(found) == 21
    # What does not fit into registers is in memory, which is slow.
    usual = [(name, int(stack)) for name, kind, stack in found if kind == "usual"]
    assert usual == [(name, 0) for name, _ in usual]
    assert len(usual) == 8
