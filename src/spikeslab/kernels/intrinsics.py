"""What numba lacks: fused multiply-adds, the bits of a float, pointers and prefetches."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

__all__ = ["bits_of", "float_of", "fma", "pointer", "prefetch"]


def _emit_fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """Give a * b + c, rounded once."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return a(a, b, c), codegen


def _emit_bits(typing_context: Any, value: Any) -> Any:
    """Give the bits of a float32 as int32 or of a float64 as uint64."""
    kind, width = (types.int32, 32) if value == types.float32 else (types.uint64, 64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(width))

    return kind(value), codegen


def _emit_float(typing_context: Any, bits: Any) -> Any:
    """Give the float32 of an int32's bits or the float64 of a uint64's."""
    kind, target = (types.float32, ir.FloatType()) if bits == types.int32 else (types.float64, ir.DoubleType())

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], target)

    return kind(bits), codegen


def _emit_pointer(typing_context: Any, address: Any, like: Any) -> Any:
    """Give the address as a pointer to numbers of the array's dtype."""
    pointer = types.CPointer(like.dtype)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(pointer))

    return pointer(types.int64, like), codegen


def _emit_prefetch(typing_context: Any, address: Any) -> Any:
    """Bring a line of memory into the second-level cache; the address need not be a valid one."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        read, level_2, data = (ir.Constant(number, value) for value in (0, 2, 1))
        builder.call(function, [builder.inttoptr(args[0], pointer), read, level_2, data])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


fma: Any = intrinsic(_emit_fma)
bits_of: Any = intrinsic(_emit_bits)
float_of: Any = intrinsic(_emit_float)
pointer: Any = intrinsic(_emit_pointer)
prefetch: Any = intrinsic(_emit_prefetch)
