"""Operations that numba lacks: fused multiply-adds, the bits of a float, pointers, prefetches, and 2^t."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload


def _emit_fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c, rounded once."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return a(a, b, c), codegen


def _emit_bits(typing_context: Any, value: Any) -> Any:
    """Return the bits of a float32 as int32 or of a float64 as uint64."""
    kind, width = (types.int32, 32) if value == types.float32 else (types.uint64, 64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(width))

    return kind(value), codegen


def _emit_float(typing_context: Any, bits: Any) -> Any:
    """Return the float32 of an int32's bits or the float64 of a uint64's."""
    kind, target = (types.float32, ir.FloatType()) if bits == types.int32 else (types.float64, ir.DoubleType())

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], target)

    return kind(bits), codegen


def _emit_pointer(typing_context: Any, address: Any, like: Any) -> Any:
    """Return the address as a pointer to numbers of the array's dtype."""
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

LARGEST_F32, LARGEST_F64 = np.float32(120.0), 1000.0
"""Largest |t| of exp2 by dtype."""

_ROUND_F32, _ROUND_F64 = np.float32(1.5 * 2.0**23), 1.5 * 2.0**52
_MANTISSA_F32, _MANTISSA_F64 = np.int32(23), np.uint64(52)
_ONE_F32 = np.float32(1.0)
# Minimax polynomials of 2^r in relative error on |r| <= 1/2 (Remez, from the lowest degree up): 1.9e-9 with the
# constant 1 in front, and 3.1e-18.
_E1, _E2, _E3 = (np.float32(c) for c in (0.6931472, 0.24022646, 0.055503286))
_E4, _E5, _E6 = (np.float32(c) for c in (0.009618489, 0.0013399931, 0.00015345812))
# fmt: off
_EXP2_F64 = (
    1.0, 0.6931471805599453, 0.24022650695910155, 0.055504108664819925,
    0.009618129107588335, 0.0013333558146789923, 0.00015403530462514432, 1.5252733489988525e-05,
    1.32154330896764e-06, 1.0178198021671931e-07, 7.074105613508143e-09, 4.435282706957277e-10,
)
# fmt: on


# Adding 1.5 * 2^23 rounds to an integer n, which is then in the last bits, from where it goes into the exponent; the
# rest r = t - n is exact.
@njit
def _exp2_f32(t: Any) -> Any:
    shifted = t + _ROUND_F32
    r = t - (shifted - _ROUND_F32)
    r2 = r * r
    # Estrin's scheme: a shorter chain of dependent operations than Horner's.
    high = fma(fma(_E6, r2, fma(_E5, r, _E4)), r2, fma(_E3, r, _E2))
    power = fma(high, r2, fma(_E1, r, _ONE_F32))
    return float_of(np.int32(bits_of(power) + np.int32(bits_of(shifted) << _MANTISSA_F32)))


@njit
def _exp2_f64(t: Any) -> Any:
    shifted = t + _ROUND_F64
    r = t - (shifted - _ROUND_F64)
    r2 = r * r
    even, odd = _EXP2_F64[-2], _EXP2_F64[-1]
    for k in range(len(_EXP2_F64) - 4, -1, -2):
        even, odd = fma(even, r2, _EXP2_F64[k]), fma(odd, r2, _EXP2_F64[k + 1])
    return float_of(bits_of(fma(odd, r, even)) + (bits_of(shifted) << _MANTISSA_F64))


def exp2(t: Any) -> Any:
    """Return 2^t to a unit in the last place or two, for t in [-LARGEST_F32, LARGEST_F32] or the same of float64."""
    return (_exp2_f32 if isinstance(t, np.float32) else _exp2_f64)(t)


@overload(exp2, strict=False)  # type: ignore[untyped-decorator, unused-ignore]
def _exp2_overload(t: Any) -> Any:
    of_dtype = _exp2_f32 if t == types.float32 else _exp2_f64
    return lambda t: of_dtype(t)
