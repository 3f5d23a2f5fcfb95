# SPDX-License-Identifier: Apache-2.0
"""Facts about single TensorFlow ops: which are aliases, which overwrite an input, which run only
once."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def _named(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What a step reads but does not compute: parameters, inputs, constants. They are static memory.
_SOURCES = _named(
    """
    Const Placeholder PlaceholderV2 PlaceholderWithDefault ReadVariableOp VarHandleOp Variable
    VariableV2 IteratorGetNext IteratorGetNextSync OptionalGetValue QueueDequeueV2
    QueueDequeueManyV2 QueueDequeueUpToV2
    """
)

# Ops whose only output shares the memory of their first input.
VIEWS = _named(
    """
    Reshape Identity StopGradient PreventGradient Squeeze ExpandDims EnsureShape CheckNumerics
    Snapshot
    """
)

# Ops whose outputs are parts of an input where its rows are aligned, and copies elsewhere.
_PARTS = frozenset({"Slice", "Split", "SplitV", "StridedSlice", "Unpack"})
# Ops that write their first output over an input of the same size if no other op needs it.
FORWARDING = _named(
    """
    Abs Acos Acosh Add AddN AddV2 Asin Asinh Atan Atan2 Atanh BiasAdd BiasAddV1 Cast Ceil
    ClipByValue Cos Cosh Digamma Div DivNoNan Elu EluGrad Erf Erfc Erfinv Exp Expm1 Floor
    FloorDiv FloorMod Inv LeakyRelu LeakyReluGrad Lgamma Log Log1p LogSoftmax MatrixBandPart
    Maximum Minimum Mul MulNoNan Neg Pow RealDiv Reciprocal Relu Relu6 Relu6Grad ReluGrad Rint
    Round Rsqrt RsqrtGrad SelectV2 Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Sinh Softmax
    Softplus SoftplusGrad Softsign SoftsignGrad Sqrt SqrtGrad Square SquaredDifference Sub Tan
    Tanh TanhGrad TruncateDiv Xdivy Xlogy
    """
)

# Ops that write their second output over their first input if no other op needs it, and no other
# output over another. TensorFlow 2.16 makes a new tensor for the dense one.
FORWARDING_SECOND = frozenset(
    {"SparseSoftmaxCrossEntropyWithLogits"}
    if tf.__version__.startswith("2.16.")
    else {"SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"}
)

# Ops that read the shape of a tensor but not its elements.
_SIZES = frozenset({"Rank", "Shape", "ShapeN", "Size"})

_FRAMES = _named(
    """
    Enter Exit LoopCond Merge NextIteration Switch RefEnter RefExit RefMerge RefNextIteration
    RefSwitch
    """
)


def is_source(op: Any) -> bool:
    """Returns whether the outputs of an op exist before the step begins."""
    if op.type in _SOURCES:
        return True
    # A variable of TensorFlow 1 is read this way.
    return op.type == "Identity" and bool(op.inputs) and op.inputs[0].dtype._is_ref_dtype


def may_share(op: Any) -> list[Any]:
    """Returns, by output of an op, the input that it may be a part of, or equal to; nothing for an
    op that always makes new tensors. Whether it is so depends on sizes."""
    if op.type == "IdentityN":
        return list(op.inputs)
    if op.type in _PARTS or op.type == "Transpose":
        return [op.inputs[1 if op.type == "Split" else 0]] * len(op.outputs)
    return []


def may_write_over(tensor: Any) -> bool:
    """Returns whether some reader may write its output over a tensor. If the tensor is the last
    part of another one, TensorFlow lets it, and the output then holds all of that memory."""
    for op in tensor.consumers():
        if op.type in VIEWS:
            if may_write_over(op.outputs[0]):
                return True
        elif op.type in FORWARDING | FORWARDING_SECOND or may_share(op):
            return True
    return False


def reads_sizes_only(op: Any) -> bool:
    """Returns whether an op needs only the shapes of its inputs, and so need not hold them."""
    return op.type in _SIZES and not op.control_inputs


def in_a_frame(op: Any) -> bool:
    """Returns whether an op is in a control-flow frame of TensorFlow 1: it cannot be copied."""
    return op.type in _FRAMES or op._get_control_flow_context() is not None


def has_ops_inside(op: Any) -> bool:
    """Returns whether an op runs others: a loop, a conditional, a function."""
    return any(attr.type in ("func", "list(func)") for attr in op.op_def.attr)


def kind_of(op: Any) -> str:
    """Returns the kind of an op, which says whether it may run again."""
    return "once" if op.op_def.is_stateful else "pure"
